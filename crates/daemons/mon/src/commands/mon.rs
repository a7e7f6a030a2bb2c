//! `mon`, and what is about the cluster as a whole.

use super::frame::{Answer, ClockSkew, Entry, Read, Write, flagged, read, unsupported, write};
use super::osd_crush::json_only;
use crate::command::{Command, Format, Refusal, Reply, flags};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use types::errno::Errno;
use types::monmap::MonFeatures;
use types::{Dump, Epoch, MonMap};

const NO_STRETCH: &str = "stretch mode is not supported";

pub(super) static COMMANDS: &[Entry] = &[
    read("fsid", "Show the cluster's id.", "mon", "r", fsid),
    read(
        "quorum_status",
        "Show the leader and the members of the quorum.",
        "mon",
        "r",
        quorum_status,
    ),
    tell(read("mon_status", "Show this monitor's state.", "mon", "r", mon_status)),
    tell(read("version", "Show this monitor's version.", "mon", "r", version)),
    tell(read("sessions", "List this monitor's sessions.", "mon", "r", sessions)),
    read("mon stat", "Summarise the monitors.", "mon", "r", stat),
    read(
        "mon dump name=epoch,type=CephInt,range=0,req=false",
        "Show the monitor map.",
        "mon",
        "r",
        dump,
    ),
    read(
        "mon getmap name=epoch,type=CephInt,range=0,req=false",
        "Give the encoded monitor map.",
        "mon",
        "r",
        getmap,
    ),
    read(
        "mon metadata name=id,type=CephString,req=false",
        "Show what monitors told about themselves.",
        "mon",
        "r",
        metadata,
    ),
    read("mon versions", "Count monitors by version.", "mon", "r", |c| {
        Ok(json_only(c, &count(c.state.mon_metadata.values(), "ceph_version")))
    }),
    read(
        "mon count-metadata name=property,type=CephString",
        "Count monitors by a field of their metadata.",
        "mon",
        "r",
        |c| Ok(json_only(c, &count(c.state.mon_metadata.values(), c.args.req("property")))),
    ),
    read("versions", "Count daemons by version.", "mon", "r", versions),
    read("features", "Count sessions and daemons by features.", "mon", "r", features),
    read(
        "node ls name=type,type=CephChoices,strings=all|osd|mon|mds|mgr,req=false",
        "List daemons by host.",
        "mon",
        "r",
        node_ls,
    ),
    read("time-sync-status", "Show how far the monitors' clocks are apart.", "mon", "r", time_sync),
    read(
        "mon ok-to-stop name=ids,type=CephString,n=N",
        "Say whether monitors can stop without losing the quorum.",
        "mon",
        "r",
        ok_to_stop,
    ),
    read(
        "mon ok-to-add-offline",
        "Say whether a monitor that does not run yet can be added.",
        "mon",
        "r",
        |_| {
            Ok(Reply::status(
                "adding another mon that is not yet online should be fine: it counts when it has joined",
            ))
        },
    ),
    read(
        "mon ok-to-rm name=id,type=CephString",
        "Say whether a monitor can be removed.",
        "mon",
        "r",
        ok_to_rm,
    ),
    read(
        "mon feature ls name=with_value,type=CephChoices,strings=--with-value,req=false",
        "List the features that monitors agree on.",
        "mon",
        "r",
        feature_ls,
    ),
    write(
        "mon set-weight name=name,type=CephString name=weight,type=CephInt,range=0|65535",
        "Set how often clients choose a monitor.",
        "mon",
        "rw",
        set_weight,
    ),
    write("mon enable-msgr2", "Listen for the current protocol too.", "mon", "rw", |_| {
        Ok(Reply::empty())
    }),
    write(
        "mon add name=name,type=CephString name=addr,type=CephIPAddr \
         name=location,type=CephString,n=N,goodchars=[A-Za-z0-9-_.=],req=false",
        "Announce a monitor; it takes part as soon as it runs.",
        "mon",
        "rw",
        add,
    ),
    write("mon rm name=name,type=CephString", "Remove a monitor.", "mon", "rw", rm),
    flagged(
        write("mon remove name=name,type=CephString", "Remove a monitor.", "mon", "rw", rm),
        flags::DEPRECATED,
    ),
    unsupported(
        "mon set-addrs name=name,type=CephString name=addrs,type=CephString",
        "Change a monitor's addresses.",
        "mon",
        "rw",
        "start the monitor with its new address instead",
    ),
    unsupported(
        "mon set election_strategy name=strategy,type=CephString",
        "Choose how a leader is elected.",
        "mon",
        "rw",
        "elections are Raft's",
    ),
    unsupported(
        "mon enable_stretch_mode name=tiebreaker_mon,type=CephString name=new_crush_rule,type=CephString \
         name=dividing_bucket,type=CephString",
        "Spread the cluster over two sites.",
        "mon",
        "rw",
        NO_STRETCH,
    ),
    write("mon scrub", "Compare the monitors' stores.", "mon", "rw", |_| Ok(Reply::empty())),
];

