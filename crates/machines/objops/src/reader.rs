//! Reading objects: what op execution needs of the store.

use bytes::Bytes;
use denc::crc::Sum;
use types::errno::Errno;

/// Attribute that holds the object info (Ceph: `OI_ATTR`).
pub const OI_ATTR: &[u8] = b"_";
/// Attribute of a head that holds its snap set (Ceph: `SS_ATTR`).
pub const SS_ATTR: &[u8] = b"snapset";

/// A page of omap rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OmapRows {
    /// Rows in key order.
    pub rows: Vec<(Bytes, Bytes)>,
    /// There are rows after the last one.
    pub more: bool,
}

/// Reads objects of one PG by store key. Everything submitted before is visible. An absent object
/// is ENOENT, a damaged one EIO.
#[allow(async_fn_in_trait, reason = "everything stays on one thread, so no Send bound is wanted")]
pub trait ObjectReader {
    /// Bytes of a range, cut at the object's end; holes read as zeros.
    async fn read(&self, key: &Bytes, offset: u64, length: u64) -> Result<Vec<Bytes>, Errno> {
        Ok(self.read_summed(key, offset, length).await?.0)
    }

    /// The same with the checksum of the bytes, if reading them has told.
    async fn read_summed(
        &self,
        key: &Bytes,
        offset: u64,
        length: u64,
    ) -> Result<(Vec<Bytes>, Option<Sum>), Errno>;

    /// Allocated ranges `(offset, length)` within a range, ascending, cut at the object's end.
    async fn extents(
        &self,
        key: &Bytes,
        offset: u64,
        length: u64,
    ) -> Result<Vec<(u64, u64)>, Errno>;

    /// One attribute; ENODATA if the object has none of that name.
    async fn attr(&self, key: &Bytes, name: &[u8]) -> Result<Bytes, Errno>;

    /// All attributes by name.
    async fn attrs(&self, key: &Bytes) -> Result<Vec<(Bytes, Bytes)>, Errno>;

    /// The omap header; empty if there is none.
    async fn omap_header(&self, key: &Bytes) -> Result<Bytes, Errno>;

    /// The rows with these keys that exist, in key order.
    async fn omap_get(&self, key: &Bytes, names: Vec<Bytes>) -> Result<Vec<(Bytes, Bytes)>, Errno>;

    /// Rows from `start` on (after it, unless `inclusive`): at most `max_rows`, and no further row
    /// once `max_bytes` of keys and values were collected.
    async fn omap_list(
        &self,
        key: &Bytes,
        start: &Bytes,
        inclusive: bool,
        max_rows: usize,
        max_bytes: usize,
    ) -> Result<OmapRows, Errno>;
}
