//! Scripts of one machine that fills others.

use std::rc::Rc;

use bytes::Bytes;
use smallvec::smallvec;
use types::{PoolId, SnapId};

use super::machine_test::{Map, PGID, change, commit_all, drain, from, on, osds, proposal, sent};
use super::*;
use crate::PgState;
use crate::info::Backfill;
use crate::log_entry::LogOp;
use crate::msg::{Listing, ObjectChunk, Payload};
use crate::proposal::{Proposal, ReadToken};

/// The first of `up` OSDs serve, the others are to be filled and have said that they follow; each
/// was asked for a reservation. The log begins after their time.
fn following(acting: i32, up: i32, conf: PgConf) -> Pg {
    let map = Map {
        epoch: 5,
        acting: osds(acting),
        up: osds(up),
        up_thru: 5,
        size: up as u32,
        ..Map::default()
    };
    let mut pg = Pg::create(
        OsdId(0),
        PGID.into(),
        Rc::new(Map { up: Vec::new(), ..map.clone() }),
        conf,
        Utime::default(),
    )
    .unwrap();
    let tail = Eversion { epoch: Epoch(4), version: 100 };
    pg.log = PgLog::new(tail, tail, Vec::new(), Vec::new()).unwrap();
    (pg.info.last_update, pg.info.last_complete, pg.info.log_tail) = (tail, tail, tail);
    pg.handle(Event::AdvanceMap(Rc::new(Map { epoch: 6, up_thru: 6, ..map })), Utime::default());
    pg.handle(Event::ActivateMap, Utime::default());
    drain(&mut pg);
    for i in 1..up {
        let info = if i < acting {
            pg.info.clone()
        } else {
            PgInfo { pgid: PGID, history: pg.info.history, ..PgInfo::default() }
        };
        from(
            &mut pg,
            i,
            PeerMsg::Notify { info, past: PastIntervals::default(), promises: Vec::new() },
        );
    }
    for i in 1..acting {
        from(&mut pg, i, PeerMsg::LeaseAck { round: 1 });
        from(&mut pg, i, PeerMsg::Activated);
    }
    let actions = commit_all(&mut pg);
    assert!(
        actions
            .iter()
            .any(|a| matches!(a, Action::Reserve { side: Side::Lead, backfill: true, .. })),
        "{actions:?}"
    );
    assert!(pg.state().has(PgState::BACKFILL_WAIT), "{}", pg.state());
    pg.handle(Event::Reserved { side: Side::Lead }, Utime::default());
    let actions = drain(&mut pg);
    for i in acting..up {
        let started = |a: &Action| matches!(a, Action::Send { to, msg: PeerMsg::StartBackfill { .. }, .. } if to[..] == [on(i)]);
        assert!(actions.iter().any(started), "{actions:?}");
        assert!(matches!(
            &sent(from(&mut pg, i, PeerMsg::Activated), i)[..],
            [PeerMsg::Reserve { backfill: true, .. }]
        ));
    }
    pg
}

/// Two OSDs serve, the third is to be filled.
fn filling(conf: PgConf) -> Pg {
    let pg = following(2, 3, conf);
    assert_eq!(pg.state().to_string(), "active+undersized+degraded+remapped+backfill_wait");
    pg
}

/// Answers the primary's own listing and the target's. Returns what the cursor moves over.
fn list(
    pg: &mut Pg,
    actions: Vec<Action>,
    own: Listing,
    theirs: Listing,
) -> (Backfill, Vec<(ObjectId, Eversion)>, Vec<ObjectId>) {
    let (mut token, mut cursor) = (None, None);
    for a in actions {
        match a {
            Action::ListObjects { token: t, .. } => token = Some(t),
            Action::Send { msg: PeerMsg::ListObjects { after, .. }, .. } => cursor = Some(after),
            _ => {}
        }
    }
    if let Some(after) = cursor {
        from(pg, 2, PeerMsg::Objects { after, listing: theirs });
    }
    pg.handle(
        Event::Listed { token: token.expect("own objects are listed"), listing: own },
        Utime::default(),
    );
    let mut sent = sent(drain(pg), 2);
    match (sent.pop(), sent.pop()) {
        (Some(PeerMsg::AdvanceBackfill { upto, missing, remove }), None) => (upto, missing, remove),
        other => panic!("{other:?}"),
    }
}

