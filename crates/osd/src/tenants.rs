//! For whom requests are: the tenants of this OSD, and what they are promised.
//!
//! A request belongs to the tenant of the most special specification that fits it: of its image, of its client, of
//! its namespace, of its pool. If none fits, `osd_qos_tenant` says what counts as one tenant. The table is found by
//! slices of the request; only the first operation of a tenant allocates.
//!
//! Specifications come from the manager with this OSD's part of their rates ([`Tenants::take_shares`]), and it is
//! told what their tenants are asked for ([`Tenants::demand`]), as for [`crate::ceilings`].

use crate::ceilings::prefix_of;
use crate::client_op::ClientOp;
use crate::limited::{Gate, LONELY, Limited, Part, demand_of, own_part};
use crate::tracker::OVER_CEILING;
use bytes::Bytes;
use messages::{TenantDemand, TenantShare};
use qos::{Pace, TenantSpec};
use rustc_hash::{FxHashMap, FxHasher};
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
    /// An image; what is no image's, as for a pool.
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
const MOST: usize = 1 << 17;
/// A tenant that nobody used for so long is forgotten.
const IDLE: u64 = 300_000_000_000;
/// Of so many it is looked at with each operation of a new tenant.
const SWEEP: usize = 4;

/// How long operations waited: numbers by powers of two of microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits([u32; 32]);

impl Waits {
    /// Counts one.
    pub fn add(&mut self, nanos: u64) {
        let bucket = (u64::BITS - (nanos / 1000).leading_zeros()).min(31) as usize;
        self.0[bucket] = self.0[bucket].wrapping_add(1);
    }

    fn value(&self) -> Value {
        // What lies behind the last one is 0.
        let used = self.0.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
        self.0[..used].to_vec().into()
    }
}

/// What was seen of a tenant since the OSD started.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    offered: u64,
    offered_bytes: u64,
    served: u64,
    served_bytes: u64,
    /// Served to keep its floor.
    by_floor: u64,
    /// Waited because of its ceiling.
    throttled: u64,
    waited: u64,
    waits: Waits,
}

/// What names a tenant that no specification names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Key {
    pool: PoolId,
    namespace: Bytes,
    /// An image's prefix, or a client.
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
}

struct Spec {
    share: TenantShare,
    row: u32,
    limited: Limited,
}

impl Spec {
    /// What the scheduler is told.
    fn promise(&self, even: bool) -> TenantSpec {
        let part = |i: usize| self.share.floors.get(i).map_or(0, |s| own_part(s, self.share.osds, even));
        let bps = part(1);
        let floor = Pace { iops_milli: part(0), bps: if bps == 0 { 0 } else { (bps / 1000).max(1) } };
        TenantSpec { floor, weight: self.share.weight.max(1), ceiling: Pace::default() }
    }

    fn has_floor(&self) -> bool {
        self.share.floors.iter().any(|f| f.each_second > 0)
    }
}

/// By what specifications are found.
#[derive(Default)]
struct Index {
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
            // Another combination is of a later release; nothing belongs to it here.
            _ => {}
        }
    }

    fn find(&self, op: &ClientOp) -> Option<usize> {
        let (pool, namespace) = (op.pgid.pool, &op.oid.namespace);
        let image = || {
            let prefix = prefix_of(&op.oid.name).filter(|_| !self.images.is_empty())?;
            self.images.get(&(pool, namespace.clone()))?.get(prefix)
        };
        let client = || self.clients.get(op.sink().entity()).filter(|_| !self.clients.is_empty());
        let namespace = || self.namespaces.get(&pool)?.get(namespace);
        image().or_else(client).or_else(namespace).or_else(|| self.pools.get(&pool)).copied()
    }
}

/// Tells the scheduler of promises: a tenant, and what it is promised.
pub type Promises = Vec<(u64, TenantSpec)>;

