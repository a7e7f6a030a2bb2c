//! Single requests: locks, quotas, subvolumes and their ceilings, layouts, logs that are damaged.

use bytes::Bytes;
use mds::{
    Action, Batch, Bug, CapAttrs, CapsOp, CapsUpdate, Claim, ClientId, Conf, Event, Extra,
    FileLock, Grant, Ino, LayoutHints, LockKind, LockRequest, LockType, Mds, Name, Op, Release,
    Rights, SessionEvent, SessionMessage, SetAttr, Space, Tables, XattrMode, caps,
};
use mds_sim::bench::Bench;
use types::{Errno, Utime};

const SECOND: u64 = 1_000_000_000;
const NONE: (Ino, &str) = (Ino(0), "");

fn create() -> Op {
    Op::Create {
        mode: 0o644,
        wanted: 0,
        exclusive: true,
        truncate: false,
        layout: LayoutHints::default(),
    }
}

fn set(name: &'static str, value: &'static str) -> Op {
    Op::Setxattr {
        name: Name::from_static(name.as_bytes()),
        value: Bytes::from_static(value.as_bytes()),
        mode: XattrMode::Any,
    }
}

fn lock(kind: LockType, owner: u64, start: u64, length: u64, wait: bool) -> Op {
    let lock = FileLock { start, length, client: ClientId(0), owner, pid: owner, kind };
    Op::SetLock(LockRequest { rule: LockKind::Posix, lock, wait, interrupt: false })
}

#[test]
fn a_lock_waits_for_the_range_that_it_needs() {
    let mut b = Bench::new(Bench::conf());
    b.open(2);
    let ino = b.ask(Ino::ROOT, "f", create()).target.unwrap().inode.ino;
    assert_eq!(b.ask(ino, "", lock(LockType::Exclusive, 1, 0, 100, true)).result, 0);
    let other = b.send(2, ino, "", NONE, lock(LockType::Exclusive, 9, 100, 10, false));
    assert_eq!(b.answer(other).unwrap().result, 0);
    let busy = b.send(2, ino, "", NONE, lock(LockType::Shared, 9, 40, 10, false));
    assert_eq!(b.answer(busy).unwrap().result, -Errno::EAGAIN.0);
    let waits = b.send(2, ino, "", NONE, lock(LockType::Shared, 9, 40, 10, true));
    assert_eq!(b.answer(waits), None);
    // The two would wait for each other.
    assert_eq!(
        b.ask(ino, "", lock(LockType::Exclusive, 1, 105, 1, true)).result,
        -Errno::EDEADLK.0
    );
    // A part of the range that is not needed comes back: nothing changes for the other.
    assert_eq!(b.ask(ino, "", lock(LockType::Unlock, 1, 0, 40, false)).result, 0);
    assert_eq!(b.answer(waits), None);
    assert_eq!(b.ask(ino, "", lock(LockType::Unlock, 1, 40, 10, false)).result, 0);
    assert_eq!(b.answer(waits).unwrap().result, 0);
    let Op::SetLock(ask) = lock(LockType::Exclusive, 7, 45, 1, false) else { unreachable!() };
    let held = b.ask(ino, "", Op::GetLock(ask));
    let Extra::Lock(_, held) = held.extra else { panic!("{held:?}") };
    assert_eq!((held.client, held.start, held.length), (ClientId(2), 40, 10));
}

#[test]
fn locks_of_a_client_go_with_its_session() {
    let mut b = Bench::new(Bench::conf());
    b.open(2);
    let ino = b.ask(Ino::ROOT, "f", create()).target.unwrap().inode.ino;
    let held = b.send(2, ino, "", NONE, lock(LockType::Exclusive, 1, 0, 0, true));
    assert_eq!(b.answer(held).unwrap().result, 0);
    let waits = b.send(1, ino, "", NONE, lock(LockType::Exclusive, 1, 5, 1, true));
    assert_eq!(b.answer(waits), None);
    b.event(Event::Session(ClientId(2), SessionEvent::Close { seq: 0 }));
    assert_eq!(b.answer(waits).unwrap().result, 0);
}

