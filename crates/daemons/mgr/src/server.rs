//! The manager's sessions: monitors (a client end), OSDs that report, clients that give commands.

use crate::autoscaler;
use crate::commands::{self, Done};
use crate::prometheus;
use crate::qos::Resolver;
use crate::rbd::RbdSupport;
use crate::services::Registration;
use crate::state::MgrState;
use crate::telemetry;
use crate::volumes::Volumes;
use auth::caps::{MgrCap, MgrOp, Perm};
use bytes::Bytes;
use caller::{Caller, caps_of, gid_of, is_mds};
use client::{MonClient, MonConfig, MonEvents, Objecter, wall_clock};
use command::{Format, Refusal, Shape};
use daemon_frame::commands::{
    AnswerParts, Counter, config_get, config_show, parts, perf_dump, perf_schema, version,
};
use daemon_frame::threads::{self, Daemon, MakeOptions, Service};
use daemon_frame::{Frame, Options, StartError, send, version_facts};
use denc::Decode;
use messages::{
    AnyMessage, Command, CommandReply, FsMapMsg, MgrCommand, MgrCommandReply, MgrConfigure,
    MgrMapMsg, MgrOpen, MgrReport, OsdForceRecovery, OsdScrub, Payload, QosSeen, QosShares,
    ServiceMapMsg,
};
use metrics::serve_metrics;
use msgr::{Connection, Dispatcher, Limits, Message, Messenger, Policy, PolicySet, ReceiveGuard};
use pgmap::PingLimits;
use pgmap::health::ScrubLimits;
use promises::Tenants;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use types::{EntityAddr, EntityName, EntityType, FsMap, MgrMap, OsdId, ServiceMap, ShardId, SpgId};

mod autoscale;
mod balance;
mod caller;
mod clients;
mod crashes;
mod health;
mod metrics;
mod standby;

/// The shortest pause between two digests: news from many OSDs goes to the monitors together.
const DIGEST_PAUSE: Duration = Duration::from_millis(100);
/// How often limits of images are divided anew.
const LIMITS_PERIOD: Duration = Duration::from_millis(100);
/// How often specifications are looked for while there is nothing to divide.
const SPECS_PERIOD: Duration = Duration::from_secs(1);
/// The shortest pause between two times.
const LIMITS_PAUSE: Duration = Duration::from_millis(5);

/// A running manager.
pub struct Manager {
    inner: Rc<Inner>,
}

/// What a manager is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It waits for the place of the active one.
    Waits,
    /// It is the active one, under this global id.
    Serves(u64),
    /// It was the active one, or the cluster has shut it out.
    Replaced,
}

struct Inner {
    frame: Frame,
    role: Cell<Role>,
    /// It is not the active one any more.
    replaced: Notify,
    ip: IpAddr,
    objecter: Objecter,
    messenger: RefCell<Option<Rc<Messenger>>>,
    state: RefCell<MgrState>,
    rbd: RefCell<Option<Rc<RbdSupport>>>,
    volumes: RefCell<Option<Rc<Volumes>>>,
    metadata: BTreeMap<String, String>,
    /// For the monitors, which describe these commands to clients.
    descriptions: Bytes,
    /// The connections of daemons and clients that opened a session, and how often they were told
    /// to report.
    opened: RefCell<Vec<Rc<Connection>>>,
    told_period: Cell<u32>,
    /// The connections on which OSDs report.
    osds: RefCell<BTreeMap<OsdId, Rc<Connection>>>,
    /// Tenants that are promised something.
    tenants: RefCell<Tenants>,
    resolver: RefCell<Option<Rc<Resolver>>>,
    /// What clients of file systems count.
    clients: Rc<crate::client_stats::Kept>,
    /// Modules that are enabled.
    modules: RefCell<BTreeSet<String>>,
    /// What classes and tenants got.
    seen: RefCell<prometheus::tenants::Tenants>,
    /// Where metrics are served, as URL.
    metrics_url: RefCell<Option<String>>,
    /// Modules or configuration have changed.
    settings: Notify,
    /// There is something about limits and promises that does not wait for the next round.
    limits: Rc<Notify>,
    /// The newest map of services of the monitors.
    service_map: RefCell<Option<ServiceMap>>,
    /// Counts the sessions with monitors.
    mon_sessions: Cell<u64>,
    /// Something changed that the monitors should hear of.
    news: Notify,
    stopping: Cell<bool>,
}

/// Passes on what the monitors send.
struct FromMon(Weak<Inner>);

impl MonEvents for FromMon {
    fn on_session(&self) {
        if let Some(m) = self.0.upgrade() {
            m.mon_sessions.set(m.mon_sessions.get() + 1);
            m.news.notify_one();
        }
    }

