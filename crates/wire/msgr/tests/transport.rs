//! Messengers on loopback.

mod common;

use auth::ConMode;
use common::ends::{flat, message};
use common::*;
use msgr::*;
use rand::RngExt;
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use types::{EntityAddr, EntityAddrVec, EntityName, EntityType, Utime};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn local<T>(f: impl Future<Output = T>) -> T {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let all =
        async { tokio::time::timeout(Duration::from_secs(100), f).await.expect("the test hangs") };
    tokio::task::LocalSet::new().block_on(&rt, all)
}

fn now() -> Utime {
    Utime::from_duration(SystemTime::now().duration_since(UNIX_EPOCH).unwrap())
}

/// Remembers everything and can be waited for.
#[derive(Default)]
struct Inbox {
    got: RefCell<Vec<Message>>,
    guards: RefCell<Vec<ReceiveGuard>>,
    keep_guards: Cell<bool>,
    echo: Cell<bool>,
    resets: Cell<usize>,
    remote_resets: Cell<usize>,
    accepts: Cell<usize>,
    refuse: Cell<bool>,
    last: RefCell<Option<Rc<Connection>>>,
    changed: Notify,
}

impl Inbox {
    async fn until(&self, what: impl Fn(&Inbox) -> bool) {
        while !what(self) {
            self.changed.notified().await;
        }
    }

    fn count(&self) -> usize {
        self.got.borrow().len()
    }
}

impl Dispatcher for Inbox {
    fn on_accept(&self, conn: &Rc<Connection>) -> bool {
        self.accepts.set(self.accepts.get() + 1);
        self.last.replace(Some(conn.clone()));
        self.changed.notify_one();
        !self.refuse.get()
    }
    fn on_connect(&self, conn: &Rc<Connection>) {
        self.last.replace(Some(conn.clone()));
        self.changed.notify_one();
    }
    fn on_message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        if self.keep_guards.get() {
            self.guards.borrow_mut().push(guard);
        }
        if self.echo.get() {
            conn.send(message.clone());
        }
        self.got.borrow_mut().push(message);
        self.changed.notify_one();
    }
    fn on_reset(&self, _: &Rc<Connection>) {
        self.resets.set(self.resets.get() + 1);
        self.changed.notify_one();
    }
    fn on_remote_reset(&self, _: &Rc<Connection>) {
        self.remote_resets.set(self.remote_resets.get() + 1);
        self.changed.notify_one();
    }
}

struct Node {
    m: Rc<Messenger>,
    inbox: Rc<Inbox>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.inbox.last.take();
        self.m.shutdown();
    }
}

fn node(s: &Secrets, name: EntityName, mode: ConMode, policy: Policy, limits: Limits) -> Node {
    // Clients of one host are told apart by their nonce.
    thread_local!(static NONCE: Cell<u32> = const { Cell::new(100) });
    NONCE.set(NONCE.get() + 1);
    let inbox = Rc::new(Inbox::default());
    let config = MessengerConfig {
        name,
        nonce: if name.kind == EntityType::CLIENT { NONCE.get() } else { 0 },
        policies: PolicySet::new(policy),
        limits,
        server_auth: Some(s.mon.clone()),
        client_auth: admin(s, mode),
    };
    Node { m: Messenger::new(config, inbox.clone()), inbox }
}

fn mon(s: &Secrets, limits: Limits) -> (Node, EntityAddrVec) {
    let n = node(
        s,
        EntityName::new(EntityType::MON, 0),
        ConMode::Crc,
        Policy::stateless_registered_server(),
        limits,
    );
    let addr = n.m.bind(LOCALHOST, 0..=0).unwrap();
    (n, addr.into())
}

fn client(s: &Secrets, mode: ConMode) -> Node {
    node(
        s,
        EntityName::new(EntityType::CLIENT, -1),
        mode,
        Policy::lossy_client(),
        Limits::default(),
    )
}

