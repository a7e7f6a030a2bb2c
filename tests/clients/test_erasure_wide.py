"""Erasure-coded pools of 2+2 and 4+2 on six OSDs: deltas of parity, any two OSDs away, two bad shards at once, and, with SIPHON_TEST_LONG,
shards that move."""
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from conftest import eventually
from processes import Processes
from test_erasure import Model, Writer, clean, deep_scrub, flip, killed_with_clients, stats

rados = pytest.importorskip("rados")

OSDS = 6
LONG = bool(os.environ.get("SIPHON_TEST_LONG"))


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


def test_two_osds_are_away(wide):
    models = [Model(wide.io(k), 20 + k, names=8) for k in (2, 4)]
    for osds in ((0, 3), (4, 5)) if LONG else ((4, 5),):
        for m in models:
            for _ in range(30):
                m.change()
        for osd in osds:
            wide.procs[f"osd.{osd}"].kill()
            wide.c.ceph("osd", "down", str(osd))
        eventually(lambda: wide.c.ceph_json("status")["osdmap"]["num_up_osds"] == OSDS - 2, what=f"OSDs {osds} to be down")
        for m in models:
            m.check()
            for _ in range(20):
                m.change()
            m.check()
        for osd in osds:
            wide.procs[f"osd.{osd}"].start()
        wide.whole()
        for m in models:
            m.check()
    assert deep_scrub(wide.c, "coded2") == [] and deep_scrub(wide.c, "coded4") == []


@pytest.mark.parametrize("k, shards", [(4, (1, 4)), (2, (2, 3)), *([(4, (0, 2))] if LONG else [])])
def test_two_bad_shards_at_once(wide, k, shards):
    """Never returned, found, repaired."""
    name, data = f"flipped{k}{shards[0]}{shards[1]}", os.urandom(90_000)
    io = wide.io(k)
    io.write_full(name, data)
    acting = wide.c.ceph_json("osd", "map", f"coded{k}", name)["acting"]
    flip(wide, [acting[s] for s in shards], name)
    for off in range(0, len(data), 4096):
        assert io.read(name, 4096, off) == data[off:off + 4096], off
    # A change of the block beside the bad ones, and of those.
    io.write(name, b"new", 4096 * k + 50)
    io.write(name, b"newer", 10)
    expected = bytearray(data)
    expected[4096 * k + 50:4096 * k + 53], expected[10:15] = b"new", b"newer"
    assert io.read(name, 1 << 20) == bytes(expected)
    # A deep scrub finds what reads did not come by; then all shards are right.
    deep_scrub(wide.c, f"coded{k}")
    for pg, s in stats(wide.c, f"coded{k}").items():
        if "inconsistent" in s["state"]:
            wide.c.ceph("pg", "repair", pg)
    wide.whole()
    assert deep_scrub(wide.c, f"coded{k}") == []
    # Without other shards the ones that were bad are needed.
    others = [acting[s] for s in range(k + 2) if s not in shards][:2]
    for osd in others:
        wide.procs[f"osd.{osd}"].kill()
        wide.c.ceph("osd", "down", str(osd))
    assert io.read(name, 1 << 20) == bytes(expected)
    for osd in others:
        wide.procs[f"osd.{osd}"].start()
    wide.whole()


def test_everything_is_killed_with_its_clients(wide, tmp_path):
    killed_with_clients(wide, "coded4", 20 if LONG else 1, tmp_path)


@pytest.mark.skipif(not LONG, reason="takes minutes")
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
