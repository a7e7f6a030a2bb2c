//! How a file is cut into objects, and how a directory's names are hashed.

use bytes::{BufMut, BytesMut};
use denc::{Decode, Encode, Features, Reader, Result, envelope};

/// A file's layout (Ceph: `file_layout_t`, `include/fs_types.h`, version 2). Decoding takes the
/// form before it ([`FileLayout::encode_legacy`]), too, which begins with a zero byte.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileLayout {
    /// Bytes of a stripe unit.
    pub stripe_unit: u32,
    /// Objects that a stripe goes over.
    pub stripe_count: u32,
    /// Bytes of an object at most.
    pub object_size: u32,
    /// The pool; -1 is none.
    pub pool: i64,
    /// Namespace in the pool.
    pub namespace: String,
}

impl Default for FileLayout {
    fn default() -> Self {
        FileLayout {
            stripe_unit: 0,
            stripe_count: 0,
            object_size: 0,
            pool: -1,
            namespace: String::new(),
        }
    }
}

impl FileLayout {
    /// Stripe units are multiples of this many bytes (Ceph: `CEPH_MIN_STRIPE_UNIT`).
    pub const STRIPE_UNIT_MIN: u32 = 65536;

    /// The layout of new file systems: objects of 4 MiB, one after the other.
    pub fn of_pool(pool: i64) -> FileLayout {
        FileLayout {
            stripe_unit: 4 << 20,
            stripe_count: 1,
            object_size: 4 << 20,
            pool,
            ..FileLayout::default()
        }
    }

    /// Whether files can have the layout (Ceph: `file_layout_t::is_valid`).
    pub fn is_valid(&self) -> bool {
        let unit = Self::STRIPE_UNIT_MIN;
        self.stripe_unit > 0
            && self.stripe_unit.is_multiple_of(unit)
            && self.object_size > 0
            && self.object_size.is_multiple_of(self.stripe_unit)
            && self.stripe_count > 0
    }

    /// Bytes of a whole set of objects.
    pub fn period(&self) -> u64 {
        u64::from(self.stripe_count) * u64::from(self.object_size)
    }

    /// The form of messages and of a journal's header (Ceph: `ceph_file_layout`,
    /// `include/ceph_fs.h`; plain). The namespace is not in it.
    pub fn encode_legacy(&self, out: &mut BytesMut) {
        out.put_u32_le(self.stripe_unit);
        out.put_u32_le(self.stripe_count);
        out.put_u32_le(self.object_size);
        out.put_bytes(0, 12); // hash, unit of parity, preferred primary
        out.put_u32_le(u32::try_from(self.pool).unwrap_or(0));
    }

    /// Reads the form of [`Self::encode_legacy`].
    pub fn decode_legacy(r: &mut Reader) -> Result<Self> {
        let (stripe_unit, stripe_count, object_size) = (r.get()?, r.get()?, r.get()?);
        r.skip("ceph_file_layout", 12)?;
        let pool = i64::from(r.get::<i32>()?);
        let empty = (stripe_unit, stripe_count, object_size, pool) == (0, 0, 0, 0);
        let pool = if empty { -1 } else { pool };
        Ok(FileLayout { stripe_unit, stripe_count, object_size, pool, namespace: String::new() })
    }
}

impl Encode for FileLayout {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 2, 2, |out| {
            self.stripe_unit.encode(out, f);
            self.stripe_count.encode(out, f);
            self.object_size.encode(out, f);
            self.pool.encode(out, f);
            self.namespace.encode(out, f);
        });
    }
}

impl Decode for FileLayout {
    fn decode(r: &mut Reader) -> Result<Self> {
        if r.peek().first() == Some(&0) {
            return Self::decode_legacy(r);
        }
        let (_, mut r) = r.envelope("file_layout_t", 2)?;
        Ok(FileLayout {
            stripe_unit: r.get()?,
            stripe_count: r.get()?,
            object_size: r.get()?,
            pool: r.get()?,
            namespace: r.get()?,
        })
    }
}

/// How a directory's names are hashed (Ceph: `ceph_dir_layout`, `include/ceph_fs.h`; plain).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DirLayout {
    /// The function: see [`types::hash`]. Files have 0.
    pub hash: u8,
}

impl DirLayout {
    /// The layout of every new directory (Ceph: `mds_default_dir_hash`).
    pub const DEFAULT: DirLayout = DirLayout { hash: types::hash::RJENKINS };
}

impl Encode for DirLayout {
    fn encode(&self, out: &mut BytesMut, _: Features) {
        out.put_u8(self.hash);
        out.put_bytes(0, 7);
    }
}

impl Decode for DirLayout {
    fn decode(r: &mut Reader) -> Result<Self> {
        let hash = r.get()?;
        r.skip("ceph_dir_layout", 7)?;
        Ok(DirLayout { hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let layout = FileLayout { stripe_count: 2, ..FileLayout::of_pool(3) };
        let mut out = BytesMut::new();
        layout.encode_legacy(&mut out);
        assert_eq!(out.len(), 28);
        assert_eq!(FileLayout::from_bytes(&out.freeze()).unwrap(), layout);
        let named = FileLayout { namespace: "ns".into(), ..layout };
        assert_eq!(FileLayout::from_bytes(&named.to_bytes(Features::ALL)).unwrap(), named);
        let mut out = BytesMut::new();
        FileLayout::default().encode_legacy(&mut out);
        assert_eq!(FileLayout::from_bytes(&out.freeze()).unwrap().pool, -1);
    }

    #[test]
    fn layouts_are_checked() {
        assert!(FileLayout::of_pool(1).is_valid());
        for bad in [
            FileLayout::default(),
            FileLayout { stripe_unit: 4096, ..FileLayout::of_pool(1) },
            FileLayout { object_size: 6 << 20, ..FileLayout::of_pool(1) },
            FileLayout { stripe_count: 0, ..FileLayout::of_pool(1) },
        ] {
            assert!(!bad.is_valid(), "{bad:?}");
        }
    }
}
