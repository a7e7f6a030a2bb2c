"""Copies that no log can fill are filled by themselves: of an OSD that lost its disk, was away too long, or is new."""
import json
import os
import random
import re
import threading

import pytest
from conftest import Cluster, eventually

rados = pytest.importorskip("rados")

OBJECTS = 4000 if os.environ.get("SIPHON_TEST_LONG") else 1200


def connect(siphon):
    return rados.Rados(conffile=str(siphon.conf), conf={"rados_osd_op_timeout": "60", "rados_mon_op_timeout": "60", "client_mount_timeout": "60"})


class Model:
    """Objects with data, attributes, omap rows and snapshots, and what they must be."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.now = {}      # name -> (data, xattr, omap)
        self.snaps = {}    # snapshot -> what was then

    def write(self, io, names):
        waiting = []
        for name in names:
            data = self.rng.randbytes(self.rng.choice([10, 4096, 5000, 30000]))
            xattr = self.rng.randbytes(8)
            omap = {f"k{i}": self.rng.randbytes(10) for i in range(self.rng.choice([0, 0, 3, 40]))}
            with rados.WriteOpCtx() as op:
                op.write_full(data)
                op.set_xattr("x", xattr)
                io.clear_omap(op)
                if omap:
                    io.set_omap(op, tuple(omap), tuple(omap.values()))
                waiting.append(io.operate_aio_write_op(op, name))
            self.now[name] = (data, xattr, omap)
            if len(waiting) >= 32:
                waiting.pop(0).wait_for_complete_and_cb()
        for c in waiting:
            c.wait_for_complete_and_cb()
            assert c.get_return_value() == 0

    def remove(self, io, names):
        for name in names:
            io.remove_object(name)
            del self.now[name]

    def snapshot(self, io, name):
        io.create_snap(name)
        self.snaps[name] = dict(self.now)

    def check_one(self, io, name, expected):
        data, xattr, omap = expected
        assert io.read(name, 1 << 17) == data, name
        assert io.get_xattr(name, "x") == xattr, name
        with rados.ReadOpCtx() as op:
            found, _ = io.get_omap_vals(op, "", "", 1000)
            io.operate_read_op(op, name)
            assert dict(found) == omap, name

    def check(self, io):
        # As in Ceph, a removed object is listed for as long as it has clones.
        cloned = {name for then in self.snaps.values() for name in then}
        assert set(self.now) <= {o.key for o in io.list_objects()} <= set(self.now) | cloned
        for name, expected in self.now.items():
            self.check_one(io, name, expected)
        for snap, then in self.snaps.items():
            io.set_read(io.lookup_snap(snap).snap_id)
            try:
                for name, (data, _, _) in then.items():
                    assert io.read(name, 1 << 17) == data, (snap, name)
            finally:
                io.set_read(rados.LIBRADOS_SNAP_HEAD)


def states(c):
    return {p["pgid"]: p["state"] for p in c.ceph_json("pg", "dump", "pgs_brief")["pg_stats"]}


def clean(c):
    return all(s == "active+clean" for s in states(c).values())


def healthy(c, timeout=240):
    eventually(lambda: clean(c), timeout=timeout, what="all groups to be active+clean")
    eventually(lambda: c.ceph("health").strip() == "HEALTH_OK", timeout=30, what="HEALTH_OK")


def placed(c, osds):
    """Every group acts where it should be, with three copies, on these OSDs only."""
    for pg in c.ceph_json("pg", "dump", "pgs_brief")["pg_stats"]:
        assert pg["acting"] == pg["up"] and len(pg["up"]) == 3, pg
        assert set(pg["up"]) <= set(osds), pg


def read_from(c, osd, osds):
    """Makes an OSD the primary of all its groups, so that its copies are what clients read."""
    for o in osds:
        c.ceph("osd", "primary-affinity", str(o), "1" if o == osd else "0")
    eventually(lambda: all(p["acting_primary"] == osd or osd not in p["acting"] for p in c.ceph_json("pg", "dump", "pgs_brief")["pg_stats"]),
               timeout=30, what=f"osd.{osd} to lead")
    eventually(lambda: clean(c), timeout=60, what="the groups to be clean")


def small_logs(c):
    for name, value in [("osd_min_pg_log_entries", "10"), ("osd_max_pg_log_entries", "20"), ("osd_pg_log_trim_min", "5"),
                        ("osd_backfill_scan_max", "7")]:
        c.ceph("config", "set", "osd", name, value)


def make(siphon, name="p"):
    c = Cluster(siphon.conf, "crc")
    small_logs(c)
    c.ceph("osd", "pool", "create", name, "8")
    c.ceph("osd", "pool", "application", "enable", name, "rados")
    return c


def lose_disk(siphon, osd):
    for part in ["ready", "block"]:
        (siphon.directory / f"osd.{osd}" / part).unlink()


def test_an_emptied_osd_heals(siphon_factory):
    siphon = siphon_factory(osds=3, extra=["--osd-size", "4G"])
    siphon.start()
    c = make(siphon)
    model = Model(1)
    names = [f"o{i}" for i in range(OBJECTS)]
    with connect(siphon) as r, r.open_ioctx("p") as io:
        model.write(io, names)
        model.snapshot(io, "s1")
        model.write(io, names[::3])
        model.snapshot(io, "s2")
        model.write(io, names[::4])
        model.remove(io, names[1::10])
    siphon.stop()
    lose_disk(siphon, 1)
    siphon.start(timeout=300)
    healthy(c)
    placed(c, [0, 1, 2])
    # Who came with a new store is known, and nobody else is taken for one.
    assert [o["lost_at"] > 0 for o in c.ceph_json("osd", "dump")["osds"]] == [False, True, False]
    with connect(siphon) as r, r.open_ioctx("p") as io:
        model.check(io)
        read_from(c, 1, [0, 1, 2])
        model.check(io)
        # It takes part as before, and snapshots are trimmed on it too.
        model.write(io, names[::5])
        io.remove_snap("s1")
        del model.snaps["s1"]
        model.check(io)
    healthy(c)


def test_osds_come_and_go(siphon_factory):
    siphon = siphon_factory(osds=3, extra=["--osd-size", "4G"])
    siphon.start()
    c = make(siphon)
    model = Model(2)
    names = [f"o{i}" for i in range(OBJECTS)]
    with connect(siphon) as r, r.open_ioctx("p") as io:
        model.write(io, names)
        model.snapshot(io, "s1")
        model.write(io, names[::3])
    siphon.stop()
    siphon.osds = 4
    siphon.start(timeout=300)
    healthy(c)
    assert {o for p in c.ceph_json("pg", "dump", "pgs_brief")["pg_stats"] for o in p["up"]} == {0, 1, 2, 3}
    with connect(siphon) as r, r.open_ioctx("p") as io:
        model.check(io)
        # Nothing moves while it must not.
        c.ceph("osd", "set", "nobackfill")
        c.ceph("osd", "out", "0")
        eventually(lambda: any("backfill_wait" in s for s in states(c).values()), timeout=60, what="groups that wait")
        model.write(io, names[::2])
        waiting = {p: s for p, s in states(c).items() if "backfill_wait" in s}
        assert all(s == "active+remapped+backfill_wait" for s in waiting.values()), waiting
        assert c.ceph_json("status")["pgmap"]["misplaced_objects"] > 0
        checks = lambda: c.ceph_json("health", "detail")["checks"]
        assert "OBJECT_MISPLACED" not in checks()
        c.ceph("config", "set", "mon", "mon_warn_on_misplaced", "true")
        eventually(lambda: "OBJECT_MISPLACED" in checks(), timeout=30, what="OBJECT_MISPLACED")
        said = checks()["OBJECT_MISPLACED"]
        assert said["severity"] == "HEALTH_WARN" and re.fullmatch(r"[1-9]\d*/\d+ objects misplaced \(\d+\.\d{3}%\)", said["summary"]["message"]), said
        c.ceph("config", "rm", "mon", "mon_warn_on_misplaced")
        query = c.ceph_json("pg", next(iter(waiting)), "query")
        assert query["recovery_state"][0]["substate"] == "NotBackfilling", query
        c.ceph("osd", "unset", "nobackfill")
        # Clients write on all the while.
        stop, errors = threading.Event(), []

        def writes():
            try:
                while not stop.is_set():
                    model.write(io, model.rng.sample(names, 20))
            except Exception as e:
                errors.append(e)

        writer = threading.Thread(target=writes)
        writer.start()
        seen = set()

        def moved():
            for p, s in states(c).items():
                if s not in seen:
                    seen.add(s)
            if any("backfilling" in s for s in seen) and "progress" not in seen:
                for p in waiting:
                    q = json.loads(c.run("ceph", "pg", p, "query", "--format", "json").stdout)
                    if q["recovery_state"][0].get("recovery_progress", {}).get("backfill_progress", 0) > 0:
                        seen.add("progress")
            return clean(c)

        try:
            eventually(moved, timeout=400, what="the groups to move")
        finally:
            stop.set()
            writer.join()
        assert not errors, errors
        assert any("backfilling" in s for s in seen), seen
        healthy(c)
        placed(c, [1, 2, 3])
        model.check(io)
        for osd in [1, 2, 3]:
            read_from(c, osd, [0, 1, 2, 3])
            model.check(io)
        # What left is gone from there.
        eventually(lambda: c.ceph_json("osd", "df")["nodes"][0]["pgs"] == 0, timeout=60, what="osd.0 to be empty")


def test_no_room(siphon_factory):
    siphon = siphon_factory(osds=4, extra=["--osd-size", "4G"])
    siphon.start()
    c = make(siphon)
    model = Model(4)
    names = [f"o{i}" for i in range(300)]
    with connect(siphon) as r, r.open_ioctx("p") as io:
        model.write(io, names)
        # Every store is above these.
        for level in ["nearfull", "backfillfull"]:
            c.ceph("osd", f"set-{level}-ratio", "0.000001")
        # OSDs look at their stores now and then; a group that moves sooner is moved.
        full = lambda: c.ceph_json("health")["checks"].get("OSD_BACKFILLFULL", {}).get("summary", {}).get("count")
        eventually(lambda: full() == 4, timeout=60, what="OSDs to see that they are full")
        c.ceph("osd", "out", "2")
        eventually(lambda: any("backfill_toofull" in s for s in states(c).values()), timeout=60, what="groups without room")
        eventually(lambda: "PG_BACKFILL_FULL" in c.ceph_json("health")["checks"], timeout=30, what="the warning")
        model.write(io, names[::3])
        for level, ratio in [("backfillfull", "0.90"), ("nearfull", "0.85")]:
            c.ceph("osd", f"set-{level}-ratio", ratio)
        healthy(c)
        placed(c, [0, 1, 3])
        model.check(io)


def test_backfill_goes_on_after_a_crash(siphon_factory):
    siphon = siphon_factory(osds=4, extra=["--osd-size", "4G"])
    siphon.start()
    c = make(siphon)
    model = Model(3)
    names = [f"o{i}" for i in range(OBJECTS)]
    c.ceph("osd", "set", "nobackfill")
    with connect(siphon) as r, r.open_ioctx("p") as io:
        model.write(io, names)
        c.ceph("osd", "out", "3")
        eventually(lambda: any("backfill_wait" in s for s in states(c).values()), timeout=60, what="groups that wait")
        model.write(io, names[::2])
    c.ceph("osd", "unset", "nobackfill")
    eventually(lambda: any("backfilling" in s for s in states(c).values()) or clean(c), timeout=60, what="backfill to begin")
    siphon.kill()
    siphon.start(timeout=300)
    healthy(c)
    placed(c, [0, 1, 2])
    with connect(siphon) as r, r.open_ioctx("p") as io:
        model.check(io)
        for osd in [0, 1, 2]:
            read_from(c, osd, [0, 1, 2, 3])
            model.check(io)

