//! The OSD as a daemon: store, monitors, network, reports, commands around a
//! [`Core`](crate::core::Core).
//!
//! ```text
//! start ─► open the store, load groups ─► listen ─► session with a monitor ─► maps
//!                                                                              │
//!              up in the map at our address ◄── OsdBoot ◄── caught up ◄────────┘
//! ```

mod error;
mod load;
mod maps;
mod pings;
mod report;
mod serve;

pub use error::StartError;

use crate::admin::Admin;
use crate::client_op::OsdQueue;
use crate::copies::Copies;
use crate::core::{MonLink, Parts};
use crate::fullness::{self, Fullness};
use crate::map::ClusterMapRef;
use crate::net::Net;
use crate::osd_map::MapAt;
use crate::peer_net::LocalPeer;
use crate::session::Session;
use crate::settings;
use crate::shard::{HasLimited, LastEpochClean, NotHonoured, Shard, ShardMsg, WhatWasLearned};
use crate::shard_admin::Metrics;
use crate::superblock::{self, Superblock};
use admission::limited::{DEMAND_PERIOD, NEWS_PAUSE};
use auth::{AuthName, AuthPolicy, CryptoKey, EntityAuth, Keyring};
use bytes::Bytes;
use client::{MonClient, MonConfig, MonEvents, MonHost, MonTiming};
use conf::Config;
use daemon_frame::Frame;
use daemon_frame::commands::AnswerParts;
use daemon_frame::threads::LocalFuture;
use messages::{OsdAlive, OsdBeacon, OsdFull, OsdMarkMeDown, OsdPgCreated, OsdPgTemp, Paxos};
use msgr::{Connection, Dispatcher, Limits, Message, Messenger, Policy, PolicySet, ReceiveGuard};
use pg::MapView;
use pings::Pings;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Duration;
use store::{Device, Engine, Options, Store, StoreError, Transaction};
use tokio::sync::Notify;
use types::{EntityAddrVec, EntityName, EntityType, Epoch, Fsid, LogPriority, OsdId, PgId};

/// What an OSD needs to start.
pub struct OsdConfig {
    /// Its number.
    pub id: OsdId,
    /// The cluster.
    pub fsid: Fsid,
    /// The file or block device with its store.
    pub device: PathBuf,
    /// How the device is driven.
    pub engine: Engine,
    /// Tunables of the store; its budgets follow `osd_memory_target`.
    pub store: Options,
    /// Where monitors are.
    pub mon_hosts: Vec<MonHost>,
    /// The secret of `osd.N`.
    pub key: CryptoKey,
    /// Authentication methods and connection modes.
    pub policy: AuthPolicy,
    /// Where to listen for clients and, without [`OsdConfig::cluster_ip`], other OSDs.
    pub ip: IpAddr,
    /// Where to listen for other OSDs (Ceph: `cluster_addr`).
    pub cluster_ip: Option<IpAddr>,
    /// On which port; 0 lets the system choose.
    pub ports: RangeInclusive<u16>,
    /// Settings from the configuration file and the command line.
    pub conf: Config,
    /// What `ceph osd metadata` shows beside what the OSD knows itself.
    pub metadata: BTreeMap<String, String>,
}

/// Makes the store of a new OSD. `size` creates a file of that many bytes if there is none.
pub fn mkfs<'a>(
    device: &'a std::path::Path,
    engine: Engine,
    options: &'a Options,
    size: Option<u64>,
    fsid: Fsid,
    osd_fsid: Fsid,
    id: OsdId,
) -> LocalFuture<'a, Result<(), StartError>> {
    Box::pin(make(device, engine, options, size, fsid, osd_fsid, id))
}

