//! Erasure-coded pools in trouble.

use std::collections::BTreeMap;
use std::time::Duration;

use pg::PgConf;
use sim::{Bug, Coded, Scenario, run};

/// How many seeds a bug may hide in.
const SEEDS: u64 = 300;

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
    let count = number("SIPHON_SIM_SEEDS").unwrap_or(120);
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
    if count >= 120 {
        for what in [
            "acknowledged change looked for",
            "adopted",
            "backfill finished",
            "backfill started over",
            "change taken back",
            "copy let read by reservation",
            "cursor moved over different objects",
            "cursor moved over equal objects",
            "cut off",
            "degraded read of shards",
            "delta of parity",
            "disk replaced",
            "entries came later",
            "first answer looked at",
            "join",
            "message came again",
            "object of shards removed",
            "object replaced as a whole",
            "operation waited for recovery",
            "part of a shard rebuilt",
            "partition",
            "primary lacks its shard",
            "read made of other shards",
            "read went around a late shard",
            "resent write recognised",
            "several copies filled together",
            "shard copied from its old holder",
            "shard had another version",
            "shards rebuilt",
            "split",
            "split with writes in flight",
            "stripe was in memory",
            "unfound",
            "write before the cursor",
            "write of some shards",
            "write planned again",
        ] {
            assert!(marks.get(what).is_some_and(|n| *n > 0), "no seed reached: {what}");
        }
        // One seed in a hundred or so.
        for what in [
            "backfill resumed",
            "bit of a shard changed",
            "client met damage on another shard",
            "delete went ahead of a copy",
            "repaired",
            "scrub found damage",
        ] {
            assert!(count < 1_000 || marks.contains_key(what), "no seed reached: {what}");
        }
    }
}

#[test]
fn one_seed() {
    if let Some(seed) = number("SIPHON_SIM_SEED") {
        eprintln!("{:?}", check(seed));
    }
}

/// The bug is caught, and what is said has one of these words; none: an assertion may say it, and a
/// build without assertions may mend what it does.
fn caught(bug: Bug, shape: impl Fn(u64) -> Scenario, words: &[&str]) {
    std::panic::set_hook(Box::new(|_| {}));
    for seed in 0..SEEDS {
        let scenario = Scenario { bug, ..shape(seed) };
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &scenario)));
        let what = match result {
            Ok(Ok(_)) => continue,
            Ok(Err(text)) => text,
            Err(_) if words.is_empty() => "an assertion".into(),
            Err(_) => continue,
        };
        if words.is_empty() || words.iter().any(|w| what.contains(w)) {
            let line = what.lines().next().unwrap_or_default();
            eprintln!("{bug:?} is caught by seed {seed}: {line}");
            return;
        }
    }
    eprintln!("{bug:?} is not caught");
    if words.is_empty() && !cfg!(debug_assertions) {
        return;
    }
    std::process::exit(1);
}

/// The trouble in which bugs are looked for, without a bug.
#[test]
fn nothing_is_wrong_without_a_bug() {
    for seed in 0..number("SIPHON_SIM_SEEDS").unwrap_or(12) {
        for (shape, name) in [
            (crashes as fn(u64) -> Scenario, "crashes"),
            (slow_networks, "slow"),
            (holes, "holes"),
            (moves, "moves"),
            (deltas_and_crashes, "deltas"),
            (pipelines, "pipelines"),
            (deletes, "deletes"),
        ] {
            run(seed, &shape(seed)).unwrap_or_else(|wrong| panic!("{name} {seed}: {wrong}"));
        }
    }
}

/// OSDs that crash, on slow disks and links that break.
fn crashes(seed: u64) -> Scenario {
    let base = Scenario::coded(seed % 6 + 48 * (seed % 2));
    // Rounds of leases over links that are this slow take long.
    let conf = PgConf { read_lease: Duration::from_secs(3), ..base.conf.clone() };
    Scenario {
        conf,
        crash_one: 500,
        power_cut: 100,
        reset: 300,
        reweight: 0,
        slow_flush: 300,
        slow_net: 100,
        cut_off: 0,
        pause: 0,
        partition: 0,
        monitor_fault: 0,
        objects: 8,
        ..base
    }
}

/// Few objects, much written and read, over slow links.
fn slow_networks(seed: u64) -> Scenario {
    Scenario { objects: 4, slow_net: 150, crash_one: 200, ops: 28, ..crashes(seed) }
}

/// OSDs that go out and come in, with logs too short to fill a copy, so that shards move to others
/// and back while they are written.
fn moves(seed: u64) -> Scenario {
    let base = Scenario::coded(18 + seed % 3);
    Scenario {
        osds: base.size as usize + 1,
        reweight: 900,
        crash_one: 50,
        power_cut: 0,
        lose_disk: 0,
        add_osd: 0,
        remove_osd: 0,
        pg_num: 1,
        pg_num_change: 0,
        nobackfill: 0,
        objects: 8,
        ..base
    }
}

/// Writes of one unit of wide stripes.
fn deltas(seed: u64) -> Scenario {
    let base = crashes(seed * 3 + 2);
    let cell = base.erasure.map(|e| Coded { cell: e.rules.layout.unit(), ..e });
    Scenario { crash_one: 50, power_cut: 0, erasure: cell, ..base }
}

/// The same, of OSDs that crash often.
fn deltas_and_crashes(seed: u64) -> Scenario {
    Scenario { erasure: deltas(seed).erasure, ..crashes(seed * 3 + 2) }
}

/// Few objects that are overwritten again and again while earlier changes are under way.
fn pipelines(seed: u64) -> Scenario {
    Scenario { objects: 4, slow_flush: 600, ops: 40, ..deltas_and_crashes(seed) }
}

/// Deletes of objects of which shards are being made again.
fn deletes(seed: u64) -> Scenario {
    Scenario { deletes: 250, objects: 16, slow_net: 150, slow_recovery: 300, ..holes(seed) }
}

/// OSDs that are away for long.
fn holes(seed: u64) -> Scenario {
    Scenario { slow_restart: 900, crash_one: 900, power_cut: 0, hasty: 100, ..crashes(seed) }
}

macro_rules! bugs {
    ($($name:ident: $bug:ident in $shape:expr, $words:expr;)*) => {
        $(#[test] fn $name() { caught(Bug::$bug, $shape, &$words); })*
    };
}

bugs! {
    a_delta_that_is_applied_twice_is_caught: DeltaTwice in deltas, ["parity", "torn", "fit together", "other shards"];
    a_change_that_a_shard_misses_is_caught: MissedChange in deltas, [];
    a_delta_on_a_shard_that_missed_a_change_is_caught: DeltaUnguarded in deltas, ["parity", "torn", "fit together", "other shards", "holds"];
    deltas_kept_that_too_few_have_are_caught: RollForward in deltas_and_crashes, ["holds", "torn", "not active+clean", "parity"];
    a_stripe_of_another_version_is_caught: StaleStripe in pipelines, ["parity", "torn", "fit together", "other shards", "holds"];
    entries_kept_that_too_few_have_are_caught: RollForward in crashes, ["holds", "torn", "not active+clean"];
    reads_that_mix_versions_are_caught: MixedShards in slow_networks, ["holds", "torn", "order"];
    a_hole_taken_for_a_shard_is_caught: HoleIsAShard in holes, ["holds", "torn"];
    a_copy_at_the_position_of_the_primary_that_is_not_told_is_caught: OwnPositionUntold in moves, [];
    what_undoes_a_change_that_goes_early_is_caught: ForgetUndo in crashes, [];
}
