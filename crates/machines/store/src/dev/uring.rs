//! io_uring without a runtime of its own: the ring's file descriptor becomes readable when there
//! are completions, so that tokio's reactor can wait for it. One task submits what was queued
//! during the tick and hands out completions.

use super::request::{Gather, Outcome};
use aligned::AlignedBuf;
use io_uring::{IoUring, opcode, squeue, types};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

const ENTRIES: u32 = 256;
const FILE: types::Fixed = types::Fixed(0);

/// A request: shared by the task that waits and the driver, which keeps it until the kernel is
/// done.
#[derive(Default)]
struct State {
    /// The kernel reads or writes here until the completion arrives; not touched in between.
    buf: RefCell<Option<AlignedBuf>>,
    data: RefCell<Gather>,
    iov: RefCell<Vec<libc::iovec>>,
    want: Cell<usize>,
    result: Cell<Option<i32>>,
    waker: RefCell<Option<Waker>>,
}

/// A request that was started.
pub struct Request(Rc<State>);

impl Future for Request {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let s = &self.0;
        match s.result.get() {
            None => {
                *s.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
            Some(n) => {
                let result = match usize::try_from(n) {
                    Err(_) => Err(io::Error::from_raw_os_error(-n)),
                    Ok(n) if n != s.want.get() => {
                        Err(short(n, s.want.get(), s.buf.borrow().is_some()))
                    }
                    Ok(_) => Ok(()),
                };
                Poll::Ready((s.buf.borrow_mut().take(), result))
            }
        }
    }
}

/// Why the kernel moved fewer bytes than asked: a file was shorter, or its file system had no more
/// room.
fn short(n: usize, want: usize, read: bool) -> io::Error {
    match read {
        true => io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("only {n} of {want} bytes are there"),
        ),
        false => io::Error::new(
            io::ErrorKind::StorageFull,
            format!("No space left on device: {n} of {want} bytes were written"),
        ),
    }
}

struct Inner {
    ring: RefCell<IoUring>,
    /// Requests the kernel knows or will be told, by `user_data`.
    inflight: RefCell<Vec<Option<Rc<State>>>>,
    free: RefCell<Vec<usize>>,
    count: Cell<usize>,
    queued: Cell<bool>,
    closing: Cell<bool>,
    wake: Notify,
}

/// A ring for one file.
pub(super) struct Uring(Rc<Inner>);

struct Fd(RawFd);

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Uring {
    pub(super) fn new(file: &File) -> io::Result<Uring> {
        let ring = IoUring::builder().setup_coop_taskrun().setup_single_issuer().build(ENTRIES)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let inner = Rc::new(Inner {
            ring: RefCell::new(ring),
            inflight: RefCell::default(),
            free: RefCell::default(),
            count: Cell::new(0),
            queued: Cell::new(false),
            closing: Cell::new(false),
            wake: Notify::new(),
        });
        let fd = Fd(inner.ring.borrow().as_raw_fd());
        // SAFETY: the descriptor belongs to the ring, which `drive` keeps alive until after the
        // registration is dropped (parameters are dropped in reverse order).
        let fd = unsafe { AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) };
        let fd = fd.map_err(io::Error::from)?;
        tokio::task::spawn_local(drive(inner.clone(), fd));
        Ok(Uring(inner))
    }

    pub(super) fn read(&self, off: u64, mut buf: AlignedBuf) -> Request {
        let (ptr, len) = (buf.as_mut_ptr(), buf.len());
        let state =
            State { buf: RefCell::new(Some(buf)), want: Cell::new(len), ..State::default() };
        self.0.start(state, |_| opcode::Read::new(FILE, ptr, len as u32).offset(off).build())
    }

    pub(super) fn write(&self, off: u64, data: Gather, durable: bool) -> Request {
        let want = data.iter().map(|b| b.len()).sum();
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        let iov = data
            .iter()
            .map(|b| libc::iovec { iov_base: b.as_ptr() as *mut _, iov_len: b.len() })
            .collect();
        let state = State {
            data: RefCell::new(data),
            iov: RefCell::new(iov),
            want: Cell::new(want),
            ..State::default()
        };
        self.0.start(state, |s| match s.data.borrow().as_slice() {
            [one] => opcode::Write::new(FILE, one.as_ptr(), one.len() as u32)
                .offset(off)
                .rw_flags(flags)
                .build(),
            _ => {
                let iov = s.iov.borrow();
                opcode::Writev::new(FILE, iov.as_ptr(), iov.len() as u32)
                    .offset(off)
                    .rw_flags(flags)
                    .build()
            }
        })
    }

    pub(super) fn flush(&self) -> Request {
        self.0.start(State::default(), |_| {
            opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build()
        })
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.0.closing.set(true);
        self.0.wake.notify_one();
    }
}

