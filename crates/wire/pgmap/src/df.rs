//! `ceph df`.

use crate::digest::Digest;
use crate::table::{Align, Table};
use crate::units::{bytes, percent, si};
use serde_json::{Map, Value, json};
use types::PoolId;

/// What `ceph df` must know of a pool.
#[derive(Clone, Debug)]
pub struct PoolRow {
    /// Its id.
    pub id: PoolId,
    /// Its name.
    pub name: String,
    /// Its number of groups.
    pub pg_num: u32,
    /// Raw bytes for one byte stored: the size of a replicated pool.
    pub raw_used_rate: f64,
    /// Its CRUSH rule.
    pub rule: u32,
    /// Quota, 0 is none.
    pub quota_objects: u64,
    /// Quota, 0 is none.
    pub quota_bytes: u64,
}

/// The figures of one pool.
struct Figures {
    stored_data: u64,
    stored_omap: u64,
    objects: i64,
    used_data: u64,
    used_omap: u64,
    ratio: f64,
    max_avail: u64,
    stored_raw: u64,
    avail_raw: u64,
}

impl Digest {
    fn figures(&self, p: &PoolRow) -> Figures {
        let stat = self.pools.get(&p.id).copied().unwrap_or_default();
        let sum = &stat.stats.sum;
        let rate = if sum.num_object_copies > 0 {
            p.raw_used_rate * (sum.num_object_copies - sum.num_objects_degraded).max(0) as f64
                / sum.num_object_copies as f64
        } else {
            p.raw_used_rate
        };
        // OSDs that do not count by pool: what the objects' copies hold is the nearest.
        let used_data = match stat.num_store_stats {
            0 => (sum.num_bytes.max(0) as f64 * rate) as u64,
            _ => stat.store_stats.allocated.max(0) as u64,
        };
        let used_omap = stat.store_stats.omap_allocated.max(0) as u64;
        let used = used_data + used_omap;
        let avail_raw = self.rule_avail.get(&p.rule).copied().unwrap_or(0);
        let ratio = match (avail_raw, used) {
            (0, 0) => 0.0,
            (0, _) => 1.0,
            (a, u) => u as f64 / (u + a) as f64,
        };
        let normal = |v: u64| if rate > 0.0 { (v as f64 / rate).round() as u64 } else { 0 };
        let stored_data = if stat.num_store_stats > 0 && stat.store_stats.data_stored > 0 {
            normal(stat.store_stats.data_stored as u64)
        } else {
            sum.num_bytes.max(0) as u64
        };
        let stored_omap = normal(used_omap);
        Figures {
            stored_data,
            stored_omap,
            objects: sum.num_objects,
            used_data,
            used_omap,
            ratio,
            max_avail: if p.raw_used_rate > 0.0 {
                (avail_raw as f64 / p.raw_used_rate) as u64
            } else {
                0
            },
            stored_raw: ((stored_data + stored_omap) as f64 * rate) as u64,
            avail_raw,
        }
    }

    /// Bytes that can still be stored in a pool: `max_avail` of `ceph df`.
    pub fn max_avail(&self, p: &PoolRow) -> u64 {
        self.figures(p).max_avail
    }

    /// Bytes that a pool uses: `bytes_used` of `ceph df`.
    pub fn used(&self, p: &PoolRow) -> u64 {
        let figures = self.figures(p);
        figures.used_data + figures.used_omap
    }

    /// `ceph df [detail] -f json`.
    pub fn df_json(&self, pools: &[PoolRow], detail: bool) -> Value {
        let fs = |s: &types::stats::StoreStatfs| {
            let ratio = if s.total > 0 { s.used_raw() as f64 / s.total as f64 } else { 0.0 };
            let mut m = Map::new();
            m.insert("total_bytes".into(), s.total.into());
            m.insert("total_avail_bytes".into(), s.available.into());
            m.insert("total_used_bytes".into(), s.used().into());
            m.insert("total_used_raw_bytes".into(), s.used_raw().into());
            m.insert("total_used_raw_ratio".into(), ratio.into());
            m
        };
        let mut stats = fs(&self.osd_sum.statfs);
        stats.insert("num_osds".into(), self.osd_sum.num_osds.into());
        stats.insert("num_per_pool_osds".into(), self.osd_sum.num_per_pool_osds.into());
        stats.insert("num_per_pool_omap_osds".into(), self.osd_sum.num_per_pool_omap_osds.into());
        let classes: Map<String, Value> = self
            .osd_sum_by_class
            .iter()
            .map(|(c, s)| (c.clone(), Value::Object(fs(&s.statfs))))
            .collect();
        let rows = pools.iter().map(|p| {
            let f = self.figures(p);
            let sum = self.pools.get(&p.id).copied().unwrap_or_default().stats.sum;
            let used = f.used_data + f.used_omap;
            let mut m = Map::new();
            let mut put = |k: &str, v: Value| m.insert(k.into(), v);
            put("stored", (f.stored_data + f.stored_omap).into());
            if detail {
                put("stored_data", f.stored_data.into());
                put("stored_omap", f.stored_omap.into());
            }
            put("objects", f.objects.into());
            put("kb_used", used.div_ceil(1024).into());
            put("bytes_used", used.into());
            if detail {
                put("data_bytes_used", f.used_data.into());
                put("omap_bytes_used", f.used_omap.into());
            }
            put("percent_used", f.ratio.into());
            put("max_avail", f.max_avail.into());
            if detail {
                put("quota_objects", p.quota_objects.into());
                put("quota_bytes", p.quota_bytes.into());
                put("dirty", 0.into());
                put("rd", sum.num_rd.into());
                put("rd_bytes", (sum.num_rd_kb * 1024).into());
                put("wr", sum.num_wr.into());
                put("wr_bytes", (sum.num_wr_kb * 1024).into());
                put("compress_bytes_used", 0.into());
                put("compress_under_bytes", 0.into());
                put("stored_raw", f.stored_raw.into());
                put("avail_raw", f.avail_raw.into());
            }
            json!({"name": p.name, "id": p.id.0, "stats": m})
        });
        json!({"stats": stats, "stats_by_class": classes, "pools": rows.collect::<Vec<_>>()})
    }

