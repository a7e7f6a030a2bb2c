//! The log: redo of what is not at rest yet, in objects of the metadata pool.
//!
//! * [`Log`]: of the server that has the rank.
//! * [`Tail`]: what was read of it, by a successor at once or by one that follows bit by bit.

use crate::mark::JournalMark;
use crate::store::{Result, Store, absent, damaged};
use bytes::Bytes;
use client::Operation;
use denc::{Decode, Encode, Features};
use mds::{Batch, Token};
use std::collections::BTreeMap;
use tokio::sync::oneshot;
use types::Utime;

/// An entry of the log as it stands in an object: mark, length, batch, content.
const LOG_MARK: u32 = 0x5147_4c53;
/// Bytes in front of the content.
const LOG_HEAD_BYTES: usize = 4 + 4 + 8;
/// An object of the log gets no further entries above this size.
const LOG_OBJECT_BYTES: u64 = 4 << 20;

/// What is known of the log without reading it.
#[derive(denc_derive::Denc, Clone, PartialEq, Eq, Default, Debug)]
#[denc(version = 4, compat = 1)]
pub struct LogHead {
    /// The first object that may have entries.
    pub first: u64,
    /// The last batch that is not needed.
    pub trimmed: u64,
    /// Files of which objects are trimmed, or the size is looked for, as of the last flush.
    pub truncating: Vec<u64>,
    /// As above.
    pub recovering: Vec<u64>,
    /// Promises to subvolumes, by the number of their space.
    #[denc(since = 2)]
    pub promises: BTreeMap<u16, mds::Promise>,
    /// Times of the only entry of the journal in Ceph's form: one of these, as long as no other
    /// server has had the rank since. Nothing in heads that do not know it.
    #[denc(since = 3)]
    pub journal: Vec<Utime>,
    /// The owner that the rank was when the log was begun, and 1 more. 0 in heads that do not know
    /// it: the owner has the rank's number.
    #[denc(since = 4)]
    pub owner: u16,
}

impl LogHead {
    /// The owner of which the log of a rank is.
    pub fn owner(&self, rank: u32) -> u32 {
        u32::from(self.owner).checked_sub(1).unwrap_or(rank)
    }
}

/// Work on the log, in order.
#[derive(Debug)]
pub enum LogWork {
    /// Appends a batch.
    Append(Batch, Bytes),
    /// Forgets batches below this one.
    Trim(Batch),
    /// Makes what is in no directory durable.
    Tables(Token, Box<mds::Tables>),
    /// Says to the monitors that the log is empty, if it is. The answer says whether it is; with
    /// `end`, nothing is appended any more then.
    Claim { end: bool, empty: oneshot::Sender<bool> },
}

/// The log: objects one behind the other, each with entries one behind the other.
pub struct Log {
    store: Store,
    /// Where the next entry goes.
    object: u64,
    offset: u64,
    /// Objects that are full, or the one before the current, with the last batch in each.
    full: BTreeMap<u64, u64>,
    last: u64,
    pub head: LogHead,
    /// What [`LogHead::journal`] is from.
    pub mark: JournalMark,
}

fn head_object(rank: u32) -> String {
    format!("mds{rank}_siphon")
}

fn log_object(rank: u32, number: u64) -> String {
    format!("mds{rank}_siphon_log.{number:08x}")
}

impl Log {
    /// Goes on behind what was read to the end. Each server begins a new object: what its
    /// predecessor had on the way is of an older one. The entries come in order.
    pub fn behind(tail: Tail) -> (Log, Vec<(Batch, Bytes)>) {
        let (mut entries, mut full, mut last) = (Vec::new(), BTreeMap::new(), tail.head.trimmed);
        let object = tail.pieces.keys().next_back().map_or(tail.head.first, |n| n + 1);
        for (number, piece) in tail.pieces {
            last = last.max(piece.last);
            entries.extend(piece.entries);
            full.insert(number, last);
        }
        let (store, head) = (tail.store, tail.head);
        let mark = JournalMark::of(&head.journal);
        (Log { store, object, offset: 0, full, last, head, mark }, entries)
    }

