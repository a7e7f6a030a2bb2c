//! The cluster log.

use crate::dump::{Dump, shown};
use crate::entity::{EntityAddrVec, EntityName, EntityType};
use crate::{Utime, features};
use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// The author of an entry, by its authenticated name (Ceph: `EntityName`, `common/entity_name.h`,
/// plain).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Denc)]
pub struct LogName {
    /// The type.
    pub kind: EntityType,
    /// The name within the type, `admin` in `client.admin`.
    pub id: String,
}

impl fmt::Display for LogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A name that was never set is shown as nothing.
        match self.kind {
            EntityType(0) if self.id.is_empty() => Ok(()),
            kind => write!(f, "{kind}.{}", self.id),
        }
    }
}

/// How important an entry is (Ceph: `clog_type`, `common/LogEntry.h`, 16 bits).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Denc)]
pub struct LogPriority(pub u16);

impl LogPriority {
    /// Debugging.
    pub const DEBUG: LogPriority = LogPriority(0);
    /// Information.
    pub const INFO: LogPriority = LogPriority(1);
    /// Security.
    pub const SEC: LogPriority = LogPriority(2);
    /// Warning.
    pub const WARN: LogPriority = LogPriority(3);
    /// Error.
    pub const ERROR: LogPriority = LogPriority(4);

    /// The word that options and commands use.
    pub fn name(self) -> &'static str {
        match self {
            Self::DEBUG => "debug",
            Self::INFO => "info",
            Self::SEC => "crit",
            Self::WARN => "warn",
            Self::ERROR => "err",
            _ => "unknown",
        }
    }

    /// The priority of one of Ceph's words, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "debug" => Self::DEBUG,
            "info" => Self::INFO,
            "sec" | "crit" => Self::SEC,
            "warn" | "warning" => Self::WARN,
            "err" | "error" => Self::ERROR,
            _ => return None,
        })
    }
}

impl fmt::Display for LogPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::DEBUG => "[DBG]",
            Self::INFO => "[INF]",
            Self::SEC => "[SEC]",
            Self::WARN => "[WRN]",
            Self::ERROR => "[ERR]",
            _ => "[???]",
        })
    }
}

/// An entry (Ceph: `LogEntry`, version 5; version 4 to peers before Nautilus).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LogEntry {
    /// The daemon or client that wrote it.
    pub name: LogName,
    /// The same as a participant.
    pub rank: EntityName,
    /// From where.
    pub addrs: EntityAddrVec,
    /// When.
    pub stamp: Utime,
    /// The writer's number for it.
    pub seq: u64,
    /// How important.
    pub prio: LogPriority,
    /// The text.
    pub msg: String,
    /// The channel, `cluster` or `audit`.
    pub channel: String,
}

impl Encode for LogEntry {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        if !f.has(features::SERVER_NAUTILUS) {
            let addr =
                crate::EntityAddr { kind: crate::AddrType::LEGACY, ..self.addrs.legacy_or_front() };
            envelope(out, 4, 2, |out| {
                self.rank.encode(out, f);
                addr.encode(out, f);
                self.stamp.encode(out, f);
                self.seq.encode(out, f);
                self.prio.encode(out, f);
                self.msg.encode(out, f);
                self.channel.encode(out, f);
                self.name.encode(out, f);
            });
            return;
        }
        envelope(out, 5, 5, |out| {
            self.name.encode(out, f);
            self.rank.encode(out, f);
            self.addrs.encode(out, f);
            self.stamp.encode(out, f);
            self.seq.encode(out, f);
            self.prio.encode(out, f);
            self.msg.encode(out, f);
            self.channel.encode(out, f);
        });
    }
}
impl Decode for LogEntry {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("LogEntry", 5)?;
        match struct_v {
            5.. => Ok(LogEntry {
                name: r.get()?,
                rank: r.get()?,
                addrs: r.get()?,
                stamp: r.get()?,
                seq: r.get()?,
                prio: r.get()?,
                msg: r.get()?,
                channel: r.get()?,
            }),
            4 => Ok(LogEntry {
                rank: r.get()?,
                addrs: EntityAddrVec::one(r.get()?),
                stamp: r.get()?,
                seq: r.get()?,
                prio: r.get()?,
                msg: r.get()?,
                channel: r.get()?,
                name: r.get()?,
            }),
            _ => Err(DecodeError::TooOld { what: "LogEntry", struct_v, oldest: 4 }),
        }
    }
}
impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} ({}) {} : {} {} {}",
            self.stamp, self.name, self.rank, self.seq, self.channel, self.prio, self.msg
        )
    }
}
impl Dump for LogEntry {
    fn dump(&self) -> Value {
        json!({
            "name": shown(&self.name),
            "rank": shown(self.rank),
            "addrs": self.addrs.dump(),
            "stamp": shown(self.stamp),
            "seq": self.seq,
            "channel": self.channel,
            "priority": shown(self.prio),
            "message": self.msg,
        })
    }
}

