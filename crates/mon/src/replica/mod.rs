//! Replication of the cluster state: a Raft group over a log and a row store kept in one file.
//!
//! What is replicated is opaque here: a [`Machine`] takes proposals as bytes, in the same order on every
//! monitor, and answers with the rows that changed. The file holds three tables:
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `meta` | `vote`, `committed`, `purged`, `applied` | JSON |
//! | `log` | index | one entry |
//! | `state` | row key | row |
//!
//! *Durable before visible.* An entry is on the medium before it counts as appended. Applying it writes
//! its rows without waiting for the medium: the next append makes them durable, and after a crash the
//! rows and `applied` are of the same instant, so that the log continues exactly where they end.

mod network;
mod store;

pub(crate) use network::Nobody;
pub use network::{Call, Peers, RaftReply, RaftRequest};
pub use store::{Row, Rows};

use bytes::Bytes;
use openraft::error::{ClientWriteError, RaftError};
use openraft::{BasicNode, Config, Raft, SnapshotPolicy};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use std::sync::{Arc, RwLock};
use store::{Log, Shared, StateMachine};

/// Identifies a monitor within the Raft group. The rank changes when monitors come and go; this does not.
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
);

/// A deterministic state machine whose state is a set of rows.
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
        /// What redb said.
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

/// Makes a file whose state begins with `rows`. Every member of a new group must begin with the same.
pub fn seed(path: &Path, rows: &Rows) -> Result<(), OpenError> {
    Shared::open(path)?.seed(rows)
}

/// One member of the group: the machine, its log and its file.
pub struct Replica<M> {
    raft: Raft<TypeConfig>,
    machine: Arc<RwLock<M>>,
    id: NodeId,
}

impl<M> Clone for Replica<M> {
    fn clone(&self) -> Self {
        Replica { raft: self.raft.clone(), machine: self.machine.clone(), id: self.id }
    }
}

impl<M: Machine> Replica<M> {
    /// Opens (or creates) the file at `path`, starts the member and, on a file that was never used,
    /// founds the group with `members`. A group of one leads when this returns.
    pub async fn open(
        path: &Path,
        id: NodeId,
        members: BTreeMap<NodeId, String>,
        peers: Arc<dyn Peers>,
    ) -> Result<Self, OpenError> {
        let shared = Shared::open(path)?;
        let rows = shared.rows()?;
        let machine = Arc::new(RwLock::new(M::load(&rows).map_err(OpenError::State)?));
        drop(rows);
        let alone = members.len() == 1;
        let config = Config {
            cluster_name: "mon".into(),
            // Alone there is nobody to hear from, and idle ticks are wasted wake-ups.
            heartbeat_interval: if alone { 1000 } else { 150 },
            election_timeout_min: if alone { 2000 } else { 600 },
            election_timeout_max: if alone { 3000 } else { 1200 },
            snapshot_policy: SnapshotPolicy::LogsSinceLast(512),
            max_in_snapshot_log_to_keep: 128,
            purge_batch_size: 64,
            ..Default::default()
        };
        let config = Arc::new(config.validate().map_err(|e| OpenError::Raft(e.to_string()))?);
        let fail = |e: &dyn std::fmt::Display| OpenError::Raft(e.to_string());
        let raft = Raft::new(
            id,
            config,
            network::Network(peers),
            Log(shared.clone()),
            StateMachine { shared, machine: machine.clone() },
        )
        .await
        .map_err(|e| fail(&e))?;
        if !raft.is_initialized().await.map_err(|e| fail(&e))? {
            let members: BTreeMap<NodeId, BasicNode> =
                members.into_iter().map(|(id, addr)| (id, BasicNode::new(addr))).collect();
            raft.initialize(members).await.map_err(|e| fail(&e))?;
        } else if alone {
            raft.trigger().elect().await.map_err(|e| fail(&e))?;
        }
        if alone {
            raft.wait(Some(std::time::Duration::from_secs(10)))
                .metrics(|m| m.current_leader == Some(id) && m.last_applied.is_some(), "lead")
                .await
                .map_err(|e| fail(&e))?;
            // A linearizable read point: everything that was committed before is applied.
            raft.ensure_linearizable().await.map_err(|e| fail(&e))?;
        }
        Ok(Replica { raft, machine, id })
    }

    /// Proposes; returns the machine's answer after a majority has the proposal on its media and this
    /// member has applied it.
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

    /// The leader, as far as this member knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.raft.metrics().borrow().current_leader
    }

    /// The current term; it plays the role of Ceph's election epoch.
    pub fn term(&self) -> u64 {
        self.raft.metrics().borrow().current_term
    }

    /// Becomes ready when the leader or the membership may have changed.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<openraft::RaftMetrics<NodeId, BasicNode>> {
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
