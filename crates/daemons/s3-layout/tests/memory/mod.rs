//! A cluster in memory below the layout: objects and classes as OSDs execute them, a clock that
//! tests move, gateways that end after so many changes.

// Each test file uses a part.
#![allow(dead_code)]

use bytes::Bytes;
use client::{ClientError, Handler, ListCursor, OpOutcome, Request, Scope, Watch};
use cls::{LocalFuture, Origin, Registry};
use denc::Features;
use objops::copy::NoCopies;
use objops::object::{ObjectState, PoolRules, SnapSet, decode_attr};
use objops::seal::SealArgs;
use objops::store_reader::StoreReader;
use objops::{Env, Exec, Limits, OI_ATTR, ObjectReader, SS_ATTR, WatchEnv};
use s3_layout::api::Sums;
use s3_layout::rgw::{Backend, Options, Rgw};
use s3_layout::{Result, Source, Upload};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use store::{Coll, Store, Transaction};
use types::rados::OsdFlags;
use types::{
    EntityAddr, EntityName, Epoch, Errno, Eversion, ListObject, ObjectId, PoolId, ReqId,
    SnapContext, SnapId, Utime,
};

const COLL: Coll = Coll(1);
/// Groups of objects, which count versions each for itself.
const GROUPS: usize = 8;
/// The longest output of a change that its sender gets (Ceph: `osd_max_write_op_reply_len`).
const WRITE_REPLY_MAX: usize = 64;

/// Numbers that look random and are the same in each run.
pub struct Dice(Cell<u64>);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    pub fn below(&self, n: u64) -> u64 {
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.set(x);
        (x >> 11) % n.max(1)
    }
}

/// The objects of a cluster.
pub struct Disk {
    reader: StoreReader,
    classes: Registry,
    limits: Limits,
    pools: RefCell<BTreeMap<String, PoolId>>,
    names: RefCell<BTreeSet<ObjectId>>,
    versions: [Cell<u64>; GROUPS],
    now: Cell<Utime>,
    gateways: Cell<u64>,
}

/// An object with what a test looks at.
#[derive(Clone, Debug, Default)]
pub struct Raw {
    pub attrs: BTreeMap<Bytes, Bytes>,
    pub rows: BTreeMap<Bytes, Bytes>,
    pub header: Bytes,
    pub size: u64,
}

impl Disk {
    pub fn new() -> Rc<Self> {
        let store = Rc::new(Store::memory());
        let mut t = Transaction::new();
        t.create_collection(COLL);
        store.submit(t).unwrap();
        Rc::new(Disk {
            reader: StoreReader::new(store, COLL),
            classes: Registry::builtin(),
            limits: Limits::default(),
            pools: RefCell::default(),
            names: RefCell::default(),
            versions: Default::default(),
            now: Cell::new(Utime::new(1_700_000_000, 0)),
            gateways: Cell::new(0),
        })
    }

    pub fn pass(&self, seconds: u32) {
        let now = self.now.get();
        self.now.set(Utime::new(now.sec + seconds, now.nsec));
    }

    /// A time that no other call returns.
    fn tick(&self) -> Utime {
        let now = self.now.get();
        let next = Utime::from_duration(
            Duration::new(u64::from(now.sec), now.nsec) + Duration::from_micros(1),
        );
        self.now.set(next);
        next
    }

    pub fn pool_name(&self, id: PoolId) -> String {
        let pools = self.pools.borrow();
        pools.iter().find(|(_, p)| **p == id).map(|(n, _)| n.clone()).unwrap_or_default()
    }

    /// All objects: pool, namespace, name.
    pub async fn objects(&self) -> BTreeMap<(String, Bytes, Bytes), Raw> {
        let names: Vec<ObjectId> = self.names.borrow().iter().cloned().collect();
        let mut all = BTreeMap::new();
        for oid in names {
            let state = self.load(&oid).await;
            if !state.visible() {
                continue;
            }
            let key = oid.to_key();
            let mut raw = Raw { size: state.oi.size, ..Raw::default() };
            for (name, value) in self.reader.attrs(&key).await.unwrap() {
                if let Some(name) = name.strip_prefix(b"_").filter(|n| !n.is_empty()) {
                    raw.attrs.insert(Bytes::copy_from_slice(name), value);
                }
            }
            raw.header = self.reader.omap_header(&key).await.unwrap_or_default();
            let from = std::ops::Bound::Unbounded;
            let page = self.reader.store.omap_iter(COLL, &key, from, usize::MAX, usize::MAX);
            raw.rows = page.await.unwrap().rows.into_iter().collect();
            all.insert((self.pool_name(oid.pool), oid.namespace.clone(), oid.name.clone()), raw);
        }
        all
    }

