//! Sessions of peers, and the ways to them.

use super::clock::now;
use crate::command::{Args, Refusal};
use crate::commands::{Caller, SessionInfo};
use crate::state::ClusterState;
use auth::caps::{MonCap, MonOp, Perm};
use auth::{AuthCaps, AuthName};
use denc_derive::Denc;
use messages::Payload;
use msgr::Connection;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use types::errno::Errno;
use types::{EntityAddr, EntityAddrVec, EntityType, FsMap, OsdId, Utime};

/// A subscription: the next version wanted, and whether one is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subscription {
    pub next: u64,
    pub onetime: bool,
}

/// The way to a session's peer.
#[derive(Clone)]
pub(crate) enum Link {
    /// It is connected to this monitor.
    Direct(Rc<Connection>),
    /// It is connected to another monitor, which passed one of its messages on.
    Routed(Rc<Route>),
}

/// The way back for one message that a follower passed on. When it is dropped, the message is dealt
/// with, and the follower is told so.
pub(crate) struct Route {
    /// The connection with the follower.
    pub via: Rc<Connection>,
    /// The follower's number of the message.
    pub request: u64,
    /// The peer, as the follower knows it.
    pub peer: PassedPeer,
    /// Up to where this monitor has applied the log, whenever it is asked.
    pub applied: Box<dyn Fn() -> u64>,
    /// The message cannot be answered: the follower is to end the session.
    pub ends: Cell<bool>,
}

/// A session's peer, for the leader.
#[derive(Clone, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub(crate) struct PassedPeer {
    pub name: AuthName,
    pub addrs: EntityAddrVec,
    /// The address of its socket.
    pub socket: EntityAddr,
    pub features: u64,
    pub global_id: u64,
    pub allow_all: bool,
    /// Its capabilities.
    pub caps: String,
}

impl Route {
    fn answer(&self, message: Option<&msgr::Message>) {
        let mut data = Vec::new();
        let message = message.map(|m| {
            data.extend(m.data.iter().cloned());
            messages::Embedded::of(m, self.peer.features)
        });
        let ends = self.ends.get();
        let route = messages::MonRoute {
            session: self.request,
            message,
            applied: (self.applied)(),
            ends,
            ..Default::default()
        };
        let mut out = route.encode(self.via.features());
        out.data.extend(data);
        self.via.send(out);
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        self.answer(None);
    }
}

impl Link {
    pub fn features(&self) -> denc::Features {
        match self {
            Link::Direct(c) => c.features(),
            Link::Routed(r) => denc::Features(r.peer.features),
        }
    }

    pub fn send(&self, message: msgr::Message) {
        match self {
            Link::Direct(c) => c.send(message),
            Link::Routed(r) => r.answer(Some(&message)),
        }
    }

    pub fn peer_addrs(&self) -> EntityAddrVec {
        match self {
            Link::Direct(c) => c.peer_addrs(),
            Link::Routed(r) => r.peer.addrs.clone(),
        }
    }

    pub fn peer_socket_addr(&self) -> Option<std::net::SocketAddr> {
        match self {
            Link::Direct(c) => c.peer_socket_addr(),
            Link::Routed(r) => r.peer.socket.addr,
        }
    }

    pub fn global_id(&self) -> u64 {
        match self {
            Link::Direct(c) => c.global_id(),
            Link::Routed(r) => r.peer.global_id,
        }
    }

    /// Whether the way is closed.
    pub fn is_down(&self) -> bool {
        match self {
            Link::Direct(c) => c.is_down(),
            Link::Routed(r) => r.via.is_down(),
        }
    }

    /// Whether the peer's subscriptions are this monitor's.
    pub fn is_direct(&self) -> bool {
        matches!(self, Link::Direct(_))
    }

