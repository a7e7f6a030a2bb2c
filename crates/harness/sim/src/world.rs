//! The world: virtual time and everything that happens in it.

mod clients;
mod damage;
mod elections;
mod faults;
mod judge;
mod monitor_faults;
mod monitors;
mod network;
mod operators;
mod parts;
mod sessions;
mod snapshots;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt::Write as _;
use std::hash::Hasher;

use pg::PoolView;
use types::{Epoch, ObjectId, OsdId, PgId, PoolId, SnapId, SpgId};

use self::parts::{Between, Client, Connection, Maps, Party, PeerBytes, Session, Time};
use crate::history::{Did, History};
use crate::monitor::{MonMsg, Monitor};
use crate::oracle::Oracle;
use crate::osd::{Effect, Local, Osd};
use crate::quorum::Group;
use crate::request::ClientOp;
use crate::rng::{Rng, mix};
use crate::scenario::{Report, Scenario};

const MS: Time = 1_000;

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a model need not be fast")]
enum Ev {
    Peer(PeerBytes),
    /// The monitors are told something, whichever of them leads.
    Mon(MonMsg),
    /// A monitor is told something in a session.
    FromOsd {
        osd: OsdId,
        mon: usize,
        session: u64,
        msg: MonMsg,
    },
    Between {
        from: usize,
        to: usize,
        what: Between,
    },
    /// Maps that follow on each other, when older ones than one were gone.
    OsdMap {
        osd: OsdId,
        session: u64,
        maps: Maps,
        oldest: Epoch,
    },
    ClientMap {
        client: usize,
        session: u64,
        epoch: Epoch,
    },
    /// A party looks for a monitor.
    Hunt(Party),
    /// A party looks whether the monitor of its session is there, or knows that the session is
    /// broken.
    Doubt(Party, u64, bool),
    /// Monitors elect a leader, if none leads as in this term.
    Elect(u64),
    /// A monitor has waited for a leader.
    Out(usize),
    MonitorStarts(usize),
    Op {
        to: OsdId,
        incarnation: u64,
        op: ClientOp,
    },
    Answer {
        from: OsdId,
        client: usize,
        tid: u64,
        did: Did,
    },
    Refused {
        from: OsdId,
        client: usize,
        tid: u64,
        again: bool,
    },
    Flush(OsdId, u64, u64),
    Local(OsdId, u64, SpgId, Local),
    Start(OsdId),
    Room(OsdId),
    Drained(OsdId),
    Reset(OsdId, OsdId),
    Resend(usize),
    LongAway(OsdId, Time),
    Fault,
    Operator,
    Snapshots,
    NextOp(usize),
}

