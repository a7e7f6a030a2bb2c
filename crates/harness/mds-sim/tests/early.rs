//! Answers before what they tell of is durable, one by one.

use mds::{
    CapAttrs, CapsUpdate, Claim, ClientId, Event, Ino, InodeStat, LayoutHints, Op, SessionEvent,
    SetAttr, caps,
};
use mds_sim::bench::Bench;

const NONE: (Ino, &str) = (Ino(0), "");

fn create(wanted: u32) -> Op {
    let layout = LayoutHints::default();
    Op::Create { mode: 0o644, wanted, exclusive: true, truncate: false, layout }
}

/// A server whose log has promised numbers, and a directory.
fn bench() -> (Bench, Ino) {
    let mut b = Bench::new(Bench::conf());
    b.open(2);
    let dir = b.mkdir(Ino::ROOT, "d");
    b.holds_log = true;
    (b, dir)
}

fn claim(stat: &InodeStat) -> Claim {
    Claim {
        ino: stat.inode.ino,
        cap_id: stat.cap.cap_id,
        issued: stat.cap.caps,
        wanted: stat.cap.wanted,
        locks: Vec::new(),
    }
}

#[test]
fn a_change_is_answered_at_once_and_again_when_it_is_durable() {
    let (mut b, dir) = bench();
    let tid = b.send(1, dir, "f", NONE, create(0));
    let early = b.answers(tid);
    assert_eq!(early.len(), 1);
    assert!(!early[0].safe && early[0].target.is_some());
    b.let_log_go();
    let all = b.answers(tid);
    assert_eq!(all.len(), 2);
    assert!(all[1].safe && all[1].target.is_none() && all[1].dentry.is_none());
}

#[test]
fn another_client_waits_for_it() {
    let (mut b, dir) = bench();
    b.send(1, dir, "f", NONE, create(0));
    let own = b.send(1, dir, "f", NONE, Op::Lookup { mask: 0 });
    let other = b.send(2, dir, "f", NONE, Op::Lookup { mask: 0 });
    assert_eq!((b.answers(own).len(), b.answers(other).len()), (1, 0));
    b.let_log_go();
    assert_eq!(b.answers(other).len(), 1);
}

#[test]
fn what_follows_a_change_of_another_client_waits() {
    let (mut b, dir) = bench();
    b.send(2, dir, "other", NONE, create(0));
    let tid = b.send(1, dir, "f", NONE, create(0));
    assert_eq!(b.answers(tid).len(), 0);
    b.let_log_go();
    assert_eq!(b.answers(tid).len(), 1);
    assert!(b.answers(tid)[0].safe);
}

#[test]
fn a_new_size_is_answered_when_it_is_durable() {
    let (mut b, dir) = bench();
    b.let_log_go();
    let ino = b.ask(dir, "f", create(0)).target.unwrap().inode.ino;
    b.holds_log = true;
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    let tid = b.send(1, ino, "", NONE, Op::Setattr(set));
    assert_eq!(b.answers(tid).len(), 0);
}

#[test]
fn nothing_is_early_without_the_option() {
    let (mut b, dir) = bench();
    b.mds.set_early_reply(false);
    let tid = b.send(1, dir, "f", NONE, create(0));
    assert_eq!(b.answers(tid).len(), 0);
    b.let_log_go();
    assert_eq!(b.answers(tid).len(), 1);
    assert!(b.answers(tid)[0].safe);
}

#[test]
fn a_file_that_is_made_again_has_its_number_its_claim_and_its_flush() {
    let (mut b, dir) = bench();
    let tid = b.send(1, dir, "f", NONE, create(caps::for_mode(true, true, false)));
    let stat = b.answers(tid)[0].target.clone().unwrap();
    let ino = stat.inode.ino;
    b.restart(Bench::conf());
    let update = CapsUpdate {
        ino,
        cap_id: stat.cap.cap_id,
        caps: stat.cap.caps,
        wanted: stat.cap.wanted,
        dirty: caps::FILE_WR,
        flush: Some(1),
        attrs: CapAttrs { size: 1_000, ..CapAttrs::default() },
        ..CapsUpdate::default()
    };
    b.come_back(2, &[], Vec::new());
    b.event(Event::Caps(ClientId(1), update));
    b.come_back(1, &[(tid, ino)], vec![claim(&stat)]);
    let last = *b.answers(tid).last().unwrap();
    assert!(last.safe && last.result == 0 && last.target.is_none(), "{last:?}");
    let found = b.send(2, dir, "f", NONE, Op::Lookup { mask: caps::FILE_SHARED });
    let found = b.answers(found)[0].target.clone().unwrap();
    assert_eq!((found.inode.ino, found.inode.size), (ino, 1_000));
    // New files get other numbers.
    let next = b.ask(dir, "next", create(0)).target.unwrap().inode.ino;
    assert_ne!(next, ino);
}

#[test]
fn what_a_writer_leaves_is_found_in_a_file_that_was_made_again() {
    let (mut b, dir) = bench();
    let tid = b.send(1, dir, "f", NONE, create(caps::for_mode(true, true, false)));
    let stat = b.answers(tid)[0].target.clone().unwrap();
    let ino = stat.inode.ino;
    assert!(stat.max_size >= 60_000, "{}", stat.max_size);
    b.disk.data.insert(ino, 60_000);
    b.restart(Bench::conf());
    b.come_back(2, &[], Vec::new());
    b.come_back(1, &[(tid, ino)], vec![claim(&stat)]);
    b.event(Event::Session(ClientId(1), SessionEvent::Evict));
    let found = b.send(2, dir, "f", NONE, Op::Lookup { mask: caps::FILE_SHARED });
    assert_eq!(b.answers(found)[0].target.clone().unwrap().inode.size, 60_000);
}

#[test]
fn a_number_that_is_in_use_is_not_given_again() {
    let (mut b, dir) = bench();
    let tid = b.send(1, dir, "f", NONE, create(0));
    b.restart(Bench::conf());
    b.come_back(2, &[], Vec::new());
    // What the client says that it was told is the directory.
    b.come_back(1, &[(tid, dir)], Vec::new());
    let found = b.ask(dir, "f", Op::Lookup { mask: 0 }).target.unwrap().inode;
    assert!(found.is_file() && found.ino != dir);
}

#[test]
fn a_request_that_was_done_is_not_done_again() {
    let (mut b, dir) = bench();
    let tid = b.send(1, dir, "f", NONE, create(0));
    let ino = b.answers(tid)[0].target.clone().unwrap().inode.ino;
    b.let_log_go();
    b.restart(Bench::conf());
    b.come_back(2, &[], Vec::new());
    b.come_back(1, &[(tid, ino)], Vec::new());
    let last = *b.answers(tid).last().unwrap();
    assert!(last.safe && last.result == 0 && last.target.is_none(), "{last:?}");
    assert_eq!(b.ask(dir, "f", Op::Lookup { mask: 0 }).target.unwrap().inode.ino, ino);
}
