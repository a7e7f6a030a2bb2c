//! Scripts of reservations and priorities.

use std::rc::Rc;

use super::machine_test::{Map, active, drain, from, oid, on, osds, reserve};
use super::*;
use crate::PgState;
use crate::missing::MissingItem;

fn now() -> Utime {
    Utime::default()
}

fn sent(actions: &[Action]) -> Vec<(OsdId, &PeerMsg)> {
    let sends = actions
        .iter()
        .filter_map(|a| if let Action::Send { to, msg, .. } = a { Some((to, msg)) } else { None });
    sends.flat_map(|(to, msg)| to.iter().map(move |c| (c.osd, msg))).collect()
}

/// A PG of three of which osd.2 lacks something.
fn degraded() -> Pg {
    let mut pg = active(3);
    let need = Eversion { epoch: Epoch(5), version: 1 };
    pg.lose_copies(on(2), vec![(oid("a"), need)]);
    pg.check_recovery();
    pg
}

#[test]
fn turns_come_one_after_the_other_and_go_together() {
    let mut pg = degraded();
    assert!(drain(&mut pg).iter().any(|a| matches!(
        a,
        Action::Reserve { side: Side::Lead, backfill: false, priority: 190 }
    )));
    assert!(pg.state().has(PgState::RECOVERY_WAIT), "{}", pg.state());
    pg.handle(Event::StartRecovery { max_objects: 1 }, now());
    assert!(drain(&mut pg).is_empty(), "not without a turn");
    pg.handle(Event::Reserved { side: Side::Lead }, now());
    assert!(matches!(
        sent(&drain(&mut pg))[..],
        [(OsdId(1), PeerMsg::Reserve { backfill: false, priority: 190 })]
    ));
    assert!(matches!(
        sent(&from(&mut pg, 1, PeerMsg::Reserved))[..],
        [(OsdId(2), PeerMsg::Reserve { .. })]
    ));
    assert!(from(&mut pg, 1, PeerMsg::Reserved).is_empty(), "it has that one");
    assert!(matches!(from(&mut pg, 2, PeerMsg::Reserved)[..], [Action::QueueRecovery]));
    assert!(pg.state().has(PgState::RECOVERING), "{}", pg.state());
    // One of them is taken back: so are all, and it waits again.
    let actions = from(&mut pg, 1, PeerMsg::Revoked);
    assert!(
        matches!(sent(&actions)[..], [(OsdId(1), PeerMsg::Release), (OsdId(2), PeerMsg::Release)]),
        "{actions:?}"
    );
    assert!(
        matches!(actions[actions.len() - 2..], [Action::Release, Action::Reserve { .. }]),
        "{actions:?}"
    );
    assert!(pg.state().has(PgState::RECOVERY_WAIT), "{}", pg.state());
    reserve(&mut pg);
    pg.handle(Event::Preempted { side: Side::Lead }, now());
    let actions = drain(&mut pg);
    assert_eq!(sent(&actions).len(), 2, "{actions:?}");
    // No copy lacks anything any more.
    reserve(&mut pg);
    pg.peers.get_mut(&on(2)).unwrap().missing.as_mut().unwrap().remove(&oid("a"));
    pg.check_recovery();
    let actions = drain(&mut pg);
    assert!(
        matches!(sent(&actions)[..2], [(OsdId(1), PeerMsg::Release), (OsdId(2), PeerMsg::Release)]),
        "{actions:?}"
    );
    assert!(actions.iter().any(|a| matches!(a, Action::Release)) && pg.is_clean());
}

#[test]
fn a_replica_passes_on_what_its_osd_says() {
    let map =
        Map { epoch: 5, acting: vec![OsdId(1), OsdId(0)], up_thru: 5, size: 2, ..Map::default() };
    let mut pg = Pg::create(
        OsdId(0),
        super::machine_test::PGID.into(),
        Rc::new(map),
        PgConf::default(),
        now(),
    )
    .unwrap();
    pg.handle(Event::ActivateMap, now());
    pg.phase = Phase::ReplicaActive;
    drain(&mut pg);
    let actions = from(&mut pg, 1, PeerMsg::Reserve { backfill: false, priority: 7 });
    assert!(
        matches!(
            actions[..],
            [Action::Reserve { side: Side::Target, backfill: false, priority: 7 }]
        ),
        "{actions:?}"
    );
    pg.handle(Event::Reserved { side: Side::Target }, now());
    assert!(matches!(sent(&drain(&mut pg))[..], [(OsdId(1), PeerMsg::Reserved)]));
    pg.handle(Event::Preempted { side: Side::Target }, now());
    assert!(matches!(sent(&drain(&mut pg))[..], [(OsdId(1), PeerMsg::Revoked)]));
    assert!(matches!(from(&mut pg, 1, PeerMsg::Release)[..], [Action::Release]));
}

