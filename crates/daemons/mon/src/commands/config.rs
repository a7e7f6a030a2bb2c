//! `ceph config ...`: the central configuration.

use super::frame::{Answer, Entry, Read, Write, read, write};
use crate::command::{Refusal, Reply};
use crate::config_db::{for_entity, split_key, whose};
use crate::state::{Change, ClusterState, ConfigLogEntry};
use conf::sections::{Section, Who};
use conf::{ConfError, OptionSpec};
use pgmap::table::{Align, Table};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use types::OsdId;
use types::errno::Errno;

pub(super) static COMMANDS: &[Entry] = &[
    write(
        "config set name=who,type=CephString name=name,type=CephString name=value,type=CephString name=force,type=CephBool,req=false",
        "Set an option for one or more entities.",
        "config",
        "rw",
        set,
    ),
    write(
        "config rm name=who,type=CephString name=name,type=CephString",
        "Clear an option for one or more entities.",
        "config",
        "rw",
        rm,
    ),
    read(
        "config get name=who,type=CephString name=key,type=CephString,req=false",
        "Show the settings of an entity.",
        "config",
        "r",
        get,
    ),
    read("config dump", "Show all settings.", "mon", "r", dump),
    read("config help name=key,type=CephString", "Describe an option.", "config", "r", help),
    read("config ls", "List the options that exist.", "config", "r", ls),
    read(
        "config log name=num,type=CephInt,req=false",
        "Show recent changes of the configuration.",
        "config",
        "r",
        log,
    ),
    write(
        "config reset name=num,type=CephInt,range=0",
        "Go back to the configuration of an earlier version.",
        "config",
        "rw",
        reset,
    ),
    write(
        "config assimilate-conf",
        "Take over the settings of a ceph.conf.",
        "config",
        "rw",
        assimilate,
    ),
    read(
        "config generate-minimal-conf",
        "Print a ceph.conf with what a client needs.",
        "config",
        "r",
        minimal,
    ),
    read(
        "config show name=who,type=CephString name=key,type=CephString,req=false",
        "Show the settings that hold in a daemon.",
        "mgr",
        "r",
        show,
    ),
    read(
        "config show-with-defaults name=who,type=CephString",
        "Show the settings that hold in a daemon, defaults included.",
        "mgr",
        "r",
        show_all,
    ),
];

fn refusal(e: ConfError) -> Refusal {
    Refusal::invalid(e.to_string())
}

/// Options that a process needs before it knows a monitor, or that have a meaning only where it
/// runs (Ceph: `Option::FLAG_NO_MON_UPDATE`, `common/options.cc`, 16.2).
const SPECIAL: [&str; 16] = [
    "chdir",
    "daemonize",
    "fsid",
    "host",
    "key",
    "keyfile",
    "keyring",
    "mds_data",
    "mgr_data",
    "mon_data",
    "mon_host",
    "mon_host_override",
    "mon_initial_members",
    "no_config_file",
    "osd_data",
    "rgw_data",
];

/// An option's name as it is kept: blanks are underscores. Dashes are not, as with stock monitors.
fn spelled(name: &str) -> String {
    name.split_whitespace().collect::<Vec<_>>().join("_")
}

fn option(name: &str) -> Result<(&'static OptionSpec, String), Refusal> {
    let name = spelled(name);
    conf::find(&name).map(|o| (o, name.clone())).ok_or_else(|| refusal(ConfError::Unknown(name)))
}

/// A setting as it is shown.
struct Row<'a> {
    section: Section,
    name: &'a str,
    value: &'a str,
    level: &'static str,
    runtime: bool,
}

impl<'a> Row<'a> {
    /// An option that is kept by force alone has no level, and takes no effect.
    fn new(section: Section, name: &'a str, value: &'a str) -> Self {
        let spec = conf::find(name);
        let level = spec.map_or("unknown", |o| o.level.name());
        Row { section, name, value, level, runtime: spec.is_some_and(|o| o.runtime) }
    }
}

/// Puts a change of one key and its record.
fn change(c: &mut Write<'_>, name: &str, diff: BTreeMap<String, (Option<String>, Option<String>)>) {
    if diff.is_empty() {
        return;
    }
    for (key, (_, after)) in &diff {
        c.pending.put(Change::Config(key.clone(), after.clone()));
    }
    let version = c.pending.state().config_log.keys().next_back().copied().unwrap_or(0) + 1;
    let entry = ConfigLogEntry { version, stamp: c.env.now, name: name.into(), diff };
    c.pending.put(Change::ConfigLog(entry));
}

