//! Watches in groups: what outlives a connection, an interval, and a watcher.

use crate::client_op::{ClientOp, ReplySink};
use crate::core_test::{Cluster, POOL, run};
use crate::host_watch::PINGS_APART;
use admission::work::{Fifo, Next, Queue, Work};
use bytes::Bytes;
use denc::{Decode, Encode, Features};
use messages::{Op, OsdOpReply, WatchNotify};
use objops::code::{OpArgs, OpCode, on_extent};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use types::rados::watch_event::{DISCONNECT, NOTIFY, NOTIFY_COMPLETE};
use types::rados::watch_op::{PING, RECONNECT, UNWATCH, WATCH};
use types::replies::ListWatchersResponse;
use types::{EntityAddr, EntityName, Errno, PgId, SnapId};

/// A connection of a client.
struct Ear {
    client: i64,
    session: u64,
    closed: Cell<bool>,
    replies: RefCell<Vec<OsdOpReply>>,
    events: RefCell<Vec<WatchNotify>>,
}

impl ReplySink for Ear {
    fn reply(&self, reply: OsdOpReply, _: u64, _: u16) {
        self.replies.borrow_mut().push(reply);
    }
    fn watch_event(&self, event: WatchNotify) {
        self.events.borrow_mut().push(event);
    }
    fn is_open(&self) -> bool {
        !self.closed.get()
    }
    fn session(&self) -> u64 {
        self.session
    }
}

fn ear(client: i64, session: u64) -> Rc<Ear> {
    Rc::new(Ear {
        client,
        session,
        closed: Cell::default(),
        replies: RefCell::default(),
        events: RefCell::default(),
    })
}

fn addr(client: i64) -> EntityAddr {
    EntityAddr { nonce: client as u32, ..EntityAddr::default() }
}

/// Lets all others work.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(2)).await;
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        pause().await;
    }
}

impl Ear {
    async fn ask(self: &Rc<Self>, c: &mut Cluster, op: Op) -> OsdOpReply {
        let (mut request, to) = c.message("o", SnapId::NOSNAP, vec![op]);
        request.source = EntityName::client(self.client);
        request.addr = addr(self.client);
        c.cores[to.0 as usize].handle_request(request, self.clone(), None);
        until("an answer", || !self.replies.borrow().is_empty()).await;
        self.replies.borrow_mut().remove(0)
    }

    async fn watch(self: &Rc<Self>, c: &mut Cluster, what: u8, timeout: u32) -> i32 {
        let args = OpArgs::Watch { cookie: 7, ver: 0, op: what, gen_: 1, timeout };
        self.ask(c, Op::new(OpCode::WATCH, args)).await.result
    }

    async fn notify(self: &Rc<Self>, c: &mut Cluster, timeout: u32) -> u64 {
        let indata = (1u32, timeout, Bytes::from_static(b"text")).to_bytes(Features::ALL);
        let op = Op { indata, ..Op::new(OpCode::NOTIFY, OpArgs::Notify { cookie: 3 }) };
        let reply = self.ask(c, op).await;
        assert_eq!(reply.result, 0);
        u64::from_bytes(&reply.ops[0].outdata).unwrap()
    }

    async fn ack(self: &Rc<Self>, c: &mut Cluster, id: u64) {
        let indata = (id, 7u64, Bytes::from_static(b"re")).to_bytes(Features::ALL);
        let args = OpArgs::Watch { cookie: id, ver: 0, op: 0, gen_: 0, timeout: 0 };
        assert_eq!(self.ask(c, Op { indata, ..Op::new(OpCode::NOTIFY_ACK, args) }).await.result, 0);
    }

    async fn watchers(self: &Rc<Self>, c: &mut Cluster) -> Vec<i64> {
        let reply = self.ask(c, on_extent(OpCode::LIST_WATCHERS, 0, 0)).await;
        let list = ListWatchersResponse::from_bytes(&reply.ops[0].outdata).unwrap();
        list.entries.iter().map(|w| w.name.num).collect()
    }

    fn heard(&self) -> Vec<u8> {
        self.events.borrow_mut().drain(..).map(|e| e.opcode).collect()
    }

    async fn hears(&self, opcode: u8) -> WatchNotify {
        until("an event", || !self.events.borrow().is_empty()).await;
        let event = self.events.borrow_mut().remove(0);
        assert_eq!(event.opcode, opcode);
        event
    }
}

thread_local! {
    static SHUT: Cell<bool> = const { Cell::new(false) };
}

/// A scheduler that lets nothing go while it is shut.
#[derive(Default)]
struct Shut(Fifo<ClientOp>);

impl Queue<ClientOp> for Shut {
    fn enqueue(&mut self, work: Work<ClientOp>, now: Instant) {
        self.0.enqueue(work, now);
    }
    fn dequeue(&mut self, now: Instant) -> Next<ClientOp> {
        if SHUT.get() { Next::Empty } else { self.0.dequeue(now) }
    }
    fn take_out(&mut self, gone: &dyn Fn(&ClientOp) -> bool, now: Instant) -> Vec<Rc<ClientOp>> {
        self.0.take_out(gone, now)
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn name(&self) -> &'static str {
        "shut"
    }
}

