//! Whether an OSD may go on: the error that stopped it, and the word that it answers nothing more.

use std::cell::{Cell, RefCell};
use tokio::sync::Notify;
use types::OsdId;

/// Whether the OSD can go on, and why not.
pub(crate) struct Health {
    whoami: OsdId,
    /// The OSD is about to say that it has stopped: nothing is answered any more.
    sealed: Cell<bool>,
    failed: RefCell<Option<String>>,
    failure: Notify,
}

impl Health {
    /// Of an OSD that has just begun.
    pub(crate) fn new(whoami: OsdId) -> Self {
        Health {
            whoami,
            sealed: Cell::new(false),
            failed: RefCell::default(),
            failure: Notify::new(),
        }
    }

    /// The error that stopped this OSD, if one did.
    pub(crate) fn failed(&self) -> Option<String> {
        self.failed.borrow().clone()
    }

    /// Waits for the error that stops this OSD.
    pub(crate) async fn failure(&self) -> String {
        loop {
            let mut next = std::pin::pin!(self.failure.notified());
            next.as_mut().enable();
            if let Some(why) = self.failed() {
                return why;
            }
            next.await;
        }
    }

    /// Stops the OSD.
    pub(crate) fn fail(&self, why: String) {
        tracing::error!(osd = self.whoami.0, "{why}");
        self.failed.borrow_mut().get_or_insert(why);
        self.failure.notify_waiters();
    }

    /// Answers no request from now on, so that the monitors can be told that this OSD is gone for
    /// sure.
    pub(crate) fn seal(&self) {
        self.sealed.set(true);
    }

    /// Whether [`Health::seal`] was called.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.get()
    }
}
