//! A log of entries in order of time (Ceph: `cls/log`).

use crate::context::Object;
use crate::method::{Class, RD, RD_WR, decode, encode, method};
use bytes::Bytes;
use denc_derive::Denc;
use std::time::Duration;
use types::Utime;
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "log",
    methods: &[
        method!("add", RD_WR, add),
        method!("list", RD, list),
        method!("trim", RD_WR, trim),
        method!("info", RD, info),
    ],
};

const PREFIX: &str = "1_";
const MAX_ENTRIES: u64 = 1000;

/// An entry (Ceph: `cls_log_entry`, `cls/log/cls_log_types.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct LogEntry {
    /// What it belongs to.
    pub section: Bytes,
    /// What it is about.
    pub name: Bytes,
    /// When it happened.
    pub timestamp: Utime,
    /// Anything.
    pub data: Bytes,
    /// Its key; given to it when it is added, unless it has one.
    #[denc(since = 2)]
    pub id: Bytes,
}

/// What is known of the whole log (Ceph: `cls_log_header`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LogHeader {
    /// The greatest key ever added.
    pub max_marker: Bytes,
    /// The latest time ever added.
    pub max_time: Utime,
}

/// Whether times never go back; they do not unless a client says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Denc)]
pub struct Monotonic(pub bool);

impl Default for Monotonic {
    fn default() -> Self {
        Monotonic(true)
    }
}

/// Input of `add` (Ceph: `cls_log_add_op`, version 2).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 2, compat = 1)]
pub struct AddOp {
    /// What to add.
    pub entries: Vec<LogEntry>,
    /// Entries from before the latest one are filed under its time.
    #[denc(since = 2)]
    pub monotonic_inc: Monotonic,
}

/// Input of `list` (Ceph: `cls_log_list_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ListOp {
    /// From here.
    pub from_time: Utime,
    /// After this key, rather than from a time.
    pub marker: Bytes,
    /// Up to before here, if a first time is given and this is not before it.
    pub to_time: Utime,
    /// At most so many; 0 for as many as can be.
    pub max_entries: i32,
}

/// Output of `list` (Ceph: `cls_log_list_ret`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ListRet {
    /// In order.
    pub entries: Vec<LogEntry>,
    /// The last key that was looked at.
    pub marker: Bytes,
    /// There is more.
    pub truncated: bool,
}

/// Input of `trim` (Ceph: `cls_log_trim_op`, version 2).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 2, compat = 1)]
pub struct TrimOp {
    /// From here.
    pub from_time: Utime,
    /// Up to here, inclusive.
    pub to_time: Utime,
    /// After this key, rather than from a time.
    #[denc(since = 2)]
    pub from_marker: Bytes,
    /// Up to this key, inclusive, rather than up to a time.
    #[denc(since = 2)]
    pub to_marker: Bytes,
}

/// Input of `info` (Ceph: `cls_log_info_op`, version 1).
#[derive(Clone, Copy, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct InfoOp {}

/// Output of `info` (Ceph: `cls_log_info_ret`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct InfoRet {
    /// The log's header.
    pub header: LogHeader,
}

/// How keys of a time begin. Also the class `timeindex` has its keys in this form.
pub(crate) fn time_prefix(t: Utime) -> String {
    format!("{PREFIX}{:010}.{:06}_", t.sec, t.nsec / 1000)
}

/// The key of an entry begins with the end of the range, or lies behind it.
pub(crate) fn reaches(key: &[u8], end: &[u8]) -> std::cmp::Ordering {
    key.get(..end.len()).unwrap_or(key).cmp(end)
}

/// The largest number of entries for what a client asked for.
pub(crate) fn at_most(max_entries: i32) -> u64 {
    u64::try_from(max_entries).map_or(MAX_ENTRIES, |n| n.min(MAX_ENTRIES))
}

async fn header(object: Object<'_>) -> Result<LogHeader, Errno> {
    let stored = object.map_get_header().await?;
    if stored.is_empty() {
        return Ok(LogHeader::default());
    }
    // A header that cannot be read is begun anew: it only speeds things up.
    Ok(decode(stored, Errno::EIO).unwrap_or_default())
}

async fn add(object: Object<'_>, op: AddOp) -> Result<(), Errno> {
    let mut header = header(object).await?;
    for mut entry in op.entries {
        let mut time = entry.timestamp;
        if op.monotonic_inc.0 && time < header.max_time {
            time = header.max_time;
        } else {
            header.max_time = header.max_time.max(time);
        }
        if entry.id.is_empty() {
            let unique = format!("{}.{}", object.origin().last_user_version, object.subop());
            entry.id = (time_prefix(time) + &unique).into();
        }
        if entry.id > header.max_marker {
            header.max_marker = entry.id.clone();
        }
        object.map_set_val(&entry.id, encode(&entry)).await?;
    }
    object.map_set_header(encode(&header)).await
}

async fn list(object: Object<'_>, op: ListOp) -> Result<Bytes, Errno> {
    let from = if op.marker.is_empty() { time_prefix(op.from_time).into() } else { op.marker };
    let end =
        (!op.from_time.is_zero() && op.to_time >= op.from_time).then(|| time_prefix(op.to_time));
    let max = if op.max_entries == 0 { MAX_ENTRIES } else { at_most(op.max_entries) };
    let page = object.map_get_vals(&from, PREFIX.as_bytes(), max).await?;
    let mut ret = ListRet { truncated: page.more, ..ListRet::default() };
    for (key, value) in page.rows {
        ret.marker = key.clone();
        if end.as_ref().is_some_and(|end| reaches(&key, end.as_bytes()).is_ge()) {
            ret.truncated = false;
            break;
        }
        match decode(value, Errno::EIO) {
            Ok(entry) => ret.entries.push(entry),
            Err(_) => {
                tracing::error!(key = %key.escape_ascii(), "a log has an entry that cannot be read")
            }
        }
    }
    Ok(encode(&ret))
}

