//! Making what a new cluster or a new OSD needs.

use crate::home::{self, ClusterFile, Home, OsdEntry};
use anyhow::{Context, Result, bail};
use auth::{AuthName, CryptoKey, EntityAuth, Keyring};
use bytes::Bytes;
use client::{MonClient, MonConfig, wall_clock};
use conf::Config;
use conf::effective::Source;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use types::{EntityAddr, EntityAddrVec, EntityType, Fsid};

/// How long a running monitor has for one command.
const PATIENCE: Duration = Duration::from_secs(30);

/// `client.admin`.
pub fn admin() -> AuthName {
    AuthName::new(EntityType::CLIENT, "admin")
}

/// The name of a manager.
pub fn manager(name: &str) -> AuthName {
    AuthName::new(EntityType::MGR, name)
}

fn new_key() -> CryptoKey {
    CryptoKey::generate(wall_clock(), &mut rand::rng())
}

fn entity(caps: &[(&str, &str)]) -> EntityAuth {
    EntityAuth {
        key: new_key(),
        caps: caps.iter().map(|(s, c)| (s.to_string(), c.to_string())).collect(),
    }
}

/// The configuration that daemons of this home start with. Copies of an object go to different
/// OSDs; on one machine there are no different hosts for them to go to.
pub fn local_conf(conf: &mut Config) -> Result<()> {
    conf.set(Source::File, "osd_crush_chooseleaf_type", "0")?;
    Ok(())
}

/// The managers' capabilities.
pub const MGR_CAPS: [(&str, &str); 3] =
    [("mds", "allow *"), ("mon", "allow profile mgr"), ("osd", "allow *")];

/// The name of a metadata server.
pub fn metadata_server(name: &str) -> AuthName {
    AuthName::new(EntityType::MDS, name)
}

/// The metadata servers' capabilities.
pub const MDS_CAPS: [(&str, &str); 4] = [
    ("mds", "allow *"),
    ("mgr", "allow profile mds"),
    ("mon", "allow profile mds"),
    ("osd", "allow rwx"),
];

/// Tools set up daemons of these kinds with users of their own, `client.bootstrap-KIND` (16.2
/// `src/mon/AuthMonitor.cc`, `_generate_bootstrap_keys`).
const BOOTSTRAP: [&str; 6] = ["mds", "mgr", "osd", "rbd", "rbd-mirror", "rgw"];

/// A new cluster to be made.
pub struct NewCluster {
    /// Its initial monitors. The store of the first is made, and will found the cluster.
    pub mons: Vec<(String, SocketAddr)>,
    /// Those of the others that are in this directory too.
    pub others_here: bool,
    /// Whether copies may be on OSDs of one host.
    pub one_host: bool,
    /// This host's address in the network of OSDs.
    pub cluster_ip: Option<IpAddr>,
}

/// Makes a new cluster's files: identity, keys, and the monitor's database. `cluster.json` is
/// written last: without it the directory counts as empty.
pub fn cluster(home: &Home, new: &NewCluster) -> Result<(ClusterFile, CryptoKey)> {
    let fsid = uuid::Uuid::new_v4();
    let admin_entity =
        entity(&[("mds", "allow *"), ("mgr", "allow *"), ("mon", "allow *"), ("osd", "allow *")]);
    let mgr_entity = entity(&MGR_CAPS);
    let mut keyring = Keyring::default();
    keyring.insert(admin(), admin_entity.clone());
    keyring.insert(manager("x"), mgr_entity.clone());
    for kind in BOOTSTRAP {
        let cap = format!("allow profile bootstrap-{kind}");
        let name = AuthName::new(EntityType::CLIENT, format!("bootstrap-{kind}"));
        keyring.insert(name, entity(&[("mon", &cap)]));
    }

    let mut conf = Config::new();
    if new.one_host {
        local_conf(&mut conf)?;
    }
    let mons: BTreeMap<String, SocketAddr> = new.mons.iter().cloned().collect();
    if mons.len() != new.mons.len() {
        bail!("two monitors have the same name");
    }
    let addrs = |(name, addr): (&String, &SocketAddr)| {
        (name.clone(), EntityAddrVec::from(EntityAddr::msgr2(*addr, 0)))
    };
    let args = mon::MkfsArgs {
        fsid: Fsid(*fsid.as_bytes()),
        name: String::new(),
        monitors: mons.iter().map(addrs).collect(),
        mon_key: new_key(),
        keyring,
        crush: None,
        config: BTreeMap::new(),
        now: wall_clock(),
    };
    for (i, (name, _)) in new.mons.iter().enumerate() {
        if i > 0 && !new.others_here {
            break;
        }
        let dir = home.daemon(&format!("mon.{name}"));
        // Leftovers of a creation that was interrupted.
        if dir.exists() {
            std::fs::remove_dir_all(&dir).map_err(|e| home::explain(&dir, e))?;
        }
        let args = mon::MkfsArgs { name: name.clone(), ..args.clone() };
        let made = if i == 0 {
            mon::mkfs(&dir, &args, &conf)
        } else {
            mon::mkfs_member(&dir, name, &args.mon_key)
        };
        made.map_err(|e| explain_mkfs(&dir, e))?;
    }
    write_keyring(home.dir(), "", &admin(), &admin_entity)?;
    write_keyring(home.dir(), "mgr.x", &manager("x"), &mgr_entity)?;
    modes::directory(&home.daemon("run")).map_err(|e| home::explain(&home.daemon("run"), e))?;
    // With several monitors, the first one that was named is the one that is here.
    let ip = new.mons.first().filter(|_| mons.len() > 1).map(|(_, addr)| addr.ip());
    let cluster =
        ClusterFile { cluster_ip: new.cluster_ip, ..ClusterFile::new(fsid.to_string(), mons, ip) };
    home.save(&cluster)?;
    Ok((cluster, args.mon_key))
}

