//! Following the cluster: maps, booting, configuration.

use super::{Daemon, MAPS_DROPPED_MAX};
use crate::heartbeat::Lane;
use crate::map::ClusterMapRef;
use crate::osd_map::MapAt;
use crate::shard::ShardMsg;
use crate::superblock;
use bytes::Bytes;
use denc::Decode;
use messages::{BootSuperblock, MgrMapMsg, OsdBoot, OsdMapMsg, OsdPgCreate, Paxos, Payload};
use msgr::Message;
use pg::MapView;
use std::rc::Rc;
use store::Transaction;
use types::osdmap::OsdMapError;
use types::{
    EntityAddrVec, Epoch, LogPriority, MgrMap, OsdMap, OsdMapIncremental, SpgId, Utime, features,
};

impl Daemon {
    pub(super) fn ask_for_maps(&self) {
        self.frame.mon.subscribe("osdmap", u64::from(self.epoch().0) + 1, false);
    }

    pub(super) fn from_mon(self: &Rc<Self>, message: Message) {
        self.copies.handle_mon_message(&message);
        match message.msg_type {
            OsdMapMsg::TYPE => match OsdMapMsg::decode(&message) {
                Ok(m) => self.maps(m),
                Err(e) => tracing::error!("maps from a monitor cannot be read: {e}"),
            },
            OsdPgCreate::TYPE => match OsdPgCreate::decode(&message) {
                Ok(m) if self.life.booted.get() => {
                    let since = |(id, (epoch, _)): (&SpgId, &(Epoch, Utime))| (id.pgid, *epoch);
                    self.shard.send(ShardMsg::ForceCreate(m.pgs.iter().map(since).collect()));
                }
                // The monitors ask again.
                Ok(_) => {}
                Err(e) => tracing::error!("PGs to be made anew cannot be read: {e}"),
            },
            MgrMapMsg::TYPE => {
                match MgrMapMsg::decode(&message).map(|m| MgrMap::from_bytes(&m.map.0)) {
                    Ok(Ok(map)) => self.mgr_map(map),
                    _ => tracing::error!("a mgr map from a monitor cannot be read"),
                }
            }
            _ => {
                if self.frame.configure(&message) {
                    self.conf_changed();
                }
            }
        }
    }

    /// Applies maps in order. A map is durable before what PGs make of it, and that before the
    /// superblock says that it was processed, because the store commits in order.
    pub(super) fn maps(self: &Rc<Self>, m: OsdMapMsg) {
        if self.life.stopping.get() {
            return;
        }
        self.life.newest.set(self.life.newest.get().max(m.newest));
        let mut t = Transaction::new();
        let begin = self.epoch();
        let mut current = self.maps_that_follow(&m);
        if current == begin {
            // Nothing that follows on what is here: either old news, or a gap.
            let gap = m.oldest > current.next() || (current == Epoch(0) && m.oldest == Epoch(0));
            let full = m.maps.iter().find(|(e, _)| **e > current);
            match full {
                Some((e, bytes)) if gap => match OsdMap::from_bytes(bytes) {
                    Ok(map) => {
                        tracing::info!(
                            "maps {}..{} are gone, going on with {e}",
                            current.next(),
                            e
                        );
                        self.next_map(map, bytes.clone(), false);
                        // The monitor does not send the rest again.
                        current = self.maps_that_follow(&m);
                    }
                    Err(e) => tracing::error!("a full map cannot be read: {e}"),
                },
                _ if m.newest > current => self.ask_for_maps(),
                _ => {}
            }
        }
        if current == begin {
            self.shard.send(ShardMsg::MapsCame { epochs: 0 });
            self.try_boot();
            return;
        }
        self.shard.send(ShardMsg::MapsCame { epochs: (current.0 - begin.0).into() });
        self.frame.mon.got("osdmap", current.0.into());
        {
            let mut own = self.superblock.borrow_mut();
            own.current = current;
            let progress = self.shard.progress();
            own.unborn = progress.unborn;
            // What no PG needs any more goes, a few at a time.
            let needed = progress.needed.unwrap_or(current);
            let keep = needed.min(m.oldest.max(own.oldest));
            if own.oldest < keep {
                let to = Epoch(keep.0.min(own.oldest.0 + MAPS_DROPPED_MAX));
                superblock::drop_maps(&mut t, own.oldest, to);
                own.oldest = to;
            }
            superblock::put(&mut t, &own);
        }
        self.shard.send(ShardMsg::Keep { txn: t, or_else: "maps cannot be stored" });
        self.after_maps();
    }

    /// Applies what follows on the map that is here, as far as there is no gap. The epoch that is
    /// reached.
    fn maps_that_follow(self: &Rc<Self>, m: &OsdMapMsg) -> Epoch {
        loop {
            let next = self.epoch().next();
            let found = match (
                m.maps.get(&next),
                m.incremental_maps.get(&next),
                self.map.borrow().as_ref(),
            ) {
                (Some(full), _, _) => OsdMap::from_bytes(full)
                    .map(|map| (map, full.clone()))
                    .map_err(OsdMapError::Malformed),
                (None, Some(inc), Some(base)) => apply(base.osd_map(), inc),
                _ => return self.epoch(),
            };
            match found {
                Ok((map, bytes)) => self.next_map(map, bytes, true),
                Err(e @ OsdMapError::Crc { .. }) => {
                    self.other_history(next, &e);
                    return self.epoch();
                }
                Err(e) => {
                    tracing::error!("map {next} cannot be applied: {e}");
                    return self.epoch();
                }
            }
        }
    }

