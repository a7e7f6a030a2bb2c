//! The primary finds out what is true: infos, the authoritative log, what each replica lacks.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use types::{Epoch, Eversion, ObjectId, PgShard};

use crate::action::{Action, Persist};
use crate::backend::PoolKind;
use crate::info::{Backfill, PgInfo};
use crate::log_entry::{LogEntry, LoggedRef};
use crate::members::Members;
use crate::merge::{self, Terms};
use crate::missing::MissingSet;
use crate::msg::{LogSegment, PeerMsg, Query};
use crate::past_intervals::PastIntervals;
use crate::prior_set::PriorSet;
use crate::rows;
use crate::stats::StatSum;

use super::{Peer, Pg, Phase};

impl Peer {
    pub(super) fn new(info: PgInfo, up_from: Epoch) -> Self {
        Self {
            info,
            up_from,
            missing: None,
            common: Eversion::default(),
            asked_full: false,
            useless: false,
            acked: Eversion::default(),
            sent: None,
            owed: StatSum::default(),
        }
    }
}

/// The copy with the authoritative log (Ceph: `PeeringState::find_best_info`).
///
/// A copy that did not take part in the newest activation cannot be it, nor can one that is not
/// filled. One that did not act then, but recovered beside the PG, may have entries of objects
/// without the objects, which the acting copies may have lost: it is asked only if none of these is
/// left. They have all that was acknowledged. Each copy knows whether it acted; `acted` is asked
/// about copies that do not say. Among the rest the newest `last_update` wins; how much counts says
/// [`Backend::head`](crate::Backend::head). Then the longest log, then the primary itself.
pub(super) fn find_best<'a>(
    me: PgShard,
    infos: impl Iterator<Item = (PgShard, &'a PgInfo)> + Clone,
    acted: impl Fn(PgShard, Epoch) -> bool,
) -> Option<PgShard> {
    let started = newest_started(infos.clone().map(|(_, i)| i))?;
    let took_part = |shard, i: &PgInfo| took_part(i, started, |epoch| acted(shard, epoch));
    infos
        .filter(|(_, i)| is_candidate(i, started))
        .max_by_key(|&(shard, i)| {
            (took_part(shard, i), i.last_update, Reverse(i.log_tail), shard == me, Reverse(shard))
        })
        .map(|(shard, _)| shard)
}

/// Whether a copy acted in the newest activation that it knows of.
fn took_part(info: &PgInfo, started: Epoch, acted: impl Fn(Epoch) -> bool) -> bool {
    info.last_interval_acted.map_or_else(|| acted(started), |e| e >= info.last_interval_started)
}

/// The newest activation that any of these copies knows of.
pub(super) fn newest_started<'a>(infos: impl Iterator<Item = &'a PgInfo>) -> Option<Epoch> {
    let known = |i: &PgInfo| {
        if i.is_incomplete() {
            i.history.last_epoch_started
        } else {
            i.history.last_epoch_started.max(i.last_epoch_started)
        }
    };
    infos.map(known).max()
}

/// Whether a copy may have the authoritative log, if the newest activation was in `started`.
pub(super) fn is_candidate(info: &PgInfo, started: Epoch) -> bool {
    !info.is_incomplete() && info.last_epoch_started >= started
}

/// Whether an entry changes what a copy has.
pub(super) fn changes_of(kind: PoolKind, copy: PgShard) -> impl Fn(&LogEntry) -> bool {
    move |entry| kind.backend().changes(entry, copy.shard)
}

/// Whether the log that starts at `tail` can bring a copy up to date.
fn overlaps(info: &PgInfo, tail: Eversion) -> bool {
    !info.is_incomplete() && info.last_update >= tail
}

impl Pg {
    pub(super) fn start_peering(&mut self) {
        if self.needs_up_thru() {
            self.actions.push_back(Action::WantUpThru(self.info.history.same_interval_since));
        }
        self.prior = self.build_prior_set();
        // Strays tell once in an interval, even if the primary starts over within it.
        let (map, prior) = (&self.map, &self.prior);
        self.peers.retain(|o, p| {
            map.is_up(o.osd) && map.up_from(o.osd) == p.up_from && !prior.probe.contains_key(o)
        });
        for peer in self.peers.values_mut() {
            *peer = Peer::new(std::mem::take(&mut peer.info), peer.up_from);
        }
        let probe: BTreeSet<_> =
            self.prior.probe.keys().copied().filter(|&o| o != self.me).collect();
        self.send_all(probe.iter().copied().collect(), self.query(Query::Info));
        self.phase = Phase::GetInfo { waiting: probe };
        self.check_infos();
    }

