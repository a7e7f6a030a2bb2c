//! Weights of items, and how a change travels up the hierarchy and through the choose_args (Ceph:
//! `CrushWrapper::adjust_item_weight*`, `choose_args_adjust_item_weight`, `reweight`).

use crate::map::index_of;
use crate::{Algorithm, CrushError, CrushMap};
use std::collections::{BTreeMap, BTreeSet};

type Result<T> = std::result::Result<T, CrushError>;

/// The largest weight that an operator may set.
const WEIGHT_MAX: f32 = i32::MAX as f32;

/// 16.16 fixed point from what an operator typed, rounded as Ceph does.
pub(crate) fn fixed(weight: f32) -> Result<u32> {
    let scaled = weight * 65536.0;
    if (0.0..WEIGHT_MAX).contains(&scaled) { Ok(scaled as u32) } else { Err(CrushError::Overflow) }
}

impl CrushMap {
    /// A weight in 16.16 fixed point, from its decimal form.
    pub fn weight_from_f32(weight: f32) -> Result<u32> {
        fixed(weight)
    }

    /// The item's weight: a bucket's own, else that in the first bucket which holds it.
    pub fn item_weight(&self, id: i32) -> Option<u32> {
        self.buckets().find_map(|b| {
            if b.id == id {
                return Some(b.weight);
            }
            b.position(id).map(|at| b.item_weight(at))
        })
    }

    /// Relative weight of each device that a rule can choose: for each of its starting points they
    /// sum up to one (Ceph: `CrushWrapper::get_rule_weight_osd_map`).
    pub fn rule_weights(&self, rule: i32) -> BTreeMap<i32, f64> {
        let mut all = BTreeMap::new();
        for take in self.rule(rule).into_iter().flat_map(|r| r.takes()) {
            let mut weights: BTreeMap<i32, f64> = BTreeMap::new();
            let mut seen = BTreeSet::new();
            let mut queue = vec![take];
            if take >= 0 {
                weights.insert(take, 1.0);
            }
            while let Some(id) = queue.pop() {
                if !seen.insert(id) {
                    continue;
                }
                for (item, weight) in self.bucket(id).into_iter().flat_map(|b| b.weighted_items()) {
                    if item >= 0 {
                        weights.insert(item, f64::from(weight));
                    } else {
                        queue.push(item);
                    }
                }
            }
            let sum: f64 = weights.values().sum();
            for (device, weight) in weights {
                *all.entry(device).or_insert(0.0) += if sum > 0.0 { weight / sum } else { 0.0 };
            }
        }
        all
    }

    /// Sets the item's weight in every bucket that holds it, and the sums above. Returns how many
    /// buckets held it.
    pub fn adjust_item_weight(
        &mut self,
        id: i32,
        weight: u32,
        update_weight_sets: bool,
    ) -> Result<usize> {
        self.ensure_acyclic()?;
        match self.adjust_everywhere(id, weight, update_weight_sets) {
            0 => Err(CrushError::NotFound(format!("item {id}"))),
            n => Ok(n),
        }
    }

    /// Sets the item's weight in the buckets of a location only.
    pub fn adjust_item_weight_in_loc(
        &mut self,
        id: i32,
        weight: u32,
        loc: &BTreeMap<String, String>,
        update_weight_sets: bool,
    ) -> Result<usize> {
        self.ensure_acyclic()?;
        let mut changed = 0;
        for bucket in loc.values() {
            if let Some(bid) = self.names.id(bucket)
                && self.adjust_in_bucket(id, weight, bid, update_weight_sets)
            {
                changed += 1;
            }
        }
        if changed == 0 {
            Err(CrushError::NotFound(format!("item {id} in that location")))
        } else {
            Ok(changed)
        }
    }

    /// Sets the weight of every device below a bucket. Returns how many places changed.
    pub fn adjust_subtree_weight(
        &mut self,
        id: i32,
        weight: u32,
        update_weight_sets: bool,
    ) -> Result<usize> {
        self.ensure_acyclic()?;
        if self.bucket(id).is_none() {
            return Err(CrushError::NotFound(format!("bucket {id}")));
        }
        let mut changed = 0;
        let mut queue = std::collections::VecDeque::from([id]);
        while let Some(id) = queue.pop_front() {
            let Some(b) = self.bucket(id) else { continue };
            for item in b.items.clone() {
                if item >= 0 {
                    self.adjust_in_bucket(item, weight, id, update_weight_sets);
                    changed += 1;
                } else {
                    queue.push_back(item);
                }
            }
        }
        self.rebuild_roots_with_classes()?;
        Ok(changed)
    }

