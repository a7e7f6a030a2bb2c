"""Block devices with the rbd command."""
import json
import os
import re
import uuid

import pytest


class Rbd:
    """The rbd command in one pool."""

    def __init__(self, cluster, pool):
        self.cluster, self.pool = cluster, pool

    def __call__(self, *args, **kw):
        # Some commands have a pool for either end, so no option names it for all.
        return self.cluster.run("rbd", f"--rbd_default_pool={self.pool}", *args, **kw).stdout.decode()

    def json(self, *args, **kw):
        return json.loads(self("--format", "json", *args, **kw))

    def fails(self, *args, errno, text=None):
        return self.cluster.fails("rbd", f"--rbd_default_pool={self.pool}", *args, errno=errno, text=text)


@pytest.fixture
def rbd(cluster):
    name = "rbd-" + uuid.uuid4().hex[:8]
    cluster.make_pool(name, 8, application=None)
    r = Rbd(cluster, name)
    r("pool", "init", name)
    yield r
    cluster.delete_pool(name)


PLAIN = ("--image-feature", "layering")


def pattern(size, seed=1):
    """Bytes with holes: some objects of 4 MiB are written, some are not."""
    data = bytearray(size)
    for at in range(0, size, 4 << 20):
        if (at >> 22) % 3 != 2:
            block = bytes([seed + (at >> 22)]) * 8192
            data[at + 4096:at + 4096 + len(block)] = block[:max(0, size - at - 4096)]
    return bytes(data[:size])


def diff(*extents, size=20 << 20):
    """What `rbd import-diff` reads to write extents (offset and data)."""
    number = lambda n: n.to_bytes(8, "little")
    writes = (b"w" + number(at) + number(len(data)) + data for at, data in extents)
    return b"rbd diff v1\ns" + number(size) + b"".join(writes) + b"e"


def test_images(rbd):
    rbd("create", "one", "--size", "32M", *PLAIN)
    rbd("create", "two", "--size", "1G", "--object-size", "1M")
    rbd.fails("create", "two", "--size", "1M", errno=17, text="File exists")
    assert rbd.json("ls") == ["one", "two"]
    one, two = rbd.json("info", "one"), rbd.json("info", "two")
    assert (one["size"], one["objects"], one["order"], one["features"]) == (32 << 20, 8, 22, ["layering"])
    assert (two["size"], two["objects"], two["order"]) == (1 << 30, 1024, 20)
    assert two["features"] == ["layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten"]
    rbd("resize", "one", "--size", "64M")
    assert rbd.json("info", "one")["size"] == 64 << 20
    rbd("resize", "one", "--size", "8M", "--allow-shrink")
    assert rbd.json("info", "one")["size"] == 8 << 20
    rbd.fails("rename", "one", "two", errno=17)
    rbd("rename", "one", "three")
    assert rbd.json("ls") == ["three", "two"]
    rbd.fails("info", "one", errno=2)
    rbd("rm", "--no-progress", "three")
    rbd("rm", "--no-progress", "two")
    assert rbd.json("ls") == []


@pytest.mark.parametrize("features", ["layering", "layering,exclusive-lock,object-map,fast-diff,deep-flatten"])
def test_data(rbd, tmp_path, features):
    data = pattern(41 << 20)
    f, g = tmp_path / "f", tmp_path / "g"
    f.write_bytes(data)
    rbd("import", "--no-progress", f, "img", "--image-feature", features)
    rbd("export", "--no-progress", "img", g)
    assert g.read_bytes() == data
    used = rbd.json("du", "img")["images"][0]
    assert used["provisioned_size"] == 41 << 20
    if "fast-diff" in features:
        rbd("object-map", "check", "img", "--no-progress")
        assert used["used_size"] < 41 << 20
    rbd("bench", "img", "--io-type", "write", "--io-size", "4K", "--io-total", "1M", "--io-pattern", "rand")
    if "object-map" in features:
        rbd("object-map", "check", "img", "--no-progress")
        assert "object map invalid" not in rbd("info", "img")
        rbd("object-map", "rebuild", "img", "--no-progress")
    rbd("rm", "--no-progress", "img")


