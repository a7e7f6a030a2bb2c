//! What operations do, on a store in memory.

use super::*;
use crate::code::{Extent, on_extent, write_op};
use crate::copy::{Copied, CopyData, CopyRequest, CopySource, NoCopies};
use crate::object::{At, ObjectState, PoolRules, SnapSet, SnapSetExt, decode_attr};
use crate::seal::SealArgs;
use crate::snaps::trim;
use crate::store_reader::StoreReader;
use bytes::{BufMut, Bytes, BytesMut};
use cls::{LocalFuture, Origin, Registry};
use denc::{Decode, Encode, Features, Reader};
use pg::LogOp;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use store::{Coll, Store, Transaction};
use types::errno::Errno;
use types::{Epoch, Eversion, ObjectId, ObjectLocator, PoolId, ReqId, SnapContext, SnapId, Utime};

/// Runs a future that never waits: the store in memory answers at once.
fn now<T>(f: impl Future<Output = T>) -> T {
    let mut f = std::pin::pin!(f);
    match f.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(v) => v,
        Poll::Pending => panic!("a store in memory answers at once"),
    }
}

const COLL: Coll = Coll(1);

#[path = "many_snaps_test.rs"]
mod many_snaps;

struct Bench {
    reader: StoreReader,
    limits: Limits,
    pool: PoolRules,
    snapc: SnapContext,
    removed: Vec<SnapId>,
    version: u64,
    origin: Origin,
    classes: Registry,
    copies: Box<dyn CopySource>,
    entries: Vec<(LogOp, ObjectId)>,
    /// Whether a ping finds its watch connected.
    connected: bool,
    totals: pg::StatSum,
}

struct Ran {
    result: i32,
    outcomes: Vec<OpOutcome>,
    effects: crate::watch::Effects,
}

impl Ran {
    fn out(&self, i: usize) -> Bytes {
        self.outcomes[i].out_bytes()
    }
}

impl Bench {
    fn new() -> Self {
        let store = Rc::new(Store::memory());
        let mut t = Transaction::new();
        t.create_collection(COLL);
        store.submit(t).unwrap();
        Bench {
            reader: StoreReader::new(store, COLL),
            limits: Limits::default(),
            pool: PoolRules::default(),
            snapc: SnapContext::default(),
            removed: Vec::new(),
            version: 0,
            origin: Origin {
                entity: types::EntityName::client(1),
                addr: types::EntityAddr::default(),
                last_user_version: 0,
                snap_seq: 0,
                mtime: Utime::ZERO,
                now: Utime::ZERO,
                features: Features::ALL,
                min_compat_client: 12,
                require_osd_release: 16,
                min_alloc_size: 4096,
                stripe_width: 0,
            },
            classes: Registry::builtin(),
            copies: Box::new(NoCopies),
            entries: Vec::new(),
            connected: true,
            totals: pg::StatSum::default(),
        }
    }

    fn oid(&self) -> ObjectId {
        ObjectId::new(PoolId(1), "", "obj", "", SnapId::NOSNAP)
    }

    fn load(&self, oid: &ObjectId) -> ObjectState {
        match now(self.reader.attr(&oid.to_key(), OI_ATTR)) {
            Ok(b) => ObjectState { oid: oid.clone(), exists: true, oi: decode_attr(&b).unwrap() },
            Err(_) => ObjectState::absent(oid.clone()),
        }
    }

    fn snapset(&self) -> SnapSet {
        now(self.reader.attr(&self.oid().to_key(), SS_ATTR))
            .map_or_else(|_| SnapSet::default(), |b| decode_attr(&b).unwrap())
    }

    /// Executes a request on the head and applies it if it succeeds, as a daemon does.
    fn run(&mut self, ops: &[Op]) -> Ran {
        let oid = self.oid();
        self.run_at(&oid, ops)
    }

    fn run_at(&mut self, oid: &ObjectId, ops: &[Op]) -> Ran {
        let old = self.load(oid);
        let set = self.snapset();
        let removed = self.removed.clone();
        let watch = WatchEnv {
            entity: self.origin.entity,
            watch_timeout: 30,
            notify_timeout: 31,
            ping: &|_| self.connected,
            next_id: &|| 1 << 32 | 7,
        };
        let env = Env {
            reader: &self.reader,
            classes: &self.classes,
            copies: &*self.copies,
            limits: &self.limits,
            pool: self.pool,
            snapc: &self.snapc,
            snap_removed: &|s| removed.contains(&s),
            origin: &self.origin,
            watch: &watch,
            random: |out| out.fill(7),
        };
        let mut x = Exec::new(&env, oid.to_key(), &old, &set);
        let (result, outcomes) = now(x.run(ops));
        let effects = x.effects.take().map(|e| *e).unwrap_or_default();
        if result >= 0 && x.changes() {
            let sealed = x.seal(SealArgs {
                first_version: Eversion::new(Epoch(1), self.version + 1),
                last_user_version: self.version,
                reqid: ReqId::default(),
                mtime: Utime::new(1_700_000_000, 5),
                now: Utime::ZERO,
                return_code: 0,
                op_returns: Vec::new(),
            });
            self.version += sealed.entries.len() as u64;
            self.entries.extend(sealed.entries.iter().map(|e| (e.op, e.oid.clone())));
            self.totals.add(&sealed.stats);
            // By the wire form, as on a replica.
            let wire = sealed.txn.to_wire();
            assert_eq!(
                crate::txn::Mutations::from_wire(&wire.meta, &wire.data).unwrap(),
                sealed.txn
            );
            self.apply(sealed.txn);
            let after = self.load(oid);
            assert_eq!(after, sealed.new);
            assert_eq!(self.snapset(), sealed.snapset);
            if after.exists {
                let stat = now(self.reader.store.stat(COLL, &oid.to_key())).unwrap();
                assert_eq!(
                    stat.size, after.oi.size,
                    "the store and the object info agree on the size"
                );
            }
        }
        Ran { result, outcomes, effects }
    }

    fn apply(&mut self, txn: crate::txn::Mutations) {
        let mut t = Transaction::new();
        txn.into_store(COLL, &mut t, |_, _, _, _| {});
        self.reader.store.submit(t).unwrap();
    }

    fn ok(&mut self, op: Op) -> Bytes {
        let ran = self.run(&[op]);
        assert!(ran.result >= 0, "{}", ran.result);
        ran.out(0)
    }

    fn err(&mut self, op: Op) -> Errno {
        Errno::from_result(self.run(&[op]).result).expect("an error")
    }

    fn content(&mut self) -> Bytes {
        self.ok(on_extent(OpCode::READ, 0, 0))
    }
}

fn plain(code: OpCode) -> Op {
    on_extent(code, 0, 0)
}

fn with(code: OpCode, indata: impl Into<Bytes>) -> Op {
    Op::with_input(code, Extent::default().into(), indata.into())
}

fn full(data: &'static str) -> Op {
    Op { indata: data.into(), ..on_extent(OpCode::WRITEFULL, 0, data.len() as u64) }
}

fn append(data: &'static str) -> Op {
    Op { indata: data.into(), ..on_extent(OpCode::APPEND, 0, data.len() as u64) }
}

fn enc<T: Encode>(v: T) -> Bytes {
    v.to_bytes(Features::ALL)
}

fn b(s: &'static str) -> Bytes {
    Bytes::from_static(s.as_bytes())
}

fn cmpxattr(name: &str, value: &[u8], cmp_op: u8, cmp_mode: u8) -> Op {
    let mut op = Op::xattr(OpCode::CMPXATTR, name.as_bytes(), value);
    op.args = OpArgs::Xattr {
        name_len: name.len() as u32,
        value_len: value.len() as u32,
        cmp_op,
        cmp_mode,
    };
    op
}

