//! Scripts of one machine; whole clusters are in `crates/harness/sim`.

use std::rc::Rc;

use bytes::Bytes;
use smallvec::smallvec;
use types::{EntityName, EntityType, IntervalSet, PoolId, ReqId, SnapId};

use super::*;
use crate::action::Source;
use crate::backend::PoolKind;
use crate::log_entry::LogOp;
use crate::map::MapView;
use crate::members::Members;
use crate::msg::{Payload, Query};
use crate::past_intervals::PastInterval;
use crate::proposal::{NewEntry, Payloads, Proposal};
use crate::stats::StatSum;
use crate::{PgState, rows};

/// A map in which `acting` serves, and `up` should, if that is given.
#[derive(Clone, Default)]
pub(super) struct Map {
    pub(super) epoch: u32,
    pub(super) acting: Vec<OsdId>,
    pub(super) up: Vec<OsdId>,
    pub(super) up_thru: u32,
    pub(super) size: u32,
    /// Gone for sure since this epoch.
    pub(super) dead: Option<(OsdId, u32)>,
    /// Came up (again) in this epoch, not in the first.
    pub(super) rebooted: Option<(OsdId, u32)>,
    /// Up, and not for this PG.
    pub(super) others: Vec<OsdId>,
    /// Declared lost in this epoch.
    pub(super) lost: Option<(OsdId, u32)>,
    /// The pool's `recovery_priority`.
    pub(super) priority: i32,
    /// Its store is full.
    pub(super) full: Option<OsdId>,
    /// `norecover` is set.
    pub(super) norecover: bool,
    /// How the pool keeps its objects.
    pub(super) kind: PoolKind,
}

impl MapView for Map {
    fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }
    fn exists(&self, _: OsdId) -> bool {
        true
    }
    fn is_up(&self, osd: OsdId) -> bool {
        self.acting.contains(&osd) || self.up.contains(&osd) || self.others.contains(&osd)
    }
    fn up_from(&self, osd: OsdId) -> Epoch {
        Epoch(self.rebooted.filter(|(o, _)| *o == osd).map_or(1, |(_, e)| e))
    }
    fn up_thru(&self, _: OsdId) -> Epoch {
        Epoch(self.up_thru)
    }
    fn dead_epoch(&self, osd: OsdId) -> Epoch {
        Epoch(self.dead.filter(|(o, _)| *o == osd).map_or(0, |(_, e)| e))
    }
    fn lost_at(&self, osd: OsdId) -> Epoch {
        Epoch(self.lost.filter(|(o, _)| *o == osd).map_or(0, |(_, e)| e))
    }
    fn recovery_priority(&self, _: PoolId) -> i32 {
        self.priority
    }
    fn is_full(&self, osd: OsdId) -> bool {
        self.full == Some(osd)
    }
    fn recovers(&self) -> bool {
        !self.norecover
    }
    fn pool(&self, _: PoolId) -> Option<PoolView> {
        Some(PoolView {
            kind: self.kind,
            size: self.size,
            min_size: self.size.min(2),
            pg_num: 1,
            created: Epoch(2),
            pg_num_pending: 1,
            merged: None,
        })
    }
    fn removed_snaps(&self, _: PoolId) -> IntervalSet {
        IntervalSet::new()
    }
    fn mapping(&self, _: PgId) -> Mapping {
        if self.kind != PoolKind::Replicated {
            let acting = Members::positioned(self.acting.iter().copied());
            let lead = |c: &PgShard| self.kind.backend().leads(c.shard);
            let primary = acting.iter().copied().find(lead);
            let up = if self.up.is_empty() { &self.acting } else { &self.up };
            let up = Members::positioned(up.iter().copied());
            let up_primary = up.iter().copied().find(lead);
            return Mapping { up_primary, primary, up, acting };
        }
        let acting = Members::whole(self.acting.iter().copied());
        let up = Members::whole(if self.up.is_empty() { &self.acting } else { &self.up }.clone());
        Mapping { up_primary: up.first().copied(), primary: acting.first().copied(), up, acting }
    }
}

