//! Leases of single names, where clients cannot have all names of a directory.
//!
//! A client that may read a directory's names ([`caps::FILE_SHARED`]) knows all of them until one
//! changes, and is then asked to give that up. Where one client changes names and others look them
//! up, that would go to and fro with each change. Such a directory is shared for a while: no client
//! gets all of its names by looking one up, but a lease of that one. Names that come concern
//! no lease. A name that goes, or stands for something else, waits until no client has a lease of
//! it: clients are asked to give it back, and without an answer it ends by itself.
//!
//! A lease ends by the client's clock no later than by the server's: the client counts from the
//! moment at which it sent its request.
//!
//! A successor does not know the leases of the server before it. While there may be some, it asks
//! all clients that have something of a directory for the name that is to go: a client answers also
//! when it has no lease.

use super::Mds;
use super::lease_table::{Held, LEARNING_MAX, Shared};
use super::operation::{Exec, OpId, OpState, Phase, Stop};
use crate::action::{Action, LeaseEnd};
use crate::caps;
use crate::conf::Bug;
use crate::request::{InodeStat, Lease};
use crate::types::{Batch, ClientId, Ino, Name};

/// So many leases there are at most, with those that were given anew.
const LEASES_MAX: usize = 65_536;
/// So many directories are known to be shared at most.
const SHARED_MAX: usize = 16_384;
/// A directory stays shared for at most so many times as long as at first.
const LONGER_MAX: u64 = 32;
/// A client is told of a little less than the server waits for: clocks run at different speeds.
const MARGIN: u64 = 32;

impl Mds {
    /// Clients of the server before this one may have leases of it.
    pub(crate) fn begins_with_leases(&mut self) {
        self.leases.unknown = self.conf.bug != Bug::LeasesForgotten;
    }

    /// Whether no client gets all names of a directory at present.
    pub(crate) fn is_shared(&self, dir: Ino) -> bool {
        self.leases.shared.get(&dir).is_some_and(|s| s.until > self.now)
    }

    /// A client gives up a directory's names, which another client changes.
    pub(crate) fn shares_names(&mut self, dir: Ino) {
        let (now, least) = (self.now, self.conf.shared_names);
        let shared = &mut self.leases.shared;
        if shared.len() >= SHARED_MAX {
            shared.retain(|_, s| s.until > now);
        }
        if least == 0 || shared.len() >= SHARED_MAX {
            return;
        }
        // As soon as clients had all names again, one of these was changed.
        let again = |s: &Shared| now < s.until.saturating_add(s.length);
        let length = match shared.get(&dir) {
            Some(s) if s.until > now => return,
            Some(s) if again(s) => (2 * s.length).min(least.saturating_mul(LONGER_MAX)),
            _ => least,
        };
        let (until, by) = (now.saturating_add(length), ClientId(0));
        let read_until = now.saturating_add(self.conf.lease);
        let learning = shared.remove(&dir).map(|s| s.learning).unwrap_or_default();
        shared.insert(dir, Shared { until, length, by, read_until, learning });
    }

    /// Waits until a client can be granted a directory's names, if the page that it is shown has to
    /// grant them: other clients' changes that wait are let through.
    pub(crate) fn may_list(&mut self, client: ClientId, dir: Ino, last: bool) -> Exec<()> {
        if !self.grants_names(client, dir, last) || !self.names_are_taken(client, dir) {
            return Ok(());
        }
        self.leases.lists.entry(dir).or_default().push((self.current, client));
        Err(Stop::Wait)
    }

    /// Whether a change that waits takes a directory's names from a client.
    fn names_are_taken(&self, client: ClientId, dir: Ino) -> bool {
        self.nodes.get(&dir).is_some_and(|node| node.loses_names(client))
    }

    /// Has pages tried again that waited for changes of names.
    pub(crate) fn retry_lists(&mut self, dir: Ino) {
        let Some(lists) = self.leases.lists.remove(&dir) else { return };
        let waits = |(_, client): &(OpId, ClientId)| self.names_are_taken(*client, dir);
        let (wait, free): (Vec<_>, Vec<_>) = lists.into_iter().partition(waits);
        self.again.extend(free.into_iter().map(|(op, _)| op));
        if !wait.is_empty() {
            self.leases.lists.insert(dir, wait);
        }
    }

    /// Whether a page grants all names to a client.
    ///
    /// Libcephfs 16.2 takes a directory that it has listed for known, whether it may rely on its
    /// names or not, until it is granted them anew; and it aborts when it lists a directory that it
    /// takes for known and finds other names. So it is granted the names, though the next change
    /// takes them back, where it may take the directory for known, and where it would do so from
    /// this page on.
    fn grants_names(&self, client: ClientId, dir: Ino, last: bool) -> bool {
        let shared = self.leases.shared.get(&dir).filter(|s| s.until > self.now);
        last || shared.is_none_or(|s| !s.learning.contains_key(&client))
    }

