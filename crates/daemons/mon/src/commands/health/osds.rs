//! Health checks about OSDs, the places where they are, and what the map tells them (Ceph:
//! `OSDMap::check_health`, 16.2).

use super::found::{Found, alone, found, of_lines};
use crate::osd_state::OsdMapExt;
use conf::Config;
use crush::CrushMap;
use messages::HealthCheck;
use std::collections::{BTreeMap, BTreeSet};
use types::osdmap::flag_names;
use types::rados::{osd_state, osdmap_flag};
use types::{OsdId, OsdMap};

/// All of them.
pub(super) fn checks(map: &OsdMap, conf: &Config) -> Vec<Found> {
    let mut all = places_down(map);
    all.extend(osds_down(map));
    all.extend(too_few_osds(map, conf));
    all.extend(map_flags(map));
    all.extend(osd_flags(map));
    all.extend(full_osds(map));
    all.extend(out_of_order(map, conf));
    all.extend(never_out(conf));
    all.extend(old_tunables(map, conf));
    all.extend(too_many_pgs(map, conf));
    all
}

/// OSDs that are missed.
fn osds_down(map: &OsdMap) -> Option<Found> {
    let place = |o: OsdId| {
        let loc: Vec<String> =
            map.crush.full_location(o.0).into_iter().map(|(k, v)| format!("{k}={v}")).collect();
        format!("osd.{} ({}) is down", o.0, loc.join(","))
    };
    let down = map.osds().filter(|o| map.exists(*o) && map.is_in(*o) && !map.is_up(*o));
    of_lines("OSD_DOWN", HealthCheck::WARN, down.map(place).collect(), |n| {
        format!("{n} osd{} down", if n == 1 { "" } else { "s" })
    })
}

fn too_few_osds(map: &OsdMap, conf: &Config) -> Option<Found> {
    let (total, wanted) = (map.osds().count(), conf.u64("osd_pool_default_size") as usize);
    (total < wanted).then(|| {
        let summary = format!("OSD count {total} < osd_pool_default_size {wanted}");
        alone("TOO_FEW_OSDS", HealthCheck::WARN, summary)
    })
}

/// What the cluster is told not to do.
fn map_flags(map: &OsdMap) -> Option<Found> {
    let warned = osdmap_flag::PAUSERD
        | osdmap_flag::PAUSEWR
        | osdmap_flag::NOUP
        | osdmap_flag::NODOWN
        | osdmap_flag::NOIN
        | osdmap_flag::NOOUT
        | osdmap_flag::NOBACKFILL
        | osdmap_flag::NORECOVER
        | osdmap_flag::NOSCRUB
        | osdmap_flag::NODEEP_SCRUB
        | osdmap_flag::NOTIERAGENT
        | osdmap_flag::NOSNAPTRIM
        | osdmap_flag::NOREBALANCE;
    let set = map.flags & warned;
    (set != 0).then(|| {
        alone("OSDMAP_FLAGS", HealthCheck::WARN, format!("{} flag(s) set", flag_names(set)))
    })
}

/// What single OSDs are told not to do.
fn osd_flags(map: &OsdMap) -> Option<Found> {
    use osd_state::{NODOWN, NOIN, NOOUT, NOUP};
    let names = [(NOUP, "noup"), (NODOWN, "nodown"), (NOIN, "noin"), (NOOUT, "noout")];
    let line = |o: OsdId| {
        let set = names.iter().filter(|(bit, _)| map.state_bits(o) & bit != 0);
        let set: Vec<&str> = set.map(|(_, name)| *name).collect();
        (!set.is_empty()).then(|| format!("osd.{} has flags {}", o.0, set.join(",")))
    };
    of_lines("OSD_FLAGS", HealthCheck::WARN, map.osds().filter_map(line).collect(), |n| {
        format!(
            "{n} OSDs or CRUSH {{nodes, device-classes}} have {{NOUP,NODOWN,NOIN,NOOUT}} flags set"
        )
    })
}

fn full_osds(map: &OsdMap) -> Vec<Found> {
    let of = |(bit, code, severity, word): (u32, &str, u8, &str)| {
        let serves = |o: &OsdId| map.is_up(*o) && map.is_in(*o);
        let which = map.osds().filter(|o| serves(o) && map.state_bits(*o) & bit != 0);
        let lines = which.map(|o| format!("osd.{} is {word}", o.0)).collect();
        of_lines(code, severity, lines, |n| format!("{n} {word} osd(s)"))
    };
    let (warn, err) = (HealthCheck::WARN, HealthCheck::ERR);
    let kinds = [
        (osd_state::FULL, "OSD_FULL", err, "full"),
        (osd_state::BACKFILLFULL, "OSD_BACKFILLFULL", warn, "backfillfull"),
        (osd_state::NEARFULL, "OSD_NEARFULL", warn, "nearfull"),
    ];
    kinds.into_iter().filter_map(of).collect()
}

