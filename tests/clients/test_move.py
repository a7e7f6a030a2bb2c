"""Movement as a job: nothing moves at the change of CRUSH, each step is bounded, and all of it can be undone."""
import json
import os
import subprocess

import pytest
from conftest import BINARY, Cluster, eventually

pytestmark = pytest.mark.skipif("SIPHON_TEST_CONF" in os.environ, reason="a cluster of its own is moved about")


class Moving(Cluster):
    """A cluster with movement jobs."""

    def move(self, *args, check=True):
        out = subprocess.run([str(BINARY), "move", "-c", str(self.conf), "--json", *args], capture_output=True, text=True, timeout=90)
        if check:
            assert out.returncode == 0, out.stderr
            return json.loads(out.stdout) if out.stdout.strip() else None
        return out

    def job(self, number):
        return self.move("status", str(number))

    def ends(self, number, state="done"):
        def ended():
            job = self.job(number)
            assert not job["note"].startswith("stuck"), job
            return job if job["state"] == state else None
        return eventually(ended, timeout=180, what=f"job {number} to be {state}")

    def placed(self):
        return {p["pgid"]: sorted(p["up"]) for p in self.ceph_json("pg", "dump", "pgs_brief")["pg_stats"]}

    def on(self, osd):
        return sum(osd in up for up in self.placed().values())

    def clean(self):
        def whole():
            states = self.ceph_json("pg", "stat")["pg_summary"]["num_pg_by_state"]
            return states and all(s["name"] == "active+clean" for s in states)
        eventually(whole, timeout=120, what="all groups to be clean")

    def objects(self, pool):
        for n in range(24):
            self.rados("-p", pool, "put", f"o{n}", "-", data=bytes([n]) * 100_000)

    def whole(self, pool):
        for n in range(24):
            assert self.run("rados", "-p", pool, "get", f"o{n}", "-").stdout == bytes([n]) * 100_000


@pytest.fixture(scope="module")
def process(siphon_factory):
    c = siphon_factory(osds=5)
    c.start()
    return c


@pytest.fixture(scope="module")
def cl(process):
    cl = Moving(process.conf, "crc")
    cl.ceph("osd", "set-require-min-compat-client", "luminous")
    cl.make_pool("data", pg_num=16)
    cl.objects("data")
    cl.clean()
    return cl


def test_a_plan_changes_nothing(cl):
    epoch = cl.ceph_json("osd", "dump")["epoch"]
    plan = eventually(lambda: (lambda o: json.loads(o.stdout) if o.returncode == 0 else None)(cl.move("plan", "drain", "osd.4", check=False)), what="a digest")
    assert plan["what"] == "drain osd.4" and plan["pgs"] == cl.on(4) and plan["stuck"] is None
    assert plan["bytes"] > 0 and all(p["utilization"] < plan["backfillfull_ratio"] for p in plan["peaks"])
    assert "placements of PGs change" in cl.ceph("move", "plan", "drain", "osd.4", "--rate", "1M")
    assert cl.ceph_json("osd", "dump")["epoch"] == epoch and cl.move("ls") == []
    for args, text in ((("drain", "osd.99"), "not in both maps"), (("rule", "data"), "a pool and a rule are expected"), (("rule", "data", "nowhere"), "does not exist"),
                       (("drain", "osd.0", "osd.1", "osd.2"), "no place for 3 copies"), (("drain", "osd.1", "--hours", "late"), "22:00-06:00"),
                       (("drain", "osd.1", "--rate", "fast"), "as 100M"), (("drain", "osd.1", "--p99", "10"), "as 10ms")):
        refused = cl.move("start", *args, check=False)
        assert refused.returncode != 0 and text in refused.stderr, (args, refused.stderr)
    assert cl.move("ls") == []


