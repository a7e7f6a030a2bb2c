use crate::{Algorithm, Bucket, Names};
use std::collections::{BTreeMap, BTreeSet};

/// Rules are numbered by a byte.
pub const MAX_RULES: usize = 256;
/// How deep a hierarchy may be (Ceph: `CRUSH_MAX_DEPTH`).
pub const MAX_DEPTH: usize = 10;
/// The key of the choose_args that every pool without its own uses (Ceph: `DEFAULT_CHOOSE_ARGS`).
pub const DEFAULT_CHOOSE_ARGS: i64 = -1;

/// Operation codes of rule steps (Ceph: `enum crush_opcodes`).
pub mod op {
    /// Does nothing.
    pub const NOOP: u32 = 0;
    /// `arg1` is the item to start from.
    pub const TAKE: u32 = 1;
    /// Chooses `arg1` items of type `arg2`; failed positions close up.
    pub const CHOOSE_FIRSTN: u32 = 2;
    /// Chooses `arg1` items of type `arg2`; positions are stable.
    pub const CHOOSE_INDEP: u32 = 3;
    /// Appends what was chosen to the result.
    pub const EMIT: u32 = 4;
    /// Like [`CHOOSE_FIRSTN`], then one device under each.
    pub const CHOOSELEAF_FIRSTN: u32 = 6;
    /// Like [`CHOOSE_INDEP`], then one device under each.
    pub const CHOOSELEAF_INDEP: u32 = 7;
    /// Overrides `choose_total_tries`.
    pub const SET_CHOOSE_TRIES: u32 = 8;
    /// Overrides how often a leaf is tried for.
    pub const SET_CHOOSELEAF_TRIES: u32 = 9;
    /// Overrides `choose_local_tries`.
    pub const SET_CHOOSE_LOCAL_TRIES: u32 = 10;
    /// Overrides `choose_local_fallback_tries`.
    pub const SET_CHOOSE_LOCAL_FALLBACK_TRIES: u32 = 11;
    /// Overrides `chooseleaf_vary_r`.
    pub const SET_CHOOSELEAF_VARY_R: u32 = 12;
    /// Overrides `chooseleaf_stable`.
    pub const SET_CHOOSELEAF_STABLE: u32 = 13;
}

/// One step of a rule (`crush_rule_step`). Unknown operations are kept and skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// One of [`op`].
    pub op: u32,
    /// First argument.
    pub arg1: i32,
    /// Second argument.
    pub arg2: i32,
}

impl Step {
    /// A step.
    pub fn new(op: u32, arg1: i32, arg2: i32) -> Self {
        Step { op, arg1, arg2 }
    }
}

/// A placement rule (`crush_rule`, `crush_rule_mask`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The rule's own number since Luminous; older maps may differ.
    pub ruleset: u8,
    /// Type of the pools it serves (1 replicated, 3 erasure).
    pub kind: u8,
    /// Smallest pool size it serves.
    pub min_size: u8,
    /// Largest pool size it serves.
    pub max_size: u8,
    /// What it does.
    pub steps: Vec<Step>,
}

impl Rule {
    /// The items that the rule starts from.
    pub fn takes(&self) -> impl Iterator<Item = i32> {
        self.steps.iter().filter(|s| s.op == op::TAKE).map(|s| s.arg1)
    }
}

/// Knobs of the mapper, kept so that old clusters need not move their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// Retries in the same bucket after a collision.
    pub choose_local_tries: u32,
    /// Retries by permutation of the same bucket.
    pub choose_local_fallback_tries: u32,
    /// Retries from the top; one less than the number of tries.
    pub choose_total_tries: u32,
    /// One try only for the leaf of a chooseleaf step.
    pub chooseleaf_descend_once: u32,
    /// Whether the parent's attempt number shapes the leaf's, and by how many bits less one.
    pub chooseleaf_vary_r: u8,
    /// Version of the straw length calculation.
    pub straw_calc_version: u8,
    /// Bit `1 << alg` for every bucket algorithm that may be used.
    pub allowed_bucket_algs: u32,
    /// Whether a leaf does not depend on its position in the result.
    pub chooseleaf_stable: u8,
}

const LEGACY_ALGS: u32 = 1 << 1 | 1 << 2 | 1 << 4;
const HAMMER_ALGS: u32 = LEGACY_ALGS | 1 << 5;