#[test]
fn data_is_written_and_read() {
    let mut t = Bench::new();
    t.ok(write_op(2, "hello"));
    assert_eq!(t.content(), "\0\0hello");
    t.ok(append(" world"));
    assert_eq!(t.content(), "\0\0hello world");
    assert_eq!(t.ok(on_extent(OpCode::READ, 4, 3)), "llo");
    assert_eq!(t.ok(on_extent(OpCode::READ, 12, 100)), "d");
    assert_eq!(t.ok(on_extent(OpCode::READ, 13, 100)), "");
    t.ok(full("new"));
    assert_eq!(t.content(), "new");
    t.ok(on_extent(OpCode::TRUNCATE, 1, 0));
    assert_eq!(t.content(), "n");
    t.ok(on_extent(OpCode::TRUNCATE, 3, 0));
    assert_eq!(t.content(), "n\0\0");
    t.ok(full(""));
    assert_eq!(t.content(), "");
    assert_eq!(t.totals.num_objects, 1);
    assert_eq!(t.totals.num_bytes, 0);
}

#[test]
fn zeroing_the_end_truncates() {
    let mut t = Bench::new();
    t.ok(full("0123456789"));
    t.ok(on_extent(OpCode::ZERO, 2, 3));
    assert_eq!(t.content(), "01\0\0\x0056789");
    t.ok(on_extent(OpCode::ZERO, 7, 3));
    assert_eq!(t.content(), "01\0\0\x0056");
    t.ok(on_extent(OpCode::ZERO, 100, 5));
    assert_eq!(t.content().len(), 7, "behind the end there is nothing to zero");
    let mut absent = Bench::new();
    absent.ok(on_extent(OpCode::ZERO, 0, 5));
    assert!(absent.entries.is_empty());
}

#[test]
fn patterns_are_repeated() {
    let mut t = Bench::new();
    let same = |offset, length, data: &'static str, data_length| {
        Op::with_input(
            OpCode::WRITESAME,
            OpArgs::WriteSame { offset, length, data_length },
            b(data),
        )
    };
    t.ok(same(1, 6, "ab", 2));
    assert_eq!(t.content(), "\0ababab");
    assert_eq!(t.err(same(0, 5, "ab", 2)), Errno::EINVAL);
    assert_eq!(t.err(same(0, 6, "ab", 3)), Errno::EINVAL);
    assert_eq!(t.err(same(0, u64::MAX - 1, "ab", 2)), Errno::EFBIG);
    t.ok(same(0, 0, "", 0));
}

#[test]
fn sizes_are_limited() {
    let mut t = Bench::new();
    let max = t.limits.object_size;
    t.ok(write_op(max - 1, "x"));
    assert_eq!(t.err(write_op(max, "x")), Errno::EFBIG);
    assert_eq!(t.err(write_op(max - 1, "xx")), Errno::EFBIG);
    assert_eq!(t.err(on_extent(OpCode::TRUNCATE, max, 0)), Errno::EFBIG);
    assert_eq!(t.err(on_extent(OpCode::ZERO, u64::MAX, u64::MAX)), Errno::EFBIG);
    assert_eq!(t.err(Op { indata: b("abc"), ..on_extent(OpCode::WRITE, 0, 4) }), Errno::EINVAL);
    assert_eq!(t.err(Op { indata: b("abc"), ..on_extent(OpCode::WRITEFULL, 0, 2) }), Errno::EINVAL);
}

#[test]
fn absent_objects() {
    let mut t = Bench::new();
    for (op, errno) in [
        (plain(OpCode::STAT), Errno::ENOENT),
        (plain(OpCode::DELETE), Errno::ENOENT),
        (Op::xattr(OpCode::GETXATTR, b"a", b""), Errno::ENOENT),
        (Op::xattr(OpCode::RMXATTR, b"a", b""), Errno::ENOENT),
        (with(OpCode::OMAPRMKEYS, enc(vec![b("k")])), Errno::ENOENT),
        (with(OpCode::OMAPRMKEYRANGE, enc((b("a"), b("b")))), Errno::ENOENT),
        (plain(OpCode::OMAPCLEAR), Errno::ENOENT),
        (with(OpCode::OMAP_CMP, enc(BTreeMap::<Bytes, (Bytes, i32)>::new())), Errno::ENOENT),
    ] {
        assert_eq!(t.err(op.clone()), errno, "{op:?}");
    }
    // Truncating what does not exist succeeds and changes nothing.
    t.ok(on_extent(OpCode::TRUNCATE, 5, 0));
    assert!(t.entries.is_empty());
    assert_eq!(t.ok(with(OpCode::OMAPGETKEYS, enc((b(""), 10u64)))), enc((0u32, false)));
}

#[test]
fn create_is_exclusive_on_demand() {
    let mut t = Bench::new();
    let excl = Op { flags: OpFlags::EXCL, ..plain(OpCode::CREATE) };
    t.ok(excl.clone());
    assert_eq!(t.err(excl), Errno::EEXIST);
    t.ok(plain(OpCode::CREATE));
    assert_eq!(t.ok(plain(OpCode::STAT)), enc((0u64, Utime::new(1_700_000_000, 5))));
    assert_eq!(t.entries.len(), 2);
}

#[test]
fn a_failure_undoes_the_request() {
    let mut t = Bench::new();
    t.ok(full("before"));
    let ran = t.run(&[
        full("after"),
        plain(OpCode::STAT),
        Op::new(OpCode(0x2fff), OpArgs::Unknown([0; 28])),
        full("x"),
    ]);
    assert_eq!(ran.result, Errno::EOPNOTSUPP.as_result());
    assert_eq!(ran.outcomes.len(), 3, "operations behind the failure do not run");
    assert_eq!(t.content(), "before");
    assert_eq!(t.entries.len(), 1);
}

#[test]
fn a_failure_may_be_allowed() {
    let mut t = Bench::new();
    let try_stat = Op { flags: OpFlags::FAILOK, ..plain(OpCode::STAT) };
    let ran = t.run(&[try_stat, full("x")]);
    assert_eq!(ran.result, 0);
    assert_eq!(ran.outcomes[0].rval, Errno::ENOENT.as_result());
    assert_eq!(t.content(), "x");
}

#[test]
fn a_request_reads_what_was_before_it() {
    let mut t = Bench::new();
    t.ok(full("before"));
    let ran = t.run(&[write_op(0, "AFTER!"), on_extent(OpCode::READ, 0, 0)]);
    assert_eq!(ran.out(1), "before");
    // But the size is the new one.
    let ran = t.run(&[append("++"), plain(OpCode::STAT)]);
    assert_eq!(ran.out(1)[..8], 8u64.to_le_bytes());
}

#[test]
fn extents_are_compared() {
    let mut t = Bench::new();
    t.ok(full("abcdef"));
    let cmp = |offset, data: &'static str| Op {
        indata: b(data),
        ..on_extent(OpCode::CMPEXT, offset, data.len() as u64)
    };
    t.ok(cmp(2, "cde"));
    assert_eq!(t.run(&[cmp(2, "cdX")]).result, -4095 - 2);
    assert_eq!(t.run(&[cmp(5, "f\0\0")]).result, 0, "what is behind the end counts as zeros");
    assert_eq!(t.run(&[cmp(5, "f\0x")]).result, -4095 - 2);
    // As a guard of a write.
    assert_eq!(t.run(&[cmp(0, "zzz"), full("no")]).result, -4095);
    assert_eq!(t.content(), "abcdef");
}