def test_snapshots(rbd, tmp_path):
    first, second = pattern(20 << 20), pattern(20 << 20, seed=99)
    f, g = tmp_path / "f", tmp_path / "g"
    f.write_bytes(first)
    rbd("import", "--no-progress", f, "img")
    rbd("snap", "create", "--no-progress", "img@a")
    rbd.fails("snap", "create", "--no-progress", "img@a", errno=17)
    f.write_bytes(second)
    rbd("import-diff", "--no-progress", "-", "img", data=diff((0, second)))
    rbd("snap", "create", "--no-progress", "img@b")
    assert [s["name"] for s in rbd.json("snap", "ls", "img")] == ["a", "b"]
    for snap, data in [("a", first), ("b", second)]:
        rbd("export", "--no-progress", f"img@{snap}", g)
        assert g.read_bytes() == data
        g.unlink()
    rbd("object-map", "check", "--no-progress", "img@a")
    rbd("object-map", "check", "--no-progress", "img")
    changed = rbd.json("diff", "--from-snap", "a", "img@b")
    assert changed and all(d["exists"] == "true" for d in changed)
    rbd("snap", "rollback", "--no-progress", "img@a")
    rbd("export", "--no-progress", "img", g)
    assert g.read_bytes() == first
    rbd("snap", "rename", "img@a", "img@c")
    rbd("snap", "limit", "set", "img", "--limit", "2")
    rbd.fails("snap", "create", "--no-progress", "img@d", errno=122)
    rbd("snap", "limit", "clear", "img")
    rbd("snap", "protect", "img@c")
    rbd.fails("snap", "rm", "--no-progress", "img@c", errno=16)
    rbd("snap", "unprotect", "img@c")
    rbd("snap", "rm", "--no-progress", "img@c")
    rbd("object-map", "check", "--no-progress", "img")
    rbd("snap", "purge", "--no-progress", "img")
    rbd("rm", "--no-progress", "img")


@pytest.mark.parametrize("version", [1, 2])
def test_clones(rbd, tmp_path, version):
    data = pattern(20 << 20)
    f, g = tmp_path / "f", tmp_path / "g"
    f.write_bytes(data)
    clone = ("clone", f"--rbd_default_clone_format={version}")
    rbd("import", "--no-progress", f, "parent")
    rbd("snap", "create", "--no-progress", "parent@s")
    if version == 1:
        rbd.fails(*clone, "parent@s", "child", errno=22)
        rbd("snap", "protect", "parent@s")
    rbd(*clone, "parent@s", "child")
    info = rbd.json("info", "child")
    assert (info["parent"]["image"], info["parent"]["overlap"]) == ("parent", 20 << 20)
    assert [c["image"] for c in rbd.json("children", "parent@s")] == ["child"]
    # An object that the parent has, and one that it has not.
    written = bytearray(data)
    for at in (5 << 20, 9 << 20):
        written[at:at + 3000] = b"new" * 1000
    rbd("import-diff", "--no-progress", "-", "child", data=diff((5 << 20, b"new" * 1000), (9 << 20, b"new" * 1000)))
    rbd("export", "--no-progress", "child", g)
    assert g.read_bytes() == written
    rbd("object-map", "check", "--no-progress", "child")
    if version == 1:
        rbd.fails("snap", "unprotect", "parent@s", errno=16)
    else:
        # The snapshot goes to the trash until its last clone is gone.
        rbd("snap", "rm", "--no-progress", "parent@s")
        assert rbd.json("snap", "ls", "parent") == []
        assert [s["namespace"]["type"] for s in rbd.json("snap", "ls", "--all", "parent")] == ["trash"]
    rbd("snap", "create", "--no-progress", "child@x")
    rbd("flatten", "--no-progress", "child")
    assert "parent" not in rbd.json("info", "child")
    g.unlink()
    rbd("export", "--no-progress", "child", g)
    assert g.read_bytes() == written
    if version == 1:
        rbd("snap", "unprotect", "parent@s")
        rbd("snap", "rm", "--no-progress", "parent@s")
    assert rbd.json("snap", "ls", "--all", "parent") == []
    rbd("rm", "--no-progress", "parent")
    rbd("snap", "purge", "--no-progress", "child")
    rbd("rm", "--no-progress", "child")


def test_features_and_notes(rbd):
    rbd("create", "img", "--size", "10M", *PLAIN)
    features = lambda: rbd.json("info", "img")["features"]
    rbd("feature", "enable", "img", "exclusive-lock", "object-map", "fast-diff")
    assert features() == ["layering", "exclusive-lock", "object-map", "fast-diff"]
    rbd.fails("feature", "disable", "img", "layering", errno=22)
    rbd("feature", "disable", "img", "fast-diff", "object-map", "exclusive-lock")
    assert features() == ["layering"]
    rbd("image-meta", "set", "img", "key", "value")
    rbd("image-meta", "set", "img", "conf_rbd_cache", "false")
    assert rbd.json("image-meta", "ls", "img") == {"conf_rbd_cache": "false", "key": "value"}
    assert rbd("image-meta", "get", "img", "key").strip() == "value"
    rbd("image-meta", "rm", "img", "key")
    rbd.fails("image-meta", "get", "img", "key", errno=2)
    rbd("config", "pool", "set", rbd.pool, "rbd_cache", "false")
    rbd("create", "striped", "--size", "10M", "--stripe-unit", "64K", "--stripe-count", "4")
    info = rbd.json("info", "striped")
    assert (info["stripe_unit"], info["stripe_count"]) == (65536, 4)


