//! What a PG of an erasure-coded pool keeps while it cuts changes into shards.

use crate::rooms::Pledged;
use bytes::Bytes;
use ec::{Layout, Recipes, Stripe, Stripes};
use objops::coded::{Before, Choices, KeptChange, OldBytes};
use std::cell::RefCell;
use std::collections::BTreeMap;
use types::{Eversion, ObjectId};

/// How objects of a pool are cut, and the code.
pub(crate) struct Coding {
    pub(crate) layout: Layout,
    pub(crate) recipes: RefCell<Recipes>,
}

/// What a change must know of objects as they were.
#[derive(Default)]
pub(crate) struct Gathered {
    pub(crate) before: Vec<(ObjectId, Before)>,
    pub(crate) old: OldBytes,
    /// Where parity gets what data changed.
    pub(crate) choices: Choices,
    /// Bytes of data shards as they were, of objects of which they are kept.
    pub(crate) stripes: BTreeMap<ObjectId, Stripe>,
    /// Room for the change, if it takes any.
    pub(crate) room: Option<Pledged>,
}

/// What a PG keeps of objects that are being changed, so that the next change of a stripe does not
/// read it again.
pub(crate) type ObjectStripes = Stripes<ObjectId, Eversion>;

/// Bytes that a PG keeps of such objects at most.
pub(crate) const STRIPES_BYTES_MAX: u64 = 512 << 10;

impl Gathered {
    pub(crate) fn find(&self, oid: &ObjectId) -> Option<Before> {
        self.before.iter().find(|(o, _)| o == oid).map(|(_, b)| b.clone())
    }
}

/// What undoes changes that may have to be taken back, by version.
pub(crate) type Kept = BTreeMap<Eversion, KeptChange>;

/// Data in one piece.
pub(crate) fn joined(mut data: Vec<Bytes>) -> Bytes {
    match data.len() {
        0 => Bytes::new(),
        1 => data.remove(0),
        // Several writes in one request are rare and small.
        _ => data.concat().into(),
    }
}
