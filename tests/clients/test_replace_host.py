"""A host is gone for good and another one takes its place, with the commands of docs/operations.md."""
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

import hosts
from conftest import eventually
from test_thrash import PATIENCE, SETTINGS

rados = pytest.importorskip("rados")

LOST, NEW = "h1", "h3"


@pytest.fixture
def four():
    """Three hosts that are a cluster, and a fourth that is bare."""
    net = hosts.network(4)
    base = Path(tempfile.mkdtemp(prefix="siphon-replace.", dir=os.environ.get("SIPHON_TEST_DIR")))
    h = None
    try:
        with net["client"].inside():
            h = hosts.Hosts(base, net)
            h.start()
            for who, option, value in SETTINGS:
                h.client().ceph("config", "set", who, option, str(value))
            yield h
    finally:
        if h:
            h.stop()
        net.end()
        if not os.environ.get("SIPHON_TEST_KEEP"):
            shutil.rmtree(base, ignore_errors=True)


def test_a_host_is_replaced(four):
    h, c = four, four.client()
    whole = lambda mons, osds: eventually(lambda: (
        (s := c.ceph_json("status", timeout=120)) and sorted(s["quorum_names"]) == mons and s["osdmap"]["num_up_osds"] == s["osdmap"]["num_osds"] == osds
        and all(x["state_name"] == "active+clean" for x in s["pgmap"].get("pgs_by_state", [{"state_name": "none"}]))),
        timeout=PATIENCE, what=f"active+clean with monitors {mons} and {osds} OSDs")
    c.ceph("osd", "pool", "create", "d", "16")
    c.ceph("osd", "pool", "application", "enable", "d", "rados")
    client = rados.Rados(conffile=str(h.conf))
    client.connect()
    io = client.open_ioctx("d")
    data = {f"o{i}": b"%d" % i * 5000 for i in range(200)}
    for name, value in data.items():
        io.write_full(name, value)
    whole(["a", "b", "c"], 6)
    lost = [d for d in h.on(LOST)]
    assert sorted(d.name for d in lost) == ["mgr.y", "mon.b", "osd.2", "osd.3"]
    for d in lost:
        d.kill()
    shutil.rmtree(h.homes[LOST])
    eventually(lambda: all(o["up"] == 0 for o in c.ceph_json("osd", "dump")["osds"] if o["osd"] in (2, 3)), timeout=PATIENCE, what="its OSDs to be down")
    for name, value in data.items():
        assert io.read(name, 100_000) == value
    io.write_full("meanwhile", b"m")
    # What is known of it goes.
    for osd in "2", "3":
        c.ceph("osd", "purge", osd, "--yes-i-really-mean-it")
    c.ceph("osd", "crush", "rm", LOST)
    c.ceph("mon", "rm", "b")
    c.ceph("mgr", "fail", "y")
    c.ceph("auth", "rm", "mgr.y")
    for d in lost:
        del h.daemons[d.name]
    assert LOST not in c.ceph("osd", "tree")
    assert sorted(m["name"] for m in c.ceph_json("mon", "dump")["mons"]) == ["a", "c"]
    # The new one, with its own address and names.
    h.homes[NEW], h.names[NEW], h.ports["d"] = h.base / NEW, "d", 3300
    ip = h.net[NEW].ip
    h.siphon(NEW, "join", "--data-dir", h.homes[NEW], "--ip", ip, h.homes["h0"] / "join")
    h.siphon(NEW, "add", "mon", "--data-dir", h.homes[NEW], "--name", "d", "--bind", ip)
    h.place(NEW, "mon.d").start()
    h.siphon(NEW, "add", "mgr", "--data-dir", h.homes[NEW], "--name", "z")
    h.place(NEW, "mgr.z").start()
    new = [h.add_osd(NEW).start() for _ in range(2)]
    # The numbers of the lost ones are free.
    assert sorted(d.name for d in new) == ["osd.2", "osd.3"]
    whole(["a", "c", "d"], 6)
    eventually(lambda: c.ceph("health").strip() == "HEALTH_OK", timeout=PATIENCE, what="HEALTH_OK")
    tree = {n["name"]: n for n in c.ceph_json("osd", "tree")["nodes"]}
    assert sorted(tree[NEW]["children"]) == [2, 3] and LOST not in tree
    eventually(lambda: sorted(m["name"] for m in c.ceph_json("mgr", "dump")["standbys"]) == ["z"], timeout=60, what="the lost manager to be forgotten")
    # All of it counts: another host may be lost now.
    for d in h.on("h2"):
        d.kill()
    eventually(lambda: c.ceph_json("quorum_status", timeout=120)["quorum_names"] in (["a", "d"], ["d", "a"]), timeout=PATIENCE, what="a quorum with the new monitor")
    for name, value in {**data, "meanwhile": b"m"}.items():
        assert io.read(name, 100_000) == value
    io.write_full("afterwards", b"a")
    client.shutdown()
    h.heal()
    whole(["a", "c", "d"], 6)
    for name in "acd":
        assert len(json.loads(h.at(name).ceph("mon", "dump", "-f", "json"))["mons"]) == 3
