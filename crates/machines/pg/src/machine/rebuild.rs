//! Recovery where copies are shards: what some lack is made of what others have.
//!
//! ```text
//!   Rebuild{targets, sources} ─► Rebuilt ──(own part: persist; others: Push)──► PushReply from all
//!        ▲                                                                          │
//!        └───────────────────────────── the next part ──────────────────────────────┘
//! ```
//!
//! The primary goes through one object at a time for all copies that lack their shard of it, itself
//! included. The host reads what it needs; which copies have the object right is known from their
//! logs. Any `k` shards do, if one of them has the object info. A shard that moved is copied from
//! its old holder as long as that is there.

use std::collections::BTreeSet;

use types::{Epoch, Eversion, ObjectId, PgShard};

use crate::action::{Action, Peers, Persist, Source};
use crate::backend::shard_at;
use crate::missing::MissingItem;
use crate::msg::{ObjectChunk, PeerMsg, Progress};
use crate::proposal::ReadToken;
use crate::rows;
use crate::shard_read::{ShardAnswer, ShardQuery};

use super::parts::recovery::{Copy, Read};
use super::{Deferred, Pg};

impl Pg {
    /// Copies that take writes or are filled, this one first.
    fn own_copies(&self) -> impl Iterator<Item = PgShard> {
        let others = self.replicas().into_iter().chain(self.followers());
        [self.me].into_iter().chain(others)
    }

    /// What a copy that takes part lacks of an object.
    fn item_of(&self, copy: PgShard, oid: &ObjectId) -> Option<MissingItem> {
        if copy == self.me {
            return self.missing.get(oid).copied();
        }
        self.peers.get(&copy)?.missing.as_ref()?.get(oid).copied()
    }

    /// What some copy that takes part lacks of an object: the newest.
    pub(super) fn lacked(&self, oid: &ObjectId) -> Option<MissingItem> {
        self.own_copies().filter_map(|c| self.item_of(c, oid)).max_by_key(|i| i.need)
    }

    /// Copies that have their shard of an object as it should be, those included that do not take
    /// part.
    pub(super) fn sources_of(&self, oid: &ObjectId) -> Vec<PgShard> {
        let mut sources = self.shards_with(oid);
        for (shard, peer) in &self.peers {
            let other = !sources.contains(shard) && !self.own_copies().any(|c| c == *shard);
            if other
                && self.map.is_up(shard.osd)
                && !peer.info.removing
                && peer.info.last_backfill.covers(oid)
                && peer.missing.as_ref().is_some_and(|m| !m.contains(oid))
                && self.unchanged_since(peer.info.last_update, *shard, oid)
            {
                sources.push(*shard);
            }
        }
        sources
    }

    /// Whether no entry after a version changes what a copy has of an object.
    fn unchanged_since(&self, version: Eversion, copy: PgShard, oid: &ObjectId) -> bool {
        let changes = super::peering::changes_of(self.pool.kind, copy);
        version >= self.log.tail()
            && self
                .log
                .iter()
                .rev()
                .take_while(|e| e.entry.version > version)
                .all(|e| e.entry.oid != *oid || !changes(&e.entry))
    }

    /// Whether an object can be read, or made anew, of what these copies have.
    pub(super) fn can_read(&self, sources: &[PgShard]) -> bool {
        self.backend().recoverable(&mut sources.iter().copied())
    }

    /// Objects that some acting copy lacks and that cannot be made of what others have.
    pub(super) fn unreadable(&self) -> BTreeSet<ObjectId> {
        let acting = self.mapping.acting.iter();
        let lacking = acting.filter_map(|o| self.peers.get(o)?.missing.as_ref());
        lacking
            .chain([&self.missing])
            .flat_map(|m| m.iter().map(|(oid, _)| oid))
            .filter(|oid| {
                // What copies have that do not take part costs a look at the log.
                !self.recovery.is_active(oid)
                    && !self.can_read(&self.shards_with(oid))
                    && !self.can_read(&self.sources_of(oid))
            })
            .cloned()
            .collect()
    }

    /// Starts, or starts over, the recovery of an object.
    pub(super) fn rebuild(&mut self, oid: ObjectId) {
        let targets: Vec<PgShard> =
            self.own_copies().filter(|c| self.item_of(*c, &oid).is_some()).collect();
        let Some(item) = self.lacked(&oid) else {
            self.recovered(oid);
            return;
        };
        let mut sources = self.sources_of(&oid);
        if !self.can_read(&sources) {
            self.not_found(oid);
            return;
        }
        if !self.recovery.urgent.contains(&oid) {
            let may: Vec<PgShard> =
                sources.iter().copied().filter(|c| self.may_read_from(*c)).collect();
            if self.can_read(&may) {
                sources = may;
            } else if self.read_more(&oid, &sources) {
                return;
            }
        }
        let copy = Copy::Rebuild {
            version: item.need,
            targets,
            sources,
            waiting: Vec::new(),
            next: Progress::default(),
            last: false,
            token: 0,
        };
        self.recovery.active.insert(oid.clone(), copy);
        self.ask_rebuild(&oid);
    }

