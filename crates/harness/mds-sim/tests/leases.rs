//! Leases of names, where clients cannot have all names of a directory.

use mds::{
    Action, CapsOp, Claim, ClientId, Conf, Event, Extra, Ino, LayoutHints, Lease, Name, Op,
    Release, SessionEvent, caps,
};
use mds_sim::bench::Bench;

const SECOND: u64 = 1_000_000_000;
const NONE: (Ino, &str) = (Ino(0), "");

fn create() -> Op {
    let layout = LayoutHints::default();
    Op::Create { mode: 0o644, wanted: 0, exclusive: true, truncate: false, layout }
}

fn lookup() -> Op {
    Op::Lookup { mask: 0 }
}

/// A directory in which client 1 made files and client 2 looked: it is shared from the next file
/// on.
fn shared(b: &mut Bench) -> Ino {
    b.open(2);
    let dir = b.mkdir(Ino::ROOT, "d");
    for name in ["a", "b", "c"] {
        b.ask(dir, name, create());
    }
    let look = b.send(2, dir, "a", NONE, lookup());
    assert_eq!(b.answer(look).unwrap().result, 0);
    assert_ne!(b.mds.issued(dir, ClientId(2)) & caps::FILE_SHARED, 0);
    b.ask(dir, "x", create());
    assert_eq!(b.mds.issued(dir, ClientId(2)) & caps::FILE_SHARED, 0);
    dir
}

/// The lease that client 2 gets with a name.
fn leased(b: &mut Bench, dir: Ino, name: &str) -> Lease {
    let look = b.send(2, dir, name, NONE, lookup());
    b.answer(look).unwrap().dentry.as_ref().unwrap().lease
}

fn asked(b: &Bench) -> Vec<(ClientId, Name)> {
    let lease = |(_, client, action): &(u64, ClientId, Action)| match action {
        Action::Lease(_, end) => Some((*client, end.name.clone())),
        _ => None,
    };
    b.told.iter().filter_map(lease).collect()
}

#[test]
fn names_of_a_shared_directory_are_leased_and_new_ones_take_nothing_back() {
    let mut b = Bench::new(Bench::conf());
    let dir = shared(&mut b);
    let lease = leased(&mut b, dir, "a");
    assert_eq!(lease.duration_ms, 5_000);
    let list = b.send(2, dir, "", NONE, Op::Readdir { after: None, max_entries: 0, max_bytes: 0 });
    let Extra::Page { entries, .. } = &b.answer(list).unwrap().extra else { panic!("no page") };
    assert!(entries.iter().all(|(_, lease, _)| lease.duration_ms > 0), "{entries:?}");
    assert_eq!((b.mds.leases_of(ClientId(2)), b.mds.leases_of(ClientId(1))), (4, 1));
    // What a page grants is taken back once.
    b.ask(dir, "y", create());
    let told = b.told.len();
    b.ask(dir, "z", create());
    let revoked = b.told[told..].iter().any(|(_, _, action)| match action {
        Action::Caps(client, message) => *client == ClientId(2) && message.op == CapsOp::Revoke,
        Action::Lease(..) => true,
        _ => false,
    });
    assert!(!revoked, "{:?}", &b.told[told..]);
}

#[test]
fn a_directory_that_changes_no_more_is_not_shared() {
    let mut b = Bench::new(Bench::conf());
    let dir = shared(&mut b);
    assert_ne!(leased(&mut b, dir, "a").duration_ms, 0);
    b.pass(SECOND * 2 / 5);
    assert_eq!(leased(&mut b, dir, "b"), Lease::default());
    assert_ne!(b.mds.issued(dir, ClientId(2)) & caps::FILE_SHARED, 0);
    // It is shared for longer than before.
    b.ask(dir, "y", create());
    b.pass(SECOND * 4 / 5);
    assert_ne!(leased(&mut b, dir, "b").duration_ms, 0);
}

