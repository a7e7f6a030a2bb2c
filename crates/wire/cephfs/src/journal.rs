//! The journal of a stock metadata server: what says where it is and how far it goes, and the one
//! entry that a journal without changes has.
//!
//! Our own server keeps its changes elsewhere. It reads this to know that a stock server left
//! nothing behind, and writes it so that a stock server starts.

use crate::fnode::Fnode;
use crate::ids::{DirFrag, Ino};
use crate::layout::FileLayout;
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope, with_length};
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::{EntityName, IntervalSet, Utime};

/// Where a rank's journal is (Ceph: `JournalPointer`, `mds/JournalPointer.h`, version 1): the data
/// of [`Ino::log_pointer`]'s first object.
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct JournalPointer {
    /// The journal.
    pub front: Ino,
    /// The one that is being rewritten, or 0.
    pub back: Ino,
}

/// The data of a journal's first object (Ceph: `Journaler::Header`, `osdc/Journaler.h`, version 2).
/// Positions count bytes of the stream that begins with this object; what is before
/// [`JournalHeader::expire_pos`] counts for nothing.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct JournalHeader {
    /// [`crate::MAGIC`].
    pub magic: Bytes,
    /// Objects before it are gone.
    pub trimmed_pos: u64,
    /// Where replay begins.
    pub expire_pos: u64,
    /// Without use.
    pub unused: u64,
    /// Where it ends, at least: there may be more.
    pub write_pos: u64,
    /// How the stream is cut into objects.
    pub layout: FileLayout,
    /// See [`JournalHeader::RESILIENT`].
    pub stream_format: u8,
}

impl JournalHeader {
    /// Entries begin with a mark (Ceph: `JOURNAL_FORMAT_RESILIENT`).
    pub const RESILIENT: u8 = 1;

    /// The header of a new journal: it begins with the second object.
    pub fn new(layout: FileLayout) -> JournalHeader {
        let start = layout.period();
        JournalHeader {
            magic: Bytes::from_static(crate::MAGIC.as_bytes()),
            trimmed_pos: start,
            expire_pos: start,
            unused: 0,
            write_pos: start,
            layout,
            stream_format: Self::RESILIENT,
        }
    }
}

impl Encode for JournalHeader {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 2, 2, |out| {
            self.magic.encode(out, f);
            self.trimmed_pos.encode(out, f);
            self.expire_pos.encode(out, f);
            self.unused.encode(out, f);
            self.write_pos.encode(out, f);
            self.layout.encode_legacy(out);
            self.stream_format.encode(out, f);
        });
    }
}

impl Decode for JournalHeader {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("Journaler::Header", 2)?;
        if struct_v < 2 {
            return Err(DecodeError::TooOld { what: "Journaler::Header", struct_v, oldest: 2 });
        }
        Ok(JournalHeader {
            magic: r.get()?,
            trimmed_pos: r.get()?,
            expire_pos: r.get()?,
            unused: r.get()?,
            write_pos: r.get()?,
            layout: r.get()?,
            stream_format: r.get()?,
        })
    }
}

/// What an entry begins with (Ceph: `JournalStream::sentinel`).
const SENTINEL: u64 = 0x3141_5926_5358_9793;
/// Bytes around an entry's content: mark, length, and where the entry begins.
pub const ENTRY_OVERHEAD_BYTES: u64 = 8 + 4 + 8;

/// An entry of the stream at position `at` (Ceph: `JournalStream::write`, `osdc/Journaler.cc`).
pub fn encode_entry(at: u64, content: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(content.len() + ENTRY_OVERHEAD_BYTES as usize);
    SENTINEL.encode(&mut out, Features::ALL);
    (content.len() as u32).encode(&mut out, Features::ALL);
    out.extend_from_slice(content);
    at.encode(&mut out, Features::ALL);
    out.freeze()
}

/// Reads an entry: its position and content.
pub fn decode_entry(r: &mut Reader) -> Result<(u64, Bytes)> {
    let mark: u64 = r.get()?;
    if mark != SENTINEL {
        return Err(DecodeError::Invalid { what: "mark of a journal entry", found: mark });
    }
    let content = r.get()?;
    Ok((r.get()?, content))
}

