//! The data directory: what a node keeps, and the modes of its files.
//!
//! ```text
//! DIR/cluster.json     identity, format, monitors of the cluster and OSDs of this node
//! DIR/lock             held alone by `siphon up`, shared by daemons with a process each
//! DIR/edit             held while cluster.json is changed
//! DIR/ceph.conf        for stock clients
//! DIR/keyring          client.admin's key, for stock clients
//! DIR/join             what another host needs to become part of the cluster; holds keys
//! DIR/mon.NAME/        a monitor's database and keyring
//! DIR/mgr.NAME/        a manager's keyring
//! DIR/mds.NAME/        a metadata server's keyring
//! DIR/osd.N/           keyring, and the store (`block`, a file or a link to a device)
//! DIR/DAEMON/lock      held by the daemon
//! DIR/run/             admin sockets
//! ```

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Version of the directory's layout. A newer number than this is refused.
pub const FORMAT: u32 = 2;
/// The layout with one monitor `a`, which older versions read.
const FORMAT_OF_ONE: u32 = 1;

/// `cluster.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterFile {
    /// Version of the directory's layout.
    pub format: u32,
    /// The cluster's identity.
    pub fsid: String,
    /// The address of the first monitor.
    pub mon_addr: SocketAddr,
    /// Where the monitors were when this was written; empty if there is one, `a`, at `mon_addr`.
    /// Once a monitor was reached, its map is what counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mons: BTreeMap<String, SocketAddr>,
    /// This node's address, for its OSDs and managers; that of the first monitor if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// This node's address in the network in which OSDs reach each other; the other one if there is
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<IpAddr>,
    /// The OSDs, by id.
    pub osds: Vec<OsdEntry>,
}

impl ClusterFile {
    /// A cluster without OSDs.
    pub fn new(
        fsid: String,
        mons: BTreeMap<String, SocketAddr>,
        ip: Option<IpAddr>,
    ) -> ClusterFile {
        let first = mons
            .values()
            .next()
            .copied()
            .unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 3300)));
        let usual = mons.len() == 1 && mons.contains_key("a");
        let mons = if usual { BTreeMap::new() } else { mons };
        ClusterFile {
            format: FORMAT,
            fsid,
            mon_addr: first,
            mons,
            ip,
            cluster_ip: None,
            osds: vec![],
        }
    }

    /// All monitors by name.
    pub fn monitors(&self) -> BTreeMap<String, SocketAddr> {
        match self.mons.is_empty() {
            true => [("a".to_string(), self.mon_addr)].into(),
            false => self.mons.clone(),
        }
    }

    /// Where this node's OSDs and managers listen.
    pub fn node_ip(&self) -> IpAddr {
        self.ip.unwrap_or_else(|| self.mon_addr.ip())
    }
}

/// One OSD of the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OsdEntry {
    /// Its number.
    pub id: i32,
    /// Its own identity (`ceph osd new UUID`).
    pub uuid: String,
    /// Its size in bytes.
    pub size: u64,
    /// The block device, or none for a file in the data directory.
    pub device: Option<PathBuf>,
}

/// An opened data directory. Its lock is held until this is dropped.
pub struct Home {
    dir: PathBuf,
    _lock: File,
}

/// Locks a file, which is created. It never waits.
fn lock(path: &Path, shared: bool) -> std::io::Result<Option<File>> {
    let mut options = modes::options(modes::SECRET);
    let file = options.create(true).truncate(false).write(true).open(path)?;
    let how = if shared { libc::LOCK_SH } else { libc::LOCK_EX };
    // SAFETY: flock takes a file descriptor that `file` keeps open, and touches no memory of ours.
    let got = unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } == 0;
    Ok(got.then_some(file))
}

/// What a daemon that is a process of its own holds: the directory together with others, and its
/// own part alone.
pub struct DaemonLock {
    _dir: File,
    _own: File,
}

