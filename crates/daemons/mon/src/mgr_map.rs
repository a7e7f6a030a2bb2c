//! The rules by which the manager map changes (Ceph: `MgrMonitor`, `src/mon/MgrMonitor.cc`).
//!
//! One manager is active, the others wait. A manager that is not active any more may not know it
//! yet: it is refused by the OSDs, and has to come back as another, with a new global id.

use crate::state::{Change, Pending};
use conf::Config;
use messages::MgrBeacon;
use std::time::Duration;
use types::log::LogPriority;
use types::mgrmap::StandbyInfo;
use types::{AddrType, EntityAddr, EntityAddrVec, MgrMap, Release, Utime};

/// A line for the cluster log.
pub type Line = (LogPriority, String);

/// The module that the clients of a manager belong to, in the map.
pub const CLIENT: &str = "mgr";

/// Modules of Ceph's manager that this manager's work replaces in any case. Tools ask for some of
/// them before they start (Ceph: `always_on_modules`, `mon/MgrMonitor.cc`, 16.2).
pub const ALWAYS_ON: [&str; 10] = [
    "balancer",
    "crash",
    "devicehealth",
    "orchestrator",
    "pg_autoscaler",
    "progress",
    "rbd_support",
    "status",
    "telemetry",
    "volumes",
];

/// Changes the map, if `f` does: one epoch for all of it.
pub fn change(p: &mut Pending, f: impl FnOnce(&mut MgrMap)) {
    let mut map = (*p.state().mgr).clone();
    f(&mut map);
    let always = ALWAYS_ON.map(str::to_owned).into();
    map.always_on_modules = [(u32::from(Release::SQUID.0), always)].into();
    if map != *p.state().mgr {
        map.epoch = map.epoch.next();
        p.put(Change::MgrMap(Box::new(map)));
    }
}

/// A manager says that it lives. If none is active, it becomes so.
pub fn beacon(p: &mut Pending, conf: &Config, b: &MgrBeacon) -> Vec<Line> {
    let mut lines = Vec::new();
    let map = p.state().mgr.clone();
    if map.active_gid != 0 && map.active_name == b.name && map.active_gid != b.gid {
        lines.push((LogPriority::INFO, format!("Active manager daemon {} restarted", b.name)));
        drop_active(p, conf);
    }
    if let Some(old) = map.standbys.values().find(|s| s.name == b.name && s.gid != b.gid) {
        lines.push((LogPriority::DEBUG, format!("Standby manager daemon {} restarted", b.name)));
        drop_standby(p, old.gid);
    }
    let map = p.state().mgr.clone();
    if map.active_gid == b.gid {
        change(p, |m| {
            m.active_addrs = b.addrs.clone();
            m.clients = clients(&b.clients);
        });
    } else if map.active_gid == 0 {
        lines.push((LogPriority::INFO, format!("Activating manager daemon {}", b.name)));
        let now = p.now();
        change(p, |m| {
            m.standbys.remove(&b.gid);
            m.active_gid = b.gid;
            m.active_name = b.name.clone();
            m.active_addrs = b.addrs.clone();
            m.active_change = now;
            m.active_mgr_features = b.features;
            m.available = false;
            m.clients = clients(&b.clients);
        });
    } else if !map.standbys.contains_key(&b.gid) {
        lines.push((LogPriority::DEBUG, format!("Standby manager daemon {} started", b.name)));
        let info = StandbyInfo {
            gid: b.gid,
            name: b.name.clone(),
            mgr_features: b.features,
            ..StandbyInfo::default()
        };
        change(p, |m| drop(m.standbys.insert(b.gid, info)));
    }
    if p.state().mgr_metadata.get(&b.name) != Some(&b.metadata) {
        p.put(Change::MgrMetadata(b.name.clone(), Some(b.metadata.clone())));
    }
    lines
}

/// The clients of the active manager, as the map has them.
pub fn clients(addrs: &[EntityAddrVec]) -> Vec<(String, EntityAddrVec)> {
    addrs.iter().map(|a| (CLIENT.to_owned(), a.clone())).collect()
}