    /// The monitors' next map does not follow on the one that is here: this OSD saw maps that the
    /// monitors lost. Others may act on maps of the same numbers that say something else, so it
    /// serves no client any more.
    fn other_history(&self, next: Epoch, why: &OsdMapError) {
        let here = self.epoch();
        let text = format!(
            "map {next} of the monitors does not follow on map {here} that is here ({why}): the monitors were rescued without maps that osd.{} has",
            self.id.0
        );
        self.frame.mon.log(LogPriority::ERROR, "cluster", text.clone());
        self.shard.send(ShardMsg::Fail(text));
    }

    pub(super) fn next_map(self: &Rc<Self>, map: OsdMap, bytes: Bytes, continuous: bool) {
        let epoch = map.epoch;
        // Before anything that PGs make of it: after a crash they may be ahead of the superblock.
        let mut t = Transaction::new();
        superblock::put_map(&mut t, epoch, bytes);
        self.shard.send(ShardMsg::Keep { txn: t, or_else: "a map cannot be stored" });
        if self.superblock.borrow().oldest == Epoch(0) {
            self.superblock.borrow_mut().oldest = epoch;
        }
        let map = MapAt::new(Rc::new(map));
        *self.map.borrow_mut() = Some(map.clone());
        let shared: ClusterMapRef = map.clone();
        self.net.set_map(shared.clone());
        self.copies.set_map(map.clone());
        self.link.new_map(self.id, &map);
        self.shard.send(ShardMsg::Map { map: shared, first: !continuous });
    }

    pub(super) fn after_maps(self: &Rc<Self>) {
        let Some(map) = self.map.borrow().clone() else { return };
        let osd = map.osd_map().osd(self.id).cloned();
        let up =
            map.is_up(self.id) && osd.as_ref().is_some_and(|o| o.client_addrs == self.ends.addrs);
        if up {
            if !self.life.booted.replace(true) {
                self.life.unhealthy.set(false);
                self.frame.conf.borrow_mut().set_started();
                tracing::info!(osd = self.id.0, epoch = map.epoch().0, "up");
                self.superblock.borrow_mut().up_from = map.up_from(self.id);
                // Before anything is written as this OSD: with an epoch of 0 the store would count
                // as a new one.
                let mut t = Transaction::new();
                superblock::put(&mut t, &self.superblock.borrow());
                let or_else = "the epoch of the boot cannot be stored";
                self.shard.send(ShardMsg::Keep { txn: t, or_else });
                self.manager.reports.full.set(true);
            }
            self.shard.send(ShardMsg::Activate);
        } else {
            if self.life.booted.replace(false) {
                tracing::warn!(
                    osd = self.id.0,
                    epoch = map.epoch().0,
                    "marked down, booting again"
                );
                // Unless an operator did it, it was a mistake; both should be in the cluster's log.
                let text = format!(
                    "map e{} marked osd.{} down, but its process still runs",
                    map.epoch(),
                    self.id
                );
                self.frame.mon.log(LogPriority::WARN, "cluster", text);
            }
            // Clients send all that waits here to others.
            self.shard.send(ShardMsg::DropVoid);
            self.try_boot();
        }
    }

    /// Asks to be marked up, once the newest map is here.
    pub(super) fn try_boot(&self) {
        if self.life.booted.get() || self.life.stopping.get() {
            return;
        }
        let Some(map) = self.map.borrow().clone() else { return };
        if map.epoch() < self.life.newest.get() || !map.exists(self.id) {
            return;
        }
        let healthy = self.pings.is_healthy(self);
        if self.life.unhealthy.replace(!healthy) == healthy {
            match healthy {
                true => tracing::info!("other OSDs are heard again"),
                false => tracing::warn!(
                    "not booting: too few other OSDs answer pings; osd_heartbeat_min_healthy_ratio says how many must"
                ),
            }
        }
        if !healthy {
            return;
        }
        let own = self.superblock.borrow().clone();
        let mut metadata = self.metadata.clone();
        let [front, back, hb_front, hb_back] = [
            &self.ends.addrs,
            &self.ends.cluster_addrs,
            self.pings.addrs(Lane::Front),
            self.pings.addrs(Lane::Back),
        ]
        .map(EntityAddrVec::to_string);
        for (k, v) in [
            ("front_addr", front.as_str()),
            ("back_addr", &back),
            ("hb_front_addr", &hb_front),
            ("hb_back_addr", &hb_back),
            ("ceph_version", types::version::LONG),
            ("ceph_version_short", types::version::SHORT),
            ("ceph_release", types::version::RELEASE),
            ("osd_objectstore", "siphon"),
            ("erasure_coded_pools", "1"),
        ] {
            metadata.entry(k.to_owned()).or_insert_with(|| v.to_owned());
        }
        self.frame.mon.send_payload(&OsdBoot {
            paxos: Paxos(map.epoch().0.into()),
            superblock: BootSuperblock {
                cluster_fsid: own.cluster,
                whoami: self.id,
                current_epoch: own.current,
                oldest_map: own.oldest,
                newest_map: own.current,
                osd_fsid: own.osd,
                ..BootSuperblock::default()
            },
            hb_back_addrs: self.pings.addrs(Lane::Back).clone(),
            cluster_addrs: self.ends.cluster_addrs.clone(),
            boot_epoch: own.up_from,
            hb_front_addrs: self.pings.addrs(Lane::Front).clone(),
            metadata,
            osd_features: features::SUPPORTED.0,
        });
    }
}

/// Applies an increment; the bytes of the result are those of the monitor that made it.
fn apply(base: &OsdMap, inc: &Bytes) -> Result<(OsdMap, Bytes), OsdMapError> {
    let inc = OsdMapIncremental::from_bytes(inc).map_err(OsdMapError::Malformed)?;
    let mut map = base.clone();
    let bytes = map.apply_incremental_checked(&inc)?;
    Ok((map, bytes))
}
