//! Nodes of the tree on the device.
//!
//! ```text
//! magic u32 | level u8 | 3 zero | count u32 | prefix length u32 | prefix |
//! count offsets u32 | rows
//!
//! row of a leaf:       key length varint | value length varint | key | value
//! row of an inner node: key length varint | pointer length varint | key | pointer
//! ```
//!
//! Keys are stored without the prefix that all keys of the node share. The key of an inner row is a
//! lower bound of what is below the child; the first one is not looked at. Level 0 is a leaf.

use crate::alloc::Run;
use crate::codec::{Decoded, Put, Take, corrupt};
use crate::types::BLOCK;
use bytes::Bytes;
use smallvec::SmallVec;

const MAGIC: u32 = 0x444f_4e53;
const HEAD: usize = 16;

/// The place and the checksum of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePtr {
    /// One run unless free space is fragmented. Never empty.
    pub runs: SmallVec<[Run; 1]>,
    /// CRC-32C of all its blocks.
    pub crc: u32,
}

impl NodePtr {
    /// The first block identifies the node while it is part of the tree.
    pub(crate) fn key(&self) -> u64 {
        self.runs.first().map_or(0, |r| r.0)
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.runs.iter().map(|r| u64::from(r.1)).sum()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.crc);
        out.var(self.runs.len() as u64);
        for (at, n) in &self.runs {
            out.var(*at);
            out.var((*n).into());
        }
    }

    pub(crate) fn decode(r: &mut Take<'_>) -> Decoded<NodePtr> {
        let crc = r.u32()?;
        let n = r.count(2)?;
        let mut runs = SmallVec::new();
        let mut total = 0u64;
        for _ in 0..n {
            let run = (r.var()?, r.var32()?);
            total = total.saturating_add(run.1.into());
            // Block numbers stay far from overflow, and a node below a quarter of a GiB.
            if run.1 == 0 || run.0 >= 1 << 48 || total > 1 << 16 {
                return Err(corrupt("node pointer"));
            }
            runs.push(run);
        }
        if runs.is_empty() {
            return Err(corrupt("node pointer"));
        }
        Ok(NodePtr { runs, crc })
    }
}

/// A node in memory: its bytes, checked once, and where things are in them.
pub(crate) struct Node {
    bytes: Bytes,
    level: u8,
    prefix: usize,
    /// Start of key, start of value, end of value of each row.
    rows: Vec<(u32, u32, u32)>,
}

impl Node {
    /// Parses a node; the checksum was verified before.
    pub(crate) fn parse(bytes: Bytes) -> Decoded<Node> {
        let mut r = Take::new(&bytes);
        if r.u32()? != MAGIC {
            return Err(corrupt("tree node magic"));
        }
        let level = r.u8()?;
        r.slice(3)?;
        let count = r.u32()? as usize;
        let prefix = r.u32()? as usize;
        let body = HEAD.checked_add(prefix).ok_or_else(|| corrupt("tree node"))?;
        let offsets = bytes.get(body..).ok_or_else(|| corrupt("tree node"))?;
        if count.checked_mul(4).is_none_or(|n| n > offsets.len()) {
            return Err(corrupt("tree node"));
        }
        let mut rows = Vec::with_capacity(count);
        for o in offsets.chunks_exact(4).take(count) {
            let at = u32::from_le_bytes([o[0], o[1], o[2], o[3]]) as usize;
            if at > bytes.len() {
                return Err(corrupt("tree node row"));
            }
            let row = bytes.slice(at..);
            let mut r = Take::new(&row);
            let (k, v) = (r.var()?, r.var()?);
            let key = at + (row.len() - r.left());
            let value = u64::try_from(key).ok().and_then(|x| x.checked_add(k));
            let end = value.and_then(|x| x.checked_add(v)).filter(|e| *e <= bytes.len() as u64);
            let (Some(value), Some(end)) = (value, end) else {
                return Err(corrupt("tree node row"));
            };
            rows.push((key as u32, value as u32, end as u32));
        }
        let node = Node { bytes, level, prefix, rows };
        if level > 0 {
            if node.len() == 0 {
                return Err(corrupt("inner node without children"));
            }
            for i in 0..node.len() {
                NodePtr::decode(&mut Take::new(&node.value(i)))?;
            }
        }
        Ok(node)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() + self.rows.len() * 12
    }

    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    fn prefix(&self) -> &[u8] {
        &self.bytes[HEAD..HEAD + self.prefix]
    }

