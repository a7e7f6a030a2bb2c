//! A client that caches what its capabilities allow: names below a directory of which it has `Fs`,
//! attributes, and changes that it tells the server when it is asked to or likes to.

use crate::model::{Local, Seen};
use mds::{
    CapAttrs, CapsMessage, CapsOp, CapsUpdate, Claim, ClientId, Event, Extra, FilePath, Ino, Inode,
    InodeStat, LayoutHints, Lease, LeaseEnd, Name, Op, Rank, Release, Reply, Request, SessionEvent,
    SessionMessage, SetAttr, XattrMode, caps,
};
use sim::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use types::Utime;

/// What a client has of an inode.
#[derive(Clone, Default, Debug)]
pub struct Cap {
    /// The capability.
    pub id: u64,
    /// The owner that granted it.
    pub rank: Rank,
    /// What it has.
    pub issued: u32,
    wanted: u32,
    seq: u32,
    issue_seq: u32,
    inode: Inode,
    dirty: u32,
    max_size: u64,
    names: BTreeMap<Name, Ino>,
    complete: bool,
}

/// A name that a client may rely on.
#[derive(Clone, Debug)]
struct Leased {
    /// What the name stands for: nothing, if a lease came without an inode.
    ino: Option<Ino>,
    until: u64,
    rank: Rank,
    seq: u32,
}

/// A flush that is not durable yet.
#[derive(Clone, Debug)]
struct Flush {
    rank: Rank,
    update: CapsUpdate,
}

/// A client.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its number.
    pub id: ClientId,
    /// Owners with which its session is open.
    pub open: BTreeSet<Rank>,
    owners: u16,
    /// Owners that have left.
    gone: BTreeSet<Rank>,
    /// It answers nothing any more.
    pub dead: bool,
    /// Inodes of which it has capabilities.
    pub caps: BTreeMap<Ino, Cap>,
    /// The request without an answer.
    pub waiting: Option<Request>,
    /// Requests that owners answered before they were durable, in the order of the answers.
    early: BTreeMap<Rank, Vec<Request>>,
    /// Names that it may rely on.
    leases: BTreeMap<(Ino, Name), Leased>,
    /// What its clock says, in nanoseconds.
    pub now: u64,
    /// When it sent the request without an answer.
    sent: u64,
    /// The owner that was asked.
    asked: Rank,
    flushes: BTreeMap<u64, Flush>,
    next_tid: u64,
    next_flush: u64,
    /// Directories and others that it has heard of.
    known: BTreeMap<Ino, bool>,
    /// It makes subvolumes, and pins them.
    pub moves: bool,
    /// It pins other directories.
    pub trees: bool,
    /// It works with what it made itself, mostly.
    pub apart: bool,
    /// What it made.
    made: BTreeMap<Ino, bool>,
    /// Directories that it made subvolumes of.
    volumes: Vec<Ino>,
    clock: u32,
}

/// What a client does.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there are some at a time")]
pub enum Step {
    /// It tells an owner something.
    Send(Rank, Event),
    /// It does something by itself.
    Local(Local),
}

const NAMES: &[&str] = &["a", "b", "c", "d", "e", "f", "g"];

impl Client {
    /// A client without a session.
    pub fn new(id: ClientId, owners: u16, gone: BTreeSet<Rank>) -> Self {
        Client {
            id,
            open: BTreeSet::new(),
            owners,
            gone,
            leases: BTreeMap::new(),
            now: 0,
            sent: 0,
            asked: Rank(0),
            dead: false,
            caps: BTreeMap::new(),
            waiting: None,
            early: BTreeMap::new(),
            flushes: BTreeMap::new(),
            next_tid: 1,
            next_flush: 1,
            known: BTreeMap::from([(Ino::ROOT, true)]),
            moves: false,
            trees: false,
            apart: false,
            made: BTreeMap::new(),
            volumes: Vec::new(),
            clock: 1_000,
        }
    }

