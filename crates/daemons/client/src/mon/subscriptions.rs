//! What the monitors send unasked.

use super::{Inner, MonClient};
use messages::{MonSubscribe, Payload, SubscribeItem};
use msgr::Connection;
use std::collections::BTreeMap;

impl MonClient {
    /// Subscribes: `what` from version `start` on (0: whatever is newest, then changes). A
    /// subscription that is there already is only moved if it changes.
    pub fn subscribe(&self, what: &str, start: u64, onetime: bool) {
        let item = SubscribeItem { start, flags: if onetime { SubscribeItem::ONETIME } else { 0 } };
        let session = {
            let mut st = self.0.state.borrow_mut();
            if st.subs.insert(what.to_owned(), item) == Some(item) {
                return;
            }
            st.session.clone()
        };
        if let Some(session) = session {
            self.0.send_subs(&session, Some((what, item)));
        }
    }

    /// Notes that version `version` of `what` has arrived, so that after a change of the session
    /// the subscription goes on behind it. A one-time subscription ends.
    pub fn got(&self, what: &str, version: u64) {
        self.0.got(what, version);
    }

    /// Ends a subscription; the monitor learns it with the next session.
    pub fn unsubscribe(&self, what: &str) {
        self.0.state.borrow_mut().subs.remove(what);
    }
}

impl Inner {
    pub(super) fn send_subs(&self, conn: &Connection, only: Option<(&str, SubscribeItem)>) {
        let what = match only {
            Some((name, item)) => BTreeMap::from([(name.to_owned(), item)]),
            None => self.state.borrow().subs.clone(),
        };
        if !what.is_empty() {
            conn.send(
                MonSubscribe { what, hostname: self.config.hostname.clone() }
                    .encode(conn.features()),
            );
        }
    }

    pub(super) fn got(&self, what: &str, version: u64) {
        let mut st = self.state.borrow_mut();
        let Some(item) = st.subs.get_mut(what) else { return };
        if item.onetime() {
            if item.start <= version {
                st.subs.remove(what);
            }
        } else if item.start <= version {
            item.start = version + 1;
        }
    }
}
