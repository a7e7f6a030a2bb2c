//! Settings of file systems.

use super::super::frame::{Answer, Write};
use super::find::{finish, named, truth};
use crate::command::{Refusal, Reply};
use crate::mds_map::Edit;
use types::errno::Errno;
use types::fsmap::{
    CLIENT_FEATURE_MAX, LOG_FEATURE, MdsMap, MdsState, OWN_LOG_RANKS, OWNERS_FEATURE, Owners,
    client_feature, client_feature_name, empty_logs, flag, has_own_log,
};

/// The most ranks (Ceph: `MAX_MDS`).
const RANKS_MAX: i64 = 256;
/// The least size to which files may be limited, in bytes (Ceph: `CEPH_MIN_STRIPE_UNIT`).
const FILE_BYTES_MIN: i64 = 65_536;
/// The shortest time-out of sessions, in seconds.
const SESSION_SECONDS_MIN: i64 = 30;

/// A new value, and what the caller is told.
type Changed = (Box<dyn FnOnce(&mut MdsMap)>, String);

fn changed(
    f: impl FnOnce(&mut MdsMap) + 'static,
    text: impl Into<String>,
) -> Result<Changed, Refusal> {
    Ok((Box::new(f), text.into()))
}

pub(super) fn set(c: &mut Write<'_>) -> Answer {
    let fs = c.pending.state().fs.clone();
    let fs = named(&fs, c.args.req("fs_name"))?;
    let (var, val) = (c.args.req("var").to_owned(), c.args.req("val").to_owned());
    if var == "max_mds" && has_own_log(&fs.map.compat) {
        own_ranks(&fs.map, &val)?;
    }
    let (change, text) = match var.as_str() {
        "max_mds"
        | "max_file_size"
        | "standby_count_wanted"
        | "session_timeout"
        | "session_autoclose" => number(&var, &val)?,
        "balancer" if val.is_empty() => {
            changed(|m| m.balancer.clear(), "unsetting the metadata load balancer")?
        }
        "balancer" => {
            let text = format!("setting the metadata load balancer to {val}");
            changed(|m| m.balancer = val, text)?
        }
        "inline_data" => {
            let on = truth(&val)?;
            if on && !c.args.flag("yes_i_really_really_mean_it") {
                return Err(Refusal::new(
                    Errno::EPERM,
                    "Inline data support is deprecated and will be removed in a future release. Add \
                     --yes-i-really-really-mean-it if you are certain you want this enabled.",
                ));
            }
            let text = if on { "inline data enabled" } else { "inline data disabled" };
            changed(move |m| m.inline_data_enabled = on, text)?
        }
        "allow_new_snaps" => {
            let on = truth(&val)?;
            let text = if on { "enabled new snapshots" } else { "disabled new snapshots" };
            changed(move |m| m.set(flag::ALLOW_SNAPS, on), text)?
        }
        "allow_multimds" => changed(
            |_| {},
            "Multiple MDS is always enabled. Use the max_mds parameter to control the number of \
             active MDSs allowed. This command is DEPRECATED and will be REMOVED from future releases.",
        )?,
        "allow_dirfrags" => changed(
            |_| {},
            "Directory fragmentation is now permanently enabled. This command is DEPRECATED and will \
             be REMOVED from future releases.",
        )?,
        "allow_multimds_snaps" => {
            let on = truth(&val)?;
            if c.args.str("confirm") != Some("--yes-i-am-really-a-mds") {
                return Err(Refusal::new(
                    Errno::EPERM,
                    "Warning! This command is for MDS only. Do not run it manually",
                ));
            }
            let text = match on {
                true => "enabled multimds with snapshot",
                false => "disabled multimds with snapshot",
            };
            changed(move |m| m.set(flag::ALLOW_MULTIMDS_SNAPS, on), text)?
        }
        "down" => down(&fs.map, truth(&val)?)?,
        "joinable" | "cluster_down" => {
            let joinable = truth(&val)? != (var == "cluster_down");
            let mut text = match joinable {
                true => {
                    format!("{} marked joinable; MDS may join as newly active.", fs.map.fs_name)
                }
                false => format!(
                    "{} marked not joinable; MDS cannot join as newly active.",
                    fs.map.fs_name
                ),
            };
            if var == "cluster_down" {
                text.push_str(
                    " WARNING: cluster_down flag is deprecated and will be removed in a future \
                     version. Please use \"joinable\".",
                );
            }
            changed(move |m| m.set(flag::NOT_JOINABLE, !joinable), text)?
        }
        "allow_standby_replay" => {
            let on = truth(&val)?;
            changed(move |m| m.set(flag::ALLOW_STANDBY_REPLAY, on), "")?
        }
        "min_compat_client" => {
            return Err(Refusal::unsupported(
                "min_compat_client is not supported: use `ceph fs required_client_features`",
            ));
        }
        _ => return Err(Refusal::invalid(format!("unknown variable {var}"))),
    };
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    if let Some(fs) = e.fs(fs.id) {
        change(&mut fs.map);
    }
    if var == "allow_standby_replay" {
        let map = &e.map.filesystems[&fs.id].map;
        let followers: Vec<u64> = match map.has(flag::ALLOW_STANDBY_REPLAY) {
            true => Vec::new(),
            false => {
                let follows = |(gid, i): (&u64, &types::fsmap::MdsInfo)| {
                    (i.state == MdsState::STANDBY_REPLAY).then_some(*gid)
                };
                map.mds_info.iter().filter_map(follows).collect()
            }
        };
        for gid in followers {
            e.fail(gid);
        }
    }
    e.settle();
    finish(e);
    Ok(Reply::status(text))
}

