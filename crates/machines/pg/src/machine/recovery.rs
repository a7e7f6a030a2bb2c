//! Copying objects that a copy lacks: the primary pulls what it lacks itself, then pushes.
//!
//! One object at a time goes through
//!
//! ```text
//!   Pull ─(each part: Push, persist, next Pull)─►
//!   Push ─(each part: read, Push, PushReply from all)─► done
//! ```
//!
//! Writes to the object wait meanwhile, so its version cannot change under the copy. A receiver
//! writes the parts straight into the object: until the last part is durable the object stays in
//! the missing set on disk, with nothing to `have`, and is never read.
//!
//! An object with its newest content given up has an older one again: a copy that has that says
//! from then on that it is the new version, without copying.

use denc::{Decode, Encode, Features};
use types::{Epoch, Eversion, ObjectId, ObjectInfo, PgShard};

use crate::action::{Action, Persist, Source};
use crate::missing::MissingItem;
use crate::msg::{ObjectChunk, PeerMsg, Progress};
use crate::proposal::ReadToken;
use crate::rows;
use crate::scrub::OI_ATTR;

use super::parts::recovery::{Copy, Read};
use super::{Deferred, Pg, Phase};

/// Where the content of an object that is missing here comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// This version from there.
    Pull(PgShard, Eversion),
    /// What is here, in this version.
    Revert(Eversion),
}

impl Pg {
    /// Objects that are being recovered, those that clients wait for included.
    pub fn recovering_objects(&self) -> usize {
        self.recovery.active.len()
    }

    /// Whether neither this copy nor an acting replica lacks anything.
    pub(super) fn all_recovered(&self) -> bool {
        self.missing.is_empty()
            && (self.peers.is_empty()
                || self.mapping.acting.iter().all(|o| {
                    self.peers
                        .get(o)
                        .is_none_or(|p| p.missing.as_ref().is_some_and(|m| m.is_empty()))
                }))
    }

    /// Whether an acting replica lacks this object, or the copy that is being filled.
    pub(super) fn is_degraded_object(&self, oid: &ObjectId) -> bool {
        self.mapping.acting.iter().copied().chain(self.followers()).any(|o| {
            self.peers.get(&o).is_some_and(|p| p.missing.as_ref().is_some_and(|m| m.contains(oid)))
        })
    }

    /// Whether a write of this object has to wait for its copy. Those that recover beside the PG
    /// learn of writes to what they lack by the log; but as long as an object is written again and
    /// again its copy would never end.
    pub(super) fn holds_writes(&self, oid: &ObjectId) -> bool {
        let lacks = |o: &PgShard| {
            self.peers.get(o).is_some_and(|p| p.missing.as_ref().is_some_and(|m| m.contains(oid)))
        };
        let waits = |o: &PgShard| {
            lacks(o) && (self.recovery.active.contains_key(oid) || !self.recovers_beside(*o))
        };
        self.mapping.acting.iter().any(lacks) || self.followers().any(|o| waits(&o))
    }

    /// Whether this copy or an acting replica lacks something that can be recovered.
    pub(super) fn has_recoverable(&self) -> bool {
        let unfound = &self.recovery.unfound;
        let some = |m: &crate::missing::MissingSet| {
            m.len() > unfound.len() || m.oldest_first().any(|o| !unfound.contains(o))
        };
        some(&self.missing)
            || self
                .mapping
                .acting
                .iter()
                .any(|o| self.peers.get(o).and_then(|p| p.missing.as_ref()).is_some_and(some))
    }

    /// Asks for a grant if there is something to start, and sees whether the PG became clean.
    pub(super) fn check_recovery(&mut self) {
        if self.phase != Phase::Active {
            return;
        }
        self.follow_by_log();
        self.check_sources();
        self.check_reservation();
        if self.all_recovered() {
            self.min_last_complete_ondisk = self.all_committed;
            self.check_clean();
            self.check_backfill();
        }
        if !self.recovery.asked
            && self.recovery.active.len() < self.conf.recovery_max_active.max(1)
            && self.next_to_recover().is_some()
        {
            self.recovery.asked = true;
            self.actions.push_back(Action::QueueRecovery);
        }
    }

