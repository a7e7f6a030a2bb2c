//! Page-aligned memory: what direct I/O accepts, from the socket to the device without another
//! copy.
//!
//! General allocators serve a page-aligned request for a page by taking two and wasting one. Here
//! small buffers are cut from slabs and recycled: each thread has a list of free ones for every
//! size, and trades them with the other threads in batches, so that a buffer that is filled by one
//! thread and dropped by another costs neither of them a lock or a call of the system. Slabs are
//! kept for the life of the process; their number is what was in use at the busiest moment.
//!
//! Buffers above [`SMALL_MAX`] are recycled too, because new memory of that size costs about as
//! much as filling it: the kernel clears each page when it is first touched. Of those, only so many
//! are kept that are free.

use bytes::Bytes;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Mutex;

/// The alignment, and the smallest capacity.
pub const PAGE: usize = 4096;

/// Largest capacity that is cut from slabs.
const SMALL_MAX: usize = 1 << 20;
/// Powers of two from [`PAGE`] to [`SMALL_MAX`].
const CLASSES: usize = (SMALL_MAX / PAGE).trailing_zeros() as usize + 1;
/// What a slab is cut from.
const SLAB: usize = 1 << 20;
/// Bytes of one class that threads trade at a time.
const BATCH: usize = 512 << 10;

/// A free buffer of some class.
struct Free(NonNull<u8>);

// SAFETY: nothing refers to the memory of a free buffer; the holder of the value owns it.
unsafe impl Send for Free {}

/// Free buffers that threads have no use for now, in batches.
static SPARE: [Mutex<Vec<Vec<Free>>>; CLASSES] = [const { Mutex::new(Vec::new()) }; CLASSES];

thread_local! {
    static OWN: RefCell<[Vec<Free>; CLASSES]> = const { RefCell::new([const { Vec::new() }; CLASSES]) };
}

fn class(cap: usize) -> usize {
    (cap / PAGE).trailing_zeros() as usize
}

/// Buffers in a batch of a class.
fn batch(class: usize) -> usize {
    (BATCH / (PAGE << class)).max(2)
}

/// Zeroed memory from the system, a page of it when that is first touched. An allocator may have
/// asked for large pages, and the thread that touches the first byte of one waits until the kernel
/// has cleared all of it: milliseconds, on some machines, in the middle of a request.
fn new_slab() -> NonNull<u8> {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping of a size above zero, wherever the kernel puts it.
    let slab = unsafe { libc::mmap(std::ptr::null_mut(), SLAB, access, kind, -1, 0) };
    match NonNull::new(slab) {
        Some(at) if slab != libc::MAP_FAILED => at.cast(),
        _ => handle_alloc_error(Layout::new::<[u8; SLAB]>()),
    }
}

fn spare(class: usize) -> std::sync::MutexGuard<'static, Vec<Vec<Free>>> {
    // A list is whole at any moment; a panic elsewhere does not spoil it.
    SPARE[class].lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn take(class: usize) -> NonNull<u8> {
    let own = OWN.try_with(|lists| {
        let list = &mut lists.borrow_mut()[class];
        if list.is_empty() {
            refill(list, class);
        }
        list.pop()
    });
    match own {
        Ok(Some(free)) => free.0,
        // The thread is ending: without its lists.
        _ => {
            let mut list = Vec::new();
            refill(&mut list, class);
            let first = list.pop().expect("a refill is not empty");
            spare(class).push(list);
            first.0
        }
    }
}

fn refill(list: &mut Vec<Free>, class: usize) {
    if let Some(mut batch) = spare(class).pop() {
        list.append(&mut batch);
    }
    if list.is_empty() {
        let slab = new_slab();
        for at in (0..SLAB).step_by(PAGE << class) {
            // SAFETY: `at` is inside the slab.
            list.push(Free(unsafe { slab.add(at) }));
        }
    }
}

fn give(class: usize, ptr: NonNull<u8>) {
    let kept = OWN.try_with(|lists| {
        let list = &mut lists.borrow_mut()[class];
        list.push(Free(ptr));
        let n = batch(class);
        if list.len() >= 2 * n {
            let batch = list.split_off(list.len() - n);
            spare(class).push(batch);
        }
    });
    if kept.is_err() {
        spare(class).push(vec![Free(ptr)]);
    }
}

/// Capacities above [`SMALL_MAX`] are multiples of this.
const LARGE_STEP: usize = 1 << 20;
/// Largest capacity that is recycled: an object of the usual size, with what a message adds to it.
const LARGE_MAX: usize = 8 << 20;
/// Bytes of free large buffers that are kept, at most.
const LARGE_KEPT: usize = 64 << 20;
/// Large buffers begin where the kernel can map them by a large page.
const LARGE_ALIGN: usize = 2 << 20;

/// Free large buffers by capacity, in steps.
struct Large {
    free: [Vec<Free>; LARGE_MAX / LARGE_STEP + 1],
    bytes: usize,
}

/// One lock for all: it is taken once for a megabyte or more.
static LARGE: Mutex<Large> =
    Mutex::new(Large { free: [const { Vec::new() }; LARGE_MAX / LARGE_STEP + 1], bytes: 0 });

fn large() -> std::sync::MutexGuard<'static, Large> {
    // As in `spare`.
    LARGE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn large_layout(cap: usize) -> Layout {
    // The size is a multiple of a page already, and far below isize::MAX.
    Layout::from_size_align(cap, LARGE_ALIGN).expect("a valid layout")
}

