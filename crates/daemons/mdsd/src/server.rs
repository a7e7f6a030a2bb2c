//! The server's session with the monitors: beacons out, maps in.

use crate::claim::LogClaim;
use crate::commands;
use crate::follow::Follower;
use crate::peers::{self, Peers, Word};
use crate::rank::Rank;
use crate::report::{ToManager, Told};
use crate::state::{self, Progress};
use client::{MonClient, MonConfig, MonEvents, Objecter, Rados};
use daemon_frame::commands::{AnswerParts, parts};
use daemon_frame::threads::{self, Daemon, MakeOptions, Service};
use daemon_frame::{Frame, Options, send, version_facts};
use denc::{Decode, Encode, Features};
use messages::{
    ClientQuery, ClientReport, Command, CommandReply, FsPeerMessage, MdsBeacon, MdsHealth,
    MdsMapMsg, Paxos, Payload,
};
use msgr::{Connection, Dispatcher, Limits, Message, Messenger, Policy, PolicySet, ReceiveGuard};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::fsmap::{MdsMap, MdsState};
use types::{EntityName, EntityType};

/// How long the monitors may take for a first session, and for a place in the map.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a stop may take to bring everything to its place at rest. The log has what is left.
const FLUSH_WITHIN: Duration = Duration::from_secs(10);
/// Messages of one client that are not answered, in bytes: the server reads no further then.
const UNANSWERED_BYTES: usize = 16 << 20;
/// What a rank that stops does not come to the end of is tried again after this pause.
const RETRY: Duration = Duration::from_millis(200);

/// Why a metadata server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It does not join its cluster.
    #[error(transparent)]
    Frame(#[from] daemon_frame::StartError),
    /// The monitors do not answer beacons.
    #[error(
        "the monitors did not take the server into their map within {0:?}: look for its name in their log"
    )]
    NoPlace(Duration),
}

/// A running metadata server.
pub struct Server {
    inner: Rc<Inner>,
}

pub(crate) struct Inner {
    pub frame: Frame,
    pub rados: Rados,
    pub messenger: Rc<Messenger>,
    metadata: BTreeMap<String, String>,
    map: RefCell<Rc<MdsMap>>,
    /// What the map says of this server; nothing before it is in one.
    state: Cell<Option<MdsState>>,
    progress: Cell<Progress>,
    /// What it asks for.
    want: Cell<MdsState>,
    /// What it says of its log.
    log: Cell<LogClaim>,
    beacons: Cell<u64>,
    /// Beacons without an answer: number, and when they were sent.
    unanswered: RefCell<BTreeMap<u64, Instant>>,
    answered: Cell<Instant>,
    /// A beacon is to be sent now.
    urgent: Notify,
    /// The state has changed, or the server has ended.
    changed: Notify,
    /// Why it does not serve any more.
    ended: RefCell<Option<String>>,
    rank: RefCell<Option<Rc<Rank>>>,
    follower: RefCell<Option<Follower>>,
    /// Other servers of the file system.
    pub peers: Peers,
    pub began: Instant,
}

/// Passes on what the monitors send.
struct FromMon(Weak<Inner>);

impl MonEvents for FromMon {
    fn on_session(&self) {
        if let Some(s) = self.0.upgrade() {
            s.urgent.notify_one();
        }
    }

    fn on_message(&self, message: Message) {
        let Some(s) = self.0.upgrade() else { return };
        s.rados.objecter().handle_mon_message(&message);
        match message.msg_type {
            MdsMapMsg::TYPE => match MdsMapMsg::decode(&message) {
                Ok(m) => match MdsMap::from_bytes(&m.map) {
                    Ok(map) => s.take_map(map),
                    Err(e) => tracing::warn!("mds.{}: a map cannot be read: {e}", s.frame.name),
                },
                Err(e) => tracing::warn!("mds.{}: a map cannot be read: {e}", s.frame.name),
            },
            MdsBeacon::TYPE => {
                if let Ok(m) = MdsBeacon::decode(&message) {
                    s.beacon_answered(m.seq);
                }
            }
            _ => s.configure(&message),
        }
    }
}

/// Serves clients.
struct Sessions(RefCell<Weak<Inner>>);

