//! Crashes: a random history is recorded on a simulated disk and cut everywhere. Whatever of the
//! writes that no flush has covered reached the medium, in whole, in part or not at all, the store
//! opens, contains every acknowledged transaction, and nothing but a prefix of the submitted ones.
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
                    assert_eq!(
                        count.replace(n),
                        n - 1,
                        "commits resolve in the order of submission"
                    );
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
    // A write is certain if it was forced, or done before a flush started that was done before the
    // cut.
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
            // Opening and writing after a crash is no less safe: crash again, with nothing more
            // lost.
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

/// What a batch of the log begins with.
const MAGIC: &[u8] = b"SGOL";

/// How many batches began beside others, and how many there were.
fn beside_others(events: &[SimEvent]) -> (usize, usize) {
    let mut under_way = std::collections::HashSet::new();
    let (mut together, mut batches) = (0, 0);
    for e in events {
        match e {
            SimEvent::WriteStart { id, data, .. } if data.starts_with(MAGIC) => {
                batches += 1;
                together += usize::from(!under_way.is_empty());
                under_way.insert(*id);
            }
            SimEvent::WriteDone { id, .. } => drop(under_way.remove(id)),
            _ => {}
        }
    }
    (together, batches)
}

#[test]
fn every_cut_opens_with_what_was_acknowledged() {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
    };
    let (mut left, mut seed) = (number("SIPHON_CRASH_CUTS", 3000), number("SIPHON_CRASH_SEED", 1));
    let (mut histories, mut laps, mut partial, mut checkpoints, mut together) = (0, 0, 0, 0, 0);
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
        together += beside_others(&h.events).0;
        histories += 1;
        seed += 1;
    }
    eprintln!(
        "{partial} cuts with transactions under way, {checkpoints} checkpoints, {laps} laps of the log, {together} batches begun beside others"
    );
    assert!(
        partial > 0 && checkpoints > 0 && laps > histories && together > 0,
        "the histories must be worth cutting"
    );
}

/// A transaction that allocates nothing.
fn named(name: &'static str) -> Transaction {
    let mut t = Transaction::new();
    t.set_attr(Coll(1), &Key::from_static(name.as_bytes()), &b"n"[..], name);
    t
}

async fn exists(s: &Store, name: &'static str) -> bool {
    s.stat(Coll(1), &Key::from_static(name.as_bytes())).await.is_ok()
}

/// A store with a collection and nothing to replay.
async fn begun() -> (SimDisk, Store) {
    let disk = SimDisk::new(SIZE);
    Store::mkfs(&Device::sim(disk.clone()), &small(), 7, "crash").await.unwrap();
    let store = Store::open(Device::sim(disk.clone()), small()).await.unwrap();
    let mut t = Transaction::new();
    t.create_collection(Coll(1));
    store.submit(t).unwrap().await.unwrap();
    store.checkpoint().await.unwrap();
    (disk, store)
}

#[test]
fn what_was_under_way_behind_a_lost_batch_is_gone_for_good() {
    run(|| async {
        let (disk, store) = begun().await;
        let base = disk.record();
        disk.set_jitter(5);
        // The second begins while the first is under way.
        let mut batches = Vec::new();
        for name in ["first", "second"] {
            store.submit(named(name)).unwrap();
            let begun = disk.event_count();
            while disk.event_count() == begun {
                tokio::task::yield_now().await;
            }
            match &disk.events()[begun] {
                SimEvent::WriteStart { off, data, .. } => batches.push((*off, data.clone())),
                e => panic!("{name}: {e:?}"),
            }
        }
        let crashed = base.fork();
        crashed.poke(batches[1].0, &batches[1].1);
        let store = Store::open(Device::sim(crashed.clone()), small()).await.unwrap();
        assert!(!exists(&store, "first").await && !exists(&store, "second").await);
        // The first is done again. It is the same bit by bit, and what was behind it would fit.
        store.submit(named("first")).unwrap().await.unwrap();
        assert_eq!(crashed.peek(batches[0].0, batches[0].1.len()), batches[0].1);
        let store = Store::open(Device::sim(crashed.fork()), small()).await.unwrap();
        assert!(exists(&store, "first").await && !exists(&store, "second").await);
    });
}