/// What another client sees of a file, of which a first one has written more than it told when its
/// session ends so.
fn seen_after(end: SessionEvent) -> mds::Inode {
    let mut b = Bench::new(Bench::conf());
    b.open(2);
    let wanted = caps::for_mode(true, true, false);
    let layout = LayoutHints::default();
    let op = Op::Create { mode: 0o644, wanted, exclusive: true, truncate: false, layout };
    let ino = b.ask(Ino::ROOT, "f", op).target.unwrap().inode.ino;
    b.disk.data.insert(ino, 60_000);
    b.event(Event::Session(ClientId(1), end));
    let found = b.send(2, Ino::ROOT, "f", NONE, Op::Lookup { mask: caps::FILE_SHARED });
    (*b.answer(found).unwrap().target.as_ref().unwrap().inode).clone()
}

#[test]
fn what_an_evicted_client_wrote_is_found() {
    assert_eq!(seen_after(SessionEvent::Evict).size, 60_000);
}

/// Its times are those that it told, and not those at which its data came to the OSDs.
#[test]
fn what_a_client_told_before_it_left_is_not_looked_for() {
    let inode = seen_after(SessionEvent::Close { seq: 0 });
    assert_eq!((inode.size, inode.ranges.len()), (0, 0));
}

#[test]
fn a_quota_of_files_counts_what_is_below() {
    let mut b = Bench::new(Bench::conf());
    let dir = b.mkdir(Ino::ROOT, "q");
    // The directory itself is one.
    assert_eq!(b.ask(dir, "", set("ceph.quota.max_files", "3")).result, 0);
    let sub = b.mkdir(dir, "sub");
    assert_eq!(b.ask(sub, "a", create()).result, 0);
    assert_eq!(b.ask(sub, "b", create()).result, -Errno::EDQUOT.0);
    assert_eq!(b.ask(Ino::ROOT, "b", create()).result, 0);
    let tid = b.send(1, sub, "b", (Ino::ROOT, "b"), Op::Rename);
    assert_eq!(b.answer(tid).unwrap().result, -Errno::EDQUOT.0);
    assert_eq!(b.ask(sub, "a", Op::Unlink).result, 0);
    assert_eq!(b.ask(sub, "b", create()).result, 0);
}

#[test]
fn a_quota_of_bytes_bounds_what_a_writer_is_granted() {
    let mut b = Bench::new(Bench::conf());
    let dir = b.mkdir(Ino::ROOT, "q");
    assert_eq!(b.ask(dir, "", set("ceph.quota", "max_bytes=100000")).result, 0);
    let wanted = caps::for_mode(true, true, false);
    let layout = LayoutHints::default();
    let op = Op::Create { mode: 0o644, wanted, exclusive: true, truncate: false, layout };
    let stat = b.ask(dir, "f", op).target.unwrap();
    // 100,000 bytes are in two objects of 65,536.
    assert!(stat.max_size <= 131_072, "{}", stat.max_size);
    let update = mds::CapsUpdate {
        ino: stat.inode.ino,
        cap_id: stat.cap.cap_id,
        seq: stat.cap.seq,
        issue_seq: stat.cap.seq,
        caps: stat.cap.caps,
        wanted,
        max_size: 300_000,
        ..mds::CapsUpdate::default()
    };
    b.event(Event::Caps(ClientId(1), update));
    let granted = b.told.iter().rev().find_map(|(_, _, a)| match a {
        Action::Caps(_, m) => Some(m.max_size),
        _ => None,
    });
    // A client that waits for it would wait for ever; it gets no byte more.
    assert_eq!(granted, Some(300_000));
    let size = SetAttr { size: Some(100_001), ..SetAttr::default() };
    let other = b.ask(dir, "g", create()).target.unwrap().inode.ino;
    assert_eq!(b.ask(other, "", Op::Setattr(size)).result, -Errno::EDQUOT.0);
}

/// Renames a name of the root, and says whether client 1 had to give up that it knows its names.
fn rename_gives_names_up(b: &mut Bench, from: &str, to: &str) -> bool {
    let before = b.told.len();
    let had = b.mds.issued(Ino::ROOT, ClientId(1));
    assert!(had & caps::FILE_SHARED != 0, "{had:#x}");
    let tid = b.send(1, Ino::ROOT, to, (Ino::ROOT, from), Op::Rename);
    assert_eq!(b.answer(tid).unwrap().result, 0);
    b.told[before..].iter().any(|(_, _, action)| {
        matches!(action, Action::Caps(_, m) if m.op == CapsOp::Revoke
            && m.inode.ino == Ino::ROOT && m.caps & caps::FILE_SHARED == 0)
    })
}