    fn on_message(&self, message: Message) {
        let Some(m) = self.0.upgrade() else { return };
        m.objecter.handle_mon_message(&message);
        m.follow_map();
        m.follow_blocklist();
        if m.frame.configure(&message) {
            m.apply_balancer_settings();
            m.tell_period();
            m.settings.notify_one();
        }
        if message.msg_type == ServiceMapMsg::TYPE
            && let Ok(Ok(map)) =
                ServiceMapMsg::decode(&message).map(|m| ServiceMap::from_bytes(&m.map.0))
        {
            m.frame.mon.got("servicemap", map.epoch.0.into());
            m.service_map.replace(Some(map.clone()));
            if m.role.get() != Role::Waits {
                m.state.borrow_mut().services.learn(map, wall_clock());
            }
        }
        if message.msg_type == FsMapMsg::TYPE
            && let Ok(Ok(map)) = FsMapMsg::decode(&message).map(|m| FsMap::from_bytes(&m.map.0))
        {
            m.frame.mon.got("fsmap", map.epoch.0.into());
            m.state.borrow_mut().handle_fs_map(map);
            m.follow_file_systems();
        }
        if message.msg_type == MgrCommand::TYPE {
            m.from_monitor(&message);
        }
        if message.msg_type == MgrMapMsg::TYPE
            && let Ok(Ok(map)) = MgrMapMsg::decode(&message).map(|m| MgrMap::from_bytes(&m.map.0))
        {
            m.frame.mon.got("mgrmap", map.epoch.0.into());
            if m.modules.replace(map.modules.clone()) != map.modules {
                m.settings.notify_one();
            }
            m.follow_managers(&map);
        }
    }
}

/// Serves OSDs and clients.
struct Sessions(Weak<Inner>);

impl Dispatcher for Sessions {
    fn on_message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        if let Some(m) = self.0.upgrade() {
            m.handle(conn, &message);
        }
        drop(guard);
    }
}

impl Manager {
    /// Starts a manager on the current `LocalSet`. When this returns it is known where it listens,
    /// and it serves as soon as the monitors choose it.
    async fn start(options: Options) -> Result<Manager, StartError> {
        let mon_config = MonConfig::new(&options.cluster);
        let frame = Frame::new(options.conf, options.keyring, mon_config);
        frame.apply_auth_settings();
        let mon = frame.mon.clone();
        let objecter = Objecter::new(mon.clone());
        let inner = Rc::new(Inner {
            frame,
            role: Cell::new(Role::Waits),
            replaced: Notify::new(),
            ip: options.ip,
            objecter,
            messenger: RefCell::new(None),
            state: RefCell::new(MgrState::default()),
            rbd: RefCell::new(None),
            volumes: RefCell::new(None),
            metadata: metadata(options.ip, options.metadata),
            descriptions: Format::Json.json(&descriptions()),
            opened: RefCell::default(),
            told_period: Cell::new(0),
            osds: RefCell::default(),
            tenants: RefCell::default(),
            resolver: RefCell::default(),
            clients: Rc::default(),
            modules: RefCell::default(),
            seen: RefCell::default(),
            metrics_url: RefCell::default(),
            settings: Notify::new(),
            limits: Rc::default(),
            service_map: RefCell::default(),
            mon_sessions: Cell::new(0),
            news: Notify::new(),
            stopping: Cell::new(false),
        });
        mon.set_events(Rc::new(FromMon(Rc::downgrade(&inner))));
        mon.subscribe("config", 0, false);
        mon.subscribe("osdmap", 0, false);
        mon.subscribe("mgrmap", 0, false);
        mon.subscribe("servicemap", 0, false);
        mon.subscribe("fsmap", 0, false);
        mon.wait_ready(Duration::from_secs(30)).await?;
        let (messenger, _) = inner.frame.listen(
            EntityName::new(EntityType::MGR, mon.global_id() as i64),
            PolicySet::new(Policy::stateless_server()),
            Limits::default(),
            Rc::new(Sessions(Rc::downgrade(&inner))),
            options.ip,
            options.ports,
        )?;
        *inner.messenger.borrow_mut() = Some(messenger);
        inner.follow_map();
        tokio::task::spawn_local(report(Rc::downgrade(&inner)));
        inner.news.notify_one();
        Ok(Manager { inner })
    }
}

/// A manager with a thread of its own and an admin socket at `socket`.
pub fn daemon(name: String, socket: PathBuf, options: MakeOptions) -> Daemon {
    Box::new(move |stop, ready| {
        Box::pin(async move {
            threads::serve(&name, &socket, stop, ready, options, Manager::start).await
        })
    })
}

impl Service for Manager {
    async fn admin_command(&self, json: &str) -> AnswerParts {
        let done = self.inner.tell(&[json.to_string()], &Bytes::new());
        let (answered, was_told) = tokio::sync::oneshot::channel();
        self.inner.finish(done, |a| drop(answered.send(a)));
        let stopped = || Err(Refusal::new(types::errno::Errno::EAGAIN, "the manager stops"));
        parts(was_told.await.unwrap_or_else(|_| stopped()))
    }

