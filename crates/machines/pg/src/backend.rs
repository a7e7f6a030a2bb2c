//! What differs between kinds of pools.
//!
//! The machine asks the [`Backend`] of its pool wherever a copy that is whole and a shard of an
//! object are not the same; it knows no kind itself.

use std::fmt;

use types::PgShard;

/// How a pool keeps its objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PoolKind {
    /// Every copy has everything.
    #[default]
    Replicated,
}

impl PoolKind {
    /// The rules of the kind.
    pub fn backend(&self) -> &dyn Backend {
        match self {
            Self::Replicated => &Replicated,
        }
    }
}

/// Which log counts, of copies that took part in the newest activation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogRule {
    /// The newest: a write that one copy has can be given to the others.
    Newest,
    /// The oldest: a write that some copies lack may be on too few of them, and those that have it
    /// can undo it. What was acknowledged is on all of them.
    Oldest,
}

/// What differs between kinds of pools.
pub trait Backend: fmt::Debug {
    /// Whether these copies are enough to know every write that all of them were part of, and to
    /// have its content (Ceph: `IsPGRecoverablePredicate`).
    fn recoverable(&self, survivors: &mut dyn Iterator<Item = PgShard>) -> bool;

    /// Which log counts.
    fn log_rule(&self) -> LogRule;
}

/// Every copy has everything (Ceph: `ReplicatedBackend`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replicated;

impl Backend for Replicated {
    fn recoverable(&self, survivors: &mut dyn Iterator<Item = PgShard>) -> bool {
        survivors.next().is_some()
    }

    fn log_rule(&self) -> LogRule {
        LogRule::Newest
    }
}
