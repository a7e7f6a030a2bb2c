//! Clocks of the operating system: the one that leases are measured with, and the processor's.

use pg::Steady;
use std::cell::Cell;

/// What the clock shows. It never steps, and goes on while the machine sleeps (`CLOCK_BOOTTIME`):
/// an OSD that was suspended must not take an old lease for a present one.
pub fn steady_now() -> Steady {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this function, which the call fills.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut t) } != 0;
    assert!(!failed, "Linux has had this clock since 2.6.39");
    Steady(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

thread_local! {
    /// What starting operations took on this thread, for all its OSDs, in nanoseconds.
    static STARTING: Cell<u64> = const { Cell::new(0) };
}

/// CPU time of this thread, in nanoseconds.
pub(crate) fn thread_cpu() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live `timespec`.
    if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) } != 0 {
        return 0;
    }
    (t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64)
}

/// Gives what starting operations took on this thread to `f`, which may add to it.
pub(crate) fn with_starting<T>(f: impl FnOnce(&Cell<u64>) -> T) -> T {
    STARTING.with(f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_counts_nanoseconds() {
        let (before, began) = (steady_now(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let (passed, slept) = (steady_now().left(before), began.elapsed());
        assert!(
            passed >= Duration::from_millis(20) && passed <= slept + Duration::from_secs(1),
            "{passed:?}, {slept:?}"
        );
    }
}