def test_drain_pause_and_undo(cl):
    before, dump = cl.placed(), cl.ceph_json("osd", "dump")
    moves = cl.on(4)
    assert moves > 3
    job = cl.move("start", "drain", "osd.4", "--pgs", "1", "--rate", "400K")["id"]
    assert cl.move("start", "drain", "osd.3", check=False).stderr.startswith("siphon: movement job")
    eventually(lambda: 0 < cl.on(4) < moves, what="the first groups to leave")
    cl.move("pause", str(job))
    eventually(lambda: cl.job(job)["pgs_moving"] == 0, what="what was on its way to arrive")
    left, epoch = cl.on(4), cl.ceph_json("osd", "dump")["epoch"]
    assert cl.job(job)["state"] == "paused" and 0 < left < moves
    events = cl.ceph_json("status")["progress_events"]
    assert f"Movement {job}: drain osd.4" in events[f"move-{job}"]["message"] and "(paused)" in cl.ceph("-s")
    eventually(lambda: f"Movement {job}: drain osd.4 (paused)" in cl.ceph("progress"), what="the manager to hear of it")
    refused = cl.run("ceph", "balancer", "optimize", "p", check=False)
    assert refused.returncode == 11 and b"movement job" in refused.stderr
    assert cl.ceph_json("osd", "dump")["epoch"] == epoch and cl.on(4) == left, "a pause is one"
    cl.move("undo", str(job))
    cl.ends(job, "undone")
    cl.clean()
    assert cl.placed() == before
    after = cl.ceph_json("osd", "dump")
    assert after["pg_upmap_items"] == dump["pg_upmap_items"] and after["pg_upmap"] == dump["pg_upmap"]
    assert "being undone, or was" in cl.move("undo", str(job), check=False).stderr
    cl.whole("data")


def test_drain_to_its_end_and_back(cl):
    before = cl.placed()
    weight = next(n for n in cl.ceph_json("osd", "tree")["nodes"] if n["id"] == 4)["crush_weight"]
    job = cl.move("start", "drain", "osd.4")["id"]
    done = cl.ends(job)
    assert done["bytes_moved"] == done["bytes"] > 0
    assert cl.on(4) == 0
    assert next(n for n in cl.ceph_json("osd", "tree")["nodes"] if n["id"] == 4)["crush_weight"] == 0
    assert cl.ceph_json("osd", "safe-to-destroy", "4")["safe_to_destroy"] == [4]
    others = {pg: [o for o in up if o != 4] for pg, up in before.items()}
    now = cl.placed()
    assert all(set(others[pg]) <= set(up) for pg, up in now.items()), "copies on other OSDs stay"
    cl.whole("data")
    # A job that has ended is undone, too.
    cl.move("undo", str(job))
    cl.ends(job, "undone")
    cl.clean()
    assert cl.placed() == before
    assert next(n for n in cl.ceph_json("osd", "tree")["nodes"] if n["id"] == 4)["crush_weight"] == pytest.approx(weight)
    cl.move("rm", str(job))
    cl.whole("data")


def test_grow(cl):
    job = cl.move("start", "drain", "osd.4")["id"]
    cl.ends(job)
    before = cl.placed()
    weight = str(next(n for n in cl.ceph_json("osd", "tree")["nodes"] if n["id"] == 3)["crush_weight"])
    job = cl.move("start", "grow", "osd.4", "--weight", weight, "--pgs", "2")["id"]
    # The weight is in the map, and nothing has moved with it.
    assert next(n for n in cl.ceph_json("osd", "tree")["nodes"] if n["id"] == 4)["crush_weight"] == pytest.approx(float(weight), abs=1e-4)
    cl.ends(job)
    cl.clean()
    assert cl.on(4) > 0 and cl.placed() != before
    cl.whole("data")