    /// Recomputes all bucket weights from the devices up.
    pub fn reweight(&mut self) -> Result<()> {
        self.ensure_acyclic()?;
        for root in self.nonshadow_roots() {
            self.reweight_bucket(root)?;
            let keys: Vec<i64> = self.choose_args.keys().copied().collect();
            for key in keys {
                self.reweight_choose_args(root, key, 1);
            }
        }
        self.rebuild_roots_with_classes()
    }

    fn reweight_bucket(&mut self, id: i32) -> Result<u32> {
        let Some(b) = self.bucket(id) else { return Ok(0) };
        let items = b.items.clone();
        let mut children = Vec::with_capacity(items.len());
        for item in items {
            children.push(if item < 0 { Some(self.reweight_bucket(item)?) } else { None });
        }
        let version = self.tunables.straw_calc_version;
        let Some(b) = self.bucket_mut(id) else { return Ok(0) };
        b.reweight(&children, version)?;
        Ok(b.weight)
    }

    /// Sums up the weight sets below a bucket. Only the first position is written back: Ceph's
    /// function does that, and the bytes of the map follow from it.
    fn reweight_choose_args(&mut self, id: i32, key: i64, want: usize) -> Vec<u32> {
        let Some(b) = self.bucket(id) else { return vec![0; want] };
        let items = b.items.clone();
        let Some(index) = index_of(id) else { return vec![0; want] };
        let positions = |map: &CrushMap| {
            map.choose_args
                .get(&key)
                .and_then(|c| c.args.get(&index))
                .map_or(0, |a| a.weight_set.len())
        };
        let n = positions(self);
        let mut sums = vec![0u32; n];
        for (i, item) in items.iter().enumerate() {
            if *item >= 0 {
                let w = self.first_weight(key, index, i);
                for s in &mut sums {
                    *s = s.wrapping_add(w);
                }
            } else {
                let below = self.reweight_choose_args(*item, key, n);
                for (pos, s) in sums.iter_mut().enumerate() {
                    let w = below.get(pos).copied().unwrap_or(0);
                    *s = s.wrapping_add(w);
                    if let Some(slot) = self
                        .choose_args
                        .get_mut(&key)
                        .and_then(|c| c.args.get_mut(&index))
                        .and_then(|a| a.weight_set.first_mut())
                        .and_then(|set| set.get_mut(i))
                    {
                        *slot = w;
                    }
                }
            }
        }
        sums
    }

    fn first_weight(&self, key: i64, index: u32, item: usize) -> u32 {
        self.choose_args
            .get(&key)
            .and_then(|c| c.args.get(&index))
            .and_then(|a| a.weight_set.first())
            .and_then(|set| set.get(item))
            .copied()
            .unwrap_or(0)
    }

    /// As [`CrushMap::adjust_item_weight`] for a map known to have no loop; 0 if nothing holds it.
    pub(crate) fn adjust_everywhere(
        &mut self,
        id: i32,
        weight: u32,
        update_weight_sets: bool,
    ) -> usize {
        // With choose_args Ceph sums up the weight sets of every bucket on the way, and gives those
        // that have none a weight set of their own; without, only the item's holders need a visit.
        let all = !self.choose_args.is_empty();
        let holders: Vec<i32> =
            self.buckets().filter(|b| all || b.items.contains(&id)).map(|b| b.id).collect();
        let mut changed = 0;
        for b in holders {
            changed += usize::from(self.adjust_in_bucket(id, weight, b, update_weight_sets));
        }
        changed
    }

    /// Sets the item's weight in one bucket. Returns whether the bucket holds it.
    pub(crate) fn adjust_in_bucket(
        &mut self,
        id: i32,
        weight: u32,
        bucket: i32,
        update_weight_sets: bool,
    ) -> bool {
        let version = self.tunables.straw_calc_version;
        let Some(index) = index_of(bucket) else { return false };
        let Some(b) = self.bucket_mut(bucket) else { return false };
        let held = b.position(id);
        if let Some(at) = held {
            b.set_item_weight(id, weight, version);
            let total = b.weight;
            if update_weight_sets {
                for cmap in self.choose_args.values_mut() {
                    if let Some(arg) = cmap.args.get_mut(&index) {
                        for slot in arg.weight_set.iter_mut().filter_map(|set| set.get_mut(at)) {
                            *slot = weight;
                        }
                    }
                }
            }
            self.adjust_everywhere(bucket, total, false);
        }
        // Keep the weight sets above equal to the sums below.
        let keys: Vec<i64> = self.choose_args.keys().copied().collect();
        for key in keys {
            let sums = self.choose_args[&key].args.get(&index).map(sums_of).unwrap_or_default();
            if !sums.is_empty() {
                self.choose_args_adjust_item_weight(key, bucket, &sums);
            }
        }
        held.is_some()
    }