impl DaemonLock {
    /// For `daemon`, such as `osd.0`, with an existing directory.
    pub fn take(dir: &Path, daemon: &str) -> Result<DaemonLock> {
        let _dir = lock(&dir.join("lock"), true).map_err(|e| explain(dir, e))?;
        let _dir = _dir.with_context(|| {
            format!("{} is in use by `siphon up`: stop it first", dir.display())
        })?;
        let own = dir.join(daemon);
        let _own = lock(&own.join("lock"), false).map_err(|e| explain(&own, e))?;
        let _own = _own.with_context(|| format!("{daemon} of {} runs already", dir.display()))?;
        Ok(DaemonLock { _dir, _own })
    }
}

/// Changes `cluster.json` while daemons of the directory may run; one change at a time.
pub struct Edit {
    dir: PathBuf,
    _lock: File,
    /// The content to be written.
    pub cluster: ClusterFile,
}

impl Edit {
    /// Reads the file of an existing directory.
    pub fn begin(dir: &Path) -> Result<Edit> {
        if load(dir)?.is_none() {
            bail!(
                "{} is no cluster's data directory: `siphon init` or `siphon join` makes one",
                dir.display()
            );
        }
        let dir = dir.canonicalize().with_context(|| format!("{}", dir.display()))?;
        let held = lock(&dir.join("edit"), false).map_err(|e| explain(&dir, e))?;
        let _lock = held.with_context(|| {
            format!("{} is being changed by another siphon process", dir.display())
        })?;
        let cluster = load(&dir)?.context("cluster.json is gone")?;
        Ok(Edit { dir, _lock, cluster })
    }

    /// The directory, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes it, and the `ceph.conf` that follows from it.
    pub fn save(&self) -> Result<()> {
        save(&self.dir, &self.cluster)?;
        write_durably(
            &self.dir.join("ceph.conf"),
            ceph_conf(&self.dir, &self.cluster).as_bytes(),
            modes::SHARED,
        )
    }
}

fn save(dir: &Path, cluster: &ClusterFile) -> Result<()> {
    let plain = cluster.mons.is_empty() && cluster.ip.is_none();
    let format = if plain { FORMAT_OF_ONE } else { FORMAT };
    let text = serde_json::to_string_pretty(&ClusterFile { format, ..cluster.clone() })? + "\n";
    write_durably(&dir.join("cluster.json"), text.as_bytes(), modes::SHARED)
}

impl Home {
    /// Opens `dir`, and creates it if it is missing.
    pub fn open(dir: &Path) -> Result<Home> {
        modes::directory(dir).map_err(|e| explain(dir, e))?;
        let dir = dir.canonicalize().with_context(|| format!("{}", dir.display()))?;
        let Some(lock) = lock(&dir.join("lock"), false).map_err(|e| explain(&dir, e))? else {
            bail!(
                "{} is in use by another siphon process: stop it first, or choose another --data-dir",
                dir.display()
            );
        };
        let home = Home { dir, _lock: lock };
        if home.load()?.is_none() {
            let foreign = fs::read_dir(&home.dir)?
                .filter_map(|e| e.ok())
                .find(|e| !matches!(e.file_name().to_str(), Some("lock" | "lost+found")));
            if let Some(e) = foreign {
                bail!(
                    "{} is not empty (it holds {:?}) and is not a Siphon data directory: choose an empty or new directory",
                    home.dir.display(),
                    e.file_name()
                );
            }
        }
        // Only once it is known to be ours.
        mend_modes(&home.dir)?;
        Ok(home)
    }

