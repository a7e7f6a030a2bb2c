//! Health checks that follow from the states of placement groups (Ceph:
//! `PGMap::get_health_checks`).

use crate::map::{OsdReport, PgMap};
use messages::{HealthCheck, HealthChecks};
use std::collections::BTreeMap;
use types::stats::{PgStat, PgState};
use types::{PgId, PoolId, Utime};

/// How long a group may be in passing before it counts as stuck, in seconds
/// (`mon_pg_stuck_threshold`).
const STUCK_AFTER_SECS: f64 = 60.0;
/// Detail lines per check (`mon_health_max_detail`).
const DETAIL_MAX: usize = 50;

/// What a state means for clients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Consequence {
    Unavailable,
    Degraded,
    RecoveryFull,
    BackfillFull,
    Damaged,
}

impl Consequence {
    fn check(self) -> (&'static str, u8, &'static str) {
        match self {
            Consequence::Unavailable => {
                ("PG_AVAILABILITY", HealthCheck::WARN, "Reduced data availability: ")
            }
            Consequence::Degraded => {
                ("PG_DEGRADED", HealthCheck::WARN, "Degraded data redundancy: ")
            }
            Consequence::RecoveryFull => {
                ("PG_RECOVERY_FULL", HealthCheck::ERR, "Full OSDs blocking recovery: ")
            }
            Consequence::BackfillFull => (
                "PG_BACKFILL_FULL",
                HealthCheck::WARN,
                "Low space hindering backfill (add storage if this doesn't resolve itself): ",
            ),
            Consequence::Damaged => ("PG_DAMAGED", HealthCheck::ERR, "Possible data damage: "),
        }
    }
}

/// Reports the state only after it lasted: gives the time since when the group was not otherwise.
type Since = fn(&PgStat) -> Utime;

/// Which states are reported, as what, and from when on. `true`: it is the absence that counts.
const RESPONSES: &[(PgState, Consequence, Option<Since>, bool)] = &[
    (PgState::INCONSISTENT, Consequence::Damaged, None, false),
    (PgState::INCOMPLETE, Consequence::Unavailable, None, false),
    (PgState::SNAPTRIM_ERROR, Consequence::Damaged, None, false),
    (PgState::RECOVERY_UNFOUND, Consequence::Damaged, None, false),
    (PgState::BACKFILL_UNFOUND, Consequence::Damaged, None, false),
    (PgState::BACKFILL_TOOFULL, Consequence::BackfillFull, None, false),
    (PgState::RECOVERY_TOOFULL, Consequence::RecoveryFull, None, false),
    (PgState::DEGRADED, Consequence::Degraded, None, false),
    (PgState::DOWN, Consequence::Unavailable, None, false),
    (PgState::PEERING, Consequence::Unavailable, Some(|s| s.last_peered), false),
    (PgState::UNDERSIZED, Consequence::Degraded, Some(|s| s.last_fullsized), false),
    (PgState::STALE, Consequence::Unavailable, Some(|s| s.last_unstale), false),
    (PgState::ACTIVE, Consequence::Unavailable, Some(|s| s.last_active), true),
];

/// When a missing scrub is worth a warning. Seconds, and parts of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScrubLimits {
    /// `osd_scrub_max_interval`.
    pub max_interval: f64,
    /// `mon_warn_pg_not_scrubbed_ratio`; 0 for never.
    pub late: f64,
    /// `osd_deep_scrub_interval`.
    pub deep_interval: f64,
    /// `mon_warn_pg_not_deep_scrubbed_ratio`; 0 for never.
    pub deep_late: f64,
    /// `mon_osd_warn_num_repaired`.
    pub repaired: u64,
}

impl Default for ScrubLimits {
    fn default() -> Self {
        const WEEK: f64 = 7.0 * 86400.0;
        ScrubLimits {
            max_interval: WEEK,
            late: 0.5,
            deep_interval: WEEK,
            deep_late: 0.75,
            repaired: 10,
        }
    }
}

