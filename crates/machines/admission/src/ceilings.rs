//! Limits of the images behind objects, on this OSD (librbd's `rbd_qos_*` options, held by the
//! server).
//!
//! An image is recognised by the names of its data objects ([`crate::owners`]). The manager reads
//! and splits its limits: it is told what images are asked for ([`ImageCeilings::demand`]) and
//! answers with this OSD's part ([`ImageCeilings::take_shares`]).
//!
//! What an operation costs here is a comparison with the beginnings of a few names, and for data of
//! an image a look into a table by slices of the request.

use crate::legs::Leg;
use crate::limited::{Gate, Limited, Part, SILENCE_NANOS};
use crate::news::News;
use crate::owners::Owners;
use crate::request::{Held, Request};
use bytes::Bytes;
use messages::{ImageData, ImageDemand, ImageShare};
use std::collections::BTreeMap;
use std::rc::Rc;
use types::PoolId;

/// Images that were not used for so long are forgotten.
const IDLE_NANOS: u64 = 300_000_000_000;
/// How often they are looked for.
const SWEEP_NANOS: u64 = 10_000_000_000;
/// Images that are known at a time; more are not limited.
const IMAGES_MAX: usize = 16384;
/// The images of a namespace by prefix.
type Images = BTreeMap<Bytes, Limited>;

/// The limits of images, and the requests that wait for them. Times are nanoseconds of the
/// scheduler's clock.
pub struct ImageCeilings<R> {
    pools: BTreeMap<PoolId, BTreeMap<Bytes, Images>>,
    known: usize,
    gate: Gate<R>,
    /// When the manager was last heard.
    heard: u64,
    lonely: bool,
    swept: u64,
    /// There is something to tell before the next round.
    news: Rc<News>,
    owners: Rc<Owners>,
}

impl<R> Default for ImageCeilings<R> {
    fn default() -> Self {
        ImageCeilings {
            pools: BTreeMap::new(),
            known: 0,
            gate: Gate::default(),
            heard: 0,
            lonely: false,
            swept: 0,
            news: Rc::default(),
            owners: Rc::default(),
        }
    }
}

impl<R: Request> ImageCeilings<R> {
    /// Recognises images by this table.
    pub fn recognise(&mut self, owners: Rc<Owners>) {
        self.owners = owners;
    }

    /// Notified when there is something to tell the manager at once.
    pub fn news(&self) -> Rc<News> {
        self.news.clone()
    }

    /// Takes a request that is about to be scheduled; it comes back if it may go on at once. A
    /// request that comes again was counted before.
    pub fn admit(&mut self, op: Rc<R>, now: u64) -> Option<Rc<R>> {
        // Clones read their parents at a snapshot: a limit on a parent is not theirs. A read that
        // is ordered behind writes waits with them.
        let Some(prefix) = self
            .owners
            .image(op.pool(), op.namespace(), op.object())
            .filter(|_| op.is_head() || op.demand().ordered)
        else {
            return Some(op);
        };
        if op.tags().counted.replace(true) {
            return Some(op);
        }
        let images = self.pools.get_mut(&op.pool()).and_then(|p| p.get_mut(op.namespace()));
        let Some(entry) = images.and_then(|i| i.get_mut(&prefix[..])) else {
            let data = ImageData {
                pool: op.pool(),
                namespace: Bytes::copy_from_slice(op.namespace()),
                prefix: Bytes::copy_from_slice(&prefix),
            };
            if let Some(entry) = self.entry(data, now) {
                entry.count(op.demand(), now);
                self.news.notify();
            }
            return Some(op);
        };
        let demand = op.demand();
        entry.count(demand, now);
        let Some(tenant) = entry.tenant() else {
            if entry.asks(now) {
                self.news.notify();
            }
            return Some(op);
        };
        let tracked = op.clone();
        let through = self.gate.offer(tenant, demand, op, now);
        if through.is_none() {
            tracked.held(Held::Limits);
            tracked.tags().queued.set(now);
            // It comes to this OSD for the first time in a while, which has little of the limit.
            if entry.begins() {
                self.news.notify();
            }
        }
        through
    }

    /// The next request that has waited for long enough.
    pub fn release(&mut self, now: u64) -> Option<Rc<R>> {
        if self.gate.is_empty() {
            return None;
        }
        // Of a client that is gone: it sends it again if it still wants it.
        let op = self.gate.release(now, |op| op.is_open())?;
        op.let_go();
        let tags = op.tags();
        tags.legs.add(Leg::Limits, now.saturating_sub(tags.queued.get()));
        Some(op)
    }

