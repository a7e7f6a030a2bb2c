//! Values of the trait as records of RGW, and back.

use super::cluster::{Attrs, decoded, encoded};
use crate::api::{AccessKey, Error, Quota, Result, Settings, User, UserId};
use ::rgw::acl::{AccessPolicy, AclGrant, AclOwner, grantee, group, perm};
use ::rgw::bucket::QuotaInfo;
use ::rgw::key;
use ::rgw::names;
use ::rgw::settings as record;
use ::rgw::user::UserInfo;
use bytes::Bytes;
use s3::checksum::{Algorithm, Checksum};
use s3::xml::config::{
    Acl, Cors, CorsRule, Grant, Grantee, Lifecycle, LifecycleRule, Ownership, Permission,
    PublicAccessBlock, TagSet, When,
};
use std::collections::BTreeMap;

pub(super) const ACL: &[u8] = b"user.rgw.acl";
pub(super) const ETAG: &[u8] = b"user.rgw.etag";
pub(super) const ID_TAG: &[u8] = b"user.rgw.idtag";
pub(super) const TAIL_TAG: &[u8] = b"user.rgw.tail_tag";
pub(super) const MANIFEST: &[u8] = b"user.rgw.manifest";
pub(super) const PG_VER: &[u8] = b"user.rgw.pg_ver";
pub(super) const SOURCE_ZONE: &[u8] = b"user.rgw.source_zone";
pub(super) const STORAGE_CLASS: &[u8] = b"user.rgw.storage_class";
pub(super) const CONTENT_TYPE: &[u8] = b"user.rgw.content_type";
pub(super) const TAGS: &[u8] = b"user.rgw.x-amz-tagging";
pub(super) const CORS: &[u8] = b"user.rgw.cors";
pub(super) const POLICY: &[u8] = b"user.rgw.iam-policy";
pub(super) const LIFECYCLE: &[u8] = b"user.rgw.lc";
pub(super) const PUBLIC_ACCESS: &[u8] = b"user.rgw.public-access";
pub(super) const COMPRESSION: &[u8] = b"user.rgw.compression";
pub(super) const CRYPT_MODE: &[u8] = b"user.rgw.crypt.mode";
pub(super) const OLH_PREFIX: &[u8] = b"user.rgw.olh.";
pub(super) const OLH_INFO: &[u8] = b"user.rgw.olh.info";
pub(super) const OLH_VER: &[u8] = b"user.rgw.olh.ver";
pub(super) const OLH_ID_TAG: &[u8] = b"user.rgw.olh.idtag";
pub(super) const OLH_PENDING: &[u8] = b"user.rgw.olh.pending.";
/// Attributes that RGW 16.2 does not have.
pub(super) const CHECKSUM: &[u8] = b"user.rgw.siphon.checksum";
pub(super) const PART_CHECKSUMS: &[u8] = b"user.rgw.siphon.part-checksums";
pub(super) const UPLOAD_CHECKSUM: &[u8] = b"user.rgw.siphon.upload-checksum";
pub(super) const UPLOAD_FATE: &[u8] = b"user.rgw.siphon.fate";
const OWNERSHIP: &[u8] = b"user.rgw.siphon.ownership";
const META_PREFIX: &str = "x-amz-meta-";
const REDIRECT: &str = "x-amz-website-redirect-location";

/// Headers with attributes of their own.
const HEADERS: [(&str, &str); 7] = [
    ("content-type", "user.rgw.content_type"),
    ("cache-control", "user.rgw.cache_control"),
    ("content-disposition", "user.rgw.content_disposition"),
    ("content-encoding", "user.rgw.content_encoding"),
    ("content-language", "user.rgw.content_language"),
    ("expires", "user.rgw.expires"),
    (REDIRECT, "user.rgw.x-amz-website-redirect-location"),
];

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Texts in attributes end with a zero byte, which some writers leave out.
pub(super) fn attr_text(value: &[u8]) -> String {
    text(value.strip_suffix(b"\0").unwrap_or(value))
}

pub(super) fn text_attr(value: &str) -> Bytes {
    [value.as_bytes(), b"\0"].concat().into()
}

pub(super) fn user_key(id: &UserId) -> key::User {
    key::User { tenant: id.tenant.clone().into(), ns: Bytes::new(), id: id.id.clone().into() }
}

pub(super) fn user_id(user: &key::User) -> UserId {
    UserId { tenant: text(&user.tenant), id: text(&user.id) }
}

