//! Against a running cluster, ours or a stock one, named by `SIPHON_TEST_CEPH_CONF`; the pool is
//! `SIPHON_TEST_POOL`, by default `rbd`. Ignored unless asked for:
//! `SIPHON_TEST_CEPH_CONF=/etc/ceph/ceph.conf cargo test -p client --test live -- --ignored`.

use auth::{AuthName, ConMode, Keyring, RotatingKeyRing};
use bytes::Bytes;
use client::{
    ChecksumKind, ClientError, ClusterConfig, Comparison, CopyFrom, IoCtx, Layout, Limits,
    ListCursor, MonClient, MonConfig, Operation, Options, Rados, SharedMap, Striper, WatchEvent,
};
use messages::{Statfs, StatfsReply};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use types::rados::OsdFlags;
use types::{EntityType, Errno, LogPriority, OsdId, SnapContext, SnapId, Utime};

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
        .with_namespace(format!("client-test-{}", rand::random::<u32>()))
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
    let some = io.omap("a", b"", 4).await.unwrap();
    assert_eq!((some.entries.len(), some.more), (4, true));
    io.omap_remove("a", &BTreeSet::from(["key0".into()])).await.unwrap();
    let rest = io.omap("a", b"", 100).await.unwrap();
    assert_eq!((rest.entries.len(), rest.more), (9, false));

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

#[test]
#[ignore = "needs a cluster"]
fn every_operation_has_a_builder_and_a_result() {
    run(async {
        let io = pool(ConMode::Crc).await;
        // Names are bytes.
        let name: &[u8] = b"\xff\0name";
        let data = Bytes::from_static(b"0123456789");
        let make = Operation::new()
            .create(true)
            .write_full(data.clone())
            .set_xattr(b"\x01a", b"7")
            .omap_set(&BTreeMap::from([("a".into(), "1".into()), ("b".into(), "2".into())]))
            .omap_set_header("head".into())
            .alloc_hint(4096, 4096, 0);
        io.run(name, make).await.unwrap().ok().unwrap();
        let look = Operation::new()
            .stat()
            .read(2, 3)
            .sparse_read(0, 10)
            .get_xattr(b"\x01a")
            .omap_keys(b"", 1)
            .omap_values_by_keys(&BTreeSet::from(["b".into(), "z".into()]))
            .omap_header()
            .checksum(ChecksumKind::Crc32c, u64::MAX, 0, 10, 5)
            .map_extents(0, 10);
        let seen = io.run(name, look).await.unwrap().ok().unwrap();
        assert_eq!(seen.stat(0).unwrap().size, 10);
        assert_eq!(seen.data(1).unwrap(), "234");
        let sparse = seen.sparse(2).unwrap();
        assert_eq!((sparse.extents, sparse.data), (vec![(0, 10)], data.clone()));
        assert_eq!(seen.data(3).unwrap(), "7");
        let keys = seen.omap_keys(4).unwrap();
        assert_eq!((keys.entries, keys.more), (BTreeSet::from(["a".into()]), true));
        assert_eq!(seen.omap_values(5).unwrap(), BTreeMap::from([("b".into(), "2".into())]));
        assert_eq!(seen.data(6).unwrap(), "head");
        assert_eq!(seen.checksums(7, ChecksumKind::Crc32c).unwrap().len(), 2);
        assert_eq!(seen.extents(8).unwrap(), BTreeMap::from([(0, 10)]));

        let guard = |how, value: &'static str| {
            let wanted = BTreeMap::from([("a".into(), (value.into(), how))]);
            Operation::new().omap_compare(&wanted).omap_remove_range(b"a", b"b")
        };
        let refused = io.run(name, guard(Comparison::Eq, "2")).await.unwrap();
        assert_eq!(refused.result, -Errno::ECANCELED.0);
        let done = io.run(name, guard(Comparison::Lt, "2")).await.unwrap().ok().unwrap();
        assert_eq!(io.omap(name, b"", 9).await.unwrap().entries.len(), 1);

        let version = done.user_version;
        let guards = Operation::new()
            .assert_version(version)
            .compare_xattr(b"\x01a", Comparison::Eq, b"7")
            .compare_xattr_u64(b"\x01a", Comparison::Gt, 6 + 2)
            .compare(3, "345".into())
            .write_same(0, 4, "xy".into())
            .zero(8, 1)
            .truncate(9);
        io.run(name, guards).await.unwrap().ok().unwrap();
        assert_eq!(io.read(name, 0, 0).await.unwrap(), &b"xyxy4567\0"[..]);
        let differs = io.run(name, Operation::new().compare(0, "xyZ".into())).await.unwrap().ok();
        assert_eq!(differs.unwrap_err(), ClientError::Differs(2));
        let stale = Operation::new().assert_version(version).write(0, "no".into());
        assert_eq!(errno(io.run(name, stale).await.unwrap().ok()), Errno::ERANGE);

        let copy = CopyFrom {
            locator: io.locator(),
            name: Bytes::copy_from_slice(name),
            snapid: SnapId::NOSNAP,
            version: 0,
            truncation: None,
        };
        io.run("copy", Operation::new().copy_from(&copy)).await.unwrap().ok().unwrap();
        assert_eq!(io.read("copy", 0, 0).await.unwrap(), &b"xyxy4567\0"[..]);
        let snap = io.create_snapshot().await.unwrap();
        let later = io.clone().with_snap_context(SnapContext { seq: snap, snaps: vec![snap] });
        later.append("copy", "!".into()).await.unwrap();
        let versions = io.clone().with_read_snapshot(SnapId::SNAPDIR);
        let snaps = versions.run("copy", Operation::new().list_snaps()).await.unwrap();
        assert_eq!(snaps.snaps(0).unwrap().clones.len(), 2);
        for name in [name, b"copy"] {
            later.remove(name).await.unwrap();
        }
        io.remove_snapshot(snap).await.unwrap();
    });
}

