"""Copies that went bad on one OSD: clients never see them, scrubs find them, repair puts them right."""
import json
import os
import random
import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from conftest import eventually
from load import Load, Objects, Reader
from processes import Processes, siphon

rados = pytest.importorskip("rados")

POOL = "d"
BLOCK = 4096


def clean(c, osds=3):
    s = c.ceph_json("status")
    states = s["pgmap"].get("pgs_by_state", [])
    return (s["osdmap"]["num_up_osds"] == osds and states and
            all(x["state_name"] == "active+clean" for x in states))


class Damage:
    """A cluster whose OSDs can be stopped to change what they keep."""

    def __init__(self, procs):
        self.procs, self.c = procs, procs.client("crc")
        self.cluster = rados.Rados(conffile=str(procs.conf), conf={"rados_osd_op_timeout": "60", "rados_mon_op_timeout": "60"})
        self.cluster.connect(timeout=60)
        self.io = self.cluster.open_ioctx(POOL)
        self.pool = self.cluster.pool_lookup(POOL)

    def where(self, name):
        """The group of an object and the OSDs that have it, the primary first."""
        m = self.c.ceph_json("osd", "map", POOL, name)
        return m["pgid"], m["acting"]

    def device(self, osd):
        return self.procs[f"osd.{osd}"].directory / f"osd.{osd}" / "block"

    def stopped(self, osd, change):
        """Does something to an OSD's store while the OSD is not running."""
        daemon = self.procs[f"osd.{osd}"]
        daemon.stop()
        change(self.device(osd))
        daemon.start()
        eventually(lambda: clean(self.c), what="active+clean")

    def flip(self, osd, name, block=0):
        """Changes a byte of an object's data behind the store's back."""
        def change(device):
            dump = json.loads(siphon("store", "dump", device))
            extents = [o["extents"] for o in dump["objects"] if name in o["key"]]
            assert len(extents) == 1, f"{name} is not there once: {extents}"
            e = next(e for e in extents[0] if e["logical_block"] <= block < e["logical_block"] + e["blocks"])
            at = (e["physical_block"] + block - e["logical_block"]) * BLOCK + 100
            with open(device, "r+b") as f:
                f.seek(at)
                old = f.read(1)
                f.seek(at)
                f.write(bytes([old[0] ^ 0x40]))
        self.stopped(osd, change)

    def edit(self, osd, name, *args):
        """Changes an object in one store, checksums and all."""
        self.stopped(osd, lambda device: siphon("store", "edit", device, name, "--pool", self.pool, *args))

    def repaired(self, osd):
        stats = self.c.ceph_json("pg", "dump", "osds")
        stats = stats.get("osd_stats", stats) if isinstance(stats, dict) else stats
        return next(s["num_shards_repaired"] for s in stats if s["osd"] == osd)

    def log(self):
        return self.c.ceph("log", "last", "200", "debug", "cluster")

    def healthy(self):
        return self.c.ceph("health").strip() == "HEALTH_OK"

    def not_healthy(self):
        return "HEALTH_OK, but there is " + self.c.ceph("health", "detail")

    def whole(self, osd):
        """Whether everything in the store is what was written."""
        def change(device):
            assert "no problems" in siphon("store", "fsck", "--deep", device)
        self.stopped(osd, change)


@pytest.fixture(scope="module")
def damage():
    base = Path(tempfile.mkdtemp(prefix="siphon-scrub."))
    p = Processes(base)
    try:
        p.start()
        c = p.client()
        c.ceph("osd", "pool", "create", POOL, "4")
        c.ceph("osd", "pool", "application", "enable", POOL, "rados")
        eventually(lambda: clean(c), what="active+clean")
        yield Damage(p)
    finally:
        p.stop()
        if not os.environ.get("SIPHON_TEST_KEEP"):
            shutil.rmtree(base, ignore_errors=True)


