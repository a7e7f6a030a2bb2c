//! The harness is tested too: a bug that is put back must be caught.

use sim::{Bug, Scenario, run};

/// How many seeds a bug may hide in.
const SEEDS: u64 = 1_000;

fn caught(bug: Bug, shape: impl Fn(u64) -> Scenario) {
    // A bug may also trip an assertion; that is a catch, and its backtrace is noise.
    std::panic::set_hook(Box::new(|_| {}));
    for seed in 0..SEEDS {
        let scenario = Scenario { bug, ..shape(seed) };
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &scenario)));
        if !matches!(result, Ok(Ok(_))) {
            eprintln!("{bug:?} is caught by seed {seed}");
            return;
        }
    }
    eprintln!("{bug:?} is not caught");
    std::process::exit(1);
}

/// The bug is caught by a look at all OSDs that says these words.
fn seen(bug: Bug, shape: impl Fn(u64) -> Scenario, words: &str) {
    std::panic::set_hook(Box::new(|_| {}));
    for seed in 0..SEEDS {
        let scenario = Scenario { bug, ..shape(seed) };
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &scenario)));
        if let Ok(Err(text)) = result
            && text.contains(words)
        {
            eprintln!(
                "{bug:?} is seen by seed {seed}: {}",
                text.lines().next().unwrap_or_default()
            );
            return;
        }
    }
    eprintln!("{bug:?} is not seen: {words}");
    std::process::exit(1);
}

