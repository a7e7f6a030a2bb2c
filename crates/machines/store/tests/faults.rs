//! What the world can do to a store: damaged media, full devices, failing devices, foreign devices.
#![allow(missing_docs)]

mod common;

use bytes::Bytes;
use common::*;
use store::dev::SimDisk;
use store::{Coll, Device, Key, Options, Store, StoreError, Transaction, Window, WriteHint};

const C: Coll = Coll(7);

fn key(i: usize) -> Key {
    Bytes::from(format!("k{i:05}"))
}

async fn fresh(size: u64, opts: &Options) -> (SimDisk, Store) {
    let disk = SimDisk::new(size);
    let dev = Device::sim(disk.clone());
    Store::mkfs(&dev, opts, 42, "faults").await.unwrap();
    let store = Store::open(dev, opts.clone()).await.unwrap();
    let mut t = Transaction::new();
    t.create_collection(C);
    store.submit(t).unwrap();
    (disk, store)
}

fn no_cache() -> Options {
    Options { data_cache: 0, ..small() }
}

#[test]
fn a_flipped_bit_is_an_error_and_never_wrong_data() {
    run(|| async {
        let (disk, s) = fresh(32 << 20, &no_cache()).await;
        let mut r = Rng::new(5);
        let model = Store::memory();
        let mut t = Transaction::new();
        t.create_collection(C);
        model.submit(t).unwrap();
        for i in 0..24 {
            let mut t = Transaction::new();
            let n = 1 + r.below(60_000) as usize;
            t.write(C, &key(i), r.below(5000), r.bytes(n), WriteHint::Normal);
            t.omap_set(C, &key(i), vec![(r.bytes(9), r.bytes(90))]);
            t.set_attr(C, &key(i), &b"a"[..], r.bytes(50));
            s.submit(t.clone()).unwrap();
            model.submit(t).unwrap();
        }
        s.close().await.unwrap();
        let (mut errors, mut clean, mut found_by_fsck) = (0, 0, 0);
        for round in 0..400u64 {
            let medium = disk.fork();
            // Most of the used area is at the start of the data; hit anything now and then.
            let span = if round % 4 == 0 { medium.size() } else { 6 << 20 };
            let at = r.below(span);
            let was = medium.peek(at, 1)[0];
            medium.poke(at, &[was ^ (1 << r.below(8))]);
            let s = match Store::open(Device::sim(medium), no_cache()).await {
                Ok(s) => s,
                Err(e) => {
                    assert!(matches!(e, StoreError::Corrupt(_) | StoreError::Foreign(_)), "{e}");
                    errors += 1;
                    continue;
                }
            };
            let mut bad = false;
            for i in 0..24 {
                match describe(&s, C, &key(i)).await {
                    Ok(d) => assert_eq!(
                        d,
                        describe(&model, C, &key(i)).await.unwrap(),
                        "wrong data after {at}"
                    ),
                    Err(StoreError::Checksum { coll, key: k, off }) => {
                        assert_eq!((coll, &k), (C, &key(i)));
                        assert_eq!(off % 4096, 0);
                        bad = true;
                    }
                    Err(StoreError::Corrupt(_)) => bad = true,
                    Err(e) => panic!("{e}"),
                }
            }
            if bad {
                errors += 1;
                let report = s.fsck(true).await.unwrap();
                found_by_fsck += usize::from(!report.problems.is_empty());
            } else {
                clean += 1;
            }
        }
        eprintln!("{errors} errors, {clean} unaffected");
        assert!(
            errors > 20 && clean > 20 && found_by_fsck > 10,
            "{errors} {clean} {found_by_fsck}"
        );
    });
}

