//! How OSDs reach each other.
//!
//! Two OSDs of one process hand messages over through a channel, whatever threads they live on.
//! Others use the messenger. Either way the messages of one sender arrive in their order.

use pg::{PeerHeader, PeerMsg};
use room_ledger::RoomNote;
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use types::{EntityAddrVec, Epoch, OsdId, PgId, PgShard, PoolId, ShardId};

/// A message from another OSD.
#[derive(Debug)]
pub struct Envelope {
    /// The sender.
    pub from: OsdId,
    /// For which PG and of which epoch it is.
    pub header: PeerHeader,
    /// The message.
    pub msg: PeerMsg,
    /// What the two OSDs let each other send, if the sender says so.
    pub room: Option<RoomNote>,
    /// The note was taken.
    pub heard: bool,
    /// Bytes that count as arrived and not stored, as long as this waits.
    pub arrived: u64,
}

impl Envelope {
    /// A message that has come.
    pub fn new(from: OsdId, header: PeerHeader, msg: PeerMsg, room: Option<RoomNote>) -> Envelope {
        Envelope { from, header, msg, room, heard: false, arrived: 0 }
    }
}

/// In front of a note that goes without a message of a PG.
pub(crate) fn no_pg(epoch: Epoch) -> PeerHeader {
    let pgid = PgId { pool: PoolId(0), seed: 0 };
    let none = ShardId::NONE;
    PeerHeader { pgid, from: none, to: none, sent: epoch, asked: epoch }
}

/// Sends messages to other OSDs.
pub trait PeerNet {
    /// Sends one message to several copies at the position that the header names, each with its
    /// note.
    fn send(&self, to: &[PgShard], header: PeerHeader, msg: PeerMsg, notes: &[RoomNote]);

    /// Sends a note alone.
    fn tell(&self, osd: OsdId, note: RoomNote, epoch: Epoch) {
        let header = no_pg(epoch);
        self.send(&[PgShard { osd, shard: header.to }], header, PeerMsg::Room, &[note]);
    }
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
