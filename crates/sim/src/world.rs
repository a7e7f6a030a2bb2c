//! The world: virtual time, the network, clients, faults.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::fmt::Write as _;
use std::hash::Hasher;
use std::time::Duration;

use bytes::Bytes;
use pg::{GiveUp, LostRefused, MapView, PgConf, PoolView};
use types::{Epoch, ObjectId, OsdId, PgId, PoolId};

use crate::history::{Did, Done, History};
use crate::monitor::{MonMsg, Monitor};
use crate::oracle::Oracle;
use crate::osd::{Ask, Bug, ClientOp, Clock, Effect, Local, Osd, attr_of, object_id, value_of};
use crate::rng::{Rng, mix};

/// What a run is made of. Everything else follows from the seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// OSDs.
    pub osds: usize,
    /// Replicas wanted.
    pub size: u32,
    /// Replicas needed.
    pub min_size: u32,
    /// PGs of the pool.
    pub pg_num: u32,
    /// Clients; each has one operation under way.
    pub clients: usize,
    /// Operations of each client.
    pub ops: u64,
    /// Objects.
    pub objects: u64,
    /// Thousandths of a chance that a fault is the crash of one OSD; otherwise all crash, or the placement changes.
    pub crash_one: u64,
    /// Thousandths: all OSDs lose power.
    pub power_cut: u64,
    /// Thousandths: an OSD goes out or comes in.
    pub reweight: u64,
    /// Thousandths: a flush takes long.
    pub slow_flush: u64,
    /// Thousandths: a message takes long.
    pub slow_net: u64,
    /// Thousandths: a crashed OSD stays away for seconds.
    pub slow_restart: u64,
    /// Thousandths: an OSD loses its disk, if all PGs are clean.
    pub lose_disk: u64,
    /// Thousandths of that: another OSD loses its disk, too.
    pub lose_two: u64,
    /// Thousandths: `nobackfill` is set or cleared.
    pub nobackfill: u64,
    /// Thousandths: a copy that is to be filled finds no room at first.
    pub tight: u64,
    /// Thousandths: the next fault comes soon.
    pub hasty: u64,
    /// Thousandths: the pool gets more PGs, or `pgp_num` follows.
    pub pg_num_change: u64,
    /// Logs are so short that an OSD may come back too late to be brought up to date by log.
    pub short_logs: bool,
    /// Whether a second pool is created and deleted.
    pub second_pool: bool,
    /// Thousandths: an OSD is cut off, from everybody or from some, in both directions or in one.
    pub cut_off: u64,
    /// Thousandths: the network falls into two parts, OSDs and clients in each, in both directions or in one.
    pub partition: u64,
    /// Thousandths: connections between OSDs, or of clients, break. OSDs send again what was not acknowledged.
    pub reset: u64,
    /// Thousandths: the process of an OSD stands still.
    pub pause: u64,
    /// Thousandths: somebody asks for another acting set.
    pub churn: u64,
    /// Thousandths: a block goes bad.
    pub bad_block: u64,
    /// Thousandths: a bit of an object's data changes on a disk, without a word.
    pub flipped_bit: u64,
    /// Thousandths: a bit changes that no checksum covers, and no client reads, on an OSD that does not lead.
    pub unseen_bit: u64,
    /// Thousandths: an OSD's disk is slow for some time.
    pub slow_disk: u64,
    /// Thousandths: an OSD's store is full for some time.
    pub full: u64,
    /// Thousandths: who is called down by mistake is called out as well.
    pub auto_out: u64,
    /// Thousandths: a read of a client takes long.
    pub slow_reads: u64,
    /// Thousandths: a request of a client comes twice.
    pub duplicates: u64,
    /// Thousandths: any acting OSD is asked to read.
    pub balanced: u64,
    /// Thousandths: `norecover` is set or cleared.
    pub norecover: u64,
    /// Thousandths of a chance that an operator who sees unfound objects declares OSDs that are away lost, some of which
    /// are. Then, or when all who may have them are there, he gives the objects up. For clusters of one PG: of others,
    /// more may be lost with an OSD.
    pub give_up: u64,
    /// Thousandths: an OSD with an empty disk comes; one of a new number, or of the number of one that went.
    pub add_osd: u64,
    /// Thousandths: an OSD is taken out, waited for until nothing is on it, and removed from the map.
    pub remove_osd: u64,
    /// Thousandths: another size and `min_size` of the pool.
    pub resize: u64,
    /// Thousandths: the monitors are away for a while. Half of what was on its way to them is lost.
    pub monitors_away: u64,
    /// Thousandths of the maps that are lost with an OSD's session, which is found out late.
    pub lost_maps: u64,
    /// Thousandths of the maps that are late, and those after them on the link with them.
    pub late_maps: u64,
    /// Thousandths: an OSD that crashes is taken out, and comes back when old maps are gone.
    pub long_away: u64,
    /// Thousandths: the monitors forget old maps.
    pub trim_maps: u64,
    /// Thousandths by which the speed of clocks differs from the world's.
    pub drift: u64,
    /// Options of the PGs.
    pub conf: PgConf,
    /// A bug to put back.
    pub bug: Bug,
}

impl Default for Scenario {
    fn default() -> Self {
        let conf = PgConf {
            recovery_max_chunk: 16,
            recovery_max_omap_entries: 1,
            recovery_max_active: 2,
            async_recovery_min_cost: 4,
            epoch_persisted_max_stale: 3,
            removal_batch: 2,
            read_lease: Duration::from_millis(600),
            scrub_chunk_min: 1,
            scrub_chunk_max: 3,
            scrub_max_preemptions: 1,
            ..PgConf::default()
        };
        Self {
            osds: 4,
            size: 3,
            min_size: 2,
            pg_num: 2,
            clients: 4,
            ops: 40,
            objects: 8,
            crash_one: 700,
            power_cut: 150,
            reweight: 150,
            slow_flush: 50,
            slow_net: 10,
            slow_restart: 250,
            lose_disk: 0,
            lose_two: 0,
            nobackfill: 0,
            tight: 0,
            hasty: 300,
            pg_num_change: 0,
            short_logs: false,
            second_pool: true,
            cut_off: 0,
            partition: 0,
            reset: 0,
            pause: 0,
            churn: 0,
            bad_block: 0,
            flipped_bit: 0,
            unseen_bit: 0,
            slow_disk: 0,
            full: 0,
            auto_out: 0,
            slow_reads: 10,
            duplicates: 0,
            balanced: 100,
            norecover: 0,
            give_up: 0,
            monitors_away: 0,
            lost_maps: 0,
            late_maps: 0,
            long_away: 0,
            trim_maps: 0,
            add_osd: 0,
            remove_osd: 0,
            resize: 0,
            drift: 10,
            conf,
            bug: Bug::None,
        }
    }
}

impl Scenario {
    /// The seed also decides the shape of the cluster and the kind of trouble.
    pub fn shape(seed: u64) -> Self {
        let base = Self::crashes(seed);
        let base = if seed / 40 % 2 == 1 { base.monitors() } else { base };
        match seed / 10 % 4 {
            1 => base.cut_off(seed),
            2 => base.bad_disks(),
            3 => base.bad_disks().cut_off(seed),
            _ => base,
        }
    }

    /// OSDs that are cut off or stand still, and are called down without knowing it.
    pub fn cut_off(self, seed: u64) -> Self {
        let lease = [200, 600, 2_000][(seed / 40 % 3) as usize];
        let conf = PgConf { read_lease: Duration::from_millis(lease), ..self.conf };
        let part = |n: u64| n / 2;
        Self {
            cut_off: 200,
            partition: 80,
            reset: 120,
            pause: 130,
            auto_out: 100,
            churn: 50,
            duplicates: 30,
            balanced: 300,
            crash_one: part(self.crash_one),
            power_cut: part(self.power_cut),
            reweight: part(self.reweight),
            lose_disk: part(self.lose_disk),
            conf,
            ..self
        }
    }

    /// Monitors that are away, maps that are late or lost, or gone for ever when an OSD comes back.
    pub fn monitors(self) -> Self {
        Self { monitors_away: 80, lost_maps: 30, late_maps: 60, long_away: 150, trim_maps: 60, ..self }
    }

    /// Disks that fail, are slow, or are full, and an operator who moves groups about.
    pub fn bad_disks(self) -> Self {
        let part = |n: u64| n * 6 / 10;
        let damage = |n: u64| if self.lose_disk == 0 && self.size > 2 { n } else { 0 };
        let conf = PgConf { scrub_auto_repair: true, ..self.conf };
        Self {
            // Of what cannot be read here there must be another copy: not with disks that are lost, and not in groups of two,
            // where the other copy may be the one that had a write nobody was told of, and takes it back.
            bad_block: damage(80),
            flipped_bit: damage(160),
            unseen_bit: damage(60),
            conf,
            resize: if self.lose_disk == 0 { 0 } else { self.resize },
            slow_disk: 80,
            full: 70,
            churn: 100,
            duplicates: 30,
            crash_one: part(self.crash_one),
            power_cut: part(self.power_cut),
            reweight: part(self.reweight),
            lose_disk: part(self.lose_disk),
            ..self
        }
    }