impl Dispatcher for Sessions {
    fn on_message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        let Some(s) = self.0.borrow().upgrade() else { return };
        if message.msg_type == Command::TYPE {
            return s.tell(conn, &message);
        }
        if message.msg_type == FsPeerMessage::TYPE {
            return s.peer_word(conn, &message);
        }
        // Sessions are known by the id that the client has proved to have.
        let claimed = u64::try_from(conn.peer_name().num).ok();
        if conn.peer_type() != EntityType::CLIENT || claimed != Some(conn.global_id()) {
            tracing::warn!("{} is not what it says: closed", conn.peer_name());
            return conn.mark_down();
        }
        if let Some(rank) = s.rank() {
            rank.message(conn, message, guard);
        }
    }
}

impl Server {
    /// Starts a server on the current `LocalSet`. When this returns, the monitors have it in their
    /// map.
    async fn start(options: Options) -> Result<Server, StartError> {
        let mut config = MonConfig::new(&options.cluster);
        // OSDs tell requests that they saw already by the name and number of the sender: each start
        // needs a name of its own.
        config.entity = EntityName::new(EntityType::MDS, i64::from(rand::random::<u32>()) + 1);
        let frame = Frame::new(options.conf, options.keyring, config);
        frame.apply_auth_settings();
        let mon = frame.mon.clone();
        let sessions = Rc::new(Sessions(RefCell::new(Weak::new())));
        let policies = PolicySet::new(Policy::stateless_server())
            .with(EntityType::CLIENT, Policy::stateful_server());
        let (messenger, addr) = frame
            .listen(
                // Until there is a rank.
                EntityName::new(EntityType::MDS, 0),
                policies,
                Limits { receive_unreleased: UNANSWERED_BYTES, ..Limits::default() },
                sessions.clone(),
                options.ip,
                options.ports,
            )
            .map_err(daemon_frame::StartError::from)?;
        // The monitors take the address of their session for the server's, and so does the
        // blocklist.
        mon.messenger().set_addrs(messenger.addrs());
        let objecter = Objecter::new(mon.clone());
        let mut metadata = options.metadata;
        metadata.insert("addr".to_owned(), addr.to_string());
        metadata.extend(version_facts());
        let inner = Rc::new(Inner {
            frame,
            rados: Rados::over(mon.clone(), objecter),
            messenger,
            metadata,
            map: RefCell::new(Rc::new(MdsMap::default())),
            state: Cell::new(None),
            progress: Cell::new(Progress::Loading),
            want: Cell::new(MdsState::BOOT),
            log: Cell::default(),
            beacons: Cell::new(0),
            unanswered: RefCell::default(),
            answered: Cell::new(Instant::now()),
            urgent: Notify::new(),
            changed: Notify::new(),
            ended: RefCell::default(),
            rank: RefCell::default(),
            follower: RefCell::default(),
            peers: Peers::default(),
            began: Instant::now(),
        });
        *sessions.0.borrow_mut() = Rc::downgrade(&inner);
        mon.set_events(Rc::new(FromMon(Rc::downgrade(&inner))));
        for what in ["config", "osdmap", "mdsmap"] {
            mon.subscribe(what, 0, false);
        }
        let server = Server { inner };
        mon.wait_ready(PATIENCE).await.map_err(daemon_frame::StartError::from)?;
        tokio::task::spawn_local(beacons(Rc::downgrade(&server.inner)));
        let told: Rc<dyn Told> = server.inner.clone();
        let to_manager = ToManager::new(Rc::downgrade(&told), &server.inner.frame.name);
        server.inner.rados.objecter().report_to_manager(Rc::new(to_manager));
        let weak = Rc::downgrade(&server.inner);
        let counters = move || {
            let found = weak.upgrade().map(|i| crate::commands::metrics(&i)).unwrap_or_default();
            async move { found }
        };
        let frame = &server.inner.frame;
        let (conf, name) = (Rc::downgrade(&frame.conf), format!("mds.{}", frame.name));
        tokio::task::spawn_local(daemon_frame::metrics::serve(conf, name, counters));
        let placed = async {
            while server.inner.state.get().is_none() {
                server.inner.changed.notified().await;
            }
        };
        match tokio::time::timeout(PATIENCE, placed).await {
            Ok(()) => Ok(server),
            Err(_) => Err(StartError::NoPlace(PATIENCE)),
        }
    }
}

/// A metadata server with a thread of its own and an admin socket at `socket`.
pub fn daemon(name: String, socket: PathBuf, options: MakeOptions) -> Daemon {
    Box::new(move |stop, ready| {
        Box::pin(async move {
            threads::serve(&name, &socket, stop, ready, options, Server::start).await
        })
    })
}

