//! Scripts of scrubs.

use super::machine_test::{active, commit_all, drain, from, oid, on, proposal, reserve};
use super::*;
use crate::PgState;
use crate::info::Backfill;
use crate::scrub::{ScrubKind, ScrubMap, ScrubObject};
use crate::stats::StatSum;
use denc::{Encode, Features};
use types::{LogPriority, ObjectInfo};

fn now() -> Utime {
    Utime { sec: 77, nsec: 0 }
}

const DEEP: ScrubKind = ScrubKind { deep: true, repair: false, check: false };

/// A clean PG of `n` with the object "a", of which every copy is this.
fn with_object(n: i32) -> (Pg, Eversion, ScrubMap) {
    let mut pg = active(n);
    let version = pg.propose(proposal(1, "a")).unwrap();
    drain(&mut pg);
    for osd in 1..n {
        from(&mut pg, osd, PeerMsg::RepOpReply { version });
    }
    commit_all(&mut pg);
    let info = ObjectInfo { version, ..ObjectInfo::default() }.to_bytes(Features::ALL);
    let object = ScrubObject {
        attrs: [(bytes::Bytes::from_static(b"_"), info)].into(),
        data_digest: Some(3),
        ..ScrubObject::default()
    };
    (pg, version, ScrubMap { upto: Backfill::Complete, objects: [(oid("a"), object)].into() })
}

/// Starts a scrub, up to the first scan; gives the scan's token and the id of the question to
/// replicas.
fn to_first_scan(pg: &mut Pg, kind: ScrubKind) -> (crate::ReadToken, u64) {
    pg.handle(Event::StartScrub(kind), now());
    let mut actions = drain(pg);
    let replicas = pg.replicas();
    if !replicas.is_empty() {
        assert!(
            matches!(&actions[..], [Action::Send { to, msg: PeerMsg::ScrubReserve, .. }] if *to == replicas),
            "{actions:?}"
        );
        for osd in replicas {
            actions = from(pg, osd.osd.0, PeerMsg::ScrubReserved { granted: true });
        }
    }
    next_scan(pg, actions)
}

fn next_scan(pg: &mut Pg, actions: Vec<Action>) -> (crate::ReadToken, u64) {
    let listing = actions
        .iter()
        .find_map(|a| if let Action::ListObjects { token, .. } = a { Some(*token) } else { None });
    let token = listing.unwrap_or_else(|| panic!("the next range is listed: {actions:?}"));
    pg.handle(Event::Listed { token, listing: crate::Listing::default() }, now());
    let actions = drain(pg);
    let id = actions.iter().find_map(|a| {
        if let Action::Send { msg: PeerMsg::Scan { id, .. }, .. } = a { Some(*id) } else { None }
    });
    let token = actions
        .iter()
        .find_map(|a| if let Action::Scan { token, .. } = a { Some(*token) } else { None });
    (token.expect("a scan"), id.unwrap_or(0))
}

fn texts(actions: &[Action]) -> Vec<(bool, &str)> {
    actions
        .iter()
        .filter_map(|a| {
            if let Action::ClusterLog { prio, text } = a {
                Some((*prio == LogPriority::ERROR, &text[..]))
            } else {
                None
            }
        })
        .collect()
}

fn result(id: u64, map: &ScrubMap) -> PeerMsg {
    PeerMsg::ScanResult { id, map: Box::new(map.clone()) }
}

#[test]
fn a_scrub_without_findings_leaves_its_stamp() {
    let (mut pg, version, map) = with_object(3);
    let (token, id) = to_first_scan(&mut pg, DEEP);
    assert_eq!(
        pg.state(),
        PgState::ACTIVE | PgState::CLEAN | PgState::SCRUBBING | PgState::DEEP_SCRUB
    );
    assert!(from(&mut pg, 2, result(id, &map)).is_empty());
    assert!(from(&mut pg, 1, result(id + 9, &map)).is_empty(), "an answer to another question");
    assert!(from(&mut pg, 1, result(id, &map)).is_empty());
    pg.handle(Event::Scanned { token, map: map.clone() }, now());
    let actions = drain(&mut pg);
    assert_eq!(texts(&actions), [(false, "1.0 deep-scrub ok")]);
    assert!(actions.iter().any(|a| matches!(a, Action::Send { msg: PeerMsg::ScrubRelease, .. })));
    assert!(
        actions.iter().any(|a| matches!(a, Action::Send { msg: PeerMsg::Scrubbed { .. }, .. }))
    );
    assert!(
        matches!(actions.last(), Some(Action::ScrubEnded { ran: true, again: None })),
        "{actions:?}"
    );
    let h = pg.info().history;
    assert_eq!(
        (h.last_deep_scrub, h.last_deep_scrub_stamp, h.last_scrub_stamp, h.last_clean_scrub_stamp),
        (version, now(), now(), now())
    );
    assert_eq!(pg.state(), PgState::ACTIVE | PgState::CLEAN);
    assert!(pg.scrub_results().unwrap().objects.is_empty());
}

#[test]
fn a_replica_without_a_turn_ends_it() {
    let (mut pg, ..) = with_object(3);
    pg.handle(Event::StartScrub(DEEP), now());
    drain(&mut pg);
    from(&mut pg, 1, PeerMsg::ScrubReserved { granted: true });
    let actions = from(&mut pg, 2, PeerMsg::ScrubReserved { granted: false });
    assert!(
        matches!(&actions[..], [Action::Send { to, msg: PeerMsg::ScrubRelease, .. }, Action::ScrubRangeReady, Action::ScrubEnded { ran: false, .. }] if to.len() == 2),
        "{actions:?}"
    );
    assert_eq!(pg.scrubbing(), None);
    // The late answer of an OSD that was told to forget it.
    assert!(from(&mut pg, 1, PeerMsg::ScrubReserved { granted: true }).is_empty());
}

