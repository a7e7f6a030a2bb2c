//! The machine: one copy of a PG on one OSD.
//!
//! ```text
//!                      new interval
//!   any phase ───────────────────────────► Reset ── ActivateMap ──┬─► primary: GetInfo
//!                                                                 └─► others:  Stray
//!   GetInfo ─► GetLog ─► GetMissing ─► WaitUpThru ─► Activating ─► Active
//!      │          └─► Incomplete, WaitActing
//!      └─► Down                                       Stray ─ Activate ─► ReplicaActive
//! ```
//!
//! Parts: [`peering`](self) asks and decides, `activate` makes replicas ready, `replicate` carries
//! writes, `recovery` copies objects, `reserve` waits for turns, `repair` what to do about bad
//! copies, `rebuild` makes shards of other shards, `unfound` what to do about lost objects, `lease`
//! lets copies serve reads, `backfill`
//! fills copies that the log cannot fill, `maps` follows the cluster map, `status` and
//! `peering_status` are for people.

mod activate;
mod async_recovery;
mod backfill;
mod backfill_scan;
mod backfill_target;
mod history;
mod invariants;
mod join;
mod lease;
mod maps;
mod parts;
mod peering;
mod peering_status;
mod rebuild;
mod recovery;
mod removal;
mod repair;
mod replicate;
mod reserve;
mod scrub;
mod snaptrim;
mod sources;
mod split;
mod status;
mod unfound;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use smallvec::{SmallVec, smallvec};
use types::{Epoch, Eversion, ObjectId, OsdId, PgId, PgShard, ReqId, ShardId, SpgId, Utime};

use crate::action::{Action, Peers, Persist};
use crate::backend::{Backend, shard_at};
use crate::conf::PgConf;
use crate::event::Event;
use crate::info::{PgHistory, PgInfo};
use crate::log::PgLog;
use crate::map::{MapRef, Mapping, PoolView};
use crate::missing::MissingSet;
use crate::msg::{PeerHeader, PeerMsg, Progress};
use crate::past_intervals::{PastIntervals, is_pending, place};
use crate::prior_set::PriorSet;
use crate::proposal::{Dup, ObjectStatus, OpToken, PersistToken};
use crate::reserver::Side;
use crate::rows;
use crate::stats::StatSum;

use parts::{Backfilling, Leases, Recovery, Repairs, Reservation, Scrubbing, Times, Trimming};

pub use backfill::BackfillStatus;
pub use history::{StateHistory, Stay, StayTimes};
pub use parts::scrub::ScrubResults;
pub use peering_status::{Incomplete, PeeringStatus, RuledOut, WaitsFor};
pub use status::{PeerStatus, PgStatus};
pub use unfound::{GiveUp, Holder, Lacking, LostRefused};

/// What this copy is doing.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// A new interval began; waits for [`Event::ActivateMap`].
    Reset,
    /// Not the primary, and not (yet) activated by it.
    Stray,
    /// Takes writes from the primary.
    ReplicaActive,
    /// Primary: asks copies for their infos.
    GetInfo { waiting: BTreeSet<PgShard> },
    /// Primary: OSDs that may hold newer writes are down.
    Down,
    /// Primary: fetches the authoritative log.
    GetLog { from: PgShard, full: bool },
    /// Primary: no copy is complete.
    Incomplete,
    /// Primary: asked the monitor for another acting set.
    WaitActing,
    /// Primary: asks replicas for what they lack.
    GetMissing { waiting: BTreeSet<PgShard> },
    /// Primary: waits for its `up_thru` in the map.
    WaitUpThru,
    /// Primary: waits until the activation is durable everywhere.
    Activating { waiting: BTreeSet<PgShard>, own: Option<PersistToken> },
    /// Primary: serves, if there are `min_size` OSDs.
    Active,
    /// The copy is going away.
    Removing,
    /// The copy is gone.
    Gone,
}

/// What the primary knows of another copy.
#[derive(Clone, Debug)]
struct Peer {
    info: PgInfo,
    /// When its OSD came up: what a former life of it said is void.
    up_from: Epoch,
    /// What it lacks of *our* log, divergent entries resolved; `None` until it told.
    missing: Option<MissingSet>,
    /// The newest point that its log shares with ours.
    common: Eversion,
    /// Whether its whole log was asked for.
    asked_full: bool,
    /// It has said all that it can, and its log cannot be used.
    useless: bool,
    /// Writes of this interval up to here are durable there.
    acked: Eversion,
    /// Up to where it was sent the log in this interval, if it takes writes.
    sent: Option<Eversion>,
    /// How totals change with entries that it was not sent.
    owed: StatSum,
}

