//! `siphon up`: a whole cluster in one process.
//!
//! One thread runs the monitor, one the manager, and one or more shard threads the OSDs. The
//! daemons talk through the messenger over loopback exactly as on many hosts; only OSDs of the same
//! process hand each other messages directly. Threads share nothing but the signal to stop.

use crate::bootstrap;
use crate::cli::Up;
use crate::file_system;
use crate::gateway;
use crate::home::{self, ClusterFile, Home};
use crate::process::{interrupted, raise_file_limit};
use crate::roles;
use anyhow::{Context, Result, bail};
use client::MonClient;
use daemon_frame::threads::{Stop, Threads};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a cluster may take to become healthy before that is said.
const HEALTHY_WITHIN: Duration = Duration::from_secs(120);
/// Pause between two looks at the cluster's health: short at first, when it matters.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// The longest such pause.
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(250);

/// Runs the command.
pub fn run(args: Up) -> Result<()> {
    let began = Instant::now();
    raise_file_limit();
    let home = Home::open(&args.data_dir)?;
    let mut cluster = match home.load()? {
        Some(c) => {
            let here = roles::mons_here(home.dir(), &c);
            if here.is_empty() {
                bail!(
                    "{} holds no monitor: run its daemons with `siphon osd` and `siphon mgr`",
                    home.dir().display()
                );
            }
            if let Some(bind) = args.bind.filter(|b| *b != c.mon_addr) {
                bail!(
                    "the monitor of {} is at {} and cannot move to {bind}: leave --bind out, or choose another --data-dir",
                    home.dir().display(),
                    c.mon_addr
                );
            }
            for addr in here.values() {
                check_port(*addr)?;
            }
            c
        }
        None => {
            let addr = args.bind.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 3300)));
            let mut mons = Vec::new();
            for (i, name) in ('a'..='z').take(args.mons.into()).enumerate() {
                let port = addr
                    .port()
                    .checked_add(i as u16)
                    .context("there are not enough ports after that of the first monitor")?;
                let addr = SocketAddr::new(addr.ip(), port);
                check_port(addr)?;
                mons.push((name.to_string(), addr));
            }
            bootstrap::cluster(
                &home,
                &bootstrap::NewCluster {
                    mons,
                    others_here: true,
                    one_host: true,
                    cluster_ip: None,
                },
            )?
            .0
        }
    };
    let stop = Stop::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let stopper = stop.clone();
    let outcome = local.block_on(&runtime, async {
        tokio::select! {
            r = supervise(&home, &mut cluster, &args, &stop, began) => r,
            r = interrupted() => r,
        }
    });
    stopper.stop();
    outcome
}

/// Starts everything, says so, and then waits for a daemon to fail.
async fn supervise(
    home: &Home,
    cluster: &mut ClusterFile,
    args: &Up,
    stop: &Stop,
    began: Instant,
) -> Result<()> {
    home::write_durably(
        &home.dir().join("ceph.conf"),
        home::ceph_conf(home.dir(), cluster).as_bytes(),
        modes::SHARED,
    )?;
    let dir = Arc::new(home.dir().to_path_buf());
    let mut threads = Threads::new(stop.clone());
    // Dropped first: a gateway needs the others until it has ended.
    let mut gateways = Threads::new(Stop::new());
    // So do metadata servers, which write what is in their logs when they end.
    let mut servers = Threads::new(Stop::new());
    for name in roles::mons_here(home.dir(), cluster).into_keys() {
        threads
            .spawn(&format!("mon.{name}"), roles::mon_daemon(dir.clone(), cluster.clone(), name))
            .await?;
    }
    let mon = bootstrap::admin_session(home.dir()).await.context("the monitor does not answer")?;

    let count =
        args.osds.unwrap_or(if cluster.osds.is_empty() { 3 } else { cluster.osds.len() as u32 });
    let missing = bootstrap::missing_osds(cluster, count, args.osd_size, &args.devices)?;
    if !missing.is_empty() {
        cluster.osds.extend(missing);
        home.save(cluster)?;
    }
    for entry in &cluster.osds {
        bootstrap::register_osd(home.dir(), &mon, entry).await?;
    }
    let mgr = threads.spawn("mgr.x", roles::mgr_daemon(dir.clone(), cluster.clone(), "x".into()));
    mgr.await?;
    let shards = match args.shards {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    }
    .clamp(1, cluster.osds.len().max(1));
    let groups = roles::spread(&cluster.osds, shards);
    let mut starting = Vec::new();
    for (i, group) in groups.into_iter().enumerate() {
        starting.push(threads.spawn(
            &format!("osd-shard-{i}"),
            roles::osd_daemons(dir.clone(), cluster.clone(), group),
        ));
    }
    for s in starting {
        s.await?;
    }
    let healthy = wait_healthy(&mon, cluster.osds.len());
    tokio::select! {
        r = healthy => r?,
        r = threads.failed() => return r,
    }
    if let Some(port) = args.s3 {
        tokio::select! {
            r = gateway::start_beside(&mut gateways, home.dir(), port) => r?,
            r = threads.failed() => return r,
        }
    }
    if args.fs {
        let text = tokio::select! {
            r = file_system::start_beside(&mut servers, home.dir(), cluster, &mon) => r?,
            r = threads.failed() => return r,
        };
        println!("{text}");
    }
    announce(home, cluster, began.elapsed());
    let mon = Rc::new(mon);
    let r = tokio::select! {
        r = threads.failed() => r,
        r = gateways.failed() => r,
        r = servers.failed() => r,
    };
    mon.shutdown();
    r
}

