//! The store on a device does what the model says, across checkpoints and reopening, on every
//! engine.
#![allow(missing_docs)]

mod common;

use common::*;
use store::dev::SimDisk;
use store::{Coll, Device, Engine, Store, StoreError, Transaction};

/// Submits to both; they must agree on the outcome.
fn submit(disk: &Store, model: &Store, t: Transaction) -> Result<(), StoreError> {
    match disk.submit(t.clone()) {
        Ok(_) => {
            model.submit(t).expect("the model accepts what the store accepts");
            Ok(())
        }
        Err(e @ (StoreError::NoSpace | StoreError::Busy)) => Err(e),
        Err(e) => {
            assert_eq!(model.submit(t).expect_err("the model refuses what the store refuses"), e);
            Err(e)
        }
    }
}

async fn exercise(mut medium: SimDisk, seed: u64, rounds: u64, shape: Shape) {
    let mut r = Rng::new(seed);
    let opts = small();
    Store::mkfs(&Device::sim(medium.clone()), &opts, seed, "model test").await.unwrap();
    let model = Store::memory();
    let mut disk = Store::open(Device::sim(medium.clone()), opts.clone()).await.unwrap();
    assert_eq!(&disk.label()[..], b"model test");
    submit(&disk, &model, collections(&shape)).unwrap();
    for round in 0..rounds {
        let mut done = 0;
        for _ in 0..60 {
            let t = transaction(&mut r, &shape);
            match submit(&disk, &model, t) {
                Ok(()) => done += 1,
                Err(StoreError::Busy) => disk.admit().await.unwrap(),
                Err(_) => {}
            }
            match r.below(10) {
                0 => disk.last_commit().await.unwrap(),
                1..=3 => tokio::task::yield_now().await,
                4 => {
                    let (c, k) = (Coll(1), bytes::Bytes::from("object-1"));
                    let (off, len) = (r.below(100_000), r.below(50_000));
                    assert_eq!(
                        disk.read(c, &k, off, len).await.map(|b| b.to_bytes()),
                        model.read(c, &k, off, len).await.map(|b| b.to_bytes())
                    );
                    assert_eq!(
                        disk.extents(c, &k, off, len).await,
                        model.extents(c, &k, off, len).await
                    );
                }
                _ => {}
            }
        }
        assert!(done > 0, "the generator must get something done");
        let what = format!("seed {seed} round {round}");
        match r.below(6) {
            0 => {
                disk.checkpoint().await.unwrap();
            }
            1 => {
                // As after a crash of the process: everything that was acknowledged is in the log.
                disk.last_commit().await.unwrap();
                drop(disk);
                // What the old store's tasks still write goes elsewhere.
                medium = medium.fork();
                if seed.is_multiple_of(2) {
                    medium.set_jitter(seed + round);
                }
                disk = Store::open(Device::sim(medium.clone()), opts.clone()).await.unwrap();
                compare(&disk, &model, &format!("{what}, reopened")).await;
            }
            2 => {
                disk.close().await.unwrap();
                disk = Store::open(Device::sim(medium.clone()), opts.clone()).await.unwrap();
            }
            _ => {}
        }
        compare(&disk, &model, &what).await;
        if round % 4 == 0 {
            assert_consistent(&disk, true, &what).await;
        }
    }
    assert_consistent(&disk, true, "end").await;
}

#[test]
fn simulated_disk() {
    for seed in 1..=6 {
        run(|| async move {
            let disk = SimDisk::new(96 << 20);
            if seed % 2 == 0 {
                disk.set_jitter(seed);
            }
            exercise(disk, seed, 12, Shape::default()).await;
        });
    }
}

