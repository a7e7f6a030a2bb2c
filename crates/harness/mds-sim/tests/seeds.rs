//! Many seeds, several kinds of trouble.

use mds_sim::{Report, Scenario, run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn check(seed: u64) -> Report {
    let result = std::panic::catch_unwind(|| run(seed, &Scenario::shape(seed)));
    let line = format!(
        "replay: SIPHON_SIM_SEED={seed} SIPHON_SIM_TRACE=1 cargo test -p mds-sim --test seeds one_seed -- --nocapture"
    );
    match result {
        Ok(Ok(report)) => report,
        Ok(Err(wrong)) => panic!("{wrong}\n{line}"),
        Err(_) => panic!("{line}"),
    }
}

#[test]
fn seeds() {
    let count = number("SIPHON_SIM_SEEDS").unwrap_or(200);
    let first = number("SIPHON_SIM_FIRST").unwrap_or(0);
    let mut marks = std::collections::BTreeMap::new();
    let (mut answered, mut local) = (0, 0);
    for seed in first..first + count {
        let report = check(seed);
        answered += report.answered;
        local += report.local;
        for (what, n) in report.marks {
            *marks.entry(what).or_insert(0) += n;
        }
    }
    eprintln!("{count} seeds, {answered} answers, {local} by clients alone, {marks:?}");
    if count >= 200 {
        // The hard cases were reached.
        for what in [
            "answered again",
            "cached absence",
            "cached attributes",
            "cached name",
            "changed attributes",
            "crashed",
            "died",
            "evicted",
            "flushed",
            "purged",
            "read",
            "revoked",
            "undone",
            "wrote",
        ] {
            assert!(marks.contains_key(what), "no seed reached: {what}");
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
    for seed in 0..4 {
        let (a, b) = (check(seed), check(seed));
        assert_eq!(a.trace, b.trace, "seed {seed}");
    }
    assert_ne!(check(0).trace, check(1).trace);
}