    /// Waits until another manager has taken this one's place, or OSDs refuse this one. It has to
    /// be started anew, under another address.
    async fn ended(&self) -> String {
        while self.inner.role.get() != Role::Replaced {
            self.inner.replaced.notified().await;
        }
        match self.inner.objecter.is_blocklisted() {
            true => "its address is on the blocklist".to_owned(),
            false => "another manager has its place".to_owned(),
        }
    }

    async fn shutdown(&self) {
        self.leave();
    }

    fn leave(&self) {
        self.inner.stopping.set(true);
        self.inner.news.notify_one();
        self.inner.limits.notify_one();
        self.inner.settings.notify_one();
        self.inner.clients.asked.notify_one();
        if let Some(m) = self.inner.messenger.borrow_mut().take() {
            m.shutdown();
        }
        if let Some(rbd) = self.inner.rbd.borrow_mut().take() {
            rbd.shutdown();
        }
        if let Some(volumes) = self.inner.volumes.borrow_mut().take() {
            volumes.shutdown();
        }
        self.inner.objecter.shutdown();
        self.inner.frame.mon.shutdown();
    }
}

/// Sends digests: at once when there is news, and at least every `mgr_tick_period`. A manager
/// that waits only says that it lives.
async fn report(inner: Weak<Inner>) {
    loop {
        let Some(m) = inner.upgrade() else { return };
        if m.stopping.get() {
            return;
        }
        if m.serves() {
            m.send_digest();
        } else if m.role.get() == Role::Waits {
            // OSDs refuse a manager that was replaced: it must not be chosen again under the same
            // global id.
            m.send_beacon();
        }
        let period = Duration::from_secs(m.frame.conf.borrow().u64("mgr_tick_period"));
        tokio::time::sleep(DIGEST_PAUSE).await;
        let _ = tokio::time::timeout(period, m.news.notified()).await;
    }
}

/// Reads the limits of images and the promises to tenants and divides them over OSDs, while there
/// are any.
async fn split_limits(inner: Weak<Inner>) {
    loop {
        let Some(m) = inner.upgrade() else { return };
        let Some(rbd) = m.rbd.borrow().clone() else { return };
        let limits = m.limits.clone();
        if m.stopping.get() {
            return;
        }
        let news = limits.clone();
        rbd.read_settings(move || news.notify_one());
        m.read_specifications();
        let idle = m.split_limits(&rbd);
        drop((m, rbd));
        // News of many images goes together.
        tokio::time::sleep(LIMITS_PAUSE).await;
        if idle {
            // Only new specifications come without notice.
            let _ = tokio::time::timeout(SPECS_PERIOD, limits.notified()).await;
        } else {
            let _ = tokio::time::timeout(LIMITS_PERIOD, limits.notified()).await;
        }
    }
}

impl Inner {
    /// What the images did of the pools that an operator wants to see them of.
    async fn image_sums(&self) -> Vec<prometheus::cluster::ImageSums> {
        let wanted = self.frame.conf.borrow().str("mgr/prometheus/rbd_stats_pools");
        let rbd = self.rbd.borrow().clone();
        let Some(rbd) = rbd.filter(|_| !wanted.is_empty()) else { return Vec::new() };
        let mut all = Vec::new();
        for spec in wanted.split([',', ' ']).filter(|s| !s.is_empty()) {
            let Ok(key) = crate::rbd::spec::pool_key(if spec == "*" { "" } else { spec }) else {
                tracing::debug!("mgr/prometheus/rbd_stats_pools: {spec} is no pool or namespace");
                continue;
            };
            let kind = crate::rbd::perf::Kind::Counters;
            if let Ok(report) = rbd.perf_report(&key, kind, "write_ops").await {
                all.extend(prometheus::cluster::image_sums(&report));
            }
        }
        all.sort_by(|a, b| {
            (&a.pool, &a.namespace, &a.image).cmp(&(&b.pool, &b.namespace, &b.image))
        });
        all.dedup_by(|a, b| (&a.pool, &a.namespace, &a.image) == (&b.pool, &b.namespace, &b.image));
        all
    }

