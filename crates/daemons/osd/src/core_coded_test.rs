//! Erasure-coded pools (2+1, and 4+2) on OSDs of one thread.

use crate::collections::coll_of;
use crate::core_test::{Cluster, POOL, run};
use crate::map::ClusterMap;
use crate::settings::Settings;
use admission::OsdQueue;
use bytes::Bytes;
use messages::{Op, OpArgs};
use objops::OpCode;
use objops::code::on_extent;
use pg::{MapView, PgConf, PgState, Turn};
use std::collections::BTreeMap;
use std::time::Instant;
use store::{Key, Store};
use types::{Errno, ObjectId, OsdId, PgId, ShardId, SnapContext, SnapId, SpgId};

async fn coded() -> Cluster {
    let mut c = Cluster::new();
    c.map.coded = true;
    c.publish();
    c.settle().await;
    c
}

/// A pool of 4+2 on six OSDs.
async fn wide() -> Cluster {
    let mut c = Cluster::new();
    (c.map.coded, c.map.shape) = (true, Some((4, 2)));
    for osd in 3..6 {
        c.add_osd();
        c.map.up.insert(osd, 1);
    }
    c.publish();
    c.settle().await;
    c
}

fn bytes(n: usize, first: u8) -> Vec<u8> {
    (0..n).map(|i| first.wrapping_add((i * 7 % 253) as u8)).collect()
}

async fn write(c: &mut Cluster, name: &str, off: u64, data: Vec<u8>) {
    let op = Op { indata: data.clone().into(), ..on_extent(OpCode::WRITE, off, data.len() as u64) };
    assert_eq!(c.op(name, vec![op]).await.result, 0, "{name}");
}

async fn read_at(c: &mut Cluster, name: &str, off: u64, length: u64) -> Bytes {
    let r = c.op(name, vec![on_extent(OpCode::READ, off, length)]).await;
    assert_eq!(r.result, 0, "{name}");
    r.ops[0].outdata.clone()
}

fn down(c: &mut Cluster, osd: i32) {
    c.down.borrow_mut().push(OsdId(osd));
    c.next_map(|m| {
        m.up.remove(&osd);
    });
}

fn up(c: &mut Cluster, osd: i32) {
    c.down.borrow_mut().retain(|o| o.0 != osd);
    c.next_map(|m| {
        m.up.insert(osd, m.epoch);
    });
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % n
    }
}

/// A random change by a client, of the object and of what it should be.
async fn change(c: &mut Cluster, r: &mut Rng, name: &str, model: &mut BTreeMap<String, Vec<u8>>) {
    let (off, n) = (r.below(40_000), 1 + r.below(20_000));
    let first = r.below(256) as u8;
    let exists = model.contains_key(name);
    match r.below(9) {
        0 if exists => {
            assert_eq!(c.op(name, vec![on_extent(OpCode::DELETE, 0, 0)]).await.result, 0);
            model.remove(name);
        }
        1 if exists => {
            assert_eq!(c.op(name, vec![on_extent(OpCode::TRUNCATE, off, 0)]).await.result, 0);
            model.get_mut(name).unwrap().resize(off as usize, 0);
        }
        2 if exists => {
            assert_eq!(c.op(name, vec![on_extent(OpCode::ZERO, off, n)]).await.result, 0);
            let m = model.get_mut(name).unwrap();
            let (from, to) = ((off as usize).min(m.len()), ((off + n) as usize).min(m.len()));
            // Zeroes at the end cut the object off.
            m[from..to].fill(0);
            if off + n >= m.len() as u64 && off < m.len() as u64 {
                m.truncate(off as usize);
            }
        }
        3 => {
            let data = bytes(n as usize, first);
            let op = Op { indata: data.clone().into(), ..on_extent(OpCode::WRITEFULL, 0, n) };
            assert_eq!(c.op(name, vec![op]).await.result, 0);
            model.insert(name.to_owned(), data);
        }
        4 => {
            let data = bytes(n as usize, first);
            let op = Op { indata: data.clone().into(), ..on_extent(OpCode::APPEND, 0, n) };
            assert_eq!(c.op(name, vec![op]).await.result, 0);
            model.entry(name.to_owned()).or_default().extend(data);
        }
        _ => {
            let n = if r.below(2) == 0 { 1 + n % 600 } else { n };
            let data = bytes(n as usize, first);
            write(c, name, off, data.clone()).await;
            let m = model.entry(name.to_owned()).or_default();
            let end = (off + n) as usize;
            m.resize(m.len().max(end), 0);
            m[off as usize..end].copy_from_slice(&data);
        }
    }
}

