//! Stock programs as the other end.

mod common;

use auth::{AuthPolicy, ConMode};
use common::*;
use msgr::*;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Stdio;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use types::{EntityName, EntityType, Utime};

fn now() -> Utime {
    Utime::from_duration(SystemTime::now().duration_since(UNIX_EPOCH).unwrap())
}

/// Whether a stock program is there; without it the test is skipped, or fails if oracles are
/// required.
fn have(program: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|d| d.join(program).is_file());
    if !found {
        assert!(
            std::env::var_os("SIPHON_REQUIRE_ORACLES").is_none(),
            "{program} is required and not installed"
        );
        eprintln!("skipped: {program} is not installed");
    }
    found
}

fn local<T>(f: impl Future<Output = T>) -> T {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&rt, f)
}

#[derive(Debug)]
enum Seen {
    Accepted { name: String, mode: ConMode },
    Message(Message),
}

struct Recorder {
    seen: mpsc::UnboundedSender<Seen>,
    connected: RefCell<Option<Rc<Connection>>>,
}

impl Dispatcher for Recorder {
    fn on_accept(&self, conn: &Rc<Connection>) -> bool {
        let name = conn.auth_name().map(|n| n.to_string()).unwrap_or_default();
        self.seen.send(Seen::Accepted { name, mode: conn.con_mode() }).is_ok()
    }
    fn on_connect(&self, conn: &Rc<Connection>) {
        self.connected.replace(Some(conn.clone()));
    }
    fn on_message(&self, _: &Rc<Connection>, message: Message, _: ReceiveGuard) {
        let _ = self.seen.send(Seen::Message(message));
    }
    fn on_reset(&self, conn: &Rc<Connection>) {
        eprintln!("reset {conn:?}");
    }
}

const MON_GET_MAP: u16 = 5;
const MON_SUBSCRIBE: u16 = 15;

/// The stock CLI connects, authenticates and sends its first subscription.
fn cli_reaches_its_first_message(mode: ConMode) {
    if !have("ceph") {
        return;
    }
    local(async {
        let s = secrets(now(), &mut rng(11));
        s.mon.borrow_mut().policy = only(AuthPolicy::new(EntityType::MON), mode);
        let (tx, mut seen) = mpsc::unbounded_channel();
        let m = Messenger::new(
            MessengerConfig {
                name: EntityName::new(EntityType::MON, 0),
                nonce: 0,
                policies: PolicySet::new(Policy::stateless_registered_server()),
                limits: Limits::default(),
                server_auth: Some(s.mon.clone()),
                client_auth: admin(&s, mode),
            },
            Rc::new(Recorder { seen: tx, connected: RefCell::default() }),
        );
        let addr = m.bind(IpAddr::V4(Ipv4Addr::LOCALHOST), 0..=0).unwrap();
        let mut child = tokio::process::Command::new("ceph")
            .args([
                "-c",
                "/dev/null",
                "-m",
                &format!("v2:127.0.0.1:{}", addr.port()),
                "-n",
                "client.admin",
            ])
            .args(["--key", &s.admin_key.to_base64(), "--connect-timeout", "20", "status"])
            .arg(match mode {
                ConMode::Crc => "--ms-mon-client-mode=crc",
                ConMode::Secure => "--ms-mon-client-mode=secure",
            })
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut types = Vec::new();
        let mut accepted = 0;
        while !types.contains(&MON_SUBSCRIBE) {
            match seen.recv().await.unwrap() {
                Seen::Accepted { name, mode: got } => {
                    assert_eq!((&*name, got), ("client.admin", mode));
                    accepted += 1;
                }
                Seen::Message(m) => types.push(m.msg_type),
            }
        }
        assert_eq!((types[0], accepted), (MON_GET_MAP, 1));
        child.start_kill().unwrap();
        child.wait().await.unwrap();
        m.shutdown();
    });
}

#[test]
fn stock_cli_in_crc_mode() {
    cli_reaches_its_first_message(ConMode::Crc);
}

#[test]
fn stock_cli_in_secure_mode() {
    cli_reaches_its_first_message(ConMode::Secure);
}
