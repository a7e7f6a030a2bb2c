//! Requests that a follower passed on, while its leader throws away what it had begun.

use super::part::Role;
use super::{Monitor, StartOptions, now};
use crate::mkfs::{MkfsArgs, mkfs, mkfs_member};
use auth::{AuthPolicy, CephxClient, CryptoKey, EntityAuth, Keyring};
use conf::Config;
use messages::{MonCommand, MonCommandAck, Payload};
use msgr::{
    Connection, Dispatcher, Limits, Message, Messenger, MessengerConfig, Policy, PolicySet,
    ReceiveGuard,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;
use types::{EntityAddrVec, EntityName, EntityType, Fsid};

fn fsid() -> Fsid {
    "4a4c0f3e-9a10-4d3f-8a62-0f6d2e7c1b12".parse().unwrap()
}

struct Group {
    monitors: Vec<Monitor>,
    key: CryptoKey,
}

impl Group {
    /// Three monitors that are a quorum.
    async fn start(dir: &Path) -> Group {
        let key = CryptoKey::generate(now(), &mut rand::rng());
        let mon_key = CryptoKey::generate(now(), &mut rand::rng());
        let admin = EntityAuth {
            key: key.clone(),
            caps: ["mon", "osd"].map(|s| (s.to_owned(), "allow *".to_owned())).into(),
        };
        // Three ports that are free now.
        let sockets: Vec<_> =
            (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addrs: Vec<_> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
        drop(sockets);
        let named: BTreeMap<String, EntityAddrVec> = ["a", "b", "c"]
            .iter()
            .zip(&addrs)
            .map(|(n, a)| (n.to_string(), EntityAddrVec::one(types::EntityAddr::msgr2(*a, 0))))
            .collect();
        let args = MkfsArgs {
            fsid: fsid(),
            name: "a".into(),
            monitors: named.clone(),
            mon_key: mon_key.clone(),
            keyring: [("client.admin".parse().unwrap(), admin)].into_iter().collect::<Keyring>(),
            crush: None,
            config: BTreeMap::new(),
            now: now(),
        };
        let mut monitors = Vec::new();
        for (name, addr) in ["a", "b", "c"].into_iter().zip(addrs) {
            let home = dir.join(format!("mon.{name}"));
            match name {
                "a" => mkfs(&home, &args, &Config::new()).unwrap(),
                _ => mkfs_member(&home, name, &mon_key).unwrap(),
            }
            let options = StartOptions {
                listen: Some(addr),
                peers: named.clone(),
                fsid: fsid(),
                ..StartOptions::default()
            };
            monitors.push(Monitor::start(&home, options).await.unwrap());
        }
        let group = Group { monitors, key };
        group
            .until("a quorum of three", |g| {
                let all = g.monitors.iter().all(|m| m.inner.replica.members().voters.len() == 3);
                all && g.leader().is_some()
                    && g.monitors
                        .iter()
                        .filter(|m| matches!(m.inner.part.borrow().role, Role::Follower(_)))
                        .count()
                        == 2
            })
            .await;
        group
    }

    async fn until(&self, what: &str, is: impl Fn(&Group) -> bool) {
        let all = async {
            while !is(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), all)
            .await
            .unwrap_or_else(|_| panic!("there is never {what}"));
    }

    fn leader(&self) -> Option<usize> {
        self.monitors.iter().position(|m| m.inner.leads())
    }

    /// A client of one of them.
    fn client(
        &self,
        of: usize,
    ) -> (Rc<Messenger>, Rc<Connection>, mpsc::UnboundedReceiver<Message>) {
        let policy = AuthPolicy::new(EntityType::CLIENT);
        let auth = CephxClient::new(
            policy,
            "client.admin".parse().unwrap(),
            self.key.clone(),
            &[EntityType::MON],
        );
        let (tell, answers) = mpsc::unbounded_channel();
        let config = MessengerConfig {
            name: EntityName::new(EntityType::CLIENT, 0),
            nonce: rand::random(),
            policies: PolicySet::new(Policy::lossy_client()),
            limits: Limits::default(),
            server_auth: None,
            client_auth: Rc::new(RefCell::new(auth)),
        };
        let messenger = Messenger::new(config, Rc::new(Answers(tell)));
        let conn = messenger.connect(EntityType::MON, self.monitors[of].addrs());
        (messenger, conn, answers)
    }

    async fn shutdown(self) {
        for m in &self.monitors {
            m.shutdown().await;
        }
    }
}

struct Answers(mpsc::UnboundedSender<Message>);

impl Dispatcher for Answers {
    fn on_message(&self, _: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        drop(guard);
        let _ = self.0.send(message);
    }
}

fn run(test: impl AsyncFnOnce(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test(dir.path()));
}

fn command(tid: u64) -> Message {
    let json = format!(r#"{{"prefix": "config-key set", "key": "k{tid}", "val": "v"}}"#);
    let mut m = MonCommand { fsid: fsid(), cmd: vec![json], ..MonCommand::default() }
        .encode(denc::Features::ALL);
    m.tid = tid;
    m
}

#[test]
fn what_a_leader_threw_away_is_passed_on_again() {
    run(async |dir| {
        let group = Group::start(dir).await;
        let leader = group.leader().unwrap();
        let (messenger, conn, mut answers) = group.client((leader + 1) % 3);
        let inner = group.monitors[leader].inner.clone();
        let mut open = BTreeSet::new();
        let mut thrown = 0;
        for tid in 1..=20 {
            conn.send(command(tid));
            open.insert(tid);
            // As at the beginning of a term, but it leads in the same one as before.
            while thrown < tid && group.leader() == Some(leader) {
                if inner.ops.in_flight(now())["num_ops"] != 0 {
                    inner.start_batches_anew();
                    thrown += 1;
                }
                tokio::task::yield_now().await;
            }
        }
        assert!(group.leader() != Some(leader) || thrown == 20);
        while !open.is_empty() {
            let got = tokio::time::timeout(Duration::from_secs(60), answers.recv()).await;
            let m = got.unwrap_or_else(|_| panic!("{open:?} are not answered")).unwrap();
            if m.msg_type == MonCommandAck::TYPE {
                assert_eq!(MonCommandAck::decode(&m).unwrap().result, 0);
                open.remove(&m.tid);
            }
        }
        messenger.shutdown();
        group.shutdown().await;
    });
}

#[test]
fn two_looks_are_one_beginning() {
    run(async |dir| {
        let group = Group::start(dir).await;
        let inner = group.monitors[group.leader().unwrap()].inner.clone();
        for round in 0..20 {
            inner.part.borrow_mut().role = Role::Out;
            let change = async {
                while !inner.leads() {
                    tokio::task::yield_now().await;
                }
                inner
                    .change_async(|p| {
                        p.put(crate::state::Change::GlobalIds(p.state().global_id_max + 1))
                    })
                    .await
            };
            let (_, _, done) = tokio::join!(inner.look(), inner.look(), change);
            // Another one may lead by now; then this says nothing.
            assert!(
                done.is_ok() || !inner.leads(),
                "round {round}: what was begun behind the first look was thrown away"
            );
        }
        group.shutdown().await;
    });
}