fn hashed(name: &str, hash: u32, snap: SnapId) -> ObjectId {
    ObjectId::with_hash(
        PoolId(1),
        Bytes::new(),
        Bytes::copy_from_slice(name.as_bytes()),
        Bytes::new(),
        snap,
        hash.reverse_bits(),
    )
}

fn version(n: u64) -> Eversion {
    Eversion { epoch: Epoch(3), version: n }
}

#[test]
fn clones_and_their_head_are_on_one_side_of_the_cursor() {
    let mut pg = filling(PgConf { backfill_scan: 2, ..PgConf::default() });
    let (clone, head) = (hashed("a", 1, SnapId(4)), hashed("a", 1, SnapId::NOSNAP));
    let (old, next, far) =
        (hashed("b", 2, SnapId(2)), hashed("c", 3, SnapId::NOSNAP), hashed("d", 9, SnapId::NOSNAP));
    let actions = from(&mut pg, 2, PeerMsg::Reserved);
    let own = Listing {
        upto: Backfill::after(&next),
        objects: [
            (clone.clone(), version(1)),
            (head.clone(), version(2)),
            (next.clone(), version(3)),
        ]
        .into(),
        ..Listing::default()
    };
    // The target has the clone, another version of the head, and something that is gone.
    let theirs = Listing {
        upto: Backfill::Complete,
        objects: [
            (clone.clone(), version(1)),
            (head.clone(), version(7)),
            (old.clone(), version(5)),
            (far.clone(), version(9)),
        ]
        .into(),
        ..Listing::default()
    };
    let (upto, missing, remove) = list(&mut pg, actions, own, theirs);
    assert_eq!(upto, Backfill::after(&next));
    assert_eq!(missing, [(head.clone(), version(2)), (next.clone(), version(3))]);
    assert_eq!(remove, std::slice::from_ref(&old));
    assert_eq!(pg.state().to_string(), "active+undersized+degraded+remapped+backfilling");

    // The head is missing on the target: writers wait for it. One that looked before makes both
    // sides learn.
    assert_eq!(pg.object_status(&head), ObjectStatus::Degraded);
    assert_eq!(pg.object_status(&far), ObjectStatus::Ready);
    let new_clone = hashed("a", 1, SnapId(6));
    let entries = smallvec![
        change(LogOp::Clone, new_clone.clone(), Eversion::default()),
        change(LogOp::Modify, head.clone(), version(2))
    ];
    let v = pg.propose(Proposal { entries, ..proposal(8, "") }).unwrap();
    let msgs = sent(drain(&mut pg), 2);
    assert!(
        matches!(&msgs[..], [PeerMsg::RepOp(op)] if op.log_only && op.payload == Payload::default()),
        "{msgs:?}"
    );
    let missing = pg.peers[&on(2)].missing.as_ref().unwrap();
    assert_eq!(missing.get(&head).map(|i| i.need), Some(v));
    assert!(missing.contains(&new_clone) && !missing.contains(&clone));

    // Behind the cursor there is nothing to apply; before it, there is.
    let behind = Proposal {
        entries: smallvec![change(LogOp::Modify, far.clone(), version(9))],
        ..proposal(9, "")
    };
    pg.propose(behind).unwrap();
    let msgs = sent(drain(&mut pg), 2);
    assert!(matches!(&msgs[..], [PeerMsg::RepOp(op)] if op.log_only), "{msgs:?}");
    assert!(!pg.peers[&on(2)].missing.as_ref().unwrap().contains(&far));
    let between = Proposal {
        entries: smallvec![change(
            LogOp::Modify,
            hashed("b", 2, SnapId::NOSNAP),
            Eversion::default()
        )],
        ..proposal(10, "")
    };
    pg.propose(between).unwrap();
    let msgs = sent(drain(&mut pg), 2);
    assert!(
        matches!(&msgs[..], [PeerMsg::RepOp(op)] if !op.log_only && op.payload.ops == b"ops"[..]),
        "{msgs:?}"
    );
}

