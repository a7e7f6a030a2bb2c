//! Checksums of many blocks. A processor has several steps of its checksum instruction under way at
//! a time, but each step of a checksum needs the one before: three blocks side by side take little
//! longer than one.

use crate::types::BLOCK;
use smallvec::SmallVec;

const LEN: usize = BLOCK as usize;

/// The checksum of each block. Every one must have [`BLOCK`] bytes.
pub(crate) fn block_crcs<'a>(blocks: impl IntoIterator<Item = &'a [u8]>) -> SmallVec<[u32; 8]> {
    let mut blocks = blocks.into_iter();
    let mut out = SmallVec::with_capacity(blocks.size_hint().0);
    let mut group: SmallVec<[&[u8]; 3]> = SmallVec::new();
    loop {
        group.clear();
        group.extend(blocks.by_ref().take(3));
        match *group {
            [] => return out,
            [a, b, c] => out.extend_from_slice(&three([a, b, c])),
            _ => out.extend(group.iter().map(|b| crc32c::crc32c(b))),
        }
    }
}

fn three(blocks: [&[u8]; 3]) -> [u32; 3] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("sse4.2")
        && let [Some(a), Some(b), Some(c)] = blocks.map(|b| b.first_chunk::<LEN>())
        && blocks.iter().all(|b| b.len() == LEN)
    {
        // SAFETY: the processor has the instruction.
        return unsafe { side_by_side(a, b, c) };
    }
    blocks.map(crc32c::crc32c)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn side_by_side(a: &[u8; LEN], b: &[u8; LEN], c: &[u8; LEN]) -> [u32; 3] {
    use std::arch::x86_64::_mm_crc32_u64;
    let (mut x, mut y, mut z) = (u64::from(u32::MAX), u64::from(u32::MAX), u64::from(u32::MAX));
    let (a, b, c) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0, c.as_chunks::<8>().0);
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        x = _mm_crc32_u64(x, u64::from_le_bytes(*a));
        y = _mm_crc32_u64(y, u64::from_le_bytes(*b));
        z = _mm_crc32_u64(z, u64::from_le_bytes(*c));
    }
    [x, y, z].map(|crc| !(crc as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_as_one_by_one() {
        for n in 0..12 {
            let data: Vec<u8> = (0..n * LEN).map(|i| (i * i / 7 + i / 4096) as u8).collect();
            let want: Vec<u32> = data.chunks(LEN).map(crc32c::crc32c).collect();
            assert_eq!(block_crcs(data.chunks(LEN)).to_vec(), want);
        }
        // Other lengths are not asked for, and still right.
        let odd = [&[1u8; 4096][..], &[2; 4095], &[3; 5000]];
        assert_eq!(block_crcs(odd).to_vec(), odd.map(crc32c::crc32c));
    }
}
