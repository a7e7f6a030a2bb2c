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
use crate::types::{
    Batch, Chance, ClientId, Ino, Inode, Layout, Name, Promise, Rank, SessionRecord, Space,
};
use denc::{BytesMut, Decode, DecodeError, Encode, Features, Reader};
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
    /// The sender serves no more, and all that it had is at rest.
    HandOver(Box<HandOver>),
    /// The receiver's inodes are the sender's from now on, and that is durable.
    TakenOver,
    /// The sender is to end, as all owners rest: is the receiver still?
    Look {
        /// The map that the sender knows. A receiver that knows an older one does not answer.
        map: u64,
        /// Comes back in the answer.
        round: u64,
    },
    /// All that the sender has is at rest, and it has nothing to say.
    Still {
        /// As it was asked.
        round: u64,
        /// The last batch of its log.
        last: Batch,
    },
    /// A subvolume or a tree is the receiver's from now on. The sender serves it no more.
    Give(Box<Parcel>),
    /// The receiver has taken what was given in this turn, and that is durable.
    Taken(LotId, u64),
    /// The receiver is to give back what it got in this turn.
    Recall(LotId, u64),
    /// What the receiver wants back of this turn stays with the sender.
    Stays(LotId, u64),
}

/// What moves from one owner to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LotId {
    /// A subvolume: all numbers of its space.
    Space(Space),
    /// An ordinary directory with all that has its place below it: runs of numbers.
    Tree(Ino),
}

/// A subvolume or a tree that goes to another owner, with what is not at rest of it.
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
#[denc(version = 2, compat = 1)]
pub struct Parcel {
    /// Its space; 0 for a tree.
    pub space: Space,
    /// Counts its moves.
    pub turn: u64,
    /// Its root.
    pub root: Root,
    /// Directories in the root that are older than the space, and have other numbers.
    pub older: BTreeSet<Ino>,
    /// The names from the file system's root to the subvolume.
    pub way: Vec<Name>,
    /// The next number of the space.
    pub next: u64,
    /// What it is promised.
    pub promise: Option<Promise>,
    /// Inodes of it that no directory of it holds.
    pub strays: Vec<Inode>,
    /// What the sender has done for clients.
    pub records: BTreeMap<ClientId, SessionRecord>,
    /// Of a tree: first numbers of runs, and how many numbers each has.
    #[denc(since = 2)]
    pub runs: BTreeMap<Ino, u64>,
}

impl Parcel {
    /// What it is.
    pub fn id(&self) -> LotId {
        match self.space {
            Space(0) => LotId::Tree(self.root.inode.ino),
            space => LotId::Space(space),
        }
    }
}

/// What an owner knows of a subvolume or a tree that has moved.
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
#[denc(version = 1, compat = 1)]
pub struct Lot {
    /// The owner that has it, or is to have it.
    pub holder: Rank,
    /// Counts its moves.
    pub turn: u64,
    /// Its root.
    pub root: Ino,
    /// As in [`Parcel::older`].
    pub older: BTreeSet<Ino>,
    /// As in [`Parcel::way`].
    pub way: Vec<Name>,
    /// It goes from here to its holder, which does not have it for sure.
    pub parcel: Option<Parcel>,
    /// It goes, and all that this owner has of it is at rest.
    pub rested: bool,
}

/// What is not at rest of an owner that leaves.
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
#[denc(version = 3, compat = 1)]
pub struct HandOver {
    /// Roots of its parts.
    pub roots: BTreeMap<Ino, Root>,
    /// What it has done for clients.
    pub records: BTreeMap<ClientId, SessionRecord>,
    /// Subvolumes that it has.
    #[denc(since = 2)]
    pub lots: BTreeMap<Space, Parcel>,
    /// Trees that it has.
    #[denc(since = 3)]
    pub trees: BTreeMap<Ino, Parcel>,
}

/// Halves that one owner is to make ready.
#[derive(Denc, Clone, PartialEq, Eq, Debug)]
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
        /// The chance with which directories below go to any owner.
        random: Chance,
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

