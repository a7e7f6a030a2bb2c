//! Hosts of a cluster with a process for each daemon: `siphon init`, `join` and `add`.

use crate::bootstrap::{self, NewCluster};
use crate::cli::{Add, AddMon, AddOsd, AddWhat, Init, Join, MdsRole, MgrRole};
use crate::home::{self, ClusterFile, DaemonLock, Edit, Home, OsdEntry};
use crate::osd_start;
use anyhow::{Context, Result, bail};
use auth::{CryptoKey, EntityAuth, Keyring};
use bytes::Bytes;
use client::MonClient;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The file `join`: what a further host must know. It holds keys, and is for the owner's eyes only.
#[derive(Serialize, Deserialize)]
struct JoinFile {
    fsid: String,
    mons: BTreeMap<String, SocketAddr>,
    /// The key that all monitors share.
    mon_key: String,
    /// The key of `client.admin`.
    admin_key: String,
}

fn key(text: &str) -> Result<CryptoKey> {
    CryptoKey::from_base64(text.trim()).ok().context("a key in the join file is damaged")
}

/// `siphon init`.
pub fn init(args: Init) -> Result<()> {
    let home = Home::open(&args.role.data_dir)?;
    if home.load()?.is_some() {
        bail!("{} holds a cluster already", home.dir().display());
    }
    let one_host = args.failure_domain == "osd";
    let new = NewCluster {
        mons: args.mons,
        others_here: false,
        one_host,
        cluster_ip: args.networks.cluster_ip,
    };
    let (cluster, mon_key) = bootstrap::cluster(&home, &new)?;
    let dir = home.dir();
    let keyring =
        std::fs::read_to_string(dir.join("keyring")).map_err(|e| home::explain(dir, e))?;
    let keyring: Keyring = keyring.parse().context("the keyring that was just written")?;
    let admin = keyring
        .get(&bootstrap::admin())
        .context("the keyring that was just written has no client.admin")?;
    let join = JoinFile {
        fsid: cluster.fsid.clone(),
        mons: cluster.monitors(),
        mon_key: mon_key.to_base64(),
        admin_key: admin.key.to_base64(),
    };
    home::write_durably(
        &dir.join("join"),
        (serde_json::to_string_pretty(&join)? + "\n").as_bytes(),
        modes::SECRET,
    )?;
    home::write_durably(
        &dir.join("ceph.conf"),
        home::ceph_conf(dir, &cluster).as_bytes(),
        modes::SHARED,
    )?;
    let first = &new.mons[0].0;
    println!("Cluster {} has a data directory in {}.", cluster.fsid, dir.display());
    println!("Next: siphon mon --data-dir {} --name {first}", dir.display());
    for (name, addr) in new.mons.iter().skip(1) {
        println!(
            "On {}: siphon join --data-dir DIR --ip {} JOIN-FILE; siphon add mon --data-dir DIR --name {name}; siphon mon --data-dir DIR --name {name}",
            addr.ip(),
            addr.ip()
        );
    }
    Ok(())
}

/// `siphon join`.
pub fn join(args: Join) -> Result<()> {
    let text = std::fs::read_to_string(&args.file).map_err(|e| home::explain(&args.file, e))?;
    let join: JoinFile = serde_json::from_str(&text)
        .with_context(|| format!("{} is no join file", args.file.display()))?;
    let home = Home::open(&args.role.data_dir)?;
    if home.load()?.is_some() {
        bail!("{} holds a cluster already", home.dir().display());
    }
    let dir = home.dir();
    let admin = EntityAuth { key: key(&join.admin_key)?, caps: BTreeMap::new() };
    bootstrap::write_keyring(dir, "", &bootstrap::admin(), &admin)?;
    home::write_durably(&dir.join("join"), text.as_bytes(), modes::SECRET)?;
    modes::directory(&dir.join("run")).map_err(|e| home::explain(dir, e))?;
    let cluster = ClusterFile {
        cluster_ip: args.networks.cluster_ip,
        ..ClusterFile::new(join.fsid, join.mons, Some(args.ip))
    };
    home::write_durably(
        &dir.join("ceph.conf"),
        home::ceph_conf(dir, &cluster).as_bytes(),
        modes::SHARED,
    )?;
    home.save(&cluster)?;
    println!("{} is a data directory of cluster {}.", dir.display(), cluster.fsid);
    Ok(())
}

/// `siphon add`.
pub fn add(args: Add) -> Result<()> {
    match args.what {
        AddWhat::Mon(a) => add_mon(a),
        AddWhat::Osd(a) => add_osd(a),
        AddWhat::Mgr(a) => add_mgr(a),
        AddWhat::Mds(a) => add_mds(a),
    }
}

