//! One request of a client on its way through the OSD.

use crate::map::PoolOps;
use crate::tracker::{Describe, LIMITED, OVER_CEILING, Tracked};
use admission::limited::WHOLE_OBJECT_BYTES;
use admission::{Held, Tags};
use bytes::Bytes;
use messages::{Op, OpArgs, OsdBackoff, OsdMapMsg, OsdOp, OsdOpReply, WatchNotify};
use objops::{OpCode, OpExt, OpInfo, OpOutcome, OsdFlags};
use qos::{Access, Demand};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;
use types::{
    EntityAddr, EntityName, Epoch, Errno, Eversion, ObjectId, PgId, PoolId, ReqId, SnapId, SpgId,
};

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

    /// The newest map that was sent to the client; `None` if the client gets no maps from here.
    fn shared_map(&self) -> Option<&Cell<Epoch>> {
        None
    }

    /// Sends the client maps.
    fn maps(&self, _: OsdMapMsg) {}

    /// Whether the client's capabilities cover a request (Ceph: `op_has_sufficient_caps`).
    fn allows(&self, _: &Request, _: &OpInfo, _: &PoolOps) -> bool {
        true
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

/// What the scheduler orders.
pub type Work = admission::Work<ClientOp>;
/// The scheduler of an OSD.
pub type OsdQueue = admission::OsdQueue<ClientOp>;

/// The request as it was received, for its description.
pub struct Request {
    /// The message.
    pub m: OsdOp,
    /// The client that sent it.
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
    /// Counts what arrived at the OSD.
    pub(crate) arrival: u64,
    /// In the list of operations in flight.
    pub tracked: Tracked,
    /// Its place in the admission window; given back when the operation ends.
    pub slot: RefCell<Option<Slot>>,
    /// It has had its turn: later ones of its session may be in the scheduler, and it must not get
    /// behind them.
    pub(crate) had_turn: Cell<bool>,
    /// What the scheduler notes with it.
    pub tags: Tags,
    /// Holds the request's bytes against the connection's throttle.
    pub guard: RefCell<Option<msgr::ReceiveGuard>>,
    /// Counts its bytes instead, while it waits for room.
    pub(crate) waits: RefCell<Option<crate::rooms::Counted>>,
    sink: Rc<dyn ReplySink>,
    replied: Cell<bool>,
}

/// A place in the admission window. Dropping it lets the next operation in. Background work gives
/// it back before it waits for other OSDs: what it asks of them has its turn there, and they may
/// wait for a place here.
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
        arrival: u64,
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
            arrival,
            tracked,
            slot: RefCell::new(None),
            had_turn: Cell::new(false),
            tags: Tags::default(),
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

    /// Whether its client may have sent it to a replica (Ceph: `Objecter::_calc_target`).
    pub fn may_leave_primary(&self) -> bool {
        self.m().flags.any(OsdFlags::BALANCE_READS | OsdFlags::LOCALIZE_READS)
            && !self.info.may_write()
            && !self.info.may_cache()
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

impl admission::Request for ClientOp {
    fn pool(&self) -> PoolId {
        self.pgid.pool
    }

    fn namespace(&self) -> &Bytes {
        &self.oid.namespace
    }

    fn object(&self) -> &[u8] {
        &self.oid.name
    }

    fn is_head(&self) -> bool {
        self.oid.is_head()
    }

    fn session(&self) -> u64 {
        self.sink.session()
    }

    fn entity(&self) -> &str {
        self.sink.entity()
    }

    fn is_open(&self) -> bool {
        self.sink.is_open()
    }

    fn access(&self) -> Access {
        if self.info.may_write() { Access::Write } else { Access::Read }
    }

    fn demand(&self) -> Demand {
        let access = self.access();
        let bytes = self.m().ops.iter().map(|o| match access {
            Access::Write => o.indata.len() as u64,
            Access::Read if !o.code.is_read() || !o.code.uses_extent() => 0,
            Access::Read => match o.extent().length {
                0 => WHOLE_OBJECT_BYTES,
                n => n,
            },
        });
        Demand {
            access,
            bytes: bytes.fold(0, u64::saturating_add),
            ordered: self.info.rwordered() || self.has(OsdFlags::RWORDERED),
        }
    }

    fn cost(&self) -> u64 {
        let asked = |o: &Op| if o.code.is_read() { o.extent().length } else { 0 };
        // A read of everything asks for 0 bytes; what it costs shows only afterwards.
        self.m().ops.iter().map(|o| o.indata.len() as u64 + asked(o).min(8 << 20)).sum()
    }

    fn is_sure(&self) -> bool {
        self.m().ops.iter().all(|o| {
            matches!(
                o.code,
                OpCode::READ
                    | OpCode::SPARSE_READ
                    | OpCode::STAT
                    | OpCode::GETXATTR
                    | OpCode::GETXATTRS
                    | OpCode::CMPXATTR
                    | OpCode::SETXATTR
                    | OpCode::CREATE
                    | OpCode::WRITE
                    | OpCode::WRITEFULL
                    | OpCode::APPEND
                    | OpCode::SETALLOCHINT
                    | OpCode::WATCH
            )
        })
    }

    fn held(&self, why: Held) {
        self.tracked.held(match why {
            Held::Limits => LIMITED,
            Held::Ceiling => OVER_CEILING,
        });
    }

    fn let_go(&self) {
        self.tracked.let_go();
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tracker::Tracker;
    use admission::Request as _;
    use objops::code::{on_extent, write_op};
    use types::{ObjectLocator, SpgId};

    struct Nobody;
    impl ReplySink for Nobody {
        fn reply(&self, _: OsdOpReply, _: u64, _: u16) {}
    }

    pub(crate) fn request(flags: OsdFlags, op: Op) -> ClientOp {
        let pgid = PgId { pool: PoolId(3), seed: 0 };
        let m = OsdOp {
            pgid: SpgId { pgid, ..SpgId::default() },
            locator: ObjectLocator { pool: pgid.pool, ..ObjectLocator::default() },
            object: Bytes::from_static(b"o"),
            ops: vec![op],
            flags,
            snapid: SnapId::NOSNAP,
            ..OsdOp::default()
        };
        let info = OpInfo::new(flags, &m.ops, &cls::Registry::builtin()).unwrap();
        let (source, addr) = (EntityName::client(4), EntityAddr::default());
        let request = Rc::new(Request { m, source, addr, tid: 1 });
        let tracked = Rc::<Tracker>::default().start(request.clone(), Instant::now());
        ClientOp::new(request, info, pgid, Rc::new(Nobody), tracked, 0, None)
    }

    #[test]
    fn what_operations_ask_for() {
        let demand = |flags, op| request(flags, op).demand();
        let read = |length| on_extent(OpCode::READ, 0, length);
        let none = OsdFlags(0);
        let write = write_op(0, &[7; 4096][..]);
        assert_eq!(
            demand(none, write),
            Demand { access: Access::Write, bytes: 4096, ordered: true }
        );
        assert_eq!(
            demand(none, read(512)),
            Demand { access: Access::Read, bytes: 512, ordered: false }
        );
        assert!(demand(OsdFlags::RWORDERED, read(512)).ordered);
        assert_eq!(demand(none, read(0)).bytes, WHOLE_OBJECT_BYTES);
        assert_eq!(demand(none, on_extent(OpCode::STAT, 0, 1 << 30)).bytes, 0);
        let zero = demand(none, on_extent(OpCode::ZERO, 0, 1 << 30));
        assert_eq!(zero, Demand { access: Access::Write, bytes: 0, ordered: true });
    }
}
