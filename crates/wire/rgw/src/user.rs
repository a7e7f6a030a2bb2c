//! Users of a gateway.

use crate::bucket::{Placement, QuotaInfo};
use crate::key::User;
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};

/// How many buckets a user may have that was made without a number (Ceph:
/// `RGW_DEFAULT_MAX_BUCKETS`).
pub const DEFAULT_MAX_BUCKETS: i32 = 1000;
/// All operations (Ceph: `RGW_OP_TYPE_ALL`).
pub const OP_MASK_ALL: u32 = 7;

/// A key (Ceph: `RGWAccessKey`, `rgw/rgw_common.h`, version 2).
#[derive(Clone, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct AccessKey {
    /// The access key.
    pub id: Bytes,
    /// The secret key.
    pub key: Bytes,
    /// The subuser that it belongs to; empty for the user's own.
    pub subuser: Bytes,
}

/// Logs must not have secrets.
impl std::fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AccessKey({:?}, ...)", self.id)
    }
}

/// A subuser (Ceph: `RGWSubUser`, `rgw/rgw_common.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct SubUser {
    /// The name after the colon.
    pub name: Bytes,
    /// Its permissions.
    pub perm_mask: u32,
}

/// Rights in administration (Ceph: `RGWUserCaps`, `rgw/rgw_common.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct UserCaps {
    /// 1 to read, 2 to write, by what.
    pub caps: BTreeMap<Bytes, u32>,
}

/// A user (Ceph: `RGWUserInfo`, `rgw/rgw_common.h`, version 22). Its object has the id before it,
/// as a text (`RGWUID`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserInfo {
    /// The id.
    pub user_id: User,
    /// The name in documents.
    pub display_name: Bytes,
    /// The email address; empty for none.
    pub email: Bytes,
    /// Keys for S3.
    pub access_keys: BTreeMap<Bytes, AccessKey>,
    /// Keys for Swift.
    pub swift_keys: BTreeMap<Bytes, AccessKey>,
    /// Subusers.
    pub subusers: BTreeMap<Bytes, SubUser>,
    /// Not 0: all requests are refused.
    pub suspended: u8,
    /// The most buckets; 0 for any number, negative for none.
    pub max_buckets: i32,
    /// Kinds of operations that are allowed.
    pub op_mask: u32,
    /// Rights in administration.
    pub caps: UserCaps,
    /// Not 0: may everything.
    pub admin: u8,
    /// Not 0: a zone's own user.
    pub system: u8,
    /// Where new buckets go; empty for the zonegroup's default.
    pub default_placement: Placement,
    /// Tags of placement targets that are allowed.
    pub placement_tags: Vec<Bytes>,
    /// The quota of each bucket that has none of its own.
    pub bucket_quota: QuotaInfo,
    /// Keys of temporary URLs.
    pub temp_url_keys: BTreeMap<i32, Bytes>,
    /// The quota of all buckets together.
    pub user_quota: QuotaInfo,
    /// Where the user comes from: 1 for made here.
    pub kind: u32,
    /// One-time passwords.
    pub mfa_ids: BTreeSet<Bytes>,
    /// The role that is assumed.
    pub assumed_role_arn: Bytes,
    /// What releases after 16.2 add, with their version.
    pub later: Option<(u8, Bytes)>,
}

impl Default for UserInfo {
    fn default() -> Self {
        UserInfo {
            user_id: User::default(),
            display_name: Bytes::new(),
            email: Bytes::new(),
            access_keys: BTreeMap::new(),
            swift_keys: BTreeMap::new(),
            subusers: BTreeMap::new(),
            suspended: 0,
            max_buckets: DEFAULT_MAX_BUCKETS,
            op_mask: OP_MASK_ALL,
            caps: UserCaps::default(),
            admin: 0,
            system: 0,
            default_placement: Placement::default(),
            placement_tags: Vec::new(),
            bucket_quota: QuotaInfo::default(),
            temp_url_keys: BTreeMap::new(),
            user_quota: QuotaInfo::default(),
            kind: 1,
            mfa_ids: BTreeSet::new(),
            assumed_role_arn: Bytes::new(),
            later: None,
        }
    }
}

const VERSION: u8 = 22;

impl Encode for UserInfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let version = self.later.as_ref().map_or(VERSION, |(v, _)| *v);
        denc::envelope(out, version, 9, |out| {
            // A number of the user, once.
            0u64.encode(out, f);
            // Once a user had one key of each kind.
            let first = |keys: &BTreeMap<Bytes, AccessKey>, out: &mut BytesMut| {
                let key = keys.values().next().cloned().unwrap_or_default();
                (key.id, key.key).encode(out, f);
            };
            first(&self.access_keys, out);
            (&self.display_name, &self.email).encode(out, f);
            first(&self.swift_keys, out);
            (&self.user_id.id, &self.access_keys).encode(out, f);
            (&self.subusers, self.suspended).encode(out, f);
            (&self.swift_keys, self.max_buckets).encode(out, f);
            (&self.caps, self.op_mask).encode(out, f);
            (self.system, &self.default_placement, &self.placement_tags).encode(out, f);
            (self.bucket_quota, &self.temp_url_keys, self.user_quota).encode(out, f);
            (&self.user_id.tenant, self.admin).encode(out, f);
            (self.kind, &self.mfa_ids).encode(out, f);
            (&self.assumed_role_arn, &self.user_id.ns).encode(out, f);
            if let Some((_, rest)) = &self.later {
                out.extend_from_slice(rest);
            }
        });
    }
}

impl Decode for UserInfo {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "RGWUserInfo";
        let (v, mut r) = r.envelope(WHAT, VERSION)?;
        if v < 17 {
            return Err(denc::DecodeError::TooOld { what: WHAT, struct_v: v, oldest: 17 });
        }
        let _: (u64, Bytes, Bytes) = r.get()?;
        let mut u = UserInfo::default();
        (u.display_name, u.email) = r.get()?;
        let _: (Bytes, Bytes) = r.get()?;
        (u.user_id.id, u.access_keys) = r.get()?;
        (u.subusers, u.suspended) = r.get()?;
        (u.swift_keys, u.max_buckets) = r.get()?;
        (u.caps, u.op_mask) = r.get()?;
        (u.system, u.default_placement, u.placement_tags) = r.get()?;
        (u.bucket_quota, u.temp_url_keys, u.user_quota) = r.get()?;
        u.user_id.tenant = r.get()?;
        if v >= 18 {
            u.admin = r.get()?;
        }
        u.kind = if v >= 19 { r.get()? } else { 0 };
        if v >= 20 {
            u.mfa_ids = r.get()?;
        }
        if v >= 21 {
            u.assumed_role_arn = r.get()?;
        }
        if v >= 22 {
            u.user_id.ns = r.get()?;
        }
        if v > VERSION {
            u.later = Some((v, r.rest()));
        }
        Ok(u)
    }
}
