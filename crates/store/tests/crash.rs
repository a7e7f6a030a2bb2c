//! Crashes: a random history is recorded on a simulated disk and cut everywhere. Whatever of the writes that
//! no flush has covered reached the medium, in whole, in part or not at all, the store opens, contains every
//! acknowledged transaction, and nothing but a prefix of the submitted ones.
//!
//! `SIPHON_CRASH_CUTS` sets the number of cuts (default 3000), `SIPHON_CRASH_SEED` the first seed.
#![allow(missing_docs)]

mod common;

use common::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use store::dev::{SimDisk, SimEvent};
use store::{Coll, Device, Key, Store, StoreError, Transaction, WriteHint};

const SIZE: u64 = 48 << 20;

/// The counter that every transaction of a history advances: it tells how far a store has come.
fn counter() -> (Coll, Key) {
    (Coll(1), Key::from_static(b"counter"))
}

/// What a store looks like after so many transactions.
#[derive(Clone, Default)]
struct Moment {
    colls: Vec<Coll>,
    objects: Rc<BTreeMap<(Coll, Key), String>>,
}

struct History {
    base: SimDisk,
    events: Vec<SimEvent>,
    /// Index: transactions applied.
    moments: Vec<Moment>,
    /// (events recorded, transactions acknowledged) in order.
    acked: Vec<(usize, usize)>,
    /// (events recorded, transactions submitted) in order.
    submitted: Vec<(usize, usize)>,
}

async fn advance(model: &Store, moment: &mut Moment, t: &Transaction) {
    let objects = Rc::make_mut(&mut moment.objects);
    for op in &t.ops {
        for (c, k) in touched(op) {
            match describe(model, c, &k).await {
                Ok(d) => drop(objects.insert((c, k), d)),
                Err(_) => drop(objects.remove(&(c, k))),
            }
        }
    }
    moment.colls = model.collections();
}

/// Runs a workload and records it.
async fn record(seed: u64, steps: u64) -> History {
    let mut r = Rng::new(seed);
    let disk = SimDisk::new(SIZE);
    let opts = small();
    Store::mkfs(&Device::sim(disk.clone()), &opts, seed, "crash").await.unwrap();
    let store = Store::open(Device::sim(disk.clone()), opts).await.unwrap();
    let base = disk.record();
    disk.set_jitter(seed * 2 + 1);
    let model = Store::memory();
    let shape = Shape { colls: 2, windows: 2, keys: 4, size: 100 << 10, max_ops: 4 };
    let acked = Rc::new(RefCell::new(Vec::new()));
    let count = Rc::new(Cell::new(0));
    let (mut moments, mut submitted) = (vec![Moment::default()], Vec::new());
    let mut n = 0usize;
    while n < steps as usize {
        let mut t = if n == 0 { collections(&shape) } else { transaction(&mut r, &shape) };
        let (c, k) = counter();
        t.set_attr(c, &k, &b"n"[..], format!("{}", n + 1));
        match store.submit(t.clone()) {
            Ok(commit) => {
                n += 1;
                model.submit(t.clone()).unwrap();
                let mut m = moments[n - 1].clone();
                advance(&model, &mut m, &t).await;
                moments.push(m);
                submitted.push((disk.event_count(), n));
                let (acked, disk, count) = (acked.clone(), disk.clone(), count.clone());
                commit.then(move |result| {
                    result.unwrap();
                    assert_eq!(count.replace(n), n - 1, "commits resolve in the order of submission");
                    acked.borrow_mut().push((disk.event_count(), n));
                });
            }
            Err(StoreError::Busy) => store.admit().await.unwrap(),
            Err(_) => {}
        }
        for _ in 0..r.below(4) {
            tokio::task::yield_now().await;
        }
        if r.chance(4) {
            store.last_commit().await.unwrap();
        }
    }
    store.last_commit().await.unwrap();
    let acked = acked.borrow().clone();
    History { base, events: disk.events(), moments, acked, submitted }
}

fn at(list: &[(usize, usize)], cut: usize) -> usize {
    list.iter().take_while(|(e, _)| *e <= cut).last().map_or(0, |(_, n)| *n)
}

/// The medium after a crash right before event `cut`.
fn crash(h: &History, cut: usize, r: &mut Rng) -> SimDisk {
    // A write is certain if it was forced, or done before a flush started that was done before the cut.
    let mut done = Vec::new();
    let mut certain = std::collections::HashSet::new();
    let mut flushing = BTreeMap::new();
    for e in &h.events[..cut] {
        match e {
            SimEvent::WriteStart { .. } => {}
            SimEvent::WriteDone { id, durable } => {
                done.push(*id);
                if *durable {
                    certain.insert(*id);
                }
            }
            SimEvent::FlushStart { id } => drop(flushing.insert(*id, done.len())),
            SimEvent::FlushDone { id } => {
                let n = flushing.remove(id).unwrap_or(0);
                certain.extend(done[..n].iter().copied());
            }
        }
    }
    let disk = h.base.fork();
    let mood = r.below(4);
    for e in &h.events[..cut] {
        let SimEvent::WriteStart { id, off, data } = e else { continue };
        if certain.contains(id) {
            disk.poke(*off, data);
            continue;
        }
        let fate = match mood {
            0 => 0,
            1 => 1,
            _ => r.below(3),
        };
        match fate {
            // Not at all, in whole, or any of its sectors.
            0 => {}
            1 => disk.poke(*off, data),
            _ => {
                for (i, sector) in data.chunks(512).enumerate() {
                    if r.chance(50) {
                        disk.poke(off + i as u64 * 512, sector);
                    }
                }
            }
        }
    }
    disk
}

