"""File systems: an unmodified `ceph-mds` and stock clients on our monitors and OSDs."""
import errno
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import CHROOT, eventually

pytestmark = [
    pytest.mark.skipif(CHROOT is not None, reason="the metadata server runs outside of the chroot"),
    pytest.mark.skipif(shutil.which("ceph-mds") is None, reason="ceph-mds is not installed"),
]
cephfs = pytest.importorskip("cephfs")

# A client of its own process, so that one that is evicted, or aborts, takes no test with it.
WRITER = """
import cephfs, os, sys
fs = cephfs.LibCephFS(conffile=sys.argv[1])
fs.mount()
number = 0
for line in sys.stdin:
    fd = fs.open("/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    fs.write(fd, line.encode(), -1)
    fs.fsync(fd, 0)
    fs.close(fd)
    fs.mkdir(f"/made.{number}", 0o755)
    print(number, flush=True)
    number += 1
fs.unmount()
"""


class Mds:
    """Stock metadata servers of a cluster."""

    def __init__(self, cluster, directory):
        self.cluster = cluster
        self.directory = directory
        self.daemons = {}

    def start(self, name, **options):
        data = self.directory / f"mds.{name}"
        data.mkdir(exist_ok=True)
        keyring = data / "keyring"
        self.cluster.run("ceph", "auth", "get-or-create", f"mds.{name}", "mon", "profile mds", "mgr", "profile mds",
                         "mds", "allow *", "osd", "allow rwx", "-o", keyring)
        args = ["ceph-mds", "-f", "-i", name, "-c", str(self.cluster.conf), "--keyring", str(keyring), "--mds-data",
                str(data), "--log-file", str(data / "log"), "--admin-socket", str(data / "asok"), "--run-dir", str(data)]
        args += [f"--{k}={v}" for k, v in options.items()]
        output = open(data / "output", "ab")
        self.daemons[name] = subprocess.Popen(args, stdout=output, stderr=output)

    def kill(self, name):
        self.daemons[name].kill()
        self.daemons.pop(name).wait()

    def stop_all(self):
        for name in list(self.daemons):
            self.kill(name)


@pytest.fixture(scope="module")
def cl(siphon_factory):
    from conftest import Cluster
    c = siphon_factory()
    c.start()
    return Cluster(c.conf, "default")


@pytest.fixture(scope="module")
def mds(cl, tmp_path_factory):
    m = Mds(cl, tmp_path_factory.mktemp("mds"))
    yield m
    m.stop_all()


def fsmap(cl):
    return cl.ceph_json("fs", "dump")


def states(cl, name="cephfs"):
    """The daemons of a file system: name, rank and state; and those that wait."""
    m = fsmap(cl)
    found = {s["name"]: (None, s["state"]) for s in m["standbys"]}
    for fs in m["filesystems"]:
        if fs["mdsmap"]["fs_name"] == name:
            found.update({i["name"]: (i["rank"], i["state"]) for i in fs["mdsmap"]["info"].values()})
    return found


def code(cl, *args):
    r = cl.run("ceph", *args, check=False)
    return r.returncode, r.stderr.decode()


@pytest.fixture(scope="module")
def active(cl, mds):
    """A file system with a daemon that is active and one that waits."""
    for pool in ("meta", "data"):
        cl.run("ceph", "osd", "pool", "create", pool, "8")
    cl.run("ceph", "config", "set", "mon", "mds_beacon_grace", "5")
    mds.start("a")
    cl.run("ceph", "fs", "new", "cephfs", "meta", "data")
    eventually(lambda: states(cl).get("a") == (0, "up:active"), what="an active metadata server")
    mds.start("b")
    eventually(lambda: states(cl).get("b") == (None, "up:standby"), what="a metadata server that waits")
    return mds


def mounted(cl, **options):
    fs = cephfs.LibCephFS(conffile=str(cl.conf))
    for k, v in options.items():
        fs.conf_set(k, v)
    fs.mount()
    return fs


