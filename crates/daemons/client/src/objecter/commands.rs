//! Commands to OSDs, metadata servers and the manager (`ceph tell`).

use super::peer::{Peer, encode_features};
use super::pending::{Forget, PendingCommand};
use super::{Inner, Objecter};
use crate::error::{ClientError, Result};
use crate::mon::CommandOutput;
use bytes::Bytes;
use messages::{Command, MgrCommand, Payload};
use tokio::sync::oneshot;
use types::{Epoch, OsdId};

impl Objecter {
    /// Runs a command on an OSD (`ceph tell osd.N`).
    pub async fn osd_command(&self, osd: OsdId, json: &str, input: Bytes) -> Result<CommandOutput> {
        if !self.wait_epoch(Epoch(1)).await?.is_up(osd) {
            return Err(ClientError::NoDaemon);
        }
        self.0.command(Peer::Osd(osd), json, input).await
    }

    /// Runs a command on a metadata server (`ceph tell mds.NAME`), which has this global id.
    pub async fn mds_command(&self, gid: u64, json: &str, input: Bytes) -> Result<CommandOutput> {
        if self.fs_map().await?.daemon(gid).is_none() {
            return Err(ClientError::NoDaemon);
        }
        self.0.command(Peer::Mds(gid), json, input).await
    }

    /// Runs a command on the active manager.
    pub async fn mgr_command(&self, json: &str, input: Bytes) -> Result<CommandOutput> {
        self.0.command(Peer::Mgr, json, input).await
    }
}

impl Inner {
    async fn command(&self, peer: Peer, json: &str, input: Bytes) -> Result<CommandOutput> {
        if self.down.get() {
            return Err(ClientError::Shutdown);
        }
        let (reply, answer) = oneshot::channel();
        let tid = self.next_tid();
        let pending =
            PendingCommand { peer, sent: false, cmd: vec![json.to_owned()], input, reply };
        self.commands.borrow_mut().insert(tid, pending);
        let _forget = Forget(&self.commands, tid);
        self.send_commands(peer);
        answer.await.unwrap_or(Err(ClientError::Shutdown))
    }

    pub(super) fn send_commands(&self, peer: Peer) {
        if !self.commands.borrow().values().any(|c| c.peer == peer && !c.sent) {
            return;
        }
        let Some(conn) = self.session(peer) else { return };
        let fsid = self.mon.fsid().unwrap_or_default();
        let mut commands = self.commands.borrow_mut();
        for (tid, c) in commands.iter_mut().filter(|(_, c)| c.peer == peer && !c.sent) {
            let (cmd, input) = (c.cmd.clone(), c.input.clone());
            let mut message = match peer {
                Peer::Osd(_) | Peer::Mds(_) => {
                    Command { fsid, cmd, input }.encode(encode_features(&conn))
                }
                Peer::Mgr => MgrCommand { fsid, cmd, input }.encode(encode_features(&conn)),
            };
            message.tid = *tid;
            c.sent = true;
            conn.send(message);
        }
    }

    pub(super) fn forget_sent_commands(&self, peer: Peer) {
        let mut commands = self.commands.borrow_mut();
        commands.values_mut().filter(|c| c.peer == peer).for_each(|c| c.sent = false);
    }

    pub(super) fn finish_command(&self, tid: u64, code: i32, status: String, output: Bytes) {
        if let Some(pending) = self.commands.borrow_mut().remove(&tid) {
            let _ = pending.reply.send(Ok(CommandOutput { code, status, output }));
        }
    }

    /// Metadata servers that have a command without an answer.
    pub(super) fn asked_servers(&self) -> Vec<u64> {
        let commands = self.commands.borrow();
        let servers = commands.values().filter_map(|c| match c.peer {
            Peer::Mds(gid) => Some(gid),
            _ => None,
        });
        servers.collect()
    }

    /// Commands to OSDs that are down, and to metadata servers that are gone, get no answer.
    pub(super) fn fail_lost_commands(&self) {
        let lost: Vec<u64> = {
            let commands = self.commands.borrow();
            let gone = |c: &PendingCommand| match c.peer {
                Peer::Osd(osd) => self.map.with(|map| !map.is_up(osd)).unwrap_or(false),
                Peer::Mds(gid) => self.mds(gid, |_| ()).is_none(),
                Peer::Mgr => false,
            };
            commands.iter().filter(|(_, c)| gone(c)).map(|(tid, _)| *tid).collect()
        };
        for tid in lost {
            let pending = self.commands.borrow_mut().remove(&tid);
            if let Some(pending) = pending {
                pending.fail(ClientError::NoDaemon);
            }
        }
    }
}
