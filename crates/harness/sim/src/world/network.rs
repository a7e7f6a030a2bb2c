//! Links between processes: delays, connections that break, and what is sent again.

use types::OsdId;

use super::parts::{Connection, PeerBytes, Time};
use super::{Ev, MS, World};

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
