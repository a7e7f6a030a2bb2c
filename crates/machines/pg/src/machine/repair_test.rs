//! Scripts of bad copies.

use super::machine_test::{active, commit_all, drain, from, oid, on, proposal, reserve};
use super::*;
use crate::action::Source;
use crate::msg::{ObjectChunk, Progress};
use crate::{PgState, ReadToken};
use types::LogPriority;

fn now() -> Utime {
    Utime::default()
}

/// A whole small object, as a source sends it.
fn chunk(name: &str, version: Eversion) -> PeerMsg {
    let to = Progress { data_to: 1, omap_to: None };
    PeerMsg::Push(Box::new(ObjectChunk {
        oid: oid(name),
        version,
        last: true,
        to,
        ..ObjectChunk::default()
    }))
}

/// A clean PG of three with one object.
fn with_object(name: &str) -> (Pg, Eversion) {
    let mut pg = active(3);
    let v = pg.propose(proposal(1, name)).unwrap();
    drain(&mut pg);
    for osd in [1, 2] {
        from(&mut pg, osd, PeerMsg::RepOpReply { version: v });
    }
    commit_all(&mut pg);
    (pg, v)
}

fn sent(actions: &[Action]) -> Vec<(OsdId, &PeerMsg)> {
    let sends = actions
        .iter()
        .filter_map(|a| if let Action::Send { to, msg, .. } = a { Some((to, msg)) } else { None });
    sends.flat_map(|(to, msg)| to.iter().map(move |c| (c.osd, msg))).collect()
}

#[test]
fn an_object_that_the_primary_cannot_read_comes_from_a_replica() {
    let (mut pg, version) = with_object("a");
    pg.handle(Event::ObjectDamaged { oid: oid("a"), version }, now());
    let actions = drain(&mut pg);
    assert!(
        matches!(&actions[..], [Action::ClusterLog { prio: LogPriority::ERROR, text }, Action::Persist(p), Action::Send { msg: PeerMsg::Pull { .. }, .. }, Action::Reserve { .. }]
        if text.contains("missing primary copy") && text.ends_with("will try copies on 1,2") && p.rows.set.len() == 2),
        "{actions:?}"
    );
    assert_eq!(pg.object_status(&oid("a")), ObjectStatus::Missing);
    assert!(pg.must_wait(&oid("a"), false) && !pg.must_wait(&oid("b"), true));
    assert!(pg.state().has(PgState::REPAIR) && !pg.is_clean());
    // Again is not worse.
    pg.handle(Event::ObjectDamaged { oid: oid("a"), version }, now());
    assert!(drain(&mut pg).is_empty());
    // The first one asked cannot read it either.
    let source = sent(&actions)[0].0;
    let actions = from(&mut pg, source.0, PeerMsg::PullFailed { oid: oid("a"), version });
    let sent = sent(&actions);
    assert!(
        matches!(sent[..], [(at, PeerMsg::MarkMissing { .. }), (to, PeerMsg::Pull { .. })] if at == source && to != source),
        "{actions:?}"
    );
    let other = sent[1].0;
    let actions = from(&mut pg, other.0, chunk("a", version));
    assert!(
        actions.iter().any(|a| matches!(a, Action::CopyRepaired(o) if *o == oid("a"))),
        "{actions:?}"
    );
    assert!(
        actions
            .iter()
            .any(|a| matches!(a, Action::Persist(p) if matches!(p.source, Source::Push(_))))
    );
    // Then the replica that could not read it gets it too, and only that one.
    let actions = commit_all(&mut pg);
    let Some(Action::ReadObject { token, .. }) = actions.into_iter().next() else {
        panic!("it is to be pushed")
    };
    let PeerMsg::Push(c) = chunk("a", version) else { unreachable!() };
    let to = c.to.clone();
    pg.handle(Event::ObjectRead { token, chunk: Some(*c) }, now());
    let actions = drain(&mut pg);
    assert!(
        matches!(&actions[..], [Action::Send { to, msg: PeerMsg::Push(_), .. }] if to[..] == [on(source.0)]),
        "{actions:?}"
    );
    let actions = from(&mut pg, source.0, PeerMsg::PushReply { oid: oid("a"), version, to });
    assert!(
        actions.iter().any(|a| matches!(a, Action::ObjectReady(o) if *o == oid("a"))),
        "{actions:?}"
    );
    assert!(pg.is_clean() && !pg.state().has(PgState::REPAIR), "{}", pg.state());
    assert_eq!(pg.info().scrub.repaired, 2);
}