/// Fails for a number of ranks that servers with a log of their own cannot have.
fn own_ranks(map: &MdsMap, val: &str) -> Result<(), Refusal> {
    let Ok(ranks) = val.parse::<usize>() else { return Ok(()) };
    if ranks > OWN_LOG_RANKS as usize {
        return Err(Refusal::invalid(format!(
            "may not have more than {OWN_LOG_RANKS} ranks of `siphon mds`"
        )));
    }
    let owners = Owners::of(map);
    let stops = map.mds_info.values().filter(|i| i.state == MdsState::STOPPING).map(|i| i.rank);
    let stops = stops.filter(|r| !owners.is_leaving(*r));
    // Ranks that have stopped because the file system is down have their directories.
    let asleep = map.asleep().into_iter().chain(stops);
    if let Some(rank) = asleep.into_iter().find(|r| *r as usize >= ranks) {
        return Err(Refusal::new(
            Errno::EBUSY,
            format!(
                "rank {rank} of {name} has stopped and has directories: run `ceph fs set {name} \
                 down false`, and lower max_mds when all ranks are active",
                name = map.fs_name
            ),
        ));
    }
    if !owners.suffice(ranks as i32) {
        return Err(Refusal::unsupported(format!(
            "{ranks} ranks of {name} need ranges of inode numbers that were never used, and there \
             are {left} more of {all}: each rank that was given up has left one to rank 0. Set \
             max_mds to a number of ranks that are there, or make another file system for what is \
             to have more ranks",
            name = map.fs_name,
            left = OWN_LOG_RANKS - i32::from(owners.count()),
            all = OWN_LOG_RANKS - 1,
        )));
    }
    Ok(())
}

fn number(var: &str, val: &str) -> Result<Changed, Refusal> {
    let Ok(n) = val.parse::<i64>() else {
        return Err(Refusal::invalid(match var {
            "max_mds" => format!("Expected option value to be integer, got '{val}'"),
            _ => format!("{var} requires an integer value"),
        }));
    };
    let out_of_range = |text: String| Err(Refusal::new(Errno::ERANGE, text));
    match var {
        "max_mds" if n <= 0 => Err(Refusal::invalid("You must specify at least one MDS")),
        "max_mds" if n > RANKS_MAX => {
            Err(Refusal::invalid(format!("may not have more than {RANKS_MAX} MDS ranks")))
        }
        "max_mds" => changed(
            move |m| {
                m.set(flag::NOT_JOINABLE, false);
                m.max_mds = n as i32;
            },
            "",
        ),
        "max_file_size" if n < FILE_BYTES_MIN => {
            out_of_range(format!("{var} must at least {FILE_BYTES_MIN}"))
        }
        "max_file_size" => changed(move |m| m.max_file_size = n as u64, ""),
        "standby_count_wanted" if n < 0 => out_of_range(format!("{var} must be non-negative")),
        "standby_count_wanted" => {
            changed(move |m| m.standby_count_wanted = n.min(i32::MAX.into()) as i32, "")
        }
        _ if n < SESSION_SECONDS_MIN => {
            out_of_range(format!("{var} must be at least {SESSION_SECONDS_MIN}s"))
        }
        _ => {
            let seconds = u32::try_from(n).unwrap_or(u32::MAX);
            let timeout = var == "session_timeout";
            changed(
                move |m| match timeout {
                    true => m.session_timeout = seconds,
                    false => m.session_autoclose = seconds,
                },
                "",
            )
        }
    }
}

