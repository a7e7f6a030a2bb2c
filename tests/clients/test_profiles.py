"""Profiles of the mClock scheduler: what background work may take beside clients.

What is compared are parts of what was done, in the OSDs' own unit of cost, and each phase lasts until enough was done: a
slow machine makes the tests slow and nothing else.
"""
import json
import os
import threading
import uuid

import pytest
from conftest import Cluster, eventually

rados = pytest.importorskip("rados")

if os.environ.get("SIPHON_TEST_CHROOT") or os.environ.get("SIPHON_TEST_CONF"):
    pytest.skip("the system's librados is needed, and a cluster that knows these profiles", allow_module_level=True)

OSDS = range(3)
CLONES = 3000
OPTIONS = ("osd_mclock_profile", "osd_mclock_allocations", "osd_mclock_auto_latency", "osd_mclock_override_recovery_settings", "osd_max_backfills",
           "osd_snap_trim_sleep")


@pytest.fixture(scope="module")
def cluster(base_conf):
    """One mode of connections: schedulers have nothing to do with it."""
    c = Cluster(base_conf, "crc")
    c.ceph("config", "set", "mon", "mon_allow_pool_delete", "true")
    yield c
    for option in OPTIONS:
        c.ceph("config", "rm", "osd", option)


class Load:
    """A client that keeps small writes under way."""

    def __init__(self, conf, pool, depth=32):
        self.lock, self.under_way, self.stopping, self.done = threading.Lock(), depth, False, 0
        self.client = rados.Rados(conffile=str(conf), conf={"ms_client_mode": "crc", "ms_mon_client_mode": "crc"})
        self.client.connect()
        self.io = self.client.open_ioctx(pool)
        for n in range(depth):
            self.send(f"load{n}")

    def send(self, name):
        def done(*_):
            with self.lock:
                self.done += 1
                if self.stopping:
                    self.under_way -= 1
                    return
            self.send(name)

        self.io.aio_write_full(name, b"x" * 4096, done)

    def stop(self):
        with self.lock:
            self.stopping = True
        eventually(lambda: self.under_way == 0, what="the last operations")
        self.io.close()
        self.client.shutdown()


@pytest.fixture
def clones(cluster):
    """A pool with a snapshot all of whose objects were overwritten; what removes it."""
    name = f"profiles-{uuid.uuid4().hex[:6]}"
    cluster.ceph("osd", "pool", "create", name, "16")
    cluster.ceph("osd", "pool", "application", "enable", name, "rados")
    client = rados.Rados(conffile=str(cluster.conf), conf={"ms_client_mode": "crc", "ms_mon_client_mode": "crc"})
    client.connect()
    io = client.open_ioctx(name)

    def write():
        done = [io.aio_write_full(f"o{n}", b"y" * 512) for n in range(CLONES)]
        for d in done:
            d.wait_for_complete_and_cb()

    cluster.ceph("osd", "set", "nosnaptrim")
    write()
    io.create_snap("all")
    write()
    io.remove_snap("all")
    yield name
    cluster.ceph("osd", "unset", "nosnaptrim")
    io.close()
    client.shutdown()
    cluster.ceph("osd", "pool", "delete", name, name, "--yes-i-really-really-mean-it")


def dump(cluster, osd):
    """From this process: `ceph tell` takes half a second to start."""
    cluster.command(prefix="status")
    code, out, text = cluster.admin.osd_command(osd, json.dumps({"prefix": "dump_qos", "format": "json"}), b"")
    assert code == 0, text
    return json.loads(out)


def dumps(cluster):
    return [dump(cluster, osd)["background"] for osd in OSDS]


def set_profile(cluster, profile):
    cluster.ceph("config", "set", "osd", "osd_mclock_profile", profile)
    eventually(lambda: all(d["profile"] == profile for d in dumps(cluster)), what=f"profile {profile} in all OSDs")


def counts(cluster):
    """Cost of clients' operations, cost of best-effort work beside them, how many operations that was, and how many of these began because
    they had waited for half a second: on a machine on which clients are slow these are more than the part."""
    each = dumps(cluster)
    best_effort = [d["background_best_effort"] for d in each]
    return (sum(d["cost_of_clients"] for d in each), sum(b["cost_beside_clients"] for b in best_effort), sum(b["begun_beside_clients"] for b in best_effort),
            sum(b["begun_overdue"] for b in best_effort))


