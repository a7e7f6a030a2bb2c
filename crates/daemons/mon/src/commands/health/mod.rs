//! Health: the checks that the monitor makes itself, those that the manager sent, and mutes.

pub(super) mod found;
mod monitors;
mod osds;
mod pools;

pub(crate) use monitors::daemon_versions;

use super::frame::{Answer, Entry, Env, Read, Write, read, write};
use crate::command::{Format, Refusal, Reply};
use crate::state::{Change, ClusterState, Mute};
use messages::{HealthCheck, HealthChecks};
use serde_json::{Map, Value, json};
use std::time::Duration;
use types::errno::Errno;

use types::Utime;

pub(super) static COMMANDS: &[Entry] = &[
    read(
        "health name=detail,type=CephChoices,strings=detail,req=false",
        "Show the cluster's health.",
        "mon",
        "r",
        health,
    ),
    write(
        "health mute name=code,type=CephString name=ttl,type=CephString,req=false name=sticky,type=CephBool,req=false",
        "Mute a health check.",
        "mon",
        "w",
        mute,
    ),
    write(
        "health unmute name=code,type=CephString,req=false",
        "Unmute one health check, or all.",
        "mon",
        "w",
        unmute,
    ),
];

/// Everything that is wrong, muted or not.
pub fn checks(state: &ClusterState, env: &Env<'_>) -> HealthChecks {
    let mut all = env.stats.health.clone();
    let conf = env.conf.borrow();
    let map = state.osd.map();
    let of_fs = super::fs::health_checks(&state.fs, &env.stats.mds_health);
    all.checks.extend(of_fs.into_iter().map(|(code, check)| (code.to_owned(), check)));
    all.checks.extend(osds::checks(map, &conf));
    all.checks.extend(pools::checks(map, &conf, env.stats.digest.as_deref()));
    all.checks.extend(monitors::checks(state, env, &conf));
    all.checks.extend(super::moves::stuck(state));
    all
}

/// The part of the checks that counts, and the codes of those that are muted.
fn split(state: &ClusterState, all: HealthChecks) -> (HealthChecks, HealthChecks) {
    let (muted, loud) =
        all.checks.into_iter().partition(|(code, _)| state.mutes.contains_key(code));
    (HealthChecks { checks: loud }, HealthChecks { checks: muted })
}

/// `HEALTH_OK`, `HEALTH_WARN` or `HEALTH_ERR`.
fn status_word(loud: &HealthChecks) -> &'static str {
    match loud.checks.values().map(|c| c.severity).min() {
        None | Some(HealthCheck::OK) => "HEALTH_OK",
        Some(HealthCheck::ERR) => "HEALTH_ERR",
        Some(_) => "HEALTH_WARN",
    }
}

fn severity_word(c: &HealthCheck) -> &'static str {
    match c.severity {
        HealthCheck::ERR => "HEALTH_ERR",
        HealthCheck::OK => "HEALTH_OK",
        _ => "HEALTH_WARN",
    }
}

/// `health` of `ceph status -f json`, and `ceph health -f json`.
pub fn to_json(state: &ClusterState, env: &Env<'_>, detail: bool) -> Value {
    let (loud, muted) = split(state, checks(state, env));
    let mut out = Map::new();
    for (code, c) in loud.checks.iter().chain(&muted.checks) {
        let mut m = Map::new();
        m.insert("severity".into(), severity_word(c).into());
        m.insert("summary".into(), json!({"message": c.summary, "count": c.count}));
        if detail {
            m.insert("detail".into(), c.detail.iter().map(|d| json!({"message": d})).collect());
        }
        m.insert("muted".into(), muted.checks.contains_key(code).into());
        out.insert(code.clone(), Value::Object(m));
    }
    let mutes: Vec<Value> = state
        .mutes
        .iter()
        .map(|(code, m)| {
            let mut v =
                json!({"code": code, "sticky": m.sticky, "summary": m.summary, "count": m.count});
            if !m.until.is_zero() {
                v["ttl"] = m.until.to_string().into();
            }
            v
        })
        .collect();
    json!({"status": status_word(&loud), "checks": out, "mutes": mutes})
}

/// The first line, and the lines under it: of `ceph -s` (one a check) or of `ceph health detail`.
pub fn to_text(state: &ClusterState, env: &Env<'_>, detail: bool) -> (String, Vec<String>) {
    let (loud, muted) = split(state, checks(state, env));
    let mut first = status_word(&loud).to_string();
    if !muted.checks.is_empty() {
        let codes: Vec<&str> = muted.checks.keys().map(String::as_str).collect();
        first += &format!(" (muted: {})", codes.join(", "));
    }
    let mut lines = Vec::new();
    for (code, c) in &loud.checks {
        if !detail {
            lines.push(c.summary.clone());
            continue;
        }
        let mark = if c.severity == HealthCheck::ERR { "ERR" } else { "WRN" };
        lines.push(format!("[{mark}] {code}: {}", c.summary));
        lines.extend(c.detail.iter().map(|d| format!("    {d}")));
    }
    if detail {
        for (code, c) in &muted.checks {
            lines.push(format!("(MUTED) [WRN] {code}: {}", c.summary));
            lines.extend(c.detail.iter().map(|d| format!("    {d}")));
        }
    }
    (first, lines)
}

fn health(c: &Read<'_>) -> Answer {
    let detail = c.args.str("detail") == Some("detail");
    if c.format() != Format::Plain {
        return Ok(Reply::data(c.format().json(&to_json(c.state, c.env, detail))));
    }
    let (first, lines) = to_text(c.state, c.env, false);
    let mut out = if lines.is_empty() { first } else { format!("{first} {}", lines.join("; ")) };
    out.push('\n');
    if detail {
        for line in to_text(c.state, c.env, true).1 {
            out += &line;
            out.push('\n');
        }
    }
    Ok(Reply::data(out))
}

/// `1h`, `10m`, `1d`: how long a mute lasts.
fn ttl(text: &str) -> Result<Duration, Refusal> {
    match conf::value::parse(conf::Kind::Secs, text) {
        Ok(conf::Value::Uint(s)) => Ok(Duration::from_secs(s)),
        _ => Err(Refusal::invalid(format!("not a valid duration: {text}"))),
    }
}

fn mute(c: &mut Write<'_>) -> Answer {
    let code = c.args.req("code").to_string();
    let sticky = c.args.flag("sticky");
    let until = match c.args.str("ttl") {
        None => Utime::ZERO,
        Some(t) => Utime::from_duration(c.env.now.as_duration() + ttl(t)?),
    };
    let raised = checks(c.pending.state(), c.env).checks.remove(&code);
    if raised.is_none() && !sticky {
        return Err(Refusal::new(
            Errno::ENOENT,
            format!("health alert {code} is not currently raised"),
        ));
    }
    let (summary, count) = raised.map_or((String::new(), 0), |r| (r.summary, r.count));
    c.pending.put(Change::Mute(code, Some(Mute { until, sticky, summary, count })));
    Ok(Reply::empty())
}

fn unmute(c: &mut Write<'_>) -> Answer {
    let codes: Vec<String> = match c.args.str("code") {
        Some(code) => vec![code.to_string()],
        None => c.pending.state().mutes.keys().cloned().collect(),
    };
    for code in codes {
        c.pending.put(Change::Mute(code, None));
    }
    Ok(Reply::empty())
}
