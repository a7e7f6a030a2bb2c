//! Clients of a rank, and their requests that have no answer yet.

use super::counted::Counted;
use crate::convert::Shape;
use crate::rights::Rights;
use cephfs::SessionInfo;
use messages::FsOp;
use msgr::{Connection, ReceiveGuard};
use std::rc::Rc;

/// A client with a session, or that asks for one.
pub struct Client {
    pub conn: Option<Rc<Connection>>,
    /// What is kept of it at rest.
    pub info: SessionInfo,
    /// Whether its row is at rest.
    pub at_rest: bool,
    pub rights: Rights,
    /// Whether it was told that the session is open.
    pub open: bool,
    pub since: tokio::time::Instant,
    /// The client that wants it to end.
    pub reclaimed_by: Option<u64>,
    /// What it said that it counted.
    pub counted: Counted,
}

/// A request that has no answer yet.
pub struct Asked {
    pub op: FsOp,
    pub shape: Shape,
    pub what: String,
    /// Its path, as the client sent it.
    pub path: mds::FilePath,
    /// How often it was sent on to another rank.
    pub forwards: u32,
    pub since: tokio::time::Instant,
    /// Holds the connection's throttle.
    pub _guard: ReceiveGuard,
}