#[test]
fn a_flipped_bit_in_a_window_is_an_error() {
    run(|| async {
        let (disk, s) = fresh(32 << 20, &no_cache()).await;
        let w = Coll(9);
        let mut t = Transaction::new();
        t.create_window(w, Window { space: Coll(100), floor: key(0), start: key(0), end: None });
        t.write(w, &key(1), 0, vec![7; 8192], WriteHint::Normal);
        s.submit(t).unwrap();
        s.close().await.unwrap();
        let s = Store::open(Device::sim(disk.clone()), no_cache()).await.unwrap();
        let at = s.dump(Some(w), 10).await.unwrap().objects[0].extents[0].1 * 4096;
        disk.poke(at + 5000, &[8]);
        assert_eq!(s.read(w, &key(1), 0, 4096).await.unwrap().len(), 4096);
        let e = s.read(w, &key(1), 0, 8192).await.unwrap_err();
        assert!(matches!(e, StoreError::Checksum { off: 4096, .. }), "{e}");
        let e = s.verify(w, &key(1), 4096, 4096).await.unwrap_err();
        assert!(matches!(e, StoreError::Checksum { .. }), "{e}");
        assert_eq!(s.verify(w, &key(1), 0, 4096).await.unwrap().len(), 4096);
    });
}

/// An object of three blocks, the second of which the device has changed.
async fn damaged_in_the_middle() -> (SimDisk, Store, Vec<u8>) {
    let (disk, s) = fresh(32 << 20, &no_cache()).await;
    let content: Vec<u8> = (0..3 * 4096u32).map(|i| (i % 251) as u8).collect();
    let mut t = Transaction::new();
    t.write(C, &key(0), 0, content.clone(), WriteHint::Normal);
    s.submit(t).unwrap();
    let place = s.dump(None, 10).await.unwrap().objects[0].extents[0].1;
    s.close().await.unwrap();
    disk.poke((place + 1) * 4096 + 100, b"\xff");
    let s = Store::open(Device::sim(disk.clone()), no_cache()).await.unwrap();
    (disk, s, content)
}

#[test]
fn a_block_that_is_damaged_and_written_in_part_stays_damaged() {
    // Small writes go by way of the log, large ones to their place.
    for deferred_max in [0, 1 << 20] {
        // In the block; over its end; over its beginning; zeros; shorter.
        for (off, len) in [(4100u64, 10u64), (4100, 5000), (100, 5000), (4200, 0), (5000, u64::MAX)]
        {
            run(move || async move {
                let (disk, s, mut content) = damaged_in_the_middle().await;
                s.close().await.unwrap();
                let opts = Options { deferred_max, ..no_cache() };
                let s = Store::open(Device::sim(disk.clone()), opts.clone()).await.unwrap();
                let mut t = Transaction::new();
                match len {
                    0 => drop(t.zero(C, &key(0), off, 10)),
                    u64::MAX => {
                        t.truncate(C, &key(0), off);
                        content.truncate(off as usize);
                    }
                    _ => {
                        t.write(C, &key(0), off, vec![9u8; len as usize], WriteHint::Normal);
                        content[off as usize..(off + len) as usize].fill(9);
                    }
                }
                s.submit(t).unwrap().await.unwrap();
                let size = content.len() as u64;
                // At once, after a crash, and after an orderly stop.
                for round in 0..3 {
                    let what = format!("{deferred_max}, {off}, {len}, round {round}");
                    let s = match round {
                        0 => s.clone(),
                        1 => Store::open(Device::sim(disk.fork()), opts.clone()).await.unwrap(),
                        _ => {
                            s.clone().close().await.unwrap();
                            Store::open(Device::sim(disk.fork()), opts.clone()).await.unwrap()
                        }
                    };
                    assert_eq!(s.stat(C, &key(0)).await.unwrap().size, size, "{what}");
                    assert_eq!(
                        s.read(C, &key(0), 0, 4096).await.unwrap().to_bytes(),
                        &content[..4096],
                        "{what}"
                    );
                    let e = s.read(C, &key(0), 4096, 100).await.unwrap_err();
                    assert_eq!(
                        e,
                        StoreError::Checksum { coll: C, key: key(0), off: 4096 },
                        "{what}"
                    );
                    if size > 8192 {
                        assert_eq!(
                            s.read(C, &key(0), 8192, 4096).await.unwrap().to_bytes(),
                            &content[8192..],
                            "{what}"
                        );
                    }
                }
                // A whole block replaces the damage.
                let s = Store::open(Device::sim(disk.clone()), opts).await.unwrap();
                let mut t = Transaction::new();
                t.write(C, &key(0), 4096, vec![2u8; 4096], WriteHint::Normal);
                s.submit(t).unwrap().await.unwrap();
                assert_eq!(
                    s.read(C, &key(0), 4096, 5).await.unwrap().to_bytes(),
                    Bytes::from_static(&[2; 5])
                );
                assert_consistent(&s, true, "repaired").await;
            });
        }
    }
}

