//! Hashes of object names (Ceph: `common/ceph_hash.cc`). The pool's `object_hash` chooses; the
//! result decides the placement group, so every bit matters.

/// `CEPH_STR_HASH_LINUX`.
pub const LINUX: u8 = 1;
/// `CEPH_STR_HASH_RJENKINS`, what every pool uses.
pub const RJENKINS: u8 = 2;

/// Hash with the function that a pool's `object_hash` names (`ceph_str_hash`). An unknown function
/// gives `u32::MAX`, as in Ceph.
pub fn str_hash(function: u8, data: &[u8]) -> u32 {
    match function {
        LINUX => linux(data),
        RJENKINS => rjenkins(data),
        _ => u32::MAX,
    }
}

/// Ceph's name of a hash function.
pub fn name(function: u8) -> &'static str {
    match function {
        LINUX => "linux",
        RJENKINS => "rjenkins",
        _ => "unknown",
    }
}

/// The hash of Linux's directory entry cache.
pub fn linux(data: &[u8]) -> u32 {
    data.iter().fold(0u32, |hash, &byte| {
        let c = u32::from(byte);
        hash.wrapping_add(c << 4).wrapping_add(c >> 4).wrapping_mul(11)
    })
}

/// Robert Jenkins' `lookup2` over a string, seeded with the golden ratio.
pub fn rjenkins(data: &[u8]) -> u32 {
    const GOLDEN: u32 = 0x9e37_79b9;
    let (mut a, mut b, mut c) = (GOLDEN, GOLDEN, 0u32);
    let mut blocks = data.chunks_exact(12);
    for block in &mut blocks {
        a = a.wrapping_add(word(block, 0));
        b = b.wrapping_add(word(block, 4));
        c = c.wrapping_add(word(block, 8));
        (a, b, c) = mix(a, b, c);
    }
    // The tail fills a, b and the upper three bytes of c; the lowest byte of c takes the length.
    let tail = blocks.remainder();
    a = a.wrapping_add(word(tail, 0));
    b = b.wrapping_add(word(tail, 4));
    c = c.wrapping_add(data.len() as u32).wrapping_add(word(tail, 8) << 8);
    mix(a, b, c).2
}

/// The little-endian word at `at`, with bytes past the end as zero.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.iter().skip(at).take(4).rev().fold(0, |w, &b| w << 8 | u32::from(b))
}

fn mix(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    for (ra, lb, rc) in [(13, 8, 13), (12, 16, 5), (3, 10, 15)] {
        a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> ra);
        b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << lb);
        c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> rc);
    }
    (a, b, c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rjenkins_of_known_names() {
        // `ceph osd map` of a stock cluster shows these hashes of object names.
        assert_eq!(rjenkins(b"foo"), 0x7fc1_f406);
        assert_eq!(rjenkins(b""), 0xbd49_d10d);
    }

    #[test]
    fn every_byte_of_a_tail_counts() {
        let name = b"abcdefghijklmnopqrstuvwxyz";
        let mut seen = std::collections::BTreeSet::new();
        for n in 0..=name.len() {
            assert!(seen.insert(rjenkins(&name[..n])));
            assert!(seen.insert(linux(&name[..n])) || n == 0);
        }
    }

    #[test]
    fn unknown_functions_give_all_ones() {
        assert_eq!(str_hash(9, b"foo"), u32::MAX);
    }
}