def test_trash(rbd):
    rbd("create", "img", "--size", "10M")
    image_id = rbd.json("info", "img")["id"]
    rbd("trash", "mv", "img")
    assert rbd.json("ls") == []
    assert [(t["id"], t["name"]) for t in rbd.json("trash", "ls")] == [(image_id, "img")]
    rbd("trash", "restore", image_id, "--image", "back")
    assert rbd.json("ls") == ["back"]
    rbd("trash", "mv", "back", "--expires-at", "2100-01-01")
    rbd.fails("trash", "rm", "--no-progress", image_id, errno=1)
    rbd("trash", "rm", "--no-progress", "--force", image_id)
    assert rbd.json("trash", "ls") == []


def test_namespaces(rbd):
    rbd("namespace", "create", "--namespace", "ns")
    rbd.fails("namespace", "create", "--namespace", "ns", errno=17)
    assert [n["name"] for n in rbd.json("namespace", "ls")] == ["ns"]
    rbd("create", "--namespace", "ns", "img", "--size", "1M")
    assert rbd.json("ls") == [] and rbd.json("--namespace", "ns", "ls") == ["img"]
    rbd.fails("namespace", "rm", "--namespace", "ns", errno=16)
    rbd("--namespace", "ns", "rm", "--no-progress", "img")
    rbd("namespace", "rm", "--namespace", "ns")
    assert rbd.json("namespace", "ls") == []


def test_groups(rbd):
    for img in "ab":
        rbd("create", img, "--size", "8M")
    rbd("group", "create", "g")
    rbd.fails("group", "create", "g", errno=17)
    rbd("group", "image", "add", "g", "a")
    rbd("group", "image", "add", "g", "b")
    assert [i["image"] for i in rbd.json("group", "image", "ls", "g")] == ["a", "b"]
    assert "operations" in rbd.json("info", "a")["features"]
    rbd("group", "snap", "create", "g@s")
    assert [(s["snapshot"], s["state"]) for s in rbd.json("group", "snap", "ls", "g")] == [("s", "ok")]
    rbd("group", "snap", "rename", "g@s", "t")
    rbd("group", "snap", "rollback", "--no-progress", "g@t")
    rbd("group", "snap", "rm", "g@t")
    rbd("group", "rename", "g", "h")
    assert rbd.json("group", "ls") == ["h"]
    rbd("group", "image", "rm", "h", "a")
    rbd("group", "rm", "h")
    assert rbd.json("group", "ls") == []
    assert "operations" not in rbd.json("info", "b")["features"]


def test_copies_and_migration(rbd, tmp_path):
    data = pattern(20 << 20)
    f, g = tmp_path / "f", tmp_path / "g"
    f.write_bytes(data)
    rbd("import", "--no-progress", f, "img")
    rbd("snap", "create", "--no-progress", "img@s")
    rbd("cp", "--no-progress", "img", "copy")
    rbd("deep", "cp", "--no-progress", "img", "deep")
    assert [s["name"] for s in rbd.json("snap", "ls", "deep")] == ["s"]
    rbd("migration", "prepare", "img", "moved", "--object-size", "1M", "--stripe-unit", "1M", "--stripe-count", "1")
    assert rbd.json("ls") == ["copy", "deep", "moved"]
    assert rbd.json("status", "moved")["migration"]["state"] == "prepared"
    rbd("migration", "execute", "--no-progress", "moved")
    rbd("migration", "commit", "--no-progress", "moved")
    for img in ("copy", "deep", "moved", "moved@s"):
        rbd("export", "--no-progress", img, g)
        assert g.read_bytes() == data, img
        g.unlink()
    rbd("sparsify", "--no-progress", "moved")
    assert rbd.json("info", "moved")["order"] == 20


def test_locks(rbd):
    rbd("create", "img", "--size", "1M", *PLAIN)
    rbd("lock", "add", "img", "mine")
    rbd.fails("lock", "add", "img", "mine", errno=16)
    lock = rbd.json("lock", "ls", "img")[0]
    assert lock["id"] == "mine"
    rbd("lock", "rm", "img", "mine", lock["locker"])
    assert rbd.json("lock", "ls", "img") == []


