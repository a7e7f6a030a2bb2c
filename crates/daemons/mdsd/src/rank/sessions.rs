//! Sessions of clients: messages in, answers out.

use super::clients::{Asked, Client};
use super::counted;
use super::health::bytes_of;
use super::{Rank, Waiting};
use crate::convert::{self, Around, Shape};
use crate::rights::Rights;
use bytes::Bytes;
use cephfs::{ClientMetadata, SessionInfo};
use mds::{ClientId, Event, SessionEvent, SessionMessage, Token};
use messages::{
    AnyMessage, ClientCaps, ClientQuota, ClientReclaim, ClientReclaimReply, ClientReconnect,
    ClientRequest, ClientSession, FsOp, Payload, SessionOp,
};
use msgr::{Connection, Message, ReceiveGuard};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use types::fsmap::ClientFeatures;
use types::{EntityAddr, EntityName, EntityType, Epoch, Errno};

/// What is told to clients: the features of 16.2, without words about the state of sessions (16).
/// They choose encodings by it, tell what they count with 14, and ask for virtual attributes that
/// they do not know themselves only with 17.
const FEATURES: [u32; 17] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17];
/// A created file comes with numbers of inodes.
const DELEG_INO: u32 = 13;
/// Bytes of what a client may tell about itself.
const METADATA_BYTES_MAX: usize = 64 << 10;
/// Sessions of one rank.
const SESSIONS_MAX: usize = 20_000;
/// Between two looks at quotas that follow changes, so many times what a look takes passes.
const QUOTA_PAUSES: u32 = 20;
/// What failed is tried again after this pause.
const RETRY: Duration = Duration::from_secs(1);

pub(super) fn tell(conn: &Connection, payload: &impl Payload, tid: u64) {
    let mut message = payload.encode(conn.features());
    message.tid = tid;
    conn.send(message);
}

fn session(op: SessionOp, seq: u64) -> ClientSession {
    ClientSession { op, seq, stamp: client::wall_clock(), ..ClientSession::default() }
}

fn rejection(why: &str) -> ClientSession {
    let metadata = [("error_string".to_owned(), why.to_owned())].into();
    ClientSession { metadata, ..session(SessionOp::REJECT, 0) }
}

/// The address that the blocklist has.
fn address(conn: &Connection) -> EntityAddr {
    let addrs = conn.peer_addrs();
    let v2 = addrs.msgr2();
    if v2 == EntityAddr::default() { addrs.legacy_or_front() } else { v2 }
}

impl Rank {
    /// A client that was there before this server.
    pub(super) fn known_client(&self, id: u64, info: SessionInfo) {
        let client = Client {
            conn: None,
            info,
            at_rest: true,
            rights: Rights::default(),
            open: false,
            since: tokio::time::Instant::now(),
            reclaimed_by: None,
            counted: Default::default(),
        };
        let bytes = bytes_of(&client.info);
        let old = self.clients.borrow_mut().insert(id, client);
        self.count_client(bytes, old.map_or(0, |c| bytes_of(&c.info)));
    }

    pub(super) fn conn(&self, client: ClientId) -> Option<Rc<Connection>> {
        self.clients.borrow().get(&client.0).and_then(|c| c.conn.clone())
    }

    fn epoch(&self) -> Epoch {
        self.server().map(|s| s.map().epoch).unwrap_or_default()
    }

