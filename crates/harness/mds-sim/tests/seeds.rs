//! Many seeds, several kinds of trouble.

use mds_sim::{Report, Scenario, run};
use std::collections::BTreeMap;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[derive(Clone, Copy)]
enum Owners {
    One,
    Several,
    /// Some leave.
    Fewer,
    /// Some leave, and others are added.
    Again,
    /// All come to rest together, and come back.
    ToAndFro,
    /// Subvolumes move.
    Moving,
    /// Other directories do.
    Trees,
}

fn check(seed: u64, owners: Owners) -> Report {
    let (scenario, test) = match owners {
        Owners::One => (Scenario::shape(seed), "one_seed"),
        Owners::Several => (Scenario::several(seed), "one_seed_of_several_owners"),
        Owners::Fewer => (Scenario::fewer(seed), "one_seed_of_fewer_owners"),
        Owners::Again => (Scenario::again(seed), "one_seed_of_owners_again"),
        Owners::ToAndFro => (Scenario::to_and_fro(seed), "one_seed_of_owners_to_and_fro"),
        Owners::Moving => (Scenario::moving(seed), "one_seed_of_moves"),
        Owners::Trees => (Scenario::trees(seed), "one_seed_of_trees"),
    };
    let result = std::panic::catch_unwind(|| run(seed, &scenario));
    let line = format!(
        "replay: SIPHON_SIM_SEED={seed} SIPHON_SIM_TRACE=1 cargo test -p mds-sim --test seeds {test} -- --nocapture"
    );
    match result {
        Ok(Ok(report)) => report,
        Ok(Err(wrong)) => panic!("{wrong}\n{line}"),
        Err(_) => panic!("{line}"),
    }
}

/// Runs seeds, and says what happened how often.
fn many(usual: u64, owners: Owners) -> (u64, BTreeMap<&'static str, u64>) {
    let count = number("SIPHON_SIM_SEEDS").unwrap_or(usual);
    let first = number("SIPHON_SIM_FIRST").unwrap_or(0);
    let mut marks = BTreeMap::new();
    let (mut answered, mut local) = (0, 0);
    for seed in first..first + count {
        let report = check(seed, owners);
        answered += report.answered;
        local += report.local;
        for (what, n) in report.marks {
            *marks.entry(what).or_insert(0) += n;
        }
    }
    eprintln!("{count} seeds, {answered} answers, {local} by clients alone, {marks:?}");
    (count, marks)
}

#[test]
fn seeds() {
    let (count, marks) = many(200, Owners::One);
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
            "done again",
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
        eprintln!("{:?}", check(seed, Owners::One));
    }
}

#[test]
fn seeds_of_several_owners() {
    let (count, marks) = many(200, Owners::Several);
    if count >= 200 {
        for what in [
            "answered again",
            "asked",
            "busy",
            "crashed",
            "decided",
            "done again",
            "forwarded",
            "given back",
            "grew",
            "half: link",
            "half: make",
            "half: remove",
            "half: take",
            "half: unlink",
            "refused",
            "reported",
            "reset",
            "undone",
        ] {
            assert!(marks.contains_key(what), "no seed reached: {what}");
        }
    }
}

#[test]
fn one_seed_of_several_owners() {
    if let Some(seed) = number("SIPHON_SIM_SEED") {
        eprintln!("{:?}", check(seed, Owners::Several));
    }
}

#[test]
fn seeds_of_fewer_owners() {
    let (count, marks) = many(100, Owners::Fewer);
    if count >= 100 {
        for what in ["answered again", "crashed", "forwarded", "handed over", "left", "taken over"]
        {
            assert!(marks.contains_key(what), "no seed reached: {what}");
        }
    }
}

#[test]
fn one_seed_of_fewer_owners() {
    if let Some(seed) = number("SIPHON_SIM_SEED") {
        eprintln!("{:?}", check(seed, Owners::Fewer));
    }
}

#[test]
fn seeds_of_owners_again() {
    let (count, marks) = many(100, Owners::Again);
    if count >= 100 {
        for what in [
            "added",
            "added again",
            "all at rest",
            "answered again",
            "crashed",
            "forwarded",
            "handed over",
            "left",
            "reset",
            "taken over",
            "undone",
        ] {
            assert!(marks.contains_key(what), "no seed reached: {what}");
        }
    }
}

#[test]
fn one_seed_of_owners_again() {
    if let Some(seed) = number("SIPHON_SIM_SEED") {
        eprintln!("{:?}", check(seed, Owners::Again));
    }
}

#[test]
fn seeds_of_owners_to_and_fro() {
    let (count, marks) = many(100, Owners::ToAndFro);
    if count >= 100 {
        for what in [
            "all at rest",
            "answered again",
            "called back",
            "crashed",
            "crashed in the night",
            "ended",
            "joined",
            "left",
            "split",
            "still",
            "woken",
        ] {
            assert!(marks.contains_key(what), "no seed reached: {what}");
        }
    }
}

#[test]
fn one_seed_of_owners_to_and_fro() {
    if let Some(seed) = number("SIPHON_SIM_SEED") {
        eprintln!("{:?}", check(seed, Owners::ToAndFro));
    }
}

#[test]
fn seeds_of_moves() {
    let (count, marks) = many(100, Owners::Moving);
    if count >= 100 {
        for what in [
            "crashed",
            "exported",
            "given back to the first",
            "given by the first",
            "given with strays",
            "recalled",
            "reset",
            "taken",
            "undone",
        ] {
            assert!(marks.contains_key(what), "no seed reached: {what}");
        }
    }
}

#[test]
fn one_seed_of_moves() {
    if let Some(seed) = number("SIPHON_SIM_SEED") {
        eprintln!("{:?}", check(seed, Owners::Moving));
    }
}

#[test]
fn seeds_of_trees() {
    let (count, marks) = many(100, Owners::Trees);
    if count >= 100 {
        for what in [
            "crashed",
            "exported",
            "recalled",
            "reset",
            "stayed",
            "taken",
            "tree given back",
            "tree given by the first",
            "undone",
        ] {
            assert!(marks.contains_key(what), "no seed reached: {what}");
        }
    }
}

#[test]
fn one_seed_of_trees() {
    if let Some(seed) = number("SIPHON_SIM_SEED") {
        eprintln!("{:?}", check(seed, Owners::Trees));
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..4 {
        for owners in [
            Owners::One,
            Owners::Several,
            Owners::Fewer,
            Owners::Again,
            Owners::ToAndFro,
            Owners::Moving,
            Owners::Trees,
        ] {
            let (a, b) = (check(seed, owners), check(seed, owners));
            assert_eq!(a.trace, b.trace, "seed {seed}");
        }
    }
    assert_ne!(check(0, Owners::One).trace, check(1, Owners::One).trace);
}
