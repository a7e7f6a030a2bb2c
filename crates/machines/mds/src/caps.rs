//! Capabilities: what a client may do with an inode without asking, and what excludes what.
//!
//! There are no locks and no lock states. A client's capabilities exclude some of other clients'
//! ([`conflicts`]); what a file's openers want decides which of them each may have ([`Mode`]); and
//! a request that reads or changes something takes back what is in its way ([`Group::read`],
//! [`Group::write`]).

/// The inode stays in the client's cache.
pub const PIN: u32 = 1;
/// Owner and mode may be read.
pub const AUTH_SHARED: u32 = 1 << 2;
/// Owner and mode may be changed.
pub const AUTH_EXCL: u32 = 2 << 2;
/// The number of links may be read.
pub const LINK_SHARED: u32 = 1 << 4;
/// The number of links may be changed.
pub const LINK_EXCL: u32 = 2 << 4;
/// Extended attributes may be read.
pub const XATTR_SHARED: u32 = 1 << 6;
/// Extended attributes may be changed.
pub const XATTR_EXCL: u32 = 2 << 6;
/// Size and times (of a directory: its names) may be read.
pub const FILE_SHARED: u32 = 1 << 8;
/// Size and times may be changed; of a directory: no other client relies on its names.
pub const FILE_EXCL: u32 = 2 << 8;
/// Data may be cached.
pub const FILE_CACHE: u32 = 4 << 8;
/// Data may be read.
pub const FILE_RD: u32 = 8 << 8;
/// Data may be written.
pub const FILE_WR: u32 = 16 << 8;
/// Written data may be kept back.
pub const FILE_BUFFER: u32 = 32 << 8;
/// In masks of requests: recursive statistics. Capabilities of it are never issued.
pub const FILE_WREXTEND: u32 = 64 << 8;
/// Data may be cached without coherence.
pub const FILE_LAZYIO: u32 = 128 << 8;

/// All that are for reading.
pub const ANY_SHARED: u32 = AUTH_SHARED | LINK_SHARED | XATTR_SHARED | FILE_SHARED;
/// All of a file's data, size and times.
pub const ANY_FILE: u32 =
    FILE_SHARED | FILE_EXCL | FILE_CACHE | FILE_RD | FILE_WR | FILE_BUFFER | FILE_LAZYIO;
/// A directory's names, and its times.
pub const NAMES: u32 = FILE_SHARED | FILE_EXCL;
/// All with which a client can have changes that the server does not know.
pub const ANY_DIRTY: u32 = AUTH_EXCL | LINK_EXCL | XATTR_EXCL | FILE_EXCL | FILE_WR | FILE_BUFFER;
/// All.
pub const ALL: u32 = PIN | ANY_SHARED | AUTH_EXCL | LINK_EXCL | XATTR_EXCL | ANY_FILE;

/// What a way of opening a file wants (Ceph: `ceph_caps_for_mode`).
pub fn for_mode(read: bool, write: bool, lazy: bool) -> u32 {
    let mut caps = PIN;
    if read {
        caps |= FILE_SHARED | FILE_RD | FILE_CACHE;
    }
    if write {
        caps |= FILE_EXCL | FILE_WR | FILE_BUFFER;
        caps |= AUTH_SHARED | AUTH_EXCL | XATTR_SHARED | XATTR_EXCL;
    }
    if lazy {
        caps |= FILE_LAZYIO;
    }
    caps
}

/// What no other client may have beside these capabilities. The relation is symmetric.
pub fn conflicts(caps: u32) -> u32 {
    const FILE: [(u32, u32); 6] = [
        (FILE_SHARED, FILE_EXCL | FILE_WR | FILE_BUFFER),
        (FILE_EXCL, FILE_SHARED | FILE_EXCL | FILE_CACHE | FILE_RD | FILE_WR | FILE_BUFFER),
        (FILE_CACHE, FILE_EXCL | FILE_WR | FILE_BUFFER),
        (FILE_RD, FILE_EXCL | FILE_BUFFER),
        (FILE_WR, FILE_SHARED | FILE_EXCL | FILE_CACHE | FILE_BUFFER),
        (FILE_BUFFER, FILE_SHARED | FILE_EXCL | FILE_CACHE | FILE_RD | FILE_WR | FILE_BUFFER),
    ];
    let mut out = 0;
    for (shared, excl) in
        [(AUTH_SHARED, AUTH_EXCL), (LINK_SHARED, LINK_EXCL), (XATTR_SHARED, XATTR_EXCL)]
    {
        if caps & shared != 0 {
            out |= excl;
        }
        if caps & excl != 0 {
            out |= shared | excl;
        }
    }
    for (bit, others) in FILE {
        if caps & bit != 0 {
            out |= others;
        }
    }
    out
}