def test_what_is_written_is_seen_by_others(cl, active):
    one, two = mounted(cl), mounted(cl)
    one.mkdir("/dir", 0o755)
    fd = one.open("/dir/file", "w", 0o640)
    assert one.write(fd, b"hello", 0) == 5
    one.close(fd)
    fd = two.open("/dir/file", "r", 0)
    assert two.read(fd, 0, 100) == b"hello"
    two.close(fd)
    one.symlink("file", "/dir/symbolic")
    one.link("/dir/file", "/dir/hard")
    one.rename("/dir/file", "/dir/other")
    assert two.stat("/dir/hard").st_nlink == 2
    assert two.readlink("/dir/symbolic", 100) == b"file"
    with pytest.raises(cephfs.ObjectNotFound):
        two.stat("/dir/file")
    one.setxattr("/dir", "user.a", b"b", 0)
    assert two.getxattr("/dir", "user.a") == b"b"
    one.truncate("/dir/other", 1 << 20)
    assert two.stat("/dir/other").st_size == 1 << 20
    names = set()
    d = two.opendir("/dir")
    while entry := two.readdir(d):
        names.add(entry.d_name)
    two.closedir(d)
    assert names == {b".", b"..", b"hard", b"other", b"symbolic"}
    with pytest.raises(cephfs.Error) as e:
        one.rmdir("/dir")
    assert e.value.args[0] == errno.ENOTEMPTY
    one.sync_fs()
    for fs in (one, two):
        fs.unmount()
        fs.shutdown()


def test_snapshots_keep_what_was_there(cl, active):
    fs = mounted(cl)
    fs.mkdir("/snapped", 0o755)
    fd = fs.open("/snapped/f", "w", 0o644)
    fs.write(fd, b"old" * 100_000, 0)
    fs.fsync(fd, 0)
    fs.mkdir("/snapped/.snap/s", 0o755)
    fs.write(fd, b"new" * 100_000, 0)
    fs.fsync(fd, 0)
    fs.close(fd)
    fd = fs.open("/snapped/.snap/s/f", "r", 0)
    assert fs.read(fd, 0, 3) == b"old"
    fs.close(fd)
    fs.rmdir("/snapped/.snap/s")
    fs.unmount()
    fs.shutdown()

    def trimmed():
        pools = cl.ceph_json("osd", "dump")["pools"]
        queues = cl.ceph_json("osd", "dump").get("removed_snaps_queue", [])
        data = next(p["pool"] for p in pools if p["pool_name"] == "data")
        return not any(q["pool"] == data for q in queues) and next(p["snap_seq"] for p in pools if p["pool"] == data)

    # The monitors were told, and OSDs have removed the clones.
    eventually(trimmed, what="trimmed snapshots", timeout=90)


def test_another_takes_the_rank(cl, active):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(cl.conf)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(n):
        writer.stdin.write(f"line {n}\n")
        writer.stdin.flush()
        assert select.select([writer.stdout], [], [], 90)[0], f"the writer has not done {n} after 90 seconds"
        assert writer.stdout.readline() == f"{n}\n"

    for n in range(5):
        step(n)
    first = next(n for n, (rank, _) in states(cl).items() if rank == 0)
    second = "b" if first == "a" else "a"
    addrs = next(i["addrs"]["addrvec"] for i in fsmap(cl)["filesystems"][0]["mdsmap"]["info"].values() if i["name"] == first)
    active.kill(first)
    # It waits for the other daemon, and goes on.
    for n in range(5, 10):
        step(n)
    assert states(cl)[second] == (0, "up:active")
    blocked = {e["addr"] for e in cl.ceph_json("osd", "blocklist", "ls")}
    assert {f"{a['addr']}/{a['nonce']}" for a in addrs} <= blocked, "OSDs refuse the one that was replaced"
    m = fsmap(cl)["filesystems"][0]["mdsmap"]
    assert m["last_failure_osd_epoch"] > 0
    writer.stdin.close()
    assert writer.wait(60) == 0
    fs = mounted(cl)
    fd = fs.open("/log", "r", 0)
    assert fs.read(fd, 0, 1000) == b"".join(b"line %d\n" % n for n in range(10))
    fs.close(fd)
    assert all(fs.stat(f"/made.{n}") for n in range(10))
    fs.unmount()
    fs.shutdown()
    health = cl.ceph_json("health", "detail")["checks"]
    assert health["MDS_INSUFFICIENT_STANDBY"]["detail"][0]["message"] == "have 0; want 1 more"
    active.start(first)
    eventually(lambda: states(cl).get(first) == (None, "up:standby"), what="the daemon that came back")
    eventually(lambda: not [c for c in cl.ceph_json("health")["checks"] if c.startswith(("MDS", "FS"))], what="health")


