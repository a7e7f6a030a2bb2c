//! What a metadata server knows of files: plain values, in no form of Ceph's. The shell translates
//! between these and Ceph's encodings (16.2: `mds/mdstypes.h`, `include/ceph_fs.h`).

use bytes::Bytes;
use denc::{Decode, Encode};
use denc_derive::Denc;
use std::collections::BTreeMap;
use std::ops::Range;
use types::Utime;

/// The name of an entry in a directory.
pub type Name = Bytes;

/// An inode number.
#[derive(Denc, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Ino(pub u64);

impl Ino {
    /// The root of the file system.
    pub const ROOT: Ino = Ino(1);
    /// The parent of the stray directories of rank 0.
    pub const MDS_DIR: Ino = Ino(0x100);
    /// How many owners can be told apart.
    pub const OWNERS: u16 = types::fsmap::OWN_LOG_RANKS as u16;
    /// How many stray directories a rank has.
    pub const STRAYS: u64 = 10;
    /// Bits of an inode number below the number of its space.
    const SPACE_SHIFT: u32 = 40;

    /// A stray directory of rank 0: unlinked inodes that are in use live there.
    pub const fn stray(i: u64) -> Ino {
        Ino(0x600 + i)
    }

    /// The parent of an owner's stray directories.
    pub const fn mds_dir(rank: Rank) -> Ino {
        Ino(0x100 + rank.0 as u64)
    }

    /// A stray directory of an owner.
    pub const fn stray_of(rank: Rank, i: u64) -> Ino {
        Ino(0x600 + Self::STRAYS * rank.0 as u64 + i)
    }

    /// The owner of the inode, where there are several.
    pub fn owner(self) -> Rank {
        let rank = match self.0 {
            0x100..0x200 => self.0 - 0x100,
            0x600..0x1000 => (self.0 - 0x600) / Self::STRAYS,
            _ => return self.space().owner(),
        };
        Rank(rank as u16)
    }

    /// The space that the number is from. Spaces from [`Space::FIRST`] on belong to subvolumes.
    pub fn space(self) -> Space {
        match self.0.checked_sub(Space::NEAR) {
            Some(at) if at < Space::NEAR_SPACES << Space::NEAR_SHIFT => {
                Space(Space::FIRST.0 + (at >> Space::NEAR_SHIFT) as u16)
            }
            _ => Space((self.0 >> Self::SPACE_SHIFT) as u16),
        }
    }

    /// Whether no client may ask for it by number, or change what it holds.
    pub fn is_system(self) -> bool {
        self.0 < 0x1000 && self != Ino::ROOT
    }

    /// Whether it is a stray directory of some rank.
    pub fn is_stray_dir(self) -> bool {
        (0x600..0x600 + 10 * 0x100).contains(&self.0)
    }
}

/// A space of inode numbers, which is also the tenant of the inodes in it.
#[derive(Denc, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Space(pub u16);

impl Space {
    /// The space of what belongs to no subvolume: stock's numbers of rank 0.
    pub const COMMON: Space = Space(1);
    /// Below the spaces of owners from the second on. `ceph-fuse` takes what is above 48 bits of a
    /// number for something else, so these are ranges of stock's ranks from 128 on.
    const OWNERS: Space = Space(0x80);
    /// The first space of a subvolume, above the ranges of stock's ranks.
    pub const FIRST: Space = Space(0x200);

    /// The space of what an owner makes that belongs to no subvolume.
    pub const fn common(rank: Rank) -> Space {
        if rank.0 == 0 { Space::COMMON } else { Space(Self::OWNERS.0 + rank.0) }
    }

    /// Where numbers of subvolumes begin that `ceph-fuse` understands, how many bits each space
    /// has there, and how many spaces: ranges of stock's ranks from 191 on.
    const NEAR: u64 = 0xc0 << Ino::SPACE_SHIFT;
    const NEAR_SHIFT: u32 = 33;
    const NEAR_SPACES: u64 = 0x40 << (Ino::SPACE_SHIFT - Self::NEAR_SHIFT);

    /// The numbers of a space, in the order in which they are given out. A subvolume's first ones
    /// have 48 bits, as long as there are some.
    pub fn numbers(self) -> impl Iterator<Item = Range<u64>> {
        let near = self.0.checked_sub(Space::FIRST.0).map(u64::from);
        let near = near.filter(|n| *n < Self::NEAR_SPACES).map(|n| {
            let start = Self::NEAR + (n << Self::NEAR_SHIFT);
            start..start + (1 << Self::NEAR_SHIFT)
        });
        let start = u64::from(self.0) << Ino::SPACE_SHIFT;
        near.into_iter().chain(std::iter::once(start..start + (1 << Ino::SPACE_SHIFT)))
    }

