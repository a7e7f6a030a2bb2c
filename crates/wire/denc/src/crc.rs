//! CRC-32C in Ceph's convention: a plain running register, with neither initial nor final
//! inversion.

/// Continues `crc` over `data`. Ceph's usual seed is `u32::MAX` (`-1`), frame preambles use 0.
pub fn crc32c(crc: u32, data: &[u8]) -> u32 {
    !::crc32c::crc32c_append(!crc, data)
}

/// The polynomial, lowest power in the highest bit, as the register has it.
const POLY: u32 = 0x82f6_3b78;

/// The product of two polynomials.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 1 << 31;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        bit >>= 1;
        b = if b & 1 == 0 { b >> 1 } else { (b >> 1) ^ POLY };
    }
    product
}

/// `x` to the power of 8, 16, 32, ...: what a register is multiplied with by 1, 2, 4, ... zero
/// bytes.
const BYTES: [u32; 64] = {
    let mut out = [0; 64];
    // x to the power of 8.
    let mut power = 1 << 23;
    let mut i = 0;
    while i < 64 {
        out[i] = power;
        power = multiply(power, power);
        i += 1;
    }
    out
};

/// A register after `len` zero bytes more.
fn shift(mut crc: u32, mut len: u64) -> u32 {
    if len == BLOCK as u64 {
        return shift_block(crc);
    }
    let mut i = 0;
    while len > 0 {
        if len & 1 != 0 {
            crc = multiply(BYTES[i], crc);
        }
        len >>= 1;
        i += 1;
    }
    crc
}

/// The length that sums are most often made from.
const BLOCK: usize = 4096;

/// A register after [`BLOCK`] zero bytes more, by each of its bytes.
static SHIFTED: [[u32; 256]; 4] = {
    let power = BYTES[BLOCK.trailing_zeros() as usize];
    let mut out = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 4 {
        let mut value = 0;
        while value < 256 {
            out[byte][value] = multiply(power, (value as u32) << (8 * byte));
            value += 1;
        }
        byte += 1;
    }
    out
};

fn shift_block(crc: u32) -> u32 {
    let [a, b, c, d] = crc.to_le_bytes();
    SHIFTED[0][usize::from(a)]
        ^ SHIFTED[1][usize::from(b)]
        ^ SHIFTED[2][usize::from(c)]
        ^ SHIFTED[3][usize::from(d)]
}

/// The checksum of some bytes and their number. The sum of a whole follows from those of its parts,
/// without another look at the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    /// From a register of all ones.
    crc: u32,
    len: u64,
}

impl Sum {
    /// The sum of no bytes.
    pub const EMPTY: Sum = Sum { crc: u32::MAX, len: 0 };

    /// Reads the bytes.
    pub fn of(data: &[u8]) -> Sum {
        Sum { crc: crc32c(u32::MAX, data), len: data.len() as u64 }
    }

    /// The sum of `len` bytes whose checksum in the usual convention, with inversions, is known.
    pub fn from_usual(crc: u32, len: u64) -> Sum {
        Sum { crc: !crc, len }
    }

    /// The sum of `len` zero bytes.
    pub fn of_zeros(len: u64) -> Sum {
        Sum { crc: shift(u32::MAX, len), len }
    }

    /// The sum of these bytes with `next` behind them.
    #[must_use]
    pub fn then(self, next: Sum) -> Sum {
        // The register is linear: what it held before the second part only adds to what that part
        // makes of zero; `next` was made with all ones, which are taken out again.
        Sum { crc: shift(self.crc ^ u32::MAX, next.len) ^ next.crc, len: self.len + next.len }
    }

    /// `crc32c(u32::MAX, ..)` of the bytes.
    pub fn crc(self) -> u32 {
        self.crc
    }

    /// How many bytes there are.
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // Ceph src/test/common/test_crc32c.cc, "Small".
        assert_eq!(crc32c(0, b"foo bar baz"), 4119623852);
        assert_eq!(crc32c(1234, b"foo bar baz"), 881700046);
    }

    #[test]
    fn zeros() {
        for len in [0, 1, 7, 4095, 4096, 4097, 65_536, 1_000_003] {
            assert_eq!(Sum::of_zeros(len as u64), Sum::of(&vec![0; len]), "{len}");
        }
        // Longer than any memory: the same in one step and in two.
        let half = Sum::of_zeros(1 << 50);
        assert_eq!(half.then(half), Sum::of_zeros(1 << 51));
    }

    /// However bytes are cut, the sums of the pieces make the sum of the whole.
    #[test]
    fn pieces_make_the_whole() {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for _ in 0..200 {
            let data: Vec<u8> = (0..next(40_000)).map(|_| next(256) as u8).collect();
            let (mut sum, mut rest) = (Sum::EMPTY, &data[..]);
            while !rest.is_empty() {
                let n = match next(4) {
                    0 => BLOCK,
                    1 => next(16) as usize,
                    _ => next(9_000) as usize,
                };
                let (piece, left) = rest.split_at(n.min(rest.len()));
                let known = match next(2) {
                    0 => Sum::of(piece),
                    _ => Sum::from_usual(::crc32c::crc32c(piece), piece.len() as u64),
                };
                (sum, rest) = (sum.then(known), left);
            }
            assert_eq!(sum, Sum::of(&data));
            assert_eq!((sum.crc(), sum.len()), (crc32c(u32::MAX, &data), data.len() as u64));
        }
    }
}