pub(super) const PGID: PgId = PgId { pool: PoolId(1), seed: 0 };

pub(super) fn osds(n: i32) -> Vec<OsdId> {
    (0..n).map(OsdId).collect()
}

/// The copy on an OSD.
pub(super) fn on(osd: i32) -> PgShard {
    OsdId(osd).into()
}

pub(super) fn oid(name: &str) -> ObjectId {
    ObjectId::with_hash(
        PoolId(1),
        Bytes::new(),
        Bytes::copy_from_slice(name.as_bytes()),
        Bytes::new(),
        SnapId::NOSNAP,
        7,
    )
}

fn reqid(tid: u64) -> ReqId {
    ReqId { name: EntityName::new(EntityType::CLIENT, 1), tid, inc: 0 }
}

pub(super) fn proposal(tid: u64, name: &str) -> Proposal {
    let entry = NewEntry {
        op: LogOp::Modify,
        oid: oid(name),
        prior_version: Eversion::default(),
        user_version: tid,
        reqid: reqid(tid),
        mtime: Utime::default(),
        return_code: 0,
        snaps: Vec::new(),
        op_returns: Vec::new(),
        written: ec::ShardSet::EMPTY,
    };
    let payload =
        Payload { ops: Bytes::from_static(b"ops"), data: Bytes::from_static(b"data"), room: 0 };
    Proposal {
        token: OpToken(tid),
        entries: smallvec![entry],
        payloads: Payloads::Same(payload),
        stats: StatSum { num_objects: 1, ..StatSum::default() },
    }
}

pub(super) fn drain(pg: &mut Pg) -> Vec<Action> {
    std::iter::from_fn(|| pg.poll_action()).collect()
}

pub(super) fn commit_all(pg: &mut Pg) -> Vec<Action> {
    let token = pg.last_token;
    pg.handle(Event::Committed(token), Utime::default());
    drain(pg)
}

pub(super) fn from(pg: &mut Pg, osd: i32, msg: PeerMsg) -> Vec<Action> {
    let header = pg.header(ShardId::NONE);
    pg.handle(Event::Peer { from: OsdId(osd), header, msg }, Utime::default());
    drain(pg)
}

/// All turns that recovery asks for come at once.
pub(super) fn reserve(pg: &mut Pg) -> Vec<Action> {
    pg.handle(Event::Reserved { side: Side::Lead }, Utime::default());
    let mut actions = drain(pg);
    let mut replicas = pg.replicas();
    replicas.sort();
    for osd in replicas {
        actions.extend(from(pg, osd.osd.0, PeerMsg::Reserved));
    }
    actions
}

/// A new PG on `n` OSDs, up to the point where it is active.
pub(super) fn active(n: i32) -> Pg {
    let map = Map { epoch: 5, acting: osds(n), up_thru: 5, size: n as u32, ..Map::default() };
    let mut pg =
        Pg::create(OsdId(0), PGID.into(), Rc::new(map), PgConf::default(), Utime::default())
            .unwrap();
    pg.handle(Event::ActivateMap, Utime::default());
    drain(&mut pg);
    for i in 1..n {
        let info = PgInfo { pgid: PGID, history: pg.info.history, ..PgInfo::default() };
        from(
            &mut pg,
            i,
            PeerMsg::Notify { info, past: PastIntervals::default(), promises: Vec::new() },
        );
    }
    for i in 1..n {
        from(&mut pg, i, PeerMsg::LeaseAck { round: 1 });
        from(&mut pg, i, PeerMsg::Activated);
    }
    commit_all(&mut pg);
    assert!(pg.is_active() && pg.is_clean(), "{}", pg.state());
    pg
}

#[test]
fn a_pg_on_one_osd_serves_at_once() {
    let mut pg = active(1);
    assert_eq!(pg.state(), PgState::ACTIVE | PgState::CLEAN);
    let version = pg.next_version();
    assert_eq!(pg.propose(proposal(1, "a")), Ok(version));
    let actions = drain(&mut pg);
    assert!(
        matches!(&actions[..], [Action::Persist(p)] if matches!(p.source, Source::Proposal(OpToken(1)))),
        "{actions:?}"
    );
    assert!(matches!(&commit_all(&mut pg)[..], [Action::Reply { token: OpToken(1), .. }]));
}

