//! The vocabulary of the store's interface.

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

/// Bytes in a block: the unit of allocation, of checksums and of device I/O.
pub const BLOCK: u64 = 4096;

/// A collection: a small number that the caller chooses and the store does not interpret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Coll(pub u64);

impl std::fmt::Display for Coll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "coll.{:x}", self.0)
    }
}

/// The name of an object inside its collection, ordered by `memcmp`.
pub type Key = Bytes;

/// A list of reference-counted slices that together are one run of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffers(SmallVec<[Bytes; 1]>);

impl Buffers {
    /// No bytes.
    pub fn new() -> Buffers {
        Buffers::default()
    }

    /// Total length in bytes.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|b| b.len() as u64).sum()
    }

    /// True when there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Bytes::is_empty)
    }

    /// Appends a slice without copying it.
    pub fn push(&mut self, b: Bytes) {
        if !b.is_empty() {
            self.0.push(b);
        }
    }

    /// The part `[off, off + len)`, without copying; shorter if there is not that much.
    pub fn slice(&self, off: u64, len: u64) -> Buffers {
        let (mut skip, mut left) = (off, len);
        let mut out = Buffers::new();
        for b in &self.0 {
            let n = b.len() as u64;
            let from = skip.min(n);
            skip -= from;
            let take = (n - from).min(left);
            left -= take;
            out.push(b.slice(from as usize..(from + take) as usize));
        }
        out
    }

    /// The slices in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Bytes> {
        self.0.iter()
    }

    /// The slices as a vector, without copying the bytes.
    pub fn into_vec(self) -> Vec<Bytes> {
        self.0.into_vec()
    }

    /// All bytes as one slice; copies only when there is more than one slice.
    pub fn to_bytes(&self) -> Bytes {
        match self.0.as_slice() {
            [] => Bytes::new(),
            [one] => one.clone(),
            many => {
                let mut out = BytesMut::with_capacity(self.len() as usize);
                for b in many {
                    out.extend_from_slice(b);
                }
                out.freeze()
            }
        }
    }
}

impl From<Bytes> for Buffers {
    fn from(b: Bytes) -> Buffers {
        let mut out = Buffers::new();
        out.push(b);
        out
    }
}

impl From<Vec<Bytes>> for Buffers {
    fn from(v: Vec<Bytes>) -> Buffers {
        v.into_iter().collect()
    }
}

impl From<Vec<u8>> for Buffers {
    fn from(v: Vec<u8>) -> Buffers {
        Bytes::from(v).into()
    }
}

impl From<&'static [u8]> for Buffers {
    fn from(v: &'static [u8]) -> Buffers {
        Bytes::from_static(v).into()
    }
}

impl FromIterator<Bytes> for Buffers {
    fn from_iter<T: IntoIterator<Item = Bytes>>(iter: T) -> Buffers {
        let mut out = Buffers::new();
        for b in iter {
            out.push(b);
        }
        out
    }
}

impl IntoIterator for Buffers {
    type Item = Bytes;
    type IntoIter = smallvec::IntoIter<[Bytes; 1]>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// What the writer knows about the future of the bytes it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WriteHint {
    /// Nothing in particular.
    #[default]
    Normal,
    /// Will not be read soon: do not keep the bytes in the cache.
    DontNeed,
    /// Will be read soon: keep the bytes in the cache.
    WillNeed,
}

/// What a client expects of an object (`CEPH_OSD_OP_SETALLOCHINT`). Kept, returned by `stat`, not
/// interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AllocHint {
    /// Expected final size in bytes; 0 when unknown.
    pub object_size: u64,
    /// Expected size of one write in bytes; 0 when unknown.
    pub write_size: u64,
    /// `CEPH_OSD_ALLOC_HINT_FLAG_*`.
    pub flags: u32,
}

/// What is known about an object without reading its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// Logical size in bytes.
    pub size: u64,
    /// Bytes of allocated blocks that this object refers to, shared ones included.
    pub allocated: u64,
    /// The last allocation hint.
    pub hint: AllocHint,
}

/// A range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First byte.
    pub off: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A page of a collection listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Keys in order.
    pub keys: Vec<Key>,
    /// Where to go on (inclusive), or `None` when the range is exhausted.
    pub next: Option<Key>,
}

/// A page of omap rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OmapPage {
    /// Rows in key order.
    pub rows: Vec<(Bytes, Bytes)>,
    /// True when there are rows after the last one returned.
    pub more: bool,
}

/// Space of the store, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Size of the device.
    pub total: u64,
    /// Bytes that new data can use (the reserve is not counted).
    pub available: u64,
    /// Bytes in allocated data blocks.
    pub data: u64,
    /// Bytes in metadata: log, superblocks, allocation map, tree nodes.
    pub metadata: u64,
    /// Small writes that wait in memory for their place on the device.
    pub deferred: u64,
    /// Bytes of the caches in memory.
    pub cached: u64,
}