    pub(super) fn client_message(
        &self,
        conn: &Rc<Connection>,
        message: Message,
        guard: ReceiveGuard,
    ) {
        let any = match AnyMessage::decode(&message) {
            Ok(any) => any,
            Err(e) => {
                tracing::warn!("a message of {} cannot be read: {e}", conn.peer_name());
                conn.mark_down();
                return;
            }
        };
        let id = conn.global_id();
        let client = ClientId(id);
        let known = self.clients.borrow_mut().get_mut(&id).map(|c| {
            let first = c.conn.replace(conn.clone()).is_none();
            // libcephfs sends what its last server left open before it says that it is back.
            let rights =
                first.then(|| Rights::of_connection(conn, &self.fs_name)).and_then(Result::ok);
            if let Some(rights) = &rights {
                c.rights = rights.clone();
            }
            rights
        });
        if let Some(Some(rights)) = &known {
            self.event(Event::Rights(client, rights.core.clone()));
        }
        match any {
            // It is answered when clients are served again: it would ask again at once.
            AnyMessage::ClientSession(m)
                if m.op == SessionOp::REQUEST_OPEN && known.is_none() && self.is_resting() =>
            {
                self.keep(Waiting(conn.clone(), message, guard), true);
            }
            AnyMessage::ClientSession(m) => self.session_request(conn, id, &m),
            AnyMessage::ClientReconnect(m) => self.reconnect(conn, id, &m),
            AnyMessage::ClientReclaim(m) => self.reclaim(conn, id, &m),
            _ if known.is_none() => {
                // It has to learn that its session is over.
                tell(conn, &session(SessionOp::CLOSE, 0), 0);
            }
            AnyMessage::ClientRequest(m) => self.request(conn, client, message.tid, &m, guard),
            AnyMessage::ClientCaps(m) => self.caps_update(client, message.tid, &m),
            AnyMessage::ClientCapRelease(m) => {
                self.wait_for_map(m.osd_epoch_barrier);
                let list = m.caps.iter().map(|c| (mds::Ino(c.ino.0), c.cap_id, c.seq)).collect();
                self.event(Event::CapRelease(client, list));
            }
            AnyMessage::ClientMetrics(m) => {
                if !self.counted(id, &m.metrics) {
                    conn.mark_down();
                }
            }
            AnyMessage::ClientLease(m) => {
                if let Some(event) = convert::lease_in(client, &m) {
                    self.event(event);
                }
            }
            _ => tracing::debug!("{}: unexpected type {}", conn.peer_name(), message.msg_type),
        }
    }

    fn is_resting(&self) -> bool {
        self.look(mds::Mds::rests).unwrap_or(false)
    }

    /// A client says which map it has been told to wait for: others wait for it, too.
    fn wait_for_map(&self, epoch: Epoch) {
        // A client cannot have others wait for what is not there.
        let newest = self.server().and_then(|s| s.rados.objecter().map()).map(|m| m.epoch);
        if newest.is_some_and(|n| epoch <= n) && epoch > self.barrier.get() {
            self.barrier.set(epoch);
        }
    }

    fn caps_update(&self, client: ClientId, tid: u64, m: &ClientCaps) {
        self.wait_for_map(m.osd_epoch_barrier);
        let Some(update) = convert::caps_in(tid, m) else { return };
        let may = self.clients.borrow().get(&client.0).is_some_and(|c| c.rights.write);
        if m.dirty != 0 && !may && self.is_active() {
            // A client without the right to write was never told that it may; its changes are not
            // taken.
            return self.event(Event::Caps(client, mds::CapsUpdate { dirty: 0, ..update }));
        }
        let larger = update.dirty & (mds::caps::FILE_WR | mds::caps::FILE_EXCL) != 0;
        self.event(Event::Caps(client, update));
        if larger {
            self.tell_quotas_now();
        }
    }

    /// Tells clients what is used of quotas before they are granted more: a client looks at what it
    /// was told before each write. Where there are many quotas, a small part of the time is for it.
    fn tell_quotas_now(&self) {
        let (told, took) = self.quotas_told.get();
        if told.elapsed() >= took * QUOTA_PAUSES {
            self.tell_quotas();
        }
    }

    fn session_request(&self, conn: &Rc<Connection>, id: u64, m: &ClientSession) {
        let client = ClientId(id);
        let known = self.clients.borrow().contains_key(&id);
        match m.op {
            SessionOp::REQUEST_OPEN => self.open(conn, id, m),
            SessionOp::REQUEST_CLOSE => {
                // It may have asked for a session while clients are not served.
                self.waiting.borrow_mut().retain(|w| w.0.global_id() != id);
                if !known {
                    return tell(conn, &session(SessionOp::CLOSE, m.seq), 0);
                }
                self.event(Event::Session(client, SessionEvent::Close { seq: m.seq }));
            }
            SessionOp::REQUEST_RENEWCAPS if known => {
                self.event(Event::Session(client, SessionEvent::Renew { seq: m.seq }));
            }
            SessionOp::REQUEST_RENEWCAPS => tell(conn, &session(SessionOp::CLOSE, 0), 0),
            SessionOp::REQUEST_FLUSH_MDLOG => {
                self.event(Event::Session(client, SessionEvent::FlushLog { seq: m.seq }));
            }
            SessionOp::FLUSHMSG_ACK => {}
            op => tracing::debug!("{}: session operation {}", conn.peer_name(), op.0),
        }
    }

