//! File systems, ranks and metadata servers as commands name them.

use crate::command::Refusal;
use crate::mds_map::Edit;
use types::errno::Errno;
use types::fsmap::{Filesystem, FsMap, MdsInfo, Rank};

/// The file system of a name, or Ceph's refusal.
pub(super) fn named<'a>(map: &'a FsMap, name: &str) -> Result<&'a Filesystem, Refusal> {
    map.by_name(name)
        .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("Filesystem not found: '{name}'")))
}

/// A setting that is yes or no, as Ceph reads it.
pub(super) fn truth(text: &str) -> Result<bool, Refusal> {
    match text {
        "true" | "yes" | "y" | "1" => Ok(true),
        "false" | "no" | "n" | "0" => Ok(false),
        _ => Err(Refusal::invalid("value must be false|no|0 or true|yes|1")),
    }
}

/// A rank by `RANK`, `NAME:RANK` or `ID:RANK`.
pub(super) fn role(map: &FsMap, text: &str) -> Result<(i32, Rank), Refusal> {
    let (fs, rank) = match text.rsplit_once(':') {
        Some((fs, rank)) => {
            let by_id = fs.parse::<i32>().ok().and_then(|id| map.filesystems.get(&id));
            let fs =
                map.by_name(fs).or(by_id).ok_or_else(|| Refusal::invalid("Invalid file system"))?;
            (fs, rank)
        }
        None => match map.filesystems.get(&map.legacy_client_fscid) {
            Some(fs) => (fs, text),
            None => return Err(Refusal::new(Errno::ENOENT, "No filesystem selected")),
        },
    };
    let rank: Rank = rank.parse().map_err(|_| Refusal::invalid("Invalid rank"))?;
    if !fs.map.ranks_in.contains(&rank) {
        return Err(Refusal::new(Errno::ENOENT, format!("Rank '{rank}' not found")));
    }
    Ok((fs.id, rank))
}

/// A daemon by the rank that it holds, its global id, or its name.
pub(super) fn daemon<'a>(map: &'a FsMap, text: &str) -> Option<&'a MdsInfo> {
    if let Ok((id, rank)) = role(map, text)
        && let Some(info) = map.filesystems.get(&id).and_then(|fs| fs.map.holder(rank))
    {
        return Some(info);
    }
    match text.parse::<u64>() {
        Ok(gid) => map.daemon(gid),
        Err(_) => map.daemons().find(|i| i.name == text),
    }
}

/// Ends a change of the map, and puts its lines into the batch's log.
pub(super) fn finish(edit: Edit<'_>) {
    // The lines go to the monitor's own log; a command's caller is told by its answer.
    for (_, text) in edit.finish() {
        tracing::info!("{text}");
    }
}
