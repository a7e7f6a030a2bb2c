//! Background work of the cluster as jobs: recovery, backfill, rebalance, snapshot trimming, scrub,
//! deletion of groups. Each has objects and bytes that are done and left, a rate, and a time that
//! it may still take.
//!
//! What is left of recovery, backfill and rebalance, the groups' statistics say; what was done is
//! what they report from one time to the next, as far as their states tell for which job it was.
//! OSDs count the rest (counters `job_...`). What was done is counted since the manager began.
//!
//! A job that has something to do is an event, as of Ceph's module `progress`
//! (`src/pybind/mgr/progress/module.py`).

use crate::map::OsdReport;
use crate::units::{bytes, si};
use denc_derive::Denc;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use types::{OsdId, PgId, PgStat, PgState, Utime};

/// Jobs, and what people call them.
pub const JOBS: [(&str, &str); 6] = [
    ("recovery", "Recovery"),
    ("backfill", "Backfill"),
    ("rebalance", "Rebalance"),
    ("trim", "Snapshot trimming"),
    ("scrub", "Scrub"),
    ("delete", "PG deletion"),
];

/// Over how many digests rates are smoothed.
const SMOOTHING: usize = 6;
/// Events that are over and still shown (Ceph: `mgr/progress/max_completed_events`).
const COMPLETED: usize = 50;
/// Width of a bar of progress, its ends included.
const BAR: usize = 30;

/// A job at one moment.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct Job {
    /// Groups in which it goes on or waits.
    pub groups: u32,
    /// Objects (copies of objects) that it has before it.
    pub objects_left: u64,
    /// Their bytes, about: objects of a group count as equal.
    pub bytes_left: u64,
    /// Snapshots of groups that it has before it.
    pub snaps_left: u64,
    /// Objects that it has done since the manager began.
    pub objects_done: u64,
    /// Their bytes.
    pub bytes_done: u64,
    /// Snapshots of groups that it has done.
    pub snaps_done: u64,
    /// Objects per second.
    pub objects_rate: f64,
    /// Bytes per second.
    pub bytes_rate: f64,
    /// Snapshots of groups per second.
    pub snaps_rate: f64,
    /// Since when it has something to do; zero if it has nothing.
    pub since: Utime,
    /// Objects that it had done then.
    pub done_before: u64,
    /// What holds it up: flags and options.
    pub paused: Vec<String>,
    /// Groups of which it is not known yet how many objects are left.
    #[denc(since = 2)]
    pub uncounted: u32,
}

impl Job {
    /// Whether there is something to do.
    pub fn is_active(&self) -> bool {
        !self.since.is_zero()
    }

    /// The part that is done of what there was to do since it began, from 0 to 1.
    pub fn progress(&self) -> f64 {
        let (done, left) = (self.objects_done.saturating_sub(self.done_before), self.objects_left);
        if done + left == 0 { 0.0 } else { done as f64 / (done + left) as f64 }
    }

    /// Seconds until it has nothing left if it goes on as it does. `None` if it does not move, or
    /// not all is counted.
    pub fn remaining(&self) -> Option<u64> {
        let (left, rate) = (self.objects_left, self.objects_rate);
        (left > 0 && rate > 0.0 && self.uncounted == 0).then(|| (left as f64 / rate).ceil() as u64)
    }

    /// Two lines: name, for how long, a bar, and how long yet.
    pub fn two_lines(&self, name: &str, now: Utime, indent: usize) -> String {
        let inner = BAR - 2;
        let done = (self.progress() * inner as f64) as usize;
        let remaining = match (self.paused.is_empty(), self.remaining()) {
            (false, _) => format!("(paused: {})", self.paused.join(", ")),
            (true, Some(seconds)) => format!("(remaining: {})", pretty(seconds)),
            (true, None) => String::new(),
        };
        let bar = format!("[{}{}]", "=".repeat(done), ".".repeat(inner - done));
        format!(
            "{} ({})\n{}{bar} {remaining}",
            title(name),
            pretty(now.since(self.since).as_secs()),
            " ".repeat(indent)
        )
    }

