//! Maps, and what follows from a new one.

use super::Inner;
use super::peer::Peer;
use crate::shared_map::Offer;
use messages::{FsMapMsg, MgrMapMsg, OsdMapMsg, Payload};
use msgr::Message;
use std::rc::{Rc, Weak};
use tokio::sync::watch;
use types::{EntityAddrVec, Epoch, MgrMap};

/// Draws the consequences here of maps that came through other threads.
pub(super) async fn follow(inner: Weak<Inner>, mut news: watch::Receiver<u64>) {
    while news.changed().await.is_ok() {
        let Some(inner) = inner.upgrade().filter(|inner| !inner.down.get()) else { return };
        inner.subscribe();
        inner.advanced();
    }
}

impl Inner {
    /// Subscribes to OSD maps, unless another thread has done so for all.
    pub(super) fn subscribe(&self) {
        if !self.down.get() && self.member.claim() {
            self.ask_for_maps();
        }
    }

    /// Asks for what follows the newest map; without one, for a full map.
    fn ask_for_maps(&self) {
        let have = self.map.epoch();
        let start = if have == Epoch(0) { 0 } else { u64::from(have.0) + 1 };
        self.mon.unsubscribe("osdmap");
        self.mon.subscribe("osdmap", start, false);
    }

    pub(super) fn handle_maps(self: &Rc<Self>, message: &Message) {
        match message.msg_type {
            OsdMapMsg::TYPE => match OsdMapMsg::decode(message) {
                Ok(maps) => self.handle_osd_maps(&maps),
                Err(error) => tracing::warn!(%error, "OSD maps"),
            },
            FsMapMsg::TYPE => self.handle_fs_map(message),
            MgrMapMsg::TYPE => {
                match MgrMapMsg::decode(message).map(|m| denc::Decode::from_bytes(&m.map.0)) {
                    Ok(Ok(map)) => self.handle_mgr_map(map),
                    Ok(Err(error)) => tracing::warn!(%error, "mgr map"),
                    Err(error) => tracing::warn!(%error, "mgr map"),
                }
            }
            _ => {}
        }
    }

    /// Maps from a monitor, or from an OSD that saw a request made under an old one.
    pub(super) fn handle_osd_maps(self: &Rc<Self>, maps: &OsdMapMsg) {
        match self.map.offer(self.mon.fsid(), maps) {
            Offer::Advanced => self.advanced(),
            // Without a map, a full one has been asked for.
            Offer::Known | Offer::Gap(Epoch(0)) => {}
            Offer::Gap(_) | Offer::Broken => {
                // A session that does not subscribe may be the one that sees it.
                if self.member.subscribes() {
                    self.ask_for_maps();
                } else if let Some(start) = self.map.epoch().0.checked_add(1) {
                    self.mon.subscribe("osdmap", if start == 1 { 0 } else { start.into() }, true);
                }
            }
        }
    }

    /// Draws the consequences of a new map.
    pub(super) fn advanced(self: &Rc<Self>) {
        let epoch = self.map.epoch();
        if self.down.get() || epoch <= self.seen.get() {
            return;
        }
        self.seen.set(epoch);
        self.mon.got("osdmap", epoch.0.into());
        self.close_stale_sessions();
        self.route_all();
        self.fail_lost_commands();
        self.look_for_us_on_the_blocklist();
        self.changed.notify_waiters();
    }

    fn look_for_us_on_the_blocklist(&self) {
        let us = self.mon.messenger().addrs();
        let blocked = self.map.with(|map| us.0.iter().any(|addr| map.is_blocklisted(addr)));
        let blocked = blocked.unwrap_or(false);
        if blocked && !self.blocklisted.replace(blocked) {
            tracing::warn!("this client is on the blocklist of the cluster");
            self.fail_watches(types::Errno::ESHUTDOWN);
        }
        self.blocklisted.set(blocked);
    }

    fn handle_mgr_map(self: &Rc<Self>, map: MgrMap) {
        self.mon.got("mgrmap", map.epoch.0.into());
        let addrs = if map.available { map.active_addrs } else { EntityAddrVec::default() };
        let stale = self.sessions.borrow().get(&Peer::Mgr).is_some_and(|s| s.addrs != addrs);
        self.mgr.borrow_mut().addrs = addrs;
        if stale {
            self.close(Peer::Mgr);
        }
        self.send_commands(Peer::Mgr);
        self.tell_service();
        self.changed.notify_waiters();
    }
}
