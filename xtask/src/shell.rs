//! Commands in the checkout.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The checkout's top directory.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask stands in the workspace")
        .to_path_buf()
}

/// Runs a command in the checkout; an error if it does not succeed.
pub fn run(what: &str, command: &mut Command) -> Result<()> {
    eprintln!("== {what}");
    let status = command
        .current_dir(root())
        .status()
        .with_context(|| format!("{what}: cannot start {:?}", command.get_program()))?;
    if !status.success() {
        bail!("{what} failed ({status})");
    }
    Ok(())
}

/// A command that leaves the processor to commands without this where both want it.
pub fn gently(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "10", "--"]).arg(program);
    command
}
