//! The data part of `ceph -s`, `ceph pg stat` and `ceph osd pool stats`.

use crate::digest::{Digest, Rates};
use crate::units::{bytes, si};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use types::stats::{ObjectStatSum, PgState};

/// Adds what is degraded, misplaced or unfound; gives the lines for people.
fn recovery(sum: &ObjectStatSum, json: &mut Map<String, Value>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut part = |n: i64, of: i64, word: &str| {
        if n > 0 && of > 0 {
            let ratio = n as f64 / of as f64;
            json.insert(format!("{word}_objects"), n.into());
            json.insert(format!("{word}_total"), of.into());
            json.insert(format!("{word}_ratio"), ratio.into());
            lines.push(format!("{n}/{of} objects {word} ({:.3}%)", ratio * 100.0));
        }
    };
    part(sum.num_objects_degraded, sum.num_object_copies, "degraded");
    part(sum.num_objects_misplaced, sum.num_object_copies, "misplaced");
    part(sum.num_objects_unfound, sum.num_objects, "unfound");
    lines
}

/// Client work per second as one line; empty when there is none.
fn client_io(r: &Rates, json: &mut Map<String, Value>) -> String {
    let mut line = String::new();
    if r.read_ops == 0 && r.write_ops == 0 && r.read_bytes == 0 && r.write_bytes == 0 {
        return line;
    }
    if r.read_ops > 0 || r.read_bytes > 0 {
        json.insert("read_bytes_sec".into(), r.read_bytes.into());
        let _ = write!(line, "{}/s rd, ", bytes(r.read_bytes));
    }
    if r.write_ops > 0 || r.write_bytes > 0 {
        json.insert("write_bytes_sec".into(), r.write_bytes.into());
        let _ = write!(line, "{}/s wr, ", bytes(r.write_bytes));
    }
    json.insert("read_op_per_sec".into(), r.read_ops.into());
    json.insert("write_op_per_sec".into(), r.write_ops.into());
    let _ = write!(line, "{} op/s rd, {} op/s wr", si(r.read_ops), si(r.write_ops));
    line
}

/// Recovery per second as one line; empty when there is none.
fn recovery_io(r: &Rates, json: &mut Map<String, Value>) -> String {
    if r.recovered_objects == 0 && r.recovered_bytes == 0 && r.recovered_keys == 0 {
        return String::new();
    }
    json.insert("recovering_objects_per_sec".into(), r.recovered_objects.into());
    json.insert("recovering_bytes_per_sec".into(), r.recovered_bytes.into());
    json.insert("recovering_keys_per_sec".into(), r.recovered_keys.into());
    let mut line = format!("{}/s", bytes(r.recovered_bytes));
    if r.recovered_keys > 0 {
        let _ = write!(line, ", {} keys/s", si(r.recovered_keys));
    }
    if r.recovered_objects > 0 {
        let _ = write!(line, ", {} objects/s", si(r.recovered_objects));
    }
    line
}

impl Digest {
    /// States with their counts, most frequent first.
    fn states(&self) -> Vec<(PgState, u32)> {
        let mut v: Vec<(PgState, u32)> =
            self.pgs_by_state.iter().map(|(s, n)| (PgState(*s), *n)).collect();
        v.sort_by_key(|(s, n)| std::cmp::Reverse((*n, *s)));
        v
    }

    fn inactive(&self) -> (u32, u32) {
        let unknown = self.pgs_by_state.get(&0).copied().unwrap_or(0);
        (unknown, self.num_pgs() - self.num_pgs_with(PgState::ACTIVE) - unknown)
    }

