//! Time, and what happens in it.

mod owed;
mod rest;

use crate::client::{Client, Step};
use crate::disk::Disk;
use crate::model::{Local, Model};
use mds::{
    Action, Batch, Bug, ClientId, Conf, Event, Executed, Ino, Layout, Mds, Rank, Reply, Request,
    SessionEvent, Token, caps, peer,
};
use sim::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use types::Utime;

const MS: u64 = 1_000_000;

/// A server that is killed again before it serves would never come to an end.
const CRASHES_MAX: u64 = 15;

/// Owners at one time.
const OWNERS_MAX: usize = 5;

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What is put back.
    pub bug: Bug,
    /// Clients.
    pub clients: u64,
    /// Things that clients do, about.
    pub steps: u64,
    /// Of 100,000 actions of the server, so many are its last.
    pub crashes: u64,
    /// Of 1,000 runs of clients, so many end without a word.
    pub deaths: u64,
    /// Entries in the cache.
    pub cache: usize,
    /// Entries of a page.
    pub page: u32,
    /// Batches of the log.
    pub log: u64,
    /// Microseconds that the answer to a read is on its way, at most: what was read may be old when
    /// it comes.
    pub read_us: u64,
    /// Requests that begin at one event.
    pub at_once: usize,
    /// Owners of directories.
    pub owners: u16,
    /// New directories go to all owners by the hash of their names; else pins alone say where.
    pub spread: bool,
    /// Of 1,000 words between owners, so many are lost, with all that are under way beside them.
    pub resets: u64,
    /// The first owner learns at some moment that there are others.
    pub grows: bool,
    /// So many of the last owners leave, one after the other.
    pub leaves: u16,
    /// So many owners are added, one after the other: each under a number that was never used.
    pub returns: u16,
    /// All owners come to rest together, and come back, so many times.
    pub nights: u16,
    /// Clients make subvolumes, and pin them to owners.
    pub moves: bool,
    /// Clients pin other directories, which move with all below them.
    pub trees: bool,
    /// Changes are answered before they are durable.
    pub early: bool,
    /// Microseconds that a batch of the log takes, at most.
    pub log_us: u64,
    /// Microseconds that a batch goes on filling while nothing waits for it.
    pub pause_us: u64,
    /// Clients work with what they made themselves, mostly.
    pub apart: bool,
    /// Milliseconds that a client may rely on a name.
    pub lease_ms: u64,
    /// Microseconds that no client gets all names of a directory in which others change some.
    pub shared_us: u64,
}

impl Scenario {
    /// The shape of a seed.
    pub fn shape(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ 0xabcd);
        Scenario {
            bug: Bug::None,
            clients: rng.range(1, 5),
            steps: rng.range(100, 500),
            crashes: [0, 100, 400, 1_000][rng.range(0, 4) as usize],
            deaths: [0, 0, 2][rng.range(0, 3) as usize],
            cache: [3, 12, 60, 10_000][rng.range(0, 4) as usize],
            page: [1, 2, 5, 100][rng.range(0, 4) as usize],
            log: [4, 16, 64][rng.range(0, 3) as usize],
            read_us: [300, 300, 6_000][rng.range(0, 3) as usize],
            at_once: [1, usize::MAX][rng.range(0, 2) as usize],
            owners: 1,
            spread: false,
            resets: 0,
            grows: false,
            leaves: 0,
            returns: 0,
            nights: 0,
            moves: false,
            trees: false,
            early: rng.permille(750),
            log_us: [800, 8_000, 80_000][rng.range(0, 3) as usize],
            apart: rng.permille(500),
            pause_us: [0, 3_000, 50_000][rng.range(0, 3) as usize],
            lease_ms: [20, 300, 5_000][rng.range(0, 3) as usize],
            shared_us: [1_000, 30_000, 250_000][rng.range(0, 3) as usize],
        }
    }

    /// The shape of a seed with several owners.
    pub fn several(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ 0x77aa);
        let owners = rng.range(2, 5) as u16;
        let resets = [0, 10, 60][rng.range(0, 3) as usize];
        let spread = rng.permille(700);
        let grows = rng.permille(300);
        Scenario { owners, resets, spread, grows, ..Scenario::shape(seed) }
    }

    /// The shape of a seed in which owners leave.
    pub fn fewer(seed: u64) -> Scenario {
        let several = Scenario::several(seed);
        let most = u64::from(several.owners);
        let leaves = Rng::new(seed ^ 0x31f7).range(1, most) as u16;
        Scenario { leaves, ..several }
    }

    /// The shape of a seed in which owners leave, and others are added, over and over. In some of
    /// them all come to rest besides.
    pub fn again(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ 0x2be9);
        let (leaves, returns) = (rng.range(1, 6) as u16, rng.range(1, 6) as u16);
        let nights = [0, 0, 1, 2][rng.range(0, 4) as usize];
        Scenario { leaves, returns, nights, ..Scenario::several(seed) }.with_nights()
    }

    /// The shape of a seed in which subvolumes move. In some of them owners leave, others are
    /// added, or all come to rest besides.
    pub fn moving(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ 0x6d0e);
        let shape = match rng.range(0, 8) {
            0 => Scenario::fewer(seed),
            1 => Scenario::again(seed),
            2 => Scenario::to_and_fro(seed),
            _ => Scenario::several(seed),
        };
        let several = if shape.owners > 1 { shape } else { Scenario::several(seed) };
        Scenario { moves: true, steps: several.steps + 200, ..several }
    }

    /// The shape of a seed in which directories move with all below them; in some of them
    /// subvolumes move besides.
    pub fn trees(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ 0x7ee5);
        let (spread, moves) = (rng.permille(150), rng.permille(300));
        let moving = Scenario::moving(seed);
        Scenario { spread, moves, trees: true, ..moving }
    }

    /// The shape of a seed in which all owners come to rest, and come back. In some of them owners
    /// leave besides.
    pub fn to_and_fro(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ 0x5e1d);
        let nights = rng.range(1, 4) as u16;
        let shape = match rng.range(0, 8) {
            0 => Scenario::shape(seed),
            1 | 2 => Scenario::fewer(seed),
            _ => Scenario::several(seed),
        };
        Scenario { nights, ..shape }.with_nights()
    }

    /// Where sessions end and begin while all rest, the log is not slow: clients here take a late
    /// word about a session that is over for one about the next.
    fn with_nights(self) -> Scenario {
        let log_us = if self.nights > 0 { self.log_us.min(8_000) } else { self.log_us };
        Scenario { log_us, ..self }
    }
}