    /// What to copy next: what clients wait for, what this copy lacks, oldest first, then what
    /// replicas lack, then what is to be filled.
    fn next_to_recover(&self) -> Option<ObjectId> {
        let idle = |oid: &&ObjectId| {
            !self.recovery.active.contains_key(*oid) && !self.recovery.unfound.contains(*oid)
        };
        let urgent = self
            .recovery
            .urgent
            .iter()
            .filter(idle)
            .find(|o| self.missing.contains(o) || self.is_degraded_object(o));
        if urgent.is_some() || !self.may_recover() {
            return urgent.cloned();
        }
        self.missing
            .oldest_first()
            .find(idle)
            .or_else(|| {
                let acting = self.mapping.acting.iter().copied();
                acting
                    .chain(self.filling())
                    .filter_map(|o| self.peers.get(&o)?.missing.as_ref())
                    .find_map(|m| m.oldest_first().find(idle))
            })
            .cloned()
    }

    pub(super) fn start_recovery(&mut self, max_objects: usize) {
        self.recovery.asked = false;
        if self.phase != Phase::Active {
            return;
        }
        for _ in 0..max_objects {
            let running =
                self.recovery.active.keys().filter(|o| !self.recovery.urgent.contains(*o)).count();
            if running >= self.conf.recovery_max_active.max(1) {
                break;
            }
            let Some(oid) = self.next_to_recover() else { break };
            self.recover(oid);
        }
        self.check_recovery();
    }

    pub(super) fn recover_now(&mut self, oid: ObjectId) {
        if self.phase != Phase::Active || self.recovery.is_losing(&oid) {
            return;
        }
        if self.recovery.active.contains_key(&oid) {
            if self.recovery.urgent.insert(oid.clone()) {
                self.hurry_active(oid);
            }
            return;
        }
        if self.recovery.unfound.contains(&oid) {
            // It goes first once it was found.
            self.recovery.urgent.insert(oid);
            return;
        }
        if self.missing.contains(&oid) || self.is_degraded_object(&oid) {
            self.recovery.urgent.insert(oid.clone());
            self.recover(oid);
            self.check_recovery();
        } else {
            // It was recovered between the question and this event.
            self.actions.push_back(Action::ObjectReady(oid));
        }
    }

    /// Clients wait for an object that is being copied: what it waits for now may be behind others,
    /// so that is asked for anew. Of two answers the first counts.
    fn hurry_active(&mut self, oid: ObjectId) {
        match self.recovery.active.get(&oid) {
            Some(Copy::Pull { from, version, next, written: false }) => {
                let (from, version, next) = (*from, *version, next.clone());
                self.pull(from, oid, version, next);
            }
            Some(Copy::Push { version, next, .. }) => {
                let (version, next) = (*version, next.clone());
                let is_this =
                    |r: &Read| matches!(r, Read::Push(o, v) if *o == oid && *v == version);
                let Some(token) =
                    self.recovery.reads.iter().find_map(|(token, r)| is_this(r).then_some(*token))
                else {
                    return;
                };
                self.recovery.reads.remove(&token);
                self.read(Read::Push(oid.clone(), version), oid, version, next);
            }
            Some(Copy::Rebuild { waiting, .. }) if waiting.is_empty() => self.ask_rebuild(&oid),
            // What comes next is urgent.
            Some(Copy::Pull { .. } | Copy::Revert | Copy::Rebuild { .. }) | None => {}
        }
    }

    fn pull(&mut self, from: PgShard, oid: ObjectId, version: Eversion, at: Progress) {
        let urgent = self.recovery.urgent.contains(&oid);
        self.send(from, PeerMsg::Pull { oid, version, from: at, urgent });
    }

