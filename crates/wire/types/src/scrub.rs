//! What scrubs find, as clients ask for it (Ceph: `include/rados/rados_types.hpp`,
//! `common/scrub_types.h`).

use crate::{ObjectId, ObjectInfo, ObjectLocator, OsdId, ReqId, SnapId};
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use std::collections::BTreeMap;

/// What is wrong with one copy (Ceph: `librados::err_t`).
pub mod shard_error {
    /// The object is not there.
    pub const MISSING: u64 = 1 << 1;
    /// Not even its size can be found out.
    pub const STAT: u64 = 1 << 2;
    /// Its data or omap cannot be read.
    pub const READ: u64 = 1 << 3;
    /// The data is not what the object's info says.
    pub const DATA_DIGEST_INFO: u64 = 1 << 9;
    /// The omap is not what the object's info says.
    pub const OMAP_DIGEST_INFO: u64 = 1 << 10;
    /// The size is not what the chosen info says.
    pub const SIZE_INFO: u64 = 1 << 11;
    /// There is no object info.
    pub const INFO_MISSING: u64 = 1 << 14;
    /// The object info cannot be decoded.
    pub const INFO_CORRUPTED: u64 = 1 << 15;
    /// A head has no snap set.
    pub const SNAPSET_MISSING: u64 = 1 << 16;
    /// The snap set cannot be decoded.
    pub const SNAPSET_CORRUPTED: u64 = 1 << 17;
    /// The size is not what the copy's own info says.
    pub const OBJ_SIZE_INFO: u64 = 1 << 18;
    /// Errors that only reading everything finds.
    pub const DEEP: u64 = READ | DATA_DIGEST_INFO | OMAP_DIGEST_INFO;
}

/// In what copies of an object differ (Ceph: `librados::obj_err_t`).
pub mod object_error {
    /// Object infos.
    pub const INFO: u64 = 1 << 1;
    /// Data.
    pub const DATA_DIGEST: u64 = 1 << 4;
    /// Omap rows or header.
    pub const OMAP_DIGEST: u64 = 1 << 5;
    /// Sizes.
    pub const SIZE: u64 = 1 << 6;
    /// Values of attributes.
    pub const ATTR_VALUE: u64 = 1 << 7;
    /// Names of attributes.
    pub const ATTR_NAME: u64 = 1 << 8;
    /// Snap sets.
    pub const SNAPSET: u64 = 1 << 9;
    /// A copy is larger than objects may be.
    pub const SIZE_TOO_LARGE: u64 = 1 << 11;
    /// Errors that only reading everything finds.
    pub const DEEP: u64 = DATA_DIGEST | OMAP_DIGEST;
}

/// What is wrong with an object and its clones (Ceph: `librados::inconsistent_snapset_t`).
pub mod snapset_error {
    /// A head has no snap set.
    pub const SNAPSET_MISSING: u64 = 1 << 0;
    /// The snap set cannot be decoded.
    pub const SNAPSET_CORRUPTED: u64 = 1 << 1;
    /// A clone that the snap set lists is not there.
    pub const CLONE_MISSING: u64 = 1 << 2;
    /// There are clones without a head.
    pub const HEADLESS_CLONE: u64 = 1 << 5;
    /// A clone's size is not what the snap set says.
    pub const SIZE_MISMATCH: u64 = 1 << 6;
    /// There are clones that the snap set does not list.
    pub const EXTRA_CLONES: u64 = 1 << 9;
}

/// Which object (Ceph: `librados::object_id_t`).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ScrubObjectId {
    /// Name.
    pub name: Bytes,
    /// Namespace.
    pub namespace: Bytes,
    /// Locator key.
    pub locator: Bytes,
    /// Snapshot.
    pub snap: SnapId,
}

impl ScrubObjectId {
    /// Of this object.
    pub fn of(oid: &ObjectId) -> Self {
        Self {
            name: oid.name.clone(),
            namespace: oid.namespace.clone(),
            locator: oid.key.clone(),
            snap: oid.snap,
        }
    }
}

