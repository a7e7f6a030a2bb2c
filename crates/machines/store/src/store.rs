//! The handle that callers hold.

use crate::commit::Commit;
use crate::dev::{Device, DeviceTime, Faults, Slowness};
use crate::engine::{self, Handle};
use crate::error::StoreError;
use crate::mem::MemStore;
use crate::options::{Budgets, Options};
use crate::report::{DumpReport, FsckReport};
use crate::txn::Transaction;
use crate::types::{Buffers, Coll, Key, ListPage, OmapPage, Range, Stat, StatFs};
use crate::window::Window;
use bytes::Bytes;
use denc::crc::Sum;
use std::ops::Bound;
use std::rc::Rc;

/// A store; clones are handles to the same one. See the crate's documentation.
#[derive(Clone)]
pub struct Store(Backend);

#[derive(Clone)]
enum Backend {
    Memory(Rc<MemStore>),
    Disk(Rc<Handle>),
}

/// What a store did since it was opened.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Usage {
    /// What its device was busy with.
    pub device: DeviceTime,
    /// Transactions that were submitted.
    pub transactions: u64,
    /// Bytes of objects' data in them.
    pub data: u64,
}

impl Store {
    /// A store in memory for so many bytes; its transactions are durable at once.
    pub fn memory_of(bytes: u64) -> Store {
        Store(Backend::Memory(Rc::new(MemStore::new(bytes))))
    }

    /// A store in memory without a limit; its transactions are durable at once.
    pub fn memory() -> Store {
        Store(Backend::Memory(Rc::new(MemStore::new(u64::MAX))))
    }

    /// Makes an empty store on a device; what was on it is lost. `store_id` should be random;
    /// `label` (at most 2048 bytes) says whose store it is and is given back by [`Store::label`].
    pub async fn mkfs(
        dev: &Device,
        opts: &Options,
        store_id: u64,
        label: impl Into<Bytes>,
    ) -> Result<(), StoreError> {
        engine::mkfs(dev, opts, store_id, label.into()).await
    }

    /// Opens the store on a device. Must be called inside a `LocalSet`; background tasks run there
    /// until the last handle is dropped.
    ///
    /// # Errors
    /// `Foreign` when there is no store on the device or one of another layout version; `Corrupt`;
    /// `Io`.
    pub async fn open(dev: Device, opts: Options) -> Result<Store, StoreError> {
        Ok(Store(Backend::Disk(Rc::new(Handle(engine::open(dev, opts).await?)))))
    }

    /// The label of the store on a device, without opening it.
    pub async fn peek_label(dev: &Device) -> Result<Bytes, StoreError> {
        Ok(engine::read_superblock(dev).await?.label)
    }

    /// Changes how much memory the store may use, from now on. A store in memory keeps everything
    /// anyway.
    pub fn set_budgets(&self, budgets: Budgets) {
        match &self.0 {
            Backend::Memory(_) => {}
            Backend::Disk(d) => d.0.set_budgets(budgets),
        }
    }

    /// How much memory the store may use; `None` for a store in memory.
    pub fn budgets(&self) -> Option<Budgets> {
        match &self.0 {
            Backend::Memory(_) => None,
            Backend::Disk(d) => Some(d.0.budgets()),
        }
    }

    /// The label given at [`Store::mkfs`]; empty for a store in memory.
    pub fn label(&self) -> Bytes {
        match &self.0 {
            Backend::Memory(_) => Bytes::new(),
            Backend::Disk(d) => d.0.label(),
        }
    }