impl Half {
    /// The inode that it names, or at which its path begins.
    pub(crate) fn begins_at(&self) -> Option<Ino> {
        match self {
            Half::Make { .. } => None,
            Half::Remove(ino) | Half::Unlink(ino) => Some(*ino),
            Half::Link(path) | Half::Take(path) => Some(path.ino),
        }
    }
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
    /// This inode is with that owner, as far as the sender knows.
    With(Ino, Rank),
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
#[denc(version = 2, compat = 1)]
pub struct Root {
    /// The directory.
    pub inode: Inode,
    /// The owner of its name.
    pub above: Rank,
    /// The layout of new files in it, where no directory of the part says another.
    pub layout: Option<Layout>,
    /// The chance with which directories below go to any owner, where no directory of the part says
    /// where they go.
    #[denc(since = 2)]
    pub random: Chance,
}

/// What an owner must keep of what it shares with others.
#[derive(Denc, Clone, PartialEq, Eq, Default, Debug)]
#[denc(version = 4, compat = 1)]
pub struct OwnerTables {
    /// Roots of its parts.
    pub roots: BTreeMap<Ino, Root>,
    /// Halves that are ready.
    pub prepared: BTreeMap<TxnId, Prepared>,
    /// Decisions that these owners may not know.
    pub decided: BTreeMap<TxnId, BTreeSet<Rank>>,
    /// Owners that have left, of which this one has all.
    #[denc(since = 2)]
    pub kept: BTreeSet<Rank>,
    /// This owner serves no more.
    #[denc(since = 2)]
    pub left: bool,
    /// What clients had done with an owner that left.
    #[denc(since = 2)]
    pub records: BTreeMap<ClientId, SessionRecord>,
    /// Subvolumes that have moved.
    #[denc(since = 3)]
    pub lots: BTreeMap<Space, Lot>,
    /// Trees that have moved.
    #[denc(since = 4)]
    pub trees: BTreeMap<Ino, Lot>,
    /// Runs of numbers with another owner than these say: how many, and the owner.
    #[denc(since = 4)]
    pub runs: BTreeMap<Ino, (u64, Rank)>,
}

/// The newest form of a message, and the oldest reader that understands it.
const FORM: (u8, u8) = (1, 1);

fn unknown<T>(what: &'static str, found: u8) -> denc::Result<T> {
    Err(DecodeError::Invalid { what, found: found.into() })
}

/// A word about a turn has one number for subvolumes, and one for trees.
fn encode_turn(out: &mut BytesMut, f: Features, tags: (u8, u8), id: LotId, turn: u64) {
    match id {
        LotId::Space(space) => {
            tags.0.encode(out, f);
            (space, turn).encode(out, f);
        }
        LotId::Tree(root) => {
            tags.1.encode(out, f);
            (root, turn).encode(out, f);
        }
    }
}

impl Encode for Message {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, FORM.0, FORM.1, |out| match self {
            Message::Prepare(prepare) => {
                1u8.encode(out, f);
                prepare.encode(out, f);
            }
            Message::Prepared(txn, found) => {
                2u8.encode(out, f);
                txn.encode(out, f);
                found.encode(out, f);
            }
            Message::Refused(txn, why) => {
                3u8.encode(out, f);
                txn.encode(out, f);
                why.encode(out, f);
            }
            Message::Decided(txn, commit) => {
                4u8.encode(out, f);
                (*txn, *commit).encode(out, f);
            }
            Message::Done(txn) => {
                5u8.encode(out, f);
                txn.encode(out, f);
            }
            Message::Ask(txn) => {
                6u8.encode(out, f);
                txn.encode(out, f);
            }
            Message::Report(inode) => {
                7u8.encode(out, f);
                inode.encode(out, f);
            }
            Message::Reported(ino, version) => {
                8u8.encode(out, f);
                (*ino, *version).encode(out, f);
            }
            Message::HandOver(what) => {
                9u8.encode(out, f);
                what.encode(out, f);
            }
            Message::TakenOver => 10u8.encode(out, f),
            Message::Look { map, round } => {
                11u8.encode(out, f);
                (*map, *round).encode(out, f);
            }
            Message::Still { round, last } => {
                12u8.encode(out, f);
                (*round, last.0).encode(out, f);
            }
            Message::Give(parcel) => {
                13u8.encode(out, f);
                parcel.encode(out, f);
            }
            Message::Taken(id, turn) => encode_turn(out, f, (14, 16), *id, *turn),
            Message::Recall(id, turn) => encode_turn(out, f, (15, 17), *id, *turn),
            Message::Stays(id, turn) => encode_turn(out, f, (18, 19), *id, *turn),
        });
    }
}

