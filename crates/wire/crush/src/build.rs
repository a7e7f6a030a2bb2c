//! Adding, moving and removing items, as a monitor does on behalf of OSDs and operators (Ceph:
//! `CrushWrapper::insert_item` and its neighbours). Each function leaves the device-class shadow
//! trees rebuilt. A location is a map from bucket type to bucket name, such as `host=a,
//! root=default`.

use crate::map::index_of;
use crate::weights::fixed;
use crate::{Algorithm, Bucket, CrushError, CrushMap, is_valid_name};
use std::collections::BTreeMap;

type Result<T> = std::result::Result<T, CrushError>;
type Loc = BTreeMap<String, String>;

fn check_name(name: &str) -> Result<()> {
    if is_valid_name(name) {
        Ok(())
    } else {
        Err(CrushError::Invalid(format!("'{name}' is not a valid CRUSH name")))
    }
}

fn check_loc(loc: &Loc) -> Result<()> {
    loc.iter().try_for_each(|(k, v)| check_name(k).and(check_name(v)))
}

/// A weight as it comes out of Ceph's passage through single precision.
fn through_f32(weight: u32) -> Result<u32> {
    fixed(weight as f32 / 65536.0)
}

impl CrushMap {
    /// Adds a bucket without a parent. Without an id the first free one is taken, without an
    /// algorithm the best allowed. Returns its id.
    pub fn add_bucket(
        &mut self,
        id: Option<i32>,
        algorithm: Option<Algorithm>,
        kind: u16,
        items: &[(i32, u32)],
    ) -> Result<i32> {
        let algorithm = algorithm
            .or_else(|| self.default_algorithm())
            .ok_or_else(|| CrushError::Invalid("no bucket algorithm is allowed".into()))?;
        let bucket = Bucket::with_items(algorithm, kind, items, self.tunables.straw_calc_version)?;
        let id = self.place_bucket(id, bucket)?;
        if !items.is_empty()
            && let Some(index) = index_of(id)
        {
            for cmap in self.choose_args.values_mut() {
                let positions = cmap.positions();
                let weights: Vec<u32> = items.iter().map(|i| i.1).collect();
                cmap.args.entry(index).or_default().weight_set = vec![weights; positions];
            }
        }
        Ok(id)
    }

    /// Puts a bucket into the map's array, which doubles when it is full.
    pub(crate) fn place_bucket(&mut self, id: Option<i32>, mut bucket: Bucket) -> Result<i32> {
        let id = match id {
            Some(id) => id,
            None => {
                let free =
                    self.buckets.iter().position(Option::is_none).unwrap_or(self.buckets.len());
                -1 - i32::try_from(free).map_err(|_| CrushError::NoSpace("bucket id"))?
            }
        };
        let index = index_of(id)
            .ok_or_else(|| CrushError::Invalid(format!("{id} is not a bucket id")))?
            as usize;
        if index >= BUCKETS_MAX {
            return Err(CrushError::NoSpace("bucket id"));
        }
        while index >= self.buckets.len() {
            let grown = if self.buckets.is_empty() { 8 } else { self.buckets.len() * 2 };
            self.buckets.resize(grown, None);
        }
        if self.buckets[index].is_some() {
            return Err(CrushError::Exists(format!("bucket {id}")));
        }
        bucket.id = id;
        self.buckets[index] = Some(bucket);
        Ok(id)
    }

    /// Names an item.
    pub fn set_item_name(&mut self, id: i32, name: &str) -> Result<()> {
        check_name(name)?;
        self.names.set(id, name);
        Ok(())
    }

    pub(crate) fn bucket_add_item(&mut self, bucket: i32, item: i32, weight: u32) -> Result<()> {
        let version = self.tunables.straw_calc_version;
        let missing = || CrushError::NotFound(format!("bucket {bucket}"));
        self.bucket_mut(bucket).ok_or_else(missing)?.add_item(item, weight, version)?;
        let index = index_of(bucket).ok_or_else(missing)?;
        for arg in self.choose_args.values_mut().filter_map(|c| c.args.get_mut(&index)) {
            arg.weight_set.iter_mut().for_each(|set| set.push(weight));
            if !arg.ids.is_empty() {
                arg.ids.push(item);
            }
        }
        Ok(())
    }