    /// `ceph df [detail]`.
    pub fn df_text(&self, pools: &[PoolRow], detail: bool) -> String {
        let mut raw = Table::new();
        raw.column("CLASS", Align::Left, Align::Left);
        for h in ["SIZE", "AVAIL", "USED", "RAW USED", "%RAW USED"] {
            raw.column(h, Align::Right, Align::Right);
        }
        let total = ("TOTAL".to_string(), self.osd_sum.statfs);
        for (name, s) in
            self.osd_sum_by_class.iter().map(|(c, s)| (c.clone(), s.statfs)).chain([total])
        {
            let ratio = if s.total > 0 { s.used_raw() as f64 / s.total as f64 } else { 0.0 };
            raw.row([
                name,
                bytes(s.total),
                bytes(s.available),
                bytes(s.used()),
                bytes(s.used_raw()),
                percent(ratio * 100.0),
            ]);
        }
        let mut t = Table::new();
        t.column("POOL", Align::Left, Align::Left);
        let mut headings = vec!["ID", "PGS", "STORED"];
        let parts = ["(DATA)", "(OMAP)"];
        if detail {
            headings.extend(parts);
        }
        headings.extend(["OBJECTS", "USED"]);
        if detail {
            headings.extend(parts);
        }
        headings.extend(["%USED", "MAX AVAIL"]);
        if detail {
            headings.extend(["QUOTA OBJECTS", "QUOTA BYTES", "DIRTY", "USED COMPR", "UNDER COMPR"]);
        }
        for h in headings {
            t.column(h, Align::Right, Align::Right);
        }
        for p in pools {
            let f = self.figures(p);
            let mut row = vec![
                p.name.clone(),
                p.id.0.to_string(),
                p.pg_num.to_string(),
                bytes(f.stored_data + f.stored_omap),
            ];
            if detail {
                row.extend([bytes(f.stored_data), bytes(f.stored_omap)]);
            }
            row.extend([si(f.objects.max(0) as u64), bytes(f.used_data + f.used_omap)]);
            if detail {
                row.extend([bytes(f.used_data), bytes(f.used_omap)]);
            }
            row.extend([percent(f.ratio * 100.0), bytes(f.max_avail)]);
            if detail {
                let quota = |v: u64, shown: String| if v == 0 { "N/A".to_string() } else { shown };
                row.extend([
                    quota(p.quota_objects, si(p.quota_objects)),
                    quota(p.quota_bytes, bytes(p.quota_bytes)),
                    "N/A".into(),
                    bytes(0),
                    bytes(0),
                ]);
            }
            t.row(row);
        }
        format!("--- RAW STORAGE ---\n{raw} \n--- POOLS ---\n{t}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_by_the_replicas() {
        let mut d = Digest { rule_avail: [(0, 3000)].into(), ..Digest::default() };
        let mut s = types::stats::PoolStat::default();
        s.stats.sum.num_objects = 10;
        s.stats.sum.num_bytes = 100_000;
        s.stats.sum.num_object_copies = 30;
        s.store_stats.allocated = 122_880;
        s.store_stats.data_stored = 300_000;
        s.num_store_stats = 3;
        d.pools.insert(PoolId(1), s);
        let p = PoolRow {
            id: PoolId(1),
            name: "p".into(),
            pg_num: 8,
            raw_used_rate: 3.0,
            rule: 0,
            quota_objects: 0,
            quota_bytes: 5,
        };
        let j = d.df_json(std::slice::from_ref(&p), true);
        let stats = &j["pools"][0]["stats"];
        assert_eq!(
            (stats["stored"].as_u64(), stats["max_avail"].as_u64(), stats["bytes_used"].as_u64()),
            (Some(100_000), Some(1000), Some(122_880))
        );
        let text = d.df_text(&[p], true);
        assert!(text.contains("--- POOLS ---") && text.contains("N/A"), "{text}");
    }
}