    /// Crashes, and nothing else.
    pub fn crashes(seed: u64) -> Self {
        let base = Self::default();
        match seed % 10 {
            shape @ 6..10 => {
                let conf = PgConf {
                    backfill_scan: [1, 3, 8][(seed / 10 % 3) as usize],
                    min_pg_log_entries: 3,
                    target_pg_log_entries: 4,
                    max_pg_log_entries: 12,
                    pg_log_trim_min: 2,
                    // More than other clients write while a request is under way.
                    pg_log_dups_tracked: 120,
                    ..base.conf.clone()
                };
                let base = Self { conf, short_logs: true, tight: 100, objects: 24, ..base };
                match shape {
                    // Restarts that take long.
                    6 => Self { reweight: 0, pg_num: 1, slow_restart: 600, ..base },
                    // Disks are replaced.
                    7 => Self { osds: 3, reweight: 0, resize: 60, pg_num_change: 80, lose_disk: 400, lose_two: 500, min_size: 2 - (seed / 10 % 2) as u32, crash_one: 450, power_cut: 50, ops: 60, ..base },
                    // OSDs come and go.
                    8 => Self { osds: 6, add_osd: 80, remove_osd: 80, resize: 40, pg_num_change: 100, reweight: 450, lose_disk: 50, nobackfill: 50, crash_one: 300, power_cut: 50, ops: 60, ..base },
                    // All of it, with slow disks.
                    _ => Self {
                        osds: 5,
                        add_osd: 50,
                        remove_osd: 50,
                        pg_num_change: 100,
                        reweight: 250,
                        lose_disk: 150,
                        lose_two: 300,
                        nobackfill: 50,
                        crash_one: 350,
                        power_cut: 100,
                        slow_flush: 300,
                        slow_net: 60,
                        hasty: 600,
                        ops: 60,
                        ..base
                    },
                }
            }
            0 => Self { osds: 3, reweight: 0, crash_one: 850, ..base },
            1 => Self { osds: 3, power_cut: 600, crash_one: 400, reweight: 0, ..base },
            2 => Self { osds: 2, size: 2, min_size: 1, reweight: 0, crash_one: 500, power_cut: 400, slow_flush: 300, ..base },
            3 => Self { osds: 6, pg_num: 1, add_osd: 80, remove_osd: 80, resize: 60, pg_num_change: 150, objects: 16, crash_one: 400, reweight: 350, power_cut: 100, ..base },
            5 => Self { osds: 4, pg_num: 1, resize: 80, pg_num_change: 150, objects: 16, crash_one: 500, power_cut: 250, reweight: 100, ..base },
            4 => Self { objects: 2, clients: 4, ops: 28, slow_net: 150, ..base },
            _ => base,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Hash over everything that happened.
    pub trace: u64,
    /// Events processed.
    pub events: u64,
    /// Map epochs.
    pub epochs: u32,
    /// Operations answered.
    pub answered: u64,
    /// How often something rare happened.
    pub marks: BTreeMap<&'static str, u64>,
}

/// Microseconds.
type Time = u64;
const MS: Time = 1_000;

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a model need not be fast")]
enum Ev {
    Peer(PeerBytes),
    Mon(MonMsg),
    FromOsd(OsdId, MonMsg),
    /// Maps from one to another, when older ones than a third were gone.
    OsdMap(OsdId, Epoch, Epoch, Epoch),
    /// An OSD has a new session with a monitor.
    Session(OsdId),
    ClientMap(usize, Epoch),
    Op { to: OsdId, incarnation: u64, op: ClientOp },
    Answer { from: OsdId, client: usize, tid: u64, did: Did },
    Refused { from: OsdId, client: usize, tid: u64, again: bool },
    Flush(OsdId, u64, u64),
    Local(OsdId, u64, PgId, Local),
    Start(OsdId),
    Room(OsdId),
    Drained(OsdId),
    Reset(OsdId, OsdId),
    Resend(usize),
    LongAway(OsdId, Time),
    Fault,
    Operator,
    NextOp(usize),
}

/// A message between OSDs.
#[derive(Clone, Debug)]
struct PeerBytes {
    from: OsdId,
    from_incarnation: u64,
    to: OsdId,
    to_incarnation: u64,
    /// Counts the messages of the connection.
    number: u64,
    front: Bytes,
    data: Bytes,
}

/// One direction of a connection between two processes: what was sent arrives once and in order, but after a reset the
/// sender does not know what did, and sends it again.
#[derive(Debug, Default)]
struct Connection {
    incarnations: (u64, u64),
    sent: u64,
    received: u64,
    /// What may be sent again, with its event, and whether it has arrived.
    unacknowledged: VecDeque<(u64, PeerBytes, bool)>,
}

impl Connection {
    /// How many messages that have arrived are not acknowledged.
    const LATE: usize = 3;

    /// Whether a message is new.
    fn receive(&mut self, msg: &PeerBytes) -> bool {
        if self.incarnations != (msg.from_incarnation, msg.to_incarnation) {
            return true;
        }
        if msg.number <= self.received {
            return false;
        }
        assert_eq!(msg.number, self.received + 1, "messages of a connection keep their order");
        self.received = msg.number;
        for (_, _, arrived) in self.unacknowledged.iter_mut().filter(|(_, m, _)| m.number == msg.number) {
            *arrived = true;
        }
        while self.unacknowledged.iter().filter(|(_, _, arrived)| *arrived).count() > Self::LATE {
            self.unacknowledged.pop_front();
        }
        true
    }
}

#[derive(Debug)]
struct Client {
    epoch: Epoch,
    left: u64,
    tid: u64,
    current: Option<(ClientOp, u64)>,
    sent_to: Option<Target>,
}

/// Where an operation was sent, and in which interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Target {
    primary: OsdId,
    incarnation: u64,
    interval: u64,
}

struct World {
    scenario: Scenario,
    rng: Rng,
    now: Time,
    seq: u64,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    events: BTreeMap<u64, Ev>,
    monitor: Monitor,
    osds: Vec<Osd>,
    clients: Vec<Client>,
    /// When the last message of a pair arrives: the next one is later.
    links: BTreeMap<(i64, i64), Time>,
    /// Connections between OSDs.
    connections: BTreeMap<(OsdId, OsdId), Connection>,
    /// Whose last bytes to whom never left its buffers.
    cut: BTreeSet<(u64, OsdId)>,
    /// Links on which nothing arrives before a time.
    blocked: BTreeMap<(i64, i64), Time>,
    /// Processes that do not run before a time.
    paused: BTreeMap<OsdId, Time>,
    /// Up to where OSDs were sent maps.
    told: BTreeMap<OsdId, Epoch>,
    /// The monitors are away until then.
    away: Time,
    /// OSDs that went for ever, unless one of the same number comes.
    gone: BTreeSet<OsdId>,
    /// OSDs that are to go.
    draining: BTreeSet<OsdId>,
    /// Objects of which some copy was damaged by a disk.
    damaged: BTreeSet<ObjectId>,
    /// Disks that are slow until a time.
    slow: BTreeMap<OsdId, Time>,
    marks: BTreeMap<&'static str, u64>,
    incarnations: u64,
    values: u64,
    history: History,
    oracle: Oracle,
    /// What is wrong.
    wrong: Option<String>,
    trace: u64,
    processed: u64,
    answered: u64,
    calm: bool,
    log: Option<String>,
}

const POOL: PoolId = PoolId(1);
const SECOND: PoolId = PoolId(2);
const MON: i64 = -1;

/// Runs one seed: faults under load, then calm, then judgement. The error says what is wrong.
pub fn run(seed: u64, scenario: &Scenario) -> Result<Report, String> {
    let mut world = World::new(seed, scenario.clone());
    world.begin();
    // Faults under load.
    let chaos = world.rng.range(5, 20) * 1_000 * MS;
    world.run_until(chaos)?;
    // Calm: everybody comes back, and clients finish.
    world.calm = true;
    world.settle();
    let deadline = world.now + 600_000 * MS;
    while !world.is_settled() {
        if world.now > deadline || !world.step()? {
            return Err(format!("not active+clean in calm at {} s\n{}", world.now / 1_000_000, world.describe()));
        }
    }
    // Trailing messages (history, removal of strays) may still be on their way.
    world.run_until(world.now + 10_000 * MS)?;
    world.mend()?;
    world.judge()?;
    let mut marks = world.marks.clone();
    marks.extend(world.oracle.marks.iter().map(|(what, n)| (*what, *n)));
    for osd in &world.osds {
        for (what, n) in &osd.marks {
            *marks.entry(*what).or_default() += n;
        }
    }
    Ok(Report { trace: world.trace, events: world.processed, epochs: world.monitor.map().epoch.0, answered: world.answered, marks })
}

impl World {
    fn new(seed: u64, scenario: Scenario) -> Self {
        let osds = (0..scenario.osds).map(|i| new_osd(i, &scenario)).collect();
        let clients = (0..scenario.clients)
            .map(|_| Client { epoch: Epoch(0), left: scenario.ops, tid: 0, current: None, sent_to: None })
            .collect();
        Self {
            rng: Rng::new(seed),
            now: 0,
            seq: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            monitor: Monitor::new(scenario.osds),
            osds,
            clients,
            links: BTreeMap::new(),
            connections: BTreeMap::new(),
            cut: BTreeSet::new(),
            blocked: BTreeMap::new(),
            paused: BTreeMap::new(),
            told: BTreeMap::new(),
            away: 0,
            gone: BTreeSet::new(),
            draining: BTreeSet::new(),
            damaged: BTreeSet::new(),
            slow: BTreeMap::new(),
            marks: BTreeMap::new(),
            incarnations: 0,
            values: 0,
            history: History::default(),
            oracle: Oracle::new(POOL, scenario.objects, scenario.give_up > 0),
            wrong: None,
            trace: seed,
            processed: 0,
            answered: 0,
            calm: false,
            log: std::env::var_os("SIPHON_SIM_TRACE").map(|_| String::new()),
            scenario,
        }
    }

