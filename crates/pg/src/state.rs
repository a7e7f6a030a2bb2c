//! The state of a PG as operators see it.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// State bits of a PG (Ceph: `PG_STATE_*`, `src/osd/osd_types.h`, v16). Displayed as Ceph does, for
/// example `active+undersized+degraded`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PgState(pub u64);

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $text:literal;)*) => {
        impl PgState {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*
        }
        /// In the order in which Ceph prints them.
        const NAMES: &[(PgState, &str)] = &[$((PgState::$name, $text)),*];
    };
}

states! {
    /// The monitor heard nothing from the primary for long. Never set by the machine.
    STALE = 17, "stale";
    /// Being created.
    CREATING = 0, "creating";
    /// Serves clients.
    ACTIVE = 1, "active";
    /// Has agreed on a log, waits until the replicas are ready.
    ACTIVATING = 24, "activating";
    /// Every object is on every OSD where it should be.
    CLEAN = 2, "clean";
    /// Waits for a grant to recover.
    RECOVERY_WAIT = 22, "recovery_wait";
    /// Recovers objects.
    RECOVERING = 14, "recovering";
    /// Needs an OSD that is down.
    DOWN = 4, "down";
    /// An object has no reachable copy.
    RECOVERY_UNFOUND = 5, "recovery_unfound";
    /// Has fewer OSDs than the pool's size.
    UNDERSIZED = 23, "undersized";
    /// Has fewer copies of some objects than wanted.
    DEGRADED = 10, "degraded";
    /// The acting set is not what CRUSH chose, or an OSD that CRUSH chose cannot take part.
    REMAPPED = 18, "remapped";
    /// Is agreeing on who has what.
    PEERING = 12, "peering";
    /// No complete copy can be reached.
    INCOMPLETE = 16, "incomplete";
    /// Has agreed, but with fewer than `min_size` OSDs, so that it does not serve.
    PEERED = 25, "peered";
    /// Trims snapshots.
    SNAPTRIM = 26, "snaptrim";
    /// Has snapshots to trim, not started.
    SNAPTRIM_WAIT = 27, "snaptrim_wait";
}

impl PgState {
    /// Whether all bits of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for PgState {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for PgState {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Display for PgState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for &(bit, name) in NAMES {
            if self.has(bit) {
                if !first {
                    f.write_str("+")?;
                }
                f.write_str(name)?;
                first = false;
            }
        }
        if first { f.write_str("unknown") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_read_as_in_ceph() {
        let s = PgState::REMAPPED | PgState::DEGRADED | PgState::ACTIVE | PgState::UNDERSIZED;
        assert_eq!(s.to_string(), "active+undersized+degraded+remapped");
        assert_eq!((PgState::CLEAN | PgState::ACTIVE).to_string(), "active+clean");
        assert_eq!(PgState::default().to_string(), "unknown");
    }
}
