//! The host's part of recovery and backfill: reservations, and what a collection holds.
//!
//! How many PGs of an OSD recover or are filled is bounded by `osd_max_backfills`, counted apart
//! for each [`Side`]: PGs that it leads, PGs that are read here, PGs that are written here. A PG
//! asks in that order, so there is no circle. The machine says how urgent it is; `Reserver`
//! decides.

use crate::collections::is_own_key;
use crate::core::Core;
use crate::fullness;
use crate::host::PgHost;
use bytes::Bytes;
use pg::{Backfill, Event, Listing, Side, Turn};
use std::rc::Rc;
use types::{Eversion, ObjectId, PgId, SpgId};

/// Keys that are read at a time.
const PAGE: usize = 256;

impl Core {
    /// Lets PGs with a reservation go on, and takes reservations back for more urgent ones.
    pub(crate) fn next_turns(&self) {
        self.check_backfillfull();
        self.grant_turns();
    }

    /// Gives the reservations that are free. Whether there is room has been looked at.
    fn grant_turns(&self) {
        loop {
            let most = self.settings().backfills;
            let next = {
                let mut turns = self.reservations.recovery.borrow_mut();
                let room = !turns.full;
                [(Side::Lead, true), (Side::Source, true), (Side::Target, room)]
                    .into_iter()
                    .find_map(|(side, may)| Some((turns.of(side).next(most, may)?, side)))
            };
            let Some((turn, side)) = next else { break };
            let (pgid, event) = match turn {
                Turn::Granted(pgid) => (pgid, Event::Reserved { side }),
                Turn::Preempted(pgid) => (pgid, Event::Preempted { side }),
            };
            match self.host(pgid) {
                Some(host) => host.handle(event),
                None => self.leave_turns(pgid),
            }
        }
    }

    fn leave_turns(&self, pgid: SpgId) {
        let mut turns = self.reservations.recovery.borrow_mut();
        for side in [Side::Lead, Side::Source, Side::Target] {
            turns.of(side).leave(pgid);
        }
    }

    /// Sets the used part of the store above which no PG moves here (`backfillfull_ratio` of the
    /// map).
    pub fn set_backfillfull(&self, ratio: f64) {
        self.reservations.recovery.borrow_mut().backfillfull = ratio;
        self.next_turns();
    }

    /// Stops those that are filled here once the store is too full for it (Ceph:
    /// `OSDService::check_backfill_full`). Copies come by the gigabyte per second, so this is
    /// looked at whenever a PG is to begin and whenever an object comes in.
    pub(crate) fn check_backfillfull(&self) {
        let used = fullness::used(&self.backlog.space());
        let stopped = {
            let mut turns = self.reservations.recovery.borrow_mut();
            let full = used > turns.backfillfull;
            let changed = std::mem::replace(&mut turns.full, full) != full;
            if changed && full { turns.target.recall_backfills() } else { Vec::new() }
        };
        for pgid in stopped {
            tracing::warn!(osd = self.whoami.0, pg = %pgid, "the store is too full to take copies");
            if let Some(host) = self.host(pgid) {
                host.handle(Event::BackfillTooFull);
            }
        }
    }

    /// PGs led by this OSD, and by others, that have a reservation to recover or to be filled.
    pub fn recovering_groups(&self) -> (usize, usize) {
        let turns = self.reservations.recovery.borrow();
        (turns.own.holding(), turns.target.holding())
    }

    /// An operator wants these PGs recovered, or filled, before others, or not any more.
    pub fn force_recovery(&self, pgs: impl IntoIterator<Item = PgId>, backfill: bool, on: bool) {
        for host in pgs.into_iter().filter_map(|pgid| self.leading(pgid)) {
            host.handle(Event::Force { backfill, on });
        }
    }
}

impl PgHost {
    /// The machine wants its reservation, or says how urgent it is by now.
    pub(crate) fn want_turn(self: &Rc<Self>, side: Side, backfill: bool, priority: u8) {
        self.core.check_backfillfull();
        let full = {
            let mut turns = self.core.reservations.recovery.borrow_mut();
            turns.of(side).ask(self.id, priority, backfill);
            side == Side::Target && backfill && turns.full
        };
        if full {
            self.handle(Event::BackfillTooFull);
        }
        self.core.grant_turns();
    }

    /// Gives the reservations back.
    pub(crate) fn leave_turns(&self) {
        self.core.leave_turns(self.id);
        self.core.next_turns();
    }

    /// About `max` objects behind a cursor. Objects of one name are never apart: what follows the
    /// last one is of another.
    pub(crate) async fn list_objects(
        &self,
        after: &Backfill,
        max: usize,
    ) -> Result<Listing, String> {
        let mut listing = Listing { upto: Backfill::Complete, ..Listing::default() };
        let mut start = match after {
            Backfill::Complete => return Ok(listing),
            Backfill::Nothing => Bytes::new(),
            Backfill::UpTo(oid) => oid.to_key(),
        };
        let mut last: Option<ObjectId> = None;
        loop {
            let page = self
                .core
                .store
                .list(self.coll, &start, None, PAGE)
                .await
                .map_err(|e| e.to_string())?;
            for key in page.keys {
                if is_own_key(&key) {
                    continue;
                }
                let oid = ObjectId::from_key(&key).map_err(|e| format!("key {key:?}: {e}"))?;
                if after.covers(&oid) {
                    continue;
                }
                let name = oid.head();
                if listing.objects.len() >= max.max(1)
                    && let Some(last) = last.as_ref().filter(|l| **l != name)
                {
                    listing.upto = Backfill::after(last);
                    return Ok(listing);
                }
                last = Some(name);
                let version = match self.shard_version(&key).await {
                    // Removed meanwhile.
                    Ok(Eversion::ZERO) => continue,
                    Ok(version) => version,
                    Err(e) => {
                        tracing::error!(pg = %self.id, %oid, "cannot read what the object is: {e}");
                        Eversion::default()
                    }
                };
                // The name would otherwise hold the whole page.
                let oid = oid.detached();
                if self.is_coded()
                    && self.leads()
                    && let Ok(Some(before)) = self.before(&oid).await
                {
                    let other = before.others(version);
                    if !other.is_empty() {
                        listing.shards.insert(oid.clone(), other);
                    }
                }
                listing.objects.insert(oid, version);
            }
            match page.next {
                Some(next) => start = next,
                None => return Ok(listing),
            }
        }
    }
}
