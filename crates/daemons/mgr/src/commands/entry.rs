//! Entries of the table of commands.

use super::context::{Answer, Context};
use super::{force, fs, rbd, scrub};
use crate::crash::Saved;
use command::{Command, Refusal, Reply, flags};
use serde_json::Value;
use types::errno::Errno;

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

pub(super) const fn read(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    handler: fn(&Context<'_>) -> Answer,
) -> Entry {
    Command { signature, help, module, perm: "r", flags: flags::MGR, handler: Run::Read(handler) }
}

pub(super) const fn asking(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    handler: fn(&Context<'_>) -> Result<Value, Refusal>,
) -> Entry {
    Command { signature, help, module, perm: "rw", flags: flags::MGR, handler: Run::Ask(handler) }
}

pub(super) const fn scrubbing(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    handler: fn(&Context<'_>) -> Result<scrub::Order, Refusal>,
) -> Entry {
    Command { signature, help, module, perm: "rw", flags: flags::MGR, handler: Run::Scrub(handler) }
}

pub(super) const fn forcing(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    handler: fn(&Context<'_>) -> Result<force::Order, Refusal>,
) -> Entry {
    Command { signature, help, module, perm: "rw", flags: flags::MGR, handler: Run::Force(handler) }
}

pub(super) const fn unsupported(
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
