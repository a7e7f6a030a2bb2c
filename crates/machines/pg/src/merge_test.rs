//! Log merge against a twin that keeps whole objects and replays whole logs.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use types::{Epoch, Eversion, ObjectId, PoolId, ReqId, SnapId, Utime};

use super::*;
use crate::log_entry::{LogEntry, LogOp, Logged};

fn oid(n: u8) -> ObjectId {
    ObjectId::with_hash(
        PoolId(1),
        Bytes::new(),
        Bytes::copy_from_slice(&[b'a' + n]),
        Bytes::new(),
        SnapId::NOSNAP,
        u32::from(n),
    )
}

/// Content of a store: the version of each object that exists.
type Content = BTreeMap<ObjectId, Eversion>;

/// Appends random changes to a log that is at `content`.
fn extend(log: &mut Vec<LoggedRef>, content: &mut Content, epoch: u32, changes: &[(u8, u8)]) {
    for &(n, what) in changes {
        let oid = oid(n);
        let prior = content.get(&oid).copied().unwrap_or_default();
        let last = log.last().map_or(0, |e| e.entry.version.version);
        let version = Eversion { epoch: Epoch(epoch), version: last + 1 };
        let op = match what {
            0 if prior != Eversion::default() => LogOp::Delete,
            1 => LogOp::Error,
            _ => LogOp::Modify,
        };
        match op {
            LogOp::Delete => drop(content.remove(&oid)),
            LogOp::Modify => drop(content.insert(oid.clone(), version)),
            _ => {}
        }
        log.push(Logged::new(LogEntry {
            op,
            oid,
            version,
            prior_version: prior,
            user_version: 0,
            reqid: ReqId::default(),
            mtime: Utime::default(),
            return_code: 0,
            snaps: Vec::new(),
            op_returns: Vec::new(),
            reverting_to: None,
            written: ec::ShardSet::EMPTY,
        }));
    }
}