/// What a run came to.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// Requests that were answered.
    pub answered: u64,
    /// What clients did by themselves.
    pub local: u64,
    /// What happened how often.
    pub marks: BTreeMap<&'static str, u64>,
    /// A sum over all that happened.
    pub trace: u64,
}

/// Something that is on its way.
#[derive(Clone, Debug)]
enum Flight {
    /// To an owner.
    ToServer(Rank, ClientId, Event),
    /// To a client.
    ToClient(Rank, ClientId, Action),
    /// From one owner to another.
    Peer(Rank, Rank, Box<peer::Message>),
    /// A write that will be applied.
    Write(Rank, Action),
    /// The owner hears of what was applied or read.
    Answer(Rank, Event),
    /// A read.
    Read(Rank, Action),
    /// The owner wakes.
    Wake(Rank),
    /// A client does something.
    Turn(ClientId),
    /// The owner begins again.
    Restart(Rank),
    /// Clients have had time enough.
    ReconnectOver(Rank),
    /// The owner is to leave.
    Leave(Rank),
    /// The owner learns which ones there are, and which have left.
    Owners(Rank),
    /// A client learns that there are so many owners, or were.
    ClientLearns(ClientId, u16),
    /// A client learns that an owner has left.
    ClientKnows(ClientId, Rank),
    /// An owner learns whether all are to rest, which have ended, and by which map.
    Rest(Rank, bool, BTreeSet<Rank>, u64),
    /// The owner is to end, while all rest.
    End(Rank),
}

impl Flight {
    /// The owner that it ends with.
    fn rank(&self) -> Option<Rank> {
        match self {
            Flight::ToServer(rank, ..)
            | Flight::ToClient(rank, ..)
            | Flight::Peer(_, rank, _)
            | Flight::Write(rank, _)
            | Flight::Answer(rank, _)
            | Flight::Read(rank, _)
            | Flight::Wake(rank)
            | Flight::Restart(rank)
            | Flight::Leave(rank)
            | Flight::Owners(rank)
            | Flight::Rest(rank, ..)
            | Flight::End(rank)
            | Flight::ReconnectOver(rank) => Some(*rank),
            Flight::Turn(_) | Flight::ClientKnows(..) | Flight::ClientLearns(..) => None,
        }
    }
}

/// An owner of directories.
#[derive(Default)]
struct Owner {
    mds: Option<Mds>,
    /// Counts its servers.
    life: u64,
    /// Its log and its tables.
    log: Disk,
}

/// What was done, in order.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there are some hundreds")]
enum Done {
    Local(ClientId, Local),
    /// A name was found, and the request goes on at another owner.
    Found {
        request: Request,
        ino: Ino,
        rank: Rank,
        batch: Batch,
        life: u64,
    },
    Request {
        rank: Rank,
        client: ClientId,
        request: Request,
        executed: Executed,
        life: u64,
        reply: Option<Box<Reply>>,
        /// What the client knew better than the answer.
        better: u32,
    },
}

struct World {
    rng: Rng,
    scenario: Scenario,
    now: u64,
    flights: BTreeMap<(u64, u64), (u64, Flight)>,
    next: u64,
    disk: Disk,
    owners: Vec<Owner>,
    clients: BTreeMap<ClientId, Client>,
    /// In which order messages arrive: not before the one before.
    links: BTreeMap<(ClientId, Rank, bool), u64>,
    peers: BTreeMap<(Rank, Rank), u64>,
    history: Vec<Done>,
    requests: BTreeMap<(ClientId, u64), Request>,
    owed: owed::Owed,
    blocked: BTreeSet<ClientId>,
    next_client: u64,
    budget: u64,
    calm: bool,
    flushed: bool,
    /// Owners that have not flushed in this round.
    flushing: BTreeSet<Rank>,
    rounds: u64,
    /// The first owner does not know that there are others.
    alone: bool,
    /// Owners that have left, and the one that is to.
    gone: BTreeSet<Rank>,
    leaving: Option<Rank>,
    night: rest::Night,
    report: Report,
    verbose: bool,
}

/// Runs a scenario.
pub fn run(seed: u64, scenario: &Scenario) -> Result<Report, String> {
    let mut world = World {
        rng: Rng::new(seed),
        scenario: scenario.clone(),
        now: 0,
        flights: BTreeMap::new(),
        next: 0,
        disk: Disk::default(),
        owners: (0..scenario.owners).map(|_| Owner { life: 1, ..Owner::default() }).collect(),
        clients: BTreeMap::new(),
        links: BTreeMap::new(),
        peers: BTreeMap::new(),
        history: Vec::new(),
        requests: BTreeMap::new(),
        owed: owed::Owed::default(),
        blocked: BTreeSet::new(),
        next_client: 1,
        budget: scenario.steps,
        calm: false,
        flushed: false,
        flushing: BTreeSet::new(),
        rounds: 0,
        alone: scenario.grows,
        gone: BTreeSet::new(),
        leaving: None,
        night: rest::Night::default(),
        report: Report::default(),
        verbose: std::env::var("SIPHON_SIM_TRACE").is_ok(),
    };
    world.go()?;
    Ok(world.report)
}

