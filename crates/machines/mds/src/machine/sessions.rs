//! Sessions: what clients are told, in order and not before it is durable; which of their requests
//! are done already; and how they end.

use super::Mds;
use super::operation::{Kind, OpId, Phase};
use super::state::{Leaving, Session};
use crate::action::{Action, SessionMessage};
use crate::conf::Bug;
use crate::event::{Claim, Event, SessionEvent, Token};
use crate::types::{Batch, ClientId, Ino, SessionRecord};
use std::collections::BTreeSet;

impl SessionRecord {
    /// Forgets requests of which the client knows the answers.
    pub(crate) fn forget_below(&mut self, oldest_tid: u64) {
        if oldest_tid > self.oldest_tid {
            self.oldest_tid = oldest_tid;
            self.completed = self.completed.split_off(&oldest_tid);
        }
    }

    /// Takes over what another owner did for the client.
    pub(crate) fn take_over(&mut self, other: SessionRecord) {
        let oldest = self.oldest_tid;
        self.completed.extend(other.completed.into_iter().filter(|(tid, _)| *tid >= oldest));
        self.flushes.extend(other.flushes);
    }

    /// Forgets flushes that the client knows to be durable.
    pub(crate) fn forget_flushes_below(&mut self, oldest: u64) {
        self.flushes = self.flushes.split_off(&oldest);
    }
}

impl Mds {
    /// Puts a session of the server before this one in.
    pub(crate) fn add_session(&mut self, client: ClientId, record: SessionRecord) {
        self.sessions.insert(client, Session::new(record, self.now));
    }

    /// Tells a client something once a batch is durable, after all that it was told before.
    pub(crate) fn tell(&mut self, client: ClientId, batch: Batch, action: Action) {
        self.tell_twice(client, batch, batch, action);
    }

    /// Tells a client something once a batch is durable. An answer that leaves before it is safe
    /// is given again then.
    pub(crate) fn tell_twice(
        &mut self,
        client: ClientId,
        leaves: Batch,
        safe: Batch,
        action: Action,
    ) {
        let early = self.conf.bug == Bug::EarlyReply;
        let (leaves, safe) = if early { (Batch(0), Batch(0)) } else { (leaves, safe) };
        if let Some(session) = self.sessions.get_mut(&client) {
            self.log.wants(leaves);
            session.output.push(leaves, safe, action);
            self.with_output.insert(client);
        }
    }

    /// Tells a client something once a batch is durable, which what is told later does not wait
    /// for.
    pub(crate) fn tell_aside(&mut self, client: ClientId, batch: Batch, action: Action) {
        if !self.conf.early_reply {
            return self.tell(client, batch, action);
        }
        let batch = if self.conf.bug == Bug::EarlyReply { Batch(0) } else { batch };
        if let Some(session) = self.sessions.get_mut(&client) {
            session.output.push_aside(batch, action);
            self.with_output.insert(client);
        }
    }

    /// Lets out what may leave.
    pub(crate) fn release_output(&mut self) {
        let durable = self.log.durable;
        for client in std::mem::take(&mut self.with_output) {
            let Some(session) = self.sessions.get_mut(&client) else { continue };
            while let Some(action) = session.output.pop(durable) {
                self.out.push_back(action);
            }
            if !session.output.is_empty() {
                self.with_output.insert(client);
            }
        }
    }

    pub(crate) fn session_event(&mut self, client: ClientId, event: SessionEvent) {
        let now = self.now;
        if let Some(session) = self.sessions.get_mut(&client) {
            session.heard = now;
            session.stale = false;
        }
        let known = self.sessions.contains_key(&client);
        match event {
            SessionEvent::Open => {
                if !known {
                    let record = self.peers.records.remove(&client);
                    if record.is_some() {
                        self.log_tables();
                    }
                    self.add_session(client, record.unwrap_or_default());
                    self.log_session(client);
                }
                // A client that begins anew asks for all again that has no answer.
                if let Some(session) = self.sessions.get_mut(&client) {
                    session.answered.clear();
                }
                let message = Action::Session(client, SessionMessage::Open);
                self.tell(client, self.log.newest(), message);
            }
            SessionEvent::Renew { seq } if known => {
                let message = Action::Session(client, SessionMessage::Renew { seq });
                self.tell(client, Batch(0), message);
            }
            SessionEvent::FlushLog { seq } if known => {
                self.log.wants(self.log.newest());
                let message = Action::Session(client, SessionMessage::FlushLog { seq });
                self.tell_aside(client, self.log.newest(), message);
            }
            SessionEvent::Close { .. } if known => self.close_session(client),
            SessionEvent::Close { .. } => {
                self.out.push_back(Action::Session(client, SessionMessage::Close));
            }
            SessionEvent::Evict if known => self.evict(client),
            SessionEvent::Blocklisted if known => self.end_refused(client),
            _ => {}
        }
    }

