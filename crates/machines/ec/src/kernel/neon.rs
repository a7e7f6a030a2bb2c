//! NEON.

#![allow(unsafe_code, reason = "intrinsics, in functions that are inlined where they may be used")]

use super::vector::{Vector, run};
use crate::matrix::Coefficient;
use std::arch::aarch64::*;

/// # Safety
///
/// The processor has NEON; sources and outputs have one length.
#[target_feature(enable = "neon")]
pub(super) unsafe fn neon(
    cells: &[Coefficient],
    sources: &[&[u8]],
    out: &mut [&mut [u8]],
    add: bool,
) -> usize {
    // SAFETY: as the caller's.
    unsafe { run::<Neon>(cells, sources, out, add) }
}

/// Split tables, looked up with `TBL`. Needs NEON.
#[derive(Clone, Copy)]
struct Neon(uint8x16_t);

impl Vector for Neon {
    const BYTES: usize = 16;
    /// Products with low halves, and with high halves.
    type Factor = (uint8x16_t, uint8x16_t);

    // SAFETY (all functions): the trait's contract; `Coefficient`'s tables are 16 bytes long.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Neon {
        Neon(unsafe { vld1q_u8(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { vst1q_u8(to, self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Neon {
        Neon(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Neon) -> Neon {
        Neon(unsafe { veorq_u8(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn factor(c: &Coefficient) -> (uint8x16_t, uint8x16_t) {
        unsafe { (vld1q_u8(c.low.as_ptr()), vld1q_u8(c.high.as_ptr())) }
    }

    #[inline(always)]
    unsafe fn times(self, (low, high): (uint8x16_t, uint8x16_t)) -> Neon {
        unsafe {
            let low = vqtbl1q_u8(low, vandq_u8(self.0, vdupq_n_u8(15)));
            let high = vqtbl1q_u8(high, vshrq_n_u8::<4>(self.0));
            Neon(veorq_u8(low, high))
        }
    }
}