#[test]
fn a_block_that_reads_well_again_is_not_trusted() {
    run(|| async {
        let (disk, s, content) = damaged_in_the_middle().await;
        let mut t = Transaction::new();
        t.write(C, &key(0), 4100, vec![9u8; 10], WriteHint::Normal);
        s.submit(t).unwrap().await.unwrap();
        let place = s.dump(None, 10).await.unwrap().objects[0].extents[0].1;
        disk.poke((place + 1) * 4096, &content[4096..8192]);
        assert!(matches!(s.read(C, &key(0), 4096, 10).await, Err(StoreError::Checksum { .. })));
    });
}

#[test]
fn a_full_store_refuses_writes_and_takes_deletes() {
    run(|| async {
        let opts = small();
        let (mut disk, mut s) = fresh(24 << 20, &opts).await;
        let mut r = Rng::new(9);
        for lap in 0..4 {
            let mut written = Vec::new();
            let mut full = false;
            for i in 0..100_000 {
                let mut t = Transaction::new();
                let n = [4096, 30_000, 70_000][r.below(3) as usize];
                t.write(C, &key(i), 0, r.bytes(n), WriteHint::Normal);
                t.omap_set(C, &Bytes::from_static(b"log"), vec![(key(i), r.bytes(100))]);
                match s.submit(t) {
                    Ok(_) => written.push((i, n)),
                    Err(StoreError::Busy) => s.admit().await.unwrap(),
                    Err(StoreError::NoSpace) => {
                        full = true;
                        break;
                    }
                    Err(e) => panic!("{e}"),
                }
                if r.chance(10) {
                    tokio::task::yield_now().await;
                }
            }
            assert!(full && written.len() > 100, "lap {lap}: {}", written.len());
            assert_eq!(StoreError::NoSpace.errno(), libc::ENOSPC);
            s.last_commit().await.unwrap();
            assert!(s.statfs().available < 1 << 20);
            // Everything is still there, also after a restart.
            drop(s);
            disk = disk.fork();
            s = Store::open(Device::sim(disk.clone()), opts.clone()).await.unwrap();
            for (i, n) in &written {
                assert_eq!(s.stat(C, &key(*i)).await.unwrap().size, *n as u64);
            }
            for (i, _) in &written {
                let mut t = Transaction::new();
                t.remove(C, &key(*i));
                t.omap_set(C, &Bytes::from_static(b"log"), vec![(key(*i), r.bytes(100))]);
                loop {
                    match s.submit(t.clone()) {
                        Ok(_) => break,
                        Err(StoreError::Busy) => s.admit().await.unwrap(),
                        Err(e) => panic!("lap {lap}: a delete on a full store: {e}"),
                    }
                }
            }
            s.last_commit().await.unwrap();
            assert_consistent(&s, true, "emptied").await;
            assert!(s.statfs().available > 18 << 20, "lap {lap}: {:?}", s.statfs());
            s.close().await.unwrap();
            s = Store::open(Device::sim(disk.clone()), opts.clone()).await.unwrap();
        }
    });
}

