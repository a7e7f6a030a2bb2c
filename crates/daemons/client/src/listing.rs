//! The objects of a pool, PG by PG.

use crate::error::Result;
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use messages::{Op, OpArgs};
use types::rados::OpCode;
use types::{Epoch, ListObject, ObjectId, PgNlsResponse};

/// How far a listing has come. Objects come in the order of their reversed hash; a cursor stays
/// valid when PGs split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListCursor(pub ObjectId);

impl ListCursor {
    /// Before all objects.
    pub const START: ListCursor = ListCursor(ObjectId::MIN);

    /// Whether everything was listed.
    pub fn is_end(&self) -> bool {
        self.0.is_max()
    }
}

/// The namespace that stands for all (Ceph: `LIBRADOS_ALL_NSPACES`).
pub(crate) const ALL_NAMESPACES: Bytes = Bytes::from_static(b"\x01");

/// The operation that lists a PG from `cursor` on.
pub(crate) fn list_op(cursor: &ListCursor, count: u64, epoch: Epoch) -> Op {
    let mut data = BytesMut::new();
    cursor.0.encode(&mut data, Features::ALL);
    Op::with_input(OpCode::PGNLS, OpArgs::Pgls { count, start_epoch: epoch.0 }, data.freeze())
}

/// Reads the answer: where to go on, and the objects.
pub(crate) fn decode_listing(output: Bytes) -> Result<(ListCursor, Vec<ListObject>)> {
    let response = PgNlsResponse::decode(&mut Reader::new(output))?;
    Ok((ListCursor(response.handle), response.entries))
}
