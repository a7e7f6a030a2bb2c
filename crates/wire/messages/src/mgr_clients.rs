//! What the mgr asks metadata servers about their clients, and what they answer (Ceph:
//! `mgr/MDSPerfMetricTypes.h`, `mgr/MetricTypes.h`, 16.2).

use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, envelope};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};

/// Configuration and reports are marked with what they are about (Ceph: `METRIC_REPORT_TYPE_MDS`).
const ABOUT_CLIENTS: u32 = 1;

/// A part of the key of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Denc)]
#[denc(version = 1, compat = 1)]
pub struct KeyPart {
    /// See [`KeyPart::RANK`].
    pub kind: u8,
    /// A regular expression: what its groups match is in the key. What it does not match is left
    /// out of the answer.
    pub pattern: String,
}

impl KeyPart {
    /// The number of a rank.
    pub const RANK: u8 = 0;
    /// A client and its address, such as `client.4305 v1:10.0.0.1:0/7`.
    pub const CLIENT: u8 = 1;

    fn all_ranks() -> KeyPart {
        KeyPart { kind: Self::RANK, pattern: "^(.*)$".to_owned() }
    }

    fn all_clients() -> KeyPart {
        KeyPart { kind: Self::CLIENT, pattern: r"^(client.\d*\s+.*):.*".to_owned() }
    }
}

/// A question about clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientQuery {
    /// The parts of the answers' keys.
    pub keys: Vec<KeyPart>,
    /// The counters that are asked for, see [`ClientCounter`].
    pub counters: Vec<ClientCounter>,
}

impl ClientQuery {
    /// Which ranks have which clients. The two questions of Siphon's managers match everything: a
    /// manager chooses from the answers. Siphon's metadata servers answer no other questions.
    pub fn ranks() -> ClientQuery {
        let keys = vec![KeyPart::all_ranks(), KeyPart::all_clients()];
        ClientQuery { keys, counters: Vec::new() }
    }

    /// Both questions.
    pub fn all() -> BTreeSet<ClientQuery> {
        [Self::ranks(), Self::clients()].into()
    }

    /// What all clients count.
    pub fn clients() -> ClientQuery {
        let counters = (0..ClientCounter::COUNT).map(ClientCounter).collect();
        ClientQuery { keys: vec![KeyPart::all_clients()], counters }
    }
}

/// A counter of a client (Ceph: `MDSPerformanceCounterType`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ClientCounter(pub u8);

impl ClientCounter {
    /// How many there are in 16.2.15. Older servers have the first ten.
    pub const COUNT: u8 = Self::NAMES.len() as u8;
    /// Their names, by number.
    pub const NAMES: [&str; 16] = [
        "cap_hit",
        "read_latency",
        "write_latency",
        "metadata_latency",
        "dentry_lease",
        "opened_files",
        "pinned_icaps",
        "opened_inodes",
        "read_io_sizes",
        "write_io_sizes",
        "avg_read_latency",
        "stdev_read_latency",
        "avg_write_latency",
        "stdev_write_latency",
        "avg_metadata_latency",
        "stdev_metadata_latency",
    ];
}

/// A number of items in seven bits for each byte, the lowest first; the high bit says that there
/// are more (Ceph: `denc_varint`).
fn encode_count(mut count: usize, out: &mut BytesMut) {
    while count > 0x7f {
        out.put_u8(count as u8 | 0x80);
        count >>= 7;
    }
    out.put_u8(count as u8);
}

/// Items that are counted like that. Each takes bytes, so that a large number ends with them.
fn decode_counted<T: Decode>(r: &mut Reader, what: &'static str) -> denc::Result<Vec<T>> {
    let (mut count, mut shift) = (0u64, 0);
    loop {
        let byte: u8 = r.get()?;
        count |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
        shift += 7;
        if shift > 28 {
            return Err(DecodeError::Invalid { what, found: count });
        }
    }
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(r.get()?);
    }
    Ok(items)
}

fn encode_counted<T: Encode>(items: &[T], out: &mut BytesMut, f: Features) {
    encode_count(items.len(), out);
    items.iter().for_each(|item| item.encode(out, f));
}

impl Encode for ClientQuery {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 1, 1, |out| {
            encode_counted(&self.keys, out, f);
            encode_counted(&self.counters, out, f);
        });
    }
}

impl Decode for ClientQuery {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (_, mut r) = r.envelope("MDSPerfMetricQuery", 1)?;
        let keys = decode_counted(&mut r, "keys of a query")?;
        Ok(ClientQuery { keys, counters: decode_counted(&mut r, "counters of a query")? })
    }
}

/// The key of a row: for each part the texts that its groups matched.
pub type ClientKey = Vec<Vec<String>>;

/// The answer to one question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientRows {
    /// The counters that the rows have, in this order.
    pub counters: Vec<ClientCounter>,
    /// The rows: two numbers for each counter.
    pub rows: BTreeMap<ClientKey, Bytes>,
}

impl ClientRows {
    /// A row's bytes.
    pub fn row(values: &[(u64, u64)]) -> Bytes {
        let mut out = BytesMut::with_capacity(16 * values.len());
        values.iter().for_each(|v| v.encode(&mut out, Features::ALL));
        out.freeze()
    }

