//! Buckets, and what adding, removing and reweighting items does to each kind (Ceph:
//! `crush/builder.c`). Weights are 16.16 fixed point.

use crate::CrushError;

/// How a bucket chooses among its items (Ceph: `enum crush_algorithm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Algorithm {
    /// All items weigh the same; chosen by permutation.
    Uniform = 1,
    /// A linked list: each item against the sum of those before it.
    List = 2,
    /// A binary tree of weights. Excluded by default since its beginnings.
    Tree = 3,
    /// The longest straw wins; lengths are computed in advance, with flaws.
    Straw = 4,
    /// The longest straw wins; lengths are drawn from the weights.
    Straw2 = 5,
}

impl Algorithm {
    /// From its number on the wire.
    pub fn from_wire(n: u32) -> Option<Self> {
        [Algorithm::Uniform, Algorithm::List, Algorithm::Tree, Algorithm::Straw, Algorithm::Straw2]
            .into_iter()
            .find(|a| *a as u32 == n)
    }

    /// Ceph's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Uniform => "uniform",
            Algorithm::List => "list",
            Algorithm::Tree => "tree",
            Algorithm::Straw => "straw",
            Algorithm::Straw2 => "straw2",
        }
    }
}

/// The part of a bucket that depends on its algorithm. Vectors named after items have one entry per
/// item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// `crush_bucket_uniform`.
    Uniform {
        /// The weight of each item.
        item_weight: u32,
    },
    /// `crush_bucket_list`.
    List {
        /// Weight of each item.
        item_weights: Vec<u32>,
        /// Sum of the weights up to and including each item.
        sum_weights: Vec<u32>,
    },
    /// `crush_bucket_tree`.
    Tree {
        /// Item `i` is node `2i + 1`; an inner node weighs what is below it. At most 255 nodes.
        node_weights: Vec<u32>,
    },
    /// `crush_bucket_straw`.
    Straw {
        /// Weight of each item.
        item_weights: Vec<u32>,
        /// Straw length of each item.
        straws: Vec<u32>,
    },
    /// `crush_bucket_straw2`.
    Straw2 {
        /// Weight of each item.
        item_weights: Vec<u32>,
    },
}

/// An inner node of the hierarchy (`crush_bucket`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Negative and unique.
    pub id: i32,
    /// Number of its type; 0 is reserved for devices.
    pub kind: u16,
    /// Hash function, [`crate::hash::RJENKINS1`].
    pub hash: u8,
    /// Sum of the items' weights.
    pub weight: u32,
    /// Devices (not negative) and buckets (negative).
    pub items: Vec<i32>,
    /// What the algorithm needs.
    pub body: Body,
}

fn add(a: u32, b: u32) -> Result<u32, CrushError> {
    a.checked_add(b).ok_or(CrushError::Overflow)
}

/// A tree's node count is a byte on the wire, which 128 is the largest power of two to fit.
const TREE_ITEMS_MAX: usize = 64;

fn tree_depth(items: usize) -> u32 {
    match items {
        0 => 0,
        n => usize::BITS - (n - 1).leading_zeros() + 1,
    }
}

fn tree_parent(n: usize) -> usize {
    let h = n.trailing_zeros();
    if n & (1 << (h + 1)) != 0 { n - (1 << h) } else { n + (1 << h) }
}

impl Bucket {
    /// An empty bucket.
    pub fn new(algorithm: Algorithm, kind: u16) -> Self {
        let body = match algorithm {
            Algorithm::Uniform => Body::Uniform { item_weight: 0 },
            Algorithm::List => Body::List { item_weights: Vec::new(), sum_weights: Vec::new() },
            Algorithm::Tree => Body::Tree { node_weights: Vec::new() },
            Algorithm::Straw => Body::Straw { item_weights: Vec::new(), straws: Vec::new() },
            Algorithm::Straw2 => Body::Straw2 { item_weights: Vec::new() },
        };
        Bucket { id: 0, kind, hash: crate::hash::RJENKINS1, weight: 0, items: Vec::new(), body }
    }

    /// A bucket with items. A uniform bucket takes the first item's weight for all.
    pub fn with_items(
        algorithm: Algorithm,
        kind: u16,
        items: &[(i32, u32)],
        straw_calc_version: u8,
    ) -> Result<Self, CrushError> {
        let mut b = Bucket::new(algorithm, kind);
        if let Body::Uniform { item_weight } = &mut b.body {
            let weight = items.first().map_or(0, |i| i.1);
            *item_weight = weight;
            b.items = items.iter().map(|i| i.0).collect();
            if weight == 0 && !items.is_empty() {
                return Err(CrushError::Invalid("items of a uniform bucket need a weight".into()));
            }
            let n = u32::try_from(items.len()).map_err(|_| CrushError::Overflow)?;
            b.weight = weight.checked_mul(n).ok_or(CrushError::Overflow)?;
            return Ok(b);
        }
        for (item, weight) in items {
            b.add_item(*item, *weight, straw_calc_version)?;
        }
        Ok(b)
    }

