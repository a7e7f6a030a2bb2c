//! Measures what the choice of the metadata tree was based on, and what the store costs as a whole.
//!
//! `cargo run --release -p store --example meta_bench -- [tree|store|all] [directory]`
//!
//! *tree*: rows of object records of two sizes; random rows are dirtied in batches, as checkpoints
//! do, and written to this crate's tree and to redb. *store*: 4 KiB overwrites and reads on a file
//! at queue depth 32. CPU is user and system time of the whole process.

use bytes::Bytes;
use redb::{Database, ReadableDatabase, TableDefinition};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use store::bench::TreeFile;
use store::{Coll, Device, Engine, Key, Options, Store, Transaction, WriteHint};

fn cpu() -> Duration {
    let (user, system) = cpu_split();
    user + system
}

/// User and system time so far.
fn cpu_split() -> (Duration, Duration) {
    // SAFETY: getrusage fills the struct at the address that it is given; all-zero is a valid value
    // of it.
    let u = unsafe {
        let mut u: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut u);
        u
    };
    let t = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    (t(u.ru_utime), t(u.ru_stime))
}

/// Bytes that this process caused to be written to storage.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    io.lines()
        .find_map(|l| l.strip_prefix("write_bytes: "))
        .and_then(|v| v.parse().ok())
        .unwrap_or(0)
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % n
    }
}

fn row(i: u64) -> Bytes {
    Bytes::from(format!(
        "N\0\0\0\0\0\0\0\x07{:08x}.rbd_data.1234567890ab.{i:016x}",
        (i as u32).wrapping_mul(0x9e37_79b1)
    ))
}

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");

trait Target {
    fn apply(&mut self, batch: &BTreeMap<Bytes, Option<Bytes>>);
    fn get(&mut self, key: &[u8]) -> usize;
    /// Bytes of the file.
    fn space(&self) -> u64;
}

impl Target for TreeFile {
    fn apply(&mut self, batch: &BTreeMap<Bytes, Option<Bytes>>) {
        TreeFile::apply(self, batch).unwrap();
    }
    fn get(&mut self, key: &[u8]) -> usize {
        TreeFile::get(self, key).unwrap().map_or(0, |v| v.len())
    }
    fn space(&self) -> u64 {
        TreeFile::space(self).1
    }
}

struct Redb(Database, std::path::PathBuf);

impl Target for Redb {
    fn apply(&mut self, batch: &BTreeMap<Bytes, Option<Bytes>>) {
        let mut t = self.0.begin_write().unwrap();
        t.set_quick_repair(true);
        {
            let mut table = t.open_table(TABLE).unwrap();
            for (k, v) in batch {
                match v {
                    Some(v) => drop(table.insert(&k[..], &v[..]).unwrap()),
                    None => drop(table.remove(&k[..]).unwrap()),
                };
            }
        }
        t.commit().unwrap();
    }
    fn get(&mut self, key: &[u8]) -> usize {
        let t = self.0.begin_read().unwrap();
        let table = t.open_table(TABLE).unwrap();
        table.get(key).unwrap().map_or(0, |v| v.value().len())
    }
    fn space(&self) -> u64 {
        std::fs::metadata(&self.1).unwrap().len()
    }
}

fn tree(
    name: &str,
    target: &mut dyn Target,
    rows: u64,
    value: usize,
    batch_rows: u64,
    batches: u64,
) {
    let mut rng = Rng(7);
    let mut body = vec![0u8; value];
    let mut make = |rng: &mut Rng| {
        for c in body.chunks_mut(8) {
            let x = rng.below(u64::MAX).to_le_bytes();
            c.copy_from_slice(&x[..c.len()]);
        }
        Bytes::copy_from_slice(&body)
    };
    let mut at = 0;
    while at < rows {
        let batch = (at..rows.min(at + 20_000)).map(|i| (row(i), Some(make(&mut rng)))).collect();
        target.apply(&batch);
        at += 20_000;
    }
    let prepared: Vec<BTreeMap<Bytes, Option<Bytes>>> = (0..batches)
        .map(|_| (0..batch_rows).map(|_| (row(rng.below(rows)), Some(make(&mut rng)))).collect())
        .collect();
    let changed: u64 = prepared.iter().map(|b| b.len() as u64).sum();
    let (c, w, t) = (cpu(), written(), Instant::now());
    let mut worst = Duration::ZERO;
    for b in &prepared {
        let t = Instant::now();
        target.apply(b);
        worst = worst.max(t.elapsed());
    }
    let (c, w, t) = (cpu() - c, written() - w, t.elapsed());
    let payload: u64 = prepared
        .iter()
        .flatten()
        .map(|(k, v)| (k.len() + v.as_ref().map_or(0, Bytes::len)) as u64)
        .sum();
    let g = cpu();
    let mut found = 0;
    for _ in 0..20_000 {
        found += target.get(&row(rng.below(rows)));
    }
    let g = cpu() - g;
    assert_eq!(found, 20_000 * value);
    let live = rows * (value as u64 + 60);
    println!(
        "{name:>5} | {rows} rows x {value} B, batches of {batch_rows}: {:6.2} us CPU/row, write amp {:5.2}, \
         space amp {:4.2}, worst batch {:4.0} ms, {:5.2} us CPU/get, wall {:.1} s",
        c.as_secs_f64() * 1e6 / changed as f64,
        w as f64 / payload as f64,
        target.space() as f64 / live as f64,
        worst.as_secs_f64() * 1e3,
        g.as_secs_f64() * 1e6 / 20_000.0,
        t.as_secs_f64()
    );
}