/// See the module. Times are nanoseconds of the scheduler's clock.
pub struct Tenants {
    by: TenantBy,
    rows: slab::Slab<Row>,
    /// Rows without a specification by the hash of their key; equal ones lie at the next free one.
    table: FxHashMap<u64, u32>,
    specs: Vec<Spec>,
    index: Index,
    gate: Gate,
    count: u64,
    swept: usize,
    heard: u64,
    lonely: bool,
}

/// For requests of tenants that are more than are kept.
const REST: Key = Key { pool: PoolId(-1), namespace: Bytes::new(), detail: Bytes::new() };

impl Default for Tenants {
    fn default() -> Self {
        Tenants::new(TenantBy::default())
    }
}

impl Tenants {
    /// Without specifications.
    pub fn new(by: TenantBy) -> Self {
        Tenants {
            by,
            rows: slab::Slab::new(),
            table: FxHashMap::default(),
            specs: Vec::new(),
            index: Index::default(),
            gate: Gate::default(),
            count: 0,
            swept: 0,
            heard: 0,
            lonely: false,
        }
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
        entry.insert(Row { key, spec, id: self.count << 32 | u64::from(at), hash, used: now, seen: Seen::default() });
        at
    }

    /// The tenant of a request.
    fn row_of(&mut self, op: &ClientOp, now: u64) -> u32 {
        if !self.specs.is_empty()
            && let Some(spec) = self.index.find(op)
        {
            return self.specs[spec].row;
        }
        let nothing: &[u8] = b"";
        let (pool, namespace, detail) = match self.by {
            TenantBy::Pool => (op.pgid.pool, &op.oid.namespace[..], nothing),
            TenantBy::Image => (op.pgid.pool, &op.oid.namespace[..], prefix_of(&op.oid.name).unwrap_or(nothing)),
            TenantBy::Client => (PoolId(-1), nothing, op.sink().entity().as_bytes()),
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
        if self.table.len() >= MOST && (pool, namespace, detail) != (REST.pool, &b""[..], &b""[..]) {
            return self.row(REST.pool, b"", b"", now);
        }
        let key = Key { pool, namespace: Bytes::copy_from_slice(namespace), detail: Bytes::copy_from_slice(detail) };
        let at = self.add_row(key, None, hash, now);
        self.table.insert(hash, at);
        at
    }

    /// Looks whether some tenants may be forgotten.
    fn sweep(&mut self, now: u64) {
        for _ in 0..SWEEP {
            self.swept = if self.swept + 1 < self.rows.capacity().max(1) { self.swept + 1 } else { 0 };
            let Some(row) = self.rows.get(self.swept) else { continue };
            if row.spec.is_none() && now.saturating_sub(row.used) >= IDLE {
                let (hash, at) = (row.hash, self.swept as u32);
                // One that lies behind it because of an equal hash is found no longer and begins anew.
                if self.table.get(&hash) == Some(&at) {
                    self.table.remove(&hash);
                }
                self.rows.remove(self.swept);
            }
        }
    }

    /// Takes a request that is about to be scheduled, and finds its tenant; it comes back if it may go on at once.
    pub fn admit(&mut self, op: Rc<ClientOp>, now: u64) -> Option<Rc<ClientOp>> {
        let at = self.row_of(&op, now);
        let row = &mut self.rows[at as usize];
        op.tenant.set(row.id);
        row.used = now;
        let demand = demand_of(&op);
        // What comes again, from a queue of its group, was counted before.
        if !op.offered.replace(true) {
            row.seen.offered += 1;
            row.seen.offered_bytes = row.seen.offered_bytes.saturating_add(demand.bytes);
            if let Some(spec) = row.spec {
                let limited = &mut self.specs[spec].limited;
                limited.count(demand, now);
                if let Some(tenant) = limited.tenant() {
                    let tracked = op.clone();
                    let through = self.gate.offer(tenant, demand, op, now);
                    if through.is_none() {
                        row.seen.throttled += 1;
                        tracked.tracked.delayed(OVER_CEILING);
                    }
                    return through.inspect(|op| op.queued.set(now));
                }
            }
        }
        op.queued.set(now);
        Some(op)
    }

    /// The next request that has waited for its ceiling for long enough.
    pub fn release(&mut self, now: u64) -> Option<Rc<ClientOp>> {
        if self.gate.is_empty() {
            return None;
        }
        let op = self.gate.release(now, |op| op.sink().is_open());
        op.inspect(|op| op.queued.set(now))
    }

    /// When the next request may go on.
    pub fn next(&mut self) -> Option<u64> {
        if self.gate.is_empty() { None } else { self.gate.next() }
    }

    /// Requests that wait for a ceiling.
    pub fn len(&self) -> usize {
        self.gate.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.gate.is_empty()
    }

    /// Counts a request that the scheduler let in.
    pub fn served(&mut self, op: &ClientOp, bytes: u64, by_floor: bool, now: u64) {
        let id = op.tenant.get();
        let Some(row) = self.rows.get_mut(id as u32 as usize).filter(|r| r.id == id) else { return };
        // One that comes again was served before.
        if op.served.replace(true) {
            return;
        }
        let waited = now.saturating_sub(op.queued.get());
        let seen = &mut row.seen;
        seen.served += 1;
        seen.served_bytes = seen.served_bytes.saturating_add(bytes);
        seen.by_floor += u64::from(by_floor);
        seen.waited = seen.waited.saturating_add(waited);
        seen.waits.add(waited);
    }

    /// Whether demand is to be told regularly.
    pub fn has_limited(&self) -> bool {
        self.gate.tenants() > 0 || self.specs.iter().any(Spec::has_floor)
    }

    /// Changes what counts as one tenant; true if requests that wait have to be looked at again.
    pub fn set_by(&mut self, by: TenantBy) -> bool {
        std::mem::replace(&mut self.by, by) != by
    }

    /// What the manager is to be told now, and what the scheduler, if the manager is silent.
    pub fn demand(&mut self, now: u64) -> (Vec<TenantDemand>, Promises) {
        let mut promises = Promises::new();
        if !self.lonely && !self.specs.is_empty() && now.saturating_sub(self.heard) >= LONELY {
            self.lonely = true;
            promises = self.apply(true, now);
        }
        let gate = &self.gate;
        let told = self.specs.iter_mut().filter_map(|s| {
            let t = s.limited.tell(gate, s.share.floors.iter().any(|f| f.each_second > 0), now)?;
            Some(TenantDemand { name: s.share.name.clone(), millis: t.millis, reads: t.reads, writes: t.writes })
        });
        (told.collect(), promises)
    }

    fn apply(&mut self, even: bool, now: u64) -> Promises {
        let mut promises = Promises::new();
        for s in &mut self.specs {
            s.limited.apply(&mut self.gate, even, now);
            promises.push((self.rows[s.row as usize].id, s.promise(even)));
        }
        promises
    }

    /// The manager said something, whatever it was.
    pub fn heard(&mut self, now: u64) -> Promises {
        self.heard = now;
        if std::mem::take(&mut self.lonely) { self.apply(false, now) } else { Promises::new() }
    }

    /// Takes what the manager said of specifications. Gives promises for the scheduler; and, if requests may belong
    /// to other tenants now, those that waited here, which are to be admitted again behind those that the
    /// scheduler has.
    pub fn take_shares(&mut self, shares: Vec<TenantShare>, all: bool, now: u64) -> (Promises, Option<Vec<Rc<ClientOp>>>) {
        let whose = |s: &TenantShare| (s.pool, s.namespace.clone(), s.prefix.clone(), s.client.clone());
        let known: FxHashMap<String, usize> = self.specs.iter().enumerate().map(|(i, s)| (s.share.name.clone(), i)).collect();
        let same = |s: &TenantShare| known.get(&s.name).is_some_and(|i| whose(&self.specs[*i].share) == whose(s));
        let others = !shares.iter().all(same) || (all && shares.len() != self.specs.len());
        let mut promises = Promises::new();
        let mut again = None;
        if others {
            // Everything that waits comes out, in order, before who is who changes.
            let mut waiting = Vec::with_capacity(self.gate.len());
            for s in &mut self.specs {
                s.limited.take(Part::default(), &mut self.gate, now);
            }
            while let Some(op) = self.gate.release(now, |op| op.sink().is_open()) {
                op.offered.set(false);
                waiting.push(op);
            }
            let mut before = std::mem::take(&mut self.specs);
            if all {
                let (keep, gone) = before.into_iter().partition::<Vec<_>, _>(|s| shares.iter().any(|new| new.name == s.share.name));
                before = keep;
                for s in gone {
                    promises.push((self.rows[s.row as usize].id, TenantSpec::default()));
                    self.rows.remove(s.row as usize);
                }
            }
            self.specs = before;
            for share in shares {
                match self.specs.iter_mut().find(|s| s.share.name == share.name) {
                    Some(s) => s.share = share,
                    None => {
                        let row = self.add_row(Key::default(), Some(self.specs.len()), 0, now);
                        self.specs.push(Spec { share, row, limited: Limited::new(now) });
                    }
                }
            }
            self.index = Index::default();
            for (at, s) in self.specs.iter_mut().enumerate() {
                self.index.add(&s.share, at);
                self.rows[s.row as usize].spec = Some(at);
                let part = Part { osds: s.share.osds, rates: s.share.ceilings.clone() };
                s.limited = Limited::new(now);
                s.limited.take(part, &mut self.gate, now);
                promises.push((self.rows[s.row as usize].id, s.promise(false)));
            }
            again = Some(waiting);
        } else {
            for share in shares {
                let Some(at) = known.get(&share.name) else { continue };
                let s = &mut self.specs[*at];
                s.share = share;
                s.limited.take(Part { osds: s.share.osds, rates: s.share.ceilings.clone() }, &mut self.gate, now);
                promises.push((self.rows[s.row as usize].id, s.promise(false)));
            }
        }
        (promises, again)
    }

    /// What was seen, and what is promised. `waiting` says what the scheduler has of a tenant.
    pub fn dump(&self, pool_name: &dyn Fn(PoolId) -> Option<String>, waiting: &dyn Fn(u64) -> usize) -> Value {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let rows = self.rows.iter().map(|(_, row)| {
            let spec = row.spec.and_then(|s| self.specs.get(s));
            let pool = || pool_name(row.key.pool).unwrap_or_else(|| row.key.pool.0.to_string());
            let name = match spec {
                Some(s) => s.share.name.clone(),
                None if row.key == REST => "others".into(),
                None if row.key.pool == REST.pool => text(&row.key.detail),
                None if !row.key.detail.is_empty() => format!("{}/{}/{}", pool(), text(&row.key.namespace), text(&row.key.detail)),
                None if !row.key.namespace.is_empty() => format!("{}/{}", pool(), text(&row.key.namespace)),
                None => pool(),
            };
            let s = &row.seen;
            let mut v = json!({
                "tenant": name,
                "specified": spec.is_some(),
                "weight": spec.map_or(TenantSpec::WEIGHT, |s| s.share.weight.max(1)),
                "waiting": waiting(row.id),
                "offered": s.offered, "offered_bytes": s.offered_bytes,
                "served": s.served, "served_bytes": s.served_bytes,
                "served_by_floor": s.by_floor, "throttled": s.throttled,
                "waited_ns": s.waited,
                "waits_log2_us": s.waits.value(),
            });
            if let Some(spec) = spec {
                let rate = |s: Option<&messages::ShareOfRate>| match s.filter(|s| s.each_second > 0) {
                    Some(s) => json!({"cluster": s.each_second as f64 / 1000.0, "here": own_part(s, spec.share.osds, self.lonely) as f64 / 1000.0}),
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
