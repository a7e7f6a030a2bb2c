//! The monitor's commands: one file per family, one table of all.
//!
//! A handler that reads sees the committed state. A handler that writes sees the batch that is
//! being put together and adds to it; its answer goes out after the batch is committed. A handler
//! decides from its arguments, the state and [`Env`], and does no I/O.

mod auth;
mod config;
mod config_key;
pub mod erasure;
mod fs;
mod health;
mod health_osd;
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

pub(crate) use health_osd::daemon_versions;

use crate::command::{Args, Command, Format, Refusal, Reply, flags};
use crate::state::{ClusterState, Pending};
use ::auth::AuthName;
use bytes::Bytes;
use osd_crush_edit::short_float;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;
use types::errno::Errno;
use types::{EntityAddr, Utime};

/// What a command answers.
pub type Answer = Result<Reply, Refusal>;

/// How a command is run.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// From the committed state.
    Read(fn(&Read<'_>) -> Answer),
    /// Into the batch.
    Write(fn(&mut Write<'_>) -> Answer),
    /// Not at all; the text says why.
    Unsupported(&'static str),
}

/// An entry of the table.
pub type Entry = Command<Run>;

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

/// A reading command.
const fn read(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    perm: &'static str,
    handler: fn(&Read<'_>) -> Answer,
) -> Entry {
    Command { signature, help, module, perm, flags: flags::NONE, handler: Run::Read(handler) }
}

/// A writing command.
const fn write(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    perm: &'static str,
    handler: fn(&mut Write<'_>) -> Answer,
) -> Entry {
    Command { signature, help, module, perm, flags: flags::NONE, handler: Run::Write(handler) }
}

/// A command that is refused with `why`.
const fn unsupported(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    perm: &'static str,
    why: &'static str,
) -> Entry {
    Command { signature, help, module, perm, flags: flags::NONE, handler: Run::Unsupported(why) }
}

/// The same entry with flags.
const fn flagged(entry: Entry, flags: u64) -> Entry {
    Command { flags, ..entry }
}

/// Who gave the command.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The authenticated name.
    pub name: AuthName,
    /// Its address.
    pub addr: EntityAddr,
    /// Features of the connection.
    pub features: u64,
    /// The id that the monitors gave it.
    pub global_id: u64,
}

/// How far a monitor's clock is from the leader's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClockSkew {
    /// By how many seconds it is ahead at least.
    pub skew: f64,
    /// How long an answer takes, in seconds.
    pub latency: f64,
}

impl ClockSkew {
    /// What is wrong if `allowed` seconds may be.
    pub fn complaint(&self, allowed: f64) -> Option<String> {
        let off = self.skew.abs();
        (off > allowed)
            .then(|| format!("clock skew {}s > max {}s", short_float(off), short_float(allowed)))
    }
}

/// The monitor itself, as commands show it.
#[derive(Clone, Debug, Default)]
pub struct MonStatus {
    /// Its name.
    pub name: String,
    /// Its rank in the map; -1 if it is not in it.
    pub rank: i32,
    /// `leader`, `peon` or `electing`.
    pub state: &'static str,
    /// The term, which stands for Ceph's election epoch.
    pub election_epoch: u64,
    /// Ranks of the monitors that take part.
    pub quorum: Vec<i32>,
    /// The leader's rank.
    pub leader: Option<i32>,
    /// Since when there is this quorum.
    pub quorum_since: Utime,
    /// When the process started.
    pub started: Utime,
    /// What the leader measured of the clocks of those that take part. Empty if there is one
    /// monitor.
    pub clocks: BTreeMap<String, ClockSkew>,
    /// How often it measured.
    pub clock_round: u64,
    /// Percent of the space below their data that is free, of the monitors that told it.
    pub free: BTreeMap<String, u8>,
    /// How long daemons have been of several versions, if they are.
    pub mixed_for: Option<Duration>,
}

/// What the manager reported last. It is not replicated: it is outdated a few seconds later.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// The digest, once there is one.
    pub digest: Option<Rc<pgmap::Digest>>,
    /// Descriptions of the commands that the manager serves, by any key.
    pub commands: Rc<serde_json::Map<String, serde_json::Value>>,
    /// The manager's own health checks.
    pub health: messages::HealthChecks,
    /// What metadata servers complain of, by name.
    pub mds_health: Vec<(String, messages::MdsHealth)>,
    /// When.
    pub stamp: Utime,
}

/// A command that the manager serves: where a client needs which permission for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfManager<'a> {
    /// The capability service that it belongs to.
    pub module: &'a str,
    /// The permissions needed there.
    pub perm: &'a str,
}

impl Stats {
    /// The manager's command with these literal words.
    pub fn mgr_command(&self, prefix: &str) -> Option<OfManager<'_>> {
        let words: Vec<&str> = prefix.split_ascii_whitespace().collect();
        let is = |sig: &serde_json::Value| {
            let literals = sig.as_array()?.iter().map_while(serde_json::Value::as_str);
            Some(!words.is_empty() && literals.eq(words.iter().copied()))
        };
        let entry = self.commands.values().find(|c| is(&c["sig"]) == Some(true))?;
        let text = |key: &str| entry[key].as_str().unwrap_or_default();
        Some(OfManager { module: text("module"), perm: text("perm") })
    }
}

/// A session, as `features` and `sessions` show it.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// The authenticated name.
    pub name: AuthName,
    /// The peer's address.
    pub addr: EntityAddr,
    /// Features of the connection.
    pub features: u64,
    /// Global id.
    pub global_id: u64,
    /// Since when.
    pub since: Utime,
}