#[test]
fn the_acting_set_is_asked_for_when_nothing_is_missing() {
    let mut pg = filling(PgConf::default());
    let actions = from(&mut pg, 2, PeerMsg::Reserved);
    let (kept, new) = (hashed("a", 1, SnapId::NOSNAP), hashed("b", 2, SnapId::NOSNAP));
    // An object is written while the listings are made: whatever they say, it is in its new
    // version.
    let v = pg
        .propose(Proposal {
            entries: smallvec![change(LogOp::Modify, new.clone(), version(2))],
            ..proposal(1, "")
        })
        .unwrap();
    drain(&mut pg);
    let listing = |v| Listing {
        upto: Backfill::Complete,
        objects: [(kept.clone(), version(1)), (new.clone(), v)].into(),
        ..Listing::default()
    };
    let (upto, missing, remove) = list(&mut pg, actions, listing(version(2)), listing(version(2)));
    assert_eq!((upto, missing, remove), (Backfill::Complete, vec![(new.clone(), v)], vec![]));
    assert!(drain(&mut pg).is_empty());
    // A grant, a read, a push, its answer; only then.
    from(&mut pg, 2, PeerMsg::BackfillAdvanced { upto: Backfill::Complete });
    pg.handle(Event::StartRecovery { max_objects: 1 }, Utime::default());
    let Some(Action::ReadObject { token, .. }) = pg.poll_action() else {
        panic!("the object is read")
    };
    let chunk = ObjectChunk { oid: new.clone(), version: v, last: true, ..ObjectChunk::default() };
    pg.handle(Event::ObjectRead { token, chunk: Some(chunk) }, Utime::default());
    assert!(matches!(&sent(drain(&mut pg), 2)[..], [PeerMsg::Push(_)]));
    let actions = from(
        &mut pg,
        2,
        PeerMsg::PushReply { oid: new, version: v, to: crate::Progress::default() },
    );
    assert!(
        actions.iter().any(|a| matches!(a, Action::WantPgTemp(temp) if temp.is_empty())),
        "{actions:?}"
    );
    assert!(actions.iter().any(|a| matches!(a, Action::Release)), "{actions:?}");
}

#[test]
fn a_target_without_room_makes_the_primary_wait() {
    let mut pg = filling(PgConf::default());
    let actions = from(&mut pg, 2, PeerMsg::BackfillTooFull);
    assert!(
        matches!(actions[..], [Action::Release]),
        "others may be filled meanwhile: {actions:?}"
    );
    assert_eq!(pg.state().to_string(), "active+undersized+degraded+remapped+backfill_toofull");
    // There is room: no PG holds a reservation there while it waits for one here.
    let actions = from(&mut pg, 2, PeerMsg::Reserved);
    assert!(
        matches!(
            &actions[..],
            [
                Action::Send { msg: PeerMsg::Release, .. },
                Action::Reserve { side: Side::Lead, backfill: true, .. }
            ]
        ),
        "{actions:?}"
    );
    pg.handle(Event::Reserved { side: Side::Lead }, Utime::default());
    assert!(matches!(&sent(drain(&mut pg), 2)[..], [PeerMsg::Reserve { backfill: true, .. }]));
    let actions = from(&mut pg, 2, PeerMsg::Reserved);
    assert!(actions.iter().any(|a| matches!(a, Action::ListObjects { .. })), "{actions:?}");
}

