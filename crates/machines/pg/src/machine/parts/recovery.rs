//! Which objects are on their way.

use crate::msg::Progress;
use std::collections::{BTreeMap, BTreeSet};
use types::{Epoch, Eversion, ObjectId, PgShard};

/// Objects that are being copied.
#[derive(Debug, Default)]
pub(in crate::machine) struct Recovery {
    pub(in crate::machine) active: BTreeMap<ObjectId, Copy>,
    pub(in crate::machine) unfound: BTreeSet<ObjectId>,
    pub(in crate::machine) reads: BTreeMap<u64, Read>,
    pub(in crate::machine) next_read: u64,
    /// A grant was asked for and has not come.
    pub(in crate::machine) asked: bool,
    /// Clients wait for it: goes first, and does not count against the limit.
    pub(in crate::machine) urgent: BTreeSet<ObjectId>,
    /// The OSDs that were asked for a copy that they have not told of, and in which of their lives.
    pub(in crate::machine) asked_infos: BTreeMap<PgShard, Epoch>,
    /// Objects that were given up and are gone, up to this version, once that is durable
    /// everywhere.
    pub(in crate::machine) losing: (Eversion, BTreeSet<ObjectId>),
}

#[derive(Debug)]
pub(in crate::machine) enum Copy {
    /// An older content here becomes the newest.
    Revert,
    /// `next` is asked for, unless the part before it is being `written`.
    Pull { from: PgShard, version: Eversion, next: Progress, written: bool },
    Push {
        version: Eversion,
        targets: Vec<PgShard>,
        waiting: Vec<PgShard>,
        next: Progress,
        last: bool,
    },
    /// Shards are made of other shards; `token` names what the host was asked for last.
    Rebuild {
        version: Eversion,
        targets: Vec<PgShard>,
        sources: Vec<PgShard>,
        waiting: Vec<PgShard>,
        next: Progress,
        last: bool,
        token: u64,
    },
}

#[derive(Debug)]
pub(in crate::machine) enum Read {
    /// The attributes of what becomes this version.
    Revert(ObjectId, Eversion),
    /// For a push to several replicas.
    Push(ObjectId, Eversion),
    /// For a primary that pulls.
    Answer { to: PgShard, asked: Epoch, oid: ObjectId, version: Eversion },
    /// Shards are made of others.
    Rebuild(ObjectId),
    /// A shard, for a primary that reads.
    Shard { to: PgShard, asked: Epoch, id: u64, oid: ObjectId },
}

impl Recovery {
    pub(in crate::machine) fn is_unfound(&self, oid: &ObjectId) -> bool {
        self.unfound.contains(oid)
    }

    pub(in crate::machine) fn unfound(&self) -> usize {
        self.unfound.len()
    }

    /// Clients wait for this object: it does not wait for a grant.
    pub(in crate::machine) fn hurry(&mut self, oid: ObjectId) {
        self.urgent.insert(oid);
    }

    pub(in crate::machine) fn set_unfound(&mut self, unfound: BTreeSet<ObjectId>) -> Vec<ObjectId> {
        let old = std::mem::replace(&mut self.unfound, unfound);
        self.unfound.difference(&old).cloned().collect()
    }

    pub(in crate::machine) fn unfound_objects(&self) -> impl Iterator<Item = &ObjectId> {
        self.unfound.iter()
    }

    pub(in crate::machine) fn is_active(&self, oid: &ObjectId) -> bool {
        self.active.contains_key(oid)
    }

    pub(in crate::machine) fn was_asked(&self, shard: PgShard, up_from: Epoch) -> bool {
        self.asked_infos.get(&shard) == Some(&up_from)
    }

    pub(in crate::machine) fn note_asked(&mut self, shard: PgShard, up_from: Epoch) {
        self.asked_infos.insert(shard, up_from);
    }

    /// Whether the object was given up, and not every copy knows yet.
    pub(in crate::machine) fn is_losing(&self, oid: &ObjectId) -> bool {
        self.losing.1.contains(oid)
    }

    pub(in crate::machine) fn note_losing(
        &mut self,
        upto: Eversion,
        oids: impl IntoIterator<Item = ObjectId>,
    ) {
        self.losing.0 = upto;
        self.losing.1.extend(oids);
    }

    /// Objects that were given up, if all know it.
    pub(in crate::machine) fn take_lost(&mut self, committed: Eversion) -> BTreeSet<ObjectId> {
        if self.losing.1.is_empty() || self.losing.0 > committed {
            return BTreeSet::new();
        }
        std::mem::take(&mut self.losing.1)
    }
}
