//! What clients ask for.

use types::{Epoch, ObjectId, ReqId, SnapId, SpgId};

use crate::content::object_id;

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Replace the object by this value, in this many words.
    Write(u64, u32),
    /// Delete it.
    Delete,
    /// Read it.
    Read,
    /// Read it as it was at a snapshot.
    ReadAt(SnapId),
}

impl Ask {
    /// Whether it may change the object.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write(..) | Self::Delete)
    }
}

/// A client's operation.
#[derive(Clone, Copy, Debug)]
pub struct ClientOp {
    /// The client.
    pub client: usize,
    /// Number of the request; the same when resent.
    pub tid: u64,
    /// Which object; with cells, which cell of all.
    pub object: u64,
    /// Cells of an object; one if it has none.
    pub cells: u64,
    /// Which PG it is in, and the copy that leads it.
    pub pgid: SpgId,
    /// What.
    pub ask: Ask,
    /// The client's map.
    pub epoch: Epoch,
    /// Any acting OSD may answer.
    pub balanced: bool,
}

impl ClientOp {
    /// The request, as logs remember it.
    pub fn reqid(&self) -> ReqId {
        ReqId {
            name: types::EntityName::new(types::EntityType::CLIENT, self.client as i64),
            tid: self.tid,
            inc: 0,
        }
    }

    /// The object's identifier.
    pub fn oid(&self) -> ObjectId {
        object_id(self.pgid.pgid.pool, self.object / self.cells)
    }
}
