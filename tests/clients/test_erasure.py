"""Erasure-coded pools under stock clients: what they create, write and read, with all OSDs and without one."""
import errno
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import pytest

from conftest import CHROOT, eventually
from processes import Processes, siphon

rados = pytest.importorskip("rados")

POOL = "coded"
BLOCK = 4096


def clean(c, osds=3):
    s = c.ceph_json("status")
    states = s["pgmap"].get("pgs_by_state", [])
    return (s["osdmap"]["num_up_osds"] == osds and states and
            all(x["state_name"] == "active+clean" for x in states))


class Coded:
    """A pool of 2+1 on three OSDs that are processes of their own."""

    def __init__(self, procs):
        self.procs, self.c, self.osds = procs, procs.client("crc"), 3
        c = self.c
        c.ceph("osd", "erasure-code-profile", "set", "small", "k=2", "m=1", "crush-failure-domain=osd")
        c.ceph("osd", "pool", "create", POOL, "8", "8", "erasure", "small")
        c.ceph("osd", "pool", "set", POOL, "allow_ec_overwrites", "true")
        c.ceph("osd", "pool", "application", "enable", POOL, "rados")
        self.cluster = rados.Rados(conffile=str(procs.conf),
                                   conf={"rados_osd_op_timeout": "60", "rados_mon_op_timeout": "60"})
        self.cluster.connect(timeout=60)
        self.io = self.cluster.open_ioctx(POOL)
        eventually(lambda: clean(c), what="active+clean")

    def stop(self, osd):
        self.procs[f"osd.{osd}"].kill()
        self.c.ceph("osd", "down", str(osd))
        eventually(lambda: self.c.ceph_json("status")["osdmap"]["num_up_osds"] == 2, what=f"osd.{osd} is down")

    def start(self, osd):
        self.procs[f"osd.{osd}"].start()
        eventually(lambda: clean(self.c), timeout=120, what="active+clean")


@pytest.fixture(scope="module")
def coded():
    base = Path(tempfile.mkdtemp(prefix="siphon-erasure."))
    p = Processes(base)
    try:
        p.start()
        yield Coded(p)
    finally:
        p.stop()
        if not os.environ.get("SIPHON_TEST_KEEP"):
            shutil.rmtree(base, ignore_errors=True)


def test_profiles_and_pools(coded):
    c = coded.c
    assert "small" in c.ceph("osd", "erasure-code-profile", "ls").split()
    profile = c.ceph_json("osd", "erasure-code-profile", "get", "small")
    assert (profile["k"], profile["m"], profile["plugin"]) == ("2", "1", "jerasure")
    c.ceph("osd", "erasure-code-profile", "set", "other", "k=2", "m=1", "plugin=isa", "crush-failure-domain=osd")
    c.ceph("osd", "erasure-code-profile", "rm", "other")
    assert "other" not in c.ceph("osd", "erasure-code-profile", "ls").split()
    pool = next(p for p in c.ceph_json("osd", "dump")["pools"] if p["pool_name"] == POOL)
    assert (pool["type"], pool["size"], pool["min_size"], pool["stripe_width"]) == (3, 3, 2, 8192)


def test_put_get_append_truncate(coded, tmp_path):
    c = coded.c
    data = os.urandom(5_000_000)
    f, g = tmp_path / "f", tmp_path / "g"
    f.write_bytes(data)
    c.rados("-p", POOL, "put", "big", f)
    c.rados("-p", POOL, "get", "big", g)
    assert g.read_bytes() == data
    c.rados("-p", POOL, "append", "big", f)
    assert "size 10000000" in c.rados("-p", POOL, "stat", "big").stdout.decode()
    c.rados("-p", POOL, "truncate", "big", "70001")
    c.rados("-p", POOL, "get", "big", g)
    assert g.read_bytes() == data[:70001]
    c.rados("-p", POOL, "put", "big", f, "--offset", "500")
    c.rados("-p", POOL, "get", "big", g)
    assert g.read_bytes() == data[:500] + data
    c.rados("-p", POOL, "rm", "big")
    c.fails("rados", "-p", POOL, "stat", "big", errno=1, text="No such file or directory")


