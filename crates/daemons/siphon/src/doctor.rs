//! `siphon doctor`: what on this host costs performance or endangers data.
//!
//! What the kernel tells is judged by [`examine`], which reads files below a root directory and
//! nothing else. The time of a flush is measured.

use crate::cli::Doctor;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A state from which a core takes longer to come back costs each operation that finds it there.
const SLOW_EXIT_MICROS: u64 = 20;
/// Open files that a process with many sessions may need.
const FILES: u64 = 65_536;
/// A flush that takes longer is one of a device without power protection.
const SLOW_FLUSH: Duration = Duration::from_millis(1);
/// Flushes that are measured, and for how long at most.
const FLUSHES: usize = 200;
const MEASURE: Duration = Duration::from_secs(3);

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// The system does not say.
    Unknown,
    /// It costs performance, or makes an outage more likely.
    Slow,
    /// Data that was acknowledged may be lost.
    Danger,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::Unknown => "unknown",
            Verdict::Slow => "slow",
            Verdict::Danger => "danger",
        }
    }
}

/// What was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its name.
    pub check: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub advice: &'static str,
}

fn finding(
    check: &'static str,
    verdict: Verdict,
    found: impl Into<String>,
    advice: &'static str,
) -> Finding {
    let advice = if matches!(verdict, Verdict::Slow | Verdict::Danger) { advice } else { "" };
    Finding { check, verdict, found: found.into(), advice }
}

/// Where data is: the file system, and the device below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The directory, without links.
    pub directory: PathBuf,
    /// The device's number, as `MAJOR:MINOR`.
    pub device: String,
}

/// Files below a root directory.
struct Root<'a>(&'a Path);

impl Root<'_> {
    fn text(&self, path: &str) -> Option<String> {
        // Some files of the kernel are large; none that is looked at is.
        let bytes = fs::read(self.0.join(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes[..bytes.len().min(1 << 20)]).trim().to_owned())
    }

    /// Names in a directory, in order.
    fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.0.join(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    fn exists(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }
}

/// The choice of a list such as `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']'))
}

fn governor(root: &Root<'_>) -> Finding {
    let cpus = "sys/devices/system/cpu";
    let mut found = std::collections::BTreeMap::<String, usize>::new();
    for name in root.names(cpus) {
        if let Some(g) = root.text(&format!("{cpus}/{name}/cpufreq/scaling_governor")) {
            *found.entry(g).or_default() += 1;
        }
    }
    let verdict = match (found.is_empty(), found.keys().all(|g| g == "performance")) {
        (true, _) => Verdict::Unknown,
        (_, true) => Verdict::Good,
        _ => Verdict::Slow,
    };
    let said: Vec<String> = found.iter().map(|(g, n)| format!("{g} on {n} cores")).collect();
    let said =
        if said.is_empty() { "no frequency scaling is seen".into() } else { said.join(", ") };
    finding("cpu governor", verdict, said, "cpupower frequency-set -g performance")
}

fn idle_states(root: &Root<'_>) -> Finding {
    let at = "sys/devices/system/cpu/cpu0/cpuidle";
    let states = root.names(at);
    let number = |path: String| root.text(&path).and_then(|t| t.parse::<u64>().ok());
    let slow: Vec<String> = states
        .iter()
        .filter_map(|s| {
            let latency = number(format!("{at}/{s}/latency"))?;
            let off = number(format!("{at}/{s}/disable")).unwrap_or(0) != 0;
            let name = root.text(&format!("{at}/{s}/name"))?;
            (latency > SLOW_EXIT_MICROS && !off).then(|| format!("{name} ({latency} µs)"))
        })
        .collect();
    let (verdict, found) = match (states.is_empty(), slow.is_empty()) {
        (true, _) => (Verdict::Unknown, "no idle states are seen".to_owned()),
        (_, true) => (Verdict::Good, "no idle state takes long to leave".to_owned()),
        _ => (Verdict::Slow, format!("cores may sleep in {}", slow.join(", "))),
    };
    finding(
        "idle states",
        verdict,
        found,
        "cpupower idle-set -D 20, or intel_idle.max_cstate=1 on the kernel's command line",
    )
}