    /// Sets an item's weights, one for each position, in the weight sets of every bucket. Buckets
    /// without a weight set get one first, filled from their own weights. Returns how many buckets
    /// changed.
    pub fn choose_args_adjust_item_weight(&mut self, key: i64, id: i32, weights: &[u32]) -> usize {
        let mut changed = 0;
        for index in 0..self.buckets.len() {
            if self.buckets[index].is_some() {
                changed +=
                    usize::from(self.choose_args_adjust_in_bucket(key, index as u32, id, weights));
            }
        }
        changed
    }

    fn choose_args_adjust_in_bucket(
        &mut self,
        key: i64,
        index: u32,
        id: i32,
        weights: &[u32],
    ) -> bool {
        let Some(Some(b)) = self.buckets.get(index as usize) else { return false };
        let Some(cmap) = self.choose_args.get_mut(&key) else { return false };
        let positions = cmap.positions();
        let arg = cmap.args.entry(index).or_default();
        let mut changed = false;
        if arg.weight_set.is_empty() {
            let own: Vec<u32> = b.weighted_items().map(|(_, w)| w).collect();
            arg.weight_set = vec![own; positions];
            changed = true;
        }
        if arg.weight_set.len() != weights.len() {
            return false;
        }
        for (at, _) in b.items.iter().enumerate().filter(|(_, item)| **item == id) {
            for (set, w) in arg.weight_set.iter_mut().zip(weights) {
                if let Some(slot) = set.get_mut(at) {
                    *slot = *w;
                }
            }
            changed = true;
        }
        if changed {
            let sums = sums_of(arg);
            let bucket = b.id;
            self.choose_args_adjust_item_weight(key, bucket, &sums);
        }
        changed
    }

    /// Drops choose_args of buckets that are gone or not straw2, and fits weight sets to the
    /// buckets' sizes (`CrushWrapper::update_choose_args`).
    pub(crate) fn update_choose_args(&mut self) {
        let buckets = &self.buckets;
        for cmap in self.choose_args.values_mut() {
            let positions = cmap.positions();
            cmap.args.retain(|index, arg| {
                let Some(Some(b)) = buckets.get(*index as usize) else { return false };
                if b.algorithm() != Algorithm::Straw2 {
                    return false;
                }
                if arg.weight_set.len() == positions {
                    for set in &mut arg.weight_set {
                        set.resize(b.items.len(), 0);
                    }
                }
                !arg.is_empty()
            });
        }
    }

    /// Fails if some bucket contains itself, at whatever depth: walking such a map up or down would
    /// not end.
    pub(crate) fn ensure_acyclic(&self) -> Result<()> {
        // Iterative depth-first search; `open` holds the buckets on the current path.
        let (mut done, mut open) = (BTreeSet::new(), BTreeSet::new());
        for start in self.buckets() {
            let mut stack = vec![(start.id, 0usize)];
            while let Some((id, at)) = stack.pop() {
                if at == 0 {
                    if done.contains(&id) {
                        continue;
                    }
                    if !open.insert(id) {
                        return Err(CrushError::Loop(id));
                    }
                }
                let Some(b) = self.bucket(id) else {
                    open.remove(&id);
                    done.insert(id);
                    continue;
                };
                match b.items.iter().enumerate().skip(at).find(|(_, i)| **i < 0) {
                    Some((i, child)) => {
                        stack.push((id, i + 1));
                        stack.push((*child, 0));
                    }
                    None => {
                        open.remove(&id);
                        done.insert(id);
                    }
                }
            }
        }
        Ok(())
    }
}

fn sums_of(arg: &crate::ChooseArg) -> Vec<u32> {
    arg.weight_set.iter().map(|set| set.iter().fold(0u32, |a, w| a.wrapping_add(*w))).collect()
}