    fn at(&mut self, time: Time, ev: Ev) {
        self.seq += 1;
        self.queue.push(Reverse((time, self.seq)));
        self.events.insert(self.seq, ev);
    }

    fn after(&mut self, delay: Time, ev: Ev) {
        self.at(self.now + delay, ev);
    }

    /// Mostly fast, sometimes very slow.
    fn network_delay(&mut self) -> Time {
        if self.rng.permille(self.scenario.slow_net) {
            return self.rng.range(50 * MS, 800 * MS);
        }
        match self.rng.range(0, 10) {
            0 => self.rng.range(2 * MS, 20 * MS),
            _ => self.rng.range(50, 1_000),
        }
    }

    /// A message on a link arrives after those before it.
    fn on_link(&mut self, link: (i64, i64), ev: Ev) {
        let delay = self.network_delay();
        let last = self.links.entry(link).or_default();
        *last = (self.now + delay).max(*last + 1);
        let time = *last;
        self.at(time, ev);
    }

    /// Sends a message from OSD to OSD.
    fn send(&mut self, mut msg: PeerBytes) {
        let incarnations = (msg.from_incarnation, msg.to_incarnation);
        let connection = self.connections.entry((msg.from, msg.to)).or_default();
        if connection.incarnations != incarnations {
            *connection = Connection { incarnations, ..Connection::default() };
        }
        connection.sent += 1;
        msg.number = connection.sent;
        self.on_link((msg.from.0.into(), msg.to.0.into()), Ev::Peer(msg.clone()));
        let event = self.seq;
        self.connections.entry((msg.from, msg.to)).or_default().unacknowledged.push_back((event, msg, false));
    }

    /// A connection between OSDs breaks. What was under way is lost, and is sent again over the next one, with what arrived
    /// and was not acknowledged.
    fn reset(&mut self, a: OsdId, b: OsdId) {
        let back = self.now + self.rng.range(MS, 300 * MS);
        for (from, to) in [(a, b), (b, a)] {
            let Some(connection) = self.connections.get_mut(&(from, to)) else { continue };
            let link = (i64::from(from.0), i64::from(to.0));
            let mut again = std::mem::take(&mut connection.unacknowledged);
            if again.iter().any(|(_, _, arrived)| !arrived) {
                self.mark("message lost with its connection");
            }
            for (event, msg, arrived) in &mut again {
                if !*arrived {
                    self.events.remove(event);
                }
                let last = self.links.entry(link).or_default();
                *last = back.max(*last + 1);
                let time = *last;
                self.at(time, Ev::Peer(msg.clone()));
                *event = self.seq;
            }
            if let Some(connection) = self.connections.get_mut(&(from, to)) {
                connection.unacknowledged = again;
            }
        }
    }

    /// Connections break: of OSDs with each other, or of a client.
    fn resets(&mut self) {
        self.mark("connections reset");
        let n = self.osds.len() as u64;
        for _ in 0..self.rng.range(1, 5) {
            let (a, b) = (self.rng.range(0, n), self.rng.range(1, n));
            self.reset(OsdId(a as i32), OsdId(((a + b) % n) as i32));
        }
        let client = self.rng.range(0, self.clients.len() as u64) as usize;
        let of_client = |ev: &Ev| match ev {
            Ev::Op { op, .. } => op.client == client,
            Ev::Answer { client: c, .. } | Ev::Refused { client: c, .. } => *c == client,
            _ => false,
        };
        let lost: Vec<u64> = self.events.iter().filter(|(_, ev)| of_client(ev)).map(|(n, _)| *n).collect();
        for event in lost {
            if let Some(Ev::Answer { .. }) = self.events.remove(&event) {
                self.mark("answer lost");
            }
        }
        let back = self.rng.range(MS, 300 * MS);
        self.after(back, Ev::Resend(client));
    }

    /// The network falls into two parts for a while. The monitors are in one.
    fn partition(&mut self) {
        let until = self.now + self.rng.range(300 * MS, 6_000 * MS);
        let one_way = self.rng.range(0, 4);
        let mut ends: Vec<i64> = (0..self.osds.len() as i64).collect();
        ends.extend((0..self.clients.len() as i64).map(|c| 1000 + c));
        let away: Vec<bool> = ends.iter().map(|_| self.rng.permille(400)).collect();
        ends.push(MON);
        let side = |i: usize| away.get(i).copied().unwrap_or(false);
        for (i, a) in ends.iter().enumerate() {
            for (j, b) in ends.iter().enumerate() {
                let silent = match one_way {
                    0 => side(i) && !side(j),
                    1 => !side(i) && side(j),
                    _ => side(i) != side(j),
                };
                if silent {
                    self.block((*a, *b), until);
                }
            }
        }
        self.mark(if one_way < 2 { "partition in one direction" } else { "partition" });
        for at in 0..self.osds.len() {
            if side(at) {
                self.suspect(OsdId(at as i32));
            }
            for other in 0..at {
                // Connections do not survive it, or find out late.
                if side(at) != side(other) && self.rng.permille(500) {
                    self.at(until, Ev::Reset(OsdId(at as i32), OsdId(other as i32)));
                }
            }
        }
    }

    fn begin(&mut self) {
        let s = self.scenario.clone();
        let pool = PoolView { size: s.size, min_size: s.min_size, pg_num: s.pg_num, created: Epoch(0), pg_num_pending: s.pg_num, merged: None };
        // The pool may come before, between or after the first OSDs.
        let when = self.rng.range(0, 2_000 * MS);
        self.after(when, Ev::Mon(MonMsg::CreatePool(POOL, pool)));
        if s.second_pool {
            let when = self.rng.range(1_000 * MS, 8_000 * MS);
            self.after(when, Ev::Mon(MonMsg::CreatePool(SECOND, PoolView { pg_num: 2, pg_num_pending: 2, ..pool })));
            let when = self.rng.range(8_000 * MS, 15_000 * MS);
            self.after(when, Ev::Mon(MonMsg::DeletePool(SECOND)));
        }
        for i in 0..s.osds {
            let when = self.rng.range(0, 1_500 * MS);
            self.after(when, Ev::Start(OsdId(i as i32)));
        }
        for c in 0..s.clients {
            let when = self.rng.range(500 * MS, 3_000 * MS);
            self.after(when, Ev::NextOp(c));
        }
        let when = self.rng.range(2_000 * MS, 5_000 * MS);
        self.after(when, Ev::Fault);
        if s.give_up > 0 {
            self.after(when, Ev::Operator);
        }
    }

    fn run_until(&mut self, time: Time) -> Result<(), String> {
        while self.queue.peek().is_some_and(|Reverse((t, _))| *t <= time) {
            self.step()?;
        }
        self.now = self.now.max(time);
        Ok(())
    }

    fn step(&mut self) -> Result<bool, String> {
        let Some(Reverse((time, seq))) = self.queue.pop() else { return Ok(false) };
        // What was lost with a connection has no event any more.
        let Some(ev) = self.events.remove(&seq) else { return Ok(true) };
        self.now = time;
        if let Some(until) = self.held_back(&ev) {
            // With its number, so that it stays before what follows it on its link.
            self.queue.push(Reverse((until, seq)));
            self.events.insert(seq, ev);
            return Ok(true);
        }
        self.processed += 1;
        self.hash(&ev);
        self.process(ev);
        self.look();
        self.wrong.take().map_or(Ok(true), Err)
    }

    /// Looks at what the last event has touched.
    fn look(&mut self) {
        for at in 0..self.osds.len() {
            let landed = std::mem::take(&mut self.osds[at].disk.landed);
            self.oracle.landed(self.osds[at].id, landed);
            for pgid in std::mem::take(&mut self.osds[at].touched) {
                let found = self.oracle.look(&self.osds[at], pgid, &self.osds, self.now);
                self.note(found);
            }
        }
    }

