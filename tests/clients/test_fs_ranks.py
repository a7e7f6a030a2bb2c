"""A file system with two ranks of `siphon mds`, as stock clients see it: pins, changes over ranks, and the end of either
server."""
import errno
import json
import os
import shutil
import subprocess
import threading

import pytest

from conftest import CHROOT, eventually

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="the metadata server runs outside of the chroot")
cephfs = pytest.importorskip("cephfs")
from file_systems import PATIENCE, Servers, fuse, mounted, read, write

FUSE = os.path.exists("/dev/fuse") and shutil.which("ceph-fuse") is not None


@pytest.fixture(scope="module")
def cl(siphon_factory):
    from conftest import Cluster
    c = siphon_factory()
    c.start()
    return Cluster(c.conf, "default")


@pytest.fixture(scope="module")
def servers(cl, tmp_path_factory):
    """Two ranks and a server that waits."""
    s = Servers(cl, tmp_path_factory.mktemp("mds"), "siphon")
    if s.stock:
        pytest.skip("ranks of siphon mds")
    for pool in ("cephfs_metadata", "cephfs_data"):
        cl.command(prefix="osd pool create", pool=pool, pg_num=8)
    cl.command(prefix="config set", who="mon", name="mds_beacon_grace", value="5")
    cl.command(prefix="fs new", fs_name="cephfs", metadata="cephfs_metadata", data="cephfs_data")
    s.start("a")
    eventually(lambda: s.active() == "a", what="an active metadata server")
    # A directory from the time with one rank.
    fs = mounted(cl)
    fs.mkdir("/old", 0o755)
    write(fs, "/old/file", b"old")
    s.start("b")
    eventually(lambda: s.states().get("b") == (None, "up:standby"), what="a metadata server that waits")
    cl.command(prefix="fs set", fs_name="cephfs", var="max_mds", val="2")
    eventually(lambda: s.states().get("b") == (1, "up:active"), what="a second rank")
    s.start("c")
    eventually(lambda: s.states().get("c") == (None, "up:standby"), what="a third server that waits")
    fs.unmount()
    fs.shutdown()
    yield s
    for name in list(s.daemons):
        s.kill(name)


@pytest.fixture(scope="module")
def clients(cl, servers):
    both = mounted(cl), mounted(cl)
    yield both
    for fs in both:
        fs.unmount()
        fs.shutdown()


def holder(servers, rank):
    return next((n for n, (r, state) in servers.states().items() if (r, state) == (rank, "up:active")), None)


def rank_of(fs, path):
    """The owner that an inode number says: the rank that made it, where no rank was given up."""
    space = fs.stat(path).st_ino >> 40
    return space - 0x80 if 0x81 <= space < 0xc0 else 0


def held_by(fs, path):
    """The owner that has a directory: it gives new files their numbers."""
    probe = f"{path}/.probe"
    write(fs, probe, b"")
    owner = rank_of(fs, probe)
    fs.unlink(probe)
    return owner


def made_by(fs, top, name, rank):
    """A directory that another rank makes. It has no pin, and stays there."""
    fs.setxattr(top, "ceph.dir.pin.distributed", b"1", 0)
    for i in range(200):
        fs.mkdir(f"{top}/try{i}", 0o755)
        if rank_of(fs, f"{top}/try{i}") == rank:
            break
        fs.rmdir(f"{top}/try{i}")
    else:
        pytest.fail(f"no directory of 200 is of rank {rank}")
    fs.setxattr(top, "ceph.dir.pin.distributed", b"0", 0)
    fs.rename(f"{top}/try{i}", f"{top}/{name}")
    return f"{top}/{name}"


def listing(fs, path):
    found = {}
    d = fs.opendir(path)
    while (entry := fs.readdir(d)) is not None:
        found[entry.d_name.decode()] = entry
    fs.closedir(d)
    return {n: e for n, e in found.items() if n not in (".", "..")}