def part(cluster, profile):
    """What trimming takes beside clients under a profile, of what clients take: without what was overdue, and in all."""
    set_profile(cluster, profile)
    before = counts(cluster)
    eventually(lambda: (now := counts(cluster))[0] - before[0] >= 4000 and now[2] - before[2] >= 160, 120, f"work under {profile}")
    clients, cost, begun, overdue = (now - before for now, before in zip(counts(cluster), before))
    return cost * (begun - overdue) / begun / clients, cost / clients


def test_profiles_bound_what_trimming_takes_beside_clients(cluster, clones):
    load = Load(cluster.conf, clones)
    try:
        set_profile(cluster, "high_client_ops")
        eventually(lambda: load.done > 100, what="the load")
        cluster.ceph("osd", "unset", "nosnaptrim")
        clients = part(cluster, "high_client_ops")
        recovery = part(cluster, "high_recovery_ops")
        assert clients[0] < 0.15 and clients[1] > 0.04, (clients, recovery)
        assert recovery[1] > 1.5 * clients[0], (clients, recovery)

        # Latency decides: an objective out of reach leaves the least.
        cluster.ceph("config", "set", "osd", "osd_mclock_auto_latency", "0.0001")
        set_profile(cluster, "auto")
        auto = lambda: [d["auto"] for d in dumps(cluster)]
        eventually(lambda: all(a["part"] is not None and a["part"] < 0.1 and a["latency_measured"] > 0.0001 for a in auto()), 60, "the least part")
        assert all(a["latency_objective"] == 0.0001 and a["percentile"] == 95 for a in auto())
        cluster.ceph("config", "set", "osd", "osd_mclock_auto_latency", "0.5")
        eventually(lambda: all(a["latency_objective"] == 0.5 for a in auto()), what="another objective")
    finally:
        load.stop()


def test_profiles_that_are_none_are_refused(cluster):
    for option, value in (("osd_mclock_profile", "fastest"), ("osd_mclock_allocations", "pacific"), ("osd_mclock_auto_latency", "0"), ("osd_mclock_auto_percentile", "100")):
        r = cluster.run("ceph", "config", "set", "osd", option, value, check=False)
        assert r.returncode != 0, option
    set_profile(cluster, "balanced")
    reef = dumps(cluster)[0]["background_best_effort"]
    cluster.ceph("config", "set", "osd", "osd_mclock_allocations", "quincy")
    eventually(lambda: dumps(cluster)[0]["background_best_effort"]["part_beside_clients"] > reef["part_beside_clients"], what="other allocations")


def test_settings_that_are_the_schedulers_business_are_ignored_and_said(cluster):
    ignored = lambda: dump(cluster, 0)["ignored"]
    for option in OPTIONS:
        cluster.ceph("config", "rm", "osd", option)
    eventually(lambda: ignored() == {}, what="nothing that is set")
    cluster.ceph("config", "set", "osd", "osd_max_backfills", "3")
    cluster.ceph("config", "set", "osd", "osd_snap_trim_sleep", "2")
    eventually(lambda: set(ignored()) == {"osd_max_backfills", "osd_snap_trim_sleep"}, what="what is ignored")
    assert ignored()["osd_max_backfills"]["value"] == "3" and "osd_mclock_override_recovery_settings" in ignored()["osd_max_backfills"]["why"]
    eventually(lambda: "ignored: " in cluster.ceph("log", "last", "100"), what="a line in the cluster log")
    cluster.ceph("config", "set", "osd", "osd_mclock_override_recovery_settings", "true")
    eventually(lambda: ignored() == {}, what="that they hold")


