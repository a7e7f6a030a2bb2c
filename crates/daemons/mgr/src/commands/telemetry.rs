//! `telemetry`: a report about the cluster, in the shape of Ceph's (module `telemetry`, 16.2). An
//! operator sees it on demand. This manager sends nothing to anybody.

use super::fs::{Ask, AskMonitors, Later};
use super::{Answer, Context, Entry, Ordered, Run, read, unsupported};
use command::{Command, Format, Refusal, Reply, flags};
use pgmap::table::{Align, Table};
use rand::Rng;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use types::errno::Errno;

/// The licence that Ceph's operators agree to.
const LICENCE: &str = "sharing-1-0";
/// Channels, whether they are on by default, and what they are.
const CHANNELS: [(&str, bool, &str); 5] = [
    ("basic", true, "Share basic cluster information (size, version)"),
    ("crash", true, "Share metadata about Ceph daemon crashes (version, stack traces, etc)"),
    (
        "device",
        true,
        "Share device health metrics (e.g., SMART data, minus potentially identifying info like serial numbers)",
    ),
    ("ident", false, "Share a user-provided description and/or contact email for the cluster"),
    ("perf", false, "Share various performance metrics of a cluster"),
];
/// What daemons say of themselves and a report counts.
const METADATA: [&str; 8] = [
    "arch",
    "ceph_version",
    "cpu",
    "distro",
    "distro_description",
    "kernel_description",
    "kernel_version",
    "os",
];

const fn ask(signature: &'static str, help: &'static str, handler: fn(Ask) -> Later) -> Entry {
    Command {
        signature,
        help,
        module: "telemetry",
        perm: "r",
        flags: flags::MGR,
        handler: Run::Fs(handler),
    }
}

