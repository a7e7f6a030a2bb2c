"""More of the rbd command: mirroring, migration, groups, journals, encryption, settings, and what they print.

One mode of the protocol is enough: what these commands send is what librbd sends for the tests of its binding.
"""
import base64
import json
import signal
import subprocess

import pytest
from conftest import CHROOT, eventually
from test_rbd import PLAIN, diff, pattern, rbd  # noqa: F401

pytestmark = pytest.mark.parametrize("cluster", ["crc"], indirect=True)


@pytest.fixture
def img(rbd, tmp_path):
    """An image of 20 MiB, with its bytes."""
    data = pattern(20 << 20)
    (tmp_path / "img").write_bytes(data)
    rbd("import", "--no-progress", tmp_path / "img", "img")
    return data


def exported(rbd, spec):
    return rbd.cluster.run("rbd", f"--rbd_default_pool={rbd.pool}", "export", "--no-progress", spec, "-").stdout


def test_info(rbd, img):
    rbd("snap", "create", "--no-progress", "img@s")
    rbd("snap", "protect", "img@s")
    info = rbd.json("info", "img@s")
    image_id = info["id"]
    assert {k: info[k] for k in ("name", "size", "objects", "order", "object_size", "block_name_prefix", "format", "protected")} == {
        "name": "img", "size": 20 << 20, "objects": 5, "order": 22, "object_size": 4 << 20, "block_name_prefix": f"rbd_data.{image_id}",
        "format": 2, "protected": "true"}
    assert info["snapshot_count"] == 1 and info["op_features"] == [] and info["flags"] == []
    text = rbd("info", "img")
    for line in ("rbd image 'img':", "\tsize 20 MiB in 5 objects", "\torder 22 (4 MiB objects)", "\tsnapshot_count: 1", f"\tid: {image_id}",
                 "\tfeatures: layering, exclusive-lock, object-map, fast-diff, deep-flatten", "\top_features: ", "\tflags: "):
        assert line in text.splitlines(), text
    assert rbd.json("info", "--image-id", image_id)["name"] == "img"
    rbd.fails("info", "none", errno=2, text="error opening image none: (2) No such file or directory")
    rbd.fails("info", "img@none", errno=2, text="error setting snapshot context: (2) No such file or directory")
    rbd.fails("info", errno=22, text="rbd: image name was not specified")
    rbd.fails("ls", "nosuchpool", errno=2, text="error opening pool 'nosuchpool': (2) No such file or directory")
    listed = rbd.json("ls", "-l")
    assert [(i["image"], i.get("snapshot"), i["size"], i.get("protected")) for i in listed] == [
        ("img", None, 20 << 20, None), ("img", "s", 20 << 20, "true")]
    snap, = rbd.json("snap", "ls", "img")
    assert (snap["name"], snap["size"], snap["protected"]) == ("s", 20 << 20, "true") and snap["timestamp"]


def test_usage(rbd, img):
    """What is in use, from the object maps."""
    rbd("snap", "create", "--no-progress", "img@a")
    rbd("import-diff", "--no-progress", "-", "img", data=diff((0, b"new")))
    rbd("snap", "create", "--no-progress", "img@b")
    mib = 1 << 20
    usage = rbd.json("disk-usage", "img")
    rows = [(i["name"], i.get("snapshot"), i["provisioned_size"], i["used_size"]) for i in usage["images"]]
    # Objects 0, 1, 3 and 4 have data; a snapshot has what differs from the one before.
    assert rows == [("img", "a", 20 * mib, 16 * mib), ("img", "b", 20 * mib, 4 * mib), ("img", None, 20 * mib, 0)]
    exact = rbd.json("du", "--exact", "img@a")["images"][0]["used_size"]
    assert 0 < exact < 16 * mib
    rows = rbd.json("disk-usage", "--from-snap", "a", "img@b")["images"]
    assert [(i["snapshot"], i["used_size"]) for i in rows] == [("b", 4 * mib)]
    merged = rbd.json("du", "--merge-snapshots", "img")["images"]
    assert [(i["name"], i["used_size"]) for i in merged] == [("img", 20 * mib)]
    assert "<TOTAL>" in rbd("du", "img")
    rbd.fails("du", "none", errno=2)
    changes = rbd.json("diff", "--from-snap", "a", "img")
    assert changes == [{"offset": 0, "length": 4 * mib, "exists": "true"}] or changes == [{"offset": 0, "length": 3, "exists": "true"}]
    changes = rbd.json("diff", "--whole-object", "--from-snap", "a", "img")
    assert changes == [{"offset": 0, "length": 4 * mib, "exists": "true"}]


