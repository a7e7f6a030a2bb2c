//! `move ...`: data moves as a job.

use super::frame::{Answer, Entry, Env, Read, Write, osd_id, read, write};
use crate::command::{Args, Refusal, Reply};
use crate::moves::{self, Known};
use crate::state::ClusterState;
use pgmap::jobs::pretty;
use pgmap::units::bytes;
use placement::movement::{Goal, Job, Limits, State, Stop, Verb, Way, plan};
use placement::pace::{CONFIDENCE, Eta, WHOLE};
use serde_json::{Value, json};
use std::fmt::Write as _;
use types::errno::Errno;
use types::{OsdId, OsdMap, Utime};

pub(super) static COMMANDS: &[Entry] = &[
    read(
        "move plan name=verb,type=CephChoices,strings=drain|grow|rule|replace|balance name=what,type=CephString,n=N,req=false name=pgs,type=CephInt,range=1|4096,req=false name=per_osd,type=CephInt,range=1|4096,req=false name=rate,type=CephString,req=false name=hours,type=CephString,req=false name=p99,type=CephString,req=false name=weight,type=CephFloat,range=0.0,req=false",
        "Say what a movement job would do.",
        "osd",
        "r",
        show_plan,
    ),
    write(
        "move start name=verb,type=CephChoices,strings=drain|grow|rule|replace|balance name=what,type=CephString,n=N,req=false name=pgs,type=CephInt,range=1|4096,req=false name=per_osd,type=CephInt,range=1|4096,req=false name=rate,type=CephString,req=false name=hours,type=CephString,req=false name=p99,type=CephString,req=false name=weight,type=CephFloat,range=0.0,req=false",
        "Begin a movement job: drain OSDs or buckets, grow onto them, give a pool a rule, replace an OSD's device, balance.",
        "osd",
        "rw",
        start,
    ),
    read("move ls", "List movement jobs.", "osd", "r", ls),
    read(
        "move status name=id,type=CephInt,range=0,req=false",
        "Show a movement job.",
        "osd",
        "r",
        status,
    ),
    write(
        "move pause name=id,type=CephInt,range=0",
        "Let a movement job begin nothing more.",
        "osd",
        "rw",
        pause,
    ),
    write(
        "move resume name=id,type=CephInt,range=0",
        "Let a movement job go on.",
        "osd",
        "rw",
        resume,
    ),
    write(
        "move undo name=id,type=CephInt,range=0",
        "Bring all back to where it was before a movement job.",
        "osd",
        "rw",
        undo,
    ),
    write(
        "move rm name=id,type=CephInt,range=0",
        "Forget a movement job that has ended.",
        "osd",
        "rw",
        rm,
    ),
];

fn stopped(Stop(why): Stop) -> Refusal {
    Refusal::invalid(why)
}

fn known(env: &Env<'_>, map: &OsdMap) -> Result<Known, Refusal> {
    let Some(digest) = &env.stats.digest else {
        return Err(Refusal::new(Errno::EAGAIN, "the manager has not reported yet: try again"));
    };
    Ok(Known::new(map, digest))
}