    /// The first number of a space.
    pub fn first_number(self) -> u64 {
        self.numbers().next().map_or(0, |r| r.start)
    }

    /// The number that is given out behind this one.
    pub fn number_behind(self, number: u64) -> u64 {
        let mut left = self.numbers().skip_while(|r| !r.contains(&number));
        match left.next() {
            Some(range) if number + 1 == range.end => left.next().map_or(range.end, |r| r.start),
            _ => number + 1,
        }
    }

    /// A number about so far behind this one: it is of the space, or behind all of it.
    pub fn number_after(self, number: u64, n: u64) -> u64 {
        let mut left = self.numbers().skip_while(|r| !r.contains(&number));
        match left.next() {
            Some(range) if range.end - number <= n => left.next().map_or(range.end, |r| r.start),
            _ => number.saturating_add(n),
        }
    }

    /// The owner of a space.
    pub const fn owner(self) -> Rank {
        match self.0.checked_sub(Self::OWNERS.0) {
            Some(rank) if rank < Ino::OWNERS => Rank(rank),
            _ => Rank(0),
        }
    }

    /// The space as a tenant: owners are none.
    pub const fn tenant(self) -> Space {
        if self.owner().0 == 0 { self } else { Space::COMMON }
    }
}

/// An owner of directories: a shard of a process, or a rank.
#[derive(Denc, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Rank(pub u16);

/// What a subvolume is promised by its metadata server.
#[derive(Denc, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[denc(version = 1, compat = 1)]
pub struct Promise {
    /// Thousandths of requests each second at least, 0 for no such promise.
    pub reservation_milli: u64,
    /// Share of what is left, 0 for the usual one.
    pub weight: u32,
    /// Thousandths of requests each second at most, 0 for no limit.
    pub limit_milli: u64,
    /// Counts changes.
    pub version: u64,
}

/// A probability. Values compare by their bits.
#[derive(Denc, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Of a number from 0 to 1; nothing for any other.
    pub fn new(of: f64) -> Option<Chance> {
        (0.0..=1.0).contains(&of).then(|| Chance(of.to_bits()))
    }

    /// As a number.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// A client's global id.
#[derive(Denc, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct ClientId(pub u64);

/// What must survive of a session.
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
pub struct SessionRecord {
    /// Requests that changed something, with the file that was made.
    pub completed: BTreeMap<u64, Ino>,
    /// The client knows the answers of all requests before this one.
    pub oldest_tid: u64,
    /// Flushes of capabilities that are done.
    pub flushes: BTreeMap<u64, ()>,
}

/// A part of a directory's entries by the hashes of their names, with Ceph's number: bits, then
/// value. The whole directory is 0.
#[derive(Denc, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Frag(pub u32);

/// A fragment of a directory: the unit of ownership, and one object at rest.
#[derive(Denc, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct DirFrag {
    /// The directory.
    pub ino: Ino,
    /// Which of its fragments.
    pub frag: Frag,
}

impl DirFrag {
    /// The only fragment of a directory that is not split.
    pub const fn whole(ino: Ino) -> Self {
        DirFrag { ino, frag: Frag(0) }
    }
}

/// Number of a batch of the redo log; they count from 1 without gaps.
#[derive(Denc, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Batch(pub u64);

/// A moment of a monotonic clock, in nanoseconds from any fixed point.
pub type Steady = u64;

/// What a file's data is laid out by (Ceph: `file_layout_t`).
#[derive(Denc, Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Layout {
    /// Bytes of a stripe's part.
    pub stripe_unit: u32,
    /// Objects that a stripe goes over.
    pub stripe_count: u32,
    /// Bytes of an object.
    pub object_size: u32,
    /// The data pool.
    pub pool: i64,
    /// The namespace in it.
    pub namespace: String,
}

impl Layout {
    /// Bytes that a file grows by with one more object in each place of a stripe.
    pub fn period(&self) -> u64 {
        u64::from(self.stripe_count.max(1)) * u64::from(self.object_size.max(1))
    }

