//! Snapshots as clients and objects see them.

use crate::dump::Dump;
use crate::{IntervalSet, SnapId};
use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The snapshots that a write must preserve, newest first (Ceph: `SnapContext`,
/// `common/snap_types.h`; plain).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
pub struct SnapContext {
    /// The newest snapshot that the writer knows of.
    pub seq: SnapId,
    /// Existing snapshots, descending.
    pub snaps: Vec<SnapId>,
}

impl SnapContext {
    /// Whether the numbers are in range, descending and none is above `seq`.
    pub fn is_valid(&self) -> bool {
        self.seq <= SnapId::MAX
            && self.snaps.first().is_none_or(|&newest| newest <= self.seq)
            && self.snaps.windows(2).all(|pair| pair[1] < pair[0] && pair[0].0 > 0)
    }
}

impl Dump for SnapContext {
    fn dump(&self) -> Value {
        json!({"seq": self.seq, "snaps": self.snaps})
    }
}

/// An object's clones, kept with its head (Ceph: `SnapSet`, `osd/osd_types.h`, version 3, compat
/// 2).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SnapSet {
    /// Newest snapshot that any write knew.
    pub seq: SnapId,
    /// Snapshots of the last write, descending; only readers before Octopus look at them.
    pub snaps: Vec<SnapId>,
    /// Clones, ascending. Each has an entry in the three maps.
    pub clones: Vec<SnapId>,
    /// What the next newer version still shares with a clone.
    pub clone_overlap: BTreeMap<SnapId, IntervalSet>,
    /// Size of a clone.
    pub clone_size: BTreeMap<SnapId, u64>,
    /// Snapshots that a clone stands for, descending.
    pub clone_snaps: BTreeMap<SnapId, Vec<SnapId>>,
}

impl SnapSet {
    /// Bytes that a clone takes by itself (Ceph: `get_clone_bytes`).
    pub fn clone_bytes(&self, clone: SnapId) -> u64 {
        let size = self.clone_size.get(&clone).copied().unwrap_or(0);
        let shared = self.clone_overlap.get(&clone).map_or(0, IntervalSet::size);
        size.saturating_sub(shared)
    }

    /// The snapshots at or before `as_of` that clones stand for (Ceph: `get_ssc_as_of`).
    pub fn context_as_of(&self, as_of: SnapId) -> SnapContext {
        let snaps = self.clone_snaps.values().rev().flatten().copied();
        SnapContext { seq: as_of, snaps: snaps.filter(|&s| s <= as_of).collect() }
    }
}

impl Encode for SnapSet {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 3, 2, |out| {
            self.seq.encode(out, f);
            // The head exists, always.
            true.encode(out, f);
            self.snaps.encode(out, f);
            self.clones.encode(out, f);
            self.clone_overlap.encode(out, f);
            self.clone_size.encode(out, f);
            self.clone_snaps.encode(out, f);
        });
    }
}
impl Decode for SnapSet {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("SnapSet", 3)?;
        if struct_v < 2 {
            return Err(DecodeError::TooOld { what: "SnapSet", struct_v, oldest: 2 });
        }
        let seq = r.get()?;
        r.skip("SnapSet head_exists", 1)?;
        Ok(SnapSet {
            seq,
            snaps: r.get()?,
            clones: r.get()?,
            clone_overlap: r.get()?,
            clone_size: r.get()?,
            clone_snaps: if struct_v >= 3 { r.get()? } else { BTreeMap::new() },
        })
    }
}
impl Dump for SnapSet {
    fn dump(&self) -> Value {
        let clone = |snap: &SnapId| {
            let mut map = Map::new();
            map.insert("snap".into(), (*snap).into());
            map.insert(
                "size".into(),
                self.clone_size.get(snap).map_or(json!("????"), |n| json!(n)),
            );
            let overlap = self.clone_overlap.get(snap).map(|set| {
                let ranges: Vec<String> = set.iter().map(|(s, l)| format!("{s}~{l}")).collect();
                format!("[{}]", ranges.join(","))
            });
            map.insert("overlap".into(), overlap.unwrap_or_else(|| "????".into()).into());
            if let Some(snaps) = self.clone_snaps.get(snap) {
                map.insert("snaps".into(), json!(snaps));
            }
            Value::Object(map)
        };
        json!({"seq": self.seq, "clones": self.clones.iter().map(clone).collect::<Vec<_>>()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity() {
        let context = |seq, snaps: &[u64]| SnapContext {
            seq: SnapId(seq),
            snaps: snaps.iter().copied().map(SnapId).collect(),
        };
        assert!(context(0, &[]).is_valid());
        assert!(context(20, &[18, 3, 1]).is_valid());
        assert!(!context(17, &[18]).is_valid());
        assert!(!context(20, &[3, 3]).is_valid());
        assert!(!context(20, &[1, 3]).is_valid());
        assert!(!context(u64::MAX, &[]).is_valid());
    }

    #[test]
    fn a_snap_set_knows_its_clones() {
        let set = SnapSet {
            seq: SnapId(20),
            clones: vec![SnapId(4), SnapId(10)],
            clone_size: [(SnapId(4), 100), (SnapId(10), 50)].into(),
            clone_overlap: [
                (SnapId(4), [(0, 30)].into_iter().collect()),
                (SnapId(10), IntervalSet::new()),
            ]
            .into(),
            clone_snaps: [(SnapId(4), vec![SnapId(4), SnapId(2)]), (SnapId(10), vec![SnapId(10)])]
                .into(),
            ..Default::default()
        };
        assert_eq!(
            (set.clone_bytes(SnapId(4)), set.clone_bytes(SnapId(10)), set.clone_bytes(SnapId(5))),
            (70, 50, 0)
        );
        assert_eq!(set.context_as_of(SnapId(5)).snaps, [SnapId(4), SnapId(2)]);
        assert_eq!(SnapSet::from_bytes(&set.to_bytes(Features::ALL)).unwrap(), set);
    }
}
