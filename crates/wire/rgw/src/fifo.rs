//! A queue over several objects: one that says which parts there are, and parts with entries.
//! Gateways keep the log of changed buckets in it.

use crate::open_enum;
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::Utime;

/// A version of the queue (Ceph: `rados::cls::fifo::objv`, `cls/fifo/cls_fifo_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Objv {
    /// Tells it from other queues that had the name.
    pub instance: Bytes,
    /// Counts its changes.
    pub ver: u64,
}

/// Sizes (Ceph: `rados::cls::fifo::data_params`, `cls/fifo/cls_fifo_types.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct DataParams {
    /// Bytes of a part at most.
    pub max_part_size: u64,
    /// Bytes of an entry at most.
    pub max_entry_size: u64,
    /// From more bytes than these on a part is full.
    pub full_size_threshold: u64,
}

open_enum! {
    /// What is being done to a part (Ceph: `rados::cls::fifo::journal_entry::Op`).
    JournalOp(i32) {
        /// Not known.
        UNKNOWN = 0,
        /// It is being made.
        CREATE = 1,
        /// It becomes the one that takes entries.
        SET_HEAD = 2,
        /// It is being removed.
        REMOVE = 3,
    }
}

/// A change of the parts that is under way (Ceph: `rados::cls::fifo::journal_entry`,
/// `cls/fifo/cls_fifo_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct JournalEntry {
    /// What is being done.
    pub op: JournalOp,
    /// To which part.
    pub part_num: i64,
    /// That part's tag.
    pub part_tag: Bytes,
}

/// Changes by part, in order of part and of coming.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal(Vec<(i64, JournalEntry)>);

impl Journal {
    /// Adds a change; `false` if the first one of its part does the same.
    pub fn add(&mut self, entry: JournalEntry) -> bool {
        let part = entry.part_num;
        let first = self.0.partition_point(|(p, _)| *p < part);
        if self.0.get(first).is_some_and(|(p, e)| *p == part && e.op == entry.op) {
            return false;
        }
        let at = self.0.partition_point(|(p, _)| *p <= part);
        self.0.insert(at, (part, entry));
        true
    }

    /// Removes the changes of a part.
    pub fn remove(&mut self, part: i64) {
        self.0.retain(|(p, _)| *p != part);
    }
}

impl Encode for Journal {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.0.encode(out, f);
    }
}

impl Decode for Journal {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let mut entries: Vec<(i64, JournalEntry)> = r.get()?;
        entries.sort_by_key(|(part, _)| *part);
        Ok(Journal(entries))
    }
}

/// The queue (Ceph: `rados::cls::fifo::info`, `cls/fifo/cls_fifo_types.h`, version 1).
#[derive(Clone, Debug, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct FifoInfo {
    /// Its name.
    pub id: Bytes,
    /// Its version.
    pub version: Objv,
    /// How its parts' names begin.
    pub oid_prefix: Bytes,
    /// Sizes.
    pub params: DataParams,
    /// The oldest part.
    pub tail_part_num: i64,
    /// The part that takes entries, -1 if there is none.
    pub head_part_num: i64,
    /// No older part may take entries.
    pub min_push_part_num: i64,
    /// The newest part that was made.
    pub max_push_part_num: i64,
    /// Tags of parts that are not the head yet.
    pub tags: BTreeMap<i64, Bytes>,
    /// The head's tag.
    pub head_tag: Bytes,
    /// Changes under way.
    pub journal: Journal,
}

impl Default for FifoInfo {
    fn default() -> Self {
        FifoInfo {
            id: Bytes::new(),
            version: Objv::default(),
            oid_prefix: Bytes::new(),
            params: DataParams::default(),
            tail_part_num: 0,
            head_part_num: -1,
            min_push_part_num: 0,
            max_push_part_num: -1,
            tags: BTreeMap::new(),
            head_tag: Bytes::new(),
            journal: Journal::default(),
        }
    }
}

/// A part (Ceph: `rados::cls::fifo::part_header`, `cls/fifo/cls_fifo_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct PartHeader {
    /// Its tag, which those that write to it name.
    pub tag: Bytes,
    /// Sizes.
    pub params: DataParams,
    /// How its entries begin.
    pub magic: u64,
    /// Where its oldest entry is.
    pub min_ofs: u64,
    /// Where its newest entry is.
    pub last_ofs: u64,
    /// Where its next entry goes.
    pub next_ofs: u64,
    /// The oldest entry's number.
    pub min_index: u64,
    /// The next entry's number.
    pub max_index: u64,
    /// When the newest entry came.
    pub max_time: Utime,
}

