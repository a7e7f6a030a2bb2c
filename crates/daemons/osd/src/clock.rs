//! The clock that leases are measured with.

use pg::Steady;

/// What the clock shows. It never steps, and goes on while the machine sleeps (`CLOCK_BOOTTIME`):
/// an OSD that was suspended must not take an old lease for a present one.
pub fn steady_now() -> Steady {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this function, which the call fills.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut t) } != 0;
    assert!(!failed, "Linux has had this clock since 2.6.39");
    Steady(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
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
