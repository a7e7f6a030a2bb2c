//! `osd`: what shows the map and its OSDs.

use super::frame::{Answer, Entry, Read, osd_arg, read};
use super::mon::{count, named};
use super::osd_crush::json_only;
use crate::command::{Refusal, Reply};
use crate::osd_state::OsdMapExt;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use types::errno::Errno;
use types::osdmap::{TreeFilter, flag_names};
use types::rados::osdmap_flag as flag;
use types::{Dump, Epoch, OsdId, OsdMap, Utime};

pub(super) static COMMANDS: &[Entry] = &[
    read("osd stat", "Count the OSDs.", "osd", "r", stat),
    read(
        "osd last-stat-seq name=id,type=CephOsdName",
        "Show the number of the last report of an OSD that reached the monitors.",
        "osd",
        "r",
        last_stat_seq,
    ),
    read(
        "osd dump name=epoch,type=CephInt,range=0,req=false",
        "Show the OSD map.",
        "osd",
        "r",
        dump,
    ),
    read(
        "osd info name=id,type=CephOsdName,req=false",
        "Show what the map has of an OSD, or of all.",
        "osd",
        "r",
        info,
    ),
    read(
        "osd tree name=epoch,type=CephInt,range=0,req=false \
         name=states,type=CephChoices,strings=up|down|in|out|destroyed,n=N,req=false",
        "Show the OSDs in the CRUSH hierarchy.",
        "osd",
        "r",
        tree,
    ),
    read(
        "osd tree-from name=epoch,type=CephInt,range=0,req=false name=bucket,type=CephString \
         name=states,type=CephChoices,strings=up|down|in|out|destroyed,n=N,req=false",
        "Show the OSDs below a bucket.",
        "osd",
        "r",
        tree,
    ),
    read("osd ls name=epoch,type=CephInt,range=0,req=false", "List the OSDs.", "osd", "r", ls),
    read(
        "osd getmap name=epoch,type=CephInt,range=0,req=false",
        "Give the encoded OSD map.",
        "osd",
        "r",
        getmap,
    ),
    read(
        "osd getcrushmap name=epoch,type=CephInt,range=0,req=false",
        "Give the encoded CRUSH map.",
        "osd",
        "r",
        getcrushmap,
    ),
    read("osd getmaxosd", "Show the number above the highest OSD.", "osd", "r", getmaxosd),
    read(
        "osd ls-tree name=epoch,type=CephInt,range=0,req=false name=name,type=CephString,req=true",
        "List the OSDs below a bucket.",
        "osd",
        "r",
        ls_tree,
    ),
    read("osd find name=id,type=CephOsdName", "Show where an OSD is.", "osd", "r", find),
    read(
        "osd metadata name=id,type=CephOsdName,req=false",
        "Show what OSDs told about themselves.",
        "osd",
        "r",
        metadata,
    ),
    read("osd versions", "Count OSDs by version.", "osd", "r", |c| {
        Ok(json_only(c, &count(c.state.osd_metadata.values(), "ceph_version")))
    }),
    read(
        "osd count-metadata name=property,type=CephString",
        "Count OSDs by a field of their metadata.",
        "osd",
        "r",
        |c| Ok(json_only(c, &count(c.state.osd_metadata.values(), c.args.req("property")))),
    ),
    read("osd numa-status", "Show the NUMA nodes of OSDs.", "osd", "r", |c| {
        Ok(c.format().reply(|| json!([]), String::new))
    }),
    read(
        "osd get-require-min-compat-client",
        "Show the oldest release whose clients may connect.",
        "osd",
        "r",
        |c| Ok(Reply::data(format!("{}\n", c.state.osd.map().require_min_compat_client))),
    ),
    read("osd utilization", "Show how groups are spread over OSDs.", "osd", "r", utilization),
];