/// Makes the store of a monitor that other monitors take in.
pub fn member(dir: &Path, name: &str, mon_key: &CryptoKey) -> Result<()> {
    let dir = dir.join(format!("mon.{name}"));
    mon::mkfs_member(&dir, name, mon_key).map_err(|e| explain_mkfs(&dir, e))
}

fn explain_mkfs(dir: &std::path::Path, e: mon::LayoutError) -> anyhow::Error {
    match e {
        mon::LayoutError::Io { path, source } => home::explain(&path, source),
        e => anyhow::Error::new(e).context(format!("cannot make the monitor in {}", dir.display())),
    }
}

/// Writes the keyring of a daemon, or that of `client.admin` if `daemon` is empty.
pub fn write_keyring(dir: &Path, daemon: &str, name: &AuthName, entity: &EntityAuth) -> Result<()> {
    let dir = dir.join(daemon);
    modes::directory(&dir).map_err(|e| home::explain(&dir, e))?;
    let mut keyring = Keyring::default();
    keyring.insert(name.clone(), entity.clone());
    home::write_durably(&dir.join("keyring"), keyring.to_string().as_bytes(), modes::SECRET)
}

/// Runs a command on the monitors.
pub async fn command(mon: &MonClient, json: serde_json::Value, input: Bytes) -> Result<Bytes> {
    let text = json.to_string();
    let out = tokio::time::timeout(PATIENCE, mon.command(&text, input))
        .await
        .with_context(|| format!("no answer to {text}"))??;
    if out.code < 0 {
        bail!(
            "{}: {} ({})",
            json["prefix"].as_str().unwrap_or_default(),
            out.status,
            types::Errno(-out.code)
        );
    }
    Ok(out.output)
}

/// A session of `client.admin`.
pub async fn admin_session(dir: &Path) -> Result<MonClient> {
    let config = client::ClusterConfig::read(&dir.join("ceph.conf"), admin())?;
    let mon = MonClient::new(MonConfig::new(&config));
    mon.wait_ready(PATIENCE).await?;
    Ok(mon)
}

/// Makes a new OSD known to the monitors: its number and its key. A number that is asked for must
/// be free, or that of a destroyed OSD; else the monitors choose the lowest that is free.
pub async fn new_osd(mon: &MonClient, uuid: &str, id: Option<i32>) -> Result<(i32, CryptoKey)> {
    // The key is drawn here, and the monitors take it.
    let mine = entity(&[]);
    let secret = serde_json::json!({"cephx_secret": mine.key.to_base64()}).to_string();
    let mut create = serde_json::json!({"prefix": "osd new", "uuid": uuid, "format": "json"});
    if let Some(id) = id {
        create["id"] = id.into();
    }
    let out = command(mon, create, secret.into()).await?;
    let out: serde_json::Value =
        serde_json::from_slice(&out).context("the monitors' answer to `osd new`")?;
    let id = out["osdid"]
        .as_i64()
        .and_then(|n| i32::try_from(n).ok())
        .context("the monitors gave no number")?;
    Ok((id, mine.key))
}

/// The same for an OSD whose identity is kept here: repeating it after an interruption gives the
/// same OSD. A key that the monitors have from an attempt that was interrupted is fetched.
async fn same_osd(mon: &MonClient, uuid: &str, id: i32) -> Result<CryptoKey> {
    let refused = match new_osd(mon, uuid, Some(id)).await {
        Ok((_, key)) => return Ok(key),
        Err(refused) => refused,
    };
    let get = serde_json::json!({"prefix": "auth get-key", "entity": format!("osd.{id}")});
    let text = command(mon, get, Bytes::new()).await.map_err(|_| refused)?;
    Ok(CryptoKey::from_base64(String::from_utf8_lossy(&text).trim())?)
}

