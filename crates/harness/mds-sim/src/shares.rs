//! What two subvolumes get of one server, in virtual time. The server has one core, which is busy
//! for a while with each message, and with each request that it carries out. Requests that have
//! arrived are read before the next ones begin, as the daemon does.

use crate::bench::Bench;
use crate::disk::Disk;
use mds::{
    Action, CapsOp, ClientId, Event, FilePath, Ino, LayoutHints, Mds, Name, Op, Request,
    SessionEvent, XattrMode,
};
use std::collections::{BTreeMap, VecDeque};
use types::Utime;

const US: u64 = 1_000;
/// How long a message is on its way to a client, and the next request to the server.
const TURN: u64 = 100 * US;
/// What a message takes of the core.
const MESSAGE: u64 = 10 * US;
/// What any other event takes.
const OTHER: u64 = 2 * US;
/// The window is found in this time.
const LEAD: u64 = 800_000 * US;
const SPAN: u64 = 400_000 * US;

/// What clients do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Each makes files.
    Create,
    /// Each looks at its directory.
    Stat,
}

/// What a server has: how many requests begin at one event, what each takes of the core, and how
/// long a write of the log takes.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Requests that begin at one event.
    pub at_once: usize,
    /// What a request takes of the core, in microseconds.
    pub request_us: u64,
    /// How long a write of the log takes, in microseconds.
    pub log_us: u64,
}

struct World {
    mds: Mds,
    disk: Disk,
    machine: Machine,
    load: Load,
    busy: u64,
    inbox: VecDeque<Event>,
    queue: BTreeMap<(u64, u64), Option<Event>>,
    next: u64,
    /// Directories of clients.
    homes: BTreeMap<ClientId, Ino>,
    tids: BTreeMap<ClientId, u64>,
    answers: BTreeMap<ClientId, (u64, Option<Ino>)>,
}

/// Requests that are answered in a second in each of the subvolumes, which have so many clients.
/// Each client has one request under way.
pub fn requests_a_second(machine: Machine, load: Load, clients: &[u64]) -> Vec<u64> {
    let conf = mds::Conf { requests_at_once: machine.at_once, history: true, ..Bench::conf() };
    let mut world = World {
        mds: Mds::create(conf, 0, Utime::new(1, 0)),
        disk: Disk::default(),
        machine,
        load,
        busy: 0,
        inbox: VecDeque::new(),
        queue: BTreeMap::new(),
        next: 0,
        homes: BTreeMap::new(),
        tids: BTreeMap::new(),
        answers: BTreeMap::new(),
    };
    world.drain(0);
    let first = ClientId(1);
    world.open(first);
    let mut members = Vec::new();
    let mut id = 1;
    for (i, number) in clients.iter().enumerate() {
        let dir = world.made(first, Ino::ROOT, format!("subvolume {i}"));
        let op = Op::Setxattr {
            name: Name::from_static(b"ceph.dir.subvolume"),
            value: Name::from_static(b"1"),
            mode: XattrMode::Any,
        };
        world.wait_for(first, dir, String::new(), op);
        let mut of = Vec::new();
        for _ in 0..*number {
            id += 1;
            world.open(ClientId(id));
            let home = world.made(ClientId(id), dir, format!("home {id}"));
            of.push((ClientId(id), home));
        }
        members.push(of);
    }
    let begin = world.busy;
    for (client, home) in members.iter().flatten() {
        world.homes.insert(*client, *home);
        world.ask(begin, *client);
    }
    world.until(begin + LEAD);
    let count = |w: &World| -> Vec<u64> {
        members.iter().map(|of| of.iter().map(|(c, _)| w.answers[c].0).sum()).collect()
    };
    let before = count(&world);
    world.until(begin + LEAD + SPAN);
    let rate = |(after, before)| (after - before) * 1_000_000 * US / SPAN;
    count(&world).into_iter().zip(before).map(rate).collect()
}

impl World {
    fn open(&mut self, client: ClientId) {
        let at = self.busy;
        self.send(at, Event::Session(client, SessionEvent::Open));
    }