    /// The last batch that is in the log or was.
    pub fn last(&self) -> Batch {
        Batch(self.last)
    }

    /// Whether there is nothing in it that is needed.
    pub fn is_empty(&self) -> bool {
        self.last <= self.head.trimmed
    }

    /// Begins anew, as the log of this owner: there are no entries. The journal is going to be
    /// written.
    pub async fn reset(&mut self, owner: mds::Rank, now: Utime) -> Result<()> {
        let old = std::mem::take(&mut self.full);
        let owner = owner.0.saturating_add(1);
        self.head = LogHead { first: self.object, owner, ..LogHead::default() };
        self.mark = JournalMark::default();
        self.mark.begin(now);
        self.last = 0;
        self.write_head().await?;
        for number in old.into_keys() {
            self.store.remove(log_object(self.store.rank, number)).await?;
        }
        Ok(())
    }

    /// Appends an entry. One at a time.
    pub async fn append(&mut self, batch: Batch, content: &Bytes) -> Result<()> {
        let mut bytes = bytes::BytesMut::with_capacity(content.len() + LOG_HEAD_BYTES);
        LOG_MARK.encode(&mut bytes, Features::ALL);
        (content.len() as u32).encode(&mut bytes, Features::ALL);
        batch.0.encode(&mut bytes, Features::ALL);
        bytes.extend_from_slice(content);
        let length = bytes.len() as u64;
        let object = log_object(self.store.rank, self.object);
        let op = Operation::new().write(self.offset, bytes.freeze()).full_try();
        self.store.meta.run(object, op).await?.ok()?;
        self.offset += length;
        self.last = batch.0;
        if self.offset >= LOG_OBJECT_BYTES {
            self.full.insert(self.object, batch.0);
            self.object += 1;
            self.offset = 0;
        }
        Ok(())
    }

    /// Forgets batches below one: the head says so first, then objects go.
    pub async fn trim(&mut self, below: Batch) -> Result<()> {
        self.head.trimmed = self.head.trimmed.max(below.0.saturating_sub(1));
        let old: Vec<u64> = self
            .full
            .iter()
            .take_while(|(_, last)| **last <= self.head.trimmed)
            .map(|(number, _)| *number)
            .collect();
        self.head.first =
            self.full.keys().find(|n| !old.contains(n)).copied().unwrap_or(self.object);
        self.write_head().await?;
        for number in old {
            self.store.remove(log_object(self.store.rank, number)).await?;
            self.full.remove(&number);
        }
        Ok(())
    }

    /// Makes the head durable.
    pub async fn write_head(&mut self) -> Result<()> {
        self.head.journal = self.mark.times().to_vec();
        self.store.put(head_object(self.store.rank), self.head.to_bytes(Features::ALL)).await
    }
}

/// What was read of the log. A server that follows reads what is new from time to time, and begins
/// with the rest when it gets the rank.
pub struct Tail {
    store: Store,
    head: LogHead,
    pieces: BTreeMap<u64, Piece>,
}

/// What was read of an object of the log.
#[derive(Default)]
struct Piece {
    /// Up to where.
    read: u64,
    /// The last batch up to there.
    last: u64,
    /// Those that are needed.
    entries: Vec<(Batch, Bytes)>,
}

impl Tail {
    /// Nothing is read yet.
    pub fn new(store: Store) -> Tail {
        Tail { store, head: LogHead::default(), pieces: BTreeMap::new() }
    }

    /// How many entries there are that a successor needs.
    pub fn entries(&self) -> usize {
        self.pieces.values().map(|p| p.entries.len()).sum()
    }

