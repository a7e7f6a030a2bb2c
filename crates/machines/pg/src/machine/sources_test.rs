//! Scripts of reservations of what is read, where copies are shards.

use std::rc::Rc;

use ec::{Layout, Technique};
use types::ShardId;

use super::machine_test::{Map, PGID, commit_all, drain, oid, osds};
use super::*;
use crate::PgState;
use crate::backend::{Erasure, PoolKind};
use crate::info::Backfill;
use crate::msg::Listing;
use crate::past_intervals::PastIntervals;

pub(super) fn at(osd: i32, position: i8) -> PgShard {
    PgShard { osd: OsdId(osd), shard: ShardId(position) }
}

fn now() -> Utime {
    Utime::default()
}

pub(super) fn from(pg: &mut Pg, copy: PgShard, msg: PeerMsg) -> Vec<Action> {
    let header = PeerHeader { from: copy.shard, to: pg.me.shard, ..pg.header(copy.shard) };
    pg.handle(Event::Peer { from: copy.osd, header, msg }, now());
    drain(pg)
}

/// What goes to a copy.
pub(super) fn to(actions: &[Action], copy: PgShard) -> Vec<&PeerMsg> {
    let is = |a: &Action| match a {
        Action::Send { to, .. } => to[..] == [copy],
        _ => false,
    };
    let sent = actions.iter().filter(|a| is(a));
    sent.filter_map(|a| if let Action::Send { msg, .. } = a { Some(msg) } else { None }).collect()
}

pub(super) fn map(acting: Vec<OsdId>, up: Vec<OsdId>) -> Map {
    let layout = Layout::new(2, 1, 4096).unwrap();
    let kind = PoolKind::Erasure(Erasure { layout, technique: Technique::JerasureReedSolVan });
    Map { epoch: 6, acting, up, up_thru: 6, size: 3, kind, ..Map::default() }
}

/// A PG of 2+1 that this OSD leads; position 2 moves to osd.3. At the point where the backfill
/// has the reservation on this OSD. With what it does then.
fn moving(acting: Vec<OsdId>, up: Vec<OsdId>) -> (Pg, Vec<Action>) {
    moving_in(map(acting, up))
}

/// The same with the map as it is: each copy of `up` that does not act is new and empty.
fn moving_in(after: Map) -> (Pg, Vec<Action>) {
    let before = Map { epoch: 5, up_thru: 5, up: Vec::new(), ..after.clone() };
    let spgid = types::SpgId { pgid: PGID, shard: ShardId(0) };
    let mut pg = Pg::create(OsdId(0), spgid, Rc::new(before), PgConf::default(), now()).unwrap();
    let tail = Eversion { epoch: Epoch(4), version: 100 };
    pg.log = PgLog::new(tail, tail, Vec::new(), Vec::new()).unwrap();
    (pg.info.last_update, pg.info.last_complete, pg.info.log_tail) = (tail, tail, tail);
    pg.handle(Event::AdvanceMap(Rc::new(after.clone())), now());
    pg.handle(Event::ActivateMap, now());
    drain(&mut pg);
    let copies = |of: &[OsdId]| -> Vec<PgShard> {
        let there = of.iter().enumerate().skip(1).filter(|(_, o)| **o != OsdId::NONE);
        there.map(|(i, o)| at(o.0, i as i8)).collect()
    };
    let others = copies(&after.acting);
    let new: Vec<PgShard> = copies(&after.up).into_iter().filter(|c| !others.contains(c)).collect();
    for copy in others.iter().chain(&new).copied() {
        let empty = PgInfo { pgid: PGID, history: pg.info.history, ..PgInfo::default() };
        let info = if new.contains(&copy) { empty } else { pg.info.clone() };
        let info = PgInfo { shard: copy.shard, ..info };
        from(
            &mut pg,
            copy,
            PeerMsg::Notify { info, past: PastIntervals::default(), promises: Vec::new() },
        );
    }
    for copy in others {
        from(&mut pg, copy, PeerMsg::LeaseAck { round: 1 });
        from(&mut pg, copy, PeerMsg::Activated);
    }
    let actions = commit_all(&mut pg);
    assert!(
        actions
            .iter()
            .any(|a| matches!(a, Action::Reserve { side: Side::Lead, backfill: true, .. })),
        "{} {actions:?}",
        pg.state()
    );
    pg.handle(Event::Reserved { side: Side::Lead }, now());
    let actions = drain(&mut pg);
    (pg, actions)
}