impl PgMap {
    /// The checks that scrubs and repairs give at `now`. `pool` tells the pool's own intervals,
    /// light and deep.
    pub fn scrub_checks(
        &self,
        now: Utime,
        limits: &ScrubLimits,
        pool: impl Fn(PoolId) -> (Option<f64>, Option<f64>),
        name: impl Fn(PoolId) -> String,
    ) -> HealthChecks {
        let mut checks = HealthChecks::default();
        let mut add = |code: &str, severity, summary, detail, count| {
            checks.checks.insert(code.into(), HealthCheck { severity, summary, detail, count });
        };
        let errors: i64 = self.pgs.values().map(|s| s.stats.sum.num_scrub_errors).sum();
        if errors > 0 {
            add(
                "OSD_SCRUB_ERRORS",
                HealthCheck::ERR,
                format!("{errors} scrub errors"),
                vec![],
                errors,
            );
        }
        let repaired: Vec<String> = self
            .osds
            .iter()
            .filter(|(_, r)| r.stat.num_shards_repaired > limits.repaired)
            .map(|(o, r)| format!("osd.{} had {} reads repaired", o.0, r.stat.num_shards_repaired))
            .collect();
        if !repaired.is_empty() {
            let n = repaired.len();
            add(
                "OSD_TOO_MANY_REPAIRS",
                HealthCheck::WARN,
                format!("Too many repaired reads on {n} OSDs"),
                repaired,
                n as i64,
            );
        }
        let mut large_of = BTreeMap::<PoolId, i64>::new();
        for (pgid, stat) in &self.pgs {
            *large_of.entry(pgid.pool).or_default() += stat.stats.sum.num_large_omap_objects;
        }
        large_of.retain(|_, n| *n > 0);
        let large: i64 = large_of.values().sum();
        if large > 0 {
            let found = |(pool, n): (&PoolId, &i64)| {
                format!("{n} large objects found in pool '{}'", name(*pool))
            };
            let mut detail: Vec<String> = large_of.iter().map(found).collect();
            detail.push(
                "Search the cluster log for 'Large omap object found' for more details.".to_owned(),
            );
            add(
                "LARGE_OMAP_OBJECTS",
                HealthCheck::WARN,
                format!("{large} large omap objects"),
                detail,
                large,
            );
        }
        for (code, what, late, deep) in [
            ("PG_NOT_SCRUBBED", "scrubbed", limits.late, false),
            ("PG_NOT_DEEP_SCRUBBED", "deep-scrubbed", limits.deep_late, true),
        ] {
            if late <= 0.0 {
                continue;
            }
            let mut detail = Vec::new();
            let mut total = 0;
            for (pgid, stat) in &self.pgs {
                let (own, own_deep) = pool(pgid.pool);
                let (stamp, interval) = match deep {
                    false => (stat.last_scrub_stamp, own.unwrap_or(limits.max_interval)),
                    true => (stat.last_deep_scrub_stamp, own_deep.unwrap_or(limits.deep_interval)),
                };
                // Of a group that was not reported yet, nothing is known.
                if stamp.is_zero()
                    || stamp.as_secs_f64() >= now.as_secs_f64() - interval * (1.0 + late)
                {
                    continue;
                }
                total += 1;
                if total <= DETAIL_MAX {
                    detail.push(format!("pg {pgid} not {what} since {stamp}"));
                }
            }
            if total > 0 {
                if total > DETAIL_MAX {
                    detail.push(format!("{} more pgs... ", total - DETAIL_MAX));
                }
                add(
                    code,
                    HealthCheck::WARN,
                    format!("{total} pgs not {what} in time"),
                    detail,
                    total as i64,
                );
            }
        }
        checks
    }

    /// The checks of what OSDs say of their capacity, and of floors.
    fn capacity_checks(&self, checks: &mut HealthChecks) {
        let counter =
            |counters: &BTreeMap<String, u64>, name| counters.get(name).copied().unwrap_or(0);
        let mut add = |code: &str, summary: &str, detail: Vec<String>| {
            if !detail.is_empty() {
                let (count, summary) = (detail.len() as i64, format!("{} {summary}", detail.len()));
                let detail = detail.into_iter().take(DETAIL_MAX).collect();
                checks.checks.insert(
                    code.into(),
                    HealthCheck { severity: HealthCheck::WARN, summary, detail, count },
                );
            }
        };
        let all = || self.osds.iter().map(|(o, r)| (o.0, &r.counters));
        let mismatch = all().filter_map(|(osd, c)| {
            let (set, learned) = (counter(c, "qos_capacity_set"), counter(c, "qos_capacity_learned"));
            let wrong = learned > 0 && set > learned.saturating_mul(2);
            let kind = if counter(c, "qos_rotational") > 0 { "hdd" } else { "ssd" };
            wrong.then(|| format!("osd.{osd} does about {learned} IOPS, and osd_mclock_max_capacity_iops_{kind} says {set}"))
        });
        add(
            "OSD_CAPACITY_MISMATCH",
            "OSDs do less than half of what is configured",
            mismatch.collect(),
        );
        let floors = all().filter_map(|(osd, c)| {
            let kept = c.get("qos_floors_scaled").copied().unwrap_or(1000);
            (kept < 1000)
                .then(|| format!("osd.{osd} keeps {}% of the floors of tenants", kept / 10))
        });
        add("OSD_FLOORS_OVERCOMMITTED", "OSDs cannot keep the floors of tenants", floors.collect());
    }

