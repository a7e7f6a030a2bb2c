//! The mapper: which devices a rule gives for an input (Ceph: `crush/mapper.c`).
//!
//! A rule keeps a working set of items. `take` sets it to one item. Each `choose` replaces every
//! item of it by items of a type, found by descending from it: in each bucket on the way the
//! bucket's algorithm picks one item by hashing the input, the item's id and the attempt number
//! `r`. A pick is retried with another `r` when it was chosen before (a collision) or when the
//! device is out. `emit` appends the working set to the result.
//!
//! * *firstn* fills one position after the other; a position that fails is left out.
//! * *indep* fills all positions in rounds; a position that fails holds [`ITEM_NONE`], and what
//!   other positions hold does not depend on it.
//!
//! The effort is bounded by the [`Workspace`], so that no map can keep the caller busy for ever.

use crate::hash::{LANES, RJENKINS1, hash2, hash3, hash3_of, hash4};
use crate::ln::{LN_NOISE, ln};
use crate::map::index_of;
use crate::shifts::Shifts;
use crate::{Body, Bucket, ChooseArg, ChooseArgs, CrushMap, op};
use std::sync::Arc;

/// A position that was left empty (Ceph: `CRUSH_ITEM_NONE`).
pub const ITEM_NONE: i32 = 0x7fff_ffff;
/// A position not decided yet; never in a result (Ceph: `CRUSH_ITEM_UNDEF`).
pub const ITEM_UNDEF: i32 = 0x7fff_fffe;

/// Draws that one call may make: two orders of magnitude more than any reasonable map needs, and
/// under a second of work.
const BUDGET: u64 = 1 << 26;

/// Memory that the mapper reuses between calls. Its contents do not influence results.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Permutations by bucket index, for uniform buckets and fallback tries.
    perms: Vec<Perm>,
    /// Which permutations are in use.
    touched: Vec<usize>,
    /// The two working sets and the leaves.
    sets: [Vec<i32>; 3],
    budget: u64,
    /// Other weights that draws are compared with.
    watched: Option<Arc<Shifts>>,
    shifted: bool,
}

#[derive(Clone, Debug, Default)]
struct Perm {
    x: u32,
    /// How many leading entries of `order` are final.
    n: u32,
    order: Vec<u32>,
}

impl Default for Workspace {
    fn default() -> Self {
        Workspace::with_budget(BUDGET)
    }
}

impl Workspace {
    /// A workspace with the usual budget.
    pub fn new() -> Self {
        Workspace::default()
    }

    /// A workspace that gives up after so many draws, as if nothing more could be found.
    pub fn with_budget(draws: u64) -> Self {
        Workspace {
            perms: Vec::new(),
            touched: Vec::new(),
            sets: Default::default(),
            budget: draws,
            watched: None,
            shifted: false,
        }
    }

    /// Compares draws with those by other weights from here on.
    pub fn watch(&mut self, other: Arc<Shifts>) {
        self.watched = Some(other);
    }

    /// Whether the last input may be mapped to other items by the weights that are compared with.
    /// If not, it is mapped to the same ones.
    pub fn shifted(&self) -> bool {
        self.shifted
    }
}

/// Whether a device rejects an input, by its reweight (16.16 fixed point, full from 0x10000 up).
/// Devices beyond the vector are out.
#[inline]
pub fn is_out(weights: &[u32], item: i32, x: i32) -> bool {
    let Some(&w) = usize::try_from(item).ok().and_then(|i| weights.get(i)) else { return true };
    match w {
        0x10000.. => false,
        0 => true,
        w => hash2(x as u32, item as u32) & 0xffff >= w,
    }
}

/// How often to try what, in force at a rule step.
#[derive(Clone, Copy)]
struct Tries {
    total: u32,
    leaf: u32,
    local: u32,
    fallback: u32,
    vary_r: u32,
    stable: bool,
}

struct Mapper<'a> {
    map: &'a CrushMap,
    weights: &'a [u32],
    choose_args: Option<&'a ChooseArgs>,
    x: i32,
    perms: &'a mut Vec<Perm>,
    touched: &'a mut Vec<usize>,
    budget: u64,
    watch: Watch<'a>,
}

/// Other weights, and whether a draw may fall otherwise with them.
struct Watch<'a> {
    other: Option<&'a Shifts>,
    shifted: &'a mut bool,
}

