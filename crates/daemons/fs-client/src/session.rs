//! Sessions with the ranks of a file system: opening, keeping alive, moving to a daemon that takes
//! a rank over, and what is received.

use crate::caps::Answer;
use crate::mount::{Inner, Outcome};
use cephfs::{DirPage, InodeStat};
use client::wall_clock;
use denc::Decode;
use messages::{
    CapItem, CapOp, ClientCapRelease, ClientCaps, ClientLease, ClientReconnect, ClientReply,
    ClientRequestForward, ClientSession, FsOp, MessageError, Payload, SessionOp,
};
use msgr::{Connection, Dispatcher, Message, ReceiveGuard};
use std::rc::{Rc, Weak};
use std::time::Duration;
use types::fsmap::{ClientFeatures, MdsMap, MdsState, Rank};
use types::{EntityAddrVec, EntityType};

/// What this client understands (Ceph 16.2: `CEPHFS_FEATURES_CLIENT_SUPPORTED`), without numbers of
/// inodes to make by itself and without statistics.
const FEATURES: [u32; 11] = [0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 15];
/// Capabilities that one message gives back at most.
const RELEASES_MAX: usize = 1024;

/// How far a session is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// The server was asked.
    Opening,
    /// Requests may be sent.
    Open,
    /// The rank has no daemon, or one that does not take sessions up yet.
    Orphaned,
}

/// A session with a rank.
pub(crate) struct Session {
    pub conn: Rc<Connection>,
    /// The daemon.
    pub gid: u64,
    pub phase: Phase,
    /// Counts renewals.
    seq: u64,
}

/// Kept by a connection, to find its session.
struct Link(Rank);

/// Gets the messenger's calls.
pub(crate) struct Router(pub Weak<Inner>);

impl Router {
    fn lost(&self, conn: &Rc<Connection>) {
        if let (Some(inner), Some(rank)) = (self.0.upgrade(), rank_of(conn)) {
            inner.lose(rank, conn);
        }
    }
}

impl Dispatcher for Router {
    fn on_accept(&self, _: &Rc<Connection>) -> bool {
        false
    }

    fn on_message(&self, conn: &Rc<Connection>, message: Message, guard: ReceiveGuard) {
        drop(guard);
        let (Some(inner), Some(rank)) = (self.0.upgrade(), rank_of(conn)) else { return };
        if let Err(error) = inner.received(rank, conn, &message) {
            tracing::warn!(%error, rank, "a message of a metadata server");
        }
    }

    fn on_reset(&self, conn: &Rc<Connection>) {
        self.lost(conn);
    }

    fn on_remote_reset(&self, conn: &Rc<Connection>) {
        self.lost(conn);
    }
}

fn rank_of(conn: &Connection) -> Option<Rank> {
    conn.user::<Link>().map(|l| l.0)
}

pub(crate) fn send(conn: &Connection, payload: &impl Payload) {
    conn.send(payload.encode(conn.features()));
}

fn session_message(op: SessionOp) -> ClientSession {
    ClientSession { op, stamp: wall_clock(), ..ClientSession::default() }
}

impl Inner {
    fn connect(&self, rank: Rank, addrs: &EntityAddrVec) -> Rc<Connection> {
        let conn = self.messenger.connect(EntityType::MDS, addrs.clone());
        conn.set_user(Rc::new(Link(rank)));
        conn
    }

    /// The session with a rank, which is opened if need be. None while there is nothing to do but
    /// wait.
    pub(crate) fn session(&self, rank: Rank) -> Option<Rc<Connection>> {
        let mut st = self.state.borrow_mut();
        let map = st.map.clone()?;
        let info = map.holder(rank).filter(|i| i.state == MdsState::ACTIVE && !i.is_laggy())?;
        if let Some(s) = st.sessions.get(&rank) {
            return (s.phase == Phase::Open && s.gid == info.gid).then(|| s.conn.clone());
        }
        let conn = self.connect(rank, &info.addrs);
        let mut open = session_message(SessionOp::REQUEST_OPEN);
        open.metadata = self.options.metadata.clone();
        open.metadata.entry("root".into()).or_insert_with(|| "/".into());
        open.features = ClientFeatures(FEATURES.into());
        send(&conn, &open);
        let session = Session { conn, gid: info.gid, phase: Phase::Opening, seq: 0 };
        st.sessions.insert(rank, session);
        None
    }

