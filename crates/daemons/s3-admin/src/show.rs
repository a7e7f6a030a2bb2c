//! Records as Ceph's gateway shows them in JSON (16.2 `src/rgw/rgw_user.cc`, `dump_user_info`;
//! `src/rgw/rgw_json_enc.cc`; `src/rgw/rgw_bucket.cc`, `bucket_stats`; `src/rgw/rgw_usage.cc`).

use crate::caps;
use crate::quota;
use bytes::Bytes;
use rgw::acl::{AccessPolicy, AclGrant, perm};
use rgw::bucket::{IndexType, Pool};
use rgw::header::{CategoryStats, DirHeader};
use rgw::settings::Tags;
use rgw::usage::{UsageData, UsageLogEntry, UserBucket};
use rgw::user::{OP_MASK_ALL, UserCaps, UserInfo};
use s3_layout::rgw::{BucketRecords, Totals, totals};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use types::Utime;

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Words for the bits of a mask, in this order, each bit once.
fn words(mut mask: u32, table: &[(u32, &'static str)]) -> String {
    let mut found = Vec::new();
    for (bits, word) in table {
        if mask != 0 && mask & bits == *bits {
            found.push(*word);
            mask &= !bits;
        }
    }
    if found.is_empty() { "<none>".to_owned() } else { found.join(", ") }
}

const PERMISSIONS: [(u32, &str); 6] = [
    (perm::FULL_CONTROL, "full-control"),
    (perm::READ | perm::WRITE, "read-write"),
    (perm::READ, "read"),
    (perm::WRITE, "write"),
    (perm::READ_ACP, "read-acp"),
    (perm::WRITE_ACP, "write-acp"),
];
const OPERATIONS: [(u32, &str); 3] = [(1, "read"), (2, "write"), (4, "delete")];

/// The subusers of a user.
pub(crate) fn subusers(user: &UserInfo) -> Value {
    let id = text(&user.user_id.text());
    let one = |s: &rgw::user::SubUser| {
        json!({
            "id": format!("{id}:{}", text(&s.name)),
            "permissions": words(s.perm_mask, &PERMISSIONS),
        })
    };
    user.subusers.values().map(one).collect()
}

fn key_owner(user: &UserInfo, subuser: &Bytes) -> String {
    let id = text(&user.user_id.text());
    if subuser.is_empty() { id } else { format!("{id}:{}", text(subuser)) }
}

/// The keys for S3.
pub(crate) fn keys(user: &UserInfo) -> Value {
    let one = |k: &rgw::user::AccessKey| {
        json!({
            "user": key_owner(user, &k.subuser),
            "access_key": text(&k.id),
            "secret_key": text(&k.key),
        })
    };
    user.access_keys.values().map(one).collect()
}

/// The keys for Swift.
pub(crate) fn swift_keys(user: &UserInfo) -> Value {
    let one = |k: &rgw::user::AccessKey| json!({"user": key_owner(user, &k.subuser), "secret_key": text(&k.key)});
    user.swift_keys.values().map(one).collect()
}

/// Capabilities.
pub(crate) fn user_caps(caps: &UserCaps) -> Value {
    let one =
        |(kind, bits): (&Bytes, &u32)| json!({"type": text(kind), "perm": caps::shown(*bits)});
    caps.caps.iter().map(one).collect()
}

/// A user.
pub(crate) fn user(u: &UserInfo) -> Value {
    let temp_urls = u.temp_url_keys.iter().map(|(n, key)| json!({"key": n, "val": text(key)}));
    let kind = match u.kind {
        1 => "rgw",
        2 => "keystone",
        3 => "ldap",
        _ => "none",
    };
    json!({
        "tenant": text(&u.user_id.tenant),
        "user_id": text(&u.user_id.id),
        "display_name": text(&u.display_name),
        "email": text(&u.email),
        "suspended": u.suspended,
        "max_buckets": u.max_buckets,
        "subusers": subusers(u),
        "keys": keys(u),
        "swift_keys": swift_keys(u),
        "caps": user_caps(&u.caps),
        "op_mask": words(u.op_mask & OP_MASK_ALL, &OPERATIONS),
        // As texts: so 16.2 writes these two.
        "system": (u.system != 0).to_string(),
        "admin": (u.admin != 0).to_string(),
        "default_placement": text(&u.default_placement.name),
        "default_storage_class": text(&u.default_placement.storage_class),
        "placement_tags": u.placement_tags.iter().map(|t| text(t)).collect::<Vec<_>>(),
        "bucket_quota": quota::show(&u.bucket_quota),
        "user_quota": quota::show(&u.user_quota),
        "temp_url_keys": temp_urls.collect::<Vec<_>>(),
        "type": kind,
        "mfa_ids": u.mfa_ids.iter().map(|t| text(t)).collect::<Vec<_>>(),
    })
}

/// Totals (Ceph: `RGWStorageStats::dump`).
pub(crate) fn stats(s: &CategoryStats) -> Value {
    let kib = |bytes: u64| bytes.saturating_add(1023) / 1024;
    json!({
        "size": s.total_size,
        "size_actual": s.total_size_rounded,
        "size_utilized": s.actual_size,
        "size_kb": kib(s.total_size),
        "size_kb_actual": kib(s.total_size_rounded),
        "size_kb_utilized": kib(s.actual_size),
        "num_objects": s.num_entries,
    })
}

/// Totals by category.
pub(crate) fn usage_of(all: &Totals) -> Value {
    let name = |category: &u8| match category {
        0 => "rgw.none",
        1 => "rgw.main",
        2 => "rgw.shadow",
        3 => "rgw.multimeta",
        _ => "unknown",
    };
    Value::Object(all.iter().map(|(c, s)| (name(c).to_owned(), stats(s))).collect())
}

/// A value of each shard: `0#1,1#5`.
fn by_shard(headers: &[DirHeader], value: impl Fn(&DirHeader) -> String) -> String {
    let one = |(shard, header)| format!("{shard}#{}", value(header));
    headers.iter().enumerate().map(one).collect::<Vec<_>>().join(",")
}

/// A bucket with its totals.
pub(crate) fn bucket(found: &BucketRecords) -> Value {
    let (info, headers) = (&found.instance, &found.headers);
    let pools = info.bucket.explicit.clone().unwrap_or_default();
    let pool = |p: &Pool| text(&p.text());
    let index_type = match info.layout.current_index.layout.kind {
        IndexType::INDEXLESS => "Indexless",
        _ => "Normal",
    };
    let mut shown = json!({
        "bucket": text(&info.bucket.name),
        "num_shards": info.num_shards(),
        "tenant": text(&info.bucket.tenant),
        "zonegroup": text(&info.zonegroup),
        "placement_rule": placement(info),
        "explicit_placement": {
            "data_pool": pool(&pools.data),
            "data_extra_pool": pool(&pools.data_extra),
            "index_pool": pool(&pools.index),
        },
        "id": text(&info.bucket.bucket_id),
        "marker": text(&info.bucket.marker),
        "index_type": index_type,
        "owner": text(&info.owner.text()),
        "ver": by_shard(headers, |h| h.ver.to_string()),
        "master_ver": by_shard(headers, |h| h.master_ver.to_string()),
        "mtime": found.modified.gmtime(),
        "creation_time": info.creation_time.gmtime(),
        "max_marker": by_shard(headers, |h| text(&h.max_marker)),
        "usage": usage_of(&totals(headers)),
        "bucket_quota": quota::show(&info.quota),
    });
    if let (Some(attr), Some(fields)) =
        (found.attrs.get(&b"user.rgw.x-amz-tagging"[..]), shown.as_object_mut())
        && let Ok(tags) = denc::Reader::new(attr.clone()).get::<Tags>()
    {
        let set: Map<String, Value> =
            tags.tags.iter().map(|(k, v)| (text(k), text(v).into())).collect();
        fields.insert("tagset".to_owned(), Value::Object(set));
    }
    shown
}

fn placement(info: &rgw::bucket::BucketInstance) -> String {
    let rule = &info.placement;
    if rule.storage_class.is_empty() || rule.storage_class == "STANDARD" {
        return text(&rule.name);
    }
    format!("{}/{}", text(&rule.name), text(&rule.storage_class))
}

fn grant(g: &AclGrant) -> Value {
    json!({
        "type": {"type": g.kind},
        "id": text(&g.id.text()),
        "email": text(&g.email),
        "permission": {"flags": g.permission},
        "name": text(&g.name),
        "group": g.group,
        "url_spec": text(&g.url),
    })
}

/// An ACL.
pub(crate) fn policy(p: &AccessPolicy) -> Value {
    let users = p.list.users.iter().map(|(u, bits)| json!({"user": text(u), "acl": bits}));
    let groups = p.list.groups.iter().map(|(g, bits)| json!({"group": g, "acl": bits}));
    let grants = p.list.grants.iter().map(|(id, g)| json!({"id": text(id), "grant": grant(g)}));
    json!({
        "acl": {
            "acl_user_map": users.collect::<Vec<_>>(),
            "acl_group_map": groups.collect::<Vec<_>>(),
            "grant_map": grants.collect::<Vec<_>>(),
        },
        "owner": {
            "id": text(&p.owner.id.text()),
            "display_name": text(&p.owner.display_name),
        },
    })
}

fn counters(data: &UsageData) -> Map<String, Value> {
    let fields = [
        ("bytes_sent", data.bytes_sent),
        ("bytes_received", data.bytes_received),
        ("ops", data.ops),
        ("successful_ops", data.successful_ops),
    ];
    fields.into_iter().map(|(name, n)| (name.to_owned(), n.into())).collect()
}

/// Which categories of the usage log are shown; none stands for all.
pub(crate) struct Categories(pub Vec<String>);

impl Categories {
    fn of<'a>(&self, entry: &'a UsageLogEntry) -> impl Iterator<Item = (&'a Bytes, &'a UsageData)> {
        let wanted = |name: &Bytes| self.0.is_empty() || self.0.iter().any(|w| *w == text(name));
        let found: Vec<_> = entry.usage_map.iter().filter(|(name, _)| wanted(name)).collect();
        found.into_iter()
    }

    fn show(&self, entry: &UsageLogEntry) -> Value {
        let one = |(name, data): (&Bytes, &UsageData)| {
            let mut fields = Map::from_iter([("category".to_owned(), text(name).into())]);
            fields.extend(counters(data));
            Value::Object(fields)
        };
        self.of(entry).map(one).collect()
    }
}

/// The usage log.
pub(crate) fn usage(
    log: &BTreeMap<UserBucket, UsageLogEntry>,
    entries: bool,
    summary: bool,
    categories: &Categories,
) -> Value {
    let mut by_user: Vec<(String, Vec<Value>, UsageLogEntry)> = Vec::new();
    for (key, entry) in log {
        let user = text(&key.user);
        if by_user.last().is_none_or(|(last, _, _)| *last != user) {
            by_user.push((user, Vec::new(), UsageLogEntry::default()));
        }
        let Some((_, buckets, all)) = by_user.last_mut() else { continue };
        all.aggregate(entry);
        let mut one = json!({
            "bucket": text(&key.bucket),
            "time": Utime::new(u32::try_from(entry.epoch).unwrap_or(u32::MAX), 0).gmtime(),
            "epoch": entry.epoch,
            "owner": text(&entry.owner.text()),
        });
        if let Some(fields) = one.as_object_mut() {
            let payer = text(&entry.payer.text());
            if !payer.is_empty() && payer != text(&entry.owner.text()) {
                fields.insert("payer".to_owned(), payer.into());
            }
            fields.insert("categories".to_owned(), categories.show(entry));
        }
        buckets.push(one);
    }
    let mut shown = Map::new();
    let summed = |(user, _, all): &(String, Vec<Value>, UsageLogEntry)| {
        let mut total = UsageData::default();
        for (_, data) in categories.of(all) {
            total.bytes_sent += data.bytes_sent;
            total.bytes_received += data.bytes_received;
            total.ops += data.ops;
            total.successful_ops += data.successful_ops;
        }
        let total = counters(&total);
        json!({"user": user, "categories": categories.show(all), "total": total})
    };
    let sums: Value = by_user.iter().map(summed).collect();
    if entries {
        let users =
            by_user.into_iter().map(|(user, buckets, _)| json!({"user": user, "buckets": buckets}));
        shown.insert("entries".to_owned(), users.collect());
    }
    if summary {
        shown.insert("summary".to_owned(), sums);
    }
    Value::Object(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_words() {
        assert_eq!(words(0, &PERMISSIONS), "<none>");
        assert_eq!(words(perm::FULL_CONTROL, &PERMISSIONS), "full-control");
        assert_eq!(words(perm::READ | perm::READ_ACP, &PERMISSIONS), "read, read-acp");
        assert_eq!(words(7, &OPERATIONS), "read, write, delete");
    }

    #[test]
    fn usage_is_summed_by_user_and_category() {
        let entry = |ops| UsageLogEntry {
            owner: rgw::key::User { id: "ann".into(), ..Default::default() },
            usage_map: BTreeMap::from([
                ("get_obj".into(), UsageData { ops, ..UsageData::default() }),
                ("put_obj".into(), UsageData { ops: 1, ..UsageData::default() }),
            ]),
            ..UsageLogEntry::default()
        };
        let key = |user: &'static str, bucket: &'static str| UserBucket {
            user: user.into(),
            bucket: bucket.into(),
        };
        let log = BTreeMap::from([
            (key("ann", "a"), entry(3)),
            (key("ann", "b"), entry(4)),
            (key("bob", "c"), entry(5)),
        ]);
        let shown = usage(&log, true, true, &Categories(vec!["get_obj".to_owned()]));
        assert_eq!(shown["entries"][0]["buckets"][1]["bucket"], "b");
        assert_eq!(shown["summary"][0]["total"]["ops"], 7);
        assert_eq!(shown["summary"][1]["categories"].as_array().map(Vec::len), Some(1));
        assert_eq!(usage(&log, false, false, &Categories(Vec::new())), json!({}));
    }
}
