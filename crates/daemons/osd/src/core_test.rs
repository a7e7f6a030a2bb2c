//! Three OSDs on one thread, with stores in memory, a small map and a test client.

use crate::client_op::{ClientOp, OsdQueue, ReplySink, Request};
use crate::core::{Core, MonLink, Parts};
use crate::gate::Mode;
use crate::host::Job;
use crate::map::{ClusterMap, ClusterMapRef, PoolOps};
use crate::peer_net::{Envelope, PeerNet};
use crate::settings::Settings;
use crate::waits::Reason;
use admission::work::{Fifo, Queue};
use bytes::Bytes;
use messages::{Op, OpArgs, OsdBackoff, OsdOp, OsdOpReply};
use objops::code::{on_extent, write_op};
use objops::copy::NoCopies;
use objops::object::PoolRules;
use objops::{OpCode, OpInfo, OsdFlags};
use pg::{MapView, Mapping, PeerHeader, PeerMsg, PgState, PoolView};
use room_ledger::RoomNote;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;
use store::Store;
use tokio::sync::{mpsc, oneshot};
use types::{
    EntityAddr, EntityAddrVec, EntityName, Epoch, Errno, IntervalSet, ObjectId, ObjectLocator,
    OsdId, PgId, PgShard, PoolId, SnapContext, SnapId, SpgId,
};

pub(crate) const POOL: PoolId = PoolId(1);
const PG_NUM: u32 = 4;

/// A map in which every group is on all OSDs that are up, led by another one each.
#[derive(Clone, Default)]
pub(crate) struct TestMap {
    pub(crate) epoch: u32,
    /// OSD → epoch in which it came up.
    pub(crate) up: BTreeMap<i32, u32>,
    up_thru: BTreeMap<i32, u32>,
    pub(crate) removed: IntervalSet,
    full: bool,
    /// Flag `nosnaptrim`.
    keep_snaps: bool,
    pub(crate) blocked: Vec<EntityAddr>,
    pub(crate) pg_num: u32,
    /// The pool is erasure-coded.
    pub(crate) coded: bool,
    /// Shards with data and with parity; none for 2+1.
    pub(crate) shape: Option<(usize, usize)>,
    /// What osd.0 should have, and what it has, has osd.3 in an erasure-coded pool.
    pub(crate) moved: (bool, bool),
}

impl MapView for TestMap {
    fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }
    fn exists(&self, osd: OsdId) -> bool {
        osd.0 < self.copies() as i32 || self.is_up(osd)
    }
    fn is_up(&self, osd: OsdId) -> bool {
        self.up.contains_key(&osd.0)
    }
    fn up_from(&self, osd: OsdId) -> Epoch {
        Epoch(self.up.get(&osd.0).copied().unwrap_or(0))
    }
    fn up_thru(&self, osd: OsdId) -> Epoch {
        Epoch(self.up_thru.get(&osd.0).copied().unwrap_or(0))
    }
    /// An OSD that goes down here is gone for sure.
    fn dead_epoch(&self, osd: OsdId) -> Epoch {
        if self.is_up(osd) { Epoch(0) } else { self.epoch() }
    }
    fn lost_at(&self, _: OsdId) -> Epoch {
        Epoch(0)
    }
    fn pool(&self, pool: PoolId) -> Option<PoolView> {
        (pool == POOL).then_some(PoolView {
            kind: match self.coded {
                false => pg::PoolKind::Replicated,
                true => pg::PoolKind::Erasure(pg::Erasure {
                    layout: self.layout(),
                    technique: ec::Technique::JerasureReedSolVan,
                }),
            },
            size: self.copies(),
            min_size: self.layout().k() as u32,
            pg_num: self.pg_num,
            created: Epoch(1),
            pg_num_pending: self.pg_num,
            merged: None,
        })
    }
    fn removed_snaps(&self, _: PoolId) -> IntervalSet {
        self.removed.clone()
    }
    fn trims_snaps(&self) -> bool {
        !self.keep_snaps
    }
    fn mapping(&self, pg: PgId) -> Mapping {
        if self.coded {
            return self.coded_mapping(pg);
        }
        let mut up: Vec<OsdId> = self.up.keys().map(|o| OsdId(*o)).collect();
        if !up.is_empty() {
            let n = pg.seed as usize % up.len();
            up.rotate_left(n);
        }
        let up = pg::Members::whole(up);
        Mapping {
            up_primary: up.first().copied(),
            acting: up.clone(),
            primary: up.first().copied(),
            up,
        }
    }
}

impl TestMap {
    /// Each position has an OSD of its own, or a hole. Shard 1 cannot lead.
    /// How objects are cut where copies are shards.
    pub(crate) fn layout(&self) -> ec::Layout {
        let (k, m) = self.shape.unwrap_or((2, 1));
        ec::Layout::new(k, m, 4096).unwrap()
    }

    fn copies(&self) -> u32 {
        self.layout().shards().len() as u32
    }

    fn coded_mapping(&self, pg: PgId) -> Mapping {
        let here = |o: OsdId| if self.is_up(o) { o } else { OsdId::NONE };
        let members = |moved: bool| {
            let at = |i: u32| match ((pg.seed + i) % self.copies()) as i32 {
                0 if moved => OsdId(3),
                osd => OsdId(osd),
            };
            pg::Members::positioned((0..self.copies()).map(|i| here(at(i))))
        };
        let (up, acting) = (members(self.moved.0), members(self.moved.1));
        let able = self.layout().primary_capable();
        let leads =
            |set: &pg::Members| set.iter().copied().find(|c| able.contains(c.shard.0 as u8));
        Mapping { up_primary: leads(&up), primary: leads(&acting), up, acting }
    }
}

impl ClusterMap for TestMap {
    fn pools(&self) -> Vec<PoolId> {
        vec![POOL]
    }
    fn pool_ops(&self, pool: PoolId) -> Option<Rc<PoolOps>> {
        let rules = PoolRules { full: self.full, ..PoolRules::default() };
        (pool == POOL).then(|| Rc::new(PoolOps { rules, ..PoolOps::default() }))
    }
    fn fold(&self, raw: PgId) -> Option<PgId> {
        (raw.pool == POOL).then_some(PgId { pool: POOL, seed: raw.seed % self.pg_num })
    }
    fn object(
        &self,
        pool: PoolId,
        namespace: &Bytes,
        name: &Bytes,
        key: &Bytes,
        snap: SnapId,
    ) -> Option<ObjectId> {
        (pool == POOL)
            .then(|| ObjectId::new(pool, namespace.clone(), name.clone(), key.clone(), snap))
    }
    fn is_blocklisted(&self, addr: &EntityAddr) -> bool {
        self.blocked.contains(addr)
    }
    fn snap_removed(&self, _: PoolId, snap: SnapId) -> bool {
        self.removed.contains(snap.0)
    }
    fn addrs(&self, _: OsdId) -> EntityAddrVec {
        EntityAddrVec::default()
    }
}

struct TestNet {
    me: OsdId,
    to: Rc<RefCell<BTreeMap<OsdId, mpsc::UnboundedSender<Envelope>>>>,
    pub(crate) down: Rc<RefCell<Vec<OsdId>>>,
}

impl PeerNet for TestNet {
    fn send(&self, to: &[PgShard], header: PeerHeader, msg: PeerMsg, notes: &[RoomNote]) {
        for (osd, note) in to.iter().map(|c| &c.osd).zip(notes) {
            if self.down.borrow().contains(osd) || self.down.borrow().contains(&self.me) {
                continue;
            }
            // Through the encoding, as between processes.
            let (front, data) = msg.encode(&header);
            let (header, msg) = PeerMsg::decode(front, data).expect("own encoding");
            if let Some(tx) = self.to.borrow().get(osd) {
                let _ = tx.send(Envelope::new(self.me, header, msg, Some(*note)));
            }
        }
    }
}

