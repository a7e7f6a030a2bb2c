//! The replicated cluster state: everything that all monitors must agree on.
//!
//! [`ClusterState`] is plain data; its parts are shared behind [`Arc`], so that a clone is a
//! snapshot that costs nothing. It changes by [`Update`]s only, and what an update does depends on
//! nothing but the state and the update. Every update reports the *rows* that changed; the rows are
//! what is stored, and reading them back gives the same state.
//!
//! The rows:
//!
//! | key | value |
//! | --- | --- |
//! | `monmap`, `mgrmap`, `fsmap`, `servicemap` | the map |
//! | `osd/f/EPOCH`, `osd/i/EPOCH` | full OSD maps (now and then) and incremental ones (each) |
//! | `auth/e/NAME`, `auth/r`, `auth/v` | entities, rotating secrets, version |
//! | `config/KEY`, `confighistory/VERSION` | central configuration |
//! | `kv/KEY` | configuration-key store |
//! | `log/SEQ` | cluster log |
//! | `mute/CODE` | muted health checks |
//! | `meta/KIND/NAME` | what daemons told about themselves |
//! | `creating/POOL` | groups of a new pool that no OSD has confirmed |
//! | `recreating/POOL` | lost groups that are to be made anew, and since which epoch |
//! | `removedsnaps/POOL` | removed snapshots that clients manage |
//! | `executed/SEQ` | requests of clients that were executed, with their answers |
//! | `counters` | versions and the global id limit |
//! | `mgrcommands` | the commands that the manager serves, as JSON |
//! | `move/ID` | movement jobs |
//! | `rescued` | when a monitor last went on alone because the others were lost |

mod central_log;
mod diff;
mod executed;
mod manager_commands;
mod osd_maps;
mod pending;
mod rescue;
mod update;

pub use central_log::CentralLog;
pub use diff::diff;
pub use executed::{Executed, Execution, Known, RequestId, RequestKind};
pub use manager_commands::ManagerCommands;
pub use osd_maps::OsdMaps;
pub use pending::Pending;
pub use rescue::SKIPPED;
pub use update::{Change, ConfigLogEntry, Metadata, Mute, Update};

use crate::replica::{Machine, Row, Rows};
use auth::{AuthName, EntityAuth, KeyServer, Rotation};
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, Encode, Features};
use placement::movement::Job;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::{
    Epoch, FsMap, IntervalSet, MgrMap, MonMap, OsdId, PgId, PoolId, ServiceMap, SnapId, Utime,
};

/// How many records of configuration history are kept.
const CONFIG_HISTORY_MAX: usize = 500;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct ClusterState {
    /// The monitors, and the cluster's id.
    pub monmap: Arc<MonMap>,
    /// The OSD map and its history.
    pub osd: OsdMaps,
    /// Keys and caps.
    pub auth: Arc<KeyServer>,
    /// Global ids below this may have been handed out.
    pub global_id_max: u64,
    /// Central configuration: value by `section[/mask]/option`.
    pub config: Arc<BTreeMap<String, String>>,
    /// Incremented by every change of `config`.
    pub config_version: u64,
    /// The newest records of configuration history, by version.
    pub config_log: Arc<BTreeMap<u64, ConfigLogEntry>>,
    /// The configuration-key store.
    pub kv: Arc<BTreeMap<String, Bytes>>,
    /// Incremented by every change of `kv`.
    pub kv_version: u64,
    /// The cluster log.
    pub log: Arc<CentralLog>,
    /// The manager map.
    pub mgr: Arc<MgrMap>,
    /// The commands that the manager serves.
    pub manager_commands: Arc<ManagerCommands>,
    /// The file system map.
    pub fs: Arc<FsMap>,
    /// The service map.
    pub services: Arc<ServiceMap>,
    /// Muted health checks by code.
    pub mutes: Arc<BTreeMap<String, Mute>>,
    /// What OSDs told about themselves.
    pub osd_metadata: Arc<BTreeMap<OsdId, Metadata>>,
    /// What monitors told about themselves.
    pub mon_metadata: Arc<BTreeMap<String, Metadata>>,
    /// What managers told about themselves.
    pub mgr_metadata: Arc<BTreeMap<String, Metadata>>,
    /// What metadata servers told about themselves, by global id.
    pub mds_metadata: Arc<BTreeMap<u64, Metadata>>,
    /// By pool: the seeds of groups that no OSD has confirmed yet.
    pub creating: Arc<BTreeMap<PoolId, BTreeSet<u32>>>,
    /// By pool: the seeds of lost groups that are to be made anew, and since which epoch.
    pub recreating: Arc<BTreeMap<PoolId, BTreeMap<u32, Epoch>>>,
    /// By pool: every snapshot that was ever removed. The OSD map forgets them once they are
    /// purged, but a client may ask again.
    pub removed_snaps: Arc<BTreeMap<PoolId, IntervalSet>>,
    /// Movement jobs.
    pub moves: Arc<BTreeMap<u64, Arc<Job>>>,
    /// Requests of clients that were executed lately.
    pub executed: Arc<Executed>,
    /// Which group of monitors this is: 0 until one of them went on alone because a majority was
    /// lost, then the time of that. Of two groups of one cluster the one with the smaller number is
    /// given up.
    pub rescued: u64,
}

