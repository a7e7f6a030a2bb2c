//! Requests without a client and without operations, for simulations and tests.

use crate::request::{Held, Request, Tags};
use bytes::Bytes;
use qos::{Access, Demand};
use std::cell::Cell;
use std::rc::Rc;
use types::{ObjectId, PoolId, SnapId};

/// A client's session.
#[derive(Debug)]
pub struct Session {
    /// Tells sessions apart.
    pub number: u64,
    /// The name that the client has a key for.
    pub name: Rc<str>,
    /// Whether the client can still get answers.
    pub open: Cell<bool>,
}

impl Session {
    /// An open session.
    pub fn new(number: u64, name: &str) -> Rc<Self> {
        Rc::new(Session { number, name: name.into(), open: Cell::new(true) })
    }
}

/// A request that reads or writes some bytes of an object.
#[derive(Debug)]
pub struct PlainRequest {
    /// The pool.
    pub pool: PoolId,
    /// The object, at its snapshot.
    pub oid: ObjectId,
    /// Read or write, how many bytes, and whether reads and writes are ordered.
    pub demand: Demand,
    /// Whether bytes tell what it costs.
    pub sure: bool,
    /// The sender's number for it.
    pub tid: u64,
    /// The sender's session.
    pub session: Rc<Session>,
    tags: Tags,
}

impl PlainRequest {
    /// Reads or writes so many bytes of an object as it is.
    pub fn new(
        pool: PoolId,
        namespace: impl Into<Bytes>,
        object: impl Into<Bytes>,
        (access, bytes): (Access, u64),
        session: Rc<Session>,
        tid: u64,
    ) -> Self {
        let (namespace, name) = (namespace.into(), object.into());
        let oid = ObjectId { namespace, name, snap: SnapId::NOSNAP, ..ObjectId::default() };
        PlainRequest {
            pool,
            oid,
            demand: Demand::new(access, bytes),
            sure: true,
            tid,
            session,
            tags: Tags::default(),
        }
    }
}

impl Request for PlainRequest {
    fn pool(&self) -> PoolId {
        self.pool
    }

    fn namespace(&self) -> &Bytes {
        &self.oid.namespace
    }

    fn object(&self) -> &[u8] {
        &self.oid.name
    }

    fn is_head(&self) -> bool {
        self.oid.is_head()
    }

    fn session(&self) -> u64 {
        self.session.number
    }

    fn entity(&self) -> &str {
        &self.session.name
    }

    fn is_open(&self) -> bool {
        self.session.open.get()
    }

    fn access(&self) -> Access {
        self.demand.access
    }

    fn demand(&self) -> Demand {
        self.demand
    }

    fn cost(&self) -> u64 {
        self.demand.bytes
    }

    fn is_sure(&self) -> bool {
        self.sure
    }

    fn held(&self, _: Held) {}

    fn let_go(&self) {}

    fn tags(&self) -> &Tags {
        &self.tags
    }
}
