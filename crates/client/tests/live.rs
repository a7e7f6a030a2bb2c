//! Against a running cluster, ours or a stock one, named by `SIPHON_TEST_CEPH_CONF`; the pool is
//! `SIPHON_TEST_POOL`, by default `rbd`. Ignored unless asked for:
//! `SIPHON_TEST_CEPH_CONF=/etc/ceph/ceph.conf cargo test -p client --test live -- --ignored`.

use auth::{AuthName, ConMode, Keyring, RotatingKeyRing};
use bytes::Bytes;
use client::{ClusterConfig, MonClient, MonConfig};
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use types::{EntityType, LogPriority, Utime};

const LIMIT: Duration = Duration::from_secs(30);

fn cluster() -> ClusterConfig {
    let conf = PathBuf::from(std::env::var_os("SIPHON_TEST_CEPH_CONF").expect("SIPHON_TEST_CEPH_CONF names a ceph.conf"));
    ClusterConfig::read(&conf, AuthName::new(EntityType::CLIENT, "admin")).unwrap()
}

fn now() -> Utime {
    Utime::from_duration(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap())
}

fn with_mode(mode: ConMode) -> ClusterConfig {
    let mut cluster = cluster();
    cluster.policy.mon_client_modes = vec![mode];
    cluster.policy.client_modes = vec![mode];
    cluster
}

fn run<F: Future>(test: F) -> F::Output {
    let _ = tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).with_test_writer().try_init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async { tokio::time::timeout(LIMIT * 2, test).await.expect("the test ends in time") })
}

async fn talk_to_the_monitor(mode: ConMode) {
    let mon = MonClient::new(MonConfig::new(&with_mode(mode)));
    mon.wait_ready(LIMIT).await.unwrap();
    assert_eq!(mon.session().unwrap().con_mode(), mode);
    assert!(mon.global_id() > 0);
    let status = mon.command(r#"{"prefix": "status", "format": "json"}"#, Bytes::new()).await.unwrap().ok().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["fsid"], mon.fsid().unwrap().to_string());
    let (newest, oldest) = mon.get_version("osdmap").await.unwrap();
    assert!(newest >= oldest && newest > 0);
    let unknown = mon.command(r#"{"prefix": "no such command"}"#, Bytes::new()).await.unwrap();
    assert_eq!(unknown.code, -22);
    mon.shutdown();
    assert!(mon.command("{}", Bytes::new()).await.is_err());
}

#[test]
#[ignore = "needs a cluster"]
fn a_monitor_session_in_crc_mode() {
    run(talk_to_the_monitor(ConMode::Crc));
}

#[test]
#[ignore = "needs a cluster"]
fn a_monitor_session_in_secure_mode() {
    run(talk_to_the_monitor(ConMode::Secure));
}

#[test]
#[ignore = "needs a cluster"]
fn a_wrong_key_gets_no_session() {
    run(async {
        let mut cluster = cluster();
        cluster.key = auth::CryptoKey::generate(types::Utime::default(), &mut rand::rng());
        let mon = MonClient::new(MonConfig::new(&cluster));
        assert!(mon.wait_ready(Duration::from_secs(3)).await.is_err());
    });
}

#[test]
#[ignore = "needs a cluster"]
fn a_daemon_gets_rotating_keys() {
    run(async {
        let conf = PathBuf::from(std::env::var_os("SIPHON_TEST_CEPH_CONF").unwrap());
        let Ok(cluster) = ClusterConfig::read(&conf, AuthName::new(EntityType::OSD, "0")) else {
            eprintln!("skipped: the configuration leads to no key of osd.0");
            return;
        };
        let keys = Rc::new(RefCell::new(RotatingKeyRing::new(EntityType::OSD, Keyring::default())));
        let mut config = MonConfig::new(&cluster);
        config.rotating = Some(keys.clone());
        let mon = MonClient::new(config);
        mon.wait_ready(LIMIT).await.unwrap();
        mon.wait_rotating(LIMIT).await.unwrap();
        assert!(!keys.borrow().need_new_secrets(now()));
    });
}

#[test]
#[ignore = "needs a cluster"]
fn a_log_line_reaches_the_cluster_log() {
    run(async {
        let mon = MonClient::new(MonConfig::new(&cluster()));
        let text = format!("a line of client test {}", rand::random::<u64>());
        // Before there is a session: it is kept.
        mon.log(LogPriority::INFO, "cluster", text.clone());
        mon.wait_ready(LIMIT).await.unwrap();
        loop {
            let last = mon.command(r#"{"prefix": "log last", "num": 20}"#, Bytes::new()).await.unwrap().ok().unwrap();
            if String::from_utf8_lossy(&last).contains(&text) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}
