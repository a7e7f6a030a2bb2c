//! Where the time of clients' operations goes: the legs of their way through this OSD, added up for
//! each tenant, and how long other OSDs take for their copies.
//!
//! An operation adds a few numbers to places that are there already. Memory is taken when the first
//! operation of a tenant is answered, and when an OSD is the first time a replica of it.

use crate::waits::Waits;
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use smallvec::SmallVec;
use std::cell::Cell;
use std::time::Duration;
use types::OsdId;

/// A part of an operation's way, in their order. Each moment from its arrival to its answer belongs
/// to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// Above the limits of its image.
    Limits,
    /// Above the ceiling of its tenant.
    Ceiling,
    /// Waits in the scheduler for its turn.
    Queue,
    /// Waits for other operations on its object.
    Object,
    /// Is executed: the processor, and reading what is not in memory from the device.
    Execute,
    /// Waits until the store here takes a change and has it on the device.
    Store,
    /// Waits for replicas, after that.
    Replicas,
    /// Waits for something else: maps, peering, recovery of its object, a scrub, room.
    Other,
}

impl Leg {
    /// How many there are.
    pub const COUNT: usize = 8;
    /// All of them.
    pub const ALL: [Leg; Leg::COUNT] = [
        Leg::Limits,
        Leg::Ceiling,
        Leg::Queue,
        Leg::Object,
        Leg::Execute,
        Leg::Store,
        Leg::Replicas,
        Leg::Other,
    ];

    /// What programs call it.
    pub fn name(self) -> &'static str {
        match self {
            Leg::Limits => "image_limits",
            Leg::Ceiling => "ceiling",
            Leg::Queue => "queue",
            Leg::Object => "object",
            Leg::Execute => "execute",
            Leg::Store => "store",
            Leg::Replicas => "replicas",
            Leg::Other => "other",
        }
    }
}

/// What an operation has spent where it was noted on the way, in nanoseconds.
#[derive(Debug, Default)]
pub struct Legs([Cell<u64>; Leg::COUNT]);

impl Legs {
    /// Adds what it has spent.
    pub fn add(&self, leg: Leg, nanos: u64) {
        let cell = &self.0[leg as usize];
        cell.set(cell.get().saturating_add(nanos));
    }

    fn get(&self, leg: Leg) -> u64 {
        self.0[leg as usize].get()
    }
}

/// When an operation went on, after its arrival; the last time, if it had to begin again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    /// It left the scheduler.
    pub reached: Option<Duration>,
    /// It had its turn at its object.
    pub started: Option<Duration>,
    /// Its change was handed to the store and the replicas.
    pub proposed: Option<Duration>,
}

/// What an operation that was answered has spent, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spent {
    /// From its arrival to its answer.
    pub total: u64,
    /// By [`Leg`].
    pub legs: [u64; Leg::COUNT],
    /// How long each replica took.
    pub replicas: Acks,
}

/// How long other OSDs took.
pub type Acks = SmallVec<[(OsdId, Duration); 3]>;

/// How long the store here and other OSDs took for a change, from when it was handed to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// The store here has it.
    pub own: Option<Duration>,
    /// The replicas that have it.
    pub acks: Acks,
}

impl Took {
    /// When the last replica had it.
    fn last(&self) -> Duration {
        self.acks.iter().map(|(_, took)| *took).max().unwrap_or_default()
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Spent {
    /// Of an operation that took so long.
    pub fn new(noted: &Legs, marks: Marks, total: Duration, flight: Option<Took>) -> Self {
        let reached = marks.reached.unwrap_or_default().min(total);
        let started = marks.started.filter(|at| *at >= reached).unwrap_or(reached).min(total);
        // What an earlier attempt proposed is of no account.
        let proposed = marks
            .proposed
            .filter(|at| *at >= started && flight.is_some())
            .unwrap_or(total)
            .min(total);
        let mut legs = [0; Leg::COUNT];
        let mut set = |leg: Leg, spent: u64| legs[leg as usize] = spent;
        let before = [Leg::Limits, Leg::Ceiling, Leg::Queue].map(|leg| {
            set(leg, noted.get(leg));
            noted.get(leg)
        });
        set(Leg::Other, nanos(reached).saturating_sub(before.iter().sum()));
        set(Leg::Object, nanos(started - reached));
        let stalled = noted.get(Leg::Store);
        set(Leg::Execute, nanos(proposed - started).saturating_sub(stalled));
        let after = total - proposed;
        let (own, replicas) =
            flight.map_or_else(Default::default, |f| (f.own.unwrap_or(f.last()), f.acks));
        let last = replicas.iter().map(|(_, took)| *took).max().unwrap_or_default();
        // The copy that has it last decides; the time to send the answer then is its own.
        let store = if last > own { own.min(after) } else { after };
        set(Leg::Store, nanos(store).saturating_add(stalled));
        set(Leg::Replicas, nanos(after - store));
        Spent { total: nanos(total), legs, replicas }
    }
}

/// Times together.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    nanos: u64,
    waits: Waits,
}

impl Sum {
    /// Nothing is not written down: the total says how many there were.
    fn add(&mut self, nanos: u64) {
        if nanos > 0 {
            self.nanos = self.nanos.saturating_add(nanos);
            self.waits.add(nanos);
        }
    }

