"""Central configuration, keys and capabilities."""
import json

import pytest
from conftest import eventually

# What the monitors decide is the same in both modes of the protocol.
pytestmark = pytest.mark.parametrize("cluster", ["secure"], indirect=True)


def test_config(cluster):
    cluster.ceph("config", "set", "osd", "osd_max_object_size", "64M")
    assert cluster.ceph("config", "get", "osd", "osd_max_object_size").strip() == "67108864"
    assert cluster.ceph("config", "get", "osd.0", "osd_max_object_size").strip() == "67108864"
    dump = cluster.ceph_json("config", "dump")
    row = next(r for r in dump if r["name"] == "osd_max_object_size")
    assert row["section"] == "osd" and row["value"] == "67108864"
    eventually(lambda: cluster.ceph_json("tell", "osd.0", "config", "get", "osd_max_object_size")["osd_max_object_size"] == "67108864", what="the OSD to apply it")
    cluster.ceph("config", "set", "osd.0", "osd_max_object_size", "32M")
    assert cluster.ceph("config", "get", "osd.0", "osd_max_object_size").strip() == "33554432"
    assert cluster.ceph("config", "get", "osd.1", "osd_max_object_size").strip() == "67108864"
    assert "osd_max_object_size" in cluster.ceph("config", "show", "osd.0")
    cluster.ceph("config", "rm", "osd.0", "osd_max_object_size")
    cluster.ceph("config", "rm", "osd", "osd_max_object_size")
    assert cluster.ceph("config", "get", "osd", "osd_max_object_size").strip() == "134217728"
    assert "osd_max_object_size" not in [r["name"] for r in cluster.ceph_json("config", "dump")]


def test_config_refuses(cluster):
    cluster.fails("ceph", "config", "set", "osd", "osd_no_such_option", "1", errno=22, text="unrecognized config option")
    cluster.fails("ceph", "config", "set", "osd", "osd_max_object_size", "abc", errno=22)
    cluster.fails("ceph", "config", "set", "nonsense.1", "osd_max_object_size", "1M", errno=22)


def test_config_help_and_ls(cluster):
    h = cluster.ceph_json("config", "help", "osd_max_object_size")
    assert h["name"] == "osd_max_object_size" and h["type"] == "size"
    assert "osd_max_object_size" in cluster.ceph("config", "ls").split()
    cluster.fails("ceph", "config", "help", "osd_no_such_option", errno=2)


def test_config_reaches_clients(cluster):
    cluster.ceph("config", "set", "client", "rados_osd_op_timeout", "77")
    assert cluster.ceph("config", "get", "client.admin", "rados_osd_op_timeout").strip() == "77"
    cluster.ceph("config", "rm", "client", "rados_osd_op_timeout")


def test_config_log(cluster):
    cluster.ceph("config", "set", "osd", "osd_max_object_size", "64M")
    cluster.ceph("config", "rm", "osd", "osd_max_object_size")
    assert "osd_max_object_size" in cluster.ceph("config", "log")


def test_config_key(cluster):
    cluster.ceph("config-key", "set", "t/a", "value one")
    assert cluster.ceph("config-key", "get", "t/a").strip() == "value one"
    cluster.run("ceph", "config-key", "set", "t/b", "-i", "-", data=b"\x00\x01binary")
    assert cluster.run("ceph", "config-key", "get", "t/b").stdout.rstrip(b"\n") == b"\x00\x01binary"
    assert {"t/a", "t/b"} <= set(cluster.ceph_json("config-key", "ls"))
    assert "value one" in cluster.ceph("config-key", "dump", "t/a")
    cluster.ceph("config-key", "exists", "t/a")
    cluster.ceph("config-key", "rm", "t/a")
    cluster.ceph("config-key", "rm", "t/b")
    cluster.fails("ceph", "config-key", "exists", "t/a", errno=2)
    cluster.fails("ceph", "config-key", "get", "t/a", errno=2)


def test_auth_lifecycle(cluster, tmp_path):
    key = cluster.ceph("auth", "get-or-create-key", "client.t1", "mon", "allow r", "osd", "allow rw pool=x").strip()
    assert cluster.ceph("auth", "get-key", "client.t1") == key
    assert cluster.ceph("auth", "print-key", "client.t1") == key
    text = cluster.ceph("auth", "get", "client.t1")
    assert "[client.t1]" in text and f"key = {key}" in text and 'caps osd = "allow rw pool=x"' in text
    cluster.fails("ceph", "auth", "get-or-create", "client.t1", "mon", "allow rw", errno=22)
    cluster.ceph("auth", "caps", "client.t1", "mon", "allow rw")
    j = cluster.ceph_json("auth", "get", "client.t1")
    assert j[0]["caps"] == {"mon": "allow rw"} and j[0]["key"] == key
    assert "client.t1" in [e["entity"] for e in cluster.ceph_json("auth", "ls")["auth_dump"]]
    exported = cluster.ceph("auth", "export", "client.t1")
    cluster.ceph("auth", "rm", "client.t1")
    cluster.fails("ceph", "auth", "get", "client.t1", errno=2)
    cluster.run("ceph", "auth", "import", "-i", "-", data=exported.encode())
    assert cluster.ceph("auth", "get-key", "client.t1") == key
    cluster.ceph("auth", "del", "client.t1")
    cluster.fails("ceph", "auth", "add", "client.t2", "mon", "gibberish", errno=22)