#[test]
fn a_client_gives_names_up_when_a_rename_has_it_forget_some_that_stay() {
    let mut b = Bench::new(Bench::conf());
    let ino = b.ask(Ino::ROOT, "a", create()).target.unwrap().inode.ino;
    assert_eq!(b.ask(Ino::ROOT, "c", create()).result, 0);
    assert_eq!(b.ask(Ino::ROOT, "d", create()).result, 0);
    // A file with one name is replaced: the client may go on with its names.
    assert!(!rename_gives_names_up(&mut b, "c", "d"));
    let link = b.send(1, Ino::ROOT, "b", (ino, ""), Op::Link);
    assert_eq!(b.answer(link).unwrap().result, 0);
    // Over one of two names.
    assert!(rename_gives_names_up(&mut b, "d", "a"));
    assert_eq!(b.ask(Ino::ROOT, "b", Op::Lookup { mask: 0 }).result, 0);
}

#[test]
fn a_subvolume_has_numbers_of_its_own_and_is_left_by_no_rename() {
    let mut b = Bench::new(Bench::conf());
    let dir = b.mkdir(Ino::ROOT, "s");
    assert_eq!(b.ask(dir, "", set("ceph.dir.subvolume", "1")).result, 0);
    let sub = b.mkdir(dir, "sub");
    let file = b.ask(sub, "f", create()).target.unwrap().inode.ino;
    assert_eq!((sub.space(), file.space()), (Space::FIRST, Space::FIRST));
    assert_eq!(dir.space(), Space::COMMON);
    for (from, to) in [((sub, "f"), Ino::ROOT), ((Ino::ROOT, "o"), sub)] {
        b.ask(Ino::ROOT, "o", create());
        for op in [Op::Rename, Op::Link] {
            // The old name of a link is the inode.
            let path2 = match (&op, from.1) {
                (Op::Link, "f") => (file, ""),
                _ => from,
            };
            let tid = b.send(1, to, "n", path2, op);
            assert_eq!(b.answer(tid).unwrap().result, -Errno::EXDEV.0);
        }
    }
    assert_eq!(b.ask(sub, "", set("ceph.dir.subvolume", "1")).result, -Errno::ENOTEMPTY.0);
    b.restart(Bench::conf());
    b.event(Event::Reconnected(ClientId(1)));
    assert!(b.mds.is_active());
    let more = b.ask(sub, "g", create()).target.unwrap().inode.ino;
    // Others may have been told before the log had them.
    assert!(more.0 > file.0 && more.space() == Space::FIRST, "{more:?}");
}

#[test]
fn a_subvolume_may_be_older_than_its_mark() {
    let mut b = Bench::new(Bench::conf());
    let dir = b.mkdir(Ino::ROOT, "s");
    // As a stock manager makes one: the directory for clients first.
    let sub = b.mkdir(dir, "sub");
    b.event(Event::Flush);
    b.restart(Bench::conf());
    b.event(Event::Reconnected(ClientId(1)));
    assert_eq!(b.ask(dir, "", set("ceph.dir.subvolume", "1")).result, 0);
    assert_eq!((sub.space(), dir.space()), (Space::COMMON, Space::COMMON));
    let file = b.ask(sub, "f", create()).target.unwrap().inode.ino;
    let deep = b.mkdir(sub, "d");
    let meta = b.ask(dir, ".meta", create()).target.unwrap().inode.ino;
    for ino in [file, deep, meta] {
        assert_eq!(ino.space(), Space::FIRST);
    }
    for (to, name, from, result) in [
        (deep, "f", (sub, "f"), 0),
        (dir, "moved", (dir, "sub"), 0),
        (deep, "in", (dir, "moved"), -Errno::EXDEV.0),
        (Ino::ROOT, "f", (deep, "f"), -Errno::EXDEV.0),
        (Ino::ROOT, "moved", (dir, "moved"), -Errno::EXDEV.0),
        (Ino::ROOT, "gone", (Ino::ROOT, "s"), 0),
    ] {
        let tid = b.send(1, to, name, from, Op::Rename);
        assert_eq!(b.answer(tid).unwrap().result, result, "{name}");
    }
    let other = b.mkdir(Ino::ROOT, "other");
    b.mkdir(other, "sub");
    b.ask(other, "f", create());
    assert_eq!(b.ask(other, "", set("ceph.dir.subvolume", "1")).result, -Errno::ENOTEMPTY.0);
}