async fn make(
    device: &std::path::Path,
    engine: Engine,
    options: &Options,
    size: Option<u64>,
    fsid: Fsid,
    osd_fsid: Fsid,
    id: OsdId,
) -> Result<(), StartError> {
    let dev = Device::open(device, engine, size)
        .map_err(|source| StartError::Device { path: device.to_owned(), source })?;
    let mut id_bytes = [0; 8];
    id_bytes.copy_from_slice(&osd_fsid.0[..8]);
    let label = format!("osd.{id} {fsid} {osd_fsid}");
    Store::mkfs(&dev, options, u64::from_le_bytes(id_bytes), label).await?;
    let store = Store::open(dev, options.clone()).await?;
    let mut t = Transaction::new();
    superblock::create(&mut t);
    superblock::put(
        &mut t,
        &Superblock { cluster: fsid, osd: osd_fsid, whoami: id, ..Superblock::default() },
    );
    store.submit(t)?.await?;
    store.close().await?;
    Ok(())
}

/// What the monitors are asked for until a map grants it.
#[derive(Default)]
struct Wishes {
    up_thru: Option<Epoch>,
    pg_temp: BTreeMap<PgId, Vec<OsdId>>,
}

/// Sends wishes to the monitors.
struct Link {
    mon: MonClient,
    epoch: Cell<Epoch>,
    /// The newest.
    map: RefCell<Option<Rc<MapAt>>>,
    wishes: RefCell<Wishes>,
}

impl Link {
    fn send_up_thru(&self, want: Epoch) {
        self.mon.send_payload(&OsdAlive { paxos: Paxos(self.epoch.get().0.into()), want });
    }

    fn send_pg_temp(&self, pg_temp: BTreeMap<PgId, Vec<OsdId>>) {
        self.mon.send_payload(&OsdPgTemp {
            paxos: Paxos(self.epoch.get().0.into()),
            map_epoch: self.epoch.get(),
            pg_temp,
            forced: false,
        });
    }

    /// Everything again, after the session with a monitor was lost.
    fn repeat(&self) {
        let (up_thru, pg_temp) = {
            let w = self.wishes.borrow();
            (w.up_thru, w.pg_temp.clone())
        };
        if let Some(want) = up_thru {
            self.send_up_thru(want);
        }
        if !pg_temp.is_empty() {
            self.send_pg_temp(pg_temp);
        }
    }

    fn new_map(&self, me: OsdId, map: &Rc<MapAt>) {
        self.epoch.set(map.epoch());
        let before = self.map.replace(Some(map.clone()));
        let mut w = self.wishes.borrow_mut();
        if w.up_thru.is_some_and(|want| map.up_thru(me) >= want) {
            w.up_thru = None;
        }
        // Whatever moved the group, its new interval asks for what it wants itself. Said again
        // later, an old wish would move it where no interval wants it.
        w.pg_temp.retain(|pgid, _| {
            before.as_ref().is_some_and(|b| b.mapping(*pgid) == map.mapping(*pgid))
        });
    }
}

impl MonLink for Link {
    fn want_up_thru(&self, epoch: Epoch) {
        let mut w = self.wishes.borrow_mut();
        if w.up_thru.is_some_and(|want| want >= epoch) {
            return;
        }
        w.up_thru = Some(epoch);
        drop(w);
        self.send_up_thru(epoch);
    }

    fn want_pg_temp(&self, pgid: PgId, acting: Vec<OsdId>) {
        self.wishes.borrow_mut().pg_temp.insert(pgid, acting.clone());
        self.send_pg_temp([(pgid, acting)].into());
    }

    fn pg_created(&self, pgid: PgId) {
        self.mon.send_payload(&OsdPgCreated { paxos: Paxos(self.epoch.get().0.into()), pgid });
    }

    fn want_map(&self, epoch: Epoch) {
        if epoch > self.epoch.get() {
            self.mon.subscribe("osdmap", u64::from(self.epoch.get().0) + 1, false);
        }
    }

    fn cluster_log(&self, prio: LogPriority, text: String) {
        self.mon.log(prio, "cluster", text);
    }
}

/// How often it is looked whether a map has come that an operator waits for.
const MAP_LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// Names and ids of devices, from what the OSD says of itself.
fn devices(metadata: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let list = |key: &str| {
        metadata.get(key).map_or("", String::as_str).split(',').filter(|d| !d.is_empty())
    };
    let id = |name: &str| {
        let of = |entry: &str| {
            entry.split_once('=').filter(|(n, _)| *n == name).map(|(_, id)| id.to_owned())
        };
        list("device_ids").find_map(of).unwrap_or_default()
    };
    // What the device mapper makes stands for what is below it.
    list("devices").filter(|d| !d.starts_with("dm-")).map(|d| (d.to_owned(), id(d))).collect()
}

