//! Objects without a copy that is there: they wait, are found, or are given up.

use sim::{Scenario, run};

/// One group on two or three OSDs, either of which may serve alone, and recovery that is often
/// forbidden: so that an OSD dies that alone had what it wrote.
fn scenario(seed: u64) -> Scenario {
    let base = Scenario {
        osds: 2 + (seed % 2) as usize,
        size: 2,
        min_size: 1,
        pg_num: 1,
        second_pool: false,
        reweight: 0,
        power_cut: 0,
        crash_one: 650,
        norecover: 450,
        give_up: [0, 300, 900][(seed / 2 % 3) as usize],
        slow_restart: 700,
        ..Scenario::default()
    };
    if seed % 5 == 4 { Scenario { bad_block: 100, slow_disk: 50, ..base } } else { base }
}

#[test]
fn unfound_objects() {
    let count = std::env::var("SIPHON_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let mut marks = std::collections::BTreeMap::new();
    for seed in 0..count {
        let report =
            run(seed, &scenario(seed)).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        for (what, n) in report.marks {
            *marks.entry(what).or_insert(0) += n;
        }
    }
    eprintln!("{marks:?}");
    for what in
        ["unfound", "somebody may have it", "declared lost", "gave up", "reverted", "disk replaced"]
    {
        assert!(marks.contains_key(what), "{what} never happened: {marks:?}");
    }
}
