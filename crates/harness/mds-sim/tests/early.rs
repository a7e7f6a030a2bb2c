//! Answers before what they tell of is durable, one by one.

use mds::{
    Action, CapAttrs, CapsOp, CapsUpdate, Claim, ClientId, Conf, Event, Ino, InodeStat,
    LayoutHints, Op, SessionEvent, SetAttr, caps,
};
use mds_sim::bench::Bench;

const NONE: (Ino, &str) = (Ino(0), "");
const PAUSE: u64 = 50_000_000;

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

/// As above, with a log that is not written while nothing waits for it.
fn bench_with_pauses() -> (Bench, Ino) {
    let mut b = Bench::new(Conf { log_pause: PAUSE, ..Bench::conf() });
    b.open(2);
    let dir = b.mkdir(Ino::ROOT, "d");
    b.pass(b.now + PAUSE);
    (b, dir)
}

#[test]
fn changes_that_nothing_waits_for_are_written_together() {
    let (mut b, dir) = bench_with_pauses();
    let batches = b.disk.log.len();
    let all: Vec<u64> = (0..20).map(|n| b.send(1, dir, &format!("{n}"), NONE, create(0))).collect();
    assert_eq!(b.disk.log.len(), batches);
    assert!(all.iter().all(|tid| b.answers(*tid).len() == 1));
    b.pass(b.now + PAUSE);
    assert_eq!(b.disk.log.len(), batches + 1);
    assert!(all.iter().all(|tid| b.answers(*tid).len() == 2 && b.answers(*tid)[1].safe));
}

#[test]
fn the_log_is_written_at_once_for_those_that_wait() {
    let (mut b, dir) = bench_with_pauses();
    // Another client.
    b.send(1, dir, "f", NONE, create(0));
    let other = b.send(2, dir, "f", NONE, Op::Lookup { mask: 0 });
    assert_eq!(b.answers(other).len(), 1);
    // The client itself, for a program that does.
    let made = b.send(1, dir, "g", NONE, create(caps::for_mode(true, true, false)));
    assert_eq!(b.answers(made).len(), 1);
    b.event(Event::Session(ClientId(1), SessionEvent::FlushLog { seq: 1 }));
    assert_eq!(b.answers(made).len(), 2);
    let stat = b.answers(made)[0].target.clone().expect("a file");
    let flush = |flush, sync| CapsUpdate {
        ino: stat.inode.ino,
        cap_id: stat.cap.cap_id,
        seq: stat.cap.seq,
        issue_seq: stat.cap.seq,
        caps: stat.cap.caps,
        wanted: stat.cap.wanted,
        dirty: caps::FILE_EXCL,
        flush: Some(flush),
        sync,
        ..CapsUpdate::default()
    };
    let is =
        |a: &Action| matches!(a, Action::Caps(_, m) if matches!(m.op, CapsOp::FlushAck { .. }));
    let acknowledged = |b: &Bench| b.told.iter().filter(|(_, _, a)| is(a)).count();
    b.event(Event::Caps(ClientId(1), flush(1, false)));
    assert_eq!(acknowledged(&b), 0);
    b.event(Event::Caps(ClientId(1), flush(2, true)));
    assert_eq!(acknowledged(&b), 2);
    // What is early is not put off without the option.
    b.mds.set_early_reply(false);
    let tid = b.send(1, dir, "h", NONE, create(0));
    assert_eq!(b.answers(tid).len(), 1);
    assert!(b.answers(tid)[0].safe);
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
    let tid = b.send(1, dir, "other", NONE, Op::Unlink);
    assert_eq!(b.answers(tid).len(), 0);
    b.let_log_go();
    assert!(b.answers(tid).last().is_some_and(|reply| reply.safe));
}

#[test]
fn a_change_beside_that_of_another_client_does_not_wait_and_shows_what_the_log_has() {
    let (mut b, dir) = bench();
    b.let_log_go();
    b.send(1, dir, "first", NONE, create(0));
    b.holds_log = true;
    b.send(2, dir, "other", NONE, create(0));
    let tid = b.send(1, dir, "f", NONE, create(0));
    let shown = b.answers(tid)[0].dentry.clone().unwrap().dir.inode;
    assert_eq!((shown.dirstat.files, shown.rstat.rfiles), (1, 1));
    // A client that passes through, and one that asks for what is counted.
    let above = b.send(2, Ino::ROOT, "d", NONE, Op::Lookup { mask: 0 });
    let above = b.answers(above)[0].clone();
    assert_eq!(above.dentry.unwrap().dir.inode.rstat.rfiles, 1);
    let mask = caps::FILE_SHARED | caps::FILE_WREXTEND;
    let asked = b.send(2, dir, "", NONE, Op::Getattr { mask });
    let rights = b.send(2, dir, "", NONE, Op::Getattr { mask: caps::AUTH_SHARED });
    assert_eq!((b.answers(asked).len(), b.answers(rights).len()), (0, 0));
    b.let_log_go();
    let now = b.answers(asked)[0].target.clone().unwrap().inode;
    assert_eq!((now.dirstat.files, now.rstat.rfiles), (3, 3));
    assert!(now.version > shown.version);
}

#[test]
fn a_client_does_not_know_what_waits_for_the_log() {
    let (mut b, dir) = bench();
    let none = Ino(0x7777);
    assert!(b.mds.knows_of_no_caps(ClientId(2), none));
    assert!(!b.mds.knows_of_no_caps(ClientId(1), dir));
    b.send(1, dir, "f", NONE, create(0));
    b.send(2, dir, "f", NONE, Op::Lookup { mask: 0 });
    assert!(!b.mds.knows_of_no_caps(ClientId(2), none));
    b.let_log_go();
    assert!(b.mds.knows_of_no_caps(ClientId(2), none));
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
