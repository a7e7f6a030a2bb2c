//! The field GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), in which Ceph's plugins
//! compute (`ceph:src/erasure-code/jerasure/gf-complete`, `ceph:src/isa-l`). Addition is XOR.

const POLYNOMIAL: u16 = 0x11d;

struct Tables {
    /// `2^i`, twice over, so that sums of two logarithms need no reduction.
    exp: [u8; 510],
    /// The logarithm of each element to the base 2; that of 0 has no meaning.
    log: [u8; 256],
}

const TABLES: Tables = {
    let mut t = Tables { exp: [0; 510], log: [0; 256] };
    let (mut x, mut i) = (1u16, 0);
    while i < 255 {
        t.exp[i] = x as u8;
        t.exp[i + 255] = x as u8;
        t.log[x as usize] = i as u8;
        x <<= 1;
        if x & 0x100 != 0 {
            x ^= POLYNOMIAL;
        }
        i += 1;
    }
    t
};

/// `a * b`.
pub const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    TABLES.exp[TABLES.log[a as usize] as usize + TABLES.log[b as usize] as usize]
}

/// `1 / a`; 0 has no inverse.
pub const fn inverse(a: u8) -> Option<u8> {
    if a == 0 {
        return None;
    }
    Some(TABLES.exp[255 - TABLES.log[a as usize] as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication as defined: of polynomials, reduced.
    fn slow_mul(a: u8, b: u8) -> u8 {
        let (mut a, mut b, mut product) = (u16::from(a), b, 0u16);
        while b != 0 {
            if b & 1 != 0 {
                product ^= a;
            }
            a <<= 1;
            if a & 0x100 != 0 {
                a ^= POLYNOMIAL;
            }
            b >>= 1;
        }
        product as u8
    }

    #[test]
    fn products_are_those_of_polynomials() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), slow_mul(a, b), "{a} * {b}");
            }
        }
    }

    #[test]
    fn inverses_are_inverse() {
        assert_eq!(inverse(0), None);
        for a in 1..=255 {
            assert_eq!(inverse(a).map(|i| mul(a, i)), Some(1), "1 / {a}");
        }
    }
}