/// The outcome of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect.
    Applied,
    /// It was made from an outdated state; nothing changed.
    Stale,
    /// It could not be understood; nothing changed.
    Malformed,
}

impl Outcome {
    /// From the bytes of an answer.
    pub fn from_bytes(b: &[u8]) -> Outcome {
        match b {
            [0] => Outcome::Applied,
            [1] => Outcome::Stale,
            _ => Outcome::Malformed,
        }
    }
}

/// Writes rows under their keys.
struct RowWriter<'a>(&'a mut Vec<Row>);

fn key(prefix: &str, name: &[u8]) -> Bytes {
    let mut k = BytesMut::with_capacity(prefix.len() + name.len());
    k.put_slice(prefix.as_bytes());
    k.put_slice(name);
    k.freeze()
}

impl RowWriter<'_> {
    fn put<T: Encode + ?Sized>(&mut self, prefix: &str, name: &[u8], value: &T) {
        self.0.push((key(prefix, name), Some(value.to_bytes(Features::ALL))));
    }

    fn del(&mut self, prefix: &str, name: &[u8]) {
        self.0.push((key(prefix, name), None));
    }

    fn set<T: Encode>(&mut self, prefix: &str, name: &[u8], value: &Option<T>) {
        match value {
            Some(v) => self.put(prefix, name, v),
            None => self.del(prefix, name),
        }
    }
}

/// Sets or removes an entry of a shared map.
fn set<K: Ord + Clone, V: Clone>(map: &mut Arc<BTreeMap<K, V>>, key: K, value: Option<V>) {
    let map = Arc::make_mut(map);
    match value {
        Some(v) => map.insert(key, v),
        None => map.remove(&key),
    };
}

impl ClusterState {
    /// Applies an update as a whole, or not at all.
    pub fn update(&mut self, update: Update, rows: &mut Vec<Row>) -> Outcome {
        let fits = update.changes.iter().all(|c| match c {
            Change::OsdMap(inc) => inc.epoch == self.osd.map().epoch.next(),
            Change::MonMap(m) => m.epoch.0 > self.monmap.epoch.0,
            Change::MgrMap(m) => m.epoch.0 > self.mgr.epoch.0,
            _ => true,
        });
        if !fits {
            return Outcome::Stale;
        }
        // The OSD map is the one change that can fail half way, so it is tried on a copy.
        let mut next = self.clone();
        for change in update.changes {
            if let Err(e) = next.apply(update.now, change, rows) {
                tracing::error!("a committed update cannot be applied: {e}");
                rows.clear();
                return Outcome::Malformed;
            }
        }
        *self = next;
        Outcome::Applied
    }

