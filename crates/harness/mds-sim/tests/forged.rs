//! Clients that lie: forged inodes and capabilities, sizes and times at their limits, words at the
//! wrong time. The server goes on, and what is at rest stays consistent.

use bytes::Bytes;
use mds::{
    Action, CapAttrs, CapsUpdate, Claim, ClientId, Event, FileLock, Ino, LayoutHints, LockKind,
    LockRequest, LockType, Name, Op, SessionEvent, SetAttr, XattrMode, caps,
};
use mds_sim::bench::Bench;
use sim::rng::Rng;
use types::Utime;

fn odd(rng: &mut Rng) -> u64 {
    match rng.range(0, 6) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX / 2,
        3 => 1 << rng.range(0, 64),
        4 => rng.next_u64(),
        _ => rng.range(0, 10_000),
    }
}

fn ino(rng: &mut Rng) -> Ino {
    match rng.range(0, 8) {
        0 => Ino(odd(rng)),
        1 => Ino::stray(rng.range(0, 10)),
        2 => Ino::ROOT,
        _ => Ino((1 << 40) + rng.range(0, 20)),
    }
}

fn time(rng: &mut Rng) -> Utime {
    Utime::new(odd(rng) as u32, 0)
}

fn op(rng: &mut Rng) -> Op {
    let mode = odd(rng) as u32;
    let wanted = odd(rng) as u32;
    let layout = LayoutHints {
        stripe_unit: if rng.permille(800) { 0 } else { odd(rng) as u32 },
        stripe_count: if rng.permille(800) { 0 } else { odd(rng) as u32 },
        object_size: if rng.permille(800) { 0 } else { odd(rng) as u32 },
        pool: None,
    };
    let (exclusive, truncate) = (rng.permille(500), rng.permille(500));
    let lock = FileLock {
        start: odd(rng),
        length: odd(rng),
        client: ClientId(odd(rng)),
        owner: rng.range(0, 3),
        pid: 0,
        kind: [LockType::Shared, LockType::Exclusive, LockType::Unlock][rng.range(0, 3) as usize],
    };
    let (wait, interrupt) = (rng.permille(300), rng.permille(100));
    let lock = LockRequest { rule: LockKind::Posix, lock, wait, interrupt };
    match rng.range(0, 18) {
        0..4 => Op::Create { mode, wanted, exclusive, truncate, layout },
        4 => Op::Mkdir { mode },
        5 => Op::Mknod { mode, rdev: mode },
        6 => Op::Open { wanted, truncate },
        7 => Op::Setattr(SetAttr {
            size: Some(odd(rng)),
            mtime: Some(time(rng)),
            mode: Some(mode),
            ..SetAttr::default()
        }),
        8 => Op::Rename,
        9 => Op::Link,
        10 => Op::Unlink,
        11 => Op::Rmdir,
        12 => Op::Readdir {
            after: Some(Name::from_static(b"b")),
            max_entries: odd(rng) as u32,
            max_bytes: odd(rng) as u32,
        },
        13 => Op::SetLock(lock),
        14 => Op::GetLock(lock),
        15 => {
            let names: [&[u8]; 6] = [
                b"ceph.quota.max_bytes",
                b"ceph.dir.layout",
                b"ceph.dir.subvolume",
                b"ceph.dir.pin",
                b"ceph.\xff",
                b"user.x",
            ];
            let name = Name::from_static(names[rng.range(0, 6) as usize]);
            let value = Bytes::from(odd(rng).to_string());
            Op::Setxattr { name, value, mode: XattrMode::Any }
        }
        16 => Op::Lookup { mask: wanted },
        _ => Op::Getattr { mask: wanted },
    }
}

fn update(rng: &mut Rng, bench: &Bench) -> CapsUpdate {
    // A capability that there is, more often than not.
    let known = bench.told.iter().rev().take(30).find_map(|(_, _, a)| match a {
        Action::Reply(_, r) => r.target.as_ref().map(|t| (t.inode.ino, t.cap)),
        _ => None,
    });
    let (ino, cap_id, seq) = match known {
        Some((ino, cap)) if rng.permille(800) => (ino, cap.cap_id, cap.seq),
        _ => (ino(rng), odd(rng), odd(rng) as u32),
    };
    CapsUpdate {
        ino,
        cap_id,
        seq,
        issue_seq: seq,
        caps: if rng.permille(500) { caps::ALL } else { odd(rng) as u32 },
        wanted: odd(rng) as u32,
        dirty: if rng.permille(500) { caps::ALL } else { odd(rng) as u32 },
        flush: rng.permille(500).then(|| odd(rng)),
        sync: rng.permille(500),
        oldest_flush: odd(rng),
        attrs: CapAttrs {
            mode: odd(rng) as u32,
            size: odd(rng),
            mtime: time(rng),
            ctime: time(rng),
            time_warp_seq: odd(rng) as u32,
            change_attr: odd(rng),
            ..CapAttrs::default()
        },
        max_size: odd(rng),
        uid: odd(rng) as u32,
        gid: odd(rng) as u32,
    }
}

fn lies(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut b = Bench::new(mds::Conf { cache_entries_max: 10, ..Bench::conf() });
    b.open(2);
    for _ in 0..400 {
        let client = rng.range(1, 4);
        match rng.range(0, 12) {
            0..7 => {
                let names = ["a", "b", "c", "", "a/b", "..", "a//b/"];
                let name = names[rng.range(0, 7) as usize];
                let (to, from) = (ino(&mut rng), ino(&mut rng));
                let op = op(&mut rng);
                b.send(client, to, name, (from, "b"), op);
            }
            7..9 => {
                let update = update(&mut rng, &b);
                b.event(Event::Caps(ClientId(client), update));
            }
            9 if rng.permille(500) => {
                let seq =
                    if rng.permille(500) { rng.range(0, 9) as u32 } else { odd(&mut rng) as u32 };
                let name = mds::Name::from_static(
                    [&b"a"[..], b"b", b"", b"a/b"][rng.range(0, 4) as usize],
                );
                b.event(Event::LeaseRelease(ClientId(client), ino(&mut rng), name, seq));
            }
            9 => {
                let list = vec![(ino(&mut rng), odd(&mut rng), odd(&mut rng) as u32)];
                b.event(Event::CapRelease(ClientId(client), list));
            }
            10 => {
                let claim = Claim {
                    ino: ino(&mut rng),
                    cap_id: odd(&mut rng),
                    issued: odd(&mut rng) as u32,
                    wanted: odd(&mut rng) as u32,
                    locks: Vec::new(),
                };
                b.event(Event::Reconnect(ClientId(client), vec![claim]));
                b.event(Event::Reconnected(ClientId(client)));
            }
            _ => {
                let event = match rng.range(0, 4) {
                    0 => SessionEvent::Close { seq: odd(&mut rng) },
                    1 => SessionEvent::Renew { seq: odd(&mut rng) },
                    2 => SessionEvent::FlushLog { seq: odd(&mut rng) },
                    _ => SessionEvent::Evict,
                };
                b.event(Event::Session(ClientId(client), event));
                b.open(client);
            }
        }
    }
    b.event(Event::Flush);
    b.disk.check_statistics().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    // Others are served.
    b.open(9);
    let tid = b.send(9, Ino::ROOT, "", (Ino(0), ""), Op::Getattr { mask: 0 });
    assert_eq!(b.answer(tid).map(|r| r.result), Some(0), "seed {seed}");
}

#[test]
fn clients_that_lie_hurt_no_other() {
    for seed in 0..60 {
        lies(seed);
    }
}
