//! The daemon: sessions over the messenger in front of the replicated state.
//!
//! Everything here runs on one thread. What a session subscribes to comes from the state that this
//! monitor has applied; [`publish`] tells subscribers what is new. Everything else is the leader's:
//! another monitor passes it on ([`quorum`], [`peers`]). The leader handles a message at once if it
//! only reads. If it changes the state, the change joins the batch that is being put together
//! ([`proposer`]), and the answer waits for the batch's commit.

mod admin;
mod asked;
mod auth_server;
mod beacons;
mod clean;
mod clock;
mod clocks;
mod commands;
mod commits;
mod dispatch;
mod force_create;
mod log_watch;
mod mds_messages;
mod mgr_commands;
mod mgr_messages;
mod ops;
mod osd_messages;
mod osd_watch;
mod part;
mod passed_on;
mod peers;
mod pool_ops;
mod proposer;
mod publish;
pub(crate) mod quorum;
mod session;
mod tick;
mod timecheck;

pub use commits::NotCommitted;

use crate::commands::{ClockSkew, MonStatus, SessionInfo, Stats};
use crate::mkfs::Layout;
use crate::replica::{OpenError, Replica};
use crate::state::ClusterState;
use asked::MgrCommands;
use auth::{AuthName, AuthPolicy, CephxClient, MonAuth, TicketTtl};
use beacons::{BeaconWatch, MdsWatch};
use clock::now;
use clocks::Timechecks;
use commits::{Proposer, Published};
use conf::Config;
use daemon_frame::threads::LocalFuture;
use messages::Payload;
use msgr::{
    BindError, Connection, Dispatcher, Limits, Messenger, MessengerConfig, Policy, PolicySet,
};
use ops::Ops;
use osd_watch::OsdWatch;
use part::{Part, Role};
use peers::{Carrier, PeerLinks, Waiting};
use session::{Link, Session};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use types::{EntityAddr, EntityAddrVec, EntityName, EntityType, Utime};

/// How to start a monitor.
pub struct StartOptions {
    /// Its configuration; settings of the central configuration are added to it while it runs.
    pub conf: Rc<RefCell<Config>>,
    /// Listens here instead of at the address that the monitor map has (and corrects the map). Port
    /// 0 lets the system choose.
    pub listen: Option<SocketAddr>,
    /// Monitors of the cluster, this one included, as far as they are known without the monitor
    /// map.
    pub peers: BTreeMap<String, EntityAddrVec>,
    /// The cluster's id, for a monitor that is still to be taken in.
    pub fsid: types::Fsid,
}

impl Default for StartOptions {
    fn default() -> Self {
        StartOptions {
            conf: Rc::new(RefCell::new(Config::new())),
            listen: None,
            peers: BTreeMap::new(),
            fsid: types::Fsid::default(),
        }
    }
}

/// Why a monitor did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory is not one of a monitor.
    #[error("{0}")]
    Layout(#[from] crate::mkfs::LayoutError),
    /// The replicated state could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is not known where this monitor listens.
    #[error("the monitor map has no monitor '{0}', and no address was given for it")]
    NotInMap(String),
    /// The socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The first changes of a new leader were not committed.
    #[error("the monitor could not commit its first changes")]
    NotCommitted,
}

/// A running monitor. Dropping it does not stop it; [`Monitor::shutdown`] does.
pub struct Monitor {
    inner: Rc<Inner>,
}

