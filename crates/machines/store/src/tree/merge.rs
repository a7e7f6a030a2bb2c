//! Merging a batch into the tree.
//!
//! The tree is walked from left to right. Subtrees without changes are taken over by their pointer;
//! leaves with changes are merged row by row. What comes out goes through one builder per level,
//! which cuts it into nodes: rows into leaves, pointers to leaves into inner nodes, and so on up to
//! a single root. A builder that holds too little for a node of its own takes in its right
//! neighbour even if that has no changes, so that nodes do not crumble.

use super::layer::Layer;
use super::node::{Node, NodePtr, build, row_bytes};
use crate::dev::AlignedBuf;
use crate::error::StoreError;
use crate::types::BLOCK;
use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// The part of the store that the merge uses.
pub(crate) trait Pages {
    /// Brings in a node.
    async fn load(&mut self, ptr: &NodePtr) -> Result<Rc<Node>, StoreError>;
    /// Writes a new node to free blocks. It need not be durable before the superblock refers to it.
    async fn store(&mut self, node: AlignedBuf) -> Result<NodePtr, StoreError>;
    /// The node is not part of the new tree.
    fn drop_node(&mut self, ptr: &NodePtr);
    /// Called between small steps; lets others run when it is time.
    async fn breathe(&mut self);
}

/// Counters of a merge.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MergeStats {
    pub nodes_read: u64,
    pub nodes_written: u64,
    pub blocks_written: u64,
}

/// A node is cut when its rows exceed this many bytes.
const NODE_MAX: usize = 4 * BLOCK as usize - 64;
/// A builder with less than this takes in its neighbour.
const NODE_MIN: usize = NODE_MAX / 4;

#[derive(Default)]
struct Level {
    rows: Vec<(Bytes, Bytes)>,
    bytes: usize,
    /// Lower bound of everything that comes next at this level, for the pointer above.
    last_key: Option<Bytes>,
}

struct Merge<'a, P> {
    pages: &'a mut P,
    batch: &'a Layer,
    levels: Vec<Level>,
    stats: MergeStats,
}

/// Merges `batch` into the tree at `root`; returns the new root.
pub(crate) async fn merge<P: Pages>(
    pages: &mut P,
    root: Option<NodePtr>,
    batch: &Layer,
) -> Result<(Option<NodePtr>, MergeStats), StoreError> {
    let mut m =
        Merge { pages, batch, levels: vec![Level::default()], stats: MergeStats::default() };
    match &root {
        Some(ptr) => m.walk(ptr.clone(), Bytes::new(), None).await?,
        None => {
            for (k, v) in &batch.rows {
                if let Some(v) = v {
                    m.push(0, k.clone(), v.clone()).await?;
                }
            }
        }
    }
    let root = m.finish().await?;
    Ok((root, m.stats))
}

type Step<'b> = Pin<Box<dyn Future<Output = Result<(), StoreError>> + 'b>>;

