//! What the benchmark of metadata trees needs of this crate's inside. Not part of the interface.

use crate::dev::AlignedBuf;
use crate::error::StoreError;
use crate::tree::{Layer, Miss, Node, NodePtr, Pages, Tree, merge};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

/// The metadata tree on a plain file, with a first-fit allocator of 4 KiB blocks.
pub struct TreeFile {
    io: PageFile,
    tree: Tree,
}

struct PageFile {
    file: File,
    /// Free runs by first block.
    free: BTreeMap<u64, u64>,
    end: u64,
    dropped: Vec<NodePtr>,
    written: u64,
    cache: *mut Tree,
}

impl TreeFile {
    /// An empty tree in a new file.
    pub fn create(path: &Path, cache: usize) -> std::io::Result<TreeFile> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        let io = PageFile {
            file,
            free: BTreeMap::new(),
            end: 1,
            dropped: Vec::new(),
            written: 0,
            cache: std::ptr::null_mut(),
        };
        Ok(TreeFile { io, tree: Tree::new(None, cache) })
    }

    /// Merges rows (`None` removes) and makes the result durable.
    pub fn apply(&mut self, rows: &BTreeMap<Bytes, Option<Bytes>>) -> Result<(), StoreError> {
        let mut layer = Layer::default();
        for (k, v) in rows {
            layer.put(k.clone(), v.clone());
        }
        self.io.cache = &mut self.tree;
        let root = self.tree.root.clone();
        let (root, _) = ready(merge(&mut self.io, root, &layer))?;
        self.io.file.sync_data()?;
        self.tree.root = root;
        for ptr in std::mem::take(&mut self.io.dropped) {
            self.tree.forget(&ptr);
            for (at, n) in ptr.runs {
                self.io.release(at, n.into());
            }
        }
        Ok(())
    }

    /// One row.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        loop {
            match self.tree.get(key) {
                Ok(v) => return Ok(v),
                Err(Miss(ptr)) => {
                    let node = self.io.read(&ptr)?;
                    self.tree.insert(&ptr, node);
                }
            }
        }
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.io.written
    }

    /// Bytes of the file in use, and of the file.
    pub fn space(&self) -> (u64, u64) {
        let free: u64 = self.io.free.values().sum();
        ((self.io.end - free) * 4096, self.io.end * 4096)
    }
}

impl PageFile {
    fn read(&mut self, ptr: &NodePtr) -> Result<Rc<Node>, StoreError> {
        let mut buf = vec![0; (ptr.blocks() * 4096) as usize];
        self.file.read_exact_at(&mut buf, ptr.key() * 4096)?;
        if crc32c::crc32c(&buf) != ptr.crc {
            return Err(StoreError::Corrupt("node".into()));
        }
        Ok(Rc::new(Node::parse(buf.into())?))
    }

    fn release(&mut self, at: u64, n: u64) {
        let (mut at, mut n) = (at, n);
        if let Some((&s, &len)) = self.free.range(..at).next_back()
            && s + len == at
        {
            self.free.remove(&s);
            (at, n) = (s, n + len);
        }
        if let Some(len) = self.free.remove(&(at + n)) {
            n += len;
        }
        self.free.insert(at, n);
    }
}

impl Pages for PageFile {
    async fn load(&mut self, ptr: &NodePtr) -> Result<Rc<Node>, StoreError> {
        // SAFETY: set by `apply` to the tree next to this, which nothing else uses while the merge
        // runs.
        let tree = unsafe { &mut *self.cache };
        if let Some(node) = tree.cached(ptr) {
            return Ok(node);
        }
        self.read(ptr)
    }

    async fn store(&mut self, node: AlignedBuf) -> Result<NodePtr, StoreError> {
        let n = node.len() as u64 / 4096;
        let at = match self.free.iter().find(|(_, len)| **len >= n).map(|(at, len)| (*at, *len)) {
            Some((at, len)) => {
                self.free.remove(&at);
                if len > n {
                    self.free.insert(at + n, len - n);
                }
                at
            }
            None => {
                self.end += n;
                self.end - n
            }
        };
        self.file.write_all_at(&node, at * 4096)?;
        self.written += node.len() as u64;
        let bytes = node.freeze();
        let ptr =
            NodePtr { runs: smallvec::smallvec![(at, n as u32)], crc: crc32c::crc32c(&bytes) };
        // SAFETY: as in `load`.
        unsafe { &mut *self.cache }.insert(&ptr, Rc::new(Node::parse(bytes)?));
        Ok(ptr)
    }

    fn drop_node(&mut self, ptr: &NodePtr) {
        self.dropped.push(ptr.clone());
    }

    async fn breathe(&mut self) {}
}

/// Nothing in this module waits for anything but the file.
fn ready<T>(f: impl Future<Output = T>) -> T {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(f).poll(&mut cx) {
        std::task::Poll::Ready(t) => t,
        std::task::Poll::Pending => unreachable!("no future here is ever pending"),
    }
}
