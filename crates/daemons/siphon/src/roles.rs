//! Daemons on threads: how one role is started and stopped, alone or beside others.

use crate::bootstrap;
use crate::cli::{MdsRole, MgrRole, MonRole, OsdRole};
use crate::home::{self, ClusterFile, DaemonLock, OsdEntry};
use crate::osd_start;
use crate::process;
use anyhow::{Context, Result, bail};
use auth::{AuthName, Keyring};
use bytes::Bytes;
use client::ClusterConfig;
use conf::Config;
use daemon_frame::threads::{Daemon, Stop, Threads};
use daemon_frame::{AdminSocket, Handler};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc;
use types::{EntityAddr, EntityAddrVec, EntityType};

/// First port of OSDs and managers, and how many are tried.
const PORTS: std::ops::RangeInclusive<u16> = 6800..=7568;

/// The OSDs of each shard thread, dealt out in turn.
pub fn spread(osds: &[OsdEntry], shards: usize) -> Vec<Vec<OsdEntry>> {
    let mut groups = vec![Vec::new(); shards];
    for (i, osd) in osds.iter().enumerate() {
        groups[i % shards].push(osd.clone());
    }
    groups
}

fn daemon_conf() -> Result<Rc<RefCell<Config>>> {
    let mut conf = Config::new();
    bootstrap::local_conf(&mut conf)?;
    Ok(Rc::new(RefCell::new(conf)))
}

fn keyring(dir: &Path, daemon: &str) -> Result<Keyring> {
    let path = dir.join(daemon).join("keyring");
    let text = std::fs::read_to_string(&path).map_err(|e| home::explain(&path, e))?;
    text.parse().with_context(|| format!("{}", path.display()))
}

fn cluster_config(dir: &Path, name: AuthName) -> Result<ClusterConfig> {
    Ok(ClusterConfig::read(&dir.join("ceph.conf"), name)?)
}

fn admin_path(dir: &Path, daemon: &str) -> PathBuf {
    dir.join("run").join(format!("ceph-{daemon}.asok"))
}

/// The monitors of the cluster with stores in a directory, and where they listen.
pub fn mons_here(dir: &Path, cluster: &ClusterFile) -> BTreeMap<String, SocketAddr> {
    cluster
        .monitors()
        .into_iter()
        .filter(|(name, _)| mon::Layout::exists(&dir.join(format!("mon.{name}"))))
        .collect()
}

/// A monitor.
pub fn mon_daemon(dir: Arc<PathBuf>, cluster: ClusterFile, name: String) -> Daemon {
    Box::new(move |stop, ready| {
        Box::pin(async move {
            let conf = daemon_conf()?;
            let daemon = format!("mon.{name}");
            let mons = cluster.monitors();
            let addrs = |a: SocketAddr| EntityAddrVec::from(EntityAddr::msgr2(a, 0));
            let options = mon::StartOptions {
                conf,
                listen: mons.get(&name).copied(),
                peers: mons.into_iter().map(|(name, a)| (name, addrs(a))).collect(),
                fsid: osd_start::fsid(&cluster.fsid)?,
            };
            let monitor = Rc::new(mon::Monitor::start(&dir.join(&daemon), options).await?);
            let m = monitor.clone();
            let handler: Handler = Rc::new(move |c| {
                let m = m.clone();
                Box::pin(async move { m.admin_command(&c).await })
            });
            let socket = AdminSocket::serve(&admin_path(&dir, &daemon), handler)?;
            let _ = ready.send(());
            let removed = tokio::select! {
                _ = stop.stopped() => None,
                why = monitor.removed() => Some(why),
            };
            drop(socket);
            monitor.shutdown().await;
            match removed {
                Some(why) => bail!("{why}"),
                None => Ok(()),
            }
        })
    })
}

/// What a daemon without data of its own starts with.
fn options(
    dir: &Path,
    cluster: &ClusterFile,
    name: AuthName,
    daemon: &str,
) -> Result<daemon_frame::Options> {
    Ok(daemon_frame::Options {
        cluster: cluster_config(dir, name)?,
        keyring: keyring(dir, daemon)?,
        ip: cluster.node_ip(),
        ports: PORTS,
        conf: daemon_conf()?,
        metadata: daemon_frame::host::facts(),
    })
}

/// A manager.
pub fn mgr_daemon(dir: Arc<PathBuf>, cluster: ClusterFile, name: String) -> Daemon {
    let daemon = format!("mgr.{name}");
    let socket = admin_path(&dir, &daemon);
    let own = daemon.clone();
    let options = move || options(&dir, &cluster, bootstrap::manager(&name), &own);
    mgr::daemon(daemon, socket, Box::new(options))
}

/// A metadata server.
pub fn mds_daemon(dir: Arc<PathBuf>, cluster: ClusterFile, name: String) -> Daemon {
    let daemon = format!("mds.{name}");
    let socket = admin_path(&dir, &daemon);
    let own = daemon.clone();
    let options = move || options(&dir, &cluster, bootstrap::metadata_server(&name), &own);
    mdsd::daemon(daemon, socket, Box::new(options))
}