#[test]
fn rows_alone_fill_a_store_cleanly() {
    run(|| async {
        let (_disk, s) = fresh(16 << 20, &small()).await;
        let mut r = Rng::new(3);
        let log = Bytes::from_static(b"index");
        let mut n = 0u64;
        loop {
            let mut t = Transaction::new();
            let rows =
                (0..20).map(|i| (Bytes::from(format!("{n:08}{i:03}")), r.bytes(200))).collect();
            t.omap_set(C, &log, rows);
            match s.submit(t) {
                Ok(_) => n += 1,
                Err(StoreError::Busy) => s.admit().await.unwrap(),
                Err(StoreError::NoSpace) => break,
                Err(e) => panic!("{e}"),
            }
            tokio::task::yield_now().await;
        }
        assert!(n > 500, "{n}");
        s.last_commit().await.unwrap();
        assert_consistent(&s, false, "full of rows").await;
        let mut t = Transaction::new();
        t.omap_clear(C, &log);
        s.submit(t).unwrap().await.unwrap();
        s.checkpoint().await.unwrap();
        assert_consistent(&s, false, "cleared").await;
        assert!(s.statfs().available > 13 << 20, "{:?}", s.statfs());
    });
}

#[test]
fn after_a_device_error_nothing_is_acknowledged() {
    run(|| async {
        let (disk, s) = fresh(24 << 20, &small()).await;
        s.last_commit().await.unwrap();
        disk.set_broken(true);
        let mut t = Transaction::new();
        t.write(C, &key(1), 0, vec![1u8; 4096], WriteHint::Normal);
        let commit = s.submit(t.clone()).unwrap();
        assert!(matches!(commit.await, Err(StoreError::Failed(_))));
        disk.set_broken(false);
        assert!(
            matches!(s.submit(t), Err(StoreError::Failed(_))),
            "a store that failed stays failed"
        );
        drop(s);
        let s = Store::open(Device::sim(disk.fork()), small()).await.unwrap();
        assert!(!s.exists(C, &key(1)).await.unwrap());
    });
}

/// Whichever request fails while several batches of the log are under way: what was acknowledged is
/// what comes before it, later batches that are on the medium are not acknowledged, and the store
/// takes nothing more.
#[test]
fn a_request_that_fails_beside_others_acknowledges_nothing_behind_it() {
    use store::dev::{Doomed, SimEvent};
    // Runs in which others were under way when one failed, and others succeeded behind it.
    let (mut beside, mut failures) = (0, 0);
    for (kind, behind, seed) in [Doomed::Flush, Doomed::Write]
        .into_iter()
        .flat_map(|kind| (0..8).map(move |behind| (kind, behind)))
        .flat_map(|(kind, behind)| (1..12u64).map(move |seed| (kind, behind, seed)))
    {
        run(|| async {
            let what = format!("{kind:?} {behind}, seed {seed}");
            let (disk, s) = fresh(24 << 20, &small()).await;
            s.last_commit().await.unwrap();
            disk.record();
            disk.set_jitter(seed);
            disk.fail_one(kind, behind);
            let mut commits = Vec::new();
            for i in 0..12 {
                let mut t = Transaction::new();
                t.set_attr(C, &key(100 + i), &b"n"[..], "x");
                match s.submit(t) {
                    Ok(commit) => commits.push(commit),
                    Err(e) => {
                        assert!(matches!(e, StoreError::Failed(_)), "{what}: {e}");
                        break;
                    }
                }
                for _ in 0..2 {
                    tokio::task::yield_now().await;
                }
            }
            let submitted = commits.len();
            let mut acked = 0;
            for (n, commit) in commits.into_iter().enumerate() {
                match commit.await {
                    Ok(()) => {
                        assert_eq!(acked, n, "{what}: one behind a failure is acknowledged");
                        acked += 1;
                    }
                    Err(e) => assert!(matches!(e, StoreError::Failed(_)), "{what}: {e}"),
                }
            }
            if !disk.has_failed_one() {
                return assert_eq!(acked, submitted, "{what}: nothing failed");
            }
            assert!(acked < 12, "{what}: all are acknowledged");
            failures += 1;
            assert!(matches!(s.submit(Transaction::new()), Err(StoreError::Failed(_))), "{what}");
            // Others end; what they do must not count.
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            drop(s);
            let events = disk.events();
            let begun = events.iter().filter(|e| matches!(e, SimEvent::WriteStart { .. })).count();
            beside += usize::from(begun > acked + 1);
            let s = Store::open(Device::sim(disk.fork()), small()).await.unwrap();
            let mut there = 0;
            for i in 0..12 {
                if s.exists(C, &key(100 + i)).await.unwrap() {
                    assert_eq!(there, i, "{what}: there is a gap");
                    there += 1;
                }
            }
            assert!((acked..=submitted).contains(&there), "{what}: {there} of {acked}");
        });
    }
    assert!(failures > 20 && beside > 5, "{failures} failures, {beside} beside others");
}