    fn note(&mut self, found: Result<(), String>) {
        if let Err(text) = found {
            self.wrong.get_or_insert(text);
        }
    }

    /// Until when an event does not happen, because the link is cut or the process stands still. What is held back keeps its
    /// order on its link.
    fn held_back(&self, ev: &Ev) -> Option<Time> {
        let (link, process) = match *ev {
            Ev::Peer(PeerBytes { from, to, .. }) => ((from.0.into(), to.0.into()), Some(to)),
            Ev::FromOsd(osd, _) => ((osd.0.into(), MON), None),
            Ev::OsdMap(osd, ..) => ((MON, osd.0.into()), Some(osd)),
            Ev::ClientMap(client, _) => ((MON, 1000 + client as i64), None),
            Ev::Op { to, ref op, .. } => ((1000 + op.client as i64, to.0.into()), Some(to)),
            Ev::Answer { from, client, .. } | Ev::Refused { from, client, .. } => ((from.0.into(), 1000 + client as i64), None),
            Ev::Flush(osd, ..) | Ev::Local(osd, ..) => ((osd.0.into(), osd.0.into()), Some(osd)),
            Ev::Mon(_) => return Some(self.away).filter(|t| *t > self.now),
            Ev::Session(_) | Ev::Start(_) | Ev::Room(_) | Ev::Drained(_) | Ev::Reset(..) | Ev::Resend(_) | Ev::LongAway(..) | Ev::Fault | Ev::Operator | Ev::NextOp(_) => return None,
        };
        let cut = self.blocked.get(&link).copied();
        let cut = if link.0 == MON || link.1 == MON { cut.max(Some(self.away)) } else { cut };
        // Who goes on looks at its connections in any order.
        let woken = process.and_then(|osd| self.paused.get(&osd)).map(|t| t + mix(t ^ link.0 as u64) % 2_000);
        cut.max(woken).filter(|t| *t > self.now)
    }

    fn hash(&mut self, ev: &Ev) {
        let mut text = String::new();
        let _ = match ev {
            Ev::Peer(PeerBytes { from, to, front, data, .. }) => {
                let mut h = Fold(0);
                h.write(front);
                h.write(data);
                write!(text, "peer {from}->{to} {:x}", h.0)
            }
            Ev::Local(osd, _, pg, Local::Read(token, _)) => write!(text, "read {osd} {pg} {token:?}"),
            other => write!(text, "{other:?}"),
        };
        let mut h = Fold(self.trace);
        h.write_u64(self.now);
        h.write(text.as_bytes());
        self.trace = h.0;
        if let Some(log) = &mut self.log {
            if let Ev::Peer(PeerBytes { from, to, front, data, .. }) = ev {
                let _ = writeln!(log, "{:>9} {from}->{to} {:?}", self.now, pg::PeerMsg::decode(front.clone(), data.clone()));
            } else {
                let _ = writeln!(log, "{:>9} {text}", self.now);
            }
            eprint!("{log}");
            log.clear();
        }
    }

    fn process(&mut self, ev: Ev) {
        let now = self.now;
        match ev {
            Ev::Peer(msg) => {
                let PeerBytes { from, from_incarnation, to, to_incarnation, .. } = msg;
                let sender = self.osds[from.0 as usize].incarnation;
                let osd = &mut self.osds[to.0 as usize];
                // A dead sender's last bytes may arrive, but not after its next life has spoken.
                let cut = self.cut.contains(&(from_incarnation, to));
                if osd.incarnation == to_incarnation && (sender == from_incarnation || sender == 0) && !cut {
                    if !self.connections.entry((from, to)).or_default().receive(&msg) {
                        return self.mark("message came again");
                    }
                    osd.peer(from, msg.front, msg.data, now);
                    self.carry_out(to);
                }
            }
            Ev::Mon(MonMsg::CreatePool(SECOND, _)) if self.calm => {}
            // Whoever was called down before the calm is up again by now: nobody is out in the calm.
            Ev::Mon(MonMsg::SetIn(_, false)) if self.calm => {}
            Ev::Mon(msg) | Ev::FromOsd(_, msg) => {
                if let MonMsg::Add(osd) = msg {
                    let when = self.rng.range(0, 1_000 * MS);
                    self.after(when, Ev::Start(osd));
                    // If it has started already, nobody knew it.
                    self.after(when + MS, Ev::Session(osd));
                }
                if let MonMsg::Subscribe(osd, from) = msg {
                    self.send_maps(osd, from);
                }
                if self.monitor.handle(msg) > 0 {
                    self.publish();
                }
            }
            Ev::OsdMap(osd, first, epoch, oldest) => {
                if self.osds[osd.0 as usize].incarnation != 0 {
                    self.osds[osd.0 as usize].maps(&self.monitor, first, epoch, oldest, now);
                    self.carry_out(osd);
                }
            }
            Ev::Session(osd) => {
                if self.osds[osd.0 as usize].incarnation != 0 {
                    self.osds[osd.0 as usize].session(now);
                    self.carry_out(osd);
                }
            }
            Ev::ClientMap(client, epoch) => {
                // An interval may come and go between the first and the last of several maps.
                for e in self.clients[client].epoch.0 + 1..=epoch.0 {
                    let c = &mut self.clients[client];
                    c.epoch = Epoch(e);
                    let target = c.current.and_then(|(op, _)| self.target(Epoch(e), self.pgid_of(op.object, Epoch(e))));
                    let c = &mut self.clients[client];
                    if c.sent_to != target {
                        c.sent_to = None;
                    }
                }
                self.send_op(client);
            }
            Ev::Op { to, incarnation, op } => {
                if self.osds[to.0 as usize].incarnation == incarnation {
                    self.osds[to.0 as usize].client(op, now);
                    self.carry_out(to);
                }
            }
            Ev::Answer { client, tid, did, .. } => self.answer(client, tid, did),
            Ev::Refused { client, tid, again, .. } => self.refused(client, tid, again),
            Ev::Room(osd) => {
                if self.osds[osd.0 as usize].full {
                    self.osds[osd.0 as usize].set_full(false, now);
                    self.carry_out(osd);
                    self.after(0, Ev::Mon(MonMsg::Full(osd, false)));
                }
            }
            Ev::Flush(osd, incarnation, seq) => {
                if self.osds[osd.0 as usize].incarnation == incarnation {
                    self.osds[osd.0 as usize].flushed(seq, now);
                    self.carry_out(osd);
                }
            }
            Ev::Local(osd, incarnation, pgid, local) => {
                if self.osds[osd.0 as usize].incarnation == incarnation {
                    self.osds[osd.0 as usize].local(pgid, local, now);
                    self.carry_out(osd);
                }
            }
            Ev::Start(osd) => self.start(osd),
            Ev::Drained(osd) => self.drained(osd),
            Ev::Reset(a, b) => self.reset(a, b),
            Ev::LongAway(osd, until) => self.long_away(osd, until),
            Ev::Resend(client) => {
                self.clients[client].sent_to = None;
                self.send_op(client);
            }
            Ev::Fault => self.fault(),
            Ev::Operator => self.operator(),
            Ev::NextOp(client) => self.next_op(client),
        }
    }

    fn publish(&mut self) {
        let epoch = self.monitor.map().epoch;
        for osd in 0..self.osds.len() {
            let osd = OsdId(osd as i32);
            if self.osds[osd.0 as usize].incarnation == 0 {
                continue;
            }
            let first = self.told.get(&osd).map_or(Epoch(1), |e| e.next());
            if self.rng.permille(self.scenario.lost_maps) && !self.calm {
                self.told.insert(osd, epoch);
                self.mark("maps lost");
                let found = self.rng.range(200 * MS, 3_000 * MS);
                self.after(found, Ev::Session(osd));
                continue;
            }
            if self.rng.permille(self.scenario.late_maps) && !self.calm {
                self.mark("maps late");
                let late = self.now + self.rng.range(100 * MS, 2_000 * MS);
                let last = self.links.entry((MON, osd.0.into())).or_default();
                *last = (*last).max(late);
            }
            self.send_maps(osd, first);
        }
        for client in 0..self.clients.len() {
            self.on_link((MON, 1000 + client as i64), Ev::ClientMap(client, epoch));
        }
    }

    /// The monitor sends an OSD all maps from one on, as far as it has them.
    fn send_maps(&mut self, osd: OsdId, first: Epoch) {
        let (newest, oldest) = (self.monitor.map().epoch, self.monitor.oldest);
        if first <= newest {
            self.told.insert(osd, newest);
            self.on_link((MON, osd.0.into()), Ev::OsdMap(osd, first.max(oldest), newest, oldest));
        }
    }

