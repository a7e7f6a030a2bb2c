//! Removing a copy that is not needed.

use types::Eversion;

use crate::action::{Action, Persist};
use crate::info::Backfill;
use crate::rows;
use crate::stats::StatSum;

use super::{Deferred, Pg, Phase};

impl Pg {
    /// The primary says that the PG is clean without this copy.
    pub(super) fn handle_remove(&mut self) {
        let here = self.mapping.acting.contains(&self.me) || self.mapping.up.contains(&self.me);
        if !here {
            self.start_removal();
        }
    }

    pub(super) fn start_removal(&mut self) {
        if matches!(self.phase, Phase::Removing | Phase::Gone) {
            return;
        }
        self.leave_interval();
        self.phase = Phase::Removing;
        // From the first removed object on this copy is not what its log says. If the OSD stops
        // half way, it must not be taken for a copy when it comes back.
        let mut persist = Persist::default();
        persist.rows.remove.extend(self.log.iter().map(|e| rows::log_key(e.entry.version)));
        persist.rows.remove.extend(self.log.dups().map(rows::dup_key));
        persist.rows.remove.extend(self.missing.iter().map(|(oid, _)| rows::missing_key(oid)));
        let (stats, filled) = (self.info.stats, self.fraction(&self.info.last_backfill));
        let part = |n: i64| (n.max(0) as f64 * filled) as i64;
        self.log = Default::default();
        self.missing = Default::default();
        self.info.removing = true;
        self.info.last_backfill = Backfill::Nothing;
        self.info.last_update = Eversion::default();
        self.info.last_complete = Eversion::default();
        self.info.log_tail = Eversion::default();
        // What there is to remove, for operators.
        self.info.stats = StatSum {
            num_objects: part(stats.num_objects),
            num_bytes: part(stats.num_bytes),
            ..StatSum::default()
        };
        self.info_rows(&mut persist);
        let token = self.persist(persist);
        self.defer(token, Deferred::Remove);
    }

    pub(super) fn removal_step(&mut self) {
        if self.phase == Phase::Removing {
            self.actions.push_back(Action::RemoveObjects { max: self.conf.removal_batch.max(1) });
        }
    }

    pub(super) fn handle_objects_removed(&mut self, more: bool) {
        if self.phase != Phase::Removing {
            return;
        }
        if more {
            self.removal_step();
        } else {
            self.phase = Phase::Gone;
            let undelivered = std::mem::take(&mut self.future);
            self.actions.push_back(Action::Gone { undelivered });
        }
    }
}