def test_a_job_outlives_a_power_cut(cl, process):
    before = cl.placed()
    job = cl.move("start", "drain", "osd.4", "--pgs", "1", "--rate", "300K")["id"]
    eventually(lambda: cl.job(job)["maps"] >= 4, what="four steps")
    told = eventually(lambda: (lambda j: j if j["seconds_left_low"] is not None else None)(cl.job(job)), what="an estimate with a range")
    assert told["seconds_left_low"] <= told["seconds_left"] and told["confidence"] == 0.8, told
    process.kill()
    process.start()
    assert cl.job(job)["state"] == "running"
    cl.ends(job)
    assert cl.on(4) == 0
    cl.move("undo", str(job))
    process.kill()
    process.start()
    cl.ends(job, "undone")
    cl.clean()
    assert cl.placed() == before
    cl.whole("data")


def test_clients_that_are_slow_hold_a_job_back(cl):
    before = cl.placed()
    load = subprocess.Popen(cl.argv("rados", "-p", "data", "bench", "300", "write", "-b", "4096", "-t", "4", "--run-name", "slow"), stdout=subprocess.DEVNULL)
    try:
        # No device answers in a microsecond.
        job = cl.move("start", "drain", "osd.4", "--pgs", "1", "--per-osd", "1", "--p99", "1us")["id"]
        held = eventually(lambda: (lambda j: j if j["pace"] == 0 and not j["pgs_moving"] else None)(cl.job(job)), timeout=180, what="the job to give way")
        assert held["state"] == "running" and held["note"].startswith("clients' p99 is ") and held["limits"]["p99_us"] == 1, held
        assert "and its ceiling 0.0 ms" in cl.ceph("-s")
        # The OSDs hold recovery back by the same ceiling.
        latency = "osd_mclock_movement_latency"
        assert cl.ceph("config", "show", "osd.0", latency).strip() == "0.000001"
        eventually(lambda: cl.ceph_json("tell", "osd.0", "config", "get", latency)[latency] == "0.000001", what="an OSD to know the ceiling")
        left = cl.on(4)
    finally:
        load.kill()
        load.wait()
    assert left > 0, "it was held back before its end"
    # Without clients it comes back, and goes to its end.
    eventually(lambda: cl.job(job)["pace"] > 0, timeout=120, what="the job to come back")
    cl.ends(job)
    assert cl.on(4) == 0
    eventually(lambda: float(cl.ceph_json("tell", "osd.0", "config", "get", latency)[latency]) == 0, what="the ceiling to go with the job")
    cl.move("undo", str(job))
    cl.ends(job, "undone")
    cl.clean()
    assert cl.placed() == before
    cl.whole("data")


def test_balance(cl):
    number = cl.ceph_json("osd", "pool", "get", "data", "pg_num")["pool_id"]

    def counts():
        up = [osds for pg, osds in cl.placed().items() if pg.startswith(f"{number}.")]
        return [sum(n in osds for osds in up) for n in range(5)]
    job = cl.move("start", "balance")["id"]
    cl.ends(job)
    cl.clean()
    # 48 copies on five OSDs of one size: nine or ten of each, within one.
    assert min(counts()) >= 8 and max(counts()) <= 11, counts()
    cl.whole("data")


def test_another_rule(cl):
    for n in range(5):
        cl.ceph("osd", "crush", "move", f"osd.{n}", "root=default", f"host=h{n}")
    cl.ceph("osd", "crush", "rule", "create-replicated", "hosts", "default", "host")
    cl.clean()
    before, rule = cl.placed(), cl.ceph_json("osd", "pool", "get", "data", "crush_rule")["crush_rule"]
    plan = cl.move("plan", "rule", "data", "hosts")
    job = cl.move("start", "rule", "data", "hosts", "--pgs", "2")["id"]
    assert cl.ceph_json("osd", "pool", "get", "data", "crush_rule")["crush_rule"] == "hosts", "each OSD is a host: it comes first"
    done = cl.ends(job)
    assert done["bytes_moved"] == plan["bytes"]
    cl.clean()
    cl.whole("data")
    cl.move("undo", str(job))
    cl.ends(job, "undone")
    cl.clean()
    assert cl.placed() == before
    assert cl.ceph_json("osd", "pool", "get", "data", "crush_rule")["crush_rule"] == rule
