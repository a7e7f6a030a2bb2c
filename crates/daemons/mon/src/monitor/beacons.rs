//! Daemons that send beacons, as the leader knows them.

use crate::state::ClusterState;
use messages::MdsHealth;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// When daemons that send beacons (managers, metadata servers) were heard of; the leader's alone.
#[derive(Default)]
pub(crate) struct BeaconWatch {
    pub heard: BTreeMap<u64, Instant>,
    pub looked: Option<Instant>,
}

impl BeaconWatch {
    pub fn heard(&mut self, gid: u64) {
        self.heard.insert(gid, Instant::now());
    }

    /// How long ago the last beacon of any daemon came.
    pub fn latest(&self, now: Instant) -> Option<Duration> {
        self.heard.values().max().map(|t| now.saturating_duration_since(*t))
    }

    /// Looks around at `now`: the managers of `known` that have been silent for longer than
    /// `grace`. One that was never heard of is so from now on. If the last look is longer ago than
    /// `away_after`, it was this monitor that did not hear.
    pub fn silent(
        &mut self,
        known: &[u64],
        now: Instant,
        grace: Duration,
        away_after: Duration,
    ) -> BTreeSet<u64> {
        let away = self.looked.replace(now).is_some_and(|t| now.duration_since(t) > away_after);
        if away {
            self.heard.clear();
        }
        self.heard.retain(|gid, _| known.contains(gid));
        known
            .iter()
            .copied()
            .filter(|g| now.saturating_duration_since(*self.heard.entry(*g).or_insert(now)) > grace)
            .collect()
    }
}

/// Metadata servers as the leader knows them. A new leader learns all of it from their beacons.
#[derive(Default)]
pub(crate) struct MdsWatch {
    pub beacons: BeaconWatch,
    /// What each complains of, by global id.
    pub health: BTreeMap<u64, MdsHealth>,
}

impl MdsWatch {
    /// What metadata servers complain of, by daemon name.
    pub fn complaints(&self, state: &ClusterState) -> Vec<(String, MdsHealth)> {
        let named = |(gid, health): (&u64, &MdsHealth)| {
            let name = state.fs.daemon(*gid)?.name.clone();
            (!health.metrics.is_empty()).then(|| (name, health.clone()))
        };
        self.health.iter().filter_map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_is_told_from_a_monitor_that_did_not_hear() {
        let (mut w, start) = (BeaconWatch::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        let mut silent = |s, heard: &[u64]| {
            for gid in heard {
                w.heard.insert(*gid, at(s));
            }
            w.silent(&[1, 2], at(s), Duration::from_secs(30), Duration::from_secs(28))
                .into_iter()
                .collect::<Vec<_>>()
        };
        // A manager that was never heard of has the whole grace.
        for s in (0..=30).step_by(5) {
            assert_eq!(silent(s, &[1]), [0u64; 0], "{s}");
        }
        assert_eq!(silent(35, &[1]), [2]);
        // A monitor that hung blames no manager.
        assert_eq!(silent(100, &[]), [0u64; 0]);
        assert_eq!(silent(125, &[]), [0u64; 0]);
        assert_eq!(silent(131, &[]), [1, 2]);
    }
}
