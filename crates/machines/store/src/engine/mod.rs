//! The store on a device.
//!
//! What a transaction does to memory happens in [`state`]; [`submit`] decides where its data goes
//! and writes its record; [`commit`] writes batches of records to the log; [`checkpoint`] brings
//! what is in memory to its place and lets the log's tail advance; [`pace`] keeps writers at its
//! speed; [`prepare`] gives the log of a sparse file its blocks; [`open`] makes a store, and opens
//! one by replaying the log through the same functions of [`state`] that ran when the records were
//! written.
//!
//! What must stay true:
//!
//! - A deferred write goes to its place only when its record is durable.
//! - A freed block is reused only when the record that frees it is durable and no deferred write to
//!   it is under way. A block freed by a checkpoint (an old tree node) is reused only when the
//!   checkpoint's superblock is durable.
//! - The tail passes a record only when a superblock is durable whose tree, allocation map and data
//!   blocks contain the record's effects.
//! - Batches are durable in their order, and one that refers to data blocks is the last one under
//!   way. So only the last batch in the log can refer to data blocks that never became durable;
//!   opening verifies those.
//! - What was under way behind a batch that did not become durable is gone for good once the store
//!   was opened: opening wipes it before anything is written.

mod cache;
mod checkpoint;
mod commit;
mod family;
mod fsck;
mod nodes;
mod open;
mod pace;
mod prepare;
mod prepared;
mod read;
mod record;
mod replay;
mod slots;
mod state;
mod steps;
mod submit;
mod turns;

pub(crate) use open::{mkfs, open, read_superblock};

use crate::commit::{Commit, CommitLine};
use crate::dev::Device;
use crate::error::StoreError;
use crate::options::{Budgets, Options};
use crate::superblock::Superblock;
use crate::types::{BLOCK, Coll, StatFs};
use state::State;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::Notify;

/// A store on a device: shared by the handle and the background tasks.
pub(crate) struct Disk {
    pub(crate) dev: Device,
    opts: Options,
    /// What `opts` said about dirty memory, or what was said since.
    dirty_max: Cell<u64>,
    state: RefCell<State>,
    line: Rc<CommitLine>,
    /// Bytes of data in all transactions.
    data: Cell<u64>,
    /// The last durable checkpoint.
    sb: RefCell<Superblock>,
    /// A batch is waiting to be written.
    work: Notify,
    /// A checkpoint is wanted.
    checkpoint: Notify,
    /// The log's head has come to where its preparation goes on.
    prepare: Notify,
    /// The tail has advanced, or a batch was written.
    progress: Notify,
    closing: Cell<bool>,
    /// A checkpoint is under way.
    running: Cell<bool>,
    /// How it shares the processor.
    steps: steps::Steps,
    /// What it lets writers fill.
    pace: RefCell<Option<pace::Pace>>,
    failed: RefCell<Option<StoreError>>,
    /// Background tasks that have not ended.
    tasks: Cell<u32>,
    /// Checkpoints completed since the store was opened.
    checkpoints: Cell<u64>,
}

