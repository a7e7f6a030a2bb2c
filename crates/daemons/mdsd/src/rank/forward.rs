//! Requests that go on at another rank. A client sends the same request again there, with a path
//! that begins at this rank. So the other rank is told first with what it goes on, and the client
//! when that rank has it. A rank that has left takes nothing: the request waits here, and is
//! carried out or sent on anew when another rank has all that it had.

use super::Rank;
use super::onward::Key;
use crate::peers::Word;
use mds::{ClientId, Event, Request};
use messages::{ClientRequestForward, Payload};
use std::time::Duration;
use tokio::time::Instant;

/// What has no answer is said again after this pause.
const RETRY: Duration = Duration::from_millis(500);

impl Rank {
    /// Has a client ask another rank.
    pub(super) fn forward(&self, client: ClientId, to: mds::Rank, request: &Request) {
        let key = (client.0, request.tid);
        let same = match self.asked.borrow().get(&key) {
            Some(asked) => asked.path == request.path,
            None => return,
        };
        if same {
            return self.send_on(key, to);
        }
        let attempt = self.onward.borrow_mut().tell(key, to);
        let word = Word::Onward(key.0, key.1, request.path.clone());
        let (me, request) = (self.me.clone(), request.clone());
        tokio::task::spawn_local(async move {
            loop {
                let Some(rank) = me.upgrade() else { return };
                let Some(server) = rank.server() else { return };
                if !rank.onward.borrow().is_open(key, attempt) {
                    return;
                }
                if rank.look(|core| core.keeper(request.path.ino)).is_some_and(|k| k != to) {
                    rank.onward.borrow_mut().taken(key, to);
                    return rank.event(Event::Request(client, request));
                }
                server.tell_rank(to, &word);
                drop((rank, server));
                tokio::time::sleep(RETRY).await;
            }
        });
    }

    fn send_on(&self, (client, tid): Key, to: mds::Rank) {
        // Without a rank in the newest map, the owner has left: the client asks again.
        let rank = self.server().and_then(|s| crate::peers::rank_of(&s.map(), to));
        let rank = rank.unwrap_or_default();
        let Some(asked) = self.asked.borrow_mut().remove(&(client, tid)) else { return };
        let Some(conn) = self.conn(ClientId(client)) else { return };
        let forward = ClientRequestForward {
            dest_mds: rank,
            num_fwd: i32::try_from(asked.forwards).unwrap_or(0).saturating_add(1),
            client_must_resend: true,
        };
        let mut message = forward.encode(conn.features());
        message.tid = tid;
        conn.send(message);
    }

    /// A word of another rank.
    pub fn peer_word(&self, from: mds::Rank, word: Word) {
        match word {
            Word::Owner(message) => self.event(Event::Peer(from, Box::new(message))),
            Word::Onward(..) if self.look(mds::Mds::has_left).unwrap_or(false) => {}
            Word::Onward(client, tid, path) => {
                let awaited = self.onward.borrow_mut().awaits((client, tid), path, Instant::now());
                if let Some(server) = self.server().filter(|_| awaited) {
                    server.tell_rank(from, &Word::Expected(client, tid));
                }
            }
            Word::Expected(client, tid) => {
                let key = (client, tid);
                let taken = self.onward.borrow_mut().taken(key, from);
                if taken {
                    self.send_on(key, from);
                }
            }
        }
    }
}
