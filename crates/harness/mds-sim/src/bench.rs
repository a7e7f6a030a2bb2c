//! A server, a disk that does at once what it is told, and clients that give back at once what they
//! are asked for: for tests of single requests.

use crate::disk::Disk;
use mds::{
    Action, CapsMessage, CapsOp, CapsUpdate, Claim, ClientId, Conf, Event, FilePath, Ino, Layout,
    Mds, Name, Op, Rank, Release, Reply, Request, SessionEvent, peer,
};
use std::collections::BTreeMap;
use types::Utime;

/// What a client answers that is asked for a lease.
pub(crate) fn lease_back(client: ClientId, end: &mds::LeaseEnd) -> Event {
    Event::LeaseRelease(client, end.dir, end.name.clone(), end.seq)
}

/// The answer of a client that gives capabilities back as soon as it is asked.
pub(crate) fn given_back(message: &CapsMessage) -> CapsUpdate {
    CapsUpdate {
        ino: message.inode.ino,
        cap_id: message.cap_id,
        seq: message.seq,
        issue_seq: message.seq,
        caps: message.caps,
        wanted: message.wanted,
        ..CapsUpdate::default()
    }
}

/// A server and its disk.
#[derive(Debug)]
pub struct Bench {
    /// The server.
    pub mds: Mds,
    /// What is at rest.
    pub disk: Disk,
    /// The time.
    pub now: u64,
    /// What clients were told, and when.
    pub told: Vec<(u64, ClientId, Action)>,
    /// What other owners were told.
    pub words: Vec<(Rank, peer::Message)>,
    /// Batches of the log are not written.
    pub holds_log: bool,
    /// Clients give leases back when they are asked.
    pub gives_leases: bool,
    held: Vec<Action>,
    tid: u64,
    /// Requests by their numbers.
    sent: BTreeMap<u64, Request>,
    /// The last request.
    last: Option<Event>,
    wake: Option<u64>,
}

impl Bench {
    /// A configuration with one data pool, 1.
    pub fn conf() -> Conf {
        let layout = Layout {
            stripe_unit: 65_536,
            stripe_count: 1,
            object_size: 65_536,
            pool: 1,
            namespace: String::new(),
        };
        Conf { layout, data_pools: vec![1], ..Conf::default() }
    }

    /// A new file system with a client, 1, that has a session.
    pub fn new(conf: Conf) -> Bench {
        let mds = Mds::create(conf, 0, Utime::new(1, 0));
        let (disk, told, words) = (Disk::default(), Vec::new(), Vec::new());
        let (tid, last, wake) = (0, None, None);
        let mut bench = Bench {
            mds,
            disk,
            now: 0,
            told,
            words,
            holds_log: false,
            gives_leases: true,
            held: Vec::new(),
            tid,
            sent: BTreeMap::new(),
            last,
            wake,
        };
        bench.settle();
        bench.open(1);
        bench
    }

    /// Writes the batches of the log that were held.
    pub fn let_log_go(&mut self) {
        self.holds_log = false;
        for action in std::mem::take(&mut self.held) {
            if let Some(event) = self.act(action) {
                self.event(event);
            }
        }
    }

    /// Kills the server, and has another one read its log. What was held is lost.
    pub fn restart(&mut self, conf: Conf) {
        self.held.clear();
        self.holds_log = false;
        let mut replay = Mds::replay(conf, self.disk.tables.clone());
        for (batch, bytes) in &self.disk.log {
            replay.batch(*batch, bytes).expect("the log is whole");
        }
        self.mds = replay.finish(self.now, self.disk.trimmed);
        self.wake = None;
        self.settle();
    }

    /// Opens a session.
    pub fn open(&mut self, client: u64) {
        self.event(Event::Session(ClientId(client), SessionEvent::Open));
    }

    /// Gives the server an event, and does what it says.
    pub fn event(&mut self, event: Event) {
        self.mds.handle(self.now, event);
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(action) = self.mds.poll() {
            let answer = self.act(action);
            if let Some(event) = answer {
                self.mds.handle(self.now, event);
            }
        }
    }

