//! Replication of the cluster state: a Raft group over a log and a row store kept in one file.
//!
//! What is replicated is opaque here: a [`Machine`] takes proposals as bytes, in the same order on
//! every monitor, and answers with the rows that changed. The file holds three tables:
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `meta` | `id`, `joining`, `vote`, `committed`, `purged`, `applied` | JSON |
//! | `log` | index | one entry |
//! | `state` | row key | row |
//!
//! *Durable before visible.* An entry is on the medium before it counts as appended. Applying it
//! writes its rows without waiting for the medium: the next append makes them durable, and after a
//! crash the rows and `applied` are of the same instant, so that the log continues exactly where
//! they end.
//!
//! *A file is a member.* Its number is drawn when it is made. A monitor that lost its file comes
//! back as another member, so that no member votes twice. New members begin with a snapshot, never
//! with the log from its first entry: the rows that a group was founded with are in no entry.

mod network;
mod rescue;
mod runtime;
#[cfg(test)]
mod sim;
mod store;

pub use network::{
    Call, Peers, RaftReply, RaftRequest, decode_reply, decode_request, encode_reply, encode_request,
};
pub use rescue::{Place, RescueError, Survey, Survivor};
pub use store::{Row, Rows};

use bytes::Bytes;
use network::Heard;
use openraft::error::{ClientWriteError, RaftError};
use openraft::{BasicNode, ChangeMembers, Config, Raft, SnapshotPolicy};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;
use store::{Log, Shared, StateMachine};

/// Identifies a monitor within the Raft group. The rank changes when monitors come and go; this
/// does not.
pub type NodeId = u64;

/// A proposal: bytes that only the [`Machine`] understands.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Proposal(#[serde(with = "network::base64_bytes")] pub Bytes);

/// The machine's answer to a proposal.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Answer(#[serde(with = "network::base64_bytes")] pub Bytes);

openraft::declare_raft_types!(
    /// The types of the monitors' Raft group.
    pub TypeConfig:
        D = Proposal,
        R = Answer,
        NodeId = NodeId,
        Node = BasicNode,
        AsyncRuntime = runtime::Runtime,
);

/// A deterministic state machine over a set of rows.
///
/// `apply` must depend on nothing but the state and the proposal. The rows it reports are all that
/// survives: `load` of the rows written so far gives the same state.
pub trait Machine: Send + Sync + 'static {
    /// Rebuilds the state from its rows; no rows at all are the empty state.
    fn load(rows: &Rows) -> Result<Self, String>
    where
        Self: Sized;

    /// Applies a proposal and reports the rows to write (`None` deletes).
    fn apply(&mut self, proposal: &Bytes, changed: &mut Vec<Row>) -> Bytes;
}

/// Why a proposal got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    /// Another monitor leads (or none does); ask it.
    #[error("not the leader")]
    NotLeader {
        /// The leader, if known.
        leader: Option<NodeId>,
    },
    /// The group cannot go on, for instance because its file cannot be written.
    #[error("the replicated log has stopped: {0}")]
    Stopped(String),
}

/// Why the replica could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file could not be opened or read.
    #[error("{path}: {source}")]
    Store {
        /// The file.
        path: String,
        /// redb's error.
        #[source]
        source: redb::Error,
    },
    /// The rows do not make a state.
    #[error("the stored state cannot be read: {0}")]
    State(String),
    /// The Raft group did not start.
    #[error("the replicated log did not start: {0}")]
    Raft(String),
}

/// Makes a file with `rows` as its first state: those of a new cluster, or none for a member that
/// others take in. `id` is drawn at random by the caller and was never used before.
pub fn seed(path: &Path, id: NodeId, rows: &Rows) -> Result<(), OpenError> {
    Shared::open(path)?.seed(id, rows)
}

/// How often a leader is heard of, and how long it waits for a member to answer. A member answers
/// when what it was sent is on its medium, so this is also how slow a flush may be without the
/// leader giving up on it.
pub const HEARTBEAT: Duration = Duration::from_millis(800);
/// A member that has not heard of its leader for the second of these, and then for a time between
/// both, stands for election. Until the second of these is over, it gives no other its vote either.
pub const ELECTION: (Duration, Duration) =
    (Duration::from_millis(2000), Duration::from_millis(2900));
/// A leader relies on a member for so long, from when it *sent* what the member answered. It is
/// less than what the member waits before it votes for another: a candidate may have heard nothing
/// of the leader for longer than the member.
pub const LEASE: Duration = Duration::from_millis(2700);

