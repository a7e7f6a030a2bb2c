//! Everything that the OSDs report.

use crate::digest::{Digest, Joining, Rates};
use crate::jobs::Jobs;
use denc::{Bytes, Decode};
use messages::OsdStatsReport;
use std::collections::{BTreeMap, VecDeque};
use types::stats::{OsdStat, PgStat, PgState, PoolStat, StoreStatfs};
use types::{Epoch, IntervalSet, OsdId, PgId, PoolId, Utime};

/// Over how many digests rates are smoothed (Ceph: `mon_stat_smooth_intervals`).
const SMOOTHING: usize = 6;

/// What the map must know of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// Its number of groups.
    pub pg_num: u32,
    /// How many it should have.
    pub pg_num_target: u32,
}

/// One OSD's last report.
#[derive(Clone, Debug, Default)]
pub struct OsdReport {
    /// Epoch in which the reporting process was marked up: reports of earlier processes are
    /// ignored.
    pub up_from: Epoch,
    /// Counts the reports of that process.
    pub seq: u64,
    /// The map that it had.
    pub epoch: Epoch,
    /// Its statistics.
    pub stat: OsdStat,
    /// Its part of each pool.
    pub pools: BTreeMap<PoolId, StoreStatfs>,
    /// Named numbers (slow operations and others).
    pub counters: BTreeMap<String, u64>,
    /// When it arrived.
    pub at: Utime,
}

/// The statistics of the whole cluster.
#[derive(Clone, Debug, Default)]
pub struct PgMap {
    /// Counts digests.
    pub version: u64,
    /// When the last digest was made.
    pub stamp: Utime,
    /// Epoch of the last map that was applied.
    pub osdmap_epoch: Epoch,
    /// Last reports.
    pub osds: BTreeMap<OsdId, OsdReport>,
    /// Groups, those of existing pools only.
    pub pgs: BTreeMap<PgId, PgStat>,
    pools: BTreeMap<PoolId, PoolShape>,
    /// Reports of groups that only a newer map has.
    early: BTreeMap<PgId, PgStat>,
    samples: VecDeque<(Utime, PoolStat, BTreeMap<PoolId, PoolStat>)>,
    /// Background work.
    pub jobs: Jobs,
}

impl PgMap {
    /// Follows the OSD map: forgets pools and OSDs that are gone, adds groups of new pools as
    /// unknown, and marks groups whose primary is down as stale.
    pub fn handle_osd_map(
        &mut self,
        epoch: Epoch,
        pools: BTreeMap<PoolId, PoolShape>,
        exists: impl Fn(OsdId) -> bool,
        is_up: impl Fn(OsdId) -> bool,
        now: Utime,
    ) {
        self.osdmap_epoch = epoch;
        self.osds.retain(|id, _| exists(*id));
        self.pgs.retain(|id, _| pools.get(&id.pool).is_some_and(|p| id.seed < p.pg_num));
        for (pool, shape) in &pools {
            for seed in 0..shape.pg_num {
                self.pgs.entry(PgId { pool: *pool, seed }).or_insert_with(|| PgStat {
                    last_change: now,
                    last_fresh: now,
                    ..PgStat::default()
                });
            }
        }
        for (pgid, stat) in std::mem::take(&mut self.early) {
            match self.pgs.get_mut(&pgid) {
                Some(slot)
                    if (stat.reported_epoch, stat.reported_seq)
                        >= (slot.reported_epoch, slot.reported_seq) =>
                {
                    *slot = stat
                }
                None if stat.reported_epoch > epoch => drop(self.early.insert(pgid, stat)),
                _ => {}
            }
        }
        self.pools = pools;
        for stat in self.pgs.values_mut() {
            if stat.state != PgState(0)
                && !stat.state.has(PgState::STALE)
                && !is_up(stat.acting_primary)
            {
                stat.state.set(PgState::STALE, true);
                stat.last_change = now;
            }
        }
    }

    /// Takes a report. False if it is older than what is known, or cannot be read.
    pub fn handle_report(&mut self, report: &OsdStatsReport, now: Utime) -> bool {
        let known = self.osds.entry(report.osd).or_default();
        if (report.up_from, report.seq) < (known.up_from, known.seq) {
            return false;
        }
        let Ok(stat) = OsdStat::from_bytes(&report.osd_stat) else { return false };
        let statfs = |(pool, bytes): &(i64, Bytes)| {
            Some((PoolId(*pool), StoreStatfs::from_bytes(bytes).ok()?))
        };
        let pools: BTreeMap<PoolId, StoreStatfs> =
            report.pool_statfs.iter().filter_map(statfs).collect();
        if report.full {
            known.pools = pools;
        } else {
            known.pools.extend(pools);
        }
        let (heard, same) = (!known.at.is_zero(), known.up_from == report.up_from);
        self.jobs.note_osd(known, heard, same, &report.counters);
        known.up_from = report.up_from;
        known.seq = report.seq;
        known.epoch = report.epoch;
        known.stat = stat;
        known.counters = report.counters.clone();
        known.at = now;
        for (pgid, bytes) in &report.pg_stats {
            let Ok(stat) = PgStat::from_bytes(bytes) else { continue };
            let Some(slot) = self.pgs.get_mut(pgid) else {
                // A group that our map does not have yet: what does not change is not reported
                // again.
                if report.epoch > self.osdmap_epoch {
                    self.early.insert(*pgid, stat);
                }
                continue;
            };
            if (stat.reported_epoch, stat.reported_seq) >= (slot.reported_epoch, slot.reported_seq)
            {
                self.jobs.note_group(slot, &stat);
                *slot = stat;
            }
        }
        true
    }