#[test]
fn priorities_are_cephs() {
    let mut pg = degraded();
    assert_eq!((pg.recovery_priority(), pg.backfill_priority()), (190, 150));
    // Fewer than min_size have everything: data are at risk.
    pg.missing.set(
        oid("a"),
        MissingItem { need: Eversion { epoch: Epoch(5), version: 1 }, have: Eversion::default() },
    );
    assert_eq!(pg.recovery_priority(), 231);
    pg.missing.remove(&oid("a"));
    let set = |pg: &mut Pg, priority, acting| {
        pg.map = Rc::new(Map {
            epoch: 5,
            acting: osds(acting),
            up_thru: 5,
            size: 3,
            priority,
            ..Map::default()
        });
        pg.mapping.acting = crate::Members::whole(osds(acting));
    };
    for (pool, recovery, backfill) in
        [(-10, 180, 140), (3, 193, 153), (10, 200, 160), (99, 200, 160)]
    {
        set(&mut pg, pool, 3);
        assert_eq!(
            (pg.recovery_priority(), pg.backfill_priority()),
            (recovery, backfill),
            "recovery_priority {pool}"
        );
    }
    pg.peers.get_mut(&on(2)).unwrap().missing.as_mut().unwrap().remove(&oid("a"));
    for (acting, backfill) in [(3, 110), (2, 151), (1, 231)] {
        set(&mut pg, 0, acting);
        assert_eq!(pg.backfill_priority(), backfill, "{acting} act");
    }
}

#[test]
fn an_operator_puts_a_group_before_others_until_it_is_whole() {
    let mut pg = degraded();
    drain(&mut pg);
    pg.handle(Event::Force { backfill: false, on: true }, now());
    assert!(matches!(
        drain(&mut pg)[..],
        [Action::Reserve { side: Side::Lead, backfill: false, priority: 255 }]
    ));
    assert!(pg.state().has(PgState::FORCED_RECOVERY), "{}", pg.state());
    pg.handle(Event::Force { backfill: false, on: true }, now());
    assert!(drain(&mut pg).is_empty(), "it is already");
    pg.handle(Event::Force { backfill: false, on: false }, now());
    assert!(matches!(drain(&mut pg)[..], [Action::Reserve { priority: 190, .. }]));
    pg.handle(Event::Force { backfill: false, on: true }, now());
    reserve(&mut pg);
    pg.peers.get_mut(&on(2)).unwrap().missing.as_mut().unwrap().remove(&oid("a"));
    pg.check_recovery();
    assert!(!pg.state().has(PgState::FORCED_RECOVERY), "{}", pg.state());
    pg.handle(Event::Force { backfill: true, on: true }, now());
    assert!(!pg.state().has(PgState::FORCED_BACKFILL), "a clean group needs none");
}

#[test]
fn more_haste_is_told_where_turns_were_asked_for() {
    let mut pg = degraded();
    pg.handle(Event::Reserved { side: Side::Lead }, now());
    drain(&mut pg);
    pg.handle(Event::Force { backfill: false, on: true }, now());
    let actions = drain(&mut pg);
    assert!(
        matches!(
            sent(&actions)[..],
            [(OsdId(1), PeerMsg::Reserve { backfill: false, priority: 255 })]
        ),
        "{actions:?}"
    );
    assert!(matches!(
        sent(&from(&mut pg, 1, PeerMsg::Reserved))[..],
        [(OsdId(2), PeerMsg::Reserve { priority: 255, .. })]
    ));
    from(&mut pg, 2, PeerMsg::Reserved);
    assert!(pg.state().has(PgState::RECOVERING), "{}", pg.state());
    // A PG with reservations keeps them with less haste.
    pg.handle(Event::Force { backfill: false, on: false }, now());
    assert_eq!(sent(&drain(&mut pg)).len(), 2);
    assert!(pg.state().has(PgState::RECOVERING), "{}", pg.state());
}

#[test]
fn a_full_store_stops_recovery_until_there_is_room() {
    let mut pg = degraded();
    reserve(&mut pg);
    assert!(pg.state().has(PgState::RECOVERING), "{}", pg.state());
    let map = |epoch, full: bool| {
        let full = full.then_some(OsdId(2));
        Event::AdvanceMap(Rc::new(Map {
            epoch,
            acting: osds(3),
            up_thru: 5,
            size: 3,
            full,
            ..Map::default()
        }))
    };
    pg.handle(map(6, true), now());
    pg.handle(Event::ActivateMap, now());
    let actions = drain(&mut pg);
    assert!(
        matches!(sent(&actions)[..], [(OsdId(1), PeerMsg::Release), (OsdId(2), PeerMsg::Release)]),
        "{actions:?}"
    );
    assert!(actions.iter().any(|a| matches!(a, Action::Release)), "{actions:?}");
    assert!(
        pg.state().has(PgState::RECOVERY_TOOFULL) && !pg.state().has(PgState::RECOVERY_WAIT),
        "{}",
        pg.state()
    );
    pg.handle(Event::StartRecovery { max_objects: 1 }, now());
    assert!(drain(&mut pg).is_empty());
    // A client waits for it: that is not put off.
    pg.handle(Event::RecoverNow(oid("a")), now());
    assert!(matches!(drain(&mut pg)[..], [Action::ReadObject { .. }]));
    pg.handle(map(7, false), now());
    pg.handle(Event::ActivateMap, now());
    assert!(
        drain(&mut pg)
            .iter()
            .any(|a| matches!(a, Action::Reserve { side: Side::Lead, backfill: false, .. }))
    );
    assert!(pg.state().has(PgState::RECOVERY_WAIT), "{}", pg.state());
}
