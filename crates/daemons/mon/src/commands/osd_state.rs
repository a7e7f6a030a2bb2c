//! `osd`: in, out, up, down, flags, weights.

use super::frame::{Answer, Entry, Write, flagged, osd_arg, osd_id, write};
use crate::command::{Refusal, Reply, flags};
use crate::osd_state as rules;
use crate::osd_state::OsdMapExt;
use types::OsdId;
use types::Release;
use types::errno::Errno;
use types::rados::{osd_state as state, osdmap_flag as flag};

pub(super) static COMMANDS: &[Entry] = &[
    write(
        "osd in name=ids,type=CephString,n=N",
        "Mark OSDs in: data is placed on them.",
        "osd",
        "rw",
        set_in,
    ),
    write(
        "osd out name=ids,type=CephString,n=N",
        "Mark OSDs out: no data is placed on them.",
        "osd",
        "rw",
        out,
    ),
    write(
        "osd down name=ids,type=CephString,n=N name=definitely_dead,type=CephBool,req=false",
        "Mark OSDs down; those that live boot again.",
        "osd",
        "rw",
        down,
    ),
    write("osd stop name=ids,type=CephString,n=N", "Stop OSDs.", "osd", "rw", stop),
    write(
        "osd reweight name=id,type=CephOsdName name=weight,type=CephFloat,range=0.0|1.0",
        "Set which part of an OSD's share of the data it gets.",
        "osd",
        "rw",
        reweight,
    ),
    write(
        "osd reweightn name=weights,type=CephString",
        "Set the reweight of several OSDs: {\"id\": weight in 1/65536, ...}.",
        "osd",
        "rw",
        reweightn,
    ),
    write(
        "osd primary-affinity name=id,type=CephOsdName name=weight,type=CephFloat,range=0.0|1.0",
        "Set how often an OSD leads the groups that it is in.",
        "osd",
        "rw",
        primary_affinity,
    ),
    write(
        "osd set name=key,type=CephChoices,strings=full|pause|noup|nodown|noout|noin|nobackfill|norebalance|\
norecover|noscrub|nodeep-scrub|notieragent|nosnaptrim|pglog_hardlimit \
         name=yes_i_really_mean_it,type=CephBool,req=false",
        "Set a flag of the cluster.",
        "osd",
        "rw",
        set_flag,
    ),
    write(
        "osd unset name=key,type=CephChoices,strings=full|pause|noup|nodown|noout|noin|nobackfill|norebalance|\
norecover|noscrub|nodeep-scrub|notieragent|nosnaptrim",
        "Clear a flag of the cluster.",
        "osd",
        "rw",
        unset_flag,
    ),
    write("osd pause", "Stop client reads and writes.", "osd", "rw", |c| {
        change_flag(c, "pause", true)
    }),
    write("osd unpause", "Go on with client reads and writes.", "osd", "rw", |c| {
        change_flag(c, "pause", false)
    }),
    write(
        "osd set-group name=flags,type=CephString name=who,type=CephString,n=N",
        "Set noup, nodown, noin or noout for OSDs.",
        "osd",
        "rw",
        set_group,
    ),
    write(
        "osd unset-group name=flags,type=CephString name=who,type=CephString,n=N",
        "Clear noup, nodown, noin or noout of OSDs.",
        "osd",
        "rw",
        set_group,
    ),
    old_group("osd add-noup name=ids,type=CephString,n=N"),
    old_group("osd add-nodown name=ids,type=CephString,n=N"),
    old_group("osd add-noin name=ids,type=CephString,n=N"),
    old_group("osd add-noout name=ids,type=CephString,n=N"),
    old_group("osd rm-noup name=ids,type=CephString,n=N"),
    old_group("osd rm-nodown name=ids,type=CephString,n=N"),
    old_group("osd rm-noin name=ids,type=CephString,n=N"),
    old_group("osd rm-noout name=ids,type=CephString,n=N"),
    write(
        "osd set-full-ratio name=ratio,type=CephFloat,range=0.0|1.0",
        "Set the used part of an OSD from which writes stop.",
        "osd",
        "rw",
        ratio,
    ),
    write(
        "osd set-backfillfull-ratio name=ratio,type=CephFloat,range=0.0|1.0",
        "Set the used part of an OSD from which it takes no backfill.",
        "osd",
        "rw",
        ratio,
    ),
    write(
        "osd set-nearfull-ratio name=ratio,type=CephFloat,range=0.0|1.0",
        "Set the used part of an OSD from which there is a warning.",
        "osd",
        "rw",
        ratio,
    ),
    write(
        "osd set-require-min-compat-client name=version,type=CephString \
         name=yes_i_really_mean_it,type=CephBool,req=false",
        "Set the oldest release whose clients may connect.",
        "osd",
        "rw",
        min_compat_client,
    ),
    write(
        "osd require-osd-release name=release,type=CephChoices,\
strings=luminous|mimic|nautilus|octopus|pacific|quincy|reef|squid \
         name=yes_i_really_mean_it,type=CephBool,req=false",
        "Set the oldest release that OSDs may have.",
        "osd",
        "rw",
        require_release,
    ),
];

