"""Two ranks of `siphon mds` on two hosts with a network between them: the server of either may end, and the host of either
may be cut off; a server on a third host takes the rank."""
import os
from types import SimpleNamespace

import pytest

import hosts
from conftest import eventually
from test_thrash import CLIENT, SETTINGS, Admin

cephfs = pytest.importorskip("cephfs")
from file_systems import is_stock, mounted, read
from test_fs_ranks import Load, assert_all_is_there, made_by, rank_of

PATIENCE = 120
NAMES = {"h0": "a", "h1": "b", "h2": "c"}
HOST = {name: host for host, name in NAMES.items()}


@pytest.fixture(scope="module")
def three():
    if is_stock("siphon"):
        pytest.skip("ranks of siphon mds")
    with hosts.cluster("siphon-fs-hosts.", [*SETTINGS, ("mon", "mds_beacon_grace", 5)]) as h:
        c = Admin(h.conf, {"ms_client_mode": "crc"})
        for pool in ("cephfs_metadata", "cephfs_data"):
            c("osd pool create", pool=pool, pg_num=8)
        c("fs new", fs_name="cephfs", metadata="cephfs_metadata", data="cephfs_data")
        for n, (host, name) in enumerate(NAMES.items()):
            h.siphon(host, "add", "mds", "--data-dir", h.homes[host], "--name", name)
            h.place(host, f"mds.{name}").start()
            if n == 1:
                c("fs set", fs_name="cephfs", var="max_mds", val="2")
            eventually(lambda: states(c).get(name) == ((n, "up:active") if n < 2 else (None, "up:standby")), timeout=PATIENCE,
                       what=lambda: f"mds.{name}: {states(c)}")
        conf = h.base / "clients.conf"
        conf.write_text(h.conf.read_text() + "\n[client]\n" + "".join(f"{k} = {v}\n" for k, v in CLIENT.items()))
        yield h, c, SimpleNamespace(conf=conf)
        c.close()


def states(c):
    """The servers: name, rank and state."""
    m = c.json("fs dump")
    found = {s["name"]: (None, s["state"]) for s in m["standbys"]}
    for fs in m["filesystems"]:
        found.update({i["name"]: (i["rank"], i["state"]) for i in fs["mdsmap"]["info"].values()})
    return found


def holder(c, rank):
    return next((n for n, (r, state) in states(c).items() if (r, state) == (rank, "up:active")), None)


def osds_up(c):
    return sum(o["up"] for o in c.json("osd dump")["osds"])


def is_back(h, c):
    """All servers are there: two with a rank, and one that waits."""
    eventually(lambda: sorted(r if r is not None else 9 for r, s in states(c).values() if s in ("up:active", "up:standby")) == [0, 1, 9],
               timeout=PATIENCE, what=lambda: f"two ranks and a server that waits: {states(c)}")
    eventually(lambda: osds_up(c) == 6, timeout=PATIENCE, what="all OSDs")


def lose_server(h, name):
    h[f"mds.{name}"].kill()
    return lambda: h[f"mds.{name}"].start()


def lose_link(h, name):
    h.net.link(HOST[name], "down")
    return lambda: h.net.link(HOST[name], "up")


@pytest.mark.parametrize("rank", [1, 0])
@pytest.mark.parametrize("lose", [lose_server, lose_link])
def test_a_rank_loses_its_server_or_its_host(three, lose, rank):
    h, c, cl = three
    is_back(h, c)
    assert HOST[holder(c, 0)] != HOST[holder(c, 1)]
    fs = mounted(cl)
    top = f"/{lose.__name__}.{rank}"
    one = top + "/one"
    fs.mkdir(top, 0o755)
    made_by(fs, top, "one", 1)
    assert (rank_of(fs, top), rank_of(fs, one)) == (0, 1)
    # What a client keeps open over the loss.
    fds = {at: fs.open(f"{at}/open", os.O_RDWR | os.O_CREAT, 0o644) for at in (top, one)}
    for at, fd in fds.items():
        assert fs.write(fd, b"before, ", 0) == 8
    load = Load(cl, top, one)
    load.start()

    def goes_on(what):
        made = len(load.made)
        eventually(lambda: load.error or len(load.made) > made + 20, timeout=PATIENCE, what=f"more files {what}")
        assert load.error is None, load.error

    undo = None
    try:
        goes_on("before")
        victim = holder(c, rank)
        undo = lose(h, victim)
        eventually(lambda: holder(c, rank) not in (None, victim), timeout=PATIENCE, what=lambda: f"rank {rank} taken over: {states(c)}")
        goes_on("with another server")
        for at, fd in fds.items():
            assert fs.write(fd, b"after", 8) == 5
            fs.fsync(fd, False)
        undo()
        undo = None
        # The server that lost its rank knows that, and waits.
        is_back(h, c)
        assert holder(c, rank) != victim
        goes_on("with all servers")
    finally:
        if undo:
            undo()
        load.done.set()
        load.join(PATIENCE)
    assert load.error is None and not load.is_alive(), load.error
    for at, fd in fds.items():
        fs.close(fd)
    other = mounted(cl)
    for at in fds:
        assert read(other, f"{at}/open") == b"before, after"
        # It is none of the files that are counted.
        other.unlink(f"{at}/open")
    assert_all_is_there(other, load)
    for mount in (fs, other):
        mount.unmount()
        mount.shutdown()
