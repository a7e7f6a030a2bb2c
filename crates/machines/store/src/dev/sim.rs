//! A simulated disk that records what was asked of it and can tell what a crash would leave.

use super::request::Gather;
use crate::types::BLOCK;
use bytes::{Bytes, BytesMut};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// Something that happened to the disk, in order.
#[derive(Clone, Debug)]
pub enum SimEvent {
    /// A write was started; it may reach the medium, in any part, from now on.
    WriteStart {
        /// Number of the write.
        id: u64,
        /// Byte offset.
        off: u64,
        /// What is written.
        data: Bytes,
    },
    /// The write completed; a flush started after this makes it durable. With `durable` it is
    /// already.
    WriteDone {
        /// Number of the write.
        id: u64,
        /// The write was forced to the medium.
        durable: bool,
    },
    /// A flush was started.
    FlushStart {
        /// Number of the flush.
        id: u64,
    },
    /// The flush completed.
    FlushDone {
        /// Number of the flush.
        id: u64,
    },
}

/// A request that is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doomed {
    /// A write: nothing of it reaches the medium.
    Write,
    /// A flush: it makes nothing durable.
    Flush,
}

type Page = Rc<[u8; BLOCK as usize]>;

struct State {
    pages: Vec<Option<Page>>,
    events: Vec<SimEvent>,
    record: bool,
    next_id: u64,
    /// 0: requests complete at once. Otherwise the state of a generator that decides how often a
    /// request yields before it completes.
    jitter: u64,
    /// Requests fail from now on.
    broken: bool,
    /// One request of this kind fails, behind so many that do not.
    doomed: Option<(Doomed, usize)>,
}

/// A disk in memory. Clones are handles to the same one.
#[derive(Clone)]
pub struct SimDisk(Rc<RefCell<State>>);

impl SimDisk {
    /// A disk of zeros.
    pub fn new(size: u64) -> SimDisk {
        SimDisk::from_pages(vec![None; (size / BLOCK) as usize])
    }

    fn from_pages(pages: Vec<Option<Page>>) -> SimDisk {
        let state = State {
            pages,
            events: Vec::new(),
            record: false,
            next_id: 0,
            jitter: 0,
            broken: false,
            doomed: None,
        };
        SimDisk(Rc::new(RefCell::new(state)))
    }

    /// A disk of its own with the same content; pages are shared until written.
    pub fn fork(&self) -> SimDisk {
        SimDisk::from_pages(self.0.borrow().pages.clone())
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.0.borrow().pages.len() as u64 * BLOCK
    }

    /// Whether no page of the range was ever written.
    pub fn is_hole(&self, off: u64, len: u64) -> bool {
        let s = self.0.borrow();
        let pages = (off / BLOCK) as usize..((off + len) / BLOCK) as usize;
        s.pages.get(pages).is_some_and(|p| p.iter().all(Option::is_none))
    }

    /// Starts to record events; returns the content at this moment.
    pub fn record(&self) -> SimDisk {
        let base = self.fork();
        let mut s = self.0.borrow_mut();
        s.events.clear();
        s.record = true;
        base
    }

    /// Lets requests complete after a few yields, decided by `seed`; 0 turns that off.
    pub fn set_jitter(&self, seed: u64) {
        self.0.borrow_mut().jitter = seed;
    }

    /// Makes all further requests fail (or work again).
    pub fn set_broken(&self, broken: bool) {
        self.0.borrow_mut().broken = broken;
    }

    /// Makes one request fail, at its end: of this kind, behind so many that do not.
    pub fn fail_one(&self, kind: Doomed, behind: usize) {
        self.0.borrow_mut().doomed = Some((kind, behind));
    }

    /// Whether the request that was to fail has begun.
    pub fn has_failed_one(&self) -> bool {
        self.0.borrow().doomed.is_none()
    }

    /// Number of events recorded so far.
    pub fn event_count(&self) -> usize {
        self.0.borrow().events.len()
    }

    /// The events recorded so far.
    pub fn events(&self) -> Vec<SimEvent> {
        self.0.borrow().events.clone()
    }