    /// Reads what is new. An entry that is cut off was never answered for, and ends an object.
    /// While another server has the rank, objects may go from under it: the next call finds what
    /// this one has missed.
    pub async fn follow(&mut self) -> Result<()> {
        let head = match self.store.get(head_object(self.store.rank)).await? {
            Some(bytes) => LogHead::from_bytes(&bytes).map_err(damaged("the head of the log"))?,
            None => LogHead::default(),
        };
        self.take_head(head);
        let mut number = self.pieces.keys().next_back().copied().unwrap_or(self.head.first);
        while self.read_on(number).await? && self.read_on(number + 1).await? {
            // There is a later one: this one is complete, which it may not have been above.
            self.read_on(number).await?;
            number += 1;
        }
        Ok(())
    }

    fn take_head(&mut self, head: LogHead) {
        self.pieces = self.pieces.split_off(&head.first);
        for piece in self.pieces.values_mut() {
            piece.entries.retain(|(batch, _)| batch.0 > head.trimmed);
        }
        self.head = head;
    }

    /// Reads an object from where it was read up to. False if it is not there.
    async fn read_on(&mut self, number: u64) -> Result<bool> {
        let from = self.pieces.get(&number).map_or(0, |p| p.read);
        let object = log_object(self.store.rank, number);
        let bytes = match self.store.meta.read(object, from, 0).await {
            Ok(bytes) => bytes,
            Err(e) if absent(&e) => return Ok(false),
            Err(e) => return Err(e.into()),
        };
        self.pieces.entry(number).or_default().add(&bytes, self.head.trimmed);
        Ok(true)
    }
}

impl Piece {
    fn add(&mut self, bytes: &Bytes, trimmed: u64) {
        for (batch, content) in parse(bytes) {
            self.read += (LOG_HEAD_BYTES + content.len()) as u64;
            self.last = self.last.max(batch);
            if batch > trimmed {
                self.entries.push((Batch(batch), content));
            }
        }
    }
}

/// The entries of an object of the log.
fn parse(bytes: &Bytes) -> Vec<(u64, Bytes)> {
    let mut found = Vec::new();
    let mut r = denc::Reader::new(bytes.clone());
    while r.left() >= LOG_HEAD_BYTES {
        let mut head = || -> denc::Result<(u32, u32, u64)> { Ok((r.get()?, r.get()?, r.get()?)) };
        let Ok((LOG_MARK, length, batch)) = head() else { break };
        let Ok(content) = r.bytes("an entry of the log", length as usize) else { break };
        found.push((batch, content));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries_of(all: &[(u64, &str)]) -> Bytes {
        let mut bytes = bytes::BytesMut::new();
        for (batch, content) in all {
            LOG_MARK.encode(&mut bytes, Features::ALL);
            (content.len() as u32).encode(&mut bytes, Features::ALL);
            batch.encode(&mut bytes, Features::ALL);
            bytes.extend_from_slice(content.as_bytes());
        }
        bytes.freeze()
    }

    #[test]
    fn an_entry_that_is_cut_off_ends_the_log() {
        let all = entries_of(&[(1, "one"), (2, "two")]);
        assert_eq!(parse(&all), [(1, "one".into()), (2, "two".into())]);
        assert_eq!(parse(&all.slice(..all.len() - 1)), [(1, "one".into())]);
        assert!(parse(&Bytes::from_static(&[0xff; 40])).is_empty());
    }

    #[test]
    fn an_object_is_read_bit_by_bit() {
        let all = entries_of(&[(4, "four"), (5, "five"), (6, "six")]);
        for cut in 0..all.len() {
            let mut piece = Piece::default();
            piece.add(&all.slice(..cut), 4);
            let from = piece.read as usize;
            assert!(from <= cut);
            piece.add(&all.slice(from..), 4);
            assert_eq!(piece.entries, [(Batch(5), "five".into()), (Batch(6), "six".into())]);
            assert_eq!((piece.read, piece.last), (all.len() as u64, 6));
        }
    }
}
