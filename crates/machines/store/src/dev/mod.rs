//! Block devices: a file or raw device through io_uring or a thread pool, or a simulated one.
//!
//! All offsets and lengths are multiples of [`BLOCK`]. Requests are started when the method is
//! called, not when the future is first polled; a request that was started runs to its end even if
//! the future is dropped, and keeps its buffers alive until then.

mod busy;
mod faults;
mod request;
mod sim;
mod threads;
mod uring;

pub use aligned::AlignedBuf;
pub use busy::{DeviceTime, SIZES, Served, Slowness};
pub use faults::Faults;
pub use request::Gather;
pub use sim::{Doomed, SimDisk, SimEvent};

use crate::types::BLOCK;
use busy::{Busy, Way};
use bytes::Bytes;
use faults::Dice;
use request::Outcome;
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt as _};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

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
    busy: Busy,
    dice: Dice,
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

/// Makes sure that no other process has the device open as a store. The kernel takes rings apart
/// after it has reported a process's death, and the files that its requests used stay locked until
/// then: a lock that is taken is asked for again for a while.
fn lock(file: &File, path: &Path) -> io::Result<()> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(std::fs::TryLockError::Error(e)) => return Err(e),
            Err(std::fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5))
            }
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    format!("{} is in use by another process", path.display()),
                ));
            }
        }
    }
}

/// Whether the kernel takes a block device for a rotational one; none for a file, and for one of
/// which it says nothing.
pub fn is_rotational(device: &Path) -> Option<bool> {
    rotational_in(Path::new("/sys/class/block"), device)
}

fn rotational_in(sys: &Path, device: &Path) -> Option<bool> {
    let device = device.canonicalize().ok()?;
    let entry = sys.join(device.file_name()?);
    // A partition has no queue of its own: it lies in the directory of its device.
    let queue =
        [entry.join("queue/rotational"), entry.canonicalize().ok()?.join("../queue/rotational")];
    let text = queue.iter().find_map(|path| std::fs::read_to_string(path).ok())?;
    Some(text.trim() == "1")
}