    fn send(&mut self, at: u64, event: Event) {
        self.next += 1;
        self.queue.insert((at, self.next), Some(event));
    }

    /// Carries out what happens up to a moment.
    fn until(&mut self, end: u64) {
        while self.queue.first_key_value().is_some_and(|(key, _)| key.0 <= end) {
            self.once();
        }
    }

    /// Carries out what happens next.
    fn once(&mut self) {
        let Some(((at, _), event)) = self.queue.pop_first() else { return };
        if let Some(event) = event {
            self.inbox.push_back(event);
            if self.inbox.len() == 1 {
                self.next += 1;
                self.queue.insert((at.max(self.busy), self.next), None);
            }
            return;
        }
        let Some(event) = self.inbox.pop_front() else { return };
        let took = if matches!(event, Event::Request(..)) { MESSAGE } else { OTHER };
        self.mds.handle(at, event);
        let began = self.mds.take_history().len() as u64;
        self.busy = at + took + began * self.machine.request_us * US;
        if !self.inbox.is_empty() {
            self.next += 1;
            self.queue.insert((self.busy, self.next), None);
        }
        self.drain(self.busy);
    }

    fn drain(&mut self, now: u64) {
        let log = self.machine.log_us * US;
        while let Some(action) = self.mds.poll() {
            if !matches!(action, Action::Append(..) | Action::TrimLog(_))
                && let Some(token) = self.disk.apply(&action)
            {
                self.send(now + log, Event::Done(token));
                continue;
            }
            match action {
                Action::Append(batch, _) => self.send(now + log, Event::Appended(batch)),
                Action::WakeAt(at) => self.send(at.max(now), Event::Wake),
                Action::Caps(client, message) if message.op == CapsOp::Revoke => {
                    let update = crate::bench::given_back(&message);
                    self.send(now + TURN, Event::Caps(client, update));
                }
                Action::Lease(client, end) => {
                    self.send(now + TURN, crate::bench::lease_back(client, &end));
                }
                Action::Reply(client, reply) => {
                    assert_eq!(reply.result, 0, "{reply:?}");
                    let of = self.answers.entry(client).or_default();
                    *of = (of.0 + 1, reply.target.map(|t| t.inode.ino));
                    if self.homes.contains_key(&client) {
                        self.ask(now + TURN, client);
                    }
                }
                _ => {}
            }
        }
    }

    fn made(&mut self, client: ClientId, dir: Ino, name: String) -> Ino {
        self.wait_for(client, dir, name, Op::Mkdir { mode: 0o755 }).expect("a directory")
    }

    /// Asks, and has things happen until the answer.
    fn wait_for(&mut self, client: ClientId, dir: Ino, name: String, op: Op) -> Option<Ino> {
        let answers = |w: &World| w.answers.get(&client).map_or(0, |a| a.0);
        let before = answers(self);
        self.request(self.busy, client, dir, name, op);
        while answers(self) == before {
            assert!(!self.queue.is_empty(), "no answer");
            self.once();
        }
        self.answers[&client].1
    }

    /// A client's next request.
    fn ask(&mut self, at: u64, client: ClientId) {
        let home = self.homes[&client];
        match self.load {
            Load::Stat => {
                self.request(at, client, home, String::new(), Op::Getattr { mask: 0 });
            }
            Load::Create => {
                let op = Op::Create {
                    mode: 0o644,
                    wanted: 0,
                    exclusive: true,
                    truncate: false,
                    layout: LayoutHints::default(),
                };
                let name = self.tids.get(&client).copied().unwrap_or(0);
                self.request(at, client, home, format!("{name}"), op);
            }
        }
    }

    fn request(&mut self, at: u64, client: ClientId, dir: Ino, name: String, op: Op) {
        let tid = self.tids.entry(client).or_default();
        *tid += 1;
        let request = Request {
            tid: *tid,
            oldest_tid: *tid,
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            stamp: Utime::new(2, 0),
            path: FilePath { ino: dir, path: Name::from(name) },
            path2: FilePath::default(),
            releases: Vec::new(),
            replay: None,
            op,
        };
        self.send(at, Event::Request(client, request));
    }
}
