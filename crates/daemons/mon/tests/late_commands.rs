//! Requests that arrive a second time, behind what their client did since.

use auth::{AuthPolicy, CephxClient, CryptoKey, EntityAuth, Keyring};
use bytes::Bytes;
use conf::Config;
use messages::{MonCommand, MonCommandAck, Payload, PoolOp, PoolOpCode, PoolOpReply};
use mon::{MkfsArgs, Monitor, StartOptions};
use msgr::{
    Connection, Dispatcher, Limits, Message, Messenger, MessengerConfig, Policy, PolicySet,
    ReceiveGuard,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use tokio::sync::mpsc;
use types::{EntityAddr, EntityAddrVec, EntityName, EntityType, Errno, Fsid, SnapId, Utime};

fn now() -> Utime {
    Utime::from_duration(
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap(),
    )
}

fn fsid() -> Fsid {
    "4a4c0f3e-9a10-4d3f-8a62-0f6d2e7c1b11".parse().unwrap()
}

fn make(dir: &Path, key: &CryptoKey) {
    let admin = EntityAuth {
        key: key.clone(),
        caps: ["mon", "osd"].map(|s| (s.to_owned(), "allow *".to_owned())).into(),
    };
    let args = MkfsArgs {
        fsid: fsid(),
        name: "a".into(),
        monitors: BTreeMap::from([(
            "a".to_owned(),
            EntityAddrVec::one(EntityAddr::msgr2("127.0.0.1:0".parse().unwrap(), 0)),
        )]),
        mon_key: CryptoKey::generate(now(), &mut rand::rng()),
        keyring: [("client.admin".parse().unwrap(), admin)].into_iter().collect::<Keyring>(),
        crush: None,
        config: BTreeMap::new(),
        now: now(),
    };
    mon::mkfs(&dir.join("mon.a"), &args, &Config::new()).unwrap();
}

async fn start(dir: &Path) -> Monitor {
    let mut config = Config::new();
    config.set(conf::effective::Source::CommandLine, "mon_allow_pool_delete", "true").unwrap();
    let options = StartOptions {
        conf: Rc::new(RefCell::new(config)),
        listen: Some("127.0.0.1:0".parse().unwrap()),
        ..StartOptions::default()
    };
    Monitor::start(&dir.join("mon.a"), options).await.unwrap()
}

struct Answers(mpsc::UnboundedSender<Message>);

impl Dispatcher for Answers {
    fn on_message(&self, _: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        drop(guard);
        let _ = self.0.send(message);
    }
}

/// A client that numbers its requests as it likes.
struct Client {
    messenger: Rc<Messenger>,
    answers: mpsc::UnboundedReceiver<Message>,
    conn: Rc<Connection>,
}

impl Client {
    /// With the tickets and the global id of `auth`, as a client that goes to another monitor.
    fn connect(auth: &Rc<RefCell<CephxClient>>, to: &Monitor) -> Client {
        let (tell, answers) = mpsc::unbounded_channel();
        let config = MessengerConfig {
            name: EntityName::new(EntityType::CLIENT, 0),
            nonce: rand::random(),
            policies: PolicySet::new(Policy::lossy_client()),
            limits: Limits::default(),
            server_auth: None,
            client_auth: auth.clone(),
        };
        let messenger = Messenger::new(config, Rc::new(Answers(tell)));
        let conn = messenger.connect(EntityType::MON, to.addrs());
        Client { messenger, answers, conn }
    }

    async fn ask<M: Payload, R: Payload>(&mut self, tid: u64, request: M) -> R {
        let mut m = request.encode(denc::Features::ALL);
        m.tid = tid;
        self.conn.send(m);
        loop {
            let m = self.answers.recv().await.unwrap();
            if m.msg_type == R::TYPE && m.tid == tid {
                return R::decode(&m).unwrap();
            }
        }
    }

    /// The result and the text.
    async fn command(&mut self, tid: u64, json: &str) -> (i32, String) {
        let command =
            MonCommand { fsid: fsid(), cmd: vec![json.to_owned()], ..MonCommand::default() };
        let ack: MonCommandAck = self.ask(tid, command).await;
        eprintln!("{tid}: {json}: {} {} {:?}", ack.result, ack.status, ack.output);
        (ack.result, ack.status)
    }

    async fn pool_op(
        &mut self,
        tid: u64,
        op: PoolOpCode,
        pool: u32,
        name: &str,
    ) -> (i32, Option<Bytes>) {
        let op = PoolOp {
            paxos: Default::default(),
            fsid: fsid(),
            pool,
            op,
            snapid: SnapId(0),
            name: name.into(),
            crush_rule: -1,
        };
        let reply: PoolOpReply = self.ask(tid, op).await;
        (reply.reply_code, reply.response_data)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.messenger.shutdown();
    }
}

fn pools(monitor: &Monitor) -> Vec<String> {
    monitor.state().osd.map().pool_names.values().cloned().collect()
}

const CREATE: &str = r#"{"prefix": "osd pool create", "pool": "p", "pg_num": 8}"#;
const REMOVE: &str =
    r#"{"prefix": "osd pool rm", "pool": "p", "pool2": "p", "yes_i_really_really_mean_it": true}"#;

#[test]
fn a_late_copy_of_a_request_is_not_executed_again() {
    let dir = tempfile::tempdir().unwrap();
    let key = CryptoKey::generate(now(), &mut rand::rng());
    make(dir.path(), &key);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let monitor = start(dir.path()).await;
        let name = "client.admin".parse().unwrap();
        let policy = AuthPolicy::new(EntityType::CLIENT);
        let auth =
            Rc::new(RefCell::new(CephxClient::new(policy, name, key.clone(), &[EntityType::MON])));
        let mut client = Client::connect(&auth, &monitor);
        let removed = client.command(1, REMOVE).await;
        let created = client.command(2, CREATE).await;
        let set = r#"{"prefix": "config-key set", "key": "k", "val": "1"}"#;
        assert_eq!(client.command(4, set).await.0, 0);
        assert_eq!((created.0, pools(&monitor)), (0, vec!["p".to_owned()]));

        // The answer is what it was then, and nothing is done.
        assert_eq!(client.command(1, REMOVE).await, removed);
        assert_eq!(pools(&monitor), ["p"], "a late copy of an earlier command was executed");
        assert_eq!(client.command(5, REMOVE).await.0, 0);
        assert_eq!(pools(&monitor), Vec::<String>::new());

        // Through another connection of the same client, and after a restart.
        let id = auth.borrow().global_id();
        drop(client);
        monitor.shutdown().await;
        drop(monitor);
        let monitor = start(dir.path()).await;
        let mut client = Client::connect(&auth, &monitor);
        assert_eq!(client.command(2, CREATE).await, created);
        assert_eq!(
            pools(&monitor),
            Vec::<String>::new(),
            "a late copy of an earlier command was executed"
        );
        assert_eq!(auth.borrow().global_id(), id);
        // One that is not waited for any more, because its client gave it up and went on.
        assert_eq!(client.command(3, CREATE).await.0, -Errno::ESTALE.0);
        assert_eq!(pools(&monitor), Vec::<String>::new());
        assert_eq!(client.command(6, CREATE).await.0, 0);

        // Operations of librados have numbers of their own.
        let id = monitor.state().osd.map().pool_by_name("p").unwrap().0 as u32;
        let (code, snap) = client.pool_op(2, PoolOpCode::CREATE_UNMANAGED_SNAP, id, "").await;
        assert_eq!(code, 0);
        assert_eq!(client.pool_op(2, PoolOpCode::CREATE_UNMANAGED_SNAP, id, "").await, (0, snap));
        assert_eq!(client.pool_op(3, PoolOpCode::CREATE, 0, "q").await.0, 0);
        let q = monitor.state().osd.map().pool_by_name("q").unwrap().0 as u32;
        assert_eq!(client.pool_op(4, PoolOpCode::DELETE, q, "").await.0, 0);
        assert_eq!(client.pool_op(3, PoolOpCode::CREATE, 0, "q").await.0, 0);
        assert_eq!(pools(&monitor), ["p"], "a late copy of an earlier operation was executed");
        assert_eq!(client.pool_op(1, PoolOpCode::CREATE, 0, "r").await.0, -Errno::ESTALE.0);

        // Another client's numbers are its own.
        let name = "client.admin".parse().unwrap();
        let other =
            CephxClient::new(AuthPolicy::new(EntityType::CLIENT), name, key, &[EntityType::MON]);
        let mut other = Client::connect(&Rc::new(RefCell::new(other)), &monitor);
        assert_eq!(other.command(1, &CREATE.replace("\"p\"", "\"s\"")).await.0, 0);
        assert_eq!(pools(&monitor), ["p", "s"]);
        drop((client, other));
        monitor.shutdown().await;
    });
}
