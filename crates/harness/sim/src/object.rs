//! Content of objects.

use std::collections::BTreeMap;

use bytes::Bytes;
use types::{Eversion, ShardId, SnapSet};

/// What of an object a copy has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Cut {
    /// All.
    #[default]
    Whole,
    /// A shard, and what is known of the object.
    Lead(Lead),
    /// A shard.
    Data,
}

/// What shards that may lead know of an object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lead {
    /// Its size.
    pub size: u64,
    /// Versions of shards, where they are other than the object's; zero: there is none.
    pub shards: BTreeMap<ShardId, Eversion>,
}

/// Content of an object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Object {
    /// Its version, as the object info says.
    pub version: Eversion,
    /// Data.
    pub data: Vec<u8>,
    /// Omap rows.
    pub omap: BTreeMap<Bytes, Bytes>,
    /// An attribute of the client's. No client of this model reads it, and no checksum covers it.
    pub attr: u64,
    /// Checksum of data and rows, from when they were written.
    pub sum: u32,
    /// A head that was deleted, and is kept for its clones.
    pub whiteout: bool,
    /// The clones of a head.
    pub snapset: SnapSet,
    /// What of the object is here.
    pub cut: Cut,
}

impl Object {
    /// What is known of the object, if this shard knows it.
    pub fn lead(&self) -> Option<&Lead> {
        if let Cut::Lead(lead) = &self.cut { Some(lead) } else { None }
    }

    /// Of data and rows.
    pub fn checksum(&self) -> u32 {
        let rows =
            self.omap.iter().fold(0, |sum, (k, v)| denc::crc::crc32c(denc::crc::crc32c(sum, k), v));
        denc::crc::crc32c(rows, &self.data)
    }

    /// Whether it is what was written, as far as the checksum tells.
    pub fn is_sound(&self) -> bool {
        self.sum == self.checksum()
    }

    /// With the checksum of what it holds.
    pub fn written(mut self) -> Self {
        self.sum = self.checksum();
        self
    }

    /// One bit of the data changes.
    pub fn flip(&mut self, bit: u64) {
        let bit = bit % (self.data.len() as u64 * 8).max(1);
        if let Some(byte) = self.data.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }
}