    /// Moves sessions to daemons that took ranks over.
    pub(crate) fn follow_map(&self, map: &MdsMap) {
        let mut lost = Vec::new();
        {
            let mut st = self.state.borrow_mut();
            let st = &mut *st;
            for (rank, s) in &mut st.sessions {
                let holder = map.holder(*rank);
                if let Some(info) = holder.filter(|i| i.gid == s.gid) {
                    if info.state == MdsState::ACTIVE && s.phase == Phase::Open {
                        // What the daemon before it had not answered is asked again.
                        st.waiting.iter_mut().for_each(|w| w.resend(*rank, info.gid));
                    }
                    continue;
                }
                s.conn.mark_down();
                let Some(info) = holder else {
                    if s.phase == Phase::Opening || !map.ranks_in.contains(rank) {
                        lost.push(*rank);
                    }
                    s.phase = Phase::Orphaned;
                    continue;
                };
                match info.state {
                    MdsState::RECONNECT if s.phase != Phase::Opening => {
                        tracing::debug!(rank, gid = info.gid, "another daemon has the rank");
                        s.conn = self.connect(*rank, &info.addrs);
                        s.gid = info.gid;
                        s.phase = Phase::Open;
                        // Nothing that was held counts: uses of data begin anew.
                        send(&s.conn, &ClientReconnect::default());
                        st.caps.forget(*rank);
                    }
                    MdsState::REPLAY | MdsState::RESOLVE | MdsState::STARTING
                        if s.phase != Phase::Opening =>
                    {
                        s.phase = Phase::Orphaned;
                    }
                    _ => lost.push(*rank),
                }
            }
        }
        for rank in lost {
            self.forget_session(rank);
        }
        self.changed.notify_waiters();
    }

    fn lose(&self, rank: Rank, conn: &Rc<Connection>) {
        let current = |s: &Session| s.conn.id() == conn.id();
        if self.state.borrow().sessions.get(&rank).is_some_and(current) {
            self.forget_session(rank);
        }
    }

    fn forget_session(&self, rank: Rank) {
        let session = {
            let mut st = self.state.borrow_mut();
            st.caps.forget(rank);
            st.waiting.iter_mut().for_each(|w| w.lose(rank));
            st.sessions.remove(&rank)
        };
        if let Some(s) = session {
            tracing::debug!(rank, "the session with a metadata server has ended");
            s.conn.mark_down();
        }
        self.changed.notify_waiters();
    }

    /// Gives capabilities back.
    pub(crate) fn release(&self, rank: Rank, items: Vec<CapItem>) {
        let conn = self.state.borrow().sessions.get(&rank).map(|s| s.conn.clone());
        let Some(conn) = conn else { return };
        for part in items.chunks(RELEASES_MAX) {
            send(&conn, &ClientCapRelease { caps: part.to_vec(), ..ClientCapRelease::default() });
        }
    }

    /// Asks a rank to make changes durable at once.
    pub(crate) fn hurry(&self, rank: Rank) {
        if let Some(s) = self.state.borrow().sessions.get(&rank) {
            send(&s.conn, &session_message(SessionOp::REQUEST_FLUSH_MDLOG));
        }
    }

    pub(crate) fn renew(&self) {
        for s in self.state.borrow_mut().sessions.values_mut() {
            if s.phase == Phase::Open {
                s.seq += 1;
                let renew = session_message(SessionOp::REQUEST_RENEWCAPS);
                send(&s.conn, &ClientSession { seq: s.seq, ..renew });
            }
        }
    }

    /// Asks for the end of all sessions.
    pub(crate) fn ask_to_close(&self) {
        for s in self.state.borrow_mut().sessions.values_mut() {
            let close = session_message(SessionOp::REQUEST_CLOSE);
            send(&s.conn, &ClientSession { seq: s.seq, ..close });
        }
    }

    fn received(
        &self,
        rank: Rank,
        conn: &Rc<Connection>,
        message: &Message,
    ) -> Result<(), MessageError> {
        let current = self.state.borrow().sessions.get(&rank).map(|s| s.conn.id());
        if current != Some(conn.id()) {
            return Ok(());
        }
        match message.msg_type {
            ClientSession::TYPE => self.session_news(rank, conn, &ClientSession::decode(message)?),
            ClientReply::TYPE => {
                let reply = ClientReply::decode(message)?;
                self.replied(rank, message.tid, reply)?;
            }
            ClientRequestForward::TYPE => {
                let forward = ClientRequestForward::decode(message)?;
                let mut st = self.state.borrow_mut();
                if let Some(w) = st.waiting.as_mut().filter(|w| w.tid == message.tid) {
                    w.outcome = Some(Outcome::Forward(forward.dest_mds));
                }
                drop(st);
                self.changed.notify_waiters();
            }
            ClientCaps::TYPE => self.caps_news(rank, conn, &ClientCaps::decode(message)?),
            ClientLease::TYPE => {
                let mut lease = ClientLease::decode(message)?;
                if lease.action == ClientLease::REVOKE {
                    // None is used.
                    lease.action = ClientLease::RELEASE;
                    send(conn, &lease);
                }
            }
            // Snapshots, quotas: every answer brings what is needed.
            _ => {}
        }
        Ok(())
    }

