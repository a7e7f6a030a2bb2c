//! Answers before what they tell of is durable, and what is made of them after a failover.
//!
//! A client may see at once what it did itself, and what is durable. What others did it sees when
//! the log has it. So an answer has two moments: from the first one on it may leave, from the
//! second one on it is safe. A changing request that is answered before the second one is answered
//! again, without a trace. Until then its client keeps it, and sends it again to a successor.
//!
//! A successor carries these requests out first, those of each client in the order in which they
//! come, which is that of the early answers. What one client was answered early depends on no
//! change of another one that may be lost, so the order of clients does not matter. They get the
//! numbers of inodes that their clients were told: the log promises these ahead, so that no
//! successor gives them to others.

use super::Mds;
use super::operation::{Exec, Kind, OpId, OpState, Phase};
use super::state::Ahead;
use crate::conf::Bug;
use crate::request::Request;
use crate::types::{Batch, ClientId, Ino, Space};

/// So many numbers of a space are promised ahead. As many are lost with a server.
const AHEAD: u64 = 16_384;

impl Mds {
    /// Sets whether changes are answered before they are durable.
    pub fn set_early_reply(&mut self, on: bool) {
        self.conf.early_reply = on;
    }

    /// An operation is tried.
    pub(crate) fn begin_to_show(&mut self, state: &OpState) {
        let early = &mut self.early;
        early.others = early.rules;
        early.made = None;
        early.resent = state.resent;
        early.actor = match state.kind {
            Kind::Request(_) => state.client,
            _ => ClientId(0),
        };
        early.counter = match &state.kind {
            Kind::Request(_) => state.client,
            // It is said again until it is durable.
            Kind::Caps(update) if update.flush.is_some() => state.client,
            _ => ClientId(0),
        };
    }

    /// The operation was tried.
    pub(crate) fn end_to_show(&mut self) {
        let early = &mut self.early;
        (early.actor, early.counter, early.resent) = (ClientId(0), ClientId(0), false);
    }

    /// The current operation shows something that must be durable.
    pub(crate) fn shows(&mut self, batch: Batch) {
        self.early.others = self.early.others.max(batch);
    }

    /// The current operation shows something of this client, which is durable with this batch. For
    /// the client itself that is as good as if it were.
    pub(crate) fn shown_to(&self, client: ClientId, last: super::node::Last) -> Batch {
        if self.conf.bug == Bug::EarlyOfOthers { Batch(0) } else { last.shown_to(client) }
    }

    /// Something changes that holds for many inodes.
    pub(crate) fn rules_change(&mut self) {
        self.early.rules = self.log.open();
    }

    /// From which batch on the answer to a request may leave, which is safe with `batch`.
    pub(crate) fn leaves_with(&self, client: ClientId, request: &Request, wrote: bool) -> Batch {
        let batch = self.seen;
        let silent = self.sessions.get(&client).is_none_or(|s| s.stale || s.evicting);
        let calm = self.peers.leaving.is_some() || self.conf.rests;
        let may = match wrote {
            true => request.op.is_early() && request.replay.is_none(),
            false => true,
        };
        if !self.conf.early_reply || silent || calm || !may {
            return batch;
        }
        batch.min(self.early.others)
    }

    /// Notes that a number of a space is given out, before which batch it must not be told, and
    /// that the next one is `next`.
    pub(crate) fn note_number(&mut self, space: Space, number: u64, next: u64) {
        if self.conf.bug == Bug::NumbersNotAhead || !self.conf.early_reply {
            return;
        }
        let (open, durable) = (self.log.open(), self.log.durable);
        let ahead = self.early.ahead.entry(space).or_default();
        let is_promised = ahead.batch <= durable;
        let told = if is_promised { ahead.bound } else { ahead.before };
        if is_promised && space.number_after(next, AHEAD / 2) >= ahead.bound {
            let bound = space.number_after(next, AHEAD);
            *ahead = Ahead { bound, batch: open, before: ahead.bound };
        } else if next > ahead.bound {
            (ahead.bound, ahead.batch) = (space.number_after(next, AHEAD), open);
        }
        if number >= told {
            self.shows(open);
        }
    }

    /// The first number of a space that was never promised.
    pub(crate) fn unpromised(&self, space: Space) -> u64 {
        self.early.ahead.get(&space).map_or(0, |a| a.bound)
    }

    /// The number that a client was told of what the current request makes, if it may have it.
    pub(crate) fn told_number(
        &mut self,
        state: &mut OpState,
        request: &Request,
        space: Space,
    ) -> Exec<Option<Ino>> {
        let space = if space == Space::COMMON { Space::common(self.conf.rank) } else { space };
        let next = self.next_ino.get(&space).copied().unwrap_or(0);
        let Some(ino) = request.replay.filter(|ino| ino.0 != 0 && state.resent) else {
            return Ok(None);
        };
        let given = ino.0 >= space.first_number() && ino.0 < next && ino.space() == space;
        let given = given && self.is_mine(ino);
        if !given || self.nodes.contains_key(&ino) || self.conf.bug == Bug::NumberNotKept {
            return Ok(None);
        }
        // The log of the server before this one may tell of it no more.
        if ino.0 < self.early.fresh.get(&space).copied().unwrap_or(next) && !state.is_free {
            state.looks = true;
            self.inode(ino)?;
            return Ok(None);
        }
        Ok(Some(ino))
    }

    // After a failover.

    /// Keeps a request that was answered until all clients are back.
    pub(crate) fn take_replay(&mut self, client: ClientId, request: Request) {
        if self.sessions.get(&client).is_some_and(|s| !s.evicting) {
            self.early.replays.push(client, request);
        }
    }

    /// All clients are back: what they were answered is done.
    pub(crate) fn begin_replays(&mut self) {
        self.phase = Phase::Replaying;
        for client in self.early.replays.clients() {
            self.replay_next(client);
        }
    }

    /// Goes on with the requests that a client was answered.
    fn replay_next(&mut self, client: ClientId) {
        let Some(mut request) = self.early.replays.pop(client) else { return };
        // What came back with it came back to the server before this one.
        request.releases.clear();
        if let Some(session) = self.sessions.get_mut(&client) {
            session.forget_below(request.oldest_tid);
        }
        let tid = request.tid;
        let id = self.start(client, Kind::Request(Box::new(request)));
        if let Some(state) = self.ops.get_mut(&id) {
            state.resent = true;
        }
        self.by_tid.insert((client, tid), id);
        self.early.running.insert(client, id);
    }

    /// Whether all that clients were answered is done, but for what waits for clients. That goes on
    /// when they are served.
    pub(crate) fn has_replayed(&self) -> bool {
        self.early.running.values().all(|id| self.early.waiting.contains(id))
    }

    /// One of them waits, and not for what is read.
    pub(crate) fn replay_waits(&mut self, id: OpId) {
        self.early.waiting.insert(id);
        self.perhaps_active();
    }

    /// One of them has come to its end.
    pub(crate) fn replay_ended(&mut self, id: OpId, client: ClientId) {
        self.early.waiting.remove(&id);
        if self.early.running.get(&client) == Some(&id) {
            self.early.running.remove(&client);
            self.replay_next(client);
            self.perhaps_active();
        }
    }

    /// A client's session is over.
    pub(crate) fn forget_replays(&mut self, client: ClientId) {
        self.early.replays.forget(client);
        if let Some(id) = self.early.running.remove(&client) {
            self.early.waiting.remove(&id);
        }
    }
}