/// A watch must not end because requests of its client, or of others, are in the way of its pings.
#[test]
fn a_sign_of_life_does_not_wait_for_its_turn() {
    run(async || {
        let mut c = Cluster::with_queue(|| Box::new(Shut::default()));
        c.publish();
        c.settle().await;
        c.put("o", "1").await;
        let (a, b) = (ear(4, 1), ear(5, 2));
        assert_eq!((a.watch(&mut c, WATCH, 30).await, b.watch(&mut c, WATCH, 30).await), (0, 0));
        let (request, to) = c.message("o", SnapId::NOSNAP, vec![]);
        let core = c.cores[to.0 as usize].clone();
        let host = core.host(request.m.pgid).unwrap();
        let watcher = (7, EntityName::client(4));
        let due = || {
            host.watches.borrow().is_due(
                &request.m.object_id(),
                &watcher,
                1,
                PINGS_APART,
                Instant::now(),
            )
        };
        until("a while", due).await;
        SHUT.set(true);
        assert_eq!(a.watch(&mut c, PING, 0).await, 0);
        assert!(!due() && core.with_queue(|q| q.is_empty()));
        // What is more than needed waits like anything else, and so does a client without such a
        // watch here.
        let ping = |client, session| {
            let args = OpArgs::Watch { cookie: 7, ver: 0, op: PING, gen_: 1, timeout: 0 };
            let (ear, op) = (ear(client, session), Op::new(OpCode::WATCH, args));
            (ear, op)
        };
        for (n, (client, session)) in [(4, 1), (4, 9), (6, 3)].into_iter().enumerate() {
            let (ear, op) = ping(client, session);
            let (mut request, to) = c.message("o", SnapId::NOSNAP, vec![op]);
            (request.source, request.addr) = (EntityName::client(client), addr(client));
            c.cores[to.0 as usize].handle_request(request, ear, None);
            assert_eq!(core.with_queue(|q| q.len()), n + 1);
        }
        // A client that had to connect anew has its watch again, but not any number of times.
        let back = ear(4, 10);
        assert_eq!(back.watch(&mut c, RECONNECT, 30).await, 0);
        assert_eq!(core.with_queue(|q| q.len()), 3);
        let began = Instant::now();
        for _ in 0..300 {
            let args = OpArgs::Watch { cookie: 7, ver: 0, op: RECONNECT, gen_: 1, timeout: 30 };
            let (mut request, to) =
                c.message("o", SnapId::NOSNAP, vec![Op::new(OpCode::WATCH, args)]);
            (request.source, request.addr) = (EntityName::client(4), addr(4));
            c.cores[to.0 as usize].handle_request(request, back.clone(), None);
        }
        let waiting = core.with_queue(|q| q.len());
        // 256 at once, and 100 a second: a slow machine lets more of them through.
        let in_time = (began.elapsed().as_secs_f64() * 100.0).ceil() as usize + 3;
        let expected = (3 + 300usize + 1).saturating_sub(256 + in_time)..=48;
        assert!(expected.contains(&waiting), "{waiting} wait, {expected:?} were expected");
        SHUT.set(false);
        core.dispatch();
        until("their turns", || core.with_queue(|q| q.is_empty())).await;
    });
}

async fn cluster() -> Cluster {
    let mut c = Cluster::new();
    c.publish();
    c.settle().await;
    c.put("o", "data").await;
    c
}

/// All copies of the object's PG have the same records.
async fn assert_copies_agree(c: &mut Cluster) {
    for seed in 0..4 {
        let coll = crate::collections::coll_of(PgId { pool: POOL, seed }.into());
        let mut copies = Vec::new();
        for core in &c.cores {
            for key in core.store.list(coll, b"\x01", None, 100).await.unwrap().keys {
                copies.push((key.clone(), core.store.get_attrs(coll, &key).await.unwrap()));
            }
        }
        for (key, attrs) in &copies {
            assert!(copies.iter().filter(|(k, _)| k == key).all(|(_, a)| a == attrs));
        }
    }
}

#[test]
fn a_notification_goes_out_and_its_answers_come_back() {
    run(async || {
        let mut c = cluster().await;
        let (a, n) = (ear(1, 1), ear(2, 2));
        assert_eq!(a.watch(&mut c, PING, 0).await, Errno::ENOTCONN.as_result());
        assert_eq!(a.watch(&mut c, WATCH, 60).await, 0);
        let id = n.notify(&mut c, 60).await;
        let event = a.hears(NOTIFY).await;
        assert_eq!((event.notify_id, event.cookie, event.notifier_gid), (id, 7, 2));
        assert_eq!(event.payload, "text");
        assert!(n.heard().is_empty());
        a.ack(&mut c, id).await;
        let event = n.hears(NOTIFY_COMPLETE).await;
        assert_eq!((event.notify_id, event.cookie, event.return_code), (id, 3, 0));
        let all = (vec![((1u64, 7u64), Bytes::from_static(b"re"))], Vec::<(u64, u64)>::new());
        assert_eq!(event.answers, all.to_bytes(Features::ALL));
        assert!(n.notify(&mut c, 60).await > id, "ids are unique");
        // A client that ends its watch is not waited for.
        assert_eq!(a.heard(), [NOTIFY]);
        assert_eq!(a.watch(&mut c, UNWATCH, 0).await, 0);
        n.hears(NOTIFY_COMPLETE).await;
        assert!(n.watchers(&mut c).await.is_empty());
        assert!(a.heard().is_empty());
        assert_copies_agree(&mut c).await;
    });
}

