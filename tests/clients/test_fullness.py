"""Stores and pools that run full: who is told what, what stops, and how it goes on."""
import json
import threading

import pytest
import rados
from conftest import Cluster, eventually

MIB = 1 << 20


@pytest.fixture(scope="module")
def small(siphon_factory):
    """Three small OSDs."""
    siphon = siphon_factory(osds=3, extra=["--osd-size", "1G"])
    siphon.start()
    c = Cluster(siphon.conf, "crc")
    c.ceph("config", "set", "mon", "mon_allow_pool_delete", "true")
    return c


@pytest.fixture
def client(small):
    # What waits for room counts as in flight: with librados' own limit, 100 MiB, the call itself would wait.
    c = rados.Rados(conffile=str(small.conf), conf={"objecter_inflight_op_bytes": str(1 << 30)})
    c.connect(timeout=30)
    yield c
    c.shutdown()


@pytest.fixture
def named(small):
    small.make_pool("f", 8, application=None)
    small.ceph("osd", "pool", "application", "enable", "f", "rados")
    yield "f"
    small.delete_pool("f")


def ratios(c, near, backfill, full):
    for level, ratio in [("full", full), ("backfillfull", backfill), ("nearfull", near)]:
        c.ceph("osd", f"set-{level}-ratio", str(ratio))


def base(c):
    """The used part of the fullest OSD."""
    return max(o["utilization"] for o in c.ceph_json("osd", "df")["nodes"]) / 100


def checks(c):
    return c.ceph_json("health", "detail")["checks"]


def detail(c, code):
    return [d["message"] for d in checks(c)[code]["detail"]]


def pool_flags(c, name):
    return next(p for p in c.ceph_json("osd", "dump")["pools"] if p["pool_name"] == name)["flags_names"].split(",")


class Background:
    """A call that may block; `result` is the error that ended it."""

    def __init__(self, call):
        self.result = None
        self.done = threading.Event()
        threading.Thread(target=self.run, args=(call,), daemon=True).start()

    def run(self, call):
        try:
            call()
        except rados.Error as e:
            self.result = e
        self.done.set()


def test_writes_stop_and_go_on(small, client, named):
    io = client.open_ioctx(named)
    low = base(small)
    ratios(small, low + 0.03, low + 0.06, low + 0.09)
    written = 0

    def fill(until, most):
        nonlocal written
        while written < most:
            if until in checks(small):
                return
            for _ in range(4):
                io.write_full(f"o{written}", bytes([written % 256]) * MIB)
                written += 1
        eventually(lambda: until in checks(small), timeout=10, what=until)

    fill("OSD_NEARFULL", 80)
    near = checks(small)
    assert near["OSD_NEARFULL"]["severity"] == "HEALTH_WARN" and "OSD_FULL" not in near, near
    assert "osd.0 is nearfull" in detail(small, "OSD_NEARFULL")
    eventually(lambda: "pool 'f' is nearfull" in detail(small, "POOL_NEARFULL"), timeout=10, what="the pool")
    assert "nearfull" in pool_flags(small, named)
    fill("OSD_BACKFILLFULL", 110)
    assert "pool 'f' is backfillfull" in detail(small, "POOL_BACKFILLFULL")
    # Up to the last write before the pool is full all are answered; the ones after it wait.
    last = None
    while written < 200:
        n = written
        last = Background(lambda: io.write_full(f"o{n}", b"x" * MIB))
        if not last.done.wait(5):
            break
        assert last.result is None, last.result
        written += 1
    assert not last.done.is_set(), "the cluster never became full"
    full = checks(small)
    assert full["OSD_FULL"]["severity"] == "HEALTH_ERR", full
    assert "osd.0 is full" in detail(small, "OSD_FULL")
    assert detail(small, "POOL_FULL") == ["pool 'f' is full (no space)"]
    assert "full" in pool_flags(small, named)
    df = next(p for p in small.ceph_json("df")["pools"] if p["name"] == named)["stats"]
    assert df["objects"] >= written and df["percent_used"] > 0 and df["max_avail"] < 1 << 30, df
    # Reading goes on.
    assert io.read("o0", length=4) == b"\0" * 4
    assert not last.done.is_set()
    # Deleting goes through with force, and frees.
    batch = [f"o{i}" for i in range(written)]
    for at in range(0, len(batch), 40):
        small.run("rados", "-p", named, "rm", *batch[at:at + 40], "--force-full")
    eventually(lambda: not {"OSD_FULL", "OSD_BACKFILLFULL", "OSD_NEARFULL", "POOL_FULL"} & set(checks(small)),
               timeout=30, what="room")
    assert last.done.wait(30), "the write that waited is not answered"
    assert last.result is None, last.result
    assert io.stat(f"o{written}")[0] == MIB
    assert not {"full", "nearfull", "backfillfull"} & set(pool_flags(small, named))
    io.write_full("after", b"x" * MIB)
    ratios(small, 0.85, 0.9, 0.95)
    io.close()


