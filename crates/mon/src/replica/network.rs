//! How members of the group talk. The messages are opaque to the carrier: it moves bytes to a member
//! and brings bytes back.

use super::{NodeId, TypeConfig};
use bytes::Bytes;
use openraft::error::{Infallible, InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use openraft::{AnyError, BasicNode, Raft};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A request to a member.
#[derive(Debug, Serialize, Deserialize)]
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

/// A future of [`Peers::call`].
pub type Call<'a> = Pin<Box<dyn Future<Output = std::io::Result<Bytes>> + Send + 'a>>;

/// Carries requests to other members.
pub trait Peers: Send + Sync + 'static {
    /// Sends `request` to the member `to` at `addr` and waits for its reply.
    fn call(&self, to: NodeId, addr: &str, request: Bytes) -> Call<'_>;
}

pub(super) struct Network(pub Arc<dyn Peers>);

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, to: NodeId, node: &BasicNode) -> Peer {
        Peer { peers: self.0.clone(), to, node: node.clone() }
    }
}

pub(super) struct Peer {
    peers: Arc<dyn Peers>,
    to: NodeId,
    node: BasicNode,
}

impl Peer {
    async fn call<E: std::error::Error>(
        &self,
        request: RaftRequest,
        option: RPCOption,
    ) -> Result<RaftReply, RPCError<NodeId, BasicNode, E>> {
        let bytes = serde_json::to_vec(&request).map_err(|e| RPCError::Network(NetworkError::new(&e)))?;
        let call = self.peers.call(self.to, &self.node.addr, bytes.into());
        match tokio::time::timeout(option.hard_ttl(), call).await {
            Ok(Ok(reply)) => serde_json::from_slice(&reply).map_err(|e| RPCError::Network(NetworkError::new(&e))),
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
        match self.call(RaftRequest::Append(rpc), option).await? {
            RaftReply::Append(r) => r.map_err(|e| self.remote(e)),
            _ => Err(Self::odd()),
        }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<NodeId>, Failure<InstallSnapshotError>> {
        match self.call(RaftRequest::Snapshot(rpc), option).await? {
            RaftReply::Snapshot(r) => r.map_err(|e| self.remote(e)),
            _ => Err(Self::odd()),
        }
    }

    async fn vote(&mut self, rpc: VoteRequest<NodeId>, option: RPCOption) -> Result<VoteResponse<NodeId>, Failure> {
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

/// A group of one has nobody to call.
pub(crate) struct Nobody;

impl Peers for Nobody {
    fn call(&self, to: NodeId, _: &str, _: Bytes) -> Call<'_> {
        Box::pin(async move { Err(std::io::Error::other(format!("monitor {to} cannot be reached"))) })
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