    /// Takes out requests that need not be done here any more.
    pub fn take_out(&mut self, gone: &dyn Fn(&R) -> bool) -> Vec<Rc<R>> {
        self.gate.take_out(&mut |op| gone(op))
    }

    /// When the next request may go on.
    pub fn next_at(&mut self) -> Option<u64> {
        if self.gate.is_empty() { None } else { self.gate.next_due() }
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.gate.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.gate.is_empty()
    }

    /// Whether demand is to be told regularly.
    pub fn has_limited(&self) -> bool {
        self.gate.tenants() > 0
    }

    /// The entry of an image, made if there is room.
    fn entry(&mut self, data: ImageData, now: u64) -> Option<&mut Limited> {
        let images = self.pools.entry(data.pool).or_default().entry(data.namespace).or_default();
        if !images.contains_key(&data.prefix) {
            if self.known >= IMAGES_MAX {
                return None;
            }
            self.known += 1;
        }
        Some(images.entry(data.prefix).or_insert_with(|| Limited::new(now)))
    }

    /// What is to be told the manager now. Counting begins anew for what is told.
    pub fn demand(&mut self, now: u64) -> Vec<ImageDemand> {
        let mut told = Vec::new();
        if now.saturating_sub(self.swept) >= SWEEP_NANOS {
            self.swept = now;
            self.forget_idle(now);
        }
        if !self.lonely && now.saturating_sub(self.heard) >= SILENCE_NANOS {
            self.lonely = true;
            self.each(|gate, _, e| e.apply(gate, true, now));
        }
        self.each(|gate, data, e| {
            if let Some(t) = e.tell(gate, false, now) {
                told.push(ImageDemand {
                    data: data(),
                    known: t.known,
                    millis: t.millis,
                    reads: t.reads,
                    writes: t.writes,
                });
            }
        });
        told
    }

    /// Takes what the manager split.
    pub fn take_shares(&mut self, shares: Vec<ImageShare>, now: u64) {
        let limited = self.has_limited();
        self.heard = now;
        if std::mem::take(&mut self.lonely) {
            self.each(|gate, _, e| e.apply(gate, false, now));
        }
        for mut share in shares {
            // The names are kept for longer than the message.
            let own = |b: &Bytes| Bytes::copy_from_slice(b);
            share.data = ImageData {
                pool: share.data.pool,
                namespace: own(&share.data.namespace),
                prefix: own(&share.data.prefix),
            };
            let mut gate = std::mem::take(&mut self.gate);
            if let Some(entry) = self.entry(share.data.clone(), now) {
                entry.take(Part { osds: share.osds, rates: share.rates }, &mut gate, now);
            }
            self.gate = gate;
        }
        // From now on demand is told regularly.
        if !limited && self.has_limited() {
            self.news.notify();
        }
    }

    /// Every entry, with a way to make its name.
    fn each(&mut self, mut f: impl FnMut(&mut Gate<R>, &dyn Fn() -> ImageData, &mut Limited)) {
        for (pool, namespaces) in &mut self.pools {
            for (namespace, images) in namespaces {
                for (prefix, entry) in images {
                    let data = || ImageData {
                        pool: *pool,
                        namespace: namespace.clone(),
                        prefix: prefix.clone(),
                    };
                    f(&mut self.gate, &data, entry);
                }
            }
        }
    }

