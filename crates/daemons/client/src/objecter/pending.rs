//! What waits for an answer.

use super::peer::Peer;
use super::request::{OpOutcome, Request};
use crate::error::{ClientError, Result};
use crate::mon::CommandOutput;
use crate::shared_map::{Placed, Route};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;
use types::OsdId;

/// A request that waits for its answer.
pub(super) struct Pending {
    pub(super) request: Request,
    /// Where it goes; `None` until there is a map.
    pub(super) route: Option<Route>,
    /// The OSD that has it now.
    pub(super) sent_to: Option<OsdId>,
    pub(super) attempts: i32,
    /// It is not sent again when the OSD that has it may have forgotten it.
    pub(super) once: bool,
    pub(super) reply: oneshot::Sender<Answer>,
}

/// How a request ended.
pub(super) enum Answer {
    Done(Result<Reply>),
    /// The map does not have its pool, and never had since the request came.
    NoPool(Request),
    /// It was sent once, and the OSD may have forgotten it.
    Lost,
}

/// What an OSD said, and where it said it.
pub(super) struct Reply {
    pub outcome: OpOutcome,
    /// The connection.
    pub conn: u64,
    pub placed: Arc<Placed>,
}

impl Pending {
    pub(super) fn goes_to(&self, osd: OsdId) -> bool {
        self.route.as_ref().is_some_and(|r| r.placed.at.primary == Some(osd))
    }
}

pub(super) struct PendingCommand {
    pub(super) peer: Peer,
    pub(super) sent: bool,
    pub(super) cmd: Vec<String>,
    pub(super) input: Bytes,
    pub(super) reply: oneshot::Sender<Result<CommandOutput>>,
}

impl PendingCommand {
    pub(super) fn fail(self, error: ClientError) {
        let _ = self.reply.send(Err(error));
    }
}

/// Priority of client requests (`osd_client_op_priority`).
pub(super) const OP_PRIORITY: u16 = 63;

/// Keeps a request in its table until its future is dropped.
pub(super) struct Forget<'a, T>(pub(super) &'a RefCell<BTreeMap<u64, T>>, pub(super) u64);

impl<T> Drop for Forget<'_, T> {
    fn drop(&mut self) {
        self.0.borrow_mut().remove(&self.1);
    }
}