    /// How it chooses.
    pub fn algorithm(&self) -> Algorithm {
        match self.body {
            Body::Uniform { .. } => Algorithm::Uniform,
            Body::List { .. } => Algorithm::List,
            Body::Tree { .. } => Algorithm::Tree,
            Body::Straw { .. } => Algorithm::Straw,
            Body::Straw2 { .. } => Algorithm::Straw2,
        }
    }

    /// Weight of the item at a position, 0 past the end.
    pub fn item_weight(&self, position: usize) -> u32 {
        if position >= self.items.len() {
            return 0;
        }
        let w = match &self.body {
            Body::Uniform { item_weight } => return *item_weight,
            Body::List { item_weights, .. }
            | Body::Straw { item_weights, .. }
            | Body::Straw2 { item_weights } => item_weights.get(position),
            Body::Tree { node_weights } => node_weights.get(2 * position + 1),
        };
        w.copied().unwrap_or(0)
    }

    /// The items with their weights.
    pub fn weighted_items(&self) -> impl Iterator<Item = (i32, u32)> {
        self.items.iter().enumerate().map(|(i, id)| (*id, self.item_weight(i)))
    }

    /// Position of the first occurrence of an item.
    pub fn position(&self, item: i32) -> Option<usize> {
        self.items.iter().position(|i| *i == item)
    }

    /// Appends an item.
    pub(crate) fn add_item(
        &mut self,
        item: i32,
        weight: u32,
        straw_calc_version: u8,
    ) -> Result<(), CrushError> {
        let total = add(self.weight, weight)?;
        match &mut self.body {
            Body::Uniform { item_weight } => {
                if *item_weight != weight {
                    return Err(CrushError::Invalid(format!(
                        "items of a uniform bucket weigh {item_weight:#x}, not {weight:#x}"
                    )));
                }
            }
            Body::List { item_weights, sum_weights } => {
                sum_weights.push(add(sum_weights.last().copied().unwrap_or(0), weight)?);
                item_weights.push(weight);
            }
            Body::Tree { node_weights } => {
                let n = self.items.len() + 1;
                if n > TREE_ITEMS_MAX {
                    return Err(CrushError::NoSpace("place in a tree bucket"));
                }
                let depth = tree_depth(n);
                node_weights.resize(1 << depth, 0);
                let mut node = 2 * n - 1;
                node_weights[node] = weight;
                // A new right half gets its root's weight from the left half, which was the whole
                // tree.
                let root = node_weights.len() / 2;
                if depth >= 2 && node - 1 == root {
                    node_weights[root] = node_weights[root / 2];
                }
                for _ in 1..depth {
                    node = tree_parent(node);
                    node_weights[node] = add(node_weights[node], weight)?;
                }
            }
            Body::Straw { item_weights, straws } => {
                item_weights.push(weight);
                *straws = straw_lengths(item_weights, straw_calc_version);
            }
            Body::Straw2 { item_weights } => item_weights.push(weight),
        }
        self.items.push(item);
        self.weight = total;
        Ok(())
    }

    /// Removes the first occurrence of an item.
    pub(crate) fn remove_item(
        &mut self,
        item: i32,
        straw_calc_version: u8,
    ) -> Result<(), CrushError> {
        let at = self.position(item).ok_or_else(|| CrushError::NotFound(format!("item {item}")))?;
        let weight = self.item_weight(at);
        self.weight = self.weight.saturating_sub(weight);
        match &mut self.body {
            Body::Uniform { .. } => {
                self.items.remove(at);
            }
            Body::List { item_weights, sum_weights } => {
                self.items.remove(at);
                item_weights.remove(at);
                sum_weights.remove(at);
                for s in &mut sum_weights[at..] {
                    *s = s.wrapping_sub(weight);
                }
            }
            Body::Tree { node_weights } => {
                // The place stays, empty, unless it is at the end.
                let mut node = 2 * at + 1;
                self.items[at] = 0;
                node_weights[node] = 0;
                for _ in 1..tree_depth(self.items.len()) {
                    node = tree_parent(node);
                    node_weights[node] = node_weights[node].wrapping_sub(weight);
                }
                let mut n = self.items.len();
                while n > 0 && node_weights[2 * n - 1] == 0 {
                    n -= 1;
                }
                if tree_depth(n) != tree_depth(self.items.len()) {
                    node_weights.truncate(1 << tree_depth(n));
                }
                self.items.truncate(n);
            }
            Body::Straw { item_weights, straws } => {
                self.items.remove(at);
                item_weights.remove(at);
                straws.truncate(item_weights.len());
                if !item_weights.is_empty() {
                    *straws = straw_lengths(item_weights, straw_calc_version);
                }
            }
            Body::Straw2 { item_weights } => {
                self.items.remove(at);
                item_weights.remove(at);
            }
        }
        Ok(())
    }

