//! Messages come back as they were sent, and no bytes make the reader panic.

use proptest::prelude::*;
use types::{OsdId, PoolId, ReqId, Utime};

use super::*;
use crate::log_entry::{LogEntry, LogOp};
use crate::missing::MissingItem;
use crate::scrub::{ScrubMap, ScrubObject};
use crate::shard_read::ShardBytes;

fn header() -> PeerHeader {
    PeerHeader {
        pgid: PgId { pool: PoolId(3), seed: 9 },
        from: ShardId(2),
        to: ShardId::NONE,
        sent: Epoch(7),
        asked: Epoch(6),
    }
}

fn oid() -> ObjectId {
    ObjectId::with_hash(
        PoolId(3),
        Bytes::new(),
        Bytes::from_static(b"object"),
        Bytes::new(),
        SnapId::NOSNAP,
        77,
    )
}

fn version(n: u64) -> Eversion {
    Eversion { epoch: Epoch(4), version: n }
}

fn entry(n: u64) -> LoggedRef {
    Logged::new(LogEntry {
        op: LogOp::Modify,
        oid: oid(),
        version: version(n),
        prior_version: version(n - 1),
        user_version: n,
        reqid: ReqId::default(),
        mtime: Utime::default(),
        return_code: -2,
        snaps: vec![SnapId(4)],
        op_returns: vec![(0, Bytes::from_static(b"out"))],
        reverting_to: Some(version(1)),
        written: ec::ShardSet::from_iter([0, 4, 5]),
    })
}

fn info() -> PgInfo {
    PgInfo { pgid: header().pgid, last_update: version(3), ..PgInfo::default() }
}

fn history() -> PgHistory {
    PgHistory { epoch_created: Epoch(2), ..PgHistory::default() }
}

fn log() -> LogSegment {
    LogSegment { tail: version(1), entries: vec![entry(2), entry(3)] }
}

/// One message of each kind and form.
fn samples() -> Vec<PeerMsg> {
    [peering(), leases(), writes(), shard_reads(), recovery(), reservations(), backfill(), scrubs()]
        .concat()
}

fn peering() -> Vec<PeerMsg> {
    let (info, log, past, history) = (info(), log(), PastIntervals::default(), history());
    let mut missing = MissingSet::default();
    missing.set(oid(), MissingItem { need: version(3), have: version(2) });
    let promise = Promise {
        holder: PgShard { osd: OsdId(3), shard: ShardId(1) },
        up_from: Epoch(4),
        interval: Epoch(5),
        left: 6_000_000_000,
    };
    vec![
        PeerMsg::Query { query: Query::Info, history },
        PeerMsg::Query { query: Query::Log(version(2)), history },
        PeerMsg::Notify { info: info.clone(), past: past.clone(), promises: Vec::new() },
        PeerMsg::Notify { info: info.clone(), past: past.clone(), promises: vec![promise] },
        PeerMsg::Log { info: info.clone(), log: log.clone(), missing, undo: vec![version(3)] },
        PeerMsg::Activate { info, log, past },
        PeerMsg::Activated,
        PeerMsg::History { history, purged_snaps: IntervalSet::new() },
        PeerMsg::Remove,
    ]
}

fn leases() -> Vec<PeerMsg> {
    vec![
        PeerMsg::Lease { round: 3, length: 16_000_000_000, committed: version(2) },
        PeerMsg::LeaseAck { round: 3 },
    ]
}

fn writes() -> Vec<PeerMsg> {
    let rep_op = RepOp {
        entries: [entry(2), entry(3)].into_iter().collect(),
        stats: StatSum { num_wr: 1, ..StatSum::default() },
        trim_to: version(1),
        committed: version(2),
        payload: Payload {
            ops: Bytes::from_static(b"ops"),
            data: Bytes::from_static(b"payload"),
            room: 0,
        },
        log_only: false,
    };
    let log_only = RepOp { payload: Payload::default(), log_only: true, ..rep_op.clone() };
    vec![
        PeerMsg::RepOp(Box::new(rep_op)),
        PeerMsg::RepOp(Box::new(log_only)),
        PeerMsg::RepOpReply { version: version(3) },
        PeerMsg::Trim(version(2)),
        PeerMsg::RollBack(version(2)),
        PeerMsg::Room,
    ]
}

fn shard_reads() -> Vec<PeerMsg> {
    let query = ShardQuery {
        oid: oid(),
        version: version(2),
        extents: vec![(0, 4), (4096, 8)],
        attrs: true,
        omap: true,
        omap_after: Some(Bytes::from_static(b"k")),
        max_omap: 9,
        urgent: true,
        payer: "client.a".to_owned(),
    };
    let bytes = ShardBytes {
        version: version(2),
        size: 7,
        lengths: vec![4, 3],
        data: Bytes::from_static(b"abcdefg"),
        attrs: vec![(Bytes::from_static(b"_"), Bytes::from_static(b"oi"))],
        omap_header: Bytes::from_static(b"h"),
        omap: vec![(Bytes::from_static(b"k"), Bytes::from_static(b"v"))],
        omap_more: true,
    };
    vec![
        PeerMsg::ReadShard { id: 7, query: Box::new(query) },
        PeerMsg::ShardRead { id: 7, answer: ShardAnswer::Bytes(Box::new(bytes)) },
        PeerMsg::ShardRead { id: 8, answer: ShardAnswer::Lacks { version: version(1) } },
        PeerMsg::ShardRead { id: 9, answer: ShardAnswer::Damaged },
    ]
}