impl Tunables {
    /// Argonaut, as decoded maps without tunables have.
    pub const LEGACY: Tunables = Tunables {
        choose_local_tries: 2,
        choose_local_fallback_tries: 5,
        choose_total_tries: 19,
        chooseleaf_descend_once: 0,
        chooseleaf_vary_r: 0,
        straw_calc_version: 0,
        allowed_bucket_algs: LEGACY_ALGS,
        chooseleaf_stable: 0,
    };
    /// Bobtail.
    pub const BOBTAIL: Tunables = Tunables {
        choose_local_tries: 0,
        choose_local_fallback_tries: 0,
        choose_total_tries: 50,
        chooseleaf_descend_once: 1,
        ..Tunables::LEGACY
    };
    /// Firefly.
    pub const FIREFLY: Tunables = Tunables { chooseleaf_vary_r: 1, ..Tunables::BOBTAIL };
    /// Hammer.
    pub const HAMMER: Tunables = Tunables { allowed_bucket_algs: HAMMER_ALGS, ..Tunables::FIREFLY };
    /// Jewel: what new clusters use.
    pub const JEWEL: Tunables =
        Tunables { chooseleaf_stable: 1, straw_calc_version: 1, ..Tunables::HAMMER };

    /// The tunables of a named profile, with `straw_calc_version` as it is now unless the profile
    /// (`legacy`, `optimal`, `default`) says otherwise, as `ceph osd crush tunables` does.
    pub fn with_profile(self, profile: &str) -> Option<Tunables> {
        let keep = |t: Tunables| Tunables { straw_calc_version: self.straw_calc_version, ..t };
        Some(match profile {
            "legacy" => Tunables::LEGACY,
            "argonaut" => keep(Tunables::LEGACY),
            "bobtail" => keep(Tunables::BOBTAIL),
            "firefly" => keep(Tunables::FIREFLY),
            "hammer" => keep(Tunables::HAMMER),
            "jewel" => keep(Tunables::JEWEL),
            "optimal" | "default" => Tunables::JEWEL,
            _ => return None,
        })
    }

    /// Name of the profile that these are, apart from `straw_calc_version`.
    pub fn profile(&self) -> &'static str {
        let is =
            |t: Tunables| *self == Tunables { straw_calc_version: self.straw_calc_version, ..t };
        if is(Tunables::JEWEL) {
            "jewel"
        } else if is(Tunables::HAMMER) {
            "hammer"
        } else if is(Tunables::FIREFLY) {
            "firefly"
        } else if is(Tunables::BOBTAIL) {
            "bobtail"
        } else if is(Tunables::LEGACY) {
            "argonaut"
        } else {
            "unknown"
        }
    }
}

/// Replacement weights and ids of one bucket (`crush_choose_arg`). Only straw2 buckets use them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChooseArg {
    /// For each result position (the last one also for later positions) a weight per item.
    pub weight_set: Vec<Vec<u32>>,
    /// Ids that are hashed instead of the items'; empty where not replaced.
    pub ids: Vec<i32>,
}

impl ChooseArg {
    /// Whether it replaces nothing.
    pub fn is_empty(&self) -> bool {
        self.weight_set.is_empty() && self.ids.is_empty()
    }
}

/// Replacements for a whole map, by bucket id (`crush_choose_arg_map`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChooseArgs {
    /// Keyed by bucket *index* (`-1 - id`), which is the order on the wire.
    pub args: BTreeMap<u32, ChooseArg>,
}

impl ChooseArgs {
    /// The replacement for a bucket.
    #[inline]
    pub fn get(&self, bucket_id: i32) -> Option<&ChooseArg> {
        self.args.get(&index_of(bucket_id)?)
    }

    /// How many positions its weight sets have (1 when there is none).
    pub(crate) fn positions(&self) -> usize {
        self.args.values().map(|a| a.weight_set.len()).find(|n| *n > 0).unwrap_or(1)
    }
}

/// Index of a bucket id, `None` for a device.
#[inline]
pub(crate) fn index_of(id: i32) -> Option<u32> {
    u32::try_from(-1 - i64::from(id)).ok()
}

/// A whole CRUSH map (`CrushWrapper`, `crush_map`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrushMap {
    /// Bucket `id` is at index `-1 - id`; holes are removed buckets. The vector's length is Ceph's
    /// `max_buckets`, which grows by doubling.
    pub buckets: Vec<Option<Bucket>>,
    /// By rule number; holes are removed rules.
    pub rules: Vec<Option<Rule>>,
    /// One more than the largest device in the map.
    pub max_devices: i32,
    /// Names of bucket types; type 0 is the device.
    pub types: Names,
    /// Names of buckets and devices.
    pub names: Names,
    /// Names of rules.
    pub rule_names: Names,
    /// Knobs of the mapper.
    pub tunables: Tunables,
    /// Device class of each device and of each shadow bucket.
    pub class_map: BTreeMap<i32, i32>,
    /// Names of device classes.
    pub class_names: Names,
    /// Shadow bucket for a bucket and a class: `class_bucket[bucket][class]`.
    pub class_bucket: BTreeMap<i32, BTreeMap<i32, i32>>,
    /// Replacement weights by pool, or [`DEFAULT_CHOOSE_ARGS`].
    pub choose_args: BTreeMap<i64, ChooseArgs>,
}

