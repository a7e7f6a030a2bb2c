//! Metadata servers: what they told about themselves, and taking ranks from them.

use super::super::frame::{Answer, Read, Write};
use super::super::mon::{count, named as with_name};
use super::super::osd_crush::json_only;
use super::find::{daemon, finish, role, truth};
use crate::command::{Refusal, Reply};
use crate::mds_map::Edit;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use types::errno::Errno;
use types::fsmap::{MdsInfo, MdsState};

pub(super) fn metadata(c: &Read<'_>) -> Answer {
    let (map, all) = (&c.state.fs, &c.state.mds_metadata);
    let of = |info: &MdsInfo| -> Value {
        let m = all.get(&info.gid).cloned().unwrap_or_default();
        let mut v = with_name(("name", json!(info.name)), &m);
        v["addr"] = json!(info.addrs.to_string());
        v
    };
    match c.args.str("who") {
        None => {
            let mut daemons: Vec<&MdsInfo> = map.daemons().collect();
            daemons.sort_by_key(|i| i.gid);
            Ok(json_only(c, &daemons.into_iter().map(of).collect()))
        }
        Some(who) => {
            let info = daemon(map, who).ok_or_else(|| {
                let text = format!("MDS named '{who}' does not exist, or is not up");
                Refusal::invalid(text)
            })?;
            Ok(json_only(c, &of(info)))
        }
    }
}

pub(super) fn versions(c: &Read<'_>) -> Answer {
    Ok(json_only(c, &count(c.state.mds_metadata.values(), "ceph_version")))
}

pub(super) fn count_metadata(c: &Read<'_>) -> Answer {
    Ok(json_only(c, &count(c.state.mds_metadata.values(), c.args.req("property"))))
}

pub(super) fn ok_to_stop(c: &Read<'_>) -> Answer {
    let map = &c.state.fs;
    if map.filesystems.values().any(|fs| fs.map.is_degraded()) {
        return Err(Refusal::new(Errno::EBUSY, "one or more filesystems is currently degraded"));
    }
    let ids = c.args.strs("ids");
    let stopping: BTreeSet<u64> =
        ids.iter().filter_map(|id| daemon(map, id)).map(|i| i.gid).collect();
    let mut active = BTreeSet::new();
    let mut standby = BTreeSet::new();
    for gid in &stopping {
        let Some(info) = map.daemon(*gid) else { continue };
        match info.state {
            MdsState::STANDBY => drop(standby.insert(*gid)),
            MdsState::STANDBY_REPLAY => {}
            _ => {
                let fs = map.mds_roles.get(gid).and_then(|id| map.filesystems.get(id));
                let follower = fs.and_then(|fs| fs.map.follower(info.rank)).map(|i| i.gid);
                if follower.is_none_or(|f| stopping.contains(&f)) {
                    active.insert(*gid);
                }
            }
        }
    }
    if map.standby_daemons.len() - standby.len() < active.len() {
        let list = |s: &BTreeSet<u64>| s.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let text = format!(
            "insufficent standby MDS daemons to stop active gids {} and/or standby gids {}",
            list(&active),
            list(&standby)
        );
        return Err(Refusal::new(Errno::EBUSY, text));
    }
    Ok(Reply::status(format!("should be safe to stop [{}]", ids.join(","))))
}

pub(super) fn fail(c: &mut Write<'_>) -> Answer {
    let who = c.args.req("role_or_gid").to_owned();
    let map = c.pending.state().fs.clone();
    let Some(info) = daemon(&map, &who) else {
        return Ok(Reply::status(format!(
            "MDS named '{who}' does not exist, is not up or you lack the permission to see."
        )));
    };
    if info.is_frozen() {
        let text = format!("mds {who} is frozen: `ceph mds freeze {who} false` comes first");
        return Err(Refusal::new(Errno::EPERM, text));
    }
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    e.fail(info.gid);
    e.settle();
    finish(e);
    Ok(Reply::status(format!("failed mds gid {}", info.gid)))
}

pub(super) fn remove(c: &mut Write<'_>) -> Answer {
    let gid = c.args.int("gid").and_then(|n| u64::try_from(n).ok()).unwrap_or_default();
    let map = c.pending.state().fs.clone();
    let Some(info) = map.daemon(gid) else {
        return Ok(Reply::status(format!("mds gid {gid} does not exist")));
    };
    if info.state.0 > 0 {
        let text = format!("cannot remove active mds.{} rank {}", info.name, info.rank);
        return Err(Refusal::new(Errno::EBUSY, text));
    }
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    e.fail(gid);
    finish(e);
    Ok(Reply::status(format!("removed mds gid {gid}")))
}

pub(super) fn remove_failed(c: &mut Write<'_>) -> Answer {
    if !c.args.flag("yes_i_really_mean_it") {
        return Err(Refusal::new(
            Errno::EPERM,
            "WARNING: this can make your filesystem inaccessible! Add --yes-i-really-mean-it if you \
             are sure you wish to continue.",
        ));
    }
    let text = c.args.req("role").to_owned();
    let map = c.pending.state().fs.clone();
    let (id, rank) =
        role(&map, &text).map_err(|_| Refusal::invalid(format!("invalid role '{text}'")))?;
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    if let Some(fs) = e.fs(id) {
        fs.map.failed.remove(&rank);
    }
    finish(e);
    Ok(Reply::status(format!("removed failed mds.{id}:{rank}")))
}

pub(super) fn repaired(c: &mut Write<'_>) -> Answer {
    let map = c.pending.state().fs.clone();
    let (id, rank) = role(&map, c.args.req("role"))?;
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    let damaged = e.fs(id).is_some_and(|fs| {
        let was = fs.map.damaged.remove(&rank);
        if was {
            fs.map.failed.insert(rank);
        }
        was
    });
    e.settle();
    finish(e);
    Ok(Reply::status(match damaged {
        true => format!("repaired: restoring rank {id}:{rank}"),
        false => "nothing to do: rank is not damaged".to_owned(),
    }))
}

pub(super) fn freeze(c: &mut Write<'_>) -> Answer {
    let map = c.pending.state().fs.clone();
    let who = c.args.req("role_or_gid");
    let Some(info) = daemon(&map, who) else {
        return Err(Refusal::invalid(format!("MDS named '{who}' does not exist, or is not up")));
    };
    let on = truth(c.args.req("val"))?;
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    if let Some(d) = e.daemon(info.gid) {
        d.flags = if on { d.flags | MdsInfo::FROZEN } else { d.flags & !MdsInfo::FROZEN };
    }
    finish(e);
    let text = if on { "freezing" } else { "unfreezing" };
    Ok(Reply::status(format!("{text} mds.{}", info.gid)))
}

pub(super) fn set_state(c: &mut Write<'_>) -> Answer {
    let gid = c.args.int("gid").and_then(|n| u64::try_from(n).ok()).unwrap_or_default();
    let state = MdsState(c.args.int("state").unwrap_or_default() as i32);
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    let Some(d) = e.daemon(gid) else {
        return Err(Refusal::invalid(format!("mds gid {gid} does not exist")));
    };
    d.state = state;
    finish(e);
    Ok(Reply::status(format!("set mds gid {gid} to state {} {state}", state.0)))
}
