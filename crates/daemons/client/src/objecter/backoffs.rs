//! Backoffs: ranges of objects that an OSD does not want requests for at present
//! (Ceph: `doc/dev/osd_internals/backoff.rst`, `MOSDBackoff`).

use super::Inner;
use super::blocked::{Backoff, is_blocked};
use super::peer::peer_of;
use super::pending::OP_PRIORITY;
use crate::objecter::peer::Peer;
use messages::{OsdBackoff, Payload};
use msgr::Connection;
use std::collections::BTreeMap;
use std::rc::Rc;

impl Inner {
    pub(super) fn backed_off(self: &Rc<Self>, conn: &Rc<Connection>, backoff: OsdBackoff) {
        let Some(Peer::Osd(osd)) = peer_of(conn) else { return };
        match backoff.op {
            OsdBackoff::BLOCK => {
                if self.with_session(conn, |s| s.backoffs.add(&backoff)).is_none() {
                    return;
                }
                // What the OSD got before it decided, it has dropped.
                let mut ack =
                    OsdBackoff { op: OsdBackoff::ACK_BLOCK, ..backoff }.encode(conn.features());
                ack.priority = OP_PRIORITY;
                conn.send(ack);
            }
            OsdBackoff::UNBLOCK => {
                if self.with_session(conn, |s| s.backoffs.remove(&backoff)).is_none() {
                    return;
                }
                let freed =
                    BTreeMap::from([(backoff.begin, Backoff { id: backoff.id, end: backoff.end })]);
                self.send_again(osd, backoff.pgid, |object| is_blocked(&freed, object));
            }
            other => tracing::debug!(op = other, "unknown backoff"),
        }
    }
}