impl Default for CrushMap {
    /// An empty map with the tunables of new clusters.
    fn default() -> Self {
        CrushMap {
            buckets: Vec::new(),
            rules: Vec::new(),
            max_devices: 0,
            types: Names::default(),
            names: Names::default(),
            rule_names: Names::default(),
            tunables: Tunables::JEWEL,
            class_map: BTreeMap::new(),
            class_names: Names::default(),
            class_bucket: BTreeMap::new(),
            choose_args: BTreeMap::new(),
        }
    }
}

/// The bucket types of a new cluster (Ceph: `OSDMap::_build_crush_types`).
const TYPES: [&str; 12] = [
    "osd",
    "host",
    "chassis",
    "rack",
    "row",
    "pdu",
    "pod",
    "room",
    "datacenter",
    "zone",
    "region",
    "root",
];

impl CrushMap {
    /// An empty map with the bucket types of a new cluster.
    pub fn with_default_types() -> Self {
        let mut map = CrushMap::default();
        for (i, name) in TYPES.iter().enumerate() {
            map.types.set(i as i32, *name);
        }
        map
    }

    /// The bucket with this id.
    #[inline]
    pub fn bucket(&self, id: i32) -> Option<&Bucket> {
        self.buckets.get(index_of(id)? as usize)?.as_ref()
    }

    pub(crate) fn bucket_mut(&mut self, id: i32) -> Option<&mut Bucket> {
        self.buckets.get_mut(index_of(id)? as usize)?.as_mut()
    }