#[test]
fn a_directory_stays_shared_while_one_client_changes_it_and_another_looks() {
    let mut b = Bench::new(Bench::conf());
    let dir = shared(&mut b);
    for n in 0..40 {
        b.pass(b.now + SECOND / 8);
        b.ask(dir, &format!("n{n}"), create());
        let next = leased(&mut b, dir, "a");
        assert_ne!(next.duration_ms, 0, "{n}");
    }
    // The other one looks no more.
    let mut given = false;
    for n in 40..120 {
        b.pass(b.now + SECOND / 8);
        b.ask(dir, &format!("n{n}"), create());
        given |= b.mds.issued(dir, ClientId(1)) & caps::FILE_SHARED != 0;
    }
    assert!(given);
}

#[test]
fn a_page_grants_all_names_where_a_client_may_take_the_directory_for_known() {
    let mut b = Bench::new(Conf { page_entries_max: 2, ..Bench::conf() });
    let dir = shared(&mut b);
    let list = |b: &mut Bench, after: Option<&'static str>| {
        let after = after.map(|name| Name::from_static(name.as_bytes()));
        let page = b.send(2, dir, "", NONE, Op::Readdir { after, max_entries: 0, max_bytes: 0 });
        let page = b.answer(page).unwrap().clone();
        let Extra::Page { end, entries, .. } = &page.extra else { panic!("no page") };
        assert!(entries.iter().all(|(_, lease, _)| lease.duration_ms > 0), "{entries:?}");
        (*end, page.target.unwrap().cap.caps & caps::FILE_SHARED != 0)
    };
    // It has listed the directory before, as far as is known.
    assert_eq!(list(&mut b, None), (false, true));
    b.ask(dir, "y", create());
    assert_eq!(b.mds.issued(dir, ClientId(2)) & caps::FILE_SHARED, 0);
    assert_eq!(list(&mut b, Some("b")), (false, false));
    // What ends the list makes it take the directory for known.
    assert_eq!(list(&mut b, Some("x")), (true, true));
    b.ask(dir, "z", create());
    assert_eq!(b.mds.issued(dir, ClientId(2)) & caps::FILE_SHARED, 0);
    assert_eq!(list(&mut b, None), (false, true));
}

#[test]
fn a_name_goes_when_no_client_has_a_lease_of_it() {
    let mut b = Bench::new(Bench::conf());
    let dir = shared(&mut b);
    b.gives_leases = false;
    let seq = leased(&mut b, dir, "a").seq;
    leased(&mut b, dir, "b");
    let gone = b.send(1, dir, "a", NONE, Op::Unlink);
    assert_eq!(asked(&b), [(ClientId(2), Name::from_static(b"a"))]);
    // Other names go on, and of this one no other lease is given.
    b.ask(dir, "y", create());
    assert_eq!(leased(&mut b, dir, "a"), Lease::default());
    let other = |seq| Event::LeaseRelease(ClientId(2), dir, Name::from_static(b"a"), seq);
    b.event(other(seq + 7));
    assert_eq!(b.answer(gone), None);
    b.event(other(seq));
    assert_eq!(b.answer(gone).unwrap().result, 0);
    // A lease that has ended is given back in vain.
    b.event(other(seq));
    assert_eq!(b.mds.leases_of(ClientId(2)), 1);
}

#[test]
fn a_lease_that_is_not_given_back_ends_by_itself() {
    let mut b = Bench::new(Bench::conf());
    let dir = shared(&mut b);
    b.gives_leases = false;
    leased(&mut b, dir, "a");
    let begun = b.now;
    let gone = b.send(1, dir, "a", NONE, Op::Unlink);
    b.pass(begun + 5 * SECOND);
    assert_eq!(b.answer(gone), None);
    b.pass(begun + 6 * SECOND);
    assert_eq!(b.answer(gone).unwrap().result, 0);
}

#[test]
fn a_rename_asks_for_both_names() {
    let mut b = Bench::new(Bench::conf());
    let dir = shared(&mut b);
    leased(&mut b, dir, "a");
    leased(&mut b, dir, "b");
    leased(&mut b, dir, "c");
    let moved = b.send(1, dir, "b", (dir, "a"), Op::Rename);
    assert_eq!(b.answer(moved).unwrap().result, 0);
    let names: Vec<Name> = asked(&b).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, [Name::from_static(b"a"), Name::from_static(b"b")]);
    assert_eq!(b.mds.leases_of(ClientId(2)), 1);
}