    /// The checks that the groups' states, and what OSDs report, give at `now`.
    pub fn health_checks(&self, now: Utime) -> HealthChecks {
        let mut checks = HealthChecks::default();
        for (consequence, concerned) in self.concerned(now) {
            let (code, check) = self.state_check(consequence, concerned);
            checks.checks.insert(code.into(), check);
        }
        checks.checks.extend(self.unfound_check().map(|check| ("OBJECT_UNFOUND".into(), check)));
        checks.checks.extend(self.slow_ops_check().map(|check| ("SLOW_OPS".into(), check)));
        self.capacity_checks(&mut checks);
        checks
    }

    /// The groups in states that are reported.
    fn concerned(&self, now: Utime) -> BTreeMap<Consequence, Concerned> {
        let mut found: BTreeMap<Consequence, Concerned> = BTreeMap::new();
        for (pgid, stat) in &self.pgs {
            for (state, consequence, since, inverted) in RESPONSES {
                if stat.state.has(*state) == *inverted {
                    continue;
                }
                let name = if *inverted { "inactive".to_string() } else { state.to_string() };
                let message = match since {
                    None => format!("pg {pgid} is {}", stat.state),
                    Some(since) => match stuck_for(stat, since(stat), now) {
                        None => continue,
                        Some(age) => format!(
                            "pg {pgid} is stuck {name} for {age}, current state {}",
                            stat.state
                        ),
                    },
                };
                let acting = stat.acting.iter().map(|o| o.0).collect::<Vec<_>>();
                let concerned = found.entry(*consequence).or_default();
                *concerned.states.entry(name).or_default() += 1;
                concerned.pgs.insert(*pgid, format!("{message}, last acting {acting:?}"));
            }
        }
        found
    }

    fn state_check(
        &self,
        consequence: Consequence,
        concerned: Concerned,
    ) -> (&'static str, HealthCheck) {
        let Concerned { states, pgs } = concerned;
        let (code, severity, prefix) = consequence.check();
        let mut parts: Vec<String> = states
            .iter()
            .map(|(s, n)| format!("{n} pg{} {s}", if *n == 1 { "" } else { "s" }))
            .collect();
        if consequence == Consequence::Degraded {
            let (degraded, copies) = self.pgs.values().fold((0, 0), |(d, c), s| {
                (d + s.stats.sum.num_objects_degraded, c + s.stats.sum.num_object_copies)
            });
            parts.splice(0..0, share(degraded, copies, "degraded"));
        }
        let check = HealthCheck {
            severity,
            summary: format!("{prefix}{}", parts.join(", ")),
            detail: pgs.into_values().take(DETAIL_MAX).collect(),
            count: states.values().map(|n| i64::from(*n)).sum(),
        };
        (code, check)
    }

    fn unfound_check(&self) -> Option<HealthCheck> {
        let (unfound, objects) = self.pgs.values().fold((0, 0), |(u, n), s| {
            (u + s.stats.sum.num_objects_unfound, n + s.stats.sum.num_objects)
        });
        let summary = share(unfound, objects, "unfound")?;
        let some = self.pgs.iter().filter(|(_, s)| s.stats.sum.num_objects_unfound > 0);
        let mut detail: Vec<String> = some
            .map(|(pgid, s)| {
                format!("pg {pgid} has {} unfound objects", s.stats.sum.num_objects_unfound)
            })
            .collect();
        if detail.len() > DETAIL_MAX {
            detail.truncate(DETAIL_MAX);
            detail.push("(additional pgs left out for brevity)".into());
        }
        Some(HealthCheck { severity: HealthCheck::WARN, summary, detail, count: unfound })
    }

