//! A load generator for S3; see `bench/s3.py`.

#![forbid(unsafe_code)]

use clap::Parser;
use loads::s3::{Options, Session};

fn main() -> anyhow::Result<()> {
    Session::new(Options::parse())?.run()
}