/// The map that a command asks for.
fn wanted(c: &Read<'_>) -> Result<Arc<OsdMap>, Refusal> {
    match c.args.int("epoch").unwrap_or(0) {
        0 => Ok(c.state.osd.map().clone()),
        n => u32::try_from(n)
            .ok()
            .and_then(|n| c.state.osd.full(Epoch(n)))
            .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("there is no map for epoch {n}"))),
    }
}

/// A span of time in one or two units (Ceph: `utimespan_str`).
pub fn span(seconds: u64) -> String {
    match seconds {
        s if s < 120 => format!("{s}s"),
        s if s < 120 * 60 => format!("{}m", s / 60),
        s if s < 48 * 3600 => format!("{}h", s / 3600),
        s if s < 14 * 86400 => format!("{}d", s / 86400),
        s if s < 12 * 7 * 86400 => format!("{}w", s / (7 * 86400)),
        s if s < 2 * 365 * 86400 => format!("{}M", s / (30 * 86400)),
        s => format!("{}y", s / (365 * 86400)),
    }
}

/// Flags that are always set in a cluster of today and not worth a line.
const SEMIHIDDEN: u32 = flag::REQUIRE_JEWEL
    | flag::REQUIRE_KRAKEN
    | flag::REQUIRE_LUMINOUS
    | flag::RECOVERY_DELETES
    | flag::SORTBITWISE
    | flag::PURGED_SNAPDIRS
    | flag::PGLOG_HARDLIMIT;

/// The counts that `osd stat` and `status` show.
pub fn summary_json(map: &OsdMap) -> Value {
    let (all, up, members) = map.count_osds();
    json!({
        "epoch": map.epoch,
        "num_osds": all,
        "num_up_osds": up,
        "osd_up_since": map.last_up_change.sec,
        "num_in_osds": members,
        "osd_in_since": map.last_in_change.sec,
        "num_remapped_pgs": map.pg_temp.len(),
    })
}

/// The same as text; with `epoch`, as `osd stat` has it.
pub fn summary_text(map: &OsdMap, now: Utime, prefix: &str, epoch: bool) -> String {
    let (all, up, members) = map.count_osds();
    let since = |t: Utime| match t.is_zero() {
        true => String::new(),
        false => format!(" (since {})", span(now.since(t).as_secs())),
    };
    let mut text = format!(
        "{all} osds: {up} up{}, {members} in{}",
        since(map.last_up_change),
        since(map.last_in_change)
    );
    if epoch {
        text.push_str(&format!("; epoch: e{}", map.epoch));
    }
    if !map.pg_temp.is_empty() {
        text.push_str(&format!("; {} remapped pgs", map.pg_temp.len()));
    }
    text.push('\n');
    let important = map.flags & !SEMIHIDDEN;
    if important != 0 {
        text.push_str(&format!("{prefix}flags {}\n", flag_names(important)));
    }
    text
}

fn last_stat_seq(c: &Read<'_>) -> Answer {
    let osd = super::frame::osd_arg(c.args, "id")?;
    let digest = c.env.stats.digest.as_ref();
    let seq = digest.and_then(|d| d.osd_seqs.get(&osd)).copied().unwrap_or(0);
    Ok(c.format().reply(|| json!({"seq": seq}), || format!("{seq}\n")))
}

fn stat(c: &Read<'_>) -> Answer {
    let map = c.state.osd.map();
    Ok(c.format().reply(|| summary_json(map), || summary_text(map, c.env.now, "", true)))
}

fn dump(c: &Read<'_>) -> Answer {
    let map = wanted(c)?;
    Ok(c.format().reply(|| map.dump(), || map.print()))
}

/// The line about an OSD of `osd dump`.
fn print_osd(map: &OsdMap, osd: OsdId) -> String {
    let start = format!("osd.{osd} ");
    map.print().lines().find(|l| l.starts_with(&start)).unwrap_or_default().to_owned()
}