fn iommu(root: &Root<'_>) -> Finding {
    if root.names("sys/class/iommu").is_empty() {
        return finding("iommu", Verdict::Good, "none is in use", "");
    }
    let groups = "sys/kernel/iommu_groups";
    let kinds: std::collections::BTreeSet<String> = root
        .names(groups)
        .iter()
        .filter_map(|g| root.text(&format!("{groups}/{g}/type")))
        .collect();
    let line = root.text("proc/cmdline").unwrap_or_default();
    let passes = line.split_whitespace().any(|w| matches!(w, "iommu=pt" | "iommu.passthrough=1"));
    let (verdict, found) = if passes || (!kinds.is_empty() && kinds.iter().all(|k| k == "identity"))
    {
        (Verdict::Good, "devices reach memory directly (passthrough)".to_owned())
    } else if kinds.is_empty() {
        (Verdict::Unknown, "in use; the mode is not told".to_owned())
    } else {
        let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
        (Verdict::Slow, format!("each transfer is translated ({})", kinds.join(", ")))
    };
    finding("iommu", verdict, found, "iommu=pt on the kernel's command line")
}

fn huge_pages(root: &Root<'_>) -> Finding {
    let text = root.text("sys/kernel/mm/transparent_hugepage/enabled");
    let mode = text.as_deref().and_then(chosen);
    let verdict = match mode {
        None => Verdict::Unknown,
        Some("always") => Verdict::Slow,
        Some(_) => Verdict::Good,
    };
    finding(
        "transparent huge pages",
        verdict,
        mode.unwrap_or("the kernel does not say"),
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: to clear a huge page stalls \
         the request that touches it first",
    )
}

fn open_files(root: &Root<'_>) -> Finding {
    let text = root.text("proc/self/limits").unwrap_or_default();
    let limits = text.lines().find_map(|l| l.strip_prefix("Max open files"));
    let soft = limits.and_then(|l| l.split_whitespace().next()).map(str::to_owned);
    let verdict = match soft.as_deref() {
        None => Verdict::Unknown,
        Some("unlimited") => Verdict::Good,
        Some(n) if n.parse::<u64>().is_ok_and(|n| n >= FILES) => Verdict::Good,
        Some(_) => Verdict::Slow,
    };
    finding(
        "open files",
        verdict,
        soft.map_or("the kernel does not say".into(), |n| format!("at most {n} in this session")),
        "LimitNOFILE=1048576 in the unit, or ulimit -n: sessions beyond the limit are refused",
    )
}

fn clock_source(root: &Root<'_>) -> Finding {
    let source = root.text("sys/devices/system/clocksource/clocksource0/current_clocksource");
    let verdict = match source.as_deref() {
        None => Verdict::Unknown,
        Some("tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter") => {
            Verdict::Good
        }
        Some(_) => Verdict::Slow,
    };
    finding(
        "clock source",
        verdict,
        source.unwrap_or("the kernel does not say".into()),
        "clocksource=tsc tsc=reliable on the kernel's command line, if the processor's counter is \
         constant: other clocks take a call of the kernel each time",
    )
}

fn clock_sync(root: &Root<'_>) -> Finding {
    let signs = [
        ("run/systemd/timesync/synchronized", "systemd-timesyncd"),
        ("run/chrony/chronyd.pid", "chronyd"),
        ("var/run/chrony/chronyd.pid", "chronyd"),
        ("run/ntpd.pid", "ntpd"),
        ("run/ptp4l", "ptp4l"),
    ];
    match signs.iter().find(|(path, _)| root.exists(path)) {
        Some((_, who)) => finding("clock", Verdict::Good, format!("{who} keeps it"), ""),
        None => finding(
            "clock",
            Verdict::Slow,
            "nothing is seen that keeps it right",
            "install chrony: monitors whose clocks differ complain, and leases and tickets end too \
             early or too late",
        ),
    }
}