#[test]
fn a_ceiling_of_a_subvolume_is_shared_by_its_clients() {
    let mut b = Bench::new(Bench::conf());
    let dir = b.mkdir(Ino::ROOT, "s");
    assert_eq!(b.ask(dir, "", set("ceph.dir.subvolume", "1")).result, 0);
    let sub = b.mkdir(dir, "sub");
    let other = b.mkdir(Ino::ROOT, "other");
    assert_eq!(b.ask(other, "", set("ceph.dmclock.mds_limit", "100")).result, -Errno::EINVAL.0);
    for odd in ["-1", "x", "1.2345"] {
        assert_eq!(b.ask(dir, "", set("ceph.dmclock.mds_limit", odd)).result, -Errno::EINVAL.0);
    }
    assert_eq!(b.ask(dir, "", set("ceph.dmclock.mds_limit", "100")).result, 0);
    // They count, too.
    let over = b.send(1, dir, "", NONE, set("ceph.dmclock.mds_reservation", "101"));
    let shown = b.send(1, sub, "", NONE, Op::Getattr { mask: caps::XATTR_SHARED });
    b.pass(SECOND);
    assert_eq!(b.answer(over).unwrap().result, -Errno::EINVAL.0);
    let shown = b.answer(shown).unwrap().target.as_ref().unwrap();
    assert_eq!(shown.inode.xattrs[&b"ceph.dmclock.mds_limit"[..]], "100");
    let clients = 5;
    for client in 2..=clients {
        b.open(client);
    }
    let getattr = Op::Getattr { mask: 0 };
    // The same for a server that takes over, from its log and after a flush.
    for way in ["new", "replayed", "flushed"] {
        match way {
            "new" => {}
            "flushed" => b.event(Event::Flush),
            _ => {}
        }
        if way != "new" {
            b.restart(Bench::conf());
            for client in 1..=clients {
                b.event(Event::Reconnected(ClientId(client)));
            }
            assert!(b.mds.is_active());
        }
        let begun = b.now;
        let tids: Vec<u64> =
            (0..500).map(|i| b.send(1 + i % clients, sub, "", NONE, getattr.clone())).collect();
        let free = b.send(1, other, "", NONE, getattr.clone());
        assert!(b.answer(free).is_some(), "{way}: others do not wait for the subvolume");
        b.pass(begun + 2 * SECOND);
        let answered = tids.iter().filter(|t| b.answer(**t).is_some()).count();
        assert!((200..=205).contains(&answered), "{way}: {answered} in two seconds");
        b.pass(begun + 10 * SECOND);
    }
    // A change brings the directories above into memory.
    assert_eq!(b.ask(sub, "f", create()).result, 0);
    let used = b.mds.tenants();
    let mine = used.iter().find(|t| t.space == Space::FIRST).unwrap();
    assert_eq!((mine.offered, mine.served, mine.waiting), (501, 501, 0));
    assert_eq!(mine.path, Some(vec![Name::from_static(b"s")]));
}

