//! Group commit: one write to the log for everything that was queued meanwhile.

use super::Disk;
use super::state::{Batch, State};
use crate::error::StoreError;
use crate::log;
use crate::superblock::{LOG_START, LogPos};

/// Writes batches until the store goes.
pub(super) async fn run(disk: &Disk) {
    loop {
        let batch = disk.state.borrow_mut().next_batch();
        match batch {
            Some(batch) => {
                if let Err(e) = disk.write_batch(batch).await {
                    disk.fail(e);
                    return;
                }
            }
            None if disk.closing.get() => return,
            None => disk.work.notified().await,
        }
    }
}

impl State {
    /// The oldest batch; no record is added to it any more.
    fn next_batch(&mut self) -> Option<Batch> {
        let batch = self.queue.pop_front()?;
        self.queued -= batch.buf.len() as u64;
        Some(batch)
    }

    /// Gives blocks back for use. While a checkpoint is under way they wait for its end: the checkpoint must
    /// not put a tree node where an object of its own point in time still has a block, nor bring a deferred
    /// write to a block that was given away.
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

    async fn write_batch(&self, mut batch: Batch) -> Result<(), StoreError> {
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
            debug_assert!(at + len - st.tail.at <= ring, "admission keeps the log from running over its tail");
            let buf = std::mem::replace(&mut batch.buf, log::LogBuf::placeholder());
            let (bytes, crc) = buf.seal(store_id, pos);
            let after = LogPos { at: at + len, seq: pos.seq + 1, prev_crc: crc };
            // Taken before the write, so that nobody else counts on the space.
            st.head = after;
            if st.prepared.wants(after.at) {
                self.prepare.notify_one();
            }
            (at, bytes, after)
        };
        self.wait_prepared(at..after.at).await?;
        // Data that the records refer to has to be there, too, but not before: if the power goes in between,
        // the checksums in the records tell at the next start.
        let alone = batch.ios.is_empty();
        let write = self.dev.write(LOG_START + at % ring, smallvec::smallvec![bytes], alone);
        for io in batch.ios {
            io.await?;
        }
        write.await?;
        if !alone {
            self.dev.flush().await?;
        }
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
        Ok(())
    }
}
