//! Daemons of other programs that register with the manager as a service: gateways, mirroring,
//! whatever calls `rados_service_register` (Ceph: `DaemonServer` and `ServiceMap`, `src/mgr`,
//! 16.2).
//!
//! The monitors keep the map, so that it survives the manager. A manager that begins to serve takes
//! it over and gives every daemon in it a whole grace to report. No I/O: the daemon around it reads
//! the messages, and sends [`Services::unsaved`] to the monitors.

use messages::HealthCheck;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use types::service_map::{Service, ServiceDaemon, is_own_kind};
use types::{Dump, EntityAddr, Epoch, ServiceMap, Utime};

/// Daemons that may be registered at a time.
const DAEMONS_MAX: usize = 10_000;
/// Bytes of what one daemon may say of itself.
const FACTS_BYTES_MAX: usize = 64 << 10;

/// The service that gateways for S3 register in.
const GATEWAYS: &str = "rgw";
/// What a gateway of ours says in its status of how far lifecycle is; `radosgw` does not.
const LIFECYCLE_BEHIND: &str = "lifecycle_behind_seconds";
/// A bucket that has been due for longer than this is worth a warning.
const LIFECYCLE_BEHIND_SECONDS_MAX: u64 = 86_400;

/// A daemon's own words.
type Facts = BTreeMap<String, String>;

/// What the manager knows of a daemon beside the map.
#[derive(Clone, Debug, Default)]
struct Beacon {
    last: Utime,
    status: Facts,
    status_stamp: Utime,
}

/// A daemon that registers.
#[derive(Clone, Debug)]
pub struct Registration<'a> {
    /// The service.
    pub service: &'a str,
    /// The daemon's name in it.
    pub daemon: &'a str,
    /// The client's global id.
    pub gid: u64,
    /// Its address.
    pub addr: EntityAddr,
    /// Its own description.
    pub metadata: &'a Facts,
    /// Its status.
    pub status: &'a Facts,
}

/// Why a registration is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    /// Too many daemons.
    #[error("{DAEMONS_MAX} service daemons are registered, and there may be no more")]
    TooMany,
    /// It says too much of itself.
    #[error("{found} bytes of metadata and status; {FACTS_BYTES_MAX} are allowed")]
    TooLong {
        /// The bytes of them.
        found: usize,
    },
    /// The service or the daemon has no name.
    #[error("service {service:?}, daemon {daemon:?}: neither name may be empty")]
    NoName {
        /// The service.
        service: String,
        /// The daemon.
        daemon: String,
    },
}

/// All services.
#[derive(Clone, Debug, Default)]
pub struct Services {
    map: ServiceMap,
    /// The newest map that the monitors are known to have; none until they sent one.
    saved: Option<Epoch>,
    beacons: BTreeMap<(String, String), Beacon>,
}

fn bytes(facts: &Facts) -> usize {
    facts.iter().map(|(k, v)| k.len() + v.len()).sum()
}

impl Services {
    /// The map.
    pub fn map(&self) -> &ServiceMap {
        &self.map
    }

    fn changed(&mut self, now: Utime) -> Epoch {
        self.map.epoch = self.map.epoch.next();
        self.map.modified = now;
        self.map.epoch
    }

    /// The monitors have this map.
    pub fn learn(&mut self, theirs: ServiceMap, now: Utime) {
        let first = self.saved.is_none();
        self.saved = self.saved.max(Some(theirs.epoch));
        if !first {
            return;
        }
        // What registered before the map came is newer than the map.
        let mut mine = std::mem::replace(&mut self.map, theirs);
        for (name, service) in &self.map.services {
            for daemon in service.daemons.keys() {
                let beacon = self.beacons.entry((name.clone(), daemon.clone())).or_default();
                beacon.last = beacon.last.max(now);
            }
        }
        if mine.services.is_empty() {
            return;
        }
        let epoch = self.changed(now);
        for (name, service) in &mut mine.services {
            for (daemon, mut d) in std::mem::take(&mut service.daemons) {
                d.start_epoch = epoch;
                self.map.services.entry(name.clone()).or_default().daemons.insert(daemon, d);
            }
        }
    }

