//! What the manager knows.

use crate::autoscaler::Goals;
use crate::balancer::Balancer;
use crate::counters::Counters;
use crate::crash::Crashes;
use crate::health_history::HealthHistory;
use crate::services::Services;
use crate::telemetry;
use messages::{HealthChecks, MgrDigest, OsdStatsReport};
use pgmap::df::PoolRow;
use pgmap::health::ScrubLimits;
use pgmap::map::PoolShape;
use pgmap::{Digest, PgMap, PingLimits};
use promises::Serving;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::pool::PoolOptValue;
use types::{Epoch, FsMap, OsdId, OsdMap, PgId, PgStat, PoolId, Utime};

/// Whether it is shown what goes on.
#[derive(Debug)]
pub struct Progress {
    /// It is.
    pub on: bool,
    /// What was over at this time is not shown.
    pub cleared: Cell<Utime>,
}

impl Default for Progress {
    fn default() -> Self {
        Progress { on: true, cleared: Cell::default() }
    }
}

/// A pool as commands of file systems show it.
#[derive(Clone, Debug, Default)]
pub struct PoolLine {
    /// Its name.
    pub name: String,
    /// Bytes that it uses.
    pub used: u64,
    /// Bytes that still fit.
    pub avail: u64,
}

/// The manager's state: the OSD map, and what the OSDs reported.
#[derive(Default)]
pub struct MgrState {
    /// The newest map.
    pub osd_map: Option<Arc<OsdMap>>,
    /// Statistics.
    pub pg_map: PgMap,
    /// The last digest that was made.
    pub digest: Digest,
    /// How long clients' operations take.
    pub clients: crate::latency::Clients,
    /// When a missing scrub is worth a warning.
    pub scrub_limits: ScrubLimits,
    /// When slow pings are.
    pub ping_limits: PingLimits,
    /// How many groups pools should have.
    pub goals: Goals,
    /// The balancer; its commands change it.
    pub balancer: RefCell<Balancer>,
    /// Whether it is shown what goes on, and since when.
    pub progress: Progress,
    /// What reports about the cluster have.
    pub telemetry: telemetry::Settings,
    /// Health checks that were raised.
    pub health_history: RefCell<HealthHistory>,
    /// Reports of crashes.
    pub crashes: Crashes,
    /// For how many seconds a crash is worth a warning.
    pub crash_recent: u64,
    /// File systems, as the monitors last sent them.
    pub fs_map: Arc<FsMap>,
    /// What metadata servers reported.
    pub counters: Counters,
    /// Daemons that registered as a service.
    pub services: Services,
    /// The health checks that went with it.
    pub health: HealthChecks,
}

impl MgrState {
    /// Follows a new map.
    pub fn handle_osd_map(&mut self, map: Arc<OsdMap>, now: Utime) {
        let pools = map
            .pools
            .iter()
            .map(|(id, p)| (*id, PoolShape { pg_num: p.pg_num, pg_num_target: p.pg_num_target }))
            .collect();
        self.pg_map.handle_osd_map(map.epoch, pools, |o| map.exists(o), |o| map.is_up(o), now);
        self.osd_map = Some(map);
    }

    /// Takes a new map of file systems. Daemons that are not in it are forgotten.
    pub fn handle_fs_map(&mut self, map: FsMap) {
        self.counters.keep(|name| map.daemons().any(|i| i.name == name));
        self.fs_map = Arc::new(map);
    }

    /// Pools by number, as commands about file systems show them.
    pub fn pool_lines(&self) -> BTreeMap<i64, PoolLine> {
        let Some(map) = &self.osd_map else { return BTreeMap::new() };
        let line = |(id, p): (&PoolId, &types::PgPool)| {
            let name = map.pool_names.get(id).cloned().unwrap_or_default();
            let row = PoolRow {
                id: *id,
                name: name.clone(),
                pg_num: p.pg_num,
                raw_used_rate: map.raw_used_rate(p),
                rule: u32::from(p.crush_rule),
                quota_objects: p.quota_max_objects,
                quota_bytes: p.quota_max_bytes,
            };
            let (used, avail) = (self.digest.used(&row), self.digest.max_avail(&row));
            (id.0, PoolLine { name, used, avail })
        };
        map.pools.iter().map(line).collect()
    }

    /// Takes an OSD's report; false if it told nothing new.
    pub fn handle_report(&mut self, report: &OsdStatsReport, now: Utime) -> bool {
        self.pg_map.handle_report(report, now)
    }

