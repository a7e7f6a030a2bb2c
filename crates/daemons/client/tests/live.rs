//! Against a running cluster, ours or a stock one, named by `SIPHON_TEST_CEPH_CONF`; the pool is
//! `SIPHON_TEST_POOL`, by default `rbd`. Ignored unless asked for:
//! `SIPHON_TEST_CEPH_CONF=/etc/ceph/ceph.conf cargo test -p client --test live -- --ignored`.

use auth::{AuthName, ConMode, Keyring, RotatingKeyRing};
use bytes::Bytes;
use client::{
    ClientError, ClusterConfig, IoCtx, ListCursor, MonClient, MonConfig, Operation, Rados,
};
use messages::{Statfs, StatfsReply};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use types::{EntityType, Errno, LogPriority, OsdId, SnapContext, Utime};

const LIMIT: Duration = Duration::from_secs(30);

fn cluster() -> ClusterConfig {
    let conf = PathBuf::from(
        std::env::var_os("SIPHON_TEST_CEPH_CONF").expect("SIPHON_TEST_CEPH_CONF names a ceph.conf"),
    );
    ClusterConfig::read(&conf, AuthName::new(EntityType::CLIENT, "admin")).unwrap()
}

fn now() -> Utime {
    Utime::from_duration(
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap(),
    )
}

fn with_mode(mode: ConMode) -> ClusterConfig {
    let mut cluster = cluster();
    cluster.policy.mon_client_modes = vec![mode];
    cluster.policy.client_modes = vec![mode];
    cluster
}

fn run<F: Future>(test: F) -> F::Output {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(LIMIT * 2, test).await.expect("the test ends in time")
    })
}