impl Device {
    /// Opens a file or block device. Must be called inside a `LocalSet` of the runtime that will
    /// use it.
    ///
    /// `create` makes a sparse file of that many bytes if there is none (an existing shorter one is
    /// extended). Direct I/O is used where the file system has it.
    ///
    /// # Errors
    /// What the system says; `Unsupported` when io_uring is demanded and absent; `WouldBlock` when
    /// another process has the device open as a store.
    pub fn open(path: &Path, engine: Engine, create: Option<u64>) -> io::Result<Device> {
        let open = |flags: i32| {
            let mut o = modes::options(modes::SECRET);
            o.read(true)
                .write(true)
                .create(create.is_some())
                .truncate(false)
                .custom_flags(flags)
                .open(path)
        };
        let (file, direct) = match open(libc::O_DIRECT) {
            Ok(f) => (f, true),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => (open(0)?, false),
            Err(e) => return Err(e),
        };
        lock(&file, path)?;
        let kind = file.metadata()?.file_type();
        let mut size =
            if kind.is_block_device() { block_device_size(&file)? } else { file.metadata()?.len() };
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
                    tracing::info!(
                        "io_uring is not available ({e}), using a thread pool for {}",
                        path.display()
                    );
                    Self::threads(file, direct)
                }
            },
        };
        Ok(Device(Rc::new(Inner { size, kind, busy: Busy::default(), dice: Dice::default() })))
    }

    fn threads(file: File, direct: bool) -> Kind {
        let file = std::sync::Arc::new(file);
        Kind::Threads { pool: threads::Pool::new(file.clone(), 4), file, direct }
    }

    /// A device on a simulated disk.
    pub fn sim(disk: SimDisk) -> Device {
        Device(Rc::new(Inner {
            size: disk.size(),
            kind: Kind::Sim(disk),
            busy: Busy::default(),
            dice: Dice::default(),
        }))
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
            return Io { way: Ways::Ready(Some(Err(e))), meter: None };
        }
        let meter = self.meter(Way::Read, len as u64);
        let way = match &self.0.kind {
            Kind::Uring { ring, .. } => {
                Ways::Uring(ring.read(off, AlignedBuf::recycled(len)), finish_read)
            }
            Kind::Threads { pool, .. } => {
                Ways::Threads(pool.read(off, AlignedBuf::recycled(len)), finish_read)
            }
            Kind::Sim(disk) => Ways::Sim(Box::pin(disk.read(off, len))),
        };
        Io { way, meter }
    }

    /// Starts to read data of an object. It is read as other things are, but a test can have it
    /// fail.
    pub fn read_data(&self, off: u64, len: usize) -> Io<Bytes> {
        match self.0.dice.read() {
            Some(e) => Io { way: Ways::Ready(Some(Err(e))), meter: None },
            None => self.read(off, len),
        }
    }

    /// Starts to write `data` at `off`. With `durable`, the write itself is on stable storage when
    /// it completes; earlier writes are not covered by that, they need [`Device::flush`].
    pub fn write(&self, off: u64, data: Gather, durable: bool) -> Io<()> {
        let len = data.iter().map(|b| b.len() as u64).sum::<u64>();
        if let Some(e) = self.bounds(off, len).err().or_else(|| self.0.dice.write()) {
            return Io { way: Ways::Ready(Some(Err(e))), meter: None };
        }
        let meter = self.meter(Way::Write, len);
        let way = match &self.0.kind {
            Kind::Uring { ring, direct, .. } => {
                Ways::Uring(ring.write(off, align(data, *direct), durable), finish_unit)
            }
            Kind::Threads { pool, direct, .. } => {
                Ways::Threads(pool.write(off, align(data, *direct), durable), finish_unit)
            }
            Kind::Sim(disk) => Ways::Sim(Box::pin(disk.write(off, data, durable))),
        };
        Io { way, meter }
    }

    /// Whether nothing was ever written to a range of a sparse file. A device that cannot tell has
    /// no holes.
    pub fn is_hole(&self, off: u64, len: u64) -> bool {
        let file = match &self.0.kind {
            Kind::Uring { file, .. } => file,
            Kind::Threads { file, .. } => file,
            Kind::Sim(disk) => return disk.is_hole(off, len),
        };
        use std::os::fd::AsRawFd;
        let Ok(at) = libc::off_t::try_from(off) else { return false };
        // SAFETY: the descriptor is open; all other I/O names its offsets, so that moving the
        // file's own does not matter.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at, libc::SEEK_DATA) };
        match u64::try_from(data) {
            Ok(data) => data >= off + len,
            Err(_) => io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO),
        }
    }

    /// Starts to make all completed writes durable.
    pub fn flush(&self) -> Io<()> {
        if let Some(e) = self.0.dice.write() {
            return Io { way: Ways::Ready(Some(Err(e))), meter: None };
        }
        let meter = self.meter(Way::Write, 0);
        let way = match &self.0.kind {
            Kind::Uring { ring, .. } => Ways::Uring(ring.flush(), finish_unit),
            Kind::Threads { pool, .. } => Ways::Threads(pool.flush(), finish_unit),
            Kind::Sim(disk) => Ways::Sim(Box::pin(disk.flush())),
        };
        Io { way, meter }
    }

    /// What it was busy with since it was opened.
    pub fn time(&self) -> DeviceTime {
        self.0.busy.time()
    }

    /// Bytes of all requests that were begun since it was opened, those under way too.
    pub(crate) fn asked(&self) -> u64 {
        self.0.busy.asked()
    }

    /// Makes the device slow, for tests. Reads while the thread waits ([`Device::read_now`]) are as
    /// fast as before.
    pub fn slow_down(&self, slow: Slowness) {
        self.0.busy.slow_down(slow);
    }

    /// Makes some requests fail, for tests.
    pub fn fail_some(&self, faults: Faults) {
        self.0.dice.set(faults);
    }

    fn meter(&self, way: Way, bytes: u64) -> Option<Meter> {
        self.0.busy.begin(bytes);
        Some(Meter { device: self.0.clone(), way, bytes, held: None })
    }

    /// The same as [`Device::read_data`], while the thread waits.
    pub fn read_data_now(&self, off: u64, len: usize) -> io::Result<Bytes> {
        match self.0.dice.read() {
            Some(e) => Err(e),
            None => self.read_now(off, len),
        }
    }

    /// Reads while the thread waits.
    pub fn read_now(&self, off: u64, len: usize) -> io::Result<Bytes> {
        self.bounds(off, len as u64)?;
        let _meter = self.meter(Way::Read, len as u64);
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
        if !off.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) || len == 0 || !inside {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no such device range: {off}+{len}"),
            ));
        }
        Ok(())
    }
}

