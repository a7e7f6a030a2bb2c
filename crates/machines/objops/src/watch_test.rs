//! Watches and notifications without connections and clocks.

use crate::watch::*;
use bytes::Bytes;
use denc::{Reader, Result};
use messages::WatchNotify;
use std::time::{Duration, Instant};
use types::object_info::WatchInfo;
use types::rados::watch_event::{DISCONNECT, NOTIFY, NOTIFY_COMPLETE};
use types::{EntityAddr, EntityName, Errno, ObjectId, PoolId, SnapId};

/// A connection; above 100 it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Conn(u64);

impl Link for Conn {
    fn session(&self) -> u64 {
        self.0
    }
    fn is_open(&self) -> bool {
        self.0 < 100
    }
}

struct Bench {
    w: Watches<Conn>,
    t0: Instant,
    t: Duration,
    next: u64,
}

fn oid(name: &'static str) -> ObjectId {
    ObjectId::new(PoolId(1), "", name, "", SnapId::NOSNAP)
}

fn watcher(client: i64, cookie: u64) -> Watcher {
    (cookie, EntityName::client(client))
}

fn addr(nonce: u32) -> EntityAddr {
    EntityAddr { nonce, ..EntityAddr::default() }
}

type Answers = (Vec<((u64, u64), Bytes)>, Vec<(u64, u64)>);

fn answers(m: &WatchNotify) -> Answers {
    let mut r = Reader::new(m.answers.clone());
    let read = |r: &mut Reader| -> Result<Answers> { Ok((r.get()?, r.get()?)) };
    let all = read(&mut r).unwrap();
    assert_eq!(r.left(), 0);
    all
}

impl Bench {
    fn new() -> Self {
        Bench { w: Watches::default(), t0: Instant::now(), t: Duration::ZERO, next: 0 }
    }

    fn now(&self) -> Instant {
        self.t0 + self.t
    }

    /// Lets seconds pass; returns the watches that are over.
    fn pass(&mut self, seconds: u64) -> Vec<Watcher> {
        self.t += Duration::from_secs(seconds);
        self.w.expire(self.now()).into_iter().map(|(_, w)| w).collect()
    }

    fn apply(&mut self, name: &'static str, client: i64, conn: u64, effects: Effects) {
        let from = From {
            entity: EntityName::client(client),
            addr: addr(client as u32),
            link: Conn(conn),
        };
        let now = self.now();
        self.w.apply(&oid(name), effects, &from, 77, now);
    }

    fn begin(&mut self, name: &'static str, client: i64, conn: u64, cookie: u64, pings: bool) {
        let begun = vec![Begun { cookie, timeout: 30, pings }];
        self.apply(name, client, conn, Effects { begun, ..Effects::default() });
    }

    fn watch(&mut self, client: i64, conn: u64, cookie: u64) {
        self.begin("a", client, conn, cookie, true);
    }

    /// A notification of "a" by client 9; its id.
    fn notify(&mut self, timeout: u32) -> u64 {
        self.next += 1;
        let n =
            NotifyStart { id: self.next, cookie: 5, timeout, payload: Bytes::from_static(b"hi") };
        self.apply("a", 9, 9, Effects { notifies: vec![n], ..Effects::default() });
        self.next
    }

    fn ack(&mut self, client: i64, conn: u64, id: u64, cookie: Option<u64>, reply: &'static str) {
        let acks = vec![NotifyAck { id, cookie, reply: reply.into() }];
        self.apply("a", client, conn, Effects { acks, ..Effects::default() });
    }

    fn end(&mut self, client: i64, cookie: u64, tell: bool) {
        self.w.end(&oid("a"), &watcher(client, cookie), tell);
    }

    fn ping(&mut self, client: i64, cookie: u64) -> bool {
        let now = self.now();
        self.w.ping(&oid("a"), &watcher(client, cookie), now)
    }

    /// Messages since the last call: connection, event, cookie.
    fn sent(&mut self) -> Vec<(u64, u8, u64)> {
        self.w.take_messages().iter().map(|(c, m)| (c.0, m.opcode, m.cookie)).collect()
    }
}

