//! Reading nodes of the metadata tree.

use crate::dev::Device;
use crate::error::StoreError;
use crate::tree::NodePtr;
use crate::types::BLOCK;
use bytes::Bytes;
use smallvec::SmallVec;
use std::ops::Range;

/// Blocks that are read in one go, at most.
const RUN_MAX: u64 = 64;

/// Reads nodes at the same time and hands each to `found`. Nodes that stand side by side on the
/// device, as a checkpoint writes them, are read in one go.
pub(super) async fn read(
    dev: &Device,
    ptrs: &[NodePtr],
    mut found: impl FnMut(&NodePtr, Bytes) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut reads: SmallVec<[_; 4]> = SmallVec::new();
    let mut i = 0;
    while i < ptrs.len() {
        let together = side_by_side(&ptrs[i..]);
        let parts: SmallVec<[_; 1]> = match &ptrs[i].runs[..] {
            [(at, _)] => {
                let blocks: u64 = ptrs[i..i + together].iter().map(NodePtr::blocks).sum();
                SmallVec::from_iter([dev.read(at * BLOCK, (blocks * BLOCK) as usize)])
            }
            runs => runs
                .iter()
                .map(|(at, n)| dev.read(at * BLOCK, (u64::from(*n) * BLOCK) as usize))
                .collect(),
        };
        reads.push((i..i + together, parts));
        i += together;
    }
    for (range, parts) in reads {
        let mut bytes: SmallVec<[Bytes; 1]> = SmallVec::new();
        for part in parts {
            bytes.push(part.await?);
        }
        let bytes = match bytes.as_slice() {
            [one] => one.clone(),
            many => Bytes::from(many.concat()),
        };
        hand_out(&ptrs[range], bytes, &mut found)?;
    }
    Ok(())
}

/// How many of the first nodes can be read as one.
fn side_by_side(ptrs: &[NodePtr]) -> usize {
    let place = |p: &NodePtr| -> Option<Range<u64>> {
        match p.runs[..] {
            [(at, n)] => Some(at..at + u64::from(n)),
            _ => None,
        }
    };
    let Some(first) = ptrs.first().and_then(place) else { return 1 };
    let mut end = first.end;
    let more = ptrs[1..].iter().map_while(place).take_while(|p| {
        let fits = p.start == end && p.end - first.start <= RUN_MAX;
        end = p.end;
        fits
    });
    1 + more.count()
}

fn hand_out(
    ptrs: &[NodePtr],
    bytes: Bytes,
    found: &mut impl FnMut(&NodePtr, Bytes) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    if let [one] = ptrs {
        return found(one, bytes);
    }
    let mut at = 0;
    for ptr in ptrs {
        let len = (ptr.blocks() * BLOCK) as usize;
        // A copy: a node in memory must not keep its neighbours' bytes.
        found(ptr, Bytes::copy_from_slice(&bytes[at..at + len]))?;
        at += len;
    }
    Ok(())
}