    /// `pgmap` of `ceph status -f json`.
    pub fn status_json(&self) -> Value {
        let mut m = Map::new();
        let states = self
            .states()
            .into_iter()
            .map(|(s, n)| json!({"state_name": s.to_string(), "count": n}));
        m.insert("pgs_by_state".into(), states.collect());
        m.insert("num_pgs".into(), self.num_pgs().into());
        m.insert("num_pools".into(), self.pools.len().into());
        m.insert("num_objects".into(), self.pg_sum.stats.sum.num_objects.into());
        m.insert("data_bytes".into(), self.pg_sum.stats.sum.num_bytes.into());
        m.insert("bytes_used".into(), self.osd_sum.statfs.used_raw().into());
        m.insert("bytes_avail".into(), self.osd_sum.statfs.available.into());
        m.insert("bytes_total".into(), self.osd_sum.statfs.total.into());
        let (unknown, inactive) = self.inactive();
        let all = f64::from(self.num_pgs().max(1));
        if unknown > 0 {
            m.insert("unknown_pgs_ratio".into(), (f64::from(unknown) / all).into());
        }
        if inactive > 0 {
            m.insert("inactive_pgs_ratio".into(), (f64::from(inactive) / all).into());
        }
        recovery(&self.pg_sum.stats.sum, &mut m);
        recovery_io(&self.rates, &mut m);
        client_io(&self.rates, &mut m);
        Value::Object(m)
    }

    /// The `pools:` to `io:` lines of `ceph -s`.
    pub fn status_text(&self) -> String {
        let sum = &self.pg_sum.stats.sum;
        let fs = &self.osd_sum.statfs;
        let mut lines = Vec::new();
        let (unknown, inactive) = self.inactive();
        let all = f64::from(self.num_pgs().max(1));
        if unknown > 0 {
            lines.push(format!("{:.3}% pgs unknown", f64::from(unknown) / all * 100.0));
        }
        if inactive > 0 {
            lines.push(format!("{:.3}% pgs not active", f64::from(inactive) / all * 100.0));
        }
        let mut unused = Map::new();
        lines.extend(recovery(sum, &mut unused));
        let states = self.states();
        let width = states.iter().map(|(_, n)| n.to_string().len()).max().unwrap_or(1);
        lines.extend(states.iter().map(|(s, n)| format!("{n:<width$} {s}")));
        let mut out = format!(
            "    pools:   {} pools, {} pgs\n    objects: {} objects, {}\n    usage:   {} used, {} / {} avail\n    pgs:     {}\n",
            self.pools.len(),
            self.num_pgs(),
            si(sum.num_objects.max(0) as u64),
            bytes(sum.num_bytes.max(0) as u64),
            bytes(fs.used_raw()),
            bytes(fs.available),
            bytes(fs.total),
            lines.join("\n             "),
        );
        let client = client_io(&self.rates, &mut unused);
        let recovering = recovery_io(&self.rates, &mut unused);
        if !client.is_empty() || !recovering.is_empty() {
            out.push_str("\n \n  io:\n");
            if !client.is_empty() {
                let _ = writeln!(out, "    client:   {client}");
            }
            if !recovering.is_empty() {
                let _ = writeln!(out, "    recovery: {recovering}");
            }
        }
        out
    }

    /// `ceph pg stat -f json`, the part under `pg_summary`.
    pub fn oneline_json(&self) -> Value {
        let fs = &self.osd_sum.statfs;
        let mut m = Map::new();
        let states = self
            .pgs_by_state
            .iter()
            .map(|(s, n)| json!({"name": PgState(*s).to_string(), "num": n}));
        m.insert("num_pg_by_state".into(), states.collect());
        m.insert("num_pgs".into(), self.num_pgs().into());
        m.insert("num_bytes".into(), self.pg_sum.stats.sum.num_bytes.into());
        m.insert("total_bytes".into(), fs.total.into());
        m.insert("total_avail_bytes".into(), fs.available.into());
        m.insert("total_used_bytes".into(), fs.used().into());
        m.insert("total_used_raw_bytes".into(), fs.used_raw().into());
        let r = &self.rates;
        if r.read_ops + r.write_ops > 0 {
            if r.read_ops > 0 {
                m.insert("read_bytes_sec".into(), r.read_bytes.into());
            }
            if r.write_ops > 0 {
                m.insert("write_bytes_sec".into(), r.write_bytes.into());
            }
            m.insert("io_sec".into(), (r.read_ops + r.write_ops).into());
        }
        recovery(&self.pg_sum.stats.sum, &mut m);
        recovery_io(r, &mut m);
        Value::Object(m)
    }

