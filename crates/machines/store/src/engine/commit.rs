//! Group commit: one write to the log for everything that was queued meanwhile.

use super::Disk;
use super::state::{Batch, State};
use crate::dev::{Device, Io};
use crate::error::StoreError;
use crate::log;
use crate::superblock::{LOG_START, LogPos};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Another batch begins while others are under way if these have fewer records, each at least one,
/// ...
const RECORDS: u32 = log::AT_ONCE as u32;
/// ... and at most so many bytes. So where the log ends after a crash is near all that was under
/// way ([`log::LogReader::beyond`]).
const BYTES: u64 = log::BYTES_AT_ONCE;

/// And only while a batch that begins finds less than this, itself included, on the average of the
/// last [`WEIGHT`] or so.
const LIGHT: u32 = 2;
const WEIGHT: u32 = 16;

/// Writes batches until the store goes.
///
/// A batch that is slow on the device would hold up all that came behind it, which is most of the
/// highest percentiles of a client that asks for little. So a few small ones are under way at the
/// same time. With more to do than that, records that wait share a batch instead: that is less work
/// for each. (Without [`LIGHT`] small batches made each other small, and a client that writes as
/// fast as it can had 3 % less.)
pub(super) async fn run(disk: &Disk) {
    if let Err(e) = disk.commit().await {
        disk.fail(e);
    }
}

/// Batches under way.
#[derive(Default)]
struct Writes {
    /// In their order, which is that of the log.
    writes: VecDeque<Write>,
    /// Records under way when a batch began, with its own: a moving average, times [`WEIGHT`].
    load: u32,
}

impl Writes {
    fn records(&self) -> u32 {
        self.writes.iter().map(|w| w.batch.records).sum()
    }

    /// Whether another one may be written before these are durable.
    fn have_room(&self) -> bool {
        // Only the last batch of the log may refer to data that is not there.
        self.writes.is_empty()
            || self.load < LIGHT * WEIGHT
                && self.records() < RECORDS
                && self.writes.iter().all(|w| w.alone)
                && self.writes.iter().map(|w| w.bytes).sum::<u64>() <= BYTES
    }

    fn push(&mut self, write: Write) {
        let found = self.records() + write.batch.records;
        self.load = self.load - self.load / WEIGHT + found.min(LIGHT * WEIGHT);
        self.writes.push_back(write);
    }

    /// Ready when the first is durable. All go on, so that the device's time is theirs and not that
    /// of the first.
    fn poll(&mut self, dev: &Device, cx: &mut Context<'_>) -> Poll<Result<(), StoreError>> {
        let mut polled = self.writes.iter_mut().map(|w| w.poll(dev, cx));
        let first = polled.next().unwrap_or(Poll::Pending);
        match polled.find(|other| matches!(other, Poll::Ready(Err(_)))) {
            Some(failed) => failed,
            None => first,
        }
    }
}

/// A batch under way.
struct Write {
    batch: Batch,
    /// The position at which the log goes on behind it.
    after: LogPos,
    /// Its bytes in the ring.
    bytes: u64,
    /// It has no data beside the log, and is durable when it is written.
    alone: bool,
    log: Option<Io<()>>,
    flush: Option<Io<()>>,
}