#[derive(Default)]
struct TestMon {
    up_thru: Cell<bool>,
}

impl MonLink for TestMon {
    fn want_up_thru(&self, _: Epoch) {
        self.up_thru.set(true);
    }
    fn want_pg_temp(&self, _: PgId, _: Vec<OsdId>) {}
    fn want_map(&self, _: Epoch) {}
}

struct Sink(RefCell<Option<oneshot::Sender<OsdOpReply>>>);

impl ReplySink for Sink {
    fn reply(&self, reply: OsdOpReply, _: u64, _: u16) {
        if let Some(tx) = self.0.borrow_mut().take() {
            let _ = tx.send(reply);
        }
    }
    fn entity(&self) -> &str {
        "client.test"
    }
}

/// A client that may only read.
struct Reader(Sink);

impl ReplySink for Reader {
    fn reply(&self, reply: OsdOpReply, tid: u64, data_off: u16) {
        self.0.reply(reply, tid, data_off);
    }
    fn allows(&self, _: &Request, info: &OpInfo, _: &PoolOps) -> bool {
        !info.need_write_cap()
    }
}

/// The session of a [`Patient`] client.
const PATIENT: u64 = 9;

/// A client that understands backoffs, and keeps them.
#[derive(Default)]
struct Patient {
    backoffs: RefCell<Vec<OsdBackoff>>,
    replies: Cell<usize>,
}

impl ReplySink for Patient {
    fn reply(&self, _: OsdOpReply, _: u64, _: u16) {
        self.replies.set(self.replies.get() + 1);
    }
    fn backoff(&self, b: OsdBackoff) -> bool {
        self.backoffs.borrow_mut().push(b);
        true
    }
    fn session(&self) -> u64 {
        PATIENT
    }
}

pub(crate) struct Cluster {
    pub(crate) cores: Vec<Rc<Core>>,
    mons: Vec<Rc<TestMon>>,
    pub(crate) stores: Vec<Rc<Store>>,
    net: Rc<RefCell<BTreeMap<OsdId, mpsc::UnboundedSender<Envelope>>>>,
    pub(crate) down: Rc<RefCell<Vec<OsdId>>>,
    pub(crate) map: TestMap,
    /// Those that were published: an OSD that was down catches up with each.
    maps: RefCell<Vec<ClusterMapRef>>,
    tid: u64,
    pub(crate) snapc: SnapContext,
    queue: fn() -> Box<dyn Queue<ClientOp>>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Cluster::with_queue(|| Box::new(Fifo::default()))
    }

    pub(crate) fn with_queue(queue: fn() -> Box<dyn Queue<ClientOp>>) -> Self {
        Cluster::with(queue, |_| Store::memory())
    }

    pub(crate) fn with_stores(store: impl Fn(i32) -> Store) -> Self {
        Cluster::with(|| Box::new(Fifo::default()), store)
    }

    fn with(queue: fn() -> Box<dyn Queue<ClientOp>>, store: impl Fn(i32) -> Store) -> Self {
        let mut c = Cluster {
            cores: Vec::new(),
            mons: Vec::new(),
            stores: Vec::new(),
            net: Rc::default(),
            down: Rc::default(),
            map: TestMap {
                epoch: 1,
                pg_num: PG_NUM,
                up: (0..3).map(|o| (o, 1)).collect(),
                ..TestMap::default()
            },
            maps: RefCell::default(),
            tid: 0,
            snapc: SnapContext::default(),
            queue,
        };
        for i in 0..3 {
            c.stores.push(Rc::new(store(i)));
            c.add_core(i);
        }
        c
    }

    fn add_core(&mut self, i: i32) {
        let mon = Rc::new(TestMon::default());
        let net = TestNet { me: OsdId(i), to: self.net.clone(), down: self.down.clone() };
        let core = Core::new(Parts {
            whoami: OsdId(i),
            store: self.stores[i as usize].clone(),
            net: Rc::new(net),
            mon: mon.clone(),
            copies: Rc::new(NoCopies),
            queue: (self.queue)(),
            settings: Settings::default(),
        });
        let (tx, mut rx) = mpsc::unbounded_channel();
        self.net.borrow_mut().insert(OsdId(i), tx);
        let receiver = core.clone();
        tokio::task::spawn_local(async move {
            while let Some(e) = rx.recv().await {
                receiver.handle_peer(e);
            }
        });
        if (i as usize) < self.cores.len() {
            self.cores[i as usize] = core;
            self.mons[i as usize] = mon;
        } else {
            self.cores.push(core);
            self.mons.push(mon);
        }
    }

    pub(crate) fn publish(&self) {
        let mut maps = self.maps.borrow_mut();
        maps.push(Rc::new(self.map.clone()));
        let live: Vec<&Rc<Core>> = self.live().collect();
        for core in &live {
            for map in maps.iter().filter(|m| m.epoch() > core.epoch()) {
                core.advance_map(map.clone(), false);
            }
        }
        for core in &live {
            core.activate_map();
        }
    }

    fn live(&self) -> impl Iterator<Item = &Rc<Core>> {
        self.cores.iter().filter(|c| self.map.up.contains_key(&c.whoami.0))
    }

    pub(crate) fn next_map(&mut self, change: impl FnOnce(&mut TestMap)) {
        self.map.epoch += 1;
        change(&mut self.map);
        self.publish();
    }

    /// Another OSD, which is not up.
    pub(crate) fn add_osd(&mut self) {
        let i = self.cores.len() as i32;
        self.stores.push(Rc::new(Store::memory()));
        self.add_core(i);
    }

    /// Lets all OSDs work until all PGs are active (and clean, if all OSDs are up).
    pub(crate) async fn settle(&mut self) {
        let all = self.map.up.len() == self.cores.len();
        let want = if all { PgState::CLEAN } else { PgState::ACTIVE };
        self.settle_to(|pg| pg.state().has(want)).await;
    }

    /// Lets all OSDs work until something is true of all groups, as their primaries see them.
    pub(crate) async fn settle_to(&mut self, is: impl Fn(&pg::Pg) -> bool) {
        for _ in 0..10_000 {
            tokio::task::yield_now().await;
            let wish = self.mons.iter().position(|m| m.up_thru.replace(false));
            if let Some(i) = wish {
                let epoch = self.map.epoch;
                self.next_map(|m| {
                    m.up_thru.insert(i as i32, epoch);
                });
                continue;
            }
            let done = (0..self.map.pg_num).all(|seed| {
                let pgid = PgId { pool: POOL, seed };
                let primary = self.map.mapping(pgid).primary.unwrap();
                let id = SpgId { pgid, shard: primary.shard };
                let host = self.cores[primary.osd.0 as usize].host(id);
                host.is_some_and(|h| h.with_pg(&is))
            });
            if done {
                for core in self.live() {
                    assert_eq!(core.failed(), None);
                }
                return;
            }
        }
        for core in &self.cores {
            for h in core.hosts() {
                eprintln!(
                    "osd.{} {}",
                    core.whoami,
                    h.with_pg(|p| format!("{} {:?} {}", p.pgid(), p.state(), p.phase_name()))
                );
            }
        }
        panic!("the groups do not settle");
    }

    pub(crate) fn message(&mut self, name: &str, snap: SnapId, ops: Vec<Op>) -> (Request, OsdId) {
        self.tid += 1;
        let oid = ObjectId::new(POOL, "", name.to_owned(), "", snap);
        let pgid = self.map.fold(PgId { pool: POOL, seed: oid.hash }).unwrap();
        let m = OsdOp {
            pgid: SpgId { pgid, shard: self.map.mapping(pgid).primary.unwrap().shard },
            hash: oid.hash,
            epoch: Epoch(self.map.epoch),
            locator: ObjectLocator { pool: POOL, ..ObjectLocator::default() },
            object: oid.name.clone(),
            ops,
            snapid: snap,
            snapc: self.snapc.clone(),
            mtime: types::Utime::new(1_700_000_000, 0),
            ..OsdOp::default()
        };
        let request = Request {
            m,
            source: EntityName::client(4),
            addr: EntityAddr::default(),
            tid: self.tid,
        };
        (request, self.map.mapping(pgid).primary.unwrap().osd)
    }

    pub(crate) fn send(&mut self, request: Request, to: OsdId) -> oneshot::Receiver<OsdOpReply> {
        let (tx, rx) = oneshot::channel();
        let sink = Rc::new(Sink(RefCell::new(Some(tx))));
        self.cores[to.0 as usize].handle_request(request, sink, None);
        rx
    }

    pub(crate) async fn op_at(&mut self, name: &str, snap: SnapId, ops: Vec<Op>) -> OsdOpReply {
        let (request, to) = self.message(name, snap, ops);
        let mut rx = self.send(request, to);
        for _ in 0..10_000 {
            if let Ok(reply) = rx.try_recv() {
                return reply;
            }
            tokio::task::yield_now().await;
        }
        panic!("no answer");
    }

    pub(crate) async fn op(&mut self, name: &str, ops: Vec<Op>) -> OsdOpReply {
        self.op_at(name, SnapId::NOSNAP, ops).await
    }

    pub(crate) async fn read(&mut self, name: &str) -> Bytes {
        let r = self.op(name, vec![on_extent(OpCode::READ, 0, 0)]).await;
        assert_eq!(r.result, 0);
        r.ops[0].outdata.clone()
    }

    pub(crate) async fn put(&mut self, name: &str, data: &'static str) {
        let op = Op { indata: data.into(), ..on_extent(OpCode::WRITEFULL, 0, data.len() as u64) };
        let r = self.op(name, vec![op]).await;
        assert_eq!(r.result, 0);
    }
}

