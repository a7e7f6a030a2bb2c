//! Lines for the cluster log.

use super::{Inner, MonClient};
use crate::clock::wall_clock;
use messages::{Log, Paxos, Payload};
use msgr::Connection;
use types::{LogEntry, LogName, LogPriority};

/// Lines for the cluster log that are kept for a monitor; older ones are lost.
const LOG_KEPT: usize = 1000;

impl MonClient {
    /// Writes a line to the cluster log. It is sent again after the loss of a session, until a
    /// monitor acknowledges it.
    pub fn log(&self, prio: LogPriority, channel: &str, msg: String) {
        let (entry, session) = {
            let mut st = self.0.state.borrow_mut();
            st.log_seq += 1;
            let entry = LogEntry {
                name: LogName { kind: self.0.config.name.kind, id: self.0.config.name.id.clone() },
                rank: self.0.me(),
                addrs: self.0.messenger.addrs(),
                stamp: wall_clock(),
                seq: st.log_seq,
                prio,
                msg,
                channel: channel.to_owned(),
            };
            if st.log.len() >= LOG_KEPT {
                st.log.pop_front();
            }
            st.log.push_back(entry.clone());
            (entry, st.session.clone())
        };
        if let Some(session) = session {
            self.0.send_log(&session, Some(entry));
        }
    }
}

impl Inner {
    /// Sends the lines that were not acknowledged, or one of them; see [`Self::send_commands`].
    pub(super) fn send_log(&self, conn: &Connection, only: Option<LogEntry>) {
        let st = self.state.borrow();
        let Some(fsid) = st.fsid else { return };
        let entries = only.map_or_else(|| st.log.iter().cloned().collect(), |entry| vec![entry]);
        if !entries.is_empty() {
            conn.send(Log { paxos: Paxos::default(), fsid, entries }.encode(conn.features()));
        }
    }
}