/// OSDs by their numbers or by the names of buckets above them.
fn osds(map: &OsdMap, words: &[String]) -> Result<Vec<OsdId>, Refusal> {
    let mut all = Vec::new();
    for word in words {
        match map.crush.names.id(word).filter(|id| *id < 0) {
            Some(bucket) => all.extend(map.crush.leaves(bucket).into_iter().map(OsdId)),
            None => all.push(osd_id(word)?),
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}

fn goal(map: &OsdMap, known: &Known, args: &Args) -> Result<Goal, Refusal> {
    let what = args.strs("what");
    let verb = match args.req("verb") {
        "drain" => Verb::Drain,
        "grow" => Verb::Grow,
        "rule" => Verb::Rule,
        "replace" => Verb::Replace,
        _ => Verb::Balance,
    };
    let mut goal = Goal { verb, ..Goal::default() };
    match verb {
        Verb::Drain | Verb::Replace => {
            goal.osds = osds(map, &what)?.into_iter().map(|o| (o, 0)).collect();
        }
        Verb::Grow => {
            for osd in osds(map, &what)? {
                let now = map.crush.item_weight(osd.0).unwrap_or(0);
                let named = what.iter().any(|w| osd_id(w).is_ok_and(|o| o == osd));
                if now > 0 && !named {
                    continue;
                }
                let tib = known
                    .stats
                    .usage
                    .get(&osd)
                    .map_or(0.0, |u| u.total as f64 / (1u64 << 40) as f64);
                let weight = args.float("weight").unwrap_or(tib.max(0.0001));
                goal.osds.push((osd, (weight * 65536.0).round().max(1.0) as u32));
            }
        }
        Verb::Rule => {
            let [pool, rule] = &what[..] else {
                return Err(Refusal::invalid("a pool and a rule are expected"));
            };
            goal.pool = map.pool_by_name(pool).ok_or_else(|| {
                Refusal::new(Errno::ENOENT, format!("pool '{pool}' does not exist"))
            })?;
            let number = map.crush.rule_names.id(rule).and_then(|id| u8::try_from(id).ok());
            goal.rule = number.ok_or_else(|| {
                Refusal::new(Errno::ENOENT, format!("crush rule {rule} does not exist"))
            })?;
        }
        Verb::Balance => {
            goal.pgs_within = 1;
            match what.first().map(String::as_str) {
                None | Some("pgs") => {}
                Some("bytes") => goal.bytes_within = 50,
                Some(other) => {
                    return Err(Refusal::invalid(format!(
                        "pgs or bytes are evened out, not {other}"
                    )));
                }
            }
        }
    }
    Ok(goal)
}

/// `100M`: bytes.
fn size(text: &str) -> Result<u64, Refusal> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().trim_end_matches(['B', 'I']) {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(Refusal::invalid(format!("{text} is not a number of bytes, as 100M"))),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| Refusal::invalid(format!("{text} is not a number of bytes, as 100M")))?;
    Ok(number.saturating_mul(1 << shift))
}

/// `22:00-06:00`: minutes of the day.
fn hours(text: &str) -> Result<(u16, u16), Refusal> {
    let minute = |t: &str| -> Option<u16> {
        let (h, m) = t.split_once(':')?;
        let (h, m): (u16, u16) = (h.parse().ok()?, m.parse().ok()?);
        (h <= 24 && m < 60 && h * 60 + m <= 24 * 60).then_some(h * 60 + m)
    };
    let both = text.split_once('-').and_then(|(a, b)| Some((minute(a)?, minute(b)?)));
    both.ok_or_else(|| {
        Refusal::invalid(format!("{text} is not a time of day in UTC, as 22:00-06:00"))
    })
}

/// `10ms`: microseconds.
fn latency(text: &str) -> Result<u64, Refusal> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let unit = match &text[at..] {
        "us" => Some(1.0),
        "ms" => Some(1000.0),
        "s" => Some(1_000_000.0),
        _ => None,
    };
    let number = text[..at].parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
    let micros = number.zip(unit).map(|(n, unit)| (n * unit) as u64);
    micros.filter(|us| (1..=3_600_000_000).contains(us)).ok_or_else(|| {
        Refusal::invalid(format!("{text} is not a latency of at most an hour, as 10ms"))
    })
}

fn limits(args: &Args) -> Result<Limits, Refusal> {
    let mut limits = Limits::default();
    let number = |name: &str| args.int(name).and_then(|n| u32::try_from(n).ok());
    limits.pgs = number("pgs").unwrap_or(limits.pgs);
    limits.per_osd = number("per_osd").unwrap_or(limits.per_osd);
    if let Some(rate) = args.str("rate") {
        limits.rate = size(rate)?;
    }
    if let Some(text) = args.str("hours") {
        (limits.from, limits.until) = hours(text)?;
    }
    if let Some(text) = args.str("p99") {
        limits.p99 = latency(text)?;
    }
    Ok(limits)
}