/// A running OSD. Dropping the handle does not stop it; [`OsdHandle::shutdown`] does.
#[derive(Clone)]
pub struct OsdHandle(Rc<Daemon>);

struct Daemon {
    id: OsdId,
    shard: Shard,
    /// The OSD's own objects in it are the daemon's.
    store: Rc<Store>,
    frame: Frame,
    ends: Ends,
    net: Rc<Net>,
    copies: Rc<Copies>,
    link: Rc<Link>,
    pings: Rc<Pings>,
    admin: RefCell<Option<Rc<Admin>>>,
    superblock: RefCell<Superblock>,
    map: RefCell<Option<Rc<MapAt>>>,
    metadata: BTreeMap<String, String>,
    life: Life,
    manager: report::Manager,
    /// Which state of what was learned is kept in the store.
    learned: Cell<u64>,
    /// Settings that were said not to hold.
    ignored: RefCell<Vec<admission::ignored::Ignored>>,
    local: RefCell<Option<LocalPeer>>,
    tasks: RefCell<Vec<tokio::task::JoinHandle<()>>>,
}

/// Where an OSD listens.
struct Ends {
    messenger: Rc<Messenger>,
    /// What other OSDs connect to, if not that one.
    cluster_messenger: Option<Rc<Messenger>>,
    addrs: EntityAddrVec,
    /// Where other OSDs connect.
    cluster_addrs: EntityAddrVec,
}

impl Ends {
    /// The messenger of other OSDs.
    fn for_peers(&self) -> &Rc<Messenger> {
        self.cluster_messenger.as_ref().unwrap_or(&self.messenger)
    }
}

/// How far an OSD has come, from its start to its end.
#[derive(Default)]
struct Life {
    /// The newest map that a monitor said there is.
    newest: Cell<Epoch>,
    booted: Cell<bool>,
    /// It does not boot, because too few others answer its pings.
    unhealthy: Cell<bool>,
    stopping: Cell<bool>,
}

/// A monitor that hangs is left sooner than clients give up: the OSD may wait for a map that others
/// have.
const MON_TIMING: MonTiming = MonTiming {
    ping_interval: Duration::from_secs(3),
    ping_timeout: Duration::from_secs(9),
    ..MonTiming::DEFAULT
};
/// How long a start waits for the monitors.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the daemon looks whether something is due.
const TICK: Duration = Duration::from_millis(500);
/// What was learned of costs is kept once in so many ticks.
const LEARNED_EVERY: u64 = 120;
/// How long changes of groups are collected for a report to the manager.
const REPORT_PAUSE: Duration = Duration::from_millis(50);
/// Maps dropped in one transaction.
const MAPS_DROPPED_MAX: u32 = 30;

/// Calls of the listening messenger.
struct Inbound(RefCell<Weak<Daemon>>);

impl Inbound {
    fn with(&self, f: impl FnOnce(&Rc<Daemon>)) {
        if let Some(d) = self.0.borrow().upgrade() {
            f(&d);
        }
    }
}

impl Dispatcher for Inbound {
    fn on_accept(&self, conn: &Rc<Connection>) -> bool {
        let name = conn.auth_name().map(|n| n.to_string()).unwrap_or_default();
        conn.set_user(Session::new(&conn.auth_caps(), name));
        true
    }

    fn on_message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        self.with(|d| d.received(conn, message, guard));
    }

    fn on_refused(&self, conn: &Rc<Connection>) {
        self.with(|d| {
            if let Some(osd) = d.net.osd_of(conn) {
                d.pings.refused(d, osd);
            }
        });
    }

    fn on_reset(&self, conn: &Rc<Connection>) {
        self.with(|d| {
            d.shard.send(ShardMsg::SessionGone(conn.id()));
            let mut mgr = d.manager.conn.borrow_mut();
            if mgr.as_ref().is_some_and(|c| Rc::ptr_eq(c, conn)) {
                *mgr = None;
                d.manager.reports.full.set(true);
            }
        });
    }
}

