//! Subvolumes of file systems and their groups (Ceph: module `volumes`, 16.2): directories with a
//! quota, a layout and a record, in the form that stock's manager has.
//!
//! * [`Volumes`]: the file systems that are in use, and the removal of what is in the trash.
//! * [`group`], [`subvolume`]: what commands do; [`access`]: which users may use a subvolume.
//! * [`ini`]: the record's file.
//!
//! ```text
//! /volumes/GROUP/NAME/.meta      the record
//! /volumes/GROUP/NAME/UUID       the data
//! /volumes/_GROUP:NAME.meta      users of the subvolume
//! /volumes/$USER.meta            subvolumes of the user
//! /volumes/_deleting/UUID        what is being removed
//! ```

pub mod access;
pub mod group;
pub mod ini;
pub mod subvolume;

use client::Rados;
use command::Refusal;
use fs_client::{FilePath, FsError, Kind, Mount, Options};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::time::Instant;
use types::errno::Errno;
use types::fsmap::MdsState;
use types::{FsMap, PoolId};

/// Below this directory everything is.
pub const BASE: &str = "/volumes";
/// The group of subvolumes that are in none.
pub const NO_GROUP: &str = "_nogroup";
/// The trash.
pub const TRASH: &str = "/volumes/_deleting";
/// Records of directories that have none themselves.
pub const LEGACY: &str = "/volumes/_legacy";
/// Names below [`BASE`] that are no groups.
const INTERNAL: [&str; 4] = [NO_GROUP, "_index", "_deleting", "_legacy"];
/// Permissions of groups and of [`BASE`].
const MODE: u32 = 0o755;

/// A file system that no command has used for so long is closed (Ceph:
/// `CONNECTION_IDLE_INTERVAL`).
const IDLE: Duration = Duration::from_secs(60);
/// How often that is looked at, and a removal that failed is tried again.
const TICK: Duration = Duration::from_secs(20);
/// A deeper path is moved to the top of what is removed, so that paths stay short.
const PATH_BYTES_MAX: usize = 2048;

/// What a command comes to.
pub type Result<T> = std::result::Result<T, Refusal>;

/// An answer of the metadata server as a refusal.
pub fn refusal(e: FsError) -> Refusal {
    Refusal::new(e.errno(), e.to_string())
}

/// JSON as Python's `json.dumps` writes it with sorted keys.
pub fn json_text(value: &Value) -> String {
    fn sorted(v: &Value) -> Value {
        match v {
            Value::Object(o) => {
                let keys: BTreeMap<&String, Value> =
                    o.iter().map(|(k, v)| (k, sorted(v))).collect();
                keys.into_iter().map(|(k, v)| (k.clone(), v)).collect()
            }
            Value::Array(a) => a.iter().map(sorted).collect(),
            other => other.clone(),
        }
    }
    let text = command::Format::JsonPretty.json(&sorted(value));
    let mut out = String::new();
    for c in String::from_utf8_lossy(&text).trim_end().chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|u| out += &format!("\\u{u:04x}"));
        }
    }
    out
}

/// Whether a text is the name of a directory.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let odd = name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']);
    if odd {
        return Err(Refusal::invalid(format!(
            "{name:?} is no name of a {what}: a name without a slash was expected"
        )));
    }
    Ok(())
}

/// Permissions as octal digits.
pub fn mode_of(text: Option<&str>) -> Result<u32> {
    let text = text.unwrap_or("755");
    let digits = text.trim().trim_start_matches("0o");
    let mode = u32::from_str_radix(digits, 8).ok().filter(|m| *m <= 0o7777);
    mode.ok_or_else(|| Refusal::invalid(format!("Invalid mode '{text}'")))
}

/// A file system in use.
struct Used {
    mount: Mount,
    since: Instant,
}

/// The file systems that are in use.
pub struct Volumes {
    rados: Rados,
    nonce: u32,
    name: String,
    map: RefCell<Arc<FsMap>>,
    used: RefCell<BTreeMap<i32, Used>>,
    /// Commands go one after the other.
    turn: Mutex<()>,
    /// File systems with trash to be looked at.
    trash: RefCell<BTreeSet<i32>>,
    /// File systems that have had an active server.
    seen: RefCell<BTreeSet<i32>>,
    work: Notify,
    stopping: std::cell::Cell<bool>,
}

/// A file system for a command.
pub struct Volume<'a> {
    /// The client.
    pub mount: Mount,
    /// Pools by number.
    rados: &'a Rados,
    fscid: i32,
    owner: &'a Volumes,
    _turn: MutexGuard<'a, ()>,
}