    /// Has the OSDs refuse a client, and then ends its session.
    pub(crate) fn evict(&mut self, client: ClientId) {
        let Some(session) = self.sessions.get_mut(&client) else { return };
        if std::mem::replace(&mut session.evicting, true) {
            return;
        }
        let token = self.token();
        self.evicting.insert(token, client);
        self.out.push_back(Action::Blocklist { token, client });
    }

    /// The OSDs refuse a client.
    pub(crate) fn blocklisted(&mut self, token: Token) -> bool {
        let Some(client) = self.evicting.remove(&token) else { return false };
        self.end_refused(client);
        true
    }

    /// Ends the session of a client that the OSDs refuse. It is not waited for either.
    fn end_refused(&mut self, client: ClientId) {
        self.end_session(client);
        if let Phase::Reconnect(waiting) = &mut self.phase {
            waiting.remove(&client);
        }
        self.perhaps_active();
    }

    /// A client ends its session. It has said how far it wrote, but for what is not done yet.
    fn close_session(&mut self, client: ClientId) {
        let Some(session) = self.sessions.get(&client) else { return };
        let inodes: Vec<Ino> = session.inodes.iter().copied().collect();
        for ino in inodes {
            if !self.is_flushing(client, ino) {
                self.drop_cap(client, ino);
                self.end_write(client, ino);
            }
        }
        self.end_session(client);
    }

    /// Ends a session: what the client had is free.
    pub(crate) fn end_session(&mut self, client: ClientId) {
        let Some(session) = self.sessions.get(&client) else { return };
        let inodes: Vec<Ino> = session.inodes.iter().copied().collect();
        let gone: Vec<_> =
            self.ops.iter().filter(|(_, s)| s.client == client).map(|(id, _)| *id).collect();
        // A word about capabilities comes to its end by itself, and finds none.
        let gone: Vec<_> = gone
            .into_iter()
            .filter(|id| self.ops.get(id).is_some_and(|s| matches!(s.kind, Kind::Request(_))))
            .collect();
        self.abandon(&gone);
        for ino in &inodes {
            self.drop_cap(client, *ino);
        }
        self.drop_claims(client);
        self.drop_leases(client);
        self.forget_replays(client);
        self.drop_locks(client);
        let output = self.sessions.remove(&client).map(|s| s.output).unwrap_or_default();
        self.log_session(client);
        // A client without a session may have written what the server does not know.
        for ino in inodes {
            if self.nodes.get(&ino).is_some_and(|n| n.inode.ranges.contains_key(&client)) {
                self.recover_size(ino);
            }
        }
        for (batch, action) in output.into_all() {
            self.hold(batch, action);
        }
        self.hold(self.log.newest(), Action::Session(client, SessionMessage::Close));
        if self.phase == Phase::Replaying {
            self.perhaps_active();
        }
    }

    /// Finds sessions of which nothing was heard.
    pub(crate) fn check_sessions(&mut self) {
        let (now, conf) = (self.now, &self.conf);
        let (mut stale, mut lost) = (Vec::new(), Vec::new());
        for (client, session) in self.sessions.iter() {
            let silent = now.saturating_sub(session.heard);
            if session.inodes.is_empty() || silent < conf.session_timeout {
                continue;
            }
            if !session.stale {
                stale.push(*client);
            }
            let wanted = session.inodes.iter().any(|ino| {
                self.nodes.get(ino).is_some_and(|n| {
                    n.needs.iter().any(|need| {
                        need.client != *client
                            && n.caps.get(client).is_some_and(|c| c.issued() & need.others != 0)
                    }) || n.caps.get(client).is_some_and(|c| c.issued() != c.pending)
                })
            });
            if wanted || silent >= conf.session_autoclose {
                lost.push(*client);
            }
        }
        for client in stale {
            if let Some(session) = self.sessions.get_mut(&client) {
                session.stale = true;
            }
            self.tell(client, Batch(0), Action::Session(client, SessionMessage::Stale));
        }
        for client in lost {
            self.evict(client);
        }
    }

