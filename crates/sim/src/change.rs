//! What an operation does to an object, and how replicas are told.

use bytes::{BufMut, Bytes, BytesMut};
use denc::{Encode, Features, Reader};
use pg::Payload;
use types::{ObjectId, PgId};

use crate::disk::{Object, StoreOp};

/// What an operation does to an object.
#[derive(Debug)]
pub enum Change {
    /// Nothing, and it is remembered.
    Nothing,
    /// Replaces it.
    Write(Object),
    /// Removes it.
    Remove,
}

impl Change {
    /// What the store does.
    pub fn into_store(self, pgid: PgId, oid: ObjectId) -> Option<StoreOp> {
        match self {
            Self::Nothing => None,
            Self::Write(object) => Some(StoreOp::Write(pgid, oid, object)),
            Self::Remove => Some(StoreOp::Remove(pgid, oid)),
        }
    }
}

/// What replicas get beside the log entries.
pub fn encode_payload(oid: &ObjectId, change: &Change) -> Payload {
    let mut ops = BytesMut::new();
    oid.encode(&mut ops, Features::ALL);
    let mut data = Bytes::new();
    match change {
        Change::Nothing => ops.put_u8(2),
        Change::Remove => ops.put_u8(0),
        Change::Write(object) => {
            ops.put_u8(1);
            object.version.encode(&mut ops, Features::ALL);
            object.omap.encode(&mut ops, Features::ALL);
            object.attr.encode(&mut ops, Features::ALL);
            data = Bytes::copy_from_slice(&object.data);
        }
    }
    Payload { ops: ops.freeze(), data }
}

/// What a replica reads of it.
pub fn decode_payload(payload: Payload) -> (ObjectId, Change) {
    let mut r = Reader::new(payload.ops);
    let oid = r.get().expect("own bytes");
    let change = match r.get::<u8>().expect("own bytes") {
        0 => Change::Remove,
        1 => Change::Write(Object {
            version: r.get().expect("own bytes"),
            omap: r.get().expect("own bytes"),
            attr: r.get().expect("own bytes"),
            sum: 0,
            data: payload.data.to_vec(),
        }),
        _ => Change::Nothing,
    };
    (oid, change)
}
