//! How a rank knows its own journal in Ceph's form from one that another server wrote since: by the
//! time of the only entry in it.

use types::Utime;

/// The times of entries that the rank wrote. One of them is found, as long as no other server has
/// had the rank.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct JournalMark {
    times: Vec<Utime>,
    /// Whether the last one is of a journal that may not be written yet.
    begun: bool,
}

impl JournalMark {
    /// As the log's head has it.
    pub fn of(times: &[Utime]) -> JournalMark {
        JournalMark { times: times.to_vec(), begun: false }
    }

    /// For the log's head. Nothing if the log is from the time before there were marks.
    pub fn times(&self) -> &[Utime] {
        &self.times
    }

    /// The time of the entry of a journal that is going to be written. The log's head is written
    /// before the journal: it knows what is found, the old one or the new one.
    pub fn begin(&mut self, now: Utime) -> Utime {
        if !self.begun {
            self.times.push(now);
            self.begun = true;
        }
        self.times.last().copied().unwrap_or(now)
    }

    /// The journal is written.
    pub fn written(&mut self) {
        self.begun = false;
        let older = self.times.len().saturating_sub(1);
        self.times.drain(..older);
    }

    /// Whether a journal with entries of these times is the rank's own.
    pub fn is_own(&self, found: &[Utime]) -> bool {
        matches!(found, [one] if self.times.contains(one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u32) -> Utime {
        Utime::new(second, 0)
    }

    #[test]
    fn a_server_that_ends_between_two_writes_knows_both_journals() {
        let mut mark = JournalMark::default();
        assert_eq!(mark.begin(at(1)), at(1));
        mark.written();
        assert_eq!(mark.begin(at(2)), at(2));
        // The write is tried again.
        assert_eq!(mark.begin(at(3)), at(2));
        let mut next = JournalMark::of(mark.times());
        assert!(next.is_own(&[at(1)]) && next.is_own(&[at(2)]));
        // Which of the two it was is not known before the third is written.
        assert_eq!(next.begin(at(4)), at(4));
        assert!([1, 2, 4].into_iter().all(|t| next.is_own(&[at(t)])));
        next.written();
        assert_eq!(next.times(), [at(4)]);
    }

    #[test]
    fn a_journal_of_another_server_is_known() {
        let mut mark = JournalMark::default();
        assert!(!mark.is_own(&[at(1)]));
        mark.begin(at(1));
        mark.written();
        assert!(mark.is_own(&[at(1)]));
        for found in [&[][..], &[at(2)], &[at(1), at(2)], &[at(1), at(1)]] {
            assert!(!mark.is_own(found), "{found:?}");
        }
    }
}
