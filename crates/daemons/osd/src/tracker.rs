//! Operations in flight and the slowest ones of the recent past (Ceph: `common/TrackedOp.*`).
//!
//! Tracking one operation costs a slot and a few clock readings. Text is made when an operator
//! asks, or when an operation is slow enough to enter the history.

use serde_json::{Value, json};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};
use types::OsdId;

/// How an operation is described to an operator.
pub trait Describe {
    /// One line, as Ceph prints the message.
    fn describe(&self) -> String;

    /// The client's name, address and transaction id.
    fn client_info(&self) -> Value;
}

/// Points in an operation's life, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Entered the scheduler.
    Queued,
    /// Taken from the scheduler.
    ReachedPg,
    /// Execution began.
    Started,
    /// Handed to the store and the replicas.
    WaitingForSubOps,
    /// Everything committed and the reply sent.
    CommitSent,
    /// Over.
    Done,
}

impl Stage {
    const COUNT: usize = 6;

    fn event(self) -> &'static str {
        match self {
            Stage::Queued => "queued_for_pg",
            Stage::ReachedPg => "reached_pg",
            Stage::Started => "started",
            Stage::WaitingForSubOps => "waiting for subops",
            Stage::CommitSent => "commit_sent",
            Stage::Done => "done",
        }
    }

    fn flag_point(self) -> &'static str {
        match self {
            Stage::Queued => "queued for pg",
            Stage::ReachedPg => "reached pg",
            Stage::Started => "started",
            Stage::WaitingForSubOps => "waiting for sub ops",
            Stage::CommitSent => "commit sent; apply or cleanup",
            Stage::Done => "done",
        }
    }

    const ALL: [Stage; Stage::COUNT] = [
        Stage::Queued,
        Stage::ReachedPg,
        Stage::Started,
        Stage::WaitingForSubOps,
        Stage::CommitSent,
        Stage::Done,
    ];
}

/// Waits that are kept of an operation, the last among them: one may wait again and again.
const MOST_WAITS: usize = 32;
/// An operation is let go by what had held it back: no wait, but the end of one.
const LET_GO: [(&str, &str); 2] = [
    (LIMITED, "allowed by the limit of its image"),
    (OVER_CEILING, "allowed by the ceiling of its tenant"),
];

struct Record {
    what: Rc<dyn Describe>,
    started: Instant,
    started_wall: SystemTime,
    marks: Cell<[Option<Duration>; Stage::COUNT]>,
    delayed: Cell<Option<&'static str>>,
    /// When it began to wait, and for what.
    waits: RefCell<Vec<(Duration, &'static str)>>,
    /// For how long what it is promised held it back, and since when it does.
    held: Cell<(Duration, Option<Duration>)>,
    /// The OSDs that it waits for to commit.
    replicas: RefCell<SmallVec<[OsdId; 4]>>,
    /// The OSDs that have committed it, and when: this one's store, and replicas.
    commits: RefCell<SmallVec<[(Duration, Option<OsdId>); 3]>>,
}

impl Record {
    fn last_stage(&self) -> Option<Stage> {
        let marks = self.marks.get();
        Stage::ALL.into_iter().rev().find(|s| marks[*s as usize].is_some())
    }

    fn wait(&self, at: Duration, why: &'static str) {
        let mut waits = self.waits.borrow_mut();
        if waits.len() >= MOST_WAITS {
            waits.pop();
        }
        waits.push((at, why));
    }

    /// How old it is, without the time in which an image's limit or a tenant's ceiling held it
    /// back: that is what these are for.
    fn blamed(&self, age: Duration) -> Duration {
        let (held, since) = self.held.get();
        age.saturating_sub(held)
            .saturating_sub(since.map_or(Duration::ZERO, |since| age.saturating_sub(since)))
    }