impl Service for Server {
    /// Waits until the monitors have taken the server's place away, or it cannot go on.
    async fn ended(&self) -> String {
        loop {
            let changed = self.inner.changed.notified();
            if let Some(why) = self.inner.ended.borrow().clone() {
                return why;
            }
            changed.await;
        }
    }

    async fn admin_command(&self, json: &str) -> AnswerParts {
        parts(commands::run(&self.inner, &[json.to_owned()]).await)
    }

    fn leave(&self) {
        self.inner.leave();
    }

    /// Brings what is changed to its place at rest, and leaves the map.
    async fn shutdown(&self) {
        if let Some(rank) = self.inner.rank()
            && !tokio::time::timeout(FLUSH_WITHIN, rank.empty_log(false)).await.unwrap_or(false)
        {
            tracing::warn!(
                "mds.{}: the log is left as it is: only this server's successors can read it",
                self.inner.frame.name
            );
        }
        self.inner.leave();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.inner.leave();
    }
}

/// Says that the server lives, and what it asks for: every `mds_beacon_interval`, and at once when
/// that changes.
async fn beacons(inner: Weak<Inner>) {
    loop {
        let Some(s) = inner.upgrade() else { return };
        if s.ended.borrow().is_some() {
            return;
        }
        s.send_beacon();
        let seconds = s.frame.conf.borrow().f64("mds_beacon_interval");
        let pause = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(4));
        let _ = tokio::time::timeout(pause, s.urgent.notified()).await;
    }
}

impl Told for Inner {
    fn memory(&self) -> mds::Memory {
        commands::memory(self)
    }

    fn clients(&self) -> (u64, u64) {
        self.rank().map_or((0, 0), |r| (r.clients.borrow().len() as u64, r.answers.get()))
    }

    fn counted(&self, queries: &BTreeSet<ClientQuery>) -> Option<ClientReport> {
        // A rank that is not active yet has no clients to tell of.
        self.rank().filter(|r| r.is_active()).map(|rank| rank.report_clients(queries))
    }
}

impl Inner {
    pub fn mon(&self) -> &MonClient {
        self.rados.mon()
    }

    fn configure(&self, message: &Message) {
        if self.frame.configure(message)
            && let Some(rank) = self.rank()
        {
            rank.take_settings();
        }
    }

    /// The newest map.
    pub fn map(&self) -> Rc<MdsMap> {
        self.map.borrow().clone()
    }

    /// What the map says of this server.
    pub fn state(&self) -> Option<MdsState> {
        self.state.get()
    }

    /// What it asks for.
    pub fn want(&self) -> MdsState {
        self.want.get()
    }

    /// The rank that it holds.
    pub fn rank(&self) -> Option<Rc<Rank>> {
        self.rank.borrow().clone()
    }

    /// Waits until the map gives the server this state or a later one. False if that will not be.
    pub async fn reached(&self, state: MdsState) -> bool {
        loop {
            let changed = self.changed.notified();
            if self.ended.borrow().is_some() {
                return false;
            }
            if self.state.get().is_some_and(|s| s >= state) {
                return true;
            }
            changed.await;
        }
    }

    /// A command of `ceph tell`.
    fn tell(self: &Rc<Self>, conn: &Rc<Connection>, message: &Message) {
        let (inner, conn, tid) = (self.clone(), conn.clone(), message.tid);
        let Ok(command) = Command::decode(message) else { return conn.mark_down() };
        tokio::task::spawn_local(async move {
            let answer = match commands::may_tell(&conn) {
                true => commands::run(&inner, &command.cmd).await,
                false => Err(commands::denied()),
            };
            let (result, status, output) = parts(answer);
            send(&conn, &CommandReply { result, status, output }, tid);
        });
    }

    /// Tells another rank something. Without a server there it is lost.
    pub fn tell_rank(&self, to: mds::Rank, word: &Word) {
        let map = self.map();
        let Some(mine) = map.mds_info.get(&self.mon().global_id()).map(|i| i.rank) else { return };
        let Ok(from) = u32::try_from(mine) else { return };
        let Some(rank) = peers::rank_of(&map, to).filter(|rank| *rank != mine) else { return };
        if !(peers::may_talk(&map, mine) && peers::may_talk(&map, rank)) {
            return;
        }
        let Some(holder) = map.holder(rank) else { return };
        let seq = self.peers.said.get() + 1;
        self.peers.said.set(seq);
        let conn = self.mon().messenger().connect(EntityType::MDS, holder.addrs.clone());
        let payload = word.to_bytes(Features::ALL);
        send(&conn, &FsPeerMessage { from, to: holder.gid, seq, payload }, 0);
    }

