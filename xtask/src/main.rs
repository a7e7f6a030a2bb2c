//! The project's chores: `cargo xtask test`, `cargo xtask bench`, `cargo xtask docs`.

mod clients;
mod docs;
mod run;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Chores of the Siphon project")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all tests: unit, simulation, crash, oracle and stock clients. Installs the stock clients
    /// it needs on Debian (as root).
    Test(run::Tests),
    /// Benchmarks. `peer` runs a stock Ceph and Siphon side by side, `rbd` the same with block
    /// devices; `trim` measures what trimming a snapshot costs clients, `restart` how soon a
    /// cluster with many objects is healthy again, `neighbours` what one session keeps beside many
    /// of another pool, `promises` what tenants with floors, ceilings and weights get in each
    /// second, `failover` how long clients wait when a daemon goes, `recovery` how fast an emptied
    /// OSD is filled, `scheduling` what the scheduler costs a server, `idle` what it takes from
    /// background work when nobody else is there, `study` what clients keep beside background work
    /// under each scheduler and profile (docs/load-study.md), `turns` what sets profiles apart when
    /// they take turns beside the same work. Further arguments go to the scripts in bench/
    /// (`--help` lists them).
    Bench {
        /// Which one.
        #[arg(value_parser = ["peer", "rbd", "trim", "restart", "neighbours", "promises", "failover", "recovery", "scheduling", "idle", "turns", "study"])]
        which: String,
        /// Arguments of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Write docs/compatibility.md from the code, or check with --check that it is fresh.
    Docs {
        /// Fail instead of writing when the file is out of date.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Test(tests) => run::test(&tests),
        Command::Bench { which, args } => run::bench(&which, &args),
        Command::Docs { check } => docs::compatibility(check),
    }
}
