//! What an operator can set.

use std::collections::{BTreeMap, BTreeSet};

/// Nanoseconds of a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// What an operator can set, and limits.
#[derive(Clone, Debug)]
pub struct Conf {
    /// What may be in memory, and what is asked of clients so that it stays so.
    pub bounds: Bounds,
    /// Entries of directories that the cache may hold, whatever they take.
    pub cache_entries_max: usize,
    /// Entries that are changed and not at rest: above this they are written.
    pub dirty_entries_max: usize,
    /// Batches of the log that a successor has to read, about.
    pub log_batches_max: u64,
    /// Batches that are being appended at the same time.
    pub appends_max: usize,
    /// A batch for which nothing waits goes on filling for so many nanoseconds.
    pub log_pause: u64,
    /// Entries of one operation on a directory's object.
    pub write_entries_max: usize,
    /// Operations of write-back at the same time.
    pub writes_max: usize,
    /// Entries that are read at once, and entries of a page for a client.
    pub page_entries_max: u32,
    /// Requests that are carried out at the same time, at most.
    pub requests_max: usize,
    /// Requests that begin at one event. The others wait in the scheduler for the next wake, so
    /// that those that come meanwhile have their share.
    pub requests_at_once: usize,
    /// Removals of data at the same time.
    pub purges_max: usize,
    /// Nothing was heard of a client for so many nanoseconds: others need not wait for it
    /// (`session_timeout`).
    pub session_timeout: u64,
    /// As above, and the client has capabilities: it is evicted (`session_autoclose`).
    pub session_autoclose: u64,
    /// The largest size of a file (`max_file_size`).
    pub max_file_size: u64,
    /// Bytes of all extended attributes of an inode (`mds_max_xattr_pairs_size`).
    pub max_xattr_bytes: usize,
    /// The layout of files where no directory says another.
    pub layout: crate::Layout,
    /// The data pools.
    pub data_pools: Vec<i64>,
    /// Which of the owners this is.
    pub rank: crate::Rank,
    /// How many owners there are.
    pub owners: u16,
    /// Owners that have left: the first one has all of theirs.
    pub absent: BTreeSet<crate::Rank>,
    /// The owner that a pin to a rank names. Without any, each rank is the owner of its number.
    pub ranks: BTreeMap<u16, crate::Rank>,
    /// All owners come to rest: none serves clients.
    pub rests: bool,
    /// Owners that have ended, as all rest. They come back as they are.
    pub asleep: BTreeSet<crate::Rank>,
    /// The number of the map that says which owners there are, and whether they rest.
    pub map: u64,
    /// New directories go to all owners, by the hash of the directory above and the name. Else they
    /// go where the directory above is, unless a pin says another owner.
    pub spread: bool,
    /// Whether directories say that those made in them go to all owners
    /// (`mds_export_ephemeral_distributed`).
    pub distributed: bool,
    /// Whether directories say that those below them go to any owner by chance
    /// (`mds_export_ephemeral_random`).
    pub random: bool,
    /// The largest chance of that (`mds_export_ephemeral_random_max`).
    pub random_max: f64,
    /// Subvolumes move to the owners that pins name.
    pub moves: bool,
    /// So do other directories with all below them.
    pub trees: bool,
    /// Changes are answered before they are durable, and again when they are (`mds_early_reply`).
    pub early_reply: bool,
    /// A client may rely on a name for so many nanoseconds where it cannot have those of the whole
    /// directory.
    pub lease: u64,
    /// Where one client changes names and others look them up, no client relies on all names of the
    /// directory for so many nanoseconds at first, and longer as it goes on.
    pub shared_names: u64,
    /// An owner that gave no answer for so many nanoseconds is asked again.
    pub peer_retry: u64,
    /// Notes the order in which requests are carried out, for [`crate::Mds::take_history`].
    pub history: bool,
    /// A defect that is put back, to see that tests find it.
    #[doc(hidden)]
    pub bug: Bug,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            bounds: Bounds::default(),
            cache_entries_max: usize::MAX,
            dirty_entries_max: 20_000,
            log_batches_max: 4_096,
            appends_max: 1,
            log_pause: 0,
            write_entries_max: 1_000,
            writes_max: 16,
            page_entries_max: 1_024,
            requests_max: 4_096,
            requests_at_once: usize::MAX,
            purges_max: 8,
            session_timeout: 60 * SECOND,
            session_autoclose: 300 * SECOND,
            max_file_size: 1 << 40,
            max_xattr_bytes: 64 << 10,
            layout: crate::Layout {
                stripe_unit: 4 << 20,
                stripe_count: 1,
                object_size: 4 << 20,
                pool: -1,
                namespace: String::new(),
            },
            data_pools: Vec::new(),
            rank: crate::Rank(0),
            owners: 1,
            absent: BTreeSet::new(),
            ranks: BTreeMap::new(),
            rests: false,
            asleep: BTreeSet::new(),
            map: 0,
            spread: false,
            distributed: true,
            random: true,
            random_max: 0.01,
            moves: false,
            trees: false,
            early_reply: true,
            lease: 5 * SECOND,
            shared_names: SECOND / 4,
            peer_retry: SECOND / 2,
            history: false,
            bug: Bug::None,
        }
    }
}

