//! The handle that callers hold.

use crate::commit::Commit;
use crate::error::StoreError;
use crate::mem::MemStore;
use crate::report::{DumpReport, FsckReport};
use crate::txn::Transaction;
use crate::types::{Buffers, Coll, Key, ListPage, OmapPage, Range, Stat, StatFs};
use bytes::Bytes;
use std::ops::Bound;
use std::rc::Rc;

/// A store; clones are handles to the same one. See the crate's documentation.
#[derive(Clone)]
pub struct Store(Backend);

#[derive(Clone)]
enum Backend {
    Memory(Rc<MemStore>),
}

impl Store {
    /// A store in memory without a limit, whose transactions are durable at once.
    pub fn memory() -> Store {
        Store(Backend::Memory(Rc::new(MemStore::new(u64::MAX))))
    }

    /// Checks a transaction and applies it to memory. Later reads see it; the token resolves when it is
    /// durable. On an error nothing has changed.
    ///
    /// # Errors
    /// What the caller did wrong (`NoCollection`, `NoObject`, `CollectionExists`, ...), `NoSpace`, `Busy`
    /// (wait for [`Store::admit`]), `Failed` after a device error.
    pub fn submit(&self, txn: Transaction) -> Result<Commit, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.submit(txn),
        }
    }

    /// Brings into memory what [`Store::submit`] of this transaction will look at, so that it need not
    /// block the thread on the device. Optional; objects that were just read or written are there already.
    pub async fn prepare(&self, txn: &Transaction) -> Result<(), StoreError> {
        let _ = txn;
        match &self.0 {
            Backend::Memory(_) => Ok(()),
        }
    }

    /// Waits until the log has room; at once nearly always. Call it before submitting when
    /// [`Store::congested`] says so.
    pub async fn admit(&self) -> Result<(), StoreError> {
        match &self.0 {
            Backend::Memory(_) => Ok(()),
        }
    }

    /// True when new transactions should wait for [`Store::admit`].
    pub fn congested(&self) -> bool {
        match &self.0 {
            Backend::Memory(_) => false,
        }
    }

    /// A token for everything submitted so far.
    pub fn last_commit(&self) -> Commit {
        match &self.0 {
            Backend::Memory(m) => m.last(),
        }
    }

    /// Reads up to `len` bytes from `off`: holes read as zeros, the result is short at the end of the object.
    ///
    /// # Errors
    /// `NoObject`; `Checksum` when the device returns other bytes than were written.
    pub async fn read(&self, coll: Coll, key: &Key, off: u64, len: u64) -> Result<Buffers, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.read(coll, key, off, len),
        }
    }

    /// Size and hints of an object.
    pub async fn stat(&self, coll: Coll, key: &Key) -> Result<Stat, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.stat(coll, key),
        }
    }

    /// True if the object exists.
    ///
    /// # Errors
    /// `NoCollection`, and device errors.
    pub async fn exists(&self, coll: Coll, key: &Key) -> Result<bool, StoreError> {
        match self.stat(coll, key).await {
            Ok(_) => Ok(true),
            Err(StoreError::NoObject { .. }) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// One attribute; `NoAttr` if the object has no such.
    pub async fn get_attr(&self, coll: Coll, key: &Key, name: &[u8]) -> Result<Bytes, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.attr(coll, key, name),
        }
    }

    /// All attributes in the order of their names.
    pub async fn get_attrs(&self, coll: Coll, key: &Key) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.attrs(coll, key),
        }
    }

    /// The omap header; empty if none was set.
    pub async fn omap_header(&self, coll: Coll, key: &Key) -> Result<Bytes, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.omap_header(coll, key),
        }
    }

    /// Those of the omap rows asked for that exist, in the order asked for.
    pub async fn omap_get(&self, coll: Coll, key: &Key, rows: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.omap_get(coll, key, rows),
        }
    }

    /// Omap rows in key order from `from` on: at most `max_rows`, and no further row once `max_bytes` of keys
    /// and values are reached (so that one row is always returned if there is one and both limits are above 0).
    pub async fn omap_iter(
        &self,
        coll: Coll,
        key: &Key,
        from: Bound<&[u8]>,
        max_rows: usize,
        max_bytes: usize,
    ) -> Result<OmapPage, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.omap_iter(coll, key, from, max_rows, max_bytes),
        }
    }

    /// At most `max` keys of the collection in `[start, end)`; no `end` means to the end.
    pub async fn list(
        &self,
        coll: Coll,
        start: &[u8],
        end: Option<&[u8]>,
        max: usize,
    ) -> Result<ListPage, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.list(coll, start, end, max),
        }
    }

    /// The parts of `[off, off + len)` below the object's size that have blocks, in order and joined where
    /// they touch. The rest reads as zeros.
    pub async fn extents(&self, coll: Coll, key: &Key, off: u64, len: u64) -> Result<Vec<Range>, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.extents(coll, key, off, len),
        }
    }

    /// All collections in order.
    pub fn collections(&self) -> Vec<Coll> {
        match &self.0 {
            Backend::Memory(m) => m.collections(),
        }
    }

    /// Space used and left.
    pub fn statfs(&self) -> StatFs {
        match &self.0 {
            Backend::Memory(m) => m.statfs(),
        }
    }

    /// Checks the consistency of everything; `deep` also reads and verifies all data.
    pub async fn fsck(&self, deep: bool) -> Result<FsckReport, StoreError> {
        let _ = deep;
        match &self.0 {
            Backend::Memory(m) => Ok(m.fsck()),
        }
    }

    /// Describes the store and at most `max` of its objects (of one collection, or of all).
    pub async fn dump(&self, coll: Option<Coll>, max: usize) -> Result<DumpReport, StoreError> {
        match &self.0 {
            Backend::Memory(m) => Ok(m.dump(coll, max)),
        }
    }

    /// Makes everything durable, brings the log down to nothing and stops background work. The store must
    /// not be used afterwards. A store that is dropped without this is as after a crash: it replays its log.
    pub async fn close(self) -> Result<(), StoreError> {
        self.last_commit().await
    }
}
