//! What needs neither root nor a network, in about a minute: before each commit, and first in CI.

use crate::programs::PROFILE;
use crate::shell::{root, run};
use crate::timing::Timing;
use crate::{container, docs, results, tidy};
use anyhow::Result;
use std::process::Command;

/// Crates with unit tests that end within seconds. `store`, `sim`, `mon` and `qos-sim` have tests
/// that run for minutes (crash cuts, seeds, simulated monitors); `cargo xtask test` runs those.
const UNIT: &[&str] = &[
    "aligned",
    "auth",
    "command",
    "conf",
    "crush",
    "denc",
    "messages",
    "modes",
    "msgr",
    "pgmap",
    "rgw",
    "s3",
    "types",
    "admission",
    "cls",
    "ec",
    "objops",
    "pg",
    "placement",
    "promises",
    "qos",
    "s3-rules",
    "xtask",
];

/// What to check.
#[derive(clap::Args)]
pub struct Check {
    /// Lower the counts in xtask/tidy-allowed.txt to what is left.
    #[arg(long)]
    pub shrink: bool,
    /// Leave out compilation: format, tidy and generated pages that need no build.
    #[arg(long)]
    pub quick: bool,
    /// Leave out what all tests do anyway: unit tests and the page that a binary writes.
    #[arg(skip)]
    pub tests_follow: bool,
}

/// Runs all checks, the cheapest first.
pub fn check(check: &Check, timing: &mut Timing) -> Result<()> {
    let cargo = || Command::new("cargo");
    timing.time("format", || run("format", cargo().args(["fmt", "--all", "--", "--check"])))?;
    timing.time("tidy", || tidy::check(&root(), check.shrink))?;
    timing.time("container", || container::check(&root()))?;
    timing.time("results page", || results::results(true))?;
    if check.quick {
        return Ok(());
    }
    // What the tests are built with shares procedural macros and build scripts with these two.
    let profile = if check.tests_follow { PROFILE } else { "dev" };
    timing.time("clippy", || {
        let clippy = ["clippy", "--workspace", "--all-targets", "--quiet", "--profile", profile];
        run("clippy", cargo().args(clippy).args(["--", "-D", "warnings"]))
    })?;
    timing.time("documentation", || {
        let doc = ["doc", "--workspace", "--no-deps", "--quiet", "--profile", profile];
        run("documentation", cargo().args(doc).env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    if check.tests_follow {
        return Ok(());
    }
    timing.time("compatibility page", || docs::compatibility(true, None))?;
    timing.time("unit tests, quick crates", || {
        let mut unit = cargo();
        unit.args(["test", "--quiet", "--lib", "--bins"]);
        UNIT.iter().for_each(|c| {
            unit.args(["-p", c]);
        });
        run("unit tests", &mut unit)
    })
}