/// The kind of the event that begins a segment of the journal (Ceph: `EVENT_SUBTREEMAP`,
/// `mds/LogEvent.h`).
pub const EVENT_SUBTREE_MAP: u32 = 2;

/// Which directories a rank has: the event that each segment of the journal begins with (Ceph 16.2:
/// `ESubtreeMap`, `mds/events/ESubtreeMap.h`, version 6, compat 5, in `EMetaBlob` version 8).
///
/// Only maps without changed entries are read and written: those of a journal that has nothing else
/// to say.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SubtreeMap {
    /// When it was written.
    pub stamp: Utime,
    /// Headers of directories, in the order in which they were added.
    pub dirs: Vec<(DirFrag, Fnode)>,
    /// Version of the table of inode numbers.
    pub inotable_version: u64,
    /// Version of the table of sessions.
    pub sessionmap_version: u64,
    /// Subtrees of the rank, with what does not belong to each.
    pub subtrees: BTreeMap<DirFrag, Vec<DirFrag>>,
    /// Where the journal began then.
    pub expire_pos: u64,
    /// Counts events.
    pub event_seq: u64,
}

impl SubtreeMap {
    /// The event as an entry's content (Ceph: `LogEvent::encode_with_header`).
    pub fn to_event(&self) -> Bytes {
        let f = Features::ALL;
        let mut out = BytesMut::new();
        0u32.encode(&mut out, f); // the encoding has a version
        envelope(&mut out, 1, 1, |out| {
            EVENT_SUBTREE_MAP.encode(out, f);
            envelope(out, 6, 5, |out| {
                self.stamp.encode(out, f);
                self.encode_blob(out, f);
                self.subtrees.encode(out, f);
                0u32.encode(out, f); // subtrees that are being moved
                self.expire_pos.encode(out, f);
                self.event_seq.encode(out, f);
            });
        });
        out.freeze()
    }

