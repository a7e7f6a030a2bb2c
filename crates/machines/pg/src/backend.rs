//! What differs between kinds of pools.
//!
//! The machine asks the [`Backend`] of its pool wherever a copy that is whole and a shard of an
//! object are not the same; it knows no kind itself.

use std::collections::BTreeMap;
use std::fmt;

use ec::{Layout, ShardSet, Technique};
use types::{Eversion, ObjectId, PgShard, ShardId};

use crate::log_entry::LogEntry;
use crate::scrub::{self, Found, Rules, ScrubMap};
use crate::shards::{self, Named, Reached};

/// How a pool keeps its objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PoolKind {
    /// Every copy has everything.
    #[default]
    Replicated,
    /// Each copy has one shard of every object.
    Erasure(Erasure),
}

impl PoolKind {
    /// The rules of the kind.
    pub fn backend(&self) -> &dyn Backend {
        match self {
            Self::Replicated => &Replicated,
            Self::Erasure(rules) => rules,
        }
    }

    /// How objects are cut, if they are.
    pub fn layout(&self) -> Option<Layout> {
        match self {
            Self::Replicated => None,
            Self::Erasure(rules) => Some(rules.layout),
        }
    }
}

/// What the copies of a range of objects hold, as a scrub compares it.
#[derive(Debug)]
pub struct Compared<'a> {
    /// How the log names the PG.
    pub pg: &'a str,
    /// The copy that compares; it is among the maps.
    pub primary: PgShard,
    /// What each copy has.
    pub maps: &'a BTreeMap<PgShard, ScrubMap>,
    /// What a comparison depends on besides.
    pub rules: &'a Rules,
}

/// The decisions that differ between kinds of pools.
pub trait Backend: fmt::Debug {
    /// Whether these copies are enough to know every write that all of them were part of, and to
    /// have its content (Ceph: `IsPGRecoverablePredicate`).
    fn recoverable(&self, survivors: &mut dyn Iterator<Item = PgShard>) -> bool;

    /// What survivors of which [`Backend::recoverable`] says no have, and what is needed, for
    /// people; `None` where that goes without saying.
    fn shortage(&self, survivors: &mut dyn Iterator<Item = PgShard>) -> Option<String>;

    /// Whether a copy at this position may lead: it has infos of objects, attributes and omap.
    fn leads(&self, position: ShardId) -> bool;

    /// Whether an entry changes what the copy at a position has of the object.
    fn changes(&self, entry: &LogEntry, position: ShardId) -> bool;

    /// What a new entry names, if the host says that the change is about these shards.
    fn names(&self, written: ShardSet) -> ShardSet;

    /// What an entry names that takes an object away.
    fn names_all(&self) -> ShardSet;

    /// Up to where entries of the longest log count. `entries` are those after `base`, in order;
    /// `members` are copies that acted in the newest activation, and the newest entry of each.
    fn head(
        &self,
        base: Eversion,
        entries: &mut dyn Iterator<Item = &LogEntry>,
        members: &[(PgShard, Eversion)],
    ) -> Eversion;

    /// Whether a divergent change is undone in place, and what undoes it is kept until every copy
    /// that it names has it. Otherwise the object is removed, and copied from another copy.
    fn rolls_back(&self) -> bool;

    /// Whether entries that change nothing on a copy may come to it later, with others.
    fn is_lazy(&self) -> bool;

    /// Whether an object is recovered from several copies, through the primary. Otherwise any one
    /// has all of it.
    fn rebuilds(&self) -> bool;

    /// Finds what is wrong with copies. Objects for which `skip` is true are being recovered.
    fn compare(&self, what: &Compared<'_>, skip: &dyn Fn(&ObjectId) -> bool) -> Found;
}

/// Every copy has everything (Ceph: `ReplicatedBackend`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replicated;

impl Backend for Replicated {
    fn recoverable(&self, survivors: &mut dyn Iterator<Item = PgShard>) -> bool {
        survivors.next().is_some()
    }

    fn shortage(&self, _: &mut dyn Iterator<Item = PgShard>) -> Option<String> {
        None
    }

    fn leads(&self, _: ShardId) -> bool {
        true
    }

    fn changes(&self, _: &LogEntry, _: ShardId) -> bool {
        true
    }

    fn names(&self, _: ShardSet) -> ShardSet {
        ShardSet::EMPTY
    }

    fn names_all(&self) -> ShardSet {
        ShardSet::EMPTY
    }

    /// The newest: a write that one copy has can be given to the others.
    fn head(
        &self,
        base: Eversion,
        entries: &mut dyn Iterator<Item = &LogEntry>,
        _: &[(PgShard, Eversion)],
    ) -> Eversion {
        entries.last().map_or(base, |e| e.version)
    }

    fn rolls_back(&self) -> bool {
        false
    }

    fn is_lazy(&self) -> bool {
        false
    }

    fn rebuilds(&self) -> bool {
        false
    }

    fn compare(&self, what: &Compared<'_>, skip: &dyn Fn(&ObjectId) -> bool) -> Found {
        scrub::compare(what.pg, what.primary, what.maps, what.rules, skip)
    }
}

/// Each copy has one shard of every object (Ceph: `ECBackend`); see
/// `docs/decisions/0014-erasure-coding.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Erasure {
    /// How objects are cut.
    pub layout: Layout,
    /// What parity is.
    pub technique: Technique,
}