    /// A pool's sums.
    pub fn pool_stat(&self, pool: PoolId) -> PoolStat {
        let mut sum = PoolStat::default();
        let range = PgId { pool, seed: 0 }..=PgId { pool, seed: u32::MAX };
        for (_, stat) in self.pgs.range(range) {
            sum.add_pg(stat);
        }
        for osd in self.osds.values() {
            if let Some(s) = osd.pools.get(&pool) {
                sum.add_store(s);
            }
        }
        sum
    }

    /// Sums by pool; every pool of the OSD map is there.
    pub fn pool_stats(&self) -> BTreeMap<PoolId, PoolStat> {
        let mut sums: BTreeMap<PoolId, PoolStat> =
            self.pools.keys().map(|p| (*p, PoolStat::default())).collect();
        for (pgid, stat) in &self.pgs {
            sums.entry(pgid.pool).or_default().add_pg(stat);
        }
        for osd in self.osds.values() {
            for (pool, s) in &osd.pools {
                if let Some(sum) = sums.get_mut(pool) {
                    sum.add_store(s);
                }
            }
        }
        sums
    }

    /// Sums over the OSDs for which `select` is true.
    pub fn osd_sum(&self, select: impl Fn(OsdId) -> bool) -> OsdStat {
        let mut sum = OsdStat::default();
        for (_, r) in self.osds.iter().filter(|(id, _)| select(**id)) {
            sum.add(&r.stat);
        }
        sum
    }

    /// Group replicas by OSD, counted by acting set.
    pub fn pgs_by_osd(&self) -> BTreeMap<OsdId, u32> {
        let mut n = BTreeMap::new();
        for osd in self.pgs.values().flat_map(|s| s.acting.iter()) {
            if osd.0 >= 0 {
                *n.entry(*osd).or_default() += 1;
            }
        }
        n
    }

    /// Makes the monitors' digest, and a sample for the rates. `class_of` gives an OSD's device
    /// class; `rule_avail` is filled in by the caller, which knows CRUSH.
    pub fn digest(&mut self, now: Utime, class_of: impl Fn(OsdId) -> Option<String>) -> Digest {
        self.version += 1;
        self.stamp = now;
        let pools = self.pool_stats();
        let mut pg_sum = PoolStat::default();
        for p in pools.values() {
            pg_sum.stats.sum.add(&p.stats.sum);
            pg_sum.log_size += p.log_size;
            pg_sum.ondisk_log_size += p.ondisk_log_size;
            pg_sum.up += p.up;
            pg_sum.acting += p.acting;
            pg_sum.store_stats.add(&p.store_stats);
            pg_sum.num_store_stats += p.num_store_stats;
        }
        let mut d = Digest {
            version: self.version,
            pg_sum,
            osd_sum: self.osd_sum(|_| true),
            pgs_by_osd: self.pgs_by_osd(),
            osd_seqs: self
                .osds
                .iter()
                .map(|(id, r)| (*id, OsdStat::seq_of(r.up_from, r.seq)))
                .collect(),
            osd_epochs: self.osds.iter().map(|(id, r)| (*id, r.epoch)).collect(),
            usage_by_osd: self
                .osds
                .iter()
                .map(|(id, r)| (*id, (r.stat.statfs.total, r.stat.statfs.available)))
                .collect(),
            ..Digest::default()
        };
        for (pgid, stat) in &self.pgs {
            *d.pgs_by_state.entry(stat.state.0).or_default() += 1;
            if stat.state.has(PgState::ACTIVE) {
                d.active_pgs.push(*pgid);
            }
            if !stat.state.has(PgState::ACTIVE | PgState::CLEAN) {
                d.unclean.push(*pgid);
            }
            let kib = (stat.stats.sum.num_bytes.max(0) as u64).div_ceil(1024);
            let sizes = d.group_kib.entry(pgid.pool).or_default();
            sizes.push(u32::try_from(kib).unwrap_or(u32::MAX));
        }
        // The groups that are joined next.
        for (pool, shape) in self.pools.iter().filter(|(_, s)| s.pg_num_target < s.pg_num) {
            let source = PgId { pool: *pool, seed: shape.pg_num - 1 };
            let target = source.merge_target(shape.pg_num, shape.pg_num - 1);
            for pgid in [Some(source), target].into_iter().flatten() {
                if let Some(s) = self.pgs.get(&pgid) {
                    let joining = Joining {
                        state: s.state.0,
                        version: s.version,
                        epoch: s.reported_epoch,
                        acting: s.acting.clone(),
                        clean: s.last_epoch_clean,
                    };
                    d.joining.insert(pgid, joining);
                }
            }
        }
        for (id, r) in &self.osds {
            if let Some(class) = class_of(*id) {
                d.osd_sum_by_class.entry(class).or_default().add(&r.stat);
            }
        }
        d.purged_snaps = self.purged_snaps();
        d.jobs = self.jobs.digest(now, &self.pgs, &self.osds);
        if let Some((then, sum, by_pool)) = self.samples.front() {
            let seconds = now.as_secs_f64() - then.as_secs_f64();
            d.rates = Rates::between(&sum.stats.sum, &pg_sum.stats.sum, seconds);
            for (pool, stat) in &pools {
                let before = by_pool.get(pool).copied().unwrap_or_default();
                let rates = Rates::between(&before.stats.sum, &stat.stats.sum, seconds);
                if rates != Rates::default() {
                    d.pool_rates.insert(*pool, rates);
                }
            }
        }
        d.pools = pools.clone();
        self.samples.push_back((now, pg_sum, pools));
        while self.samples.len() > SMOOTHING {
            self.samples.pop_front();
        }
        d
    }

