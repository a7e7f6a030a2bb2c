//! How members of the group talk. The messages are opaque to the carrier: it moves bytes to a
//! member and brings bytes back.

use super::runtime::Runtime;
use super::store::entry;
use super::{NodeId, TypeConfig};
use bytes::Bytes;
use openraft::error::{
    Infallible, InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable,
};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{AnyError, AsyncRuntime, BasicNode, LogId, Raft, SnapshotMeta, Vote};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A request to a member.
#[derive(Debug)]
pub enum RaftRequest {
    /// Log entries, or a heartbeat.
    Append(AppendEntriesRequest<TypeConfig>),
    /// A piece of a snapshot.
    Snapshot(InstallSnapshotRequest<TypeConfig>),
    /// A candidate asks for a vote.
    Vote(VoteRequest<NodeId>),
}

/// The answer to a [`RaftRequest`].
#[derive(Debug, Serialize, Deserialize)]
pub enum RaftReply {
    /// To [`RaftRequest::Append`].
    Append(Result<AppendEntriesResponse<NodeId>, RaftError<NodeId>>),
    /// To [`RaftRequest::Snapshot`].
    Snapshot(Result<InstallSnapshotResponse<NodeId>, RaftError<NodeId, InstallSnapshotError>>),
    /// To [`RaftRequest::Vote`].
    Vote(Result<VoteResponse<NodeId>, RaftError<NodeId>>),
}

/// What a request is beside its entries and pieces, which travel as they are: JSON would make them
/// several times as large.
#[derive(Serialize, Deserialize)]
enum Head {
    Append { vote: Vote<NodeId>, prev: Option<LogId<NodeId>>, committed: Option<LogId<NodeId>> },
    Snapshot { vote: Vote<NodeId>, meta: SnapshotMeta<NodeId, BasicNode>, offset: u64, done: bool },
    Vote(VoteRequest<NodeId>),
}

/// A request as bytes: the head as JSON, then a list of byte strings.
pub fn encode_request(request: RaftRequest) -> Bytes {
    let (head, body) = match request {
        RaftRequest::Append(r) => {
            let body = r.entries.iter().map(|e| Bytes::from(entry::encode(e))).collect();
            (Head::Append { vote: r.vote, prev: r.prev_log_id, committed: r.leader_commit }, body)
        }
        RaftRequest::Snapshot(r) => (
            Head::Snapshot { vote: r.vote, meta: r.meta, offset: r.offset, done: r.done },
            vec![Bytes::from(r.data)],
        ),
        RaftRequest::Vote(r) => (Head::Vote(r), vec![]),
    };
    let head = serde_json::to_vec(&head).unwrap_or_default();
    denc::Encode::to_bytes(&(Bytes::from(head), body), denc::Features::ALL)
}

/// The request of some bytes; `None` if they are none.
pub fn decode_request(bytes: &Bytes) -> Option<RaftRequest> {
    let (head, body): (Bytes, Vec<Bytes>) = denc::Decode::from_bytes(bytes).ok()?;
    Some(match serde_json::from_slice(&head).ok()? {
        Head::Append { vote, prev, committed } => {
            let entries = body.iter().map(|b| entry::decode(b).ok()).collect::<Option<_>>()?;
            RaftRequest::Append(AppendEntriesRequest {
                vote,
                prev_log_id: prev,
                entries,
                leader_commit: committed,
            })
        }
        Head::Snapshot { vote, meta, offset, done } => {
            let data = body.first()?.to_vec();
            RaftRequest::Snapshot(InstallSnapshotRequest { vote, meta, offset, data, done })
        }
        Head::Vote(r) => RaftRequest::Vote(r),
    })
}

/// A reply as bytes.
pub fn encode_reply(reply: &RaftReply) -> Bytes {
    serde_json::to_vec(reply).unwrap_or_default().into()
}

/// The reply of some bytes.
pub fn decode_reply(bytes: &[u8]) -> Option<RaftReply> {
    serde_json::from_slice(bytes).ok()
}

/// A future of [`Peers::call`].
pub type Call<'a> = Pin<Box<dyn Future<Output = std::io::Result<Bytes>> + Send + 'a>>;

/// Carries requests to other members.
pub trait Peers: Send + Sync + 'static {
    /// Sends `request` to the member `to` at `addr` and waits for its reply.
    fn call(&self, to: NodeId, addr: &str, request: Bytes) -> Call<'_>;
}