/// A proposal on its way.
#[derive(Debug)]
struct InFlight {
    version: Eversion,
    token: OpToken,
    persist: PersistToken,
    oids: SmallVec<[ObjectId; 1]>,
    /// Copies for which it is waited.
    waits: Waits,
}

/// For which acting copies the answer to a write waits.
#[derive(Clone, Copy, Debug)]
enum Waits {
    /// All.
    All,
    /// Those that the write names.
    Named(ec::ShardSet),
}

impl Waits {
    fn covers(self, position: ShardId) -> bool {
        match self {
            Self::All => true,
            Self::Named(set) => shard_at(position).is_some_and(|s| set.contains(s)),
        }
    }
}

/// What waits for something to be durable.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "few wait at a time")]
enum Deferred {
    /// Send a message.
    Send(PgShard, Epoch, PeerMsg),
    /// Acknowledge writes to the primary; a later one includes the earlier ones.
    AckWrite(Eversion),
    /// A part of an object that the primary pulls is durable.
    Pulled { oid: ObjectId, to: Progress, last: bool },
    /// A part of this copy's shard of an object is durable.
    Rebuilt { oid: ObjectId, version: Eversion, to: Progress },
    /// The removal of the copy may go on.
    Remove,
}

/// One copy of a PG.
#[derive(Debug)]
pub struct Pg {
    me: PgShard,
    conf: PgConf,
    now: Utime,

    // What is on disk.
    info: PgInfo,
    log: PgLog,
    missing: MissingSet,
    past: PastIntervals,
    persisted_epoch: Epoch,
    uncreated: bool,
    /// Changes that can be taken back.
    undo: BTreeSet<Eversion>,

    // Where the PG is.
    map: MapRef,
    mapping: Mapping,
    pool: PoolView,
    /// Maps before the one that comes next are missing.
    gap: bool,

    // What goes out.
    actions: VecDeque<Action>,
    last_token: PersistToken,
    committed: PersistToken,
    /// The last change of log and objects.
    changed: PersistToken,
    /// Up to here everything must be durable before this copy tells others of itself: others take
    /// over what it says of its log, and a crash must not leave them with entries of objects that
    /// no copy has.
    settle: PersistToken,
    /// The interval began, and only that is waited for.
    settling: bool,
    deferred: VecDeque<(PersistToken, Deferred)>,
    /// Messages of epochs that this copy has not reached.
    future: Vec<(OsdId, PeerHeader, PeerMsg)>,

    // What the primary does.
    phase: Phase,
    prior: PriorSet,
    peers: BTreeMap<PgShard, Peer>,
    inflight: VecDeque<InFlight>,
    /// Every acting OSD has this version on disk.
    all_committed: Eversion,
    /// No acting OSD lacks an object that the log up to here changed.
    min_last_complete_ondisk: Eversion,
    clean: bool,
    recovery: Recovery,
    repairs: Repairs,
    scrub: Scrubbing,
    backfill: Backfilling,
    reservation: Reservation,
    trimming: Option<Trimming>,
    leases: Leases,
    /// When this OSD had come up, when the primary was last told of this copy.
    told_since: Epoch,
    times: Times,
    history: history::StateHistory,
}

impl Pg {
    /// A PG without any copy yet, in the first epoch in which it has an acting set (see
    /// [`creation`](crate::creation)). `None` if the map does not know it.
    pub fn create(me: OsdId, copy: SpgId, map: MapRef, conf: PgConf, now: Utime) -> Option<Self> {
        let epoch = map.epoch();
        let history = PgHistory {
            epoch_created: epoch,
            last_epoch_clean: epoch,
            last_interval_clean: epoch,
            same_up_since: epoch,
            same_interval_since: epoch,
            same_primary_since: epoch,
            // As in Ceph: what was just made need not be scrubbed at once.
            last_scrub_stamp: now,
            last_deep_scrub_stamp: now,
            last_clean_scrub_stamp: now,
            ..PgHistory::default()
        };
        let info = PgInfo {
            pgid: copy.pgid,
            shard: copy.shard,
            history,
            last_interval_acted: Some(Epoch(0)),
            ..PgInfo::default()
        };
        let mut pg = Self::new(me, info, map, conf, now)?;
        pg.uncreated = true;
        pg.persist_all();
        Some(pg)
    }

