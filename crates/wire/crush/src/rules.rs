//! Making and removing rules (Ceph: `CrushWrapper::add_simple_rule_at`), and checking placements
//! against them.

use crate::{CrushError, CrushMap, MAX_RULES, Rule, Step, op};
use std::collections::{BTreeMap, BTreeSet};

type Result<T> = std::result::Result<T, CrushError>;

/// Whether failed positions close up or stay open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleMode {
    /// For replicated pools: later items move up.
    Firstn,
    /// For erasure-coded pools: each position keeps its item.
    Indep,
}

/// Where the devices of one map are, as far as placements were checked: what many checks share.
#[derive(Clone, Debug, Default)]
pub struct Domains {
    /// By rule and type: the bucket above each device; zero, which is no bucket, for none.
    parents: BTreeMap<(i32, u16), Vec<i32>>,
    /// By root: which devices are below.
    below: BTreeMap<i32, Vec<bool>>,
}

impl Domains {
    /// The bucket of a type, below a rule's roots, that a device is in (as
    /// [`CrushMap::parent_of_type`]).
    fn parent(&mut self, map: &CrushMap, device: i32, kind: u16, rule: i32) -> Option<i32> {
        let parents = self.parents.entry((rule, kind)).or_insert_with(|| {
            let mut parents = vec![0; usize::try_from(map.max_devices).unwrap_or(0)];
            let takes: BTreeSet<i32> = map.rule(rule).into_iter().flat_map(|r| r.takes()).collect();
            // The first bucket that has a device counts.
            for bucket in takes.into_iter().flat_map(|root| map.children_of_type(root, kind)) {
                for device in map.leaves(bucket) {
                    let slot = usize::try_from(device).ok().and_then(|d| parents.get_mut(d));
                    if let Some(slot @ 0) = slot {
                        *slot = bucket;
                    }
                }
            }
            parents
        });
        usize::try_from(device).ok().and_then(|d| parents.get(d)).copied().filter(|p| *p != 0)
    }

    /// Whether a device is below a root.
    fn is_below(&mut self, map: &CrushMap, root: i32, device: i32) -> bool {
        let below = self.below.entry(root).or_insert_with(|| {
            let mut below = vec![false; usize::try_from(map.max_devices).unwrap_or(0)];
            for device in map.leaves(root) {
                let slot = usize::try_from(device).ok().and_then(|d| below.get_mut(d));
                slot.into_iter().for_each(|s| *s = true);
            }
            below
        });
        usize::try_from(device).ok().and_then(|d| below.get(d)).is_some_and(|b| *b)
    }
}

impl CrushMap {
    /// Adds a rule that chooses one device in each of as many buckets of a type as the pool has
    /// members. `failure_domain` may be empty (devices directly), `device_class` too (all devices).
    /// Without a number the first free one is taken. Returns the rule's number.
    #[allow(clippy::too_many_arguments)] // The arguments of the command that this serves.
    pub fn add_simple_rule(
        &mut self,
        name: &str,
        root_name: &str,
        failure_domain: &str,
        device_class: &str,
        mode: RuleMode,
        pool_type: u8,
        number: Option<u8>,
    ) -> Result<i32> {
        if self.rule_names.id(name).is_some() {
            return Err(CrushError::Exists(format!("rule {name}")));
        }
        let number = self.free_rule_number(number)?;
        let mut root = self
            .names
            .id(root_name)
            .ok_or_else(|| CrushError::NotFound(format!("root item {root_name}")))?;
        let kind = if failure_domain.is_empty() {
            0
        } else {
            self.types
                .id(failure_domain)
                .ok_or_else(|| CrushError::Invalid(format!("unknown type {failure_domain}")))?
        };
        if !device_class.is_empty() {
            let class = self.class_names.id(device_class).ok_or_else(|| {
                CrushError::Invalid(format!("device class {device_class} does not exist"))
            })?;
            root = *self.class_bucket.get(&root).and_then(|m| m.get(&class)).ok_or_else(|| {
                CrushError::Invalid(format!(
                    "root {root_name} has no devices with class {device_class}"
                ))
            })?;
        }
        let mut steps = Vec::with_capacity(5);
        let (choose, chooseleaf, min_size, max_size) = match mode {
            RuleMode::Firstn => (op::CHOOSE_FIRSTN, op::CHOOSELEAF_FIRSTN, 1, 10),
            RuleMode::Indep => {
                steps.push(Step::new(op::SET_CHOOSELEAF_TRIES, 5, 0));
                steps.push(Step::new(op::SET_CHOOSE_TRIES, 100, 0));
                (op::CHOOSE_INDEP, op::CHOOSELEAF_INDEP, 3, 20)
            }
        };
        steps.push(Step::new(op::TAKE, root, 0));
        steps.push(Step::new(if kind == 0 { choose } else { chooseleaf }, 0, kind));
        steps.push(Step::new(op::EMIT, 0, 0));
        self.place_rule(
            number,
            name,
            Rule { ruleset: number, kind: pool_type, min_size, max_size, steps },
        );
        Ok(i32::from(number))
    }

