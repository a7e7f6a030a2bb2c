//! Clients of a file system as a load; see `bench/fs.py`.

#![forbid(unsafe_code)]

use clap::Parser;
use loads::fs::{Options, run};

fn main() -> anyhow::Result<()> {
    run(Options::parse())
}
