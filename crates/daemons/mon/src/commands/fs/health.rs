//! Health checks of file systems and their metadata servers (Ceph 16.2: `FSMap::get_health_checks`,
//! `MDSMap::get_health_checks`, `MDSMonitor`).

use crate::mds_map::replacement;
use messages::{HealthCheck, MdsHealth};
use std::collections::BTreeMap;
use types::fsmap::{FsMap, MdsState};

/// Everything that is wrong, by check.
pub(in super::super) fn checks(
    map: &FsMap,
    complaints: &[(String, MdsHealth)],
) -> BTreeMap<&'static str, HealthCheck> {
    let rank = |name: &str| {
        let all = map.filesystems.values().flat_map(|fs| fs.map.mds_info.values());
        all.filter(|i| i.name == name).map(|i| i.rank).next().unwrap_or(-1)
    };
    let mut all = of_daemons(complaints, rank);
    let mut add = |code, severity, one: &str, many: &str, detail: Vec<String>| {
        let c = all.entry(code).or_insert_with(|| HealthCheck {
            severity,
            summary: String::new(),
            detail: Vec::new(),
            count: 0,
        });
        c.count += 1;
        c.detail.extend(detail);
        c.summary = match c.count {
            1 => format!("1 {one}"),
            n => format!("{n} {many}"),
        };
    };
    let (warn, err) = (HealthCheck::WARN, HealthCheck::ERR);
    let mut standbys_missing = 0;
    for fs in map.filesystems.values() {
        let (m, name) = (&fs.map, &fs.map.fs_name);
        for rank in &m.damaged {
            let detail = format!("fs {name} mds.{rank} is damaged");
            add("MDS_DAMAGE", err, "mds daemon damaged", "mds daemons damaged", vec![detail]);
        }
        if m.is_degraded() {
            let doing = |info: &types::fsmap::MdsInfo| {
                let what = match info.state {
                    MdsState::REPLAY => "is replaying journal",
                    MdsState::RESOLVE => "is resolving",
                    MdsState::RECONNECT => "is reconnecting to clients",
                    MdsState::REJOIN => "is rejoining",
                    _ => return None,
                };
                let (who, at, rank) = (&info.name, &info.addrs, info.rank);
                Some(format!("fs {name} mds.{who} at {at} rank {rank} {what}"))
            };
            let mut detail = vec![format!("fs {name} is degraded")];
            detail.extend(m.mds_info.values().filter_map(doing));
            let (one, many) = ("filesystem is degraded", "filesystems are degraded");
            add("FS_DEGRADED", warn, one, many, detail);
        }
        if (m.ranks_in.len() as i32) < m.max_mds {
            let (ranks, wanted) = (m.ranks_in.len(), m.max_mds);
            let detail = format!("fs {name} has {ranks} MDS online, but wants {wanted}");
            let one = "filesystem is online with fewer MDS than max_mds";
            let many = "filesystems are online with fewer MDS than max_mds";
            add("MDS_UP_LESS_THAN_MAX", warn, one, many, vec![detail]);
        }
        if m.up.is_empty() && m.max_mds > 0 {
            let detail = format!("fs {name} is offline because no MDS is active for it.");
            let (one, many) = ("filesystem is offline", "filesystems are offline");
            add("MDS_ALL_DOWN", err, one, many, vec![detail]);
        }
        if m.inline_data_enabled {
            let detail = format!("fs {name} has deprecated feature inline_data enabled.");
            let one = "filesystem with deprecated feature inline_data";
            let many = "filesystems with deprecated feature inline_data";
            add("FS_INLINE_DATA_DEPRECATED", warn, one, many, vec![detail]);
        }
        // A rank that another daemon is about to get is no reason to worry.
        let stuck = m.failed.iter().filter(|r| replacement(map, fs.id, **r).is_none()).count();
        if stuck > 0 {
            let plural = if stuck == 1 { "" } else { "s" };
            let detail = format!("fs {name} has {stuck} failed mds{plural}");
            let one = "filesystem has a failed mds daemon";
            let many = "filesystems have a failed mds daemon";
            add("FS_WITH_FAILED_MDS", warn, one, many, vec![detail]);
        }
        standbys_missing = standbys_missing.max(m.standbys_missing(map.standby_daemons.len()));
    }
    if standbys_missing > 0 {
        let have = map.standby_daemons.len();
        all.insert(
            "MDS_INSUFFICIENT_STANDBY",
            HealthCheck {
                severity: warn,
                summary: "insufficient standby MDS daemons available".to_owned(),
                detail: vec![format!("have {have}; want {standbys_missing} more")],
                count: 1,
            },
        );
    }
    all
}