#[test]
fn foreign_devices_are_told_apart() {
    run(|| async {
        let open = |d: &SimDisk| Store::open(Device::sim(d.clone()), small());
        let text = |e: StoreError| e.to_string();
        let empty = SimDisk::new(32 << 20);
        assert!(text(open(&empty).await.err().unwrap()).contains("empty"));
        let other = SimDisk::new(32 << 20);
        other.poke(0, b"XFSB and so on");
        assert!(text(open(&other).await.err().unwrap()).contains("no store"));
        let small_disk = SimDisk::new(1 << 20);
        assert!(matches!(open(&small_disk).await.err().unwrap(), StoreError::Foreign(_)));

        let (disk, s) = fresh(32 << 20, &small()).await;
        s.close().await.unwrap();
        assert_eq!(&Store::peek_label(&Device::sim(disk.clone())).await.unwrap()[..], b"faults");
        // Another layout version in both copies.
        let newer = disk.fork();
        for copy in [0, 4096] {
            newer.poke(copy + 16, &[9]);
        }
        assert!(text(open(&newer).await.err().unwrap()).contains("layout version 9"));
        // One damaged copy is no harm beyond the last checkpoint, which the log makes up for.
        let (disk, s) = fresh(32 << 20, &small()).await;
        s.checkpoint().await.unwrap();
        let mut t = Transaction::new();
        t.write(C, &key(1), 0, vec![1u8; 4096], WriteHint::Normal);
        s.submit(t).unwrap().await.unwrap();
        for copy in [0, 4096] {
            let d = disk.fork();
            d.poke(copy + 100, b"damage");
            let opened = open(&d).await.unwrap();
            assert!(opened.collections() == [C]);
        }
    });
}

#[test]
fn the_log_wraps_many_times() {
    run(|| async {
        let (disk, s) = fresh(32 << 20, &small()).await;
        disk.set_jitter(11);
        let mut r = Rng::new(17);
        let mut want = std::collections::BTreeMap::new();
        for i in 0..4000usize {
            let mut t = Transaction::new();
            let (k, b) = (key(i % 37), r.bytes(4096));
            t.write(C, &k, (i % 5) as u64 * 4096, b.clone(), WriteHint::Normal);
            loop {
                match s.submit(t.clone()) {
                    Ok(c) => {
                        if r.chance(5) {
                            c.await.unwrap();
                        }
                        break;
                    }
                    Err(StoreError::Busy) => s.admit().await.unwrap(),
                    Err(e) => panic!("{e}"),
                }
            }
            want.insert((k, (i % 5) as u64 * 4096), b);
        }
        s.last_commit().await.unwrap();
        drop(s);
        let s = Store::open(Device::sim(disk.fork()), small()).await.unwrap();
        for ((k, off), b) in &want {
            assert_eq!(s.read(C, k, *off, 4096).await.unwrap().to_bytes(), b);
        }
        let facts = s.dump(None, 0).await.unwrap().facts;
        let batch: u64 = facts.iter().find(|f| f.0 == "log_next_batch").unwrap().1.parse().unwrap();
        assert!(batch > 200, "{batch}");
        assert_consistent(&s, true, "wrapped").await;
    });
}

/// A writer that is faster than checkpoints goes at their speed, and not until everything is full
/// and then, for a whole checkpoint, not at all.
#[test]
fn writers_go_on_beside_a_checkpoint() {
    writers_go_on(Options { rest_us: 0, ..no_cache() });
}

