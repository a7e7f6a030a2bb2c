"""A file system of either server goes from `siphon mds` to an unmodified `ceph-mds` and back: nothing is lost, and the
scrub of each finds nothing wrong with what the other has written.

SIPHON_TEST_LONG makes the trees large.
"""
import errno
import os
import random
import re
import shutil
import stat
import zlib

import pytest

from conftest import CHROOT, eventually

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="the metadata server runs outside of the chroot")
cephfs = pytest.importorskip("cephfs")
from file_systems import Servers, needs_server, read, write
from test_fs_ranks import held_by, made_by

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
STEPS = 3_000 if LONG else 60


@pytest.fixture(scope="module")
def cl(siphon_factory):
    from conftest import Cluster
    needs_server("stock")
    if shutil.which("cephfs-journal-tool") is None:
        pytest.skip("cephfs-journal-tool is not installed")
    c = siphon_factory()
    c.start()
    c = Cluster(c.conf, "default")
    c.run("ceph", "fs", "flag", "set", "enable_multiple", "true")
    return c


class Exchange:
    """A file system with one server at a time."""

    def __init__(self, cl, name, directory):
        self.cl, self.name = cl, name
        self.servers = {}
        for kind in ("siphon", "stock"):
            (directory / kind).mkdir()
            self.servers[kind] = Servers(cl, directory / kind, kind)
            self.servers[kind].stock = kind == "stock"
        self.kind = None
        for pool in ("meta", "data"):
            cl.command(prefix="osd pool create", pool=f"{name}.{pool}", pg_num=8)

    def make(self, kind):
        self.start(kind)
        self.only(kind)
        self.cl.command(prefix="fs new", fs_name=self.name, metadata=f"{self.name}.meta", data=f"{self.name}.data")
        self.wait()

    def start(self, kind):
        self.kind = kind
        self.servers[kind].start(f"{self.name}-{kind}")

    def wait(self):
        name = f"{self.name}-{self.kind}"
        eventually(lambda: self.servers[self.kind].states().get(name) == (0, "up:active"),
                   what=lambda: f"{name} to be active: {self.servers[self.kind].states()}")

    def mds(self, *args):
        return self.cl.ceph_json("tell", f"mds.{self.name}-{self.kind}", *args)

    def events(self):
        """What is in the journal."""
        out = self.cl.run("cephfs-journal-tool", f"--rank={self.name}:0", "event", "get", "summary").stdout.decode()
        return {kind: int(n) for kind, n in re.findall(r"^\s+(\w+): (\d+)$", out, re.M)}

    def only(self, kind):
        """Leaves this server alone: no other one is there to get the rank."""
        name = f"{self.name}-{kind}"

        def alone():
            there = self.servers[kind].states()
            for other in there.keys() - {name}:
                # Also one that was killed, of which the monitors do not know that yet.
                self.cl.run("ceph", "mds", "fail", other, check=False)
            return there == {name: (None, "up:standby")}

        eventually(alone, what=lambda: f"{name} alone: {self.servers[kind].states()}")

    def rest(self):
        """The stock server ends with an empty journal."""
        is_empty = lambda: set(self.events()) <= {"SUBTREEMAP"}

        def empty():
            # What one flush brings to its place changes counts above it, which are in the journal then.
            self.mds("flush", "journal")
            return is_empty()

        def ended():
            eventually(empty, what=lambda: f"an empty journal: {self.events()}")
            self.cl.run("ceph", "fs", "fail", self.name)
            if is_empty():
                return True
            # It wrote to its journal in the moment between. It comes back, and is asked again.
            self.cl.run("ceph", "fs", "set", self.name, "joinable", "true")
            self.wait()

        eventually(ended, timeout=180, what=lambda: f"an empty journal: {self.events()}")

    def hand_over(self, kind, wait=True):
        if self.kind == "stock":
            self.rest()
        else:
            self.mds("flush", "journal")
            self.cl.run("ceph", "fs", "fail", self.name)
        self.servers[self.kind].kill(f"{self.name}-{self.kind}")
        if kind == "stock":
            self.cl.run("ceph", "fs", "compat", self.name, "rm_incompat", "62")
        self.start(kind)
        self.only(kind)
        self.cl.run("ceph", "fs", "set", self.name, "joinable", "true")
        if wait:
            self.wait()

    def scrub(self):
        for path in ("/",) if self.kind == "siphon" else ("/", "~mdsdir"):
            assert self.mds("scrub", "start", path, "recursive")["return_code"] == 0
            eventually(lambda: self.mds("scrub", "status")["status"] == "no active scrubs running", what="the end of a scrub")
        assert self.mds("damage", "ls") == []
        if self.kind == "stock":
            log = (self.servers["stock"].directory / f"mds.{self.name}-stock/log").read_text()
            assert "Scrub error" not in log and "bad backtrace" not in log, [s for s in log.splitlines() if "crub" in s][-20:]

    def mounted(self):
        fs = cephfs.LibCephFS(conffile=str(self.cl.conf))
        fs.mount(filesystem_name=self.name.encode())
        return fs

    def left(self, fs):
        """The client goes, and the server knows that."""
        fs.unmount()
        fs.shutdown()
        eventually(lambda: self.mds("session", "ls") == [], what=lambda: f"no sessions: {self.mds('session', 'ls')}")

    def stop(self):
        self.cl.run("ceph", "fs", "fail", self.name, check=False)
        for s in self.servers.values():
            for name in list(s.daemons):
                s.kill(name)
        # A server of the next test would take its rank.
        self.cl.run("ceph", "fs", "rm", self.name, "--yes-i-really-mean-it", check=False)


