//! When a specification holds: every OSD that may serve a tenant says in `dump_qos` that it goes by
//! it.

use crate::qos_cluster::Dumps;
use promises::Resolved;
use promises::spec::Promise;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use types::osdmap::OsdMap;
use types::{OsdId, PgId, PoolId};

/// What a change of specifications means to tenants.
#[derive(Debug, Default)]
pub struct Change {
    /// Tenants with what is promised to them, and the pool that they are of.
    promised: Vec<(String, Option<PoolId>, Promise)>,
    /// Tenants that are promised nothing any more.
    gone: BTreeSet<String>,
}

impl Change {
    /// From the tenants before and after; `named` is the one that the operator named.
    pub fn new(before: &[Resolved], after: &[Resolved], named: &str) -> Self {
        let names: BTreeSet<&String> = after.iter().map(|r| &r.whose.name).collect();
        Change {
            promised: after
                .iter()
                .filter(|r| r.whose.name == named || !before.contains(r))
                .map(|r| (r.whose.name.clone(), r.whose.pool, r.promise))
                .collect(),
            gone: before
                .iter()
                .map(|r| &r.whose.name)
                .filter(|n| !names.contains(n))
                .cloned()
                .collect(),
        }
    }

    /// Whether no tenant is concerned.
    pub fn is_empty(&self) -> bool {
        self.promised.is_empty() && self.gone.is_empty()
    }

    /// The OSDs that have to know, for each pool that is concerned: those that have to do with its
    /// groups. Tenants of no pool concern all.
    pub fn concerned(&self, map: &OsdMap) -> BTreeMap<Option<PoolId>, BTreeSet<OsdId>> {
        let pools: BTreeSet<Option<PoolId>> = self.promised.iter().map(|(_, p, _)| *p).collect();
        let of = |pool: Option<PoolId>| match pool {
            None => map.up_osds().into_iter().collect(),
            Some(id) => {
                let groups = map.pools.get(&id).map_or(0, |p| p.pg_num);
                let mut osds = BTreeSet::new();
                for seed in 0..groups {
                    let at = map.pg_to_up_acting(PgId { pool: id, seed });
                    osds.extend(at.up.iter().chain(&at.acting).filter(|o| map.is_up(**o)));
                }
                osds
            }
        };
        pools.into_iter().map(|pool| (pool, of(pool))).collect()
    }

    /// The OSDs that do not go by it, of those that are concerned. One that gave no answer does
    /// not.
    pub fn missing(
        &self,
        concerned: &BTreeMap<Option<PoolId>, BTreeSet<OsdId>>,
        dumps: &Dumps,
    ) -> BTreeSet<OsdId> {
        let rows = |osd: &OsdId| dumps.get(osd).and_then(|d| d["tenants"].as_array());
        let mut missing = BTreeSet::new();
        for (name, pool, promise) in &self.promised {
            for osd in concerned.get(pool).into_iter().flatten() {
                let knows = rows(osd).is_some_and(|rows| {
                    rows.iter().any(|row| row["tenant"] == **name && goes_by(row, promise))
                });
                if !knows {
                    missing.insert(*osd);
                }
            }
        }
        for (osd, dump) in dumps {
            let stale = |row: &Value| {
                row["specified"] == true
                    && row["tenant"].as_str().is_some_and(|t| self.gone.contains(t))
            };
            if dump["tenants"].as_array().is_some_and(|rows| rows.iter().any(stale)) {
                missing.insert(*osd);
            }
        }
        missing
    }
}

/// Whether a row of `dump_qos` says what is promised.
fn goes_by(row: &Value, promise: &Promise) -> bool {
    let thousandths = |v: &Value| v.as_f64().map_or(0, |r| (r * 1000.0).round() as u64);
    let rate = |what: &str, of: &str, key: &str| thousandths(&row[what][of][key]);
    let ceilings = [("iops", promise.ceilings.iops), ("bps", promise.ceilings.bps)];
    row["specified"] == true
        && row["weight"] == promise.weight.max(1)
        && ["iops", "bps"]
            .iter()
            .zip(promise.floors)
            .all(|(of, floor)| rate("floor", of, "cluster") == floor)
        && ceilings.iter().all(|(of, c)| {
            // Of no ceiling there is no burst.
            let (saved, peak) = if c.each_second > 0 { (c.saved, c.peak) } else { (0, 0) };
            rate("ceiling", of, "cluster") == c.each_second
                && rate("ceiling", of, "saved") == saved
                && rate("ceiling", of, "peak") == peak
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use messages::TenantShare;
    use promises::spec::Spec;
    use serde_json::json;

    fn resolved(name: &str, spec: &str) -> Resolved {
        Resolved {
            whose: TenantShare {
                name: name.into(),
                pool: Some(PoolId(1)),
                ..TenantShare::default()
            },
            promise: Spec::parse(spec).unwrap().promise(None),
        }
    }

    fn dump(ceiling: f64) -> Value {
        json!({"tenants": [
            {"tenant": "gold", "specified": true, "weight": 100, "floor": {"iops": null, "bps": null},
             "ceiling": {"iops": {"cluster": ceiling, "here": 1.0, "saved": 0.0, "peak": 0.0}, "bps": null}},
        ]})
    }

    fn gold(spec: &str) -> Change {
        let mut after = resolved("gold", spec);
        after.promise.weight = 100;
        after.promise.ceilings.iops.saved = 0;
        after.promise.ceilings.iops.peak = 0;
        Change::new(&[], &[after], "gold")
    }

    #[test]
    fn an_osd_with_an_older_ceiling_or_without_an_answer_is_missing() {
        let change = gold(r#"{"ceiling_iops": 300}"#);
        let all = BTreeMap::from([(Some(PoolId(1)), [0, 1, 2].map(OsdId).into())]);
        let dumps = Dumps::from([(OsdId(0), dump(300.0)), (OsdId(1), dump(200.0))]);
        assert_eq!(change.missing(&all, &dumps), [OsdId(1), OsdId(2)].into());
        let dumps: Dumps = [0, 1, 2].map(|o| (OsdId(o), dump(300.0))).into();
        assert!(change.missing(&all, &dumps).is_empty());
    }

    #[test]
    fn what_was_removed_is_looked_for_everywhere() {
        let before = resolved("gold", r#"{"ceiling_iops": 300}"#);
        let change = Change::new(&[before], &[], "gold");
        let dumps = Dumps::from([(OsdId(0), json!({"tenants": []})), (OsdId(4), dump(300.0))]);
        assert_eq!(change.missing(&BTreeMap::new(), &dumps), [OsdId(4)].into());
    }

    #[test]
    fn tenants_that_stay_as_they_are_concern_no_osd() {
        let (a, b) = (resolved("a", r#"{"weight": 3}"#), resolved("b", r#"{"weight": 4}"#));
        assert!(Change::new(&[a.clone(), b.clone()], &[a.clone(), b.clone()], "c").is_empty());
        let change = Change::new(&[a.clone(), b.clone()], &[a, b], "b");
        assert_eq!(change.promised.len(), 1);
    }
}