#[test]
fn numbered_truncations_order_reads_and_writes() {
    let mut t = Bench::new();
    t.ok(full("0123456789"));
    let read = |seq, size| {
        Op::new(
            OpCode::READ,
            Extent { offset: 0, length: 20, truncate_seq: seq, truncate_size: size }.into(),
        )
    };
    assert_eq!(t.ok(read(5, 4)), "0123", "the reader knows of a truncation that has not come yet");
    let trim = Op::new(
        OpCode::TRIMTRUNC,
        Extent { truncate_seq: 5, truncate_size: 4, ..Extent::default() }.into(),
    );
    t.ok(trim.clone());
    assert_eq!(t.content(), "0123");
    // An old write behind the new end is cut.
    let write = |offset, seq, size| Op {
        indata: b("WXYZ"),
        ..Op::new(
            OpCode::WRITE,
            Extent { offset, length: 4, truncate_seq: seq, truncate_size: size }.into(),
        )
    };
    t.ok(write(2, 3, 9));
    assert_eq!(t.content(), "01WX");
    // A write that is newer than the last truncation brings it along.
    t.ok(write(4, 7, 1));
    assert_eq!(t.content(), "0\0\0\0WXYZ");
    let before = t.entries.len();
    t.ok(trim);
    assert_eq!((t.content().len(), t.entries.len()), (8, before), "an old truncation does nothing");
}

#[test]
fn sparse_reads_name_what_is_there() {
    let mut t = Bench::new();
    t.ok(write_op(8192, vec![7u8; 4096]));
    let out = t.ok(on_extent(OpCode::SPARSE_READ, 0, 1 << 20));
    let mut r = Reader::new(out);
    let extents: BTreeMap<u64, u64> = r.get().unwrap();
    let data: Bytes = r.get().unwrap();
    r.expect_end("reply").unwrap();
    assert_eq!(extents, BTreeMap::from([(8192, 4096)]));
    assert_eq!(data, vec![7u8; 4096]);
    let map: BTreeMap<u64, u64> =
        BTreeMap::from_bytes(&t.ok(on_extent(OpCode::MAPEXT, 0, 9000))).unwrap();
    assert_eq!(map, BTreeMap::from([(8192, 808)]));
}

#[test]
fn sparse_reads_know_of_truncations_on_their_way() {
    let mut t = Bench::new();
    t.ok(write_op(4096, vec![7u8; 8192]));
    let extents = |t: &mut Bench, offset, length, truncate_seq, truncate_size| {
        let e = Extent { offset, length, truncate_size, truncate_seq };
        let mut r = Reader::new(t.ok(Op::new(OpCode::SPARSE_READ, e.into())));
        let extents: BTreeMap<u64, u64> = r.get().unwrap();
        let data: Bytes = r.get().unwrap();
        assert!(data.len() as u64 == extents.values().sum::<u64>() && data.iter().all(|b| *b == 7));
        extents.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(extents(&mut t, 0, 1 << 20, 1, 5000), [(4096, 904)]);
    assert_eq!(extents(&mut t, 0, 1 << 20, 1, 4096), []);
    assert_eq!(extents(&mut t, 4096, 100, 1, 5000), [(4096, 100)], "all of it is before the cut");
    assert_eq!(extents(&mut t, 6000, 100, 1, 5000), []);
    assert_eq!(extents(&mut t, 0, 1 << 20, 1, 1 << 20), [(4096, 8192)]);
    // The object has seen that truncation, or a later one.
    let done = Extent { offset: 10_000, truncate_seq: 3, truncate_size: 10_000, length: 0 };
    t.ok(Op::new(OpCode::TRUNCATE, done.into()));
    assert_eq!(extents(&mut t, 0, 1 << 20, 3, 5000), [(4096, 10_000 - 4096)]);
    assert_eq!(extents(&mut t, 0, 1 << 20, 4, 5000), [(4096, 904)]);
}

#[test]
fn sparse_reads_after_zeroes_name_what_is_left() {
    let mut t = Bench::new();
    t.ok(write_op(0, vec![1u8; 65536]));
    let map = |t: &mut Bench, offset, length| {
        let out = t.ok(on_extent(OpCode::SPARSE_READ, offset, length));
        let mut r = Reader::new(out);
        let extents: BTreeMap<u64, u64> = r.get().unwrap();
        let data: Bytes = r.get().unwrap();
        assert_eq!(data.len() as u64, extents.values().sum::<u64>());
        (extents.into_iter().collect::<Vec<_>>(), data)
    };
    // Whole blocks become holes; those touched at an edge stay, with zeroes in them.
    t.ok(on_extent(OpCode::ZERO, 5000, 10000));
    let (extents, data) = map(&mut t, 0, 1 << 20);
    assert_eq!(extents, [(0, 8192), (12288, 53248)]);
    assert!(data[..5000].iter().all(|b| *b == 1) && data[5000..8192].iter().all(|b| *b == 0));
    assert!(
        data[8192..8192 + 2712].iter().all(|b| *b == 0)
            && data[8192 + 2712..].iter().all(|b| *b == 1)
    );
    // A range within a hole has nothing, one over its border what is behind it.
    assert_eq!(map(&mut t, 8192, 4096).0, []);
    assert_eq!(map(&mut t, 9000, 4096).0, [(12288, 808)]);
    // Zeroes up to the end, or beyond it, cut the object off.
    t.ok(on_extent(OpCode::ZERO, 40960, 1 << 20));
    assert_eq!(map(&mut t, 0, 1 << 20).0, [(0, 8192), (12288, 28672)]);
    t.ok(on_extent(OpCode::TRUNCATE, 30000, 0));
    assert_eq!(map(&mut t, 0, 1 << 20).0, [(0, 8192), (12288, 30000 - 12288)]);
    // What a snapshot holds has its extents still.
    t.snapc = context(1, &[1]);
    t.ok(on_extent(OpCode::ZERO, 0, 8192));
    assert_eq!(map(&mut t, 0, 1 << 20).0, [(12288, 30000 - 12288)]);
    let clone = t.oid().at(SnapId(1));
    let out = t.run_at(&clone, &[on_extent(OpCode::SPARSE_READ, 0, 1 << 20)]).out(0);
    let extents: BTreeMap<u64, u64> = Reader::new(out).get().unwrap();
    assert_eq!(extents, BTreeMap::from([(0, 8192), (12288, 30000 - 12288)]));
}

#[test]
fn checksums_are_computed_by_chunk() {
    let mut t = Bench::new();
    t.ok(full("aaaabbbb"));
    let sum = |offset, length, chunk_size, kind, init: &'static [u8]| {
        Op::with_input(
            OpCode::CHECKSUM,
            OpArgs::Checksum { offset, length, chunk_size, kind },
            Bytes::from_static(init),
        )
    };
    let out = t.ok(sum(0, 8, 4, 2, &[0xff; 4]));
    assert_eq!(out[..4], 2u32.to_le_bytes());
    assert_eq!(out[4..8], denc::crc::crc32c(u32::MAX, b"aaaa").to_le_bytes());
    assert_eq!(out[8..], denc::crc::crc32c(u32::MAX, b"bbbb").to_le_bytes());
    assert_eq!(t.ok(sum(0, 0, 0, 1, &[0; 8])).len(), 12);
    assert_eq!(t.err(sum(0, 8, 3, 2, &[0; 4])), Errno::EINVAL);
    assert_eq!(t.err(sum(0, 8, 4, 9, &[0; 4])), Errno::EINVAL);
    assert_eq!(t.err(sum(0, 8, 4, 1, &[0; 4])), Errno::EINVAL);
    assert_eq!(t.ok(sum(100, 8, 4, 2, &[0; 4])), "");
}

