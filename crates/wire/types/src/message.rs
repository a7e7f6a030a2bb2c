//! A message as the messenger moves it: a header's worth of fields and opaque payloads.

use bytes::Bytes;
use denc::crc::Sum;
use smallvec::SmallVec;

/// Priorities with a name (`CEPH_MSG_PRIO_*`, `src/include/msgr.h`). Higher goes first.
pub mod priority {
    /// Background chatter.
    pub const LOW: u16 = 64;
    /// What a message has unless told otherwise.
    pub const DEFAULT: u16 = 127;
    /// Maps, peering, leases, heartbeats: what must not queue behind client data.
    pub const HIGH: u16 = 196;
    /// Resent after a reconnect.
    pub const HIGHEST: u16 = 255;
}

/// A message, without knowledge of what is in it (`Message`, `src/msg/Message.h`; the header is
/// `ceph_msg_header2`, `src/include/msgr.h`). Cloning shares the payloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What kind of message (`CEPH_MSG_*`, `MSG_*`).
    pub msg_type: u16,
    /// See [`priority`].
    pub priority: u16,
    /// Version of the payload's encoding.
    pub version: u16,
    /// Oldest version with readers that understand it.
    pub compat_version: u16,
    /// Transaction id: a reply repeats the request's.
    pub tid: u64,
    /// Offset of the data in the file or object; only its low bits ever mattered.
    pub data_off: u16,
    /// Position in the session's stream. Assigned when the message is sent; meaningful on receipt.
    pub seq: u64,
    /// Fixed part.
    pub front: Bytes,
    /// Rarely used second part.
    pub middle: Bytes,
    /// Bulk data, in pieces when it is sent, in at most one piece when it was received.
    pub data: SmallVec<[Bytes; 2]>,
    /// The checksum of the data, if the sender knows it already; one of another length is not
    /// believed.
    pub data_sum: Option<Sum>,
}

impl Message {
    /// A message of default priority with only a front.
    pub fn new(msg_type: u16, front: Bytes) -> Self {
        Message { msg_type, priority: priority::DEFAULT, version: 1, front, ..Message::default() }
    }

    /// Total length of the data pieces.
    pub fn data_len(&self) -> usize {
        self.data.iter().map(Bytes::len).sum()
    }

    /// Total length of front, middle and data: what throttles count.
    pub fn payload_len(&self) -> usize {
        self.front.len() + self.middle.len() + self.data_len()
    }
}
