//! What an operation does to an object, and how replicas are told.

use bytes::{BufMut, Bytes, BytesMut};
use denc::{Encode, Features, Reader};
use ec::ShardOp;
use pg::Payload;
use types::{Eversion, ObjectId, SnapId, SnapSet, SpgId};

use crate::disk::StoreOp;
use crate::object::{Lead, Object};

/// What is done to a shard of an object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardChange {
    /// The version that the shard has before; zero: there is none.
    pub before: Eversion,
    /// The version that it has then.
    pub version: Eversion,
    /// It goes.
    pub remove: bool,
    /// What happens to its bytes.
    pub ops: Vec<ShardOp>,
    /// What the object is then, and rows that are set or go, if the shard knows that.
    pub lead: Option<(Lead, Vec<(Bytes, Option<Bytes>)>)>,
}

/// What an operation does to an object.
#[derive(Debug)]
pub enum Change {
    /// Nothing, and it is remembered.
    Nothing,
    /// Replaces it.
    Write(Object),
    /// Removes it.
    Remove,
    /// A clone is made of the head as it is.
    Clone {
        /// The clone's version.
        version: Eversion,
        /// The snapshots that it stands for.
        snaps: Vec<SnapId>,
    },
    /// A clone stands for fewer snapshots; for none: it goes.
    Snaps {
        /// The clone's version.
        version: Eversion,
        /// The snapshots that it stood for.
        old: Vec<SnapId>,
        /// The snapshots that it stands for.
        new: Vec<SnapId>,
    },
    /// A head has other clones.
    Set {
        /// The head's version.
        version: Eversion,
        /// Its clones.
        snapset: SnapSet,
    },
    /// Changes a shard.
    Shard(Box<ShardChange>),
}

impl Change {
    /// What the store does.
    pub fn into_store(self, pgid: SpgId, oid: ObjectId) -> Vec<StoreOp> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Write(object) => vec![StoreOp::Write(pgid, oid, object)],
            Self::Remove => vec![StoreOp::Remove(pgid, oid)],
            Self::Clone { version, snaps } => vec![
                StoreOp::Clone(pgid, oid.clone(), version),
                StoreOp::Snaps(pgid, oid, Vec::new(), snaps),
            ],
            Self::Snaps { version, old, new } => {
                let object = if new.is_empty() {
                    StoreOp::Remove(pgid, oid.clone())
                } else {
                    StoreOp::Version(pgid, oid.clone(), version)
                };
                vec![object, StoreOp::Snaps(pgid, oid, old, new)]
            }
            Self::Set { version, snapset } => vec![StoreOp::Clones(pgid, oid, version, snapset)],
            Self::Shard(change) => vec![StoreOp::Shard(pgid, oid, change)],
        }
    }
}

fn encode_shard(change: &ShardChange, out: &mut BytesMut) {
    let f = Features::ALL;
    change.before.encode(out, f);
    change.version.encode(out, f);
    change.remove.encode(out, f);
    out.put_u32_le(change.ops.len() as u32);
    for op in &change.ops {
        let (tag, at, length, bytes) = match op {
            ShardOp::Cut { size } => (0, *size, 0, &[][..]),
            ShardOp::Write { offset, bytes } => (1, *offset, 0, &bytes[..]),
            ShardOp::Zero { offset, length } => (2, *offset, *length, &[][..]),
            ShardOp::Xor { offset, bytes } => (3, *offset, 0, &bytes[..]),
        };
        out.put_u8(tag);
        at.encode(out, f);
        length.encode(out, f);
        Bytes::copy_from_slice(bytes).encode(out, f);
    }
    let lead = change.lead.as_ref();
    lead.map(|(lead, rows)| (lead.size, lead.shards.clone(), rows.clone())).encode(out, f);
}

