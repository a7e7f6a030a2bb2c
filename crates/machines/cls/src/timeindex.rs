//! An index of values by time (Ceph: `cls/timeindex`).

use crate::context::Object;
use crate::log::{at_most, reaches, time_prefix};
use crate::method::{Class, RD, RD_WR, encode, method};
use bytes::Bytes;
use denc_derive::Denc;
use types::Utime;
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "timeindex",
    methods: &[method!("add", RD_WR, add), method!("list", RD, list), method!("trim", RD_WR, trim)],
};

const PREFIX: &[u8] = b"1_";
const MAX_TRIM: u64 = 1000;
/// What is kept of a key's second part when it is listed.
const EXT_LEN: usize = 255;

/// An entry (Ceph: `cls_timeindex_entry`, `cls/timeindex/cls_timeindex_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Entry {
    /// Its time. What `list` gives has the microseconds where the nanoseconds belong, as in Ceph.
    pub key_ts: Utime,
    /// The second part of its key.
    pub key_ext: Bytes,
    /// Anything.
    pub value: Bytes,
}

/// Input of `add` (Ceph: `cls_timeindex_add_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct AddOp {
    /// What to add.
    pub entries: Vec<Entry>,
}

/// Input of `list` (Ceph: `cls_timeindex_list_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ListOp {
    /// From here.
    pub from_time: Utime,
    /// After this key, rather than from a time.
    pub marker: Bytes,
    /// Up to before here, if it is not before the first time.
    pub to_time: Utime,
    /// At most so many.
    pub max_entries: i32,
}

/// Output of `list` (Ceph: `cls_timeindex_list_ret`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ListRet {
    /// In order.
    pub entries: Vec<Entry>,
    /// The last key among them.
    pub marker: Bytes,
    /// There is more.
    pub truncated: bool,
}

/// Input of `trim` (Ceph: `cls_timeindex_trim_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct TrimOp {
    /// From here.
    pub from_time: Utime,
    /// Up to here, inclusive.
    pub to_time: Utime,
    /// After this key, rather than from a time.
    pub from_marker: Bytes,
    /// Up to this key, inclusive, rather than up to a time.
    pub to_marker: Bytes,
}

/// A key's time and second part; `None` if it ends before the time.
fn parse(key: &[u8]) -> Option<(Utime, Bytes)> {
    let rest = key.strip_prefix(PREFIX).filter(|r| !r.is_empty())?;
    let number =
        |text: &[u8]| std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()).unwrap_or(0);
    let (sec, rest) = split(rest, b'.');
    let (usec, ext) = split(rest, b'_');
    let word = ext.trim_ascii_start();
    let word = word.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    let word = word.get(..EXT_LEN).unwrap_or(word);
    Some((Utime::new(number(sec), number(usec)), Bytes::copy_from_slice(word)))
}

/// What is before and after the first such byte.
fn split(text: &[u8], at: u8) -> (&[u8], &[u8]) {
    match text.iter().position(|b| *b == at) {
        Some(i) => (&text[..i], &text[i + 1..]),
        None => (text, &[]),
    }
}

async fn add(object: Object<'_>, op: AddOp) -> Result<(), Errno> {
    for entry in op.entries {
        let key = [time_prefix(entry.key_ts).as_bytes(), &entry.key_ext].concat();
        object.map_set_val(&key, entry.value).await?;
    }
    Ok(())
}

async fn list(object: Object<'_>, op: ListOp) -> Result<Bytes, Errno> {
    let from = if op.marker.is_empty() { time_prefix(op.from_time).into() } else { op.marker };
    let end = (op.to_time >= op.from_time).then(|| time_prefix(op.to_time));
    let page = object.map_get_vals(&from, PREFIX, at_most(op.max_entries)).await?;
    let mut ret = ListRet { truncated: page.more, ..ListRet::default() };
    for (key, value) in page.rows {
        if end.as_ref().is_some_and(|end| reaches(&key, end.as_bytes()).is_ge()) {
            ret.truncated = false;
            break;
        }
        match parse(&key) {
            Some((key_ts, key_ext)) => ret.entries.push(Entry { key_ts, key_ext, value }),
            None => {
                tracing::error!(key = %key.escape_ascii(), "a time index has a key without a time")
            }
        }
        ret.marker = key;
    }
    Ok(encode(&ret))
}