fn add_mon(args: AddMon) -> Result<()> {
    let mut edit = Edit::begin(&args.role.data_dir)?;
    let path = edit.dir().join("join");
    let text = std::fs::read_to_string(&path).map_err(|_| {
        anyhow::anyhow!(
            "{} is missing: this directory was not made by `siphon init` or `siphon join`",
            path.display()
        )
    })?;
    let join: JoinFile =
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
    let mut mons = edit.cluster.monitors();
    match (mons.get(&args.name), args.bind) {
        (None, None) => bail!("monitor {} is new: say with --bind where it listens", args.name),
        (Some(known), Some(bind)) if *known != bind => {
            bail!("monitor {} is at {known}, and cannot move to {bind}", args.name)
        }
        (_, Some(bind)) => drop(mons.insert(args.name.clone(), bind)),
        (Some(_), None) => {}
    }
    bootstrap::member(edit.dir(), &args.name, &key(&join.mon_key)?)?;
    let osds = std::mem::take(&mut edit.cluster.osds);
    let cluster_ip = edit.cluster.cluster_ip;
    edit.cluster =
        ClusterFile { osds, cluster_ip, ..ClusterFile::new(join.fsid, mons, edit.cluster.ip) };
    edit.save()?;
    println!("Next: siphon mon --data-dir {} --name {}", edit.dir().display(), args.name);
    Ok(())
}

/// Runs something with a session of `client.admin`.
fn with_session<T, F: Future<Output = Result<T>>>(
    dir: PathBuf,
    f: impl FnOnce(MonClient) -> F,
) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mon = bootstrap::admin_session(&dir).await.context("the monitors do not answer")?;
        let out = f(mon.clone()).await;
        mon.shutdown();
        out
    })
}

fn add_osd(args: AddOsd) -> Result<()> {
    let mut edit = Edit::begin(&args.role.data_dir)?;
    if let Some(host) = args.host.as_deref().filter(|h| !crush::is_valid_name(h)) {
        bail!("{host:?} is no name for a host");
    }
    if let Some(weight) = args.crush_weight.filter(|w| !(0.0..=65535.0).contains(w)) {
        bail!("a weight is a number from 0 to 65535, not {weight}");
    }
    let size = match &args.device {
        Some(device) => bootstrap::device_size(device)?,
        None => args.size,
    };
    let dir = edit.dir().to_path_buf();
    let here = std::mem::take(&mut edit.cluster.osds);
    edit.cluster.osds = with_session(dir.clone(), async |mon| {
        let mut osds = still_known(&dir, here, &known(&mon).await?)?;
        if let Some(o) = osds.iter().find(|o| o.device.is_some() && o.device == args.device) {
            bail!("osd.{} has that device already", o.id);
        }
        let uuid = uuid::Uuid::new_v4().to_string();
        let (id, key) = bootstrap::new_osd(&mon, &uuid, args.id).await?;
        // A store that is here is of a purged or destroyed OSD that had the number: it is made
        // anew.
        match std::fs::remove_file(osd_start::marker(&dir, id)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(home::explain(&dir, e));
            }
            _ => {}
        }
        let entry = OsdEntry { id, uuid, size, device: args.device.clone() };
        let (host, weight) = (args.host.as_deref(), args.crush_weight);
        bootstrap::place_osd(&dir, &mon, &entry, key, host, weight).await?;
        println!("{id}");
        osds.push(entry);
        Ok(osds)
    })?;
    edit.save()
}

/// The identities of the OSDs that the cluster has.
async fn known(mon: &MonClient) -> Result<BTreeSet<String>> {
    let out = bootstrap::command(
        mon,
        serde_json::json!({"prefix": "osd dump", "format": "json"}),
        Bytes::new(),
    )
    .await?;
    let dump: serde_json::Value =
        serde_json::from_slice(&out).context("the monitors' answer to `osd dump`")?;
    let osds = dump["osds"].as_array().context("the monitors' answer to `osd dump` has no OSDs")?;
    Ok(osds.iter().filter_map(|o| o["uuid"].as_str()).map(str::to_string).collect())
}

/// Without those that were purged or destroyed: their numbers and devices are free again.
fn still_known(dir: &Path, here: Vec<OsdEntry>, known: &BTreeSet<String>) -> Result<Vec<OsdEntry>> {
    let (stay, gone): (Vec<_>, Vec<_>) = here.into_iter().partition(|o| known.contains(&o.uuid));
    for o in gone {
        let daemon = format!("osd.{}", o.id);
        if dir.join(&daemon).is_dir() {
            DaemonLock::take(dir, &daemon)
                .with_context(|| format!("{daemon} was purged or destroyed; stop it first"))?;
        }
    }
    Ok(stay)
}

fn add_mgr(args: MgrRole) -> Result<()> {
    let edit = Edit::begin(&args.role.data_dir)?;
    let dir = edit.dir().to_path_buf();
    let name = bootstrap::manager(&args.name);
    with_session(dir.clone(), async |mon| {
        bootstrap::register(&dir, &mon, &name, &bootstrap::MGR_CAPS).await
    })?;
    announce("mgr", &dir, &args.name);
    Ok(())
}

fn add_mds(args: MdsRole) -> Result<()> {
    let edit = Edit::begin(&args.role.data_dir)?;
    let dir = edit.dir().to_path_buf();
    with_session(dir.clone(), async |mon| bootstrap::register_mds(&dir, &mon, &args.name).await)?;
    announce("mds", &dir, &args.name);
    Ok(())
}

fn announce(role: &str, dir: &Path, name: &str) {
    println!("Next: siphon {role} --data-dir {} --name {name}", dir.display());
}
