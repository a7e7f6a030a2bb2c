//! The copies of placement groups that an OSD has, and what waits for one.

use crate::host::PgHost;
use crate::waits::Waits;
use pg::creation::UnbornPgs;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::Notify;
use types::{PgId, SpgId};

/// The PGs of this OSD, and what waits for one.
#[derive(Default)]
pub(crate) struct Pgs {
    hosts: RefCell<FxHashMap<SpgId, Rc<PgHost>>>,
    /// PGs that are not born yet.
    pub(crate) unborn: RefCell<UnbornPgs>,
    /// Copies that were here since the start.
    made: Cell<u64>,
    /// What waits for a map, or for a PG that this OSD leads by the map but does not have yet.
    pub(crate) waits: RefCell<Waits>,
    /// A PG became active, or stopped being it: the manager should know soon.
    pub(crate) changed: Notify,
}

impl Pgs {
    /// All copies.
    pub(crate) fn all(&self) -> Vec<Rc<PgHost>> {
        self.hosts.borrow().values().cloned().collect()
    }

    /// The names of all copies.
    pub(crate) fn ids(&self) -> Vec<SpgId> {
        self.hosts.borrow().keys().copied().collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.hosts.borrow().len()
    }

    /// A copy.
    #[inline]
    pub(crate) fn get(&self, id: SpgId) -> Option<Rc<PgHost>> {
        self.hosts.borrow().get(&id).cloned()
    }

    /// Any copy of a PG.
    pub(crate) fn any(&self, pgid: PgId) -> Option<Rc<PgHost>> {
        self.hosts.borrow().values().find(|h| h.pgid == pgid).cloned()
    }

    /// Adds a copy.
    pub(crate) fn insert(&self, host: Rc<PgHost>) {
        self.hosts.borrow_mut().insert(host.id, host);
    }

    /// Forgets a copy.
    pub(crate) fn remove(&self, id: SpgId) {
        self.hosts.borrow_mut().remove(&id);
    }

    /// A number for a copy of a PG that was never given before.
    pub(crate) fn next_copy(&self) -> u64 {
        self.made.set(self.made.get() + 1);
        self.made.get()
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.hosts.borrow_mut().clear();
        *self.waits.borrow_mut() = Waits::default();
    }
}
