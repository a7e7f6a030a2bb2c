//! The daemon: sessions over the messenger in front of the replicated state.
//!
//! Everything here runs on one thread. A message is handled at once if it only reads. If it changes the
//! state, the change joins the batch that is being put together ([`proposer`]), and the answer waits for
//! the batch's commit. After every commit, [`publish`] tells subscribers what is new.

mod admin;
mod auth_server;
mod commands;
mod dispatch;
mod log_watch;
mod mgr_messages;
mod osd_messages;
mod osd_watch;
mod pool_ops;
mod proposer;
mod publish;
mod session;
mod tick;

pub use proposer::NotCommitted;

use crate::commands::{MonStatus, SessionInfo, Stats};
use crate::mkfs::Layout;
use crate::replica::{Nobody, OpenError, Replica};
use crate::state::ClusterState;
use auth::{AuthName, AuthPolicy, CephxClient, MonAuth, TicketTtl};
use conf::Config;
use messages::Payload;
use msgr::{BindError, Connection, Dispatcher, Limits, Messenger, MessengerConfig, Policy, PolicySet};
use osd_watch::OsdWatch;
use proposer::Proposer;
use session::Session;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::{EntityAddr, EntityAddrVec, EntityName, EntityType, Utime};

/// How to start a monitor.
pub struct StartOptions {
    /// Its configuration; settings of the central configuration are added to it while it runs.
    pub conf: Rc<RefCell<Config>>,
    /// Listens here instead of at the address that the monitor map has (and corrects the map). Port 0
    /// lets the system choose.
    pub listen: Option<std::net::SocketAddr>,
    /// Monitors of the cluster, this one included, as far as they are known without the monitor map.
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
    /// The monitor map does not have this monitor.
    #[error("the monitor map has no monitor '{0}'")]
    NotInMap(String),
    /// A quorum of several monitors.
    #[error("the monitor map has {0} monitors; a quorum of several monitors is not supported yet")]
    Quorum(usize),
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
    pub conf: Rc<RefCell<Config>>,
    pub auth: Rc<RefCell<MonAuth>>,
    /// Global ids: the next one, and the end of what is reserved.
    pub global_ids: Rc<Cell<(u64, u64)>>,
    pub messenger: RefCell<Option<Rc<Messenger>>>,
    pub sessions: RefCell<BTreeMap<u64, Rc<Session>>>,
    pub proposer: Proposer,
    pub stats: RefCell<Stats>,
    pub osd_watch: RefCell<OsdWatch>,
    pub published: RefCell<publish::Published>,
    pub mgr_beacon: Cell<Option<Utime>>,
    pub started: Utime,
    pub stopping: Cell<bool>,
    pub stopped: tokio::sync::Notify,
    /// The key of `mon.`, which is not replicated.
    keyring: auth::Keyring,
    me: RefCell<std::rc::Weak<Inner>>,
}

/// Wall clock time.
pub(crate) fn now() -> Utime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Utime::from_duration(since)
}

