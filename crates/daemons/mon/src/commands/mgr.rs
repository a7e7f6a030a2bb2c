//! `mgr`: the manager map.

use super::frame::{Answer, Entry, Read, Write, read, write};
use super::mon::{count, named};
use super::osd_crush::json_only;
use crate::command::Refusal;
use crate::command::Reply;
use crate::mgr_map;
use crate::state::Change;
use serde_json::json;
use types::Dump;
use types::errno::Errno;

/// Modules that can be enabled.
const MODULES: &[&str] = &["prometheus", "stats"];

pub(super) static COMMANDS: &[Entry] = &[
    read("mgr stat", "Summarise the manager map.", "mgr", "r", stat),
    read(
        "mgr dump name=epoch,type=CephInt,range=0,req=false",
        "Show the manager map.",
        "mgr",
        "r",
        dump,
    ),
    read("mgr services", "List addresses of the manager's services.", "mgr", "r", |c| {
        Ok(json_only(c, &json!(c.state.mgr.services)))
    }),
    read(
        "mgr metadata name=who,type=CephString,req=false",
        "Show what managers told about themselves.",
        "mgr",
        "r",
        metadata,
    ),
    read("mgr versions", "Count managers by version.", "mgr", "r", |c| {
        Ok(json_only(c, &count(c.state.mgr_metadata.values(), "ceph_version")))
    }),
    read(
        "mgr count-metadata name=property,type=CephString",
        "Count managers by a field of their metadata.",
        "mgr",
        "r",
        |c| Ok(json_only(c, &count(c.state.mgr_metadata.values(), c.args.req("property")))),
    ),
    read("mgr module ls", "List manager modules.", "mgr", "r", module_ls),
    write(
        "mgr module enable name=module,type=CephString name=force,type=CephChoices,strings=--force,req=false",
        "Enable a manager module.",
        "mgr",
        "rw",
        |c| switch(c, true),
    ),
    write(
        "mgr module disable name=module,type=CephString",
        "Disable a manager module.",
        "mgr",
        "rw",
        |c| switch(c, false),
    ),
    write(
        "mgr fail name=who,type=CephString,req=false",
        "Treat a manager as failed: the active one, or the one named.",
        "mgr",
        "rw",
        fail,
    ),
];

fn switch(c: &mut Write<'_>, on: bool) -> Answer {
    let module = c.args.req("module").to_owned();
    if mgr_map::ALWAYS_ON.contains(&module.as_str()) {
        return match on {
            true => {
                let status = format!("module '{module}' is already enabled (always-on)");
                Ok(Reply::status(status))
            }
            false => {
                let message = format!("module '{module}' cannot be disabled (always-on)");
                Err(Refusal::invalid(message))
            }
        };
    }
    if on && !MODULES.contains(&module.as_str()) {
        // With stock's flag, too: a module that is not there cannot be forced into being.
        let message = format!(
            "all mgr daemons do not support module '{module}', pass --force to force enablement"
        );
        let message = match c.args.str("force") {
            None => message,
            Some(_) => format!("no mgr daemon has a module '{module}'"),
        };
        return Err(Refusal::new(Errno::ENOENT, message));
    }
    let mut map = (*c.pending.state().mgr).clone();
    let status = match (on, map.modules.contains(&module)) {
        (true, true) => format!("module '{module}' is already enabled"),
        (false, false) => format!("module '{module}' is already disabled"),
        _ => String::new(),
    };
    if status.is_empty() {
        if on {
            map.modules.insert(module);
        } else {
            map.modules.remove(&module);
        }
        map.epoch = map.epoch.next();
        c.pending.put(Change::MgrMap(Box::new(map)));
    }
    Ok(Reply { status, data: Default::default() })
}

fn fail(c: &mut Write<'_>) -> Answer {
    let map = c.pending.state().mgr.clone();
    let who = match c.args.str("who") {
        Some(who) => who.to_owned(),
        None if map.active_gid == 0 => return Ok(Reply::status("Currently no active mgr")),
        None => map.active_name.clone(),
    };
    // A number is a global id.
    let is = |gid: u64, name: &str| who.parse().map_or(name == who, |n: u64| n == gid);
    if map.active_gid != 0 && is(map.active_gid, &map.active_name) {
        mgr_map::drop_active(c.pending, &c.env.conf.borrow());
        mgr_map::promote(c.pending);
    } else if let Some(s) = map.standbys.values().find(|s| is(s.gid, &s.name)) {
        mgr_map::drop_standby(c.pending, s.gid);
    } else {
        return Ok(Reply::status(format!("Daemon not found '{who}', already failed?")));
    }
    Ok(Reply::empty())
}

fn stat(c: &Read<'_>) -> Answer {
    let m = &c.state.mgr;
    let value = json!({
        "epoch": m.epoch,
        "available": m.available,
        "active_name": m.active_name,
        "num_standby": m.standbys.len(),
    });
    Ok(json_only(c, &value))
}

fn dump(c: &Read<'_>) -> Answer {
    match c.args.int("epoch").unwrap_or(0) {
        n if n == 0 || n == i64::from(c.state.mgr.epoch.0) => Ok(json_only(c, &c.state.mgr.dump())),
        n => Err(Refusal::new(Errno::ENOENT, format!("there is no map for epoch {n}"))),
    }
}

fn metadata(c: &Read<'_>) -> Answer {
    let all = &c.state.mgr_metadata;
    match c.args.str("who") {
        Some(who) => {
            let who = who.strip_prefix("mgr.").unwrap_or(who);
            let m = all.get(who).ok_or_else(|| Refusal::new(Errno::ENOENT, ""))?;
            Ok(json_only(c, &named(("name", json!(who)), m)))
        }
        None => {
            Ok(json_only(c, &all.iter().map(|(name, m)| named(("name", json!(name)), m)).collect()))
        }
    }
}

fn module_ls(c: &Read<'_>) -> Answer {
    let m = &c.state.mgr;
    let always: Vec<&String> = m.always_on_modules.values().flatten().collect();
    let disabled: Vec<&&str> = MODULES.iter().filter(|n| !m.modules.contains(**n)).collect();
    Ok(c.format().reply(
        || {
            json!({
                "always_on_modules": always,
                "enabled_modules": m.modules,
                "disabled_modules": disabled.iter().map(|n| json!({"name": n, "can_run": true, "error_string": "", "module_options": {}})).collect::<Vec<_>>(),
            })
        },
        || {
            let always = always.iter().map(|n| format!("{n:<20} on (always on)\n"));
            let on = m.modules.iter().map(|n| format!("{n:<20} on\n"));
            always.chain(on).chain(disabled.iter().map(|n| format!("{n:<20} -\n"))).collect()
        },
    ))
}