    fn build_prior_set(&self) -> PriorSet {
        PriorSet::build(&*self.map, self.backend(), &self.mapping, &self.past, &self.info.history)
    }

    fn query(&self, query: Query) -> PeerMsg {
        PeerMsg::Query { query, history: self.info.history }
    }

    pub(super) fn needs_up_thru(&self) -> bool {
        self.map.up_thru(self.me.osd) < self.info.history.same_interval_since
    }

    /// A map came that did not change the interval: start over if it changed which OSDs can be
    /// asked.
    pub(super) fn check_prior_set(&mut self) {
        let prior = self.build_prior_set();
        let lost_a_peer = self
            .peers
            .iter()
            .any(|(&o, p)| !self.map.is_up(o.osd) || self.map.up_from(o.osd) != p.up_from);
        if prior != self.prior || lost_a_peer {
            self.start_peering();
        }
    }

    pub(super) fn handle_notify(&mut self, from: PgShard, info: PgInfo, past: PastIntervals) {
        if !self.map.is_up(from.osd) {
            return;
        }
        let waits = self.phase == Phase::WaitUpThru;
        let peer = Peer::new(info, self.map.up_from(from.osd));
        let info = &peer.info;
        let mut learned = self.info.history.merge(&info.history);
        let before = self.past.clone();
        self.past.adopt(&past, self.info.history.same_interval_since, &*self.map);
        self.past.trim(self.info.history.last_epoch_started);
        learned |= self.past != before;
        match &mut self.phase {
            Phase::GetInfo { waiting } => {
                waiting.remove(&from);
                self.peers.insert(from, peer);
                if learned {
                    self.reconsider_probes();
                }
                self.check_infos();
            }
            Phase::Down => {
                self.peers.insert(from, peer);
                if learned {
                    self.reconsider_probes();
                    self.check_infos();
                }
            }
            Phase::Incomplete => {
                self.peers.insert(from, peer);
                if learned {
                    self.reconsider_probes();
                }
                self.check_infos();
            }
            Phase::Activating { waiting, .. } if waiting.contains(&from) => {
                // It has no copy yet and could not make one from a message of an older epoch.
                if peer.info.is_empty() {
                    self.send_activate(from);
                    self.repeat_round(from);
                }
            }
            _ => {
                self.follower_asks_again(from, &peer.info);
                // A stray that was not asked: it may have what is missing, or it is superfluous. It
                // tells once for each time that it comes up, and what it said before that is about
                // to be forgotten.
                let new = self.peers.get(&from).is_none_or(|p| p.up_from != peer.up_from);
                if new && !self.mapping.acting.contains(&from) {
                    self.peers.insert(from, peer);
                    if self.phase == Phase::Active {
                        self.find_unfound();
                        self.check_recovery();
                    }
                }
            }
        }
        if learned {
            self.persist_all();
        }
        if waits && self.phase == Phase::WaitUpThru {
            // It may have been waited for.
            self.activate_if_up_thru();
        }
    }

    /// The history moved: other OSDs may have to be asked, or fewer.
    fn reconsider_probes(&mut self) {
        self.prior = self.build_prior_set();
        let me = self.me;
        let new: Vec<_> = self
            .prior
            .probe
            .keys()
            .copied()
            .filter(|o| *o != me && !self.peers.contains_key(o))
            .collect();
        let mut waiting = BTreeSet::new();
        let asked = match &self.phase {
            Phase::GetInfo { waiting } => waiting.clone(),
            _ => BTreeSet::new(),
        };
        for shard in new {
            if !asked.contains(&shard) {
                self.send(shard, self.query(Query::Info));
            }
            waiting.insert(shard);
        }
        self.phase = Phase::GetInfo { waiting };
    }

    fn check_infos(&mut self) {
        if let Phase::GetInfo { waiting } = &self.phase
            && !waiting.is_empty()
        {
            return;
        }
        if self.prior.blocked {
            self.phase = Phase::Down;
            return;
        }
        self.choose_log();
    }

