//! Pool operations of librados (`MPoolOp`): the same rules as the commands, with error numbers
//! only.

use super::Inner;
use super::commands::request_id;
use super::session::Session;
use crate::commands::pool::{self, NewPool};
use crate::osd_state::OsdMapExt;
use crate::state::{Change, Execution, Known, Pending, RequestId, RequestKind};
use bytes::Bytes;
use denc::{Encode, Features};
use messages::{Payload, PoolOp, PoolOpCode, PoolOpReply};
use std::rc::Rc;
use types::errno::Errno;
use types::{Epoch, PoolId};

/// An operation as operators see it that look at requests.
pub(super) fn described(m: &PoolOp) -> String {
    format!("poolop({:?}, pool {}, name {:?})", m.op, m.pool, m.name)
}

impl Inner {
    pub(super) fn pool_op(&self, session: &Rc<Session>, m: PoolOp, tid: u64) {
        let state = self.committed();
        let fsid = state.monmap.fsid;
        let op = self.ops.begin(described(&m), session.name.to_string());
        let reply = {
            let session = session.clone();
            let paxos = m.paxos;
            move |code: i32, epoch: Epoch, response_data: Option<Bytes>| {
                let reply = PoolOpReply { paxos, fsid, reply_code: code, epoch, response_data };
                let mut m = reply.encode(session.conn.features());
                m.tid = tid;
                session.conn.send(m);
                drop(op);
            }
        };
        let now = state.osd.last();
        let lost = session.conn.clone();
        let request = request_id(session, RequestKind::PoolOp, tid);
        if !self.pool_op_allowed(session, &m) {
            return reply(-Errno::EPERM.0, now, None);
        }
        if m.fsid != fsid {
            return reply(-Errno::EINVAL.0, now, None);
        }
        self.change(
            |p| once(p, request, |p| apply(p, &m, &self.conf.borrow())),
            move |r| match r {
                Ok((code, epoch, data)) => reply(code, epoch, data),
                // The client asks again when its session is back.
                Err(_) => lost.lose(),
            },
        );
    }

    /// Snapshots that clients manage need only write access to the pool's data; everything else
    /// needs write access to the cluster (Ceph: `OSDMonitor::enforce_pool_op_caps`).
    fn pool_op_allowed(&self, session: &Session, m: &PoolOp) -> bool {
        if session.may("osd", "w") {
            return true;
        }
        if !matches!(m.op, PoolOpCode::CREATE_UNMANAGED_SNAP | PoolOpCode::DELETE_UNMANAGED_SNAP) {
            return false;
        }
        let state = self.committed();
        let name = state.osd.map().pool_names.get(&PoolId(m.pool.into())).cloned();
        // An explicit permission for the operation, with the pool as its argument.
        let args = name.iter().map(|n| ("poolname".to_owned(), n.clone())).collect();
        if session.allows("osd", "osd pool op unmanaged-snap", &args, "rw") {
            return true;
        }
        // Otherwise the OSD caps decide.
        let Some(caps) = state.auth.lookup(&session.name).and_then(|a| a.caps.get("osd")) else {
            return false;
        };
        let caps = caps.parse::<auth::caps::OsdCap>();
        caps.is_ok_and(|caps| caps.may_number_snapshots(name.as_deref()))
    }
}

/// Executes an operation that was not executed before, and remembers its answer in the same batch:
/// its result, an epoch that has what it did, and data.
fn once(
    p: &mut Pending,
    request: Option<RequestId>,
    execute: impl FnOnce(&mut Pending) -> Result<Option<Bytes>, Errno>,
) -> (i32, Epoch, Option<Bytes>) {
    match request.map(|id| p.state().executed.known(id)) {
        Some(Known::Executed(e)) => return (e.result, e.epoch, e.data.clone()),
        Some(Known::Late) => return (-Errno::ESTALE.0, p.state().osd.last(), None),
        Some(Known::New) | None => {}
    }
    let (result, epoch, data) = match execute(p) {
        // One that found its work done is answered with the epoch that has it.
        Ok(data) => {
            (0, if p.changes_osd_map() { p.osd_epoch() } else { p.state().osd.last() }, data)
        }
        Err(e) => (-e.0, p.state().osd.last(), None),
    };
    if let Some(id) = request {
        let stamp = p.now();
        p.put(Change::Executed(Box::new(Execution {
            id,
            stamp,
            result,
            text: String::new(),
            data: data.clone(),
            epoch,
        })));
    }
    (result, epoch, data)
}

fn apply(p: &mut Pending, m: &PoolOp, conf: &conf::Config) -> Result<Option<Bytes>, Errno> {
    let id = PoolId(m.pool.into());
    match m.op {
        PoolOpCode::CREATE => {
            if p.osd().pool_id(&m.name).is_some() {
                return Ok(None);
            }
            let new = NewPool {
                name: &m.name,
                rule_id: (m.crush_rule >= 0).then(|| m.crush_rule.into()),
                ..Default::default()
            };
            pool::create_pool(p, conf, &new).map(|_| None).map_err(|e| e.errno)
        }
        PoolOpCode::DELETE => match p.osd().pools.contains_key(&id) {
            true => pool::remove_pool(p, conf, id).map(|_| None).map_err(|e| e.errno),
            false => Ok(None),
        },
        PoolOpCode::CREATE_SNAP => pool::make_snap(p, id, &m.name).map(|_| None),
        PoolOpCode::DELETE_SNAP => pool::remove_snap(p, id, &m.name).map(|_| None),
        PoolOpCode::CREATE_UNMANAGED_SNAP => {
            let snap = pool::make_unmanaged_snap(p, id)?;
            Ok(Some(snap.0.to_bytes(Features::ALL)))
        }
        PoolOpCode::DELETE_UNMANAGED_SNAP => {
            pool::remove_unmanaged_snap(p, id, m.snapid).map(|_| None)
        }
        PoolOpCode::AUID_CHANGE => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}
