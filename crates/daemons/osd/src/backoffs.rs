//! Clients that a group told to hold back (Ceph: `Backoff` of `osd/Session.h`).
//!
//! A backoff ends in two steps. UNBLOCK goes out when the group can serve again, and the client
//! sends all its requests of the range anew, in their order. Those that it sent before it saw the
//! BLOCK are among them, so that none of these may run: a later one would overtake an earlier one
//! that was dropped. The client's ACK_BLOCK is behind the last of them on the connection.
//!
//! ```text
//! client   A ─┐  B ─┐      ┌─ ACK ─┐          ┌─ A, B
//! OSD         └─ BLOCK ─┘ B dropped └─ ...  UNBLOCK   └─ run
//! ```

use crate::client_op::ReplySink;
use messages::OsdBackoff;
use rustc_hash::FxHashMap;
use std::rc::Rc;
use types::Epoch;

/// A session that was told to hold back at least once.
struct Session {
    sink: Rc<dyn ReplySink>,
    /// The BLOCK that holds, or that its client has not acknowledged.
    told: Option<Told>,
    /// Requests that arrived below this number were sent before a BLOCK was seen.
    void_below: u64,
}

struct Told {
    block: OsdBackoff,
    acknowledged: bool,
    released: bool,
}

/// The sessions of a group, by their number.
#[derive(Default)]
pub(crate) struct Backoffs(FxHashMap<u64, Session>);

impl Backoffs {
    /// Whether a session sends what arrived under this number again when it is told to go on, so
    /// that it must not run.
    pub(crate) fn covers(&self, session: u64, arrival: u64) -> bool {
        self.0.get(&session).is_some_and(|s| s.told.is_some() || arrival < s.void_below)
    }

    /// Tells a client to hold back. False if it does not understand that.
    pub(crate) fn block(&mut self, sink: &Rc<dyn ReplySink>, block: OsdBackoff) -> bool {
        if !sink.backoff(block.clone()) {
            return false;
        }
        let session = self.0.entry(sink.session()).or_insert_with(|| Session {
            sink: sink.clone(),
            told: None,
            void_below: 0,
        });
        session.told = Some(Told { block, acknowledged: false, released: false });
        true
    }

    /// A client has seen the BLOCK of this id. What it sends from `arrival` on it sends knowing.
    pub(crate) fn acknowledged(&mut self, session: u64, id: u64, arrival: u64) {
        let Some(s) = self.0.get_mut(&session) else { return };
        let Some(told) = s.told.as_mut().filter(|t| t.block.id == id && !t.acknowledged) else {
            return;
        };
        told.acknowledged = true;
        s.void_below = arrival;
        if told.released {
            s.told = None;
        }
    }

    /// All may go on.
    pub(crate) fn release(&mut self, epoch: Epoch) {
        self.0.retain(|_, s| s.sink.is_open());
        for s in self.0.values_mut() {
            let Some(told) = s.told.as_mut().filter(|t| !t.released) else { continue };
            told.released = true;
            let unblock = OsdBackoff { op: OsdBackoff::UNBLOCK, epoch, ..told.block.clone() };
            s.sink.backoff(unblock);
            if told.acknowledged {
                s.told = None;
            }
        }
    }

    /// A client's connection is gone.
    pub(crate) fn forget(&mut self, session: u64) {
        self.0.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use messages::OsdOpReply;
    use std::cell::{Cell, RefCell};

    #[derive(Default)]
    struct Client {
        told: RefCell<Vec<(u8, u64)>>,
        gone: Cell<bool>,
    }

    impl ReplySink for Client {
        fn reply(&self, _: OsdOpReply, _: u64, _: u16) {}
        fn backoff(&self, b: OsdBackoff) -> bool {
            self.told.borrow_mut().push((b.op, b.id));
            true
        }
        fn is_open(&self) -> bool {
            !self.gone.get()
        }
        fn session(&self) -> u64 {
            7
        }
    }

    fn blocked(id: u64) -> (Backoffs, Rc<Client>) {
        let (mut b, client) = (Backoffs::default(), Rc::new(Client::default()));
        let sink: Rc<dyn ReplySink> = client.clone();
        assert!(b.block(&sink, OsdBackoff { op: OsdBackoff::BLOCK, id, ..OsdBackoff::default() }));
        (b, client)
    }

    #[test]
    fn what_was_sent_before_the_block_was_seen_never_runs() {
        let (mut b, client) = blocked(1);
        assert!(b.covers(7, 10) && !b.covers(8, 10));
        b.release(Epoch(5));
        assert_eq!(*client.told.borrow(), [(OsdBackoff::BLOCK, 1), (OsdBackoff::UNBLOCK, 1)]);
        assert!(b.covers(7, 11), "the acknowledgement is behind it");
        b.acknowledged(7, 1, 20);
        assert!(b.covers(7, 11), "it may still be in the scheduler");
        assert!(!b.covers(7, 20));
        b.release(Epoch(6));
        assert_eq!(client.told.borrow().len(), 2, "once");
    }

    #[test]
    fn an_acknowledged_block_holds_until_it_is_released() {
        let (mut b, client) = blocked(1);
        b.acknowledged(7, 2, 15);
        b.acknowledged(7, 1, 20);
        b.acknowledged(7, 1, 30);
        assert!(b.covers(7, 40));
        b.release(Epoch(5));
        assert!(!b.covers(7, 20) && b.covers(7, 19));
        assert_eq!(client.told.borrow().len(), 2);
    }

    #[test]
    fn a_session_that_is_gone_is_forgotten() {
        let (mut b, client) = blocked(1);
        client.gone.set(true);
        b.release(Epoch(5));
        assert_eq!(client.told.borrow().len(), 1);
        assert!(!b.covers(7, 0));
        let (mut b, _) = blocked(1);
        b.forget(7);
        assert!(!b.covers(7, 0));
    }
}