/// The file system of the place, and whether it keeps what is flushed.
fn file_system(root: &Root<'_>, place: &Place) -> Finding {
    let text = root.text("proc/mounts").unwrap_or_default();
    let mount = text
        .lines()
        .filter_map(|l| {
            let mut words = l.split_whitespace();
            let (_, at, kind, options) =
                (words.next()?, words.next()?, words.next()?, words.next()?);
            // Blanks are written as octal numbers.
            Some((at.replace("\\040", " "), kind, options))
        })
        .filter(|(at, ..)| place.directory.starts_with(at))
        // Of mounts on each other the last one is seen.
        .fold(None::<(String, &str, &str)>, |best, m| match best {
            Some(b) if b.0.len() > m.0.len() => Some(b),
            _ => Some(m),
        });
    let Some((at, kind, options)) = mount else {
        return finding("file system", Verdict::Unknown, "the mount is not found", "");
    };
    let option = |names: &[&str]| options.split(',').find(|o| names.contains(o));
    let unsafe_option = option(&["nobarrier", "barrier=0", "data=writeback"]);
    let found = format!("{kind} on {at}");
    match (kind, unsafe_option) {
        ("tmpfs" | "ramfs", _) => finding(
            "file system",
            Verdict::Danger,
            found,
            "data in memory is gone with the power: use a directory on a device",
        ),
        (_, Some(o)) => finding(
            "file system",
            Verdict::Danger,
            format!("{found} with {o}"),
            "mount it without this option: what is flushed may be lost with the power",
        ),
        ("overlay" | "nfs" | "nfs4" | "fuse" | "9p" | "virtiofs", None) => finding(
            "file system",
            Verdict::Slow,
            found,
            "use a file system on a local device, or the device itself",
        ),
        _ => finding("file system", Verdict::Good, found, ""),
    }
}

/// The device below a place: of a partition the whole one.
fn device(root: &Root<'_>, number: &str) -> Option<String> {
    let at = root.0.join("sys/dev/block").join(number);
    let real = fs::canonicalize(at).ok()?;
    let whole = if real.join("partition").exists() { real.parent()?.to_owned() } else { real };
    Some(whole.file_name()?.to_str()?.to_owned())
}

/// Whether the device forgets what it has not flushed, and whether the kernel flushes it.
fn write_cache(root: &Root<'_>, place: &Place) -> Finding {
    let check = "write cache";
    let Some(name) = device(root, &place.device) else {
        return finding(check, Verdict::Unknown, "no device is seen below the directory", "");
    };
    let flushes = root.text(&format!("sys/block/{name}/queue/write_cache"));
    let disks = format!("sys/block/{name}/device/scsi_disk");
    let own =
        root.names(&disks).first().and_then(|d| root.text(&format!("{disks}/{d}/cache_type")));
    match (flushes.as_deref(), own.as_deref()) {
        (Some("write through"), Some(own)) if own.starts_with("write back") => finding(
            check,
            Verdict::Danger,
            format!("{name} has a cache that it may lose, and the kernel is told not to flush it"),
            "echo 'write back' > /sys/block/DEVICE/queue/write_cache",
        ),
        (Some("write back"), _) => finding(
            check,
            Verdict::Slow,
            format!("{name} keeps writes in a cache that each flush has to empty"),
            "use drives with power protection; with a volatile cache each write waits for a flush",
        ),
        (Some("write through"), _) => {
            finding(check, Verdict::Good, format!("{name} has no cache that it may lose"), "")
        }
        _ => finding(check, Verdict::Unknown, format!("{name} does not say"), ""),
    }
}

fn memory_errors(root: &Root<'_>) -> Finding {
    let at = "sys/devices/system/edac/mc";
    let controllers: Vec<String> =
        root.names(at).into_iter().filter(|n| n.starts_with("mc")).collect();
    let wrong: u64 = controllers
        .iter()
        .filter_map(|c| root.text(&format!("{at}/{c}/ue_count"))?.parse::<u64>().ok())
        .sum();
    match (controllers.is_empty(), wrong) {
        (true, _) => finding("memory", Verdict::Unknown, "no error correction is seen", ""),
        (_, 0) => finding("memory", Verdict::Good, "errors are corrected; none was too large", ""),
        (_, n) => finding(
            "memory",
            Verdict::Danger,
            format!("{n} errors were not corrected"),
            "replace the module (edac-util -v names it): wrong bytes may have been written",
        ),
    }
}

/// What the files below `root` say: those of this host if it is `/`.
pub fn examine(root: &Path, place: &Place) -> Vec<Finding> {
    let root = Root(root);
    vec![
        governor(&root),
        idle_states(&root),
        iommu(&root),
        huge_pages(&root),
        open_files(&root),
        clock_source(&root),
        clock_sync(&root),
        memory_errors(&root),
        file_system(&root, place),
        write_cache(&root, place),
    ]
}

/// How long flushes took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushes {
    /// The middle one.
    pub median: Duration,
    /// One of a hundred took longer.
    pub p99: Duration,
}

/// Writes a block and flushes it, many times.
fn measure(directory: &Path) -> Result<Flushes> {
    let path = directory.join(format!(".siphon-doctor-{}", std::process::id()));
    let measured = measure_in(&path);
    let _ = fs::remove_file(&path);
    measured.with_context(|| format!("flushes in {} cannot be measured", directory.display()))
}