pub(crate) fn run(test: impl AsyncFnOnce()) {
    let rt = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tokio::task::LocalSet::new().block_on(&rt, test());
}

#[test]
fn writes_are_replicated_and_survive_a_primary() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        for i in 0..20 {
            c.put(&format!("o{i}"), "data").await;
        }
        let reply = c.op("o1", vec![write_op(1, "ATA"), on_extent(OpCode::STAT, 0, 0)]).await;
        assert_eq!(reply.result, 0);
        assert!(reply.user_version > 1);
        assert_eq!(reply.flags & 5, 5, "acknowledged and on disk");
        // One OSD goes: the others have everything, and take writes.
        c.down.borrow_mut().push(OsdId(0));
        c.next_map(|m| {
            m.up.remove(&0);
        });
        c.settle().await;
        assert_eq!(c.read("o1").await, "dATA");
        for i in 0..20 {
            c.put(&format!("o{i}"), "newer").await;
        }
        assert_eq!(c.op("o5", vec![on_extent(OpCode::DELETE, 0, 0)]).await.result, 0);
        // It comes back, and gets what it missed.
        c.down.borrow_mut().clear();
        c.map.epoch += 1;
        let epoch = c.map.epoch;
        c.map.up.insert(0, epoch);
        c.publish();
        c.settle().await;
        for i in (0..20).filter(|i| *i != 5) {
            assert_eq!(c.read(&format!("o{i}")).await, "newer");
        }
        assert_eq!(
            c.op("o5", vec![on_extent(OpCode::STAT, 0, 0)]).await.result,
            Errno::ENOENT.as_result()
        );
        // All three stores hold the same objects with the same content.
        for seed in 0..PG_NUM {
            let coll = crate::collections::coll_of(PgId { pool: POOL, seed }.into());
            let mut copies = Vec::new();
            for s in &c.stores {
                let keys = s.list(coll, b"\x01", None, 1000).await.unwrap().keys;
                let mut all = Vec::new();
                for k in keys {
                    all.push((
                        s.read(coll, &k, 0, 100).await.unwrap().to_bytes(),
                        s.get_attrs(coll, &k).await.unwrap(),
                        k,
                    ));
                }
                copies.push(all);
            }
            assert_eq!(copies[0], copies[1]);
            assert_eq!(copies[1], copies[2]);
        }
    });
}

#[test]
fn it_is_kept_where_the_time_of_a_tenant_goes() {
    run(async || {
        let mut c = Cluster::with_queue(|| {
            Box::new(OsdQueue::starting(&conf::Config::new(), Instant::now()))
        });
        c.publish();
        c.settle().await;
        let objects = ["a", "b", "c", "d", "e", "f", "g", "h"];
        for name in objects {
            c.put(name, "1").await;
            c.read(name).await;
        }
        // A change of nothing is logged, too, and is on all OSDs before it is answered.
        let removed = c.op("nothing", vec![on_extent(OpCode::DELETE, 0, 0)]).await;
        assert_eq!(removed.result, Errno::ENOENT.as_result());
        let dumps: Vec<serde_json::Value> =
            c.live().map(|core| core.with_queue(|q| q.dump(&|_| None))).collect();
        let tenants: Vec<&serde_json::Value> =
            dumps.iter().flat_map(|d| d["tenants"].as_array().unwrap()).collect();
        let sum =
            |of: &dyn Fn(&serde_json::Value) -> u64| tenants.iter().map(|t| of(t)).sum::<u64>();
        let (ops, writes) = (2 * objects.len() as u64 + 1, objects.len() as u64 + 1);
        assert_eq!(sum(&|t| t["times"]["answered"].as_u64().unwrap()), ops, "{tenants:?}");
        let replicas = |t: &serde_json::Value| {
            t["times"]["replicas"]
                .as_object()
                .unwrap()
                .values()
                .map(|r| r["answered"].as_u64().unwrap())
                .sum()
        };
        assert_eq!(sum(&replicas), 2 * writes, "{tenants:?}");
        for t in &tenants {
            let legs: u64 = t["times"]["legs"]
                .as_object()
                .unwrap()
                .values()
                .map(|leg| leg["ns"].as_u64().unwrap())
                .sum();
            let total = t["times"]["total"]["ns"].as_u64().unwrap();
            assert!(legs.abs_diff(total) < total / 100, "{legs} of {total}: {t}");
            assert!(
                t["times"]["legs"]["replicas"]["ns"] != 0
                    && t["times"]["legs"]["queue"]["ns"] != 0
                    && t["served_cost"] != 0.0,
                "{t}"
            );
        }
        let peers = c.live().map(|core| {
            core.admission
                .peers
                .borrow()
                .dump()
                .values()
                .map(|p| p["answered"].as_u64().unwrap())
                .sum::<u64>()
        });
        assert_eq!(peers.sum::<u64>(), 2 * writes);
    });
}

#[test]
fn requests_are_recognised_when_resent() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        let append = Op { indata: "x".into(), ..on_extent(OpCode::APPEND, 0, 1) };
        let (request, to) = c.message("log", SnapId::NOSNAP, vec![append]);
        let again = Request { m: request.m.clone(), ..request };
        let (a, b) = (c.send(request, to), c.send(again, to));
        let (a, b) = (a.await.unwrap(), b.await.unwrap());
        assert_eq!((a.result, b.result), (0, 0));
        assert_eq!(a.replay_version, b.replay_version);
        assert_eq!(c.read("log").await, "x");
        // So is a failure.
        let excl = Op { flags: objops::OpFlags::EXCL, ..on_extent(OpCode::CREATE, 0, 0) };
        let (request, to) = c.message("log", SnapId::NOSNAP, vec![excl]);
        let again = Request { m: request.m.clone(), ..request };
        assert_eq!(c.send(request, to).await.unwrap().result, Errno::EEXIST.as_result());
        c.op("log", vec![on_extent(OpCode::DELETE, 0, 0)]).await;
        assert_eq!(c.send(again, to).await.unwrap().result, Errno::EEXIST.as_result());
    });
}

