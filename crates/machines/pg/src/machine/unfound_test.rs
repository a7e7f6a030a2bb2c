//! Scripts of objects that no copy has.

use std::rc::Rc;

use bytes::Bytes;
use denc::{Decode, Encode, Features};
use types::ObjectInfo;

use super::machine_test::{Map, PGID, commit_all, drain, from, oid, on, osds, proposal, reserve};
use super::*;
use crate::PgState;
use crate::action::Source;
use crate::log_entry::LogOp;
use crate::msg::{LogSegment, ObjectChunk, Query};

fn now() -> Utime {
    Utime::default()
}

/// osd.0 learned from osd.1, before that was gone, that `a` and `b` have version 2 and 3. It has an
/// older `a`.
fn lonely(norecover: bool) -> Pg {
    let map = |epoch, acting, norecover| {
        let dead = Some((OsdId(1), 6)).filter(|_| epoch == 6);
        Rc::new(Map { epoch, acting, up_thru: epoch, size: 2, dead, norecover, ..Map::default() })
    };
    let mut pg =
        Pg::create(OsdId(0), PGID.into(), map(5, osds(2), false), PgConf::default(), now())
            .unwrap();
    pg.handle(Event::ActivateMap, now());
    drain(&mut pg);
    let info = PgInfo { pgid: PGID, history: pg.info.history, ..PgInfo::default() };
    from(
        &mut pg,
        1,
        PeerMsg::Notify { info, past: PastIntervals::default(), promises: Vec::new() },
    );
    from(&mut pg, 1, PeerMsg::LeaseAck { round: 1 });
    from(&mut pg, 1, PeerMsg::Activated);
    commit_all(&mut pg);
    let old = pg.propose(proposal(1, "a")).unwrap();
    from(&mut pg, 1, PeerMsg::RepOpReply { version: old });
    commit_all(&mut pg);
    // As if writes had come from a primary that is gone.
    let mut lacking = Vec::new();
    for (name, have) in [("a", old), ("b", Eversion::default())] {
        let v = pg.propose(proposal(pg.info.last_update.version + 1, name)).unwrap();
        from(&mut pg, 1, PeerMsg::RepOpReply { version: v });
        commit_all(&mut pg);
        lacking.push((oid(name), crate::missing::MissingItem { need: v, have }));
    }
    for (oid, item) in lacking {
        pg.missing.set(oid, item);
    }
    pg.update_last_complete();
    // The other one is gone: what it was not asked for is with it.
    pg.handle(Event::AdvanceMap(map(6, osds(1), norecover)), now());
    pg.handle(Event::ActivateMap, now());
    commit_all(&mut pg);
    assert!(pg.is_peered_alone(), "{}", pg.phase_name());
    pg
}

impl Pg {
    fn is_peered_alone(&self) -> bool {
        self.phase == Phase::Active && self.mapping.acting[..] == [on(0)]
    }
}

fn lost_map(pg: &Pg) -> MapRef {
    Rc::new(Map {
        epoch: pg.epoch().0 + 1,
        acting: osds(1),
        up_thru: 6,
        size: 2,
        lost: Some((OsdId(1), pg.epoch().0 + 1)),
        ..Map::default()
    })
}

#[test]
fn what_is_unfound_is_told_and_not_given_up_before_all_are_asked() {
    let mut pg = lonely(false);
    assert_eq!(pg.object_status(&oid("a")), ObjectStatus::Unfound);
    assert_eq!(pg.status().unfound, 2);
    assert!(pg.state().has(PgState::RECOVERY_UNFOUND), "{}", pg.state());
    assert_eq!(pg.unfound_holders(), [Holder { shard: on(1), status: "osd is down" }]);
    assert!(pg.lacking().values().all(|l| l.unfound && l.locations.is_empty()));
    assert_eq!(pg.mark_unfound_lost(OpToken(9), GiveUp::Revert), Err(LostRefused::NotAllAsked(2)));
    // A client that waits is not told that it is ready.
    pg.handle(Event::RecoverNow(oid("a")), now());
    assert!(drain(&mut pg).is_empty());
    // What is known of the past survives a restart.
    let bytes = pg.past.to_bytes(Features::ALL);
    assert!(PastIntervals::from_bytes(&bytes).unwrap().holders.contains_key(&on(1)));
}

