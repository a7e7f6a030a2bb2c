//! How long a takeover takes while clients claim what they had, in virtual time. The machine is the
//! real one, durations are not: the server is a core that is busy for a while with each claim. What
//! counts is how the time and the memory grow with the claims.

use crate::bench::{Bench, given_back};
use mds::{
    Action, Batch, CapsOp, Claim, ClientId, Conf, Event, FilePath, Ino, LayoutHints, Mds, Name, Op,
    Request, SessionEvent, Space, caps,
};
use std::collections::BTreeMap;
use types::Utime;

const US: u64 = 1_000;
/// What a claim takes of the core: it is read from a message, and kept.
const CLAIM: u64 = 500;
/// What an entry of the log takes.
const ENTRY: u64 = 2 * US;
/// What any other event takes.
const OTHER: u64 = 10 * US;
/// How long a message is on its way.
const MESSAGE: u64 = 50 * US;
/// How long a read or a write is on its way.
const WRITE: u64 = 300 * US;
/// Claims of one message.
const CLAIMS_MAX: u64 = 50_000;
/// Files that each client makes: they are in the log when the server goes.
const MADE: u64 = 4;

/// A takeover.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Claims of all clients.
    pub claims: u64,
    /// Nanoseconds from the beginning of the successor until it serves.
    pub active: u64,
    /// Until the first client, and each of them, has an answer.
    pub answered: (u64, u64),
    /// Bytes that the server counts for claims, when all are in.
    pub claim_bytes: u64,
    /// Clients that were asked for what they claimed, of those that another one was in the way of.
    pub asked: (u64, u64),
}

fn create(wanted: u32) -> Op {
    let layout = LayoutHints::default();
    Op::Create { mode: 0o644, wanted, exclusive: true, truncate: false, layout }
}

fn request(tid: u64, dir: Ino, name: &str, op: Op) -> Request {
    Request {
        tid,
        oldest_tid: tid,
        uid: 0,
        gid: 0,
        groups: Vec::new(),
        stamp: Utime::new(1_000, 0),
        path: FilePath { ino: dir, path: Name::copy_from_slice(name.as_bytes()) },
        path2: FilePath::default(),
        releases: Vec::new(),
        replay: None,
        op,
    }
}

/// What clients had made when their server went: a home each, and files in it.
struct Before {
    bench: Bench,
    homes: Vec<(Ino, Vec<Ino>)>,
}

fn before(conf: Conf, clients: u64) -> Before {
    let mut bench = Bench::new(conf);
    let mut homes = Vec::new();
    for client in 1..=clients {
        bench.open(client);
        let home = bench.mkdir(Ino::ROOT, &format!("home {client}"));
        let mut files = Vec::new();
        for n in 0..MADE {
            let name = format!("{n}");
            let tid = bench.send(client, home, &name, (Ino(0), ""), create(caps::FILE_RD));
            let made = bench.answer(tid).and_then(|r| r.target.as_ref());
            files.push(made.expect("a file").inode.ino);
        }
        homes.push((home, files));
        bench.told.clear();
    }
    Before { bench, homes }
}

/// The successor, in virtual time.
struct World {
    mds: Mds,
    bench: Bench,
    queue: BTreeMap<(u64, u64), Event>,
    next: u64,
    busy: u64,
    answers: BTreeMap<(ClientId, u64), u64>,
    asked: Vec<(ClientId, Ino)>,
}

impl World {
    fn send(&mut self, at: u64, event: Event) {
        self.next += 1;
        self.queue.insert((at, self.next), event);
    }

    fn drain(&mut self, now: u64) {
        while let Some(action) = self.mds.poll() {
            if let Some(token) = self.bench.disk.apply(&action) {
                self.send(now + WRITE, Event::Done(token));
                continue;
            }
            match action {
                Action::Append(batch, _) => self.send(now + WRITE, Event::Appended(batch)),
                Action::Reply(client, reply) => {
                    assert_eq!(reply.result, 0, "{client:?}: {reply:?}");
                    self.answers.entry((client, reply.tid)).or_insert(now + MESSAGE);
                }
                Action::Caps(client, message) if message.op == CapsOp::Revoke => {
                    self.asked.push((client, message.inode.ino));
                    let update = given_back(&message);
                    self.send(now + 2 * MESSAGE, Event::Caps(client, update));
                }
                Action::Lease(client, end) => {
                    self.send(now + 2 * MESSAGE, crate::bench::lease_back(client, &end));
                }
                Action::WakeAt(at) => self.send(at.max(now + 1), Event::Wake),
                action => {
                    if let Some(event) = self.bench.disk.read(&action) {
                        self.send(now + WRITE, event);
                    }
                }
            }
        }
    }