    /// Checks a transaction and applies it to memory. Later reads see it; the token resolves when
    /// it is durable. On an error nothing has changed.
    ///
    /// # Errors
    /// What the caller did wrong (`NoCollection`, `NoObject`, `CollectionExists`, ...), `NoSpace`,
    /// `Busy` (wait for [`Store::admit`]), `Failed` after a device error.
    pub fn submit(&self, txn: Transaction) -> Result<Commit, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.submit(txn),
            Backend::Disk(d) => d.0.submit(txn),
        }
    }

    /// Waits until the log has room; at once nearly always. Call it before submitting when
    /// [`Store::congested`] says so.
    pub async fn admit(&self) -> Result<(), StoreError> {
        match &self.0 {
            Backend::Memory(_) => Ok(()),
            Backend::Disk(d) => d.0.admit().await,
        }
    }

    /// True when new transactions should wait for [`Store::admit`].
    pub fn congested(&self) -> bool {
        match &self.0 {
            Backend::Memory(_) => false,
            Backend::Disk(d) => d.0.congested(),
        }
    }

    /// True when there is no room, however far a checkpoint is: what is submitted now may be
    /// refused as [`StoreError::Busy`].
    pub fn is_full(&self) -> bool {
        match &self.0 {
            Backend::Memory(_) => false,
            Backend::Disk(d) => d.0.is_full(),
        }
    }

    /// A token for everything submitted so far.
    pub fn last_commit(&self) -> Commit {
        match &self.0 {
            Backend::Memory(m) => m.last(),
            Backend::Disk(d) => d.0.last(),
        }
    }

    /// Reads up to `len` bytes from `off`: holes read as zeros, the result is short at the end of
    /// the object.
    ///
    /// # Errors
    /// `NoObject`; `Checksum` when the device returns other bytes than were written.
    pub async fn read(
        &self,
        coll: Coll,
        key: &Key,
        off: u64,
        len: u64,
    ) -> Result<Buffers, StoreError> {
        Ok(self.read_summed(coll, key, off, len).await?.0)
    }

    /// The same with the checksum of what was read, where it follows from those that the store
    /// keeps and has just compared with these very bytes.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn read_summed(
        &self,
        coll: Coll,
        key: &Key,
        off: u64,
        len: u64,
    ) -> Result<(Buffers, Option<Sum>), StoreError> {
        match &self.0 {
            Backend::Memory(m) => Ok((m.read(coll, key, off, len)?, None)),
            Backend::Disk(d) => {
                d.0.read(coll, key, off, len, false).await.map(|(data, sum)| (data, Some(sum)))
            }
        }
    }

    /// The same from the device, as far as the device has it: what is only remembered from an
    /// earlier read, or write, says nothing about the device. The checksum is that of all bytes.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn verify(
        &self,
        coll: Coll,
        key: &Key,
        off: u64,
        len: u64,
    ) -> Result<Sum, StoreError> {
        match &self.0 {
            Backend::Memory(m) => {
                Ok(m.read(coll, key, off, len)?.iter().fold(Sum::EMPTY, |s, b| s.then(Sum::of(b))))
            }
            Backend::Disk(d) => Ok(d.0.read(coll, key, off, len, true).await?.1),
        }
    }

    /// Size and hints of an object.
    pub async fn stat(&self, coll: Coll, key: &Key) -> Result<Stat, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.stat(coll, key),
            Backend::Disk(d) => d.0.stat(coll, key).await,
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
            Backend::Disk(d) => d.0.attr(coll, key, name).await,
        }
    }

    /// All attributes in the order of their names.
    pub async fn get_attrs(
        &self,
        coll: Coll,
        key: &Key,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.attrs(coll, key),
            Backend::Disk(d) => d.0.attrs(coll, key).await,
        }
    }

    /// The omap header; empty if none was set.
    pub async fn omap_header(&self, coll: Coll, key: &Key) -> Result<Bytes, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.omap_header(coll, key),
            Backend::Disk(d) => d.0.omap_header(coll, key).await,
        }
    }

    /// Those of the omap rows asked for that exist, in the order asked for.
    pub async fn omap_get(
        &self,
        coll: Coll,
        key: &Key,
        rows: &[Bytes],
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.omap_get(coll, key, rows),
            Backend::Disk(d) => d.0.omap_get(coll, key, rows).await,
        }
    }

    /// Omap rows in key order from `from` on: at most `max_rows`, and no further row once
    /// `max_bytes` of keys and values are reached (so that one row is always returned if there is
    /// one and both limits are above 0).
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
            Backend::Disk(d) => d.0.omap_iter(coll, key, from, max_rows, max_bytes).await,
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
            Backend::Disk(d) => d.0.list(coll, start, end, max).await,
        }
    }

    /// The parts of `[off, off + len)` below the object's size that have blocks, in order and
    /// joined where they touch. The rest reads as zeros.
    pub async fn extents(
        &self,
        coll: Coll,
        key: &Key,
        off: u64,
        len: u64,
    ) -> Result<Vec<Range>, StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.extents(coll, key, off, len),
            Backend::Disk(d) => d.0.extents(coll, key, off, len).await,
        }
    }

    /// All collections in order.
    pub fn collections(&self) -> Vec<Coll> {
        match &self.0 {
            Backend::Memory(m) => m.collections(),
            Backend::Disk(d) => d.0.collections(),
        }
    }

    /// The part of a space that a collection has; `None` for ordinary collections and absent ones.
    pub fn window(&self, coll: Coll) -> Option<Window> {
        match &self.0 {
            Backend::Memory(m) => m.window(coll),
            Backend::Disk(d) => d.0.window(coll),
        }
    }

    /// What was done so far; `None` for a store in memory.
    pub fn usage(&self) -> Option<Usage> {
        match &self.0 {
            Backend::Memory(_) => None,
            Backend::Disk(d) => Some(d.0.usage()),
        }
    }

    /// See [`Device::slow_down`].
    pub fn slow_down_device(&self, slow: Slowness) {
        if let Backend::Disk(d) = &self.0 {
            d.0.dev.slow_down(slow);
        }
    }

    /// See [`Device::fail_some`].
    pub fn fail_some_requests(&self, faults: Faults) {
        if let Backend::Disk(d) = &self.0 {
            d.0.dev.fail_some(faults);
        }
    }

    /// Space used and left.
    pub fn statfs(&self) -> StatFs {
        match &self.0 {
            Backend::Memory(m) => m.statfs(),
            Backend::Disk(d) => d.0.statfs(),
        }
    }

    /// At most `most` ranges of the device that are free: first byte and length. A store in memory
    /// has none.
    pub fn free_ranges(&self, most: usize) -> Vec<(u64, u64)> {
        match &self.0 {
            Backend::Memory(_) => Vec::new(),
            Backend::Disk(d) => d.0.free_ranges(most),
        }
    }

    /// Checks the consistency of everything; `deep` also reads and verifies all data.
    pub async fn fsck(&self, deep: bool) -> Result<FsckReport, StoreError> {
        match &self.0 {
            Backend::Memory(m) => Ok(m.fsck()),
            Backend::Disk(d) => d.0.fsck(deep).await,
        }
    }

    /// Describes the store and at most `max` of its objects (of one collection, or of all).
    pub async fn dump(&self, coll: Option<Coll>, max: usize) -> Result<DumpReport, StoreError> {
        match &self.0 {
            Backend::Memory(m) => Ok(m.dump(coll, max)),
            Backend::Disk(d) => d.0.dump(coll, max).await,
        }
    }

    /// Makes everything durable, brings the log down to nothing and stops background work. The
    /// store must not be used afterwards. A store that is dropped without this is as after a crash:
    /// it replays its log.
    pub async fn close(self) -> Result<(), StoreError> {
        match &self.0 {
            Backend::Memory(m) => m.last().await,
            Backend::Disk(d) => d.0.close().await,
        }
    }

    /// Brings everything to its place now; the log is empty then as of this moment. Not needed in
    /// normal operation.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        match &self.0 {
            Backend::Memory(_) => Ok(()),
            Backend::Disk(d) => d.0.checkpoint_now().await,
        }
    }
}
