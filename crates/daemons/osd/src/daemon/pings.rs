//! Pings between OSDs, and what follows from silence: the sockets around [`Heartbeats`].
//!
//! Pings have messengers of their own, those that listen and one that connects, so that they share
//! no socket with data and a peer's session is not disturbed by them. An OSD with a network for
//! other OSDs listens in both.

use super::Daemon;
use crate::heartbeat::{self, Heartbeats, Lane, Silence};
use auth::{ClientAuth, ServiceAuth};
use messages::{OsdFailure, OsdPing, Paxos, Payload};
use msgr::{
    BindError, Connection, Dispatcher, Limits, Message, Messenger, MessengerConfig, Policy,
    PolicySet, ReceiveGuard,
};
use pg::MapView;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use types::{EntityAddrVec, EntityName, EntityType, Epoch, OsdId};

/// The sockets of pings.
pub(super) struct Pings {
    /// The OSDs that are pinged.
    pub beats: RefCell<Heartbeats>,
    /// Where others ping this OSD: in the network of OSDs first. One place if they are one network.
    listening: Vec<(Rc<Messenger>, EntityAddrVec)>,
    connecting: Rc<Messenger>,
    /// With when each was begun.
    conns: RefCell<FxHashMap<(OsdId, Lane), (Rc<Connection>, Instant)>>,
    daemon: RefCell<Weak<Daemon>>,
    /// Epoch that the peers were chosen from.
    chosen_at: Cell<Epoch>,
    /// This OSD was up since it was started, ...
    was_up: Cell<bool>,
    /// ... and down when it last looked.
    was_down: Cell<bool>,
}

struct Calls(RefCell<Weak<Pings>>);

impl Calls {
    fn with(&self, f: impl FnOnce(&Pings, &Rc<Daemon>)) {
        if let Some(p) = self.0.borrow().upgrade()
            && let Some(d) = p.daemon.borrow().upgrade()
        {
            f(&p, &d);
        }
    }
}

impl Dispatcher for Calls {
    fn on_accept(&self, conn: &Rc<Connection>) -> bool {
        conn.auth_name().is_some_and(|n| n.kind == EntityType::OSD)
    }

    fn on_message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        drop(guard);
        let Ok(ping) = OsdPing::decode(&message) else { return };
        self.with(|p, d| p.received(d, conn, ping));
    }

    fn on_reset(&self, conn: &Rc<Connection>) {
        self.with(|p, d| {
            if let Some((osd, lane)) = p.peer_of(conn) {
                p.conns.borrow_mut().remove(&(osd, lane));
                p.beats.borrow_mut().lost(osd);
                p.round(d);
            }
        });
    }

    fn on_refused(&self, conn: &Rc<Connection>) {
        self.with(|p, d| {
            if let Some((osd, _)) = p.peer_of(conn) {
                p.refused(d, osd);
            }
        });
    }
}

impl Pings {
    pub fn new(
        id: OsdId,
        nonce: u32,
        auth: Rc<ServiceAuth>,
        client_auth: Rc<dyn ClientAuth>,
        (front, back): (IpAddr, Option<IpAddr>),
        ports: RangeInclusive<u16>,
    ) -> Result<Rc<Self>, BindError> {
        let calls = Rc::new(Calls(RefCell::default()));
        let messenger = |policy| {
            let config = MessengerConfig {
                name: EntityName::osd(id.0),
                nonce,
                policies: PolicySet::new(policy),
                limits: Limits { front: 1 << 20, middle: 0, data: 0, ..Limits::default() },
                server_auth: Some(auth.clone()),
                client_auth: client_auth.clone(),
            };
            Messenger::new(config, calls.clone())
        };
        let listen = |ip| -> Result<_, BindError> {
            let listening = messenger(Policy::stateless_server());
            let addrs = EntityAddrVec::one(listening.bind(ip, ports.clone())?);
            Ok((listening, addrs))
        };
        let listening = back.into_iter().chain([front]).map(listen).collect::<Result<_, _>>()?;
        let pings = Rc::new(Pings {
            beats: RefCell::default(),
            listening,
            connecting: messenger(Policy::lossy_client()),
            conns: RefCell::default(),
            daemon: RefCell::default(),
            chosen_at: Cell::new(Epoch(0)),
            was_up: Cell::new(false),
            was_down: Cell::new(false),
        });
        *calls.0.borrow_mut() = Rc::downgrade(&pings);
        Ok(pings)
    }

