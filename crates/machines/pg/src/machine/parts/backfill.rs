//! How far the targets of a backfill are.

use crate::machine::parts::scan::{Lister, Scan};
use crate::msg::Listing;
use std::collections::BTreeMap;
use types::PgShard;

/// What is being filled, and what was asked of the host.
#[derive(Debug, Default)]
pub(in crate::machine) struct Backfilling {
    pub(in crate::machine) targets: BTreeMap<PgShard, Target>,
    pub(in crate::machine) turn: OwnTurn,
    pub(in crate::machine) scan: Scan,
    /// An object of this copy cannot be read: no copy can be filled beyond it.
    pub(in crate::machine) damaged: bool,
    pub(in crate::machine) listings: BTreeMap<u64, Lister>,
    pub(in crate::machine) next_listing: u64,
}

/// The reservation on this OSD and those of OSDs that are read, which are for all targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::machine) enum OwnTurn {
    /// It is not wanted (now).
    #[default]
    None,
    /// Waited for.
    Asked,
    /// Here; those of OSDs that are read are waited for.
    Sources,
    /// All are here.
    Held,
}

/// A copy that is filled, or will be.
#[derive(Debug)]
pub(in crate::machine) struct Target {
    pub(in crate::machine) stage: Stage,
    /// Its objects behind its cursor, as far as it told of them.
    pub(in crate::machine) listing: Option<Listing>,
    /// They were asked for.
    pub(in crate::machine) asked: bool,
    /// A move of the cursor is on its way.
    pub(in crate::machine) advancing: bool,
    /// It had everything but newer writes when it began to follow.
    pub(in crate::machine) beside: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::machine) enum Stage {
    /// Not begun: waits for the reservation on this OSD.
    Waiting,
    /// Asked the target for its log.
    GetLog,
    /// The target follows from here on; it has not said so yet.
    Starting,
    /// Follows, and that is all for now.
    Following,
    /// Waits for a reservation on the target.
    TargetTurn,
    /// The target has no room. It gives the reservation when it has.
    TooFull,
    /// At work.
    Filling,
    /// Waits for the map in which the target acts.
    Done,
}
