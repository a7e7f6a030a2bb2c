//! The frame of all commands: an entry of a table, and the surroundings of a handler.

use crate::command::{Args, Command, Format, Refusal, Reply, flags};
use crate::state::{ClusterState, Pending};
use auth::AuthName;
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
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

/// A reading command.
pub(super) const fn read(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    perm: &'static str,
    handler: fn(&Read<'_>) -> Answer,
) -> Entry {
    Command { signature, help, module, perm, flags: flags::NONE, handler: Run::Read(handler) }
}

/// A writing command.
pub(super) const fn write(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    perm: &'static str,
    handler: fn(&mut Write<'_>) -> Answer,
) -> Entry {
    Command { signature, help, module, perm, flags: flags::NONE, handler: Run::Write(handler) }
}

/// A command that is refused with `why`.
pub(super) const fn unsupported(
    signature: &'static str,
    help: &'static str,
    module: &'static str,
    perm: &'static str,
    why: &'static str,
) -> Entry {
    Command { signature, help, module, perm, flags: flags::NONE, handler: Run::Unsupported(why) }
}

/// The same entry with flags.
pub(super) const fn flagged(entry: Entry, flags: u64) -> Entry {
    Command { flags, ..entry }
}

/// The client of a command.
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
    /// The manager's own health checks.
    pub health: messages::HealthChecks,
    /// What metadata servers complain of, by name.
    pub mds_health: Vec<(String, messages::MdsHealth)>,
    /// When.
    pub stamp: Utime,
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
    /// The client that asks.
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

/// An OSD's id from an argument: a number, or `osd.N`.
pub(super) fn osd_id(text: &str) -> Result<types::OsdId, Refusal> {
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
pub(super) fn osd_arg(args: &Args, name: &str) -> Result<types::OsdId, Refusal> {
    match args.int(name) {
        Some(_) | None if !args.has(name) => {
            Err(Refusal::invalid(format!("missing required parameter: '{name}'")))
        }
        _ => osd_id(&args.strs(name).join(" ")),
    }
}

/// A number as C++ streams print it: six significant digits, no trailing zeros.
pub fn short_float(v: f64) -> String {
    if v == 0.0 || !v.is_finite() {
        return if v == 0.0 { "0".into() } else { v.to_string() };
    }
    let magnitude = v.abs().log10().floor() as i32;
    if !(-5..6).contains(&magnitude) {
        return format!("{v:e}");
    }
    let text = format!("{v:.*}", usize::try_from(5 - magnitude).unwrap_or(0));
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}
