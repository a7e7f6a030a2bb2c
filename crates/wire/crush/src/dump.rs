//! The map as JSON, with the names and order of `ceph osd crush dump` (Ceph: `CrushWrapper::dump`).

use crate::{CrushMap, Rule, hash, op};
use serde_json::{Map, Value, json};

/// A number as Ceph's formatter prints a float: whole numbers without a fraction.
pub fn float(v: f64) -> Value {
    if v.fract() == 0.0 && v.abs() < 9e15 { Value::from(v as i64) } else { Value::from(v) }
}

/// A 16.16 fixed-point weight as Ceph prints it, after its passage through single precision.
pub(crate) fn weight(w: u32) -> Value {
    float(f64::from(w as i32 as f32 / 65536.0))
}

impl CrushMap {
    /// `ceph osd crush dump`.
    pub fn dump(&self) -> Value {
        let devices: Vec<Value> = (0..self.max_devices)
            .map(|id| {
                let mut d = Map::new();
                d.insert("id".into(), id.into());
                let name = self.names.name(id).map_or_else(|| format!("device{id}"), str::to_owned);
                d.insert("name".into(), name.into());
                if let Some(class) = self.item_class(id) {
                    d.insert("class".into(), class.into());
                }
                Value::Object(d)
            })
            .collect();
        let mut types = Vec::new();
        if self.types.name(0).is_none() && !self.types.is_empty() {
            types.push(json!({"type_id": 0, "name": "device"}));
        }
        types.extend(self.types.iter().map(|(id, name)| json!({"type_id": id, "name": name})));
        let buckets: Vec<Value> = self
            .buckets()
            .map(|b| {
                let mut d = Map::new();
                d.insert("id".into(), b.id.into());
                if let Some(name) = self.names.name(b.id) {
                    d.insert("name".into(), name.into());
                }
                d.insert("type_id".into(), b.kind.into());
                if let Some(name) = self.types.name(i32::from(b.kind)) {
                    d.insert("type_name".into(), name.into());
                }
                d.insert("weight".into(), (b.weight as i32).into());
                d.insert("alg".into(), b.algorithm().name().into());
                d.insert("hash".into(), hash::name(b.hash).into());
                let items: Vec<Value> = b
                    .weighted_items()
                    .enumerate()
                    .map(|(pos, (id, weight))| json!({"id": id, "weight": weight as i32, "pos": pos}))
                    .collect();
                d.insert("items".into(), items.into());
                Value::Object(d)
            })
            .collect();
        json!({
            "devices": devices,
            "types": types,
            "buckets": buckets,
            "rules": self.dump_rules(),
            "tunables": self.dump_tunables(),
            "choose_args": self.dump_choose_args(),
        })
    }

    /// `ceph osd crush rule dump`.
    pub fn dump_rules(&self) -> Value {
        self.rules().map(|(id, rule)| self.dump_one_rule(id, rule)).collect()
    }

    /// `ceph osd crush rule dump <name>`.
    pub fn dump_rule(&self, id: i32) -> Option<Value> {
        Some(self.dump_one_rule(id, self.rule(id)?))
    }

    fn dump_one_rule(&self, id: i32, rule: &Rule) -> Value {
        let steps: Vec<Value> = rule
            .steps
            .iter()
            .map(|s| {
                let choose = |name: &str| json!({"op": name, "num": s.arg1, "type": self.types.name(s.arg2).unwrap_or("")});
                match s.op {
                    op::NOOP => json!({"op": "noop"}),
                    op::TAKE => {
                        json!({"op": "take", "item": s.arg1, "item_name": self.names.name(s.arg1).unwrap_or("")})
                    }
                    op::EMIT => json!({"op": "emit"}),
                    op::CHOOSE_FIRSTN => choose("choose_firstn"),
                    op::CHOOSE_INDEP => choose("choose_indep"),
                    op::CHOOSELEAF_FIRSTN => choose("chooseleaf_firstn"),
                    op::CHOOSELEAF_INDEP => choose("chooseleaf_indep"),
                    op::SET_CHOOSE_TRIES => json!({"op": "set_choose_tries", "num": s.arg1}),
                    op::SET_CHOOSELEAF_TRIES => json!({"op": "set_chooseleaf_tries", "num": s.arg1}),
                    opcode => json!({"opcode": opcode as i32, "arg1": s.arg1, "arg2": s.arg2}),
                }
            })
            .collect();
        let mut d = Map::new();
        d.insert("rule_id".into(), id.into());
        if let Some(name) = self.rule_names.name(id) {
            d.insert("rule_name".into(), name.into());
        }
        d.insert("ruleset".into(), rule.ruleset.into());
        d.insert("type".into(), rule.kind.into());
        d.insert("min_size".into(), rule.min_size.into());
        d.insert("max_size".into(), rule.max_size.into());
        d.insert("steps".into(), steps.into());
        Value::Object(d)
    }