async fn counted(s: &Store) -> usize {
    let (c, k) = counter();
    match s.get_attr(c, &k, b"n").await {
        Ok(n) => String::from_utf8_lossy(&n).parse().unwrap(),
        Err(StoreError::NoCollection(_) | StoreError::NoObject { .. } | StoreError::NoAttr) => 0,
        Err(e) => panic!("{e}"),
    }
}

async fn examine(s: &Store, h: &History, cut: usize, what: &str) -> usize {
    let n = counted(s).await;
    let (least, most) = (at(&h.acked, cut), at(&h.submitted, cut));
    assert!(n >= least, "{what}: acknowledged {least}, found {n}");
    assert!(n <= most, "{what}: submitted {most}, found {n}");
    let (colls, objects) = picture(s).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(colls, h.moments[n].colls, "{what}");
    same(&objects, &h.moments[n].objects, what);
    n
}

async fn check_cut(h: &History, seed: u64, cut: usize, r: &mut Rng) {
    let what = format!("SIPHON_CRASH_SEED={seed} cut {cut}");
    let disk = crash(h, cut, r);
    let open = |disk: &SimDisk| Store::open(Device::sim(disk.clone()), small());
    let s = open(&disk).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let n = examine(&s, h, cut, &what).await;
    match r.below(4) {
        0 => assert_consistent(&s, true, &what).await,
        1 => {
            // Opening and writing after a crash is no less safe: crash again, with nothing more lost.
            drop(s);
            let disk = disk.fork();
            let s = open(&disk).await.unwrap();
            assert_eq!(examine(&s, h, cut, &format!("{what}, twice")).await, n);
            let shape = Shape { colls: 2, windows: 2, keys: 4, size: 100 << 10, max_ops: 4 };
            let model = Store::memory();
            if n == 0 {
                s.submit(collections(&shape)).unwrap();
                model.submit(collections(&shape)).unwrap();
            }
            let probe = Key::from_static(b"probe");
            let mut t = Transaction::new();
            for i in 0..6u64 {
                let len = if i % 2 == 0 { 4096 } else { 40_000 };
                t.write(Coll(1), &probe, i * 50_000, r.bytes(len), WriteHint::DontNeed);
            }
            let commit = s.submit(t.clone()).unwrap();
            if r.chance(50) {
                s.checkpoint().await.unwrap();
            }
            commit.await.unwrap();
            drop(s);
            let s = open(&disk.fork()).await.unwrap();
            if n == 0 {
                model.submit(t).unwrap();
                compare(&s, &model, &format!("{what}, written")).await;
            } else {
                assert_eq!(s.stat(Coll(1), &probe).await.unwrap().size, 290_000, "{what}");
                let colls = s.collections();
                assert_eq!(colls, h.moments[n].colls, "{what}, written");
            }
            assert_consistent(&s, true, &format!("{what}, written")).await;
        }
        _ => {}
    }
}

#[test]
fn every_cut_opens_with_what_was_acknowledged() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (mut left, mut seed) = (number("SIPHON_CRASH_CUTS", 3000), number("SIPHON_CRASH_SEED", 1));
    let (mut laps, mut partial, mut checkpoints) = (0, 0, 0);
    while left > 0 {
        let h = run(|| record(seed, 350));
        // Every boundary is a candidate; a history gives so many cuts, spread over all of it.
        let mut r = Rng::new(seed + 1000);
        let share = left.min(600) as usize;
        let step = (h.events.len() / share).max(1);
        for i in 0..share {
            let cut = (i * step + r.below(step as u64) as usize).min(h.events.len());
            partial += usize::from(at(&h.acked, cut) < at(&h.submitted, cut));
            run(|| check_cut(&h, seed, cut, &mut r));
            left -= 1;
        }
        for e in &h.events {
            if let SimEvent::WriteStart { off, data, .. } = e {
                checkpoints += usize::from(*off < 8192);
                laps += usize::from(*off == 65536 && data.len() >= 4096);
            }
        }
        seed += 1;
    }
    eprintln!("{partial} cuts with transactions under way, {checkpoints} checkpoints, {laps} laps of the log");
    assert!(partial > 0 && checkpoints > 0 && laps > seed as usize, "the histories must be worth cutting");
}