/// Registers an OSD of this directory with the monitors and writes its keyring. Repeating it after
/// an interruption gives the same OSD: the identity is written to `cluster.json` first.
pub async fn register_osd(home: &Path, mon: &MonClient, entry: &OsdEntry) -> Result<()> {
    if home.join(format!("osd.{}", entry.id)).join("keyring").exists() {
        return Ok(());
    }
    let key = same_osd(mon, &entry.uuid, entry.id).await?;
    place_osd(home, mon, entry, key, None, None).await
}

/// Makes a daemon known to the monitors, and writes its keyring. Repeating it after an interruption
/// gives the same key.
pub async fn register(
    home: &Path,
    mon: &MonClient,
    name: &AuthName,
    caps: &[(&str, &str)],
) -> Result<()> {
    let caps: Vec<&str> = caps.iter().flat_map(|(service, caps)| [*service, *caps]).collect();
    let get = serde_json::json!({"prefix": "auth get-or-create-key", "entity": name.to_string(), "caps": caps});
    let text = command(mon, get, Bytes::new()).await?;
    let key = CryptoKey::from_base64(String::from_utf8_lossy(&text).trim())
        .ok()
        .context("the monitors gave no key")?;
    write_keyring(home, &name.to_string(), name, &EntityAuth { key, caps: BTreeMap::new() })
}

/// Makes a metadata server of this directory, unless it is there.
pub async fn register_mds(home: &Path, mon: &MonClient, name: &str) -> Result<()> {
    let name = metadata_server(name);
    if home.join(name.to_string()).join("keyring").exists() {
        return Ok(());
    }
    register(home, mon, &name, &MDS_CAPS).await
}

/// Gives an OSD its place in the CRUSH map and writes its keyring.
pub async fn place_osd(
    home: &Path,
    mon: &MonClient,
    entry: &OsdEntry,
    key: CryptoKey,
    host: Option<&str>,
    weight: Option<f64>,
) -> Result<()> {
    let name = AuthName::new(EntityType::OSD, entry.id.to_string());
    let dir = format!("osd.{}", entry.id);
    let weight = weight.unwrap_or(entry.size as f64 / (1u64 << 40) as f64);
    let here = daemon_frame::host::hostname();
    let host = host
        .unwrap_or(&here)
        .trim()
        .split('.')
        .next()
        .filter(|h| crush::is_valid_name(h))
        .unwrap_or("localhost")
        .to_string();
    let place = serde_json::json!({
        "prefix": "osd crush create-or-move", "id": entry.id, "weight": (weight * 1e5).round() / 1e5,
        "args": [format!("host={host}"), "root=default"],
    });
    command(mon, place, Bytes::new()).await?;
    let class = serde_json::json!({"prefix": "osd crush set-device-class", "class": device_class(entry), "ids": [entry.id.to_string()]});
    command(mon, class, Bytes::new()).await?;
    write_keyring(home, &dir, &name, &EntityAuth { key, caps: BTreeMap::new() })
}

/// `hdd` or `ssd`, from what the kernel says of the device that holds the OSD. Virtual disks often
/// claim to rotate; besides the class's name it follows which options say what the device can do
/// (`osd_mclock_max_capacity_iops_hdd`, ...).
fn device_class(entry: &OsdEntry) -> &'static str {
    match entry.device.as_ref().and_then(|device| store::dev::is_rotational(device)) {
        Some(true) => "hdd",
        _ => "ssd",
    }
}

/// The entries of OSDs that are still to be made, so that there are `count` in all. Devices are
/// taken in their order by new OSDs.
pub fn missing_osds(
    cluster: &ClusterFile,
    count: u32,
    size: u64,
    devices: &[PathBuf],
) -> Result<Vec<OsdEntry>> {
    let have = cluster.osds.len();
    let known: Vec<&PathBuf> = cluster.osds.iter().filter_map(|o| o.device.as_ref()).collect();
    let mut free = devices.iter().filter(|d| !known.contains(d));
    let mut out = Vec::new();
    for i in have..(count as usize).max(have) {
        let device = free.next().cloned();
        let size = match &device {
            Some(d) => device_size(d)?,
            None => size,
        };
        out.push(OsdEntry { id: i as i32, uuid: uuid::Uuid::new_v4().to_string(), size, device });
    }
    Ok(out)
}

/// Size of a block device.
pub fn device_size(path: &PathBuf) -> Result<u64> {
    use std::io::{Seek, SeekFrom};
    let mut f = std::fs::File::open(path).map_err(|e| home::explain(path, e))?;
    let size = f.seek(SeekFrom::End(0))?;
    if size < 1 << 30 {
        bail!(
            "{}: {size} bytes is too small for an OSD, which needs at least 1 GiB",
            path.display()
        );
    }
    Ok(size)
}