def test_ranks_grow_and_shrink(cl, active):
    cl.run("ceph", "fs", "set", "cephfs", "max_mds", "2")
    eventually(lambda: sorted(r for r, s in states(cl).values() if s == "up:active") == [0, 1], what="two ranks")
    assert code(cl, "mds", "ok-to-stop", "0")[0] == errno.EBUSY
    cl.run("ceph", "fs", "set", "cephfs", "max_mds", "1")
    eventually(lambda: len(fsmap(cl)["filesystems"][0]["mdsmap"]["in"]) == 1, what="one rank", timeout=120)
    eventually(lambda: sorted(s for _, s in states(cl).values()) == ["up:active", "up:standby"], what="a daemon that waits again", timeout=120)


def test_a_follower_takes_over(cl, active):
    cl.run("ceph", "fs", "set", "cephfs", "allow_standby_replay", "true")
    eventually(lambda: "up:standby-replay" in [s for _, s in states(cl).values()], what="a follower")
    before = states(cl)
    follower = next(n for n, (_, s) in before.items() if s == "up:standby-replay")
    cl.run("ceph", "mds", "fail", "0")
    eventually(lambda: states(cl).get(follower) == (0, "up:active"), what="the follower's rank")
    cl.run("ceph", "fs", "set", "cephfs", "allow_standby_replay", "false")
    eventually(lambda: sorted(s for _, s in states(cl).values()) == ["up:active", "up:standby"], what="a daemon that waits")


def test_what_clients_may(cl, active, tmp_path):
    fs = mounted(cl)
    for name in ("/mine", "/theirs"):
        fs.mkdir(name, 0o777)
    fs.unmount()
    fs.shutdown()
    out = cl.run("ceph", "fs", "authorize", "cephfs", "client.mine", "/mine", "rw").stdout
    again = cl.run("ceph", "fs", "authorize", "cephfs", "client.mine", "/mine", "rw").stdout
    assert out == again and b"key = " in out
    caps = cl.ceph_json("auth", "get", "client.mine")[0]["caps"]
    assert caps == {"mds": "allow rw fsname=cephfs path=/mine", "mon": "allow r fsname=cephfs",
                    "osd": "allow rw tag cephfs data=cephfs"}
    assert code(cl, "fs", "authorize", "cephfs", "client.mine", "/", "rw")[0] == errno.EINVAL
    assert code(cl, "fs", "authorize", "nope", "client.x", "/", "rw")[0] == errno.EINVAL
    keyring = tmp_path / "keyring"
    keyring.write_bytes(out)
    me = cephfs.LibCephFS(conffile=str(cl.conf), auth_id="mine")
    me.conf_set("keyring", str(keyring))
    me.mount(mount_root=b"/mine")
    fd = me.open("/f", "w", 0o644)
    me.write(fd, b"x", 0)
    me.fsync(fd, 0)
    me.close(fd)
    me.unmount()
    me.shutdown()
    other = cephfs.LibCephFS(conffile=str(cl.conf), auth_id="mine")
    other.conf_set("keyring", str(keyring))
    with pytest.raises(cephfs.Error):
        other.mount(mount_root=b"/theirs")
    other.shutdown()


@pytest.mark.skipif(not os.path.exists("/dev/fuse") or shutil.which("ceph-fuse") is None, reason="no FUSE here")
def test_a_mounted_tree(cl, active, tmp_path):
    where = tmp_path / "mnt"
    where.mkdir()
    subprocess.run(["ceph-fuse", "-c", str(cl.conf), str(where)], check=True, capture_output=True, timeout=60)
    try:
        source = Path(__file__).parent
        shutil.copytree(source, where / "copy", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["diff", "-r", "-x", "__pycache__", str(source), str(where / "copy")], check=True, timeout=60)
        (where / "copy").rename(where / "moved")
        assert os.getxattr(where / "moved", "ceph.dir.rfiles")
        os.setxattr(where / "moved", "ceph.quota.max_files", b"1")
        with pytest.raises(OSError) as e:
            (where / "moved" / "more").touch()
        assert e.value.errno == errno.EDQUOT
        shutil.rmtree(where / "moved")
    finally:
        subprocess.run(["umount", str(where)], check=True, timeout=60)