impl Monitor {
    /// Starts the monitor whose data is in `dir` (made by [`crate::mkfs`]). Must be called within a
    /// `LocalSet`, and the monitor lives there. It serves when this returns.
    pub async fn start(dir: &Path, options: StartOptions) -> Result<Monitor, StartError> {
        let layout = Layout::read(dir)?;
        let replica = Replica::<ClusterState>::open(
            &layout.store(),
            1,
            [(1, layout.name.clone())].into(),
            Arc::new(Nobody),
        )
        .await?;
        let state = replica.read(ClusterState::clone);
        if state.monmap.mon_info.len() > 1 {
            replica.shutdown().await;
            return Err(StartError::Quorum(state.monmap.mon_info.len()));
        }
        let Some(me) = state.monmap.mon_info.get(&layout.name) else {
            replica.shutdown().await;
            return Err(StartError::NotInMap(layout.name));
        };
        let listed = me.public_addrs.clone();

        let global_ids = Rc::new(Cell::new((state.global_id_max.max(4096), state.global_id_max)));
        let ids = global_ids.clone();
        let mut mon_auth = MonAuth::new(Box::new(move || {
            let (next, end) = ids.get();
            (next < end).then(|| {
                ids.set((next + 1, end));
                next
            })
        }));
        mon_auth.keys = (*state.auth).clone();
        mon_auth.keys.set_extra(layout.keyring.clone());
        let inner = Rc::new(Inner {
            proposer: Proposer::new(state, now()),
            replica,
            name: layout.name.clone(),
            conf: options.conf,
            auth: Rc::new(RefCell::new(mon_auth)),
            global_ids,
            messenger: RefCell::default(),
            sessions: RefCell::default(),
            stats: RefCell::default(),
            osd_watch: RefCell::default(),
            published: RefCell::default(),
            mgr_beacon: Cell::new(None),
            started: now(),
            stopping: Cell::new(false),
            stopped: tokio::sync::Notify::new(),
            keyring: layout.keyring.clone(),
            me: RefCell::default(),
        });
        *inner.me.borrow_mut() = Rc::downgrade(&inner);
        inner.read_configuration();
        inner.apply_auth_settings();

        let messenger = inner.clone().make_messenger(&layout);
        let wanted = options.listen.or_else(|| listed.msgr2().addr);
        let wanted = wanted.ok_or_else(|| StartError::NotInMap(layout.name.clone()))?;
        let bound = match messenger.bind(wanted.ip(), wanted.port()..=wanted.port()) {
            Ok(addr) => addr,
            Err(e) => {
                inner.replica.shutdown().await;
                return Err(e.into());
            }
        };
        // A monitor's address has no nonce: clients know it from their configuration.
        let addrs = EntityAddrVec::one(EntityAddr { nonce: 0, ..bound });
        messenger.set_addrs(addrs.clone());
        *inner.messenger.borrow_mut() = Some(messenger);

        tokio::task::spawn_local(inner.clone().run_proposer());
        inner.first_changes(addrs).await.map_err(|_| StartError::NotCommitted)?;
        inner.publish();
        tokio::task::spawn_local(inner.clone().run_ticks());
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

    /// Waits until the cluster does without this monitor, and says so.
    pub async fn removed(&self) -> String {
        std::future::pending().await
    }

    /// Stops: closes all sessions and the store.
    pub async fn shutdown(&self) {
        self.inner.stopping.set(true);
        self.inner.stopped.notify_waiters();
        self.inner.proposer.wake.notify_one();
        if let Some(m) = self.inner.messenger.borrow_mut().take() {
            m.shutdown();
        }
        self.inner.sessions.borrow_mut().clear();
        self.inner.replica.shutdown().await;
    }
}

impl Inner {
    fn make_messenger(self: Rc<Self>, layout: &Layout) -> Rc<Messenger> {
        let policies = PolicySet::new(Policy::stateless_server())
            .with(EntityType::MON, Policy::lossless_peer_reuse())
            .with(EntityType::OSD, Policy::stateless_server());
        let me = AuthName::new(EntityType::MON, "");
        let key = layout.keyring.get(&me).map(|a| a.key.clone()).unwrap_or_default();
        let client = CephxClient::new(AuthPolicy::new(EntityType::MON), me, key, &[EntityType::MON]);
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
        let errors = self.conf.borrow_mut().set_from_mon(settings.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        for e in errors {
            tracing::warn!("a setting for this monitor is ignored: {e}");
        }
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
        MonStatus {
            name: self.name.clone(),
            rank: 0,
            state: "leader",
            election_epoch: self.replica.term(),
            quorum: vec![0],
            leader: Some(0),
            quorum_since: self.started,
            started: self.started,
        }
    }

    /// Open sessions.
    pub fn session_infos(&self) -> Vec<SessionInfo> {
        self.sessions.borrow().values().map(|s| s.info()).collect()
    }

    /// Sends a message on a connection, encoded for its peer.
    pub fn send<M: Payload>(&self, conn: &Connection, message: &M, tid: u64) {
        let mut m = message.encode(conn.features());
        m.tid = tid;
        conn.send(m);
    }
}

impl Dispatcher for Inner {
    fn on_accept(&self, conn: &Rc<Connection>) -> bool {
        !self.stopping.get() && self.open_session(conn)
    }

    fn on_message(&self, conn: &Rc<Connection>, message: msgr::Message, guard: msgr::ReceiveGuard) {
        if !self.stopping.get() {
            self.dispatch(conn, message);
        }
        drop(guard);
    }

    fn on_reset(&self, conn: &Rc<Connection>) {
        self.sessions.borrow_mut().remove(&conn.id());
    }
}