fn announce(home: &Home, cluster: &ClusterFile, took: Duration) {
    let conf = home.dir().join("ceph.conf");
    let conf = conf.display();
    println!(
        "The cluster {} is healthy: {} at {}, {} OSDs, after {:.2} s.\nTry:\n  ceph -c {conf} -s\n  ceph -c {conf} osd pool create mypool\n  rados -c {conf} -p mypool bench 10 write\nCtrl-C stops it.",
        cluster.fsid,
        match cluster.monitors().len() {
            1 => "1 monitor".to_string(),
            n => format!("{n} monitors, the first"),
        },
        cluster.mon_addr,
        cluster.osds.len(),
        took.as_secs_f64()
    );
}

/// Waits until every OSD is up, every PG active and clean, and nothing else is wrong.
async fn wait_healthy(mon: &MonClient, osds: usize) -> Result<()> {
    let began = Instant::now();
    let mut said = false;
    let mut pause = LOOK_PAUSE;
    loop {
        let command = serde_json::json!({"prefix": "status", "format": "json"}).to_string();
        let status = mon.command(&command, Default::default()).await?.ok()?;
        let status: serde_json::Value = serde_json::from_slice(&status)?;
        let up = status["osdmap"]["num_up_osds"].as_u64().unwrap_or(0);
        let all_reported = status["pgmap"]["bytes_total"].as_u64().unwrap_or(0) > 0 || osds == 0;
        let states = status["pgmap"]["pgs_by_state"].as_array().cloned().unwrap_or_default();
        let clean = states
            .iter()
            .all(|s| s["state_name"].as_str().is_some_and(|n| n.starts_with("active+clean")));
        let health = status["health"]["status"].as_str().unwrap_or_default();
        if up as usize >= osds && all_reported && clean && health != "HEALTH_ERR" {
            if health != "HEALTH_OK" {
                let checks: Vec<&String> = status["health"]["checks"]
                    .as_object()
                    .map(|c| c.keys().collect())
                    .unwrap_or_default();
                println!(
                    "Note: the cluster warns about {checks:?}; `ceph health detail` says more."
                );
            }
            return Ok(());
        }
        if !said && began.elapsed() > HEALTHY_WITHIN {
            eprintln!(
                "siphon: still waiting: {up} of {osds} OSDs are up, health {health}, placement groups {states:?}"
            );
            said = true;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 5 / 4).min(LOOK_PAUSE_MAX);
    }
}

/// Whether the monitor's port is free, so that a taken one is a clear error before anything is
/// made.
fn check_port(addr: SocketAddr) -> Result<()> {
    match std::net::TcpListener::bind(addr) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {
            bail!(
                "port {} of {} is in use: stop what listens there, or choose another with --bind ADDR:PORT",
                addr.port(),
                addr.ip()
            )
        }
        Err(e) => {
            bail!("cannot listen at {addr}: {e}; choose an address of this machine with --bind")
        }
    }
}
