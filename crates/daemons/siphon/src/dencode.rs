//! `siphon dencode`: the counterpart of `ceph-dencoder`.

use crate::cli::{Dencode, DencodeAction};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use std::io::{Read, Write};
use std::path::Path;
use types::dencode::{self, NamedType};

/// Runs the command.
pub fn run(args: Dencode) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match args.action {
        DencodeAction::List => {
            for t in dencode::TYPES {
                writeln!(out, "{}", t.name)?;
            }
        }
        DencodeAction::Dump { name, file } => {
            let value = find(&name)?
                .decode(&read(&file)?)
                .with_context(|| format!("{} is not a {name}", file.display()))?;
            writeln!(out, "{}", serde_json::to_string_pretty(&value.to_json())?)?;
        }
        DencodeAction::Encode { name, file, features } => {
            let value = find(&name)?
                .decode(&read(&file)?)
                .with_context(|| format!("{} is not a {name}", file.display()))?;
            out.write_all(&value.encode_for(denc::Features(features)))?;
        }
    }
    Ok(())
}

fn find(name: &str) -> Result<&'static NamedType> {
    match dencode::lookup(name) {
        Some(t) => Ok(t),
        None => bail!("unknown type {name:?}: `siphon dencode list` shows the known ones"),
    }
}

fn read(path: &Path) -> Result<Bytes> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes)?;
    } else {
        bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(bytes.into())
}
