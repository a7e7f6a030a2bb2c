//! Requests to OSDs: sent where the map says, again when it changes, until they are answered.
//!
//! * `request`: what is asked and answered.
//! * `ops`: the table of requests; sending, answers, sending again.
//! * `budget`: how much may be under way at a time.
//! * `maps`: maps of OSDs and managers, and what follows from a new one; `file_systems`: the map
//!   of file systems, for those that ask.
//! * `sessions`: connections with OSDs, the manager and metadata servers; `backoffs`: what OSDs do
//!   not want yet.
//! * `linger`: watches, which outlive sessions, and notifications.
//! * `commands`: `ceph tell`; `service`, `registration`: daemons that the manager shows.

mod backoffs;
mod blocked;
mod budget;
mod commands;
mod file_systems;
mod linger;
mod maps;
mod ops;
mod options;
mod peer;
mod pending;
mod registration;
mod request;
mod service;
mod sessions;

pub use budget::Limits;
pub use linger::{Handler, Notification, NotifyOutcome, Watch, WatchEvent};
pub use options::Options;
pub use registration::{Reporter, ServiceDaemon};
pub use request::{InFlight, OpOutcome, Request, requests_json};

use crate::error::{ClientError, Result};
use crate::mon::{MonClient, MonEvents};
use crate::shared_map::{Member, SharedMap};
use budget::Budget;
use messages::{
    CommandReply, MgrClose, MgrCommandReply, MgrConfigure, OsdBackoff, OsdMapMsg, OsdOpReply,
    Payload, WatchNotify,
};
use msgr::{Connection, Dispatcher, Message, ReceiveGuard};
use peer::{FsState, MgrState, Peer, Session};
use pending::{Pending, PendingCommand};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use types::{Epoch, OsdMap};

/// Requests in flight, and the sessions with OSDs and the manager. Cheap to clone.
///
/// It belongs to one thread. Several threads share their map ([`Objecter::with_map`]); each has
/// its own sessions and requests.
#[derive(Clone)]
pub struct Objecter(Rc<Inner>);

struct Inner {
    mon: MonClient,
    map: SharedMap,
    member: Member,
    options: Options,
    budget: Budget,
    mgr: RefCell<MgrState>,
    service: RefCell<Option<registration::Registered>>,
    /// How often the manager wants to hear of the daemon.
    report_every: Cell<Duration>,
    /// The manager has let the daemon go.
    left: Cell<bool>,
    fs: RefCell<FsState>,
    ops: RefCell<BTreeMap<u64, Pending>>,
    commands: RefCell<BTreeMap<u64, PendingCommand>>,
    sessions: RefCell<FxHashMap<Peer, Session>>,
    linger: linger::Table,
    last_tid: Cell<u64>,
    /// The epoch whose consequences have been drawn here.
    seen: Cell<Epoch>,
    blocklisted: Cell<bool>,
    down: Cell<bool>,
    /// A map or a session has changed.
    changed: Rc<Notify>,
}

/// Passes maps on.
struct Maps(Weak<Inner>);

impl MonEvents for Maps {
    fn on_message(&self, message: Message) {
        if let Some(inner) = self.0.upgrade() {
            inner.handle_maps(&message);
        }
    }
}

struct Router(Weak<Inner>);

impl Dispatcher for Router {
    fn on_connect(&self, conn: &Rc<Connection>) {
        if let Some(inner) = self.0.upgrade() {
            inner.connected(conn);
        }
    }
    fn on_message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        if let Some(inner) = self.0.upgrade() {
            inner.received(conn, message);
        }
        drop(guard);
    }
    fn on_reset(&self, conn: &Rc<Connection>) {
        if let Some(inner) = self.0.upgrade() {
            inner.reset(conn);
        }
    }
}

impl Objecter {
    /// Sends through the messenger of `mon`. The maps come through [`Self::events`], or from its
    /// owner with [`Self::handle_mon_message`]. Must be called within a `LocalSet`.
    pub fn new(mon: MonClient) -> Self {
        Self::with_map(mon, SharedMap::new(), Options::DEFAULT)
    }

    /// The same over a map that other threads may use as well.
    pub fn with_map(mon: MonClient, map: SharedMap, options: Options) -> Self {
        let news = map.news();
        let inner = Rc::new(Inner {
            mon: mon.clone(),
            member: map.join(),
            map,
            budget: Budget::new(options.limits),
            options,
            mgr: RefCell::default(),
            service: RefCell::default(),
            report_every: Cell::new(registration::REPORTS_EVERY),
            left: Cell::new(false),
            fs: RefCell::default(),
            ops: RefCell::default(),
            commands: RefCell::default(),
            sessions: RefCell::default(),
            linger: linger::Table::default(),
            last_tid: Cell::new(0),
            seen: Cell::new(Epoch(0)),
            blocklisted: Cell::new(false),
            down: Cell::new(false),
            changed: Rc::new(Notify::new()),
        });
        mon.set_dispatcher(Rc::new(Router(Rc::downgrade(&inner))));
        inner.subscribe();
        mon.subscribe("mgrmap", 0, false);
        inner.advanced();
        tokio::task::spawn_local(maps::follow(Rc::downgrade(&inner), news));
        Objecter(inner)
    }

