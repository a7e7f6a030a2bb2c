"""Subvolumes that move between two ranks of `siphon mds`, as stock clients see it: under load, and with the end of either
server."""
import json
import threading

import pytest

from conftest import CHROOT, eventually

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="the metadata server runs outside of the chroot")
cephfs = pytest.importorskip("cephfs")
from file_systems import PATIENCE, mounted, read, write
from test_fs_ranks import cl, holder, listing, servers  # noqa: F401


@pytest.fixture(scope="module")
def run(cl, servers):
    """Commands of the volumes module, as `ceph` sends them."""
    cl.command(prefix="mgr stat")

    def run(prefix, **args):
        command = {"prefix": prefix, "target": ["mon-mgr", ""], "vol_name": "cephfs", **args}
        code, out, text = cl.admin.mgr_command(json.dumps(command), b"")
        assert code == 0, text
        return out.decode().strip()

    return run


def served(cl, servers, rank, name):
    """How many requests of a subvolume a rank has carried out."""
    tenants = cl.ceph_json("tell", f"mds.{holder(servers, rank)}", "dump_qos")["tenants"]
    return sum(t["served"] for t in tenants if t["tenant"].endswith("/" + name))


class Load(threading.Thread):
    """A client that makes, renames and removes files of a subvolume, and knows what was answered."""

    def __init__(self, cl, top):
        super().__init__()
        self.cl, self.top, self.done, self.error, self.made = cl, top, threading.Event(), None, 0

    def run(self):
        try:
            fs = mounted(self.cl)
            fs.mkdir(self.top + "/d", 0o755)
            while not self.done.is_set():
                i = self.made
                write(fs, f"{self.top}/d/new{i}", f"{i}".encode() * 10)
                fs.rename(f"{self.top}/d/new{i}", f"{self.top}/f{i}")
                if i % 3 == 0:
                    fs.link(f"{self.top}/f{i}", f"{self.top}/d/l{i}")
                    fs.unlink(f"{self.top}/f{i}")
                self.made += 1
            fs.unmount()
            fs.shutdown()
        except BaseException as e:
            self.error = e


def check(fs, load):
    links = [i for i in range(load.made) if i % 3 == 0]
    assert set(listing(fs, load.top)) == {"d"} | {f"f{i}" for i in range(load.made) if i % 3}
    assert set(listing(fs, load.top + "/d")) == {f"l{i}" for i in links}
    for i in range(load.made):
        name = f"d/l{i}" if i % 3 == 0 else f"f{i}"
        assert read(fs, f"{load.top}/{name}") == f"{i}".encode() * 10


def goes_to(cl, servers, load, name, rank):
    """The subvolume is carried out by one rank, and by the other one no more."""
    def moved():
        before, made = [served(cl, servers, r, name) for r in (0, 1)], load.made
        eventually(lambda: load.error or load.made > made + 5, timeout=PATIENCE, what="more files")
        after = [served(cl, servers, r, name) for r in (0, 1)]
        return after[rank] > before[rank] + 10 and load.error is None
    eventually(moved, timeout=PATIENCE, what=lambda: f"{name} with rank {rank}: {load.error}")


@pytest.mark.parametrize("victim", [None, 0, 1])
def test_a_subvolume_moves_there_and_back(cl, servers, run, victim):
    name = f"v{victim}"
    run("fs subvolume create", sub_name=name)
    top = run("fs subvolume getpath", sub_name=name)
    load = Load(cl, top)
    load.start()
    fs = mounted(cl)
    try:
        eventually(lambda: load.error or load.made > 10, timeout=PATIENCE, what="some files")
        for rank in (1, 0):
            run("fs subvolume pin", sub_name=name, pin_type="export", pin_setting=str(rank))
            if victim is not None:
                ends = holder(servers, victim)
                servers.kill(ends)
                eventually(lambda: holder(servers, victim) not in (None, ends), timeout=PATIENCE, what="the rank taken over")
                servers.start(ends)
            goes_to(cl, servers, load, name, rank)
            # What another client has not seen before.
            fs.stat(f"{top}/d")
    finally:
        load.done.set()
        load.join(PATIENCE)
    assert load.error is None and not load.is_alive()
    check(fs, load)
    fs.unmount()
    fs.shutdown()
