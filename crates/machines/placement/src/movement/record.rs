//! What is asked of a movement, and what is kept of it.

use crate::upmap::Upmap;
use denc_derive::Denc;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{Epoch, OsdId, OsdMap, PgId, PoolId, Utime};

/// What is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(repr = "u8")]
pub enum Verb {
    /// OSDs are to have nothing, and no weight in CRUSH afterwards.
    #[default]
    Drain = 1,
    /// OSDs get a weight in CRUSH, and their part of the data.
    Grow = 2,
    /// A pool gets another rule.
    Rule = 3,
    /// An OSD is to have nothing, and to have the same again with another device.
    Replace = 4,
    /// OSDs are to have their part.
    Balance = 5,
}

impl Verb {
    /// As commands name it.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Drain => "drain",
            Verb::Grow => "grow",
            Verb::Rule => "rule",
            Verb::Replace => "replace",
            Verb::Balance => "balance",
        }
    }
}

/// What is wanted, of what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Goal {
    /// What.
    pub verb: Verb,
    /// Of these OSDs; to grow: with these weights in CRUSH, 16.16 fixed point.
    pub osds: Vec<(OsdId, u32)>,
    /// Of this pool,
    pub pool: PoolId,
    /// which gets this rule.
    pub rule: u8,
    /// To balance: bytes, within so many per mille of an OSD's part. 0: PGs.
    pub bytes_within: u32,
    /// To balance: PGs of each pool, within so many.
    pub pgs_within: u32,
}

/// How much at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct Limits {
    /// PGs that move at a time.
    pub pgs: u32,
    /// PGs that move from or to one OSD at a time.
    pub per_osd: u32,
    /// Bytes a second over all; 0 for as fast as it goes.
    pub rate: u64,
    /// Minutes of the day in UTC from which on
    pub from: u16,
    /// and until which something begins to move; the same for always.
    pub until: u16,
    /// Microseconds that 99 of 100 operations of clients take at most, or less begins to move; 0
    /// for no such ceiling.
    #[denc(since = 2)]
    pub p99: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { pgs: 16, per_osd: 2, rate: 0, from: 0, until: 0, p99: 0 }
    }
}

impl Limits {
    pub(super) fn permit(&self, now: Utime) -> bool {
        let minute = (now.sec % 86_400 / 60) as u16;
        match self.from.cmp(&self.until) {
            std::cmp::Ordering::Equal => true,
            std::cmp::Ordering::Less => minute >= self.from && minute < self.until,
            std::cmp::Ordering::Greater => minute >= self.from || minute < self.until,
        }
    }
}

/// Whether a job does something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(repr = "u8")]
pub enum State {
    /// It goes on.
    #[default]
    Running = 1,
    /// Nothing begins to move.
    Paused = 2,
    /// An OSD has nothing, and a new device is awaited.
    Waits = 3,
    /// It has reached its goal.
    Done = 4,
    /// All is as it was.
    Undone = 5,
}

impl State {
    /// As commands show it.
    pub fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Paused => "paused",
            State::Waits => "waits for the new device",
            State::Done => "done",
            State::Undone => "undone",
        }
    }

    /// Whether the job may still change the map.
    pub fn is_open(self) -> bool {
        !matches!(self, State::Done | State::Undone)
    }
}

/// Where a job goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(repr = "u8")]
pub enum Way {
    /// To its goal.
    #[default]
    Forward = 1,
    /// To how it was before.
    Back = 2,
    /// To a new device.
    Return = 3,
}

/// A change of what CRUSH chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Change {
    /// Weights of OSDs in CRUSH.
    pub weights: Vec<(OsdId, u32)>,
    /// Rules of pools.
    pub rules: Vec<(PoolId, u8)>,
}

impl Change {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty() && self.rules.is_empty()
    }

    /// Makes the change; returns the one that takes it back.
    pub fn apply(&self, map: &mut OsdMap) -> Result<Change, Stop> {
        let mut back = Change::default();
        if !self.weights.is_empty() {
            let mut crush = (*map.crush).clone();
            for (osd, weight) in &self.weights {
                let gone = || Stop(format!("osd.{osd} is not in the CRUSH map"));
                back.weights.push((*osd, crush.item_weight(osd.0).ok_or_else(gone)?));
                crush.adjust_item_weight(osd.0, *weight, true).map_err(|e| Stop(e.to_string()))?;
            }
            map.crush = Arc::new(crush);
        }
        for (id, rule) in &self.rules {
            let gone = || Stop(format!("pool {id} does not exist"));
            let pool = map.pools.get_mut(id).ok_or_else(gone)?;
            back.rules.push((*id, std::mem::replace(&mut pool.crush_rule, *rule)));
        }
        Ok(back)
    }
}

/// What one map changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// What CRUSH chooses.
    pub change: Change,
    /// Upmaps.
    pub upmaps: BTreeMap<PgId, Upmap>,
}

impl Edits {
    /// Makes the changes.
    pub fn apply(&self, map: &mut OsdMap) -> Result<(), Stop> {
        self.change.apply(map)?;
        for (pg, upmap) in &self.upmaps {
            upmap.put(map, *pg);
        }
        Ok(())
    }
}

/// Why a job does not begin, or does not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Stop(pub String);

/// A PG on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Moving {
    /// The map that moves it.
    pub epoch: Epoch,
    /// Bytes of one copy.
    pub bytes: u64,
    /// The OSDs that it leaves,
    pub from: Vec<OsdId>,
    /// and those that it comes to.
    pub to: Vec<OsdId>,
}
