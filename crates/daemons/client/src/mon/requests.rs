//! What the monitors are asked, until they have answered.

use super::pending::{CommandOutput, PendingCommand, PendingRequest, PendingVersion};
use super::{Inner, MonClient};
use crate::error::{ClientError, Result};
use bytes::Bytes;
use messages::{MonCommand, MonGetVersion, Paxos, Payload};
use msgr::{Connection, Message};
use tokio::sync::oneshot;

/// Runs a closure when dropped: a request is forgotten with its future.
struct Forget<F: FnMut()>(F);

impl<F: FnMut()> Drop for Forget<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl MonClient {
    /// Sends a message, now or as soon as there is a session. It is sent once: what must survive
    /// the loss of a session is repeated by the caller in `MonEvents::on_session`.
    pub fn send(&self, message: Message) {
        let session = self.session();
        match session {
            Some(session) => session.send(message),
            None => self.0.state.borrow_mut().outbox.push_back(message),
        }
    }

    /// Sends a message of the given type, encoded for the session's features; like [`Self::send`].
    pub fn send_payload(&self, payload: &impl Payload) {
        let features = self.session().map_or(types::features::SUPPORTED, |s| s.features());
        self.send(payload.encode(features));
    }

    /// Runs a command (a JSON object with `prefix`), with input. Waits as long as it takes; the
    /// future can be dropped.
    pub async fn command(&self, json: &str, input: Bytes) -> Result<CommandOutput> {
        let (reply, answer) = oneshot::channel();
        let tid = self.0.next_tid();
        {
            let mut st = self.0.state.borrow_mut();
            if st.down {
                return Err(ClientError::Shutdown);
            }
            st.commands.insert(tid, PendingCommand { cmd: vec![json.to_owned()], input, reply });
        }
        if let Some(session) = self.session() {
            self.0.send_commands(&session, Some(tid));
        }
        let _forget = Forget(|| {
            self.0.state.borrow_mut().commands.remove(&tid);
        });
        answer.await.unwrap_or(Err(ClientError::Shutdown))
    }

    /// The newest and the oldest version of a map.
    pub async fn get_version(&self, what: &str) -> Result<(u64, u64)> {
        let (reply, answer) = oneshot::channel();
        let handle = self.0.next_tid();
        let session = {
            let mut st = self.0.state.borrow_mut();
            if st.down {
                return Err(ClientError::Shutdown);
            }
            st.versions.insert(handle, PendingVersion { what: what.to_owned(), reply });
            st.session.clone()
        };
        if let Some(session) = session {
            session
                .send(MonGetVersion { handle, what: what.to_owned() }.encode(session.features()));
        }
        let _forget = Forget(|| {
            self.0.state.borrow_mut().versions.remove(&handle);
        });
        answer.await.unwrap_or(Err(ClientError::Shutdown))
    }

    /// Sends a message to which the monitors answer with one of type `R` and the same tid:
    /// statistics, pool operations. It is sent again in the next session if this one is lost before
    /// the answer.
    pub async fn request<R: Payload>(&self, payload: &impl Payload) -> Result<R> {
        let (reply, answer) = oneshot::channel();
        let tid = self.0.next_tid();
        let mut message = payload.encode(types::features::SUPPORTED);
        message.tid = tid;
        let session = {
            let mut st = self.0.state.borrow_mut();
            if st.down {
                return Err(ClientError::Shutdown);
            }
            st.requests
                .insert(tid, PendingRequest { message: message.clone(), answer: R::TYPE, reply });
            st.session.clone()
        };
        if let Some(session) = session {
            session.send(message);
        }
        let _forget = Forget(|| {
            self.0.state.borrow_mut().requests.remove(&tid);
        });
        let answer = answer.await.unwrap_or(Err(ClientError::Shutdown))?;
        R::decode(&answer).map_err(ClientError::Peer)
    }
}

impl Inner {
    /// Sends the waiting commands, or one of them. Monitors refuse those that do not name their
    /// cluster: before the first monitor map they wait.
    pub(super) fn send_commands(&self, conn: &Connection, only: Option<u64>) {
        let st = self.state.borrow();
        let Some(fsid) = st.fsid else { return };
        for (tid, c) in st.commands.iter().filter(|(tid, _)| only.is_none_or(|o| o == **tid)) {
            let command = MonCommand {
                paxos: Paxos::default(),
                fsid,
                cmd: c.cmd.clone(),
                input: c.input.clone(),
            };
            let mut message = command.encode(conn.features());
            message.tid = *tid;
            conn.send(message);
        }
    }
}
