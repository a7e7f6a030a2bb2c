//! The cluster log.

use super::frame::{Answer, Entry, Read, Write, read, write};
use crate::command::{Format, Refusal, Reply};
use crate::state::Change;
use serde_json::Value;
use types::log::{LogName, LogPriority};
use types::{Dump, EntityAddrVec, EntityName, LogEntry};

pub(super) static COMMANDS: &[Entry] = &[
    write(
        "log name=logtext,type=CephString,n=N",
        "Write a line to the cluster log.",
        "mon",
        "rw",
        log,
    ),
    read(
        "log last name=num,type=CephInt,range=1,req=false \
         name=level,type=CephChoices,strings=debug|info|sec|warn|error,req=false \
         name=channel,type=CephChoices,strings=*|cluster|audit|cephadm,req=false",
        "Show the newest lines of the cluster log.",
        "mon",
        "r",
        last,
    ),
];

fn log(c: &mut Write<'_>) -> Answer {
    let caller = c.env.caller;
    // Programs may give a level; the command line cannot.
    let level = c.args.str("level").unwrap_or("info");
    let Some(prio) = LogPriority::from_name(level) else {
        return Err(Refusal::invalid(format!("no such level: '{level}'")));
    };
    let line = LogEntry {
        name: LogName { kind: caller.name.kind, id: caller.name.id.clone() },
        rank: EntityName::new(caller.name.kind, caller.global_id as i64),
        addrs: EntityAddrVec::one(caller.addr),
        stamp: c.pending.now(),
        seq: c.pending.state().log.next(),
        prio,
        msg: c.args.strs("logtext").join(" "),
        channel: "cluster".into(),
    };
    c.pending.put(Change::Log(vec![line]));
    Ok(Reply::empty())
}

fn last(c: &Read<'_>) -> Answer {
    let num = c.args.int("num").and_then(|n| usize::try_from(n).ok()).unwrap_or(20);
    let level = c.args.str("level").and_then(LogPriority::from_name).unwrap_or(LogPriority::INFO);
    let channel = c.args.str("channel").unwrap_or("cluster");
    let mut lines: Vec<&LogEntry> = c
        .state
        .log
        .iter()
        .rev()
        .map(|(_, l)| l)
        .filter(|l| l.prio >= level && (channel == "*" || l.channel == channel))
        .take(num)
        .collect();
    lines.reverse();
    Ok(match c.format() {
        Format::Plain => Reply::data(lines.iter().map(|l| format!("{l}\n")).collect::<String>()),
        f => Reply::data(f.json(&lines.iter().map(|l| l.dump()).collect::<Value>())),
    })
}
