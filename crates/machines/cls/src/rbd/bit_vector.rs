//! The form of object maps: two bits for each data object (Ceph: `BitVector<2>`,
//! `common/bit_vector.hpp`).
//!
//! ```text
//! u32: length of the header (14)
//!   envelope version 1: u64 number of elements
//! data: four elements a byte, the first in the highest bits
//! u32: length of the footer (0: the vector has no checksums)
//!   u32 CRC-32C of the header without its length, u32 number of blocks,
//!   u32 CRC-32C of each block of 4096 bytes of data
//! ```
//!
//! Where everything is follows from the number of elements alone, so a range can be changed by
//! reading and writing its blocks and their checksums: see [`Layout`].

use bytes::{BufMut, Bytes, BytesMut};
use denc::crc::crc32c;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope, with_length};
use std::ops::Range;

/// Bytes of data under one checksum.
pub const BLOCK_SIZE: u64 = 4096;
const PER_BYTE: u64 = 4;
/// Length of the encoded header: its length, its envelope, the number of elements.
pub const HEADER_LEN: u64 = 4 + 6 + 8;
const CRC_LEN: u64 = 4;

/// Where the parts of an encoded vector are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of elements.
    pub size: u64,
    /// CRC of the header.
    pub header_crc: u32,
}

impl Layout {
    /// Reads the header.
    pub fn decode(r: &mut Reader) -> Result<Self> {
        let header: Bytes = r.get()?;
        let header_crc = crc32c(0, &header);
        let (_, mut body) = Reader::new(header).envelope("BitVector header", 1)?;
        Ok(Layout { size: body.get()?, header_crc })
    }

    /// Bytes of data.
    pub fn data_len(&self) -> u64 {
        self.size.div_ceil(PER_BYTE)
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.data_len().div_ceil(BLOCK_SIZE)
    }

    /// Where the CRC of the header is, from the start of the vector. `None` if it would be past
    /// what an offset can be.
    pub fn header_crc_at(&self) -> Option<u64> {
        HEADER_LEN.checked_add(self.data_len())?.checked_add(4)
    }

    /// The blocks that have these elements. The range must not be empty.
    pub fn blocks_of(&self, elements: &Range<u64>) -> Range<u64> {
        let block = |element| element / PER_BYTE / BLOCK_SIZE;
        block(elements.start)..block(elements.end.saturating_sub(1)) + 1
    }

    /// Where the data of these blocks is, from the start of the data.
    pub fn data_of(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start * BLOCK_SIZE..(blocks.end * BLOCK_SIZE).min(self.data_len())
    }

    /// Where the CRCs of these blocks are, from the start of the vector.
    pub fn crcs_of(&self, blocks: &Range<u64>) -> Option<Range<u64>> {
        // Behind the CRC of the header and the number of blocks.
        let first = self.header_crc_at()?.checked_add(CRC_LEN + 4)?;
        let at = |block: u64| first.checked_add(block.checked_mul(CRC_LEN)?);
        Some(at(blocks.start)?..at(blocks.end)?)
    }
}

/// The element `index` of packed data, counted from the start of the data.
fn element(data: &[u8], index: u64) -> Option<u8> {
    let byte = data.get(usize::try_from(index / PER_BYTE).ok()?)?;
    Some(byte >> shift(index) & 3)
}

fn set_element(data: &mut [u8], index: u64, value: u8) {
    let Some(byte) = usize::try_from(index / PER_BYTE).ok().and_then(|at| data.get_mut(at)) else {
        return;
    };
    *byte = *byte & !(3 << shift(index)) | (value & 3) << shift(index);
}

fn shift(index: u64) -> u64 {
    (PER_BYTE - 1 - index % PER_BYTE) * 2
}

/// Replaces elements of packed data by what `change` makes of them; whether any changed.
pub fn change_elements(data: &mut [u8], elements: Range<u64>, change: impl Fn(u8) -> u8) -> bool {
    let mut changed = false;
    for index in elements {
        let Some(before) = element(data, index) else { break };
        let after = change(before);
        if after != before {
            set_element(data, index, after);
            changed = true;
        }
    }
    changed
}

