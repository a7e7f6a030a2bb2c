//! Background work that waits in front of the scheduler, because clients are there: see
//! [`qos::Beside`]; and what finds out how much of it clients' latency allows ([`qos::Auto`]).
//!
//! What begins something waits here: an object to recover, a clone to trim, a slice to scan,
//! objects to remove. What goes on with it (reading the object's parts, listing what is to be
//! filled) does not: it was counted when it began, and clients may wait for its end.

use crate::work::{Background, Kind};
use conf::Config;
use qos::{Auto, Beside, MclockProfile, Objective, OpClass, Part};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// What may wait here, ...
const CLASSES: [OpClass; 2] = [OpClass::BackgroundRecovery, OpClass::BackgroundBestEffort];
/// ... in these lanes: scans of scrubs for which writers may be waiting have one of their own.
const LANES: [(OpClass, u64); 3] =
    [(CLASSES[0], PATIENCE_NANOS), (CLASSES[1], PATIENCE_NANOS), (CLASSES[1], SCAN_PATIENCE_NANOS)];
/// From each lane something begins at least so often, in nanoseconds: ...
const PATIENCE_NANOS: u64 = 500_000_000;
/// ... from that of scans.
const SCAN_PATIENCE_NANOS: u64 = 50_000_000;
/// So many operations of a class are let into the scheduler at a time: more would be before clients
/// that come then.
const INSIDE_OPS_MAX: usize = 4;

/// Operations that wait, with what they cost beside clients.
#[derive(Default)]
struct Lane {
    jobs: VecDeque<(Background, u64)>,
    /// Since when the first is held back.
    since: Option<u64>,
    /// When the first was last held back, whichever it was.
    held: Option<u64>,
}

/// The percentile of a movement job's ceiling.
const MOVEMENT_PERCENTILE: f64 = 99.0;

/// Background work that waits in front of the scheduler. Times are in nanoseconds of the
/// scheduler's clock.
pub(crate) struct Front {
    beside: Beside,
    auto: Option<Auto>,
    lanes: [Lane; 3],
    /// Something was held back since the last look at latencies.
    held: bool,
}

impl Front {
    pub(crate) fn new(parts: [Part; 2], per_ms: u64) -> Self {
        Front {
            beside: Beside::new(parts, per_ms),
            auto: None,
            lanes: Default::default(),
            held: false,
        }
    }

    /// The configuration, or what the OSD can do, has changed.
    pub(crate) fn configure(&mut self, parts: [Part; 2], per_ms: u64) {
        self.beside.set_parts(parts);
        self.beside.set_per_ms(per_ms);
    }

    /// What the OSD can do in a millisecond, in cost.
    pub(crate) fn set_per_ms(&mut self, per_ms: u64) {
        self.beside.set_per_ms(per_ms);
    }

    /// The profile that holds, and what clients are to have while data is moved. What clients'
    /// latency leaves goes on where it was if that was looked at before.
    pub(crate) fn set_profile(&mut self, profile: MclockProfile, c: &Config) {
        let unbounded = profile == MclockProfile::Auto;
        let objective = |option: &str, percentile: f64| {
            let seconds = c.f64(option).clamp(1e-6, 1e6);
            Objective { latency: (seconds * 1e9) as u64, percentile }
        };
        let by_profile = unbounded
            .then(|| objective("osd_mclock_auto_latency", c.f64("osd_mclock_auto_percentile")));
        let of_job = (c.f64("osd_mclock_movement_latency") > 0.0)
            .then(|| objective("osd_mclock_movement_latency", MOVEMENT_PERCENTILE));
        let tightest = [of_job, by_profile].into_iter().flatten().min_by_key(|o| o.latency);
        let Some(objective) = tightest else {
            self.auto = None;
            self.beside.set_scale(Some(1000));
            return;
        };
        let auto = self.auto.get_or_insert_with(|| match unbounded {
            true => Auto::new(objective),
            false => Auto::within(objective),
        });
        auto.set_objective(objective);
        auto.set_unbounded(unbounded);
        self.beside.set_scale(auto.scale());
    }

    /// Whether a kind of work waits here.
    pub(crate) fn takes(kind: &Kind) -> bool {
        match kind {
            Kind::Recover
            | Kind::SnapTrim(_)
            | Kind::CountClones
            | Kind::Scan(_)
            | Kind::RemoveObjects(_) => true,
            Kind::ReadObject(_)
            | Kind::ReadShard(..)
            | Kind::Rebuild(_)
            | Kind::ListObjects(..) => false,
        }
    }