    /// Starts, or starts over, the copy of one object.
    pub(super) fn recover(&mut self, oid: ObjectId) {
        if self.backend().rebuilds() {
            self.rebuild(oid);
            return;
        }
        let Some(item) = self.missing.get(&oid).copied() else {
            self.start_push(oid);
            return;
        };
        let way = self.way_to(&oid, &item, |c| self.may_read_from(c));
        let way = way.or_else(|| self.way_to(&oid, &item, |_| true));
        match way {
            Some(Way::Pull(from, _)) if self.read_more(&oid, &[from]) => {}
            Some(Way::Pull(from, version)) => {
                let next = Progress::default();
                self.pull(from, oid.clone(), version, next.clone());
                self.recovery
                    .active
                    .insert(oid, Copy::Pull { from, version, next, written: false });
            }
            Some(Way::Revert(version)) => {
                self.recovery.active.insert(oid.clone(), Copy::Revert);
                let urgent = self.recovery.urgent.contains(&oid);
                self.read_part(
                    Read::Revert(oid.clone(), item.need),
                    oid,
                    version,
                    Progress::default(),
                    (0, 0),
                    urgent,
                );
            }
            None => self.not_found(oid),
        }
    }

    /// No copy is known to have what is needed of the object.
    pub(super) fn not_found(&mut self, oid: ObjectId) {
        self.recovery.active.remove(&oid);
        if self.recovery.unfound.insert(oid.clone()) {
            self.actions.push_back(Action::ObjectUnfound(oid));
            self.ask_strays();
        }
    }

    /// Whether a copy is known to have what this one lacks.
    pub(super) fn can_be_had(&self, oid: &ObjectId, item: &MissingItem) -> bool {
        self.way_to(oid, item, |_| true).is_some()
    }

    /// Where an object can be had, if only some copies may be read.
    fn way_to(
        &self,
        oid: &ObjectId,
        item: &MissingItem,
        may: impl Fn(PgShard) -> bool,
    ) -> Option<Way> {
        let up = || self.peers.iter().filter(|(c, _)| self.map.is_up(c.osd) && may(**c));
        // An activated replica's info is older than its log; it shares ours.
        let shares = |shard: &PgShard, p: &super::Peer| {
            p.info.last_update >= item.need || self.mapping.acting.contains(shard)
        };
        let has = |p: &super::Peer| {
            p.missing.as_ref().is_some_and(|m| !m.contains(oid)) && !p.info.removing
        };
        if let Some((shard, _)) =
            up().find(|(shard, p)| shares(shard, p) && has(p) && p.info.last_backfill.covers(oid))
        {
            return Some(Way::Pull(*shard, item.need));
        }
        let older = self.reverts_to(item)?;
        if item.have == older {
            return Some(Way::Revert(older));
        }
        let has = |p: &super::Peer| {
            p.missing.as_ref().and_then(|m| m.get(oid)).is_some_and(|i| i.have == older)
        };
        up().find(|(_, p)| has(p)).map(|(shard, _)| Way::Pull(*shard, older))
    }

    /// The older version that counts again, if the newest content was given up.
    fn reverts_to(&self, item: &MissingItem) -> Option<Eversion> {
        self.log.get(item.need)?.entry.reverting_to
    }

    /// What was here before the newest content was given up was read: it is the newest now.
    fn reverted(&mut self, oid: ObjectId, version: Eversion, chunk: Option<ObjectChunk>) {
        if !matches!(self.recovery.active.get(&oid), Some(Copy::Revert)) {
            return;
        }
        let Some(item) = self.missing.get(&oid).copied().filter(|i| i.need == version) else {
            // It was given up once more.
            self.recover(oid);
            return;
        };
        let mut attrs = chunk.map(|c| c.attrs).unwrap_or_default();
        let info = attrs.iter_mut().find(|(name, _)| name == OI_ATTR);
        let info = info.and_then(|(_, value)| Some((ObjectInfo::from_bytes(value).ok()?, value)));
        let Some((mut info, value)) = info else {
            // It cannot be read.
            let mut persist = Persist::default();
            let item = MissingItem { have: Eversion::default(), ..item };
            persist.rows.set.push(rows::missing_row(&oid, &item));
            self.missing.set(oid.clone(), item);
            self.persist(persist);
            self.recovery.active.remove(&oid);
            self.recover(oid);
            self.check_recovery();
            return;
        };
        info.version = version;
        *value = info.to_bytes(Features::ALL);
        self.missing.remove(&oid);
        self.update_last_complete();
        let mut persist =
            Persist { source: Source::Attrs(oid.clone(), attrs), ..Persist::default() };
        persist.rows.remove.push(rows::missing_key(&oid));
        persist.rows.set.push(rows::fast_row(&self.info));
        let token = self.persist(persist);
        self.defer(token, Deferred::Pulled { oid, to: Progress::default(), last: true });
    }

