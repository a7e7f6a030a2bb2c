//! For whom requests are: the tenants of this OSD, and what they are promised.
//!
//! A request belongs to the tenant of the most special specification that fits it: of its image or
//! bucket, of its client, of its namespace, of its pool. If none fits, `osd_qos_tenant` says what
//! counts as one tenant. The table is found by slices of the request; only the first operation of a
//! tenant allocates.
//!
//! Specifications come from the manager with this OSD's part of their rates
//! ([`Tenants::take_shares`]), and it is told what their tenants are asked for
//! ([`Tenants::demand`]), as for [`crate::ceilings`].

use crate::asked::Asked;
use crate::legs::{Leg, Spent, Times};
use crate::limited::{Gate, Limited, Part, SILENCE_NANOS, own_part};
use crate::owners::{Kind, Owners, Role};
use crate::request::{Held, Payer, Request};
use crate::waits::Waits;
use bytes::Bytes;
use messages::{QosShares, TenantDemand, TenantNumber, TenantPart, TenantSeen, TenantShare};
use qos::{Access, Backlog, Fraction, Pace, TenantSpec};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use serde_json::{Value, json};
use std::hash::Hasher;
use std::rc::Rc;
use types::PoolId;

/// What counts as one tenant if no specification says it (`osd_qos_tenant`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TenantBy {
    /// A pool, or a namespace of it.
    #[default]
    Pool,
    /// An owner of objects (an image or a bucket); what has no owner, as for a pool.
    Image,
    /// A client, by the name that it has a key for.
    Client,
}

impl TenantBy {
    /// From the option's value.
    pub fn from_name(name: &str) -> Self {
        match name {
            "image" => TenantBy::Image,
            "client" => TenantBy::Client,
            _ => TenantBy::Pool,
        }
    }

    /// The option's value.
    pub fn name(self) -> &'static str {
        match self {
            TenantBy::Pool => "pool",
            TenantBy::Image => "image",
            TenantBy::Client => "client",
        }
    }
}

/// Tenants that are kept at a time; operations of more of them count as one.
const TENANTS_MAX: usize = 1 << 17;
/// Of so many it is kept where the time of their operations goes.
const TIMED_TENANTS_MAX: usize = 1 << 14;
/// A tenant without operations for so long is forgotten.
const IDLE_NANOS: u64 = 300_000_000_000;
/// So many are named in a report to the manager.
const TOLD_TENANTS_MAX: usize = 512;
/// A tenant that came within this counts for what is promised.
const LATELY_NANOS: u64 = 10_000_000_000;
/// Of so many it is looked at with each operation of a new tenant.
const SWEPT_ROWS: usize = 4;

/// What was seen of a tenant since the OSD started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    offered: u64,
    offered_bytes: u64,
    served: u64,
    served_bytes: u64,
    /// Served to keep its floor.
    by_floor: u64,
    /// Waited because of its ceiling.
    throttled: u64,
    /// How long that was.
    throttled_time: u64,
    waited: u64,
    waits: Waits,
    /// Parts of its operations that other OSDs lead: shards that were read and written here.
    parts: u64,
    parts_bytes: u64,
}

impl Seen {
    /// What came since another time.
    fn since(&self, before: &Seen, name: String) -> TenantSeen {
        TenantSeen {
            name,
            offered: self.offered - before.offered,
            offered_bytes: self.offered_bytes - before.offered_bytes,
            served: self.served - before.served,
            served_bytes: self.served_bytes - before.served_bytes,
            by_floor: self.by_floor - before.by_floor,
            throttled: self.throttled - before.throttled,
            throttled_time: self.throttled_time - before.throttled_time,
            waited: self.waited - before.waited,
            waits: self.waits.since(&before.waits).used().to_vec(),
        }
    }
}

/// Adds up tenants.
fn add(sum: &mut TenantSeen, t: &TenantSeen) {
    for (sum, n) in [
        (&mut sum.offered, t.offered),
        (&mut sum.offered_bytes, t.offered_bytes),
        (&mut sum.served, t.served),
        (&mut sum.served_bytes, t.served_bytes),
        (&mut sum.by_floor, t.by_floor),
        (&mut sum.throttled, t.throttled),
        (&mut sum.throttled_time, t.throttled_time),
        (&mut sum.waited, t.waited),
    ] {
        *sum = sum.saturating_add(n);
    }
    sum.waits.resize(sum.waits.len().max(t.waits.len()), 0);
    sum.waits.iter_mut().zip(&t.waits).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
}