/// What belongs together: a request reads or changes whole groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Group {
    /// Owner and mode.
    Auth,
    /// Number of links.
    Link,
    /// Extended attributes.
    Xattr,
    /// Size, times and data; of a directory: its names.
    File,
}

impl Group {
    /// All.
    pub const ALL: [Group; 4] = [Group::Auth, Group::Link, Group::Xattr, Group::File];

    /// Its capability for reading.
    pub fn shared(self) -> u32 {
        match self {
            Group::Auth => AUTH_SHARED,
            Group::Link => LINK_SHARED,
            Group::Xattr => XATTR_SHARED,
            Group::File => FILE_SHARED,
        }
    }

    /// Its capability for changing.
    pub fn excl(self) -> u32 {
        self.shared() << 1
    }

    /// What other clients may not have while a request reads it: the server's values are the
    /// newest then.
    pub fn read(self) -> u32 {
        conflicts(self.shared())
    }

    /// What clients may not have while a request changes it.
    pub fn write(self) -> u32 {
        match self {
            Group::File => FILE_SHARED | FILE_EXCL | FILE_CACHE | FILE_RD | FILE_WR | FILE_BUFFER,
            _ => self.shared() | self.excl(),
        }
    }
}

/// How the openers of a file share it. It follows from what they want.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// No opener writes: all may read and cache.
    Shared,
    /// One opener writes, and there is no other: it may cache and buffer.
    Exclusive,
    /// Writers and other openers: data goes to the OSDs and comes from there.
    Mixed,
}

impl Mode {
    /// The mode for openers that want this.
    pub fn of(wanted: impl Iterator<Item = u32>) -> Mode {
        let (mut openers, mut writers) = (0, 0);
        for w in wanted {
            if w & (FILE_RD | FILE_CACHE | FILE_WR | FILE_BUFFER) != 0 {
                openers += 1;
            }
            if w & (FILE_WR | FILE_BUFFER) != 0 {
                writers += 1;
            }
        }
        match (writers, openers) {
            (0, _) => Mode::Shared,
            (1, 1) => Mode::Exclusive,
            _ => Mode::Mixed,
        }
    }

    /// What of [`ANY_FILE`] a client may have that wants this.
    pub fn allows(self, wanted: u32) -> u32 {
        match self {
            Mode::Shared => FILE_SHARED | FILE_CACHE | FILE_RD | FILE_LAZYIO,
            Mode::Exclusive if wanted & (FILE_WR | FILE_BUFFER) != 0 => ANY_FILE,
            Mode::Exclusive => 0,
            Mode::Mixed => FILE_RD | FILE_LAZYIO | wanted & FILE_WR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_are_mutual() {
        for a in 0..16 {
            for b in 0..16 {
                let (a, b) = (1u32 << a, 1u32 << b);
                assert_eq!(conflicts(a) & b != 0, conflicts(b) & a != 0, "{a:x} {b:x}");
            }
        }
    }

    #[test]
    fn what_a_mode_allows_two_clients_does_not_conflict() {
        let read = for_mode(true, false, false);
        let write = for_mode(false, true, false);
        let both = for_mode(true, true, false);
        for wants in [
            vec![read, read],
            vec![read, write],
            vec![write, write],
            vec![both, 0],
            vec![write, read, 0],
            vec![0, 0],
        ] {
            let mode = Mode::of(wants.iter().copied());
            for (i, a) in wants.iter().enumerate() {
                for b in &wants[i + 1..] {
                    assert_eq!(conflicts(mode.allows(*a)) & mode.allows(*b), 0, "{mode:?}");
                }
            }
        }
    }
}