#[test]
fn messages_of_all_sizes_both_ways() {
    for mode in [ConMode::Crc, ConMode::Secure] {
        local(async {
            let s = secrets(now(), &mut rng(1));
            let (server, addr) = mon(&s, Limits::default());
            server.inbox.echo.set(true);
            let c = client(&s, mode);
            let conn = c.m.connect(EntityType::MON, addr.clone());
            assert_eq!(c.m.connect(EntityType::MON, addr).id(), conn.id());
            let sizes = [0, 1, 100, 4096, 16 << 10, 32 << 10, 100_000, 1 << 20, 0, 65_536, 40];
            let sent: Vec<_> = (0..11)
                .map(|n| message(n, n as usize % 7 * 300, sizes[n as usize % sizes.len()]))
                .collect();
            sent.iter().for_each(|m| conn.send(m.clone()));
            c.inbox.until(|i| i.count() == sent.len()).await;
            let want: Vec<_> = sent.iter().zip(1..).map(|(m, seq)| flat(m, seq)).collect();
            assert!(*server.inbox.got.borrow() == want);
            assert!(*c.inbox.got.borrow() == want);
            let aligned = |m: &&Message| {
                m.data_len() >= 128 << 10 && (m.data[0].as_ptr() as usize).is_multiple_of(4096)
            };
            assert_eq!(
                server.inbox.got.borrow().iter().filter(aligned).count(),
                1,
                "large data is page aligned"
            );
            assert_eq!(conn.con_mode(), mode);
            assert_eq!(conn.peer_name(), EntityName::new(EntityType::MON, 0));
            let theirs = server.inbox.last.borrow().clone().unwrap();
            assert_eq!(theirs.auth_name().unwrap().to_string(), "client.admin");
            assert_eq!(theirs.auth_caps().text, "allow *");
            assert!(theirs.global_id() > 0 && theirs.is_incoming());
            assert_eq!(c.m.addrs().0[0].addr.unwrap().ip(), LOCALHOST, "learnt from the peer");

            conn.mark_down();
            server.inbox.until(|i| i.resets.get() == 1).await;
            assert_eq!(c.inbox.resets.get(), 0, "no callback for our own doing");
            assert!(theirs.is_down() && server.m.connections().is_empty());
        });
    }
}

#[test]
fn a_dispatcher_that_keeps_messages_stops_the_reading() {
    local(async {
        let s = secrets(now(), &mut rng(1));
        let (server, addr) = mon(&s, Limits { receive_unreleased: 1 << 20, ..Limits::default() });
        server.inbox.keep_guards.set(true);
        let (c, other) = (client(&s, ConMode::Crc), client(&s, ConMode::Crc));
        let conn = c.m.connect(EntityType::MON, addr.clone());
        (0..64).for_each(|n| conn.send(message(n, 0, 256 << 10)));
        server.inbox.until(|i| i.count() >= 4).await;
        // Others are served meanwhile, and give the blocked connection many turns to go wrong.
        let free = other.m.connect(EntityType::MON, addr);
        for n in 0..100 {
            free.send(message(1000 + n, 10, 0));
            server.inbox.until(|i| i.got.borrow().iter().any(|m| m.tid == 1000 + n)).await;
        }
        let held = server.inbox.got.borrow().iter().filter(|m| m.tid < 1000).count();
        assert!((4..=5).contains(&held), "{held} messages of 256 KiB with a limit of 1 MiB");
        server.inbox.keep_guards.set(false);
        server.inbox.guards.take();
        server.inbox.until(|i| i.count() == 164).await;
    });
}

#[test]
fn a_client_that_does_not_read_is_closed() {
    local(async {
        let s = secrets(now(), &mut rng(1));
        let (server, addr) = mon(&s, Limits { send_queue: 8 << 20, ..Limits::default() });
        let c = node(
            &s,
            EntityName::new(EntityType::CLIENT, -1),
            ConMode::Crc,
            Policy::lossy_client(),
            Limits { receive_unreleased: 1, ..Limits::default() },
        );
        c.inbox.keep_guards.set(true);
        c.m.connect(EntityType::MON, addr);
        server.inbox.until(|i| i.accepts.get() == 1).await;
        let conn = server.inbox.last.borrow().clone().unwrap();
        let mut sent = 0;
        while server.inbox.resets.get() == 0 {
            conn.send(message(sent, 0, 1 << 20));
            assert!(conn.queued_bytes() < 16 << 20);
            sent += 1;
            assert!(sent < 200);
            tokio::task::yield_now().await;
        }
        assert!(conn.is_down());
    });
}