    /// A word of another server.
    pub fn peer_word(&self, conn: &Connection, message: &Message) {
        if conn.peer_type() != EntityType::MDS || !conn.is_incoming() {
            tracing::warn!("{} is no metadata server: closed", conn.peer_name());
            return conn.mark_down();
        }
        let read = FsPeerMessage::decode(message).map_err(|e| e.to_string()).and_then(|m| {
            let word = Word::from_bytes(&m.payload).map_err(|e| e.to_string())?;
            Ok((m, word))
        });
        let (m, word) = match read {
            Ok(read) => read,
            Err(e) => {
                tracing::warn!("a word of {} cannot be read: {e}", conn.peer_name());
                return conn.mark_down();
            }
        };
        let (map, me) = (self.map(), self.mon().global_id());
        if !self.peers.heard.borrow_mut().admits(&map, me, conn.global_id(), &m) {
            tracing::debug!("a word of rank {} is not taken in", m.from);
            return;
        }
        let Ok(from) = types::fsmap::Rank::try_from(m.from) else { return };
        let mine = map.mds_info.get(&me).map_or(-1, |i| i.rank);
        if !(peers::may_talk(&map, mine) && peers::may_talk(&map, from)) {
            return;
        }
        if let (Some(rank), Some(owner)) = (self.rank(), peers::owner_of(&map, from)) {
            rank.peer_word(owner, word);
        }
    }

    fn send_beacon(&self) {
        let Some(fsid) = self.mon().fsid() else { return };
        let seq = self.beacons.get() + 1;
        self.beacons.set(seq);
        self.unanswered.borrow_mut().insert(seq, Instant::now());
        let state = self.want.get();
        let epoch = self.map.borrow().epoch;
        let metadata =
            if state == MdsState::BOOT { self.metadata.clone() } else { BTreeMap::new() };
        self.mon().send_payload(&MdsBeacon {
            paxos: Paxos(epoch.0.into()),
            fsid,
            gid: self.mon().global_id(),
            state: state.0,
            seq,
            name: self.frame.name.clone(),
            compat: state::compat(),
            metadata,
            features: types::features::SUPPORTED.0,
            fs: self.frame.conf.borrow().str("mds_join_fs"),
            health: self.health(),
            log: self.change_claim(|claim| claim.in_beacon(seq)).to_owned(),
        });
    }

    /// What is wrong with the rank.
    fn health(&self) -> MdsHealth {
        let few = self.frame.conf.borrow().u64("mds_health_summarize_threshold");
        let few = usize::try_from(few).unwrap_or(usize::MAX);
        self.rank().map(|r| r.health(few)).unwrap_or_default()
    }

    fn change_claim<T>(&self, f: impl FnOnce(&mut LogClaim) -> T) -> T {
        let mut claim = self.log.get();
        let result = f(&mut claim);
        if self.log.replace(claim) != claim {
            self.changed.notify_waiters();
        }
        result
    }

    /// There is nothing in the log.
    pub fn say_log_is_empty(&self) {
        self.change_claim(LogClaim::say_empty);
        self.urgent.notify_one();
    }

    /// Waits until the monitors know that there may be something in the log. False if the server
    /// has ended.
    pub async fn may_use_log(&self) -> bool {
        loop {
            let changed = self.changed.notified();
            if self.ended.borrow().is_some() {
                return false;
            }
            let before = self.log.get();
            if self.change_claim(LogClaim::use_log) {
                return true;
            }
            if self.log.get() != before {
                self.urgent.notify_one();
            }
            changed.await;
        }
    }

    /// Waits until the monitors know that nothing is in the log. False if something is again, or
    /// the server has ended.
    pub async fn log_is_known_empty(&self) -> bool {
        loop {
            let changed = self.changed.notified();
            match self.log.get() {
                LogClaim::Known => return true,
                LogClaim::Saying if self.ended.borrow().is_none() => {}
                _ => return false,
            }
            changed.await;
        }
    }

    fn beacon_answered(&self, seq: u64) {
        let mut unanswered = self.unanswered.borrow_mut();
        let later = unanswered.split_off(&(seq + 1));
        if let Some(sent) = unanswered.remove(&seq) {
            self.answered.set(sent);
        }
        *unanswered = later;
    }