/// What monitors send.
struct FromMon(Weak<Daemon>);

impl MonEvents for FromMon {
    fn on_session(&self) {
        if let Some(d) = self.0.upgrade() {
            d.link.repeat();
            if !d.life.booted.get() {
                d.ask_for_maps();
                d.try_boot();
            }
        }
    }

    fn on_message(&self, message: Message) {
        if let Some(d) = self.0.upgrade() {
            d.from_mon(message);
        }
    }
}

/// Starts an OSD on the current `LocalSet`. It is up when the cluster map says so; see
/// [`OsdHandle::is_up`].
pub fn start(config: OsdConfig) -> LocalFuture<'static, Result<OsdHandle, StartError>> {
    Box::pin(begin(config))
}

async fn begin(config: OsdConfig) -> Result<OsdHandle, StartError> {
    let dev = Device::open(&config.device, config.engine, None)
        .map_err(|source| StartError::Device { path: config.device.clone(), source })?;
    let options = config.store.clone().with_budgets(settings::budgets(&config.conf));
    let store = Rc::new(Store::open(dev, options).await?);
    let own = superblock::load(&store).await?;
    if own.whoami != config.id || own.cluster != config.fsid {
        return Err(StartError::OtherOsd { found: own.whoami, cluster: own.cluster });
    }
    let id = config.id;
    let nonce = std::process::id() ^ (id.0 as u32).rotate_left(20) ^ wall_bits();
    let frame = begin_session(&config, nonce);
    let mon = frame.mon.clone();
    let inbound = Rc::new(Inbound(RefCell::new(Weak::new())));
    let cluster_ip = config.cluster_ip.filter(|ip| *ip != config.ip);
    let ends = listen(&config, cluster_ip, &frame, &inbound)?;
    let pings = Pings::new(
        id,
        nonce,
        frame.auth.clone(),
        mon.auth().clone(),
        (config.ip, cluster_ip),
        config.ports.clone(),
    )?;
    // The monitors take these for the OSD's addresses.
    mon.messenger().set_addrs(ends.addrs.clone());
    let net = Net::new(id, ends.for_peers().clone());
    let copies = Copies::new(mon.clone());
    copies.set_portion(config.conf.u64("osd_copyfrom_max_chunk"));
    let link = Rc::new(Link {
        mon: mon.clone(),
        epoch: Cell::new(own.current),
        map: RefCell::default(),
        wishes: RefCell::default(),
    });
    let (queue, news) = scheduler(&config);
    let mclock = admission::work::Queue::overrides_limits(&queue);
    let shard = Shard::new(Parts {
        whoami: id,
        store: store.clone(),
        net: net.clone(),
        mon: link.clone(),
        copies: copies.clone(),
        settings: settings::settings_under(&config.conf, mclock),
        queue: Box::new(queue),
    });
    let core = shard.starting();
    core.tracker.set_limits(settings::history(&config.conf));
    if let Some(learned) = superblock::load_learned(&store).await {
        core.restore_learned(&learned);
    }
    store.slow_down_device(settings::slowness(&config.conf));
    store.fail_some_requests(settings::faults(&config.conf));
    let map = load::load_groups(core, &store, &own).await?;
    if let Some(map) = &map {
        let shared: ClusterMapRef = map.clone();
        net.set_map(shared);
        copies.set_map(map.clone());
    }
    let d = Rc::new(Daemon {
        id,
        shard,
        store,
        frame,
        ends,
        net,
        copies,
        link,
        pings: pings.clone(),
        admin: RefCell::default(),
        superblock: RefCell::new(own),
        map: RefCell::new(map),
        metadata: config.metadata,
        life: Life::default(),
        manager: Default::default(),
        learned: Cell::default(),
        ignored: RefCell::default(),
        local: RefCell::default(),
        tasks: RefCell::default(),
    });
    *inbound.0.borrow_mut() = Rc::downgrade(&d);
    pings.attach(&d);
    *d.admin.borrow_mut() = Some(Rc::new(d.admin_commands()));
    d.run(news);
    mon.set_events(Rc::new(FromMon(Rc::downgrade(&d))));
    mon.subscribe("config", 0, false);
    mon.subscribe("mgrmap", 0, false);
    d.ask_for_maps();
    let ready = async {
        mon.wait_ready(PATIENCE).await?;
        mon.wait_rotating(PATIENCE).await
    };
    if let Err(e) = ready.await {
        d.stop().await?;
        return Err(e.into());
    }
    Ok(OsdHandle(d))
}

