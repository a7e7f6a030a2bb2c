//! Random transactions and comparison with the model.
#![allow(
    dead_code,
    missing_docs,
    reason = "shared by several test programs, each of which uses a part"
)]

use bytes::Bytes;
use denc::crc::Sum;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Bound;
use store::{
    AllocHint, Buffers, Coll, Key, Op, Options, RowRange, Store, StoreError, Transaction, Window,
    WriteHint,
};

/// xorshift64*: small, seeded, good enough to choose operations.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    pub fn bytes(&mut self, n: usize) -> Bytes {
        let mut out = Vec::with_capacity(n + 8);
        while out.len() < n {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(n);
        out.into()
    }
}

/// Runs a test body on the kind of runtime a store lives on.
pub fn run<F: Future>(f: impl FnOnce() -> F) -> F::Output {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&rt, async { f().await })
}

/// Small limits, so that every mechanism is at work all the time.
pub fn small() -> Options {
    Options {
        deferred_max: 16 << 10,
        data_cache: 256 << 10,
        onode_cache: 4 << 10,
        node_cache: 64 << 10,
        dirty_max: 512 << 10,
        log_checkpoint: 200 << 10,
        log_size: 1 << 20,
        reuse_soon: true,
        step_us: 0,
        rest_us: 0,
    }
}

/// What the generator may do.
#[derive(Clone)]
pub struct Shape {
    pub colls: u64,
    /// Collections that share a space.
    pub windows: u64,
    pub keys: u64,
    /// Objects stay below this many bytes, about.
    pub size: u64,
    pub max_ops: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { colls: 3, windows: 3, keys: 6, size: 160 << 10, max_ops: 5 }
    }
}

fn coll(r: &mut Rng, s: &Shape) -> Coll {
    if r.below(s.colls + s.windows) < s.colls { Coll(1 + r.below(s.colls)) } else { window(r, s) }
}

fn window(r: &mut Rng, s: &Shape) -> Coll {
    Coll(11 + r.below(s.windows.max(1)))
}

/// The whole space; what comes before the floor is the collection's own.
fn whole() -> Window {
    Window {
        space: Coll(100),
        floor: Bytes::from_static(b"object-1"),
        start: Bytes::from_static(b"object-1"),
        end: None,
    }
}

fn key(r: &mut Rng, s: &Shape) -> Key {
    Bytes::from(format!("object-{}", r.below(s.keys)))
}

fn offset(r: &mut Rng, s: &Shape) -> u64 {
    let off = r.below(s.size);
    if r.chance(60) { off / 4096 * 4096 } else { off }
}

fn length(r: &mut Rng) -> u64 {
    match r.below(10) {
        0..=3 => 4096,
        4 => 1 + r.below(600),
        5 | 6 => 4096 * (1 + r.below(4)),
        7 => 1 + r.below(20_000),
        8 => 4096 * (1 + r.below(16)),
        _ => 1 + r.below(90_000),
    }
}

fn name(r: &mut Rng) -> Bytes {
    Bytes::from(format!("{:02}", r.below(20)))
}

/// A list of slices that together are random bytes.
fn data(r: &mut Rng, n: u64) -> Buffers {
    let all = r.bytes(n as usize);
    if r.chance(70) || n < 2 {
        return all.into();
    }
    let cut = 1 + r.below(n - 1) as usize;
    vec![all.slice(..cut), all.slice(cut..)].into()
}

