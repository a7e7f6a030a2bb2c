//! Whom a primary must ask before it may decide.

use std::collections::{BTreeMap, BTreeSet};

use types::{Epoch, OsdId};

use crate::info::PgHistory;
use crate::map::{MapView, Mapping};
use crate::past_intervals::PastIntervals;

/// Whom a primary must ask before it may decide (Ceph: `PastIntervals::PriorSet`).
///
/// A write was acknowledged only after every acting OSD of its interval had it, so one survivor of
/// each interval that may have taken writes is enough to know them all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PriorSet {
    /// OSDs to ask, all of them up, and since when: who restarts must be asked again.
    pub probe: BTreeMap<OsdId, Epoch>,
    /// OSDs that would be asked if they were up.
    pub down: BTreeSet<OsdId>,
    /// Those of them for which intervals have no survivor, with the epoch at which their data was
    /// last declared lost: when one starts, or is declared lost, the set is another.
    pub blocked_by: BTreeMap<OsdId, Epoch>,
    /// Of some interval nobody can be asked, and somebody may come back.
    pub blocked: bool,
}

impl PriorSet {
    /// Works the set out. Intervals before `last_epoch_started` do not matter: whoever took part in
    /// that activation knows what was before it.
    pub fn build(
        map: &dyn MapView,
        mapping: &Mapping,
        past: &PastIntervals,
        history: &PgHistory,
    ) -> Self {
        let mut set = Self::default();
        let serving = mapping.up.iter().chain(&mapping.acting).copied().filter(|&o| map.is_up(o));
        set.probe.extend(serving.map(|o| (o, map.up_from(o))));
        for interval in past.intervals.iter().filter(|i| i.last >= history.last_epoch_started) {
            let (mut any_up, mut down) = (false, Vec::new());
            for &osd in &interval.acting {
                if map.is_up(osd) {
                    set.probe.insert(osd, map.up_from(osd));
                    // Who lost its data since then cannot vouch for it, though it is up.
                    any_up |= map.lost_at(osd) <= interval.first;
                } else if map.exists(osd) && map.lost_at(osd) <= interval.first {
                    down.push((osd, map.lost_at(osd)));
                }
            }
            set.down.extend(down.iter().map(|(osd, _)| *osd));
            if !any_up && !down.is_empty() {
                set.blocked = true;
                set.blocked_by.extend(down);
            }
        }
        set
    }
}
