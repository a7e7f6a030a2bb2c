//! Changes that are taken back: done and undone is as if never done, on a store on a device and on
//! the model, at once, later, and after a crash between any two events; and what was set aside
//! gives its space back.
#![allow(missing_docs)]

mod common;

use bytes::Bytes;
use common::*;
use std::collections::BTreeSet;
use store::dev::SimDisk;
use store::{Change, Coll, Device, Kept, Key, Op, Store, StoreError, Transaction, Undo};

const COLL: Coll = Coll(1);

fn aside(version: u64, key: &Key) -> Key {
    [format!("aside-{version:08}-").as_bytes(), key].concat().into()
}

/// A transaction of changes of objects of one collection, as operations of clients make them.
fn changes(r: &mut Rng) -> Transaction {
    let shape = Shape { colls: 1, windows: 0, keys: 4, size: 60 << 10, max_ops: 5 };
    loop {
        let mut t = transaction(r, &shape);
        t.ops.retain(|op| matches!(op, Op::Object { .. }));
        if !t.is_empty() {
            return t;
        }
    }
}

struct Entry {
    version: u64,
    kept: Kept,
    /// The state before.
    before: Picture,
}

/// The objects, without what is set aside.
async fn objects(s: &Store) -> Picture {
    let mut all = picture(s).await.unwrap().1;
    all.retain(|(_, k), _| !k.starts_with(b"aside") && &k[..] != b"counter");
    all
}

/// `t` with what undoes it, if the model takes it.
async fn with_undo(
    model: &Store,
    t: &Transaction,
    version: u64,
) -> Result<(Transaction, Kept), StoreError> {
    let mut existing = BTreeSet::new();
    let list = model.list(COLL, b"", None, usize::MAX).await?;
    existing.extend(list.keys);
    let steps: Vec<(&Key, &Change)> = t
        .ops
        .iter()
        .filter_map(|op| {
            if let Op::Object { key, change, .. } = op { Some((key, change)) } else { None }
        })
        .collect();
    let mut whole = Transaction::new();
    let kept =
        Undo::keep(&mut whole, COLL, &steps, |k| existing.contains(k), |k| aside(version, k));
    whole.append(t.clone());
    Ok((whole, kept))
}

fn undo(entry: &Entry) -> Transaction {
    let mut t = Transaction::new();
    for (key, undo) in &entry.kept.undo {
        // As it is read back.
        let undo = Undo::decode(&undo.encode()).unwrap();
        undo.undo(&mut t, COLL, key, &aside(entry.version, key));
    }
    t
}

fn forget(entry: &Entry) -> Transaction {
    let mut t = Transaction::new();
    for (key, undo) in &entry.kept.undo {
        undo.forget(&mut t, COLL, &aside(entry.version, key));
    }
    t
}

async fn submit(disk: &Store, model: &Store, t: Transaction) -> Result<(), StoreError> {
    while disk.congested() {
        disk.admit().await?;
    }
    let on_disk = disk.submit(t.clone()).map(drop);
    let on_model = model.submit(t).map(drop);
    assert_eq!(on_disk, on_model);
    on_disk
}

async fn exercise(seed: u64, steps: u64) -> (u64, u64) {
    let mut r = Rng::new(seed);
    let mut medium = SimDisk::new(48 << 20);
    let opts = small();
    Store::mkfs(&Device::sim(medium.clone()), &opts, seed, "undo").await.unwrap();
    let mut disk = Store::open(Device::sim(medium.clone()), opts.clone()).await.unwrap();
    let model = Store::memory();
    let mut t = Transaction::new();
    t.create_collection(COLL);
    submit(&disk, &model, t).await.unwrap();
    let mut log: Vec<Entry> = Vec::new();
    let (mut undone, mut forgotten) = (0, 0);
    for version in 0..steps {
        let before = objects(&model).await;
        let t = changes(&mut r);
        let (whole, kept) = with_undo(&model, &t, version).await.unwrap();
        if submit(&disk, &model, whole).await.is_ok() {
            log.push(Entry { version, kept, before });
        } else {
            assert_eq!(objects(&model).await, before, "seed {seed}: refused, and not all of it");
        }
        match r.below(12) {
            0..=2 => {
                for _ in 0..1 + r.below(4) {
                    let Some(entry) = log.pop() else { break };
                    submit(&disk, &model, undo(&entry)).await.unwrap();
                    let what = format!("seed {seed}: {} undone", entry.version);
                    same(&objects(&model).await, &entry.before, &what);
                    undone += 1;
                }
            }
            3 | 4 => {
                for entry in log.drain(..r.below(log.len() as u64 + 1) as usize) {
                    submit(&disk, &model, forget(&entry)).await.unwrap();
                    forgotten += 1;
                }
            }
            5 => disk.checkpoint().await.unwrap(),
            6 => {
                disk.last_commit().await.unwrap();
                drop(disk);
                medium = medium.fork();
                disk = Store::open(Device::sim(medium.clone()), opts.clone()).await.unwrap();
            }
            _ => (),
        }
    }
    compare(&disk, &model, &format!("seed {seed}")).await;
    for entry in log.drain(..) {
        submit(&disk, &model, forget(&entry)).await.unwrap();
    }
    let left = picture(&model).await.unwrap().1;
    assert!(left.keys().all(|(_, k)| !k.starts_with(b"aside")), "seed {seed}: {left:?}");
    assert_consistent(&disk, true, &format!("seed {seed}")).await;
    (undone, forgotten)
}