    /// Objects that were given up and that every copy knows to be gone may be used again.
    pub(super) fn lost_committed(&mut self) {
        for oid in self.recovery.take_lost(self.all_committed) {
            self.recovery.urgent.remove(&oid);
            self.actions.push_back(Action::ObjectReady(oid));
        }
    }

    /// Copies that lack an object and get it from this one.
    pub fn copies_lacking(&self, oid: &ObjectId) -> Vec<PgShard> {
        let lacks = |c: &PgShard| {
            self.peers.get(c).is_some_and(|p| p.missing.as_ref().is_some_and(|m| m.contains(oid)))
        };
        self.mapping.acting.iter().copied().chain(self.followers()).filter(lacks).collect()
    }

    fn start_push(&mut self, oid: ObjectId) {
        let mut targets = Vec::new();
        let mut version = Eversion::default();
        for shard in self.mapping.acting.iter().copied().chain(self.followers()) {
            if let Some(item) = self.peers.get(&shard).and_then(|p| p.missing.as_ref()?.get(&oid)) {
                targets.push(shard);
                version = item.need;
            }
        }
        if targets.is_empty() {
            self.recovered(oid);
            return;
        }
        let copy = Copy::Push {
            version,
            targets,
            waiting: Vec::new(),
            next: Progress::default(),
            last: false,
        };
        self.recovery.active.insert(oid.clone(), copy);
        self.read(Read::Push(oid.clone(), version), oid, version, Progress::default());
    }

    fn read(&mut self, what: Read, oid: ObjectId, version: Eversion, from: Progress) {
        let urgent = self.recovery.urgent.contains(&oid);
        self.read_part(
            what,
            oid,
            version,
            from,
            (self.conf.recovery_max_chunk, self.conf.recovery_max_omap_entries),
            urgent,
        );
    }

    fn read_part(
        &mut self,
        what: Read,
        oid: ObjectId,
        version: Eversion,
        from: Progress,
        (max_bytes, max_omap): (u64, u64),
        urgent: bool,
    ) {
        let token = self.read_token(what);
        self.actions.push_back(Action::ReadObject {
            token,
            oid,
            version,
            from,
            max_bytes,
            max_omap,
            urgent,
        });
    }

    /// The name of what the host is asked to read.
    pub(super) fn read_token(&mut self, what: Read) -> ReadToken {
        let token = self.recovery.next_read;
        // Tokens of an earlier interval must not be taken for those of this one.
        self.recovery.next_read += 1;
        let token = ReadToken(u64::from(self.info.history.same_interval_since.0) << 32 | token);
        self.recovery.reads.insert(token.0, what);
        token
    }