    pub(super) fn info_of(&self, shard: PgShard) -> Option<&PgInfo> {
        if shard == self.me { Some(&self.info) } else { self.peers.get(&shard).map(|p| &p.info) }
    }

    /// Whether an OSD acted in the interval of an epoch, as far as that is remembered.
    fn acted(&self, shard: PgShard, epoch: Epoch) -> bool {
        if epoch >= self.info.history.same_interval_since {
            return self.mapping.acting.contains(&shard);
        }
        match self.past.intervals.iter().find(|i| i.first <= epoch && epoch <= i.last) {
            Some(interval) => interval.acting.contains(&shard),
            None => self.past.holders.get(&shard).is_some_and(|until| *until >= epoch),
        }
    }

    fn choose_log(&mut self) {
        let infos = self.peers.iter().map(|(o, p)| (*o, &p.info)).chain([(self.me, &self.info)]);
        let Some(best) = find_best(self.me, infos, |shard, epoch| self.acted(shard, epoch)) else {
            self.phase = Phase::Incomplete;
            return;
        };
        let tail = self.info_of(best).map(|i| i.log_tail).unwrap_or_default();
        let usable = |shard: &PgShard| self.info_of(*shard).is_some_and(|i| overlaps(i, tail));

        let want = self.wanted_acting(usable, best);
        if !self.backend().recoverable(&mut want.iter().copied()) {
            self.phase = Phase::Incomplete;
            return;
        }
        let want = self.leave_behind(want, best);
        // Another order of the same OSDs is as good, but for that of `up`: what made it differ is
        // over, and no other event would ever ask for `up` again.
        let (acting, up) = (&self.mapping.acting, &self.mapping.up);
        let same = if want == *up {
            want == *acting
        } else {
            want.len() == acting.len() && want.iter().all(|o| acting.contains(o))
        };
        if !same {
            let temp = if want == self.mapping.up { Vec::new() } else { want.slots() };
            self.actions.push_back(Action::WantPgTemp(temp));
            self.phase = Phase::WaitActing;
            return;
        }
        let acting = self.mapping.acting.iter().filter_map(|o| self.info_of(*o));
        let members = self.members();
        let since = acting
            .map(|i| i.last_update)
            .chain(members.iter().map(|(_, last)| *last))
            .min()
            .unwrap_or_default();
        if best == self.me {
            let log = self.log.after(since);
            let head = self.head_of(&log);
            if log.entries.last().is_some_and(|e| e.entry.version > head) {
                let auth = PgInfo { last_update: head, ..self.info.clone() };
                self.merge_log(head, &auth, &[]);
            }
            self.got_log();
            return;
        }
        self.phase = Phase::GetLog { from: best, full: false };
        self.send(best, self.query(Query::Log(since)));
    }

    /// Copies that acted in the newest activation, and their newest entries.
    fn members(&self) -> Vec<(PgShard, Eversion)> {
        let infos = || self.peers.iter().map(|(o, p)| (*o, &p.info)).chain([(self.me, &self.info)]);
        let Some(started) = newest_started(infos().map(|(_, i)| i)) else { return Vec::new() };
        infos()
            .filter(|(shard, i)| {
                is_candidate(i, started) && took_part(i, started, |epoch| self.acted(*shard, epoch))
            })
            .map(|(shard, i)| (shard, i.last_update))
            .collect()
    }

    /// Up to where the longest log counts. `log` is its end, from before the first entry that some
    /// member lacks.
    fn head_of(&self, log: &LogSegment) -> Eversion {
        let mut entries = log.entries.iter().map(|e| &e.entry);
        self.backend().head(log.tail, &mut entries, &self.members())
    }