    /// A client asks for a session. It is told that there is one when its row is at rest: the
    /// server's successor knows of it, and which address is to be refused when it does not come
    /// back.
    fn open(&self, conn: &Rc<Connection>, id: u64, m: &ClientSession) {
        let Some(server) = self.server() else { return };
        let name = conn.auth_name();
        let reject = |why: String| {
            tracing::warn!("mds.{}: no session for client.{id}: {why}", server.frame.name);
            tell(conn, &rejection(&why), 0);
        };
        let rights = match Rights::of_connection(conn, &self.fs_name) {
            Ok(rights) => rights,
            Err(why) => {
                let who = name.as_ref().map(|n| n.to_string()).unwrap_or_default();
                return reject(format!("{who}: {why}"));
            }
        };
        let map = server.map();
        if !map.required_client_features.0.is_subset(&m.features.0) {
            return reject(format!("it lacks features: {}", map.required_client_features));
        }
        let bytes: usize = m.metadata.iter().map(|(k, v)| k.len() + v.len()).sum();
        if bytes > METADATA_BYTES_MAX || self.clients.borrow().len() >= SESSIONS_MAX {
            return reject("too much metadata, or too many sessions".to_owned());
        }
        let known = self.clients.borrow().contains_key(&id);
        if !known && !self.look(|core| core.admits_session(bytes)).unwrap_or(true) {
            let why = "sessions take a quarter of mds_cache_memory_limit: no more until some end";
            return reject(why.to_owned());
        }
        let addr = address(conn);
        let refused = server.rados.objecter().map().is_some_and(|map| map.is_blocklisted(&addr));
        if refused {
            let closed = ClientSession {
                flags: ClientSession::BLOCKLISTED,
                ..rejection("the client is on the blocklist")
            };
            return tell(conn, &closed, 0);
        }
        let mut metadata = m.metadata.clone();
        let entity = name.as_ref().map(|n| n.id.clone()).unwrap_or_default();
        metadata.entry("entity_id".to_owned()).or_insert_with(|| entity.clone());
        let info = SessionInfo {
            name: EntityName::client(i64::try_from(id).unwrap_or(-1)),
            addr,
            auth_name: (EntityType::CLIENT, entity),
            metadata: ClientMetadata {
                texts: metadata,
                features: m.features.clone(),
                metric_spec: m.metric_spec.clone(),
            },
            ..SessionInfo::default()
        };
        {
            let mut clients = self.clients.borrow_mut();
            let at_rest = clients.get(&id).is_some_and(|c| c.at_rest);
            let client = Client {
                conn: Some(conn.clone()),
                info: info.clone(),
                at_rest,
                rights: rights.clone(),
                open: false,
                since: tokio::time::Instant::now(),
                reclaimed_by: None,
                counted: Default::default(),
            };
            let old = clients.insert(id, client).map_or(0, |c| bytes_of(&c.info));
            drop(clients);
            self.count_client(bytes_of(&info), old);
        }
        let Some(me) = self.me.upgrade() else { return };
        let may = rights.core.clone();
        tokio::task::spawn_local(async move {
            let set = [info];
            loop {
                let version = me.session_version.get();
                match me.store.write_sessions(version, &set, &BTreeSet::new()).await {
                    Ok(()) => break,
                    Err(_) if me.closed.get() => return,
                    Err(e) => tracing::warn!("a session cannot be written: {e}; trying again"),
                }
                tokio::time::sleep(RETRY).await;
            }
            let there = match me.clients.borrow_mut().get_mut(&id) {
                Some(client) => {
                    client.at_rest = true;
                    true
                }
                None => false,
            };
            if there {
                me.event(Event::Session(ClientId(id), SessionEvent::Open));
                me.event(Event::Rights(ClientId(id), may));
                // A map that came meanwhile may refuse it.
                if let Some(map) = me.server().and_then(|s| s.rados.objecter().map()) {
                    me.end_refused(&map);
                }
            }
        });
    }