    /// The monitors are away for a while. What was on its way to them, and what comes meanwhile, may be lost; OSDs have new
    /// sessions when they are back.
    fn monitors_away(&mut self) {
        self.mark("monitors away");
        self.away = self.away.max(self.now + self.rng.range(300 * MS, 5_000 * MS));
        let asked: Vec<u64> = self.events.iter().filter(|(_, ev)| matches!(ev, Ev::FromOsd(..))).map(|(n, _)| *n).collect();
        for event in asked {
            if self.rng.permille(500) {
                self.mark("request to the monitors lost");
                self.events.remove(&event);
            }
        }
        for osd in 0..self.osds.len() {
            let when = self.away + self.rng.range(1, 200 * MS);
            self.at(when, Ev::Session(OsdId(osd as i32)));
        }
    }

    /// The monitors forget maps that no group needs: those from before it was last clean, as its primary says. Whether any went.
    fn trim_maps(&mut self) -> bool {
        let map = self.monitor.map();
        let needs = |pgid| {
            let primary = map.mapping(pgid).primary?;
            let pg = self.osds[primary.0 as usize].pg(pgid).filter(|pg| pg.is_primary())?;
            let clean = pg.is_clean() || self.scenario.bug == Bug::TrimUnclean;
            Some(if clean { pg.epoch() } else { pg.info().history.last_epoch_clean })
        };
        let needed = self.pgids().into_iter().map(needs).min().flatten();
        let Some(needed) = needed.filter(|e| *e > self.monitor.oldest) else { return false };
        self.mark("old maps trimmed");
        self.after(0, Ev::Mon(MonMsg::Trim(needed)));
        true
    }

    /// An OSD is away and out until maps are gone that it has not seen, or it comes back for another reason.
    fn long_away(&mut self, osd: OsdId, until: Time) {
        if self.osds[osd.0 as usize].incarnation != 0 {
            return;
        }
        self.trim_maps();
        if self.monitor.oldest > self.osds[osd.0 as usize].disk.state().epoch.next() || self.now > until {
            self.after(0, Ev::Mon(MonMsg::SetIn(osd, true)));
            self.after(0, Ev::Start(osd));
        } else {
            self.after(300 * MS, Ev::LongAway(osd, until));
        }
    }

    fn carry_out(&mut self, osd: OsdId) {
        let index = osd.0 as usize;
        let incarnation = self.osds[index].incarnation;
        let landed = std::mem::take(&mut self.osds[index].disk.landed);
        self.oracle.landed(osd, landed);
        // A fast disk, or one whose flushes take long, so that much is lost with the power.
        let effects = self.osds[index].effects();
        // The disk shows already what was proposed after an answer.
        for effect in &effects {
            if let Effect::Proposed { object, version, value } = *effect {
                self.oracle.proposed(object, version, value);
            }
        }
        for effect in effects {
            match effect {
                Effect::Peer { to, front, data } => {
                    for to in to {
                        // The address in the newest map that the sender knows; a dead one gets nothing.
                        let map = self.osds[index].map().cloned().unwrap_or_else(|| self.monitor.map().clone());
                        let Some(to_incarnation) = map.incarnation(to) else { continue };
                        let (front, data) = (front.clone(), data.clone());
                        self.send(PeerBytes { from: osd, from_incarnation: incarnation, to, to_incarnation, number: 0, front, data });
                    }
                }
                Effect::Mon(_) if self.away > self.now && self.rng.permille(500) => self.mark("request to the monitors lost"),
                Effect::Mon(msg) => self.on_link((osd.0.into(), MON), Ev::FromOsd(osd, msg)),
                Effect::Proposed { .. } => {}
                Effect::Answer { client, tid, did, proof } => {
                    if let Some((op, _)) = self.clients[client].current.filter(|(op, _)| op.tid == tid) {
                        let found = self.oracle.answered(op.object, &proof, &self.osds, &self.monitor);
                        self.note(found);
                    }
                    self.on_link((osd.0.into(), 1000 + client as i64), Ev::Answer { from: osd, client, tid, did });
                }
                Effect::Refused { client, tid, again } => {
                    self.on_link((osd.0.into(), 1000 + client as i64), Ev::Refused { from: osd, client, tid, again });
                }
                Effect::Complaint(text) => self.complaint(osd, &text),
                Effect::GaveUp(oids) => {
                    let now = self.processed;
                    for oid in oids {
                        let object = self.object_of(&oid);
                        let ops = self.history.objects.entry(object).or_default();
                        let op = ops.iter_mut().rev().find(|o| o.did == Did::GiveUp).expect("it was noted when it began");
                        op.end = now;
                    }
                }
                Effect::Wake(pgid, at) => {
                    let time = self.osds[index].clock.when(at).max(self.now);
                    self.at(time, Ev::Local(osd, incarnation, pgid, Local::Wake));
                }
                Effect::Flush(seq) => {
                    let slow = self.slow.get(&osd).is_some_and(|t| *t > self.now);
                    let delay = if slow {
                        self.rng.range(100 * MS, 1_500 * MS)
                    } else if self.rng.permille(self.scenario.slow_flush) { self.rng.range(20 * MS, 300 * MS) } else { self.rng.range(200, 5 * MS) };
                    self.after(delay, Ev::Flush(osd, incarnation, seq));
                }
                Effect::Later(pgid, local) => {
                    let slow = matches!(local, Local::ReadDone(..)) && self.rng.permille(self.scenario.slow_reads);
                    let delay = if slow { self.rng.range(30 * MS, 2_000 * MS) } else { self.rng.range(100, 30 * MS) };
                    self.after(delay, Ev::Local(osd, incarnation, pgid, local));
                }
            }
        }
    }

    fn start(&mut self, osd: OsdId) {
        if self.osds[osd.0 as usize].incarnation != 0 || self.gone.contains(&osd) {
            return;
        }
        self.incarnations += 1;
        let (incarnation, now) = (self.incarnations, self.now);
        let drift = self.scenario.drift;
        let rate = 1_000 - drift + self.rng.range(0, 2 * drift + 1);
        self.osds[osd.0 as usize].clock = Clock { offset: self.rng.range(0, 1 << 40), rate };
        self.osds[osd.0 as usize].start(incarnation, &self.monitor, now);
        self.carry_out(osd);
        let has = self.osds[osd.0 as usize].map().map_or(Epoch(0), |m| m.epoch);
        self.send_maps(osd, has.next());
    }

    fn crash(&mut self, osd: OsdId) {
        let incarnation = self.osds[osd.0 as usize].incarnation;
        if incarnation == 0 {
            return;
        }
        let unflushed = self.osds[osd.0 as usize].disk.unflushed();
        let survivors = self.rng.range(0, unflushed as u64 + 1) as usize;
        self.osds[osd.0 as usize].stop(survivors);
        for other in 0..self.osds.len() {
            if self.rng.permille(500) {
                self.cut.insert((incarnation, OsdId(other as i32)));
            }
        }
        let noticed = self.rng.range(100 * MS, 2_000 * MS);
        let dead = self.rng.permille(500);
        self.after(noticed, Ev::Mon(MonMsg::Failed(osd, incarnation, dead)));
        let out = self.rng.permille(self.scenario.long_away);
        if out && self.may_go_out() {
            // Long enough for the groups to be clean without it, and old maps to go.
            self.mark("away for long");
            self.after(noticed + 1, Ev::Mon(MonMsg::SetIn(osd, false)));
            self.after(noticed + 1_500 * MS, Ev::LongAway(osd, self.now + 10_000 * MS));
            return;
        }
        let back = if self.rng.permille(self.scenario.slow_restart) {
            self.rng.range(3_000 * MS, 8_000 * MS)
        } else if self.rng.permille(300) {
            self.rng.range(10 * MS, 200 * MS)
        } else {
            self.rng.range(500 * MS, 3_000 * MS)
        };
        self.after(back, Ev::Start(osd));
    }

    /// An OSD crashes and comes back with an empty disk.
    fn lose(&mut self, osd: OsdId) {
        if self.gone.contains(&osd) {
            return;
        }
        self.crash(osd);
        self.osds[osd.0 as usize].replace_disk();
    }

