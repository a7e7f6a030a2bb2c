//! Order of operations on one object.
//!
//! What is promised: requests of one client to one object execute in the order in which the client
//! sent them, and writes and ordered reads (`CEPH_OSD_FLAG_RWORDERED`) are answered in that order.
//! A read without the flag may be executed on a replica, and its answer may overtake others; it
//! never returns what is not durable everywhere. A read that is ordered and may go to a replica is
//! served by the primary: a replica knows nothing of the writes before it.
//!
//! Writes execute one at a time, in the order of arrival, but do not wait for earlier writes to be
//! durable: what they read is what was applied, and their answers come in order anyway. Reads wait
//! until the writes before them are durable everywhere, otherwise they could return what a failure
//! takes back. Ordered reads are alone besides, or a small one could be answered before a large one
//! (Ceph: `RWState::RWEXCL`). Nothing overtakes.
//!
//! What has its turn finds in the store all that was written before it: it begins only when no
//! action of its PG is left to carry out ([`crate::host::PgHost::turn`]).
//!
//! The gate is the last of several places that keep this order. The others:
//!
//! * A connection delivers messages in order, and each is routed before the next one is read.
//! * Limits of images and ceilings of tenants let ordered requests of one image or tenant go in
//!   order, and an object belongs to one of them.
//! * Each scheduler keeps the order of a session in a tenant.
//! * A request that has had its turn and waits (for recovery, a scrub, room, replicas) keeps
//!   ordered requests for its object waiting ([`crate::waits`]). When it goes on it does not enter
//!   the scheduler again, where later ones are ([`crate::core::Core::resume`]).
//! * An interval of the PG that ends puts all that it had into the order of arrival.

use objops::object::{ObjectState, SnapSet};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// How an operation takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Shares the object with other reads.
    Read,
    /// Alone.
    Write,
    /// Alone, when the writes before it are durable.
    OrderedRead,
}

/// What is known of a head: its state and its clones.
#[derive(Clone, Debug)]
pub struct Head {
    /// The head.
    pub state: ObjectState,
    /// Its snap set; default if it does not exist.
    pub snapset: SnapSet,
}

/// An object in use (Ceph: `ObjectContext`).
pub struct ObjectContext<T> {
    /// Loaded when the first operation needs it.
    pub head: RefCell<Option<Rc<Head>>>,
    readers: Cell<u32>,
    writer: Cell<bool>,
    /// Writes that are applied here and not yet durable everywhere.
    in_flight: Cell<u32>,
    waiting: RefCell<VecDeque<(Mode, T)>>,
    /// The operations that are next are being run.
    pub kicking: Cell<bool>,
}

impl<T> Default for ObjectContext<T> {
    fn default() -> Self {
        ObjectContext {
            head: RefCell::default(),
            readers: Cell::default(),
            writer: Cell::default(),
            in_flight: Cell::default(),
            waiting: RefCell::default(),
            kicking: Cell::default(),
        }
    }
}

impl<T> ObjectContext<T> {
    fn free_for(&self, mode: Mode) -> bool {
        match mode {
            Mode::Read => !self.writer.get() && self.in_flight.get() == 0,
            Mode::Write => !self.writer.get() && self.readers.get() == 0,
            Mode::OrderedRead => self.free_for(Mode::Read) && self.free_for(Mode::Write),
        }
    }

    fn take(&self, mode: Mode) {
        match mode {
            Mode::Read => self.readers.set(self.readers.get() + 1),
            Mode::Write | Mode::OrderedRead => self.writer.set(true),
        }
    }

    /// Takes the object for an operation, or keeps the operation until its turn comes.
    pub fn enter(&self, mode: Mode, op: T) -> Option<T> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() && self.free_for(mode) {
            self.take(mode);
            return Some(op);
        }
        waiting.push_back((mode, op));
        None
    }

    /// Execution of an operation is over.
    pub fn leave(&self, mode: Mode) {
        match mode {
            Mode::Read => self.readers.set(self.readers.get().saturating_sub(1)),
            Mode::Write | Mode::OrderedRead => self.writer.set(false),
        }
    }

    /// A write was proposed.
    pub fn proposed(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// A write is durable everywhere.
    pub fn committed(&self) {
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
    }

    /// Whether writes are applied here that are not durable everywhere.
    pub fn has_in_flight(&self) -> bool {
        self.in_flight.get() > 0
    }

    /// The next operation in the order; the object is taken for it.
    pub fn next(&self) -> Option<(Mode, T)> {
        let mut waiting = self.waiting.borrow_mut();
        let mode = waiting.front()?.0;
        if !self.free_for(mode) {
            return None;
        }
        self.take(mode);
        waiting.pop_front()
    }

    /// Whether no operation uses the object or waits for it.
    pub fn is_idle(&self) -> bool {
        self.readers.get() == 0
            && !self.writer.get()
            && self.in_flight.get() == 0
            && self.waiting.borrow().is_empty()
    }

    /// All operations that wait.
    pub fn drain(&self) -> Vec<T> {
        self.waiting.borrow_mut().drain(..).map(|(_, op)| op).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_reads_are_alone_and_wait_for_durability() {
        let o = ObjectContext::default();
        assert_eq!(o.enter(Mode::Write, 1), Some(1));
        assert_eq!(o.enter(Mode::OrderedRead, 2), None);
        assert_eq!(o.enter(Mode::OrderedRead, 3), None);
        assert_eq!(o.enter(Mode::Read, 4), None);
        o.proposed();
        o.leave(Mode::Write);
        assert_eq!(o.next(), None, "the write is not durable");
        o.committed();
        assert_eq!(o.next(), Some((Mode::OrderedRead, 2)));
        assert_eq!(o.next(), None, "the second one would be answered first");
        o.leave(Mode::OrderedRead);
        assert_eq!(o.next(), Some((Mode::OrderedRead, 3)));
        o.leave(Mode::OrderedRead);
        assert_eq!(o.next(), Some((Mode::Read, 4)));
        assert_eq!(o.enter(Mode::OrderedRead, 5), None, "another read is under way");
        o.leave(Mode::Read);
        assert_eq!(o.next(), Some((Mode::OrderedRead, 5)));
        o.leave(Mode::OrderedRead);
        assert!(o.is_idle());
    }

    #[test]
    fn writes_are_alone_and_reads_wait_for_durability() {
        let o = ObjectContext::default();
        assert_eq!(o.enter(Mode::Write, 1), Some(1));
        assert_eq!(o.enter(Mode::Write, 2), None);
        assert_eq!(o.enter(Mode::Read, 3), None);
        assert_eq!(o.enter(Mode::Read, 4), None);
        assert_eq!(o.next(), None);
        o.proposed();
        o.leave(Mode::Write);
        assert_eq!(o.next(), Some((Mode::Write, 2)), "a write need not wait for durability");
        o.proposed();
        o.leave(Mode::Write);
        assert_eq!(o.next(), None);
        o.committed();
        assert_eq!(o.next(), None);
        o.committed();
        assert_eq!(o.next(), Some((Mode::Read, 3)));
        assert_eq!(o.next(), Some((Mode::Read, 4)), "reads share");
        assert_eq!(o.enter(Mode::Write, 5), None);
        assert_eq!(o.enter(Mode::Read, 6), None, "nobody overtakes a waiting write");
        o.leave(Mode::Read);
        o.leave(Mode::Read);
        assert_eq!(o.next(), Some((Mode::Write, 5)));
        o.leave(Mode::Write);
        assert_eq!(o.next(), Some((Mode::Read, 6)));
        o.leave(Mode::Read);
        assert!(o.is_idle());
    }
}