    /// What happened, in order.
    fn events(&self) -> Vec<Value> {
        let mut events: Vec<(Duration, String)> = vec![(Duration::ZERO, "initiated".into())];
        events.extend(self.waits.borrow().iter().map(|(at, why)| (*at, (*why).to_owned())));
        // At the same time as a commit, its answer is behind it.
        events.extend(self.commits.borrow().iter().map(|(at, from)| match from {
            None => (*at, "op_commit".to_owned()),
            Some(osd) => (*at, format!("sub_op_commit_rec from {}", osd.0)),
        }));
        for (stage, mark) in Stage::ALL.into_iter().zip(self.marks.get()) {
            let Some(at) = mark else { continue };
            let mut text = stage.event().to_owned();
            let replicas = self.replicas.borrow();
            if stage == Stage::WaitingForSubOps && !replicas.is_empty() {
                let names: Vec<String> = replicas.iter().map(|o| o.0.to_string()).collect();
                text = format!("{text} from {}", names.join(","));
            }
            events.push((at, text));
        }
        events.sort_by_key(|(at, _)| *at);
        events
            .into_iter()
            .map(|(at, event)| json!({"time": wall(self.started_wall + at), "event": event}))
            .collect()
    }

    /// The stage that the operation has reached, as Ceph names it.
    fn flag_point(&self) -> String {
        match (self.last_stage(), self.delayed.get()) {
            (Some(Stage::Done), _) | (_, None) => {
                self.last_stage().map_or("initiated", Stage::flag_point).to_owned()
            }
            (_, Some(why)) => format!("delayed ({why})"),
        }
    }

    fn dump(&self, age: Duration, duration: Duration) -> Value {
        json!({
            "description": self.what.describe(),
            "initiated_at": wall(self.started_wall),
            "age": age.as_secs_f64(),
            "duration": duration.as_secs_f64(),
            "type_data": {
                "flag_point": self.flag_point(),
                "client_info": self.what.client_info(),
                "events": self.events(),
            },
        })
    }
}

/// A time as Ceph prints it, in UTC: `2026-01-02T03:04:05.678901+0000`.
pub fn wall(t: SystemTime) -> String {
    let since = t.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, secs) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Civil date from a day count, with years starting in March so that leap days come last.
    let z = days as i64 + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}+0000",
        secs / 3600,
        secs / 60 % 60,
        secs % 60,
        since.subsec_micros()
    )
}

/// An operation being tracked; dropping it retires the operation.
pub struct Tracked {
    tracker: Rc<Tracker>,
    slot: usize,
    record: Rc<Record>,
}

impl Tracked {
    /// The operation reached `stage`.
    pub fn mark(&self, stage: Stage) {
        let mut marks = self.record.marks.get();
        marks[stage as usize] = Some(self.record.started.elapsed());
        self.record.marks.set(marks);
        if stage != Stage::Done {
            self.record.delayed.set(None);
        }
    }

    /// The operation waits for something.
    pub fn delayed(&self, why: &'static str) {
        self.record.delayed.set(Some(why));
        self.record.wait(self.record.started.elapsed(), why);
    }

    /// The operation waits for what it is promised: [`LIMITED`], or [`OVER_CEILING`]. It is not
    /// slow for that.
    pub fn held(&self, why: &'static str) {
        let now = self.record.started.elapsed();
        self.record.delayed.set(Some(why));
        self.record.wait(now, why);
        let (held, since) = self.record.held.get();
        self.record.held.set((held, since.or(Some(now))));
    }

    /// The operation goes on after a wait.
    pub fn let_go(&self) {
        let now = self.record.started.elapsed();
        let (held, since) = self.record.held.get();
        let Some(since) = since else { return };
        self.record.held.set((held + now.saturating_sub(since), None));
        let why = self.record.delayed.take();
        if let Some((_, event)) = LET_GO.iter().find(|(held, _)| Some(*held) == why) {
            self.record.wait(now, event);
        }
    }

    /// The operation is handed to the store and to these replicas, and waits until all have it.
    pub fn waits_for(&self, replicas: impl Iterator<Item = OsdId>) {
        let mut sorted: SmallVec<[OsdId; 4]> = replicas.collect();
        sorted.sort_unstable();
        *self.record.replicas.borrow_mut() = sorted;
        self.record.commits.borrow_mut().clear();
        self.mark(Stage::WaitingForSubOps);
    }

    /// To note which OSDs have committed it.
    pub fn commits(&self) -> Commits {
        Commits(self.record.clone())
    }

    /// When it arrived.
    pub fn started(&self) -> Instant {
        self.record.started
    }

    /// When it reached `stage`, if it did.
    pub fn reached(&self, stage: Stage) -> Option<Duration> {
        self.record.marks.get()[stage as usize]
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.mark(Stage::Done);
        self.tracker.retire(self.slot, &self.record);
    }
}

