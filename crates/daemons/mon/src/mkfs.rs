//! Making a monitor's data directory, and reading it back.
//!
//! The directory holds `name` (the monitor's name), `keyring` (the key of `mon.`, which all
//! monitors share), and `store.db` (the replicated state and its log). Every monitor of a new
//! cluster is made from the same [`MkfsArgs`] except for its name; the state they begin with is the
//! same.

use crate::replica::{self, Rows};
use crate::state::{Change, ClusterState, Outcome, Update};
use auth::{AuthName, CryptoKey, EntityAuth, Keyring, KeyringError};
use bytes::Bytes;
use conf::Config;
use crush::{CrushError, CrushMap, RuleMode, Tunables};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::Release;
use types::monmap::{MonFeatures, MonInfo};
use types::{
    EntityAddrVec, EntityType, Epoch, FsMap, Fsid, MgrMap, MonMap, OsdMap, OsdMapIncremental,
    ServiceMap, Utime,
};

/// The properties of a new cluster.
#[derive(Clone, Debug)]
pub struct MkfsArgs {
    /// The cluster's id.
    pub fsid: Fsid,
    /// This monitor's name, such as `a`.
    pub name: String,
    /// All monitors by name, this one included, and where they listen.
    pub monitors: BTreeMap<String, EntityAddrVec>,
    /// The key that all monitors share.
    pub mon_key: CryptoKey,
    /// Entities to begin with, above all `client.admin`.
    pub keyring: Keyring,
    /// The CRUSH map to begin with; `None` for an empty root `default` and a rule over hosts.
    pub crush: Option<CrushMap>,
    /// Central configuration to begin with: value by `section/option`.
    pub config: BTreeMap<String, String>,
    /// The time of birth.
    pub now: Utime,
}