fn info(c: &Read<'_>) -> Answer {
    let map = c.state.osd.map();
    if !c.args.has("id") {
        let all: Vec<OsdId> = map.osds().collect();
        return Ok(c.format().reply(
            || all.iter().filter_map(|o| map.dump_osd(*o)).collect(),
            || all.iter().map(|o| format!("{}\n", print_osd(map, *o))).collect(),
        ));
    }
    let osd = osd_arg(c.args, "id")?;
    if !map.exists(osd) {
        return Err(Refusal::invalid(format!("osd.{osd} does not exist")));
    }
    Ok(c.format()
        .reply(|| map.dump_osd(osd).unwrap_or_default(), || format!("{}\n", print_osd(map, osd))))
}

fn tree(c: &Read<'_>) -> Answer {
    let map = wanted(c)?;
    let bucket = c.args.str("bucket");
    if let Some(name) = bucket {
        match map.crush.names.id(name) {
            None => {
                return Err(Refusal::new(Errno::ENOENT, format!("bucket '{name}' does not exist")));
            }
            Some(id) if id >= 0 => {
                return Err(Refusal::invalid(format!("\"{name}\" is not a bucket")));
            }
            Some(_) => {}
        }
    }
    let states = c.args.strs("states");
    let has = |s: &str| states.iter().any(|x| x == s);
    let filter = TreeFilter {
        in_: has("in"),
        out: has("out"),
        up: has("up"),
        down: has("down"),
        destroyed: has("destroyed"),
    };
    if filter.in_ && filter.out {
        return Err(Refusal::invalid("cannot specify both 'in' and 'out'"));
    }
    if [filter.up, filter.down, filter.destroyed].iter().filter(|x| **x).count() > 1 {
        return Err(Refusal::invalid("can specify only one of 'up', 'down' and 'destroyed'"));
    }
    Ok(c.format().reply(|| map.dump_tree(filter, bucket), || map.print_tree(filter, bucket)))
}

/// Numbers, one a line without a last line break, as Ceph prints them.
fn lines(c: &Read<'_>, osds: &[OsdId]) -> Reply {
    c.format().reply(
        || osds.iter().map(|o| json!(o.0)).collect(),
        || osds.iter().map(OsdId::to_string).collect::<Vec<_>>().join("\n"),
    )
}

fn ls(c: &Read<'_>) -> Answer {
    let map = wanted(c)?;
    Ok(lines(c, &map.osds().collect::<Vec<_>>()))
}

fn ls_tree(c: &Read<'_>) -> Answer {
    let map = wanted(c)?;
    let name = c.args.req("name");
    let Some(id) = map.crush.names.id(name) else {
        return Err(Refusal::new(Errno::ENOENT, format!("\"{name}\" does not exist")));
    };
    let osds: Vec<OsdId> =
        map.crush.leaves(id).into_iter().map(OsdId).filter(|o| map.exists(*o)).collect();
    Ok(lines(c, &osds))
}

fn getmap(c: &Read<'_>) -> Answer {
    let map = wanted(c)?;
    let bytes = denc::Encode::to_bytes(&*map, types::features::SUPPORTED);
    Ok(Reply::data(bytes).with_status(format!("got osdmap epoch {}", map.epoch)))
}

fn getcrushmap(c: &Read<'_>) -> Answer {
    let map = wanted(c)?;
    let bytes = denc::Encode::to_bytes(&*map.crush, types::features::SUPPORTED);
    Ok(Reply::data(bytes).with_status(map.crush_version.to_string()))
}

fn getmaxosd(c: &Read<'_>) -> Answer {
    let map = c.state.osd.map();
    Ok(c.format().reply(
        || json!({"epoch": map.epoch, "max_osd": map.max_osd()}),
        || format!("max_osd = {} in epoch {}", map.max_osd(), map.epoch),
    ))
}