def test_a_read_of_a_bad_copy_is_answered_from_another(damage):
    data = random.Random(1).randbytes(150_000)
    damage.io.write_full("read-me", data)
    damage.io.set_xattr("read-me", "x", b"attribute")
    damage.io.aio_flush()
    _, acting = damage.where("read-me")
    primary = acting[0]
    damage.flip(primary, "read-me", block=20)
    assert damage.repaired(primary) == 0
    # Many at once, all of them over the bad block, while some do not reach it.
    reads = []
    for i in range(16):
        reads.append(damage.io.aio_read("read-me", 200_000, 0, lambda _, got: results.append(got)))
        if i == 0:
            results = []
    for r in reads:
        r.wait_for_complete_and_cb()
    assert results == [data] * 16
    assert damage.io.get_xattr("read-me", "x") == b"attribute"
    pgid, _ = damage.where("read-me")
    eventually(lambda: f"{pgid} missing primary copy of" in damage.log(), what="a line in the cluster log")
    eventually(lambda: damage.repaired(primary) >= 1, what="the count of repairs")
    eventually(damage.healthy, what=damage.not_healthy)
    damage.whole(primary)
    assert damage.io.read("read-me", 200_000) == data


def test_a_write_into_a_bad_copy_does_not_make_it_worse(damage):
    """The first write of a client after the damage reads what it changes, or covers what is bad."""
    data = bytearray(random.Random(2).randbytes(50_000))
    damage.io.write_full("write-me", bytes(data))
    _, acting = damage.where("write-me")
    damage.flip(acting[0], "write-me", block=3)
    damage.io.append("write-me", b"more")
    data += b"more"
    # This one changes a part of the bad block: the rest of it must come from somewhere.
    damage.io.write("write-me", b"part", 3 * BLOCK + 1000)
    data[3 * BLOCK + 1000:3 * BLOCK + 1004] = b"part"
    assert damage.io.read("write-me", 100_000) == bytes(data)
    damage.flip(acting[0], "write-me", block=3)
    damage.io.write("write-me", b"x" * BLOCK, 3 * BLOCK)
    data[3 * BLOCK:4 * BLOCK] = b"x" * BLOCK
    assert damage.io.read("write-me", 100_000) == bytes(data)
    eventually(damage.healthy, what=damage.not_healthy)
    damage.whole(acting[0])


def test_a_bad_block_of_a_replica_that_is_written_in_part_stays_bad_until_it_is_found(damage):
    """The replica cannot complete the block. It goes on, and does not pass the block off as a good one."""
    data = bytearray(random.Random(5).randbytes(40_000))
    damage.io.write_full("half-bad", bytes(data))
    pgid, acting = damage.where("half-bad")
    replica = damage.procs[f"osd.{acting[1]}"]
    damage.flip(acting[1], "half-bad", block=5)
    damage.io.write("half-bad", b"part" * 2000, 5 * BLOCK + 10)
    data[5 * BLOCK + 10:5 * BLOCK + 8010] = b"part" * 2000
    assert damage.io.read("half-bad", 100_000) == bytes(data)
    scrub(damage, pgid)
    found = inconsistent(damage, pgid)
    assert [f["object"]["name"] for f in found] == ["half-bad"] and "read_error" in errors_of(found[0], acting[1]), found
    repair(damage, pgid, 1)
    assert replica.running
    damage.whole(acting[1])
    assert damage.io.read("half-bad", 100_000) == bytes(data)


def test_recovery_takes_no_bad_copy(damage):
    """A replica that was away gets what was written from a primary whose copy is bad meanwhile."""
    data = random.Random(3).randbytes(70_000)
    damage.io.write_full("copy-me", data)
    _, acting = damage.where("copy-me")
    away, primary = damage.procs[f"osd.{acting[2]}"], acting[0]
    away.stop()
    eventually(lambda: damage.c.ceph_json("status")["osdmap"]["num_up_osds"] == 2, what="the replica to be down")
    data += b"while it was away"
    damage.io.write_full("copy-me", data)
    daemon = damage.procs[f"osd.{primary}"]
    daemon.stop()

    def change(device):
        dump = json.loads(siphon("store", "dump", device))
        extents = next(o["extents"] for o in dump["objects"] if "copy-me" in o["key"])
        with open(device, "r+b") as f:
            f.seek(extents[0]["physical_block"] * BLOCK)
            f.write(b"\0" * 10)
    change(damage.device(primary))
    daemon.start()
    away.start()
    eventually(lambda: clean(damage.c), what="active+clean")
    assert damage.io.read("copy-me", 100_000) == data
    eventually(damage.healthy, what=damage.not_healthy)
    for osd in acting:
        damage.whole(osd)