/// The members of a group: names by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// With a vote.
    pub voters: BTreeMap<NodeId, String>,
    /// Without.
    pub learners: BTreeMap<NodeId, String>,
    /// Members that are to have a vote when the change that is under way is over. Until then, a
    /// majority of them is needed as well as one of the earlier voters.
    pub changing: Option<BTreeSet<NodeId>>,
}

/// The role of a member, and its view of the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The term.
    pub term: u64,
    /// It leads, as far as it knows.
    pub leads: bool,
    /// It has a vote.
    pub votes: bool,
    /// The name of the leader that it follows.
    pub follows: Option<String>,
    /// Why it cannot go on.
    pub stopped: Option<String>,
}

/// One member of the group: the machine, its log and its file.
pub struct Replica<M> {
    raft: Raft<TypeConfig>,
    machine: Arc<RwLock<M>>,
    applied: Arc<AtomicU64>,
    heard: Arc<Heard>,
    /// The library lets go of the file when it stops.
    file: Weak<redb::Database>,
    id: NodeId,
}

impl<M> Clone for Replica<M> {
    fn clone(&self) -> Self {
        let Replica { raft, machine, applied, heard, file, id } = self;
        let (machine, applied, heard) = (machine.clone(), applied.clone(), heard.clone());
        Replica { raft: raft.clone(), machine, applied, heard, file: file.clone(), id: *id }
    }
}

impl<M: Machine> Replica<M> {
    /// Opens the file at `path` and starts the member that it is. A file that was never used
    /// belongs to no group yet: see [`Self::found`]; or others take it in.
    pub async fn open(path: &Path, peers: Arc<dyn Peers>) -> Result<Self, OpenError> {
        Self::start(Shared::open(path)?, peers).await
    }

    async fn start(shared: Shared, peers: Arc<dyn Peers>) -> Result<Self, OpenError> {
        let rows = shared.rows()?;
        let machine = Arc::new(RwLock::new(M::load(&rows).map_err(OpenError::State)?));
        drop(rows);
        let id = shared.id().map_err(|e| OpenError::Raft(e.to_string()))?;
        let config = Config {
            cluster_name: "mon".into(),
            heartbeat_interval: HEARTBEAT.as_millis() as u64,
            election_timeout_min: ELECTION.0.as_millis() as u64,
            election_timeout_max: ELECTION.1.as_millis() as u64,
            install_snapshot_timeout: 20_000,
            snapshot_max_chunk_size: 1 << 20,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(512),
            max_in_snapshot_log_to_keep: 128,
            purge_batch_size: 64,
            ..Default::default()
        };
        let config = Arc::new(config.validate().map_err(|e| OpenError::Raft(e.to_string()))?);
        let applied = Arc::new(AtomicU64::new(0));
        let heard = Arc::new(Heard::default());
        let file = Arc::downgrade(&shared.0);
        let raft = Raft::new(
            id,
            config,
            network::Network { peers, heard: heard.clone() },
            Log(shared.clone()),
            StateMachine { shared, machine: machine.clone(), index: applied.clone() },
        )
        .await
        .map_err(|e| OpenError::Raft(e.to_string()))?;
        let replica = Replica { raft, machine, applied, heard, file, id };
        if replica.is_member().await?
            && replica.members().voters.len() == 1
            && replica.members().voters.contains_key(&id)
        {
            replica.raft.trigger().elect().await.map_err(|e| OpenError::Raft(e.to_string()))?;
            replica.wait_to_lead().await?;
        }
        Ok(replica)
    }

    /// Whether this member belongs to a group.
    pub async fn is_member(&self) -> Result<bool, OpenError> {
        self.raft.is_initialized().await.map_err(|e| OpenError::Raft(e.to_string()))
    }

    /// Whether this member has to be taken in yet: it never had a vote. One that got the log of a
    /// group is not in the group for that: the leader that admitted it may have been deposed before
    /// a majority knew.
    pub async fn joins(&self) -> Result<bool, OpenError> {
        let fail = |e: &dyn std::fmt::Display| OpenError::Raft(e.to_string());
        let Some(file) = self.file.upgrade().map(Shared) else { return Ok(false) };
        match file.meta::<bool>("joining").map_err(|e| fail(&e))? {
            Some(true) if self.standing().votes => {
                file.joined().map_err(|e| fail(&e))?;
                Ok(false)
            }
            Some(joins) => Ok(joins),
            // A file from before this was kept.
            None => Ok(!self.is_member().await?),
        }
    }

