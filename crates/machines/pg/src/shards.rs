//! Which changes count where copies are shards of objects (erasure-coded pools).
//!
//! A log entry names the shards that it wrote, and only these have it. So a copy that lacks the
//! newest entries need not be behind, and an entry that some copies have may be on too few of them.
//! The rules are in `docs/decisions/0014-erasure-coding.md`; `tests/shards.rs` plays them through.

use ec::{Layout, Shard, ShardSet};
use types::Eversion;

/// The shards that an entry wrote, whether or not they were there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// The entry's version.
    pub version: Eversion,
    /// The shards.
    pub written: ShardSet,
}

/// How far a shard has the entries that name it. Entries come to a shard in their order, so that it
/// has all that name it up to the last one that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reached {
    /// Which shard.
    pub shard: Shard,
    /// The version of the newest entry that it has.
    pub last: Eversion,
}

/// The newest version up to which each of `members` has each entry that names it; `base` if that is
/// before the first entry. `entries` are all that any member has, in order and without those up to
/// `base`. It is at least what every member has reached: after a split a log ends at a version of
/// which the entry is in another PG, and logs of members may begin after the last entry that
/// stayed.
///
/// In peering, members are the surviving shards of the last interval that served, and the result is
/// the authoritative head: what is newer was not acknowledged, and is taken back. While serving,
/// members are the acting set, `last` is what is durable there, and the result is the version up to
/// which nothing can be taken back any more (`committed_to`).
pub fn complete_to(
    base: Eversion,
    entries: impl IntoIterator<Item = Named>,
    members: &[Reached],
) -> Eversion {
    let all = members.iter().map(|m| m.last).min();
    let mut complete = base.max(all.unwrap_or(base));
    for entry in entries {
        let lacks = |m: &Reached| entry.written.contains(m.shard) && m.last < entry.version;
        if members.iter().any(lacks) {
            break;
        }
        complete = complete.max(entry.version);
    }
    complete
}

/// Whether surviving shards of an interval that may have served know all that was written in it,
/// and have its content: any `k` of them, and one that has logs, object infos and omap. A hole is
/// no shard.
pub fn recoverable(layout: &Layout, survivors: ShardSet) -> bool {
    let survivors = survivors.and(layout.shards());
    survivors.len() >= layout.k() && leader(layout, survivors).is_some()
}

/// The shard that leads: the first of the acting ones that has all metadata.
pub fn leader(layout: &Layout, acting: ShardSet) -> Option<Shard> {
    acting.and(layout.primary_capable()).iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Epoch;

    fn v(version: u64) -> Eversion {
        Eversion { epoch: Epoch(1), version }
    }

    fn named(version: u64, written: &[Shard]) -> Named {
        Named { version: v(version), written: written.iter().copied().collect() }
    }

    fn reached(shard: Shard, last: u64) -> Reached {
        Reached { shard, last: v(last) }
    }

    #[test]
    fn an_entry_counts_if_each_member_that_it_names_has_it() {
        // 2+1: shards 0 and 2 are in every entry, shard 1 in some.
        let entries = [named(1, &[0, 1, 2]), named(2, &[0, 2]), named(3, &[0, 1, 2])];
        let head = |members: &[Reached]| complete_to(v(0), entries, members);
        // Shard 1 is not behind: nothing after its last entry names it.
        assert_eq!(head(&[reached(0, 2), reached(1, 1), reached(2, 2)]), v(2));
        assert_eq!(head(&[reached(0, 3), reached(1, 1), reached(2, 3)]), v(2));
        assert_eq!(head(&[reached(0, 3), reached(2, 1)]), v(1));
        // Only members are asked: shard 1 is a hole.
        assert_eq!(head(&[reached(0, 3), reached(2, 3)]), v(3));
        assert_eq!(head(&[reached(0, 0), reached(2, 3)]), v(0));
        assert_eq!(complete_to(v(7), [], &[reached(0, 7)]), v(7));
        // Entries 4 to 7 went to another PG when this one was split.
        let split = [named(9, &[0, 1, 2])];
        let members = [reached(0, 9), reached(1, 7), reached(2, 9)];
        assert_eq!(complete_to(v(3), split, &members), v(7));
    }

    #[test]
    fn survivors_need_k_shards_and_one_with_metadata() {
        let layout = Layout::new(4, 2, 4096).unwrap();
        let is = |shards: &[Shard]| recoverable(&layout, shards.iter().copied().collect());
        assert!(is(&[0, 1, 2, 3]) && is(&[1, 2, 3, 5]) && is(&[0, 1, 2, 3, 4, 5]));
        assert!(!is(&[0, 1, 2]) && !is(&[]) && !is(&[1, 2, 3]));
        // A number that no shard has is no shard.
        assert!(!is(&[0, 1, 2, 6]));
        let wide = Layout::new(2, 1, 4096).unwrap();
        assert!(!recoverable(&wide, ShardSet::one(1)));
        assert_eq!(leader(&layout, ShardSet::from_iter([1, 2, 3, 5])), Some(5));
        assert_eq!(leader(&layout, ShardSet::from_iter([1, 2, 3])), None);
    }
}
