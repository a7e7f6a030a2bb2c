//! How many bytes OSDs may send each other, so that none is sent what its store has no room for.
//!
//! A replica cannot refuse a change that its primary has in the log. So a sender needs a promise
//! before it decides to send, and the promises of a receiver together never exceed what its store
//! has. Messages carry [`RoomNote`]s both ways:
//!
//! ```text
//!   receiver ── "you may have sent up to N bytes in all" ──► sender
//!   receiver ◄── "I have sent, or will send, M in all; I know your note n" ── sender
//! ```
//!
//! * A promise bounds the sum of all bytes ever sent, so a note that comes late or twice, or is
//!   lost, changes nothing.
//! * What may still arrive is the highest bound that the sender may know, less what has arrived. A
//!   lower bound counts once the sender has said that it knows it.
//! * A sender counts what it has decided to send as sent (a pledge). With a lower bound it says how
//!   much that is, and the receiver goes on to count it.
//! * Sums belong to one life of either side. An OSD begins a life when it starts, and when it was
//!   marked down: messages of the lives before are of intervals that are over, and change nothing.
//! * What frees space is sent without a promise, and so is what an operator forces; the receiver
//!   keeps some space back for that.

use std::collections::{BTreeMap, VecDeque};

use types::OsdId;
pub use types::room::RoomNote;

/// Different bounds of which a sender may know any. With so many no lower one is told.
const BOUNDS_MAX: usize = 16;

/// An OSD that leads PGs here gets so many parts of the space; others send copies now and then.
const WRITER_PARTS: u64 = 4;

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Clients' data.
    Data,
    /// Copies of objects.
    Copies,
}

/// Bytes that a store has for what others send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// For clients' data.
    pub data: u64,
    /// For copies of objects; no less.
    pub copies: u64,
}

/// The notes of one OSD and all others.
#[derive(Debug)]
pub struct Ledger {
    life: u64,
    number: u64,
    accounts: BTreeMap<OsdId, Account>,
    /// Lives that began before these epochs are over.
    over: BTreeMap<OsdId, u32>,
    /// Bytes that have arrived and are not in the store.
    unstored: u64,
    #[cfg(test)]
    flaw: Option<tests::Flaw>,
}

/// The name of a life: a random number of the process, and the epoch in which it was marked up. A
/// note may be heard before the map that tells of its life.
pub fn life(process: u32, up_from: u32) -> u64 {
    u64::from(process.max(1)) << 32 | u64::from(up_from)
}

/// The epoch in which a life began.
fn began(life: u64) -> u32 {
    life as u32
}

/// What goes between two lives.
#[derive(Debug, Default)]
struct Account {
    /// The life of the other OSD.
    life: u64,
    /// The newest note heard.
    heard: u64,
    /// Its OSD leads PGs that have a copy here.
    writes: bool,
    out: Out,
    into: In,
}

/// Of what is sent there.
#[derive(Debug, Default)]
struct Out {
    sent: u64,
    /// Of what is pledged, the part that was not sent.
    pledged: u64,
    /// The part that was, of pledges that were not released.
    used: u64,
    data: u64,
    copies: u64,
}

impl Out {
    /// Sends what was pledged, as far as something was.
    fn send(&mut self, cost: u64) {
        let pledged = self.pledged.min(cost);
        self.pledged -= pledged;
        self.used += pledged;
        self.sent = self.sent.saturating_add(cost);
    }
}

/// Of what is sent here.
#[derive(Debug, Default)]
struct In {
    came: u64,
    committed: u64,
    /// Bounds that the sender may know, with the notes that told them; each lower than the one
    /// before.
    bounds: VecDeque<(u64, u64)>,
}

impl In {
    /// What may still arrive.
    fn outstanding(&self) -> u64 {
        let bound = self.bounds.front().map_or(0, |(_, bound)| *bound);
        bound.max(self.committed).saturating_sub(self.came)
    }

    /// The sender knows notes up to this one.
    fn knows(&mut self, number: u64) {
        while self.bounds.get(1).is_some_and(|(n, _)| *n <= number) {
            self.bounds.pop_front();
        }
    }

