use std::collections::BTreeMap;
use types::LogEntry;

/// The newest lines of the cluster log, numbered by the monitors in the order in which they arrived.
#[derive(Clone, Debug, Default)]
pub struct CentralLog {
    lines: BTreeMap<u64, LogEntry>,
    next: u64,
}

impl CentralLog {
    /// How many lines are kept.
    pub const LINES_MAX: usize = 2000;

    /// Adds a line; returns its number, and the number of the line that made place.
    pub(super) fn push(&mut self, line: LogEntry) -> (u64, Option<u64>) {
        let at = self.next;
        self.restore(at, line);
        let full = self.lines.len() > Self::LINES_MAX;
        (at, full.then(|| self.lines.pop_first()).flatten().map(|(n, _)| n))
    }

    pub(super) fn restore(&mut self, at: u64, line: LogEntry) {
        self.lines.insert(at, line);
        self.next = self.next.max(at + 1);
    }

    /// A line by number.
    pub fn get(&self, at: u64) -> Option<&LogEntry> {
        self.lines.get(&at)
    }

    /// The number that the next line gets.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// All lines, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &LogEntry)> {
        self.lines.iter().map(|(n, l)| (*n, l))
    }

    /// Lines with a number of at least `from`, oldest first.
    pub fn since(&self, from: u64) -> impl DoubleEndedIterator<Item = (u64, &LogEntry)> {
        self.lines.range(from..).map(|(n, l)| (*n, l))
    }
}