async fn check(c: &mut Cluster, model: &BTreeMap<String, Vec<u8>>, names: &[String]) {
    for name in names {
        match model.get(name) {
            Some(m) => {
                let found = c.read(name).await;
                assert!(found[..] == m[..], "{name}: {} bytes, {} expected", found.len(), m.len());
                let off = m.len() as u64 / 3;
                let part = read_at(c, name, off, 5000).await;
                let end = m.len().min(off as usize + 5000);
                assert!(part[..] == m[off as usize..end], "{name} at {off}");
            }
            None => {
                let r = c.op(name, vec![on_extent(OpCode::STAT, 0, 0)]).await;
                assert_eq!(r.result, Errno::ENOENT.as_result(), "{name}");
            }
        }
    }
}

/// Shards of all objects fit together, and nothing is left of what undoes changes but of the last
/// ones.
async fn check_shards(c: &Cluster) {
    let layout = c.map.layout();
    let (k, n) = (layout.k(), layout.shards().len());
    let code = ec::Code::new(ec::Technique::JerasureReedSolVan, k, n - k).unwrap();
    for seed in 0..c.map.pg_num {
        let pgid = PgId { pool: POOL, seed };
        let acting = c.map.mapping(pgid).acting;
        let at = |shard: usize| {
            let shard = acting[shard];
            (&c.stores[shard.osd.0 as usize], coll_of(SpgId { pgid, shard: shard.shard }))
        };
        let mut lists = Vec::new();
        for shard in 0..n {
            let (store, coll) = at(shard);
            let keys = store.list(coll, b"\x00\x80", None, 10_000).await.unwrap().keys;
            lists.push(keys.into_iter().filter(|k| ObjectId::from_key(k).is_ok()).collect());
        }
        let first: Vec<Key> = lists.remove(0);
        assert!(lists.iter().all(|l: &Vec<Key>| *l == first), "pg {seed}");
        for key in first {
            let mut shards = Vec::new();
            for shard in 0..n {
                let (store, coll) = at(shard);
                let data = store.read(coll, &key, 0, u64::MAX).await.unwrap();
                shards.push(data.to_bytes().to_vec());
            }
            let most = shards.iter().map(Vec::len).max().unwrap();
            shards.iter_mut().for_each(|s| s.resize(most, 0));
            let mut parity = vec![vec![0; most]; n - k];
            code.encode(
                &shards[..k].iter().map(|s| &s[..]).collect::<Vec<_>>(),
                &mut parity.iter_mut().map(|p| &mut p[..]).collect::<Vec<_>>(),
            );
            assert!(parity[..] == shards[k..], "pg {seed} {key:?}: parity");
        }
    }
}

fn names(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("object{i}")).collect()
}

#[test]
fn what_is_written_is_read() {
    run(async || {
        let mut c = coded().await;
        let mut r = Rng(5);
        let mut model = BTreeMap::new();
        let names = names(6);
        for _ in 0..150 {
            let name = &names[r.below(6) as usize];
            change(&mut c, &mut r, name, &mut model).await;
        }
        check(&mut c, &model, &names).await;
        check_shards(&c).await;
        for core in &c.cores {
            assert_eq!(core.failed(), None);
        }
    });
}

