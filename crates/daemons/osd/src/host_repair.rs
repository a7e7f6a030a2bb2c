//! Damage that reads of a PG's objects find: what a client waits for is answered from another copy.

use crate::client_op::ClientOp;
use crate::core::Core;
use crate::host::PgHost;
use bytes::Bytes;
use denc::{Decode, Encode, Features};
use objops::Op;
use objops::object::{ObjectInfo, decode_attr};
use objops::{OI_ATTR, ObjectReader};
use pg::Event;
use std::rc::Rc;
use types::scrub::{ScrubLsArg, ScrubLsResult};
use types::{Errno, ObjectId};

impl Core {
    /// Sets the count of bad copies that were replaced (`clear_shards_repaired`).
    pub fn set_shards_repaired(&self, count: u64) {
        self.jobs.shards_repaired.set(count);
    }
}

impl PgHost {
    /// Takes note of what reads have found to be damaged. The objects that are missing here because
    /// of it: requests that read them wait for their recovery. What stays readable in part, because
    /// no other copy is there, is not among them.
    pub(crate) async fn note_damage(self: &Rc<Self>) -> Vec<ObjectId> {
        let damage = std::mem::take(&mut *self.reader.damage.borrow_mut());
        if let Some(why) = damage.metadata {
            // A row that cannot be found cannot be replaced either. Others have what this OSD had.
            self.core.health.fail(format!("{}: the store's metadata is damaged: {why}", self.pgid));
        }
        let mut lost = Vec::new();
        for key in damage.objects {
            let Ok(oid) = ObjectId::from_key(&key) else { continue };
            tracing::error!(osd = self.core.whoami.0, pg = %self.pgid, %oid, "the object's data is damaged");
            let Ok(info) = self.reader.attr(&key, OI_ATTR).await else { continue };
            let Ok(info) = decode_attr::<ObjectInfo>(&info) else { continue };
            let oid = oid.detached();
            // Not through the queue of events: the caller goes by what the machine says now.
            self.st.borrow_mut().pg.handle(
                Event::ObjectDamaged { oid: oid.clone(), version: info.version },
                client::wall_clock(),
            );
            self.pump();
            if self.with_pg(|pg| pg.must_wait(&oid, false)) {
                lost.push(oid);
            }
        }
        lost
    }

    /// What the last scrub found, for `rados list-inconsistent-obj` and `-snapset` (Ceph:
    /// `PrimaryLogPG::do_scrub_ls`).
    pub(crate) fn scrub_ls(
        &self,
        op: &ClientOp,
        o: &Op,
        out: &mut Vec<Bytes>,
    ) -> Result<i32, Errno> {
        if op.m().pgid.pgid != self.pgid {
            return Err(Errno::EINVAL);
        }
        let arg = ScrubLsArg::from_bytes(&o.indata).map_err(|_| Errno::EINVAL)?;
        let result = self.with_pg(|pg| {
            let interval = pg.info().history.same_interval_since.0;
            if arg.interval != 0 && arg.interval != interval {
                return Err(Errno::EAGAIN);
            }
            let found = pg.scrub_results().ok_or(Errno::ENOENT)?;
            let f = Features::ALL;
            let vals = match arg.get_snapsets {
                0 => page(&arg, found.objects.iter().map(|(oid, r)| (oid, r.to_bytes(f)))),
                _ => page(&arg, found.snapsets.iter().map(|(oid, r)| (oid, r.to_bytes(f)))),
            };
            Ok(ScrubLsResult { interval, vals })
        })?;
        out.push(result.to_bytes(Features::ALL));
        Ok(0)
    }

    /// A bad copy here was replaced.
    pub(crate) fn copy_repaired(&self, oid: &ObjectId) {
        tracing::info!(osd = self.core.whoami.0, pg = %self.pgid, %oid, "the object is whole again");
        self.core.jobs.shards_repaired.set(self.core.jobs.shards_repaired.get() + 1);
    }
}

/// The records after the one that the caller saw last.
fn page<'a>(arg: &ScrubLsArg, all: impl Iterator<Item = (&'a ObjectId, Bytes)>) -> Vec<Bytes> {
    let begins = arg.after_name.is_empty();
    let last = |oid: &ObjectId| {
        oid.name == arg.after_name
            && oid.namespace == arg.after_namespace
            && oid.snap == arg.after_snap
    };
    let mut seen = begins;
    let rest = all.filter(|(oid, _)| {
        let before = seen;
        seen |= last(oid);
        before
    });
    rest.map(|(_, bytes)| bytes)
        .take(usize::try_from(arg.max_return).unwrap_or(usize::MAX))
        .collect()
}
