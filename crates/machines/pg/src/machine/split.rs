//! A PG gives part of its objects to new PGs, because `pg_num` grows.
//!
//! Every copy splits, whatever it is doing: primary, replica, stray, one that is being filled, one
//! that is being removed. What comes out is a copy of each child that says of itself what the
//! parent said: its log is the parent's without the entries of others, it lacks what the parent
//! lacked of its objects, it is filled as far. The past of a child is the past of its parent. So
//! peering finds the truth about a child as it would have found it about the parent. (Ceph:
//! `PG::split_into`, `PeeringState::split_into`, `PGLog::split_into`.)

use types::{PgId, Utime};

use crate::action::{Action, Persist, SplitOff};
use crate::map::{MapRef, MapView};
use crate::rows::{self, RowBatch};

use super::{Pg, Phase};

impl Pg {
    /// PGs that come out of this one with this map.
    pub fn children_in(&self, map: &dyn MapView) -> Vec<PgId> {
        let pool = map.pool(self.info.pgid.pool);
        match pool {
            Some(pool)
                if map.epoch() > self.map.epoch()
                    && self.phase != Phase::Gone
                    && self.pool.pg_num > 0 =>
            {
                self.info.pgid.split_children(self.pool.pg_num, pool.pg_num)
            }
            _ => Vec::new(),
        }
    }

    /// `pg_num` of the pool, as this copy knows it.
    pub fn pg_num(&self) -> u32 {
        self.pool.pg_num
    }

    /// Takes the next map, with which [`Pg::children_in`] is not empty, and returns the children.
    /// They have taken the map, too. Drain the actions of this PG before those of any child: the
    /// first one makes everything durable together, so that after a crash the PG is split or it is
    /// not.
    pub fn split(&mut self, map: &MapRef, now: Utime) -> Vec<Pg> {
        self.now = now;
        self.note_gap(&**map);
        let mut children = self.children_in(&**map);
        // From the end of the collection on: each child takes what follows its first object.
        children.sort_by_key(|child| std::cmp::Reverse(child.seed.reverse_bits()));
        let Some(pool) = map.pool(self.info.pgid.pool) else { return Vec::new() };
        let mut persist = Persist::default();
        let parts = children.len() as i64 + 1;
        let whole = self.info.stats;
        let mut out = Vec::with_capacity(children.len());
        for &pgid in &children {
            let bits = pgid.split_bits(pool.pg_num);
            let mut info = self.info.clone();
            info.pgid = pgid;
            info.history.epoch_created = map.epoch();
            info.history.last_epoch_split = map.epoch();
            info.stats = whole.part(parts, false);
            // What each part has is not known without counting.
            info.stats_invalid = true;
            let mapping = self.mapping.clone();
            let mut child = Self::at(
                self.me.osd,
                info,
                self.map.clone(),
                mapping,
                self.pool,
                self.conf.clone(),
                now,
            );
            child.log = self.log.split(|e| pgid.contains_hash(bits, e.entry.oid.hash));
            child.missing = self.missing.split(|oid| pgid.contains_hash(bits, oid.hash));
            child.past = self.past.clone();
            let takes_back =
                |e: &&crate::log_entry::LoggedRef| self.undo.contains(&e.entry.version);
            child.undo = child.log.iter().filter(takes_back).map(|e| e.entry.version).collect();
            self.undo.retain(|v| !child.undo.contains(v));
            child.gap = self.gap;
            child.leases = self.leases.of_child();
            child.phase =
                if self.phase == Phase::Removing { Phase::Removing } else { Phase::Reset };
            child.update_last_complete();
            persist.rows.remove.extend(child.log.iter().map(|e| rows::log_key(e.entry.version)));
            persist.rows.remove.extend(child.missing.iter().map(|(oid, _)| rows::missing_key(oid)));
            out.push(child);
        }
        self.info.stats = whole.part(parts, true);
        self.info.stats_invalid = true;
        self.info.history.last_epoch_split = map.epoch();
        self.update_last_complete();
        for child in &mut out {
            child.advance_map(map.clone());
            // Those are rows of what it is; all of them are written below.
            child.actions.retain(|a| !matches!(a, Action::Persist(_)));
            child.persisted_epoch = map.epoch();
            if child.phase == Phase::Removing {
                child.removal_step();
            } else {
                // Comes behind everything that this PG has under way.
                child.settle = child.persist_all();
            }
            persist.split.push(SplitOff {
                pgid: child.info.pgid,
                pg_num: pool.pg_num,
                rows: child.all_rows(),
            });
        }
        // What was to be done before the map came goes first.
        let before = self.actions.len();
        self.advance_map(map.clone());
        self.actions.retain({
            let mut at = 0;
            move |a| {
                at += 1;
                at <= before || !matches!(a, Action::Persist(_))
            }
        });
        persist.rows.set.extend(rows::info_rows(&self.info));
        persist.rows.set.push(rows::past_row(&self.past));
        persist.rows.set.push(rows::epoch_row(map.epoch()));
        self.persisted_epoch = map.epoch();
        let after: Vec<_> = self.actions.drain(before..).collect();
        self.persist(persist);
        self.actions.extend(after);
        debug_assert_eq!(self.check_invariants(), Ok(()));
        debug_assert!(out.iter().all(|c| c.check_invariants() == Ok(())));
        out
    }

    /// Everything that is on disk, as rows.
    pub(super) fn all_rows(&self) -> RowBatch {
        let mut batch = RowBatch::default();
        batch.set.extend(rows::info_rows(&self.info));
        batch.set.push(rows::past_row(&self.past));
        batch.set.push(rows::epoch_row(self.map.epoch()));
        batch.set.extend(self.log.iter().map(|e| rows::log_row(e)));
        batch.set.extend(self.log.dups().map(rows::dup_row));
        batch.set.extend(self.missing.iter().map(|(oid, item)| rows::missing_row(oid, item)));
        batch
    }
}