    /// Where others ping this OSD.
    pub fn addrs(&self, lane: Lane) -> &EntityAddrVec {
        let last = self.listening.len() - 1;
        &self.listening[if lane == Lane::Back { 0 } else { last }].1
    }

    /// The OSD that sends these pings.
    pub fn attach(&self, daemon: &Rc<Daemon>) {
        *self.daemon.borrow_mut() = Rc::downgrade(daemon);
    }

    pub fn shutdown(&self) {
        self.listening.iter().for_each(|(m, _)| m.shutdown());
        self.connecting.shutdown();
        self.conns.borrow_mut().clear();
    }

    fn peer_of(&self, conn: &Rc<Connection>) -> Option<(OsdId, Lane)> {
        self.conns.borrow().iter().find(|(_, (c, _))| Rc::ptr_eq(c, conn)).map(|(o, _)| *o)
    }

    /// Chooses the peers of the newest map.
    fn choose(&self, d: &Daemon) {
        let Some(map) = d.map.borrow().clone() else { return };
        if self.chosen_at.replace(map.epoch()) == map.epoch() {
            return;
        }
        let sharing: BTreeSet<OsdId> = d
            .shard
            .pgs()
            .into_iter()
            .flat_map(|pgid| {
                let m = map.mapping(pgid);
                m.up.osds().chain(m.acting.osds()).collect::<Vec<_>>()
            })
            .collect();
        let chosen = heartbeat::choose(map.osd_map(), d.id, sharing);
        for gone in self.beats.borrow_mut().follow(map.osd_map(), &chosen, Instant::now()) {
            for lane in Lane::ALL {
                if let Some((conn, _)) = self.conns.borrow_mut().remove(&(gone, lane)) {
                    conn.mark_down();
                }
            }
        }
    }

    /// Pings the OSDs that are due, and reports those that are silent.
    pub fn round(&self, d: &Rc<Daemon>) {
        let booted = d.life.booted.get();
        if !booted && !self.was_up.get() {
            return;
        }
        // An OSD that was marked down goes on to ping, to know whether it may be up again. It
        // reports none, and begins anew when it is up.
        if booted && (!self.was_up.replace(true) || self.was_down.get()) {
            self.beats.borrow_mut().clear();
            self.chosen_at.set(Epoch(0));
            for (_, (conn, _)) in self.conns.borrow_mut().drain() {
                conn.mark_down();
            }
        }
        self.was_down.set(!booted);
        self.choose(d);
        let now = Instant::now();
        let (interval, grace, again) = {
            let conf = d.frame.conf.borrow();
            let seconds = |option| Duration::from_secs(conf.u64(option));
            (
                seconds("osd_heartbeat_interval"),
                seconds("osd_heartbeat_grace"),
                seconds("osd_mon_report_interval"),
            )
        };
        let stamp = client::wall_clock();
        let due = self.beats.borrow_mut().due(now, interval, stamp);
        for (osd, lane, at) in due {
            if !booted {
                self.give_up_silent(osd, lane, now, grace / 2);
            }
            let known = self
                .conns
                .borrow()
                .get(&(osd, lane))
                .map(|(c, _)| c.clone())
                .filter(|c| !c.is_down());
            let conn = known.unwrap_or_else(|| {
                let conn = self.connecting.connect(EntityType::OSD, at);
                self.conns.borrow_mut().insert((osd, lane), (conn.clone(), now));
                conn
            });
            let ping = OsdPing { ping_stamp: stamp, ..self.message(d, OsdPing::PING) };
            conn.send(ping.encode(conn.features()));
        }
        if !booted {
            return;
        }
        for silence in self.beats.borrow_mut().silent(now, grace, again) {
            tracing::warn!(osd = %silence.osd, "no answer to pings of the {} network for {} s", silence.lane.name(), silence.lasted.as_secs());
            self.report(d, &silence, OsdFailure::FAILED);
        }
    }

