//! Simulates what tenants are promised over a cluster, and says what they got.

use clap::Parser;
use qos_sim::Scenario;

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
    /// Show who is furthest from what is fair.
    #[arg(long)]
    odd: bool,
}

fn main() {
    let a = Args::parse();
    let s = Scenario { seed: a.seed, osds: a.osds, tenants: a.tenants, pools: a.pools, iops: a.iops, load: a.load, phase: a.phase };
    println!("{s:?}");
    let report = qos_sim::run(&s);
    print!("{report}");
    for p in report.phases.iter().filter(|_| a.odd) {
        println!("{}:", p.phase.name());
        p.odd.iter().for_each(|o| println!("  {o:.1?}"));
    }
}
