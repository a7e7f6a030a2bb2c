//! What is shown of file systems.

use super::super::frame::{Answer, Read};
use super::super::osd_crush::json_only;
use super::find::named;
use crate::command::{Format, Refusal, Reply};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use types::errno::Errno;
use types::fsmap::{CLIENT_FEATURE_MAX, FsMap, MdsInfo, MdsState, client_feature_name};
use types::{Dump, PoolId};

pub(super) fn ls(c: &Read<'_>) -> Answer {
    let pools = &c.state.osd.map().pool_names;
    let pool = |id: i64| pools.get(&PoolId(id)).cloned().unwrap_or_default();
    let all = &c.state.fs.filesystems;
    Ok(c.format().reply(
        || {
            all.values()
                .map(|fs| {
                    json!({
                        "name": fs.map.fs_name,
                        "metadata_pool": pool(fs.map.metadata_pool),
                        "metadata_pool_id": fs.map.metadata_pool,
                        "data_pool_ids": fs.map.data_pools,
                        "data_pools": fs.map.data_pools.iter().map(|p| pool(*p)).collect::<Vec<_>>(),
                    })
                })
                .collect()
        },
        || {
            if all.is_empty() {
                return "No filesystems enabled\n".into();
            }
            let mut out = String::new();
            for fs in all.values() {
                let data: String = fs.map.data_pools.iter().map(|p| pool(*p) + " ").collect();
                let metadata = pool(fs.map.metadata_pool);
                let _ = writeln!(
                    out,
                    "name: {}, metadata pool: {metadata}, data pools: [{data}]",
                    fs.map.fs_name
                );
            }
            out
        },
    ))
}

pub(super) fn dump(c: &Read<'_>) -> Answer {
    let map = &c.state.fs;
    match c.args.int("epoch").unwrap_or(0) {
        n if n == 0 || n == i64::from(map.epoch.0) => {}
        n => return Err(Refusal::new(Errno::ENOENT, format!("there is no map for epoch {n}"))),
    }
    let reply = c.format().reply(|| map.dump(), || map.text());
    Ok(reply.with_status(format!("dumped fsmap epoch {}", map.epoch)))
}

pub(super) fn get(c: &Read<'_>) -> Answer {
    let name = c.args.req("fs_name");
    let fs = c
        .state
        .fs
        .by_name(name)
        .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("filesystem '{name}' not found")))?;
    Ok(c.format().reply(|| fs.dump(), || fs.text()))
}

pub(super) fn features(c: &Read<'_>) -> Answer {
    let all = 0..=CLIENT_FEATURE_MAX;
    Ok(c.format().reply(
        || all.clone().map(|n| json!({"index": n, "name": client_feature_name(n)})).collect(),
        || all.clone().map(|n| format!("{n} {}\n", client_feature_name(n))).collect(),
    ))
}

pub(super) fn fs_compat(c: &Read<'_>) -> Answer {
    let fs = named(&c.state.fs, c.args.req("fs_name"))?;
    Ok(c.format().reply(|| fs.map.compat.dump(), || fs.map.compat.to_string()))
}

pub(super) fn compat(c: &Read<'_>) -> Answer {
    let compat = &c.state.fs.default_compat;
    Ok(c.format().reply(|| compat.dump(), || compat.to_string()))
}

pub(super) fn stat(c: &Read<'_>) -> Answer {
    let map = &c.state.fs;
    Ok(match c.format() {
        Format::Plain => Reply::data(summary(map) + "\n"),
        _ => json_only(
            c,
            &json!({
                "fsmap": map.dump(),
                "mdsmap_first_committed": 1,
                "mdsmap_last_committed": map.epoch,
            }),
        ),
    })
}

fn state(info: &MdsInfo) -> String {
    format!("{}{}", info.state, if info.is_laggy() { "(laggy or crashed)" } else { "" })
}