def change(fs, top, seed, steps):
    """Makes, changes, moves and removes things below a directory."""
    rng = random.Random(seed)
    fs.mkdir(top, 0o755)
    dirs, files, links = [top], [], 0
    for n in range(steps):
        at = f"{rng.choice(dirs)}/{rng.choice(('x', 'name-', 'ü.'))}{n}"
        kind = rng.choices(("dir", "file", "link", "symlink", "move", "remove", "attrs", "pipe", "write"), (5, 12, 2, 2, 3, 3, 3, 1, 4))[0]
        if kind == "dir":
            fs.mkdir(at, rng.choice((0o755, 0o711, 0o2775)))
            dirs.append(at)
        elif kind == "file":
            write(fs, at, rng.randbytes(rng.choice((0, 1, 5_000, 5 << 20 if n % 20 == 0 else 7))), mode=0o640)
            files.append(at)
        elif kind == "link" and files:
            fs.link(rng.choice(files), at)
            files.append(at)
            links += 1
        elif kind == "symlink":
            fs.symlink(rng.choice(files or ["nowhere"]), at)
        elif kind == "move" and files:
            old = files.pop(rng.randrange(len(files)))
            fs.rename(old, at)
            files.append(at)
        elif kind == "remove" and files:
            fs.unlink(files.pop(rng.randrange(len(files))))
        elif kind == "attrs":
            what = rng.choice(dirs + files)
            fs.setxattr(what, "user.n", b"%d" % n, 0)
            fs.chown(what, n % 7, n % 5)
        elif kind == "pipe":
            fs.mknod(at, stat.S_IFIFO | 0o600, 0)
        elif kind == "write" and files:
            write(fs, rng.choice(files), b"more", flags=os.O_WRONLY, at=rng.choice((0, 4 << 20)))
    fs.mkdir(f"{top}/limited", 0o755)
    fs.setxattr(f"{top}/limited", "ceph.quota.max_files", b"1000", 0)
    fs.setxattr(f"{top}/limited", "ceph.dir.layout.stripe_count", b"2", 0)
    write(fs, f"{top}/limited/f", b"striped")
    fs.mkdir(f"{top}/spread", 0o755)
    fs.setxattr(f"{top}/spread", "ceph.dir.pin", b"3", 0)
    fs.setxattr(f"{top}/spread", "ceph.dir.pin.distributed", b"1", 0)
    fs.setxattr(f"{top}/spread", "ceph.dir.pin.random", b"0.0075", 0)


