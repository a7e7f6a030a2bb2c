//! Random operations. The same seed gives the same sequence, whatever the clusters answer: what
//! depends on a cluster (snapshot ids, versions, pool numbers) is named by a stand-in that the
//! driver resolves.

use bytes::{Bytes, BytesMut};
use client::Operation;
use denc::{Encode, Features};
use messages::{Op, OpArgs};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use types::rados::{OpCode, OpFlags, OsdFlags, copy_from};
use types::{SnapContext, SnapId};

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// In the pool with snapshots of its own, or in the one whose snapshots clients manage.
    pub pool_snaps: bool,
    /// Its namespace.
    pub namespace: String,
    /// Its locator key.
    pub key: String,
    /// Its name.
    pub name: String,
}

/// A version, relative to the one that the cluster reported last for the object.
#[derive(Clone, Copy, Debug)]
pub enum VersionIs {
    /// 0, which stands for any or is refused.
    Zero,
    /// The last one plus this.
    LastPlus(i64),
}

/// One operation of a request.
#[derive(Clone, Debug)]
pub enum Part {
    /// The same on both clusters.
    Same(Op),
    /// Fails unless the object has this version.
    AssertVersion(VersionIs),
    /// Copies an object; the source's locator has the pool's number.
    CopyFrom {
        /// `COPY_FROM` or `COPY_FROM2`.
        code: OpCode,
        /// Source.
        from: Place,
        /// Snapshot of the source.
        snapid: SnapId,
        /// Version that the source must have.
        version: VersionIs,
        /// `CEPH_OSD_COPY_FROM_FLAG_*`.
        flags: u8,
        /// Number and size of the last truncation, with the flag that says so.
        truncate: Option<(u32, u64)>,
        /// Flags of the operation.
        op_flags: OpFlags,
    },
}

/// One request.
#[derive(Clone, Debug)]
pub struct Step {
    /// On what.
    pub place: Place,
    /// Snapshots to preserve.
    pub snapc: SnapContext,
    /// Snapshot to read.
    pub read_at: SnapId,
    /// What to do.
    pub parts: Vec<Part>,
    /// Flags besides read and write.
    pub flags: OsdFlags,
}

impl Step {
    /// Leaves out what OSDs of release 16.2 do in erasure-coded pools only:
    ///
    /// * A request that shortens an object and makes it longer fails an assertion
    ///   (src/osd/ECTransaction.cc, `get_write_plan`): only the first change of data stays.
    /// * A request that reads data runs twice and answers other operations twice
    ///   (src/osd/PrimaryLogPG.cc, `complete_read_ctx`): such a read stays alone.
    /// * A sparse read of nothing has an answer that its clients cannot decode.
    /// * A request that makes an object finds the attributes of the one that is not there.
    /// * Nothing written over an empty object is a change.
    pub fn for_shards(&mut self) {
        let code = |part: &Part| match part {
            Part::Same(op) => Some(op.code),
            _ => None,
        };
        self.parts.retain(|part| match part {
            Part::Same(op) if op.code == OpCode::WRITEFULL => !op.indata.is_empty(),
            _ => code(part) != Some(OpCode::SPARSE_READ),
        });
        let reads = |part: &Part| {
            matches!(code(part), Some(OpCode::READ | OpCode::CHECKSUM | OpCode::CMPEXT))
        };
        if let Some(at) = self.parts.iter().position(reads) {
            self.parts = vec![self.parts.swap_remove(at)];
        }
        if self.parts.len() > 1 {
            self.parts.retain(|part| code(part) != Some(OpCode::GETXATTRS));
        }
        let mut changed = false;
        self.parts.retain(|part| {
            let changes = match part {
                Part::Same(op) => {
                    op.code.is_write() && op.code.is_data() || op.code == OpCode::CALL
                }
                Part::CopyFrom { .. } => true,
                Part::AssertVersion(_) => false,
            };
            !(changes && std::mem::replace(&mut changed, true))
        });
        if self.parts.is_empty() {
            self.parts.push(Part::Same(Op::new(OpCode::STAT, OpArgs::extent(0, 0))));
        }
    }
}

