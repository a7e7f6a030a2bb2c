//! Bugs to put back.

/// Bugs to put back, to see that they are caught.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bug {
    /// None.
    #[default]
    None,
    /// Replicas acknowledge before their disk has it.
    AckBeforeCommit,
    /// A log merge forgets what became missing.
    ForgetMissing,
    /// A log merge leaves divergent and deleted objects where they are.
    KeepDivergent,
    /// Reads do not wait for writes in flight.
    ReadUncommitted,
    /// Resent writes are executed again.
    NoDups,
    /// The primary answers without waiting for replicas.
    AckAlone,
    /// A replica takes the head of the authoritative log without what is between.
    SkipMerge,
    /// Recovery writes nothing but the last part of an object.
    PushLastOnly,
    /// A copy that is filled moves its cursor in one transaction, and notes what it lacks before it
    /// in the next.
    CursorFirst,
    /// A primary that fills a copy compares what it had when it began to serve.
    StaleListing,
    /// A copy that is filled does not apply writes to what it has.
    FollowerSleeps,
    /// A copy that is filled says that it is complete.
    ClaimComplete,
    /// Requests from before a split are executed.
    OldRequests,
    /// A split is durable in two steps: the parent's part first.
    SplitInSteps,
    /// Copies that do not act do not split.
    StraysDoNotSplit,
    /// What comes out of a split takes itself for complete.
    SplitForgetsMissing,
    /// Reads are answered without a lease.
    NoLease,
    /// A silent OSD counts as gone for sure, so that its lease is not waited for.
    SilentIsDead,
    /// A replica serves reads of objects that are being written.
    ReplicaReadsUncommitted,
    /// A replica serves reads without a lease.
    ReplicaWithoutLease,
    /// A copy that is scrubbed tells what is on its disk, and not what it was told to write.
    ScanDurable,
    /// Clients are served by fewer than `min_size`.
    BelowMinSize,
    /// The store does not verify what it reads for clients.
    NoChecksum,
    /// A deep scrub looks at sizes only.
    ScrubSkims,
    /// Trimming a clone removes it, also if it stands for other snapshots.
    TrimTakesAll,
    /// Recovered clones are not found by their snapshots.
    PushForgetsSnaps,
    /// A snapshot counts as trimmed when its first clone is.
    PurgedEarly,
    /// A delete makes no clone.
    DeleteKeepsNothing,
    /// The monitors forget maps that groups that are not clean need.
    TrimUnclean,
    /// A leader takes for agreed on what is in its own log.
    MinorityAgrees,
    /// A leader shows maps before a majority has them.
    ShowUncommitted,
    /// The monitors mark a process up that asked for it before it knew that it was up once, though
    /// it may be down since.
    LateBoot,
    /// What a shard XORs into its bytes is applied again when its message comes again.
    DeltaTwice,
    /// A shard misses a change that its log has.
    MissedChange,
    /// A shard misses a change that its log has, and does not look at which version a later change
    /// is of: a delta comes to other bytes than it was made for.
    DeltaUnguarded,
    /// What a primary keeps of a stripe counts for any version, and nothing makes it void.
    StaleStripe,
    /// A primary takes every copy to have the newest entries that it has itself.
    RollForward,
    /// Reads of shards take any version, and do not wait for writes.
    MixedShards,
    /// A position without an OSD counts as a shard of zeroes.
    HoleIsAShard,
    /// What takes changes back is dropped at once.
    ForgetUndo,
    /// A primary says nothing of what is for its own position: a copy that is filled may have that.
    OwnPositionUntold,
    /// A replica that finds another version than it was asked for takes its copy for lost.
    ReplicaJudges,
}