#[test]
fn the_version_before_counts_again_and_what_has_none_is_deleted() {
    let mut pg = lonely(false);
    pg.handle(Event::AdvanceMap(lost_map(&pg)), now());
    pg.handle(Event::ActivateMap, now());
    drain(&mut pg);
    let older = pg.missing.get(&oid("a")).unwrap().have;
    assert_eq!(pg.mark_unfound_lost(OpToken(9), GiveUp::Revert), Ok(2));
    let ops: Vec<_> = pg
        .log()
        .iter()
        .rev()
        .take(2)
        .map(|e| (e.entry.op, e.entry.oid.clone(), e.entry.reverting_to))
        .collect();
    assert_eq!(
        ops,
        [(LogOp::LostDelete, oid("b"), None), (LogOp::LostRevert, oid("a"), Some(older))]
    );
    assert!(pg.info().stats_invalid);
    let actions = drain(&mut pg);
    assert!(
        actions.iter().any(|a| matches!(a, Action::Persist(p) if p.remove_objects == [oid("b")])),
        "{actions:?}"
    );
    assert_eq!(pg.object_status(&oid("b")), ObjectStatus::Missing, "until it is durable");
    pg.handle(Event::RecoverNow(oid("b")), now());
    assert!(drain(&mut pg).is_empty());
    // Recovery of what is reverted reads its attributes, and sets them.
    reserve(&mut pg);
    pg.handle(Event::StartRecovery { max_objects: 1 }, now());
    let actions = drain(&mut pg);
    let read = actions.iter().find_map(|a| {
        if let Action::ReadObject { token, version, max_bytes: 0, .. } = a {
            Some((*token, *version))
        } else {
            None
        }
    });
    let (token, version) = read.expect("the object is here");
    assert_eq!(version, older);
    let info = ObjectInfo { version: older, size: 5, ..ObjectInfo::default() };
    let attrs = vec![
        (Bytes::from_static(b"_"), info.to_bytes(Features::ALL)),
        (Bytes::from_static(b"_x"), Bytes::from_static(b"y")),
    ];
    pg.handle(
        Event::ObjectRead {
            token,
            chunk: Some(ObjectChunk { oid: oid("a"), version, attrs, ..ObjectChunk::default() }),
        },
        now(),
    );
    let actions = drain(&mut pg);
    let set = actions.iter().find_map(|a| {
        if let Action::Persist(p) = a {
            if let Source::Attrs(o, attrs) = &p.source { Some((o, attrs)) } else { None }
        } else {
            None
        }
    });
    let (o, attrs) = set.expect("it gets its new version");
    assert_eq!((o, attrs.len()), (&oid("a"), 2));
    let now_is = ObjectInfo::from_bytes(&attrs[0].1).unwrap();
    assert_eq!((now_is.version, now_is.size), (Eversion { epoch: pg.epoch(), version: 4 }, 5));
    let actions = commit_all(&mut pg);
    for name in ["a", "b"] {
        assert!(
            actions.iter().any(|a| matches!(a, Action::ObjectReady(o) if *o == oid(name))),
            "{name}: {actions:?}"
        );
    }
    assert!(
        actions.iter().any(|a| matches!(a, Action::Reply { token: OpToken(9), .. })),
        "{actions:?}"
    );
    assert!(pg.missing().is_empty());
    assert_eq!(pg.mark_unfound_lost(OpToken(10), GiveUp::Delete), Err(LostRefused::NothingUnfound));
}

#[test]
fn without_recovery_only_what_clients_wait_for_is_recovered() {
    let mut pg = lonely(true);
    // A stray comes that has both.
    let info = PgInfo {
        history: pg.info.history,
        last_update: pg.info.last_update,
        last_complete: pg.info.last_update,
        ..pg.info.clone()
    };
    let map = Map {
        epoch: 7,
        acting: osds(1),
        up: vec![],
        others: vec![OsdId(1)],
        up_thru: 7,
        size: 2,
        norecover: true,
        ..Map::default()
    };
    pg.handle(Event::RecoverNow(oid("b")), now());
    pg.handle(Event::AdvanceMap(Rc::new(map)), now());
    pg.handle(Event::ActivateMap, now());
    drain(&mut pg);
    let actions = from(
        &mut pg,
        1,
        PeerMsg::Notify {
            info: info.clone(),
            past: PastIntervals::default(),
            promises: Vec::new(),
        },
    );
    assert!(
        actions.iter().any(|a| matches!(
            a,
            Action::Send { msg: PeerMsg::Query { query: Query::Log(_), .. }, .. }
        )),
        "{actions:?}"
    );
    assert_eq!(pg.unfound_holders(), [Holder { shard: on(1), status: "querying" }]);
    let log = LogSegment { tail: pg.log.tail(), entries: pg.log.iter().cloned().collect() };
    let actions = from(
        &mut pg,
        1,
        PeerMsg::Log { info, log, missing: MissingSet::default(), undo: Vec::new() },
    );
    assert_eq!(pg.status().unfound, 0);
    assert_eq!(pg.lacking()[&oid("a")].locations, [on(1)]);
    assert!(
        actions.iter().any(|a| matches!(a, Action::QueueRecovery)),
        "for what a client waits for: {actions:?}"
    );
    pg.handle(Event::StartRecovery { max_objects: 5 }, now());
    let actions = drain(&mut pg);
    let pulled: Vec<_> = actions
        .iter()
        .filter_map(|a| {
            if let Action::Send { msg: PeerMsg::Pull { oid, .. }, .. } = a {
                Some(oid.clone())
            } else {
                None
            }
        })
        .collect();
    assert_eq!(pulled, [oid("b")]);
    assert!(!actions.iter().any(|a| matches!(a, Action::QueueRecovery)), "{actions:?}");
    // The flag goes: so does the rest.
    let map = Map {
        epoch: 8,
        acting: osds(1),
        others: vec![OsdId(1)],
        up_thru: 7,
        size: 2,
        ..Map::default()
    };
    pg.handle(Event::AdvanceMap(Rc::new(map)), now());
    pg.handle(Event::ActivateMap, now());
    drain(&mut pg);
    assert!(reserve(&mut pg).iter().any(|a| matches!(a, Action::QueueRecovery)));
}