    pub(super) fn handle_object_read(&mut self, token: ReadToken, chunk: Option<ObjectChunk>) {
        match self.recovery.reads.remove(&token.0) {
            None | Some(Read::Rebuild(_) | Read::Shard { .. }) => {}
            Some(Read::Revert(oid, version)) => self.reverted(oid, version, chunk),
            Some(Read::Answer { to, asked, oid, version }) => {
                // That there is nothing to send does not say that this copy is bad: what was asked
                // for twice may be asked for no more, and the object written since. The primary
                // knows.
                let msg = chunk.map_or_else(
                    || PeerMsg::PullFailed { oid, version },
                    |chunk| PeerMsg::Push(Box::new(chunk)),
                );
                self.answer(to, asked, msg);
            }
            Some(Read::Push(oid, version)) => {
                let Some(Copy::Push { targets, waiting, next, last, version: v }) =
                    self.recovery.active.get_mut(&oid)
                else {
                    return;
                };
                if *v != version {
                    // The object was changed, and its copy begun again.
                    return;
                }
                let Some(chunk) = chunk else {
                    // The own copy cannot be read: it is as good as missing.
                    self.recovery.active.remove(&oid);
                    self.lose_own(oid, version);
                    return;
                };
                waiting.clone_from(targets);
                next.clone_from(&chunk.to);
                *last = chunk.last;
                let to: crate::action::Peers = targets.iter().copied().collect();
                self.info.stats.num_bytes_recovered += chunk.data.len() as i64 * to.len() as i64;
                self.info.stats.num_keys_recovered += chunk.omap.len() as i64 * to.len() as i64;
                self.send_all(to, PeerMsg::Push(Box::new(chunk)));
            }
        }
    }

    pub(super) fn handle_pull(
        &mut self,
        from: PgShard,
        asked: Epoch,
        oid: ObjectId,
        version: Eversion,
        at: Progress,
        urgent: bool,
    ) {
        // What is missing in its newest version may be here in an older one that counts again.
        let here = match self.missing.get(&oid) {
            Some(item) => item.have == version && version != Eversion::default(),
            None => self.info.last_backfill.covers(&oid),
        };
        if !here || self.info.removing {
            self.answer(from, asked, PeerMsg::PullFailed { oid, version });
            return;
        }
        let most = (self.conf.recovery_max_chunk, self.conf.recovery_max_omap_entries);
        self.read_part(
            Read::Answer { to: from, asked, oid: oid.clone(), version },
            oid,
            version,
            at,
            most,
            urgent,
        );
    }