    /// One line of numbers.
    pub fn numbers(&self) -> String {
        let snaps = if self.snaps_left > 0 {
            format!("{} snapshots, ", si(self.snaps_left))
        } else {
            String::new()
        };
        let more = if self.uncounted > 0 { "or more " } else { "" };
        format!(
            "{} groups; {snaps}{} objects, {} {more}left; {} objects, {} done; {} objects/s, {}/s",
            self.groups,
            si(self.objects_left),
            bytes(self.bytes_left),
            si(self.objects_done),
            bytes(self.bytes_done),
            si(self.objects_rate.round() as u64),
            bytes(self.bytes_rate.round() as u64)
        )
    }

    /// Everything, for machines.
    pub fn dump(&self) -> Value {
        json!({
            "active": self.is_active(),
            "groups": self.groups,
            "objects_left": self.objects_left,
            "bytes_left": self.bytes_left,
            "snapshots_left": self.snaps_left,
            "groups_uncounted": self.uncounted,
            "objects_done": self.objects_done,
            "bytes_done": self.bytes_done,
            "snapshots_done": self.snaps_done,
            "objects_per_sec": self.objects_rate,
            "bytes_per_sec": self.bytes_rate,
            "progress": if self.is_active() { self.progress() } else { 1.0 },
            "time_remaining": self.remaining(),
            "paused": self.paused,
        })
    }

    /// As an event of Ceph's module.
    pub fn event(&self, name: &str, now: Utime) -> Value {
        json!({
            "id": id(name, self.since),
            "message": title(name),
            "duration": format!("({})", pretty(now.since(self.since).as_secs())),
            "refs": [],
            "progress": self.progress(),
            "started_at": self.since.as_secs_f64(),
            "time_remaining": self.remaining(),
        })
    }
}

/// The name of an event.
pub fn id(name: &str, since: Utime) -> String {
    format!("{name}-{}", since.sec)
}

/// What people call a job.
pub fn title(name: &str) -> &str {
    JOBS.iter().find(|(n, _)| *n == name).map_or(name, |(_, title)| title)
}

/// Whether `ceph -s` shows it. Scrubs go on all the time.
pub fn shown_in_status(name: &str) -> bool {
    name != "scrub"
}

/// `12s`, `5m`, `3h`, `2d` (Ceph: `to_pretty_timedelta`, `src/pybind/mgr/mgr_util.py`).
pub fn pretty(seconds: u64) -> String {
    const UNITS: [(u64, u64, &str); 4] =
        [(120, 1, "s"), (7_200, 60, "m"), (172_800, 3_600, "h"), (1_209_600, 86_400, "d")];
    let unit = UNITS.iter().find(|(below, ..)| seconds < *below);
    let (_, size, name) = unit.unwrap_or(&(0, 604_800, "w"));
    format!("{}{name}", seconds / size)
}

/// An event that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Completed {
    /// Which job.
    pub name: &'static str,
    /// When it began.
    pub started: Utime,
    /// When nothing was left.
    pub finished: Utime,
}

impl Completed {
    /// As Ceph's module shows it.
    pub fn dump(&self) -> Value {
        json!({
            "id": id(self.name, self.started),
            "message": title(self.name),
            "refs": [],
            "started_at": self.started.as_secs_f64(),
            "finished_at": self.finished.as_secs_f64(),
            "add_to_ceph_s:": shown_in_status(self.name),
        })
    }
}

/// What the manager keeps of jobs.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    jobs: BTreeMap<&'static str, Job>,
    completed: VecDeque<Completed>,
    /// Objects, bytes and snapshots done of each job at earlier digests.
    samples: VecDeque<(Utime, BTreeMap<&'static str, [u64; 3]>)>,
}

