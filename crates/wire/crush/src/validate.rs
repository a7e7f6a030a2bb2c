use crate::{Body, CrushError, CrushMap, MAX_DEPTH, hash, op};
use std::collections::BTreeSet;

/// Tries beyond this are a mistake or an attack: the mapper would spend seconds on one input.
const TRIES_MAX: u32 = 10_000;
/// More devices than any cluster has; bounds the vectors indexed by device.
const DEVICES_MAX: i32 = 1 << 20;

impl CrushMap {
    /// Whether a map from outside may be used by a cluster: what is referred to exists, buckets
    /// form trees of bounded depth, names are unique, tables fit their buckets, and tries are
    /// bounded. The first fault found is returned.
    pub fn validate(&self) -> Result<(), CrushError> {
        let bad = |text: String| Err(CrushError::Invalid(text));
        self.ensure_acyclic()?;
        if self.max_devices > DEVICES_MAX {
            return bad(format!("device {} is out of range", self.max_devices - 1));
        }
        for b in self.buckets() {
            let id = b.id;
            if b.kind == 0 {
                return bad(format!("bucket {id} has the type of a device"));
            }
            if self.types.name(i32::from(b.kind)).is_none() {
                return bad(format!("bucket {id} has unknown type {}", b.kind));
            }
            if self.names.name(id).is_none() {
                return bad(format!("bucket {id} has no name"));
            }
            if b.hash != hash::RJENKINS1 {
                return bad(format!("bucket {id} has unknown hash {}", b.hash));
            }
            let mut seen = BTreeSet::new();
            for item in &b.items {
                // Empty places of a tree bucket look like device 0 without weight.
                let hole = matches!(b.body, Body::Tree { .. }) && *item == 0;
                if !seen.insert(*item) && !hole {
                    return bad(format!("bucket {id} contains item {item} twice"));
                }
                if *item < 0 && self.bucket(*item).is_none() {
                    return bad(format!(
                        "bucket {id} contains bucket {item}, which does not exist"
                    ));
                }
            }
            if self.depth_below(id) > MAX_DEPTH {
                return bad(format!("bucket {id} is the root of more than {MAX_DEPTH} levels"));
            }
        }
        for (what, names) in
            [("item", &self.names), ("type", &self.types), ("rule", &self.rule_names)]
        {
            if names.has_duplicates() {
                return bad(format!("two {what}s have the same name"));
            }
        }
        for (n, rule) in self.rules() {
            for step in &rule.steps {
                match step.op {
                    op::TAKE if step.arg1 < 0 && self.bucket(step.arg1).is_none() => {
                        return bad(format!(
                            "rule {n} takes bucket {}, which does not exist",
                            step.arg1
                        ));
                    }
                    op::TAKE if step.arg1 >= self.max_devices => {
                        return bad(format!(
                            "rule {n} takes device {}, which does not exist",
                            step.arg1
                        ));
                    }
                    op::CHOOSE_FIRSTN
                    | op::CHOOSE_INDEP
                    | op::CHOOSELEAF_FIRSTN
                    | op::CHOOSELEAF_INDEP
                        if step.arg2 != 0 && self.types.name(step.arg2).is_none() =>
                    {
                        return bad(format!("rule {n} chooses unknown type {}", step.arg2));
                    }
                    op::SET_CHOOSE_TRIES..=op::SET_CHOOSE_LOCAL_FALLBACK_TRIES
                        if step.arg1 > TRIES_MAX as i32 =>
                    {
                        return bad(format!("rule {n} asks for {} tries", step.arg1));
                    }
                    _ => {}
                }
            }
        }
        let t = &self.tunables;
        for tries in [t.choose_local_tries, t.choose_local_fallback_tries, t.choose_total_tries] {
            if tries > TRIES_MAX {
                return bad(format!("tunables ask for {tries} tries"));
            }
        }
        for (key, cmap) in &self.choose_args {
            for (index, arg) in &cmap.args {
                let size = self.bucket(-1 - *index as i32).map_or(0, |b| b.items.len());
                if arg.weight_set.iter().any(|w| w.len() != size)
                    || !(arg.ids.is_empty() || arg.ids.len() == size)
                {
                    return bad(format!(
                        "choose_args {key} do not fit bucket {}",
                        -1 - *index as i32
                    ));
                }
            }
        }
        Ok(())
    }

    /// Levels of buckets below one, itself included, counted no further than needed.
    fn depth_below(&self, id: i32) -> usize {
        let mut level = vec![id];
        let mut depth = 0;
        while !level.is_empty() && depth <= MAX_DEPTH {
            depth += 1;
            let next: BTreeSet<i32> = level
                .iter()
                .filter_map(|id| self.bucket(*id))
                .flat_map(|b| b.items.iter().copied().filter(|i| *i < 0))
                .collect();
            level = next.into_iter().collect();
        }
        depth
    }
}