def tree(fs, top="/"):
    """All that there is: attributes, content, extended attributes, and which names are of one file."""
    found, first, todo = {}, {}, [top.rstrip("/")]
    while todo:
        at = todo.pop()
        d = fs.opendir(at or "/")
        while entry := fs.readdir(d):
            name = entry.d_name.decode()
            if name in (".", ".."):
                continue
            path = f"{at}/{name}"
            st = fs.lstat(path)
            kind = stat.S_IFMT(st.st_mode)
            row = [st.st_mode, st.st_uid, st.st_gid, st.st_mtime, None if kind == stat.S_IFDIR else (st.st_nlink, st.st_size)]
            if kind == stat.S_IFDIR:
                todo.append(path)
                row.append({k: quiet(fs, path, f"ceph.{k}") for k in SHOWN})
            elif kind == stat.S_IFREG:
                row += [zlib.crc32(read(fs, path, 6 << 20)), fs.getxattr(path, "ceph.file.layout.stripe_count")]
            elif kind == stat.S_IFLNK:
                row.append(fs.readlink(path, 1000))
            if kind != stat.S_IFLNK:
                row.append(quiet(fs, path, "user.n"))
            # Names of one file are told by the first of them.
            row.append(first.setdefault(st.st_ino, path))
            found[path] = row
        fs.closedir(d)
    return found


# Virtual attributes of directories that stay.
SHOWN = ("dir.entries", "quota.max_files", "dir.layout", "dir.pin", "dir.pin.distributed", "dir.pin.random")


def quiet(fs, path, name):
    try:
        return fs.getxattr(path, name)
    except cephfs.NoData:
        return None


def by_lowest(found):
    """The same tree, with names of one file told by the lowest of them: clients list directories in several orders."""
    lowest = {}
    for path, row in found.items():
        lowest[row[-1]] = min(path, lowest.get(row[-1], path))
    return {path: [*row[:-1], lowest[row[-1]]] for path, row in found.items()}


def counts(fs, path):
    return {k: fs.getxattr(path, f"ceph.dir.{k}") for k in ("rfiles", "rsubdirs", "rbytes")}


def differences(a, b):
    return {p: (a.get(p), b.get(p)) for p in a.keys() | b.keys() if a.get(p) != b.get(p)}