    pub(crate) fn bucket_remove_item(&mut self, bucket: i32, item: i32) -> Result<()> {
        let version = self.tunables.straw_calc_version;
        let missing = || CrushError::NotFound(format!("bucket {bucket}"));
        let b = self.bucket_mut(bucket).ok_or_else(missing)?;
        let at = b.position(item).ok_or_else(|| CrushError::NotFound(format!("item {item}")))?;
        b.remove_item(item, version)?;
        let index = index_of(bucket).ok_or_else(missing)?;
        for cmap in self.choose_args.values_mut() {
            let Some(arg) = cmap.args.get_mut(&index) else { continue };
            for set in arg.weight_set.iter_mut().filter(|set| at < set.len()) {
                set.remove(at);
            }
            if at < arg.ids.len() {
                arg.ids.remove(at);
            }
        }
        Ok(())
    }

    /// Whether the item is in the most specific bucket that the location names; with its weight
    /// there.
    pub fn check_item_loc(&self, item: i32, loc: &Loc) -> Option<u32> {
        let (_, bucket) = self
            .types
            .iter()
            .filter(|(id, _)| *id != 0)
            .find_map(|(id, name)| Some((id, loc.get(name)?)))?;
        let b = self.bucket(self.names.id(bucket)?)?;
        b.position(item).map(|at| b.item_weight(at))
    }

    /// Inserts an item below the most specific bucket of a location, and creates the buckets of the
    /// location that do not exist yet. `init_weight_sets` gives a device its weight in existing
    /// weight sets too; otherwise it is zero there.
    pub fn insert_item(
        &mut self,
        item: i32,
        weight: u32,
        name: &str,
        loc: &Loc,
        init_weight_sets: bool,
    ) -> Result<()> {
        check_name(name)?;
        check_loc(loc)?;
        self.ensure_acyclic()?;
        match self.names.id(name) {
            Some(id) if id != item => {
                return Err(CrushError::Exists(format!("name '{name}' (item {id})")));
            }
            Some(_) => {}
            None => self.set_item_name(item, name)?,
        }
        let levels: Vec<(i32, String)> = self
            .types
            .iter()
            .filter(|(id, _)| *id != 0)
            .filter_map(|(id, name)| Some((id, loc.get(name)?.clone())))
            .collect();
        let mut current = item;
        for (kind, bucket_name) in levels {
            let kind = u16::try_from(kind)
                .map_err(|_| CrushError::Invalid(format!("type {kind} is out of range")))?;
            let Some(id) = self.names.id(&bucket_name) else {
                current = self.add_bucket(None, None, kind, &[(current, 0)])?;
                self.set_item_name(current, &bucket_name)?;
                continue;
            };
            let Some(b) = self.bucket(id) else {
                return Err(CrushError::Invalid(format!("'{bucket_name}' is not a bucket")));
            };
            if self.subtree_contains(id, current) {
                return Err(CrushError::Invalid(format!(
                    "item {current} is already below '{bucket_name}'"
                )));
            }
            if b.kind != kind {
                return Err(CrushError::Invalid(format!(
                    "bucket '{bucket_name}' is of type '{}', not '{}'",
                    self.types.name(i32::from(b.kind)).unwrap_or("?"),
                    self.types.name(i32::from(kind)).unwrap_or("?"),
                )));
            }
            if self.subtree_contains(current, id) {
                return Err(CrushError::Loop(current));
            }
            self.bucket_add_item(id, current, 0)?;
            break;
        }
        if self.adjust_item_weight_in_loc(item, weight, loc, item >= 0 && init_weight_sets).is_err()
        {
            return Err(CrushError::Invalid(format!("the location has no place for item {item}")));
        }
        if item >= self.max_devices {
            self.max_devices = item.saturating_add(1);
        }
        self.rebuild_roots_with_classes()
    }

    /// Makes sure that the item is at the location: leaves it if it is, moves it with the weight it
    /// has if it is elsewhere, and creates it with the given weight if it is new. Returns whether
    /// the map changed.
    pub fn create_or_move_item(
        &mut self,
        item: i32,
        weight: u32,
        name: &str,
        loc: &Loc,
        init_weight_sets: bool,
    ) -> Result<bool> {
        check_name(name)?;
        if self.check_item_loc(item, loc).is_some() {
            return Ok(false);
        }
        let mut weight = weight;
        if self.has_parent(item) {
            weight = through_f32(self.item_weight(item).unwrap_or(0))?;
            self.remove_item(item, true)?;
        }
        self.insert_item(item, weight, name, loc, init_weight_sets)?;
        Ok(true)
    }