#[test]
fn what_is_done_and_undone_was_never_done() {
    let (mut undone, mut forgotten) = (0, 0);
    for seed in 0..12 {
        let (u, f) = run(|| exercise(seed, 150));
        undone += u;
        forgotten += f;
    }
    assert!(undone > 100 && forgotten > 100, "{undone} {forgotten}");
}

#[test]
fn keeping_changes_nothing_else() {
    run(|| async {
        let (with, without) = (Store::memory(), Store::memory());
        let mut t = Transaction::new();
        t.create_collection(COLL);
        with.submit(t.clone()).unwrap();
        without.submit(t).unwrap();
        let mut r = Rng::new(77);
        let mut taken = 0;
        for version in 0..600 {
            let t = changes(&mut r);
            let (whole, _) = with_undo(&with, &t, version).await.unwrap();
            let (a, b) = (with.submit(whole).map(drop), without.submit(t.clone()).map(drop));
            // What is moved aside and made again is there for a change that needs it.
            assert_eq!(a.is_ok(), b.is_ok(), "{t:?}: {a:?} {b:?}");
            taken += u64::from(a.is_ok());
            same(&objects(&with).await, &objects(&without).await, &format!("{version} {t:?}"));
        }
        assert!(taken > 100, "{taken}");
    });
}

#[test]
fn space_comes_back() {
    run(|| async {
        let medium = SimDisk::new(48 << 20);
        let opts = small();
        Store::mkfs(&Device::sim(medium.clone()), &opts, 1, "undo").await.unwrap();
        let disk = Store::open(Device::sim(medium), opts).await.unwrap();
        let model = Store::memory();
        let key = Key::from_static(b"object-1");
        let mut t = Transaction::new();
        t.create_collection(COLL);
        t.write(COLL, &key, 0, Bytes::from(vec![7; 1 << 20]), store::WriteHint::Normal);
        submit(&disk, &model, t).await.unwrap();
        let begun = disk.statfs().data;
        for turn in 0..3 {
            let mut entries = Vec::new();
            for version in 0..20 {
                let mut t = Transaction::new();
                let data = Bytes::from(vec![version as u8; 40_960]);
                t.write(COLL, &key, version * 40_960, data, store::WriteHint::Normal);
                let (whole, kept) = with_undo(&model, &t, version).await.unwrap();
                submit(&disk, &model, whole).await.unwrap();
                entries.push(Entry { version, kept, before: Picture::new() });
            }
            let most = disk.statfs().data;
            assert!(most >= begun + 20 * 40_960, "nothing was set aside: {begun} {most}");
            if turn == 1 {
                entries.reverse();
            }
            for entry in entries {
                let t = if turn == 1 { undo(&entry) } else { forget(&entry) };
                submit(&disk, &model, t).await.unwrap();
            }
            disk.checkpoint().await.unwrap();
            assert_eq!(disk.statfs().data, begun, "turn {turn}");
        }
        assert_consistent(&disk, true, "space").await;
    });
}

/// A history of changes, each with what undoes it; cut anywhere, what is there is undone down to
/// the start, one entry at a time, and each state is the one before the entry.
#[test]
fn after_a_crash_all_that_is_there_can_be_undone() {
    for seed in 1..6u64 {
        run(|| async {
            let mut r = Rng::new(seed + 500);
            let disk = SimDisk::new(48 << 20);
            Store::mkfs(&Device::sim(disk.clone()), &small(), seed, "undo").await.unwrap();
            let store = Store::open(Device::sim(disk.clone()), small()).await.unwrap();
            let model = Store::memory();
            let mut t = Transaction::new();
            t.create_collection(COLL).touch(COLL, &Key::from_static(b"counter"));
            submit(&store, &model, t).await.unwrap();
            store.checkpoint().await.unwrap();
            let base = disk.record();
            disk.set_jitter(seed);
            let mut log = Vec::new();
            let mut version = 0;
            while log.len() < 40 {
                let before = objects(&model).await;
                let t = changes(&mut r);
                let (mut whole, kept) = with_undo(&model, &t, version).await.unwrap();
                let n = format!("{}", log.len() + 1);
                whole.set_attr(COLL, &Key::from_static(b"counter"), &b"n"[..], n);
                if submit(&store, &model, whole).await.is_ok() {
                    log.push(Entry { version, kept, before });
                }
                version += 1;
                if r.chance(30) {
                    store.last_commit().await.unwrap();
                }
                if r.chance(5) {
                    store.checkpoint().await.unwrap();
                }
            }
            store.last_commit().await.unwrap();
            let events = disk.events();
            for _ in 0..25 {
                let cut = r.below(events.len() as u64 + 1) as usize;
                let crashed = base.fork();
                for event in &events[..cut] {
                    if let store::dev::SimEvent::WriteStart { off, data, .. } = event {
                        crashed.poke(*off, data);
                    }
                }
                let opened = Store::open(Device::sim(crashed), small()).await.unwrap();
                let counter = opened.get_attr(COLL, &Key::from_static(b"counter"), b"n").await;
                let n: usize = match counter {
                    Ok(n) => std::str::from_utf8(&n).unwrap().parse().unwrap(),
                    Err(_) => 0,
                };
                for entry in log[..n].iter().rev() {
                    let t = undo(entry);
                    while opened.congested() {
                        opened.admit().await.unwrap();
                    }
                    opened.submit(t).unwrap();
                    let what = format!("seed {seed} cut {cut}: {} undone", entry.version);
                    same(&objects(&opened).await, &entry.before, &what);
                }
                assert_consistent(&opened, true, &format!("seed {seed} cut {cut}")).await;
            }
        });
    }
}