fn down(map: &MdsMap, down: bool) -> Result<Changed, Refusal> {
    let name = &map.fs_name;
    if down {
        return changed(
            |m| {
                if m.max_mds > 0 {
                    m.old_max_mds = m.max_mds;
                    m.max_mds = 0;
                }
            },
            format!("{name} marked down. "),
        );
    }
    let ranks = map.old_max_mds.max(1);
    changed(move |m| m.max_mds = ranks, format!("{name} marked up, max_mds = {ranks}"))
}

pub(super) fn flag_set(c: &mut Write<'_>) -> Answer {
    let val = c.args.req("val");
    let on = truth(val)
        .map_err(|e| Refusal::invalid(format!("{}Invalid boolean value '{val}'", e.message)))?;
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    e.map.enable_multiple = on;
    e.map.ever_enabled_multiple |= on;
    finish(e);
    Ok(Reply::empty())
}

pub(super) fn compat(c: &mut Write<'_>) -> Answer {
    let fs = c.pending.state().fs.clone();
    let fs = named(&fs, c.args.req("fs_name"))?;
    let feature = match c.args.int("feature").and_then(|n| u64::try_from(n).ok()) {
        Some(n @ 1..64) => n,
        _ => return Err(Refusal::invalid("Invalid feature")),
    };
    if feature == OWNERS_FEATURE {
        return Err(Refusal::invalid(format!(
            "the monitors note under feature {OWNERS_FEATURE} which inode numbers each rank of \
             `siphon mds` gives out, and it is not changed by hand: name another feature"
        )));
    }
    if !fs.map.up.is_empty() {
        return Err(Refusal::new(
            Errno::EBUSY,
            "file system must be failed or down; use `ceph fs fail` to bring down",
        ));
    }
    let mut compat = fs.map.compat.clone();
    let subop = c.args.req("subop");
    if (subop, feature) == ("rm_incompat", LOG_FEATURE.0) {
        if !c.args.flag("yes_i_really_mean_it") {
            logs_are_empty(&fs.map)?;
            one_rank_is_left(&fs.map)?;
        }
        compat.compat.names.remove(&LOG_FEATURE.0);
    }
    let kind = if subop.ends_with("incompat") { "incompat" } else { "compat" };
    let set = if kind == "incompat" { &mut compat.incompat } else { &mut compat.compat };
    let text = if subop.starts_with("rm_") {
        match set.names.remove(&feature) {
            Some(_) => format!("removed {kind} feature {feature}"),
            None => format!("already removed {kind} feature {feature}"),
        }
    } else {
        let Some(name) = c.args.str("feature_str").filter(|n| !n.is_empty()) else {
            return Err(Refusal::invalid("adding a feature requires a feature string"));
        };
        match set.names.get(&feature) {
            Some(old) if old == name => "feature already exists".to_owned(),
            Some(old) => {
                let text = format!("feature with differing name `{old}' exists");
                return Err(Refusal::new(Errno::EEXIST, text));
            }
            None => {
                set.names.insert(feature, name.to_owned());
                format!("added {kind} feature {feature}={name}")
            }
        }
    };
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    if let Some(fs) = e.fs(fs.id) {
        fs.map.compat = compat;
    }
    finish(e);
    Ok(Reply::status(text))
}

/// Fails if there are ranks that were not given up. A file of which the first name is gone while
/// others stay has its place in a stray directory of its rank, and a stock server reads those of
/// its own rank alone.
fn one_rank_is_left(map: &MdsMap) -> Result<(), Refusal> {
    let owners = Owners::of(map);
    let more: Vec<String> =
        owners.ranks().filter(|(rank, _)| *rank > 0).map(|(rank, _)| rank.to_string()).collect();
    if !has_own_log(&map.compat) || more.is_empty() {
        return Ok(());
    }
    let (name, ranks) = (&map.fs_name, more.join(", "));
    Err(Refusal::new(
        Errno::EPERM,
        format!(
            "rank {ranks} of {name} was not given up: a stock metadata server of rank 0 may not find \
             all hard links of files there. Start `siphon mds`, run `ceph fs set {name} down false`, \
             `ceph fs set {name} joinable true` and `ceph fs set {name} max_mds 1`, wait until rank 0 \
             is the only one, and try again. --yes-i-really-mean-it goes on without that"
        ),
    ))
}