fn find(c: &Read<'_>) -> Answer {
    let osd = osd_arg(c.args, "id")?;
    let map = c.state.osd.map();
    let Some(o) = map.osd(osd).filter(|_| map.exists(osd)) else {
        return Err(Refusal::new(Errno::ENOENT, format!("osd.{osd} does not exist")));
    };
    let mut value = Map::new();
    value.insert("osd".into(), json!(osd.0));
    value.insert("addrs".into(), o.client_addrs.dump());
    value.insert("osd_fsid".into(), json!(o.uuid.to_string()));
    let metadata = c.state.osd_metadata.get(&osd);
    for (field, key) in [
        ("host", "hostname"),
        ("pod_name", "pod_name"),
        ("pod_namespace", "pod_namespace"),
        ("container_name", "container_name"),
    ] {
        if let Some(v) = metadata.and_then(|m| m.get(key)) {
            value.insert(field.into(), json!(v));
        }
    }
    let location: std::collections::BTreeMap<String, String> =
        map.crush.full_location(osd.0).into_iter().collect();
    value.insert("crush_location".into(), json!(location));
    Ok(json_only(c, &Value::Object(value)))
}

fn metadata(c: &Read<'_>) -> Answer {
    let map = c.state.osd.map();
    let all = &c.state.osd_metadata;
    if c.args.has("id") {
        let osd = osd_arg(c.args, "id")?;
        if !map.exists(osd) {
            return Err(Refusal::new(Errno::ENOENT, format!("osd.{osd} does not exist")));
        }
        let Some(m) = all.get(&osd) else {
            return Err(Refusal::new(Errno::ENOENT, ""));
        };
        return Ok(json_only(c, &named(("id", json!(osd.0)), m)));
    }
    let empty = Default::default();
    let rows = map.osds().map(|o| named(("id", json!(o.0)), all.get(&o).unwrap_or(&empty)));
    Ok(json_only(c, &rows.collect()))
}

/// Ceph: `OSDMap::summarize_mapping_stats`, for the current map only.
fn utilization(c: &Read<'_>) -> Answer {
    let map = c.state.osd.map();
    let mut counts = std::collections::BTreeMap::<OsdId, u64>::new();
    for osd in map.osds().filter(|o| map.is_up(*o) && map.is_in(*o)) {
        counts.insert(osd, 0);
    }
    for (id, pool) in &map.pools {
        for seed in 0..pool.pg_num {
            for osd in map.pg_to_up_acting(types::PgId::new(*id, seed)).up {
                if let Some(n) = counts.get_mut(&osd) {
                    *n += 1;
                }
            }
        }
    }
    if counts.is_empty() {
        return Ok(c.format().reply(|| json!({}), || "no osds up and in\n".into()));
    }
    let total: u64 = counts.values().sum();
    let mean = total as f64 / counts.len() as f64;
    let deviation = (counts.values().map(|n| (*n as f64 - mean).powi(2)).sum::<f64>()
        / counts.len() as f64)
        .sqrt();
    let by_count = |(a, n): &(&OsdId, &u64), (b, m): &(&OsdId, &u64)| n.cmp(m).then(b.cmp(a));
    let min = counts.iter().min_by(by_count).map(|(o, n)| (*o, *n)).unwrap_or((OsdId(-1), 0));
    let max = counts.iter().max_by(by_count).map(|(o, n)| (*o, *n)).unwrap_or((OsdId(-1), 0));
    Ok(c.format().reply(
        || {
            json!({
                "utilization": {
                    "average_pgs": super::frame::short_float(mean).parse::<f64>().unwrap_or(mean),
                    "deviation": deviation,
                    "min_osd": min.0.0,
                    "min_osd_pgs": min.1,
                    "max_osd": max.0.0,
                    "max_osd_pgs": max.1,
                },
            })
        },
        || {
            format!(
                "avg {}\nstddev {}\nmin osd.{} with {} pgs ({} * mean)\nmax osd.{} with {} pgs ({} * mean)\n",
                super::frame::short_float(mean),
                super::frame::short_float(deviation),
                min.0,
                min.1,
                super::frame::short_float(min.1 as f64 / mean.max(f64::MIN_POSITIVE)),
                max.0,
                max.1,
                super::frame::short_float(max.1 as f64 / mean.max(f64::MIN_POSITIVE))
            )
        },
    ))
}