/// What the parts of the daemon share.
pub(crate) struct Inner {
    pub replica: Replica<ClusterState>,
    pub name: String,
    /// Where its data is.
    dir: std::path::PathBuf,
    pub conf: Rc<RefCell<Config>>,
    pub auth: Rc<RefCell<MonAuth>>,
    /// Ranges of global ids that are this monitor's to give out: the next one, and the end.
    pub global_ids: Rc<RefCell<VecDeque<(u64, u64)>>>,
    pub links: Rc<PeerLinks>,
    pub part: RefCell<Part>,
    /// Held while this monitor's part is looked at.
    looking: tokio::sync::Mutex<()>,
    pub waiting: RefCell<Waiting>,
    /// Why the monitor has to end by itself.
    pub ended: watch::Sender<Option<String>>,
    /// The cluster's id, for a monitor that knows nothing else of it.
    given_fsid: types::Fsid,
    pub messenger: RefCell<Option<Rc<Messenger>>>,
    pub sessions: RefCell<BTreeMap<u64, Rc<Session>>>,
    pub proposer: Proposer,
    pub stats: RefCell<Stats>,
    pub osd_watch: RefCell<OsdWatch>,
    pub published: RefCell<Published>,
    pub mgr_commands: RefCell<MgrCommands>,
    pub mgr_watch: RefCell<BeaconWatch>,
    /// Metadata servers, as the leader knows them.
    pub mds_watch: RefCell<MdsWatch>,
    pub timechecks: RefCell<Timechecks>,
    /// Percent of the space below its data that is free.
    pub free: Cell<Option<u8>>,
    /// Since when daemons are of several versions.
    pub mixed_since: Cell<Option<Instant>>,
    /// Requests under way.
    pub ops: Rc<Ops>,
    pub started: Utime,
    pub stopping: Cell<bool>,
    pub stopped: tokio::sync::Notify,
    /// The key of `mon.`, which is not replicated.
    keyring: auth::Keyring,
    me: RefCell<std::rc::Weak<Inner>>,
}

/// What a monitor's store says of its place among the others.
struct Standing {
    replica: Replica<ClusterState>,
    state: ClusterState,
    is_member: bool,
    joins: bool,
    /// It founds a group: a store with a state that belongs to none.
    founder: bool,
    /// It is the only monitor.
    alone: bool,
}

impl Standing {
    /// Opens the store, and founds a group of one if it is the first of its cluster.
    async fn open(layout: &Layout, links: &Rc<PeerLinks>) -> Result<Standing, StartError> {
        let (carrier, outgoing) = mpsc::unbounded_channel();
        tokio::task::spawn_local(links.clone().carry(outgoing));
        let replica =
            Replica::<ClusterState>::open(&layout.store(), Arc::new(Carrier(carrier))).await?;
        let is_member = replica.is_member().await?;
        let joins = replica.joins().await?;
        let state = replica.read(ClusterState::clone);
        let known = &state.monmap.mon_info;
        let founder = !is_member && !known.is_empty();
        for info in known.values() {
            links.learn(&info.name, &info.public_addrs);
        }
        let alone = known.len() == 1 && (founder || replica.members().voters.len() == 1);
        if alone && !known.contains_key(&layout.name) {
            replica.shutdown().await;
            return Err(StartError::NotInMap(layout.name.clone()));
        }
        if founder && alone {
            replica.found(&layout.name).await?;
        }
        Ok(Standing { replica, state, is_member, joins, founder, alone })
    }

    /// Where the monitors' map has a monitor.
    fn listed(&self, name: &str) -> EntityAddrVec {
        let info = self.state.monmap.mon_info.get(name);
        info.map(|i| i.public_addrs.clone()).unwrap_or_default()
    }
}

impl Inner {
    fn new(
        dir: &Path,
        layout: &Layout,
        options: StartOptions,
        links: Rc<PeerLinks>,
        standing: Standing,
    ) -> Inner {
        let Standing { replica, state, .. } = standing;
        let global_ids = Rc::new(RefCell::new(VecDeque::<(u64, u64)>::new()));
        let ids = global_ids.clone();
        let mut mon_auth = MonAuth::new(Box::new(move || {
            let mut ids = ids.borrow_mut();
            while let Some((next, end)) = ids.front_mut() {
                if *next < *end {
                    *next += 1;
                    return Some(*next - 1);
                }
                ids.pop_front();
            }
            None
        }));
        mon_auth.ready = false;
        mon_auth.keys = (*state.auth).clone();
        mon_auth.keys.set_extra(layout.keyring.clone());
        Inner {
            proposer: Proposer::new(state, now()),
            replica,
            name: layout.name.clone(),
            dir: dir.to_owned(),
            conf: options.conf,
            auth: Rc::new(RefCell::new(mon_auth)),
            global_ids,
            links,
            part: RefCell::default(),
            looking: Default::default(),
            waiting: RefCell::default(),
            ended: watch::Sender::new(None),
            given_fsid: options.fsid,
            messenger: RefCell::default(),
            sessions: RefCell::default(),
            stats: RefCell::default(),
            osd_watch: RefCell::default(),
            published: RefCell::default(),
            mgr_watch: RefCell::default(),
            mgr_commands: RefCell::default(),
            mds_watch: RefCell::default(),
            timechecks: RefCell::default(),
            free: Cell::default(),
            mixed_since: Cell::default(),
            ops: Rc::default(),
            started: now(),
            stopping: Cell::new(false),
            stopped: tokio::sync::Notify::new(),
            keyring: layout.keyring.clone(),
            me: RefCell::default(),
        }
    }