#[test]
fn thousands_of_silent_connections_harm_nobody() {
    local(async {
        let s = secrets(now(), &mut rng(1));
        let (server, addr) = mon(&s, Limits { half_open: 50, ..Limits::default() });
        let at = addr.0[0].addr.unwrap();
        let c = client(&s, ConMode::Crc);
        let early = c.m.connect(EntityType::MON, addr.clone());
        c.inbox.until(|_| early.is_connected()).await;
        let mut silent = Vec::new();
        for _ in 0..400 {
            silent.push(TcpStream::connect(at).await.unwrap());
        }
        let late = client(&s, ConMode::Crc);
        let conn = late.m.connect(EntityType::MON, addr);
        conn.send(message(1, 1, 1));
        early.send(message(2, 1, 1));
        server.inbox.until(|i| i.count() == 2).await;
        assert!(server.m.connections().len() <= 52, "{}", server.m.connections().len());
        // The oldest went first.
        let mut byte = [0; 64];
        while silent[0].read(&mut byte).await.is_ok_and(|n| n > 0) {}
    });
}

#[test]
fn connections_above_the_limit_are_closed() {
    local(async {
        let s = secrets(now(), &mut rng(1));
        let (server, addr) = mon(&s, Limits { connections: 3, ..Limits::default() });
        let at = addr.0[0].addr.unwrap();
        let clients: Vec<Node> = (0..3).map(|_| client(&s, ConMode::Crc)).collect();
        let mut conns = Vec::new();
        for c in &clients {
            let conn = c.m.connect(EntityType::MON, addr.clone());
            c.inbox.until(|_| conn.is_connected()).await;
            conns.push(conn);
        }
        for _ in 0..10 {
            let mut refused = TcpStream::connect(at).await.unwrap();
            let mut byte = [0; 64];
            assert!(!refused.read(&mut byte).await.is_ok_and(|n| n > 0), "it is answered");
            assert_eq!(server.m.connections().len(), 3);
        }
        conns.iter().for_each(|c| c.send(message(1, 1, 1)));
        server.inbox.until(|i| i.count() == 3).await;
        // When one has gone, another gets in.
        let late = client(&s, ConMode::Crc);
        late.m.connect(EntityType::MON, addr).send(message(2, 1, 1));
        conns[0].mark_down();
        server.inbox.until(|i| i.count() == 4).await;
    });
}

#[test]
fn a_claimed_address_gives_no_session_of_another_entity() {
    local(async {
        let s = secrets(now(), &mut rng(1));
        let key = auth::CryptoKey::generate(now(), &mut rng(2));
        let caps = [("mon".to_owned(), "allow *".to_owned())].into();
        let other = auth::EntityAuth { key: key.clone(), caps };
        s.mon.borrow_mut().keys.insert(name("client.other"), other);
        let (server, addr) = mon(&s, Limits::default());
        let victim = client(&s, ConMode::Crc);
        let conn = victim.m.connect(EntityType::MON, addr.clone());
        victim.inbox.until(|_| conn.is_connected()).await;
        let theirs = server.inbox.last.borrow().clone().unwrap();
        assert_eq!(theirs.peer_addrs(), victim.m.addrs());

        let policy = only(auth::AuthPolicy::new(EntityType::CLIENT), ConMode::Crc);
        let proof = auth::CephxClient::new(policy, name("client.other"), key, &[EntityType::MON]);
        let inbox = Rc::new(Inbox::default());
        let config = MessengerConfig {
            name: EntityName::new(EntityType::CLIENT, -1),
            nonce: 1,
            policies: PolicySet::new(Policy::lossy_client()),
            limits: Limits {
                initial_backoff: Duration::from_millis(1),
                max_backoff: Duration::from_millis(5),
                ..Limits::default()
            },
            server_auth: None,
            client_auth: Rc::new(RefCell::new(proof)),
        };
        let attacker = Node { m: Messenger::new(config, inbox.clone()), inbox };
        attacker.m.set_addrs(victim.m.addrs());
        let claims = attacker.m.connect(EntityType::MON, addr);
        claims.send(message(66, 1, 1));
        // It tries again and again: those attempts have ended that a later one follows.
        let mut attempts = std::collections::BTreeSet::new();
        while attempts.len() < 4 {
            let known = server.m.connections();
            attempts.extend(known.iter().map(|c| c.id()).filter(|id| *id != theirs.id()));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!claims.is_connected());
        assert_eq!((server.inbox.accepts.get(), server.inbox.count()), (1, 0));
        conn.send(message(1, 1, 1));
        server.inbox.until(|i| i.count() == 1).await;
        assert!(!theirs.is_down() && server.inbox.got.borrow()[0].tid == 1);
    });
}

