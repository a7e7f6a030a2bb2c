//! How many requests a second several owners do, in virtual time: each owner is a core that is busy
//! for a while with each event. The machines are the real ones, the durations are not: what counts
//! is how the figure grows with the owners.

use crate::disk::Disk;
use mds::{
    Action, CapsOp, ClientId, Event, FilePath, Ino, LayoutHints, Mds, Name, Op, Rank, Request,
    SessionEvent,
};
use std::collections::{BTreeMap, VecDeque};
use types::Utime;

const US: u64 = 1_000;
/// How long clients begin before what is measured.
const LEAD: u64 = 40_000 * US;
/// How long is measured of one owner, and of many at least. Clients wait for their answers: the
/// more owners, the sooner each asks again, and a span must see each client many times.
const SPAN_OF_ONE: u64 = 160_000 * US;
const SPAN_MIN: u64 = 20_000 * US;
/// What a request takes of its owner's core.
const REQUEST: u64 = 40 * US;
/// What another owner's word takes.
const WORD: u64 = 10 * US;
/// What any other event takes.
const OTHER: u64 = 2 * US;
/// How long a message, and how long a write, is on its way.
const MESSAGE: u64 = 50 * US;
const WRITE: u64 = 300 * US;

/// What clients do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Each makes files in a directory of its own.
    Create,
    /// Each makes directories in a directory of its own, which go to all owners.
    Mkdir,
}

/// An owner and its core.
struct Owner {
    mds: Mds,
    busy: u64,
    inbox: VecDeque<Event>,
}

struct World {
    load: Load,
    owners: Vec<Owner>,
    /// Logs of owners hold nothing that is read here.
    disk: Disk,
    /// What arrives, or that an owner takes the next of what it has.
    queue: BTreeMap<(u64, u64), (Rank, Option<Event>)>,
    next: u64,
    /// Directories of clients.
    homes: BTreeMap<ClientId, Ino>,
    tids: BTreeMap<ClientId, u64>,
    answered: u64,
}

/// Requests that are answered in a second, by so many owners for so many clients.
pub fn requests_a_second(owners: u16, clients: u64, load: Load) -> u64 {
    let make = |rank| {
        let conf =
            mds::Conf { rank: Rank(rank), owners, spread: true, ..crate::bench::Bench::conf() };
        let mds = Mds::create(conf, 0, Utime::new(1, 0));
        Owner { mds, busy: 0, inbox: VecDeque::new() }
    };
    let mut world = World {
        load,
        owners: (0..owners).map(make).collect(),
        disk: Disk::default(),
        queue: BTreeMap::new(),
        next: 0,
        homes: BTreeMap::new(),
        tids: BTreeMap::new(),
        answered: 0,
    };
    for rank in 0..owners {
        world.drain(Rank(rank), 0);
        for client in 1..=clients {
            let client = ClientId(client);
            world.send(0, Rank(rank), Event::Session(client, SessionEvent::Open));
        }
    }
    for client in 1..=clients {
        world.ask(10 * WRITE, ClientId(client));
    }
    world.until(LEAD);
    let before = world.answered;
    let span = (SPAN_OF_ONE / u64::from(owners)).max(SPAN_MIN);
    world.until(LEAD + span);
    (world.answered - before) * (1_000_000_000 / span)
}

impl World {
    fn send(&mut self, at: u64, rank: Rank, event: Event) {
        self.next += 1;
        self.queue.insert((at, self.next), (rank, Some(event)));
    }

    /// Carries out what happens up to a moment.
    fn until(&mut self, end: u64) {
        while let Some(entry) = self.queue.first_entry().filter(|e| e.key().0 <= end) {
            let ((at, _), (rank, event)) = entry.remove_entry();
            let owner = &mut self.owners[usize::from(rank.0)];
            if let Some(event) = event {
                owner.inbox.push_back(event);
                if owner.inbox.len() == 1 {
                    self.next += 1;
                    self.queue.insert((at.max(owner.busy), self.next), (rank, None));
                }
                continue;
            }
            let Some(event) = owner.inbox.pop_front() else { continue };
            owner.busy = at
                + match event {
                    Event::Request(..) => REQUEST,
                    Event::Peer(..) => WORD,
                    _ => OTHER,
                };
            let done = owner.busy;
            owner.mds.handle(done, event);
            if !owner.inbox.is_empty() {
                self.next += 1;
                self.queue.insert((done, self.next), (rank, None));
            }
            self.drain(rank, done);
        }
    }

    fn drain(&mut self, rank: Rank, now: u64) {
        while let Some(action) = self.owners[usize::from(rank.0)].mds.poll() {
            let applied = match action {
                // A log for each would be kept for nothing.
                Action::Append(..) | Action::TrimLog(_) => None,
                ref action => self.disk.apply(action),
            };
            if let Some(token) = applied {
                self.send(now + WRITE, rank, Event::Done(token));
                continue;
            }
            match action {
                Action::Append(batch, _) => self.send(now + WRITE, rank, Event::Appended(batch)),
                Action::Peer(to, word) => self.send(now + MESSAGE, to, Event::Peer(rank, word)),
                Action::Forward(client, to, request) => {
                    self.send(now + 2 * MESSAGE, to, Event::Request(client, *request));
                }
                Action::WakeAt(at) => self.send(at.max(now + 1), rank, Event::Wake),
                Action::Caps(client, message) if message.op == CapsOp::Revoke => {
                    let update = crate::bench::given_back(&message);
                    self.send(now + 2 * MESSAGE, rank, Event::Caps(client, update));
                }
                Action::Lease(client, end) => {
                    self.send(now + 2 * MESSAGE, rank, crate::bench::lease_back(client, &end));
                }
                Action::Reply(client, reply) => {
                    assert_eq!(reply.result, 0, "{reply:?}");
                    self.answered += 1;
                    if let Some(target) = reply.target {
                        self.homes.entry(client).or_insert(target.inode.ino);
                    }
                    self.ask(now + 2 * MESSAGE, client);
                }
                _ => {}
            }
        }
    }

    /// A client's next request.
    fn ask(&mut self, at: u64, client: ClientId) {
        let tid = self.tids.entry(client).or_default();
        *tid += 1;
        let tid = *tid;
        let home = self.homes.get(&client).copied();
        let op = match (home, self.load) {
            (Some(_), Load::Create) => Op::Create {
                mode: 0o644,
                wanted: 0,
                exclusive: true,
                truncate: false,
                layout: LayoutHints::default(),
            },
            _ => Op::Mkdir { mode: 0o755 },
        };
        let (dir, name) = match home {
            None => (Ino::ROOT, format!("home {}", client.0)),
            Some(dir) => (dir, format!("{tid}")),
        };
        let request = Request {
            tid,
            oldest_tid: tid,
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
        self.send(at, dir.owner(), Event::Request(client, request));
    }
}