    /// For [`MonClient::set_events`], if nothing else listens. Does not keep the objecter alive.
    pub fn events(&self) -> Rc<dyn MonEvents> {
        Rc::new(Maps(Rc::downgrade(&self.0)))
    }

    /// Takes a message of the monitors: OSD maps and manager maps.
    pub fn handle_mon_message(&self, message: &Message) {
        self.0.handle_maps(message);
    }

    /// The newest map, once there is one. An epoch costs a copy of the map while an older one is
    /// held: let go of it soon.
    pub fn map(&self) -> Option<Arc<OsdMap>> {
        self.0.map.get()
    }

    /// The map as other threads can use it.
    pub fn shared_map(&self) -> &SharedMap {
        &self.0.map
    }

    /// The monitor client.
    pub fn mon(&self) -> &MonClient {
        &self.0.mon
    }

    /// How it behaves.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Whether the newest map has this client on its blocklist. OSDs then answer with `ESHUTDOWN`.
    pub fn is_blocklisted(&self) -> bool {
        self.0.blocklisted.get()
    }

    /// Waits for a map of at least this epoch.
    pub async fn wait_epoch(&self, epoch: Epoch) -> Result<Arc<OsdMap>> {
        loop {
            let changed = self.0.changed.notified();
            if self.0.down.get() {
                return Err(ClientError::Shutdown);
            }
            if let Some(map) = self.map().filter(|m| m.epoch >= epoch) {
                return Ok(map);
            }
            changed.await;
        }
    }

    /// Waits for the newest map that the monitors have now.
    pub async fn wait_latest(&self) -> Result<Arc<OsdMap>> {
        let (newest, _) = self.0.mon.get_version("osdmap").await?;
        self.wait_epoch(Epoch(u32::try_from(newest).unwrap_or(u32::MAX))).await
    }

    /// Sends a request and waits for its answer, for as long as that takes. It waits for room
    /// within the [`Limits`] first. Dropping the future forgets the request, read or write; what
    /// was sent may be carried out all the same.
    pub async fn submit(&self, request: Request) -> Result<OpOutcome> {
        self.0.submit(request).await
    }

    /// The requests that have no answer yet.
    pub fn in_flight(&self) -> Vec<InFlight> {
        self.0.in_flight()
    }

    /// Closes all sessions with OSDs and the manager, as if the network had failed; they are
    /// opened again and unanswered requests repeated.
    pub fn break_sessions(&self) {
        self.0.break_sessions();
    }

    /// Ends all sessions. Waiting requests fail.
    pub fn shutdown(&self) {
        self.0.shutdown();
    }
}

impl Inner {
    fn next_tid(&self) -> u64 {
        self.last_tid.set(self.last_tid.get() + 1);
        self.last_tid.get()
    }

    fn received(self: &Rc<Self>, conn: &Rc<Connection>, message: Message) {
        let result = match message.msg_type {
            OsdOpReply::TYPE => {
                OsdOpReply::decode(&message).map(|reply| self.replied(conn, message.tid, reply))
            }
            OsdBackoff::TYPE => {
                OsdBackoff::decode(&message).map(|backoff| self.backed_off(conn, backoff))
            }
            OsdMapMsg::TYPE => OsdMapMsg::decode(&message).map(|maps| self.handle_osd_maps(&maps)),
            CommandReply::TYPE => CommandReply::decode(&message)
                .map(|r| self.finish_command(message.tid, r.result, r.status, r.output)),
            MgrCommandReply::TYPE => MgrCommandReply::decode(&message)
                .map(|r| self.finish_command(message.tid, r.result, r.status, r.output)),
            MgrConfigure::TYPE => {
                MgrConfigure::decode(&message).map(|wanted| self.registered(&wanted))
            }
            MgrClose::TYPE => {
                self.service_left();
                Ok(())
            }
            WatchNotify::TYPE => WatchNotify::decode(&message).map(|event| self.notified(event)),
            _ => Ok(()),
        };
        if let Err(error) = result {
            tracing::warn!(%error, peer = %conn.peer_name(), "cannot read a message");
            if message.msg_type == OsdOpReply::TYPE {
                self.finish(message.tid, Err(ClientError::Peer(error)));
            }
        }
    }

    fn shutdown(&self) {
        self.down.set(true);
        self.member.leave();
        self.budget.close();
        for session in std::mem::take(&mut *self.sessions.borrow_mut()).into_values() {
            session.conn.mark_down();
        }
        self.fail_ops(&ClientError::Shutdown);
        for pending in std::mem::take(&mut *self.commands.borrow_mut()).into_values() {
            pending.fail(ClientError::Shutdown);
        }
        self.changed.notify_waiters();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Tasks that only wait for changes end.
        self.changed.notify_waiters();
    }
}