/// ENODATA if there is nothing to trim: clients repeat until they see it.
async fn trim(object: Object<'_>, op: TrimOp) -> Result<(), Errno> {
    let from =
        if op.from_marker.is_empty() { time_prefix(op.from_time).into() } else { op.from_marker };
    let end: Bytes = if op.to_marker.is_empty() {
        time_prefix(op.to_time + Duration::from_micros(1)).into()
    } else {
        [&op.to_marker[..], b"\0"].concat().into()
    };
    let first =
        object.map_get_keys(&from, 1).await?.rows.into_iter().next().ok_or(Errno::ENODATA)?;
    if end < first {
        return Err(Errno::ENODATA);
    }
    object.map_remove_range(&first, &end).await
}

async fn info(object: Object<'_>, _: InfoOp) -> Result<Bytes, Errno> {
    Ok(encode(&InfoRet { header: header(object).await? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;

    fn at(sec: u32) -> LogEntry {
        LogEntry {
            section: "s".into(),
            name: format!("n{sec}").into(),
            timestamp: Utime::new(sec, 5000),
            data: "d".into(),
            ..LogEntry::default()
        }
    }

    fn add(o: &mut TestObject, entries: Vec<LogEntry>, monotonic: bool) {
        o.exec("log", "add", &AddOp { entries, monotonic_inc: Monotonic(monotonic) }).unwrap();
    }

    fn list(o: &mut TestObject, op: &ListOp) -> ListRet {
        o.query("log", "list", op).unwrap()
    }

    fn names(r: &ListRet) -> Vec<&[u8]> {
        r.entries.iter().map(|e| &e.name[..]).collect()
    }

    #[test]
    fn entries_are_listed_in_order_of_time() {
        let mut o = TestObject::new();
        add(&mut o, vec![at(30), at(10)], false);
        add(&mut o, vec![at(20)], false);
        let all = list(&mut o, &ListOp::default());
        assert_eq!(names(&all), [b"n10", b"n20", b"n30"]);
        assert!(!all.truncated);
        assert_eq!(all.entries[0].id[..].get(..20), Some(&b"1_0000000010.000005_"[..]));
        let range = ListOp {
            from_time: Utime::new(15, 0),
            to_time: Utime::new(30, 0),
            ..ListOp::default()
        };
        assert_eq!(names(&list(&mut o, &range)), [b"n20"]);
        let first = list(&mut o, &ListOp { max_entries: 1, ..ListOp::default() });
        assert!(first.truncated);
        assert_eq!(first.marker, first.entries[0].id);
        let rest = list(&mut o, &ListOp { marker: first.marker, ..ListOp::default() });
        assert_eq!(names(&rest), [b"n20", b"n30"]);
    }

    #[test]
    fn time_does_not_go_back_if_it_must_not() {
        let mut o = TestObject::new();
        add(&mut o, vec![at(30)], true);
        add(&mut o, vec![at(10)], true);
        let all = list(&mut o, &ListOp::default());
        assert_eq!(names(&all), [b"n30", b"n10"]);
        assert_eq!(all.entries[1].timestamp, at(10).timestamp, "only the key has the later time");
        let info: InfoRet = o.query("log", "info", &InfoOp {}).unwrap();
        assert_eq!(
            info.header,
            LogHeader { max_marker: all.entries[1].id.clone(), max_time: at(30).timestamp }
        );
    }

    #[test]
    fn entries_of_one_call_differ_and_own_ids_replace() {
        let mut o = TestObject::new();
        add(&mut o, vec![at(10), at(10), at(10)], true);
        assert_eq!(list(&mut o, &ListOp::default()).entries.len(), 3);
        let own = LogEntry { id: "1_own".into(), ..at(11) };
        add(&mut o, vec![own.clone()], true);
        add(&mut o, vec![own], true);
        assert_eq!(list(&mut o, &ListOp::default()).entries.len(), 4);
    }

    #[test]
    fn trimming_includes_its_end() {
        let mut o = TestObject::new();
        assert_eq!(o.exec("log", "trim", &TrimOp::default()), Err(Errno::ENODATA));
        add(&mut o, vec![at(10), at(20), at(30), at(40)], true);
        let times = TrimOp { to_time: at(20).timestamp, ..TrimOp::default() };
        o.exec("log", "trim", &times).unwrap();
        let left = list(&mut o, &ListOp::default());
        assert_eq!(names(&left), [b"n30", b"n40"]);
        assert_eq!(o.exec("log", "trim", &times), Err(Errno::ENODATA));
        let markers = TrimOp { to_marker: left.entries[0].id.clone(), ..TrimOp::default() };
        o.exec("log", "trim", &markers).unwrap();
        assert_eq!(names(&list(&mut o, &ListOp::default())), [b"n40"]);
    }

    #[test]
    fn an_old_client_s_entries_are_monotonic() {
        let mut old = bytes::BytesMut::new();
        denc::envelope(&mut old, 1, 1, |b| {
            denc::Encode::encode(&vec![at(1)], b, denc::Features::ALL)
        });
        assert!(decode::<AddOp>(old.freeze(), Errno::EIO).unwrap().monotonic_inc.0);
    }
}
