//! The client tests: each file is a pytest of its own, a few at a time.
//!
//! Much of such a test is waiting, so there are two more of them than cores. A file has its own
//! cluster and its own process group: a stock library that crashes takes no other file with it, and
//! nothing of a file outlives it.
//!
//! These are tests of real processes, with libraries that have races of their own, on a machine
//! that may be busy with others' work. A file that failed is therefore run once more, with the
//! machine to itself; what it printed the first time is shown all the same, and the summary names
//! it. `--strict` counts the first failure. If many files fail, the machine is not the reason, and
//! none is run again.

use crate::timing::Timing;
use anyhow::{Context, Result, bail};
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The longest files, to be started first; what is short fills the gaps at the end.
const FIRST: &[&str] = &[
    "test_thrash.py",
    "test_pg_num.py",
    "test_hosts.py",
    "test_rbd_model.py",
    "test_rbd_binding_images.py",
    "test_durability.py",
    "test_rbd_more_commands.py",
    "test_rbd_mgr.py",
    "test_rbd.py",
];

/// A test that hangs prints where, after this time, ...
const DUMP_AFTER: Duration = Duration::from_secs(600);
/// ... and its file is ended after this one.
const LIMIT: Duration = Duration::from_secs(15 * 60);
/// The same with the long rounds.
const LIMIT_LONG: Duration = Duration::from_secs(4 * 3600);

/// If more files than these failed, they are not run again.
const AGAIN_AT_MOST: usize = 3;

/// How to run them.
pub struct Clients<'a> {
    /// The checkout.
    pub root: &'a Path,
    /// Variables of the tests, see tests/clients/conftest.py.
    pub variables: Vec<(&'static str, String)>,
    /// The long rounds run, too: more time.
    pub long: bool,
    /// A file that fails once has failed.
    pub strict: bool,
    /// Only the files whose names contain one of these; all if empty.
    pub only: &'a [String],
}

impl Clients<'_> {
    /// Runs them all, prints a line each, and the whole output of those that failed.
    pub fn run(&self, timing: &mut Timing) -> Result<()> {
        let started = Instant::now();
        let took = Mutex::new(Vec::new());
        let result = self.run_all(&took);
        timing.add("stock clients, all files side by side", started.elapsed());
        let mut took = took.into_inner().expect("no panics in workers");
        took.sort_by_key(|(_, t)| std::cmp::Reverse(*t));
        took.iter().for_each(|(file, t)| timing.add(&format!("  {}", name(file)), *t));
        result
    }

    fn run_all(&self, took: &Mutex<Vec<(PathBuf, Duration)>>) -> Result<()> {
        let files = self.files()?;
        let count = files.len();
        let logs = self.root.join("target/client-tests");
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let jobs = std::thread::available_parallelism().map_or(2, |n| n.get().min(3)) + 2;
        let waiting = Mutex::new(files);
        let failed = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs)
                .map(|_| {
                    scope.spawn(|| -> Result<()> {
                        loop {
                            let Some(file) =
                                waiting.lock().expect("no panics in workers").pop_front()
                            else {
                                return Ok(());
                            };
                            let began = Instant::now();
                            let log = logs.join(name(&file).replace(".py", ".log"));
                            let passed = self.one(&file, &log)?;
                            took.lock()
                                .expect("no panics in workers")
                                .push((file.clone(), began.elapsed()));
                            if !passed {
                                failed.lock().expect("no panics in workers").push(file);
                            }
                        }
                    })
                })
                .collect();
            workers.into_iter().try_for_each(|w| w.join().expect("no panics in workers"))
        })?;
        let mut failed = failed.into_inner().expect("no panics in workers");
        failed.sort();
        let first = names(&failed);
        if !self.strict && (1..=AGAIN_AT_MOST).contains(&failed.len()) {
            eprintln!("== once more, one at a time: {first}");
            let mut still = Vec::new();
            for file in failed {
                if !self.one(&file, &logs.join(name(&file).replace(".py", ".again.log")))? {
                    still.push(file);
                }
            }
            failed = still;
        }
        if !failed.is_empty() {
            bail!(
                "{} of {count} files of client tests failed: {}; their output is in {}",
                failed.len(),
                names(&failed),
                logs.display()
            );
        }
        if !first.is_empty() {
            eprintln!(
                "== passed only when run alone: {first}; what failed is in {}",
                logs.display()
            );
        }
        Ok(())
    }

    fn files(&self) -> Result<VecDeque<PathBuf>> {
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
        Ok(files.into())
    }

    /// Runs one file, with what it prints in `path`; whether it passed.
    fn one(&self, file: &Path, path: &Path) -> Result<bool> {
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
        Ok(passed)
    }
}

/// How long somebody wants the thrasher to go on (tests/clients/test_thrash.py): that is not a test
/// that hangs.
fn asked_for() -> Duration {
    let seconds = std::env::var("SIPHON_THRASH_SECONDS").ok().and_then(|s| s.parse().ok());
    seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or_default()
}

fn name(file: &Path) -> &str {
    file.file_name().and_then(|n| n.to_str()).unwrap_or_default()
}

fn names(files: &[PathBuf]) -> String {
    files.iter().map(|f| name(f)).collect::<Vec<_>>().join(" ")
}