#[test]
fn a_subvolume_has_half_beside_one_that_asks_for_all() {
    let mut b = Bench::new(mds::Conf { requests_at_once: 1, ..Bench::conf() });
    let mut subs = Vec::new();
    for name in ["mine", "theirs"] {
        let tid = b.send(1, Ino::ROOT, name, NONE, Op::Mkdir { mode: 0o755 });
        b.turn();
        let dir = b.answer(tid).unwrap().target.as_ref().unwrap().inode.ino;
        b.send(1, dir, "", NONE, set("ceph.dir.subvolume", "1"));
        b.turn();
        subs.push(dir);
    }
    // Ten clients have asked for much when one of the other subvolume comes.
    for client in 2..=12 {
        b.open(client);
    }
    let getattr = Op::Getattr { mask: 0 };
    let mut theirs = Vec::new();
    for i in 0..1_000 {
        theirs.push(b.send(2 + i % 10, subs[1], "", NONE, getattr.clone()));
    }
    let mine: Vec<u64> = (0..100).map(|_| b.send(12, subs[0], "", NONE, getattr.clone())).collect();
    for _ in 0..200 {
        b.turn();
    }
    let answered = |tids: &[u64]| tids.iter().filter(|t| b.answer(**t).is_some()).count();
    let (mine, theirs) = (answered(&mine), answered(&theirs));
    assert!(mine + theirs >= 200 && mine >= 95, "{mine} of mine, {theirs} of theirs");
}

#[test]
fn a_layout_is_of_a_data_pool_and_of_empty_files() {
    let mut b = Bench::new(Bench::conf());
    let ino = b.ask(Ino::ROOT, "f", create()).target.unwrap().inode.ino;
    assert_eq!(b.ask(ino, "", set("ceph.file.layout.pool", "7")).result, -Errno::ENOENT.0);
    let odd = set("ceph.file.layout.object_size", "1000");
    assert_eq!(b.ask(ino, "", odd).result, -Errno::EINVAL.0);
    assert_eq!(b.ask(ino, "", set("ceph.file.layout.object_size", "131072")).result, 0);
    let size = SetAttr { size: Some(5), ..SetAttr::default() };
    assert_eq!(b.ask(ino, "", Op::Setattr(size)).result, 0);
    let late = set("ceph.file.layout.object_size", "65536");
    assert_eq!(b.ask(ino, "", late).result, -Errno::ENOTEMPTY.0);
    assert_eq!(b.ask(ino, "", set("ceph.no.such", "1")).result, -Errno::EINVAL.0);
}

#[test]
fn a_program_that_changes_hands_or_content_loses_its_rights() {
    let mut b = Bench::new(Bench::conf());
    let ino = b.ask(Ino::ROOT, "f", create()).target.unwrap().inode.ino;
    let no = SetAttr::default;
    for (before, set, after) in [
        (0o6755, SetAttr { size: Some(1), kill_sguid: true, ..no() }, 0o755),
        (0o6755, SetAttr { kill_sguid: true, ..no() }, 0o755),
        (0o4711, SetAttr { uid: Some(7), ..no() }, 0o711),
        (0o2755, SetAttr { gid: Some(7), ..no() }, 0o755),
        // A file without execute bits, and a mode in the request, stay.
        (0o6644, SetAttr { kill_sguid: true, ..no() }, 0o6644),
        (0o755, SetAttr { mode: Some(0o4755), uid: Some(8), ..no() }, 0o4755),
        (0o4755, SetAttr { mtime: Some(Utime::new(9, 0)), ..no() }, 0o4755),
    ] {
        let mode = SetAttr { mode: Some(before), ..no() };
        assert_eq!(b.ask(ino, "", Op::Setattr(mode)).result, 0);
        let told = b.ask(ino, "", Op::Setattr(set.clone())).target.unwrap();
        assert_eq!(told.inode.mode & 0o7777, after, "{before:o} {set:?}");
    }
}

#[test]
fn clients_that_hold_the_cache_are_asked_to_drop_inodes() {
    let mut b = Bench::new(mds::Conf { cache_entries_max: 50, ..Bench::conf() });
    b.open(2);
    for i in 0..300 {
        b.ask(Ino::ROOT, &format!("f{i}"), create());
    }
    let recalls = |b: &Bench| -> Vec<(ClientId, u64)> {
        b.told
            .iter()
            .filter_map(|(_, c, a)| match a {
                Action::Session(_, SessionMessage::Recall { max_caps }) => Some((*c, *max_caps)),
                _ => None,
            })
            .collect()
    };
    b.pass(2 * SECOND);
    b.ask(Ino::ROOT, "more", create());
    assert_eq!(recalls(&b), [(ClientId(1), 100)]);
    b.pass(b.now + SECOND);
    assert_eq!(recalls(&b), [(ClientId(1), 100); 2]);
    // What clients drop, the server drops when it is at rest.
    b.event(Event::Flush);
    let held: Vec<(Ino, u64, u32)> = b
        .told
        .iter()
        .filter_map(|(_, _, a)| match a {
            Action::Reply(_, r) => {
                r.target.as_ref().map(|t| (t.inode.ino, t.cap.cap_id, t.cap.seq))
            }
            _ => None,
        })
        .collect();
    b.event(Event::CapRelease(ClientId(1), held));
    for _ in 0..20 {
        b.event(Event::Wake);
    }
    assert!(b.mds.cached_entries() <= 50, "{} entries", b.mds.cached_entries());
}