impl Volume<'_> {
    /// The name of a pool.
    pub fn pool_name(&self, id: i64) -> Option<String> {
        self.rados.objecter().map()?.pool_names.get(&PoolId(id)).cloned()
    }

    /// Something was moved to the trash.
    pub fn trashed(&self) {
        self.owner.trash.borrow_mut().insert(self.fscid);
        self.owner.work.notify_one();
    }

    /// The name of the pool of the layout at a path or the next one above it.
    pub async fn pool_above(&self, path: &str) -> Result<String> {
        let mut at = path;
        loop {
            let stat = self.mount.stat(&fs_client::path(at)).await.map_err(refusal)?;
            if let Some(layout) = stat.layout {
                let name = self.pool_name(layout.pool);
                return name
                    .ok_or_else(|| Refusal::new(Errno::ENODATA, "the pool of a layout is gone"));
            }
            match at.rfind('/') {
                Some(end) if !at.is_empty() => at = &at[..end],
                _ => return Err(Refusal::new(Errno::ENODATA, Errno::ENODATA.describe())),
            }
        }
    }

    /// Sets the pool of a directory's new files. `refused` is what is said of an impossible one.
    pub async fn set_pool(&self, path: &str, pool: &str, refused: String) -> Result<()> {
        let set = self.mount.set_xattr(&fs_client::path(path), "ceph.dir.layout.pool", pool).await;
        set.map_err(|e| match e.errno() {
            Errno::EINVAL | Errno::ENOENT => Refusal::invalid(refused),
            _ => refusal(e),
        })
    }

    /// Sets how many bytes may be below a directory.
    pub async fn set_quota(&self, path: &str, bytes: i64) -> Result<()> {
        let name = "ceph.quota.max_bytes";
        let set = self.mount.set_xattr(&fs_client::path(path), name, &bytes.to_string()).await;
        set.map_err(|e| match e.errno() {
            Errno::EINVAL => Refusal::invalid(format!("invalid size specified: '{bytes}'")),
            _ => refusal(e),
        })
    }

    /// Names of directories in a directory.
    pub async fn directories(&self, path: &str) -> std::result::Result<Vec<String>, FsError> {
        let mut names = Vec::new();
        let mut dir = self.mount.read_dir(&fs_client::path(path)).await?;
        while let Some(page) = dir.next().await? {
            let dirs = page.into_iter().filter(|e| e.kind == Kind::Dir);
            names.extend(dirs.map(|e| String::from_utf8_lossy(&e.name).into_owned()));
        }
        Ok(names)
    }

    /// How many bytes are below [`BASE`], and how many entries the trash has; nothing if no
    /// subvolume was ever made.
    pub async fn use_of_subvolumes(&self) -> Result<Option<(u64, usize)>> {
        let used = match self.mount.stat(&fs_client::path(BASE)).await {
            Err(e) if e.is(Errno::ENOENT) => return Ok(None),
            stat => stat.map_err(refusal)?.rbytes,
        };
        let mut dir = match self.mount.read_dir(&fs_client::path(TRASH)).await {
            Err(e) if e.is(Errno::ENOENT) => return Ok(Some((used, 0))),
            dir => dir.map_err(refusal)?,
        };
        let mut pending = 0;
        while let Some(page) = dir.next().await.map_err(refusal)? {
            pending += page.len();
        }
        Ok(Some((used, pending)))
    }

    /// Makes a directory of groups or subvolumes, unless it is there.
    pub async fn base_dir(&self, path: &str) -> Result<()> {
        match self.mount.stat(&fs_client::path(path)).await {
            Ok(_) => Ok(()),
            Err(e) if e.is(Errno::ENOENT) => {
                self.mount.mkdir_all(&fs_client::path(path), MODE).await.map_err(refusal)
            }
            Err(e) => Err(refusal(e)),
        }
    }
}

impl Volumes {
    /// Begins to look after file systems, on the current `LocalSet`. `nonce` is that of the
    /// manager's addresses.
    pub fn start(rados: Rados, nonce: u32, name: &str) -> Rc<Volumes> {
        let this = Rc::new(Volumes {
            rados,
            nonce,
            name: name.to_owned(),
            map: RefCell::default(),
            used: RefCell::default(),
            turn: Mutex::new(()),
            trash: RefCell::default(),
            seen: RefCell::default(),
            work: Notify::new(),
            stopping: std::cell::Cell::new(false),
        });
        tokio::task::spawn_local(run(Rc::downgrade(&this)));
        this
    }

