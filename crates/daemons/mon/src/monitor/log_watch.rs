//! Subscriptions to the cluster log: `ceph -w`.
//!
//! A subscriber wants lines of one level and above, of all channels, and says from which version of
//! the log. Each line is a version of its own; the line with number `n` makes version `n + 1`,
//! because 0 is the request of a subscriber that has seen nothing yet. It gets what the newest
//! version brought, and all that comes after it.

use super::Inner;
use super::clock::now;
use super::session::{Session, Subscription};
use crate::state::{CentralLog, ClusterState};
use messages::{Log, Paxos};
use types::log::LogPriority;
use types::{Fsid, LogEntry, Utime};

/// How many lines one message carries at most.
const LINES_MAX: usize = 1000;

/// The level of a subscription such as `log-info`; `None` if it is to something else.
pub(super) fn level(what: &str) -> Option<LogPriority> {
    what.strip_prefix("log-").and_then(LogPriority::from_name)
}

/// The messages that bring a subscriber that wants version `next` up to date, with lines of `least`
/// and above. Each has the version of the last line that it covers, so that the subscriber knows
/// where to go on after a new connection.
fn news(log: &CentralLog, fsid: Fsid, next: u64, least: LogPriority, now: Utime) -> Vec<Log> {
    let version = log.next();
    let from = if next == 0 { version } else { next };
    if version == 0 || from > version {
        return Vec::new();
    }
    let mut lines = Vec::new();
    if from < log.first() + 1 {
        lines.push((
            log.first(),
            LogEntry {
                stamp: now,
                prio: LogPriority::WARN,
                msg: format!("log lines {from} to {} are not kept any more", log.first()),
                channel: "cluster".into(),
                ..LogEntry::default()
            },
        ));
    }
    let kept = log.since(from - 1).filter(|(_, l)| l.prio >= least);
    lines.extend(kept.map(|(n, l)| (n + 1, l.clone())));
    lines
        .chunks(LINES_MAX)
        .map(|part| Log {
            paxos: Paxos(part.last().map_or(version, |(v, _)| *v)),
            fsid,
            entries: part.iter().map(|(_, l)| l.clone()).collect(),
        })
        .collect()
}

impl Inner {
    /// Sends a subscriber what is new in the log; returns the version that it wants next.
    pub(super) fn publish_log(
        &self,
        state: &ClusterState,
        s: &Session,
        sub: Subscription,
        what: &str,
    ) -> Option<u64> {
        let version = state.log.next();
        if version == 0 || sub.next > version {
            return None;
        }
        for message in news(&state.log, state.monmap.fsid, sub.next, level(what)?, now()) {
            self.send(&s.conn, &message, 0);
        }
        Some(version + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Change, Update};

    fn state(lines: u64) -> ClusterState {
        let mut state = ClusterState::default();
        let line = |n: u64| LogEntry {
            prio: if n.is_multiple_of(2) { LogPriority::INFO } else { LogPriority::DEBUG },
            msg: n.to_string(),
            channel: "cluster".into(),
            ..LogEntry::default()
        };
        put(&mut state, Change::Log((0..lines).map(line).collect()));
        state
    }

    fn put(state: &mut ClusterState, change: Change) {
        state.update(Update { now: Utime::default(), changes: vec![change] }, &mut Vec::new());
    }

    fn seen(state: &ClusterState, next: u64, least: LogPriority) -> (Vec<String>, Vec<u64>) {
        let messages = news(&state.log, Fsid::default(), next, least, Utime::default());
        let versions = messages.iter().map(|m| m.paxos.0).collect();
        (messages.into_iter().flat_map(|m| m.entries).map(|e| e.msg).collect(), versions)
    }

    #[test]
    fn levels_have_the_names_that_clients_use() {
        for (what, priority) in [
            ("log-debug", LogPriority::DEBUG),
            ("log-info", LogPriority::INFO),
            ("log-sec", LogPriority::SEC),
            ("log-warn", LogPriority::WARN),
            ("log-error", LogPriority::ERROR),
        ] {
            assert_eq!(level(what), Some(priority));
        }
        assert_eq!(level("log-"), None);
        assert_eq!(level("osdmap"), None);
    }

    #[test]
    fn a_new_watcher_gets_the_last_line_and_then_what_comes() {
        let mut s = state(5);
        assert_eq!(seen(&s, 0, LogPriority::INFO), (vec!["4".into()], vec![5]));
        assert_eq!(seen(&s, 6, LogPriority::DEBUG), (vec![], vec![]));
        put(
            &mut s,
            Change::Log(vec![LogEntry {
                msg: "new".into(),
                prio: LogPriority::ERROR,
                ..Default::default()
            }]),
        );
        assert_eq!(seen(&s, 6, LogPriority::WARN), (vec!["new".into()], vec![6]));
        assert_eq!(seen(&ClusterState::default(), 0, LogPriority::DEBUG), (vec![], vec![]));
    }

    #[test]
    fn lines_below_the_level_are_left_out() {
        let s = state(6);
        assert_eq!(
            seen(&s, 1, LogPriority::INFO),
            (vec!["0".into(), "2".into(), "4".into()], vec![5])
        );
        assert_eq!(seen(&s, 1, LogPriority::SEC), (vec![], vec![]));
    }

    #[test]
    fn a_watcher_that_was_away_too_long_is_told_so() {
        let mut s = state(6);
        put(&mut s, Change::TrimLog(4));
        assert_eq!((s.log.first(), s.log.len()), (4, 2));
        let (lines, versions) = seen(&s, 2, LogPriority::DEBUG);
        assert_eq!(lines, ["log lines 2 to 4 are not kept any more", "4", "5"]);
        assert_eq!(versions, [6]);
        // A subscriber that is up to date has lost nothing.
        assert_eq!(seen(&s, 5, LogPriority::DEBUG).0, ["4", "5"]);
        put(&mut s, Change::TrimLog(100));
        assert_eq!((s.log.first(), s.log.next()), (5, 6));
    }

    #[test]
    fn much_is_told_in_pieces_whose_versions_rise() {
        let s = state(2500);
        let (lines, versions) = seen(&s, 1, LogPriority::DEBUG);
        assert_eq!(lines.len(), 2500);
        assert_eq!(versions, [1000, 2000, 2500]);
    }
}
