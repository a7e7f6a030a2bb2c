//! Consistency check and dump.

use super::Disk;
use super::family::Family;
use super::state::{Delta, tag};
use crate::error::StoreError;
use crate::onode::Onode;
use crate::report::{DumpReport, FsckProblem, FsckReport, ObjectDump};
use crate::tree::NodePtr;
use crate::types::{BLOCK, Coll, Key};
use crate::window::Window;
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Blocks and rows as the check has found them.
#[derive(Default)]
struct Seen {
    /// References to each block, and the family that the extents name.
    blocks: FxHashMap<u64, (u32, u64)>,
    omaps: FxHashSet<u64>,
    tree: FxHashSet<u64>,
}

impl Disk {
    /// Compares everything with everything. Nothing may be submitted meanwhile.
    pub(crate) async fn fsck(&self, deep: bool) -> Result<FsckReport, StoreError> {
        // With everything in the tree there is one truth to check; but damage must not keep us from
        // looking.
        let mut report = FsckReport::default();
        let mut seen = Seen::default();
        if self.failed.borrow().is_none() {
            self.checkpoint_now().await?;
        }
        self.check_tree(&mut report, &mut seen).await;
        if report.problems.is_empty() {
            self.check_objects(&mut report, &mut seen, deep).await?;
            self.check_families(&mut report, &seen).await?;
            self.check_omaps(&mut report, &seen).await?;
            self.check_map(&mut report, &seen);
        }
        Ok(report)
    }

    /// Reads every node of the tree.
    async fn check_tree(&self, report: &mut FsckReport, seen: &mut Seen) {
        let root = self.state.borrow().tree.root.clone();
        let mut todo: Vec<NodePtr> = root.into_iter().collect();
        let mut last: Option<Bytes> = None;
        while let Some(ptr) = todo.pop() {
            for (at, n) in &ptr.runs {
                for b in *at..at + u64::from(*n) {
                    report.tree_blocks += 1;
                    if !seen.tree.insert(b) {
                        report.problem(None, format!("block {b} is in two tree nodes"));
                    }
                }
            }
            let cached = self.state.borrow_mut().tree.cached(&ptr);
            let node = match cached {
                Some(node) => node,
                None => {
                    if let Err(e) = self.load_node(&ptr).await {
                        report.problem(None, format!("tree node at block {}: {e}", ptr.key()));
                        continue;
                    }
                    match self.state.borrow_mut().tree.cached(&ptr) {
                        Some(node) => node,
                        None => continue,
                    }
                }
            };
            if node.is_leaf() {
                for i in 0..node.len() {
                    let key = node.key(i);
                    if last.as_ref().is_some_and(|l| *l >= key) {
                        report.problem(
                            None,
                            format!("tree row out of order: {}", key.escape_ascii()),
                        );
                    }
                    last = Some(key);
                }
            } else {
                todo.extend((0..node.len()).rev().map(|i| node.child(i)));
            }
        }
    }

    /// Calls `f` for every row of the tree with this tag.
    async fn each_row(&self, tag: u8, mut f: impl FnMut(&Bytes, &Bytes)) -> Result<(), StoreError> {
        let end = [tag + 1];
        let mut at = Some(Bytes::copy_from_slice(&[tag]));
        while let Some(start) = at {
            let page = loop {
                let got = self.state.borrow_mut().rows(Bound::Included(&start), &end, 256);
                match got {
                    Ok(page) => break page,
                    Err(crate::tree::Miss(ptr)) => self.load_node(&ptr).await?,
                }
            };
            page.rows.iter().for_each(|(k, v)| f(k, v));
            at = page.next;
        }
        Ok(())
    }

