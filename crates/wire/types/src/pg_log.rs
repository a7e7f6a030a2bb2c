//! The log of a placement group.

use crate::dump::{Dump, shown};
use crate::entity::ReqId;
use crate::object::ObjectId;
use crate::{Eversion, IntervalSet, SnapId, Utime};
use bytes::{Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// What a log entry did (Ceph: `pg_log_entry_t::MODIFY` and so on).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Denc)]
pub struct LogOp(pub i32);

impl LogOp {
    /// Changed an object.
    pub const MODIFY: LogOp = LogOp(1);
    /// Made a clone of the head.
    pub const CLONE: LogOp = LogOp(2);
    /// Deleted an object.
    pub const DELETE: LogOp = LogOp(3);
    /// Lost the newest version and went back to an older one.
    pub const LOST_REVERT: LogOp = LogOp(5);
    /// Lost the object and gave it up.
    pub const LOST_DELETE: LogOp = LogOp(6);
    /// Lost the newest version; reads fail.
    pub const LOST_MARK: LogOp = LogOp(7);
    /// Promoted from another tier.
    pub const PROMOTE: LogOp = LogOp(8);
    /// Marked clean.
    pub const CLEAN: LogOp = LogOp(9);
    /// A write that failed, remembered to answer it the same way again.
    pub const ERROR: LogOp = LogOp(10);

    /// Ceph's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::MODIFY => "modify",
            Self::PROMOTE => "promote",
            Self::CLONE => "clone",
            Self::DELETE => "delete",
            Self::LOST_REVERT => "l_revert",
            Self::LOST_DELETE => "l_delete",
            Self::LOST_MARK => "l_mark",
            Self::CLEAN => "clean",
            Self::ERROR => "error",
            _ => "unknown",
        }
    }

    /// Whether an object exists after it.
    pub fn is_update(self) -> bool {
        matches!(
            self,
            Self::CLONE
                | Self::MODIFY
                | Self::PROMOTE
                | Self::CLEAN
                | Self::LOST_REVERT
                | Self::LOST_MARK
        )
    }

    /// Whether the object is gone after it.
    pub fn is_delete(self) -> bool {
        matches!(self, Self::DELETE | Self::LOST_DELETE)
    }

    /// Whether it only remembers a failure.
    pub fn is_error(self) -> bool {
        self == Self::ERROR
    }
}

impl fmt::Display for LogOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How an entry can be undone on the spot (Ceph: `ObjectModDesc`). We never do, so its instructions
/// are opaque.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModDesc {
    /// Version of the envelope, which depends on the instructions.
    pub required_version: u8,
    /// Whether it can.
    pub can_local_rollback: bool,
    /// Whether the instructions are complete.
    pub rollback_info_completed: bool,
    /// The instructions.
    pub ops: Bytes,
}

impl Default for ModDesc {
    fn default() -> Self {
        ModDesc {
            required_version: 1,
            can_local_rollback: true,
            rollback_info_completed: false,
            ops: Bytes::new(),
        }
    }
}

impl ModDesc {
    /// An entry that cannot be undone on the spot, as all of ours.
    pub fn unrollbackable() -> Self {
        ModDesc { can_local_rollback: false, ..Self::default() }
    }
}

impl Encode for ModDesc {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, self.required_version, self.required_version, |out| {
            self.can_local_rollback.encode(out, f);
            self.rollback_info_completed.encode(out, f);
            self.ops.encode(out, f);
        });
    }
}
impl Decode for ModDesc {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("ObjectModDesc", 2)?;
        Ok(ModDesc {
            // A later writer that still claims compatibility wrote nothing that needs more.
            required_version: struct_v.clamp(1, 2),
            can_local_rollback: r.get()?,
            rollback_info_completed: r.get()?,
            ops: Bytes::copy_from_slice(&r.get::<Bytes>()?),
        })
    }
}

