//! Copies of objects that replicas lack.

use super::Pg;
use super::machine_test::*;
use super::sources_test::{self, at};
use crate::log_entry::LogOp;
use crate::missing::MissingItem;
use crate::msg::{ObjectChunk, Payload};
use crate::past_intervals::PastIntervals;
use crate::proposal::{NewEntry, Payloads};
use crate::shard_read::{ShardAnswer, ShardQuery};
use crate::{Action, Event, ObjectStatus, PeerMsg, PgConf, PgInfo, Proposal};
use bytes::Bytes;
use ec::ShardSet;
use smallvec::smallvec;
use std::rc::Rc;
use types::{OsdId, ShardId, SpgId, Utime};

/// A copy may wait for the room that the deletion of its object gives.
#[test]
fn a_deletion_goes_ahead_of_the_copy_of_its_object() {
    let mut pg = active(3);
    let version = pg.propose(proposal(1, "a")).unwrap();
    drain(&mut pg);
    for osd in [1, 2] {
        from(&mut pg, osd, PeerMsg::RepOpReply { version });
    }
    commit_all(&mut pg);
    let item = MissingItem { need: version, have: Default::default() };
    pg.clean = false;
    pg.peers.get_mut(&on(2)).unwrap().missing.as_mut().unwrap().set(oid("a"), item);
    pg.handle(Event::RecoverNow(oid("a")), Utime::default());
    let asked = drain(&mut pg);
    assert!(asked.iter().any(|a| matches!(a, Action::ReadObject { .. })), "{asked:?}");
    // The copy waits for room. Other writes wait for it.
    assert_eq!(pg.object_status(&oid("a")), ObjectStatus::Degraded);
    assert!(pg.may_overtake_copy(&oid("a")));
    let entries = smallvec![change(LogOp::Delete, oid("a"), version)];
    pg.propose(Proposal { entries, ..proposal(2, "a") }).unwrap();
    let actions = drain(&mut pg);
    let ready = |a: &Action| matches!(a, Action::ObjectReady(o) if *o == oid("a"));
    assert!(actions.iter().any(ready), "{actions:?}");
    let told: Vec<_> = actions
        .iter()
        .filter_map(|a| match a {
            Action::Send { to, msg: PeerMsg::RepOp(op), .. } => Some((to[0], to.len(), op)),
            _ => None,
        })
        .map(|(to, n, op)| (to, n, op.log_only, op.payload.data.is_empty()))
        .collect();
    assert_eq!(told, [(on(2), 1, true, true), (on(1), 1, false, false)]);
    assert!(pg.all_recovered() && !pg.recovery.is_active(&oid("a")));
}

/// A PG of 2+1 that this OSD leads.
pub(super) fn coded() -> Pg {
    let before = Map { epoch: 5, up_thru: 5, ..sources_test::map(osds(3), Vec::new()) };
    let spgid = SpgId { pgid: PGID, shard: ShardId(0) };
    let now = Utime::default();
    let mut pg = Pg::create(OsdId(0), spgid, Rc::new(before), PgConf::default(), now).unwrap();
    pg.handle(Event::ActivateMap, now);
    drain(&mut pg);
    for copy in [at(1, 1), at(2, 2)] {
        let info = PgInfo { shard: copy.shard, ..pg.info.clone() };
        let notify = PeerMsg::Notify { info, past: PastIntervals::default(), promises: Vec::new() };
        sources_test::from(&mut pg, copy, notify);
    }
    for copy in [at(1, 1), at(2, 2)] {
        sources_test::from(&mut pg, copy, PeerMsg::LeaseAck { round: 1 });
        sources_test::from(&mut pg, copy, PeerMsg::Activated);
    }
    commit_all(&mut pg);
    assert!(pg.is_active(), "{}", pg.state());
    pg
}

