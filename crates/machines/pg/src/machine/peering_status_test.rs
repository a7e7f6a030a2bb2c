//! Scripts of one machine that cannot serve, and what it says of that.

use std::rc::Rc;

use super::machine_test::*;
use super::*;
use crate::info::Backfill;

/// The copy on osd.0 of a PG that osd.1 and osd.2 wrote to without it (epoch 6); both are down now.
fn left_alone() -> (Pg, Map) {
    let mut pg = active(3);
    let version = pg.propose(proposal(1, "a")).unwrap();
    commit_all(&mut pg);
    for osd in [1, 2] {
        from(&mut pg, osd, PeerMsg::RepOpReply { version });
    }
    let map = Map {
        epoch: 6,
        acting: vec![OsdId(1), OsdId(2)],
        up: vec![OsdId(1), OsdId(2)],
        others: vec![OsdId(0)],
        up_thru: 6,
        size: 3,
        ..Map::default()
    };
    to(&mut pg, &map);
    let map =
        Map { epoch: 7, acting: osds(1), up: Vec::new(), others: Vec::new(), up_thru: 7, ..map };
    to(&mut pg, &map);
    (pg, map)
}

fn to(pg: &mut Pg, map: &Map) {
    let now = Utime::new(map.epoch, 0);
    pg.handle(Event::AdvanceMap(Rc::new(map.clone())), now);
    pg.handle(Event::ActivateMap, now);
    commit_all(pg);
}

fn told(pg: &Pg, started: u32, last_backfill: Backfill) -> PeerMsg {
    let mut info = PgInfo {
        last_backfill,
        last_epoch_started: Epoch(started),
        last_interval_started: Epoch(started),
        ..pg.info.clone()
    };
    info.history.last_epoch_started = Epoch(6);
    info.last_update = Eversion { epoch: Epoch(6), version: 3 };
    info.last_complete = info.last_update;
    PeerMsg::Notify { info, past: PastIntervals::default(), promises: Vec::new() }
}

#[test]
fn a_group_that_is_down_names_whom_it_needs() {
    let (mut pg, map) = left_alone();
    assert!(pg.state().has(crate::PgState::DOWN), "{}", pg.state());
    let s = pg.peering_status().unwrap();
    assert_eq!(
        (s.blocked, s.probing, s.down, s.waits),
        (true, vec![on(0)], vec![OsdId(1), OsdId(2)], WaitsFor::Down)
    );
    assert_eq!(s.blocked_by, [(OsdId(1), Epoch(0)), (OsdId(2), Epoch(0))]);
    let past: Vec<_> =
        s.past.intervals.iter().map(|i| (i.first.0, i.last.0, i.acting.clone())).collect();
    assert_eq!(past.last(), Some(&(6, 6, vec![on(1), on(2)])), "{past:?}");
    assert_eq!(pg.status().blocked_by, [OsdId(1), OsdId(2)].into());
    let at = |s| Utime::new(s, 0);
    assert_eq!(
        pg.states(),
        [
            ("Started/Primary/Peering/Down", at(7)),
            ("Started/Primary/Peering", at(7)),
            ("Started", at(7))
        ]
    );

    // An OSD that is declared lost is not waited for, and does not stand for the other.
    let map = Map { epoch: 8, lost: Some((OsdId(2), 8)), ..map };
    to(&mut pg, &map);
    let s = pg.peering_status().unwrap();
    assert_eq!((s.blocked, s.blocked_by), (true, vec![(OsdId(1), Epoch(0))]));
    // The advice is followed.
    let map = Map { epoch: 9, others: vec![OsdId(1)], ..map };
    to(&mut pg, &map);
    let s = pg.peering_status().unwrap();
    assert_eq!(
        (s.blocked, s.probing, s.blocked_by.len(), s.waits),
        (false, vec![on(0), on(1)], 0, WaitsFor::Infos([on(1)].into()))
    );
    assert_eq!(pg.status().blocked_by, [OsdId(1)].into());
    assert_eq!(pg.states()[1], ("Started/Primary/Peering", at(7)), "peering goes on");
    let msg = told(&pg, 6, Backfill::Complete);
    from(&mut pg, 1, msg);
    assert_eq!(pg.peering_status().unwrap().waits, WaitsFor::Log(on(1)));
}

#[test]
fn a_group_that_is_incomplete_says_what_is_wrong_with_each_copy() {
    let (mut pg, map) = left_alone();
    let map = Map { epoch: 8, lost: Some((OsdId(2), 8)), others: vec![OsdId(1)], ..map };
    to(&mut pg, &map);
    let msg = told(&pg, 0, Backfill::Nothing);
    from(&mut pg, 1, msg);
    assert!(pg.state().has(crate::PgState::INCOMPLETE), "{}", pg.state());
    let s = pg.peering_status().unwrap();
    let WaitsFor::Complete(incomplete) = s.waits else { panic!("{:?}", s.waits) };
    assert_eq!((incomplete.started, incomplete.history_only), (Epoch(6), true));
    let why: Vec<_> =
        incomplete.copies.iter().map(|c| (c.shard.osd.0, c.last_epoch_started.0, c.why)).collect();
    assert_eq!(
        why,
        [
            (0, 5, "the copy did not take part in the newest activation"),
            (1, 0, "the copy was never filled completely")
        ]
    );
    // Though an operator gave it up.
    assert_eq!(incomplete.may_help, [(OsdId(2), Epoch(8))]);
    assert!(!s.blocked && pg.status().blocked_by.contains(&OsdId(2)));

    // It comes back after all, with everything.
    let map =
        Map { epoch: 9, others: vec![OsdId(1), OsdId(2)], rebooted: Some((OsdId(2), 9)), ..map };
    to(&mut pg, &map);
    let msgs = [told(&pg, 0, Backfill::Nothing), told(&pg, 6, Backfill::Complete)];
    for (osd, msg) in [1, 2].into_iter().zip(msgs) {
        from(&mut pg, osd, msg);
    }
    assert_eq!(pg.peering_status().unwrap().waits, WaitsFor::Log(on(2)));
}

#[test]
fn a_group_that_serves_has_nothing_to_explain() {
    let pg = active(2);
    assert_eq!(pg.peering_status(), None);
    let names: Vec<_> = pg.states().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["Started/Primary/Active", "Started"]);
    assert!(pg.status().blocked_by.is_empty());
}