fn trees(dir: &Path) {
    for (rows, value, batch, n) in [
        (200_000u64, 300usize, 5_000u64, 10u64),
        (200_000, 300, 50_000, 4),
        (50_000, 4400, 5_000, 5),
        (50_000, 4400, 25_000, 3),
    ] {
        let path = dir.join("bench.tree");
        tree("own", &mut TreeFile::create(&path, 64 << 20).unwrap(), rows, value, batch, n);
        std::fs::remove_file(&path).unwrap();
        let path = dir.join("bench.redb");
        let db = redb::Builder::new().set_cache_size(64 << 20).create(&path).unwrap();
        let mut target = Redb(db, path.clone());
        tree("redb", &mut target, rows, value, batch, n);
        drop(target);
        let t = Instant::now();
        let db = redb::Builder::new().set_cache_size(64 << 20).create(&path).unwrap();
        println!(
            "      | redb opens in {:.1} ms after a clean end",
            t.elapsed().as_secs_f64() * 1e3
        );
        drop(db);
        std::fs::remove_file(&path).unwrap();
    }
}

const OBJECT: u64 = 4 << 20;

struct Run {
    name: &'static str,
    user: Duration,
    system: Duration,
    wall: Duration,
    written: u64,
    ops: u64,
}

impl Run {
    fn print(&self) {
        println!(
            "{:>34}: {:6.2} us CPU/op ({:.2} user, {:.2} system), {:7.0} op/s, {:5.2} bytes written per byte",
            self.name,
            (self.user + self.system).as_secs_f64() * 1e6 / self.ops as f64,
            self.user.as_secs_f64() * 1e6 / self.ops as f64,
            self.system.as_secs_f64() * 1e6 / self.ops as f64,
            self.ops as f64 / self.wall.as_secs_f64(),
            self.written as f64 / (self.ops * 4096) as f64
        );
    }
}

/// Runs `ops` operations at queue depth 32.
async fn load<F, G>(name: &'static str, ops: u64, f: F) -> Run
where
    F: Fn(u64) -> G + 'static,
    G: Future<Output = ()> + 'static,
{
    let (c, w, t) = (cpu_split(), written(), Instant::now());
    let left = Rc::new(Cell::new(ops));
    let f = Rc::new(f);
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let (left, f) = (left.clone(), f.clone());
            tokio::task::spawn_local(async move {
                while left.get() > 0 {
                    left.set(left.get() - 1);
                    f(left.get()).await;
                }
            })
        })
        .collect();
    for t in tasks {
        t.await.unwrap();
    }
    let now = cpu_split();
    Run {
        name,
        user: now.0 - c.0,
        system: now.1 - c.1,
        wall: t.elapsed(),
        written: written() - w,
        ops,
    }
}

fn object(i: u64) -> Key {
    row(i)
}

const OBJECTS: u64 = 256;
const COLL: Coll = Coll(1);

/// A store with objects of 4 MiB, which requests of one page go to.
#[derive(Clone)]
struct Pages {
    store: Store,
    seed: Rc<Cell<u64>>,
    content: Bytes,
}

impl Pages {
    /// Writes the objects.
    async fn write(store: Store) -> Pages {
        let mut t = Transaction::new();
        t.create_collection(COLL);
        store.submit(t).unwrap();
        let content = Bytes::from((0..OBJECT).map(|i| ((i * 31) >> 3) as u8).collect::<Vec<u8>>());
        let begin = (cpu(), Instant::now());
        for i in 0..OBJECTS {
            let mut t = Transaction::new();
            t.write(COLL, &object(i), 0, content.clone(), WriteHint::DontNeed);
            let commit = store.submit(t).unwrap();
            if i % 8 == 7 {
                commit.await.unwrap();
            }
        }
        store.checkpoint().await.unwrap();
        println!(
            "{:>34}: {:6.0} us CPU/write, {:.0} MiB/s",
            "4 MiB writes",
            (cpu() - begin.0).as_secs_f64() * 1e6 / OBJECTS as f64,
            (OBJECTS * 4) as f64 / begin.1.elapsed().as_secs_f64()
        );
        Pages { store, seed: Rc::new(Cell::new(99)), content }
    }