/// One copy of an inconsistent object (Ceph: `librados::shard_info_t`, struct_v 3). Of a copy that
/// is not there only errors and `primary` are told.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ShardInfo {
    /// See [`shard_error`].
    pub errors: u64,
    /// It is the primary's.
    pub primary: bool,
    /// Attributes.
    pub attrs: BTreeMap<Bytes, Bytes>,
    /// Size of the data.
    pub size: u64,
    /// Checksum of the omap.
    pub omap_digest: Option<u32>,
    /// Checksum of the data.
    pub data_digest: Option<u32>,
    /// Its object info is the one that the others were compared with.
    pub selected_oi: bool,
}

impl Encode for ShardInfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 3, 3, |out| {
            self.errors.encode(out, f);
            self.primary.encode(out, f);
            if self.errors & shard_error::MISSING == 0 {
                self.attrs.encode(out, f);
                self.size.encode(out, f);
                for digest in [self.omap_digest, self.data_digest] {
                    digest.is_some().encode(out, f);
                    digest.unwrap_or(0).encode(out, f);
                }
                self.selected_oi.encode(out, f);
            }
        });
    }
}

impl Decode for ShardInfo {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (_, mut r) = r.envelope("shard_info_t", 3)?;
        let mut s = Self { errors: r.get()?, primary: r.get()?, ..Self::default() };
        if s.errors & shard_error::MISSING == 0 {
            s.attrs = r.get()?;
            s.size = r.get()?;
            let mut digest = || Ok::<_, DecodeError>((r.get::<bool>()?, r.get::<u32>()?));
            let (omap, data) = (digest()?, digest()?);
            s.omap_digest = omap.0.then_some(omap.1);
            s.data_digest = data.0.then_some(data.1);
            s.selected_oi = r.get()?;
        }
        Ok(s)
    }
}

/// The OSD and shard of a copy (Ceph: `librados::osd_shard_t`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OsdShard {
    /// The OSD.
    pub osd: OsdId,
    /// The shard; -1 in replicated pools.
    pub shard: i8,
}

/// An object whose copies differ, or are damaged (Ceph: `inconsistent_obj_wrapper`, struct_v 2).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct InconsistentObject {
    /// In what copies differ; see [`object_error`].
    pub errors: u64,
    /// Which object.
    pub object: ScrubObjectId,
    /// Its version for users.
    pub version: u64,
    /// All copies, good ones too.
    pub shards: BTreeMap<OsdShard, ShardInfo>,
    /// The errors of all copies together.
    pub union_errors: u64,
}

/// An object whose clones are not what its snap set says (Ceph: `inconsistent_snapset_wrapper`,
/// struct_v 2).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 1)]
pub struct InconsistentSnapset {
    /// See [`snapset_error`].
    pub errors: u64,
    /// The head, or a clone without one.
    pub object: ScrubObjectId,
    /// Clones that should not be there.
    pub clones: Vec<SnapId>,
    /// Clones that should.
    pub missing: Vec<SnapId>,
    /// The snap set.
    #[denc(since = 2)]
    pub snapset: Bytes,
}

/// Asks for what the last scrub found (Ceph: `scrub_ls_arg_t`).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ScrubLsArg {
    /// The interval that an earlier answer named, or 0.
    pub interval: u32,
    /// Other than 0: snap sets, not objects.
    pub get_snapsets: u32,
    /// Name of the object after which to begin.
    pub after_name: Bytes,
    /// Its namespace.
    pub after_namespace: Bytes,
    /// Its snapshot.
    pub after_snap: SnapId,
    /// How many, at most.
    pub max_return: u64,
}

/// The answer (Ceph: `scrub_ls_result_t`).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ScrubLsResult {
    /// First epoch of the interval in which they were found.
    pub interval: u32,
    /// Encoded [`InconsistentObject`]s or [`InconsistentSnapset`]s.
    pub vals: Vec<Bytes>,
}