    /// Ends a connection on which nothing was heard for so long: when the network is whole again
    /// TCP may not try for a minute.
    fn give_up_silent(&self, osd: OsdId, lane: Lane, now: Instant, patience: Duration) {
        let long = |since: Instant| now.saturating_duration_since(since) > patience;
        if self.beats.borrow().heard(osd, lane).is_none_or(|heard| !long(heard)) {
            return;
        }
        let mut conns = self.conns.borrow_mut();
        if conns.get(&(osd, lane)).is_some_and(|(_, begun)| long(*begun))
            && let Some((conn, _)) = conns.remove(&(osd, lane))
        {
            conn.mark_down();
        }
    }

    /// Whether enough of the peers answer (Ceph: `OSD::_is_healthy`, osd/OSD.cc): an OSD that was
    /// marked down because no other hears it, but reaches the monitors, would be marked up and down
    /// again and again.
    pub fn is_healthy(&self, d: &Daemon) -> bool {
        let conf = d.frame.conf.borrow();
        let interval = Duration::from_secs(conf.u64("osd_heartbeat_interval"));
        self.beats.borrow().are_heard(
            Instant::now(),
            2 * interval + Duration::from_secs(1),
            conf.f64("osd_heartbeat_min_healthy_ratio"),
        )
    }

    fn message(&self, d: &Daemon, op: u8) -> OsdPing {
        OsdPing {
            fsid: d.superblock.borrow().cluster,
            map_epoch: d.epoch(),
            op,
            ping_stamp: client::wall_clock(),
            up_from: d.superblock.borrow().up_from,
            ..OsdPing::default()
        }
    }

    fn received(&self, d: &Rc<Daemon>, conn: &Rc<Connection>, ping: OsdPing) {
        match ping.op {
            OsdPing::PING => {
                let from = OsdId(i32::try_from(conn.peer_name().num).unwrap_or(-1));
                let map = d.map.borrow().clone();
                // An OSD that does not know yet that the map calls it down. One that has just
                // booted may be ahead of our map.
                let dead = map.is_some_and(|m| !m.is_up(from) && m.epoch() > ping.map_epoch);
                let op = if dead { OsdPing::YOU_DIED } else { OsdPing::PING_REPLY };
                let reply = OsdPing { ping_stamp: ping.ping_stamp, ..self.message(d, op) };
                conn.send(reply.encode(conn.features()));
            }
            OsdPing::PING_REPLY => {
                let Some((osd, lane)) = self.peer_of(conn) else { return };
                let span = d.frame.conf.borrow().u64("debug_heartbeat_testing_span");
                let minute = Duration::from_secs(if span == 0 { 60 } else { span });
                let told = self.beats.borrow_mut().answered(
                    osd,
                    lane,
                    Instant::now(),
                    ping.ping_stamp,
                    client::wall_clock(),
                    minute,
                );
                if let Some(process) = told {
                    let back = Silence { osd, process, lane, lasted: Duration::ZERO };
                    self.report(d, &back, 0);
                }
            }
            OsdPing::YOU_DIED => d.ask_for_maps(),
            _ => {}
        }
    }

    /// An OSD's address refuses connections: its process is gone.
    pub fn refused(&self, d: &Rc<Daemon>, osd: OsdId) {
        if !d.frame.conf.borrow().bool("osd_fast_fail_on_connection_refused")
            || !d.life.booted.get()
        {
            return;
        }
        let again = Duration::from_secs(1);
        if let Some(silence) = self.beats.borrow_mut().refused(osd, Instant::now(), again) {
            tracing::info!(%osd, "refuses connections");
            self.report(d, &silence, OsdFailure::FAILED | OsdFailure::IMMEDIATE);
        }
    }

    fn report(&self, d: &Daemon, s: &Silence, flags: u8) {
        d.frame.mon.send_payload(&OsdFailure {
            paxos: Paxos(d.epoch().0.into()),
            fsid: d.superblock.borrow().cluster,
            target: s.osd,
            target_addrs: s.process.clone(),
            epoch: d.epoch(),
            flags,
            failed_for: i32::try_from(s.lasted.as_secs()).unwrap_or(i32::MAX),
        });
    }
}
