//! An increment as JSON (Ceph: `OSDMap::Incremental::dump`).

use super::{OsdMap, OsdMapIncremental, state_names};
use crate::dump::{Dump, float, shown};
use crate::entity::EntityAddrVec;
use crate::{AddrType, IntervalSet, OsdId, PoolId};
use bytes::Bytes;
use denc::Decode;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Pairs of a map as objects with two named fields.
fn pairs<K, V: Copy>(
    map: &BTreeMap<K, V>,
    name: &str,
    value: &str,
    show: impl Fn(V) -> Value,
) -> Value
where
    K: Copy + Into<Value>,
{
    let pair = |(k, v): (&K, &V)| {
        let mut fields = Map::new();
        fields.insert(name.to_owned(), (*k).into());
        fields.insert(value.to_owned(), show(*v));
        Value::Object(fields)
    };
    Value::Array(map.iter().map(pair).collect())
}

/// A value that must be decoded to be shown, if there is one.
fn decoded<T: Decode + Dump>(bytes: &Bytes) -> Option<Value> {
    let show =
        || T::from_bytes(bytes).map_or_else(|e| json!({"error": e.to_string()}), |v| v.dump());
    (!bytes.is_empty()).then(show)
}

fn snaps(pools: &BTreeMap<PoolId, IntervalSet>) -> Value {
    let pool = |(pool, set): (&PoolId, &IntervalSet)| {
        let ranges: Vec<Value> =
            set.iter().map(|(begin, len)| json!({"begin": begin, "length": len})).collect();
        json!({"pool": pool, "snaps": ranges})
    };
    Value::Array(pools.iter().map(pool).collect())
}

fn up_osd(inc: &OsdMapIncremental, osd: &OsdId, addrs: &EntityAddrVec) -> Value {
    let mut map = Map::new();
    map.insert("osd".into(), (*osd).into());
    map.insert("public_addr".into(), shown(addrs.of_type(AddrType::LEGACY)));
    map.insert("public_addrs".into(), addrs.dump());
    if let Some(addrs) = inc.new_up_cluster.get(osd) {
        map.insert("cluster_addr".into(), shown(addrs.of_type(AddrType::LEGACY)));
        map.insert("cluster_addrs".into(), addrs.dump());
    }
    if let Some(addrs) = inc.new_hb_back_up.get(osd) {
        map.insert("heartbeat_back_addrs".into(), addrs.dump());
    }
    if let Some(addrs) = inc.new_hb_front_up.get(osd) {
        map.insert("heartbeat_front_addrs".into(), addrs.dump());
    }
    Value::Object(map)
}

/// The fields of a dumped object behind a first one.
fn with_first(name: &str, first: impl Into<Value>, rest: Value) -> Value {
    let mut map = Map::new();
    map.insert(name.to_owned(), first.into());
    if let Value::Object(rest) = rest {
        map.extend(rest);
    }
    Value::Object(map)
}

impl Dump for OsdMapIncremental {
    fn dump(&self) -> Value {
        let mut map = Map::new();
        let mut put = |name: &str, value: Value| map.insert(name.to_owned(), value);
        put("epoch", self.epoch.into());
        put("fsid", shown(self.fsid));
        put("modified", shown(self.modified));
        put("new_last_up_change", shown(self.new_last_up_change));
        put("new_last_in_change", shown(self.new_last_in_change));
        put("new_pool_max", self.new_pool_max.into());
        put("new_flags", self.new_flags.into());
        put("new_full_ratio", float(self.new_full_ratio.into()));
        put("new_nearfull_ratio", float(self.new_nearfull_ratio.into()));
        put("new_backfillfull_ratio", float(self.new_backfillfull_ratio.into()));
        put("new_require_min_compat_client", self.new_require_min_compat_client.0.into());
        put("new_require_osd_release", self.new_require_osd_release.0.into());
        if let Some(full) = decoded::<OsdMap>(&self.fullmap) {
            put("full_map", full);
        }
        if let Some(crush) = decoded::<crush::CrushMap>(&self.crush) {
            put("crush", crush);
        }
        put("new_max_osd", self.new_max_osd.into());
        put(
            "new_pools",
            self.new_pools.iter().map(|(id, p)| with_first("pool", *id, p.dump())).collect(),
        );
        put(
            "new_pool_names",
            self.new_pool_names.iter().map(|(id, n)| json!({"pool": id, "name": n})).collect(),
        );
        put("old_pools", json!(self.old_pools));
        put(
            "new_up_osds",
            self.new_up_client.iter().map(|(osd, a)| up_osd(self, osd, a)).collect(),
        );
        put("new_weight", pairs(&self.new_weight, "osd", "weight", Value::from));
        put(
            "osd_state_xor",
            pairs(&self.new_state, "osd", "state_xor", |bits| json!(state_names(bits))),
        );
        put(
            "new_pg_temp",
            self.new_pg_temp.iter().map(|(pg, osds)| json!({"pgid": pg, "osds": osds})).collect(),
        );
        // Ceph lists these one after the other without objects around them.
        let primaries = self.new_primary_temp.iter().flat_map(|(pg, osd)| [json!(pg), json!(osd)]);
        put("primary_temp", primaries.collect());
        put(
            "new_pg_upmap",
            self.new_pg_upmap.iter().map(|(pg, osds)| json!({"pgid": pg, "osds": osds})).collect(),
        );
        put("old_pg_upmap", json!(self.old_pg_upmap));
        let items = self.new_pg_upmap_items.iter().map(|(pg, items)| {
            let items: Vec<Value> =
                items.iter().map(|(from, to)| json!({"from": from, "to": to})).collect();
            json!({"pgid": pg, "mappings": items})
        });
        put("new_pg_upmap_items", items.collect());
        put("old_pg_upmap_items", json!(self.old_pg_upmap_items));
        put("new_up_thru", pairs(&self.new_up_thru, "osd", "up_thru", Value::from));
        put("new_lost", pairs(&self.new_lost, "osd", "epoch_lost", Value::from));
        let clean = self
            .new_last_clean_interval
            .iter()
            .map(|(osd, (first, last))| json!({"osd": osd, "first": first, "last": last}));
        put("new_last_clean_interval", clean.collect());
        put("new_blocklist", self.new_blocklist.values().map(shown).collect());
        put("old_blocklist", self.old_blocklist.iter().map(shown).collect());
        put(
            "new_xinfo",
            self.new_xinfo.iter().map(|(osd, x)| with_first("osd", *osd, x.dump())).collect(),
        );
        if !self.cluster_snapshot.is_empty() {
            put("cluster_snapshot", self.cluster_snapshot.as_str().into());
        }
        put("new_uuid", pairs(&self.new_uuid, "osd", "uuid", shown));
        put("erasure_code_profiles", json!(self.new_erasure_code_profiles));
        put("old_erasure_code_profiles", json!(self.old_erasure_code_profiles));
        put("new_removed_snaps", snaps(&self.new_removed_snaps));
        put("new_purged_snaps", snaps(&self.new_purged_snaps));
        Value::Object(map)
    }
}
