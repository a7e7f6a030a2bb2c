"""Erasure-coded pools of 2+2 and 4+2 on six OSDs: deltas of parity, and, with SIPHON_TEST_LONG, shards that move."""
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from conftest import eventually
from processes import Processes
from test_erasure import Model, Writer, clean, deep_scrub

rados = pytest.importorskip("rados")

OSDS = 6


class Wide:
    """A pool for each shape."""

    def __init__(self, procs):
        self.procs, self.c, self.osds = procs, procs.client("crc"), OSDS
        c = self.c
        # No log fills a copy that has to move.
        for option, value in (("osd_min_pg_log_entries", 20), ("osd_max_pg_log_entries", 60), ("osd_pg_log_trim_min", 10)):
            c.ceph("config", "set", "osd", option, str(value))
        for k in (2, 4):
            c.ceph("osd", "erasure-code-profile", "set", f"k{k}", f"k={k}", "m=2", "crush-failure-domain=osd", "stripe_unit=4096")
            c.ceph("osd", "pool", "create", f"coded{k}", "8", "8", "erasure", f"k{k}")
            c.ceph("osd", "pool", "set", f"coded{k}", "allow_ec_overwrites", "true")
            # Two OSDs may be away.
            c.ceph("osd", "pool", "set", f"coded{k}", "min_size", str(k))
            c.ceph("osd", "pool", "application", "enable", f"coded{k}", "rados")
        self.cluster = rados.Rados(conffile=str(procs.conf), conf={"rados_osd_op_timeout": "120", "rados_mon_op_timeout": "60"})
        self.cluster.connect(timeout=60)
        self.whole()

    def io(self, k):
        return self.cluster.open_ioctx(f"coded{k}")

    def whole(self):
        eventually(lambda: clean(self.c, OSDS), timeout=180, what="active+clean")


@pytest.fixture(scope="module")
def wide():
    base = Path(tempfile.mkdtemp(prefix="siphon-wide."))
    p = Processes(base)
    try:
        p.start(osds=OSDS)
        yield Wide(p)
    finally:
        p.stop()
        if not os.environ.get("SIPHON_TEST_KEEP"):
            shutil.rmtree(base, ignore_errors=True)


def counted(c, name):
    return sum(c.ceph_json("tell", f"osd.{i}", "perf", "dump")["osd"][name] for i in range(OSDS))


@pytest.mark.parametrize("k", [2, 4])
def test_random_overwrites(wide, k):
    before = counted(wide.c, "ec_write_delta")
    m = Model(wide.io(k), 10 + k)
    for i in range(120):
        m.change()
        if i % 40 == 39:
            m.check()
    # Where three shards would have to be read for parity, one block changes by a delta.
    name = f"blocks{k}"
    wide.io(k).write_full(name, bytes(16 * 4096))
    for block in range(16):
        wide.io(k).write(name, bytes([block + 1]) * 4096, block * 4096)
    assert wide.io(k).read(name, 1 << 20) == b"".join(bytes([block + 1]) * 4096 for block in range(16))
    deltas = counted(wide.c, "ec_write_delta") - before
    assert deltas >= 16 if k == 4 else deltas == 0


@pytest.mark.skipif(not os.environ.get("SIPHON_TEST_LONG"), reason="takes minutes")
@pytest.mark.parametrize("k", [2])
def test_shards_move_under_overwrites(wide, k):
    """What is written while shards move is on the OSDs that they move to, also where these take over the lead."""
    c = wide.c
    writers = [Writer(wide.cluster.open_ioctx(f"coded{k}"), 100 * k + n) for n in range(4)]
    for w in writers:
        w.start()

    def goes_on():
        counts = [w.count for w in writers]
        eventually(lambda: all(w.error or w.count > n + 20 for w, n in zip(writers, counts)), timeout=120, what="writes go on")
    goes_on()
    # OSDs that lead where the writers' objects are.
    leads = {c.ceph_json("osd", "map", f"coded{k}", w.name_of)["acting"][0] for w in writers}
    for osd in sorted(str(o) for o in leads)[:2]:
        # With six shards on six OSDs an OSD that is out leaves holes.
        c.ceph("osd", "out", osd)
        if k == 2:
            eventually(lambda: all(s["state_name"] == "active+clean" for s in c.ceph_json("status")["pgmap"]["pgs_by_state"])
                       or holes(c), timeout=180, what="shards to have moved")
        goes_on()
        c.ceph("osd", "in", osd)
        wide.whole()
        goes_on()
    for w in writers:
        w.ends.set()
    for w in writers:
        w.join(timeout=90)
        assert w.error is None and not w.is_alive(), w.error
        found = wide.io(k).read(w.name_of, 1 << 20)
        assert found == bytes(w.state), f"{w.name_of} after {w.count} writes"
    assert deep_scrub(c, f"coded{k}") == []


def holes(c):
    """All that is not clean is a pool with more positions than OSDs that are in."""
    wide = next(p["pool"] for p in c.ceph_json("osd", "dump")["pools"] if p["pool_name"] == "coded4")
    dump = c.ceph_json("pg", "dump", "pgs")
    pgs = dump["pg_stats"] if isinstance(dump, dict) else dump
    return all(s["state"] == "active+clean" or s["pgid"].startswith(f"{wide}.") for s in pgs)