    /// Whether Ceph's clients can work with it (`file_layout_t::is_valid`).
    pub fn is_valid(&self) -> bool {
        const UNIT: u32 = 64 << 10;
        self.stripe_unit != 0
            && self.stripe_unit.is_multiple_of(UNIT)
            && self.object_size != 0
            && self.object_size.is_multiple_of(UNIT)
            && self.object_size.is_multiple_of(self.stripe_unit)
            && self.stripe_count != 0
            && self.pool >= 0
    }
}

/// What a directory and all below it may hold; 0 for no limit.
#[derive(Denc, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Quota {
    /// Bytes of files.
    pub max_bytes: u64,
    /// Files and directories.
    pub max_files: u64,
}

impl Quota {
    /// Whether it limits anything.
    pub fn is_set(&self) -> bool {
        self.max_bytes != 0 || self.max_files != 0
    }
}

/// What is directly in a directory (Ceph: `frag_info_t`).
#[derive(Denc, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DirStat {
    /// When an entry was added or removed.
    pub mtime: Utime,
    /// Counts changes.
    pub change_attr: u64,
    /// Entries that are no directories.
    pub files: i64,
    /// Entries that are directories.
    pub subdirs: i64,
}

/// What is in an inode and below it, itself included (Ceph: `nest_info_t`).
#[derive(Denc, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NestStat {
    /// The latest change below.
    pub rctime: Utime,
    /// Bytes of files.
    pub rbytes: i64,
    /// Entries that are no directories.
    pub rfiles: i64,
    /// Directories.
    pub rsubdirs: i64,
}

/// Type bits of a mode.
pub mod mode {
    /// All of them.
    pub const TYPE: u32 = 0o170000;
    /// Directory.
    pub const DIR: u32 = 0o040000;
    /// Regular file.
    pub const FILE: u32 = 0o100000;
    /// Symbolic link.
    pub const SYMLINK: u32 = 0o120000;
    /// The bit that hands a directory's group down.
    pub const SETGID: u32 = 0o2000;
    /// The bits with which a program runs as its owner and its group.
    pub const SETUID_SETGID: u32 = 0o6000;
    /// The bits that let owner, group and others run a file.
    pub const EXECUTE: u32 = 0o111;
}

/// An inode, with all that the server reads or changes of it.
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
#[denc(version = 3, compat = 1)]
pub struct Inode {
    /// Its number.
    pub ino: Ino,
    /// Device of a special file.
    pub rdev: u32,
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that it has.
    pub nlink: u32,
    /// Last change of anything.
    pub ctime: Utime,
    /// Creation.
    pub btime: Utime,
    /// Last change of the data.
    pub mtime: Utime,
    /// Last access.
    pub atime: Utime,
    /// How often times were set backwards.
    pub time_warp_seq: u32,
    /// Counts changes.
    pub change_attr: u64,
    /// A file's layout; a directory's for new files in it, if it has one.
    pub layout: Option<Layout>,
    /// Bytes of data.
    pub size: u64,
    /// The largest size that it ever had.
    pub max_size_ever: u64,
    /// Counts truncations.
    pub truncate_seq: u32,
    /// Size after the last one.
    pub truncate_size: u64,
    /// Size before the last one, while its objects are trimmed.
    pub truncate_from: u64,
    /// Truncations of which objects are trimmed still.
    pub truncate_pending: u32,
    /// Up to where clients may write (Ceph: `client_ranges`).
    pub ranges: BTreeMap<ClientId, u64>,
    /// Of a directory: what is in it.
    pub dirstat: DirStat,
    /// What is in it and below.
    pub rstat: NestStat,
    /// Limits of what is in it and below.
    pub quota: Quota,
    /// Counts changes.
    pub version: u64,
    /// Counts changes of attributes.
    pub xattr_version: u64,
    /// The version at which its place was written to its backtrace last.
    pub backtrace_version: u64,
    /// Target of a symbolic link.
    pub symlink: Bytes,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Bytes>,
    /// The space of the inodes made below, 0 for that of the inode itself.
    pub space: Space,
    /// The rank that a directory is pinned to, -1 for none, off by one: 0 is none.
    pub pin: u32,
    /// What else the shell found at rest. It is kept as it is.
    pub rest: Bytes,
    /// Directories made in it go to all ranks, by a hash
    /// (Ceph: `export_ephemeral_distributed_pin`).
    #[denc(since = 2)]
    pub distributed: bool,
    /// With this chance a directory made below goes to any rank, by a hash
    /// (Ceph: `export_ephemeral_random_pin`).
    #[denc(since = 2)]
    pub random: Chance,
    /// Whether a stock server split the directory.
    #[denc(since = 3)]
    pub split: Split,
}