    fn apply(&mut self, now: Utime, change: Change, rows: &mut Vec<Row>) -> Result<(), String> {
        let mut w = RowWriter(rows);
        match change {
            Change::OsdMap(inc) => {
                let created: Vec<_> = inc.new_pools.iter().map(|(id, p)| (*id, p.pg_num)).collect();
                let gone: Vec<PoolId> = inc.old_pools.iter().copied().collect();
                let known = self.osd.map().clone();
                self.osd.push(&inc, w.0)?;
                for (pool, snaps) in &inc.new_removed_snaps {
                    let removed = Arc::make_mut(&mut self.removed_snaps).entry(*pool).or_default();
                    removed.union(snaps);
                    w.put("removedsnaps/", &pool.0.to_be_bytes(), &*removed);
                }
                for pool in &gone {
                    if self.removed_snaps.contains_key(pool) {
                        Arc::make_mut(&mut self.removed_snaps).remove(pool);
                        w.del("removedsnaps/", &pool.0.to_be_bytes());
                    }
                }
                let creating = Arc::make_mut(&mut self.creating);
                for (pool, pg_num) in
                    created.into_iter().filter(|(id, _)| !known.pools.contains_key(id))
                {
                    let seeds: BTreeSet<u32> = (0..pg_num).collect();
                    RowWriter(rows).put("creating/", &pool.0.to_be_bytes(), &seeds);
                    creating.insert(pool, seeds);
                }
                let recreating = Arc::make_mut(&mut self.recreating);
                for pool in gone {
                    if creating.remove(&pool).is_some() {
                        RowWriter(rows).del("creating/", &pool.0.to_be_bytes());
                    }
                    if recreating.remove(&pool).is_some() {
                        RowWriter(rows).del("recreating/", &pool.0.to_be_bytes());
                    }
                }
            }
            Change::TrimOsdMaps(first) => self.osd.trim(first, w.0)?,
            Change::MonMap(map) => {
                w.put("monmap", b"", &*map);
                self.monmap = Arc::new(*map);
            }
            Change::MgrMap(map) => {
                w.put("mgrmap", b"", &*map);
                self.mgr = Arc::new(*map);
            }
            Change::FsMap(map) => {
                w.put("fsmap", b"", &*map);
                self.fs = Arc::new(*map);
            }
            Change::ServiceMap(map) => {
                w.put("servicemap", b"", &*map);
                self.services = Arc::new(*map);
            }
            Change::Auth(name, auth) => {
                w.set("auth/e/", name.to_string().as_bytes(), &auth);
                let keys = Arc::make_mut(&mut self.auth);
                match auth {
                    Some(a) => keys.insert(name, a),
                    None => drop(keys.remove(&name)),
                }
                w.put("auth/v", b"", &self.auth.version());
            }
            Change::Rotate(rotation) => {
                let row = rotation.clone();
                if Arc::make_mut(&mut self.auth).apply_rotation(rotation) {
                    w.put("auth/r", b"", &row);
                }
            }
            Change::GlobalIds(max) => {
                self.global_id_max = self.global_id_max.max(max);
                self.put_counters(&mut w);
            }
            Change::Config(name, value) => {
                w.set("config/", name.as_bytes(), &value);
                set(&mut self.config, name, value);
                self.config_version += 1;
                self.put_counters(&mut w);
            }
            Change::ConfigLog(entry) => {
                let log = Arc::make_mut(&mut self.config_log);
                w.put("confighistory/", &entry.version.to_be_bytes(), &entry);
                log.insert(entry.version, entry);
                while log.len() > CONFIG_HISTORY_MAX
                    && let Some((version, _)) = log.pop_first()
                {
                    w.del("confighistory/", &version.to_be_bytes());
                }
            }
            Change::Kv(name, value) => {
                w.set("kv/", name.as_bytes(), &value);
                set(&mut self.kv, name, value);
                self.kv_version += 1;
                self.put_counters(&mut w);
            }
            Change::Log(entries) => {
                let log = Arc::make_mut(&mut self.log);
                for e in entries {
                    let at = log.push(e);
                    if let Some(e) = log.get(at) {
                        w.put("log/", &at.to_be_bytes(), e);
                    }
                }
            }
            Change::Executed(e) => {
                let row = e.clone();
                if let Some((at, gone)) = Arc::make_mut(&mut self.executed).push(now, *e) {
                    w.put("executed/", &at.to_be_bytes(), &*row);
                    for at in gone {
                        w.del("executed/", &at.to_be_bytes());
                    }
                }
            }
            Change::Move(id, job) => {
                w.set("move/", &id.to_be_bytes(), &job);
                set(&mut self.moves, id, job.map(|j| Arc::new(*j)));
            }
            Change::TrimLog(first) => {
                for at in Arc::make_mut(&mut self.log).trim(first) {
                    w.del("log/", &at.to_be_bytes());
                }
            }
            Change::Mute(code, mute) => {
                w.set("mute/", code.as_bytes(), &mute);
                set(&mut self.mutes, code, mute);
            }
            Change::OsdMetadata(osd, metadata) => {
                w.set("meta/osd/", &osd.0.to_be_bytes(), &metadata);
                set(&mut self.osd_metadata, osd, metadata);
            }
            Change::MonMetadata(name, metadata) => {
                w.set("meta/mon/", name.as_bytes(), &metadata);
                set(&mut self.mon_metadata, name, metadata);
            }
            Change::MgrMetadata(name, metadata) => {
                w.set("meta/mgr/", name.as_bytes(), &metadata);
                set(&mut self.mgr_metadata, name, metadata);
            }
            Change::MdsMetadata(gid, metadata) => {
                w.set("meta/mds/", &gid.to_be_bytes(), &metadata);
                set(&mut self.mds_metadata, gid, metadata);
            }
            Change::ManagerCommands(json) => {
                self.manager_commands = Arc::new(ManagerCommands::read(json.clone())?);
                w.put("mgrcommands", b"", &json);
            }
            Change::PgsCreated(pgs) => self.pgs_created(&pgs, rows),
            Change::ForceCreate(pgs, epoch) => {
                let recreating = Arc::make_mut(&mut self.recreating);
                for pg in pgs {
                    let seeds = recreating.entry(pg.pool).or_default();
                    seeds.insert(pg.seed, epoch);
                    w.put("recreating/", &pg.pool.0.to_be_bytes(), seeds);
                }
            }
        }
        Ok(())
    }