const fn tell(entry: Entry) -> Entry {
    Command { flags: flags::TELL, ..entry }
}

fn fsid(c: &Read<'_>) -> Answer {
    let id = c.state.monmap.fsid.to_string();
    Ok(c.format().reply(|| json!({ "fsid": id }), || id.clone()))
}

/// `{"rank": 0, "name": "a"}` of all members of the quorum.
fn quorum_names(c: &Read<'_>) -> Vec<String> {
    c.env
        .mon
        .quorum
        .iter()
        .filter_map(|r| Some(c.state.monmap.ranks.get(usize::try_from(*r).ok()?)?.clone()))
        .collect()
}

fn leader_name(c: &Read<'_>) -> String {
    let rank = c.env.mon.leader.and_then(|r| usize::try_from(r).ok());
    rank.and_then(|r| c.state.monmap.ranks.get(r)).cloned().unwrap_or_default()
}

fn quorum_age(c: &Read<'_>) -> u64 {
    c.env.now.since(c.env.mon.quorum_since).as_secs()
}

fn feature_names() -> Vec<&'static str> {
    MonFeatures::SQUID.names()
}

fn quorum_status(c: &Read<'_>) -> Answer {
    let value = json!({
        "election_epoch": c.env.mon.election_epoch,
        "quorum": c.env.mon.quorum,
        "quorum_names": quorum_names(c),
        "quorum_leader_name": leader_name(c),
        "quorum_age": quorum_age(c),
        "features": {
            "quorum_con": types::features::SUPPORTED.0.to_string(),
            "quorum_mon": feature_names(),
        },
        "monmap": c.state.monmap.dump(),
    });
    // Without a format the stock monitor answers compact JSON.
    let format = if c.format() == Format::JsonPretty { Format::JsonPretty } else { Format::Json };
    Ok(Reply::data(format.json(&value)))
}

fn mon_status(c: &Read<'_>) -> Answer {
    let value = json!({
        "name": c.env.mon.name,
        "rank": c.env.mon.rank,
        "state": c.env.mon.state,
        "election_epoch": c.env.mon.election_epoch,
        "quorum": c.env.mon.quorum,
        "quorum_age": quorum_age(c),
        "features": {
            "required_con": "0",
            "required_mon": feature_names(),
            "quorum_con": types::features::SUPPORTED.0.to_string(),
            "quorum_mon": feature_names(),
        },
        "outside_quorum": c.state.monmap.ranks.iter().filter(|n| !quorum_names(c).contains(n)).collect::<Vec<_>>(),
        "extra_probe_peers": [],
        "sync_provider": [],
        "monmap": c.state.monmap.dump(),
        "feature_map": feature_map(c),
        "stretch_mode": false,
    });
    Ok(json_only(c, &value))
}

fn version(c: &Read<'_>) -> Answer {
    let value = json!({"version": types::version::LONG});
    Ok(c.format().reply(|| value, || format!("{}\n", types::version::LONG)))
}

fn sessions(c: &Read<'_>) -> Answer {
    let all: Vec<Value> = (c.env.sessions)()
        .iter()
        .map(|s| {
            json!({
                "name": s.name.to_string(),
                "entity_name": s.name.to_string(),
                "addrs": types::EntityAddrVec::one(s.addr).dump(),
                "socket_addr": s.addr.dump(),
                "con_features": s.features,
                "con_features_hex": format!("{:x}", s.features),
                "con_features_release": release_of(s.features),
                "open": true,
                "authenticated": true,
                "global_id": s.global_id,
            })
        })
        .collect();
    Ok(json_only(c, &Value::Array(all)))
}