/// Of several batches under way any may have reached the medium when the power goes, and any may be
/// lost: what counts ends in front of the first one that is lost.
#[test]
fn any_of_several_batches_under_way_may_be_lost() {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    /// So often the thread is given away for a batch to begin.
    const TURNS: usize = 30;
    let mut most = 0;
    for seed in 1..40 {
        run(|| async {
            let (disk, store) = begun().await;
            let base = disk.record();
            disk.set_jitter(seed);
            let acked = Rc::new(Cell::new(0));
            let mut batches = Vec::new();
            for name in NAMES {
                let (acked, seen) = (acked.clone(), disk.event_count());
                store.submit(named(name)).unwrap().then(move |result| {
                    result.unwrap();
                    acked.set(acked.get() + 1);
                });
                let written = || {
                    disk.events()[seen..].iter().find_map(|e| match e {
                        SimEvent::WriteStart { off, data, .. } if data.starts_with(MAGIC) => {
                            Some((*off, data.clone()))
                        }
                        _ => None,
                    })
                };
                for _ in 0..TURNS {
                    if written().is_some() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                batches.push(written().expect("each is a batch of its own"));
            }
            let acked = acked.get();
            let open = batches.len() - acked;
            most = most.max(open);
            for lost in 0..1u32 << open {
                let crashed = base.fork();
                for (n, (off, data)) in batches.iter().enumerate() {
                    if n < acked || lost & 1 << (n - acked) == 0 {
                        crashed.poke(*off, data);
                    }
                }
                let first = acked + (lost.trailing_zeros() as usize).min(open);
                let s = Store::open(Device::sim(crashed.clone()), small()).await.unwrap();
                for (n, name) in NAMES.iter().enumerate() {
                    assert_eq!(exists(&s, name).await, n < first, "seed {seed}: {lost:b}, {name}");
                }
                // What is written now is in the place of what was lost; what was behind that does
                // not come back.
                s.submit(named("new")).unwrap().await.unwrap();
                drop(s);
                let s = Store::open(Device::sim(crashed.fork()), small()).await.unwrap();
                assert!(exists(&s, "new").await, "seed {seed}: {lost:b}");
                for (n, name) in NAMES.iter().enumerate() {
                    assert_eq!(exists(&s, name).await, n < first, "seed {seed}: {lost:b}, {name}");
                }
                assert_consistent(&s, true, &format!("seed {seed}: {lost:b}")).await;
            }
        });
    }
    assert!(most >= 3, "at most {most} under way");
}

#[test]
fn a_damaged_batch_is_not_the_end_of_the_log_if_later_ones_were_acknowledged() {
    run(|| async {
        let (disk, store) = begun().await;
        disk.record();
        for name in ["a", "b", "c", "d", "e", "f"] {
            store.submit(named(name)).unwrap().await.unwrap();
        }
        let written = |e| match e {
            SimEvent::WriteStart { off, data, .. } if data.starts_with(MAGIC) => Some(off),
            _ => None,
        };
        let batches: Vec<u64> = disk.events().into_iter().filter_map(written).collect();
        assert_eq!(batches.len(), 6);
        for (n, off) in batches.iter().enumerate() {
            let damaged = disk.fork();
            damaged.poke(off + 40, &[damaged.peek(off + 40, 1)[0] ^ 1]);
            let opened = Store::open(Device::sim(damaged), small()).await;
            // With fewer behind it, they may all have been under way when the power went.
            match opened {
                Err(StoreError::Corrupt(_)) => assert!(n <= 1, "{n}"),
                Err(e) => panic!("{n}: {e}"),
                Ok(s) => assert!(n > 1 && exists(&s, "b").await && !exists(&s, "f").await, "{n}"),
            }
        }
    });
}

#[test]
fn with_much_to_do_who_waits_shares_a_batch() {
    run(|| async {
        let (disk, store) = begun().await;
        disk.record();
        disk.set_jitter(9);
        // How many batches begin beside others, of how many, with so many turns of the thread from
        // one transaction to the next, and so many transactions under way.
        let measured = async |turns: usize, under_way: usize, total: usize| {
            let begun = disk.event_count();
            let mut commits = std::collections::VecDeque::new();
            for n in 0..total {
                commits.push_back(store.submit(named(["a", "b", "c", "d"][n % 4])).unwrap());
                if commits.len() >= under_way {
                    commits.pop_front().unwrap().await.unwrap();
                }
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
            }
            store.last_commit().await.unwrap();
            beside_others(&disk.events()[begun..])
        };
        let (together, batches) = measured(3, 8, 100).await;
        assert!(together >= 10 && batches > 80, "a few at the same time: {together} of {batches}");
        measured(0, 12, 100).await;
        let (together, batches) = measured(0, 12, 200).await;
        assert!(together == 0 && batches < 100, "{together} of {batches}");
        measured(9, 1, 100).await;
        let (together, batches) = measured(3, 8, 100).await;
        assert!(together >= 10 && batches > 80, "a few again: {together} of {batches}");
    });
}
