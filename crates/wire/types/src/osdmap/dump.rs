//! The map as JSON, with the names and order of `ceph osd dump -f json` and `ceph osd tree -f json`
//! (Ceph: `OSDMap::dump`, `OSDMap::print_tree`).

use super::map::{OsdInfo, OsdMap, OsdXinfo, TreeFilter, flag_names, state_names};
use crate::dump::{Dump, shown};
use crate::{IntervalSet, OsdId, PgId, PoolId};
use crush::{float, tree};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

impl Dump for OsdInfo {
    fn dump(&self) -> Value {
        json!({
            "last_clean_begin": self.last_clean_begin,
            "last_clean_end": self.last_clean_end,
            "up_from": self.up_from,
            "up_thru": self.up_thru,
            "down_at": self.down_at,
            "lost_at": self.lost_at,
        })
    }
}

impl Dump for OsdXinfo {
    fn dump(&self) -> Value {
        json!({
            "down_stamp": shown(self.down_stamp),
            "laggy_probability": float(f64::from(self.laggy_probability_f32())),
            "laggy_interval": self.laggy_interval as i32,
            "features": self.features as i64,
            "old_weight": self.old_weight,
            "last_purged_snaps_scrub": shown(self.last_purged_snaps_scrub),
            "dead_epoch": self.dead_epoch,
        })
    }
}

fn extend(map: &mut Map<String, Value>, with: Value) {
    if let Value::Object(fields) = with {
        map.extend(fields);
    }
}

fn osds(v: &[OsdId]) -> Value {
    v.iter().map(|o| Value::from(o.0)).collect()
}

fn snaps(map: &BTreeMap<PoolId, IntervalSet>) -> Value {
    map.iter()
        .map(|(pool, set)| {
            let ranges: Vec<Value> = set
                .iter()
                .map(|(begin, length)| json!({"begin": begin, "length": length}))
                .collect();
            json!({"pool": pool.0, "snaps": ranges})
        })
        .collect()
}

fn by_pg<T>(map: &BTreeMap<PgId, T>, name: &str, value: impl Fn(&T) -> Value) -> Value {
    map.iter()
        .map(|(pg, v)| {
            let mut d = Map::new();
            d.insert("pgid".into(), shown(pg));
            d.insert(name.to_owned(), value(v));
            Value::Object(d)
        })
        .collect()
}