    /// What a client had when the server before this one went.
    pub(crate) fn claimed(&mut self, client: ClientId, claims: Vec<Claim>) {
        if self.conf.bug == Bug::NoClaims || !self.sessions.contains_key(&client) {
            return;
        }
        let Phase::Reconnect(_) = self.phase else { return };
        if self.sessions.get(&client).is_some_and(|s| s.evicting) {
            return;
        }
        for claim in claims {
            let ino = claim.ino;
            if self.has_gone(ino) {
                self.peers.exports.push((client, ino, claim.cap_id, claim.wanted));
                continue;
            }
            let bytes = self.claims.insert(client, claim);
            if let Some(session) = self.sessions.get_as_it_weighs(&client) {
                session.claimed += bytes;
            }
            if self.nodes.contains_key(&ino) {
                self.attach_claims(ino);
            }
        }
        self.bound_claims();
    }

    /// Ends the session of the client that claims the most, while claims do not fit into memory. It
    /// had less before: what a client claims takes a part of what it held. Others wait until the
    /// OSDs refuse it, and what it had is free then.
    fn bound_claims(&mut self) {
        while self.bytes() > self.conf.bounds.bytes {
            let most = self.sessions.iter().filter(|(_, s)| !s.evicting && s.claimed > 0);
            let Some(client) = most.max_by_key(|(_, s)| s.claimed).map(|(c, _)| *c) else { return };
            self.drop_claims(client);
            self.evict(client);
        }
    }

    pub(crate) fn reconnected(&mut self, client: ClientId) {
        // One that is being evicted is waited for until the OSDs refuse it.
        if self.sessions.get(&client).is_some_and(|s| s.evicting) {
            return;
        }
        if let Phase::Reconnect(waiting) = &mut self.phase {
            waiting.remove(&client);
        }
        if let Some(session) = self.sessions.get_mut(&client) {
            session.heard = self.now;
        }
        self.perhaps_active();
    }

    pub(crate) fn reconnect_over(&mut self) {
        if let Phase::Reconnect(waiting) = &self.phase {
            for client in waiting.clone() {
                self.evict(client);
            }
        }
        self.perhaps_active();
    }

    /// Goes on when all clients are back: first with what they were answered and may be lost, then
    /// with what they flushed and the server before this one did not finish, then with requests. A
    /// request that was answered early waited for what its inodes were said of before, so what is
    /// flushed comes behind it.
    pub(crate) fn perhaps_active(&mut self) {
        match &self.phase {
            Phase::Reconnect(waiting) if waiting.is_empty() => {
                if self.conf.bug == Bug::FlushBeforeReplay {
                    self.take_flushes();
                }
                self.begin_replays();
                return self.perhaps_active();
            }
            Phase::Replaying if self.has_replayed() => {}
            Phase::Flushing(ops) if ops.is_empty() => return self.activate(),
            _ => return,
        }
        let ops = self.take_flushes();
        self.phase = Phase::Flushing(ops);
        self.perhaps_active();
    }

    /// Takes in what clients flushed and the server before this one did not finish.
    fn take_flushes(&mut self) -> BTreeSet<OpId> {
        let mut ops = BTreeSet::new();
        let (flushes, rest): (Vec<_>, Vec<_>) = self
            .deferred
            .take()
            .into_iter()
            .partition(|e| matches!(e, Event::Caps(_, u) if u.flush.is_some()));
        for event in rest {
            self.deferred.push(event);
        }
        for event in flushes {
            if let Event::Caps(client, update) = event
                && self.sessions.contains_key(&client)
            {
                ops.insert(self.start_caps(client, update));
            }
        }
        ops
    }

    fn activate(&mut self) {
        self.phase = Phase::Active;
        self.judge.extend(self.nodes.iter().filter(|(_, n)| !n.caps.is_empty()).map(|(i, _)| *i));
        for ino in self.recovering.clone() {
            self.recover_size(ino);
        }
        // They may have left while there was no server here.
        for owner in self.conf.absent.clone() {
            if owner != self.conf.rank {
                self.forget_owner(owner);
            }
        }
        if self.peers.leaving < Some(Leaving::Flush) {
            self.look_through_strays(self.conf.rank);
            for owner in self.peers.kept.clone() {
                self.go_on_keeping(owner);
            }
        }
        self.go_on_moving();
        for event in self.deferred.take() {
            self.take(event);
        }
    }
}