    /// Tells a bound, or one that is no lower than what can be remembered; returns it.
    fn tell(&mut self, number: u64, bound: u64) -> u64 {
        while self.bounds.back().is_some_and(|(_, b)| *b < bound) {
            self.bounds.pop_back();
        }
        match self.bounds.back() {
            Some((_, b)) if *b == bound || self.bounds.len() >= BOUNDS_MAX => *b,
            _ => {
                self.bounds.push_back((number, bound));
                bound
            }
        }
    }
}

impl Account {
    fn parts(&self) -> u64 {
        if self.writes { WRITER_PARTS } else { 1 }
    }

    fn lacks(&self, cost: u64, kind: Kind) -> bool {
        let bound = match kind {
            Kind::Data => self.out.data,
            Kind::Copies => self.out.copies,
        };
        self.life == 0 || self.committed().saturating_add(cost) > bound
    }

    fn committed(&self) -> u64 {
        self.out.sent.saturating_add(self.out.pledged)
    }
}

/// Bytes that will be sent, or given back with [`Ledger::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a pledge that is dropped is never given back"]
pub struct Pledge {
    to: OsdId,
    lives: (u64, u64),
    cost: u64,
}

impl Ledger {
    /// A ledger of a life: see [`life`].
    pub fn new(life: u64) -> Ledger {
        Ledger {
            life,
            number: 0,
            accounts: BTreeMap::new(),
            over: BTreeMap::new(),
            unstored: 0,
            #[cfg(test)]
            flaw: None,
        }
    }

    /// Begins another life: this OSD was marked down. What was promised either way is void.
    pub fn begin(&mut self, life: u64) {
        if self.life != life {
            self.life = life;
            self.accounts.clear();
        }
    }

    /// The life.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Lives of another OSD that began before this epoch are over: it was marked down.
    pub fn end(&mut self, osd: OsdId, before: u32) {
        self.over.insert(osd, before);
        if self.accounts.get(&osd).is_some_and(|a| began(a.life) < before) {
            self.accounts.remove(&osd);
        }
    }

    /// OSDs that were heard, or sent to.
    pub fn known(&self) -> Vec<OsdId> {
        self.accounts.keys().copied().collect()
    }

    /// Which OSDs lead PGs that have a copy here.
    pub fn set_writers(&mut self, writes: impl Fn(OsdId) -> bool) {
        for (osd, account) in &mut self.accounts {
            account.writes = writes(*osd);
        }
    }

    /// Takes a note. Its cost counts as arrived and not stored, until [`Ledger::stored`] is told
    /// the bytes that this returns.
    pub fn hear(&mut self, from: OsdId, note: &RoomNote, writes: bool) -> u64 {
        if self.over.get(&from).is_some_and(|before| began(note.life) < *before) {
            return 0;
        }
        let account = self.accounts.entry(from).or_default();
        let is_new = account.life != note.life;
        #[cfg(test)]
        let is_new = is_new && (self.flaw != Some(tests::Flaw::OneLife) || account.life == 0);
        if is_new {
            *account = Account { life: note.life, writes, ..Account::default() };
        }
        let addressed = note.peer == self.life;
        #[cfg(test)]
        let addressed = addressed || self.flaw == Some(tests::Flaw::OneLife);
        if !addressed {
            account.heard = account.heard.max(note.number);
            return 0;
        }
        account.into.came = account.into.came.saturating_add(note.cost);
        self.unstored = self.unstored.saturating_add(note.cost);
        if note.number > account.heard {
            account.heard = note.number;
            account.into.committed = note.committed;
            account.into.knows(note.heard);
            account.out.data = note.data;
            account.out.copies = note.copies;
        }
        note.cost
    }

    /// Bytes of this OSD's own that will be in the store.
    pub fn hold(&mut self, bytes: u64) {
        self.unstored = self.unstored.saturating_add(bytes);
    }

    /// Bytes that arrived, or were held, are in the store, or dropped.
    pub fn stored(&mut self, bytes: u64) {
        self.unstored = self.unstored.saturating_sub(bytes);
    }

    /// What may still arrive from others, with what is not in the store yet.
    fn outstanding(&self) -> u64 {
        let all = self.accounts.values().map(|a| a.into.outstanding());
        all.fold(self.unstored, u64::saturating_add)
    }

    /// Bytes of the store that are promised to no other OSD.
    pub fn unpromised(&self, space: Space) -> u64 {
        space.copies.saturating_sub(self.outstanding())
    }