struct World {
    scenario: Scenario,
    rng: Rng,
    now: Time,
    seq: u64,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    events: BTreeMap<u64, Ev>,
    /// What the monitors have agreed on.
    monitor: Monitor,
    /// The monitors.
    group: Group,
    /// Monitors that stand still until a time.
    stopped: Vec<Time>,
    sessions: BTreeMap<Party, Session>,
    osds: Vec<Osd>,
    clients: Vec<Client>,
    /// When the last message of a pair arrives: the next one is later.
    links: BTreeMap<(i64, i64), Time>,
    /// Connections between OSDs.
    connections: BTreeMap<(OsdId, OsdId), Connection>,
    /// The pairs of which the last bytes never left the sender's buffers.
    cut: BTreeSet<(u64, OsdId)>,
    /// Links on which nothing arrives before a time.
    blocked: BTreeMap<(i64, i64), Time>,
    /// Processes that do not run before a time.
    paused: BTreeMap<OsdId, Time>,
    /// OSDs that went for ever, unless one of the same number comes.
    gone: BTreeSet<OsdId>,
    /// OSDs that are to go.
    draining: BTreeSet<OsdId>,
    /// Objects of which some copy was damaged by a disk.
    damaged: BTreeSet<ObjectId>,
    /// Snapshots that are to go.
    leaving: BTreeSet<SnapId>,
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
/// Where OSDs tell of groups that are ready to be joined.
const MGR: i64 = -1;

/// A monitor's end of links.
fn mon_end(mon: usize) -> i64 {
    -2 - mon as i64
}

/// Runs one seed: faults under load, then calm, then judgement. The error says what is wrong.
pub fn run(seed: u64, scenario: &Scenario) -> Result<Report, String> {
    let mut world = World::new(seed, scenario.clone());
    world.begin();
    // Faults under load.
    let chaos = world.rng.range(5, 20) * 1_000 * MS;
    world.run_until(chaos)?;
    // Calm: all OSDs come back, and clients finish.
    world.calm = true;
    world.settle();
    let deadline = world.now + 600_000 * MS;
    while !world.is_settled() {
        if world.now > deadline || !world.step()? {
            return Err(format!(
                "not active+clean in calm at {} s\n{}",
                world.now / 1_000_000,
                world.describe()
            ));
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
    Ok(Report {
        trace: world.trace,
        events: world.processed,
        epochs: world.monitor.map().epoch.0,
        answered: world.answered,
        marks,
    })
}

impl World {
    fn new(seed: u64, scenario: Scenario) -> Self {
        let osds = (0..scenario.osds).map(|i| new_osd(i, &scenario)).collect();
        let clients = (0..scenario.clients)
            .map(|_| Client {
                epoch: Epoch(0),
                knew: Epoch(0),
                left: scenario.ops,
                tid: 0,
                current: None,
                sent_to: None,
            })
            .collect();
        Self {
            rng: Rng::new(seed),
            now: 0,
            seq: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            monitor: Monitor::new(scenario.osds, scenario.bug),
            group: Group::new(scenario.monitors, scenario.bug),
            stopped: vec![0; scenario.monitors],
            sessions: BTreeMap::new(),
            osds,
            clients,
            links: BTreeMap::new(),
            connections: BTreeMap::new(),
            cut: BTreeSet::new(),
            blocked: BTreeMap::new(),
            paused: BTreeMap::new(),
            gone: BTreeSet::new(),
            draining: BTreeSet::new(),
            damaged: BTreeSet::new(),
            leaving: BTreeSet::new(),
            slow: BTreeMap::new(),
            marks: BTreeMap::new(),
            incarnations: 0,
            values: 0,
            history: History::default(),
            oracle: Oracle::new(POOL, scenario.objects, scenario.cells(), scenario.give_up > 0),
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

    fn begin(&mut self) {
        let s = self.scenario.clone();
        let pool = PoolView {
            kind: s.kind(),
            size: s.size,
            min_size: s.min_size,
            pg_num: s.pg_num,
            created: Epoch(0),
            pg_num_pending: s.pg_num,
            merged: None,
        };
        // The pool may come before, between or after the first OSDs.
        let when = self.rng.range(0, 2_000 * MS);
        self.after(when, Ev::Mon(MonMsg::CreatePool(POOL, pool)));
        if s.second_pool {
            let when = self.rng.range(1_000 * MS, 8_000 * MS);
            self.after(
                when,
                Ev::Mon(MonMsg::CreatePool(
                    SECOND,
                    PoolView { pg_num: 2, pg_num_pending: 2, ..pool },
                )),
            );
            let when = self.rng.range(8_000 * MS, 15_000 * MS);
            self.after(when, Ev::Mon(MonMsg::DeletePool(SECOND)));
        }
        self.elect(0);
        for i in 0..s.osds {
            let when = self.rng.range(0, 1_500 * MS);
            self.after(when, Ev::Start(OsdId(i as i32)));
        }
        for c in 0..s.clients {
            self.after(0, Ev::Hunt(Party::Client(c)));
            let when = self.rng.range(500 * MS, 3_000 * MS);
            self.after(when, Ev::NextOp(c));
        }
        let when = self.rng.range(2_000 * MS, 5_000 * MS);
        self.after(when, Ev::Fault);
        if s.give_up > 0 {
            self.after(when, Ev::Operator);
        }
        if s.snaps > 0 {
            self.after(when, Ev::Snapshots);
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

    /// Until when an event does not happen, because the link is cut or the process stands still.
    /// What is held back keeps its order on its link.
    fn held_back(&self, ev: &Ev) -> Option<Time> {
        let (link, process) = match *ev {
            Ev::Peer(PeerBytes { from, to, .. }) => ((from.0.into(), to.0.into()), Some(to)),
            Ev::FromOsd { osd, mon, .. } => {
                return self.held_monitor((osd.0.into(), mon_end(mon)), mon);
            }
            Ev::Between { from, to, .. } => {
                return self.held_monitor((mon_end(from), mon_end(to)), to);
            }
            Ev::OsdMap { osd, session, .. } => {
                ((self.mon_end_of(Party::Osd(osd), session), osd.0.into()), Some(osd))
            }
            Ev::ClientMap { client, session, .. } => {
                ((self.mon_end_of(Party::Client(client), session), 1000 + client as i64), None)
            }
            Ev::Op { to, ref op, .. } => ((1000 + op.client as i64, to.0.into()), Some(to)),
            Ev::Answer { from, client, .. } | Ev::Refused { from, client, .. } => {
                ((from.0.into(), 1000 + client as i64), None)
            }
            Ev::Flush(osd, ..)
            | Ev::Local(osd, ..)
            | Ev::Hunt(Party::Osd(osd))
            | Ev::Doubt(Party::Osd(osd), ..) => ((osd.0.into(), osd.0.into()), Some(osd)),
            Ev::Hunt(_)
            | Ev::Doubt(..)
            | Ev::Mon(_)
            | Ev::Elect(_)
            | Ev::Out(_)
            | Ev::MonitorStarts(_) => return None,
            Ev::Start(_)
            | Ev::Room(_)
            | Ev::Drained(_)
            | Ev::Reset(..)
            | Ev::Resend(_)
            | Ev::LongAway(..)
            | Ev::Fault
            | Ev::Operator
            | Ev::Snapshots
            | Ev::NextOp(_) => return None,
        };
        let cut = self.blocked.get(&link).copied();
        // A process that goes on looks at its connections in any order.
        let woken = process
            .and_then(|osd| self.paused.get(&osd))
            .map(|t| t + mix(t ^ link.0 as u64) % 2_000);
        cut.max(woken).filter(|t| *t > self.now)
    }

    /// The same for what a monitor gets.
    fn held_monitor(&self, link: (i64, i64), mon: usize) -> Option<Time> {
        let cut = self.blocked.get(&link).copied().unwrap_or(0);
        Some(cut.max(self.stopped[mon])).filter(|t| *t > self.now)
    }

    /// The monitor's end of a session. What belongs to none any more is not looked at when it
    /// arrives.
    fn mon_end_of(&self, party: Party, session: u64) -> i64 {
        self.sessions.get(&party).filter(|s| s.number == session).map_or(MGR, |s| mon_end(s.mon))
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
            Ev::Local(osd, _, pg, Local::Read(token, _)) => {
                write!(text, "read {osd} {pg} {token:?}")
            }
            other => write!(text, "{other:?}"),
        };
        let mut h = Fold(self.trace);
        h.write_u64(self.now);
        h.write(text.as_bytes());
        self.trace = h.0;
        if let Some(log) = &mut self.log {
            if let Ev::Peer(PeerBytes { from, to, front, data, .. }) = ev {
                let _ = writeln!(
                    log,
                    "{:>9} {from}->{to} {:?}",
                    self.now,
                    pg::PeerMsg::decode(front.clone(), data.clone())
                );
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
                if osd.incarnation == to_incarnation
                    && (sender == from_incarnation || sender == 0)
                    && !cut
                {
                    if !self.connections.entry((from, to)).or_default().receive(&msg) {
                        return self.mark("message came again");
                    }
                    osd.peer(from, msg.front, msg.data, now);
                    self.carry_out(to);
                }
            }
            Ev::Mon(MonMsg::CreatePool(SECOND, _)) if self.calm => {}
            // An OSD that was called down before the calm is up again by now: no OSD is out in the
            // calm.
            Ev::Mon(MonMsg::SetIn(_, false)) if self.calm => {}
            Ev::Mon(msg) => {
                if let MonMsg::Add(osd) = msg {
                    let when = self.rng.range(0, 1_000 * MS);
                    self.after(when, Ev::Start(osd));
                }
                self.command(msg);
            }
            Ev::FromOsd { osd, mon, session, msg } => self.hear_osd(osd, mon, session, msg),
            Ev::Between { from, to, what } => self.hear_monitor(from, to, what),
            Ev::OsdMap { osd, session, maps, oldest } => {
                if self.session_of(Party::Osd(osd), session).is_some() {
                    self.osds[osd.0 as usize].maps(&maps.0, oldest, now);
                    let found = self.oracle.acts_on(&self.osds[osd.0 as usize], &self.monitor);
                    self.note(found);
                    self.carry_out(osd);
                }
            }
            Ev::Hunt(party) => self.hunt(party),
            Ev::Doubt(party, session, surely) => self.doubt(party, session, surely),
            Ev::Elect(term) => self.elect(term),
            Ev::Out(mon) => self.out(mon),
            Ev::MonitorStarts(mon) => self.start_monitor(mon),
            Ev::ClientMap { client, session, epoch } => {
                if self.session_of(Party::Client(client), session).is_none() {
                    return;
                }
                // An interval may come and go between the first and the last of several maps.
                for e in self.clients[client].epoch.0 + 1..=epoch.0 {
                    let c = &mut self.clients[client];
                    c.epoch = Epoch(e);
                    let target = c.current.and_then(|(op, _)| {
                        self.target(Epoch(e), self.pgid_of(op.object, Epoch(e)))
                    });
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
            Ev::Snapshots => self.snapshots(),
            Ev::NextOp(client) => self.next_op(client),
        }
    }

    fn carry_out(&mut self, osd: OsdId) {
        let index = osd.0 as usize;
        let incarnation = self.osds[index].incarnation;
        let landed = std::mem::take(&mut self.osds[index].disk.landed);
        self.oracle.landed(osd, landed);
        // A fast disk, or one with slow flushes, so that much is lost with the power.
        let effects = self.osds[index].effects();
        // The disk shows already what was proposed after an answer.
        for effect in &effects {
            if let Effect::Proposed { object, version, after } = *effect {
                self.oracle.proposed(object, version, after);
            }
        }
        for effect in effects {
            match effect {
                Effect::Peer { to, front, data } => {
                    for to in to.into_iter().map(|c| c.osd) {
                        // The address in the newest map that the sender knows; a dead one gets
                        // nothing.
                        let map = self.osds[index]
                            .map()
                            .cloned()
                            .unwrap_or_else(|| self.monitor.map().clone());
                        let Some(to_incarnation) = map.incarnation(to) else { continue };
                        let (front, data) = (front.clone(), data.clone());
                        self.send(PeerBytes {
                            from: osd,
                            from_incarnation: incarnation,
                            to,
                            to_incarnation,
                            number: 0,
                            front,
                            data,
                        });
                    }
                }
                Effect::Mon(msg) => self.tell_monitor(osd, msg),
                Effect::Proposed { .. } => {}
                Effect::Answer { client, tid, did, proof } => {
                    if let Some((op, _)) =
                        self.clients[client].current.filter(|(op, _)| op.tid == tid)
                    {
                        let found =
                            self.oracle.answered(op.object, &proof, &self.osds, &self.monitor);
                        self.note(found);
                    }
                    self.on_link(
                        (osd.0.into(), 1000 + client as i64),
                        Ev::Answer { from: osd, client, tid, did },
                    );
                }
                Effect::Refused { client, tid, again } => {
                    self.on_link(
                        (osd.0.into(), 1000 + client as i64),
                        Ev::Refused { from: osd, client, tid, again },
                    );
                }
                Effect::Wrong(text) => self.note(Err(text)),
                Effect::Complaint(text) => self.complaint(osd, &text),
                Effect::GaveUp(oids) => {
                    let now = self.processed;
                    for oid in oids {
                        let object = self.object_of(&oid);
                        let ops = self.history.objects.entry(object).or_default();
                        let op = ops
                            .iter_mut()
                            .rev()
                            .find(|o| o.did == Did::GiveUp)
                            .expect("it was noted when it began");
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
                    } else if self.rng.permille(self.scenario.slow_flush) {
                        self.rng.range(20 * MS, 300 * MS)
                    } else {
                        self.rng.range(200, 5 * MS)
                    };
                    self.after(delay, Ev::Flush(osd, incarnation, seq));
                }
                Effect::Later(pgid, local) => {
                    let slow = match &local {
                        Local::ReadDone(..) | Local::ReadShard(..) => {
                            self.rng.permille(self.scenario.slow_reads)
                        }
                        // It waits for its turn behind what clients ask for.
                        Local::ReadObject(r) => {
                            !r.urgent && self.rng.permille(self.scenario.slow_recovery)
                        }
                        Local::Hedge(_) => {
                            let wait = self.rng.range(30 * MS, 400 * MS);
                            self.after(wait, Ev::Local(osd, incarnation, pgid, local));
                            continue;
                        }
                        _ => false,
                    };
                    let delay = if slow {
                        self.rng.range(30 * MS, 2_000 * MS)
                    } else {
                        self.rng.range(100, 30 * MS)
                    };
                    self.after(delay, Ev::Local(osd, incarnation, pgid, local));
                }
            }
        }
    }

    fn mark(&mut self, what: &'static str) {
        *self.marks.entry(what).or_default() += 1;
    }

    fn pgids(&self) -> Vec<PgId> {
        let pools = &self.monitor.map().pools;
        pools
            .iter()
            .flat_map(|(pool, v)| (0..v.pg_num).map(|seed| PgId { pool: *pool, seed }))
            .collect()
    }
}

fn new_osd(number: usize, scenario: &Scenario) -> Osd {
    let mut osd = Osd::new(OsdId(number as i32), scenario.conf.clone(), scenario.bug);
    osd.tight = scenario.tight;
    osd.cell = scenario.erasure.map_or(0, |e| e.cell);
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
