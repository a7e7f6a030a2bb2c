//! The manager map.

use crate::dump::{Dump, shown};
use crate::entity::EntityAddrVec;
use crate::release::Release;
use crate::{Epoch, Utime, features};
use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// An option of a manager module (Ceph: `MgrMap::ModuleOption`, `mon/MgrMap.h`, version 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ModuleOption {
    /// Name.
    pub name: String,
    /// Number of the type.
    pub kind: u8,
    /// Number of the level.
    pub level: u8,
    /// Flags.
    pub flags: u32,
    /// Default.
    pub default_value: String,
    /// Least value.
    pub min: String,
    /// Largest value.
    pub max: String,
    /// Allowed values.
    pub enum_allowed: BTreeSet<String>,
    /// What it does.
    pub desc: String,
    /// What it does, at length.
    pub long_desc: String,
    /// Tags.
    pub tags: BTreeSet<String>,
    /// Related options.
    pub see_also: BTreeSet<String>,
}

const OPTION_TYPES: [&str; 11] =
    ["uint", "int", "str", "float", "bool", "addr", "addrvec", "uuid", "size", "secs", "millisecs"];
const OPTION_LEVELS: [&str; 3] = ["basic", "advanced", "dev"];

impl Dump for ModuleOption {
    fn dump(&self) -> Value {
        let named =
            |names: &[&'static str], n: u8| names.get(usize::from(n)).copied().unwrap_or("unknown");
        json!({
            "name": self.name,
            "type": named(&OPTION_TYPES, self.kind),
            "level": named(&OPTION_LEVELS, self.level),
            "flags": self.flags,
            "default_value": self.default_value,
            "min": self.min,
            "max": self.max,
            "enum_allowed": self.enum_allowed,
            "desc": self.desc,
            "long_desc": self.long_desc,
            "tags": self.tags,
            "see_also": self.see_also,
        })
    }
}

/// A manager module (Ceph: `MgrMap::ModuleInfo`, version 2, compat 1).
#[derive(Clone, PartialEq, Eq, Default, Debug, Denc)]
#[denc(version = 2, compat = 1)]
pub struct ModuleInfo {
    /// Name.
    pub name: String,
    /// Whether it would run.
    pub can_run: bool,
    /// Why not.
    pub error_string: String,
    /// Options by name.
    #[denc(since = 2)]
    pub module_options: BTreeMap<String, ModuleOption>,
}

impl Dump for ModuleInfo {
    fn dump(&self) -> Value {
        let options: Map<_, _> =
            self.module_options.iter().map(|(n, o)| (n.clone(), o.dump())).collect();
        json!({
            "name": self.name,
            "can_run": self.can_run,
            "error_string": self.error_string,
            "module_options": options,
        })
    }
}

/// A manager that waits (Ceph: `MgrMap::StandbyInfo`, version 4, compat 1).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct StandbyInfo {
    /// Its global id.
    pub gid: u64,
    /// Its name.
    pub name: String,
    /// Its modules.
    pub available_modules: Vec<ModuleInfo>,
    /// Its features.
    pub mgr_features: u64,
}

fn module_names(modules: &[ModuleInfo]) -> BTreeSet<String> {
    modules.iter().map(|m| m.name.clone()).collect()
}

impl Encode for StandbyInfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        envelope(out, 4, 1, |out| {
            self.gid.encode(out, f);
            self.name.encode(out, f);
            module_names(&self.available_modules).encode(out, f);
            self.available_modules.encode(out, f);
            self.mgr_features.encode(out, f);
        });
    }
}
impl Decode for StandbyInfo {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("MgrMap::StandbyInfo", 4)?;
        if struct_v < 3 {
            return Err(DecodeError::TooOld { what: "MgrMap::StandbyInfo", struct_v, oldest: 3 });
        }
        let (gid, name) = r.get()?;
        r.get::<BTreeSet<String>>()?;
        let available_modules = r.get()?;
        let mgr_features = if struct_v >= 4 { r.get()? } else { 0 };
        Ok(StandbyInfo { gid, name, available_modules, mgr_features })
    }
}

/// The managers (Ceph: `MgrMap`, `mon/MgrMap.h`, version 12, compat 6; version 5 to peers before
/// Nautilus).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MgrMap {
    /// Version of the map.
    pub epoch: Epoch,
    /// OSD map that has the last failed manager on its blocklist.
    pub last_failure_osd_epoch: Epoch,
    /// Global id of the active manager, 0 for none.
    pub active_gid: u64,
    /// Where it is.
    pub active_addrs: EntityAddrVec,
    /// Whether it serves.
    pub available: bool,
    /// Its name.
    pub active_name: String,
    /// When it became active, or was lost.
    pub active_change: Utime,
    /// Its features.
    pub active_mgr_features: u64,
    /// Clients that its modules are, with the modules' names, for the blocklist.
    pub clients: Vec<(String, EntityAddrVec)>,
    /// The standbys, by global id.
    pub standbys: BTreeMap<u64, StandbyInfo>,
    /// Enabled modules.
    pub modules: BTreeSet<String>,
    /// Modules that are always on, by release.
    pub always_on_modules: BTreeMap<u32, BTreeSet<String>>,
    /// Modules that exist.
    pub available_modules: Vec<ModuleInfo>,
    /// Addresses of services by module.
    pub services: BTreeMap<String, String>,
}

impl MgrMap {
    /// The part that `ceph status` shows.
    pub fn dump_summary(&self) -> Value {
        json!({
            "available": self.available,
            "num_standbys": self.standbys.len(),
            "modules": self.modules,
            "services": self.services,
        })
    }
}