/// What names a tenant that no specification names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Key {
    pool: PoolId,
    namespace: Bytes,
    /// An owner's key, or a client.
    detail: Bytes,
}

struct Row {
    key: Key,
    /// Of the specification; the key is of no account then.
    spec: Option<usize>,
    /// Under which the scheduler has it.
    id: u64,
    hash: u64,
    used: u64,
    seen: Seen,
    /// What of it the manager was told.
    told: Seen,
    /// What it was charged, in thousandths of a write of 4 KiB.
    cost: u64,
    /// Where the time of its operations went, once one was answered.
    times: Option<Box<Times>>,
}

struct Spec {
    /// Its rates have this OSD's parts in them.
    share: TenantShare,
    row: u32,
    limited: Limited,
    asked: Asked,
    /// What this OSD has of ceilings of operations, of those of bytes, and of floors.
    part: [Fraction; 3],
}

impl Spec {
    /// A tenant of whom nothing was asked here yet.
    fn new(mut share: TenantShare, row: u32, now: u64) -> Self {
        // It is kept for longer than the message.
        for name in [&mut share.namespace, &mut share.prefix].into_iter().flatten() {
            *name = Bytes::copy_from_slice(name);
        }
        let standing = Fraction::standing(share.osds);
        let part = [standing, standing, Fraction::even(share.osds)];
        let mut spec =
            Spec { share, row, limited: Limited::new(now), asked: Asked::default(), part };
        spec.divide();
        spec
    }

    /// Works out this OSD's parts.
    fn divide(&mut self) {
        let [ops, bytes, floor] = self.part;
        let ceilings = self.share.ceilings.iter_mut().zip([ops, bytes, ops, ops, bytes, bytes]);
        for (rate, part) in ceilings.chain(self.share.floors.iter_mut().map(|rate| (rate, floor))) {
            rate.part = part.of(rate.each_second);
        }
    }

    /// Its part of ceilings.
    fn ceilings(&self) -> Part {
        Part { osds: self.share.osds, rates: self.share.ceilings.clone() }
    }

    /// What the scheduler is told.
    fn promise(&self, even: bool, scale: u32) -> TenantSpec {
        let [iops, bps] = self.floor(even);
        let scale = qos::set_aside(scale, self.share.osds, 1000 - self.part[2].of(1000) as u32);
        // What is left of a floor is still one.
        let scaled = |n: u64| {
            if n == 0 { 0 } else { ((u128::from(n) * u128::from(scale) / 1000) as u64).max(1) }
        };
        let floor = Pace {
            iops_milli: scaled(iops),
            bps: if bps == 0 { 0 } else { (scaled(bps) / 1000).max(1) },
        };
        TenantSpec { floor, weight: self.share.weight.max(1), ceiling: Pace::default() }
    }

    /// This OSD's part of the floor, in thousandths of operations and of bytes each second; 0 for
    /// none.
    fn floor(&self, even: bool) -> [u64; 2] {
        [0, 1].map(|i| self.share.floors.get(i).map_or(0, |s| own_part(s, self.share.osds, even)))
    }

    fn has_floor(&self) -> bool {
        self.share.floors.iter().any(|f| f.each_second > 0)
    }

    /// Whether it is promised anything that is divided by demand.
    fn is_divided(&self) -> bool {
        self.has_floor() || self.limited.tenant().is_some()
    }
}

/// By what specifications are found.
#[derive(Default)]
struct Index {
    buckets: FxHashMap<Bytes, usize>,
    images: FxHashMap<(PoolId, Bytes), FxHashMap<Bytes, usize>>,
    clients: FxHashMap<String, usize>,
    namespaces: FxHashMap<PoolId, FxHashMap<Bytes, usize>>,
    pools: FxHashMap<PoolId, usize>,
}

impl Index {
    fn add(&mut self, s: &TenantShare, at: usize) {
        let own = |b: &Bytes| Bytes::copy_from_slice(b);
        match (s.pool, &s.namespace, &s.prefix, &s.client) {
            (Some(pool), Some(namespace), Some(prefix), None) => {
                self.images.entry((pool, own(namespace))).or_default().insert(own(prefix), at);
            }
            (Some(pool), Some(namespace), None, None) => {
                self.namespaces.entry(pool).or_default().insert(own(namespace), at);
            }
            (Some(pool), None, None, None) => {
                self.pools.insert(pool, at);
            }
            (None, None, None, Some(client)) => {
                self.clients.insert(client.clone(), at);
            }
            // Of no pool: ids of buckets, the same in all pools, with commas between them.
            (None, None, Some(ids), None) => {
                let ids = ids.split(|b| *b == b',').filter(|id| !id.is_empty());
                self.buckets.extend(ids.map(|id| (Bytes::copy_from_slice(id), at)));
            }
            // Another combination is of a later release; nothing belongs to it here.
            _ => {}
        }
    }

