//! Device classes and their shadow trees (Ceph: `CrushWrapper::rebuild_roots_with_classes`,
//! `device_class_clone`).
//!
//! For each root and class there is a copy of the tree with only that class's devices, named
//! `bucket~class`; rules that ask for a class start from it. The copies are rebuilt after every
//! change. A copy keeps the id it had before, because rules refer to it and placement hashes ids;
//! new copies take the free id nearest to zero that no previous copy had.

use crate::map::index_of;
use crate::{Bucket, ChooseArg, CrushError, CrushMap, is_valid_name};
use std::collections::{BTreeMap, BTreeSet};

type Result<T> = std::result::Result<T, CrushError>;

/// What one rebuild carries through the recursion.
struct Rebuild {
    old: BTreeMap<i32, BTreeMap<i32, i32>>,
    used: BTreeSet<i32>,
    /// Weight of each copied bucket by choose_args key, for the bucket above it.
    weights: BTreeMap<i64, BTreeMap<i32, Vec<u32>>>,
}

impl CrushMap {
    /// Rebuilds all shadow trees, and forgets classes without devices and rules.
    pub fn rebuild_roots_with_classes(&mut self) -> Result<()> {
        self.ensure_acyclic()?;
        let old = self.class_bucket.clone();
        self.forget_dead_classes();
        for root in self.roots() {
            if self.is_shadow(root) {
                self.remove_tree(root);
            }
        }
        self.class_bucket.clear();
        let used = old.values().flat_map(|m| m.values().copied()).collect();
        let mut state = Rebuild { old, used, weights: BTreeMap::new() };
        let classes: Vec<i32> = self.class_names.iter().map(|c| c.0).collect();
        for root in self.nonshadow_roots() {
            for class in &classes {
                self.clone_for_class(root, *class, &mut state)?;
            }
        }
        Ok(())
    }

    fn forget_dead_classes(&mut self) {
        let takes: BTreeSet<i32> = self.rules().flat_map(|(_, r)| r.takes()).collect();
        let dead: Vec<i32> = self
            .class_names
            .iter()
            .map(|c| c.0)
            .filter(|class| {
                !self.class_map.iter().any(|(item, c)| *item >= 0 && c == class)
                    && !self
                        .class_bucket
                        .values()
                        .any(|m| m.get(class).is_some_and(|id| takes.contains(id)))
            })
            .collect();
        for class in dead {
            self.class_names.remove(class);
        }
    }

    /// Removes a bucket and the buckets below it. Trees may share parts, so what is gone is
    /// skipped.
    fn remove_tree(&mut self, id: i32) {
        let Some(b) = self.bucket(id) else { return };
        for item in b.items.clone() {
            if item < 0 {
                self.remove_tree(item);
            }
        }
        self.names.remove(id);
        self.destroy_bucket(id);
    }

    fn clone_for_class(
        &mut self,
        original_id: i32,
        class: i32,
        state: &mut Rebuild,
    ) -> Result<i32> {
        let unnamed = || CrushError::NotFound(format!("name of bucket {original_id}"));
        let class_name = self
            .class_names
            .name(class)
            .ok_or_else(|| CrushError::NotFound(format!("class {class}")))?;
        let copy_name =
            format!("{}~{class_name}", self.names.name(original_id).ok_or_else(unnamed)?);
        if let Some(id) = self.names.id(&copy_name) {
            return Ok(id);
        }
        let original = self
            .bucket(original_id)
            .ok_or_else(|| CrushError::NotFound(format!("bucket {original_id}")))?
            .clone();
        let version = self.tunables.straw_calc_version;
        let mut copy = Bucket::new(original.algorithm(), original.kind);
        copy.hash = original.hash;
        // Position in the original of each copied item.
        let mut positions = Vec::new();
        for (at, (item, weight)) in original.weighted_items().enumerate() {
            if item >= 0 {
                if self.class_map.get(&item) != Some(&class) {
                    continue;
                }
                copy.add_item(item, weight, version)?;
            } else {
                let child = self.clone_for_class(item, class, state)?;
                let weight = self.bucket(child).map_or(0, |b| b.weight);
                copy.add_item(child, weight, version)?;
            }
            positions.push(at);
        }
        let id = match state.old.get(&original_id).and_then(|m| m.get(&class)) {
            Some(id) => *id,
            None => {
                let mut id = -1;
                while self.bucket(id).is_some() || state.used.contains(&id) {
                    id -= 1;
                }
                id
            }
        };
        let items = copy.items.clone();
        let id = self.place_bucket(Some(id), copy)?;
        self.class_map.insert(id, class);
        self.names.set(id, copy_name);
        self.class_bucket.entry(original_id).or_default().insert(class, id);
        self.clone_choose_args(original_id, id, &items, &positions, state);
        Ok(id)
    }

