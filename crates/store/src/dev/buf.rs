//! Memory that direct I/O accepts.

use crate::types::BLOCK;
use bytes::Bytes;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Block-aligned memory of a fixed capacity. Small ones are recycled by the thread that drops them.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// Power of two, at least [`BLOCK`].
    cap: usize,
}

// SAFETY: the buffer owns its memory exclusively and has no interior mutability.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; shared references only allow reading.
unsafe impl Sync for AlignedBuf {}

/// Largest capacity that is kept for reuse.
const KEEP_MAX: usize = 1 << 20;
/// Buffers kept per size class and thread: of small ones many, of large ones a few.
const KEEP: [usize; CLASSES] = [64, 64, 64, 32, 16, 16, 8, 4, 4];
/// Powers of two from [`BLOCK`] to [`KEEP_MAX`].
const CLASSES: usize = 9;

thread_local! {
    static POOL: RefCell<[Vec<NonNull<u8>>; CLASSES]> = const { RefCell::new([const { Vec::new() }; CLASSES]) };
}

fn class(cap: usize) -> usize {
    (cap / BLOCK as usize).trailing_zeros() as usize
}

impl AlignedBuf {
    /// A buffer of `len` bytes with arbitrary (initialised) content.
    pub fn recycled(len: usize) -> AlignedBuf {
        let cap = if len <= KEEP_MAX {
            len.next_power_of_two().max(BLOCK as usize)
        } else {
            len.next_multiple_of(BLOCK as usize)
        };
        if cap <= KEEP_MAX
            && let Ok(Some(ptr)) = POOL.try_with(|p| p.borrow_mut()[class(cap)].pop())
        {
            return AlignedBuf { ptr, len, cap };
        }
        let layout = Self::layout(cap);
        // SAFETY: the layout has a size above zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        AlignedBuf { ptr, len, cap }
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let mut b = Self::recycled(len);
        b.fill(0);
        b
    }

    /// The buffer as immutable, reference-counted bytes.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Bytes that the buffer could hold.
    pub fn capacity(&self) -> usize {
        self.cap
    }

    /// Makes the buffer shorter or, up to its capacity, longer.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.cap, "an aligned buffer does not grow");
        self.len = len;
    }

    fn layout(cap: usize) -> Layout {
        // The size is a multiple of the alignment already, and far below isize::MAX.
        Layout::from_size_align(cap, BLOCK as usize).expect("a valid layout")
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= cap` bytes from `ptr` are owned and initialised.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let (ptr, cap) = (self.ptr, self.cap);
        let kept = cap <= KEEP_MAX
            && POOL
                .try_with(|p| {
                    let list = &mut p.borrow_mut()[class(cap)];
                    let room = list.len() < KEEP[class(cap)];
                    if room {
                        list.push(ptr);
                    }
                    room
                })
                .unwrap_or(false);
        if !kept {
            // SAFETY: allocated with this layout and not kept elsewhere.
            unsafe { dealloc(ptr.as_ptr(), Self::layout(cap)) };
        }
    }
}