/// After a split the object may be in another group, where the client finds it with a newer map.
#[test]
fn requests_from_before_a_split_are_not_served() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        let names: Vec<String> = (0..16).map(|i| format!("object{i}")).collect();
        let mut old = Vec::new();
        for name in &names {
            c.put(name, "data").await;
            let (mut request, primary) =
                c.message(name, SnapId::NOSNAP, vec![on_extent(OpCode::READ, 0, 0)]);
            request.m.flags |= OsdFlags::BALANCE_READS;
            let replica = (0..3).map(OsdId).find(|o| *o != primary).unwrap();
            let again = Request { m: request.m.clone(), ..request };
            old.extend([(request, replica), (again, primary)]);
        }
        c.next_map(|m| m.pg_num = 2 * PG_NUM);
        c.settle().await;
        for (request, to) in old {
            assert!(c.send(request, to).await.is_err(), "osd.{to} answered");
        }
        for name in &names {
            assert_eq!(c.read(name).await, "data");
        }
    });
}

#[test]
fn reads_wait_for_the_writes_before_them() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        c.put("a", "1").await;
        let (w, to) = c.message("a", SnapId::NOSNAP, vec![write_op(0, "2")]);
        let (r, _) = c.message("a", SnapId::NOSNAP, vec![on_extent(OpCode::READ, 0, 0)]);
        let mut w = c.send(w, to);
        let mut r = c.send(r, to);
        assert!(w.try_recv().is_err(), "replicas have not answered");
        assert!(r.try_recv().is_err(), "what is not durable everywhere is not shown");
        assert_eq!((&mut w).await.unwrap().result, 0);
        assert_eq!(r.await.unwrap().ops[0].outdata, "2");
    });
}

/// Keeps the numbers of requests in the order in which they are answered.
struct Numbered(usize, Rc<RefCell<Vec<usize>>>);

impl ReplySink for Numbered {
    fn reply(&self, reply: OsdOpReply, _: u64, _: u16) {
        assert_eq!(reply.result, 0);
        self.1.borrow_mut().push(self.0);
    }
}

/// A read that its client ordered is executed and answered behind the writes that were sent before
/// it, and shows nothing that could still be lost.
#[test]
fn ordered_reads_are_answered_behind_the_writes_before_them() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        c.put("a", "1").await;
        let answered = Rc::default();
        let mut to = OsdId(0);
        for n in 0..8 {
            let op = match n {
                3 | 4 | 7 => on_extent(OpCode::READ, 0, 0),
                _ => write_op(n, "2"),
            };
            let (mut request, at) = c.message("a", SnapId::NOSNAP, vec![op]);
            to = at;
            request.m.flags = OsdFlags::RWORDERED;
            let sink = Rc::new(Numbered(n as usize, Rc::clone(&answered)));
            c.cores[to.0 as usize].handle_request(request, sink, None);
        }
        assert!(answered.borrow().is_empty(), "replicas have not answered");
        let all = c.cores[to.0 as usize].clone();
        for _ in 0..10_000 {
            tokio::task::yield_now().await;
            if answered.borrow().len() == 8 {
                break;
            }
        }
        assert_eq!(*answered.borrow(), (0..8).collect::<Vec<_>>());
        assert_eq!(all.failed(), None);
    });
}

/// What has had its turn and waits is not overtaken: neither by what comes to its object while it
/// waits, nor by what is in the scheduler when it goes on.
#[test]
fn what_waits_is_not_overtaken() {
    run(async || {
        let mut c = Cluster::with_queue(|| {
            Box::new(OsdQueue::starting(&conf::Config::new(), Instant::now()))
        });
        c.publish();
        c.settle().await;
        c.put("a", "1").await;
        let answered: Rc<RefCell<Vec<usize>>> = Rc::default();
        let (_, to) = c.message("a", SnapId::NOSNAP, vec![]);
        let core = c.cores[to.0 as usize].clone();
        let head = ObjectId::new(POOL, "", "a", "", SnapId::NOSNAP);
        let pgid = c.map.fold(PgId { pool: POOL, seed: head.hash }).unwrap();
        let host = core.host(pgid.into()).unwrap();
        let write = |c: &mut Cluster, n: usize| {
            let (request, _) = c.message("a", SnapId::NOSNAP, vec![write_op(n as u64, "2")]);
            (request, Rc::new(Numbered(n, answered.clone())))
        };
        // The first one waits for a scrub.
        let (first, sink) = write(&mut c, 0);
        let first = Rc::new(first);
        let info = OpInfo::new(OsdFlags(0), &first.m.ops, &cls::Registry::builtin()).unwrap();
        let tracked = core.tracker.start(first.clone(), Instant::now());
        let first = Rc::new(ClientOp::new(first, info, pgid, sink, tracked, 0, None));
        first.had_turn.set(true);
        host.wait(first, Reason::Scrub);
        // The second one has its turn meanwhile.
        let (second, sink) = write(&mut c, 1);
        core.handle_request(second, sink, None);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(answered.borrow().is_empty(), "the second one overtakes");
        // The third one is in the scheduler when they go on.
        core.set_settings(Settings { window: 1, ..Settings::default() });
        let stays = core.admission.running.replace(1);
        let (third, sink) = write(&mut c, 2);
        core.handle_request(third, sink, None);
        assert_eq!(core.with_queue(|q| q.len()), 1);
        host.resume_scrub_waiters();
        core.admission.running.set(core.admission.running.get() - 1 + stays);
        core.dispatch();
        for _ in 0..10_000 {
            tokio::task::yield_now().await;
            if answered.borrow().len() == 3 {
                break;
            }
        }
        assert_eq!(*answered.borrow(), [0, 1, 2]);
    });
}

/// While the store takes nothing, what has arrived waits in the scheduler, and is then done in the
/// order in which it came; and what comes to an object sees all that was done to it before, also
/// what the store had not taken.
#[test]
fn a_stalled_store_changes_no_order() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        c.put("a", "1").await;
        let (_, to) = c.message("a", SnapId::NOSNAP, vec![]);
        let core = c.cores[to.0 as usize].clone();
        let window = 16;
        core.set_settings(Settings { window, ..Settings::default() });
        // Two requests wait for their turn on the object, and the store stalls with the first one's
        // change.
        let head = ObjectId::new(POOL, "", "a", "", SnapId::NOSNAP);
        let host =
            core.host(c.map.fold(PgId { pool: POOL, seed: head.hash }).unwrap().into()).unwrap();
        let context = host.context(&head);
        assert!(
            context.enter(Mode::Write, Job::Unwatch(head.clone(), Default::default())).is_some()
        );
        let (w, _) = c.message("a", SnapId::NOSNAP, vec![Op::xattr(OpCode::SETXATTR, b"k", b"v")]);
        let (r, _) = c.message(
            "a",
            SnapId::NOSNAP,
            vec![Op::xattr(OpCode::GETXATTR, b"k", b""), write_op(0, "2")],
        );
        let (w, r) = (c.send(w, to), c.send(r, to));
        core.backlog.stall();
        context.leave(Mode::Write);
        host.kick(&head, &context);
        // Others come.
        let order = Rc::new(RefCell::new(Vec::new()));
        let mut sent = Vec::new();
        for i in 0..600 {
            let (m, at) = c.message(&format!("o{i}"), SnapId::NOSNAP, vec![write_op(0, "x")]);
            if at == to {
                let (rx, order) = (c.send(m, to), order.clone());
                sent.push(i);
                tokio::task::spawn_local(async move {
                    assert_eq!(rx.await.unwrap().result, 0);
                    order.borrow_mut().push(i);
                });
            }
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(sent.len() > window);
        assert_eq!(core.running(), window, "the scheduler keeps the others");
        core.backlog.flow();
        assert_eq!(
            (w.await.unwrap().result, r.await.unwrap().result),
            (0, 0),
            "the second one reads what the first one wrote"
        );
        while order.borrow().len() < sent.len() {
            tokio::task::yield_now().await;
        }
        // Those that are carried out at the same time end in any order.
        let order = order.borrow();
        for (place, i) in sent.iter().enumerate() {
            let ended = order.iter().position(|o| o == i).unwrap();
            assert!(
                ended.abs_diff(place) < 2 * window,
                "{i} was number {place} and ended as {ended} of {order:?}"
            );
        }
    });
}