/// The shard that a copy at a position has.
pub(crate) fn shard_at(position: ShardId) -> Option<ec::Shard> {
    let shard = u8::try_from(position.0).ok()?;
    (usize::from(shard) < ShardSet::SHARDS_MAX).then_some(shard)
}

/// Which shards copies have. A hole is none.
pub(crate) fn shards_of(copies: &mut dyn Iterator<Item = PgShard>) -> ShardSet {
    copies.filter_map(|c| shard_at(c.shard)).collect()
}

impl Backend for Erasure {
    fn recoverable(&self, survivors: &mut dyn Iterator<Item = PgShard>) -> bool {
        shards::recoverable(&self.layout, shards_of(survivors))
    }

    fn shortage(&self, survivors: &mut dyn Iterator<Item = PgShard>) -> Option<String> {
        let here = shards_of(survivors).and(self.layout.shards());
        if shards::recoverable(&self.layout, here) {
            return None;
        }
        let list = |set: ShardSet| {
            let names: Vec<String> = set.iter().map(|s| s.to_string()).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let lead = self.layout.primary_capable();
        Some(format!(
            "shards {} are here; any {} are needed, with one of {} among them",
            list(here),
            self.layout.k(),
            list(lead)
        ))
    }

    fn leads(&self, position: ShardId) -> bool {
        shard_at(position).is_some_and(|s| self.layout.primary_capable().contains(s))
    }

    fn changes(&self, entry: &LogEntry, position: ShardId) -> bool {
        shard_at(position).is_some_and(|s| entry.written.contains(s))
    }

    fn names(&self, written: ShardSet) -> ShardSet {
        written.and(self.layout.shards()).or(self.layout.primary_capable())
    }

    fn names_all(&self) -> ShardSet {
        self.layout.shards()
    }

    fn head(
        &self,
        base: Eversion,
        entries: &mut dyn Iterator<Item = &LogEntry>,
        members: &[(PgShard, Eversion)],
    ) -> Eversion {
        let reached = |&(copy, last): &(PgShard, Eversion)| {
            Some(Reached { shard: shard_at(copy.shard)?, last })
        };
        let members: Vec<Reached> = members.iter().filter_map(reached).collect();
        let named = entries.map(|e| Named { version: e.version, written: e.written });
        shards::complete_to(base, named, &members)
    }

    fn rolls_back(&self) -> bool {
        true
    }

    fn is_lazy(&self) -> bool {
        true
    }

    fn rebuilds(&self) -> bool {
        true
    }

    fn compare(&self, what: &Compared<'_>, skip: &dyn Fn(&ObjectId) -> bool) -> Found {
        scrub::shards::compare(self, what, skip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Epoch, OsdId};

    fn erasure() -> Erasure {
        let layout = Layout::new(2, 2, 4096).unwrap();
        Erasure { layout, technique: Technique::JerasureReedSolVan }
    }

    fn at(shard: i8) -> PgShard {
        PgShard { osd: OsdId(10 + i32::from(shard)), shard: ShardId(shard) }
    }

    fn entry(version: u64, written: &[ec::Shard]) -> LogEntry {
        LogEntry {
            op: crate::LogOp::Modify,
            oid: ObjectId::default(),
            version: v(version),
            prior_version: Eversion::default(),
            user_version: 0,
            reqid: types::ReqId::default(),
            mtime: types::Utime::default(),
            return_code: 0,
            snaps: Vec::new(),
            op_returns: Vec::new(),
            reverting_to: None,
            written: written.iter().copied().collect(),
        }
    }

    fn v(version: u64) -> Eversion {
        Eversion { epoch: Epoch(1), version }
    }

    #[test]
    fn a_hole_and_a_copy_without_a_position_are_no_shards() {
        let e = erasure();
        let whole = PgShard::from(OsdId(3));
        assert!(!e.recoverable(&mut [at(1), whole].into_iter()));
        assert!(!e.recoverable(&mut [at(1), at(9)].into_iter()));
        assert!(e.recoverable(&mut [at(1), at(3)].into_iter()));
        assert!(e.leads(ShardId(0)) && e.leads(ShardId(2)) && !e.leads(ShardId(1)));
        assert!(!e.leads(ShardId::NONE));
    }

    #[test]
    fn people_are_told_which_shards_are_needed() {
        let e = erasure();
        let told = |some: &[PgShard]| e.shortage(&mut some.iter().copied());
        assert_eq!(
            told(&[at(1)]).unwrap(),
            "shards 1 are here; any 2 are needed, with one of 0, 2, 3 among them"
        );
        assert!(told(&[]).unwrap().starts_with("shards none are here"));
        assert_eq!(told(&[at(1), at(2)]), None);
        assert_eq!(Replicated.shortage(&mut [].into_iter()), None);
    }

    #[test]
    fn what_a_member_lacks_that_it_should_have_does_not_count() {
        let e = erasure();
        let log = [entry(1, &[0, 1, 2, 3]), entry(2, &[0, 2, 3]), entry(3, &[0, 1, 2, 3])];
        let head = |members: &[(PgShard, Eversion)]| e.head(v(0), &mut log.iter(), members);
        assert_eq!(head(&[(at(0), v(3)), (at(1), v(1)), (at(2), v(3))]), v(2));
        assert_eq!(head(&[(at(0), v(3)), (at(2), v(3)), (at(3), v(3))]), v(3));
        assert_eq!(Replicated.head(v(0), &mut log.iter(), &[(at(0), v(1))]), v(3));
    }
}