impl CrushMap {
    /// Maps the input `x` by a rule to at most `result_max` items, which replace the contents of
    /// `out`. `weights` are the devices' reweights.
    #[allow(clippy::too_many_arguments)] // Output and scratch memory are the caller's, so that mapping allocates nothing.
    pub fn do_rule(
        &self,
        rule: i32,
        x: i32,
        result_max: usize,
        weights: &[u32],
        choose_args: Option<&ChooseArgs>,
        workspace: &mut Workspace,
        out: &mut Vec<i32>,
    ) {
        out.clear();
        workspace.shifted = false;
        let Some(rule) = self.rule(rule) else { return };
        let Workspace { perms, touched, sets, budget, watched, shifted } = workspace;
        for i in touched.drain(..) {
            if let Some(p) = perms.get_mut(i) {
                p.n = 0;
            }
        }
        let [w, o, c] = sets;
        for set in [&mut *w, &mut *o, &mut *c] {
            set.clear();
            set.resize(result_max, 0);
        }
        let (budget, watch) = (*budget, Watch { other: watched.as_deref(), shifted });
        let mut m = Mapper { map: self, weights, choose_args, x, perms, touched, budget, watch };
        let t = &self.tunables;
        // The tunable counts retries; the others count as they should.
        let mut tries = t.choose_total_tries.wrapping_add(1);
        let mut leaf_tries = 0u32;
        let mut local = t.choose_local_tries;
        let mut fallback = t.choose_local_fallback_tries;
        let mut vary_r = u32::from(t.chooseleaf_vary_r);
        let mut stable = t.chooseleaf_stable != 0;
        let mut size = 0;
        for step in &rule.steps {
            let positive = || u32::try_from(step.arg1).ok().filter(|n| *n > 0);
            let not_negative = || u32::try_from(step.arg1).ok();
            match step.op {
                op::TAKE => {
                    let device = step.arg1 >= 0 && step.arg1 < self.max_devices;
                    if (device || self.bucket(step.arg1).is_some())
                        && let Some(first) = w.first_mut()
                    {
                        *first = step.arg1;
                        size = 1;
                    }
                }
                op::SET_CHOOSE_TRIES => tries = positive().unwrap_or(tries),
                op::SET_CHOOSELEAF_TRIES => leaf_tries = positive().unwrap_or(leaf_tries),
                op::SET_CHOOSE_LOCAL_TRIES => local = not_negative().unwrap_or(local),
                op::SET_CHOOSE_LOCAL_FALLBACK_TRIES => {
                    fallback = not_negative().unwrap_or(fallback)
                }
                op::SET_CHOOSELEAF_VARY_R => vary_r = not_negative().unwrap_or(vary_r),
                op::SET_CHOOSELEAF_STABLE => stable = not_negative().map_or(stable, |n| n != 0),
                op::CHOOSE_FIRSTN
                | op::CHOOSELEAF_FIRSTN
                | op::CHOOSE_INDEP
                | op::CHOOSELEAF_INDEP => {
                    if size == 0 {
                        continue;
                    }
                    let firstn = matches!(step.op, op::CHOOSE_FIRSTN | op::CHOOSELEAF_FIRSTN);
                    let to_leaf = matches!(step.op, op::CHOOSELEAF_FIRSTN | op::CHOOSELEAF_INDEP);
                    let mut chosen = 0;
                    for from in &w[..size] {
                        let mut numrep = i64::from(step.arg1);
                        if numrep <= 0 {
                            numrep += result_max as i64;
                        }
                        let Ok(numrep) = u32::try_from(numrep) else { continue };
                        let Some(bucket) = self.bucket(*from).filter(|_| numrep > 0) else {
                            continue;
                        };
                        let (o, c) = (&mut o[chosen..], &mut c[chosen..]);
                        let room = result_max - chosen;
                        let mut t =
                            Tries { total: tries, leaf: 1, local, fallback, vary_r, stable };
                        if leaf_tries > 0 {
                            t.leaf = leaf_tries;
                        } else if firstn && self.tunables.chooseleaf_descend_once == 0 {
                            t.leaf = tries;
                        }
                        chosen += if firstn {
                            m.firstn(
                                bucket,
                                numrep,
                                step.arg2,
                                o,
                                0,
                                room,
                                t,
                                to_leaf.then_some(c),
                                0,
                            )
                        } else {
                            let n = room.min(numrep as usize);
                            m.indep(
                                bucket,
                                n,
                                numrep,
                                step.arg2,
                                o,
                                0,
                                t,
                                to_leaf,
                                to_leaf.then_some(c),
                                0,
                            );
                            n
                        };
                    }
                    std::mem::swap(w, if to_leaf { &mut *c } else { &mut *o });
                    size = chosen;
                }
                op::EMIT => {
                    let n = size.min(result_max - out.len());
                    out.extend_from_slice(&w[..n]);
                    size = 0;
                }
                _ => {}
            }
        }
    }
}