    /// Adds a rule as it is, under a number of its own (the first free one without). Returns it.
    pub fn add_rule(&mut self, name: &str, number: Option<u8>, mut rule: Rule) -> Result<i32> {
        if self.rule_names.id(name).is_some() {
            return Err(CrushError::Exists(format!("rule {name}")));
        }
        let number = self.free_rule_number(number)?;
        rule.ruleset = number;
        self.place_rule(number, name, rule);
        Ok(i32::from(number))
    }

    fn free_rule_number(&self, wanted: Option<u8>) -> Result<u8> {
        let taken =
            |n: u8| self.rule(i32::from(n)).is_some() || self.rules().any(|(_, r)| r.ruleset == n);
        match wanted {
            Some(n) if taken(n) => Err(CrushError::Exists(format!("rule with ruleno {n}"))),
            Some(n) => Ok(n),
            None => (0..=(MAX_RULES - 1) as u8)
                .find(|n| !taken(*n))
                .ok_or(CrushError::NoSpace("rule number")),
        }
    }

    fn place_rule(&mut self, number: u8, name: &str, rule: Rule) {
        let n = usize::from(number);
        if self.rules.len() <= n {
            self.rules.resize(n + 1, None);
        }
        self.rules[n] = Some(rule);
        self.rule_names.set(i32::from(number), name);
    }

    /// Sets the largest pool that a rule is for.
    pub fn set_rule_max_size(&mut self, number: i32, max: u8) -> Result<()> {
        let slot = usize::try_from(number).ok().and_then(|n| self.rules.get_mut(n));
        match slot {
            Some(Some(rule)) => rule.max_size = max,
            _ => return Err(CrushError::NotFound(format!("rule {number}"))),
        }
        Ok(())
    }

    /// Removes a rule. Its number may be used again.
    pub fn remove_rule(&mut self, number: i32) -> Result<()> {
        let slot = usize::try_from(number).ok().and_then(|n| self.rules.get_mut(n));
        match slot {
            Some(slot) if slot.is_some() => *slot = None,
            _ => return Err(CrushError::NotFound(format!("rule {number}"))),
        }
        self.rule_names.remove(number);
        self.rebuild_roots_with_classes()
    }

    /// Renames a rule.
    pub fn rename_rule(&mut self, from: &str, to: &str) -> Result<()> {
        let id = self
            .rule_names
            .id(from)
            .ok_or_else(|| CrushError::NotFound(format!("rule '{from}'")))?;
        if self.rule_names.id(to).is_some() {
            return Err(CrushError::Exists(format!("rule '{to}'")));
        }
        self.rule_names.set(id, to);
        Ok(())
    }

    /// Whether a placement (made by hand) keeps to the rule's failure domains and root
    /// (`CrushWrapper::verify_upmap`).
    pub fn verify_upmap(
        &self,
        rule_id: i32,
        pool_size: u32,
        up: &[i32],
        domains: &mut Domains,
    ) -> Result<()> {
        let rule =
            self.rule(rule_id).ok_or_else(|| CrushError::NotFound(format!("rule {rule_id}")))?;
        let mut root = 0;
        let mut at = 0;
        // Number chosen by type; the first step of a type counts.
        let mut chosen: BTreeMap<i32, i64> = BTreeMap::new();
        for step in &rule.steps {
            match step.op {
                op::TAKE => root = step.arg1,
                op::CHOOSELEAF_FIRSTN
                | op::CHOOSELEAF_INDEP
                | op::CHOOSE_FIRSTN
                | op::CHOOSE_INDEP => {
                    let mut n = i64::from(step.arg1);
                    if n <= 0 {
                        n += i64::from(pool_size);
                    }
                    chosen.entry(step.arg2).or_insert(n);
                    let Ok(kind) = u16::try_from(step.arg2) else { continue };
                    if kind == 0 {
                        continue;
                    }
                    let mut by_parent: BTreeMap<i32, BTreeSet<i32>> = BTreeMap::new();
                    for osd in up {
                        if let Some(parent) = domains.parent(self, *osd, kind, rule_id) {
                            by_parent.entry(parent).or_default().insert(*osd);
                        }
                    }
                    let leaf = matches!(step.op, op::CHOOSELEAF_FIRSTN | op::CHOOSELEAF_INDEP);
                    if leaf
                        && let Some((parent, osds)) =
                            by_parent.iter().find(|(_, osds)| osds.len() > 1)
                    {
                        return Err(CrushError::Invalid(format!(
                            "osds {osds:?} share failure domain {parent}"
                        )));
                    }
                    if !leaf && by_parent.len() as i64 > n {
                        return Err(CrushError::Invalid(format!(
                            "{} buckets exceed {n}",
                            by_parent.len()
                        )));
                    }
                }
                op::EMIT => {
                    if root < 0 {
                        let n =
                            chosen.values().fold(1i64, |a, b| a.saturating_mul(*b)).max(0) as usize;
                        for osd in up.iter().skip(at).take(n) {
                            if !domains.is_below(self, root, *osd) {
                                return Err(CrushError::Invalid(format!(
                                    "osd {osd} is not in bucket {root}"
                                )));
                            }
                            at += 1;
                        }
                    }
                    chosen.clear();
                    root = 0;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