def test_attributes_omap_and_classes(coded):
    io = coded.io
    io.write_full("o", b"x" * 10_000)
    io.set_xattr("o", "one", b"1")
    assert io.get_xattr("o", "one") == b"1" and dict(io.get_xattrs("o")) == {"one": b"1"}
    with rados.WriteOpCtx() as op:
        io.set_omap(op, ("a", "b", "c"), (b"1", b"2", b"3"))
        io.operate_write_op(op, "o")
    with rados.WriteOpCtx() as op:
        io.remove_omap_keys(op, ("b",))
        io.operate_write_op(op, "o")
    with rados.ReadOpCtx() as op:
        rows, _ = io.get_omap_vals(op, "", "", 10)
        io.operate_read_op(op, "o")
        assert dict(rows) == {"a": b"1", "c": b"3"}
    io.lock_exclusive("o", "lock", "cookie")
    with pytest.raises(rados.ObjectBusy):
        coded.cluster.open_ioctx(POOL).lock_exclusive("o", "lock", "another")
    io.unlock("o", "lock", "cookie")


def test_bench(coded):
    out = coded.c.rados("-p", POOL, "bench", "5", "write", "-b", "65536", "--no-cleanup").stdout.decode()
    assert re.search(r"Total writes made: +[1-9]", out), out
    out = coded.c.rados("-p", POOL, "bench", "5", "rand").stdout.decode()
    assert re.search(r"Total reads made: +[1-9]", out), out
    coded.c.rados("-p", POOL, "cleanup")


class Model:
    """Random changes of a few objects, and what they come to."""

    def __init__(self, io, seed, names=5):
        self.io, self.r = io, random.Random(seed)
        self.objects = {}
        self.names = [f"random-{seed}-{i}" for i in range(names)]

    def change(self):
        r, name = self.r, self.r.choice(self.names)
        off, n = r.randrange(60_000), r.choice([1, 100, 4096, 8192, r.randrange(1, 40_000)])
        if r.random() < 0.4:
            off = off // 4096 * 4096
        data = r.randbytes(n)
        kind = r.randrange(10)
        old = self.objects.get(name, b"")
        if kind == 0 and name in self.objects:
            self.io.remove_object(name)
            del self.objects[name]
        elif kind == 1 and name in self.objects:
            self.io.trunc(name, off)
            self.objects[name] = old[:off] + bytes(max(0, off - len(old)))
        elif kind == 2:
            self.io.write_full(name, data)
            self.objects[name] = data
        elif kind == 3:
            self.io.append(name, data)
            self.objects[name] = old + data
        else:
            self.io.write(name, data, off)
            old = old + bytes(max(0, off - len(old)))
            self.objects[name] = old[:off] + data + old[off + n:]

    def check(self):
        for name in self.names:
            if name in self.objects:
                found = self.io.read(name, 1 << 20)
                assert found == self.objects[name], f"{name}: {len(found)} bytes, {len(self.objects[name])} expected"
            else:
                with pytest.raises(rados.ObjectNotFound):
                    self.io.stat(name)


def test_random_overwrites(coded):
    m = Model(coded.io, 1)
    for i in range(300):
        m.change()
        if i % 50 == 49:
            m.check()


def test_snapshots(coded):
    io = coded.io
    io.write_full("snapped", b"before" * 3000)
    io.create_snap("s")
    io.write("snapped", b"after", 1000)
    snap = io.lookup_snap("s")
    io.set_read(snap.snap_id)
    assert io.read("snapped", 100_000) == b"before" * 3000
    io.set_read(rados.LIBRADOS_SNAP_HEAD)
    now = (b"before" * 3000)[:1000] + b"after" + (b"before" * 3000)[1005:]
    assert io.read("snapped", 100_000) == now
    io.snap_rollback("snapped", "s")
    assert io.read("snapped", 100_000) == b"before" * 3000
    io.remove_snap("s")


def test_an_osd_goes_and_comes_back(coded):
    m = Model(coded.io, 2, names=12)
    for _ in range(60):
        m.change()
    for osd in range(3):
        coded.stop(osd)
        m.check()
        for _ in range(40):
            m.change()
        m.check()
        coded.start(osd)
        m.check()


def stats(c, name=POOL):
    dump = c.ceph_json("pg", "dump", "pgs")
    pgs = dump["pg_stats"] if isinstance(dump, dict) else dump
    pool = next(p["pool"] for p in c.ceph_json("osd", "dump")["pools"] if p["pool_name"] == name)
    return {s["pgid"]: s for s in pgs if s["pgid"].startswith(f"{pool}.")}


def deep_scrub(c, name=POOL):
    """Scrubs all groups of the pool; says which are not clean."""
    before = {pg: s["last_deep_scrub_stamp"] for pg, s in stats(c, name).items()}
    for pg in before:
        c.ceph("pg", "deep-scrub", pg)
    def done():
        return all(s["last_deep_scrub_stamp"] != before[pg] for pg, s in stats(c, name).items())
    eventually(done, timeout=180, what="all groups scrubbed")
    return [pg for pg, s in stats(c, name).items() if s["state"] != "active+clean"]


