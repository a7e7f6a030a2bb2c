//! Between clients and OSDs: requests, answers, backoffs, notifications.

use crate::ops::{OP_SIZE, Op};
use crate::payload::{Parts, Payload, Received, message};
use bytes::{Bytes, BytesMut};
use denc::crc::Sum;
use denc::{Decode, DecodeError, Encode, Features, Reader};
use denc_derive::Denc;
use types::{
    Epoch, Eversion, ObjectId, ObjectLocator, PgId, ReqId, SnapContext, SnapId, SpgId, Utime,
    features, rados::OsdFlags,
};

/// A request on one object or placement group (Ceph: `MOSDOp`). Read in versions 7, 8 and 9;
/// written as 8, or as 9 to peers since 19.2. Older clients than 10.2 are not understood.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OsdOp {
    /// The placement group (in version 7: without its shard, and with the raw hash as seed).
    pub pgid: SpgId,
    /// The object's raw hash.
    pub hash: u32,
    /// The sender's map epoch.
    pub epoch: Epoch,
    /// Flags of the request.
    pub flags: OsdFlags,
    /// Identity of the request; its name and tid are empty if those of the connection and of the
    /// message count.
    pub reqid: ReqId,
    /// Incarnation of the client.
    pub client_inc: u32,
    /// When the client made the change.
    pub mtime: Utime,
    /// Pool, key and namespace of the object.
    pub locator: ObjectLocator,
    /// Name of the object.
    pub object: Bytes,
    /// What to do, in order.
    pub ops: Vec<Op>,
    /// Snapshot to read.
    pub snapid: SnapId,
    /// The writer's snapshots.
    pub snapc: SnapContext,
    /// 0 for the first attempt, -1 if unknown.
    pub retry_attempt: i32,
    /// Features of the sender.
    pub features: u64,
}

impl OsdOp {
    /// The object that the request names.
    pub fn object_id(&self) -> ObjectId {
        ObjectId::with_hash(
            self.pgid.pgid.pool,
            self.locator.namespace.clone(),
            self.object.clone(),
            self.locator.key.clone(),
            self.snapid,
            self.hash,
        )
    }
}

/// Takes each operation's payload off the data segment.
fn split(ops: Vec<(Op, u32)>, data: Bytes, input: bool) -> denc::Result<Vec<Op>> {
    let mut r = Reader::new(data);
    ops.into_iter()
        .map(|(mut op, len)| {
            let payload = if len == 0 {
                Bytes::new()
            } else {
                r.bytes("payload of an operation", len as usize)?
            };
            if input {
                op.indata = payload;
            } else {
                op.outdata = payload;
            }
            Ok(op)
        })
        .collect()
}

fn read_ops(r: &mut Reader, count: usize) -> denc::Result<Vec<(Op, u32)>> {
    let needed = count.saturating_mul(OP_SIZE);
    if needed > r.left() {
        return Err(DecodeError::Short { what: "operations", needed, left: r.left() });
    }
    (0..count).map(|_| Op::get(r)).collect()
}

/// Three ids of a tracing system that is no longer there (Ceph: `blkin_trace_info`).
const TRACE_SIZE: usize = 24;

impl Payload for OsdOp {
    const TYPE: u16 = 42;
    const NAME: &'static str = "osd_op";
    const HEAD_VERSION: u16 = 9;
    const COMPAT_VERSION: u16 = 3;

    fn encode_parts(&self, f: Features) -> Parts {
        let version = if f.has(features::SERVER_SQUID) { 9 } else { 8 };
        let mut out = BytesMut::with_capacity(256);
        self.pgid.encode(&mut out, f);
        self.hash.encode(&mut out, f);
        self.epoch.encode(&mut out, f);
        self.flags.encode(&mut out, f);
        self.reqid.encode(&mut out, f);
        out.resize(out.len() + TRACE_SIZE, 0);
        if version >= 9 {
            denc::envelope(&mut out, 1, 1, |out| false.encode(out, f)); // no span
        }
        self.client_inc.encode(&mut out, f);
        self.mtime.encode(&mut out, f);
        self.locator.encode(&mut out, f);
        self.object.encode(&mut out, f);
        u16::try_from(self.ops.len())
            .expect("a request has under 65536 operations")
            .encode(&mut out, f);
        for op in &self.ops {
            op.put(op.indata.len(), &mut out);
        }
        self.snapid.encode(&mut out, f);
        self.snapc.seq.encode(&mut out, f);
        self.snapc.snaps.encode(&mut out, f);
        self.retry_attempt.encode(&mut out, f);
        self.features.encode(&mut out, f);
        let data = self
            .ops
            .iter()
            .filter(|op| !op.indata.is_empty())
            .map(|op| op.indata.clone())
            .collect();
        Parts { version, compat: 3, front: out.freeze(), data, ..Parts::default() }
    }

