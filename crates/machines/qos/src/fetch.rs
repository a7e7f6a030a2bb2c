//! Where many entries lie in memory, waiting for one of them takes longer than all that is done
//! with it.

/// Tells the processor that something will be read soon.
#[inline]
pub(crate) fn fetch<V>(place: &V) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing; every processor of this kind has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
