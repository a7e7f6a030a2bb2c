//! Inode numbers, and the fragments that a directory's entries are divided into.

use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result};
use denc_derive::Denc;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

/// An inode number (Ceph: `inodeno_t`, `include/fs_types.h`). Shown as Ceph shows it: hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Denc)]
pub struct Ino(pub u64);

/// Ranks that a file system can have (Ceph: `MAX_MDS`, `mds/mdstypes.h`).
const RANKS_MAX: u64 = 0x100;
/// Stray directories of a rank (Ceph: `NUM_STRAY`).
pub const STRAY_DIRS: u64 = 10;

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
    /// The realm that snapshots of renamed and linked inodes belong to.
    pub const GLOBAL_SNAPREALM: Ino = Ino(3);
    /// Where repair tools put what they find.
    pub const LOST_AND_FOUND: Ino = Ino(4);
    /// The first number that is no system inode's.
    const SYSTEM_END: u64 = 6 * RANKS_MAX + RANKS_MAX * STRAY_DIRS;

    /// The directory of a rank's own directories.
    pub const fn mds_dir(rank: u32) -> Ino {
        Ino(RANKS_MAX + rank as u64)
    }

    /// A rank's journal.
    pub const fn log(rank: u32) -> Ino {
        Ino(2 * RANKS_MAX + rank as u64)
    }

    /// A rank's journal while it is rewritten.
    pub const fn log_backup(rank: u32) -> Ino {
        Ino(3 * RANKS_MAX + rank as u64)
    }

    /// The pointer to a rank's journal.
    pub const fn log_pointer(rank: u32) -> Ino {
        Ino(4 * RANKS_MAX + rank as u64)
    }

    /// The journal of what a rank has to delete.
    pub const fn purge_queue(rank: u32) -> Ino {
        Ino(5 * RANKS_MAX + rank as u64)
    }

    /// A rank's stray directory `index`, below [`STRAY_DIRS`].
    pub const fn stray(rank: u32, index: u32) -> Ino {
        Ino(6 * RANKS_MAX + rank as u64 * STRAY_DIRS + index as u64)
    }

    /// Whether the inode is a rank's own directory.
    pub const fn is_mds_dir(self) -> bool {
        self.0 >= RANKS_MAX && self.0 < 2 * RANKS_MAX
    }

    /// Whether the inode is a stray directory.
    pub const fn is_stray(self) -> bool {
        self.0 >= 6 * RANKS_MAX && self.0 < Self::SYSTEM_END
    }

    /// The rank that a stray directory belongs to.
    pub const fn stray_owner(self) -> Option<u32> {
        match self.is_stray() {
            true => Some(((self.0 - 6 * RANKS_MAX) / STRAY_DIRS) as u32),
            false => None,
        }
    }

    /// Whether the inode is in no directory: its record has an object of its own.
    pub const fn is_base(self) -> bool {
        self.0 == Self::ROOT.0 || self.0 == Self::GLOBAL_SNAPREALM.0 || self.is_mds_dir()
    }

    /// Whether clients have no business with the inode.
    pub const fn is_private(self) -> bool {
        self.0 >= RANKS_MAX && self.0 < Self::SYSTEM_END
    }

    /// The numbers that a new rank starts with: first and how many (Ceph: `InoTable::reset_state`).
    pub const fn range_of(rank: u32) -> (u64, u64) {
        ((rank as u64 + 1) << 40, 1 << 40)
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A part of a directory: the entries with hashes that begin alike (Ceph: `frag_t`,
/// `include/frag.h`). The upper byte counts the bits, the lower three have them, left-aligned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Denc)]
pub struct Frag(pub u32);

impl Frag {
    /// The whole directory.
    pub const ROOT: Frag = Frag(0);
    /// Bits that a fragment can have.
    pub const BITS_MAX: u32 = 24;
    const VALUE: u32 = 0xff_ffff;

    /// The fragment of `bits` bits that are the upper bits of the 24-bit `value`.
    pub const fn new(bits: u32, value: u32) -> Frag {
        Frag(bits << 24 | value & Self::mask_of(bits))
    }

    const fn mask_of(bits: u32) -> u32 {
        match bits {
            0 => 0,
            1..=23 => Self::VALUE << (Self::BITS_MAX - bits) & Self::VALUE,
            _ => Self::VALUE,
        }
    }

    /// How many bits.
    pub const fn bits(self) -> u32 {
        self.0 >> 24
    }

    /// The bits, as the upper ones of 24.
    pub const fn value(self) -> u32 {
        self.0 & Self::VALUE
    }

    /// Whether the fragment has a shape that Ceph writes.
    pub const fn is_valid(self) -> bool {
        self.bits() <= Self::BITS_MAX && self.value() & !Self::mask_of(self.bits()) == 0
    }

    /// Whether an entry with this hash is in the fragment.
    pub const fn contains(self, hash: u32) -> bool {
        hash & Self::mask_of(self.bits()) == self.value()
    }

    /// Whether all entries of `other` are in this fragment.
    pub const fn covers(self, other: Frag) -> bool {
        other.bits() >= self.bits() && self.contains(other.value())
    }

    /// Part `index` of the fragment when it is split by `by` bits.
    pub const fn child(self, index: u32, by: u32) -> Frag {
        let bits = self.bits() + by;
        Frag::new(bits, self.value() | index << (Self::BITS_MAX - bits))
    }

    /// The fragment with one bit less.
    pub const fn parent(self) -> Option<Frag> {
        match self.bits() {
            0 => None,
            bits => Some(Frag::new(bits - 1, self.value())),
        }
    }
}

impl Ord for Frag {
    /// By value, then bits: the order in which maps of fragments are written.
    fn cmp(&self, other: &Self) -> Ordering {
        (self.value(), self.bits()).cmp(&(other.value(), other.bits()))
    }
}
impl PartialOrd for Frag {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Frag {
    /// The bits and a star, as Ceph writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for bit in 0..self.bits().min(Self::BITS_MAX) {
            let set = self.value() & 1 << (Self::BITS_MAX - 1 - bit) != 0;
            f.write_str(if set { "1" } else { "0" })?;
        }
        f.write_str("*")
    }
}
impl fmt::Debug for Frag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How a directory is divided: fragments that are split, and by how many bits (Ceph: `fragtree_t`,
/// `include/frag.h`). A directory without splits is one fragment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FragTree(pub BTreeMap<Frag, u32>);

impl FragTree {
    /// The fragment that an entry with this hash is in.
    pub fn find(&self, hash: u32) -> Frag {
        let mut at = Frag::ROOT;
        while let Some(&by) = self.0.get(&at) {
            let below = Frag::BITS_MAX - (at.bits() + by);
            let index = (hash & Frag::VALUE) >> below & ((1 << by) - 1);
            at = at.child(index, by);
        }
        at
    }

    /// All fragments that are not split, in the order of hashes.
    pub fn leaves(&self) -> Vec<Frag> {
        let mut found = Vec::new();
        let mut left = vec![Frag::ROOT];
        while let Some(at) = left.pop() {
            match self.0.get(&at) {
                Some(&by) => left.extend((0..1 << by).rev().map(|i| at.child(i, by))),
                None => found.push(at),
            }
        }
        found
    }
}

impl Encode for FragTree {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.0.encode(out, f);
    }
}

impl Decode for FragTree {
    /// A split that leads beyond 24 bits, or by so many bits that its parts could not be listed, is
    /// refused: [`Self::find`] and [`Self::leaves`] rely on that.
    fn decode(r: &mut Reader) -> Result<Self> {
        let splits: BTreeMap<Frag, u32> = r.get()?;
        for (frag, by) in &splits {
            if !frag.is_valid() {
                return Err(DecodeError::Invalid { what: "frag_t", found: frag.0.into() });
            }
            let fits = (1..=8).contains(by) && frag.bits() + by <= Frag::BITS_MAX;
            if !fits {
                return Err(DecodeError::Invalid {
                    what: "split of a frag_t",
                    found: (*by).into(),
                });
            }
        }
        Ok(FragTree(splits))
    }
}

/// A fragment of a directory (Ceph: `dirfrag_t`, `mds/mdstypes.h`; plain).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Denc)]
pub struct DirFrag {
    /// The directory.
    pub ino: Ino,
    /// Which part of it.
    pub frag: Frag,
}

impl fmt::Display for DirFrag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.frag {
            Frag::ROOT => write!(f, "{}", self.ino),
            frag => write!(f, "{}.{frag}", self.ino),
        }
    }
}
impl fmt::Debug for DirFrag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The hash of an entry's name, by which entries are ordered and divided (Ceph: `ceph_str_hash`
/// with `CEPH_STR_HASH_RJENKINS`, the `dir_layout` of every new directory). Only its lower 24 bits
/// order.
pub fn dentry_hash(name: &[u8]) -> u32 {
    types::hash::rjenkins(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_inodes_have_their_places() {
        assert_eq!(Ino::mds_dir(0), Ino(0x100));
        assert_eq!(Ino::log(1), Ino(0x201));
        assert_eq!(Ino::log_pointer(0), Ino(0x400));
        assert_eq!(Ino::purge_queue(0), Ino(0x500));
        assert_eq!(Ino::stray(1, 2), Ino(0x60c));
        assert_eq!(Ino::stray(3, 9).stray_owner(), Some(3));
        assert!(Ino::ROOT.is_base() && Ino::mds_dir(4).is_base() && !Ino::stray(0, 0).is_base());
        assert_eq!(Ino::range_of(0).0, 0x100_0000_0000);
        assert!(!Ino(0x1000).is_private());
        assert!(Ino(0x600 + 2559).is_private());
    }

    #[test]
    fn fragments_divide_all_hashes() {
        let half = Frag::ROOT.child(1, 1);
        assert_eq!(half, Frag(0x0180_0000));
        assert_eq!(half.to_string(), "1*");
        assert_eq!(half.child(2, 2).parent().unwrap().parent(), Some(half));
        let tree = FragTree([(Frag::ROOT, 1), (half, 3)].into());
        let leaves = tree.leaves();
        assert_eq!(leaves.len(), 9);
        for hash in (0..0x100_0000u32).step_by(4099).chain([0xff_ffff, 0xff12_3456]) {
            let found: Vec<&Frag> = leaves.iter().filter(|l| l.contains(hash)).collect();
            assert_eq!(found, [&tree.find(hash)], "{hash:x}");
        }
        assert!(leaves.is_sorted());
    }

    #[test]
    fn splits_that_lead_nowhere_are_refused() {
        for (frag, by) in
            [(Frag(0), 0u32), (Frag(0), 25), (Frag(0x17ff_ffff), 8), (Frag(0x0100_0001), 1)]
        {
            let bytes = BTreeMap::from([(frag, by)]).to_bytes(Features::ALL);
            assert!(FragTree::from_bytes(&bytes).is_err(), "{frag:?} {by}");
        }
        let deep = FragTree([(Frag::ROOT, 8), (Frag::new(8, 0), 8), (Frag::new(16, 0), 8)].into());
        let back = FragTree::from_bytes(&deep.to_bytes(Features::ALL)).unwrap();
        assert_eq!(back.find(0), Frag::new(24, 0));
        assert_eq!(back.find(0xffff_ffff), Frag::new(8, 0xff_0000));
    }
}
