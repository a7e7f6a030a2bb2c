//! The monitor's commands: one file per family, one table of all.
//!
//! A handler that reads sees the committed state. A handler that writes sees the batch that is
//! being put together and adds to it; its answer goes out after the batch is committed. A handler
//! decides from its arguments, the state and [`Env`], and does no I/O.

mod auth;
mod config;
mod config_key;
pub mod erasure;
mod frame;
mod fs;
mod health;
mod log;
mod mgr;
mod mon;
mod moves;
mod osd_admin;
mod osd_crush;
mod osd_crush_edit;
mod osd_dump;
mod osd_placement;
mod osd_state;
pub mod pool;
mod pool_settings;
mod status;

pub use frame::{
    Answer, Caller, ClockSkew, Entry, Env, MonStatus, Read, Run, SessionInfo, Stats, Write,
};
pub(crate) use health::daemon_versions;

use crate::command::{Args, Format, Refusal};
use crate::state::ManagerCommands;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The tables, one per family.
pub static FAMILIES: &[&[Entry]] = &[
    auth::COMMANDS,
    config::COMMANDS,
    config_key::COMMANDS,
    erasure::COMMANDS,
    fs::COMMANDS,
    health::COMMANDS,
    log::COMMANDS,
    mgr::COMMANDS,
    mon::COMMANDS,
    moves::COMMANDS,
    osd_admin::COMMANDS,
    osd_crush::COMMANDS,
    osd_crush_edit::COMMANDS,
    osd_dump::COMMANDS,
    osd_placement::COMMANDS,
    osd_state::COMMANDS,
    pool::COMMANDS,
    pool_settings::COMMANDS,
    status::COMMANDS,
];

static BY_PREFIX: LazyLock<
    HashMap<&'static str, Vec<(&'static Entry, crate::command::Signature)>>,
> = LazyLock::new(|| {
    let mut map = HashMap::<_, Vec<_>>::new();
    for c in FAMILIES.iter().copied().flatten() {
        map.entry(c.prefix()).or_default().push((c, crate::command::Signature::parse(c.signature)));
    }
    map
});

/// The entry for the arguments. Where several share a prefix (`osd crush set` with and without an
/// id), the first that the arguments fit. The arguments are validated.
pub fn find(args: &Args) -> Result<&'static Entry, Refusal> {
    let candidates = BY_PREFIX.get(args.prefix().trim()).map(Vec::as_slice).unwrap_or_default();
    let mut refusal = Refusal::invalid("command not known");
    for (n, (entry, signature)) in candidates.iter().enumerate() {
        let mut fits = args.validate(signature);
        // The monitors keep names in the CRUSH map free of other characters (Ceph:
        // `CrushWrapper::is_valid_crush_name`).
        if fits.is_ok()
            && matches!(entry.handler, Run::Write(_))
            && entry.prefix().starts_with("osd crush ")
        {
            fits = args.check_chars(signature);
        }
        match fits {
            Ok(()) => return Ok(entry),
            // The first form is the one that the message should be about.
            Err(e) if n == 0 => refusal = e.into(),
            Err(_) => {}
        }
    }
    Err(refusal)
}

/// The entry of a prefix, whatever its arguments.
pub fn find_prefix(prefix: &str) -> Option<&'static Entry> {
    BY_PREFIX.get(prefix.trim())?.first().map(|(c, _)| *c)
}

/// `get_command_descriptions`: ours, and those that the manager told.
pub fn descriptions(peer_knows_bool: bool, of_manager: &ManagerCommands) -> Bytes {
    let mut all = crate::command::descriptions(FAMILIES.iter().copied(), peer_knows_bool);
    if let Some(all) = all.as_object_mut() {
        for entry in of_manager.all() {
            all.insert(format!("cmd{:03}", all.len()), entry.clone());
        }
    }
    Format::Json.json(&all)
}

/// The reference page of all commands.
pub fn reference() -> String {
    crate::command::markdown(FAMILIES.iter().copied())
}

#[cfg(test)]
mod erasure_test;
#[cfg(test)]
mod tests;
