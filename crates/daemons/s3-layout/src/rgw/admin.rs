//! What administrators ask of a zone beside the [`Layout`](crate::Layout): records as they are, and
//! lists of them.

use super::Rgw;
use super::cluster::decoded;
use super::convert::text;
use super::inner::Inner;
use crate::api::{Error, Result};
use ::rgw::bucket::Pool;
use bytes::Bytes;
use client::ListCursor;
use std::rc::Rc;
use types::{ListObject, ObjectId};

/// The records of a zone. Cheap to clone.
#[derive(Clone)]
pub struct Admin(pub(super) Rc<Inner>);

/// Some names, and where to go on if there are more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// In no order.
    pub names: Vec<String>,
    /// For the next call.
    pub next: Option<String>,
}

/// Objects that are asked for at a time.
const PAGE: u64 = 1000;

impl Rgw {
    /// The zone's records.
    pub fn admin(&self) -> Admin {
        Admin(self.0.clone())
    }
}

impl Admin {
    /// Names of users, at most `max` if that is not 0, from `marker` on.
    pub async fn user_names(&self, marker: &str, max: usize) -> Result<Names> {
        // Beside a user's object is the one with its buckets.
        let is_user = |name: &str| !name.ends_with(".buckets");
        self.names(&self.0.zone.user_uid_pool, marker, max, is_user).await
    }

    /// Names of buckets, `[TENANT/]NAME`.
    pub async fn bucket_names(&self, marker: &str, max: usize) -> Result<Names> {
        let is_bucket = |name: &str| !name.starts_with('.');
        self.names(&self.0.zone.domain_root, marker, max, is_bucket).await
    }

    /// Whether a placement target is there, with its storage class.
    pub fn is_placement(&self, placement: &::rgw::bucket::Placement) -> bool {
        self.0.data_pool(placement).is_ok()
    }

    async fn names(
        &self,
        pool: &Pool,
        marker: &str,
        max: usize,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Names> {
        let io = self.0.cluster.io(pool).await?;
        let mut cursor = cursor_of(marker)?;
        let mut found = Names::default();
        while !cursor.is_end() && (max == 0 || found.names.len() < max) {
            let room = if max == 0 { PAGE } else { (max - found.names.len()) as u64 };
            let (next, objects) = io.list(&cursor, room.min(PAGE)).await?;
            let names = objects.iter().map(|o: &ListObject| text(&o.name));
            found.names.extend(names.filter(|n| wanted(n)));
            cursor = next;
        }
        found.next = (!cursor.is_end()).then(|| marker_of(&cursor));
        Ok(found)
    }
}

/// A cursor as a text that clients hand back.
fn marker_of(cursor: &ListCursor) -> String {
    let bytes = super::cluster::encoded(&cursor.0);
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn cursor_of(marker: &str) -> Result<ListCursor> {
    if marker.is_empty() {
        return Ok(ListCursor::START);
    }
    let refuse = || Error::from(s3::S3Error::argument("marker", marker, "not a marker of a list"));
    let digits = marker.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return Err(refuse());
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    let bytes = Bytes::from(bytes.ok_or_else(refuse)?);
    let object: ObjectId = decoded("a marker", &bytes).map_err(|_| refuse())?;
    Ok(ListCursor(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_return_and_others_are_refused() {
        let object = ObjectId { hash: 7, ..ObjectId::MIN };
        let cursor = ListCursor(object);
        assert_eq!(cursor_of(&marker_of(&cursor)).unwrap(), cursor);
        assert_eq!(cursor_of("").unwrap(), ListCursor::START);
        for wrong in ["0", "zz", "00ff", "\u{e4}\u{e4}", "ffffffffffff"] {
            assert!(cursor_of(wrong).is_err(), "{wrong}");
        }
    }
}