fn only_one(state: &ClusterState) -> Result<(), Refusal> {
    let Some(job) = moves::open(&state.moves) else { return Ok(()) };
    let (id, state) = (job.id, job.state.name());
    Err(Refusal::new(
        Errno::EBUSY,
        format!("movement job {id} is {state}: wait until it has ended, or undo it"),
    ))
}

fn show_plan(c: &Read<'_>) -> Answer {
    let map = c.state.osd.map();
    let known = known(c.env, map)?;
    let (goal, limits) = (goal(map, &known, c.args)?, limits(c.args)?);
    let (job, edits) =
        Job::begin(0, goal, limits, map, &known.stats, c.env.now).map_err(stopped)?;
    let mut begun = (**map).clone();
    edits.apply(&mut begun).map_err(stopped)?;
    let (plan, _) = plan(&job, &begun, &known.stats).map_err(stopped)?;
    let fullest = plan.peak.iter().max_by(|a, b| a.1.total_cmp(b.1));
    Ok(c.format().reply(
        || {
            let peak: Vec<Value> = plan
                .peak
                .iter()
                .map(|(osd, part)| json!({"osd": osd.0, "utilization": part}))
                .collect();
            json!({
                "what": describe(map, &job.goal),
                "maps": plan.maps,
                "pgs": plan.pgs,
                "bytes": plan.bytes,
                "seconds_at_rate": plan.bytes.checked_div(limits.rate),
                "peaks": peak,
                "backfillfull_ratio": map.backfillfull_ratio,
                "skipped": plan.skipped,
                "stuck": plan.stuck,
            })
        },
        || {
            let mut out = format!(
                "{}: {} placements of PGs change in {} maps, {} move\n",
                describe(map, &job.goal),
                plan.pgs,
                plan.maps,
                bytes(plan.bytes)
            );
            if let Some(seconds) = plan.bytes.checked_div(limits.rate) {
                let rate = bytes(limits.rate);
                let _ = writeln!(out, "at least {} at {rate}/s", pretty(seconds));
            }
            if let Some((osd, part)) = fullest {
                let _ = writeln!(
                    out,
                    "fullest: osd.{osd} with {:.1}% on the way, of {:.1}% allowed",
                    part * 100.0,
                    map.backfillfull_ratio * 100.0
                );
            }
            if let Some(why) = &plan.stuck {
                let _ = writeln!(out, "it would not reach its goal: {why}");
            }
            out
        },
    ))
}

fn start(c: &mut Write<'_>) -> Answer {
    only_one(c.pending.state())?;
    let map = c.pending.osd().clone();
    let known = known(c.env, &map)?;
    let (goal, limits) = (goal(&map, &known, c.args)?, limits(c.args)?);
    let id = c.pending.state().moves.keys().last().map_or(1, |id| id + 1);
    let now = c.pending.now();
    let (job, edits) = Job::begin(id, goal, limits, &map, &known.stats, now).map_err(stopped)?;
    let mut begun = map.clone();
    edits.apply(&mut begun).map_err(stopped)?;
    // A job that would be stuck is refused beforehand.
    let (planned, _) = plan(&job, &begun, &known.stats).map_err(stopped)?;
    if let Some(why) = planned.stuck {
        return Err(Refusal::new(Errno::ENOSPC, format!("it would not reach its goal: {why}")));
    }
    let what = describe(&map, &job.goal);
    let mut job = Job { total: planned.bytes, ..job };
    if let (Verb::Replace, Some((osd, _))) = (job.goal.verb, job.goal.osds.first()) {
        let serial = moves::serials(&c.pending.state().osd_metadata).remove(osd);
        job.serial = serial.unwrap_or_default();
    }
    moves::keep(c.pending, job, &edits).map_err(stopped)?;
    Ok(c.format()
        .reply(|| json!({"id": id}), || format!("{id}\n"))
        .with_status(format!("job {id}: {what}")))
}

fn job(state: &ClusterState, args: &Args) -> Result<Job, Refusal> {
    let id = args.int("id").and_then(|id| u64::try_from(id).ok()).unwrap_or(0);
    let job = state.moves.get(&id);
    job.map(|j| (**j).clone())
        .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("there is no movement job {id}")))
}