impl Decode for Message {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (_, mut r) = r.envelope("a message of an owner", FORM.0)?;
        Ok(match u8::decode(&mut r)? {
            1 => Message::Prepare(r.get()?),
            2 => Message::Prepared(r.get()?, r.get()?),
            3 => Message::Refused(r.get()?, r.get()?),
            4 => Message::Decided(r.get()?, r.get()?),
            5 => Message::Done(r.get()?),
            6 => Message::Ask(r.get()?),
            7 => Message::Report(Box::new(r.get()?)),
            8 => Message::Reported(r.get()?, r.get()?),
            9 => Message::HandOver(Box::new(r.get()?)),
            10 => Message::TakenOver,
            11 => Message::Look { map: r.get()?, round: r.get()? },
            12 => Message::Still { round: r.get()?, last: Batch(r.get()?) },
            13 => Message::Give(Box::new(r.get()?)),
            14 => Message::Taken(LotId::Space(r.get()?), r.get()?),
            15 => Message::Recall(LotId::Space(r.get()?), r.get()?),
            16 => Message::Taken(LotId::Tree(r.get()?), r.get()?),
            17 => Message::Recall(LotId::Tree(r.get()?), r.get()?),
            18 => Message::Stays(LotId::Space(r.get()?), r.get()?),
            19 => Message::Stays(LotId::Tree(r.get()?), r.get()?),
            found => return unknown("a message of an owner", found),
        })
    }
}

impl Encode for Half {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        match self {
            Half::Make { inode, layout, random } => {
                6u8.encode(out, f);
                inode.encode(out, f);
                layout.encode(out, f);
                random.encode(out, f);
            }
            Half::Remove(ino) => {
                2u8.encode(out, f);
                ino.encode(out, f);
            }
            Half::Link(path) => {
                3u8.encode(out, f);
                path.encode(out, f);
            }
            Half::Unlink(ino) => {
                4u8.encode(out, f);
                ino.encode(out, f);
            }
            Half::Take(path) => {
                5u8.encode(out, f);
                path.encode(out, f);
            }
        }
    }
}

impl Decode for Half {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        Ok(match u8::decode(r)? {
            1 => {
                let (inode, layout) = (Box::new(r.get()?), r.get()?);
                Half::Make { inode, layout, random: Chance::default() }
            }
            6 => Half::Make { inode: Box::new(r.get()?), layout: r.get()?, random: r.get()? },
            2 => Half::Remove(r.get()?),
            3 => Half::Link(r.get()?),
            4 => Half::Unlink(r.get()?),
            5 => Half::Take(r.get()?),
            found => return unknown("a half", found),
        })
    }
}

impl Encode for Refusal {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        match self {
            Refusal::Busy => 1u8.encode(out, f),
            Refusal::Errno(errno) => {
                2u8.encode(out, f);
                errno.encode(out, f);
            }
            Refusal::Elsewhere(path) => {
                3u8.encode(out, f);
                path.encode(out, f);
            }
            Refusal::With(ino, rank) => {
                4u8.encode(out, f);
                (*ino, *rank).encode(out, f);
            }
        }
    }
}

