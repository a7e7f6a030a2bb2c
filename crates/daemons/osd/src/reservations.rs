//! Which PGs may recover, be filled, trim and be scrubbed on an OSD.

use crate::scrubs::Scrubs;
use crate::trims::TrimTurns;
use pg::{Places, Reserver, Side};
use std::cell::RefCell;
use types::SpgId;

/// All reservations of an OSD.
#[derive(Default)]
pub(crate) struct Reservations {
    /// Which PGs backfill, and which want to.
    pub(crate) recovery: RefCell<RecoveryTurns>,
    /// Which PGs may begin to recover an object.
    pub(crate) objects: RefCell<Places<SpgId>>,
    /// Which PGs trim, and which want to.
    pub(crate) trims: RefCell<TrimTurns>,
    /// Which PGs are scrubbed, and which are to be.
    pub(crate) scrubs: RefCell<Scrubs>,
}

/// The reservations for recovery and backfill of an OSD.
pub(crate) struct RecoveryTurns {
    /// PGs that this OSD leads.
    pub(crate) own: Reserver<SpgId>,
    /// PGs that others lead, of which copies are here that take part or are filled.
    pub(crate) target: Reserver<SpgId>,
    /// PGs that others lead and for which copies here are read.
    pub(crate) source: Reserver<SpgId>,
    /// The used part of the store above which no PG moves here.
    pub(crate) backfillfull: f64,
    /// The store takes no more copies.
    pub(crate) full: bool,
}

impl RecoveryTurns {
    pub(crate) fn of(&mut self, side: Side) -> &mut Reserver<SpgId> {
        match side {
            Side::Lead => &mut self.own,
            Side::Source => &mut self.source,
            Side::Target => &mut self.target,
        }
    }
}

impl Default for RecoveryTurns {
    fn default() -> RecoveryTurns {
        RecoveryTurns {
            own: Reserver::default(),
            target: Reserver::default(),
            source: Reserver::default(),
            backfillfull: 1.0,
            full: false,
        }
    }
}