/// Takes the active manager out. OSDs refuse what it still wants to do.
pub fn drop_active(p: &mut Pending, conf: &Config) {
    let map = p.state().mgr.clone();
    let now = p.now();
    let until = now
        + Duration::try_from_secs_f64(conf.f64("mon_mgr_blocklist_interval")).unwrap_or_default();
    for addr in map.clients.iter().flat_map(|(_, a)| &a.0).chain(&map.active_addrs.0) {
        refuse(p, addr, until);
    }
    let failed_in = p.osd_epoch();
    change(p, |m| {
        m.active_name = String::new();
        m.active_gid = 0;
        m.active_change = now;
        m.active_mgr_features = 0;
        m.available = false;
        m.active_addrs = EntityAddrVec::default();
        m.services.clear();
        m.clients.clear();
        m.last_failure_osd_epoch = failed_in;
    });
    if p.state().mgr_metadata.contains_key(&map.active_name) {
        p.put(Change::MgrMetadata(map.active_name.clone(), None));
    }
}

fn refuse(p: &mut Pending, addr: &EntityAddr, until: Utime) {
    // Without a nonce an entry stands for a host.
    if addr.nonce == 0 {
        return;
    }
    let addr = EntityAddr { kind: AddrType::ANY, ..*addr };
    let holds = p.osd_before().blocklist.get(&addr).copied().unwrap_or(until);
    p.osd_mut().blocklist.entry(addr).or_insert(holds);
}

/// Takes out a manager that waits.
pub fn drop_standby(p: &mut Pending, gid: u64) {
    let Some(name) = p.state().mgr.standbys.get(&gid).map(|s| s.name.clone()) else { return };
    change(p, |m| drop(m.standbys.remove(&gid)));
    if p.state().mgr_metadata.contains_key(&name) {
        p.put(Change::MgrMetadata(name, None));
    }
}

/// If none is active, one of those that wait becomes so. Its name, if there is one.
pub fn promote(p: &mut Pending) -> Option<String> {
    let map = p.state().mgr.clone();
    if map.active_gid != 0 {
        return None;
    }
    let next = map.standbys.values().next()?.clone();
    let now = p.now();
    change(p, |m| {
        m.standbys.remove(&next.gid);
        m.active_gid = next.gid;
        m.active_name = next.name.clone();
        m.active_mgr_features = next.mgr_features;
        m.active_change = now;
        m.available = false;
        // Both come with its next word.
        m.active_addrs = EntityAddrVec::default();
        m.clients.clear();
    });
    Some(next.name)
}

