//! What a daemon of a service says of itself, and whether the manager knows it.

use std::collections::BTreeMap;

/// What a daemon says of itself.
pub struct ServiceDaemon {
    /// The service.
    pub service: String,
    /// The daemon's name in it.
    pub daemon: String,
    /// Its description.
    pub metadata: BTreeMap<String, String>,
    /// Its status at the moment.
    pub status: Box<dyn Fn() -> BTreeMap<String, String>>,
}

/// A registration.
pub(super) struct Registered {
    pub(super) daemon: ServiceDaemon,
    /// The manager has answered to it.
    pub(super) known: bool,
}