#[test]
fn attributes() {
    let mut t = Bench::new();
    t.ok(Op::xattr(OpCode::SETXATTR, b"a", b"one"));
    t.ok(Op::xattr(OpCode::SETXATTR, b"n", b"10"));
    assert_eq!(t.ok(Op::xattr(OpCode::GETXATTR, b"a", b"")), "one");
    assert_eq!(t.err(Op::xattr(OpCode::GETXATTR, b"zzz", b"")), Errno::ENODATA);
    let all: BTreeMap<Bytes, Bytes> =
        BTreeMap::from_bytes(&t.ok(Op::xattr(OpCode::GETXATTRS, b"", b""))).unwrap();
    assert_eq!(
        all,
        BTreeMap::from([(b("a"), b("one")), (b("n"), b("10"))]),
        "the OSD's own attributes are hidden"
    );
    for (name, value, op, mode, result) in [
        ("a", &b"one"[..], 1, 1, 1),
        ("a", b"two", 1, 1, -125),
        ("a", b"two", 3, 1, 1),
        ("a", b"two", 4, 1, 1),
        ("a", b"two", 5, 1, -125),
        ("a", b"two", 2, 1, 1),
        ("n", &9u64.to_le_bytes(), 5, 2, 1),
        ("n", &10u64.to_le_bytes(), 6, 2, 1),
        ("n", &11u64.to_le_bytes(), 3, 2, 1),
        ("absent", b"", 1, 1, 1),
        ("absent", &0u64.to_le_bytes(), 1, 2, 1),
        ("a", b"one", 9, 1, -22),
        ("a", b"one", 1, 9, -22),
        ("n", b"short", 1, 2, -22),
    ] {
        assert_eq!(
            t.run(&[cmpxattr(name, value, op, mode)]).result,
            result,
            "{name} {value:?} {op} {mode}"
        );
    }
    t.ok(Op::xattr(OpCode::RMXATTR, b"a", b""));
    t.ok(Op::xattr(OpCode::RMXATTR, b"a", b""));
    assert_eq!(t.err(Op::xattr(OpCode::GETXATTR, b"a", b"")), Errno::ENODATA);
    assert_eq!(t.err(Op::xattr(OpCode::SETXATTR, &[b'x'; 101], b"")), Errno::ENAMETOOLONG);
    t.limits.attr_size = 2;
    assert_eq!(t.err(Op::xattr(OpCode::SETXATTR, b"a", b"123")), Errno::EFBIG);
    let mut short = Op::xattr(OpCode::SETXATTR, b"a", b"1");
    short.args = OpArgs::Xattr { name_len: 50, value_len: 1, cmp_op: 0, cmp_mode: 0 };
    assert_eq!(t.err(short), Errno::EINVAL);
}

type Rows = BTreeMap<Bytes, Bytes>;

fn rows(names: &[&'static str]) -> Rows {
    names.iter().map(|n| (b(n), b("v"))).collect()
}

#[test]
fn omap() {
    let mut t = Bench::new();
    assert_eq!(t.ok(plain(OpCode::OMAPGETHEADER)), "");
    t.ok(with(OpCode::OMAPSETVALS, enc(rows(&["a1", "a2", "a3", "b1", "b2"]))));
    t.ok(with(OpCode::OMAPSETHEADER, "head"));
    assert_eq!(t.ok(plain(OpCode::OMAPGETHEADER)), "head");
    let keys = |t: &mut Bench, after: &'static str, max: u64| {
        let mut r = Reader::new(t.ok(with(OpCode::OMAPGETKEYS, enc((b(after), max)))));
        let keys: Vec<Bytes> = r.get().unwrap();
        let more: bool = r.get().unwrap();
        (keys, more)
    };
    assert_eq!(keys(&mut t, "", 2), (vec![b("a1"), b("a2")], true));
    assert_eq!(keys(&mut t, "a2", 10), (vec![b("a3"), b("b1"), b("b2")], false));
    assert_eq!(keys(&mut t, "", 0), (vec![], true));
    assert_eq!(keys(&mut t, "b2", 0), (vec![], false));
    let vals = |t: &mut Bench, after: &'static str, max: u64, prefix: &'static str| {
        let mut r = Reader::new(t.ok(with(OpCode::OMAPGETVALS, enc((b(after), max, b(prefix))))));
        let rows: Rows = r.get().unwrap();
        let more: bool = r.get().unwrap();
        (rows.into_keys().collect::<Vec<_>>(), more)
    };
    assert_eq!(vals(&mut t, "", 10, "b"), (vec![b("b1"), b("b2")], false));
    assert_eq!(vals(&mut t, "", 3, "a"), (vec![b("a1"), b("a2"), b("a3")], false));
    assert_eq!(vals(&mut t, "", 2, "a"), (vec![b("a1"), b("a2")], true));
    assert_eq!(vals(&mut t, "a1", 5, "a"), (vec![b("a2"), b("a3")], false));
    t.limits.omap_entries = 1;
    assert_eq!(keys(&mut t, "", 100), (vec![b("a1")], true), "the OSD's own limit holds too");
    t.limits.omap_entries = 1024;
    let got = t.ok(with(OpCode::OMAPGETVALSBYKEYS, enc(vec![b("zz"), b("b1"), b("a1")])));
    assert_eq!(Rows::from_bytes(&got).unwrap(), rows(&["a1", "b1"]));
    let cmp = |value: &'static str, op: i32| {
        with(OpCode::OMAP_CMP, enc(BTreeMap::from([(b("a1"), (b(value), op))])))
    };
    for (value, op, result) in
        [("v", 1, 0), ("w", 1, -125), ("w", 5, 0), ("a", 3, 0), ("v", 2, -22), ("v", 4, -22)]
    {
        assert_eq!(t.run(&[cmp(value, op)]).result, result, "{value} {op}");
    }
    t.ok(with(
        OpCode::OMAPSETVALS,
        enc(BTreeMap::from([(b("high"), Bytes::from_static(b"\xf0"))])),
    ));
    let high = |op: i32| with(OpCode::OMAP_CMP, enc(BTreeMap::from([(b("high"), (b("5"), op))])));
    assert_eq!(t.run(&[high(5)]).result, 0, "bytes compare as signed numbers");
    assert_eq!(t.run(&[high(3)]).result, -125);
    t.ok(with(OpCode::OMAPRMKEYS, enc(vec![b("high")])));
    t.ok(with(OpCode::OMAPRMKEYS, enc(vec![b("a1"), b("zz")])));
    t.ok(with(OpCode::OMAPRMKEYRANGE, enc((b("a3"), b("b2")))));
    assert_eq!(keys(&mut t, "", 10), (vec![b("a2"), b("b2")], false));
    assert_eq!(t.totals.num_objects_omap, 1);
    t.ok(plain(OpCode::OMAPCLEAR));
    assert_eq!(keys(&mut t, "", 10), (vec![], false));
    assert_eq!(t.ok(plain(OpCode::OMAPGETHEADER)), "");
    assert_eq!(t.totals.num_objects_omap, 0);
    assert_eq!(t.err(with(OpCode::OMAPSETVALS, "x")), Errno::EINVAL);
    // A deleted object takes its rows along.
    t.ok(with(OpCode::OMAPSETVALS, enc(rows(&["k"]))));
    t.ok(plain(OpCode::DELETE));
    t.ok(plain(OpCode::CREATE));
    assert_eq!(keys(&mut t, "", 10), (vec![], false));
    assert_eq!((t.totals.num_objects, t.totals.num_objects_omap), (1, 0));
}

#[test]
fn versions_grow_and_can_be_asserted() {
    let mut t = Bench::new();
    t.ok(full("1"));
    t.ok(full("2"));
    let v = t.load(&t.oid()).oi.user_version;
    let assert_ver = |ver| Op::new(OpCode::ASSERT_VER, OpArgs::AssertVer { ver });
    t.ok(assert_ver(v));
    assert_eq!(t.err(assert_ver(v - 1)), Errno::ERANGE);
    assert_eq!(t.err(assert_ver(v + 1)), Errno::EOVERFLOW);
    assert_eq!(t.err(assert_ver(0)), Errno::EINVAL);
}