    /// An empty copy of a PG that others have, as [`creation::stranger`](crate::creation::stranger)
    /// said for this message and this map. `None` if they do not belong together. The message that
    /// caused it is handed over afterwards, as an event.
    pub fn adopt(
        me: OsdId,
        map: MapRef,
        conf: PgConf,
        header: &PeerHeader,
        msg: &PeerMsg,
        now: Utime,
    ) -> Option<Self> {
        let (info, past) = match msg {
            PeerMsg::Notify { info, past, .. }
            | PeerMsg::Activate { info, past, .. }
            | PeerMsg::StartBackfill { info, past, .. } => (info, past),
            _ => return None,
        };
        let mut history = info.history;
        if header.sent != map.epoch() || history.same_interval_since > map.epoch() {
            return None;
        }
        history.same_up_since = history.same_interval_since;
        history.same_primary_since = history.same_interval_since;
        let info = PgInfo {
            pgid: header.pgid,
            shard: header.to,
            history,
            last_interval_acted: Some(Epoch(0)),
            ..PgInfo::default()
        };
        let mut pg = Self::new(me, info, map, conf, now)?;
        pg.past = past.clone();
        pg.uncreated = true;
        pg.persist_all();
        if pg.is_primary() {
            pg.start_peering();
        } else {
            pg.phase = Phase::Stray;
        }
        Some(pg)
    }

    /// A PG from its rows (see [`rows`]). `map` is that of [`rows::Loaded::epoch`], or
    /// the oldest that the host has if that is newer. The host then hands over all later maps. A
    /// removal that was interrupted goes on: drain the actions.
    pub fn load(me: OsdId, loaded: rows::Loaded, map: MapRef, conf: PgConf, now: Utime) -> Self {
        let place = place(&*map, loaded.info.pgid);
        let exists = place.is_some();
        let (mapping, pool) = place.unwrap_or((Mapping::default(), PoolView::default()));
        let mut pg = Self::at(me, loaded.info, map, mapping, pool, conf, now);
        pg.log = loaded.log;
        pg.missing = loaded.missing;
        pg.past = loaded.past;
        pg.persisted_epoch = loaded.epoch;
        pg.undo = loaded.undo;
        pg.assume_promises();
        if pg.info.removing {
            pg.phase = Phase::Removing;
            pg.removal_step();
        } else if !exists {
            pg.start_removal();
        } else if pg.map.epoch() > loaded.epoch {
            // As with a gap in the maps that are handed over.
            pg.info.history.begin_interval(pg.map.epoch());
            pg.lose_standing();
        }
        pg
    }

    fn new(me: OsdId, info: PgInfo, map: MapRef, conf: PgConf, now: Utime) -> Option<Self> {
        let (mapping, pool) = place(&*map, info.pgid)?;
        Some(Self::at(me, info, map, mapping, pool, conf, now))
    }

    fn at(
        me: OsdId,
        info: PgInfo,
        map: MapRef,
        mapping: Mapping,
        pool: PoolView,
        conf: PgConf,
        now: Utime,
    ) -> Self {
        Self {
            me: PgShard { osd: me, shard: info.shard },
            conf,
            now,
            info,
            log: PgLog::default(),
            missing: MissingSet::default(),
            past: PastIntervals::default(),
            persisted_epoch: Epoch(0),
            uncreated: false,
            undo: BTreeSet::new(),
            map,
            mapping,
            pool,
            actions: VecDeque::new(),
            last_token: PersistToken(0),
            committed: PersistToken(0),
            changed: PersistToken(0),
            settle: PersistToken(0),
            settling: false,
            deferred: VecDeque::new(),
            future: Vec::new(),
            phase: Phase::Reset,
            gap: false,
            prior: PriorSet::default(),
            peers: BTreeMap::new(),
            inflight: VecDeque::new(),
            all_committed: Eversion::default(),
            min_last_complete_ondisk: Eversion::default(),
            clean: false,
            recovery: Recovery::default(),
            repairs: Repairs::default(),
            scrub: Scrubbing::default(),
            backfill: Backfilling::default(),
            reservation: Reservation::default(),
            trimming: None,
            leases: Leases::default(),
            told_since: Epoch(0),
            times: Times::new(now),
            history: history::StateHistory::default(),
        }
    }

