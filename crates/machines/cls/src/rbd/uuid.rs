//! Identifiers that a class gives.

use crate::context::Object;
use bytes::Bytes;

/// A new random UUID in its usual form.
pub(super) fn new_uuid(object: Object<'_>) -> Bytes {
    let mut id = [0; 16];
    object.random(&mut id);
    // Version 4, variant 1.
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    ::types::Fsid(id).to_string().into()
}