    fn act(&mut self, action: Action) -> Option<Event> {
        if self.holds_log && matches!(action, Action::Append(..)) {
            self.held.push(action);
            return None;
        }
        if let Some(token) = self.disk.apply(&action) {
            return Some(Event::Done(token));
        }
        match action {
            Action::Append(batch, _) => Some(Event::Appended(batch)),
            Action::Blocklist { token, .. } => Some(Event::Done(token)),
            Action::Caps(client, ref message) if message.op == CapsOp::Revoke => {
                let update = given_back(message);
                self.told.push((self.now, client, action));
                Some(Event::Caps(client, update))
            }
            Action::Lease(client, ref end) => {
                let event = lease_back(client, end);
                self.told.push((self.now, client, action));
                self.gives_leases.then_some(event)
            }
            Action::Reply(client, _)
            | Action::Caps(client, _)
            | Action::Session(client, _)
            | Action::Forward(client, ..) => {
                self.told.push((self.now, client, action));
                None
            }
            Action::Peer(rank, message) => {
                self.words.push((rank, *message));
                None
            }
            Action::WakeAt(at) => {
                self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
                None
            }
            action => self.disk.read(&action),
        }
    }

    /// Lets the server do what it has put off.
    pub fn turn(&mut self) {
        if self.wake.take_if(|at| *at <= self.now).is_some() {
            self.event(Event::Wake);
        }
    }

    /// Lets time pass: the server wakes when it likes to.
    pub fn pass(&mut self, until: u64) {
        while let Some(at) = self.wake.filter(|at| *at <= until) {
            self.wake = None;
            self.now = self.now.max(at);
            self.event(Event::Wake);
        }
        self.now = until;
    }

    /// Sends a request. Says its number.
    pub fn send(&mut self, client: u64, dir: Ino, name: &str, from: (Ino, &str), op: Op) -> u64 {
        self.request(client, (dir, name), from, Vec::new(), op)
    }

    /// Sends a request with which capabilities are given back. Says its number.
    pub fn send_with(
        &mut self,
        client: u64,
        dir: Ino,
        name: &str,
        releases: Vec<Release>,
        op: Op,
    ) -> u64 {
        self.request(client, (dir, name), (Ino(0), ""), releases, op)
    }

    fn request(
        &mut self,
        client: u64,
        to: (Ino, &str),
        from: (Ino, &str),
        releases: Vec<Release>,
        op: Op,
    ) -> u64 {
        self.tid += 1;
        let at = |ino, path: &str| FilePath { ino, path: Name::copy_from_slice(path.as_bytes()) };
        let request = Request {
            tid: self.tid,
            oldest_tid: 0,
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            stamp: Utime::new(100 + self.tid as u32, 0),
            path: at(to.0, to.1),
            path2: at(from.0, from.1),
            releases,
            replay: None,
            op,
        };
        self.sent.insert(self.tid, request.clone());
        let event = Event::Request(ClientId(client), request);
        self.last = Some(event.clone());
        self.event(event);
        self.tid
    }

    /// Sends the last request again, as a client does that has no answer.
    pub fn send_again(&mut self) {
        if let Some(event) = self.last.clone() {
            self.event(event);
        }
    }

    /// A client is back: it asks again for what it was answered early, and claims what it had.
    pub fn come_back(&mut self, client: u64, again: &[(u64, Ino)], claims: Vec<Claim>) {
        let id = ClientId(client);
        self.event(Event::Session(id, SessionEvent::Open));
        for (tid, told) in again {
            let sent = self.sent.get(tid).cloned();
            if let Some(request) = sent {
                self.event(Event::Request(id, Request { replay: Some(*told), ..request }));
            }
        }
        self.event(Event::Reconnect(id, claims));
        self.event(Event::Reconnected(id));
    }

    /// All answers to a request.
    pub fn answers(&self, tid: u64) -> Vec<&Reply> {
        let of = |action: &'_ Action| matches!(action, Action::Reply(_, r) if r.tid == tid);
        let replies = self.told.iter().filter(|(_, _, action)| of(action));
        replies
            .filter_map(|(_, _, action)| match action {
                Action::Reply(_, reply) => Some(&**reply),
                _ => None,
            })
            .collect()
    }

    /// The answer to a request, if there is one.
    pub fn answer(&self, tid: u64) -> Option<&Reply> {
        self.told.iter().find_map(|(_, _, action)| match action {
            Action::Reply(_, reply) if reply.tid == tid => Some(&**reply),
            _ => None,
        })
    }

    /// Sends a request of client 1, which is answered at once.
    pub fn ask(&mut self, dir: Ino, name: &str, op: Op) -> Reply {
        let tid = self.send(1, dir, name, (Ino(0), ""), op);
        self.answer(tid).expect("an answer at once").clone()
    }

    /// Makes a directory.
    pub fn mkdir(&mut self, dir: Ino, name: &str) -> Ino {
        let reply = self.ask(dir, name, Op::Mkdir { mode: 0o755 });
        reply.target.expect("a directory").inode.ino
    }
}