/// The checksums of data, block by block.
pub fn block_crcs(data: &[u8]) -> impl Iterator<Item = u32> {
    data.chunks(BLOCK_SIZE as usize).map(|block| crc32c(0, block))
}

/// A vector in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitVector {
    data: Vec<u8>,
    size: u64,
    /// Whether it is written with checksums. One that was read without them stays without.
    pub has_crcs: bool,
}

impl Default for BitVector {
    /// An empty one, with checksums.
    fn default() -> Self {
        BitVector { data: Vec::new(), size: 0, has_crcs: true }
    }
}

impl BitVector {
    /// Number of elements.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// An element, 0 to 3; `None` behind the end.
    pub fn get(&self, index: u64) -> Option<u8> {
        if index < self.size { element(&self.data, index) } else { None }
    }

    /// Replaces elements by what `change` makes of them; whether any changed.
    pub fn change(&mut self, elements: Range<u64>, change: impl Fn(u8) -> u8) -> bool {
        change_elements(&mut self.data, elements.start..elements.end.min(self.size), change)
    }

    /// Sets an element.
    pub fn set(&mut self, index: u64, value: u8) {
        if index < self.size {
            set_element(&mut self.data, index, value);
        }
    }

    /// Sets the number of elements; new ones have the value `fill`.
    pub fn resize(&mut self, size: u64, fill: u8) {
        let before = self.size;
        self.size = size;
        // Four elements of `fill`, for the bytes that are new as a whole.
        let byte = (fill & 3) * 0b0101_0101;
        self.data.resize(size.div_ceil(PER_BYTE) as usize, byte);
        // The byte that was the last one may have had room, which holds what was once cut off.
        let padded = before.next_multiple_of(PER_BYTE).min(size);
        change_elements(&mut self.data, before..padded, |_| fill & 3);
        // Room behind the last element is zero, as it is when elements are set one by one.
        if size > before && !size.is_multiple_of(PER_BYTE) {
            change_elements(&mut self.data, size..size.next_multiple_of(PER_BYTE), |_| 0);
        }
    }
}

impl Encode for BitVector {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let start = out.len();
        with_length(out, |out| envelope(out, 1, 1, |out| self.size.encode(out, f)));
        let header_crc = crc32c(0, &out[start + 4..]);
        out.put_slice(&self.data);
        with_length(out, |out| {
            if self.has_crcs {
                header_crc.encode(out, f);
                let crcs: Vec<u32> = block_crcs(&self.data).collect();
                crcs.encode(out, f);
            }
        });
    }
}