    async fn check_objects(
        &self,
        report: &mut FsckReport,
        seen: &mut Seen,
        deep: bool,
    ) -> Result<(), StoreError> {
        let windows = self.state.borrow().colls.clone();
        report.collections = windows.len() as u64;
        let shared: Vec<_> =
            windows.iter().filter_map(|(c, w)| w.as_ref().map(|w| (c, w))).collect();
        for (i, (coll, w)) in shared.iter().enumerate() {
            for (other, _) in shared[i + 1..].iter().filter(|(_, o)| o.overlaps(w)) {
                report.problem(None, format!("{coll} and {other} have the same keys"));
            }
        }
        let mut to_read: Vec<(Coll, Key, u32, u64, u32)> = Vec::new();
        let (lo, hi) = {
            let st = self.state.borrow();
            (st.data_start, st.blocks)
        };
        self.each_row(tag::ONODE, |k, v| {
            report.objects += 1;
            let (Some(coll), Some(key)) = (k.get(1..9).and_then(|b| b.try_into().ok()), k.get(9..))
            else {
                return report.problem(None, format!("odd row {}", k.escape_ascii()));
            };
            let (coll, key) = (Coll(u64::from_be_bytes(coll)), k.slice_ref(key));
            let who = Some((coll, key.clone()));
            if !has_place(&windows, coll, &key) {
                report.problem(who.clone(), "its collection does not exist".into());
            }
            let o = match Onode::decode(v) {
                Ok(o) => o,
                Err(e) => return report.problem(who, e.to_string()),
            };
            if o.omap != 0 && !seen.omaps.insert(o.omap) {
                report.problem(who.clone(), format!("omap {} belongs to two objects", o.omap));
            }
            let mut end = 0;
            for e in &o.extents {
                if e.lblk < end {
                    report.problem(who.clone(), "overlapping extents".into());
                }
                end = e.end();
                if e.pblk < lo || e.pblk + u64::from(e.len()) > hi {
                    report.problem(who.clone(), format!("extent beyond the device: {}", e.pblk));
                    continue;
                }
                for (i, crc) in e.crcs.iter().enumerate() {
                    let b = e.pblk + i as u64;
                    let was = seen.blocks.entry(b).or_insert((0, e.family));
                    was.0 += 1;
                    if was.0 > 1 && (e.family == 0 || was.1 != e.family) {
                        report.problem(
                            who.clone(),
                            format!("block {b} belongs to someone else, too"),
                        );
                    }
                    if seen.tree.contains(&b) {
                        report.problem(who.clone(), format!("block {b} is a tree node"));
                    }
                    if deep && was.0 == 1 {
                        to_read.push((coll, key.clone(), e.lblk + i as u32, b, *crc));
                    }
                }
            }
            if u64::from(end) * BLOCK >= o.size.next_multiple_of(BLOCK) + BLOCK {
                report.problem(who, "blocks beyond the object's end".into());
            }
        })
        .await?;
        report.data_blocks = seen.blocks.len() as u64;
        report.shared_blocks = seen.blocks.values().filter(|(n, _)| *n > 1).count() as u64;
        for (coll, key, lblk, b, crc) in to_read {
            match self.raw_block(b).await {
                Ok(bytes) if crc32c::crc32c(&bytes) == crc => report.verified += BLOCK,
                Ok(_) => report.problem(
                    Some((coll, key)),
                    format!("checksum error at offset {} (block {b})", u64::from(lblk) * BLOCK),
                ),
                Err(e) => report.problem(Some((coll, key)), e.to_string()),
            }
        }
        Ok(())
    }