def test_a_store_is_never_overrun(small, client, named):
    """More than fits, all at once: what does not fit waits, no OSD fails, and what is answered is there."""
    io = client.open_ioctx(named)
    low = base(small)
    ratios(small, low + 0.03, low + 0.05, low + 0.06)
    small.ceph("config", "set", "osd", "osd_failsafe_full_ratio", str(low + 0.1))
    eventually(lambda: all(float(json.loads(small.ceph("tell", f"osd.{o}", "config", "get", "osd_failsafe_full_ratio"))["osd_failsafe_full_ratio"]) < 0.9
                           for o in range(3)), what="the failsafe ratio")
    # A third of them is more than 0.1 of an OSD: each primary sees that by its own store, however late it hears of
    # the others' copies.
    ops = [io.aio_write_full(f"s{n}", bytes([n % 256]) * MIB) for n in range(400)]
    eventually(lambda: "OSD_FULL" in checks(small), timeout=60, what="OSD_FULL")
    assert not all(complete_soon(op, 0) for op in ops)
    assert small.ceph_json("osd", "stat")["num_up_osds"] == 3
    removed = set()
    while len(removed) < len(ops):
        there = [i for i, op in enumerate(ops) if i not in removed and complete_soon(op, 0)]
        for i in there:
            assert ops[i].get_return_value() == 0, i
            assert io.read(f"s{i}", length=2 * MIB) == bytes([i % 256]) * MIB
        if not there:
            assert any(complete_soon(op, 30) for i, op in enumerate(ops) if i not in removed), "nothing goes on"
            continue
        small.run("rados", "-p", named, "rm", *(f"s{i}" for i in there), "--force-full")
        removed |= set(there)
    assert small.ceph_json("osd", "stat")["num_up_osds"] == 3
    small.ceph("config", "rm", "osd", "osd_failsafe_full_ratio")
    ratios(small, 0.85, 0.9, 0.95)
    io.close()


def complete_soon(op, seconds):
    """Whether an operation is answered soon."""
    event = threading.Event()
    for _ in range(seconds * 20):
        if op.is_complete():
            return True
        event.wait(0.05)
    return op.is_complete()


def test_quota(small, client, named):
    io = client.open_ioctx(named)
    small.ceph("osd", "pool", "set-quota", named, "max_objects", "5")
    for i in range(5):
        io.write_full(f"q{i}", b"x")
    eventually(lambda: "POOL_FULL" in checks(small), timeout=15, what="the quota")
    assert detail(small, "POOL_FULL") == ["pool 'f' is full (running out of quota)"]
    assert {"full", "full_quota"} <= set(pool_flags(small, named))
    waits = Background(lambda: io.write_full("q5", b"x"))
    assert not waits.done.wait(2), waits.result
    # Deleting is what makes room; the write that waited goes on then.
    small.run("rados", "-p", named, "rm", "q0", "q1", "--force-full")
    assert waits.done.wait(30) and waits.result is None, waits.result
    eventually(lambda: "POOL_FULL" not in checks(small), timeout=15, what="room in the quota")
    assert not {"full", "full_quota"} & set(pool_flags(small, named))
    small.ceph("osd", "pool", "set-quota", named, "max_objects", "0")
    small.ceph("osd", "pool", "set-quota", named, "max_bytes", str(2 * MIB))
    io.write_full("big", b"x" * 2 * MIB)
    eventually(lambda: "POOL_FULL" in checks(small), timeout=15, what="the quota of bytes")
    waits = Background(lambda: io.write_full("q6", b"x"))
    assert not waits.done.wait(2), waits.result
    small.ceph("osd", "pool", "set-quota", named, "max_bytes", "0")
    assert waits.done.wait(30) and waits.result is None, waits.result
    io.close()