const fn old_group(signature: &'static str) -> Entry {
    flagged(
        write(signature, "Set or clear a flag of OSDs; see set-group.", "osd", "rw", set_group),
        flags::DEPRECATED,
    )
}

/// The OSDs that a command names, and what to say about the names that do not exist.
fn named(
    c: &Write<'_>,
    which: fn(&types::OsdMap, OsdId) -> bool,
) -> Result<(Vec<OsdId>, String), Refusal> {
    let words = c.args.strs("ids");
    let map = c.pending.osd();
    if words.first().is_some_and(|w| matches!(w.as_str(), "all" | "any" | "*")) {
        return Ok((map.osds().filter(|o| which(map, *o)).collect(), String::new()));
    }
    let mut notes = String::new();
    let mut osds = Vec::new();
    for w in &words {
        let osd = osd_id(w)?;
        match map.exists(osd) {
            true => osds.push(osd),
            false => notes.push_str(&format!("osd.{osd} does not exist. ")),
        }
    }
    Ok((osds, notes))
}

fn set_in(c: &mut Write<'_>) -> Answer {
    let (osds, mut text) = named(c, |m, o| !m.is_in(o))?;
    for osd in osds {
        if c.pending.osd().is_in(osd) {
            text.push_str(&format!("osd.{osd} is already in. "));
        } else {
            rules::mark_in(c.pending, osd);
            text.push_str(&format!("marked in osd.{osd}. "));
        }
    }
    Ok(Reply::status(text))
}

fn out(c: &mut Write<'_>) -> Answer {
    let (osds, mut text) = named(c, |m, o| m.is_in(o))?;
    for osd in osds {
        if c.pending.osd().is_in(osd) {
            rules::set_weight(c.pending, osd, 0);
            text.push_str(&format!("marked out osd.{osd}. "));
        } else {
            text.push_str(&format!("osd.{osd} is already out. "));
        }
    }
    Ok(Reply::status(text))
}

fn down(c: &mut Write<'_>) -> Answer {
    let dead = c.args.flag("definitely_dead");
    let (osds, mut text) = named(c, |m, o| m.is_up(o))?;
    for osd in osds {
        if rules::mark_down(c.pending, osd) {
            text.push_str(&format!("marked down osd.{osd}. "));
        } else {
            text.push_str(&format!("osd.{osd} is already down. "));
        }
        if dead {
            rules::mark_dead(c.pending, osd);
        }
    }
    Ok(Reply::status(text))
}

fn stop(c: &mut Write<'_>) -> Answer {
    let (osds, mut text) = named(c, |m, o| m.is_up(o))?;
    for osd in osds {
        let map = c.pending.osd();
        if map.state_bits(osd) & state::STOP != 0 {
            text.push_str(&format!("osd.{osd} is already stopped. "));
            continue;
        }
        text.push_str(&match map.is_up(osd) {
            true => format!("stop osd.{osd}. "),
            false => format!("stop down osd.{osd}. "),
        });
        rules::set_bits(c.pending, osd, state::STOP, state::STOP);
    }
    Ok(Reply::status(text))
}

/// A fraction in 1/65536.
fn fixed(w: f64) -> u32 {
    (w.clamp(0.0, 1.0) * 65536.0) as u32
}

fn missing(osd: OsdId) -> Refusal {
    Refusal::new(Errno::ENOENT, format!("osd.{osd} does not exist"))
}

