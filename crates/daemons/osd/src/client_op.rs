//! One request of a client on its way through the OSD.

use crate::legs::Legs;
use crate::meter::Receipt;
use crate::session::ConnectionSink;
use crate::tracker::{Describe, Tracked};
use messages::{Op, OpArgs, OsdBackoff, OsdOp, OsdOpReply, WatchNotify};
use objops::{OpInfo, OpOutcome, OsdFlags};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;
use types::{EntityAddr, EntityName, Epoch, Errno, Eversion, ObjectId, PgId, ReqId, SnapId, SpgId};

/// Where answers go: a client's connection, or a test.
pub trait ReplySink {
    /// Sends an answer. `data_off` is the offset of the first read.
    fn reply(&self, reply: OsdOpReply, tid: u64, data_off: u16);

    /// Tells the client to hold back, or to go on. False if it does not understand that.
    fn backoff(&self, _: OsdBackoff) -> bool {
        false
    }

    /// Tells the client of a watch or a notification.
    fn watch_event(&self, _: WatchNotify) {}

    /// Whether the connection still exists.
    fn is_open(&self) -> bool {
        true
    }

    /// The client's connection, if it has one: for what is no answer.
    fn client(&self) -> Option<&ConnectionSink> {
        None
    }

    /// Tells sessions apart.
    fn session(&self) -> u64 {
        0
    }

    /// The name that the client has a key for, as `client.NAME`.
    fn entity(&self) -> &str {
        ""
    }
}

/// The request as it was received, for those who describe it.
pub struct Request {
    /// The message.
    pub m: OsdOp,
    /// Who sent it.
    pub source: EntityName,
    /// From where.
    pub addr: EntityAddr,
    /// Transaction id of the message.
    pub tid: u64,
}

impl Describe for Request {
    fn describe(&self) -> String {
        let m = &self.m;
        let ops: Vec<String> = m.ops.iter().map(describe_op).collect();
        let snapc: Vec<String> = m.snapc.snaps.iter().map(|s| s.to_string()).collect();
        format!(
            "osd_op({}.{}:{} {} {} [{}] snapc {}=[{}] {} e{})",
            self.source,
            m.client_inc,
            self.tid,
            m.pgid.pgid,
            m.object_id(),
            ops.join(","),
            m.snapc.seq,
            snapc.join(","),
            m.flags,
            m.epoch
        )
    }

    fn client_info(&self) -> Value {
        json!({"client": self.source.to_string(), "client_addr": self.addr.to_string(), "tid": self.tid})
    }
}

fn describe_op(op: &Op) -> String {
    match op.args {
        OpArgs::Extent { offset, length, .. } if op.code.uses_extent() => {
            format!("{} {offset}~{length}", op.code)
        }
        OpArgs::Call { .. } => match op.call_parts() {
            Ok((class, method, _)) => {
                format!(
                    "call {}.{}",
                    String::from_utf8_lossy(&class),
                    String::from_utf8_lossy(&method)
                )
            }
            Err(_) => "call".into(),
        },
        _ => op.code.to_string(),
    }
}

/// A request in work. It is dropped when it has been answered or discarded.
pub struct ClientOp {
    /// What was asked.
    pub request: Rc<Request>,
    /// Identity across resends.
    pub reqid: ReqId,
    /// What it may do.
    pub info: OpInfo,
    /// The group, folded to the map's `pg_num`.
    pub pgid: PgId,
    /// The object named, at its snapshot.
    pub oid: ObjectId,
    /// Its head: what orders operations.
    pub head: ObjectId,
    /// When it arrived.
    pub received: Instant,
    /// In the list of operations in flight.
    pub tracked: Tracked,
    /// Its place in the admission window; given back when the operation ends.
    pub slot: RefCell<Option<Slot>>,
    /// Whether the limits of its image have seen it.
    pub counted: Cell<bool>,
    /// Whether it was counted as offered by its tenant, and as served.
    pub offered: Cell<bool>,
    /// See `offered`.
    pub served: Cell<bool>,
    /// Its tenant, for the scheduler.
    pub tenant: Cell<u64>,
    /// When it came to the scheduler, by the scheduler's clock.
    pub queued: Cell<u64>,
    /// What the scheduler charged for it.
    pub receipt: Cell<Receipt>,
    /// What it has spent on its way, where that is noted.
    pub legs: Legs,
    /// Holds the request's bytes against the connection's throttle.
    pub guard: RefCell<Option<msgr::ReceiveGuard>>,
    /// Counts its bytes instead, while it waits for room.
    pub(crate) waits: RefCell<Option<crate::rooms::Counted>>,
    sink: Rc<dyn ReplySink>,
    replied: Cell<bool>,
}

