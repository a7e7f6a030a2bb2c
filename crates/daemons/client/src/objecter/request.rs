//! Requests and their answers.

use crate::error::{ClientError, Result};
use crate::scope::Scope;
use bytes::Bytes;
use messages::{Op, OpArgs};
use serde_json::{Value, json};
use types::rados::OsdFlags;
use types::{Epoch, OsdId, SnapContext, SnapId, SpgId, Utime};

/// A request that has no answer yet, for diagnosis.
#[derive(Clone, Debug)]
pub struct InFlight {
    /// Its number.
    pub tid: u64,
    /// What it is about.
    pub scope: Scope,
    /// Where its PG is served, and by the map of which epoch; nothing without a map.
    pub placed: Option<(SpgId, Option<OsdId>, Epoch)>,
    /// The OSD that has it, if one has.
    pub sent_to: Option<OsdId>,
    /// It waits for another map.
    pub paused: bool,
    /// How often it was sent.
    pub attempts: i32,
    /// What it consists of.
    pub ops: Vec<Op>,
}

/// Requests as `objecter_requests` shows them (Ceph: `Objecter::dump_requests`).
pub fn requests_json(epoch: Epoch, all: &[InFlight]) -> Value {
    let name = |scope: &Scope| match scope {
        Scope::Object { name, .. } => String::from_utf8_lossy(name).into_owned(),
        Scope::Pg { .. } => String::new(),
    };
    let ops = all.iter().map(|op| {
        json!({
            "tid": op.tid,
            "pg": op.placed.as_ref().map(|p| p.0.pgid.to_string()),
            // As Ceph shows one that is nowhere.
            "osd": op.sent_to.map_or(-1, |osd| osd.0),
            "primary": op.placed.as_ref().and_then(|p| p.1).map_or(-1, |osd| osd.0),
            "epoch": op.placed.as_ref().map(|p| p.2.0),
            "object_id": name(&op.scope),
            "object_locator": format!("@{}", op.scope.pool()),
            "paused": u8::from(op.paused),
            "attempts": op.attempts,
            "osd_ops": op.ops.iter().map(|o| o.code.to_string()).collect::<Vec<_>>(),
        })
    });
    let none: [(); 0] = [];
    json!({
        "osdmap_epoch": epoch.0, "ops": ops.collect::<Vec<_>>(), "linger_ops": none,
        "pool_ops": none, "pool_stat_ops": none, "statfs_ops": none, "command_ops": none,
    })
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// On what.
    pub scope: Scope,
    /// What to do.
    pub ops: Vec<Op>,
    /// Flags; must say whether it reads and writes.
    pub flags: OsdFlags,
    /// Snapshot to read.
    pub snapid: SnapId,
    /// Snapshots to preserve.
    pub snapc: SnapContext,
    /// When the change was made.
    pub mtime: Utime,
}

impl Request {
    /// Bytes that it moves, as far as it says so: its input, and what it asks to read.
    pub(super) fn bytes(&self) -> usize {
        let read = |op: &Op| match op.args {
            OpArgs::Extent { length, .. } if op.code.is_read() => length,
            _ => 0,
        };
        let bytes = self.ops.iter().map(|op| op.indata.len() as u64 + read(op));
        usize::try_from(bytes.fold(0, u64::saturating_add)).unwrap_or(usize::MAX)
    }
}

/// Answer to a [`Request`].
#[derive(Clone, Debug)]
pub struct OpOutcome {
    /// 0, a count, or a negative errno.
    pub result: i32,
    /// The operations with their results and output.
    pub ops: Vec<Op>,
    /// Version of the object.
    pub user_version: u64,
    /// Map epoch of the OSD.
    pub epoch: Epoch,
}

impl OpOutcome {
    /// The outcome, or the error that its result stands for.
    pub fn ok(self) -> Result<Self> {
        match ClientError::from_code(self.result) {
            Some(e) => Err(e),
            None => Ok(self),
        }
    }

    /// The output of operation `at`; empty if there is none.
    pub fn output(&self, at: usize) -> Bytes {
        self.ops.get(at).map(|op| op.outdata.clone()).unwrap_or_default()
    }
}