    /// What became of the peer's request is not known. It asks again: in a new session, or through
    /// its monitor, which passes on what was not answered once more, to the leader of that time.
    /// Either way the connection ends, because no later request of the peer may go before this one
    /// ([`crate::state::Known::Late`]).
    pub fn lose(&self) {
        match self {
            Link::Direct(c) => c.mark_down(),
            Link::Routed(r) => r.via.mark_down(),
        }
    }

    /// The session cannot go on.
    pub fn end(&self) {
        match self {
            Link::Direct(c) => c.mark_down(),
            Link::Routed(r) => r.ends.set(true),
        }
    }
}

/// What the monitor knows of a peer (Ceph: `MonSession`).
pub(crate) struct Session {
    pub conn: Link,
    /// Its capabilities as text, for the leader.
    pub caps_text: AuthCaps,
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
    /// A session; none if the capabilities cannot be read.
    pub fn new(conn: Link, name: AuthName, caps_text: AuthCaps) -> Option<Session> {
        let caps = if caps_text.allow_all {
            MonCap::allow_all()
        } else {
            match caps_text.text.parse::<MonCap>() {
                Ok(caps) => caps,
                Err(e) => {
                    tracing::warn!(%name, "caps cannot be read: {e}");
                    return None;
                }
            }
        };
        Some(Session {
            conn,
            name,
            since: now(),
            caps,
            caps_text,
            subs: RefCell::default(),
            hostname: RefCell::default(),
            osd_epoch: Cell::new(0),
            sent_config: RefCell::default(),
        })
    }

    /// The peer, for the leader.
    pub fn passed(&self) -> PassedPeer {
        PassedPeer {
            name: self.name.clone(),
            addrs: self.conn.peer_addrs(),
            socket: self
                .conn
                .peer_socket_addr()
                .map(|a| EntityAddr::msgr2(a, 0))
                .unwrap_or_default(),
            features: self.conn.features().0,
            global_id: self.conn.global_id(),
            allow_all: self.caps_text.allow_all,
            caps: self.caps_text.text.clone(),
        }
    }

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
    pub fn allows(
        &self,
        service: &str,
        command: &str,
        args: &BTreeMap<String, String>,
        perms: &str,
    ) -> bool {
        let perm = Perm::of(perms.contains('r'), perms.contains('w'), perms.contains('x'));
        let addr = self.conn.peer_socket_addr().map(|a| a.ip());
        self.caps.is_capable(&self.name, &MonOp { service, command, args, perm, addr })
    }

    /// The state as far as the peer may know of it: without file systems that its capabilities do
    /// not name, if they name some.
    pub fn seen(&self, mut state: ClusterState) -> ClusterState {
        let names = self.caps.allowed_fs_names();
        if !names.is_empty() {
            state.fs = Arc::new(state.fs.only(&names));
        }
        state
    }

    /// Refuses a command that changes a file system that the peer must not change (Ceph 16.2:
    /// `FileSystemCommandHandler::is_op_allowed`). What is hidden from the peer is not there for
    /// it.
    pub fn may_change_fs(&self, fs: &FsMap, args: &Args) -> Result<(), Refusal> {
        let names = self.caps.allowed_fs_names();
        let Some(name) = args.str("fs_name") else {
            // Ranks and daemons are named by `mds` commands, and file systems are made by others.
            return match names.is_empty() {
                true => Ok(()),
                false => {
                    let message = format!("Permission denied: caps for {} only", names.join(", "));
                    Err(Refusal::new(Errno::EPERM, message))
                }
            };
        };
        let hidden = !names.is_empty() && !names.contains(&name);
        if hidden && fs.by_name(name).is_some() {
            return Err(Refusal::new(Errno::ENOENT, format!("Filesystem not found: '{name}'")));
        }
        if !self.caps.fs_capable(&self.name, name, Perm::of(false, true, false)) {
            return Err(Refusal::new(Errno::EPERM, format!("Permission denied: '{name}'")));
        }
        Ok(())
    }

    /// Whether the peer may do everything.
    pub fn may_all(&self) -> bool {
        self.caps.is_allow_all()
    }
}
