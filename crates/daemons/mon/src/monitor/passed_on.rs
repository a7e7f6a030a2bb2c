//! What other monitors send to this one.

use super::Inner;
use super::peers::{ANSWER, ASK, RAFT, addressed_to};
use bytes::Bytes;
use messages::{MonForward, Payload, RaftMessage};
use msgr::{Connection, Message};
use std::rc::Rc;

impl Inner {
    /// What another monitor sent.
    pub(super) fn from_monitor(self: &Rc<Self>, conn: &Rc<Connection>, message: Message) {
        match message.msg_type {
            RaftMessage::TYPE => {
                let Ok(m) = RaftMessage::decode(&message) else { return };
                let (inner, conn) = (self.clone(), conn.clone());
                tokio::task::spawn_local(async move {
                    let payload = match m.kind {
                        RAFT if inner.links.is_cut() => return,
                        RAFT => match addressed_to(inner.replica.id(), m.payload) {
                            Some(bytes) => match crate::replica::decode_request(&bytes) {
                                Some(request) => crate::replica::encode_reply(
                                    &inner.replica.handle(request).await,
                                ),
                                None => return,
                            },
                            // Nothing says that there is no such member here.
                            None => Bytes::new(),
                        },
                        ASK => match serde_json::from_slice(&m.payload) {
                            Ok(ask) => serde_json::to_vec(&inner.asked(ask).await)
                                .unwrap_or_default()
                                .into(),
                            Err(_) => return,
                        },
                        _ => return,
                    };
                    let answer = RaftMessage {
                        kind: m.kind | ANSWER,
                        seq: m.seq,
                        payload,
                        ..RaftMessage::default()
                    };
                    conn.send(answer.encode(conn.features()));
                });
            }
            MonForward::TYPE => match MonForward::decode(&message) {
                Ok(m) => self.passed_on(conn, m),
                Err(e) => tracing::warn!("a message that a monitor passed on cannot be read: {e}"),
            },
            _ => {}
        }
    }
}