    /// What was last heard of each group of a pool.
    fn groups(&self, pool: PoolId) -> impl Iterator<Item = &PgStat> {
        self.pg_map
            .pgs
            .range(PgId { pool, seed: 0 }..=PgId { pool, seed: u32::MAX })
            .map(|(_, s)| s)
    }

    /// Whether it is an OSD that is up; without a map all are taken to be.
    fn is_up(&self, osd: OsdId) -> bool {
        osd.0 >= 0 && self.osd_map.as_ref().is_none_or(|m| m.is_up(osd))
    }

    /// The OSDs that lead groups of a pool, as they reported. Where that one is down, all others
    /// that act for the group: one of them leads it now, and says so within a second or two.
    pub fn primaries(&self, pool: PoolId) -> BTreeSet<OsdId> {
        let mut leads = BTreeSet::new();
        for s in self.groups(pool).filter(|s| s.acting_primary.0 >= 0) {
            if self.is_up(s.acting_primary) {
                leads.insert(s.acting_primary);
            } else {
                leads.extend(s.acting.iter().filter(|o| self.is_up(**o)));
            }
        }
        leads
    }

    /// The OSDs that serve a pool. Where the leader of a PG is down, the next one that acts for it
    /// leads, as far as is known.
    pub fn serving(&self, pool: PoolId) -> Serving {
        let mut serving = Serving::default();
        for s in self.groups(pool) {
            let leader = [s.acting_primary]
                .into_iter()
                .chain(s.acting.iter().copied())
                .find(|o| self.is_up(*o));
            serving.leads.extend(leader);
            serving.acts.extend(
                leader
                    .into_iter()
                    .chain(s.acting.iter().chain(&s.up).copied().filter(|o| o.0 >= 0)),
            );
        }
        serving
    }

    /// The epoch of the map that is known.
    pub fn epoch(&self) -> Epoch {
        self.osd_map.as_ref().map_or(Epoch(0), |m| m.epoch)
    }

    /// Makes the digest and the health checks of this moment, except for those of the numbers of
    /// PGs.
    pub fn refresh(&mut self, now: Utime) {
        let map = self.osd_map.clone();
        let class_of =
            |o: OsdId| map.as_ref().and_then(|m| m.crush.item_class(o.0).map(str::to_owned));
        let mut digest = self.pg_map.digest(now, class_of);
        if let Some(map) = &map {
            digest.rule_avail = rule_avail(map, &self.pg_map);
        }
        self.note_paused(&mut digest);
        digest.clients = self.clients.measured(now.as_secs_f64());
        self.digest = digest;
        self.health = self.pg_map.health_checks(now);
        let interval = |pool: PoolId, name| match map.as_ref()?.pool(pool)?.opts.get(name)? {
            PoolOptValue::Double(seconds) if *seconds > 0.0 => Some(*seconds),
            _ => None,
        };
        let pool =
            |pool| (interval(pool, "scrub_max_interval"), interval(pool, "deep_scrub_interval"));
        self.health.checks.extend(self.crashes.check(self.crash_recent, now));
        self.health.checks.extend(self.services.check());
        let name = |id: PoolId| {
            let known = map.as_ref().and_then(|m| m.pool_names.get(&id).cloned());
            known.unwrap_or_else(|| id.to_string())
        };
        let checks = self.pg_map.scrub_checks(now, &self.scrub_limits, pool, name);
        self.health.checks.extend(checks.checks);
        if let Some(map) = &map {
            self.health.checks.extend(self.pg_map.ping_checks(now, &self.ping_limits, map).checks);
        }
    }

    /// Which jobs are held up, and by what.
    fn note_paused(&self, digest: &mut Digest) {
        use types::rados::osdmap_flag as flag;
        let is = |bit| self.osd_map.as_ref().is_some_and(|m| m.has_flag(bit));
        let deletion = self
            .pg_map
            .osds
            .values()
            .any(|r| r.counters.get("job_delete_paused").is_some_and(|n| *n > 0));
        let all_scrubs = is(flag::NOSCRUB) && is(flag::NODEEP_SCRUB);
        for (name, why, on) in [
            ("recovery", "norecover", is(flag::NORECOVER)),
            ("backfill", "norecover", is(flag::NORECOVER)),
            ("backfill", "nobackfill", is(flag::NOBACKFILL)),
            ("rebalance", "norecover", is(flag::NORECOVER)),
            ("rebalance", "nobackfill", is(flag::NOBACKFILL)),
            ("rebalance", "norebalance", is(flag::NOREBALANCE)),
            ("trim", "nosnaptrim", is(flag::NOSNAPTRIM)),
            ("scrub", "noscrub", all_scrubs),
            ("scrub", "nodeep-scrub", all_scrubs),
            ("delete", "osd_pause_pg_deletion", deletion),
        ] {
            if let Some(job) = digest.jobs.get_mut(name).filter(|_| on) {
                job.paused.push(why.to_owned());
            }
        }
    }

