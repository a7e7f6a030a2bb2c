//! The file of a member, on a disk that forgets what was not synced.

use super::exec::{self, Process};
use super::rng::{Rng, mix};
use redb::StorageBackend;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A write is torn at these borders only.
const SECTOR: usize = 512;

/// A disk that does not do what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Log entries are not synced, by three syncs in four.
    Appends,
    /// Everything else is not: votes, above all.
    Votes,
}

#[derive(Default)]
struct Content {
    /// As the process reads it.
    image: Vec<u8>,
    /// As it would be after a crash at once, if nothing unsynced was kept.
    durable: Vec<u8>,
    /// What of the image is not synced: lengths by offset.
    dirty: BTreeMap<usize, usize>,
    /// The process that may use it.
    process: Process,
    /// The process dies at that sync from now.
    dies_in: Option<u64>,
    syncs: u64,
    lie: Option<Lie>,
}

/// A file that loses in a crash what was not synced.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<Content>>);

thread_local! {
    static FLUSHING: Cell<bool> = const { Cell::new(false) };
    static SLOW: RefCell<BTreeMap<Process, (Duration, Duration)>> = const { RefCell::new(BTreeMap::new()) };
}

/// From now on flushes of a process take so long.
pub fn slow(process: Process, from: Duration, to: Duration) {
    SLOW.with(|s| s.borrow_mut().insert(process, (from, to)));
}

/// No process has a slow disk.
pub fn all_fast() {
    SLOW.with(|s| s.borrow_mut().clear());
}

/// How long the next flush of a process takes.
pub fn flush_time(process: Process) -> Duration {
    let usual = (Duration::from_micros(100), Duration::from_millis(4));
    let (from, to) = SLOW.with(|s| s.borrow().get(&process).copied()).unwrap_or(usual);
    let exec = exec::here().expect("a simulation runs");
    let nanos = exec.rng.borrow_mut().range(from.as_nanos() as u64, to.as_nanos() as u64);
    Duration::from_nanos(nanos)
}

/// Calls this as a flush of the log.
pub fn flushing<T>(f: impl FnOnce() -> T) -> T {
    FLUSHING.with(|x| x.set(true));
    let out = f();
    FLUSHING.with(|x| x.set(false));
    out
}

impl Disk {
    /// From now on it may not do what it says.
    pub fn lie(&self, lie: Option<Lie>) {
        self.0.lock().unwrap().lie = lie;
    }

    /// Gives the file to a process.
    pub fn attach(&self, process: Process) -> Backend {
        let mut c = self.0.lock().unwrap();
        (c.process, c.dies_in) = (process, None);
        Backend { disk: self.clone(), process }
    }

    /// The process dies at one of its next syncs, before or in the middle of it.
    pub fn die_in(&self, syncs: u64) {
        self.0.lock().unwrap().dies_in = Some(syncs);
    }

    /// It does not.
    pub fn lives(&self) {
        self.0.lock().unwrap().dies_in = None;
    }

    /// The process is dead: what it did not sync is kept in parts, or not. Whether something was
    /// lost.
    pub fn crash(&self, rng: &mut Rng) -> bool {
        let mut c = self.0.lock().unwrap();
        c.process = exec::WORLD;
        let c = &mut *c;
        let dirty = std::mem::take(&mut c.dirty);
        let keeps = match c.lie {
            // The disk goes back to an earlier sync.
            Some(_) => 0,
            None => rng.pick(&[0, 0, 100, 500, 900, 1000]).unwrap_or(0),
        };
        if c.image.len() != c.durable.len() && rng.permille(keeps) {
            c.durable.resize(c.image.len(), 0);
        }
        let mut lost = false;
        for (at, len) in dirty {
            let mut from = at;
            while from < at + len {
                let to = (from / SECTOR * SECTOR + SECTOR).min(at + len);
                match rng.permille(keeps) && to <= c.durable.len() && to <= c.image.len() {
                    true => c.durable[from..to].copy_from_slice(&c.image[from..to]),
                    false => lost = true,
                }
                from = to;
            }
        }
        c.image = c.durable.clone();
        lost
    }
}

impl Content {
    /// Whether the disk only says that it synced.
    fn lies(&self) -> bool {
        match self.lie {
            None => false,
            Some(Lie::Appends) => FLUSHING.with(Cell::get) && !self.syncs.is_multiple_of(4),
            Some(Lie::Votes) => !FLUSHING.with(Cell::get),
        }
    }
}

/// The file as redb uses it.
#[derive(Clone)]
pub struct Backend {
    disk: Disk,
    process: Process,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the file of process {}", self.process)
    }
}

impl Backend {
    fn with<T>(&self, f: impl FnOnce(&mut Content) -> io::Result<T>) -> io::Result<T> {
        let mut c = self.disk.0.lock().unwrap();
        match c.process == self.process {
            true => f(&mut c),
            false => Err(io::Error::other("the process is dead")),
        }
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.with(|c| Ok(c.image.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|c| {
            let from = offset as usize;
            let bytes = c.image.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|c| {
            let len = len as usize;
            c.image.resize(len, 0);
            c.dirty = std::mem::take(&mut c.dirty)
                .into_iter()
                .filter(|(at, _)| *at < len)
                .map(|(at, n)| (at, n.min(len - at)))
                .collect();
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|c| {
            c.syncs += 1;
            match &mut c.dies_in {
                Some(0) => {
                    c.process = exec::WORLD;
                    if let Some(e) = exec::here() {
                        e.die(self.process);
                    }
                    return Err(io::Error::other("the process dies"));
                }
                Some(n) => *n -= 1,
                None => {}
            }
            if c.lies() {
                return Ok(());
            }
            c.durable.resize(c.image.len(), 0);
            let mut hash = c.image.len() as u64;
            for (at, len) in std::mem::take(&mut c.dirty) {
                c.durable[at..at + len].copy_from_slice(&c.image[at..at + len]);
                for word in c.image[at..at + len].chunks(8) {
                    let mut w = [0; 8];
                    w[..word.len()].copy_from_slice(word);
                    hash = mix(hash ^ u64::from_le_bytes(w));
                }
            }
            if let Some(e) = exec::here() {
                e.note(hash);
            }
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|c| {
            let at = offset as usize;
            c.image
                .get_mut(at..at + data.len())
                .ok_or(io::ErrorKind::UnexpectedEof)?
                .copy_from_slice(data);
            let len = c.dirty.entry(at).or_default();
            *len = data.len().max(*len);
            Ok(())
        })
    }
}
