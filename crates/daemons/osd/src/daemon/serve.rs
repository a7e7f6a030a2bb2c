//! What arrives from clients and other OSDs.

use super::Daemon;
use crate::client_op::{ReplySink, Request};
use crate::core::requests::MAPS_SHARED;
use crate::net::Net;
use crate::session::{ConnectionSink, Session};
use crate::shard::ShardMsg;
use crate::superblock;
use bytes::Bytes;
use daemon_frame::send;
use messages::{
    Command, CommandReply, MgrConfigure, OsdBackoff, OsdForceRecovery, OsdMapMsg, OsdOp, OsdScrub,
    Payload, PeerMessage, QosShares,
};
use msgr::{Connection, Message, ReceiveGuard};
use std::collections::BTreeMap;
use std::rc::Rc;
use types::{EntityAddr, EntityType, Epoch};

impl Daemon {
    pub(super) fn received(
        self: &Rc<Self>,
        conn: &Rc<Connection>,
        message: Message,
        guard: ReceiveGuard,
    ) {
        match message.msg_type {
            OsdOp::TYPE => self.client_op(conn, message, guard),
            PeerMessage::TYPE if conn.peer_type() == EntityType::OSD => {
                if let Some(e) = Net::decode(&message) {
                    self.shard.send(ShardMsg::Peer(Box::new(e)));
                } else {
                    tracing::warn!(peer = %conn.peer_name(), "a message from another OSD cannot be read");
                }
            }
            QosShares::TYPE => self.take_shares(conn, &message),
            MgrConfigure::TYPE => self.configure_reports(conn, &message),
            OsdScrub::TYPE if conn.peer_type() == EntityType::MGR => self.scrub_asked(&message),
            OsdForceRecovery::TYPE if conn.peer_type() == EntityType::MGR => {
                self.force_recovery(&message)
            }
            OsdBackoff::TYPE => self.backoff_answered(conn, &message),
            Command::TYPE => self.command(conn, &message),
            _ => {}
        }
    }

    /// The manager passes on what an operator wants.
    fn scrub_asked(&self, message: &Message) {
        match OsdScrub::decode(message) {
            Ok(m) if m.fsid == self.superblock.borrow().cluster => {
                let pgs = m.pgs.iter().map(|p| p.pgid).collect();
                self.shard.send(ShardMsg::Scrub { pgs, deep: m.deep, repair: m.repair });
            }
            Ok(_) => tracing::warn!("a scrub of another cluster is asked for"),
            Err(e) => tracing::warn!("what the manager wants scrubbed cannot be read: {e}"),
        }
    }

    fn force_recovery(&self, message: &Message) {
        match OsdForceRecovery::decode(message) {
            Ok(m) if m.fsid == self.superblock.borrow().cluster => {
                let on = m.options & OsdForceRecovery::CANCEL == 0;
                for (bit, backfill) in
                    [(OsdForceRecovery::BACKFILL, true), (OsdForceRecovery::RECOVERY, false)]
                {
                    if m.options & bit != 0 {
                        let pgs = m.pgs.iter().map(|p| p.pgid).collect();
                        self.shard.send(ShardMsg::ForceRecovery { pgs, backfill, on });
                    }
                }
            }
            Ok(_) => tracing::warn!("recovery of another cluster is asked for"),
            Err(e) => tracing::warn!("what the manager wants recovered first cannot be read: {e}"),
        }
    }

    pub(super) fn client_op(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        let Some(session) = conn.user::<Session>() else { return };
        let m = match OsdOp::decode(&message) {
            Ok(mut m) => {
                objops::small::own_small_data(&mut m.ops);
                m
            }
            Err(e) => {
                tracing::warn!(peer = %conn.peer_name(), "a request cannot be read: {e}");
                conn.mark_down();
                self.shard.send(ShardMsg::SessionGone(conn.id()));
                return;
            }
        };
        let sink: Rc<dyn ReplySink> = Rc::new(ConnectionSink(conn.clone(), session.clone()));
        let addr = client_addr(conn);
        let request = Request { m, source: conn.peer_name(), addr, tid: message.tid };
        self.shard.send(ShardMsg::Request { request, sink, guard: Some(guard) });
    }

    /// A client has seen that it is to hold back. Requests that it sent before came before this.
    fn backoff_answered(&self, conn: &Rc<Connection>, message: &Message) {
        match OsdBackoff::decode(message) {
            Ok(m) => self.shard.send(ShardMsg::Backoff { session: conn.id(), m }),
            Err(e) => {
                tracing::warn!(peer = %conn.peer_name(), "an answer to a backoff cannot be read: {e}");
            }
        }
    }

    /// Sends a client the maps behind the one that it has. If these are many, it gets the newest
    /// one if it `must` hear of it, and else nothing.
    pub(super) fn send_maps(&self, sink: &Rc<dyn ReplySink>, has: Epoch, must: bool) {
        let Some(shared) = sink.shared_map() else { return };
        let epoch = self.epoch();
        let first = has.max(shared.get()).next();
        if first > epoch {
            return;
        }
        let few = epoch.0 - first.0 < MAPS_SHARED;
        if !few && !must {
            return;
        }
        shared.set(epoch);
        let first = if few { first } else { epoch };
        let (store, sink, fsid) =
            (self.store.clone(), sink.clone(), self.superblock.borrow().cluster);
        tokio::task::spawn_local(async move {
            let mut maps = BTreeMap::new();
            for e in (first.0..=epoch.0).map(Epoch) {
                match superblock::load_map_bytes(&store, e).await {
                    Ok(Some(bytes)) => drop(maps.insert(e, bytes)),
                    // Not kept any more: later maps are enough for a client that must go elsewhere.
                    Ok(None) if must => maps.clear(),
                    Ok(None) => return,
                    Err(error) => return tracing::warn!("map {} cannot be read: {error}", e.0),
                }
            }
            let Some(oldest) = maps.keys().next().copied() else { return };
            let m = OsdMapMsg { fsid, maps, oldest, newest: epoch, ..OsdMapMsg::default() };
            sink.maps(m);
        });
    }

    pub(super) fn command(&self, conn: &Rc<Connection>, message: &Message) {
        let Ok(c) = Command::decode(message) else { return };
        let admin = conn.user::<Session>().is_some_and(|s| s.is_admin());
        let this = self.admin.borrow().clone();
        let (conn, tid) = (conn.clone(), message.tid);
        tokio::task::spawn_local(async move {
            let (result, status, output) = match this {
                Some(a) if admin => a.run(&c.cmd.concat()).await,
                _ => (types::Errno::EACCES.as_result(), "access denied".into(), Bytes::new()),
            };
            send(&conn, &CommandReply { result, status, output }, tid);
        });
    }
}

/// The address that a blocklist would name.
fn client_addr(conn: &Connection) -> EntityAddr {
    let addrs = conn.peer_addrs();
    let v2 = addrs.msgr2();
    if v2 == EntityAddr::default() { addrs.legacy_or_front() } else { v2 }
}