    /// A client of the server before this one is back.
    fn reconnect(&self, conn: &Rc<Connection>, id: u64, m: &ClientReconnect) {
        let client = ClientId(id);
        let expected = self.look(|core| core.waits_for(client)).unwrap_or(false);
        let rights = Rights::of_connection(conn, &self.fs_name);
        let known = match self.clients.borrow_mut().get_mut(&id) {
            Some(c) => {
                c.conn = Some(conn.clone());
                c.rights = rights.clone().unwrap_or_default();
                true
            }
            None => false,
        };
        let Some(rights) = rights.ok().filter(|_| expected && known) else {
            tracing::info!("client.{id} comes back, and is not waited for: its session is over");
            tell(conn, &session(SessionOp::CLOSE, 0), 0);
            return;
        };
        let claims = m.caps.iter().map(|(ino, c)| convert::claim_in(client, *ino, c)).collect();
        self.event(Event::Session(client, SessionEvent::Open));
        self.event(Event::Rights(client, rights.core));
        self.event(Event::Reconnect(client, claims));
        if !m.more {
            self.event(Event::Reconnected(client));
        }
    }

    /// A client wants the session of an earlier instance of it to end.
    fn reclaim(&self, conn: &Rc<Connection>, id: u64, m: &ClientReclaim) {
        if m.flags & ClientReclaim::FINISH != 0 {
            return;
        }
        let earlier = self.clients.borrow().iter().find_map(|(other, c)| {
            let uuid = c.info.metadata.texts.get("uuid")?;
            (*other != id && *uuid == m.uuid).then_some((*other, c.info.addr))
        });
        let (result, addrs) = match earlier {
            None => (-Errno::ENOENT.0, types::EntityAddrVec::default()),
            Some((other, _)) => {
                if let Some(c) = self.clients.borrow_mut().get_mut(&other) {
                    c.reclaimed_by = Some(id);
                }
                self.event(Event::Session(ClientId(other), SessionEvent::Evict));
                return;
            }
        };
        tell(conn, &ClientReclaimReply { result, epoch: self.barrier.get(), addrs }, 0);
    }

    fn request(
        &self,
        conn: &Rc<Connection>,
        client: ClientId,
        tid: u64,
        m: &ClientRequest,
        guard: ReceiveGuard,
    ) {
        let pools = match m.op {
            FsOp::SETXATTR => self.pools(),
            _ => convert::Pools::new(),
        };
        let refuse = |errno| tell(conn, &convert::refusal(m.op, errno, self.epoch()), tid);
        let (request, shape) = match convert::request_in(tid, m, &pools) {
            Ok(request) => request,
            Err(errno) => return refuse(errno),
        };
        let path = request.path.clone();
        let onward = self.onward.borrow_mut().arrived((client.0, tid));
        let request = onward.map_or_else(|| request.clone(), |path| request.onward(path));
        let rights =
            self.clients.borrow().get(&client.0).map(|c| c.rights.clone()).unwrap_or_default();
        let writes = match &request.op {
            mds::Op::Open { wanted, truncate } => {
                *truncate || wanted & (mds::caps::FILE_WR | mds::caps::FILE_BUFFER) != 0
            }
            _ => false,
        };
        if !rights.allow(m.op, writes, &m.path2.path) {
            return refuse(Errno::EACCES);
        }
        let asked = Asked {
            op: m.op,
            shape,
            what: format!(
                "client_request(client.{}:{tid} {} #{:#x}/{})",
                client.0,
                m.op,
                m.path.ino.0,
                String::from_utf8_lossy(&m.path.path)
            ),
            path,
            forwards: m.num_fwd,
            since: tokio::time::Instant::now(),
            _guard: guard,
        };
        self.asked.borrow_mut().insert((client.0, tid), asked);
        self.event(Event::Request(client, request));
    }

