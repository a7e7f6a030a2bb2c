//! The `siphon` binary: one command for a whole cluster, one role a process, and tools.

mod admin_socket;
mod bootstrap;
mod cli;
mod compatibility;
mod dencode;
mod home;
mod nodes;
mod osd_start;
mod qos;
mod qos_explain;
mod qos_floors;
mod qos_top;
mod rescue;
mod roles;
mod status;
mod store_tool;
mod up;

use clap::Parser;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What is written to standard error unless SIPHON_LOG says otherwise. The consensus library complains several
/// times a second about a monitor that is away; the cluster log and `health` say it once.
const LOG: &str = "warn,openraft=off";

fn main() -> std::process::ExitCode {
    let cli = cli::Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("SIPHON_LOG").unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(LOG)),
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
        cli::Command::Status(args) => status::run(args),
        cli::Command::Dencode(args) => dencode::run(args),
        cli::Command::Store(args) => store_tool::run(args),
        cli::Command::Qos(args) => qos::run(args),
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
