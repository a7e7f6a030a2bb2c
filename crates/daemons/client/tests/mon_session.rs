//! The monitor session against monitors that misbehave: dead, silent, forgetful.

use auth::{
    AuthName, AuthPolicy, ConMode, Context, CryptoKey, EntityAuth, KeyServer, MonAuth, TicketTtl,
};
use bytes::Bytes;
use client::{ClientError, ClusterConfig, CommandOutput, MonClient, MonConfig, MonHost};
use messages::{
    AnyMessage, AuthReply, Config, Log, LogAck, MonCommandAck, MonGetVersionReply, MonMapMsg,
    Payload, SubscribeItem,
};
use msgr::{
    Connection, Dispatcher, Limits, Message, Messenger, MessengerConfig, Policy, PolicySet,
    ReceiveGuard,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use types::{
    EntityAddr, EntityAddrVec, EntityName, EntityType, Epoch, Fsid, LogPriority, MonInfo, MonMap,
    Utime,
};

const LIMIT: Duration = Duration::from_secs(20);
const FSID: Fsid = Fsid([7; 16]);

fn now() -> Utime {
    Utime::from_duration(
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap(),
    )
}

fn admin() -> AuthName {
    AuthName::new(EntityType::CLIENT, "admin")
}

/// The key that all monitors of a test know.
fn key() -> CryptoKey {
    CryptoKey::from_secret(Utime::default(), Bytes::from_static(&[9; 16])).unwrap()
}

/// What a monitor does with the next command or version query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mood {
    Answer,
    /// Closes the connection instead of answering.
    HangUp,
    /// Takes it and says nothing.
    Ignore,
}

struct FakeMon {
    name: &'static str,
    auth: Rc<RefCell<MonAuth>>,
    addr: Cell<EntityAddr>,
    messenger: RefCell<Option<Rc<Messenger>>>,
    mood: Cell<Mood>,
    map: RefCell<MonMap>,
    subs: RefCell<BTreeMap<String, SubscribeItem>>,
    log: RefCell<Vec<String>>,
    commands: Cell<usize>,
    renewals: Cell<usize>,
}

struct Handler(Rc<FakeMon>);