#[test]
fn slow_and_wild_handshakes_are_cut_off() {
    local(async {
        let s = secrets(now(), &mut rng(1));
        let (server, addr) =
            mon(&s, Limits { handshake_time: Duration::from_millis(100), ..Limits::default() });
        let at = addr.0[0].addr.unwrap();
        let closed = async |bytes: &[u8]| {
            let mut t = TcpStream::connect(at).await.unwrap();
            t.write_all(bytes).await.unwrap();
            let mut all = Vec::new();
            // A reset is as good as an end.
            let _ = t.read_to_end(&mut all).await;
            assert!(all.is_empty() || all.starts_with(b"ceph v2\n"));
        };
        closed(b"").await;
        closed(b"ceph v2\n\x10\0").await;
        closed(b"GET / HTTP/1.1\r\n\r\n").await;
        closed(b"ceph v027........").await;
        closed(&[b"ceph v2\n\x10\0".as_slice(), &[0xff; 4096]].concat()).await;
        assert_eq!((server.inbox.accepts.get(), server.inbox.resets.get()), (0, 0));
        assert!(server.m.connections().is_empty());
    });
}

#[test]
fn a_dispatcher_may_refuse_and_a_port_may_be_taken() {
    local(async {
        let s = secrets(now(), &mut rng(1));
        let (server, addr) = mon(&s, Limits::default());
        server.inbox.refuse.set(true);
        let c = client(&s, ConMode::Crc);
        c.m.connect(EntityType::MON, addr.clone());
        // A client cannot tell this from a server that dies, so it tries again.
        server.inbox.until(|i| i.accepts.get() >= 2).await;
        assert_eq!(server.inbox.resets.get(), 0);

        let port = addr.0[0].port();
        let (other, _) = mon(&s, Limits::default());
        assert!(matches!(other.m.bind(LOCALHOST, port..=port), Err(BindError::Io { .. })));
        #[allow(clippy::reversed_empty_ranges, reason = "the point of it")]
        let empty = other.m.bind(LOCALHOST, 2..=1);
        assert!(matches!(empty, Err(BindError::NoPorts)));
    });
}

fn peers(s: &Secrets, mode: ConMode) -> (Node, Node) {
    let limits = Limits {
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(20),
        ..Limits::default()
    };
    let peer = |n| {
        node(s, EntityName::new(EntityType::MON, n), mode, Policy::lossless_peer(), limits.clone())
    };
    let (a, b) = (peer(0), peer(1));
    a.m.bind(LOCALHOST, 0..=0).unwrap();
    b.m.bind(LOCALHOST, 0..=0).unwrap();
    (a, b)
}

fn tids(n: &Node) -> Vec<u64> {
    n.inbox.got.borrow().iter().map(|m| m.tid).collect()
}

#[test]
fn peers_that_connect_at_the_same_time_end_up_with_one_connection() {
    for mode in [ConMode::Crc, ConMode::Secure] {
        local(async {
            let s = secrets(now(), &mut rng(1));
            for round in 0..20u64 {
                let (a, b) = peers(&s, mode);
                let (to_b, to_a) = (
                    a.m.connect(EntityType::MON, b.m.addrs()),
                    b.m.connect(EntityType::MON, a.m.addrs()),
                );
                for n in 0..50 {
                    to_b.send(message(n, 50, 0));
                    to_a.send(message(n, 50, 0));
                    if n % 10 == round % 10 {
                        tokio::task::yield_now().await;
                    }
                }
                a.inbox.until(|i| i.count() >= 50).await;
                b.inbox.until(|i| i.count() >= 50).await;
                let want: Vec<_> = (0..50).collect();
                assert_eq!((tids(&a), tids(&b)), (want.clone(), want), "round {round}");
                assert_eq!((to_a.is_down(), to_b.is_down()), (false, false));
                assert_eq!((a.inbox.resets.get(), b.inbox.resets.get()), (0, 0));
            }
        });
    }
}

/// Forwards connections to `to` and cuts each after a random number of bytes.
async fn bad_wire(listener: TcpListener, to: SocketAddr, seed: u64, cuts: Rc<Cell<usize>>) {
    let mut r = rng(seed);
    loop {
        let (mut from, _) = listener.accept().await.unwrap();
        let mut onward = TcpStream::connect(to).await.unwrap();
        let mut left: usize = r.random_range(0..30_000);
        let cuts = cuts.clone();
        tokio::task::spawn_local(async move {
            let (mut x, mut y) = ([0; 1500], [0; 1500]);
            while left > 0 {
                let n = tokio::select! {
                    n = from.read(&mut x) => {
                        let n = n.unwrap_or(0).min(left);
                        if onward.write_all(&x[..n]).await.is_err() { 0 } else { n }
                    }
                    n = onward.read(&mut y) => {
                        let n = n.unwrap_or(0).min(left);
                        if from.write_all(&y[..n]).await.is_err() { 0 } else { n }
                    }
                };
                if n == 0 {
                    return;
                }
                left -= n;
            }
            cuts.set(cuts.get() + 1);
        });
    }
}