    fn dump(&self, of: u64) -> Value {
        let mut buckets: Vec<u64> = self.waits.used().iter().map(|n| (*n).into()).collect();
        let none = of.saturating_sub(buckets.iter().sum());
        match buckets.first_mut() {
            Some(first) => *first += none,
            None if none > 0 => buckets.push(none),
            None => {}
        }
        json!({"ns": self.nanos, "log2_us": buckets})
    }
}

/// Replicas that are told apart for a tenant.
const MOST_REPLICAS: usize = 16;

/// What operations of a tenant have spent here, since it was first seen.
#[derive(Clone, Debug, Default)]
pub struct Times {
    answered: u64,
    total: Sum,
    legs: [Sum; Leg::COUNT],
    /// How many changes each replica took, and how long that was together.
    replicas: Vec<(OsdId, u64, u64)>,
}

impl Times {
    /// Counts an operation.
    pub fn add(&mut self, spent: &Spent) {
        self.answered += 1;
        self.total.add(spent.total);
        for (sum, spent) in self.legs.iter_mut().zip(spent.legs) {
            sum.add(spent);
        }
        for (osd, took) in &spent.replicas {
            let at = self.replicas.iter().position(|(known, ..)| known == osd);
            let at = at.or_else(|| {
                let room = self.replicas.len() < MOST_REPLICAS;
                room.then(|| self.replicas.push((*osd, 0, 0)))?;
                Some(self.replicas.len() - 1)
            });
            // Of more of them the OSD knows what they take for all together.
            if let Some((_, count, sum)) = at.and_then(|at| self.replicas.get_mut(at)) {
                *count += 1;
                *sum = sum.saturating_add(nanos(*took));
            }
        }
    }

    /// For people and programs.
    pub fn dump(&self) -> Value {
        let legs: Map<String, Value> = Leg::ALL
            .iter()
            .zip(&self.legs)
            .map(|(leg, sum)| (leg.name().to_owned(), sum.dump(self.answered)))
            .collect();
        let replicas: Map<String, Value> = self
            .replicas
            .iter()
            .map(|(osd, count, ns)| (osd.0.to_string(), json!({"answered": count, "ns": ns})))
            .collect();
        json!({"answered": self.answered, "total": self.total.dump(self.answered), "legs": legs, "replicas": replicas})
    }
}

/// How long each OSD that has copies of PGs led here takes to say that it has a change, for all
/// tenants.
#[derive(Debug, Default)]
pub struct Peers(FxHashMap<OsdId, (u64, Sum)>);

impl Peers {
    /// Counts a change that an OSD took so long for.
    pub fn add(&mut self, osd: OsdId, took: Duration) {
        let (count, sum) = self.0.entry(osd).or_default();
        *count += 1;
        sum.add(nanos(took));
    }

    /// For people and programs, by OSD.
    pub fn dump(&self) -> Map<String, Value> {
        let of = |(osd, (count, sum)): (&OsdId, &(u64, Sum))| {
            let mut v = sum.dump(*count);
            v["answered"] = (*count).into();
            (osd.0.to_string(), v)
        };
        self.0.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn of(spent: &Spent, leg: Leg) -> u64 {
        spent.legs[leg as usize] / nanos(MS)
    }

    #[test]
    fn a_read_has_neither_store_nor_replicas() {
        let marks = Marks { reached: Some(MS), started: None, proposed: Some(MS) };
        let spent = Spent::new(&Legs::default(), marks, 4 * MS, None);
        assert_eq!(Leg::ALL.map(|leg| of(&spent, leg)), [0, 0, 0, 0, 3, 0, 0, 1]);
        let mut times = Times::default();
        times.add(&spent);
        let dump = times.dump();
        assert_eq!(
            (&dump["answered"], &dump["legs"]["store"]["log2_us"]),
            (&json!(1), &json!([1])),
            "{dump}"
        );
        assert_eq!(dump["legs"]["execute"]["ns"], 3_000_000);
    }

    #[test]
    fn replicas_are_bounded_and_an_interval_forgets() {
        let mut times = Times::default();
        let replicas: Acks = (0..40).map(|n| (OsdId(n), MS)).collect();
        times.add(&Spent { total: 1, legs: [0; Leg::COUNT], replicas });
        assert_eq!(times.dump()["replicas"].as_object().unwrap().len(), MOST_REPLICAS);
    }
}