#[test]
fn a_copy_that_is_filled_goes_on_following_when_its_turn_is_taken_back() {
    let mut pg = filling(PgConf::default());
    from(&mut pg, 2, PeerMsg::Reserved);
    assert!(pg.state().has(PgState::BACKFILLING), "{}", pg.state());
    pg.handle(Event::Preempted { side: Side::Lead }, Utime::default());
    let actions = drain(&mut pg);
    assert!(
        matches!(
            &actions[..],
            [
                Action::Send { msg: PeerMsg::Release, .. },
                Action::Release,
                Action::Reserve { side: Side::Lead, backfill: true, .. }
            ]
        ),
        "{actions:?}"
    );
    assert!(pg.state().has(PgState::BACKFILL_WAIT), "{}", pg.state());
    assert_eq!(pg.followers().collect::<Vec<_>>(), [on(2)]);
    // A listing that comes meanwhile is kept.
    pg.handle(Event::Reserved { side: Side::Lead }, Utime::default());
    assert!(matches!(&sent(drain(&mut pg), 2)[..], [PeerMsg::Reserve { backfill: true, .. }]));
    from(&mut pg, 2, PeerMsg::Reserved);
    assert!(pg.state().has(PgState::BACKFILLING), "{}", pg.state());
    // And by the target's OSD.
    let actions = from(&mut pg, 2, PeerMsg::Revoked);
    assert!(
        matches!(actions.last(), Some(Action::Reserve { side: Side::Lead, backfill: true, .. })),
        "{actions:?}"
    );
    assert!(pg.state().has(PgState::BACKFILL_WAIT), "{}", pg.state());
}

fn advances(actions: Vec<Action>) -> Vec<(OsdId, Backfill, Vec<ObjectId>, Vec<ObjectId>)> {
    let sent = actions.into_iter().filter_map(|a| match a {
        Action::Send { to, msg: PeerMsg::AdvanceBackfill { upto, missing, remove }, .. } => {
            Some((to[0].osd, upto, missing.into_iter().map(|(o, _)| o).collect(), remove))
        }
        _ => None,
    });
    sent.collect()
}

fn own_listing(actions: &[Action]) -> Option<(ReadToken, Backfill)> {
    actions.iter().find_map(|a| {
        if let Action::ListObjects { token, after, .. } = a {
            Some((*token, after.clone()))
        } else {
            None
        }
    })
}

fn plain(name: &str, hash: u32) -> ObjectId {
    hashed(name, hash, SnapId::NOSNAP)
}

/// What `objects` are, all in their first version, up to a cursor.
fn listing(upto: Backfill, objects: &[&ObjectId]) -> Listing {
    let objects = objects.iter().map(|o| ((*o).clone(), version(1))).collect();
    Listing { upto, objects, ..Listing::default() }
}

#[test]
fn what_several_copies_lack_is_listed_and_read_once() {
    let mut pg = following(2, 4, PgConf::default());
    let actions = from(&mut pg, 2, PeerMsg::Reserved);
    let (token, after) = own_listing(&actions).unwrap();
    assert_eq!(after, Backfill::Nothing);
    let actions = from(&mut pg, 3, PeerMsg::Reserved);
    assert!(own_listing(&actions).is_none(), "it is being listed: {actions:?}");
    assert!(matches!(
        &sent(actions, 3)[..],
        [PeerMsg::ListObjects { after: Backfill::Nothing, .. }]
    ));
    let (a, b, c) = (plain("a", 1), plain("b", 2), plain("c", 3));
    pg.handle(
        Event::Listed { token, listing: listing(Backfill::Complete, &[&a, &b]) },
        Utime::default(),
    );
    from(
        &mut pg,
        2,
        PeerMsg::Objects { after: Backfill::Nothing, listing: listing(Backfill::Complete, &[&a]) },
    );
    let there = listing(Backfill::Complete, &[&c]);
    let actions = from(&mut pg, 3, PeerMsg::Objects { after: Backfill::Nothing, listing: there });
    let end = Backfill::Complete;
    assert_eq!(
        advances(actions),
        [
            (OsdId(2), end.clone(), vec![b.clone()], vec![]),
            (OsdId(3), end.clone(), vec![a.clone(), b.clone()], vec![c]),
        ]
    );
    // A write of what one of them lacks: that one gets the entry, the other one the data.
    let v = pg
        .propose(Proposal {
            entries: smallvec![change(LogOp::Modify, a.clone(), version(1))],
            ..proposal(1, "")
        })
        .unwrap();
    let actions = drain(&mut pg);
    let log_only =
        |osd| matches!(&sent(actions_of(&actions), osd)[..], [PeerMsg::RepOp(op)] if op.log_only);
    assert_eq!([1, 2, 3].map(log_only), [false, false, true], "{actions:?}");
    // It is answered when all followers have it.
    commit_all(&mut pg);
    for osd in [1, 2] {
        assert!(from(&mut pg, osd, PeerMsg::RepOpReply { version: v }).is_empty());
    }
    assert!(matches!(
        from(&mut pg, 3, PeerMsg::RepOpReply { version: v })[..],
        [Action::Reply { .. }]
    ));
    for osd in [2, 3] {
        from(&mut pg, osd, PeerMsg::BackfillAdvanced { upto: end.clone() });
    }
    // What both lack is read once.
    let push = |pg: &mut Pg, oid: &ObjectId, version, to: &[i32]| {
        pg.handle(Event::StartRecovery { max_objects: 1 }, Utime::default());
        let Some(Action::ReadObject { token, oid: read, .. }) = pg.poll_action() else {
            panic!("the object is read")
        };
        assert_eq!(read, *oid);
        let chunk = ObjectChunk { oid: oid.clone(), version, last: true, ..ObjectChunk::default() };
        pg.handle(Event::ObjectRead { token, chunk: Some(chunk) }, Utime::default());
        let all: Vec<PgShard> = to.iter().map(|o| on(*o)).collect();
        let actions = drain(pg);
        assert!(
            actions.iter().any(
                |a| matches!(a, Action::Send { to, msg: PeerMsg::Push(_), .. } if to[..] == all[..])
            ),
            "{actions:?}"
        );
        let mut last = Vec::new();
        for osd in to {
            last = from(
                pg,
                *osd,
                PeerMsg::PushReply { oid: oid.clone(), version, to: crate::Progress::default() },
            );
        }
        last
    };
    push(&mut pg, &b, version(1), &[2, 3]);
    let actions = push(&mut pg, &a, v, &[3]);
    // Both are there: one acting set is asked for.
    assert!(
        matches!(&actions[actions.len() - 2..], [Action::Release, Action::WantPgTemp(temp)] if temp.is_empty()),
        "{actions:?}"
    );
}