fn count(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

const BACKFILLS: [PgState; 4] = [
    PgState::BACKFILLING,
    PgState::BACKFILL_WAIT,
    PgState::BACKFILL_TOOFULL,
    PgState::BACKFILL_UNFOUND,
];
const RECOVERIES: [PgState; 4] = [
    PgState::RECOVERING,
    PgState::RECOVERY_WAIT,
    PgState::RECOVERY_TOOFULL,
    PgState::RECOVERY_UNFOUND,
];

/// For which job a group's degraded objects are copied, if one goes on or waits.
fn degraded_job(state: PgState) -> Option<&'static str> {
    if RECOVERIES.iter().any(|s| state.has(*s)) {
        Some("recovery")
    } else if BACKFILLS.iter().any(|s| state.has(*s)) {
        Some("backfill")
    } else {
        None
    }
}

impl Jobs {
    fn done(&mut self, name: &'static str, objects: u64, bytes: u64) {
        let job = self.jobs.entry(name).or_default();
        job.objects_done += objects;
        job.bytes_done += bytes;
    }

    /// A group reports again.
    pub(crate) fn note_group(&mut self, before: &PgStat, after: &PgStat) {
        if before.state == PgState(0) {
            return;
        }
        let (a, b) = (&before.stats.sum, &after.stats.sum);
        let objects = count(b.num_objects_recovered - a.num_objects_recovered);
        let bytes = count(b.num_bytes_recovered - a.num_bytes_recovered);
        if objects + bytes == 0 {
            return;
        }
        // What it has just begun or ended, one of the two states tells.
        let recovers = [before, after].iter().any(|s| degraded_job(s.state) == Some("recovery"));
        let degraded = [before, after].iter().any(|s| s.state.has(PgState::DEGRADED));
        let name =
            if recovers || !BACKFILLS.iter().any(|s| before.state.has(*s) || after.state.has(*s)) {
                "recovery"
            } else if degraded {
                "backfill"
            } else {
                "rebalance"
            };
        self.done(name, objects, bytes);
    }

    /// An OSD reports; of a process that the manager has not heard before, it counts what came
    /// since it began.
    pub(crate) fn note_osd(
        &mut self,
        before: &OsdReport,
        known: bool,
        same_process: bool,
        after: &BTreeMap<String, u64>,
    ) {
        if !known {
            return;
        }
        let since = |name: &str| {
            let old =
                if same_process { before.counters.get(name).copied().unwrap_or(0) } else { 0 };
            after.get(name).copied().unwrap_or(0).saturating_sub(old)
        };
        self.done("trim", since("job_trim_objects"), since("job_trim_bytes"));
        self.jobs.entry("trim").or_default().snaps_done += since("job_trim_snaps");
        self.done("scrub", since("job_scrub_objects"), since("job_scrub_bytes"));
        self.done("delete", since("job_delete_objects"), since("job_delete_bytes"));
    }

