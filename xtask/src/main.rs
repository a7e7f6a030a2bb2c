#![forbid(unsafe_code)]
//! The project's chores: `cargo xtask check`, `test`, `bench`, `docs`.

mod check;
mod circles;
mod clients;
mod code;
mod container;
mod docs;
mod programs;
mod results;
mod run;
mod shell;
mod side_by_side;
mod sizes;
mod tidy;
mod timing;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Chores of the Siphon project")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Format, tidy, clippy, documentation and quick unit tests. Needs neither root nor network.
    Check(check::Check),
    /// Run all tests: unit, simulation, crash, oracle and stock clients. Installs the stock clients
    /// it needs on Debian (as root).
    Test(run::Tests),
    /// Benchmarks. `peer` runs a stock Ceph and Siphon side by side, `rbd` the same with block
    /// devices; `trim` measures what trimming a snapshot costs clients, `restart` how soon a
    /// cluster with many objects is healthy again, `neighbours` what one session keeps beside many
    /// of another pool, `promises` what tenants with floors, ceilings and weights get in each
    /// second, `failover` how long clients wait when a daemon goes, `recovery` how fast an emptied
    /// OSD is filled, `scheduling` what the scheduler costs a server, `idle` what it takes from
    /// background work beside no other load, `study` what clients keep beside background work
    /// under each scheduler and profile (docs/load-study.md), `turns` what sets profiles apart when
    /// they take turns beside the same work; `s3` drives Ceph's gateway and ours on a stock Ceph
    /// and on Siphon, `fs` metadata servers; `space` measures the space that erasure-coded pools
    /// take; `move` what a movement job costs clients, without and with a ceiling on their p99.
    /// Further arguments go to the scripts in bench/ (`--help` lists them).
    Bench {
        /// Which one.
        #[arg(value_parser = ["peer", "rbd", "trim", "restart", "neighbours", "promises", "failover", "recovery", "scheduling", "idle", "turns", "study", "s3", "fs", "space", "move"])]
        which: String,
        /// Arguments of the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Write docs/compatibility.md from the code and the pages of results from the records in
    /// bench/records, or check with --check that they are fresh.
    Docs {
        /// Only this page. `benchmarks` needs no build.
        #[arg(value_parser = ["benchmarks", "compatibility"])]
        page: Option<String>,
        /// Fail instead of writing when a page is out of date.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    // The last lines say what failed. A trace of this program would hide them.
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn work() -> Result<()> {
    let started = Instant::now();
    let mut timing = timing::Timing::default();
    match Cli::parse().command {
        Command::Check(check) => {
            let result = check::check(&check, &mut timing);
            eprint!("{}", timing.table(started.elapsed()));
            result
        }
        Command::Test(tests) => {
            let result = run::test(&tests, &mut timing);
            eprint!("{}", timing.table(started.elapsed()));
            result
        }
        Command::Bench { which, args } => run::bench(&which, &args),
        Command::Docs { page, check } => docs::write(page.as_deref(), check),
    }
}
