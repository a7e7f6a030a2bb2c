"""Metadata servers for tests, and what tests do with a file system.

The server is the one that the tests say, or with SIPHON_TEST_MDS the one that this names: `stock` for an unmodified
`ceph-mds`, `siphon` for `siphon mds`.
"""
import contextlib
import os
import shutil
import subprocess

import cephfs
import pytest

from conftest import BINARY, Cluster, eventually

PATIENCE = 60


def is_stock(server):
    """Whether the server is a stock one, if tests ask for `server`."""
    return os.environ.get("SIPHON_TEST_MDS", server) == "stock"


class Servers:
    """The metadata servers of a cluster."""

    def __init__(self, cluster, directory, server="stock"):
        self.cluster, self.directory, self.daemons = cluster, directory, {}
        self.stock = is_stock(server)

    def argv(self, name):
        data = self.directory / f"mds.{name}"
        data.mkdir(exist_ok=True)
        self.cluster.run("ceph", "auth", "get-or-create", f"mds.{name}", "mon", "allow profile mds", "mgr", "allow profile mds",
                         "mds", "allow *", "osd", "allow rwx", "-o", data / "keyring")
        if self.stock:
            return ["ceph-mds", "-f", "-i", name, "-c", str(self.cluster.conf), "--keyring", str(data / "keyring"), "--mds-data",
                    str(data), "--log-file", str(data / "log"), "--admin-socket", str(data / "asok"), "--run-dir", str(data),
                    # What others wait for goes into the journal with a tick, if not sooner.
                    "--mds_tick_interval=1"]
        # A node of the cluster with metadata servers alone.
        (self.directory / "run").mkdir(exist_ok=True)
        home = self.cluster.conf.parent
        for file in ("cluster.json", "ceph.conf"):
            (self.directory / file).write_text((home / file).read_text().replace(str(home), str(self.directory)))
        return [str(BINARY), "mds", "--data-dir", str(self.directory), "--name", name]

    def start(self, name):
        argv = self.argv(name)
        output = open(self.directory / f"mds.{name}/output", "ab")
        # What a takeover found is told as well.
        environment = {"SIPHON_LOG": "warn,mdsd=info", **os.environ}
        self.daemons[name] = subprocess.Popen(argv, stdout=output, stderr=output, env=environment)

    def kill(self, name):
        self.daemons[name].kill()
        self.daemons.pop(name).wait()

    def states(self):
        """The daemons: name, rank and state."""
        found = {}
        m = self.cluster.ceph_json("fs", "dump")
        for s in m["standbys"]:
            found[s["name"]] = (None, s["state"])
        for fs in m["filesystems"]:
            found.update({i["name"]: (i["rank"], i["state"]) for i in fs["mdsmap"]["info"].values()})
        return found

    def active(self):
        return next((n for n, (rank, state) in self.states().items() if (rank, state) == (0, "up:active")), None)

    def sessions(self):
        return self.cluster.ceph_json("tell", f"mds.{self.active()}", "session", "ls")


def new_cluster(siphon_factory, server="siphon"):
    """A cluster of its own for a module, if the server that the tests ask for is there."""
    needs_server(server)
    c = siphon_factory()
    c.start()
    return Cluster(c.conf, "default")


def new_servers(cl, directory, server="siphon", more=()):
    """A file system `cephfs` that has no server yet, with pools for more data, and what starts servers for it."""
    for pool in ("cephfs_metadata", "cephfs_data", *more):
        cl.command(prefix="osd pool create", pool=pool, pg_num=8)
    cl.command(prefix="fs new", fs_name="cephfs", metadata="cephfs_metadata", data="cephfs_data")
    for pool in more:
        cl.command(prefix="fs add_data_pool", fs_name="cephfs", pool=pool)
    return Servers(cl, directory, server)


def active_and_waiting(cl, directory, grace, more=()):
    """For a fixture: a file system with an active server, `a`, and one that waits, `b`, until the module's tests have ended."""
    s = new_servers(cl, directory, more=more)
    cl.command(prefix="config set", who="mon", name="mds_beacon_grace", value=str(grace))
    s.start("a")
    eventually(lambda: s.active() == "a", what="an active metadata server")
    s.start("b")
    eventually(lambda: s.states().get("b") == (None, "up:standby"), what="a metadata server that waits")
    yield s
    for name in list(s.daemons):
        s.kill(name)


def mounted(cl):
    fs = cephfs.LibCephFS(conffile=str(cl.conf))
    fs.mount()
    return fs


@contextlib.contextmanager
def fuse(cl, place):
    """The file system at a place, by ceph-fuse. Its end needs a server, and is waited for."""
    argv = ["ceph-fuse", "-f", "-c", str(cl.conf), str(place)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: os.path.ismount(place) or process.poll() is not None, timeout=PATIENCE, what=f"a mount at {place}")
        assert process.poll() is None, f"ceph-fuse ended with {process.returncode}"
        yield place
    finally:
        # Lazily, so that one that hangs ends no run.
        subprocess.run(["umount", "--lazy", str(place)], check=process.poll() is None, timeout=PATIENCE)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def write(fs, name, data, flags=os.O_WRONLY | os.O_CREAT, mode=0o644, at=0):
    fd = fs.open(name, flags, mode)
    try:
        # Libcephfs of 16.2 aborts when it is to write nothing.
        assert not data or fs.write(fd, data, at) == len(data)
    finally:
        fs.close(fd)


def read(fs, name, length=1 << 22, at=0):
    fd = fs.open(name, os.O_RDONLY, 0)
    try:
        return fs.read(fd, at, length)
    finally:
        fs.close(fd)


def needs_server(server="stock"):
    """Leaves the tests out where there is no such metadata server."""
    if is_stock(server) and shutil.which("ceph-mds") is None:
        pytest.skip("ceph-mds is not installed")
