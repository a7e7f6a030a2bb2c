"""The memory of a metadata server: it stays under its limit whatever stock clients hold, and health says which of them
give nothing back."""
import errno
import json
import os
import select
import subprocess
import sys

import pytest

from conftest import eventually
from file_systems import PATIENCE, mounted, new_cluster, new_servers

cephfs = pytest.importorskip("cephfs")

LIMIT = 64 << 20
# An inode takes as much as its attributes: few files fill the memory.
VALUE = 40_000

# A client of its own process that makes files with large attributes, holds them open, and lets go when it is told to.
HOLDER = """
import cephfs, json, os, sys
fs = cephfs.LibCephFS(conffile=sys.argv[1])
fs.conf_set("client_cache_size", "10000000")
fs.mount()
print(fs.get_instance_id(), flush=True)
held = []
for line in sys.stdin:
    what, where, count = json.loads(line)
    done, code = 0, 0
    try:
        for n in range(count):
            if what == "hold":
                held.append(fs.open(f"{where}/{n}", os.O_RDWR | os.O_CREAT, 0o644))
                fs.setxattr(f"{where}/{n}", "user.large", b"x" * %d, 0)
            elif what == "look":
                assert fs.stat(f"{where}/{n}").st_size == 0
            done += 1
        if what == "close":
            for fd in held:
                fs.close(fd)
            held = []
    except cephfs.Error as e:
        code = e.errno
    print(json.dumps([done, code]), flush=True)
fs.unmount()
""" % VALUE


class Holder:
    def __init__(self, cl):
        argv = [sys.executable, "-c", HOLDER, str(cl.conf)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.id = int(self.answer(PATIENCE))

    def answer(self, timeout):
        assert select.select([self.process.stdout], [], [], timeout)[0], f"a client is silent for {timeout} seconds"
        return self.process.stdout.readline()

    def do(self, what, where="", count=0, timeout=300):
        """How many files were done, and the errno that ended it, or 0."""
        self.process.stdin.write(json.dumps([what, where, count]) + "\n")
        self.process.stdin.flush()
        return tuple(json.loads(self.answer(timeout)))

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0
        self.process.stdout.close()


@pytest.fixture(scope="module")
def cl(siphon_factory):
    return new_cluster(siphon_factory)


@pytest.fixture(scope="module")
def servers(cl, tmp_path_factory):
    s = new_servers(cl, tmp_path_factory.mktemp("mds"))
    if s.stock:
        pytest.skip("a stock server bounds no client")
    set_limit(cl, LIMIT)
    s.start("a")
    eventually(lambda: s.active() == "a", what="an active metadata server")
    yield s
    for name in list(s.daemons):
        s.kill(name)


@pytest.fixture
def holder(cl, servers):
    h = Holder(cl)
    yield h
    if h.process.poll() is None and not h.process.stdin.closed:
        h.end()


@pytest.fixture(scope="module")
def other(cl, servers):
    fs = mounted(cl)
    yield fs
    fs.unmount()
    fs.shutdown()


def set_limit(cl, limit):
    cl.run("ceph", "config", "set", "mds", "mds_cache_memory_limit", str(limit))


def used(cl):
    pool = cl.ceph_json("tell", "mds.a", "cache", "status")["pool"]
    assert pool["items"] > 0
    assert cl.ceph_json("tell", "mds.a", "dump_mempools")["mempool"]["by_pool"]["mds_co"]["bytes"] > 0
    return pool["bytes"]


def details(cl, check):
    found = cl.ceph_json("health", "detail")["checks"].get(check)
    return [d["message"] for d in found["detail"]] if found else []


def serves(fs, where):
    """Another client makes, writes, finds and removes files."""
    fs.mkdir(where, 0o755)
    for n in range(40):
        fd = fs.open(f"{where}/{n}", os.O_RDWR | os.O_CREAT, 0o644)
        assert fs.write(fd, b"text", 0) == 4
        fs.close(fd)
        assert fs.stat(f"{where}/{n}").st_size == 4
        fs.unlink(f"{where}/{n}")
    fs.rmdir(where)


def test_a_client_that_gives_nothing_back_leaves_memory_to_others(cl, servers, holder, other):
    other.mkdir("/held", 0o755)
    done, code = holder.do("hold", "/held", 3_000)
    print(f"{done} files are open, then errno {code}; {used(cl) >> 20} MiB of {LIMIT >> 20} MiB")
    assert code == errno.ENFILE and 500 < done < LIMIT // VALUE
    assert used(cl) <= LIMIT
    serves(other, "/served")
    assert used(cl) <= LIMIT
    line = lambda: next(iter(details(cl, "MDS_CLIENT_RECALL")), "")
    eventually(line, timeout=90, what="a complaint of the client")
    assert line().startswith("mds.a(mds.0): Client ") and line().endswith(
        f" failing to respond to cache pressure client_id: {holder.id}"
    )
    assert details(cl, "MDS_CACHE_OVERSIZED") == []
    assert holder.do("close") == (0, 0)
    eventually(lambda: not line(), timeout=90, what="the complaint to end")
    done, code = holder.do("hold", "/held", 200)
    assert (done, code) == (200, 0)
    assert holder.do("close") == (0, 0)
    assert used(cl) <= LIMIT


def test_a_client_that_only_looks_sees_all(cl, servers, holder, other):
    """More than the memory holds, by a client that would keep all of it."""
    other.mkdir("/seen", 0o755)
    for part in range(4):
        other.mkdir(f"/seen/{part}", 0o755)
        assert holder.do("hold", f"/seen/{part}", 500) == (500, 0)
        assert holder.do("close") == (0, 0)
        assert used(cl) <= LIMIT
    for part in range(4):
        assert holder.do("look", f"/seen/{part}", 500) == (500, 0)
        assert used(cl) <= LIMIT
    eventually(lambda: not details(cl, "MDS_CLIENT_RECALL"), timeout=90, what="no complaint of a client that gives back")


def test_a_limit_below_what_clients_hold_is_told(cl, servers, holder, other):
    set_limit(cl, 4 * LIMIT)
    cl.run("ceph", "config", "set", "mds", "mds_health_cache_threshold", "1")
    try:
        other.mkdir("/large", 0o755)
        assert holder.do("hold", "/large", 1_800) == (1_800, 0)
        assert details(cl, "MDS_CACHE_OVERSIZED") == []
        set_limit(cl, LIMIT)
        line = lambda: next(iter(details(cl, "MDS_CACHE_OVERSIZED")), "")
        eventually(line, what="a complaint of the memory")
        assert line().startswith("mds.a(mds.0): MDS cache is too large (") and "/64MB); " in line()
        assert " inodes in use by clients, " in line() and line().endswith(" stray files")
        assert holder.do("close") == (0, 0)
        eventually(lambda: not line(), timeout=90, what="the complaint to end")
        eventually(lambda: used(cl) <= LIMIT, what="memory below the limit")
        serves(other, "/after")
    finally:
        set_limit(cl, LIMIT)
        cl.run("ceph", "config", "rm", "mds", "mds_health_cache_threshold")