def scrub(d, pgid, what="deep-scrub"):
    """Has a group scrubbed, and waits until it was."""
    stamp = "last_scrub_stamp" if what == "scrub" else "last_deep_scrub_stamp"

    def stat():
        return next(s for s in d.c.ceph_json("pg", "ls", str(d.pool))["pg_stats"] if s["pgid"] == pgid)
    before = stat()[stamp]
    assert f"instructing pg {pgid} on osd." in d.c.run("ceph", "pg", what, pgid).stderr.decode()
    return eventually(lambda: (s := stat())[stamp] > before and "scrubbing" not in s["state"] and s, what=f"{what} of {pgid}")


def inconsistent(d, pgid, kind="obj"):
    out = d.c.rados(f"list-inconsistent-{kind}", pgid, "--format=json").stdout
    return json.loads(out)["inconsistents"]


def errors_of(found, osd):
    return next(s for s in found["shards"] if s["osd"] == osd)["errors"]


def health(d):
    return {k: v["summary"]["message"] for k, v in d.c.ceph_json("health")["checks"].items()}


def repair(d, pgid, fixed):
    """Repairs a group; then nothing is wrong any more."""
    scrub(d, pgid, "repair")
    eventually(lambda: f"{pgid} repair {fixed} errors, {fixed} fixed" in d.log(), what="the end of the repair in the cluster log")
    eventually(d.healthy, what=d.not_healthy)
    stat = scrub(d, pgid)
    assert stat["state"] == "active+clean" and stat["stat_sum"]["num_scrub_errors"] == 0, stat["state"]
    assert inconsistent(d, pgid) == []


def test_a_scrub_without_findings(damage):
    for what in "scrub", "deep-scrub":
        for i in range(4):
            stat = scrub(damage, f"{damage.pool}.{i}", what)
            assert stat["state"] == "active+clean", stat["state"]
    eventually(lambda: f"{damage.pool}.0 deep-scrub ok" in damage.log(), what="a line in the cluster log")
    assert damage.healthy()
    assert inconsistent(damage, f"{damage.pool}.0") == []


def test_a_deep_scrub_finds_flipped_bits_and_repair_mends_them(damage):
    data = random.Random(4).randbytes(100_000)
    damage.io.write_full("flipped", data)
    pgid, acting = damage.where("flipped")
    replica = acting[1]
    damage.flip(replica, "flipped", block=7)
    # Reads go to the primary, whose copy is good, and light scrubs do not read data.
    assert damage.io.read("flipped", 200_000) == data
    assert scrub(damage, pgid, "scrub")["state"] == "active+clean"
    state = scrub(damage, pgid)
    assert "inconsistent" in state["state"], state["state"]
    assert state["stat_sum"]["num_deep_scrub_errors"] == 1
    h = eventually(lambda: "OSD_SCRUB_ERRORS" in (h := health(damage)) and h, what="health checks")
    assert h["OSD_SCRUB_ERRORS"] == "1 scrub errors" and h["PG_DAMAGED"] == "Possible data damage: 1 pg inconsistent"
    assert f"pg {pgid} is active+clean+inconsistent" in damage.c.ceph("health", "detail")
    assert json.loads(damage.c.rados("list-inconsistent-pg", POOL).stdout) == [pgid]
    found = inconsistent(damage, pgid)
    assert len(found) == 1 and found[0]["object"]["name"] == "flipped", found
    assert found[0]["union_shard_errors"] == ["read_error"] and errors_of(found[0], replica) == ["read_error"]
    assert errors_of(found[0], acting[0]) == [] and found[0]["selected_object_info"]["size"] == 100_000
    assert next(s["primary"] for s in found[0]["shards"] if s["osd"] == acting[0])
    before = damage.repaired(replica)
    repair(damage, pgid, fixed=1)
    eventually(lambda: damage.repaired(replica) == before + 1, what="the count of repairs")
    damage.whole(replica)