    fn decode_parts(Received { version, front: mut r, data, .. }: Received) -> denc::Result<Self> {
        let mut m = OsdOp::default();
        match version {
            0..=6 => {
                let struct_v = u8::try_from(version).unwrap_or(0);
                return Err(DecodeError::TooOld { what: "MOSDOp", struct_v, oldest: 7 });
            }
            7 => {
                m.pgid.pgid = r.get()?;
                m.hash = m.pgid.pgid.seed;
                m.epoch = r.get()?;
                m.flags = r.get()?;
                Eversion::decode(&mut r)?;
                m.reqid = r.get()?;
            }
            _ => {
                m.pgid = r.get()?;
                m.hash = r.get()?;
                m.epoch = r.get()?;
                m.flags = r.get()?;
                m.reqid = r.get()?;
                r.skip("blkin_trace_info", TRACE_SIZE)?;
                if version >= 9 {
                    r.envelope("jspan_context", 1)?;
                }
            }
        }
        m.client_inc = r.get()?;
        m.mtime = r.get()?;
        m.locator = r.get()?;
        m.object = r.get()?;
        let count = u16::decode(&mut r)?;
        let ops = read_ops(&mut r, count.into())?;
        m.snapid = r.get()?;
        m.snapc.seq = r.get()?;
        m.snapc.snaps = r.get()?;
        m.retry_attempt = r.get()?;
        m.features = r.get()?;
        m.ops = split(ops, data, true)?;
        Ok(m)
    }
}

/// The answer to [`OsdOp`] (Ceph: `MOSDOpReply`). Read in versions 4 and later, written as 8.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OsdOpReply {
    /// Name of the object.
    pub object: Bytes,
    /// The placement group.
    pub pgid: PgId,
    /// Flags of the request with [`OsdFlags::ONDISK`].
    pub flags: i64,
    /// 0, a count, or a negative errno.
    pub result: i32,
    /// What clients before 0.70 take for the version. See [`OsdOpReply::set_versions`].
    pub bad_replay_version: Eversion,
    /// The OSD's map epoch.
    pub epoch: Epoch,
    /// The operations with their results and output.
    pub ops: Vec<Op>,
    /// From the request.
    pub retry_attempt: i32,
    /// Version of the change, zero for a read.
    pub replay_version: Eversion,
    /// Version of the object as users see it.
    pub user_version: u64,
    /// The object is elsewhere.
    pub redirect: Option<Redirect>,
}

/// Where an object is to be found instead (Ceph: `request_redirect_t`).
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Redirect {
    /// Its pool, key and namespace.
    pub locator: ObjectLocator,
    /// Its name, if another.
    pub object: Bytes,
    /// Unused.
    pub legacy_instructions: Bytes,
}

impl OsdOpReply {
    /// The answer to `request`: its operations without their input.
    pub fn to(request: &OsdOp, result: i32, epoch: Epoch, ack: OsdFlags) -> Self {
        let acks = OsdFlags::ONDISK | OsdFlags::ONNVRAM | OsdFlags::ACK;
        OsdOpReply {
            object: request.object.clone(),
            pgid: request.pgid.pgid,
            flags: i64::from(((request.flags & !acks) | ack).0),
            result,
            epoch,
            ops: request.ops.iter().map(|op| Op { indata: Bytes::new(), ..op.clone() }).collect(),
            retry_attempt: request.retry_attempt,
            ..Default::default()
        }
    }

    /// Sets the three versions of a change.
    pub fn set_versions(&mut self, version: Eversion, user_version: u64) {
        self.replay_version = version;
        self.user_version = user_version;
        self.bad_replay_version = version;
        if user_version != 0 {
            self.bad_replay_version.version = user_version;
        }
    }

    /// Sets the versions of an answer that is not a change.
    pub fn set_read_versions(&mut self, version: Eversion, user_version: u64) {
        self.user_version = user_version;
        self.bad_replay_version = version;
    }
}

