//! Objects of bad copies that are repaired.

use std::collections::BTreeSet;
use types::ObjectId;

/// Objects with copies that are being replaced because they are bad.
#[derive(Debug, Default)]
pub(in crate::machine) struct Repairs {
    /// On the primary: objects of which some copy is.
    pub(in crate::machine) objects: BTreeSet<ObjectId>,
    /// Those with a bad copy here.
    pub(in crate::machine) own: BTreeSet<ObjectId>,
    /// How often some were found.
    pub(in crate::machine) losses: u64,
}

impl Repairs {
    pub(in crate::machine) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}