    /// The map, if the monitors do not have it yet.
    pub fn unsaved(&self) -> Option<&ServiceMap> {
        (self.map.epoch > self.saved?).then_some(&self.map)
    }

    fn entry(&mut self, service: &str, daemon: &str) -> Option<&mut ServiceDaemon> {
        self.map.services.get_mut(service)?.daemons.get_mut(daemon)
    }

    /// A daemon registers, or does so again.
    pub fn register(&mut self, r: &Registration<'_>, now: Utime) -> Result<(), RegistrationError> {
        if r.service.is_empty() || r.daemon.is_empty() {
            let (service, daemon) = (r.service.to_owned(), r.daemon.to_owned());
            return Err(RegistrationError::NoName { service, daemon });
        }
        let found = bytes(r.metadata) + bytes(r.status);
        if found > FACTS_BYTES_MAX {
            return Err(RegistrationError::TooLong { found });
        }
        let known = self.entry(r.service, r.daemon).map(|d| (d.gid, &d.metadata == r.metadata));
        if known.is_none() && self.beacons.len() >= DAEMONS_MAX {
            return Err(RegistrationError::TooMany);
        }
        if known != Some((r.gid, true)) {
            let epoch = self.changed(now);
            let daemon = ServiceDaemon {
                gid: r.gid,
                addr: r.addr,
                start_epoch: epoch,
                start_stamp: now,
                metadata: r.metadata.clone(),
                task_status: Facts::new(),
            };
            let service = self.map.services.entry(r.service.to_owned()).or_default();
            service.daemons.insert(r.daemon.to_owned(), daemon);
        }
        let beacon = Beacon { last: now, status: r.status.clone(), status_stamp: now };
        self.beacons.insert((r.service.to_owned(), r.daemon.to_owned()), beacon);
        Ok(())
    }

    /// A daemon reports: that it lives, and what changed of its status and its tasks. False if it
    /// is not known under this global id.
    pub fn report(
        &mut self,
        service: &str,
        daemon: &str,
        gid: u64,
        status: Option<&Facts>,
        tasks: Option<&Facts>,
        now: Utime,
    ) -> bool {
        let Some(d) = self.entry(service, daemon).filter(|d| d.gid == gid) else { return false };
        let most = |facts: &&Facts| bytes(facts) <= FACTS_BYTES_MAX;
        if let Some(tasks) = tasks.filter(most).filter(|t| **t != d.task_status) {
            d.task_status = tasks.clone();
            self.changed(now);
        }
        let beacon = self.beacons.entry((service.to_owned(), daemon.to_owned())).or_default();
        beacon.last = now;
        if let Some(status) = status.filter(most) {
            beacon.status = status.clone();
            beacon.status_stamp = now;
        }
        true
    }

    fn remove(&mut self, service: &str, daemon: &str) {
        self.beacons.remove(&(service.to_owned(), daemon.to_owned()));
        if let Some(s) = self.map.services.get_mut(service) {
            s.daemons.remove(daemon);
            if s.daemons.is_empty() {
                self.map.services.remove(service);
            }
        }
    }

    /// A daemon takes its leave.
    pub fn close(&mut self, service: &str, daemon: &str, gid: u64, now: Utime) {
        if self.entry(service, daemon).is_some_and(|d| d.gid == gid) {
            self.remove(service, daemon);
            self.changed(now);
        }
    }

    /// Forgets daemons that were silent for longer than `grace`.
    pub fn prune(&mut self, now: Utime, grace: Duration) {
        let over: Vec<(String, String)> = self
            .beacons
            .iter()
            .filter(|(_, b)| now.since(b.last) > grace)
            .map(|(key, _)| key.clone())
            .collect();
        if over.is_empty() {
            return;
        }
        for (service, daemon) in over {
            tracing::info!("service {service}: nothing was heard of daemon {daemon}");
            self.remove(&service, &daemon);
        }
        self.changed(now);
    }

