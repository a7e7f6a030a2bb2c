//! Bytes that OSDs let each other send, as messages between our own OSDs carry them.

use denc_derive::Denc;

/// What one OSD tells another of the bytes that go from either to the other. The crate
/// `room-ledger` has the rules.
#[derive(Denc, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomNote {
    /// The life of the sender.
    pub life: u64,
    /// The life of the receiver, as far as the sender has heard; 0 if it has not.
    pub peer: u64,
    /// Rises with each note of the life.
    pub number: u64,
    /// Bytes that the message with this note takes in the receiver's store.
    pub cost: u64,
    /// Bytes that were sent to this life of the receiver, this message included, or will be.
    pub committed: u64,
    /// The number of the newest note that the sender has heard of the receiver.
    pub heard: u64,
    /// Up to how many bytes of clients' data the receiver may send to the sender in all.
    pub data: u64,
    /// The same of copies of objects, which restore what was written before.
    pub copies: u64,
    /// The sender wants a note.
    pub asks: bool,
}