fn round(actions: &[Action], copy: PgShard) -> u32 {
    match to(actions, copy)[..] {
        [PeerMsg::ReserveSource { round, .. }] => *round,
        ref other => panic!("{copy}: {other:?}"),
    }
}

#[test]
fn the_old_holder_of_a_shard_is_asked_before_its_new_one() {
    let (mut pg, actions) = moving(osds(3), vec![OsdId(0), OsdId(1), OsdId(3)]);
    let (old, new) = (at(2, 2), at(3, 2));
    let first = round(&actions, old);
    assert!(to(&actions, at(1, 1)).is_empty() && to(&actions, new).is_empty(), "{actions:?}");
    assert!(!pg.may_recover() && !pg.may_read_from(old));
    // An answer to another question counts for nothing.
    assert!(from(&mut pg, old, PeerMsg::SourceReserved { round: first + 1 }).is_empty());
    let actions = from(&mut pg, old, PeerMsg::SourceReserved { round: first });
    assert!(matches!(to(&actions, new)[..], [PeerMsg::StartBackfill { .. }]), "{actions:?}");
    assert!(pg.may_read_from(old) && !pg.may_read_from(at(1, 1)));
    let actions = from(&mut pg, new, PeerMsg::Activated);
    assert!(matches!(to(&actions, new)[..], [PeerMsg::Reserve { backfill: true, .. }]));
    from(&mut pg, new, PeerMsg::Reserved);
    assert!(pg.state().has(PgState::BACKFILLING), "{}", pg.state());

    // It is taken back: so are all, and they are asked for in their order.
    let actions = from(&mut pg, old, PeerMsg::SourceRevoked { round: first });
    assert!(matches!(to(&actions, old)[..], [PeerMsg::Release]), "{actions:?}");
    assert!(matches!(to(&actions, new)[..], [PeerMsg::Release]), "{actions:?}");
    assert!(pg.state().has(PgState::BACKFILL_WAIT) && !pg.may_read_from(old));
    pg.handle(Event::Reserved { side: Side::Lead }, now());
    let second = round(&drain(&mut pg), old);
    assert!(second > first);
    // Those of before are on their way yet.
    assert!(from(&mut pg, old, PeerMsg::SourceReserved { round: first }).is_empty());
    assert!(from(&mut pg, old, PeerMsg::SourceRevoked { round: first }).is_empty());
    let actions = from(&mut pg, old, PeerMsg::SourceReserved { round: second });
    assert!(matches!(to(&actions, new)[..], [PeerMsg::Reserve { backfill: true, .. }]));
}

#[test]
fn a_shard_that_is_computed_needs_all_that_act() {
    let (mut pg, actions) =
        moving(vec![OsdId(0), OsdId(1), OsdId::NONE], vec![OsdId(0), OsdId(1), OsdId(3)]);
    let asked = round(&actions, at(1, 1));
    let actions = from(&mut pg, at(1, 1), PeerMsg::SourceReserved { round: asked });
    assert!(matches!(to(&actions, at(3, 2))[..], [PeerMsg::StartBackfill { .. }]), "{actions:?}");
}