/// How often something was counted, on all OSDs.
fn counted(c: &Cluster, name: &str) -> u64 {
    c.cores.iter().map(|core| core.perf.dump()[name].as_u64().unwrap()).sum()
}

/// Small writes of wide stripes are deltas; what is there is right with all OSDs, without any two
/// of them, and when these are back.
#[test]
fn deltas_of_wide_stripes() {
    run(async || {
        let mut c = wide().await;
        let mut r = Rng(31);
        let mut model = BTreeMap::new();
        let names = names(6);
        for name in &names {
            let data = bytes(100_000, 3);
            write(&mut c, name, 0, data.clone()).await;
            model.insert(name.clone(), data);
        }
        for round in 0..6 {
            for _ in 0..40 {
                let name = &names[r.below(6) as usize];
                change(&mut c, &mut r, name, &mut model).await;
            }
            check(&mut c, &model, &names).await;
            check_shards(&c).await;
            let gone = [round, (round + 1 + round % 3) % 6];
            for osd in gone {
                down(&mut c, osd);
                c.settle().await;
            }
            for _ in 0..20 {
                let name = &names[r.below(6) as usize];
                change(&mut c, &mut r, name, &mut model).await;
            }
            check(&mut c, &model, &names).await;
            for osd in gone {
                up(&mut c, osd);
                c.settle().await;
            }
            check(&mut c, &model, &names).await;
            check_shards(&c).await;
            assert!(c.cores.iter().all(|core| core.failed().is_none()), "{round}");
        }
        assert!(counted(&c, "ec_write_delta") > 50, "{}", counted(&c, "ec_write_delta"));
    });
}

/// Changes of one stripe that are under way together read its old bytes once, and come to what they
/// would come to one after the other.
#[test]
fn changes_under_way_together_read_a_stripe_once() {
    run(async || {
        let mut c = wide().await;
        let mut model = bytes(64 << 10, 9);
        write(&mut c, "a", 0, model.clone()).await;
        let read = counted(&c, "ec_shard_read");
        let mut answers = Vec::new();
        for n in 0..12usize {
            // One block of one shard, in parts.
            let (off, data) = (4096 + n * 300, bytes(500, n as u8));
            model[off..off + 500].copy_from_slice(&data);
            let op = Op { indata: data.into(), ..on_extent(OpCode::WRITE, off as u64, 500) };
            let (request, primary) = c.message("a", SnapId::NOSNAP, vec![op]);
            answers.push(c.send(request, primary));
        }
        for answer in answers {
            assert_eq!(answer.await.unwrap().result, 0);
        }
        assert!(c.read("a").await[..] == model[..]);
        check_shards(&c).await;
        let (kept, reads) = (counted(&c, "ec_read_kept"), counted(&c, "ec_shard_read") - read);
        // The first reads all 500 bytes, each later one the 300 that it is the first to change; all
        // were read by 4096 + 11 * 300 + 500 bytes. The last read is the client's.
        assert!(reads <= 12 + 4, "{reads} shards were read");
        assert_eq!(kept, 0, "each changes bytes that none before it did");
        // The same bytes again: in memory.
        let read = counted(&c, "ec_shard_read");
        let mut answers = Vec::new();
        for n in 0..12u8 {
            let data = bytes(500, 100 + n);
            model[4096..4596].copy_from_slice(&data);
            let op = Op { indata: data.into(), ..on_extent(OpCode::WRITE, 4096, 500) };
            let (request, primary) = c.message("a", SnapId::NOSNAP, vec![op]);
            answers.push(c.send(request, primary));
        }
        for answer in answers {
            assert_eq!(answer.await.unwrap().result, 0);
        }
        let reads = counted(&c, "ec_shard_read") - read;
        assert_eq!((reads, counted(&c, "ec_read_kept")), (1, 11));
        assert!(c.read("a").await[..] == model[..]);
        check_shards(&c).await;
        // Nothing is kept of what is not being changed.
        let kept = |core: &crate::core::Core| {
            core.hosts().iter().map(|h| h.stripes.borrow().bytes()).sum::<u64>()
        };
        assert_eq!(c.cores.iter().map(|core| kept(core)).sum::<u64>(), 0);
    });
}

