//! The range of objects that a backfill compares.

use crate::info::Backfill;
use crate::msg::Listing;
use std::collections::BTreeMap;
use types::{Epoch, Eversion, ObjectId, PgShard};

/// For whom the host lists objects.
#[derive(Debug)]
pub(in crate::machine) enum Lister {
    /// For the comparison.
    Own,
    /// For the primary.
    Primary { to: PgShard, asked: Epoch, after: Backfill },
    /// For the next range of a scrub.
    Scrub(u64),
}

/// The primary's own objects, for all targets.
#[derive(Debug, Default)]
pub(in crate::machine) struct Scan {
    /// What is listed, or was asked for, begins behind this.
    pub(in crate::machine) from: Backfill,
    pub(in crate::machine) listing: Option<Listing>,
    /// The token under which the host is listing.
    pub(in crate::machine) asked: Option<u64>,
    /// Changes of objects since the listing was asked for: it may be from before or after.
    pub(in crate::machine) changes: BTreeMap<ObjectId, Vec<Written>>,
}

/// A change of an object.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct Written {
    /// The version that it has; none if it is gone.
    pub(in crate::machine) version: Option<Eversion>,
    /// The shards that the change is about.
    pub(in crate::machine) written: ec::ShardSet,
}

impl Scan {
    /// Makes it begin at a cursor: forgets what is before it, or all if what is behind the cursor
    /// is not known.
    pub(in crate::machine) fn align(&mut self, front: &Backfill) {
        if *front < self.from {
            *self = Self::default();
        } else if self.listing.take_if(|l| l.upto <= *front).is_none()
            && let Some(listing) = self.listing.as_mut().filter(|_| *front > self.from)
        {
            listing.objects.retain(|o, _| !front.covers(o));
            listing.shards.retain(|o, _| !front.covers(o));
            self.from = front.clone();
        }
    }
}