/// Reads `[TENANT$]ID` as ACLs have it.
fn acl_user(id: &str) -> key::User {
    key::User::parse(&Bytes::copy_from_slice(id.as_bytes()))
}

const PERMISSIONS: [(Permission, u32); 4] = [
    (Permission::Read, perm::READ),
    (Permission::Write, perm::WRITE),
    (Permission::ReadAcp, perm::READ_ACP),
    (Permission::WriteAcp, perm::WRITE_ACP),
];

pub(super) fn acl_record(acl: &Acl) -> Result<AccessPolicy> {
    let owner = AclOwner { id: acl_user(&acl.owner), display_name: acl.owner_name.clone().into() };
    let mut policy = AccessPolicy { owner, ..AccessPolicy::default() };
    for grant in &acl.grants {
        let permission = match grant.permission {
            Permission::FullControl => perm::FULL_CONTROL,
            p => PERMISSIONS.iter().find(|(of, _)| *of == p).map_or(0, |(_, bit)| *bit),
        };
        let mut stored = AclGrant { permission, ..AclGrant::default() };
        match &grant.grantee {
            Grantee::User { id, display_name } => {
                stored.kind = grantee::USER;
                stored.id = acl_user(id);
                stored.name = display_name.clone().into();
            }
            Grantee::AllUsers => (stored.kind, stored.group) = (grantee::GROUP, group::ALL_USERS),
            Grantee::AuthenticatedUsers => {
                (stored.kind, stored.group) = (grantee::GROUP, group::AUTHENTICATED_USERS);
            }
            Grantee::Email(_) => {
                return Err(Error::Internal("a grant to an address was not resolved".into()));
            }
        }
        policy.list.add(stored);
    }
    Ok(policy)
}

pub(super) fn acl_value(policy: &AccessPolicy) -> Acl {
    let mut acl = Acl {
        owner: text(&policy.owner.id.text()),
        owner_name: text(&policy.owner.display_name),
        grants: Vec::new(),
    };
    for (_, grant) in &policy.list.grants {
        let to = match (grant.kind, grant.group) {
            (grantee::USER, _) => {
                Grantee::User { id: text(&grant.id.text()), display_name: text(&grant.name) }
            }
            (grantee::EMAIL, _) => Grantee::Email(text(&grant.email)),
            (grantee::GROUP, group::ALL_USERS) => Grantee::AllUsers,
            (grantee::GROUP, group::AUTHENTICATED_USERS) => Grantee::AuthenticatedUsers,
            // Sites of Swift have no word in S3.
            _ => continue,
        };
        let mut add = |permission| acl.grants.push(Grant { grantee: to.clone(), permission });
        if grant.permission & perm::FULL_CONTROL == perm::FULL_CONTROL {
            add(Permission::FullControl);
            continue;
        }
        for (permission, bit) in PERMISSIONS {
            if grant.permission & bit != 0 {
                add(permission);
            }
        }
    }
    acl
}

pub(super) fn acl_attr(acl: &Acl) -> Result<Bytes> {
    Ok(encoded(&acl_record(acl)?))
}

/// The ACL in attributes; an empty one, which grants nothing, if there is none.
pub(super) fn acl_of(attrs: &Attrs) -> Result<Acl> {
    match attrs.get(ACL) {
        None => Ok(Acl::default()),
        Some(bytes) => Ok(acl_value(&decoded("an ACL", bytes)?)),
    }
}

pub(super) fn tags_attr(tags: &TagSet) -> Bytes {
    let tags = tags.0.iter().map(|(k, v)| (k.clone().into(), v.clone().into())).collect();
    encoded(&record::Tags { tags })
}

fn tags_value(tags: &record::Tags) -> Vec<(String, String)> {
    tags.tags.iter().map(|(k, v)| (text(k), text(v))).collect()
}

pub(super) fn tags_of(attrs: &Attrs) -> Result<Option<TagSet>> {
    let Some(bytes) = attrs.get(TAGS) else { return Ok(None) };
    Ok(Some(TagSet(tags_value(&decoded("tags", bytes)?))))
}