/// Direct I/O wants aligned memory: a list with a slice that is not is copied into one that is.
fn align(data: Gather, direct: bool) -> Gather {
    let fits = |b: &Bytes| b.as_ptr().addr().is_multiple_of(512) && b.len().is_multiple_of(512);
    if data.len() <= 64 && (!direct || data.iter().all(fits)) {
        return data;
    }
    let mut out = AlignedBuf::recycled(data.iter().map(Bytes::len).sum());
    let mut at = 0;
    for b in &data {
        out[at..at + b.len()].copy_from_slice(b);
        at += b.len();
    }
    Gather::from_iter([out.freeze()])
}

fn block_device_size(file: &File) -> io::Result<u64> {
    use std::os::fd::AsRawFd;
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    let mut size = 0u64;
    // SAFETY: the ioctl writes one u64 to the address given, which is that of a live u64.
    let r = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &mut size) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(size) }
}

fn finish_read((buf, result): Outcome) -> io::Result<Bytes> {
    result?;
    Ok(buf.map(AlignedBuf::freeze).unwrap_or_default())
}

fn finish_unit((_, result): Outcome) -> io::Result<()> {
    result
}

/// Counts a request that is under way until it is dropped.
struct Meter {
    device: Rc<Inner>,
    way: Way,
    bytes: u64,
    /// It is through, and held back.
    held: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.device.busy.end(self.way, self.bytes);
    }
}

/// A request under way.
pub struct Io<T> {
    way: Ways<T>,
    meter: Option<Meter>,
}

enum Ways<T> {
    /// It has ended, or never begun.
    Ready(Option<io::Result<T>>),
    Uring(uring::Request, fn(Outcome) -> io::Result<T>),
    Threads(tokio::sync::oneshot::Receiver<Outcome>, fn(Outcome) -> io::Result<T>),
    Sim(Pin<Box<dyn Future<Output = io::Result<T>>>>),
}

impl<T: Unpin> Future for Io<T> {
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let me = self.get_mut();
        if let Some(held) = me.meter.as_mut().and_then(|m| m.held.as_mut()) {
            std::task::ready!(held.as_mut().poll(cx));
            me.meter = None;
        }
        let done = std::task::ready!(me.way.poll(cx));
        if let Some(m) = &mut me.meter
            && let Some(until) = m.device.busy.held_until(m.bytes)
        {
            let mut held = Box::pin(tokio::time::sleep_until(until.into()));
            if held.as_mut().poll(cx).is_pending() {
                m.held = Some(held);
                me.way = Ways::Ready(Some(done));
                return Poll::Pending;
            }
        }
        me.meter = None;
        Poll::Ready(done)
    }
}

