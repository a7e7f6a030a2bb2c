//! A file system in use: requests, and the calls made of them.

use crate::caps::Caps;
use crate::error::{FsError, Result};
use crate::session::{self, Phase, Router, Session, keep_alive};
use crate::stat::{Entry, Stat, kind_of};
use bytes::Bytes;
use cephfs::{DirPage, Frag, FragTree, Ino, caps};
use client::{Rados, wall_clock};
use denc::Reader;
use messages::{ClientReply, ClientRequest, FilePath, FsOp, Payload, RequestArgs, SetAttr};
use msgr::{Limits, Messenger, MessengerConfig, Policy, PolicySet};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::fsmap::{MdsMap, Rank};
use types::{EntityName, Epoch, Errno};

/// How long a request may take.
const REQUEST_PATIENCE: Duration = Duration::from_secs(60);
/// How long a metadata server may take to become active. A rank that is taken over needs less.
const SERVER_PATIENCE: Duration = Duration::from_secs(30);
/// How long servers may take to end the sessions.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// Pause before a session that ended is opened anew.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);
/// Ranks hand a request on so often at most.
const FORWARDS_MAX: u32 = 16;
/// How often a request is made while the server has lost sight of the inode.
const STALE_MAX: u32 = 3;
/// Entries of a page of a directory.
const PAGE_ENTRIES: u32 = 512;
/// Everything that [`Stat`] has, with recursive statistics.
const STAT_MASK: u32 = caps::ANY_SHARED | caps::FILE_WREXTEND;

/// How to use a file system.
pub struct Options {
    /// The nonce of the owner's addresses: the mount has the owner's address, so that a
    /// blocklist with the owner has the mount on it, too.
    pub nonce: u32,
    /// Texts about this client, shown by `session ls`.
    pub metadata: BTreeMap<String, String>,
}