pub(super) fn cors_attr(cors: &Cors) -> Bytes {
    let texts = |list: &[String]| -> Vec<Bytes> { list.iter().map(|t| t.clone().into()).collect() };
    let rule = |r: &CorsRule| record::CorsRule {
        max_age: r
            .max_age_seconds
            .map_or(record::CORS_NO_AGE, |s| u32::try_from(s).unwrap_or(record::CORS_NO_AGE - 1)),
        allowed_methods: record::CORS_METHODS
            .iter()
            .filter(|(name, _)| r.allowed_methods.iter().any(|m| m == name))
            .fold(0, |bits, (_, bit)| bits | bit),
        id: r.id.clone().unwrap_or_default().into(),
        allowed_headers: texts(&r.allowed_headers).into_iter().collect(),
        allowed_origins: texts(&r.allowed_origins).into_iter().collect(),
        exposed_headers: texts(&r.expose_headers),
    };
    encoded(&record::CorsConfiguration { rules: cors.0.iter().map(rule).collect() })
}

fn cors_value(cors: &record::CorsConfiguration) -> Cors {
    let rule = |r: &record::CorsRule| CorsRule {
        id: Some(text(&r.id)).filter(|id| !id.is_empty()),
        allowed_origins: r.allowed_origins.iter().map(|t| text(t)).collect(),
        allowed_methods: record::CORS_METHODS
            .iter()
            .filter(|(_, bit)| r.allowed_methods & bit != 0)
            .map(|(name, _)| (*name).to_owned())
            .collect(),
        allowed_headers: r.allowed_headers.iter().map(|t| text(t)).collect(),
        expose_headers: r.exposed_headers.iter().map(|t| text(t)).collect(),
        max_age_seconds: Some(r.max_age.into()).filter(|_| r.max_age != record::CORS_NO_AGE),
    };
    Cors(cors.rules.iter().map(rule).collect())
}

/// Rules that RGW 16.2 has no form for are refused: its workers would remove too much.
pub(super) fn lifecycle_attr(life: &Lifecycle) -> Result<Bytes> {
    let days = |n: Option<u64>| record::LcExpiration {
        days: n.map(|n| n.to_string()).unwrap_or_default().into(),
        date: Bytes::new(),
    };
    let mut rules = Vec::new();
    for rule in &life.0 {
        if rule.larger_than.is_some() || rule.smaller_than.is_some() {
            return Err(s3::S3Error::new(
                s3::ErrorCode::NotImplemented,
                "Sizes in filters of lifecycle rules are not implemented",
            )
            .into());
        }
        if rule.noncurrent_keep.is_some() {
            return Err(s3::S3Error::new(
                s3::ErrorCode::NotImplemented,
                "NewerNoncurrentVersions is not implemented",
            )
            .into());
        }
        let id: Bytes = rule.id.clone().into();
        let prefix: Bytes = rule.prefix.clone().into();
        let tags = rule.tags.iter().map(|(k, v)| (k.clone().into(), v.clone().into())).collect();
        let stored = record::LcRule {
            id: id.clone(),
            prefix: if rule.old_prefix { prefix.clone() } else { Bytes::new() },
            status: Bytes::from_static(if rule.enabled { b"Enabled" } else { b"Disabled" }),
            expiration: match rule.expiration {
                None => record::LcExpiration::default(),
                Some(When::Days(n)) => days(Some(n)),
                Some(When::Date(seconds)) => record::LcExpiration {
                    days: Bytes::new(),
                    date: s3::date::iso8601(seconds.saturating_mul(1_000_000_000)).into(),
                },
            },
            noncurrent_expiration: days(rule.noncurrent_days),
            upload_expiration: days(rule.abort_upload_days),
            marker_expiration: rule.expired_delete_marker,
            filter: record::LcFilter {
                prefix: if rule.old_prefix { Bytes::new() } else { prefix },
                tags: record::Tags { tags },
            },
            ..record::LcRule::default()
        };
        let at = rules.partition_point(|(k, _): &(Bytes, record::LcRule)| *k <= id);
        rules.insert(at, (id, stored));
    }
    Ok(encoded(&record::LifecycleConfiguration { rules }))
}

pub(super) fn lifecycle_value(life: &record::LifecycleConfiguration) -> Lifecycle {
    let rule = |(id, r): &(Bytes, record::LcRule)| {
        let old_prefix = !r.prefix.is_empty();
        let date = |d: &Bytes| s3::date::parse_iso8601(&text(d));
        LifecycleRule {
            id: text(id),
            enabled: &r.status[..] == b"Enabled",
            prefix: text(if old_prefix { &r.prefix } else { &r.filter.prefix }),
            tags: tags_value(&r.filter.tags),
            larger_than: None,
            smaller_than: None,
            expiration: (r.expiration.number().map(When::Days))
                .or_else(|| date(&r.expiration.date).map(When::Date)),
            expired_delete_marker: r.marker_expiration,
            noncurrent_days: r.noncurrent_expiration.number(),
            noncurrent_keep: None,
            abort_upload_days: r.upload_expiration.number(),
            old_prefix,
        }
    };
    Lifecycle(life.rules.iter().map(rule).collect())
}

