//! The host's part of backfill: whose turn it is, and what a collection holds.
//!
//! A group fills one copy at a time. How many groups of an OSD do so is bounded by `osd_max_backfills`, counted
//! apart for groups that copy from here and for groups that are copied to here. Who has a turn of the first kind
//! waits for one of the second, never the other way round, so nobody waits in a circle.

use crate::core::Core;
use crate::host::{META_KEY, PgHost};
use crate::host_trim::Turns;
use crate::object::{ObjectInfo, decode_attr};
use crate::op::{OI_ATTR, ObjectReader};
use bytes::Bytes;
use pg::{Backfill, Event, Listing};
use std::rc::Rc;
use types::{Errno, Eversion, ObjectId};

/// Keys that are read at a time.
const PAGE: usize = 256;

/// Whose turn it is to backfill on an OSD.
#[derive(Default)]
pub(crate) struct BackfillTurns {
    /// Groups that copy from here.
    own: Turns,
    /// Groups that are copied to here.
    target: Turns,
    /// The store takes no more copies.
    full: bool,
}

impl Core {
    /// Lets groups go on whose turn it is.
    pub(crate) fn next_backfills(&self) {
        loop {
            let most = self.settings().backfills;
            let next = {
                let mut turns = self.backfill_turns.borrow_mut();
                let own = turns.own.next(most).map(|pgid| (pgid, false));
                match own {
                    None if !turns.full => turns.target.next(most).map(|pgid| (pgid, true)),
                    own => own,
                }
            };
            let Some((pgid, target)) = next else { break };
            match self.host(pgid) {
                Some(host) => host.handle(Event::BackfillReserved { target }),
                None => self.leave_backfill(pgid),
            }
        }
    }

    fn leave_backfill(&self, pgid: types::PgId) {
        let mut turns = self.backfill_turns.borrow_mut();
        turns.own.leave(pgid);
        turns.target.leave(pgid);
    }

    /// Whether the store is so full that no group moves here (`backfillfull_ratio`). Told now and then.
    pub fn set_backfill_full(&self, full: bool) {
        let stopped = {
            let mut turns = self.backfill_turns.borrow_mut();
            let changed = std::mem::replace(&mut turns.full, full) != full;
            if changed && full { turns.target.recall() } else { Vec::new() }
        };
        for pgid in stopped {
            tracing::warn!(osd = self.whoami.0, pg = %pgid, "the store is too full to take copies");
            if let Some(host) = self.host(pgid) {
                host.handle(Event::BackfillTooFull);
            }
        }
        self.next_backfills();
    }

    /// Groups that copy from here, and groups that are copied to here.
    pub fn backfilling_groups(&self) -> (usize, usize) {
        let turns = self.backfill_turns.borrow();
        (turns.own.trimming(), turns.target.trimming())
    }
}

impl PgHost {
    /// The machine wants its turn.
    pub(crate) fn want_backfill(self: &Rc<Self>, target: bool) {
        let full = {
            let mut turns = self.core.backfill_turns.borrow_mut();
            if target { &mut turns.target } else { &mut turns.own }.ask(self.pgid);
            target && turns.full
        };
        if full {
            self.handle(Event::BackfillTooFull);
        }
        self.core.next_backfills();
    }

    /// Gives the turns back.
    pub(crate) fn leave_backfill(&self) {
        self.core.leave_backfill(self.pgid);
        self.core.next_backfills();
    }

    /// About `max` objects behind a cursor. Objects of one name are never apart: what follows the last one is of
    /// another.
    pub(crate) async fn list_objects(&self, after: &Backfill, max: usize) -> Result<Listing, String> {
        let mut listing = Listing { upto: Backfill::Complete, ..Listing::default() };
        let mut start = match after {
            Backfill::Complete => return Ok(listing),
            Backfill::Nothing => Bytes::new(),
            Backfill::UpTo(oid) => oid.to_key(),
        };
        let mut last: Option<ObjectId> = None;
        loop {
            let page = self.core.store.list(self.coll, &start, None, PAGE).await.map_err(|e| e.to_string())?;
            for key in page.keys {
                if key == META_KEY {
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
                let version = match self.reader.attr(&key, OI_ATTR).await {
                    Ok(value) => decode_attr::<ObjectInfo>(&value).map_or(Eversion::default(), |oi| oi.version),
                    // Removed meanwhile.
                    Err(Errno::ENOENT) => continue,
                    Err(e) => {
                        tracing::error!(pg = %self.pgid, %oid, "cannot read what the object is: {e}");
                        Eversion::default()
                    }
                };
                // The name would otherwise hold the whole page.
                listing.objects.insert(oid.detached(), version);
            }
            match page.next {
                Some(next) => start = next,
                None => return Ok(listing),
            }
        }
    }
}
