//! Errors that a device is made to have, for tests.

use std::cell::Cell;
use std::io;

/// How often a device fails; never where there is a 0.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Faults {
    /// One in so many reads of objects' data, on average.
    pub reads: u64,
    /// One in so many writes and flushes, on average.
    pub writes: u64,
}

/// Decides which requests fail.
pub(super) struct Dice {
    faults: Cell<Faults>,
    state: Cell<u64>,
}

impl Default for Dice {
    fn default() -> Dice {
        // Any odd number will do: nothing relies on which requests fail.
        let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64);
        Dice { faults: Cell::default(), state: Cell::new(seed | 1) }
    }
}

impl Dice {
    pub(super) fn set(&self, faults: Faults) {
        self.faults.set(faults);
    }

    pub(super) fn read(&self) -> Option<io::Error> {
        self.fails(self.faults.get().reads, "read")
    }

    pub(super) fn write(&self) -> Option<io::Error> {
        self.fails(self.faults.get().writes, "write")
    }

    fn fails(&self, one_in: u64, what: &str) -> Option<io::Error> {
        if one_in == 0 {
            return None;
        }
        // xorshift64
        let mut x = self.state.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.state.set(x);
        (x >> 11)
            .is_multiple_of(one_in)
            .then(|| io::Error::other(format!("a {what} that fails for a test")))
    }
}
