//! Which clients are asked to give capabilities back, and what one that does not may hold.
//!
//! Clients are asked in steps, the one with the most capabilities first, as 16.2 does
//! (`Server::recall_client_state`). What a client may hold follows from what is free: twice as much
//! as that. So a client that gives nothing back holds two thirds of the memory at most, and a part
//! is left for each client that comes, however many hold theirs. Beyond its part a client sees
//! inodes without capabilities of them, and a file is opened when it has given others back.

use super::Mds;
use super::decay::BURST_RATE;
use super::operation::{Exec, OpState, Phase, Stop, fail};
use crate::action::{Action, SessionMessage};
use crate::conf::SECOND;
use crate::types::{Batch, ClientId, Ino};
use types::Errno;

/// Clients are asked at most so often, in nanoseconds (16.2: `mds_cache_trim_interval`).
const EVERY: u64 = SECOND;
/// A client may hold so many times what is free.
const TIMES_FREE: usize = 2;
/// A client is asked when it has so many eighths of what it may hold.
const ASKED_FROM: usize = 7;
/// And for so much that it has so many eighths left.
const ASKED_TO: usize = 6;
/// A client that had more than it may, and has not given back what it was asked for since, is
/// complained of after so long.
const LATE: u64 = 30 * SECOND;

/// What an operator should know of.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Complaints {
    /// Clients that do not give back what they are asked for.
    pub late: Vec<ClientId>,
    /// Clients that do not say which answers they have.
    pub oldest_tid: Vec<ClientId>,
    /// There is much more in memory than there should be.
    pub oversized: bool,
}

impl Mds {
    /// Bytes that a client may hold.
    fn share(&self) -> usize {
        let kept = match self.is_full() && self.is_stuck() {
            true => self.bytes(),
            false => self.bytes_kept(),
        };
        TIMES_FREE * self.conf.bounds.wanted().saturating_sub(kept)
    }

    /// Whether a client has all that it may. One with few has its part whatever others hold, until
    /// an operator hears that there is too much in memory.
    pub(crate) fn is_over(&self, client: ClientId) -> bool {
        if self.has_few(client) {
            return self.is_oversized() && self.is_stuck();
        }
        self.sessions.get(&client).is_some_and(|s| s.held > self.share())
    }

    fn has_few(&self, client: ClientId) -> bool {
        let min = self.conf.bounds.caps_min;
        self.sessions.get(&client).is_some_and(|s| s.inodes.len() < min)
    }

    /// A client has more than it may.
    fn note_over(&mut self, client: ClientId) {
        let now = self.now;
        if let Some(session) = self.sessions.get_as_it_weighs(&client) {
            session.recalls.over_since.get_or_insert(now);
        }
    }

    fn is_oversized(&self) -> bool {
        self.bytes() as f64 > self.conf.bounds.bytes as f64 * self.conf.bounds.health_threshold
    }

    /// Whether a client has something of an inode.
    fn has(&self, client: ClientId, ino: Ino) -> bool {
        self.sessions.get(&client).is_some_and(|s| s.inodes.contains(&ino))
    }

    /// Whether a client is to see an inode without having any of it.
    pub(crate) fn is_bare(&self, client: ClientId, ino: Ino) -> bool {
        !self.has(client, ino) && self.is_over(client)
    }

    /// Whether a client may have no more locks of an inode.
    pub(crate) fn has_too_many_locks(&self, client: ClientId, ino: Ino) -> bool {
        let heavy = self.nodes.get(&ino).is_some_and(|n| n.weight.bytes() > self.share());
        heavy || self.is_over(client)
    }

    /// Waits until a client may have another inode. `opened` is the one, if that is known.
    pub(crate) fn room(&mut self, state: &OpState, opened: Option<Ino>) -> Exec<()> {
        let has = opened.is_some_and(|ino| self.has(state.client, ino));
        if has || !self.is_over(state.client) {
            return Ok(());
        }
        self.note_over(state.client);
        self.crowd(state, Errno::ENFILE)
    }

    /// Waits until the client says which answers it has, if it has not for long.
    pub(crate) fn room_for_answer(&mut self, state: &OpState) -> Exec<()> {
        let session = self.sessions.get(&state.client);
        if session.is_some_and(|s| s.record.completed.len() >= self.conf.bounds.completed_max) {
            return self.crowd(state, Errno::EAGAIN);
        }
        Ok(())
    }

    /// Waits for the client of an operation, and not for ever.
    fn crowd<T>(&mut self, state: &OpState, errno: Errno) -> Exec<T> {
        let until = state.since.saturating_add(self.conf.bounds.wait);
        if self.now >= until {
            return fail(errno);
        }
        self.crowded.insert(self.current);
        self.wake(until);
        Err(Stop::Wait)
    }

    /// Has operations tried again that wait for their clients.
    pub(crate) fn retry_crowded(&mut self) {
        self.again.append(&mut self.crowded);
    }

