//! Many seeds, several kinds of trouble.

use sim::{Scenario, run};

/// Hard cases that three hundred seeds reach.
const REACHED: &[&str] = &[
    "two may serve",
    "first answer looked at",
    "acknowledged change looked for",
    "missing",
    "merge removed objects",
    "pushed",
    "pushed part",
    "resent write recognised",
    "adopted",
    "removed",
    "operation waited for recovery",
    "disk replaced",
    "backfill started over",
    "backfill resumed",
    "backfill finished",
    "restart in the middle of backfill",
    "several copies filled together",
    "an object read once for several targets",
    "write while several copies are filled",
    "two disks replaced",
    "cursor moved over equal objects",
    "cursor moved over different objects",
    "superfluous objects removed",
    "write before the cursor",
    "write to a copy that recovers beside",
    "write behind the cursor",
    "too full",
    "cut off",
    "paused",
    "booted again",
    "told of promises",
    "lease wait",
    "read waited for a lease",
    "replica read",
    "replica did not read",
    "block went bad",
    "bit changed",
    "unseen bit changed",
    "client met damage",
    "scrub found damage",
    "repaired",
    "repair followed a scrub",
    "OSD added",
    "OSD removed",
    "OSD of an old number added",
    "size changed",
    "partition",
    "partition in one direction",
    "connections reset",
    "message lost with its connection",
    "message came again",
    "monitors away",
    "leader killed",
    "monitor killed",
    "leader stopped",
    "monitor stopped",
    "monitors cut off from others",
    "minority monitor",
    "no quorum",
    "leader elected",
    "leader stepped down",
    "change lost with its leader",
    "cut from its monitor",
    "sessions closed without quorum",
    "session moved to one behind",
    "request passed on twice",
    "request of a session that is over",
    "late boot",
    "monitor behind",
    "request to the monitors lost",
    "asked the monitors again",
    "asked for a map",
    "maps lost",
    "maps late",
    "gap of maps",
    "old maps trimmed",
    "hole in the maps",
    "disk is slow",
    "write waited for room",
    "acting set asked for",
    "request came twice",
    "split",
    "split during recovery",
    "split during backfill",
    "stray split",
    "split with writes in flight",
    "request from before a split",
    "snapshot made",
    "clone made",
    "read at a snapshot",
    "clone read",
    "clone recovered",
    "clone backfilled",
    "clone trimmed",
    "clone kept for another snapshot",
    "whiteout trimmed",
    "snapshot trimmed",
    "snapshot forgotten",
    "trim interrupted",
    "request waited for a map",
    "join",
    "join of what counts for nothing",
    "join of remains",
    "join while being removed",
    "scrubbed",
    "scrub given up",
    "write waited for scrub",
];

/// Harder ones, and how many seeds reach them.
const RARE: &[(&str, u64)] = &[
    ("answer lost", 1_000),
    ("change kept by the next leader", 1_000),
    ("request executed twice", 1_000),
    ("a copy catches up with another", 1_000),
    ("recovery found no room", 1_000),
    ("write to a copy in progress", 1_000),
    ("split while being removed", 1_000),
    ("read waited for a clone", 1_000),
    ("trim waited", 1_000),
    ("old row of a clone", 1_000),
    ("read failed", 5_000),
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn check(seed: u64) -> sim::Report {
    let result = std::panic::catch_unwind(|| run(seed, &Scenario::shape(seed)));
    let line = format!(
        "replay: SIPHON_SIM_SEED={seed} SIPHON_SIM_TRACE=1 cargo test -p sim --test seeds one_seed -- --nocapture"
    );
    match result {
        Ok(Ok(report)) => report,
        Ok(Err(wrong)) => panic!("{wrong}\n{line}"),
        Err(_) => panic!("{line}"),
    }
}

#[test]
fn seeds() {
    let count = number("SIPHON_SIM_SEEDS").unwrap_or(300);
    let first = number("SIPHON_SIM_FIRST").unwrap_or(0);
    let mut marks = std::collections::BTreeMap::new();
    let mut answered = 0;
    for seed in first..first + count {
        let report = check(seed);
        answered += report.answered;
        for (what, n) in report.marks {
            *marks.entry(what).or_insert(0) += n;
        }
    }
    eprintln!("{count} seeds, {answered} operations, {marks:?}");
    if count >= 300 {
        // The hard cases were reached.
        for what in REACHED {
            assert!(marks.get(what).is_some_and(|n| *n > 0), "no seed reached: {what}");
        }
        for (what, seeds) in RARE {
            assert!(count < *seeds || marks.contains_key(what), "no seed reached: {what}");
        }
    }
}

#[test]
fn one_seed() {
    if let Some(seed) = number("SIPHON_SIM_SEED") {
        eprintln!("{:?}", check(seed));
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..6 {
        let (a, b) = (check(seed), check(seed));
        assert_eq!((a.trace, a.events), (b.trace, b.events), "seed {seed}");
    }
    assert_ne!(check(0).trace, check(6).trace);
}