pub(super) fn public_access_attr(b: &PublicAccessBlock) -> Bytes {
    encoded(&record::PublicAccess {
        block_acls: b.block_public_acls,
        ignore_acls: b.ignore_public_acls,
        block_policy: b.block_public_policy,
        restrict_buckets: b.restrict_public_buckets,
    })
}

pub(super) fn settings(attrs: &Attrs) -> Result<Settings> {
    let public = match attrs.get(PUBLIC_ACCESS) {
        None => None,
        Some(bytes) => {
            let b: record::PublicAccess = decoded("a public access block", bytes)?;
            Some(PublicAccessBlock {
                block_public_acls: b.block_acls,
                ignore_public_acls: b.ignore_acls,
                block_public_policy: b.block_policy,
                restrict_public_buckets: b.restrict_buckets,
            })
        }
    };
    Ok(Settings {
        acl: acl_of(attrs)?,
        policy: attrs.get(POLICY).filter(|p| !p.is_empty()).cloned(),
        cors: match attrs.get(CORS) {
            None => None,
            Some(bytes) => Some(cors_value(&decoded("CORS rules", bytes)?)),
        },
        lifecycle: match attrs.get(LIFECYCLE) {
            None => None,
            Some(bytes) => Some(lifecycle_value(&decoded("a lifecycle", bytes)?)),
        },
        tags: tags_of(attrs)?,
        public_access: public,
        ownership: attrs.get(OWNERSHIP).and_then(|o| Ownership::of_name(&attr_text(o)).ok()),
    })
}

pub(super) fn ownership_attr(o: Ownership) -> (&'static [u8], Bytes) {
    (OWNERSHIP, text_attr(o.as_str()))
}

pub(super) const OWNERSHIP_ATTR: &[u8] = OWNERSHIP;

pub(super) fn header_attrs(headers: &BTreeMap<String, String>) -> Attrs {
    let mut attrs = Attrs::new();
    for (name, value) in headers {
        let attr = match HEADERS.iter().find(|(header, _)| header == name) {
            Some((_, attr)) => (*attr).to_owned(),
            None if name.starts_with(META_PREFIX) => format!("user.rgw.{name}"),
            None => continue,
        };
        attrs.insert(attr.into(), text_attr(value));
    }
    attrs
}

pub(super) fn headers_of(attrs: &Attrs) -> BTreeMap<String, String> {
    let mut headers = BTreeMap::new();
    for (attr, value) in attrs {
        let Some(rest) = attr.strip_prefix(b"user.rgw.") else { continue };
        let known = HEADERS.iter().find(|(_, a)| a.as_bytes() == &attr[..]);
        let name = match known {
            Some((header, _)) => (*header).to_owned(),
            None if rest.starts_with(META_PREFIX.as_bytes()) => text(rest),
            None => continue,
        };
        headers.insert(name, attr_text(value));
    }
    headers
}

pub(super) fn checksum_attr(sum: &Checksum) -> Bytes {
    text_attr(&format!("{} {}", sum.algorithm.name(), sum.text()))
}

pub(super) fn checksum_of(attrs: &Attrs) -> Option<Checksum> {
    let stored = attr_text(attrs.get(CHECKSUM)?);
    let (algorithm, value) = stored.split_once(' ')?;
    Checksum::parse(Algorithm::parse(algorithm).ok()?, value).ok()
}

/// The most bytes of an attribute with checksums of parts: a head has room for other attributes.
const PART_CHECKSUMS_MAX: usize = 32 << 10;

/// The checksums of an object's parts: the algorithm, and the values one after the other. `None` if
/// there are too many of them.
pub(super) fn part_checksums_attr<'a>(
    algorithm: Algorithm,
    parts: impl Iterator<Item = &'a Checksum>,
) -> Option<Bytes> {
    let mut attr = algorithm.name().as_bytes().to_vec();
    attr.push(b' ');
    for part in parts {
        attr.extend_from_slice(&part.value);
    }
    (attr.len() <= PART_CHECKSUMS_MAX).then(|| attr.into())
}

