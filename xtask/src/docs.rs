//! The generated pages. docs/compatibility.md is written by the binary from its own tables, so that
//! it cannot be wrong.

use crate::results;
use crate::shell::root;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// Writes all generated pages or one of them, or checks them.
pub fn write(page: Option<&str>, check: bool) -> Result<()> {
    if page.is_none_or(|p| p == "benchmarks") {
        results::results(check)?;
    }
    if page.is_none_or(|p| p == "compatibility") {
        compatibility(check, None)?;
    }
    Ok(())
}

/// Writes docs/compatibility.md, or checks it. `binary` is one that is built already.
pub fn compatibility(check: bool, binary: Option<&Path>) -> Result<()> {
    let mut command = match binary {
        Some(binary) => Command::new(binary),
        None => {
            let mut cargo = Command::new("cargo");
            cargo.args(["run", "-q", "-p", "siphon", "--"]);
            cargo
        }
    };
    let out = command
        .arg("compatibility")
        .current_dir(root())
        .output()
        .context("cannot run siphon compatibility")?;
    if !out.status.success() {
        bail!("siphon compatibility failed: {}", String::from_utf8_lossy(&out.stderr));
    }
    let path = root().join("docs/compatibility.md");
    if check {
        let now = std::fs::read(&path).unwrap_or_default();
        if now != out.stdout {
            bail!("docs/compatibility.md is out of date: run `cargo xtask docs`");
        }
        return Ok(());
    }
    std::fs::write(&path, out.stdout).with_context(|| format!("cannot write {}", path.display()))
}