#[test]
fn peers_survive_a_wire_that_keeps_breaking() {
    for (mode, seed) in [(ConMode::Crc, 1), (ConMode::Secure, 2)] {
        local(async {
            let s = secrets(now(), &mut rng(1));
            let (a, b) = peers(&s, mode);
            let cuts = Rc::new(Cell::new(0));
            // Both are known at addresses where the bad wire listens.
            for (n, seed) in [(&a, seed), (&b, seed + 100)] {
                let to = n.m.addrs().0[0].addr.unwrap();
                let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
                n.m.set_addrs(EntityAddr::msgr2(listener.local_addr().unwrap(), 0).into());
                tokio::task::spawn_local(bad_wire(listener, to, seed, cuts.clone()));
            }
            let (to_b, to_a) = (
                a.m.connect(EntityType::MON, b.m.addrs()),
                b.m.connect(EntityType::MON, a.m.addrs()),
            );
            let total = 100;
            let mut r = rng(seed);
            for n in 0..total {
                to_b.send(message(n, r.random_range(0..3000), 0));
                to_a.send(message(n, r.random_range(0..3000), 0));
                if n % 20 == 0 {
                    a.inbox.until(|i| i.count() as u64 + 40 > n).await;
                }
            }
            a.inbox.until(|i| i.count() as u64 >= total).await;
            b.inbox.until(|i| i.count() as u64 >= total).await;
            let want: Vec<_> = (0..total).collect();
            assert_eq!((tids(&a), tids(&b)), (want.clone(), want), "seed {seed}");
            assert!(cuts.get() > 5, "the wire was cut {} times", cuts.get());
            assert_eq!((a.inbox.resets.get(), a.inbox.remote_resets.get()), (0, 0));
            assert_eq!((b.inbox.resets.get(), b.inbox.remote_resets.get()), (0, 0));
        });
    }
}

#[test]
fn a_disposable_connection_says_what_it_has_to_say() {
    local(async {
        let s = secrets(now(), &mut rng(1));
        let (server, addr) = mon(&s, Limits::default());
        let c = client(&s, ConMode::Crc);
        let conn = c.m.connect(EntityType::MON, addr);
        conn.send(message(1, 0, 3 << 20));
        conn.mark_disposable();
        conn.send(message(2, 0, 0));
        server.inbox.until(|i| i.resets.get() == 1).await;
        assert_eq!(tids(&server), [1]);
        c.inbox.until(|i| i.resets.get() == 1).await;
        assert!(conn.is_down());
    });
}

/// An OSD that reads from another one as a client does so under its own addresses, beside the
/// connection of the two OSDs.
#[test]
fn a_lossy_client_of_lossless_peers_is_a_session_of_its_own() {
    for mode in [ConMode::Crc, ConMode::Secure] {
        local(async {
            let s = secrets(now(), &mut rng(1));
            let (a, b) = peers(&s, mode);
            let peer = b.m.connect(EntityType::MON, a.m.addrs());
            let name = EntityName::new(EntityType::MON, 1);
            let c = node(&s, name, mode, Policy::lossy_client(), Limits::default());
            c.m.set_addrs(b.m.addrs());
            a.inbox.echo.set(true);
            for round in 0..10 {
                peer.send(message(round, 50, 0));
                b.inbox.until(|i| i.count() as u64 > round).await;
                let conn = c.m.connect(EntityType::MON, a.m.addrs());
                for n in 0..3 {
                    conn.send(message(3 * round + n, 50, 0));
                }
                c.inbox.until(|i| i.count() as u64 == 3 * (round + 1)).await;
                conn.mark_down();
                a.inbox.until(|i| i.resets.get() as u64 == round + 1).await;
            }
            assert_eq!(tids(&b), (0..10).collect::<Vec<_>>());
            assert_eq!(tids(&c), (0..30).collect::<Vec<_>>());
            assert!(!peer.is_down());
            assert_eq!((b.inbox.resets.get(), c.inbox.resets.get()), (0, 0));
        });
    }
}