/// What an entry left as it was, so that recovery need not copy it (Ceph: `ObjectCleanRegions`,
/// version 1).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CleanRegions {
    /// Data that did not change.
    pub clean_offsets: IntervalSet,
    /// The omap did not change.
    pub clean_omap: bool,
    /// The object is new.
    pub new_object: bool,
}

/// How many ranges are kept; beyond, the shortest are taken for changed (Ceph's default).
const CLEAN_RANGES_MAX: usize = 10;

impl Default for CleanRegions {
    /// Nothing changed.
    fn default() -> Self {
        CleanRegions {
            clean_offsets: [(0, u64::MAX)].into_iter().collect(),
            clean_omap: true,
            new_object: false,
        }
    }
}

impl CleanRegions {
    /// Everything changed.
    pub fn all_dirty() -> Self {
        CleanRegions { clean_offsets: IntervalSet::new(), clean_omap: false, new_object: true }
    }

    /// Notes that data changed.
    pub fn mark_data_dirty(&mut self, offset: u64, len: u64) {
        self.clean_offsets.remove(offset, len);
        while self.clean_offsets.range_count() > CLEAN_RANGES_MAX {
            let Some((start, len)) = self.clean_offsets.iter().min_by_key(|&(_, len)| len) else {
                break;
            };
            self.clean_offsets.remove(start, len);
        }
    }

    /// Takes in the changes of a later entry.
    pub fn merge(&mut self, later: &CleanRegions) {
        self.clean_offsets = self.clean_offsets.intersection(&later.clean_offsets);
        self.clean_omap &= later.clean_omap;
        self.new_object |= later.new_object;
        self.mark_data_dirty(0, 0);
    }

    /// Ranges that changed.
    pub fn dirty_ranges(&self) -> IntervalSet {
        let mut dirty: IntervalSet = [(0, u64::MAX)].into_iter().collect();
        dirty.subtract(&self.clean_offsets);
        dirty
    }
}

impl Dump for CleanRegions {
    fn dump(&self) -> Value {
        // Offsets are shown in decimal, unlike snapshots.
        let ranges: Vec<String> =
            self.clean_offsets.iter().map(|(s, l)| format!("{s}~{l}")).collect();
        json!({"object_clean_regions": {
            "clean_offsets": format!("[{}]", ranges.join(",")),
            "clean_omap": self.clean_omap,
            "new_object": self.new_object,
        }})
    }
}

/// Result and output of one operation, kept to answer a resent request (Ceph:
/// `pg_log_op_return_item_t`, plain).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
pub struct OpReturn {
    /// Result.
    pub rval: i32,
    /// Output.
    pub data: Bytes,
}

impl Dump for OpReturn {
    fn dump(&self) -> Value {
        json!({"rval": self.rval, "bl_length": self.data.len()})
    }
}

/// An entry of a group's log (Ceph: `pg_log_entry_t`, version 14, compat 4).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PgLogEntry {
    /// What was done.
    pub op: LogOp,
    /// To which object.
    pub soid: ObjectId,
    /// This entry's version.
    pub version: Eversion,
    /// The object's version before; zero if it was not there.
    pub prior_version: Eversion,
    /// For [`LogOp::LOST_REVERT`]: the version that is back.
    pub reverting_to: Eversion,
    /// The version that the client was told.
    pub user_version: u64,
    /// The request.
    pub reqid: ReqId,
    /// Further requests that this entry answers, with their user versions.
    pub extra_reqids: Vec<(ReqId, u64)>,
    /// Errors of those, by index.
    pub extra_reqid_return_codes: BTreeMap<u32, i32>,
    /// The client's time.
    pub mtime: Utime,
    /// What the client was answered.
    pub return_code: i32,
    /// What each operation was answered, if the client asked for it.
    pub op_returns: Vec<OpReturn>,
    /// For clones: their snapshots, as an encoded list.
    pub snaps: Bytes,
    /// How to undo it.
    pub mod_desc: ModDesc,
    /// What it left as it was.
    pub clean_regions: CleanRegions,
}