    /// Takes one event. Drain the actions afterwards with [`Pg::poll_action`].
    pub fn handle(&mut self, event: Event, now: Utime) {
        self.now = now;
        match event {
            Event::AdvanceMap(map) => self.advance_map(map),
            Event::ActivateMap => self.activate_map(),
            Event::Peer { from, header, msg } => self.handle_peer(from, header, msg),
            Event::Committed(token) => self.handle_committed(token),
            Event::ObjectRead { token, chunk } => self.handle_object_read(token, chunk),
            Event::Rebuilt { token, chunks } => self.handle_rebuilt(token, chunks),
            Event::RebuildFailed { token, bad } => self.handle_rebuild_failed(token, &bad),
            Event::ShardRead { token, answer } => self.handle_shard_read(token, answer),
            Event::ShardDamaged { shard, oid, version } => {
                self.handle_shard_damaged(shard, oid, version)
            }
            Event::Listed { token, listing } => self.handle_listed(token, listing),
            Event::Reserved { side: Side::Lead } => self.handle_reserved(),
            Event::Reserved { side: Side::Target } => self.tell_primary(PeerMsg::Reserved),
            Event::Preempted { side: Side::Lead } => self.handle_preempted(),
            Event::Preempted { side: Side::Target } => self.tell_primary(PeerMsg::Revoked),
            Event::Reserved { side: Side::Source } => self.tell_reader(true),
            Event::Preempted { side: Side::Source } => self.tell_reader(false),
            Event::Force { backfill, on } => self.force(backfill, on),
            Event::BackfillTooFull => self.tell_primary(PeerMsg::BackfillTooFull),
            Event::StartRecovery { max_objects } => self.start_recovery(max_objects),
            Event::RecoverNow(oid) => self.recover_now(oid),
            Event::ObjectDamaged { oid, version } => self.handle_object_damaged(oid, version),
            Event::StartScrub(kind) => self.start_scrub(kind),
            Event::StopScrub => self.stop_scrub(),
            Event::ScrubSlot { granted } => self.tell_primary(PeerMsg::ScrubReserved { granted }),
            Event::Scanned { token, map } => self.handle_scanned(token, map),
            Event::SnapTrimStarted(snap) => self.handle_snap_trim_started(snap),
            Event::SnapTrimStopped { snap, damaged } => {
                self.handle_snap_trim_stopped(snap, damaged)
            }
            Event::SnapTrimmed(snap) => self.handle_snap_trimmed(snap),
            Event::ObjectsRemoved { more } => self.handle_objects_removed(more),
            Event::Wake => self.handle_wake(),
        }
        self.update_times();
        debug_assert_eq!(self.check_invariants(), Ok(()));
    }

    /// The next action, in order.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The PG.
    pub fn pgid(&self) -> PgId {
        self.info.pgid
    }

    /// The copy, on its OSD.
    pub fn spgid(&self) -> SpgId {
        self.info.spgid()
    }

    /// This copy: its OSD and its position.
    pub fn whoami(&self) -> PgShard {
        self.me
    }

    /// The epoch in which the pool was created.
    pub fn pool_created(&self) -> Epoch {
        self.pool.created
    }

    /// The map epoch that the machine is at.
    pub fn epoch(&self) -> Epoch {
        self.map.epoch()
    }

    /// The epoch on disk: maps after it must be kept until this advances.
    pub fn persisted_epoch(&self) -> Epoch {
        self.persisted_epoch
    }

    /// Where the PG lives in the current map.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Whether this copy is the acting primary.
    pub fn is_primary(&self) -> bool {
        self.mapping.primary == Some(self.me)
    }

    /// Whether clients may be served here: primary, peered, at least `min_size` OSDs, and not about
    /// to become part of another PG.
    pub fn is_active(&self) -> bool {
        self.phase == Phase::Active && self.enough() && !is_pending(self.info.pgid, &self.pool)
    }