/// The shard is told by the log, and has nothing that takes the deletion back.
#[test]
fn a_deletion_goes_ahead_of_the_making_of_a_shard() {
    let mut pg = coded();
    let each = |data: &'static [u8]| {
        let payload = Payload { ops: Bytes::from_static(data), ..Payload::default() };
        Payloads::Each([1, 2].map(|i| (ShardId(i), payload.clone())).into())
    };
    let written = ShardSet::first(3);
    let mut made = proposal(1, "a");
    made.entries[0].written = written;
    let version = pg.propose(Proposal { payloads: each(b"made"), ..made }).unwrap();
    for copy in [at(1, 1), at(2, 2)] {
        sources_test::from(&mut pg, copy, PeerMsg::RepOpReply { version });
    }
    commit_all(&mut pg);
    let item = MissingItem { need: version, have: Default::default() };
    pg.clean = false;
    pg.peers.get_mut(&at(2, 2)).unwrap().missing.as_mut().unwrap().set(oid("a"), item);
    pg.handle(Event::RecoverNow(oid("a")), Utime::default());
    let asked = drain(&mut pg);
    let rebuild = asked.iter().find_map(|a| match a {
        Action::Rebuild { token, .. } => Some(*token),
        _ => None,
    });
    assert_eq!(pg.object_status(&oid("a")), ObjectStatus::Degraded);
    assert!(pg.may_overtake_copy(&oid("a")));
    let entries = smallvec![NewEntry { written, ..change(LogOp::Delete, oid("a"), version) }];
    pg.propose(Proposal { entries, payloads: each(b"gone"), ..proposal(2, "a") }).unwrap();
    let actions = drain(&mut pg);
    let ready = |a: &Action| matches!(a, Action::ObjectReady(o) if *o == oid("a"));
    assert!(actions.iter().any(ready), "{actions:?}");
    let told = |copy| match sources_test::to(&actions, copy)[..] {
        [PeerMsg::RepOp(op), ..] => (op.log_only, op.payload.ops.clone()),
        ref other => panic!("{copy}: {other:?}"),
    };
    assert_eq!(told(at(1, 1)), (false, Bytes::from_static(b"gone")));
    assert_eq!(told(at(2, 2)), (true, Bytes::new()));
    assert!(pg.all_recovered() && !pg.recovery.is_active(&oid("a")));
    // What was made of it meanwhile goes nowhere.
    let chunk = ObjectChunk { oid: oid("a"), version, last: true, ..ObjectChunk::default() };
    let token = rebuild.expect("the shard was being made");
    pg.handle(Event::Rebuilt { token, chunks: vec![(at(2, 2), chunk)] }, Utime::default());
    let actions = drain(&mut pg);
    assert!(sources_test::to(&actions, at(2, 2)).is_empty(), "{actions:?}");
}

/// A shard that is half made again has the version that it will have.
#[test]
fn what_is_read_of_a_shard_that_turns_out_bad_is_not_given_away() {
    let mut pg = coded();
    let payload = Payload { ops: Bytes::from_static(b"made"), ..Payload::default() };
    let payloads = Payloads::Each([1, 2].map(|i| (ShardId(i), payload.clone())).into());
    let mut made = proposal(1, "bad");
    made.entries[0].written = ShardSet::first(3);
    let version = pg.propose(Proposal { payloads, ..made }).unwrap();
    for copy in [at(1, 1), at(2, 2)] {
        sources_test::from(&mut pg, copy, PeerMsg::RepOpReply { version });
    }
    commit_all(&mut pg);
    let (reader, epoch) = (at(1, 1), pg.map.epoch());
    for (id, name) in [(7, "bad"), (8, "good")] {
        let query = ShardQuery { oid: oid(name), ..ShardQuery::default() };
        pg.handle_read_shard(reader, epoch, id, query);
    }
    let read = |a: Action| match a {
        Action::ReadShard { token, query } => Some((token, query.oid)),
        _ => None,
    };
    let reads: Vec<_> = drain(&mut pg).into_iter().filter_map(read).collect();
    let losses = pg.losses();
    pg.lose_own_shard(&oid("bad"), version);
    assert!(pg.losses() > losses);
    let lacks = |a: &[Action]| match sources_test::to(a, reader)[..] {
        [PeerMsg::ShardRead { id, answer }] => (*id, matches!(answer, ShardAnswer::Lacks { .. })),
        ref other => panic!("{other:?}"),
    };
    assert_eq!(lacks(&drain(&mut pg)), (7, true));
    // The host comes with what it read meanwhile.
    for (token, _) in reads {
        let answer = ShardAnswer::Bytes(Box::default());
        pg.handle(Event::ShardRead { token, answer }, Utime::default());
    }
    assert_eq!(lacks(&drain(&mut pg)), (8, false));
}