    fn pick(&self) -> (Key, u64) {
        let mut r = Rng(self.seed.get());
        let x = r.below(OBJECTS * OBJECT / 4096);
        self.seed.set(r.0);
        (object(x * 4096 / OBJECT), x * 4096 % OBJECT)
    }

    /// Overwrites a page, with the attribute and the log row of a replicated write unless `plain`.
    async fn overwrite(self, n: u64, plain: bool) {
        let (key, off) = self.pick();
        let mut t = Transaction::new();
        // One page per operation, as a socket would deliver them.
        let page = self.content.slice(off as usize..off as usize + 4096);
        t.write(COLL, &key, off, page, WriteHint::Normal);
        if !plain {
            let log = Key::from_static(b"pg log");
            let at = |n: u64| Bytes::copy_from_slice(&n.to_be_bytes());
            t.set_attr(COLL, &key, &b"_"[..], vec![n as u8; 250]);
            t.omap_set(COLL, &log, vec![(at(!n), Bytes::from(vec![1u8; 180]))]);
            t.omap_rm_range(COLL, &log, &b""[..], Some(at((!n).saturating_sub(3000))));
        }
        loop {
            match self.store.submit(t.clone()) {
                Ok(commit) => break commit.await.unwrap(),
                Err(store::StoreError::Busy) => self.store.admit().await.unwrap(),
                Err(e) => panic!("{e}"),
            }
        }
    }

    async fn read(self, key: Key, off: u64) {
        assert_eq!(self.store.read(COLL, &key, off, 4096).await.unwrap().len(), 4096);
    }
}

/// Requests of one page, and a checkpoint between them.
async fn requests(pages: &Pages) {
    let with = |pages: &Pages| {
        let pages = pages.clone();
        move || pages.clone()
    };
    let all = with(pages);
    load("4 KiB overwrite", 100_000, move |n| all().overwrite(n, true)).await.print();
    let all = with(pages);
    let name = "4 KiB overwrite, attr, log row";
    load(name, 100_000, move |n| all().overwrite(n, false)).await.print();
    let begin = (cpu(), written(), Instant::now());
    pages.store.checkpoint().await.unwrap();
    println!(
        "{:>34}: {:.0} ms CPU, {:.0} ms, {:.0} MiB written",
        "a last checkpoint",
        (cpu() - begin.0).as_secs_f64() * 1e3,
        begin.2.elapsed().as_secs_f64() * 1e3,
        (written() - begin.1) as f64 / (1 << 20) as f64
    );
    let all = with(pages);
    let any = move |_| {
        let pages = all();
        let (key, off) = pages.pick();
        pages.read(key, off)
    };
    load("4 KiB read, device", 100_000, any).await.print();
    let all = with(pages);
    let hot = move |n| all().read(object(n % 16), n % 64 * 4096);
    load("4 KiB read, cached", 400_000, hot).await.print();
    let all = with(pages);
    load("4 KiB overwrite again", 20_000, move |n| all().overwrite(n, true)).await.print();
}

async fn stores(dir: &Path, engine: Engine) {
    let path = dir.join("bench.store");
    let opts = Options {
        data_cache: 64 << 20,
        log_size: 256 << 20,
        dirty_max: 128 << 20,
        ..Options::default()
    };
    let dev = match Device::open(&path, engine, Some(4 << 30)) {
        Ok(d) => d,
        Err(e) => return println!("{engine:?} is not available: {e}"),
    };
    println!("engine {}", dev.engine());
    Store::mkfs(&dev, &opts, 1, "").await.unwrap();
    let pages = Pages::write(Store::open(dev.clone(), opts.clone()).await.unwrap()).await;
    requests(&pages).await;
    // As after a crash: the log is replayed.
    let facts = pages.store.dump(None, 0).await.unwrap().facts;
    let log = facts.iter().find(|f| f.0 == "log_used_bytes").map(|f| f.1.clone());
    drop(pages);
    tokio::task::yield_now().await;
    let t = Instant::now();
    let s = Store::open(dev.clone(), opts.clone()).await.unwrap();
    println!(
        "{:>34}: {:.1} ms with {} bytes of log",
        "open after a crash",
        t.elapsed().as_secs_f64() * 1e3,
        log.unwrap_or_default()
    );
    s.close().await.unwrap();
    let t = Instant::now();
    let s = Store::open(dev, opts).await.unwrap();
    println!("{:>34}: {:.1} ms", "open after a clean end", t.elapsed().as_secs_f64() * 1e3);
    let report = s.fsck(true).await.unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    drop(s);
    std::fs::remove_file(&path).unwrap();
}

fn main() {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "all".into());
    let dir = args.next().map_or_else(|| "/var/tmp".into(), std::path::PathBuf::from);
    let dir = dir.join(format!("meta_bench.{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    if what != "store" {
        trees(&dir);
    }
    if what != "tree" {
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for engine in [Engine::Uring, Engine::Threads] {
            tokio::task::LocalSet::new().block_on(&rt, stores(&dir, engine));
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
