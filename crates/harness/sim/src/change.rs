//! What an operation does to an object, and how replicas are told.

use bytes::{BufMut, Bytes, BytesMut};
use denc::{Encode, Features, Reader};
use pg::Payload;
use types::{Eversion, ObjectId, SnapId, SnapSet, SpgId};

use crate::disk::StoreOp;
use crate::object::Object;

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
        }
    }
    Payload { ops: ops.freeze(), data }
}

/// What a replica reads of it.
pub fn decode_payload(payload: Payload) -> Vec<(ObjectId, Change)> {
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
                data: payload.data.to_vec(),
            }),
            3 => Change::Clone { version: r.get()?, snaps: r.get()? },
            4 => Change::Snaps { version: r.get()?, old: r.get()?, new: r.get()? },
            5 => Change::Set { version: r.get()?, snapset: r.get()? },
            _ => Change::Nothing,
        };
        Ok((oid, change))
    };
    (0..count).map(|_| one().expect("own bytes")).collect()
}