#[test]
fn what_is_written_meanwhile_is_scanned_again_and_waits_in_the_end() {
    let (mut pg, _, mut map) = with_object(1);
    pg.conf.scrub_max_preemptions = 2;
    let (mut token, _) = to_first_scan(&mut pg, DEEP);
    for round in 0..2 {
        assert!(!pg.scrub_blocks(&oid("a")), "round {round}");
        pg.propose(proposal(10 + round, "a")).unwrap();
        commit_all(&mut pg);
        // The answer is from before the write, or after it.
        pg.handle(Event::Scanned { token, map: map.clone() }, now());
        let actions = drain(&mut pg);
        assert!(texts(&actions).is_empty(), "{actions:?}");
        token = next_scan(&mut pg, actions).0;
    }
    assert!(pg.scrub_blocks(&oid("a")));
    // One that was being executed when that was decided still goes first.
    pg.propose(proposal(20, "a")).unwrap();
    commit_all(&mut pg);
    pg.handle(Event::Scanned { token, map: map.clone() }, now());
    let actions = drain(&mut pg);
    token = next_scan(&mut pg, actions).0;
    // Every write of the script counts an object more.
    for i in 0..3 {
        map.objects.insert(oid(&format!("more{i}")), map.objects[&oid("a")].clone());
    }
    pg.handle(Event::Scanned { token, map }, now());
    let actions = drain(&mut pg);
    assert!(actions.iter().any(|a| matches!(a, Action::ScrubRangeReady)));
    assert_eq!(texts(&actions), [(false, "1.0 deep-scrub ok")]);
    assert!(!pg.scrub_blocks(&oid("a")));
}

#[test]
fn bad_copies_are_told_and_repaired() {
    let (mut pg, version, map) = with_object(3);
    let mut bad = map.clone();
    bad.objects.get_mut(&oid("a")).unwrap().read_error = true;
    bad.objects.get_mut(&oid("a")).unwrap().data_digest = None;
    let (token, id) = to_first_scan(&mut pg, DEEP);
    pg.handle(Event::Scanned { token, map: map.clone() }, now());
    from(&mut pg, 1, result(id, &bad));
    let actions = from(&mut pg, 2, result(id, &map));
    let said = texts(&actions);
    assert!(
        said[0].1.contains("shard 1 soid")
            && said[1].1 == "1.0 deep-scrub 0 missing, 1 inconsistent objects"
            && said[2] == (true, "1.0 deep-scrub 1 errors"),
        "{said:?}"
    );
    assert_eq!(pg.state(), PgState::ACTIVE | PgState::CLEAN | PgState::INCONSISTENT);
    assert_eq!((pg.info().scrub.deep_errors, pg.scrub_results().unwrap().objects.len()), (1, 1));

    let (token, id) = to_first_scan(&mut pg, ScrubKind { repair: true, ..DEEP });
    assert!(pg.state().has(PgState::REPAIR));
    pg.handle(Event::Scanned { token, map: map.clone() }, now());
    from(&mut pg, 1, result(id, &bad));
    let actions = from(&mut pg, 2, result(id, &map));
    let marked = actions.iter().find_map(|a| match a {
        Action::Send { to, msg: PeerMsg::MarkMissing { objects }, .. } => {
            Some((to.to_vec(), objects.clone()))
        }
        _ => None,
    });
    assert_eq!(marked, Some((vec![on(1)], vec![(oid("a"), version)])));
    assert!(actions.iter().any(|a| matches!(a, Action::Reserve { .. })));
    assert!(reserve(&mut pg).iter().any(|a| matches!(a, Action::QueueRecovery)));
    assert_eq!(texts(&actions).last(), Some(&(true, "1.0 repair 1 errors, 1 fixed")));
    assert_eq!(
        (pg.info().scrub.errors(), pg.object_status(&oid("a"))),
        (0, ObjectStatus::Degraded)
    );
}

#[test]
fn the_primarys_own_bad_copy_is_pulled() {
    let (mut pg, _, map) = with_object(3);
    let gone = ScrubMap { upto: Backfill::Complete, ..ScrubMap::default() };
    let (token, id) = to_first_scan(&mut pg, ScrubKind { repair: true, ..DEEP });
    pg.handle(Event::Scanned { token, map: gone }, now());
    from(&mut pg, 1, result(id, &map));
    from(&mut pg, 2, result(id, &map));
    assert_eq!(pg.object_status(&oid("a")), ObjectStatus::Missing);
    reserve(&mut pg);
    pg.handle(Event::StartRecovery { max_objects: 1 }, now());
    assert!(
        drain(&mut pg).iter().any(|a| matches!(a, Action::Send { msg: PeerMsg::Pull { .. }, .. }))
    );
}

#[test]
fn wrong_totals_are_an_error_unless_they_are_known_to_be_wrong() {
    let (mut pg, _, map) = with_object(1);
    pg.info.stats.add(&StatSum { num_objects: 4, ..StatSum::default() });
    for (known, expected) in [(false, 1), (true, 0)] {
        pg.info.stats_invalid = known;
        let (token, _) = to_first_scan(&mut pg, DEEP);
        pg.handle(Event::Scanned { token, map: map.clone() }, now());
        let actions = drain(&mut pg);
        assert_eq!(pg.info().scrub.shallow_errors, expected, "{actions:?}");
    }
    assert_eq!(pg.info().stats.num_objects, 1);
}

#[test]
fn a_new_interval_ends_it() {
    let (mut pg, ..) = with_object(3);
    to_first_scan(&mut pg, DEEP);
    pg.leave_interval();
    assert_eq!((pg.scrubbing(), pg.scrub_results().is_none()), (None, true));
}