    /// Works out what is left, rates, and which events begin and end.
    pub(crate) fn digest(
        &mut self,
        now: Utime,
        pgs: &BTreeMap<PgId, PgStat>,
        osds: &BTreeMap<OsdId, OsdReport>,
    ) -> BTreeMap<String, Job> {
        let mut left: BTreeMap<&'static str, (u32, u64, u64, u64)> = BTreeMap::new();
        for stat in pgs.values() {
            let sum = &stat.stats.sum;
            let mean = count(sum.num_bytes) / count(sum.num_objects).max(1);
            let mut add = |name, objects: u64, snaps| {
                let (groups, o, b, s) = left.entry(name).or_default();
                *groups += 1;
                *o += objects;
                *b += objects.saturating_mul(mean);
                *s += snaps;
            };
            if let Some(name) = degraded_job(stat.state).filter(|_| sum.num_objects_degraded > 0) {
                add(name, count(sum.num_objects_degraded), 0);
            }
            if sum.num_objects_misplaced > 0 && stat.state.has(PgState::REMAPPED) {
                add("rebalance", count(sum.num_objects_misplaced), 0);
            }
            if stat.snaptrimq_len > 0 {
                add("trim", 0, stat.snaptrimq_len.into());
            }
        }
        let mut uncounted = 0u32;
        for report in osds.values() {
            let n = |name: &str| report.counters.get(name).copied().unwrap_or(0);
            for (name, groups, objects, bytes) in [
                ("scrub", "job_scrub_groups", "job_scrub_objects_left", "job_scrub_bytes_left"),
                ("delete", "job_delete_groups", "job_delete_objects_left", "job_delete_bytes_left"),
            ] {
                if n(groups) > 0 {
                    let (g, o, b, _) = left.entry(name).or_default();
                    *g += u32::try_from(n(groups)).unwrap_or(u32::MAX);
                    *o += n(objects);
                    *b += n(bytes);
                }
            }
            // Of which groups, their statistics say.
            if let Some((_, o, b, _)) = left.get_mut("trim") {
                *o += n("job_trim_objects_left");
                *b += n("job_trim_bytes_left");
                uncounted = uncounted
                    .saturating_add(u32::try_from(n("job_trim_uncounted")).unwrap_or(u32::MAX));
            }
        }
        let earlier = self.samples.front().cloned();
        let last = self.samples.back().cloned();
        let mut done = BTreeMap::new();
        for (name, _) in JOBS {
            let job = self.jobs.entry(name).or_default();
            (job.groups, job.objects_left, job.bytes_left, job.snaps_left) =
                left.get(name).copied().unwrap_or_default();
            job.uncounted = if name == "trim" { uncounted } else { 0 };
            let counts = [job.objects_done, job.bytes_done, job.snaps_done];
            if let Some((then, before)) = &earlier {
                let seconds = now.as_secs_f64() - then.as_secs_f64();
                let before = before.get(name).copied().unwrap_or_default();
                let rate = |i: usize| {
                    if seconds > 0.0 {
                        counts[i].saturating_sub(before[i]) as f64 / seconds
                    } else {
                        0.0
                    }
                };
                (job.objects_rate, job.bytes_rate, job.snaps_rate) = (rate(0), rate(1), rate(2));
            }
            done.insert(name, counts);
            if job.groups == 0 {
                if job.is_active() {
                    self.completed.push_back(Completed { name, started: job.since, finished: now });
                }
                job.since = Utime::default();
            } else if !job.is_active() {
                job.since = now;
                let before =
                    last.as_ref().and_then(|(_, d)| d.get(name).copied()).unwrap_or_default();
                job.done_before = before[0];
            }
        }
        while self.completed.len() > COMPLETED {
            self.completed.pop_front();
        }
        self.samples.push_back((now, done));
        while self.samples.len() > SMOOTHING {
            self.samples.pop_front();
        }
        self.jobs.iter().map(|(name, job)| ((*name).to_owned(), job.clone())).collect()
    }

    /// Events that are over, the oldest first.
    pub fn completed(&self) -> impl Iterator<Item = &Completed> {
        self.completed.iter()
    }

    /// Forgets the events that are over.
    pub fn clear(&mut self) {
        self.completed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u32) -> Utime {
        Utime::new(1_000_000_000 + s, 0)
    }

    fn group(state: PgState, degraded: i64, misplaced: i64, recovered: i64) -> PgStat {
        let mut s = PgStat { state: state | PgState::ACTIVE, ..PgStat::default() };
        let sum = &mut s.stats.sum;
        (sum.num_objects, sum.num_bytes) = (100, 400_000);
        (sum.num_objects_degraded, sum.num_objects_misplaced) = (degraded, misplaced);
        (sum.num_objects_recovered, sum.num_bytes_recovered) = (recovered, recovered * 4_000);
        s
    }

    fn one(stat: &PgStat) -> BTreeMap<PgId, PgStat> {
        [(PgId::default(), stat.clone())].into()
    }

