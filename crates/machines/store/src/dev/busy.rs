//! What a device is busy with.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// Requests of about one size.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Served {
    /// How many.
    pub count: u64,
    /// Their bytes together.
    pub bytes: u64,
    /// What the device was busy with them, in nanoseconds.
    pub nanos: u64,
}

/// Sizes are told apart by powers of two: nothing, less than 512, ..., from 4 MiB on.
pub const SIZES: usize = 16;

/// Since the device was opened. What passes while requests are under way is counted for the one
/// that ends it: all together is the time in which the device was busy, as far as this thread sees
/// it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DeviceTime {
    /// Reads by size.
    pub reads: [Served; SIZES],
    /// Writes by size; a flush is one of no bytes.
    pub writes: [Served; SIZES],
    /// All time in which it was busy, up to now, in nanoseconds.
    pub busy: u64,
}

/// What makes a device slow, for tests: requests are through one after the other.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Slowness {
    /// The added time of each request.
    pub delay: Duration,
    /// Bytes that pass in a second; any number if 0.
    pub bandwidth: u64,
}

impl Slowness {
    /// The added time of a request of so many bytes.
    fn of(self, bytes: u64) -> Duration {
        let passing = if self.bandwidth == 0 {
            0
        } else {
            u128::from(bytes) * 1_000_000_000 / u128::from(self.bandwidth)
        };
        self.delay + Duration::from_nanos(u64::try_from(passing).unwrap_or(u64::MAX))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Read,
    Write,
}

/// Keeps a [`DeviceTime`].
#[derive(Default)]
pub(super) struct Busy {
    under_way: Cell<u32>,
    /// Bytes of all requests that were begun.
    asked: Cell<u64>,
    since: Cell<Option<Instant>>,
    time: RefCell<DeviceTime>,
    slow: Cell<Slowness>,
    free: Cell<Option<Instant>>,
}

impl Busy {
    pub(super) fn begin(&self, bytes: u64) {
        self.asked.set(self.asked.get().wrapping_add(bytes));
        if self.under_way.replace(self.under_way.get() + 1) == 0 {
            self.since.set(Some(Instant::now()));
        }
    }

    pub(super) fn end(&self, way: Way, bytes: u64) {
        let now = Instant::now();
        let nanos = self
            .since
            .replace(Some(now))
            .map_or(0, |s| now.saturating_duration_since(s).as_nanos() as u64);
        self.under_way.set(self.under_way.get().saturating_sub(1));
        let mut time = self.time.borrow_mut();
        time.busy += nanos;
        let class =
            if bytes == 0 { 0 } else { (u64::BITS - (bytes >> 9).leading_zeros()) as usize + 1 };
        let all = if way == Way::Read { &mut time.reads } else { &mut time.writes };
        let s = &mut all[class.min(SIZES - 1)];
        s.count += 1;
        s.bytes += bytes;
        s.nanos += nanos;
    }

    pub(super) fn time(&self) -> DeviceTime {
        let mut time = *self.time.borrow();
        if self.under_way.get() > 0
            && let Some(since) = self.since.get()
        {
            time.busy += since.elapsed().as_nanos() as u64;
        }
        time
    }

    pub(super) fn asked(&self) -> u64 {
        self.asked.get()
    }

    pub(super) fn slow_down(&self, slow: Slowness) {
        self.slow.set(slow);
    }

    /// When a request of so many bytes that is through may be so, if later than now.
    pub(super) fn held_until(&self, bytes: u64) -> Option<Instant> {
        let delay = self.slow.get().of(bytes);
        if delay.is_zero() {
            return None;
        }
        let now = Instant::now();
        let until = self.free.get().map_or(now, |f| f.max(now)) + delay;
        self.free.set(Some(until));
        Some(until)
    }
}
