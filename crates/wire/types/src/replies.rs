//! Data in replies to object operations that stock clients read.

use crate::dump::{Dump, shown, text};
use crate::entity::{EntityAddr, EntityName, ReqId};
use crate::object::{ObjectId, ObjectLocator};
use crate::pg_log::dump_reqids;
use crate::{SnapId, Utime};
use bytes::{Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Send the request elsewhere (Ceph: `request_redirect_t`, `osd/osd_types.h`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RequestRedirect {
    /// To where.
    pub locator: ObjectLocator,
    /// To which object; empty for the same.
    pub object: Bytes,
}

impl Encode for RequestRedirect {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 1, 1, |out| {
            self.locator.encode(out, f);
            self.object.encode(out, f);
            // Instructions to OSDs, never used.
            0u32.encode(out, f);
        });
    }
}
impl Decode for RequestRedirect {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (_, mut r) = r.envelope("request_redirect_t", 1)?;
        let redirect = RequestRedirect { locator: r.get()?, object: r.get()? };
        r.get::<Bytes>()?;
        Ok(redirect)
    }
}
impl Dump for RequestRedirect {
    fn dump(&self) -> Value {
        json!({"object": text(&self.object), "locator": self.locator.dump()})
    }
}

/// An object in a listing (Ceph: `librados::ListObjectImpl`, plain).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
pub struct ListObject {
    /// Namespace.
    pub namespace: Bytes,
    /// Name.
    pub name: Bytes,
    /// Locator key, or empty.
    pub locator: Bytes,
}

/// Reply of `pgnls` (Ceph: `pg_nls_response_t`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct PgNlsResponse {
    /// Where to go on.
    pub handle: ObjectId,
    /// Objects before that.
    pub entries: Vec<ListObject>,
}

impl Dump for PgNlsResponse {
    fn dump(&self) -> Value {
        let entry = |o: &ListObject| json!({"namespace": text(&o.namespace), "object": text(&o.name), "key": text(&o.locator)});
        json!({"handle": shown(&self.handle), "entries": self.entries.iter().map(entry).collect::<Vec<_>>()})
    }
}

/// Reply of `pgls` (Ceph: `pg_ls_response_t`: a version byte, then plain).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PgLsResponse {
    /// Where to go on.
    pub handle: ObjectId,
    /// Names and locator keys of objects before that.
    pub entries: Vec<(Bytes, Bytes)>,
}

impl Encode for PgLsResponse {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        1u8.encode(out, f);
        self.handle.encode(out, f);
        self.entries.encode(out, f);
    }
}
impl Decode for PgLsResponse {
    fn decode(r: &mut Reader) -> Result<Self> {
        match r.get::<u8>()? {
            1 => Ok(PgLsResponse { handle: r.get()?, entries: r.get()? }),
            v => Err(DecodeError::Invalid { what: "pg_ls_response_t version", found: v.into() }),
        }
    }
}
impl Dump for PgLsResponse {
    fn dump(&self) -> Value {
        let entry = |(name, key): &(Bytes, Bytes)| json!({"object": text(name), "key": text(key)});
        json!({"handle": shown(&self.handle), "entries": self.entries.iter().map(entry).collect::<Vec<_>>()})
    }
}

/// One watcher (Ceph: `watch_item_t`, version 2, compat 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 1)]
pub struct WatchItem {
    /// The watcher.
    pub name: EntityName,
    /// The watcher's number for it.
    pub cookie: u64,
    /// Seconds until a silent watcher is dropped.
    pub timeout_seconds: u32,
    /// From where.
    #[denc(since = 2)]
    pub addr: EntityAddr,
}

impl Dump for WatchItem {
    fn dump(&self) -> Value {
        json!({
            "watcher": shown(self.name),
            "cookie": self.cookie as i64,
            "timeout": self.timeout_seconds,
            "addr": self.addr.dump(),
        })
    }
}

/// Reply of `list-watchers` (Ceph: `obj_list_watch_response_t`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ListWatchersResponse {
    /// The watcher.
    pub entries: Vec<WatchItem>,
}

impl Dump for ListWatchersResponse {
    fn dump(&self) -> Value {
        json!({"entries": crate::dump::list(&self.entries)})
    }
}

/// One version of an object (Ceph: `clone_info`, version 1).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CloneInfo {
    /// The clone, or [`SnapId::NOSNAP`] for the head.
    pub cloneid: SnapId,
    /// The snapshots it stands for, ascending.
    pub snaps: Vec<SnapId>,
    /// Offset and length of what the next newer version shares with it.
    pub overlap: Vec<(u64, u64)>,
    /// Size.
    pub size: u64,
}

impl Default for CloneInfo {
    fn default() -> Self {
        CloneInfo { cloneid: SnapId::NOSNAP, snaps: Vec::new(), overlap: Vec::new(), size: 0 }
    }
}

impl Dump for CloneInfo {
    fn dump(&self) -> Value {
        let cloneid = match self.cloneid {
            SnapId::NOSNAP => json!("HEAD"),
            SnapId(n) => json!(n),
        };
        let snapshots: Vec<Value> = self.snaps.iter().map(|s| json!({"id": s.0})).collect();
        let overlaps: Vec<Value> =
            self.overlap.iter().map(|(o, l)| json!({"offset": o, "length": l})).collect();
        json!({"cloneid": cloneid, "snapshots": snapshots, "overlaps": overlaps, "size": self.size})
    }
}