def test_commands_and_their_refusals(cl, active):
    assert cl.ceph_json("fs", "ls") == [{"name": "cephfs", "metadata_pool": "meta", "metadata_pool_id": 1, "data_pool_ids": [2], "data_pools": ["data"]}]
    assert {m["name"] for m in cl.ceph_json("mds", "metadata")} == {"a", "b"}
    assert sum(cl.ceph_json("mds", "versions").values()) == 2
    assert {f["name"] for f in cl.ceph_json("fs", "feature", "ls")} >= {"mimic", "deleg_ino"}
    assert code(cl, "fs", "get", "nope")[0] == errno.ENOENT
    assert code(cl, "fs", "new", "second", "meta", "data", "--force")[0] == errno.EEXIST
    assert code(cl, "fs", "new", "cephfs", "meta", "data")[0] == 0
    assert code(cl, "fs", "new", "cephfs", "data", "meta")[0] == errno.EINVAL
    assert code(cl, "fs", "set", "cephfs", "max_mds", "0")[0] == errno.EINVAL
    assert code(cl, "fs", "set", "cephfs", "session_timeout", "1")[0] == errno.ERANGE
    assert code(cl, "fs", "rm", "cephfs", "--yes-i-really-mean-it")[0] == errno.EINVAL
    assert code(cl, "fs", "rm_data_pool", "cephfs", "data")[0] == errno.EINVAL
    assert code(cl, "mds", "repaired", "9")[0] == errno.ENOENT
    assert code(cl, "fs", "required_client_features", "cephfs", "add", "nope")[0] == errno.EINVAL
    cl.run("ceph", "osd", "pool", "create", "more", "8")
    cl.run("ceph", "fs", "add_data_pool", "cephfs", "more")
    assert cl.ceph_json("osd", "pool", "application", "get", "more") == {"cephfs": {"data": "cephfs"}}
    cl.run("ceph", "fs", "rm_data_pool", "cephfs", "more")
    cl.run("ceph", "fs", "required_client_features", "cephfs", "add", "mimic")
    required = cl.ceph_json("fs", "get", "cephfs")["mdsmap"]["required_client_features"]
    assert required == {"feature_8": "mimic"}


def test_status_and_volumes(cl, active):
    def served():
        fs = cl.ceph_json("fs", "status")
        return fs if any(m.get("inos", 0) > 0 for m in fs["mdsmap"]) else None

    one = mounted(cl)
    # The daemon tells the manager every five seconds.
    fs = eventually(served, what="figures of the metadata server")
    rank = next(m for m in fs["mdsmap"] if m.get("rank") == 0)
    assert rank["state"] == "active" and rank["dirs"] > 0 and rank["dns"] > 0
    assert {"name": next(n for n in ("a", "b") if n != rank["name"]), "state": "standby"} in fs["mdsmap"]
    assert [(p["name"], p["type"]) for p in fs["pools"]] == [("meta", "metadata"), ("data", "data")]
    assert all(p["avail"] > 0 for p in fs["pools"]) and fs["pools"][0]["used"] > 0
    eventually(lambda: cl.ceph_json("fs", "status")["clients"] == [{"fs": "cephfs", "clients": 1}], what="a client")
    one.unmount()
    one.shutdown()
    text = cl.run("ceph", "fs", "status", "cephfs").stdout.decode()
    assert text.startswith("cephfs - ") and "MDS version: ceph version 16.2" in text
    assert code(cl, "fs", "status", "nope")[0] == errno.EINVAL
    assert cl.ceph_json("fs", "volume", "ls") == [{"name": "cephfs"}]
    cl.run("ceph", "fs", "flag", "set", "enable_multiple", "false")
    assert code(cl, "fs", "volume", "create", "v")[0] == errno.EINVAL, "a second one has to be allowed"
    assert not [p for p in cl.ceph_json("osd", "pool", "ls") if p.startswith("cephfs.")]
    cl.run("ceph", "fs", "flag", "set", "enable_multiple", "true")
    cl.run("ceph", "fs", "volume", "create", "v")
    assert sorted(v["name"] for v in cl.ceph_json("fs", "volume", "ls")) == ["cephfs", "v"]
    assert {p for p in cl.ceph_json("osd", "pool", "ls") if p.startswith("cephfs.")} == {"cephfs.v.meta", "cephfs.v.data"}


