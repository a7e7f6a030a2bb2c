//! AVX2, and GFNI with AVX2 or AVX-512.

#![allow(unsafe_code, reason = "intrinsics, in functions that are inlined where they may be used")]

use super::vector::{Vector, run};
use crate::matrix::Coefficient;
use std::arch::x86_64::*;

/// # Safety
///
/// The processor has AVX2; sources and outputs have one length.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn avx2(
    cells: &[Coefficient],
    sources: &[&[u8]],
    out: &mut [&mut [u8]],
    add: bool,
) -> usize {
    // SAFETY: as the caller's.
    unsafe { run::<Avx2>(cells, sources, out, add) }
}

/// # Safety
///
/// The processor has AVX2 and GFNI; sources and outputs have one length.
#[target_feature(enable = "avx2,gfni")]
pub(super) unsafe fn gfni(
    cells: &[Coefficient],
    sources: &[&[u8]],
    out: &mut [&mut [u8]],
    add: bool,
) -> usize {
    // SAFETY: as the caller's.
    unsafe { run::<Gfni>(cells, sources, out, add) }
}

/// # Safety
///
/// The processor has AVX-512F and GFNI; sources and outputs have one length.
#[target_feature(enable = "avx512f,gfni")]
pub(super) unsafe fn gfni512(
    cells: &[Coefficient],
    sources: &[&[u8]],
    out: &mut [&mut [u8]],
    add: bool,
) -> usize {
    // SAFETY: as the caller's.
    unsafe { run::<Gfni512>(cells, sources, out, add) }
}

/// Split tables, looked up with `VPSHUFB`. Needs AVX2.
#[derive(Clone, Copy)]
struct Avx2(__m256i);

impl Vector for Avx2 {
    const BYTES: usize = 32;
    /// Products with low halves, and with high halves.
    type Factor = (__m256i, __m256i);

    // SAFETY (all functions): the trait's contract; `Coefficient`'s tables are 16 bytes long.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Avx2 {
        Avx2(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Avx2 {
        Avx2(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Avx2) -> Avx2 {
        Avx2(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn factor(c: &Coefficient) -> (__m256i, __m256i) {
        unsafe {
            let low = _mm_load_si128(c.low.as_ptr().cast());
            let high = _mm_load_si128(c.high.as_ptr().cast());
            (_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high))
        }
    }

    #[inline(always)]
    unsafe fn times(self, (low, high): (__m256i, __m256i)) -> Avx2 {
        unsafe {
            let half = _mm256_set1_epi8(15);
            let low = _mm256_shuffle_epi8(low, _mm256_and_si256(self.0, half));
            let shifted = _mm256_srli_epi64::<4>(self.0);
            let high = _mm256_shuffle_epi8(high, _mm256_and_si256(shifted, half));
            Avx2(_mm256_xor_si256(low, high))
        }
    }
}

/// Matrices of bits. Needs AVX2 and GFNI.
#[derive(Clone, Copy)]
struct Gfni(__m256i);

impl Vector for Gfni {
    const BYTES: usize = 32;
    type Factor = __m256i;

    // SAFETY (all functions): the trait's contract.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Gfni {
        Gfni(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Gfni {
        Gfni(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Gfni) -> Gfni {
        Gfni(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn factor(c: &Coefficient) -> __m256i {
        unsafe { _mm256_set1_epi64x(c.affine as i64) }
    }

    #[inline(always)]
    unsafe fn times(self, factor: __m256i) -> Gfni {
        Gfni(unsafe { _mm256_gf2p8affine_epi64_epi8::<0>(self.0, factor) })
    }
}

/// Matrices of bits. Needs AVX-512F and GFNI.
#[derive(Clone, Copy)]
struct Gfni512(__m512i);

impl Vector for Gfni512 {
    const BYTES: usize = 64;
    type Factor = __m512i;

    // SAFETY (all functions): the trait's contract.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Gfni512 {
        Gfni512(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Gfni512 {
        Gfni512(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Gfni512) -> Gfni512 {
        Gfni512(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn factor(c: &Coefficient) -> __m512i {
        unsafe { _mm512_set1_epi64(c.affine as i64) }
    }

    #[inline(always)]
    unsafe fn times(self, factor: __m512i) -> Gfni512 {
        Gfni512(unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(self.0, factor) })
    }
}