#[test]
fn trivial_maps() {
    let mut t = Bench::new();
    let input = |code, data: &'static [u8]| Op {
        indata: Bytes::from_static(data),
        ..on_extent(code, 0, 0)
    };
    let set: &[u8] = b"s\x01\0\0\0b\0\0\0\0";
    t.ok(input(OpCode::TMAPUP, set));
    let one: &[u8] = b"\0\0\0\0\x01\0\0\0\x01\0\0\0b\0\0\0\0";
    assert_eq!(t.ok(on_extent(OpCode::TMAPGET, 0, 0)), one);
    assert_eq!(t.err(input(OpCode::TMAPUP, b"c\x01\0\0\0b\0\0\0\0")), Errno::EEXIST);
    assert_eq!(t.err(input(OpCode::TMAPUP, b"r\x01\0\0\0a")), Errno::ENOENT);
    t.ok(input(OpCode::TMAPUP, b""));
    t.ok(input(OpCode::TMAPUP, b"r\x01\0\0\0b"));
    assert_eq!(t.ok(on_extent(OpCode::READ, 0, 0)), b"\0\0\0\0\0\0\0\0"[..]);
    // Rows out of order are sorted.
    let unsorted: &[u8] = b"\x01\0\0\0h\x02\0\0\0\x01\0\0\0b\0\0\0\0\x01\0\0\0a\x01\0\0\0v";
    t.ok(input(OpCode::TMAPPUT, unsorted));
    assert_eq!(
        t.ok(on_extent(OpCode::TMAPGET, 0, 0)),
        b"\x01\0\0\0h\x02\0\0\0\x01\0\0\0a\x01\0\0\0v\x01\0\0\0b\0\0\0\0"[..]
    );
    assert_eq!(t.err(input(OpCode::TMAPPUT, b"\x09\0")), Errno::EINVAL);
    let to_omap = |flags| Op::new(OpCode::TMAP2OMAP, OpArgs::Tmap2Omap { flags });
    t.ok(to_omap(0));
    assert_eq!(t.load(&t.oid()).oi.size, 0);
    assert_eq!(t.ok(plain(OpCode::OMAPGETHEADER)), b"h"[..]);
    let keys =
        BTreeMap::from([(Bytes::from("a"), Bytes::from("v")), (Bytes::from("b"), Bytes::new())]);
    let names: std::collections::BTreeSet<Bytes> = keys.keys().cloned().collect();
    let found =
        t.ok(Op { indata: names.to_bytes(Features::ALL), ..plain(OpCode::OMAPGETVALSBYKEYS) });
    assert_eq!(BTreeMap::<Bytes, Bytes>::from_bytes(&found).unwrap(), keys);
    assert_eq!(t.err(to_omap(0)), Errno::ENODATA);
    t.ok(to_omap(1));
}

#[test]
fn what_is_not_supported_says_so() {
    let mut t = Bench::new();
    t.ok(full("x"));
    for code in [OpCode::SETXATTRS, OpCode::RESETXATTRS, OpCode::SETTRUNC] {
        assert_eq!(t.err(Op::new(code, OpArgs::Unknown([0; 28]))), Errno::EOPNOTSUPP, "{code}");
    }
    for code in
        [OpCode::CACHE_FLUSH, OpCode::CACHE_EVICT, OpCode::CACHE_TRY_FLUSH, OpCode::CACHE_PIN]
    {
        assert_eq!(t.err(plain(code)), Errno::EINVAL, "{code}");
    }
    assert_eq!(t.err(Op::call("rbd", "no such method", b"").unwrap()), Errno::EOPNOTSUPP);
    assert_eq!(
        t.err(Op::call("cephfs", "accumulate_inode_metadata", b"").unwrap()),
        Errno::EOPNOTSUPP,
        "Ceph has it"
    );
    assert_eq!(
        t.err(Op::call("nosuchclass", "create", b"").unwrap()),
        Errno::EPERM,
        "Ceph would not load it"
    );
}

/// What Ceph refuses in a pool with these rules, asked of an object of 8 bytes that has no omap.
fn refused(append_unit: Option<u64>, stock_refusals: bool, op: Op) -> bool {
    let mut t = Bench::new();
    t.ok(full("12345678"));
    t.pool.stock = Some(crate::object::StockRefusals { append_unit });
    t.limits.stock_refusals = stock_refusals;
    let result = t.run(&[op]).result;
    assert!(result == 0 || result == Errno::EOPNOTSUPP.as_result(), "{result}");
    result < 0
}

#[test]
fn an_erasure_coded_pool_refuses_what_ceph_refuses_if_it_is_asked_to() {
    let omap = || with(OpCode::OMAPSETVALS, enc(rows(&["k"])));
    let header = || with(OpCode::OMAPSETHEADER, "h");
    let names = || with(OpCode::OMAPRMKEYS, enc(vec![b("k")]));
    let range = || with(OpCode::OMAPRMKEYRANGE, enc((b("a"), b("z"))));
    let sync_read = || plain(OpCode::SYNC_READ);
    let map = || on_extent(OpCode::MAPEXT, 0, 8);
    let clear = || plain(OpCode::OMAPCLEAR);
    let always: [&dyn Fn() -> Op; 7] = [&omap, &header, &names, &range, &clear, &sync_read, &map];
    for op in always {
        assert!(refused(None, true, op()) && refused(Some(8), true, op()));
        assert!(!refused(None, false, op()) && !refused(Some(8), false, op()));
    }
    let shorten = || on_extent(OpCode::TRUNCATE, 4, 0);
    let zero = || on_extent(OpCode::ZERO, 0, 4);
    let over = || write_op(0, "over");
    let behind = || write_op(16, "x");
    let huge = OpArgs::WriteSame { offset: 1, length: u64::MAX, data_length: 1 };
    let same = || Op::with_input(OpCode::WRITESAME, huge, b("x"));
    assert!(refused(Some(8), true, same()), "whatever the length is");
    for op in [&shorten as &dyn Fn() -> Op, &zero, &over, &behind] {
        assert!(refused(Some(8), true, op()));
        assert!(!refused(None, true, op()) && !refused(Some(8), false, op()));
    }
    // Whole objects, appends behind whole stripes, attributes and reads are no overwrites.
    let zero_behind = || on_extent(OpCode::ZERO, 8, 4);
    let at_end = || write_op(8, "x");
    for op in [&|| full("y") as Op, &|| append("z"), &at_end, &zero_behind, &|| plain(OpCode::STAT)]
        as [&dyn Fn() -> Op; 5]
    {
        assert!(!refused(Some(8), true, op()));
    }
    assert!(refused(Some(16), true, append("z")), "no stripe ends here");
}

fn watch(what: u8, cookie: u64, timeout: u32) -> Op {
    Op::new(OpCode::WATCH, OpArgs::Watch { cookie, ver: 0, op: what, gen_: 1, timeout })
}

fn watchers(t: &mut Bench) -> Vec<(i64, u64, u32)> {
    let list =
        types::replies::ListWatchersResponse::from_bytes(&t.ok(plain(OpCode::LIST_WATCHERS)))
            .unwrap();
    list.entries.iter().map(|w| (w.name.num, w.cookie, w.timeout_seconds)).collect()
}