fn decode_shard(r: &mut Reader) -> denc::Result<ShardChange> {
    let mut change = ShardChange {
        before: r.get()?,
        version: r.get()?,
        remove: r.get()?,
        ..ShardChange::default()
    };
    for _ in 0..r.get::<u32>()? {
        let (tag, offset, length, bytes): (u8, u64, u64, Bytes) =
            (r.get()?, r.get()?, r.get()?, r.get()?);
        change.ops.push(match tag {
            0 => ShardOp::Cut { size: offset },
            1 => ShardOp::Write { offset, bytes: bytes.to_vec() },
            2 => ShardOp::Zero { offset, length },
            _ => ShardOp::Xor { offset, bytes: bytes.to_vec() },
        });
    }
    type Known = (u64, std::collections::BTreeMap<types::ShardId, Eversion>, Rows);
    type Rows = Vec<(Bytes, Option<Bytes>)>;
    let lead: Option<Known> = r.get()?;
    change.lead = lead.map(|(size, shards, rows)| (Lead { size, shards }, rows));
    Ok(change)
}

/// Does to the bytes of a shard what it was told.
pub fn apply(stored: &mut Vec<u8>, op: &ShardOp) {
    let room = |stored: &mut Vec<u8>, offset: u64, n: usize| {
        stored.resize(stored.len().max(offset as usize + n), 0);
        offset as usize..offset as usize + n
    };
    match op {
        ShardOp::Cut { size } => stored.truncate(*size as usize),
        ShardOp::Write { offset, bytes } => {
            let at = room(stored, *offset, bytes.len());
            stored[at].copy_from_slice(bytes);
        }
        ShardOp::Zero { offset, length } => {
            let end = stored.len().min((offset + length) as usize);
            stored[(*offset as usize).min(end)..end].fill(0);
        }
        ShardOp::Xor { offset, bytes } => {
            let at = room(stored, *offset, bytes.len());
            stored[at].iter_mut().zip(bytes).for_each(|(s, b)| *s ^= b);
        }
    }
}

/// What replicas get beside the log entries.
pub fn encode_payload(changes: &[(ObjectId, Change)]) -> Payload {
    let f = Features::ALL;
    let mut ops = BytesMut::new();
    let mut data = Bytes::new();
    ops.put_u8(u8::try_from(changes.len()).expect("a clone and its head"));
    for (oid, change) in changes {
        oid.encode(&mut ops, f);
        match change {
            Change::Remove => ops.put_u8(0),
            Change::Write(object) => {
                ops.put_u8(1);
                object.version.encode(&mut ops, f);
                object.omap.encode(&mut ops, f);
                object.attr.encode(&mut ops, f);
                object.whiteout.encode(&mut ops, f);
                object.snapset.encode(&mut ops, f);
                data = Bytes::copy_from_slice(&object.data);
            }
            Change::Nothing => ops.put_u8(2),
            Change::Clone { version, snaps } => {
                ops.put_u8(3);
                version.encode(&mut ops, f);
                snaps.encode(&mut ops, f);
            }
            Change::Snaps { version, old, new } => {
                ops.put_u8(4);
                version.encode(&mut ops, f);
                old.encode(&mut ops, f);
                new.encode(&mut ops, f);
            }
            Change::Set { version, snapset } => {
                ops.put_u8(5);
                version.encode(&mut ops, f);
                snapset.encode(&mut ops, f);
            }
            Change::Shard(change) => {
                ops.put_u8(6);
                encode_shard(change, &mut ops);
            }
        }
    }
    Payload { ops: ops.freeze(), data, room: 0 }
}

/// What a replica reads of it.
pub fn decode_payload(payload: Payload) -> Vec<(ObjectId, Change)> {
    if payload.ops.is_empty() {
        // Nothing changes here.
        return Vec::new();
    }
    let mut r = Reader::new(payload.ops);
    let count: u8 = r.get().expect("own bytes");
    let mut one = || -> denc::Result<(ObjectId, Change)> {
        let oid = r.get()?;
        let change = match r.get::<u8>()? {
            0 => Change::Remove,
            1 => Change::Write(Object {
                version: r.get()?,
                omap: r.get()?,
                attr: r.get()?,
                whiteout: r.get()?,
                snapset: r.get()?,
                sum: 0,
                cut: Default::default(),
                data: payload.data.to_vec(),
            }),
            3 => Change::Clone { version: r.get()?, snaps: r.get()? },
            4 => Change::Snaps { version: r.get()?, old: r.get()?, new: r.get()? },
            5 => Change::Set { version: r.get()?, snapset: r.get()? },
            6 => Change::Shard(Box::new(decode_shard(&mut r)?)),
            _ => Change::Nothing,
        };
        Ok((oid, change))
    };
    (0..count).map(|_| one().expect("own bytes")).collect()
}
