//! A daemon that reports to the manager, or that the manager shows as one of a service (Ceph:
//! `MgrClient`, `rados_service_register`).

use super::peer::{Peer, encode_features, peer_of};
use super::registration::{Registered, Reporter, ServiceDaemon};
use super::{Inner, Objecter};
use messages::{MgrClose, MgrConfigure, Payload};
use msgr::Connection;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// How long a daemon waits for the answer to its leave.
const LEAVE: Duration = Duration::from_secs(1);

impl Objecter {
    /// Registers with the manager as a daemon of a service, and with each manager that takes over.
    /// The status is reported until [`Self::leave_service`], or the end.
    pub fn register_service(&self, daemon: ServiceDaemon) {
        self.report_to_manager(Rc::new(daemon));
    }

    /// The same for a daemon that is of no service.
    pub fn report_to_manager(&self, daemon: Rc<dyn Reporter>) {
        *self.0.service.borrow_mut() = Some(Registered { daemon, known: false });
        self.0.tell_service();
        tokio::task::spawn_local(report(Rc::downgrade(&self.0)));
    }

    /// Ends the registration, so that nothing waits for the daemon's reports.
    pub async fn leave_service(&self) {
        let Some(registered) = self.0.service.borrow_mut().take() else { return };
        let conn = self.0.session(Peer::Mgr).filter(|c| registered.known && c.is_connected());
        let Some(conn) = conn else { return };
        let open = registered.daemon.open();
        let (answered, changed) = (&self.0.left, &self.0.changed);
        answered.set(false);
        let close = MgrClose { daemon_name: open.daemon_name, service_name: open.service_name };
        conn.send(close.encode(encode_features(&conn)));
        let answer = async {
            loop {
                let news = changed.notified();
                if answered.get() {
                    return;
                }
                news.await;
            }
        };
        let _ = tokio::time::timeout(LEAVE, answer).await;
    }
}

impl Inner {
    /// Registers at a manager's connection that was made.
    pub(super) fn register_at(&self, conn: &Connection) {
        if peer_of(conn) != Some(Peer::Mgr) {
            return;
        }
        let daemon = match self.service.borrow_mut().as_mut() {
            Some(r) => {
                r.known = false;
                r.daemon.clone()
            }
            None => return,
        };
        conn.send(daemon.open().encode(encode_features(conn)));
    }

    /// The manager has the registration, and says what it wants to be told.
    pub(super) fn registered(&self, wanted: &MgrConfigure) {
        let daemon = match self.service.borrow_mut().as_mut() {
            Some(r) => {
                r.known = true;
                r.daemon.clone()
            }
            None => return,
        };
        if wanted.stats_period > 0 {
            self.report_every.set(Duration::from_secs(wanted.stats_period.into()));
        }
        if daemon.configured(wanted) {
            self.tell_service();
        }
    }

    /// The manager has forgotten the registration, as it was asked to.
    pub(super) fn service_left(&self) {
        self.left.set(true);
        self.changed.notify_waiters();
    }

    /// Reports to the manager, or registers with it if it has not said that it knows the daemon. A
    /// session that is not there yet registers when it is.
    pub(super) fn tell_service(&self) {
        let registered = self.service.borrow().clone();
        let Some(registered) = registered.filter(|_| !self.down.get()) else { return };
        let Some(conn) = self.session(Peer::Mgr).filter(|c| c.is_connected()) else { return };
        if registered.known {
            conn.send(registered.daemon.report().encode(encode_features(&conn)));
        } else {
            self.register_at(&conn);
        }
    }
}

async fn report(weak: Weak<Inner>) {
    loop {
        let Some(pause) = weak.upgrade().map(|inner| inner.report_every.get()) else { return };
        tokio::time::sleep(pause).await;
        let Some(inner) = weak.upgrade() else { return };
        if inner.down.get() || inner.service.borrow().is_none() {
            return;
        }
        inner.tell_service();
    }
}
