//! Requests between two ranks: those that go on elsewhere, and those that come from there.

use mds::FilePath;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A client that did not come after this time is not waited for.
const EXPECTED_FOR: Duration = Duration::from_secs(60);
/// Requests of clients to come.
const EXPECTED_MAX: usize = 20_000;

/// A request of a client: client and number.
pub type Key = (u64, u64);

/// Requests between two ranks.
#[derive(Default)]
pub struct Onward {
    /// Those of which the other rank has not said that it knows, with the number of the attempt.
    told: BTreeMap<Key, (mds::Rank, u64)>,
    attempts: u64,
    /// Those that other ranks have sent here, with what they go on with.
    expected: BTreeMap<Key, (FilePath, Instant)>,
}

impl Onward {
    pub fn tell(&mut self, key: Key, to: mds::Rank) -> u64 {
        self.attempts += 1;
        self.told.insert(key, (to, self.attempts));
        self.attempts
    }

    pub fn is_open(&self, key: Key, attempt: u64) -> bool {
        self.told.get(&key).is_some_and(|(_, a)| *a == attempt)
    }

    /// Whether a request is expected from now on.
    pub fn awaits(&mut self, key: Key, path: FilePath, now: Instant) -> bool {
        if self.expected.len() >= EXPECTED_MAX {
            self.expected.retain(|_, (_, since)| now.duration_since(*since) < EXPECTED_FOR);
        }
        let room = self.expected.len() < EXPECTED_MAX || self.expected.contains_key(&key);
        if room {
            self.expected.insert(key, (path, now));
        }
        room
    }

    /// What a request that comes goes on with.
    pub fn arrived(&mut self, key: Key) -> Option<FilePath> {
        self.expected.remove(&key).map(|(path, _)| path)
    }

    /// A session is over.
    pub fn forget(&mut self, client: u64) {
        self.told.retain(|(c, _), _| *c != client);
        self.expected.retain(|(c, _), _| *c != client);
    }

    /// Whether the other rank of a request is this one, which has it. It has no need to be told.
    pub fn taken(&mut self, key: Key, by: mds::Rank) -> bool {
        let was = self.told.get(&key).is_some_and(|(to, _)| *to == by);
        if was {
            self.told.remove(&key);
        }
        was
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(ino: u64) -> FilePath {
        FilePath { ino: mds::Ino(ino), path: "x".into() }
    }

    #[tokio::test]
    async fn what_is_expected_is_bounded_and_taken_once() {
        let (mut onward, now) = (Onward::default(), Instant::now());
        for tid in 0..EXPECTED_MAX as u64 {
            assert!(onward.awaits((1, tid), path(tid), now));
        }
        assert!(!onward.awaits((1, u64::MAX), path(1), now), "there is no room");
        assert!(onward.awaits((1, 7), path(8), now), "it is known");
        assert_eq!(onward.arrived((1, 7)), Some(path(8)));
        assert_eq!(onward.arrived((1, 7)), None);
        assert!(onward.awaits((2, 1), path(1), now));
        assert!(onward.awaits((2, 2), path(2), now + EXPECTED_FOR), "the old ones are forgotten");
        assert_eq!(onward.expected.len(), 1);
        onward.forget(2);
        assert!(onward.expected.is_empty());
    }

    #[test]
    fn a_later_attempt_ends_the_one_before() {
        let mut onward = Onward::default();
        let first = onward.tell((1, 1), mds::Rank(1));
        let second = onward.tell((1, 1), mds::Rank(2));
        assert!(!onward.is_open((1, 1), first) && onward.is_open((1, 1), second));
        onward.forget(1);
        assert!(!onward.is_open((1, 1), second));
    }
}