impl Decode for Refusal {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        Ok(match u8::decode(r)? {
            1 => Refusal::Busy,
            2 => Refusal::Errno(r.get()?),
            3 => Refusal::Elsewhere(r.get()?),
            4 => Refusal::With(r.get()?, r.get()?),
            found => return unknown("a refusal", found),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn all() -> Vec<Message> {
        let txn = TxnId { rank: Rank(1), number: 7 << 24 };
        let path = FilePath { ino: Ino::ROOT, path: "a/b".into() };
        let mut inode = Inode { ino: Ino(0x81 << 40), mode: 0o40755, nlink: 1, ..Inode::default() };
        inode.xattrs.insert("user.x".into(), "y".into());
        inode.layout = Some(Layout { pool: 3, namespace: "n".to_owned(), ..Layout::default() });
        let inode = Box::new(inode);
        let random = Chance::new(0.25).unwrap();
        let found = Found { ino: inode.ino, d_type: 4 };
        let prepare = Prepare {
            txn,
            client: ClientId(4711),
            tid: 12,
            stamp: Utime::new(5, 6),
            halves: vec![
                Half::Make { inode: inode.clone(), layout: inode.layout.clone(), random },
                Half::Make { inode: inode.clone(), layout: None, random: Chance::default() },
                Half::Remove(inode.ino),
                Half::Link(path.clone()),
                Half::Unlink(inode.ino),
                Half::Take(path.clone()),
            ],
        };
        let record = SessionRecord {
            completed: [(7, inode.ino), (8, Ino(0))].into(),
            oldest_tid: 7,
            flushes: [(3, ())].into(),
        };
        let root = Root { inode: (*inode).clone(), above: Rank(2), layout: None, random };
        let parcel = Parcel {
            space: Space(0x203),
            turn: 4,
            root: root.clone(),
            older: [Ino(0x1_0000_0007)].into(),
            way: vec!["volumes".into(), "group".into()],
            next: 0xc0_0000_0009,
            promise: Some(Promise { weight: 7, version: 2, ..Promise::default() }),
            strays: vec![(*inode).clone()],
            records: [(ClientId(4711), record.clone())].into(),
            runs: BTreeMap::new(),
        };
        let tree = Parcel {
            space: Space(0),
            runs: [(inode.ino, 3), (Ino(1 << 40), 70_000)].into(),
            ..parcel.clone()
        };
        let id = tree.id();
        assert_eq!((id, parcel.id()), (LotId::Tree(inode.ino), LotId::Space(Space(0x203))));
        let hand_over = HandOver {
            roots: [(inode.ino, root)].into(),
            records: [(ClientId(4711), record)].into(),
            lots: [(parcel.space, parcel.clone())].into(),
            trees: [(inode.ino, tree.clone())].into(),
        };
        vec![
            Message::Prepare(prepare),
            Message::Prepared(txn, vec![found, Found::default()]),
            Message::Refused(txn, Refusal::Busy),
            Message::Refused(txn, Refusal::Errno(39)),
            Message::Refused(txn, Refusal::Elsewhere(path)),
            Message::Refused(txn, Refusal::With(inode.ino, Rank(2))),
            Message::Decided(txn, true),
            Message::Decided(txn, false),
            Message::Done(txn),
            Message::Ask(txn),
            Message::Report(inode.clone()),
            Message::Reported(inode.ino, 9),
            Message::HandOver(Box::new(hand_over)),
            Message::TakenOver,
            Message::Look { map: 17, round: 3 },
            Message::Still { round: 3, last: Batch(4_711) },
            Message::Taken(parcel.id(), 4),
            Message::Recall(parcel.id(), 5),
            Message::Stays(parcel.id(), 5),
            Message::Give(Box::new(parcel)),
            Message::Give(Box::new(tree)),
            Message::Taken(id, 4),
            Message::Recall(id, 5),
            Message::Stays(id, 5),
        ]
    }

    #[test]
    fn messages_come_back_from_their_bytes() {
        for message in all() {
            let bytes = message.to_bytes(Features::ALL);
            assert_eq!(Message::from_bytes(&bytes), Ok(message));
        }
    }

    #[test]
    fn what_is_cut_off_is_an_error() {
        for message in all() {
            let bytes = message.to_bytes(Features::ALL);
            for cut in 0..bytes.len() {
                assert!(Message::from_bytes(&bytes.slice(..cut)).is_err(), "{message:?} at {cut}");
            }
        }
    }

    #[test]
    fn a_length_has_no_memory_behind_it() {
        let txn = TxnId { rank: Rank(1), number: 1 };
        for tag in [1u8, 2] {
            let mut out = BytesMut::new();
            denc::envelope(&mut out, 1, 1, |out| {
                tag.encode(out, Features::ALL);
                txn.encode(out, Features::ALL);
                if tag == 1 {
                    (ClientId(1), 1u64, Utime::new(1, 1)).encode(out, Features::ALL);
                }
                u32::MAX.encode(out, Features::ALL);
            });
            assert!(Message::from_bytes(&out.freeze()).is_err());
        }
    }

    #[test]
    fn every_changed_byte_is_an_error_or_a_message() {
        for message in all() {
            let bytes = message.to_bytes(Features::ALL);
            for at in 0..bytes.len() {
                for change in [1u8, 0x80, 0xff] {
                    let mut changed = bytes.to_vec();
                    changed[at] ^= change;
                    // What is understood can be said again.
                    if let Ok(read) = Message::from_bytes(&Bytes::from(changed)) {
                        let again = Message::from_bytes(&read.to_bytes(Features::ALL));
                        assert_eq!(again, Ok(read));
                    }
                }
            }
        }
    }
}