#[test]
fn a_client_with_a_removed_file_hears_that_it_has_no_link() {
    let mut b = Bench::new(Bench::conf());
    b.open(2);
    let ino = b.ask(Ino::ROOT, "f", create()).target.unwrap().inode.ino;
    let look = b.send(2, Ino::ROOT, "f", NONE, Op::Lookup { mask: caps::ANY_SHARED });
    assert_eq!(b.answer(look).unwrap().result, 0);
    assert_eq!(b.ask(Ino::ROOT, "f", Op::Unlink).result, 0);
    let links = b.told.iter().rev().find_map(|(_, client, a)| match a {
        Action::Caps(_, m) if *client == ClientId(2) && m.inode.ino == ino => {
            (m.caps & caps::LINK_SHARED != 0).then_some(m.inode.nlink)
        }
        _ => None,
    });
    assert_eq!(links, Some(0));
}

#[test]
fn a_client_stays_below_the_path_of_its_key() {
    let mut b = Bench::new(Bench::conf());
    b.open(2);
    let (home, other) = (b.mkdir(Ino::ROOT, "home"), b.mkdir(Ino::ROOT, "homes"));
    b.ask(other, "secret", create());
    let path = vec![Name::from_static(b"home")];
    let grant = Grant { write: true, path, ..Grant::default() };
    b.event(Event::Rights(ClientId(2), Rights::Some([grant].into())));
    let look = |mask| Op::Lookup { mask };
    let attrs = |mask| Op::Getattr { mask };
    let read = Op::Readdir { after: None, max_entries: 0, max_bytes: 0 };
    let chmod = Op::Setattr(SetAttr { mode: Some(0o777), ..SetAttr::default() });
    let (no, yes) = (-Errno::EACCES.0, 0);
    for (dir, name, from, op, result) in [
        (Ino::ROOT, "home", NONE, look(0), yes),
        (home, "", NONE, attrs(caps::ANY_SHARED), yes),
        (home, "mine", NONE, create(), yes),
        (home, "", NONE, read.clone(), yes),
        (home, "", NONE, set("user.a", "1"), yes),
        (home, "", NONE, chmod.clone(), yes),
        // Layouts and quotas need another letter.
        (home, "", NONE, set("ceph.quota.max_files", "1"), no),
        (Ino::ROOT, "", NONE, attrs(0), no),
        (Ino::ROOT, "homes", NONE, look(0), no),
        (Ino::ROOT, "homes/secret", NONE, attrs(0), no),
        (other, "secret", NONE, look(0), no),
        (other, "more", NONE, create(), no),
        (other, "", NONE, read, no),
        (other, "secret", NONE, Op::Open { wanted: 0, truncate: false }, no),
        (other, "", NONE, chmod, no),
        (other, "secret", NONE, Op::Unlink, no),
        (home, "got", (other, "secret"), Op::Rename, no),
        (other, "given", (home, "mine"), Op::Rename, no),
        (home, "got", (other, "secret"), Op::Link, no),
        (Ino::ROOT, "home", NONE, Op::Rmdir, no),
        (home, "yours", (home, "mine"), Op::Rename, yes),
    ] {
        let tid = b.send(2, dir, name, from, op.clone());
        assert_eq!(b.answer(tid).unwrap().result, result, "{dir:?} {name} {op:?}");
    }
    // A file that it has stays its, without a name, too.
    let ino = b.ask(home, "yours", look(0)).target.unwrap().inode.ino;
    let tid = b.send(2, home, "yours", NONE, Op::Open { wanted: caps::FILE_RD, truncate: false });
    assert_eq!(b.answer(tid).unwrap().result, yes);
    assert_eq!(b.ask(home, "yours", Op::Unlink).result, 0);
    let tid = b.send(2, ino, "", NONE, attrs(0));
    assert_eq!(b.answer(tid).unwrap().result, yes);
}

