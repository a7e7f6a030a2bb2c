//! What a class method may do to its object (Ceph: `objclass/objclass.h`, the `cls_cxx_*`
//! functions).
//!
//! Reads see the object as it was before the request, as in Ceph: not the bytes, attributes and
//! rows that the same request wrote. Only existence and size are those after the operations so far.

use bytes::Bytes;
use denc::Features;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use types::errno::Errno;
use types::replies::WatchItem;
use types::{EntityAddr, EntityName, Utime};

/// A future that stays on its thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What an access to the object gives.
pub type Access<'a, T> = LocalFuture<'a, Result<T, Errno>>;

/// The object of a call, as methods take it.
pub type Object<'a> = &'a mut (dyn ObjectContext + 'a);

/// The client that calls, and what stays the same during the call.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The client's name.
    pub entity: EntityName,
    /// The client's address.
    pub addr: EntityAddr,
    /// Features of the client's connection (Ceph: `cls_get_client_features`).
    pub features: Features,
    /// The newest user version of the object's group (Ceph: `cls_current_version`).
    pub last_user_version: u64,
    /// The newest snapshot that the object knows (Ceph: `cls_get_snapset_seq`).
    pub snap_seq: u64,
    /// The modification time that the client gave the request.
    pub mtime: Utime,
    /// The time at the OSD.
    pub now: Utime,
    /// The oldest release whose clients the cluster admits, as a number: 12 is Luminous
    /// (Ceph: `cls_get_min_compatible_client`).
    pub min_compat_client: u8,
    /// The release that every OSD is at least (Ceph: `cls_get_required_osd_release`).
    pub require_osd_release: u8,
    /// What the store's space is allocated in (Ceph: `cls_get_osd_min_alloc_size`).
    pub min_alloc_size: u64,
    /// The pool's stripe width, 0 unless it is erasure-coded (Ceph: `cls_get_pool_stripe_width`).
    pub stripe_width: u64,
}

/// A page of keys or rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page<T> {
    /// In key order.
    pub rows: T,
    /// There are rows after the last one.
    pub more: bool,
}

/// An object as a class method sees it.
///
/// The errors named here are the usual ones; others (a damaged object, a limit of the
/// configuration) are to be passed on.
pub trait ObjectContext {
    /// The client that calls.
    fn origin(&self) -> &Origin;

    /// How many operations of the request were executed, those of methods included (Ceph:
    /// `cls_current_subop_num`). With [`Origin::last_user_version`] it makes names that no other
    /// operation on the group's objects makes.
    fn subop(&self) -> u32;

    /// Fills a buffer with random bytes.
    fn random(&mut self, out: &mut [u8]);

    /// Size and modification time; ENOENT if the object does not exist.
    fn stat(&mut self) -> Access<'_, (u64, Utime)>;

    /// Makes the object exist; EEXIST if it does and `exclusive` is set.
    fn create(&mut self, exclusive: bool) -> Access<'_, ()>;

    /// Removes the object; ENOENT if it does not exist.
    fn remove(&mut self) -> Access<'_, ()>;

    /// Bytes of a range, cut at the object's end; a length of 0 means up to the end. An object that
    /// does not exist reads as empty.
    fn read(&mut self, offset: u64, length: u64) -> Access<'_, Bytes>;

    /// Writes a range.
    fn write(&mut self, offset: u64, data: Bytes) -> Access<'_, ()>;

    /// Replaces the object's bytes.
    fn write_full(&mut self, data: Bytes) -> Access<'_, ()>;

    /// Sets the size.
    fn truncate(&mut self, size: u64) -> Access<'_, ()>;

    /// Zeros a range.
    fn zero(&mut self, offset: u64, length: u64) -> Access<'_, ()>;

    /// One attribute; ENODATA if the object has none of that name, ENOENT if there is no object.
    fn getxattr<'a>(&'a mut self, name: &'a [u8]) -> Access<'a, Bytes>;

    /// All attributes.
    fn getxattrs(&mut self) -> Access<'_, BTreeMap<Bytes, Bytes>>;

    /// Sets an attribute.
    fn setxattr<'a>(&'a mut self, name: &'a [u8], value: Bytes) -> Access<'a, ()>;

    /// The omap header; empty if there is none.
    fn map_get_header(&mut self) -> Access<'_, Bytes>;

    /// Sets the omap header.
    fn map_set_header(&mut self, header: Bytes) -> Access<'_, ()>;

    /// The rows with these keys that exist.
    fn map_get_vals_by_keys<'a>(
        &'a mut self,
        keys: &'a BTreeSet<Bytes>,
    ) -> Access<'a, BTreeMap<Bytes, Bytes>>;

    /// Up to `max` keys that come after `start_after`.
    fn map_get_keys<'a>(
        &'a mut self,
        start_after: &'a [u8],
        max: u64,
    ) -> Access<'a, Page<Vec<Bytes>>>;

    /// Up to `max` rows that come after `start_after` and have keys that begin with `prefix`.
    fn map_get_vals<'a>(
        &'a mut self,
        start_after: &'a [u8],
        prefix: &'a [u8],
        max: u64,
    ) -> Access<'a, Page<BTreeMap<Bytes, Bytes>>>;

    /// Sets rows.
    fn map_set_vals(&mut self, rows: BTreeMap<Bytes, Bytes>) -> Access<'_, ()>;

    /// Removes a row; ENOENT if there is no object, but not if there is no such row.
    fn map_remove_key<'a>(&'a mut self, key: &'a [u8]) -> Access<'a, ()>;

    /// Removes the rows from `begin` up to before `end`.
    fn map_remove_range<'a>(&'a mut self, begin: &'a [u8], end: &'a [u8]) -> Access<'a, ()>;

    /// Removes header and rows.
    fn map_clear(&mut self) -> Access<'_, ()>;

    /// The watchers of the object.
    fn list_watchers(&mut self) -> Access<'_, Vec<WatchItem>>;

    /// The value of one row; ENOENT if there is none.
    fn map_get_val<'a>(&'a mut self, key: &'a [u8]) -> Access<'a, Bytes> {
        Box::pin(async move {
            let keys = BTreeSet::from([Bytes::copy_from_slice(key)]);
            self.map_get_vals_by_keys(&keys).await?.into_values().next().ok_or(Errno::ENOENT)
        })
    }

    /// Sets one row.
    fn map_set_val<'a>(&'a mut self, key: &'a [u8], value: Bytes) -> Access<'a, ()> {
        self.map_set_vals(BTreeMap::from([(Bytes::copy_from_slice(key), value)]))
    }

    /// What lists of rows are read in: as many at a time as the OSD gives at most in one answer,
    /// for methods that must see all rows.
    fn map_get_all_vals(&mut self) -> Access<'_, BTreeMap<Bytes, Bytes>> {
        Box::pin(async move {
            let mut all = BTreeMap::new();
            loop {
                let after = all
                    .last_key_value()
                    .map(|(k, _): (&Bytes, &Bytes)| k.clone())
                    .unwrap_or_default();
                let page = self.map_get_vals(&after, b"", u64::MAX).await?;
                let more = page.more && !page.rows.is_empty();
                all.extend(page.rows);
                if !more {
                    return Ok(all);
                }
            }
        })
    }
}
