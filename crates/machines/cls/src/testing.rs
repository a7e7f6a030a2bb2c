//! An object in memory, for tests of classes. As in a real request, what a call reads is what
//! earlier calls left behind, not what it wrote itself.

use crate::context::{Access, ObjectContext, Origin, Page};
use crate::method::{Output, encode};
use crate::registry::Registry;
use bytes::Bytes;
use denc::{Decode, Encode, Features};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use types::errno::Errno;
use types::replies::WatchItem;
use types::{EntityAddr, EntityName, EntityType, Utime};

/// What is stored of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// It exists.
    pub exists: bool,
    /// Bytes.
    pub data: Vec<u8>,
    /// Attributes.
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// It has an omap, perhaps an empty one.
    pub is_omap: bool,
    /// Omap header.
    pub header: Bytes,
    /// Omap rows.
    pub omap: BTreeMap<Bytes, Bytes>,
}

/// An object in memory.
pub struct TestObject {
    /// The client that calls.
    pub origin: Origin,
    /// What earlier calls left.
    pub stored: Stored,
    /// The watchers.
    pub watchers: Vec<WatchItem>,
    /// What is sent in one page at most (`osd_max_omap_entries_per_request`).
    pub omap_entries: u64,
    seed: u64,
    next: Stored,
    reads: u32,
    writes: u32,
}

impl Default for TestObject {
    fn default() -> Self {
        TestObject::new()
    }
}

impl TestObject {
    /// An object that does not exist, called by `client.1`.
    pub fn new() -> Self {
        TestObject {
            origin: Origin {
                entity: client(1),
                addr: "127.0.0.1:0/1".parse().unwrap(),
                features: Features::ALL,
                last_user_version: 0,
                snap_seq: 0,
                mtime: Utime::new(1000, 0),
                now: Utime::new(1000, 0),
                min_compat_client: 12,
                require_osd_release: 16,
                min_alloc_size: 4096,
                stripe_width: 0,
            },
            stored: Stored::default(),
            watchers: Vec::new(),
            omap_entries: 1024,
            seed: 1,
            next: Stored::default(),
            reads: 0,
            writes: 0,
        }
    }

    /// Calls a method as `client.N` from an address of its own.
    pub fn as_client(&mut self, n: i64) -> &mut Self {
        self.origin.entity = client(n);
        self.origin.addr = address(n as u32);
        self
    }

    /// Calls a method as an OSD does: what it changes takes effect if it succeeds.
    pub fn call(
        &mut self,
        class: &str,
        method: &str,
        input: impl Into<Bytes>,
    ) -> Result<Output, Errno> {
        let method = Registry::with_lists("*", "*").method(class.as_bytes(), method.as_bytes())?;
        self.next = self.stored.clone();
        (self.reads, self.writes) = (0, 0);
        let result = block_on((method.run)(self, input.into()));
        if (self.reads > 0 && !method.flags.read) || (self.writes > 0 && !method.flags.write) {
            return Err(Errno::EIO);
        }
        let output = result?;
        if output.value >= 0 && self.writes > 0 {
            self.stored = std::mem::take(&mut self.next);
            self.origin.last_user_version += 1;
        }
        Ok(output)
    }

    /// Calls a method with an encoded input.
    pub fn exec<T: Encode>(
        &mut self,
        class: &str,
        method: &str,
        input: &T,
    ) -> Result<Bytes, Errno> {
        self.call(class, method, encode(input)).map(|o| o.data)
    }

    /// Calls a method with an encoded input and decodes its output.
    pub fn query<T: Encode, O: Decode>(
        &mut self,
        class: &str,
        method: &str,
        input: &T,
    ) -> Result<O, Errno> {
        let data = self.exec(class, method, input)?;
        Ok(denc::Reader::new(data).get().expect("the output decodes"))
    }

    fn wrote(&mut self) {
        self.writes += 1;
        self.next.exists = true;
    }

    fn existing(&self) -> Result<(), Errno> {
        if self.next.exists { Ok(()) } else { Err(Errno::ENOENT) }
    }

    fn rows(
        &mut self,
        after: &[u8],
        prefix: &[u8],
        max: u64,
    ) -> Result<Page<BTreeMap<Bytes, Bytes>>, Errno> {
        self.reads += 1;
        if !self.next.is_omap {
            return Ok(Page::default());
        }
        if !self.stored.exists {
            return Err(Errno::ENOENT);
        }
        let max = max.min(self.omap_entries) as usize;
        let mut found = self
            .stored
            .omap
            .iter()
            .filter(|(k, _)| &k[..] > after && k.starts_with(prefix))
            .map(|(k, v)| (k.clone(), v.clone()));
        let rows = found.by_ref().take(max).collect();
        Ok(Page { rows, more: found.next().is_some() })
    }
}

/// `client.N`.
pub fn client(n: i64) -> EntityName {
    EntityName { kind: EntityType::CLIENT, num: n }
}

/// An address.
pub fn address(nonce: u32) -> EntityAddr {
    format!("127.0.0.1:0/{nonce}").parse().unwrap()
}

/// Runs a future that never waits.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(v) => v,
        Poll::Pending => unreachable!("nothing in memory waits"),
    }
}

fn now<'a, T: 'a>(result: Result<T, Errno>) -> Access<'a, T> {
    Box::pin(ready(result))
}

impl ObjectContext for TestObject {
    fn origin(&self) -> &Origin {
        &self.origin
    }

    fn subop(&self) -> u32 {
        self.reads + self.writes
    }

    fn random(&mut self, out: &mut [u8]) {
        // Tests want the same bytes each time; a linear congruence is random enough.
        for b in out {
            self.seed =
                self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *b = (self.seed >> 33) as u8;
        }
    }

