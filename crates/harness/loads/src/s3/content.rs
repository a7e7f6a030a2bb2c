//! Bodies that follow from bucket, key and version.

use std::fmt;

/// Bytes that are compared at a time.
const COMPARE_BYTES: usize = 4096;

/// The content of one version of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    seed: u64,
    length: u64,
}

/// A byte that is not the one that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Which byte.
    pub at: u64,
    /// Its value, if the content has so many bytes.
    pub expected: Option<u8>,
    /// The value that came.
    pub found: u8,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { at, expected, found } = self;
        match expected {
            Some(expected) => write!(f, "byte {at}: expected {expected:#04x}, found {found:#04x}"),
            None => write!(f, "byte {at} is behind the end: found {found:#04x}"),
        }
    }
}

/// The finalizer of SplitMix64: each bit of the input changes half of the output's.
fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number that follows from a name and a version.
pub fn hash(bucket: &str, key: &str, version: u32) -> u64 {
    let bytes = bucket.bytes().chain([0]).chain(key.bytes());
    // FNV-1a, so that every byte of the name counts.
    let sum = bytes.fold(0xcbf2_9ce4_8422_2325, |sum: u64, b| {
        (sum ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    mixed(sum ^ mixed(u64::from(version)))
}

impl Content {
    /// The content with this many bytes.
    pub fn new(bucket: &str, key: &str, version: u32, length: u64) -> Content {
        Content { seed: hash(bucket, key, version), length }
    }

    /// How many bytes it has.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn word(&self, index: u64) -> [u8; 8] {
        let step = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed(self.seed.wrapping_add(step)).to_le_bytes()
    }

    /// Writes the bytes from `offset` on.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let from = (offset % 8) as usize;
        let mut index = offset / 8;
        let mut rest = out;
        if from > 0 {
            let count = rest.len().min(8 - from);
            let (part, behind) = rest.split_at_mut(count);
            part.copy_from_slice(&self.word(index)[from..from + count]);
            (rest, index) = (behind, index + 1);
        }
        let mut words = rest.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.word(index));
            index += 1;
        }
        let last = words.into_remainder();
        let count = last.len();
        last.copy_from_slice(&self.word(index)[..count]);
    }

    /// All of it, or the part that fits into `bytes` from `offset` on.
    pub fn piece(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let left = self.length.saturating_sub(offset);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes);
        let mut piece = vec![0; count];
        self.fill(offset, &mut piece);
        piece
    }

    /// Whether `data` are the bytes from `offset` on.
    pub fn check(&self, offset: u64, data: &[u8]) -> Result<(), Mismatch> {
        let mut expected = [0; COMPARE_BYTES];
        let mut at = offset;
        for part in data.chunks(COMPARE_BYTES) {
            let there = self.length.saturating_sub(at).min(part.len() as u64) as usize;
            let expected = &mut expected[..there];
            self.fill(at, expected);
            let (within, behind) = part.split_at(there);
            if within != &expected[..] {
                let n = within.iter().zip(expected.iter()).position(|(a, b)| a != b).unwrap_or(0);
                let (expected, found) = (Some(expected[n]), within[n]);
                return Err(Mismatch { at: at + n as u64, expected, found });
            }
            if let Some(found) = behind.first() {
                let at = at + there as u64;
                return Err(Mismatch { at, expected: None, found: *found });
            }
            at += part.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn every_name_and_version_has_a_content_of_its_own() {
        let all = [
            Content::new("b", "k", 1, 64),
            Content::new("b", "k", 2, 64),
            Content::new("b", "kk", 1, 64),
            Content::new("bk", "", 1, 64),
            Content::new("c", "k", 1, 64),
        ];
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate() {
                assert_eq!(a.check(0, &b.piece(0, 64)).is_ok(), i == j, "{i} {j}");
            }
        }
    }

    #[test]
    fn bytes_behind_the_end_are_found() {
        let content = Content::new("b", "k", 1, 5000);
        let mut data = content.piece(0, usize::MAX);
        assert_eq!(data.len(), 5000);
        content.check(0, &data).unwrap();
        data.push(7);
        let found = content.check(0, &data).unwrap_err();
        assert_eq!(found, Mismatch { at: 5000, expected: None, found: 7 });
        assert!(content.piece(5000, 10).is_empty() && content.piece(6000, 10).is_empty());
    }

    #[test]
    fn pieces_are_parts_of_the_whole() {
        let content = Content::new("b", "k", 3, 9000);
        let whole = content.piece(0, usize::MAX);
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..500 {
            let (offset, bytes) = (random.random_range(0..9000), random.random_range(0..9000));
            let piece = content.piece(offset as u64, bytes);
            assert_eq!(piece, &whole[offset..(offset + bytes).min(9000)], "{offset} {bytes}");
            assert_eq!(content.check(offset as u64, &piece), Ok(()), "{offset} {bytes}");
        }
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let content = Content::new("b", "k", 3, 20_000);
        let mut random = StdRng::seed_from_u64(2);
        for _ in 0..500 {
            let offset = random.random_range(0..100);
            let mut piece = content.piece(offset, 9000);
            let at = random.random_range(0..piece.len());
            let expected = piece[at];
            piece[at] ^= 1 << random.random_range(0..8);
            let found = piece[at];
            let mismatch = Mismatch { at: offset + at as u64, expected: Some(expected), found };
            assert_eq!(content.check(offset, &piece), Err(mismatch));
        }
    }
}