/// Notes that an OSD has committed an operation, which may be over meanwhile.
#[derive(Clone)]
pub struct Commits(Rc<Record>);

impl Commits {
    /// A replica has it; `None` for the store here.
    pub fn add(&self, from: Option<OsdId>) {
        self.0.commits.borrow_mut().push((self.0.started.elapsed(), from));
    }
}

/// A finished operation in the history.
struct Past {
    finished: Instant,
    duration: Duration,
    dump: Value,
}

/// Why an operation waits that is above the limit of its image.
pub const LIMITED: &str = "waiting for the limit of its image";
/// Why an operation waits that is above the ceiling of its tenant.
pub const OVER_CEILING: &str = "waiting for the ceiling of its tenant";

/// Limits of the history (`osd_op_history_*`, `osd_op_complaint_time`).
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// `osd_op_history_size`.
    pub size: usize,
    /// `osd_op_history_duration`.
    pub duration: Duration,
    /// `osd_op_history_slow_op_size`.
    pub slow_size: usize,
    /// `osd_op_history_slow_op_threshold`.
    pub slow_threshold: Duration,
    /// `osd_op_complaint_time`.
    pub complaint: Duration,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        HistoryLimits {
            size: 20,
            duration: Duration::from_secs(600),
            slow_size: 20,
            slow_threshold: Duration::from_secs(10),
            complaint: Duration::from_secs(30),
        }
    }
}

/// The operations in flight, and the history of slow ones.
#[derive(Default)]
pub struct Tracker {
    in_flight: RefCell<slab::Slab<Rc<Record>>>,
    history: RefCell<VecDeque<Past>>,
    slow: RefCell<VecDeque<Past>>,
    limits: Cell<HistoryLimits>,
    slow_total: Cell<u64>,
}

impl Tracker {
    /// Starts tracking an operation that arrived at `now`.
    pub fn start(self: &Rc<Self>, what: Rc<dyn Describe>, now: Instant) -> Tracked {
        let record = Rc::new(Record {
            what,
            started: now,
            started_wall: SystemTime::now(),
            marks: Cell::default(),
            delayed: Cell::default(),
            waits: RefCell::default(),
            held: Cell::default(),
            replicas: RefCell::default(),
            commits: RefCell::default(),
        });
        let slot = self.in_flight.borrow_mut().insert(record.clone());
        Tracked { tracker: self.clone(), slot, record }
    }

    /// Changes the limits.
    pub fn set_limits(&self, limits: HistoryLimits) {
        self.limits.set(limits);
    }

    fn retire(&self, slot: usize, record: &Record) {
        self.in_flight.borrow_mut().try_remove(slot);
        let now = Instant::now();
        let duration = now.duration_since(record.started);
        let limits = self.limits.get();
        if record.blamed(duration) >= limits.complaint {
            self.slow_total.set(self.slow_total.get() + 1);
        }
        if duration >= limits.slow_threshold && limits.slow_size > 0 {
            let mut slow = self.slow.borrow_mut();
            slow.push_back(Past { finished: now, duration, dump: record.dump(duration, duration) });
            while slow.len() > limits.slow_size {
                slow.pop_front();
            }
        }
        let mut history = self.history.borrow_mut();
        history.retain(|p| now.duration_since(p.finished) < limits.duration);
        if limits.size == 0 {
            return;
        }
        if history.len() >= limits.size {
            let shortest = history.iter().enumerate().min_by_key(|(_, p)| p.duration);
            match shortest.map(|(i, p)| (i, p.duration)) {
                Some((i, d)) if d < duration => {
                    history.remove(i);
                }
                _ => return,
            }
        }
        history.push_back(Past { finished: now, duration, dump: record.dump(duration, duration) });
    }

    /// `dump_ops_in_flight`; with `blocked_only`, those older than the complaint time.
    pub fn dump_in_flight(&self, blocked_only: bool) -> Value {
        let complaint = self.limits.get().complaint;
        let mut records: Vec<Rc<Record>> =
            self.in_flight.borrow().iter().map(|(_, r)| r.clone()).collect();
        records.sort_by_key(|r| r.started);
        let ops: Vec<Value> = records
            .iter()
            .filter(|r| !blocked_only || r.started.elapsed() >= complaint)
            .map(|r| r.dump(r.started.elapsed(), r.started.elapsed()))
            .collect();
        if blocked_only {
            json!({"num_blocked_ops": ops.len(), "complaint_time": complaint.as_secs_f64(), "ops": ops})
        } else {
            json!({"num_ops": ops.len(), "ops": ops})
        }
    }