/// Some OSDs on one thread.
pub fn osd_daemons(dir: Arc<PathBuf>, cluster: ClusterFile, entries: Vec<OsdEntry>) -> Daemon {
    Box::new(move |stop, ready| {
        Box::pin(async move {
            // At the same time: each waits for its device most of the time.
            let mut starting = Vec::new();
            for entry in entries {
                let (dir, cluster) = (dir.clone(), cluster.clone());
                starting.push((
                    format!("osd.{}", entry.id),
                    tokio::task::spawn_local(async move {
                        let name = AuthName::new(EntityType::OSD, entry.id.to_string());
                        let conf = daemon_conf()?.take();
                        osd_start::start(
                            &dir,
                            &cluster,
                            &entry,
                            cluster_config(&dir, name)?,
                            conf,
                            PORTS,
                        )
                        .await
                    }),
                ));
            }
            let mut running = Vec::new();
            for (daemon, started) in starting {
                let handle = match started.await {
                    Ok(handle) => handle.with_context(|| daemon.clone())?,
                    Err(e) => std::panic::resume_unwind(e.into_panic()),
                };
                let handle = Rc::new(handle);
                let h = Rc::downgrade(&handle);
                let handler: Handler = Rc::new(move |c| {
                    let h = h.upgrade();
                    Box::pin(async move {
                        match h {
                            Some(h) => h.admin_command(c).await,
                            None => (-108, "the OSD is stopping".into(), Bytes::new()),
                        }
                    })
                });
                let socket = AdminSocket::serve(&admin_path(&dir, &daemon), handler)?;
                running.push((daemon, handle, socket));
            }
            let _ = ready.send(());
            let failures: Vec<_> = running
                .iter()
                .map(|(daemon, handle, _)| (daemon.clone(), handle.failure()))
                .collect();
            tokio::select! {
                _ = stop.stopped() => {}
                e = first_failure(&dir, failures) => return Err(e),
            }
            for (daemon, handle, socket) in running {
                drop(socket);
                // A command that is still being answered keeps the handle; a clean stop can wait
                // for it.
                let mut handle = handle;
                let handle = loop {
                    match Rc::try_unwrap(handle) {
                        Ok(h) => break h,
                        Err(shared) => handle = shared,
                    }
                    tokio::task::yield_now().await;
                };
                handle.shutdown().await.context(daemon)?;
            }
            Ok(())
        })
    })
}

/// Waits until one of the OSDs cannot go on, and says why. A sparse file on a full file system is
/// the usual reason, so the space that is left is part of the sentence.
async fn first_failure(
    dir: &Path,
    failures: Vec<(String, impl Future<Output = String> + 'static)>,
) -> anyhow::Error {
    let (tell, mut told) = mpsc::unbounded_channel();
    for (daemon, failure) in failures {
        let tell = tell.clone();
        tokio::task::spawn_local(async move {
            let why = failure.await;
            let _ = tell.send((daemon, why));
        });
    }
    drop(tell);
    match told.recv().await {
        Some((daemon, why)) => anyhow::anyhow!(
            "{daemon} has stopped: {why} ({} of {} are free)",
            home::free_space(dir),
            dir.display()
        ),
        None => std::future::pending().await,
    }
}

fn alone(
    data_dir: &Path,
    name: &str,
    daemon: impl FnOnce(Arc<PathBuf>, ClusterFile) -> Result<Daemon>,
) -> Result<()> {
    process::raise_file_limit();
    let Some(cluster) = home::load(data_dir)? else {
        bail!(
            "{} is no cluster's data directory: `siphon init` or `siphon join` makes one",
            data_dir.display()
        );
    };
    let dir = Arc::new(data_dir.canonicalize()?);
    if !dir.join(name).is_dir() {
        let (kind, _) = name.split_once('.').unwrap_or((name, ""));
        bail!("{} has no {name}: `siphon add {kind}` makes one", dir.display());
    }
    home::mend_modes(&dir)?;
    let _lock = DaemonLock::take(&dir, name)?;
    modes::directory(&dir.join("run")).map_err(|e| home::explain(&dir, e))?;
    let daemon = daemon(dir, cluster)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stop = Stop::new();
    let mut threads = Threads::new(stop.clone());
    runtime.block_on(async {
        tokio::select! {
            r = threads.spawn(name, daemon) => r?,
            r = process::interrupted() => return r,
        }
        println!("{name} serves.");
        tokio::select! {
            r = threads.failed() => r,
            r = process::interrupted() => r,
        }
    })
}

/// `siphon mon`.
pub fn mon(args: MonRole) -> Result<()> {
    let daemon = format!("mon.{}", args.name);
    alone(&args.role.data_dir, &daemon, |dir, cluster| Ok(mon_daemon(dir, cluster, args.name)))
}

/// `siphon mgr`.
pub fn mgr(args: MgrRole) -> Result<()> {
    let daemon = format!("mgr.{}", args.name);
    alone(&args.role.data_dir, &daemon, |dir, cluster| Ok(mgr_daemon(dir, cluster, args.name)))
}

/// `siphon mds`.
pub fn mds(args: MdsRole) -> Result<()> {
    let daemon = format!("mds.{}", args.name);
    alone(&args.role.data_dir, &daemon, |dir, cluster| Ok(mds_daemon(dir, cluster, args.name)))
}

/// `siphon osd`.
pub fn osd(args: OsdRole) -> Result<()> {
    alone(&args.role.data_dir, &format!("osd.{}", args.id), |dir, cluster| {
        let entry = cluster.osds.iter().find(|o| o.id == args.id).cloned();
        let entry = entry.with_context(|| format!("this directory has no osd.{}", args.id))?;
        Ok(osd_daemons(dir, cluster, vec![entry]))
    })
}
