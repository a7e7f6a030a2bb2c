//! Which objects a copy lacks that is being filled.
//!
//! The primary lists its own objects once for all targets, from the cursor on that is furthest
//! behind. Targets with their cursor there are compared with it, object by object, up to where all
//! listings reach, or to the cursor of the next target: from there on it takes part. So a target
//! that came late catches up, and then all go on together.

use types::{Epoch, Eversion, ObjectId, PgShard, ShardId};

use crate::action::Action;
use crate::info::Backfill;
use crate::log_entry::LogEntry;
use crate::missing::MissingItem;
use crate::msg::{Listing, PeerMsg};
use crate::proposal::ReadToken;

use super::parts::backfill::Stage;
use super::parts::scan::{Lister, Scan, Written};
use super::{Pg, Phase};

/// Objects that one step makes missing. Writers of missing objects wait, and they take memory on
/// both sides; but each step is a transaction of each target.
const STEP: usize = 16;

impl Pg {
    /// Asks for listings behind a cursor, which is that of these targets, and compares what there
    /// is.
    pub(super) fn next_range(&mut self, front: &Backfill, members: &[PgShard]) {
        let max = self.conf.backfill_scan.max(1);
        for shard in members {
            let Some(target) = self.backfill.targets.get_mut(shard) else { return };
            if target.listing.is_none() && !target.asked {
                target.asked = true;
                self.send(
                    *shard,
                    PeerMsg::ListObjects {
                        after: front.clone(),
                        max: u32::try_from(max).unwrap_or(u32::MAX),
                    },
                );
            }
        }
        self.backfill.scan.align(front);
        if self.backfill.scan.listing.is_none() && self.backfill.scan.asked.is_none() {
            let token = self.list(Lister::Own, front.clone(), max);
            self.backfill.scan =
                Scan { from: front.clone(), asked: Some(token), ..Scan::default() };
        }
        self.advance(front, members);
    }

    fn list(&mut self, lister: Lister, after: Backfill, max: usize) -> u64 {
        let n = self.backfill.next_listing;
        self.backfill.next_listing += 1;
        // As tokens of reads: those of an earlier interval are not taken for these.
        let token = u64::from(self.info.history.same_interval_since.0) << 32 | n;
        self.backfill.listings.insert(token, lister);
        self.actions.push_back(Action::ListObjects { token: ReadToken(token), after, max });
        token
    }

    pub(super) fn list_for_scrub(&mut self, id: u64, after: Backfill, max: usize) {
        self.list(Lister::Scrub(id), after, max);
    }

    pub(super) fn list_for(&mut self, to: PgShard, asked: Epoch, after: Backfill, max: u32) {
        if self.phase == Phase::ReplicaActive && after == self.info.last_backfill {
            self.list(Lister::Primary { to, asked, after: after.clone() }, after, max as usize);
        }
    }

    pub(super) fn handle_listed(&mut self, token: ReadToken, mut listing: Listing) {
        match self.backfill.listings.remove(&token.0) {
            None => {}
            Some(Lister::Scrub(id)) => self.scrub_listed(id, listing.upto),
            Some(Lister::Primary { to, asked, after }) => {
                self.answer(to, asked, PeerMsg::Objects { after, listing })
            }
            Some(Lister::Own) => {
                let scan = &mut self.backfill.scan;
                // Another one may have been asked for, from an earlier cursor on.
                if scan.asked.take_if(|t| *t == token.0).is_none() {
                    return;
                }
                let upto = listing.upto.clone();
                // What this copy lacks is not what it should be.
                for (oid, item) in self.missing.iter().filter(|(o, _)| upto.covers(o)) {
                    listing.objects.insert(oid.clone(), item.need);
                    listing.shards.remove(oid);
                }
                let shards = self.pool.kind.backend().names_all();
                for (oid, changes) in std::mem::take(&mut scan.changes) {
                    if upto.covers(&oid) {
                        // What came after what is listed.
                        let listed = listing.objects.get(&oid).copied();
                        let known = changes.iter().rposition(|w| w.version == listed);
                        for w in &changes[known.filter(|_| listed.is_some()).map_or(0, |i| i + 1)..]
                        {
                            change(&mut listing, &oid, *w, shards);
                        }
                    }
                }
                listing.objects.retain(|o, _| !scan.from.covers(o));
                listing.shards.retain(|o, _| !scan.from.covers(o));
                scan.listing = Some(listing);
                self.check_recovery();
            }
        }
    }

    pub(super) fn handle_objects(&mut self, from: PgShard, after: &Backfill, listing: Listing) {
        let Some(target) = self.backfill.targets.get_mut(&from).filter(|t| t.asked) else { return };
        if self.peers.get(&from).is_none_or(|p| p.info.last_backfill != *after) {
            return;
        }
        target.asked = false;
        target.listing = Some(listing);
        self.check_recovery();
    }

    /// Keeps the own listing true.
    pub(super) fn note_change(&mut self, entry: &LogEntry) {
        if self.backfill.targets.is_empty() {
            return;
        }
        let version = match entry.op {
            op if op.is_update() => Some(entry.version),
            op if op.is_delete() => None,
            _ => return,
        };
        let written = Written { version, written: entry.written };
        let shards = self.pool.kind.backend().names_all();
        let scan = &mut self.backfill.scan;
        if scan.from.covers(&entry.oid) {
            return;
        }
        if scan.asked.is_some() {
            scan.changes.entry(entry.oid.clone()).or_default().push(written);
        } else if let Some(listing) = &mut scan.listing
            && listing.upto.covers(&entry.oid)
        {
            change(listing, &entry.oid, written, shards);
        }
    }