const fn order(
    signature: &'static str,
    help: &'static str,
    handler: fn(&Context<'_>) -> Result<Ordered, Refusal>,
) -> Entry {
    Command {
        signature,
        help,
        module: "telemetry",
        perm: "rw",
        flags: flags::MGR,
        handler: Run::Order(handler),
    }
}

const SENDS_NOTHING: &str = "this manager sends no reports; 'ceph telemetry preview' prints one";

pub(super) const COMMANDS: &[Entry] = &[
    read("telemetry status", "Show current configuration", "telemetry", status),
    ask(
        "telemetry show name=channels,type=CephString,n=N,req=false",
        "Show report of all channels that are on, or of those that are named",
        |a| Box::pin(show(a)),
    ),
    ask(
        "telemetry preview name=channels,type=CephString,n=N,req=false",
        "Preview a report of all channels that are on, or of those that are named",
        |a| Box::pin(show(a)),
    ),
    ask("telemetry show-all", "Show report of all channels", |a| Box::pin(show_all(a))),
    ask("telemetry preview-all", "Preview a report of all channels", |a| Box::pin(show_all(a))),
    ask("telemetry show-device", "Show the report about devices", |a| Box::pin(show_device(a))),
    ask("telemetry preview-device", "Preview the report about devices", |a| {
        Box::pin(show_device(a))
    }),
    read("telemetry channel ls", "List all channels", "telemetry", channels),
    order(
        "telemetry on name=license,type=CephString,req=false",
        "Say that no reports are sent, once the licence is agreed to",
        on,
    ),
    order("telemetry off", "Disable telemetry reports from this cluster", |_| {
        Ok(Ordered::default())
    }),
    unsupported(
        "telemetry send name=endpoint,type=CephChoices,strings=ceph|device,n=N,req=false name=license,type=CephString,req=false",
        "Force sending data to Ceph telemetry",
        "telemetry",
        SENDS_NOTHING,
    ),
];

fn on(cx: &Context<'_>) -> Result<Ordered, Refusal> {
    if cx.args.str("license") != Some(LICENCE) {
        return Err(Refusal::new(
            Errno::EPERM,
            format!(
                "Telemetry data is licensed under the Community Data License Agreement - Sharing - Version 1.0 (https://cdla.io/sharing-1-0/).\nTo enable, add '--license {LICENCE}' to the 'ceph telemetry on' command."
            ),
        ));
    }
    Err(Refusal::unsupported(format!("telemetry on: {SENDS_NOTHING}")))
}

fn status(cx: &Context<'_>) -> Answer {
    let t = &cx.state.telemetry;
    let mut all: Map<String, Value> = [
        ("enabled", json!(false)),
        ("url", json!("")),
        ("device_url", json!("")),
        ("interval", json!(24)),
        ("last_opt_revision", json!(1)),
        ("last_upload", Value::Null),
        ("leaderboard", json!(false)),
        ("proxy", Value::Null),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .into_iter()
    .collect();
    for (name, ..) in CHANNELS {
        all.insert(format!("channel_{name}"), t.channels.contains(&name.to_owned()).into());
    }
    for (name, value) in &t.ident {
        all.insert(name.clone(), value.clone());
    }
    let format = if cx.format == Format::Plain { Format::JsonPretty } else { cx.format };
    let sorted: BTreeMap<String, Value> = all.into_iter().collect();
    Ok(Reply::data(format.json(&json!(sorted))))
}

fn channels(cx: &Context<'_>) -> Answer {
    let word = |on: bool| if on { "ON" } else { "OFF" };
    let is_on = |name: &str| cx.state.telemetry.channels.iter().any(|c| c == name);
    Ok(cx.format.reply(
        || {
            let row = |(name, default, help): &(&str, bool, &str)| {
                json!({"name": name, "enabled": is_on(name), "default": default, "desc": help})
            };
            CHANNELS.iter().map(row).collect()
        },
        || {
            let mut t = Table::new();
            for head in ["NAME", "ENABLED", "DEFAULT", "DESC"] {
                t.column(head, Align::Left, Align::Left);
            }
            for (name, default, help) in CHANNELS {
                t.row([name, word(is_on(name)), word(default), help]);
            }
            t.to_string()
        },
    ))
}

async fn json_of(monitors: &AskMonitors, prefix: &str) -> Result<Value, Refusal> {
    let reply = monitors(json!({"prefix": prefix, "format": "json"})).await?;
    serde_json::from_slice(&reply.data).map_err(|e| Refusal::invalid(format!("{prefix}: {e}")))
}

/// A random id that the monitors keep: reports of a cluster have one, and names in them are mixed
/// with another.
async fn kept_id(monitors: &AskMonitors, name: &str) -> Result<String, Refusal> {
    let key = format!("mgr/telemetry/{name}");
    if let Ok(reply) = monitors(json!({"prefix": "config-key get", "key": key})).await {
        return Ok(String::from_utf8_lossy(&reply.data).trim().to_owned());
    }
    let mut bytes = [0u8; 16];
    rand::rng().fill_bytes(&mut bytes);
    let id = types::Fsid(bytes).to_string();
    monitors(json!({"prefix": "config-key set", "key": key, "val": id})).await?;
    Ok(id)
}

/// A name that says nothing, the same for the same name.
pub fn hidden(salt: &str, name: &str) -> String {
    use sha1::{Digest, Sha1};
    let mut hash = Sha1::new();
    for part in [salt, name, salt] {
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// How many of `all` say which value of a key.
fn counted(all: &Value) -> Value {
    let mut out = Map::new();
    for key in METADATA {
        let mut counts = BTreeMap::<String, u64>::new();
        for m in all.as_array().into_iter().flatten() {
            if let Some(value) = m[key].as_str() {
                *counts.entry(value.to_owned()).or_default() += 1;
            }
        }
        out.insert(key.to_owned(), json!(counts));
    }
    Value::Object(out)
}

fn count(v: &Value) -> usize {
    v.as_array().map_or(0, Vec::len)
}

async fn basic(a: &Ask, report: &mut Map<String, Value>) -> Result<(), Refusal> {
    let ask = &a.monitors;
    let (mons, osds) = (json_of(ask, "mon dump").await?, json_of(ask, "osd dump").await?);
    let (df, crush) = (json_of(ask, "df").await?, json_of(ask, "osd crush dump").await?);
    let config = json_of(ask, "config dump").await?;
    let empty = Vec::new();
    let addrs: Vec<&Value> = mons["mons"]
        .as_array()
        .unwrap_or(&empty)
        .iter()
        .flat_map(|m| m["public_addrs"]["addrvec"].as_array().unwrap_or(&empty))
        .collect();
    let kind = |k: &str| addrs.iter().filter(|a| a["type"] == k).count();
    let v6 = |a: &&&Value| a["addr"].as_str().is_some_and(|t| t.starts_with('['));
    let ipv6 = addrs.iter().filter(v6).count();
    report.insert("created".into(), mons["created"].clone());
    report.insert(
        "mon".into(),
        json!({
            "count": count(&mons["mons"]), "features": mons["features"],
            "min_mon_release": mons["min_mon_release"],
            "v1_addr_mons": kind("v1"), "v2_addr_mons": kind("v2"),
            "ipv4_addr_mons": addrs.len() - ipv6, "ipv6_addr_mons": ipv6,
        }),
    );
    let mut changed: Vec<&str> =
        config.as_array().unwrap_or(&empty).iter().filter_map(|o| o["name"].as_str()).collect();
    changed.sort_unstable();
    changed.dedup();
    report.insert("config".into(), json!({"cluster_changed": changed, "active_changed": []}));
    let pools: Vec<Value> = osds["pools"]
        .as_array()
        .unwrap_or(&empty)
        .iter()
        .map(|p| {
            json!({
                "pool": p["pool"], "type": p["type"], "pg_num": p["pg_num"],
                "pgp_num": p["pg_placement_num"], "size": p["size"], "min_size": p["min_size"],
                "pg_autoscale_mode": p["pg_autoscale_mode"],
                "target_max_bytes": p["target_max_bytes"], "target_max_objects": p["target_max_objects"],
                "erasure_code_profile": p["erasure_code_profile"] != "",
                "cache_mode": p["cache_mode"],
            })
        })
        .collect();
    let groups: u64 = pools.iter().filter_map(|p| p["pg_num"].as_u64()).sum();
    let rbd = osds["pools"].as_array().unwrap_or(&empty).iter();
    let rbd = rbd.filter(|p| p["application_metadata"].get("rbd").is_some()).count();
    report.insert("rbd".into(), json!({"num_pools": rbd}));
    report.insert("pools".into(), pools.into());
    report.insert(
        "osd".into(),
        json!({
            "count": count(&osds["osds"]), "require_osd_release": osds["require_osd_release"],
            "require_min_compat_client": osds["require_min_compat_client"],
        }),
    );
    report.insert(
        "crush".into(),
        json!({
            "num_devices": count(&crush["devices"]), "num_types": count(&crush["types"]),
            "num_buckets": count(&crush["buckets"]), "num_rules": count(&crush["rules"]),
            "tunables": crush["tunables"],
        }),
    );
    report.insert(
        "metadata".into(),
        json!({
            "osd": counted(&json_of(ask, "osd metadata").await?),
            "mon": counted(&json_of(ask, "mon metadata").await?),
        }),
    );
    report.insert(
        "usage".into(),
        json!({
            "pools": count(&df["pools"]), "pg_num": groups,
            "total_bytes": df["stats"]["total_bytes"],
            "total_used_bytes": df["stats"]["total_used_bytes"],
            "total_avail_bytes": df["stats"]["total_avail_bytes"],
        }),
    );
    report.insert("fs".into(), json!({"count": a.fs.filesystems.len()}));
    Ok(())
}

/// Crashes without hosts and names of daemons.
fn crashes(all: &[Value], salt: &str) -> Vec<Value> {
    all.iter()
        .map(|c| {
            let mut c = c.clone();
            if let Some(map) = c.as_object_mut() {
                map.remove("utsname_hostname");
                let entity = map.get("entity_name").and_then(Value::as_str).unwrap_or_default();
                if let Some((kind, id)) = entity.split_once('.') {
                    let entity = format!("{kind}.{}", hidden(salt, id));
                    map.insert("entity_name".into(), entity.into());
                }
            }
            c
        })
        .collect()
}

async fn report(a: &Ask, channels: Vec<String>) -> Result<Value, Refusal> {
    let id = kept_id(&a.monitors, "report_id").await?;
    let salt = kept_id(&a.monitors, "salt").await?;
    let mut report = Map::new();
    for (key, value) in [
        ("leaderboard", json!(false)),
        ("report_version", json!(1)),
        ("report_timestamp", json!(a.now.gmtime())),
        ("report_id", json!(id)),
        ("channels", json!(channels)),
        ("channels_available", CHANNELS.iter().map(|c| c.0).collect()),
        ("license", json!(LICENCE)),
    ] {
        report.insert(key.to_owned(), value);
    }
    let has = |name: &str| channels.iter().any(|c| c == name);
    if has("ident") {
        report.extend(a.telemetry.ident.iter().cloned());
    }
    if has("basic") {
        basic(a, &mut report).await?;
    }
    if has("crash") {
        report.insert("crashes".into(), crashes(&a.crashes, &salt).into());
    }
    Ok(Value::Object(report))
}

fn pretty(a: &Ask, value: &Value) -> Reply {
    let format = if a.format == Format::Plain { Format::JsonPretty } else { a.format };
    let sorted: BTreeMap<String, Value> =
        value.as_object().cloned().unwrap_or_default().into_iter().collect();
    Reply::data(format.json(&json!(sorted)))
}

async fn show(a: Ask) -> Answer {
    let wanted = a.args.strs("channels");
    for name in &wanted {
        if !CHANNELS.iter().any(|c| c.0 == *name) {
            let known: Vec<&str> = CHANNELS.iter().map(|c| c.0).collect();
            return Err(Refusal::invalid(format!(
                "{name} is no channel; there are {}",
                known.join(", ")
            )));
        }
    }
    let channels = match wanted.is_empty() {
        true => a.telemetry.channels.clone(),
        false => wanted.into_iter().map(|c| c.to_string()).collect(),
    };
    Ok(pretty(&a, &report(&a, channels).await?))
}

async fn show_all(a: Ask) -> Answer {
    let all = report(&a, CHANNELS.iter().map(|c| c.0.to_owned()).collect()).await?;
    Ok(pretty(&a, &json!({"report": all, "device_report": {}})))
}

async fn show_device(a: Ask) -> Answer {
    Ok(pretty(&a, &json!({})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashes_tell_neither_hosts_nor_names() {
        let crash = json!({"crash_id": "x", "entity_name": "mds.alice.bob", "utsname_hostname": "secret-host"});
        let told = json!(crashes(&[crash], "salt")).to_string();
        assert!(!told.contains("secret-host") && !told.contains("alice"), "{told}");
        assert_eq!(hidden("salt", "a"), hidden("salt", "a"));
        assert_ne!(hidden("salt", "a"), hidden("other", "a"));
        assert_eq!(hidden("s", "a").len(), 40);
    }

    #[test]
    fn metadata_is_counted_by_value() {
        let all = json!([{"arch": "x86_64", "hostname": "h"}, {"arch": "x86_64"}, {"arch": "arm"}]);
        let c = counted(&all);
        assert_eq!(c["arch"], json!({"arm": 1, "x86_64": 2}));
        assert!(c.get("hostname").is_none());
    }
}