/// A random transaction, often one that fails.
pub fn transaction(r: &mut Rng, s: &Shape) -> Transaction {
    let mut t = Transaction::new();
    for _ in 0..1 + r.below(s.max_ops) {
        let (c, k) = (coll(r, s), key(r, s));
        match r.below(if s.windows > 0 { 46 } else { 40 }) {
            40..=42 => drop(t.split(window(r, s), key(r, s), window(r, s))),
            43 => drop(t.merge(window(r, s), window(r, s))),
            44 => {
                let (start, end) = (name(r), name(r));
                let hi = r.chance(50).then(|| Bytes::from(format!("{}", r.below(10))));
                let lo = Bytes::from(format!("{}", r.below(5)));
                let range = RowRange { start, end, skip: r.below(3) as usize, lo, hi };
                t.omap_move(c, &k, range, coll(r, s), &key(r, s));
            }
            45 if r.chance(10) => drop(t.create_window(window(r, s), whole())),
            45 if r.chance(10) => {
                let c = coll(r, s);
                t.create_window(c, Window { space: c, ..whole() });
            }
            0 => drop(t.touch(c, &k)),
            1..=12 => {
                let (off, len) = (offset(r, s), length(r));
                let hint = [WriteHint::Normal, WriteHint::DontNeed, WriteHint::WillNeed]
                    [r.below(3) as usize];
                t.write(c, &k, off, data(r, len), hint);
            }
            13 if r.chance(50) => {
                let (off, len) = (offset(r, s), length(r));
                t.xor(c, &k, off, data(r, len));
            }
            13 | 14 => drop(t.zero(c, &k, offset(r, s), length(r))),
            15 | 16 => drop(t.truncate(c, &k, offset(r, s))),
            17 => drop(t.remove(c, &k)),
            18..=20 => drop(t.clone_object(c, &k, &key(r, s))),
            21..=23 => {
                let (off, len) = (offset(r, s), length(r) * (1 + r.below(3)));
                let to_off = if r.chance(60) {
                    off / 4096 * 4096 + r.below(4) * 4096 + off % 4096
                } else {
                    offset(r, s)
                };
                t.clone_range(c, &k, off, len, &key(r, s), to_off);
            }
            24 | 25 => {
                let n = r.below(200) as usize;
                t.set_attr(c, &k, name(r), r.bytes(n));
            }
            26 => drop(t.rm_attr(c, &k, name(r))),
            27 if r.chance(30) => drop(t.clear_attrs(c, &k)),
            27..=30 => {
                let rows = (0..1 + r.below(8))
                    .map(|_| {
                        let n = r.below(300) as usize;
                        (name(r), r.bytes(n))
                    })
                    .collect();
                t.omap_set(c, &k, rows);
            }
            31 => drop(t.omap_rm(c, &k, vec![name(r), name(r)])),
            32 => {
                let end = r.chance(70).then(|| name(r));
                t.omap_rm_range(c, &k, name(r), end);
            }
            33 if r.chance(40) => drop(t.omap_clear(c, &k)),
            33 | 34 => {
                let n = r.below(100) as usize;
                t.omap_header(c, &k, r.bytes(n));
            }
            35 | 36 => drop(t.move_object(c, &k, coll(r, s), &key(r, s))),
            37 => drop(t.alloc_hint(
                c,
                &k,
                AllocHint { object_size: r.below(1 << 22), write_size: 4096, flags: 3 },
            )),
            38 if r.chance(50) => drop(t.clone_but_rows(c, &k, &key(r, s))),
            38 if r.chance(30) => {
                let lo = r.below(20) as u32;
                let whole = (0, 1 << 20);
                let some = (lo, lo + 1 + r.below(4) as u32);
                let blocks = if r.chance(50) { vec![whole] } else { vec![some, (30, 31)] };
                // Nothing may lie behind the new size.
                let to = key(r, s);
                t.truncate(c, &to, 0);
                t.clone_parts(c, &k, &to, blocks);
            }
            38 => drop(t.create_collection(c)),
            _ if r.chance(20) => drop(t.remove_collection(c)),
            _ => drop(t.touch(c, &k)),
        }
    }
    t
}

/// The transaction every history starts with.
pub fn collections(s: &Shape) -> Transaction {
    let mut t = Transaction::new();
    for c in 1..=s.colls {
        t.create_collection(Coll(c));
    }
    if s.windows > 0 {
        t.create_window(Coll(11), whole());
    }
    t
}

/// The objects that an operation may change.
pub fn touched(op: &Op) -> Vec<(Coll, Key)> {
    match op {
        Op::CreateCollection { .. } | Op::RemoveCollection { .. } | Op::CreateWindow { .. } => {
            vec![]
        }
        Op::Split { coll: a, new: b, .. } | Op::Merge { from: a, into: b } => {
            let keys = (0..10).map(|i| Bytes::from(format!("object-{i}")));
            keys.flat_map(|k| [(*a, k.clone()), (*b, k)]).collect()
        }
        Op::OmapMove { coll, key, to, to_key, .. } => {
            vec![(*coll, key.clone()), (*to, to_key.clone())]
        }
        Op::Move { from, from_key, to, to_key } => {
            vec![(*from, from_key.clone()), (*to, to_key.clone())]
        }
        Op::Object { coll, key, .. } => vec![(*coll, key.clone())],
    }
}

