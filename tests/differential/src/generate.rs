//! Random operations. The same seed gives the same sequence.

use bytes::{Bytes, BytesMut};
use client::Operation;
use denc::{Encode, Features};
use messages::{Op, OpArgs};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use types::rados::{OpCode, OpFlags};
use types::{SnapContext, SnapId};

/// One request.
#[derive(Clone, Debug)]
pub struct Step {
    /// Object name.
    pub object: String,
    /// Its namespace.
    pub namespace: String,
    /// Its locator key.
    pub key: String,
    /// Snapshots to preserve.
    pub snapc: SnapContext,
    /// Snapshot to read.
    pub read_at: SnapId,
    /// What to do.
    pub operation: Operation,
    /// Copy this object as the last part of the operation. Its locator names the pool, which has another
    /// number in each cluster.
    pub copy_source: Option<String>,
}

/// Makes steps.
pub struct Generator {
    rng: SmallRng,
    snaps: Vec<u64>,
    last_snap: u64,
    copy_source: Option<String>,
}

/// Few objects, so that operations meet.
const OBJECTS: u32 = 24;
/// Largest offset of data operations.
const SIZE: u64 = 300_000;

impl Generator {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Generator { rng: SmallRng::seed_from_u64(seed), snaps: Vec::new(), last_snap: 0, copy_source: None }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.random_range(0..n)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
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
        let mut v = vec![0; len as usize];
        self.rng.fill_bytes(&mut v);
        v.into()
    }

    fn offset(&mut self) -> u64 {
        match self.below(4) {
            0 => 0,
            1 => self.below(SIZE) & !4095,
            _ => self.below(SIZE),
        }
    }

    fn name(&mut self) -> String {
        format!("object-{}", self.below(u64::from(OBJECTS)))
    }

    fn attr(&mut self) -> String {
        format!("attr{}", self.below(4))
    }

    fn omap_key(&mut self) -> Bytes {
        Bytes::from(format!("key{:02}", self.below(30)))
    }

    fn small(&mut self) -> Bytes {
        let n = self.below(40);
        match self.below(3) {
            0 => Bytes::from(self.below(100).to_string()),
            _ => {
                let mut v = vec![0; n as usize];
                self.rng.fill_bytes(&mut v);
                v.into()
            }
        }
    }

    /// The next request.
    pub fn step(&mut self) -> Step {
        if self.chance(2) {
            self.last_snap += 1 + self.below(3);
            self.snaps.insert(0, self.last_snap);
            self.snaps.truncate(8);
        }
        let reading_snap = self.chance(10) && !self.snaps.is_empty();
        let mut operation = Operation::new();
        self.copy_source = None;
        if self.chance(3) {
            // What snapshots an object has is asked of a snapshot id of its own.
            let operation = operation.op(Op::new(OpCode::LIST_SNAPS, OpArgs::extent(0, 0)));
            return self.finish(operation, SnapId::SNAPDIR);
        }
        let parts = if self.chance(75) { 1 } else { 1 + self.below(4) };
        if reading_snap || self.chance(35) {
            for _ in 0..parts {
                operation = self.read(operation);
            }
        } else {
            for _ in 0..parts {
                operation = if self.chance(15) { self.guard(operation) } else { self.write(operation) };
            }
        }
        let read_at = if reading_snap { self.some_snap() } else { SnapId::NOSNAP };
        self.finish(operation, read_at)
    }

    fn finish(&mut self, operation: Operation, read_at: SnapId) -> Step {
        let namespace = if self.chance(20) { "space".to_string() } else { String::new() };
        let key = if self.chance(5) { "locator".to_string() } else { String::new() };
        let snapc = if self.chance(90) {
            SnapContext { seq: SnapId(self.last_snap), snaps: self.snaps.iter().map(|s| SnapId(*s)).collect() }
        } else {
            SnapContext::default()
        };
        Step { object: self.name(), namespace, key, snapc, read_at, operation, copy_source: self.copy_source.take() }
    }

    /// An operation that fails the whole request if the object is not as expected.
    fn guard(&mut self, o: Operation) -> Operation {
        match self.below(4) {
            0 => {
                let (attr, value) = (self.attr(), self.small());
                let (op, mode) = (1 + self.below(6) as u8, 1 + self.below(2) as u8);
                let value = if mode == 2 { Bytes::copy_from_slice(&self.below(100).to_le_bytes()) } else { value };
                o.compare_xattr(&attr, &value, op, mode)
            }
            1 => {
                let (offset, data) = (self.offset(), self.data(64));
                o.compare(offset, data)
            }
            2 => {
                let mut m: BTreeMap<Bytes, (Bytes, i32)> = BTreeMap::new();
                let op = [1, 3, 5][self.below(3) as usize];
                m.insert(self.omap_key(), (self.small(), op));
                let mut input = BytesMut::new();
                m.encode(&mut input, Features::ALL);
                let input = input.freeze();
                o.op(Op::with_input(OpCode::OMAP_CMP, OpArgs::extent(0, input.len() as u64), input))
            }
            _ => o.stat(),
        }
    }

    fn write(&mut self, o: Operation) -> Operation {
        match self.below(26) {
            0..=4 => {
                let (offset, data) = (self.offset(), self.data(70_000));
                o.write(offset, data)
            }
            5 | 6 => {
                let data = self.data(200_000);
                o.write_full(data)
            }
            7 | 8 => {
                let data = self.data(20_000);
                o.append(data)
            }
            9 => {
                let (offset, len) = (self.offset(), self.below(100_000));
                o.zero(offset, len)
            }
            10 | 11 => {
                let size = self.below(SIZE);
                o.truncate(size)
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
                o.omap_set(&m)
            }
            20 => {
                let mut s = BTreeSet::new();
                for _ in 0..self.below(4) {
                    s.insert(self.omap_key());
                }
                o.omap_remove(&s)
            }
            21 => match self.below(3) {
                0 => o.omap_clear(),
                1 => {
                    let (a, b) = (self.omap_key(), self.omap_key());
                    let mut input = BytesMut::new();
                    a.encode(&mut input, Features::ALL);
                    b.encode(&mut input, Features::ALL);
                    let input = input.freeze();
                    o.op(Op::with_input(OpCode::OMAPRMKEYRANGE, OpArgs::extent(0, input.len() as u64), input))
                }
                _ => {
                    let header = self.small();
                    o.omap_set_header(header)
                }
            },
            22 => {
                let snap = self.some_snap();
                o.rollback(snap)
            }
            23 => o.alloc_hint(4 << 20, 4096, 1),
            24 => {
                self.copy_source = Some(self.name());
                o
            }
            _ => {
                let (offset, data) = (self.offset(), self.data(3000));
                let failok = Op { flags: OpFlags::FAILOK, ..Op::with_input(OpCode::CMPEXT, OpArgs::extent(offset, data.len() as u64), data) };
                o.op(failok)
            }
        }
    }

    fn some_snap(&mut self) -> SnapId {
        if self.snaps.is_empty() {
            return SnapId(1);
        }
        let at = self.below(self.snaps.len() as u64) as usize;
        SnapId(self.snaps[at])
    }

    fn read(&mut self, o: Operation) -> Operation {
        match self.below(16) {
            0..=3 => {
                let (offset, len) = (self.offset(), self.below(SIZE));
                o.read(offset, len)
            }
            4 => o.read(0, 0),
            5 | 6 => {
                // Extents depend on the store's block size; whole objects do not.
                o.sparse_read(0, 2 * SIZE)
            }
            7 => o.stat(),
            8 => {
                let attr = self.attr();
                o.get_xattr(&attr)
            }
            9 => o.get_xattrs(),
            10 => {
                let (after, max) = (self.omap_key(), self.below(20));
                o.omap_keys(&after, max)
            }
            11 => {
                let (after, max) = (self.omap_key(), self.below(20));
                let prefix: &[u8] = if self.chance(30) { b"key1" } else { b"" };
                o.omap_values(&after, max, prefix)
            }
            12 => {
                let keys = (0..self.below(5)).map(|_| self.omap_key()).collect();
                o.omap_values_by_keys(&keys)
            }
            13 => o.omap_header(),
            14 => {
                let (kind, init): (u8, Bytes) = match self.below(3) {
                    0 => (0, Bytes::copy_from_slice(&7u32.to_le_bytes())),
                    1 => (1, Bytes::copy_from_slice(&7u64.to_le_bytes())),
                    _ => (2, Bytes::copy_from_slice(&u32::MAX.to_le_bytes())),
                };
                let args = OpArgs::Checksum { offset: 0, length: 0, chunk_size: 0, kind };
                o.op(Op::with_input(OpCode::CHECKSUM, args, init))
            }
            _ => o.op(Op::new(OpCode::LIST_WATCHERS, OpArgs::extent(0, 0))),
        }
    }
}