class Writer(threading.Thread):
    """Overwrites parts of an object, and knows what is acknowledged."""

    def __init__(self, io, n):
        super().__init__(daemon=True)
        self.io, self.name_of, self.r = io, f"overwritten{n}", random.Random(n)
        self.state, self.count, self.ends, self.error = bytearray(70_000), 0, threading.Event(), None

    def run(self):
        try:
            self.io.write_full(self.name_of, bytes(self.state))
            while not self.ends.is_set():
                off, n = self.r.randrange(60_000), self.r.choice([10, 512, 4096, 9000])
                data = self.r.randbytes(n)
                self.io.write(self.name_of, data, off)
                self.state[off:off + n] = data
                self.count += 1
        except Exception as e:
            self.error = e


def test_all_osds_are_killed_under_overwrites(coded):
    writers = [Writer(coded.cluster.open_ioctx(POOL), n) for n in range(6)]
    for w in writers:
        w.start()
    for _ in range(3):
        counts = [w.count for w in writers]
        eventually(lambda: all(w.error or w.count > n + 20 for w, n in zip(writers, counts)), what="writes go on")
        for osd in range(3):
            coded.procs[f"osd.{osd}"].kill()
        for osd in range(3):
            coded.procs[f"osd.{osd}"].start()
        eventually(lambda: clean(coded.c), timeout=120, what="active+clean")
    for w in writers:
        w.ends.set()
    for w in writers:
        w.join(timeout=90)
        assert w.error is None and not w.is_alive(), w.error
        found = coded.io.read(w.name_of, 1 << 20)
        assert found == bytes(w.state), f"{w.name_of} after {w.count} writes"
    assert deep_scrub(coded.c) == []


BLOCKS = 16
OVERWRITER = r'''
import random, struct, sys, threading
import rados
conf, pool, name, blocks, seed, log = sys.argv[1:7]
blocks, r = int(blocks), random.Random(int(seed))
cluster = rados.Rados(conffile=conf)
cluster.connect(timeout=60)
io, out, room, lock = cluster.open_ioctx(pool), open(log, "ab", buffering=0), threading.Semaphore(8), threading.Lock()
def note(kind, block, n):
    with lock:
        out.write(b"%s %d %d\n" % (kind, block, n))
for n in range(1, 1 << 40):
    room.acquire()
    block = r.randrange(blocks)
    data = struct.pack("<QQ", block, int(seed) << 32 | n) * 256
    note(b"asked", block, int(seed) << 32 | n)
    def done(c, block=block, n=n):
        if c.get_return_value() == 0:
            note(b"acked", block, int(seed) << 32 | n)
        room.release()
    io.aio_write(name, data, block * 4096, oncomplete=done)
'''


def killed_with_clients(cluster, pool, rounds, tmp_path):
    """Everything is killed under clients that overwrite blocks at random, eight at a time, and these with it. Each block is whole:
    what was acknowledged last, or a later write that was under way. `cluster` has processes, a client and a number of OSDs."""
    io, names = cluster.cluster.open_ioctx(pool), [f"killed{n}" for n in range(3)]
    may_be = {name: {block: {0} for block in range(BLOCKS)} for name in names}
    for name in names:
        io.write_full(name, bytes(BLOCKS * BLOCK))
    for turn in range(1, rounds + 1):
        logs = {name: tmp_path / f"{name}.{turn}" for name in names}
        clients = [subprocess.Popen([sys.executable, "-c", OVERWRITER, str(cluster.procs.conf), pool, name, str(BLOCKS), str(turn * 8 + i), str(log)])
                   for i, (name, log) in enumerate(logs.items())]
        try:
            eventually(lambda: all(log.exists() and log.read_bytes().count(b"acked") > 60 for log in logs.values()), timeout=120, what="writes go on")
            daemons = list(cluster.procs.daemons.values())
            for process in [d.process for d in daemons] + clients:
                process.send_signal(signal.SIGKILL)
            for process in [d.process for d in daemons] + clients:
                process.wait()
        finally:
            for process in clients:
                process.kill()
                process.wait()
        for d in daemons:
            d.spawn()
        for d in daemons:
            d.wait_serving()
        eventually(lambda: clean(cluster.c, cluster.osds), timeout=180, what="active+clean")
        for name, log in logs.items():
            for line in log.read_bytes().split(b"\n"):
                parts = line.split()
                if len(parts) == 3:
                    block, n = int(parts[1]), int(parts[2])
                    if parts[0] == b"asked":
                        may_be[name][block].add(n)
                    else:
                        # The writes of an object are in order: what was there before is gone.
                        may_be[name][block] = {m for m in may_be[name][block] if m >= n}
            found = io.read(name, BLOCKS * BLOCK)
            assert len(found) == BLOCKS * BLOCK
            for block in range(BLOCKS):
                data = found[block * BLOCK:(block + 1) * BLOCK]
                n = struct.unpack("<QQ", data[:16])[1]
                assert data == (struct.pack("<QQ", block, n) * 256 if n else bytes(BLOCK)), f"{name}: block {block} is torn after round {turn}"
                assert n in may_be[name][block], f"{name}: block {block} has write {n:x} after round {turn}, expected one of {may_be[name][block]}"
                may_be[name][block] = {n}
    assert deep_scrub(cluster.c, pool) == []