impl Mapper<'_> {
    fn spend(&mut self, draws: usize) -> bool {
        match self.budget.checked_sub(1 + draws as u64) {
            Some(left) => {
                self.budget = left;
                true
            }
            None => {
                self.budget = 0;
                false
            }
        }
    }

    /// Fills positions from `outpos` on with distinct items of a type below `top`; returns the
    /// position after the last one filled. `leaves` receives a device for each if asked for.
    #[allow(clippy::too_many_arguments)] // The state of a recursion that Ceph defines by these values.
    fn firstn(
        &mut self,
        top: &Bucket,
        numrep: u32,
        kind: i32,
        out: &mut [i32],
        mut outpos: usize,
        mut count: usize,
        t: Tries,
        mut leaves: Option<&mut [i32]>,
        parent_r: i32,
    ) -> usize {
        let map = self.map;
        let mut rep = if t.stable { 0 } else { outpos as u32 };
        while rep < numrep && count > 0 {
            let mut ftotal = 0u32;
            // Each round of this loop descends from the top again.
            let found = 'descent: loop {
                let mut bucket = top;
                let mut flocal = 0u32;
                loop {
                    let r = (rep as i32).wrapping_add(parent_r).wrapping_add(ftotal as i32);
                    let mut collide = false;
                    let reject;
                    if !self.spend(bucket.items.len()) {
                        break 'descent None;
                    }
                    if bucket.items.is_empty() {
                        reject = true;
                    } else {
                        let size = bucket.items.len() as u32;
                        let item = if t.fallback > 0 && flocal >= size >> 1 && flocal > t.fallback {
                            self.perm_choose(bucket, r)
                        } else {
                            self.choose(bucket, r, outpos)
                        };
                        if item >= map.max_devices {
                            break 'descent None;
                        }
                        let Some(item_kind) = map.item_type(item) else { break 'descent None };
                        if i32::from(item_kind) != kind {
                            match map.bucket(item) {
                                Some(b) => {
                                    bucket = b;
                                    continue;
                                }
                                None => break 'descent None,
                            }
                        }
                        collide = out[..outpos].contains(&item);
                        let mut rejected = false;
                        if !collide && let Some(leaves) = leaves.as_deref_mut() {
                            rejected = !self.leaf(item, r, leaves, outpos, count, t);
                        }
                        if !rejected && !collide && item_kind == 0 {
                            rejected = is_out(self.weights, item, self.x);
                        }
                        if !rejected && !collide {
                            break 'descent Some(item);
                        }
                        reject = rejected;
                    }
                    debug_assert!(reject || collide);
                    ftotal = ftotal.wrapping_add(1);
                    flocal = flocal.wrapping_add(1);
                    let size = bucket.items.len() as u32;
                    if collide && flocal <= t.local {
                        continue;
                    }
                    if t.fallback > 0 && flocal <= size.wrapping_add(t.fallback) {
                        continue;
                    }
                    if ftotal < t.total {
                        continue 'descent;
                    }
                    break 'descent None;
                }
            };
            if let Some(item) = found {
                out[outpos] = item;
                outpos += 1;
                count -= 1;
            }
            if self.budget == 0 {
                break;
            }
            rep += 1;
        }
        outpos
    }

    /// Puts a device below an item into a position of `leaves`; whether there is one.
    #[inline]
    fn leaf(
        &mut self,
        item: i32,
        r: i32,
        leaves: &mut [i32],
        outpos: usize,
        count: usize,
        t: Tries,
    ) -> bool {
        let Some(below) = self.map.bucket(item) else {
            leaves[outpos] = item;
            return true;
        };
        let sub_r = if t.vary_r > 0 { r.wrapping_shr(t.vary_r - 1) } else { 0 };
        let inner = Tries { total: t.leaf, leaf: 0, ..t };
        let want = if t.stable { 1 } else { outpos as u32 + 1 };
        self.firstn(below, want, 0, leaves, outpos, count, inner, None, sub_r) > outpos
    }

    /// Fills `left` positions from `outpos` on; those that cannot be filled become [`ITEM_NONE`].
    #[allow(clippy::too_many_arguments)] // The state of a recursion that Ceph defines by these values.
    fn indep(
        &mut self,
        top: &Bucket,
        mut left: usize,
        numrep: u32,
        kind: i32,
        out: &mut [i32],
        outpos: usize,
        t: Tries,
        to_leaf: bool,
        mut leaves: Option<&mut [i32]>,
        parent_r: i32,
    ) {
        let map = self.map;
        let end = outpos + left;
        out[outpos..end].fill(ITEM_UNDEF);
        if let Some(leaves) = leaves.as_deref_mut() {
            leaves[outpos..end].fill(ITEM_UNDEF);
        }
        let mut ftotal = 0u32;
        while left > 0 && ftotal < t.total && self.budget > 0 {
            for rep in outpos..end {
                if out[rep] != ITEM_UNDEF {
                    continue;
                }
                let mut bucket = top;
                loop {
                    if !self.spend(bucket.items.len()) || bucket.items.is_empty() {
                        break;
                    }
                    let size = bucket.items.len() as u32;
                    // A uniform bucket whose size is a multiple of the number of positions would
                    // meet the same items again in every round.
                    let uniform = matches!(bucket.body, Body::Uniform { .. });
                    let stride = if uniform && size.is_multiple_of(numrep) {
                        numrep.wrapping_add(1)
                    } else {
                        numrep
                    };
                    let r = (rep as i32)
                        .wrapping_add(parent_r)
                        .wrapping_add(stride.wrapping_mul(ftotal) as i32);
                    let item = self.choose(bucket, r, outpos);
                    let kind_of_item =
                        if item >= map.max_devices { None } else { map.item_type(item) };
                    let Some(item_kind) = kind_of_item else {
                        give_up(out, &mut leaves, rep, &mut left);
                        break;
                    };
                    if i32::from(item_kind) != kind {
                        match map.bucket(item) {
                            Some(b) => {
                                bucket = b;
                                continue;
                            }
                            None => {
                                give_up(out, &mut leaves, rep, &mut left);
                                break;
                            }
                        }
                    }
                    if out[outpos..end].contains(&item) {
                        break;
                    }
                    if to_leaf && let Some(leaves) = leaves.as_deref_mut() {
                        if let Some(below) = map.bucket(item) {
                            let inner = Tries { total: t.leaf, leaf: 0, ..t };
                            self.indep(below, 1, numrep, 0, leaves, rep, inner, false, None, r);
                            if leaves[rep] == ITEM_NONE {
                                break;
                            }
                        } else {
                            leaves[rep] = item;
                        }
                    }
                    if item_kind == 0 && is_out(self.weights, item, self.x) {
                        break;
                    }
                    out[rep] = item;
                    left -= 1;
                    break;
                }
            }
            ftotal += 1;
        }
        let close = |set: &mut [i32]| {
            for slot in set[outpos..end].iter_mut().filter(|s| **s == ITEM_UNDEF) {
                *slot = ITEM_NONE;
            }
        };
        close(out);
        if let Some(leaves) = leaves {
            close(leaves);
        }
    }

    /// One item of a bucket that is not empty.
    #[inline]
    fn choose(&mut self, bucket: &Bucket, r: i32, position: usize) -> i32 {
        match &bucket.body {
            Body::Uniform { .. } => self.perm_choose(bucket, r),
            Body::List { item_weights, sum_weights } => {
                list_choose(bucket, item_weights, sum_weights, self.x, r)
            }
            Body::Tree { node_weights } => tree_choose(bucket, node_weights, self.x, r),
            Body::Straw { straws, .. } => straw_choose(bucket, straws, self.x, r),
            Body::Straw2 { item_weights } => {
                let arg = self.choose_args.and_then(|args| args.get(bucket.id));
                let best = straw2_choose(bucket, item_weights, arg, position, self.x, r);
                if let Some(other) = self.watch.other.filter(|_| !*self.watch.shifted) {
                    *self.watch.shifted = other.may_lose(bucket, item_weights, best, self.x, r);
                }
                bucket.items[best]
            }
        }
    }

    /// The item at place `r` of a pseudo-random permutation, which is computed as far as needed.
    fn perm_choose(&mut self, bucket: &Bucket, r: i32) -> i32 {
        let size = bucket.items.len() as u32;
        let Some(index) = index_of(bucket.id).map(|i| i as usize) else { return ITEM_NONE };
        if self.perms.len() <= index {
            self.perms.resize_with(self.map.buckets.len().max(index + 1), Perm::default);
        }
        let perm = &mut self.perms[index];
        let wanted = r as u32 % size;
        let x = self.x as u32;
        if perm.n == 0 || perm.x != x || perm.order.len() != size as usize {
            if perm.n == 0 {
                self.touched.push(index);
            }
            perm.x = x;
            perm.n = 0;
            perm.order.clear();
            perm.order.extend(0..size);
        }
        while perm.n <= wanted {
            let p = perm.n;
            if p < size - 1 {
                let i = hash_with(bucket.hash, || hash3(x, bucket.id as u32, p)) % (size - p);
                perm.order.swap(p as usize, (p + i) as usize);
            }
            perm.n += 1;
        }
        bucket.items[perm.order[wanted as usize] as usize]
    }
}