def goes_through(e, first, others):
    e.make(first)
    expected, sums = {}, {}
    for n, kind in enumerate([first, *others]):
        if n:
            e.hand_over(kind)
            fs = e.mounted()
            assert not differences(expected, by_lowest(tree(fs))), f"{kind} shows another tree than the one before"
            for top, was in sums.items():
                assert counts(fs, top) == was, f"{kind} counts otherwise in {top}"
            e.scrub()
        else:
            fs = e.mounted()
        change(fs, f"/by.{n}", n, STEPS)
        if n:
            # In what another one has made, too.
            change(fs, f"/by.0/by.{n}", n, STEPS // 10)
        fs.sync_fs()
        if kind == "siphon":
            # Exact at any time; a stock server takes its time.
            sums = {top: counts(fs, top) for top in ("/by.0", f"/by.{n}")}
        else:
            sums = {}
        expected = by_lowest(tree(fs))
        fs.unmount()
        fs.shutdown()
    if e.kind == "siphon":
        e.scrub()


def test_from_ours_to_stock_and_back(cl, tmp_path):
    e = Exchange(cl, "ours", tmp_path)
    try:
        goes_through(e, "siphon", ["stock", "siphon"])
    finally:
        e.stop()


def goes_to_stock(e, fs, gives_up=True):
    """All ranks come to rest, and a stock server finds all that a client sees in Ceph's form. Ranks but the first one are given
    up before; without that a stock server does not find what lives in their stray directories."""
    ours = e.servers["siphon"]
    fs.sync_fs()
    if gives_up:
        e.cl.run("ceph", "fs", "set", e.name, "max_mds", "1")
        ranks = lambda: {rank for rank, _ in ours.states().values() if rank is not None}
        eventually(lambda: ranks() == {0}, timeout=120, what=lambda: f"one rank: {ours.states()}")
    expected = by_lowest(tree(fs))
    fs.unmount()
    fs.shutdown()
    e.cl.run("ceph", "fs", "set", e.name, "down", "true")
    eventually(lambda: all(rank is None for rank, _ in ours.states().values()), timeout=60, what=lambda: f"no rank: {ours.states()}")
    for name in list(ours.daemons):
        ours.kill(name)
    if not gives_up:
        r = e.cl.run("ceph", "fs", "compat", e.name, "rm_incompat", "62", check=False)
        assert r.returncode == errno.EPERM and b"was not given up" in r.stderr
    e.cl.run("ceph", "fs", "compat", e.name, "rm_incompat", "62", *(() if gives_up else ("--yes-i-really-mean-it",)))
    e.start("stock")
    e.only("stock")
    e.cl.run("ceph", "fs", "set", e.name, "max_mds", "1")
    e.wait()
    # The first one after a rank was stopped (`up:starting`) may read the root before it knows of snapshots, and hold its
    # entries for damaged. The next one (`up:replay`) does not.
    e.servers["stock"].kill(f"{e.name}-stock")
    e.cl.run("ceph", "mds", "fail", f"{e.name}:0")
    e.start("stock")
    e.wait()
    fs = e.mounted()
    assert not differences(expected, by_lowest(tree(fs)))
    e.scrub()
    fs.unmount()
    fs.shutdown()


def test_two_ranks_that_are_down_go_to_stock(cl, tmp_path):
    """All is at rest in Ceph's form when both ranks have stopped, also what one knows of directories in the other's."""
    e = Exchange(cl, "both", tmp_path)
    e.make("siphon")
    ours = e.servers["siphon"]
    ranks = lambda: {rank: state for rank, state in ours.states().values() if rank is not None}
    try:
        ours.start("both-second")
        cl.run("ceph", "fs", "set", "both", "max_mds", "2")
        eventually(lambda: ranks() == {0: "up:active", 1: "up:active"}, what=lambda: f"two ranks: {ours.states()}")
        fs = e.mounted()
        at = ""
        # Each directory is of the other rank than the one above.
        for depth in range(6):
            if at:
                at = made_by(fs, at, f"d{depth}", depth % 2)
            else:
                at = f"/d{depth}"
                fs.mkdir(at, 0o755)
            assert (fs.stat(at).st_ino >> 40 == 0x81) == (depth % 2 == 1), at
            # Few: no file has lost the first of its names.
            change(fs, f"{at}/work", depth, 15)
        write(fs, f"{at}/last", b"said last")
        goes_to_stock(e, fs, gives_up=False)
    finally:
        e.stop()


def test_subvolumes_that_moved_go_to_stock(cl, tmp_path):
    """What two ranks changed of subvolumes, one after the other, is in Ceph's form."""
    e = Exchange(cl, "moved", tmp_path)
    e.make("siphon")
    ours = e.servers["siphon"]
    ranks = lambda: {rank: name for name, (rank, state) in ours.states().items() if state == "up:active"}
    try:
        ours.start("moved-second")
        cl.run("ceph", "fs", "set", "moved", "max_mds", "2")
        eventually(lambda: set(ranks()) == {0, 1}, what=lambda: f"two ranks: {ours.states()}")
        fs = e.mounted()
        tops = ["/volumes/group/away", "/volumes/group/back"]
        fs.mkdirs("/volumes/group", 0o755)
        for top in tops:
            fs.mkdirs(top + "/older", 0o755)
            fs.setxattr(top, "ceph.dir.subvolume", b"1", 0)
        count = lambda top, rank: sum(t["served"] for t in cl.ceph_json("tell", f"mds.{ranks()[rank]}", "dump_qos")["tenants"]
                                      if t["tenant"].endswith(top.rpartition("/")[2]))

        def goes_to(top, rank, n):
            fs.setxattr(top, "ceph.dir.pin", str(rank).encode(), 0)

            def served():
                before = count(top, rank)
                fs.mkdir(f"{top}/probe", 0o755)
                fs.rmdir(f"{top}/probe")
                return count(top, rank) > before

            eventually(served, what=f"{top} with rank {rank}")
            change(fs, f"{top}/older/work{n}", n, STEPS // 4)

        for n, (top, rank) in enumerate([(tops[0], 0), (tops[1], 1), (tops[0], 1), (tops[1], 0), (tops[1], 1), (tops[1], 0)]):
            goes_to(top, rank, n)
        # So is what they changed of other directories.
        fs.mkdir("/plain", 0o755)
        fs.mkdir("/aside", 0o755)
        for n, rank in enumerate((0, 1, 0, 1)):
            fs.setxattr("/plain", "ceph.dir.pin", b"%d" % rank, 0)
            eventually(lambda: held_by(fs, "/plain") == rank, what=f"/plain with rank {rank}")
            change(fs, f"/plain/work{n}", n, STEPS // 4)
            write(fs, f"/plain/two{n}", b"two names")
            fs.link(f"/plain/two{n}", f"/aside/two{n}")
        goes_to_stock(e, fs)
    finally:
        e.stop()


def test_ranks_that_came_and_went_go_to_stock(cl, tmp_path):
    """What ranks left that were given up, and those that were added again, is in Ceph's form."""
    e = Exchange(cl, "again", tmp_path)
    e.make("siphon")
    ours = e.servers["siphon"]
    ranks = lambda: {rank: state for rank, state in ours.states().values() if rank is not None}
    try:
        for name in ("second", "third"):
            ours.start(f"again-{name}")
        fs = e.mounted()
        for n, wanted in enumerate((2, 1, 2, 3, 1, 3)):
            cl.run("ceph", "fs", "set", "again", "max_mds", str(wanted))
            there = dict.fromkeys(range(wanted), "up:active")
            eventually(lambda: ranks() == there, timeout=60, what=lambda: f"{wanted} ranks: {ours.states()}")
            at = f"/of.{wanted}.{n}"
            fs.mkdir(at, 0o755)
            for rank in range(wanted):
                fs.setxattr(at, "ceph.dir.pin", str(rank).encode(), 0)
                change(fs, f"{at}/rank{rank}", n, STEPS // 4)
            if n:
                # What a rank left.
                change(fs, f"{before}/again", n, STEPS // 10)
            before = f"{at}/rank{wanted - 1}"
        goes_to_stock(e, fs)
    finally:
        e.stop()


@pytest.mark.skipif(not LONG, reason="takes minutes; SIPHON_TEST_LONG=1 runs it")
def test_from_stock_to_ours_and_back(cl, tmp_path):
    e = Exchange(cl, "theirs", tmp_path)
    try:
        goes_through(e, "stock", ["siphon", "stock", "siphon"])
    finally:
        e.stop()


def test_directories_that_a_stock_server_split(cl, tmp_path):
    """Their entries are in several objects. They are served and changed, also after a server was killed, and are
    directories of one object for the stock server afterwards, which may split them again."""
    e = Exchange(cl, "split", tmp_path)
    fragments = lambda path: [f["str"] for f in e.mds("dirfrag", "ls", path)]

    def objects(ino):
        names = cl.run("rados", "-p", "split.meta", "ls").stdout.decode().split()
        return sorted(name for name in names if name.startswith(f"{ino:x}."))

    def splits():
        for path, bits, expected in (("/big", 3, 8), ("/big", 2, 11), ("/big/below", 1, 2), ("/left", 2, 4), ("/empty", 2, 4), ("/", 1, 2)):
            last = fragments(path)[-1]

            def done():
                # A split is refused while the one before is not in the journal.
                cl.run("ceph", "tell", "mds.split-stock", "dirfrag", "split", path, last, str(bits), check=False)
                return len(fragments(path)) == expected

            eventually(done, what=lambda: f"{path} in {expected} parts: {fragments(path)}")

    try:
        e.make("stock")
        # It joins none that are small.
        for option, value in (("mds_bal_merge_size", "0"), ("mds_bal_split_size", "100000")):
            cl.run("ceph", "config", "set", "mds", option, value, check=False)
            e.mds("config", "set", option, value)
        fs = e.mounted()
        for path in ("/big", "/big/below", "/left", "/empty"):
            fs.mkdir(path, 0o755)
        for n in range(300):
            write(fs, f"/big/file-{n}", b"%d" % n)
        for n in range(40):
            write(fs, f"/big/below/{n}", b"below")
            fs.link(f"/big/below/{n}", f"/left/{n}")
        fs.sync_fs()
        splits()
        inos = {path: fs.stat(path).st_ino for path in ("/big", "/empty")}
        expected = by_lowest(tree(fs))
        fs.unmount()
        fs.shutdown()

        e.hand_over("siphon")
        assert len(objects(inos["/big"])) > 8
        fs = e.mounted()
        # A directory that nothing was asked of stays as it is.
        assert fs.stat("/big").st_ino == inos["/big"] and fs.getxattr("/left", "ceph.dir.entries") == b"40"
        e.scrub()
        assert not differences(expected, by_lowest(tree(fs)))
        for n in range(0, 300, 3):
            fs.rename(f"/big/file-{n}", f"/left/moved-{n}")
        for n in range(1, 300, 3):
            fs.unlink(f"/big/file-{n}")
        fs.rmdir("/empty")
        change(fs, "/big/more", 1, STEPS)
        fs.sync_fs()
        expected = by_lowest(tree(fs))
        # A server that comes after it finds what the first had begun.
        e.servers["siphon"].kill("split-siphon")
        e.start("siphon")
        eventually(lambda: e.servers["siphon"].states().get("split-siphon") == (0, "up:active"), what=lambda: f"{e.servers['siphon'].states()}")
        assert not differences(expected, by_lowest(tree(fs)))
        e.scrub()
        fs.unmount()
        fs.shutdown()
        e.mds("flush", "journal")
        assert objects(inos["/big"]) == [f"{inos['/big']:x}.00000000"], "the other objects are removed"
        eventually(lambda: not objects(inos["/empty"]), what=lambda: f"nothing of a removed directory: {objects(inos['/empty'])}")

        e.hand_over("stock")
        fs = e.mounted()
        assert fragments("/big") == ["0/0"]
        assert not differences(expected, by_lowest(tree(fs)))
        e.scrub()
        fs.mkdir("/empty", 0o755)
        fs.sync_fs()
        splits()
        expected = by_lowest(tree(fs))
        fs.unmount()
        fs.shutdown()
        e.hand_over("siphon")
        fs = e.mounted()
        assert not differences(expected, by_lowest(tree(fs)))
        e.scrub()
        fs.unmount()
        fs.shutdown()
    finally:
        e.stop()


def test_a_journal_with_changes_is_refused(cl, tmp_path):
    """What a stock server left in its journal is not passed over: the rank is damaged, and the server says why."""
    e = Exchange(cl, "full", tmp_path)
    dump = lambda: cl.ceph_json("fs", "get", e.name)["mdsmap"]
    try:
        e.make("stock")
        fs = e.mounted()
        write(fs, "/kept", b"kept")
        fs.sync_fs()
        e.servers["stock"].kill(f"{e.name}-stock")
        cl.run("ceph", "fs", "fail", e.name)
        e.start("siphon")
        e.only("siphon")
        cl.run("ceph", "fs", "set", e.name, "joinable", "true")
        eventually(lambda: dump()["damaged"] == [0], what=lambda: f"a damaged rank: {dump()}")
        eventually(lambda: "the journal of a stock metadata server has changes" in cl.run("ceph", "log", "last", "100").stdout.decode(),
                   what="the reason in the cluster's log")
        assert "MDS_DAMAGE" in cl.ceph_json("health")["checks"]
        # The server waits again, and gets the rank no more.
        eventually(lambda: e.servers["siphon"].states() == {f"{e.name}-siphon": (None, "up:standby")}, what="a server that waits")
        # The way out that it tells.
        e.servers["siphon"].kill(f"{e.name}-siphon")
        cl.run("ceph", "fs", "compat", e.name, "rm_incompat", "62")
        e.start("stock")
        e.only("stock")
        cl.run("ceph", "mds", "repaired", f"{e.name}:0")
        e.wait()
        assert read(fs, "/kept") == b"kept"
        fs.unmount()
        fs.shutdown()
    finally:
        e.stop()


def test_a_log_that_another_server_has_overtaken_is_refused(cl, tmp_path):
    """A log with changes keeps stock servers away. Where an operator has given it up, it does not come back over what
    a stock server wrote since."""
    e = Exchange(cl, "over", tmp_path)
    dump = lambda: cl.ceph_json("fs", "get", e.name)["mdsmap"]
    compat = lambda *args: cl.run("ceph", "fs", "compat", e.name, "rm_incompat", "62", *args, check=False)
    said = lambda text: text in cl.run("ceph", "log", "last", "100").stdout.decode()
    try:
        e.make("siphon")
        fs = e.mounted()
        write(fs, "/kept", b"kept")
        fs.sync_fs()
        e.mds("flush", "journal")
        assert dump()["compat"]["compat"]["feature_62"].endswith(": 0"), "nothing is in the log of rank 0"
        write(fs, "/lost", b"lost")
        fs.sync_fs()
        assert dump()["compat"]["compat"] == {}, "there is something again"
        e.left(fs)
        e.servers["siphon"].kill(f"{e.name}-siphon")
        cl.run("ceph", "fs", "fail", e.name)
        refused = compat()
        assert refused.returncode == errno.EPERM and b"rank 0 of over" in refused.stderr, refused.stderr

        # The operator gives it up.
        assert compat("--yes-i-really-mean-it").returncode == 0
        e.start("stock")
        e.only("stock")
        cl.run("ceph", "fs", "set", e.name, "joinable", "true")
        e.wait()
        fs = e.mounted()
        assert read(fs, "/kept") == b"kept"
        with pytest.raises(cephfs.ObjectNotFound):
            fs.stat("/lost")
        write(fs, "/theirs", b"theirs")
        e.left(fs)
        e.hand_over("siphon", wait=False)
        eventually(lambda: dump()["damaged"] == [0], what=lambda: f"a damaged rank: {dump()}")
        eventually(lambda: said("another server has had the rank since"), what="the reason in the cluster's log")
        e.servers["siphon"].kill(f"{e.name}-siphon")
        assert compat().returncode == errno.EPERM, "there is something in the log"

        # The way out that it tells.
        pool = f"{e.name}.meta"
        objects = cl.run("rados", "-p", pool, "ls").stdout.decode().split()
        log = [o for o in objects if o == "mds0_siphon" or o.startswith("mds0_siphon_log.")]
        assert len(log) > 1
        cl.run("rados", "-p", pool, "rm", *log)
        e.start("siphon")
        e.only("siphon")
        cl.run("ceph", "mds", "repaired", f"{e.name}:0")
        e.wait()
        fs = e.mounted()
        assert (read(fs, "/kept"), read(fs, "/theirs")) == (b"kept", b"theirs")
        with pytest.raises(cephfs.ObjectNotFound):
            fs.stat("/lost")
        e.scrub()
        e.left(fs)
    finally:
        e.stop()