#[test]
fn a_notification_gathers_the_answers_of_all_watches() {
    let mut b = Bench::new();
    b.watch(1, 1, 10);
    b.watch(2, 2, 20);
    b.watch(2, 2, 21);
    b.begin("another", 3, 3, 30, true);
    let id = b.notify(30);
    let told = b.w.take_messages();
    assert_eq!(told.len(), 3);
    for (_, m) in &told {
        assert_eq!((m.opcode, m.notify_id, m.notifier_gid, m.ver), (NOTIFY, id, 9, 77));
        assert_eq!(m.payload, "hi");
    }
    b.ack(2, 2, id, Some(21), "two");
    b.ack(2, 2, id, Some(21), "again");
    b.ack(1, 1, id + 1, Some(10), "to what was never asked");
    b.ack(3, 3, id, Some(10), "from somebody else");
    b.ack(1, 1, id, Some(10), "one");
    assert_eq!(b.sent(), []);
    b.ack(2, 2, id, Some(20), "");
    let told = b.w.take_messages();
    let [(conn, m)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(
        (conn.0, m.opcode, m.cookie, m.notify_id, m.return_code),
        (9, NOTIFY_COMPLETE, 5, id, 0)
    );
    let replies = vec![((1, 10), "one".into()), ((2, 20), "".into()), ((2, 21), "two".into())];
    assert_eq!(answers(m), (replies, vec![]));
}

#[test]
fn with_nobody_to_wait_for_a_notification_completes_at_once() {
    let mut b = Bench::new();
    let id = b.notify(30);
    let told = b.w.take_messages();
    assert_eq!(
        (told[0].1.opcode, told[0].1.notify_id, told[0].1.return_code),
        (NOTIFY_COMPLETE, id, 0)
    );
    assert_eq!(&told[0].1.answers[..], &[0; 8]);
    assert!(b.w.is_empty());
}

#[test]
fn a_notification_times_out_and_names_who_did_not_answer() {
    let mut b = Bench::new();
    b.watch(1, 1, 10);
    b.watch(2, 2, 20);
    let id = b.notify(7);
    b.ack(1, 1, id, Some(10), "x");
    b.sent();
    assert_eq!(b.w.take_soonest(), Some(b.t0 + Duration::from_secs(7)));
    assert_eq!(b.pass(6), []);
    assert_eq!(b.sent(), []);
    assert_eq!(b.pass(1), []);
    let told = b.w.take_messages();
    assert_eq!(
        (told[0].1.opcode, told[0].1.return_code),
        (NOTIFY_COMPLETE, Errno::ETIMEDOUT.as_result())
    );
    assert_eq!(answers(&told[0].1), (vec![((1, 10), "x".into())], vec![(2, 20)]));
    // Too late.
    b.ack(2, 2, id, Some(20), "y");
    assert_eq!(b.sent(), []);
}

#[test]
fn old_clients_answer_for_all_their_watches() {
    let mut b = Bench::new();
    b.begin("a", 1, 1, 10, false);
    b.begin("a", 1, 1, 11, false);
    let id = b.notify(30);
    b.sent();
    b.ack(1, 1, id, None, "");
    assert_eq!(b.sent(), [(9, NOTIFY_COMPLETE, 5)]);
}

#[test]
fn an_ended_watch_is_not_waited_for() {
    let mut b = Bench::new();
    b.watch(1, 1, 10);
    b.watch(2, 2, 20);
    b.notify(30);
    b.sent();
    b.end(1, 10, false);
    assert_eq!(
        b.sent(),
        [],
        "the other one has not answered, and an unwatch is not answered by an event"
    );
    b.end(2, 20, true);
    assert_eq!(b.sent(), [(2, DISCONNECT, 20), (9, NOTIFY_COMPLETE, 5)]);
    assert!(b.w.is_empty());
}

#[test]
fn pings_keep_a_watch_and_silence_ends_it() {
    let mut b = Bench::new();
    b.watch(1, 1, 10);
    assert_eq!(b.w.take_soonest(), Some(b.t0 + Duration::from_secs(30)));
    assert_eq!(b.pass(29), []);
    assert!(b.ping(1, 10));
    assert_eq!(b.pass(29), []);
    assert_eq!(b.w.next_deadline(), Some(b.t0 + Duration::from_secs(59)));
    assert_eq!(b.pass(1), [watcher(1, 10)]);
    assert!(b.w.is_ending(&oid("a"), &watcher(1, 10)));
    assert_eq!(b.pass(1), [], "once");
    // The last moment: the object's info has the watch still.
    assert!(b.ping(1, 10));
    assert!(!b.w.is_ending(&oid("a"), &watcher(1, 10)));
    assert_eq!(b.pass(30), [watcher(1, 10)]);
    b.end(1, 10, true);
    assert_eq!(b.sent(), [(1, DISCONNECT, 10)]);
    assert!(!b.ping(1, 10));
}

#[test]
fn a_watch_without_connection_waits_for_it_and_then_hears_what_it_missed() {
    let mut b = Bench::new();
    b.watch(1, 1, 10);
    b.w.disconnected(1, b.now());
    assert!(!b.ping(1, 10), "it must be taken up again");
    b.notify(60);
    assert_eq!(b.sent(), []);
    assert_eq!(b.pass(20), []);
    b.watch(1, 2, 10);
    assert_eq!(b.sent(), [(2, NOTIFY, 10)]);
    b.watch(1, 2, 10);
    assert_eq!(b.sent(), [], "it is connected already");
    // The old connection's end is told late.
    b.w.disconnected(1, b.now());
    assert!(b.ping(1, 10));
    assert_eq!(b.pass(29), []);
    assert_eq!(b.pass(1), [watcher(1, 10)]);
}

#[test]
fn a_watch_without_pings_lives_as_long_as_its_connection() {
    let mut b = Bench::new();
    b.begin("a", 1, 1, 10, false);
    assert_eq!(b.pass(1000), []);
    assert_eq!(b.w.next_deadline(), None);
    b.w.disconnected(1, b.now());
    assert_eq!(b.pass(29), []);
    assert_eq!(b.pass(1), [watcher(1, 10)]);
}

#[test]
fn a_connection_that_went_before_the_watch_began_counts_as_gone() {
    let mut b = Bench::new();
    b.watch(1, 101, 10);
    b.begin("a", 2, 102, 20, false);
    assert!(!b.ping(1, 10));
    assert_eq!(b.pass(30), [watcher(1, 10), watcher(2, 20)]);
}

#[test]
fn who_is_silent_for_too_long_is_not_notified() {
    let mut b = Bench::new();
    b.watch(1, 1, 10);
    b.t += Duration::from_secs(31);
    b.notify(30);
    assert_eq!(b.sent(), [(9, NOTIFY_COMPLETE, 5)]);
}

#[test]
fn watches_of_an_earlier_interval_wait_for_their_clients() {
    let mut b = Bench::new();
    let info = |nonce| WatchInfo { cookie: 10, timeout_seconds: 30, addr: addr(nonce) };
    let stored = [(watcher(1, 10), info(1)), (watcher(2, 10), info(2)), (watcher(3, 10), info(3))];
    let populate = |b: &mut Bench| {
        let now = b.now();
        b.w.populate(&oid("a"), stored.iter().map(|(k, v)| (k, v)), |a| a.nonce == 3, now);
    };
    populate(&mut b);
    assert_eq!(b.pass(0), [watcher(3, 10)], "the blocked one goes at once");
    assert!(!b.ping(1, 10));
    b.notify(100);
    assert_eq!(b.sent(), []);
    b.watch(1, 1, 10);
    assert_eq!(b.sent(), [(1, NOTIFY, 10)]);
    populate(&mut b);
    assert!(b.ping(1, 10), "what is known stays as it is");
    assert_eq!(b.pass(29), []);
    assert!(b.ping(1, 10));
    assert_eq!(b.pass(1), [watcher(2, 10)]);
    assert_eq!(b.w.rows().len(), 3);
    b.w.clear();
    assert!(b.w.is_empty() && b.sent().is_empty() && b.w.next_deadline().is_none());
}

#[test]
fn nothing_saves_the_watch_of_a_blocked_client() {
    let mut b = Bench::new();
    b.watch(1, 1, 10);
    b.watch(2, 2, 20);
    b.w.take_soonest();
    b.w.check_blocklist(|a| a.nonce == 1, b.now());
    assert_eq!(b.w.take_soonest(), Some(b.now()));
    assert_eq!(b.pass(0), [watcher(1, 10)]);
    b.ping(1, 10);
    b.watch(1, 3, 10);
    assert!(b.w.is_ending(&oid("a"), &watcher(1, 10)));
    b.w.check_blocklist(|a| a.nonce == 1, b.now());
    assert_eq!(b.pass(0), [], "it was returned");
    let later = b.now() + Duration::from_secs(1);
    b.w.postpone(&oid("a"), &watcher(1, 10), later);
    assert_eq!(b.pass(1), [watcher(1, 10)]);
}
