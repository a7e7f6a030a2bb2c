"""The rados command."""
import os
import re

from conftest import eventually


def test_put_get(cluster, pool, tmp_path):
    data = os.urandom(5_000_000)
    f = tmp_path / "f"
    f.write_bytes(data)
    cluster.rados("-p", pool, "put", "big", f)
    cluster.rados("-p", pool, "get", "big", tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == data
    cluster.rados("-p", pool, "put", "empty", "/dev/null")
    cluster.rados("-p", pool, "get", "empty", tmp_path / "h")
    assert (tmp_path / "h").read_bytes() == b""
    assert re.search(rf"{pool}/big mtime .*, size 5000000", cluster.rados("-p", pool, "stat", "big").stdout.decode())
    cluster.rados("-p", pool, "append", "big", f)
    assert "size 10000000" in cluster.rados("-p", pool, "stat", "big").stdout.decode()
    cluster.rados("-p", pool, "truncate", "big", "1000")
    cluster.rados("-p", pool, "get", "big", tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == data[:1000]
    cluster.rados("-p", pool, "put", "big", f, "--offset", "500")
    cluster.rados("-p", pool, "get", "big", tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == data[:500] + data
    cluster.rados("-p", pool, "create", "made")
    cluster.rados("-p", pool, "touch", "touched")
    cluster.rados("-p", pool, "rm", "made")
    cluster.fails("rados", "-p", pool, "stat", "made", errno=1, text="No such file or directory")
    cluster.fails("rados", "-p", pool, "get", "made", tmp_path / "x", errno=1, text="No such file or directory")
    cluster.fails("rados", "-p", "no-such-pool", "ls", errno=1)


def test_list(cluster, pool):
    names = {f"obj{i}" for i in range(100)}
    for n in sorted(names)[:20]:
        cluster.rados("-p", pool, "create", n)
    for n in sorted(names)[20:25]:
        cluster.rados("-p", pool, "-N", "space", "create", n)
    assert set(cluster.rados("-p", pool, "ls").stdout.decode().split()) == set(sorted(names)[:20])
    assert set(cluster.rados("-p", pool, "-N", "space", "ls").stdout.decode().split()) == set(sorted(names)[20:25])
    assert len(cluster.rados("-p", pool, "--all", "ls").stdout.decode().splitlines()) == 25
    out = cluster.rados("-p", pool, "df").stdout.decode()
    assert pool in out
    assert pool in cluster.rados("lspools").stdout.decode().split()


def test_xattrs(cluster, pool):
    r = lambda *a, **k: cluster.rados("-p", pool, *a, **k).stdout
    r("create", "o")
    r("setxattr", "o", "one", "value 1")
    r("setxattr", "o", "two", "value 2")
    assert r("getxattr", "o", "one") == b"value 1"
    assert r("listxattr", "o").decode().split() == ["one", "two"]
    r("rmxattr", "o", "one")
    assert r("listxattr", "o").decode().split() == ["two"]
    cluster.fails("rados", "-p", pool, "getxattr", "o", "one", errno=1, text="No data available")


def test_omap(cluster, pool):
    r = lambda *a, **k: cluster.rados("-p", pool, *a, **k).stdout
    r("create", "o")
    for i in range(5):
        r("setomapval", "o", f"k{i}", f"v{i}")
    assert r("listomapkeys", "o").decode().split() == [f"k{i}" for i in range(5)]
    assert b"v3" in r("getomapval", "o", "k3")
    assert b"k4" in r("listomapvals", "o")
    r("rmomapkey", "o", "k0")
    assert r("listomapkeys", "o").decode().split() == [f"k{i}" for i in range(1, 5)]
    r("setomapheader", "o", "head")
    assert b"head" in r("getomapheader", "o")
    r("clearomap", "o")
    assert r("listomapkeys", "o") == b""
    cluster.fails("rados", "-p", pool, "getomapval", "o", "k3", errno=1)


def test_cp(cluster, pool):
    cluster.rados("-p", pool, "put", "src", "-", data=b"the data" * 1000)
    cluster.rados("-p", pool, "setxattr", "src", "x", "attr")
    cluster.rados("-p", pool, "setomapval", "src", "k", "v")
    cluster.rados("-p", pool, "cp", "src", "dst")
    assert cluster.rados("-p", pool, "get", "dst", "-").stdout == b"the data" * 1000
    assert cluster.rados("-p", pool, "getxattr", "dst", "x").stdout == b"attr"
    assert b"k" in cluster.rados("-p", pool, "listomapkeys", "dst").stdout


def test_pool_snapshots(cluster, pool):
    r = lambda *a, **k: cluster.rados("-p", pool, *a, **k).stdout
    r("put", "o", "-", data=b"before")
    r("mksnap", "s1")
    r("put", "o", "-", data=b"after!")
    r("put", "new", "-", data=b"new")
    assert r("-s", "s1", "get", "o", "-").endswith(b"before")
    assert r("get", "o", "-") == b"after!"
    cluster.fails("rados", "-p", pool, "-s", "s1", "stat", "new", errno=1)
    ls = r("listsnaps", "o").decode()
    assert "cloneid" in ls and "head" in ls
    r("rollback", "o", "s1")
    assert r("get", "o", "-") == b"before"
    r("rm", "o")
    assert r("-s", "s1", "get", "o", "-").endswith(b"before")
    r("rmsnap", "s1")
    # With the snapshot trimmed, nothing of the object is left.
    eventually(lambda: cluster.rados("-p", pool, "listsnaps", "o", check=False).returncode != 0, what="the clone to be trimmed")


def test_bench(cluster, pool):
    out = cluster.rados("bench", "3", "write", "-p", pool, "-b", "4096", "-t", "16", "--no-cleanup").stdout.decode()
    assert re.search(r"Total writes made: +[1-9]", out), out
    for kind in ("seq", "rand"):
        out = cluster.rados("bench", "2", kind, "-p", pool, "-t", "16").stdout.decode()
        assert re.search(r"Total reads made: +[1-9]", out), out
    cluster.rados("cleanup", "-p", pool)
    assert cluster.rados("-p", pool, "ls").stdout == b""
    out = cluster.rados("bench", "2", "write", "-p", pool, "-b", "4194304", "-t", "4").stdout.decode()
    assert re.search(r"Total writes made: +[1-9]", out), out


def test_export_import(cluster, pool, tmp_path):
    cluster.rados("-p", pool, "put", "a", "-", data=b"data of a")
    cluster.rados("-p", pool, "setxattr", "a", "x", "1")
    cluster.rados("-p", pool, "setomapval", "a", "k", "v")
    cluster.rados("-p", pool, "-N", "n", "put", "b", "-", data=b"data of b")
    cluster.rados("-p", pool, "export", tmp_path / "dump")
    other = pool + "-imported"
    cluster.make_pool(other, 4, application=None)
    try:
        cluster.rados("-p", other, "import", tmp_path / "dump")
        assert cluster.rados("-p", other, "get", "a", "-").stdout == b"data of a"
        assert cluster.rados("-p", other, "getxattr", "a", "x").stdout == b"1"
        assert cluster.rados("-p", other, "-N", "n", "get", "b", "-").stdout == b"data of b"
    finally:
        cluster.delete_pool(other)


def test_stats_follow(cluster, pool):
    for i in range(10):
        cluster.rados("-p", pool, "put", f"o{i}", "-", data=b"x" * 10000)
    eventually(lambda: next(p for p in cluster.ceph_json("df")["pools"] if p["name"] == pool)["stats"]["objects"] == 10, what="ten objects in df")
    assert next(p for p in cluster.ceph_json("df")["pools"] if p["name"] == pool)["stats"]["stored"] == 100000