fn actions_of(actions: &[Action]) -> Vec<Action> {
    let sends = actions.iter().filter_map(|a| match a {
        Action::Send { to, header, msg } => {
            Some(Action::Send { to: to.clone(), header: *header, msg: msg.clone() })
        }
        _ => None,
    });
    sends.collect()
}

#[test]
fn who_comes_late_catches_up_and_then_all_go_on_together() {
    let mut pg = following(2, 4, PgConf::default());
    // One has no room: the other one is filled.
    assert!(from(&mut pg, 3, PeerMsg::BackfillTooFull).is_empty());
    let actions = from(&mut pg, 2, PeerMsg::Reserved);
    assert_eq!(
        pg.state().to_string(),
        "active+undersized+degraded+remapped+backfilling+backfill_toofull"
    );
    let (token, _) = own_listing(&actions).unwrap();
    let (a, b, c) = (plain("a", 1), plain("b", 2), plain("c", 3));
    let first = Backfill::after(&b);
    from(
        &mut pg,
        2,
        PeerMsg::Objects {
            after: Backfill::Nothing,
            listing: listing(Backfill::Complete, &[&a, &b, &c]),
        },
    );
    pg.handle(
        Event::Listed { token, listing: listing(first.clone(), &[&a, &b]) },
        Utime::default(),
    );
    assert_eq!(advances(drain(&mut pg)), [(OsdId(2), first.clone(), vec![], vec![])]);
    // There is room: what is before the cursor of the first is listed once more, and no further
    // than that compared.
    from(&mut pg, 3, PeerMsg::Reserved);
    let actions = from(&mut pg, 2, PeerMsg::BackfillAdvanced { upto: first.clone() });
    assert!(own_listing(&actions).is_none(), "the laggard goes first: {actions:?}");
    let token = *pg.backfill.listings.keys().last().unwrap();
    let written = pg
        .propose(Proposal {
            entries: smallvec![change(LogOp::Modify, c.clone(), version(1))],
            ..proposal(1, "")
        })
        .unwrap();
    from(
        &mut pg,
        3,
        PeerMsg::Objects { after: Backfill::Nothing, listing: listing(Backfill::Complete, &[&a]) },
    );
    pg.handle(
        Event::Listed {
            token: ReadToken(token),
            listing: listing(Backfill::Complete, &[&a, &b, &c]),
        },
        Utime::default(),
    );
    assert_eq!(advances(drain(&mut pg)), [(OsdId(3), first.clone(), vec![b.clone()], vec![])]);
    let actions = from(&mut pg, 3, PeerMsg::BackfillAdvanced { upto: first.clone() });
    let c_lacks = vec![c.clone()];
    assert_eq!(
        advances(actions),
        [
            (OsdId(2), Backfill::Complete, c_lacks.clone(), vec![]),
            (OsdId(3), Backfill::Complete, c_lacks, vec![]),
        ]
    );
    let needs = |osd: i32| pg.peers[&on(osd)].missing.as_ref().unwrap().get(&c).unwrap().need;
    assert_eq!([needs(2), needs(3)], [written; 2], "the listing is kept true");
}

