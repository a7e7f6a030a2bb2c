//! The harness is tested too: a bug that is put back must be caught.

use sim::{Bug, Scenario, run};

/// How many seeds a bug may hide in.
const SEEDS: u64 = 120;

fn caught(bug: Bug) {
    // A bug may also trip an assertion; that is a catch, and its backtrace is noise.
    std::panic::set_hook(Box::new(|_| {}));
    for seed in 0..SEEDS {
        let scenario = Scenario { bug, ..Scenario::shape(seed) };
        let result = std::panic::catch_unwind(|| run(seed, &scenario));
        if !matches!(result, Ok(Ok(_))) {
            eprintln!("{bug:?} is caught by seed {seed}");
            return;
        }
    }
    eprintln!("{bug:?} is not caught");
    std::process::exit(1);
}

macro_rules! bugs {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test] fn $name() { caught(Bug::$bug); })*
    };
}

bugs! {
    a_replica_that_acknowledges_before_its_disk_is_caught: AckBeforeCommit,
    a_merge_that_forgets_what_is_missing_is_caught: ForgetMissing,
    a_merge_that_keeps_divergent_objects_is_caught: KeepDivergent,
    reads_of_what_may_be_taken_back_are_caught: ReadUncommitted,
    resent_writes_that_run_twice_are_caught: NoDups,
    an_answer_before_the_replicas_have_it_is_caught: AckAlone,
    half_recovered_objects_are_caught: PushLastOnly,
    a_skipped_log_merge_is_caught: SkipMerge,
}