    /// The message for the monitors, without the manager's own identity.
    pub fn digest_message(&self) -> MgrDigest {
        use denc::{Encode, Features};
        let quiet =
            (!self.progress.on).then(|| Digest { jobs: Default::default(), ..self.digest.clone() });
        MgrDigest {
            available: true,
            pg_digest: quiet.as_ref().unwrap_or(&self.digest).to_bytes(Features::ALL),
            health: self.health.clone(),
            ..MgrDigest::default()
        }
    }
}

/// Raw bytes that can still be written under each rule before the first of its OSDs is full: data
/// spreads over the rule's OSDs by weight, so the one with the least room for its share decides
/// (Ceph: `PGMap::get_rule_avail`).
fn rule_avail(map: &OsdMap, pg_map: &PgMap) -> BTreeMap<u32, u64> {
    let mut out = BTreeMap::new();
    for rule in map.pools.values().map(|p| u32::from(p.crush_rule)) {
        if out.contains_key(&rule) {
            continue;
        }
        let weights = map.crush.rule_weights(rule as i32);
        let effective = |osd: i32, w: f64| w * map.weight(OsdId(osd));
        let total: f64 = weights.iter().map(|(o, w)| effective(*o, *w)).sum();
        let mut least: Option<f64> = None;
        for (osd, w) in &weights {
            let share = effective(*osd, *w) / total;
            let Some(report) = pg_map.osds.get(&OsdId(*osd)) else { continue };
            if share.is_nan() || share <= 0.0 || report.stat.statfs.total == 0 {
                continue;
            }
            let fs = &report.stat.statfs;
            let unusable = fs.total as f64 * (1.0 - f64::from(map.full_ratio));
            let room = (fs.available as f64 - unusable).max(0.0) / share;
            least = Some(least.map_or(room, |l| l.min(room)));
        }
        out.insert(rule, least.unwrap_or(0.0) as u64);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::osdmap::Osd;
    use types::rados::osd_state;

    #[test]
    fn while_a_leader_is_down_any_other_may_lead() {
        let mut s = MgrState::default();
        let stat = |acting: [i32; 3]| PgStat {
            acting: acting.map(OsdId).into(),
            acting_primary: OsdId(acting[0]),
            ..PgStat::default()
        };
        let pool = PoolId(3);
        s.pg_map.pgs.insert(PgId { pool, seed: 0 }, stat([0, 1, 2]));
        s.pg_map.pgs.insert(PgId { pool, seed: 1 }, stat([3, 2, 0]));
        s.pg_map.pgs.insert(PgId { pool: PoolId(4), seed: 0 }, stat([5, 1, 4]));
        let osds = |numbers: &[i32]| numbers.iter().copied().map(OsdId).collect::<BTreeSet<_>>();
        assert_eq!(s.primaries(pool), osds(&[0, 3]), "without a map all are taken to be up");
        let up = |o: i32| Osd {
            state: osd_state::EXISTS | if o == 0 { 0 } else { osd_state::UP },
            ..Osd::default()
        };
        s.osd_map = Some(Arc::new(OsdMap { osds: (0..6).map(up).collect(), ..OsdMap::default() }));
        assert_eq!(s.primaries(pool), osds(&[1, 2, 3]));
        let serving = s.serving(pool);
        assert_eq!((serving.leads, serving.acts), (osds(&[1, 3]), osds(&[0, 1, 2, 3])));
        // One that is to act for a group does not yet.
        s.pg_map.pgs.insert(
            PgId { pool, seed: 2 },
            PgStat { up: [4, 3].map(OsdId).into(), ..stat([3, 2, 1]) },
        );
        assert_eq!(
            (s.serving(pool).leads, s.serving(pool).acts),
            (osds(&[1, 3]), osds(&[0, 1, 2, 3, 4]))
        );
    }
}