/// Why a data directory could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The directory has a monitor already.
    #[error("{0} already holds a monitor")]
    Exists(PathBuf),
    /// The keyring cannot be read.
    #[error("{path}: {source}")]
    Keyring {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: KeyringError,
    },
    /// The arguments contradict themselves.
    #[error("{0}")]
    Arguments(String),
    /// The CRUSH map could not be made.
    #[error("CRUSH map: {0}")]
    Crush(#[from] CrushError),
    /// The store could not be written.
    #[error(transparent)]
    Store(#[from] replica::OpenError),
}

/// A data directory.
#[derive(Clone, Debug)]
pub struct Layout {
    dir: PathBuf,
    /// The monitor's name.
    pub name: String,
    /// The key of `mon.`.
    pub keyring: Keyring,
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> LayoutError {
    move |source| LayoutError::Io { path: path.to_owned(), source }
}

impl Layout {
    /// Reads the directory that [`mkfs`] made.
    pub fn read(dir: &Path) -> Result<Layout, LayoutError> {
        let path = dir.join("name");
        let name = std::fs::read_to_string(&path).map_err(io(&path))?.trim().to_owned();
        let path = dir.join("keyring");
        let text = std::fs::read_to_string(&path).map_err(io(&path))?;
        let keyring = text.parse().map_err(|source| LayoutError::Keyring { path, source })?;
        Ok(Layout { dir: dir.to_owned(), name, keyring })
    }

    /// Whether the directory holds a monitor.
    pub fn exists(dir: &Path) -> bool {
        dir.join("name").exists()
    }

    /// The file with the replicated state.
    pub fn store(&self) -> PathBuf {
        self.dir.join("store.db")
    }
}

/// The name that all monitors authenticate with.
pub fn mon_name() -> AuthName {
    AuthName::new(EntityType::MON, "")
}

/// The CRUSH map of a new cluster: Ceph's types and tunables, an empty root `default`, and the rule
/// `replicated_rule` that puts every copy on another bucket of the type that
/// `osd_crush_chooseleaf_type` names.
pub fn default_crush(conf: &Config) -> Result<CrushMap, CrushError> {
    let mut map = CrushMap::with_default_types();
    map.tunables = Tunables::JEWEL;
    let root_type = map.types.id("root").and_then(|t| u16::try_from(t).ok()).unwrap_or(11);
    let root = map.add_bucket(None, None, root_type, &[])?;
    map.set_item_name(root, "default")?;
    let domain = i32::try_from(conf.i64("osd_crush_chooseleaf_type")).unwrap_or(1);
    let domain = map.types.name(domain).unwrap_or("host").to_owned();
    map.add_simple_rule("replicated_rule", "default", &domain, "", RuleMode::Firstn, 1, None)?;
    Ok(map)
}

/// The state that a cluster begins with.
pub fn initial_state(args: &MkfsArgs, conf: &Config) -> Result<(ClusterState, Rows), LayoutError> {
    let mut monmap = MonMap {
        fsid: args.fsid,
        epoch: Epoch(1),
        last_changed: args.now,
        created: args.now,
        persistent_features: MonFeatures(MonFeatures::SQUID.0 & !MonFeatures::OSDMAP_PRUNE.0),
        optional_features: MonFeatures(0),
        min_mon_release: Release::SQUID,
        strategy: 1,
        ..Default::default()
    };
    for (name, addrs) in &args.monitors {
        monmap.add(MonInfo {
            name: name.clone(),
            public_addrs: addrs.clone(),
            weight: 0,
            ..Default::default()
        });
    }
    let crush = match &args.crush {
        Some(map) => map.clone(),
        None => default_crush(conf)?,
    };
    crush.validate()?;
    let map = OsdMap {
        fsid: args.fsid,
        epoch: Epoch(1),
        created: args.now,
        modified: args.now,
        crush: Arc::new(crush),
        ..crate::osd_state::blank_map(conf)
    };
    let inc = OsdMapIncremental {
        fsid: args.fsid,
        epoch: Epoch(1),
        modified: args.now,
        fullmap: denc::Encode::to_bytes(&map, types::features::SQUID),
        ..Default::default()
    };
    let mut changes = vec![
        Change::MonMap(Box::new(monmap)),
        Change::OsdMap(Box::new(inc)),
        Change::MgrMap(Box::new(MgrMap {
            epoch: Epoch(1),
            active_change: args.now,
            ..Default::default()
        })),
        Change::FsMap(Box::new(FsMap { epoch: Epoch(1), ..Default::default() })),
        Change::ServiceMap(Box::new(ServiceMap {
            epoch: Epoch(1),
            modified: args.now,
            ..Default::default()
        })),
    ];
    for (name, auth) in args.keyring.iter() {
        changes.push(Change::Auth(name.clone(), Some(auth.clone())));
    }
    for (key, value) in &args.config {
        changes.push(Change::Config(key.clone(), Some(value.clone())));
    }
    let (mut state, mut rows) = (ClusterState::default(), Vec::new());
    match state.update(Update { now: args.now, changes }, &mut rows) {
        Outcome::Applied => {}
        other => {
            return Err(LayoutError::Arguments(format!(
                "the initial state was not taken: {other:?}"
            )));
        }
    }
    let rows: BTreeMap<Bytes, Bytes> =
        rows.into_iter().fold(BTreeMap::new(), |mut all: BTreeMap<Bytes, Bytes>, (k, v)| {
            match v {
                Some(v) => drop(all.insert(k, v)),
                None => drop(all.remove(&k)),
            }
            all
        });
    Ok((state, rows))
}

/// Makes the data directory of a monitor of a new cluster. Nothing is left behind if it fails.
pub fn mkfs(dir: &Path, args: &MkfsArgs, conf: &Config) -> Result<(), LayoutError> {
    if Layout::exists(dir) {
        return Err(LayoutError::Exists(dir.to_owned()));
    }
    if !args.monitors.contains_key(&args.name) {
        return Err(LayoutError::Arguments(format!(
            "monitor '{}' is not among the monitors",
            args.name
        )));
    }
    let (_, rows) = initial_state(args, conf)?;
    modes::directory(dir).map_err(io(dir))?;
    let layout =
        Layout { dir: dir.to_owned(), name: args.name.clone(), keyring: Keyring::default() };
    replica::seed(&layout.store(), new_member(), &rows)?;
    finish(dir, &args.name, &args.mon_key)
}

/// Makes the data directory of a monitor that is to be taken in by others: it knows its name and
/// the monitors' key, and nothing of the cluster.
pub fn mkfs_member(dir: &Path, name: &str, mon_key: &CryptoKey) -> Result<(), LayoutError> {
    if Layout::exists(dir) {
        return Err(LayoutError::Exists(dir.to_owned()));
    }
    modes::directory(dir).map_err(io(dir))?;
    // What an interrupted attempt left is worth nothing.
    let layout = Layout { dir: dir.to_owned(), name: name.to_owned(), keyring: Keyring::default() };
    match std::fs::remove_file(layout.store()) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io(&layout.store())(e)),
        _ => {}
    }
    replica::seed(&layout.store(), new_member(), &Rows::new())?;
    finish(dir, name, mon_key)
}

/// A number that no member of any group has. It fits into the numbers that JSON keeps exactly.
pub(crate) fn new_member() -> replica::NodeId {
    (rand::random::<u64>() >> 11).max(2)
}

fn finish(dir: &Path, name: &str, mon_key: &CryptoKey) -> Result<(), LayoutError> {
    let caps = BTreeMap::from([("mon".to_owned(), "allow *".to_owned())]);
    let keyring: Keyring =
        [(mon_name(), EntityAuth { key: mon_key.clone(), caps })].into_iter().collect();
    write_private(&dir.join("keyring"), keyring.to_string().as_bytes())?;
    // The name is last: with it the directory is complete.
    write_private(&dir.join("name"), format!("{name}\n").as_bytes())
}

/// Writes a file that only its owner may read.
fn write_private(path: &Path, bytes: &[u8]) -> Result<(), LayoutError> {
    use std::io::Write;
    let mut file = modes::options(modes::SECRET)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(io(path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io(path))
}
