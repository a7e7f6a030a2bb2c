//! The cluster log.

use super::{Answer, Entry, Read, Write, read, write};
use crate::command::{Format, Reply};
use crate::state::Change;
use serde_json::Value;
use types::log::{LogName, LogPriority};
use types::{Dump, EntityAddrVec, EntityName, EntityType, LogEntry};

pub(super) static COMMANDS: &[Entry] = &[
    write("log name=logtext,type=CephString,n=N", "Write a line to the cluster log.", "mon", "rw", log),
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
    let line = LogEntry {
        name: LogName { kind: c.env.caller.name.kind, id: c.env.caller.name.id.clone() },
        rank: EntityName::new(EntityType::CLIENT, 0),
        addrs: EntityAddrVec::one(c.env.caller.addr),
        stamp: c.pending.now(),
        seq: c.pending.state().log.next(),
        prio: LogPriority::INFO,
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
