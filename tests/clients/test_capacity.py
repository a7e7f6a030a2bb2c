"""What operations cost and what OSDs can do, as they learn it by themselves."""
import json
import os
import subprocess
import threading
import time

import pytest
from conftest import BINARY, Cluster, eventually

if os.environ.get("SIPHON_TEST_CHROOT") or os.environ.get("SIPHON_TEST_CONF"):
    pytest.skip("a cluster that knows its capacity is needed", allow_module_level=True)

IOPS = "osd_mclock_max_capacity_iops_ssd"


@pytest.fixture(scope="module")
def cluster(base_conf):
    return Cluster(base_conf, "crc")


def dump(cluster, osd=0, command="dump_qos"):
    return json.loads(cluster.ceph("tell", f"osd.{osd}", command))


def test_what_holds_is_shown_and_an_operator_decides(cluster):
    for command in ("dump_qos", "dump_op_pq_state"):
        d = dump(cluster, command=command)
        assert d["capacity"]["source"] in ("default", "learned") and d["capacity"]["iops"] > 0, d
        assert d["capacity"]["floors_scaled"] == 1.0 and 0 <= d["capacity"]["confidence"] <= 1, d
        # By definition.
        assert abs(d["costs"]["write"]["cost_4k"] - 1) < 0.02, d
        assert 0 < d["costs"]["read"]["cost_4k"] <= d["costs"]["read"]["cost_4m"], d
    cluster.ceph("config", "set", "osd.0", IOPS, "777")
    try:
        eventually(lambda: dump(cluster)["capacity"]["source"] == "set", what="the option at the OSD")
        d = dump(cluster)["capacity"]
        assert d["iops"] == 777 and d["set_iops"] == 777, d
        assert dump(cluster, 1)["capacity"]["source"] != "set"
    finally:
        cluster.ceph("config", "rm", "osd.0", IOPS)
    eventually(lambda: dump(cluster)["capacity"]["source"] != "set", what="the option gone")


@pytest.mark.skipif(not os.environ.get("SIPHON_TEST_LONG"), reason="takes minutes")
def test_capacity_follows_the_device_and_survives_a_restart(siphon_factory):
    """One OSD: of several, a closed loop keeps only the slowest busy."""
    c = siphon_factory(osds=1)
    c.start()
    cluster = Cluster(c.conf, "crc")
    cluster.ceph("config", "set", "global", "mon_allow_pool_size_one", "true")
    for pool in ("gold", "load"):
        cluster.ceph("osd", "pool", "create", pool, "8")
        cluster.ceph("osd", "pool", "set", pool, "size", "1", "--yes-i-really-mean-it")
    # Few below the scheduler: then something always waits.
    cluster.ceph("config", "set", "osd", "osd_qos_max_in_flight", "8")
    stopping = threading.Event()

    def load(pool):
        while not stopping.is_set():
            subprocess.run(["rados", "-c", str(c.conf), "-p", pool, "bench", "20", "write", "-b", "4096", "-t", "64", "--no-cleanup"],
                           capture_output=True, timeout=300)

    threads = [threading.Thread(target=load, args=(pool,)) for pool in ("gold", "load")]
    for t in threads:
        t.start()
    capacity = lambda: dump(cluster)["capacity"]
    checks = lambda: cluster.ceph_json("health")["checks"]

    def follows(check, what):
        """How long it takes, and what is known then."""
        begun = time.monotonic()
        eventually(lambda: check(capacity()), 240, what)
        print(f"{what}: {time.monotonic() - begun:.1f} s; {capacity()}; {dump(cluster)['costs']['write']}")

    try:
        follows(lambda d: d["trusted"] and d["confidence"] >= 0.5, "learned")
        fast = capacity()["learned_iops"]
        # More than a slow device can do, and less than a fast one.
        subprocess.run([str(BINARY), "qos", "-c", str(c.conf), "set", "gold", "--floor-iops", str(max(1, int(fast * 0.5)))], check=True)
        # With eight under way, about a quarter of what it was.
        cluster.ceph("config", "set", "osd", "osd_debug_device_delay", f"{32 / fast:.3f}")
        follows(lambda d: d["learned_iops"] < fast * 0.5, "slow")
        assert capacity()["source"] == "learned", capacity()
        follows(lambda d: d["floors_scaled"] < 1, "floors scaled")
        eventually(lambda: "OSD_FLOORS_OVERCOMMITTED" in checks(), 60, "a warning of floors")
        # What an operator says against that is reported.
        cluster.ceph("config", "set", "osd", IOPS, str(int(4 * fast)))
        eventually(lambda: "OSD_CAPACITY_MISMATCH" in checks(), 60, "a warning of the option")
        cluster.ceph("config", "rm", "osd", IOPS)
        slow = capacity()["learned_iops"]
        cluster.ceph("config", "rm", "osd", "osd_debug_device_delay")
        follows(lambda d: d["learned_iops"] > 2 * slow, "fast again")
    finally:
        stopping.set()
        for t in threads:
            t.join()
    # It has time now, and keeps whatever was promised.
    follows(lambda d: d["floors_scaled"] == 1, "floors whole again")
    eventually(lambda: not {"OSD_CAPACITY_MISMATCH", "OSD_FLOORS_OVERCOMMITTED"} & checks().keys(), 60, "no warnings")
    assert c.stop() == 0
    c.start()
    again = capacity()
    assert again["source"] == "learned" and again["trusted"], again
