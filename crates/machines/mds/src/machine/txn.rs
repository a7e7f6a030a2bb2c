//! The coordinator of a change that several owners make: its request is tried until only halves of
//! others are missing, these are made ready, and then the request is tried once more.

use super::Mds;
use super::asked::Txn;
use super::operation::{Exec, Kind, OpState, Stop, fail};
use crate::conf::Bug;
use crate::peer::{Found, Half, Message, Refusal, TxnId};
use crate::request::Request;
use crate::types::{Batch, Ino, Rank};
use std::collections::BTreeSet;

/// A request that met another transaction tries again after so many nanoseconds.
const LATER: u64 = 500_000;

/// So many owners of inodes are remembered as others said them.
const TOLD_MAX: usize = 1_024;

impl Mds {
    /// The owner that is asked for a half of an inode. It may say that another one has it.
    pub(crate) fn asked_of(&self, ino: Ino) -> Rank {
        let keeper = self.keeper(ino);
        let told = self.peers.told.get(&ino).map(|rank| self.in_place_of(*rank));
        let me = self.conf.rank;
        told.filter(|told| *told != me && keeper != me).unwrap_or(keeper)
    }

    /// Waits until halves of other owners are ready. Says what they are about, in order.
    pub(crate) fn prepare(
        &mut self,
        state: &mut OpState,
        request: &Request,
        halves: Vec<(Rank, Half)>,
    ) -> Exec<Vec<Found>> {
        if state.txn.as_ref().is_some_and(|t| t.halves != halves) {
            self.give_back(state);
        }
        if let Some(txn) = &state.txn {
            if let Some(found) = txn.found() {
                return Ok(found);
            }
            let refusals = txn.answers.values().flatten().filter_map(|a| a.as_ref().err());
            let errno = refusals.clone().find_map(|r| match r {
                Refusal::Errno(errno) => Some(*errno),
                _ => None,
            });
            if let Some(errno) = errno {
                state.judged = true;
                return Err(Stop::Fail(errno));
            }
            if refusals.clone().next().is_some() {
                self.begin_later(state);
            }
            self.keep_needs();
            return Err(Stop::Wait);
        }
        if self.peers.later.contains_key(&self.current) {
            return Err(Stop::Wait);
        }
        // Others do not know what the client may do there.
        if self.wish.is_some() {
            return fail(types::Errno::EACCES);
        }
        self.peers.next_txn += 1;
        let id = TxnId { rank: self.conf.rank, number: self.peers.next_txn };
        let ranks: BTreeSet<Rank> = halves.iter().map(|(rank, _)| *rank).collect();
        let txn = Txn {
            id,
            client: state.client,
            tid: request.tid,
            stamp: request.stamp,
            halves,
            answers: ranks.iter().map(|rank| (*rank, None)).collect(),
        };
        for rank in ranks {
            self.say(rank, self.peers.since, Message::Prepare(txn.ask(rank)));
        }
        self.peers.coordinating.insert(id, self.current);
        state.txn = Some(Box::new(txn));
        self.keep_needs();
        Err(Stop::Wait)
    }

    /// Gives halves back and has the current operation begin anew in a while: the owner with the
    /// lower number sooner, so that two do not meet again and again.
    fn begin_later(&mut self, state: &mut OpState) {
        self.give_back(state);
        let turn = self.peers.next_txn % 4 + 1;
        let at = self.now + LATER * turn * (u64::from(self.conf.rank.0) + 1);
        self.peers.later.insert(self.current, at);
    }

    /// A request that waits for another transaction keeps no halves meanwhile: the other one could
    /// wait for these.
    pub(crate) fn make_way(&mut self, state: &mut OpState) {
        if state.txn.is_none() {
            return;
        }
        let blocked = self
            .collected
            .iter()
            .any(|(ino, need)| self.locked(*ino) & (need.others | need.own) != 0);
        if blocked {
            self.begin_later(state);
        }
    }

    /// Nothing happens of the halves that an operation asked for.
    pub(crate) fn give_back(&mut self, state: &mut OpState) {
        let Some(txn) = state.txn.take() else { return };
        self.peers.coordinating.remove(&txn.id);
        for rank in txn.answers.keys() {
            self.say(*rank, Batch(0), Message::Decided(txn.id, false));
        }
    }

    /// Decides, in the batch that has the coordinator's own changes.
    pub(crate) fn decide(&mut self, state: &mut OpState) {
        let Some(txn) = state.txn.take() else { return };
        self.peers.coordinating.remove(&txn.id);
        let early = self.conf.bug == Bug::DecidedEarly;
        let batch = if early { Batch(0) } else { self.log.open() };
        let ranks: BTreeSet<Rank> = txn.answers.keys().copied().collect();
        for rank in &ranks {
            self.say(*rank, batch, Message::Decided(txn.id, true));
        }
        self.peers.decided.insert(txn.id, (batch, ranks));
        self.log_decided(txn.id);
        self.seen = self.seen.max(self.log.open());
        self.shows(self.log.open());
    }

    /// An owner's halves are ready, or cannot be.
    pub(crate) fn halves_ready(
        &mut self,
        from: Rank,
        id: TxnId,
        answer: Result<Vec<Found>, Refusal>,
    ) {
        let op = self.peers.coordinating.get(&id).copied();
        let Some((op, state)) = op.and_then(|op| Some((op, self.ops.get_mut(&op)?))) else {
            // The request was given up. A decision is told by itself.
            if !self.peers.decided.contains_key(&id) && answer.is_ok() {
                self.say(from, Batch(0), Message::Decided(id, false));
            }
            return;
        };
        match (&answer, &mut state.kind) {
            (Err(Refusal::Elsewhere(path)), Kind::Request(request)) => {
                request.path2 = path.clone();
            }
            (Err(Refusal::With(ino, rank)), _) => {
                let told = &mut self.peers.told;
                if told.len() >= TOLD_MAX {
                    told.clear();
                }
                told.insert(*ino, *rank);
            }
            _ => {}
        }
        if let Some(slot) = state.txn.as_mut().and_then(|t| t.answers.get_mut(&from)) {
            *slot = Some(answer);
        }
        self.again.insert(op);
    }

    /// A participant asks what was decided.
    pub(crate) fn take_question(&mut self, from: Rank, id: TxnId) {
        if self.peers.coordinating.contains_key(&id) {
            return;
        }
        match self.peers.decided.get(&id) {
            Some((batch, ranks)) if ranks.contains(&from) => {
                let batch = *batch;
                self.say(from, batch, Message::Decided(id, true));
            }
            _ => self.say(from, Batch(0), Message::Decided(id, false)),
        }
    }

    /// A participant has carried its halves out.
    pub(crate) fn take_done(&mut self, from: Rank, id: TxnId) {
        let Some((_, ranks)) = self.peers.decided.get_mut(&id) else { return };
        ranks.remove(&from);
        if ranks.is_empty() {
            self.peers.decided.remove(&id);
            self.log_decided(id);
        }
    }

    /// Fails for a name that is in a subvolume: nothing crosses its border.
    pub(crate) fn crosses(&self, dir: Ino) -> Exec<()> {
        if self.space_of(dir) == crate::types::Space::COMMON {
            Ok(())
        } else {
            fail(types::Errno::EXDEV)
        }
    }
}
