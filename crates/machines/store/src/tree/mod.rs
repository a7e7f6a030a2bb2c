//! The metadata tree: an ordered map from byte strings to byte strings that changes in sorted
//! batches.
//!
//! It is a copy-on-write B+tree. A batch is merged in one pass from left to right: every leaf that
//! the batch touches is read, merged and written to free blocks, and so are the inner nodes above;
//! everything else is left alone. Nothing that the old root reaches is overwritten, so that the old
//! tree stays whole until the new root is recorded in the superblock. A parent keeps the checksum
//! of each child.
//!
//! Lookups work on nodes in memory and never wait: where a node is missing they say which one
//! ([`Miss`]), the caller brings it in, waiting or not, and asks again.

mod layer;
mod merge;
mod node;

pub(crate) use layer::Layer;
pub(crate) use merge::{Pages, merge};
#[cfg(test)]
pub(crate) use node::build as build_for_test;
pub(crate) use node::{Node, NodePtr};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::Bound;
use std::rc::Rc;

/// A node that is not in memory.
pub(crate) struct Miss(pub NodePtr);

/// The tree as of one root, with the nodes in memory.
pub(crate) struct Tree {
    pub(crate) root: Option<NodePtr>,
    cache: FxHashMap<u64, Cached>,
    /// Second-chance order.
    order: VecDeque<u64>,
    bytes: usize,
    budget: usize,
}

struct Cached {
    crc: u32,
    node: Rc<Node>,
    hot: bool,
}

/// Rows of a scan.
pub(crate) struct Scan {
    pub rows: Vec<(Bytes, Bytes)>,
    /// Where to go on (inclusive); `None` when the end of the range was reached.
    pub next: Option<Bytes>,
}

impl Tree {
    pub(crate) fn new(root: Option<NodePtr>, budget: usize) -> Tree {
        Tree { root, cache: FxHashMap::default(), order: VecDeque::new(), bytes: 0, budget }
    }

    /// Bytes of nodes in memory.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.bytes
    }

    /// The node, if it is in memory.
    pub(crate) fn cached(&mut self, ptr: &NodePtr) -> Option<Rc<Node>> {
        let c = self.cache.get_mut(&ptr.key())?;
        // Blocks are reused: another checksum means another node.
        if c.crc != ptr.crc {
            return None;
        }
        c.hot = true;
        Some(c.node.clone())
    }

    /// Keeps a node in memory.
    pub(crate) fn insert(&mut self, ptr: &NodePtr, node: Rc<Node>) {
        self.bytes += node.bytes();
        if let Some(old) = self.cache.insert(ptr.key(), Cached { crc: ptr.crc, node, hot: false }) {
            self.bytes -= old.node.bytes();
        } else {
            self.order.push_back(ptr.key());
        }
        self.trim();
    }

    /// Changes how many bytes of nodes are kept.
    pub(crate) fn set_budget(&mut self, budget: usize) {
        self.budget = budget;
        self.trim();
    }

    /// How many bytes of nodes are kept.
    pub(crate) fn budget(&self) -> usize {
        self.budget
    }

    fn trim(&mut self) {
        while self.bytes > self.budget && self.order.len() > 8 {
            let Some(key) = self.order.pop_front() else { break };
            match self.cache.get_mut(&key) {
                Some(c) if c.hot => {
                    c.hot = false;
                    self.order.push_back(key);
                }
                Some(_) => {
                    if let Some(c) = self.cache.remove(&key) {
                        self.bytes -= c.node.bytes();
                    }
                }
                None => {}
            }
        }
    }

    /// Forgets a node that gave its blocks back.
    pub(crate) fn forget(&mut self, ptr: &NodePtr) {
        if let Some(c) = self.cache.get(&ptr.key())
            && c.crc == ptr.crc
        {
            self.bytes -= c.node.bytes();
            self.cache.remove(&ptr.key());
        }
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>, Miss> {
        let Some(mut ptr) = self.root.clone() else { return Ok(None) };
        loop {
            let Some(node) = self.cached(&ptr) else { return Err(Miss(ptr)) };
            if node.is_leaf() {
                return Ok(node.find(key).map(|i| node.value(i)));
            }
            ptr = node.child(node.child_for(key));
        }
    }

    /// What a scan from `start` to before `end` will miss next: at most `max` nodes that are not in
    /// memory, neighbours below one parent. Where the neighbours are below another parent there may
    /// be none.
    pub(crate) fn ahead(&mut self, start: &[u8], end: &[u8], max: usize) -> Vec<NodePtr> {
        let Some(mut ptr) = self.root.clone() else { return Vec::new() };
        while let Some(node) = self.cached(&ptr) {
            if node.is_leaf() {
                return Vec::new();
            }
            let i = node.child_for(start);
            ptr = node.child(i);
            let from = match self.cached(&ptr) {
                Some(below) if !below.is_leaf() => continue,
                below => i + usize::from(below.is_some()),
            };
            let inside = (from..node.len()).take_while(|k| *k == i || node.key(*k).as_ref() < end);
            return inside
                .map(|k| node.child(k))
                .filter(|c| self.cached(c).is_none())
                .take(max)
                .collect();
        }
        vec![ptr]
    }

    /// Rows from `from` to before `end`, at most `max`.
    pub(crate) fn scan(
        &mut self,
        from: Bound<&[u8]>,
        end: Option<&[u8]>,
        max: usize,
    ) -> Result<Scan, Miss> {
        let mut out = Scan { rows: Vec::new(), next: None };
        let Some(root) = self.root.clone() else { return Ok(out) };
        let start: &[u8] = match from {
            Bound::Included(k) | Bound::Excluded(k) => k,
            Bound::Unbounded => &[],
        };
        // The inner nodes on the way to the current leaf, with the child taken.
        let mut path: Vec<(Rc<Node>, usize)> = Vec::new();
        let mut ptr = root;
        let mut first = true;
        loop {
            let Some(node) = self.cached(&ptr) else {
                // What was found so far is an answer, too.
                if out.rows.is_empty() {
                    return Err(Miss(ptr));
                }
                let last = out.rows.last().map(|(k, _)| [k.as_ref(), &[0]].concat());
                out.next = last.map(Bytes::from);
                return Ok(out);
            };
            if !node.is_leaf() {
                let i = if first { node.child_for(start) } else { 0 };
                ptr = node.child(i);
                path.push((node, i));
                continue;
            }
            let mut i = match from {
                _ if !first => 0,
                Bound::Excluded(k) => node.lower_bound(k) + usize::from(node.find(k).is_some()),
                Bound::Included(k) => node.lower_bound(k),
                Bound::Unbounded => 0,
            };
            first = false;
            while i < node.len() {
                let key = node.key(i);
                if end.is_some_and(|e| key.as_ref() >= e) {
                    return Ok(out);
                }
                if out.rows.len() >= max {
                    out.next = Some(key);
                    return Ok(out);
                }
                out.rows.push((key, node.value(i)));
                i += 1;
            }
            // The next leaf: up until there is a child to the right.
            loop {
                let Some((node, i)) = path.pop() else { return Ok(out) };
                if i + 1 < node.len() {
                    if end.is_some_and(|e| node.key(i + 1).as_ref() >= e) {
                        return Ok(out);
                    }
                    ptr = node.child(i + 1);
                    path.push((node, i + 1));
                    break;
                }
            }
        }
    }
}
