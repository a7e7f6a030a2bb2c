//! The hierarchy as operators see it: `ceph osd crush tree`, and the walk that `ceph osd tree` and
//! `ceph osd df` share (Ceph: `crush/CrushTreeDumper.h`).

use crate::dump::{float, weight};
use crate::map::index_of;
use crate::{CrushMap, DEFAULT_CHOOSE_ARGS};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Names of pools, which head their weight sets.
pub type PoolNames = BTreeMap<i64, String>;

/// One line of a tree.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeItem {
    /// Device or bucket.
    pub id: i32,
    /// The bucket above it, 0 for roots and strays.
    pub parent: i32,
    /// 0 for roots.
    pub depth: usize,
    /// Its weight in the parent, 16.16 fixed point.
    pub weight: u32,
    /// What is below, in descending order of class and name (as Ceph lists it).
    pub children: Vec<i32>,
}

/// What a walk shows.
pub struct Filter<'a> {
    /// Whether to show device-class shadow trees.
    pub shadow: bool,
    /// Whether to show a device.
    pub leaf: &'a dyn Fn(i32) -> bool,
    /// Whether to show buckets without any device that is shown.
    pub empty_buckets: bool,
    /// Start from this bucket or device instead of the roots.
    pub root: Option<&'a str>,
}

impl Default for Filter<'_> {
    fn default() -> Self {
        Filter { shadow: false, leaf: &|_| true, empty_buckets: true, root: None }
    }
}

/// A map that shares its buckets between many parents unfolds into a tree far larger than itself.
const ITEMS_MAX: usize = 1 << 20;

impl CrushMap {
    /// The items in the order in which they are printed: depth first, children by class and name. A
    /// map with loops has none.
    pub fn walk(&self, filter: &Filter) -> Vec<TreeItem> {
        if self.ensure_acyclic().is_err() {
            return Vec::new();
        }
        let roots: BTreeSet<i32> = match filter.root {
            Some(name) => self.names.id(name).into_iter().collect(),
            None if filter.shadow => self.roots(),
            None => self.nonshadow_roots(),
        };
        let shown = self.shown_items(filter);
        let show = |id: i32| shown.contains(&id) || (id >= 0 && (filter.leaf)(id));
        let mut items = Vec::new();
        for root in roots.into_iter().filter(|r| show(*r)) {
            let weight = self.bucket(root).map_or(0, |b| b.weight);
            let mut stack =
                vec![TreeItem { id: root, parent: 0, depth: 0, weight, children: Vec::new() }];
            while let Some(mut item) = stack.pop() {
                if items.len() >= ITEMS_MAX {
                    return items;
                }
                if let Some(b) = self.bucket(item.id) {
                    let sorted: BTreeMap<String, (i32, u32)> = b
                        .weighted_items()
                        .filter(|(id, _)| show(*id))
                        .map(|(id, weight)| (self.sort_key(id), (id, weight)))
                        .collect();
                    for (id, weight) in sorted.into_values().rev() {
                        item.children.push(id);
                        stack.push(TreeItem {
                            id,
                            parent: item.id,
                            depth: item.depth + 1,
                            weight,
                            children: Vec::new(),
                        });
                    }
                }
                items.push(item);
            }
        }
        items
    }

    /// Buckets that are shown: all, or those with a shown device below.
    fn shown_items(&self, filter: &Filter) -> BTreeSet<i32> {
        if filter.empty_buckets {
            return self.buckets().map(|b| b.id).collect();
        }
        let mut parents: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for b in self.buckets() {
            for item in &b.items {
                parents.entry(*item).or_default().push(b.id);
            }
        }
        let mut shown = BTreeSet::new();
        let mut queue: Vec<i32> =
            parents.keys().copied().filter(|i| *i >= 0 && (filter.leaf)(*i)).collect();
        while let Some(id) = queue.pop() {
            if shown.insert(id) {
                queue.extend(parents.get(&id).into_iter().flatten());
            }
        }
        shown
    }

    fn sort_key(&self, id: i32) -> String {
        if id >= 0 {
            format!("{}_osd.{id:08}", self.item_class(id).unwrap_or(""))
        } else {
            format!("_{}", self.names.name(id).unwrap_or(""))
        }
    }

    /// `ceph osd crush tree -f json`.
    pub fn dump_tree(&self, pools: &PoolNames, shadow: bool) -> Value {
        let items = self.walk(&Filter { shadow, ..Filter::default() });
        let touched: BTreeSet<i32> = items.iter().map(|i| i.id).collect();
        let nodes: Vec<Value> =
            items.iter().map(|i| self.dump_tree_item(i, pools, Map::new())).collect();
        let strays: Vec<Value> = self
            .names
            .iter()
            .filter(|(id, _)| *id >= 0 && !touched.contains(id))
            .map(|(id, _)| self.dump_tree_item(&stray(id), pools, Map::new()))
            .collect();
        json!({"nodes": nodes, "stray": strays})
    }

    /// One node of a tree; `extra` fields come after the common ones and before the children.
    pub fn dump_tree_item(
        &self,
        item: &TreeItem,
        pools: &PoolNames,
        extra: Map<String, Value>,
    ) -> Value {
        let mut d = Map::new();
        d.insert("id".into(), item.id.into());
        if let Some(class) = self.item_class(item.id) {
            d.insert("device_class".into(), class.into());
        }
        if let Some(b) = self.bucket(item.id) {
            let kind = i32::from(b.kind);
            d.insert("name".into(), self.names.name(item.id).unwrap_or("").into());
            d.insert("type".into(), self.types.name(kind).unwrap_or("").into());
            d.insert("type_id".into(), kind.into());
        } else {
            d.insert("name".into(), format!("osd.{}", item.id).into());
            d.insert("type".into(), self.types.name(0).unwrap_or("").into());
            d.insert("type_id".into(), 0.into());
            d.insert("crush_weight".into(), weight(item.weight));
            d.insert("depth".into(), item.depth.into());
        }
        if item.parent < 0 {
            d.insert("pool_weights".into(), self.dump_pool_weights(item, pools));
        }
        d.extend(extra);
        if item.id < 0 {
            d.insert("children".into(), json!(item.children));
        }
        Value::Object(d)
    }