fn begin_session(config: &OsdConfig, nonce: u32) -> Frame {
    let id = config.id;
    let name = AuthName { kind: EntityType::OSD, id: id.to_string() };
    let mut keyring = Keyring::default();
    keyring.insert(name.clone(), EntityAuth { key: config.key.clone(), ..EntityAuth::default() });
    let session = MonConfig {
        name,
        entity: EntityName::osd(id.0),
        key: config.key.clone(),
        policy: config.policy.clone(),
        want: vec![EntityType::MON, EntityType::OSD, EntityType::MGR],
        mon_hosts: config.mon_hosts.clone(),
        nonce,
        hostname: config.metadata.get("hostname").cloned().unwrap_or_default(),
        rotating: None,
        policies: PolicySet::new(Policy::lossy_client()),
        limits: Limits::default(),
        timing: MON_TIMING,
    };
    Frame::new(Rc::new(RefCell::new(config.conf.clone())), keyring, session)
}

fn listen(
    config: &OsdConfig,
    cluster_ip: Option<IpAddr>,
    frame: &Frame,
    inbound: &Rc<Inbound>,
) -> Result<Ends, StartError> {
    let listen = |ip| -> Result<_, StartError> {
        let (messenger, addr) = frame.listen(
            EntityName::osd(config.id.0),
            PolicySet::new(Policy::stateless_server())
                .with(EntityType::OSD, Policy::lossless_peer())
                .with(EntityType::MGR, Policy::lossy_client()),
            Limits::default(),
            inbound.clone(),
            ip,
            config.ports.clone(),
        )?;
        Ok((messenger, EntityAddrVec::one(addr)))
    };
    let (messenger, addrs) = listen(config.ip)?;
    let (cluster_messenger, cluster_addrs) = match cluster_ip.map(listen).transpose()? {
        Some((messenger, addrs)) => (Some(messenger), addrs),
        None => (None, addrs.clone()),
    };
    Ok(Ends { messenger, cluster_messenger, addrs, cluster_addrs })
}

/// The scheduler, and what is notified when the manager should be told of demand.
fn scheduler(config: &OsdConfig) -> (OsdQueue, Rc<Notify>) {
    let kind = match store::dev::is_rotational(&config.device) {
        Some(true) => qos::DeviceKind::Hdd,
        _ => qos::DeviceKind::Ssd,
    };
    let queue = OsdQueue::on(kind, &config.conf, std::time::Instant::now());
    let news = Rc::new(Notify::new());
    let waker = news.clone();
    queue.news().wake_with(move || waker.notify_one());
    (queue, news)
}

/// Tells two starts of one process apart.
fn wall_bits() -> u32 {
    let since =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (since.as_nanos() >> 10) as u32 & 0x7fff_ffff
}

/// Tells the manager what images are asked for: when there is news, and regularly while some have
/// limits.
async fn tell_demand(daemon: Weak<Daemon>, news: Rc<Notify>) {
    loop {
        let Some(d) = daemon.upgrade() else { return };
        let shard = d.shard.clone();
        drop(d);
        let regularly = shard.ask(HasLimited).await;
        drop(shard);
        let heard = if regularly {
            tokio::time::timeout(DEMAND_PERIOD, news.notified()).await.is_ok()
        } else {
            news.notified().await;
            true
        };
        if heard {
            tokio::time::sleep(NEWS_PAUSE).await;
        }
        let Some(d) = daemon.upgrade().filter(|d| !d.life.stopping.get()) else { return };
        d.tell_demand().await;
    }
}