    /// The note for a message that takes so many bytes in the receiver's store. They count as sent.
    pub fn note(&mut self, to: OsdId, cost: u64, space: Space, asks: bool) -> RoomNote {
        self.number += 1;
        let number = self.number;
        let unpromised = self.unpromised(space);
        let new = u64::from(!self.accounts.contains_key(&to));
        let parts = self.parts() + new;
        let unstored = self.unstored;
        let (life, account) = (self.life, self.accounts.entry(to).or_default());
        let mut note = RoomNote { life, peer: account.life, number, asks, ..RoomNote::default() };
        if account.life == 0 {
            return note;
        }
        account.out.send(cost);
        note.cost = cost;
        note.committed = account.committed();
        #[cfg(test)]
        if self.flaw == Some(tests::Flaw::NoPledges) {
            note.committed = account.out.sent;
        }
        note.heard = account.heard;
        let mine = account.parts();
        let share = |bytes: u64| bytes / parts * mine;
        let stays = space.copies / parts * WRITER_PARTS;
        let (own, want) =
            (account.into.outstanding(), share(space.copies.saturating_sub(unstored)));
        let may = match want.checked_sub(own) {
            Some(more) => own + more.min(unpromised.saturating_sub(stays)),
            None => want,
        };
        #[cfg(test)]
        let may = if self.flaw == Some(tests::Flaw::SharesOnly) { want } else { may };
        let came = account.into.came;
        note.copies = account.into.tell(number, came.saturating_add(may));
        #[cfg(test)]
        if self.flaw == Some(tests::Flaw::LowersAtOnce) {
            account.into.knows(number);
        }
        let data = share(space.data.saturating_sub(unstored));
        note.data = note.copies.min(came.saturating_add(data));
        note
    }

    /// Whether an OSD must not be sent so many bytes more.
    pub fn lacks(&self, to: OsdId, cost: u64, kind: Kind) -> bool {
        self.accounts.get(&to).is_none_or(|a| a.lacks(cost, kind))
    }

    /// Pledges to send so many bytes to each of these OSDs; to none if one has no room.
    pub fn pledge(&mut self, to: &[OsdId], cost: u64, kind: Kind) -> Option<Vec<Pledge>> {
        if to.iter().any(|osd| self.lacks(*osd, cost, kind)) {
            return None;
        }
        let mut pledges = Vec::with_capacity(to.len());
        for osd in to {
            if let Some(a) = self.accounts.get_mut(osd) {
                a.out.pledged = a.out.pledged.saturating_add(cost);
                pledges.push(Pledge { to: *osd, lives: (self.life, a.life), cost });
            }
        }
        Some(pledges)
    }

    /// What was pledged was sent just before, or will not be.
    pub fn release(&mut self, pledge: Pledge) {
        let life = self.life;
        if let Some(a) = self.accounts.get_mut(&pledge.to)
            && (life, a.life) == pledge.lives
        {
            let used = a.out.used.min(pledge.cost);
            a.out.used -= used;
            a.out.pledged = a.out.pledged.saturating_sub(pledge.cost - used);
        }
    }

    /// Into how many parts the space is divided: this OSD has the part of one that writes.
    fn parts(&self) -> u64 {
        self.accounts.values().map(Account::parts).sum::<u64>() + WRITER_PARTS
    }

    /// Whether another OSD has said what it may be sent.
    pub fn is_known(&self, osd: OsdId) -> bool {
        self.accounts.get(&osd).is_some_and(|a| a.out.copies > 0)
    }

    /// OSDs that were promised far more than their part, or more than that while others may find
    /// nothing: a note tells them the lower bound, and asks for theirs. One that sends nothing
    /// would keep what it was promised when there was more.
    pub fn overdrawn(&self, space: Space) -> Vec<OsdId> {
        let part = space.copies / self.parts();
        let short = self.unpromised(space) < part.saturating_mul(WRITER_PARTS + 1);
        let over = |a: &Account| {
            let parts = if short { a.parts() } else { a.parts() * 2 };
            a.into.outstanding() > part.saturating_mul(parts)
        };
        self.accounts.iter().filter(|(_, a)| over(a)).map(|(osd, _)| *osd).collect()
    }

    /// Another OSD leads a PG that has a copy here.
    pub fn set_writer(&mut self, osd: OsdId) {
        if let Some(account) = self.accounts.get_mut(&osd) {
            account.writes = true;
        }
    }
}

#[cfg(test)]
mod tests;
