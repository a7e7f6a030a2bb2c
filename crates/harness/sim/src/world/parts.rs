//! What the world keeps of clients, connections and sessions.

use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use types::{Epoch, OsdId, PgShard};

use crate::map::MapModel;
use crate::monitor::MonMsg;
use crate::quorum::Entry;
use crate::request::ClientOp;

/// Microseconds.
pub(in crate::world) type Time = u64;

#[derive(Debug)]
pub(in crate::world) struct Client {
    pub(in crate::world) epoch: Epoch,
    /// The map that it had when it began its operation.
    pub(in crate::world) knew: Epoch,
    pub(in crate::world) left: u64,
    pub(in crate::world) tid: u64,
    pub(in crate::world) current: Option<(ClientOp, u64)>,
    pub(in crate::world) sent_to: Option<Target>,
}

/// Where an operation was sent, and in which interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::world) struct Target {
    pub(in crate::world) primary: PgShard,
    pub(in crate::world) incarnation: u64,
    pub(in crate::world) interval: u64,
}

/// What monitors tell each other.
#[derive(Clone, Debug)]
pub(in crate::world) enum Between {
    /// A request of a session, for the leader of a term.
    Passed { request: u64, term: u64, msg: MonMsg },
    /// It was decided.
    Answered { request: u64 },
    /// The leader proposes.
    Append(Rc<Entry>),
    /// It is in the log.
    Has { term: u64, at: usize },
    /// The leader of a term says what is agreed on.
    Agreed { term: u64, upto: usize },
}

/// A message between OSDs.
#[derive(Clone, Debug)]
pub(in crate::world) struct PeerBytes {
    pub(in crate::world) from: OsdId,
    pub(in crate::world) from_incarnation: u64,
    pub(in crate::world) to: OsdId,
    pub(in crate::world) to_incarnation: u64,
    /// Counts the messages of the connection.
    pub(in crate::world) number: u64,
    pub(in crate::world) front: Bytes,
    pub(in crate::world) data: Bytes,
}

/// One direction of a connection between two processes: what was sent arrives once and in order,
/// but after a reset the sender does not know what did, and sends it again.
#[derive(Debug, Default)]
pub(in crate::world) struct Connection {
    pub(in crate::world) incarnations: (u64, u64),
    pub(in crate::world) sent: u64,
    pub(in crate::world) received: u64,
    /// What may be sent again, with its event, and whether it has arrived.
    pub(in crate::world) unacknowledged: VecDeque<(u64, PeerBytes, bool)>,
}

impl Connection {
    /// How many messages that have arrived are not acknowledged.
    pub(in crate::world) const LATE: usize = 3;

    /// Whether a message is new.
    pub(in crate::world) fn receive(&mut self, msg: &PeerBytes) -> bool {
        if self.incarnations != (msg.from_incarnation, msg.to_incarnation) {
            return true;
        }
        if msg.number <= self.received {
            return false;
        }
        assert_eq!(msg.number, self.received + 1, "messages of a connection keep their order");
        self.received = msg.number;
        for (_, _, arrived) in
            self.unacknowledged.iter_mut().filter(|(_, m, _)| m.number == msg.number)
        {
            *arrived = true;
        }
        while self.unacknowledged.iter().filter(|(_, _, arrived)| *arrived).count() > Self::LATE {
            self.unacknowledged.pop_front();
        }
        true
    }
}

/// A party of a session with a monitor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::world) enum Party {
    Osd(OsdId),
    Client(usize),
}

impl Party {
    /// Its end of links.
    pub(in crate::world) fn end(self) -> i64 {
        match self {
            Party::Osd(osd) => osd.0.into(),
            Party::Client(client) => 1000 + client as i64,
        }
    }
}

/// A session.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) struct Session {
    pub(in crate::world) mon: usize,
    /// What comes from another one is not for this one.
    pub(in crate::world) number: u64,
    /// Up to where maps were sent, once they were asked for.
    pub(in crate::world) told: Option<Epoch>,
}

/// Maps in a message.
#[derive(Clone)]
pub(in crate::world) struct Maps(pub(in crate::world) Vec<Rc<MapModel>>);

impl fmt::Debug for Maps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.iter().map(|m| m.epoch.0).collect::<Vec<_>>())
    }
}