/// When what members answered last was sent, of what a leader sends and members that follow it
/// agree to.
#[derive(Default)]
pub(super) struct Heard(Mutex<BTreeMap<NodeId, Moment>>);

type Moment = <Runtime as AsyncRuntime>::Instant;

impl Heard {
    /// A member followed what was sent then.
    fn followed(&self, id: NodeId, sent: Moment) {
        let mut all = self.all();
        let at = all.entry(id).or_insert(sent);
        *at = sent.max(*at);
    }

    pub fn within(&self, limit: Duration) -> BTreeSet<NodeId> {
        self.all().iter().filter(|(_, t)| t.elapsed() < limit).map(|(id, _)| *id).collect()
    }

    pub fn forget(&self) {
        self.all().clear();
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<NodeId, Moment>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

pub(super) struct Network {
    pub peers: Arc<dyn Peers>,
    pub heard: Arc<Heard>,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, to: NodeId, node: &BasicNode) -> Peer {
        Peer { peers: self.peers.clone(), heard: self.heard.clone(), to, node: node.clone() }
    }
}

pub(super) struct Peer {
    peers: Arc<dyn Peers>,
    heard: Arc<Heard>,
    to: NodeId,
    node: BasicNode,
}

impl Peer {
    async fn call<E: std::error::Error>(
        &self,
        request: RaftRequest,
        option: RPCOption,
    ) -> Result<RaftReply, RPCError<NodeId, BasicNode, E>> {
        let call = self.peers.call(self.to, &self.node.addr, encode_request(request));
        match Runtime::timeout(option.hard_ttl(), call).await {
            Ok(Ok(reply)) => decode_reply(&reply).ok_or_else(Self::odd),
            Ok(Err(e)) => Err(RPCError::Unreachable(Unreachable::new(&e))),
            Err(e) => Err(RPCError::Unreachable(Unreachable::new(&e))),
        }
    }

    fn odd<E: std::error::Error>() -> RPCError<NodeId, BasicNode, E> {
        RPCError::Network(NetworkError::from(AnyError::error("a reply of another kind")))
    }

    fn remote<E: std::error::Error>(&self, e: E) -> RPCError<NodeId, BasicNode, E> {
        RPCError::RemoteError(RemoteError::new_with_node(self.to, self.node.clone(), e))
    }
}

type Failure<E = Infallible> = RPCError<NodeId, BasicNode, RaftError<NodeId, E>>;

impl RaftNetwork<TypeConfig> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, Failure> {
        let sent = Moment::now();
        match self.call(RaftRequest::Append(rpc), option).await? {
            RaftReply::Append(r) => {
                // A member that knows a newer term has promised nothing.
                if matches!(&r, Ok(r) if !matches!(r, AppendEntriesResponse::HigherVote(_))) {
                    self.heard.followed(self.to, sent);
                }
                r.map_err(|e| self.remote(e))
            }
            _ => Err(Self::odd()),
        }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<NodeId>, Failure<InstallSnapshotError>> {
        let (sent, vote) = (Moment::now(), rpc.vote);
        match self.call(RaftRequest::Snapshot(rpc), option).await? {
            RaftReply::Snapshot(r) => {
                if matches!(&r, Ok(r) if r.vote == vote) {
                    self.heard.followed(self.to, sent);
                }
                r.map_err(|e| self.remote(e))
            }
            _ => Err(Self::odd()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<NodeId>,
        option: RPCOption,
    ) -> Result<VoteResponse<NodeId>, Failure> {
        match self.call(RaftRequest::Vote(rpc), option).await? {
            RaftReply::Vote(r) => r.map_err(|e| self.remote(e)),
            _ => Err(Self::odd()),
        }
    }
}

pub(super) async fn handle(raft: &Raft<TypeConfig>, request: RaftRequest) -> RaftReply {
    match request {
        RaftRequest::Append(r) => RaftReply::Append(raft.append_entries(r).await),
        RaftRequest::Snapshot(r) => RaftReply::Snapshot(raft.install_snapshot(r).await),
        RaftRequest::Vote(r) => RaftReply::Vote(raft.vote(r).await),
    }
}

/// Bytes inside JSON.
pub(super) mod base64_bytes {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(bytes: &Bytes, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(d)?;
        STANDARD.decode(text.as_bytes()).map(Bytes::from).map_err(D::Error::custom)
    }
}
