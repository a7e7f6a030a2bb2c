//! The superblock: what the device holds, how it is laid out, and the last durable checkpoint.
//!
//! ```text
//! block 0, 1     superblock, two copies; checkpoint number n is written to copy n % 2
//! block 16 ..    log ring
//! then           allocation map, two places per page
//! then           blocks for data and tree nodes, to the end of the device
//! ```
//!
//! A crash while one copy is written leaves the other, which is the checkpoint before.

use crate::alloc::image_pages;
use crate::codec::{Decoded, Put, Take};
use crate::dev::AlignedBuf;
use crate::error::StoreError;
use crate::tree::NodePtr;
use crate::types::BLOCK;
use bytes::Bytes;

const MAGIC: &[u8; 16] = b"siphon store v1\n";
/// Version of the layout. A store of another version is refused, not converted.
const VERSION: u32 = 1;
/// First block of the log.
pub(crate) const LOG_START: u64 = 16 * BLOCK;
/// Longest owner label.
pub(crate) const LABEL_MAX: usize = 2048;

/// What has to be known before anything else can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Random identity; everything else on the device that belongs to this store repeats it.
    pub store_id: u64,
    /// Owner's bytes, not interpreted.
    pub label: Bytes,
    /// Bytes of the device when it was made.
    pub device: u64,
    /// Bytes of the log ring.
    pub log_len: u64,
    /// Number of the checkpoint, counted from 1 at mkfs.
    pub generation: u64,
    /// Position in the log from which to replay, see [`crate::log`].
    pub tail: LogPos,
    /// Next number for omaps and families.
    pub next_id: u64,
    /// Blocks of the metadata tree.
    pub tree_blocks: u64,
    /// Root of the metadata tree.
    pub root: Option<NodePtr>,
}

/// A position in the log between two batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct LogPos {
    /// Bytes written to the ring ever; the place is the remainder by the ring's length.
    pub at: u64,
    /// Sequence number of the batch that comes here.
    pub seq: u64,
    /// Checksum of the batch before.
    pub prev_crc: u32,
}

impl Superblock {
    /// Device offset of the allocation map.
    pub(crate) fn map_start(&self) -> u64 {
        LOG_START + self.log_len
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.device / BLOCK
    }

    /// First block for data and tree nodes.
    pub(crate) fn data_start(&self) -> u64 {
        self.map_start() / BLOCK + 2 * image_pages(self.blocks())
    }

    /// Device offset of the copy to write next.
    pub(crate) fn place(&self) -> u64 {
        self.generation % 2 * BLOCK
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(BLOCK as usize);
        out.extend_from_slice(MAGIC);
        out.u32(VERSION);
        out.u32(0);
        out.u64(self.store_id);
        out.u64(self.device);
        out.u64(self.log_len);
        out.u64(self.generation);
        out.u64(self.tail.at);
        out.u64(self.tail.seq);
        out.u32(self.tail.prev_crc);
        out.u64(self.next_id);
        out.u64(self.tree_blocks);
        out.blob(&self.label);
        match &self.root {
            None => out.u8(0),
            Some(p) => {
                out.u8(1);
                p.encode(&mut out);
            }
        }
        debug_assert!(out.len() <= BLOCK as usize);
        out.resize(BLOCK as usize, 0);
        let crc = crc32c::crc32c(&out);
        out[20..24].copy_from_slice(&crc.to_le_bytes());
        let mut buf = AlignedBuf::recycled(BLOCK as usize);
        buf.copy_from_slice(&out);
        buf.freeze()
    }

    /// Decodes one copy.
    ///
    /// # Errors
    /// `Foreign` when this is no superblock or one of another version, `Corrupt` when it is
    /// damaged.
    pub(crate) fn decode(block: &Bytes) -> Decoded<Superblock> {
        let mut r = Take::new(block);
        if r.slice(16)?.as_ref() != MAGIC {
            let empty = block.iter().all(|b| *b == 0);
            let what = if empty {
                "the device is empty, there is no store on it"
            } else {
                "no store on this device"
            };
            return Err(StoreError::Foreign(what.into()));
        }
        let version = r.u32()?;
        if version != VERSION {
            return Err(StoreError::Foreign(format!(
                "the store on this device has layout version {version}, this program knows {VERSION}"
            )));
        }
        let crc = r.u32()?;
        let sum = crc32c::crc32c(&block[..20]);
        let sum = crc32c::crc32c_append(sum, &[0; 4]);
        if crc32c::crc32c_append(sum, &block[24..]) != crc {
            return Err(StoreError::Corrupt("superblock checksum".into()));
        }
        let mut sb = Superblock {
            store_id: r.u64()?,
            device: r.u64()?,
            log_len: r.u64()?,
            generation: r.u64()?,
            tail: LogPos { at: r.u64()?, seq: r.u64()?, prev_crc: r.u32()? },
            next_id: r.u64()?,
            tree_blocks: r.u64()?,
            label: Bytes::copy_from_slice(&r.blob()?),
            root: None,
        };
        if r.u8()? != 0 {
            sb.root = Some(NodePtr::decode(&mut r)?);
        }
        let sane = sb.device < 1 << 60
            && sb.device.is_multiple_of(BLOCK)
            && sb.log_len.is_multiple_of(BLOCK)
            && sb.log_len >= BLOCK
            && sb.log_len < sb.device
            && sb.data_start() < sb.blocks();
        if !sane {
            return Err(StoreError::Corrupt("superblock geometry".into()));
        }
        Ok(sb)
    }

    /// Chooses between the two copies: the newer of those that are whole.
    pub(crate) fn choose(copies: [&Bytes; 2]) -> Decoded<Superblock> {
        match copies.map(Superblock::decode) {
            [Ok(a), Ok(b)] => Ok(if a.generation > b.generation { a } else { b }),
            [Ok(a), Err(_)] | [Err(_), Ok(a)] => Ok(a),
            // A half-written copy says more than one that was never written.
            [Err(StoreError::Foreign(_)), Err(e @ StoreError::Corrupt(_))] => Err(e),
            [Err(e), Err(_)] => Err(e),
        }
    }
}