fn reweight(c: &mut Write<'_>) -> Answer {
    let osd = osd_arg(c.args, "id")?;
    let w = c.args.float("weight").unwrap_or(1.0);
    if !c.pending.osd().exists(osd) {
        return Err(missing(osd));
    }
    rules::set_weight(c.pending, osd, fixed(w));
    let shown = super::frame::short_float(w);
    Ok(Reply::status(format!("reweighted osd.{osd} to {shown} ({:x})", fixed(w))))
}

fn reweightn(c: &mut Write<'_>) -> Answer {
    let text = c.args.req("weights");
    let bad = || Refusal::invalid(format!("unable to parse 'weights' value '{text}'"));
    let weights: std::collections::BTreeMap<String, u32> =
        serde_json::from_str(text).map_err(|_| bad())?;
    let mut all = Vec::new();
    for (name, w) in weights {
        let osd = osd_id(&name)?;
        if !c.pending.osd().exists(osd) {
            return Err(missing(osd));
        }
        all.push((osd, w.min(0x10000)));
    }
    for (osd, w) in all {
        rules::set_weight(c.pending, osd, w);
    }
    Ok(Reply::empty())
}

fn primary_affinity(c: &mut Write<'_>) -> Answer {
    let osd = osd_arg(c.args, "id")?;
    let w = c.args.float("weight").unwrap_or(1.0);
    if !c.pending.osd().exists(osd) {
        return Err(missing(osd));
    }
    rules::set_primary_affinity(c.pending, osd, fixed(w));
    let shown = super::frame::short_float(w);
    Ok(Reply::status(format!("set osd.{osd} primary-affinity to {shown} ({})", fixed(w))))
}

fn bits(key: &str) -> Option<u32> {
    match key {
        "pause" => Some(flag::PAUSERD | flag::PAUSEWR),
        "full" => Some(flag::FULL),
        "noup" => Some(flag::NOUP),
        "nodown" => Some(flag::NODOWN),
        "noout" => Some(flag::NOOUT),
        "noin" => Some(flag::NOIN),
        "nobackfill" => Some(flag::NOBACKFILL),
        "norebalance" => Some(flag::NOREBALANCE),
        "norecover" => Some(flag::NORECOVER),
        "noscrub" => Some(flag::NOSCRUB),
        "nodeep-scrub" => Some(flag::NODEEP_SCRUB),
        "notieragent" => Some(flag::NOTIERAGENT),
        "nosnaptrim" => Some(flag::NOSNAPTRIM),
        "pglog_hardlimit" => Some(flag::PGLOG_HARDLIMIT),
        _ => None,
    }
}

fn change_flag(c: &mut Write<'_>, key: &str, on: bool) -> Answer {
    let Some(bits) = bits(key) else {
        return Err(Refusal::invalid(format!("unrecognized flag '{key}'")));
    };
    let now = c.pending.osd().flags;
    let wanted = if on { now | bits } else { now & !bits };
    if wanted != now {
        c.pending.osd_mut().flags = wanted;
    }
    // Pausing is two flags with one name.
    let shown = if key == "pause" { "pauserd,pausewr" } else { key };
    Ok(Reply::status(format!("{shown} is {}", if on { "set" } else { "unset" })))
}

fn set_flag(c: &mut Write<'_>) -> Answer {
    let key = c.args.req("key").to_owned();
    if key == "full" {
        // OSDs report that they are full; no other daemon says so.
        return Err(Refusal::invalid("unrecognized flag 'full'"));
    }
    change_flag(c, &key, true)
}

fn unset_flag(c: &mut Write<'_>) -> Answer {
    let key = c.args.req("key").to_owned();
    change_flag(c, &key, false)
}

