//! All owners come to rest together, and end one after the other.
//!
//! While owners are to rest, none serves a client: requests are put aside, clients give all back,
//! sessions end, and all goes to its place until the log is empty. An owner that has come so far is
//! *still*. It goes on answering other owners, and what they report wakes it for a while.
//!
//! An owner ends only when all are still at one moment. Nothing starts by itself after that: no
//! client has a session, and no owner has anything to say. So no owner needs one that has ended,
//! until all are back. The owner that is to end finds this moment by asking the others twice:
//!
//! ```text
//! the owner that is to end              each other one that has not ended
//!   Look ─────────────────────────────►  is still
//!        ◄─────────────────────────────  Still, with the number of its last batch
//!   all have said so: Look ───────────►
//!        ◄─────────────────────────────  Still, with the same number
//! ```
//!
//! A number that has not changed says that the owner's log was empty all the time between.

use super::Mds;
use super::operation::{Kind, OpId};
use super::state::Leaving;
use crate::action::Action;
use crate::conf::Bug;
use crate::event::{Event, SessionEvent};
use crate::peer::Message;
use crate::types::{Batch, ClientId, Ino, Rank};
use std::collections::{BTreeMap, BTreeSet};

/// How an owner rests, and ends.
#[derive(Default, Debug)]
pub(crate) struct Rest {
    /// The steps of [`Leaving`] lead to rest: nothing is handed over.
    pub on: bool,
    /// The owner is to end when all are still.
    pub ends: bool,
    /// Others are being asked.
    pub round: Option<Round>,
    /// The number of the last round.
    rounds: u64,
}

/// One time that all others are asked whether they are still.
#[derive(Debug)]
pub(crate) struct Round {
    number: u64,
    /// Those that have not said so.
    open: BTreeSet<Rank>,
    said: BTreeMap<Rank, Batch>,
    /// What they, and this owner, said in the round before.
    before: Option<BTreeMap<Rank, Batch>>,
}

impl Mds {
    /// Whether all owners are to rest from now on, which of them have ended for that, and the
    /// number of the map that says so. It takes effect with the next event.
    pub fn set_rest(&mut self, rests: bool, asleep: BTreeSet<Rank>, map: u64) {
        if map < self.conf.map {
            return;
        }
        if self.conf.asleep != asleep {
            self.peers.rest.round = None;
        }
        (self.conf.rests, self.conf.asleep, self.conf.map) = (rests, asleep, map);
    }

    /// Whether this owner serves no clients at present, as all owners rest.
    pub fn rests(&self) -> bool {
        self.conf.rests || self.peers.rest.on
    }

    /// Whether this owner has ended its sessions, and begins none.
    pub(crate) fn is_shut(&self) -> bool {
        self.peers.leaving >= Some(Leaving::Flush)
    }

    /// Whether nothing begins by itself any more, as this owner rests.
    pub(crate) fn is_calm(&self) -> bool {
        self.peers.rest.on && self.is_shut()
    }

    /// Refuses what clients say that are not served. Says whether that was so.
    pub(crate) fn refuses(&mut self, event: &Event) -> bool {
        let opens = match event {
            Event::Session(client, SessionEvent::Open) => Some(*client),
            _ => None,
        };
        let new = opens.is_some_and(|client| !self.sessions.contains_key(&client));
        if !(self.is_shut() && Self::is_of_client(event) || self.conf.rests && new) {
            return false;
        }
        if let Some(client) = opens {
            self.out.push_back(Action::Session(client, crate::action::SessionMessage::Close));
        }
        true
    }

    /// The owner is to end, as all rest.
    pub(crate) fn end(&mut self) {
        self.peers.rest.ends = self.conf.rests;
    }

    /// Begins to rest, or ends that. Says whether it did.
    pub(crate) fn change_rest(&mut self) -> bool {
        let (rests, rest) = (self.conf.rests, &self.peers.rest);
        if rests && self.peers.leaving.is_none() {
            self.peers.rest.on = true;
            self.read_claimed();
            self.peers.leaving = Some(Leaving::Requests);
            return true;
        }
        if rests || !rest.on || rest.ends {
            return false;
        }
        self.rise();
        true
    }

    /// Serves clients again.
    fn rise(&mut self) {
        let rounds = self.peers.rest.rounds;
        self.peers.rest = Rest { rounds, ..Rest::default() };
        self.peers.leaving = None;
        self.peers.choose_all = true;
        self.judge.extend(self.nodes.keys());
        // What was found meanwhile and not begun.
        for ino in self.recovering.clone() {
            self.recover_size(ino);
        }
        for ino in self.truncating.clone() {
            self.trim_data(ino);
        }
        for event in self.deferred.take() {
            self.take(event);
        }
    }