#[test]
fn a_watch_is_kept_in_the_info_of_the_object() {
    use crate::watch::Begun;
    use types::rados::watch_op::{LEGACY_WATCH, PING, RECONNECT, UNWATCH, WATCH};
    let mut t = Bench::new();
    assert_eq!(t.err(watch(WATCH, 5, 0)), Errno::ENOENT);
    t.ok(full("x"));
    let version = t.load(&t.oid()).oi.user_version;
    assert_eq!(
        t.ok(plain(OpCode::LIST_WATCHERS)),
        Bytes::from_static(&[1, 1, 4, 0, 0, 0, 0, 0, 0, 0])
    );
    assert_eq!(t.err(watch(PING, 5, 0)), Errno::ENOTCONN);
    assert_eq!(t.err(watch(RECONNECT, 5, 0)), Errno::ENOTCONN);
    t.entries.clear();
    t.totals = pg::StatSum::default();
    let ran = t.run(&[watch(WATCH, 5, 0)]);
    assert_eq!(
        (ran.result, ran.effects.begun),
        (0, vec![Begun { cookie: 5, timeout: 30, pings: true }])
    );
    let ran = t.run(&[watch(LEGACY_WATCH, 4, 9)]);
    assert_eq!(ran.effects.begun, [Begun { cookie: 4, timeout: 9, pings: false }]);
    t.origin.entity = types::EntityName::client(3);
    t.ok(watch(WATCH, 4, 8));
    assert_eq!(watchers(&mut t), [(1, 4, 9), (3, 4, 8), (1, 5, 30)]);
    t.origin.entity = types::EntityName::client(1);
    assert_eq!(t.entries.len(), 3, "a watch is logged");
    assert_eq!(t.totals.num_wr, 0, "but counts as no write");
    assert_eq!(
        t.load(&t.oid()).oi.user_version,
        version,
        "nor does it change the version that users see"
    );
    // Again, and again: nothing changes in the info.
    let ran = t.run(&[watch(WATCH, 5, 100), watch(RECONNECT, 4, 100)]);
    assert_eq!((ran.result, ran.effects.begun.len(), t.entries.len()), (0, 2, 3));
    assert_eq!(t.run(&[watch(PING, 5, 0)]).effects, Default::default());
    t.connected = false;
    assert_eq!(t.err(watch(PING, 5, 0)), Errno::ETIMEDOUT);
    let ran = t.run(&[watch(UNWATCH, 4, 0), watch(UNWATCH, 99, 0)]);
    assert_eq!((ran.result, ran.effects.ended), (0, vec![((4, t.origin.entity), false)]));
    assert_eq!(watchers(&mut t), [(3, 4, 8), (1, 5, 30)]);
}

#[test]
fn watchers_are_of_the_head_and_end_with_it() {
    use types::rados::watch_op::WATCH;
    let mut t = Bench::new();
    t.ok(full("x"));
    t.ok(watch(WATCH, 5, 0));
    let roll = |snap| Op::new(OpCode::ROLLBACK, OpArgs::Snap { snapid: SnapId(snap) });
    t.snapc = SnapContext { seq: SnapId(4), snaps: vec![SnapId(4)] };
    t.ok(full("y"));
    assert_eq!(t.load(&t.oid().at(SnapId(4))).oi.watchers.len(), 0);
    t.ok(roll(4));
    assert_eq!(watchers(&mut t), [(1, 5, 30)]);
    t.removed.push(SnapId(4));
    assert_eq!(t.err(roll(4)), Errno::EBUSY, "the object did not exist then, but it is watched");
    let ran = t.run(&[plain(OpCode::DELETE)]);
    assert_eq!(ran.effects.ended, [((5, t.origin.entity), true)]);
    let after = t.load(&t.oid());
    assert!(after.exists && after.oi.watchers.is_empty(), "the whiteout has no watchers");
}

#[test]
fn notifications_and_answers_are_read_with_what_old_clients_leave_out() {
    use crate::watch::{NotifyAck, NotifyStart};
    let mut t = Bench::new();
    t.ok(full("x"));
    let notify =
        |data: Bytes| Op { indata: data, ..Op::new(OpCode::NOTIFY, OpArgs::Notify { cookie: 6 }) };
    let ran = t.run(&[notify(enc((1u32, 4u32, b("text"))))]);
    let id = 1u64 << 32 | 7;
    assert_eq!(ran.out(0), id.to_le_bytes()[..]);
    let start = NotifyStart { id, cookie: 6, timeout: 4, payload: b("text") };
    assert_eq!(ran.effects.notifies, std::slice::from_ref(&start));
    let ran = t.run(&[notify(b("what?"))]);
    assert_eq!(ran.effects.notifies, [NotifyStart { timeout: 31, payload: Bytes::new(), ..start }]);
    let ack = |data: Bytes| {
        let args = OpArgs::Watch { cookie: 8, ver: 0, op: 0, gen_: 0, timeout: 0 };
        Op { indata: data, ..Op::new(OpCode::NOTIFY_ACK, args) }
    };
    let ran = t.run(&[
        ack(enc((8u64, 5u64, b("re")))),
        ack(enc((8u64, 5u64))),
        ack(Bytes::new()),
        ack(enc((1u64, 5u64, 9u32))),
    ]);
    let old = NotifyAck { id: 8, cookie: None, reply: Bytes::new() };
    let new = NotifyAck { cookie: Some(5), ..old.clone() };
    assert_eq!(
        ran.effects.acks,
        [NotifyAck { reply: b("re"), ..new.clone() }, new, old.clone(), old]
    );
    assert!(t.run(&[notify(Bytes::new()), plain(OpCode::ROLLBACK)]).result < 0);
}

#[test]
fn a_comparison_of_attributes_gives_1_and_some_operations_pass_it_on() {
    let mut t = Bench::new();
    t.ok(Op::xattr(OpCode::SETXATTR, b"a", b"1"));
    let results = |t: &mut Bench, op: Op| {
        let ran = t.run(&[cmpxattr("a", b"1", 1, 1), op]);
        (ran.outcomes[0].rval, ran.outcomes[1].rval, ran.result)
    };
    assert_eq!(results(&mut t, plain(OpCode::STAT)), (1, 1, 1));
    assert_eq!(results(&mut t, plain(OpCode::LIST_WATCHERS)), (1, 0, 0));
    assert_eq!(results(&mut t, plain(OpCode::OMAPGETHEADER)), (1, 1, 1));
    assert_eq!(results(&mut t, with(OpCode::OMAPGETKEYS, enc((b(""), 9u64)))), (1, 1, 1));
    assert_eq!(
        results(&mut t, on_extent(OpCode::ZERO, 100, 5)),
        (1, 1, 1),
        "there is nothing to zero"
    );
}

#[test]
fn an_object_that_lives_only_within_the_request_changes_nothing() {
    let mut t = Bench::new();
    assert_eq!(t.run(&[full("x"), plain(OpCode::DELETE)]).result, 0);
    assert!(t.entries.is_empty());
    assert_eq!(t.totals, pg::StatSum::default());
}

#[test]
fn an_empty_object_replaced_by_nothing_is_no_change() {
    let mut t = Bench::new();
    t.ok(full(""));
    assert_eq!(t.entries.len(), 1, "it makes the object");
    t.ok(full(""));
    assert_eq!(t.entries.len(), 1);
    t.ok(full("x"));
    t.ok(full(""));
    assert_eq!(t.entries.len(), 3);
}

#[test]
fn the_store_has_no_rows_of_an_object_that_the_request_makes() {
    let set = with(OpCode::OMAPSETVALS, enc(rows(&["a1"])));
    let result = |read: Op| {
        let ran = Bench::new().run(&[set.clone(), read]);
        (ran.result, ran.out(1))
    };
    let cmp = with(OpCode::OMAP_CMP, enc(BTreeMap::from([(b("a1"), (b("v"), 1))])));
    assert_eq!(result(cmp), (Errno::ENOENT.as_result(), b("")));
    let vals = with(OpCode::OMAPGETVALS, enc((b(""), 9u64, b(""))));
    assert_eq!(result(vals), (Errno::ENOENT.as_result(), b("")));
    assert_eq!(result(with(OpCode::OMAPGETVALSBYKEYS, enc(vec![b("a1")]))), (0, enc(0u32)));
    assert_eq!(result(plain(OpCode::OMAPGETHEADER)), (0, b("")));
}

fn context(seq: u64, snaps: &[u64]) -> SnapContext {
    SnapContext { seq: SnapId(seq), snaps: snaps.iter().copied().map(SnapId).collect() }
}

