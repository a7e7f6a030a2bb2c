//! Receive buffers with data that starts on a page boundary.

use aligned::PAGE as ALIGN;
use bytes::buf::UninitSlice;
use bytes::{BufMut, Bytes};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// A fixed-size buffer for one frame body, placed so that byte `data_at` of the body has an address
/// that is a multiple of [`ALIGN`]. `BytesMut` cannot be told where to begin; hence this type and
/// its unsafe code.
///
/// Invariant: `start <= len <= start + size`, `start + size` bytes were allocated at `ptr`, and the
/// bytes from `start` to `len` are initialised.
#[derive(Debug)]
pub struct BodyBuf {
    ptr: NonNull<u8>,
    layout: Layout,
    start: usize,
    len: usize,
}

// SAFETY: the buffer owns its allocation alone, like a `Box<[u8]>`.
unsafe impl Send for BodyBuf {}

impl BodyBuf {
    /// Room for `size` bytes (at least one), of which byte `data_at` is aligned.
    pub fn new(size: usize, data_at: usize) -> Self {
        let start = (ALIGN - data_at % ALIGN) % ALIGN;
        let layout = Layout::from_size_align(start + size.max(1), ALIGN)
            .expect("a frame is far below isize::MAX");
        // SAFETY: the layout's size is not zero.
        let ptr = unsafe { alloc(layout) };
        let ptr = NonNull::new(ptr).unwrap_or_else(|| handle_alloc_error(layout));
        BodyBuf { ptr, layout, start, len: start }
    }

    /// Bytes that are still missing.
    pub fn missing(&self) -> usize {
        self.layout.size() - self.len
    }

    /// What was written so far.
    pub fn filled_mut(&mut self) -> &mut [u8] {
        // SAFETY: these bytes are allocated and initialised (invariant), and borrowed with self.
        unsafe {
            std::slice::from_raw_parts_mut(self.ptr.as_ptr().add(self.start), self.len - self.start)
        }
    }

    /// What was written, shared; the allocation lives as long as any slice of it.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for BodyBuf {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: these bytes are allocated and initialised (invariant), and borrowed with self.
        unsafe {
            std::slice::from_raw_parts(self.ptr.as_ptr().add(self.start), self.len - self.start)
        }
    }
}

impl Drop for BodyBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed nowhere else.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

// SAFETY: `chunk_mut` returns exactly the allocated bytes behind `len`, and `advance_mut` moves
// `len` only as far as there are any.
unsafe impl BufMut for BodyBuf {
    fn remaining_mut(&self) -> usize {
        self.missing()
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        // SAFETY: `len` is within the allocation, `missing` bytes follow it, and they are borrowed
        // with self. They may be uninitialised, which `UninitSlice` is for.
        unsafe { UninitSlice::from_raw_parts_mut(self.ptr.as_ptr().add(self.len), self.missing()) }
    }

    unsafe fn advance_mut(&mut self, n: usize) {
        assert!(n <= self.missing(), "advanced past the end of a receive buffer");
        self.len += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_aligned() {
        for data_at in [0, 1, 77, 4095, 4096, 5000] {
            let mut b = BodyBuf::new(10_000, data_at);
            let body: Vec<u8> = (0..10_000).map(|i| i as u8).collect();
            b.put_slice(&body);
            assert_eq!(b.missing(), 0);
            b.filled_mut()[0] = 0;
            let bytes = b.freeze();
            assert_eq!(bytes, body);
            assert_eq!(bytes.slice(data_at..).as_ptr() as usize % ALIGN, 0);
        }
    }
}