/// The same where it rests beside them, as long as they need not wait for it.
#[test]
fn writers_go_on_beside_a_checkpoint_that_rests() {
    writers_go_on(Options { rest_us: 1000, ..no_cache() });
}

fn writers_go_on(opts: Options) {
    run(|| async {
        let opts = Options { log_size: 16 << 20, log_checkpoint: 0, dirty_max: 4 << 20, ..opts };
        let (disk, s) = fresh(256 << 20, &opts).await;
        disk.set_jitter(5);
        let mut r = Rng::new(23);
        let (mut waits, mut most, mut since) = (0u64, 0u64, 0u64);
        for _ in 0..20_000 {
            if s.congested() {
                s.admit().await.unwrap();
                waits += 1;
                most = most.max(since);
                since = 0;
            }
            since += 1;
            let mut t = Transaction::new();
            t.write(
                C,
                &key(r.below(8) as usize),
                r.below(1024) * 4096,
                r.bytes(4096),
                WriteHint::Normal,
            );
            s.submit(t).unwrap();
            tokio::task::yield_now().await;
        }
        let facts = s.dump(None, 0).await.unwrap().facts;
        let checkpoints: u64 =
            facts.iter().find(|f| f.0 == "checkpoints_since_open").unwrap().1.parse().unwrap();
        assert!(
            checkpoints >= 5 && waits > 8 * checkpoints,
            "{waits} waits in {checkpoints} checkpoints, {most} writes between two"
        );
    });
}

/// What a checkpoint encodes, merges and gives back is in small steps: all else on its thread waits
/// meanwhile.
#[test]
fn a_checkpoint_goes_in_small_steps() {
    const OBJECTS: usize = 4000;
    const ROWS: usize = 20_000;
    run(|| async {
        let opts = Options {
            log_size: 64 << 20,
            log_checkpoint: 0,
            dirty_max: 64 << 20,
            onode_cache: 8 << 20,
            node_cache: 8 << 20,
            ..no_cache()
        };
        let (_, s) = fresh(256 << 20, &opts).await;
        s.checkpoint().await.unwrap();
        for i in 0..OBJECTS {
            let mut t = Transaction::new();
            t.set_attr(C, &key(i), &b"a"[..], Bytes::from_static(b"v"));
            t.omap_set(
                C,
                &key(0),
                (0..ROWS / OBJECTS)
                    .map(|n| (key(i * 10 + n), Bytes::from_static(b"row")))
                    .collect(),
            );
            s.submit(t).unwrap();
            tokio::task::yield_now().await;
        }
        s.last_commit().await.unwrap();
        let mut checkpoint = std::pin::pin!(s.checkpoint());
        let mut steps = 0;
        std::future::poll_fn(|cx| {
            steps += 1;
            checkpoint.as_mut().poll(cx)
        })
        .await
        .unwrap();
        // Eight at a time: objects are encoded, and they, their names and the rows are given back.
        let least = (OBJECTS + 2 * OBJECTS + ROWS) / 8;
        assert!(steps >= least, "{steps} steps, at least {least}");
    });
}

/// A checkpoint that is not waited for rests after each step; one that is waited for does not.
#[test]
fn a_checkpoint_rests_if_nobody_waits_for_it() {
    const OBJECTS: usize = 2000;
    let opts = Options {
        log_size: 16 << 20,
        log_checkpoint: 0,
        dirty_max: 64 << 20,
        onode_cache: 8 << 20,
        ..no_cache()
    };
    let fill = async |s: &Store| {
        for i in 0..OBJECTS {
            let mut t = Transaction::new();
            t.touch(C, &key(i));
            s.submit(t).unwrap();
        }
        s.last_commit().await.unwrap();
    };
    let checkpoints = async |s: &Store| -> u64 {
        let facts = s.dump(None, 0).await.unwrap().facts;
        facts.iter().find(|f| f.0 == "checkpoints_since_open").unwrap().1.parse().unwrap()
    };
    run(|| async {
        let (_, s) = fresh(256 << 20, &Options { rest_us: 1000, ..opts.clone() }).await;
        fill(&s).await;
        let (begun, before) = (std::time::Instant::now(), checkpoints(&s).await);
        s.set_budgets(store::Budgets { dirty_max: 1 << 20, ..opts.budgets() });
        while checkpoints(&s).await == before {
            tokio::task::yield_now().await;
        }
        let least = std::time::Duration::from_millis(OBJECTS as u64 / 8);
        assert!(begun.elapsed() >= least, "{:?} with {least:?} of rests", begun.elapsed());
    });
    run(|| async {
        let (_, s) = fresh(256 << 20, &Options { rest_us: 3_600_000_000, ..opts.clone() }).await;
        fill(&s).await;
        s.checkpoint().await.unwrap();
        s.close().await.unwrap();
    });
}

