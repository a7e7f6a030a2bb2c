//! What owners of directories tell each other, and what they keep of it.
//!
//! A change of two owners is a transaction: the coordinator's request, and halves of others.
//!
//! ```text
//! coordinator                      participant
//!   Prepare ──────────────────────►  looks, takes capabilities back, logs the half
//!           ◄────────────────────── Prepared, or Refused
//!   logs its changes and that it is decided
//!   Decided ──────────────────────►  carries the half out, logs that
//!           ◄────────────────────── Done
//! ```

use crate::request::FilePath;
use crate::types::{ClientId, Ino, Inode, Layout, Name, Rank};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};
use types::Utime;

/// Names a transaction: its coordinator, and a number that does not come again.
#[derive(Denc, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct TxnId {
    /// The coordinator.
    pub rank: Rank,
    /// Its number.
    pub number: u64,
}

/// A word of one owner to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Make halves ready.
    Prepare(Prepare),
    /// All of them are ready, and durable.
    Prepared(TxnId, Vec<Found>),
    /// None of them is ready.
    Refused(TxnId, Refusal),
    /// Halves are to be carried out, or not.
    Decided(TxnId, bool),
    /// Halves are carried out, and that is durable.
    Done(TxnId),
    /// What was decided?
    Ask(TxnId),
    /// The root of a part, for the owner of its name.
    Report(Box<Inode>),
    /// What was reported is durable, up to this version.
    Reported(Ino, u64),
}

/// Halves that one owner is to make ready.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prepare {
    /// The transaction.
    pub txn: TxnId,
    /// The client of the request.
    pub client: ClientId,
    /// The request.
    pub tid: u64,
    /// Its time.
    pub stamp: Utime,
    /// What is to be done.
    pub halves: Vec<Half>,
}

/// What another owner does of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Half {
    /// Makes the root of a part. It gets a number there.
    Make {
        /// The directory.
        inode: Box<Inode>,
        /// The layout of new files in it.
        layout: Option<Layout>,
    },
    /// Removes the root of a part, which must be empty.
    Remove(Ino),
    /// Gives the inode at a path one name more.
    Link(FilePath),
    /// Takes a name of an inode that lives elsewhere.
    Unlink(Ino),
    /// Takes a name away that its inode gets elsewhere.
    Take(FilePath),
}

/// What a half is about.
#[derive(Denc, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Found {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub d_type: u8,
}

/// Why halves are not ready.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Another transaction is in the way.
    Busy,
    /// They cannot be done.
    Errno(i32),
    /// The path of the half leads here.
    Elsewhere(FilePath),
}

/// Which half it is.
#[derive(Denc, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[denc(repr = "u8")]
pub enum Step {
    /// [`Half::Make`].
    #[default]
    Make = 1,
    /// [`Half::Remove`].
    Remove = 2,
    /// [`Half::Link`].
    Link = 3,
    /// [`Half::Unlink`].
    Unlink = 4,
    /// [`Half::Take`].
    Take = 5,
}

/// A half that is ready.
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
#[denc(version = 1, compat = 1)]
pub struct Held {
    /// Which it is.
    pub step: Step,
    /// The inode.
    pub found: Found,
    /// Of a name: its directory.
    pub dir: Ino,
    /// The name.
    pub name: Name,
    /// A directory that is made, and what its files inherit.
    pub root: Option<Root>,
}

/// Halves that are ready.
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
#[denc(version = 1, compat = 1)]
pub struct Prepared {
    /// The time of the request.
    pub stamp: Utime,
    /// In the order in which they were asked for.
    pub halves: Vec<Held>,
}

/// The root of a part, which another owner names.
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
#[denc(version = 1, compat = 1)]
pub struct Root {
    /// The directory.
    pub inode: Inode,
    /// The owner of its name.
    pub above: Rank,
    /// The layout of new files in it, where no directory of the part says another.
    pub layout: Option<Layout>,
}

/// What an owner must keep of what it shares with others.
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
#[denc(version = 1, compat = 1)]
pub struct OwnerTables {
    /// Roots of its parts.
    pub roots: BTreeMap<Ino, Root>,
    /// Halves that are ready.
    pub prepared: BTreeMap<TxnId, Prepared>,
    /// Decisions that these owners may not know.
    pub decided: BTreeMap<TxnId, BTreeSet<Rank>>,
}
