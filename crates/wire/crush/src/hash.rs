//! The integer hash that CRUSH draws from (Ceph: `crush/hash.c`, `CRUSH_HASH_RJENKINS1`), after
//! Robert Jenkins' 96-bit mix. All arithmetic wraps.

/// The only hash function ever defined; anything else hashes to zero.
pub const RJENKINS1: u8 = 0;

const SEED: u32 = 1_315_423_911;
const X: u32 = 231_232;
const Y: u32 = 1232;

macro_rules! mix {
    ($a:ident, $b:ident, $c:ident) => {
        $a = $a.wrapping_sub($b).wrapping_sub($c) ^ ($c >> 13);
        $b = $b.wrapping_sub($c).wrapping_sub($a) ^ ($a << 8);
        $c = $c.wrapping_sub($a).wrapping_sub($b) ^ ($b >> 13);
        $a = $a.wrapping_sub($b).wrapping_sub($c) ^ ($c >> 12);
        $b = $b.wrapping_sub($c).wrapping_sub($a) ^ ($a << 16);
        $c = $c.wrapping_sub($a).wrapping_sub($b) ^ ($b >> 5);
        $a = $a.wrapping_sub($b).wrapping_sub($c) ^ ($c >> 3);
        $b = $b.wrapping_sub($c).wrapping_sub($a) ^ ($a << 10);
        $c = $c.wrapping_sub($a).wrapping_sub($b) ^ ($b >> 15);
    };
}

/// Hash of one value.
pub fn hash1(mut a: u32) -> u32 {
    let mut h = SEED ^ a;
    let (mut b, mut x, mut y) = (a, X, Y);
    mix!(b, x, h);
    mix!(y, a, h);
    let _ = (b, x, y, a);
    h
}

/// Hash of two values.
pub fn hash2(mut a: u32, mut b: u32) -> u32 {
    let mut h = SEED ^ a ^ b;
    let (mut x, mut y) = (X, Y);
    mix!(a, b, h);
    mix!(x, a, h);
    mix!(b, y, h);
    let _ = (x, y, a, b);
    h
}

/// Hash of three values.
#[inline]
pub fn hash3(mut a: u32, mut b: u32, mut c: u32) -> u32 {
    let mut h = SEED ^ a ^ b ^ c;
    let (mut x, mut y) = (X, Y);
    mix!(a, b, h);
    mix!(c, x, h);
    mix!(y, a, h);
    mix!(b, x, h);
    mix!(y, c, h);
    let _ = (x, y, a, b, c);
    h
}

/// Values that [`hash3_of`] hashes side by side.
pub(crate) const LANES: usize = 8;

/// [`hash3`] with each of some second values. One hash is a chain of steps that wait for one
/// another; several go through a processor's vector units together.
#[inline]
pub(crate) fn hash3_of(a: u32, b: [u32; LANES], c: u32) -> [u32; LANES] {
    let (mut a, mut b, mut c) = (Lanes([a; LANES]), Lanes(b), Lanes([c; LANES]));
    let mut h = Lanes([SEED; LANES]) ^ a ^ b ^ c;
    let (mut x, mut y) = (Lanes([X; LANES]), Lanes([Y; LANES]));
    mix!(a, b, h);
    mix!(c, x, h);
    mix!(y, a, h);
    mix!(b, x, h);
    mix!(y, c, h);
    let _ = (x, y, a, b, c);
    h.0
}

#[derive(Clone, Copy)]
struct Lanes([u32; LANES]);

impl Lanes {
    #[inline(always)]
    fn wrapping_sub(self, other: Lanes) -> Lanes {
        Lanes(std::array::from_fn(|i| self.0[i].wrapping_sub(other.0[i])))
    }
}

impl std::ops::BitXor for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn bitxor(self, other: Lanes) -> Lanes {
        Lanes(std::array::from_fn(|i| self.0[i] ^ other.0[i]))
    }
}

impl std::ops::Shl<u32> for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn shl(self, bits: u32) -> Lanes {
        Lanes(self.0.map(|v| v << bits))
    }
}

impl std::ops::Shr<u32> for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn shr(self, bits: u32) -> Lanes {
        Lanes(self.0.map(|v| v >> bits))
    }
}

/// Hash of four values.
pub fn hash4(mut a: u32, mut b: u32, mut c: u32, mut d: u32) -> u32 {
    let mut h = SEED ^ a ^ b ^ c ^ d;
    let (mut x, mut y) = (X, Y);
    mix!(a, b, h);
    mix!(c, d, h);
    mix!(a, x, h);
    mix!(y, b, h);
    mix!(c, x, h);
    mix!(y, d, h);
    let _ = (x, y, a, b, c, d);
    h
}

/// Hash of five values.
pub fn hash5(mut a: u32, mut b: u32, mut c: u32, mut d: u32, mut e: u32) -> u32 {
    let mut h = SEED ^ a ^ b ^ c ^ d ^ e;
    let (mut x, mut y) = (X, Y);
    mix!(a, b, h);
    mix!(c, d, h);
    mix!(e, x, h);
    mix!(y, a, h);
    mix!(b, x, h);
    mix!(y, c, h);
    mix!(d, x, h);
    mix!(y, e, h);
    let _ = (x, y, a, b, c, d, e);
    h
}

/// Ceph's name of a hash function.
pub fn name(kind: u8) -> &'static str {
    if kind == RJENKINS1 { "rjenkins1" } else { "unknown" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_side_by_side_hash_like_single_ones() {
        let mut seed = 1u32;
        let mut next = || {
            seed = hash1(seed);
            seed
        };
        for _ in 0..10_000 {
            let (a, c) = (next(), next());
            let b = std::array::from_fn(|_| next());
            assert_eq!(hash3_of(a, b, c), b.map(|b| hash3(a, b, c)));
        }
    }
}
