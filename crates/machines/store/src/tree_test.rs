//! The tree against a `BTreeMap`, with nodes kept in a plain map.

use crate::dev::AlignedBuf;
use crate::error::StoreError;
use crate::tree::{Layer, Miss, Node, NodePtr, Pages, Tree, merge};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Bound;
use std::rc::Rc;

#[derive(Default)]
struct Memory {
    nodes: BTreeMap<u64, Bytes>,
    next: u64,
    dropped: Vec<NodePtr>,
}

impl Pages for Memory {
    async fn load(&mut self, ptr: &NodePtr) -> Result<Rc<Node>, StoreError> {
        Ok(Rc::new(Node::parse(self.nodes[&ptr.key()].clone())?))
    }
    async fn store(&mut self, node: AlignedBuf) -> Result<NodePtr, StoreError> {
        let n = node.len() as u32 / 4096;
        let at = self.next;
        self.next += u64::from(n);
        self.nodes.insert(at, Bytes::copy_from_slice(&node));
        Ok(NodePtr { runs: smallvec::smallvec![(at, n)], crc: crc32c::crc32c(&node) })
    }
    fn drop_node(&mut self, ptr: &NodePtr) {
        self.dropped.push(ptr.clone());
    }
    async fn breathe(&mut self) {}
}

/// Nothing here ever waits.
fn now<T>(f: impl Future<Output = T>) -> T {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(f).poll(&mut cx) {
        std::task::Poll::Ready(t) => t,
        std::task::Poll::Pending => panic!("nothing to wait for"),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u32, usize),
    Remove(u32),
    RemoveRange(u32, u32),
    Fill(u32, u32, usize),
}

fn name(i: u32) -> Bytes {
    // Keys of several lengths, some of them prefixes of others.
    Bytes::from(format!(
        "{:04}{}",
        i / 3,
        ["", "/a", "/a/long/tail/that/is/shared"][i as usize % 3]
    ))
}

fn value(i: u32, n: usize) -> Bytes {
    Bytes::from(vec![i as u8; n])
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..3000, prop_oneof![3 => 0usize..200, 1 => 0usize..9000]).prop_map(|(k, n)| Step::Put(k, n)),
        2 => (0u32..3000).prop_map(Step::Remove),
        1 => (0u32..3000, 0u32..3000).prop_map(|(a, b)| Step::RemoveRange(a, b)),
        1 => (0u32..3000, 0u32..400, 0usize..300).prop_map(|(a, n, v)| Step::Fill(a, n, v)),
    ]
}

fn check(tree: &mut Tree, pages: &Memory, model: &BTreeMap<Bytes, Bytes>, probes: &[u32]) {
    let load = |tree: &mut Tree, ptr: &NodePtr| {
        let bytes = pages.nodes.get(&ptr.key()).expect("the node is part of the tree");
        assert_eq!(crc32c::crc32c(bytes), ptr.crc);
        tree.insert(ptr, Rc::new(Node::parse(bytes.clone()).unwrap()));
    };
    let mut rows = Vec::new();
    let mut at = Some(Bytes::new());
    while let Some(start) = at {
        match tree.scan(Bound::Included(&start), None, 37) {
            Ok(page) => {
                rows.extend(page.rows);
                at = page.next;
            }
            Err(Miss(ptr)) => {
                load(tree, &ptr);
                at = Some(start);
            }
        }
    }
    let want: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    assert_eq!(rows, want);
    for p in probes {
        let key = name(*p);
        let got = loop {
            match tree.get(&key) {
                Ok(got) => break got,
                Err(Miss(ptr)) => load(tree, &ptr),
            }
        };
        assert_eq!(got.as_ref(), model.get(&key));
        let after = loop {
            match tree.scan(Bound::Excluded(&key), Some(b"2"), 1) {
                Ok(page) => break page.rows,
                Err(Miss(ptr)) => load(tree, &ptr),
            }
        };
        let want = model.range::<[u8], _>((Bound::Excluded(&key[..]), Bound::Unbounded)).next();
        assert_eq!(
            after.first().map(|r| &r.0),
            want.map(|r| r.0).filter(|k| k.as_ref() < b"2".as_slice())
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn tree_equals_a_map(batches in prop::collection::vec(prop::collection::vec(step(), 1..60), 1..12)) {
        let mut pages = Memory::default();
        let mut model: BTreeMap<Bytes, Bytes> = BTreeMap::new();
        let mut root = None;
        for steps in batches {
            let mut layer = Layer::default();
            let mut probes = Vec::new();
            for s in steps {
                match s {
                    Step::Put(k, n) => {
                        layer.put(name(k), Some(value(k, n)));
                        model.insert(name(k), value(k, n));
                        probes.push(k);
                    }
                    Step::Remove(k) => {
                        layer.put(name(k), None);
                        model.remove(&name(k));
                        probes.push(k);
                    }
                    Step::RemoveRange(a, b) => {
                        let (a, b) = (name(a), name(b));
                        layer.remove_range(a.clone(), b.clone());
                        if a < b {
                            model.retain(|k, _| *k < a || *k >= b);
                        }
                    }
                    Step::Fill(a, n, v) => {
                        for k in a..a + n {
                            layer.put(name(k), Some(value(k, v)));
                            model.insert(name(k), value(k, v));
                        }
                    }
                }
            }
            // What the layer says, on its own, about every row of the model.
            for (k, v) in &layer.rows {
                prop_assert_eq!(layer.get(k), Some(v.clone()));
            }
            root = now(merge(&mut pages, root, &layer)).unwrap().0;
            // Dropped nodes are gone for good: the new tree must not need them, and each is dropped
            // once.
            for ptr in std::mem::take(&mut pages.dropped) {
                prop_assert!(pages.nodes.remove(&ptr.key()).is_some(), "dropped twice");
            }
            let mut tree = Tree::new(root.clone(), 100_000);
            check(&mut tree, &pages, &model, &probes);
            if model.is_empty() {
                prop_assert!(root.is_none());
                prop_assert!(pages.nodes.is_empty(), "an empty tree leaves nodes behind");
            }
        }
        // Nodes that nothing refers to would be lost space.
        let mut reached = 0;
        let mut todo: Vec<NodePtr> = root.into_iter().collect();
        while let Some(ptr) = todo.pop() {
            reached += 1;
            let node = now(pages.load(&ptr)).unwrap();
            if !node.is_leaf() {
                todo.extend((0..node.len()).map(|i| node.child(i)));
            }
        }
        prop_assert_eq!(reached, pages.nodes.len());
    }
}