    /// Which copies should act. Only those may that can take part by log alone: being in the acting
    /// set means to have every acknowledged write. Of `up` all that can; others take the places of
    /// those that cannot, each at its position if it has one. When all can, it is `up` alone, also
    /// if that is short: an OSD that is out would otherwise act, and lead, for ever. A hole in
    /// `up` is filled by a copy that has the position.
    pub(super) fn wanted_acting(
        &self,
        usable: impl Fn(&PgShard) -> bool,
        best: PgShard,
    ) -> Members {
        let up = &self.mapping.up;
        let holes = up.width().is_some_and(|width| up.len() < width);
        if !up.is_empty() && !holes && up.iter().all(&usable) {
            return up.clone();
        }
        let mut want: Vec<PgShard> = up.iter().copied().filter(&usable).collect();
        // With positions, one OSD has several only if there are too few others: with it all go.
        for twice in [false, true] {
            for other in
                self.mapping.acting.iter().chain(self.peers.keys()).chain([&self.me, &best])
            {
                let free = match up.width() {
                    None => want.len() < self.pool.size as usize && !want.contains(other),
                    Some(_) => {
                        want.iter().all(|w| w.shard != other.shard && (twice || w.osd != other.osd))
                    }
                };
                if free && usable(other) {
                    want.push(*other);
                }
            }
            if up.width().is_none() || self.backend().recoverable(&mut want.iter().copied()) {
                break;
            }
        }
        up.of_same_pool(want)
    }

    pub(super) fn handle_log(
        &mut self,
        from: PgShard,
        info: PgInfo,
        mut log: LogSegment,
        mut missing: MissingSet,
        undo: Vec<Eversion>,
    ) {
        match &mut self.phase {
            Phase::GetLog { from: f, full } if *f == from => {
                let full = *full;
                if log.entries.last().map_or(log.tail, |e| e.entry.version) > info.last_update {
                    return;
                }
                let Some(common) = merge::newest_common(&self.log, &log, &info) else {
                    if full {
                        self.phase = Phase::Incomplete;
                    } else {
                        self.phase = Phase::GetLog { from, full: true };
                        self.send(from, self.query(Query::Log(Eversion::default())));
                    }
                    return;
                };
                self.extend_log(&log);
                // What is newer than this is taken back, also there.
                let head = self.head_of(&log).max(log.tail);
                let cut = log.entries.partition_point(|e| e.entry.version <= head);
                let divergent = log.entries.split_off(cut);
                let common = if divergent.is_empty() { common } else { common.min(head) };
                let newest = if divergent.is_empty() { info.last_update } else { head };
                let mut auth = PgInfo { last_update: newest, ..info.clone() };
                // What is cut off was counted there.
                auth.stats_invalid |= !divergent.is_empty();
                self.merge_log(common, &auth, &log.entries);
                let undo: BTreeSet<Eversion> = undo.into_iter().collect();
                let out = self.with_terms(from, &undo, |terms| {
                    merge::merge(&mut missing, &info.last_backfill, head, &divergent, &[], terms)
                });
                let mut info = info;
                self.take_back_elsewhere(from, &mut info, head, &out);
                let mut peer = Peer::new(info, self.map.up_from(from.osd));
                peer.missing = Some(missing);
                peer.common = self.info.last_update;
                self.peers.insert(from, peer);
                self.got_log();
            }
            Phase::GetMissing { waiting } => {
                if !waiting.contains(&from) {
                    return;
                }
                if self.reconcile(from, info, log, missing, undo) {
                    if let Phase::GetMissing { waiting } = &mut self.phase {
                        waiting.remove(&from);
                    }
                    self.check_missing();
                }
            }
            // A stray that was asked because something is unfound.
            Phase::Active => {
                let asked = self.peers.get(&from).is_some_and(|p| p.missing.is_none());
                if !asked {
                    return;
                }
                let known = self.reconcile(from, info, log, missing, undo);
                self.follower_known(from, known);
                if known {
                    self.find_unfound();
                    self.check_recovery();
                }
            }
            _ => {}
        }
    }

    /// Takes over older entries, so that replicas further behind can be filled from this log.
    fn extend_log(&mut self, log: &LogSegment) {
        let older = log.entries.partition_point(|e| e.entry.version <= self.log.tail());
        let older = &log.entries[..older];
        if self.log.extend_back(log.tail, older) {
            self.info.log_tail = log.tail;
            let mut persist = Persist::default();
            persist.rows.set.extend(older.iter().map(|e| rows::log_row(e)));
            persist.rows.set.push(rows::fast_row(&self.info));
            self.persist(persist);
        }
    }

