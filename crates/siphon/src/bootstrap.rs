//! Making what a new cluster or a new OSD needs.

use crate::home::{self, ClusterFile, FORMAT, Home, OsdEntry};
use anyhow::{Context, Result, bail};
use auth::{AuthName, CryptoKey, EntityAuth, Keyring};
use bytes::Bytes;
use client::{MonClient, MonConfig};
use conf::Config;
use conf::effective::Source;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use types::{EntityAddr, EntityAddrVec, EntityType, Fsid, Utime};

/// How long a running monitor has for one command.
const PATIENCE: Duration = Duration::from_secs(30);

/// Wall clock time.
pub fn now() -> Utime {
    Utime::from_duration(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// `client.admin`.
pub fn admin() -> AuthName {
    AuthName::new(EntityType::CLIENT, "admin")
}

/// The name of the only manager.
pub fn manager() -> AuthName {
    AuthName::new(EntityType::MGR, "x")
}

fn new_key() -> CryptoKey {
    CryptoKey::generate(now(), &mut rand::rng())
}

fn entity(caps: &[(&str, &str)]) -> EntityAuth {
    EntityAuth { key: new_key(), caps: caps.iter().map(|(s, c)| (s.to_string(), c.to_string())).collect() }
}

/// The configuration that daemons of this home start with. Copies of an object go to different OSDs; on one
/// machine there are no different hosts for them to go to.
pub fn local_conf(conf: &mut Config) -> Result<()> {
    conf.set(Source::File, "osd_crush_chooseleaf_type", "0")?;
    Ok(())
}

/// Makes a new cluster's files: identity, keys, and the monitor's database. `cluster.json` is written
/// last: without it the directory counts as empty.
pub fn cluster(home: &Home, mon_addr: SocketAddr) -> Result<ClusterFile> {
    let fsid = uuid::Uuid::new_v4();
    let admin_entity = entity(&[("mds", "allow *"), ("mgr", "allow *"), ("mon", "allow *"), ("osd", "allow *")]);
    let mgr_entity = entity(&[("mds", "allow *"), ("mon", "allow profile mgr"), ("osd", "allow *")]);
    let mut keyring = Keyring::default();
    keyring.insert(admin(), admin_entity.clone());
    keyring.insert(manager(), mgr_entity.clone());

    let mut conf = Config::new();
    local_conf(&mut conf)?;
    let dir = home.daemon("mon.a");
    // Leftovers of a creation that was interrupted.
    if dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(|e| home::explain(&dir, e))?;
    }
    let addr = EntityAddr::msgr2(mon_addr, 0);
    let args = mon::MkfsArgs {
        fsid: Fsid(*fsid.as_bytes()),
        name: "a".into(),
        monitors: [("a".to_string(), EntityAddrVec::from(addr))].into(),
        mon_key: new_key(),
        keyring,
        crush: None,
        config: BTreeMap::new(),
        now: now(),
    };
    mon::mkfs(&dir, &args, &conf).map_err(|e| explain_mkfs(&dir, e))?;
    write_keyring(home, "", &admin(), &admin_entity)?;
    write_keyring(home, "mgr.x", &manager(), &mgr_entity)?;
    std::fs::create_dir_all(home.daemon("run")).map_err(|e| home::explain(&home.daemon("run"), e))?;
    let cluster = ClusterFile { format: FORMAT, fsid: fsid.to_string(), mon_addr, osds: vec![] };
    home.save(&cluster)?;
    Ok(cluster)
}

fn explain_mkfs(dir: &std::path::Path, e: mon::LayoutError) -> anyhow::Error {
    match e {
        mon::LayoutError::Io { path, source } => home::explain(&path, source),
        e => anyhow::Error::new(e).context(format!("cannot make the monitor in {}", dir.display())),
    }
}

fn write_keyring(home: &Home, daemon: &str, name: &AuthName, entity: &EntityAuth) -> Result<()> {
    let dir = home.daemon(daemon);
    std::fs::create_dir_all(&dir).map_err(|e| home::explain(&dir, e))?;
    let mut keyring = Keyring::default();
    keyring.insert(name.clone(), entity.clone());
    home::write_durably(&dir.join("keyring"), keyring.to_string().as_bytes(), 0o600)
}

/// Runs a command on the monitors.
async fn command(mon: &MonClient, json: serde_json::Value, input: Bytes) -> Result<Bytes> {
    let text = json.to_string();
    let out = tokio::time::timeout(PATIENCE, mon.command(&text, input)).await.with_context(|| format!("no answer to {text}"))??;
    if out.code < 0 {
        bail!("{}: {} ({})", json["prefix"].as_str().unwrap_or_default(), out.status, types::Errno(-out.code));
    }
    Ok(out.output)
}

/// A session of `client.admin`.
pub async fn admin_session(home: &Home) -> Result<MonClient> {
    let config = client::ClusterConfig::read(&home.dir().join("ceph.conf"), admin())?;
    let mon = MonClient::new(MonConfig::new(&config));
    mon.wait_ready(PATIENCE).await?;
    Ok(mon)
}

/// Registers a new OSD with the monitors and writes its keyring. Repeating it after an interruption gives
/// the same OSD: the identity is written to `cluster.json` first.
pub async fn register_osd(home: &Home, mon: &MonClient, entry: &OsdEntry) -> Result<()> {
    let name = AuthName::new(EntityType::OSD, entry.id.to_string());
    let dir = format!("osd.{}", entry.id);
    let path = home.daemon(&dir).join("keyring");
    if path.exists() {
        return Ok(());
    }
    // The key is drawn here, and the monitors take it; a key that they already have from an attempt
    // that was interrupted is fetched instead.
    let mine = entity(&[]);
    let secret = serde_json::json!({"cephx_secret": mine.key.to_base64()}).to_string();
    let create = serde_json::json!({"prefix": "osd new", "uuid": entry.uuid, "id": entry.id});
    let key = match command(mon, create, secret.into()).await {
        Ok(_) => mine.key,
        Err(refused) => {
            let get = serde_json::json!({"prefix": "auth get-key", "entity": name.to_string()});
            let text = command(mon, get, Bytes::new()).await.map_err(|_| refused)?;
            CryptoKey::from_base64(String::from_utf8_lossy(&text).trim())?
        }
    };
    let weight = entry.size as f64 / (1u64 << 40) as f64;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().split('.').next().filter(|h| crush::is_valid_name(h)).unwrap_or("localhost").to_string();
    let place = serde_json::json!({
        "prefix": "osd crush create-or-move", "id": entry.id, "weight": (weight * 1e5).round() / 1e5,
        "args": [format!("host={host}"), "root=default"],
    });
    command(mon, place, Bytes::new()).await?;
    let class = serde_json::json!({"prefix": "osd crush set-device-class", "class": device_class(entry), "ids": [entry.id.to_string()]});
    command(mon, class, Bytes::new()).await?;
    write_keyring(home, &dir, &name, &EntityAuth { key, caps: BTreeMap::new() })
}

/// `hdd` or `ssd`, from what the kernel says of the device that holds the OSD. Virtual disks often claim to
/// rotate; nothing but the class's name follows from it.
fn device_class(entry: &OsdEntry) -> &'static str {
    let rotational = |dev: &PathBuf| {
        let name = dev.canonicalize().ok()?.file_name()?.to_str()?.to_string();
        std::fs::read_to_string(format!("/sys/class/block/{name}/queue/rotational")).ok()
    };
    match entry.device.as_ref().and_then(rotational) {
        Some(text) if text.trim() == "1" => "hdd",
        _ => "ssd",
    }
}

/// The entries of OSDs that are still to be made, so that there are `count` in all. Devices are taken in
/// their order by new OSDs.
pub fn missing_osds(cluster: &ClusterFile, count: u32, size: u64, devices: &[PathBuf]) -> Result<Vec<OsdEntry>> {
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

fn device_size(path: &PathBuf) -> Result<u64> {
    use std::io::{Seek, SeekFrom};
    let mut f = std::fs::File::open(path).map_err(|e| home::explain(path, e))?;
    let size = f.seek(SeekFrom::End(0))?;
    if size < 1 << 30 {
        bail!("{}: {size} bytes is too small for an OSD, which needs at least 1 GiB", path.display());
    }
    Ok(size)
}