impl OsdHandle {
    /// The OSD's number.
    pub fn id(&self) -> OsdId {
        self.0.id
    }

    /// Where it listens.
    pub fn addrs(&self) -> &EntityAddrVec {
        &self.0.ends.addrs
    }

    /// Waits for the error that stops it.
    pub fn failure(&self) -> impl Future<Output = String> + use<> {
        let shard = self.0.shard.clone();
        async move { shard.failure().await }
    }

    /// Whether the cluster map says that this process is up.
    pub fn is_up(&self) -> bool {
        self.0.life.booted.get()
    }

    /// The error that stopped it, if one did.
    pub fn failed(&self) -> Option<String> {
        self.0.shard.failed()
    }

    /// Runs an admin command, a JSON object with `prefix`: return code, status, output.
    pub fn admin_command(&self, json: String) -> LocalFuture<'static, AnswerParts> {
        let admin = self.0.admin.borrow().clone();
        Box::pin(async move {
            match admin {
                Some(a) => a.run(&json).await,
                None => (
                    types::Errno::ESHUTDOWN.as_result(),
                    "the OSD is stopping".into(),
                    Bytes::new(),
                ),
            }
        })
    }

    /// Tells the monitors, stops serving, and closes the store.
    pub fn shutdown(self) -> LocalFuture<'static, Result<(), StoreError>> {
        Box::pin(async move { self.0.stop().await })
    }
}

