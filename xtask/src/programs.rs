//! The test programs of the workspace: one build, then a few programs at a time.
//!
//! Everything is built once, with the profile `clients`: unit tests, the simulation, and the server
//! that the stock clients meet are of the same compilation. A program runs as `cargo test` runs it:
//! in the directory of its package.

use crate::shell::{gently, root};
use crate::side_by_side::{Outcome, Run, SideBySide};
use crate::timing::Timing;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The profile of everything that the tests run.
pub const PROFILE: &str = "clients";

/// Parts of names of the longest programs, to be started first.
const FIRST: &[&str] = &["sim.bugs", "sim.seeds", "store", "mon", "mds-sim", "qos-sim"];

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The package, and the test target if it is not that of the library.
    pub name: String,
    /// The directory of its package.
    pub directory: PathBuf,
    /// The program.
    pub path: PathBuf,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Builds the test programs and the daemons; with `live` only those that the client tests run.
pub fn build(live: bool) -> Result<Vec<Program>> {
    let what = "build of everything that the tests run";
    eprintln!("== {what}");
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-run", "--workspace", "--profile", PROFILE]);
    cargo.arg("--message-format=json-render-diagnostics");
    if live {
        // Tests of the package `siphon` bring its program with them.
        cargo.args(["--test", "live", "--test", "compatibility"]);
    }
    let mut child = cargo
        .current_dir(root())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{what}: cannot start cargo"))?;
    let mut messages = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut messages)?;
    let status = child.wait()?;
    if !status.success() {
        bail!("{what} failed ({status})");
    }
    parse(&messages)
}

/// The programs in what cargo tells, one JSON text a line.
fn parse(messages: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|l| l.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("a message of cargo")?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            continue;
        }
        let (Some(path), Some(manifest), Some(target)) = (
            message["executable"].as_str(),
            message["manifest_path"].as_str(),
            message["target"]["name"].as_str(),
        ) else {
            continue;
        };
        let directory = Path::new(manifest).parent().context("a manifest in no directory")?;
        let package = package_name(&directory.join("Cargo.toml"))?;
        let name = match message["target"]["kind"][0].as_str() {
            Some("test") => format!("{package}.{target}"),
            Some("bin") if package != target => format!("{package}.bin-{target}"),
            _ => package,
        };
        programs.push(Program { name, directory: directory.to_owned(), path: path.into() });
    }
    programs.sort_by_key(|p| {
        (FIRST.iter().position(|f| p.name.contains(f)).unwrap_or(FIRST.len()), p.name.clone())
    });
    Ok(programs)
}

fn package_name(manifest: &Path) -> Result<String> {
    let text = fs::read_to_string(manifest)
        .with_context(|| format!("cannot read {}", manifest.display()))?;
    text.lines()
        .find_map(|l| l.strip_prefix("name = \"").and_then(|l| l.strip_suffix('"')))
        .map(str::to_owned)
        .with_context(|| format!("no name in {}", manifest.display()))
}

/// Runs them all, prints a line each, and the whole output of those that failed.
pub fn run(
    programs: Vec<Program>,
    strict: bool,
    variables: &[(&str, &str)],
    timing: &mut Timing,
) -> Result<()> {
    let logs = root().join("target/unit-tests");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let libraries = libraries()?;
    let jobs = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let all =
        SideBySide { what: "unit, simulation, crash and oracle tests", jobs, strict, rows: 10 };
    eprintln!("== {}", all.what);
    all.run(programs, timing, |program, which| {
        let again = if which == Run::Again { ".again" } else { "" };
        let log = logs.join(format!("{program}{again}.log"));
        let file =
            fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let started = Instant::now();
        let status = gently(&program.path)
            .current_dir(&program.directory)
            .env("CARGO_MANIFEST_DIR", &program.directory)
            .env("LD_LIBRARY_PATH", &libraries)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .status()
            .with_context(|| format!("cannot start {}", program.path.display()))?;
        let seconds = started.elapsed().as_secs();
        let output = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        let last = output.lines().rev().find(|l| l.starts_with("test result"));
        if status.success() {
            eprintln!("   {program}: {} ({seconds} s)", last.unwrap_or("passed"));
        } else {
            eprintln!("{output}\n   {program}: FAILED, {status} ({seconds} s)");
        }
        Ok(Outcome::of(status.success(), &output, "thread '", 3))
    })
}

/// Where the standard library is, which tests of procedural macros load.
fn libraries() -> Result<String> {
    let out = Command::new("rustc")
        .args(["--print", "target-libdir"])
        .current_dir(root())
        .output()
        .context("cannot run rustc")?;
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_after_package_and_target_the_longest_first() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = dir.path().join("Cargo.toml");
        fs::write(&manifest, "[package]\nname = \"mds-sim\"\n").unwrap();
        let artifact = |kind: &str, target: &str, test: bool, executable: Value| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "manifest_path": manifest.to_str(),
                "target": {"name": target, "kind": [kind]},
                "profile": {"test": test},
                "executable": executable,
            })
            .to_string()
        };
        let messages = [
            artifact("lib", "mds_sim", true, "/t/lib".into()),
            artifact("test", "seeds", true, "/t/seeds".into()),
            artifact("bin", "tool", true, "/t/tool".into()),
            artifact("bin", "tool", false, "/t/not-a-test".into()),
            artifact("lib", "mds_sim", false, Value::Null),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = parse(&messages.join("\n")).unwrap();
        let named: Vec<_> =
            found.iter().map(|p| (p.name.as_str(), p.path.to_str().unwrap())).collect();
        assert_eq!(
            named,
            [("mds-sim.seeds", "/t/seeds"), ("mds-sim", "/t/lib"), ("mds-sim.bin-tool", "/t/tool"),]
        );
        assert!(found.iter().all(|p| p.directory == dir.path()));
    }
}