    /// Listens at an address.
    async fn listen(
        self: &Rc<Self>,
        layout: &Layout,
        wanted: SocketAddr,
    ) -> Result<(), StartError> {
        let messenger = self.clone().make_messenger(layout);
        let bound = match messenger.bind(wanted.ip(), wanted.port()..=wanted.port()) {
            Ok(addr) => addr,
            Err(e) => {
                self.replica.shutdown().await;
                return Err(e.into());
            }
        };
        // A monitor's address has no nonce: clients know it from their configuration.
        let addrs = EntityAddrVec::one(EntityAddr { nonce: 0, ..bound });
        messenger.set_addrs(addrs.clone());
        *self.messenger.borrow_mut() = Some(messenger);
        self.links.learn(&self.name, &addrs);
        Ok(())
    }
}

impl Monitor {
    /// Starts the monitor of the data in `dir` (made by [`crate::mkfs()`]). Must be called within a
    /// `LocalSet`, and the monitor lives there. The only monitor of a cluster serves when this
    /// returns; one of several listens, and serves when there is a quorum.
    pub fn start(
        dir: &Path,
        options: StartOptions,
    ) -> LocalFuture<'_, Result<Monitor, StartError>> {
        Box::pin(Self::begin(dir, options))
    }

    async fn begin(dir: &Path, options: StartOptions) -> Result<Monitor, StartError> {
        let layout = Layout::read(dir)?;
        let key =
            layout.keyring.get(&crate::mkfs::mon_name()).map(|a| a.key.clone()).unwrap_or_default();
        let policy = {
            let conf = options.conf.borrow();
            let mut policy = AuthPolicy::new(EntityType::MON);
            policy.mon_cluster_modes = AuthPolicy::parse_modes(&conf.str("ms_mon_cluster_mode"));
            policy
        };
        let (links, attach) = PeerLinks::new(key, policy);
        for (name, addrs) in &options.peers {
            links.learn(name, addrs);
        }
        let standing = Standing::open(&layout, &links).await?;
        let wanted = options.listen.or_else(|| standing.listed(&layout.name).msgr2().addr);
        let (is_member, alone) = (standing.is_member, standing.alone);
        let (joins, founder) = (standing.joins, standing.founder);
        let inner = Rc::new(Inner::new(dir, &layout, options, links, standing));
        *inner.me.borrow_mut() = Rc::downgrade(&inner);
        let weak = Rc::downgrade(&inner);
        attach(Box::new(move |answer| {
            if let Some(inner) = weak.upgrade() {
                inner.routed(answer);
            }
        }));
        inner.read_configuration();
        inner.apply_auth_settings();

        let wanted = wanted.ok_or_else(|| StartError::NotInMap(layout.name.clone()))?;
        inner.listen(&layout, wanted).await?;
        tokio::task::spawn_local(inner.clone().run_proposer());
        if joins && !alone {
            tokio::task::spawn_local(inner.clone().run_membership(founder));
        }
        if !is_member || alone {
            // There is no group yet, or no other monitor is in it.
            inner.part.borrow_mut().vetted = true;
        } else {
            tokio::task::spawn_local(inner.clone().vet());
        }
        if alone {
            inner.look().await;
            if !inner.leads() {
                inner.replica.shutdown().await;
                return Err(StartError::NotCommitted);
            }
            let range = inner.reserve_ids().await.map_err(|_| StartError::NotCommitted)?;
            inner.global_ids.borrow_mut().push_back(range);
            inner.look().await;
        }
        tokio::task::spawn_local(inner.clone().run_quorum());
        tokio::task::spawn_local(inner.clone().run_ticks());
        let weak = Rc::downgrade(&inner);
        let counters = move || {
            let found = weak.upgrade().map(|i| i.metrics()).unwrap_or_default();
            async move { found }
        };
        let (conf, name) = (Rc::downgrade(&inner.conf), format!("mon.{}", inner.name));
        tokio::task::spawn_local(daemon_frame::metrics::serve(conf, name, counters));
        Ok(Monitor { inner })
    }

    /// Where it listens.
    pub fn addrs(&self) -> EntityAddrVec {
        self.inner.messenger.borrow().as_ref().map(|m| m.addrs()).unwrap_or_default()
    }

    /// A snapshot of the committed state.
    pub fn state(&self) -> ClusterState {
        self.inner.committed()
    }

    /// Waits until the monitor has to end by itself, and says why: the cluster does without it, or
    /// its store cannot be written.
    pub async fn removed(&self) -> String {
        let mut ended = self.inner.ended.subscribe();
        match ended.wait_for(|why| why.is_some()).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Stops: closes all sessions and the store.
    pub fn shutdown(&self) -> LocalFuture<'_, ()> {
        Box::pin(async {
            self.inner.stopping.set(true);
            self.inner.stopped.notify_waiters();
            self.inner.proposer.wake.notify_one();
            if let Some(m) = self.inner.messenger.borrow_mut().take() {
                m.shutdown();
            }
            self.inner.links.shutdown();
            self.inner.sessions.borrow_mut().clear();
            self.inner.waiting.borrow_mut().requests.clear();
            self.inner.replica.shutdown().await;
        })
    }
}