@pytest.fixture
def pinned(request, clients):
    """A directory of rank 0, and one in it of rank 1."""
    fs = clients[0]
    top = "/" + request.node.name
    fs.mkdir(top, 0o755)
    return top, made_by(fs, top, "one", 1)


def test_both_ranks_are_shown(cl, servers, clients):
    status = cl.run("ceph", "fs", "status", "cephfs").stdout
    lines = [line.split() for line in status.decode().splitlines()]
    ranks = {int(f[0]): f[1:3] for f in lines if f and f[0].isdigit()}
    assert ranks == {0: ["active", "a"], 1: ["active", "b"]}, status
    assert ["c"] in lines
    assert cl.ceph_json("tell", "mds.b", "status")["whoami"] == 1


def test_pins_say_where_directories_go(clients, pinned):
    top, one = pinned
    fs, other = clients
    for client in clients:
        assert (rank_of(client, top), rank_of(client, one)) == (0, 1)
        assert (held_by(client, top), held_by(client, one)) == (0, 1)
    fs.mkdir(one + "/below", 0o750)
    assert rank_of(other, one + "/below") == 1, "what is below stays with its rank"
    assert other.stat(one + "/below").st_mode & 0o777 == 0o750
    write(fs, one + "/below/file", b"to and fro")
    for rank in (0, 1, 0):
        fs.setxattr(one, "ceph.dir.pin", b"%d" % rank, 0)
        eventually(lambda: held_by(other, one + "/below") == rank, what=f"{one} with rank {rank}")
        assert rank_of(other, one) == rank_of(other, one + "/below") == 1, "numbers stay"
        assert read(other, one + "/below/file") == b"to and fro"
        fs.mkdir(f"{one}/new{rank}", 0o755)
        assert rank_of(other, f"{one}/new{rank}") == rank
        fs.rmdir(f"{one}/new{rank}")
    # A rank that is not there makes none, and gets none.
    fs.setxattr(top, "ceph.dir.pin", b"7", 0)
    fs.mkdir(top + "/zero", 0o755)
    assert (rank_of(other, top + "/zero"), held_by(other, top)) == (0, 0)


def test_directories_are_spread(cl, servers, clients, pinned):
    top, one = pinned
    fs, other = clients
    ranks = lambda at, n, name: [rank_of(other, f"{at}/{name}{i}") for i in range(n) if fs.mkdir(f"{at}/{name}{i}", 0o755) is None]
    fs.setxattr(top, "ceph.dir.pin", b"-1", 0)
    for at in (top, one):
        fs.setxattr(at, "ceph.dir.pin.distributed", b"1", 0)
        assert other.getxattr(at, "ceph.dir.pin.distributed") == b"1"
        found = ranks(at, 40, "spread")
        assert 5 < sum(found) < 35, found
        # What is below stays with it.
        for i in (found.index(0), found.index(1)):
            assert set(ranks(f"{at}/spread{i}", 10, "below")) == {found[i]}
        fs.setxattr(at, "ceph.dir.pin.distributed", b"0", 0)
        assert set(ranks(at, 10, "near")) == {rank_of(fs, at)}
    # By chance, also below what went elsewhere by chance.
    with pytest.raises(cephfs.InvalidValue):
        fs.setxattr(top, "ceph.dir.pin.random", b"0.5", 0)
    cl.command(prefix="config set", who="mds", name="mds_export_ephemeral_random_max", value="0.5")
    try:
        def is_taken():
            try:
                fs.setxattr(top, "ceph.dir.pin.random", b"0.5", 0)
            except cephfs.InvalidValue:
                return False
            return True

        eventually(is_taken, what="a larger chance")
        assert other.getxattr(top, "ceph.dir.pin.random") == b"0.5"
        found = ranks(top, 60, "random")
        assert 3 < sum(found) < 35, found
        deep = f"{top}/random{found.index(1)}"
        below = ranks(deep, 60, "deeper")
        assert 25 < sum(below) < 57, below
    finally:
        cl.command(prefix="config rm", who="mds", name="mds_export_ephemeral_random_max")