#[test]
fn who_waits_for_the_store_goes_on_though_others_wait_again() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        let (first, to) = c.message("a", SnapId::NOSNAP, vec![write_op(0, "1")]);
        let core = c.cores[to.0 as usize].clone();
        core.backlog.stall();
        // As soon as what waits is in the store, something else waits: what others send to a store
        // that is always behind.
        let again = {
            let core = core.clone();
            tokio::task::spawn_local(async move {
                core.backlog.store_flows().await;
                core.backlog.stall();
            })
        };
        tokio::task::yield_now().await;
        let mut sent = vec![c.send(first, to)];
        for i in 0..64 {
            let (m, at) = c.message(&format!("o{i}"), SnapId::NOSNAP, vec![write_op(0, "x")]);
            if at == to && sent.len() < 4 {
                sent.push(c.send(m, to));
            }
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let begun = core.running();
        core.backlog.flow();
        again.await.unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(core.backlog.is_stalled() && begun == sent.len());
        assert_eq!(
            core.backlog.len(),
            1 + sent.len(),
            "each has executed, and what it writes waits behind the others"
        );
        core.backlog.flow();
        for rx in sent {
            assert_eq!(rx.await.unwrap().result, 0);
        }
    });
}

/// One of several clients, and which of them was answered.
#[derive(Clone)]
struct Named {
    client: &'static str,
    session: u64,
    answered: Rc<RefCell<Vec<&'static str>>>,
}

impl ReplySink for Named {
    fn reply(&self, reply: OsdOpReply, _: u64, _: u16) {
        assert_eq!(reply.result, 0);
        self.answered.borrow_mut().push(self.client);
    }
    fn session(&self) -> u64 {
        self.session
    }
    fn entity(&self) -> &str {
        self.client
    }
}

/// Sends an OSD so many writes of a client, each to another object of those that it leads.
fn ask(
    c: &mut Cluster,
    to: OsdId,
    names: &mut impl Iterator<Item = String>,
    client: &Named,
    count: usize,
) {
    let requests = names
        .map(|name| c.message(&name, SnapId::NOSNAP, vec![write_op(0, "x")]))
        .filter(|(_, at)| *at == to);
    let requests: Vec<Request> = requests.map(|(request, _)| request).take(count).collect();
    for request in requests {
        c.cores[to.0 as usize].handle_request(request, Rc::new(client.clone()), None);
    }
}

/// Fills the window of an OSD with requests of one client, and lets another one, which had less,
/// ask for something. Whether that begins, and nothing else does.
async fn begins_beyond_a_full_window() -> bool {
    let mut c = Cluster::with_queue(|| {
        let mut config = conf::Config::new();
        config.set(conf::effective::Source::Override, "osd_qos_tenant", "client").unwrap();
        Box::new(OsdQueue::starting(&config, Instant::now()))
    });
    c.publish();
    c.settle().await;
    let (_, to) = c.message("o0", SnapId::NOSNAP, vec![]);
    let core = c.cores[to.0 as usize].clone();
    let mut names = (0..).map(|i| format!("o{i}"));
    let answered = Rc::new(RefCell::new(Vec::new()));
    let named = |client, session| Named { client, session, answered: answered.clone() };
    let (quiet, noisy) = (named("client.quiet", 1), named("client.noisy", 2));
    let mut ask = |client: &Named, count| ask(&mut c, to, &mut names, client, count);
    let until = async |n: usize| {
        while answered.borrow().len() < n {
            tokio::task::yield_now().await;
        }
    };
    ask(&quiet, 1);
    ask(&noisy, 40);
    until(41).await;
    core.backlog.stall();
    ask(&noisy, 40);
    let window = core.admission.window();
    let full = core.running() == window && window < 40;
    ask(&quiet, 1);
    let beyond = core.running() == window + 1;
    core.backlog.flow();
    until(82).await;
    if full && beyond {
        let place =
            answered.borrow().iter().skip(41).position(|who| *who == "client.quiet").unwrap();
        assert!(place <= window, "{place} were answered before, of {window}");
    }
    full && beyond
}

/// A client that had less than others waits for none of theirs to end, though the window is full.
/// While the window measures it is not so, nor after a pause: an attempt that a slow machine has
/// spoiled is made again.
#[test]
fn who_had_less_begins_although_the_window_is_full() {
    run(async || {
        for _ in 0..100 {
            if begins_beyond_a_full_window().await {
                return;
            }
        }
        panic!("it waits for others' requests to end");
    });
}

/// What waits for its turn goes when its client sends it elsewhere: it would be in the way of
/// others, and looks like something that is asked for.
#[test]
fn what_is_sent_again_elsewhere_waits_no_longer() {
    for scheduler in ["mclock_scheduler", "wpq", "fifo"] {
        run(async move || {
            let mut c = Cluster::with_queue(|| {
                Box::new(OsdQueue::starting(&conf::Config::new(), Instant::now()))
            });
            let mut config = conf::Config::new();
            config.set(conf::effective::Source::Override, "osd_op_queue", scheduler).unwrap();
            c.cores.iter().for_each(|core| core.with_queue(|q| q.choose(&config)));
            c.publish();
            c.settle().await;
            let (_, to) = c.message("o0", SnapId::NOSNAP, vec![]);
            let core = c.cores[to.0 as usize].clone();
            assert_eq!(core.with_queue(|q| q.name()), scheduler);
            core.backlog.stall();
            let answered = Rc::new(RefCell::new(Vec::new()));
            let mut names = (0..).map(|i| format!("o{i}"));
            let named = |client, session| Named { client, session, answered: answered.clone() };
            let (stays, leaves) = (named("client.stays", 1), named("client.leaves", 2));
            let waiting = || core.with_queue(|q| q.len());
            // For a client that is alone the window is open.
            for count in [1, 200] {
                ask(&mut c, to, &mut names, &stays, count);
                ask(&mut c, to, &mut names, &leaves, count);
            }
            let begun = core.running();
            assert!(begun < 100 && waiting() == 402 - begun, "{begun}");
            core.session_gone(2);
            assert!((100..=201).contains(&waiting()), "{} wait of who stays", waiting());
            let left = waiting();
            c.map.epoch += 1;
            core.advance_map(Rc::new(c.map.clone()), false);
            core.drop_void();
            assert_eq!(waiting(), left, "nothing moved");
            // Down and up again: this OSD leads the same groups anew, and others led them
            // meanwhile.
            for up in [false, true] {
                c.map.epoch += 1;
                if up {
                    c.map.up.insert(to.0, c.map.epoch)
                } else {
                    c.map.up.remove(&to.0)
                };
                core.advance_map(Rc::new(c.map.clone()), false);
            }
            core.drop_void();
            assert_eq!(waiting(), 0);
            assert!(answered.borrow().is_empty());
            core.backlog.flow();
        });
    }
}