impl Payload for OsdOpReply {
    const TYPE: u16 = 43;
    const NAME: &'static str = "osd_op_reply";
    const HEAD_VERSION: u16 = 8;
    const COMPAT_VERSION: u16 = 2;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::with_capacity(192);
        self.object.encode(&mut out, f);
        self.pgid.encode(&mut out, f);
        self.flags.encode(&mut out, f);
        self.result.encode(&mut out, f);
        self.bad_replay_version.encode(&mut out, f);
        self.epoch.encode(&mut out, f);
        u32::try_from(self.ops.len())
            .expect("a request has under 65536 operations")
            .encode(&mut out, f);
        for op in &self.ops {
            op.put(op.outdata.len(), &mut out);
        }
        self.retry_attempt.encode(&mut out, f);
        for op in &self.ops {
            op.rval.encode(&mut out, f);
        }
        self.replay_version.encode(&mut out, f);
        self.user_version.encode(&mut out, f);
        self.redirect.encode(&mut out, f);
        out.resize(out.len() + TRACE_SIZE, 0);
        let with_output = || self.ops.iter().filter(|op| !op.outdata.is_empty());
        let data = with_output().map(|op| op.outdata.clone()).collect();
        let data_sum =
            with_output().try_fold(Sum::EMPTY, |sum, op| op.out_sum.map(|next| sum.then(next)));
        Parts { version: 8, compat: 2, front: out.freeze(), data, data_sum, ..Parts::default() }
    }

    fn decode_parts(Received { version, front: mut r, data, .. }: Received) -> denc::Result<Self> {
        if version < 5 {
            let struct_v = u8::try_from(version).unwrap_or(0);
            return Err(DecodeError::TooOld { what: "MOSDOpReply", struct_v, oldest: 5 });
        }
        let mut m = OsdOpReply {
            object: r.get()?,
            pgid: r.get()?,
            flags: r.get()?,
            result: r.get()?,
            bad_replay_version: r.get()?,
            epoch: r.get()?,
            ..Default::default()
        };
        let count = r.count("operations", OP_SIZE)?;
        let ops = read_ops(&mut r, count)?;
        m.retry_attempt = r.get()?;
        m.ops = split(ops, data, false)?;
        for op in &mut m.ops {
            op.rval = r.get()?;
        }
        m.replay_version = r.get()?;
        m.user_version = r.get()?;
        m.redirect = match version {
            5 => None,
            6 => Some(r.get()?).filter(|redirect| *redirect != Redirect::default()),
            _ => r.get()?,
        };
        Ok(m)
    }
}

message! {
    /// Do not send, or send again, requests on a range of objects (Ceph: `MOSDBackoff`).
    OsdBackoff = 61, "osd_backoff", version 1, compat 1 {
        /// The placement group.
        pgid: SpgId,
        /// The sender's map epoch.
        epoch: Epoch,
        /// [`OsdBackoff::BLOCK`] and its siblings.
        op: u8,
        /// Identity of the backoff within the session.
        id: u64,
        /// First object of the range.
        begin: ObjectId,
        /// End of the range, not included; equal to `begin` for a single object.
        end: ObjectId,
    }
}

impl OsdBackoff {
    /// Stop.
    pub const BLOCK: u8 = 1;
    /// Stopped.
    pub const ACK_BLOCK: u8 = 2;
    /// Go on.
    pub const UNBLOCK: u8 = 3;
}

/// An event on a watched object (Ceph: `MWatchNotify`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WatchNotify {
    /// The client's id of the watch or notification.
    pub cookie: u64,
    /// Unused.
    pub ver: u64,
    /// The OSD's id of the notification.
    pub notify_id: u64,
    /// [`WatchNotify::NOTIFY`] and its siblings.
    pub opcode: u8,
    /// Payload of the notification.
    pub payload: Bytes,
    /// Result of a notification: 0 or a negative errno.
    pub return_code: i32,
    /// Global id of the notifier.
    pub notifier_gid: u64,
    /// On completion, the watchers' answers and the watches that did not answer; the data segment.
    pub answers: Bytes,
}

impl WatchNotify {
    /// A notification for a watcher.
    pub const NOTIFY: u8 = 1;
    /// The answers for the notifier.
    pub const NOTIFY_COMPLETE: u8 = 2;
    /// The watch has ended.
    pub const DISCONNECT: u8 = 3;
}