#[test]
fn a_large_write_is_readable_at_once_and_shared_by_clones() {
    run(|| async {
        let (disk, s) = fresh(64 << 20, &no_cache()).await;
        disk.set_jitter(3);
        let mut r = Rng::new(1);
        let big = r.bytes(4 << 20);
        let mut t = Transaction::new();
        t.write(C, &key(0), 0, big.clone(), WriteHint::Normal);
        let commit = s.submit(t).unwrap();
        assert!(!commit.is_durable());
        assert_eq!(s.read(C, &key(0), 0, 8 << 20).await.unwrap().to_bytes(), big);
        let free = s.statfs().available;
        let mut t = Transaction::new();
        t.clone_object(C, &key(0), &key(1)).clone_object(C, &key(0), &key(2));
        t.write(C, &key(1), 4096, vec![0xee; 4096], WriteHint::Normal);
        s.submit(t).unwrap().await.unwrap();
        assert!(free - s.statfs().available < 1 << 20, "clones share their blocks");
        assert_eq!(s.read(C, &key(2), 0, 8 << 20).await.unwrap().to_bytes(), big);
        let report = s.fsck(true).await.unwrap();
        assert_eq!((report.problems, report.shared_blocks, report.objects), (vec![], 1024, 3));
        let mut t = Transaction::new();
        t.remove(C, &key(0)).remove(C, &key(2)).remove(C, &key(1));
        s.submit(t).unwrap().await.unwrap();
        assert_consistent(&s, true, "removed").await;
        assert!(s.statfs().data == 0, "{:?}", s.statfs());
    });
}

#[test]
fn budgets_change_while_the_store_is_open() {
    run(|| async {
        const MB: u64 = 1 << 20;
        let roomy = Options {
            data_cache: 8 * MB,
            onode_cache: 2 * MB,
            node_cache: 2 * MB,
            dirty_max: 8 * MB,
            log_checkpoint: 0,
            log_size: 16 * MB,
            ..small()
        };
        let (_disk, s) = fresh(64 << 20, &roomy).await;
        assert_eq!(s.budgets(), Some(roomy.budgets()));
        let fill = |from: usize| {
            let mut t = Transaction::new();
            for i in from..from + 64 {
                t.write(C, &key(i), 0, vec![i as u8; 64 << 10], WriteHint::Normal);
                t.omap_set(
                    C,
                    &key(i),
                    (0..64u64)
                        .map(|r| (Bytes::from(r.to_string()), Bytes::from(vec![7; 64])))
                        .collect::<Vec<_>>(),
                );
            }
            t
        };
        for from in [0, 64] {
            s.submit(fill(from)).unwrap().await.unwrap();
        }
        s.checkpoint().await.unwrap();
        for i in 0..128 {
            assert_eq!(
                s.read(C, &key(i), 0, 64 << 10).await.unwrap().to_bytes(),
                vec![i as u8; 64 << 10]
            );
        }
        let before = s.statfs().cached;
        assert!(before > 7 * MB, "{before} bytes are cached");
        let tight = store::Budgets {
            data_cache: MB,
            onode_cache: 16 << 10,
            node_cache: 64 << 10,
            dirty_max: MB,
        };
        s.set_budgets(tight);
        assert_eq!(s.budgets(), Some(tight));
        let after = s.statfs().cached;
        assert!(after <= MB + (160 << 10), "{after} bytes are cached with {tight:?}");
        for i in 0..128 {
            assert_eq!(
                s.read(C, &key(i), 0, 64 << 10).await.unwrap().to_bytes(),
                vec![i as u8; 64 << 10]
            );
        }
        let after = s.statfs().cached;
        assert!(after <= MB + (160 << 10), "{after} bytes are cached after reading");
        s.set_budgets(roomy.budgets());
        for i in 0..128 {
            s.read(C, &key(i), 0, 64 << 10).await.unwrap();
        }
        let grown = s.statfs().cached;
        assert!(grown > 7 * MB, "{grown} bytes are cached with room again");
        assert_consistent(&s, true, "budgets").await;
    });
}