impl Daemon {
    fn state(&self) -> &'static str {
        match (self.life.stopping.get(), self.life.booted.get()) {
            (true, _) => "stopping",
            (_, true) => "active",
            _ if self.life.unhealthy.get() => "waiting_for_healthy",
            _ => "booting",
        }
    }

    /// The newest map that is here, 0 without one.
    fn epoch(&self) -> Epoch {
        self.map.borrow().as_ref().map_or(Epoch(0), |m| m.epoch())
    }

    /// Asks the monitors for the newest map, and waits until it holds here.
    async fn latest_map(&self) -> Result<(), String> {
        let (newest, _) = self.frame.mon.get_version("osdmap").await.map_err(|e| e.to_string())?;
        let newest = Epoch(u32::try_from(newest).unwrap_or(u32::MAX));
        while self.epoch() < newest {
            self.link.want_map(newest);
            tokio::time::sleep(MAP_LOOK).await;
        }
        Ok(())
    }

    /// What operators can ask.
    fn admin_commands(self: &Rc<Self>) -> Admin {
        let own = self.superblock.borrow();
        let (w1, w2) = (Rc::downgrade(self), Rc::downgrade(self));
        let (w3, w4) = (Rc::downgrade(self), Rc::downgrade(self));
        let (w5, w6, copies) = (Rc::downgrade(self), Rc::downgrade(self), self.copies.clone());
        let maps = move || {
            let d = w2.upgrade();
            d.map_or_else(Default::default, |d| (d.superblock.borrow().oldest, d.epoch()))
        };
        Admin {
            whoami: self.id,
            shard: self.shard.clone(),
            conf: self.frame.conf.clone(),
            cluster: own.cluster,
            osd_fsid: own.osd,
            changed: Box::new(move || w1.upgrade().into_iter().for_each(|d| d.conf_changed())),
            ping_times: Box::new(move || {
                w3.upgrade().map_or_else(Default::default, |d| d.pings.beats.borrow().times())
            }),
            requests: Box::new(move || copies.in_flight()),
            maps: Box::new(maps),
            latest_map: Box::new(move || {
                let daemon = w6.upgrade();
                Box::pin(async move {
                    match daemon {
                        Some(d) => d.latest_map().await,
                        None => Err("the OSD stops".to_owned()),
                    }
                })
            }),
            devices: devices(&self.metadata),
            flush_stats: Box::new(move || w5.upgrade().map(|d| d.flush_stats())),
            state: Box::new(move || w4.upgrade().map_or("stopping", |d| d.state())),
        }
    }

    fn run(self: &Rc<Self>, demand_news: Rc<Notify>) {
        let (local, mut inbox) = LocalPeer::register(self.ends.cluster_addrs.clone());
        *self.local.borrow_mut() = Some(local);
        let shard = self.shard.downgrade();
        let peers = tokio::task::spawn_local(async move {
            while let Some(e) = inbox.recv().await {
                let Some(shard) = shard.upgrade() else { return };
                shard.send(ShardMsg::Peer(Box::new(e)));
            }
        });
        let (weak, shard) = (Rc::downgrade(self), self.shard.downgrade());
        let news = tokio::task::spawn_local(async move {
            while let Some(shard) = shard.upgrade() {
                shard.pgs_change().await;
                // PGs change together: one report for all.
                tokio::time::sleep(REPORT_PAUSE).await;
                let Some(d) = weak.upgrade() else { return };
                d.report(false);
            }
        });
        let (weak, shard) = (Rc::downgrade(self), self.shard.downgrade());
        let clients = tokio::task::spawn_local(async move {
            while let Some(shard) = shard.upgrade() {
                let clients = shard.clients_to_tell().await;
                let Some(d) = weak.upgrade() else { return };
                for (sink, sent, must) in clients {
                    d.send_maps(&sink, sent, must);
                }
            }
        });
        let weak = Rc::downgrade(self);
        let ticks = tokio::task::spawn_local(async move {
            let mut clock = tokio::time::interval(TICK);
            clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut n = 0u64;
            loop {
                clock.tick().await;
                let Some(d) = weak.upgrade() else { return };
                if d.life.stopping.get() {
                    return;
                }
                d.tick(n).await;
                n += 1;
            }
        });
        let demand = tokio::task::spawn_local(tell_demand(Rc::downgrade(self), demand_news));
        let work = tokio::task::spawn_local(self.shard.run());
        let reports = tokio::task::spawn_local(Daemon::run_reports(Rc::downgrade(self)));
        let shard = self.shard.downgrade();
        let counters = move || {
            let shard = shard.clone();
            async move {
                match shard.upgrade() {
                    Some(shard) => shard.ask(Metrics).await,
                    None => Default::default(),
                }
            }
        };
        let (conf, name) = (Rc::downgrade(&self.frame.conf), format!("osd.{}", self.id));
        let metrics = tokio::task::spawn_local(daemon_frame::metrics::serve(conf, name, counters));
        let all = [peers, news, clients, ticks, demand, work, reports, metrics];
        self.tasks.borrow_mut().extend(all);
    }

    async fn tick(self: &Rc<Self>, n: u64) {
        let every = |option: &str| {
            let ms = (self.frame.conf.borrow().f64(option) * 1000.0) as u64;
            n.is_multiple_of((ms / TICK.as_millis() as u64).max(1))
        };
        if !self.life.booted.get() && n.is_multiple_of(4) {
            self.ask_for_maps();
            self.try_boot();
        }
        let period = self
            .manager
            .stats_period
            .get()
            .map_or(0, |s| u64::from(s) * 1000 / TICK.as_millis() as u64);
        let due =
            if period > 0 { n.is_multiple_of(period) } else { every("osd_mon_report_interval") };
        self.pings.round(self);
        self.check_fullness();
        let now = std::time::Instant::now();
        self.shard.send(ShardMsg::Tick { now, scrubs: self.life.booted.get() });
        if n % LEARNED_EVERY == LEARNED_EVERY - 1 {
            self.keep_learned().await;
        }
        if n.is_multiple_of(2) || due {
            self.report(due);
        }
        if self.life.booted.get() && n > 0 && every("osd_beacon_report_interval") {
            let (pgs, min_last_epoch_clean) = self.shard.ask(LastEpochClean).await;
            self.frame.mon.send_payload(&OsdBeacon {
                paxos: Paxos(self.epoch().0.into()),
                pgs,
                min_last_epoch_clean,
                report_interval: self.frame.conf.borrow().i64("osd_beacon_report_interval") as i32,
                ..OsdBeacon::default()
            });
        }
    }

    /// Tells the monitors how full the store is, until the map says the same.
    fn check_fullness(&self) {
        let Some(map) = self.map.borrow().clone() else { return };
        let failsafe = self.frame.conf.borrow().f64("osd_failsafe_full_ratio");
        let level = Fullness::of(&self.store.statfs(), map.osd_map(), failsafe);
        let wanted = level.bit();
        if self.life.booted.get()
            && map.osd_map().osd(self.id).is_some_and(|o| o.state & fullness::BITS != wanted)
        {
            self.frame.mon.send_payload(&OsdFull {
                paxos: Paxos(map.epoch().0.into()),
                map_epoch: map.epoch(),
                state: wanted,
            });
        }
        self.shard.send(ShardMsg::Full {
            failsafe: fullness::failsafe_ratio(map.osd_map(), failsafe),
            backfillfull: fullness::backfillfull_ratio(map.osd_map(), failsafe),
        });
    }

    /// Keeps what was learned of costs and capacity, if there is anything new. It does not matter
    /// if that fails.
    async fn keep_learned(&self) {
        let Some((learned, news)) = self.shard.ask(WhatWasLearned).await else { return };
        if self.learned.replace(news) == news || self.store.congested() {
            return;
        }
        let mut t = store::Transaction::new();
        superblock::put_learned(&mut t, &learned);
        if let Err(e) = self.store.submit(t) {
            tracing::debug!("what was learned of costs is not kept: {e}");
        }
    }

    /// Says what is set and does not hold under this scheduler, when that has changed.
    async fn tell_ignored(&self, conf: Box<Config>) {
        let ignored = self.shard.ask(NotHonoured(conf)).await;
        let mut news: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for i in ignored.iter().filter(|i| !self.ignored.borrow().contains(i)) {
            news.entry(i.why.clone()).or_default().push(format!("{} = {}", i.name, i.value));
        }
        *self.ignored.borrow_mut() = ignored;
        for (why, settings) in news {
            let text = format!("ignored: {}: {why}", settings.join(", "));
            tracing::warn!(osd = self.id.0, "{text}");
            self.frame.mon.log(LogPriority::WARN, "cluster", text);
        }
    }

    fn conf_changed(self: &Rc<Self>) {
        let conf = self.frame.conf.borrow();
        let boxed = Box::new(conf.clone());
        self.shard
            .send(ShardMsg::Configure { conf: boxed.clone(), booted: self.life.booted.get() });
        let d = self.clone();
        tokio::task::spawn_local(async move { d.tell_ignored(boxed).await });
        self.copies.set_portion(conf.u64("osd_copyfrom_max_chunk"));
        self.store.set_budgets(settings::budgets(&conf));
        self.store.slow_down_device(settings::slowness(&conf));
        self.store.fail_some_requests(settings::faults(&conf));
        self.frame.apply_auth_settings();
    }

    async fn stop(self: &Rc<Self>) -> Result<(), StoreError> {
        if self.life.stopping.replace(true) {
            return Ok(());
        }
        // What is said next means that no read is answered any more.
        self.shard.send(ShardMsg::Seal);
        if self.life.booted.get() {
            self.frame.mon.send_payload(&OsdMarkMeDown {
                paxos: Paxos(self.epoch().0.into()),
                fsid: self.superblock.borrow().cluster,
                target: self.id,
                target_addrs: self.ends.addrs.clone(),
                epoch: self.epoch(),
                request_ack: false,
            });
            // The message leaves with the next turn of the event loop.
            tokio::task::yield_now().await;
        }
        for t in self.tasks.borrow_mut().drain(..) {
            t.abort();
        }
        *self.local.borrow_mut() = None;
        *self.admin.borrow_mut() = None;
        self.ends.messenger.shutdown();
        if let Some(cluster) = &self.ends.cluster_messenger {
            cluster.shutdown();
        }
        self.pings.shutdown();
        self.copies.shutdown();
        self.frame.mon.shutdown();
        self.keep_learned().await;
        let mut closed = self.store.last_commit().await;
        if closed.is_ok() {
            // So that the next start finds nothing to replay.
            closed = self.store.checkpoint().await;
        }
        self.shard.send(ShardMsg::Clear);
        closed
    }
}
