"""Pools, CRUSH and OSD states."""
import json
import os
import subprocess

import pytest
from conftest import eventually

# What the monitors decide is the same in both modes of the protocol.
pytestmark = pytest.mark.parametrize("cluster", ["crc"], indirect=True)


def test_create_and_delete(cluster):
    out = cluster.run("ceph", "osd", "pool", "create", "p1", "16").stderr.decode()
    assert "pool 'p1' created" in out
    assert "pool 'p1' already exists" in cluster.run("ceph", "osd", "pool", "create", "p1", "16").stderr.decode()
    assert "p1" in cluster.ceph("osd", "pool", "ls").split()
    assert any("p1" in line for line in cluster.ceph("osd", "lspools").splitlines())
    cluster.fails("ceph", "osd", "pool", "delete", "p1", errno=1, text="--yes-i-really-really-mean-it")
    cluster.fails("ceph", "osd", "pool", "delete", "p1", "p2", "--yes-i-really-really-mean-it", errno=1)
    if "SIPHON_TEST_CONF" not in os.environ:  # a foreign cluster's ceph.conf may override the setting
        cluster.ceph("config", "set", "mon", "mon_allow_pool_delete", "false")
        cluster.fails("ceph", "osd", "pool", "delete", "p1", "p1", "--yes-i-really-really-mean-it", errno=1, text="mon_allow_pool_delete")
        cluster.ceph("config", "set", "mon", "mon_allow_pool_delete", "true")
    cluster.ceph("osd", "pool", "rename", "p1", "p1b")
    cluster.ceph("osd", "pool", "delete", "p1b", "p1b", "--yes-i-really-really-mean-it")
    assert "p1b" not in cluster.ceph("osd", "pool", "ls").split()
    cluster.fails("ceph", "osd", "pool", "rename", "p1b", "x", errno=2)


def test_get_set(cluster, pool):
    g = lambda k: cluster.ceph_json("osd", "pool", "get", pool, k)[k]
    assert g("size") == 3 and g("min_size") == 2 and g("pg_num") == 8 and g("pgp_num") == 8
    cluster.ceph("osd", "pool", "set", pool, "min_size", "1")
    assert g("min_size") == 1
    cluster.ceph("osd", "pool", "set", pool, "size", "2")
    assert g("size") == 2
    cluster.ceph("osd", "pool", "set", pool, "nodelete", "true")
    cluster.fails("ceph", "osd", "pool", "delete", pool, pool, "--yes-i-really-really-mean-it", errno=1)
    cluster.ceph("osd", "pool", "set", pool, "nodelete", "false")
    assert cluster.ceph("osd", "pool", "get", pool, "size").strip() == "size: 2"
    assert "crush_rule" in cluster.ceph("osd", "pool", "get", pool, "all")
    cluster.fails("ceph", "osd", "pool", "set", pool, "size", "99", errno=22)
    cluster.fails("ceph", "osd", "pool", "set", "nosuchpool", "size", "2", errno=2)
    cluster.ceph("osd", "pool", "set", pool, "compression_mode", "none", check=False)


def test_quota(cluster, pool):
    cluster.ceph("osd", "pool", "set-quota", pool, "max_objects", "2")
    q = cluster.ceph_json("osd", "pool", "get-quota", pool)
    assert q["quota_max_objects"] == 2
    assert "max objects: 2" in cluster.ceph("osd", "pool", "get-quota", pool)
    cluster.rados("-p", pool, "put", "a", "-", data=b"1")
    cluster.rados("-p", pool, "put", "b", "-", data=b"1")
    eventually(lambda: "POOL_FULL" in cluster.ceph_json("health")["checks"], what="POOL_FULL")
    p = subprocess.run(["timeout", "8", *cluster.argv("rados", "-p", pool, "put", "c", "-")], input=b"1", capture_output=True)
    assert p.returncode != 0  # blocks (124) or EDQUOT, as the client's version has it
    cluster.ceph("osd", "pool", "set-quota", pool, "max_objects", "0")
    eventually(lambda: "POOL_FULL" not in cluster.ceph_json("health")["checks"], what="POOL_FULL to clear")
    cluster.rados("-p", pool, "put", "c", "-", data=b"1")


def test_application(cluster, pool):
    assert cluster.ceph_json("osd", "pool", "application", "get", pool) == {"rados": {}}
    cluster.ceph("osd", "pool", "application", "set", pool, "rados", "k", "v")
    assert cluster.ceph_json("osd", "pool", "application", "get", pool) == {"rados": {"k": "v"}}
    cluster.ceph("osd", "pool", "application", "rm", pool, "rados", "k")
    cluster.fails("ceph", "osd", "pool", "application", "disable", pool, "rados", errno=1)
    cluster.ceph("osd", "pool", "application", "disable", pool, "rados", "--yes-i-really-mean-it")
    cluster.ceph("osd", "pool", "application", "enable", pool, "rados")