    /// Ends the use of all file systems.
    pub fn shutdown(&self) {
        self.stopping.set(true);
        for used in std::mem::take(&mut *self.used.borrow_mut()).into_values() {
            used.mount.abort();
        }
        self.work.notify_one();
    }

    /// Takes the newest map of file systems.
    pub fn follow(&self, map: &Arc<FsMap>) {
        *self.map.borrow_mut() = map.clone();
        let gone: Vec<i32> = self
            .used
            .borrow()
            .keys()
            .filter(|id| !map.filesystems.contains_key(id))
            .copied()
            .collect();
        for id in gone {
            if let Some(used) = self.used.borrow_mut().remove(&id) {
                used.mount.abort();
            }
        }
        for (id, used) in &*self.used.borrow() {
            if let Some(fs) = map.filesystems.get(id) {
                used.mount.follow(&fs.map);
            }
        }
        self.seen.borrow_mut().retain(|id| map.filesystems.contains_key(id));
        for (id, fs) in &map.filesystems {
            let active = fs.map.mds_info.values().any(|i| i.state == MdsState::ACTIVE);
            // A manager before this one may have left something in the trash.
            if active && self.seen.borrow_mut().insert(*id) {
                self.trash.borrow_mut().insert(*id);
                self.work.notify_one();
            }
        }
    }

    fn mount(&self, fscid: i32) -> Option<Mount> {
        let fs = self.map.borrow().filesystems.get(&fscid).cloned()?;
        let mut used = self.used.borrow_mut();
        let used = used.entry(fscid).or_insert_with(|| {
            let texts = [("entity_id", self.name.as_str()), ("ceph_version", types::version::LONG)];
            let metadata = texts.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
            let mount = Mount::new(self.rados.clone(), Options { nonce: self.nonce, metadata });
            mount.follow(&fs.map);
            Used { mount, since: Instant::now() }
        });
        used.since = Instant::now();
        Some(used.mount.clone())
    }

    /// A file system by name, for one command at a time.
    pub async fn open(&self, name: &str) -> Result<Volume<'_>> {
        let absent = || Refusal::new(Errno::ENOENT, format!("FS '{name}' not found"));
        let turn = self.turn.lock().await;
        let map = self.map.borrow().clone();
        let found = map.filesystems.iter().find(|(_, fs)| fs.map.fs_name == name);
        let fscid = found.map(|(id, _)| *id).ok_or_else(absent)?;
        let mount = self.mount(fscid).ok_or_else(absent)?;
        Ok(Volume { mount, rados: &self.rados, fscid, owner: self, _turn: turn })
    }

    /// Closes what no command has used for a while.
    async fn close_idle(&self) {
        let Ok(_turn) = self.turn.try_lock() else { return };
        let idle = |u: &Used| u.since.elapsed() >= IDLE;
        let idle: Vec<i32> =
            self.used.borrow().iter().filter(|(_, u)| idle(u)).map(|(id, _)| *id).collect();
        for id in idle {
            let mount = self.used.borrow().get(&id).map(|u| u.mount.clone());
            if let Some(mount) = mount
                && mount.close().await
            {
                self.used.borrow_mut().remove(&id);
            }
        }
    }

    /// Removes what is in the trash of a file system.
    async fn empty_trash(&self, fscid: i32) -> std::result::Result<(), FsError> {
        let before = self.used.borrow().contains_key(&fscid);
        let Some(mount) = self.mount(fscid) else { return Ok(()) };
        let mut found = false;
        let outcome = async {
            let mut dir = match mount.read_dir(&fs_client::path(TRASH)).await {
                Err(e) if e.is(Errno::ENOENT) => return Ok(()),
                dir => dir?,
            };
            while let Some(page) = dir.next().await? {
                for entry in page {
                    found = true;
                    let name = [TRASH.as_bytes(), b"/", &entry.name[..]].concat();
                    self.remove_entry(&mount, &fs_client::path(name), entry.kind).await?;
                }
            }
            Ok(())
        };
        let outcome = outcome.await;
        if !before
            && !found
            && outcome.is_ok()
            && let Some(long_ago) = Instant::now().checked_sub(IDLE)
            && let Some(used) = self.used.borrow_mut().get_mut(&fscid)
        {
            // Only the look was worth a session.
            used.since = long_ago;
        }
        outcome
    }

    async fn remove_entry(
        &self,
        mount: &Mount,
        path: &FilePath,
        kind: Kind,
    ) -> std::result::Result<(), FsError> {
        match kind {
            Kind::Dir => self.remove_tree(mount, path).await,
            Kind::Symlink => {
                // The data of a subvolume of which only snapshots are kept.
                let link = mount.stat(path).await?;
                let target = link.symlink.clone();
                if target.starts_with(BASE.as_bytes()) && !target.windows(4).any(|w| w == b"/../") {
                    match self.remove_tree(mount, &fs_client::path(&target)).await {
                        Err(e) if !e.is(Errno::ENOENT) => return Err(e),
                        _ => {}
                    }
                }
                unless_absent(mount.unlink(path).await)
            }
            _ => unless_absent(mount.unlink(path).await),
        }
    }

    /// Removes a directory and all below it, without recursion: what is below comes first.
    async fn remove_tree(&self, mount: &Mount, top: &FilePath) -> std::result::Result<(), FsError> {
        let mut left = vec![top.clone()];
        let mut moved = false;
        while let Some(at) = left.last().cloned() {
            let mut below = None;
            let mut dir = match mount.read_dir(&at).await {
                Err(e) if e.is(Errno::ENOENT) => {
                    left.pop();
                    continue;
                }
                dir => dir?,
            };
            'pages: while let Some(page) = dir.next().await? {
                for entry in page {
                    if self.stopping.get() {
                        return Err(FsError::Closed);
                    }
                    let path = [&at.path[..], b"/", &entry.name[..]].concat();
                    let path = FilePath { ino: at.ino, path: path.into() };
                    if entry.kind != Kind::Dir {
                        unless_absent(mount.unlink(&path).await)?;
                        continue;
                    }
                    match mount.rmdir(&path).await {
                        Err(e) if e.is(Errno::ENOTEMPTY) => {}
                        other => {
                            unless_absent(other)?;
                            continue;
                        }
                    }
                    if path.path.len() > PATH_BYTES_MAX {
                        moved = true;
                        let name = format!("/.deep.{:016x}", rand::random::<u64>());
                        let name = [&top.path[..], name.as_bytes()].concat();
                        let to = FilePath { ino: top.ino, path: name.into() };
                        mount.rename(&path, &to).await?;
                        continue;
                    }
                    below = Some(path);
                    break 'pages;
                }
            }
            match below {
                Some(path) => left.push(path),
                None => match mount.rmdir(&at).await {
                    // Something was moved to the top, or came while it was read.
                    Err(e) if e.is(Errno::ENOTEMPTY) && moved && at == *top => moved = false,
                    other => {
                        unless_absent(other)?;
                        left.pop();
                    }
                },
            }
        }
        Ok(())
    }
}