    /// Whether every object is on every OSD where it should be.
    pub fn is_clean(&self) -> bool {
        self.clean
    }

    /// Summary of this copy.
    pub fn info(&self) -> &PgInfo {
        &self.info
    }

    /// This copy's log.
    pub fn log(&self) -> &PgLog {
        &self.log
    }

    /// What this copy lacks.
    pub fn missing(&self) -> &MissingSet {
        &self.missing
    }

    /// Intervals since the PG was last clean.
    pub fn past_intervals(&self) -> &PastIntervals {
        &self.past
    }

    /// Options; the host may change them at any time.
    pub fn conf_mut(&mut self) -> &mut PgConf {
        &mut self.conf
    }

    /// The version that the first entry of the next proposal gets.
    pub fn next_version(&self) -> Eversion {
        Eversion { epoch: self.map.epoch(), version: self.info.last_update.version + 1 }
    }

    /// Whether a request was already executed. Ask [`Pg::object_status`] first.
    pub fn find_dup(&self, reqid: &ReqId) -> Option<Dup> {
        if let Some(e) = self.log.find_request(reqid) {
            return Some(Dup {
                version: e.entry.version,
                user_version: e.entry.user_version,
                return_code: e.entry.return_code,
                op_returns: e.entry.op_returns.clone(),
                committed: e.entry.version <= self.all_committed,
            });
        }
        self.log.find_dup(reqid).map(|d| Dup {
            version: d.version,
            user_version: d.user_version,
            return_code: d.return_code,
            op_returns: d.op_returns.clone(),
            committed: true,
        })
    }

    /// What an operation on this object must wait for. Only on an active primary.
    pub fn object_status(&self, oid: &ObjectId) -> ObjectStatus {
        if self.recovery.is_unfound(oid) {
            return ObjectStatus::Unfound;
        }
        if self.missing.contains(oid) || self.recovery.is_losing(oid) {
            return ObjectStatus::Missing;
        }
        if (self.is_followed() || !self.all_recovered()) && self.holds_writes(oid) {
            return ObjectStatus::Degraded;
        }
        if self.inflight.iter().any(|op| op.oids.contains(oid)) {
            return ObjectStatus::InFlight;
        }
        ObjectStatus::Ready
    }

    /// Whether a deletion of this object goes ahead of its copy to others: that may wait for the
    /// room which the deletion gives. Copies that lack the object learn of it by the log. Where
    /// copies are shards, only a deletion goes ahead that leaves nothing, neither a clone nor a
    /// record: what it leaves would be on fewer shards than act, and the log may keep it when these
    /// are too few to make it anew.
    pub fn may_overtake_copy(&self, oid: &ObjectId) -> bool {
        !self.missing.contains(oid)
            && !self.recovery.is_losing(oid)
            && !self.recovery.is_unfound(oid)
    }

    /// Whether a read, or with `write` a write, of this object must wait for its recovery.
    pub fn must_wait(&self, oid: &ObjectId, write: bool) -> bool {
        self.missing.contains(oid)
            || self.recovery.is_losing(oid)
            || self.recovery.is_unfound(oid)
            || (write && (self.is_followed() || !self.all_recovered()) && self.holds_writes(oid))
    }

    /// Whether writes of this object are in flight, in any state.
    pub fn has_writes_in_flight(&self, oid: &ObjectId) -> bool {
        self.inflight.iter().any(|op| op.oids.contains(oid))
    }

    // ---- helpers of all parts ----

    /// Whether nothing is left of it.
    pub fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// The rules of the pool's kind.
    fn backend(&self) -> &dyn Backend {
        self.pool.kind.backend()
    }

    /// Whether enough copies act for clients to be served.
    fn enough(&self) -> bool {
        self.mapping.acting.len() >= (self.pool.min_size as usize).max(1)
            && self.backend().recoverable(&mut self.mapping.acting.iter().copied())
            && self.mapping.primary.is_some_and(|p| self.backend().leads(p.shard))
    }

    fn replicas(&self) -> Peers {
        self.mapping.acting.iter().copied().filter(|&o| o != self.me).collect()
    }

    fn header(&self, to: ShardId) -> PeerHeader {
        let epoch = self.map.epoch();
        PeerHeader { pgid: self.info.pgid, from: self.me.shard, to, sent: epoch, asked: epoch }
    }