    fn dump_pool_weights(&self, item: &TreeItem, pools: &PoolNames) -> Value {
        let mut all = Map::new();
        for (key, weights) in self.pool_weights(item) {
            let name = if key == DEFAULT_CHOOSE_ARGS {
                "(compat)".to_owned()
            } else {
                pools.get(&key).cloned().unwrap_or_else(|| key.to_string())
            };
            let weights: Vec<Value> =
                weights.into_iter().map(|w| float(f64::from(w as f32 / 65536.0))).collect();
            all.insert(name, weights.into());
        }
        Value::Object(all)
    }

    /// The item's weights by position in each weight set of its parent.
    fn pool_weights(&self, item: &TreeItem) -> BTreeMap<i64, Vec<u32>> {
        let mut all = BTreeMap::new();
        let Some(position) = self.bucket(item.parent).and_then(|b| b.position(item.id)) else {
            return all;
        };
        for (key, cmap) in &self.choose_args {
            let arg = index_of(item.parent)
                .and_then(|i| cmap.args.get(&i))
                .filter(|a| !a.weight_set.is_empty());
            if let Some(arg) = arg {
                let of = |set: &Vec<u32>| set.get(position).copied().unwrap_or(0);
                all.insert(*key, arg.weight_set.iter().map(of).collect());
            }
        }
        all
    }

    /// `ceph osd crush tree` as text.
    pub fn print_tree(&self, pools: &PoolNames, shadow: bool) -> String {
        let mut table = TextTable::new(&[("ID", true), ("CLASS", true), ("WEIGHT", true)]);
        for key in self.choose_args.keys() {
            let name = if *key == DEFAULT_CHOOSE_ARGS {
                "(compat)".to_owned()
            } else {
                pools.get(key).cloned().unwrap_or_else(|| key.to_string())
            };
            table.column(&name, true);
        }
        table.column("TYPE NAME", false);
        for item in self.walk(&Filter { shadow, ..Filter::default() }) {
            let mut row = self.tree_cells(&item);
            let name = row.pop();
            let weights = self.pool_weights(&item);
            for key in self.choose_args.keys() {
                row.push(
                    weights
                        .get(key)
                        .and_then(|w| w.first())
                        .map_or(String::new(), |w| print_weight(*w)),
                );
            }
            row.extend(name);
            table.row(row);
        }
        table.to_string()
    }

    /// The cells that every tree begins with: id, class, weight, and the indented name.
    pub fn tree_cells(&self, item: &TreeItem) -> Vec<String> {
        let name = match self.bucket(item.id) {
            Some(b) => format!(
                "{} {}",
                self.types.name(i32::from(b.kind)).unwrap_or(""),
                self.names.name(item.id).unwrap_or("")
            ),
            None => format!("osd.{}", item.id),
        };
        vec![
            item.id.to_string(),
            self.item_class(item.id).unwrap_or("").to_owned(),
            print_weight(item.weight),
            format!("{}{name}", "    ".repeat(item.depth)),
        ]
    }
}

/// A device that is in no bucket.
pub fn stray(id: i32) -> TreeItem {
    TreeItem { id, parent: 0, depth: 0, weight: 0, children: Vec::new() }
}

/// A 16.16 fixed-point weight as text (Ceph: `weightf_t`).
pub fn print_weight(w: u32) -> String {
    let v = w as i32 as f32 / 65536.0;
    if v < -0.01 {
        "-".into()
    } else if v < 0.000_001 {
        "0".into()
    } else {
        format!("{v:.5}")
    }
}

/// Columns of text as Ceph prints them: two spaces between columns, cells padded to the widest.
#[derive(Clone, Debug, Default)]
pub struct TextTable {
    columns: Vec<(String, bool)>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with columns, each with its heading and whether its cells are aligned to the right.
    pub fn new(columns: &[(&str, bool)]) -> Self {
        TextTable {
            columns: columns.iter().map(|(h, r)| ((*h).to_owned(), *r)).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a column.
    pub fn column(&mut self, heading: &str, right: bool) {
        self.columns.push((heading.to_owned(), right));
    }

    /// Adds a row, which may have fewer cells than there are columns.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for TextTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = |i: usize| {
            let cells = self.rows.iter().filter_map(|r| r.get(i)).map(String::len);
            cells.max().unwrap_or(0).max(self.columns[i].0.len())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for (i, (heading, _)) in self.columns.iter().enumerate() {
            write!(f, "{}{heading:<w$}", if i > 0 { "  " } else { "" }, w = widths[i])?;
        }
        writeln!(f)?;
        for row in &self.rows {
            // Ceph fills a row that ends early with empty cells, padded like the others.
            for (i, (_, right)) in self.columns.iter().enumerate() {
                let cell = row.get(i).map_or("", String::as_str);
                let gap = if i > 0 { "  " } else { "" };
                if *right {
                    write!(f, "{gap}{cell:>w$}", w = widths[i])?;
                } else {
                    write!(f, "{gap}{cell:<w$}", w = widths[i])?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