    /// Carries out what happens, until it is so. Says when that was.
    fn until(&mut self, is: impl Fn(&World) -> bool) -> u64 {
        while !is(self) {
            let ((at, _), event) = self.queue.pop_first().expect("nothing happens any more");
            let takes = match &event {
                Event::Reconnect(_, claims) => OTHER + CLAIM * claims.len() as u64,
                _ => OTHER,
            };
            self.busy = self.busy.max(at) + takes;
            self.mds.handle(self.busy, event);
            self.drain(self.busy);
        }
        self.busy
    }
}

/// So many clients claim so much each, and then ask for something. Half of them are in the way of
/// another client.
pub fn takeover(clients: u64, claims_of_each: u64, conf: &Conf) -> Taken {
    assert!(clients >= 2 && claims_of_each >= MADE, "clients claim what they made");
    let Before { mut bench, homes } = before(conf.clone(), clients);
    // The rest of what clients claim is at rest. The server does not look at it unless it is used.
    let numbers = (1 << 40) + (1 << 24);
    let far = clients * claims_of_each;
    bench.disk.tables.next.insert(Space::COMMON, numbers + far);
    let mut replay = Mds::replay(conf.clone(), bench.disk.tables.clone());
    let mut busy = 2 * WRITE;
    for (batch, bytes) in &bench.disk.log {
        replay.batch(*batch, bytes).expect("the log is whole");
        busy += ENTRY;
    }
    let mds = replay.finish(busy, bench.disk.trimmed);
    bench.disk.log = BTreeMap::<Batch, _>::new();
    let (queue, answers) = (BTreeMap::new(), BTreeMap::new());
    let mut world = World { mds, bench, queue, next: 0, busy, answers, asked: Vec::new() };
    world.drain(busy);
    // One after the other, as their messages are in memory then.
    for (n, (_, made)) in homes.iter().enumerate() {
        let (client, at) = (ClientId(n as u64 + 1), busy + MESSAGE);
        let first = numbers + n as u64 * claims_of_each;
        let rest = (first..first + claims_of_each - MADE).map(Ino);
        let all: Vec<Ino> = made.iter().copied().chain(rest).collect();
        world.send(at, Event::Session(client, SessionEvent::Open));
        for part in all.chunks(CLAIMS_MAX as usize) {
            let claim = |ino: &Ino| Claim {
                ino: *ino,
                cap_id: ino.0,
                issued: caps::PIN | caps::FILE_SHARED | caps::FILE_CACHE | caps::FILE_RD,
                wanted: 0,
                locks: Vec::new(),
            };
            world.send(at, Event::Reconnect(client, part.iter().map(claim).collect()));
        }
        world.send(at, Event::Reconnected(client));
        // What another client of the simulation has on the way does not wait in memory.
        world.until(|w| !w.queue.keys().any(|(sent, _)| *sent <= at));
    }
    let active = world.until(|w| w.mds.is_active());
    let claim_bytes = world.mds.memory().claim_bytes;
    let tid = 1 << 40;
    for (n, (home, _)) in homes.iter().enumerate() {
        let client = ClientId(n as u64 + 1);
        world.send(active + MESSAGE, Event::Request(client, request(tid, *home, "new", create(0))));
    }
    let answered = |w: &World, tid| w.answers.keys().filter(|(_, t)| *t == tid).count();
    world.until(|w| answered(w, tid) == homes.len());
    let ends: Vec<u64> = world.answers.values().copied().collect();
    let answers = (ends.iter().min(), ends.iter().max());
    // A client that cuts a file to nothing needs what its maker claims.
    let (tid, pairs) = (tid + 1, clients / 2);
    for n in 0..pairs as usize {
        let client = ClientId(homes.len() as u64 - n as u64);
        let op = Op::Open { wanted: caps::FILE_WR | caps::FILE_EXCL, truncate: true };
        let at = world.busy + MESSAGE;
        world.send(at, Event::Request(client, request(tid, homes[n].0, "0", op)));
    }
    world.until(|w| answered(w, tid) == pairs as usize);
    let of = |n: u64| (ClientId(n + 1), homes[n as usize].1[0]);
    let asked = (0..pairs).filter(|n| world.asked.contains(&of(*n))).count() as u64;
    let claims = clients * claims_of_each;
    let answered = (*answers.0.expect("answers"), *answers.1.expect("answers"));
    Taken { claims, active, answered, claim_bytes, asked: (asked, pairs) }
}
