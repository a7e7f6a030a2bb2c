//! The data directory: what `siphon up` keeps, and who may open it.
//!
//! ```text
//! DIR/cluster.json     identity, format, monitors and OSDs of this node
//! DIR/lock             held while a process uses the directory
//! DIR/ceph.conf        for stock clients
//! DIR/keyring          client.admin's key, for stock clients
//! DIR/mon.a/           the monitor's database and keyring
//! DIR/mgr.x/keyring
//! DIR/osd.N/           keyring, and the store (`block`, a file or a link to a device)
//! DIR/run/             admin sockets
//! ```

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Version of the directory's layout. A newer number than this is refused.
pub const FORMAT: u32 = 1;

/// `cluster.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterFile {
    /// Version of the directory's layout.
    pub format: u32,
    /// The cluster's identity.
    pub fsid: String,
    /// Where the monitor listens.
    pub mon_addr: SocketAddr,
    /// The OSDs, by id.
    pub osds: Vec<OsdEntry>,
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

impl Home {
    /// Opens `dir`, and creates it if it is missing.
    pub fn open(dir: &Path) -> Result<Home> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(|e| explain(dir, e))?;
        let dir = dir.canonicalize().with_context(|| format!("{}", dir.display()))?;
        let path = dir.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(|e| explain(&dir, e))?;
        // SAFETY: flock takes a file descriptor that `lock` keeps open, and touches no memory of ours.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            bail!("{} is in use by another siphon process: stop it first, or choose another --data-dir", dir.display());
        }
        let home = Home { dir, _lock: lock };
        if home.load()?.is_none() {
            let foreign = fs::read_dir(&home.dir)?.filter_map(|e| e.ok()).find(|e| !matches!(e.file_name().to_str(), Some("lock" | "lost+found")));
            if let Some(e) = foreign {
                bail!(
                    "{} is not empty (it holds {:?}) and is not a Siphon data directory: choose an empty or new directory",
                    home.dir.display(),
                    e.file_name()
                );
            }
        }
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
        let text = serde_json::to_string_pretty(cluster)? + "\n";
        write_durably(&self.dir.join("cluster.json"), text.as_bytes(), 0o644)
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
    let format = serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|v| v.get("format").and_then(|f| f.as_u64()));
    match format {
        Some(f) if f > FORMAT as u64 => {
            bail!("{}: written by a newer version (format {f}, this one reads {FORMAT}): use that version", path.display())
        }
        None => bail!("{}: not a Siphon cluster file (no format number)", path.display()),
        Some(_) => {}
    }
    let cluster = serde_json::from_str(&text).with_context(|| format!("{}: damaged", path.display()))?;
    Ok(Some(cluster))
}

/// Replaces a file so that after a crash either the old or the new content is there.
pub fn write_durably(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let dir = path.parent().context("a file needs a directory")?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let write = || -> std::io::Result<()> {
        let mut f = File::options().create(true).truncate(true).write(true).mode(mode).open(&temporary)?;
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
        ErrorKind::PermissionDenied => anyhow::anyhow!("{path}: not writable by this user: choose another --data-dir or fix its permissions"),
        ErrorKind::StorageFull => anyhow::anyhow!("{path}: the file system is full: free space or choose another --data-dir"),
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => anyhow::anyhow!("{path}: not a directory: choose another --data-dir"),
        ErrorKind::ReadOnlyFilesystem => anyhow::anyhow!("{path}: the file system is read-only: choose another --data-dir"),
        _ => anyhow::anyhow!("{path}: {e}"),
    }
}

/// Space left on the file system of a directory, for people.
pub fn free_space(dir: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(dir.as_os_str().as_bytes()) else { return "an unknown part".into() };
    // SAFETY: an all-zero statvfs is a valid value; the call writes to it and reads the path, which lives on.
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
         mon_host = [v2:{addr}/0]\n\
         auth_cluster_required = cephx\n\
         auth_service_required = cephx\n\
         auth_client_required = cephx\n\
         keyring = {d}/keyring\n\
         run_dir = {d}/run\n\
         admin_socket = {d}/run/ceph-$name.asok\n\
         \n\
         [mgr]\n\
         keyring = {d}/mgr.$id/keyring\n\
         [osd]\n\
         keyring = {d}/osd.$id/keyring\n\
         [client]\n\
         admin_socket =\n\
         log_file =\n",
        fsid = cluster.fsid,
        addr = cluster.mon_addr,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> ClusterFile {
        ClusterFile { format: FORMAT, fsid: "0".into(), mon_addr: "127.0.0.1:3300".parse().unwrap(), osds: vec![] }
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
    fn refuses_what_is_not_its_own() {
        let t = tempfile::tempdir().unwrap();
        fs::write(t.path().join("precious"), "x").unwrap();
        assert!(Home::open(t.path()).err().unwrap().to_string().contains("not empty"));
        let t = tempfile::tempdir().unwrap();
        fs::write(t.path().join("cluster.json"), format!("{{\"format\": {}}}", FORMAT + 1)).unwrap();
        assert!(Home::open(t.path()).err().unwrap().to_string().contains("newer version"));
        fs::write(t.path().join("cluster.json"), "{}").unwrap();
        assert!(Home::open(t.path()).err().unwrap().to_string().contains("not a Siphon cluster file"));
        let f = t.path().join("file");
        fs::write(&f, "").unwrap();
        assert!(Home::open(&f).is_err());
    }
}