impl Inner {
    fn start(&self, state: State, entry: impl FnOnce(&State) -> squeue::Entry) -> Request {
        let state = Rc::new(state);
        let slot = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut inflight = self.inflight.borrow_mut();
            inflight.push(None);
            inflight.len() - 1
        });
        let entry = entry(&state).user_data(slot as u64);
        self.inflight.borrow_mut()[slot] = Some(state.clone());
        self.count.set(self.count.get() + 1);
        let mut ring = self.ring.borrow_mut();
        // SAFETY: the memory that the entry points to is owned by `state`, which stays in
        // `inflight` until the completion; the file is registered with the ring.
        while unsafe { ring.submission().push(&entry) }.is_err() {
            if let Err(e) = ring.submit()
                && !matches!(e.raw_os_error(), Some(libc::EBUSY | libc::EAGAIN | libc::EINTR))
            {
                drop(ring);
                self.complete(slot, -e.raw_os_error().unwrap_or(libc::EIO));
                return Request(state);
            }
        }
        if !self.queued.replace(true) {
            self.wake.notify_one();
        }
        Request(state)
    }

    fn complete(&self, slot: usize, result: i32) {
        let state = self.inflight.borrow_mut().get_mut(slot).and_then(Option::take);
        if let Some(state) = state {
            self.free.borrow_mut().push(slot);
            self.count.set(self.count.get() - 1);
            state.result.set(Some(result));
            if let Some(w) = state.waker.borrow_mut().take() {
                w.wake();
            }
        }
    }

    fn submit(&self) {
        if self.queued.replace(false) {
            match self.ring.borrow_mut().submit() {
                Ok(_) => {}
                // Tried again at the next turn of the driver, when completions have made room.
                Err(_) => self.queued.set(true),
            }
        }
    }

    fn drain(&self) {
        loop {
            let next = self.ring.borrow_mut().completion().next();
            match next {
                Some(c) => self.complete(c.user_data() as usize, c.result()),
                // More requests than the completion queue has entries: the kernel keeps the others
                // and hands them over when it is entered. Nothing makes the descriptor readable
                // until then.
                None if self.overflown() => {
                    if self.ring.borrow_mut().submit().is_err() {
                        // Tried again at the next turn.
                        self.queued.set(true);
                        break;
                    }
                }
                None => break,
            }
        }
    }

    fn overflown(&self) -> bool {
        self.ring.borrow_mut().submission().cq_overflow()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The runtime ended with requests in the kernel: their buffers must outlive them.
        while self.count.get() > 0 {
            if let Err(e) = self.ring.borrow_mut().submit_and_wait(1)
                && e.raw_os_error() != Some(libc::EINTR)
            {
                // Leak rather than let the kernel write to freed memory.
                std::mem::forget(std::mem::take(&mut *self.inflight.borrow_mut()));
                return;
            }
            self.drain();
        }
    }
}

async fn drive(inner: Rc<Inner>, fd: AsyncFd<Fd>) {
    loop {
        inner.submit();
        inner.drain();
        if inner.closing.get() && inner.count.get() == 0 {
            return;
        }
        if inner.queued.get() {
            tokio::task::yield_now().await;
            continue;
        }
        tokio::select! {
            biased;
            () = inner.wake.notified() => {}
            ready = fd.readable() => match ready {
                Ok(mut guard) => {
                    // Cleared before the completions are taken: one that arrives later is a new
                    // event.
                    guard.clear_ready();
                }
                Err(_) => return,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_requests_than_the_completion_queue_has_entries() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 << 20).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let Ok(ring) = Uring::new(&file) else {
                eprintln!("skipped: no io_uring here");
                return;
            };
            let all: Vec<_> =
                (0..8192).map(|i| ring.read(i % 1024 * 4096, AlignedBuf::zeroed(4096))).collect();
            let done = async {
                for r in all {
                    r.await.1.unwrap();
                }
            };
            tokio::time::timeout(std::time::Duration::from_secs(60), done)
                .await
                .expect("every request completes");
        });
    }
}