    /// Makes sure that the item is at the location, has that weight and that name. Returns whether
    /// the map changed.
    pub fn update_item(&mut self, item: i32, weight: u32, name: &str, loc: &Loc) -> Result<bool> {
        check_name(name)?;
        check_loc(loc)?;
        let Some(old) = self.check_item_loc(item, loc) else {
            if self.names.contains(item) {
                self.remove_item(item, true).or_else(ignore_missing)?;
            }
            self.insert_item(item, weight, name, loc, true)?;
            return Ok(true);
        };
        let mut changed = false;
        if old != weight {
            self.adjust_item_weight_in_loc(item, weight, loc, true)?;
            self.rebuild_roots_with_classes()?;
            changed = true;
        }
        if self.names.name(item) != Some(name) {
            self.set_item_name(item, name)?;
            changed = true;
        }
        Ok(changed)
    }

    /// Moves a bucket with everything below it.
    pub fn move_bucket(&mut self, id: i32, loc: &Loc) -> Result<()> {
        self.ensure_acyclic()?;
        let (name, weight) = self.named_bucket(id)?;
        if let Some(parent) = self.parent(id).map(|b| b.id) {
            self.adjust_in_bucket(id, 0, parent, true);
            self.bucket_remove_item(parent, id)?;
        }
        self.insert_item(id, through_f32(weight)?, &name, loc, false)
    }

    /// Puts a bucket below a second parent.
    pub fn link_bucket(&mut self, id: i32, loc: &Loc) -> Result<()> {
        let (name, weight) = self.named_bucket(id)?;
        self.insert_item(id, through_f32(weight)?, &name, loc, true)
    }

    fn named_bucket(&self, id: i32) -> Result<(String, u32)> {
        let missing = || CrushError::NotFound(format!("bucket {id}"));
        if id >= 0 {
            return Err(CrushError::Invalid(format!("item {id} is not a bucket")));
        }
        let name = self.names.name(id).ok_or_else(missing)?.to_owned();
        Ok((name, self.bucket(id).ok_or_else(missing)?.weight))
    }

    /// Exchanges the contents and names of two buckets that do not contain each other.
    pub fn swap_bucket(&mut self, a: i32, b: i32) -> Result<()> {
        self.ensure_acyclic()?;
        let ((name_a, weight_a), (name_b, weight_b)) =
            (self.named_bucket(a)?, self.named_bucket(b)?);
        if a == b || self.subtree_contains(a, b) || self.subtree_contains(b, a) {
            return Err(CrushError::Invalid("one bucket contains the other".into()));
        }
        self.adjust_everywhere(a, weight_b, true);
        self.adjust_everywhere(b, weight_a, true);
        let contents = |map: &Self, id| {
            map.bucket(id).map(|b| b.weighted_items().collect::<Vec<_>>()).unwrap_or_default()
        };
        let (of_a, of_b) = (contents(self, a), contents(self, b));
        for (item, _) in &of_a {
            self.bucket_remove_item(a, *item)?;
        }
        for (item, weight) in of_b {
            self.bucket_remove_item(b, item)?;
            self.bucket_add_item(a, item, weight)?;
        }
        // Ceph carries the first bucket's items over in the order of their ids.
        for (item, weight) in of_a.into_iter().collect::<BTreeMap<_, _>>() {
            self.bucket_add_item(b, item, weight)?;
        }
        self.names.set(a, name_b.clone());
        self.names.set(b, name_a);
        self.names.set(a, name_b);
        self.rebuild_roots_with_classes()
    }

    /// Renames a bucket.
    pub fn rename_bucket(&mut self, from: &str, to: &str) -> Result<()> {
        let id =
            self.names.id(from).ok_or_else(|| CrushError::NotFound(format!("bucket '{from}'")))?;
        if self.names.id(to).is_some() {
            return Err(CrushError::Exists(format!("'{to}'")));
        }
        check_name(to)?;
        if id >= 0 {
            return Err(CrushError::NotBucket(format!("'{from}'")));
        }
        self.set_item_name(id, to)
    }