    /// Puts requests aside. What they have asked of other owners is given back: these put theirs
    /// aside too, and would refuse it again and again. Says whether there were any.
    pub(crate) fn put_aside(&mut self) -> bool {
        let requests = self.ops.iter().filter_map(|(id, state)| match &state.kind {
            Kind::Request(request) => Some((*id, state.client, (**request).clone())),
            _ => None,
        });
        let requests: Vec<_> = requests.collect();
        let gone: Vec<OpId> = requests.iter().map(|(id, ..)| *id).collect();
        self.abandon(&gone);
        for (id, client, mut request) in requests {
            self.peers.later.remove(&id);
            // They were taken in when it came.
            request.releases.clear();
            self.deferred.push(Event::Request(client, request));
        }
        !gone.is_empty()
    }

    /// Reads what clients claim, so that they can be asked for it.
    pub(crate) fn read_claimed(&mut self) {
        for ino in self.claims.inodes().collect::<Vec<Ino>>() {
            self.start(ClientId(0), Kind::Claimed(ino));
        }
    }

    /// Whether all is at rest, and nothing is under way.
    fn is_still(&self) -> bool {
        self.peers.rest.on
            && self.peers.leaving >= Some(Leaving::Still)
            && self.is_log_empty()
            && self.is_quiet()
            && self.peers.parked.is_empty()
            && self.ops.is_empty()
            && self.size_work.is_empty()
            && self.purging.is_empty()
            && self.evicting.is_empty()
    }

    /// Goes on from being still. Says whether there was something to do.
    pub(crate) fn still_on(&mut self) -> bool {
        if !self.is_log_empty() {
            self.peers.rest.round = None;
            self.begin_flush();
            self.peers.leaving = Some(Leaving::Flush);
            return true;
        }
        let rest = &self.peers.rest;
        if !rest.ends || rest.round.is_some() || !self.is_still() {
            return false;
        }
        self.begin_round(None);
        true
    }

    fn begin_round(&mut self, before: Option<BTreeMap<Rank, Batch>>) {
        let open: BTreeSet<Rank> = self.awake().filter(|r| *r != self.conf.rank).collect();
        if open.is_empty() || self.conf.bug == Bug::EndAlone {
            return self.has_ended();
        }
        self.peers.rest.rounds += 1;
        let number = self.peers.rest.rounds;
        let said = [(self.conf.rank, self.log.sealed)].into();
        self.peers.rest.round = Some(Round { number, open, said, before });
        for (rank, batch, message) in self.look_again() {
            self.say(rank, batch, message);
        }
    }

    /// Owners that have neither ended nor left.
    fn awake(&self) -> impl Iterator<Item = Rank> {
        let conf = &self.conf;
        let gone = |r: &Rank| {
            conf.absent.contains(r) || conf.asleep.contains(r) || self.peers.kept.contains(r)
        };
        (0..conf.owners).map(Rank).filter(move |r| !gone(r))
    }

    fn has_ended(&mut self) {
        self.peers.rest.round = None;
        self.peers.leaving = Some(Leaving::Gone);
        self.out.push_back(Action::Ended);
    }

    /// Words to those that have not said that they are still.
    pub(crate) fn look_again(&self) -> Vec<(Rank, Batch, Message)> {
        let Some(round) = &self.peers.rest.round else { return Vec::new() };
        let look = Message::Look { map: self.conf.map, round: round.number };
        round.open.iter().map(|rank| (*rank, Batch(0), look.clone())).collect()
    }

    /// Another owner is to end. One that knows an older map than that owner may serve clients yet.
    pub(crate) fn take_look(&mut self, from: Rank, map: u64, round: u64) {
        if self.conf.rests && self.conf.map >= map && self.is_still() {
            self.say(from, Batch(0), Message::Still { round, last: self.log.sealed });
        }
    }

    /// Another owner is still.
    pub(crate) fn take_still(&mut self, from: Rank, number: u64, last: Batch) {
        let Some(round) = &mut self.peers.rest.round else { return };
        if round.number != number || !round.open.remove(&from) {
            return;
        }
        round.said.insert(from, last);
        if !round.open.is_empty() {
            return;
        }
        let (said, before) = (std::mem::take(&mut round.said), round.before.take());
        if !self.is_still() {
            self.peers.rest.round = None;
        } else if before.as_ref() == Some(&said) {
            self.has_ended();
        } else {
            self.begin_round(Some(said));
        }
    }
}