    /// Founds a group of this member alone, with the rows of the file as its first state. It leads
    /// when this returns.
    pub async fn found(&self, name: &str) -> Result<(), OpenError> {
        let members: BTreeMap<NodeId, BasicNode> = [(self.id, BasicNode::new(name))].into();
        self.raft.initialize(members).await.map_err(|e| OpenError::Raft(e.to_string()))?;
        self.wait_to_lead().await?;
        self.joins().await.map(drop)
    }

    async fn wait_to_lead(&self) -> Result<(), OpenError> {
        let fail = |e: &dyn std::fmt::Display| OpenError::Raft(e.to_string());
        let id = self.id;
        self.raft
            .wait(Some(Duration::from_secs(10)))
            .metrics(|m| m.current_leader == Some(id) && m.last_applied.is_some(), "lead")
            .await
            .map_err(|e| fail(&e))?;
        // A linearizable read point: everything that was committed before is applied.
        self.raft.ensure_linearizable().await.map_err(|e| fail(&e))?;
        Ok(())
    }

    /// Waits until a new leader has applied all that was committed before it. False if it does not
    /// lead.
    ///
    /// The library only waits for the first entry of the leader's term, and for what it knows to be
    /// committed. A leader that was started again goes on in its term without an election, and may
    /// have forgotten what it knew: entries that it answered are in its log, not applied yet. So
    /// this waits for all that is in the log.
    pub async fn catch_up(&self) -> bool {
        let term = self.term();
        if self.raft.ensure_linearizable().await.is_err() {
            return false;
        }
        let last = self.raft.metrics().borrow().last_log_index;
        let leads = |m: &openraft::RaftMetrics<NodeId, BasicNode>| {
            m.state == openraft::ServerState::Leader && m.current_term == term
        };
        let applied =
            |m: &openraft::RaftMetrics<NodeId, BasicNode>| m.last_applied.map(|l| l.index) >= last;
        let end =
            self.raft.wait(None).metrics(|m| applied(m) || !leads(m), "what is in the log").await;
        end.is_ok_and(|m| applied(&m) && leads(&m))
    }

    /// The members of the group, as far as this member knows.
    pub fn members(&self) -> Members {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let config = &metrics.membership_config;
        let voters: BTreeSet<NodeId> = config.voter_ids().collect();
        let mut out = Members::default();
        for (id, node) in config.nodes() {
            match voters.contains(id) {
                true => out.voters.insert(*id, node.addr.clone()),
                false => out.learners.insert(*id, node.addr.clone()),
            };
        }
        if let [_, .., last] = &config.membership().get_joint_config()[..] {
            out.changing = Some(last.clone());
        }
        out
    }

    /// Takes a member in, without a vote. It gets a snapshot and then the log.
    pub async fn admit(&self, id: NodeId, name: &str) -> Result<(), String> {
        self.compact().await?;
        self.raft
            .add_learner(id, BasicNode::new(name), false)
            .await
            .map(drop)
            .map_err(|e| e.to_string())
    }

    /// Whether this member stands for election and, if it leads, says so to the others.
    pub fn take_part(&self, takes: bool) {
        self.raft.runtime_config().elect(takes);
        self.raft.runtime_config().heartbeat(takes);
        if !takes {
            self.heard.forget();
        }
    }

    /// Members that followed this one, which leads, within [`LEASE`].
    pub fn followers(&self) -> BTreeSet<NodeId> {
        self.heard.within(LEASE)
    }

    /// Whether this member leads in this term, and has no successor now: a majority has promised
    /// not to elect one yet.
    pub fn may_lead(&self, term: u64) -> bool {
        self.may_lead_for(term, LEASE)
    }

    fn may_lead_for(&self, term: u64, lease: Duration) -> bool {
        let heard = self.heard.within(lease);
        let metrics = self.raft.metrics();
        let m = metrics.borrow();
        let there = |v: &NodeId| *v == self.id || heard.contains(v);
        // Both halves of a change that is under way elect.
        let majority =
            |half: &BTreeSet<NodeId>| half.iter().filter(|v| there(v)).count() * 2 > half.len();
        let led = m.state == openraft::ServerState::Leader && m.current_term == term;
        led && m.membership_config.membership().get_joint_config().iter().all(majority)
    }