    /// Compares what all listings reach, and moves the cursors of these targets over it, or over as
    /// much as one step may.
    fn advance(&mut self, front: &Backfill, members: &[PgShard]) {
        // A target that is further takes part from its cursor on.
        let next = self
            .backfill
            .targets
            .iter()
            .filter(|(o, t)| t.stage == Stage::Filling && !members.contains(o));
        let next = next
            .filter_map(|(o, _)| Some(&self.peers.get(o)?.info.last_backfill))
            .filter(|c| *c > front)
            .min()
            .cloned();
        let Some(own) =
            self.backfill.scan.listing.as_mut().filter(|_| self.backfill.scan.from == *front)
        else {
            return;
        };
        let mut limit = next.map_or(own.upto.clone(), |n| n.min(own.upto.clone()));
        let mut theirs: Vec<(PgShard, &mut Listing, Vec<(ObjectId, Eversion)>, Vec<ObjectId>)> =
            Vec::with_capacity(members.len());
        for (shard, target) in self.backfill.targets.iter_mut().filter(|(o, _)| members.contains(o))
        {
            let Some(listing) = &mut target.listing else { return };
            limit = limit.min(listing.upto.clone());
            theirs.push((*shard, listing, Vec::new(), Vec::new()));
        }
        let mut upto = limit.clone();
        let mut lacking = 0;
        loop {
            let listed = theirs.iter().filter_map(|(_, l, ..)| l.objects.keys().next());
            let first = own.objects.keys().next().into_iter().chain(listed).min();
            let Some(name) = first.map(Backfill::after).filter(|name| *name <= limit) else {
                break;
            };
            if lacking >= STEP {
                break;
            }
            // All objects of this name: a cursor never stands between them.
            while let Some(e) = own.objects.first_entry().filter(|e| name.covers(e.key())) {
                let (oid, version) = e.remove_entry();
                if version == Eversion::default() {
                    self.backfill_damaged();
                    return;
                }
                let of_shards = own.shards.remove(&oid).unwrap_or_default();
                let mut any = false;
                for (shard, listing, missing, remove) in &mut theirs {
                    let of_shard = of_shards.iter().find(|(s, _)| *s == shard.shard);
                    let expected = of_shard.map_or(version, |(_, v)| *v);
                    let found = listing.objects.remove(&oid);
                    if expected == Eversion::default() {
                        // It has no shard of the object.
                        remove.extend(found.map(|_| oid.clone()));
                    } else if found != Some(expected) {
                        missing.push((oid.clone(), version));
                        any = true;
                    }
                }
                lacking += usize::from(any);
            }
            for (_, listing, _, remove) in &mut theirs {
                while let Some(e) = listing.objects.first_entry().filter(|e| name.covers(e.key())) {
                    remove.push(e.remove_entry().0);
                }
            }
            upto = name;
        }
        if lacking < STEP {
            upto = limit;
        }
        let steps: Vec<_> = theirs
            .into_iter()
            .map(|(shard, _, missing, remove)| (shard, missing, remove))
            .collect();
        let over = |l: &mut Listing| l.upto == upto && upto != Backfill::Complete;
        self.backfill.scan.listing.take_if(over);
        self.backfill.scan.from = upto.clone();
        for (shard, missing, remove) in steps {
            if let Some(target) = self.backfill.targets.get_mut(&shard) {
                target.listing.take_if(over);
                target.advancing = true;
            }
            if let Some(peer) = self.peers.get_mut(&shard) {
                peer.info.last_backfill = upto.clone();
                if let Some(set) = &mut peer.missing {
                    for (oid, need) in &missing {
                        set.set(
                            oid.clone(),
                            MissingItem { need: *need, have: Eversion::default() },
                        );
                    }
                }
            }
            self.send(shard, PeerMsg::AdvanceBackfill { upto: upto.clone(), missing, remove });
        }
    }

    pub(super) fn handle_backfill_advanced(&mut self, from: PgShard, upto: &Backfill) {
        let Some(target) = self.backfill.targets.get_mut(&from).filter(|t| t.advancing) else {
            return;
        };
        if self.peers.get(&from).is_some_and(|p| p.info.last_backfill == *upto) {
            target.advancing = false;
            self.check_recovery();
        }
    }

    /// What must be true of the own listing.
    pub(super) fn check_scan_invariants(&self) -> Result<(), String> {
        let scan = &self.backfill.scan;
        let first = scan.listing.as_ref().and_then(|l| l.objects.keys().next());
        match first.filter(|o| scan.from.covers(o)) {
            Some(oid) => Err(format!("{}: {oid:?} is listed before the cursor", self.info.pgid)),
            None => Ok(()),
        }
    }
}

/// Notes a change in a listing. Those of `shards` that the change is not about keep their versions.
fn change(listing: &mut Listing, oid: &ObjectId, change: Written, shards: ec::ShardSet) {
    let Some(version) = change.version else {
        listing.objects.remove(oid);
        listing.shards.remove(oid);
        return;
    };
    let kept: Vec<(ShardId, Eversion)> = shards
        .without(change.written)
        .iter()
        .filter_map(|s| i8::try_from(s).ok().map(ShardId))
        .map(|position| (position, listing.at(oid, position).unwrap_or_default()))
        .collect();
    listing.objects.insert(oid.clone(), version);
    if kept.is_empty() {
        listing.shards.remove(oid);
    } else {
        listing.shards.insert(oid.clone(), kept);
    }
}