    fn fault(&mut self) {
        if self.calm {
            return;
        }
        let s = &self.scenario;
        let (one, all, weight, n) = (s.crash_one, s.power_cut, s.reweight, self.osds.len() as u64);
        let s_two = s.lose_two;
        let (disk, flag, split) = (s.lose_disk, s.nobackfill, s.pg_num_change);
        let mut other = [s.cut_off, s.pause, s.churn, s.bad_block, s.slow_disk, s.norecover, s.full, s.flipped_bit, s.unseen_bit, s.add_osd, s.remove_osd, s.resize, s.partition, s.reset, s.monitors_away, s.trim_maps];
        let sum = one + all + weight + disk + flag + split;
        let total: u64 = other.iter().sum();
        let dice = self.rng.range(0, 1_000.max(sum + total));
        let mut end = sum;
        for o in &mut other {
            end += *o;
            *o = end;
        }
        if dice < one {
            let osd = OsdId(self.rng.range(0, n) as i32);
            self.crash(osd);
        } else if dice < one + all {
            for osd in 0..n {
                self.crash(OsdId(osd as i32));
            }
        } else if dice < one + all + weight {
            let osd = OsdId(self.rng.range(0, n) as i32);
            let is_in = self.monitor.map().osd(osd).is_some_and(|o| o.is_in);
            if !is_in || self.may_go_out() {
                self.after(0, Ev::Mon(MonMsg::SetIn(osd, !is_in)));
            }
        } else if dice < one + all + weight + disk {
            // Of anything that was acknowledged there must be another copy.
            if self.all_clean() {
                let osd = OsdId(self.rng.range(0, n) as i32);
                self.lose(osd);
                let copies = self.monitor.map().pools.get(&POOL).map_or(0, |p| p.size);
                if copies > 2 && self.rng.permille(s_two) {
                    let other = (osd.0 as u64 + self.rng.range(1, n)) % n;
                    self.lose(OsdId(other as i32));
                    self.mark("two disks replaced");
                }
            }
        } else if dice < one + all + weight + disk + flag {
            let on = !self.monitor.map().nobackfill;
            self.after(0, Ev::Mon(MonMsg::NoBackfill(on)));
        } else if dice < one + all + weight + disk + flag + split {
            let map = self.monitor.map();
            let msg = match map.pools.get(&POOL) {
                Some(_) if map.pgp_num.contains_key(&POOL) && dice.is_multiple_of(2) => Some(MonMsg::PgpNum(POOL)),
                Some(pool) if pool.pg_num > 1 && dice.is_multiple_of(3) => Some(MonMsg::PgNum(POOL, pool.pg_num - 1)),
                Some(pool) if pool.pg_num < 12 => Some(MonMsg::PgNum(POOL, pool.pg_num + 1 + (dice % 4) as u32)),
                _ => None,
            };
            if let Some(msg) = msg {
                self.after(0, Ev::Mon(msg));
            }
        } else if let Some(kind) = other.iter().position(|end| dice < *end) {
            let osd = OsdId(self.rng.range(0, n) as i32);
            match kind {
                0 => self.cut_off(osd),
                1 => self.pause(osd),
                2 => self.churn(),
                3 => self.spoil(osd, Damage::Block),
                4 => {
                    let until = self.now + self.rng.range(500 * MS, 5_000 * MS);
                    self.slow.insert(osd, until);
                    self.mark("disk is slow");
                }
                5 => {
                    let on = !self.monitor.map().norecover;
                    self.after(0, Ev::Mon(MonMsg::NoRecover(on)));
                }
                7 => self.spoil(osd, Damage::Bit),
                8 => self.spoil(osd, Damage::Unseen),
                9 => self.add_osd(),
                10 => self.remove_osd(osd),
                11 => self.resize(),
                12 => self.partition(),
                13 => self.resets(),
                14 => self.monitors_away(),
                15 => drop(self.trim_maps()),
                _ => {
                    let until = self.rng.range(100 * MS, 2_000 * MS);
                    self.osds[osd.0 as usize].full = true;
                    self.after(0, Ev::Mon(MonMsg::Full(osd, true)));
                    self.after(until, Ev::Room(osd));
                    self.mark("store is full");
                }
            }
        }
        let next = if self.rng.permille(self.scenario.hasty) { self.rng.range(10 * MS, 300 * MS) } else { self.rng.range(300 * MS, 3_000 * MS) };
        self.after(next, Ev::Fault);
    }

    /// An OSD with an empty disk comes, when the map knows its number.
    fn add_osd(&mut self) {
        let again = self.gone.iter().copied().find(|osd| self.monitor.map().osd(*osd).is_none());
        let osd = match again {
            Some(osd) if self.rng.permille(600) => {
                self.gone.remove(&osd);
                self.osds[osd.0 as usize].replace_disk();
                self.mark("OSD of an old number added");
                osd
            }
            _ if self.osds.len() < self.scenario.osds + 3 => {
                let osd = new_osd(self.osds.len(), &self.scenario);
                let id = osd.id;
                self.osds.push(osd);
                self.mark("OSD added");
                id
            }
            _ => return,
        };
        self.after(0, Ev::Mon(MonMsg::Add(osd)));
    }

    /// An OSD is to go for ever.
    fn remove_osd(&mut self, osd: OsdId) {
        if self.gone.contains(&osd) || !self.may_go_out() || !self.draining.insert(osd) {
            return;
        }
        self.after(0, Ev::Mon(MonMsg::SetIn(osd, false)));
        self.after(300 * MS, Ev::Drained(osd));
    }

    /// Whether nothing is left on an OSD that is to go. If so, it goes.
    fn drained(&mut self, osd: OsdId) {
        let is_in = self.monitor.map().osd(osd).is_none_or(|o| o.is_in);
        if self.calm || is_in {
            // Somebody changed his mind.
            self.draining.remove(&osd);
            return;
        }
        let map = self.monitor.map();
        let placed = |pgid| {
            let pg::Mapping { up, acting, .. } = map.mapping(pgid);
            up.contains(&osd) || acting.contains(&osd)
        };
        let o = &self.osds[osd.0 as usize];
        let empty = o.pgs().next().is_none() && o.disk.state().colls.is_empty();
        if !empty || !self.all_clean() || self.pgids().into_iter().any(placed) {
            self.after(200 * MS, Ev::Drained(osd));
            return;
        }
        let incarnation = o.incarnation;
        let unflushed = o.disk.unflushed();
        self.osds[osd.0 as usize].stop(unflushed);
        self.draining.remove(&osd);
        self.gone.insert(osd);
        self.mark("OSD removed");
        self.after(0, Ev::Mon(MonMsg::Failed(osd, incarnation, true)));
        self.after(1, Ev::Mon(MonMsg::Purge(osd)));
    }

    /// Another size and `min_size`.
    fn resize(&mut self) {
        let (size, min_size) = (self.scenario.size, self.scenario.min_size);
        let ins = self.monitor.map().osds.iter().filter(|o| o.exists && o.is_in).count();
        let size = match self.rng.range(0, 3) {
            0 if size > 2 => size - 1,
            1 if ins > size as usize => size + 1,
            _ => size,
        };
        let min_size = if self.rng.permille(400) { min_size } else { self.rng.range(1, u64::from(size)) as u32 };
        self.mark("size changed");
        self.after(0, Ev::Mon(MonMsg::Size(POOL, size, min_size.min(size))));
    }

    /// Whether enough OSDs are left if one goes out.
    fn may_go_out(&self) -> bool {
        let map = self.monitor.map();
        let size = map.pools.get(&POOL).map_or(0, |p| p.size).max(self.scenario.size);
        map.osds.iter().filter(|o| o.exists && o.is_in).count() > size as usize
    }

    /// An operator looks after unfound objects.
    fn operator(&mut self) {
        let lost = self.rng.permille(self.scenario.give_up);
        let (destroyed, how) = (self.rng.permille(500), if self.rng.permille(700) { GiveUp::Revert } else { GiveUp::Delete });
        let now = self.now;
        for osd in 0..self.osds.len() {
            let found = |(pgid, pg): (&PgId, &pg::Pg)| (pg.status().unfound > 0).then(|| (*pgid, pg.unfound_holders()));
            let unfound: Vec<_> = self.osds[osd].pgs().filter_map(found).collect();
            for (pgid, holders) in unfound {
                for holder in holders.iter().filter(|h| lost && h.status == "osd is down") {
                    let away = &mut self.osds[holder.osd.0 as usize];
                    if destroyed && away.incarnation == 0 {
                        away.replace_disk();
                    }
                    self.mark("declared lost");
                    self.after(0, Ev::Mon(MonMsg::Lost(holder.osd)));
                }
                match self.osds[osd].give_up(pgid, how, now) {
                    Ok(oids) => {
                        self.mark("gave up");
                        for oid in oids {
                            let object = self.object_of(&oid);
                            let op = Done { client: usize::MAX, did: Did::GiveUp, start: self.processed, end: u64::MAX - 2 };
                            self.history.objects.entry(object).or_default().push(op);
                        }
                    }
                    Err(LostRefused::NotAllAsked(_)) => self.mark("somebody may have it"),
                    Err(_) => {}
                }
                self.carry_out(OsdId(osd as i32));
            }
        }
        let next = self.rng.range(100 * MS, 1_500 * MS);
        self.after(next, Ev::Operator);
    }

    fn object_of(&self, oid: &ObjectId) -> u64 {
        (0..self.scenario.objects).find(|n| object_id(oid.pool, *n) == *oid).expect("an object of this world")
    }

    fn mark(&mut self, what: &'static str) {
        *self.marks.entry(what).or_default() += 1;
    }

