//! The map as text (Ceph: `OSDMap::print`): what `ceph osd dump` shows.

use super::map::{OsdMap, flag_names, state_names};
use crate::Release;
use crate::pool::{AutoscaleMode, HitSetParams, PoolType};
use crate::{Dump, Epoch, OsdId, PgPool};
use serde_json::Value;
use std::fmt::{Display, Write};

/// A float as C++ streams print it: six significant digits, no trailing zeros.
pub fn general(v: f64) -> String {
    if v == 0.0 || !v.is_finite() {
        return format!("{v}");
    }
    let scientific = format!("{v:.5e}");
    let exponent: i32 = scientific.rsplit('e').next().and_then(|e| e.parse().ok()).unwrap_or(0);
    if (-4..6).contains(&exponent) {
        let fixed = format!("{v:.*}", (5 - exponent).max(0) as usize);
        if !fixed.contains('.') {
            return fixed;
        }
        return fixed.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let (digits, _) = scientific.split_once('e').unwrap_or((&scientific, ""));
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn list(osds: &[OsdId]) -> String {
    format!("[{}]", osds.iter().map(OsdId::to_string).collect::<Vec<_>>().join(","))
}

impl OsdMap {
    /// `ceph osd dump` as text.
    pub fn print(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "epoch {}\nfsid {}", self.epoch, self.fsid)?;
        writeln!(out, "created {}\nmodified {}", self.created, self.modified)?;
        writeln!(out, "flags {}\ncrush_version {}", flag_names(self.flags), self.crush_version)?;
        for (name, ratio) in [
            ("full", self.full_ratio),
            ("backfillfull", self.backfillfull_ratio),
            ("nearfull", self.nearfull_ratio),
        ] {
            writeln!(out, "{name}_ratio {}", general(f64::from(ratio)))?;
        }
        if self.require_min_compat_client != Release::UNKNOWN {
            writeln!(out, "require_min_compat_client {}", self.require_min_compat_client)?;
        }
        writeln!(out, "min_compat_client {}", self.min_compat_client())?;
        if self.require_osd_release > Release::UNKNOWN {
            writeln!(out, "require_osd_release {}", self.require_osd_release)?;
        }
        writeln!(out, "stretch_mode_enabled {}", self.stretch.enabled)?;
        if self.stretch.enabled {
            writeln!(out, "stretch_bucket_count {}", self.stretch.bucket_count)?;
            writeln!(out, "degraded_stretch_mode {}", self.stretch.degraded)?;
            writeln!(out, "recovering_stretch_mode {}", self.stretch.recovering)?;
            writeln!(out, "stretch_mode_bucket {}", self.stretch.bucket)?;
        }
        if !self.cluster_snapshot.is_empty() {
            writeln!(out, "cluster_snapshot {}", self.cluster_snapshot)?;
        }
        writeln!(out)?;
        self.write_pools(out)?;
        writeln!(out, "max_osd {}", self.max_osd())?;
        for id in self.osd_ids() {
            self.write_osd(out, id)?;
        }
        writeln!(out)?;
        for (pg, osds) in &self.pg_upmap {
            writeln!(out, "pg_upmap {pg} {}", list(osds))?;
        }
        for (pg, items) in &self.pg_upmap_items {
            let items: Vec<OsdId> = items.iter().flat_map(|(a, b)| [*a, *b]).collect();
            writeln!(out, "pg_upmap_items {pg} {}", list(&items))?;
        }
        for (pg, osd) in &self.pg_upmap_primaries {
            writeln!(out, "pg_upmap_primary {pg} {osd}")?;
        }
        for (pg, osds) in &self.pg_temp {
            writeln!(out, "pg_temp {pg} {}", list(osds))?;
        }
        for (pg, osd) in &self.primary_temp {
            writeln!(out, "primary_temp {pg} {osd}")?;
        }
        for (addr, until) in &self.blocklist {
            writeln!(out, "blocklist {addr} expires {until}")?;
        }
        for (addr, until) in &self.range_blocklist {
            writeln!(out, "range blocklist {addr} expires {until}")?;
        }
        Ok(())
    }

    fn write_pools(&self, out: &mut String) -> std::fmt::Result {
        for (id, pool) in &self.pools {
            let name = self.pool_names.get(id).map_or("<unknown>", String::as_str);
            writeln!(out, "pool {id} '{name}' {}", pool_line(pool))?;
            for snap in pool.snaps.values() {
                writeln!(out, "\tsnap {} '{}' {}", snap.snapid, snap.name, snap.stamp)?;
            }
            if !pool.removed_snaps.is_empty() {
                writeln!(out, "\tremoved_snaps {}", pool.removed_snaps)?;
            }
            if let Some(queue) = self.removed_snaps_queue.get(id) {
                writeln!(out, "\tremoved_snaps_queue {queue}")?;
            }
        }
        writeln!(out)
    }

    fn write_osd(&self, out: &mut String, id: OsdId) -> std::fmt::Result {
        let Some(osd) = self.osd(id) else { return Ok(()) };
        let up = if self.is_up(id) { " up  " } else { " down" };
        let inside = if self.is_in(id) { " in " } else { " out" };
        write!(out, "osd.{id}{up}{inside} weight {}", general(self.weight(id)))?;
        if self.primary_affinity_fixed(id) != OsdMap::ONE {
            write!(out, " primary_affinity {}", general(self.primary_affinity(id)))?;
        }
        let i = &osd.info;
        write!(
            out,
            " up_from {} up_thru {} down_at {} last_clean_interval [{},{})",
            i.up_from, i.up_thru, i.down_at, i.last_clean_begin, i.last_clean_end
        )?;
        if i.lost_at != Epoch(0) {
            write!(out, " lost_at {}", i.lost_at)?;
        }
        let states: Vec<&str> = state_names(osd.state).into_iter().collect();
        write!(out, " {} {} {}", osd.client_addrs, osd.cluster_addrs, states.join(","))?;
        if !osd.uuid.is_zero() {
            write!(out, " {}", osd.uuid)?;
        }
        writeln!(out)
    }
}

/// Names with values on one line.
struct Line(String);

impl Line {
    fn put(&mut self, name: &str, value: impl Display) {
        self.0 += &format!(" {name} {value}");
    }

    fn put_unless<T: Display + PartialEq>(&mut self, usual: T, name: &str, value: T) {
        if value != usual {
            self.put(name, value);
        }
    }
}

/// A pool on one line (Ceph: `operator<<` of `pg_pool_t`).
pub(super) fn pool_line(p: &PgPool) -> String {
    let mut line = Line(p.kind.to_string());
    if p.kind == PoolType::Erasure {
        line.put("profile", &p.erasure_code_profile);
    }
    line.put("size", p.size);
    line.put("min_size", p.min_size);
    line.put("crush_rule", p.crush_rule);
    line.put("object_hash", crate::hash::name(p.object_hash));
    line.put("pg_num", p.pg_num);
    line.put("pgp_num", p.pgp_num);
    line.put_unless(p.pg_num, "pg_num_target", p.pg_num_target);
    line.put_unless(p.pgp_num, "pgp_num_target", p.pgp_num_target);
    line.put_unless(p.pg_num, "pg_num_pending", p.pg_num_pending);
    if p.pg_autoscale_mode.0 <= AutoscaleMode::ON.0 {
        line.put("autoscale_mode", p.pg_autoscale_mode.name());
    }
    line.put("last_change", p.last_change);
    let resends = [
        p.last_force_op_resend,
        p.last_force_op_resend_prenautilus,
        p.last_force_op_resend_preluminous,
    ];
    if resends.iter().any(|e| *e != Epoch(0)) {
        line.put("lfor", resends.map(|e| e.to_string()).join("/"));
    }
    line.put_unless(0, "owner", p.auid);
    if p.flags != 0 {
        line.put("flags", crate::pool::flag::names(p.flags));
    }
    line.put_unless(0, "max_bytes", p.quota_max_bytes);
    line.put_unless(0, "max_objects", p.quota_max_objects);
    tier_fields(p, &mut line);
    line.put("stripe_width", p.stripe_width);
    line.put_unless(0, "expected_num_objects", p.expected_num_objects);
    if p.fast_read {
        line.put("fast_read", 1);
    }
    if let Value::Object(opts) = p.opts.dump() {
        for (name, value) in &opts {
            match value {
                Value::String(text) => line.put(name, text),
                Value::Number(n) if n.is_f64() => {
                    line.put(name, general(n.as_f64().unwrap_or(0.0)));
                }
                other => line.put(name, other),
            }
        }
    }
    if !p.application_metadata.is_empty() {
        let names: Vec<&str> = p.application_metadata.keys().map(String::as_str).collect();
        line.put("application", names.join(","));
    }
    line.0
}

/// What a pool has as a cache of another, or with one before it.
fn tier_fields(p: &PgPool, line: &mut Line) {
    if !p.tiers.is_empty() {
        line.put("tiers", p.tiers.iter().map(u64::to_string).collect::<Vec<_>>().join(","));
    }
    for (name, value) in
        [("tier_of", p.tier_of), ("read_tier", p.read_tier), ("write_tier", p.write_tier)]
    {
        if value >= 0 {
            line.put(name, value);
        }
    }
    if p.cache_mode != 0 {
        line.put("cache_mode", p.cache_mode_name());
    }
    line.put_unless(0, "target_bytes", p.target_max_bytes);
    line.put_unless(0, "target_objects", p.target_max_objects);
    if !matches!(p.hit_set_params, HitSetParams::None) {
        line.put("hit_set", p.hit_set_params.name());
        line.0 += &format!(
            " {}s x{} decay_rate {} search_last_n {}",
            p.hit_set_period, p.hit_set_count, p.hit_set_grade_decay_rate, p.hit_set_search_last_n
        );
    }
    line.put_unless(0, "min_read_recency_for_promote", p.min_read_recency_for_promote);
    line.put_unless(0, "min_write_recency_for_promote", p.min_write_recency_for_promote);
}