#[test]
fn a_lease_goes_with_a_request_or_with_the_session() {
    let mut b = Bench::new(Bench::conf());
    let dir = shared(&mut b);
    b.gives_leases = false;
    let look = b.send(2, dir, "a", NONE, lookup());
    let shown = b.answer(look).unwrap().dentry.clone().unwrap();
    let release = Release {
        ino: dir,
        cap_id: shown.dir.cap.cap_id,
        caps: shown.dir.cap.caps,
        wanted: 0,
        seq: shown.dir.cap.seq,
        issue_seq: shown.dir.cap.seq,
        lease: Some((Name::from_static(b"a"), shown.lease.seq)),
    };
    let gone = b.send_with(2, dir, "a", vec![release], Op::Unlink);
    assert_eq!(b.answer(gone).unwrap().result, 0);
    leased(&mut b, dir, "b");
    let waits = b.send(1, dir, "b", NONE, Op::Unlink);
    assert_eq!(b.answer(waits), None);
    b.event(Event::Session(ClientId(2), SessionEvent::Close { seq: 0 }));
    assert_eq!(b.answer(waits).unwrap().result, 0);
    b.mds.check_memory().unwrap();
}

#[test]
fn a_successor_asks_all_clients_that_have_the_directory() {
    let mut b = Bench::new(Bench::conf());
    let dir = shared(&mut b);
    let look = b.send(2, dir, "a", NONE, lookup());
    let record = b.answer(look).unwrap().dentry.clone().unwrap().dir;
    b.now += SECOND;
    b.restart(Bench::conf());
    b.gives_leases = false;
    let claim = Claim {
        ino: dir,
        cap_id: record.cap.cap_id,
        issued: record.cap.caps,
        wanted: 0,
        locks: Vec::new(),
    };
    b.come_back(2, &[], vec![claim]);
    b.come_back(1, &[], Vec::new());
    let gone = b.send(1, dir, "a", NONE, Op::Unlink);
    assert_eq!(asked(&b), [(ClientId(2), Name::from_static(b"a"))]);
    assert_eq!(b.answer(gone), None);
    let seq = b.told.iter().find_map(|(_, _, action)| match action {
        Action::Lease(_, end) => Some(end.seq),
        _ => None,
    });
    let name = Name::from_static(b"a");
    b.event(Event::LeaseRelease(ClientId(2), dir, name, seq.unwrap()));
    assert_eq!(b.answer(gone).unwrap().result, 0);
    // When leases of the server before this one are over, names go at once.
    b.pass(b.now + 6 * SECOND);
    assert_eq!(b.ask(dir, "c", Op::Unlink).result, 0);
    assert_eq!(asked(&b).len(), 1);
}

#[test]
fn leases_are_counted_and_bounded() {
    let mut b = Bench::new(Conf { page_entries_max: 1_000, ..Bench::conf() });
    let dir = shared(&mut b);
    let names: Vec<String> = (0..2_000).map(|n| format!("file-{n:05}")).collect();
    for name in &names {
        b.ask(dir, name, create());
    }
    let before = b.mds.memory().bytes;
    for round in 0..300 {
        let after = names.get(250 * (round % 8)).map(|name| Name::from(name.clone()));
        let op = Op::Readdir { after, max_entries: 0, max_bytes: 0 };
        let list = b.send(2, dir, "", NONE, op);
        assert_eq!(b.answer(list).unwrap().result, 0);
        assert!(b.mds.leases_of(ClientId(2)) <= names.len(), "round {round}");
    }
    let held = b.mds.leases_of(ClientId(2));
    assert!(held > 1_900, "{held}");
    b.mds.check_memory().unwrap();
    // Names are given anew, and there is a bound for all of them.
    assert!(b.mds.memory().bytes < before + (8 << 20));
    b.pass(b.now + 6 * SECOND);
    b.event(Event::Wake);
    assert_eq!((b.mds.leases_of(ClientId(1)), b.mds.leases_of(ClientId(2))), (0, 0));
    b.mds.check_memory().unwrap();
}