def test_everything_is_killed_with_its_clients(coded, tmp_path):
    killed_with_clients(coded, POOL, 20 if os.environ.get("SIPHON_TEST_LONG") else 3, tmp_path)


def test_rbd(coded, tmp_path):
    c = coded.c
    c.ceph("osd", "pool", "create", "images", "8", "8", "erasure", "small")
    c.ceph("osd", "pool", "set", "images", "allow_ec_overwrites", "true")
    c.ceph("osd", "pool", "create", "whole", "8")
    for pool in ("images", "whole"):
        c.ceph("osd", "pool", "application", "enable", pool, "rbd")
    # The header and everything else in the erasure-coded pool, and data alone in it.
    data = tmp_path / "data"
    data.write_bytes(os.urandom(9_000_000))
    for spec, more in (("images/image", ()), ("whole/image", ("--data-pool", "images"))):
        c.run("rbd", "create", spec, "--size", "64M", *more)
        c.run("rbd", "import", data, spec + "2", *more)
        c.run("rbd", "export", spec + "2", tmp_path / "out")
        assert (tmp_path / "out").read_bytes()[:9_000_000] == data.read_bytes()
        c.run("rbd", "bench", "--io-type", "write", "--io-size", "4096", "--io-total", "1M", "--io-pattern", "rand", spec)
        c.run("rbd", "snap", "create", spec + "2@s")
        c.run("rbd", "resize", spec + "2", "--size", "4M", "--allow-shrink")
        c.run("rbd", "export", spec + "2@s", tmp_path / "old")
        assert (tmp_path / "old").read_bytes()[:9_000_000] == data.read_bytes()
        (tmp_path / "out").unlink()
        (tmp_path / "old").unlink()
        c.run("rbd", "snap", "rm", spec + "2@s")
        c.run("rbd", "rm", spec + "2")
        c.run("rbd", "rm", spec)


# Overwrites at random, and checks what it wrote meanwhile and at the end.
FIO = """[work]
ioengine=rbd
clientname=admin
pool={pool}
rbdname={image}
{pattern}
size=8m
io_size=8m
iodepth=16
randrepeat=1
verify=crc32c
verify_fatal=1
do_verify=1
"""

# With reads between the writes fio knows what is where only if it writes each block once: with norandommap it finds
# fault with a file of the local disk, too.
PATTERNS = "rw=randwrite\nbsrange=4k-64k\nblockalign=4k\nnorandommap=1\nserialize_overlap=1", "rw=randrw\nbs=16k"


@pytest.mark.parametrize("whole", [True, False])
def test_fio_verifies_an_image(coded, tmp_path, whole):
    """An image that is wholly in a coded pool, and one of which the data is."""
    c, n = coded.c, uuid.uuid4().hex[:6]
    data, header = f"fio-{n}", f"fio-{n}" if whole else f"header-{n}"
    c.ceph("osd", "pool", "create", data, "8", "8", "erasure", "small")
    c.ceph("osd", "pool", "set", data, "allow_ec_overwrites", "true")
    if not whole:
        c.ceph("osd", "pool", "create", header, "8")
    for pool in {data, header}:
        c.ceph("osd", "pool", "application", "enable", pool, "rbd")
    c.run("rbd", "create", f"{header}/image", "--size", "64M", *(() if whole else ("--data-pool", data)))
    conf = tmp_path / "ceph.conf"
    conf.write_text(coded.procs.conf.read_text() + "\n[client]\nrbd_cache=false\nrbd_skip_partial_discard=false\n")
    job = tmp_path / "job.fio"
    for pattern in PATTERNS:
        job.write_text(FIO.format(pool=header, image="image", pattern=pattern))
        argv = [*(["chroot", CHROOT] if CHROOT else []), "fio", "--output-format=json", str(job)]
        env = {**os.environ, "CEPH_CONF": str(conf)}
        r = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert r.returncode == 0, f"{r.stdout[-3000:]}\n{r.stderr[-3000:]}"
        result = json.loads(r.stdout[r.stdout.index("{"):])["jobs"][0]
        assert result["error"] == 0 and result["write"]["total_ios"] and result["read"]["total_ios"], result
    assert deep_scrub(c, data) == []