impl Write {
    /// Drives it; ready when it is durable, then and later.
    fn poll(&mut self, dev: &Device, cx: &mut Context<'_>) -> Poll<Result<(), StoreError>> {
        while let Some(io) = self.batch.ios.last_mut() {
            ready!(Pin::new(io).poll(cx))?;
            self.batch.ios.pop();
        }
        if let Some(log) = &mut self.log {
            ready!(Pin::new(log).poll(cx))?;
            self.log = None;
            self.flush = (!self.alone).then(|| dev.flush());
        }
        if let Some(flush) = &mut self.flush {
            ready!(Pin::new(flush).poll(cx))?;
            self.flush = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl State {
    /// The oldest batch; no record is added to it any more.
    fn next_batch(&mut self) -> Option<Batch> {
        let batch = self.queue.pop_front()?;
        self.queued -= batch.buf.len() as u64;
        Some(batch)
    }

    /// Gives blocks back for use. While a checkpoint is under way they wait for its end: the
    /// checkpoint must not put a tree node where an object of its own point in time still has a
    /// block, nor bring a deferred write to a block that was given away.
    fn release(&mut self, runs: &[crate::alloc::Run]) {
        if self.frozen.is_some() {
            self.late_free.extend_from_slice(runs);
            return;
        }
        for run in runs {
            let wrong = self.alloc.release(*run);
            debug_assert_eq!(wrong, 0, "a block is freed twice");
        }
    }

    /// The checkpoint has chosen all its blocks.
    pub(super) fn release_late(&mut self) {
        let late = std::mem::take(&mut self.late_free);
        debug_assert!(self.frozen.is_none());
        self.release(&late);
    }
}

impl Disk {
    /// Waits until no zeros are on their way to where a batch goes.
    async fn wait_prepared(&self, place: std::ops::Range<u64>) -> Result<(), StoreError> {
        loop {
            if !self.state.borrow().prepared.blocks(&place) {
                return Ok(());
            }
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            if self.state.borrow().prepared.blocks(&place) {
                progress.await;
            }
            self.check_failed()?;
        }
    }

    async fn commit(&self) -> Result<(), StoreError> {
        let mut under_way = Writes::default();
        loop {
            while self.may_begin(&under_way) {
                let next = self.state.borrow_mut().next_batch();
                match next {
                    Some(batch) => under_way.push(self.begin(batch).await?),
                    None => break,
                }
            }
            if under_way.writes.is_empty() {
                if self.closing.get() {
                    return Ok(());
                }
                self.work.notified().await;
                continue;
            }
            let more = self.may_begin(&under_way);
            tokio::select! {
                biased;
                done = std::future::poll_fn(|cx| under_way.poll(&self.dev, cx)) => {
                    done?;
                    if let Some(write) = under_way.writes.pop_front() {
                        self.durable(write);
                    }
                }
                () = self.work.notified(), if more => {}
            }
        }
    }

    fn may_begin(&self, under_way: &Writes) -> bool {
        // Zeros on their way to where it goes would hold up those under way, too.
        under_way.have_room()
            && (under_way.writes.is_empty() || !self.state.borrow().prepared.is_under_way())
    }

    async fn begin(&self, mut batch: Batch) -> Result<Write, StoreError> {
        self.check_failed()?;
        let (ring, store_id) = {
            let sb = self.sb.borrow();
            (sb.log_len, sb.store_id)
        };
        let (at, bytes, after) = {
            let mut st = self.state.borrow_mut();
            let len = (batch.buf.len() as u64).next_multiple_of(crate::types::BLOCK);
            let at = log::place(st.head.at, len, ring);
            let pos = LogPos { at, ..st.head };
            debug_assert!(
                at + len - st.tail.at <= ring,
                "admission keeps the log from running over its tail"
            );
            let buf = std::mem::replace(&mut batch.buf, log::LogBuf::placeholder());
            let (bytes, crc) = buf.seal(store_id, pos);
            let after = LogPos { at: at + len, seq: pos.seq + 1, prev_crc: crc };
            // Taken before the write, so that nothing else counts on the space.
            st.head = after;
            if st.prepared.wants(after.at) {
                self.prepare.notify_one();
            }
            (at, bytes, after)
        };
        self.wait_prepared(at..after.at).await?;
        // Data that the records refer to has to be there, too, but not before: if the power goes in
        // between, the checksums in the records tell at the next start.
        let alone = batch.ios.is_empty();
        let log = self.dev.write(LOG_START + at % ring, smallvec::smallvec![bytes], alone);
        Ok(Write { batch, after, bytes: after.at - at, alone, log: Some(log), flush: None })
    }

    fn durable(&self, Write { batch, after, .. }: Write) {
        {
            let mut st = self.state.borrow_mut();
            st.release(&batch.freed);
            for (at, n) in batch.direct {
                (at..at + u64::from(n)).for_each(|b| drop(st.direct.remove(&b)));
            }
            if batch.sealed {
                st.sealed_end = Some((batch.last, after));
            }
        }
        self.line.advance(batch.last);
        self.progress.notify_waiters();
    }
}