/// ENODATA if there was nothing to trim: clients repeat until they see it.
async fn trim(object: Object<'_>, op: TrimOp) -> Result<(), Errno> {
    let from =
        if op.from_marker.is_empty() { time_prefix(op.from_time).into() } else { op.from_marker };
    let end = if op.to_marker.is_empty() { time_prefix(op.to_time).into() } else { op.to_marker };
    let page = object.map_get_vals(&from, PREFIX, MAX_TRIM).await?;
    let mut removed = false;
    for key in page.rows.keys().take_while(|k| reaches(k, &end).is_le()) {
        object.map_remove_key(key).await?;
        removed = true;
    }
    if removed { Ok(()) } else { Err(Errno::ENODATA) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;

    fn at(sec: u32, ext: &'static str) -> Entry {
        Entry {
            key_ts: Utime::new(sec, 7000),
            key_ext: ext.into(),
            value: format!("v{sec}{ext}").into(),
        }
    }

    fn filled() -> TestObject {
        let mut o = TestObject::new();
        o.exec(
            "timeindex",
            "add",
            &AddOp { entries: vec![at(20, "b"), at(10, "x"), at(20, "a"), at(30, "y")] },
        )
        .unwrap();
        o
    }

    fn list(o: &mut TestObject, op: &ListOp) -> ListRet {
        o.query("timeindex", "list", op).unwrap()
    }

    fn values(r: &ListRet) -> Vec<&[u8]> {
        r.entries.iter().map(|e| &e.value[..]).collect()
    }

    #[test]
    fn listing() {
        let mut o = filled();
        let all = ListOp { to_time: Utime::new(100, 0), max_entries: 10, ..ListOp::default() };
        let found = list(&mut o, &all);
        assert_eq!(values(&found), [&b"v10x"[..], b"v20a", b"v20b", b"v30y"]);
        assert_eq!(found.entries[0].key_ts, Utime::new(10, 7), "microseconds, as Ceph gives them");
        assert_eq!(found.entries[0].key_ext, "x");
        assert_eq!((&found.marker[..], found.truncated), (&b"1_0000000030.000007_y"[..], false));
        let two = list(&mut o, &ListOp { max_entries: 2, ..all.clone() });
        assert!(two.truncated);
        assert_eq!(
            values(&list(&mut o, &ListOp { marker: two.marker, ..all.clone() })),
            [b"v20b", b"v30y"]
        );
        let part = ListOp { from_time: Utime::new(15, 0), to_time: Utime::new(30, 7000), ..all };
        assert_eq!(values(&list(&mut o, &part)), [b"v20a", b"v20b"]);
    }

    #[test]
    fn trimming() {
        let mut o = filled();
        let op = TrimOp { to_time: Utime::new(20, 7000), ..TrimOp::default() };
        o.exec("timeindex", "trim", &op).unwrap();
        assert_eq!(o.stored.omap.len(), 1);
        assert_eq!(o.exec("timeindex", "trim", &op), Err(Errno::ENODATA));
        let rest = TrimOp { to_marker: "1_9".into(), ..TrimOp::default() };
        o.exec("timeindex", "trim", &rest).unwrap();
        assert!(o.stored.omap.is_empty());
    }

    #[test]
    fn keys_are_parsed_as_far_as_they_go() {
        assert_eq!(parse(b"1_"), None);
        assert_eq!(parse(b"1_12.34_e f"), Some((Utime::new(12, 34), "e".into())));
        assert_eq!(parse(b"1_12"), Some((Utime::new(12, 0), "".into())));
        assert_eq!(parse(b"1_x.y_").map(|p| p.0), Some(Utime::ZERO));
    }
}
