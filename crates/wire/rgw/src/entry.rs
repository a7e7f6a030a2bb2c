//! Entries of a bucket's index.

use crate::key::ObjKey;
use crate::{open_enum, packed};
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use types::Utime;

open_enum! {
    /// How far a change is (Ceph: `RGWPendingState`).
    PendingState(u8) {
        /// Announced.
        PENDING_MODIFY = 0,
        /// Done.
        COMPLETE = 1,
        /// Not known.
        UNKNOWN = 2,
    }
}

open_enum! {
    /// What a change does (Ceph: `RGWModifyOp`).
    ModifyOp(u8) {
        /// The object is written.
        ADD = 0,
        /// The object is removed.
        DEL = 1,
        /// The change was given up.
        CANCEL = 2,
        /// Not known.
        UNKNOWN = 3,
        /// A version becomes the current one.
        LINK_OLH = 4,
        /// A delete marker becomes the current version.
        LINK_OLH_DM = 5,
        /// A version is removed.
        UNLINK_INSTANCE = 6,
        /// The log of changes stops.
        SYNCSTOP = 7,
        /// The log of changes begins again.
        RESYNC = 8,
    }
}

open_enum! {
    /// What an entry counts as (Ceph: `RGWObjCategory`).
    ObjCategory(u8) {
        /// Delete markers.
        NONE = 0,
        /// Objects.
        MAIN = 1,
        /// Parts of multipart uploads.
        SHADOW = 2,
        /// Multipart uploads.
        MULTI_META = 3,
    }
}

/// A change that was announced and not yet finished (Ceph: `rgw_bucket_pending_info`,
/// `cls/rgw/cls_rgw_types.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct PendingInfo {
    /// How far it is.
    pub state: PendingState,
    /// When it was announced.
    pub timestamp: Utime,
    /// A [`ModifyOp`].
    pub op: ModifyOp,
}

/// Announced changes by tag, in order of tag and of coming: a tag can be there twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingMap(Vec<(Bytes, PendingInfo)>);

impl PendingMap {
    /// Adds a change after those that have its tag already.
    pub fn insert(&mut self, tag: Bytes, info: PendingInfo) {
        let at = self.0.partition_point(|(t, _)| *t <= tag);
        self.0.insert(at, (tag, info));
    }

    /// Removes the first change with a tag; `false` if there is none.
    pub fn remove(&mut self, tag: &[u8]) -> bool {
        let at = self.0.partition_point(|(t, _)| &t[..] < tag);
        let found = self.0.get(at).is_some_and(|(t, _)| t == tag);
        if found {
            self.0.remove(at);
        }
        found
    }

    /// Keeps the changes that pass.
    pub fn retain(&mut self, mut keep: impl FnMut(&PendingInfo) -> bool) {
        self.0.retain(|(_, info)| keep(info));
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The changes.
    pub fn iter(&self) -> impl Iterator<Item = &(Bytes, PendingInfo)> {
        self.0.iter()
    }
}

impl Encode for PendingMap {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.0.encode(out, f);
    }
}

impl Decode for PendingMap {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let mut changes: Vec<(Bytes, PendingInfo)> = r.get()?;
        changes.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(PendingMap(changes))
    }
}

/// What an entry says of its object (Ceph: `rgw_bucket_dir_entry_meta`, `cls/rgw/cls_rgw_types.h`,
/// version 7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 7, compat = 3, oldest = 4)]
pub struct EntryMeta {
    /// What it counts as.
    pub category: ObjCategory,
    /// Bytes that it takes.
    pub size: u64,
    /// When it was written.
    pub mtime: Utime,
    /// Its ETag.
    pub etag: Bytes,
    /// The user that it belongs to.
    pub owner: Bytes,
    /// That user's name.
    pub owner_display_name: Bytes,
    /// Its media type.
    pub content_type: Bytes,
    /// Bytes that clients see, where the object is compressed or encrypted.
    pub accounted_size: u64,
    /// A field of the gateway's own.
    #[denc(since = 5)]
    pub user_data: Bytes,
    /// Its storage class; empty for the standard one.
    #[denc(since = 6)]
    pub storage_class: Bytes,
    /// Bytes can be appended.
    #[denc(since = 7)]
    pub appendable: bool,
}