    /// Ceph names the daemons only; where the operations are says whether it is they, their peers
    /// or their queues.
    fn slow_ops_check(&self) -> Option<HealthCheck> {
        let slow_on = |r: &OsdReport| r.counters.get("slow_ops").copied().unwrap_or(0);
        let slow: u64 = self.osds.values().map(slow_on).sum();
        if slow == 0 {
            return None;
        }
        let points = |r: &OsdReport| {
            let at = r
                .counters
                .iter()
                .filter_map(|(name, n)| Some((name.strip_prefix("slow_ops: ")?, *n)));
            at.map(|(point, n)| format!("{n} {point}")).collect::<Vec<_>>().join(", ")
        };
        let concerned: Vec<(String, &OsdReport)> = self
            .osds
            .iter()
            .filter(|(_, r)| slow_on(r) > 0)
            .map(|(o, r)| (format!("osd.{}", o.0), r))
            .collect();
        let names: Vec<&str> = concerned.iter().map(|(name, _)| name.as_str()).collect();
        let oldest_ms =
            self.osds.values().filter_map(|r| r.counters.get("slow_ops_oldest_ms")).max();
        let detail = concerned
            .iter()
            .map(|(name, r)| format!("{name} has {} slow ops: {}", slow_on(r), points(r)));
        Some(HealthCheck {
            severity: HealthCheck::WARN,
            summary: format!(
                "{slow} slow ops, oldest one blocked for {} sec, daemons [{}] have slow ops.",
                oldest_ms.copied().unwrap_or(0) / 1000,
                names.join(",")
            ),
            detail: detail.take(DETAIL_MAX).collect(),
            count: slow as i64,
        })
    }
}

/// The groups that a check is about.
#[derive(Default)]
struct Concerned {
    /// How many are in which state.
    states: BTreeMap<String, u32>,
    /// A line for each.
    pgs: BTreeMap<PgId, String>,
}

/// For how long a group is stuck that was last otherwise at `since`, if it is.
fn stuck_for(stat: &PgStat, since: Utime, now: Utime) -> Option<String> {
    let cutoff = now.as_secs_f64() - STUCK_AFTER_SECS;
    if since.is_zero() {
        return (stat.last_change.as_secs_f64() < cutoff).then(|| "forever".into());
    }
    let stuck = since.as_secs_f64() < cutoff;
    stuck.then(|| format!("{:.0}s", now.as_secs_f64() - since.as_secs_f64()))
}