def test_exports(rbd, img, tmp_path):
    whole, a, b, ab = (tmp_path / n for n in ("whole", "a", "b", "ab"))
    rbd("snap", "create", "--no-progress", "img@a")
    rbd("import-diff", "--no-progress", "-", "img", data=diff((9 << 20, b"new" * 1000)))
    rbd("image-meta", "set", "img", "key", "value")
    rbd("snap", "create", "--no-progress", "img@b")
    now = exported(rbd, "img")
    rbd("export", "--no-progress", "--export-format", "2", "img", whole)
    assert whole.read_bytes().startswith(b"rbd image v2\n")
    rbd("import", "--no-progress", "--export-format", "2", whole, "again")
    assert [s["name"] for s in rbd.json("snap", "ls", "again")] == ["a", "b"]
    assert rbd.json("image-meta", "ls", "again") == {"key": "value"}
    assert exported(rbd, "again@a") == img and exported(rbd, "again@b") == now == exported(rbd, "again")
    rbd.fails("import", "--no-progress", "--export-format", "2", whole, "again", errno=17)
    # Two differences put together are one.
    rbd("export-diff", "--no-progress", "img@a", a)
    rbd("export-diff", "--no-progress", "--from-snap", "a", "img@b", b)
    rbd("merge-diff", "--no-progress", a, b, ab)
    rbd("create", "merged", "--size", "1M")
    rbd("import-diff", "--no-progress", ab, "merged")
    assert exported(rbd, "merged") == now
    assert [s["name"] for s in rbd.json("snap", "ls", "merged")] == ["b"]
    rbd.fails("import-diff", "--no-progress", b, "merged", errno=22, text="start snapshot 'a' does not exist")
    rbd.fails("import-diff", "--no-progress", ab, "merged", errno=17, text="end snapshot 'b' already exists")
    rbd.fails("export-diff", "--no-progress", "--from-snap", "none", "img", "-", errno=2)


def test_deep_copies(rbd, img):
    rbd("snap", "create", "--no-progress", "img@s")
    rbd("import-diff", "--no-progress", "-", "img", data=diff((5 << 20, b"new")))
    rbd("deep", "cp", "--no-progress", "img", "deep", "--object-size", "1M", "--stripe-unit", "1M", "--stripe-count", "1",
        "--image-feature", "layering")
    assert exported(rbd, "deep@s") == img and exported(rbd, "deep") == exported(rbd, "img")
    info = rbd.json("info", "deep")
    assert (info["order"], info["features"]) == (20, ["layering"])
    rbd.fails("deep", "cp", "--no-progress", "img", "deep", errno=17)
    # Of a clone, with its parent and without.
    rbd("clone", "--rbd_default_clone_format=2", "img@s", "child")
    rbd("deep", "cp", "--rbd_default_clone_format=2", "--no-progress", "child", "like")
    rbd("deep", "cp", "--no-progress", "--flatten", "child", "flat")
    assert rbd.json("info", "like")["parent"]["image"] == "img" and "parent" not in rbd.json("info", "flat")
    assert exported(rbd, "like") == exported(rbd, "flat") == img
    children = rbd.json("children", "img@s")
    assert sorted(c["image"] for c in children) == ["child", "like"]
    assert children[0] == {"pool": rbd.pool, "pool_namespace": "", "image": children[0]["image"]}
    rbd("sparsify", "--no-progress", "flat")
    rbd("flatten", "--no-progress", "like")
    assert [c["image"] for c in rbd.json("children", "img@s")] == ["child"]
    rbd.fails("flatten", "--no-progress", "like", errno=22)


