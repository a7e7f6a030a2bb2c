//! Services beside the cluster's own daemons.

use crate::dump::{Dump, shown};
use crate::entity::EntityAddr;
use crate::{Epoch, Utime};
use denc_derive::Denc;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// One daemon of a service (Ceph: `ServiceMap::Daemon`, `mgr/ServiceMap.h`, version 2, compat 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 1)]
pub struct ServiceDaemon {
    /// Its global id.
    pub gid: u64,
    /// Where it is.
    pub addr: EntityAddr,
    /// Map in which it appeared.
    pub start_epoch: Epoch,
    /// When it appeared.
    pub start_stamp: Utime,
    /// What it says of itself.
    pub metadata: BTreeMap<String, String>,
    /// What it is doing.
    #[denc(since = 2)]
    pub task_status: BTreeMap<String, String>,
}

impl Dump for ServiceDaemon {
    fn dump(&self) -> Value {
        json!({
            "start_epoch": self.start_epoch,
            "start_stamp": shown(self.start_stamp),
            "gid": self.gid,
            "addr": self.addr.legacy_string(),
            "metadata": self.metadata,
            "task_status": self.task_status,
        })
    }
}

/// One service (Ceph: `ServiceMap::Service`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Service {
    /// Its daemons by name.
    pub daemons: BTreeMap<String, ServiceDaemon>,
    /// What `ceph status` shows of it.
    pub summary: String,
}

impl Dump for Service {
    fn dump(&self) -> Value {
        let mut daemons = Map::new();
        daemons.insert("summary".into(), json!(self.summary));
        daemons.extend(self.daemons.iter().map(|(name, d)| (name.clone(), d.dump())));
        json!({"daemons": daemons})
    }
}

/// All services (Ceph: `ServiceMap`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ServiceMap {
    /// Version of the map.
    pub epoch: Epoch,
    /// When it changed.
    pub modified: Utime,
    /// Services by name.
    pub services: BTreeMap<String, Service>,
}

impl Dump for ServiceMap {
    fn dump(&self) -> Value {
        let services: Map<_, _> =
            self.services.iter().map(|(name, s)| (name.clone(), s.dump())).collect();
        json!({"epoch": self.epoch, "modified": shown(self.modified), "services": services})
    }
}
