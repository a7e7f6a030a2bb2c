//! How far the clocks of other monitors are from the leader's, as it measured.

use crate::commands::ClockSkew;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// How many measurements of a monitor are kept. The one with the soonest answer counts: it
/// says most.
const KEPT: usize = 4;

/// What the leader knows of the others' clocks.
#[derive(Debug, Default)]
pub(crate) struct Timechecks {
    /// Measurements so far.
    pub round: u64,
    peers: BTreeMap<String, Peer>,
    /// Percent of the space below their data that is free.
    free: BTreeMap<String, u8>,
}

#[derive(Debug, Default)]
struct Peer {
    /// By how much its clock was ahead when its answer came, and how long that took, in seconds.
    measured: VecDeque<(f64, f64)>,
    latency: f64,
    /// Warnings in the log since its clock was right last, and when the last was.
    warned: Option<(u32, Instant)>,
}

impl Timechecks {
    /// An answer of `name` that came `latency` seconds after it was asked for, while its clock, as
    /// it said, was ahead of ours by `ahead` seconds.
    pub fn measured(&mut self, name: &str, ahead: f64, latency: f64) {
        self.round += 1;
        let p = self
            .peers
            .entry(name.to_owned())
            .or_insert_with(|| Peer { latency, ..Peer::default() });
        p.latency = p.latency * 0.8 + latency * 0.2;
        p.measured.push_back((ahead, latency));
        if p.measured.len() > KEPT {
            p.measured.pop_front();
        }
    }

    /// What a monitor said of the space below its data.
    pub fn has_free(&mut self, name: &str, free: Option<u8>) {
        match free {
            Some(percent) => self.free.insert(name.to_owned(), percent),
            None => self.free.remove(name),
        };
    }

    /// Percent of free space, of all that said it.
    pub fn free(&self) -> &BTreeMap<String, u8> {
        &self.free
    }

    /// Of each monitor that was measured: by how much the clock is off at least. What may be the
    /// answer's way counts as that.
    pub fn skews(&self) -> BTreeMap<String, ClockSkew> {
        let skew = |p: &Peer| {
            let (ahead, latency) =
                p.measured.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
            (ahead.abs() - latency).max(0.0).copysign(ahead)
        };
        self.peers
            .iter()
            .map(|(n, p)| (n.clone(), ClockSkew { skew: skew(p) + 0.0, latency: p.latency }))
            .collect()
    }

    /// Whether the log is to be told that the clock of `name` is off, as it is or is not. The n-th
    /// time is `backoff` to the power of n seconds after the one before.
    pub fn warns(&mut self, name: &str, off: bool, backoff: f64, now: Instant) -> bool {
        let Some(p) = self.peers.get_mut(name) else { return false };
        if !off {
            p.warned = None;
            return false;
        }
        let (times, last) = p.warned.map_or((0, None), |(n, at)| (n, Some(at)));
        let pause = Duration::try_from_secs_f64(backoff.max(1.0).powi(times as i32))
            .unwrap_or(Duration::MAX);
        if last.is_some_and(|at| now.duration_since(at) < pause) {
            return false;
        }
        p.warned = Some((times.saturating_add(1), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skew(t: &Timechecks, name: &str) -> f64 {
        t.skews()[name].skew
    }

    #[test]
    fn the_way_of_an_answer_is_no_skew() {
        let mut t = Timechecks::default();
        // The clocks agree; the answer was half of its time under way.
        t.measured("b", -0.2, 0.4);
        assert_eq!(skew(&t, "b"), 0.0);
        t.measured("b", 1.0 - 0.001, 0.002);
        assert!((skew(&t, "b") - 0.997).abs() < 1e-9);
        // A slow answer says less than a fast one before it.
        t.measured("b", 1.0 - 2.0, 2.5);
        assert!((skew(&t, "b") - 0.997).abs() < 1e-9);
        t.measured("c", -3.0, 0.001);
        assert!((skew(&t, "c") + 2.999).abs() < 1e-9);
        assert_eq!(t.round, 4);
        // A clock that was put right.
        for _ in 0..KEPT {
            t.measured("b", 0.0, 0.01);
        }
        assert_eq!(skew(&t, "b"), 0.0);
    }

    #[test]
    fn the_log_is_warned_less_and_less_often() {
        let (mut t, start) = (Timechecks::default(), Instant::now());
        t.measured("b", 1.0, 0.0);
        let warned: Vec<u64> =
            (0..200).filter(|s| t.warns("b", true, 5.0, start + Duration::from_secs(*s))).collect();
        assert_eq!(warned, [0, 5, 30, 155]);
        assert!(!t.warns("b", false, 5.0, start + Duration::from_secs(200)));
        assert!(t.warns("b", true, 5.0, start + Duration::from_secs(201)), "off again");
    }

    #[test]
    fn what_is_too_far_is_said_as_ceph_says_it() {
        let s = |skew| ClockSkew { skew, latency: 0.0004 };
        assert_eq!((s(0.05).complaint(0.05), s(-0.05).complaint(0.05)), (None, None));
        assert_eq!(s(-0.75).complaint(0.05).as_deref(), Some("clock skew 0.75s > max 0.05s"));
    }
}