fn measure_in(path: &Path) -> std::io::Result<Flushes> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    let block = [0x5a; 4096];
    // What makes the file longer is not measured.
    file.write_all(&block)?;
    file.sync_all()?;
    let begun = Instant::now();
    let mut times = Vec::new();
    while times.len() < FLUSHES && begun.elapsed() < MEASURE {
        let one = Instant::now();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(one.elapsed());
    }
    Ok(percentiles(times))
}

fn percentiles(mut times: Vec<Duration>) -> Flushes {
    times.sort();
    let at = |part: f64| {
        let last = times.len().saturating_sub(1);
        times.get((last as f64 * part).round() as usize).copied().unwrap_or_default()
    };
    Flushes { median: at(0.5), p99: at(0.99) }
}

fn judge_flushes(f: Flushes) -> Finding {
    let ms = |d: Duration| format!("{:.3} ms", d.as_secs_f64() * 1000.0);
    let verdict = if f.median > SLOW_FLUSH { Verdict::Slow } else { Verdict::Good };
    finding(
        "flush time",
        verdict,
        format!(
            "4 KiB and a flush take {}, one of a hundred more than {}",
            ms(f.median),
            ms(f.p99)
        ),
        "drives with power protection need less than 0.1 ms; every write waits for a flush",
    )
}

fn text(findings: &[Finding]) -> String {
    let mut out = String::new();
    for f in findings {
        out += &format!("{:<8} {:<24} {}\n", f.verdict.word(), f.check, f.found);
        if !f.advice.is_empty() {
            out += &format!("{:<33} -> {}\n", "", f.advice);
        }
    }
    let count = |v: Verdict| findings.iter().filter(|f| f.verdict == v).count();
    out + &format!(
        "{} endanger data, {} cost performance or stability, {} are not known\n",
        count(Verdict::Danger),
        count(Verdict::Slow),
        count(Verdict::Unknown)
    )
}

fn to_json(findings: &[Finding], flushes: Option<Flushes>) -> Value {
    let one = |f: &Finding| json!({"check": f.check, "verdict": f.verdict.word(), "found": f.found, "advice": f.advice});
    let worst = findings.iter().map(|f| f.verdict).max().unwrap_or(Verdict::Good);
    json!({
        "verdict": worst.word(),
        "findings": findings.iter().map(one).collect::<Vec<_>>(),
        "flush_seconds": flushes.map(|f| json!({"median": f.median.as_secs_f64(), "p99": f.p99.as_secs_f64()})),
    })
}