/// A request that comes while a PG is not active has its turn when it is, once, and in order.
#[test]
fn a_group_that_is_not_active_takes_nobodys_turn() {
    run(async || {
        let mut c = Cluster::with_queue(|| {
            Box::new(OsdQueue::starting(&conf::Config::new(), Instant::now()))
        });
        c.publish();
        c.settle().await;
        let down = 2;
        c.next_map(|m| {
            m.up.remove(&down);
        });
        let (_, to) = c.message("o", SnapId::NOSNAP, vec![]);
        let core = c.cores[to.0 as usize].clone();
        let served = || {
            let dump = core.with_queue(|q| q.dump(&|_| None));
            let tenants = dump["tenants"].as_array().unwrap();
            tenants.iter().map(|t| t["served_cost"].as_f64().unwrap()).sum::<f64>()
        };
        let before = served();
        let mut replies = Vec::new();
        for i in 0..20 {
            let (request, at) = c.message("o", SnapId::NOSNAP, vec![write_op(i, "x")]);
            assert_eq!(at, to);
            replies.push(c.send(request, to));
        }
        assert_eq!((core.with_queue(|q| q.len()), core.running()), (0, 0));
        assert_eq!(served(), before, "they were charged for nothing");
        c.settle().await;
        let mut last = None;
        for rx in replies {
            let version = rx.await.unwrap().user_version;
            assert!(last.replace(version).is_none_or(|last| last < version), "out of order");
        }
        let for_all = served() - before;
        c.op("o", vec![write_op(0, "y")]).await;
        let each = served() - before - for_all;
        assert!((for_all - 20.0 * each).abs() < each, "{for_all} for 20 that cost {each}");
    });
}

#[test]
fn errors_have_the_numbers_that_clients_expect() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        let read = || vec![on_extent(OpCode::READ, 0, 0)];
        assert_eq!(c.op("none", read()).await.result, Errno::ENOENT.as_result());
        assert_eq!(c.op("", read()).await.result, Errno::EINVAL.as_result());
        assert_eq!(c.op(&"x".repeat(3000), read()).await.result, Errno::ENAMETOOLONG.as_result());
        let write = || vec![write_op(0, "x")];
        assert_eq!(c.op_at("o", SnapId(3), write()).await.result, Errno::EINVAL.as_result());
        assert_eq!(c.op_at("o", SnapId::SNAPDIR, read()).await.result, Errno::EINVAL.as_result());
        c.snapc = SnapContext { seq: SnapId(1), snaps: vec![SnapId(2)] };
        assert_eq!(c.op("o", write()).await.result, Errno::EINVAL.as_result());
        c.snapc = SnapContext::default();
        let (request, to) = c.message("o", SnapId::NOSNAP, write());
        let (tx, rx) = oneshot::channel();
        let sink = Rc::new(Reader(Sink(RefCell::new(Some(tx)))));
        c.cores[to.0 as usize].handle_request(request, sink, None);
        assert_eq!(rx.await.unwrap().result, Errno::EPERM.as_result());
        c.next_map(|m| m.blocked.push(EntityAddr::default()));
        assert_eq!(c.op("o", write()).await.result, Errno::EBLOCKLISTED.as_result());
        c.next_map(|m| m.blocked.clear());
        c.next_map(|m| m.full = true);
        let (mut request, to) = c.message("o", SnapId::NOSNAP, write());
        request.m.flags = OsdFlags::FULL_TRY;
        assert_eq!(c.send(request, to).await.unwrap().result, Errno::ENOSPC.as_result());
    });
}

const FORCED: &[u8] = &[7; 256 << 10];

impl Cluster {
    /// Forces a write, and tells the answer if there is one soon.
    async fn force(&mut self, name: &str) -> Option<i32> {
        let op =
            Op { indata: FORCED.into(), ..on_extent(OpCode::WRITEFULL, 0, FORCED.len() as u64) };
        let (mut request, to) = self.message(name, SnapId::NOSNAP, vec![op]);
        request.m.flags |= OsdFlags::FULL_FORCE;
        let mut answer = self.send(request, to);
        for _ in 0..2_000 {
            if let Ok(reply) = answer.try_recv() {
                return Some(reply.result);
            }
            tokio::task::yield_now().await;
        }
        None
    }

    fn nothing_failed(&self) {
        for core in &self.cores {
            assert_eq!(core.failed(), None);
        }
    }
}

/// It is refused before it has a version. All goes on when there is room.
#[test]
fn a_forced_write_without_room_here_is_refused() {
    for coded in [false, true] {
        run(async || {
            let mut c = Cluster::with_stores(|_| Store::memory_of(4 << 20));
            c.map.coded = coded;
            c.publish();
            c.settle().await;
            let mut answers = Vec::new();
            for n in 0..40 {
                answers.push(c.force(&format!("o{n}")).await);
            }
            c.nothing_failed();
            let full = Errno::ENOSPC.as_result();
            assert!(answers.contains(&Some(full)) && answers.contains(&Some(0)), "{answers:?}");
            assert!(
                answers.iter().all(|a| matches!(a, Some(0)) || *a == Some(full)),
                "{answers:?}"
            );
            let there = (0..40).filter(|n| answers[*n] == Some(0)).map(|n| format!("o{n}"));
            for name in there.collect::<Vec<_>>() {
                assert_eq!(c.read(&name).await, FORCED);
                assert_eq!(c.op(&name, vec![on_extent(OpCode::DELETE, 0, 0)]).await.result, 0);
            }
            assert_eq!(c.force("again").await, Some(0));
            assert_eq!(c.read("again").await, FORCED);
            c.nothing_failed();
        });
    }
}

/// A write that a primary forces on a replica without room waits there.
#[test]
fn a_forced_write_without_room_on_a_replica_waits() {
    for coded in [false, true] {
        run(async || {
            let mut c = Cluster::with_stores(|i| match i {
                2 => Store::memory_of(4 << 20),
                _ => Store::memory(),
            });
            c.map.coded = coded;
            c.publish();
            c.settle().await;
            let mut answers = Vec::new();
            for n in 0..40 {
                answers.push(c.force(&format!("o{n}")).await);
            }
            c.nothing_failed();
            assert!(answers.contains(&None), "{answers:?}");
        });
    }
}

#[test]
fn snapshots_are_read_and_trimmed() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        c.put("s", "one").await;
        c.snapc = SnapContext { seq: SnapId(1), snaps: vec![SnapId(1)] };
        c.put("s", "two").await;
        let read = || vec![on_extent(OpCode::READ, 0, 0)];
        assert_eq!(c.op_at("s", SnapId(1), read()).await.ops[0].outdata, "one");
        assert_eq!(c.op_at("s", SnapId::NOSNAP, read()).await.ops[0].outdata, "two");
        assert_eq!(c.op("s", vec![on_extent(OpCode::DELETE, 0, 0)]).await.result, 0);
        assert_eq!(c.op_at("s", SnapId(1), read()).await.ops[0].outdata, "one");
        assert_eq!(c.objects().await, 3 * 2);
        let listing =
            c.op_at("s", SnapId::SNAPDIR, vec![on_extent(OpCode::LIST_SNAPS, 0, 0)]).await;
        assert_eq!(listing.result, 0);
        c.next_map(|m| m.removed.insert(1, 1));
        c.settle().await;
        assert_eq!(c.op_at("s", SnapId(1), read()).await.result, Errno::ENOENT.as_result());
        c.trimmed().await;
        assert_eq!(c.objects().await, 0, "clone and whiteout are gone");
    });
}

impl Cluster {
    /// Lets all OSDs work until no clone is left, and says which states of trimming PGs were
    /// seen.
    async fn trimmed(&mut self) -> PgState {
        let mut seen = PgState::default();
        for _ in 0..100_000 {
            tokio::task::yield_now().await;
            let mut clones = 0;
            for host in self.cores.iter().flat_map(|c| c.hosts()) {
                host.with_pg(|pg| {
                    if pg.is_primary() {
                        seen.set(pg.state(), true);
                        clones += pg.status().snap_trimq_len;
                    }
                });
            }
            if clones == 0 {
                return seen;
            }
        }
        panic!("the clones do not go");
    }

    /// Lets all OSDs work until something is so.
    async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if is(self) {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("waited for {what}");
    }

    /// What the OSDs tell of trimming: clones left, and groups where these are not counted.
    fn trims_left(&self) -> (u64, u64) {
        let all: Vec<(String, u64)> = self.cores.iter().flat_map(|c| c.job_counters()).collect();
        let sum = |name: &str| all.iter().filter(|(n, _)| n == name).map(|(_, v)| v).sum();
        (sum("job_trim_objects_left"), sum("job_trim_uncounted"))
    }