/// Waits until `condition` holds, looking again after everything that the thread does.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
#[ignore = "needs a cluster"]
fn a_watch_outlives_sessions_and_hears_of_its_end() {
    run(async {
        let io = pool(ConMode::Crc).await;
        io.write_full("w", "x".into()).await.unwrap();
        let heard = Rc::new(RefCell::new(Vec::new()));
        let error = Rc::new(Cell::new(None));
        let (h, e) = (heard.clone(), error.clone());
        let watch = io
            .watch("w", Duration::from_secs(30), move |event| match event {
                WatchEvent::Notify(n) => {
                    h.borrow_mut().push(n.payload.clone());
                    n.ack("yes".into());
                }
                WatchEvent::Error(errno) => e.set(Some(errno)),
            })
            .await
            .unwrap();
        let silent = io.watch("w", Duration::ZERO, |_| {}).await.unwrap();
        assert_ne!(silent.cookie(), watch.cookie());
        let watchers = io.run("w", Operation::new().list_watchers()).await.unwrap();
        assert_eq!(watchers.watchers(0).unwrap().len(), 2);
        let limit = Duration::from_secs(1);
        let out = io.notify("w", "one".into(), limit).await.unwrap();
        let me = io.rados().mon().global_id();
        assert_eq!(out.replies, BTreeMap::from([((me, watch.cookie()), "yes".into())]));
        assert_eq!(out.missed, [(me, silent.cookie())]);
        silent.unwatch().await.unwrap();
        let mut rounds = 1;
        for round in 0..5 {
            io.rados().objecter().break_sessions();
            // The notification may come before the watch is taken up again.
            loop {
                let payload = Bytes::from(format!("round {round}"));
                rounds += 1;
                let out = io.notify("w", payload, Duration::from_secs(10)).await.unwrap();
                if !out.replies.is_empty() {
                    break;
                }
            }
        }
        assert!(heard.borrow().len() >= 6 && heard.borrow().len() <= 2 * rounds);
        assert_eq!(error.get(), None);
        assert!(watch.check().unwrap() < LIMIT);
        io.remove("w").await.unwrap();
        until(|| error.get().is_some()).await;
        assert_eq!(error.get(), Some(Errno::ENOTCONN));
        assert!(watch.check().is_err());
        assert_eq!(errno(io.notify("w", Bytes::new(), limit).await), Errno::ENOENT);
        // One that is dropped is gone from the object.
        io.write_full("w", "x".into()).await.unwrap();
        drop(io.watch("w", Duration::ZERO, |_| {}).await.unwrap());
        loop {
            let left = io.run("w", Operation::new().list_watchers()).await.unwrap();
            if left.watchers(0).unwrap().is_empty() {
                break;
            }
        }
        io.remove("w").await.unwrap();
    });
}

#[test]
#[ignore = "needs a cluster"]
fn room_is_bounded_and_free_again_after_a_drop() {
    run(async {
        let options =
            Options { limits: Limits { ops: 2, bytes: 10 }, op_timeout: LIMIT, ..Options::DEFAULT };
        let config = MonConfig::new(&cluster());
        let rados = Rados::connect_with(config, SharedMap::new(), options, LIMIT).await.unwrap();
        let name = std::env::var("SIPHON_TEST_POOL").unwrap_or("rbd".into());
        let io = rados.ioctx(&name).await.unwrap().with_namespace("client-test-room");
        io.write_full("a", Bytes::from(vec![1; 100])).await.unwrap();
        // Two reads of more than there is, given up at once; then there is room for others.
        for _ in 0..10 {
            let reads = async { tokio::join!(io.read("a", 0, 8), io.read("a", 0, 8)) };
            let _ = tokio::time::timeout(Duration::ZERO, reads).await;
        }
        let reads = (0..50).map(|_| io.read("a", 0, 7));
        assert!(join_all(reads).await.into_iter().all(|data| data.unwrap().len() == 7));
        io.remove("a").await.unwrap();
    });
}