    /// What a class method says of an object.
    pub async fn class_read(&self, pool: &str, name: &[u8], class: &str, method: &str) -> Bytes {
        let id = self.pools.borrow()[pool];
        let op = client::Operation::new().exec(class, method, b"", false).unwrap();
        let request = Request {
            scope: Scope::Object {
                pool: id,
                namespace: Bytes::new(),
                key: Bytes::new(),
                name: Bytes::copy_from_slice(name),
            },
            flags: op.request_flags(),
            ops: op.ops,
            snapid: SnapId::NOSNAP,
            snapc: SnapContext::default(),
            mtime: self.now.get(),
        };
        self.execute(&request).await.0.output(0)
    }

    async fn load(&self, oid: &ObjectId) -> ObjectState {
        match self.reader.attr(&oid.to_key(), OI_ATTR).await {
            Ok(b) => ObjectState { oid: oid.clone(), exists: true, oi: decode_attr(&b).unwrap() },
            Err(_) => ObjectState::absent(oid.clone()),
        }
    }

    /// Carries a request out: its answer, and whether something changed.
    async fn execute(&self, request: &Request) -> (OpOutcome, bool) {
        let Scope::Object { pool, namespace, key, name } = &request.scope else {
            panic!("gateways ask for objects only");
        };
        let oid =
            ObjectId::new(*pool, namespace.clone(), name.clone(), key.clone(), SnapId::NOSNAP);
        let group = &self.versions[oid.hash as usize % GROUPS];
        let old = self.load(&oid).await;
        let writes = request.flags.has(OsdFlags::WRITE);
        let mut out = OpOutcome {
            result: 0,
            ops: request.ops.clone(),
            user_version: group.get(),
            epoch: Epoch(1),
        };
        if !writes && !old.exists {
            out.result = Errno::ENOENT.as_result();
            return (out, false);
        }
        let set = match self.reader.attr(&oid.to_key(), SS_ATTR).await {
            Ok(b) => decode_attr(&b).unwrap(),
            Err(_) => SnapSet::default(),
        };
        let now = self.tick();
        let origin = Origin {
            entity: EntityName::client(1),
            addr: EntityAddr::default(),
            last_user_version: group.get(),
            snap_seq: 0,
            mtime: request.mtime,
            now,
            features: Features::ALL,
            min_compat_client: 12,
            require_osd_release: 16,
            min_alloc_size: 4096,
            stripe_width: 0,
        };
        let watch = WatchEnv {
            entity: origin.entity,
            watch_timeout: 30,
            notify_timeout: 30,
            ping: &|_| true,
            next_id: &|| 1,
        };
        let snapc = SnapContext::default();
        let env = Env {
            reader: &self.reader,
            classes: &self.classes,
            copies: &NoCopies,
            limits: &self.limits,
            pool: PoolRules::default(),
            snapc: &snapc,
            snap_removed: &|_| false,
            origin: &origin,
            watch: &watch,
            random: |out| out.fill(7),
        };
        let mut exec = Exec::new(&env, oid.to_key(), &old, &set);
        let (result, outcomes) = exec.run(&request.ops).await;
        out.result = result;
        let changes = result >= 0 && exec.changes();
        for (op, done) in out.ops.iter_mut().zip(&outcomes) {
            op.rval = done.rval;
            op.outdata = done.out_bytes();
        }
        if !changes {
            if result >= 0 {
                out.user_version = exec.reply_user_version();
            }
            return (out, false);
        }
        let sealed = exec.seal(SealArgs {
            first_version: Eversion::new(Epoch(1), group.get() + 1),
            last_user_version: group.get(),
            reqid: ReqId::default(),
            mtime: request.mtime,
            now,
            return_code: 0,
            op_returns: Vec::new(),
        });
        out.user_version = sealed.user_version;
        group.set(group.get().max(sealed.user_version) + u64::from(sealed.user_version == 0));
        let mut t = Transaction::new();
        sealed.txn.into_store(COLL, &mut t, |_, _, _, _| {});
        self.reader.store.submit(t).unwrap();
        self.names.borrow_mut().insert(oid);
        let returns = request.flags.has(OsdFlags::RETURNVEC);
        for op in &mut out.ops {
            if !returns || op.outdata.len() > WRITE_REPLY_MAX {
                op.outdata.clear();
            }
        }
        (out, true)
    }
}

/// A gateway's way to the cluster.
pub struct Link {
    disk: Rc<Disk>,
    instance: u64,
    /// How many changes are carried out before the gateway ends.
    left: Cell<Option<u32>>,
    pub changes: Cell<u32>,
    ended: Cell<bool>,
    /// Woken when the gateway ends.
    pub end: tokio::sync::Notify,
    /// Requests take their time.
    dice: Option<Rc<Dice>>,
}

impl Link {
    pub fn new(disk: &Rc<Disk>, left: Option<u32>, dice: Option<Rc<Dice>>) -> Rc<Self> {
        disk.gateways.set(disk.gateways.get() + 1);
        Rc::new(Link {
            disk: disk.clone(),
            instance: 4100 + disk.gateways.get(),
            left: Cell::new(left),
            changes: Cell::new(0),
            ended: Cell::new(false),
            end: tokio::sync::Notify::new(),
            dice,
        })
    }

