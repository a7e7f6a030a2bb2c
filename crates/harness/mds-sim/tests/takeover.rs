//! A takeover while clients claim what they had: nothing is opened, so its time is that of the
//! claims, and its memory is what the server counts.

use mds_sim::bench::Bench;
use mds_sim::takeover::takeover;
use std::time::Instant;

const SECOND: u64 = 1_000_000_000;

/// Bytes that the process has in memory.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("/proc is there");
    let pages: u64 = text.split(' ').nth(1).expect("pages").parse().expect("a number");
    pages * 4096
}

/// Ten millions with `SIPHON_TEST_LONG`, else two hundred thousands. One test: memory is that of
/// the whole process.
#[test]
fn claims_take_the_time_and_the_memory_that_is_counted() {
    let long = std::env::var_os("SIPHON_TEST_LONG").is_some();
    let (clients, each) = if long { (1_000, 10_000) } else { (100, 2_000) };
    let (before, began) = (resident(), Instant::now());
    let taken = takeover(clients, each, &Bench::conf());
    let (took, grown) = (began.elapsed(), resident().saturating_sub(before));
    eprintln!("{taken:?}; {took:?}, {} MiB of memory more", grown >> 20);
    let counted = taken.claim_bytes;
    assert!(counted / taken.claims < 150, "{counted} bytes for {} claims", taken.claims);
    // Beside claims there are inodes, the log, and messages that wait.
    assert!(grown < 2 * counted + (64 << 20), "{grown} bytes more, {counted} counted");
    // Half a microsecond of the core for each claim, and little else.
    assert!(taken.active < taken.claims * 1_000 + SECOND, "{taken:?}");
    assert!(taken.answered.1 - taken.active < SECOND, "{taken:?}");
    assert_eq!(taken.asked.0, taken.asked.1, "claims are not asked for");
}