    /// A client used what it has.
    pub(crate) fn lives(&mut self, client: ClientId) {
        let (now, rate) = (self.now, self.conf.bounds.liveness_rate);
        if let Some(session) = self.sessions.get_as_it_weighs(&client) {
            session.recalls.liveness.hit(1.0, now, rate);
        }
    }

    /// A client gave an inode back.
    pub(crate) fn gave_back(&mut self, client: ClientId) {
        let (now, rate) = (self.now, self.conf.bounds.warning_rate);
        if self.emptying {
            // It may go now.
            self.barren = 0;
        }
        if let Some(session) = self.sessions.get_as_it_weighs(&client) {
            session.recalls.missing.hit(-1.0, now, rate);
        }
    }

    /// Asks clients to drop inodes: those that have more than they may, those that do not use what
    /// they have, and all while there is too much in memory.
    pub(crate) fn recall(&mut self) {
        if !self.crowded.is_empty() {
            self.wake(self.now + EVERY);
        }
        let full = self.is_full();
        let last = if full { self.recalled } else { self.looked };
        if self.phase != Phase::Active || last.is_some_and(|at| self.now < at + EVERY) {
            return;
        }
        self.looked = Some(self.now);
        if full {
            self.recalled = Some(self.now);
        }
        if self.ask(full) {
            self.wake(self.now + EVERY);
        }
    }

    /// Asks clients. Says whether any has more than it should.
    fn ask(&mut self, full: bool) -> bool {
        let (now, share) = (self.now, self.share());
        let bounds = self.conf.bounds.clone();
        let mut many: Vec<(usize, ClientId, usize)> = Vec::new();
        for (client, session) in self.sessions.iter() {
            let n = session.inodes.len();
            let part = session.held > share / 8 * ASKED_FROM;
            let live = session.recalls.liveness.get(now, bounds.liveness_rate);
            let idle = live < (n >> bounds.liveness_magnitude.min(63)) as f64;
            if n <= bounds.caps_min
                || session.evicting
                || !(full || part || idle || n > bounds.caps_max)
            {
                continue;
            }
            let mut to = match n.checked_sub(bounds.recall_max) {
                Some(rest) => rest.max(bounds.caps_min),
                None => bounds.caps_min,
            };
            if part && !full && !idle && n <= bounds.caps_max {
                // What lies above its part is enough.
                let kept = n as f64 * (share / 8 * ASKED_TO) as f64 / session.held.max(1) as f64;
                to = to.max(kept as usize);
            }
            many.push((n, *client, to.min(n)));
        }
        for client in self.sessions.keys().copied().collect::<Vec<_>>() {
            if self.is_over(client) {
                self.note_over(client);
                continue;
            }
            // One that was over has answered when it is asked for nothing any more.
            let few = self.has_few(client);
            if let Some(session) = self.sessions.get_as_it_weighs(&client)
                && (few || session.held <= share / 8 * ASKED_FROM)
            {
                session.recalls.over_since = None;
            }
        }
        many.sort_by_key(|(n, client, _)| (std::cmp::Reverse(*n), *client));
        let any = !many.is_empty();
        for (n, client, to) in many {
            let count = (n - to) as f64;
            let Some(session) = self.sessions.get_as_it_weighs(&client) else { continue };
            let recalls = &mut session.recalls;
            let taken = recalls.throttle.get(now, bounds.recall_rate);
            if count == 0.0
                || taken + count > bounds.recall_threshold
                || recalls.burst.get(now, BURST_RATE) + count > 2.0 * bounds.recall_max as f64
            {
                continue;
            }
            if self.asked_for.get(now, bounds.recall_rate) + count > bounds.recall_global_threshold
            {
                break;
            }
            recalls.throttle.hit(count, now, bounds.recall_rate);
            recalls.burst.hit(count, now, BURST_RATE);
            recalls.missing.hit(count, now, bounds.warning_rate);
            self.asked_for.hit(count, now, bounds.recall_rate);
            let message = SessionMessage::Recall { max_caps: to as u64 };
            self.tell(client, Batch(0), Action::Session(client, message));
        }
        self.release_output();
        any
    }

    /// What an operator should know of.
    pub fn complaints(&self) -> Complaints {
        let (now, bounds) = (self.now, &self.conf.bounds);
        let (mut late, mut oldest_tid) = (Vec::new(), Vec::new());
        for (client, session) in self.sessions.iter() {
            let recalls = &session.recalls;
            let missing = recalls.missing.get(now, bounds.warning_rate);
            let many = session.inodes.len() > bounds.working_set;
            let over = recalls.over_since.is_some_and(|at| now >= at + LATE);
            if over || many && missing > bounds.warning_threshold {
                late.push(*client);
            }
            if session.record.completed.len() >= bounds.completed_max {
                oldest_tid.push(*client);
            }
        }
        Complaints { late, oldest_tid, oversized: self.is_oversized() }
    }
}