impl Dispatcher for Handler {
    fn on_message(&self, conn: &Rc<Connection>, message: Message, _: ReceiveGuard) {
        let mon = &self.0;
        let reply = |payload: &dyn Fn(denc::Features) -> Message| {
            let mut m = payload(conn.features());
            m.tid = message.tid;
            conn.send(m);
        };
        match AnyMessage::decode(&message).unwrap() {
            AnyMessage::MonSubscribe(sub) => {
                if sub.what.contains_key("monmap") {
                    let map = denc::Encode::to_bytes(&*mon.map.borrow(), conn.features());
                    reply(&|f| MonMapMsg { map: map.clone() }.encode(f));
                }
                if sub.what.contains_key("config") {
                    reply(&|f| Config::default().encode(f));
                }
                mon.subs.borrow_mut().extend(sub.what);
            }
            AnyMessage::Auth(request) => {
                let done = conn.with_server_auth(|peer| {
                    let cx = &mut Context { now: now(), rng: &mut rand::rng() };
                    mon.auth.borrow().handle_mauth(cx, peer, request.payload.clone())
                });
                let payload = done.unwrap().unwrap().payload;
                reply(&|f| {
                    AuthReply { protocol: 2, payload: payload.clone(), ..Default::default() }
                        .encode(f)
                });
                mon.renewals.set(mon.renewals.get() + 1);
            }
            AnyMessage::MonCommand(command) => {
                assert_eq!(command.fsid, FSID);
                mon.commands.set(mon.commands.get() + 1);
                match mon.mood.replace(Mood::Answer) {
                    Mood::Answer => reply(&|f| {
                        let status = mon.name.to_owned();
                        let output = command.input.clone();
                        MonCommandAck {
                            result: 0,
                            status,
                            cmd: command.cmd.clone(),
                            output,
                            ..Default::default()
                        }
                        .encode(f)
                    }),
                    Mood::HangUp => conn.mark_down(),
                    Mood::Ignore => {}
                }
            }
            AnyMessage::MonGetVersion(q) => {
                if mon.mood.replace(Mood::Answer) == Mood::HangUp {
                    conn.mark_down();
                } else {
                    reply(&|f| {
                        MonGetVersionReply { handle: q.handle, version: 9, oldest_version: 3 }
                            .encode(f)
                    });
                }
            }
            AnyMessage::Log(Log { entries, .. }) => {
                if mon.mood.replace(Mood::Answer) == Mood::HangUp {
                    return conn.mark_down();
                }
                let last = entries.last().unwrap().seq;
                mon.log.borrow_mut().extend(entries.into_iter().map(|e| e.msg));
                reply(&|f| LogAck { fsid: FSID, last, ..Default::default() }.encode(f));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A cluster of monitors on loopback.
fn monitors(names: &[&'static str]) -> Vec<Rc<FakeMon>> {
    let mons: Vec<Rc<FakeMon>> = names.iter().map(|name| start(name)).collect();
    let mut map = MonMap { fsid: FSID, epoch: Epoch(1), ..MonMap::default() };
    for mon in &mons {
        map.add(MonInfo {
            name: mon.name.into(),
            public_addrs: EntityAddrVec::one(EntityAddr { nonce: 0, ..mon.addr.get() }),
            ..MonInfo::default()
        });
    }
    for mon in &mons {
        *mon.map.borrow_mut() = map.clone();
    }
    mons
}

fn start(name: &'static str) -> Rc<FakeMon> {
    let next_id = Rc::new(Cell::new(4000u64));
    let mut server = MonAuth::new(Box::new(move || {
        next_id.set(next_id.get() + 1);
        Some(next_id.get())
    }));
    let mut keys = KeyServer::default();
    let caps = ["mon", "osd", "mgr", "mds"]
        .map(|service| (service.to_owned(), "allow *".to_owned()))
        .into();
    keys.insert(admin(), EntityAuth { key: key(), caps });
    let rotation = keys.prepare_rotation(TicketTtl::default(), now(), &mut rand::rng()).unwrap();
    keys.apply_rotation(rotation);
    server.keys = keys;
    let server = Rc::new(RefCell::new(server));
    let mon = Rc::new(FakeMon {
        name,
        auth: server.clone(),
        addr: Cell::default(),
        messenger: RefCell::default(),
        mood: Cell::new(Mood::Answer),
        map: RefCell::default(),
        subs: RefCell::default(),
        log: RefCell::default(),
        commands: Cell::default(),
        renewals: Cell::default(),
    });
    let client_auth = Rc::new(RefCell::new(auth::CephxClient::new(
        AuthPolicy::new(EntityType::MON),
        AuthName::mon(),
        CryptoKey::default(),
        &[],
    )));
    let messenger = Messenger::new(
        MessengerConfig {
            name: EntityName::new(EntityType::MON, 0),
            nonce: 0,
            policies: PolicySet::new(Policy::stateless_registered_server()),
            limits: Limits::default(),
            server_auth: Some(server),
            client_auth,
        },
        Rc::new(Handler(mon.clone())),
    );
    mon.addr.set(messenger.bind(IpAddr::V4(Ipv4Addr::LOCALHOST), 0..=0).unwrap());
    *mon.messenger.borrow_mut() = Some(messenger);
    mon
}

fn config(hosts: Vec<MonHost>) -> MonConfig {
    MonConfig::new(&ClusterConfig {
        name: admin(),
        key: key(),
        mon_hosts: hosts,
        policy: AuthPolicy::new(EntityType::CLIENT),
        objecter: client::Options::DEFAULT,
    })
}

fn host(mon: &FakeMon) -> MonHost {
    MonHost::Addr(EntityAddr { nonce: 0, ..mon.addr.get() })
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let test =
        async { tokio::time::timeout(LIMIT * 2, test).await.expect("the test ends in time") };
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

fn answered(output: Result<CommandOutput, ClientError>) -> CommandOutput {
    let output = output.unwrap();
    assert_eq!(output.code, 0);
    output
}

#[test]
fn commands_carry_input_and_output() {
    run(async {
        let mons = monitors(&["a"]);
        let mon = MonClient::new(config(vec![host(&mons[0])]));
        // Before there is a session.
        let output = answered(mon.command("{}", Bytes::from_static(b"input")).await);
        assert_eq!((output.status.as_str(), &output.output[..]), ("a", &b"input"[..]));
        assert_eq!(mon.fsid(), Some(FSID));
        assert_eq!(mon.session().unwrap().con_mode(), ConMode::Secure);
        assert_eq!(mon.global_id(), 4001);
        assert_eq!(mon.get_version("osdmap").await, Ok((9, 3)));
    });
}

#[test]
fn a_dead_and_a_silent_monitor_are_passed_by() {
    run(async {
        let mons = monitors(&["live"]);
        // Accepts connections and never says a word.
        let silent = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        // Nothing listens there any more.
        let dead = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        let at = |addr: SocketAddr| MonHost::Addr(EntityAddr::msgr2(addr, 0));
        for _ in 0..5 {
            let hosts = vec![at(silent.local_addr().unwrap()), at(dead), host(&mons[0])];
            let mut config = config(hosts);
            // An attempt is never given up: if the others waited for it, there would be no session.
            config.timing.hunt_interval = Duration::from_secs(3600);
            MonClient::new(config).wait_ready(LIMIT).await.unwrap();
        }
    });
}

#[test]
fn requests_are_repeated_in_the_next_session() {
    run(async {
        let mons = monitors(&["a", "b"]);
        let mon = MonClient::new(config(mons.iter().map(|m| host(m)).collect()));
        mon.wait_ready(LIMIT).await.unwrap();
        for _ in 0..5 {
            mons.iter().for_each(|m| m.mood.set(Mood::HangUp));
            answered(mon.command("{}", Bytes::new()).await);
            mons.iter().for_each(|m| m.mood.set(Mood::HangUp));
            assert_eq!(mon.get_version("osdmap").await, Ok((9, 3)));
        }
        // The instance stays the same: each session takes its global id up with the old ticket.
        assert!(mon.global_id() >= 4001);
        mons.iter().for_each(|m| m.mood.set(Mood::HangUp));
        mon.log(LogPriority::INFO, "cluster", "kept".into());
        while !mons.iter().any(|m| m.log.borrow().contains(&"kept".to_owned())) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn subscriptions_go_on_behind_what_was_received() {
    run(async {
        let mons = monitors(&["a"]);
        let mon = MonClient::new(config(vec![host(&mons[0])]));
        mon.subscribe("osdmap", 5, false);
        mon.subscribe("once", 0, true);
        mon.wait_ready(LIMIT).await.unwrap();
        assert_eq!(mons[0].subs.borrow()["osdmap"], SubscribeItem { start: 5, flags: 0 });
        assert!(mons[0].subs.borrow()["once"].onetime());
        mon.got("osdmap", 7);
        mon.got("once", 1);
        mons[0].subs.borrow_mut().clear();
        mons[0].mood.set(Mood::HangUp);
        answered(mon.command("{}", Bytes::new()).await);
        assert_eq!(mons[0].subs.borrow()["osdmap"], SubscribeItem { start: 8, flags: 0 });
        assert!(!mons[0].subs.borrow().contains_key("once"));
    });
}

#[test]
fn a_dropped_request_is_forgotten() {
    run(async {
        let mons = monitors(&["a"]);
        let mon = MonClient::new(config(vec![host(&mons[0])]));
        mon.wait_ready(LIMIT).await.unwrap();
        mons[0].mood.set(Mood::Ignore);
        let impatient =
            tokio::time::timeout(Duration::from_millis(100), mon.command("{}", Bytes::new())).await;
        assert!(impatient.is_err());
        assert_eq!(mons[0].commands.get(), 1);
        mons[0].mood.set(Mood::HangUp);
        answered(mon.command("{}", Bytes::new()).await);
        assert_eq!(mons[0].commands.get(), 3, "the forgotten command was not repeated");
    });
}

#[test]
fn tickets_are_renewed_before_they_expire() {
    run(async {
        let mons = monitors(&["a"]);
        mons[0].auth.borrow_mut().ttl.service = Duration::from_secs(2);
        let mon = MonClient::new(config(vec![host(&mons[0])]));
        mon.wait_ready(LIMIT).await.unwrap();
        mon.wait_ticket(EntityType::OSD, LIMIT).await.unwrap();
        assert_eq!(mons[0].renewals.get(), 0, "the first tickets came with the session");
        while mons[0].renewals.get() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        mon.wait_ticket(EntityType::OSD, LIMIT).await.unwrap();
        // A service that refuses a ticket makes the client ask for another one at once.
        let before = mons[0].renewals.get();
        mon.ticket_refused(EntityType::OSD);
        assert!(!mon.auth().borrow().has_ticket(EntityType::OSD, now()));
        mon.wait_ticket(EntityType::OSD, LIMIT).await.unwrap();
        assert!(mons[0].renewals.get() > before);
    });
}

#[test]
fn without_a_monitor_the_caller_hears_it() {
    run(async {
        let mon = MonClient::new(config(vec![]));
        assert_eq!(mon.wait_ready(LIMIT).await, Err(ClientError::NoMonitors));
        let mons = monitors(&["a"]);
        let mut wrong = config(vec![host(&mons[0])]);
        wrong.key = CryptoKey::from_secret(Utime::default(), Bytes::from_static(&[1; 16])).unwrap();
        let mon = MonClient::new(wrong);
        let refused = mon.wait_ready(Duration::from_millis(500)).await;
        assert_eq!(refused, Err(ClientError::Timeout("looking for a monitor")));
        mon.shutdown();
        assert_eq!(mon.command("{}", Bytes::new()).await, Err(ClientError::Shutdown));
    });
}