    pub(super) fn reply(&self, client: ClientId, reply: &mds::Reply) {
        let key = (client.0, reply.tid);
        if let Some(op) = self.early.borrow_mut().remove(&key)
            && let Some(conn) = self.conn(client)
        {
            return tell(&conn, &convert::safe(op, reply.result, self.epoch()), reply.tid);
        }
        let Some(asked) = self.asked.borrow_mut().remove(&key) else { return };
        if !reply.safe {
            self.early.borrow_mut().insert(key, asked.op);
        }
        let Some(conn) = self.conn(client) else { return };
        let delegates = self
            .clients
            .borrow()
            .get(&client.0)
            .is_some_and(|c| c.info.metadata.features.0.contains(&DELEG_INO));
        let pools = match asked.shape {
            Shape::Attribute(_) => self.pools(),
            _ => convert::Pools::new(),
        };
        let message = {
            let core = self.core.borrow();
            let realms = |ino| match core.as_ref() {
                Some(core) => core.realms(ino),
                None => vec![mds::Ino::ROOT],
            };
            let around = Around {
                op: asked.op,
                shape: &asked.shape,
                epoch: self.epoch(),
                delegates,
                realms: &realms,
                pools: &pools,
            };
            convert::reply_out(reply, &around)
        };
        self.answers.set(self.answers.get() + 1);
        tell(&conn, &message, reply.tid);
    }

    pub(super) fn caps(&self, client: ClientId, message: &mds::CapsMessage) {
        let Some(conn) = self.conn(client) else { return };
        match message.op {
            mds::CapsOp::Export => self.export(client, &conn, message),
            _ => self.say_caps(&conn, message),
        }
    }

    pub(super) fn lease_ends(&self, client: ClientId, end: &mds::LeaseEnd) {
        if let Some(conn) = self.conn(client) {
            tell(&conn, &convert::lease_out(end), 0);
        }
    }

    pub(super) fn session_message(&self, client: ClientId, message: SessionMessage) {
        let conn = self.conn(client);
        let message = match message {
            SessionMessage::Open => {
                if let Some(c) = self.clients.borrow_mut().get_mut(&client.0) {
                    c.open = true;
                }
                ClientSession {
                    features: ClientFeatures(FEATURES.into()),
                    metric_spec: counted::all(),
                    ..session(SessionOp::OPEN, 0)
                }
            }
            SessionMessage::Renew { seq } => session(SessionOp::RENEWCAPS, seq),
            SessionMessage::Stale => session(SessionOp::STALE, 0),
            SessionMessage::Close => {
                self.ended(client);
                session(SessionOp::CLOSE, 0)
            }
            // No client asks to be told.
            SessionMessage::FlushLog { .. } => return,
            SessionMessage::Recall { max_caps } => ClientSession {
                max_caps: u32::try_from(max_caps).unwrap_or(u32::MAX),
                ..session(SessionOp::RECALL_STATE, 0)
            },
        };
        if let Some(conn) = conn {
            tell(&conn, &message, 0);
        }
    }

    /// A session is over.
    fn ended(&self, client: ClientId) {
        let Some(gone) = self.clients.borrow_mut().remove(&client.0) else { return };
        self.count_client(0, bytes_of(&gone.info));
        self.asked.borrow_mut().retain(|(c, _), _| *c != client.0);
        self.early.borrow_mut().retain(|(c, _), _| *c != client.0);
        self.onward.borrow_mut().forget(client.0);
        if let Some(by) = gone.reclaimed_by
            && let Some(conn) = self.conn(ClientId(by))
        {
            let reply = ClientReclaimReply {
                result: 0,
                epoch: self.barrier.get(),
                addrs: types::EntityAddrVec::one(gone.info.addr),
            };
            tell(&conn, &reply, 0);
        }
        let Some(me) = self.me.upgrade() else { return };
        self.rows.set(self.rows.get() + 1);
        tokio::task::spawn_local(async move {
            me.remove_row(client, gone.info.key()).await;
            me.rows.set(me.rows.get() - 1);
            me.rows_removed.notify_waiters();
        });
    }