    fn send(&mut self, to: PgShard, msg: PeerMsg) {
        self.catch_up(to);
        let header = self.header(to.shard);
        self.actions.push_back(Action::Send { to: smallvec![to], header, msg });
    }

    fn answer(&mut self, to: PgShard, asked: Epoch, msg: PeerMsg) {
        let header = PeerHeader { asked, ..self.header(to.shard) };
        self.actions.push_back(Action::Send { to: smallvec![to], header, msg });
    }

    /// Sends the same to several: at once to those at the same position.
    fn send_all(&mut self, to: Peers, msg: PeerMsg) {
        let Some(first) = to.first().map(|c| c.shard) else { return };
        if to.iter().all(|c| c.shard == first) {
            to.iter().for_each(|c| self.catch_up(*c));
            let header = self.header(first);
            self.actions.push_back(Action::Send { to, header, msg });
            return;
        }
        for copy in to {
            self.send(copy, msg.clone());
        }
    }

    /// Makes a change of log or objects durable.
    fn persist(&mut self, persist: Persist) -> PersistToken {
        self.changed = self.persist_info(persist);
        self.changed
    }

    /// Makes durable what says nothing of log and objects.
    fn persist_info(&mut self, mut persist: Persist) -> PersistToken {
        self.last_token = PersistToken(self.last_token.0 + 1);
        persist.token = self.last_token;
        persist.create_collection = std::mem::take(&mut self.uncreated);
        self.actions.push_back(Action::Persist(Box::new(persist)));
        self.last_token
    }

    /// Adds the rows of everything that is not log or missing objects.
    fn info_rows(&mut self, persist: &mut Persist) {
        persist.rows.set.extend(rows::info_rows(&self.info));
        persist.rows.set.push(rows::past_row(&self.past));
        persist.rows.set.push(rows::epoch_row(self.map.epoch()));
        self.persisted_epoch = self.map.epoch();
    }

    fn persist_all(&mut self) -> PersistToken {
        let mut persist = Persist::default();
        self.info_rows(&mut persist);
        self.persist_info(persist)
    }

    fn defer(&mut self, token: PersistToken, what: Deferred) {
        self.deferred.push_back((token, what));
    }

    fn update_last_complete(&mut self) {
        self.info.last_complete = match self.missing.oldest_need() {
            None => self.info.last_update,
            Some(need) => {
                let before = Eversion { version: need.version.saturating_sub(1), ..need };
                // What is needed may be older than the log: after a divergence, or a read error.
                if before < self.log.tail() { before } else { self.log.floor(before) }
            }
        };
    }

    fn handle_committed(&mut self, token: PersistToken) {
        if token <= self.committed {
            return;
        }
        self.committed = token.min(self.last_token);
        let mut ack = None;
        while let Some((_, what)) = self.deferred.pop_front_if(|(t, _)| *t <= token) {
            match what {
                Deferred::Send(to, asked, msg) => self.answer(to, asked, msg),
                Deferred::AckWrite(version) => ack = Some(version),
                Deferred::Pulled { oid, to, last } => self.pulled(oid, &to, last),
                Deferred::Rebuilt { oid, version, to } => {
                    self.handle_push_reply(self.me, oid, version, to)
                }
                Deferred::Remove => self.removal_step(),
            }
        }
        if let (Some(version), Some(primary)) = (ack, self.mapping.primary) {
            self.send(primary, PeerMsg::RepOpReply { version });
        }
        if self.settling && self.committed >= self.settle {
            self.settling = false;
            self.activate_map();
        }
        self.check_activated();
        self.complete_writes();
    }
}

#[cfg(test)]
mod async_recovery_test;
#[cfg(test)]
mod backfill_test;
#[cfg(test)]
mod lease_test;
#[cfg(test)]
mod machine_test;
#[cfg(test)]
mod peering_status_test;
#[cfg(test)]
mod recovery_test;
#[cfg(test)]
mod repair_test;
#[cfg(test)]
mod replicate_test;
#[cfg(test)]
mod reserve_test;
#[cfg(test)]
mod scrub_machine_test;
#[cfg(test)]
mod sources_test;
#[cfg(test)]
mod transcript_test;
#[cfg(test)]
mod unfound_test;