impl Bench {
    fn at_snap(&mut self, snap: u64) -> Option<Bytes> {
        let at = match self.snapset().locate(SnapId(snap)) {
            At::Head => self.oid(),
            At::Clone(c) => self.oid().at(c),
            At::Nothing => return None,
        };
        if !self.load(&at).visible() {
            return None;
        }
        Some(self.run_at(&at, &[on_extent(OpCode::READ, 0, 0)]).out(0))
    }

    fn trim(&mut self, snap: u64) -> usize {
        let snap = SnapId(snap);
        let set = self.snapset();
        let hit: Vec<SnapId> =
            set.clones.iter().copied().filter(|c| set.clone_snaps[c].contains(&snap)).collect();
        for clone in &hit {
            let at = Eversion::new(Epoch(1), self.version + 1);
            let clone = self.load(&self.oid().at(*clone));
            let head = self.load(&self.oid());
            let done = trim(&clone, &head, self.snapset(), at, |s| s == snap).unwrap();
            self.version += done.entries.len() as u64;
            self.entries.extend(done.entries.iter().map(|e| (e.op, e.oid.clone())));
            self.totals.add(&done.stats);
            self.apply(done.txn);
            assert_eq!(self.load(&self.oid()), done.head);
            assert_eq!(self.snapset(), done.snapset);
        }
        hit.len()
    }
}

#[test]
fn a_write_after_a_snapshot_clones_first() {
    let mut t = Bench::new();
    t.ok(full("aaaa"));
    t.snapc = context(1, &[1]);
    t.ok(write_op(1, "B"));
    t.snapc = context(3, &[3, 2, 1]);
    t.ok(write_op(2, "CC"));
    t.ok(write_op(0, "D"));
    assert_eq!(t.content(), "DBCC");
    assert_eq!(t.at_snap(1).unwrap(), "aaaa");
    assert_eq!(t.at_snap(2).unwrap(), "aBaa");
    assert_eq!(t.at_snap(3).unwrap(), "aBaa");
    assert_eq!(t.at_snap(4).unwrap(), "DBCC");
    let head = t.oid();
    let kinds: Vec<_> = t.entries.iter().map(|(op, o)| (*op, o.snap)).collect();
    assert_eq!(
        kinds,
        [
            (LogOp::Modify, head.snap),
            (LogOp::Clone, SnapId(1)),
            (LogOp::Modify, head.snap),
            (LogOp::Clone, SnapId(3)),
            (LogOp::Modify, head.snap),
            (LogOp::Modify, head.snap),
        ]
    );
    let set = t.snapset();
    assert_eq!(set.clone_snaps[&SnapId(3)], [SnapId(3), SnapId(2)]);
    assert_eq!(set.clone_overlap[&SnapId(3)].iter().collect::<Vec<_>>(), [(1, 1)]);
    assert_eq!(set.clone_overlap[&SnapId(1)].iter().collect::<Vec<_>>(), [(0, 1), (2, 2)]);
    // Head 4 bytes, and what the clones do not share: 1 and 3.
    assert_eq!((t.totals.num_objects, t.totals.num_object_clones, t.totals.num_bytes), (3, 2, 8));

    let listing = t.run(&[plain(OpCode::LIST_SNAPS)]).out(0);
    let (_, mut r) = Reader::new(listing).envelope("obj_list_snap_response_t", 2).unwrap();
    assert_eq!(r.get::<u32>().unwrap(), 3);
    let mut clones = Vec::new();
    for _ in 0..3 {
        let (_, mut c) = r.envelope("clone_info", 1).unwrap();
        let (id, snaps): (SnapId, Vec<u64>) = c.get().unwrap();
        let (overlap, size): (Vec<(u64, u64)>, u64) = c.get().unwrap();
        clones.push((id, snaps, overlap, size));
    }
    assert_eq!(clones[0], (SnapId(1), vec![1], vec![(0, 1), (2, 2)], 4));
    assert_eq!(clones[1], (SnapId(3), vec![2, 3], vec![(1, 1)], 4));
    assert_eq!(clones[2], (SnapId::NOSNAP, vec![], vec![], 4));
    assert_eq!(r.get::<u64>().unwrap(), 3);
}

#[test]
fn a_deleted_head_stays_for_its_clones() {
    let mut t = Bench::new();
    t.ok(full("old"));
    t.snapc = context(1, &[1]);
    t.ok(plain(OpCode::DELETE));
    assert_eq!(t.err(plain(OpCode::STAT)), Errno::ENOENT);
    assert_eq!(t.err(plain(OpCode::DELETE)), Errno::ENOENT);
    assert_eq!(t.at_snap(1).unwrap(), "old");
    assert_eq!((t.totals.num_objects, t.totals.num_whiteouts), (2, 1));
    t.ok(full("reborn"));
    assert_eq!((t.totals.num_objects, t.totals.num_whiteouts), (2, 0));
    assert_eq!((t.content(), t.at_snap(1).unwrap()), (b("reborn"), b("old")));
    t.ok(plain(OpCode::DELETE));
    assert_eq!(t.trim(1), 1);
    assert!(!t.load(&t.oid()).exists, "the last clone takes the whiteout along");
    assert_eq!(t.totals.num_objects, 0);
    assert_eq!(t.totals.num_bytes, 0);
}

#[test]
fn rollback_goes_back_and_shares_again() {
    let mut t = Bench::new();
    t.ok(full("first"));
    t.ok(Op::xattr(OpCode::SETXATTR, b"x", b"1"));
    t.ok(with(OpCode::OMAPSETVALS, enc(rows(&["k"]))));
    t.snapc = context(1, &[1]);
    t.ok(full("second!"));
    t.ok(Op::xattr(OpCode::SETXATTR, b"x", b"2"));
    t.ok(plain(OpCode::OMAPCLEAR));
    let rollback = |snap| Op::new(OpCode::ROLLBACK, OpArgs::Snap { snapid: SnapId(snap) });
    t.ok(rollback(1));
    assert_eq!(t.content(), "first");
    assert_eq!(t.ok(Op::xattr(OpCode::GETXATTR, b"x", b"")), "1");
    assert_eq!(t.ok(with(OpCode::OMAPGETKEYS, enc((b(""), 9u64)))), enc((vec![b("k")], false)));
    assert_eq!(t.at_snap(1).unwrap(), "first");
    // To a snapshot that nothing changed since: the head stays.
    t.ok(rollback(7));
    assert_eq!(t.content(), "first");
    // To a time before the object: it goes.
    let mut u = Bench::new();
    u.snapc = context(2, &[2]);
    u.ok(full("young"));
    u.ok(rollback(1));
    assert_eq!(u.err(plain(OpCode::STAT)), Errno::ENOENT);
    u.ok(rollback(1));
}

#[test]
fn trimming_merges_what_is_shared() {
    let mut t = Bench::new();
    t.ok(full("aaaa"));
    t.snapc = context(1, &[1]);
    t.ok(write_op(0, "b"));
    t.snapc = context(2, &[2, 1]);
    t.ok(write_op(1, "c"));
    let bytes = t.totals.num_bytes;
    assert_eq!(bytes, 6);
    assert_eq!(t.trim(2), 1);
    assert_eq!(t.snapset().clone_overlap[&SnapId(1)].iter().collect::<Vec<_>>(), [(2, 2)]);
    assert_eq!(t.totals.num_bytes, 6, "the older clone has both bytes alone now");
    assert_eq!(t.at_snap(1).unwrap(), "aaaa");
    assert_eq!(t.trim(1), 1);
    assert_eq!((t.totals.num_objects, t.totals.num_bytes), (1, 4));
    assert_eq!(t.content(), "bcaa");
    // A clone with two snapshots loses one and stays.
    t.snapc = context(9, &[9, 8]);
    t.ok(full("zz"));
    assert_eq!(t.trim(9), 1);
    assert_eq!(t.at_snap(8).unwrap(), "bcaa");
    assert_eq!(t.trim(9), 0);
}