#[test]
fn with_nobody_to_ask_the_object_stays() {
    let mut pg = active(1);
    let version = pg.propose(proposal(1, "a")).unwrap();
    commit_all(&mut pg);
    pg.handle(Event::ObjectDamaged { oid: oid("a"), version }, now());
    let actions = drain(&mut pg);
    assert!(
        matches!(&actions[..], [Action::ClusterLog { prio: LogPriority::ERROR, text }] if text.ends_with("unfound")),
        "{actions:?}"
    );
    assert!(pg.is_clean() && pg.object_status(&oid("a")) == ObjectStatus::Ready);
}

#[test]
fn a_replica_that_cannot_read_what_it_is_asked_for_takes_the_push() {
    let (mut primary, version) = with_object("a");
    let mut replica =
        Pg::create(OsdId(1), primary.pgid().into(), primary.map.clone(), PgConf::default(), now())
            .unwrap();
    replica.handle(Event::ActivateMap, now());
    commit_all(&mut replica);
    let log = primary.log.after(Eversion::default());
    // What it learns from the log is missing; it is pushed, so that it has it.
    from(
        &mut replica,
        0,
        PeerMsg::Activate { info: primary.info.clone(), log, past: PastIntervals::default() },
    );
    from(&mut replica, 0, chunk("a", version));
    commit_all(&mut replica);
    assert!(replica.missing().is_empty());

    let actions = from(
        &mut replica,
        0,
        PeerMsg::Pull { oid: oid("a"), version, from: Progress::default(), urgent: true },
    );
    let Some(Action::ReadObject { token, urgent: true, .. }) = actions.into_iter().next() else {
        panic!("it reads, for clients that wait")
    };
    replica.handle(Event::ObjectRead { token, chunk: None }, now());
    let actions = drain(&mut replica);
    assert!(
        matches!(&actions[..], [Action::Send { msg: PeerMsg::PullFailed { .. }, .. }]),
        "{actions:?}"
    );
    assert!(replica.missing().is_empty(), "it does not know whether it is still asked");

    // A primary that still asks says what follows from that.
    primary.lose_own(oid("a"), version);
    let source = sent(&drain(&mut primary))
        .into_iter()
        .find(|(_, m)| matches!(m, PeerMsg::Pull { .. }))
        .unwrap()
        .0;
    let actions = from(&mut primary, source.0, PeerMsg::PullFailed { oid: oid("a"), version });
    let logged =
        format!("{} copy of {} on osd.{} cannot be read", primary.pgid(), oid("a"), source.0);
    assert!(
        actions
            .iter()
            .any(|a| matches!(a, Action::ClusterLog { prio: LogPriority::ERROR, text } if *text == logged)),
        "{actions:?}"
    );
    let (to, marked) =
        sent(&actions).into_iter().find(|(_, m)| matches!(m, PeerMsg::MarkMissing { .. })).unwrap();
    assert_eq!(to, source);
    let marked = marked.clone();
    from(&mut replica, 0, marked);
    assert!(replica.missing().contains(&oid("a")));
    let actions = from(&mut replica, 0, chunk("a", version));
    assert!(actions.iter().any(|a| matches!(a, Action::CopyRepaired(_))), "{actions:?}");
    assert!(replica.missing().is_empty());
    drain(&mut primary);
}

#[test]
fn copies_that_are_marked_bad_are_pushed() {
    let (mut pg, version) = with_object("a");
    pg.lose_copies(on(2), vec![(oid("a"), version)]);
    pg.check_recovery();
    let actions = drain(&mut pg);
    assert!(matches!(sent(&actions)[..], [(OsdId(2), PeerMsg::MarkMissing { .. })]), "{actions:?}");
    assert!(
        matches!(
            actions.last(),
            Some(Action::Reserve { side: Side::Lead, backfill: false, priority: 190 })
        ),
        "{actions:?}"
    );
    assert!(matches!(reserve(&mut pg).last(), Some(Action::QueueRecovery)));
    assert_eq!(pg.object_status(&oid("a")), ObjectStatus::Degraded);
    pg.handle(Event::StartRecovery { max_objects: 1 }, now());
    assert!(matches!(&drain(&mut pg)[..], [Action::ReadObject { .. }]));
}

#[test]
fn norecover_holds_what_nobody_waits_for() {
    let (mut pg, version) = with_object("a");
    let map = |epoch, norecover| super::machine_test::Map {
        epoch,
        acting: super::machine_test::osds(3),
        up_thru: 5,
        size: 3,
        norecover,
        ..Default::default()
    };
    let publish = |pg: &mut Pg, epoch, norecover| {
        pg.handle(Event::AdvanceMap(std::rc::Rc::new(map(epoch, norecover))), now());
        pg.handle(Event::ActivateMap, now());
        drain(pg)
    };
    publish(&mut pg, 6, true);
    pg.lose_copies(on(2), vec![(oid("a"), version)]);
    pg.check_recovery();
    let queued = |actions: &[Action]| actions.iter().any(|a| matches!(a, Action::QueueRecovery));
    assert!(!queued(&drain(&mut pg)) && !queued(&reserve(&mut pg)));
    assert!(queued(&publish(&mut pg, 7, false)));
    // It was granted before the map forbade it, and comes after.
    publish(&mut pg, 8, true);
    pg.handle(Event::StartRecovery { max_objects: 1 }, now());
    assert!(drain(&mut pg).is_empty());
    assert!(queued(&publish(&mut pg, 9, false)));
    // Clients are not made to wait.
    publish(&mut pg, 10, true);
    pg.recover_now(oid("a"));
    let actions = drain(&mut pg);
    assert!(matches!(&actions[..], [Action::ReadObject { .. }]), "{actions:?}");
}