    #[test]
    fn a_job_begins_goes_on_and_ends() {
        let mut jobs = Jobs::default();
        let clean = group(PgState::CLEAN, 0, 0, 7);
        let d = jobs.digest(at(0), &one(&clean), &BTreeMap::new());
        assert!(
            JOBS.iter().all(|(name, _)| d.get(*name).is_some_and(|j| !j.is_active())),
            "all are there, and idle: {d:?}"
        );
        let waits = PgState::BACKFILL_WAIT | PgState::DEGRADED | PgState::REMAPPED;
        let begun = group(waits, 100, 0, 7);
        jobs.note_group(&clean, &begun);
        let d = jobs.digest(at(5), &one(&begun), &BTreeMap::new());
        assert_eq!(
            (d["backfill"].objects_left, d["backfill"].bytes_left, d["backfill"].remaining()),
            (100, 400_000, None)
        );
        assert!(!d["recovery"].is_active());
        let half = group(PgState::BACKFILLING | PgState::DEGRADED | PgState::REMAPPED, 60, 0, 47);
        jobs.note_group(&begun, &half);
        let d = jobs.digest(at(10), &one(&half), &BTreeMap::new());
        let job = &d["backfill"];
        assert_eq!((job.objects_done, job.bytes_done, job.progress()), (40, 160_000, 0.4));
        assert_eq!((job.objects_rate, job.remaining()), (4.0, Some(15)));
        let lines = job.two_lines("backfill", at(10), 4);
        assert_eq!(lines, "Backfill (5s)\n    [===========.................] (remaining: 15s)");
        assert_eq!(
            job.numbers(),
            "1 groups; 60 objects, 234 KiB left; 40 objects, 156 KiB done; 4 objects/s, 16 KiB/s"
        );
        // The last copies are reported with the end.
        let end = group(PgState::CLEAN, 0, 0, 107);
        jobs.note_group(&half, &end);
        let d = jobs.digest(at(15), &one(&end), &BTreeMap::new());
        assert_eq!((d["backfill"].objects_done, d["backfill"].is_active()), (100, false));
        let over: Vec<_> = jobs.completed().map(|c| (c.name, c.started, c.finished)).collect();
        assert_eq!(over, [("backfill", at(5), at(15))]);
        // The next time counts anew.
        let again = group(waits, 10, 0, 107);
        let d = jobs.digest(at(20), &one(&again), &BTreeMap::new());
        assert_eq!(d["backfill"].progress(), 0.0);
    }

    #[test]
    fn a_group_tells_for_which_job_it_copies() {
        let of = |state, degraded, misplaced| {
            let mut jobs = Jobs::default();
            let stat = group(state, degraded, misplaced, 3);
            jobs.note_group(&group(PgState::PEERING, 0, 0, 0), &stat);
            let d = jobs.digest(at(0), &one(&stat), &BTreeMap::new());
            let active: Vec<String> =
                d.iter().filter(|(_, j)| j.is_active()).map(|(n, _)| n.clone()).collect();
            let done: Vec<String> =
                d.iter().filter(|(_, j)| j.objects_done > 0).map(|(n, _)| n.clone()).collect();
            (active.join(" "), done.join(" "))
        };
        let text = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(of(PgState::RECOVERING | PgState::DEGRADED, 5, 0), text("recovery", "recovery"));
        assert_eq!(
            of(PgState::BACKFILLING | PgState::REMAPPED, 0, 5),
            text("rebalance", "rebalance")
        );
        assert_eq!(
            of(PgState::BACKFILLING | PgState::REMAPPED | PgState::DEGRADED, 5, 5),
            text("backfill rebalance", "backfill")
        );
        assert_eq!(
            of(PgState::UNDERSIZED | PgState::DEGRADED, 5, 0).0,
            "",
            "nobody can be given a copy"
        );
        let mut jobs = Jobs::default();
        jobs.note_group(&PgStat::default(), &group(PgState::CLEAN, 0, 0, 1_000));
        assert_eq!(
            jobs.digest(at(0), &BTreeMap::new(), &BTreeMap::new())["recovery"].objects_done,
            0,
            "that was before"
        );
    }