    /// `service status`.
    pub fn status(&self) -> Value {
        let daemon = |service: &str, name: &str| {
            let beacon = self.beacons.get(&(service.to_owned(), name.to_owned()));
            let b = beacon.cloned().unwrap_or_default();
            json!({
                "status_stamp": b.status_stamp.to_string(),
                "last_beacon": b.last.to_string(),
                "status": b.status,
            })
        };
        let service = |(name, s): (&String, &Service)| {
            let all: Map<_, _> = s.daemons.keys().map(|d| (d.clone(), daemon(name, d))).collect();
            (name.clone(), Value::Object(all))
        };
        self.map.services.iter().filter(|(n, _)| !is_own_kind(n)).map(service).collect()
    }

    /// `S3_LIFECYCLE_BEHIND`: what gateways say of lifecycle. Each tells of the whole cluster.
    pub fn check(&self) -> Option<(String, HealthCheck)> {
        let behind = |(key, beacon): (&(String, String), &Beacon)| {
            let (service, daemon) = key;
            let told = beacon.status.get(LIFECYCLE_BEHIND).filter(|_| service == GATEWAYS)?;
            let seconds: u64 = told.parse().ok()?;
            let facts = self.map.services.get(service)?.daemons.get(daemon)?;
            let id = facts.metadata.get("id").unwrap_or(daemon);
            (seconds > LIFECYCLE_BEHIND_SECONDS_MAX).then(|| (seconds / 3600, id.clone()))
        };
        let late: Vec<(u64, String)> = self.beacons.iter().filter_map(behind).collect();
        let most = late.iter().map(|(hours, _)| *hours).max()?;
        let check = HealthCheck {
            severity: HealthCheck::WARN,
            summary: format!("lifecycle of S3 is {most} hours behind"),
            detail: late
                .iter()
                .map(|(hours, id)| format!("gateway {id} finds a bucket {hours} hours behind"))
                .collect(),
            count: late.len() as i64,
        };
        Some(("S3_LIFECYCLE_BEHIND".to_owned(), check))
    }

    /// `service dump`.
    pub fn dump(&self) -> Value {
        self.map.dump()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u32) -> Utime {
        Utime::new(s, 0)
    }