    /// All buckets, by descending id (-1 first).
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().flatten()
    }

    /// The rule with this number.
    pub fn rule(&self, id: i32) -> Option<&Rule> {
        self.rules.get(usize::try_from(id).ok()?)?.as_ref()
    }

    /// All rules with their numbers.
    pub fn rules(&self) -> impl Iterator<Item = (i32, &Rule)> {
        self.rules.iter().enumerate().filter_map(|(i, r)| Some((i as i32, r.as_ref()?)))
    }

    /// The rule that serves a pool (`CrushWrapper::find_rule`).
    pub fn find_rule(&self, ruleset: i32, kind: u8, size: u32) -> Option<i32> {
        self.rules()
            .find(|(_, r)| {
                i32::from(r.ruleset) == ruleset
                    && r.kind == kind
                    && u32::from(r.min_size) <= size
                    && u32::from(r.max_size) >= size
            })
            .map(|(i, _)| i)
    }

    /// The choose_args of a pool, or those for all pools.
    pub fn choose_args_for(&self, pool: i64) -> Option<&ChooseArgs> {
        self.choose_args.get(&pool).or_else(|| self.choose_args.get(&DEFAULT_CHOOSE_ARGS))
    }

    /// Name of an item's device class.
    pub fn item_class(&self, id: i32) -> Option<&str> {
        self.class_names.name(*self.class_map.get(&id)?)
    }

    /// Whether the item is a device-class shadow of another bucket.
    pub fn is_shadow(&self, id: i32) -> bool {
        self.names.name(id).is_some_and(|n| !crate::is_valid_name(n))
    }

    /// Splits a shadow bucket into its original and class; others answer themselves and `None`.
    pub fn split_shadow(&self, id: i32) -> Option<(i32, Option<i32>)> {
        match self.names.name(id)?.split_once('~') {
            None => Some((id, None)),
            Some((original, class)) => {
                Some((self.names.id(original)?, Some(self.class_names.id(class)?)))
            }
        }
    }

    /// Buckets that no bucket contains, in ascending order of their ids.
    pub fn roots(&self) -> BTreeSet<i32> {
        let children: BTreeSet<i32> =
            self.buckets().flat_map(|b| b.items.iter().copied()).collect();
        self.buckets().map(|b| b.id).filter(|id| !children.contains(id)).collect()
    }

    /// Roots that are not device-class shadows.
    pub fn nonshadow_roots(&self) -> BTreeSet<i32> {
        self.roots().into_iter().filter(|id| !self.is_shadow(*id)).collect()
    }

    /// Whether some bucket contains the item.
    pub fn has_parent(&self, item: i32) -> bool {
        self.buckets().any(|b| b.items.contains(&item))
    }

    /// The non-shadow bucket that contains the item (the one with the largest id if several do).
    pub fn parent(&self, item: i32) -> Option<&Bucket> {
        self.buckets().find(|b| b.items.contains(&item) && !self.is_shadow(b.id))
    }

    /// Whether the item is below (or is) `root`. Terminates also where buckets contain themselves.
    pub fn subtree_contains(&self, root: i32, item: i32) -> bool {
        let mut seen = BTreeSet::new();
        let mut queue = vec![root];
        while let Some(id) = queue.pop() {
            if id == item {
                return true;
            }
            if id < 0
                && seen.insert(id)
                && let Some(b) = self.bucket(id)
            {
                queue.extend(&b.items);
            }
        }
        false
    }

    /// Devices below an item (the item itself if it is a device), in ascending order.
    pub fn leaves(&self, id: i32) -> BTreeSet<i32> {
        let mut seen = BTreeSet::new();
        let mut leaves = BTreeSet::new();
        let mut queue = vec![id];
        while let Some(id) = queue.pop() {
            if id >= 0 {
                leaves.insert(id);
            } else if seen.insert(id)
                && let Some(b) = self.bucket(id)
            {
                queue.extend(&b.items);
            }
        }
        leaves
    }

    /// Type of an item: 0 for devices, `None` for buckets that do not exist.
    pub fn item_type(&self, id: i32) -> Option<u16> {
        if id >= 0 { Some(0) } else { self.bucket(id).map(|b| b.kind) }
    }

    /// The item's parents from the nearest up, as (type name, bucket name).
    pub fn full_location(&self, item: i32) -> Vec<(String, String)> {
        let mut path = Vec::new();
        let mut current = item;
        while path.len() <= self.buckets.len()
            && let Some(b) = self.parent(current)
        {
            let kind = self.types.name(i32::from(b.kind)).unwrap_or_default();
            let name = self.names.name(b.id).unwrap_or_default();
            path.push((kind.to_owned(), name.to_owned()));
            current = b.id;
        }
        path
    }

    /// The ancestor of a device that has the given type: with a rule, below what that rule takes.
    pub fn parent_of_type(&self, item: i32, kind: u16, rule: Option<i32>) -> Option<i32> {
        let Some(rule) = rule else {
            let mut current = item;
            for _ in 0..=self.buckets.len() {
                let b = self.parent(current)?;
                if b.kind == kind {
                    return Some(b.id);
                }
                current = b.id;
            }
            return None;
        };
        let takes: BTreeSet<i32> = self.rule(rule)?.takes().collect();
        takes
            .into_iter()
            .flat_map(|root| self.children_of_type(root, kind))
            .find(|candidate| self.subtree_contains(*candidate, item))
    }

    /// Buckets of one type at or below an item, depth first; nothing below a match is visited.
    pub fn children_of_type(&self, id: i32, kind: u16) -> Vec<i32> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            if self.item_type(id) == Some(kind) {
                found.push(id);
            } else if id < 0
                && seen.insert(id)
                && let Some(b) = self.bucket(id)
            {
                stack.extend(b.items.iter().rev());
            }
        }
        found
    }

    /// The bucket algorithm for new buckets, the best that the tunables allow.
    pub fn default_algorithm(&self) -> Option<Algorithm> {
        [Algorithm::Straw2, Algorithm::Straw, Algorithm::Tree, Algorithm::List, Algorithm::Uniform]
            .into_iter()
            .find(|a| self.tunables.allowed_bucket_algs & (1 << *a as u32) != 0)
    }

    /// Whether a rule uses indep or the steps that came with it.
    pub fn has_v2_rules(&self) -> bool {
        self.any_step(&[
            op::CHOOSE_INDEP,
            op::CHOOSELEAF_INDEP,
            op::SET_CHOOSE_TRIES,
            op::SET_CHOOSELEAF_TRIES,
        ])
    }

    /// Whether a rule sets vary_r.
    pub fn has_v3_rules(&self) -> bool {
        self.any_step(&[op::SET_CHOOSELEAF_VARY_R])
    }

    /// Whether a bucket is straw2.
    pub fn has_v4_buckets(&self) -> bool {
        self.buckets().any(|b| b.algorithm() == Algorithm::Straw2)
    }

    /// Whether a rule sets chooseleaf_stable.
    pub fn has_v5_rules(&self) -> bool {
        self.any_step(&[op::SET_CHOOSELEAF_STABLE])
    }

    /// Whether the choose_args need a client that understands them (and cannot be passed off as the
    /// buckets' own weights).
    pub fn has_incompat_choose_args(&self) -> bool {
        let mut all = self.choose_args.iter();
        match (all.next(), all.next()) {
            (None, _) => false,
            (Some(_), Some(_)) => true,
            (Some((key, args)), None) => {
                *key != DEFAULT_CHOOSE_ARGS
                    || args
                        .args
                        .values()
                        .any(|a| !a.is_empty() && (a.weight_set.len() != 1 || !a.ids.is_empty()))
            }
        }
    }

    fn any_step(&self, ops: &[u32]) -> bool {
        self.rules().any(|(_, r)| r.steps.iter().any(|s| ops.contains(&s.op)))
    }
}