    /// Clones as the primaries count them.
    fn clones(&self) -> i64 {
        let hosts = self.cores.iter().flat_map(|c| c.hosts());
        hosts
            .map(|h| {
                h.with_pg(|pg| if pg.is_primary() { pg.info().stats.num_object_clones } else { 0 })
            })
            .sum()
    }

    async fn objects(&self) -> usize {
        let mut n = 0;
        for seed in 0..PG_NUM {
            let coll = crate::collections::coll_of(PgId { pool: POOL, seed }.into());
            for s in &self.stores {
                let keys = s.list(coll, b"", None, 10_000).await.unwrap().keys;
                n += keys.iter().filter(|k| *k != crate::collections::META_KEY).count();
            }
        }
        n
    }
}

#[test]
fn many_clones_are_trimmed_by_turns() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        let names: Vec<String> = (0..400).map(|i| format!("o{i}")).collect();
        for n in &names {
            c.put(n, "one").await;
        }
        c.snapc = SnapContext { seq: SnapId(1), snaps: vec![SnapId(1)] };
        for n in &names {
            c.put(n, "two").await;
        }
        assert_eq!(c.objects().await, 3 * 2 * names.len());
        c.next_map(|m| {
            m.removed.insert(1, 1);
            m.keep_snaps = true;
        });
        c.settle().await;
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(c.objects().await, 3 * 2 * names.len(), "the flag forbids it");
        // What is to be done is known nevertheless.
        let expected = (names.len() as u64, 0);
        c.until("the clones to be counted", |c| c.trims_left() == expected).await;
        // One group of each OSD at a time. The first OSD leads two.
        for core in &c.cores {
            let trim = crate::trims::TrimSettings { groups: 1, ..Default::default() };
            core.set_settings(Settings { trim, ..Settings::default() });
        }
        c.next_map(|m| m.keep_snaps = false);
        let seen = c.trimmed().await;
        assert!(seen.has(PgState::SNAPTRIM) && seen.has(PgState::SNAPTRIM_WAIT), "{seen:?}");
        assert_eq!(c.objects().await, 3 * names.len());
        for host in c.cores.iter().flat_map(|c| c.hosts()) {
            assert_eq!(host.with_pg(|pg| pg.info().stats.num_object_clones), 0);
        }
        // A flag that comes while groups trim stops them; without it they go on.
        c.snapc = SnapContext { seq: SnapId(2), snaps: vec![SnapId(2)] };
        for n in &names {
            c.put(n, "three").await;
        }
        c.next_map(|m| m.removed.insert(2, 1));
        while c.clones() > names.len() as i64 - 20 {
            tokio::task::yield_now().await;
        }
        c.next_map(|m| m.keep_snaps = true);
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        let left = c.objects().await;
        assert!(left > 3 * names.len() + 60, "it stopped in between: {left}");
        assert_eq!(
            c.trims_left(),
            ((left / 3 - names.len()) as u64, 0),
            "each clone that went was taken off"
        );
        assert_eq!(c.cores.iter().map(|c| c.trimming_groups()).sum::<usize>(), 0);
        c.next_map(|m| m.keep_snaps = false);
        c.trimmed().await;
        assert_eq!(c.objects().await, 3 * names.len());
    });
}

#[test]
fn what_a_copy_left_behind_is_not_for_the_next() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        for i in 0..40 {
            c.put(&format!("o{i}"), "data").await;
        }
        let core = &c.cores[1];
        let former: Vec<_> = core
            .hosts()
            .iter()
            .map(|host| {
                let pg = host.with_pg(|pg| {
                    pg::Pg::remains(
                        core.whoami,
                        host.pgid,
                        pg,
                        Default::default(),
                        types::Utime::ZERO,
                    )
                });
                crate::host::PgHost::new(core.clone(), pg, Default::default())
            })
            .collect();
        // Copies that were here before and were removed in two ways at once: one step of each is
        // left over.
        former.iter().for_each(|host| host.background(admission::work::Kind::RemoveObjects(16)));
        // Behind those: the queue is in order.
        assert_eq!(c.read("o1").await, "data");
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(c.objects().await, 3 * 40);
    });
}

#[test]
fn others_run_while_all_groups_are_looked_at() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        let turns = Rc::new(Cell::new(0));
        let other = tokio::task::spawn_local({
            let turns = turns.clone();
            async move {
                loop {
                    turns.set(turns.get() + 1);
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut seen = Vec::new();
        c.cores[0]
            .for_each_host(|host| {
                // Longer than it may compute at a time.
                let since = std::time::Instant::now();
                while since.elapsed().as_micros() < 100 {
                    std::hint::spin_loop();
                }
                seen.push((turns.get(), host.pgid));
            })
            .await;
        other.abort();
        assert!(seen.is_sorted_by(|a, b| a.0 < b.0), "nobody ran between two groups: {seen:?}");
        let groups: std::collections::BTreeSet<_> = seen.iter().map(|s| s.1.seed).collect();
        assert_eq!(groups, (0..PG_NUM).collect());
    });
}

#[test]
fn listings_page_through_all_objects() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        let mut names: Vec<String> = (0..25).map(|i| format!("n{i}")).collect();
        for n in &names {
            c.put(n, "").await;
        }
        let mut found = Vec::new();
        for seed in 0..PG_NUM {
            let pgid = PgId { pool: POOL, seed };
            let mut at = ObjectId::MIN;
            loop {
                let mut input = bytes::BytesMut::new();
                denc::Encode::encode(&at, &mut input, denc::Features::ALL);
                let op = Op::with_input(
                    OpCode::PGNLS,
                    OpArgs::Pgls { count: 2, start_epoch: 0 },
                    input.freeze(),
                );
                let (mut request, _) = c.message("", SnapId::NOSNAP, vec![op]);
                request.m.pgid.pgid = pgid;
                let to = c.map.mapping(pgid).primary.unwrap().osd;
                let reply = c.send(request, to).await.unwrap();
                assert!(reply.result >= 0);
                let page: types::PgNlsResponse =
                    denc::Decode::from_bytes(&reply.ops[0].outdata).unwrap();
                assert!(page.entries.len() <= 2);
                found.extend(
                    page.entries.iter().map(|e| String::from_utf8(e.name.to_vec()).unwrap()),
                );
                if reply.result == 1 {
                    break;
                }
                at = page.handle;
            }
        }
        names.sort();
        found.sort();
        assert_eq!(found, names);
    });
}

