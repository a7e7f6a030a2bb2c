//! What owners set of their buckets and objects, as attributes.

use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::{BTreeMap, BTreeSet};

/// Tags (Ceph: `RGWObjTags`, `rgw/rgw_tag.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Tags {
    /// In order.
    pub tags: BTreeMap<Bytes, Bytes>,
}

/// Methods of a [`CorsRule`] (Ceph: `RGW_CORS_*`, `rgw/rgw_cors.h`).
pub const CORS_METHODS: [(&str, u8); 6] =
    [("GET", 1), ("PUT", 2), ("HEAD", 4), ("POST", 8), ("DELETE", 16), ("COPY", 32)];
/// A rule without an age.
pub const CORS_NO_AGE: u32 = u32::MAX;

/// A rule for requests of web pages (Ceph: `RGWCORSRule`, `rgw/rgw_cors.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CorsRule {
    /// Seconds.
    pub max_age: u32,
    /// Bits of [`CORS_METHODS`].
    pub allowed_methods: u8,
    /// The rule's name.
    pub id: Bytes,
    /// Headers of requests.
    pub allowed_headers: BTreeSet<Bytes>,
    /// Where pages come from.
    pub allowed_origins: BTreeSet<Bytes>,
    /// Headers of answers.
    pub exposed_headers: Vec<Bytes>,
}

/// Rules for requests of web pages (Ceph: `RGWCORSConfiguration`, `rgw/rgw_cors.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct CorsConfiguration {
    /// In order.
    pub rules: Vec<CorsRule>,
}

/// Limits of public rights (Ceph: `PublicAccessBlockConfiguration`, `rgw/rgw_public_access.h`,
/// version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct PublicAccess {
    /// Public lists are refused.
    pub block_acls: bool,
    /// Public lists do not count.
    pub ignore_acls: bool,
    /// Public policies are refused.
    pub block_policy: bool,
    /// Public policies let in the owner's tenant alone.
    pub restrict_buckets: bool,
}

/// When something expires (Ceph: `LCExpiration`, `rgw/rgw_lc.h`, version 3). Both are texts; empty
/// for none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 3, compat = 2, oldest = 2)]
pub struct LcExpiration {
    /// Days, a decimal number.
    pub days: Bytes,
    /// A date, as ISO 8601.
    #[denc(since = 3)]
    pub date: Bytes,
}

impl LcExpiration {
    /// The days.
    pub fn number(&self) -> Option<u64> {
        std::str::from_utf8(&self.days).ok()?.trim().parse().ok()
    }
}

/// When something changes its storage class (Ceph: `LCTransition`, `rgw/rgw_lc.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LcTransition {
    /// Days, a decimal number.
    pub days: Bytes,
    /// A date, as ISO 8601.
    pub date: Bytes,
    /// The class.
    pub storage_class: Bytes,
}

/// Which objects a rule is for (Ceph: `LCFilter`, `rgw/rgw_lc.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 1)]
pub struct LcFilter {
    /// Names begin so.
    pub prefix: Bytes,
    /// They have these tags.
    #[denc(since = 2)]
    pub tags: Tags,
}

/// A rule (Ceph: `LCRule`, `rgw/rgw_lc.h`, version 6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LcRule {
    /// Its name.
    pub id: Bytes,
    /// Names begin so; of rules without a filter.
    pub prefix: Bytes,
    /// `Enabled` or `Disabled`.
    pub status: Bytes,
    /// Of current versions.
    pub expiration: LcExpiration,
    /// Of other versions.
    pub noncurrent_expiration: LcExpiration,
    /// Of uploads under way.
    pub upload_expiration: LcExpiration,
    /// Delete markers without other versions are removed.
    pub marker_expiration: bool,
    /// Which objects.
    pub filter: LcFilter,
    /// Of current versions, by storage class.
    pub transitions: BTreeMap<Bytes, LcTransition>,
    /// Of other versions, by storage class.
    pub noncurrent_transitions: BTreeMap<Bytes, LcTransition>,
}

impl Encode for LcRule {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 6, 1, |out| {
            (&self.id, &self.prefix, &self.status).encode(out, f);
            (&self.expiration, &self.noncurrent_expiration).encode(out, f);
            (&self.upload_expiration, self.marker_expiration, &self.filter).encode(out, f);
            (&self.transitions, &self.noncurrent_transitions).encode(out, f);
        });
    }
}

impl Decode for LcRule {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope("LCRule", 6)?;
        let mut rule = LcRule::default();
        (rule.id, rule.prefix, rule.status) = r.get()?;
        rule.expiration = r.get()?;
        if v >= 2 {
            rule.noncurrent_expiration = r.get()?;
        }
        if v >= 3 {
            rule.upload_expiration = r.get()?;
        }
        if v >= 4 {
            rule.marker_expiration = r.get()?;
        }
        if v >= 5 {
            rule.filter = r.get()?;
        }
        if v >= 6 {
            (rule.transitions, rule.noncurrent_transitions) = r.get()?;
        }
        Ok(rule)
    }
}

/// Rules for the life of objects (Ceph: `RGWLifecycleConfiguration`, `rgw/rgw_lc.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LifecycleConfiguration {
    /// By name, in order.
    pub rules: Vec<(Bytes, LcRule)>,
}
