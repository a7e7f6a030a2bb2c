//! The peers of an objecter, and what it keeps of its session with each.

use crate::objecter::blocked::Backoffs;
use msgr::Connection;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::{EntityAddrVec, EntityType, FsMap, OsdId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Peer {
    Osd(OsdId),
    Mgr,
    /// A metadata server, by its global id.
    Mds(u64),
}

impl Peer {
    pub(super) fn kind(self) -> EntityType {
        match self {
            Peer::Osd(_) => EntityType::OSD,
            Peer::Mgr => EntityType::MGR,
            Peer::Mds(_) => EntityType::MDS,
        }
    }
}

#[derive(Default)]
pub(super) struct MgrState {
    pub addrs: EntityAddrVec,
}

/// What is known of file systems. Nothing is asked for before the first use.
#[derive(Default)]
pub(super) struct FsState {
    pub wanted: bool,
    pub map: Option<Arc<FsMap>>,
}

pub(super) struct Session {
    pub conn: Rc<Connection>,
    pub addrs: EntityAddrVec,
    /// The pause before the next attempt; reset by a connection that works.
    pub(super) pause: Duration,
    pub backoffs: Backoffs,
}

/// Kept by a connection, to find its session.
pub(super) struct Link(pub Peer);

/// Features to encode a request for. Before the connection is established they are not known; then
/// the oldest form that every supported OSD reads is used.
pub(super) fn encode_features(conn: &Connection) -> denc::Features {
    if conn.is_connected() { conn.features() } else { types::features::PACIFIC }
}

/// The peer of one of our connections.
pub(super) fn peer_of(conn: &Connection) -> Option<Peer> {
    conn.user::<Link>().map(|link| link.0)
}
