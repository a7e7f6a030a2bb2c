//! Scripts of one machine with copies that recover beside it.

use std::rc::Rc;

use super::machine_test::{Map, active, commit_all, drain, from, oid, on, osds, proposal, sent};
use super::peering::find_best;
use super::*;
use crate::PgState;
use crate::members::Members;

/// Three OSDs wrote ten objects; two of them wrote `more` while the third was away, and it is back:
/// the actions that follow.
fn back_after(more: u64, conf: PgConf, recovers: bool) -> (Pg, Vec<Action>, PgInfo) {
    let mut pg = active(3);
    pg.conf = conf;
    let mut tid = 0;
    let mut write = |pg: &mut Pg, name: &str, replicas: i32| {
        tid += 1;
        pg.propose(proposal(tid, name)).unwrap();
        let version = pg.info.last_update;
        for i in 1..replicas {
            from(pg, i, PeerMsg::RepOpReply { version });
        }
        commit_all(pg);
    };
    for i in 0..10 {
        write(&mut pg, &format!("before{i}"), 3);
    }
    let there = PgInfo { last_complete: pg.info.last_update, ..pg.info.clone() };
    let two = Map {
        epoch: 6,
        acting: osds(2),
        up: osds(2),
        up_thru: 6,
        size: 3,
        dead: Some((OsdId(2), 6)),
        ..Map::default()
    };
    pg.handle(Event::AdvanceMap(Rc::new(two.clone())), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    drain(&mut pg);
    let info = pg.info.clone();
    from(
        &mut pg,
        1,
        PeerMsg::Notify { info, past: PastIntervals::default(), promises: Vec::new() },
    );
    from(&mut pg, 1, PeerMsg::LeaseAck { round: 1 });
    from(&mut pg, 1, PeerMsg::Activated);
    commit_all(&mut pg);
    assert!(pg.is_active(), "{}", pg.state());
    for i in 0..more {
        write(&mut pg, &format!("meanwhile{i}"), 2);
    }
    let three = Map {
        epoch: 7,
        acting: osds(3),
        up: osds(3),
        up_thru: 7,
        norecover: !recovers,
        rebooted: Some((OsdId(2), 7)),
        ..two
    };
    pg.handle(Event::AdvanceMap(Rc::new(three)), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    drain(&mut pg);
    let same = pg.info.clone();
    from(
        &mut pg,
        1,
        PeerMsg::Notify { info: same, past: PastIntervals::default(), promises: Vec::new() },
    );
    let actions = from(
        &mut pg,
        2,
        PeerMsg::Notify {
            info: there.clone(),
            past: PastIntervals::default(),
            promises: Vec::new(),
        },
    );
    (pg, actions, there)
}

fn wanted(actions: &[Action]) -> Option<Vec<OsdId>> {
    actions
        .iter()
        .find_map(|a| if let Action::WantPgTemp(temp) = a { Some(temp.clone()) } else { None })
}

#[test]
fn who_lacks_many_writes_does_not_act() {
    let conf = PgConf { async_recovery_min_cost: 5, ..PgConf::default() };
    assert_eq!(wanted(&back_after(6, conf.clone(), true).1), Some(osds(2)));
    // A copy that lacks few writes acts at once, and recovers beside the others.
    assert_eq!(wanted(&back_after(5, conf.clone(), true).1), None);
    // A copy that does not recover would not act for as long.
    assert_eq!(wanted(&back_after(6, conf.clone(), false).1), None);
    // There must be enough without it.
    let (mut pg, ..) = back_after(6, conf, true);
    pg.pool.min_size = 3;
    let three = Members::whole(osds(3));
    assert_eq!(pg.leave_behind(three.clone(), on(0)), three);
}

/// Two act, and the third, which came back and lacks much, recovers beside them; and the map in
/// which that is so.
fn beside() -> (Pg, Map) {
    let (mut pg, _, there) =
        back_after(6, PgConf { async_recovery_min_cost: 5, ..PgConf::default() }, true);
    let map = Map {
        epoch: 8,
        acting: osds(2),
        up: osds(3),
        up_thru: 8,
        size: 3,
        rebooted: Some((OsdId(2), 7)),
        ..Map::default()
    };
    pg.handle(Event::AdvanceMap(Rc::new(map.clone())), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    drain(&mut pg);
    let same = pg.info.clone();
    from(
        &mut pg,
        2,
        PeerMsg::Notify { info: there, past: PastIntervals::default(), promises: Vec::new() },
    );
    from(
        &mut pg,
        1,
        PeerMsg::Notify { info: same, past: PastIntervals::default(), promises: Vec::new() },
    );
    from(&mut pg, 1, PeerMsg::LeaseAck { round: 1 });
    from(&mut pg, 1, PeerMsg::Activated);
    (pg, map)
}

#[test]
fn it_follows_at_once_and_writes_do_not_wait_for_it() {
    let (mut pg, _) = beside();
    let actions = commit_all(&mut pg);
    // The log, before there is a turn for anything; and the turn is one of recovery.
    assert!(actions.iter().any(|a| matches!(a, Action::Send { to, msg: PeerMsg::Activate { .. }, .. } if to[..] == [on(2)])), "{actions:?}");
    assert!(
        actions
            .iter()
            .any(|a| matches!(a, Action::Reserve { side: Side::Lead, backfill: false, .. })),
        "{actions:?}"
    );
    assert_eq!(pg.state().to_string(), "active+recovery_wait+undersized+degraded+remapped");
    assert_eq!(pg.peers[&on(2)].missing.as_ref().map(MissingSet::len), Some(6));
    from(&mut pg, 2, PeerMsg::Activated);

    let lacking = oid("meanwhile3");
    assert_eq!(pg.object_status(&lacking), ObjectStatus::Ready);
    assert!(!pg.must_wait(&lacking, true));
    let version = pg.propose(proposal(100, "meanwhile3")).unwrap();
    let msgs = sent(drain(&mut pg), 2);
    assert!(matches!(&msgs[..], [PeerMsg::RepOp(op)] if op.log_only), "{msgs:?}");
    assert_eq!(
        pg.peers[&on(2)].missing.as_ref().unwrap().get(&lacking).map(|i| i.need),
        Some(version)
    );
    // What it has, it writes.
    pg.propose(proposal(101, "before3")).unwrap();
    let msgs = sent(drain(&mut pg), 2);
    assert!(matches!(&msgs[..], [PeerMsg::RepOp(op)] if !op.log_only), "{msgs:?}");
    let version = pg.info.last_update;
    for i in [1, 2] {
        from(&mut pg, i, PeerMsg::RepOpReply { version });
    }
    commit_all(&mut pg);

    // While an object is copied, writers wait, or its copy would never end.
    pg.handle(Event::Reserved { side: Side::Lead }, Utime::default());
    let msgs = sent(drain(&mut pg), 2);
    assert!(matches!(&msgs[..], [PeerMsg::Reserve { backfill: false, .. }]), "{msgs:?}");
    from(&mut pg, 2, PeerMsg::Reserved);
    assert!(pg.state().has(PgState::RECOVERING), "{}", pg.state());
    pg.handle(Event::StartRecovery { max_objects: 1 }, Utime::default());
    drain(&mut pg);
    let waits =
        (0..6).map(|i| oid(&format!("meanwhile{i}"))).filter(|o| pg.must_wait(o, true)).count();
    assert_eq!(waits, 1, "one object is copied");
    pg.check_invariants().unwrap();
}

#[test]
fn its_log_counts_only_without_those_who_acted() {
    let v = |n| Eversion { epoch: Epoch(5), version: n };
    let info =
        |last_update| PgInfo { last_update, last_epoch_started: Epoch(5), ..PgInfo::default() };
    // It has an entry more than the acting copies, which lost it, and not the object.
    let infos = [(on(0), info(v(9))), (on(1), info(v(8))), (on(2), info(v(10)))];
    let best = |some: &[(PgShard, PgInfo)], acted: fn(PgShard) -> bool| {
        find_best(on(1), some.iter().map(|(o, i)| (*o, i)), |o, epoch| {
            epoch == Epoch(5) && acted(o)
        })
    };
    assert_eq!(best(&infos, |o| o != on(2)), Some(on(0)));
    assert_eq!(best(&infos[2..], |o| o != on(2)), Some(on(2)));
    assert_eq!(best(&infos, |_| true), Some(on(2)));
}

/// The PG's memory of past intervals is bounded: of the newest that started, only copies that may
/// have acted later may be left.
#[test]
fn every_copy_knows_itself_whether_it_acted() {
    let (pg, map) = beside();
    let started = pg.info.last_interval_started;
    assert_eq!((started, pg.info.last_interval_acted), (Epoch(8), Some(Epoch(8))));

    // The same message makes one act, and the other follow.
    let activated = |me: i32| {
        let mut copy = Pg::create(
            OsdId(me),
            pg.info.pgid.into(),
            Rc::new(map.clone()),
            PgConf::default(),
            Utime::default(),
        )
        .unwrap();
        copy.handle(Event::ActivateMap, Utime::default());
        commit_all(&mut copy);
        let log = pg.log.after(Eversion::default());
        from(
            &mut copy,
            0,
            PeerMsg::Activate { info: pg.info.clone(), log, past: PastIntervals::default() },
        );
        assert_eq!(copy.info.last_interval_started, started);
        copy.info
    };
    let (acts, mut follows) = (activated(1), activated(2));
    assert_eq!(
        (acts.last_interval_acted, follows.last_interval_acted),
        (Some(started), Some(Epoch(0)))
    );
    // It learned of a write that the acting copies have lost, and is taken for one of them.
    follows.last_update.version += 1;
    let infos = [(on(1), acts), (on(2), follows)];
    assert_eq!(find_best(on(0), infos.iter().map(|(o, i)| (*o, i)), |_, _| true), Some(on(1)));
}