    /// Brings this copy to the authoritative log: `entries` run up to its head and include
    /// everything after `common`. Objects that become void are removed in the same transaction.
    pub(super) fn merge_log(
        &mut self,
        common: Eversion,
        auth: &PgInfo,
        entries: &[LoggedRef],
    ) -> super::PersistToken {
        let mut persist = Persist::default();
        let divergent = self.log.rewind(common);
        let from = entries.partition_point(|e| e.entry.version <= common);
        let learn = &entries[from..];
        let mut missing = std::mem::take(&mut self.missing);
        let undo = std::mem::take(&mut self.undo);
        let out = self.with_terms(self.me, &undo, |terms| {
            merge::merge(&mut missing, &self.info.last_backfill, common, &divergent, learn, terms)
        });
        (self.missing, self.undo) = (missing, undo);
        let undone: BTreeSet<Eversion> = out.undo.iter().map(|(v, _)| *v).collect();
        for e in &divergent {
            if self.undo.remove(&e.entry.version) && !undone.contains(&e.entry.version) {
                persist.forget_undo.push(e.entry.version);
            }
        }
        persist.undo = out.undo;
        let new_keys: BTreeSet<_> = learn.iter().map(|e| e.entry.version).collect();
        for e in &divergent {
            if !new_keys.contains(&e.entry.version) {
                persist.rows.remove.push(rows::log_key(e.entry.version));
            }
        }
        for e in learn {
            persist.rows.set.push(rows::log_row(e));
            self.log.push(e.clone());
        }
        self.log.raise_head(auth.last_update);
        self.missing_rows(&out.touched, &mut persist);
        persist.remove_objects = out.remove.into_iter().collect();
        self.info.last_update = self.log.head();
        self.info.log_tail = self.log.tail();
        self.info.last_user_version = auth.last_user_version;
        self.info.stats = auth.stats;
        // What is taken back was counted.
        let taken_back = self.backend().rolls_back() && (out.diverged || auth.stats_invalid);
        self.info.stats_invalid = auth.stats_invalid || taken_back;
        self.info.scrub = auth.scrub;
        self.info.purged_snaps.union(&auth.purged_snaps);
        self.update_last_complete();
        self.info_rows(&mut persist);
        self.persist(persist)
    }

    /// Adds the rows of objects of which the missing items may have changed.
    pub(super) fn missing_rows(&self, touched: &BTreeSet<ObjectId>, persist: &mut Persist) {
        for oid in touched {
            match self.missing.get(oid) {
                Some(item) => persist.rows.set.push(rows::missing_row(oid, item)),
                None => persist.rows.remove.push(rows::missing_key(oid)),
            }
        }
    }

    /// This copy's log is the authoritative one: find out what the replicas lack.
    fn got_log(&mut self) {
        // Nothing that happened before can be in flight any more.
        self.all_committed = Eversion::default();
        self.min_last_complete_ondisk = Eversion::default();
        let mut waiting = BTreeSet::new();
        for shard in self.replicas() {
            let Some(peer) = self.peers.get_mut(&shard) else { continue };
            if peer.missing.is_some() {
                continue;
            }
            let info = &peer.info;
            if info.last_update == info.last_complete && self.log.has_point(info.last_update) {
                // Nothing divergent and nothing missing up to there.
                let mut missing = MissingSet::default();
                let common = info.last_update;
                let learn = self.log.after(common).entries;
                let changes = changes_of(self.pool.kind, shard);
                let terms = Terms { changes: &changes, undo: None };
                merge::merge(&mut missing, &info.last_backfill, common, &[], &learn, terms);
                peer.common = common;
                peer.missing = Some(missing);
            } else {
                // Divergence is only possible after its last activation.
                let since = Eversion { epoch: info.last_epoch_started, version: 0 };
                waiting.insert(shard);
                self.send(shard, self.query(Query::Log(since)));
            }
        }
        self.phase = Phase::GetMissing { waiting };
        self.check_missing();
    }

