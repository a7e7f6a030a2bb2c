"""A disk that is really full beside disks that are not: no OSD ends, nothing acknowledged is lost, and it goes on when there is room.

One OSD has a quarter of the others' space and as much weight, so it fills up while those that write to it have room.
"""
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest

from conftest import eventually
from processes import Processes, siphon

rados = pytest.importorskip("rados")

MIB = 1 << 20
SMALL = 2
LOG = {"osd_min_pg_log_entries": "10", "osd_max_pg_log_entries": "20", "osd_pg_log_trim_min": "5"}


class Disks:
    """OSDs of different sizes, a pool, and what must be in it."""

    def __init__(self, base):
        self.procs = p = Processes(base)
        p.start_mons()
        p["mgr.x"].start()
        for size in ("4G", "4G", "1G"):
            self.add(size)
        self.c = c = p.client()
        # A log that reached back to the pool's first write would let an OSD without data be recovered instead of backfilled.
        for option, value in LOG.items():
            c.ceph("config", "set", "osd", option, value)
        c.ceph("osd", "pool", "create", "d", "16")
        c.ceph("osd", "pool", "application", "enable", "d", "rados")
        # The small one never leads: what its groups' primaries can see of it is what it tells them.
        c.ceph("osd", "primary-affinity", str(SMALL), "0")
        # What waits for room counts as under way: with librados' own limit, 100 MiB, the calls themselves would wait.
        self.client = rados.Rados(conffile=str(p.conf), conf={"objecter_inflight_op_bytes": str(2 << 30), "rados_osd_op_timeout": "600"})
        self.client.connect()
        self.io = self.client.open_ioctx("d")
        self.there, self.number = set(), 0

    def add(self, size):
        n = siphon("add", "osd", "--data-dir", self.procs.dirs[0], "--size", size).strip()
        self.procs.daemon(self.procs.dirs[0], f"osd.{n}").start()
        self.procs.client().ceph("osd", "crush", "reweight", f"osd.{n}", "1")
        return int(n)

    def content(self, n):
        return random.Random(n).randbytes(4096) * (MIB // 4096)

    def write(self, count):
        """Begins to write so many new objects; the operations by number."""
        first = self.number
        self.number += count
        return {n: self.io.aio_write_full(f"o{n}", self.content(n)) for n in range(first, first + count)}

    def take(self, ops):
        """Removes those that are answered from the operations; nothing else may have become of them."""
        for n in [n for n, op in ops.items() if op.is_complete()]:
            assert ops[n].get_return_value() == 0, f"o{n}: {ops[n].get_return_value()}"
            self.there.add(n)
            del ops[n]
        return ops

    def remove(self, numbers):
        names = [f"o{n}" for n in numbers]
        for at in range(0, len(names), 100):
            self.c.run("rados", "-p", "d", "rm", *names[at:at + 100], "--force-full", timeout=300)
        self.there -= set(numbers)

    def verify(self):
        for n in self.there:
            assert self.io.read(f"o{n}", 2 * MIB) == self.content(n), f"o{n}"

    def alive(self):
        for name, d in self.procs.daemons.items():
            assert d.running, f"{name} ended: {d.printed()[-2000:]}"
        return True

    def states(self):
        return [p["state"] for p in self.c.ceph_json("pg", "dump", "pgs_brief")["pg_stats"]]

    def clean(self):
        self.alive()
        return all(s == "active+clean" for s in self.states())

    def used(self, osd):
        return next(o["utilization"] for o in self.c.ceph_json("osd", "df")["nodes"] if o["id"] == osd)

    def checks(self):
        self.alive()
        return self.c.ceph_json("health")["checks"]


@pytest.fixture(scope="module")
def disks():
    base = Path(tempfile.mkdtemp(prefix="siphon-full.", dir=os.environ.get("SIPHON_TEST_DIR")))
    d = None
    try:
        d = Disks(base)
        yield d
        d.client.shutdown()
    finally:
        if d:
            d.procs.stop()
        if not os.environ.get("SIPHON_TEST_KEEP"):
            shutil.rmtree(base, ignore_errors=True)


def test_a_full_replica_holds_writes_up(disks):
    """More than fits on the small one, all at once, by primaries that have room. No ratio of the map stops them."""
    d = disks
    eventually(d.clean, what="active+clean")
    d.c.ceph("osd", "set-full-ratio", "0.99")
    ops = d.write(1100)
    eventually(lambda: d.alive() and d.used(SMALL) > 96, timeout=240, what="the small one to be filled")
    assert d.take(ops), "what does not fit waits"
    d.verify()
    # Room for the rest, by deletes that go on though the pool is full.
    while ops:
        left = len(ops)
        d.remove(sorted(d.there)[:300])
        eventually(lambda: d.alive() and (not d.take(ops) or len(ops) < left - 50), timeout=240, what="those that waited to go on")
    d.c.ceph("osd", "set-full-ratio", "0.95")
    eventually(lambda: not {"OSD_FULL", "POOL_FULL"} & set(d.checks()), what="room")
    eventually(d.clean, timeout=120, what="active+clean")
    d.verify()


def test_backfill_stops_before_a_disk_is_full_and_goes_on(disks):
    """Another small one takes the place of the first, and has no room for all of it."""
    d = disks
    ops = d.write(max(0, 900 - len(d.there)))
    eventually(lambda: d.alive() and not d.take(ops), timeout=240, what="writes")
    new = d.add("1G")
    d.c.ceph("osd", "primary-affinity", str(new), "0")
    # It takes less than the others say that it may: those that fill it must stop.
    d.c.ceph("osd", "set-backfillfull-ratio", "0.7")
    d.c.ceph("osd", "out", str(SMALL))
    eventually(lambda: any("backfill_toofull" in s for s in d.states()) and d.alive(), timeout=240, what="backfill_toofull")
    # Other groups would have fitted in there, but for the ratio, which is not below that of nearfull.
    assert 80 < d.used(new) < 90
    assert "PG_BACKFILL_FULL" in eventually(lambda: (h := d.checks()) and "PG_BACKFILL_FULL" in h and h, what="the health check")
    # No ratio holds them back now, but the room that there is.
    d.c.ceph("osd", "set-backfillfull-ratio", "0.985")
    d.c.ceph("osd", "set-full-ratio", "0.99")
    extra = d.write(200)
    eventually(lambda: d.alive() and d.used(new) > 90, timeout=240, what="the new one to be nearly full")
    d.remove(sorted(d.there)[:500])
    eventually(lambda: d.alive() and not d.take(extra), timeout=240, what="writes to go on")
    eventually(d.clean, timeout=240, what="active+clean with room")
    d.c.ceph("osd", "set-full-ratio", "0.95")
    d.c.ceph("osd", "set-backfillfull-ratio", "0.9")
    d.verify()


def test_recovery_does_not_overrun_a_disk(disks):
    """A small one was away while more was written than it has room for."""
    d = disks
    small = max(int(n[4:]) for n in d.procs.daemons if n.startswith("osd."))
    ops = d.write(max(0, 300 - len(d.there)))
    deadline = dict(timeout=240)
    eventually(lambda: not d.take(ops), **deadline, what="writes")
    old = set(d.there)
    # Now it is recovered by the log.
    for option in LOG:
        d.c.ceph("config", "rm", "osd", option)
    assert d.procs[f"osd.{small}"].stop() == 0
    eventually(lambda: all(o["up"] == 0 for o in d.c.ceph_json("osd", "dump")["osds"] if o["osd"] == small), what="it to be down")
    d.c.ceph("osd", "set", "noout")
    ops = d.write(1100 - len(old))
    eventually(lambda: not d.take(ops), **deadline, what="writes without it")
    # First nothing but the room that there is holds recovery back, then the map.
    d.c.ceph("osd", "set-full-ratio", "0.99")
    d.procs[f"osd.{small}"].start()
    d.c.ceph("osd", "unset", "noout")
    eventually(lambda: d.alive() and d.used(small) > 92, **deadline, what="it to be nearly full")
    d.c.ceph("osd", "set-full-ratio", "0.91")
    eventually(lambda: "OSD_FULL" in d.checks(), **deadline, what="it to be full")
    eventually(lambda: any("recovery_toofull" in s for s in d.states()) and d.alive(), **deadline, what="recovery_toofull")
    d.verify()
    d.c.ceph("osd", "set-full-ratio", "0.95")
    d.remove(sorted(old))
    eventually(d.clean, **deadline, what="active+clean with room")
    eventually(lambda: not {"OSD_FULL", "POOL_FULL"} & set(d.checks()), what="room")
    d.verify()
    for name, daemon in d.procs.daemons.items():
        if name.startswith("osd."):
            assert daemon.stop(timeout=60) == 0, name
            assert "no problems" in siphon("store", "fsck", "--deep", daemon.directory / name / "block", timeout=600)
