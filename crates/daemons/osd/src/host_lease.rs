//! The host's part of read leases: no read is answered that may be old.
//!
//! The machine says until when this OSD may answer ([`pg::Pg::is_readable`]). That is asked when a
//! request comes, and again with the answer of a read in hand: the process may have stood still in
//! between. A read that has to wait goes on with [`pg::Action::Readable`], or with the next
//! interval. A replica does not wait but sends the client to the primary.

use crate::client_op::ClientOp;
use crate::clock::steady_now;
use crate::host::{Context, PgHost};
use crate::waits::{Reason, Waiter};
use pg::{Event, Steady};
use std::rc::Rc;
use types::Errno;

impl PgHost {
    /// Whether what was read until now may be answered.
    pub(crate) fn may_answer(&self, op: &ClientOp) -> bool {
        let now = steady_now();
        !self.core.health.is_sealed()
            && self.with_pg(|pg| {
                if pg.is_primary() {
                    pg.is_readable(now)
                } else {
                    pg.may_read_replica(&op.head, now)
                }
            })
    }

    /// The request must not be answered now.
    pub(crate) fn wait_readable(self: &Rc<Self>, op: &Rc<ClientOp>) {
        self.finish(op);
        if !self.with_pg(|pg| pg.is_primary()) {
            self.core.reply_error(op, Errno::EAGAIN);
            return;
        }
        let mut st = self.st.borrow_mut();
        st.pg.set_clock(steady_now());
        st.pg.wait_readable();
        st.waits.add(Reason::Readable, Waiter::Op(op.clone()));
    }

    /// Reads may be answered again.
    pub(crate) fn readable(&self) {
        let mut ops: Vec<_> = self.st.borrow_mut().waits.take_ops(&Reason::Readable).collect();
        // Some came while replicas were not heard, and others had their turn then, which had come
        // before them.
        ops.sort_by_key(|op| op.received);
        for op in ops {
            self.core.route(op);
        }
    }

    /// Serves a read although this OSD does not lead, if that is safe; otherwise the client asks
    /// the primary (Ceph: `PrimaryLogPG::do_op` with `can_serve_replica_read`).
    pub(crate) fn read_on_replica(self: &Rc<Self>, op: Rc<ClientOp>) {
        let Some(map) = self.core.map() else { return };
        if op.info.includes_pg_op() || !self.may_answer(&op) {
            self.core.reply_error(&op, Errno::EAGAIN);
            return;
        }
        if let Err(e) = self.check(&op, &map) {
            self.core.reply_error(&op, e);
            return;
        }
        self.st.borrow_mut().running.insert(Rc::as_ptr(&op) as usize, op.clone());
        let (host, generation) = (self.clone(), self.generation.get());
        crate::run_now::run_now(async move {
            // A replica's cached contexts are not told of writes, so this one is for the request
            // alone.
            let context = Rc::new(Context::default());
            host.execute_on_replica(&context, &op, generation).await;
            if host.generation.get() == generation {
                host.finish(&op);
            }
        });
    }

    /// The machine wants to be woken.
    pub(crate) fn wake_at(self: &Rc<Self>, at: Steady) {
        // An earlier call makes the machine say again what it waits for.
        if self.pump.wakes.get().is_some_and(|t| t <= at) {
            return;
        }
        self.pump.wakes.set(Some(at));
        let host = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(at.left(steady_now())).await;
            let Some(host) = host.upgrade() else { return };
            if host.pump.wakes.get() == Some(at) {
                host.pump.wakes.set(None);
                host.handle(Event::Wake);
            }
        });
    }

    /// Tells the machine the time, so that its state is that of now.
    pub(crate) fn tell_time(&self) {
        self.st.borrow_mut().pg.set_clock(steady_now());
    }
}
