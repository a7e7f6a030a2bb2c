//! What the leader remembers of OSDs between messages. None of it is replicated: a new leader learns it
//! again within a beacon's interval, and until then decides nothing that depends on it.

use super::clean::LastEpochClean;
use crate::osd_state::OsdMapExt;
use std::collections::{BTreeMap, BTreeSet};
use types::{Epoch, OsdId, OsdMap, Utime};

/// Reports that an OSD does not answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failure {
    /// By reporter: since when, as the reporter says.
    pub reporters: BTreeMap<OsdId, Utime>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct OsdWatch {
    /// When an OSD was last heard of, and how often it means to report, in seconds.
    pub last_report: BTreeMap<OsdId, (Utime, u64)>,
    /// OSDs that others call silent.
    pub failures: BTreeMap<OsdId, Failure>,
    /// By OSD: the map that it had when it last reported.
    pub has_map: BTreeMap<OsdId, Epoch>,
    /// Up to when groups were clean.
    pub last_epoch_clean: LastEpochClean,
    /// Down OSDs, since when this leader knows of it.
    pub down_since: BTreeMap<OsdId, Utime>,
}

impl OsdWatch {
    /// Whether the reports against `target` are enough to mark it down. Reporters in the same subtree
    /// count once, as one broken host would convict all others. Where there are fewer subtrees with
    /// other OSDs than `min_reporters`, all of them must agree: a cluster on one host could otherwise
    /// never mark an OSD down.
    pub fn convicts(
        &mut self,
        map: &OsdMap,
        target: OsdId,
        now: Utime,
        grace_secs: u64,
        min_reporters: u64,
        level: &str,
    ) -> bool {
        let Some(failure) = self.failures.get_mut(&target) else { return false };
        failure.reporters.retain(|r, _| map.is_up(*r));
        let subtree = |osd: OsdId| {
            map.crush
                .full_location(osd.0)
                .into_iter()
                .find(|(kind, _)| kind == level)
                .map_or_else(|| format!("osd.{osd}"), |(_, name)| name)
        };
        let Some(since) = failure.reporters.values().max().copied() else {
            self.failures.remove(&target);
            return false;
        };
        let agree: BTreeSet<String> = failure.reporters.keys().map(|r| subtree(*r)).collect();
        let possible: BTreeSet<String> =
            map.osds().filter(|o| *o != target && map.is_up(*o)).map(subtree).collect();
        let needed = (min_reporters as usize).min(possible.len()).max(1);
        agree.len() >= needed && now.since(since).as_secs() >= grace_secs
    }

    /// Forgets what belongs to an OSD's previous life.
    pub fn booted(&mut self, osd: OsdId, now: Utime) {
        self.failures.remove(&osd);
        self.down_since.remove(&osd);
        let interval = self.last_report.get(&osd).map_or(0, |(_, i)| *i);
        self.last_report.insert(osd, (now, interval));
    }

    /// Forgets an OSD that is down.
    pub fn went_down(&mut self, osd: OsdId) {
        self.failures.remove(&osd);
        self.last_report.remove(&osd);
        for f in self.failures.values_mut() {
            f.reporters.remove(&osd);
        }
        self.failures.retain(|_, f| !f.reporters.is_empty());
    }
}