def test_a_client_sees_its_file_systems_only(cl, active, tmp_path):
    keyring = tmp_path / "keyring"
    out = cl.run("ceph", "auth", "get-or-create", "client.narrow", "mon", "allow rw fsname=cephfs", "mds", "allow rw",
                 "osd", "allow rw").stdout
    keyring.write_bytes(out)

    def narrow(*args):
        r = cl.run("ceph", *args, check=False, name="client.narrow", keyring=keyring)
        return r.returncode, r.stdout

    def seen(*args):
        status, out = narrow(*args, "--format", "json")
        assert status == 0
        return json.loads(out)

    assert len(cl.ceph_json("fs", "ls")) == 2
    assert [fs["name"] for fs in seen("fs", "ls")] == ["cephfs"]
    assert [fs["mdsmap"]["fs_name"] for fs in seen("fs", "dump")["filesystems"]] == ["cephfs"]
    assert narrow("fs", "get", "v")[0] == errno.ENOENT and narrow("fs", "get", "cephfs")[0] == 0
    assert narrow("fs", "set", "v", "max_mds", "2")[0] == errno.ENOENT
    assert narrow("fs", "set", "cephfs", "max_file_size", str(1 << 41))[0] == 0
    me = cephfs.LibCephFS(conffile=str(cl.conf), auth_id="narrow")
    me.conf_set("keyring", str(keyring))
    me.conf_set("client_fs", "v")
    with pytest.raises(cephfs.ObjectNotFound):
        me.mount()
    me.shutdown()
    me = cephfs.LibCephFS(conffile=str(cl.conf), auth_id="narrow")
    me.conf_set("keyring", str(keyring))
    me.conf_set("client_fs", "cephfs")
    me.mount()
    me.unmount()
    me.shutdown()
    gone = ("fs", "volume", "rm", "v", "--yes-i-really-mean-it")
    assert code(cl, "fs", "volume", "rm", "v")[0] == errno.EPERM
    cl.run("ceph", "config", "set", "mon", "mon_allow_pool_delete", "false")
    assert code(cl, *gone)[0] == errno.EPERM
    cl.run("ceph", "config", "set", "mon", "mon_allow_pool_delete", "true")
    out = cl.run("ceph", *gone).stdout
    assert out.strip() == b"metadata pool: cephfs.v.meta data pool: ['cephfs.v.data'] removed"
    assert cl.ceph_json("fs", "volume", "ls") == [{"name": "cephfs"}]
    assert not [p for p in cl.ceph_json("osd", "pool", "ls") if p.startswith("cephfs.")]


def test_the_end_of_a_file_system(cl, active):
    cl.run("ceph", "fs", "fail", "cephfs")
    m = cl.ceph_json("fs", "get", "cephfs")["mdsmap"]
    assert m["failed"] == [0] and m["up"] == {} and m["flags"] & 1
    assert "FS_WITH_FAILED_MDS" in cl.ceph_json("health")["checks"] or "MDS_ALL_DOWN" in cl.ceph_json("health")["checks"]
    assert code(cl, "fs", "rm", "cephfs")[0] == errno.EPERM
    cl.run("ceph", "fs", "set", "cephfs", "joinable", "true")
    eventually(lambda: (0, "up:active") in states(cl).values(), what="a daemon that serves again")
    cl.run("ceph", "fs", "fail", "cephfs")
    cl.run("ceph", "fs", "rm", "cephfs", "--yes-i-really-mean-it")
    assert cl.ceph_json("fs", "ls") == []
    assert not [c for c in json.loads(cl.run("ceph", "health", "-f", "json").stdout)["checks"] if c.startswith(("FS", "MDS"))]