#[test]
fn odd_requests_are_refused() {
    let mut b = Bench::new(Bench::conf());
    let long = "x".repeat(256);
    assert_eq!(b.ask(Ino::ROOT, &long, create()).result, -Errno::ENAMETOOLONG.0);
    assert_eq!(b.ask(Ino::ROOT, "..", create()).result, -Errno::EINVAL.0);
    assert_eq!(b.ask(Ino::ROOT, "", create()).result, -Errno::EINVAL.0);
    for forged in [Ino(0), Ino::MDS_DIR, Ino::stray(3), Ino(1 << 50), Ino(u64::MAX)] {
        assert_eq!(b.ask(forged, "x", create()).result, -Errno::ESTALE.0, "{forged:?}");
    }
    let deep = "a/".repeat(2_100);
    assert_eq!(b.ask(Ino::ROOT, &deep, Op::Getattr { mask: 0 }).result, -Errno::ENAMETOOLONG.0);
    // A client without a session is not heard.
    let tid = b.send(77, Ino::ROOT, "", NONE, Op::Getattr { mask: 0 });
    assert_eq!(b.answer(tid), None);
}

#[test]
fn a_damaged_log_is_refused() {
    let b = Bench::new(Bench::conf());
    let (first, bytes) = b.disk.log.iter().next().expect("a batch");
    let with = |batch: Batch, bytes: Bytes| {
        Mds::replay(Bench::conf(), Tables::default()).batch(batch, &bytes)
    };
    assert!(with(*first, bytes.clone()).is_ok());
    for i in 0..bytes.len() {
        let mut bad = bytes.to_vec();
        bad[i] ^= 1;
        assert!(with(*first, bad.into()).is_err(), "byte {i}");
    }
    for len in 0..bytes.len() {
        assert!(with(*first, bytes.slice(..len)).is_err(), "cut at {len}");
    }
    assert!(with(Batch(first.0 + 1), bytes.clone()).is_err(), "another number");
    let mut replay = Mds::replay(Bench::conf(), Tables::default());
    assert!(replay.batch(*first, bytes).is_ok());
    assert!(replay.batch(*first, bytes).is_err(), "the same again");
}

#[test]
fn what_is_given_back_before_its_inode_is_read_is_not_asked_for() {
    let mut b = Bench::new(Bench::conf());
    b.open(2);
    let dir = b.mkdir(Ino::ROOT, "d");
    let getattr = Op::Getattr { mask: caps::FILE_SHARED };
    // Two that look at it: none of them has it alone.
    b.send(2, dir, "", NONE, getattr.clone());
    let stat = b.ask(dir, "", getattr).target.unwrap();
    assert_ne!(stat.cap.caps & caps::FILE_SHARED, 0);
    b.event(Event::Flush);
    b.restart(Bench::conf());
    for client in [1, 2] {
        b.event(Event::Session(ClientId(client), SessionEvent::Open));
        if client == 1 {
            let claim = Claim {
                ino: dir,
                cap_id: stat.cap.cap_id,
                issued: stat.cap.caps,
                ..Claim::default()
            };
            b.event(Event::Reconnect(ClientId(1), vec![claim]));
        }
        b.event(Event::Reconnected(ClientId(client)));
    }
    assert_eq!(b.mds.issued(dir, ClientId(1)), 0, "the inode is in memory");
    let release = Release {
        ino: dir,
        cap_id: stat.cap.cap_id,
        caps: caps::PIN,
        wanted: 0,
        seq: 0,
        issue_seq: 0,
        lease: None,
    };
    b.told.clear();
    let tid = b.send_with(1, dir, "f", vec![release], create());
    assert_eq!(b.answer(tid).unwrap().result, 0);
    let revoked = b.told.iter().any(|(_, client, action)| {
        let Action::Caps(_, message) = action else { return false };
        *client == ClientId(1) && message.op == CapsOp::Revoke && message.inode.ino == dir
    });
    assert!(!revoked, "a client does not answer when it is asked for what it gave back");
}