    #[test]
    fn trimming_is_counted_in_clones() {
        let mut jobs = Jobs::default();
        let group = |snaps| PgStat { snaptrimq_len: snaps, ..group(PgState::CLEAN, 0, 0, 0) };
        let report = |done: u64, left: u64, uncounted: u64| {
            let counters = [
                ("job_trim_objects", done),
                ("job_trim_bytes", done * 10),
                ("job_trim_objects_left", left),
                ("job_trim_bytes_left", left * 10),
                ("job_trim_uncounted", uncounted),
            ];
            OsdReport {
                counters: counters.into_iter().map(|(name, n)| (name.to_owned(), n)).collect(),
                ..OsdReport::default()
            }
        };
        let mut last = report(100, 0, 0);
        let mut tell = |t, snaps, next: OsdReport| {
            jobs.note_osd(&last, true, true, &next.counters);
            last = next.clone();
            jobs.digest(at(t), &one(&group(snaps)), &BTreeMap::from([(OsdId(1), next)]))["trim"]
                .clone()
        };
        assert!(!tell(0, 0, report(100, 0, 0)).is_active());
        // The counting is not at its end: how long it takes is not known.
        let job = tell(5, 2, report(110, 300, 1));
        assert_eq!(
            (job.groups, job.snaps_left, job.objects_left, job.uncounted, job.remaining()),
            (1, 2, 300, 1, None)
        );
        assert!(
            job.numbers().starts_with(
                "1 groups; 2 snapshots, 300 objects, 2.9 KiB or more left; 10 objects"
            ),
            "{}",
            job.numbers()
        );
        let job = tell(10, 1, report(200, 400, 0));
        assert_eq!(
            (job.objects_done, job.bytes_done, job.objects_left, job.bytes_left),
            (100, 1_000, 400, 4_000)
        );
        assert_eq!((job.progress(), job.objects_rate, job.remaining()), (0.2, 10.0, Some(40)));
        assert_eq!(
            (job.dump()["objects_left"].as_u64(), job.dump()["groups_uncounted"].as_u64()),
            (Some(400), Some(0))
        );
        assert!(!tell(15, 0, report(600, 0, 0)).is_active());
    }

    #[test]
    fn osds_count_the_rest() {
        let mut jobs = Jobs::default();
        let counters = |n: u64, left: u64| -> BTreeMap<String, u64> {
            let all = [
                ("job_delete_objects", n),
                ("job_delete_bytes", n * 10),
                ("job_delete_groups", u64::from(left > 0)),
                ("job_delete_objects_left", left),
                ("job_trim_snaps", n),
            ];
            all.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
        };
        let report = |n, left| OsdReport { counters: counters(n, left), ..OsdReport::default() };
        let osds = |r: &OsdReport| BTreeMap::from([(OsdId(1), r.clone())]);
        jobs.note_osd(&OsdReport::default(), false, false, &counters(50, 100));
        let d = jobs.digest(at(0), &BTreeMap::new(), &osds(&report(50, 100)));
        assert_eq!(
            (d["delete"].objects_done, d["delete"].objects_left, d["delete"].groups),
            (0, 100, 1)
        );
        jobs.note_osd(&report(50, 100), true, true, &counters(80, 70));
        let d = jobs.digest(at(10), &BTreeMap::new(), &osds(&report(80, 70)));
        assert_eq!(
            (d["delete"].objects_done, d["delete"].bytes_done, d["delete"].remaining()),
            (30, 300, Some(24))
        );
        assert_eq!((d["delete"].progress(), d["trim"].snaps_done), (0.3, 30));
        // It was started again.
        jobs.note_osd(&report(80, 70), true, false, &counters(5, 65));
        let d = jobs.digest(at(20), &BTreeMap::new(), &osds(&report(5, 65)));
        assert_eq!(d["delete"].objects_done, 35);
        let mut job = d["delete"].clone();
        job.paused = vec!["osd_pause_pg_deletion".into()];
        assert!(job.two_lines("delete", at(20), 4).ends_with("] (paused: osd_pause_pg_deletion)"));
        assert_eq!([5, 130, 7_300, 200_000, 3_000_000].map(pretty), ["5s", "2m", "2h", "2d", "4w"]);
    }
}
