"""The number of groups of a pool changes while clients write; nothing is lost, nobody notices."""
import json
import os
import random
import subprocess
import threading

import pytest
from conftest import Cluster, eventually, tells_soon
from test_backfill import Model, clean, connect, healthy, read_from
from test_durability import Writer

rados = pytest.importorskip("rados")

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
OBJECTS = 3000 if LONG else 600
MOST = 256 if LONG else 32


def make(siphon, pg_num, name="p", ratio="0.5"):
    c = Cluster(siphon.conf, "crc")
    # A step is taken when every OSD has told what it has.
    tells_soon(c)
    # Placement follows in few steps: how it is bounded is tested where it is decided.
    c.ceph("config", "set", "mon", "target_max_misplaced_ratio", ratio)
    c.ceph("config", "set", "mon", "mon_max_pg_per_osd", "1000")
    c.ceph("osd", "pool", "create", name, str(pg_num))
    c.ceph("osd", "pool", "application", "enable", name, "rados")
    return c


def pool(c, name="p"):
    return next(p for p in c.ceph_json("osd", "pool", "ls", "detail") if p["pool_name"] == name)


def reached(c, pg_num, name="p", timeout=300):
    eventually(lambda: (lambda p: p["pg_num"] == p["pg_placement_num"] == pg_num)(pool(c, name)), timeout=timeout, what=f"pg_num {pg_num}")
    assert json.loads(c.ceph("osd", "pool", "get", name, "pg_num", "-f", "json"))["pg_num"] == pg_num


class Load(threading.Thread):
    """Keeps a part of a model's objects changing."""

    def __init__(self, siphon, model, names):
        super().__init__()
        self.siphon, self.model, self.names = siphon, model, names
        self.stop, self.error, self.rounds = threading.Event(), None, 0

    def run(self):
        rng = random.Random(7)
        try:
            with connect(self.siphon) as r, r.open_ioctx("p") as io:
                while not self.stop.is_set():
                    self.model.write(io, rng.sample(self.names, 40))
                    for name in rng.sample(self.names, 10):
                        self.model.check_one(io, name, self.model.now[name])
                    self.rounds += 1
        except BaseException as e:  # noqa: BLE001 - told by the test
            self.error = e

    def end(self):
        self.stop.set()
        self.join(timeout=120)
        assert not self.is_alive() and self.error is None, self.error
        assert self.rounds > 0


def test_pg_num_grows_under_load(siphon_factory):
    siphon = siphon_factory(osds=3, extra=["--osd-size", "4G"])
    siphon.start()
    c = make(siphon, 4)
    model = Model(1)
    names = [f"o{i}" for i in range(OBJECTS)]
    with connect(siphon) as r, r.open_ioctx("p") as io:
        model.write(io, names)
        model.snapshot(io, "s1")
        model.write(io, names[::3])
        model.snapshot(io, "s2")
        model.remove(io, names[1::10])
        names = [n for n in names if n in model.now]
        heard = []
        watch = io.watch(names[0], lambda notify_id, notifier, watch_id, data: heard.append(bytes(data)))
        load = Load(siphon, model, names[5:])
        load.start()
        for n in [5, 12, MOST]:
            c.ceph("osd", "pool", "set", "p", "pg_num", str(n))
            assert pool(c)["pg_num_target"] == n
            reached(c, n)
        load.end()
        healthy(c)
        # A watch lives on, wherever its object went.
        io.notify(names[0], "here?", timeout_ms=10_000)
        assert heard, "the watcher hears of it"
        watch.close()
        model.check(io)
        groups = {json.loads(c.ceph("osd", "map", "p", n, "-f", "json"))["pgid"] for n in names}
        assert len(groups) > MOST // 2
        # What is trimmed is found where its objects went.
        io.remove_snap("s1")
        del model.snaps["s1"]
        eventually(lambda: "removed_snaps_queue" not in pool(c) or not pool(c)["removed_snaps_queue"], timeout=120, what="the snapshot to be trimmed")
        eventually(lambda: clean(c), timeout=120, what="trimming to end")
        model.check(io)
    # It is all on the disks.
    assert siphon.stop() == 0
    siphon.start()
    healthy(c)
    with connect(siphon) as r, r.open_ioctx("p") as io:
        model.check(io)
        model.write(io, names)
        model.check(io)
    listed = {pg["pgid"].split(".")[1] for pg in c.ceph_json("pg", "ls-by-pool", "p")["pg_stats"]}
    assert listed == {f"{i:x}" for i in range(MOST)}


def restarted(siphon, c, model, groups):
    """After a restart everything is there, in so many groups and no other."""
    assert siphon.stop() == 0
    siphon.start()
    healthy(c)
    with connect(siphon) as r, r.open_ioctx("p") as io:
        model.check(io)
    listed = {pg["pgid"].split(".")[1] for pg in c.ceph_json("pg", "ls-by-pool", "p")["pg_stats"]}
    assert listed == {f"{i:x}" for i in range(groups)}


