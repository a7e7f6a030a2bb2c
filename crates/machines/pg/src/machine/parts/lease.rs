//! Leases that a copy has, has given and was promised.

use crate::lease::Steady;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{Epoch, Eversion, PgShard};

/// What this copy has promised, and what was promised to it.
#[derive(Debug, Default)]
pub(in crate::machine) struct Leases {
    pub(in crate::machine) now: Steady,
    /// The copy was loaded: promises begin when the clock is known.
    pub(in crate::machine) assumed: bool,
    /// The copies that may still serve reads.
    pub(in crate::machine) promised: BTreeMap<PgShard, Held>,
    // As primary.
    pub(in crate::machine) round: Round,
    pub(in crate::machine) complete: Option<(Steady, Duration)>,
    /// The host was told that reads wait, or may be waiting.
    pub(in crate::machine) laggy: bool,
    // As replica.
    pub(in crate::machine) answered: Option<(u64, Steady, Duration)>,
    pub(in crate::machine) answered_before: Option<Steady>,
    pub(in crate::machine) until: Steady,
    /// Durable on every acting OSD, as far as the primary told.
    pub(in crate::machine) committed: Eversion,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct Held {
    pub(in crate::machine) up_from: Epoch,
    pub(in crate::machine) interval: Epoch,
    pub(in crate::machine) until: Steady,
}

#[derive(Debug, Default)]
pub(in crate::machine) struct Round {
    pub(in crate::machine) number: u64,
    pub(in crate::machine) began: Steady,
    pub(in crate::machine) length: Duration,
    pub(in crate::machine) waiting: BTreeSet<PgShard>,
}

impl Leases {
    /// A new interval: what was promised stays promised.
    pub(in crate::machine) fn leave_interval(&mut self) {
        let (now, assumed) = (self.now, self.assumed);
        *self =
            Self { now, assumed, promised: std::mem::take(&mut self.promised), ..Self::default() };
    }

    /// A copy that may serve reads of a PG may serve those of its child, until it knows of the
    /// split.
    pub(in crate::machine) fn of_child(&self) -> Self {
        Self {
            now: self.now,
            assumed: self.assumed,
            promised: self.promised.clone(),
            ..Self::default()
        }
    }

    /// The copies that may serve reads of a PG that is joined with this one. Its intervals are not
    /// this one's, so their promises count as made in the epoch of the join.
    pub(in crate::machine) fn inherit(&mut self, source: &Self, epoch: Epoch) {
        self.assumed |= source.assumed;
        self.now = self.now.max(source.now);
        for (holder, held) in &source.promised {
            self.note(*holder, Held { interval: epoch, ..*held });
        }
    }

    pub(in crate::machine) fn note(&mut self, holder: PgShard, held: Held) {
        let old = self.promised.entry(holder).or_insert(held);
        if held.up_from > old.up_from {
            // Its former life is over.
            *old = held;
        } else if held.up_from == old.up_from {
            old.until = old.until.max(held.until);
            old.interval = old.interval.max(held.interval);
        }
    }
}