impl World {
    fn conf(&self, rank: Rank) -> Conf {
        Conf {
            rank,
            owners: if self.alone && rank == Rank(0) { 1 } else { self.scenario.owners },
            absent: self.gone.clone(),
            rests: self.rests(),
            asleep: self.night.asleep.clone(),
            map: self.night.map,
            spread: self.scenario.spread,
            random_max: 1.0,
            moves: self.scenario.moves || self.scenario.trees,
            trees: self.scenario.trees,
            early_reply: self.scenario.early,
            // An owner that waits for its log is not asked again and again.
            peer_retry: (3 * MS).max(3_000 * self.scenario.log_us),
            cache_entries_max: self.scenario.cache,
            log_pause: self.scenario.pause_us * 1_000,
            lease: self.scenario.lease_ms * MS,
            shared_names: self.scenario.shared_us * 1_000,
            dirty_entries_max: 20,
            log_batches_max: self.scenario.log,
            write_entries_max: 3,
            writes_max: 3,
            page_entries_max: self.scenario.page,
            purges_max: 2,
            requests_at_once: self.scenario.at_once,
            session_timeout: 2_000 * MS,
            session_autoclose: 10_000 * MS,
            layout: Layout {
                stripe_unit: 65_536,
                stripe_count: 1,
                object_size: 65_536,
                pool: 1,
                namespace: String::new(),
            },
            data_pools: vec![1],
            history: true,
            bug: self.scenario.bug,
            ..Conf::default()
        }
    }

    fn mark(&mut self, what: &'static str) {
        *self.report.marks.entry(what).or_default() += 1;
    }

    fn say(&mut self, what: impl std::fmt::Debug) {
        if self.verbose {
            eprintln!("{:>9} {what:?}", self.now / 1_000);
        }
    }

    fn owner(&mut self, rank: Rank) -> &mut Owner {
        &mut self.owners[usize::from(rank.0)]
    }

    fn life(&self, rank: Rank) -> u64 {
        self.owners[usize::from(rank.0)].life
    }