    fn encode_blob(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 8, 5, |out| {
            let order: Vec<DirFrag> = self.dirs.iter().map(|(dir, _)| *dir).collect();
            order.encode(out, f);
            let lumps: BTreeMap<DirFrag, Lump> =
                self.dirs.iter().map(|(dir, fnode)| (*dir, Lump(fnode.clone()))).collect();
            lumps.encode(out, f);
            0u32.encode(out, f); // base inodes
            0u32.encode(out, f); // changes of tables
            out.put_bytes(0, 3 * 8); // inodes opened, allocated, used
            IntervalSet::new().encode(out, f); // numbers set aside
            EntityName::default().encode(out, f);
            self.inotable_version.encode(out, f);
            self.sessionmap_version.encode(out, f);
            out.put_bytes(0, 4 * 4); // truncations, inodes that are gone, requests
            0u64.encode(out, f); // renamed directory
            0u32.encode(out, f); // and its fragments
            (-1i64).encode(out, f);
            false.encode(out, f);
            0u32.encode(out, f); // flushes
        });
    }

    /// Reads an entry's content; `None` if it is another event, or has changes.
    pub fn from_event(content: &Bytes) -> Result<Option<SubtreeMap>> {
        let mut r = Reader::new(content.clone());
        if r.get::<u32>()? != 0 {
            return Ok(None);
        }
        let (_, mut r) = r.envelope("LogEvent", 1)?;
        if r.get::<u32>()? != EVENT_SUBTREE_MAP {
            return Ok(None);
        }
        let (struct_v, mut r) = r.envelope("ESubtreeMap", 6)?;
        if struct_v < 6 {
            return Err(DecodeError::TooOld { what: "ESubtreeMap", struct_v, oldest: 6 });
        }
        let mut map = SubtreeMap { stamp: r.get()?, ..SubtreeMap::default() };
        if !map.decode_blob(&mut r)? {
            return Ok(None);
        }
        map.subtrees = r.get()?;
        if !r.get::<Vec<DirFrag>>()?.is_empty() {
            return Ok(None);
        }
        map.expire_pos = r.get()?;
        map.event_seq = r.get()?;
        Ok(Some(map))
    }

    /// Reads the blob; whether it is one without changes.
    fn decode_blob(&mut self, r: &mut Reader) -> Result<bool> {
        let (struct_v, mut r) = r.envelope("EMetaBlob", 8)?;
        if struct_v < 8 {
            return Err(DecodeError::TooOld { what: "EMetaBlob", struct_v, oldest: 8 });
        }
        let order: Vec<DirFrag> = r.get()?;
        let count = r.count("directories of a journal's event", 12)?;
        let mut lumps = BTreeMap::new();
        for _ in 0..count {
            let dir: DirFrag = r.get()?;
            let Some(lump) = Lump::read(&mut r)? else { return Ok(false) };
            lumps.insert(dir, lump);
        }
        for dir in order {
            let Some(Lump(fnode)) = lumps.remove(&dir) else { return Ok(false) };
            self.dirs.push((dir, fnode));
        }
        if !lumps.is_empty() || r.get::<u32>()? != 0 || r.get::<u32>()? != 0 {
            return Ok(false);
        }
        let inodes: [u64; 3] = [r.get()?, r.get()?, r.get()?];
        if inodes != [0; 3] || !r.get::<IntervalSet>()?.is_empty() {
            return Ok(false);
        }
        if r.get::<EntityName>()? != EntityName::default() {
            return Ok(false);
        }
        self.inotable_version = r.get()?;
        self.sessionmap_version = r.get()?;
        let changes: [u32; 4] = [r.get()?, r.get()?, r.get()?, r.get()?];
        let renamed: (u64, u32) = (r.get()?, r.get()?);
        r.get::<i64>()?;
        r.get::<bool>()?;
        let flushes: u32 = r.get()?;
        Ok(changes == [0; 4] && renamed == (0, 0) && flushes == 0)
    }
}

/// What an event has of a directory, without entries (Ceph: `EMetaBlob::dirlump`, version 2).
struct Lump(Fnode);

impl Encode for Lump {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 2, 2, |out| {
            self.0.encode(out, f);
            out.put_bytes(0, 4 * 4); // flags, and how many entries of each kind
            with_length(out, |out| {
                out.put_bytes(0, 3 * 4);
            });
        });
    }
}

impl Lump {
    fn read(r: &mut Reader) -> Result<Option<Lump>> {
        let (_, mut r) = r.envelope("EMetaBlob::dirlump", 2)?;
        let fnode = r.get()?;
        let flags_and_counts: [u32; 4] = [r.get()?, r.get()?, r.get()?, r.get()?];
        let entries: Bytes = r.get()?;
        let plain = flags_and_counts == [0; 4] && entries[..] == [0; 12];
        Ok(plain.then_some(Lump(fnode)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_subtrees_returns() {
        let root = DirFrag { ino: Ino::ROOT, ..DirFrag::default() };
        let mine = DirFrag { ino: Ino::mds_dir(0), ..DirFrag::default() };
        let map = SubtreeMap {
            stamp: Utime::new(5, 6),
            dirs: vec![(root, Fnode { version: 7, ..Fnode::default() }), (mine, Fnode::default())],
            inotable_version: 3,
            sessionmap_version: 4,
            subtrees: [(root, vec![]), (mine, vec![root])].into(),
            expire_pos: 8,
            event_seq: 9,
        };
        assert_eq!(SubtreeMap::from_event(&map.to_event()).unwrap(), Some(map.clone()));
        let entry = encode_entry(4 << 20, &map.to_event());
        let mut r = Reader::new(entry.clone());
        let (at, content) = decode_entry(&mut r).unwrap();
        assert_eq!((at, content, r.left()), (4 << 20, map.to_event(), 0));
        let mut damaged = entry.to_vec();
        damaged[0] ^= 1;
        assert!(decode_entry(&mut Reader::new(damaged.into())).is_err());
    }
}