/// Input of `create_meta` (Ceph: `rados::cls::fifo::op::create_meta`, `cls/fifo/cls_fifo_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CreateMetaOp {
    /// The queue's name.
    pub id: Bytes,
    /// Its version.
    pub version: Option<Objv>,
    /// Not looked at.
    pub pool_name: Bytes,
    /// Not looked at.
    pub pool_ns: Bytes,
    /// How its parts' names begin.
    pub oid_prefix: Option<Bytes>,
    /// Bytes of a part at most.
    pub max_part_size: u64,
    /// Bytes of an entry at most.
    pub max_entry_size: u64,
    /// Fail if there is an object.
    pub exclusive: bool,
}

/// Input of `get_meta` (Ceph: `rados::cls::fifo::op::get_meta`, `cls/fifo/cls_fifo_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GetMetaOp {
    /// Fail if the queue has another version.
    pub version: Option<Objv>,
}

/// Output of `get_meta` (Ceph: `rados::cls::fifo::op::get_meta_reply`, `cls/fifo/cls_fifo_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GetMetaRet {
    /// The queue.
    pub info: FifoInfo,
    /// Bytes in front of a part's entries.
    pub part_header_size: u32,
    /// Bytes in front of an entry.
    pub part_entry_overhead: u32,
}

/// Input of `update_meta` (Ceph: `rados::cls::fifo::op::update_meta`, `cls/fifo/cls_fifo_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct UpdateMetaOp {
    /// Fail if the queue has another version.
    pub version: Objv,
    /// See [`FifoInfo`].
    pub tail_part_num: Option<u64>,
    /// See [`FifoInfo`].
    pub head_part_num: Option<u64>,
    /// See [`FifoInfo`].
    pub min_push_part_num: Option<u64>,
    /// See [`FifoInfo`].
    pub max_push_part_num: Option<u64>,
    /// Changes that begin.
    pub journal_entries_add: Vec<JournalEntry>,
    /// Changes that are done.
    pub journal_entries_rm: Vec<JournalEntry>,
}

/// Input of `init_part` (Ceph: `rados::cls::fifo::op::init_part`, `cls/fifo/cls_fifo_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct InitPartOp {
    /// The part's tag.
    pub tag: Bytes,
    /// Sizes.
    pub params: DataParams,
}

/// Input of `push_part` (Ceph: `rados::cls::fifo::op::push_part`, `cls/fifo/cls_fifo_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct PushPartOp {
    /// The part's tag.
    pub tag: Bytes,
    /// Entries.
    pub data: Vec<Bytes>,
    /// Bytes of all of them.
    pub total_len: u64,
}

/// Input of `trim_part` (Ceph: `rados::cls::fifo::op::trim_part`, `cls/fifo/cls_fifo_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct TrimPartOp {
    /// Fail if the part has another tag.
    pub tag: Option<Bytes>,
    /// Up to the entry here, inclusive.
    pub ofs: u64,
    /// Not inclusive.
    pub exclusive: bool,
}

/// Input of `part_list` (Ceph: `rados::cls::fifo::op::list_part`, `cls/fifo/cls_fifo_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ListPartOp {
    /// Fail if the part has another tag.
    pub tag: Option<Bytes>,
    /// After the entry here.
    pub ofs: u64,
    /// At most so many.
    pub max_entries: i32,
}

/// An entry (Ceph: `rados::cls::fifo::part_list_entry`, `cls/fifo/cls_fifo_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct PartEntry {
    /// Its bytes.
    pub data: Bytes,
    /// Where it is.
    pub ofs: u64,
    /// When it came.
    pub mtime: Utime,
}

/// Output of `part_list` (Ceph: `rados::cls::fifo::op::list_part_reply`,
/// `cls/fifo/cls_fifo_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ListPartRet {
    /// The part's tag.
    pub tag: Bytes,
    /// In order.
    pub entries: Vec<PartEntry>,
    /// There is more.
    pub more: bool,
    /// The part takes no more.
    pub full_part: bool,
}

/// Input of `get_part_info` (Ceph: `rados::cls::fifo::op::get_part_info`,
/// `cls/fifo/cls_fifo_ops.h`, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GetPartInfoOp {}

/// Output of `get_part_info` (Ceph: `rados::cls::fifo::op::get_part_info_reply`,
/// `cls/fifo/cls_fifo_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct PartInfoRet {
    /// The part.
    pub header: PartHeader,
}