impl Inner {
    fn make_messenger(self: Rc<Self>, layout: &Layout) -> Rc<Messenger> {
        let policies = PolicySet::new(Policy::stateless_server());
        let me = AuthName::new(EntityType::MON, "");
        let key = layout.keyring.get(&me).map(|a| a.key.clone()).unwrap_or_default();
        let client =
            CephxClient::new(AuthPolicy::new(EntityType::MON), me, key, &[EntityType::MON]);
        let config = MessengerConfig {
            name: EntityName::new(EntityType::MON, 0),
            nonce: 0,
            policies,
            limits: Limits::default(),
            server_auth: Some(self.auth.clone()),
            client_auth: Rc::new(RefCell::new(client)),
        };
        Messenger::new(config, self)
    }

    /// For work that outlives the call. None while the monitor is being dropped.
    pub fn me(&self) -> Option<Rc<Inner>> {
        self.me.borrow().upgrade()
    }

    /// The committed state.
    pub fn committed(&self) -> ClusterState {
        self.replica.read(ClusterState::clone)
    }

    /// Takes over what the central configuration has for this monitor.
    pub fn read_configuration(&self) {
        let state = self.committed();
        let settings = crate::config_db::for_entity(&state, "mon", &self.name, None);
        let errors = self
            .conf
            .borrow_mut()
            .set_from_mon(settings.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        for e in errors {
            tracing::warn!("a setting for this monitor is ignored: {e}");
        }
        clock::set_offset(self.conf.borrow().f64("clock_offset"));
    }

    /// Takes over the options that the authentication server depends on.
    pub fn apply_auth_settings(&self) {
        let conf = self.conf.borrow();
        let mut auth = self.auth.borrow_mut();
        auth.ttl = TicketTtl {
            auth: Duration::from_secs_f64(conf.f64("auth_mon_ticket_ttl").max(1.0)),
            service: Duration::from_secs_f64(conf.f64("auth_service_ticket_ttl").max(1.0)),
        };
        auth.policy.cluster_methods = AuthPolicy::parse_methods(&conf.str("auth_cluster_required"));
        auth.policy.service_methods = AuthPolicy::parse_methods(&conf.str("auth_service_required"));
        auth.policy.mon_service_modes = AuthPolicy::parse_modes(&conf.str("ms_mon_service_mode"));
        auth.policy.mon_cluster_modes = AuthPolicy::parse_modes(&conf.str("ms_mon_cluster_mode"));
    }

    /// This monitor as commands show it.
    pub fn status(&self) -> MonStatus {
        let (quorum, leader, quorum_since) = self.quorum();
        MonStatus {
            name: self.name.clone(),
            rank: self.rank(),
            state: match self.part.borrow().role {
                Role::Leader => "leader",
                Role::Follower(_) => "peon",
                Role::Out if self.replica.members().voters.contains_key(&self.replica.id()) => {
                    "electing"
                }
                Role::Out => "synchronizing",
            },
            election_epoch: self.replica.term(),
            quorum,
            leader,
            quorum_since,
            started: self.started,
            clocks: self.clocks(),
            clock_round: self.timechecks.borrow().round,
            free: self.free_space(),
            mixed_for: self.mixed_since.get().map(|since| since.elapsed()),
        }
    }

    /// The clocks of those that take part, if this monitor leads others.
    fn clocks(&self) -> BTreeMap<String, ClockSkew> {
        let quorum = self.quorum_names();
        if !self.leads() || quorum.len() < 2 {
            return BTreeMap::new();
        }
        let mut all = self.timechecks.borrow().skews();
        all.retain(|n, _| quorum.contains(n));
        all.insert(self.name.clone(), ClockSkew::default());
        all
    }

    /// Percent of the space below their data that is free, of this monitor and, if it leads, of
    /// those that take part.
    fn free_space(&self) -> BTreeMap<String, u8> {
        let mut all = BTreeMap::new();
        if self.leads() {
            let quorum = self.quorum_names();
            all.clone_from(self.timechecks.borrow().free());
            all.retain(|n, _| quorum.contains(n));
        }
        all.extend(self.free.get().map(|percent| (self.name.clone(), percent)));
        all
    }

    /// This monitor's rank; -1 if it has none.
    pub fn rank(&self) -> i32 {
        let map = self.committed().monmap;
        map.ranks
            .iter()
            .position(|n| *n == self.name)
            .and_then(|r| i32::try_from(r).ok())
            .unwrap_or(-1)
    }

    /// Open sessions.
    pub fn stats_for_commands(&self) -> Stats {
        let mut stats = self.stats.borrow().clone();
        stats.mds_health = self.mds_watch.borrow().complaints(&self.committed());
        stats
    }

    /// Open sessions.
    pub fn session_infos(&self) -> Vec<SessionInfo> {
        self.sessions.borrow().values().map(|s| s.info()).collect()
    }

    /// Sends a message on a connection, encoded for its peer.
    pub fn send<M: Payload>(&self, conn: &Link, message: &M, tid: u64) {
        let mut m = message.encode(conn.features());
        m.tid = tid;
        conn.send(m);
    }
}

impl Dispatcher for Inner {
    fn on_accept(&self, conn: &Rc<Connection>) -> bool {
        !self.stopping.get() && (Inner::is_monitor(conn) || self.open_session(conn))
    }

    fn on_message(&self, conn: &Rc<Connection>, message: msgr::Message, guard: msgr::ReceiveGuard) {
        drop(guard);
        if self.stopping.get() {
            return;
        }
        match self.me() {
            Some(me) if Inner::is_monitor(conn) => me.from_monitor(conn, message),
            _ => self.dispatch(conn, message),
        }
    }

    fn on_reset(&self, conn: &Rc<Connection>) {
        self.sessions.borrow_mut().remove(&conn.id());
        self.forget_requests(conn.id());
        self.follower_gone(conn);
    }
}

#[cfg(test)]
#[path = "passed_on_test.rs"]
mod passed_on_test;