    /// PGs exist: nothing waits for them.
    fn pgs_created(&mut self, pgs: &[PgId], rows: &mut Vec<Row>) {
        let mut w = RowWriter(rows);
        let creating = Arc::make_mut(&mut self.creating);
        let recreating = Arc::make_mut(&mut self.recreating);
        for pg in pgs {
            let name = pg.pool.0.to_be_bytes();
            if let Some(seeds) = creating.get_mut(&pg.pool).filter(|s| s.contains(&pg.seed)) {
                seeds.remove(&pg.seed);
                if seeds.is_empty() {
                    w.del("creating/", &name);
                    creating.remove(&pg.pool);
                } else {
                    w.put("creating/", &name, seeds);
                }
            }
            if let Some(seeds) = recreating.get_mut(&pg.pool).filter(|s| s.contains_key(&pg.seed)) {
                seeds.remove(&pg.seed);
                if seeds.is_empty() {
                    w.del("recreating/", &name);
                    recreating.remove(&pg.pool);
                } else {
                    w.put("recreating/", &name, seeds);
                }
            }
        }
    }

    /// Whether a PG waits to be made, for the first time or anew.
    pub fn is_creating(&self, pg: PgId) -> bool {
        self.creating.get(&pg.pool).is_some_and(|seeds| seeds.contains(&pg.seed))
            || self.is_recreating(pg)
    }