fn recovery() -> Vec<PeerMsg> {
    let chunk = ObjectChunk {
        oid: oid(),
        version: version(3),
        to: Progress { data_to: 4, omap_to: Some(Bytes::from_static(b"k")) },
        size: 9,
        extents: vec![(1, 3)],
        data: Bytes::from_static(b"abc"),
        attrs: vec![(Bytes::from_static(b"_"), Bytes::from_static(b"oi"))],
        omap: vec![(Bytes::from_static(b"k"), Bytes::from_static(b"v"))],
        snaps: vec![SnapId(1)],
        ..ObjectChunk::default()
    };
    vec![
        PeerMsg::Pull { oid: oid(), version: version(3), from: Progress::default(), urgent: false },
        PeerMsg::Pull { oid: oid(), version: version(3), from: Progress::default(), urgent: true },
        PeerMsg::Push(Box::new(chunk)),
        PeerMsg::PullFailed { oid: oid(), version: version(3) },
        PeerMsg::PushReply { oid: oid(), version: version(3), to: Progress::default() },
        PeerMsg::MarkMissing { objects: vec![(oid(), version(3))] },
    ]
}

fn reservations() -> Vec<PeerMsg> {
    vec![
        PeerMsg::Reserve { backfill: true, priority: 190 },
        PeerMsg::Reserved,
        PeerMsg::ReserveSource { priority: 190, round: 3 },
        PeerMsg::SourceReserved { round: 3 },
        PeerMsg::SourceRevoked { round: 4 },
        PeerMsg::Revoked,
        PeerMsg::Release,
        PeerMsg::BackfillTooFull,
    ]
}

fn backfill() -> Vec<PeerMsg> {
    let cursor = Backfill::after(&oid());
    let dup = DupEntry {
        version: version(1),
        reqid: ReqId::default(),
        user_version: 1,
        return_code: 0,
        op_returns: Vec::new(),
    };
    let listing = Listing {
        upto: Backfill::Complete,
        objects: [(oid(), version(2))].into(),
        shards: [(oid(), vec![(ShardId(1), version(1))])].into(),
    };
    vec![
        PeerMsg::StartBackfill {
            info: info(),
            log: log(),
            dups: vec![dup],
            past: PastIntervals::default(),
        },
        PeerMsg::ListObjects { after: cursor.clone(), max: 7 },
        PeerMsg::Objects { after: Backfill::Nothing, listing },
        PeerMsg::AdvanceBackfill {
            upto: cursor.clone(),
            missing: vec![(oid(), version(2))],
            remove: vec![oid()],
        },
        PeerMsg::BackfillAdvanced { upto: cursor },
    ]
}

fn scrubs() -> Vec<PeerMsg> {
    let object = ScrubObject { size: 4, data_digest: Some(1), ..ScrubObject::default() };
    let map = ScrubMap { upto: Backfill::Complete, objects: [(oid(), object)].into() };
    let scrub = ScrubSummary { deep_errors: 2, ..ScrubSummary::default() };
    vec![
        PeerMsg::ScrubReserve,
        PeerMsg::ScrubReserved { granted: true },
        PeerMsg::ScrubRelease,
        PeerMsg::Scan {
            id: 3,
            after: Backfill::Nothing,
            upto: Backfill::after(&oid()),
            deep: true,
            max: 9,
        },
        PeerMsg::ScanResult { id: 3, map: Box::new(map) },
        PeerMsg::Scrubbed { history: history(), scrub },
    ]
}

#[test]
fn messages_come_back_as_they_were_sent() {
    for msg in samples() {
        let (front, data) = msg.encode(&header());
        assert_eq!(PeerMsg::decode(front, data), Ok((header(), msg)));
    }
}

#[test]
fn the_payload_is_not_copied() {
    let payload = Bytes::from(vec![7u8; 4096]);
    let op = RepOp {
        entries: [entry(2)].into_iter().collect(),
        stats: StatSum::default(),
        trim_to: version(0),
        committed: version(0),
        payload: Payload { ops: Bytes::new(), data: payload.clone(), room: 0 },
        log_only: false,
    };
    let (front, data) = PeerMsg::RepOp(Box::new(op)).encode(&header());
    assert_eq!(data.as_ptr(), payload.as_ptr());
    let Ok((_, PeerMsg::RepOp(op))) = PeerMsg::decode(front, data) else { panic!("it decodes") };
    assert_eq!(op.payload.data.as_ptr(), payload.as_ptr());
}

#[test]
fn pushes_that_contradict_themselves_are_refused() {
    let Some(PeerMsg::Push(chunk)) = samples().into_iter().find(|m| matches!(m, PeerMsg::Push(_)))
    else {
        unreachable!()
    };
    for (extents, size) in [(vec![(0, 4)], 9), (vec![(u64::MAX, 3)], 9), (vec![(1, 3)], 2)] {
        let bad = ObjectChunk { extents, size, ..(*chunk).clone() };
        let (front, data) = PeerMsg::Push(Box::new(bad)).encode(&header());
        assert!(PeerMsg::decode(front, data).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_messages_are_errors_or_messages(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
        let (front, data) = which.get(&samples()).encode(&header());
        let mut bytes = front.to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = PeerMsg::decode(bytes.clone().into(), data.clone());
        bytes.truncate(cut.index(bytes.len()));
        prop_assert!(PeerMsg::decode(bytes.into(), data).is_err());
    }
}