    fn suffix(&self, i: usize) -> &[u8] {
        let (k, v, _) = self.rows[i];
        &self.bytes[k as usize..v as usize]
    }

    pub(crate) fn key(&self, i: usize) -> Bytes {
        if self.prefix == 0 {
            let (k, v, _) = self.rows[i];
            return self.bytes.slice(k as usize..v as usize);
        }
        Bytes::from([self.prefix(), self.suffix(i)].concat())
    }

    pub(crate) fn value(&self, i: usize) -> Bytes {
        let (_, v, e) = self.rows[i];
        self.bytes.slice(v as usize..e as usize)
    }

    /// The child pointer of row `i` of an inner node; `parse` has decoded it once already.
    pub(crate) fn child(&self, i: usize) -> NodePtr {
        NodePtr::decode(&mut Take::new(&self.value(i))).expect("checked when the node was parsed")
    }

    /// The first row with a key that is not below `key`.
    pub(crate) fn lower_bound(&self, key: &[u8]) -> usize {
        let p = self.prefix();
        let n = p.len().min(key.len());
        match key[..n].cmp(&p[..n]) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Greater => self.len(),
            // A key that ends inside the prefix is below all rows.
            std::cmp::Ordering::Equal if key.len() < p.len() => 0,
            std::cmp::Ordering::Equal => {
                let rest = &key[n..];
                let (mut lo, mut hi) = (0, self.len());
                while lo < hi {
                    let mid = (lo + hi) / 2;
                    if self.suffix(mid) < rest { lo = mid + 1 } else { hi = mid }
                }
                lo
            }
        }
    }

    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        let i = self.lower_bound(key);
        let p = self.prefix();
        (i < self.len()
            && key.len() >= p.len()
            && key.starts_with(p)
            && self.suffix(i) == &key[p.len()..])
            .then_some(i)
    }

    /// The child below which `key` is.
    pub(crate) fn child_for(&self, key: &[u8]) -> usize {
        let i = self.lower_bound(key);
        if i < self.len() && self.find(key) == Some(i) { i } else { i.saturating_sub(1) }
    }
}

/// Bytes that a row takes in a node, at most.
pub(crate) fn row_bytes(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + 4 + 8
}

/// Builds the bytes of a node (a multiple of the block size) from rows in order.
pub(crate) fn build(level: u8, rows: &[(Bytes, Bytes)]) -> crate::dev::AlignedBuf {
    let prefix = match rows {
        [] => 0,
        [(k, _)] => k.len(),
        [(a, _), .., (z, _)] => a.iter().zip(z.iter()).take_while(|(a, z)| a == z).count(),
    };
    // The first key of an inner node may be shorter than what all others share, or not below the
    // child's keys at all; it takes part like any other, so that order is all that counts.
    let mut out = Vec::with_capacity(
        rows.iter().map(|(k, v)| row_bytes(k, v)).sum::<usize>() + HEAD + prefix,
    );
    out.u32(MAGIC);
    out.u8(level);
    out.bytes(&[0; 3]);
    out.u32(rows.len() as u32);
    out.u32(prefix as u32);
    out.bytes(rows.first().map_or(&[], |(k, _)| &k[..prefix]));
    let offsets = out.len();
    out.resize(offsets + rows.len() * 4, 0);
    for (i, (k, v)) in rows.iter().enumerate() {
        let at = out.len() as u32;
        out[offsets + i * 4..offsets + i * 4 + 4].copy_from_slice(&at.to_le_bytes());
        out.var((k.len() - prefix) as u64);
        out.var(v.len() as u64);
        out.bytes(&k[prefix..]);
        out.bytes(v);
    }
    let mut buf = crate::dev::AlignedBuf::recycled(out.len().next_multiple_of(BLOCK as usize));
    buf[..out.len()].copy_from_slice(&out);
    buf[out.len()..].fill(0);
    buf
}