#[test]
fn a_rename_that_does_nothing_is_answered_without_a_name() {
    let mut b = Bench::new(Bench::conf());
    let dir = b.mkdir(Ino::ROOT, "d");
    let ino = b.ask(Ino::ROOT, "x", create()).target.unwrap().inode.ino;
    for (to, name) in [(Ino::ROOT, "y"), (dir, "z")] {
        let tid = b.send(1, to, name, (Ino::ROOT, "x"), Op::Link);
        assert_eq!(b.answer(tid).unwrap().result, 0);
    }
    // As a stock server answers.
    for (to, name) in [(Ino::ROOT, "x"), (Ino::ROOT, "y"), (dir, "z")] {
        let tid = b.send(1, to, name, (Ino::ROOT, "x"), Op::Rename);
        let reply = b.answer(tid).unwrap();
        assert_eq!((reply.result, &reply.dentry, &reply.target), (0, &None, &None), "{name}");
        let found = b.ask(Ino::ROOT, "x", Op::Lookup { mask: 0 }).target.unwrap();
        assert_eq!((found.inode.ino, found.inode.nlink), (ino, 3));
    }
}

/// What the mode of a file is when its client says that it has changed it, and gives up the right
/// to do so with the request behind that, before the inode is read.
fn mode_after_a_change_and_a_release(bug: Bug) -> u32 {
    let conf = || Conf { bug, ..Bench::conf() };
    let mut b = Bench::new(conf());
    b.open(2);
    let stat = b.ask(Ino::ROOT, "f", create()).target.unwrap();
    assert_ne!(stat.cap.caps & caps::AUTH_EXCL, 0);
    b.event(Event::Flush);
    b.restart(conf());
    let (ino, cap_id, issued) = (stat.inode.ino, stat.cap.cap_id, stat.cap.caps);
    for client in [1, 2] {
        b.event(Event::Session(ClientId(client), SessionEvent::Open));
        if client == 1 {
            let claim = Claim { ino, cap_id, issued, ..Claim::default() };
            b.event(Event::Reconnect(ClientId(1), vec![claim]));
        }
        b.event(Event::Reconnected(ClientId(client)));
    }
    assert_eq!(b.mds.issued(ino, ClientId(1)), 0, "the inode is in memory");
    let attrs = CapAttrs { mode: 0o100_600, ..CapAttrs::default() };
    let change = CapsUpdate {
        ino,
        cap_id,
        caps: issued,
        dirty: caps::AUTH_EXCL,
        flush: Some(1),
        attrs,
        ..CapsUpdate::default()
    };
    // The reads that it waits for are under way when the request comes.
    b.mds.handle(0, Event::Caps(ClientId(1), change));
    let caps = issued & !caps::AUTH_EXCL;
    let (wanted, seq, issue_seq, lease) = (0, 0, 0, None);
    let release = Release { ino, cap_id, caps, wanted, seq, issue_seq, lease };
    b.send_with(1, Ino::ROOT, "g", vec![release], create());
    let seen = b.send(2, ino, "", NONE, Op::Getattr { mask: caps::AUTH_SHARED });
    b.answer(seen).unwrap().target.as_ref().unwrap().inode.mode & 0o777
}

#[test]
fn a_change_counts_although_its_client_has_given_up_the_right_meanwhile() {
    assert_eq!(mode_after_a_change_and_a_release(Bug::CapsOvertake), 0o644);
    assert_eq!(mode_after_a_change_and_a_release(Bug::None), 0o600);
}

/// How often a client is answered that asks twice, and once more after it began its session anew.
fn answers_of_a_request_that_comes_again(bug: Bug) -> [usize; 2] {
    let mut b = Bench::new(Conf { bug, ..Bench::conf() });
    let tid = b.send(1, Ino::ROOT, "f", NONE, create());
    b.send_again();
    let answered = b.answers(tid).len();
    b.open(1);
    b.send_again();
    [answered, b.answers(tid).len()]
}

#[test]
fn a_request_that_comes_again_is_answered_once() {
    assert_eq!(answers_of_a_request_that_comes_again(Bug::None), [1, 2]);
    assert_eq!(answers_of_a_request_that_comes_again(Bug::AnswerTwice), [2, 3]);
}