def flip(coded, osds, name):
    """Changes a byte of an object's shard on each of these OSDs behind the stores' backs."""
    daemons = [coded.procs[f"osd.{osd}"] for osd in osds]
    for daemon in daemons:
        daemon.stop()
    for daemon in daemons:
        device = daemon.directory / daemon.name / "block"
        dump = json.loads(siphon("store", "dump", device))
        extents = [o["extents"] for o in dump["objects"] if name in o["key"]]
        assert len(extents) == 1, f"{name} is not there once: {extents}"
        with open(device, "r+b") as f:
            at = extents[0][0]["physical_block"] * BLOCK + 100
            f.seek(at)
            old = f.read(1)
            f.seek(at)
            f.write(bytes([old[0] ^ 0x40]))
    for daemon in daemons:
        daemon.spawn()
    for daemon in daemons:
        daemon.wait_serving()
    eventually(lambda: clean(coded.c, coded.osds), timeout=120, what="active+clean")


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_a_flipped_byte_is_never_returned(coded, shard):
    name = f"flipped{shard}"
    data = os.urandom(50_000)
    coded.io.write_full(name, data)
    acting = coded.c.ceph_json("osd", "map", POOL, name)["acting"]
    flip(coded, [acting[shard]], name)
    for off in range(0, len(data), 4096):
        assert coded.io.read(name, 4096, off) == data[off:off + 4096], off
    # Without any other shard the bad one would be needed.
    assert coded.io.read(name, 100_000) == data
    coded.io.write(name, b"new", 100)
    assert coded.io.read(name, 100_000) == data[:100] + b"new" + data[103:]


def test_what_ceph_refuses_is_refused_on_demand(coded):
    """As a stock cluster answers without allow_ec_overwrites, and, for omap, with it."""
    c = coded.c
    c.ceph("osd", "pool", "create", "stock", "4", "4", "erasure", "small")
    c.ceph("osd", "pool", "application", "enable", "stock", "rados")
    eventually(lambda: clean(c), what="active+clean")
    io = coded.cluster.open_ioctx("stock")
    width = 2 * BLOCK

    def refused(change):
        try:
            change()
            return False
        except rados.OSError as e:
            assert e.errno == errno.EOPNOTSUPP, e
            return True

    def omap(io):
        with rados.WriteOpCtx() as op:
            io.set_omap(op, ("key",), (b"value",))
            io.operate_write_op(op, "omap")

    io.write_full("one", b"a" * width)
    assert not refused(lambda: omap(io)) and not refused(lambda: io.write("one", b"b", 5))
    c.ceph("config", "set", "osd", "osd_ec_stock_refusals", "true")
    try:
        # Each OSD hears of it in its own time.
        eventually(lambda: all(refused(lambda: io.trunc(name, 0)) for name in ["one"] + [f"o{n}" for n in range(16)]),
                   what="refusals")
        assert refused(lambda: omap(io)) and refused(lambda: omap(coded.io))
        assert refused(lambda: io.write("one", b"c", 5)) and refused(lambda: io.write("new", b"c", width))
        io.append("one", b"d" * 10)
        assert refused(lambda: io.append("one", b"e")), "behind half a stripe"
        io.set_xattr("one", "name", b"value")
        assert io.read("one", 3 * width) == b"a" * 5 + b"b" + b"a" * (width - 6) + b"d" * 10
        io.write_full("one", b"f")
        coded.io.write_full("with-overwrites", b"g" * width)
        coded.io.write("with-overwrites", b"h", 5)
        assert coded.io.read("with-overwrites", 7) == b"gggggh" + b"g"
    finally:
        c.ceph("config", "rm", "osd", "osd_ec_stock_refusals")
        eventually(lambda: not any(refused(lambda: io.trunc(f"o{n}", 0)) for n in range(16)), what="no refusals")
        c.ceph("config", "set", "mon", "mon_allow_pool_delete", "true")
        c.ceph("osd", "pool", "delete", "stock", "stock", "--yes-i-really-really-mean-it")