/// The callers' handle: when the last one goes, the background tasks end.
pub(crate) struct Handle(pub(crate) Rc<Disk>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Disk {
    fn stop(&self) {
        self.closing.set(true);
        self.work.notify_one();
        self.checkpoint.notify_one();
        self.prepare.notify_one();
        self.progress.notify_waiters();
    }

    /// A background task has ended.
    fn ended(&self) {
        self.tasks.set(self.tasks.get() - 1);
        self.progress.notify_waiters();
    }

    /// Stops everything after an error that leaves memory and device apart.
    fn fail(&self, e: StoreError) {
        tracing::error!("the store stops: {e}");
        self.prepare.notify_one();
        self.failed.borrow_mut().get_or_insert(e.clone());
        self.line.fail(StoreError::Failed(e.to_string()));
        self.progress.notify_waiters();
    }

    fn check_failed(&self) -> Result<(), StoreError> {
        match &*self.failed.borrow() {
            Some(e) => Err(StoreError::Failed(e.to_string())),
            None => Ok(()),
        }
    }

    pub(crate) fn last(&self) -> Commit {
        self.line.last()
    }

    pub(crate) fn collections(&self) -> Vec<Coll> {
        self.state.borrow().colls.keys().copied().collect()
    }

    pub(crate) fn window(&self, coll: Coll) -> Option<crate::window::Window> {
        self.state.borrow().colls.get(&coll).cloned().flatten()
    }

    pub(crate) fn congested(&self) -> bool {
        let st = self.state.borrow();
        let (log, dirty) = (st.log_reserved(), st.dirty_bytes());
        self.is_over(log, dirty)
            || self.pace.borrow().as_ref().is_some_and(|p| !p.permits(log, dirty))
    }

    /// Whether callers will wait for the checkpoint under way if it goes on as slowly.
    fn is_tight(&self) -> bool {
        let pace = self.pace.borrow();
        let Some(pace) = &*pace else { return false };
        let st = self.state.borrow();
        !pace.permits(
            st.log_reserved() + self.log_limit() / 16,
            st.dirty_bytes() + self.dirty_limit() / 16,
        )
    }

    pub(crate) fn is_full(&self) -> bool {
        let st = self.state.borrow();
        self.is_over(st.log_reserved(), st.dirty_bytes())
    }

    fn is_over(&self, log: u64, dirty: u64) -> bool {
        log > self.log_limit() || dirty > self.dirty_limit()
    }

    /// Bytes of the log in use at which callers wait.
    fn log_limit(&self) -> u64 {
        self.sb.borrow().log_len / 8 * 5
    }

    /// Bytes of dirty memory at which callers wait.
    fn dirty_limit(&self) -> u64 {
        self.dirty_max.get().saturating_mul(2)
    }

    pub(crate) async fn admit(&self) -> Result<(), StoreError> {
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            self.check_failed()?;
            if !self.congested() {
                return Ok(());
            }
            self.checkpoint.notify_one();
            progress.await;
        }
    }

    pub(crate) fn usage(&self) -> crate::Usage {
        crate::Usage {
            device: self.dev.time(),
            transactions: self.line.submitted(),
            data: self.data.get(),
        }
    }

    pub(crate) fn statfs(&self) -> StatFs {
        let st = self.state.borrow();
        let sb = self.sb.borrow();
        let free = st.alloc.free_blocks();
        let used = sb.blocks() - sb.data_start() - free;
        StatFs {
            total: sb.device,
            available: free.saturating_sub(st.reserve()) * BLOCK,
            data: used.saturating_sub(st.tree_blocks) * BLOCK,
            metadata: (sb.data_start() + st.tree_blocks) * BLOCK,
            deferred: st.pending_blocks() * BLOCK,
            cached: st.cached_bytes(),
        }
    }

    /// Ranges of free space, in bytes.
    pub(crate) fn free_ranges(&self, most: usize) -> Vec<(u64, u64)> {
        let runs = self.state.borrow().alloc.runs(most);
        runs.into_iter().map(|(start, len)| (start * BLOCK, len * BLOCK)).collect()
    }

    /// Changes the budgets; caches that are above theirs shrink at once.
    pub(crate) fn set_budgets(&self, budgets: Budgets) {
        self.state.borrow_mut().set_budgets(budgets);
        self.dirty_max.set(budgets.dirty_max);
        // There may be more dirty memory now than is allowed, or callers that need not wait any
        // more.
        self.checkpoint.notify_one();
        self.progress.notify_waiters();
    }

    /// The budgets that hold.
    pub(crate) fn budgets(&self) -> Budgets {
        Budgets { dirty_max: self.dirty_max.get(), ..self.state.borrow().budgets() }
    }

    /// Label given at mkfs.
    pub(crate) fn label(&self) -> bytes::Bytes {
        self.sb.borrow().label.clone()
    }

    /// Ends with nothing in the log.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        self.checkpoint_now().await?;
        self.stop();
        while self.tasks.get() > 0 {
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            if self.tasks.get() > 0 {
                progress.await;
            }
        }
        Ok(())
    }
}
