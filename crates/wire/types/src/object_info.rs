//! What an OSD keeps with each object.

use crate::dump::{Dump, shown};
use crate::entity::{EntityName, ReqId};
use crate::{Eversion, Utime};
use denc_derive::Denc;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A watch on an object that outlives the OSD (Ceph: `watch_info_t`). Keyed by watcher and cookie
/// in [`ObjectInfo::watchers`].
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1)]
pub struct WatchInfo {
    /// The watcher's number for it.
    pub cookie: u64,
    /// Seconds until a silent watcher is dropped.
    pub timeout_seconds: u32,
    /// From where.
    pub addr: crate::EntityAddr,
}

/// Facts about one version of an object (the role of Ceph's `object_info_t`).
///
/// This is our own, smaller form: it never leaves the servers, and the object's name is its key in
/// the store already. Fields are added at the end under a new version.
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1)]
pub struct ObjectInfo {
    /// Version of the last change.
    pub version: Eversion,
    /// Version of the change before.
    pub prior_version: Eversion,
    /// Version that clients are told.
    pub user_version: u64,
    /// The last request that changed it.
    pub last_reqid: ReqId,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change, from the client.
    pub mtime: Utime,
    /// Time of the last change, from the OSD.
    pub local_mtime: Utime,
    /// See [`flag`].
    pub flags: u32,
    /// Sequence of the last truncation that a client told.
    pub truncate_seq: u64,
    /// Its size.
    pub truncate_size: u64,
    /// Watchers.
    pub watchers: BTreeMap<(u64, EntityName), WatchInfo>,
    /// Expected size of the object, from a hint.
    pub expected_object_size: u64,
    /// Expected size of writes, from a hint.
    pub expected_write_size: u64,
    /// How it will be used, from a hint.
    pub alloc_hint_flags: u32,
    /// CRC-32C of the data, if known.
    pub data_digest: Option<u32>,
    /// CRC-32C of the omap, if known.
    pub omap_digest: Option<u32>,
}

/// Flags of an object (Ceph: `object_info_t::FLAG_*`).
pub mod flag {
    /// Reads fail: the newest version is lost.
    pub const LOST: u32 = 1;
    /// Only says that the object is deleted.
    pub const WHITEOUT: u32 = 1 << 1;
    /// Not flushed.
    pub const DIRTY: u32 = 1 << 2;
    /// There is omap.
    pub const OMAP: u32 = 1 << 3;
    /// Pinned in a cache tier.
    pub const CACHE_PIN: u32 = 1 << 6;
}

impl ObjectInfo {
    /// Whether all bits of `flags` are set.
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }
}

impl Dump for ObjectInfo {
    fn dump(&self) -> Value {
        let watchers: Vec<Value> = self
            .watchers
            .iter()
            .map(|((_, name), w)| {
                json!({
                    "watcher": shown(name),
                    "cookie": w.cookie,
                    "timeout_seconds": w.timeout_seconds,
                    "addr": w.addr.dump(),
                })
            })
            .collect();
        json!({
            "version": shown(self.version),
            "prior_version": shown(self.prior_version),
            "last_reqid": shown(self.last_reqid),
            "user_version": self.user_version,
            "size": self.size,
            "mtime": shown(self.mtime),
            "local_mtime": shown(self.local_mtime),
            "flags": self.flags,
            "truncate_seq": self.truncate_seq,
            "truncate_size": self.truncate_size,
            "data_digest": self.data_digest,
            "omap_digest": self.omap_digest,
            "expected_object_size": self.expected_object_size,
            "expected_write_size": self.expected_write_size,
            "alloc_hint_flags": self.alloc_hint_flags,
            "watchers": watchers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use denc::{Decode, Encode, Features};

    #[test]
    fn comes_back() {
        let watch = WatchInfo { cookie: 3, timeout_seconds: 30, ..Default::default() };
        let info = ObjectInfo {
            size: 7,
            flags: flag::OMAP | flag::DIRTY,
            watchers: [((3, EntityName::client(9)), watch)].into(),
            data_digest: Some(5),
            ..Default::default()
        };
        assert_eq!(ObjectInfo::from_bytes(&info.to_bytes(Features::ALL)).unwrap(), info);
        assert!(info.has(flag::OMAP) && !info.has(flag::OMAP | flag::LOST));
    }
}