impl<T: Unpin> Ways<T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        match self {
            Ways::Ready(r) => Poll::Ready(
                r.take().unwrap_or_else(|| Err(io::Error::other("polled after completion"))),
            ),
            Ways::Uring(request, finish) => Pin::new(request).poll(cx).map(*finish),
            Ways::Threads(rx, finish) => Pin::new(rx).poll(cx).map(|r| match r {
                Ok(outcome) => finish(outcome),
                Err(_) => Err(io::Error::other("the I/O thread is gone")),
            }),
            Ways::Sim(f) => f.as_mut().poll(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_rotates_is_read_from_the_kernel() {
        let dir = tempfile::tempdir().expect("a directory");
        let (sys, dev) = (dir.path().join("sys"), dir.path().join("dev"));
        for (device, rotational) in [("sda", "1\n"), ("nvme0n1", "0\n")] {
            std::fs::create_dir_all(sys.join(device).join("queue")).expect("made");
            std::fs::write(sys.join(device).join("queue/rotational"), rotational).expect("written");
        }
        // As the kernel has it: links into the tree of devices, in which a partition lies in its
        // device.
        std::fs::create_dir_all(sys.join("sda/sda1")).expect("made");
        std::os::unix::fs::symlink(sys.join("sda/sda1"), sys.join("sda1")).expect("linked");
        std::fs::create_dir_all(&dev).expect("made");
        for name in ["sda", "sda1", "nvme0n1", "file"] {
            std::fs::write(dev.join(name), "").expect("written");
        }
        std::os::unix::fs::symlink(dev.join("sda1"), dev.join("by-name")).expect("linked");
        let of = |name: &str| rotational_in(&sys, &dev.join(name));
        assert_eq!(
            [of("sda"), of("sda1"), of("by-name"), of("nvme0n1")],
            [Some(true), Some(true), Some(true), Some(false)]
        );
        assert_eq!([of("file"), of("nothing")], [None, None]);
    }

    /// Virtual time does not reach the clock that is read: what is held back takes as long as it
    /// says.
    #[test]
    fn time_is_counted_by_kind_and_size_and_a_slow_device_is_slow() {
        let rt =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        rt.block_on(async {
            let dev = Device::sim(SimDisk::new(1 << 20));
            let block =
                |n: usize| smallvec::smallvec![AlignedBuf::zeroed(n * BLOCK as usize).freeze()];
            dev.write(0, block(1), false).await.expect("written");
            dev.flush().await.expect("flushed");
            dev.read(0, 4096).await.expect("read");
            dev.read_now(0, 8192).expect("read");
            assert!(dev.write(1, block(1), false).await.is_err());
            let t = dev.time();
            let count = |of: &[Served; SIZES]| {
                of.iter().map(|s| (s.count, s.bytes)).filter(|c| c.0 > 0).collect::<Vec<_>>()
            };
            assert_eq!(
                (count(&t.reads), count(&t.writes)),
                (vec![(1, 4096), (1, 8192)], vec![(1, 0), (1, 4096)])
            );
            let delay = Duration::from_millis(20);
            dev.slow_down(Slowness { delay, bandwidth: 0 });
            let begun = Instant::now();
            // Both are under way at once, and held back one after the other.
            let (a, b) = (dev.write(0, block(1), true), dev.write(4096, block(16), true));
            let (a, b) = tokio::join!(a, b);
            assert!(a.is_ok() && b.is_ok() && begun.elapsed() >= 2 * delay);
            // One that is dropped is not under way any more.
            drop(dev.read(0, 4096));
            let after = dev.time();
            let busy = Duration::from_nanos(after.busy - t.busy);
            assert!(busy >= 2 * delay && busy <= begun.elapsed(), "{busy:?}");
            // A late timer can end both at once; the time is one of theirs.
            let writes = [5, 9].map(|s: usize| {
                (
                    after.writes[s].count - t.writes[s].count,
                    after.writes[s].nanos - t.writes[s].nanos,
                )
            });
            assert!(
                writes[0].0 == 1
                    && writes[1].0 == 1
                    && writes[0].1 + writes[1].1 >= 2 * delay.as_nanos() as u64,
                "{after:?}"
            );
            // Bytes take their time, a flush has none.
            dev.slow_down(Slowness { delay: Duration::ZERO, bandwidth: 1 << 20 });
            let begun = Instant::now();
            dev.write(0, block(16), false).await.expect("written");
            assert!(begun.elapsed() >= Duration::from_micros(62_500));
            dev.slow_down(Slowness::default());
            dev.flush().await.expect("flushed");
            let idle = dev.time();
            tokio::time::sleep(delay).await;
            assert_eq!(dev.time(), idle, "nothing is under way");
        });
    }
}
