//! Services beside the cluster's own daemons.

use crate::dump::{Dump, shown};
use crate::entity::EntityAddr;
use crate::{Epoch, Utime};
use denc_derive::Denc;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

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

/// Whether a name in the map is that of a kind of the cluster's own daemons, which `ceph status`
/// shows by themselves (Ceph: `ServiceMap::is_normal_ceph_entity`).
pub fn is_own_kind(service: &str) -> bool {
    ["osd", "client", "mon", "mds", "mgr"].contains(&service)
}

impl Service {
    /// What `ceph status` says: how many daemons of which type, and their names or those of what
    /// they belong to (Ceph: `ServiceMap::Service::get_summary`).
    pub fn summarized(&self) -> String {
        if !self.summary.is_empty() {
            return self.summary.clone();
        }
        let mut by_type = BTreeMap::<&str, BTreeSet<&str>>::new();
        for (name, d) in &self.daemons {
            let of = |key: &str, otherwise| d.metadata.get(key).map_or(otherwise, String::as_str);
            by_type
                .entry(of("daemon_type", "daemon"))
                .or_default()
                .insert(of("daemon_prefix", name));
        }
        if by_type.is_empty() {
            return "no daemons active".to_owned();
        }
        let some = |(kind, names): (&&str, &BTreeSet<&str>)| {
            let s = if names.len() > 1 { "s" } else { "" };
            let all: Vec<&str> = names.iter().copied().collect();
            format!("{} {kind}{s} active ({})", names.len(), all.join(", "))
        };
        by_type.iter().map(some).collect::<Vec<_>>().join(", ")
    }
}

impl Dump for Service {
    fn dump(&self) -> Value {
        let mut daemons = Map::new();
        daemons.insert("summary".into(), json!(self.summary));
        daemons.extend(self.daemons.iter().map(|(name, d)| (name.clone(), d.dump())));
        json!({"daemons": daemons})
    }
}

impl ServiceMap {
    /// What `ceph status` says of tasks: by task, each daemon and how far it is (Ceph:
    /// `Service::get_task_summary`).
    pub fn tasks(&self) -> BTreeMap<&str, BTreeMap<String, &str>> {
        let mut tasks = BTreeMap::<&str, BTreeMap<String, &str>>::new();
        for (service, s) in &self.services {
            for (name, d) in &s.daemons {
                for (task, status) in &d.task_status {
                    tasks.entry(task).or_default().insert(format!("{service}.{name}"), status);
                }
            }
        }
        tasks
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