#[test]
fn a_copy_that_clients_begin_to_wait_for_is_asked_for_anew() {
    // The primary lacks it.
    let (mut pg, version) = with_object("a");
    pg.lose_own(oid("a"), version);
    let begun = drain(&mut pg);
    let pulls = |actions: &[Action]| -> Vec<bool> {
        sent(actions)
            .into_iter()
            .filter_map(
                |(_, m)| if let PeerMsg::Pull { urgent, .. } = m { Some(*urgent) } else { None },
            )
            .collect()
    };
    assert_eq!(pulls(&begun), [false]);
    let source =
        sent(&begun).into_iter().find(|(_, m)| matches!(m, PeerMsg::Pull { .. })).unwrap().0;
    pg.recover_now(oid("a"));
    assert_eq!(pulls(&drain(&mut pg)), [true]);
    pg.recover_now(oid("a"));
    assert!(drain(&mut pg).is_empty(), "once is enough");
    // Both are answered; one counts.
    let writes = |actions: &[Action]| {
        actions
            .iter()
            .filter(|a| matches!(a, Action::Persist(p) if matches!(p.source, Source::Push(_))))
            .count()
    };
    let first = from(&mut pg, source.0, chunk("a", version));
    let second = from(&mut pg, source.0, chunk("a", version));
    assert_eq!((writes(&first), writes(&second)), (1, 0));
    // Nor does it say anything of the source if the second one finds a newer content there, or
    // nothing.
    commit_all(&mut pg);
    let actions = from(&mut pg, source.0, PeerMsg::PullFailed { oid: oid("a"), version });
    assert!(
        actions.is_empty() && pg.object_status(&oid("a")) == ObjectStatus::Ready,
        "{actions:?}"
    );

    // While a part is being written nothing is asked for; what follows is urgent, and the source
    // cannot have failed.
    let (mut pg, version) = with_object("a");
    pg.lose_own(oid("a"), version);
    let begun = drain(&mut pg);
    let source =
        sent(&begun).into_iter().find(|(_, m)| matches!(m, PeerMsg::Pull { .. })).unwrap().0;
    let part = ObjectChunk {
        oid: oid("a"),
        version,
        to: Progress { data_to: 1, omap_to: None },
        size: 2,
        ..ObjectChunk::default()
    };
    assert_eq!(writes(&from(&mut pg, source.0, PeerMsg::Push(Box::new(part)))), 1);
    pg.recover_now(oid("a"));
    assert_eq!(pulls(&drain(&mut pg)), [false; 0]);
    assert_eq!(
        pulls(&from(&mut pg, source.0, PeerMsg::PullFailed { oid: oid("a"), version })),
        [false; 0]
    );
    assert_eq!(pulls(&commit_all(&mut pg)), [true]);

    // A replica lacks it.
    let (mut pg, version) = with_object("a");
    pg.lose_copies(on(2), vec![(oid("a"), version)]);
    pg.check_recovery();
    drain(&mut pg);
    reserve(&mut pg);
    pg.handle(Event::StartRecovery { max_objects: 1 }, now());
    let reads = |actions: &[Action]| -> Vec<(ReadToken, bool)> {
        actions
            .iter()
            .filter_map(|a| {
                if let Action::ReadObject { token, urgent, .. } = a {
                    Some((*token, *urgent))
                } else {
                    None
                }
            })
            .collect()
    };
    let [(slow, false)] = reads(&drain(&mut pg))[..] else { panic!("it is read") };
    pg.recover_now(oid("a"));
    let [(quick, true)] = reads(&drain(&mut pg))[..] else { panic!("it is read anew") };
    let PeerMsg::Push(content) = chunk("a", version) else { unreachable!() };
    let mut answered = |token| {
        pg.handle(Event::ObjectRead { token, chunk: Some((*content).clone()) }, now());
        drain(&mut pg)
            .iter()
            .filter(|a| matches!(a, Action::Send { msg: PeerMsg::Push(_), .. }))
            .count()
    };
    assert_eq!((answered(quick), answered(slow)), (1, 0));
}