#[test]
fn clients_hold_back_while_replicas_are_too_few() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        // In a group that osd.2 leads with the others and without.
        let seed =
            |name: &str| ObjectId::new(POOL, "", name.to_owned(), "", SnapId::NOSNAP).hash % PG_NUM;
        let a = (0..).map(|i| format!("a{i}")).find(|name| seed(name) % 3 == 2).unwrap();
        let group = PgId { pool: POOL, seed: seed(&a) };
        c.put(&a, "1").await;
        c.next_map(|m| {
            m.up.remove(&0);
            m.up.remove(&1);
        });
        let state = |c: &Cluster| {
            let h = c.cores[2].host(group.into()).unwrap();
            h.with_pg(|p| p.state())
        };
        for _ in 0..1000 {
            if let Some(i) = c.mons.iter().position(|m| m.up_thru.replace(false)) {
                let epoch = c.map.epoch;
                c.next_map(|m| {
                    m.up_thru.insert(i as i32, epoch);
                });
            }
            tokio::task::yield_now().await;
        }
        assert!(state(&c).has(PgState::PEERED), "{:?}", state(&c));
        let sink = Rc::new(Patient::default());
        for _ in 0..3 {
            let (request, _) = c.message(&a, SnapId::NOSNAP, vec![write_op(0, "2")]);
            c.cores[2].handle_request(request, sink.clone(), None);
        }
        let told = sink.backoffs.borrow().clone();
        assert_eq!(told.len(), 1, "once is enough");
        assert_eq!(told[0].op, OsdBackoff::BLOCK);
        c.map.epoch += 1;
        let epoch = c.map.epoch;
        c.map.up.insert(0, epoch);
        c.map.up.insert(1, epoch);
        c.publish();
        c.settle().await;
        let told = sink.backoffs.borrow().clone();
        assert_eq!((told.len(), told[1].op, told[1].id), (2, OsdBackoff::UNBLOCK, told[0].id));
        assert_eq!(sink.replies.get(), 0, "the client sends them again");
        assert_eq!(c.read(&a).await, "1");
        // Until the client acknowledges the block, all that comes was sent before it was seen.
        let ask = |c: &mut Cluster, data| {
            let (request, _) = c.message(&a, SnapId::NOSNAP, vec![write_op(0, data)]);
            c.cores[2].handle_request(request, sink.clone(), None);
        };
        ask(&mut c, "2");
        c.settle().await;
        assert_eq!((sink.replies.get(), c.read(&a).await), (0, Bytes::from("1")));
        let ack = OsdBackoff { op: OsdBackoff::ACK_BLOCK, ..told[0].clone() };
        c.cores[2].backoff_acknowledged(PATIENT, &ack);
        ask(&mut c, "3");
        c.settle().await;
        assert_eq!((sink.replies.get(), c.read(&a).await), (1, Bytes::from("3")));
    });
}

#[test]
fn admin_commands_answer() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        c.put("a", "1").await;
        let changed = Rc::new(Cell::new(0));
        let count = changed.clone();
        let admin = crate::admin::Admin {
            whoami: OsdId(0),
            shard: c.cores[0].clone().into(),
            conf: Rc::default(),
            cluster: types::Fsid::default(),
            osd_fsid: types::Fsid::default(),
            changed: Box::new(move || count.set(count.get() + 1)),
            ping_times: Box::new(Default::default),
            requests: Box::new(Default::default),
            maps: Box::new(|| (Epoch(1), Epoch(1))),
            latest_map: Box::new(|| Box::pin(async { Ok(()) })),
            devices: vec![("sda".into(), "DISK_1".into())],
            flush_stats: Box::new(|| None),
            state: Box::new(|| "active"),
        };
        let ask = async |json: &str| {
            let (code, status, out) = admin.run(json).await;
            (code, status, serde_json::from_slice::<serde_json::Value>(&out).unwrap_or_default())
        };
        let (code, _, v) = ask(r#"{"prefix": "status"}"#).await;
        assert_eq!((code, &v["state"], &v["num_pgs"]), (0, &"active".into(), &PG_NUM.into()));
        assert_eq!(ask(r#"{"prefix": "version"}"#).await.2["release"], "squid");
        let (_, _, devices) = ask(r#"{"prefix": "list_devices"}"#).await;
        assert_eq!(devices, serde_json::json!([{"device": "/dev/sda", "device_id": "DISK_1"}]));
        let (_, _, history) = ask(r#"{"prefix": "dump_pgstate_history"}"#).await;
        let pgs = history["pgs"].as_array().unwrap();
        assert_eq!(pgs.len(), PG_NUM as usize);
        let states = |pg: &serde_json::Value| -> Vec<String> {
            let epochs = pg["history"].as_array().unwrap().iter();
            epochs
                .flat_map(|e| e["states"].as_array().unwrap())
                .map(|s| s["state"].as_str().unwrap().to_owned())
                .collect()
        };
        let led = pgs.iter().find(|p| p["currently"] == "Started/Primary/Active/Clean").unwrap();
        assert!(states(led).contains(&"Started/Primary/Peering/GetInfo".to_owned()), "{led}");
        let (_, _, stats) = ask(r#"{"prefix": "dump_pg_recovery_stats"}"#).await;
        let clean = |s: &&serde_json::Value| s["recovery_state"] == "Started/Primary/Active/Clean";
        assert!(
            stats.as_array().unwrap().iter().find(clean).unwrap()["enters"].as_u64() >= Some(1)
        );
        let (_, _, turns) = ask(r#"{"prefix": "dump_recovery_reservations"}"#).await;
        assert_eq!(turns["local_reservations"]["in_progress"], serde_json::json!([]));
        let (code, _, stray) = ask(r#"{"prefix": "scrub_purged_snaps"}"#).await;
        assert_eq!((code, &stray["stray"]), (0, &0.into()));
        assert_eq!(ask(r#"{"prefix": "cache drop"}"#).await.0, 0);
        assert_eq!(ask(r#"{"prefix": "get_latest_osdmap"}"#).await.0, 0);
        let (_, _, table) = ask(r#"{"prefix": "get_command_descriptions"}"#).await;
        assert_eq!(table.as_object().unwrap().len(), crate::admin::COMMANDS.len());
        let set = r#"{"prefix": "config set", "var": "osd_max_object_size", "val": ["1M"]}"#;
        assert_eq!(ask(set).await.0, 0);
        let (_, _, got) = ask(r#"{"prefix": "config get", "var": "osd_max_object_size"}"#).await;
        assert_eq!(got["osd_max_object_size"], "1048576");
        let inject = r#"{"prefix": "injectargs", "injected_args": ["--osd-max-pgls 7 --osd_max_object_size=2M"]}"#;
        assert_eq!(ask(inject).await.0, 0);
        assert_eq!(changed.get(), 2);
        let bad =
            r#"{"prefix": "injectargs", "injected_args": ["--osd_max_pgls 8 --no_such_option 1"]}"#;
        assert_eq!(ask(bad).await.0, Errno::ENOENT.as_result());
        let (_, _, got) = ask(r#"{"prefix": "config get", "var": "osd_max_pgls"}"#).await;
        assert_eq!(got["osd_max_pgls"], "7", "all or nothing");
        let (_, _, perf) = ask(r#"{"prefix": "perf dump"}"#).await;
        assert_eq!(perf["osd"]["numpg"], PG_NUM);
        let (_, _, pgs) = ask(r#"{"prefix": "list_pgs"}"#).await;
        assert_eq!(pgs.as_array().unwrap().len(), PG_NUM as usize);
        assert_eq!(ask(r#"{"prefix": "query", "pgid": "1.0"}"#).await.0, 0);
        assert_eq!(ask(r#"{"prefix": "query", "pgid": "9.0"}"#).await.0, Errno::ENOENT.as_result());
        assert_eq!(ask(r#"{"prefix": "dump_ops_in_flight"}"#).await.2["num_ops"], 0);
        assert_eq!(ask(r#"{"prefix": "dump_historic_ops"}"#).await.0, 0);
        assert_eq!(ask(r#"{"prefix": "no such"}"#).await.0, Errno::EINVAL.as_result());
        assert_eq!(ask("not json").await.0, Errno::EINVAL.as_result());
    });
}

#[test]
fn maps_are_needed_since_groups_were_clean() {
    run(async || {
        let mut c = Cluster::new();
        c.publish();
        c.settle().await;
        c.put("a", "one").await;
        for core in &c.cores {
            assert_eq!(core.last_epoch_clean().1, Epoch(c.map.epoch));
        }
        // Nothing changes for the groups that are clean, and all maps before this one may go.
        let clean = c.map.epoch;
        c.down.borrow_mut().push(OsdId(0));
        c.next_map(|m| {
            m.up.remove(&0);
        });
        c.settle().await;
        for _ in 0..5 {
            c.next_map(|_| {});
        }
        let needed: Vec<Epoch> = c.live().map(|core| core.last_epoch_clean().1).collect();
        assert!(
            needed.iter().all(|e| e.0 <= clean && e.0 > 0),
            "{needed:?} of {}, clean in {clean}",
            c.map.epoch
        );
    });
}