fn changes(max: usize) -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((0..6u8, 0..6u8), 0..max)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Two merges in a row, with part of the recovery in between, leave exactly those objects
    /// missing that differ in content from what the final log says.
    #[test]
    fn missing_is_what_differs(
        base in changes(8),
        rounds in prop::collection::vec((changes(8), changes(8), 0..8usize, any::<u16>()), 1..4),
    ) {
        let mut log = Vec::new();
        let mut truth = Content::new();
        extend(&mut log, &mut truth, 1, &base);
        // The copy starts equal.
        let mut copy_log = log.clone();
        let mut store = truth.clone();
        let mut missing = MissingSet::default();
        for (i, (own, auth, back, recover)) in rounds.into_iter().enumerate() {
            let epoch = 2 + 2 * i as u32;
            // The authoritative history forgets some of its newest entries of this round's start
            // only.
            let _ = back;
            // The copy takes writes of its own as a former primary: it must not lack those objects.
            let mut own_content = truth.clone();
            let own: Vec<_> = own.into_iter().filter(|(n, _)| !missing.contains(&oid(*n))).collect();
            let common_len = copy_log.len();
            extend(&mut copy_log, &mut own_content, epoch, &own);
            for e in &copy_log[common_len..] {
                match e.entry.op {
                    LogOp::Delete => drop(store.remove(&e.entry.oid)),
                    LogOp::Modify => drop(store.insert(e.entry.oid.clone(), e.entry.version)),
                    _ => {}
                }
            }
            // Meanwhile the others go another way.
            extend(&mut log, &mut truth, epoch + 1, &auth);
            let common = log[..common_len].last().map_or(Eversion::default(), |e| e.entry.version);
            let out = merge(&mut missing, &Backfill::Complete, common, &copy_log[common_len..], &log[common_len..], WHOLE);
            for gone in &out.remove {
                store.remove(gone);
            }
            copy_log = log.clone();

            missing.check().unwrap();
            for n in 0..6 {
                let oid = oid(n);
                let (is, should) = (store.get(&oid), truth.get(&oid));
                match missing.get(&oid) {
                    None => prop_assert_eq!(is, should, "{} is not missing", oid),
                    Some(item) => {
                        prop_assert_eq!(Some(&item.need), should, "{} is needed", oid);
                        prop_assert_ne!(is, should, "{} is here and missing", &oid);
                        if item.have != Eversion::default() {
                            prop_assert_eq!(is, Some(&item.have), "{} is had", oid);
                        }
                    }
                }
            }
            // Recover some objects.
            for n in 0..6u8 {
                if recover & (1 << n) != 0 && missing.remove(&oid(n)).is_some() {
                    store.insert(oid(n), truth[&oid(n)]);
                }
            }
        }
    }

    /// A copy that learns entries it did not have, loses some of them again, and learns others.
    #[test]
    fn entries_learned_and_not_recovered_can_be_divergent(
        base in changes(8),
        first in changes(8),
        second in changes(8),
        recover in any::<u8>(),
    ) {
        let mut log = Vec::new();
        let mut content = Content::new();
        extend(&mut log, &mut content, 1, &base);
        let (mut store, common_len) = (content.clone(), log.len());
        let common = log.last().map_or(Eversion::default(), |e| e.entry.version);
        let mut missing = MissingSet::default();

        let (mut log1, mut content1) = (log.clone(), content.clone());
        extend(&mut log1, &mut content1, 2, &first);
        for gone in merge(&mut missing, &Backfill::Complete, common, &[], &log1[common_len..], WHOLE).remove {
            store.remove(&gone);
        }
        for n in 0..6u8 {
            if recover & (1 << n) != 0 && missing.remove(&oid(n)).is_some() {
                store.insert(oid(n), content1[&oid(n)]);
            }
        }

        let (mut log2, mut content2) = (log.clone(), content.clone());
        extend(&mut log2, &mut content2, 3, &second);
        for gone in merge(&mut missing, &Backfill::Complete, common, &log1[common_len..], &log2[common_len..], WHOLE).remove {
            store.remove(&gone);
        }
        for n in 0..6 {
            let oid = oid(n);
            match missing.get(&oid) {
                None => prop_assert_eq!(store.get(&oid), content2.get(&oid), "{}", oid),
                Some(item) => prop_assert_eq!(Some(&item.need), content2.get(&oid), "{}", oid),
            }
        }
    }
}

#[test]
fn a_clone_was_nowhere_before() {
    // Its entry names the version of the head that it was made of.
    let (head, clone) = (oid(0), oid(0).at(SnapId(3)));
    let at = |epoch, version| Eversion { epoch: Epoch(epoch), version };
    let entry = |op, oid: &ObjectId, version, prior_version| {
        let (oid, reqid, mtime) = (oid.clone(), ReqId::default(), Utime::default());
        let (snaps, op_returns) = (Vec::new(), Vec::new());
        Logged::new(LogEntry {
            op,
            oid,
            version,
            prior_version,
            user_version: 0,
            reqid,
            mtime,
            return_code: 0,
            snaps,
            op_returns,
            reverting_to: None,
            written: ec::ShardSet::EMPTY,
        })
    };
    let changes = [
        entry(LogOp::Clone, &clone, at(2, 5), at(1, 4)),
        entry(LogOp::Modify, &head, at(2, 6), at(1, 4)),
    ];

    let mut missing = MissingSet::default();
    let out = merge(&mut missing, &Backfill::Complete, at(1, 4), &changes, &[], WHOLE);
    assert_eq!(out.remove, [head.clone(), clone.clone()].into());
    assert_eq!(missing.get(&clone), None, "nobody ever had it");
    assert_eq!(
        missing.get(&head),
        Some(&MissingItem { need: at(1, 4), have: Eversion::default() })
    );

    let mut missing = MissingSet::default();
    merge(&mut missing, &Backfill::Complete, at(1, 4), &[], &changes, WHOLE);
    assert_eq!(
        missing.get(&clone),
        Some(&MissingItem { need: at(2, 5), have: Eversion::default() })
    );
    assert_eq!(missing.get(&head), Some(&MissingItem { need: at(2, 6), have: at(1, 4) }));
}