def test_maps_of_objects(rbd, img):
    rbd("snap", "create", "--no-progress", "img@s")
    for spec in ("img", "img@s"):
        rbd("object-map", "check", "--no-progress", spec)
        rbd("object-map", "rebuild", "--no-progress", spec)
        assert rbd.json("info", spec)["flags"] == []
    # Somebody makes an object behind the map's back.
    info = rbd.json("info", "img")
    rbd.cluster.rados("-p", rbd.pool, "create", info["block_name_prefix"] + ".0000000000000002")
    rbd("object-map", "check", "--no-progress", "img")
    assert rbd.json("info", "img")["flags"] == ["object map invalid", "fast diff invalid"]
    rbd("object-map", "rebuild", "--no-progress", "img")
    assert rbd.json("info", "img")["flags"] == []
    rbd("create", "plain", "--size", "1M", *PLAIN)
    rbd.fails("object-map", "rebuild", "--no-progress", "plain", errno=22)


def test_features(rbd):
    rbd("create", "img", "--size", "1M", *PLAIN)
    rbd.fails("feature", "enable", "img", "object-map", errno=22, text="failed to update image features")
    rbd("feature", "enable", "img", "exclusive-lock", "journaling")
    assert rbd.json("info", "img")["journal"]
    rbd.fails("feature", "enable", "img", "journaling", errno=22)
    rbd.fails("feature", "disable", "img", "exclusive-lock", errno=22)
    rbd("feature", "disable", "img", "journaling", "exclusive-lock")
    rbd.fails("feature", "enable", "img", "nonsense", errno=1)
    rbd.fails("create", "other", "--size", "1M", "--image-feature", "nonsense", errno=1)
    rbd.fails("create", "other", "--size", "1M", "--image-feature", "object-map", errno=22)


def test_settings(rbd):
    rbd("create", "img", "--size", "1M")
    get = lambda *spec: {s["name"]: (s["value"], s["source"]) for s in rbd.json("config", *spec)}
    assert get("image", "ls", "img")["rbd_cache"] == ("true", "config")
    rbd("config", "global", "set", "global", "rbd_cache_max_dirty", "1000")
    rbd("config", "pool", "set", rbd.pool, "rbd_cache", "false")
    rbd("config", "image", "set", "img", "rbd_cache", "true")
    assert get("pool", "ls", rbd.pool)["rbd_cache"] == ("false", "pool")
    assert get("image", "ls", "img")["rbd_cache"] == ("true", "image")
    assert rbd("config", "global", "get", "global", "rbd_cache_max_dirty") == "1000\n"
    assert {(s["name"], s["value"]) for s in rbd.json("config", "global", "ls", "global")} >= {("rbd_cache_max_dirty", "1000")}
    assert rbd("config", "pool", "get", rbd.pool, "rbd_cache") == "false\n"
    assert rbd("config", "image", "get", "img", "rbd_cache") == "true\n"
    rbd("config", "global", "rm", "global", "rbd_cache_max_dirty")
    rbd("config", "pool", "rm", rbd.pool, "rbd_cache")
    rbd("config", "image", "rm", "img", "rbd_cache")
    assert get("image", "ls", "img")["rbd_cache"] == ("true", "config")
    rbd.fails("config", "global", "get", "global", "rbd_cache_max_dirty", errno=2)
    rbd.fails("config", "image", "get", "img", "rbd_cache", errno=2, text="rbd_cache is not set")
    rbd.fails("config", "image", "set", "img", "osd_nonsense", "1", errno=22)
    rbd.fails("config", "pool", "set", rbd.pool, "rbd_cache", "perhaps", errno=22)