/// Collections that were made ordinary ones, and others.
#[test]
fn neighbours_of_different_spaces_are_joined() {
    run(|| async {
        let medium = SimDisk::new(64 << 20);
        Store::mkfs(&Device::sim(medium.clone()), &small(), 9, "").await.unwrap();
        let (disk, model) =
            (Store::open(Device::sim(medium.clone()), small()).await.unwrap(), Store::memory());
        let key = |i: u32| store::Key::from(format!("k{i:03}"));
        let window = |space, start: u32, end: Option<u32>| store::Window {
            space: Coll(space),
            floor: store::Key::from_static(b"k"),
            start: key(start),
            end: end.map(key),
        };
        let mut t = Transaction::new();
        t.create_collection(Coll(1)).create_window(Coll(2), window(100, 200, None));
        t.touch(Coll(1), &store::Key::from_static(b"a"));
        submit(&disk, &model, t).unwrap();
        for i in 0..400 {
            let c = Coll(if i < 200 { 1 } else { 2 });
            let mut t = Transaction::new();
            t.write(c, &key(i), 0, vec![i as u8; 5000], store::WriteHint::Normal);
            t.omap_set(c, &key(i), vec![(key(i), key(i))]);
            disk.admit().await.unwrap();
            submit(&disk, &model, t).unwrap();
        }
        let mut t = Transaction::new();
        t.create_window(Coll(1), window(1, 0, Some(200)));
        submit(&disk, &model, t).unwrap();
        disk.checkpoint().await.unwrap();
        let mut t = Transaction::new();
        t.merge(Coll(2), Coll(1));
        submit(&disk, &model, t).unwrap();
        compare(&disk, &model, "joined").await;
        assert_eq!(disk.list(Coll(1), b"", None, 1000).await.unwrap().keys.len(), 401);
        disk.last_commit().await.unwrap();
        drop(disk);
        let disk = Store::open(Device::sim(medium.fork()), small()).await.unwrap();
        compare(&disk, &model, "replayed").await;
        let mut t = Transaction::new();
        t.split(Coll(1), key(100), Coll(3));
        submit(&disk, &model, t).unwrap();
        compare(&disk, &model, "split").await;
        assert_consistent(&disk, true, "end").await;
    });
}

#[test]
fn many_small_objects() {
    run(|| async {
        let disk = SimDisk::new(64 << 20);
        let shape = Shape { colls: 2, windows: 2, keys: 400, size: 9000, max_ops: 12 };
        exercise(disk, 77, 12, shape).await;
    });
}

fn on_file(engine: Engine, seed: u64) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().join("store");
    run(|| async {
        let open = || loop {
            match Device::open(&path, engine, Some(96 << 20)) {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
                other => return other,
            }
        };
        if let Err(e) = open() {
            assert_eq!(engine, Engine::Uring, "{e}");
            eprintln!("skipped: io_uring is not available here: {e}");
            return;
        }
        exercise_file(&path, engine, seed).await;
    });
}

/// The same as `exercise` for a real file, where a device is opened anew each time.
async fn exercise_file(path: &std::path::Path, engine: Engine, seed: u64) {
    let shape = Shape::default();
    let mut r = Rng::new(seed);
    let model = Store::memory();
    let opts = small();
    for round in 0..6 {
        let dev = open_when_free(path, engine).await;
        if round == 0 {
            Store::mkfs(&dev, &opts, seed, "").await.unwrap();
        }
        let disk = Store::open(dev, opts.clone()).await.unwrap();
        compare(&disk, &model, &format!("{engine:?} round {round}, opened")).await;
        if round == 0 {
            submit(&disk, &model, collections(&shape)).unwrap();
        }
        for _ in 0..60 {
            match submit(&disk, &model, transaction(&mut r, &shape)) {
                Err(StoreError::Busy) => disk.admit().await.unwrap(),
                _ if r.chance(30) => disk.last_commit().await.unwrap(),
                _ => {}
            }
        }
        compare(&disk, &model, &format!("{engine:?} round {round}")).await;
        disk.last_commit().await.unwrap();
        if round % 2 == 0 {
            assert_consistent(&disk, true, &format!("{engine:?} round {round}")).await;
            disk.close().await.unwrap();
        }
    }
}

async fn open_when_free(path: &std::path::Path, engine: Engine) -> Device {
    loop {
        match Device::open(path, engine, Some(96 << 20)) {
            Ok(d) => return d,
            // The tasks of the store before end when they are next polled.
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => tokio::task::yield_now().await,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn io_uring_file() {
    on_file(Engine::Uring, 101);
}

#[test]
fn thread_pool_file() {
    on_file(Engine::Threads, 102);
}