impl Decode for BitVector {
    fn decode(r: &mut Reader) -> Result<Self> {
        let layout = Layout::decode(r)?;
        let len = usize::try_from(layout.data_len()).unwrap_or(usize::MAX);
        let data = r.bytes("BitVector data", len)?;
        let footer: Bytes = r.get()?;
        let has_crcs = !footer.is_empty();
        if has_crcs {
            let mut footer = Reader::new(footer);
            if footer.get::<u32>()? != layout.header_crc {
                return Err(DecodeError::Invalid {
                    what: "BitVector header CRC",
                    found: layout.header_crc.into(),
                });
            }
            let crcs: Vec<u32> = footer.get()?;
            if !crcs.into_iter().eq(block_crcs(&data)) {
                return Err(DecodeError::Invalid {
                    what: "BitVector data CRCs",
                    found: layout.blocks(),
                });
            }
        }
        Ok(BitVector { data: data.into(), size: layout.size, has_crcs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(size: u64, f: impl Fn(u64) -> u8) -> BitVector {
        let mut v = BitVector::default();
        v.resize(size, 0);
        (0..size).for_each(|i| v.set(i, f(i)));
        v
    }

    #[test]
    fn the_bytes_are_as_ceph_writes_them() {
        let v = vector(5, |i| (i % 4) as u8);
        let bytes = v.to_bytes(Features::ALL);
        let header = [1, 1, 8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        let mut expected = vec![14, 0, 0, 0];
        expected.extend(header);
        expected.extend([0b00_01_10_11, 0]);
        expected.extend([12, 0, 0, 0]);
        expected.extend(crc32c(0, &header).to_le_bytes());
        expected.extend([1, 0, 0, 0]);
        expected.extend(crc32c(0, &[0b00_01_10_11, 0]).to_le_bytes());
        assert_eq!(bytes, expected);
        assert_eq!(HEADER_LEN, 4 + header.len() as u64);
    }

    #[test]
    fn vectors_survive_with_and_without_checksums() {
        for size in [0, 1, 4, 5, 16384, 16385, 40000] {
            let mut v = vector(size, |i| (i * 7 % 4) as u8);
            assert_eq!(BitVector::from_bytes(&v.to_bytes(Features::ALL)).unwrap(), v, "{size}");
            v.has_crcs = false;
            let bytes = v.to_bytes(Features::ALL);
            assert_eq!(bytes.len() as u64, HEADER_LEN + size.div_ceil(4) + 4);
            assert_eq!(BitVector::from_bytes(&bytes).unwrap(), v, "{size}");
        }
    }

    #[test]
    fn damage_is_found_anywhere() {
        let bytes = vector(20000, |i| (i % 4) as u8).to_bytes(Features::ALL);
        for at in [12, 18, 4000, 4500, bytes.len() - 1, bytes.len() - 10] {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            assert!(BitVector::from_bytes(&damaged.into()).is_err(), "{at}");
        }
    }

    #[test]
    fn a_size_without_data_is_refused_before_anything_is_allocated() {
        let mut bytes = BytesMut::new();
        with_length(&mut bytes, |out| {
            envelope(out, 1, 1, |out| u64::MAX.encode(out, Features::ALL))
        });
        assert!(BitVector::from_bytes(&bytes.freeze()).is_err());
    }

    #[test]
    fn resizing_is_the_same_as_setting_one_by_one() {
        for from in 0..12 {
            for to in 0..12 {
                for fill in 0..4 {
                    let mut v = vector(from, |i| (i % 4) as u8);
                    v.resize(to, fill);
                    let one_by_one = vector(to, |i| if i < from { (i % 4) as u8 } else { fill });
                    assert_eq!(v.size(), to);
                    (0..to).for_each(|i| {
                        assert_eq!(v.get(i), one_by_one.get(i), "{from} {to} {fill} {i}")
                    });
                    if to >= from {
                        assert_eq!(v, one_by_one);
                    }
                }
            }
        }
    }

    #[test]
    fn the_layout_finds_what_encoding_wrote() {
        let v = vector(50_000, |i| (i * 3 % 4) as u8);
        let bytes = v.to_bytes(Features::ALL);
        let layout = Layout::decode(&mut Reader::new(bytes.clone())).unwrap();
        assert_eq!((layout.size, layout.blocks()), (50_000, 4));
        let word =
            |at: u64| u32::from_le_bytes(bytes[at as usize..at as usize + 4].try_into().unwrap());
        assert_eq!(word(layout.header_crc_at().unwrap()), layout.header_crc);

        let elements = 16_384..32_769;
        let blocks = layout.blocks_of(&elements);
        assert_eq!(blocks, 1..3);
        let data = layout.data_of(&blocks);
        assert_eq!(data, 4096..12288);
        let slice = &bytes[(HEADER_LEN + data.start) as usize..(HEADER_LEN + data.end) as usize];
        let crcs = layout.crcs_of(&blocks).unwrap();
        assert_eq!(block_crcs(slice).collect::<Vec<_>>(), [word(crcs.start), word(crcs.start + 4)]);
        assert_eq!(crcs.end - crcs.start, 8);
        assert_eq!(layout.data_of(&layout.blocks_of(&(49_999..50_000))), 12288..12500);

        let huge = Layout { size: u64::MAX, header_crc: 0 };
        assert!(huge.crcs_of(&huge.blocks_of(&(u64::MAX - 1..u64::MAX))).is_some());
    }
}