/// Those that have been silent for too long go; another takes the place of the active one.
pub fn round(p: &mut Pending, conf: &Config, silent: impl Fn(u64) -> bool) -> Vec<Line> {
    let mut lines = Vec::new();
    let map = p.state().mgr.clone();
    for gid in map.standbys.keys().filter(|g| silent(**g)) {
        drop_standby(p, *gid);
    }
    if map.active_gid != 0 && silent(map.active_gid) {
        drop_active(p, conf);
        let what = match promote(p) {
            Some(next) => format!("is unresponsive, replacing it with standby daemon {next}"),
            None => "is unresponsive.  No standby daemons available.".to_owned(),
        };
        lines.push((LogPriority::INFO, format!("Manager daemon {} {what}", map.active_name)));
    } else if let Some(next) = promote(p) {
        lines.push((LogPriority::INFO, format!("Activating manager daemon {next}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::{MkfsArgs, initial_state};
    use auth::{CryptoKey, Keyring};

    fn fresh() -> (Pending, Config) {
        let addrs = EntityAddrVec::one(EntityAddr::msgr2("127.0.0.1:3300".parse().unwrap(), 0));
        let args = MkfsArgs {
            fsid: types::Fsid([7; 16]),
            name: "a".into(),
            monitors: [("a".to_owned(), addrs)].into(),
            mon_key: CryptoKey::default(),
            keyring: Keyring::default(),
            crush: None,
            config: Default::default(),
            now: Utime::new(1000, 0),
        };
        let conf = Config::new();
        let (state, _) = initial_state(&args, &conf).unwrap();
        (Pending::new(state, Utime::new(2000, 0)), conf)
    }

    fn word(name: &str, gid: u64) -> MgrBeacon {
        let addr = |port, nonce| {
            EntityAddrVec::one(EntityAddr::msgr2(([127, 0, 0, 1], port).into(), nonce))
        };
        MgrBeacon {
            gid,
            name: name.into(),
            addrs: addr(6800, gid as u32),
            clients: vec![addr(0, gid as u32 + 1000)],
            metadata: [("name".to_owned(), name.to_owned())].into(),
            ..MgrBeacon::default()
        }
    }

    fn names(p: &Pending) -> (String, Vec<String>, Vec<String>) {
        let s = p.state();
        (
            s.mgr.active_name.clone(),
            s.mgr.standbys.values().map(|s| s.name.clone()).collect(),
            s.mgr_metadata.keys().cloned().collect(),
        )
    }

    fn owned(
        active: &str,
        standbys: &[&str],
        metadata: &[&str],
    ) -> (String, Vec<String>, Vec<String>) {
        let list = |l: &[&str]| l.iter().map(|s| s.to_string()).collect();
        (active.into(), list(standbys), list(metadata))
    }

    #[test]
    fn the_first_is_active_and_the_others_wait() {
        let (mut p, conf) = fresh();
        let epoch = p.state().mgr.epoch;
        assert_eq!(beacon(&mut p, &conf, &word("x", 10))[0].1, "Activating manager daemon x");
        assert_eq!(p.state().mgr.epoch, epoch.next());
        assert_eq!(beacon(&mut p, &conf, &word("y", 11))[0].1, "Standby manager daemon y started");
        beacon(&mut p, &conf, &word("z", 12));
        assert_eq!(names(&p), owned("x", &["y", "z"], &["x", "y", "z"]));
        p.close();
        // Nothing new is no new epoch.
        for b in [word("x", 10), word("y", 11), word("z", 12)] {
            assert!(beacon(&mut p, &conf, &b).is_empty());
        }
        assert!(p.is_empty());
        assert!(round(&mut p, &conf, |_| false).is_empty() && p.is_empty());
    }

    #[test]
    fn who_is_silent_is_replaced_and_refused() {
        let (mut p, conf) = fresh();
        for b in [word("x", 10), word("y", 11), word("z", 12)] {
            beacon(&mut p, &conf, &b);
        }
        p.close();
        let lines = round(&mut p, &conf, |gid| gid == 10 || gid == 11);
        assert_eq!(
            lines,
            [(
                LogPriority::INFO,
                "Manager daemon x is unresponsive, replacing it with standby daemon z".to_owned()
            )]
        );
        assert_eq!(names(&p), owned("z", &[], &["z"]));
        assert!(!p.state().mgr.available);
        let failed_in = p.state().mgr.last_failure_osd_epoch;
        p.close();
        let map = p.state().osd.map();
        assert_eq!(map.epoch, failed_in);
        let refused: Vec<u32> = map.blocklist.keys().map(|a| a.nonce).collect();
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert!(
            map.is_blocklisted(&word("x", 10).clients[0].msgr2())
                && map.is_blocklisted(&word("x", 10).addrs.msgr2())
        );
        assert!(!map.is_blocklisted(&word("y", 11).clients[0].msgr2()), "it did nothing");
        assert!(map.blocklist.values().all(|until| *until == Utime::new(2000 + 86_400, 0)));
        // With none left, the next to send a beacon.
        let lines = round(&mut p, &conf, |_| true);
        assert_eq!(lines[0].1, "Manager daemon z is unresponsive.  No standby daemons available.");
        assert_eq!(names(&p), owned("", &[], &[]));
        beacon(&mut p, &conf, &word("z", 12));
        assert_eq!(names(&p), owned("z", &[], &["z"]));
    }

    #[test]
    fn who_was_started_again_is_another() {
        let (mut p, conf) = fresh();
        for b in [word("x", 10), word("y", 11)] {
            beacon(&mut p, &conf, &b);
        }
        beacon(&mut p, &conf, &word("y", 21));
        assert_eq!(p.state().mgr.standbys.keys().collect::<Vec<_>>(), [&21]);
        // The place of the active one is free at once, for the first that sends a beacon.
        let lines = beacon(&mut p, &conf, &word("x", 20));
        assert_eq!(
            lines.iter().map(|l| l.1.as_str()).collect::<Vec<_>>(),
            ["Active manager daemon x restarted", "Activating manager daemon x"]
        );
        assert_eq!((p.state().mgr.active_gid, names(&p)), (20, owned("x", &["y"], &["x", "y"])));
    }
}