/// What to do next.
#[derive(Clone, Debug)]
pub enum Action {
    /// A request.
    Step(Box<Step>),
    /// Takes a snapshot and tells the generator its id.
    MakeSnapshot {
        /// Of the pool with snapshots of its own.
        pool_snaps: bool,
    },
    /// Removes a snapshot of the pool whose clients manage them, after which it is trimmed.
    RemoveSnapshot {
        /// Which.
        snapid: SnapId,
    },
    /// Lists a pool page by page.
    List {
        /// Which pool.
        pool_snaps: bool,
        /// Which namespace; `None` for all.
        namespace: Option<String>,
        /// Entries of a page.
        page: u64,
        /// Only objects with this attribute and value.
        filter: Option<(String, Bytes)>,
    },
}

/// Makes actions.
pub struct Generator {
    rng: SmallRng,
    /// Snapshots that exist, newest first, of the pool whose clients manage them and of the other.
    snaps: [Vec<SnapId>; 2],
    /// Newest snapshot ever.
    newest: [SnapId; 2],
}

/// Few objects, so that operations meet.
const OBJECTS: u32 = 24;
/// Largest offset of data operations.
const SIZE: u64 = 300_000;
/// `osd_max_object_size`.
const MAX_OBJECT: u64 = 128 << 20;