def test_mirroring_settings(rbd):
    rbd("mirror", "pool", "enable", rbd.pool, "image")
    info = rbd.json("mirror", "pool", "info", rbd.pool)
    assert info["mode"] == "image"
    peer = rbd("mirror", "pool", "peer", "add", rbd.pool, "client.rbd-mirror-peer@elsewhere").strip()
    info = rbd.json("mirror", "pool", "info", rbd.pool)
    assert [(p["uuid"], p["site_name"]) for p in info["peers"]] == [(peer, "elsewhere")]
    rbd("create", "img", "--size", "1M")
    rbd("mirror", "image", "enable", "img", "snapshot")
    rbd("mirror", "image", "snapshot", "img")
    assert rbd.json("info", "img")["mirroring"]["mode"] == "snapshot"
    kinds = [s["namespace"]["type"] for s in rbd.json("snap", "ls", "--all", "img")]
    assert set(kinds) == {"mirror"}
    status = rbd.json("mirror", "pool", "status", rbd.pool, "--verbose")
    assert status["summary"]["states"] == {"unknown": 1}
    rbd("mirror", "image", "disable", "img")
    rbd("mirror", "pool", "peer", "remove", rbd.pool, peer)
    rbd("mirror", "pool", "disable", rbd.pool)
    assert rbd.json("mirror", "pool", "info", rbd.pool)["mode"] == "disabled"


def test_first_format_made_by_the_client(rbd, tmp_path, monkeypatch):
    """The directory of such images is a trivial map, which the OSD updates."""
    monkeypatch.setenv("RBD_FORCE_ALLOW_V1", "1")
    for name in ("one", "two"):
        rbd("create", "--image-format", "1", "--size", "8M", name)
    rbd.fails("create", "--image-format", "1", "--size", "8M", "one", errno=17)
    rbd("create", "new", "--size", "8M")
    assert sorted(rbd.json("ls")) == ["new", "one", "two"]
    assert rbd.json("info", "one")["format"] == 1
    data = pattern(8 << 20)
    (tmp_path / "in").write_bytes(data)
    rbd("import-diff", "--no-progress", "-", "one", data=diff((0, data), size=8 << 20))
    rbd("rename", "one", "three")
    assert sorted(rbd.json("ls")) == ["new", "three", "two"]
    rbd("export", "--no-progress", "three", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data
    rbd("rm", "--no-progress", "two")
    rbd("rm", "--no-progress", "three")
    assert rbd.json("ls") == ["new"]


def test_first_format(rbd, tmp_path):
    """Clients no longer make such images, but they open them."""
    number = lambda n: n.to_bytes(8, "little")
    header = (b"<<< Rados Block Device Image >>>\n".ljust(40, b"\0") + b"rb.0.1.2".ljust(24, b"\0") + b"RBD\0" b"001.005\0"
              + bytes([22, 0, 0, 0]) + number(8 << 20) + number(0) + bytes(8) + number(0))
    f, g = tmp_path / "f", tmp_path / "g"
    for name, data in [("old.rbd", header), ("rb.0.1.2.000000000000", b"data" * 1000)]:
        f.write_bytes(data)
        rbd.cluster.rados("-p", rbd.pool, "put", name, f)
    expected = (b"data" * 1000).ljust(8 << 20, b"\0")
    info = rbd.json("info", "old")
    assert (info["format"], info["size"], info["block_name_prefix"]) == (1, 8 << 20, "rb.0.1.2")
    rbd("snap", "create", "--no-progress", "old@a")
    rbd("import-diff", "--no-progress", "-", "old", data=diff((5 << 20, b"new"), size=8 << 20))
    rbd("snap", "create", "--no-progress", "old@b")
    rbd.fails("snap", "create", "--no-progress", "old@b", errno=17)
    rbd("snap", "rename", "old@a", "old@c")
    assert [s["name"] for s in rbd.json("snap", "ls", "old")] == ["c", "b"]
    for snap, data in [("c", expected), ("b", expected[:5 << 20] + b"new" + expected[(5 << 20) + 3:])]:
        rbd("export", "--no-progress", f"old@{snap}", g)
        assert g.read_bytes() == data
        g.unlink()
    rbd("snap", "rm", "--no-progress", "old@c")
    assert [s["name"] for s in rbd.json("snap", "ls", "old")] == ["b"]
    rbd("snap", "purge", "--no-progress", "old")
    assert rbd.json("snap", "ls", "old") == []