/// Shards that an OSD reads and writes for operations that others lead are paid by the tenant.
#[test]
fn the_tenant_pays_for_its_shards() {
    run(async || {
        let mut c = Cluster::with_queue(|| {
            Box::new(OsdQueue::starting(&conf::Config::new(), Instant::now()))
        });
        c.map.coded = true;
        c.publish();
        c.settle().await;
        let seen = |c: &Cluster| -> Vec<(u64, u64, f64)> {
            let dumps = c.cores.iter().map(|core| core.with_queue(|q| q.dump(&|_| None)));
            let of = |d: serde_json::Value| {
                let pool = POOL.0.to_string();
                let all = d["tenants"].as_array().unwrap().clone();
                let t = all.into_iter().find(|t| t["tenant"] == pool[..]).unwrap_or_default();
                let n = |name| t[name].as_u64().unwrap_or(0);
                (n("parts"), n("parts_bytes"), t["served_cost"].as_f64().unwrap_or(0.0))
            };
            dumps.map(of).collect()
        };
        let acting =
            c.map.mapping(c.map.fold(PgId { pool: POOL, seed: hash_of("a") }).unwrap()).acting;
        let at = |shard: usize| acting[shard].osd.0 as usize;
        // A stripe: each of the other two OSDs writes a block.
        write(&mut c, "a", 0, bytes(8192, 1)).await;
        let written = seen(&c);
        assert_eq!((written[at(0)].0, written[at(1)].0, written[at(2)].0), (0, 1, 1));
        assert_eq!((written[at(1)].1, written[at(2)].1), (4096, 4096));
        assert!(written.iter().all(|(.., cost)| *cost > 0.0), "{written:?}");
        // A read of the block of the second shard.
        read_at(&mut c, "a", 4096, 4096).await;
        let read = seen(&c);
        assert_eq!((read[at(1)].0, read[at(1)].1), (2, 8192));
        assert!(read[at(1)].2 > written[at(1)].2, "{read:?}");
        assert_eq!(read[at(2)], written[at(2)]);
        // A part of the first block: the second shard is read for its parity.
        write(&mut c, "a", 0, bytes(100, 3)).await;
        let changed = seen(&c);
        assert_eq!((changed[at(1)].0, changed[at(1)].1), (3, 8192 + 100));
        assert_eq!((changed[at(2)].0, changed[at(2)].1), (2, 4096 + 100));
    });
}

#[test]
fn attributes_and_omap_are_there_whoever_leads() {
    run(async || {
        let mut c = coded().await;
        write(&mut c, "a", 0, bytes(10_000, 1)).await;
        let attr = |code, name: &str, value: &str| Op {
            args: OpArgs::Xattr {
                name_len: name.len() as u32,
                value_len: value.len() as u32,
                cmp_op: 0,
                cmp_mode: 0,
            },
            indata: format!("{name}{value}").into(),
            ..on_extent(code, 0, 0)
        };
        assert_eq!(c.op("a", vec![attr(OpCode::SETXATTR, "k", "v")]).await.result, 0);
        for osd in 0..3 {
            down(&mut c, osd);
            c.settle().await;
            let found = c.op("a", vec![attr(OpCode::GETXATTR, "k", "")]).await;
            assert_eq!(found.ops[0].outdata, "v", "without osd.{osd}");
            assert_eq!(c.read("a").await[..], bytes(10_000, 1)[..]);
            up(&mut c, osd);
            c.settle().await;
        }
    });
}