    /// Changes bytes on the medium behind the back of the disk's user.
    pub fn poke(&self, off: u64, data: &[u8]) {
        let mut s = self.0.borrow_mut();
        let mut done = 0;
        while done < data.len() {
            let at = off as usize + done;
            let (page, from) = (at / BLOCK as usize, at % BLOCK as usize);
            let n = (BLOCK as usize - from).min(data.len() - done);
            let page = s.pages[page].get_or_insert_with(|| Rc::new([0; BLOCK as usize]));
            Rc::make_mut(page)[from..from + n].copy_from_slice(&data[done..done + n]);
            done += n;
        }
    }

    /// The bytes on the medium.
    pub fn peek(&self, off: u64, len: usize) -> Bytes {
        let s = self.0.borrow();
        let mut out = BytesMut::zeroed(len);
        let mut done = 0;
        while done < len {
            let at = off as usize + done;
            let (page, from) = (at / BLOCK as usize, at % BLOCK as usize);
            let n = (BLOCK as usize - from).min(len - done);
            if let Some(p) = &s.pages[page] {
                out[done..done + n].copy_from_slice(&p[from..from + n]);
            }
            done += n;
        }
        out.freeze()
    }

    /// Number of the request, how often it yields, and whether it fails then.
    fn begin(
        &self,
        kind: Doomed,
        event: impl FnOnce(u64) -> SimEvent,
    ) -> io::Result<(u64, u64, bool)> {
        let mut s = self.0.borrow_mut();
        if s.broken {
            return Err(io::Error::other("the simulated disk is broken"));
        }
        s.next_id += 1;
        let id = s.next_id;
        if s.record {
            s.events.push(event(id));
        }
        let mut yields = 0;
        if s.jitter != 0 {
            // xorshift64
            s.jitter ^= s.jitter << 13;
            s.jitter ^= s.jitter >> 7;
            s.jitter ^= s.jitter << 17;
            yields = s.jitter % 7;
        }
        let fails = s.doomed == Some((kind, 0));
        s.doomed = match s.doomed {
            Some((doomed, behind)) if doomed == kind => {
                (!fails).then(|| (doomed, behind.saturating_sub(1)))
            }
            doomed => doomed,
        };
        Ok((id, yields, fails))
    }

    fn end(&self, event: SimEvent) {
        let mut s = self.0.borrow_mut();
        if s.record {
            s.events.push(event);
        }
    }

    pub(super) fn read_now(&self, off: u64, len: usize) -> io::Result<Bytes> {
        if self.0.borrow().broken {
            return Err(io::Error::other("the simulated disk is broken"));
        }
        Ok(self.peek(off, len))
    }

    pub(super) fn read(
        &self,
        off: u64,
        len: usize,
    ) -> impl Future<Output = io::Result<Bytes>> + use<> {
        let disk = self.clone();
        async move {
            let (before, yields) = {
                let mut s = disk.0.borrow_mut();
                let j = s.jitter;
                s.jitter = j.rotate_left(9).wrapping_mul(5);
                (j != 0, j % 3)
            };
            if before {
                for _ in 0..yields {
                    tokio::task::yield_now().await;
                }
            }
            disk.read_now(off, len)
        }
    }

    pub(super) fn write(
        &self,
        off: u64,
        data: Gather,
        durable: bool,
    ) -> impl Future<Output = io::Result<()>> + use<> {
        let all = match data.as_slice() {
            [one] => one.clone(),
            many => Bytes::from(many.concat()),
        };
        let begun =
            self.begin(Doomed::Write, |id| SimEvent::WriteStart { id, off, data: all.clone() });
        let disk = self.clone();
        async move {
            let (id, yields, fails) = begun?;
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            if fails {
                return Err(io::Error::other("a request that fails for a test"));
            }
            disk.poke(off, &all);
            disk.end(SimEvent::WriteDone { id, durable });
            Ok(())
        }
    }

    pub(super) fn flush(&self) -> impl Future<Output = io::Result<()>> + use<> {
        let begun = self.begin(Doomed::Flush, |id| SimEvent::FlushStart { id });
        let disk = self.clone();
        async move {
            let (id, yields, fails) = begun?;
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            if fails {
                return Err(io::Error::other("a request that fails for a test"));
            }
            disk.end(SimEvent::FlushDone { id });
            Ok(())
        }
    }
}