    /// Asks the host for the next part.
    pub(super) fn ask_rebuild(&mut self, oid: &ObjectId) {
        let name = self.read_token(Read::Rebuild(oid.clone()));
        let Some(Copy::Rebuild { version, targets, sources, next, token, .. }) =
            self.recovery.active.get_mut(oid)
        else {
            return;
        };
        *token = name.0;
        let action = Action::Rebuild {
            token: name,
            oid: oid.clone(),
            version: *version,
            targets: targets.clone(),
            sources: sources.clone(),
            from: next.clone(),
            max_bytes: self.conf.recovery_max_chunk,
            max_omap: self.conf.recovery_max_omap_entries,
            urgent: self.recovery.urgent.contains(oid),
        };
        self.actions.push_back(action);
    }

    /// The object that the host was asked for under this token, if that is still wanted.
    fn asked_rebuild(&mut self, name: ReadToken) -> Option<ObjectId> {
        let Read::Rebuild(oid) = self.recovery.reads.remove(&name.0)? else { return None };
        match self.recovery.active.get(&oid) {
            Some(Copy::Rebuild { token, .. }) if *token == name.0 => Some(oid),
            _ => None,
        }
    }

    pub(super) fn handle_rebuilt(&mut self, token: ReadToken, chunks: Vec<(PgShard, ObjectChunk)>) {
        let Some(oid) = self.asked_rebuild(token) else { return };
        let Some(Copy::Rebuild { version, targets, waiting, next, last, .. }) =
            self.recovery.active.get_mut(&oid)
        else {
            return;
        };
        let right = |(_, c): &(PgShard, ObjectChunk)| c.version == *version && c.from == *next;
        let all = targets.iter().all(|t| chunks.iter().any(|(to, _)| to == t));
        let Some(first) = chunks.first().filter(|_| all && chunks.iter().all(right)) else {
            // Not what was asked for.
            self.recovery.active.remove(&oid);
            self.check_recovery();
            return;
        };
        waiting.clone_from(targets);
        *next = first.1.to.clone();
        *last = first.1.last;
        for (to, chunk) in chunks {
            self.info.stats.num_bytes_recovered += chunk.data.len() as i64;
            self.info.stats.num_keys_recovered += chunk.omap.len() as i64;
            if to == self.me {
                self.take_own_part(chunk);
            } else {
                self.send_all(Peers::from_iter([to]), PeerMsg::Push(Box::new(chunk)));
            }
        }
    }

    /// A part of this copy's own shard.
    fn take_own_part(&mut self, chunk: ObjectChunk) {
        let Some(item) = self.missing.get(&chunk.oid).copied() else { return };
        let (oid, version, to) = (chunk.oid.clone(), chunk.version, chunk.to.clone());
        let mut persist = Persist::default();
        if chunk.last {
            self.missing.remove(&oid);
            persist.rows.remove.push(rows::missing_key(&oid));
            self.own_recovered(&oid);
            self.update_last_complete();
            persist.rows.set.push(rows::fast_row(&self.info));
        } else if item.have != Eversion::default() {
            let item = MissingItem { have: Eversion::default(), ..item };
            persist.rows.set.push(rows::missing_row(&oid, &item));
            self.missing.set(oid.clone(), item);
        }
        persist.source = Source::Push(Box::new(chunk));
        let token = self.persist(persist);
        self.defer(token, Deferred::Rebuilt { oid, version, to });
    }

    pub(super) fn handle_rebuild_failed(&mut self, token: ReadToken, bad: &[PgShard]) {
        let Some(oid) = self.asked_rebuild(token) else { return };
        let Some(Copy::Rebuild { version, sources, .. }) = self.recovery.active.remove(&oid) else {
            return;
        };
        let bad: Vec<PgShard> = bad.iter().copied().filter(|c| sources.contains(c)).collect();
        if bad.is_empty() {
            // It may be tried again when its turn comes.
            self.check_recovery();
            return;
        }
        for copy in bad {
            if copy == self.me {
                self.lose_own_shard(&oid, version);
            } else {
                self.lose_source(copy, &oid, version);
            }
        }
        self.recover(oid);
        self.check_recovery();
    }

    // --- reads of shards ---

    /// Reads of another copy's shard. The answer is [`Action::ShardAnswer`] with this number, if it
    /// comes before the interval ends.
    pub fn read_shard(&mut self, to: PgShard, id: u64, query: ShardQuery) {
        self.send(to, PeerMsg::ReadShard { id, query: Box::new(query) });
    }

    /// The primary reads of this copy's shard.
    pub(super) fn handle_read_shard(
        &mut self,
        from: PgShard,
        asked: Epoch,
        id: u64,
        query: ShardQuery,
    ) {
        // Half a shard can have the right version.
        let here = !self.missing.contains(&query.oid)
            && self.info.last_backfill.covers(&query.oid)
            && !self.info.removing
            && shard_at(self.me.shard).is_some();
        if !here {
            let answer = ShardAnswer::Lacks { version: Eversion::default() };
            self.answer(from, asked, PeerMsg::ShardRead { id, answer });
            return;
        }
        let oid = query.oid.clone();
        let token = self.read_token(Read::Shard { to: from, asked, id, oid });
        self.actions.push_back(Action::ReadShard { token, query });
    }

    pub(super) fn handle_shard_read(&mut self, token: ReadToken, answer: ShardAnswer) {
        if let Some(Read::Shard { to, asked, id, .. }) = self.recovery.reads.remove(&token.0) {
            self.answer(to, asked, PeerMsg::ShardRead { id, answer });
        }
    }
}