    fn find(&self, payer: &Payer<'_>, owners: &Owners) -> Option<usize> {
        let (pool, namespace) = (payer.pool, payer.namespace);
        let bucket = || {
            if self.buckets.is_empty() {
                return None;
            }
            let owner = owners.of(pool, namespace, payer.object)?;
            self.buckets.get(&owner.key[..]).filter(|_| owner.kind == Kind::Bucket)
        };
        let image = || {
            if self.images.is_empty() {
                return None;
            }
            let images = self.images.get(&(pool, namespace.clone()))?;
            images.get(&owners.of(pool, namespace, payer.object)?.key[..])
        };
        let client = || self.clients.get(payer.entity).filter(|_| !self.clients.is_empty());
        let namespace = || self.namespaces.get(&pool)?.get(namespace);
        bucket()
            .or_else(image)
            .or_else(client)
            .or_else(namespace)
            .or_else(|| self.pools.get(&pool))
            .copied()
    }
}

/// Tells the scheduler of promises: a tenant, and what it is promised.
pub type Promises = Vec<(u64, TenantSpec)>;

/// The tenants of an OSD, and their requests that wait for a ceiling. Times are nanoseconds of the
/// scheduler's clock.
pub struct Tenants<R> {
    by: TenantBy,
    rows: slab::Slab<Row>,
    /// Rows without a specification by the hash of their key; equal ones lie at the next free one.
    table: FxHashMap<u64, u32>,
    specs: Vec<Spec>,
    by_number: FxHashMap<TenantNumber, usize>,
    /// Those of whom there may be something to tell.
    asked: Vec<usize>,
    /// How many have a floor.
    floors: usize,
    /// Of how many it is kept where time goes.
    timed: usize,
    /// There is something to tell the manager before the next turn.
    urgent: bool,
    index: Index,
    gate: Gate<R>,
    count: u64,
    swept: usize,
    heard: u64,
    lonely: bool,
    /// So many thousandths of floors are set aside.
    scale: u32,
    /// Operations that ceilings held back, and how long, since this was asked.
    throttled: (u64, u64),
    owners: Rc<Owners>,
}

/// The manager, under which the scheduler and the rows have it. It reads what images are before it
/// can divide what was promised to them: behind those whom it divides it for it would wait for
/// ever, and what it gave up would be in their way.
pub(crate) const MANAGER: u64 = 0;
/// What it is promised on each OSD: enough for reading headers. What it moves itself, for tasks of
/// block devices, goes by its weight.
pub(crate) const MANAGER_SPEC: TenantSpec = TenantSpec {
    floor: Pace { iops_milli: 50_000, bps: 1 << 20 },
    weight: TenantSpec::WEIGHT,
    ceiling: Pace { iops_milli: 0, bps: 0 },
};

/// For requests of tenants that are more than are kept.
const OTHERS: Key = Key { pool: PoolId(-1), namespace: Bytes::new(), detail: Bytes::new() };

impl<R: Request> Default for Tenants<R> {
    fn default() -> Self {
        Tenants::new(TenantBy::default())
    }
}

impl<R: Request> Tenants<R> {
    /// Without specifications.
    pub fn new(by: TenantBy) -> Self {
        let mut rows = slab::Slab::new();
        let key = Key { pool: OTHERS.pool, detail: Bytes::from_static(b"mgr"), ..Key::default() };
        let (seen, told) = (Seen::default(), Seen::default());
        rows.insert(Row {
            key,
            spec: None,
            id: MANAGER,
            hash: 0,
            used: 0,
            seen,
            told,
            cost: 0,
            times: None,
        });
        Tenants {
            by,
            rows,
            table: FxHashMap::default(),
            specs: Vec::new(),
            by_number: FxHashMap::default(),
            asked: Vec::new(),
            floors: 0,
            timed: 0,
            urgent: false,
            index: Index::default(),
            gate: Gate::default(),
            count: 0,
            swept: 0,
            heard: 0,
            lonely: false,
            scale: qos::AHEAD,
            throttled: (0, 0),
            owners: Rc::default(),
        }
    }

    /// Recognises owners of objects by this table.
    pub fn recognise(&mut self, owners: Rc<Owners>) {
        self.owners = owners;
    }