fn set(c: &mut Write<'_>) -> Answer {
    let section = Section::parse(c.args.req("who")).map_err(refusal)?;
    let forced = c.args.flag("force");
    let (spec, name, value) = match option(c.args.req("name")) {
        // By force anything is kept, for releases and programs that know more.
        Err(_) if forced => (None, spelled(c.args.req("name")), c.args.req("value").to_owned()),
        Err(e) => return Err(e),
        Ok((spec, name)) => match spec.parse(c.args.req("value")) {
            Ok(value) => (Some(spec), name, value.to_string()),
            Err(_) if forced => (Some(spec), name, c.args.req("value").to_owned()),
            Err(e) => return Err(refusal(e)),
        },
    };
    if !forced && SPECIAL.contains(&name.as_str()) {
        let message = format!("{name} is special and cannot be stored by the mon");
        return Err(Refusal::invalid(message));
    }
    let key = format!("{section}/{name}");
    let before = c.pending.state().config.get(&key).cloned();
    if before.as_deref() != Some(&value) {
        if let Some((whom, sum)) = overcommitted(c.pending.state(), &[(&section, &name, &value)]) {
            return Err(Refusal::invalid(format!("{name} = {value}: for {whom}, {sum}")));
        }
        change(c, "", [(key, (before, Some(value)))].into());
    }
    let mut reply = Reply::empty();
    if spec.is_some_and(|spec| !spec.runtime) {
        reply =
            reply.with_status(format!("note: {name} takes effect when the daemons start again"));
    }
    Ok(reply)
}

/// For which OSD, if for any, reservations of the profile `custom` would be more than it has after
/// these changes, all of which are for reservations; and what they would be.
fn overcommitted(
    state: &ClusterState,
    news: &[(&Section, &str, &str)],
) -> Option<(String, String)> {
    let news: Vec<_> = news.iter().filter(|(_, name, _)| conf::mclock::reserves(name)).collect();
    if news.is_empty() {
        return None;
    }
    let mut reserves: BTreeMap<(Section, &str), &str> = BTreeMap::new();
    for (key, value) in state.config.iter() {
        if let Some((section, name)) =
            split_key(key).filter(|(_, name)| conf::mclock::reserves(name))
            && let Ok(section) = Section::parse(section)
        {
            reserves.insert((section, name), value);
        }
    }
    reserves
        .extend(news.iter().map(|(section, name, value)| (((*section).clone(), *name), *value)));
    let overcommitted = |who: &Who| {
        let settings = conf::sections::resolve(
            reserves.iter().map(|((section, name), value)| (section, *name, *value)),
            who,
        );
        conf::mclock::overcommitted(|name| settings.get(name)?.0.parse().ok())
    };
    // One that is yet to come has no place. One that is named has at least its number.
    let map = state.osd.map();
    let named = news
        .iter()
        .filter_map(|(section, ..)| section.name.strip_prefix("osd.").map(str::to_owned));
    let each = (0..map.max_osd()).filter(|id| map.exists(OsdId(*id))).map(|id| id.to_string());
    std::iter::once(String::new()).chain(named).chain(each).find_map(|id| {
        let sum = overcommitted(&whose(state, "osd", &id, None))?;
        Some((if id.is_empty() { "OSDs".into() } else { format!("osd.{id}") }, sum))
    })
}

fn rm(c: &mut Write<'_>) -> Answer {
    let section = Section::parse(c.args.req("who")).map_err(refusal)?;
    let name = spelled(c.args.req("name"));
    let key = format!("{section}/{name}");
    if let Some(before) = c.pending.state().config.get(&key).cloned() {
        change(c, "", [(key, (Some(before), None))].into());
    }
    Ok(Reply::empty())
}

/// The entity of `who`: `osd.3` is one, `osd` stands for any.
fn entity(who: &str) -> Result<(String, String), Refusal> {
    let section = Section::parse(who).map_err(refusal)?;
    match section.name.split_once('.') {
        Some((kind, id)) => Ok((kind.into(), id.into())),
        None => Ok((section.name, String::new())),
    }
}