/// The newest entries of each channel (Ceph: `LogSummary`, version 3).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 3, compat = 3, oldest = 3)]
pub struct LogSummary {
    /// Version of the log.
    pub version: u64,
    /// Number of the last entry.
    pub seq: u64,
    /// Entries with their numbers, by channel.
    pub tail_by_channel: BTreeMap<String, Vec<(u64, LogEntry)>>,
}

impl LogSummary {
    /// Appends an entry and keeps at most `most` of its channel.
    pub fn add(&mut self, entry: LogEntry, most: usize) {
        self.seq += 1;
        let tail = self.tail_by_channel.entry(entry.channel.clone()).or_default();
        tail.push((self.seq, entry));
        let surplus = tail.len().saturating_sub(most);
        tail.drain(..surplus);
    }

    /// All entries in order.
    pub fn ordered(&self) -> Vec<&LogEntry> {
        let mut all: Vec<_> = self.tail_by_channel.values().flatten().collect();
        all.sort_by_key(|(seq, _)| *seq);
        all.into_iter().map(|(_, entry)| entry).collect()
    }
}

impl Dump for LogSummary {
    fn dump(&self) -> Value {
        let channel = |(name, tail): (&String, &Vec<(u64, LogEntry)>)| {
            let entries: Map<_, _> =
                tail.iter().map(|(seq, e)| (seq.to_string(), e.dump())).collect();
            (name.clone(), Value::Object(entries))
        };
        json!({
            "version": self.version,
            "tail_by_channel": self.tail_by_channel.iter().map(channel).collect::<Map<_, _>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(channel: &str, msg: &str) -> LogEntry {
        LogEntry {
            name: LogName { kind: EntityType::CLIENT, id: "admin".into() },
            rank: EntityName::client(4100),
            addrs: "v1:127.0.0.1:0/5".parse().unwrap(),
            stamp: Utime::new(1_600_000_000, 0),
            seq: 3,
            prio: LogPriority::WARN,
            msg: msg.into(),
            channel: channel.into(),
        }
    }

    #[test]
    fn entries_come_back_from_new_and_old_peers() {
        let e = entry("cluster", "hello");
        assert_eq!(LogEntry::from_bytes(&e.to_bytes(Features::ALL)).unwrap(), e);
        assert_eq!(LogEntry::from_bytes(&e.to_bytes(Features(features::MSG_ADDR2))).unwrap(), e);
        let text =
            "2020-09-13T12:26:40.000000+0000 client.admin (client.4100) 3 : cluster [WRN] hello";
        assert_eq!(e.to_string(), text);
    }

    #[test]
    fn a_summary_keeps_the_newest_of_each_channel() {
        let mut summary = LogSummary::default();
        for n in 0..5 {
            summary.add(entry("cluster", &n.to_string()), 2);
        }
        summary.add(entry("audit", "x"), 2);
        let texts: Vec<_> = summary.ordered().iter().map(|e| e.msg.as_str()).collect();
        assert_eq!(texts, ["3", "4", "x"]);
        assert_eq!(LogSummary::from_bytes(&summary.to_bytes(Features::ALL)).unwrap(), summary);
    }
}
