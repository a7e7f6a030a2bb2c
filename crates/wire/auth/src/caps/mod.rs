//! Capabilities: what an authenticated entity may do at a monitor, OSD or manager.
//!
//! The grammars and the decisions are Ceph's (`src/mon/MonCap.cc`, `src/osd/OSDCap.cc`,
//! `src/mgr/MgrCap.cc`), including where they look odd: alternatives are tried in Ceph's order and
//! the first that matches is kept, so `allow class x pool=y` fails here as it does there.

mod constraint;
mod mds;
mod mgr;
mod mon;
mod network;
mod osd;
mod parser;

pub use constraint::{Arguments, Constraint};
pub use mds::{MdsCap, MdsGrant};
pub use mgr::{MgrCap, MgrGrant, MgrGrantKind, MgrOp};
pub use mon::{MonCap, MonGrant, MonGrantKind, MonOp};
pub use network::Network;
pub use osd::{
    AppMetadata, ClassCall, OsdCap, OsdGrant, OsdMatch, OsdOp, OsdPerm, OsdProfile, OsdSpec,
    PoolTag,
};

use std::fmt;
use std::ops::BitOr;

/// A capability text that does not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapsError {
    /// The grammar does not allow what follows.
    #[error("{service} capability parse failed, stopped at '{rest}' of '{text}'")]
    Syntax {
        /// The service of the caps: `mon`, `osd` or `mgr`.
        service: &'static str,
        /// Where parsing stopped.
        rest: String,
        /// The whole text.
        text: String,
    },
    /// The text ends too early.
    #[error("{service} capability parse failed, stopped at end of '{text}'")]
    End {
        /// The service of the caps: `mon`, `osd` or `mgr`.
        service: &'static str,
        /// The whole text.
        text: String,
    },
    /// A manager profile that does not exist, or not with these arguments.
    #[error("mgr capability parse failed during profile evaluation: {0}")]
    Profile(String),
}

impl CapsError {
    fn at(service: &'static str, text: &str, rest: &str) -> Self {
        let text = text.to_owned();
        if rest.is_empty() {
            CapsError::End { service, text }
        } else {
            CapsError::Syntax { service, rest: rest.to_owned(), text }
        }
    }
}

/// Read, write, execute, or everything, on a monitor or manager (`mon_rwxa_t`, `mgr_rwxa_t`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Perm(u8);

impl Perm {
    /// Nothing.
    pub const NONE: Perm = Perm(0);
    /// Read.
    pub const R: Perm = Perm(1 << 1);
    /// Write.
    pub const W: Perm = Perm(1 << 2);
    /// Execute; what that means is up to the command.
    pub const X: Perm = Perm(1 << 3);
    /// Read, write and execute.
    pub const RWX: Perm = Perm(Self::R.0 | Self::W.0 | Self::X.0);
    /// `*`: even what the three do not cover.
    pub const ANY: Perm = Perm(0xff);

    /// Whether all of `other` is in this.
    pub const fn has(self, other: Perm) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in this.
    pub const fn intersects(self, other: Perm) -> bool {
        self.0 & other.0 != 0
    }

    /// The letters that are set.
    pub const fn of(read: bool, write: bool, exec: bool) -> Perm {
        Perm(((read as u8) * Self::R.0) | ((write as u8) * Self::W.0) | ((exec as u8) * Self::X.0))
    }
}

impl BitOr for Perm {
    type Output = Perm;

    fn bitor(self, other: Perm) -> Perm {
        Perm(self.0 | other.0)
    }
}

impl fmt::Display for Perm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Perm::ANY {
            return f.write_str("*");
        }
        for (bit, letter) in [(Perm::R, "r"), (Perm::W, "w"), (Perm::X, "x")] {
            if self.has(bit) {
                f.write_str(letter)?;
            }
        }
        Ok(())
    }
}

/// A string as the grammar takes it back: bare if it may be, else in the quotes that it does not
/// hold.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !self.0.is_empty() && self.0.chars().all(bare) {
            f.write_str(self.0)
        } else if self.0.contains('"') {
            write!(f, "'{}'", self.0)
        } else {
            write!(f, "\"{}\"", self.0)
        }
    }
}

#[cfg(test)]
mod tests;