    /// Removes the item wherever it is. With `unlink_only` a bucket's contents, and a device's
    /// class, survive; otherwise a bucket must be empty and unused.
    pub fn remove_item(&mut self, item: i32, unlink_only: bool) -> Result<()> {
        self.ensure_acyclic()?;
        if item < 0 && !unlink_only {
            self.check_removable(item)?;
            if self.bucket_in_use(item) {
                return Err(CrushError::Busy(format!("bucket {item}")));
            }
        }
        let mut found = false;
        let holders: Vec<i32> = self.buckets().map(|b| b.id).collect();
        for bucket in holders {
            found |= self.unlink_from(bucket, item)?;
        }
        found |= self.maybe_remove_last_instance(item, unlink_only)?;
        if found { Ok(()) } else { Err(CrushError::NotFound(format!("item {item}"))) }
    }

    /// As [`CrushMap::remove_item`], but only below an ancestor.
    pub fn remove_item_under(&mut self, item: i32, ancestor: i32, unlink_only: bool) -> Result<()> {
        self.ensure_acyclic()?;
        if !unlink_only && self.bucket_in_use(item) {
            return Err(CrushError::Busy(format!("bucket {item}")));
        }
        if self.bucket(ancestor).is_none() {
            return Err(CrushError::Invalid(format!("{ancestor} is not a bucket")));
        }
        let mut found = false;
        let mut queue = vec![ancestor];
        while let Some(id) = queue.pop() {
            found |= self.unlink_from(id, item)?;
            if let Some(b) = self.bucket(id) {
                queue.extend(b.items.iter().filter(|i| **i < 0));
            }
        }
        if !found {
            return Err(CrushError::NotFound(format!("item {item} below {ancestor}")));
        }
        if item < 0 && !unlink_only {
            self.check_removable(item)?;
        }
        self.maybe_remove_last_instance(item, unlink_only)?;
        Ok(())
    }

    fn check_removable(&self, bucket: i32) -> Result<()> {
        match self.bucket(bucket) {
            None => Err(CrushError::NotFound(format!("bucket {bucket}"))),
            Some(b) if !b.items.is_empty() => Err(CrushError::NotEmpty(bucket)),
            Some(_) => Ok(()),
        }
    }

    /// Takes an item out of one bucket; returns whether it was there. It is counted before, because
    /// an empty place in a tree bucket looks like device 0.
    fn unlink_from(&mut self, bucket: i32, item: i32) -> Result<bool> {
        let times =
            self.bucket(bucket).map_or(0, |b| b.items.iter().filter(|i| **i == item).count());
        for _ in 0..times {
            if self.bucket(bucket).is_some_and(|b| b.position(item).is_some()) {
                self.adjust_in_bucket(item, 0, bucket, true);
                self.bucket_remove_item(bucket, item)?;
            }
        }
        Ok(times > 0)
    }

    fn maybe_remove_last_instance(&mut self, item: i32, unlink_only: bool) -> Result<bool> {
        if self.has_parent(item) || (item < 0 && self.bucket_in_use(item)) {
            return Ok(false);
        }
        if item < 0 && !unlink_only {
            self.destroy_bucket(item);
        }
        if item >= 0 || !unlink_only {
            let named = self.names.remove(item).is_some();
            if named && item >= 0 && !unlink_only {
                self.class_map.remove(&item);
            }
        }
        self.rebuild_roots_with_classes()?;
        Ok(true)
    }

    pub(crate) fn destroy_bucket(&mut self, id: i32) {
        if let Some(slot) = index_of(id).and_then(|i| self.buckets.get_mut(i as usize)) {
            *slot = None;
        }
        self.class_bucket.remove(&id);
        self.class_map.remove(&id);
        self.update_choose_args();
    }

    /// Whether a rule starts from the bucket (or from a shadow of it), or it is a shadow bucket.
    fn bucket_in_use(&self, item: i32) -> bool {
        if self.class_bucket.values().any(|m| m.values().any(|id| *id == item)) {
            return true;
        }
        for take in self.rules().flat_map(|(_, r)| r.takes()) {
            // A rule that starts from something nameless ends the search, as it does in Ceph.
            let Some((original, _)) = self.split_shadow(take) else { return false };
            if take == item || original == item {
                return true;
            }
        }
        false
    }
}

/// Bucket ids beyond this are refused, so that a command cannot make the array huge.
const BUCKETS_MAX: usize = 1 << 20;

fn ignore_missing(e: CrushError) -> Result<()> {
    if matches!(e, CrushError::NotFound(_)) { Ok(()) } else { Err(e) }
}
