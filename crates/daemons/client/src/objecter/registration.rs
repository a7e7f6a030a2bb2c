//! What a daemon says of itself to the manager, and whether the manager knows it.

use messages::{MgrConfigure, MgrOpen, MgrReport};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How often the manager hears of a daemon until it says how often it wants to.
pub(super) const REPORTS_EVERY: Duration = Duration::from_secs(5);

/// A daemon that reports to the manager.
pub trait Reporter {
    /// How it opens a session with a manager.
    fn open(&self) -> MgrOpen;

    /// What it says from time to time.
    fn report(&self) -> MgrReport;

    /// The manager says what it wants to be told. True if it should be told at once.
    fn configured(&self, _wanted: &MgrConfigure) -> bool {
        false
    }
}

/// What a daemon of a service says of itself.
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

impl Reporter for ServiceDaemon {
    fn open(&self) -> MgrOpen {
        MgrOpen {
            daemon_name: self.daemon.clone(),
            service_name: self.service.clone(),
            service: Some((self.metadata.clone(), (self.status)())),
            ..MgrOpen::default()
        }
    }

    fn report(&self) -> MgrReport {
        MgrReport {
            daemon_name: self.daemon.clone(),
            service_name: self.service.clone(),
            daemon_status: Some((self.status)()),
            ..MgrReport::default()
        }
    }
}

/// A registration.
#[derive(Clone)]
pub(super) struct Registered {
    pub(super) daemon: Rc<dyn Reporter>,
    /// The manager has answered to it.
    pub(super) known: bool,
}