/// Runs the command. False if something endangers data.
pub fn run(args: &Doctor) -> Result<bool> {
    let directory = fs::canonicalize(&args.directory)
        .with_context(|| format!("{} cannot be looked at", args.directory.display()))?;
    let number = fs::metadata(&directory)?.dev();
    let (major, minor) =
        (number >> 8 & 0xfff | number >> 32 & !0xfff, number & 0xff | number >> 12 & !0xff);
    let place = Place { directory: directory.clone(), device: format!("{major}:{minor}") };
    let mut findings = examine(Path::new("/"), &place);
    let flushes = if args.no_write { None } else { Some(measure(&directory)?) };
    findings.extend(flushes.map(judge_flushes));
    match args.format {
        crate::cli::TextFormat::Plain => print!("{}", text(&findings)),
        crate::cli::TextFormat::Json => println!("{:#}", to_json(&findings, flushes)),
    }
    Ok(findings.iter().all(|f| f.verdict != Verdict::Danger))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A made-up host.
    struct Host(tempfile::TempDir);

    impl Host {
        fn new(files: &[(&str, &str)]) -> Host {
            let dir = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = dir.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Host(dir)
        }

        /// A device under its number, and a partition of it.
        fn disk(self, name: &str, number: &str) -> Host {
            let at = self.0.path().join(format!("sys/devices/x/block/{name}"));
            let part = at.join(format!("{name}1"));
            fs::create_dir_all(&part).unwrap();
            fs::write(part.join("partition"), "1\n").unwrap();
            let numbers = self.0.path().join("sys/dev/block");
            fs::create_dir_all(&numbers).unwrap();
            symlink(&part, numbers.join(number)).unwrap();
            self
        }

        fn look(&self) -> Vec<Finding> {
            let place = Place { directory: "/var/lib/data".into(), device: "8:1".into() };
            examine(self.0.path(), &place)
        }

        fn of(&self, check: &str) -> (Verdict, String) {
            let f = self.look().into_iter().find(|f| f.check == check).unwrap();
            (f.verdict, f.found)
        }
    }

    #[test]
    fn a_host_that_says_nothing_is_unknown_and_no_error() {
        let host = Host::new(&[]);
        let all = host.look();
        assert!(all.iter().all(|f| f.verdict != Verdict::Danger));
        assert_eq!(host.of("write cache").0, Verdict::Unknown);
        assert_eq!(host.of("clock").0, Verdict::Slow);
        assert_eq!(host.of("iommu").0, Verdict::Good);
    }

    #[test]
    fn a_good_host() {
        let host = Host::new(&[
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C6"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "133"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "1"),
            ("sys/class/iommu/dmar0/x", ""),
            ("sys/kernel/iommu_groups/0/type", "identity\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax open files            1048576              1048576              files\n"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
            ("run/chrony/chronyd.pid", "7"),
            ("sys/devices/system/edac/mc/mc0/ue_count", "0"),
            ("proc/mounts", "/dev/sda2 / ext4 rw 0 0\n/dev/sda1 /var/lib/data xfs rw,noatime 0 0\n"),
            ("sys/block/sda/queue/write_cache", "write through\n"),
        ])
        .disk("sda", "8:1");
        for f in host.look() {
            assert_eq!((f.verdict, f.advice), (Verdict::Good, ""), "{f:?}");
        }
        assert_eq!(host.of("file system").1, "xfs on /var/lib/data");
    }

    #[test]
    fn what_costs_performance_is_said_with_what_to_do() {
        let host = Host::new(&[
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C6"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "133"),
            ("sys/class/iommu/dmar0/x", ""),
            ("sys/kernel/iommu_groups/0/type", "DMA-FQ"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never"),
            (
                "proc/self/limits",
                "Max open files            1024                 524288               files",
            ),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
            ("proc/mounts", "overlay / overlay rw 0 0"),
            ("sys/block/sda/queue/write_cache", "write back"),
        ])
        .disk("sda", "8:1");
        for f in host.look().iter().filter(|f| f.check != "memory") {
            assert_eq!(f.verdict, Verdict::Slow, "{f:?}");
            assert!(!f.advice.is_empty());
        }
        assert_eq!(host.of("cpu governor").1, "performance on 1 cores, powersave on 1 cores");
        let said = text(&host.look());
        assert!(said.contains("slow     write cache"), "{said}");
        assert!(
            said.ends_with("0 endanger data, 9 cost performance or stability, 1 are not known\n")
        );
    }

    #[test]
    fn what_endangers_data() {
        let of = |mounts: &str| {
            let host = Host::new(&[("proc/mounts", mounts)]);
            host.of("file system")
        };
        assert_eq!(of("none /var tmpfs rw 0 0").0, Verdict::Danger);
        assert_eq!(of("/dev/sda1 / ext4 rw,nobarrier 0 0").0, Verdict::Danger);
        assert_eq!(of("/dev/sda1 / ext4 rw 0 0\nnone /tmp tmpfs rw 0 0").0, Verdict::Good);
        assert_eq!(of("nonsense").0, Verdict::Unknown);
        let host = Host::new(&[
            ("sys/block/sda/queue/write_cache", "write through"),
            ("sys/block/sda/device/scsi_disk/0:0:0:0/cache_type", "write back"),
            ("sys/devices/system/edac/mc/mc0/ue_count", "2"),
        ])
        .disk("sda", "8:1");
        assert_eq!(host.of("write cache").0, Verdict::Danger);
        assert_eq!(host.of("memory").0, Verdict::Danger);
        assert_eq!(to_json(&host.look(), None)["verdict"], "danger");
    }

    #[test]
    fn flushes_are_measured_and_judged() {
        let ms = Duration::from_millis;
        let f = percentiles((0..100).map(ms).collect());
        assert_eq!((f.median, f.p99), (ms(50), ms(98)));
        assert_eq!(judge_flushes(f).verdict, Verdict::Slow);
        assert_eq!(
            judge_flushes(percentiles(vec![Duration::from_micros(80)])).verdict,
            Verdict::Good
        );
        let dir = tempfile::tempdir().unwrap();
        assert!(measure(dir.path()).unwrap().p99 > Duration::ZERO);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    }
}