fn change(c: &mut Write<'_>, f: fn(&mut Job) -> Result<(), Stop>) -> Answer {
    let mut job = job(c.pending.state(), c.args)?;
    f(&mut job).map_err(stopped)?;
    let text = format!("job {} is {}", job.id, job.state.name());
    moves::keep(c.pending, job, &Default::default()).map_err(stopped)?;
    Ok(Reply::status(text))
}

fn pause(c: &mut Write<'_>) -> Answer {
    change(c, Job::pause)
}

fn resume(c: &mut Write<'_>) -> Answer {
    change(c, Job::resume)
}

fn undo(c: &mut Write<'_>) -> Answer {
    let mut job = job(c.pending.state(), c.args)?;
    if moves::open(&c.pending.state().moves).is_some_and(|j| j.id != job.id) {
        only_one(c.pending.state())?;
    }
    if c.pending.state().moves.keys().last() != Some(&job.id) {
        return Err(Refusal::invalid(format!(
            "job {} is not the last one: the map has changed since",
            job.id
        )));
    }
    let map = c.pending.osd().clone();
    let known = known(c.env, &map)?;
    let edits = job.undo(&map, &known.stats).map_err(stopped)?;
    let text = format!("job {} is being undone", job.id);
    moves::keep(c.pending, job, &edits).map_err(stopped)?;
    Ok(Reply::status(text))
}

fn rm(c: &mut Write<'_>) -> Answer {
    let job = job(c.pending.state(), c.args)?;
    if job.state.is_open() {
        return Err(Refusal::new(
            Errno::EBUSY,
            format!("job {} is {}: undo it, or wait until it has ended", job.id, job.state.name()),
        ));
    }
    c.pending.put(crate::state::Change::Move(job.id, None));
    Ok(Reply::empty())
}

/// `drain osd.1 osd.2`.
pub(super) fn describe(map: &OsdMap, goal: &Goal) -> String {
    let mut out = goal.verb.name().to_owned();
    for (osd, _) in goal.osds.iter().take(8) {
        let _ = write!(out, " osd.{osd}");
    }
    if goal.osds.len() > 8 {
        let _ = write!(out, " and {} more", goal.osds.len() - 8);
    }
    match goal.verb {
        Verb::Rule => {
            let pool = map.pool_names.get(&goal.pool).cloned().unwrap_or_default();
            let rule = map.crush.rule_names.name(goal.rule.into()).unwrap_or_default();
            let _ = write!(out, " {pool} {rule}");
        }
        Verb::Balance if goal.bytes_within > 0 => out.push_str(" bytes"),
        Verb::Balance => out.push_str(" pgs"),
        _ => {}
    }
    out
}

/// `about 2h (1h to 3h with 80% confidence)`.
fn remaining(eta: &Eta) -> String {
    let percent = (CONFIDENCE * 100.0) as u32;
    let range = match eta.range {
        Some((low, Some(high))) => {
            format!(" ({} to {} with {percent}% confidence)", pretty(low), pretty(high))
        }
        Some((low, None)) => format!(" (at least {} with {percent}% confidence)", pretty(low)),
        None => String::new(),
    };
    format!("about {} remaining{range}", pretty(eta.seconds))
}

fn dump(map: &OsdMap, job: &Job, now: Utime) -> Value {
    let eta = job.eta(now);
    let range = eta.and_then(|e| e.range);
    json!({
        "id": job.id,
        "what": describe(map, &job.goal),
        "verb": job.goal.verb.name(),
        "state": job.state.name(),
        "back": job.way == Way::Back,
        "progress": job.progress(),
        "bytes": job.total,
        "bytes_moved": job.moved,
        "seconds_left": eta.map(|e| e.seconds),
        "seconds_left_low": range.map(|(low, _)| low),
        "seconds_left_high": range.and_then(|(_, high)| high),
        "confidence": range.map(|_| CONFIDENCE),
        "pace": f64::from(job.pace) / f64::from(WHOLE),
        "device": job.serial,
        "pgs_moving": job.moving.len(),
        "pgs_left": job.todo.len(),
        "pgs_skipped": job.skipped,
        "maps": job.maps,
        "note": job.note,
        "began": job.began.to_string(),
        "ended": if job.ended.is_zero() { Value::Null } else { job.ended.to_string().into() },
        "limits": {
            "pgs": job.limits.pgs,
            "per_osd": job.limits.per_osd,
            "rate": job.limits.rate,
            "from_minute": job.limits.from,
            "until_minute": job.limits.until,
            "p99_us": job.limits.p99,
        },
    })
}