#[test]
#[ignore = "needs a cluster"]
fn files_are_striped_over_objects() {
    run(async {
        let io = pool(ConMode::Crc).await;
        let layout = Layout::new(65536, 3, 131072).unwrap();
        let file = Striper::inode(io.clone(), layout, 0x10000000000);
        let data: Bytes = (0..1_000_000u32).map(|i| (i / 3) as u8).collect::<Vec<_>>().into();
        file.write(0, data.clone()).await.unwrap();
        assert_eq!(io.list_all().await.unwrap().len() as u64, layout.objects(1_000_000));
        assert!(file.read(0, 2_000_000).await.unwrap() == data);
        assert!(file.read(65_000, 300_000).await.unwrap() == data.slice(65_000..365_000));
        assert_eq!(file.size(0).await.unwrap(), 1_000_000);
        file.write(1_500_000, "end".into()).await.unwrap();
        assert_eq!(file.size(1_000_000).await.unwrap(), 1_500_003);
        let gap = file.read(999_990, 600_000).await.unwrap();
        assert_eq!(gap.len(), 1_500_003 - 999_990);
        assert!(gap[10..gap.len() - 3].iter().all(|byte| *byte == 0));
        file.zero(0, 400_000).await.unwrap();
        let zeroed = file.read(0, 500_000).await.unwrap();
        assert!(zeroed[..400_000].iter().all(|byte| *byte == 0));
        assert!(zeroed[400_000..] == data[400_000..500_000]);
        file.truncate(1_500_003, 500_001).await.unwrap();
        assert_eq!(file.size(400_000).await.unwrap(), 500_001);
        assert!(file.read(400_000, 1 << 20).await.unwrap() == data.slice(400_000..500_001));
        file.remove(500_001).await.unwrap();
        assert!(io.list_all().await.unwrap().is_empty());
    });
}

/// Needs monitors that allow pools to be deleted.
#[test]
#[ignore = "needs a cluster"]
fn threads_share_a_map() {
    let map = SharedMap::new();
    let name = format!("client-test-{}", rand::random::<u32>());
    let threads: Vec<_> = (0..3)
        .map(|thread| {
            let (map, name) = (map.clone(), name.clone());
            std::thread::spawn(move || {
                run(async {
                    let rados =
                        Rados::connect_shared(&cluster(), map.clone(), LIMIT).await.unwrap();
                    let json = format!(
                        r#"{{"prefix": "osd pool create", "pool": "{name}-{thread}", "pg_num": 4}}"#
                    );
                    rados.mon_command(&json, Bytes::new()).await.unwrap().ok().unwrap();
                    let latest = rados.objecter().wait_latest().await.unwrap();
                    assert!(map.epoch() >= latest.epoch);
                    drop(latest);
                    let pool = format!("{name}-{thread}");
                    let io = rados.ioctx(&pool).await.unwrap().with_timeout(LIMIT);
                    for i in 0..100u32 {
                        io.append("log", i.to_le_bytes().to_vec().into()).await.unwrap();
                    }
                    assert_eq!(io.stat("log").await.unwrap().size, 400);
                    let json = format!(
                        r#"{{"prefix": "osd pool delete", "pool": "{pool}", "pool2": "{pool}", "yes_i_really_really_mean_it": true}}"#
                    );
                    rados.mon_command(&json, Bytes::new()).await.unwrap().ok().unwrap();
                    rados.objecter().wait_latest().await.unwrap();
                    assert_eq!(io.stat("log").await, Err(ClientError::NoPool));
                    // The others go on, also if this was the thread that subscribed.
                    rados.shutdown();
                })
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
#[ignore = "needs a cluster"]
fn a_client_on_the_blocklist_is_told() {
    run(async {
        let io = pool(ConMode::Crc).await;
        io.write_full("b", "x".into()).await.unwrap();
        let error = Rc::new(Cell::new(None));
        let e = error.clone();
        let _watch = io
            .watch("b", Duration::ZERO, move |event| {
                if let WatchEvent::Error(errno) = event {
                    e.set(Some(errno));
                }
            })
            .await
            .unwrap();
        let admin = Rados::connect(&cluster(), LIMIT).await.unwrap();
        let us = io.rados().mon().messenger().addrs().0[0];
        let block = |verb: &str| {
            let addr = format!("{}/{}", us.addr.unwrap(), us.nonce);
            format!(r#"{{"prefix": "osd blocklist", "blocklistop": "{verb}", "addr": "{addr}"}}"#)
        };
        admin.mon_command(&block("add"), Bytes::new()).await.unwrap().ok().unwrap();
        until(|| error.get().is_some()).await;
        assert_eq!(error.get(), Some(Errno::ESHUTDOWN));
        assert!(io.rados().objecter().is_blocklisted());
        let refused = io.with_flags(OsdFlags::FULL_TRY).stat("b").await.unwrap_err();
        assert!(refused.is_blocklisted(), "{refused:?}");
        admin.mon_command(&block("rm"), Bytes::new()).await.unwrap().ok().unwrap();
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
        let done = Cell::new(false);
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