#[test]
fn a_write_is_answered_when_every_acting_osd_has_it() {
    let mut pg = active(3);
    assert_eq!(pg.object_status(&oid("a")), ObjectStatus::Ready);
    let v1 = pg.propose(proposal(1, "a")).unwrap();
    let v2 = pg.propose(proposal(2, "b")).unwrap();
    let actions = drain(&mut pg);
    assert!(
        matches!(&actions[..], [Action::Send { to, msg: PeerMsg::RepOp(_), .. }, Action::Persist(_), Action::Send { .. }, Action::Persist(_)] if to.len() == 2),
        "{actions:?}"
    );
    assert_eq!(pg.object_status(&oid("a")), ObjectStatus::InFlight);
    assert!(!pg.find_dup(&reqid(1)).unwrap().committed);
    assert!(from(&mut pg, 1, PeerMsg::RepOpReply { version: v2 }).is_empty());
    assert!(commit_all(&mut pg).is_empty());
    // The last replica has the first write only.
    let actions = from(&mut pg, 2, PeerMsg::RepOpReply { version: v1 });
    assert!(matches!(&actions[..], [Action::Reply { token: OpToken(1), .. }]), "{actions:?}");
    assert!(
        pg.find_dup(&reqid(1)).unwrap().committed && !pg.find_dup(&reqid(2)).unwrap().committed
    );
    let actions = from(&mut pg, 2, PeerMsg::RepOpReply { version: v2 });
    assert!(matches!(&actions[..], [Action::Reply { token: OpToken(2), .. }]), "{actions:?}");
    assert_eq!(pg.object_status(&oid("b")), ObjectStatus::Ready);
}

#[test]
fn a_replica_acknowledges_what_is_durable_and_nothing_earlier() {
    let mut primary = active(2);
    let map = primary.map.clone();
    let mut replica =
        Pg::create(OsdId(1), PGID.into(), map, PgConf::default(), Utime::default()).unwrap();
    replica.handle(Event::ActivateMap, Utime::default());
    commit_all(&mut replica);
    let log = primary.log.after(Eversion::default());
    from(
        &mut replica,
        0,
        PeerMsg::Activate { info: primary.info.clone(), log, past: PastIntervals::default() },
    );
    assert!(matches!(
        &commit_all(&mut replica)[..],
        [Action::Send { msg: PeerMsg::Activated, .. }]
    ));
    for tid in 1..=2 {
        primary.propose(proposal(tid, "a")).unwrap();
    }
    for action in drain(&mut primary) {
        if let Action::Send { msg, .. } = action {
            let actions = from(&mut replica, 0, msg);
            assert!(matches!(&actions[..], [Action::Persist(_)]), "{actions:?}");
        }
    }
    // One answer for both.
    let actions = commit_all(&mut replica);
    let head = primary.info.last_update;
    assert!(
        matches!(&actions[..], [Action::Send { msg: PeerMsg::RepOpReply { version }, .. }] if *version == head),
        "{actions:?}"
    );
}

