//! Erasure-coded pools in trouble.

use std::collections::BTreeMap;

use sim::{Scenario, run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn check(seed: u64) -> sim::Report {
    let result = std::panic::catch_unwind(|| run(seed, &Scenario::coded(seed)));
    let line = format!(
        "replay: SIPHON_SIM_SEED={seed} SIPHON_SIM_TRACE=1 cargo test -p sim --test shards one_seed -- --nocapture"
    );
    match result {
        Ok(Ok(report)) => report,
        Ok(Err(wrong)) => panic!("{wrong}\n{line}"),
        Err(_) => panic!("{line}"),
    }
}

#[test]
fn seeds() {
    let count = number("SIPHON_SIM_SEEDS").unwrap_or(150);
    let first = number("SIPHON_SIM_FIRST").unwrap_or(0);
    let mut marks = BTreeMap::new();
    let mut answered = 0;
    for seed in first..first + count {
        let report = check(seed);
        answered += report.answered;
        for (what, n) in report.marks {
            *marks.entry(what).or_insert(0) += n;
        }
    }
    eprintln!("{count} seeds, {answered} operations, {marks:?}");
}

#[test]
fn one_seed() {
    if let Some(seed) = number("SIPHON_SIM_SEED") {
        eprintln!("{:?}", check(seed));
    }
}
