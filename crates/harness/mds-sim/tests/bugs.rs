//! The harness is tested too: a defect that is put back must be found.

use mds::Bug;
use mds_sim::{Scenario, run};

/// How many seeds a defect may hide in.
const SEEDS: u64 = 1_500;

fn caught(bug: Bug, shape: impl Fn(u64) -> Scenario) {
    // A defect may also trip an assertion; that is a find, and its backtrace is noise.
    std::panic::set_hook(Box::new(|_| {}));
    for seed in 0..SEEDS {
        let scenario = Scenario { bug, ..shape(seed) };
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &scenario)));
        if !matches!(result, Ok(Ok(_))) {
            let words = match result {
                Ok(Err(words)) => words.chars().take(120).collect(),
                _ => String::from("a panic"),
            };
            eprintln!("{bug:?} is found by seed {seed}: {words}");
            return;
        }
    }
    eprintln!("{bug:?} is not found");
    std::process::exit(1);
}

macro_rules! bugs {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test] fn $name() { caught(Bug::$bug, Scenario::shape); })*
    };
}

macro_rules! bugs_of_several {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test] fn $name() { caught(Bug::$bug, Scenario::several); })*
    };
}

macro_rules! bugs_of_fewer {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test] fn $name() { caught(Bug::$bug, Scenario::fewer); })*
    };
}

macro_rules! bugs_of_owners_again {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test] fn $name() { caught(Bug::$bug, Scenario::again); })*
    };
}

macro_rules! bugs_to_and_fro {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test] fn $name() { caught(Bug::$bug, Scenario::to_and_fro); })*
    };
}

macro_rules! bugs_of_moves {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test] fn $name() { caught(Bug::$bug, Scenario::moving); })*
    };
}

/// More directories move in the same time.
fn fast_trees(seed: u64) -> Scenario {
    Scenario { log_us: 800, ..Scenario::trees(seed) }
}

macro_rules! bugs_of_trees {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test] fn $name() { caught(Bug::$bug, fast_trees); })*
    };
}

bugs! {
    an_answer_before_the_log_is_found: EarlyReply,
    a_read_of_what_may_be_lost_is_found: EarlyRead,
    a_request_that_is_done_twice_is_found: NoCompleted,
    a_log_that_is_trimmed_early_is_found: TrimEarly,
    a_write_ahead_of_the_log_is_found: WriteAhead,
    statistics_that_a_rename_forgets_are_found: RenameStats,
    an_entry_dropped_during_a_read_is_found: EvictWhileReading,
    a_grant_before_the_other_client_gave_up_is_found: GrantBeforeAck,
    a_request_that_takes_nothing_back_is_found: NoRevoke,
    claims_that_are_forgotten_are_found: NoClaims,
    data_removed_while_a_file_is_open_is_found: PurgeOpen,
    a_release_that_crosses_a_revocation_is_found: CrossingIgnored,
    an_early_answer_that_shows_what_others_did_is_found: EarlyOfOthers,
    numbers_that_a_successor_gives_out_again_are_found: NumbersNotAhead,
    a_number_that_is_not_kept_for_its_client_is_found: NumberNotKept,
    a_flush_before_the_file_is_made_again_is_found: FlushBeforeReplay,
    a_name_that_changes_while_a_client_has_a_lease_is_found: LeaseStays,
    leases_that_a_successor_does_not_know_are_found: LeasesForgotten,
}

bugs_of_several! {
    a_request_that_another_owner_does_again_is_found: NoCompleted,
    a_half_that_is_ready_before_the_log_is_found: PreparedEarly,
    a_decision_that_is_told_before_the_log_is_found: DecidedEarly,
    a_prepared_half_that_is_forgotten_is_found: ForgetPrepared,
    a_decision_that_is_forgotten_is_found: ForgetDecided,
    a_prepared_half_that_keeps_nothing_is_found: NoLock,
    a_root_that_is_reported_without_an_answer_is_found: ReportLost,
}

bugs_of_fewer! {
    an_owner_that_leaves_clients_with_capabilities_is_found: LeaveWithCaps,
    a_hand_over_that_is_answered_before_the_log_is_found: TakenEarly,
    strays_that_an_owner_leaves_are_found: StraysStay,
    statistics_that_are_lost_with_a_name_are_found: GraftStats,
}

bugs_of_owners_again! {
    numbers_that_are_given_out_by_two_owners_are_found: NumbersAgain,
}

bugs_to_and_fro! {
    an_owner_that_ends_while_others_need_it_is_found: EndAlone,
    a_split_directory_that_is_changed_is_found: ChangeSplit,
}

bugs_of_moves! {
    a_subvolume_that_moves_from_clients_with_capabilities_is_found: MoveWithCaps,
    a_subvolume_that_is_taken_before_the_log_is_found: MoveTakenEarly,
}

bugs_of_trees! {
    numbers_of_a_tree_that_the_log_does_not_have_are_found: RunsNotLogged,
    a_tree_that_changes_while_it_is_walked_through_is_found: WalkUnstopped,
}

#[test]
fn a_tree_that_moves_with_its_leases_is_found() {
    let shape = |seed| Scenario {
        lease_ms: 5_000,
        shared_us: 250_000,
        clients: 4,
        moves: false,
        crashes: 0,
        ..fast_trees(seed)
    };
    caught(Bug::MoveWithLeases, shape);
}