/// Fails if a rank may have changes in a log that stock servers do not read.
fn logs_are_empty(map: &MdsMap) -> Result<(), Refusal> {
    let known = empty_logs(&map.compat);
    let others: Vec<String> = map.ranks_in.difference(&known).map(|r| r.to_string()).collect();
    if !has_own_log(&map.compat) || others.is_empty() {
        return Ok(());
    }
    let (name, ranks) = (&map.fs_name, others.join(", "));
    Err(Refusal::new(
        Errno::EPERM,
        format!(
            "the log of rank {ranks} of {name} may have changes that a stock metadata server does not \
             read: they would be lost, or come back over its own. Start `siphon mds`, run `ceph fs \
             set {name} joinable true`, stop each server with SIGTERM or run `ceph tell mds.NAME \
             flush journal` and then `ceph fs fail {name}`, and try again. \
             --yes-i-really-mean-it gives these changes up"
        ),
    ))
}

pub(super) fn required_client_features(c: &mut Write<'_>) -> Answer {
    let fs = c.pending.state().fs.clone();
    let fs = named(&fs, c.args.req("fs_name"))?;
    let val = c.args.req("val");
    let number = match (client_feature(val), val.parse::<i64>()) {
        (Some(n), _) => n,
        (None, Ok(n)) if (0..=i64::from(CLIENT_FEATURE_MAX)).contains(&n) => n as u32,
        (None, Ok(n)) => return Err(Refusal::invalid(format!("Invalid feature id: {n}"))),
        (None, Err(_)) => return Err(Refusal::invalid(format!("Invalid feature name: {val}"))),
    };
    let name = client_feature_name(number);
    let add = c.args.req("subop") == "add";
    let mut e = Edit::new(c.pending, &c.env.conf.borrow());
    let set = e.fs(fs.id).map(|fs| &mut fs.map.required_client_features.0);
    let did = set.is_some_and(|set| if add { set.insert(number) } else { set.remove(&number) });
    finish(e);
    Ok(Reply::status(match (add, did) {
        (true, true) => format!("added feature '{name}' to required_client_features"),
        (true, false) => format!("feature '{name}' is already set"),
        (false, true) => format!("removed feature '{name}' from required_client_features"),
        (false, false) => format!("feature '{name}' is already unset"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::tests::Bench;
    use serde_json::json;
    use types::fsmap::set_empty_log;

    #[test]
    fn ranks_that_sleep_are_kept_and_those_given_up_come_again() {
        let refused = |map: &MdsMap, ranks: &str| own_ranks(map, ranks).err().map(|e| e.errno);
        let mut map = MdsMap { ranks_in: [0, 1].into(), stopped: [2].into(), ..MdsMap::default() };
        map.max_mds = 2;
        assert_eq!([1, 2, 3].map(|n| refused(&map, &n.to_string())), [None, None, None]);
        // Down: both have stopped.
        map = MdsMap { max_mds: 0, old_max_mds: 2, stopped: [0, 1, 2].into(), ..map };
        map.ranks_in.clear();
        let all = [Some(Errno::EBUSY), None, None];
        assert_eq!([1, 2, 3].map(|n| refused(&map, &n.to_string())), all);
        // Up again, with one server.
        map = MdsMap { max_mds: 2, stopped: [1, 2].into(), ranks_in: [0].into(), ..map };
        assert_eq!([1, 2, 3].map(|n| refused(&map, &n.to_string())), all);
    }

    #[test]
    fn more_ranks_than_there_are_numbers_for_are_refused() {
        let mut map = MdsMap { ranks_in: [0, 1].into(), max_mds: 2, ..MdsMap::default() };
        map.fs_name = "cephfs".into();
        let mut owners = Owners::of(&map);
        for _ in 2..63 {
            owners.begin_to_leave(1);
            owners.stopped(1);
            owners.admit(1).unwrap();
        }
        owners.note(&mut map);
        assert_eq!([2, 3].map(|n| own_ranks(&map, &n.to_string()).is_ok()), [true, true]);
        let refused = own_ranks(&map, "4").unwrap_err();
        assert_eq!(refused.errno, Errno::EOPNOTSUPP);
        let text = "4 ranks of cephfs need ranges of inode numbers that were never used, and there \
                    are 1 more of 63";
        assert!(refused.message.starts_with(text), "{}", refused.message);
    }

    #[test]
    fn what_the_monitors_note_of_owners_is_not_changed_by_hand() {
        let mut b = Bench::new();
        let conf = conf::Config::new();
        let mut e = Edit::new(&mut b.pending, &conf);
        e.create("cephfs", 1, 2, None);
        finish(e);
        for subop in ["add_compat", "rm_compat", "rm_incompat"] {
            let command = json!({
                "prefix": "fs compat", "fs_name": "cephfs", "subop": subop, "feature": 61,
                "feature_str": "siphon owners: 0=0 next 1",
            });
            assert_eq!(b.errno(command), Errno::EINVAL);
        }
    }

    #[test]
    fn the_feature_of_a_log_goes_with_the_last_change_in_it() {
        let mut b = Bench::new();
        let change = |b: &mut Bench, f: &dyn Fn(&mut MdsMap)| {
            let conf = conf::Config::new();
            let mut e = Edit::new(&mut b.pending, &conf);
            let id = e.map.by_name("cephfs").map(|fs| fs.id);
            let id = id.unwrap_or_else(|| e.create("cephfs", 1, 2, None));
            e.fs(id).map(|fs| f(&mut fs.map)).unwrap();
            finish(e);
        };
        let with_log = |m: &mut MdsMap| {
            m.compat.incompat.names.insert(LOG_FEATURE.0, LOG_FEATURE.1.to_owned());
            m.ranks_in = [0, 1].into();
            m.failed = [0].into();
            m.damaged = [1].into();
        };
        let asked = |sure: bool| {
            json!({
                "prefix": "fs compat", "fs_name": "cephfs", "subop": "rm_incompat", "feature": 62,
                "yes_i_really_mean_it": sure,
            })
        };
        let compat = |b: &mut Bench| {
            let shown = b.json(json!({"prefix": "fs compat show", "fs_name": "cephfs"}));
            ["compat", "incompat"].map(|kind| shown[kind].get("feature_62").is_some())
        };
        change(&mut b, &with_log);
        assert_eq!(b.errno(asked(false)), Errno::EPERM, "nothing is known of either log");
        change(&mut b, &|m| set_empty_log(&mut m.compat, 0, true));
        assert_eq!(b.errno(asked(false)), Errno::EPERM, "nothing is known of one log");
        assert_eq!(compat(&mut b), [true, true]);
        change(&mut b, &|m| set_empty_log(&mut m.compat, 1, true));
        let refused = b.run(asked(false)).unwrap_err();
        assert_eq!(refused.errno, Errno::EPERM, "a stock server reads the strays of its own rank");
        assert!(refused.message.contains("rank 1 of cephfs was not given up"), "{refused:?}");
        change(&mut b, &|m| {
            let mut owners = Owners::of(m);
            owners.begin_to_leave(1);
            owners.stopped(1);
            owners.note(m);
            m.ranks_in = [0].into();
            m.damaged.clear();
        });
        b.run(asked(false)).unwrap();
        assert_eq!(compat(&mut b), [false, false]);
        b.run(asked(false)).unwrap();

        change(&mut b, &with_log);
        b.run(asked(true)).unwrap();
        assert_eq!(compat(&mut b), [false, false], "an operator gives the changes up");

        // Ranks that were stopped have written all to its place.
        change(&mut b, &with_log);
        change(&mut b, &|m| {
            m.stopped = std::mem::take(&mut m.ranks_in);
            m.failed.clear();
            m.damaged.clear();
        });
        b.run(asked(false)).unwrap();

        change(&mut b, &with_log);
        change(&mut b, &|m| {
            set_empty_log(&mut m.compat, 0, true);
            set_empty_log(&mut m.compat, 1, true);
            m.up.insert(0, 10);
        });
        assert_eq!(b.errno(asked(true)), Errno::EBUSY, "a server has a rank");
    }
}