    /// Whether a lost PG waits to be made anew.
    pub fn is_recreating(&self, pg: PgId) -> bool {
        self.recreating.get(&pg.pool).is_some_and(|seeds| seeds.contains_key(&pg.seed))
    }

    /// Whether a snapshot that clients manage was removed before.
    pub fn snap_is_removed(&self, pool: PoolId, snap: SnapId) -> bool {
        self.removed_snaps.get(&pool).is_some_and(|s| s.contains(snap.0))
    }

    fn put_counters(&self, w: &mut RowWriter<'_>) {
        w.put("counters", b"", &(self.global_id_max, self.config_version, self.kv_version));
    }

    fn read_rows(rows: &Rows) -> denc::Result<Self> {
        let mut s = ClusterState::default();
        let (mut entities, mut auth_version, mut rotation) =
            (BTreeMap::new(), 0u64, None::<Rotation>);
        let (mut fulls, mut incs) = (BTreeMap::new(), BTreeMap::new());
        let mut log = CentralLog::default();
        let mut config_log = BTreeMap::new();
        for (k, v) in rows {
            let text = |prefix: &str| {
                String::from_utf8_lossy(k.get(prefix.len()..).unwrap_or_default()).into_owned()
            };
            let number = |prefix: &str| {
                let tail = k.get(prefix.len()..).unwrap_or_default();
                tail.iter().fold(0u64, |n, b| n << 8 | u64::from(*b))
            };
            let slash = |n: usize| {
                k.iter().enumerate().filter(|(_, b)| **b == b'/').nth(n).map(|(i, _)| i + 1)
            };
            // Two-part prefixes first: `osd/i/`, `meta/osd/`.
            let prefix = match &k[..] {
                k if k.starts_with(b"osd/")
                    || k.starts_with(b"auth/e/")
                    || k.starts_with(b"meta/") =>
                {
                    slash(1)
                }
                k if k.starts_with(b"auth/") => None,
                _ => slash(0),
            };
            let prefix =
                std::str::from_utf8(k.get(..prefix.unwrap_or(k.len())).unwrap_or_default())
                    .unwrap_or_default();
            match prefix {
                "monmap" => s.monmap = Arc::new(Decode::from_bytes(v)?),
                "mgrmap" => s.mgr = Arc::new(Decode::from_bytes(v)?),
                "fsmap" => s.fs = Arc::new(Decode::from_bytes(v)?),
                "servicemap" => s.services = Arc::new(Decode::from_bytes(v)?),
                "mgrcommands" => match ManagerCommands::read(Decode::from_bytes(v)?) {
                    Ok(commands) => s.manager_commands = Arc::new(commands),
                    // The manager describes them again.
                    Err(e) => tracing::error!("unreadable commands of the manager: {e}"),
                },
                "osd/f/" => drop(fulls.insert(types::Epoch(number(prefix) as u32), v.clone())),
                "osd/i/" => drop(incs.insert(types::Epoch(number(prefix) as u32), v.clone())),
                "auth/e/" => {
                    let name = text(prefix);
                    let name: AuthName = name.parse().map_err(|_| denc::DecodeError::Invalid {
                        what: "entity name",
                        found: name.len() as u64,
                    })?;
                    entities.insert(name, EntityAuth::from_bytes(v)?);
                }
                "auth/r" => rotation = Some(Decode::from_bytes(v)?),
                "auth/v" => auth_version = Decode::from_bytes(v)?,
                "config/" => {
                    drop(Arc::make_mut(&mut s.config).insert(text(prefix), Decode::from_bytes(v)?))
                }
                "confighistory/" => drop(config_log.insert(number(prefix), Decode::from_bytes(v)?)),
                "kv/" => {
                    drop(Arc::make_mut(&mut s.kv).insert(text(prefix), Decode::from_bytes(v)?))
                }
                "log/" => log.restore(number(prefix), Decode::from_bytes(v)?),
                "mute/" => {
                    drop(Arc::make_mut(&mut s.mutes).insert(text(prefix), Decode::from_bytes(v)?))
                }
                "meta/osd/" => {
                    let osd = OsdId(number(prefix) as i32);
                    Arc::make_mut(&mut s.osd_metadata).insert(osd, Decode::from_bytes(v)?);
                }
                "meta/mon/" => drop(
                    Arc::make_mut(&mut s.mon_metadata).insert(text(prefix), Decode::from_bytes(v)?),
                ),
                "meta/mgr/" => drop(
                    Arc::make_mut(&mut s.mgr_metadata).insert(text(prefix), Decode::from_bytes(v)?),
                ),
                "meta/mds/" => drop(
                    Arc::make_mut(&mut s.mds_metadata)
                        .insert(number(prefix), Decode::from_bytes(v)?),
                ),
                "creating/" => {
                    let pool = PoolId(number(prefix) as i64);
                    Arc::make_mut(&mut s.creating).insert(pool, Decode::from_bytes(v)?);
                }
                "recreating/" => {
                    let pool = PoolId(number(prefix) as i64);
                    Arc::make_mut(&mut s.recreating).insert(pool, Decode::from_bytes(v)?);
                }
                "removedsnaps/" => {
                    let pool = PoolId(number(prefix) as i64);
                    Arc::make_mut(&mut s.removed_snaps).insert(pool, Decode::from_bytes(v)?);
                }
                "executed/" => {
                    Arc::make_mut(&mut s.executed).restore(number(prefix), Decode::from_bytes(v)?)
                }
                "move/" => {
                    let job = Arc::new(Decode::from_bytes(v)?);
                    Arc::make_mut(&mut s.moves).insert(number(prefix), job);
                }
                "rescued" => s.rescued = Decode::from_bytes(v)?,
                "counters" => {
                    (s.global_id_max, s.config_version, s.kv_version) = Decode::from_bytes(v)?
                }
                other => {
                    // A row of a newer release that was rolled back: refusing is better than losing
                    // it.
                    tracing::error!("unknown row {other:?}");
                    return Err(denc::DecodeError::Invalid { what: "row", found: k.len() as u64 });
                }
            }
        }
        s.auth = Arc::new(key_server(auth_version, &entities, rotation)?);
        s.osd = OsdMaps::restore(fulls, incs)?;
        s.log = Arc::new(log);
        s.config_log = Arc::new(config_log);
        Ok(s)
    }
}