fn get(c: &Read<'_>) -> Answer {
    let (kind, id) = entity(c.args.req("who"))?;
    let settings = for_entity(c.state, &kind, &id, None);
    if let Some(key) = c.args.str("key") {
        let (spec, name) = option(key)
            .map_err(|_| Refusal::new(Errno::ENOENT, format!("unrecognized key '{key}'")))?;
        let value =
            settings.get(&name).cloned().unwrap_or_else(|| spec.default_value().to_string());
        // The value alone, whatever the format, as from Ceph.
        return Ok(Reply::data(value + "\n"));
    }
    let rows: Vec<Row<'_>> = settings
        .iter()
        .filter_map(|(n, v)| Some(Row::new(origin(c, &kind, &id, n, v)?, n, v)))
        .collect();
    Ok(c.format().reply(
        || {
            let all: Map<String, Value> = rows
                .iter()
                .map(|r| (r.name.to_string(), json!({"value": r.value, "section": r.section.name, "mask": mask(&r.section), "can_update_at_runtime": r.runtime})))
                .collect();
            Value::Object(all)
        },
        || table(&rows),
    ))
}

/// The section that a resolved setting came from.
fn origin(c: &Read<'_>, kind: &str, id: &str, name: &str, value: &str) -> Option<Section> {
    let full = if id.is_empty() { kind.to_string() } else { format!("{kind}.{id}") };
    let mut found: Option<Section> = None;
    for (key, v) in c.state.config.iter() {
        let (section, n) = split_key(key)?;
        if n == name && v == value {
            let s = Section::parse(section).ok()?;
            if s.name == "global" || s.name == kind || s.name == full {
                found = Some(found.filter(|f| f.name.len() > s.name.len()).unwrap_or(s));
            }
        }
    }
    found
}

fn mask(s: &Section) -> Value {
    let mut m = Map::new();
    if let Some((k, v)) = &s.location {
        m.insert(k.clone(), v.clone().into());
    }
    if let Some(class) = &s.device_class {
        m.insert("device_class".into(), class.clone().into());
    }
    Value::Object(m)
}