    /// Reads specifications if it is time to.
    fn read_specifications(self: &Rc<Self>) {
        let Some(resolver) = self.resolver.borrow().clone() else { return };
        if !self.tenants.borrow_mut().due(wall_clock().as_secs_f64()) {
            return;
        }
        let weak = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let read = resolver.read().await;
            let Some(m) = weak.upgrade() else { return };
            let resolved = read.inspect_err(|e| tracing::debug!("specifications: {e}")).ok();
            if m.tenants.borrow_mut().take(resolved, wall_clock().as_secs_f64()) {
                m.limits.notify_one();
            }
        });
    }

    /// Tells OSDs their parts of limits and promises; whether there are none.
    fn split_limits(&self, rbd: &RbdSupport) -> bool {
        let mut ceilings = rbd.ceilings.borrow_mut();
        let now = wall_clock().as_secs_f64();
        let mut told = ceilings.round(now, |pool| self.state.borrow().primaries(pool));
        let osds = self.osds.borrow();
        let mut tenants = self.tenants.borrow_mut();
        let here = osds.iter().filter(|(_, c)| !c.is_down()).map(|(osd, _)| *osd).collect();
        for (osd, shares) in tenants.round(now, &here, |pool| self.state.borrow().serving(pool)) {
            let images = told.remove(&osd).map(|m| m.images).unwrap_or_default();
            told.insert(osd, QosShares { images, ..shares });
        }
        for (osd, shares) in told {
            if let Some(conn) = osds.get(&osd) {
                conn.send(shares.encode(conn.features()));
            }
        }
        ceilings.is_empty() && tenants.is_empty()
    }

    /// Whether a message's sender is that OSD; then this is the connection for answers.
    fn is_osd(&self, conn: &Rc<Connection>, osd: OsdId) -> bool {
        // Only an OSD knows its own state.
        let is = conn.peer_name() == EntityName::new(EntityType::OSD, i64::from(osd.0))
            && conn.auth_name().is_some_and(|n| n.kind == EntityType::OSD);
        if is && !self.osds.borrow().get(&osd).is_some_and(|c| Rc::ptr_eq(c, conn)) {
            let mut osds = self.osds.borrow_mut();
            osds.retain(|_, c| !c.is_down());
            osds.insert(osd, conn.clone());
            if let Some(rbd) = &*self.rbd.borrow() {
                rbd.ceilings.borrow_mut().forget_told(osd);
            }
            self.tenants.borrow_mut().forget_told(osd);
            // Clients may be there before it.
            self.limits.notify_one();
            send(conn, &self.wanted_reports(conn), 0);
        }
        is
    }

    fn wanted_reports(&self, conn: &Connection) -> MgrConfigure {
        MgrConfigure {
            stats_period: self.stats_period(),
            stats_threshold: 5,
            client_queries: self.client_queries(conn),
        }
    }

    fn stats_period(&self) -> u32 {
        self.frame.conf.borrow().u64("mgr_stats_period") as u32
    }

    /// Tells all daemons that report how often to, if that has changed.
    fn tell_period(&self) {
        let period = self.stats_period();
        if self.told_period.replace(period) == period {
            return;
        }
        self.opened.borrow_mut().retain(|c| !c.is_down());
        for conn in
            self.opened.borrow().iter().chain(self.osds.borrow().values()).filter(|c| !c.is_down())
        {
            send(conn, &self.wanted_reports(conn), 0);
        }
    }

    fn follow_map(&self) {
        let Some(map) = self.objecter.map() else { return };
        let mut state = self.state.borrow_mut();
        if map.epoch > state.epoch() {
            let up = map.osd_ids().into_iter().filter(|osd| map.is_up(*osd)).collect();
            state.handle_osd_map(map, wall_clock());
            drop(state);
            self.tenants.borrow_mut().map_changed(up);
            self.limits.notify_one();
            if self.role.get() != Role::Waits {
                self.news.notify_one();
            }
        }
    }

    fn send_digest(&self) {
        let Some(messenger) = self.messenger.borrow().clone() else { return };
        let mut state = self.state.borrow_mut();
        let conf = self.frame.conf.borrow();
        state.scrub_limits = ScrubLimits {
            max_interval: conf.f64("osd_scrub_max_interval"),
            late: conf.f64("mon_warn_pg_not_scrubbed_ratio"),
            deep_interval: conf.f64("osd_deep_scrub_interval"),
            deep_late: conf.f64("mon_warn_pg_not_deep_scrubbed_ratio"),
            repaired: conf.u64("mon_osd_warn_num_repaired"),
        };
        let grace = conf.u64("osd_heartbeat_grace");
        let slow = match conf.f64("mon_warn_on_slow_ping_time") {
            0.0 => grace as f64 * 1_000_000.0 * conf.f64("mon_warn_on_slow_ping_ratio"),
            ms => ms * 1000.0,
        };
        state.ping_limits = PingLimits { slow, old: u32::try_from(grace * 60).unwrap_or(u32::MAX) };
        drop(conf);
        state.goals = self.goals();
        let grace = self.frame.conf.borrow().u64("mgr_service_beacon_grace");
        state.services.prune(wall_clock(), Duration::from_secs(grace));
        {
            let conf = self.frame.conf.borrow();
            state.telemetry = telemetry::Settings::read(&conf);
            state.progress.on = conf.bool("mgr/progress/enabled");
        }
        state.crash_recent = self.frame.conf.borrow().u64("mgr/crash/warn_recent_interval");
        state.refresh(wall_clock());
        if let Some(map) = state.osd_map.clone() {
            let proposals = commands::proposals(&state, &map, state.goals);
            state.health.checks.extend(autoscaler::checks(&proposals).checks);
        }
        let mut message = state.digest_message();
        message.gid = self.frame.mon.global_id();
        message.name = self.frame.name.clone();
        message.addrs = messenger.addrs();
        message.metadata = self.metadata.clone();
        message.commands = self.descriptions.clone();
        message.session = self.mon_sessions.get();
        if let Some(map) = state.services.unsaved() {
            message.service_map = denc::Encode::to_bytes(map, denc::Features::ALL);
        }
        if let Some(url) = &*self.metrics_url.borrow() {
            message.services.insert(prometheus::MODULE.to_owned(), url.clone());
        }
        self.frame.mon.send_payload(&message);
    }

    fn handle(self: &Rc<Self>, conn: &Rc<Connection>, message: &Message) {
        let any = match AnyMessage::decode(message) {
            Ok(any) => any,
            Err(e) => {
                tracing::warn!("message from {}: {e}", conn.peer_name());
                conn.mark_down();
                return;
            }
        };
        // No peer is sent here while another serves, but a peer may have an older map.
        if !matches!(self.role.get(), Role::Serves(_)) && !matches!(any, AnyMessage::Command(_)) {
            return;
        }
        match any {
            AnyMessage::OsdStatsReport(r) => {
                if self.is_osd(conn, r.osd)
                    && self.state.borrow_mut().handle_report(&r, wall_clock())
                {
                    if let Some(rbd) = &*self.rbd.borrow() {
                        rbd.perf.borrow_mut().handle_report(&r.images);
                    }
                    if let Ok(seen) = QosSeen::from_bytes(&r.qos) {
                        self.state.borrow_mut().clients.take(&seen.latencies);
                        let most =
                            self.frame.conf.borrow().u64("mgr/prometheus/qos_tenants") as usize;
                        self.seen.borrow_mut().take(r.osd, seen, most, wall_clock().as_secs_f64());
                    }
                    self.news.notify_one();
                }
            }
            AnyMessage::QosDemand(d) => {
                if self.is_osd(conn, d.osd)
                    && let Some(rbd) = &*self.rbd.borrow()
                {
                    let now = wall_clock().as_secs_f64();
                    let images = rbd.ceilings.borrow_mut().handle_demand(d.osd, &d.images, now);
                    let tenants = self.tenants.borrow_mut().handle_demand(d.osd, &d.tenants, now);
                    if images || tenants {
                        self.limits.notify_one();
                    }
                }
            }
            AnyMessage::MgrOpen(m) => {
                if is_mds(conn, &m.daemon_name) {
                    self.state.borrow_mut().counters.open(&m.daemon_name);
                    self.clients.stats.borrow_mut().open(&m.daemon_name);
                }
                self.register_service(conn, &m);
                send(conn, &self.wanted_reports(conn), 0);
                let mut opened = self.opened.borrow_mut();
                opened.retain(|c| !c.is_down() && !Rc::ptr_eq(c, conn));
                opened.push(conn.clone());
            }
            AnyMessage::MgrReport(m) if is_mds(conn, &m.daemon_name) => {
                let counters = self.state.borrow_mut().counters.report(&m, wall_clock());
                if let Err(e) = counters.and(self.clients_told(&m)) {
                    tracing::warn!("a report of {} cannot be read: {e}", conn.peer_name());
                }
            }
            AnyMessage::MgrReport(m) => self.service_report(conn, &m),
            AnyMessage::MgrClose(m) => {
                let gid = gid_of(conn);
                let mut state = self.state.borrow_mut();
                state.services.close(&m.service_name, &m.daemon_name, gid, wall_clock());
                self.news.notify_one();
                // The client waits for it to come back.
                send(conn, &m, 0);
            }
            AnyMessage::MgrCommand(c) => {
                let (tid, conn) = (message.tid, conn.clone());
                let caller = Caller::of(&conn);
                self.serve_command(&caller, c, move |a| {
                    let (result, status, output) = parts(a);
                    send(&conn, &MgrCommandReply { result, status, output }, tid);
                });
            }
            AnyMessage::Command(c) => {
                let (tid, conn) = (message.tid, conn.clone());
                self.finish(self.tell_from(&conn, &c), move |a| {
                    let (result, status, output) = parts(a);
                    send(&conn, &CommandReply { result, status, output }, tid);
                });
            }
            _ => tracing::debug!(
                "unexpected message of type {} from {}",
                message.msg_type,
                conn.peer_name()
            ),
        }
    }

    /// A client that opens a session may be a daemon of a service.
    fn register_service(&self, conn: &Connection, m: &MgrOpen) {
        let Some((metadata, status)) = &m.service else { return };
        let said = conn.peer_addrs().msgr2();
        let addr = match conn.peer_socket_addr() {
            Some(socket) if said.is_blank_ip() => EntityAddr::msgr2(socket, said.nonce),
            _ => said,
        };
        let registration = Registration {
            service: &m.service_name,
            daemon: &m.daemon_name,
            gid: gid_of(conn),
            addr,
            metadata,
            status,
        };
        match self.state.borrow_mut().services.register(&registration, wall_clock()) {
            Ok(()) => self.news.notify_one(),
            Err(e) => tracing::warn!("{} cannot register: {e}", conn.peer_name()),
        }
    }

    fn service_report(&self, conn: &Connection, m: &MgrReport) {
        let mut state = self.state.borrow_mut();
        let known = state.services.report(
            &m.service_name,
            &m.daemon_name,
            gid_of(conn),
            m.daemon_status.as_ref(),
            m.task_status.as_ref(),
            wall_clock(),
        );
        if known && state.services.unsaved().is_some() {
            self.news.notify_one();
        }
    }

    /// A command that a client gave to a monitor. The monitor has looked at the client's
    /// capabilities, and has all itself.
    fn from_monitor(self: &Rc<Self>, message: &Message) {
        let c = match MgrCommand::decode(message) {
            Ok(c) => c,
            Err(e) => return tracing::warn!("a command that a monitor handed on: {e}"),
        };
        let (weak, tid) = (Rc::downgrade(self), message.tid);
        let reply = move |a| {
            let Some(m) = weak.upgrade() else { return };
            let (result, status, output) = parts(a);
            let reply = MgrCommandReply { result, status, output };
            let mut message = reply.encode(types::features::SUPPORTED);
            message.tid = tid;
            m.frame.mon.send(message);
        };
        if !self.serves() {
            let refusal =
                Refusal::new(types::errno::Errno::EAGAIN, "this manager is not the active one");
            return reply(Err(refusal));
        }
        self.serve_command(&Caller { caps: MgrCap::allow_all(), addr: None }, c, reply);
    }

    /// Runs a command of a client, and answers it now or later.
    fn serve_command(
        self: &Rc<Self>,
        caller: &Caller,
        c: MgrCommand,
        reply: impl FnOnce(commands::Answer) + 'static,
    ) {
        let shape = match command::Args::parse(&c.cmd).map(|args| Shape::of(&args)) {
            Ok(Ok(shape)) => shape,
            Ok(Err(refusal)) => return reply(Err(refusal)),
            // Refused below, with its reason.
            Err(_) => Shape::AsIs,
        };
        let reply = move |a: commands::Answer| reply(a.map(|r| shape.apply(r)));
        match self.ask_rbd(caller, &c.cmd).or_else(|| self.ask_fs(caller, &c.cmd)) {
            None => self.finish(self.command(caller, &c), reply),
            Some(Err(refusal)) => reply(Err(refusal)),
            Some(Ok(later)) => {
                drop(tokio::task::spawn_local(async move { reply(later.await) }));
            }
        }
    }

    /// Answers a command, now or when the monitors have.
    fn finish(
        self: &Rc<Self>,
        done: Result<Done, Refusal>,
        reply: impl FnOnce(commands::Answer) + 'static,
    ) {
        match done {
            Ok(Done::Answered(r)) => reply(Ok(r)),
            Err(e) => reply(Err(e)),
            Ok(Done::Keep(kept)) => {
                let weak = Rc::downgrade(self);
                tokio::task::spawn_local(async move { reply(keep(weak, kept).await) });
            }
            Ok(Done::Order(ordered)) => {
                let mon = self.frame.mon.clone();
                let carry_out = async move { reply(balance::carry_out(&mon, ordered).await) };
                tokio::task::spawn_local(carry_out);
            }
            Ok(Done::AskMon(_) | Done::Scrub(_) | Done::Force(_)) => {
                let mon = self.frame.mon.clone();
                tokio::task::spawn_local(async move { reply(ask(&mon, done).await) });
            }
        }
    }

    fn command(&self, caller: &Caller, c: &MgrCommand) -> Result<Done, Refusal> {
        self.follow_map();
        let args = command::Args::parse(&c.cmd)?;
        if args.prefix() == "get_command_descriptions" {
            return Ok(Done::Answered(command::Reply::data(Format::Json.json(&descriptions()))));
        }
        let done =
            commands::run(&self.state.borrow(), &c.cmd, &c.input, wall_clock(), |entry, args| {
                caller.may(entry, args)
            });
        self.instruct(done?)
    }

    /// Tells OSDs what they are to do, if that is what a command wants.
    fn instruct(&self, done: Done) -> Result<Done, Refusal> {
        if !matches!(done, Done::Scrub(_) | Done::Force(_)) {
            return Ok(done);
        }
        let Some(fsid) = self.frame.mon.fsid() else {
            return Err(Refusal::new(
                types::errno::Errno::EAGAIN,
                "the manager does not know its cluster yet",
            ));
        };
        let spgs = |groups: &[types::PgId]| {
            groups.iter().map(|pgid| SpgId { pgid: *pgid, shard: ShardId::NONE }).collect()
        };
        let order = match done {
            Done::Scrub(order) => order,
            Done::Force(order) => {
                let osds = self.osds.borrow();
                let mut unreached = std::collections::BTreeSet::new();
                for (osd, groups) in &order.groups {
                    match osds.get(osd).filter(|c| !c.is_down()) {
                        Some(conn) => send(
                            conn,
                            &OsdForceRecovery { fsid, pgs: spgs(groups), options: order.options },
                            0,
                        ),
                        None => drop(unreached.insert(*osd)),
                    }
                }
                return order.answer(&unreached).map(Done::Answered);
            }
            other => return Ok(other),
        };
        let osds = self.osds.borrow();
        let mut unreached = std::collections::BTreeSet::new();
        for (osd, groups) in &order.groups {
            let Some(conn) = osds.get(osd).filter(|c| !c.is_down()) else {
                unreached.insert(*osd);
                continue;
            };
            let order = OsdScrub {
                fsid,
                epoch: self.state.borrow().epoch(),
                pgs: spgs(groups),
                repair: order.what == "repair",
                deep: order.what == "deep-scrub",
            };
            send(conn, &order, 0);
        }
        order.answer(&unreached).map(Done::Answered)
    }

    /// A command of the block device services: its answer takes time. Nothing if it is another
    /// command.
    fn ask_rbd(
        &self,
        caller: &Caller,
        pieces: &[String],
    ) -> Option<Result<commands::rbd::Later, Refusal>> {
        let args = command::Args::parse(pieces).ok()?;
        let entry = commands::find(&args)?;
        let commands::Run::Rbd(handler) = entry.handler else { return None };
        let rbd = self.rbd.borrow().clone()?;
        let needs = [('r', Perm::R), ('w', Perm::W), ('x', Perm::X)];
        let perm = needs
            .into_iter()
            .filter(|(c, _)| entry.needs(*c))
            .fold(Perm::NONE, |all, (_, p)| all | p);
        let Caller { caps, addr } = caller.clone();
        let may = move |command: &str, args: &BTreeMap<String, String>| {
            caps.is_capable(&MgrOp {
                service: "",
                module: "rbd_support",
                command,
                args,
                perm,
                addr,
            })
        };
        if let Err(refusal) =
            commands::check(&args, |entry, args| may(entry.prefix(), &args.text_map()))
        {
            return Some(Err(refusal));
        }
        let allowed = Box::new(move |pool: &str, namespace: &str| {
            let place = [("pool", pool), ("namespace", namespace)]
                .map(|(k, v)| (k.to_owned(), v.to_owned()));
            may("", &place.into())
        });
        Some(Ok(handler(commands::rbd::Ask { rbd, args, allowed })))
    }

    /// A command about file systems: its answer takes time. Nothing if it is another command.
    fn ask_fs(
        &self,
        caller: &Caller,
        pieces: &[String],
    ) -> Option<Result<commands::fs::Later, Refusal>> {
        let args = command::Args::parse(pieces).ok()?;
        let commands::Run::Fs(handler) = commands::find(&args)?.handler else { return None };
        self.follow_map();
        if let Err(refusal) = commands::check(&args, |entry, args| caller.may(entry, args)) {
            return Some(Err(refusal));
        }
        let mon = self.frame.mon.clone();
        let monitors = Box::new(move |command| {
            let mon = mon.clone();
            let later: commands::fs::Later =
                Box::pin(async move { ask(&mon, Ok(Done::AskMon(command))).await });
            later
        });
        let state = self.state.borrow();
        Some(Ok(handler(commands::fs::Ask {
            monitors,
            format: Format::of(&args),
            args,
            fs: state.fs_map.clone(),
            pools: state.pool_lines(),
            counters: state.counters.clone(),
            volumes: self.volumes.borrow().clone(),
            clients: self.clients(),
            crashes: state.crashes.list(true).into_iter().cloned().collect(),
            telemetry: state.telemetry.clone(),
            now: wall_clock(),
        })))
    }

    /// `ceph tell mgr ...`: everything that a client may ask of the manager, and the daemon's own
    /// commands.
    fn tell_from(&self, conn: &Rc<Connection>, c: &Command) -> Result<Done, Refusal> {
        let args = command::Args::parse(&c.cmd)?;
        if args.prefix() == "get_command_descriptions" {
            return Ok(Done::Answered(command::Reply::data(
                Format::Json.json(&tell_descriptions()),
            )));
        }
        let caps = caps_of(conn);
        if !caps.is_allow_all() {
            return Err(Refusal::new(
                types::errno::Errno::EACCES,
                "access denied: does your client key have mgr caps?",
            ));
        }
        self.tell(&c.cmd, &c.input)
    }

    fn tell(&self, pieces: &[String], input: &Bytes) -> Result<Done, Refusal> {
        let args = command::Args::parse(pieces)?;
        let shape = Shape::of(&args)?;
        Ok(match self.tell_now(&args, pieces, input)? {
            Done::Answered(reply) => Done::Answered(shape.apply(reply)),
            later => later,
        })
    }

    fn counters(&self) -> [Counter; 5] {
        let state = self.state.borrow();
        let daemons: usize = state.services.map().services.values().map(|s| s.daemons.len()).sum();
        [
            (
                "num_sessions",
                self.opened.borrow().len() as u64,
                "Daemons and clients with a session",
            ),
            ("num_osds", self.osds.borrow().len() as u64, "OSDs that report"),
            ("num_pgs", state.pg_map.pgs.len() as u64, "Placement groups that were reported"),
            ("num_service_daemons", daemons as u64, "Daemons that registered as a service"),
            ("digest_version", state.digest.version, "Digests that were made"),
        ]
        .map(|(name, value, help)| Counter { name, help, grows: false, value })
    }

    fn tell_now(
        &self,
        args: &command::Args,
        pieces: &[String],
        input: &Bytes,
    ) -> Result<Done, Refusal> {
        let format = Format::of(args);
        let conf = self.frame.conf.borrow();
        let value = match args.prefix() {
            "version" => version(),
            "config show" => config_show(&conf),
            "config diff" => conf
                .changed()
                .map(|(n, _, v)| (n.to_string(), v.into()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            "config get" => config_get(&conf, args.req("var"))?,
            "perf dump" => perf_dump("mgr", &self.counters()),
            "perf schema" => perf_schema("mgr", &self.counters()),
            "objecter_requests" => {
                client::requests_json(self.state.borrow().epoch(), &self.objecter.in_flight())
            }
            // Lines are written as they come.
            "log flush" => return Ok(Done::Answered(command::Reply::empty())),
            "status" | "mgr_status" => {
                serde_json::json!({"metadata": self.metadata, "osdmap_epoch": self.state.borrow().epoch().0})
            }
            "get_command_descriptions" => tell_descriptions(),
            "help" => commands::table()
                .map(|e| (e.prefix().to_string(), e.help.into()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            _ => {
                drop(conf);
                let done =
                    commands::run(&self.state.borrow(), pieces, input, wall_clock(), |_, _| true)?;
                return self.instruct(done);
            }
        };
        let format = if format == Format::Plain { Format::JsonPretty } else { format };
        Ok(Done::Answered(command::Reply::data(format.json(&value))))
    }
}

/// The descriptions that the stock tool builds its parser from.
pub fn descriptions() -> serde_json::Value {
    command::descriptions(commands::FAMILIES.iter().copied(), true)
}

const fn own(signature: &'static str, help: &'static str) -> command::Command<()> {
    command::Command {
        signature,
        help,
        module: "mgr",
        perm: "r",
        flags: command::flags::NONE,
        handler: (),
    }
}

/// Commands to the daemon itself, beside those that it serves for the cluster.
static OWN: &[command::Command<()>] = &[
    own("config diff", "show what differs from the defaults"),
    own("config get name=var,type=CephString", "show one option"),
    own("config show", "show all options"),
    own("get_command_descriptions", "list the commands"),
    own("help", "list the commands"),
    own("objecter_requests", "show in-progress osd requests"),
    own("log flush", "write log entries to the log file"),
    own("mgr_status", "show the manager's state"),
    own("perf dump", "show what the manager keeps, in numbers"),
    own("perf schema", "describe these numbers"),
    own("status", "show the manager's state"),
    own("version", "show the version"),
];

/// The descriptions for `ceph tell mgr` and the admin socket.
fn tell_descriptions() -> serde_json::Value {
    let served: Vec<command::Command<()>> = commands::table()
        .map(|c| command::Command {
            signature: c.signature,
            help: c.help,
            module: c.module,
            perm: c.perm,
            flags: command::flags::NONE,
            handler: (),
        })
        .collect();
    command::describe_all(OWN.iter().chain(&served))
}

/// Lets the monitors keep something, and answers then.
async fn keep(inner: Weak<Inner>, kept: commands::Kept) -> commands::Answer {
    for (id, report) in kept.saved {
        let Some(m) = inner.upgrade() else { break };
        m.save_crash(id, report).await?;
    }
    Ok(kept.reply)
}

/// The answer, which the monitors may have to give.
async fn ask(mon: &MonClient, done: Result<Done, Refusal>) -> commands::Answer {
    let command = match done? {
        Done::Answered(reply) => return Ok(reply),
        Done::AskMon(command) => command,
        Done::Scrub(_) | Done::Force(_) | Done::Keep(_) | Done::Order(_) => {
            return Err(Refusal::unsupported("ask the manager as a client".to_string()));
        }
    };
    match mon.command(&command.to_string(), Bytes::new()).await {
        Ok(o) if o.code >= 0 => Ok(command::Reply { status: o.status, data: o.output }),
        Ok(o) => Err(Refusal {
            errno: types::errno::Errno(o.code.saturating_neg()),
            message: o.status,
            data: o.output,
        }),
        Err(e) => Err(Refusal::new(types::errno::Errno::ENOTCONN, e.to_string())),
    }
}

fn metadata(ip: IpAddr, mut facts: BTreeMap<String, String>) -> BTreeMap<String, String> {
    facts.insert("addr".to_owned(), ip.to_string());
    facts.extend(version_facts());
    facts
}