/// Whether a stock server split a directory: its entries are in several objects then, and `rest`
/// has their names. This server keeps all entries of a directory in one object.
#[derive(Denc, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[denc(repr = "u8")]
pub enum Split {
    /// All entries are in one object.
    #[default]
    No = 0,
    /// They are in several ones.
    Yes = 1,
    /// They were copied to one. The others are removed when the inode goes to rest.
    Joined = 2,
}

impl Inode {
    /// The rank that it is pinned to, -1 for none.
    pub fn pinned(&self) -> i32 {
        self.pin.wrapping_sub(1) as i32
    }

    /// Pins it to a rank; a negative one is none.
    pub fn pin_to(&mut self, rank: i32) {
        self.pin = (rank.max(-1) as u32).wrapping_add(1);
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & mode::TYPE == mode::DIR
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & mode::TYPE == mode::FILE
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.mode & mode::TYPE == mode::SYMLINK
    }

    /// Type of a directory entry (`DT_DIR` and so on).
    pub fn d_type(&self) -> u8 {
        ((self.mode & mode::TYPE) >> 12) as u8
    }
}

/// What a name in a directory stands for at rest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Dentry {
    /// The inode lives here.
    Primary(Box<Inode>),
    /// The inode lives under another name.
    Remote {
        /// Its number.
        ino: Ino,
        /// Its type.
        d_type: u8,
    },
}

impl Encode for Dentry {
    fn encode(&self, out: &mut denc::BytesMut, features: denc::Features) {
        match self {
            Dentry::Primary(inode) => {
                1u8.encode(out, features);
                inode.encode(out, features);
            }
            Dentry::Remote { ino, d_type } => {
                2u8.encode(out, features);
                (*ino, *d_type).encode(out, features);
            }
        }
    }
}

impl Decode for Dentry {
    fn decode(r: &mut denc::Reader) -> denc::Result<Self> {
        match u8::decode(r)? {
            1 => Ok(Dentry::Primary(Box::new(Inode::decode(r)?))),
            2 => {
                let (ino, d_type) = Decode::decode(r)?;
                Ok(Dentry::Remote { ino, d_type })
            }
            found => Err(denc::DecodeError::Invalid { what: "Dentry", found: found.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_of_one_space() {
        let last = Space::FIRST.0 + Space::NEAR_SPACES as u16;
        let spaces = [1, 2, 0x7f, 0x81, 0xbf, 0x200, 0x201, last - 1, last, u16::MAX];
        for space in spaces.map(Space) {
            for range in space.numbers() {
                for number in [range.start, range.start + 1, range.end - 1] {
                    assert_eq!(Ino(number).space(), space, "{number:#x}");
                }
            }
        }
        const { assert!(Space::NEAR + (Space::NEAR_SPACES << Space::NEAR_SHIFT) <= 1 << 48) };
    }

    #[test]
    fn a_subvolume_goes_on_with_larger_numbers() {
        let space = Space::FIRST;
        let ranges: Vec<_> = space.numbers().collect();
        assert_eq!(space.first_number(), ranges[0].start);
        assert!(ranges[0].end <= 1 << 48, "ceph-fuse has no more bits");
        assert_eq!(space.number_behind(ranges[0].start), ranges[0].start + 1);
        assert_eq!(space.number_behind(ranges[0].end - 1), ranges[1].start);
        assert_eq!(space.number_behind(ranges[1].start), ranges[1].start + 1);
        assert_eq!(Space::COMMON.number_behind(1 << 40), (1 << 40) + 1);
        assert_eq!(space.number_after(ranges[0].start, 9), ranges[0].start + 9);
        assert_eq!(space.number_after(ranges[0].end - 9, 9), ranges[1].start);
        assert_eq!(space.number_after(ranges[1].end - 9, 10), ranges[1].end);
    }

    #[test]
    fn owners_have_numbers_of_48_bits() {
        for rank in 0..Ino::OWNERS {
            let space = Space::common(Rank(rank));
            assert_eq!(space.owner(), Rank(rank));
            assert_eq!(Ino(space.first_number()).owner(), Rank(rank));
            assert!(space.numbers().all(|r| r.end <= 1 << 48));
        }
        for space in [2, 0x7f, 0x80, 0xc0, 0x200, u16::MAX] {
            assert_eq!(Space(space).owner(), Rank(0));
        }
    }
}