fn unless_absent(r: std::result::Result<(), FsError>) -> std::result::Result<(), FsError> {
    match r {
        Err(e) if e.is(Errno::ENOENT) => Ok(()),
        other => other,
    }
}

/// Empties the trash, and closes what is idle.
async fn run(volumes: Weak<Volumes>) {
    loop {
        let Some(v) = volumes.upgrade() else { return };
        if v.stopping.get() {
            return;
        }
        let due = std::mem::take(&mut *v.trash.borrow_mut());
        for fscid in due {
            match v.empty_trash(fscid).await {
                Ok(()) => {}
                // It is closed, or has no server: the next server or command brings it back.
                Err(FsError::Closed) => {}
                Err(e) => {
                    tracing::warn!("the trash of file system {fscid} cannot be emptied yet: {e}");
                    if v.map.borrow().filesystems.contains_key(&fscid) {
                        v.trash.borrow_mut().insert(fscid);
                    }
                }
            }
        }
        v.close_idle().await;
        let failed = !v.trash.borrow().is_empty();
        if failed {
            drop(v);
            tokio::time::sleep(TICK).await;
        } else {
            let _ = tokio::time::timeout(TICK, v.work.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_is_that_of_python() {
        let value = json!({"b": [], "a": {"z": 1, "c": "ä\u{1f600}"}, "e": {}});
        let text = "{\n    \"a\": {\n        \"c\": \"\\u00e4\\ud83d\\ude00\",\n        \"z\": 1\n    },\n    \"b\": [],\n    \"e\": {}\n}";
        assert_eq!(json_text(&value), text);
        assert_eq!(json_text(&json!([])), "[]");
    }

    #[test]
    fn names_and_modes_are_checked() {
        for bad in ["", ".", "..", "a/b", "a\0"] {
            assert!(check_name("subvolume", bad).is_err(), "{bad:?}");
        }
        assert!(check_name("subvolume", ".a").is_ok());
        assert_eq!(mode_of(None).unwrap(), 0o755);
        assert_eq!(mode_of(Some("0o700")).unwrap(), 0o700);
        assert_eq!(mode_of(Some("9")).unwrap_err().message, "Invalid mode '9'");
    }
}