fn give_up(out: &mut [i32], leaves: &mut Option<&mut [i32]>, rep: usize, left: &mut usize) {
    out[rep] = ITEM_NONE;
    if let Some(leaves) = leaves.as_deref_mut() {
        leaves[rep] = ITEM_NONE;
    }
    *left -= 1;
}

#[inline]
fn hash_with(kind: u8, hash: impl FnOnce() -> u32) -> u32 {
    if kind == RJENKINS1 { hash() } else { 0 }
}

fn list_choose(bucket: &Bucket, weights: &[u32], sums: &[u32], x: i32, r: i32) -> i32 {
    for ((item, weight), sum) in bucket.items.iter().zip(weights).zip(sums).rev() {
        let h =
            hash_with(bucket.hash, || hash4(x as u32, *item as u32, r as u32, bucket.id as u32));
        let draw = (u64::from(h & 0xffff) * u64::from(*sum)) >> 16;
        if draw < u64::from(*weight) {
            return *item;
        }
    }
    bucket.items[0]
}

fn tree_choose(bucket: &Bucket, nodes: &[u32], x: i32, r: i32) -> i32 {
    let weight = |n: usize| nodes.get(n).copied().unwrap_or(0);
    let mut n = nodes.len() >> 1;
    while n != 0 && n & 1 == 0 {
        let h = hash_with(bucket.hash, || hash4(x as u32, n as u32, r as u32, bucket.id as u32));
        let draw = (u64::from(h) * u64::from(weight(n))) >> 32;
        let half = 1 << (n.trailing_zeros() - 1);
        n = if draw < u64::from(weight(n - half)) { n - half } else { n + half };
    }
    // In a damaged tree the walk may end past the items.
    bucket.items.get(n >> 1).copied().unwrap_or(ITEM_NONE)
}