    /// The gateway ends after so many changes more.
    pub fn end_after(&self, changes: u32) {
        self.changes.set(0);
        self.left.set(Some(changes));
        if changes == 0 {
            self.ended.set(true);
            self.end.notify_one();
        }
    }

    async fn delay(&self) {
        if let Some(dice) = &self.dice {
            for _ in 0..dice.below(4) {
                tokio::task::yield_now().await;
            }
        }
    }
}

impl Backend for Link {
    fn submit(&self, request: Request) -> LocalFuture<'_, client::Result<OpOutcome>> {
        Box::pin(async move {
            self.delay().await;
            if self.ended.get() {
                return std::future::pending().await;
            }
            let (outcome, changed) = self.disk.execute(&request).await;
            if changed {
                self.changes.set(self.changes.get() + 1);
                if self.left.get().is_some_and(|left| self.changes.get() >= left) {
                    // The change is made, and its sender is gone before the answer.
                    self.ended.set(true);
                    self.end.notify_one();
                    return std::future::pending().await;
                }
            }
            self.delay().await;
            Ok(outcome)
        })
    }

    fn pool<'a>(&'a self, name: &'a str) -> LocalFuture<'a, client::Result<PoolId>> {
        Box::pin(
            async move { self.disk.pools.borrow().get(name).copied().ok_or(ClientError::NoPool) },
        )
    }

    fn create_pool<'a>(&'a self, name: &'a str) -> LocalFuture<'a, client::Result<PoolId>> {
        let mut pools = self.disk.pools.borrow_mut();
        let next = PoolId(pools.len() as i64 + 1);
        let id = *pools.entry(name.to_owned()).or_insert(next);
        Box::pin(async move { Ok(id) })
    }

    /// Without watches nothing is cached.
    fn watch(&self, _: Request, _: Handler) -> LocalFuture<'_, client::Result<Watch>> {
        Box::pin(async { Err(ClientError::Shutdown) })
    }

    fn notify(&self, _: Request, _: Bytes, _: Duration) -> LocalFuture<'_, client::Result<bool>> {
        Box::pin(async { Ok(true) })
    }

    /// One page has all.
    fn list<'a>(
        &'a self,
        pool: PoolId,
        namespace: &'a Bytes,
        _: &'a ListCursor,
        _: u64,
    ) -> LocalFuture<'a, client::Result<(ListCursor, Vec<ListObject>)>> {
        let names = self.disk.names.borrow();
        let here = |oid: &&ObjectId| oid.pool == pool && oid.namespace == *namespace;
        let entry = |oid: &ObjectId| ListObject {
            namespace: oid.namespace.clone(),
            name: oid.name.clone(),
            locator: oid.key.clone(),
        };
        let found = names.iter().filter(here).map(entry).collect();
        Box::pin(async move { Ok((ListCursor(ObjectId::MAX), found)) })
    }

    fn instance(&self) -> u64 {
        self.instance
    }

    fn now(&self) -> Utime {
        self.disk.tick()
    }
}

/// A gateway over a link.
pub async fn gateway(link: &Rc<Link>) -> Rgw {
    let options = Options { gc_wait_seconds: 7200, gc_queues: 3, ..Options::default() };
    Rgw::over(link.clone(), options).await.unwrap()
}

/// A gateway beside which no other is at work: what was left is settled without waiting.
pub async fn gateway_alone(link: &Rc<Link>) -> Rgw {
    let options =
        Options { gc_wait_seconds: 0, note_seconds: 0, gc_queues: 3, ..Options::default() };
    Rgw::over(link.clone(), options).await.unwrap()
}

/// Runs what belongs to one gateway; at its end its tasks are gone.
pub fn run<F: Future>(work: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

/// What stands for an MD5: tests know no other, and this one is quick without optimisation.
pub fn digest(content: &[u8]) -> [u8; 16] {
    let mut state = [0x9e37_79b9_7f4a_7c15_u64, content.len() as u64];
    for (at, chunk) in content.chunks(64).enumerate() {
        let mut word = [0; 8];
        let n = chunk.len().min(8);
        word[..n].copy_from_slice(&chunk[..n]);
        let mixed = (state[at % 2] ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3);
        state[at % 2] = mixed.rotate_left(23);
    }
    let mut out = [0; 16];
    out[..8].copy_from_slice(&state[0].to_le_bytes());
    out[8..].copy_from_slice(&state[1].to_le_bytes());
    out
}

/// A body of known bytes.
pub struct Body {
    whole: Bytes,
    rest: Bytes,
}

impl Body {
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        let whole = bytes.into();
        Body { rest: whole.clone(), whole }
    }
}

impl Source for Body {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let piece = self.rest.split_to(self.rest.len().min(3 << 20));
        Ok(Some(piece).filter(|p| !p.is_empty()))
    }
}

impl Upload for Body {
    fn finish(&mut self) -> Result<Sums> {
        Ok(Sums { md5: digest(&self.whole), checksum: None })
    }
}