#[test]
fn a_watch_outlives_its_connection_and_the_primary() {
    run(async || {
        let mut c = cluster().await;
        let (a, n) = (ear(1, 1), ear(2, 2));
        assert_eq!(a.watch(&mut c, WATCH, 60).await, 0);
        a.closed.set(true);
        c.cores.iter().for_each(|core| core.session_gone(1));
        n.notify(&mut c, 60).await;
        assert!(a.heard().is_empty());
        let a = ear(1, 3);
        assert_eq!(a.watch(&mut c, PING, 0).await, Errno::ETIMEDOUT.as_result());
        assert_eq!(a.watch(&mut c, RECONNECT, 60).await, 0);
        a.hears(NOTIFY).await;
        assert_eq!(a.watch(&mut c, PING, 0).await, 0);
        // Another OSD leads the PG now. It knows the watcher, and nothing of the notification.
        let (_, primary) = c.message("o", SnapId::NOSNAP, Vec::new());
        c.down.borrow_mut().push(primary);
        c.next_map(|m| {
            m.up.remove(&primary.0);
        });
        c.settle().await;
        assert_eq!(n.watchers(&mut c).await, [1]);
        assert_eq!(a.watch(&mut c, PING, 0).await, Errno::ETIMEDOUT.as_result());
        assert_eq!(a.watch(&mut c, RECONNECT, 60).await, 0);
        let id = n.notify(&mut c, 60).await;
        assert_eq!(a.hears(NOTIFY).await.notify_id, id);
        a.ack(&mut c, id).await;
        assert_eq!(n.hears(NOTIFY_COMPLETE).await.notify_id, id);
        assert_eq!((a.heard(), n.heard()), (vec![], vec![]));
    });
}

#[test]
fn silence_ends_a_watch_and_a_notification() {
    run(async || {
        let mut c = cluster().await;
        let (a, b, n) = (ear(1, 1), ear(3, 3), ear(2, 2));
        assert_eq!(b.watch(&mut c, WATCH, 60).await, 0);
        assert_eq!(a.watch(&mut c, WATCH, 1).await, 0);
        n.notify(&mut c, 2).await;
        assert_eq!(a.hears(NOTIFY).await.cookie, 7);
        assert_eq!(a.hears(DISCONNECT).await.cookie, 7);
        assert_eq!(n.watchers(&mut c).await, [3]);
        assert_eq!(a.watch(&mut c, PING, 0).await, Errno::ENOTCONN.as_result());
        let event = n.hears(NOTIFY_COMPLETE).await;
        assert_eq!(event.return_code, Errno::ETIMEDOUT.as_result());
        let all = (Vec::<((u64, u64), Bytes)>::new(), vec![(3u64, 7u64)]);
        assert_eq!(event.answers, all.to_bytes(Features::ALL));
        assert_copies_agree(&mut c).await;
    });
}

#[test]
fn blocked_clients_and_deleted_objects_lose_their_watches() {
    run(async || {
        let mut c = cluster().await;
        let (a, b) = (ear(1, 1), ear(2, 2));
        assert_eq!(a.watch(&mut c, WATCH, 60).await, 0);
        assert_eq!(b.watch(&mut c, WATCH, 60).await, 0);
        c.next_map(|m| m.blocked.push(addr(1)));
        assert_eq!(a.hears(DISCONNECT).await.cookie, 7);
        assert_eq!(b.watchers(&mut c).await, [2]);
        assert_copies_agree(&mut c).await;
        assert_eq!(b.ask(&mut c, on_extent(OpCode::DELETE, 0, 0)).await.result, 0);
        b.hears(DISCONNECT).await;
        c.put("o", "again").await;
        assert!(b.watchers(&mut c).await.is_empty());
        assert_eq!(b.watch(&mut c, PING, 0).await, Errno::ENOTCONN.as_result());
    });
}

#[test]
fn a_blocked_watcher_found_in_the_store_goes_at_once() {
    run(async || {
        let mut c = cluster().await;
        let (a, b) = (ear(1, 1), ear(2, 2));
        assert_eq!(a.watch(&mut c, WATCH, 60).await, 0);
        let (_, primary) = c.message("o", SnapId::NOSNAP, Vec::new());
        c.down.borrow_mut().push(primary);
        c.next_map(|m| {
            m.up.remove(&primary.0);
            m.blocked.push(addr(1));
        });
        c.settle().await;
        let mut list = b.watchers(&mut c).await;
        let begin = Instant::now();
        while !list.is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{list:?}");
            pause().await;
            list = b.watchers(&mut c).await;
        }
    });
}
