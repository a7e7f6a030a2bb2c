//! The loop, over any kind of vector.

#![allow(unsafe_code, reason = "loads and stores by pointers whose bounds the loop keeps")]
// On other architectures only the scalar code is there.
#![cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]

use crate::matrix::Coefficient;

/// Bytes in a register, and what is done with them.
///
/// # Safety
///
/// All functions need the instructions that the implementing type names: they are inlined into
/// functions with that `target_feature`.
pub(super) trait Vector: Copy {
    /// Bytes of a vector.
    const BYTES: usize;
    /// A coefficient in registers.
    type Factor: Copy;

    /// # Safety
    ///
    /// [`Vector::BYTES`] can be read from there.
    unsafe fn load(from: *const u8) -> Self;
    /// # Safety
    ///
    /// [`Vector::BYTES`] can be written there.
    unsafe fn store(self, to: *mut u8);
    /// # Safety
    ///
    /// See the trait.
    unsafe fn zero() -> Self;
    /// # Safety
    ///
    /// See the trait.
    unsafe fn xor(self, other: Self) -> Self;
    /// # Safety
    ///
    /// See the trait.
    unsafe fn factor(c: &Coefficient) -> Self::Factor;
    /// # Safety
    ///
    /// See the trait.
    unsafe fn times(self, factor: Self::Factor) -> Self;
}

/// Vectors of a source that are multiplied with a coefficient once it is in registers.
const UNROLL: usize = 2;

/// Computes one to four outputs as far as they fill vectors; returns how many bytes that is.
///
/// # Safety
///
/// The processor has the instructions of `V`; sources and outputs have one length.
#[inline(always)]
pub(super) unsafe fn run<V: Vector>(
    cells: &[Coefficient],
    sources: &[&[u8]],
    out: &mut [&mut [u8]],
    add: bool,
) -> usize {
    // SAFETY: as the caller's.
    unsafe {
        match out {
            [a] => rows::<V, 1>(cells, sources, [a], add),
            [a, b] => rows::<V, 2>(cells, sources, [a, b], add),
            [a, b, c] => rows::<V, 3>(cells, sources, [a, b, c], add),
            [a, b, c, d] => rows::<V, 4>(cells, sources, [a, b, c, d], add),
            _ => 0,
        }
    }
}

/// # Safety
///
/// As [`run`].
#[inline(always)]
unsafe fn rows<V: Vector, const ROWS: usize>(
    cells: &[Coefficient],
    sources: &[&[u8]],
    out: [&mut &mut [u8]; ROWS],
    add: bool,
) -> usize {
    let step = V::BYTES * UNROLL;
    let whole = out[0].len() / step * step;
    let out: [*mut u8; ROWS] = out.map(|o| o.as_mut_ptr());
    for at in (0..whole).step_by(step) {
        // SAFETY: `at + step <= whole`, which is at most the length of each source and output; the
        // processor has the instructions.
        unsafe {
            let mut sums = [[V::zero(); UNROLL]; ROWS];
            if add {
                for (sums, out) in sums.iter_mut().zip(out) {
                    for (u, sum) in sums.iter_mut().enumerate() {
                        *sum = V::load(out.add(at + u * V::BYTES));
                    }
                }
            }
            for (column, source) in sources.iter().enumerate() {
                let mut data = [V::zero(); UNROLL];
                for (u, d) in data.iter_mut().enumerate() {
                    *d = V::load(source.as_ptr().add(at + u * V::BYTES));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let factor = V::factor(&cells[r * sources.len() + column]);
                    for u in 0..UNROLL {
                        sums[u] = sums[u].xor(data[u].times(factor));
                    }
                }
            }
            for (sums, out) in sums.iter().zip(out) {
                for (u, sum) in sums.iter().enumerate() {
                    sum.store(out.add(at + u * V::BYTES));
                }
            }
        }
    }
    whole
}