impl PgLogEntry {
    /// The snapshots of a clone.
    pub fn snap_list(&self) -> Result<Vec<SnapId>> {
        match self.snaps.is_empty() {
            true => Ok(Vec::new()),
            false => Vec::from_bytes(&self.snaps),
        }
    }

    /// Whether the entry's request is to be found when it is sent again.
    pub fn reqid_is_indexed(&self) -> bool {
        self.reqid != ReqId::default()
            && matches!(self.op, LogOp::MODIFY | LogOp::DELETE | LogOp::ERROR)
    }
}

impl Encode for PgLogEntry {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let reverts = self.op == LogOp::LOST_REVERT;
        envelope(out, 14, 4, |out| {
            self.op.encode(out, f);
            self.soid.encode(out, f);
            self.version.encode(out, f);
            // The version to go back to stands where old readers look for the prior one.
            if reverts { &self.reverting_to } else { &self.prior_version }.encode(out, f);
            self.reqid.encode(out, f);
            self.mtime.encode(out, f);
            if reverts {
                self.prior_version.encode(out, f);
            }
            self.snaps.encode(out, f);
            self.user_version.encode(out, f);
            self.mod_desc.encode(out, f);
            self.extra_reqids.encode(out, f);
            if self.op.is_error() {
                self.return_code.encode(out, f);
            }
            if !self.extra_reqids.is_empty() {
                self.extra_reqid_return_codes.encode(out, f);
            }
            self.clean_regions.encode(out, f);
            if !self.op.is_error() {
                self.return_code.encode(out, f);
            }
            self.op_returns.encode(out, f);
        });
    }
}
impl Decode for PgLogEntry {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("pg_log_entry_t", 14)?;
        if struct_v < 11 {
            return Err(DecodeError::TooOld { what: "pg_log_entry_t", struct_v, oldest: 11 });
        }
        let mut e = PgLogEntry { op: r.get()?, ..Default::default() };
        let reverts = e.op == LogOp::LOST_REVERT;
        e.soid = r.get::<ObjectId>()?.detached();
        e.version = r.get()?;
        match reverts {
            true => e.reverting_to = r.get()?,
            false => e.prior_version = r.get()?,
        }
        e.reqid = r.get()?;
        e.mtime = r.get()?;
        if reverts {
            e.prior_version = r.get()?;
        }
        e.snaps = Bytes::copy_from_slice(&r.get::<Bytes>()?);
        e.user_version = r.get()?;
        e.mod_desc = r.get()?;
        e.extra_reqids = r.get()?;
        if e.op.is_error() {
            e.return_code = r.get()?;
        }
        if struct_v >= 12 && !e.extra_reqids.is_empty() {
            e.extra_reqid_return_codes = r.get()?;
        }
        e.clean_regions = if struct_v >= 13 { r.get()? } else { CleanRegions::all_dirty() };
        if struct_v >= 14 {
            if !e.op.is_error() {
                e.return_code = r.get()?;
            }
            e.op_returns = r.get()?;
            for item in &mut e.op_returns {
                item.data = Bytes::copy_from_slice(&item.data);
            }
        }
        Ok(e)
    }
}

pub(crate) fn dump_reqids(reqids: &[(ReqId, u64)], codes: &BTreeMap<u32, i32>) -> Value {
    let one = |(i, (reqid, version)): (usize, &(ReqId, u64))| {
        let mut map = Map::new();
        map.insert("reqid".into(), shown(reqid));
        map.insert("user_version".into(), shown(version));
        if let Some(code) = u32::try_from(i).ok().and_then(|i| codes.get(&i)) {
            map.insert("return_code".into(), (*code).into());
        }
        Value::Object(map)
    };
    Value::Array(reqids.iter().enumerate().map(one).collect())
}

