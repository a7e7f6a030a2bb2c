//! The client or daemon at the other end of a connection, and what it may do.

use crate::commands;
use auth::caps::{MgrCap, MgrOp, Perm};
use msgr::Connection;
use std::net::IpAddr;
use types::EntityType;

/// A client's global id, as it names itself.
pub(super) fn gid_of(conn: &Connection) -> u64 {
    u64::try_from(conn.peer_name().num).unwrap_or_default()
}

/// What the giver of a command may do, and where it is.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) caps: MgrCap,
    pub(super) addr: Option<IpAddr>,
}

impl Caller {
    pub(super) fn of(conn: &Connection) -> Self {
        Caller { caps: caps_of(conn), addr: conn.peer_socket_addr().map(|a| a.ip()) }
    }

    /// Whether this command may be given.
    pub(super) fn may(&self, entry: &commands::Entry, args: &command::Args) -> bool {
        let needs = [('r', Perm::R), ('w', Perm::W), ('x', Perm::X)];
        let perm = needs
            .into_iter()
            .filter(|(c, _)| entry.needs(*c))
            .fold(Perm::NONE, |all, (_, p)| all | p);
        self.caps.is_capable(&MgrOp {
            service: entry.module,
            module: "",
            command: entry.prefix(),
            args: &args.text_map(),
            perm,
            addr: self.addr,
        })
    }
}

/// Whether the peer is the metadata server of this name.
pub(super) fn is_mds(conn: &Connection, name: &str) -> bool {
    conn.auth_name().is_some_and(|n| n.kind == EntityType::MDS && n.id == name)
}

pub(super) fn caps_of(conn: &Connection) -> MgrCap {
    let caps = conn.auth_caps();
    if caps.allow_all {
        return MgrCap::allow_all();
    }
    caps.text.parse().unwrap_or_default()
}