impl<P: Pages> Merge<'_, P> {
    /// Merges the subtree at `ptr`, which holds the keys in `[lo, hi)`.
    fn walk(&mut self, ptr: NodePtr, lo: Bytes, hi: Option<Bytes>) -> Step<'_> {
        Box::pin(async move {
            let node = self.pages.load(&ptr).await?;
            self.stats.nodes_read += 1;
            self.pages.breathe().await;
            self.pages.drop_node(&ptr);
            if node.is_leaf() {
                return self.leaf(&node, &lo, hi.as_deref()).await;
            }
            let level = node.level() as usize;
            for i in 0..node.len() {
                let child_lo = if i == 0 { lo.clone() } else { node.key(i) };
                let child_hi = if i + 1 < node.len() { Some(node.key(i + 1)) } else { hi.clone() };
                let (l, h) = (child_lo.as_ref(), child_hi.as_deref());
                let child = node.child(i);
                if !self.batch.touches(l, h) {
                    self.keep(level - 1, child, child_lo).await?;
                } else if self.batch.covers(l, h) {
                    self.discard(child).await?;
                    self.fresh(l, h).await?;
                } else {
                    self.walk(child, child_lo, child_hi).await?;
                }
            }
            Ok(())
        })
    }

    /// Pushes the batch's own rows of a range below which nothing survives.
    async fn fresh(&mut self, lo: &[u8], hi: Option<&[u8]>) -> Result<(), StoreError> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let batch = self.batch;
        for (k, v) in batch.rows.range::<[u8], _>((Included(lo), hi.map_or(Unbounded, Excluded))) {
            if let Some(v) = v {
                self.push(0, k.clone(), v.clone()).await?;
            }
        }
        Ok(())
    }

    async fn leaf(&mut self, node: &Node, lo: &[u8], hi: Option<&[u8]>) -> Result<(), StoreError> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let batch = self.batch;
        let mut changes =
            batch.rows.range::<[u8], _>((Included(lo), hi.map_or(Unbounded, Excluded))).peekable();
        let check_dead = !batch.dead.is_empty();
        for i in 0..node.len() {
            let key = node.key(i);
            let mut replaced = false;
            while let Some((k, v)) = changes.next_if(|(k, _)| **k <= key) {
                replaced |= *k == key;
                if let Some(v) = v {
                    self.push(0, k.clone(), v.clone()).await?;
                }
            }
            let replaced = replaced || (check_dead && batch.is_dead(&key));
            if !replaced {
                self.push(0, key, node.value(i)).await?;
            }
        }
        for (k, v) in changes {
            if let Some(v) = v {
                self.push(0, k.clone(), v.clone()).await?;
            }
        }
        Ok(())
    }

    /// Takes over a subtree with its root at `level`, unchanged.
    async fn keep(&mut self, level: usize, ptr: NodePtr, lo: Bytes) -> Result<(), StoreError> {
        // What lies to the left of it must be cut into nodes first.
        for l in 0..level {
            self.flush(l).await?;
        }
        let pending = self.level(level).bytes;
        if pending > 0 && pending < NODE_MIN {
            let node = self.pages.load(&ptr).await?;
            self.stats.nodes_read += 1;
            self.pages.drop_node(&ptr);
            for i in 0..node.len() {
                let key = if i == 0 && level > 0 { lo.clone() } else { node.key(i) };
                self.push(level, key, node.value(i)).await?;
            }
            return Ok(());
        }
        self.flush(level).await?;
        // The next leaf must be told from this subtree's last key, which is not known here.
        self.level(0).last_key = None;
        let mut value = Vec::new();
        ptr.encode(&mut value);
        self.push(level + 1, lo, value.into()).await
    }

    /// Gives back a subtree with all its nodes.
    fn discard(&mut self, ptr: NodePtr) -> Step<'_> {
        Box::pin(async move {
            let node = self.pages.load(&ptr).await?;
            self.stats.nodes_read += 1;
            self.pages.breathe().await;
            self.pages.drop_node(&ptr);
            match node.level() {
                0 => {}
                1 => (0..node.len()).for_each(|i| self.pages.drop_node(&node.child(i))),
                _ => {
                    for i in 0..node.len() {
                        self.discard(node.child(i)).await?;
                    }
                }
            }
            Ok(())
        })
    }

    fn level(&mut self, level: usize) -> &mut Level {
        while self.levels.len() <= level {
            self.levels.push(Level::default());
        }
        &mut self.levels[level]
    }

    async fn push(&mut self, level: usize, key: Bytes, value: Bytes) -> Result<(), StoreError> {
        let l = self.level(level);
        let size = row_bytes(&key, &value);
        l.rows.push((key, value));
        l.bytes += size;
        // Two nodes' worth: cut one off, and enough is left for another.
        if l.bytes > 2 * NODE_MAX || (l.bytes > NODE_MAX && size > NODE_MAX / 2) {
            let mut n = 0;
            let mut bytes = 0;
            while n + 1 < l.rows.len() && bytes < NODE_MAX * 3 / 4 {
                let (k, v) = &l.rows[n];
                let next = row_bytes(k, v);
                if n > 0 && bytes + next > NODE_MAX {
                    break;
                }
                bytes += next;
                n += 1;
            }
            self.cut(level, n.max(1)).await?;
        }
        Ok(())
    }

    /// Writes the first `n` rows of a level as a node and pushes its pointer to the level above.
    fn cut(&mut self, level: usize, n: usize) -> Step<'_> {
        Box::pin(async move {
            let l = self.level(level);
            let rest = l.rows.split_off(n);
            let rows = std::mem::replace(&mut l.rows, rest);
            l.bytes = l.rows.iter().map(|(k, v)| row_bytes(k, v)).sum();
            let Some((first, _)) = rows.first() else { return Ok(()) };
            // A leaf's pointer needs no more of its first key than tells it from the row before.
            let sep = match (&l.last_key, level) {
                (Some(last), 0) => {
                    let same = last.iter().zip(first.iter()).take_while(|(a, b)| a == b).count();
                    first.slice(..(same + 1).min(first.len()))
                }
                _ => first.clone(),
            };
            l.last_key = rows.last().map(|(k, _)| k.clone());
            let buf = build(level as u8, &rows);
            self.stats.nodes_written += 1;
            self.stats.blocks_written += buf.len() as u64 / BLOCK;
            let ptr = self.pages.store(buf).await?;
            self.pages.breathe().await;
            let mut value = Vec::new();
            ptr.encode(&mut value);
            self.push(level + 1, sep, value.into()).await
        })
    }

    /// Writes all rows of a level.
    async fn flush(&mut self, level: usize) -> Result<(), StoreError> {
        while !self.level(level).rows.is_empty() {
            let l = self.level(level);
            let n = if l.bytes <= NODE_MAX {
                l.rows.len()
            } else {
                let half = l.bytes / 2;
                let mut bytes = 0;
                let n = l.rows.iter().position(|(k, v)| {
                    bytes += row_bytes(k, v);
                    bytes > half
                });
                n.unwrap_or(l.rows.len()).clamp(1, l.rows.len())
            };
            self.cut(level, n).await?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<Option<NodePtr>, StoreError> {
        let mut level = 0;
        loop {
            let top = level + 1 >= self.levels.len();
            if top && self.levels[level].rows.is_empty() {
                return Ok(None);
            }
            if top && level > 0 && self.levels[level].rows.len() == 1 {
                // A single pointer: the node below is the root.
                let (_, value) = self.levels[level].rows.remove(0);
                return NodePtr::decode(&mut crate::codec::Take::new(&value)).map(Some);
            }
            self.flush(level).await?;
            level += 1;
        }
    }
}