#[test]
fn any_osd_may_go_and_come_back() {
    run(async || {
        let mut c = coded().await;
        let mut r = Rng(11);
        let mut model = BTreeMap::new();
        let names = names(8);
        for round in 0..9 {
            for _ in 0..25 {
                let name = &names[r.below(8) as usize];
                change(&mut c, &mut r, name, &mut model).await;
            }
            let osd = round % 3;
            down(&mut c, osd);
            c.settle().await;
            check(&mut c, &model, &names).await;
            for _ in 0..25 {
                let name = &names[r.below(8) as usize];
                change(&mut c, &mut r, name, &mut model).await;
            }
            check(&mut c, &model, &names).await;
            up(&mut c, osd);
            c.settle().await;
            check(&mut c, &model, &names).await;
            check_shards(&c).await;
        }
    });
}

#[test]
fn snapshots_and_clones() {
    run(async || {
        let mut c = coded().await;
        let first = bytes(30_000, 3);
        write(&mut c, "a", 0, first.clone()).await;
        c.snapc = SnapContext { seq: SnapId(1), snaps: vec![SnapId(1)] };
        write(&mut c, "a", 5000, vec![9; 7000]).await;
        let mut second = first.clone();
        second[5000..12_000].fill(9);
        for osd in [None, Some(0), Some(1), Some(2)] {
            if let Some(osd) = osd {
                down(&mut c, osd);
                c.settle().await;
            }
            assert_eq!(c.read("a").await[..], second[..], "{osd:?}");
            let r = c.op_at("a", SnapId(1), vec![on_extent(OpCode::READ, 0, 0)]).await;
            assert_eq!(r.ops[0].outdata[..], first[..], "{osd:?}");
            if let Some(osd) = osd {
                up(&mut c, osd);
                c.settle().await;
            }
        }
        let back =
            Op { args: OpArgs::Snap { snapid: SnapId(1) }, ..on_extent(OpCode::ROLLBACK, 0, 0) };
        let r = c.op("a", vec![back]).await;
        assert_eq!(r.result, 0);
        assert_eq!(c.read("a").await[..], first[..]);
        write(&mut c, "a", 100, vec![1; 50]).await;
        let mut third = first.clone();
        third[100..150].fill(1);
        assert_eq!(c.read("a").await[..], third[..]);
        check_shards(&c).await;
    });
}

/// What was changed while an OSD was away is made of the others when it comes back.
#[test]
fn a_lost_shard_is_made_again() {
    run(async || {
        let mut c = coded().await;
        for i in 0..8 {
            write(&mut c, &format!("o{i}"), 0, bytes(20_000 + i * 1000, i as u8)).await;
        }
        // One OSD loses everything.
        down(&mut c, 1);
        c.settle().await;
        for i in 0..8 {
            write(&mut c, &format!("o{i}"), 4000, vec![i as u8; 9000]).await;
        }
        up(&mut c, 1);
        c.settle().await;
        check_shards(&c).await;
        for i in 0..8usize {
            let mut expected = bytes(20_000 + i * 1000, i as u8);
            expected[4000..13_000].fill(i as u8);
            assert_eq!(c.read(&format!("o{i}")).await[..], expected[..]);
        }
    });
}

/// Shards are made on several OSDs at once, each of what the others have, and each has one place in
/// its admission window.
#[test]
fn osds_that_make_shards_do_not_wait_for_each_other() {
    run(async || {
        let mut c = coded().await;
        for core in &c.cores {
            core.set_settings(Settings { window: 1, backfills: 10, ..Settings::default() });
        }
        down(&mut c, 1);
        c.settle().await;
        for i in 0..60 {
            write(&mut c, &format!("o{i}"), 0, bytes(9000, i as u8)).await;
        }
        up(&mut c, 1);
        c.settle().await;
        check_shards(&c).await;
        assert!(c.cores.iter().all(|core| core.running() == 0));
    });
}

/// Logs are too short to fill a copy.
fn short_logs(c: &Cluster) {
    let conf = PgConf {
        min_pg_log_entries: 1,
        target_pg_log_entries: 2,
        max_pg_log_entries: 4,
        pg_log_trim_min: 1,
        ..PgConf::default()
    };
    let hosts = c.cores.iter().flat_map(|core| core.hosts());
    hosts.for_each(|h| h.set_conf(&conf));
}