def test_a_light_scrub_finds_what_is_missing_or_has_another_size(damage):
    names = ["gone", "short"]
    groups = {}
    for name in names:
        damage.io.write_full(name, b"x" * 10_000)
        groups[name] = damage.where(name)
    (gone_pg, gone), (short_pg, short) = groups["gone"], groups["short"]
    damage.edit(gone[0], "gone", "--remove")
    damage.edit(short[2], "short", "--truncate", 5_000)
    assert "inconsistent" in scrub(damage, gone_pg, "scrub")["state"]
    assert "inconsistent" in scrub(damage, short_pg, "scrub")["state"]
    found = {f["object"]["name"]: f for pg in {gone_pg, short_pg} for f in inconsistent(damage, pg)}
    assert errors_of(found["gone"], gone[0]) == ["missing"], found
    assert sorted(errors_of(found["short"], short[2])) == ["obj_size_info_mismatch", "size_mismatch_info"], found
    assert found["short"]["errors"] == ["size_mismatch"], found
    total = len([e for f in found.values() for e in f["shards"] if e["errors"]]) + len([f for f in found.values() if f["errors"]])
    assert total == 3
    for pg in {gone_pg, short_pg}:
        scrub(damage, pg, "repair")
    eventually(damage.healthy, what=damage.not_healthy)
    for pg in {gone_pg, short_pg}:
        scrub(damage, pg)
        assert inconsistent(damage, pg) == []
    for name in names:
        assert damage.io.read(name, 20_000) == b"x" * 10_000


def test_a_deep_scrub_compares_content_that_reads_well(damage, tmp_path):
    """Other data, a missing omap row and a missing attribute, each with right checksums of its own."""
    data = b"a" * 9_000
    (tmp_path / "other").write_bytes(b"b" * 9_000)
    for name in "data", "rows", "attr":
        damage.io.write_full(name, data)
    with rados.WriteOpCtx() as op:
        damage.io.set_omap(op, ("k1", "k2", "k3"), (b"1", b"2", b"3"))
        damage.io.operate_write_op(op, "rows")
    damage.io.set_xattr("attr", "colour", b"blue")
    where = {name: damage.where(name) for name in ("data", "rows", "attr")}
    damage.edit(where["data"][1][1], "data", "--set-bytes", tmp_path / "other")
    damage.edit(where["rows"][1][2], "rows", "--rm-omap", "k2")
    damage.edit(where["attr"][1][1], "attr", "--rm-attr", "_colour")
    found = {}
    groups = {pg for pg, _ in where.values()}
    for pg in groups:
        assert "inconsistent" in scrub(damage, pg)["state"]
        found.update({f["object"]["name"]: f["errors"] for f in inconsistent(damage, pg)})
    assert found == {"data": ["data_digest_mismatch"], "rows": ["omap_digest_mismatch"], "attr": ["attr_name_mismatch"]}
    for pg in groups:
        scrub(damage, pg, "repair")
    eventually(damage.healthy, what=damage.not_healthy)
    for pg in groups:
        scrub(damage, pg)
        assert inconsistent(damage, pg) == []
    for osd in (0, 1, 2):
        damage.whole(osd)
    assert damage.io.read("data", 20_000) == data
    assert damage.io.get_xattr("attr", "colour") == b"blue"


def test_scrubs_go_on_while_clients_write(damage):
    """What is written while it is compared must not look inconsistent."""
    stop = threading.Event()
    failed = []

    def write(seed):
        rng = random.Random(seed)
        try:
            while not stop.is_set():
                name = f"busy{rng.randrange(40)}"
                if rng.randrange(5) == 0:
                    try:
                        damage.io.remove_object(name)
                    except rados.ObjectNotFound:
                        pass
                else:
                    damage.io.write(name, rng.randbytes(rng.choice([10, 5000, 40_000])), rng.randrange(20_000))
        except rados.Error as e:
            failed.append(e)
    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    try:
        for _ in range(2):
            for i in range(4):
                stat = scrub(damage, f"{damage.pool}.{i}")
                assert "inconsistent" not in stat["state"], damage.log()
    finally:
        stop.set()
        [t.join() for t in threads]
    assert not failed and damage.healthy(), damage.log()