    /// Changes the weight of an item (of all items in a uniform bucket).
    pub(crate) fn set_item_weight(&mut self, item: i32, weight: u32, straw_calc_version: u8) {
        if let Body::Uniform { item_weight } = &mut self.body {
            *item_weight = weight;
            self.weight = weight.wrapping_mul(self.items.len() as u32);
            return;
        }
        let Some(at) = self.position(item) else { return };
        let diff = weight.wrapping_sub(self.item_weight(at));
        self.weight = self.weight.wrapping_add(diff);
        match &mut self.body {
            Body::Uniform { .. } => {}
            Body::List { item_weights, sum_weights } => {
                item_weights[at] = weight;
                for s in &mut sum_weights[at..] {
                    *s = s.wrapping_add(diff);
                }
            }
            Body::Tree { node_weights } => {
                let mut node = 2 * at + 1;
                node_weights[node] = weight;
                for _ in 1..tree_depth(self.items.len()) {
                    node = tree_parent(node);
                    node_weights[node] = node_weights[node].wrapping_add(diff);
                }
            }
            Body::Straw { item_weights, straws } => {
                item_weights[at] = weight;
                *straws = straw_lengths(item_weights, straw_calc_version);
            }
            Body::Straw2 { item_weights } => item_weights[at] = weight,
        }
    }

    /// Takes over the weights of child buckets, given by position, and sums up again. The sums
    /// inside list and tree buckets stay as they were: Ceph leaves them too, and placement depends
    /// on them.
    pub(crate) fn reweight(
        &mut self,
        children: &[Option<u32>],
        straw_calc_version: u8,
    ) -> Result<(), CrushError> {
        if let Body::Uniform { item_weight } = &mut self.body {
            let (mut sum, mut n) = (0u32, 0u32);
            for w in children.iter().flatten() {
                sum = add(sum, *w)?;
                n += 1;
            }
            if n as usize > self.items.len() - n as usize {
                *item_weight = sum / n;
            }
            self.weight = item_weight.wrapping_mul(self.items.len() as u32);
            return Ok(());
        }
        let mut total = 0;
        for (i, w) in children.iter().enumerate() {
            if let Some(w) = w {
                match &mut self.body {
                    Body::Uniform { .. } => {}
                    Body::List { item_weights, .. }
                    | Body::Straw { item_weights, .. }
                    | Body::Straw2 { item_weights } => item_weights[i] = *w,
                    Body::Tree { node_weights } => node_weights[2 * i + 1] = *w,
                }
            }
            total = add(total, self.item_weight(i))?;
        }
        self.weight = total;
        if let Body::Straw { item_weights, straws } = &mut self.body {
            *straws = straw_lengths(item_weights, straw_calc_version);
        }
        Ok(())
    }
}

/// Straw lengths for weights (Ceph: `crush_calc_straw`). Lighter items come first; each heavier
/// item's straw is longer by a factor derived from the share of weight below it. The formula is
/// known to be wrong in general; straw2 replaced it. Version 0 treats equal and zero weights
/// differently.
fn straw_lengths(weights: &[u32], version: u8) -> Vec<u32> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|i| weights[*i]); // stable: equal weights keep their order
    let mut straws = vec![0; weights.len()];
    let mut left = weights.len() as i32;
    let (mut straw, mut below, mut last) = (1.0f64, 0.0f64, 0.0f64);
    let mut i = 0;
    while i < order.len() {
        let weight = weights[order[i]];
        if weight == 0 {
            i += 1;
            if version >= 1 {
                left -= 1;
            }
            continue;
        }
        straws[order[i]] = (straw * 65536.0) as u32;
        i += 1;
        let Some(next) = order.get(i).map(|n| weights[*n]) else { break };
        if version == 0 && next == weight {
            continue;
        }
        below += (f64::from(weight) - last) * f64::from(left);
        if version == 0 {
            left -= order[i..].iter().take_while(|n| weights[**n] == next).count() as i32;
        } else {
            left -= 1;
        }
        let step = (left as u32).wrapping_mul(next - weight);
        let share = below / (below + f64::from(step));
        straw *= (1.0 / share).powf(1.0 / f64::from(left));
        last = f64::from(weight);
    }
    straws
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_shapes() {
        assert_eq!([0, 1, 2, 3, 4, 5, 64, 65].map(tree_depth), [0, 1, 2, 3, 3, 4, 7, 8]);
        assert_eq!([1, 3, 5, 7, 2, 6].map(tree_parent), [2, 2, 6, 6, 4, 4]);
    }

    #[test]
    fn every_algorithm_keeps_its_sums() {
        for alg in [Algorithm::List, Algorithm::Tree, Algorithm::Straw, Algorithm::Straw2] {
            let items: Vec<_> = (0..20).map(|i| (i, (i as u32 + 1) << 12)).collect();
            let mut b = Bucket::with_items(alg, 1, &items, 1).unwrap();
            for gone in [19, 3, 0] {
                b.remove_item(gone, 1).unwrap();
            }
            b.set_item_weight(7, 5 << 16, 1);
            assert_eq!(b.weight, b.weighted_items().map(|i| i.1).sum::<u32>(), "{alg:?}");
            if let Body::Tree { node_weights } = &b.body {
                assert_eq!(node_weights[node_weights.len() / 2], b.weight);
            }
            if let Body::List { sum_weights, .. } = &b.body {
                assert_eq!(sum_weights.last(), Some(&b.weight));
            }
        }
    }
}