    /// What counts as one tenant.
    pub fn by(&self) -> TenantBy {
        self.by
    }

    fn add_row(&mut self, key: Key, spec: Option<usize>, hash: u64, now: u64) -> u32 {
        // Ids are not used again: the scheduler may still remember one.
        self.count += 1;
        let entry = self.rows.vacant_entry();
        let at = entry.key() as u32;
        let (seen, told) = (Seen::default(), Seen::default());
        entry.insert(Row {
            key,
            spec,
            id: self.count << 32 | u64::from(at),
            hash,
            used: now,
            seen,
            told,
            cost: 0,
            times: None,
        });
        at
    }

    fn remove_row(&mut self, at: usize) {
        self.timed -= usize::from(self.rows.remove(at).times.is_some());
    }

    /// The tenant of a request, or of a part of one.
    fn row_of(&mut self, op: &Payer<'_>, now: u64) -> u32 {
        // Keys of that name are the managers' alone.
        if op.entity.starts_with("mgr.") {
            return MANAGER as u32;
        }
        if !self.specs.is_empty()
            && let Some(spec) = self.index.find(op, &self.owners)
        {
            return self.specs[spec].row;
        }
        let nothing: &[u8] = b"";
        let owner;
        let (pool, namespace, detail) = match self.by {
            TenantBy::Pool => (op.pool, &op.namespace[..], nothing),
            TenantBy::Image => {
                owner = self.owners.of(op.pool, op.namespace, op.object);
                let key = owner.as_ref().map_or(nothing, |owner| &owner.key[..]);
                (op.pool, &op.namespace[..], key)
            }
            TenantBy::Client => (PoolId(-1), nothing, op.entity.as_bytes()),
        };
        self.row(pool, namespace, detail, now)
    }

    fn row(&mut self, pool: PoolId, namespace: &[u8], detail: &[u8], now: u64) -> u32 {
        let mut h = FxHasher::default();
        h.write_i64(pool.0);
        h.write(namespace);
        h.write_u8(b'/');
        h.write(detail);
        let mut hash = h.finish();
        while let Some(at) = self.table.get(&hash) {
            let key = &self.rows[*at as usize].key;
            if key.pool == pool && key.namespace == namespace && key.detail == detail {
                return *at;
            }
            hash = hash.wrapping_add(1);
        }
        self.sweep(now);
        if self.table.len() >= TENANTS_MAX
            && (pool, namespace, detail) != (OTHERS.pool, &b""[..], &b""[..])
        {
            return self.row(OTHERS.pool, b"", b"", now);
        }
        let key = Key {
            pool,
            namespace: Bytes::copy_from_slice(namespace),
            detail: Bytes::copy_from_slice(detail),
        };
        let at = self.add_row(key, None, hash, now);
        self.table.insert(hash, at);
        at
    }

    /// Looks whether some tenants may be forgotten.
    fn sweep(&mut self, now: u64) {
        for _ in 0..SWEPT_ROWS {
            self.swept =
                if self.swept + 1 < self.rows.capacity().max(1) { self.swept + 1 } else { 0 };
            let Some(row) = self.rows.get(self.swept) else { continue };
            if row.spec.is_none() && row.id != MANAGER && now.saturating_sub(row.used) >= IDLE_NANOS
            {
                let (hash, at) = (row.hash, self.swept as u32);
                // One that lies behind it because of an equal hash is found no longer and begins
                // anew.
                if self.table.get(&hash) == Some(&at) {
                    self.table.remove(&hash);
                }
                self.remove_row(self.swept);
            }
        }
    }

    /// Takes a request that is about to be scheduled, and finds its tenant; it comes back if it may
    /// go on at once.
    pub fn admit(&mut self, op: Rc<R>, now: u64) -> Option<Rc<R>> {
        let at = self.row_of(&Payer::of(&*op), now);
        let row = &mut self.rows[at as usize];
        op.tags().tenant.set(row.id);
        row.used = now;
        let demand = op.demand();
        // What comes again, from a queue of its group, was counted before.
        if !op.tags().offered.replace(true) {
            row.seen.offered += 1;
            row.seen.offered_bytes = row.seen.offered_bytes.saturating_add(demand.bytes);
            if let Some(at) = row.spec {
                let owners = &self.owners;
                let spec = &mut self.specs[at];
                if spec.is_divided() && spec.asked.count(demand.bytes) {
                    self.asked.push(at);
                }
                // Ceilings of an owner are those of its data: work with the owner itself does not
                // wait behind what is written to it.
                let has_data = || {
                    let owner = owners.of(op.pool(), op.namespace(), op.object());
                    owner.is_some_and(|owner| owner.role == Role::Data)
                };
                let waits =
                    spec.limited.tenant().filter(|_| spec.share.prefix.is_none() || has_data());
                if let Some(tenant) = waits {
                    op.tags().queued.set(now);
                    let tracked = op.clone();
                    let through = self.gate.offer(tenant, demand, op, now);
                    if through.is_none() {
                        row.seen.throttled += 1;
                        self.throttled.0 += 1;
                        tracked.held(Held::Ceiling);
                        // It comes to this OSD for the first time in a while, which has little of
                        // the ceiling.
                        self.urgent |= spec.asked.is_news();
                    }
                    return through.inspect(|op| op.tags().queued.set(now));
                }
            }
        }
        op.tags().queued.set(now);
        Some(op)
    }

