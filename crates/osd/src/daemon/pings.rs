//! Pings between OSDs, and what follows from silence: the sockets around [`Heartbeats`].
//!
//! Pings have two messengers of their own, one that listens and one that connects, so that they share no
//! socket with data and a peer's session is not disturbed by them.

use super::Daemon;
use crate::heartbeat::{self, Heartbeats, Silence};
use auth::{ClientAuth, ServiceAuth};
use messages::{OsdFailure, OsdPing, Paxos, Payload};
use msgr::{BindError, Connection, Dispatcher, Limits, Message, Messenger, MessengerConfig, Policy, PolicySet, ReceiveGuard};
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
    /// Who is pinged.
    pub beats: RefCell<Heartbeats>,
    /// Where others ping this OSD.
    pub addrs: EntityAddrVec,
    listening: Rc<Messenger>,
    connecting: Rc<Messenger>,
    conns: RefCell<FxHashMap<OsdId, Rc<Connection>>>,
    daemon: RefCell<Weak<Daemon>>,
    /// Epoch that the peers were chosen from.
    chosen_at: Cell<Epoch>,
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
            if let Some(osd) = p.peer_of(conn) {
                p.conns.borrow_mut().remove(&osd);
                p.beats.borrow_mut().lost(osd);
                p.round(d);
            }
        });
    }

    fn on_refused(&self, conn: &Rc<Connection>) {
        self.with(|p, d| {
            if let Some(osd) = p.peer_of(conn) {
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
        ip: IpAddr,
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
        let (listening, connecting) = (messenger(Policy::stateless_server()), messenger(Policy::lossy_client()));
        let addr = listening.bind(ip, ports)?;
        let pings = Rc::new(Pings {
            beats: RefCell::default(),
            addrs: EntityAddrVec::one(addr),
            listening,
            connecting,
            conns: RefCell::default(),
            daemon: RefCell::default(),
            chosen_at: Cell::new(Epoch(0)),
        });
        *calls.0.borrow_mut() = Rc::downgrade(&pings);
        Ok(pings)
    }

    /// Whose pings these are.
    pub fn attach(&self, daemon: &Rc<Daemon>) {
        *self.daemon.borrow_mut() = Rc::downgrade(daemon);
    }

    pub fn shutdown(&self) {
        self.listening.shutdown();
        self.connecting.shutdown();
        self.conns.borrow_mut().clear();
    }

    fn peer_of(&self, conn: &Rc<Connection>) -> Option<OsdId> {
        self.conns.borrow().iter().find(|(_, c)| Rc::ptr_eq(c, conn)).map(|(o, _)| *o)
    }

    /// Chooses the peers of the newest map.
    fn choose(&self, d: &Daemon) {
        let Some(map) = d.map.borrow().clone() else { return };
        if self.chosen_at.replace(map.epoch()) == map.epoch() {
            return;
        }
        let sharing: BTreeSet<OsdId> = d
            .core
            .hosts()
            .iter()
            .flat_map(|h| {
                let m = map.mapping(h.with_pg(|p| p.pgid()));
                m.up.into_iter().chain(m.acting)
            })
            .collect();
        let chosen = heartbeat::choose(map.osd_map(), d.id, sharing);
        for gone in self.beats.borrow_mut().follow(map.osd_map(), &chosen, Instant::now()) {
            if let Some(conn) = self.conns.borrow_mut().remove(&gone) {
                conn.mark_down();
            }
        }
    }

    /// Pings who is due and reports who is silent.
    pub fn round(&self, d: &Rc<Daemon>) {
        if !d.booted.get() {
            // Who is not up watches nobody, and begins anew when it is.
            self.beats.borrow_mut().clear();
            self.chosen_at.set(Epoch(0));
            for (_, conn) in self.conns.borrow_mut().drain() {
                conn.mark_down();
            }
            return;
        }
        self.choose(d);
        let now = Instant::now();
        let (interval, grace, again) = {
            let conf = d.conf.borrow();
            let seconds = |option| Duration::from_secs(conf.u64(option));
            (seconds("osd_heartbeat_interval"), seconds("osd_heartbeat_grace"), seconds("osd_mon_report_interval"))
        };
        let stamp = crate::core::wall_now();
        let due = self.beats.borrow_mut().due(now, interval, stamp);
        for (osd, at) in due {
            let known = self.conns.borrow().get(&osd).filter(|c| !c.is_down()).cloned();
            let conn = known.unwrap_or_else(|| {
                let conn = self.connecting.connect(EntityType::OSD, at);
                self.conns.borrow_mut().insert(osd, conn.clone());
                conn
            });
            let ping = OsdPing { ping_stamp: stamp, ..self.message(d, OsdPing::PING) };
            conn.send(ping.encode(conn.features()));
        }
        for silence in self.beats.borrow_mut().silent(now, grace, again) {
            tracing::warn!(osd = %silence.osd, "no answer to pings for {} s", silence.lasted.as_secs());
            self.report(d, &silence, OsdFailure::FAILED);
        }
    }

    fn message(&self, d: &Daemon, op: u8) -> OsdPing {
        OsdPing {
            fsid: d.superblock.borrow().cluster,
            map_epoch: d.core.epoch(),
            op,
            ping_stamp: crate::core::wall_now(),
            up_from: d.superblock.borrow().up_from,
            ..OsdPing::default()
        }
    }

    fn received(&self, d: &Rc<Daemon>, conn: &Rc<Connection>, ping: OsdPing) {
        match ping.op {
            OsdPing::PING => {
                let from = OsdId(i32::try_from(conn.peer_name().num).unwrap_or(-1));
                let map = d.map.borrow().clone();
                // Somebody who does not know yet that the map calls him down. One that has just booted may
                // be ahead of our map.
                let dead = map.is_some_and(|m| !m.is_up(from) && m.epoch() > ping.map_epoch);
                let op = if dead { OsdPing::YOU_DIED } else { OsdPing::PING_REPLY };
                let reply = OsdPing { ping_stamp: ping.ping_stamp, ..self.message(d, op) };
                conn.send(reply.encode(conn.features()));
            }
            OsdPing::PING_REPLY => {
                let Some(osd) = self.peer_of(conn) else { return };
                let span = d.conf.borrow().u64("debug_heartbeat_testing_span");
                let minute = Duration::from_secs(if span == 0 { 60 } else { span });
                let told = self.beats.borrow_mut().answered(osd, Instant::now(), ping.ping_stamp, crate::core::wall_now(), minute);
                if let Some(process) = told {
                    let back = Silence { osd, process, lasted: Duration::ZERO };
                    self.report(d, &back, 0);
                }
            }
            OsdPing::YOU_DIED => d.ask_for_maps(),
            _ => {}
        }
    }

    /// Nobody listens at an OSD's address: its process is gone.
    pub fn refused(&self, d: &Rc<Daemon>, osd: OsdId) {
        if !d.conf.borrow().bool("osd_fast_fail_on_connection_refused") || !d.booted.get() {
            return;
        }
        let again = Duration::from_secs(1);
        if let Some(silence) = self.beats.borrow_mut().refused(osd, Instant::now(), again) {
            tracing::info!(%osd, "refuses connections");
            self.report(d, &silence, OsdFailure::FAILED | OsdFailure::IMMEDIATE);
        }
    }

    fn report(&self, d: &Daemon, s: &Silence, flags: u8) {
        d.mon.send_payload(&OsdFailure {
            paxos: Paxos(d.core.epoch().0.into()),
            fsid: d.superblock.borrow().cluster,
            target: s.osd,
            target_addrs: s.process.clone(),
            epoch: d.core.epoch(),
            flags,
            failed_for: i32::try_from(s.lasted.as_secs()).unwrap_or(i32::MAX),
        });
    }
}
