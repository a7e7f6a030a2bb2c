//! Buckets with lifecycle rules, and how far the work on them is.

use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;

/// How far the work on a shard is (Ceph: `cls_rgw_lc_obj_head`, `cls/rgw/cls_rgw_types.h`,
/// version 1 in 16.2, version 2 in 18.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LcHead {
    /// When it began, in seconds since 1970.
    pub start_date: u64,
    /// The bucket that was worked on last.
    pub marker: Bytes,
    /// When the shard began anew; 18.2 writes it, and version 1 has no room for it.
    pub shard_rollover_date: Option<u64>,
}

impl Encode for LcHead {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let version = if self.shard_rollover_date.is_some() { 2 } else { 1 };
        denc::envelope(out, version, if version == 2 { 2 } else { 1 }, |out| {
            self.start_date.encode(out, f);
            self.marker.encode(out, f);
            if let Some(date) = self.shard_rollover_date {
                date.encode(out, f);
            }
        });
    }
}

impl Decode for LcHead {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope("cls_rgw_lc_obj_head", 2)?;
        let (start_date, marker) = r.get()?;
        let shard_rollover_date = if v >= 2 { Some(r.get()?) } else { None };
        Ok(LcHead { start_date, marker, shard_rollover_date })
    }
}

/// A bucket (Ceph: `cls_rgw_lc_entry`, `cls/rgw/cls_rgw_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LcEntry {
    /// `TENANT:NAME:ID`.
    pub bucket: Bytes,
    /// When the work on it began, in seconds since 1970.
    pub start_time: u64,
    /// How far it is.
    pub status: u32,
}

/// Input of `lc_get_next_entry` and `lc_get_entry` (Ceph: `cls_rgw_lc_get_next_entry_op`,
/// `cls_rgw_lc_get_entry_op`, `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LcMarkerOp {
    /// After this bucket, or this bucket.
    pub marker: Bytes,
}

/// An entry as version 1 of these calls has it: bucket and status.
fn old_entry(r: &mut Reader) -> denc::Result<LcEntry> {
    let (bucket, status): (Bytes, i32) = r.get()?;
    Ok(LcEntry { bucket, start_time: 0, status: status as u32 })
}

/// Output of `lc_get_next_entry`, input of `lc_rm_entry` and `lc_set_entry` (Ceph:
/// `cls_rgw_lc_get_next_entry_ret`, `cls_rgw_lc_rm_entry_op`, `cls_rgw_lc_set_entry_op`,
/// `cls/rgw/cls_rgw_ops.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LcEntryOp {
    /// The bucket.
    pub entry: LcEntry,
}

impl Encode for LcEntryOp {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 2, 2, |out| self.entry.encode(out, f));
    }
}

impl Decode for LcEntryOp {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope("cls_rgw_lc_set_entry_op", 2)?;
        Ok(LcEntryOp { entry: if v < 2 { old_entry(&mut r)? } else { r.get()? } })
    }
}

/// Output of `lc_get_entry` (Ceph: `cls_rgw_lc_get_entry_ret`, `cls/rgw/cls_rgw_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LcGetEntryRet {
    /// The bucket.
    pub entry: LcEntry,
}

/// Input of `lc_put_head` and output of `lc_get_head` (Ceph: `cls_rgw_lc_put_head_op`,
/// `cls_rgw_lc_get_head_ret`, `cls/rgw/cls_rgw_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LcHeadOp {
    /// How far the work is.
    pub head: LcHead,
}

/// Input of `lc_list_entries` (Ceph: `cls_rgw_lc_list_entries_op`, `cls/rgw/cls_rgw_ops.h`,
/// version 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LcListEntriesOp {
    /// After this bucket.
    pub marker: Bytes,
    /// At most so many.
    pub max_entries: u32,
    /// The version that the client wrote, which the answer is to have.
    pub compat_v: u8,
}

impl Default for LcListEntriesOp {
    fn default() -> Self {
        LcListEntriesOp { marker: Bytes::new(), max_entries: 0, compat_v: 3 }
    }
}

impl Encode for LcListEntriesOp {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 3, 1, |out| {
            self.marker.encode(out, f);
            self.max_entries.encode(out, f);
        });
    }
}

impl Decode for LcListEntriesOp {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (compat_v, mut r) = r.envelope("cls_rgw_lc_list_entries_op", 3)?;
        Ok(LcListEntriesOp { marker: r.get()?, max_entries: r.get()?, compat_v })
    }
}

/// Output of `lc_list_entries` (Ceph: `cls_rgw_lc_list_entries_ret`, `cls/rgw/cls_rgw_ops.h`,
/// version 3; in versions 1 and 2 the entries are bucket and status).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LcListEntriesRet {
    /// In order.
    pub entries: Vec<LcEntry>,
    /// There is more.
    pub is_truncated: bool,
    /// The version that it is written as.
    pub compat_v: u8,
}

impl Encode for LcListEntriesRet {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, self.compat_v, 1, |out| {
            if self.compat_v <= 2 {
                let mut old: BTreeMap<&Bytes, i32> = BTreeMap::new();
                for e in &self.entries {
                    old.entry(&e.bucket).or_insert(e.status as i32);
                }
                old.encode(out, f);
            } else {
                self.entries.encode(out, f);
            }
            self.is_truncated.encode(out, f);
        });
    }
}

impl Decode for LcListEntriesRet {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope("cls_rgw_lc_list_entries_ret", 3)?;
        let entries = if v <= 2 {
            let old: BTreeMap<Bytes, i32> = r.get()?;
            let entry = |(bucket, status): (Bytes, i32)| LcEntry {
                bucket,
                start_time: 0,
                status: status as u32,
            };
            old.into_iter().map(entry).collect()
        } else {
            r.get()?
        };
        let is_truncated = if v >= 2 { r.get()? } else { false };
        Ok(LcListEntriesRet { entries, is_truncated, compat_v: v })
    }
}