    /// Owners that are there.
    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        let gone = self.gone.clone();
        (0..self.scenario.owners).map(Rank).filter(move |r| !gone.contains(r))
    }

    fn launch(&mut self, at: u64, flight: Flight) {
        self.next += 1;
        let life = flight.rank().map_or(0, |rank| self.life(rank));
        self.flights.insert((at, self.next), (life, flight));
    }

    fn soon(&mut self, max_us: u64) -> u64 {
        self.now + self.rng.range(1, max_us * 1_000)
    }

    fn message(&mut self, client: ClientId, rank: Rank, to_server: bool, flight: Flight) {
        let at = self.soon(500);
        let last = self.links.entry((client, rank, to_server)).or_default();
        let at = at.max(*last + 1);
        *last = at;
        self.launch(at, flight);
    }

    fn go(&mut self) -> Result<(), String> {
        for rank in self.ranks() {
            self.owner(rank).mds = Some(Mds::create(self.conf(rank), 0, Utime::new(1, 0)));
            self.drain(rank)?;
        }
        for _ in 0..self.scenario.clients {
            self.add_client();
        }
        let mut events = 0u64;
        while let Some(((at, _), (life, flight))) = self.flights.pop_first() {
            events += 1;
            if events > 400_000 {
                return Err(format!("it does not come to its end: {:?}", self.stuck()));
            }
            self.now = at;
            let seen = matches!(flight, Flight::ToClient(..));
            let what = match &flight {
                Flight::ToServer(_, client, _)
                | Flight::ToClient(_, client, _)
                | Flight::Turn(client) => client.0,
                _ => u64::MAX,
            };
            self.report.trace = sim::rng::mix(self.report.trace ^ at ^ what << 40);
            self.happen(life, flight)?;
            if seen {
                self.check_caps()?;
            }
            if self.budget == 0 && !self.calm {
                self.calm = true;
                self.scenario.crashes = 0;
                self.scenario.deaths = 0;
            }
            if self.calm && !self.flushed && self.is_quiet() {
                self.flushed = true;
                self.flush_all()?;
            }
        }
        Err(format!("nothing happens any more: {:?}", self.stuck())).or_else(|e| {
            if self.flushed && self.report.marks.contains_key("flushed at the end") {
                Ok(())
            } else {
                Err(e)
            }
        })?;
        self.judge()
    }

    fn stuck(&self) -> String {
        let clients: Vec<_> = self
            .clients
            .values()
            .map(|c| (c.id, &c.waiting, &c.open, c.dead, c.caps.len()))
            .collect();
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        for (_, f) in self.flights.values() {
            *kinds.entry(format!("{f:?}").chars().take(30).collect()).or_default() += 1;
        }
        let waiting: Vec<_> =
            self.owners.iter().map(|o| o.mds.as_ref().map(Mds::waiting)).collect();
        format!("{clients:?}; {} {kinds:?} {waiting:#?}", self.now)
    }

    /// Whether all clients are done, and the server has nothing on its way.
    fn is_quiet(&self) -> bool {
        let quiet = |r: Rank| {
            let mds = self.owners[usize::from(r.0)].mds.as_ref();
            mds.is_some_and(|m| m.is_active() && m.is_quiet())
        };
        let held = |c| {
            let of = |r: Rank| self.owners[usize::from(r.0)].mds.as_ref();
            self.ranks().any(|r| of(r).is_none_or(|m| m.inodes_of(c) > 0))
        };
        self.leaving.is_none()
            && (self.scenario.leaves == 0 || self.alone)
            && (self.scenario.returns == 0 || self.alone)
            && (self.scenario.nights == 0 || self.alone)
            && !self.rests()
            && self.ranks().all(quiet)
            && self.clients.values().filter(|c| !c.dead).all(|c| c.is_idle() && c.caps.is_empty())
            && self
                .clients
                .values()
                .filter(|c| c.dead)
                .all(|c| self.blocked.contains(&c.id) && self.owners.len() == 1 || !held(c.id))
            && self.flights.values().all(|(_, f)| matches!(f, Flight::Turn(_) | Flight::Wake(_)))
    }

    fn add_client(&mut self) {
        let id = ClientId(self.next_client);
        self.next_client += 1;
        let mut client = Client::new(id, self.scenario.owners, self.gone.clone());
        client.moves = self.scenario.moves;
        client.trees = self.scenario.trees;
        client.apart = self.scenario.apart;
        self.clients.insert(id, client);
        for rank in self.ranks() {
            let open = Event::Session(id, SessionEvent::Open);
            self.message(id, rank, true, Flight::ToServer(rank, id, open));
        }
        let at = self.soon(1_000);
        self.launch(at, Flight::Turn(id));
    }

    fn happen(&mut self, life: u64, flight: Flight) -> Result<(), String> {
        let same = flight.rank().is_none_or(|rank| self.life(rank) == life);
        match flight {
            Flight::ToServer(rank, client, event) if same => {
                if self.blocked.contains(&client) {
                    return Ok(());
                }
                self.say((rank, &client, &event));
                self.event(rank, event)
            }
            Flight::ToClient(rank, client, action) if same => {
                self.say((rank, &action));
                self.deliver(rank, client, action)
            }
            Flight::Peer(from, to, message) if same => {
                self.say((from, to, &message));
                self.event(to, Event::Peer(from, message))
            }
            Flight::Write(rank, action) => self.write(rank, action, same),
            Flight::Read(rank, action) if same => {
                let event = self.read(&action);
                let at = self.soon(self.scenario.read_us);
                self.launch(at, Flight::Answer(rank, event));
                Ok(())
            }
            Flight::Answer(rank, event) if same => {
                self.say((rank, &event));
                self.event(rank, event)
            }
            Flight::Wake(rank) if same => {
                // With nothing left to do, timers of sessions would go on for ever.
                if self.report.marks.contains_key("flushed at the end") {
                    return Ok(());
                }
                self.event(rank, Event::Wake)
            }
            Flight::Turn(client) => self.turn(client),
            Flight::Restart(rank) => self.restart(rank),
            Flight::ClientKnows(id, rank) => self.knows_less(id, rank),
            Flight::Leave(rank) if same => self.event(rank, Event::Leave),
            Flight::Rest(rank, rests, asleep, map) if same => {
                self.hears_of_rest(rank, rests, asleep, map)
            }
            Flight::End(rank) if same => self.event(rank, Event::End),
            Flight::Owners(rank) if same => {
                self.hears_of_owners(rank);
                self.event(rank, Event::Wake)
            }
            Flight::ClientLearns(id, owners) => {
                let blocked = self.blocked.contains(&id);
                let client = self.clients.get_mut(&id).filter(|c| !c.dead && !blocked);
                let steps = client.map(|c| c.hears_of(owners)).unwrap_or_default();
                self.carry_out(id, steps);
                Ok(())
            }
            Flight::ReconnectOver(rank) if same => self.event(rank, Event::ReconnectOver),
            _ => Ok(()),
        }
    }

    /// Gives an owner an event, and carries out what it does.
    fn event(&mut self, rank: Rank, event: Event) -> Result<(), String> {
        let now = self.now;
        let Some(mds) = &mut self.owner(rank).mds else { return Ok(()) };
        mds.handle(now, event);
        self.drain(rank)
    }

    /// Has all owners flush.
    fn flush_all(&mut self) -> Result<(), String> {
        self.flushing = self.ranks().collect();
        self.rounds += 1;
        for rank in self.ranks() {
            self.event(rank, Event::Flush)?;
        }
        Ok(())
    }

    /// An owner has flushed. What it reported may be in the log of another one still.
    fn has_flushed(&mut self, rank: Rank) {
        if !self.flushed {
            return self.mark("flushed");
        }
        self.flushing.remove(&rank);
        if !self.flushing.is_empty() {
            return;
        }
        // What was reported, or read, may have something move.
        let rests = |o: &Owner| o.log.log.is_empty() && o.mds.as_ref().is_none_or(|m| m.is_quiet());
        let appends = |f: &Flight| matches!(f, Flight::Write(_, Action::Append(..)));
        let all = self.owners.iter().all(rests) && !self.flights.values().any(|(_, f)| appends(f));
        if all || self.rounds > 40 {
            return self.mark("flushed at the end");
        }
        self.flushing = self.ranks().collect();
        self.rounds += 1;
        for rank in self.ranks() {
            let at = self.soon(500);
            self.launch(at, Flight::Answer(rank, Event::Flush));
        }
    }

    fn drain(&mut self, rank: Rank) -> Result<(), String> {
        let Some(mds) = &mut self.owner(rank).mds else { return Ok(()) };
        for executed in mds.take_history() {
            self.executed(rank, executed)?;
        }
        while let Some(action) = self.owner(rank).mds.as_mut().and_then(Mds::poll) {
            if self.scenario.crashes > 0 && self.rng.range(0, 100_000) < self.scenario.crashes {
                if self.owners.len() > 1 && self.rng.permille(200) {
                    for other in self.ranks().filter(|r| *r != rank) {
                        self.crash(other)?;
                    }
                }
                return self.crash(rank);
            }
            self.act(rank, action)?;
        }
        Ok(())
    }

    /// A request was carried out.
    fn executed(&mut self, rank: Rank, executed: Executed) -> Result<(), String> {
        let (client, tid) = (executed.client, executed.tid);
        let Some(request) = self.requests.get(&(client, tid)).cloned() else { return Ok(()) };
        self.say(("executed", rank, &executed));
        let life = self.life(rank);
        if let Some(ino) = executed.onward {
            let batch = executed.batch;
            self.history.push(Done::Found { request, ino, rank, batch, life });
            return Ok(());
        }
        let before = self.history.iter().rposition(|d| {
            matches!(d, Done::Request { client: c, executed: e, .. } if *c == client && e.tid == tid)
        });
        // One that changed nothing stays, too: if an owner refuses again and ends, its first word
        // may still be the answer.
        if let Some(i) = before
            && let Done::Request { executed: old, .. } = &self.history[i]
            && old.wrote
        {
            // What was done stays where it was; this is its answer.
            if executed.wrote {
                return Err(format!("{client:?} {tid}: carried out twice: {request:?}"));
            }
            self.mark("answered again");
            return Ok(());
        }
        let (reply, better) = self.is_done_again(&executed)?;
        self.history.push(Done::Request { rank, client, request, executed, life, reply, better });
        self.goes_on(client);
        Ok(())
    }

    /// The last batch that a successor of the server would find.
    fn durable(&self, rank: Rank) -> Batch {
        let log = &self.owners[usize::from(rank.0)].log;
        log.log.keys().next_back().copied().unwrap_or(log.trimmed)
    }

    /// What goes to its place at rest is in the log already: a crash would leave it there, though
    /// it never happened.
    fn check_write(&self, action: &Action) -> Result<(), String> {
        let Action::WriteDir { dir, set, .. } = action else { return Ok(()) };
        if self.disk.is_split(dir.ino) {
            return Err(format!("{dir:?} is changed while its entries are in several objects"));
        }
        for (name, dentry) in set {
            let mds::Dentry::Primary(inode) = dentry else { continue };
            let batch = self.history.iter().rev().find_map(|d| match d {
                Done::Request { rank, executed, .. } if executed.made == Some(inode.ino) => {
                    Some((*rank, executed.batch))
                }
                _ => None,
            });
            if let Some((_, batch)) = batch.filter(|(r, b)| *b > self.durable(*r)) {
                return Err(format!("{dir:?} {name:?} is written before the log has {batch:?}"));
            }
        }
        Ok(())
    }

    fn act(&mut self, rank: Rank, action: Action) -> Result<(), String> {
        self.check_write(&action)?;
        if let Action::Reply(client, reply) = &action {
            self.check_safe(rank, *client, reply)?;
        }
        match action {
            Action::Reply(client, _)
            | Action::Caps(client, _)
            | Action::Lease(client, _)
            | Action::Session(client, _)
            | Action::Forward(client, ..) => {
                self.message(client, rank, false, Flight::ToClient(rank, client, action));
            }
            Action::Peer(to, message) => self.peer(rank, to, message),
            Action::Append(..) => {
                // Appends are applied in order; here there is one at a time.
                let at = self.soon(self.scenario.log_us);
                self.launch(at, Flight::Write(rank, action));
            }
            Action::TrimLog(_) => {
                self.owner(rank).log.apply(&action);
            }
            Action::WakeAt(at) => {
                let at = at.max(self.now + 1);
                self.launch(at, Flight::Wake(rank));
            }
            Action::Flushed => self.has_flushed(rank),
            Action::Left => return self.has_left(rank),
            Action::Ended => return self.has_ended(rank),
            Action::Blocklist { token, client } => {
                let new = self.blocked.insert(client);
                self.mark("evicted");
                let at = self.soon(500);
                self.launch(at, Flight::Answer(rank, Event::Done(token)));
                // The others hear of it from the map.
                for other in self.ranks().filter(|r| new && *r != rank) {
                    let at = self.soon(5_000);
                    let event = Event::Session(client, SessionEvent::Blocklisted);
                    self.launch(at, Flight::Answer(other, event));
                }
            }
            Action::ReadPage { .. }
            | Action::ReadEntry { .. }
            | Action::ReadBase { .. }
            | Action::ReadBacktrace { .. }
            | Action::Probe { .. } => {
                self.mark("read");
                let at = self.soon(300);
                self.launch(at, Flight::Read(rank, action));
            }
            Action::Join { .. } => {
                self.mark("joined");
                let at = self.soon(3_000);
                self.launch(at, Flight::Write(rank, action));
            }
            Action::Purge { ref inode, .. } => {
                let ino = inode.ino;
                let holder = self.clients.values().find(|c| {
                    !c.dead && c.caps.get(&ino).is_some_and(|c| c.issued & !caps::PIN != 0)
                });
                if let Some(client) = holder {
                    return Err(format!("{ino:?} is removed, and {:?} has it", client.id));
                }
                self.mark("purged");
                let at = self.soon(800);
                self.launch(at, Flight::Write(rank, action));
            }
            action => {
                let at = self.soon(1_500);
                self.launch(at, Flight::Write(rank, action));
            }
        }
        Ok(())
    }

    /// A word from one owner to another: in order, or lost with all that is under way.
    fn peer(&mut self, from: Rank, to: Rank, message: Box<peer::Message>) {
        use mds::peer::{Half, Message};
        if let Message::Prepare(prepare) = &*message {
            for half in &prepare.halves {
                self.mark(match half {
                    Half::Make { .. } => "half: make",
                    Half::Remove(_) => "half: remove",
                    Half::Link(_) => "half: link",
                    Half::Unlink(_) => "half: unlink",
                    Half::Take(_) => "half: take",
                });
            }
        }
        self.mark(match &*message {
            Message::Prepare(_) => "prepare",
            Message::Prepared(..) => "prepared",
            Message::Refused(_, peer::Refusal::Busy) => "busy",
            Message::Refused(..) => "refused",
            Message::Decided(_, true) => "decided",
            Message::Decided(_, false) => "given back",
            Message::Done(_) => "done",
            Message::Ask(_) => "asked",
            Message::Report(_) => "report",
            Message::Reported(..) => "reported",
            Message::HandOver(_) => "handed over",
            Message::TakenOver => "taken over",
            Message::Look { .. } => "looked",
            Message::Still { .. } => "still",
            Message::Give(parcel) if !parcel.strays.is_empty() => "given with strays",
            Message::Give(parcel) if parcel.runs.len() > 1 => {
                if from == Rank(0) {
                    "tree given by the first"
                } else {
                    "tree given back"
                }
            }
            Message::Give(_) if from == Rank(0) => "given by the first",
            Message::Give(_) => "given back to the first",
            Message::Taken(..) => "taken",
            Message::Recall(..) => "recalled",
            Message::Stays(..) => "stayed",
        });
        if self.rng.permille(self.scenario.resets) && !self.flushed {
            self.mark("reset");
            let pair = |a: Rank, b: Rank| (a, b) == (from, to) || (b, a) == (from, to);
            self.flights.retain(|_, (_, f)| !matches!(f, Flight::Peer(a, b, _) if pair(*a, *b)));
            return;
        }
        // Some are late.
        let late = if self.rng.permille(50) { 20_000 } else { 300 };
        let at = self.soon(late);
        let last = self.peers.entry((from, to)).or_default();
        let at = at.max(*last + 1);
        *last = at;
        self.launch(at, Flight::Peer(from, to, message));
    }

    fn apply(&mut self, rank: Rank, action: &Action) -> Option<Token> {
        match action {
            Action::Append(..) | Action::WriteTables { .. } => self.owner(rank).log.apply(action),
            action => self.disk.apply(action),
        }
    }

    fn write(&mut self, rank: Rank, action: Action, same: bool) -> Result<(), String> {
        if !same {
            return Ok(());
        }
        let done = self.apply(rank, &action);
        if let Action::Append(batch, _) = &action {
            let at = self.soon(300);
            self.launch(at, Flight::Answer(rank, Event::Appended(*batch)));
        } else if let Some(token) = done {
            let at = self.soon(500);
            self.launch(at, Flight::Answer(rank, Event::Done(token)));
        }
        Ok(())
    }

    fn read(&self, action: &Action) -> Event {
        self.disk.read(action).unwrap_or(Event::Done(Token(0)))
    }

    fn deliver(&mut self, rank: Rank, id: ClientId, action: Action) -> Result<(), String> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        if client.dead {
            return Ok(());
        }
        client.now = self.now;
        let steps = match action {
            Action::Reply(_, reply) => {
                let target = reply.target.as_ref().map(|t| t.inode.ino);
                let better = target.map_or(0, |ino| client.knows_better(ino));
                if let Some(request) = client.reply(rank, &reply) {
                    self.report.answered += 1;
                    self.answered(id, &request, *reply, better)?;
                }
                Vec::new()
            }
            Action::Caps(_, message) => {
                match message.op {
                    mds::CapsOp::Revoke => self.mark("revoked"),
                    mds::CapsOp::Export => self.mark("exported"),
                    _ => {}
                }
                let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
                client.caps_message(&message)?
            }
            Action::Lease(_, end) => {
                self.mark("lease ended");
                let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
                client.lease_ended(rank, &end)
            }
            Action::Session(_, mds::SessionMessage::Close)
                if self.leaving == Some(rank) || self.gone.contains(&rank) =>
            {
                return self.knows_less(id, rank);
            }
            Action::Session(_, mds::SessionMessage::Close) if !self.blocked.contains(&id) => {
                return self.session_ended(id, rank);
            }
            Action::Session(_, message) => {
                client.session(rank, message);
                Vec::new()
            }
            Action::Forward(_, to, request) => {
                let steps = client.forwarded(to, *request);
                self.mark("forwarded");
                steps
            }
            _ => Vec::new(),
        };
        self.carry_out(id, steps);
        Ok(())
    }

    fn answered(
        &mut self,
        id: ClientId,
        request: &Request,
        answer: Reply,
        knows: u32,
    ) -> Result<(), String> {
        let tid = request.tid;
        let done = self.history.iter_mut().rev().find_map(|d| match d {
            Done::Request { client, executed, reply, better, .. }
                if *client == id && executed.tid == tid =>
            {
                Some((reply, better))
            }
            _ => None,
        });
        match done {
            Some((reply, better)) => {
                *reply = Some(Box::new(answer));
                *better = knows;
                Ok(())
            }
            None => Err(format!("{id:?} was answered, and it never happened: {request:?}")),
        }
    }

    fn carry_out(&mut self, id: ClientId, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Send(rank, event) => {
                    if let Event::Request(client, request) = &event {
                        self.requests.insert((*client, request.tid), request.clone());
                    }
                    self.message(id, rank, true, Flight::ToServer(rank, id, event));
                }
                Step::Local(local) => {
                    self.report.local += 1;
                    self.say((id, &local));
                    if let Local::Write(ino, size) = &local {
                        let data = self.disk.data.entry(*ino).or_default();
                        *data = (*size).max(*data);
                    }
                    let leased = match &local {
                        Local::Lookup(dir, ..) => {
                            self.clients.get(&id).is_some_and(|c| !c.knows_names(*dir))
                        }
                        _ => false,
                    };
                    let what = match &local {
                        Local::Lookup(_, _, Some(_)) if leased => "leased name",
                        Local::Lookup(_, _, Some(_)) => "cached name",
                        Local::Lookup(..) => "cached absence",
                        Local::Getattr(..) => "cached attributes",
                        Local::Chmod(..) => "changed attributes",
                        Local::Write(..) => "wrote",
                    };
                    self.mark(what);
                    self.does(id, local);
                }
            }
        }
    }

    /// There are to be fewer owners, or more.
    fn resize(&mut self) -> Result<(), String> {
        let last = self.ranks().count() == 1;
        let most = self.ranks().count() >= OWNERS_MAX;
        let less = self.scenario.returns == 0 || most || self.rng.permille(500);
        if self.scenario.leaves > 0 && less && !last {
            self.begin_to_leave();
        } else if self.scenario.returns > 0 && !most {
            self.add_owner()?;
        } else {
            // There is none to leave, or to be added.
            (self.scenario.leaves, self.scenario.returns) = (0, 0);
        }
        Ok(())
    }

    /// The last owner that is there is to leave.
    fn begin_to_leave(&mut self) {
        self.scenario.leaves -= 1;
        self.leaving = self.ranks().last();
        if let Some(rank) = self.leaving {
            self.mark("leaves");
            self.launch(self.now + 1, Flight::Leave(rank));
        }
    }

    /// An owner learns from the map which ones there are.
    fn hears_of_owners(&mut self, rank: Rank) {
        let (owners, gone) = (self.scenario.owners, self.gone.clone());
        let alone = self.alone && rank == Rank(0);
        if let Some(mds) = self.owner(rank).mds.as_mut().filter(|_| !alone) {
            mds.set_owners(owners, gone);
        }
    }

    /// An owner is added. The others, and clients, learn that from the map, sooner or later.
    fn add_owner(&mut self) -> Result<(), String> {
        self.scenario.returns -= 1;
        let mut rank = Rank(self.scenario.owners);
        if self.scenario.bug == Bug::NumbersAgain
            && let Some(left) = self.gone.pop_last()
        {
            rank = left;
            *self.owner(rank) = Owner { life: self.life(rank) + 1, ..Owner::default() };
        } else {
            self.scenario.owners += 1;
            self.owners.push(Owner { life: 1, ..Owner::default() });
        }
        self.mark(if self.gone.is_empty() { "added" } else { "added again" });
        self.say(("added", rank));
        for other in self.ranks().filter(|r| *r != rank) {
            let at = self.soon(5_000);
            self.launch(at, Flight::Owners(other));
        }
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            let at = self.soon(5_000);
            self.launch(at, Flight::ClientLearns(id, rank.0 + 1));
        }
        self.owner(rank).mds = Some(Mds::create(self.conf(rank), self.now, Utime::new(1, 0)));
        self.drain(rank)
    }

    /// An owner has left. The others learn that from the map, sooner or later.
    fn has_left(&mut self, rank: Rank) -> Result<(), String> {
        self.mark("left");
        self.say(("left", rank));
        let owner = self.owner(rank);
        if !owner.log.log.is_empty() {
            return Err(format!("{rank:?} left, and there is something in its log"));
        }
        owner.mds = None;
        self.leaving = None;
        self.gone.insert(rank);
        for other in self.ranks() {
            let at = self.soon(5_000);
            self.launch(at, Flight::Owners(other));
        }
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            self.message(id, rank, false, Flight::ClientKnows(id, rank));
        }
        Ok(())
    }

    fn knows_less(&mut self, id: ClientId, rank: Rank) -> Result<(), String> {
        let blocked = self.blocked.contains(&id);
        let client = self.clients.get_mut(&id).filter(|c| !c.dead && !blocked);
        let steps = client.map(|c| c.left(rank)).transpose()?.unwrap_or_default();
        self.carry_out(id, steps);
        Ok(())
    }

    /// The first owner learns that there are others.
    fn grow(&mut self) -> Result<(), String> {
        self.alone = false;
        self.mark("grew");
        let owners = self.scenario.owners;
        if let Some(mds) = &mut self.owner(Rank(0)).mds {
            mds.set_owners(owners, BTreeSet::new());
        }
        self.event(Rank(0), Event::Wake)
    }

    fn turn(&mut self, id: ClientId) -> Result<(), String> {
        if self.alone && self.rng.permille(50) {
            self.grow()?;
        }
        self.watch_over_rest()?;
        if !self.alone
            && !self.flushed
            && self.leaving.is_none()
            && !self.rests()
            && self.scenario.leaves + self.scenario.returns > 0
            && (self.calm || self.rng.permille(10))
        {
            self.resize()?;
        }
        let (calm, deaths) = (self.calm, self.scenario.deaths);
        if self.owners.iter().any(|o| o.mds.is_some())
            && !self.report.marks.contains_key("flushed at the end")
        {
            let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
            if client.dead {
                return Ok(());
            }
            if !calm
                && client.is_open()
                && client.is_clean()
                && self.next_client < 9
                && self.rng.permille(deaths)
            {
                client.dead = true;
                self.mark("died");
                self.add_client();
                return Ok(());
            }
            client.now = self.now;
            let steps = if calm { client.wind_down() } else { client.step(&mut self.rng) };
            let renew = client.is_open() && self.rng.permille(100);
            self.budget = self.budget.saturating_sub(u64::from(!steps.is_empty() && !calm));
            self.carry_out(id, steps);
            for rank in self.ranks().filter(|_| renew) {
                let event = Event::Session(id, SessionEvent::Renew { seq: 1 });
                self.message(id, rank, true, Flight::ToServer(rank, id, event));
            }
            if !calm && self.rng.permille(3) {
                let there: Vec<Rank> = self.ranks().collect();
                let rank = match there.len() {
                    1 => Rank(0),
                    n => there[self.rng.range(0, n as u64) as usize],
                };
                self.event(rank, Event::Flush)?;
            }
        }
        if !(self.flushed && self.report.marks.contains_key("flushed at the end")) {
            let at = self.soon(if calm { 20_000 } else { 2_000 });
            self.launch(at, Flight::Turn(id));
        }
        Ok(())
    }

    /// An owner is gone, and with it all that was on its way to it and from it. Writes that were on
    /// their way are applied or not, and words to other owners arrive or not.
    fn crash(&mut self, rank: Rank) -> Result<(), String> {
        if self.owner(rank).mds.take().is_none() {
            return Ok(());
        }
        self.mark("crashed");
        if self.rests() {
            self.mark("crashed in the night");
        }
        if self.report.marks["crashed"] >= CRASHES_MAX * u64::from(self.scenario.owners) {
            self.scenario.crashes = 0;
        }
        self.say(("crash", rank));
        let mut silent = BTreeSet::new();
        let flights = std::mem::take(&mut self.flights);
        for (at, (life, flight)) in flights {
            match flight {
                Flight::Peer(from, to, _) if from == rank => {
                    if silent.contains(&to) || self.rng.permille(300) {
                        silent.insert(to);
                    } else {
                        self.flights.insert(at, (life, flight));
                    }
                }
                Flight::Turn(_)
                | Flight::Restart(_)
                | Flight::ClientKnows(..)
                | Flight::ClientLearns(..) => {
                    self.flights.insert(at, (life, flight));
                }
                flight if flight.rank() != Some(rank) => {
                    self.flights.insert(at, (life, flight));
                }
                Flight::Write(_, action) if life == self.life(rank) && self.rng.permille(500) => {
                    self.apply(rank, &action);
                }
                _ => {}
            }
        }
        self.owner(rank).life += 1;
        self.lose(rank)?;
        let at = self.soon(5_000);
        self.launch(at, Flight::Restart(rank));
        Ok(())
    }

    fn restart(&mut self, rank: Rank) -> Result<(), String> {
        self.say(("restart", rank));
        let conf = self.conf(rank);
        let now = self.now;
        let made = self.disk.base.contains_key(&Ino::mds_dir(rank));
        let owner = self.owner(rank);
        if owner.log.log.is_empty() && !made {
            // It went before it had made the file system.
            owner.mds = Some(Mds::create(conf, now, Utime::new(1, 0)));
        } else {
            let mut replay = Mds::replay(conf, owner.log.tables.clone());
            for (batch, bytes) in &owner.log.log {
                replay.batch(*batch, bytes).map_err(|e| e.to_string())?;
            }
            owner.mds = Some(replay.finish(now, owner.log.trimmed));
        }
        let at = self.now + 300 * MS;
        self.launch(at, Flight::ReconnectOver(rank));
        if self.leaving == Some(rank) {
            let at = self.soon(50_000);
            self.launch(at, Flight::Leave(rank));
        }
        if self.night.ending == Some(rank) {
            let at = self.soon(50_000);
            self.launch(at, Flight::End(rank));
        }
        let ids: Vec<ClientId> = self.clients.keys().copied().collect();
        for id in ids {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            if client.dead || !client.knows(rank) {
                continue;
            }
            self.links.remove(&(id, rank, true));
            self.links.remove(&(id, rank, false));
            let known = self.owners[usize::from(rank.0)].mds.as_ref();
            let ended = known.is_some_and(|m| !m.has_session(id)) && client.open.contains(&rank);
            if ended && !self.blocked.contains(&id) {
                client.slept(rank)?;
                self.mark("session was over");
                self.open_again(id, rank);
                continue;
            }
            let steps = client.reconnect(rank);
            self.carry_out(id, steps);
        }
        self.drain(rank)
    }

    /// No two clients have what excludes each other.
    fn check_caps(&mut self) -> Result<(), String> {
        let mut held: BTreeMap<Ino, Vec<(ClientId, u32)>> = BTreeMap::new();
        for client in self.clients.values().filter(|c| !c.dead && !self.blocked.contains(&c.id)) {
            for (ino, cap) in &client.caps {
                held.entry(*ino).or_default().push((client.id, cap.issued));
            }
        }
        for (ino, list) in held {
            for (i, (a, had)) in list.iter().enumerate() {
                for (b, other) in &list[i + 1..] {
                    let both = caps::conflicts(*had) & other;
                    if both != 0 {
                        return Err(format!("{ino:?}: {a:?} has {had:x}, {b:?} has {other:x}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// What the file system has to be, by all that was done.
    fn model(&self) -> Result<Model, String> {
        self.model_of(self.history.iter())
    }

    fn model_of<'a>(&self, history: impl Iterator<Item = &'a Done>) -> Result<Model, String> {
        let mut model = Model { owners: self.scenario.owners, ..Model::default() };
        for (i, done) in history.enumerate() {
            let result = match done {
                Done::Local(client, local) => {
                    model.local(local).map_err(|e| format!("{client:?} by itself, {local:?}: {e}"))
                }
                Done::Found { request, ino, .. } => model.found(request, *ino),
                Done::Request { client, request, executed, reply, better, .. } => match reply {
                    Some(reply)
                        if executed.wrote
                            && reply.result != 0
                            && reply.result != -types::Errno::ESTALE.0 =>
                    {
                        Err(format!("it was done, and answered {}", reply.result))
                    }
                    Some(reply) if !executed.wrote || reply.target.is_some() => {
                        model.check(request, executed.made, reply, *better)
                    }
                    Some(_) | None if executed.wrote => model
                        .apply(request, executed.made)
                        .map(|_| ())
                        .map_err(|e| format!("{e:?}")),
                    _ => Ok(()),
                }
                .map_err(|e| format!("{client:?} {request:?}: {e}")),
            };
            if self.verbose {
                eprintln!("{i}: {done:?}");
            }
            result.map_err(|e| format!("no order explains operation {i}: {e}"))?;
        }
        Ok(model)
    }

    fn judge(&mut self) -> Result<(), String> {
        self.check_owed()?;
        let model = self.model()?;
        let log: usize = self.owners.iter().map(|o| o.log.log.len()).sum();
        if log > 0 {
            return Err(format!("{log} batches are left of the log after a flush"));
        }
        self.disk.check_homes(&self.gone)?;
        self.disk.check(&model)
    }
}

/// The numbers of batches that a disk has.
pub fn batches(disk: &Disk) -> Vec<Batch> {
    disk.log.keys().copied().collect()
}