def test_what_a_profile_makes_no_use_of_is_said_and_too_much_is_refused(cluster):
    reserve = lambda who, name, part: ("ceph", "config", "set", who, f"osd_mclock_scheduler_{name}_res", part)
    for option in OPTIONS:
        cluster.ceph("config", "rm", "osd", option)
    ignored = lambda: dump(cluster, 0)["ignored"]
    try:
        cluster.run(*reserve("osd", "client", "0.6"))
        cluster.ceph("config", "set", "osd", "osd_recovery_op_priority", "9")
        wanted = {"osd_mclock_scheduler_client_res": "profile balanced decides", "osd_recovery_op_priority": "goes by classes"}
        eventually(lambda: set(ignored()) == set(wanted), what="what is ignored")
        assert all(why in ignored()[name]["why"] for name, why in wanted.items()), ignored()
        eventually(lambda: "profile balanced decides" in cluster.ceph("log", "last", "100"), what="a line in the cluster log")
        cluster.run(*reserve("osd", "background_recovery", "0.4"))
        cluster.fails(*reserve("osd.1", "background_best_effort", "0.2"), errno=22, text="for osd.1, reservations add up to 120 %")
        cluster.fails("ceph", "tell", "osd.1", "config", "set", "osd_mclock_scheduler_background_best_effort_res", "0.1", errno=22, text="add up to 110 %")
        cluster.ceph("config", "set", "osd", "osd_mclock_profile", "custom")
        eventually(lambda: set(ignored()) == {"osd_recovery_op_priority"}, what="that they hold")
        classes = dump(cluster, 0)["classes"]
        promised = {name: c["promised"]["reservation_iops"] for name, c in classes.items()}
        assert abs(promised["client"] / promised["background_recovery"] - 1.5) < 0.01 and promised["background_best_effort"] is None, promised
        cluster.fails("ceph", "config", "set", "osd", "osd_mclock_skip_benchmark", "true", errno=22, text="no benchmark")
    finally:
        for option in ("osd_mclock_scheduler_client_res", "osd_mclock_scheduler_background_recovery_res", "osd_recovery_op_priority", "osd_mclock_profile"):
            cluster.ceph("config", "rm", "osd", option)


def test_what_waits_is_shown_with_its_clocks(cluster):
    """OSDs that do little, and a client with much under way."""
    pool = f"state-{uuid.uuid4().hex[:6]}"
    cluster.ceph("osd", "pool", "create", pool, "16")
    slow = {"osd_mclock_profile": "custom", "osd_mclock_max_capacity_iops_ssd": "50", "osd_mclock_scheduler_client_lim": "1", "osd_mclock_scheduler_client_res": "0.5"}
    for option, value in slow.items():
        cluster.ceph("config", "set", "osd", option, value)
    eventually(lambda: all(json.loads(cluster.ceph("tell", f"osd.{n}", "dump_qos"))["capacity"]["iops"] == 50 for n in OSDS), what="slow OSDs")
    load = Load(cluster.conf, pool, depth=192)
    try:
        def state(*args):
            return json.loads(cluster.ceph("tell", "osd.0", "dump_op_pq_state", *args))["OSD:ShardedOpWQ:0"]

        def busy():
            s = state()
            client = s["mClockQueues"]["client"]
            # At its ceiling: an operation each 20 ms.
            return client["queued"] > 2 and client["tenants"] and client["limit"] > 0 and s
        s = eventually(busy, what="operations that wait at the ceiling")
        client, sizes = s["mClockQueues"]["client"], s["queue_sizes"]
        assert client["tenants"][0]["tenant"] == pool and 0 < client["tenants"][0]["queued"] <= client["queued"] <= sizes["scheduler"], s
        assert client["limit"] <= 5 and client["reservation"] is not None and s["HighPriorityQueue"] == [], s
        assert s["mClockClients"]["client_count"] >= 1 and set(s["mClockQueues"]) == {"client", "background_recovery", "background_best_effort"}
        assert state("0")["mClockQueues"]["client"]["tenants"] == []
        seen = eventually(lambda: (c := json.loads(cluster.ceph("tell", "osd.0", "dump_qos"))["classes"]["client"])["at_ceiling_ns"] > 1e9 and c, what="a second at the ceiling")
        assert seen["offered"] >= seen["served"] > 0 and seen["wait_us"]["p99"] >= seen["wait_us"]["p50"] > 0, seen
        # What others asked for a moment ago, and got at once, is in the percentiles as well.
        assert seen["waited_ns"] > 1e9, seen
        assert abs(seen["promised"]["limit_iops"] - 50) < 1 and abs(seen["promised"]["reservation_iops"] - 25) < 1, seen
    finally:
        for option in slow:
            cluster.ceph("config", "rm", "osd", option)
        load.stop()
        cluster.ceph("osd", "pool", "delete", pool, pool, "--yes-i-really-really-mean-it")
