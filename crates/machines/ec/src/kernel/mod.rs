//! A matrix times data: the one loop of erasure coding, in the instructions that the processor has.
//!
//! Multiplication by a constant is linear over bits. AVX2 and NEON look up products of half bytes
//! in two tables of 16 ("split tables"); GFNI multiplies by an 8 by 8 matrix of bits. All give the
//! same bytes as [`Kernel::Scalar`].

#[cfg(target_arch = "aarch64")]
mod neon;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::matrix::{Coefficient, Prepared};

/// Instructions to multiply with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Any processor.
    Scalar,
    /// 32 bytes at a time (x86-64).
    Avx2,
    /// 32 bytes at a time with GFNI (x86-64).
    Gfni,
    /// 64 bytes at a time with GFNI and AVX-512 (x86-64).
    Gfni512,
    /// 16 bytes at a time (aarch64).
    Neon,
}

impl Kernel {
    /// All, the best first.
    const ALL: [Kernel; 5] =
        [Kernel::Gfni512, Kernel::Gfni, Kernel::Avx2, Kernel::Neon, Kernel::Scalar];

    /// Those that this processor has, the best first.
    pub fn available() -> impl Iterator<Item = Kernel> {
        Kernel::ALL.into_iter().filter(|k| k.is_available())
    }

    /// The best that this processor has.
    pub fn best() -> Kernel {
        Kernel::available().next().unwrap_or(Kernel::Scalar)
    }

    /// Whether this processor has the instructions.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Kernel::Avx2 => return is_x86_feature_detected!("avx2"),
            Kernel::Gfni => {
                return is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni");
            }
            Kernel::Gfni512 => {
                return is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("gfni");
            }
            _ => (),
        }
        #[cfg(target_arch = "aarch64")]
        if self == Kernel::Neon {
            return std::arch::is_aarch64_feature_detected!("neon");
        }
        self == Kernel::Scalar
    }
}

/// How many outputs are computed in one pass over the sources: their sums are held in registers.
const ROWS_MAX: usize = 4;

/// `out = matrix * sources`, or `out ^= matrix * sources` if `add`. There are as many sources as
/// the matrix has columns, as many outputs as it has rows, and all have the same length in bytes.
///
/// # Panics
///
/// If numbers or lengths differ.
pub fn multiply(matrix: &Prepared, sources: &[&[u8]], out: &mut [&mut [u8]], add: bool) {
    multiply_with(Kernel::best(), matrix, sources, out, add);
}

/// [`multiply`] with instructions of choice; with the best there are if the processor lacks them.
pub fn multiply_with(
    kernel: Kernel,
    matrix: &Prepared,
    sources: &[&[u8]],
    out: &mut [&mut [u8]],
    add: bool,
) {
    assert_eq!(sources.len(), matrix.columns(), "sources of a multiplication");
    assert_eq!(out.len(), matrix.rows(), "outputs of a multiplication");
    let Some(length) = out.first().map(|o| o.len()) else { return };
    assert!(out.iter().all(|o| o.len() == length), "outputs of different lengths");
    assert!(sources.iter().all(|s| s.len() == length), "sources of another length than outputs");
    let kernel = if kernel.is_available() { kernel } else { Kernel::best() };
    let mut first = 0;
    for group in out.chunks_mut(ROWS_MAX) {
        let cells = matrix.cells(first..first + group.len());
        let done = vectors(kernel, cells, sources, group, add);
        scalar(cells, sources, group, add, done);
        first += group.len();
    }
}

/// Computes the part that fills whole vectors, and says how many bytes that is.
#[allow(unsafe_code, reason = "calls functions that need instructions, which were asked for")]
fn vectors(
    kernel: Kernel,
    cells: &[Coefficient],
    sources: &[&[u8]],
    out: &mut [&mut [u8]],
    add: bool,
) -> usize {
    // SAFETY: `multiply_with` passes only what `Kernel::is_available`, with that many outputs, and
    // with sources and outputs of one length.
    match kernel {
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2 => unsafe { x86::avx2(cells, sources, out, add) },
        #[cfg(target_arch = "x86_64")]
        Kernel::Gfni => unsafe { x86::gfni(cells, sources, out, add) },
        #[cfg(target_arch = "x86_64")]
        Kernel::Gfni512 => unsafe { x86::gfni512(cells, sources, out, add) },
        #[cfg(target_arch = "aarch64")]
        Kernel::Neon => unsafe { neon::neon(cells, sources, out, add) },
        _ => 0,
    }
}

/// Computes what is behind `from`, byte by byte.
fn scalar(cells: &[Coefficient], sources: &[&[u8]], out: &mut [&mut [u8]], add: bool, from: usize) {
    for (out, row) in out.iter_mut().zip(cells.chunks(sources.len().max(1))) {
        let out = &mut out[from..];
        if !add {
            out.fill(0);
        }
        for (source, c) in sources.iter().zip(row) {
            match c.value {
                0 => (),
                1 => out.iter_mut().zip(&source[from..]).for_each(|(o, s)| *o ^= s),
                _ => out.iter_mut().zip(&source[from..]).for_each(|(o, s)| {
                    *o ^= c.low[usize::from(s & 15)] ^ c.high[usize::from(s >> 4)];
                }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::mul;
    use crate::matrix::Matrix;

    fn noise(seed: u64, n: usize) -> Vec<u8> {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let next = |_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        };
        (0..n).map(next).collect()
    }

    fn check(kernel: Kernel, rows: usize, columns: usize, length: usize, add: bool) {
        let matrix = Matrix::from_fn(rows, columns, |r, c| (r * 37 + c * 11) as u8);
        let sources: Vec<Vec<u8>> = (0..columns).map(|c| noise(c as u64 + 1, length)).collect();
        let before: Vec<Vec<u8>> = (0..rows).map(|r| noise(r as u64 + 99, length)).collect();
        let mut out = before.clone();
        multiply_with(
            kernel,
            &Prepared::new(&matrix),
            &sources.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            &mut out.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
            add,
        );
        for r in 0..rows {
            for i in 0..length {
                let start = if add { before[r][i] } else { 0 };
                let sum = (0..columns).fold(start, |s, c| s ^ mul(matrix.get(r, c), sources[c][i]));
                assert_eq!(out[r][i], sum, "{kernel:?} {rows}x{columns} byte {i} of {length}");
            }
        }
    }

    #[test]
    fn all_kernels_give_the_bytes_that_the_field_defines() {
        let lengths: &[usize] =
            if cfg!(miri) { &[0, 1, 17] } else { &[0, 1, 15, 16, 31, 64, 127, 128, 255, 1000] };
        for kernel in Kernel::available() {
            for rows in 1..7 {
                for columns in [1, 2, 5] {
                    for &length in lengths {
                        check(kernel, rows, columns, length, false);
                        check(kernel, rows, columns, length, true);
                    }
                }
            }
        }
    }

    #[test]
    fn every_factor_times_every_byte() {
        let bytes: Vec<u8> = (0..=255).collect();
        for kernel in Kernel::available() {
            for factor in (0..=255).step_by(if cfg!(miri) { 51 } else { 1 }) {
                let mut out = vec![0; 256];
                let matrix = Prepared::scalar(factor);
                multiply_with(kernel, &matrix, &[&bytes], &mut [&mut out], false);
                assert!((0..256).all(|i| out[i] == mul(factor, i as u8)), "{kernel:?} {factor}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "sources of another length")]
    fn a_source_that_is_too_short_is_refused() {
        let mut out = [0; 64];
        multiply(&Prepared::scalar(3), &[&[0; 32]], &mut [&mut out], false);
    }
}
