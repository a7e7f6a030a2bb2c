//! Simulates what tenants are promised over a cluster, and says what they got.

#![forbid(unsafe_code)]

use clap::Parser;
use qos_sim::Scenario;
use qos_sim::skewed::{self, Skewed};
use qos_sim::steady::{self, BurstTable, Steady, Table};

/// What tenants get in a simulated cluster, with the coordinator and the schedulers of the daemons.
#[derive(Parser)]
struct Args {
    /// Everything follows from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// OSDs.
    #[arg(long, default_value_t = 1000)]
    osds: usize,
    /// Tenants.
    #[arg(long, default_value_t = 10_000)]
    tenants: usize,
    /// Pools.
    #[arg(long, default_value_t = 40)]
    pools: usize,
    /// What the fastest devices do each second.
    #[arg(long, default_value_t = 300.0)]
    iops: f64,
    /// What is asked for, in parts of what all devices can do.
    #[arg(long, default_value_t = 1.1)]
    load: f64,
    /// Virtual seconds of each phase.
    #[arg(long, default_value_t = 6)]
    phase: u64,
    /// Show the tenants that are furthest from what is fair.
    #[arg(long)]
    odd: bool,
    /// Instead, the ten tenants of bench/promises.py on three OSDs, which always have something to
    /// ask for.
    #[arg(long, group = "closed")]
    steady: bool,
    /// Instead, tenants with unevenly placed objects, and what each keeps beside others
    /// of what it has alone.
    #[arg(long, group = "closed")]
    skewed: bool,
    /// With `--steady` or `--skewed` so many times, with this seed and those after it.
    #[arg(long, default_value_t = 1, requires = "closed")]
    seeds: u64,
    /// Virtual seconds that are counted.
    #[arg(long, default_value_t = 20, requires = "steady", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Virtual seconds before them.
    #[arg(long, default_value_t = 10, requires = "steady")]
    warm_up: u64,
    /// Some OSD does nothing for 20 to 50 ms about every so many seconds; 0 for never.
    #[arg(long, default_value_t = 2.0, requires = "steady")]
    pauses: f64,
    /// So many times as many operations under way.
    #[arg(long, default_value_t = 1, requires = "steady", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..1000))]
    deeper: usize,
    /// The manager fails after a third of the seconds, and another takes its place.
    #[arg(long, requires = "steady")]
    manager_fails: bool,
    /// An OSD restarts after a third of the seconds.
    #[arg(long, requires = "steady")]
    osd_restarts: bool,
    /// Also so many bursts of a tenant with a floor, with each seed.
    #[arg(long, default_value_t = 0, requires = "steady")]
    bursts: usize,
}

fn steady(a: &Args) {
    let of = |seed| Steady {
        seed,
        warm_up: a.warm_up,
        seconds: a.seconds,
        pauses: a.pauses,
        deeper: a.deeper,
        manager_fails: a.manager_fails,
        osd_restarts: a.osd_restarts,
    };
    let mut runs = Vec::new();
    for seed in a.seed..a.seed + a.seeds {
        let s = of(seed);
        println!("{s:?}:\n");
        runs.push((seed, steady::run(&s)));
        println!("{}", Table(&runs[runs.len() - 1..]));
    }
    if runs.len() > 1 {
        println!("all together:\n\n{}", Table(&runs));
    }
    if a.bursts > 0 {
        let all: Vec<_> = (a.seed..a.seed + a.seeds)
            .flat_map(|seed| steady::bursts(&of(seed), a.bursts))
            .collect();
        print!("{}", BurstTable(&all));
    }
}

fn main() {
    let a = Args::parse();
    if a.skewed {
        return print!("{}", skewed::Table::of((a.seed..a.seed + a.seeds).map(Skewed::new)));
    }
    if a.steady {
        return steady(&a);
    }
    let s = Scenario {
        seed: a.seed,
        osds: a.osds,
        tenants: a.tenants,
        pools: a.pools,
        iops: a.iops,
        load: a.load,
        phase: a.phase,
    };
    println!("{s:?}");
    let report = qos_sim::run(&s);
    print!("{report}");
    for p in report.phases.iter().filter(|_| a.odd) {
        println!("{}:", p.phase.name());
        p.odd.iter().for_each(|o| println!("  {o:.1?}"));
    }
}