    /// Gives a copied bucket the weight sets of its original. The sums passed up hold only the last
    /// position; stock Ceph computes them so, and clients must agree with it bit for bit.
    fn clone_choose_args(
        &mut self,
        from: i32,
        to: i32,
        items: &[i32],
        positions: &[usize],
        state: &mut Rebuild,
    ) {
        let (Some(from), Some(to_index)) = (index_of(from), index_of(to)) else { return };
        for (key, cmap) in &mut self.choose_args {
            let sets = cmap.args.get(&from).map(|a| a.weight_set.clone()).unwrap_or_default();
            if sets.is_empty() {
                cmap.args.remove(&to_index);
                continue;
            }
            let below = state.weights.entry(*key).or_default();
            let mut sums = vec![0u32; sets.len()];
            let mut weight_set = Vec::with_capacity(sets.len());
            for (s, set) in sets.iter().enumerate() {
                sums = vec![0; sets.len()];
                let mut weights = Vec::with_capacity(items.len());
                for (item, at) in items.iter().zip(positions) {
                    let w = if *item >= 0 {
                        set.get(*at)
                    } else {
                        below.get(item).and_then(|w| w.get(s))
                    };
                    let w = w.copied().unwrap_or(0);
                    sums[s] = sums[s].wrapping_add(w);
                    weights.push(w);
                }
                weight_set.push(weights);
            }
            below.insert(to, sums);
            cmap.args.insert(to_index, ChooseArg { weight_set, ids: Vec::new() });
        }
    }

    /// The number of a class, which is created if need be.
    pub fn get_or_create_class(&mut self, name: &str) -> Result<i32> {
        if let Some(id) = self.class_names.id(name) {
            return Ok(id);
        }
        if !is_valid_name(name) {
            return Err(CrushError::Invalid(format!("'{name}' is not a valid class name")));
        }
        let id = match self.class_names.last_id() {
            None => 0,
            Some(last) => last.checked_add(1).ok_or(CrushError::NoSpace("class id"))?,
        };
        self.class_names.set(id, name);
        Ok(id)
    }

    /// Binds a device to a class. Returns whether that is news; a device in another class is
    /// refused.
    pub fn set_device_class(&mut self, id: i32, class: &str) -> Result<bool> {
        if id < 0 || !self.names.contains(id) {
            return Err(CrushError::NotFound(format!("osd.{id}")));
        }
        if let Some(old) = self.item_class(id)
            && old != class
        {
            return Err(CrushError::Busy(format!(
                "osd.{id} has already bound to class '{old}', can not reset class to '{class}'; use 'ceph osd crush \
                 rm-device-class <id>' to remove old class first: class '{old}'"
            )));
        }
        let class = self.get_or_create_class(class)?;
        if self.class_map.insert(id, class) == Some(class) {
            return Ok(false);
        }
        self.rebuild_roots_with_classes()?;
        Ok(true)
    }

    /// Puts all devices below a bucket into a class, whatever class they were in. The shadow trees
    /// are left to the caller, which may have more to change.
    pub fn set_subtree_class(&mut self, bucket: &str, class: &str) -> Result<()> {
        let id =
            self.names.id(bucket).ok_or_else(|| CrushError::NotFound(format!("'{bucket}'")))?;
        let class = self.get_or_create_class(class)?;
        for device in self.leaves(id) {
            self.class_map.insert(device, class);
        }
        Ok(())
    }

    /// Unbinds a device from its class. Returns whether it had one.
    pub fn remove_device_class(&mut self, id: i32) -> Result<bool> {
        if !self.names.contains(id) {
            return Err(CrushError::NotFound(format!("osd.{id}")));
        }
        if self.item_class(id).is_none() {
            return Ok(false);
        }
        self.class_map.remove(&id);
        self.rebuild_roots_with_classes()?;
        Ok(true)
    }

    /// Renames a class and its shadow buckets.
    pub fn rename_class(&mut self, from: &str, to: &str) -> Result<()> {
        let class = self
            .class_names
            .id(from)
            .ok_or_else(|| CrushError::NotFound(format!("class '{from}'")))?;
        if self.class_names.id(to).is_some() {
            return Err(CrushError::Exists(format!("class '{to}'")));
        }
        if !is_valid_name(to) {
            return Err(CrushError::Invalid(format!("'{to}' is not a valid class name")));
        }
        let shadows: Vec<i32> =
            self.class_map.iter().filter(|(i, c)| **i < 0 && **c == class).map(|p| *p.0).collect();
        for id in shadows {
            if let Some((original, _)) = self.names.name(id).and_then(|n| n.split_once('~')) {
                let name = format!("{original}~{to}");
                self.names.set(id, name);
            }
        }
        self.class_names.set(class, to);
        Ok(())
    }

    /// Rules that start from a shadow tree of the class.
    pub fn rules_by_class(&self, class: &str) -> Vec<i32> {
        let Some(class) = self.class_names.id(class) else { return Vec::new() };
        self.rules()
            .filter(|(_, r)| {
                r.takes().any(|t| self.split_shadow(t).is_some_and(|s| s.1 == Some(class)))
            })
            .map(|(id, _)| id)
            .collect()
    }

    /// Devices of a class.
    pub fn devices_by_class(&self, class: &str) -> Vec<i32> {
        let Some(class) = self.class_names.id(class) else { return Vec::new() };
        self.class_map.iter().filter(|(i, c)| **i >= 0 && **c == class).map(|p| *p.0).collect()
    }
}
