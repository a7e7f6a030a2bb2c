//! Going on from the file of one member when a majority of the others is lost for good.
//!
//! Everything in the file's log is applied, whether it was committed or not: a client was told that
//! something is done only after a majority had it in its log, and this may be the only member of
//! that majority that is left. Then the file becomes that of *another* member, with a number of its
//! own, which is alone in a group that begins with this state. Nothing that members of the old
//! group send is for it, and no member of the old group belongs to the new one.

use super::store::{Applied, LOG, STATE, Shared, entry, put_meta};
use super::{Machine, NodeId, Row, Rows};
use openraft::{
    BasicNode, CommittedLeaderId, EntryPayload, LogId, Membership, StoredMembership, Vote,
};
use redb::{Database, Durability, ReadableDatabase, ReadableTable};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// By how much the term goes on, beyond those that lost members can have had.
const SKIPPED_TERMS: u64 = 1000;

/// Why a file cannot be gone on from.
#[derive(Debug, thiserror::Error)]
pub enum RescueError {
    /// It is not there, or cannot be opened.
    #[error("cannot be opened: {0}")]
    Unreadable(#[source] redb::Error),
    /// Another process has it open.
    #[error("in use: stop the monitor first")]
    Busy,
    /// It contradicts itself.
    #[error("damaged: {0}")]
    Damaged(String),
    /// It was never part of a group.
    #[error("belongs to no group of monitors, so there is nothing in it to go on from")]
    NoGroup,
    /// Its group took it out.
    #[error("is not of a member of its group any more: the others removed it or replaced it")]
    Removed,
    /// It has no others that could be lost.
    #[error("is of the only member of its group already: start the monitor")]
    Alone,
    /// An entry could not be applied to the state.
    #[error("{0}")]
    State(String),
    /// It could not be written.
    #[error("cannot be written: {0}")]
    Unwritable(#[source] redb::Error),
}

/// A place in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// In which term the entry was made.
    pub term: u64,
    /// Its number.
    pub index: u64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "term {} index {}", self.term, self.index)
    }
}

impl From<Option<LogId<u64>>> for Place {
    fn from(at: Option<LogId<u64>>) -> Self {
        at.map_or(Place::default(), |l| Place { term: l.leader_id.term, index: l.index })
    }
}

/// The member and the group of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The member's number.
    pub id: NodeId,
    /// The newest term that it knows.
    pub term: u64,
    /// Members with a vote, by number.
    pub voters: BTreeMap<NodeId, String>,
    /// Members without one.
    pub learners: BTreeMap<NodeId, String>,
    /// Up to where it knew that entries were committed, and had applied them.
    pub applied: Place,
    /// The last entry of its log. Of several survivors the one with the greatest has the most.
    pub last: Place,
}

/// The file of a member that is left, with a machine to which its whole log was applied.
pub struct Survivor<M> {
    shared: Shared,
    survey: Survey,
    changed: Vec<Row>,
    /// The state at the end of the log.
    pub machine: M,
}

impl<M: Machine> Survivor<M> {
    /// Reads the file of a member that does not run, and changes nothing in it.
    pub fn open(path: &Path) -> Result<Self, RescueError> {
        let mut db =
            Database::builder().set_cache_size(16 << 20).open(path).map_err(|e| match e {
                redb::DatabaseError::DatabaseAlreadyOpen => RescueError::Busy,
                redb::DatabaseError::Storage(redb::StorageError::Corrupted(what)) => {
                    RescueError::Damaged(what)
                }
                other => RescueError::Unreadable(other.into()),
            })?;
        match db.check_integrity() {
            Ok(true) => {}
            Ok(false) => tracing::warn!("{}: mended", path.display()),
            Err(e) => return Err(RescueError::Damaged(e.to_string())),
        }
        let shared = Shared(std::sync::Arc::new(db));
        let (survey, rows, entries) = read(&shared)?;
        if survey.voters.is_empty() && survey.learners.is_empty() {
            return Err(RescueError::NoGroup);
        }
        if !survey.voters.contains_key(&survey.id) && !survey.learners.contains_key(&survey.id) {
            return Err(RescueError::Removed);
        }
        if survey.voters.keys().eq([&survey.id]) {
            return Err(RescueError::Alone);
        }
        let mut machine = M::load(&rows).map_err(RescueError::Damaged)?;
        let mut changed = Vec::new();
        for e in entries {
            if let EntryPayload::Normal(p) = e.payload {
                machine.apply(&p.0, &mut changed);
            }
        }
        Ok(Survivor { shared, survey, changed, machine })
    }

