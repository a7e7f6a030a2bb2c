//! The map of file systems, for those that ask: it says where metadata servers are.

use super::peer::Peer;
use super::{Inner, Objecter};
use crate::error::{ClientError, Result};
use denc::Decode;
use messages::{FsMapMsg, Payload};
use msgr::Message;
use std::rc::Rc;
use std::sync::Arc;
use types::{Epoch, FsMap};

impl Objecter {
    /// The newest map of file systems that the monitors have.
    pub async fn fs_map(&self) -> Result<Arc<FsMap>> {
        self.0.want_fs_map();
        let (newest, _) = self.0.mon.get_version("fsmap").await?;
        self.wait_fs_map(Epoch(u32::try_from(newest).unwrap_or(u32::MAX))).await
    }

    /// Waits for a map of file systems of at least this epoch.
    pub async fn wait_fs_map(&self, epoch: Epoch) -> Result<Arc<FsMap>> {
        self.0.want_fs_map();
        loop {
            let changed = self.0.changed.notified();
            if self.0.down.get() {
                return Err(ClientError::Shutdown);
            }
            let map = self.0.fs.borrow().map.clone();
            if let Some(map) = map.filter(|m| m.epoch >= epoch) {
                return Ok(map);
            }
            changed.await;
        }
    }
}

impl Inner {
    fn want_fs_map(&self) {
        if !std::mem::replace(&mut self.fs.borrow_mut().wanted, true) {
            // Of a daemon that follows the map itself, this asks for all of it once more.
            self.mon.unsubscribe("fsmap");
            self.mon.subscribe("fsmap", 0, false);
        }
    }

    pub(super) fn handle_fs_map(self: &Rc<Self>, message: &Message) {
        if !self.fs.borrow().wanted {
            return;
        }
        let map = match FsMapMsg::decode(message).map(|m| FsMap::from_bytes(&m.map.0)) {
            Ok(Ok(map)) => map,
            Ok(Err(error)) => return tracing::warn!(%error, "map of file systems"),
            Err(error) => return tracing::warn!(%error, "map of file systems"),
        };
        self.mon.got("fsmap", map.epoch.0.into());
        {
            let mut fs = self.fs.borrow_mut();
            if fs.map.as_ref().is_some_and(|m| m.epoch >= map.epoch) {
                return;
            }
            fs.map = Some(Arc::new(map));
        }
        self.close_stale_sessions();
        self.fail_lost_commands();
        for gid in self.asked_servers() {
            self.send_commands(Peer::Mds(gid));
        }
        self.changed.notify_waiters();
    }

    /// Looks at a metadata server in the map, by its global id.
    pub(super) fn mds<R>(
        &self,
        gid: u64,
        f: impl FnOnce(&types::fsmap::MdsInfo) -> R,
    ) -> Option<R> {
        self.fs.borrow().map.as_ref()?.daemon(gid).map(f)
    }
}
