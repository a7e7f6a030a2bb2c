//! Requests that wait, each with its reason.
//!
//! A PG has one table of those that wait for something of its own; the core has one of those that
//! wait for a map or for a PG. Whatever the reason, a new interval of the PG takes all of them out.

use crate::client_op::ClientOp;
use crate::peer_net::Envelope;
use pg::Dup;
use std::collections::BTreeMap;
use std::rc::Rc;
use types::{Epoch, Eversion, ObjectId, SpgId};

/// What a request waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// The map of an epoch.
    Map(Epoch),
    /// A copy that this OSD is to have by the map.
    Pg(SpgId),
    /// The PG becomes active.
    Active,
    /// Replicas are heard again.
    Readable,
    /// An object that this copy lacks is recovered.
    Missing(ObjectId),
    /// An object that a replica lacks is recovered.
    Degraded(ObjectId),
    /// The first sending of the same request is durable, with this version.
    Durable(Eversion),
    /// There is room for what the request writes.
    Room,
    /// The object is no longer compared by a scrub.
    Scrub,
}

impl Reason {
    /// What an operator reads.
    pub(crate) fn text(&self) -> &'static str {
        match self {
            Reason::Map(_) => "waiting for map",
            Reason::Pg(_) => "waiting for pg",
            Reason::Active => "waiting for peered",
            Reason::Readable => "waiting for readable",
            Reason::Missing(_) => "waiting for missing object",
            Reason::Degraded(_) => "waiting for degraded object",
            Reason::Durable(_) => "waiting for ondisk",
            Reason::Room => "waiting for room",
            Reason::Scrub => "waiting for scrub",
        }
    }
}

/// What waits.
pub(crate) enum Waiter {
    /// A request.
    Op(Rc<ClientOp>),
    /// A request that was sent again, and what the first sending is answered with.
    Resent(Rc<ClientOp>, Box<Dup>),
    /// A message of another OSD.
    Peer(Box<Envelope>),
}

impl Waiter {
    /// The request, if it is one.
    pub(crate) fn op(self) -> Option<Rc<ClientOp>> {
        match self {
            Waiter::Op(op) | Waiter::Resent(op, _) => Some(op),
            Waiter::Peer(_) => None,
        }
    }
}

/// The table. Those of one reason are in the order in which they came.
#[derive(Default)]
pub(crate) struct Waits(BTreeMap<Reason, Vec<Waiter>>);

impl Waits {
    /// Something waits.
    pub(crate) fn add(&mut self, reason: Reason, waiter: Waiter) {
        if let Waiter::Op(op) | Waiter::Resent(op, _) = &waiter {
            op.tracked.delayed(reason.text());
        }
        self.0.entry(reason).or_default().push(waiter);
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What waits for this, no longer.
    pub(crate) fn take(&mut self, reason: &Reason) -> Vec<Waiter> {
        if self.0.is_empty() {
            return Vec::new();
        }
        self.0.remove(reason).unwrap_or_default()
    }

    /// Requests that wait for this, no longer.
    pub(crate) fn take_ops(
        &mut self,
        reason: &Reason,
    ) -> impl Iterator<Item = Rc<ClientOp>> + use<> {
        self.take(reason).into_iter().filter_map(Waiter::op)
    }

    /// What waits for anything from one reason to another, no longer.
    pub(crate) fn take_range(
        &mut self,
        from: Reason,
        to: Reason,
    ) -> impl Iterator<Item = Waiter> + use<> {
        let taken = if self.0.is_empty() { BTreeMap::new() } else { self.cut(from, to) };
        taken.into_values().flatten()
    }

    fn cut(&mut self, from: Reason, to: Reason) -> BTreeMap<Reason, Vec<Waiter>> {
        let keys: Vec<Reason> = self.0.range(from..=to).map(|(reason, _)| reason.clone()).collect();
        keys.into_iter().filter_map(|reason| self.0.remove_entry(&reason)).collect()
    }

    /// All requests, whatever they wait for.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Rc<ClientOp>> + use<> {
        std::mem::take(&mut self.0).into_values().flatten().filter_map(Waiter::op)
    }

    /// The copies that requests wait for.
    pub(crate) fn pgs(&self) -> Vec<SpgId> {
        let id = |reason: &Reason| if let Reason::Pg(id) = reason { Some(*id) } else { None };
        self.0.keys().filter_map(id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_op::tests::request;
    use objops::OsdFlags;
    use objops::code::write_op;

    fn op() -> Rc<ClientOp> {
        Rc::new(request(OsdFlags(0), write_op(0, &b"x"[..])))
    }

    #[test]
    fn each_reason_lets_its_own_go_in_their_order() {
        let mut waits = Waits::default();
        let ops: Vec<_> = (0..8).map(|_| op()).collect();
        let oid = ObjectId::default();
        for (op, reason) in ops.iter().zip([
            Reason::Active,
            Reason::Missing(oid.clone()),
            Reason::Active,
            Reason::Map(Epoch(5)),
            Reason::Map(Epoch(3)),
            Reason::Map(Epoch(6)),
            Reason::Room,
            Reason::Degraded(oid.clone()),
        ]) {
            waits.add(reason, Waiter::Op(op.clone()));
        }
        let same = |taken: Vec<Rc<ClientOp>>, of: &[usize]| {
            taken.len() == of.len() && taken.iter().zip(of).all(|(op, n)| Rc::ptr_eq(op, &ops[*n]))
        };
        assert!(same(waits.take_ops(&Reason::Active).collect(), &[0, 2]));
        assert!(waits.take(&Reason::Active).is_empty());
        let ready = waits.take_range(Reason::Map(Epoch(0)), Reason::Map(Epoch(5)));
        assert!(same(ready.filter_map(Waiter::op).collect(), &[4, 3]));
        assert!(same(waits.take_ops(&Reason::Degraded(oid.clone())).collect(), &[7]));
        assert!(same(waits.take_ops(&Reason::Degraded(oid)).collect(), &[]));
        assert_eq!(waits.drain().count(), 3);
        assert!(waits.is_empty());
    }
}