fn print_summary(map: &MonMap) -> String {
    let mons: Vec<String> =
        map.mon_info.values().map(|m| format!("{}={}", m.name, m.public_addrs)).collect();
    format!("e{}: {} mons at {{{}}}", map.epoch, map.mon_info.len(), mons.join(","))
}

fn stat(c: &Read<'_>) -> Answer {
    Ok(c.format().reply(
        || {
            let mut o = match c.state.monmap.dump_summary() {
                Value::Object(o) => o,
                _ => Map::new(),
            };
            o.insert("leader".into(), json!(leader_name(c)));
            let quorum = c.env.mon.quorum.iter().zip(quorum_names(c));
            o.insert(
                "quorum".into(),
                quorum.map(|(rank, name)| json!({"rank": rank, "name": name})).collect(),
            );
            Value::Object(o)
        },
        || {
            let ranks: Vec<String> = c.env.mon.quorum.iter().map(i32::to_string).collect();
            format!(
                "{}, election epoch {}, leader {} {}, quorum {} {}",
                print_summary(&c.state.monmap),
                c.env.mon.election_epoch,
                c.env.mon.leader.unwrap_or(-1),
                leader_name(c),
                ranks.join(","),
                quorum_names(c).join(",")
            )
        },
    ))
}

/// The monitor map of the wanted epoch: only the current one is kept.
fn wanted<'a>(c: &'a Read<'_>) -> Result<&'a MonMap, Refusal> {
    match c.args.int("epoch").unwrap_or(0) {
        0 => Ok(&c.state.monmap),
        n if Epoch(n as u32) == c.state.monmap.epoch => Ok(&c.state.monmap),
        n => Err(Refusal::new(Errno::ENOENT, format!("there is no map for epoch {n}"))),
    }
}

fn print_map(map: &MonMap) -> String {
    let mut text = format!(
        "epoch {}\nfsid {}\nlast_changed {}\ncreated {}\nmin_mon_release {} ({})\nelection_strategy: {}\n",
        map.epoch,
        map.fsid,
        map.last_changed,
        map.created,
        map.min_mon_release.0,
        map.min_mon_release,
        map.strategy
    );
    for (rank, m) in map.iter().enumerate() {
        text.push_str(&format!("{rank}: {} mon.{}\n", m.public_addrs, m.name));
    }
    text
}

fn dump(c: &Read<'_>) -> Answer {
    let map = wanted(c)?;
    let reply = c.format().reply(
        || {
            let mut o = match map.dump() {
                Value::Object(o) => o,
                _ => Map::new(),
            };
            o.insert("quorum".into(), json!(c.env.mon.quorum));
            Value::Object(o)
        },
        || print_map(map),
    );
    Ok(reply.with_status(format!("dumped monmap epoch {}", map.epoch)))
}

fn getmap(c: &Read<'_>) -> Answer {
    let map = wanted(c)?;
    let bytes = denc::Encode::to_bytes(map, denc::Features(c.env.caller.features));
    Ok(Reply::data(bytes).with_status(format!("got monmap epoch {}", map.epoch)))
}

/// A daemon's metadata with its name first.
pub(super) fn named(name: (&str, Value), metadata: &BTreeMap<String, String>) -> Value {
    let mut o = Map::new();
    o.insert(name.0.to_owned(), name.1);
    o.extend(metadata.iter().map(|(k, v)| (k.clone(), json!(v))));
    Value::Object(o)
}

fn metadata(c: &Read<'_>) -> Answer {
    let all = &c.state.mon_metadata;
    match c.args.str("id") {
        Some(id) => {
            let id = id.strip_prefix("mon.").unwrap_or(id);
            if !c.state.monmap.mon_info.contains_key(id) {
                return Err(Refusal::new(Errno::ENOENT, "requested mon not found"));
            }
            let metadata = all.get(id).cloned().unwrap_or_default();
            Ok(json_only(c, &named(("name", json!(id)), &metadata)))
        }
        None => {
            Ok(json_only(c, &all.iter().map(|(name, m)| named(("name", json!(name)), m)).collect()))
        }
    }
}