    /// The directory, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A daemon's own directory.
    pub fn daemon(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `cluster.json`, or none in a new directory.
    pub fn load(&self) -> Result<Option<ClusterFile>> {
        load(&self.dir)
    }

    /// Writes `cluster.json` and makes it durable.
    pub fn save(&self, cluster: &ClusterFile) -> Result<()> {
        save(&self.dir, cluster)
    }
}

/// Reads the `cluster.json` of a directory without locking it.
pub fn load(dir: &Path) -> Result<Option<ClusterFile>> {
    let path = dir.join("cluster.json");
    let text = match fs::read_to_string(&path) {
        Ok(t) => t,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(explain(&path, e)),
    };
    let format = serde_json::from_str::<serde_json::Value>(&text)
        .ok()
        .and_then(|v| v.get("format").and_then(|f| f.as_u64()));
    match format {
        Some(f) if f > FORMAT as u64 => {
            bail!(
                "{}: written by a newer version (format {f}, this one reads {FORMAT}): use that version",
                path.display()
            )
        }
        None => bail!("{}: not a Siphon cluster file (no format number)", path.display()),
        Some(_) => {}
    }
    let cluster =
        serde_json::from_str(&text).with_context(|| format!("{}: damaged", path.display()))?;
    Ok(Some(cluster))
}

/// Takes from other users what they must not read, and says so. Only the owner of a file can do
/// that; a directory that is partly another user's is one that the daemon cannot run in either.
pub fn mend_modes(dir: &Path) -> Result<()> {
    let mended = modes::mend(dir)
        .with_context(|| format!("cannot check the modes of the files in {}", dir.display()))?;
    for m in mended {
        tracing::warn!(
            "{}: mode {:04o} let other users in; it is {:04o}",
            m.path.display(),
            m.from,
            m.to
        );
    }
    Ok(())
}

/// Replaces a file so that after a crash either the old or the new content is there.
pub fn write_durably(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let dir = path.parent().context("a file needs a directory")?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let write = || -> std::io::Result<()> {
        // The rest of an interrupted attempt may have another mode.
        match fs::remove_file(&temporary) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut f = modes::options(mode).create_new(true).write(true).open(&temporary)?;
        f.write_all(content)?;
        f.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| explain(path, e))
}

/// An I/O error as one sentence that says what to do.
pub fn explain(path: &Path, e: std::io::Error) -> anyhow::Error {
    let path = path.display();
    match e.kind() {
        ErrorKind::PermissionDenied => anyhow::anyhow!(
            "{path}: not writable by this user: choose another --data-dir or fix its permissions"
        ),
        ErrorKind::StorageFull => anyhow::anyhow!(
            "{path}: the file system is full: free space or choose another --data-dir"
        ),
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            anyhow::anyhow!("{path}: not a directory: choose another --data-dir")
        }
        ErrorKind::ReadOnlyFilesystem => {
            anyhow::anyhow!("{path}: the file system is read-only: choose another --data-dir")
        }
        _ => anyhow::anyhow!("{path}: {e}"),
    }
}

/// Space left on the file system of a directory, for people.
pub fn free_space(dir: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(dir.as_os_str().as_bytes()) else {
        return "an unknown part".into();
    };
    // SAFETY: an all-zero statvfs is a valid value; the call writes to it and reads the path, which
    // lives on.
    let (ok, fs) = unsafe {
        let mut fs: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &mut fs) == 0, fs)
    };
    if ok { pgmap::units::bytes(fs.f_bavail * fs.f_frsize) } else { "an unknown part".into() }
}

