//! Rows of a directory object's omap: one for each entry, and for each entry that only snapshots
//! have.

use crate::ids::Ino;
use crate::inode::InodeStore;
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use types::SnapId;

/// What an entry leads to.
#[derive(Clone, PartialEq, Debug)]
pub enum Link {
    /// The inode itself.
    Primary {
        /// The encrypted name in full, where it is too long for one.
        alternate_name: Bytes,
        /// The inode.
        store: Box<InodeStore>,
    },
    /// An inode that has its first name elsewhere: a hard link.
    Remote {
        /// Its number.
        ino: Ino,
        /// Its kind, as `d_type`.
        d_type: u8,
        /// As for [`Link::Primary`].
        alternate_name: Bytes,
    },
}

/// The value of a row (Ceph 16.2: `CDir::_omap_commit_ops`, `mds/CDir.cc`): the first snapshot, a
/// tag, then for `i` version 2 of alternate name and `InodeStore`, for `l` version 2 of a hard
/// link. The tags `I` and `L` of older releases are read.
#[derive(Clone, PartialEq, Debug)]
pub struct Dentry {
    /// The first snapshot for which the row stands; the key has the last one.
    pub first: SnapId,
    /// What it leads to.
    pub link: Link,
}

impl Encode for Dentry {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.first.encode(out, f);
        match &self.link {
            Link::Primary { alternate_name, store } => {
                out.put_u8(b'i');
                envelope(out, 2, 1, |out| {
                    alternate_name.encode(out, f);
                    store.encode(out, f);
                });
            }
            Link::Remote { ino, d_type, alternate_name } => {
                out.put_u8(b'l');
                envelope(out, 2, 1, |out| {
                    ino.encode(out, f);
                    d_type.encode(out, f);
                    alternate_name.encode(out, f);
                });
            }
        }
    }
}

impl Decode for Dentry {
    fn decode(r: &mut Reader) -> Result<Self> {
        let first = r.get()?;
        let link = match r.get::<u8>()? {
            b'i' => {
                let (struct_v, mut r) = r.envelope("primary dentry", 2)?;
                let alternate_name = if struct_v >= 2 { r.get()? } else { Bytes::new() };
                Link::Primary { alternate_name, store: r.get()? }
            }
            b'I' => Link::Primary {
                alternate_name: Bytes::new(),
                store: Box::new(InodeStore::decode_bare(r)?),
            },
            b'l' => {
                let (struct_v, mut r) = r.envelope("remote dentry", 2)?;
                let (ino, d_type) = (r.get()?, r.get()?);
                let alternate_name = if struct_v >= 2 { r.get()? } else { Bytes::new() };
                Link::Remote { ino, d_type, alternate_name }
            }
            b'L' => Link::Remote { ino: r.get()?, d_type: r.get()?, alternate_name: Bytes::new() },
            tag => return Err(DecodeError::Invalid { what: "tag of a dentry", found: tag.into() }),
        };
        Ok(Dentry { first, link })
    }
}

/// The key of an entry's row: the name, and the last snapshot for which it stands (Ceph:
/// `dentry_key_t`, `mds/mdstypes.h`).
pub fn dentry_key(name: &[u8], last: SnapId) -> Bytes {
    let last = match last {
        SnapId::NOSNAP => "head".to_owned(),
        SnapId(n) => format!("{n:x}"),
    };
    [name, b"_", last.as_bytes()].concat().into()
}

/// The name and last snapshot of a key; `None` if it is no entry's.
pub fn parse_dentry_key(key: &[u8]) -> Option<(Bytes, SnapId)> {
    let at = key.iter().rposition(|&b| b == b'_')?;
    let last = match &key[at + 1..] {
        b"head" => SnapId::NOSNAP,
        hex => SnapId(u64::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?),
    };
    Some((Bytes::copy_from_slice(&key[..at]), last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Inode;

    #[test]
    fn keys_return() {
        for (name, last, key) in [
            ("a", SnapId::NOSNAP, "a_head"),
            ("a_b", SnapId(0x1f), "a_b_1f"),
            ("", SnapId::NOSNAP, "_head"),
            ("x_head", SnapId::NOSNAP, "x_head_head"),
        ] {
            assert_eq!(dentry_key(name.as_bytes(), last), key);
            assert_eq!(parse_dentry_key(key.as_bytes()), Some((name.to_owned().into(), last)));
        }
        for bad in ["", "a", "a_", "a_xyz"] {
            assert_eq!(parse_dentry_key(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn old_forms_are_read() {
        let store = InodeStore {
            inode: Inode { ino: Ino(7), mode: 0o120_777, ..Inode::default() },
            symlink: "target".into(),
            ..InodeStore::default()
        };
        let new = Dentry {
            first: SnapId(2),
            link: Link::Primary { alternate_name: Bytes::new(), store: Box::new(store) },
        };
        let bytes = new.to_bytes(Features::ALL);
        assert_eq!(Dentry::from_bytes(&bytes).unwrap(), new);
        // Without the two envelopes and the alternate name.
        let mut old = vec![2, 0, 0, 0, 0, 0, 0, 0, b'I'];
        old.extend(&bytes[9 + 6 + 4 + 6..]);
        assert_eq!(Dentry::from_bytes(&old.into()).unwrap(), new);
        let old: Vec<u8> =
            [&[2u8, 0, 0, 0, 0, 0, 0, 0, b'L'][..], &9u64.to_le_bytes(), &[8]].concat();
        let link = Link::Remote { ino: Ino(9), d_type: 8, alternate_name: Bytes::new() };
        let back = Dentry::from_bytes(&old.into()).unwrap();
        assert_eq!(back, Dentry { first: SnapId(2), link });
        assert_eq!(Dentry::from_bytes(&back.to_bytes(Features::ALL)).unwrap(), back);
    }
}