impl Dump for PgLogEntry {
    fn dump(&self) -> Value {
        let mut map = Map::new();
        let mut put = |name: &str, value: Value| map.insert(name.to_owned(), value);
        put("op", self.op.name().into());
        put("object", shown(&self.soid));
        put("version", shown(self.version));
        put("prior_version", shown(self.prior_version));
        put("reqid", shown(self.reqid));
        put("extra_reqids", dump_reqids(&self.extra_reqids, &self.extra_reqid_return_codes));
        put("mtime", shown(self.mtime));
        put("return_code", self.return_code.into());
        if !self.op_returns.is_empty() {
            put("op_returns", crate::dump::list(&self.op_returns));
        }
        if !self.snaps.is_empty() {
            put("snaps", json!(self.snap_list().unwrap_or_default()));
        }
        put(
            "mod_desc",
            json!({"object_mod_desc": {
                "can_local_rollback": self.mod_desc.can_local_rollback,
                "rollback_info_completed": self.mod_desc.rollback_info_completed,
                "ops": [],
            }}),
        );
        put("clean_regions", self.clean_regions.dump());
        Value::Object(map)
    }
}

/// A request older than the log, remembered to answer it when it is sent again (Ceph:
/// `pg_log_dup_t`, version 2, compat 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 1)]
pub struct PgLogDup {
    /// The request.
    pub reqid: ReqId,
    /// Version of the entry that it had.
    pub version: Eversion,
    /// The version that the client was told.
    pub user_version: u64,
    /// What the client was answered.
    pub return_code: i32,
    /// What each operation was answered.
    #[denc(since = 2)]
    pub op_returns: Vec<OpReturn>,
}

impl Dump for PgLogDup {
    fn dump(&self) -> Value {
        let mut value = json!({
            "reqid": shown(self.reqid),
            "version": shown(self.version),
            "user_version": shown(self.user_version),
            "return_code": shown(self.return_code),
        });
        if let (Some(map), false) = (value.as_object_mut(), self.op_returns.is_empty()) {
            map.insert("op_returns".into(), crate::dump::list(&self.op_returns));
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epoch, PoolId};

    fn entry(op: LogOp) -> PgLogEntry {
        PgLogEntry {
            op,
            soid: ObjectId::new(PoolId(1), "", "foo", "", SnapId::NOSNAP),
            version: Eversion::new(Epoch(5), 7),
            prior_version: Eversion::new(Epoch(4), 6),
            user_version: 7,
            return_code: -2,
            ..Default::default()
        }
    }

    #[test]
    fn entries_of_each_kind_come_back() {
        let mut lost = entry(LogOp::LOST_REVERT);
        lost.reverting_to = Eversion::new(Epoch(1), 1);
        let mut extra = entry(LogOp::MODIFY);
        extra.extra_reqids = vec![(ReqId { tid: 9, ..Default::default() }, 3)];
        extra.extra_reqid_return_codes = [(0, -17)].into();
        extra.op_returns = vec![OpReturn { rval: 4, data: "out!".into() }];
        let mut clone = entry(LogOp::CLONE);
        clone.snaps = vec![SnapId(3), SnapId(1)].to_bytes(Features::ALL);
        for e in [entry(LogOp::ERROR), lost, extra, clone.clone()] {
            assert_eq!(PgLogEntry::from_bytes(&e.to_bytes(Features::ALL)).unwrap(), e);
        }
        assert_eq!(clone.snap_list().unwrap(), [SnapId(3), SnapId(1)]);
    }

    #[test]
    fn few_clean_ranges_are_kept() {
        let mut regions = CleanRegions::default();
        for i in 0..30 {
            regions.mark_data_dirty(i * 100 + 50, 10);
        }
        assert!(regions.clean_offsets.range_count() <= CLEAN_RANGES_MAX);
        for i in 0..30 {
            assert!(regions.dirty_ranges().contains(i * 100 + 55), "what changed stays dirty");
        }
        assert!(regions.clean_offsets.contains(10_000));
        let mut merged = CleanRegions::default();
        merged.merge(&CleanRegions::all_dirty());
        assert_eq!(merged, CleanRegions::all_dirty());
    }
}