fn take_large(cap: usize) -> NonNull<u8> {
    if cap <= LARGE_MAX {
        let mut large = large();
        if let Some(free) = large.free[cap / LARGE_STEP].pop() {
            large.bytes -= cap;
            return free.0;
        }
    }
    let layout = large_layout(cap);
    // SAFETY: the layout has a size above zero.
    let ptr = unsafe { alloc(layout) };
    let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
    // SAFETY: `cap` bytes, whole pages, were just allocated. The advice changes nothing but speed:
    // devices and sockets take a large page at once.
    unsafe { libc::madvise(ptr.as_ptr().cast(), cap, libc::MADV_HUGEPAGE) };
    // SAFETY: as above.
    unsafe { ptr.as_ptr().write_bytes(0, cap) };
    ptr
}

fn give_large(cap: usize, ptr: NonNull<u8>) {
    if cap <= LARGE_MAX {
        let mut large = large();
        if large.bytes + cap <= LARGE_KEPT {
            large.free[cap / LARGE_STEP].push(Free(ptr));
            large.bytes += cap;
            return;
        }
    }
    // SAFETY: allocated with this layout in `take_large`, and nothing refers to it any more.
    unsafe { dealloc(ptr.as_ptr(), large_layout(cap)) };
}

/// Page-aligned memory of a fixed capacity.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// A power of two up to [`SMALL_MAX`], above it a multiple of [`LARGE_STEP`].
    cap: usize,
}

// SAFETY: the buffer owns its memory exclusively and has no interior mutability.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; shared references only allow reading.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of `len` bytes with arbitrary (initialised) content.
    pub fn recycled(len: usize) -> AlignedBuf {
        if len <= SMALL_MAX {
            let cap = len.next_power_of_two().max(PAGE);
            return AlignedBuf { ptr: take(class(cap)), len, cap };
        }
        let cap = len.next_multiple_of(LARGE_STEP);
        AlignedBuf { ptr: take_large(cap), len, cap }
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let mut b = Self::recycled(len);
        b.fill(0);
        b
    }

    /// A copy of some bytes.
    pub fn copy_of(bytes: &[u8]) -> AlignedBuf {
        let mut b = Self::recycled(bytes.len());
        b.copy_from_slice(bytes);
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
    ///
    /// # Panics
    /// When `len` is above the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.cap, "an aligned buffer does not grow");
        self.len = len;
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
        if self.cap <= SMALL_MAX {
            give(class(self.cap), self.ptr);
        } else {
            give_large(self.cap, self.ptr);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn sizes_and_alignment() {
        for len in [0, 1, PAGE - 1, PAGE, PAGE + 1, 70_000, SMALL_MAX, SMALL_MAX + 1, 5 << 20] {
            let mut b = AlignedBuf::recycled(len);
            assert_eq!(b.len(), len);
            assert_eq!(b.as_ptr() as usize % PAGE, 0);
            b.fill(7);
            assert!(b.capacity() >= len);
            b.set_len(b.capacity());
            b.fill(8);
            let bytes = b.freeze();
            assert!(bytes.iter().all(|x| *x == 8));
        }
        assert!(AlignedBuf::zeroed(3 * PAGE).iter().all(|b| *b == 0));
        assert_eq!(&AlignedBuf::copy_of(b"abc")[..], b"abc");
    }

    #[test]
    fn live_buffers_never_overlap() {
        let bufs: Vec<AlignedBuf> =
            (0..3000).map(|i| AlignedBuf::recycled(PAGE << (i % 3))).collect();
        let mut pages = HashSet::new();
        for b in &bufs {
            for at in (0..b.capacity()).step_by(PAGE) {
                assert!(pages.insert(b.as_ptr() as usize + at));
            }
        }
    }

    #[test]
    fn large_buffers_are_recycled_up_to_a_bound() {
        let sizes =
            || [SMALL_MAX + 1, 2 << 20, (4 << 20) + 77, LARGE_MAX, LARGE_MAX + 1].into_iter();
        for _ in 0..20 {
            let bufs: Vec<AlignedBuf> =
                sizes().cycle().take(40).map(AlignedBuf::recycled).collect();
            let mut spans: Vec<_> =
                bufs.iter().map(|b| (b.as_ptr().addr(), b.capacity())).collect();
            spans.sort_unstable();
            assert!(
                spans.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0),
                "two live buffers overlap"
            );
            drop(bufs);
            let large = large();
            assert_eq!(
                large.bytes,
                large.free.iter().enumerate().map(|(n, l)| n * l.len() * LARGE_STEP).sum()
            );
            assert!(
                (LARGE_KEPT - LARGE_MAX..=LARGE_KEPT).contains(&large.bytes),
                "{}",
                large.bytes
            );
        }
    }

    /// Filled by one thread, dropped by another: the memory comes back instead of growing.
    #[test]
    fn buffers_return_across_threads() {
        let (send, receive) = std::sync::mpsc::sync_channel::<AlignedBuf>(64);
        let dropper =
            std::thread::spawn(move || receive.into_iter().map(|b| b[0] as usize).sum::<usize>());
        let mut seen = HashSet::new();
        for _ in 0..20_000 {
            let mut b = AlignedBuf::recycled(16 << 10);
            b[0] = 1;
            seen.insert(b.as_ptr() as usize);
            send.send(b).expect("the other thread lives");
        }
        drop(send);
        assert_eq!(dropper.join().expect("no panic"), 20_000);
        assert!(seen.len() < 2000, "{} different buffers", seen.len());
    }
}