#[test]
fn as_long_as_clients_wait_for_copies_the_furthest_goes_first() {
    let mut pg = following(1, 3, PgConf::default());
    assert!(!pg.is_active(), "one of two is too few");
    // Of an earlier interval: as far as a cursor, and nothing.
    let (a, b) = (plain("a", 1), plain("b", 2));
    pg.peers.get_mut(&on(2)).unwrap().info.last_backfill = Backfill::after(&a);
    let actions = from(&mut pg, 1, PeerMsg::Reserved);
    let (token, _) = own_listing(&actions).unwrap();
    let after = Backfill::after(&a);
    let actions = from(&mut pg, 2, PeerMsg::Reserved);
    assert!(
        matches!(&sent(actions, 2)[..], [PeerMsg::ListObjects { after: cursor, .. }] if *cursor == after)
    );
    from(&mut pg, 2, PeerMsg::Objects { after, listing: listing(Backfill::Complete, &[&b]) });
    pg.handle(
        Event::Listed { token, listing: listing(Backfill::Complete, &[&a, &b]) },
        Utime::default(),
    );
    assert_eq!(advances(drain(&mut pg)), [(OsdId(2), Backfill::Complete, vec![], vec![])]);
    let actions = from(&mut pg, 2, PeerMsg::BackfillAdvanced { upto: Backfill::Complete });
    assert!(
        actions
            .iter()
            .any(|a| matches!(a, Action::WantPgTemp(want) if want[..] == [OsdId(0), OsdId(2)])),
        "{actions:?}"
    );
    assert_eq!(
        pg.backfills().map(|b| b.running).collect::<Vec<_>>(),
        [true; 2],
        "the other one goes on"
    );
}

#[test]
fn a_target_whose_turn_is_taken_back_asks_again_while_others_go_on() {
    let mut pg = following(2, 4, PgConf::default());
    from(&mut pg, 2, PeerMsg::Reserved);
    from(&mut pg, 3, PeerMsg::Reserved);
    let actions = from(&mut pg, 3, PeerMsg::Revoked);
    assert!(
        matches!(&actions[..], [Action::Send { msg: PeerMsg::Reserve { backfill: true, .. }, to, .. }] if to[..] == [on(3)]),
        "{actions:?}"
    );
    let actions = from(&mut pg, 2, PeerMsg::Revoked);
    assert!(
        actions.iter().any(|a| matches!(a, Action::Release)),
        "nobody is filled: others may be: {actions:?}"
    );
    assert!(pg.state().has(PgState::BACKFILL_WAIT), "{}", pg.state());
}

#[test]
fn copies_of_targets_count() {
    let mut pg = following(1, 3, PgConf::default());
    pg.info.stats.num_objects = 10;
    assert_eq!((pg.status().degraded, pg.status().misplaced), (20, 0));
    pg.peers.get_mut(&on(1)).unwrap().info.last_backfill = Backfill::Complete;
    assert_eq!(pg.status().degraded, 10);
    pg.peers.get_mut(&on(2)).unwrap().info.last_backfill = Backfill::after(&plain("a", 1 << 31));
    assert_eq!(pg.status().degraded, 5);
}