fn table(rows: &[Row<'_>]) -> String {
    let mut t = Table::new();
    for h in ["WHO", "MASK", "LEVEL", "OPTION", "VALUE", "RO"] {
        t.column(h, Align::Left, Align::Left);
    }
    for r in rows {
        t.row([
            r.section.name.clone(),
            r.section.mask(),
            r.level.into(),
            r.name.into(),
            r.value.to_string(),
            if r.runtime { String::new() } else { "*".into() },
        ]);
    }
    t.to_string()
}

fn dump(c: &Read<'_>) -> Answer {
    let mut rows: Vec<Row<'_>> = c
        .state
        .config
        .iter()
        .filter_map(|(key, v)| {
            let (section, name) = split_key(key)?;
            Some(Row::new(Section::parse(section).ok()?, name, v))
        })
        .collect();
    rows.sort_by(|a, b| {
        let order = |r: &Row<'_>| r.section.name != "global";
        (order(a), &a.section, a.name).cmp(&(order(b), &b.section, b.name))
    });
    Ok(c.format().reply(
        || {
            rows.iter()
                .map(|Row { section: s, name, value, level, runtime }| {
                    let mut row = json!({
                        "section": s.name, "name": name, "value": value, "level": level, "can_update_at_runtime": runtime,
                        "mask": s.mask(),
                    });
                    // What is not narrowed down has no such fields.
                    if let Some((kind, place)) = &s.location {
                        row["location_type"] = kind.as_str().into();
                        row["location_value"] = place.as_str().into();
                    }
                    if let Some(class) = &s.device_class {
                        row["device_class"] = class.as_str().into();
                    }
                    row
                })
                .collect()
        },
        || table(&rows),
    ))
}

fn help(c: &Read<'_>) -> Answer {
    let (o, _) = option(c.args.req("key")).map_err(|_| {
        Refusal::new(
            Errno::ENOENT,
            format!("configuration option '{}' not recognized", c.args.req("key")),
        )
    })?;
    let number = |v: Option<f64>| {
        v.map_or(json!(""), |n| if n.fract() == 0.0 { json!(n as i64) } else { json!(n) })
    };
    Ok(c.format().reply(
        || {
            json!({
                "name": o.name, "type": o.kind.name(), "level": o.level.name(), "desc": o.description, "long_desc": "", "default": o.default_value().to_string(),
                "daemon_default": "", "tags": [], "services": o.services, "see_also": [], "enum_values": o.allowed, "min": number(o.min), "max": number(o.max),
                "can_update_at_runtime": o.runtime, "flags": if o.runtime { vec!["runtime"] } else { vec![] },
            })
        },
        || {
            let mut s = format!("{} - {}\n  ({}, {})\n  Default: {}\n", o.name, o.description, o.kind.name(), o.level.name(), o.default_value());
            if let (Some(min), Some(max)) = (o.min, o.max) {
                s += &format!("  Minimum: {min}\n  Maximum: {max}\n");
            } else if let Some(min) = o.min {
                s += &format!("  Minimum: {min}\n");
            }
            if !o.allowed.is_empty() {
                s += &format!("  Possible values: {}\n", o.allowed.join(", "));
            }
            s += &format!("  Can update at runtime: {}\n", o.runtime);
            s += &format!("  Services: [{}]\n", o.services.join(", "));
            s
        },
    ))
}

fn ls(c: &Read<'_>) -> Answer {
    let names: Vec<&str> = conf::schema::all().iter().map(|o| o.name).collect();
    Ok(c.format().reply(|| json!(names), || names.join("\n") + "\n"))
}

fn log(c: &Read<'_>) -> Answer {
    let n = c.args.int("num").unwrap_or(10).max(0) as usize;
    let entries: Vec<&ConfigLogEntry> = c.state.config_log.values().rev().take(n).collect();
    Ok(c.format().reply(
        || {
            entries
                .iter()
                .map(|e| {
                    let changes: Vec<Value> = e
                        .diff
                        .iter()
                        .map(|(k, (before, after))| {
                            let mut m = Map::new();
                            m.insert("name".into(), k.clone().into());
                            if let Some(b) = before {
                                m.insert("previous_value".into(), b.clone().into());
                            }
                            if let Some(a) = after {
                                m.insert("new_value".into(), a.clone().into());
                            }
                            Value::Object(m)
                        })
                        .collect();
                    json!({"version": e.version, "timestamp": e.stamp.to_string(), "name": e.name, "changes": changes})
                })
                .collect()
        },
        || {
            let mut out = String::new();
            for e in &entries {
                out += &format!("--- {} --- {}", e.version, e.stamp);
                if !e.name.is_empty() {
                    out += &format!(" --- {}", e.name);
                }
                out += " ---\n";
                for (k, (before, after)) in &e.diff {
                    if let Some(b) = before {
                        out += &format!("- {k} = {b}\n");
                    }
                    if let Some(a) = after {
                        out += &format!("+ {k} = {a}\n");
                    }
                }
            }
            out
        },
    ))
}

fn reset(c: &mut Write<'_>) -> Answer {
    let target = c.args.int("num").unwrap_or(0).max(0) as u64;
    let state = c.pending.state();
    let newest = state.config_log.keys().next_back().copied().unwrap_or(0);
    let oldest = state.config_log.keys().next().copied().unwrap_or(1);
    if target > newest || target + 1 < oldest {
        return Err(Refusal::new(
            Errno::ENOENT,
            format!(
                "version {target} is not in the history ({} to {newest})",
                oldest.saturating_sub(1)
            ),
        ));
    }
    let mut then: BTreeMap<String, String> = (*state.config).clone();
    for entry in state.config_log.range(target + 1..).map(|(_, e)| e).rev() {
        for (key, (before, _)) in &entry.diff {
            match before {
                Some(b) => drop(then.insert(key.clone(), b.clone())),
                None => drop(then.remove(key)),
            }
        }
    }
    let now = state.config.clone();
    let keys: std::collections::BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    let diff = keys
        .into_iter()
        .filter(|k| then.get(*k) != now.get(*k))
        .map(|k| (k.clone(), (now.get(k).cloned(), then.get(k).cloned())))
        .collect();
    change(c, &format!("reset to {target}"), diff);
    Ok(Reply::empty())
}

fn assimilate(c: &mut Write<'_>) -> Answer {
    let text = String::from_utf8_lossy(c.env.input).into_owned();
    let file = conf::file::ConfFile::parse(&text).map_err(refusal)?;
    let mut diff = BTreeMap::new();
    let mut left = String::new();
    let mut reserves: Vec<(Section, String, String)> = Vec::new();
    for (section, name, value) in &file.entries {
        let taken =
            Section::parse(section).ok().zip(conf::find(name).filter(|o| o.parse(value).is_ok()));
        // Reservations are taken as long as they fit together.
        let taken = taken.filter(|(s, _)| {
            reserves.push((s.clone(), name.clone(), value.clone()));
            let news: Vec<_> =
                reserves.iter().map(|(s, n, v)| (s, n.as_str(), v.as_str())).collect();
            let fits = overcommitted(c.pending.state(), &news).is_none();
            if !fits || !conf::mclock::reserves(name) {
                reserves.pop();
            }
            fits
        });
        // Where to find the monitors must stay in the file.
        let stays = SPECIAL.contains(&name.as_str());
        match taken {
            Some((s, _)) if !stays => {
                let key = format!("{s}/{name}");
                let before = c.pending.state().config.get(&key).cloned();
                if before.as_ref() != Some(value) {
                    diff.insert(key, (before, Some(value.clone())));
                }
            }
            _ => left += &format!("[{section}]\n\t{name} = {value}\n"),
        }
    }
    change(c, "assimilate-conf", diff);
    Ok(Reply::data(left))
}

fn minimal(c: &Read<'_>) -> Answer {
    let hosts: Vec<String> =
        c.state.monmap.mon_info.values().map(|i| i.public_addrs.to_string()).collect();
    Ok(Reply::data(format!(
        "# minimal ceph.conf for {}\n[global]\n\tfsid = {}\n\tmon_host = {}\n",
        c.state.monmap.fsid,
        c.state.monmap.fsid,
        hosts.join(" ")
    )))
}

/// Whether there is such a daemon: only what runs has a running configuration.
fn known_daemon(c: &Read<'_>, kind: &str, id: &str) -> Result<(), Refusal> {
    let known = match kind {
        "osd" => id.parse().is_ok_and(|n| c.state.osd.map().is_up(types::OsdId(n))),
        "mon" => c.state.mon_metadata.contains_key(id),
        "mgr" => c.state.mgr_metadata.contains_key(id),
        _ => false,
    };
    match known {
        true => Ok(()),
        false => Err(Refusal::new(
            Errno::ENOENT,
            format!("no config state for daemon {}", c.args.req("who")),
        )),
    }
}

fn show_rows(
    c: &Read<'_>,
    defaults: bool,
) -> Result<Vec<(&'static OptionSpec, String, &'static str)>, Refusal> {
    let (kind, id) = entity(c.args.req("who"))?;
    known_daemon(c, &kind, &id)?;
    let settings = for_entity(c.state, &kind, &id, None);
    Ok(conf::schema::all()
        .into_iter()
        .filter(|o| o.services.contains(&kind.as_str()) || settings.contains_key(o.name))
        .filter_map(|o| match settings.get(o.name) {
            Some(v) => Some((o, v.clone(), "mon")),
            None if defaults => Some((o, o.default_value().to_string(), "default")),
            None => None,
        })
        .collect())
}

fn shown(c: &Read<'_>, defaults: bool) -> Answer {
    if let Some(key) = c.args.str("key") {
        let (kind, id) = entity(c.args.req("who"))?;
        known_daemon(c, &kind, &id)?;
        let (spec, name) = option(key).map_err(|r| Refusal::new(Errno::ENOENT, r.message))?;
        let value = for_entity(c.state, &kind, &id, None)
            .get(&name)
            .cloned()
            .unwrap_or_else(|| spec.default_value().to_string());
        return Ok(Reply::data(value + "\n"));
    }
    let rows = show_rows(c, defaults)?;
    Ok(c.format().reply(
        || rows.iter().map(|(o, v, s)| json!({"name": o.name, "value": v, "source": s, "overrides": [], "ignores": []})).collect(),
        || {
            let mut t = Table::new();
            for h in ["NAME", "VALUE", "SOURCE", "OVERRIDES", "IGNORES"] {
                t.column(h, Align::Left, Align::Left);
            }
            for (o, v, s) in &rows {
                t.row([o.name, v, s, "", ""]);
            }
            t.to_string()
        },
    ))
}

fn show(c: &Read<'_>) -> Answer {
    shown(c, false)
}

fn show_all(c: &Read<'_>) -> Answer {
    shown(c, true)
}