    /// Makes the record of a directory of which a client is shown a page, the last one or another.
    pub(crate) fn record_listed(
        &mut self,
        client: ClientId,
        dir: Ino,
        last: bool,
    ) -> Exec<InodeStat> {
        let has = |mds: &Mds| {
            let cap = mds.nodes.get(&dir).and_then(|n| n.caps.get(&client));
            cap.is_some_and(|cap| cap.pending & caps::FILE_SHARED != 0)
        };
        let had = has(self);
        let stat = match self.grants_names(client, dir, last) {
            true => self.record_with(client, dir, 0, true)?,
            false => self.record(client, dir, 0)?,
        };
        let has = has(self);
        if let Some(shared) = self.leases.shared.get_mut(&dir) {
            if has && last {
                shared.learning.remove(&client);
            } else if has && !had && shared.learning.len() < LEARNING_MAX {
                shared.learning.insert(client, ());
            }
        }
        Ok(stat)
    }

    /// Names in a directory change: it stays shared while other clients look names up.
    pub(crate) fn names_change(&mut self, dir: Ino, by: ClientId) {
        let now = self.now;
        if let Some(shared) = self.leases.shared.get_mut(&dir).filter(|s| s.until > now) {
            shared.by = by;
            if now < shared.read_until {
                shared.until = shared.until.max(now.saturating_add(shared.length));
            }
        }
    }

    /// Lets a client rely on a name that it is shown, if it cannot have all names.
    pub(crate) fn lease(&mut self, client: ClientId, dir: Ino, name: &Name) -> Lease {
        let none = Lease::default();
        let cap = self.nodes.get(&dir).and_then(|n| n.caps.get(&client));
        // What it is granted where the directory is shared, the next change takes back.
        let all = |cap: &super::node::Cap| cap.pending & caps::NAMES != 0 && !self.is_shared(dir);
        if cap.is_none_or(all) || dir.is_stray_dir() || dir.is_system() {
            return none;
        }
        let silent = self.sessions.get(&client).is_none_or(|s| s.stale || s.evicting);
        let calm = self.phase != Phase::Active || self.peers.leaving.is_some() || self.conf.rests;
        let full = self.leases.ends.len() >= LEASES_MAX
            || self.bytes() > self.conf.bounds.wanted()
            || self.conf.lease == 0;
        if silent || calm || full || self.locked(dir) & caps::NAMES != 0 || !self.serves(dir) {
            return none;
        }
        let named = self.leases.names.get(&(dir, name.clone()));
        if named.is_some_and(|n| !n.ops.is_empty()) {
            return none;
        }
        let length = self.conf.lease;
        let seq = self.leases.last.wrapping_add(1);
        self.leases.last = seq;
        let until = self.now.saturating_add(length + length / MARGIN);
        self.leases.give(client, dir, name, Held { until, seq, asked: false });
        if let Some(shared) = self.leases.shared.get_mut(&dir).filter(|s| s.by != client) {
            shared.read_until = until;
        }
        let duration_ms = u32::try_from(length / 1_000_000).unwrap_or(u32::MAX);
        Lease { duration_ms, seq }
    }

    /// Notes that the current operation takes a name away, or gives it to something else: no client
    /// may rely on it.
    pub(crate) fn takes_name(&mut self, dir: Ino, name: &Name) {
        self.taken_names.push((dir, name.clone()));
    }

    /// Whether clients may rely on a name that the current operation changes.
    pub(crate) fn has_leases(&mut self) -> bool {
        if self.conf.bug == Bug::LeaseStays {
            return false;
        }
        let unknown = self.now < self.leases.unknown_until && !self.early.resent;
        for (dir, name) in self.taken_names.clone() {
            if unknown {
                self.count_unknown(dir, &name);
            }
            let named = self.leases.names.get(&(dir, name));
            if named.is_some_and(|n| !n.held.is_empty()) {
                return true;
            }
        }
        false
    }

    /// Asks clients for leases of names that the current operation changes, and gives no others
    /// while it waits.
    pub(crate) fn keep_names(&mut self) {
        let op = self.current;
        for (dir, name) in self.taken_names.clone() {
            if self.conf.bug == Bug::LeaseStays {
                return;
            }
            self.leases.change(dir, &name, |named| {
                if !named.ops.contains(&op) {
                    named.ops.push(op);
                }
            });
            self.ask_for(dir, &name);
        }
    }

    /// Clients may have a lease of the server before this one.
    fn count_unknown(&mut self, dir: Ino, name: &Name) {
        let until = self.leases.unknown_until;
        let counted = self.leases.names.get(&(dir, name.clone())).is_some_and(|n| n.unknown);
        if counted {
            return;
        }
        let node = self.nodes.get(&dir);
        let clients: Vec<ClientId> =
            node.into_iter().flat_map(|n| n.caps.keys().copied()).collect();
        self.leases.change(dir, name, |named| named.unknown = true);
        for client in clients {
            self.leases.last = self.leases.last.wrapping_add(1);
            let seq = self.leases.last;
            self.leases.give(client, dir, name, Held { until, seq, asked: false });
        }
        self.leases.ends_at(until, dir, name);
    }