/// Puts a [`KeyServer`] together from its rows, by way of its own encoding.
fn key_server(
    version: u64,
    entities: &BTreeMap<AuthName, EntityAuth>,
    rotation: Option<Rotation>,
) -> denc::Result<KeyServer> {
    let rotation = rotation.unwrap_or(Rotation { version: 0, secrets: BTreeMap::new() });
    let mut out = BytesMut::new();
    out.put_u8(1);
    version.encode(&mut out, Features::ALL);
    rotation.version.encode(&mut out, Features::ALL);
    entities.encode(&mut out, Features::ALL);
    rotation.secrets.encode(&mut out, Features::ALL);
    KeyServer::from_bytes(&out.freeze())
}

impl Machine for ClusterState {
    fn load(rows: &Rows) -> Result<Self, String> {
        Self::read_rows(rows).map_err(|e| e.to_string())
    }

    fn apply(&mut self, proposal: &Bytes, changed: &mut Vec<Row>) -> Bytes {
        let before = changed.len();
        let outcome = match Update::from_bytes(proposal) {
            Ok(update) => {
                let mut rows = Vec::new();
                let outcome = self.update(update, &mut rows);
                changed.append(&mut rows);
                outcome
            }
            Err(e) => {
                tracing::error!("a committed update cannot be read: {e}");
                Outcome::Malformed
            }
        };
        debug_assert!(outcome == Outcome::Applied || changed.len() == before);
        Bytes::copy_from_slice(&[outcome as u8])
    }
}

#[cfg(test)]
mod tests;
