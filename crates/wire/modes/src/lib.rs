//! Access modes of all that daemons and tools keep on a file system.
//!
//! Every file and directory is created with its mode, and the umask can only take bits away. A
//! later `chmod` would leave a moment in which another user can open the file, and an open
//! descriptor outlives the change. [`mend`] closes what an operator or an older version left open.
//!
//! The values are those of stock packages: `/var/lib/ceph` is 0750, and stores and keyrings are
//! 0600.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Directories: the owner's, readable by its group.
pub const DIRECTORY: u32 = 0o750;
/// Stores, keyrings, and everything else that may hold a secret or data.
pub const SECRET: u32 = 0o600;
/// What the group may read and that holds no secret, such as `ceph.conf`.
pub const SHARED: u32 = 0o640;
/// Sockets for commands: they give full control of the daemon behind them.
pub const SOCKET: u32 = 0o600;

/// Waiting connections of a socket for commands.
const BACKLOG: libc::c_int = 32;

/// Makes a directory with all its parents.
pub fn directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY).create(path)
}

/// Options that create a file of that mode. The caller adds what else it needs.
pub fn options(mode: u32) -> OpenOptions {
    let mut options = File::options();
    options.mode(mode);
    options
}

/// Listens at a new Unix socket of mode [`SOCKET`].
///
/// The kernel makes the socket's file with the mode of the descriptor (less the umask), so that
/// the mode is set before there is a file.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: an all-zero sockaddr_un is a valid value.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The last byte stays zero.
    if bytes.is_empty() || bytes.len() >= addr.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{}: {} bytes; a socket's path has 1 to {} without a zero",
                path.display(),
                bytes.len(),
                addr.sun_path.len() - 1
            ),
        ));
    }
    for (to, from) in addr.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let check = |code: libc::c_int| match code {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(code),
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes numbers only.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: the descriptor is new and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `fd` is open.
    check(unsafe { libc::fchmod(fd.as_raw_fd(), SOCKET) })?;
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `addr` is a whole sockaddr_un of `len` bytes that lives through the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    // SAFETY: `fd` is open.
    check(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) })?;
    Ok(UnixListener::from(fd))
}

/// One file or directory with a narrowed mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mended {
    /// Which.
    pub path: PathBuf,
    /// Its mode as it was found.
    pub from: u32,
    /// Its mode as it is.
    pub to: u32,
}

/// Narrows the modes of a directory and of all below it. Nothing is widened. Directories keep what
/// is in [`DIRECTORY`]; files directly in `root` what is in [`SHARED`], so that an operator can
/// give a group a keyring; files further below, stores above all, what is in [`SECRET`]. Links are
/// not followed, and devices are left to the system's administration.
pub fn mend(root: &Path) -> io::Result<Vec<Mended>> {
    let mut mended = Vec::new();
    narrow(root, DIRECTORY, &mut mended)?;
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(named(&directory, e)),
        };
        for entry in entries {
            let path = entry.map_err(|e| named(&directory, e))?.path();
            // Daemons of the directory may run, and remove what they have made.
            let kind = match fs::symlink_metadata(&path) {
                Ok(metadata) => metadata.file_type(),
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(named(&path, e)),
            };
            if kind.is_dir() {
                narrow(&path, DIRECTORY, &mut mended)?;
                directories.push(path);
            } else if kind.is_file() {
                let mode = if directory == root { SHARED } else { SECRET };
                narrow(&path, mode, &mut mended)?;
            }
        }
    }
    Ok(mended)
}

fn named(path: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

fn narrow(path: &Path, most: u32, mended: &mut Vec<Mended>) -> io::Result<()> {
    // Through a descriptor that follows no link: the mode that is changed is the one looked at.
    let open = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path);
    let file = match open {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(named(path, e)),
    };
    let from = file.metadata().map_err(|e| named(path, e))?.permissions().mode() & 0o7777;
    let to = from & most;
    if from != to {
        file.set_permissions(Permissions::from_mode(to)).map_err(|e| named(path, e))?;
        mended.push(Mended { path: path.to_owned(), from, to });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn nothing_is_made_wider_than_its_mode() {
        let t = tempfile::tempdir().unwrap();
        // The only test of this process that depends on the umask.
        // SAFETY: sets a number.
        let before = unsafe { libc::umask(0) };
        directory(&t.path().join("a/b")).unwrap();
        let path = t.path().join("a/b/store");
        options(SECRET).write(true).create_new(true).open(&path).unwrap();
        let socket = t.path().join("a/s");
        let listener = listen(&socket).unwrap();
        // SAFETY: sets a number.
        unsafe { libc::umask(before) };
        assert_eq!(mode(&t.path().join("a")), DIRECTORY);
        assert_eq!(mode(&t.path().join("a/b")), DIRECTORY);
        assert_eq!(mode(&path), SECRET);
        assert_eq!(mode(&socket), SOCKET);
        let _client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        listener.accept().unwrap();
        let long = t.path().join("x".repeat(200));
        assert_eq!(listen(&long).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn what_is_open_is_closed_once() {
        let t = tempfile::tempdir().unwrap();
        let set = |name: &str, mode| {
            let path = t.path().join(name);
            if !path.exists() {
                fs::write(&path, "").unwrap();
            }
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        };
        for d in ["data", "data/osd.0"] {
            fs::create_dir(t.path().join(d)).unwrap();
            set(d, 0o755);
        }
        set("data/osd.0/block", 0o644);
        set("data/keyring", 0o640);
        set("data/ceph.conf", 0o644);
        set("outside", 0o644);
        std::os::unix::fs::symlink(t.path().join("outside"), t.path().join("data/link")).unwrap();
        let root = t.path().join("data");
        let mut mended = mend(&root).unwrap();
        mended.sort_by(|a, b| a.path.cmp(&b.path));
        let mended: Vec<_> = mended
            .iter()
            .map(|m| (m.path.strip_prefix(&root).unwrap().to_str().unwrap(), m.from, m.to))
            .collect();
        let expected = [
            ("", 0o755, 0o750),
            ("ceph.conf", 0o644, 0o640),
            ("osd.0", 0o755, 0o750),
            ("osd.0/block", 0o644, 0o600),
        ];
        assert_eq!(mended, expected);
        assert_eq!(mode(&t.path().join("outside")), 0o644);
        assert_eq!(mode(&root.join("osd.0/block")), SECRET);
        assert!(mend(&root).unwrap().is_empty());
    }
}
