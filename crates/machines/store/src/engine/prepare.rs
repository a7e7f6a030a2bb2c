//! Blocks for the log of a sparse file, before the log needs them.
//!
//! A durable write to a hole makes the file system find blocks, write its own journal, and do all
//! of that on a helper thread because it may wait: several times the cost of the write. So large
//! writes of zeros go ahead of the log over places that are still holes. Once around the ring there
//! are none left; a raw device has none from the start.
//!
//! What must stay true: zeros are written only where the log holds nothing, ahead of its head and
//! behind its tail, and a batch that wants a place waits until zeros on their way there have
//! arrived.

use super::Disk;
use super::state::State;
use crate::dev::AlignedBuf;
use crate::superblock::LOG_START;
use crate::types::BLOCK;
use std::ops::Range;

/// How far ahead of the log, at most.
const AHEAD: u64 = 64 << 20;
/// One write of zeros, at most: what commits waits behind it on the device.
const CHUNK: u64 = 256 << 10;

enum Next {
    Write(Range<u64>),
    Wait,
    Done,
}

impl State {
    /// What to look at next; `end` is where the first time around the ring is over.
    fn prepare(&mut self, ring: u64, end: u64) -> Next {
        let chunk = CHUNK.min(ring / 16 / BLOCK * BLOCK).max(BLOCK);
        let ahead = AHEAD.min(ring / 4);
        let head = self.head.at;
        let p = &mut self.prepared;
        // The log has caught up: leave it some chunks, so that it seldom waits.
        if p.upto < head + 2 * chunk {
            p.upto = (head + 2 * chunk).next_multiple_of(BLOCK);
        }
        if p.upto >= end {
            p.wake_at = u64::MAX;
            return Next::Done;
        }
        let n = chunk.min(ring - p.upto % ring).min(end - p.upto);
        if p.upto + n > head + ahead {
            p.wake_at = head + ahead / 2;
            return Next::Wait;
        }
        if p.upto + n > self.tail.at + ring {
            // The tail is in the way; the log needs its progress, too, and the next batch asks
            // again.
            p.wake_at = head + 1;
            return Next::Wait;
        }
        let range = p.upto..p.upto + n;
        p.upto = range.end;
        Next::Write(range)
    }
}

/// Prepares until the whole ring is, or the store goes.
pub(super) async fn run(disk: &Disk) {
    let ring = disk.sb.borrow().log_len;
    let end = disk.state.borrow().head.at + ring;
    let zeros = AlignedBuf::zeroed(CHUNK.min(ring) as usize).freeze();
    loop {
        if disk.closing.get() || disk.check_failed().is_err() {
            return;
        }
        let next = disk.state.borrow_mut().prepare(ring, end);
        match next {
            Next::Done => return,
            Next::Wait => disk.prepare.notified().await,
            Next::Write(range) => {
                let (off, len) = (LOG_START + range.start % ring, range.end - range.start);
                if !disk.dev.is_hole(off, len) {
                    continue;
                }
                disk.state.borrow_mut().prepared.under_way = Some(range);
                let written = disk
                    .dev
                    .write(off, smallvec::smallvec![zeros.slice(..len as usize)], false)
                    .await;
                disk.state.borrow_mut().prepared.under_way = None;
                disk.progress.notify_waiters();
                if written.is_err() {
                    // Not an error of the store: the log does without, or finds the same error
                    // itself.
                    return;
                }
            }
        }
    }
}
