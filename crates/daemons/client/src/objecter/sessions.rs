//! Connections with OSDs, the manager and metadata servers.

use super::Inner;
use super::blocked::Backoffs;
use super::peer::{Link, Peer, Session, peer_of};
use msgr::Connection;
use std::rc::Rc;
use std::time::Duration;
use types::EntityAddrVec;

/// Pauses between attempts to reach an OSD.
const RECONNECT_FIRST: Duration = Duration::from_millis(50);
const RECONNECT_LAST: Duration = Duration::from_secs(2);

impl Inner {
    pub(super) fn addrs_of(&self, peer: Peer) -> Option<EntityAddrVec> {
        match peer {
            Peer::Osd(osd) => self
                .map
                .with(|map| map.client_addrs(osd).filter(|_| map.is_up(osd)).cloned())
                .flatten(),
            Peer::Mgr => Some(self.mgr.borrow().addrs.clone()).filter(|a| !a.is_empty()),
            Peer::Mds(gid) => self.mds(gid, |info| info.addrs.clone()).filter(|a| !a.is_empty()),
        }
    }

    /// The session with a peer, opened if need be; `None` if the peer is not there.
    pub(super) fn session(&self, peer: Peer) -> Option<Rc<Connection>> {
        if let Some(session) = self.sessions.borrow().get(&peer) {
            // While a broken session waits to be opened again, nothing is sent.
            return (!session.conn.is_down()).then(|| session.conn.clone());
        }
        let addrs = self.addrs_of(peer)?;
        let conn = self.open(peer, addrs.clone());
        let session = Session {
            conn: conn.clone(),
            addrs,
            pause: RECONNECT_FIRST,
            backoffs: Backoffs::default(),
        };
        self.sessions.borrow_mut().insert(peer, session);
        Some(conn)
    }

    /// Looks at the session that a connection carries; `None` if it carries none any more.
    pub(super) fn with_session<R>(
        &self,
        conn: &Connection,
        f: impl FnOnce(&mut Session) -> R,
    ) -> Option<R> {
        let peer = peer_of(conn)?;
        let mut sessions = self.sessions.borrow_mut();
        sessions.get_mut(&peer).filter(|s| s.conn.id() == conn.id()).map(f)
    }

    fn open(&self, peer: Peer, addrs: EntityAddrVec) -> Rc<Connection> {
        let conn = self.mon.messenger().connect(peer.kind(), addrs);
        conn.set_user(Rc::new(Link(peer)));
        conn
    }

    pub(super) fn connected(&self, conn: &Connection) {
        self.with_session(conn, |session| session.pause = RECONNECT_FIRST);
        self.register_at(conn);
    }

    pub(super) fn close(&self, peer: Peer) {
        let session = self.sessions.borrow_mut().remove(&peer);
        if let Some(session) = session {
            session.conn.mark_down();
        }
        self.forget_sent(peer);
    }

    /// Closes sessions with OSDs and metadata servers that are gone, or elsewhere.
    pub(super) fn close_stale_sessions(&self) {
        let stale: Vec<Peer> = {
            let sessions = self.sessions.borrow();
            let stale = sessions.iter().filter(|(peer, session)| match peer {
                Peer::Mgr => false,
                peer => self.addrs_of(**peer).as_ref() != Some(&session.addrs),
            });
            stale.map(|(peer, _)| *peer).collect()
        };
        stale.into_iter().for_each(|peer| self.close(peer));
    }

    /// What was sent to the peer will not be answered any more.
    fn forget_sent(&self, peer: Peer) {
        if let Peer::Osd(osd) = peer {
            self.forget_sent_ops(osd);
        }
        self.forget_sent_commands(peer);
        self.changed.notify_waiters();
    }

    pub(super) fn break_sessions(self: &Rc<Self>) {
        let broken: Vec<Rc<Connection>> =
            self.sessions.borrow().values().map(|s| s.conn.clone()).collect();
        for conn in broken {
            conn.mark_down();
            self.reset(&conn);
        }
    }

    pub(super) fn reset(self: &Rc<Self>, conn: &Rc<Connection>) {
        let Some(peer) = peer_of(conn) else { return };
        let pause = self.with_session(conn, |session| {
            session.backoffs.clear();
            let pause = session.pause;
            session.pause = (pause * 2).min(RECONNECT_LAST);
            pause
        });
        let Some(pause) = pause else { return };
        self.forget_sent(peer);
        let weak = Rc::downgrade(self);
        let id = conn.id();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(pause).await;
            if let Some(inner) = weak.upgrade() {
                inner.reopen(peer, id).await;
            }
        });
    }

    /// Opens a broken session again, unless the map has changed that meanwhile.
    async fn reopen(self: &Rc<Self>, peer: Peer, broken: u64) {
        // A refused ticket shows as a broken connection; an expired one is renewed by the monitor's
        // client, so there is only something to wait for if there is none.
        let _ = self.mon.wait_ticket(peer.kind(), RECONNECT_LAST).await;
        {
            let mut sessions = self.sessions.borrow_mut();
            let Some(session) = sessions.get_mut(&peer).filter(|s| s.conn.id() == broken) else {
                return;
            };
            session.conn = self.open(peer, session.addrs.clone());
        }
        if let Peer::Osd(osd) = peer {
            self.dispatch_to(osd);
        }
        self.send_commands(peer);
        self.changed.notify_waiters();
    }
}
