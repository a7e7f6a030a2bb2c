//! Block devices: a file or raw device through io_uring or a thread pool, or a simulated one.
//!
//! All offsets and lengths are multiples of [`BLOCK`]. Requests are started when the method is called, not
//! when the future is first polled; a request that was started runs to its end even if the future is
//! dropped, and keeps its buffers alive until then.


mod sim;
mod threads;
mod uring;

pub use aligned::AlignedBuf;
pub use sim::{SimDisk, SimEvent};

use crate::types::BLOCK;
use bytes::Bytes;
use smallvec::SmallVec;
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// What a write consists of: slices that follow each other on the device.
pub type Gather = SmallVec<[Bytes; 2]>;

/// How requests reach a file or block device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// io_uring where the kernel offers it, the thread pool where not.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Blocking calls on a few threads.
    Threads,
}

/// A device. Clones are handles to the same one.
#[derive(Clone)]
pub struct Device(Rc<Inner>);

struct Inner {
    size: u64,
    kind: Kind,
}

enum Kind {
    Uring { ring: uring::Uring, file: File, direct: bool },
    Threads { pool: threads::Pool, file: std::sync::Arc<File>, direct: bool },
    Sim(SimDisk),
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Said explicitly, because a ring that is being torn down keeps the file open for a while.
        let file: &File = match &self.kind {
            Kind::Uring { file, .. } => file,
            Kind::Threads { file, .. } => file,
            Kind::Sim(_) => return,
        };
        if let Err(e) = file.unlock() {
            tracing::warn!("unlocking the device: {e}");
        }
    }
}

/// How long the lock of a process that has died may linger.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Makes sure that no other process has the device open as a store. The kernel takes rings apart after it
/// has reported a process's death, and the files that its requests used stay locked until then: a lock that
/// is taken is asked for again for a while.
fn lock(file: &File, path: &Path) -> io::Result<()> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(std::fs::TryLockError::Error(e)) => return Err(e),
            Err(std::fs::TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, format!("{} is in use by another process", path.display())));
            }
        }
    }
}

impl Device {
    /// Opens a file or block device. Must be called inside a `LocalSet` of the runtime that will use it.
    ///
    /// `create` makes a sparse file of that many bytes if there is none (an existing shorter one is
    /// extended). Direct I/O is used where the file system has it.
    ///
    /// # Errors
    /// What the system says; `Unsupported` when io_uring is demanded and absent; `WouldBlock` when another
    /// process has the device open as a store.
    pub fn open(path: &Path, engine: Engine, create: Option<u64>) -> io::Result<Device> {
        let open = |flags: i32| {
            let mut o = File::options();
            o.read(true).write(true).create(create.is_some()).truncate(false).custom_flags(flags).open(path)
        };
        let (file, direct) = match open(libc::O_DIRECT) {
            Ok(f) => (f, true),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => (open(0)?, false),
            Err(e) => return Err(e),
        };
        lock(&file, path)?;
        let kind = file.metadata()?.file_type();
        let mut size = if kind.is_block_device() { block_device_size(&file)? } else { file.metadata()?.len() };
        if let Some(want) = create
            && !kind.is_block_device()
            && size < want
        {
            size = want.next_multiple_of(BLOCK);
            file.set_len(size)?;
            file.sync_all()?;
        }
        size -= size % BLOCK;
        let kind = match engine {
            Engine::Threads => Self::threads(file, direct),
            Engine::Uring => Kind::Uring { ring: uring::Uring::new(&file)?, file, direct },
            Engine::Auto => match uring::Uring::new(&file) {
                Ok(ring) => Kind::Uring { ring, file, direct },
                Err(e) => {
                    tracing::info!("io_uring is not available ({e}), using a thread pool for {}", path.display());
                    Self::threads(file, direct)
                }
            },
        };
        Ok(Device(Rc::new(Inner { size, kind })))
    }

    fn threads(file: File, direct: bool) -> Kind {
        let file = std::sync::Arc::new(file);
        Kind::Threads { pool: threads::Pool::new(file.clone(), 4), file, direct }
    }

    /// A device on a simulated disk.
    pub fn sim(disk: SimDisk) -> Device {
        Device(Rc::new(Inner { size: disk.size(), kind: Kind::Sim(disk) }))
    }