/// How many daemons have which value of a metadata field.
pub(super) fn count<'a>(
    all: impl Iterator<Item = &'a BTreeMap<String, String>>,
    property: &str,
) -> Value {
    let mut counts = BTreeMap::<String, u64>::new();
    for m in all {
        *counts.entry(m.get(property).cloned().unwrap_or_else(|| "unknown".into())).or_default() +=
            1;
    }
    json!(counts)
}

fn versions(c: &Read<'_>) -> Answer {
    let map = c.state.osd.map();
    let up = c.state.osd_metadata.iter().filter(|(o, _)| map.is_up(**o)).map(|(_, m)| m);
    let groups = [
        ("mon", count(c.state.mon_metadata.values(), "ceph_version")),
        ("mgr", count(active_mgr(c), "ceph_version")),
        ("osd", count(up, "ceph_version")),
        ("mds", count(c.state.mds_metadata.values(), "ceph_version")),
    ];
    let mut overall = BTreeMap::<String, u64>::new();
    for (_, counts) in &groups {
        for (version, n) in counts.as_object().into_iter().flatten() {
            *overall.entry(version.clone()).or_default() += n.as_u64().unwrap_or(0);
        }
    }
    let mut o: Map<String, Value> = groups.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    o.insert("overall".into(), json!(overall));
    Ok(json_only(c, &Value::Object(o)))
}

fn active_mgr<'a>(c: &'a Read<'_>) -> impl Iterator<Item = &'a BTreeMap<String, String>> {
    let name = &c.state.mgr.active_name;
    c.state.mgr_metadata.iter().filter(move |(n, _)| *n == name).map(|(_, m)| m)
}

/// The newest release whose features a peer has (Ceph: `ceph_release_from_features`).
pub(super) fn release_of(features: u64) -> &'static str {
    let f = |bits: u64| denc::Features(features).has(bits);
    match () {
        () if f(types::features::SERVER_SQUID) => "squid",
        () if f(types::features::SERVER_REEF) => "reef",
        () if f(types::features::SERVER_QUINCY) => "quincy",
        () if f(types::features::SERVER_PACIFIC) => "pacific",
        () if f(types::features::SERVER_OCTOPUS) => "octopus",
        () if f(types::features::SERVER_NAUTILUS) => "nautilus",
        () if f(types::features::SERVER_MIMIC) => "mimic",
        () if f(types::features::SERVER_LUMINOUS) => "luminous",
        () => "jewel",
    }
}

/// Sessions by kind and features (Ceph: `FeatureMap`).
fn feature_map(c: &Read<'_>) -> Value {
    let mut groups = BTreeMap::<&str, BTreeMap<u64, u64>>::new();
    groups.entry("mon").or_default().insert(types::features::SUPPORTED.0, 1);
    for s in (c.env.sessions)() {
        *groups.entry(s.name.kind.name()).or_default().entry(s.features).or_default() += 1;
    }
    let group = |by: &BTreeMap<u64, u64>| -> Value {
        by.iter()
            .map(|(f, n)| json!({"features": format!("{f:#x}"), "release": release_of(*f), "num": n}))
            .collect()
    };
    Value::Object(groups.iter().map(|(k, v)| ((*k).to_owned(), group(v))).collect())
}

fn features(c: &Read<'_>) -> Answer {
    Ok(json_only(c, &feature_map(c)))
}

fn node_ls(c: &Read<'_>) -> Answer {
    let by_host = |items: Vec<(String, Value)>| {
        let mut hosts = BTreeMap::<String, Vec<Value>>::new();
        for (host, item) in items {
            hosts.entry(host).or_default().push(item);
        }
        json!(hosts)
    };
    let host = |m: &BTreeMap<String, String>| m.get("hostname").cloned();
    let mons = || {
        by_host(
            c.state.mon_metadata.iter().filter_map(|(n, m)| Some((host(m)?, json!(n)))).collect(),
        )
    };
    let osds = || {
        by_host(
            c.state.osd_metadata.iter().filter_map(|(o, m)| Some((host(m)?, json!(o.0)))).collect(),
        )
    };
    let mgrs = || {
        by_host(
            c.state.mgr_metadata.iter().filter_map(|(n, m)| Some((host(m)?, json!(n)))).collect(),
        )
    };
    let mdss = || {
        let name = |gid: &u64| c.state.fs.daemon(*gid).map(|i| json!(i.name));
        let each = |(gid, m): (&u64, &BTreeMap<String, String>)| Some((host(m)?, name(gid)?));
        by_host(c.state.mds_metadata.iter().filter_map(each).collect())
    };
    let value = match c.args.str("type").unwrap_or("all") {
        "mon" => mons(),
        "osd" => osds(),
        "mgr" => mgrs(),
        "mds" => mdss(),
        _ => json!({"mon": mons(), "osd": osds(), "mds": mdss(), "mgr": mgrs()}),
    };
    Ok(json_only(c, &value))
}