/// What metadata servers complain of (Ceph: `mds_metric_name`,
/// `mds_metric_summary`): by check, the severity, the summary and the details.
fn of_daemons(
    complaints: &[(String, MdsHealth)],
    rank: impl Fn(&str) -> i32,
) -> BTreeMap<&'static str, HealthCheck> {
    let mut all: BTreeMap<&'static str, HealthCheck> = BTreeMap::new();
    for (name, health) in complaints {
        for m in &health.metrics {
            let Some((code, summary)) = check(m.kind) else { continue };
            let severity = match m.severity {
                0 => HealthCheck::ERR,
                _ => HealthCheck::WARN,
            };
            let c = all.entry(code).or_insert_with(|| HealthCheck {
                severity,
                summary: summary.to_owned(),
                detail: Vec::new(),
                count: 0,
            });
            c.count += 1;
            c.severity = c.severity.max(severity);
            let facts: Vec<String> = m.metadata.iter().map(|(k, v)| format!("{k}: {v}")).collect();
            let facts = facts.join(", ");
            let line = format!("mds.{name}(mds.{}): {} {facts}", rank(name), m.message);
            c.detail.push(line.trim_end().to_owned());
        }
    }
    for c in all.values_mut() {
        let plural = if c.count == 1 { "" } else { "s" };
        c.summary = c.summary.replace("%n", &c.count.to_string()).replace("%s", plural);
    }
    all
}

/// The check of a number (Ceph 16.2: `mds_metric_t`, `messages/MMDSBeacon.h`), and its summary with
/// `%n` for the count and `%s` for the plural.
fn check(kind: u16) -> Option<(&'static str, &'static str)> {
    Some(match kind {
        1 => ("MDS_TRIM", "%n MDSs behind on trimming"),
        2 => ("MDS_CLIENT_RECALL", "%n clients failing to respond to cache pressure"),
        3 => ("MDS_CLIENT_LATE_RELEASE", "%n clients failing to respond to capability release"),
        4 => (
            "MDS_CLIENT_RECALL_MANY",
            "%n MDSs have many clients failing to respond to cache pressure",
        ),
        5 => (
            "MDS_CLIENT_LATE_RELEASE_MANY",
            "%n MDSs have many clients failing to respond to capability release",
        ),
        6 => ("MDS_CLIENT_OLDEST_TID", "%n clients failing to advance oldest client/flush tid"),
        7 => (
            "MDS_CLIENT_OLDEST_TID_MANY",
            "%n MDSs have clients failing to advance oldest client/flush tid",
        ),
        8 => ("MDS_DAMAGE", "%n MDSs report damaged metadata"),
        9 => ("MDS_READ_ONLY", "%n MDSs are read only"),
        10 => ("MDS_SLOW_REQUEST", "%n MDSs report slow requests"),
        11 => ("MDS_CACHE_OVERSIZED", "%n MDSs report oversized cache"),
        12 => ("MDS_SLOW_METADATA_IO", "%n MDSs report slow metadata IOs"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use messages::MdsHealthMetric;

    #[test]
    fn complaints_become_checks() {
        let metric = |kind, severity| MdsHealthMetric {
            kind,
            severity,
            message: "slow".into(),
            metadata: [("client_id".to_owned(), "7".to_owned())].into(),
        };
        let of = |metrics| MdsHealth { metrics };
        let all = of_daemons(
            &[
                ("a".into(), of(vec![metric(10, 1), metric(8, 0)])),
                ("b".into(), of(vec![metric(10, 1), metric(99, 1)])),
            ],
            |name| i32::from(name == "b"),
        );
        assert_eq!(all.len(), 2);
        let slow = &all["MDS_SLOW_REQUEST"];
        assert_eq!((slow.count, slow.severity), (2, HealthCheck::WARN));
        assert_eq!(slow.summary, "2 MDSs report slow requests");
        let lines = ["mds.a(mds.0): slow client_id: 7", "mds.b(mds.1): slow client_id: 7"];
        assert_eq!(slow.detail, lines);
        assert_eq!(all["MDS_DAMAGE"].severity, HealthCheck::ERR);
    }
}