    fn session_news(&self, rank: Rank, conn: &Rc<Connection>, m: &ClientSession) {
        match m.op {
            SessionOp::OPEN => {
                if let Some(s) = self.state.borrow_mut().sessions.get_mut(&rank) {
                    s.phase = Phase::Open;
                }
                self.changed.notify_waiters();
            }
            SessionOp::CLOSE => self.forget_session(rank),
            SessionOp::STALE => self.renew(),
            SessionOp::FLUSHMSG => {
                let ack = session_message(SessionOp::FLUSHMSG_ACK);
                send(conn, &ClientSession { seq: m.seq, ..ack });
            }
            SessionOp::REJECT => {
                let why = m.metadata.get("error_string").cloned();
                let why = why.unwrap_or_else(|| "it does not say why".into());
                self.state.borrow_mut().refused = Some(why);
                self.forget_session(rank);
            }
            // Nothing is kept that could be recalled, and nothing is written later.
            _ => {}
        }
    }

    fn caps_news(&self, rank: Rank, conn: &Rc<Connection>, m: &ClientCaps) {
        let answer = {
            let mut st = self.state.borrow_mut();
            st.barrier = st.barrier.max(m.osd_epoch_barrier);
            match m.op {
                CapOp::EXPORT => {
                    st.caps.exported(m.ino, m.cap_id);
                    Answer::None
                }
                CapOp::GRANT | CapOp::REVOKE | CapOp::IMPORT | CapOp::TRUNC => {
                    st.caps.changed(rank, m)
                }
                _ => Answer::None,
            }
        };
        match answer {
            Answer::Release(item) => self.release(rank, vec![item]),
            Answer::Update(update) => send(conn, &*update),
            Answer::None => {}
        }
        self.changed.notify_waiters();
    }

    fn replied(&self, rank: Rank, tid: u64, reply: ClientReply) -> Result<(), MessageError> {
        let malformed = |source| MessageError::Malformed { name: ClientReply::NAME, source };
        let page = match reply.op {
            FsOp::READDIR | FsOp::LSSNAP if reply.result == 0 && !reply.extra.is_empty() => {
                Some(DirPage::from_bytes(&reply.extra).map_err(malformed)?)
            }
            _ => None,
        };
        let mut back = Vec::new();
        {
            let mut st = self.state.borrow_mut();
            let st = &mut *st;
            let mut waiting = st.waiting.as_mut().filter(|w| w.tid == tid && w.rank == rank);
            let keeps = waiting.as_ref().is_some_and(|w| w.keeps && w.kept.is_none());
            let dir = reply.trace.dentry.as_ref().map(|d| &d.dir);
            let listed = page.iter().flat_map(|p| p.entries.iter().map(|(_, _, s)| s));
            back.extend(
                dir.into_iter().chain(listed).filter_map(|s| st.caps.granted(rank, s, false)),
            );
            if let Some(target) = &reply.trace.target {
                back.extend(st.caps.granted(rank, target, keeps && reply.result == 0));
                if let Some(w) = waiting.as_mut().filter(|_| keeps && reply.result == 0) {
                    w.kept = Some(target.ino);
                }
            }
            if let Some(w) = waiting {
                w.take(reply, page);
            }
        }
        self.release(rank, back);
        self.changed.notify_waiters();
        Ok(())
    }
}

/// Keeps the sessions alive.
pub(crate) async fn keep_alive(inner: Weak<Inner>) {
    loop {
        let period = {
            let Some(inner) = inner.upgrade() else { return };
            let st = inner.state.borrow();
            if st.closed {
                return;
            }
            // As Ceph's clients: three times before the session is stale.
            st.map.as_ref().map_or(20, |m| m.session_timeout / 3)
        };
        tokio::time::sleep(Duration::from_secs(period.clamp(1, 60).into())).await;
        let Some(inner) = inner.upgrade() else { return };
        inner.renew();
    }
}

/// A request's record of an inode, if there is one.
pub(crate) fn target(reply: &ClientReply) -> Option<&InodeStat> {
    reply.trace.target.as_deref()
}