/// Reads [`part_checksums_attr`]; empty if there are none.
pub(super) fn part_checksums_of(attrs: &Attrs) -> Vec<Checksum> {
    let read = || {
        let stored = attrs.get(PART_CHECKSUMS)?;
        let at = stored.iter().position(|b| *b == b' ')?;
        let algorithm = Algorithm::parse(std::str::from_utf8(&stored[..at]).ok()?).ok()?;
        let values = stored[at + 1..].chunks_exact(algorithm.bytes());
        Some(values.map(|v| Checksum { algorithm, value: v.to_vec(), parts: None }).collect())
    };
    read().unwrap_or_default()
}

pub(super) fn quota_record(q: &Quota) -> QuotaInfo {
    let limit = |n: Option<u64>| n.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
    QuotaInfo {
        max_size: limit(q.max_bytes),
        max_objects: limit(q.max_objects),
        enabled: q.enabled,
        check_on_raw: false,
    }
}

pub(super) fn quota_value(q: &QuotaInfo) -> Quota {
    Quota {
        enabled: q.enabled,
        max_bytes: u64::try_from(q.max_size).ok(),
        max_objects: u64::try_from(q.max_objects).ok(),
    }
}

/// Numbers of buckets: RGW says 0 for any number, and a negative one for none.
pub(super) fn max_buckets_record(max: Option<u32>) -> i32 {
    match max {
        None => 0,
        Some(0) => -1,
        Some(n) => i32::try_from(n).unwrap_or(i32::MAX),
    }
}

pub(super) fn keys_record(keys: &[AccessKey]) -> BTreeMap<Bytes, ::rgw::user::AccessKey> {
    let key = |k: &AccessKey| {
        let id: Bytes = k.id.clone().into();
        let (key, subuser) = (k.secret.clone().into(), k.subuser.clone().into());
        (id.clone(), ::rgw::user::AccessKey { id, key, subuser })
    };
    keys.iter().map(key).collect()
}

const CAP_READ: u32 = 1;
const CAP_WRITE: u32 = 2;

pub(super) fn user_record(user: &User) -> UserInfo {
    let mask = |text: &str| {
        let has = |word: &str| text == "*" || text.split([',', ' ']).any(|w| w == word);
        (if has("read") { CAP_READ } else { 0 }) | (if has("write") { CAP_WRITE } else { 0 })
    };
    let caps = user.caps.iter().map(|(what, how)| (what.clone().into(), mask(how))).collect();
    UserInfo {
        user_id: user_key(&user.id),
        display_name: user.display_name.clone().into(),
        email: user.email.to_lowercase().into(),
        access_keys: keys_record(&user.keys),
        suspended: user.suspended.into(),
        max_buckets: max_buckets_record(user.max_buckets),
        caps: ::rgw::user::UserCaps { caps },
        admin: user.admin.into(),
        system: user.system.into(),
        bucket_quota: quota_record(&user.bucket_quota),
        user_quota: quota_record(&user.user_quota),
        ..UserInfo::default()
    }
}

pub(super) fn user_value(info: &UserInfo) -> User {
    let key = |k: &::rgw::user::AccessKey| AccessKey {
        id: text(&k.id),
        secret: text(&k.key),
        subuser: text(&k.subuser),
    };
    let cap = |(what, mask): (&Bytes, &u32)| {
        let how = match mask & (CAP_READ | CAP_WRITE) {
            CAP_READ => "read",
            CAP_WRITE => "write",
            0 => "",
            _ => "*",
        };
        (text(what), how.to_owned())
    };
    User {
        id: user_id(&info.user_id),
        display_name: text(&info.display_name),
        email: text(&info.email),
        keys: info.access_keys.values().map(key).collect(),
        suspended: info.suspended != 0,
        max_buckets: match info.max_buckets {
            0 => None,
            n => Some(u32::try_from(n).unwrap_or(0)),
        },
        admin: info.admin != 0,
        system: info.system != 0,
        caps: info.caps.caps.iter().map(cap).collect(),
        bucket_quota: quota_value(&info.bucket_quota),
        user_quota: quota_value(&info.user_quota),
    }
}