impl Dump for OsdMap {
    fn dump(&self) -> Value {
        let flags_set: BTreeSet<String> = (0..32)
            .filter(|bit| self.flags & 1 << bit != 0)
            .map(|bit| flag_names(1 << bit))
            .collect();
        let ratio = |r: f32| float(f64::from(r));
        let mut d = Map::new();
        extend(
            &mut d,
            json!({
                "epoch": self.epoch,
                "fsid": shown(self.fsid),
                "created": shown(self.created),
                "modified": shown(self.modified),
                "last_up_change": shown(self.last_up_change),
                "last_in_change": shown(self.last_in_change),
                "flags": flag_names(self.flags),
                "flags_num": self.flags,
                "flags_set": flags_set,
                "crush_version": self.crush_version,
                "full_ratio": ratio(self.full_ratio),
                "backfillfull_ratio": ratio(self.backfillfull_ratio),
                "nearfull_ratio": ratio(self.nearfull_ratio),
                "cluster_snapshot": self.cluster_snapshot,
                "pool_max": self.pool_max,
                "max_osd": self.max_osd(),
                "require_min_compat_client": self.require_min_compat_client.name(),
                "min_compat_client": self.min_compat_client().name(),
                "require_osd_release": self.require_osd_release.name(),
            }),
        );
        d.insert("pools".into(), self.pools.keys().filter_map(|id| self.dump_pool(*id)).collect());
        d.insert(
            "osds".into(),
            self.osd_ids().into_iter().filter_map(|id| self.dump_osd(id)).collect(),
        );
        let xinfo = |id: OsdId| {
            let mut x = Map::new();
            x.insert("osd".into(), id.0.into());
            extend(&mut x, self.osd(id)?.xinfo.dump());
            Some(Value::Object(x))
        };
        d.insert("osd_xinfo".into(), self.osd_ids().into_iter().filter_map(xinfo).collect());
        d.insert("pg_upmap".into(), by_pg(&self.pg_upmap, "osds", |v| osds(v)));
        let items = |v: &Vec<(OsdId, OsdId)>| -> Value {
            v.iter().map(|(from, to)| json!({"from": from.0, "to": to.0})).collect()
        };
        d.insert("pg_upmap_items".into(), by_pg(&self.pg_upmap_items, "mappings", items));
        if !self.pg_upmap_primaries.is_empty() {
            let primaries = by_pg(&self.pg_upmap_primaries, "primary_osd", |o| o.0.into());
            d.insert("pg_upmap_primaries".into(), primaries);
        }
        d.insert("pg_temp".into(), by_pg(&self.pg_temp, "osds", |v| osds(v)));
        // Ceph writes names and values into an array here, which leaves the values.
        let temps = self.primary_temp.iter().flat_map(|(pg, osd)| [shown(pg), Value::from(osd.0)]);
        d.insert("primary_temp".into(), temps.collect());
        let blocklist: Map<String, Value> =
            self.blocklist.iter().map(|(a, until)| (a.to_string(), shown(until))).collect();
        d.insert("blocklist".into(), Value::Object(blocklist));
        let ranges: Map<String, Value> =
            self.range_blocklist.iter().map(|(a, until)| (a.to_string(), shown(until))).collect();
        d.insert("range_blocklist".into(), Value::Object(ranges));
        d.insert("erasure_code_profiles".into(), json!(self.erasure_code_profiles));
        d.insert("removed_snaps_queue".into(), snaps(&self.removed_snaps_queue));
        d.insert("new_removed_snaps".into(), snaps(&self.new_removed_snaps));
        d.insert("new_purged_snaps".into(), snaps(&self.new_purged_snaps));
        let flags = |map: &BTreeMap<i32, u32>, name: &dyn Fn(i32) -> Option<String>| {
            let named = map.iter().map(|(id, bits)| {
                (name(*id).unwrap_or_else(|| id.to_string()), json!(state_names(*bits)))
            });
            Value::Object(named.collect())
        };
        let node = |id: i32| self.crush.names.name(id).map(str::to_owned);
        let class = |id: i32| self.crush.class_names.name(id).map(str::to_owned);
        d.insert("crush_node_flags".into(), flags(&self.crush_node_flags, &node));
        d.insert("device_class_flags".into(), flags(&self.device_class_flags, &class));
        d.insert(
            "stretch_mode".into(),
            json!({
                "stretch_mode_enabled": self.stretch.enabled,
                "stretch_bucket_count": self.stretch.bucket_count,
                "degraded_stretch_mode": self.stretch.degraded,
                "recovering_stretch_mode": self.stretch.recovering,
                "stretch_mode_bucket": self.stretch.bucket,
            }),
        );
        Value::Object(d)
    }
}

impl OsdMap {
    /// One pool as in `ceph osd dump`.
    pub fn dump_pool(&self, id: PoolId) -> Option<Value> {
        let mut d = Map::new();
        d.insert("pool".into(), id.0.into());
        d.insert(
            "pool_name".into(),
            self.pool_names.get(&id).map_or("<unknown>", String::as_str).into(),
        );
        extend(&mut d, self.pool(id)?.dump());
        Some(Value::Object(d))
    }

    /// One OSD as in `ceph osd dump`; `None` if it does not exist.
    pub fn dump_osd(&self, id: OsdId) -> Option<Value> {
        let osd = self.osd(id).filter(|_| self.exists(id))?;
        let mut d = Map::new();
        extend(
            &mut d,
            json!({
                "osd": id.0,
                "uuid": shown(osd.uuid),
                "up": i32::from(self.is_up(id)),
                "in": i32::from(self.is_in(id)),
                "weight": float(self.weight(id)),
                "primary_affinity": float(self.primary_affinity(id)),
            }),
        );
        extend(&mut d, osd.info.dump());
        let addrs = [
            ("public_addr", &osd.client_addrs),
            ("cluster_addr", &osd.cluster_addrs),
            ("heartbeat_back_addr", &osd.hb_back_addrs),
            ("heartbeat_front_addr", &osd.hb_front_addrs),
        ];
        for (name, a) in addrs {
            d.insert(format!("{name}s"), a.dump());
        }
        for (name, a) in addrs {
            d.insert(name.into(), a.legacy_string().into());
        }
        d.insert("state".into(), json!(state_names(osd.state)));
        Some(Value::Object(d))
    }

