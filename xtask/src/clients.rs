//! The client tests: each file is a pytest of its own, a few at a time.
//!
//! Much of such a test is waiting, so there are two more of them than cores. A file has its own
//! cluster and its own process group: a stock library that crashes takes no other file with it, and
//! nothing of a file outlives it.

use crate::side_by_side::{Outcome, Run, SideBySide};
use crate::timing::Timing;
use anyhow::{Context, Result, bail};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest files, to be started first; what is short fills the gaps at the end.
const FIRST: &[&str] = &[
    "test_pg_num.py",
    "test_hosts.py",
    "test_thrash.py",
    "test_fs_hosts.py",
    "test_fs_in_chroot.py",
    "test_rbd_model.py",
    "test_erasure.py",
    "test_full_disks.py",
    "test_rbd_mgr.py",
    "test_durability.py",
    "test_erasure_wide.py",
    "test_backfill.py",
    "test_mds.py",
    "test_rbd.py",
    "test_cephfs.py",
    "test_five_mons.py",
];

/// A test that hangs prints where, after this time, ...
const DUMP_AFTER: Duration = Duration::from_secs(600);
/// ... and its file is ended after this one.
const LIMIT: Duration = Duration::from_secs(15 * 60);
/// The same with the long rounds.
const LIMIT_LONG: Duration = Duration::from_secs(4 * 3600);

/// How to run them.
pub struct Clients<'a> {
    /// The checkout.
    pub root: &'a Path,
    /// Variables of the tests, see tests/clients/conftest.py.
    pub variables: Vec<(String, String)>,
    /// The long rounds run, too: more time.
    pub long: bool,
    /// A file that fails once has failed.
    pub strict: bool,
    /// Only the files whose names contain one of these; all if empty.
    pub only: &'a [String],
}

/// A file of tests.
struct File(PathBuf);

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name(&self.0))
    }
}

impl Clients<'_> {
    /// Runs them all, prints a line each, and the whole output of those that failed.
    pub fn run(&self, timing: &mut Timing) -> Result<()> {
        let files = self.files()?;
        let logs = self.root.join("target/client-tests");
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let jobs = std::thread::available_parallelism().map_or(2, |n| n.get().min(3)) + 2;
        let all = SideBySide {
            what: "stock clients, all files side by side",
            jobs,
            strict: self.strict,
            rows: usize::MAX,
        };
        let result = all.run(files, timing, |file, which| {
            let kind = if which == Run::Again { ".again.log" } else { ".log" };
            self.one(&file.0, &logs.join(file.to_string().replace(".py", kind)))
        });
        result.with_context(|| format!("the output of the files is in {}", logs.display()))
    }

    fn files(&self) -> Result<Vec<File>> {
        let dir = self.root.join("tests/clients");
        let mut files: Vec<PathBuf> = fs::read_dir(&dir)
            .with_context(|| format!("cannot list {}", dir.display()))?
            .map(|entry| entry.map(|e| e.path()))
            .collect::<std::io::Result<_>>()?;
        files.retain(|f| {
            let name = name(f);
            name.starts_with("test_")
                && name.ends_with(".py")
                && (self.only.is_empty() || self.only.iter().any(|o| name.contains(o.as_str())))
        });
        if files.is_empty() {
            bail!("no file in {} has a name with {}", dir.display(), self.only.join(" or "));
        }
        files.sort_by_key(|f| {
            (FIRST.iter().position(|first| *first == name(f)).unwrap_or(FIRST.len()), f.clone())
        });
        Ok(files.into_iter().map(File).collect())
    }

    /// Runs one file, with what it prints in `path`.
    fn one(&self, file: &Path, path: &Path) -> Result<Outcome> {
        let name = name(file);
        let log =
            fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let limit = if self.long { LIMIT_LONG } else { LIMIT + asked_for() };
        let started = Instant::now();
        // `timeout` makes the process group; it ends with this process, too.
        let mut child = Command::new("setpriv")
            .args([
                "--pdeathsig",
                "TERM",
                "timeout",
                "--kill-after=20",
                &limit.as_secs().to_string(),
            ])
            .args([
                "/usr/bin/python3",
                "-m",
                "pytest",
                "-v",
                "-p",
                "no:cacheprovider",
                "-rs",
                "--durations=5",
            ])
            .args(["-o", &format!("faulthandler_timeout={}", DUMP_AFTER.as_secs())])
            .arg(file)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env_remove("PYTHONPATH")
            .envs(self.variables.iter().map(|(k, v)| (k, v)))
            .current_dir(self.root)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start setpriv")?;
        let status = child.wait()?;
        // A python that crashed leaves its cluster behind. The group may well be gone: no matter.
        let _ = Command::new("kill")
            .args(["-KILL", "--", &format!("-{}", child.id())])
            .stderr(Stdio::null())
            .status();
        let output = String::from_utf8_lossy(&fs::read(path)?).into_owned();
        let last = output
            .lines()
            .rev()
            .find(|l| l.starts_with("=="))
            .map_or("no summary", |l| l.trim_matches(['=', ' ']));
        // 5: every test of the file was left out, by a flag.
        let passed = status.success() || status.code() == Some(5);
        let seconds = started.elapsed().as_secs();
        if passed {
            eprintln!("   {name}: {last} ({seconds} s)");
        } else {
            eprintln!("{output}\n   {name}: FAILED, {status}: {last} ({seconds} s)");
        }
        Ok(Outcome::of(passed, &output, "E  ", 0))
    }
}

/// How long the thrasher is asked to go on (tests/clients/test_thrash.py): that is not a test that
/// hangs.
fn asked_for() -> Duration {
    let seconds = std::env::var("SIPHON_THRASH_SECONDS").ok().and_then(|s| s.parse().ok());
    seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or_default()
}

fn name(file: &Path) -> &str {
    file.file_name().and_then(|n| n.to_str()).unwrap_or_default()
}
