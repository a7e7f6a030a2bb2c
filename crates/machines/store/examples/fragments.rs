//! Measures what reading an object in order costs after it was written at random in pieces of 4
//! KiB.
//!
//! `cargo run --release -p store --example fragments -- [directory]`
//!
//! Objects of 4 MiB come about in different ways, the writes to them mixed; then each is read once
//! from the device, whole and in pieces of 64 KiB. A run is a piece of the device that one read
//! brings. CPU is user and system time of the whole process.

use bytes::Bytes;
use std::time::{Duration, Instant};
use store::{Coll, Device, Engine, Key, Options, Store, Transaction, WriteHint};

const OBJECTS: u64 = 48;
const OBJECT: u64 = 4 << 20;
const PIECE: u64 = 4096;
const COLL: Coll = Coll(1);

fn cpu() -> Duration {
    // SAFETY: getrusage fills the struct at the address that it is given; all-zero is a valid value
    // of it.
    let u = unsafe {
        let mut u: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut u);
        u
    };
    let t = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    t(u.ru_utime) + t(u.ru_stime)
}

fn object(i: u64) -> Key {
    Key::from(format!("object{i:04}"))
}

async fn submit(s: &Store, t: Transaction, wait: bool) {
    loop {
        match s.submit(t.clone()) {
            Ok(commit) if wait => return commit.await.unwrap(),
            Ok(_) => return,
            Err(store::StoreError::Busy) => s.admit().await.unwrap(),
            Err(e) => panic!("{e}"),
        }
    }
}

/// Writes every piece of every object once, in random order.
async fn at_random(s: &Store) {
    let mut order: Vec<u64> = (0..OBJECTS * OBJECT / PIECE).collect();
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    for i in (1..order.len()).rev() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        order.swap(i, (x % (i as u64 + 1)) as usize);
    }
    let data = Bytes::from(vec![7u8; PIECE as usize]);
    for (n, at) in order.into_iter().enumerate() {
        let mut t = Transaction::new();
        let at = at * PIECE;
        t.write(COLL, &object(at / OBJECT), at % OBJECT, data.clone(), WriteHint::DontNeed);
        submit(s, t, n % 32 == 31).await;
    }
}

async fn in_order(s: &Store) {
    let data = Bytes::from(vec![3u8; OBJECT as usize]);
    for i in 0..OBJECTS {
        let mut t = Transaction::new();
        t.write(COLL, &object(i), 0, data.clone(), WriteHint::DontNeed);
        submit(s, t, i % 8 == 7).await;
    }
}

async fn clone_all(s: &Store) {
    for i in 0..OBJECTS {
        let mut t = Transaction::new();
        t.clone_object(COLL, &object(i), &Key::from(format!("clone{i:04}")));
        submit(s, t, true).await;
    }
}

async fn read_all(s: &Store, piece: u64) -> (f64, f64) {
    let (c, t) = (cpu(), Instant::now());
    for i in 0..OBJECTS {
        for off in (0..OBJECT).step_by(piece as usize) {
            assert_eq!(s.read(COLL, &object(i), off, piece).await.unwrap().len() as u64, piece);
        }
    }
    let per = |d: Duration| d.as_secs_f64() * 1e6 / OBJECTS as f64;
    (per(cpu() - c), per(t.elapsed()))
}

async fn measure(dir: &std::path::Path, what: &str, way: u32) {
    let path = dir.join("fragments.store");
    let opts = Options { data_cache: 1 << 20, ..Options::default() };
    let dev = match Device::open(&path, Engine::Uring, Some(4 << 30)) {
        Ok(d) => d,
        Err(e) => return println!("io_uring is not available: {e}"),
    };
    Store::mkfs(&dev, &opts, 1, "").await.unwrap();
    let s = Store::open(dev.clone(), opts.clone()).await.unwrap();
    let mut t = Transaction::new();
    t.create_collection(COLL);
    submit(&s, t, true).await;
    if way != 3 {
        in_order(&s).await;
    }
    if way == 2 {
        clone_all(&s).await;
    }
    let (c, t) = (cpu(), Instant::now());
    if way != 0 {
        at_random(&s).await;
    }
    s.checkpoint().await.unwrap();
    let writes = (OBJECTS * OBJECT / PIECE) as f64;
    let wrote =
        ((cpu() - c).as_secs_f64() * 1e6 / writes, t.elapsed().as_secs_f64() * 1e6 / writes);
    s.close().await.unwrap();
    let s = Store::open(dev, opts).await.unwrap();
    let whole = read_all(&s, OBJECT).await;
    let pieces = read_all(&s, 64 << 10).await;
    let mut runs = 0;
    for o in s
        .dump(Some(COLL), usize::MAX)
        .await
        .unwrap()
        .objects
        .iter()
        .filter(|o| o.key.starts_with(b"object"))
    {
        let mut next = u64::MAX;
        for (_, at, n, _) in &o.extents {
            runs += u64::from(*at != next);
            next = at + n;
        }
    }
    println!(
        "| {what} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {} |",
        runs as f64 / OBJECTS as f64,
        whole.0,
        whole.1,
        pieces.0,
        pieces.1,
        if way == 0 { String::new() } else { format!("{:.1} / {:.1}", wrote.0, wrote.1) },
    );
    s.close().await.unwrap();
    std::fs::remove_file(&path).unwrap();
}

fn main() {
    let dir = std::env::args().nth(1).map_or_else(|| "/var/tmp".into(), std::path::PathBuf::from);
    let dir = dir.join(format!("fragments.{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    println!(
        "| 4 MiB object | runs | CPU us, read whole | us | CPU us, read by 64 KiB | us | CPU us / us per 4 KiB written |"
    );
    println!("|---|---|---|---|---|---|---|");
    let ways = [
        "written in order",
        "then overwritten at random",
        "then cloned, then overwritten at random",
        "filled at random",
    ];
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (way, what) in ways.into_iter().enumerate() {
        tokio::task::LocalSet::new().block_on(&rt, measure(&dir, what, way as u32));
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