/// A temporary set that was asked for when `up` was another one, and came late.
#[test]
fn the_order_of_up_comes_back() {
    let mut pg = active(3);
    let map = Map {
        epoch: 6,
        acting: osds(3),
        up: vec![OsdId(1), OsdId(2), OsdId(0)],
        up_thru: 6,
        size: 3,
        ..Map::default()
    };
    pg.handle(Event::AdvanceMap(Rc::new(map)), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    commit_all(&mut pg);
    let info = PgInfo { pgid: PGID, history: pg.info.history, ..pg.info.clone() };
    let notify = PeerMsg::Notify { info, past: PastIntervals::default(), promises: Vec::new() };
    from(&mut pg, 1, notify.clone());
    let actions = from(&mut pg, 2, notify);
    assert!(
        actions.iter().any(|a| matches!(a, Action::WantPgTemp(want) if want.is_empty())),
        "{actions:?}"
    );
}

/// Otherwise a replica could learn of the entry, and the power could fail before anybody has its
/// object.
#[test]
fn nobody_hears_of_a_write_of_the_last_interval_before_it_is_durable() {
    let mut pg = active(2);
    pg.propose(proposal(1, "a")).unwrap();
    drain(&mut pg);
    let write = pg.last_token;
    let next = Map {
        epoch: 6,
        acting: osds(2),
        up_thru: 6,
        size: 2,
        rebooted: Some((OsdId(1), 6)),
        up: vec![OsdId(1), OsdId(0)],
        ..Map::default()
    };
    let sends =
        |actions: &[Action]| actions.iter().filter(|a| matches!(a, Action::Send { .. })).count();
    pg.handle(Event::AdvanceMap(Rc::new(next)), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    let actions = drain(&mut pg);
    assert_eq!(sends(&actions), 0, "{actions:?}");
    assert_eq!(pg.phase, Phase::Reset);
    pg.handle(Event::Committed(write), Utime::default());
    let actions = drain(&mut pg);
    assert!(
        matches!(
            actions[..],
            [Action::Send { msg: PeerMsg::Query { query: Query::Info, .. }, .. }]
        ),
        "{actions:?}"
    );
}

#[test]
fn up_thru_comes_before_activation() {
    let map = Map { epoch: 5, acting: osds(1), up_thru: 4, size: 1, ..Map::default() };
    let mut pg = Pg::create(
        OsdId(0),
        PGID.into(),
        Rc::new(map.clone()),
        PgConf::default(),
        Utime::default(),
    )
    .unwrap();
    pg.handle(Event::ActivateMap, Utime::default());
    assert!(drain(&mut pg).iter().any(|a| matches!(a, Action::WantUpThru(Epoch(5)))));
    assert_eq!(pg.phase, Phase::WaitUpThru);
    pg.handle(Event::AdvanceMap(Rc::new(Map { epoch: 6, up_thru: 5, ..map })), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    commit_all(&mut pg);
    assert!(pg.is_active());
}

#[test]
fn a_stray_that_came_up_again_during_activation_is_known() {
    // Never clean, for want of a third, so it is not removed here.
    let map = Map {
        epoch: 5,
        acting: osds(2),
        up_thru: 5,
        size: 3,
        others: vec![OsdId(2)],
        ..Map::default()
    };
    let mut pg = Pg::create(
        OsdId(0),
        PGID.into(),
        Rc::new(map.clone()),
        PgConf::default(),
        Utime::default(),
    )
    .unwrap();
    pg.handle(Event::ActivateMap, Utime::default());
    drain(&mut pg);
    let info = PgInfo { pgid: PGID, history: pg.info.history, ..PgInfo::default() };
    let notify = PeerMsg::Notify { info, past: PastIntervals::default(), promises: Vec::new() };
    from(&mut pg, 2, notify.clone());
    from(&mut pg, 1, notify.clone());
    assert!(matches!(pg.phase, Phase::Activating { .. }), "{}", pg.phase_name());
    // Called down by mistake, it tells of its copy a second time, and not again.
    let map = Map { rebooted: Some((OsdId(2), 6)), ..map };
    pg.handle(Event::AdvanceMap(Rc::new(Map { epoch: 6, ..map.clone() })), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    from(&mut pg, 2, notify);
    from(&mut pg, 1, PeerMsg::LeaseAck { round: 1 });
    from(&mut pg, 1, PeerMsg::Activated);
    commit_all(&mut pg);
    assert!(pg.is_active(), "{}", pg.state());
    // What is known of OSDs that are gone is forgotten with every map.
    pg.handle(Event::AdvanceMap(Rc::new(Map { epoch: 7, ..map })), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    assert!(pg.peers.contains_key(&on(2)), "{:?}", pg.peers.keys());
}

#[test]
fn too_few_osds_peer_and_do_not_serve() {
    let mut pg = active(3);
    let map = Map { epoch: 6, acting: osds(1), up_thru: 6, size: 3, ..Map::default() };
    pg.handle(Event::AdvanceMap(Rc::new(map)), Utime::default());
    assert!(matches!(&drain(&mut pg)[..], [Action::IntervalChange, Action::Persist(_)]));
    // The others may serve reads for as long as they were let.
    pg.set_clock(crate::Steady(16_000_000_000));
    pg.handle(Event::ActivateMap, Utime::default());
    drain(&mut pg);
    commit_all(&mut pg);
    assert_eq!(pg.state().to_string(), "undersized+degraded+peered");
    assert_eq!(pg.propose(proposal(1, "a")), Err(crate::NotActive));
    assert!(pg.info.last_epoch_started < Epoch(6), "an interval without service does not count");
}

/// Rows after a persist, as a store would have them.
fn apply(store: &mut BTreeMap<Bytes, Bytes>, actions: Vec<Action>) {
    for action in actions {
        if let Action::Persist(p) = action {
            store.extend(p.rows.set);
            for key in p.rows.remove {
                store.remove(&key);
            }
        }
    }
}

#[test]
fn rows_bring_back_what_was_persisted() {
    let map = Map { epoch: 5, acting: osds(1), up_thru: 5, size: 1, ..Map::default() };
    let conf = PgConf {
        min_pg_log_entries: 2,
        target_pg_log_entries: 4,
        pg_log_trim_min: 3,
        pg_log_dups_tracked: 12,
        ..PgConf::default()
    };
    let mut pg =
        Pg::create(OsdId(0), PGID.into(), Rc::new(map.clone()), conf.clone(), Utime::default())
            .unwrap();
    let mut store = BTreeMap::new();
    pg.handle(Event::ActivateMap, Utime::default());
    apply(&mut store, drain(&mut pg));
    apply(&mut store, commit_all(&mut pg));
    for tid in 1..=40 {
        pg.propose(proposal(tid, "a")).unwrap();
        apply(&mut store, drain(&mut pg));
        apply(&mut store, commit_all(&mut pg));
    }
    assert!(pg.log().len() < 8, "the log is trimmed");
    assert!(
        pg.find_dup(&reqid(40)).is_some() && pg.find_dup(&reqid(33)).is_some(),
        "trimmed requests are still known"
    );
    assert!(pg.find_dup(&reqid(2)).is_none(), "not for ever");
    let loaded = rows::load(PGID.into(), store.clone()).unwrap();
    assert_eq!(loaded.epoch, Epoch(5));
    let again = Pg::load(OsdId(0), loaded, Rc::new(map), conf, Utime::default());
    assert_eq!(again.info, pg.info);
    assert!(again.log.iter().eq(pg.log.iter()));
    assert!(again.log.dups().eq(pg.log.dups()));
    // The copy at another position is another copy.
    let other = SpgId { pgid: PGID, shard: ShardId(1) };
    let found = rows::LoadError::OtherCopy(PGID.into());
    assert_eq!(rows::load(other, store.clone()).err(), Some(found));
    // A hole in the log is noticed.
    let key = rows::log_key(pg.info.last_update);
    let mut holed = store.clone();
    holed.remove(&key);
    assert!(matches!(rows::load(PGID.into(), holed), Err(rows::LoadError::Log { .. })));
    store.insert(Bytes::from_static(b"info"), Bytes::from_static(b"junk"));
    assert!(matches!(rows::load(PGID.into(), store), Err(rows::LoadError::Row { .. })));
}

/// The price of a write on the primary: printed, and wrong only if it is absurd.
#[test]
fn a_write_costs_microseconds() {
    let mut pg = active(3);
    let n = 20_000u64;
    let start = std::time::Instant::now();
    for tid in 1..=n {
        let version = pg.propose(proposal(tid, "object")).unwrap();
        while let Some(action) = pg.poll_action() {
            std::hint::black_box(action);
        }
        pg.handle(Event::Committed(pg.last_token), Utime::default());
        for osd in 1..3 {
            let header = pg.header(ShardId::NONE);
            pg.handle(
                Event::Peer { from: OsdId(osd), header, msg: PeerMsg::RepOpReply { version } },
                Utime::default(),
            );
        }
        while let Some(action) = pg.poll_action() {
            std::hint::black_box(action);
        }
    }
    let each = start.elapsed() / n as u32;
    eprintln!("{each:?} for a write with two replicas");
    assert_eq!(pg.info.last_update.version, n);
}

pub(super) fn change(op: LogOp, oid: ObjectId, prior_version: Eversion) -> NewEntry {
    NewEntry { op, oid, prior_version, ..proposal(0, "").entries[0].clone() }
}

pub(super) fn sent(actions: Vec<Action>, to: i32) -> Vec<PeerMsg> {
    let to = on(to);
    actions
        .into_iter()
        .filter_map(|a| match a {
            Action::Send { to: all, msg, .. } if all.contains(&to) => Some(msg),
            _ => None,
        })
        .collect()
}

#[test]
fn who_lost_its_data_does_not_vouch_for_what_was_before() {
    let add = |lost| {
        let mut past = PastIntervals::default();
        let map = Map { lost, ..Map::default() };
        let interval = |first, last, acting: &[i32]| PastInterval {
            first: Epoch(first),
            last: Epoch(last),
            acting: acting.iter().map(|o| on(*o)).collect(),
        };
        past.add(interval(3, 5, &[0, 1, 2]), true, &map);
        past.add(interval(6, 8, &[0, 2]), true, &map);
        past.intervals.len()
    };
    assert_eq!(add(None), 1, "whoever is of the second has all of the first");
    assert_eq!(add(Some((OsdId(0), 6))), 2, "osd.0 came with an empty store");
    assert_eq!(add(Some((OsdId(1), 6))), 1);
}

/// Monitors drop maps only of times since which every PG was clean: without a copy that did not see
/// them.
#[test]
fn a_copy_that_missed_maps_counts_for_nothing() {
    let mut pg = active(3);
    pg.propose(proposal(1, "a")).unwrap();
    let head = pg.info.last_update;
    for osd in [1, 2] {
        from(&mut pg, osd, PeerMsg::RepOpReply { version: head });
    }
    commit_all(&mut pg);
    // The others are down in the first map that there is; they were not, and wrote, in those that
    // are gone.
    let acting = vec![OsdId(0), OsdId(3)];
    let alone = Map {
        epoch: 900,
        acting,
        up_thru: 900,
        size: 3,
        rebooted: Some((OsdId(0), 900)),
        ..Map::default()
    };
    pg.handle(Event::AdvanceMap(Rc::new(alone.clone())), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    commit_all(&mut pg);
    assert!(pg.info.is_incomplete(), "{:?}", pg.info);
    assert!(pg.past.intervals.iter().all(|i| i.first == Epoch(900)), "{:?}", pg.past);
    let nothing = PgInfo { pgid: PGID, history: pg.info.history, ..PgInfo::default() };
    from(
        &mut pg,
        3,
        PeerMsg::Notify { info: nothing, past: PastIntervals::default(), promises: Vec::new() },
    );
    assert_eq!(pg.state(), PgState::INCOMPLETE, "{}", pg.phase_name());
    let info = pg.info.clone();
    assert_eq!(
        (info.history.same_interval_since, info.history.same_up_since),
        (Epoch(900), Epoch(900))
    );

    // One of those that saw all maps comes, and says which others served.
    let both = Map { epoch: 901, others: vec![OsdId(1)], up_thru: 901, ..alone };
    pg.handle(Event::AdvanceMap(Rc::new(both)), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    let mut theirs =
        PgInfo { last_backfill: Default::default(), last_epoch_started: Epoch(700), ..info };
    (theirs.history.last_epoch_started, theirs.history.last_epoch_clean) = (Epoch(700), Epoch(700));
    let interval = |first, last, acting: &[i32]| {
        let acting = acting.iter().map(|o| on(*o)).collect();
        PastInterval { first: Epoch(first), last: Epoch(last), acting }
    };
    let intervals = vec![interval(710, 800, &[1, 2]), interval(801, 899, &[2])];
    let past = PastIntervals {
        first: Epoch(710),
        last: Epoch(899),
        intervals,
        ..PastIntervals::default()
    };
    from(&mut pg, 1, PeerMsg::Notify { info: theirs, past, promises: Vec::new() });
    assert_eq!(
        pg.state(),
        PgState::DOWN,
        "only osd.2 has what was written last: {}",
        pg.phase_name()
    );
    assert!(pg.prior.down.contains(&OsdId(2)), "{:?}", pg.prior);
    assert_eq!(pg.check_invariants(), Ok(()));
}

#[test]
fn a_copy_whose_last_map_is_gone_counts_for_nothing() {
    let pg = active(3);
    let loaded = || rows::Loaded {
        info: pg.info.clone(),
        log: pg.log.clone(),
        missing: pg.missing.clone(),
        past: pg.past.clone(),
        epoch: Epoch(5),
        undo: Default::default(),
    };
    let map =
        |epoch| Rc::new(Map { epoch, acting: osds(3), up_thru: epoch, size: 3, ..Map::default() });
    let load =
        |epoch| Pg::load(OsdId(0), loaded(), map(epoch), PgConf::default(), Utime::default());
    assert!(!load(5).info.is_incomplete());
    let late = load(6);
    assert!(late.info.is_incomplete());
    assert_eq!(late.info.history.same_interval_since, Epoch(6));
    // A map that is missing is noticed, one after the other is no gap.
    for (epoch, incomplete) in [(6, false), (7, true)] {
        let mut pg = load(5);
        pg.handle(Event::AdvanceMap(map(epoch)), Utime::default());
        assert_eq!(pg.info.is_incomplete(), incomplete, "{epoch}");
    }
}

#[test]
fn who_missed_maps_answers() {
    let mut pg = active(3);
    let acting = vec![OsdId(1), OsdId(2), OsdId(0)];
    let next = Map {
        epoch: 900,
        acting,
        up_thru: 900,
        size: 3,
        rebooted: Some((OsdId(0), 900)),
        ..Map::default()
    };
    pg.handle(Event::AdvanceMap(Rc::new(next)), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    let info = |a: &Action| matches!(a, Action::Send { msg: PeerMsg::Notify { info, .. }, .. } if info.is_incomplete());
    let query = PeerMsg::Query { query: Query::Info, history: pg.info.history };
    let mut actions = from(&mut pg, 1, query);
    actions.extend(commit_all(&mut pg));
    assert!(actions.iter().any(info), "{actions:?} {}", pg.phase_name());
}

/// The map records that a primary was alive in the first epoch of its interval, and here that epoch
/// is among those that are gone.
#[test]
fn an_interval_that_began_in_a_hole_may_have_written() {
    let others = vec![OsdId(1), OsdId(2)];
    let back = |epoch: u32| {
        let mut pg = active(2);
        let away = Map {
            epoch,
            acting: others.clone(),
            up: others.clone(),
            up_thru: 10,
            size: 2,
            ..Map::default()
        };
        pg.handle(Event::AdvanceMap(Rc::new(away.clone())), Utime::default());
        let alone = Map {
            epoch: epoch + 1,
            acting: osds(1),
            up: osds(1),
            up_thru: epoch + 1,
            rebooted: Some((OsdId(0), epoch + 1)),
            ..away
        };
        pg.handle(Event::AdvanceMap(Rc::new(alone)), Utime::default());
        pg.handle(Event::ActivateMap, Utime::default());
        commit_all(&mut pg);
        pg
    };
    // With all maps: it began in 6, and an OSD was alive in it.
    assert!(matches!(back(6).phase, Phase::Down));
    // What came between 5 and 20 is not known.
    assert!(matches!(back(20).phase, Phase::Down));
}
