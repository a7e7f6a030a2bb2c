//! The checksums that clients can ask for (Ceph: `common/Checksummer.h`): xxHash32, xxHash64 and
//! CRC32C over consecutive chunks.

use bytes::{BufMut, BytesMut};

/// Which checksum (`CEPH_OSD_CHECKSUM_OP_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumKind {
    /// xxHash, 32 bits.
    XxHash32,
    /// xxHash, 64 bits.
    XxHash64,
    /// CRC32C in Ceph's convention.
    Crc32c,
}

impl ChecksumKind {
    /// The kind with this number, if there is one.
    pub fn from_number(n: u8) -> Option<Self> {
        Some(match n {
            0 => ChecksumKind::XxHash32,
            1 => ChecksumKind::XxHash64,
            2 => ChecksumKind::Crc32c,
            _ => return None,
        })
    }

    /// Bytes of the initial value that the client sends, and of each checksum.
    pub fn width(self) -> usize {
        match self {
            ChecksumKind::XxHash64 => 8,
            _ => 4,
        }
    }

    /// Appends the checksum of `chunk`. `init` is the initial value, little-endian.
    pub fn append(self, init: &[u8], chunk: &[u8], out: &mut BytesMut) {
        let mut seed = [0u8; 8];
        seed[..init.len().min(8)].copy_from_slice(&init[..init.len().min(8)]);
        let seed = u64::from_le_bytes(seed);
        match self {
            ChecksumKind::XxHash32 => out.put_u32_le(xxh32(seed as u32, chunk)),
            ChecksumKind::XxHash64 => out.put_u64_le(xxh64(seed, chunk)),
            ChecksumKind::Crc32c => out.put_u32_le(denc::crc::crc32c(seed as u32, chunk)),
        }
    }
}

fn le32(b: &[u8]) -> u32 {
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

fn le64(b: &[u8]) -> u64 {
    u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
}

/// xxHash32 as its specification defines it.
fn xxh32(seed: u32, data: &[u8]) -> u32 {
    const P: [u32; 5] = [0x9E37_79B1, 0x85EB_CA77, 0xC2B2_AE3D, 0x27D4_EB2F, 0x1656_67B1];
    let mut blocks = data.chunks_exact(16);
    let mut h = if data.len() >= 16 {
        let mut lanes = [
            seed.wrapping_add(P[0]).wrapping_add(P[1]),
            seed.wrapping_add(P[1]),
            seed,
            seed.wrapping_sub(P[0]),
        ];
        for block in blocks.by_ref() {
            for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
                *lane = lane
                    .wrapping_add(le32(word).wrapping_mul(P[1]))
                    .rotate_left(13)
                    .wrapping_mul(P[0]);
            }
        }
        let [a, b, c, d] = lanes;
        a.rotate_left(1)
            .wrapping_add(b.rotate_left(7))
            .wrapping_add(c.rotate_left(12))
            .wrapping_add(d.rotate_left(18))
    } else {
        seed.wrapping_add(P[4])
    };
    h = h.wrapping_add(data.len() as u32);
    let mut words = blocks.remainder().chunks_exact(4);
    for word in words.by_ref() {
        h = h.wrapping_add(le32(word).wrapping_mul(P[2])).rotate_left(17).wrapping_mul(P[3]);
    }
    for &byte in words.remainder() {
        h = h.wrapping_add(u32::from(byte).wrapping_mul(P[4])).rotate_left(11).wrapping_mul(P[0]);
    }
    h = (h ^ (h >> 15)).wrapping_mul(P[1]);
    h = (h ^ (h >> 13)).wrapping_mul(P[2]);
    h ^ (h >> 16)
}

/// xxHash64 as its specification defines it.
fn xxh64(seed: u64, data: &[u8]) -> u64 {
    const P: [u64; 5] = [
        0x9E37_79B1_85EB_CA87,
        0xC2B2_AE3D_27D4_EB4F,
        0x1656_67B1_9E37_79F9,
        0x85EB_CA77_C2B2_AE63,
        0x27D4_EB2F_1656_67C5,
    ];
    let round = |lane: u64, word: u64| {
        lane.wrapping_add(word.wrapping_mul(P[1])).rotate_left(31).wrapping_mul(P[0])
    };
    let mut blocks = data.chunks_exact(32);
    let mut h = if data.len() >= 32 {
        let mut lanes = [
            seed.wrapping_add(P[0]).wrapping_add(P[1]),
            seed.wrapping_add(P[1]),
            seed,
            seed.wrapping_sub(P[0]),
        ];
        for block in blocks.by_ref() {
            for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
                *lane = round(*lane, le64(word));
            }
        }
        let [a, b, c, d] = lanes;
        let mut h = a
            .rotate_left(1)
            .wrapping_add(b.rotate_left(7))
            .wrapping_add(c.rotate_left(12))
            .wrapping_add(d.rotate_left(18));
        for lane in lanes {
            h = (h ^ round(0, lane)).wrapping_mul(P[0]).wrapping_add(P[3]);
        }
        h
    } else {
        seed.wrapping_add(P[4])
    };
    h = h.wrapping_add(data.len() as u64);
    let mut words = blocks.remainder().chunks_exact(8);
    for word in words.by_ref() {
        h = (h ^ round(0, le64(word))).rotate_left(27).wrapping_mul(P[0]).wrapping_add(P[3]);
    }
    let mut tail = words.remainder();
    if tail.len() >= 4 {
        h = (h ^ u64::from(le32(tail)).wrapping_mul(P[0]))
            .rotate_left(23)
            .wrapping_mul(P[1])
            .wrapping_add(P[2]);
        tail = &tail[4..];
    }
    for &byte in tail {
        h = (h ^ u64::from(byte).wrapping_mul(P[4])).rotate_left(11).wrapping_mul(P[0]);
    }
    h = (h ^ (h >> 33)).wrapping_mul(P[1]);
    h = (h ^ (h >> 29)).wrapping_mul(P[2]);
    h ^ (h >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_xxhash_vectors() {
        assert_eq!(xxh32(0, b""), 0x02CC_5D05);
        assert_eq!(xxh32(0, b"abc"), 0x32D1_53FF);
        assert_eq!(xxh64(0, b""), 0xEF46_DB37_51D8_E999);
        assert_eq!(xxh64(0, b"abc"), 0x44BC_2CF5_AD77_0999);
        let text = b"Nobody inspects the spammish repetition";
        assert_eq!(xxh32(0, text), 0xE229_3B2F);
        assert_eq!(xxh64(0, text), 0xFBCE_A83C_8A37_8BF1);
    }

    #[test]
    fn widths_follow_the_kind() {
        for (n, width) in [(0, 4), (1, 8), (2, 4)] {
            let kind = ChecksumKind::from_number(n).unwrap();
            let mut out = BytesMut::new();
            kind.append(&[0; 8][..width], b"data", &mut out);
            assert_eq!((kind.width(), out.len()), (width, width));
        }
        assert!(ChecksumKind::from_number(3).is_none());
    }
}
