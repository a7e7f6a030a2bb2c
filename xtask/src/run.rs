//! Running the tests and benchmarks.

use crate::check::{self, Check};
use crate::clients::Clients;
use crate::programs::{self, PROFILE, Program};
use crate::shell::{gently, root, run};
use crate::side_by_side::beside_others;
use crate::timing::Timing;
use anyhow::{Result, bail};
use std::path::PathBuf;
use std::process::Command;

/// Debian packages with the stock clients, the oracles, and what the client tests use.
const PACKAGES: &[&str] = &[
    "ceph-common",
    "ceph-base",
    "python3-rados",
    "python3-rbd",
    "python3-cephfs",
    "ceph-fuse",
    "ceph-mds",
    "ceph-mgr-modules-core",
    "python3-pytest",
    "fio",
    "iproute2",
    "qemu-utils",
    "qemu-block-extra",
    "radosgw",
    "python3-boto3",
    "s3cmd",
    "rclone",
    "restic",
    "jq",
    "build-essential",
];

/// The same for the benchmark and the differential test, which also start stock servers.
const PEER_PACKAGES: &[&str] = &["ceph-mon", "ceph-osd", "ceph-mgr", "libgoogle-perftools4"];

fn install(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|p| {
            let known =
                Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", p]).output();
            !known.is_ok_and(|o| o.stdout == b"installed")
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    run("package lists", Command::new("apt-get").args(["update", "-qq"]))?;
    run(
        "stock clients",
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(missing),
    )
}

/// Which tests.
#[derive(clap::Args)]
pub struct Tests {
    /// Many more inputs: 10,000 seeds of the simulation instead of 300, 50,000 crash cuts instead
    /// of 3,000, 20,000 fuzz inputs of the messenger instead of 1,500, and the durability rounds in
    /// full.
    #[arg(long)]
    pub long: bool,
    /// Only what needs no live cluster.
    #[arg(long)]
    pub no_clients: bool,
    /// Also run the client tests with the 18.2 clients of Debian 13, unpacked to this directory.
    #[arg(long, value_name = "DIR")]
    pub debian13: Option<PathBuf>,
    /// Also start a stock cluster, and compare its answers to random operations with ours.
    #[arg(long)]
    pub differential: bool,
    /// Also build a program with the independent client of the crate `rados`, and run it against
    /// the cluster. Fetches that crate and its dependencies.
    #[arg(long)]
    pub rados_crate: bool,
    /// Also run the newest boto3 and aws of PyPI through gateways for S3. Fetches them.
    #[arg(long)]
    pub pypi: bool,
    /// A test program or a file of client tests that fails is not run once more alone.
    #[arg(long)]
    pub strict: bool,
    /// Do not install packages.
    #[arg(long)]
    pub no_install: bool,
    /// Only these client tests: parts of names of files in tests/clients.
    #[arg(value_name = "FILE")]
    pub only: Vec<String>,
}

/// All tests.
pub fn test(tests: &Tests, timing: &mut Timing) -> Result<()> {
    let &Tests {
        long,
        no_clients,
        ref debian13,
        differential,
        rados_crate,
        pypi,
        strict,
        no_install,
        ref only,
    } = tests;
    if only.is_empty() {
        check::check(&Check { shrink: false, quick: false, tests_follow: true }, timing)?;
    }
    if !no_install {
        install(PACKAGES)?;
        if differential {
            install(PEER_PACKAGES)?;
        }
        if pypi {
            install(&["python3-pip"])?;
        }
    }
    if only.is_empty() {
        run("the encodings' oracle", Command::new("bash").arg("tests/oracle/fetch-dencoder.sh"))?;
    }
    let programs = timing.time("build", || programs::build(!only.is_empty()))?;
    let mut variables = live_tests(&programs);
    if no_clients {
        return if only.is_empty() { unit(programs, long, strict, timing) } else { Ok(()) };
    }
    let root = root();
    if long {
        variables.push(("SIPHON_TEST_LONG".to_owned(), "1".to_owned()));
    }
    if differential {
        run(
            "build of the differential test",
            Command::new("cargo").args(["build", "--profile", PROFILE, "-p", "differential"]),
        )?;
        variables.push(("SIPHON_TEST_DIFFERENTIAL".to_owned(), "1".to_owned()));
    }
    if rados_crate {
        variables.push(("SIPHON_TEST_RADOS_CRATE".to_owned(), "1".to_owned()));
    }
    if pypi {
        variables.push(("SIPHON_TEST_PYPI".to_owned(), "1".to_owned()));
    }
    let clients = Clients { root: &root, variables, long, strict, only };
    if only.is_empty() {
        // One after the other: tests of shares and of full disks need the processor.
        let mut first = Timing::default();
        let units = unit(programs, long, strict, &mut first);
        timing.append(first);
        eprintln!("== stock clients");
        let live = clients.run(timing);
        match (units, live) {
            (Err(units), Err(live)) => bail!("{units:#}; {live:#}"),
            (units, live) => units.and(live)?,
        }
    } else {
        eprintln!("== stock clients");
        clients.run(timing)?;
    }
    if let Some(dir) = debian13 {
        run(
            "unpack the 18.2 clients",
            Command::new("bash").arg("tests/clients/debian13.sh").arg(dir),
        )?;
        eprintln!("== stock clients, 18.2");
        let variables = vec![("SIPHON_TEST_CHROOT".to_owned(), dir.display().to_string())];
        Clients { root: &root, variables, long: false, strict, only }.run(timing)?;
    }
    Ok(())
}

/// Seeds of the simulation with `--long`. Without, there are 300.
const LONG_SEEDS: &str = "10000";

/// Variables that name the test programs which client tests run against their cluster.
fn live_tests(programs: &[Program]) -> Vec<(String, String)> {
    programs
        .iter()
        .filter_map(|p| {
            let package = p.name.strip_suffix(".live")?.replace('-', "_").to_uppercase();
            Some((format!("SIPHON_LIVE_{package}"), p.path.display().to_string()))
        })
        .collect()
}

/// What needs no live cluster.
fn unit(programs: Vec<Program>, long: bool, strict: bool, timing: &mut Timing) -> Result<()> {
    let mut variables = vec![("SIPHON_REQUIRE_ORACLES", "1")];
    if long {
        variables.push(("SIPHON_CRASH_CUTS", "50000"));
        variables.push(("MSGR_FUZZ_ITERATIONS", "20000"));
    }
    {
        let _beside = beside_others();
        timing.time("examples in the documentation", || {
            let doc = ["test", "--workspace", "--doc", "--quiet", "--profile", PROFILE];
            run("examples in the documentation", gently("cargo").args(doc))
        })?;
        timing.time("tests of the benchmarks", || {
            run(
                "tests of the benchmarks",
                gently("/usr/bin/python3").args(["-m", "pytest", "-q", "tests/bench"]),
            )
        })?;
    }
    programs::run(programs, strict, &variables, timing)?;
    if long {
        // With optimisation: it checks the same, in a tenth of the time.
        let mut sim = gently("cargo");
        sim.args(["test", "--release", "-p", "sim"]).env("SIPHON_SIM_SEEDS", LONG_SEEDS);
        timing
            .time("the simulation, many seeds", || run("the simulation, many seeds", &mut sim))?;
    }
    Ok(())
}

/// A benchmark: one of those that the command line names.
pub fn bench(which: &str, args: &[String]) -> Result<()> {
    install(PACKAGES)?;
    install(PEER_PACKAGES)?;
    // The load generators are of the same build.
    let dist = ["build", "--profile", "dist", "-p", "siphon", "-p", "loads"];
    run("build for distribution", Command::new("cargo").args(dist))?;
    let script: &[&str] = match which {
        "rbd" => &["bench/peer.py", "--rbd"],
        "trim" => &["bench/trim.py"],
        "restart" => &["bench/restart.py"],
        "neighbours" => &["bench/neighbours.py"],
        "idle" => &["bench/idle.py"],
        "move" => &["bench/move.py"],
        "promises" => &["bench/promises.py"],
        "failover" => &["bench/failover.py"],
        "recovery" => &["bench/recovery.py"],
        "scheduling" => &["bench/scheduling.py"],
        "turns" => &["bench/turns.py"],
        "study" => &["bench/study"],
        "s3" => &["bench/s3.py"],
        "fs" => &["bench/fs.py"],
        "space" => &["bench/space.py"],
        _ => &["bench/peer.py"],
    };
    run("siphon beside ceph", Command::new("/usr/bin/python3").args(script).args(args))
}
