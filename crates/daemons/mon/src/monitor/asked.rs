//! Commands that wait for an answer, of this monitor or of the manager.

use super::ops::Op;
use super::session::{Link, Session};
use crate::command::{Refusal, Reply, Shape};
use crate::commands::Answer;
use bytes::Bytes;
use messages::{CommandReply, MonCommandAck, Payload};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The receiver of the answer, the kind of message, and its shape.
pub(crate) enum Asked {
    Mon(messages::MonCommand, Op, Shape),
    Tell,
}

impl Asked {
    pub fn reply(self, answer: Answer, session: &Session, tid: u64) {
        let shape = match &self {
            Asked::Mon(_, _, shape) => shape.clone(),
            Asked::Tell => Shape::AsIs,
        };
        let (result, status, output) = match answer.map(|reply| shape.apply(reply)) {
            Ok(Reply { status, data }) => (0, status, data),
            Err(Refusal { errno, message, data }) => (-errno.0, message, data),
        };
        let f = session.conn.features();
        let mut m = match self {
            Asked::Mon(m, ..) => {
                MonCommandAck { paxos: m.paxos, result, status, cmd: m.cmd, output }.encode(f)
            }
            Asked::Tell => CommandReply { result, status, output }.encode(f),
        };
        m.tid = tid;
        session.conn.send(m);
    }
}

/// The session of the active manager, as its digests name it.
pub(crate) struct Way {
    pub gid: u64,
    pub session: u64,
    pub link: Link,
}

/// A command that the manager has not answered.
pub(crate) struct Open {
    pub asked: Asked,
    pub session: Rc<Session>,
    /// The client's number of it.
    pub tid: u64,
    pub cmd: Vec<String>,
    pub input: Bytes,
}

impl Open {
    pub fn bytes(&self) -> usize {
        self.cmd.iter().map(String::len).sum::<usize>() + self.input.len()
    }
}

/// The commands that the leader has handed to the manager.
#[derive(Default)]
pub(crate) struct MgrCommands {
    pub way: Option<Way>,
    /// By the number under which the manager knows them.
    pub open: BTreeMap<u64, Open>,
    pub last: u64,
    pub bytes: usize,
}

impl MgrCommands {
    pub fn remove(&mut self, tid: u64) -> Option<Open> {
        let open = self.open.remove(&tid)?;
        self.bytes -= open.bytes();
        Some(open)
    }

    /// Forgets the commands of clients that are gone.
    pub fn tidy(&mut self) {
        self.open.retain(|_, o| !o.session.conn.is_down());
        self.bytes = self.open.values().map(Open::bytes).sum();
    }
}