/// The line of `mds stat` (Ceph 16.2: `FSMap::print_summary`).
fn summary(map: &FsMap) -> String {
    let mut out = String::new();
    if map.filesystems.len() <= 3 {
        let each: Vec<String> = map
            .filesystems
            .values()
            .map(|fs| {
                let (up, ranks) = (fs.map.up.len(), fs.map.ranks_in.len());
                match fs.map.is_degraded() {
                    true => format!("{}:{up}/{ranks}", fs.map.fs_name),
                    false => format!("{}:{ranks}", fs.map.fs_name),
                }
            })
            .collect();
        out.push_str(&each.join(" "));
    } else {
        let _ = write!(out, "{} fs", map.filesystems.len());
    }
    let mut by_state: BTreeMap<MdsState, usize> =
        [(MdsState::STANDBY, map.standby_daemons.len())].into();
    let mut ranks = Vec::new();
    for fs in map.filesystems.values() {
        for info in fs.map.mds_info.values() {
            *by_state.entry(info.state).or_default() += 1;
            if info.state != MdsState::STANDBY_REPLAY {
                let place = match map.filesystems.len() {
                    1 => info.rank.to_string(),
                    _ => format!("{}:{}", fs.map.fs_name, info.rank),
                };
                ranks.push((place, info.state, format!("{}={}", info.name, state(info))));
            }
        }
    }
    ranks.sort();
    if (1..5).contains(&ranks.len()) {
        let each: Vec<String> =
            ranks.iter().map(|(place, _, text)| format!("{place}={text}")).collect();
        let _ = write!(out, " {{{}}}", each.join(","));
        for (_, state, _) in &ranks {
            by_state.entry(*state).and_modify(|n| *n -= 1);
        }
    }
    for (state, n) in by_state.into_iter().filter(|(_, n)| *n > 0) {
        let _ = write!(out, " {n} {state}");
    }
    let sum = |f: &dyn Fn(&types::fsmap::MdsMap) -> usize| -> usize {
        map.filesystems.values().map(|fs| f(&fs.map)).sum()
    };
    for (name, n) in [("failed", sum(&|m| m.failed.len())), ("damaged", sum(&|m| m.damaged.len()))]
    {
        if n > 0 {
            let _ = write!(out, ", {n} {name}");
        }
    }
    out
}

/// The part of `status` in JSON.
pub(in super::super) fn by_rank_json(map: &FsMap) -> Value {
    let mut v = json!({"epoch": map.epoch});
    for fs in map.filesystems.values() {
        v["id"] = json!(fs.id);
        v["up"] = json!(fs.map.up.len());
        v["in"] = json!(fs.map.ranks_in.len());
        v["max"] = json!(fs.map.max_mds);
    }
    let mut ranks = Vec::new();
    for fs in map.filesystems.values() {
        for info in fs.map.mds_info.values() {
            ranks.push(json!({
                "filesystem_id": fs.id,
                "rank": info.rank,
                "name": info.name,
                "status": state(info),
                "gid": info.gid,
            }));
        }
    }
    v["by_rank"] = json!(ranks);
    v["up:standby"] = json!(map.standby_daemons.len());
    let sum = |f: &dyn Fn(&types::fsmap::MdsMap) -> usize| -> usize {
        map.filesystems.values().map(|fs| f(&fs.map)).sum()
    };
    for (name, n) in [("failed", sum(&|m| m.failed.len())), ("damaged", sum(&|m| m.damaged.len()))]
    {
        if n > 0 {
            v[name] = json!(n);
        }
    }
    v
}

/// `mds:` among the services of `status`; `None` without file systems.
pub(in super::super) fn daemon_summary(map: &FsMap) -> Option<String> {
    if map.filesystems.is_empty() {
        return None;
    }
    let (mut up, mut ranks, mut failed, mut following) = (0, 0, 0, 0);
    for fs in map.filesystems.values() {
        up += fs.map.up.len();
        ranks += fs.map.ranks_in.len();
        failed += fs.map.failed.len();
        following +=
            fs.map.mds_info.values().filter(|i| i.state == MdsState::STANDBY_REPLAY).count();
    }
    let mut out = format!("{up}/{ranks} daemons up");
    if failed > 0 {
        let _ = write!(out, " ({failed} failed)");
    }
    if !map.standby_daemons.is_empty() {
        let _ = write!(out, ", {} standby", map.standby_daemons.len());
    }
    if following > 0 {
        let _ = write!(out, ", {following} hot standby");
    }
    Some(out)
}

/// `volumes:` among the data of `status`; `None` without file systems.
pub(in super::super) fn fs_summary(map: &FsMap) -> Option<String> {
    if map.filesystems.is_empty() {
        return None;
    }
    let (mut healthy, mut recovering, mut failed, mut stopped, mut damaged) = (0, 0, 0, 0, 0);
    for fs in map.filesystems.values() {
        damaged += usize::from(!fs.map.damaged.is_empty());
        match () {
            () if !fs.map.failed.is_empty() => failed += 1,
            () if fs.map.is_degraded() => recovering += 1,
            () if fs.map.max_mds == 0 => stopped += 1,
            () => healthy += 1,
        }
    }
    let mut out = format!("{healthy}/{} healthy", map.filesystems.len());
    for (n, before, name) in [
        (recovering, ", ", "recovering"),
        (failed, ", ", "failed"),
        (stopped, ", ", "stopped"),
        (damaged, "; ", "damaged"),
    ] {
        if n > 0 {
            let _ = write!(out, "{before}{n} {name}");
        }
    }
    Some(out)
}