    /// The member and the group of the file.
    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    /// Makes the file that of the member `id`, alone in its group under this name, as a whole or
    /// not at all. `rows` are written over those of the machine. `id` is drawn at random by the
    /// caller and was never used before.
    pub fn rescue(self, id: NodeId, name: &str, rows: Vec<Row>) -> Result<(), RescueError> {
        let leader = CommittedLeaderId::new(self.survey.term + SKIPPED_TERMS, id);
        let here = LogId::new(leader, self.survey.last.index + 1);
        let nodes: BTreeMap<NodeId, BasicNode> = [(id, BasicNode::new(name))].into();
        let membership =
            StoredMembership::new(Some(here), Membership::new(vec![BTreeSet::from([id])], nodes));
        self.shared
            .write(Durability::Immediate, |t| {
                t.open_table(LOG)?.retain(|_, _| false)?;
                let mut state = t.open_table(STATE)?;
                for (k, v) in self.changed.iter().chain(&rows) {
                    match v {
                        Some(v) => drop(state.insert(&k[..], &v[..])?),
                        None => drop(state.remove(&k[..])?),
                    }
                }
                drop(state);
                put_meta(t, "id", &id)?;
                put_meta(t, "vote", &Vote::new(leader.term, id))?;
                put_meta(t, "committed", &Some(here))?;
                put_meta(t, "purged", &here)?;
                put_meta(t, "applied", &Applied { log_id: Some(here), membership })
            })
            .map_err(RescueError::Unwritable)
    }
}

type Entry = openraft::Entry<super::TypeConfig>;

/// What the file says, its rows, and the entries that follow on them.
fn read(shared: &Shared) -> Result<(Survey, Rows, Vec<Entry>), RescueError> {
    let damaged = |e: &dyn std::fmt::Display| RescueError::Damaged(e.to_string());
    let (rows, applied) = shared.try_rows().map_err(|e| damaged(&e))?;
    let purged: Option<LogId<u64>> = shared.meta("purged").map_err(|e| damaged(&e))?;
    let vote: Option<Vote<u64>> = shared.meta("vote").map_err(|e| damaged(&e))?;
    let entries = all_entries(shared).map_err(|e| damaged(&e))?;
    let mut membership = applied.membership.membership().clone();
    let mut last = applied.log_id.max(purged);
    let mut after = Vec::new();
    for e in entries {
        // What was applied may still be in the log.
        if Some(e.log_id.index) <= applied.log_id.map(|l| l.index) {
            continue;
        }
        let next = last.map_or(0, |l| l.index + 1);
        if e.log_id.index != next {
            return Err(RescueError::Damaged(format!(
                "its log has entry {} where {next} should be",
                e.log_id.index
            )));
        }
        last = Some(e.log_id);
        if let EntryPayload::Membership(m) = &e.payload {
            membership = m.clone();
        }
        after.push(e);
    }
    if purged > applied.log_id {
        return Err(RescueError::Damaged("its log begins after its state ends".into()));
    }
    let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
    let named = |voting: bool| {
        let of = |(id, n): (&NodeId, &BasicNode)| {
            (voters.contains(id) == voting).then(|| (*id, n.addr.clone()))
        };
        membership.nodes().filter_map(of).collect()
    };
    let survey = Survey {
        id: shared.id().map_err(|e| damaged(&e))?,
        term: vote.map_or(0, |v| v.leader_id.term).max(Place::from(last).term),
        voters: named(true),
        learners: named(false),
        applied: applied.log_id.into(),
        last: last.into(),
    };
    Ok((survey, rows, after))
}

fn all_entries(shared: &Shared) -> Result<Vec<Entry>, redb::Error> {
    let txn = shared.0.begin_read()?;
    let table = txn.open_table(LOG)?;
    table.iter()?.map(|item| entry::decode(item?.1.value())).collect()
}
