"""Subvolumes and other directories that move between two ranks of `siphon mds`, as stock clients see it: under load, and
with the end of either server."""
import json
import os
import threading

import pytest

from conftest import CHROOT, eventually

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="the metadata server runs outside of the chroot")
cephfs = pytest.importorskip("cephfs")
from file_systems import PATIENCE, mounted, read, write
from test_fs_ranks import cl, held_by, holder, listing, rank_of, servers  # noqa: F401


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


def lose(servers, rank):
    """A rank loses its server, and gets another one."""
    if rank is None:
        return
    ends = holder(servers, rank)
    servers.kill(ends)
    eventually(lambda: holder(servers, rank) not in (None, ends), timeout=PATIENCE, what="the rank taken over")
    servers.start(ends)


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
            lose(servers, victim)
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


@pytest.mark.parametrize("victim", [None, 0, 1])
def test_a_directory_moves_there_and_back(cl, servers, victim):
    fs = mounted(cl)
    top, aside = f"/tree{victim}", f"/aside{victim}"
    fs.mkdir(top, 0o755)
    fs.mkdir(aside, 0o755)
    content = {}
    for d in range(10):
        fs.mkdir(f"{top}/d{d}", 0o750)
        for i in range(55):
            at = f"{top}/d{d}/f{i}"
            content[at] = f"{d}.{i}".encode()
            write(fs, at, content[at])
        # Numbers that stay are between those that go.
        write(fs, f"{aside}/f{d}", b"aside")
    fs.mkdirs(f"{top}/deep/er/and", 0o755)
    fs.link(f"{top}/d0/f0", f"{aside}/of the tree")
    fs.link(f"{aside}/f0", f"{top}/of another")
    fs.symlink("d0/f1", f"{top}/symbolic")
    # What a client has open, and changes meanwhile.
    fd = fs.open(f"{top}/deep/er/open", os.O_RDWR | os.O_CREAT, 0o644)
    load = Load(cl, f"{top}/deep/er/and")
    load.start()
    assert (rank_of(fs, top), held_by(fs, top)) == (0, 0)
    try:
        for n, (pin, rank) in enumerate([(b"1", 1), (b"0", 0), (b"1", 1), (b"-1", 0)]):
            eventually(lambda: load.error or load.made > 10 * n, timeout=PATIENCE, what="some files")
            fs.setxattr(top, "ceph.dir.pin", pin, 0)
            lose(servers, victim)
            eventually(lambda: held_by(fs, top) == rank, timeout=PATIENCE, what=lambda: f"{top} with rank {rank}: {load.error}")
            made = load.made
            eventually(lambda: load.error or load.made > made + 5, timeout=PATIENCE, what="more files")
            assert load.error is None, load.error
            assert held_by(fs, f"{top}/deep/er") == rank and held_by(fs, aside) == 0
            assert fs.write(fd, b"%d, " % n, 3 * n) == 3
            write(fs, f"{aside}/of the tree", f"0.0 {n}".encode(), flags=os.O_WRONLY | os.O_TRUNC)
            content[f"{top}/d0/f0"] = f"0.0 {n}".encode()
            at = f"{top}/d1/new{n}"
            content[at] = b"new"
            write(fs, at, b"new")
            # A name goes to the other rank, and one comes from it.
            fs.rename(f"{top}/d2/f{n}", f"{aside}/moved{n}")
            content[f"{aside}/moved{n}"] = content.pop(f"{top}/d2/f{n}")
            fs.rename(f"{aside}/f{n + 1}", f"{top}/d2/came{n}")
            content[f"{top}/d2/came{n}"] = b"aside"
    finally:
        load.done.set()
        load.join(PATIENCE)
    assert load.error is None and not load.is_alive(), load.error
    fs.fsync(fd, False)
    fs.close(fd)
    other = mounted(cl)
    for client in (other, fs):
        check(client, load)
        for at, expected in content.items():
            assert read(client, at) == expected, at
        assert read(client, f"{top}/deep/er/open") == b"0, 1, 2, 3, "
        assert read(client, f"{top}/of another") == read(client, f"{aside}/f0") == b"aside"
        assert client.stat(f"{aside}/of the tree").st_ino == client.stat(f"{top}/d0/f0").st_ino
        assert [client.stat(f"{d}").st_nlink for d in (f"{top}/d0/f0", f"{aside}/f0")] == [2, 2]
        assert client.readlink(f"{top}/symbolic", 100) == b"d0/f1"
        assert set(listing(client, top)) == {f"d{d}" for d in range(10)} | {"deep", "of another", "symbolic"}
        assert len(listing(client, f"{top}/d2")) == 55
        client.unmount()
        client.shutdown()