    /// Takes work of a class, with what it costs altogether.
    pub(crate) fn push(&mut self, class: OpClass, job: Background, cost: u64) {
        let lane = match job.kind {
            Kind::Scan(_) => 2,
            _ => usize::from(class == CLASSES[1]),
        };
        self.lanes[lane].jobs.push_back((job, cost));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.iter().all(|l| l.jobs.is_empty())
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes.iter().map(|l| l.jobs.len()).sum()
    }

    /// How many operations of a class wait here.
    pub(crate) fn class_len(&self, class: OpClass) -> usize {
        LANES
            .iter()
            .zip(&self.lanes)
            .filter(|(lane, _)| lane.0 == class)
            .map(|(_, l)| l.jobs.len())
            .sum()
    }

    /// What may begin and whether clients held it back, or when to ask again. `inside` says how
    /// many operations of a class wait in the scheduler.
    pub(crate) fn next(
        &mut self,
        inside: impl Fn(OpClass) -> usize,
        now: u64,
    ) -> Result<(Background, bool), Option<u64>> {
        let clients_wait = inside(OpClass::Client) > 0;
        let mut later: Option<u64> = None;
        for ((class, patience), lane) in LANES.into_iter().zip(&mut self.lanes) {
            let Some((_, cost)) = lane.jobs.front() else { continue };
            if inside(class) >= INSIDE_OPS_MAX {
                continue;
            }
            let overdue = lane.since.map_or(u64::MAX, |since| since.saturating_add(patience));
            match self.beside.may_begin(class, overdue, clients_wait, now) {
                Ok(()) => {
                    self.beside.begins(class, *cost, clients_wait, now);
                    lane.since = None;
                    let Some((job, _)) = lane.jobs.pop_front() else { continue };
                    let held = lane.held.is_some_and(|at| at >= job.queued);
                    return Ok((job, held));
                }
                Err(at) => {
                    self.held = true;
                    lane.held = Some(now);
                    let overdue = lane.since.get_or_insert(now).saturating_add(patience);
                    let at = at.min(overdue);
                    later = Some(later.map_or(at, |l| l.min(at)));
                }
            }
        }
        Err(later)
    }

    /// An operation of a client begins.
    #[inline]
    pub(crate) fn client_begins(&mut self, cost: u32, now: u64) {
        self.beside.client_begins(cost, now);
    }

    /// No operation of a client is in execution any more.
    pub(crate) fn clients_left(&mut self, now: u64) {
        self.beside.clients_left(now);
    }

    /// Whether clients are away, so that ceilings of background work protect none.
    #[inline]
    pub(crate) fn clients_are_away(&self, wait: bool, now: u64) -> bool {
        self.beside.is_away(wait, now)
    }

    /// A client's operation was answered that took so long.
    #[inline]
    pub(crate) fn answered(&mut self, took: u64, now: u64) {
        let Some(auto) = &mut self.auto else { return };
        auto.answered(took);
        if auto.look(self.held, now) {
            self.beside.set_scale(auto.scale());
        }
        self.held &= auto.has_seen();
    }

    /// For people.
    pub(crate) fn dump(&self, profile: MclockProfile) -> Value {
        let of = |class: OpClass| {
            let (part, begun) = (self.beside.part(class), self.beside.begun(class));
            let thousandths = |n: u32| f64::from(n) / 1000.0;
            let dump = json!({
                "part_beside_clients": part.map(|p| thousandths(p.beside)), "part_of_spare_time": part.map(|p| thousandths(p.spare)),
                "held": self.class_len(class), "begun_beside_clients": begun.beside, "begun_overdue": begun.overdue,
                "begun_freely": begun.free, "cost_beside_clients": begun.cost / u64::from(qos::REFERENCE),
            });
            (class.name().to_owned(), dump)
        };
        let mut dump: serde_json::Map<String, Value> = CLASSES.into_iter().map(of).collect();
        dump.insert("profile".into(), profile.name().into());
        dump.insert(
            "cost_of_clients".into(),
            (self.beside.clients() / u64::from(qos::REFERENCE)).into(),
        );
        if let Some(auto) = &self.auto {
            let objective = auto.objective();
            let seconds = |nanos: u64| nanos as f64 / 1e9;
            dump.insert(
                "auto".into(),
                json!({
                    "part": auto.scale().map(|s| f64::from(s) / 1000.0), "latency_objective": seconds(objective.latency),
                    "percentile": objective.percentile, "latency_measured": auto.measured().map(seconds),
                }),
            );
        }
        dump.into()
    }
}