    /// Whether nothing of it is under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_none()
            && self.flushes.is_empty()
            && self.early.values().all(|requests| requests.is_empty())
    }

    /// Whether the server knows all that it changed.
    pub fn is_clean(&self) -> bool {
        self.flushes.is_empty() && self.caps.values().all(|c| c.dirty == 0)
    }

    /// Whether it has all the sessions that it needs.
    pub fn is_open(&self) -> bool {
        self.open.len() + self.gone.len() == usize::from(self.owners)
    }

    fn stamp(&mut self) -> Utime {
        self.clock += 1;
        Utime::new(self.clock, 0)
    }

    fn pick(&self, rng: &mut Rng, dirs: bool) -> Option<Ino> {
        let of = |all: &BTreeMap<Ino, bool>| -> Vec<Ino> {
            all.iter().filter(|(_, d)| **d == dirs).map(|(i, _)| *i).collect()
        };
        let own = if self.apart && rng.permille(900) { of(&self.made) } else { Vec::new() };
        let list = if own.is_empty() { of(&self.known) } else { own };
        if list.is_empty() { None } else { Some(list[rng.range(0, list.len() as u64) as usize]) }
    }

    /// What it does next, if it is idle.
    pub fn step(&mut self, rng: &mut Rng) -> Vec<Step> {
        if !self.is_open() || self.waiting.is_some() || self.dead {
            return Vec::new();
        }
        let roll = rng.range(0, 100);
        if roll < 8 {
            return self.drop_one(rng);
        }
        if roll < 14 {
            return self.flush_one(rng);
        }
        if roll < 45
            && let Some(local) = self.local(rng)
        {
            return vec![Step::Local(local)];
        }
        match self.request(rng) {
            Some(request) => {
                self.waiting = Some(request.clone());
                vec![Step::Send(self.asked, Event::Request(self.id, request))]
            }
            None => Vec::new(),
        }
    }

    /// Something that its capabilities allow without the server.
    fn local(&mut self, rng: &mut Rng) -> Option<Local> {
        let inos: Vec<Ino> = self.caps.keys().copied().collect();
        if inos.is_empty() {
            return None;
        }
        let ino = inos[rng.range(0, inos.len() as u64) as usize];
        let write = rng.permille(400);
        let perm = rng.range(0, 0o1000) as u32;
        let name = Name::from_static(NAMES[rng.range(0, NAMES.len() as u64) as usize].as_bytes());
        let more = rng.range(1, 5_000);
        let stamp = self.stamp();
        if more.is_multiple_of(3)
            && let Some(local) = self.leased(rng)
        {
            return Some(local);
        }
        let cap = self.caps.get_mut(&ino)?;
        if write && cap.issued & caps::AUTH_EXCL != 0 && perm.is_multiple_of(2) {
            cap.inode.mode = cap.inode.mode & mds::types::mode::TYPE | perm;
            cap.inode.ctime = stamp;
            cap.dirty |= caps::AUTH_EXCL;
            return Some(Local::Chmod(ino, perm));
        }
        // A client writes only what it was opened for.
        if write && cap.issued & cap.wanted & caps::FILE_WR != 0 {
            // Writers that share a file do not know its size: they write somewhere.
            let base = if cap.issued & caps::FILE_EXCL != 0 { cap.inode.size } else { 0 };
            let size = base + more;
            if size > cap.max_size {
                return None;
            }
            cap.inode.size = cap.inode.size.max(size);
            cap.inode.mtime = stamp;
            cap.dirty |= caps::FILE_WR;
            return Some(Local::Write(ino, size));
        }
        if cap.inode.is_dir() && cap.issued & caps::FILE_SHARED != 0 {
            match cap.names.get(&name) {
                Some(found) => return Some(Local::Lookup(ino, name, Some(*found))),
                None if cap.complete => return Some(Local::Lookup(ino, name, None)),
                None => {}
            }
        }
        let mask = cap.issued & caps::ANY_SHARED;
        (mask != 0).then(|| Local::Getattr(ino, mask, Seen::of(&cap.inode)))
    }

    /// A name that it relies on, also where it has nothing of the directory.
    fn leased(&self, rng: &mut Rng) -> Option<Local> {
        let good = |l: &Leased| l.until > self.now && self.open.contains(&l.rank);
        let all: Vec<_> = self.leases.iter().filter(|(_, l)| good(l)).collect();
        let ((dir, name), lease) = all.get(rng.range(0, all.len().max(1) as u64) as usize)?;
        Some(Local::Lookup(*dir, name.clone(), lease.ino))
    }

    /// Whether it may rely on all names of a directory.
    pub fn knows_names(&self, dir: Ino) -> bool {
        self.caps.get(&dir).is_some_and(|c| c.issued & caps::FILE_SHARED != 0)
    }

    /// It may rely on a name no more, and says so, whether it did or not.
    pub fn lease_ended(&mut self, from: Rank, end: &LeaseEnd) -> Vec<Step> {
        self.leases.remove(&(end.dir, end.name.clone()));
        let event = Event::LeaseRelease(self.id, end.dir, end.name.clone(), end.seq);
        vec![Step::Send(from, event)]
    }

    /// A name is shown, with a lease or without.
    fn name_shown(&mut self, from: Rank, dir: Ino, name: &Name, ino: Option<Ino>, lease: Lease) {
        let key = (dir, name.clone());
        if lease.duration_ms == 0 {
            if self.leases.get(&key).is_some_and(|l| l.ino != ino) {
                self.leases.remove(&key);
            }
            return;
        }
        let until = self.sent + u64::from(lease.duration_ms) * 1_000_000;
        self.leases.insert(key, Leased { ino, until, rank: from, seq: lease.seq });
    }

    fn request(&mut self, rng: &mut Rng) -> Option<Request> {
        let (op, path, path2) = self.choose(rng)?;
        // A client may not know the owner.
        let lost = self.owners > 1 && rng.permille(100);
        let any = Rank(rng.range(0, u64::from(self.owners)) as u16);
        self.asked = match lost && !self.gone.contains(&any) {
            true => any,
            false => self.holder(path.ino),
        };
        let mut releases = Vec::new();
        // As libcephfs: what a change takes back anyway is given back with the request.
        if op.is_write() && rng.permille(500) {
            releases = self.give_back_names(BTreeSet::from([path.ino, path2.ino]));
            for release in &mut releases {
                let path = if release.ino == path.ino { &path } else { &path2 };
                let key = (path.ino, path.path.clone());
                if self.leases.get(&key).is_some_and(|l| l.rank == self.asked) {
                    release.lease = self.leases.remove(&key).map(|l| (key.1, l.seq));
                }
            }
        }
        self.sent = self.now;
        let stamp = self.stamp();
        let tid = self.next_tid;
        self.next_tid += 1;
        Some(Request {
            tid,
            oldest_tid: self.early.values().flatten().map(|r| r.tid).min().unwrap_or(tid),
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            stamp,
            path,
            path2,
            releases,
            replay: None,
            op,
        })
    }

    /// What is asked for, and of which files.
    fn choose(&self, rng: &mut Rng) -> Option<(Op, FilePath, FilePath)> {
        let dir = self.pick(rng, true)?;
        let other = self.pick(rng, true)?;
        let file = self.pick(rng, false);
        let any = if rng.permille(300) { dir } else { file.unwrap_or(dir) };
        let name = |rng: &mut Rng| {
            Name::from_static(NAMES[rng.range(0, NAMES.len() as u64) as usize].as_bytes())
        };
        let (a, b) = (name(rng), name(rng));
        let at = |ino: Ino, path: &Name| FilePath { ino, path: path.clone() };
        let this = |ino: Ino| FilePath { ino, path: Name::new() };
        let none = FilePath::default();
        let mode = rng.range(0, 0o1000) as u32;
        let wanted = match rng.range(0, 3) {
            0 => caps::for_mode(true, false, false),
            1 => caps::for_mode(false, true, false),
            _ => caps::for_mode(true, true, false),
        };
        let mask = [
            caps::AUTH_SHARED,
            caps::LINK_SHARED,
            caps::XATTR_SHARED,
            caps::FILE_SHARED,
            caps::ANY_SHARED,
            0,
        ][rng.range(0, 6) as usize];
        let (op, path, path2) = match rng.range(0, 32) {
            0..6 => {
                let exclusive = rng.permille(500);
                let op = Op::Create {
                    mode,
                    wanted,
                    exclusive,
                    truncate: false,
                    layout: LayoutHints::default(),
                };
                (op, at(dir, &a), none)
            }
            6..9 => (Op::Mkdir { mode }, at(dir, &a), none),
            9 => (Op::Symlink { target: b }, at(dir, &a), none),
            10..13 => (Op::Unlink, at(dir, &a), none),
            13..15 => (Op::Rmdir, at(dir, &a), none),
            15..19 => (Op::Rename, at(dir, &a), at(other, &b)),
            19..21 => (Op::Link, at(dir, &a), this(file?)),
            21..24 => (Op::Lookup { mask }, at(dir, &a), none),
            24..26 => (Op::Getattr { mask }, this(any), none),
            26 => {
                let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                (Op::Setattr(set), this(any), none)
            }
            27 => {
                let set = SetAttr { size: Some(rng.range(0, 20_000)), ..SetAttr::default() };
                (Op::Setattr(set), this(any), none)
            }
            28 => {
                let mode = XattrMode::Any;
                (Op::Setxattr { name: a, value: b, mode }, this(any), none)
            }
            29 => (Op::Rmxattr { name: a }, this(any), none),
            30 => (Op::Open { wanted, truncate: rng.permille(200) }, this(file?), none),
            _ => {
                let after = rng.permille(500).then_some(b);
                let max_entries = rng.range(0, 5) as u32;
                (Op::Readdir { after, max_entries, max_bytes: 0 }, this(dir), none)
            }
        };
        if self.trees && rng.permille(80) {
            let rank = rng.range(0, u64::from(self.owners) + 1) as i64 - 1;
            let op = set_virtual("ceph.dir.pin", rank.to_string());
            return (dir != Ino::ROOT).then(|| (op, this(dir), FilePath::default()));
        }
        if self.moves && rng.permille(150) {
            let (op, ino) = self.choose_move(rng, dir)?;
            return Some((op, this(ino), FilePath::default()));
        }
        Some(match op {
            // Where directories are made from now on.
            Op::Setxattr { .. } if self.owners > 1 && rng.permille(500) => {
                let (name, value) = match rng.range(0, 4) {
                    0 => ("ceph.dir.pin.distributed", rng.range(0, 2).to_string()),
                    1 => {
                        ("ceph.dir.pin.random", ["0", "0.5", "1"][rng.range(0, 3) as usize].into())
                    }
                    _ => {
                        let rank = rng.range(0, u64::from(self.owners) + 1) as i64 - 1;
                        ("ceph.dir.pin", rank.to_string())
                    }
                };
                let name = Name::from_static(name.as_bytes());
                let mode = XattrMode::Any;
                (Op::Setxattr { name, value: value.into(), mode }, this(dir), path2)
            }
            op => (op, path, path2),
        })
    }

    /// A subvolume's pin, or one more subvolume.
    fn choose_move(&self, rng: &mut Rng, dir: Ino) -> Option<(Op, Ino)> {
        let of = rng.range(0, self.volumes.len() as u64 + 1) as usize;
        match self.volumes.get(of) {
            Some(root) => {
                let rank = rng.range(0, u64::from(self.owners) + 1) as i64 - 1;
                Some((set_virtual("ceph.dir.pin", rank.to_string()), *root))
            }
            None if dir == Ino::ROOT => None,
            None => Some((set_virtual("ceph.dir.subvolume", "1".into()), dir)),
        }
    }

    /// Gives back the right to know the names of directories, if the owner that is asked gave it.
    fn give_back_names(&mut self, dirs: BTreeSet<Ino>) -> Vec<Release> {
        let mut releases = Vec::new();
        for ino in dirs {
            if let Some(cap) = self.caps.get_mut(&ino)
                && cap.issued & caps::FILE_EXCL == 0
                && cap.inode.is_dir()
                && cap.rank == self.asked
            {
                cap.issued &= !caps::FILE_SHARED;
                cap.names.clear();
                cap.complete = false;
                releases.push(Release {
                    ino,
                    cap_id: cap.id,
                    caps: cap.issued,
                    wanted: cap.wanted,
                    seq: cap.seq,
                    issue_seq: cap.issue_seq,
                    lease: None,
                });
            }
        }
        releases
    }

    /// The owner that gave it a capability, or that the number says.
    fn holder(&self, ino: Ino) -> Rank {
        let moves = self.moves || self.trees;
        match self.caps.get(&ino).filter(|c| moves && self.open.contains(&c.rank)) {
            Some(cap) => cap.rank,
            None => self.owner(ino),
        }
    }

    fn owner(&self, ino: Ino) -> Rank {
        let owner = if self.owners > 1 { ino.owner() } else { Rank(0) };
        if self.gone.contains(&owner) || !self.knows(owner) { Rank(0) } else { owner }
    }

    /// Goes on at another owner, with another request in place of its own.
    pub fn forwarded(&mut self, to: Rank, request: Request) -> Vec<Step> {
        if self.waiting.as_ref().is_none_or(|w| w.tid != request.tid) {
            return Vec::new();
        }
        // It learns from the map that there is no such owner any more.
        let to = if self.gone.contains(&to) { Rank(0) } else { to };
        // Or that there is one.
        let mut steps = self.hears_of(to.0 + 1);
        self.asked = to;
        self.waiting = Some(request.clone());
        steps.push(Step::Send(to, Event::Request(self.id, request)));
        steps
    }

    /// Makes the message with which it tells what it changed, what it keeps and what it wants.
    fn update(&mut self, ino: Ino) -> Option<(Rank, CapsUpdate)> {
        let cap = self.caps.get_mut(&ino)?;
        let inode = &cap.inode;
        let attrs = CapAttrs {
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            size: inode.size,
            mtime: inode.mtime,
            atime: inode.atime,
            ctime: inode.ctime,
            btime: inode.btime,
            time_warp_seq: inode.time_warp_seq,
            change_attr: inode.change_attr,
            xattrs: None,
        };
        let dirty = std::mem::take(&mut cap.dirty);
        let mut update = CapsUpdate {
            ino,
            cap_id: cap.id,
            seq: cap.seq,
            issue_seq: cap.issue_seq,
            caps: cap.issued,
            wanted: cap.wanted,
            dirty,
            attrs,
            ..CapsUpdate::default()
        };
        if dirty != 0 {
            let tid = self.next_flush;
            self.next_flush += 1;
            update.flush = Some(tid);
            self.flushes.insert(tid, Flush { rank: cap.rank, update: update.clone() });
        }
        let rank = cap.rank;
        update.oldest_flush = self.flushes.keys().next().copied().unwrap_or(self.next_flush);
        Some((rank, update))
    }

    /// Tells changes of an inode, or wants more room, or closes it.
    fn flush_one(&mut self, rng: &mut Rng) -> Vec<Step> {
        let inos: Vec<Ino> = self.caps.keys().copied().collect();
        if inos.is_empty() {
            return Vec::new();
        }
        let ino = inos[rng.range(0, inos.len() as u64) as usize];
        if rng.permille(500)
            && let Some(cap) = self.caps.get_mut(&ino)
        {
            cap.wanted = 0;
        }
        let room = if rng.permille(300) { rng.range(1, 1 << 24) } else { 0 };
        match self.update(ino) {
            Some((rank, update)) => {
                let sync = update.flush.is_some_and(|flush| flush % 3 == 0);
                let update = CapsUpdate { max_size: room, sync, ..update };
                vec![Step::Send(rank, Event::Caps(self.id, update))]
            }
            None => Vec::new(),
        }
    }

    /// Drops an inode that it does not need.
    fn drop_one(&mut self, rng: &mut Rng) -> Vec<Step> {
        let flushing: BTreeSet<Ino> = self.flushes.values().map(|f| f.update.ino).collect();
        let inos: Vec<Ino> = self
            .caps
            .iter()
            .filter(|(ino, c)| c.dirty == 0 && c.wanted == 0 && !flushing.contains(ino))
            .map(|(ino, _)| *ino)
            .collect();
        if inos.is_empty() {
            return Vec::new();
        }
        self.drop_cap(inos[rng.range(0, inos.len() as u64) as usize])
    }

    fn drop_cap(&mut self, ino: Ino) -> Vec<Step> {
        let Some(cap) = self.caps.remove(&ino) else { return Vec::new() };
        // As libcephfs: a directory goes with all names in it.
        self.leases.retain(|(dir, _), _| *dir != ino);
        let list = vec![(ino, cap.id, cap.issue_seq)];
        vec![Step::Send(cap.rank, Event::CapRelease(self.id, list))]
    }

    /// Closes and flushes all, and then drops all.
    pub fn wind_down(&mut self) -> Vec<Step> {
        if self.waiting.is_some() || !self.is_open() {
            return Vec::new();
        }
        let inos: Vec<Ino> = self.caps.keys().copied().collect();
        let mut steps = Vec::new();
        for ino in inos {
            let busy = self.flushes.values().any(|f| f.update.ino == ino);
            let Some(cap) = self.caps.get_mut(&ino) else { continue };
            if cap.dirty != 0 || cap.wanted != 0 {
                cap.wanted = 0;
                if let Some((rank, update)) = self.update(ino) {
                    steps.push(Step::Send(rank, Event::Caps(self.id, update)));
                }
            } else if !busy {
                steps.extend(self.drop_cap(ino));
            }
        }
        steps
    }

    /// Takes what a record shows, as far as the client does not know better.
    fn learn(&mut self, from: Rank, stat: &InodeStat) {
        let ino = stat.inode.ino;
        self.known.insert(ino, stat.inode.is_dir());
        if stat.cap.cap_id == 0 {
            return;
        }
        let keep = self.own(ino);
        let cap = self.caps.entry(ino).or_default();
        cap.id = stat.cap.cap_id;
        cap.rank = from;
        let had = std::mem::replace(&mut cap.issued, stat.cap.caps);
        if had & caps::FILE_SHARED == 0 {
            cap.names.clear();
            cap.complete = false;
        }
        cap.seq = stat.cap.seq;
        cap.issue_seq = stat.cap.seq;
        cap.wanted |= stat.cap.wanted;
        cap.max_size = stat.max_size;
        take_attrs(&mut cap.inode, &stat.inode, keep);
    }

    /// Groups of an inode that the client has changed and the server may not know.
    fn own(&self, ino: Ino) -> u32 {
        let flushing = self
            .flushes
            .values()
            .filter(|f| f.update.ino == ino)
            .fold(0, |d, f| d | f.update.dirty);
        flushing | self.caps.get(&ino).map_or(0, |c| c.dirty)
    }

    /// What of an inode the client knows better than the server.
    pub fn knows_better(&self, ino: Ino) -> u32 {
        let own = self.own(ino);
        let auth = if own & caps::AUTH_EXCL != 0 { caps::AUTH_SHARED } else { 0 };
        let file = if own & (caps::FILE_WR | caps::FILE_EXCL) != 0 { caps::FILE_SHARED } else { 0 };
        auth | file
    }

    /// A message about capabilities.
    pub fn caps_message(&mut self, message: &CapsMessage) -> Result<Vec<Step>, String> {
        let ino = message.inode.ino;
        if let CapsOp::FlushAck { flush, .. } = message.op {
            self.flushes.remove(&flush);
            return Ok(Vec::new());
        }
        if message.op == CapsOp::Export {
            return self.exported(ino, message.cap_id).map(|()| Vec::new());
        }
        Ok(self.granted(message))
    }

    /// An inode is another owner's, and with it goes what the client had of it.
    fn exported(&mut self, ino: Ino, id: u64) -> Result<(), String> {
        let Some(cap) = self.caps.get(&ino).filter(|c| c.id == id) else { return Ok(()) };
        let unheard = |f: &Flush| f.update.ino == ino && f.rank == cap.rank;
        if cap.dirty != 0 || cap.issued & !caps::PIN != 0 || self.flushes.values().any(unheard) {
            return Err(format!("{:?} has more of {ino:?}, which moves: {cap:?}", self.id));
        }
        self.caps.remove(&ino);
        Ok(())
    }

    fn granted(&mut self, message: &CapsMessage) -> Vec<Step> {
        let ino = message.inode.ino;
        let keep = self.own(ino);
        let Some(cap) = self.caps.get_mut(&ino) else {
            // It has been dropped; the server will hear of it.
            return Vec::new();
        };
        if cap.id != message.cap_id {
            return Vec::new();
        }
        let had = std::mem::replace(&mut cap.issued, message.caps);
        cap.seq = message.seq;
        cap.max_size = message.max_size;
        take_attrs(&mut cap.inode, &message.inode, keep);
        if cap.issued & caps::FILE_SHARED == 0 {
            cap.names.clear();
            cap.complete = false;
        }
        // As libcephfs: a message that takes nothing away is not answered. What it asks for may
        // have been given back with a request that crossed it.
        if message.op != CapsOp::Revoke || had & !message.caps == 0 {
            return Vec::new();
        }
        let update = self.update(ino);
        update.map(|(rank, u)| Step::Send(rank, Event::Caps(self.id, u))).into_iter().collect()
    }

    /// An answer. Says which request it is for.
    pub fn reply(&mut self, from: Rank, reply: &Reply) -> Option<Request> {
        if reply.safe {
            self.early.values_mut().for_each(|requests| requests.retain(|r| r.tid != reply.tid));
        }
        let request = self.waiting.take_if(|r| r.tid == reply.tid)?;
        if !reply.safe {
            let target = reply.target.as_ref().map(|t| t.inode.ino);
            let replay = Some(target.unwrap_or_default());
            let kept = Request { replay, releases: Vec::new(), ..request.clone() };
            self.early.entry(from).or_default().push(kept);
        }
        let known = self.caps.get(&request.path.ino).and_then(|c| c.names.get(&request.path.path));
        let replaced = known.copied();
        for stat in reply.dentry.iter().map(|d| &d.dir).chain(&reply.target) {
            self.learn(from, stat);
        }
        if let Some(d) = &reply.dentry {
            let target = reply.target.as_ref().map(|t| t.inode.ino);
            self.name_shown(from, d.dir.inode.ino, &d.name, target, d.lease);
        }
        // Done before, and answered without a trace: names that it changed are not known.
        if reply.result == 0 && request.op.is_write() && reply.dentry.is_none() {
            for ino in [request.path.ino, request.path2.ino] {
                self.leases.retain(|(dir, _), _| *dir != ino);
                if let Some(cap) = self.caps.get_mut(&ino) {
                    cap.names.clear();
                    cap.complete = false;
                }
            }
        }
        if let Some(d) = &reply.dentry
            && let Some(cap) = self.caps.get_mut(&d.dir.inode.ino)
            && cap.issued & caps::FILE_SHARED != 0
        {
            match (&reply.target, &request.op) {
                (_, Op::Unlink | Op::Rmdir) => cap.names.remove(&d.name),
                (Some(target), _) => cap.names.insert(d.name.clone(), target.inode.ino),
                // It is another owner's: the name stands for something else.
                _ => {
                    cap.complete = false;
                    cap.names.remove(&d.name)
                }
            };
        }
        if let (0, Op::Rename) = (reply.result, &request.op) {
            self.renamed(&request, reply, replaced);
        }
        if let (Op::Readdir { after, .. }, Extra::Page { end, entries, .. }) =
            (&request.op, &reply.extra)
        {
            for (name, lease, stat) in entries {
                self.learn(from, stat);
                let ino = stat.inode.ino;
                self.name_shown(from, request.path.ino, name, Some(ino), *lease);
            }
            if let Some(cap) = self.caps.get_mut(&request.path.ino)
                && cap.issued & caps::FILE_SHARED != 0
            {
                for (name, _, stat) in entries {
                    cap.names.insert(name.clone(), stat.inode.ino);
                }
                if *end && after.is_none() {
                    cap.complete = true;
                }
            }
        }
        if let (Op::Create { .. } | Op::Mkdir { .. }, Some(target)) = (&request.op, &reply.target) {
            self.made.insert(target.inode.ino, target.inode.is_dir());
        }
        if let Op::Setxattr { name, .. } = &request.op
            && reply.result == 0
            && name == "ceph.dir.subvolume"
            && !self.volumes.contains(&request.path.ino)
        {
            self.volumes.push(request.path.ino);
        }
        if reply.result == -types::Errno::ESTALE.0 {
            self.volumes.retain(|ino| *ino != request.path.ino);
            for ino in [request.path.ino, request.path2.ino] {
                self.known.remove(&ino);
                self.made.remove(&ino);
            }
            self.known.insert(Ino::ROOT, true);
        }
        Some(request)
    }

    /// A rename is done. The name stood for `replaced`, as far as was known.
    fn renamed(&mut self, request: &Request, reply: &Reply, replaced: Option<Ino>) {
        let path = &request.path2;
        let target = reply.target.as_ref().map(|t| t.inode.ino);
        self.leases.remove(&(path.ino, path.path.clone()));
        self.leases.retain(|_, l| replaced.is_none_or(|r| Some(r) != l.ino || target == Some(r)));
        let same = *path == request.path;
        let linked = reply.dentry.is_some() && !same;
        if linked && let Some(cap) = self.caps.get_mut(&path.ino) {
            // Two names of one inode stay; the client cannot tell, and asks again.
            cap.names.remove(&path.path);
            cap.complete = false;
        }
        // As libcephfs: all names of an inode that was replaced are held for gone. Those in
        // other directories are left out here: no server finds them.
        let over =
            replaced.filter(|ino| reply.target.as_ref().is_some_and(|t| t.inode.ino != *ino));
        for dir in [request.path.ino, path.ino] {
            if over.is_some()
                && let Some(cap) = self.caps.get_mut(&dir)
            {
                cap.names.retain(|_, ino| Some(*ino) != over);
            }
        }
    }

    /// It learns from the map that there are so many owners, or were.
    pub fn hears_of(&mut self, owners: u16) -> Vec<Step> {
        let new = self.owners..owners;
        self.owners = self.owners.max(owners);
        let there = new.map(Rank).filter(|rank| !self.gone.contains(rank));
        there.map(|rank| Step::Send(rank, Event::Session(self.id, SessionEvent::Open))).collect()
    }

    /// Whether it knows that there is an owner.
    pub fn knows(&self, rank: Rank) -> bool {
        rank.0 < self.owners
    }

    /// A word about its session.
    pub fn session(&mut self, from: Rank, message: SessionMessage) {
        match message {
            SessionMessage::Open => {
                self.open.insert(from);
            }
            SessionMessage::Close => {
                self.leases.retain(|_, l| l.rank != from);
                self.open.remove(&from);
            }
            _ => {}
        }
    }

    /// An owner has left, and ended the session. What it had not heard of is lost with it.
    pub fn left(&mut self, rank: Rank) -> Result<Vec<Step>, String> {
        self.leases.retain(|_, l| l.rank != rank);
        self.open.remove(&rank);
        if !self.gone.insert(rank) {
            return Ok(Vec::new());
        }
        let mut steps = self.hears_of(rank.0 + 1);
        let unheard = |c: &&Cap| c.rank == rank && (c.dirty != 0 || c.issued & !caps::PIN != 0);
        if let Some(cap) = self.caps.values().find(unheard) {
            return Err(format!("{:?} has more of {rank:?}, which left: {cap:?}", self.id));
        }
        // The log has what was told, though the answer may not have come before a crash: what is at
        // rest in the end shows it.
        self.early.remove(&rank);
        self.flushes.retain(|_, flush| flush.rank != rank);
        self.caps.retain(|_, cap| cap.rank != rank);
        let Some(request) = self.waiting.as_mut().filter(|_| self.asked == rank) else {
            return Ok(steps);
        };
        request.releases.clear();
        let request = request.clone();
        self.asked = self.owner(request.path.ino);
        steps.push(Step::Send(self.asked, Event::Request(self.id, request)));
        Ok(steps)
    }

    /// An owner rests, and has ended the session. It has heard all before: what it gave no answer
    /// to is done.
    pub fn slept(&mut self, rank: Rank) -> Result<(), String> {
        self.leases.retain(|_, l| l.rank != rank);
        self.open.remove(&rank);
        let unheard = |c: &&Cap| c.rank == rank && (c.dirty != 0 || c.issued & !caps::PIN != 0);
        if let Some(cap) = self.caps.values().find(unheard) {
            return Err(format!("{:?} has more of {rank:?}, which rests: {cap:?}", self.id));
        }
        self.early.remove(&rank);
        self.flushes.retain(|_, f| f.rank != rank);
        self.caps.retain(|_, cap| cap.rank != rank);
        Ok(())
    }

    /// An owner serves clients again.
    pub fn woke(&mut self, rank: Rank) -> Vec<Step> {
        if self.open.contains(&rank) {
            return Vec::new();
        }
        let mut steps = vec![Step::Send(rank, Event::Session(self.id, SessionEvent::Open))];
        if let Some(request) = self.waiting.as_mut().filter(|_| self.asked == rank) {
            request.releases.clear();
            steps.push(Step::Send(rank, Event::Request(self.id, request.clone())));
        }
        steps
    }

    /// What it tells a server that took over.
    pub fn reconnect(&mut self, rank: Rank) -> Vec<Step> {
        let mut events = vec![Event::Session(self.id, SessionEvent::Open)];
        let early = self.early.get(&rank).into_iter().flatten();
        events.extend(early.map(|request| Event::Request(self.id, request.clone())));
        for cap in self.caps.values_mut().filter(|c| c.rank == rank) {
            (cap.seq, cap.issue_seq) = (0, 0);
        }
        let oldest = self.flushes.keys().next().copied().unwrap_or(self.next_flush);
        for flush in self.flushes.values_mut().filter(|f| f.rank == rank) {
            flush.update.seq = 0;
            flush.update.issue_seq = 0;
            if let Some(cap) = self.caps.get(&flush.update.ino) {
                flush.update.caps = cap.issued;
                flush.update.wanted = cap.wanted;
            }
            let update = CapsUpdate { oldest_flush: oldest, ..flush.update.clone() };
            events.push(Event::Caps(self.id, update));
        }
        let claims = self
            .caps
            .iter()
            .filter(|(_, c)| c.rank == rank)
            .map(|(ino, c)| Claim {
                ino: *ino,
                cap_id: c.id,
                issued: c.issued,
                wanted: c.wanted,
                locks: Vec::new(),
            })
            .collect();
        events.push(Event::Reconnect(self.id, claims));
        events.push(Event::Reconnected(self.id));
        let mut steps: Vec<Step> =
            events.into_iter().map(|event| Step::Send(rank, event)).collect();
        if let Some(request) = &mut self.waiting
            && self.asked == rank
        {
            request.releases.clear();
            // Some ask again at any owner.
            if self.owners > 1 && request.tid % 4 == 0 {
                let any = Rank((request.tid / 4 % u64::from(self.owners)) as u16);
                self.asked = if self.gone.contains(&any) { Rank(0) } else { any };
            }
            steps.push(Step::Send(self.asked, Event::Request(self.id, request.clone())));
        }
        steps
    }
}

/// Sets a virtual attribute.
fn set_virtual(name: &'static str, value: String) -> Op {
    Op::Setxattr {
        name: Name::from_static(name.as_bytes()),
        value: value.into(),
        mode: XattrMode::Any,
    }
}

/// Takes attributes over, but for groups that are changed here.
fn take_attrs(mine: &mut Inode, new: &Inode, keep: u32) {
    let old = std::mem::replace(mine, new.clone());
    if keep & caps::AUTH_EXCL != 0 {
        (mine.mode, mine.uid, mine.gid) = (old.mode, old.uid, old.gid);
    }
    if keep & (caps::FILE_WR | caps::FILE_EXCL) != 0 {
        mine.size = old.size.max(new.size);
        mine.mtime = old.mtime;
    }
}