    /// Works out what a peer lacks of our log. False if its whole log was asked for, because what
    /// it sent does not reach back far enough.
    fn reconcile(
        &mut self,
        from: PgShard,
        info: PgInfo,
        log: LogSegment,
        mut missing: MissingSet,
        undo: Vec<Eversion>,
    ) -> bool {
        let Some(common) = merge::newest_common(&self.log, &log, &info) else {
            let asked_full = self.peers.get(&from).is_some_and(|p| p.asked_full);
            if asked_full {
                // It shares nothing with us although its numbers said so. It cannot be used.
                if let Some(peer) = self.peers.get_mut(&from) {
                    peer.info.last_backfill = Backfill::Nothing;
                    peer.useless = true;
                }
                if self.mapping.acting.contains(&from) {
                    self.choose_log();
                }
            } else {
                if let Some(peer) = self.peers.get_mut(&from) {
                    peer.asked_full = true;
                }
                self.send(from, self.query(Query::Log(Eversion::default())));
            }
            return false;
        };
        let at = log.entries.partition_point(|e| e.entry.version <= common);
        let learn = self.log.after(common).entries;
        let undo: BTreeSet<Eversion> = undo.into_iter().collect();
        let divergent = &log.entries[at..];
        let out = self.with_terms(from, &undo, |terms| {
            merge::merge(&mut missing, &info.last_backfill, common, divergent, &learn, terms)
        });
        let mut info = info;
        self.take_back_elsewhere(from, &mut info, common, &out);
        let up_from = self.map.up_from(from.osd);
        let peer = self.peers.entry(from).or_insert_with(|| Peer::new(info.clone(), up_from));
        peer.info = info;
        peer.common = common;
        peer.missing = Some(missing);
        true
    }

    /// A copy that does not act has changes that are to be taken back, and is not activated, which
    /// would do that. They were not acknowledged, so that they need not count whatever comes.
    fn take_back_elsewhere(
        &mut self,
        copy: PgShard,
        info: &mut PgInfo,
        common: Eversion,
        out: &merge::Outcome,
    ) {
        if !out.undo.is_empty() && !self.mapping.acting.contains(&copy) {
            info.last_update = common;
            info.last_complete = info.last_complete.min(common);
            self.send(copy, PeerMsg::RollBack(common));
        }
    }

    /// The primary will not have what this copy has after a version.
    pub(super) fn handle_roll_back(&mut self, to: Eversion) {
        if self.phase != Phase::Stray
            || !self.backend().rolls_back()
            || to >= self.info.last_update
            || !self.log.has_point(to)
        {
            return;
        }
        let auth = PgInfo { last_update: to, ..self.info.clone() };
        self.merge_log(to, &auth, &[]);
    }

    /// Asks strays what they lack, because an object has no other source.
    pub(super) fn ask_strays(&mut self) {
        let mut ask = Vec::new();
        for (shard, peer) in &mut self.peers {
            if peer.missing.is_none()
                && !peer.asked_full
                && !peer.info.is_empty()
                && self.map.is_up(shard.osd)
            {
                peer.asked_full = true;
                ask.push(*shard);
            }
        }
        for shard in &ask {
            self.send(*shard, self.query(Query::Log(Eversion::default())));
        }
        // An OSD with a copy tells of it, but perhaps has not yet; one without says so.
        let unknown: Vec<PgShard> = self
            .might_have_unfound()
            .filter(|o| {
                self.map.is_up(o.osd)
                    && !self.peers.contains_key(o)
                    && !self.mapping.acting.contains(o)
            })
            .filter(|o| !self.recovery.was_asked(*o, self.map.up_from(o.osd)))
            .collect();
        for shard in unknown {
            self.recovery.note_asked(shard, self.map.up_from(shard.osd));
            self.send(shard, self.query(Query::Info));
        }
    }

    fn check_missing(&mut self) {
        let Phase::GetMissing { waiting } = &self.phase else { return };
        if !waiting.is_empty() {
            return;
        }
        self.phase = Phase::WaitUpThru;
        self.activate_if_up_thru();
    }

    pub(super) fn activate_if_up_thru(&mut self) {
        if self.needs_up_thru() {
            return;
        }
        match self.earlier_leases() {
            Some(until) => self.actions.push_back(Action::WakeAt(until)),
            None => self.activate(),
        }
    }

    /// Calls `f` with what entries mean for a copy that can take these changes back.
    pub(super) fn with_terms<R>(
        &self,
        copy: PgShard,
        undo: &BTreeSet<Eversion>,
        f: impl FnOnce(Terms<'_>) -> R,
    ) -> R {
        let changes = changes_of(self.pool.kind, copy);
        f(Terms { changes: &changes, undo: self.backend().rolls_back().then_some(undo) })
    }

    pub(super) fn activation_epoch(&self) -> Epoch {
        self.map.epoch()
    }
}