fn straw_choose(bucket: &Bucket, straws: &[u32], x: i32, r: i32) -> i32 {
    let mut best = (bucket.items[0], 0u64);
    for (i, (item, straw)) in bucket.items.iter().zip(straws).enumerate() {
        let h = hash_with(bucket.hash, || hash3(x as u32, *item as u32, r as u32));
        let draw = u64::from(h & 0xffff) * u64::from(*straw);
        if i == 0 || draw > best.1 {
            best = (*item, draw);
        }
    }
    best.0
}

/// The place of the item that draws the longest straw.
fn straw2_choose(
    bucket: &Bucket,
    own: &[u32],
    arg: Option<&ChooseArg>,
    position: usize,
    x: i32,
    r: i32,
) -> usize {
    let mut weights = own;
    let mut ids = &bucket.items[..];
    if let Some(arg) = arg {
        if let Some(set) = arg.weight_set.get(position).or(arg.weight_set.last())
            && set.len() == ids.len()
        {
            weights = set;
        }
        if arg.ids.len() == ids.len() {
            ids = &arg.ids;
        }
    }
    let rjenkins = bucket.hash == RJENKINS1;
    // The draw of the best item so far, and what it was made of.
    let (mut best, mut best_draw) = (0, i64::MIN);
    let (mut best_u, mut best_ln, mut best_weight) = (0u16, 0u64, 0i32);
    for (start, (ids, weights)) in
        (0..).step_by(LANES).zip(ids.chunks(LANES).zip(weights.chunks(LANES)))
    {
        let mut drawn = [0; LANES];
        if rjenkins {
            let mut lanes = [0; LANES];
            lanes.iter_mut().zip(ids).for_each(|(lane, id)| *lane = *id as u32);
            drawn = hash3_of(x as u32, lanes, r as u32);
        }
        for (i, (u, weight)) in drawn.into_iter().zip(weights).enumerate() {
            // A zero weight draws the shortest straw of all. Weights are signed in Ceph's division.
            let (u, weight) = (u as u16, *weight as i32);
            if weight == 0 {
                continue;
            }
            // With the same weight, a smaller logarithm is no greater draw: the division, and
            // mostly the logarithm, are left out.
            let same = weight == best_weight && weight > 0;
            if same && u.saturating_add(LN_NOISE) < best_u {
                continue;
            }
            let ln = ln(u);
            if same && ln <= best_ln {
                continue;
            }
            // An exponential variate by inversion: the logarithm of a uniform one, over the rate.
            let draw = (ln as i64 - 0x1_0000_0000_0000) / i64::from(weight);
            if draw > best_draw {
                (best, best_draw) = (start + i, draw);
                (best_u, best_ln, best_weight) = (u, ln, weight);
            }
        }
    }
    best
}