def test_groups_that_are_pinned_have_subvolumes(cl, servers, clients):
    fs = clients[0]
    # A connection of this process.
    cl.command(prefix="mgr stat")

    def run(prefix, **args):
        command = {"prefix": prefix, "target": ["mon-mgr", ""], "vol_name": "cephfs", **args}
        code, _, text = cl.admin.mgr_command(json.dumps(command), b"")
        assert code == 0, text

    for kind, setting in (("distributed", "true"), ("export", "1"), ("random", "0.01")):
        run("fs subvolumegroup create", group_name=kind)
        run("fs subvolumegroup pin", group_name=kind, pin_type=kind, pin_setting=setting)
        for i in range(4):
            run("fs subvolume create", sub_name=f"s{i}", group_name=kind)
            assert rank_of(fs, f"/volumes/{kind}/s{i}") == 0
        run("fs subvolume pin", sub_name="s0", group_name=kind, pin_type=kind, pin_setting=setting)
    assert fs.getxattr("/volumes/distributed", "ceph.dir.pin.distributed") == b"1"
    assert fs.getxattr("/volumes/export", "ceph.dir.pin") == b"1"
    assert fs.getxattr("/volumes/random/s0", "ceph.dir.pin.random") == b"0.01"


@pytest.mark.parametrize("how", ["evict", "blocklist"])
def test_an_evicted_client_has_no_session_with_either_rank(cl, servers, clients, pinned, how):
    top, one = pinned
    fs, victim = clients[0], mounted(cl)
    fds = [victim.open(f"{at}/{how}", os.O_CREAT | os.O_RDWR, 0o644) for at in (top, one)]
    # What it keeps back is lost with it.
    for fd in fds:
        victim.write(fd, b"kept back", 0)
    me = victim.get_instance_id()
    sessions = lambda rank: {s["id"]: s for s in cl.ceph_json("tell", f"mds.{holder(servers, rank)}", "session", "ls")}
    assert me in sessions(0) and me in sessions(1)
    if how == "evict":
        cl.run("ceph", "tell", f"mds.{holder(servers, 1)}", "client", "evict", f"id={me}")
    else:
        victim_addr = sessions(0)[me]["entity"]["addr"]["addr"] + "/" + str(sessions(0)[me]["entity"]["addr"]["nonce"])
        cl.run("ceph", "osd", "blocklist", "add", victim_addr)
    for rank in (0, 1):
        eventually(lambda: me not in sessions(rank), what=lambda: f"no session with rank {rank}: {sessions(rank)}")
    # Others need not wait for it.
    for at in (top, one):
        write(fs, f"{at}/{how}", b"mine", flags=os.O_WRONLY)
        assert read(fs, f"{at}/{how}", 4) == b"mine"
    with pytest.raises(cephfs.Error):
        victim.stat(one + "/none")
    victim.abort_conn()
    victim.shutdown()


