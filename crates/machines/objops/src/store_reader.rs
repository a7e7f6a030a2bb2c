//! Reading objects of one collection of the store.

use crate::reader::{ObjectReader, OmapRows};
use bytes::Bytes;
use denc::crc::Sum;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::rc::Rc;
use store::{Coll, Key, Store, StoreError};
use types::errno::Errno;

/// The objects of one PG.
#[derive(Clone)]
pub struct StoreReader {
    /// The store.
    pub store: Rc<Store>,
    /// The PG's collection.
    pub coll: Coll,
    /// What reads have found to be damaged.
    pub damage: Rc<RefCell<Damage>>,
}

/// What cannot be read as it was written.
#[derive(Debug, Default)]
pub struct Damage {
    /// Objects with bad data. Another copy can take its place.
    pub objects: BTreeSet<Key>,
    /// Why the store's own metadata cannot be read. Nothing can take its place.
    pub metadata: Option<String>,
}

impl StoreReader {
    /// The objects of a collection.
    pub fn new(store: Rc<Store>, coll: Coll) -> Self {
        StoreReader { store, coll, damage: Rc::default() }
    }

    /// Whether reads found damage that was not noted yet.
    pub fn is_damaged(&self) -> bool {
        let d = self.damage.borrow();
        !d.objects.is_empty() || d.metadata.is_some()
    }

    fn noted(&self, key: &Key, reads_data: bool, e: StoreError) -> Errno {
        let mut damage = self.damage.borrow_mut();
        match &e {
            StoreError::Checksum { .. } => {
                damage.objects.insert(key.clone());
            }
            // What else a read of data brings in is nodes of the tree, which have no errors of this
            // kind: see below.
            StoreError::Io(_) if reads_data => {
                damage.objects.insert(key.clone());
            }
            StoreError::Corrupt(why) | StoreError::Io(why) => {
                damage.metadata.get_or_insert_with(|| why.clone());
            }
            _ => {}
        }
        errno(e)
    }
}

/// What a client is told about a failure of the store.
pub fn errno(e: StoreError) -> Errno {
    Errno(e.errno())
}

impl ObjectReader for StoreReader {
    async fn read_summed(
        &self,
        key: &Bytes,
        offset: u64,
        length: u64,
    ) -> Result<(Vec<Bytes>, Option<Sum>), Errno> {
        let (data, sum) = self
            .store
            .read_summed(self.coll, key, offset, length)
            .await
            .map_err(|e| self.noted(key, true, e))?;
        Ok((data.into_vec(), sum))
    }

    async fn extents(
        &self,
        key: &Bytes,
        offset: u64,
        length: u64,
    ) -> Result<Vec<(u64, u64)>, Errno> {
        let found = self
            .store
            .extents(self.coll, key, offset, length)
            .await
            .map_err(|e| self.noted(key, false, e))?;
        Ok(found.into_iter().map(|r| (r.off, r.len)).collect())
    }

    async fn attr(&self, key: &Bytes, name: &[u8]) -> Result<Bytes, Errno> {
        self.store.get_attr(self.coll, key, name).await.map_err(|e| self.noted(key, false, e))
    }

    async fn attrs(&self, key: &Bytes) -> Result<Vec<(Bytes, Bytes)>, Errno> {
        self.store.get_attrs(self.coll, key).await.map_err(|e| self.noted(key, false, e))
    }

    async fn omap_header(&self, key: &Bytes) -> Result<Bytes, Errno> {
        self.store.omap_header(self.coll, key).await.map_err(|e| self.noted(key, false, e))
    }

    async fn omap_get(&self, key: &Bytes, names: Vec<Bytes>) -> Result<Vec<(Bytes, Bytes)>, Errno> {
        self.store.omap_get(self.coll, key, &names).await.map_err(|e| self.noted(key, false, e))
    }

    async fn omap_list(
        &self,
        key: &Bytes,
        start: &Bytes,
        inclusive: bool,
        max_rows: usize,
        max_bytes: usize,
    ) -> Result<OmapRows, Errno> {
        let from =
            if inclusive { Bound::Included(&start[..]) } else { Bound::Excluded(&start[..]) };
        let page = self
            .store
            .omap_iter(self.coll, key, from, max_rows, max_bytes)
            .await
            .map_err(|e| self.noted(key, false, e))?;
        Ok(OmapRows { rows: page.rows, more: page.more })
    }
}
