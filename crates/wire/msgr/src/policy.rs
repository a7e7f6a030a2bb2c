//! How connections with a kind of peer behave, and what is bounded.

use denc::Features;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{EntityType, features};

/// Behaviour of connections with one kind of peer (`Policy`, `src/msg/Policy.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A fault ends the connection and what was in flight is lost. Otherwise the session outlives
    /// the socket: unacknowledged messages are sent again, once each.
    pub lossy: bool,
    /// Never connects by itself; waits for the peer to come back.
    pub server: bool,
    /// After a fault with nothing to send, waits instead of reconnecting.
    pub standby: bool,
    /// A peer that lost its session makes us drop ours, rather than send into the void.
    pub resetcheck: bool,
    /// Whether a lossy client is known by its addresses, so that a second connection replaces the
    /// first.
    pub register_lossy_clients: bool,
    /// What we offer.
    pub supported: Features,
    /// What the peer must offer.
    pub required: Features,
}

impl Policy {
    const fn of(
        lossy: bool,
        server: bool,
        standby: bool,
        resetcheck: bool,
        register: bool,
    ) -> Self {
        Policy {
            lossy,
            server,
            standby,
            resetcheck,
            register_lossy_clients: register,
            supported: features::SUPPORTED,
            required: Features(0),
        }
    }

    /// The client's side of a connection to a monitor, manager or OSD.
    pub const fn lossy_client() -> Self {
        Policy::of(true, false, false, false, true)
    }

    /// The client's side of a connection to a metadata server.
    pub const fn lossless_client() -> Self {
        Policy::of(false, false, false, true, true)
    }

    /// The server's side of lossy clients: OSDs, managers.
    pub const fn stateless_server() -> Self {
        Policy::of(true, true, false, false, false)
    }

    /// The same where a client may have one connection only: monitors.
    pub const fn stateless_registered_server() -> Self {
        Policy::of(true, true, false, false, true)
    }

    /// The server's side of lossless clients: metadata servers.
    pub const fn stateful_server() -> Self {
        Policy::of(false, true, true, true, true)
    }

    /// Both sides among OSDs.
    pub const fn lossless_peer() -> Self {
        Policy::of(false, false, true, false, true)
    }

    /// Both sides among monitors: a peer that restarted keeps its address.
    pub const fn lossless_peer_reuse() -> Self {
        Policy::of(false, false, true, true, true)
    }

    /// The server's side of a peer that comes as a lossy client: of an OSD that reads objects for a
    /// copy from another one. It has the addresses of the peer, so that it must not be taken for
    /// the connection with the peer; and it never resumes a session, so that none is kept for it.
    pub const fn for_lossy_client(self) -> Self {
        Policy::stateless_server().with_features(self.supported, self.required)
    }

    /// The same policy with other features.
    pub const fn with_features(mut self, supported: Features, required: Features) -> Self {
        self.supported = supported;
        self.required = required;
        self
    }
}

/// Which policy for whom.
#[derive(Clone, Debug)]
pub struct PolicySet {
    default: Policy,
    by_type: BTreeMap<EntityType, Policy>,
}

impl PolicySet {
    /// One policy for all.
    pub fn new(default: Policy) -> Self {
        PolicySet { default, by_type: BTreeMap::new() }
    }

    /// Another one for a kind of peer.
    pub fn with(mut self, peer: EntityType, policy: Policy) -> Self {
        self.by_type.insert(peer, policy);
        self
    }

    /// The policy for a kind of peer.
    pub fn get(&self, peer: EntityType) -> Policy {
        self.by_type.get(&peer).copied().unwrap_or(self.default)
    }
}

/// Bounds on what one peer, or all together, can make us hold. Numbers are bytes unless they say
/// otherwise.
#[derive(Clone, Debug)]
pub struct Limits {
    /// A control frame before the peer has authenticated. Tickets are the largest thing in one; a
    /// few hundred bytes each.
    pub handshake_frame: usize,
    /// All frames together before the peer has authenticated; they are kept for the signature.
    pub handshake_total: usize,
    /// A control frame of an established session.
    pub control_frame: usize,
    /// The front of a message. Maps come in it.
    pub front: usize,
    /// The middle of a message.
    pub middle: usize,
    /// The data of a message. Ceph's clients split at `osd_max_write_size`, 90 MiB.
    pub data: usize,
    /// Messages of one connection that the dispatcher has not released; reading pauses above. A
    /// single message may exceed it, if it is alone.
    pub receive_unreleased: usize,
    /// Messages queued for a peer that does not read. Above it the connection is closed.
    pub send_queue: usize,
    /// Time from accept or connect to the end of the handshake (`ms_connection_ready_timeout`).
    pub handshake_time: Duration,
    /// An accepted connection without traffic for so long is closed (`ms_connection_idle_timeout`).
    pub idle_time: Duration,
    /// First pause before reconnecting (`ms_initial_backoff`); doubles with every failure.
    pub initial_backoff: Duration,
    /// Longest pause before reconnecting (`ms_max_backoff`).
    pub max_backoff: Duration,
    /// Accepted connections. Further ones are closed at once.
    pub connections: usize,
    /// Accepted connections that have not authenticated yet. Further ones push out the oldest.
    pub half_open: usize,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Limits {
            handshake_frame: 64 << 10,
            handshake_total: 256 << 10,
            control_frame: 64 << 10,
            front: 64 * MIB,
            middle: 16 * MIB,
            data: 128 * MIB,
            receive_unreleased: 100 * MIB,
            send_queue: 512 * MIB,
            handshake_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(900),
            initial_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(15),
            connections: 20_000,
            half_open: 4_000,
        }
    }
}
