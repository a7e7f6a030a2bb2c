//! The command interface: how commands are declared, described to clients, parsed and answered.
//!
//! A command is one [`Command`] value in a table. Its signature, in Ceph's compact notation,
//! answers `get_command_descriptions` (from which the stock `ceph` tool builds its own parser),
//! validates the arguments that arrive, and prints the reference page.

#![forbid(unsafe_code)]

mod args;
mod describe;
mod reply;
mod signature;
mod xml;
mod xml_names;

pub use args::{Args, ArgsError};
pub use describe::{describe_all, descriptions, markdown};
pub use reply::{Format, Refusal, Reply};
pub use signature::{Arg, Signature, Word};
pub use xml::Shape;

/// Flags of a command (Ceph: `MonCommand::FLAG_*`, `src/mon/MonCommand.h`). The stock tool reads
/// them.
pub mod flags {
    /// Nothing special.
    pub const NONE: u64 = 0;
    /// The monitor that got it runs it.
    pub const NOFORWARD: u64 = 1 << 0;
    /// Refused; kept so that the refusal is a clear one.
    pub const OBSOLETE: u64 = 1 << 1;
    /// Works, not shown in help.
    pub const DEPRECATED: u64 = 1 << 2;
    /// The client sends it to the manager.
    pub const MGR: u64 = 1 << 3;
    /// The client repeats it.
    pub const POLL: u64 = 1 << 4;
    /// Not shown in help.
    pub const HIDDEN: u64 = 1 << 5;
    /// For one named daemon (`ceph tell`).
    pub const TELL: u64 = NOFORWARD | HIDDEN;
}

/// A command's declaration. `H` says how it is run: the monitor and the manager have handlers of
/// different types.
#[derive(Debug)]
pub struct Command<H: 'static> {
    /// Words and arguments, for example `osd pool rename name=srcpool,type=CephPoolname ...`.
    pub signature: &'static str,
    /// One sentence for the operator.
    pub help: &'static str,
    /// The capability service that it belongs to.
    pub module: &'static str,
    /// The permissions needed there: a subset of `rwx`.
    pub perm: &'static str,
    /// See [`flags`].
    pub flags: u64,
    /// How it is run.
    pub handler: H,
}

impl<H> Command<H> {
    /// The literal words before the first argument.
    pub fn prefix(&self) -> &'static str {
        signature::prefix(self.signature)
    }

    /// Whether the command needs the permission `p` (`r`, `w` or `x`).
    pub fn needs(&self, p: char) -> bool {
        self.perm.contains(p)
    }
}

#[cfg(test)]
mod tests;
