use std::collections::BTreeMap;
use std::sync::Arc;
use types::LogEntry;

/// The newest lines of the cluster log, numbered by the monitors in the order in which they
/// arrived.
///
/// How many are kept is the leader's decision, which it proposes like any other change; so the log
/// is the same on all monitors, whatever their configuration says.
#[derive(Clone, Debug, Default)]
pub struct CentralLog {
    /// Shared, because every batch copies the map.
    lines: BTreeMap<u64, Arc<LogEntry>>,
    next: u64,
}

impl CentralLog {
    /// Adds a line; returns its number.
    pub(super) fn push(&mut self, line: LogEntry) -> u64 {
        let at = self.next;
        self.restore(at, line);
        at
    }

    pub(super) fn restore(&mut self, at: u64, line: LogEntry) {
        self.lines.insert(at, Arc::new(line));
        self.next = self.next.max(at + 1);
    }

    /// Forgets lines with a number below `first`, but never the newest one: its number says how far
    /// the log has come. Returns the numbers of those that are gone.
    pub(super) fn trim(&mut self, first: u64) -> impl Iterator<Item = u64> + use<> {
        let keep = self.lines.split_off(&first.min(self.next.saturating_sub(1)));
        std::mem::replace(&mut self.lines, keep).into_keys()
    }

    /// A line by number.
    pub fn get(&self, at: u64) -> Option<&LogEntry> {
        self.lines.get(&at).map(|l| &**l)
    }

    /// How many lines are kept.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there is no line at all.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The number of the oldest line that is kept; that of the next line if there is none.
    pub fn first(&self) -> u64 {
        self.lines.first_key_value().map_or(self.next, |(n, _)| *n)
    }

    /// The number that the next line gets.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// All lines, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &LogEntry)> {
        self.since(0)
    }

    /// Lines with a number of at least `from`, oldest first.
    pub fn since(&self, from: u64) -> impl DoubleEndedIterator<Item = (u64, &LogEntry)> {
        self.lines.range(from..).map(|(n, l)| (*n, &**l))
    }
}