    /// `dump_historic_ops`, in order of completion or, with `by_duration`, slowest first.
    pub fn dump_historic(&self, by_duration: bool) -> Value {
        let history = self.history.borrow();
        let mut past: Vec<&Past> = history.iter().collect();
        if by_duration {
            past.sort_by_key(|p| std::cmp::Reverse(p.duration));
        }
        let limits = self.limits.get();
        json!({
            "size": limits.size,
            "duration": limits.duration.as_secs(),
            "num_ops": past.len(),
            "ops": past.iter().map(|p| &p.dump).collect::<Vec<_>>(),
        })
    }

    /// `dump_historic_slow_ops`.
    pub fn dump_slow(&self) -> Value {
        let slow = self.slow.borrow();
        let limits = self.limits.get();
        json!({
            "num_slow_ops": slow.len(),
            "threshold": limits.slow_threshold.as_secs_f64(),
            "slow_ops": slow.iter().map(|p| &p.dump).collect::<Vec<_>>(),
        })
    }

    /// Operations that are older than the complaint time: how many are where, and the age of the
    /// oldest. Time in which an image's limit or a tenant's ceiling held them back does not count.
    pub fn slow_now(&self) -> (BTreeMap<String, u64>, Duration) {
        let complaint = self.limits.get().complaint;
        let mut at: BTreeMap<String, u64> = BTreeMap::new();
        let mut oldest = Duration::ZERO;
        for (_, r) in self.in_flight.borrow().iter() {
            let age = r.blamed(r.started.elapsed());
            if age >= complaint {
                *at.entry(r.flag_point()).or_default() += 1;
                oldest = oldest.max(age);
            }
        }
        (at, oldest)
    }