/// An object's info as clients decode it (Ceph: `object_info_t`, struct_v 17, compat 8). Our own
/// form stays on the servers.
pub fn object_info_for_clients(oid: &ObjectId, oi: &ObjectInfo) -> Bytes {
    const DATA_DIGEST: u32 = 1 << 4;
    const OMAP_DIGEST: u32 = 1 << 5;
    let f = Features::ALL;
    let mut bytes = BytesMut::new();
    envelope(&mut bytes, 17, 8, |out| {
        oid.encode(out, f);
        ObjectLocator::from(oid).encode(out, f);
        // The category, an empty string since Hammer.
        0u32.encode(out, f);
        oi.version.encode(out, f);
        oi.prior_version.encode(out, f);
        oi.last_reqid.encode(out, f);
        oi.size.encode(out, f);
        oi.mtime.encode(out, f);
        if oid.is_head() {
            ReqId::default().encode(out, f);
        } else {
            0u32.encode(out, f);
        }
        oi.truncate_seq.encode(out, f);
        oi.truncate_size.encode(out, f);
        oi.has(crate::object_info::flag::LOST).encode(out, f);
        // Watchers, as before Argonaut; there is another operation for them.
        0u32.encode(out, f);
        // The user's version in the form of an `eversion_t` of epoch 0.
        oi.user_version.encode(out, f);
        0u32.encode(out, f);
        // TMAP was never used here.
        out.put_u8(0);
        0u32.encode(out, f);
        let mut flags = oi.flags;
        flags |= if oi.data_digest.is_some() { DATA_DIGEST } else { 0 };
        flags |= if oi.omap_digest.is_some() { OMAP_DIGEST } else { 0 };
        flags.encode(out, f);
        oi.local_mtime.encode(out, f);
        oi.data_digest.unwrap_or(u32::MAX).encode(out, f);
        oi.omap_digest.unwrap_or(u32::MAX).encode(out, f);
        oi.expected_object_size.encode(out, f);
        oi.expected_write_size.encode(out, f);
        oi.alloc_hint_flags.encode(out, f);
    });
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_scrubs_find_comes_back() {
        let f = Features::ALL;
        let here = ShardInfo {
            size: 7,
            omap_digest: Some(3),
            selected_oi: true,
            attrs: [(Bytes::from_static(b"_"), Bytes::new())].into(),
            ..ShardInfo::default()
        };
        let gone =
            ShardInfo { errors: shard_error::MISSING, primary: true, ..ShardInfo::default() };
        let shards = [
            (OsdShard { osd: OsdId(0), shard: -1 }, here),
            (OsdShard { osd: OsdId(2), shard: -1 }, gone),
        ]
        .into();
        let object = ScrubObjectId {
            name: Bytes::from_static(b"o"),
            snap: SnapId::NOSNAP,
            ..ScrubObjectId::default()
        };
        let found = InconsistentObject {
            object: object.clone(),
            version: 4,
            shards,
            union_errors: shard_error::MISSING,
            ..InconsistentObject::default()
        };
        let bytes = found.to_bytes(f);
        assert_eq!(InconsistentObject::from_bytes(&bytes).as_ref(), Ok(&found));
        for n in 0..bytes.len() {
            assert!(InconsistentObject::from_bytes(&bytes.slice(..n)).is_err());
        }
        let snaps = InconsistentSnapset {
            errors: snapset_error::CLONE_MISSING,
            object,
            missing: vec![SnapId(3)],
            ..InconsistentSnapset::default()
        };
        assert_eq!(InconsistentSnapset::from_bytes(&snaps.to_bytes(f)), Ok(snaps));
        let arg = ScrubLsArg {
            interval: 3,
            after_name: Bytes::from_static(b"a"),
            max_return: 5,
            ..ScrubLsArg::default()
        };
        assert_eq!(ScrubLsArg::from_bytes(&arg.to_bytes(f)), Ok(arg));
        let result = ScrubLsResult { interval: 3, vals: vec![bytes] };
        assert_eq!(ScrubLsResult::from_bytes(&result.to_bytes(f)), Ok(result));
    }

    #[test]
    fn infos_are_made_for_clients() {
        let oid = ObjectId::with_hash(
            crate::PoolId(1),
            Bytes::new(),
            Bytes::from_static(b"o"),
            Bytes::new(),
            SnapId::NOSNAP,
            7,
        );
        let plain = object_info_for_clients(&oid, &ObjectInfo::default());
        assert_eq!(&plain[..2], &[17, 8]);
        let clone = object_info_for_clients(&oid.at(SnapId(2)), &ObjectInfo::default());
        assert!(clone.len() < plain.len(), "a clone has no place for a lock");
    }
}