/// The version of a head object that an entry tells of (Ceph: `rgw_bucket_entry_ver`,
/// `cls/rgw/cls_rgw_types.h`, version 1).
#[derive(Clone, Debug, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct EntryVer {
    /// The pool of the head object, -1 if not known.
    #[denc(with = "packed::signed")]
    pub pool: i64,
    /// The head object's user version.
    #[denc(with = "packed::unsigned")]
    pub epoch: u64,
}

impl Default for EntryVer {
    fn default() -> Self {
        EntryVer { pool: -1, epoch: 0 }
    }
}

/// Flags of [`DirEntry`].
pub mod flag {
    /// A version of an object.
    pub const VER: u16 = 0x1;
    /// The current version.
    pub const CURRENT: u16 = 0x2;
    /// A delete marker.
    pub const DELETE_MARKER: u16 = 0x4;
    /// Stands where an object without versions would: the object has versions.
    pub const VER_MARKER: u16 = 0x8;
    /// Not an entry but a common prefix, in listings with a delimiter.
    pub const COMMON_PREFIX: u16 = 0x8000;
}

/// An entry (Ceph: `rgw_bucket_dir_entry`, `cls/rgw/cls_rgw_types.h`, version 8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirEntry {
    /// The object.
    pub key: ObjKey,
    /// The version of its head object.
    pub ver: EntryVer,
    /// What its head object is placed by, if not by its name.
    pub locator: Bytes,
    /// It is there: not only announced, and not only kept for changes under way.
    pub exists: bool,
    /// What is known of it.
    pub meta: EntryMeta,
    /// Changes under way.
    pub pending_map: PendingMap,
    /// The header's version when the entry was written.
    pub index_ver: u64,
    /// The tag of the change that wrote it.
    pub tag: Bytes,
    /// See [`flag`].
    pub flags: u16,
    /// Orders the versions of an object: the newest has the greatest.
    pub versioned_epoch: u64,
}

impl DirEntry {
    const WHAT: &'static str = "rgw_bucket_dir_entry";

    /// Has any of these flags.
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    /// The current version, or an object without versions.
    pub fn is_current(&self) -> bool {
        !self.has(flag::VER) || self.has(flag::CURRENT)
    }

    /// A listing without versions shows it.
    pub fn is_visible(&self) -> bool {
        self.is_current() && !self.has(flag::DELETE_MARKER)
    }
}

impl Encode for DirEntry {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 8, 3, |out| {
            self.key.name.encode(out, f);
            // The version's pool came later, and then the whole of it once more.
            self.ver.epoch.encode(out, f);
            self.exists.encode(out, f);
            self.meta.encode(out, f);
            self.pending_map.encode(out, f);
            self.locator.encode(out, f);
            self.ver.encode(out, f);
            packed::put(out, self.index_ver);
            self.tag.encode(out, f);
            self.key.instance.encode(out, f);
            self.flags.encode(out, f);
            self.versioned_epoch.encode(out, f);
        });
    }
}

impl Decode for DirEntry {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope(Self::WHAT, 8)?;
        if v < 3 {
            return Err(denc::DecodeError::TooOld { what: Self::WHAT, struct_v: v, oldest: 3 });
        }
        let mut e = DirEntry::default();
        e.key.name = r.get()?;
        e.ver.epoch = r.get()?;
        e.exists = r.get()?;
        e.meta = r.get()?;
        e.pending_map = r.get()?;
        e.locator = r.get()?;
        if v >= 4 {
            e.ver = r.get()?;
        }
        if v >= 5 {
            e.index_ver = packed::get(&mut r)?;
            e.tag = r.get()?;
        }
        if v >= 6 {
            e.key.instance = r.get()?;
        }
        if v >= 7 {
            e.flags = r.get()?;
        }
        if v >= 8 {
            e.versioned_epoch = r.get()?;
        }
        Ok(e)
    }
}
