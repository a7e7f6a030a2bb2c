//! The manager's commands: one file per family, one table.

mod autoscale;
mod balancer;
mod crash;
mod device;
pub mod force;
pub mod fs;
mod orch;
mod osd;
mod pg;
pub mod rbd;
pub mod scrub;
mod service;
pub mod telemetry;
mod volumes;

pub(crate) use autoscale::proposals;

use crate::crash::Saved;
use crate::state::MgrState;
use bytes::Bytes;
use command::{Args, Command, Format, Refusal, Reply, Signature, flags};
use serde_json::Value;
use std::sync::Arc;
use types::errno::Errno;
use types::{OsdMap, Utime};

/// What a handler sees.
pub struct Context<'a> {
    /// The manager's state.
    pub state: &'a MgrState,
    /// The OSD map.
    pub map: &'a Arc<OsdMap>,
    /// The arguments.
    pub args: &'a Args,
    /// How the client wants its data.
    pub format: Format,
    /// The time.
    pub now: Utime,
    /// Data that came with the command.
    pub input: &'a Bytes,
}

/// An answer that goes out when the monitors keep what belongs to it.
#[derive(Debug)]
pub struct Kept {
    /// The answer.
    pub reply: Reply,
    /// Reports of crashes.
    pub saved: Vec<Saved>,
}

/// Commands that the monitors are to carry out, one after the other, and the answer when they have.
#[derive(Debug, Default)]
pub struct Ordered {
    /// The commands.
    pub orders: Vec<Value>,
    /// The answer.
    pub reply: Reply,
}

/// What a command answers.
pub type Answer = Result<Reply, Refusal>;

/// How a command is run.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// By this function.
    Read(fn(&Context<'_>) -> Answer),
    /// By this function of the block device services, which waits for the cluster.
    Rbd(fn(rbd::Ask) -> rbd::Later),
    /// By this function, which asks the monitors one command after the other.
    Fs(fn(fs::Ask) -> fs::Later),
    /// By the monitors, whom the manager asks with the command that this function makes.
    Ask(fn(&Context<'_>) -> Result<Value, Refusal>),
    /// By the OSDs that lead the groups that this function names: the manager tells them, and does
    /// not wait.
    Scrub(fn(&Context<'_>) -> Result<scrub::Order, Refusal>),
    /// The same for what is to be recovered or filled first.
    Force(fn(&Context<'_>) -> Result<force::Order, Refusal>),
    /// By this function, and by the monitors, which keep what it says.
    Keep(fn(&Context<'_>) -> Result<Kept, Refusal>),
    /// By the monitors, which carry out what this function orders.
    Order(fn(&Context<'_>) -> Result<Ordered, Refusal>),
    /// Not at all; the text says why.
    Unsupported(&'static str),
    /// Not at all, with the errno and the text that tools expect of a cluster that does not have
    /// it.
    Refused(Errno, &'static str),
}

/// An entry of the table.
pub type Entry = Command<Run>;

const fn read(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    handler: fn(&Context<'_>) -> Answer,
) -> Entry {
    Command { signature, help, module, perm: "r", flags: flags::MGR, handler: Run::Read(handler) }
}

const fn asking(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    handler: fn(&Context<'_>) -> Result<Value, Refusal>,
) -> Entry {
    Command { signature, help, module, perm: "rw", flags: flags::MGR, handler: Run::Ask(handler) }
}

const fn scrubbing(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    handler: fn(&Context<'_>) -> Result<scrub::Order, Refusal>,
) -> Entry {
    Command { signature, help, module, perm: "rw", flags: flags::MGR, handler: Run::Scrub(handler) }
}

const fn forcing(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    handler: fn(&Context<'_>) -> Result<force::Order, Refusal>,
) -> Entry {
    Command { signature, help, module, perm: "rw", flags: flags::MGR, handler: Run::Force(handler) }
}

const fn unsupported(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    why: &'static str,
) -> Entry {
    Command {
        signature,
        help,
        module,
        perm: "rw",
        flags: flags::MGR,
        handler: Run::Unsupported(why),
    }
}

/// The tables, one per family.
pub static FAMILIES: &[&[Entry]] = &[
    balancer::COMMANDS,
    crash::COMMANDS,
    device::COMMANDS,
    fs::COMMANDS,
    orch::COMMANDS,
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

/// JSON text as a reply, whatever the format: commands without a form for people.
fn json(cx: &Context<'_>, value: &Value) -> Answer {
    Ok(Reply::data(cx.format.json(value)))
}

/// Text without a form for programs.
fn text(t: impl Into<Bytes>) -> Answer {
    Ok(Reply::data(t))
}
