//! The `siphon` binary: one command for a whole cluster, one role a process, and tools.

mod bootstrap;
mod cli;
mod compatibility;
mod dencode;
mod doctor;
mod file_system;
mod gateway;
mod home;
mod movement;
mod nodes;
mod osd_start;
mod process;
mod qos;
mod qos_cluster;
mod qos_explain;
mod qos_floors;
mod qos_fs;
mod qos_top;
mod qos_wait;
mod redact;
mod report;
mod rescue;
mod roles;
mod status;
mod store_tool;
mod up;

use clap::Parser;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The option of mimalloc 3 that says after how many milliseconds free memory goes back to the
/// system (its `options.c`). Constants of the binding name only those that never change.
#[cfg(feature = "mimalloc")]
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Each checkpoint frees what the next one needs some seconds later. Were it given back in between,
/// the kernel would clear the same pages again and again, while requests wait. For the same reason
/// mimalloc is built without advice to use huge pages: to clear one takes milliseconds on some
/// machines, all at once. `MIMALLOC_PURGE_DELAY` in the environment goes first.
#[cfg(feature = "mimalloc")]
fn keep_free_memory() {
    // SAFETY: sets a number, before there are other threads.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, 60_000) };
}

/// What is written to standard error unless SIPHON_LOG says otherwise. The consensus library
/// complains several times a second about a monitor that is away; the cluster log and `health` say
/// it once.
const LOG: &str = "warn,openraft=off";

fn main() -> std::process::ExitCode {
    let cli = cli::Cli::parse();
    // A metadata server has no checkpoints, and the limit of its memory is for what the machine
    // gives it.
    #[cfg(feature = "mimalloc")]
    if !matches!(cli.command, cli::Command::Mds(_)) {
        keep_free_memory();
    }
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("SIPHON_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(LOG)),
        )
        .with_writer(std::io::stderr)
        .init();
    let result = match cli.command {
        cli::Command::Up(args) => up::run(args),
        cli::Command::Init(args) => nodes::init(args),
        cli::Command::Join(args) => nodes::join(args),
        cli::Command::Add(args) => nodes::add(args),
        cli::Command::Mon(args) => roles::mon(args),
        cli::Command::Rescue(args) => rescue::run(args),
        cli::Command::Osd(args) => roles::osd(args),
        cli::Command::Mgr(args) => roles::mgr(args),
        cli::Command::Mds(args) => roles::mds(args),
        cli::Command::S3(args) => gateway::run(args),
        cli::Command::Status(args) => status::run(args),
        cli::Command::Dencode(args) => dencode::run(args),
        cli::Command::Store(args) => store_tool::run(args),
        cli::Command::Move(args) => movement::run(args),
        cli::Command::Qos(args) => qos::run(args),
        cli::Command::Doctor(args) => match doctor::run(&args) {
            Ok(false) => return std::process::ExitCode::FAILURE,
            other => other.map(drop),
        },
        cli::Command::Report(args) => report::run(&args),
        cli::Command::Compatibility => compatibility::run(),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            // One sentence: the chain of causes, joined.
            eprintln!("siphon: {}", format!("{e:#}").replace('\n', " "));
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(all(test, feature = "mimalloc"))]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_the_one_that_is_meant() {
        // SAFETY: reads a number.
        let value = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        // Of the options nearby, none has this default.
        assert_eq!(value(), 1000);
        keep_free_memory();
        assert_eq!(value(), 60_000);
    }
}