    /// `ceph pg stat`.
    pub fn oneline_text(&self) -> String {
        let fs = &self.osd_sum.statfs;
        let states: Vec<String> =
            self.pgs_by_state.iter().map(|(s, n)| format!("{n} {}", PgState(*s))).collect();
        let mut out = format!(
            "{} pgs: {}; {} data, {} used, {} / {} avail",
            self.num_pgs(),
            states.join(", "),
            bytes(self.pg_sum.stats.sum.num_bytes.max(0) as u64),
            bytes(fs.used()),
            bytes(fs.available),
            bytes(fs.total)
        );
        let r = &self.rates;
        if r.read_ops + r.write_ops > 0 {
            out.push_str("; ");
            if r.read_ops > 0 {
                let _ = write!(out, "{}/s rd, ", bytes(r.read_bytes));
            }
            if r.write_ops > 0 {
                let _ = write!(out, "{}/s wr, ", bytes(r.write_bytes));
            }
            let _ = write!(out, "{} op/s", si(r.read_ops + r.write_ops));
        }
        let mut unused = Map::new();
        for line in recovery(&self.pg_sum.stats.sum, &mut unused) {
            let _ = write!(out, "; {line}");
        }
        let recovering = recovery_io(r, &mut unused);
        if !recovering.is_empty() {
            let _ = write!(out, "; {recovering} recovering");
        }
        out
    }

    /// One pool of `ceph osd pool stats`.
    pub fn pool_io_json(&self, name: &str, pool: types::PoolId) -> Value {
        let stat = self.pools.get(&pool).copied().unwrap_or_default();
        let rates = self.pool_rates.get(&pool).copied().unwrap_or_default();
        let (mut r, mut rr, mut c) = (Map::new(), Map::new(), Map::new());
        recovery(&stat.stats.sum, &mut r);
        recovery_io(&rates, &mut rr);
        client_io(&rates, &mut c);
        json!({"pool_name": name, "pool_id": pool.0, "recovery": r, "recovery_rate": rr, "client_io_rate": c})
    }

    /// One pool of `ceph osd pool stats`.
    pub fn pool_io_text(&self, name: &str, pool: types::PoolId) -> String {
        let stat = self.pools.get(&pool).copied().unwrap_or_default();
        let rates = self.pool_rates.get(&pool).copied().unwrap_or_default();
        let mut unused = Map::new();
        let mut lines = String::new();
        for l in recovery(&stat.stats.sum, &mut unused) {
            let _ = writeln!(lines, "  {l}");
        }
        let recovering = recovery_io(&rates, &mut unused);
        if !recovering.is_empty() {
            let _ = writeln!(lines, "  recovery io {recovering}");
        }
        let client = client_io(&rates, &mut unused);
        if !client.is_empty() {
            let _ = writeln!(lines, "  client io {client}");
        }
        if lines.is_empty() {
            lines.push_str("  nothing is going on\n");
        }
        format!("pool {name} id {}\n{lines}\n", pool.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_an_idle_and_a_busy_cluster() {
        let mut d = Digest {
            pgs_by_state: [((PgState::ACTIVE | PgState::CLEAN).0, 33), (0, 3)].into(),
            ..Digest::default()
        };
        d.osd_sum.statfs.total = 60 << 30;
        d.osd_sum.statfs.available = 57 << 30;
        let text = d.status_text();
        assert!(text.contains("usage:   3 GiB used, 57 GiB / 60 GiB avail"), "{text}");
        assert!(text.contains("pgs:     8.333% pgs unknown\n             33 active+clean\n             3  unknown\n"), "{text}");
        assert!(!text.contains("io:"));
        assert_eq!(d.status_json()["num_pgs"], 36);
        assert_eq!(
            d.oneline_text(),
            "36 pgs: 3 unknown, 33 active+clean; 0 B data, 3 GiB used, 57 GiB / 60 GiB avail"
        );
        d.rates = Rates { write_ops: 1500, write_bytes: 6 << 20, ..Rates::default() };
        assert!(
            d.status_text().contains("    client:   6 MiB/s wr, 0 op/s rd, 1.50k op/s wr\n"),
            "{}",
            d.status_text()
        );
        assert_eq!(d.status_json()["write_op_per_sec"], 1500);
    }
}