fn time_sync(c: &Read<'_>) -> Answer {
    let allowed = c.env.conf.borrow().f64("mon_clock_drift_allowed");
    let mut value = Map::new();
    if !c.env.mon.clocks.is_empty() {
        let clock = |(name, s): (&String, &ClockSkew)| {
            let mut v = json!({"skew": s.skew, "latency": s.latency, "health": "HEALTH_OK"});
            if let Some(wrong) = s.complaint(allowed) {
                v["health"] = "HEALTH_WARN".into();
                v["details"] = wrong.into();
            }
            (name.clone(), v)
        };
        value.insert(
            "time_skew_status".into(),
            c.env.mon.clocks.iter().map(clock).collect::<Map<_, _>>().into(),
        );
    }
    let round = json!({"epoch": c.env.mon.election_epoch, "round": c.env.mon.clock_round, "round_status": "finished"});
    value.insert("timechecks".into(), round);
    Ok(json_only(c, &Value::Object(value)))
}

fn ok_to_stop(c: &Read<'_>) -> Answer {
    let leaving: Vec<String> =
        c.args.strs("ids").into_iter().map(|n| n.trim_start_matches("mon.").to_owned()).collect();
    let left = quorum_names(c).into_iter().filter(|n| !leaving.contains(n)).count();
    let needed = c.state.monmap.ranks.len() / 2 + 1;
    let names = leaving.join(",");
    match left >= needed {
        true => Ok(Reply::status(format!(
            "quorum should be preserved ({}) after stopping [{names}]",
            quorum_names(c).join(",")
        ))),
        false => Err(Refusal::new(
            Errno::EBUSY,
            format!(
                "not enough monitors would be available ({left}) after stopping mons [{names}]"
            ),
        )),
    }
}

fn ok_to_rm(c: &Read<'_>) -> Answer {
    let id = c.args.req("id").trim_start_matches("mon.");
    if !c.state.monmap.mon_info.contains_key(id) {
        return Ok(Reply::status(format!("mon.{id} does not exist")));
    }
    let left = c.state.monmap.ranks.len().saturating_sub(1);
    let there = quorum_names(c).into_iter().filter(|n| n != id).count();
    match left {
        0 => Err(Refusal::new(Errno::EBUSY, format!("removing mon.{id} would leave no monitor"))),
        _ if there < left / 2 + 1 => Err(Refusal::new(
            Errno::EBUSY,
            format!("not enough monitors would be available ({there}) after removing mon.{id}"),
        )),
        _ => Ok(Reply::status(format!("safe to remove mon.{id}"))),
    }
}

/// Announces a monitor. It has no vote before it has joined: a monitor that never joins stops no
/// other one.
fn add(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("name").trim_start_matches("mon.").to_owned();
    let good =
        !name.is_empty() && name.chars().all(|ch| ch.is_ascii_alphanumeric() || "-_".contains(ch));
    if !good {
        return Err(Refusal::invalid(format!("'{name}' is no name for a monitor")));
    }
    if c.args.has("location") {
        return Err(Refusal::unsupported(NO_STRETCH));
    }
    let text = c.args.req("addr");
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let bare = bare.strip_prefix("v2:").unwrap_or(bare);
    let bare = bare.split('/').next().unwrap_or(bare);
    let socket = match (bare.parse::<std::net::SocketAddr>(), bare.parse::<std::net::IpAddr>()) {
        (Ok(a), _) if a.port() != 0 => a,
        (Ok(a), _) => (a.ip(), MON_PORT).into(),
        (_, Ok(ip)) => (ip, MON_PORT).into(),
        _ => return Err(Refusal::invalid(format!("'{text}' is no address"))),
    };
    let addrs = types::EntityAddrVec::one(types::EntityAddr::msgr2(socket, 0));
    let map = &c.pending.state().monmap;
    if let Some(old) = map.mon_info.get(&name) {
        if old.public_addrs == addrs {
            return Ok(Reply::status(format!("mon.{name} at {addrs} already exists")));
        }
        return Err(Refusal::new(
            Errno::EEXIST,
            format!("mon.{name} already exists at address {}", old.public_addrs),
        ));
    }
    if let Some(other) = map.mon_info.values().find(|m| m.public_addrs == addrs) {
        return Err(Refusal::new(
            Errno::EEXIST,
            format!("mon.{} already exists with address {addrs}", other.name),
        ));
    }
    let new = types::monmap::MonInfo {
        name: name.clone(),
        public_addrs: addrs.clone(),
        ..Default::default()
    };
    c.pending.change_monmap(|m| m.add(new));
    Ok(Reply::status(format!("adding mon.{name} at {addrs}")))
}