/// Shards move to another OSD and back, those that lead among them. What is written meanwhile is on
/// the copy that takes over, also where that has the position of the copy that leads.
#[test]
fn a_shard_moves_while_it_is_written() {
    run(async || {
        let mut c = coded().await;
        c.add_osd();
        let mut r = Rng(23);
        let mut model = BTreeMap::new();
        let names = names(8);
        up(&mut c, 3);
        for moved in [true, false, true, false] {
            short_logs(&c);
            for _ in 0..60 {
                let name = &names[r.below(8) as usize];
                change(&mut c, &mut r, name, &mut model).await;
            }
            c.next_map(|m| m.moved.0 = moved);
            let filled = |pg: &pg::Pg| {
                let mut targets = pg.backfills();
                targets.next().is_some_and(|b| b.fraction == 1.0 && b.missing == 0)
            };
            c.settle_to(filled).await;
            for _ in 0..40 {
                let name = &names[r.below(8) as usize];
                change(&mut c, &mut r, name, &mut model).await;
            }
            c.next_map(|m| m.moved.1 = moved);
            c.settle().await;
            check(&mut c, &model, &names).await;
            check_shards(&c).await;
            assert!(c.cores.iter().all(|core| core.failed().is_none()), "{moved}");
        }
    });
}

/// A shard is copied from its old holder only with a reservation there.
#[test]
fn a_backfill_waits_for_the_osd_that_it_reads() {
    run(async || {
        let mut c = coded().await;
        c.add_osd();
        short_logs(&c);
        for i in 0..60 {
            write(&mut c, &format!("o{}", i % 12), 0, bytes(20_000, i as u8)).await;
        }
        up(&mut c, 3);
        let filled = |pg: &pg::Pg| {
            let mut targets = pg.backfills();
            targets.next().is_some_and(|b| b.fraction == 1.0 && b.missing == 0)
        };
        // Another PG reads from osd.0.
        let other = SpgId { pgid: PgId { pool: POOL, seed: 99 }, shard: ShardId(1) };
        let turns = &c.cores[0].reservations.recovery;
        turns.borrow_mut().source.ask(other, 110, false);
        assert_eq!(turns.borrow_mut().source.next(1, true), Some(Turn::Granted(other)));
        c.next_map(|m| m.moved.0 = true);
        // osd.0 leads some PGs that leave it: these need no reservation of another OSD.
        let own = |pg: &pg::Pg| pg.pgid().seed.is_multiple_of(3);
        let waits = |pg: &pg::Pg| pg.state().has(PgState::BACKFILL_WAIT);
        c.settle_to(|pg| if own(pg) { filled(pg) } else { waits(pg) }).await;
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        c.settle_to(|pg| own(pg) || waits(pg)).await;
        let turns = &c.cores[0].reservations.recovery;
        assert_eq!(turns.borrow().source.holding(), 1);
        assert!(turns.borrow().source.waiting() > 0);
        turns.borrow_mut().source.leave(other);
        c.cores[0].next_turns();
        c.settle_to(filled).await;
        assert_eq!(c.cores[0].reservations.recovery.borrow().source.holding(), 0);
        c.next_map(|m| m.moved.1 = true);
        c.settle().await;
        check_shards(&c).await;
    });
}