    /// A part of an object that this copy lacks.
    pub(super) fn handle_push(&mut self, from: PgShard, asked: Epoch, chunk: Box<ObjectChunk>) {
        let Some(item) = self.missing.get(&chunk.oid).copied() else { return };
        let older = item.need != chunk.version;
        if older && (!self.is_primary() || self.reverts_to(&item) != Some(chunk.version)) {
            return;
        }
        if self.is_primary() {
            match self.recovery.active.get_mut(&chunk.oid) {
                Some(Copy::Pull { from: f, next, version, written })
                    if !*written
                        && *f == from
                        && *next == chunk.from
                        && *version == chunk.version =>
                {
                    next.clone_from(&chunk.to);
                    *written = true;
                }
                _ => return,
            }
        } else if self.phase != Phase::ReplicaActive || self.mapping.primary != Some(from) {
            return;
        }
        let (oid, version, to, last) =
            (chunk.oid.clone(), chunk.version, chunk.to.clone(), chunk.last);
        let mut persist = Persist::default();
        if self.is_primary() {
            let stats = &mut self.info.stats;
            stats.num_bytes_recovered += chunk.data.len() as i64;
            stats.num_keys_recovered += chunk.omap.len() as i64;
            stats.num_objects_recovered += i64::from(last);
        }
        if last && older {
            let item = MissingItem { have: version, ..item };
            persist.rows.set.push(rows::missing_row(&oid, &item));
            self.missing.set(oid.clone(), item);
        } else if last {
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
        persist.source = Source::Push(chunk);
        let token = self.persist(persist);
        let then = if self.is_primary() {
            Deferred::Pulled { oid, to, last }
        } else {
            Deferred::Send(from, asked, PeerMsg::PushReply { oid, version, to })
        };
        self.defer(token, then);
    }

    /// A pulled part is durable, up to `to`.
    pub(super) fn pulled(&mut self, oid: ObjectId, to: &Progress, last: bool) {
        if last {
            self.recovery.active.remove(&oid);
            // What came may be an older version that has yet to become the newest.
            self.recover(oid);
            return;
        }
        // Of another source by now, this part says nothing of what is asked of that one.
        if let Some(Copy::Pull { from, version, next, written: written @ true }) =
            self.recovery.active.get_mut(&oid)
            && next == to
        {
            *written = false;
            let (from, version, next) = (*from, *version, next.clone());
            self.pull(from, oid, version, next);
        }
    }

    pub(super) fn handle_pull_failed(&mut self, from: PgShard, oid: ObjectId, version: Eversion) {
        match self.recovery.active.get(&oid) {
            // Of what was asked for twice, the second answer may come when it is of no account any
            // more.
            Some(Copy::Pull { from: f, version: v, written: false, .. })
                if *f == from && *v == version => {}
            _ => return,
        }
        // As long as the primary lacks it, it is not written, so what is there is not this version,
        // or cannot be read.
        self.lose_source(from, &oid, version);
        self.recover(oid);
        self.check_recovery();
    }

    pub(super) fn handle_push_reply(
        &mut self,
        from: PgShard,
        oid: ObjectId,
        version: Eversion,
        to: Progress,
    ) {
        let rebuilds = self.backend().rebuilds();
        let Some(
            Copy::Push { version: v, waiting, next, last, targets }
            | Copy::Rebuild { version: v, waiting, next, last, targets, .. },
        ) = self.recovery.active.get_mut(&oid)
        else {
            return;
        };
        if *v != version || *next != to || waiting.is_empty() {
            return;
        }
        waiting.retain(|o| *o != from);
        if !waiting.is_empty() {
            return;
        }
        if !*last {
            if rebuilds {
                self.ask_rebuild(&oid);
                return;
            }
            let next = next.clone();
            self.read(Read::Push(oid.clone(), version), oid, version, next);
            return;
        }
        let targets = std::mem::take(targets);
        self.info.stats.num_objects_recovered += targets.len() as i64;
        self.replicas_recovered(&oid, targets.len());
        for shard in targets {
            if let Some(missing) = self.peers.get_mut(&shard).and_then(|p| p.missing.as_mut()) {
                missing.remove(&oid);
            }
        }
        if self.lacked(&oid).is_some() {
            // A copy has come to lack it meanwhile.
            self.recovery.active.remove(&oid);
            self.recover(oid);
            self.check_recovery();
            return;
        }
        self.recovered(oid);
    }

    /// An object changed that is to be copied, or is being copied: begin again with what it is now.
    pub(super) fn repeat_copy(&mut self, oid: ObjectId) {
        if self.recovery.active.contains_key(&oid) {
            // No copy may lack it any more, if it was deleted.
            self.recover(oid);
        } else {
            self.check_recovery();
        }
    }

    pub(super) fn recovered(&mut self, oid: ObjectId) {
        self.recovery.active.remove(&oid);
        self.recovery.urgent.remove(&oid);
        self.object_recovered(&oid);
        self.actions.push_back(Action::ObjectReady(oid));
        self.check_recovery();
    }

    /// A map came that did not change the interval: strays may have gone.
    pub(super) fn active_map(&mut self) {
        let gone: Vec<_> = self
            .peers
            .iter()
            .filter(|(o, p)| !self.map.is_up(o.osd) || self.map.up_from(o.osd) != p.up_from)
            .map(|(o, _)| *o)
            .collect();
        for shard in gone {
            self.peers.remove(&shard);
            let stuck: Vec<_> = self
                .recovery
                .active
                .iter()
                .filter(|(_, c)| match c {
                    Copy::Pull { from, .. } => *from == shard,
                    Copy::Rebuild { sources, waiting, .. } => {
                        waiting.is_empty() && sources.contains(&shard)
                    }
                    _ => false,
                })
                .map(|(oid, _)| oid.clone())
                .collect();
            for oid in stuck {
                self.recover(oid);
            }
            self.find_unfound();
        }
        self.check_recovery();
        self.want_followers_again();
    }
}