    fn facts(of: &[(&str, &str)]) -> Facts {
        of.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    fn register(s: &mut Services, daemon: &str, gid: u64, now: u32) {
        let (metadata, status) = (facts(&[("daemon_type", "portal")]), facts(&[("a", "b")]));
        let (service, addr) = ("gw", EntityAddr::default());
        let r = Registration { service, daemon, gid, addr, metadata: &metadata, status: &status };
        s.register(&r, at(now)).unwrap();
    }

    fn daemons(s: &Services) -> Vec<String> {
        s.map.services.values().flat_map(|s| s.daemons.keys().cloned()).collect()
    }

    #[test]
    fn a_daemon_comes_reports_and_goes() {
        let mut s = Services::default();
        assert_eq!(s.unsaved(), None);
        s.learn(ServiceMap { epoch: Epoch(1), ..ServiceMap::default() }, at(1));
        register(&mut s, "x", 7, 2);
        assert_eq!(s.unsaved().map(|m| m.epoch), Some(Epoch(2)));
        s.learn(s.map.clone(), at(3));
        assert_eq!(s.unsaved(), None, "the monitors have it");
        assert!(s.report("gw", "x", 7, Some(&facts(&[("c", "d")])), None, at(4)));
        assert_eq!(s.status()["gw"]["x"]["status"], json!({"c": "d"}));
        assert_eq!(s.unsaved(), None, "a status is not part of the map");
        assert!(s.report("gw", "x", 7, None, Some(&facts(&[("job", "10%")])), at(5)));
        assert_eq!(s.dump()["services"]["gw"]["daemons"]["x"]["task_status"]["job"], "10%");
        assert!(s.unsaved().is_some());
        assert!(!s.report("gw", "x", 8, None, None, at(5)), "another client's");
        s.close("gw", "x", 8, at(6));
        assert_eq!(daemons(&s), ["x"]);
        s.close("gw", "x", 7, at(6));
        assert_eq!(s.dump()["services"], json!({}));
    }

    #[test]
    fn silence_ends_a_registration() {
        let mut s = Services::default();
        register(&mut s, "x", 7, 10);
        register(&mut s, "y", 8, 10);
        s.report("gw", "y", 8, None, None, at(50));
        s.prune(at(70), Duration::from_secs(60));
        assert_eq!(daemons(&s), ["x", "y"]);
        s.prune(at(71), Duration::from_secs(60));
        assert_eq!(daemons(&s), ["y"]);
    }

    #[test]
    fn the_next_manager_takes_the_map_over() {
        let mut old = Services::default();
        register(&mut old, "x", 7, 10);
        register(&mut old, "y", 8, 10);
        let mut new = Services::default();
        register(&mut new, "z", 9, 99);
        assert_eq!(new.unsaved(), None, "not before it knows what the monitors have");
        new.learn(old.map.clone(), at(100));
        assert_eq!(daemons(&new), ["x", "y", "z"]);
        assert!(new.unsaved().is_some_and(|m| m.epoch > old.map.epoch));
        new.prune(at(160), Duration::from_secs(60));
        assert_eq!(daemons(&new), ["x", "y"], "only z had its grace");
        new.prune(at(161), Duration::from_secs(60));
        assert_eq!(daemons(&new), [""; 0]);
    }

    #[test]
    fn lifecycle_that_is_late_is_a_warning() {
        let mut s = Services::default();
        let mut report = |service, daemon, behind: &str| {
            let (metadata, status) = (facts(&[("id", "a")]), facts(&[(LIFECYCLE_BEHIND, behind)]));
            let (gid, addr) = (1, EntityAddr::default());
            let r =
                Registration { service, daemon, gid, addr, metadata: &metadata, status: &status };
            s.register(&r, at(1)).unwrap();
            s.check()
        };
        assert_eq!(report("other", "x", "999999"), None, "only gateways say it");
        assert_eq!(report(GATEWAYS, "x", "86400"), None, "a day is not late yet");
        assert_eq!(report(GATEWAYS, "x", "long"), None);
        let (code, check) = report(GATEWAYS, "x", "180000").unwrap();
        assert_eq!((code.as_str(), check.count), ("S3_LIFECYCLE_BEHIND", 1));
        assert_eq!(check.summary, "lifecycle of S3 is 50 hours behind");
        assert_eq!(check.detail, ["gateway a finds a bucket 50 hours behind"]);
        assert_eq!(report(GATEWAYS, "y", "360000").unwrap().1.count, 2);
        report(GATEWAYS, "x", "0");
        assert_eq!(report(GATEWAYS, "y", "7"), None);
        report(GATEWAYS, "x", "999999");
        s.close(GATEWAYS, "x", 1, at(2));
        assert_eq!(s.check(), None, "a gateway that left says nothing");
    }

    #[test]
    fn a_registration_is_bounded() {
        let mut s = Services::default();
        let long = facts(&[("k", &"v".repeat(FACTS_BYTES_MAX))]);
        let r = Registration {
            service: "gw",
            daemon: "x",
            gid: 1,
            addr: EntityAddr::default(),
            metadata: &long,
            status: &Facts::new(),
        };
        assert!(matches!(s.register(&r, at(1)), Err(RegistrationError::TooLong { .. })));
        let r = Registration { daemon: "", metadata: &Facts::new(), ..r };
        assert!(matches!(s.register(&r, at(1)), Err(RegistrationError::NoName { .. })));
        assert_eq!(s.dump()["services"], json!({}));
    }
}