    /// Cuts an OSD off for a while; perhaps it is called down and does not know it. Clients on its side of the cut do not hear
    /// of it either.
    fn cut_off(&mut self, osd: OsdId) {
        let until = self.now + self.rng.range(300 * MS, 6_000 * MS);
        let me = i64::from(osd.0);
        let (mut out, mut inward) = (true, true);
        match self.rng.range(0, 4) {
            0 => out = false,
            1 => inward = false,
            _ => {}
        }
        let everybody = self.rng.permille(500);
        let mut ends = vec![MON];
        for other in (0..self.osds.len() as i64).filter(|o| *o != me) {
            if everybody || self.rng.permille(500) {
                ends.push(other);
            }
        }
        if !everybody && self.rng.permille(300) {
            ends.remove(0);
        }
        for end in ends {
            for link in [out.then_some((me, end)), inward.then_some((end, me))].into_iter().flatten() {
                self.block(link, until);
            }
        }
        for client in 0..self.clients.len() as i64 {
            if self.rng.permille(500) {
                self.block((MON, 1000 + client), until);
            }
        }
        self.mark("cut off");
        self.suspect(osd);
    }

    fn block(&mut self, link: (i64, i64), until: Time) {
        let end = self.blocked.entry(link).or_default();
        *end = until.max(*end);
    }

    /// A process stands still.
    fn pause(&mut self, osd: OsdId) {
        let until = self.now + self.rng.range(200 * MS, 5_000 * MS);
        let end = self.paused.entry(osd).or_default();
        *end = until.max(*end);
        self.mark("paused");
        self.suspect(osd);
    }

    fn suspect(&mut self, osd: OsdId) {
        let incarnation = self.osds[osd.0 as usize].incarnation;
        if incarnation != 0 && self.rng.permille(750) {
            let noticed = self.rng.range(20 * MS, 2_500 * MS);
            let dead = self.scenario.bug == Bug::SilentIsDead;
            self.after(noticed, Ev::Mon(MonMsg::Failed(osd, incarnation, dead)));
            if self.may_go_out() && self.rng.permille(self.scenario.auto_out) {
                self.after(noticed + 1, Ev::Mon(MonMsg::SetIn(osd, false)));
            }
        }
    }

    /// An operator asks for another acting set: mostly the same in another order.
    fn churn(&mut self) {
        let pgids = self.pgids();
        let Some(&pgid) = pgids.get(self.rng.range(0, pgids.len() as u64) as usize) else { return };
        let map = self.monitor.map().clone();
        let mut want = map.mapping(pgid).up;
        if !want.is_empty() {
            let by = self.rng.range(0, want.len() as u64) as usize;
            want.rotate_left(by);
        }
        if self.rng.permille(200) {
            want.truncate(1);
        }
        self.mark("acting set asked for");
        self.after(0, Ev::Mon(MonMsg::PgTemp(pgid, want, map.epoch)));
    }

    /// A disk damages copies of objects that have others. While a write is on its way to them, one disk may be the only one
    /// that has its object as the log says: losing that one, too, is more than a group of two can stand.
    fn spoil(&mut self, osd: OsdId, damage: Damage) {
        let (first, mut left) = (self.rng.range(0, self.scenario.objects), self.rng.range(1, 4));
        if !self.all_clean() {
            return;
        }
        for n in 0..self.scenario.objects {
            let object = (first + n) % self.scenario.objects;
            if self.damage(osd, object, damage) {
                left -= 1;
                if left == 0 {
                    return;
                }
            }
        }
    }

    fn damage(&mut self, osd: OsdId, object: u64, damage: Damage) -> bool {
        let map = self.monitor.map();
        let pgid = self.pgid_of(object, map.epoch);
        let pg::Mapping { acting, primary, .. } = map.mapping(pgid);
        let oid = object_id(POOL, object);
        let has = self.osds[osd.0 as usize].disk.state().version(pgid, &oid);
        let others = || self.osds.iter().filter(|o| o.id != osd).map(|o| &o.disk);
        let sound = has.is_some() && others().any(|disk| disk.durable().version(pgid, &oid) == has);
        if !acting.contains(&osd) || !sound || acting.iter().any(|o| is_damaged(&self.osds[o.0 as usize], pgid, &oid)) {
            return false;
        }
        let disk = &mut self.osds[osd.0 as usize].disk;
        let (done, what) = match damage {
            Damage::Block => (disk.spoil(pgid, &oid), "block went bad"),
            Damage::Bit => (disk.flip(pgid, &oid, self.rng.next_u64(), false), "bit changed"),
            Damage::Unseen => (primary != Some(osd) && disk.flip(pgid, &oid, self.rng.next_u64(), true), "unseen bit changed"),
        };
        if done {
            self.damaged.insert(oid);
            self.mark(what);
        }
        done
    }

    /// Scrubs complain of nothing but what a disk has damaged.
    fn complaint(&mut self, osd: OsdId, text: &str) {
        let of_scrub = ["soid", "shard", "inconsistent objects", "errors", "stat mismatch"].iter().any(|w| text.contains(w));
        if !of_scrub {
            return;
        }
        let object = text.contains("soid") || text.contains("shard");
        let known = self.damaged.iter().any(|oid| !object || text.contains(&oid.to_string()));
        if !known || text.contains("stat mismatch") {
            self.note(Err(format!("osd.{osd}: a scrub says: {text}")));
        }
        self.mark("scrub found damage");
    }

    /// Operators repair until no copy differs from others, and none is unreadable.
    fn mend(&mut self) -> Result<(), String> {
        for _ in 0..40 {
            if !self.is_damaged() {
                return Ok(());
            }
            self.mark("repair in the calm");
            let map = self.monitor.map().clone();
            for pgid in self.pgids() {
                if let Some(primary) = map.mapping(pgid).primary {
                    self.osds[primary.0 as usize].repair(pgid, self.now);
                    self.carry_out(primary);
                }
            }
            self.run_until(self.now + 5_000 * MS)?;
        }
        Err(format!("damage stays\n{}", self.describe()))
    }

    /// Whether a copy is unreadable, or differs from others.
    fn is_damaged(&self) -> bool {
        let map = self.monitor.map();
        self.pgids().into_iter().any(|pgid| {
            let copies: Vec<_> = map.mapping(pgid).acting.iter().map(|o| &self.osds[o.0 as usize]).collect();
            let objects = |o: &Osd| o.disk.state().colls.get(&pgid).map(|c| c.objects.clone()).unwrap_or_default();
            copies.windows(2).any(|pair| objects(pair[0]) != objects(pair[1]))
                || copies.iter().any(|o| objects(o).iter().any(|(oid, object)| !object.is_sound() || o.disk.is_bad(pgid, oid)))
        })
    }

    fn settle(&mut self) {
        for osd in 0..self.osds.len() {
            self.after(0, Ev::Room(OsdId(osd as i32)));
        }
        for osd in 0..self.osds.len() {
            let osd = OsdId(osd as i32);
            self.after(0, Ev::Mon(MonMsg::SetIn(osd, true)));
            self.after(1, Ev::Start(osd));
        }
        self.after(0, Ev::Mon(MonMsg::Size(POOL, self.scenario.size, self.scenario.min_size)));
        self.after(0, Ev::Mon(MonMsg::NoBackfill(false)));
        self.after(0, Ev::Mon(MonMsg::NoRecover(false)));
        self.after(0, Ev::Mon(MonMsg::PgpNum(POOL)));
        self.after(0, Ev::Mon(MonMsg::DeletePool(SECOND)));
    }

    /// Which PG an object is in, as a client with a map of this epoch sees it.
    fn pgid_of(&self, object: u64, epoch: Epoch) -> PgId {
        let map = self.monitor.at(epoch);
        let pg_num = map.and_then(|m| m.pools.get(&POOL).map(|p| p.pg_num)).unwrap_or(1);
        let hash = object_id(POOL, object).hash;
        PgId { pool: POOL, seed: types::pgid::stable_mod(hash, pg_num, types::pgid::mask_of(pg_num)) }
    }

    fn next_op(&mut self, client: usize) {
        if self.clients[client].current.is_some() || self.clients[client].left == 0 {
            return;
        }
        let object = self.rng.range(0, self.scenario.objects);
        let ask = match self.rng.range(0, 10) {
            0..=4 => {
                self.values += 1;
                Ask::Write(self.values, self.rng.range(1, 8) as u32)
            }
            5 => Ask::Delete,
            _ => Ask::Read,
        };
        let pgid = self.pgid_of(object, self.clients[client].epoch);
        let balanced = ask == Ask::Read && self.rng.permille(self.scenario.balanced);
        let c = &mut self.clients[client];
        c.left -= 1;
        c.tid += 1;
        let op = ClientOp { client, tid: c.tid, object, pgid, ask, epoch: c.epoch, balanced };
        c.current = Some((op, self.processed));
        c.sent_to = None;
        self.send_op(client);
    }