    /// Size in bytes, a multiple of [`BLOCK`].
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// The name of the engine in use: `uring`, `threads` or `sim`.
    pub fn engine(&self) -> &'static str {
        match &self.0.kind {
            Kind::Uring { .. } => "uring",
            Kind::Threads { .. } => "threads",
            Kind::Sim(_) => "sim",
        }
    }

    /// Starts to read `len` bytes at `off`.
    pub fn read(&self, off: u64, len: usize) -> Io<Bytes> {
        if let Err(e) = self.bounds(off, len as u64) {
            return Io::Ready(Some(Err(e)));
        }
        match &self.0.kind {
            Kind::Uring { ring, .. } => Io::Uring(ring.read(off, AlignedBuf::recycled(len)), finish_read),
            Kind::Threads { pool, .. } => Io::Threads(pool.read(off, AlignedBuf::recycled(len)), finish_read),
            Kind::Sim(disk) => Io::Sim(Box::pin(disk.read(off, len))),
        }
    }

    /// Starts to write `data` at `off`. With `durable`, the write itself is on stable storage when it
    /// completes; earlier writes are not covered by that, they need [`Device::flush`].
    pub fn write(&self, off: u64, data: Gather, durable: bool) -> Io<()> {
        let len = data.iter().map(|b| b.len() as u64).sum::<u64>();
        if let Err(e) = self.bounds(off, len) {
            return Io::Ready(Some(Err(e)));
        }
        match &self.0.kind {
            Kind::Uring { ring, direct, .. } => Io::Uring(ring.write(off, align(data, *direct), durable), finish_unit),
            Kind::Threads { pool, direct, .. } => {
                Io::Threads(pool.write(off, align(data, *direct), durable), finish_unit)
            }
            Kind::Sim(disk) => Io::Sim(Box::pin(disk.write(off, data, durable))),
        }
    }

    /// Whether nothing was ever written to a range of a sparse file. A device that cannot tell has no holes.
    pub fn is_hole(&self, off: u64, len: u64) -> bool {
        let file = match &self.0.kind {
            Kind::Uring { file, .. } => file,
            Kind::Threads { file, .. } => file,
            Kind::Sim(disk) => return disk.is_hole(off, len),
        };
        use std::os::fd::AsRawFd;
        let Ok(at) = libc::off_t::try_from(off) else { return false };
        // SAFETY: the descriptor is open; all other I/O names its offsets, so that moving the file's own does
        // not matter.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at, libc::SEEK_DATA) };
        match u64::try_from(data) {
            Ok(data) => data >= off + len,
            Err(_) => io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO),
        }
    }

    /// Starts to make all completed writes durable.
    pub fn flush(&self) -> Io<()> {
        match &self.0.kind {
            Kind::Uring { ring, .. } => Io::Uring(ring.flush(), finish_unit),
            Kind::Threads { pool, .. } => Io::Threads(pool.flush(), finish_unit),
            Kind::Sim(disk) => Io::Sim(Box::pin(disk.flush())),
        }
    }

    /// Reads while the thread waits.
    pub fn read_now(&self, off: u64, len: usize) -> io::Result<Bytes> {
        self.bounds(off, len as u64)?;
        let file = match &self.0.kind {
            Kind::Uring { file, .. } => file,
            Kind::Threads { file, .. } => file,
            Kind::Sim(disk) => return disk.read_now(off, len),
        };
        let mut buf = AlignedBuf::recycled(len);
        file.read_exact_at(&mut buf, off)?;
        Ok(buf.freeze())
    }

    fn bounds(&self, off: u64, len: u64) -> io::Result<()> {
        let inside = off.checked_add(len).is_some_and(|end| end <= self.0.size);
        if off % BLOCK != 0 || len % BLOCK != 0 || len == 0 || !inside {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no such device range: {off}+{len}")));
        }
        Ok(())
    }
}

/// Direct I/O wants aligned memory: a list with a slice that is not is copied into one that is.
fn align(data: Gather, direct: bool) -> Gather {
    let fits = |b: &Bytes| b.as_ptr().addr() % 512 == 0 && b.len() % 512 == 0;
    if data.len() <= 64 && (!direct || data.iter().all(fits)) {
        return data;
    }
    let mut out = AlignedBuf::recycled(data.iter().map(Bytes::len).sum());
    let mut at = 0;
    for b in &data {
        out[at..at + b.len()].copy_from_slice(b);
        at += b.len();
    }
    SmallVec::from_iter([out.freeze()])
}

fn block_device_size(file: &File) -> io::Result<u64> {
    use std::os::fd::AsRawFd;
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    let mut size = 0u64;
    // SAFETY: the ioctl writes one u64 to the address given, which is that of a live u64.
    let r = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &mut size) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(size) }
}

/// What a request gives back: its buffer (reads) and the outcome.
pub(crate) type Outcome = (Option<AlignedBuf>, io::Result<()>);

fn finish_read((buf, result): Outcome) -> io::Result<Bytes> {
    result?;
    Ok(buf.map(AlignedBuf::freeze).unwrap_or_default())
}

fn finish_unit((_, result): Outcome) -> io::Result<()> {
    result
}

/// A request under way.
pub enum Io<T> {
    #[doc(hidden)]
    Ready(Option<io::Result<T>>),
    #[doc(hidden)]
    Uring(uring::Request, fn(Outcome) -> io::Result<T>),
    #[doc(hidden)]
    Threads(tokio::sync::oneshot::Receiver<Outcome>, fn(Outcome) -> io::Result<T>),
    #[doc(hidden)]
    Sim(Pin<Box<dyn Future<Output = io::Result<T>>>>),
}

impl<T: Unpin> Future for Io<T> {
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Io::Ready(r) => {
                Poll::Ready(r.take().unwrap_or_else(|| Err(io::Error::other("polled after completion"))))
            }
            Io::Uring(request, finish) => Pin::new(request).poll(cx).map(*finish),
            Io::Threads(rx, finish) => Pin::new(rx).poll(cx).map(|r| match r {
                Ok(outcome) => finish(outcome),
                Err(_) => Err(io::Error::other("the I/O thread is gone")),
            }),
            Io::Sim(f) => f.as_mut().poll(cx),
        }
    }
}