    /// How many operations took longer than the complaint time since the start.
    pub fn slow_total(&self) -> u64 {
        self.slow_total.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Named(&'static str);
    impl Describe for Named {
        fn describe(&self) -> String {
            self.0.into()
        }
        fn client_info(&self) -> Value {
            json!({"client": "client.1"})
        }
    }

    #[test]
    fn operations_move_from_flight_to_history() {
        let t = Rc::new(Tracker::default());
        let op = t.start(Rc::new(Named("a")), Instant::now());
        op.mark(Stage::Queued);
        op.delayed("waiting for ondisk");
        let d = t.dump_in_flight(false);
        assert_eq!(d["num_ops"], 1);
        assert_eq!(d["ops"][0]["type_data"]["flag_point"], "delayed (waiting for ondisk)");
        drop(op);
        assert_eq!(t.dump_in_flight(false)["num_ops"], 0);
        let h = t.dump_historic(false);
        assert_eq!(h["ops"][0]["description"], "a");
        assert_eq!(h["ops"][0]["type_data"]["flag_point"], "done");
    }

    #[test]
    fn the_history_keeps_the_slowest() {
        let t = Rc::new(Tracker::default());
        t.set_limits(HistoryLimits { size: 2, ..HistoryLimits::default() });
        let ago = |s| Instant::now().checked_sub(Duration::from_secs(s)).unwrap();
        for (name, s) in [("short", 1), ("long", 9), ("middle", 5)] {
            drop(t.start(Rc::new(Named(name)), ago(s)));
        }
        let h = t.dump_historic(true);
        assert_eq!(h["ops"][0]["description"], "long");
        assert_eq!(h["ops"][1]["description"], "middle");
        drop(t.start(Rc::new(Named("very long")), ago(40)));
        assert_eq!(t.slow_total(), 1);
        assert_eq!(t.dump_slow()["num_slow_ops"], 1);
    }

    fn events(op: &Value) -> Vec<String> {
        let events = op["type_data"]["events"].as_array().unwrap();
        let times: Vec<&str> = events.iter().map(|e| e["time"].as_str().unwrap()).collect();
        assert!(times.is_sorted(), "{times:?}");
        events.iter().map(|e| e["event"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_history_says_where_operations_waited_and_for_whom() {
        let t = Rc::new(Tracker::default());
        t.set_limits(HistoryLimits { slow_threshold: Duration::ZERO, ..HistoryLimits::default() });
        let op = t.start(Rc::new(Named("a")), Instant::now());
        op.mark(Stage::Queued);
        op.held(LIMITED);
        op.let_go();
        op.held(OVER_CEILING);
        op.let_go();
        op.let_go();
        op.mark(Stage::ReachedPg);
        op.delayed("waiting for missing object");
        op.mark(Stage::Started);
        op.waits_for([OsdId(11), OsdId(2)].into_iter());
        assert_eq!(
            t.dump_in_flight(false)["ops"][0]["type_data"]["flag_point"],
            "waiting for sub ops"
        );
        let commits = op.commits();
        commits.add(Some(OsdId(11)));
        // It began again: what it had is of no account.
        op.waits_for([OsdId(11), OsdId(2)].into_iter());
        commits.add(Some(OsdId(2)));
        commits.add(None);
        let so_far = events(&t.dump_in_flight(false)["ops"][0]);
        assert_eq!(
            so_far.last().map(String::as_str),
            Some("op_commit"),
            "who has it is seen before all have it: {so_far:?}"
        );
        commits.add(Some(OsdId(11)));
        op.mark(Stage::CommitSent);
        drop(op);
        for dump in [&t.dump_historic(false)["ops"][0], &t.dump_slow()["slow_ops"][0]] {
            let wanted = [
                "initiated",
                "queued_for_pg",
                LIMITED,
                "allowed by the limit of its image",
                OVER_CEILING,
                "allowed by the ceiling of its tenant",
                "reached_pg",
                "waiting for missing object",
                "started",
                "waiting for subops from 2,11",
                "sub_op_commit_rec from 2",
                "op_commit",
                "sub_op_commit_rec from 11",
                "commit_sent",
                "done",
            ];
            assert_eq!(events(dump), wanted);
        }
        // Without replicas no OSD is named, and what waits for ever has a bounded history.
        let op = t.start(Rc::new(Named("b")), Instant::now());
        (0..100).for_each(|_| op.delayed("waiting for scrub"));
        op.delayed("waiting for map");
        op.waits_for([].into_iter());
        let dump = t.dump_in_flight(false);
        let events = events(&dump["ops"][0]);
        assert_eq!(
            (events.len(), &*events[MOST_WAITS], &*events[MOST_WAITS + 1]),
            (MOST_WAITS + 2, "waiting for map", "waiting for subops")
        );
    }

    #[test]
    fn what_a_limit_or_a_ceiling_holds_is_not_slow() {
        let t = Rc::new(Tracker::default());
        let ago = |s| Instant::now().checked_sub(Duration::from_secs(s)).unwrap();
        let slow = |t: &Tracker| t.slow_now().0.into_iter().collect::<Vec<_>>();
        for why in [LIMITED, OVER_CEILING] {
            let op = t.start(Rc::new(Named("held")), ago(100));
            // It came to the limit at once.
            op.held(why);
            op.record.held.set((Duration::ZERO, Some(Duration::ZERO)));
            assert_eq!(slow(&t), [], "{why}");
            assert_eq!(
                t.dump_in_flight(false)["ops"][0]["type_data"]["flag_point"],
                format!("delayed ({why})")
            );
            op.let_go();
            op.mark(Stage::ReachedPg);
            assert_eq!(slow(&t), [], "it has only begun");
            drop(op);
            assert_eq!(t.slow_total(), 0);
        }
        // One that was slow elsewhere is slow, held or not.
        let op = t.start(Rc::new(Named("slow")), ago(100));
        op.held(OVER_CEILING);
        op.record.held.set((Duration::ZERO, Some(Duration::from_secs(31))));
        assert_eq!(slow(&t), [(format!("delayed ({OVER_CEILING})"), 1)]);
        assert!(t.slow_now().1 < Duration::from_secs(32));
        op.let_go();
        drop(op);
        assert_eq!(t.slow_total(), 1);
    }

    #[test]
    fn dates_are_civil() {
        let t = SystemTime::UNIX_EPOCH + Duration::from_micros(1_709_210_096_000_005);
        assert_eq!(wall(t), "2024-02-29T12:34:56.000005+0000");
    }
}