    /// Sends the client's operation to the primary, if it was not sent to it in this interval.
    fn send_op(&mut self, client: usize) {
        let c = &self.clients[client];
        let Some((mut op, _)) = c.current else { return };
        op.pgid = self.pgid_of(op.object, c.epoch);
        let target = self.target(c.epoch, op.pgid);
        let Some(Target { primary, incarnation, .. }) = target else { return };
        if c.sent_to == target {
            return;
        }
        op.epoch = c.epoch;
        let (mut to, mut incarnation) = (primary, incarnation);
        if op.balanced
            && let Some(map) = self.monitor.at(op.epoch)
        {
            let acting = map.mapping(op.pgid).acting;
            let any = acting[self.rng.range(0, acting.len() as u64) as usize];
            if let Some(its) = map.incarnation(any) {
                (to, incarnation) = (any, its);
            }
        }
        let c = &mut self.clients[client];
        c.sent_to = target;
        self.on_link((1000 + client as i64, to.0.into()), Ev::Op { to, incarnation, op });
        if self.rng.permille(self.scenario.duplicates) {
            // As when a session broke: it comes again, after others.
            let late = self.rng.range(1, 200 * MS);
            self.mark("request came twice");
            self.after(late, Ev::Op { to, incarnation, op });
        }
    }

    /// An answer that says nothing of the object.
    fn refused(&mut self, client: usize, tid: u64, again: bool) {
        let c = &mut self.clients[client];
        let Some((op, _)) = c.current.as_mut().filter(|(op, _)| op.tid == tid) else { return };
        if again {
            if std::mem::take(&mut op.balanced) {
                c.sent_to = None;
                self.send_op(client);
            }
        } else {
            c.current = None;
            self.after(1, Ev::NextOp(client));
        }
    }

    /// Where an operation goes in an epoch. An interval is told by who acts and since when its members are up.
    fn target(&self, epoch: Epoch, pgid: PgId) -> Option<Target> {
        let map = self.monitor.at(epoch)?;
        let mapping = map.mapping(pgid);
        let primary = mapping.primary?;
        let pg_num = map.pools.get(&pgid.pool).map_or(0, |p| u64::from(p.pg_num) << 32 | u64::from(p.pg_num_pending));
        let interval = mapping.acting.iter().fold(pg_num, |h, o| mix(h ^ (o.0 as u64) << 32 ^ u64::from(map.up_from(*o).0)));
        Some(Target { primary, incarnation: map.incarnation(primary)?, interval })
    }

    fn answer(&mut self, client: usize, tid: u64, did: Did) {
        let Some((op, start)) = self.clients[client].current.filter(|(op, _)| op.tid == tid) else { return };
        self.clients[client].current = None;
        self.answered += 1;
        self.history.objects.entry(op.object).or_default().push(Done { client, did, start, end: self.processed });
        let think = if self.calm { 1 } else { self.rng.range(1, 400 * MS) };
        self.after(think, Ev::NextOp(client));
    }

    fn pgids(&self) -> Vec<PgId> {
        let pools = &self.monitor.map().pools;
        pools.iter().flat_map(|(pool, v)| (0..v.pg_num).map(|seed| PgId { pool: *pool, seed })).collect()
    }

    /// All PGs are clean with the newest map, and clients are done.
    fn is_settled(&self) -> bool {
        let map = self.monitor.map();
        map.pools.get(&POOL).is_some_and(|p| p.pg_num_pending == p.pg_num)
            && !map.pools.contains_key(&SECOND)
            && self.clients.iter().all(|c| c.left == 0 && c.current.is_none())
            && self.all_clean()
    }

    /// All OSDs are up and all PGs are clean with the newest map.
    fn all_clean(&self) -> bool {
        let map = self.monitor.map();
        map.osds.iter().all(|o| o.up || !o.exists)
            && self.osds.iter().all(|o| match map.osd(o.id) {
                Some(known) => known.incarnation == o.incarnation,
                None => self.gone.contains(&o.id),
            })
            && self.pgids().into_iter().all(|pgid| {
                map.mapping(pgid).primary.is_some_and(|primary| {
                    let mut pgs = self.osds[primary.0 as usize].pgs();
                    pgs.any(|(id, pg)| *id == pgid && pg.is_clean() && pg.epoch() == map.epoch)
                })
            })
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for osd in &self.osds {
            let _ = writeln!(text, "osd.{} incarnation {} map {:?}", osd.id, osd.incarnation, self.monitor.map().osd(osd.id));
            for (pgid, pg) in osd.pgs() {
                let _ = writeln!(text, "  {pgid} {} {} {:?} {:?} missing {:?} {:?}", pg.state(), pg.phase_name(), pg.mapping(), pg.info(), pg.missing(), pg.backfills().collect::<Vec<_>>());
            }
        }
        for c in self.clients.iter().filter(|c| c.current.is_some()) {
            let _ = writeln!(text, "client {c:?}");
        }
        text
    }

    /// Replicas are identical, what is there is what clients wrote, and no copy is where it should not be.
    fn judge(&mut self) -> Result<(), String> {
        let map = self.monitor.map().clone();
        for osd in &mut self.osds {
            let all = osd.disk.unflushed();
            osd.disk.crash(all);
        }
        for pgid in self.pgids() {
            let pg::Mapping { up, acting, .. } = map.mapping(pgid);
            if acting.len() != self.scenario.size as usize || up.iter().any(|o| !acting.contains(o)) {
                return Err(format!("{pgid}: up {up:?}, acting {acting:?}"));
            }
            let coll = |o: &OsdId| self.osds[o.0 as usize].disk.state().colls.get(&pgid).cloned();
            let first = coll(&acting[0]).ok_or(format!("{pgid}: no collection on osd.{}", acting[0]))?;
            for osd in &acting[1..] {
                let other = coll(osd).ok_or(format!("{pgid}: no collection on osd.{osd}"))?;
                if first.objects != other.objects {
                    return Err(format!("{pgid}: replicas differ\nosd.{}: {:#?}\nosd.{osd}: {:#?}", acting[0], first.objects, other.objects));
                }
                let log = |c: &crate::disk::Coll| c.rows.iter().filter(|(k, _)| k[0] == b'l').map(|(k, v)| (k.clone(), v.clone())).collect::<Vec<_>>();
                // Trimming is not in step; what both have must be the same.
                let (a, b) = (log(&first), log(&other));
                if !a.ends_with(&b) && !b.ends_with(&a) || (!self.scenario.short_logs && a != b) {
                    return Err(format!("{pgid}: logs differ between osd.{} and osd.{osd}", acting[0]));
                }
            }
            for osd in &self.osds {
                if !acting.contains(&osd.id) && osd.disk.state().colls.contains_key(&pgid) {
                    return Err(format!("{pgid}: osd.{} still has a copy", osd.id));
                }
            }
            let loaded = pg::rows::load(first.rows.clone()).map_err(|e| e.to_string())?;
            let counted = loaded.info.stats_invalid || loaded.info.stats.num_objects == first.objects.len() as i64;
            let bits = pgid.split_bits(map.pools[&pgid.pool].pg_num);
            if let Some(oid) = first.objects.keys().find(|o| !pgid.contains_hash(bits, o.hash)) {
                return Err(format!("{pgid} has {oid}, which belongs elsewhere"));
            }
            if !loaded.missing.is_empty() || !counted {
                return Err(format!("{pgid}: {} objects, {:?}", first.objects.len(), loaded.info.stats));
            }
        }
        for osd in &self.osds {
            if let Some(pg) = osd.disk.state().colls.keys().find(|pg| pg.pool == SECOND || pg.seed >= map.pools[&pg.pool].pg_num) {
                return Err(format!("osd.{} still has a copy of {pg}, which does not exist", osd.id));
            }
        }
        // One last read of everything, straight from the primary's disk.
        for object in 0..self.scenario.objects {
            let pgid = self.pgid_of(object, map.epoch);
            let primary = map.mapping(pgid).primary.ok_or("no primary")?;
            let state = self.osds[primary.0 as usize].disk.state();
            let value = state.colls[&pgid].objects.get(&object_id(POOL, object)).map(value_of);
            let done = Done { client: usize::MAX, did: Did::Read(value), start: u64::MAX - 1, end: u64::MAX };
            self.history.objects.entry(object).or_default().push(done);
        }
        self.history.check()
    }
}

/// What a disk does to an object.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// It cannot be read.
    Block,
    /// A bit of the data changes.
    Bit,
    /// A bit changes where no checksum sees it.
    Unseen,
}

/// Whether the copy here is not what was written.
fn is_damaged(osd: &Osd, pgid: PgId, oid: &ObjectId) -> bool {
    let object = osd.disk.state().colls.get(&pgid).and_then(|c| c.objects.get(oid));
    osd.disk.is_bad(pgid, oid) || object.is_some_and(|o| !o.is_sound() || o.attr != attr_of(value_of(o)))
}

fn new_osd(number: usize, scenario: &Scenario) -> Osd {
    let mut osd = Osd::new(OsdId(number as i32), scenario.conf.clone(), scenario.bug);
    osd.tight = scenario.tight;
    osd
}

/// A hash that is the same everywhere.
struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = mix(self.0 ^ u64::from_le_bytes(word));
        }
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
