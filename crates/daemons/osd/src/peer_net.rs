//! How OSDs reach each other.
//!
//! Two OSDs of one process hand messages over through a channel, whatever threads they live on.
//! Others use the messenger. Either way the messages of one sender arrive in their order.

use crate::rooms::Room;
use pg::{PeerHeader, PeerMsg};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use types::{EntityAddrVec, OsdId, PgShard};

/// A message from another OSD.
#[derive(Debug)]
pub struct Envelope {
    /// The sender.
    pub from: OsdId,
    /// For which PG and of which epoch it is.
    pub header: PeerHeader,
    /// The message.
    pub msg: PeerMsg,
    /// What may still be sent to the sender, if it says so.
    pub room: Option<Room>,
}

/// Sends messages to other OSDs.
pub trait PeerNet {
    /// Sends one message to several copies at the position that the header names, with the room
    /// that is left here.
    fn send(&self, to: &[PgShard], header: PeerHeader, msg: PeerMsg, room: Room);
}

type Registry = Mutex<HashMap<EntityAddrVec, UnboundedSender<Envelope>>>;

/// The OSDs of this process. The lock is taken when an OSD starts, stops or meets a new peer, not
/// to send.
fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(Registry::default)
}

/// An OSD's place among those of the process.
pub struct LocalPeer {
    addrs: EntityAddrVec,
}

impl LocalPeer {
    /// Makes the OSD with these addresses reachable from inside the process. The addresses carry
    /// the nonce, so that an earlier life of the OSD is not meant.
    pub fn register(addrs: EntityAddrVec) -> (LocalPeer, UnboundedReceiver<Envelope>) {
        let (tx, rx) = unbounded_channel();
        registry().lock().expect("no panic while it is held").insert(addrs.clone(), tx);
        (LocalPeer { addrs }, rx)
    }

    /// The way to an OSD of this process, if it is one.
    pub fn find(addrs: &EntityAddrVec) -> Option<UnboundedSender<Envelope>> {
        registry().lock().expect("no panic while it is held").get(addrs).cloned()
    }
}

impl Drop for LocalPeer {
    fn drop(&mut self) {
        if let Ok(mut r) = registry().lock() {
            r.remove(&self.addrs);
        }
    }
}