def test_snapshots(rbd, img):
    rbd("snap", "create", "--no-progress", "img@a")
    rbd("snap", "limit", "set", "img", "--limit", "1")
    rbd.fails("snap", "create", "--no-progress", "img@b", errno=122, text="Disk quota exceeded")
    rbd.fails("snap", "limit", "set", "img", errno=34, text="must specify --limit")
    rbd("snap", "limit", "clear", "img")
    rbd.fails("snap", "rollback", "--no-progress", "img@none", errno=2)
    rbd.fails("snap", "rename", "img@none", "img@b", errno=2)
    rbd.fails("snap", "unprotect", "img@a", errno=22)
    rbd("snap", "protect", "img@a")
    rbd.fails("snap", "protect", "img@a", errno=16)
    rbd("snap", "create", "--no-progress", "img@b")
    rbd.fails("rm", "--no-progress", "img", errno=39, text="image has snapshots")
    rbd("snap", "unprotect", "img@a")
    rbd("snap", "rm", "--snap-id", str(rbd.json("snap", "ls", "img")[0]["id"]), "--image", "img")
    rbd("snap", "purge", "--no-progress", "img")
    assert rbd("snap", "ls", "img") == ""


def test_status_and_watch(rbd):
    rbd("create", "img", "--size", "1M")
    assert rbd.json("status", "img") == {"watchers": []} and rbd("status", "img") == "Watchers: none\n"
    watch = subprocess.Popen(rbd.cluster.argv("rbd", f"--rbd_default_pool={rbd.pool}", "watch", "img"), stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    try:
        assert watch.stdout.readline() == "press enter to exit...\n"
        watcher, = eventually(lambda: rbd.json("status", "img")["watchers"], what="the watcher")
        assert set(watcher) == {"address", "client", "cookie"}
        rbd.fails("rm", "--no-progress", "img", errno=16, text="image still has watchers")
        rbd("image-meta", "set", "img", "key", "value")
        rbd("resize", "--no-progress", "--size", "2M", "img")
        assert "received notification: notify_id=" in watch.stdout.readline()
        watch.stdin.write("\n")
        watch.stdin.flush()
        assert watch.wait(timeout=30) == 0
    finally:
        watch.kill()
        watch.wait()
    assert rbd.json("status", "img")["watchers"] == []


def test_locks(rbd):
    rbd("create", "img", "--size", "1M", *PLAIN)
    rbd("lock", "add", "--shared", "tag", "img", "one")
    rbd("lock", "add", "--shared", "tag", "img", "two")
    rbd.fails("lock", "add", "--shared", "other", "img", "three", errno=16, text="lock is already held by someone else with a different tag")
    rbd.fails("lock", "add", "img", "three", errno=16, text="lock is already held by someone else")
    locks = rbd.json("lock", "ls", "img")
    assert [l["id"] for l in locks] == ["one", "two"] and all(set(l) == {"id", "locker", "address"} for l in locks)
    text = rbd("lock", "ls", "img")
    assert text.startswith("There are 2 shared locks on this image.\nLock tag: tag\n")
    rbd.fails("lock", "rm", "img", "one", "client.1", errno=2)
    for l in locks:
        rbd("lock", "rm", "img", l["id"], l["locker"])
    assert rbd.json("lock", "ls", "img") == [] and rbd("lock", "ls", "img") == ""


def test_bench(rbd):
    rbd("create", "img", "--size", "4M")
    for kind, pattern_ in [("write", "seq"), ("read", "rand"), ("rw", "full-seq")]:
        said = rbd("bench", "--io-type", kind, "--io-pattern", pattern_, "--io-size", "4K", "--io-total", "256K", "img")
        assert "elapsed:" in said and "ops: 64" in said
    rbd.fails("bench", "--io-type", "nonsense", "img", errno=1)


def test_pools(rbd, img):
    stats = rbd.json("pool", "stats", rbd.pool)
    assert stats == {"images": {"count": 1, "provisioned_bytes": 20 << 20, "snap_count": 0}, "trash": {"count": 0, "provisioned_bytes": 0,
                                                                                                     "snap_count": 0}}
    assert rbd("pool", "stats", rbd.pool) == "Total Images: 1\nTotal Snapshots: 0\nProvisioned Size: 20 MiB\n"
    rbd("namespace", "create", f"{rbd.pool}/ns")
    assert rbd.json("namespace", "ls", rbd.pool) == [{"name": "ns"}]
    rbd("cp", "--no-progress", "img", f"{rbd.pool}/ns/copy")
    assert rbd.json("ls", f"{rbd.pool}/ns") == ["copy"]
    rbd.fails("namespace", "rm", f"{rbd.pool}/ns", errno=16, text="namespace contains images which must be deleted first.")
    rbd.fails("create", f"{rbd.pool}/none/img", "--size", "1M", errno=2, text="namespace 'none' does not exist.")
    rbd.fails("namespace", "create", f"{rbd.pool}/ns", errno=17)
    rbd.fails("namespace", "rm", f"{rbd.pool}/none", errno=2)
    rbd.fails("pool", "init", "nosuchpool", errno=2)


def test_trash(rbd):
    for name in ("old", "kept"):
        rbd("create", name, "--size", "1M")
    rbd("trash", "mv", "old")
    rbd("trash", "mv", "--expires-at", "2 days", "kept")
    entries = rbd.json("trash", "ls", "--long", "--all")
    assert sorted((e["name"], e["source"], e["status"].split()[0]) for e in entries) == [("kept", "USER", "protected"), ("old", "USER", "expired")]
    rbd("trash", "purge", "--no-progress", "--expired-before", "2001-01-01", rbd.pool)
    assert len(rbd.json("trash", "ls")) == 2
    rbd("trash", "purge", "--no-progress", rbd.pool)
    assert [e["name"] for e in rbd.json("trash", "ls")] == ["kept"]
    rbd("trash", "purge", "--no-progress", "--expired-before", "2100-01-01", rbd.pool)
    assert rbd.json("trash", "ls") == []
    rbd.fails("trash", "mv", "none", errno=2)
    rbd.fails("trash", "restore", "none", errno=2)
    rbd.fails("trash", "rm", "--no-progress", "none", errno=2)


def test_groups(rbd):
    rbd("create", "a", "--size", "8M")
    rbd("create", "b", "--size", "8M")
    rbd("group", "create", f"{rbd.pool}/g")
    rbd("group", "image", "add", "g", "a")
    rbd.fails("group", "image", "add", "g", "none", errno=2)
    rbd.fails("group", "image", "add", "none", "b", errno=2)
    image, = rbd.json("group", "image", "list", "g")
    assert image == {"image": "a", "pool": rbd.pool, "namespace": "", "state": 0}
    rbd("group", "snap", "create", "g@s")
    rbd.fails("group", "snap", "create", "g@s", errno=17)
    rbd.fails("group", "snap", "rollback", "--no-progress", "g@none", errno=2)
    rbd.fails("group", "snap", "rm", "g@none", errno=2)
    kinds = rbd.json("snap", "ls", "--all", "a")
    assert kinds[0]["namespace"] == {"type": "group", "pool": rbd.pool, "group": "g", "group snap": "s"}
    rbd.fails("rm", "--no-progress", "a", errno=39)
    rbd("group", "snap", "rm", "g@s")
    rbd.fails("rm", "--no-progress", "a", errno=31, text="image belongs to a group")
    rbd("group", "rm", "g")
    rbd("rm", "--no-progress", "a")
    assert rbd("group", "ls") == ""


def test_migration(rbd, img, tmp_path):
    rbd("snap", "create", "--no-progress", "img@s")
    rbd.fails("migration", "execute", "--no-progress", "img", errno=22)
    rbd.fails("migration", "prepare", "none", "x", errno=2)
    rbd("migration", "prepare", "img", "moved", "--order", "20", "--stripe-unit", "1M", "--stripe-count", "1")
    status = rbd.json("status", "moved")["migration"]
    assert {k: status[k] for k in ("source_pool_name", "source_image_name", "dest_pool_name", "dest_image_name", "state")} == {
        "source_pool_name": rbd.pool, "source_image_name": "img", "dest_pool_name": rbd.pool, "dest_image_name": "moved", "state": "prepared"}
    assert "migrating" in rbd.json("info", "moved")["features"]
    rbd.fails("migration", "commit", "--no-progress", "moved", errno=22)
    rbd("migration", "abort", "--no-progress", "moved")
    assert rbd.json("ls") == ["img"] and exported(rbd, "img@s") == img
    (tmp_path / "spec").write_text(json.dumps({"type": "raw", "stream": {"type": "file", "file_path": str(tmp_path / "img")}}))
    rbd("migration", "prepare", "--import-only", "--source-spec-path", tmp_path / "spec", "fetched")
    assert exported(rbd, "fetched") == img
    rbd("migration", "execute", "--no-progress", "fetched")
    assert rbd.json("status", "fetched")["migration"]["state"] == "executed"
    rbd("migration", "commit", "--no-progress", "fetched")
    (tmp_path / "img").unlink()
    assert exported(rbd, "fetched") == img
    rbd.fails("migration", "prepare", "--import-only", "--source-spec", "{}", "other", errno=22)


def test_journals(rbd):
    rbd("create", "img", "--size", "8M", "--image-feature", "layering,exclusive-lock,journaling", "--journal-splay-width", "2",
        "--journal-object-size", "1M")
    rbd("bench", "--io-type", "write", "--io-size", "64K", "--io-total", "512K", "img")
    info = rbd.json("journal", "info", "--image", "img")
    assert (info["order"], info["splay_width"], info["journal_id"]) == (20, 2, rbd.json("info", "img")["id"])
    status = rbd.json("journal", "status", "--image", "img")
    assert (status["minimum_set"], [c["state"] for c in status["registered_clients"]]) == (0, ["connected"])
    assert rbd("journal", "inspect", "--image", "img").startswith("Summary:\n  0 entries inspected, 0 errors\n")
    rbd.fails("journal", "client", "disconnect", "--image", "img", "--client-id", "none", errno=2)
    rbd.fails("journal", "client", "disconnect", "--image", "img", errno=2, text="no registered clients to disconnect")
    rbd("journal", "reset", "--image", "img")
    rbd.fails("journal", "info", "--image", "none", errno=2)
    rbd("feature", "disable", "img", "journaling")
    rbd.fails("journal", "info", "--image", "img", errno=22, text="journaling is not enabled for image img")


def test_mirroring_by_snapshots(rbd):
    rbd("create", "img", "--size", "1M")
    rbd.fails("mirror", "image", "enable", "img", "snapshot", errno=22, text="mirroring is not enabled on a pool")
    rbd("mirror", "pool", "enable", "--site-name", "here", rbd.pool, "image")
    assert rbd.json("mirror", "pool", "info", rbd.pool) == {"mode": "image", "site_name": "here", "peers": []}
    token = json.loads(base64.b64decode(rbd("mirror", "pool", "peer", "bootstrap", "create", rbd.pool)))
    assert token["client_id"] == "rbd-mirror-peer" and token["fsid"] == rbd.cluster.ceph("fsid").strip()
    rbd.fails("mirror", "image", "status", "img", errno=22, text="mirroring not enabled on the image")
    rbd("mirror", "image", "enable", "img", "snapshot")
    rbd.fails("mirror", "image", "snapshot", "img", errno=22, text="error creating snapshot")  # For nobody.
    peer = rbd("mirror", "pool", "peer", "add", rbd.pool, "client.a@there", "--remote-mon-host", "127.0.0.1").strip()
    rbd.fails("mirror", "pool", "peer", "add", rbd.pool, "client.y@there", errno=22, text="multiple RX peers are not currently supported")
    rbd("mirror", "pool", "peer", "set", rbd.pool, peer, "client", "client.b")
    shown, = rbd.json("mirror", "pool", "info", rbd.pool, "--all")["peers"]
    assert (shown["uuid"], shown["client_name"], shown["mon_host"]) == (peer, "client.b", "127.0.0.1")
    assert "Snapshot ID: " in rbd("mirror", "image", "snapshot", "img")
    mirroring = rbd.json("info", "img")["mirroring"]
    assert {k: mirroring[k] for k in ("mode", "state", "primary")} == {"mode": "snapshot", "state": "enabled", "primary": True}
    status = rbd.json("mirror", "image", "status", "img")
    assert {k: status[k] for k in ("name", "global_id", "state", "description")} == {
        "name": "img", "global_id": mirroring["global_id"], "state": "down+unknown", "description": "status not found"}
    assert status["snapshots"] and all(s["name"].startswith(".mirror.primary") for s in status["snapshots"])
    pool = rbd.json("mirror", "pool", "status", rbd.pool, "--verbose")
    assert pool["summary"] == {"health": "WARNING", "daemon_health": "UNKNOWN", "image_health": "WARNING", "states": {"unknown": 1}}
    assert [i["name"] for i in pool["images"]] == ["img"] and pool["daemons"] == []
    rbd.fails("mirror", "image", "promote", "img", errno=22)
    assert "demoted to non-primary" in rbd("mirror", "image", "demote", "img")
    assert rbd.json("info", "img")["mirroring"]["primary"] is False
    rbd.fails("mirror", "image", "snapshot", "img", errno=22)
    rbd.fails("bench", "--io-type", "write", "--io-total", "4K", "img", errno=30)
    rbd.fails("mirror", "pool", "disable", rbd.pool, errno=16, text="mirror peers still registered")
    # To promote it again, or to end its mirroring, takes the tool ten seconds and more with any cluster; the tests of
    # the binding do that.


def test_mirroring_by_journals(rbd):
    rbd("mirror", "pool", "enable", rbd.pool, "pool")
    rbd("create", "img", "--size", "1M", "--image-feature", "layering,exclusive-lock,journaling")
    assert rbd.json("info", "img")["mirroring"]["mode"] == "journal"
    rbd("mirror", "image", "demote", "img")
    rbd("mirror", "pool", "promote", rbd.pool)
    assert rbd.json("info", "img")["mirroring"]["primary"] is True
    rbd("mirror", "pool", "demote", rbd.pool)
    assert rbd.json("info", "img")["mirroring"]["primary"] is False
    rbd("mirror", "pool", "promote", "--force", rbd.pool)
    rbd("mirror", "pool", "disable", rbd.pool)
    assert "mirroring" not in rbd.json("info", "img")


@pytest.mark.skipif(CHROOT is not None, reason="libcryptsetup opens /proc, which is not mounted below the other root directory")
def test_encryption(rbd, tmp_path):
    (tmp_path / "pass").write_text("the passphrase")
    rbd("create", "img", "--size", "8M")
    rbd.fails("encryption", "format", "img", "nonsense", tmp_path / "pass", errno=95, text="unsupported encryption format")
    rbd.fails("encryption", "format", "none", "luks1", tmp_path / "pass", errno=2)
    rbd.fails("encryption", "format", "img", "luks1", tmp_path / "none", errno=2)
    rbd("encryption", "format", "--cipher-alg", "aes-128", "img", "luks1", tmp_path / "pass")
    assert exported(rbd, "img")[:16] == b"LUKS\xba\xbe\0\x01aes\0\0\0\0\0"