fn set_group(c: &mut Write<'_>) -> Answer {
    let prefix = c.args.prefix().to_owned();
    let (on, names, who) = match prefix.strip_prefix("osd ").and_then(|p| p.split_once('-')) {
        Some(("set", _)) => (true, c.args.req("flags").to_owned(), c.args.strs("who")),
        Some(("unset", _)) => (false, c.args.req("flags").to_owned(), c.args.strs("who")),
        Some(("add", name)) => (true, name.to_owned(), c.args.strs("ids")),
        Some((_, name)) => (false, name.to_owned(), c.args.strs("ids")),
        None => return Err(Refusal::invalid("unknown command")),
    };
    let mut mask = 0;
    for name in names.split(',').filter(|n| !n.is_empty()) {
        mask |= match name {
            "noup" => state::NOUP,
            "nodown" => state::NODOWN,
            "noin" => state::NOIN,
            "noout" => state::NOOUT,
            other => {
                return Err(Refusal::invalid(format!(
                    "unrecognized flag '{other}', must be one of {{noup,nodown,noin,noout}}"
                )));
            }
        };
    }
    if mask == 0 {
        return Err(Refusal::invalid("must specify flag(s) {noup,nodwon,noin,noout} to set/unset"));
    }
    let map = c.pending.osd();
    let mut osds = Vec::new();
    for w in &who {
        if matches!(w.as_str(), "all" | "any" | "*") {
            osds.extend(map.osds());
        } else if let Ok(osd) = osd_id(w) {
            if !map.exists(osd) {
                return Err(missing(osd));
            }
            osds.push(osd);
        } else if let Some(class) = map.crush.class_names.id(w) {
            let _ = class;
            osds.extend(map.crush.devices_by_class(w).into_iter().map(OsdId));
        } else if let Some(node) = map.crush.names.id(w) {
            osds.extend(map.crush.leaves(node).into_iter().map(OsdId));
        } else {
            return Err(Refusal::invalid(format!(
                "unable to parse osd id or crush node or device class: \"{w}\". "
            )));
        }
    }
    for osd in osds {
        rules::set_bits(c.pending, osd, mask, if on { mask } else { 0 });
    }
    Ok(Reply::empty())
}

fn ratio(c: &mut Write<'_>) -> Answer {
    let n = c.args.float("ratio").unwrap_or(0.0);
    let prefix = c.args.prefix();
    let map = c.pending.osd_mut();
    match prefix {
        "osd set-full-ratio" => map.full_ratio = n as f32,
        "osd set-backfillfull-ratio" => map.backfillfull_ratio = n as f32,
        _ => map.nearfull_ratio = n as f32,
    }
    Ok(Reply::status(format!("{prefix} {}", super::frame::short_float(n))))
}

fn min_compat_client(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("version");
    let Some(release) = Release::by_name(name) else {
        return Err(Refusal::invalid(format!("version {name} is not recognized")));
    };
    if !c.args.flag("yes_i_really_mean_it") {
        let mut old = std::collections::BTreeMap::<(&str, &str), u64>::new();
        for s in (c.env.sessions)() {
            let looks = super::mon::release_of(s.features);
            if Release::by_name(looks).is_none_or(|r| r < release) {
                *old.entry((s.name.kind.name(), looks)).or_default() += 1;
            }
        }
        if !old.is_empty() {
            let who: Vec<String> = old
                .iter()
                .map(|((kind, r), n)| format!("{n} connected {kind}(s) look like {r}"))
                .collect();
            let message = format!(
                "cannot set require_min_compat_client to {name}: {}; add --yes-i-really-mean-it to do it anyway",
                who.join("; ")
            );
            return Err(Refusal::new(Errno::EPERM, message));
        }
    }
    c.pending.osd_mut().require_min_compat_client = release;
    Ok(Reply::status(format!("set require_min_compat_client to {release}")))
}

fn require_release(c: &mut Write<'_>) -> Answer {
    let name = c.args.req("release");
    let Some(release) = Release::by_name(name) else {
        return Err(Refusal::invalid(format!("unrecognized release {name}")));
    };
    let map = c.pending.osd();
    if release == map.require_osd_release {
        return Ok(Reply::empty());
    }
    if release < map.require_osd_release {
        return Err(Refusal::new(
            Errno::EPERM,
            "require_osd_release cannot be lowered once it has been set",
        ));
    }
    if !map.osds().any(|o| map.is_up(o)) && !c.args.flag("yes_i_really_mean_it") {
        let message = "Not advisable to continue since no OSDs are up. Pass --yes-i-really-mean-it if you really \
                       wish to continue.";
        return Err(Refusal::new(Errno::EPERM, message));
    }
    c.pending.osd_mut().require_osd_release = release;
    Ok(Reply::empty())
}