    fn stat(&mut self) -> Access<'_, (u64, Utime)> {
        now(self.existing().map(|()| (self.next.data.len() as u64, self.origin.mtime)))
    }

    fn create(&mut self, exclusive: bool) -> Access<'_, ()> {
        self.writes += 1;
        if exclusive && self.next.exists {
            return now(Err(Errno::EEXIST));
        }
        self.next.exists = true;
        now(Ok(()))
    }

    fn remove(&mut self) -> Access<'_, ()> {
        self.writes += 1;
        let result = self.existing();
        self.next = Stored::default();
        now(result)
    }

    fn read(&mut self, offset: u64, length: u64) -> Access<'_, Bytes> {
        self.reads += 1;
        let size = self.next.data.len();
        let start = (offset as usize).min(size);
        let end = if length == 0 {
            size
        } else {
            offset.saturating_add(length).min(size as u64) as usize
        };
        if start < end && !self.stored.exists {
            return now(Err(Errno::ENOENT));
        }
        let stored = &self.stored.data;
        now(Ok(Bytes::copy_from_slice(
            stored.get(start..end.min(stored.len())).unwrap_or_default(),
        )))
    }

    fn write(&mut self, offset: u64, data: Bytes) -> Access<'_, ()> {
        self.wrote();
        let (start, end) = (offset as usize, offset as usize + data.len());
        if self.next.data.len() < end {
            self.next.data.resize(end, 0);
        }
        self.next.data[start..end].copy_from_slice(&data);
        now(Ok(()))
    }

    fn write_full(&mut self, data: Bytes) -> Access<'_, ()> {
        self.wrote();
        self.next.data = data.into();
        now(Ok(()))
    }

    fn truncate(&mut self, size: u64) -> Access<'_, ()> {
        self.writes += 1;
        if self.next.exists {
            self.next.data.resize(size as usize, 0);
        }
        now(Ok(()))
    }

    fn zero(&mut self, offset: u64, length: u64) -> Access<'_, ()> {
        self.writes += 1;
        let size = self.next.data.len();
        let start = (offset as usize).min(size);
        let end = (offset.saturating_add(length) as usize).min(size);
        self.next.data[start..end].fill(0);
        now(Ok(()))
    }

    fn getxattr<'a>(&'a mut self, name: &'a [u8]) -> Access<'a, Bytes> {
        self.reads += 1;
        let missing = if self.stored.exists { Errno::ENODATA } else { Errno::ENOENT };
        now(self.stored.xattrs.get(name).cloned().ok_or(missing))
    }

    fn getxattrs(&mut self) -> Access<'_, BTreeMap<Bytes, Bytes>> {
        self.reads += 1;
        now(if self.stored.exists { Ok(self.stored.xattrs.clone()) } else { Err(Errno::ENOENT) })
    }

    fn setxattr<'a>(&'a mut self, name: &'a [u8], value: Bytes) -> Access<'a, ()> {
        self.wrote();
        self.next.xattrs.insert(Bytes::copy_from_slice(name), value);
        now(Ok(()))
    }

    fn map_get_header(&mut self) -> Access<'_, Bytes> {
        if self.next.is_omap {
            self.reads += 1;
        }
        now(Ok(self.stored.header.clone()))
    }

    fn map_set_header(&mut self, header: Bytes) -> Access<'_, ()> {
        self.wrote();
        self.next.is_omap = true;
        self.next.header = header;
        now(Ok(()))
    }

    fn map_get_vals_by_keys<'a>(
        &'a mut self,
        keys: &'a BTreeSet<Bytes>,
    ) -> Access<'a, BTreeMap<Bytes, Bytes>> {
        self.reads += 1;
        let row = |k: &Bytes| Some((k.clone(), self.stored.omap.get(k)?.clone()));
        now(Ok(keys.iter().filter_map(row).collect()))
    }

    fn map_get_keys<'a>(
        &'a mut self,
        start_after: &'a [u8],
        max: u64,
    ) -> Access<'a, Page<Vec<Bytes>>> {
        now(self
            .rows(start_after, b"", max)
            .map(|p| Page { rows: p.rows.into_keys().collect(), more: p.more }))
    }

    fn map_get_vals<'a>(
        &'a mut self,
        start_after: &'a [u8],
        prefix: &'a [u8],
        max: u64,
    ) -> Access<'a, Page<BTreeMap<Bytes, Bytes>>> {
        now(self.rows(start_after, prefix, max))
    }

    fn map_set_vals(&mut self, rows: BTreeMap<Bytes, Bytes>) -> Access<'_, ()> {
        self.wrote();
        self.next.is_omap = true;
        self.next.omap.extend(rows);
        now(Ok(()))
    }

    fn map_remove_key<'a>(&'a mut self, key: &'a [u8]) -> Access<'a, ()> {
        self.writes += 1;
        self.next.omap.remove(key);
        now(self.existing())
    }

    fn map_remove_range<'a>(&'a mut self, begin: &'a [u8], end: &'a [u8]) -> Access<'a, ()> {
        self.writes += 1;
        self.next.omap.retain(|k, _| &k[..] < begin || &k[..] >= end);
        now(self.existing())
    }

    fn map_clear(&mut self) -> Access<'_, ()> {
        self.writes += 1;
        self.next.is_omap = false;
        self.next.header = Bytes::new();
        self.next.omap.clear();
        now(self.existing())
    }

    fn list_watchers(&mut self) -> Access<'_, Vec<WatchItem>> {
        self.reads += 1;
        now(Ok(self.watchers.clone()))
    }
}