class Calm:
    """Objects that nobody changes, and threads that read them and compare, until they are stopped."""

    def __init__(self, damage, count):
        rng = random.Random(77)
        self.io = damage.io
        self.data = {f"calm{i:02}": rng.randbytes(rng.choice([9_000, 60_000])) for i in range(count)}
        for name, data in self.data.items():
            self.io.write_full(name, data)
        self.stop, self.wrong, self.reads = threading.Event(), [], 0
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(2)]

    def run(self, seed):
        rng = random.Random(seed)
        while not self.stop.is_set():
            name = rng.choice(list(self.data))
            try:
                if self.io.read(name, 100_000) != self.data[name]:
                    self.wrong.append(name)
                self.reads += 1
            except rados.Error as e:
                self.wrong.append((name, e))


def test_blocks_go_bad_under_load(damage):
    """Blocks of an OSD's device change while clients write and read. They read nothing wrong, scrubs find the rest, repair mends it."""
    d, rng = damage, random.Random(8)
    calm = Calm(d, 40)
    connect = lambda **_: d.cluster
    load = Load(8)
    writers = [Objects(f"rot{i}", 8, connect, POOL, most=15) for i in range(3)]
    for w in [*writers, Reader("look", 8, connect, POOL, writers)]:
        load.add(w)
    where = {name: d.where(name) for name in calm.data}
    victim = 1
    daemon = d.procs[f"osd.{victim}"]
    before = d.repaired(victim)
    load.start()
    for t in calm.threads:
        t.start()
    try:
        eventually(lambda: load.check() or min(load.done().values()) > 30, what="clients to work")
        # While it is away the others go on; what they write meanwhile it gets by recovery.
        daemon.stop()
        device = d.device(victim)
        objects = [o for o in json.loads(siphon("store", "dump", device))["objects"] if o["extents"]]
        of = lambda name: next(o for o in objects if name in o["key"])
        led = [name for name, (_, acting) in where.items() if acting[0] == victim]
        followed = [name for name, (_, acting) in where.items() if acting[0] != victim]
        bad_led, bad = rng.sample(led, min(4, len(led))), rng.sample(followed, 6)
        assert bad_led, where
        busy = [o for o in objects if "rot" in o["key"]]
        with open(device, "r+b") as f:
            for o in [*(of(name) for name in [*bad_led, *bad]), *rng.sample(busy, min(len(busy), 5))]:
                e = rng.choice(o["extents"])
                f.seek((e["physical_block"] + rng.randrange(e["blocks"])) * BLOCK + 64)
                old = f.read(1)
                f.seek(-1, 1)
                f.write(bytes([old[0] ^ 0x10]))
        daemon.start()
        going = load.done()
        eventually(lambda: clean(d.c), what="active+clean")
        eventually(lambda: load.check() or all(n > going[w] + 20 for w, n in load.done().items()), what="clients to go on")
        # Those that the OSD leads were read by somebody, answered from another copy, and mended.
        eventually(lambda: d.repaired(victim) >= before + len(bad_led), what="what it leads to be mended")
        # The rest is found by deep scrubs, while clients go on.
        groups = sorted({where[name][0] for name in bad})
        for pgid in groups:
            assert "inconsistent" in scrub(d, pgid)["state"]
        eventually(lambda: {"OSD_SCRUB_ERRORS", "PG_DAMAGED"} <= set(health(d)), what="health checks")
        assert set(json.loads(d.c.rados("list-inconsistent-pg", POOL).stdout)) >= set(groups)
        found = {f["object"]["name"]: f for pgid in groups for f in inconsistent(d, pgid)}
        assert set(bad) <= set(found) and not (set(calm.data) - set(bad)) & set(found), (bad, sorted(found))
        assert all(errors_of(found[name], victim) == ["read_error"] for name in bad), found
        assert all(not errors_of(f, s["osd"]) for f in found.values() for s in f["shards"] if s["osd"] != victim), found
        for i in range(4):
            scrub(d, f"{d.pool}.{i}", "repair")
        # Up to 15 blocks were changed; more than ten repairs are a warning until an operator clears it.
        eventually(lambda: set(health(d)) <= {"OSD_TOO_MANY_REPAIRS"}, what=d.not_healthy)
        d.c.ceph("tell", f"osd.{victim}", "clear_shards_repaired")
        eventually(d.healthy, what=d.not_healthy)
        after = load.done()
        eventually(lambda: load.check() or all(n > after[w] + 20 for w, n in load.done().items()), what="clients to go on")
        load.pause()
        for w in writers:
            w.verify()
    finally:
        calm.stop.set()
        load.stop()
        for t in calm.threads:
            t.join()
    assert calm.reads > 100 and not calm.wrong, calm.wrong[:5]
    for i in range(4):
        assert "inconsistent" not in scrub(d, f"{d.pool}.{i}")["state"]
        assert inconsistent(d, f"{d.pool}.{i}") == []
    d.whole(victim)
    assert all(d.io.read(name, 100_000) == data for name, data in calm.data.items())