/// Everything that can be observed of an object, as text with checksums for long parts.
pub async fn describe(s: &Store, c: Coll, k: &Key) -> Result<String, StoreError> {
    use std::fmt::Write;
    let mut out = String::new();
    let crc = |b: &[u8]| crc32c::crc32c(b);
    let stat = s.stat(c, k).await?;
    let data = s.read(c, k, 0, u64::MAX).await?;
    assert_eq!(data.len(), stat.size);
    let cuts = [
        (0, u64::MAX),
        (1, stat.size),
        (stat.size / 3, stat.size / 2),
        (4096, 8192),
        (stat.size / 2, 4096),
    ];
    for (off, len) in cuts {
        let (part, sum) = s.read_summed(c, k, off, len).await?;
        let part = part.to_bytes();
        assert_eq!(part, data.slice(off, len).to_bytes(), "{off}+{len}");
        assert!(
            sum.is_none_or(|sum| sum == Sum::of(&part)),
            "the checksum of {off}+{len} is that of other bytes"
        );
    }
    let _ = write!(out, "{stat:?} data {:08x}", crc(&data.to_bytes()));
    let extents = s.extents(c, k, 0, u64::MAX).await?;
    let _ =
        write!(out, " extents {:?}", extents.iter().map(|r| (r.off, r.len)).collect::<Vec<_>>());
    for (n, v) in s.get_attrs(c, k).await? {
        let _ = write!(out, " @{}={:08x}", n.escape_ascii(), crc(&v));
    }
    let _ = write!(out, " header {:08x}", crc(&s.omap_header(c, k).await?));
    let page = s.omap_iter(c, k, Bound::Unbounded, usize::MAX, usize::MAX).await?;
    assert!(!page.more);
    let (mut paged, mut last) = (Vec::new(), None);
    loop {
        let from = last.as_ref().map_or(Bound::Unbounded, |k: &Bytes| Bound::Excluded(&k[..]));
        let part = s.omap_iter(c, k, from, 2, usize::MAX).await?;
        paged.extend(part.rows);
        if !part.more {
            break;
        }
        last = paged.last().map(|(n, _)| n.clone());
    }
    assert_eq!(paged, page.rows, "by pages");
    for (n, v) in page.rows {
        let _ = write!(out, " #{}={:08x}", n.escape_ascii(), crc(&v));
    }
    Ok(out)
}

pub type Picture = BTreeMap<(Coll, Key), String>;

/// Everything that can be observed of a store.
pub async fn picture(s: &Store) -> Result<(Vec<Coll>, Picture), StoreError> {
    let colls = s.collections();
    let mut out = Picture::new();
    for &c in &colls {
        let mut at = Some(Bytes::new());
        while let Some(start) = at {
            let page = s.list(c, &start, None, 3).await?;
            for k in page.keys {
                let d = describe(s, c, &k).await?;
                out.insert((c, k), d);
            }
            at = page.next;
        }
    }
    Ok((colls, out))
}

/// Fails unless both stores look the same.
pub async fn compare(a: &Store, b: &Store, what: &str) {
    let (ca, pa) = picture(a).await.unwrap();
    let (cb, pb) = picture(b).await.unwrap();
    assert_eq!(ca, cb, "{what}: collections");
    same(&pa, &pb, what);
}

pub fn same(a: &Picture, b: &Picture, what: &str) {
    for (k, d) in a {
        match b.get(k) {
            Some(e) => assert_eq!(d, e, "{what}: {k:?}"),
            None => panic!("{what}: {k:?} exists only on the left: {d}"),
        }
    }
    for k in b.keys() {
        assert!(a.contains_key(k), "{what}: {k:?} exists only on the right");
    }
}

pub async fn assert_consistent(s: &Store, deep: bool, what: &str) {
    let report = s.fsck(deep).await.unwrap();
    let problems: Vec<String> = report.problems.iter().take(10).map(ToString::to_string).collect();
    assert!(problems.is_empty(), "{what}: {problems:#?}");
}