async fn talk_to_the_monitor(mode: ConMode) {
    let mon = MonClient::new(MonConfig::new(&with_mode(mode)));
    mon.wait_ready(LIMIT).await.unwrap();
    assert_eq!(mon.session().unwrap().con_mode(), mode);
    assert!(mon.global_id() > 0);
    let status = mon
        .command(r#"{"prefix": "status", "format": "json"}"#, Bytes::new())
        .await
        .unwrap()
        .ok()
        .unwrap();
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
            let last = mon
                .command(r#"{"prefix": "log last", "num": 20}"#, Bytes::new())
                .await
                .unwrap()
                .ok()
                .unwrap();
            if String::from_utf8_lossy(&last).contains(&text) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

async fn pool(mode: ConMode) -> IoCtx {
    let rados = Rados::connect(&with_mode(mode), LIMIT).await.unwrap();
    let name = std::env::var("SIPHON_TEST_POOL").unwrap_or("rbd".into());
    rados
        .ioctx(&name)
        .await
        .unwrap()
        .with_timeout(LIMIT)
        .with_namespace(&format!("client-test-{}", rand::random::<u32>()))
}

fn errno<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Errno {
    result.unwrap_err().errno()
}

async fn objects(mode: ConMode) {
    let io = pool(mode).await;
    assert_eq!(errno(io.stat("a").await), Errno::ENOENT);
    io.write_full("a", Bytes::from_static(b"hello")).await.unwrap();
    io.write("a", 3, Bytes::from_static(b"p me")).await.unwrap();
    io.append("a", Bytes::from_static(b"!")).await.unwrap();
    assert_eq!(io.read("a", 0, 100).await.unwrap(), "help me!");
    assert_eq!(io.read("a", 5, 2).await.unwrap(), "me");
    let stat = io.stat("a").await.unwrap();
    assert_eq!(stat.size, 8);
    assert!(now().since(stat.mtime) < Duration::from_secs(60));

    let large: Bytes = (0..3_000_000u32).map(|i| (i / 7) as u8).collect::<Vec<_>>().into();
    io.write_full("large", large.clone()).await.unwrap();
    assert!(io.read("large", 0, 0).await.unwrap() == large);

    io.set_xattr("a", "user.x", b"1").await.unwrap();
    assert_eq!(io.get_xattr("a", "user.x").await.unwrap(), "1");
    assert_eq!(io.get_xattrs("a").await.unwrap().len(), 1);
    io.remove_xattr("a", "user.x").await.unwrap();
    assert_eq!(errno(io.get_xattr("a", "user.x").await), Errno::ENODATA);

    let values: BTreeMap<Bytes, Bytes> =
        (0..10u8).map(|i| (format!("key{i}").into(), vec![i; 3].into())).collect();
    io.omap_set("a", &values).await.unwrap();
    let (some, more) = io.omap("a", b"", 4).await.unwrap();
    assert_eq!((some.len(), more), (4, true));
    io.omap_remove("a", &BTreeSet::from(["key0".into()])).await.unwrap();
    let (rest, more) = io.omap("a", b"", 100).await.unwrap();
    assert_eq!((rest.len(), more), (9, false));

    let steps = Operation::new().create(true).write_full(Bytes::from_static(b"x"));
    assert_eq!(io.run("a", steps).await.unwrap().result, -Errno::EEXIST.0);
    let steps = Operation::new().stat().read(0, 4).get_xattrs();
    let outcome = io.run("a", steps).await.unwrap().ok().unwrap();
    assert_eq!((outcome.ops.len(), outcome.output(1)), (3, Bytes::from_static(b"help")));

    assert_eq!(errno(io.exec("a", "lock", "no_such_method", b"", false).await), Errno::EOPNOTSUPP);

    let mut listed: Vec<Bytes> = io.list_all().await.unwrap().into_iter().map(|o| o.name).collect();
    listed.sort();
    assert_eq!(listed, ["a", "large"]);
    for name in ["a", "large"] {
        io.remove(name).await.unwrap();
    }
    assert!(io.list_all().await.unwrap().is_empty());
    assert_eq!(errno(io.remove("a").await), Errno::ENOENT);
    io.rados().shutdown();
    assert_eq!(io.stat("a").await, Err(ClientError::Shutdown));
}

#[test]
#[ignore = "needs a cluster"]
fn objects_in_crc_mode() {
    run(objects(ConMode::Crc));
}

#[test]
#[ignore = "needs a cluster"]
fn objects_in_secure_mode() {
    run(objects(ConMode::Secure));
}

#[test]
#[ignore = "needs a cluster"]
fn snapshots_and_statistics() {
    run(async {
        let io = pool(ConMode::Crc).await;
        let statfs: StatfsReply = io
            .rados()
            .mon()
            .request(&Statfs { fsid: io.rados().mon().fsid().unwrap(), ..Default::default() })
            .await
            .unwrap();
        assert!(statfs.kb > 0 && statfs.kb_avail <= statfs.kb);
        io.write_full("a", Bytes::from_static(b"old")).await.unwrap();
        let snap = io.create_snapshot().await.unwrap();
        let later = io.clone().with_snap_context(SnapContext { seq: snap, snaps: vec![snap] });
        later.write_full("a", Bytes::from_static(b"new")).await.unwrap();
        assert_eq!(io.read("a", 0, 0).await.unwrap(), "new");
        assert_eq!(io.clone().with_read_snapshot(snap).read("a", 0, 0).await.unwrap(), "old");
        later.run("a", Operation::new().rollback(snap)).await.unwrap().ok().unwrap();
        assert_eq!(io.read("a", 0, 0).await.unwrap(), "old");
        later.remove("a").await.unwrap();
        io.remove_snapshot(snap).await.unwrap();
    });
}

#[test]
#[ignore = "needs a cluster"]
fn many_requests_at_once() {
    run(async {
        let io = pool(ConMode::Crc).await;
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..200u32 {
            let io = io.clone();
            tasks.spawn_local(async move {
                let name = format!("object{i}");
                let data = Bytes::from(vec![i as u8; 4096]);
                io.write_full(&name, data.clone()).await.unwrap();
                assert_eq!(io.read(&name, 0, 0).await.unwrap(), data);
                io.remove(&name).await.unwrap();
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        let (end, none) = io.list(&ListCursor::START, 1000, false).await.unwrap();
        assert!(none.is_empty());
        drop(end);
    });
}

#[test]
#[ignore = "needs a cluster"]
fn requests_survive_sessions() {
    run(async {
        let io = pool(ConMode::Crc).await;
        let breaker = async {
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(25)).await;
                io.rados().objecter().break_sessions();
            }
        };
        let worker = async {
            for i in 0..200u32 {
                io.append("log", i.to_le_bytes().to_vec().into()).await.unwrap();
            }
        };
        tokio::join!(breaker, worker);
        let log = io.read("log", 0, 0).await.unwrap();
        let numbers: Vec<u32> =
            log.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
        assert_eq!(numbers, (0..200).collect::<Vec<_>>());
        io.remove("log").await.unwrap();
    });
}

#[test]
#[ignore = "needs a cluster"]
fn commands_to_daemons() {
    run(async {
        let rados = Rados::connect(&with_mode(ConMode::Crc), LIMIT).await.unwrap();
        let version = rados
            .osd_command(OsdId(0), r#"{"prefix": "version"}"#, Bytes::new())
            .await
            .unwrap()
            .ok()
            .unwrap();
        assert!(String::from_utf8_lossy(&version).contains("version"));
        let dump = rados
            .mgr_command(r#"{"prefix": "pg dump", "format": "json"}"#, Bytes::new())
            .await
            .unwrap()
            .ok()
            .unwrap();
        let dump: serde_json::Value = serde_json::from_slice(&dump).unwrap();
        assert!(dump.is_object());
        assert_eq!(
            rados.osd_command(OsdId(4711), "{}", Bytes::new()).await,
            Err(ClientError::NoDaemon)
        );
        assert!(matches!(rados.ioctx("no such pool").await, Err(ClientError::NoPool)));
    });
}

/// Needs two OSDs, and monitors that allow pools to be deleted.
#[test]
#[ignore = "needs a cluster"]
fn requests_survive_map_changes() {
    run(async {
        let rados = Rados::connect(&with_mode(ConMode::Crc), LIMIT).await.unwrap();
        let name = format!("client-test-{}", rand::random::<u32>());
        let mon = async |json: String| {
            rados.mon_command(&json, Bytes::new()).await.unwrap().ok().unwrap()
        };
        mon(format!(r#"{{"prefix": "osd pool create", "pool": "{name}", "pg_num": 4}}"#)).await;
        let io = rados.ioctx(&name).await.unwrap();
        let done = std::cell::Cell::new(false);
        let churn = async {
            let pause = async || tokio::time::sleep(Duration::from_millis(300)).await;
            for osd in ["0", "1"] {
                mon(format!(r#"{{"prefix": "osd down", "ids": ["{osd}"]}}"#)).await;
                pause().await;
                mon(format!(r#"{{"prefix": "osd primary-affinity", "id": {osd}, "weight": 0.0}}"#))
                    .await;
                pause().await;
                mon(format!(r#"{{"prefix": "osd primary-affinity", "id": {osd}, "weight": 1.0}}"#))
                    .await;
                pause().await;
            }
            mon(r#"{"prefix": "osd set", "key": "pause"}"#.into()).await;
            pause().await;
            mon(r#"{"prefix": "osd unset", "key": "pause"}"#.into()).await;
            for pg_num in [8, 16] {
                mon(format!(r#"{{"prefix": "osd pool set", "pool": "{name}", "var": "pg_num", "val": "{pg_num}"}}"#)).await;
                pause().await;
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
            done.set(true);
        };
        // Each object's appends must arrive once each and in order, across everything.
        let workers = async {
            let work = (0..16u32).map(|object| {
                let (io, done) = (&io, &done);
                async move {
                    let name = format!("log{object}");
                    let mut i = 0u32;
                    while !done.get() {
                        io.append(&name, i.to_le_bytes().to_vec().into()).await.unwrap();
                        i += 1;
                    }
                    let log = io.read(&name, 0, 0).await.unwrap();
                    let numbers: Vec<u32> =
                        log.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
                    assert_eq!(numbers, (0..i).collect::<Vec<_>>());
                    i
                }
            });
            let mut total = 0;
            for count in join_all(work).await {
                total += count;
            }
            assert!(total > 100, "{total} appends");
        };
        tokio::join!(churn, workers);
        assert_eq!(io.list_all().await.unwrap().len(), 16);
        mon(format!(r#"{{"prefix": "osd pool delete", "pool": "{name}", "pool2": "{name}", "yes_i_really_really_mean_it": true}}"#)).await;
        rados.objecter().wait_latest().await.unwrap();
        assert_eq!(io.stat("log0").await, Err(ClientError::NoPool));
    });
}

/// Runs futures side by side.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|f| (Box::pin(f), None)).collect();
    std::future::poll_fn(|cx| {
        let mut pending = false;
        for (future, output) in futures.iter_mut().filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(cx) {
                std::task::Poll::Ready(value) => *output = Some(value),
                std::task::Poll::Pending => pending = true,
            }
        }
        if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}
