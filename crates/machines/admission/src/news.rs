//! Something that the manager should be told before the next round.

use std::cell::{Cell, RefCell};

/// Shared by the parts that have news and the reporter that tells the manager.
#[derive(Default)]
pub struct News {
    told: Cell<bool>,
    wake: RefCell<Option<Box<dyn Fn()>>>,
}

impl News {
    /// Calls this whenever there is something to tell.
    pub fn wake_with(&self, wake: impl Fn() + 'static) {
        *self.wake.borrow_mut() = Some(Box::new(wake));
    }

    /// There is something to tell.
    pub(crate) fn notify(&self) {
        self.told.set(true);
        if let Some(wake) = &*self.wake.borrow() {
            wake();
        }
    }

    /// Whether there was something to tell since this was asked last.
    pub fn take(&self) -> bool {
        self.told.take()
    }
}