def keyring(cluster, tmp_path, name, *caps):
    f = tmp_path / f"{name}.keyring"
    f.write_text(cluster.ceph("auth", "get-or-create", name, *caps))
    return f


def test_caps_are_enforced(cluster, pool, tmp_path):
    other = pool + "-other"
    cluster.make_pool(other, 4, application=None)
    try:
        ro = keyring(cluster, tmp_path, "client.ro", "mon", "allow r", "osd", f"allow r pool={pool}")
        rw = keyring(cluster, tmp_path, "client.rw", "mon", "allow r", "osd", f"allow rw pool={pool}")
        ns = keyring(cluster, tmp_path, "client.ns", "mon", "allow r", "osd", f"allow rw pool={pool} namespace=n1")
        px = keyring(cluster, tmp_path, "client.px", "mon", "allow r", "osd", f"allow rw pool={pool} object_prefix pre_")
        tag = keyring(cluster, tmp_path, "client.tag", "mon", "allow r", "osd", "allow rw tag rados *=*")
        none = keyring(cluster, tmp_path, "client.none", "mon", "allow r")
        as_ = lambda name, k: dict(name=f"client.{name}", keyring=k)
        cluster.rados("-p", pool, "put", "a", "-", data=b"x", **as_("rw", rw))
        assert cluster.rados("-p", pool, "get", "a", "-", **as_("ro", ro)).stdout == b"x"
        cluster.fails("rados", "-p", pool, "put", "a", "-", data=b"y", errno=1, **as_("ro", ro))
        cluster.fails("rados", "-p", other, "put", "a", "-", data=b"y", errno=1, **as_("rw", rw))
        cluster.fails("rados", "-p", pool, "put", "a", "-", data=b"y", errno=1, **as_("none", none))
        cluster.rados("-p", pool, "-N", "n1", "put", "a", "-", data=b"n", **as_("ns", ns))
        cluster.fails("rados", "-p", pool, "-N", "n2", "put", "a", "-", data=b"n", errno=1, **as_("ns", ns))
        cluster.fails("rados", "-p", pool, "put", "a", "-", data=b"n", errno=1, **as_("ns", ns))
        cluster.rados("-p", pool, "put", "pre_1", "-", data=b"n", **as_("px", px))
        cluster.fails("rados", "-p", pool, "put", "b", "-", data=b"n", errno=1, **as_("px", px))
        cluster.rados("-p", pool, "put", "t", "-", data=b"n", **as_("tag", tag))
        cluster.fails("rados", "-p", other, "put", "t", "-", data=b"n", errno=1, **as_("tag", tag))
        cluster.fails("ceph", "osd", "pool", "create", "nope", errno=13, **as_("ro", ro))
        cluster.ceph("osd", "dump", **as_("ro", ro))
    finally:
        for n in ("ro", "rw", "ns", "px", "tag", "none"):
            cluster.ceph("auth", "rm", f"client.{n}")
        cluster.delete_pool(other)


def test_wrong_key(cluster, tmp_path):
    k = tmp_path / "bad"
    k.write_text("[client.admin]\n\tkey = AQBPAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA==\n")
    r = cluster.run("ceph", "-s", check=False, keyring=k, name="client.admin", timeout=60)
    assert r.returncode != 0
    r = cluster.run("ceph", "-s", check=False, keyring=k, name="client.unknown", timeout=60)
    assert r.returncode != 0


def test_memory_target_is_divided_at_once(cluster):
    def budgets():
        return json.loads(cluster.ceph("tell", "osd.0", "dump_store_memory"))["budgets"]

    mib = 1 << 20
    before = budgets()
    assert before == {"data_cache": 72 * mib, "onode_cache": 36 * mib, "node_cache": 24 * mib, "dirty_max": 72 * mib}
    cluster.ceph("config", "set", "osd", "osd_memory_target", "1G")
    after = eventually(lambda: budgets() != before and budgets(), what="the new budgets")
    assert all(after[k] > before[k] for k in before), after
    assert sum(after.values()) + after["dirty_max"] <= 1 << 30, after
    cluster.fails("ceph", "config", "set", "osd", "osd_memory_target", "64M", errno=22)
    cluster.ceph("config", "rm", "osd", "osd_memory_target")
    eventually(lambda: budgets() == before, what="the old budgets")


def test_malformed_caps_are_refused(cluster):
    for verb in ["add", "get-or-create", "get-or-create-key"]:
        for service, caps, text in [
            ("mon", "allow profil", "mon capability parse failed, stopped at"),
            ("osd", "allow rwq", "osd capability parse failed, stopped at"),
            ("mgr", "allow module", "mgr capability parse failed, stopped at"),
            ("mds", "allow rwx", "mds capability parse failed, stopped at 'x' of 'allow rwx'"),
            ("mds", "deny *", "mds capability parse failed, stopped at 'deny *' of 'deny *'"),
            ("nobody", "allow *", "unknown cap type 'nobody'"),
        ]:
            cluster.fails("ceph", "auth", verb, "client.malformed", service, caps, errno=22, text=text)
    cluster.fails("ceph", "auth", "get", "client.malformed", errno=2)
    cluster.ceph("auth", "add", "client.malformed", "mon", "allow r", "mds", "allow rw path=/home uid=1000 gids=1,2")
    cluster.fails("ceph", "auth", "caps", "client.malformed", "mds", "allow rw path", errno=22, text="stopped at 'path' of")
    assert "uid=1000" in cluster.ceph("auth", "get", "client.malformed")
    cluster.ceph("auth", "rm", "client.malformed")
