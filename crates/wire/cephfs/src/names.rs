//! Names of objects.

use crate::ids::{Frag, Ino};
use bytes::Bytes;

/// The table of snapshots, in the metadata pool.
pub const SNAPTABLE: &str = "mds_snaptable";

/// The object of a directory's fragment (Ceph: `InodeStoreBase::get_object_name`).
pub fn dirfrag(ino: Ino, frag: Frag) -> Bytes {
    format!("{:x}.{:08x}", ino.0, frag.0).into()
}

/// Object `number` of a file's data or of a journal.
pub fn data(ino: Ino, number: u64) -> Bytes {
    format!("{:x}.{number:08x}", ino.0).into()
}

/// The object of an inode that is in no directory.
pub fn base_inode(ino: Ino) -> Bytes {
    format!("{:x}.{:08x}.inode", ino.0, 0).into()
}

/// A rank's table of free inode numbers.
pub fn inotable(rank: u32) -> Bytes {
    format!("mds{rank}_inotable").into()
}

/// A rank's sessions.
pub fn sessionmap(rank: u32) -> Bytes {
    format!("mds{rank}_sessionmap").into()
}

/// Object `number` of a rank's list of open files, which speeds up a stock server's start.
pub fn openfiles(rank: u32, number: u32) -> Bytes {
    format!("mds{rank}_openfiles.{number}").into()
}

/// The inode and number of an object of [`dirfrag`] or [`data`].
pub fn parse_data(name: &[u8]) -> Option<(Ino, u64)> {
    let (ino, number) = std::str::from_utf8(name).ok()?.split_once('.')?;
    let hex = |s: &str| match s.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => u64::from_str_radix(s, 16).ok(),
        false => None,
    };
    Some((Ino(hex(ino)?), hex(number)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_ceph() {
        assert_eq!(dirfrag(Ino::ROOT, Frag::ROOT), "1.00000000");
        assert_eq!(dirfrag(Ino(0x100_0000_01f6), Frag::ROOT.child(1, 1)), "100000001f6.01800000");
        assert_eq!(base_inode(Ino::mds_dir(0)), "100.00000000.inode");
        assert_eq!(data(Ino::log(0), 1), "200.00000001");
        assert_eq!(inotable(2), "mds2_inotable");
        assert_eq!(parse_data(b"100000001f6.0000000a"), Some((Ino(0x100_0000_01f6), 10)));
        for bad in ["", "1", "x.0", "1.+2", "mds0_inotable", "1.00000000.inode"] {
            assert_eq!(parse_data(bad.as_bytes()), None, "{bad}");
        }
    }
}