/// Ratios below those that they must not be below; OSDs count them as if they were the same.
fn ratios_out_of_order(map: &OsdMap, failsafe: f64) -> Vec<String> {
    let ratios = [
        ("nearfull_ratio", map.nearfull_ratio),
        ("backfillfull_ratio", map.backfillfull_ratio),
        ("full_ratio", map.full_ratio),
        ("osd_failsafe_full_ratio", failsafe as f32),
    ];
    let (mut below, mut at_least) = ratios[0];
    let mut out = Vec::new();
    for (name, ratio) in &ratios[1..] {
        if *ratio < at_least {
            out.push(format!("{name} ({ratio}) < {below} ({at_least}), increased"));
        }
        (below, at_least) = (name, at_least.max(*ratio));
    }
    out
}

fn out_of_order(map: &OsdMap, conf: &Config) -> Option<Found> {
    let lines = ratios_out_of_order(map, conf.f64("osd_failsafe_full_ratio"));
    let summary = |_| "full ratio(s) out of order".to_owned();
    of_lines("OSD_OUT_OF_ORDER_FULL", HealthCheck::ERR, lines, summary)
}

/// OSDs that are down stay in for ever.
fn never_out(conf: &Config) -> Option<Found> {
    let never = conf.i64("mon_osd_down_out_interval") == 0;
    (never && conf.bool("mon_warn_on_osd_down_out_interval_zero")).then(|| {
        let summary =
            "mon_osd_down_out_interval is set to zero: OSDs that are down are never marked out";
        alone("OSD_NO_DOWN_OUT_INTERVAL", HealthCheck::WARN, summary)
    })
}

fn old_tunables(map: &OsdMap, conf: &Config) -> Option<Found> {
    let old = map.crush.tunables.profile() == "legacy";
    (old && conf.bool("mon_warn_on_legacy_crush_tunables"))
        .then(|| alone("OLD_CRUSH_TUNABLES", HealthCheck::WARN, "crush map has legacy tunables"))
}

/// The devices below each bucket of the trees that operators see.
fn devices(crush: &CrushMap) -> BTreeMap<i32, BTreeSet<i32>> {
    fn below(crush: &CrushMap, id: i32, depth: usize, out: &mut BTreeSet<i32>) {
        let Some(bucket) = crush.bucket(id).filter(|_| depth <= crush.buckets().count()) else {
            return;
        };
        for (item, _) in bucket.weighted_items() {
            if item >= 0 {
                out.insert(item);
            } else {
                below(crush, item, depth + 1, out);
            }
        }
    }
    // Trees of one device class have names with a `~`.
    let seen =
        crush.buckets().filter(|b| crush.names.name(b.id).is_some_and(|name| !name.contains('~')));
    seen.map(|b| {
        let mut all = BTreeSet::new();
        below(crush, b.id, 0, &mut all);
        (b.id, all)
    })
    .collect()
}

/// `OSD_HOST_DOWN`, `OSD_RACK_DOWN`, ...: buckets all of whose OSDs are down, some of which are in.
fn places_down(map: &OsdMap) -> Vec<Found> {
    let mut by_type = BTreeMap::<u16, Vec<(i32, usize)>>::new();
    for (bucket, all) in devices(&map.crush) {
        let missed = all.iter().filter(|o| {
            let osd = OsdId(**o);
            map.exists(osd) && map.is_in(osd) && !map.is_up(osd)
        });
        let missed = missed.count();
        if missed > 0
            && all.iter().all(|o| !map.is_up(OsdId(*o)))
            && let Some(kind) = map.crush.bucket(bucket).map(|b| b.kind)
        {
            by_type.entry(kind).or_default().push((bucket, missed));
        }
    }
    let name = |id: i32| map.crush.names.name(id).unwrap_or("?").to_owned();
    let report = |(kind, buckets): (u16, Vec<(i32, usize)>)| {
        let kind = map.crush.types.name(kind.into()).unwrap_or("bucket").to_owned();
        let osds: usize = buckets.iter().map(|(_, n)| n).sum();
        let s = if buckets.len() > 1 { "s" } else { "" };
        let detail = buckets
            .iter()
            .map(|(id, n)| {
                let place: Vec<String> = map
                    .crush
                    .full_location(*id)
                    .into_iter()
                    .map(|(k, v)| format!("{k}={v}"))
                    .collect();
                format!("{kind} {} ({}) ({n} osds) is down", name(*id), place.join(","))
            })
            .collect();
        let summary = format!("{} {kind}{s} ({osds} osds) down", buckets.len());
        let code = format!("OSD_{}_DOWN", kind.to_uppercase());
        found(&code, HealthCheck::WARN, summary, detail, buckets.len())
    };
    by_type.into_iter().map(report).collect()
}

/// More placement groups, with all copies, than the OSDs that are in should have.
fn too_many_pgs(map: &OsdMap, conf: &Config) -> Option<Found> {
    let most = conf.u64("mon_max_pg_per_osd");
    let osds = map.osds().filter(|o| map.is_in(*o)).count() as u64;
    let copies = |p: &types::PgPool| u64::from(p.pg_num) * u64::from(p.size);
    let all: u64 = map.pools.values().map(copies).sum();
    let each = all.checked_div(osds)?;
    (each > most).then(|| {
        let summary = format!("too many PGs per OSD ({each} > max {most})");
        found("TOO_MANY_PGS", HealthCheck::WARN, summary, Vec::new(), each as usize)
    })
}