/// A part of all objects in words, if there is any.
fn share(part: i64, all: i64, what: &str) -> Option<String> {
    let percent = part as f64 / all as f64 * 100.0;
    (part > 0 && all > 0).then(|| format!("{part}/{all} objects {what} ({percent:.3}%)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::PoolShape;
    use types::{Epoch, OsdId};

    #[test]
    fn slow_operations_are_told_with_their_age() {
        let mut m = PgMap::default();
        m.osds.entry(OsdId(2)).or_default().counters =
            [("slow_ops".to_owned(), 4), ("slow_ops_oldest_ms".to_owned(), 31_500)].into();
        let more = [
            ("slow_ops: queued for pg".to_owned(), 1),
            ("slow_ops: waiting for sub ops".to_owned(), 3),
        ];
        m.osds.entry(OsdId(2)).or_default().counters.extend(more);
        m.osds.entry(OsdId(3)).or_default();
        let checks = m.health_checks(Utime::new(1, 0)).checks;
        assert_eq!(
            checks["SLOW_OPS"].detail,
            ["osd.2 has 4 slow ops: 1 queued for pg, 3 waiting for sub ops"]
        );
        assert_eq!(
            checks["SLOW_OPS"].summary,
            "4 slow ops, oldest one blocked for 31 sec, daemons [osd.2] have slow ops."
        );
    }

    #[test]
    fn capacity_and_floors_raise_checks() {
        let mut m = PgMap::default();
        let mut checks = |counters: &[(&str, u64)]| {
            let counters = counters.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
            m.osds.entry(OsdId(3)).or_default().counters = counters;
            m.health_checks(Utime::new(1, 0))
                .checks
                .into_iter()
                .map(|(code, c)| (code, c.detail.concat()))
                .collect::<Vec<_>>()
        };
        for fine in [
            &[][..],
            &[("qos_capacity_set", 9000)],
            &[("qos_capacity_learned", 10)],
            &[
                ("qos_capacity_set", 200),
                ("qos_capacity_learned", 100),
                ("qos_floors_scaled", 1000),
            ],
            &[("qos_capacity_set", 200), ("qos_capacity_learned", 9000)],
        ] {
            assert_eq!(checks(fine), []);
        }
        let wrong = "osd.3 does about 100 IOPS, and osd_mclock_max_capacity_iops_ssd says 201";
        assert_eq!(
            checks(&[("qos_capacity_set", 201), ("qos_capacity_learned", 100)]),
            [("OSD_CAPACITY_MISMATCH".to_owned(), wrong.to_owned())]
        );
        let kept = "osd.3 keeps 45% of the floors of tenants";
        let wrong = wrong.replace("_ssd", "_hdd");
        assert_eq!(
            checks(&[
                ("qos_capacity_set", 201),
                ("qos_capacity_learned", 100),
                ("qos_rotational", 1)
            ]),
            [("OSD_CAPACITY_MISMATCH".to_owned(), wrong)]
        );
        assert_eq!(
            checks(&[("qos_floors_scaled", 450)]),
            [("OSD_FLOORS_OVERCOMMITTED".to_owned(), kept.to_owned())]
        );
    }

    #[test]
    fn scrubs_raise_checks() {
        let mut m = PgMap::default();
        let t = |s: u32| Utime::new(1_000_000_000 + s, 0);
        let day = 86400;
        m.handle_osd_map(
            Epoch(1),
            [(PoolId(1), PoolShape { pg_num: 2, pg_num_target: 2 })].into(),
            |_| true,
            |_| true,
            t(0),
        );
        let limits = ScrubLimits::default();
        let checks = |m: &PgMap, now, pool: (Option<f64>, Option<f64>)| {
            m.scrub_checks(now, &limits, |_| pool, |p| format!("p{}", p.0)).checks
        };
        assert!(checks(&m, t(0), (None, None)).is_empty(), "nothing was reported yet");
        for stat in m.pgs.values_mut() {
            (stat.last_scrub_stamp, stat.last_deep_scrub_stamp) = (t(0), t(0));
        }
        assert!(checks(&m, t(10 * day), (None, None)).is_empty());
        assert_eq!(
            checks(&m, t(11 * day), (None, None))["PG_NOT_SCRUBBED"].summary,
            "2 pgs not scrubbed in time"
        );
        let c = checks(&m, t(13 * day), (None, None));
        assert_eq!(c["PG_NOT_DEEP_SCRUBBED"].summary, "2 pgs not deep-scrubbed in time");
        assert!(
            c["PG_NOT_DEEP_SCRUBBED"].detail[0].starts_with("pg 1.0 not deep-scrubbed since "),
            "{c:?}"
        );
        assert!(
            checks(&m, t(13 * day), (Some(1e9), Some(1e9))).is_empty(),
            "the pool says otherwise"
        );
        m.pgs.values_mut().next().unwrap().stats.sum.num_scrub_errors = 3;
        m.osds.entry(OsdId(4)).or_default().stat.num_shards_repaired = 11;
        let c = checks(&m, t(0), (None, None));
        assert_eq!(
            (c["OSD_SCRUB_ERRORS"].summary.as_str(), c["OSD_SCRUB_ERRORS"].severity),
            ("3 scrub errors", HealthCheck::ERR)
        );
        assert_eq!(c["OSD_TOO_MANY_REPAIRS"].detail, ["osd.4 had 11 reads repaired"]);
    }

    #[test]
    fn unfound_objects_are_named_by_group() {
        let mut m = PgMap::default();
        let t = Utime::new(1_000_000_000, 0);
        m.handle_osd_map(
            Epoch(1),
            [(PoolId(1), PoolShape { pg_num: 1, pg_num_target: 1 })].into(),
            |_| true,
            |_| true,
            t,
        );
        let stat = m.pgs.values_mut().next().unwrap();
        (stat.stats.sum.num_objects, stat.stats.sum.num_objects_unfound) = (8, 2);
        let c = &m.health_checks(t).checks["OBJECT_UNFOUND"];
        assert_eq!(
            (c.summary.as_str(), c.severity),
            ("2/8 objects unfound (25.000%)", HealthCheck::WARN)
        );
        assert_eq!(c.detail, ["pg 1.0 has 2 unfound objects"]);
    }

    #[test]
    fn passing_states_are_not_reported_at_once() {
        let mut m = PgMap::default();
        let t = |s: u32| Utime::new(1_000_000_000 + s, 0);
        m.handle_osd_map(
            Epoch(1),
            [(PoolId(1), PoolShape { pg_num: 1, pg_num_target: 1 })].into(),
            |_| true,
            |_| true,
            t(0),
        );
        assert!(m.health_checks(t(10)).checks.is_empty());
        let c = m.health_checks(t(100)).checks;
        assert!(c["PG_AVAILABILITY"].summary.contains("1 pg inactive"), "{c:?}");
        let stat = m.pgs.values_mut().next().unwrap();
        stat.state = PgState::ACTIVE | PgState::DEGRADED;
        stat.last_active = t(100);
        let c = m.health_checks(t(100)).checks;
        assert_eq!(c.keys().collect::<Vec<_>>(), ["PG_DEGRADED"]);
    }
}