/// The standard port of monitors.
const MON_PORT: u16 = 3300;

/// Takes a monitor out of the map; the group of monitors follows.
fn rm(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("name").trim_start_matches("mon.").to_owned();
    let map = &c.pending.state().monmap;
    let Some(info) = map.mon_info.get(&name) else {
        return Ok(Reply::status(format!("mon.{name} does not exist or has already been removed")));
    };
    if map.mon_info.len() == 1 {
        return Err(Refusal::invalid(format!("error: refusing removal of last monitor {name}")));
    }
    // The monitors that are left must be able to go on.
    let there = c
        .env
        .mon
        .quorum
        .iter()
        .filter_map(|r| map.ranks.get(usize::try_from(*r).ok()?))
        .filter(|n| **n != name)
        .count();
    if there == 0 {
        let message = format!("removing mon.{name} would leave no monitor that runs");
        return Err(Refusal::new(Errno::EBUSY, message));
    }
    let addrs = info.public_addrs.clone();
    let left = map.mon_info.len() - 1;
    c.pending.change_monmap(|m| m.remove(&name));
    if c.pending.state().mon_metadata.contains_key(&name) {
        c.pending.put(crate::state::Change::MonMetadata(name.clone(), None));
    }
    Ok(Reply::status(format!("removing mon.{name} at {addrs}, there will be {left} monitors")))
}

fn feature_ls(c: &Read<'_>) -> Answer {
    let map = &c.state.monmap;
    let with_value = c.args.str("with_value") == Some("--with-value");
    let shown = |f: MonFeatures| -> Value {
        match with_value {
            false => json!(f.names()),
            true => {
                let bits = (0..64).filter(|b| f.0 & (1u64 << b) != 0).map(|b| 1u64 << b);
                json!(
                    f.names()
                        .into_iter()
                        .zip(bits)
                        .map(|(n, b)| format!("{n}({b})"))
                        .collect::<Vec<_>>()
                )
            }
        }
    };
    let required = MonFeatures(map.persistent_features.0 | map.optional_features.0);
    let persistent = MonFeatures(MonFeatures::SQUID.0 & !MonFeatures::OSDMAP_PRUNE.0);
    Ok(c.format().reply(
        || {
            json!({
                "all": {"supported": shown(MonFeatures::SQUID), "persistent": shown(persistent)},
                "monmap": {
                    "persistent": shown(map.persistent_features),
                    "optional": shown(map.optional_features),
                    "required": shown(required),
                },
            })
        },
        || {
            let line =
                |title: &str, f: MonFeatures| format!("\t{title}: [{}]\n", f.names().join(","));
            format!(
                "all features\n{}{}on current monmap (epoch {})\n{}{}",
                line("supported", MonFeatures::SQUID),
                line("persistent", persistent),
                map.epoch,
                line("persistent", map.persistent_features),
                line("required", required)
            )
        },
    ))
}

fn set_weight(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("name");
    let weight = c.args.int("weight").and_then(|w| u16::try_from(w).ok()).unwrap_or(0);
    let Some(info) = c.pending.state().monmap.mon_info.get(name) else {
        return Err(Refusal::new(Errno::ENOENT, format!("mon.{name} does not exist")));
    };
    if info.weight != weight {
        c.pending.change_monmap(|m| {
            if let Some(i) = m.mon_info.get_mut(name) {
                i.weight = weight;
            }
        });
    }
    Ok(Reply::empty())
}