    /// Makes a snapshot, and throws away the log up to it.
    pub async fn compact_log(&self) -> Result<(), String> {
        let upto = self.raft.metrics().borrow().last_applied.map_or(0, |l| l.index);
        self.raft.trigger().snapshot().await.map_err(|e| e.to_string())?;
        let wait = || self.raft.wait(Some(Duration::from_secs(10)));
        wait()
            .metrics(|m| m.snapshot.is_some_and(|s| s.index >= upto), "a snapshot")
            .await
            .map_err(|e| e.to_string())?;
        self.raft.trigger().purge_log(upto).await.map_err(|e| e.to_string())?;
        wait()
            .metrics(|m| m.purged.is_some_and(|p| p.index >= upto), "a shorter log")
            .await
            .map_err(|e| e.to_string())?;
        Ok(())
    }

    /// Throws away the log up to the newest snapshot, if nothing of it was thrown away before: see
    /// the module.
    async fn compact(&self) -> Result<(), String> {
        let begun = self.raft.metrics().borrow().purged.is_some();
        if begun {
            return Ok(());
        }
        self.compact_log().await
    }

    /// Whether a learner has almost all of the log.
    pub fn has_caught_up(&self, id: NodeId) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let last = metrics.last_log_index.unwrap_or(0);
        let matched = metrics.replication.as_ref().and_then(|r| r.get(&id).copied().flatten());
        matched.is_some_and(|l| l.index + 8 >= last)
    }

    /// Makes these the members with a vote; those that had one and are not among them leave the
    /// group.
    pub async fn set_voters(&self, voters: BTreeSet<NodeId>) -> Result<(), String> {
        let change = ChangeMembers::ReplaceAllVoters(voters);
        self.raft.change_membership(change, false).await.map(drop).map_err(|e| e.to_string())
    }

    /// Removes members without a vote.
    pub async fn remove_learners(&self, ids: BTreeSet<NodeId>) -> Result<(), String> {
        self.raft
            .change_membership(ChangeMembers::RemoveNodes(ids), false)
            .await
            .map(drop)
            .map_err(|e| e.to_string())
    }

    /// Proposes; returns the machine's answer after a majority has the proposal on its media and
    /// this member has applied it.
    pub async fn propose(&self, proposal: Bytes) -> Result<Bytes, ProposeError> {
        match self.raft.client_write(Proposal(proposal)).await {
            Ok(r) => Ok(r.data.0),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(f))) => {
                Err(ProposeError::NotLeader { leader: f.leader_id })
            }
            Err(e) => Err(ProposeError::Stopped(e.to_string())),
        }
    }

    /// The machine as of the last applied entry.
    pub fn read<T>(&self, f: impl FnOnce(&M) -> T) -> T {
        f(&self.machine.read().unwrap_or_else(|e| e.into_inner()))
    }

    /// This member's id.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// What this member is, and which one leads.
    pub fn standing(&self) -> Standing {
        let metrics = self.raft.metrics();
        let m = metrics.borrow();
        let name =
            |id: &NodeId| m.membership_config.membership().get_node(id).map(|n| n.addr.clone());
        Standing {
            term: m.current_term,
            leads: m.state == openraft::ServerState::Leader,
            votes: m.membership_config.voter_ids().any(|v| v == self.id),
            follows: match m.state {
                openraft::ServerState::Follower | openraft::ServerState::Learner => {
                    m.current_leader.filter(|l| *l != self.id).and_then(|l| name(&l))
                }
                _ => None,
            },
            stopped: m.running_state.as_ref().err().map(|e| e.to_string()),
        }
    }

    /// The index of the last entry that was applied.
    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// The current term; it plays the role of Ceph's election epoch.
    pub fn term(&self) -> u64 {
        self.raft.metrics().borrow().current_term
    }

    /// Becomes ready when what [`Self::standing`], [`Self::members`] or [`Self::applied`] say may
    /// have changed.
    pub fn changes(
        &self,
    ) -> tokio::sync::watch::Receiver<openraft::RaftMetrics<NodeId, BasicNode>> {
        self.raft.metrics()
    }

    /// Handles a request that another member sent.
    pub async fn handle(&self, request: RaftRequest) -> RaftReply {
        network::handle(&self.raft, request).await
    }

    /// Stops. What was answered is on the medium already.
    pub async fn shutdown(&self) {
        if let Err(e) = self.raft.shutdown().await {
            tracing::warn!("stopping the replicated log: {e}");
        }
    }
}

#[cfg(test)]
mod tests;
