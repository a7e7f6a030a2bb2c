//! Facts about the device below a file, for the metadata that daemons report (Ceph:
//! `BlockDevice::collect_metadata`, `get_device_metadata`, `common/blkdev.cc`, 16.2). What cannot
//! be found out is left empty, as by stock daemons.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The kernel's directory of block devices.
const BLOCK: &str = "/sys/dev/block";

/// A device below a file.
struct Device {
    /// Its name, such as `nvme0n1`.
    name: String,
    /// What the kernel tells of it.
    at: PathBuf,
}

fn line(path: PathBuf) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The device of a number; of a partition the whole device.
fn device(number: u64) -> Option<Device> {
    let major = number >> 8 & 0xfff | number >> 32 & !0xfff;
    let minor = number & 0xff | number >> 12 & !0xff;
    let mut at = fs::canonicalize(format!("{BLOCK}/{major}:{minor}")).ok()?;
    if at.join("partition").exists() {
        at = at.parent()?.to_owned();
    }
    Some(Device { name: at.file_name()?.to_str()?.to_owned(), at })
}

impl Device {
    /// `MODEL_SERIAL`, as far as the device tells it.
    fn id(&self) -> Option<String> {
        let told = |names: &[&str]| {
            let mut all = names.iter().map(|n| line(self.at.join("device").join(n)));
            all.find(|t| !t.is_empty()).map(|t| t.replace(char::is_whitespace, "_"))
        };
        let serial = told(&["serial", "wwid"])
            .or_else(|| Some(line(self.at.join("serial"))).filter(|s| !s.is_empty()))?;
        Some(match told(&["model"]) {
            Some(model) => format!("{model}_{serial}"),
            None => serial,
        })
    }

    /// Its stable place, if the system keeps such names.
    fn path(&self) -> Option<String> {
        let names = fs::read_dir("/dev/disk/by-path").ok()?;
        let is = |p: &PathBuf| {
            let target = fs::canonicalize(p).ok();
            target.as_deref() == Some(Path::new(&format!("/dev/{}", self.name)))
        };
        let found = names.filter_map(|e| Some(e.ok()?.path())).find(is)?;
        Some(found.display().to_string())
    }

    fn is_rotational(&self) -> bool {
        line(self.at.join("queue/rotational")) == "1"
    }
}

/// What daemons with data in `path` say of its device.
pub fn facts(path: &Path) -> BTreeMap<String, String> {
    let below = fs::metadata(path)
        .ok()
        .and_then(|m| device(if m.file_type().is_block_device() { m.rdev() } else { m.dev() }));
    let listed = |of: &dyn Fn(&Device) -> Option<String>| {
        let one = below.as_ref().and_then(|d| Some(format!("{}={}", d.name, of(d)?)));
        one.unwrap_or_default()
    };
    [
        ("devices", below.as_ref().map(|d| d.name.clone()).unwrap_or_default()),
        ("device_ids", listed(&Device::id)),
        ("device_paths", listed(&Device::path)),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .into()
}

/// The same, and what only OSDs say.
pub fn store_facts(path: &Path) -> BTreeMap<String, String> {
    let mut m = facts(path);
    let meta = fs::metadata(path).ok();
    let is_device = meta.as_ref().is_some_and(|m| m.file_type().is_block_device());
    let below = meta.as_ref().and_then(|m| device(if is_device { m.rdev() } else { m.dev() }));
    // A file system without a device of its own is taken for one that does not turn, as by Ceph.
    let rotational = below.as_ref().is_some_and(Device::is_rotational);
    let size = match (&below, is_device) {
        // The kernel counts in sectors of 512 bytes.
        (Some(d), true) => line(d.at.join("size")).parse::<u64>().unwrap_or(0) * 512,
        _ => meta.as_ref().map_or(0, MetadataExt::size),
    };
    let class = if rotational { "hdd" } else { "ssd" };
    let turns = if rotational { "1" } else { "0" };
    for (key, value) in [
        ("rotational", turns),
        ("journal_rotational", turns),
        ("default_device_class", class),
        // The store has no second store of its own metadata; its one device is the block device.
        ("bluefs", "0"),
        ("bluestore_bdev_rotational", turns),
        ("bluestore_bdev_size", &size.to_string()),
        ("bluestore_bdev_type", class),
        ("bluestore_bdev_access_mode", if is_device { "blk" } else { "file" }),
        // Nothing is pinned to nodes of memory by interface.
        ("network_numa_unknown_ifaces", ""),
    ] {
        m.insert(key.to_owned(), value.to_owned());
    }
    m
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_all_fields() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [0; 5000]).unwrap();
        let m = store_facts(file.path());
        assert_eq!(m["bluestore_bdev_size"], "5000");
        assert_eq!(m["bluestore_bdev_access_mode"], "file");
        assert!(["hdd", "ssd"].contains(&m["default_device_class"].as_str()));
        assert!(m.contains_key("devices") && m.contains_key("device_ids"));
        let none = facts(Path::new("/no/such/file"));
        assert_eq!(none["devices"], "");
    }
}