/// A version's id as clients see it.
pub(super) fn shown_version(instance: &[u8]) -> String {
    if instance.is_empty() { text(names::NULL_VERSION) } else { text(instance) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_parts_return() {
        let sum = |b: u8| Checksum { algorithm: Algorithm::Sha1, value: vec![b; 20], parts: None };
        let sums = [sum(1), sum(b' '), sum(0)];
        let attr = part_checksums_attr(Algorithm::Sha1, sums.iter()).unwrap();
        let attrs = |v: Bytes| Attrs::from([(Bytes::from_static(PART_CHECKSUMS), v)]);
        assert_eq!(part_checksums_of(&attrs(attr)), sums);
        assert!(
            part_checksums_attr(Algorithm::Sha1, std::iter::repeat_n(&sums[0], 2000)).is_none()
        );
        for odd in [&b""[..], b"SHA1", b"MD5 x", b"\xff x", b"SHA1 short"] {
            assert!(part_checksums_of(&attrs(Bytes::from_static(odd))).is_empty());
        }
        assert!(part_checksums_of(&Attrs::new()).is_empty());
    }

    #[test]
    fn acls_return() {
        let user = Grantee::User { id: "t$u".into(), display_name: "U".into() };
        let grant = |grantee: &Grantee, permission| Grant { grantee: grantee.clone(), permission };
        let acl = Acl {
            owner: "t$u".into(),
            owner_name: "U".into(),
            grants: vec![
                grant(&Grantee::AllUsers, Permission::Read),
                grant(&Grantee::AuthenticatedUsers, Permission::WriteAcp),
                grant(&user, Permission::FullControl),
            ],
        };
        let stored = acl_record(&acl).unwrap();
        assert_eq!(acl_value(&stored), acl);
        assert_eq!(stored.list.users[&b"t$u"[..]], 15);
        let mut bad = acl;
        bad.grants.push(grant(&Grantee::Email("a@b".into()), Permission::Read));
        assert!(acl_record(&bad).is_err());
    }

    #[test]
    fn settings_return() {
        let life = Lifecycle(vec![LifecycleRule {
            id: "r".into(),
            enabled: true,
            prefix: "tmp/".into(),
            expiration: Some(When::Days(3)),
            abort_upload_days: Some(1),
            ..LifecycleRule::default()
        }]);
        let cors = Cors(vec![CorsRule {
            id: None,
            allowed_origins: vec!["*".into()],
            allowed_methods: vec!["GET".into(), "PUT".into()],
            allowed_headers: vec!["x-*".into()],
            expose_headers: vec!["e".into()],
            max_age_seconds: Some(10),
        }]);
        let tags = TagSet(vec![("a".into(), "1".into())]);
        let attrs = Attrs::from([
            (Bytes::from_static(LIFECYCLE), lifecycle_attr(&life).unwrap()),
            (Bytes::from_static(CORS), cors_attr(&cors)),
            (Bytes::from_static(TAGS), tags_attr(&tags)),
        ]);
        let back = settings(&attrs).unwrap();
        assert_eq!((back.lifecycle, back.cors, back.tags), (Some(life), Some(cors), Some(tags)));
        let sized = LifecycleRule { larger_than: Some(1), ..LifecycleRule::default() };
        let code = lifecycle_attr(&Lifecycle(vec![sized])).unwrap_err().code();
        assert_eq!(code, s3::ErrorCode::NotImplemented);
    }

    #[test]
    fn headers_and_checksums_return() {
        let headers = BTreeMap::from(
            [("content-type", "text/plain"), ("x-amz-meta-color", "blue"), ("expires", "0")]
                .map(|(k, v)| (k.to_owned(), v.to_owned())),
        );
        let mut attrs = header_attrs(&headers);
        assert_eq!(attrs[&b"user.rgw.x-amz-meta-color"[..]], "blue\0");
        let sum = Checksum { algorithm: Algorithm::Crc32, value: vec![1, 2, 3, 4], parts: Some(2) };
        attrs.insert(Bytes::from_static(CHECKSUM), checksum_attr(&sum));
        attrs.insert(Bytes::from_static(ETAG), "abc".into());
        assert_eq!(headers_of(&attrs), headers);
        assert_eq!(checksum_of(&attrs), Some(sum));
    }

    #[test]
    fn users_return() {
        let user = User {
            id: UserId { tenant: "t".into(), id: "u".into() },
            display_name: "U".into(),
            keys: vec![AccessKey { id: "A".into(), secret: "S".into(), subuser: String::new() }],
            max_buckets: Some(7),
            caps: vec![("users".into(), "*".into())],
            user_quota: Quota { enabled: true, max_bytes: Some(5), max_objects: None },
            ..User::default()
        };
        assert_eq!(user_value(&user_record(&user)), user);
        for max in [None, Some(0), Some(3)] {
            let user = User { max_buckets: max, ..User::default() };
            assert_eq!(user_value(&user_record(&user)).max_buckets, max);
        }
    }
}