    /// Takes a map of the monitors.
    fn take_map(self: &Rc<Self>, map: MdsMap) {
        let known = self.map.borrow().epoch;
        if map.epoch <= known || self.ended.borrow().is_some() {
            return;
        }
        if !state::compat().writeable(&map.compat) {
            return self.end(format!(
                "the file system {} needs features that this server does not have: {:?}",
                map.fs_name, map.compat.incompat.names
            ));
        }
        let info = map.mds_info.get(&self.mon().global_id()).cloned();
        let Some(info) = info else {
            // Before it was in a map, it is not missed in one.
            if self.state.get().is_some() {
                self.end("the monitors have removed the server from their map".to_owned());
            } else if map.epoch.0 != u32::MAX {
                self.mon().got("mdsmap", map.epoch.0.into());
                self.map.replace(Rc::new(map));
            }
            return;
        };
        self.mon().got("mdsmap", map.epoch.0.into());
        let map = Rc::new(map);
        self.map.replace(map.clone());
        let before = self.state.replace(Some(info.state));
        if before != Some(info.state) {
            tracing::info!("mds.{}: rank {} {}", self.frame.name, info.rank, info.state);
        }
        if info.rank >= i32::from(mds::Ino::OWNERS) {
            let (rank, most) = (info.rank, mds::Ino::OWNERS);
            return self.end(format!(
                "the server was given rank {rank}, and there are {most} at most: lower max_mds"
            ));
        }
        let number = u32::try_from(info.rank).ok();
        if let Some(number) = number.filter(|_| info.state == MdsState::STANDBY_REPLAY) {
            let (rados, conf) = (self.rados.clone(), self.frame.conf.clone());
            let follow = || Follower::start(rados, conf, &map, number);
            self.follower.borrow_mut().get_or_insert_with(follow);
        }
        if let Some(number) = number.filter(|_| info.state != MdsState::STANDBY_REPLAY) {
            match self.rank() {
                Some(rank) => rank.take_map(&map),
                None => {
                    let Some(owner) = peers::owner_of(&map, info.rank) else {
                        return self.end(format!(
                            "the map does not say which inode numbers rank {number} gives out: \
                             use monitors of the server's release"
                        ));
                    };
                    // Clients take the number for the rank.
                    self.messenger.set_name(EntityName::new(EntityType::MDS, info.rank.into()));
                    let rank = Rank::start(self, &map, number, owner, self.follower.take());
                    self.rank.replace(Some(rank));
                }
            }
        }
        let empty = types::fsmap::empty_logs(&map.compat).contains(&info.rank);
        self.change_claim(|claim| claim.heard(empty, info.state_seq));
        if info.state == MdsState::STOPPING && before != Some(MdsState::STOPPING) {
            let inner = self.clone();
            tokio::task::spawn_local(async move { inner.stop_rank().await });
        }
        self.ask();
        self.changed.notify_waiters();
    }

    /// Gives the rank up: sessions end, and all goes to its place at rest. Rank 0 has it then.
    /// Where the file system goes down, the rank ends when all ranks are at rest: it comes back as
    /// it is.
    async fn stop_rank(&self) {
        let Some(rank) = self.rank() else { return };
        if rank.comes_back(&self.map()) {
            rank.rest().await;
        } else {
            rank.leave().await;
        }
        rank.end_sessions();
        while self.ended.borrow().is_none() {
            if rank.empty_log(true).await {
                rank.rows_are_removed().await;
                return self.set_progress(Progress::Stopped);
            }
            tokio::time::sleep(RETRY).await;
            rank.end_sessions();
        }
    }

    /// Notes how far the work for the rank is.
    pub fn set_progress(&self, progress: Progress) {
        self.progress.set(self.progress.get().max(progress));
        self.ask();
    }

    /// Asks for the state that follows.
    fn ask(&self) {
        let Some(state) = self.state.get() else { return };
        let want = state::wanted(state, self.progress.get());
        self.want.set(want);
        if want != state {
            self.urgent.notify_one();
        }
    }

    /// The server does not serve any more.
    pub fn end(&self, why: String) {
        tracing::warn!("mds.{}: {why}", self.frame.name);
        self.ended.borrow_mut().get_or_insert(why);
        if let Some(rank) = self.rank() {
            rank.close();
        }
        self.changed.notify_waiters();
    }

    /// Closes everything.
    fn leave(&self) {
        self.ended.borrow_mut().get_or_insert("the server was stopped".to_owned());
        self.urgent.notify_one();
        if let Some(rank) = self.rank.take() {
            rank.close();
        }
        // It ends with its handle.
        self.follower.take();
        self.messenger.shutdown();
        self.rados.shutdown();
    }
}