impl Generator {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Generator {
            rng: SmallRng::seed_from_u64(seed),
            snaps: Default::default(),
            newest: Default::default(),
        }
    }

    /// A snapshot was taken.
    pub fn snapshot_made(&mut self, pool_snaps: bool, snapid: SnapId) {
        self.snaps[usize::from(pool_snaps)].insert(0, snapid);
        self.newest[usize::from(pool_snaps)] = snapid;
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.random_range(0..n)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of a thousand times so many.
    fn rarely(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn random(&mut self, len: usize) -> Bytes {
        let mut v = vec![0; len];
        self.rng.fill_bytes(&mut v);
        v.into()
    }

    fn data(&mut self, max: u64) -> Bytes {
        let len = match self.below(4) {
            0 => self.below(16),
            1 => 4096,
            _ => self.below(max),
        };
        // Long runs of zeros are common in real data, and holes must not be confused with them.
        if self.chance(20) {
            return Bytes::from(vec![0; len as usize]);
        }
        self.random(len as usize)
    }

    fn offset(&mut self) -> u64 {
        match self.below(4) {
            0 => 0,
            1 => self.below(SIZE) & !4095,
            _ => self.below(SIZE),
        }
    }

    fn place(&mut self, pool_snaps: bool) -> Place {
        Place {
            pool_snaps,
            namespace: if self.chance(20) { "space".to_string() } else { String::new() },
            key: if self.chance(5) { "locator".to_string() } else { String::new() },
            name: format!("object-{}", self.below(u64::from(OBJECTS))),
        }
    }

    fn attr(&mut self) -> String {
        format!("attr{}", self.below(4))
    }

    fn omap_key(&mut self) -> Bytes {
        Bytes::from(format!("key{:02}", self.below(30)))
    }

    fn small(&mut self) -> Bytes {
        let n = self.below(40) as usize;
        match self.below(3) {
            0 => Bytes::from(self.below(100).to_string()),
            _ => self.random(n),
        }
    }

    /// What to do next.
    pub fn action(&mut self) -> Action {
        let pool_snaps = self.chance(20);
        let which = usize::from(pool_snaps);
        if self.rarely(if pool_snaps { 25 } else { 12 }) && self.snaps[which].len() < 8 {
            return Action::MakeSnapshot { pool_snaps };
        }
        // Not in the pool with snapshots of its own: 16.2 never trims what `rmsnap` removes there
        // (its monitor does not queue it), and goes on serving the snapshot.
        if self.rarely(2) && !pool_snaps && !self.snaps[which].is_empty() {
            let at = self.below(self.snaps[which].len() as u64) as usize;
            return Action::RemoveSnapshot { snapid: self.snaps[which].remove(at) };
        }
        if self.rarely(6) {
            let namespace = match self.below(3) {
                0 => None,
                1 => Some(String::new()),
                _ => Some("space".to_string()),
            };
            let page = 1 + self.below(20);
            let filter = if self.chance(20) {
                Some((format!("_{}", self.attr()), Bytes::from(self.below(100).to_string())))
            } else {
                None
            };
            return Action::List { pool_snaps, namespace, page, filter };
        }
        Action::Step(Box::new(if self.rarely(15) {
            self.at_a_limit(pool_snaps)
        } else {
            self.step(pool_snaps)
        }))
    }

    fn step(&mut self, pool_snaps: bool) -> Step {
        let reading_snap = self.chance(10) && !self.snaps[usize::from(pool_snaps)].is_empty();
        if self.chance(3) {
            // What snapshots an object has is asked of a snapshot id of its own.
            let mut parts = vec![Op::new(OpCode::LIST_SNAPS, OpArgs::extent(0, 0))];
            if self.chance(5) {
                parts = self.read(Operation::new()).ops;
            }
            return self.finish(pool_snaps, parts, SnapId::SNAPDIR);
        }
        let many = if self.chance(75) { 1 } else { 1 + self.below(4) };
        let mut operation = Operation::new();
        let mut read_at = if reading_snap { self.some_snap(pool_snaps) } else { SnapId::NOSNAP };
        if reading_snap || self.chance(35) {
            for _ in 0..many {
                operation =
                    if self.chance(5) { self.guard(operation) } else { self.read(operation) };
            }
        } else {
            if self.rarely(5) {
                read_at = SnapId(3);
            }
            for _ in 0..many {
                operation = match self.below(100) {
                    0..15 => self.guard(operation),
                    15..18 => self.read_in_a_write(operation),
                    _ => self.write_once(operation, pool_snaps),
                };
            }
        }
        self.finish(pool_snaps, operation.ops, read_at)
    }

    /// Adds what the driver resolves, and flags.
    fn finish(&mut self, pool_snaps: bool, ops: Vec<Op>, read_at: SnapId) -> Step {
        let place = self.place(pool_snaps);
        let writes = ops.iter().any(|o| o.code.is_write());
        let mut parts: Vec<Part> = ops
            .into_iter()
            .map(|mut op| {
                if self.chance(4) {
                    op.flags |= OpFlags::FAILOK;
                }
                if self.chance(2) {
                    op.flags |= self.pick(&[
                        OpFlags::FADVISE_DONTNEED,
                        OpFlags::FADVISE_RANDOM,
                        OpFlags::FADVISE_NOCACHE,
                    ]);
                }
                Part::Same(op)
            })
            .collect();
        if self.chance(3) {
            let at = self.below(parts.len() as u64 + 1) as usize;
            let version = self.version();
            parts.insert(at, Part::AssertVersion(version));
        }
        if writes && self.chance(4) {
            let mut copy = self.copy(pool_snaps);
            // A copy of a snapshot of itself waits for itself on a 16.2 OSD if the head still is
            // that snapshot.
            if let Part::CopyFrom { from, snapid, .. } = &mut copy
                && *from == place
            {
                *snapid = SnapId::NOSNAP;
            }
            // Alone. A 16.2 OSD executes the request a second time when it has the source: it
            // asserts when it finds the output of the first time or copies over what the request
            // made, and uses freed memory when a comparison comes out differently.
            parts = vec![copy];
        }
        let mut flags = OsdFlags::default();
        for (per_mille, flag) in [
            (80, OsdFlags::RETURNVEC),
            (10, OsdFlags::ORDERSNAP),
            (10, OsdFlags::RWORDERED),
            (20, OsdFlags::ENFORCE_SNAPC),
            (10, OsdFlags::BALANCE_READS),
            (10, OsdFlags::FULL_TRY),
        ] {
            if self.rarely(per_mille) {
                flags |= flag;
            }
        }
        // What a write returns is limited to 64 bytes. A 16.2 OSD refuses more with EOVERFLOW, but
        // goes on as if it had made the change.
        let long = |p: &Part| match p {
            Part::Same(op) => {
                op.code.is_read()
                    && !matches!(
                        op.code,
                        OpCode::STAT | OpCode::CMPEXT | OpCode::CMPXATTR | OpCode::OMAP_CMP
                    )
            }
            _ => false,
        };
        let changes = parts.iter().any(|p| !matches!(p, Part::Same(op) if op.code.is_read()));
        if changes && parts.iter().any(long) {
            flags = OsdFlags(flags.0 & !OsdFlags::RETURNVEC.0);
        }
        if read_at != SnapId::NOSNAP && self.chance(10) {
            flags |= OsdFlags::MAP_SNAP_CLONE;
        }
        let snapc = self.snap_context(pool_snaps);
        Step { place, snapc, read_at, parts, flags }
    }

    fn snap_context(&mut self, pool_snaps: bool) -> SnapContext {
        if pool_snaps && !self.chance(2) {
            return SnapContext::default();
        }
        let which = usize::from(pool_snaps);
        let (seq, mut snaps) = (self.newest[which], self.snaps[which].clone());
        match self.below(200) {
            // A client that has not heard of the newest snapshots.
            0..8 if snaps.len() > 1 => {
                snaps.remove(0);
                SnapContext { seq: snaps[0], snaps }
            }
            8..20 => SnapContext::default(),
            // Not descending.
            20 if snaps.len() > 1 => {
                snaps.reverse();
                SnapContext { seq, snaps }
            }
            _ => SnapContext { seq, snaps },
        }
    }

    fn version(&mut self) -> VersionIs {
        match self.below(10) {
            0 => VersionIs::Zero,
            1 => VersionIs::LastPlus(1),
            2 => VersionIs::LastPlus(-1),
            _ => VersionIs::LastPlus(0),
        }
    }

    fn copy(&mut self, pool_snaps: bool) -> Part {
        let snapid = if self.chance(20) { self.some_snap(pool_snaps) } else { SnapId::NOSNAP };
        let version = if self.chance(70) { VersionIs::Zero } else { self.version() };
        let code = if self.chance(50) { OpCode::COPY_FROM } else { OpCode::COPY_FROM2 };
        let mut flags = 0;
        if self.chance(10) {
            flags |= copy_from::RWORDERED;
        }
        if self.chance(5) {
            flags |= copy_from::IGNORE_CACHE | copy_from::IGNORE_OVERLAY;
        }
        let truncate = (code == OpCode::COPY_FROM2 && self.chance(20))
            .then(|| (1 + self.below(3) as u32, self.below(SIZE)));
        if truncate.is_some() {
            flags |= copy_from::TRUNCATE_SEQ;
        }
        if self.chance(2) {
            flags |= 128;
        }
        let op_flags = if self.chance(5) { OpFlags::FAILOK } else { OpFlags::default() };
        Part::CopyFrom {
            code,
            from: self.place(pool_snaps),
            snapid,
            version,
            flags,
            truncate,
            op_flags,
        }
    }

    /// A request at the limits of sizes.
    fn at_a_limit(&mut self, pool_snaps: bool) -> Step {
        let mut place = self.place(pool_snaps);
        let o = Operation::new();
        let edge = |g: &mut Self| g.pick(&[0u64, 1, 2]);
        let operation = match self.below(12) {
            0 => {
                let n = 2046 + edge(self) + edge(self);
                place.name = "n".repeat(n as usize);
                self.write(o, pool_snaps)
            }
            1 => {
                place.namespace = "s".repeat((255 + edge(self)) as usize);
                o.create(false).remove()
            }
            2 => {
                place.key = "k".repeat((2047 + edge(self)) as usize);
                o.create(false).remove()
            }
            3 => {
                let name = "a".repeat((99 + edge(self)) as usize);
                let value = self.small();
                if self.chance(60) { o.set_xattr(&name, &value) } else { o.get_xattr(&name) }
            }
            4 => {
                let len = self.pick(&[65_535usize, 65_536, 65_537, 200_000]);
                let value = self.random(len);
                o.set_xattr("large", &value)
            }
            5 => {
                let len = self.pick(&[9u64, 10, 11]);
                let data = self.random(len as usize);
                place.name = "large".into();
                o.write(MAX_OBJECT - 10, data)
            }
            6 => {
                place.name = "large".into();
                o.truncate(MAX_OBJECT - 1 + edge(self))
            }
            7 => {
                place.name = "large".into();
                let (offset, len) = (MAX_OBJECT - 2 + edge(self), 1 + edge(self));
                let offset = if self.chance(20) { u64::MAX - 5 } else { offset };
                let len = if self.chance(20) { u64::MAX - edge(self) } else { len };
                o.zero(offset, len)
            }
            8 => {
                place.name = "large".into();
                o.stat()
            }
            9 => {
                place.name = "large".into();
                let data = self.random(20);
                if self.chance(50) {
                    o.append(data)
                } else {
                    o.write_same(MAX_OBJECT - 20 + edge(self), 20, data.slice(..1))
                }
            }
            10 => {
                place.name = "large".into();
                o.read(MAX_OBJECT - 20, 30)
            }
            _ => {
                let huge = [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 40];
                let (offset, len) = (self.pick(&huge), self.pick(&[0, 1, u64::MAX]));
                // No writesame: a 16.2 OSD repeats the pattern in memory before it looks at the
                // limit.
                match self.below(4) {
                    0 => o.read(offset, len),
                    1 => o.truncate(offset),
                    2 => o.write(offset, Bytes::from_static(b"far away")),
                    _ => o.sparse_read(offset, len),
                }
            }
        };
        let snapc = self.snap_context(pool_snaps);
        let parts = operation.ops.into_iter().map(Part::Same).collect();
        Step { place, snapc, read_at: SnapId::NOSNAP, parts, flags: OsdFlags::default() }
    }

    /// An operation that fails the whole request if the object is not as expected.
    fn guard(&mut self, o: Operation) -> Operation {
        match self.below(5) {
            0 => {
                let (attr, value) = (self.attr(), self.small());
                // There are comparisons 1 to 6, and modes 1 and 2.
                let op = if self.chance(95) { 1 + self.below(6) } else { self.pick(&[0, 7]) };
                let mode = if self.chance(95) { 1 + self.below(2) } else { self.pick(&[0, 3]) };
                let value = if mode == 2 {
                    Bytes::copy_from_slice(&self.below(100).to_le_bytes())
                } else {
                    value
                };
                let mut compare = Op::xattr(OpCode::CMPXATTR, attr.as_bytes(), &value);
                if let OpArgs::Xattr { cmp_op, cmp_mode, .. } = &mut compare.args {
                    (*cmp_op, *cmp_mode) = (op as u8, mode as u8);
                }
                o.op(compare)
            }
            1 => {
                let (offset, data) = (self.offset(), self.data(64));
                o.compare(offset, data)
            }
            2 => {
                let mut m: BTreeMap<Bytes, (Bytes, i32)> = BTreeMap::new();
                for _ in 0..1 + self.below(2) {
                    let op = if self.chance(95) {
                        self.pick(&[1, 3, 5])
                    } else {
                        self.pick(&[0, 2, 4, 6, 7])
                    };
                    m.insert(self.omap_key(), (self.small(), op));
                }
                let mut input = BytesMut::new();
                m.encode(&mut input, Features::ALL);
                let op = self.omap_op(OpCode::OMAP_CMP, input.freeze());
                o.op(op)
            }
            3 => {
                // A hole, or what lies behind the end, equals zeros.
                let (offset, len) = (self.offset(), self.below(64));
                o.compare(offset, Bytes::from(vec![0; len as usize]))
            }
            _ => o.stat(),
        }
    }

    /// An omap operation, its input sometimes cut off.
    fn omap_op(&mut self, code: OpCode, mut input: Bytes) -> Op {
        if self.chance(1) && !input.is_empty() {
            let len = self.below(input.len() as u64) as usize;
            input.truncate(len);
        }
        Op::with_input(code, OpArgs::extent(0, input.len() as u64), input)
    }

    fn truncation(&mut self, op: Operation) -> Operation {
        let mut op = op;
        if self.chance(4)
            && let Some(last) = op.ops.last_mut()
            && let OpArgs::Extent { truncate_size, truncate_seq, .. } = &mut last.args
        {
            *truncate_seq = self.rng.random_range(1..4);
            *truncate_size = self.rng.random_range(0..SIZE);
        }
        op
    }

    fn write(&mut self, o: Operation, pool_snaps: bool) -> Operation {
        match self.below(28) {
            0..=4 => {
                let (offset, data) = (self.offset(), self.data(70_000));
                let o = o.write(offset, data);
                self.truncation(o)
            }
            5 | 6 => {
                let data = self.data(200_000);
                o.write_full(data)
            }
            7 | 8 => {
                let data = self.data(20_000);
                let o = o.append(data);
                self.truncation(o)
            }
            9 => {
                // Of at least a byte: for none, a 16.2 OSD asserts.
                let (offset, len) = (self.offset(), 1 + self.below(100_000));
                o.zero(offset, len)
            }
            10 | 11 => {
                let size = self.below(SIZE);
                let o = o.truncate(size);
                if self.chance(5) {
                    let args = OpArgs::Extent {
                        offset: size,
                        length: 0,
                        truncate_size: size,
                        truncate_seq: 1 + self.below(4) as u32,
                    };
                    let code = self.pick(&[OpCode::TRUNCATE, OpCode::TRIMTRUNC]);
                    return o.op(Op::new(code, args));
                }
                o
            }
            12 => {
                let pattern = Bytes::from(vec![self.below(256) as u8; 1 + self.below(64) as usize]);
                let times = self.below(40);
                let odd = u64::from(self.chance(10));
                let offset = self.offset();
                o.write_same(offset, pattern.len() as u64 * times + odd, pattern)
            }
            13 => {
                let exclusive = self.chance(50);
                o.create(exclusive)
            }
            14 => o.remove(),
            15 | 16 => {
                let (attr, value) = (self.attr(), self.small());
                o.set_xattr(&attr, &value)
            }
            17 => {
                let attr = self.attr();
                o.remove_xattr(&attr)
            }
            18 | 19 => {
                let mut m = BTreeMap::new();
                for _ in 0..self.below(6) {
                    m.insert(self.omap_key(), self.small());
                }
                let mut input = BytesMut::new();
                m.encode(&mut input, Features::ALL);
                let op = self.omap_op(OpCode::OMAPSETVALS, input.freeze());
                o.op(op)
            }
            20 => {
                let mut s = BTreeSet::new();
                for _ in 0..self.below(4) {
                    s.insert(self.omap_key());
                }
                let mut input = BytesMut::new();
                s.encode(&mut input, Features::ALL);
                let op = self.omap_op(OpCode::OMAPRMKEYS, input.freeze());
                o.op(op)
            }
            21 => match self.below(3) {
                0 => o.omap_clear(),
                1 => {
                    let (a, b) = (self.omap_key(), self.omap_key());
                    let mut input = BytesMut::new();
                    a.encode(&mut input, Features::ALL);
                    b.encode(&mut input, Features::ALL);
                    let op = self.omap_op(OpCode::OMAPRMKEYRANGE, input.freeze());
                    o.op(op)
                }
                _ => {
                    let header = self.small();
                    o.omap_set_header(header)
                }
            },
            22 | 23 => {
                let snap = self.some_snap(pool_snaps);
                o.rollback(snap)
            }
            24 => {
                let (object, write, flags) =
                    (self.below(1 << 24), self.below(1 << 20), self.below(2048) as u32);
                o.alloc_hint(object, write, flags)
            }
            25 => {
                let (class, method) = (self.pick(&["nosuchclass", ""]), "nosuchmethod");
                match Op::call(class, method, b"input") {
                    Some(op) if self.chance(30) => o.op(op),
                    _ => o.create(false),
                }
            }
            26 => {
                // The length that the arguments say is not that of the input.
                if self.chance(90) {
                    return o.create(false);
                }
                let data = self.random(10);
                let code = self.pick(&[OpCode::WRITE, OpCode::WRITEFULL, OpCode::APPEND]);
                o.op(Op::with_input(code, OpArgs::extent(0, 11), data))
            }
            _ => {
                let (offset, data) = (self.offset(), self.data(3000));
                o.compare(offset, data).with_flags(OpFlags::FAILOK)
            }
        }
    }

    fn some_snap(&mut self, pool_snaps: bool) -> SnapId {
        let snaps = &self.snaps[usize::from(pool_snaps)];
        if snaps.is_empty() {
            return SnapId(1);
        }
        let at = self.rng.random_range(0..snaps.len());
        snaps[at]
    }

    /// A request replaces its object at most once: a 16.2 OSD forgets that it has to remove the old
    /// object when one that the same request made is removed again, and the old content shows
    /// through.
    fn write_once(&mut self, o: Operation, pool_snaps: bool) -> Operation {
        let before = o.ops.len();
        let replaces = |op: &Op| matches!(op.code, OpCode::DELETE | OpCode::ROLLBACK);
        let replaced = o.ops.iter().any(replaces);
        // Nor does it remove ranges of rows that the same request brought: 16.2 looks for them in
        // its database only, which has not got them yet.
        let ranges = |op: &Op| matches!(op.code, OpCode::OMAPRMKEYRANGE | OpCode::OMAPCLEAR);
        let brought =
            o.ops.iter().any(|op| matches!(op.code, OpCode::ROLLBACK | OpCode::OMAPSETVALS));
        let mut o = self.write(o, pool_snaps);
        if o.ops[before..].iter().any(|op| (replaced && replaces(op)) || (brought && ranges(op))) {
            o.ops.truncate(before);
            return o.stat();
        }
        o
    }

    /// Listing keys of an object that the same request creates takes a 16.2 OSD down (it asserts
    /// that the store has the object).
    fn read_in_a_write(&mut self, o: Operation) -> Operation {
        let before = o.ops.len();
        let mut o = self.read(o);
        if o.ops[before..].iter().any(|op| op.code == OpCode::OMAPGETKEYS) {
            o.ops.truncate(before);
            return o.stat();
        }
        o
    }

    fn read(&mut self, o: Operation) -> Operation {
        match self.below(19) {
            0..=3 => {
                let (offset, len) = (self.offset(), self.below(SIZE));
                let o = o.read(offset, len);
                self.truncation(o)
            }
            4 => o.read(0, 0),
            5 => o.sparse_read(0, 2 * SIZE),
            6 => {
                let (offset, len) = (self.offset(), self.below(SIZE));
                let o = o.sparse_read(offset, len);
                self.truncation(o)
            }
            7 => o.stat(),
            8 => {
                let attr = self.attr();
                o.get_xattr(&attr)
            }
            9 => o.get_xattrs(),
            10 => {
                let mut input = BytesMut::new();
                (self.omap_key(), self.below(20)).encode(&mut input, Features::ALL);
                let op = self.omap_op(OpCode::OMAPGETKEYS, input.freeze());
                o.op(op)
            }
            11 => {
                let prefix: &[u8] = if self.chance(30) { b"key1" } else { b"" };
                let mut input = BytesMut::new();
                (self.omap_key(), self.below(20), Bytes::from_static(prefix))
                    .encode(&mut input, Features::ALL);
                let op = self.omap_op(OpCode::OMAPGETVALS, input.freeze());
                o.op(op)
            }
            12 => {
                let keys: BTreeSet<Bytes> = (0..self.below(5)).map(|_| self.omap_key()).collect();
                let mut input = BytesMut::new();
                keys.encode(&mut input, Features::ALL);
                let op = self.omap_op(OpCode::OMAPGETVALSBYKEYS, input.freeze());
                o.op(op)
            }
            13 => o.omap_header(),
            14 | 15 => {
                let (kind, init): (u8, Bytes) = match self.below(4) {
                    0 => (0, Bytes::copy_from_slice(&7u32.to_le_bytes())),
                    1 => (1, Bytes::copy_from_slice(&7u64.to_le_bytes())),
                    _ => (2, Bytes::copy_from_slice(&u32::MAX.to_le_bytes())),
                };
                let args = if self.chance(50) {
                    OpArgs::Checksum { offset: 0, length: 0, chunk_size: 0, kind }
                } else {
                    let chunk_size = self.pick(&[0, 1000, 4096]);
                    let length = match chunk_size {
                        0 => self.below(SIZE),
                        c => u64::from(c) * self.below(20) + u64::from(self.chance(5)),
                    };
                    OpArgs::Checksum { offset: self.offset(), length, chunk_size, kind }
                };
                o.op(Op::with_input(OpCode::CHECKSUM, args, init))
            }
            16 => {
                // Which ranges are allocated is the store's affair; that they cover the data is
                // not.
                let (offset, len) = (self.offset(), 1 + self.below(SIZE));
                o.read(offset, len).op(Op::new(OpCode::MAPEXT, OpArgs::extent(offset, len)))
            }
            17 => {
                if self.chance(50) {
                    return o.op(Op::new(OpCode::LIST_WATCHERS, OpArgs::extent(0, 0)));
                }
                match Op::call("nosuchclass", "nosuchmethod", b"") {
                    Some(op) if self.chance(30) => o.op(op),
                    _ => o.stat(),
                }
            }
            _ => {
                let (offset, len) = (self.offset(), self.below(SIZE));
                o.op(Op::new(OpCode::SYNC_READ, OpArgs::extent(offset, len)))
            }
        }
    }
}