    async fn check_families(&self, report: &mut FsckReport, seen: &Seen) -> Result<(), StoreError> {
        let mut counted = FxHashSet::default();
        self.each_row(tag::FAMILY, |k, v| {
            let id = k.get(1..).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes);
            let family = match Family::decode(v) {
                Ok(f) => f,
                Err(e) => return report.problem(None, format!("family {id}: {e}")),
            };
            for (start, (len, count)) in family.0 {
                for b in start..start + u64::from(len) {
                    counted.insert(b);
                    match seen.blocks.get(&b) {
                        Some((n, f)) if *n == count && *f == id => {}
                        other => report.problem(
                            None,
                            format!("family {id} counts {count} references to block {b}, objects say {other:?}"),
                        ),
                    }
                }
            }
        })
        .await?;
        for (b, (_, family)) in
            seen.blocks.iter().filter(|(b, (_, f))| *f != 0 && !counted.contains(b))
        {
            report.problem(None, format!("block {b} is not counted by its family {family}"));
        }
        Ok(())
    }

    async fn check_omaps(&self, report: &mut FsckReport, seen: &Seen) -> Result<(), StoreError> {
        self.each_row(tag::OMAP, |k, _| {
            let id = k.get(1..9).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes);
            report.omap_rows += u64::from(k.get(9) == Some(&1));
            if !seen.omaps.contains(&id) {
                report.problem(None, format!("omap {id} belongs to no object"));
            }
        })
        .await
    }

    /// The allocation map knows exactly the blocks that something refers to.
    fn check_map(&self, report: &mut FsckReport, seen: &Seen) {
        let st = self.state.borrow();
        // What was submitted during the check is not in the image yet.
        if st.deltas.iter().any(|d| matches!(d, Delta::Used(_) | Delta::Free(_))) {
            return report.problem(None, "the store was written to during the check".into());
        }
        if st.tree_blocks != report.tree_blocks {
            report.problem(
                None,
                format!("the tree has {} blocks, {} counted", report.tree_blocks, st.tree_blocks),
            );
        }
        for b in st.data_start..st.blocks {
            let wanted = seen.blocks.contains_key(&b) || seen.tree.contains(&b);
            if st.image.is_used(b) != wanted {
                let what = if wanted {
                    "in use but free in the map"
                } else {
                    "in use in the map, without an owner"
                };
                report.problem(None, format!("block {b} is {what}"));
            }
            if st.alloc.is_free(b) == wanted {
                report.problem(None, format!("block {b}: the allocator disagrees with the map"));
            }
            if report.problems.len() > 1000 {
                break;
            }
        }
    }

    pub(crate) async fn dump(
        &self,
        coll: Option<Coll>,
        max: usize,
    ) -> Result<DumpReport, StoreError> {
        let mut report = DumpReport { collections: self.collections(), ..DumpReport::default() };
        {
            let (sb, st) = (self.sb.borrow(), self.state.borrow());
            let mut fact = |name: &str, value: String| report.facts.push((name.into(), value));
            fact("engine", self.dev.engine().into());
            fact("store_id", format!("{:016x}", sb.store_id));
            fact("label", sb.label.escape_ascii().to_string());
            fact("device_bytes", sb.device.to_string());
            fact("log_bytes", sb.log_len.to_string());
            fact("log_used_bytes", st.log_reserved().to_string());
            fact("log_next_batch", st.head.seq.to_string());
            fact("checkpoint", sb.generation.to_string());
            fact("checkpoints_since_open", self.checkpoints.get().to_string());
            fact("data_start_block", sb.data_start().to_string());
            fact("blocks", sb.blocks().to_string());
            fact("free_blocks", st.alloc.free_blocks().to_string());
            fact("reserve_blocks", st.reserve().to_string());
            fact("tree_blocks", st.tree_blocks.to_string());
            fact("deferred_blocks", st.pending_blocks().to_string());
            fact("next_id", st.next_id.to_string());
        }
        let colls: Vec<Coll> =
            report.collections.iter().copied().filter(|c| coll.is_none_or(|w| w == *c)).collect();
        for c in colls {
            let mut at = Some(Bytes::new());
            while let Some(start) = at
                && report.objects.len() < max
            {
                let page =
                    self.list(c, &start, None, (max - report.objects.len()).min(256)).await?;
                for key in page.keys {
                    report.objects.push(self.dump_object(c, key).await?);
                }
                at = page.next;
            }
        }
        Ok(report)
    }

    async fn dump_object(&self, coll: Coll, key: Key) -> Result<ObjectDump, StoreError> {
        let slot = self.slot_of(coll, &key).await?;
        let mut dump = ObjectDump { coll, key: key.clone(), ..ObjectDump::default() };
        if let Some(o) = &self.state.borrow().slots.get(slot).onode {
            dump.stat = o.stat();
            dump.attrs = o.attrs.iter().map(|(k, v)| (k.clone(), v.len() as u64)).collect();
            let extent =
                |e: &crate::onode::Extent| (e.lblk.into(), e.pblk, e.len().into(), e.family != 0);
            dump.extents = o.extents.iter().map(extent).collect();
        }
        let mut from = Bound::Unbounded;
        loop {
            let page = self
                .omap_iter(coll, &key, from.as_ref().map(|k: &Bytes| &k[..]), 1024, usize::MAX)
                .await?;
            dump.omap_rows += page.rows.len() as u64;
            match page.rows.last() {
                Some((k, _)) if page.more => from = Bound::Excluded(k.clone()),
                _ => return Ok(dump),
            }
        }
    }
}

/// Whether some collection has the object that stands behind this number.
fn has_place(colls: &BTreeMap<Coll, Option<Window>>, place: Coll, key: &Key) -> bool {
    match colls.get(&place) {
        Some(None) => true,
        Some(Some(w)) if *key < w.floor => true,
        _ => colls.values().flatten().any(|w| w.space == place && *key >= w.floor && w.covers(key)),
    }
}

impl FsckReport {
    fn problem(&mut self, object: Option<(Coll, Key)>, what: String) {
        if self.problems.len() <= 1000 {
            self.problems.push(FsckProblem { object, what });
        }
    }
}