def test_commands_and_flags(damage):
    d = damage
    d.c.fails("ceph", "pg", "scrub", "77.1", errno=2, text="does not exist")
    d.c.fails("ceph", "osd", "scrub", "99", errno=11, text="osd.99 is not up")
    d.c.fails("ceph", "osd", "pool", "scrub", "no-such", errno=2)
    assert "instructed osd(s) 0,1,2 to scrub" in d.c.run("ceph", "osd", "scrub", "all").stderr.decode()

    def stamps():
        return [s["last_deep_scrub_stamp"] for s in d.c.ceph_json("pg", "ls", str(d.pool))["pg_stats"]]
    before = stamps()
    d.c.ceph("osd", "pool", "deep-scrub", POOL)
    eventually(lambda: all(a > b for a, b in zip(stamps(), before)), what="a deep scrub of the pool")
    # Of what is due, nothing begins while the flags forbid it.
    d.c.ceph("osd", "set", "noscrub")
    d.c.ceph("osd", "set", "nodeep-scrub")
    d.c.ceph("config", "set", "osd", "osd_scrub_interval_randomize_ratio", "0")
    d.c.ceph("config", "set", "osd", "osd_scrub_min_interval", "1")
    try:
        eventually(lambda: "scrubbing" not in d.c.ceph("pg", "stat"), what="an end of scrubs")
        before = stamps()
        light = [s["last_scrub_stamp"] for s in d.c.ceph_json("pg", "ls", str(d.pool))["pg_stats"]]
        pgid = f"{d.pool}.1"
        scrub(d, pgid)  # asked for by an operator
        after = [s["last_scrub_stamp"] for s in d.c.ceph_json("pg", "ls", str(d.pool))["pg_stats"]]
        assert [a == b for a, b in zip(light, after)] == [True, False, True, True]
        d.c.ceph("osd", "unset", "noscrub")

        def all_scrubbed():
            now = [s["last_scrub_stamp"] for s in d.c.ceph_json("pg", "ls", str(d.pool))["pg_stats"]]
            return all(a > b for a, b in zip(now, after))
        eventually(all_scrubbed, what="scrubs that are due")
    finally:
        d.c.ceph("config", "rm", "osd", "osd_scrub_min_interval")
        d.c.ceph("osd", "unset", "noscrub")
        d.c.ceph("osd", "unset", "nodeep-scrub")
    eventually(d.healthy, what=d.not_healthy)


def test_auto_repair(damage):
    damage.io.write_full("by-itself", b"z" * 30_000)
    pgid, acting = damage.where("by-itself")
    damage.c.ceph("config", "set", "osd", "osd_scrub_auto_repair", "true")
    try:
        damage.flip(acting[2], "by-itself")
        before = damage.repaired(acting[2])
        scrub(damage, pgid)
        eventually(lambda: damage.repaired(acting[2]) == before + 1, what="the repair")
        eventually(damage.healthy, what=damage.not_healthy)
    finally:
        damage.c.ceph("config", "rm", "osd", "osd_scrub_auto_repair")