def test_pg_num_shrinks_under_load(siphon_factory):
    siphon = siphon_factory(osds=3, extra=["--osd-size", "4G"])
    siphon.start()
    c = make(siphon, MOST if LONG else 7)
    model = Model(2)
    names = [f"o{i}" for i in range(OBJECTS // 3)]
    with connect(siphon) as r, r.open_ioctx("p") as io:
        model.write(io, names)
        model.snapshot(io, "s1")
        model.write(io, names[::3])
        heard = []
        watch = io.watch(names[0], lambda notify_id, notifier, watch_id, data: heard.append(bytes(data)))
        load = Load(siphon, model, names[5:])
        load.start()
        few = 16 if LONG else 4
        c.ceph("osd", "pool", "set", "p", "pg_num", str(few))
        assert pool(c)["pg_num_target"] == pool(c)["pg_placement_num_target"] == few
        reached(c, few, timeout=3600 if LONG else 240)
        load.end()
        meta = pool(c)["last_pg_merge_meta"]
        assert meta["source_pgid"] == f"{pool(c)['pool_id']}.{few:x}" and meta["ready_epoch"] > 0, meta
        healthy(c)
        model.check(io)
        io.notify(names[0], "here?", timeout_ms=10_000)
        assert heard, "the watcher hears of it"
        watch.close()
        # And back again, with what was written meanwhile.
        model.write(io, names[::2])
        c.ceph("osd", "pool", "set", "p", "pg_num", "8")
        reached(c, 8)
        healthy(c)
        model.check(io)
        io.remove_snap("s1")
        del model.snaps["s1"]
        eventually(lambda: clean(c), timeout=120, what="trimming to end")
        model.check(io)
    restarted(siphon, c, model, 8)


@pytest.mark.skipif(not LONG, reason="takes many minutes; SIPHON_TEST_LONG=1 runs it")
def test_pg_num_goes_far_up_and_back_under_load(siphon_factory):
    """One run from 8 groups to 256 and to 16. Joined groups are those that were divided under the same load."""
    siphon = siphon_factory(osds=3, extra=["--osd-size", "4G"])
    siphon.start()
    c = make(siphon, 8)
    model = Model(3)
    names = [f"o{i}" for i in range(1500)]
    with connect(siphon) as r, r.open_ioctx("p") as io:
        model.write(io, names)
        load = Load(siphon, model, names[5:])
        load.start()
        for n in (256, 16):
            if n == 256:
                # It has clones and, once it is removed, something to trim in groups that are divided and joined meanwhile.
                model.snapshot(io, "s1")
            else:
                io.remove_snap("s1")
                del model.snaps["s1"]
            before = load.rounds
            c.ceph("osd", "pool", "set", "p", "pg_num", str(n))
            reached(c, n, timeout=3600)
            assert load.rounds > before, "clients write meanwhile"
            healthy(c, timeout=600)
        load.end()
        model.check(io)
        # Every copy is what it should be, not only the one that is read.
        for osd in range(3):
            read_from(c, osd, range(3))
            model.check(io)
    restarted(siphon, c, model, 16)


def test_sigkill_while_groups_change(siphon_factory):
    siphon = siphon_factory(osds=3)
    siphon.start()
    c = make(siphon, 1, "d")
    known = {}
    for turn, n in enumerate([3, 8, 6, 16] + ([32, 64, 128, 120] if LONG else [])):
        client = connect(siphon)
        client.connect()
        io = client.open_ioctx("d")
        w = Writer(io, seed=turn)
        t = threading.Thread(target=w.run, args=(f"t{turn}",))
        t.start()
        threading.Event().wait(0.5)
        before = pool(c, "d")["pg_num"]
        c.ceph("osd", "pool", "set", "d", "pg_num", str(n))
        # The step is taken with the next statistics; then some time within it.
        eventually(lambda: pool(c, "d")["pg_num"] != before, timeout=60, what="the step")
        threading.Event().wait(random.Random(turn).uniform(0, 0.4))
        siphon.kill()
        w.stop = True
        for _ in range(64):
            w.slots.release()
        t.join()
        with w.lock:
            acked, pending = dict(w.acked), dict(w.pending)
        assert acked
        siphon.start()
        with connect(siphon) as r, r.open_ioctx("d") as again:
            for name, data in acked.items():
                assert again.read(name, length=1_000_000) in (data, pending.get(name)), f"turn {turn}: {name}"
            for name, data in known.items():
                assert again.read(name, length=1_000_000) == data, f"turn {turn}: {name} of an earlier turn"
        known.update({name: data for name, data in acked.items() if name not in pending})
        known = dict(list(known.items())[-500:])
        eventually(w.answered, timeout=60, what="the last answers")
        client.shutdown()
    reached(c, n, "d")
    eventually(lambda: clean(c), timeout=120, what="the groups to be clean")
    assert siphon.stop() == 0


def test_an_image_lives_through_splits(siphon_factory, tmp_path):
    siphon = siphon_factory(osds=3, extra=["--osd-size", "4G"])
    siphon.start()
    c = make(siphon, 2, "rbd")
    c.run("rbd", "pool", "init", "rbd")
    before = random.Random(3).randbytes(24 << 20)
    (tmp_path / "in").write_bytes(before)
    c.run("rbd", "import", "--image-format", "2", str(tmp_path / "in"), "rbd/image")
    c.run("rbd", "snap", "create", "rbd/image@one")
    c.run("rbd", "create", "--size", "64M", "rbd/busy")
    bench = subprocess.Popen(c.argv("rbd", "bench", "--io-type", "write", "--io-size", "16K", "--io-total", "48M", "--io-pattern", "rand", "rbd/busy"),
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for n in [8, 16]:
        c.ceph("osd", "pool", "set", "rbd", "pg_num", str(n))
        reached(c, n, "rbd")
    assert bench.wait(timeout=300) == 0, bench.stderr.read()
    bench.stderr.close()
    c.run("rbd", "export", "rbd/image@one", str(tmp_path / "one"))
    assert (tmp_path / "one").read_bytes() == before
    c.run("rbd", "clone", "--rbd-default-clone-format", "2", "rbd/image@one", "rbd/child")
    c.run("rbd", "export", "rbd/child", str(tmp_path / "child"))
    assert (tmp_path / "child").read_bytes() == before
    assert siphon.stop() == 0


def test_refusals(siphon_factory):
    siphon = siphon_factory(osds=3)
    siphon.start()
    c = Cluster(siphon.conf, "crc")
    tells_soon(c)
    c.ceph("osd", "pool", "create", "p", "8")

    def refused(*args):
        r = c.run("ceph", "osd", "pool", "set", "p", *args, check=False)
        assert r.returncode != 0
        return r.returncode, r.stderr.decode()

    assert refused("pg_num", "0")[0] == 34
    code, text = refused("pg_num", "60000")
    assert code == 34 and "would mean" in text and "mon_max_pg_per_osd" in text
    code, text = refused("pgp_num", "9")
    assert code == 22 and "specified pgp_num 9 > pg_num 8" in text
    c.ceph("osd", "pool", "set", "p", "pg_num_max", "16")
    code, text = refused("pg_num", "32")
    assert code == 22 and "specified pg_num 32 > pg_num_max 16" in text
    c.ceph("osd", "pool", "set", "p", "nopgchange", "1")
    assert refused("pg_num", "16")[0] == 1
    c.ceph("osd", "pool", "set", "p", "nopgchange", "0")
    c.ceph("osd", "pool", "set", "p", "pg_num", "16")
    reached(c, 16)
    assert siphon.stop() == 0


def test_the_autoscaler_acts_where_it_may(siphon_factory):
    siphon = siphon_factory(osds=3)
    siphon.start()
    c = make(siphon, 4)
    c.ceph("osd", "pool", "create", "warned", "4")
    c.ceph("osd", "pool", "create", "left-alone", "4")
    c.ceph("osd", "pool", "set", "p", "pg_autoscale_mode", "on")
    c.ceph("osd", "pool", "set", "warned", "pg_autoscale_mode", "warn")
    with connect(siphon) as r, r.open_ioctx("p") as io:
        for i in range(100):
            io.write_full(f"o{i}", b"%d" % i * 100)
        c.ceph("config", "set", "mgr", "mgr/pg_autoscaler/sleep_interval", "1")
        # A step is by four at most, and 16 instead of 32 is no reason for another.
        reached(c, 16)
        eventually(lambda: "POOL_TOO_FEW_PGS" in c.ceph_json("health")["checks"], what="a warning")
        assert "Pool warned has 4 placement groups, should have 32" in c.ceph("health", "detail")
        for i in range(100):
            assert io.read(f"o{i}") == b"%d" % i * 100
    assert pool(c, "warned")["pg_num_target"] == pool(c, "left-alone")["pg_num_target"] == 4
    line = next(p for p in c.ceph_json("osd", "pool", "autoscale-status") if p["pool_name"] == "p")
    assert not line["would_adjust"] and (line["pg_num_target"], line["pg_num_final"]) == (16, 32)
    # If fewer are allowed, it goes back by itself.
    c.ceph("osd", "pool", "set", "p", "pg_num_min", "4")
    eventually(lambda: pool(c)["pg_num_target"] == 4, what="fewer groups")