    /// Asks clients for their leases of a name.
    fn ask_for(&mut self, dir: Ino, name: &Name) {
        let Some(named) = self.leases.names.get_mut(&(dir, name.clone())) else { return };
        let mut asked = Vec::new();
        for (client, held) in named.held.iter_mut().filter(|(_, held)| !held.asked) {
            held.asked = true;
            asked.push((*client, held.seq));
        }
        for (client, seq) in asked {
            let end = LeaseEnd { dir, name: name.clone(), seq };
            self.tell(client, Batch(0), Action::Lease(client, Box::new(end)));
        }
    }

    /// An operation is tried again, or waits no more: it says anew which names it changes.
    pub(crate) fn free_names(&mut self, id: OpId, state: &mut OpState) {
        for (dir, name) in std::mem::take(&mut state.names_on) {
            if self.leases.names.contains_key(&(dir, name.clone())) {
                self.leases.change(dir, &name, |named| named.ops.retain(|op| *op != id));
            }
        }
    }

    /// A client gives a lease back.
    pub(crate) fn lease_released(&mut self, client: ClientId, dir: Ino, name: &Name, seq: u32) {
        let ops = self.leases.end(dir, name, |c, held| c == client && held.seq == seq);
        self.again.extend(ops);
    }

    /// Ends all leases of a client without a session.
    pub(crate) fn drop_leases(&mut self, client: ClientId) {
        for shared in self.leases.shared.values_mut() {
            shared.learning.remove(&client);
        }
        if self.leases.count(client) == 0 {
            return;
        }
        let names = self.leases.names.iter().filter(|(_, n)| n.held.contains_key(&client));
        let names: Vec<(Ino, Name)> = names.map(|(key, _)| key.clone()).collect();
        for (dir, name) in names {
            let ops = self.leases.end(dir, &name, |c, _| c == client);
            self.again.extend(ops);
        }
    }

    /// Ends leases of which the time is over.
    pub(crate) fn end_leases(&mut self) {
        let now = self.now;
        if std::mem::take(&mut self.leases.unknown) {
            self.leases.unknown_until = now + self.conf.lease + self.conf.lease / MARGIN;
        }
        while self.leases.ends.front().is_some_and(|(until, _, _)| *until <= now) {
            let Some((_, dir, name)) = self.leases.ends.pop_front() else { return };
            let ops = self.leases.end(dir, &name, |_, held| held.until <= now);
            self.again.extend(ops);
            if now >= self.leases.unknown_until
                && self.leases.names.get(&(dir, name.clone())).is_some_and(|n| n.unknown)
            {
                self.leases.change(dir, &name, |named| named.unknown = false);
            }
        }
        let ends = &mut self.leases.ends;
        if ends.capacity() > 1_024 && ends.len() < ends.capacity() / 4 {
            ends.shrink_to(2 * ends.len());
        }
    }

    /// Has the shell call when a lease ends that something waits for.
    pub(crate) fn set_lease_alarm(&mut self) {
        let first = self.leases.ends.front().map(|(until, _, _)| *until);
        if let Some(until) = first.filter(|_| self.leases.waited > 0) {
            self.wake(until.max(self.now + ALARM));
        }
    }

    /// Asks clients for all leases of some directories.
    pub(crate) fn take_leases_back(&mut self, of: impl Fn(&Mds, Ino) -> bool) {
        let names = self.leases.names.iter().filter(|(_, n)| !n.held.is_empty());
        let names: Vec<(Ino, Name)> = names.map(|(key, _)| key.clone()).collect();
        let names = if self.conf.bug == Bug::MoveWithLeases { Vec::new() } else { names };
        for (dir, name) in names {
            if of(self, dir) {
                self.ask_for(dir, &name);
            }
        }
    }

    /// Whether a client may rely on a name in one of these directories.
    pub(crate) fn has_leases_of(&mut self, of: impl Fn(&Mds, Ino) -> bool) -> bool {
        if self.conf.bug == Bug::MoveWithLeases {
            return false;
        }
        let unknown = self.leases.unknown_until;
        if self.now < unknown {
            self.wake(unknown);
            return true;
        }
        let mut names = self.leases.names.iter().filter(|(_, n)| !n.held.is_empty());
        let found = names.any(|((dir, _), _)| of(self, *dir));
        if found && let Some((until, _, _)) = self.leases.ends.front() {
            self.wake((*until).max(self.now + ALARM));
        }
        found
    }

    /// How many names a client may rely on.
    pub fn leases_of(&self, client: ClientId) -> usize {
        self.leases.count(client)
    }
}

/// It is looked for leases that end no more often than so many nanoseconds.
const ALARM: u64 = 10_000_000;
