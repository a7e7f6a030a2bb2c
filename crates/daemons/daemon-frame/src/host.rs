//! Facts about the host, for the metadata that daemons report.

use std::collections::BTreeMap;

fn first_line(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// The host's name.
pub fn hostname() -> String {
    first_line("/proc/sys/kernel/hostname")
        .filter(|n| !n.is_empty())
        .unwrap_or_else(|| "localhost".into())
}

/// What `ceph mon metadata` and its siblings show of every daemon.
pub fn facts() -> BTreeMap<String, String> {
    let mut m = BTreeMap::new();
    m.insert("hostname".into(), hostname());
    m.insert("arch".into(), std::env::consts::ARCH.into());
    m.insert("os".into(), "Linux".into());
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if let Some(model) = cpu.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':')) {
        m.insert("cpu".into(), model.1.trim().to_owned());
    }
    if let Some(kernel) = first_line("/proc/sys/kernel/osrelease") {
        m.insert("kernel_version".into(), kernel);
    }
    if let Some(text) = first_line("/proc/sys/kernel/version") {
        m.insert("kernel_description".into(), text);
    }
    let mem = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    for (key, name) in [("MemTotal:", "mem_total_kb"), ("SwapTotal:", "mem_swap_kb")] {
        if let Some(line) = mem.lines().find_map(|l| l.strip_prefix(key)) {
            m.insert(name.into(), line.trim().trim_end_matches("kB").trim().to_owned());
        }
    }
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |key: &str| {
        release
            .lines()
            .find_map(|l| l.strip_prefix(key)?.strip_prefix('='))
            .map(|v| v.trim_matches('"').to_owned())
    };
    for (key, name) in
        [("ID", "distro"), ("VERSION_ID", "distro_version"), ("PRETTY_NAME", "distro_description")]
    {
        if let Some(v) = field(key) {
            m.insert(name.into(), v);
        }
    }
    m
}