    /// `ceph osd crush show-tunables`.
    pub fn dump_tunables(&self) -> Value {
        let t = &self.tunables;
        let profile = t.profile();
        let tunables1 = t.choose_local_tries != 2
            || t.choose_local_fallback_tries != 5
            || t.choose_total_tries != 19;
        json!({
            "choose_local_tries": t.choose_local_tries as i32,
            "choose_local_fallback_tries": t.choose_local_fallback_tries as i32,
            "choose_total_tries": t.choose_total_tries as i32,
            "chooseleaf_descend_once": t.chooseleaf_descend_once as i32,
            "chooseleaf_vary_r": t.chooseleaf_vary_r,
            "chooseleaf_stable": t.chooseleaf_stable,
            "straw_calc_version": t.straw_calc_version,
            "allowed_bucket_algs": t.allowed_bucket_algs as i32,
            "profile": profile,
            "optimal_tunables": i32::from(profile == "jewel"),
            "legacy_tunables": i32::from(profile == "argonaut"),
            "minimum_required_version": self.min_required_version(),
            "require_feature_tunables": i32::from(tunables1),
            "require_feature_tunables2": i32::from(t.chooseleaf_descend_once != 0),
            "has_v2_rules": i32::from(self.has_v2_rules()),
            "require_feature_tunables3": i32::from(t.chooseleaf_vary_r != 0),
            "has_v3_rules": i32::from(self.has_v3_rules()),
            "has_v4_buckets": i32::from(self.has_v4_buckets()),
            "require_feature_tunables5": i32::from(t.chooseleaf_stable != 0),
            "has_v5_rules": i32::from(self.has_v5_rules()),
        })
    }

    /// The oldest release whose clients understand the map.
    pub fn min_required_version(&self) -> &'static str {
        let t = &self.tunables;
        if self.has_v5_rules() || t.chooseleaf_stable != 0 {
            "jewel"
        } else if self.has_v4_buckets() {
            "hammer"
        } else if t.chooseleaf_vary_r != 0 {
            "firefly"
        } else if t.chooseleaf_descend_once != 0
            || t.choose_local_tries != 2
            || t.choose_local_fallback_tries != 5
            || t.choose_total_tries != 19
        {
            "bobtail"
        } else {
            "argonaut"
        }
    }

    fn dump_choose_args(&self) -> Value {
        let mut all = Map::new();
        for (key, cmap) in &self.choose_args {
            let args: Vec<Value> = cmap
                .args
                .iter()
                .filter(|(_, a)| !a.is_empty())
                .map(|(index, arg)| {
                    let mut d = Map::new();
                    d.insert("bucket_id".into(), (-1 - *index as i32).into());
                    if !arg.weight_set.is_empty() {
                        let sets: Vec<Vec<Value>> = arg
                            .weight_set
                            .iter()
                            .map(|set| set.iter().map(|w| unsigned_weight(*w)).collect())
                            .collect();
                        d.insert("weight_set".into(), json!(sets));
                    }
                    if !arg.ids.is_empty() {
                        d.insert("ids".into(), json!(arg.ids));
                    }
                    Value::Object(d)
                })
                .collect();
            all.insert(key.to_string(), args.into());
        }
        Value::Object(all)
    }
}

fn unsigned_weight(w: u32) -> Value {
    float(f64::from(w as f32 / 65536.0))
}
