//! Links between processes: delays, connections that break, and what is sent again.

use std::collections::VecDeque;

use bytes::Bytes;
use types::OsdId;

use super::{Ev, MS, Time, World};

/// A message between OSDs.
#[derive(Clone, Debug)]
pub(super) struct PeerBytes {
    pub(super) from: OsdId,
    pub(super) from_incarnation: u64,
    pub(super) to: OsdId,
    pub(super) to_incarnation: u64,
    /// Counts the messages of the connection.
    pub(super) number: u64,
    pub(super) front: Bytes,
    pub(super) data: Bytes,
}

/// One direction of a connection between two processes: what was sent arrives once and in order,
/// but after a reset the sender does not know what did, and sends it again.
#[derive(Debug, Default)]
pub(super) struct Connection {
    pub(super) incarnations: (u64, u64),
    pub(super) sent: u64,
    pub(super) received: u64,
    /// What may be sent again, with its event, and whether it has arrived.
    pub(super) unacknowledged: VecDeque<(u64, PeerBytes, bool)>,
}

impl Connection {
    /// How many messages that have arrived are not acknowledged.
    pub(super) const LATE: usize = 3;

    /// Whether a message is new.
    pub(super) fn receive(&mut self, msg: &PeerBytes) -> bool {
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

impl World {
    /// Mostly fast, sometimes very slow.
    fn network_delay(&mut self) -> Time {
        if self.rng.permille(self.scenario.slow_net) {
            return self.rng.range(50 * MS, 800 * MS);
        }
        match self.rng.range(0, 10) {
            0 => self.rng.range(2 * MS, 20 * MS),
            _ => self.rng.range(50, 1_000),
        }
    }

    /// A message on a link arrives after those before it.
    pub(super) fn on_link(&mut self, link: (i64, i64), ev: Ev) {
        let delay = self.network_delay();
        let last = self.links.entry(link).or_default();
        *last = (self.now + delay).max(*last + 1);
        let time = *last;
        self.at(time, ev);
    }

    /// Sends a message from OSD to OSD.
    pub(super) fn send(&mut self, mut msg: PeerBytes) {
        let incarnations = (msg.from_incarnation, msg.to_incarnation);
        let connection = self.connections.entry((msg.from, msg.to)).or_default();
        if connection.incarnations != incarnations {
            *connection = Connection { incarnations, ..Connection::default() };
        }
        connection.sent += 1;
        msg.number = connection.sent;
        self.on_link((msg.from.0.into(), msg.to.0.into()), Ev::Peer(msg.clone()));
        let event = self.seq;
        self.connections
            .entry((msg.from, msg.to))
            .or_default()
            .unacknowledged
            .push_back((event, msg, false));
    }

    /// A connection between OSDs breaks. What was under way is lost, and is sent again over the
    /// next one, with what arrived and was not acknowledged.
    pub(super) fn reset(&mut self, a: OsdId, b: OsdId) {
        let back = self.now + self.rng.range(MS, 300 * MS);
        for (from, to) in [(a, b), (b, a)] {
            let Some(connection) = self.connections.get_mut(&(from, to)) else { continue };
            let link = (i64::from(from.0), i64::from(to.0));
            let mut again = std::mem::take(&mut connection.unacknowledged);
            if again.iter().any(|(_, _, arrived)| !arrived) {
                self.mark("message lost with its connection");
            }
            for (event, msg, arrived) in &mut again {
                if !*arrived {
                    self.events.remove(event);
                }
                let last = self.links.entry(link).or_default();
                *last = back.max(*last + 1);
                let time = *last;
                self.at(time, Ev::Peer(msg.clone()));
                *event = self.seq;
            }
            if let Some(connection) = self.connections.get_mut(&(from, to)) {
                connection.unacknowledged = again;
            }
        }
    }

    pub(super) fn block(&mut self, link: (i64, i64), until: Time) {
        let end = self.blocked.entry(link).or_default();
        *end = until.max(*end);
    }
}