    /// Reads a row: its values by the numbers of their counters. Those of unknown numbers are left
    /// out, those that the row does not have are 0.
    pub fn values(&self, row: &Bytes) -> denc::Result<[(u64, u64); ClientCounter::NAMES.len()]> {
        let mut values = [(0, 0); ClientCounter::NAMES.len()];
        let mut r = Reader::new(row.clone());
        for ClientCounter(number) in &self.counters {
            let value = r.get()?;
            if let Some(kept) = values.get_mut(usize::from(*number)) {
                *kept = value;
            }
        }
        Ok(values)
    }
}

impl Encode for ClientRows {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 1, 1, |out| {
            encode_counted(&self.counters, out, f);
            self.rows.encode(out, f);
        });
    }
}

impl Decode for ClientRows {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (_, mut r) = r.envelope("MDSPerfMetrics", 1)?;
        let counters = decode_counted(&mut r, "counters of an answer")?;
        Ok(ClientRows { counters, rows: r.get()? })
    }
}

/// What a metadata server says of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ClientReport {
    /// The answers.
    pub answers: BTreeMap<ClientQuery, ClientRows>,
    /// Ranks of which rank 0 has heard nothing for a while. Ranks of Siphon report themselves.
    pub delayed: BTreeSet<i32>,
}

/// Queries, each without the limits that a stock mgr may have for it.
type Limited = BTreeMap<ClientQuery, Skipped>;

/// A set of limits, which nothing asks for.
#[derive(Default)]
struct Skipped;

impl Encode for Skipped {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        0u32.encode(out, f);
    }
}

impl Decode for Skipped {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        for _ in 0..r.get::<u32>()? {
            r.envelope("MDSPerfMetricLimit", u8::MAX)?;
        }
        Ok(Skipped)
    }
}

type Queries = BTreeSet<ClientQuery>;

pub(crate) fn encode_queries(queries: Option<&Queries>, out: &mut BytesMut, f: Features) {
    queries.is_some().encode(out, f);
    let Some(queries) = queries else { return };
    ABOUT_CLIENTS.encode(out, f);
    let limited: Limited = queries.iter().map(|q| (q.clone(), Skipped)).collect();
    envelope(out, 1, 1, |out| limited.encode(out, f));
}

/// Nothing if the configuration is about something else.
pub(crate) fn decode_queries(r: &mut Reader) -> denc::Result<Option<Queries>> {
    if !r.get::<bool>()? || r.get::<u32>()? != ABOUT_CLIENTS {
        return Ok(None);
    }
    let (_, mut r) = r.envelope("MDSConfigPayload", 1)?;
    Ok(Some(r.get::<Limited>()?.into_keys().collect()))
}

pub(crate) fn encode_report(report: Option<&ClientReport>, out: &mut BytesMut, f: Features) {
    report.is_some().encode(out, f);
    let Some(report) = report else { return };
    ABOUT_CLIENTS.encode(out, f);
    envelope(out, 1, 1, |out| report.encode(out, f));
}

/// Nothing if the report is about something else.
pub(crate) fn decode_report(r: &mut Reader) -> denc::Result<Option<ClientReport>> {
    if !r.get::<bool>()? || r.get::<u32>()? != ABOUT_CLIENTS {
        return Ok(None);
    }
    let (_, mut r) = r.envelope("MDSMetricPayload", 1)?;
    Ok(Some(r.get()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_take_seven_bits_of_a_byte() {
        for (count, bytes) in [(0, &[0][..]), (16, &[16]), (127, &[127]), (300, &[0xac, 2])] {
            let mut out = BytesMut::new();
            encode_count(count, &mut out);
            assert_eq!(&out[..], bytes);
        }
    }

    #[test]
    fn a_forged_count_ends_with_the_bytes() {
        // 268 million items in five bytes.
        let bytes = |b: &[u8]| Bytes::copy_from_slice(b);
        let mut many = Reader::new(bytes(&[0xff, 0xff, 0xff, 0x7f, 0]));
        assert!(decode_counted::<ClientCounter>(&mut many, "items").is_err());
        let mut endless = Reader::new(bytes(&[0xff; 16]));
        assert!(decode_counted::<ClientCounter>(&mut endless, "items").is_err());
    }

    #[test]
    fn rows_are_read_by_the_numbers_of_their_counters() {
        let rows = |counters: &[u8]| ClientRows {
            counters: counters.iter().copied().map(ClientCounter).collect(),
            ..ClientRows::default()
        };
        let row = ClientRows::row(&[(1, 2), (3, 4), (5, 6)]);
        // A number that a later release may have is left out.
        let values = rows(&[9, 200, 0]).values(&row).unwrap();
        assert_eq!((values[0], values[9], values[1]), ((5, 6), (1, 2), (0, 0)));
        assert!(rows(&[0, 1, 2, 3]).values(&row).is_err(), "a row that is too short");
    }

    #[test]
    fn what_is_about_something_else_is_skipped() {
        let mut out = BytesMut::new();
        true.encode(&mut out, Features::ALL);
        7u32.encode(&mut out, Features::ALL);
        let bytes = out.freeze();
        assert_eq!(decode_queries(&mut Reader::new(bytes.clone())), Ok(None));
        assert_eq!(decode_report(&mut Reader::new(bytes)), Ok(None));
    }
}