def test_files_of_both_ranks(clients, pinned):
    top, one = pinned
    fs, other = clients
    for i in range(30):
        write(fs, f"{top}/zero{i}", b"0" * i)
        write(fs, f"{one}/one{i}", b"1" * i)
    assert set(listing(other, top)) == {"one"} | {f"zero{i}" for i in range(30)}
    assert set(listing(other, one)) == {f"one{i}" for i in range(30)}
    assert listing(other, top)["one"].d_type == 4
    for i in range(30):
        assert read(other, f"{one}/one{i}") == b"1" * i
        assert other.stat(f"{one}/one{i}").st_size == i
    # What one client changes, the other one sees.
    write(other, one + "/one3", b"changed", flags=os.O_WRONLY | os.O_TRUNC)
    assert read(fs, one + "/one3") == b"changed"
    fs.chmod(one, 0o700)
    assert other.stat(one).st_mode & 0o777 == 0o700
    with pytest.raises(cephfs.ObjectExists):
        other.open(one + "/one3", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    with pytest.raises(cephfs.ObjectNotFound):
        other.stat(one + "/none")


def test_renames_and_links_over_ranks(clients, pinned):
    top, one = pinned
    fs, other = clients
    write(fs, top + "/a", b"from zero")
    write(fs, one + "/b", b"from one")
    fs.rename(top + "/a", one + "/a")
    fs.rename(one + "/b", top + "/b")
    for client in clients:
        assert set(listing(client, top)) == {"one", "b"}
        assert set(listing(client, one)) == {"a"}
        assert (read(client, one + "/a"), read(client, top + "/b")) == (b"from zero", b"from one")
    fs.link(one + "/a", top + "/linked")
    assert other.stat(one + "/a").st_nlink == 2
    assert other.stat(top + "/linked").st_ino == other.stat(one + "/a").st_ino
    other.unlink(one + "/a")
    assert read(fs, top + "/linked") == b"from zero"
    assert fs.stat(top + "/linked").st_nlink == 1
    # One that is replaced by a file of the other rank.
    write(fs, one + "/over", b"old")
    fs.rename(top + "/linked", one + "/over")
    assert read(other, one + "/over") == b"from zero"
    # Directories and symbolic links stay with their rank.
    fs.mkdir(one + "/d", 0o755)
    fs.symlink("/where", one + "/s")
    for name in ("/d", "/s"):
        with pytest.raises(cephfs.Error) as e:
            fs.rename(one + name, top + name)
        assert e.value.args[0] == errno.EXDEV
    assert other.readlink(one + "/s", 100) == b"/where"
    # A directory goes when it is empty.
    with pytest.raises(cephfs.Error) as e:
        other.rmdir(one)
    assert e.value.args[0] == errno.ENOTEMPTY
    for name in ("/over", "/s"):
        other.unlink(one + name)
    other.rmdir(one + "/d")
    other.rmdir(one)
    assert set(listing(fs, top)) == {"b"}
    with pytest.raises(cephfs.ObjectNotFound):
        fs.stat(one)


class Load(threading.Thread):
    """A client that makes files of both ranks until it is told to stop, and knows what was answered."""

    def __init__(self, cl, top, one, first=0):
        super().__init__()
        self.cl, self.top, self.one, self.first = cl, top, one, first
        self.done, self.error, self.made = threading.Event(), None, []

    def run(self):
        try:
            fs = mounted(self.cl)
            i = self.first
            while not self.done.is_set():
                name = f"f{i}"
                write(fs, f"{self.top}/{name}", name.encode())
                write(fs, f"{self.one}/{name}.one", name.encode())
                if i % 3 == 0:
                    fs.rename(f"{self.top}/{name}", f"{self.one}/{name}")
                if i % 5 == 0:
                    fs.mkdir(f"{self.top}/d{i}", 0o755)
                self.made.append(i)
                i += 1
            fs.unmount()
            fs.shutdown()
        except BaseException as e:
            self.error = e


def assert_files_are_there(fs, load):
    top, one = load.top, load.one
    assert len(load.made) == load.made[-1] + 1 - load.first
    for i in load.made:
        at = one if i % 3 == 0 else top
        assert read(fs, f"{at}/f{i}") == f"f{i}".encode()
        assert read(fs, f"{one}/f{i}.one") == f"f{i}".encode()


def assert_all_is_there(fs, load):
    top, one = load.top, load.one
    assert_files_are_there(fs, load)
    count = len(load.made)
    thirds, fifths = len([i for i in load.made if i % 3 == 0]), len([i for i in load.made if i % 5 == 0])
    assert len(listing(fs, one)) == count + thirds
    assert len(listing(fs, top)) == 1 + count - thirds + fifths


@pytest.mark.parametrize("rank", [1, 0])
def test_the_end_of_either_server(cl, servers, clients, pinned, rank):
    top, one = pinned
    clients[0].setxattr(top, "ceph.dir.pin.distributed", b"1", 0)
    load = Load(cl, top, one)
    load.start()
    try:
        eventually(lambda: load.error or len(load.made) > 20, what="some files")
        victim, waits = holder(servers, rank), next(n for n, (r, _) in servers.states().items() if r is None)
        servers.kill(victim)
        eventually(lambda: holder(servers, rank) == waits, timeout=PATIENCE, what="the rank taken over")
        made = len(load.made)
        eventually(lambda: load.error or len(load.made) > made + 20, timeout=PATIENCE, what="more files")
    finally:
        load.done.set()
        load.join(PATIENCE)
    assert load.error is None and not load.is_alive()
    fs = clients[1]
    assert {rank_of(fs, f"{top}/d{i}") for i in load.made[::5]} == {0, 1}
    assert_all_is_there(fs, load)
    servers.start(victim)
    eventually(lambda: servers.states().get(victim) == (None, "up:standby"), what="a server that waits again")


@pytest.mark.skipif(not FUSE, reason="no FUSE here")
def test_a_mounted_tree(cl, servers, clients, pinned, tmp_path):
    top, one = pinned
    with fuse(cl, tmp_path):
        here = tmp_path / one[1:]
        (here / "sub").mkdir()
        (here / "sub/file").write_text("text")
        os.rename(here / "sub/file", here.parent / "file")
        os.link(here.parent / "file", here / "again")
        assert (here.parent / "file").read_text() == (here / "again").read_text() == "text"
        subprocess.run(["cp", "-r", str(here), str(here.parent / "copy")], check=True, timeout=PATIENCE)
        subprocess.run(["diff", "-r", str(here), str(here.parent / "copy")], check=True, timeout=PATIENCE)
        shutil.rmtree(here.parent / "copy")
        assert sorted(os.listdir(here.parent)) == ["file", "one"]
    assert read(clients[1], top + "/file") == b"text"


def test_ranks_stop_and_come_back(cl, servers, clients, pinned):
    top, one = pinned
    fs = clients[0]
    write(fs, one + "/file", b"kept")
    write(fs, top + "/file", b"kept as well")
    for name in ("a", "b", "c"):
        if servers.states().get(name, (None, ""))[0] is not None:
            cl.run("ceph", "tell", f"mds.{name}", "flush", "journal")
    cl.command(prefix="fs fail", fs_name="cephfs")
    eventually(lambda: holder(servers, 0) is None and holder(servers, 1) is None, what="no rank")
    cl.command(prefix="fs set", fs_name="cephfs", var="joinable", val="true")
    eventually(lambda: holder(servers, 0) and holder(servers, 1), timeout=PATIENCE, what="both ranks again")
    assert read(clients[1], one + "/file") == b"kept"
    assert read(clients[1], top + "/file") == b"kept as well"
    assert [held_by(fs, d) for d in (top, one)] == [0, 1]
    made_by(fs, top, "two", 1)
    assert read(fs, "/old/file") == b"old"


def down(cl, servers):
    """All ranks stop."""
    cl.command(prefix="fs set", fs_name="cephfs", var="down", val="true")
    ranks = lambda: {n: s for n, s in servers.states().items() if s[0] is not None}
    eventually(lambda: not ranks(), timeout=PATIENCE, what=lambda: f"no rank: {ranks()}")
    m = cl.ceph_json("fs", "get", "cephfs")["mdsmap"]
    assert (m["in"], m["failed"], m["damaged"], m["stopped"]) == ([], [], [], [0, 1]), m


def up(cl, servers):
    cl.command(prefix="fs set", fs_name="cephfs", var="down", val="false")
    eventually(lambda: holder(servers, 0) and holder(servers, 1), timeout=PATIENCE, what=lambda: f"both ranks: {servers.states()}")


def test_all_ranks_stop_together_and_come_back(cl, servers, clients, pinned):
    """Down when clients have just stopped: each rank has to tell the other one what it knows of directories in that one's,
    and clients keep back what they wrote."""
    top, one = pinned
    fs, other = clients
    # A part of each rank in one of the other.
    zero, deep = one + "/zero", one + "/zero/deep"
    made_by(fs, one, "zero", 0)
    made_by(fs, zero, "deep", 1)
    assert [rank_of(fs, d) for d in (top, one, zero, deep)] == [0, 1, 0, 1]
    loads = [Load(cl, top, one), Load(cl, zero, deep)]
    fds = {d: other.open(d + "/open", os.O_RDWR | os.O_CREAT, 0o644) for d in (top, one, zero, deep)}
    for night in ("down, and up", "down, failed, and up"):
        for load in loads:
            load.start()
        try:
            eventually(lambda: any(l.error for l in loads) or all(len(l.made) > 20 for l in loads), what="some files")
            for d, fd in fds.items():
                assert other.write(fd, d.encode(), 0) == len(d)
        finally:
            for load in loads:
                load.done.set()
                load.join(PATIENCE)
        assert not any(l.error or l.is_alive() for l in loads), [l.error for l in loads]
        down(cl, servers)
        if night == "down, failed, and up":
            cl.command(prefix="fs fail", fs_name="cephfs")
            cl.command(prefix="fs set", fs_name="cephfs", var="joinable", val="true")
        lower = cl.run("ceph", "fs", "set", "cephfs", "max_mds", "1", check=False)
        assert lower.returncode == errno.EBUSY and b"rank 1 of cephfs has stopped and has directories" in lower.stderr
        up(cl, servers)
        new = mounted(cl)
        for load in loads:
            assert_files_are_there(new, load)
        for d, fd in fds.items():
            assert read(new, d + "/open") == d.encode()
        # A file that was renamed to a directory of another rank counts where that rank keeps it.
        moved = {f"f{i}" for l in loads for i in range(l.made[-1] + 1) if i % 3 == 0}
        files = {d: sum(1 for n, e in listing(new, d).items() if not e.is_dir() and n not in moved) for d in fds}
        below = 0
        for d in (deep, zero, one, top):
            below += files[d]
            # What a rank knows of directories below another one's comes with the next report.
            eventually(lambda: int(new.getxattr(d, "ceph.dir.rfiles")) == below, what=f"{below} files below {d}")
        new.unmount()
        new.shutdown()
        loads = [Load(cl, l.top, l.one, l.made[-1] + 1) for l in loads]
    for d in fds:
        write(other, d + "/open", b"after", flags=os.O_WRONLY | os.O_TRUNC)
        assert read(fs, d + "/open") == b"after"


def test_a_server_ends_while_all_ranks_stop(cl, servers, clients, pinned):
    top, one = pinned
    fs = clients[0]
    for rank in (1, 0):
        load = Load(cl, top, one, 1_000 * rank)
        load.start()
        try:
            eventually(lambda: load.error or len(load.made) > 10, what="some files")
        finally:
            load.done.set()
            load.join(PATIENCE)
        assert load.error is None and not load.is_alive()
        victim = holder(servers, rank)
        cl.command(prefix="fs set", fs_name="cephfs", var="down", val="true")
        servers.kill(victim)
        down(cl, servers)
        servers.start(victim)
        eventually(lambda: servers.states().get(victim) == (None, "up:standby"), what="a server that waits again")
        up(cl, servers)
        assert_files_are_there(fs, load)


# From here on rank 1 is another owner.
def test_fewer_ranks_under_load(cl, servers, clients, pinned):
    """Rank 0 takes over what rank 1 has, while a client goes on and another one has a file of it open."""
    top, one = pinned
    fs, other = clients
    # A part of rank 0 in one of rank 1.
    fs.mkdir("/held", 0o755)
    held = made_by(fs, "/held", "one", 1)
    made_by(fs, held, "zero", 0)
    assert (rank_of(fs, held), rank_of(fs, held + "/zero")) == (1, 0)
    write(fs, held + "/zero/file", b"zero")
    fd = fs.open(held + "/open", os.O_RDWR | os.O_CREAT, 0o644)
    assert fs.write(fd, b"before, ", 0) == 8
    stopped = holder(servers, 1)
    load = Load(cl, top, one)
    load.start()
    try:
        eventually(lambda: load.error or len(load.made) > 20, what="some files")
        cl.command(prefix="fs set", fs_name="cephfs", var="max_mds", val="1")
        ranks = lambda: [r for r, _ in servers.states().values() if r is not None]
        eventually(lambda: ranks() == [0], timeout=PATIENCE, what=lambda: f"one rank: {servers.states()}")
        made = len(load.made)
        eventually(lambda: load.error or len(load.made) > made + 20, timeout=PATIENCE, what="more files")
    finally:
        load.done.set()
        load.join(PATIENCE)
    assert load.error is None and not load.is_alive(), load.error
    assert fs.write(fd, b"after", 8) == 5
    fs.fsync(fd, False)
    fs.close(fd)
    eventually(lambda: servers.states().get(stopped) == (None, "up:standby"), what="a server that waits again")
    for server in ("as it is", "a successor"):
        assert_all_is_there(other, load)
        assert read(other, held + "/open") == b"before, after"
        assert read(other, held + "/zero/file") == b"zero"
        # Also after a failover, and what is a directory of rank 0 alone is renamed.
        fs.rename(held + "/zero", "/held/zero")
        fs.rename("/held/zero", held + "/zero")
        if server == "as it is":
            active = servers.active()
            servers.kill(active)
            eventually(lambda: servers.active() not in (None, active), timeout=PATIENCE, what="rank 0 taken over")
    files = sum(1 for d in (top, one) for e in listing(fs, d).values() if not e.is_dir())
    assert (int(fs.getxattr(top, "ceph.dir.rfiles")), int(fs.getxattr("/held", "ceph.dir.rfiles"))) == (files, 2)


class Comers(threading.Thread):
    """A client that makes directories pinned to ranks that may or may not be there, and files in them, moves some and
    removes some. It knows what was answered."""

    def __init__(self, cl, top):
        super().__init__()
        self.cl, self.top = cl, top
        self.done, self.error, self.made, self.rounds = threading.Event(), None, {}, 0

    def run(self):
        try:
            fs = mounted(self.cl)
            dirs = []
            while not self.done.is_set():
                i = self.rounds
                at = f"{self.top}/p{i % 3}/d{i}"
                fs.mkdir(at, 0o755)
                dirs.append(at)
                for name in ("kept", "moved", "linked", "removed"):
                    write(fs, f"{at}/{name}", f"{name}{i}".encode())
                # To directories of other ranks, and of ranks that were given up.
                there = dirs[i * 7 % len(dirs)]
                fs.rename(f"{at}/moved", f"{there}/moved{i}")
                fs.link(f"{at}/linked", f"{there}/linked{i}")
                fs.unlink(f"{at}/linked")
                fs.unlink(f"{at}/removed")
                self.made.update({f"{at}/kept": f"kept{i}", f"{there}/moved{i}": f"moved{i}", f"{there}/linked{i}": f"linked{i}"})
                self.rounds += 1
            fs.unmount()
            fs.shutdown()
        except BaseException as e:
            self.error = e

    def goes_on(self, rounds=5):
        before = self.rounds
        eventually(lambda: self.error or self.rounds > before + rounds, timeout=PATIENCE, what="more rounds")
        assert self.error is None, self.error


def assert_made_is_there(fs, load):
    found = {}
    for p in range(3):
        for d in listing(fs, f"{load.top}/p{p}"):
            at = f"{load.top}/p{p}/{d}"
            found.update({f"{at}/{name}": at for name in listing(fs, at)})
    assert found.keys() == load.made.keys()
    for path, content in load.made.items():
        assert read(fs, path) == content.encode(), path


def set_ranks(cl, n):
    cl.command(prefix="fs set", fs_name="cephfs", var="max_mds", val=str(n))


def test_ranks_come_and_go_under_load(cl, servers, clients):
    """Ranks are given up and added again while a client goes on, and servers end at each step."""
    fs, other = clients
    for name in {*"abcd"} - servers.daemons.keys():
        servers.start(name)
    top, owners = "/again", set()
    fs.mkdir(top, 0o755)
    for p in range(3):
        fs.mkdir(f"{top}/p{p}", 0o755)
        fs.setxattr(f"{top}/p{p}", "ceph.dir.pin", str(p).encode(), 0)
    states = lambda: sorted((r, state) for r, state in servers.states().values() if r is not None)
    settled = lambda n: states() == [(r, "up:active") for r in range(n)]
    waits = lambda n: eventually(lambda: settled(n), timeout=2 * PATIENCE, what=lambda: f"{n} ranks: {servers.states()}")
    load = Comers(cl, top)
    load.start()
    # The number of ranks, and the rank that loses its server when it has been said.
    steps = [(2, None), (1, None), (2, 0), (1, 1), (3, None), (1, 2), (3, 1), (1, 0), (2, "fail"), (1, "down"), (3, None)]
    try:
        for n, (ranks, fault) in enumerate(steps):
            set_ranks(cl, ranks)
            if fault == "fail":
                cl.command(prefix="fs fail", fs_name="cephfs")
                cl.command(prefix="fs set", fs_name="cephfs", var="joinable", val="true")
            elif fault == "down":
                # It leaves all the same, and there are to be two ranks again before it has.
                set_ranks(cl, 2)
                cl.command(prefix="fs set", fs_name="cephfs", var="down", val="true")
                eventually(lambda: states() == [], timeout=2 * PATIENCE, what=lambda: f"no rank: {servers.states()}")
                cl.command(prefix="fs set", fs_name="cephfs", var="down", val="false")
                ranks = 2
            elif fault is not None:
                holders = {r: name for name, (r, _) in servers.states().items() if r is not None}
                victim = holders[min(fault, max(holders))]
                servers.kill(victim)
                eventually(lambda: victim not in servers.states(), timeout=PATIENCE, what="a server that is known to be gone")
                servers.start(victim)
            waits(ranks)
            load.goes_on()
            for r in range(1, ranks):
                # A directory that is pinned to the rank goes there, and gets numbers that no rank had that was given up.
                at = f"{top}/p{r}"
                eventually(lambda: held_by(fs, at) != 0, timeout=PATIENCE, what=f"{at} with rank {r}")
                owners.add((n, r, held_by(fs, at)))
        load.goes_on(20)
    finally:
        load.done.set()
        load.join(PATIENCE)
    assert load.error is None and not load.is_alive(), load.error
    assert_made_is_there(other, load)
    last = {r: owner for n, r, owner in owners if n == len(steps) - 1}
    assert len(set(last.values())) == 2 and min(last.values()) > 2, owners
    # Feature 61 says the same.
    noted = cl.ceph_json("fs", "get", "cephfs")["mdsmap"]["compat"]["compat"]["feature_61"]
    assert noted.startswith("siphon owners: 0=0," + ",".join(f"{r}={owner}" for r, owner in sorted(last.items())) + " next "), noted
    # A successor of each rank has the same.
    for r in range(3):
        victim = holder(servers, r)
        servers.kill(victim)
        eventually(lambda: victim not in servers.states() and settled(3), timeout=2 * PATIENCE, what=lambda: f"ranks: {servers.states()}")
        servers.start(victim)
        eventually(lambda: servers.states().get(victim) == (None, "up:standby"), what="a server that waits again")
    new = mounted(cl)
    assert_made_is_there(new, load)
    new.unmount()
    new.shutdown()