    /// What every group of a pool has purged: the monitors forget a removed snapshot once all have.
    fn purged_snaps(&self) -> BTreeMap<PoolId, IntervalSet> {
        let mut out = BTreeMap::new();
        for pool in self.pools.keys() {
            let range = PgId { pool: *pool, seed: 0 }..=PgId { pool: *pool, seed: u32::MAX };
            let mut groups = self.pgs.range(range).map(|(_, stat)| &stat.purged_snaps);
            let Some(first) = groups.next().cloned() else { continue };
            let common = groups.fold(first, |c, mine| c.intersection(mine));
            if !common.is_empty() {
                out.insert(*pool, common);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use denc::{Encode, Features};

    fn pg(pool: i64, seed: u32) -> PgId {
        PgId { pool: PoolId(pool), seed }
    }

    fn report(osd: i32, seq: u64, pgs: Vec<(PgId, PgStat)>) -> OsdStatsReport {
        let mut stat = OsdStat::default();
        stat.statfs.total = 1000;
        stat.statfs.available = 600;
        OsdStatsReport {
            osd: OsdId(osd),
            seq,
            osd_stat: stat.to_bytes(Features::ALL),
            pg_stats: pgs.into_iter().map(|(id, s)| (id, s.to_bytes(Features::ALL))).collect(),
            ..OsdStatsReport::default()
        }
    }

    fn stat(seq: u64, writes: i64) -> PgStat {
        let mut s = PgStat {
            state: PgState::ACTIVE | PgState::CLEAN,
            reported_seq: seq,
            acting: vec![OsdId(0), OsdId(1)],
            acting_primary: OsdId(0),
            ..PgStat::default()
        };
        s.stats.sum.num_wr = writes;
        s.stats.sum.num_wr_kb = writes * 4;
        s
    }

    #[test]
    fn gathers_and_digests() {
        let mut m = PgMap::default();
        let t = |s: u32| Utime::new(1_000_000_000 + s, 0);
        m.handle_osd_map(
            Epoch(5),
            [(PoolId(1), PoolShape { pg_num: 2, pg_num_target: 2 })].into(),
            |_| true,
            |_| true,
            t(0),
        );
        assert_eq!(m.digest(t(0), |_| None).pgs_by_state, [(0, 2)].into());
        assert!(m.handle_report(
            &report(0, 1, vec![(pg(1, 0), stat(1, 100)), (pg(9, 0), stat(1, 7))]),
            t(1)
        ));
        assert!(!m.pgs.contains_key(&pg(9, 0)), "groups of unknown pools are not kept");
        let d = m.digest(t(10), |_| Some("ssd".into()));
        assert_eq!(d.pgs_by_state[&(PgState::ACTIVE | PgState::CLEAN).0], 1);
        assert_eq!(d.rates.write_ops, 10);
        assert_eq!(d.rates.write_bytes, 40 * 1024);
        assert_eq!(d.pool_rates[&PoolId(1)].write_ops, 10);
        assert_eq!(d.osd_sum_by_class["ssd"].statfs.total, 1000);
        assert_eq!(d.pgs_by_osd[&OsdId(1)], 1);
        // An older report of the group, from a former primary, does not go back in time.
        m.handle_report(&report(1, 1, vec![(pg(1, 0), stat(0, 1))]), t(11));
        assert_eq!(m.pgs[&pg(1, 0)].stats.sum.num_wr, 100);
        assert!(!m.handle_report(&report(0, 0, vec![]), t(12)), "an older report of the same OSD");
        m.handle_osd_map(
            Epoch(6),
            [(PoolId(1), PoolShape { pg_num: 2, pg_num_target: 2 })].into(),
            |_| true,
            |o| o != OsdId(0),
            t(13),
        );
        assert!(m.pgs[&pg(1, 0)].state.has(PgState::STALE));
        m.handle_osd_map(Epoch(7), BTreeMap::new(), |o| o != OsdId(0), |_| true, t(14));
        assert!(m.pgs.is_empty() && m.osds.len() == 1);
    }
}