/// A change that did not reach all shards that it names, and of which the primary goes, is taken
/// back where it is: bytes, attributes, clones, and objects that were made or removed.
#[test]
fn what_is_on_too_few_shards_is_taken_back() {
    run(async || {
        let full = |n: usize| Op {
            indata: bytes(n, 77).into(),
            ..on_extent(OpCode::WRITEFULL, 0, n as u64)
        };
        let part = Op { indata: vec![5; 9000].into(), ..on_extent(OpCode::WRITE, 3000, 9000) };
        let small = Op { indata: vec![5; 10].into(), ..on_extent(OpCode::WRITE, 4100, 10) };
        let changes: [(&str, Op, bool); 8] = [
            ("a", part.clone(), false),
            ("a", small, false),
            ("a", full(100), false),
            ("a", on_extent(OpCode::TRUNCATE, 5000, 0), false),
            ("a", on_extent(OpCode::ZERO, 100, 9000), false),
            ("a", on_extent(OpCode::DELETE, 0, 0), false),
            ("made", full(30_000), false),
            ("a", part, true),
        ];
        // The copy that the change does not reach has data, or parity.
        for (is_wide, unreached) in [(false, 1), (false, 2), (true, 1), (true, 4), (true, 5)] {
            for (name, op, snapshot) in &changes {
                let what = format!("{name} {:?} without shard {unreached}, {is_wide}", op.code);
                let mut c = if is_wide { wide().await } else { coded().await };
                let osds = c.cores.len() as i32;
                let old = bytes(20_000, 1);
                write(&mut c, "a", 0, old.clone()).await;
                if *snapshot {
                    c.snapc = SnapContext { seq: SnapId(1), snaps: vec![SnapId(1)] };
                }
                let (request, primary) = c.message(name, SnapId::NOSNAP, vec![op.clone()]);
                c.down.borrow_mut().push(OsdId((primary.0 + unreached) % osds));
                let mut answer = c.send(request, primary);
                for _ in 0..200 {
                    tokio::task::yield_now().await;
                }
                assert!(answer.try_recv().is_err(), "{what}: it is answered");
                c.down.borrow_mut().clear();
                down(&mut c, primary.0);
                c.settle().await;
                c.snapc = SnapContext::default();
                assert!(c.read("a").await[..] == old[..], "{what}: it is there");
                let made = c.op("made", vec![on_extent(OpCode::STAT, 0, 0)]).await;
                assert_eq!(made.result, Errno::ENOENT.as_result(), "{what}");
                // Without the clone the head is what the snapshot has.
                let r = c.op_at("a", SnapId(1), vec![on_extent(OpCode::READ, 0, 0)]).await;
                assert!(r.ops[0].outdata[..] == old[..], "{what}: the clone is there");
                write(&mut c, "a", 100, vec![8; 5000]).await;
                up(&mut c, primary.0);
                c.settle().await;
                let mut new = old.clone();
                new[100..5100].fill(8);
                assert!(c.read("a").await[..] == new[..], "{what}: after all are back");
                check_shards(&c).await;
                assert!(c.cores.iter().all(|core| core.failed().is_none()), "{what}");
            }
        }
    });
}

/// What an operation costs in shards and their bytes is counted.
#[test]
fn shards_and_their_bytes_are_counted() {
    run(async || {
        let mut c = coded().await;
        let sums = |c: &Cluster, names: &[&str]| -> Vec<u64> {
            let dumps: Vec<_> = c.cores.iter().map(|core| core.perf.dump()).collect();
            let sum = |name: &&str| dumps.iter().map(|d| d[*name].as_u64().unwrap()).sum();
            names.iter().map(sum).collect()
        };
        let writes = ["ec_write", "ec_shard_write", "ec_shard_write_bytes"];
        let reads = ["ec_read", "ec_shard_read", "ec_shard_read_remote", "ec_shard_read_bytes"];
        // A stripe: nothing is read for it.
        write(&mut c, "a", 0, bytes(8192, 1)).await;
        assert_eq!(sums(&c, &writes), [1, 3, 3 * 4096]);
        assert_eq!(sums(&c, &reads), [0, 0, 0, 0]);
        // The leading shard's bytes are here, the other's are not.
        read_at(&mut c, "a", 0, 4096).await;
        assert_eq!(sums(&c, &reads), [1, 1, 0, 4096]);
        read_at(&mut c, "a", 4096, 100).await;
        assert_eq!(sums(&c, &reads), [2, 2, 1, 4096 + 100]);
        // Half of a stripe: the other half is read, and parity is written.
        write(&mut c, "a", 0, bytes(4096, 2)).await;
        assert_eq!(sums(&c, &writes), [2, 5, 5 * 4096]);
        assert_eq!(sums(&c, &reads), [3, 3, 2, 2 * 4096 + 100]);
        assert_eq!(sums(&c, &["ec_read_degraded", "ec_rebuild", "ec_shard_read_late"]), [0, 0, 0]);
        // Without an OSD what it has is computed, if it has data of the object.
        let acting =
            c.map.mapping(c.map.fold(PgId { pool: POOL, seed: hash_of("a") }).unwrap()).acting;
        down(&mut c, acting[1].osd.0);
        c.settle().await;
        read_at(&mut c, "a", 4096, 4096).await;
        assert_eq!(sums(&c, &["ec_read_degraded"]), [1]);
        up(&mut c, acting[1].osd.0);
        c.settle().await;
        assert_eq!(sums(&c, &["ec_rebuild"]), [0], "nothing was written meanwhile");
    });
}