/// Everything but the arguments and the state.
pub struct Env<'a> {
    /// The clock.
    pub now: Utime,
    /// Options that hold in this monitor.
    pub conf: &'a Rc<RefCell<conf::Config>>,
    /// This monitor.
    pub mon: &'a MonStatus,
    /// Who asks.
    pub caller: &'a Caller,
    /// Data that came with the command.
    pub input: &'a Bytes,
    /// From the manager.
    pub stats: &'a Stats,
    /// Open sessions of this monitor.
    pub sessions: &'a dyn Fn() -> Vec<SessionInfo>,
}

/// A reading command with its surroundings.
pub struct Read<'a> {
    /// The committed state.
    pub state: &'a ClusterState,
    /// Surroundings.
    pub env: &'a Env<'a>,
    /// Arguments.
    pub args: &'a Args,
}

impl Read<'_> {
    /// The format of the answer.
    pub fn format(&self) -> Format {
        Format::of(self.args)
    }
}

/// A writing command with its surroundings.
pub struct Write<'a> {
    /// The batch.
    pub pending: &'a mut Pending,
    /// Surroundings.
    pub env: &'a Env<'a>,
    /// Arguments.
    pub args: &'a Args,
}

impl Write<'_> {
    /// The format of the answer.
    pub fn format(&self) -> Format {
        Format::of(self.args)
    }
}

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
pub fn descriptions(
    peer_knows_bool: bool,
    of_manager: &serde_json::Map<String, serde_json::Value>,
) -> Bytes {
    let mut all = crate::command::descriptions(FAMILIES.iter().copied(), peer_knows_bool);
    if let Some(all) = all.as_object_mut() {
        for entry in of_manager.values() {
            all.insert(format!("cmd{:03}", all.len()), entry.clone());
        }
    }
    Format::Json.json(&all)
}

/// The reference page of all commands.
pub fn reference() -> String {
    crate::command::markdown(FAMILIES.iter().copied())
}

/// An OSD's id from an argument: a number, or `osd.N`.
fn osd_id(text: &str) -> Result<types::OsdId, Refusal> {
    let digits = text.strip_prefix("osd.").unwrap_or(text);
    if digits.starts_with(['-', '+']) {
        return Err(Refusal::invalid(format!("expected numerical value, got: {digits}")));
    }
    match digits.parse::<i64>() {
        Err(_) => {
            Err(Refusal::invalid(format!("Expected option value to be integer, got '{digits}'")))
        }
        Ok(id) if id > 0xffff => {
            Err(Refusal::new(Errno::ERANGE, format!("osd id {id} is too large")))
        }
        Ok(id) => Ok(types::OsdId(id as i32)),
    }
}

/// The OSD that the argument `name` is about.
fn osd_arg(args: &Args, name: &str) -> Result<types::OsdId, Refusal> {
    match args.int(name) {
        Some(_) | None if !args.has(name) => {
            Err(Refusal::invalid(format!("missing required parameter: '{name}'")))
        }
        _ => osd_id(&args.strs(name).join(" ")),
    }
}

#[cfg(test)]
mod erasure_test;
#[cfg(test)]
mod tests;