/// A place in the admission window. Dropping it lets the next operation in.
pub struct Slot(pub Box<dyn Fn()>);

impl Drop for Slot {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The result of an executed request.
#[derive(Debug, Default)]
pub struct Outcome {
    /// 0, a count, or a negative errno.
    pub result: i32,
    /// One for each operation that ran.
    pub ops: Vec<OpOutcome>,
    /// Leave output away: a write of a client that did not ask for it.
    pub no_output: bool,
    /// Offset of the first read.
    pub data_offset: Option<u64>,
}

/// Versions in an answer.
#[derive(Clone, Copy, Debug)]
pub enum Versions {
    /// None: the request never got to the object.
    None,
    /// Of a change.
    Change(Eversion, u64),
    /// Of an object that was read.
    Read(u64),
    /// Of the group, because the object does not exist.
    Absent(Eversion, u64),
}

impl ClientOp {
    /// A request that has arrived.
    #[allow(clippy::too_many_arguments, reason = "called in one place")]
    pub fn new(
        request: Rc<Request>,
        info: OpInfo,
        pgid: PgId,
        sink: Rc<dyn ReplySink>,
        tracked: Tracked,
        guard: Option<msgr::ReceiveGuard>,
    ) -> Self {
        let m = &request.m;
        let mut reqid = m.reqid;
        if reqid.name == EntityName::default() && reqid.tid == 0 {
            reqid = ReqId { name: request.source, tid: request.tid, ..reqid };
        }
        let oid = m.object_id();
        let head = if oid.is_head() { oid.clone() } else { oid.head() };
        // Listing the snapshots is asked of the head.
        let oid = if oid.snap == SnapId::SNAPDIR { head.clone() } else { oid };
        ClientOp {
            reqid,
            info,
            pgid,
            oid,
            head,
            received: tracked.started(),
            tracked,
            slot: RefCell::new(None),
            counted: Cell::new(false),
            offered: Cell::new(false),
            served: Cell::new(false),
            tenant: Cell::new(0),
            queued: Cell::new(0),
            receipt: Cell::default(),
            legs: Legs::default(),
            guard: RefCell::new(guard),
            waits: RefCell::default(),
            sink,
            replied: Cell::new(false),
            request,
        }
    }

    /// The message.
    pub fn m(&self) -> &OsdOp {
        &self.request.m
    }

    /// The copy of the group that it is for, as its client knows it.
    pub fn copy(&self) -> SpgId {
        SpgId { pgid: self.pgid, shard: self.m().pgid.shard }
    }

    /// Whether the request has this flag.
    pub fn has(&self, flag: OsdFlags) -> bool {
        self.m().flags.has(flag)
    }

    /// Where the answer goes.
    pub fn sink(&self) -> &Rc<dyn ReplySink> {
        &self.sink
    }

    /// Whether it was answered.
    pub fn is_replied(&self) -> bool {
        self.replied.get()
    }

    /// Answers with an error that stopped the request before, or instead of, its execution.
    pub fn reply_error(&self, e: Errno, epoch: Epoch) {
        self.reply(
            &Outcome { result: e.as_result(), no_output: true, ..Outcome::default() },
            epoch,
            Versions::None,
        );
    }

    /// Answers. A second answer to the same request is dropped.
    pub fn reply(&self, outcome: &Outcome, epoch: Epoch, versions: Versions) {
        if self.replied.replace(true) {
            return;
        }
        let acks = OsdFlags::ACK | OsdFlags::ONDISK;
        let mut reply = OsdOpReply::to(self.m(), outcome.result, epoch, acks);
        for (op, done) in reply.ops.iter_mut().zip(&outcome.ops) {
            op.rval = done.rval;
            if let (Some(n), OpArgs::Extent { length, .. }) = (done.echo_length, &mut op.args) {
                *length = n;
            }
            if !outcome.no_output {
                op.outdata = done.out_bytes();
                op.out_sum = done.out_sum;
            }
        }
        match versions {
            Versions::None => {}
            Versions::Change(version, user) => reply.set_versions(version, user),
            Versions::Read(user) => reply.set_versions(Eversion::ZERO, user),
            Versions::Absent(version, user) => reply.set_read_versions(version, user),
        }
        let data_off = outcome.data_offset.unwrap_or(0) as u16;
        self.sink.reply(reply, self.request.tid, data_off);
    }
}