impl Payload for WatchNotify {
    const TYPE: u16 = 44;
    const NAME: &'static str = "watch-notify";
    const HEAD_VERSION: u16 = 3;
    const COMPAT_VERSION: u16 = 1;

    fn encode_parts(&self, f: Features) -> Parts {
        let mut out = BytesMut::new();
        1u8.encode(&mut out, f); // version inside the payload, from before messages had one
        self.opcode.encode(&mut out, f);
        self.cookie.encode(&mut out, f);
        self.ver.encode(&mut out, f);
        self.notify_id.encode(&mut out, f);
        self.payload.encode(&mut out, f);
        self.return_code.encode(&mut out, f);
        self.notifier_gid.encode(&mut out, f);
        let data = if self.answers.is_empty() { vec![] } else { vec![self.answers.clone()] };
        Parts { version: 3, compat: 1, front: out.freeze(), data, ..Parts::default() }
    }

    fn decode_parts(Received { version, front: mut r, data, .. }: Received) -> denc::Result<Self> {
        let inner = u8::decode(&mut r)?;
        Ok(WatchNotify {
            opcode: r.get()?,
            cookie: r.get()?,
            ver: r.get()?,
            notify_id: r.get()?,
            payload: if inner >= 1 { r.get()? } else { Bytes::new() },
            return_code: if version >= 2 { r.get()? } else { 0 },
            notifier_gid: if version >= 3 { r.get()? } else { 0 },
            answers: data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpArgs;
    use types::PoolId;
    use types::rados::OpCode;

    fn request() -> OsdOp {
        OsdOp {
            pgid: PgId::new(PoolId(2), 5).into(),
            hash: 0x1234_5678,
            epoch: Epoch(9),
            locator: ObjectLocator { pool: PoolId(2), ..ObjectLocator::default() },
            object: Bytes::from_static(b"foo"),
            ops: vec![
                Op::with_input(OpCode::WRITE, OpArgs::extent(0, 3), Bytes::from_static(b"abc")),
                Op::new(OpCode::STAT, OpArgs::default()),
                Op::with_input(OpCode::APPEND, OpArgs::extent(0, 2), Bytes::from_static(b"de")),
            ],
            snapid: SnapId::NOSNAP,
            retry_attempt: 0,
            ..OsdOp::default()
        }
    }

    #[test]
    fn payloads_are_slices_of_the_data_segment() {
        let mut m = request().encode(features::PACIFIC);
        assert_eq!((m.version, m.compat_version), (8, 3));
        let data = Bytes::from(m.data.concat());
        assert_eq!(data, "abcde");
        m.data = [data.clone()].into_iter().collect();
        let back = OsdOp::decode(&m).unwrap();
        assert_eq!(back, request());
        assert_eq!(back.ops[0].indata.as_ptr(), data.as_ptr());
        assert_eq!(back.ops[2].indata.as_ptr(), data[3..].as_ptr());
    }

    #[test]
    fn a_payload_longer_than_the_data_is_refused() {
        let mut m = request().encode(features::PACIFIC);
        m.data.clear();
        assert!(OsdOp::decode(&m).is_err());
    }

    #[test]
    fn version_9_differs_by_the_span_after_the_trace() {
        let v8 = request().encode(features::PACIFIC);
        let v9 = request().encode(features::SQUID);
        assert_eq!(v9.version, 9);
        let at = 24 + 4 + 4 + 4 + (6 + 9 + 8 + 4) + TRACE_SIZE;
        assert_eq!(v9.front[..at], v8.front[..at]);
        assert_eq!(v9.front[at..at + 7], [1, 1, 1, 0, 0, 0, 0]);
        assert_eq!(v9.front[at + 7..], v8.front[at..]);
        assert_eq!(OsdOp::decode(&v9).unwrap(), request());
    }

    #[test]
    fn a_reply_keeps_results_and_output_by_operation() {
        let mut reply = OsdOpReply::to(&request(), 0, Epoch(9), OsdFlags::ONDISK);
        reply.ops[1].outdata = Bytes::from_static(b"stat");
        reply.ops[2].rval = -2;
        reply.set_versions(Eversion::new(Epoch(9), 77), 70);
        let m = reply.encode(features::SQUID);
        let back = OsdOpReply::decode(&m).unwrap();
        assert_eq!(back, reply);
        assert_eq!(back.bad_replay_version.version, 70);
        assert!(back.ops[0].indata.is_empty());
    }
}
