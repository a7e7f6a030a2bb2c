//! How a server begins: with a new file system, or with what the one before it left. Nothing is
//! opened: the tail of the log is put over what is at rest, and the rest is read when it is needed.

use super::Mds;
use super::log::Record;
use super::node::{Dirty, Link};
use super::operation::Phase;
use super::runs::Runs;
use crate::action::Tables;
use crate::conf::Conf;
use crate::peer::{Lot, LotId, OwnerTables, Prepared, Root, TxnId};
use crate::types::{Batch, Dentry, DirFrag, Ino, Inode, Name, NestStat, Rank, Space, Steady, mode};
use bytes::Bytes;
use denc::{Decode, Reader};
use std::collections::{BTreeMap, BTreeSet};
use types::Utime;

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A batch is damaged.
    #[error(
        "batch {batch} of the log: expected checksum {expected:#010x}, found {found:#010x}; restore its object"
    )]
    Checksum {
        /// Its number.
        batch: u64,
        /// What its bytes come to.
        expected: u32,
        /// What it says.
        found: u32,
    },
    /// A batch is not the next one.
    #[error("the log: expected batch {expected}, found {found}; restore the missing objects")]
    Gap {
        /// The next one.
        expected: u64,
        /// What came.
        found: u64,
    },
    /// A batch cannot be decoded.
    #[error("batch {batch} of the log: {error}")]
    Form {
        /// Its number.
        batch: u64,
        /// What is wrong.
        error: denc::DecodeError,
    },
}

/// Reads a log, and becomes a server.
#[derive(Debug)]
pub struct Replay {
    conf: Conf,
    tables: Tables,
    entries: BTreeMap<DirFrag, BTreeMap<Name, (Batch, Option<Dentry>)>>,
    base: BTreeMap<Ino, (Batch, Inode)>,
    /// Roots of parts, with the batch of their last change.
    roots: BTreeMap<Ino, Batch>,
    /// Numbers with another owner than they say.
    runs: Runs<Rank>,
    /// Numbers below these may have been given out.
    ahead: BTreeMap<Space, u64>,
    first: Option<Batch>,
    last: Batch,
}

impl Replay {
    /// Whether inodes have got numbers of this owner.
    pub fn gave_numbers(&self) -> bool {
        let space = Space::common(self.conf.rank);
        self.tables.next.get(&space).is_some_and(|next| *next > space.first_number())
    }

    /// Puts a batch in: all of them, in order, from the first that is not trimmed.
    pub fn batch(&mut self, batch: Batch, bytes: &Bytes) -> Result<(), ReplayError> {
        let at = bytes.len().saturating_sub(4);
        let expected = crc32c::crc32c(&bytes[..at]);
        let found = bytes[at..].try_into().map_or(0, u32::from_le_bytes);
        if expected != found || bytes.len() < 4 {
            return Err(ReplayError::Checksum { batch: batch.0, expected, found });
        }
        let record = Record::decode(&mut Reader::new(bytes.slice(..at)))
            .map_err(|error| ReplayError::Form { batch: batch.0, error })?;
        if record.batch != batch || (self.first.is_some() && batch.0 != self.last.0 + 1) {
            return Err(ReplayError::Gap { expected: self.last.0 + 1, found: record.batch.0 });
        }
        self.first.get_or_insert(batch);
        self.last = batch;
        self.apply(record);
        Ok(())
    }