macro_rules! looks {
    ($($name:ident: $bug:ident in $shape:expr, $words:literal;)*) => {
        $(#[test] fn $name() { seen(Bug::$bug, $shape, $words); })*
    };
}

looks! {
    a_scrub_that_does_not_read_is_seen: ScrubSkims in bad_disks, "damage stays";
    two_that_serve_are_seen: NoLease in cut_off, "two serve the same objects";
    two_that_serve_because_one_is_called_dead_are_seen: SilentIsDead in cut_off, "two serve the same objects";
    a_replica_that_serves_too_long_is_seen: ReplicaWithoutLease in balanced, "two serve the same objects";
    too_few_that_serve_are_seen: BelowMinSize in Scenario::crashes, "fewer than min_size";
    an_early_answer_is_seen: AckAlone in Scenario::crashes, "is not durable on";
    an_early_acknowledgement_is_seen: AckBeforeCommit in power_cuts, "is not durable on";
    a_skipped_merge_is_seen: SkipMerge in Scenario::crashes, "lacks an acknowledged change";
    a_copy_that_claims_to_be_complete_is_seen: ClaimComplete in backfills, "lacks an acknowledged change";
    a_copy_that_misses_writes_is_seen: FollowerSleeps in backfills, "lacks an acknowledged change";
    a_trim_that_takes_what_others_need_is_seen: TrimTakesAll in snapshots, "no order explains";
    a_delete_without_a_clone_is_seen: DeleteKeepsNothing in snapshots, "no order explains";
    clones_that_are_not_found_are_seen: PushForgetsSnaps in snapshots, "is not found by its snapshots";
    a_trim_that_ends_early_is_seen: PurgedEarly in snapshots, "is left of removed snapshots";
    a_leader_that_agrees_with_itself_is_seen: MinorityAgrees in bad_monitors, "a minority of";
    a_monitor_that_shows_what_may_be_lost_is_seen: ShowUncommitted in bad_monitors, "that was not agreed on";
    a_process_that_is_up_again_without_knowing_is_seen: LateBoot in bad_monitors, "does not know that it was down";
    a_replica_that_judges_its_copy_is_seen: ReplicaJudges in slow_recovery, "lacks an acknowledged change";
    a_half_recovered_object_is_seen: PushLastOnly in Scenario::crashes, "than was written";
}

macro_rules! bugs {
    ($($name:ident: $bug:ident in $shape:expr,)*) => {
        $(#[test] fn $name() { caught(Bug::$bug, $shape); })*
    };
}

/// Two OSDs, either of which may serve alone, on slow disks that often lose power together.
fn power_cuts(_: u64) -> Scenario {
    Scenario {
        osds: 2,
        size: 2,
        min_size: 1,
        reweight: 0,
        crash_one: 100,
        power_cut: 900,
        slow_flush: 500,
        ..Scenario::default()
    }
}

/// Few objects and slow replicas.
fn slow_networks(_: u64) -> Scenario {
    Scenario {
        osds: 3,
        objects: 1,
        ops: 28,
        slow_net: 250,
        slow_restart: 950,
        reweight: 0,
        crash_one: 950,
        power_cut: 50,
        ..Scenario::default()
    }
}

/// Copies that lack something for longer.
fn slow_recovery(seed: u64) -> Scenario {
    Scenario { slow_recovery: 700, ..backfills(seed) }
}

/// Short logs: OSDs come back too late to be brought up to date by log, or with new disks, or
/// others take their place.
fn backfills(seed: u64) -> Scenario {
    Scenario::crashes(seed / 3 * 10 + 7 + seed % 3)
}

/// Copies that are filled over and over, by OSDs on slow disks that often lose power together.
fn interrupted_backfills(seed: u64) -> Scenario {
    let s = Scenario::crashes(seed * 30 + 7);
    Scenario {
        slow_flush: 700,
        lose_disk: 400,
        crash_one: 300,
        power_cut: 300,
        slow_restart: 0,
        hasty: 600,
        pg_num_change: 0,
        tight: 0,
        ..s
    }
}

/// The pool gets more PGs all the time.
fn splits(_: u64) -> Scenario {
    Scenario {
        osds: 4,
        pg_num: 1,
        objects: 16,
        crash_one: 400,
        power_cut: 200,
        reweight: 100,
        pg_num_change: 300,
        slow_flush: 300,
        ..Scenario::default()
    }
}

/// The same on slow disks that lose power in the middle of it.
fn interrupted_splits(seed: u64) -> Scenario {
    Scenario {
        crash_one: 250,
        power_cut: 400,
        reweight: 0,
        pg_num_change: 350,
        slow_flush: 980,
        hasty: 900,
        ..splits(seed)
    }
}

/// OSDs that are cut off and do not know that they were called down.
fn cut_off(seed: u64) -> Scenario {
    let s = Scenario::crashes(seed % 6).cut_off(seed * 40);
    Scenario {
        objects: 3,
        ops: 40,
        clients: 5,
        cut_off: 600,
        crash_one: 150,
        reweight: 0,
        power_cut: 50,
        balanced: 0,
        ..s
    }
}

/// The same with reads by replicas.
fn balanced(seed: u64) -> Scenario {
    Scenario { balanced: 700, ..cut_off(seed) }
}

/// The same with several monitors that fail, and messages to them that come late.
fn bad_monitors(seed: u64) -> Scenario {
    let s = Scenario { monitors: 3 + (seed % 2 * 2) as usize, balanced: 300, ..cut_off(seed) };
    Scenario {
        monitor_fault: 500,
        cut_off: 200,
        pause: 300,
        partition: 100,
        late_maps: 60,
        hasty: 600,
        ..s
    }
}

/// Disks that change bits.
fn bad_disks(_: u64) -> Scenario {
    Scenario {
        osds: 3,
        objects: 4,
        flipped_bit: 500,
        crash_one: 200,
        power_cut: 50,
        reweight: 0,
        balanced: 300,
        ..Scenario::default()
    }
}

/// Snapshots all the time, of few objects.
fn snapshots(seed: u64) -> Scenario {
    Scenario { snaps: 900, objects: 5, ..Scenario::crashes(seed % 6) }
}

/// OSDs that are away for long while groups are not clean, and monitors that forget maps all the
/// time.
fn old_maps(seed: u64) -> Scenario {
    let s = Scenario::crashes(seed % 2 * 3 + 3);
    let s = Scenario {
        norecover: 150,
        nobackfill: 150,
        pg_num_change: 0,
        resize: 0,
        remove_osd: 0,
        ..s
    };
    Scenario {
        osds: 4,
        min_size: 1,
        long_away: 700,
        trim_maps: 300,
        crash_one: 600,
        reweight: 150,
        ..s
    }
}

bugs! {
    maps_that_go_too_early_are_caught: TrimUnclean in old_maps,
    a_store_that_does_not_verify_is_caught: NoChecksum in bad_disks,
    reads_without_a_lease_are_caught: NoLease in cut_off,
    a_monitor_that_calls_the_silent_dead_is_caught: SilentIsDead in cut_off,
    a_replica_that_reads_what_may_be_taken_back_is_caught: ReplicaReadsUncommitted in balanced,
    a_replica_that_reads_without_a_lease_is_caught: ReplicaWithoutLease in balanced,
    a_replica_that_acknowledges_before_its_disk_is_caught: AckBeforeCommit in power_cuts,
    a_merge_that_forgets_what_is_missing_is_caught: ForgetMissing in Scenario::crashes,
    a_merge_that_keeps_divergent_objects_is_caught: KeepDivergent in Scenario::crashes,
    reads_of_what_may_be_taken_back_are_caught: ReadUncommitted in slow_networks,
    resent_writes_that_run_twice_are_caught: NoDups in Scenario::crashes,
    an_answer_before_the_replicas_have_it_is_caught: AckAlone in Scenario::crashes,
    half_recovered_objects_are_caught: PushLastOnly in Scenario::crashes,
    a_skipped_log_merge_is_caught: SkipMerge in Scenario::crashes,
    a_forgotten_missing_object_is_caught: ForgetMissing in slow_recovery,
    a_cursor_that_moves_before_its_objects_are_noted_is_caught: CursorFirst in interrupted_backfills,
    a_comparison_that_forgets_writes_is_caught: StaleListing in backfills,
    a_copy_that_is_filled_and_misses_writes_is_caught: FollowerSleeps in backfills,
    a_scrub_of_what_is_durable_only_is_caught: ScanDurable in power_cuts,
    a_copy_that_acts_before_it_is_filled_is_caught: ClaimComplete in backfills,
    requests_from_before_a_split_that_run_are_caught: OldRequests in splits,
    a_split_in_two_steps_is_caught: SplitInSteps in interrupted_splits,
    copies_that_do_not_split_are_caught: StraysDoNotSplit in splits,
    a_split_that_forgets_what_is_missing_is_caught: SplitForgetsMissing in splits,
}

/// The trouble with snapshots without a bug.
#[test]
fn snapshots_are_kept_and_trimmed() {
    for seed in 0..60 {
        run(seed, &snapshots(seed)).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// The trouble with monitors without a bug.
#[test]
fn monitors_that_fail_lose_nothing() {
    let mut twice = 0;
    for seed in 0..200 {
        let report =
            run(seed, &bad_monitors(seed)).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        twice += report.marks.get("request executed twice").copied().unwrap_or(0);
    }
    assert!(twice > 3, "{twice} requests executed twice");
}

/// The trouble with old maps without the bug.
#[test]
fn maps_that_no_group_needs_may_go() {
    let mut holes = 0;
    for seed in 0..200 {
        let report =
            run(seed, &old_maps(seed)).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        holes += report.marks.get("hole in the maps").copied().unwrap_or(0);
    }
    assert!(holes > 15, "{holes} holes");
}