    fn forget_idle(&mut self, now: u64) {
        let (gate, known) = (&mut self.gate, &mut self.known);
        self.pools.retain(|_, namespaces| {
            namespaces.retain(|_, images| {
                images.retain(|_, e| {
                    let keep = now.saturating_sub(e.used) < IDLE_NANOS
                        || e.tenant().is_some_and(|t| !gate.remove(t));
                    *known -= usize::from(!keep);
                    keep
                });
                !images.is_empty()
            });
            !namespaces.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::{PlainRequest, Session};
    use messages::ShareOfRate;
    use qos::Access;
    use types::SnapId;

    const SECOND: u64 = 1_000_000_000;

    fn request(name: &str, access: Access) -> PlainRequest {
        let name = Bytes::copy_from_slice(name.as_bytes());
        let session = Session::new(0, "");
        PlainRequest::new(PoolId(3), "", name, (access, 4096), session, 1)
    }

    fn write(name: &str) -> Rc<PlainRequest> {
        Rc::new(request(name, Access::Write))
    }

    fn share(prefix: &'static str, iops: u64, part: u64) -> ImageShare {
        let data = ImageData { pool: PoolId(3), namespace: Bytes::new(), prefix: prefix.into() };
        let rate =
            |n: u64, part| ShareOfRate { each_second: n * 1000, saved: n * 200, peak: 0, part };
        let rates = if iops == 0 {
            Vec::new()
        } else {
            (0..6).map(|i| if i == 0 { rate(iops, part * 1000) } else { rate(0, 0) }).collect()
        };
        ImageShare { data, osds: 4, rates }
    }

    fn passed(c: &mut ImageCeilings<PlainRequest>, name: &str, n: usize, now: u64) -> usize {
        (0..n).filter(|_| c.admit(write(name), now).is_some()).count()
    }

    #[test]
    fn only_the_limited_image_waits() {
        let mut c = ImageCeilings::default();
        assert_eq!(passed(&mut c, "rbd_data.a.0", 100, SECOND), 100, "nothing is known yet");
        assert_eq!((c.demand(SECOND).len(), c.demand(SECOND).len()), (1, 0));
        assert!(c.news().take() && !c.news().take());
        c.take_shares(vec![share("rbd_data.a", 100, 10)], SECOND);
        assert!(c.news().take(), "whoever tells of demand has to do so regularly now");
        assert_eq!(passed(&mut c, "rbd_data.a.0", 5, SECOND), 1);
        for other in ["rbd_data.b.0", "rbd_data.3.a.0", "rbd_data.aa.0", "rbd_header.a", "a"] {
            assert_eq!(passed(&mut c, other, 100, SECOND), 100, "{other}");
        }
        let mut snapshot = request("rbd_data.a.0", Access::Read);
        snapshot.oid.snap = SnapId(4);
        assert!(c.admit(Rc::new(snapshot), SECOND).is_some(), "as a clone reads its parent");
        assert_eq!((c.len(), c.next_at()), (4, Some(SECOND + SECOND / 10)));
        let demand = c.demand(SECOND + 1);
        let of_a = demand.iter().find(|d| d.data.prefix == "rbd_data.a").unwrap();
        assert_eq!((of_a.writes.ops, of_a.writes.waiting_ops, of_a.known), (5, 4, true));
        // Released one at a time; a request that comes again does not pay again.
        assert!(c.release(SECOND + SECOND / 20).is_none());
        let op = c.release(SECOND + SECOND / 10).unwrap();
        assert!(c.release(SECOND + SECOND / 10).is_none());
        assert!(c.admit(op, SECOND + SECOND / 10).is_some());
        // Without a limit the rest goes, and then it is no tenant any more.
        c.take_shares(vec![share("rbd_data.a", 0, 0)], 2 * SECOND);
        assert_eq!(std::iter::from_fn(|| c.release(2 * SECOND)).count(), 3);
        assert_eq!(passed(&mut c, "rbd_data.a.0", 100, 2 * SECOND), 100);
        c.take_shares(vec![share("rbd_data.a", 0, 0)], 2 * SECOND);
        assert!(!c.has_limited());
    }

    #[test]
    fn without_the_manager_parts_become_even() {
        let mut c = ImageCeilings::default();
        c.take_shares(vec![share("rbd_data.a", 100, 10)], SECOND);
        let next = |c: &mut ImageCeilings<PlainRequest>, now| {
            // Some was saved up.
            passed(c, "rbd_data.a.0", 10, now);
            let wait = c.next_at().unwrap() - now;
            for tenth in 0..10 {
                while c.release(now + tenth * SECOND / 10).is_some() {}
            }
            assert!(c.is_empty());
            wait
        };
        c.demand(9 * SECOND);
        assert_eq!(next(&mut c, 9 * SECOND), SECOND / 10, "the last split holds");
        c.demand(12 * SECOND);
        assert_eq!(next(&mut c, 12 * SECOND), SECOND / 25, "a quarter of the whole");
        c.take_shares(Vec::new(), 13 * SECOND);
        assert_eq!(next(&mut c, 13 * SECOND), SECOND / 10, "any word from it is enough");
    }

    #[test]
    fn what_is_kept_is_bounded_and_idle_images_are_forgotten() {
        let mut c = ImageCeilings::default();
        c.take_shares(vec![share("rbd_data.a", 1, 1)], 1);
        assert_eq!(passed(&mut c, "rbd_data.a.0", 3, 1), 1);
        for i in 0..IMAGES_MAX + 10 {
            c.admit(write(&format!("rbd_data.i{i}.0")), 1);
        }
        assert_eq!(c.known, IMAGES_MAX);
        c.demand(IDLE_NANOS + 1);
        assert_eq!((c.known, c.len()), (1, 2), "of one image something waits");
        for second in 0..2 {
            assert!(c.release(2 * IDLE_NANOS + second * 10 * SECOND).is_some());
        }
        c.demand(2 * IDLE_NANOS + 10 * SECOND);
        assert_eq!((c.known, c.has_limited(), c.pools.len()), (0, false, 0));
    }
}