/// Reply of `list-snaps` (Ceph: `obj_list_snap_response_t`, version 2, compat 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 1)]
pub struct ListSnapsResponse {
    /// Versions, ascending; the head last, if it exists.
    pub clones: Vec<CloneInfo>,
    /// Newest snapshot that the object knows.
    #[denc(since = 2)]
    pub seq: SnapId,
}

impl Dump for ListSnapsResponse {
    fn dump(&self) -> Value {
        // Ceph puts the number into the array, without its name.
        let mut clones: Vec<Value> = self.clones.iter().map(Dump::dump).collect();
        clones.push(self.seq.into());
        json!({"clones": clones})
    }
}

/// How far a copy has come (Ceph: `object_copy_cursor_t`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ObjectCopyCursor {
    /// Attributes are copied.
    pub attr_complete: bool,
    /// Data before this is copied.
    pub data_offset: u64,
    /// All data is copied.
    pub data_complete: bool,
    /// Omap keys up to this are copied.
    pub omap_offset: Bytes,
    /// All omap is copied.
    pub omap_complete: bool,
}

impl ObjectCopyCursor {
    /// Nothing is copied yet.
    pub fn is_initial(&self) -> bool {
        !self.attr_complete && self.data_offset == 0 && self.omap_offset.is_empty()
    }

    /// Everything is copied.
    pub fn is_complete(&self) -> bool {
        self.attr_complete && self.data_complete && self.omap_complete
    }
}

impl Dump for ObjectCopyCursor {
    fn dump(&self) -> Value {
        json!({
            "attr_complete": u8::from(self.attr_complete),
            "data_offset": self.data_offset,
            "data_complete": u8::from(self.data_complete),
            "omap_offset": text(&self.omap_offset),
            "omap_complete": u8::from(self.omap_complete),
        })
    }
}

/// Reply of `copy-get` (Ceph: `object_copy_data_t`, version 8, compat 5).
#[derive(Clone, PartialEq, Eq, Debug, Denc)]
#[denc(version = 8, compat = 5, oldest = 5)]
pub struct ObjectCopyData {
    /// Size of the object.
    pub size: u64,
    /// Its time.
    pub mtime: Utime,
    /// Attributes, with the first part.
    pub attrs: BTreeMap<Bytes, Bytes>,
    /// Data of this part.
    pub data: Bytes,
    /// Omap of this part, an encoded map.
    pub omap_data: Bytes,
    /// Where to go on.
    pub cursor: ObjectCopyCursor,
    /// Header of the omap, with its first part.
    pub omap_header: Bytes,
    /// Snapshots of a clone.
    pub snaps: Vec<SnapId>,
    /// Newest snapshot of a head.
    pub snap_seq: SnapId,
    /// Which digests are valid: [`Self::FLAG_DATA_DIGEST`], [`Self::FLAG_OMAP_DIGEST`].
    pub flags: u32,
    /// CRC of the data.
    pub data_digest: u32,
    /// CRC of the omap.
    pub omap_digest: u32,
    /// Recent requests on the object.
    #[denc(since = 6)]
    pub reqids: Vec<(ReqId, u64)>,
    /// Truncation sequence.
    #[denc(since = 7)]
    pub truncate_seq: u64,
    /// Truncation size.
    #[denc(since = 7)]
    pub truncate_size: u64,
    /// Errors of the requests, by index.
    #[denc(since = 8)]
    pub reqid_return_codes: BTreeMap<u32, i32>,
}

impl ObjectCopyData {
    /// `data_digest` is valid.
    pub const FLAG_DATA_DIGEST: u32 = 1;
    /// `omap_digest` is valid.
    pub const FLAG_OMAP_DIGEST: u32 = 2;
}

impl Default for ObjectCopyData {
    fn default() -> Self {
        ObjectCopyData {
            size: u64::MAX,
            mtime: Utime::ZERO,
            attrs: BTreeMap::new(),
            data: Bytes::new(),
            omap_data: Bytes::new(),
            cursor: ObjectCopyCursor::default(),
            omap_header: Bytes::new(),
            snaps: Vec::new(),
            snap_seq: SnapId(0),
            flags: 0,
            data_digest: u32::MAX,
            omap_digest: u32::MAX,
            reqids: Vec::new(),
            truncate_seq: 0,
            truncate_size: 0,
            reqid_return_codes: BTreeMap::new(),
        }
    }
}

impl Dump for ObjectCopyData {
    fn dump(&self) -> Value {
        json!({
            "cursor": self.cursor.dump(),
            "size": self.size as i64,
            "mtime": shown(self.mtime),
            "attrs_size": self.attrs.len(),
            "flags": self.flags,
            "data_digest": self.data_digest,
            "omap_digest": self.omap_digest,
            "omap_data_length": self.omap_data.len(),
            "omap_header_length": self.omap_header.len(),
            "data_length": self.data.len(),
            "snaps": self.snaps,
            "reqids": dump_reqids(&self.reqids, &self.reqid_return_codes),
        })
    }
}

/// Use of the cluster (Ceph: `ceph_statfs`, `include/ceph_fs.h`, plain).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Denc)]
pub struct ClusterStatfs {
    /// KiB in all.
    pub kb: u64,
    /// KiB used.
    pub kb_used: u64,
    /// KiB free.
    pub kb_avail: u64,
    /// Objects.
    pub num_objects: u64,
}

impl Dump for ClusterStatfs {
    fn dump(&self) -> Value {
        json!({"kb": self.kb, "kb_used": self.kb_used, "kb_avail": self.kb_avail, "num_objects": self.num_objects})
    }
}