impl Encode for MgrMap {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        if !f.has(features::SERVER_NAUTILUS) {
            envelope(out, 5, 1, |out| {
                self.epoch.encode(out, f);
                self.active_addrs.of_type(crate::AddrType::LEGACY).encode(out, f);
                self.active_gid.encode(out, f);
                self.available.encode(out, f);
                self.active_name.encode(out, f);
                self.standbys.encode(out, f);
                self.modules.encode(out, f);
                module_names(&self.available_modules).encode(out, f);
                self.services.encode(out, f);
                self.available_modules.encode(out, f);
            });
            return;
        }
        envelope(out, 12, 6, |out| {
            self.epoch.encode(out, f);
            self.active_addrs.encode(out, f);
            self.active_gid.encode(out, f);
            self.available.encode(out, f);
            self.active_name.encode(out, f);
            self.standbys.encode(out, f);
            self.modules.encode(out, f);
            self.services.encode(out, f);
            self.available_modules.encode(out, f);
            self.active_change.encode(out, f);
            self.always_on_modules.encode(out, f);
            self.active_mgr_features.encode(out, f);
            self.last_failure_osd_epoch.encode(out, f);
            // Addresses first: until version 12 there were no names.
            let (names, addrs): (Vec<&String>, Vec<&EntityAddrVec>) =
                self.clients.iter().map(|(n, a)| (n, a)).unzip();
            addrs.encode(out, f);
            names.encode(out, f);
        });
    }
}
impl Decode for MgrMap {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("MgrMap", 12)?;
        if struct_v < 5 {
            return Err(DecodeError::TooOld { what: "MgrMap", struct_v, oldest: 5 });
        }
        let mut map = MgrMap {
            epoch: r.get()?,
            active_addrs: r.get()?,
            active_gid: r.get()?,
            available: r.get()?,
            active_name: r.get()?,
            standbys: r.get()?,
            modules: r.get()?,
            ..Default::default()
        };
        if struct_v < 6 {
            r.get::<BTreeSet<String>>()?;
        }
        map.services = r.get()?;
        map.available_modules = r.get()?;
        if struct_v >= 7 {
            map.active_change = r.get()?;
        }
        if struct_v >= 8 {
            map.always_on_modules = r.get()?;
        }
        if struct_v >= 9 {
            map.active_mgr_features = r.get()?;
        }
        if struct_v >= 10 {
            map.last_failure_osd_epoch = r.get()?;
        }
        if struct_v >= 11 {
            let addrs: Vec<EntityAddrVec> = r.get()?;
            let mut names: Vec<String> = if struct_v >= 12 { r.get()? } else { Vec::new() };
            names.resize(addrs.len(), String::new());
            map.clients = names.into_iter().zip(addrs).collect();
        }
        Ok(map)
    }
}
impl Dump for MgrMap {
    fn dump(&self) -> Value {
        let standby = |s: &StandbyInfo| {
            json!({
                "gid": s.gid as i64,
                "name": s.name,
                "mgr_features": s.mgr_features,
                "available_modules": crate::dump::list(&s.available_modules),
            })
        };
        let always_on: Map<String, Value> = self
            .always_on_modules
            .iter()
            .map(|(release, modules)| {
                let release = u8::try_from(*release).map_or(Release::UNKNOWN, Release);
                (release.name().to_owned(), json!(modules))
            })
            .collect();
        let client = |(name, addrs): &(String, EntityAddrVec)| json!({"name": name, "addrvec": crate::dump::list(&addrs.0)});
        json!({
            "epoch": self.epoch,
            "active_gid": self.active_gid as i64,
            "active_name": self.active_name,
            "active_addrs": self.active_addrs.dump(),
            "active_addr": self.active_addrs.legacy_string(),
            "active_change": shown(self.active_change),
            "active_mgr_features": self.active_mgr_features,
            "available": self.available,
            "standbys": self.standbys.values().map(standby).collect::<Vec<_>>(),
            "modules": self.modules,
            "available_modules": crate::dump::list(&self.available_modules),
            "services": self.services,
            "always_on_modules": always_on,
            "last_failure_osd_epoch": self.last_failure_osd_epoch,
            "active_clients": self.clients.iter().map(client).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_for_new_and_old_peers() {
        let module = ModuleInfo { name: "balancer".into(), can_run: true, ..Default::default() };
        let map = MgrMap {
            epoch: Epoch(4),
            active_gid: 4100,
            active_addrs: "[v2:127.0.0.1:6800/9,v1:127.0.0.1:6801/9]".parse().unwrap(),
            available: true,
            active_name: "x".into(),
            always_on_modules: [(16, ["balancer".to_owned()].into())].into(),
            standbys: [(
                7,
                StandbyInfo {
                    gid: 7,
                    available_modules: vec![module.clone()],
                    ..Default::default()
                },
            )]
            .into(),
            available_modules: vec![module],
            clients: vec![("volumes".into(), "v2:127.0.0.1:0/7".parse().unwrap())],
            ..Default::default()
        };
        assert_eq!(MgrMap::from_bytes(&map.to_bytes(Features::ALL)).unwrap(), map);
        let old = MgrMap::from_bytes(&map.to_bytes(Features(features::MSG_ADDR2))).unwrap();
        assert_eq!(old.active_addrs.to_string(), "v1:127.0.0.1:6801/9");
        assert_eq!(old.standbys, map.standbys);
    }
}
