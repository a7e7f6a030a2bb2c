//! Whom a primary must ask before it may decide.

use std::collections::{BTreeMap, BTreeSet};

use types::{Epoch, OsdId, PgShard};

use crate::backend::Backend;
use crate::info::PgHistory;
use crate::map::{MapView, Mapping};
use crate::past_intervals::PastIntervals;

/// The copies that a primary must ask before it may decide (Ceph: `PastIntervals::PriorSet`).
///
/// A write was acknowledged only after every acting copy of its interval had its part of it. Of
/// each interval that may have taken writes there must be survivors that are enough
/// ([`Backend::recoverable`]): in a replicated pool, any one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PriorSet {
    /// Copies to ask, all of them on OSDs that are up, and since when: after a restart of its OSD a
    /// copy must be asked again.
    pub probe: BTreeMap<PgShard, Epoch>,
    /// OSDs that would be asked if they were up.
    pub down: BTreeSet<OsdId>,
    /// Those of them for which intervals have too few survivors, with the epoch at which their data
    /// was last declared lost: when one starts, or is declared lost, the set is another.
    pub blocked_by: BTreeMap<OsdId, Epoch>,
    /// Of some interval too few can be asked, and others may come back.
    pub blocked: bool,
}

impl PriorSet {
    /// Works the set out. Intervals before `last_epoch_started` do not matter: a copy that took
    /// part in that activation knows what was before it.
    pub fn build(
        map: &dyn MapView,
        backend: &dyn Backend,
        mapping: &Mapping,
        past: &PastIntervals,
        history: &PgHistory,
    ) -> Self {
        let mut set = Self::default();
        let named = mapping.up.iter().chain(mapping.acting.iter()).copied();
        let serving = named.filter(|c| map.is_up(c.osd));
        set.probe.extend(serving.map(|c| (c, map.up_from(c.osd))));
        for interval in past.intervals.iter().filter(|i| i.last >= history.last_epoch_started) {
            let (mut survivors, mut down) = (Vec::new(), Vec::new());
            for &copy in &interval.acting {
                let osd = copy.osd;
                if map.is_up(osd) {
                    set.probe.insert(copy, map.up_from(osd));
                    // An OSD that lost its data since then cannot vouch for it, though it is up.
                    if map.lost_at(osd) <= interval.first {
                        survivors.push(copy);
                    }
                } else if map.exists(osd) && map.lost_at(osd) <= interval.first {
                    down.push((osd, map.lost_at(osd)));
                }
            }
            set.down.extend(down.iter().map(|(osd, _)| *osd));
            if !backend.recoverable(&mut survivors.into_iter()) && !down.is_empty() {
                set.blocked = true;
                set.blocked_by.extend(down);
            }
        }
        set
    }
}