    /// Names of pools, as trees head weight sets with them.
    pub fn tree_pool_names(&self) -> tree::PoolNames {
        self.pool_names.iter().map(|(id, name)| (id.0, name.clone())).collect()
    }

    fn tree_shows(&self, id: i32, filter: TreeFilter) -> bool {
        let id = OsdId(id);
        filter == TreeFilter::default()
            || (filter.up && self.is_up(id))
            || (filter.down && self.is_down(id))
            || (filter.in_ && self.is_in(id))
            || (filter.out && self.is_out(id))
            || (filter.destroyed && self.is_destroyed(id))
    }

    /// The tree's items, and (without a root) OSDs that exist and are not in it.
    fn tree_items(
        &self,
        filter: TreeFilter,
        root: Option<&str>,
    ) -> (Vec<tree::TreeItem>, Vec<tree::TreeItem>) {
        let leaf = |id: i32| self.tree_shows(id, filter);
        let empty_buckets = filter == TreeFilter::default();
        let items =
            self.crush.walk(&tree::Filter { shadow: false, leaf: &leaf, empty_buckets, root });
        let touched: BTreeSet<i32> = items.iter().map(|i| i.id).collect();
        let strays = if root.is_some() {
            Vec::new()
        } else {
            let ids = self.osd_ids().into_iter().map(|o| o.0);
            ids.filter(|id| !touched.contains(id) && leaf(*id)).map(tree::stray).collect()
        };
        (items, strays)
    }

    fn tree_status(&self, id: OsdId) -> &'static str {
        if self.is_up(id) {
            "up"
        } else if self.is_destroyed(id) {
            "destroyed"
        } else {
            "down"
        }
    }

    /// `ceph osd tree -f json`.
    pub fn dump_tree(&self, filter: TreeFilter, root: Option<&str>) -> Value {
        let pools = self.tree_pool_names();
        let node = |item: &tree::TreeItem| {
            let mut extra = Map::new();
            if item.id >= 0 {
                let id = OsdId(item.id);
                extra.insert("exists".into(), i32::from(self.exists(id)).into());
                extra.insert("status".into(), self.tree_status(id).into());
                extra.insert("reweight".into(), float(self.weight(id)));
                extra.insert("primary_affinity".into(), float(self.primary_affinity(id)));
            }
            self.crush.dump_tree_item(item, &pools, extra)
        };
        let (items, strays) = self.tree_items(filter, root);
        let nodes: Vec<Value> = items.iter().map(node).collect();
        if root.is_some() {
            return json!({"nodes": nodes});
        }
        let strays: Vec<Value> = strays.iter().map(node).collect();
        json!({"nodes": nodes, "stray": strays})
    }

    /// `ceph osd tree` as text.
    pub fn print_tree(&self, filter: TreeFilter, root: Option<&str>) -> String {
        let mut table = tree::TextTable::new(&[
            ("ID", true),
            ("CLASS", true),
            ("WEIGHT", true),
            ("TYPE NAME", false),
            ("STATUS", true),
            ("REWEIGHT", true),
            ("PRI-AFF", true),
        ]);
        let (items, strays) = self.tree_items(filter, root);
        for item in items.iter().chain(&strays) {
            let mut cells = self.crush.tree_cells(item);
            let id = OsdId(item.id);
            if item.id >= 0 && !self.exists(id) {
                cells.extend(["DNE".to_owned(), "0".to_owned()]);
            } else if item.id >= 0 {
                cells.push(self.tree_status(id).to_owned());
                cells.push(tree::print_weight(self.weight_fixed(id)));
                cells.push(tree::print_weight(self.primary_affinity_fixed(id)));
            }
            table.row(cells);
        }
        table.to_string()
    }
}