    fn apply(&mut self, record: Record) {
        let batch = record.batch;
        if let Some(tables) = record.tables {
            let promises = std::mem::take(&mut self.tables.promises);
            let owners = record.owners.unwrap_or_default();
            self.runs = runs_of(&owners);
            self.tables = Tables { promises, owners, ..tables };
        }
        self.apply_owners(batch, record.roots, record.prepared, record.decided);
        for (space, lot) in record.lots {
            self.apply_lot(LotId::Space(space), lot);
        }
        for (root, lot) in record.trees {
            self.apply_lot(LotId::Tree(root), lot);
        }
        for (first, count, rank) in record.runs {
            self.runs.set(first, count, rank);
        }
        for (space, next) in record.next {
            let n = self.tables.next.entry(space).or_default();
            *n = next.max(*n);
        }
        for (space, bound) in record.ahead {
            let n = self.ahead.entry(space).or_default();
            *n = bound.max(*n);
        }
        for (space, promise) in record.promises {
            match promise {
                Some(promise) => self.tables.promises.insert(space, promise),
                None => self.tables.promises.remove(&space),
            };
        }
        for (client, session) in record.sessions {
            match session {
                Some(session) => self.tables.sessions.insert(client, session),
                None => self.tables.sessions.remove(&client),
            };
        }
        for ((client, tid), made, oldest) in record.completed {
            if let Some(session) = self.tables.sessions.get_mut(&client) {
                session.forget_below(oldest);
                session.completed.insert(tid, made);
            }
        }
        for (client, flush, oldest) in record.flushes {
            if let Some(session) = self.tables.sessions.get_mut(&client) {
                session.forget_flushes_below(oldest);
                session.flushes.insert(flush, ());
            }
        }
        for (dir, name, dentry) in record.entries {
            self.entries.entry(dir).or_default().insert(name, (batch, dentry));
        }
        for inode in record.base {
            self.base.insert(inode.ino, (batch, inode));
        }
        for ino in record.gone {
            self.entries.remove(&DirFrag::whole(ino));
        }
    }

    /// Takes in that a subvolume or a tree moves. What is in the log of one that is not here is at
    /// rest, and may have been changed by another owner since.
    fn apply_lot(&mut self, id: LotId, lot: Option<Lot>) {
        let owners = &mut self.tables.owners;
        let known = match id {
            LotId::Space(space) => owners.lots.remove(&space),
            LotId::Tree(root) => owners.trees.remove(&root),
        };
        let goes = |lot: &Lot| lot.parcel.is_none() || lot.rested;
        let gone = match (&lot, &known) {
            (Some(lot), _) if lot.holder != self.conf.rank && goes(lot) => Some(lot),
            (None, Some(lot)) => Some(lot),
            _ => None,
        };
        match (id, gone) {
            (LotId::Space(space), Some(Lot { root, older, .. })) => {
                let of = |ino: Ino| ino.space() == space || ino == *root || older.contains(&ino);
                self.entries.retain(|dir, _| !of(dir.ino));
            }
            // Without its numbers it was at rest before.
            (LotId::Tree(_), Some(Lot { parcel: Some(parcel), .. })) => {
                let mut of = Runs::default();
                parcel.runs.iter().for_each(|(first, count)| of.set(*first, *count, Some(())));
                self.entries.retain(|dir, _| of.get(dir.ino).is_none());
            }
            _ => {}
        }
        match (id, lot) {
            (LotId::Space(space), Some(lot)) => drop(owners.lots.insert(space, lot)),
            (LotId::Tree(root), Some(lot)) => drop(owners.trees.insert(root, lot)),
            (_, None) => {}
        }
    }

    fn apply_owners(
        &mut self,
        batch: Batch,
        roots: Vec<(Ino, Option<Root>)>,
        prepared: Vec<(TxnId, Option<Prepared>)>,
        decided: Vec<(TxnId, Option<BTreeSet<Rank>>)>,
    ) {
        let owners = &mut self.tables.owners;
        for (ino, root) in roots {
            self.base.remove(&ino);
            match root {
                Some(root) => {
                    self.roots.insert(ino, batch);
                    owners.roots.insert(ino, root)
                }
                None => {
                    self.roots.remove(&ino);
                    owners.roots.remove(&ino)
                }
            };
        }
        for (txn, halves) in prepared {
            match halves {
                Some(halves) => owners.prepared.insert(txn, halves),
                None => owners.prepared.remove(&txn),
            };
        }
        for (txn, ranks) in decided {
            match ranks {
                Some(ranks) => owners.decided.insert(txn, ranks),
                None => owners.decided.remove(&txn),
            };
        }
    }

