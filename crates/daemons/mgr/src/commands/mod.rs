//! The manager's commands: one file per family, one table.

mod autoscale;
mod balancer;
mod context;
mod crash;
mod device;
mod entry;
pub mod force;
pub mod fs;
mod orch;
mod osd;
pub mod perf_stats;
mod pg;
pub mod rbd;
pub mod scrub;
mod service;
pub mod telemetry;
mod volumes;

pub(crate) use autoscale::proposals;
pub use context::{Answer, Context};
pub use entry::{Entry, Kept, Ordered, Run};

use crate::state::MgrState;
use bytes::Bytes;
use command::{Args, Format, Refusal, Reply, Signature};
use context::{json, text};
use entry::{asking, forcing, read, scrubbing, unsupported};
use serde_json::Value;
use types::Utime;
use types::errno::Errno;

/// The tables, one per family.
pub static FAMILIES: &[&[Entry]] = &[
    balancer::COMMANDS,
    crash::COMMANDS,
    device::COMMANDS,
    fs::COMMANDS,
    orch::COMMANDS,
    perf_stats::COMMANDS,
    pg::COMMANDS,
    osd::COMMANDS,
    rbd::COMMANDS,
    service::COMMANDS,
    volumes::COMMANDS,
    telemetry::COMMANDS,
];

/// All commands.
pub fn table() -> impl Iterator<Item = &'static Entry> {
    FAMILIES.iter().flat_map(|f| f.iter())
}

/// The entry for a command's arguments: the longest prefix that matches.
pub fn find(args: &Args) -> Option<&'static Entry> {
    table().find(|e| e.prefix() == args.prefix())
}

/// How a command goes on when the manager has done its part.
#[derive(Debug)]
pub enum Done {
    /// It is answered.
    Answered(Reply),
    /// The monitors answer this command of theirs.
    AskMon(Value),
    /// OSDs are to be told.
    Scrub(scrub::Order),
    /// OSDs are to be told.
    Force(force::Order),
    /// The monitors are to keep something.
    Keep(Kept),
    /// The monitors are to carry something out.
    Order(Ordered),
}

/// Finds a command and checks its arguments. `allowed` says whether the caller may run an entry.
pub fn check(
    args: &Args,
    allowed: impl Fn(&Entry, &Args) -> bool,
) -> Result<&'static Entry, Refusal> {
    let Some(entry) = find(args) else {
        return Err(Refusal::invalid(format!("No handler found for '{}'", args.prefix())));
    };
    if !allowed(entry, args) {
        return Err(Refusal::new(
            Errno::EACCES,
            format!(
                "access denied: does your client key have mgr caps? See http://docs.ceph.com/en/latest/mgr/administrator/#client-authentication ('{}')",
                entry.prefix()
            ),
        ));
    }
    let signature = Signature::parse(entry.signature);
    args.validate(&signature)?;
    Ok(entry)
}

/// Runs a command, or as much of it as the manager can do at once.
pub fn run(
    state: &MgrState,
    pieces: &[String],
    input: &Bytes,
    now: Utime,
    allowed: impl Fn(&Entry, &Args) -> bool,
) -> Result<Done, Refusal> {
    let args = Args::parse(pieces)?;
    let entry = check(&args, allowed)?;
    if let Run::Unsupported(why) = entry.handler {
        return Err(Refusal::unsupported(format!("{}: {why}", entry.prefix())));
    }
    if let Run::Refused(errno, why) = entry.handler {
        return Err(Refusal::new(errno, why));
    }
    let Some(map) = &state.osd_map else {
        return Err(Refusal::new(Errno::EAGAIN, "the manager has no OSD map yet"));
    };
    let cx = Context { state, map, args: &args, format: Format::of(&args), now, input };
    match entry.handler {
        Run::Read(handler) => handler(&cx).map(Done::Answered),
        Run::Ask(handler) => handler(&cx).map(Done::AskMon),
        Run::Scrub(handler) => handler(&cx).map(Done::Scrub),
        Run::Force(handler) => handler(&cx).map(Done::Force),
        Run::Keep(handler) => handler(&cx).map(Done::Keep),
        Run::Order(handler) => match handler(&cx)? {
            Ordered { orders, reply } if orders.is_empty() => Ok(Done::Answered(reply)),
            ordered => Ok(Done::Order(ordered)),
        },
        Run::Rbd(_) | Run::Fs(_) => {
            Err(Refusal::unsupported(format!("{}: ask the manager as a client", entry.prefix())))
        }
        Run::Unsupported(why) => Err(Refusal::unsupported(why)),
        Run::Refused(errno, why) => Err(Refusal::new(errno, why)),
    }
}