/// A file system in use. Cheap to clone.
#[derive(Clone)]
pub struct Mount(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
    pub rados: Rados,
    pub messenger: Rc<Messenger>,
    pub options: Options,
    pub state: RefCell<State>,
    pub changed: Notify,
    /// One request at a time.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
pub(crate) struct State {
    pub map: Option<Arc<MdsMap>>,
    pub sessions: BTreeMap<Rank, Session>,
    pub caps: Caps,
    pub waiting: Option<Waiting>,
    /// Data is read and written with this OSD map or a later one.
    pub barrier: Epoch,
    /// Why a server gave no session.
    pub refused: Option<String>,
    pub closed: bool,
    last_tid: u64,
}

/// What came of a request.
pub(crate) enum Outcome {
    Reply(ClientReply, Option<DirPage>),
    Forward(Rank),
    /// Another daemon has the rank.
    Resend,
    /// The session ended.
    Lost,
}

/// The request without an answer.
pub(crate) struct Waiting {
    pub tid: u64,
    pub rank: Rank,
    gid: u64,
    /// The inode in the answer stays in use.
    pub keeps: bool,
    /// It is.
    pub kept: Option<Ino>,
    /// The answer, before its change is durable.
    early: Option<ClientReply>,
    pub outcome: Option<Outcome>,
}

impl Waiting {
    pub fn lose(&mut self, rank: Rank) {
        if self.rank == rank {
            self.outcome = Some(Outcome::Lost);
        }
    }

    pub fn resend(&mut self, rank: Rank, gid: u64) {
        if self.rank == rank && self.gid != gid && self.outcome.is_none() {
            self.outcome = Some(Outcome::Resend);
        }
    }

    pub fn take(&mut self, reply: ClientReply, page: Option<DirPage>) {
        if self.outcome.is_some() {
            return;
        }
        if !reply.safe && reply.result >= 0 {
            self.early = Some(reply);
            return;
        }
        // The answer that follows an early one has nothing in it.
        let reply = self.early.take().filter(|_| reply.result >= 0).unwrap_or(reply);
        self.outcome = Some(Outcome::Reply(reply, page));
    }
}

/// The path from the root of the file system.
pub fn path(text: impl AsRef<[u8]>) -> FilePath {
    let text = text.as_ref();
    let from = text.iter().position(|b| *b != b'/').unwrap_or(text.len());
    FilePath { ino: Ino::ROOT, path: Bytes::copy_from_slice(&text[from..]) }
}

/// A request that is being made.
pub(crate) struct Ask {
    pub op: FsOp,
    pub path: FilePath,
    pub path2: FilePath,
    pub args: RequestArgs,
    pub data: Bytes,
    pub keeps: bool,
    /// The file that gives its capability back with the request.
    pub gives_back: Option<Ino>,
}

impl Ask {
    pub fn new(op: FsOp, path: &FilePath, args: RequestArgs) -> Ask {
        Ask {
            op,
            path: path.clone(),
            path2: FilePath::default(),
            args,
            data: Bytes::new(),
            keeps: false,
            gives_back: None,
        }
    }
}

pub(crate) struct Answered {
    pub reply: ClientReply,
    page: Option<DirPage>,
    /// The file that is in use from now on.
    pub kept: Option<Ino>,
}

impl Answered {
    fn stat(&self) -> Result<Stat> {
        session::target(&self.reply).map(Stat::of).ok_or(FsError::Errno(Errno::EIO))
    }
}

impl Mount {
    /// Makes a mount, which opens sessions when there is something to ask. Must be called within a
    /// `LocalSet`.
    pub fn new(rados: Rados, options: Options) -> Mount {
        let inner = Rc::new_cyclic(|weak| Inner {
            messenger: Messenger::new(
                MessengerConfig {
                    name: EntityName::client(rados.mon().global_id() as i64),
                    nonce: options.nonce,
                    policies: PolicySet::new(Policy::lossless_client()),
                    limits: Limits::default(),
                    server_auth: None,
                    client_auth: rados.mon().auth().clone(),
                },
                Rc::new(Router(weak.clone())),
            ),
            rados,
            options,
            state: RefCell::default(),
            changed: Notify::new(),
            turn: tokio::sync::Mutex::new(()),
        });
        tokio::task::spawn_local(keep_alive(Rc::downgrade(&inner)));
        Mount(inner)
    }

    /// Takes the newest map of the file system.
    pub fn follow(&self, map: &MdsMap) {
        {
            let mut st = self.0.state.borrow_mut();
            if st.closed || st.map.as_ref().is_some_and(|m| m.epoch >= map.epoch) {
                return;
            }
            st.map = Some(Arc::new(map.clone()));
        }
        self.0.follow_map(map);
    }

    /// Ends the sessions, and waits a little for the servers to say so. If they do not all say it,
    /// the answer is false and the file system stays in use: a session that is left behind is
    /// waited for when a rank is taken over, and evicted, and the owner's address with it.
    pub async fn close(&self) -> bool {
        let Ok(_turn) = tokio::time::timeout(CLOSE_PATIENCE, self.0.turn.lock()).await else {
            return false;
        };
        // A rank without a server gives no answer.
        if self.0.state.borrow().sessions.values().any(|s| s.phase != Phase::Open) {
            return false;
        }
        self.0.ask_to_close();
        let ended = async {
            loop {
                let changed = self.0.changed.notified();
                if self.0.state.borrow().sessions.is_empty() {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(CLOSE_PATIENCE, ended).await.is_err() {
            return false;
        }
        self.abort();
        true
    }

    /// Ends it without telling the servers.
    pub fn abort(&self) {
        let sessions = {
            let mut st = self.0.state.borrow_mut();
            st.closed = true;
            std::mem::take(&mut st.sessions)
        };
        drop(sessions);
        self.0.messenger.shutdown();
        self.0.changed.notify_waiters();
    }

    /// Attributes of what is at a path. A symbolic link is not followed.
    pub async fn stat(&self, path: &FilePath) -> Result<Stat> {
        let args = RequestArgs::Getattr { mask: STAT_MASK };
        self.0.ask(Ask::new(FsOp::GETATTR, path, args)).await?.stat()
    }

    /// Makes a directory.
    pub async fn mkdir(&self, path: &FilePath, mode: u32) -> Result<()> {
        self.0.ask(Ask::new(FsOp::MKDIR, path, RequestArgs::Mkdir { mode })).await.map(drop)
    }

    /// Makes a directory and those above it that are not there.
    pub async fn mkdir_all(&self, path: &FilePath, mode: u32) -> Result<()> {
        let ends = path.path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        for end in ends.chain([path.path.len()]) {
            let part = FilePath { ino: path.ino, path: path.path.slice(..end) };
            match self.mkdir(&part, mode).await {
                Err(e) if !e.is(Errno::EEXIST) => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, path: &FilePath) -> Result<()> {
        self.0.ask(Ask::new(FsOp::RMDIR, path, RequestArgs::default())).await.map(drop)
    }

    /// Removes a name of something that is no directory.
    pub async fn unlink(&self, path: &FilePath) -> Result<()> {
        self.0.ask(Ask::new(FsOp::UNLINK, path, RequestArgs::default())).await.map(drop)
    }

    /// Moves `from` to `to`, over what is there.
    pub async fn rename(&self, from: &FilePath, to: &FilePath) -> Result<()> {
        let mut attempt = 1;
        loop {
            // A server takes paths of one name here.
            let mut ask = Ask::new(FsOp::RENAME, &self.step(to).await?, RequestArgs::default());
            ask.path2 = self.step(from).await?;
            match self.0.ask(ask).await {
                // It does not have a directory in memory any more.
                Err(e) if e.is(Errno::ESTALE) && attempt < STALE_MAX => attempt += 1,
                done => return done.map(drop),
            }
        }
    }

    /// The same place as the directory's number and one name.
    async fn step(&self, at: &FilePath) -> Result<FilePath> {
        let Some(slash) = at.path.iter().rposition(|b| *b == b'/') else { return Ok(at.clone()) };
        let above = FilePath { ino: at.ino, path: at.path.slice(..slash) };
        Ok(FilePath { ino: self.ino(&above).await?, path: at.path.slice(slash + 1..) })
    }

    /// Makes a symbolic link.
    pub async fn symlink(&self, target: &[u8], at: &FilePath) -> Result<()> {
        let mut ask = Ask::new(FsOp::SYMLINK, at, RequestArgs::default());
        ask.path2 = FilePath { ino: Ino(0), path: Bytes::copy_from_slice(target) };
        self.0.ask(ask).await.map(drop)
    }

    /// Sets an attribute, or a virtual one such as `ceph.quota.max_bytes`.
    pub async fn set_xattr(&self, path: &FilePath, name: &str, value: &str) -> Result<()> {
        // The server looks for pools of the value in this map or a later one.
        let osdmap_epoch = self.0.rados.objecter().wait_latest().await?.epoch;
        let mut attempt = 1;
        loop {
            // A server takes numbers alone here, and a path for its beginning.
            let this = FilePath { ino: self.ino(path).await?, path: Bytes::new() };
            let mut ask =
                Ask::new(FsOp::SETXATTR, &this, RequestArgs::Setxattr { flags: 0, osdmap_epoch });
            ask.path2 = FilePath { ino: Ino(0), path: Bytes::copy_from_slice(name.as_bytes()) };
            ask.data = Bytes::copy_from_slice(value.as_bytes());
            match self.0.ask(ask).await {
                Err(e) if e.is(Errno::ESTALE) && attempt < STALE_MAX => attempt += 1,
                done => return done.map(drop),
            }
        }
    }

    /// The value of a virtual attribute that the server knows; nothing where there is none.
    pub async fn virtual_xattr(&self, path: &FilePath, name: &str) -> Result<Option<String>> {
        let this = FilePath { ino: self.ino(path).await?, path: Bytes::new() };
        let mut ask = Ask::new(FsOp::GETVXATTR, &this, RequestArgs::default());
        ask.path2 = FilePath { ino: Ino(0), path: Bytes::copy_from_slice(name.as_bytes()) };
        let answered = match self.0.ask(ask).await {
            Err(e) if e.is(Errno::ENODATA) => return Ok(None),
            answered => answered?,
        };
        let value = Reader::new(answered.reply.extra)
            .envelope("a virtual attribute", 1)
            .and_then(|(_, mut r)| r.get::<String>());
        value.map(Some).map_err(|_| FsError::Errno(Errno::EIO))
    }

    /// The number of the inode at a path.
    async fn ino(&self, path: &FilePath) -> Result<Ino> {
        if path.path.is_empty() {
            return Ok(path.ino);
        }
        let args = RequestArgs::Getattr { mask: 0 };
        Ok(self.0.ask(Ask::new(FsOp::GETATTR, path, args)).await?.stat()?.ino)
    }

    /// Sets permissions.
    pub async fn chmod(&self, path: &FilePath, mode: u32) -> Result<()> {
        let set = SetAttr { mode, mask: SetAttr::MODE, ..SetAttr::default() };
        self.set_attributes(path, set).await
    }

    /// Sets owner and group.
    pub async fn chown(&self, path: &FilePath, uid: u32, gid: u32) -> Result<()> {
        let set = SetAttr { uid, gid, mask: SetAttr::UID | SetAttr::GID, ..SetAttr::default() };
        self.set_attributes(path, set).await
    }

    async fn set_attributes(&self, path: &FilePath, set: SetAttr) -> Result<()> {
        self.0.ask(Ask::new(FsOp::SETATTR, path, RequestArgs::Setattr(set))).await.map(drop)
    }

    /// Names of the snapshots of a directory; those of directories above begin with `_`. A server
    /// without snapshots has none.
    pub async fn snapshots(&self, path: &FilePath) -> Result<Vec<Bytes>> {
        let mut names = Vec::new();
        let mut after = Bytes::new();
        loop {
            let args = RequestArgs::Readdir {
                frag: Frag::ROOT,
                max_entries: 0,
                max_bytes: 0,
                flags: RequestArgs::READDIR_BITFLAGS,
                offset_hash: 0,
            };
            let mut ask = Ask::new(FsOp::LSSNAP, path, args);
            ask.path2 = FilePath { ino: Ino(0), path: after.clone() };
            let page = match self.0.ask(ask).await {
                Err(FsError::Errno(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::EROFS)) => {
                    return Ok(names);
                }
                answered => answered?.page.ok_or(FsError::Errno(Errno::EIO))?,
            };
            let last = page.entries.last().map(|(name, _, _)| name.clone());
            names.extend(page.entries.into_iter().map(|(name, _, _)| name));
            match last.filter(|n| page.flags & DirPage::END == 0 && *n != after) {
                Some(last) => after = last,
                None => return Ok(names),
            }
        }
    }

    /// Reads a directory from its beginning.
    pub async fn read_dir(&self, path: &FilePath) -> Result<DirReader> {
        let args = RequestArgs::Getattr { mask: caps::FILE_SHARED };
        let answered = self.0.ask(Ask::new(FsOp::GETATTR, path, args)).await?;
        let dir = session::target(&answered.reply).ok_or(FsError::Errno(Errno::EIO))?;
        if kind_of(dir.mode) != crate::Kind::Dir {
            return Err(FsError::Errno(Errno::ENOTDIR));
        }
        Ok(DirReader {
            mount: self.clone(),
            path: path.clone(),
            tree: dir.fragtree.clone(),
            frag: dir.fragtree.find(0),
            after: Bytes::new(),
            end: false,
        })
    }
}

/// A directory that is read page by page. What changes meanwhile may be in it or not.
pub struct DirReader {
    mount: Mount,
    path: FilePath,
    tree: FragTree,
    frag: Frag,
    after: Bytes,
    end: bool,
}

impl DirReader {
    /// The next entries; nothing at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<Entry>>> {
        while !self.end {
            let args = RequestArgs::Readdir {
                frag: self.frag,
                max_entries: PAGE_ENTRIES,
                max_bytes: 0,
                flags: RequestArgs::READDIR_BITFLAGS,
                offset_hash: 0,
            };
            let mut ask = Ask::new(FsOp::READDIR, &self.path, args);
            ask.path2 = FilePath { ino: Ino(0), path: self.after.clone() };
            let page = self.mount.0.ask(ask).await?.page.ok_or(FsError::Errno(Errno::EIO))?;
            // The server may have split or joined what was asked for.
            let frag = page.dir.frag;
            let last = page.entries.last().map(|(name, _, _)| name.clone());
            if page.flags & DirPage::END != 0 {
                let width = 1u32 << (Frag::BITS_MAX - frag.bits().min(Frag::BITS_MAX));
                let next = frag.value().saturating_add(width);
                self.end = next >= 1 << Frag::BITS_MAX;
                self.frag = self.tree.find(next);
                self.after = Bytes::new();
            } else {
                self.frag = frag;
                // A page that leads no further would never end.
                self.after = last.filter(|n| *n != self.after).ok_or(FsError::Errno(Errno::EIO))?;
            }
            if !page.entries.is_empty() {
                let entry = |(name, _, stat): (Bytes, _, cephfs::InodeStat)| Entry {
                    name,
                    kind: kind_of(stat.mode),
                };
                return Ok(Some(page.entries.into_iter().map(entry).collect()));
            }
        }
        Ok(None)
    }
}

/// Forgets the request that waits.
struct Forget<'a>(&'a Inner);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let kept = self.0.state.borrow_mut().waiting.take().and_then(|w| w.kept);
        if let Some(ino) = kept {
            self.0.unpin(ino);
        }
    }
}

impl Inner {
    /// Ends a use of a file.
    pub(crate) fn unpin(&self, ino: Ino) {
        let back = self.state.borrow_mut().caps.unpin(ino);
        if let Some((rank, item)) = back {
            self.release(rank, vec![item]);
        }
    }

    /// Sends a request and waits for its answer. An error of the server's is an error here.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Answered> {
        let _turn = self.turn.lock().await;
        let name = ask.op.name();
        match tokio::time::timeout(REQUEST_PATIENCE, self.carry_out(ask)).await {
            Ok(answered) => answered,
            Err(_) => Err(FsError::Timeout(name)),
        }
    }

    async fn carry_out(&self, ask: Ask) -> Result<Answered> {
        let tid = {
            let mut st = self.state.borrow_mut();
            st.last_tid += 1;
            st.refused = None;
            st.last_tid
        };
        let (mut retries, mut forwards) = (0, 0);
        let mut rank = None;
        let _forget = Forget(self);
        loop {
            let (rank_now, gid) = self.ready(rank).await?;
            self.send_request(&ask, tid, rank_now, gid, retries, forwards);
            match self.outcome(rank_now).await? {
                Outcome::Reply(reply, page) => {
                    let kept = self.state.borrow_mut().waiting.take().and_then(|w| w.kept);
                    if reply.result < 0 {
                        if let Some(ino) = kept {
                            self.unpin(ino);
                        }
                        let errno = Errno(reply.result.saturating_neg());
                        let path = String::from_utf8_lossy(&ask.path.path);
                        tracing::debug!(op = %ask.op, %path, ?errno, "refused");
                        return Err(FsError::Errno(errno));
                    }
                    return Ok(Answered { reply, page, kept });
                }
                Outcome::Forward(_) if forwards >= FORWARDS_MAX => {
                    return Err(FsError::Errno(Errno::ELOOP));
                }
                Outcome::Forward(to) => {
                    forwards += 1;
                    rank = Some(to);
                }
                Outcome::Resend => retries += 1,
                Outcome::Lost if ask.op.is_write() => return Err(FsError::Lost(ask.op.name())),
                Outcome::Lost => {
                    retries += 1;
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
            }
        }
    }

    /// Waits until requests can be sent to a rank, or to the first one. The rank, and its daemon.
    async fn ready(&self, rank: Option<Rank>) -> Result<(Rank, u64)> {
        let deadline = Instant::now() + SERVER_PATIENCE;
        loop {
            let changed = self.changed.notified();
            let (to, name) = {
                let st = self.state.borrow();
                if st.closed {
                    return Err(FsError::Closed);
                }
                if let Some(why) = &st.refused {
                    return Err(FsError::Refused(why.clone()));
                }
                let map = st.map.as_ref();
                let first = || map.and_then(|m| m.up.keys().next().copied());
                (rank.or_else(first), map.map(|m| m.fs_name.clone()))
            };
            if let Some(to) = to
                && self.session(to).is_some()
            {
                let gid = self.state.borrow().sessions.get(&to).map(|s| s.gid);
                return Ok((to, gid.unwrap_or_default()));
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                return Err(FsError::NoServer(name.unwrap_or_default()));
            }
        }
    }

    fn send_request(&self, ask: &Ask, tid: u64, rank: Rank, gid: u64, retries: u32, forwards: u32) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let dropped = ask.gives_back.and_then(|ino| st.caps.drop_with(ino));
        let dropped = dropped.filter(|(r, _)| *r == rank).map(|(_, d)| d);
        let request = ClientRequest {
            oldest_client_tid: tid,
            mdsmap_epoch: st.map.as_ref().map_or(Epoch(0), |m| m.epoch),
            flags: 0,
            num_retry: retries,
            num_fwd: forwards,
            op: ask.op,
            args: ask.args.clone(),
            path: ask.path.clone(),
            path2: ask.path2.clone(),
            releases: dropped.into_iter().collect(),
            stamp: wall_clock(),
            data: ask.data.clone(),
            ..ClientRequest::default()
        };
        let Some(conn) = st.sessions.get(&rank).map(|s| s.conn.clone()) else { return };
        let kept = st.waiting.take().and_then(|w| w.kept);
        st.waiting =
            Some(Waiting { tid, rank, gid, keeps: ask.keeps, kept, early: None, outcome: None });
        let mut message = request.encode(conn.features());
        message.tid = tid;
        conn.send(message);
    }

    async fn outcome(&self, rank: Rank) -> Result<Outcome> {
        let mut hurried = false;
        loop {
            let changed = self.changed.notified();
            let early = {
                let mut st = self.state.borrow_mut();
                if st.closed {
                    return Err(FsError::Closed);
                }
                let Some(w) = &mut st.waiting else { return Ok(Outcome::Lost) };
                if let Some(outcome) = w.outcome.take() {
                    return Ok(outcome);
                }
                w.early.is_some()
            };
            if early && !hurried {
                hurried = true;
                self.hurry(rank);
            }
            changed.await;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.messenger.shutdown();
    }
}