#[test]
fn class_methods_take_part_in_the_request() {
    let mut t = Bench::new();
    let call = |m: &str, input: &[u8]| Op::call("hello", m, input).unwrap();
    t.ok(call("record_hello", b"you"));
    assert_eq!(t.run(&[call("replay", b"")]).out(0), "Hello, you!");
    assert_eq!(t.err(call("record_hello", b"you")), Errno::EEXIST);
    let ran = t.run(&[call("turn_it_to_11", b""), call("write_return_data", b"")]);
    assert_eq!((ran.result, ran.out(1)), (42, b("you might see this")));
    assert_eq!(t.content(), "HELLO, YOU!");
    // An error may have output; what the method wrote before is void.
    let ran =
        t.run(&[Op::xattr(OpCode::SETXATTR, b"other", b"x"), call("write_return_data", b"!")]);
    assert_eq!((ran.result, ran.out(1)), (-22, b("too much input data!")));
    assert_eq!(t.err(Op::xattr(OpCode::GETXATTR, b"other", b"")), Errno::ENODATA);
    for bad in ["bad_reader", "bad_writer"] {
        assert_eq!(t.err(call(bad, b"x")), Errno::EIO, "{bad} does what it does not declare");
    }
    assert_eq!(t.content(), "HELLO, YOU!");
}

/// Copies within one bench.
struct Local(StoreReader);

impl CopySource for Local {
    fn resolve(&self, name: &Bytes, locator: &ObjectLocator, snap: SnapId) -> Option<ObjectId> {
        NoCopies.resolve(name, locator, snap)
    }

    fn fetch(&self, request: CopyRequest) -> LocalFuture<'_, Result<Copied, Errno>> {
        Box::pin(async move {
            let mut bench = Bench { reader: self.0.clone(), ..Bench::new() };
            let state = bench.load(&request.source);
            let mut copied = Copied { user_version: state.oi.user_version, ..Copied::default() };
            let mut cursor = crate::copy::CopyCursor::default();
            while !cursor.is_complete() {
                let args = OpArgs::CopyGet { max: 0 };
                // Small portions, so that every part of the cursor is used.
                let ran = bench.run_at(
                    &request.source,
                    &[Op::with_input(OpCode::COPY_GET, args, enc((cursor.clone(), 3u64)))],
                );
                if ran.result < 0 {
                    return Err(Errno(-ran.result));
                }
                let portion = CopyData::from_bytes(&ran.out(0)).map_err(|_| Errno::EIO)?;
                let offset = cursor.data_offset;
                cursor = portion.cursor.clone();
                copied.add(offset, portion, request.max_bytes)?;
            }
            Ok(copied)
        })
    }
}

#[test]
fn an_object_is_copied_with_everything() {
    let mut t = Bench::new();
    let source = ObjectId::new(PoolId(1), "", "source", "", SnapId::NOSNAP);
    for op in [
        full("0123456789"),
        Op::xattr(OpCode::SETXATTR, b"x", b"1"),
        with(OpCode::OMAPSETVALS, enc(rows(&["k1", "k2", "k3"]))),
        with(OpCode::OMAPSETHEADER, "h"),
    ] {
        assert!(t.run_at(&source, &[op]).result >= 0);
    }
    t.copies = Box::new(Local(t.reader.clone()));
    t.ok(full("something that is longer than the source"));
    let locator = ObjectLocator { pool: PoolId(1), ..ObjectLocator::default() };
    let mut input = BytesMut::new();
    b("source").encode(&mut input, Features::ALL);
    locator.encode(&mut input, Features::ALL);
    let args = |flags| OpArgs::CopyFrom {
        snapid: SnapId::NOSNAP,
        src_version: 0,
        flags,
        src_fadvise_flags: 0,
    };
    t.ok(Op::with_input(OpCode::COPY_FROM, args(0), input.clone().freeze()));
    assert_eq!(t.content(), "0123456789");
    assert_eq!(t.ok(Op::xattr(OpCode::GETXATTR, b"x", b"")), "1");
    assert_eq!(t.ok(plain(OpCode::OMAPGETHEADER)), "h");
    assert_eq!(
        t.ok(with(OpCode::OMAPGETKEYS, enc((b(""), 9u64)))),
        enc((vec![b("k1"), b("k2"), b("k3")], false))
    );
    assert_eq!(t.load(&t.oid()).oi.user_version, t.load(&source).oi.user_version);
    // The second form can set the truncation too, and refuses flags that do not exist.
    let mut input2 = input.clone();
    input2.put_u32_le(9);
    input2.put_u64_le(5);
    t.ok(Op::with_input(OpCode::COPY_FROM2, args(32), input2.freeze()));
    assert_eq!(t.load(&t.oid()).oi.truncate_seq, 9);
    assert_eq!(
        t.err(Op::with_input(OpCode::COPY_FROM2, args(64), input.clone().freeze())),
        Errno::EINVAL
    );
    // What the copy itself refuses may be allowed to fail; that there is no source may not.
    let failok = |flags: u8, input: Bytes| Op {
        flags: OpFlags::FAILOK,
        ..Op::with_input(OpCode::COPY_FROM2, args(flags), input)
    };
    assert_eq!(t.run(&[failok(64, input.clone().freeze())]).result, 0);
    let mut absent = BytesMut::new();
    b("absent").encode(&mut absent, Features::ALL);
    locator.encode(&mut absent, Features::ALL);
    assert_eq!(t.err(failok(0, absent.freeze())), Errno::ENOENT);
    let mut own = BytesMut::new();
    b("obj").encode(&mut own, Features::ALL);
    locator.encode(&mut own, Features::ALL);
    assert_eq!(
        t.err(Op::with_input(OpCode::COPY_FROM, args(0), own.clone().freeze())),
        Errno::EINVAL
    );
    let snap =
        OpArgs::CopyFrom { snapid: SnapId(4), src_version: 0, flags: 0, src_fadvise_flags: 0 };
    assert_eq!(
        t.err(Op::with_input(OpCode::COPY_FROM, snap, own.freeze())),
        Errno::EOPNOTSUPP,
        "it would wait for itself"
    );
}

proptest::proptest! {
    /// Bytes of an object follow a plain byte vector, whatever the operations.
    #[test]
    fn data_follows_a_byte_vector(ops in proptest::collection::vec((0u8..5, 0u64..9000, 0usize..5000), 1..30)) {
        let mut t = Bench::new();
        t.ok(full(""));
        let mut model: Vec<u8> = Vec::new();
        for (i, (kind, offset, length)) in ops.into_iter().enumerate() {
            let fill = vec![i as u8 + 1; length];
            match kind {
                0 => {
                    t.ok(write_op(offset, fill.clone()));
                    if length == 0 {
                        model.resize(model.len().max(offset as usize), 0);
                    } else {
                        model.resize(model.len().max(offset as usize + length), 0);
                        model[offset as usize..offset as usize + length].copy_from_slice(&fill);
                    }
                }
                1 => {
                    t.ok(Op { indata: fill.clone().into(), ..on_extent(OpCode::APPEND, 0, length as u64) });
                    model.extend(fill);
                }
                2 => {
                    t.ok(on_extent(OpCode::TRUNCATE, offset, 0));
                    model.resize(offset as usize, 0);
                }
                3 => {
                    t.ok(on_extent(OpCode::ZERO, offset, length as u64));
                    let (from, to) = (offset as usize, offset as usize + length);
                    if length > 0 && to >= model.len() {
                        model.truncate(from);
                    } else if length > 0 {
                        model[from..to].fill(0);
                    }
                }
                _ => {
                    t.snapc = context(i as u64 + 1, &[i as u64 + 1]);
                    t.ok(Op { indata: fill.clone().into(), ..on_extent(OpCode::WRITEFULL, 0, length as u64) });
                    model = fill;
                }
            }
            proptest::prop_assert_eq!(t.content(), &model[..]);
        }
    }
}
