//! `dist/Containerfile` builds from what it copies: that has to be all of the workspace.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE: &str = "dist/Containerfile";
/// Files that cargo reads besides the members of the workspace.
const OF_CARGO: [&str; 2] = ["Cargo.toml", "Cargo.lock"];

/// What `cargo metadata` says of the workspace.
#[derive(Deserialize)]
struct Workspace {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: PathBuf,
    rust_version: Option<String>,
}

/// Paths that the stage with the name `build` copies from the checkout.
fn copied(text: &str) -> Vec<PathBuf> {
    let stage = text.lines().skip_while(|l| !(l.starts_with("FROM ") && l.ends_with(" AS build")));
    let stage = stage.skip(1).take_while(|l| !l.starts_with("FROM "));
    let lines = stage.filter_map(|l| l.strip_prefix("COPY "));
    lines
        .flat_map(|l| {
            let words: Vec<&str> = l.split_whitespace().collect();
            words[..words.len().saturating_sub(1)].iter().map(PathBuf::from).collect::<Vec<_>>()
        })
        .collect()
}

/// What is wrong with the file, for members in these directories and this version of Rust.
fn wrong(text: &str, members: &[PathBuf], rust: &str) -> Vec<String> {
    let copied = copied(text);
    let lacks = |path: &Path| !copied.iter().any(|c| path.starts_with(c));
    let of_cargo = OF_CARGO.iter().map(Path::new);
    let needed = of_cargo.chain(members.iter().map(PathBuf::as_path));
    let mut wrong: Vec<String> = needed
        .filter(|path| lacks(path))
        .map(|path| format!("{FILE}: {} is not copied, and the build reads it", path.display()))
        .collect();
    if !text.contains(&format!("FROM docker.io/library/rust:{rust}-")) {
        wrong.push(format!("{FILE}: expected to build with Rust {rust}, as Cargo.toml says"));
    }
    wrong
}

/// Checks the file against the workspace.
pub fn check(root: &Path) -> Result<()> {
    let text = std::fs::read_to_string(root.join(FILE)).context(FILE)?;
    let args = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let out = Command::new("cargo").args(args).current_dir(root).output()?;
    if !out.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    }
    let workspace: Workspace = serde_json::from_slice(&out.stdout)?;
    let rust = workspace.packages.iter().find_map(|p| p.rust_version.clone()).unwrap_or_default();
    let member = |p: &Package| {
        let dir = p.manifest_path.parent().unwrap_or(root);
        dir.strip_prefix(root).unwrap_or(dir).to_owned()
    };
    let members: Vec<PathBuf> = workspace.packages.iter().map(member).collect();
    let wrong = wrong(&text, &members, &rust);
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_copied_is_named() {
        let text = "FROM docker.io/library/rust:1.95-slim AS build\n\
                    COPY Cargo.toml Cargo.lock ./\nCOPY crates crates\nRUN cargo build\n\
                    FROM docker.io/library/debian:slim\nCOPY --from=build /src/xtask /x\n";
        let members = ["crates/wire/denc", "xtask"].map(PathBuf::from);
        let found = wrong(text, &members, "1.95");
        assert!(found.len() == 1 && found[0].contains("xtask is not copied"), "{found:?}");
        assert_eq!(wrong(text, &members[..1], "1.95"), Vec::<String>::new());
        let found = wrong(&text.replace(" Cargo.lock", ""), &members[..1], "1.96");
        assert!(found.len() == 2 && found[0].contains("Cargo.lock"), "{found:?}");
        assert!(found[1].contains("Rust 1.96"), "{found:?}");
    }
}