def test_pool_snapshots(cluster, pool):
    cluster.ceph("osd", "pool", "mksnap", pool, "s1")
    assert "s1" in cluster.rados("-p", pool, "lssnap").stdout.decode()
    cluster.ceph("osd", "pool", "rmsnap", pool, "s1")
    assert "s1" not in cluster.rados("-p", pool, "lssnap").stdout.decode()


def test_crush_round_trip(cluster, tmp_path):
    def through_crushtool():
        """The map as text, after it was compiled from text and set again."""
        cluster.ceph("osd", "getcrushmap", "-o", tmp_path / "map")
        text = subprocess.run(["crushtool", "-d", tmp_path / "map"], capture_output=True, check=True).stdout
        (tmp_path / "text").write_bytes(text)
        subprocess.run(["crushtool", "-c", tmp_path / "text", "-o", tmp_path / "compiled"], check=True)
        cluster.ceph("osd", "setcrushmap", "-i", tmp_path / "compiled")
        return text

    through_crushtool()
    text = through_crushtool()
    assert b"root default" in text
    assert through_crushtool() == text
    (tmp_path / "bad").write_bytes(b"not a crush map")
    cluster.fails("ceph", "osd", "setcrushmap", "-i", tmp_path / "bad", errno=22)


def test_crush_rules(cluster):
    cluster.ceph("osd", "crush", "rule", "create-replicated", "r-osd", "default", "osd")
    assert "r-osd" in cluster.ceph("osd", "crush", "rule", "ls").split()
    d = cluster.ceph_json("osd", "crush", "rule", "dump", "r-osd")
    assert [s["op"] for s in d["steps"]] == ["take", "choose_firstn", "emit"]
    cluster.ceph("osd", "pool", "create", "pr", "4", "4", "replicated", "r-osd")
    assert cluster.ceph_json("osd", "pool", "get", "pr", "crush_rule")["crush_rule"] == "r-osd"
    cluster.fails("ceph", "osd", "crush", "rule", "rm", "r-osd", errno=16)
    cluster.ceph("osd", "pool", "delete", "pr", "pr", "--yes-i-really-really-mean-it")
    cluster.ceph("osd", "crush", "rule", "rm", "r-osd")


def test_crush_buckets(cluster):
    cluster.ceph("osd", "crush", "add-bucket", "rack9", "rack")
    cluster.ceph("osd", "crush", "move", "rack9", "root=default")
    assert "rack9" in [n["name"] for n in cluster.ceph_json("osd", "tree")["nodes"]]
    cluster.ceph("osd", "crush", "rm", "rack9")
    assert "rack9" not in [n["name"] for n in cluster.ceph_json("osd", "tree")["nodes"]]
    t = cluster.ceph_json("osd", "crush", "show-tunables")
    assert t["choose_total_tries"] == 50
    assert cluster.ceph_json("osd", "crush", "dump")["buckets"]
    assert cluster.ceph_json("osd", "crush", "class", "ls")


def test_osd_weights(cluster):
    cluster.ceph("osd", "reweight", "1", "0.5")
    assert abs(next(o for o in cluster.ceph_json("osd", "dump")["osds"] if o["osd"] == 1)["weight"] - 0.5) < 1e-3
    cluster.ceph("osd", "reweight", "1", "1")
    cluster.ceph("osd", "primary-affinity", "1", "0.5")
    assert abs(next(o for o in cluster.ceph_json("osd", "dump")["osds"] if o["osd"] == 1)["primary_affinity"] - 0.5) < 1e-3
    cluster.ceph("osd", "primary-affinity", "1", "1")
    cluster.fails("ceph", "osd", "reweight", "1", "7", errno=22)


def test_blocklist(cluster):
    cluster.ceph("osd", "blocklist", "add", "192.168.9.9:0/123", "600")
    assert "192.168.9.9:0/123" in cluster.ceph("osd", "blocklist", "ls")
    cluster.ceph("osd", "blocklist", "rm", "192.168.9.9:0/123")
    assert "192.168.9.9:0/123" not in cluster.ceph("osd", "blocklist", "ls")


def test_maps_are_readable_by_stock_tools(cluster, tmp_path):
    m = tmp_path / "osdmap"
    cluster.ceph("osd", "getmap", "-o", m)
    dump = json.loads(subprocess.run(["osdmaptool", m, "--dump", "json"], capture_output=True, check=True).stdout)
    assert dump["fsid"] == cluster.ceph("fsid").strip()
    mm = tmp_path / "monmap"
    cluster.ceph("mon", "getmap", "-o", mm)
    assert cluster.ceph("fsid").strip() in subprocess.run(["monmaptool", "--print", mm], capture_output=True, check=True).stdout.decode()
