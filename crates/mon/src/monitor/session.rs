use super::{Inner, now};
use crate::commands::{Caller, SessionInfo};
use auth::AuthName;
use auth::caps::{MonCap, MonOp, Perm};
use msgr::Connection;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use types::{EntityAddr, EntityType, OsdId, Utime};

/// A subscription: the next version wanted, and whether one is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subscription {
    pub next: u64,
    pub onetime: bool,
}

/// What the monitor knows of a peer (Ceph: `MonSession`).
pub(crate) struct Session {
    pub conn: Rc<Connection>,
    pub name: AuthName,
    pub since: Utime,
    caps: MonCap,
    pub subs: RefCell<BTreeMap<String, Subscription>>,
    /// Host of the peer, as it says.
    pub hostname: RefCell<String>,
    /// The OSD map epoch that the peer is known to have.
    pub osd_epoch: Cell<u32>,
    /// The configuration that the peer was sent last.
    pub sent_config: RefCell<Option<BTreeMap<String, String>>>,
}

impl Session {
    /// The peer's address: what it says, and where its socket is if it says nothing.
    pub fn addr(&self) -> EntityAddr {
        let said = self.conn.peer_addrs().msgr2();
        match self.conn.peer_socket_addr() {
            Some(socket) if said.is_blank_ip() => EntityAddr::msgr2(socket, said.nonce),
            _ => said,
        }
    }

    pub fn info(&self) -> SessionInfo {
        SessionInfo {
            name: self.name.clone(),
            addr: self.addr(),
            features: self.conn.features().0,
            global_id: self.conn.global_id(),
            since: self.since,
        }
    }

    pub fn caller(&self) -> Caller {
        Caller {
            name: self.name.clone(),
            addr: self.addr(),
            features: self.conn.features().0,
            global_id: self.conn.global_id(),
        }
    }

    /// The OSD that this session is with.
    pub fn osd(&self) -> Option<OsdId> {
        (self.name.kind == EntityType::OSD).then(|| self.name.id.parse().ok().map(OsdId)).flatten()
    }

    /// Whether the peer may do something outside commands.
    pub fn may(&self, service: &str, perms: &str) -> bool {
        self.allows(service, "", &BTreeMap::new(), perms)
    }

    /// Whether the peer may give a command.
    pub fn allows(&self, service: &str, command: &str, args: &BTreeMap<String, String>, perms: &str) -> bool {
        let perm = Perm::of(perms.contains('r'), perms.contains('w'), perms.contains('x'));
        let addr = self.conn.peer_socket_addr().map(|a| a.ip());
        self.caps.is_capable(&self.name, &MonOp { service, command, args, perm, addr })
    }

    /// Whether the peer may do everything.
    pub fn may_all(&self) -> bool {
        self.caps.is_allow_all()
    }
}

impl Inner {
    /// Starts the session of an authenticated peer. False if it may not have one.
    pub(super) fn open_session(&self, conn: &Rc<Connection>) -> bool {
        let Some(name) = conn.auth_name() else { return false };
        let caps = conn.auth_caps();
        let caps = if caps.allow_all {
            MonCap::allow_all()
        } else {
            match caps.text.parse::<MonCap>() {
                Ok(caps) => caps,
                Err(e) => {
                    tracing::warn!(%name, "caps cannot be read: {e}");
                    return false;
                }
            }
        };
        let session = Rc::new(Session {
            conn: conn.clone(),
            name,
            since: now(),
            caps,
            subs: RefCell::default(),
            hostname: RefCell::default(),
            osd_epoch: Cell::new(0),
            sent_config: RefCell::default(),
        });
        self.sessions.borrow_mut().insert(conn.id(), session);
        true
    }

    /// The session of a connection.
    pub(super) fn session(&self, conn: &Rc<Connection>) -> Option<Rc<Session>> {
        self.sessions.borrow().get(&conn.id()).cloned()
    }
}
