//! Requests that wait, each with its reason.
//!
//! A PG has one table of those that wait for something of its own; the core has one of those that
//! wait for a map or for a PG. Whatever the reason, a new interval of the PG takes all of them out.
//!
//! A write, or an ordered read, that waits keeps later ones for its object waiting with it: see
//! [`crate::gate`] for what is promised.

use crate::client_op::ClientOp;
use crate::peer_net::Envelope;
use objops::OsdFlags;
use pg::Dup;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::rc::Rc;
use types::{Epoch, Eversion, ObjectId, SpgId};

/// The reason why a request waits.
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
    /// The reason in words, for operators.
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

/// A request that waits, or a message of another OSD.
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
pub(crate) struct Waits {
    table: BTreeMap<Reason, Vec<Waiter>>,
    /// Objects for which ordered requests have had their turn and wait: how many, and for what.
    objects: FxHashMap<ObjectId, (usize, Reason)>,
}

/// The object for which a waiting request keeps others waiting.
fn held(waiter: &Waiter) -> Option<&ObjectId> {
    match waiter {
        Waiter::Op(op) if op.had_turn.get() && op.info.rwordered() => Some(&op.head),
        // What was resent changes nothing more.
        Waiter::Op(_) | Waiter::Resent(..) | Waiter::Peer(_) => None,
    }
}

impl Waits {
    /// Something waits.
    pub(crate) fn add(&mut self, reason: Reason, waiter: Waiter) {
        if let Waiter::Op(op) | Waiter::Resent(op, _) = &waiter {
            op.tracked.delayed(reason.text());
        }
        if let Some(oid) = held(&waiter) {
            let entry = self.objects.entry(oid.detached()).or_insert((0, reason.clone()));
            *entry = (entry.0 + 1, reason.clone());
        }
        self.table.entry(reason).or_default().push(waiter);
    }

    /// What a request must wait for because an earlier one for its object waits for it.
    pub(crate) fn ahead_of(&self, op: &ClientOp) -> Option<Reason> {
        if self.objects.is_empty() || !op.info.rwordered() {
            return None;
        }
        let (_, reason) = self.objects.get(&op.head)?;
        // What makes room must not wait for it.
        let passes =
            *reason == Reason::Room && op.m().flags.any(OsdFlags::FULL_TRY | OsdFlags::FULL_FORCE);
        (!passes).then(|| reason.clone())
    }

    fn released(&mut self, waiters: &[Waiter]) {
        for oid in waiters.iter().filter_map(held) {
            if let Some((count, _)) = self.objects.get_mut(oid) {
                *count -= 1;
                if *count == 0 {
                    self.objects.remove(oid);
                }
            }
        }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Takes out what waits for this.
    pub(crate) fn take(&mut self, reason: &Reason) -> Vec<Waiter> {
        if self.table.is_empty() {
            return Vec::new();
        }
        let taken = self.table.remove(reason).unwrap_or_default();
        self.released(&taken);
        taken
    }

    /// Takes out the requests that wait for this.
    pub(crate) fn take_ops(
        &mut self,
        reason: &Reason,
    ) -> impl Iterator<Item = Rc<ClientOp>> + use<> {
        self.take(reason).into_iter().filter_map(Waiter::op)
    }

    /// Takes out what waits for anything from one reason to another.
    pub(crate) fn take_range(
        &mut self,
        from: Reason,
        to: Reason,
    ) -> impl Iterator<Item = Waiter> + use<> {
        let taken = if self.table.is_empty() { BTreeMap::new() } else { self.cut(from, to) };
        taken.values().for_each(|waiters| self.released(waiters));
        taken.into_values().flatten()
    }

    fn cut(&mut self, from: Reason, to: Reason) -> BTreeMap<Reason, Vec<Waiter>> {
        let range = self.table.range(from..=to);
        let keys: Vec<Reason> = range.map(|(reason, _)| reason.clone()).collect();
        keys.into_iter().filter_map(|reason| self.table.remove_entry(&reason)).collect()
    }

    /// Takes out all requests, whatever they wait for.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Rc<ClientOp>> + use<> {
        self.objects.clear();
        std::mem::take(&mut self.table).into_values().flatten().filter_map(Waiter::op)
    }

    /// The copies that requests wait for.
    pub(crate) fn pgs(&self) -> Vec<SpgId> {
        let id = |reason: &Reason| if let Reason::Pg(id) = reason { Some(*id) } else { None };
        self.table.keys().filter_map(id).collect()
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
        assert!(waits.objects.is_empty());
        assert!(waits.is_empty());
    }
}
