//! The stock `ceph` tool against a monitor in this process.

use auth::{CryptoKey, EntityAuth, Keyring};
use conf::Config;
use mon::{MkfsArgs, Monitor, StartOptions};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Instant;
use types::{EntityAddr, EntityAddrVec, Utime};

/// Whether the stock tool is there; without it the test has nothing to ask.
fn tool() -> bool {
    let there = Command::new("ceph").arg("--version").output().is_ok_and(|o| o.status.success());
    if !there {
        assert!(
            std::env::var_os("SIPHON_REQUIRE_ORACLES").is_none(),
            "the stock ceph tool is missing"
        );
        eprintln!("skipped: the stock ceph tool is missing");
    }
    there
}

fn now() -> Utime {
    Utime::from_duration(
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap(),
    )
}

/// A monitor on a thread of its own.
struct Cluster {
    dir: PathBuf,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Cluster {
    fn make(dir: &Path) {
        let mut rng = rand::rng();
        let admin = EntityAuth {
            key: CryptoKey::generate(now(), &mut rng),
            caps: ["mon", "osd", "mgr", "mds"].map(|s| (s.to_owned(), "allow *".to_owned())).into(),
        };
        let keyring: Keyring = [("client.admin".parse().unwrap(), admin)].into_iter().collect();
        std::fs::write(dir.join("keyring"), keyring.to_string()).unwrap();
        let listen = EntityAddr::msgr2("127.0.0.1:0".parse().unwrap(), 0);
        let args = MkfsArgs {
            fsid: "4a4c0f3e-9a10-4d3f-8a62-0f6d2e7c1b11".parse().unwrap(),
            name: "a".into(),
            monitors: BTreeMap::from([("a".to_owned(), EntityAddrVec::one(listen))]),
            mon_key: CryptoKey::generate(now(), &mut rng),
            keyring,
            crush: None,
            config: BTreeMap::new(),
            now: now(),
        };
        mon::mkfs(&dir.join("mon.a"), &args, &Config::new()).unwrap();
    }

    fn start(dir: &Path, mode: &str, settings: &[(&str, &str)]) -> Cluster {
        let (tx, rx) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let data = dir.join("mon.a");
        let mut config = Config::new();
        for (name, value) in settings {
            config.set(conf::effective::Source::CommandLine, name, value).unwrap();
        }
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async move {
                let options = StartOptions {
                    conf: Rc::new(RefCell::new(config)),
                    listen: Some("127.0.0.1:0".parse().unwrap()),
                    ..StartOptions::default()
                };
                let monitor = Monitor::start(&data, options).await.unwrap();
                tx.send(monitor.addrs()).unwrap();
                let _ = stopped.await;
                monitor.shutdown().await;
            });
        });
        let addrs = rx.recv().expect("the monitor starts");
        let text = format!(
            "[global]\nfsid = 4a4c0f3e-9a10-4d3f-8a62-0f6d2e7c1b11\nmon_host = [{addrs}]\nkeyring = {}\n\
             ms_mon_client_mode = {mode}\nlog_to_file = false\n",
            dir.join("keyring").display()
        );
        std::fs::write(dir.join("ceph.conf"), text).unwrap();
        Cluster { dir: dir.to_owned(), stop: Some(stop), thread: Some(thread) }
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let out = Command::new("ceph")
            .arg("-c")
            .arg(self.dir.join("ceph.conf"))
            .arg("--connect-timeout=20")
            .args(args)
            .output()
            .unwrap();
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let (code, stdout, stderr) =
            (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr));
        eprintln!("$ ceph {}\n[{code}] {stdout}{stderr}", args.join(" "));
        (code, stdout, stderr)
    }

    fn ok(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(args);
        assert_eq!(code, 0, "ceph {args:?}: {stderr}");
        stdout + &stderr
    }

    fn json(&self, args: &[&str]) -> Value {
        let (code, stdout, stderr) = self.run(&[args, &["-f", "json"]].concat());
        assert_eq!(code, 0, "ceph {args:?}: {stderr}");
        serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("ceph {args:?}: {e}: {stdout}"))
    }

    fn refused(&self, args: &[&str], errno: i32, message: &str) {
        let (code, _, stderr) = self.run(args);
        assert_eq!(code, errno, "ceph {args:?}: {stderr}");
        assert!(stderr.contains(message), "ceph {args:?}: {stderr}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(t) = self.thread.take() {
            let ended = t.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

#[test]
fn the_stock_tool_is_served() {
    if !tool() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    Cluster::make(dir.path());
    {
        let begin = Instant::now();
        let c = Cluster::start(dir.path(), "crc", &[("mon_allow_pool_delete", "true")]);
        eprintln!("started after {:?}", begin.elapsed());

        assert_eq!(c.ok(&["fsid"]).trim(), "4a4c0f3e-9a10-4d3f-8a62-0f6d2e7c1b11");
        let quorum = c.json(&["quorum_status"]);
        assert_eq!(quorum["quorum_leader_name"], "a");
        pools(&c);
        entities(&c);
        osds_and_crush(&c);
        small_stores(&c);
        monitors(&c);
        fewer_rights(&c, dir.path());
    }
    // A restart keeps everything; the other connection mode works as well.
    let begin = Instant::now();
    let c = Cluster::start(dir.path(), "secure", &[]);
    eprintln!("restarted after {:?}", begin.elapsed());
    assert_eq!(c.ok(&["config-key", "get", "some/key"]).trim(), "value");
    assert!(
        c.json(&["osd", "tree"])["nodes"].as_array().unwrap().iter().any(|n| n["name"] == "osd.0")
    );
    c.refused(&["osd", "pool", "create", "one", "8", "--size", "1"], 1, "disabled by default");
    c.ok(&["osd", "pool", "create", "again", "8"]);
    c.refused(
        &["osd", "pool", "rm", "again", "again", "--yes-i-really-really-mean-it"],
        1,
        "mon_allow_pool_delete",
    );
}

fn pools(c: &Cluster) {
    assert!(c.ok(&["osd", "pool", "create", "rbd", "8"]).contains("pool 'rbd' created"));
    assert!(c.ok(&["osd", "pool", "create", "rbd", "8"]).contains("pool 'rbd' already exists"));
    let dump = c.json(&["osd", "dump"]);
    assert_eq!(dump["pools"][0]["pool_name"], "rbd");
    assert_eq!(dump["pools"][0]["pg_num"], 8);
    assert_eq!(dump["require_osd_release"], "squid");
    assert!(
        c.ok(&["osd", "pool", "application", "enable", "rbd", "rbd"])
            .contains("enabled application 'rbd'")
    );
    assert!(c.ok(&["osd", "pool", "set", "rbd", "size", "2"]).contains("set pool 1 size to 2"));
    assert_eq!(c.json(&["osd", "pool", "get", "rbd", "size"])["size"], 2);
    c.refused(&["osd", "pool", "get", "none", "size"], 2, "unrecognized pool 'none'");
    assert!(
        c.ok(&["osd", "pool", "set", "rbd", "pg_num", "16"]).contains("set pool 1 pg_num to 16")
    );
    c.refused(&["osd", "pool", "rm", "rbd"], 1, "PERMANENTLY DESTROY");
    c.ok(&["osd", "pool", "mksnap", "rbd", "s1"]);
    assert_eq!(c.json(&["osd", "pool", "ls", "detail"])[0]["pool_snaps"][0]["name"], "s1");
    assert!(c.ok(&["osd", "pool", "rename", "rbd", "other"]).contains("renamed to 'other'"));
    let sure = "--yes-i-really-really-mean-it";
    assert!(c.ok(&["osd", "pool", "rm", "other", "other", sure]).contains("pool 'other' removed"));
}

fn entities(c: &Cluster) {
    let made =
        c.ok(&["auth", "get-or-create", "client.x", "mon", "allow r", "osd", "allow rw pool=rbd"]);
    assert!(made.contains("[client.x]"), "{made}");
    c.refused(
        &["auth", "get-or-create", "client.x", "mon", "allow *"],
        22,
        "cap mon does not match",
    );
    c.refused(&["auth", "get", "client.y"], 2, "failed to find client.y in keyring");
    let ls = c.json(&["auth", "ls"]);
    assert!(ls["auth_dump"].as_array().unwrap().iter().any(|e| e["entity"] == "client.x"), "{ls}");
    c.refused(&["auth", "caps", "client.x", "mon", "allow nonsense ("], 22, "");
}

fn osds_and_crush(c: &Cluster) {
    let uuid = "11111111-2222-3333-4444-555555555555";
    assert_eq!(c.ok(&["osd", "new", uuid]).trim(), "0");
    assert_eq!(c.ok(&["osd", "new", uuid]).trim(), "0");
    c.ok(&["osd", "crush", "create-or-move", "osd.0", "1.0", "host=h1", "root=default"]);
    let tree = c.json(&["osd", "tree"]);
    assert!(tree["nodes"].as_array().unwrap().iter().any(|n| n["name"] == "osd.0"), "{tree}");
    c.ok(&["osd", "crush", "set-device-class", "ssd", "osd.0"]);
    c.ok(&["osd", "crush", "rule", "create-replicated", "fast", "default", "host", "ssd"]);
    assert_eq!(c.json(&["osd", "crush", "rule", "dump", "fast"])["rule_name"], "fast");
    assert!(c.ok(&["osd", "set", "noout"]).contains("noout is set"));
    assert!(c.ok(&["osd", "dump"]).contains("noout"));
    c.ok(&["osd", "unset", "noout"]);
    assert!(c.ok(&["osd", "in", "0"]).contains("marked in osd.0"));
    assert!(
        c.ok(&["osd", "blocklist", "add", "10.0.0.1:0/123", "60"])
            .contains("blocklisting 10.0.0.1:0/123")
    );
    assert_eq!(c.json(&["osd", "blocklist", "ls"])[0]["addr"], "10.0.0.1:0/123");
}

fn small_stores(c: &Cluster) {
    c.ok(&["config-key", "set", "some/key", "value"]);
    assert_eq!(c.ok(&["config-key", "get", "some/key"]).trim(), "value");
    c.ok(&["log", "hello", "there"]);
    assert!(c.ok(&["log", "last", "5"]).contains("hello there"));
}

fn monitors(c: &Cluster) {
    assert_eq!(c.json(&["mon", "dump"])["mons"][0]["name"], "a");
    assert_eq!(c.json(&["mgr", "dump"])["available"], false);
    assert_eq!(c.json(&["fs", "ls"]), serde_json::json!([]));
    c.refused(&["mon", "set", "election_strategy", "classic"], 95, "Raft");
    // An announced monitor has no say: the only one there is goes on without it.
    c.ok(&["mon", "add", "b", "127.0.0.1:1"]);
    assert_eq!(c.json(&["mon", "dump"])["mons"][1]["name"], "b");
    assert!(c.ok(&["health", "detail"]).contains("mon.b (rank 1)"));
    c.refused(&["mon", "rm", "a"], 16, "would leave no monitor that runs");
    c.ok(&["mon", "rm", "b"]);
    c.refused(&["mon", "rm", "a"], 22, "last monitor");
    c.ok(&["tell", "mon.a", "version"]);
}

fn fewer_rights(c: &Cluster, dir: &Path) {
    let (_, key, _) = c.run(&["auth", "get", "client.x"]);
    std::fs::write(dir.join("x.keyring"), key).unwrap();
    let ring = dir.join("x.keyring");
    let ring = ring.to_str().unwrap();
    c.ok(&["-n", "client.x", "-k", ring, "osd", "pool", "ls"]);
    c.refused(
        &["-n", "client.x", "-k", ring, "osd", "pool", "create", "nope"],
        13,
        "access denied",
    );
}
