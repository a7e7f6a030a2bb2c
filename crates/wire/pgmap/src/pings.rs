//! OSDs with slow pings (Ceph: `PGMap::get_health_checks`, SLOW_PING_TIME, in mon/PGMap.cc).

use crate::map::PgMap;
use messages::{HealthCheck, HealthChecks};
use types::stats::U32x3;
use types::{OsdId, OsdMap, Utime};

/// Lines of detail per network.
const DETAIL_MAX: usize = 10;

/// When pings are worth a warning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PingLimits {
    /// Microseconds on average that are too many: `mon_warn_on_slow_ping_time`, or, if that is 0,
    /// `mon_warn_on_slow_ping_ratio` of `osd_heartbeat_grace`. 0 for never.
    pub slow: f64,
    /// Seconds after which a time says nothing any more: 60 times `osd_heartbeat_grace`.
    pub old: u32,
}

impl Default for PingLimits {
    fn default() -> Self {
        PingLimits { slow: 1_000_000.0, old: 1200 }
    }
}

fn msec(us: u32) -> String {
    format!("{}.{:03}", us / 1000, us % 1000)
}

impl PgMap {
    /// The checks that ping times give at `now`.
    pub fn ping_checks(&self, now: Utime, limits: &PingLimits, map: &OsdMap) -> HealthChecks {
        let mut checks = HealthChecks::default();
        if limits.slow <= 0.0 {
            return checks;
        }
        let whose = |osd: OsdId| {
            // Hosts and roots say little: the one is close to the OSD's number, the other all have.
            let mut places: Vec<String> = map
                .crush
                .full_location(osd.0)
                .into_iter()
                .filter(|(kind, _)| kind != "root" && kind != "host")
                .map(|(_, name)| name)
                .collect();
            places.sort();
            format!(
                "osd.{} [{}]{}",
                osd.0,
                places.join(","),
                if map.is_up(osd) { "" } else { " (down)" }
            )
        };
        let recent = |stamp: u32| now.sec.saturating_sub(stamp) <= limits.old;
        for (network, code) in
            [("back", "OSD_SLOW_PING_TIME_BACK"), ("front", "OSD_SLOW_PING_TIME_FRONT")]
        {
            let mut slow: Vec<(u32, OsdId, OsdId, bool)> = Vec::new();
            for (from, report) in &self.osds {
                for (to, times) in
                    report.stat.hb_pingtime.iter().filter(|(_, t)| recent(t.last_update))
                {
                    let U32x3(one, five, fifteen) =
                        if network == "back" { times.back_pingtime } else { times.front_pingtime };
                    let most = one.max(five).max(fifteen);
                    if f64::from(most) > limits.slow {
                        slow.push((most, *from, *to, one < five && five < fifteen));
                    }
                }
            }
            slow.sort_unstable_by(|a, b| b.cmp(a));
            let Some((longest, ..)) = slow.first() else { continue };
            let line = |(us, from, to, better): &(u32, OsdId, OsdId, bool)| {
                let better = if *better { " possibly improving" } else { "" };
                format!(
                    "Slow OSD heartbeats on {network} from {} to {} {} msec{better}",
                    whose(*from),
                    whose(*to),
                    msec(*us)
                )
            };
            let mut detail: Vec<String> = slow.iter().take(DETAIL_MAX).map(line).collect();
            if slow.len() > DETAIL_MAX {
                detail.push("Truncated long network list.  Use ceph daemon osd.# dump_osd_network for more information".into());
            }
            let summary =
                format!("Slow OSD heartbeats on {network} (longest {}ms)", msec(*longest));
            checks.checks.insert(
                code.into(),
                HealthCheck {
                    severity: HealthCheck::WARN,
                    summary,
                    detail,
                    count: slow.len() as i64,
                },
            );
        }
        checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::osdmap::Osd;
    use types::rados::osd_state;
    use types::stats::PingTimes;

    #[test]
    fn slow_pings_are_told_the_slowest_first() {
        let mut m = PgMap::default();
        let now = Utime::new(10_000, 0);
        let mut ping = |from: i32, to: i32, times: (u32, u32, u32), age: u32| {
            let times = PingTimes {
                last_update: now.sec - age,
                back_pingtime: U32x3(times.0, times.1, times.2),
                ..PingTimes::default()
            };
            m.osds.entry(OsdId(from)).or_default().stat.hb_pingtime.insert(OsdId(to), times);
        };
        ping(0, 1, (1_500, 900, 800), 3);
        ping(1, 0, (2_000, 2_500, 3_250), 3);
        ping(0, 2, (900, 900, 900), 3);
        ping(1, 2, (9_000, 9_000, 9_000), 2_000);
        let up = Osd { state: osd_state::EXISTS | osd_state::UP, ..Osd::default() };
        let map = OsdMap {
            osds: vec![Osd { state: osd_state::EXISTS, ..Osd::default() }, up.clone(), up],
            ..OsdMap::default()
        };
        let limits = PingLimits { slow: 1_000.0, old: 1200 };
        let checks = m.ping_checks(now, &limits, &map).checks;
        assert_eq!(checks.keys().collect::<Vec<_>>(), ["OSD_SLOW_PING_TIME_BACK"]);
        let check = &checks["OSD_SLOW_PING_TIME_BACK"];
        assert_eq!(
            (check.summary.as_str(), check.count),
            ("Slow OSD heartbeats on back (longest 3.250ms)", 2)
        );
        assert_eq!(
            check.detail,
            [
                "Slow OSD heartbeats on back from osd.1 [] to osd.0 [] (down) 3.250 msec possibly improving",
                "Slow OSD heartbeats on back from osd.0 [] (down) to osd.1 [] 1.500 msec",
            ]
        );
        assert!(m.ping_checks(now, &PingLimits { slow: 0.0, old: 1200 }, &map).checks.is_empty());
        for to in 10..30 {
            m.osds.entry(OsdId(2)).or_default().stat.hb_pingtime.insert(
                OsdId(to),
                PingTimes {
                    last_update: now.sec,
                    back_pingtime: U32x3(5_000, 0, 0),
                    ..PingTimes::default()
                },
            );
        }
        let check = &m.ping_checks(now, &limits, &map).checks["OSD_SLOW_PING_TIME_BACK"];
        assert_eq!((check.count, check.detail.len()), (22, DETAIL_MAX + 1));
    }
}
