//! Snapshots as clients and objects see them.

use crate::SnapId;
use crate::dump::Dump;
use denc_derive::Denc;
use serde_json::{Value, json};

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
}