#[test]
fn cached_answers_do_not_yield() {
    use std::task::{Context, Poll, Waker};
    run(|| async {
        let (_disk, s) = fresh(32 << 20, &small()).await;
        let mut t = Transaction::new();
        t.write(C, &key(0), 0, vec![1u8; 4096], WriteHint::Normal);
        t.set_attr(C, &key(0), &b"a"[..], &b"v"[..]);
        t.omap_set(C, &key(0), vec![(Bytes::from_static(b"r"), Bytes::from_static(b"v"))]);
        s.submit(t).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let k = key(0);
        let mut read = std::pin::pin!(s.read(C, &k, 0, 4096));
        assert!(matches!(read.as_mut().poll(&mut cx), Poll::Ready(Ok(_))));
        let mut attr = std::pin::pin!(s.get_attr(C, &k, b"a"));
        assert!(matches!(attr.as_mut().poll(&mut cx), Poll::Ready(Ok(_))));
        let mut omap = std::pin::pin!(s.omap_iter(C, &k, std::ops::Bound::Unbounded, 10, 1000));
        assert!(matches!(omap.as_mut().poll(&mut cx), Poll::Ready(Ok(_))));
    });
}

#[test]
fn a_device_that_is_made_to_fail_fails_reads_of_data_and_stops_at_a_write() {
    use store::dev::Faults;
    run(|| async {
        let (disk, s) = fresh(32 << 20, &no_cache()).await;
        let mut t = Transaction::new();
        t.write(C, &key(0), 0, vec![7; 3 * 4096], WriteHint::Normal);
        s.submit(t).unwrap().await.unwrap();
        s.close().await.unwrap();
        let s = Store::open(Device::sim(disk.clone()), no_cache()).await.unwrap();
        s.fail_some_requests(Faults { reads: 1, writes: 0 });
        let e = s.read(C, &key(0), 0, 4096).await.unwrap_err();
        assert!(matches!(e, StoreError::Io(_)), "{e}");
        // What the store reads for itself is left alone.
        assert_eq!(s.stat(C, &key(0)).await.unwrap().size, 3 * 4096);
        // Some fail, and what does not fail is right.
        s.fail_some_requests(Faults { reads: 4, writes: 0 });
        let mut failed = 0;
        for _ in 0..400 {
            match s.read(C, &key(0), 4096, 4096).await {
                Ok(data) => assert_eq!(data.to_bytes(), vec![7; 4096]),
                Err(_) => failed += 1,
            }
        }
        assert!((20..300).contains(&failed), "{failed} of 400");
        s.fail_some_requests(Faults { reads: 0, writes: 1 });
        let mut t = Transaction::new();
        t.write(C, &key(0), 0, vec![8; 3 * 4096], WriteHint::Normal);
        let e = s.submit(t).unwrap().await.unwrap_err();
        assert!(
            matches!(&e, StoreError::Failed(why) if why.contains("a write that fails for a test")),
            "{e}"
        );
        s.fail_some_requests(Faults::default());
        assert!(s.submit(Transaction::new()).is_err(), "it must be opened again");
        drop(s);
        let s = Store::open(Device::sim(disk), no_cache()).await.unwrap();
        assert_eq!(s.read(C, &key(0), 0, 4096).await.unwrap().to_bytes(), vec![7; 4096]);
    });
}
