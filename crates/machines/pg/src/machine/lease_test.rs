//! Which copies may serve reads, and which wait for which. Whole clusters with their clocks are in
//! `crates/harness/sim`.

use std::rc::Rc;

use super::machine_test::{
    Map, PGID, active, commit_all, drain, from, oid, on, osds, proposal, sent,
};
use super::*;
use crate::lease::{Promise, Steady};
use crate::{PgConf, PgState};

const SECOND: u64 = 1_000_000_000;

fn at(pg: &mut Pg, seconds: u64) -> Steady {
    let now = Steady(seconds * SECOND);
    pg.set_clock(now);
    now
}

fn map(pg: &mut Pg, map: Map) -> Vec<Action> {
    pg.handle(Event::AdvanceMap(Rc::new(map)), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    drain(pg)
}

fn wake(pg: &mut Pg) -> Vec<Action> {
    pg.handle(Event::Wake, Utime::default());
    drain(pg)
}

fn notify(pg: &Pg, promises: Vec<Promise>) -> PeerMsg {
    PeerMsg::Notify { info: pg.info.clone(), past: PastIntervals::default(), promises }
}

fn rounds(actions: &[Action]) -> Vec<u64> {
    let round = |a: &Action| {
        if let Action::Send { msg: PeerMsg::Lease { round, .. }, .. } = a {
            Some(*round)
        } else {
            None
        }
    };
    actions.iter().filter_map(round).collect()
}

#[test]
fn a_primary_reads_while_all_replicas_let_it() {
    // The first round was answered at the moment zero of this clock.
    let mut pg = active(3);
    let readable = |s: f64| Steady((s * 1e9) as u64);
    assert!(pg.is_readable(readable(15.4)));
    assert!(!pg.is_readable(readable(15.6)), "a little less than 16 seconds");
    // Rounds follow one another until replicas know of a complete one.
    at(&mut pg, 1);
    assert!(rounds(&from(&mut pg, 1, PeerMsg::LeaseAck { round: 2 })).is_empty());
    assert!(rounds(&from(&mut pg, 2, PeerMsg::LeaseAck { round: 1 })).is_empty(), "an old answer");
    assert_eq!(rounds(&from(&mut pg, 2, PeerMsg::LeaseAck { round: 2 })), [3]);
    from(&mut pg, 1, PeerMsg::LeaseAck { round: 3 });
    let actions = from(&mut pg, 2, PeerMsg::LeaseAck { round: 3 });
    assert!(matches!(actions[..], [Action::WakeAt(Steady(t))] if t == 5 * SECOND), "{actions:?}");
    assert!(pg.is_readable(readable(16.4)) && !pg.is_readable(readable(16.6)), "it began at 1");
    assert!(rounds(&wake(&mut pg)).is_empty(), "too early");
    at(&mut pg, 5);
    assert_eq!(rounds(&wake(&mut pg)), [4]);
    // One that does not answer: no new promises by the others.
    from(&mut pg, 1, PeerMsg::LeaseAck { round: 4 });
    at(&mut pg, 17);
    assert!(rounds(&wake(&mut pg)).is_empty());
    assert_eq!(pg.state(), PgState::ACTIVE | PgState::CLEAN | PgState::LAGGY);
    pg.wait_readable();
    let actions = from(&mut pg, 2, PeerMsg::LeaseAck { round: 4 });
    assert!(actions.iter().any(|a| matches!(a, Action::Readable)), "{actions:?}");
    assert!(
        pg.is_readable(readable(20.4)) && !pg.is_readable(readable(20.6)),
        "it began at 5, however late the answer came"
    );
    assert_eq!(rounds(&actions), [5]);
}

#[test]
fn a_primary_alone_needs_nobody() {
    let pg = active(1);
    assert!(pg.is_readable(Steady(1_000_000 * SECOND)));
}

/// OSD 0, a replica of OSD 2 until it is called down, leads with OSD 1. It promised at 10 s.
fn succeeded(conf: PgConf) -> Pg {
    let acting = vec![OsdId(2), OsdId(0), OsdId(1)];
    let first = Map { epoch: 5, acting, up_thru: 5, size: 3, ..Map::default() };
    let mut pg = Pg::create(OsdId(0), PGID.into(), Rc::new(first), conf, Utime::default()).unwrap();
    pg.handle(Event::ActivateMap, Utime::default());
    drain(&mut pg);
    at(&mut pg, 10);
    let info = pg.info.clone();
    from(
        &mut pg,
        2,
        PeerMsg::Activate { info, log: Default::default(), past: PastIntervals::default() },
    );
    let length = 16 * SECOND;
    let acks =
        from(&mut pg, 2, PeerMsg::Lease { round: 1, length, committed: Eversion::default() });
    assert!(matches!(&sent(acks, 2)[..], [PeerMsg::LeaseAck { round: 1 }]));
    commit_all(&mut pg);
    pg
}

const NEXT: Map = Map {
    epoch: 6,
    acting: Vec::new(),
    up: Vec::new(),
    up_thru: 6,
    size: 3,
    dead: None,
    rebooted: None,
    full: None,
    others: Vec::new(),
    lost: None,
    priority: 0,
    norecover: false,
    kind: crate::PoolKind::Replicated,
};

fn next() -> Map {
    Map { acting: osds(2), ..NEXT }
}

#[test]
fn a_new_primary_waits_until_the_old_one_cannot_read() {
    let mut pg = succeeded(PgConf::default());
    at(&mut pg, 20);
    map(&mut pg, next());
    // The other survivor promised a second later than this one.
    let promise =
        Promise { holder: on(2), up_from: Epoch(1), interval: Epoch(5), left: 7 * SECOND };
    let msg = notify(&pg, vec![promise]);
    let actions = from(&mut pg, 1, msg);
    assert!(matches!(actions[..], [Action::WakeAt(Steady(t))] if t == 27 * SECOND), "{actions:?}");
    assert_eq!(pg.state().to_string(), "creating+peering+wait");
    at(&mut pg, 26);
    assert!(sent(wake(&mut pg), 1).is_empty());
    at(&mut pg, 27);
    let actions = sent(wake(&mut pg), 1);
    assert!(
        matches!(actions[..], [PeerMsg::Activate { .. }, PeerMsg::Lease { round: 1, .. }]),
        "{actions:?}"
    );
    // Those promises are over. What holds is what the new interval gives.
    assert!(pg.promises().is_empty());
}

#[test]
fn a_dead_primary_is_not_waited_for() {
    for dead in [6, 7] {
        let mut pg = succeeded(PgConf::default());
        at(&mut pg, 20);
        let actions = map(&mut pg, Map { dead: (dead == 6).then_some((OsdId(2), 6)), ..next() });
        assert!(!sent(actions, 1).is_empty());
        let msg = notify(&pg, Vec::new());
        let mut actions = from(&mut pg, 1, msg);
        if dead == 7 {
            assert!(sent(actions, 1).is_empty());
            actions = map(&mut pg, Map { epoch: 7, dead: Some((OsdId(2), 7)), ..next() });
        }
        assert!(matches!(sent(actions, 1)[..], [PeerMsg::Activate { .. }, PeerMsg::Lease { .. }]));
    }
}

#[test]
fn one_that_came_back_or_answers_is_not_waited_for() {
    let mut pg = succeeded(PgConf::default());
    at(&mut pg, 20);
    let acting = osds(3);
    map(&mut pg, Map { acting: acting.clone(), rebooted: Some((OsdId(2), 6)), ..NEXT });
    for i in 1..3 {
        let msg = notify(&pg, Vec::new());
        from(&mut pg, i, msg);
    }
    assert_eq!(pg.phase_name(), "Started/Primary/Active/Activating", "it has a new life");
    let mut pg = succeeded(PgConf::default());
    at(&mut pg, 20);
    map(&mut pg, Map { acting, ..NEXT });
    for i in 1..3 {
        assert!(pg.phase_name().contains("Peering"));
        let msg = notify(&pg, Vec::new());
        from(&mut pg, i, msg);
    }
    assert_eq!(
        pg.phase_name(),
        "Started/Primary/Active/Activating",
        "it knows of the new interval"
    );
}

#[test]
fn a_copy_from_disk_assumes_the_most() {
    let pg = succeeded(PgConf::default());
    let rows = crate::rows::Loaded {
        info: pg.info.clone(),
        log: pg.log.clone(),
        missing: MissingSet::default(),
        past: pg.past.clone(),
        epoch: Epoch(5),
        undo: Default::default(),
    };
    let mut pg = Pg::load(OsdId(0), rows, pg.map.clone(), PgConf::default(), Utime::default());
    at(&mut pg, 1_000);
    map(&mut pg, next());
    let msg = notify(&pg, Vec::new());
    let actions = from(&mut pg, 1, msg);
    assert!(
        matches!(actions[..], [Action::WakeAt(Steady(t))] if t == 1_016 * SECOND),
        "{actions:?}"
    );
}

#[test]
fn a_primary_waits_for_its_replicas_that_may_serve() {
    let mut pg = active(3);
    // A round that is not complete gives the replicas nothing.
    at(&mut pg, 10);
    from(&mut pg, 1, PeerMsg::LeaseAck { round: 2 });
    let alone = Map { acting: osds(2), ..NEXT };
    map(&mut pg, alone);
    let msg = notify(&pg, Vec::new());
    let actions = from(&mut pg, 1, msg);
    assert!(matches!(actions[..], [Action::WakeAt(Steady(t))] if t == 16 * SECOND), "{actions:?}");
}

#[test]
fn a_replica_reads_what_is_committed_while_it_has_a_lease() {
    let mut pg = succeeded(PgConf::default());
    let now = at(&mut pg, 11);
    let lease =
        |round| PeerMsg::Lease { round, length: 16 * SECOND, committed: Eversion::default() };
    assert!(!pg.may_read_replica(&oid("a"), now));
    from(&mut pg, 2, lease(2));
    assert!(!pg.may_read_replica(&oid("a"), now), "nobody knows yet when the second round began");
    from(&mut pg, 2, lease(3));
    // The second round began after the first was answered, at 10.
    assert!(
        pg.may_read_replica(&oid("a"), Steady(25 * SECOND))
            && !pg.may_read_replica(&oid("a"), Steady(26 * SECOND))
    );
    // A write that may not be everywhere.
    let mut primary = active(2);
    primary.propose(proposal(1, "a")).unwrap();
    let write = sent(drain(&mut primary), 1).pop().unwrap();
    from(&mut pg, 2, write);
    assert!(!pg.may_read_replica(&oid("a"), now) && pg.may_read_replica(&oid("b"), now));
    let committed = pg.info.last_update;
    from(&mut pg, 2, PeerMsg::Lease { round: 4, length: 16 * SECOND, committed });
    assert!(pg.may_read_replica(&oid("a"), now));
    map(&mut pg, next());
    assert!(!pg.may_read_replica(&oid("a"), now), "another interval");
}

#[test]
fn a_replica_of_too_few_reads_nothing() {
    let mut pg = succeeded(PgConf::default());
    let now = at(&mut pg, 11);
    for round in [2, 3] {
        from(
            &mut pg,
            2,
            PeerMsg::Lease { round, length: 16 * SECOND, committed: Eversion::default() },
        );
    }
    assert!(pg.may_read_replica(&oid("a"), now));
    pg.pool.min_size = 4;
    assert!(!pg.may_read_replica(&oid("a"), now), "its primary does not serve either");
}