/// The `ceph.conf` that stock clients take as it is.
pub fn ceph_conf(dir: &Path, cluster: &ClusterFile) -> String {
    let d = dir.display();
    format!(
        "# Written by siphon at every start; changes to it are lost.\n\
         [global]\n\
         fsid = {fsid}\n\
         mon_host = {hosts}\n\
         auth_cluster_required = cephx\n\
         auth_service_required = cephx\n\
         auth_client_required = cephx\n\
         keyring = {d}/keyring\n\
         run_dir = {d}/run\n\
         admin_socket = {d}/run/ceph-$name.asok\n\
         \n\
         [mgr]\n\
         keyring = {d}/mgr.$id/keyring\n\
         [mds]\n\
         keyring = {d}/mds.$id/keyring\n\
         [osd]\n\
         keyring = {d}/osd.$id/keyring\n\
         [client]\n\
         admin_socket =\n\
         log_file =\n",
        fsid = cluster.fsid,
        hosts = cluster
            .monitors()
            .values()
            .map(|a| format!("[v2:{a}/0]"))
            .collect::<Vec<_>>()
            .join(","),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> ClusterFile {
        ClusterFile::new(
            "0".into(),
            [("a".to_string(), "127.0.0.1:3300".parse().unwrap())].into(),
            None,
        )
    }

    #[test]
    fn locks_and_recognises_itself() {
        let t = tempfile::tempdir().unwrap();
        let dir = t.path().join("a/b");
        let home = Home::open(&dir).unwrap();
        assert!(home.load().unwrap().is_none());
        home.save(&cluster()).unwrap();
        assert!(Home::open(&dir).err().unwrap().to_string().contains("in use"));
        drop(home);
        assert_eq!(Home::open(&dir).unwrap().load().unwrap().unwrap().fsid, "0");
    }

    #[test]
    fn daemons_share_the_directory_and_nothing_else_does() {
        let t = tempfile::tempdir().unwrap();
        let dir = t.path().join("d");
        let home = Home::open(&dir).unwrap();
        home.save(&cluster()).unwrap();
        for daemon in ["osd.0", "osd.1"] {
            fs::create_dir(dir.join(daemon)).unwrap();
        }
        assert!(DaemonLock::take(&dir, "osd.0").err().unwrap().to_string().contains("siphon up"));
        drop(home);
        let first = DaemonLock::take(&dir, "osd.0").unwrap();
        let _second = DaemonLock::take(&dir, "osd.1").unwrap();
        assert!(
            DaemonLock::take(&dir, "osd.0").err().unwrap().to_string().contains("runs already")
        );
        assert!(Home::open(&dir).is_err());
        drop(first);
        assert!(DaemonLock::take(&dir, "osd.0").is_ok());
    }

    #[test]
    fn several_monitors_are_kept_in_the_newer_format() {
        let t = tempfile::tempdir().unwrap();
        let home = Home::open(&t.path().join("d")).unwrap();
        home.save(&cluster()).unwrap();
        assert_eq!(home.load().unwrap().unwrap().format, 1);
        let mons: BTreeMap<String, SocketAddr> = [("a", "10.0.0.1:3300"), ("b", "10.0.0.2:3300")]
            .map(|(n, a)| (n.to_string(), a.parse().unwrap()))
            .into();
        let mut edit = Edit::begin(home.dir()).unwrap();
        edit.cluster = ClusterFile::new("0".into(), mons.clone(), None);
        edit.save().unwrap();
        assert!(Edit::begin(home.dir()).is_err(), "one at a time");
        let read = home.load().unwrap().unwrap();
        assert_eq!((read.format, read.monitors()), (2, mons));
        let conf = fs::read_to_string(home.dir().join("ceph.conf")).unwrap();
        assert!(conf.contains("mon_host = [v2:10.0.0.1:3300/0],[v2:10.0.0.2:3300/0]\n"), "{conf}");
    }

    #[test]
    fn refuses_what_is_not_its_own() {
        let t = tempfile::tempdir().unwrap();
        fs::write(t.path().join("precious"), "x").unwrap();
        assert!(Home::open(t.path()).err().unwrap().to_string().contains("not empty"));
        let t = tempfile::tempdir().unwrap();
        fs::write(t.path().join("cluster.json"), format!("{{\"format\": {}}}", FORMAT + 1))
            .unwrap();
        assert!(Home::open(t.path()).err().unwrap().to_string().contains("newer version"));
        fs::write(t.path().join("cluster.json"), "{}").unwrap();
        assert!(
            Home::open(t.path()).err().unwrap().to_string().contains("not a Siphon cluster file")
        );
        let f = t.path().join("file");
        fs::write(&f, "").unwrap();
        assert!(Home::open(&f).is_err());
    }
}
