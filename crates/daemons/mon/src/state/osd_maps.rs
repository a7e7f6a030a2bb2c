use crate::replica::Row;
use bytes::Bytes;
use denc::{Decode, Encode, Features};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{Epoch, OsdMap, OsdMapIncremental};

/// A full map is kept for every epoch that is a multiple of this, so that any map can be rebuilt
/// from a few incremental ones. Keeping all of them would cost the size of the map per epoch.
const FULL_EVERY: u32 = 64;

/// The OSD map and its history.
///
/// Epochs `first()..=last()` can be given as full maps, those after the first as incremental ones
/// too.
#[derive(Clone, Debug, Default)]
pub struct OsdMaps {
    map: Arc<OsdMap>,
    /// Always has one at or before `first`, and none more than [`FULL_EVERY`] behind the newest.
    fulls: Arc<BTreeMap<Epoch, Bytes>>,
    incs: Arc<BTreeMap<Epoch, Bytes>>,
}

fn row(kind: &str, epoch: Epoch, value: Option<Bytes>) -> Row {
    (super::key(kind, &epoch.0.to_be_bytes()), value)
}

impl OsdMaps {
    /// The current map.
    pub fn map(&self) -> &Arc<OsdMap> {
        &self.map
    }

    /// The oldest epoch that can be given; 0 before the first map.
    pub fn first(&self) -> Epoch {
        self.fulls.keys().next().copied().unwrap_or_default()
    }

    /// The current epoch.
    pub fn last(&self) -> Epoch {
        self.map.epoch
    }

    /// The bytes of the incremental map that leads to `epoch`.
    pub fn incremental(&self, epoch: Epoch) -> Option<&Bytes> {
        self.incs.get(&epoch)
    }

    /// The full map of `epoch`.
    pub fn full(&self, epoch: Epoch) -> Option<Arc<OsdMap>> {
        if epoch == self.map.epoch {
            return Some(self.map.clone());
        }
        let (_, bytes) = self.fulls.range(..=epoch).next_back()?;
        let mut map = OsdMap::from_bytes(bytes).ok()?;
        while map.epoch < epoch {
            let inc = OsdMapIncremental::from_bytes(self.incs.get(&map.epoch.next())?).ok()?;
            map.apply_incremental(&inc).ok()?;
        }
        (map.epoch == epoch).then(|| Arc::new(map))
    }

    pub(super) fn push(
        &mut self,
        inc: &OsdMapIncremental,
        rows: &mut Vec<Row>,
    ) -> Result<(), String> {
        let mut next = (*self.map).clone();
        next.apply_incremental(inc).map_err(|e| format!("osdmap {}: {e}", inc.epoch))?;
        let bytes = inc.to_bytes(Features::ALL);
        if next.epoch.0.is_multiple_of(FULL_EVERY) || self.fulls.is_empty() {
            let full = next.to_bytes(Features::ALL);
            rows.push(row("osd/f/", next.epoch, Some(full.clone())));
            Arc::make_mut(&mut self.fulls).insert(next.epoch, full);
        }
        rows.push(row("osd/i/", next.epoch, Some(bytes.clone())));
        Arc::make_mut(&mut self.incs).insert(next.epoch, bytes);
        self.map = Arc::new(next);
        Ok(())
    }

    /// Forgets everything before `first`, for which a full map is kept. Going backwards or past the
    /// current map does nothing.
    pub(super) fn trim(&mut self, first: Epoch, rows: &mut Vec<Row>) -> Result<(), String> {
        if first <= self.first() || first > self.last() {
            return Ok(());
        }
        let full = self.full(first).ok_or_else(|| format!("osdmap {first} cannot be rebuilt"))?;
        let fulls = Arc::make_mut(&mut self.fulls);
        fulls.entry(first).or_insert_with(|| {
            let bytes = full.to_bytes(Features::ALL);
            rows.push(row("osd/f/", first, Some(bytes.clone())));
            bytes
        });
        let keep = fulls.split_off(&first);
        rows.extend(std::mem::replace(fulls, keep).into_keys().map(|e| row("osd/f/", e, None)));
        let incs = Arc::make_mut(&mut self.incs);
        let keep = incs.split_off(&first.next());
        rows.extend(std::mem::replace(incs, keep).into_keys().map(|e| row("osd/i/", e, None)));
        Ok(())
    }

    pub(super) fn restore(
        fulls: BTreeMap<Epoch, Bytes>,
        incs: BTreeMap<Epoch, Bytes>,
    ) -> denc::Result<Self> {
        let Some((_, newest)) = fulls.last_key_value() else { return Ok(Self::default()) };
        let mut map = OsdMap::from_bytes(newest)?;
        while let Some(bytes) = incs.get(&map.epoch.next()) {
            let inc = OsdMapIncremental::from_bytes(bytes)?;
            map.apply_incremental(&inc).map_err(|_| denc::DecodeError::Invalid {
                what: "incremental OSD map",
                found: inc.epoch.0.into(),
            })?;
        }
        Ok(OsdMaps { map: Arc::new(map), fulls: Arc::new(fulls), incs: Arc::new(incs) })
    }
}
