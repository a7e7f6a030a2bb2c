//! Renewal of tickets and rotating keys, inside sessions.

use super::Inner;
use super::clock::now;
use super::session::Session;
use auth::Context;
use messages::AuthReply;

/// `CEPH_AUTH_CEPHX`.
const CEPHX: u32 = 2;

impl Inner {
    pub(super) fn auth_message(&self, session: &Session, m: messages::Auth, tid: u64) {
        let mut rng = rand::rng();
        let mut cx = Context { now: now(), rng: &mut rng };
        let auth = self.auth.borrow();
        let super::session::Link::Direct(conn) = &session.conn else { return };
        let outcome = conn.with_server_auth(|conn| auth.handle_mauth(&mut cx, conn, m.payload));
        let (result, payload, message) = match outcome {
            Some(Ok(reply)) => (0, reply.payload, String::new()),
            Some(Err(e)) => {
                tracing::info!(peer = %session.name, "ticket request refused: {e}");
                (-e.errno(), Default::default(), String::new())
            }
            None => (-types::Errno::EINVAL.0, Default::default(), String::new()),
        };
        let reply = AuthReply {
            protocol: CEPHX,
            result,
            global_id: session.conn.global_id(),
            payload,
            message,
        };
        self.send(&session.conn, &reply, tid);
    }
}