fn hash_of(name: &str) -> u32 {
    ObjectId::new(POOL, "", name.to_owned(), "", SnapId::NOSNAP).hash
}

/// Objects of which an OSD without room lacks its shard, as their primaries know it.
fn lacking(c: &Cluster, osd: i32, names: &[String]) -> Vec<String> {
    let lacks = |name: &&String| {
        let oid = ObjectId::new(POOL, "", name.to_string(), "", SnapId::NOSNAP);
        let pgid = c.map.fold(PgId { pool: POOL, seed: oid.hash }).unwrap();
        let lead = c.map.mapping(pgid).primary.unwrap();
        lead.osd.0 != osd
            && c.cores[lead.osd.0 as usize].hosts().iter().any(|h| {
                h.pgid == pgid
                    && h.with_pg(|pg| {
                        pg.is_primary() && pg.copies_lacking(&oid).iter().any(|s| s.osd.0 == osd)
                    })
            })
    };
    names.iter().filter(lacks).cloned().collect()
}

/// The shards of a returned OSD wait for room that only deletes of these objects give. A delete
/// that leaves a clone is a write, and waits for the shard.
#[test]
fn a_delete_goes_ahead_of_a_shard_that_waits_for_room() {
    run(async || {
        let mut c = Cluster::with_stores(|i| match i {
            2 => Store::memory_of(2 << 20),
            _ => Store::memory(),
        });
        c.map.coded = true;
        c.publish();
        c.settle().await;
        down(&mut c, 2);
        c.settle().await;
        let names: Vec<String> = (0..32).map(|n| format!("o{n}")).collect();
        for name in &names {
            write(&mut c, name, 0, bytes(256 << 10, 1)).await;
        }
        up(&mut c, 2);
        c.settle_to(|pg| pg.state().has(PgState::ACTIVE) && pg.mapping().acting.len() == 3).await;
        for _ in 0..5_000 {
            tokio::task::yield_now().await;
        }
        let lacking = lacking(&c, 2, &names);
        assert!(lacking.len() > 4, "{lacking:?}");
        let ask = async |c: &mut Cluster, name: &str| {
            let (request, to) =
                c.message(name, SnapId::NOSNAP, vec![on_extent(OpCode::DELETE, 0, 0)]);
            let mut answer = c.send(request, to);
            for _ in 0..2_000 {
                if let Ok(reply) = answer.try_recv() {
                    return Some(reply.result);
                }
                tokio::task::yield_now().await;
            }
            None
        };
        c.snapc = SnapContext { seq: SnapId(1), snaps: vec![SnapId(1)] };
        assert_eq!(ask(&mut c, &lacking[0]).await, None, "it leaves a clone");
        c.snapc = SnapContext::default();
        for name in &lacking[1..] {
            assert_eq!(ask(&mut c, name).await, Some(0), "{name}");
            let read = c.op(name, vec![on_extent(OpCode::READ, 0, 0)]).await;
            assert_eq!(read.result, Errno::ENOENT.as_result());
        }
    });
}
