//! A daemon that the manager shows as one of a service (Ceph: `MgrClient`,
//! `rados_service_register`).

use super::peer::{Peer, encode_features, peer_of};
use super::registration::{Registered, ServiceDaemon};
use super::{Inner, Objecter};
use messages::{MgrClose, MgrOpen, MgrReport, Payload};
use msgr::Connection;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// How often the manager hears of a daemon (Ceph: `mgr_stats_period`).
const REPORTS_EVERY: Duration = Duration::from_secs(5);
/// How long a daemon waits for the answer to its leave.
const LEAVE: Duration = Duration::from_secs(1);

impl Objecter {
    /// Registers with the manager as a daemon of a service, and with each manager that takes over.
    /// The status is reported until [`Self::leave_service`], or the end.
    pub fn register_service(&self, daemon: ServiceDaemon) {
        *self.0.service.borrow_mut() = Some(Registered { daemon, known: false });
        self.0.tell_service();
        tokio::task::spawn_local(report(Rc::downgrade(&self.0)));
    }

    /// Ends the registration, so that nothing waits for the daemon's reports.
    pub async fn leave_service(&self) {
        let Some(registered) = self.0.service.borrow_mut().take() else { return };
        let conn = self.0.session(Peer::Mgr).filter(|c| registered.known && c.is_connected());
        let Some(conn) = conn else { return };
        let ServiceDaemon { service, daemon, .. } = registered.daemon;
        let (answered, changed) = (&self.0.left, &self.0.changed);
        answered.set(false);
        let close = MgrClose { daemon_name: daemon, service_name: service };
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
        let mut registered = self.service.borrow_mut();
        let Some(r) = registered.as_mut() else { return };
        r.known = false;
        let open = MgrOpen {
            daemon_name: r.daemon.daemon.clone(),
            service_name: r.daemon.service.clone(),
            service: Some((r.daemon.metadata.clone(), (r.daemon.status)())),
            ..MgrOpen::default()
        };
        conn.send(open.encode(encode_features(conn)));
    }

    /// The manager has the registration.
    pub(super) fn registered(&self) {
        if let Some(r) = self.service.borrow_mut().as_mut() {
            r.known = true;
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
        if self.service.borrow().is_none() || self.down.get() {
            return;
        }
        let Some(conn) = self.session(Peer::Mgr).filter(|c| c.is_connected()) else { return };
        let report = self.service.borrow().as_ref().filter(|r| r.known).map(|r| MgrReport {
            daemon_name: r.daemon.daemon.clone(),
            service_name: r.daemon.service.clone(),
            daemon_status: Some((r.daemon.status)()),
            ..MgrReport::default()
        });
        match report {
            Some(report) => conn.send(report.encode(encode_features(&conn))),
            None => self.register_at(&conn),
        }
    }
}

async fn report(weak: Weak<Inner>) {
    loop {
        tokio::time::sleep(REPORTS_EVERY).await;
        let Some(inner) = weak.upgrade() else { return };
        if inner.down.get() || inner.service.borrow().is_none() {
            return;
        }
        inner.tell_service();
    }
}