/// What may be in memory, and what is asked of clients so that it stays so. Names of 16.2's options
/// are beside the fields; rates are half-lives in seconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Bounds {
    /// Bytes that the server may hold for clients (`mds_cache_memory_limit`).
    pub bytes: usize,
    /// The part of them that is kept free (`mds_cache_reservation`).
    pub reservation: f64,
    /// An operator hears of so many times of them (`mds_health_cache_threshold`).
    pub health_threshold: f64,
    /// Capabilities that a client is asked for at once (`mds_recall_max_caps`).
    pub recall_max: usize,
    /// And lately (`mds_recall_max_decay_threshold`).
    pub recall_threshold: f64,
    /// What lately means (`mds_recall_max_decay_rate`).
    pub recall_rate: f64,
    /// And all clients lately (`mds_recall_global_max_decay_threshold`).
    pub recall_global_threshold: f64,
    /// A client that owes more is complained of (`mds_recall_warning_threshold`).
    pub warning_threshold: f64,
    /// How long that is remembered (`mds_recall_warning_decay_rate`).
    pub warning_rate: f64,
    /// A client with fewer is not complained of for that (`mds_min_caps_working_set`).
    pub working_set: usize,
    /// A client with more is asked although there is memory (`mds_max_caps_per_client`).
    pub caps_max: usize,
    /// A client with fewer is not asked for any (`mds_min_caps_per_client`).
    pub caps_min: usize,
    /// A client that uses fewer than its capabilities shifted by this is asked
    /// (`mds_session_cache_liveness_magnitude`).
    pub liveness_magnitude: u32,
    /// How long the use of capabilities is remembered (`mds_session_cache_liveness_decay_rate`).
    pub liveness_rate: f64,
    /// Changes of a client of which it does not say that it has the answers
    /// (`mds_max_completed_requests`).
    pub completed_max: usize,
    /// A request waits so many nanoseconds for its client to give something back.
    pub wait: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            bytes: 4 << 30,
            reservation: 0.05,
            health_threshold: 1.5,
            recall_max: 30_000,
            recall_threshold: 131_072.0,
            recall_rate: 1.5,
            recall_global_threshold: 131_072.0,
            warning_threshold: 262_144.0,
            warning_rate: 60.0,
            working_set: 10_000,
            caps_max: 1 << 20,
            caps_min: 100,
            liveness_magnitude: 10,
            liveness_rate: 300.0,
            completed_max: 100_000,
            wait: 10 * SECOND,
        }
    }
}

impl Bounds {
    /// Above so many bytes the cache shrinks.
    pub(crate) fn wanted(&self) -> usize {
        (self.bytes as f64 * (1.0 - self.reservation.clamp(0.0, 0.9))) as usize
    }
}

/// Defects to put back, to see that the simulation finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bug {
    /// None.
    #[default]
    None,
    /// Answers leave before the log has what they tell of.
    EarlyReply,
    /// Reads do not wait for what they saw to be durable.
    EarlyRead,
    /// Completed requests are forgotten.
    NoCompleted,
    /// The log is trimmed as soon as write-back has begun.
    TrimEarly,
    /// Write-back does not wait for the log.
    WriteAhead,
    /// A rename leaves the statistics of the old directory as they were.
    RenameStats,
    /// An entry that is clean again may be dropped while its directory is being read.
    EvictWhileReading,
    /// Capabilities are granted beside those that are still being revoked.
    GrantBeforeAck,
    /// Requests do not take back what other clients hold.
    NoRevoke,
    /// What clients had is forgotten in a failover.
    NoClaims,
    /// A removed file's data goes although a client has it open.
    PurgeOpen,
    /// What a client gave back before it was asked for it is waited for.
    CrossingIgnored,
    /// A half is said to be prepared before the log has it.
    PreparedEarly,
    /// Other owners hear of a decision before the log has it.
    DecidedEarly,
    /// Prepared halves are forgotten in a failover.
    ForgetPrepared,
    /// Decisions are forgotten in a failover.
    ForgetDecided,
    /// What a prepared half needs is not kept for it.
    NoLock,
    /// The inode of a part's root is held for reported when it is sent.
    ReportLost,
    /// An owner leaves before clients have given everything back.
    LeaveWithCaps,
    /// The owner that leaves is answered before the log has what it handed over.
    TakenEarly,
    /// Statistics that a root has not reported are lost when its owner takes its name over.
    GraftStats,
    /// A request that comes again is answered again.
    AnswerTwice,
    /// What a client says of an inode overtakes what it has said before.
    CapsOvertake,
    /// An owner that rests ends without asking the others.
    EndAlone,
    /// An owner is added with the numbers of one that left.
    NumbersAgain,
    /// A subvolume goes to another owner before clients have given everything back.
    MoveWithCaps,
    /// What goes with a subvolume is answered before the log has it.
    MoveTakenEarly,
    /// Which numbers have another owner than they say is forgotten in a failover.
    RunsNotLogged,
    /// Requests go on in a tree while it is walked through.
    WalkUnstopped,
    /// Strays of an owner that left stay in its stray directories.
    StraysStay,
    /// A name changes although clients rely on it.
    LeaseStays,
    /// Leases of the server before this one are forgotten.
    LeasesForgotten,
    /// A directory goes to another owner with its leases.
    MoveWithLeases,
    /// A split directory of which something was read without its inode is changed as it is.
    ChangeSplit,
    /// An early answer shows what other clients did and the log does not have.
    EarlyOfOthers,
    /// Numbers are given out early that the log does not keep from a successor.
    NumbersNotAhead,
    /// A request that was answered early gets another number after a failover.
    NumberNotKept,
    /// What clients flushed is taken in before the requests that were answered early.
    FlushBeforeReplay,
}