    /// The server, which waits for the clients of the one before it. `last` is the number of the
    /// last batch that was trimmed, for a log of which no batch is left.
    pub fn finish(self, now: Steady, last: Batch) -> Mds {
        let Replay { conf, tables, entries, base, roots, runs, ahead, first, .. } = self;
        let last = self.last.max(last);
        let mut mds = Mds::empty(conf);
        mds.now = now;
        mds.log.starts_after(last, first.unwrap_or(Batch(last.0 + 1)));
        // Numbers of capabilities of the server before this one do not come again.
        mds.next_cap = (last.0 + 1) << 24;
        mds.phase = Phase::Reconnect(tables.sessions.keys().copied().collect());
        mds.early.fresh = tables.next.clone();
        mds.next_ino = tables.next;
        for (space, bound) in ahead {
            let next = mds.next_ino.entry(space).or_insert(bound);
            *next = bound.max(*next);
        }
        mds.peers.kept = tables.owners.kept.clone();
        mds.peers.runs = runs;
        mds.adopt_lots(&tables.owners);
        mds.promises = tables.promises;
        mds.adopt_promises();
        for (client, record) in tables.sessions {
            mds.add_session(client, record);
            mds.begins_with_leases();
        }
        for (ino, (batch, inode)) in base {
            mds.insert_node(inode, None, batch);
            mds.dirty_base.insert(ino, batch);
        }
        mds.adopt_owners(tables.owners, &roots);
        for (dir, names) in entries {
            for (name, (batch, dentry)) in names {
                let link = match dentry {
                    None => Link::Absent,
                    Some(Dentry::Remote { ino, d_type }) => Link::Remote(ino, d_type),
                    Some(Dentry::Primary(inode)) => {
                        let ino = inode.ino;
                        mds.insert_node(*inode, Some((dir.ino, name.clone())), batch);
                        mds.backtraces.insert(ino, batch);
                        Link::Primary(ino)
                    }
                };
                mds.insert_entry(dir, name.clone(), link);
                mds.dir_mut(dir).dirty.insert(name, Dirty::new(batch));
                mds.dirty_entries += 1;
                mds.dirty_dirs.note(dir, batch);
            }
        }
        mds.perhaps_active();
        mds.settle();
        mds
    }
}

fn runs_of(owners: &OwnerTables) -> Runs<Rank> {
    let mut runs = Runs::default();
    for (first, (count, rank)) in &owners.runs {
        runs.set(*first, *count, Some(*rank));
    }
    runs
}

impl Mds {
    /// The server of a new file system.
    pub fn create(conf: Conf, now: Steady, stamp: Utime) -> Mds {
        let mut mds = Mds::empty(conf);
        mds.now = now;
        mds.log.starts_after(Batch(0), Batch(1));
        mds.peers.since = Batch(1);
        let dir = |ino: Ino, mode: u32| Inode {
            ino,
            mode: mode::DIR | mode,
            nlink: 1,
            ctime: stamp,
            mtime: stamp,
            btime: stamp,
            rstat: NestStat { rctime: stamp, rsubdirs: 1, ..NestStat::default() },
            ..Inode::default()
        };
        let (rank, mds_dir) = (mds.conf.rank, Ino::mds_dir(mds.conf.rank));
        for (ino, mode) in [(Ino::ROOT, 0o755), (mds_dir, 0o700)] {
            if ino == Ino::ROOT && rank != Rank(0) {
                continue;
            }
            mds.insert_node(dir(ino, mode), None, Batch(1));
            mds.dir_mut(DirFrag::whole(ino)).complete = true;
            mds.touch(ino);
        }
        for i in 0..Ino::STRAYS {
            let (ino, name) = (Ino::stray_of(rank, i), Name::from(format!("stray{i}")));
            mds.insert_node(dir(ino, 0o700), Some((mds_dir, name.clone())), Batch(1));
            mds.dir_mut(DirFrag::whole(ino)).complete = true;
            mds.set_link(DirFrag::whole(mds_dir), &name, Link::Primary(ino));
            mds.placed(ino);
            let change = super::stats::Change::name(true, 1);
            let stat = super::stats::of(&mds.nodes[&ino].inode);
            mds.account(mds_dir, change.with(stat, 1), stamp);
        }
        mds.log_tables();
        mds.settle();
        mds
    }

    /// Begins with what is at rest; the log's batches follow.
    pub fn replay(conf: Conf, tables: Tables) -> Replay {
        Replay {
            conf,
            runs: runs_of(&tables.owners),
            tables,
            entries: BTreeMap::new(),
            base: BTreeMap::new(),
            roots: BTreeMap::new(),
            ahead: BTreeMap::new(),
            first: None,
            last: Batch(0),
        }
    }
}
