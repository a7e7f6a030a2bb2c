//! What the manager is told: counters for `fs status`, and what clients count while it asks for
//! that.

use bytes::{Bytes, BytesMut};
use client::Reporter;
use denc::{Encode, Features};
use messages::{ClientQuery, ClientReport, MgrConfigure, MgrOpen, MgrReport, PerfCounterType};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Weak;

/// Kinds of counters: a number, and one that only grows (Ceph: `perfcounter_type_d`).
const NUMBER: u8 = 2;
const GROWS: u8 = 2 | 8;
/// Priority of a counter that is useful (Ceph: `PRIO_USEFUL`).
const USEFUL: u8 = 5;

/// What a server knows of itself.
pub trait Told {
    /// What is in memory.
    fn memory(&self) -> mds::Memory;
    /// Clients that have a session, and requests that were answered.
    fn clients(&self) -> (u64, u64);
    /// What clients count; nothing while the server serves none.
    fn counted(&self, queries: &BTreeSet<ClientQuery>) -> Option<ClientReport>;
}

/// Reports for a server.
pub struct ToManager {
    server: Weak<dyn Told>,
    name: String,
    /// What the manager asks about clients.
    queries: RefCell<BTreeSet<ClientQuery>>,
}

impl ToManager {
    pub fn new(server: Weak<dyn Told>, name: &str) -> ToManager {
        ToManager { server, name: name.to_owned(), queries: RefCell::default() }
    }
}

/// The values of counters, in the order of their paths.
fn packed(counters: &[(&str, u8, u64)]) -> Bytes {
    let mut out = BytesMut::new();
    denc::envelope(&mut out, 1, 1, |out| {
        counters.iter().for_each(|(_, _, value)| value.encode(out, Features::ALL));
    });
    out.freeze()
}

/// The counters, in the order of their paths.
fn counters(server: &dyn Told) -> [(&'static str, u8, u64); 6] {
    let (memory, (sessions, answers)) = (server.memory(), server.clients());
    [
        ("mds_mem.cap", NUMBER, memory.caps),
        ("mds_mem.dir", NUMBER, memory.dirs),
        ("mds_mem.dn", NUMBER, memory.entries),
        ("mds_mem.ino", NUMBER, memory.inodes),
        ("mds_server.handle_client_request", GROWS, answers),
        ("mds_sessions.session_count", NUMBER, sessions),
    ]
}

impl Reporter for ToManager {
    fn open(&self) -> MgrOpen {
        // Another manager asks anew.
        self.queries.borrow_mut().clear();
        MgrOpen { daemon_name: self.name.clone(), ..MgrOpen::default() }
    }

    fn report(&self) -> MgrReport {
        let daemon_name = self.name.clone();
        let Some(server) = self.server.upgrade() else {
            return MgrReport { daemon_name, ..MgrReport::default() };
        };
        let counters = counters(&*server);
        let declare = |(path, kind, _): &(&str, u8, u64)| PerfCounterType {
            path: (*path).to_owned(),
            kind: *kind,
            priority: USEFUL,
            ..PerfCounterType::default()
        };
        let queries = self.queries.borrow();
        MgrReport {
            daemon_name,
            // With each report: a manager forgets those of a server that its map does not have yet.
            declare_types: counters.iter().map(declare).collect(),
            packed: packed(&counters),
            // A rank that is not active yet has no clients to tell of.
            clients: (!queries.is_empty()).then(|| server.counted(&queries)).flatten(),
            ..MgrReport::default()
        }
    }

    fn configured(&self, wanted: &MgrConfigure) -> bool {
        let Some(queries) = &wanted.client_queries else { return false };
        // A command waits for the first answer.
        self.queries.replace(queries.clone()) != *queries && !queries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_question_is_answered_at_once() {
        struct Gone;
        impl Told for Gone {
            fn memory(&self) -> mds::Memory {
                mds::Memory::default()
            }
            fn clients(&self) -> (u64, u64) {
                (0, 0)
            }
            fn counted(&self, _: &BTreeSet<ClientQuery>) -> Option<ClientReport> {
                None
            }
        }
        let to = ToManager::new(Weak::<Gone>::new(), "a");
        let wanted = |queries| MgrConfigure { client_queries: queries, ..MgrConfigure::default() };
        assert!(!to.configured(&wanted(None)));
        assert!(to.configured(&wanted(Some(ClientQuery::all()))));
        assert!(!to.configured(&wanted(Some(ClientQuery::all()))), "it is answered already");
        assert!(!to.configured(&wanted(None)), "other settings change nothing of it");
        assert_eq!(to.queries.borrow().len(), 2);
        assert!(!to.configured(&wanted(Some(BTreeSet::new()))), "there is nothing to tell");
        to.configured(&wanted(Some(ClientQuery::all())));
        assert_eq!(to.open().daemon_name, "a");
        assert!(to.queries.borrow().is_empty(), "another manager has not asked");
    }
}
