//! Starting one OSD of a data directory: its store is made the first time.

use crate::home::{self, ClusterFile, OsdEntry};
use anyhow::{Context, Result, bail};
use client::ClusterConfig;
use conf::Config;
use osd::{OsdConfig, OsdHandle};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use store::{Engine, Options};
use types::{Fsid, OsdId};

/// Where an OSD's store is.
pub fn block_path(dir: &Path, entry: &OsdEntry) -> PathBuf {
    match &entry.device {
        Some(device) => device.clone(),
        None => dir.join(format!("osd.{}", entry.id)).join("block"),
    }
}

/// What says that an OSD's store was made to its end.
pub fn marker(dir: &Path, id: i32) -> PathBuf {
    dir.join(format!("osd.{id}")).join("ready")
}

/// A cluster's or an OSD's identity.
pub fn fsid(text: &str) -> Result<Fsid> {
    let uuid = uuid::Uuid::parse_str(text).with_context(|| format!("{text:?} is no UUID"))?;
    Ok(Fsid(*uuid.as_bytes()))
}

/// Starts the OSD on the current `LocalSet`. A marker beside the store says that the store was made
/// to its end: a store without it is the rest of an interrupted creation, and holds nothing.
pub async fn start(
    dir: &Path,
    cluster: &ClusterFile,
    entry: &OsdEntry,
    config: ClusterConfig,
    conf: Config,
    ports: RangeInclusive<u16>,
) -> Result<OsdHandle> {
    let device = block_path(dir, entry);
    let cluster_fsid = fsid(&cluster.fsid)?;
    let marker = marker(dir, entry.id);
    let options = Options::default();
    if !marker.exists() {
        if entry.device.is_none() && device.exists() {
            std::fs::remove_file(&device).map_err(|e| home::explain(&device, e))?;
        }
        let size = entry.device.is_none().then_some(entry.size);
        osd::mkfs(
            &device,
            Engine::Auto,
            &options,
            size,
            cluster_fsid,
            fsid(&entry.uuid)?,
            OsdId(entry.id),
        )
        .await
        .with_context(|| {
            format!("cannot make the store of osd.{} in {}", entry.id, device.display())
        })?;
        home::write_durably(&marker, b"", modes::SECRET)?;
    }
    if !device.exists() {
        bail!("{} is missing: the store of osd.{} must be there", device.display(), entry.id);
    }
    let mut metadata = daemon_frame::host::facts();
    metadata.insert("osd_data".into(), dir.join(format!("osd.{}", entry.id)).display().to_string());
    metadata.extend(daemon_frame::device::store_facts(&device));
    metadata.insert("siphon_store_path".into(), device.display().to_string());
    let handle = osd::start(OsdConfig {
        id: OsdId(entry.id),
        fsid: cluster_fsid,
        device: device.clone(),
        engine: Engine::Auto,
        store: options,
        mon_hosts: config.mon_hosts,
        key: config.key,
        policy: config.policy,
        ip: cluster.node_ip(),
        cluster_ip: cluster.cluster_ip,
        ports,
        conf,
        metadata,
    })
    .await
    .with_context(|| format!("{}", device.display()))?;
    Ok(handle)
}