/// An object that the old holder cannot give is made of the others, and these are asked first.
#[test]
fn an_object_that_needs_more_asks_for_more() {
    let (mut pg, actions) = moving(osds(3), vec![OsdId(0), OsdId(1), OsdId(3)]);
    let (old, new) = (at(2, 2), at(3, 2));
    let asked = round(&actions, old);
    from(&mut pg, old, PeerMsg::SourceReserved { round: asked });
    from(&mut pg, new, PeerMsg::Activated);
    let actions = from(&mut pg, new, PeerMsg::Reserved);
    let token = actions.iter().find_map(|a| match a {
        Action::ListObjects { token, .. } => Some(*token),
        _ => None,
    });
    let version = Eversion { epoch: Epoch(4), version: 7 };
    let listing = Listing {
        upto: Backfill::Complete,
        objects: [(oid("a"), version)].into(),
        ..Listing::default()
    };
    from(
        &mut pg,
        new,
        PeerMsg::Objects {
            after: Backfill::Nothing,
            listing: Listing { upto: Backfill::Complete, ..Listing::default() },
        },
    );
    pg.handle(Event::Listed { token: token.unwrap(), listing }, now());
    drain(&mut pg);
    from(&mut pg, new, PeerMsg::BackfillAdvanced { upto: Backfill::Complete });
    pg.handle(Event::StartRecovery { max_objects: 1 }, now());
    let actions = drain(&mut pg);
    let read = actions.iter().find_map(|a| match a {
        Action::Rebuild { token, sources, .. } => Some((*token, sources.clone())),
        _ => None,
    });
    let (token, sources) = read.unwrap_or_else(|| panic!("{actions:?}"));
    assert_eq!(sources, [at(0, 0), old], "osd.1 gave no reservation");
    pg.handle(Event::RebuildFailed { token, bad: vec![old] }, now());
    let actions = drain(&mut pg);
    assert!(!actions.iter().any(|a| matches!(a, Action::Rebuild { .. })), "{actions:?}");
    assert!(actions.iter().any(|a| matches!(a, Action::Release)), "{actions:?}");
    pg.handle(Event::Reserved { side: Side::Lead }, now());
    let actions = drain(&mut pg);
    // The old holder acts and lacks the object: that is recovery, which has all acting copies.
    assert!(matches!(to(&actions, at(1, 1))[..], [PeerMsg::Reserve { backfill: false, .. }]));
    from(&mut pg, at(1, 1), PeerMsg::Reserved);
    from(&mut pg, old, PeerMsg::Reserved);
    pg.handle(Event::StartRecovery { max_objects: 1 }, now());
    let read = drain(&mut pg).into_iter().find_map(|a| match a {
        Action::Rebuild { sources, .. } => Some(sources),
        _ => None,
    });
    assert_eq!(read.unwrap(), [at(0, 0), at(1, 1)]);
}

/// A copy that does not act says that it may be read as well.
#[test]
fn a_stray_is_asked_too() {
    let acting = vec![OsdId(1), OsdId(2), OsdId(3)];
    let before =
        Map { epoch: 5, up_thru: 5, ..map(vec![OsdId(1), OsdId(2), OsdId(0)], Vec::new()) };
    let spgid = types::SpgId { pgid: PGID, shard: ShardId(2) };
    let mut pg = Pg::create(OsdId(0), spgid, Rc::new(before), PgConf::default(), now()).unwrap();
    pg.handle(
        Event::AdvanceMap(Rc::new(Map { others: vec![OsdId(0)], ..map(acting, Vec::new()) })),
        now(),
    );
    pg.handle(Event::ActivateMap, now());
    drain(&mut pg);
    let primary = at(1, 0);
    let actions = from(&mut pg, primary, PeerMsg::ReserveSource { priority: 110, round: 4 });
    assert!(
        matches!(actions[..], [Action::Reserve { side: Side::Source, priority: 110, .. }]),
        "{actions:?}"
    );
    pg.handle(Event::Reserved { side: Side::Source }, now());
    assert!(matches!(to(&drain(&mut pg), primary)[..], [PeerMsg::SourceReserved { round: 4 }]));
    pg.handle(Event::Preempted { side: Side::Source }, now());
    assert!(matches!(to(&drain(&mut pg), primary)[..], [PeerMsg::SourceRevoked { round: 4 }]));
    assert!(matches!(from(&mut pg, primary, PeerMsg::Release)[..], [Action::Release]));
}

/// Its second copy would wait for the reservation that the first one has.
#[test]
fn an_osd_that_acts_with_two_copies_is_asked_once() {
    let layout = Layout::new(4, 2, 4096).unwrap();
    let kind = PoolKind::Erasure(Erasure { layout, technique: Technique::JerasureReedSolVan });
    // Four shards are needed, and two of them are on osd.1.
    let acting = [0, 1, 2, 1].map(OsdId).into_iter().chain([OsdId::NONE; 2]).collect();
    let (mut pg, _) = moving_in(Map { kind, size: 6, ..map(acting, osds(6)) });
    pg.release_backfill();
    drain(&mut pg);
    pg.ask_next_replica();
    let asked = |actions: &[Action]| {
        [at(1, 1), at(1, 3), at(2, 2)].map(|copy| match to(actions, copy)[..] {
            [] => false,
            [PeerMsg::Reserve { backfill: false, .. }] => true,
            ref other => panic!("{copy}: {other:?}"),
        })
    };
    assert_eq!(asked(&drain(&mut pg)), [true, false, false]);
    let actions = from(&mut pg, at(1, 1), PeerMsg::Reserved);
    assert_eq!(asked(&actions), [false, false, true]);
}