fn line(map: &OsdMap, job: &Job, now: Utime) -> String {
    let mut out = format!("{}: {}: ", job.id, describe(map, &job.goal));
    let undoing = job.way == Way::Back && job.state.is_open();
    let _ = write!(out, "{}", job.state.name());
    if undoing {
        out.push_str(", going back");
    }
    if job.state.is_open() && job.state != State::Waits {
        let (moved, total) = (bytes(job.moved), bytes(job.total));
        let _ = write!(
            out,
            ", {moved} of {total} moved, {} PGs on their way, {} left",
            job.moving.len(),
            job.todo.len()
        );
    }
    if let Some(eta) = job.eta(now) {
        let _ = write!(out, ", {}", remaining(&eta));
    }
    if job.limits.p99 > 0 && job.state.is_open() {
        let _ = write!(out, ", at {}% of its limits", u64::from(job.pace) * 100 / u64::from(WHOLE));
    }
    if !job.note.is_empty() {
        let _ = write!(out, " ({})", job.note);
    }
    out.push('\n');
    out
}

fn ls(c: &Read<'_>) -> Answer {
    let (map, now) = (c.state.osd.map(), c.env.now);
    let jobs = c.state.moves.values();
    Ok(c.format().reply(
        || jobs.clone().map(|j| dump(map, j, now)).collect(),
        || jobs.clone().map(|j| line(map, j, now)).collect(),
    ))
}

fn status(c: &Read<'_>) -> Answer {
    let (map, now) = (c.state.osd.map(), c.env.now);
    let job = match c.args.has("id") {
        true => job(c.state, c.args)?,
        false => match c.state.moves.values().last() {
            Some(job) => (**job).clone(),
            None => return Err(Refusal::new(Errno::ENOENT, "there is no movement job")),
        },
    };
    Ok(c.format().reply(|| dump(map, &job, now), || line(map, &job, now)))
}

/// A movement job that cannot go on by itself.
pub(super) fn stuck(state: &ClusterState) -> Option<super::health::found::Found> {
    let job = moves::open(&state.moves).filter(|j| j.note.starts_with("stuck"))?;
    let what = describe(state.osd.map(), &job.goal);
    let detail = vec![format!("movement job {} ({what}) is {}", job.id, job.note)];
    let summary = "1 movement job is stuck".to_owned();
    let warn = messages::HealthCheck::WARN;
    Some(super::health::found::found("SIPHON_MOVE_STUCK", warn, summary, detail, 1))
}

/// The open job as `ceph -s` shows it: what it is called, and two lines.
pub(super) fn event(state: &ClusterState, now: Utime) -> Option<(String, f64, String)> {
    const BAR: usize = 28;
    let job = moves::open(&state.moves)?;
    let done = (job.progress() * BAR as f64) as usize;
    let bar = format!("[{}{}]", "=".repeat(done), ".".repeat(BAR - done));
    let remaining = match (job.state, job.eta(now)) {
        (State::Running, Some(eta)) if job.note.is_empty() => {
            format!("(remaining: {})", pretty(eta.seconds))
        }
        (State::Running, _) if job.note.is_empty() => String::new(),
        (State::Running, _) => format!("({})", job.note),
        (state, _) => format!("({})", state.name()),
    };
    let undo = if job.way == Way::Back { "Undo of movement" } else { "Movement" };
    let what = describe(state.osd.map(), &job.goal);
    let age = pretty(now.since(job.began).as_secs());
    let lines = format!("{undo} {}: {what} ({age})\n      {bar} {remaining}", job.id);
    Some((format!("move-{}", job.id), job.progress(), lines))
}