    /// The next request that has waited for its ceiling for long enough.
    pub fn release(&mut self, now: u64) -> Option<Rc<R>> {
        if self.gate.is_empty() {
            return None;
        }
        let op = self.gate.release(now, |op| op.is_open())?;
        op.let_go();
        let id = op.tags().tenant.get();
        let waited = now.saturating_sub(op.tags().queued.get());
        self.throttled.1 += waited;
        op.tags().legs.add(Leg::Ceiling, waited);
        if let Some(row) = self.rows.get_mut(id as u32 as usize).filter(|r| r.id == id) {
            row.seen.throttled_time = row.seen.throttled_time.saturating_add(waited);
        }
        op.tags().queued.set(now);
        Some(op)
    }

    /// Takes out requests that wait for a ceiling and need not be done here any more.
    pub fn take_out(&mut self, gone: &dyn Fn(&R) -> bool) -> Vec<Rc<R>> {
        self.gate.take_out(&mut |op| gone(op))
    }

    /// How many requests ceilings held back since this was asked last, and for how long together.
    pub fn take_throttled(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.throttled)
    }

    /// What a tenant is called, by what the scheduler knows it as.
    pub fn name(&self, id: u64, pool_name: &dyn Fn(PoolId) -> Option<String>) -> Option<String> {
        self.rows
            .get(id as u32 as usize)
            .filter(|r| r.id == id)
            .map(|row| self.name_of(row, pool_name))
    }

    /// When the next request may go on.
    pub fn next_at(&mut self) -> Option<u64> {
        if self.gate.is_empty() { None } else { self.gate.next_due() }
    }

    /// Requests that wait for a ceiling.
    pub fn len(&self) -> usize {
        self.gate.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.gate.is_empty()
    }

    /// Counts a request that the scheduler let in, for so many thousandths of a write of 4 KiB.
    pub fn served(&mut self, op: &R, bytes: u64, paid: u64, by_floor: bool, now: u64) {
        let id = op.tags().tenant.get();
        let waited = now.saturating_sub(op.tags().queued.get());
        op.tags().legs.add(Leg::Queue, waited);
        let Some(row) = self.rows.get_mut(id as u32 as usize).filter(|r| r.id == id) else {
            return;
        };
        row.cost += paid;
        // One that comes again was served before.
        if op.tags().served.replace(true) {
            return;
        }
        let seen = &mut row.seen;
        seen.served += 1;
        seen.served_bytes = seen.served_bytes.saturating_add(bytes);
        seen.by_floor += u64::from(by_floor);
        seen.waited = seen.waited.saturating_add(waited);
        seen.waits.add(waited);
    }

    /// Counts a part of an operation that another OSD leads, for so many thousandths of a write of
    /// 4 KiB. Gives what the scheduler has the tenant as. A ceiling counts operations, each once,
    /// where they are led: no part of one waits.
    pub fn part(&mut self, payer: &Payer<'_>, bytes: u64, paid: u64, now: u64) -> u64 {
        let at = self.row_of(payer, now);
        let row = &mut self.rows[at as usize];
        row.used = now;
        row.cost += paid;
        row.seen.parts += 1;
        row.seen.parts_bytes = row.seen.parts_bytes.saturating_add(bytes);
        row.id
    }

    /// A request has really cost something else than it paid.
    pub fn settled(&mut self, id: u64, paid: u64, really: u64) {
        if let Some(row) = self.rows.get_mut(id as u32 as usize).filter(|r| r.id == id) {
            row.cost = (row.cost + really).saturating_sub(paid);
        }
    }

    /// Counts a request that was answered.
    pub fn spent(&mut self, op: &R, spent: &Spent) {
        // What did not have to wait for a turn counts for no tenant.
        if !op.tags().offered.get() {
            return;
        }
        let id = op.tags().tenant.get();
        let Some(row) = self.rows.get_mut(id as u32 as usize).filter(|r| r.id == id) else {
            return;
        };
        if row.times.is_none() {
            if self.timed >= TIMED_TENANTS_MAX {
                return;
            }
            self.timed += 1;
        }
        row.times.get_or_insert_default().add(spent);
    }

    /// Whether demand is to be told regularly.
    pub fn has_limited(&self) -> bool {
        self.gate.tenants() > 0 || self.floors > 0
    }

    /// Whether the manager should be told of demand before the next turn; no longer after this.
    pub fn take_urgent(&mut self) -> bool {
        std::mem::take(&mut self.urgent)
    }

    /// The manager is another one, or may not have got what it was told.
    pub fn forget_told(&mut self) {
        for at in &self.asked {
            self.specs[*at].asked.forget();
        }
    }

    /// Changes what counts as one tenant; true if requests that wait have to be looked at again.
    pub fn set_by(&mut self, by: TenantBy) -> bool {
        std::mem::replace(&mut self.by, by) != by
    }

    /// What the manager is to be told now, and what the scheduler, if the manager is silent.
    /// `waiting` says what the scheduler has of a tenant.
    pub fn demand(
        &mut self,
        waiting: &dyn Fn(u64) -> usize,
        now: u64,
    ) -> (Vec<TenantDemand>, Promises) {
        let mut promises = Promises::new();
        if !self.lonely && !self.specs.is_empty() && now.saturating_sub(self.heard) >= SILENCE_NANOS
        {
            self.lonely = true;
            promises = self.apply(true, now);
        }
        let (gate, rows, specs) = (&self.gate, &self.rows, &mut self.specs);
        let mut told = Vec::new();
        self.asked.retain(|at| {
            let spec = &mut specs[*at];
            let mut backlog = Backlog::default();
            for access in [Access::Read, Access::Write] {
                let waits =
                    spec.limited.tenant().map(|t| gate.backlog(t, access)).unwrap_or_default();
                (backlog.ops, backlog.bytes) =
                    (backlog.ops + waits.ops, backlog.bytes + waits.bytes);
            }
            // A floor is needed where a tenant does not get what it asks for.
            let queued =
                if spec.has_floor() { waiting(rows[spec.row as usize].id) as u64 } else { 0 };
            told.extend(spec.asked.tell(spec.share.number, backlog, queued, now));
            spec.asked.is_listed()
        });
        (told, promises)
    }

    fn apply(&mut self, even: bool, now: u64) -> Promises {
        let mut promises = Promises::new();
        for s in &mut self.specs {
            s.limited.apply(&mut self.gate, even, now);
            promises.push((self.rows[s.row as usize].id, s.promise(even, self.scale)));
        }
        promises
    }

    /// What is set aside for floors, in thousandths of them; more than all of them where there is
    /// room ([`qos::AHEAD`]).
    pub fn scale(&self) -> u32 {
        self.scale
    }

    /// Of floors, so many thousandths are kept.
    pub fn kept(&self) -> u32 {
        self.scale.min(1000)
    }

    /// Sets so many thousandths of floors aside.
    pub fn set_scale(&mut self, scale: u32) -> Promises {
        self.scale = scale;
        let (even, rows) = (self.lonely, &self.rows);
        self.specs
            .iter()
            .filter(|s| s.has_floor())
            .map(|s| (rows[s.row as usize].id, s.promise(even, scale)))
            .collect()
    }

    /// What the floors of tenants that came here lately cost each second, if an operation costs
    /// `each`, and a MiB `per_mib`.
    pub fn promised(&self, each: u32, per_mib: u32, now: u64) -> u64 {
        let cost = |[iops, bps]: [u64; 2]| {
            let by_op = u128::from(iops) * u128::from(each) / 1000;
            let by_byte = (u128::from(bps) * u128::from(per_mib) / 1000) >> 20;
            // If both are given, the lower one decides.
            if iops == 0 || (bps > 0 && by_byte < by_op) { by_byte } else { by_op }
        };
        let active = |s: &&Spec| {
            self.rows.get(s.row as usize).is_some_and(|r| now.saturating_sub(r.used) < LATELY_NANOS)
        };
        self.specs
            .iter()
            .filter(active)
            .map(|s| cost(s.floor(self.lonely)))
            .sum::<u128>()
            .min(u64::MAX.into()) as u64
    }

    /// The manager said something, whatever it was.
    pub fn heard(&mut self, now: u64) -> Promises {
        self.heard = now;
        if std::mem::take(&mut self.lonely) { self.apply(false, now) } else { Promises::new() }
    }

    /// Takes what the manager said of specifications. Gives promises for the scheduler; and, if
    /// requests may belong to other tenants now, those that waited here, which are to be admitted
    /// again behind those that the scheduler has.
    pub fn take_shares(&mut self, news: QosShares, now: u64) -> (Promises, Option<Vec<Rc<R>>>) {
        let QosShares { tenants: shares, all_tenants: all, gone, parts, .. } = news;
        let mut promises = Promises::new();
        let gone: FxHashSet<TenantNumber> = if all {
            let stay: FxHashSet<TenantNumber> = shares.iter().map(|s| s.number).collect();
            self.by_number.keys().copied().filter(|n| !stay.contains(n)).collect()
        } else {
            gone.into_iter().filter(|n| self.by_number.contains_key(n)).collect()
        };
        let whose =
            |s: &TenantShare| (s.pool, s.namespace.clone(), s.prefix.clone(), s.client.clone());
        let same = |s: &TenantShare| {
            self.by_number.get(&s.number).is_some_and(|i| whose(&self.specs[*i].share) == whose(s))
        };
        let mut again = None;
        if !gone.is_empty() || !shares.iter().all(same) {
            again = Some(self.replace(shares, &gone, &mut promises, now));
        } else {
            for share in shares {
                let Some(spec) =
                    self.by_number.get(&share.number).and_then(|at| self.specs.get_mut(*at))
                else {
                    continue;
                };
                self.floors -= usize::from(spec.has_floor());
                spec.share = share;
                self.floors += usize::from(spec.has_floor());
                // What it has of the old rates, it has of the new ones.
                spec.divide();
                spec.limited.take(spec.ceilings(), &mut self.gate, now);
                promises.push((self.rows[spec.row as usize].id, spec.promise(false, self.scale)));
            }
        }
        for TenantPart { number, ops, bytes, floor } in parts {
            let Some(spec) = self.by_number.get(&number).and_then(|at| self.specs.get_mut(*at))
            else {
                continue;
            };
            spec.part = [ops, bytes, floor].map(Fraction);
            spec.divide();
            spec.limited.take(spec.ceilings(), &mut self.gate, now);
            if spec.has_floor() {
                promises.push((self.rows[spec.row as usize].id, spec.promise(false, self.scale)));
            }
        }
        (promises, again)
    }

    /// Takes tenants in the place of those that were there, or beside them. Gives everything that
    /// waited, in order: the numbers of tenants change.
    fn replace(
        &mut self,
        shares: Vec<TenantShare>,
        gone: &FxHashSet<TenantNumber>,
        promises: &mut Promises,
        now: u64,
    ) -> Vec<Rc<R>> {
        let mut waiting = Vec::with_capacity(self.gate.len());
        for s in &mut self.specs {
            s.limited.take(Part::default(), &mut self.gate, now);
        }
        while let Some(op) = self.gate.release(now, |op| op.is_open()) {
            op.tags().offered.set(false);
            op.let_go();
            op.tags().legs.add(Leg::Ceiling, now.saturating_sub(op.tags().queued.get()));
            waiting.push(op);
        }
        let (left, keep): (Vec<Spec>, Vec<Spec>) = std::mem::take(&mut self.specs)
            .into_iter()
            .partition(|s| gone.contains(&s.share.number));
        for s in left {
            promises.push((self.rows[s.row as usize].id, TenantSpec::default()));
            self.remove_row(s.row as usize);
        }
        self.specs = keep;
        self.by_number =
            self.specs.iter().enumerate().map(|(at, s)| (s.share.number, at)).collect();
        for share in shares {
            match self.by_number.get(&share.number) {
                Some(at) => self.specs[*at].share = share,
                None => {
                    let at = self.specs.len();
                    let row = self.add_row(Key::default(), Some(at), 0, now);
                    self.by_number.insert(share.number, at);
                    self.specs.push(Spec::new(share, row, now));
                }
            }
        }
        self.index = Index::default();
        self.asked.clear();
        for (at, s) in self.specs.iter_mut().enumerate() {
            self.index.add(&s.share, at);
            self.rows[s.row as usize].spec = Some(at);
            s.divide();
            (s.limited, s.asked) = (Limited::new(now), Asked::default());
            s.limited.take(s.ceilings(), &mut self.gate, now);
            promises.push((self.rows[s.row as usize].id, s.promise(false, self.scale)));
        }
        self.floors = self.specs.iter().filter(|s| s.has_floor()).count();
        waiting
    }

    /// What a row is called.
    fn name_of(&self, row: &Row, pool_name: &dyn Fn(PoolId) -> Option<String>) -> String {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let pool = || pool_name(row.key.pool).unwrap_or_else(|| row.key.pool.0.to_string());
        match row.spec.and_then(|s| self.specs.get(s)) {
            Some(s) => s.share.name.clone(),
            None if row.key == OTHERS => "others".into(),
            None if row.key.pool == OTHERS.pool => text(&row.key.detail),
            None if !row.key.detail.is_empty() => {
                format!("{}/{}/{}", pool(), text(&row.key.namespace), text(&row.key.detail))
            }
            None if !row.key.namespace.is_empty() => {
                format!("{}/{}", pool(), text(&row.key.namespace))
            }
            None => pool(),
        }
    }

    /// What tenants got since this was asked last: those with the most, and the others together.
    pub fn take_seen(&mut self, pool_name: &dyn Fn(PoolId) -> Option<String>) -> Vec<TenantSeen> {
        let mut changed: Vec<usize> =
            self.rows.iter().filter(|(_, r)| r.seen != r.told).map(|(at, _)| at).collect();
        changed.sort_by_key(|at| {
            std::cmp::Reverse(self.rows[*at].seen.offered - self.rows[*at].told.offered)
        });
        let mut seen: Vec<TenantSeen> = Vec::new();
        for (n, at) in changed.into_iter().enumerate() {
            let row = &self.rows[at];
            let named = n < TOLD_TENANTS_MAX;
            let one = row
                .seen
                .since(&row.told, if named { self.name_of(row, pool_name) } else { String::new() });
            match seen.last_mut().filter(|_| n > TOLD_TENANTS_MAX) {
                Some(rest) => add(rest, &one),
                None => seen.push(one),
            }
            let row = &mut self.rows[at];
            row.told = row.seen;
        }
        seen
    }

    /// What was seen, and what is promised. `waiting` says what the scheduler has of a tenant.
    pub fn dump(
        &self,
        pool_name: &dyn Fn(PoolId) -> Option<String>,
        waiting: &dyn Fn(u64) -> usize,
    ) -> Value {
        let rows = self.rows.iter().filter(|(_, row)| row.id != MANAGER || row.seen.offered > 0).map(|(_, row)| {
            let spec = row.spec.and_then(|s| self.specs.get(s));
            let name = self.name_of(row, pool_name);
            let s = &row.seen;
            let mut v = json!({
                "tenant": name,
                "id": row.id,
                "specified": spec.is_some(),
                "weight": spec.map_or(TenantSpec::WEIGHT, |s| s.share.weight.max(1)),
                "waiting": waiting(row.id),
                "offered": s.offered, "offered_bytes": s.offered_bytes,
                "served": s.served, "served_bytes": s.served_bytes,
                "served_by_floor": s.by_floor, "throttled": s.throttled,
                "throttled_ns": s.throttled_time,
                "waited_ns": s.waited,
                "waits_log2_us": s.waits.used(),
                "parts": s.parts, "parts_bytes": s.parts_bytes,
                "served_cost": row.cost as f64 / 1000.0,
                "times": row.times.as_ref().map(|t| t.dump()),
            });
            if let Some(spec) = spec {
                let rate = |s: Option<&messages::ShareOfRate>| match s.filter(|s| s.each_second > 0) {
                    Some(s) => json!({"cluster": s.each_second as f64 / 1000.0, "here": own_part(s, spec.share.osds, self.lonely) as f64 / 1000.0, "saved": s.saved as f64 / 1000.0, "peak": s.peak as f64 / 1000.0}),
                    None => Value::Null,
                };
                let (f, c) = (&spec.share.floors, &spec.share.ceilings);
                v["floor"] = json!({"iops": rate(f.first()), "bps": rate(f.get(1))});
                v["ceiling"] = json!({"iops": rate(c.first()), "bps": rate(c.get(1))});
                v["over_ceiling"] = json!(spec.limited.tenant().map_or(0, |t| {
                    [qos::Access::Read, qos::Access::Write].into_iter().map(|a| self.gate.backlog(t, a).ops).sum::<u64>()
                }));
            }
            v
        });
        json!({"tenant_by": self.by.name(), "even_parts": self.lonely, "tenants": rows.collect::<Vec<_>>()})
    }
}