    /// Removes the row of a session that is over, unless the client has another one.
    async fn remove_row(&self, client: ClientId, key: Bytes) {
        let remove: BTreeSet<Bytes> = [key].into();
        while !self.closed.get() && !self.clients.borrow().contains_key(&client.0) {
            let version = self.session_version.get();
            match self.store.write_sessions(version, &[], &remove).await {
                Ok(()) => return,
                Err(e) => tracing::warn!("a session cannot be removed: {e}; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Has the OSDs refuse a client.
    pub(super) async fn blocklist(&self, token: Token, client: ClientId) {
        let addr = self.clients.borrow().get(&client.0).map(|c| c.info.addr);
        tracing::warn!("client.{} is evicted", client.0);
        while let Some(addr) = addr {
            let Some(server) = self.server() else { return };
            let command = serde_json::json!({
                "prefix": "osd blocklist", "blocklistop": "add",
                "addr": addr.legacy_string(),
            });
            let done = server.mon().command(&command.to_string(), Bytes::new()).await;
            match done.and_then(|o| o.ok()) {
                Ok(_) => {
                    let Ok(map) = server.rados.objecter().wait_latest().await else { return };
                    // Others go on when they know of it.
                    self.barrier.set(self.barrier.get().max(map.epoch));
                    break;
                }
                Err(client::ClientError::Shutdown) => return,
                Err(e) => {
                    tracing::warn!("client.{} cannot be put onto the blocklist: {e}", client.0);
                }
            }
            drop(server);
            tokio::time::sleep(RETRY).await;
        }
        self.done(token);
    }

    /// Tells clients what is used of quotas, if that has changed.
    pub(super) fn tell_quotas(&self) {
        let began = tokio::time::Instant::now();
        let Some(roots) = self.look(|core| core.quota_roots()) else { return };
        let mut told = self.quotas.borrow_mut();
        let known: BTreeSet<mds::Ino> = roots.iter().map(|r| r.0).collect();
        told.retain(|ino, _| known.contains(ino));
        for (ino, quota, stat, holders) in roots {
            if told.get(&ino) == Some(&(quota, stat)) {
                continue;
            }
            told.insert(ino, (quota, stat));
            let message = ClientQuota {
                ino: cephfs::Ino(ino.0),
                rctime: stat.rctime,
                rbytes: stat.rbytes,
                rfiles: stat.rfiles,
                rsubdirs: stat.rsubdirs,
                quota: crate::at_rest::quota_out(&quota),
            };
            for client in holders {
                if let Some(conn) = self.conn(client) {
                    tell(&conn, &message, 0);
                }
            }
        }
        self.quotas_told.set((began, began.elapsed()));
    }

    /// Ends sessions of clients that this map has the OSDs refuse.
    pub(super) fn end_refused(&self, map: &types::OsdMap) {
        let refused: Vec<u64> = self
            .clients
            .borrow()
            .iter()
            .filter(|(_, c)| map.is_blocklisted(&c.info.addr))
            .map(|(id, _)| *id)
            .collect();
        for id in refused {
            // Others go on when their OSDs know of it.
            self.barrier.set(self.barrier.get().max(map.epoch));
            self.event(Event::Session(ClientId(id), SessionEvent::Blocklisted));
        }
    }

    /// Ends all sessions.
    pub fn end_sessions(&self) {
        let all: Vec<u64> = self.clients.borrow().keys().copied().collect();
        for id in all {
            self.event(Event::Session(ClientId(id), SessionEvent::Close { seq: 0 }));
        }
    }

    /// Ends a session, and has the OSDs refuse its client.
    pub fn evict(&self, id: u64) {
        self.event(Event::Session(ClientId(id), SessionEvent::Evict));
    }

    /// Requests without an answer: client, number, what, and for how long.
    pub fn in_flight(&self) -> Vec<(u64, u64, String, Duration)> {
        let asked = self.asked.borrow();
        asked.iter().map(|((c, t), a)| (*c, *t, a.what.clone(), a.since.elapsed())).collect()
    }
}
