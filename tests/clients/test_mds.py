"""What stock clients do with a file system: names, files, locks, attributes, limits, caches, and the end of a server.

What is expected is what stock answers (see file_systems.py). SIPHON_TEST_LONG kills the active server again and again.
"""
import errno
import fcntl
import json
import os
import random
import re
import select
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest

from conftest import CHROOT, eventually

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="the metadata server runs outside of the chroot")
cephfs = pytest.importorskip("cephfs")
from file_systems import PATIENCE, active_and_waiting, fuse, mounted, new_cluster, read, write

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
FUSE = os.path.exists("/dev/fuse") and shutil.which("ceph-fuse") is not None

# A client of its own process: for one that is evicted, and for one that works while a server goes.
SYNCER = """
import cephfs, json, os, sys
fs = cephfs.LibCephFS(conffile=sys.argv[1])
fs.mount()
print(fs.get_instance_id(), flush=True)
for line in sys.stdin:
    name, text = json.loads(line)
    try:
        fd = fs.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        fs.write(fd, text.encode(), -1)
        fs.fsync(fd, 0)
        fs.close(fd)
        print(0, flush=True)
    except cephfs.Error as e:
        print(e.args[0], flush=True)
        # Nothing to be given back to a server that knows the client no longer.
        os._exit(0)
fs.unmount()
"""

# The same through a mounted tree.
FILER = """
import json, os, sys
print(0, flush=True)
for line in sys.stdin:
    name, text = json.loads(line)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, text.encode())
    os.fsync(fd)
    os.close(fd)
    print(0, flush=True)
"""

# A client of its own process that makes directories for some seconds, and says how many.
MAKER = """
import cephfs, os, sys, time
fs = cephfs.LibCephFS(conffile=sys.argv[1])
fs.mount()
n = 0
for line in sys.stdin:
    where, seconds = line.split()
    until, made = time.monotonic() + float(seconds), 0
    while time.monotonic() < until:
        fs.mkdir(f"{where}/{os.getpid()}.{n}", 0o755)
        n, made = n + 1, made + 1
    print(made, flush=True)
fs.unmount()
"""


@pytest.fixture(scope="module")
def cl(siphon_factory):
    return new_cluster(siphon_factory)


@pytest.fixture(scope="module")
def servers(cl, tmp_path_factory):
    yield from active_and_waiting(cl, tmp_path_factory.mktemp("mds"), 5, more=("cephfs_more",))


@pytest.fixture(scope="module")
def clients(cl, servers):
    both = mounted(cl), mounted(cl)
    yield both
    for fs in both:
        fs.unmount()
        fs.shutdown()


@pytest.fixture(scope="module")
def mounts(cl, servers, tmp_path_factory):
    """The file system at two places, by two FUSE clients."""
    if not FUSE:
        pytest.skip("no FUSE here")
    places = [tmp_path_factory.mktemp(name) for name in ("left", "right")]
    with fuse(cl, places[0]), fuse(cl, places[1]):
        yield places


@pytest.fixture
def here(request, clients):
    """A directory of the test's own."""
    name = "/" + request.node.name
    clients[0].mkdir(name, 0o755)
    return name


@pytest.fixture
def trees(request, mounts):
    """A directory of the test's own, at both places."""
    left, right = (place / request.node.name for place in mounts)
    left.mkdir()
    return left, right


def listed(fs, name):
    """Names and kinds; each name once."""
    found = []
    d = fs.opendir(name)
    while entry := fs.readdir(d):
        found.append((entry.d_name.decode(), entry.d_type))
    fs.closedir(d)
    assert len(found) == len({n for n, _ in found}), "a name is listed twice"
    return {n: kind for n, kind in found if n not in (".", "..")}


def fails(code, f, *args):
    with pytest.raises((cephfs.Error, OSError)) as e:
        f(*args)
    assert e.value.args[0] == code, f"expected {errno.errorcode[code]}: {e.value!r}"


def run(*argv, cwd=None, timeout=PATIENCE, **kw):
    r = subprocess.run([str(a) for a in argv], cwd=cwd, capture_output=True, text=True, timeout=timeout, **kw)
    assert r.returncode == 0, f"{argv}: {r.stdout}{r.stderr}"
    return r.stdout


# --- names and files ---


def test_directories(clients, here):
    one, two = clients
    one.mkdir(f"{here}/a", 0o750)
    st = two.stat(f"{here}/a")
    assert stat.S_ISDIR(st.st_mode) and stat.S_IMODE(st.st_mode) == 0o750
    fails(errno.EEXIST, two.mkdir, f"{here}/a", 0o755)
    fails(errno.ENOENT, two.mkdir, f"{here}/b/c", 0o755)
    two.mkdir(f"{here}/a/b", 0o755)
    fails(errno.ENOTEMPTY, one.rmdir, f"{here}/a")
    fails(errno.ENOENT, one.rmdir, f"{here}/z")
    fails(errno.EISDIR, one.unlink, f"{here}/a")
    one.rmdir(f"{here}/a/b")
    two.rmdir(f"{here}/a")
    fails(errno.ENOENT, one.stat, f"{here}/a")
    name = "n" * 255
    one.mkdir(f"{here}/{name}", 0o755)
    assert listed(two, here) == {name: stat.S_IFDIR >> 12}
    fails(errno.ENAMETOOLONG, one.mkdir, f"{here}/{name}n", 0o755)
    one.mkdirs(f"{here}/deep/er/and/deeper", 0o755)
    assert listed(two, f"{here}/deep/er/and") == {"deeper": stat.S_IFDIR >> 12}


def test_files(clients, here):
    one, two = clients
    name = f"{here}/f"
    write(one, name, b"hello", mode=0o640)
    assert read(two, name) == b"hello"
    st = two.stat(name)
    assert (st.st_size, stat.S_IMODE(st.st_mode), stat.S_ISREG(st.st_mode), st.st_nlink) == (5, 0o640, True, 1)
    fails(errno.EEXIST, two.open, name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    fails(errno.ENOTDIR, two.opendir, name)
    fails(errno.ENOTDIR, two.rmdir, name)
    # Written over from the other side, in the middle.
    write(two, name, b"LL", flags=os.O_WRONLY, at=2)
    assert read(one, name) == b"heLLo"
    write(one, name, b"new", flags=os.O_WRONLY | os.O_TRUNC)
    assert read(two, name) == b"new"
    one.chmod(name, 0o600)
    one.chown(name, 12, 34)
    one.utimes(name, (1000, 3000))
    st = two.stat(name)
    assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (12, 34, 0o600)
    assert (st.st_mtime - st.st_atime).total_seconds() == 2000
    large = random.Random(1).randbytes(9 << 20)
    write(one, name, large)
    assert read(two, name, len(large) + 1) == large
    two.unlink(name)
    fails(errno.ENOENT, one.stat, name)
    one.mknod(f"{here}/pipe", stat.S_IFIFO | 0o644, 0)
    assert stat.S_ISFIFO(two.stat(f"{here}/pipe").st_mode)


def test_many_entries(clients, here):
    one, two = clients
    expected = {}
    for n in range(1900):
        one.close(one.open(f"{here}/file.{n}", os.O_WRONLY | os.O_CREAT, 0o644))
        expected[f"file.{n}"] = stat.S_IFREG >> 12
    for n in range(100):
        one.mkdir(f"{here}/dir.{n}", 0o755)
        expected[f"dir.{n}"] = stat.S_IFDIR >> 12
    assert listed(two, here) == expected
    assert two.getxattr(here, "ceph.dir.entries") == b"2000"
    # A second look is from the cache, and sees what changes beside it.
    for n in range(0, 1900, 2):
        one.unlink(f"{here}/file.{n}")
        expected.pop(f"file.{n}")
    one.rename(f"{here}/file.1", f"{here}/renamed")
    expected["renamed"] = expected.pop("file.1")
    assert listed(two, here) == expected
    assert listed(one, here) == expected


def test_rename(clients, here):
    one, two = clients
    for d in ("a", "b", "a/full", "a/empty"):
        one.mkdir(f"{here}/{d}", 0o755)
    write(one, f"{here}/a/full/x", b"x")
    write(one, f"{here}/a/one", b"1")
    write(one, f"{here}/a/two", b"2")
    ino = two.stat(f"{here}/a/one").st_ino
    # Over another one, which is gone.
    two.rename(f"{here}/a/one", f"{here}/a/two")
    assert one.stat(f"{here}/a/two").st_ino == ino and read(one, f"{here}/a/two") == b"1"
    fails(errno.ENOENT, one.stat, f"{here}/a/one")
    # Into another directory, and over one there.
    write(two, f"{here}/b/three", b"3")
    one.rename(f"{here}/a/two", f"{here}/b/three")
    assert read(two, f"{here}/b/three") == b"1" and "two" not in listed(two, f"{here}/a")
    one.rename(f"{here}/a/full", f"{here}/b/moved")
    assert read(two, f"{here}/b/moved/x") == b"x"
    two.rename(f"{here}/b/moved", f"{here}/a/empty")
    assert listed(one, f"{here}/a") == {"empty": stat.S_IFDIR >> 12} and read(one, f"{here}/a/empty/x") == b"x"
    one.mkdir(f"{here}/other", 0o755)
    fails(errno.ENOTEMPTY, one.rename, f"{here}/other", f"{here}/a/empty")
    fails(errno.EISDIR, one.rename, f"{here}/b/three", f"{here}/other")
    fails(errno.ENOTDIR, one.rename, f"{here}/other", f"{here}/b/three")
    fails(errno.EINVAL, one.rename, f"{here}/a", f"{here}/a/empty/below")
    fails(errno.ENOENT, one.rename, f"{here}/none", f"{here}/any")
    # To its own name.
    one.rename(f"{here}/b/three", f"{here}/b/three")
    assert read(two, f"{here}/b/three") == b"1"


def test_hard_links(clients, here):
    one, two = clients
    one.mkdir(f"{here}/d", 0o755)
    write(one, f"{here}/first", b"same")
    one.link(f"{here}/first", f"{here}/d/second")
    two.link(f"{here}/d/second", f"{here}/third")
    stats = [two.stat(f"{here}/{n}") for n in ("first", "d/second", "third")]
    assert {(s.st_ino, s.st_nlink) for s in stats} == {(stats[0].st_ino, 3)}
    write(two, f"{here}/third", b"SAME")
    assert read(one, f"{here}/first") == b"SAME"
    fails(errno.EEXIST, one.link, f"{here}/first", f"{here}/third")
    fails(errno.EPERM, one.link, f"{here}/d", f"{here}/e")
    # The first name goes; the others stay.
    one.unlink(f"{here}/first")
    assert read(two, f"{here}/d/second") == b"SAME" and one.stat(f"{here}/third").st_nlink == 2
    two.rename(f"{here}/d/second", f"{here}/fourth")
    one.unlink(f"{here}/third")
    st = two.stat(f"{here}/fourth")
    assert (st.st_ino, st.st_nlink) == (stats[0].st_ino, 1) and read(one, f"{here}/fourth") == b"SAME"


def objects(cl, ino):
    out = cl.rados("-p", "cephfs_data", "ls").stdout.decode().split()
    return [o for o in out if o.startswith(f"{ino:x}.")]


def test_removed_while_open(cl, clients, here):
    one, two = clients
    fd = one.open(f"{here}/f", os.O_RDWR | os.O_CREAT, 0o644)
    one.write(fd, b"a" * (5 << 20), 0)
    one.fsync(fd, 0)
    ino = one.fstat(fd).st_ino
    assert len(objects(cl, ino)) == 2
    two.unlink(f"{here}/f")
    fails(errno.ENOENT, one.stat, f"{here}/f")
    assert one.read(fd, 0, 3) == b"aaa"
    one.write(fd, b"bbb", 0)
    one.fsync(fd, 0)
    assert one.read(fd, 0, 4) == b"bbba"
    assert objects(cl, ino)
    # Another one of this name is another file.
    write(two, f"{here}/f", b"other")
    assert one.read(fd, 0, 3) == b"bbb" and read(two, f"{here}/f") == b"other"
    one.close(fd)
    eventually(lambda: not objects(cl, ino), what="the data of a removed file to go")


def test_symbolic_links(clients, here):
    one, two = clients
    write(one, f"{here}/target", b"there")
    one.symlink("target", f"{here}/link")
    assert two.readlink(f"{here}/link", 1000) == b"target" and read(two, f"{here}/link") == b"there"
    assert stat.S_ISLNK(two.lstat(f"{here}/link").st_mode) and two.stat(f"{here}/link").st_size == 5
    long = "x/" * 1000 + "x"
    one.symlink(long, f"{here}/long")
    assert two.readlink(f"{here}/long", 4096) == long.encode()
    one.symlink("a", f"{here}/b")
    one.symlink("b", f"{here}/a")
    fails(errno.ELOOP, two.stat, f"{here}/a")
    one.symlink("nowhere", f"{here}/dangling")
    fails(errno.ENOENT, two.stat, f"{here}/dangling")
    one.unlink(f"{here}/link")
    assert read(two, f"{here}/target") == b"there"
    fails(errno.EEXIST, one.symlink, "x", f"{here}/target")


def test_attributes(clients, here):
    one, two = clients
    create, replace = 1, 2
    write(one, f"{here}/f", b"")
    one.setxattr(f"{here}/f", "user.a", b"1", create)
    assert two.getxattr(f"{here}/f", "user.a") == b"1"
    fails(errno.EEXIST, two.setxattr, f"{here}/f", "user.a", b"2", create)
    fails(errno.ENODATA, two.setxattr, f"{here}/f", "user.b", b"2", replace)
    two.setxattr(f"{here}/f", "user.a", b"two", replace)
    two.setxattr(f"{here}/f", "user.binary", bytes(range(256)), 0)
    assert one.getxattr(f"{here}/f", "user.a") == b"two" and one.getxattr(f"{here}/f", "user.binary", 1000) == bytes(range(256))
    names = one.listxattr(f"{here}/f")
    names = names[1] if isinstance(names, tuple) else names
    assert {n for n in names.split(b"\0") if n.startswith(b"user.")} == {b"user.a", b"user.binary"}
    one.removexattr(f"{here}/f", "user.a")
    fails(errno.ENODATA, two.getxattr, f"{here}/f", "user.a")
    fails(errno.ENODATA, one.removexattr, f"{here}/f", "user.a")
    fails(errno.ENOSPC, one.setxattr, f"{here}/f", "user.large", b"x" * (65 << 10), 0)
    one.setxattr(here, "user.of.directory", b"d", 0)
    assert two.getxattr(here, "user.of.directory") == b"d"


def test_truncated_and_sparse(clients, here):
    one, two = clients
    name = f"{here}/f"
    write(one, name, b"end", at=10 << 20)
    assert two.stat(name).st_size == (10 << 20) + 3
    assert read(two, name, 4096, 5 << 20) == bytes(4096) and read(two, name, 10, 10 << 20) == b"end"
    write(two, name, b"x" * (6 << 20))
    one.truncate(name, 3)
    assert two.stat(name).st_size == 3 and read(two, name) == b"xxx"
    # What was cut off does not come back.
    two.truncate(name, 5 << 20)
    assert one.stat(name).st_size == 5 << 20 and read(one, name, 5 << 20) == b"xxx" + bytes((5 << 20) - 3)
    fd = one.open(name, os.O_RDWR, 0)
    other = two.open(name, os.O_RDWR, 0)
    one.write(fd, b"y" * 100, 0)
    two.ftruncate(other, 50)
    assert one.fstat(fd).st_size == 50 and one.read(fd, 0, 100) == b"y" * 50
    one.write(fd, b"z", 99)
    assert two.fstat(other).st_size == 100 and two.read(other, 0, 100) == b"y" * 50 + bytes(49) + b"z"
    one.close(fd)
    two.close(other)


def test_two_append(clients, here):
    one, two = clients
    fds = [fs.open(f"{here}/log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644) for fs in clients]
    expected = b""
    for n in range(40):
        line = b"line %d of %d\n" % (n, n % 2)
        clients[n % 2].write(fds[n % 2], line, -1)
        expected += line
    assert read(one, f"{here}/log") == expected and read(two, f"{here}/log") == expected
    for fs, fd in zip(clients, fds):
        fs.close(fd)
    assert one.stat(f"{here}/log").st_size == len(expected)


# --- locks ---


def test_locks_of_whole_files(clients, here):
    one, two = clients
    fds = [fs.open(f"{here}/f", os.O_RDWR | os.O_CREAT, 0o644) for fs in clients]
    one.flock(fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    fails(errno.EAGAIN, two.flock, fds[1], fcntl.LOCK_EX | fcntl.LOCK_NB, 2)
    fails(errno.EAGAIN, two.flock, fds[1], fcntl.LOCK_SH | fcntl.LOCK_NB, 2)
    one.flock(fds[0], fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
    two.flock(fds[1], fcntl.LOCK_SH | fcntl.LOCK_NB, 2)
    fails(errno.EAGAIN, one.flock, fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    two.flock(fds[1], fcntl.LOCK_UN, 2)
    one.flock(fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    got = threading.Event()

    def wait():
        two.flock(fds[1], fcntl.LOCK_EX, 2)
        got.set()

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    # The one that waits gets it when it is free, and not before.
    fails(errno.EAGAIN, two.flock, fds[1], fcntl.LOCK_SH | fcntl.LOCK_NB, 3)
    assert not got.wait(0.3)
    one.flock(fds[0], fcntl.LOCK_UN, 1)
    assert got.wait(PATIENCE)
    fails(errno.EAGAIN, one.flock, fds[0], fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
    # Closing lets it go.
    two.flock(fds[1], fcntl.LOCK_UN, 2)
    for fs, fd in zip(clients, fds):
        fs.close(fd)


def test_locks_of_ranges(trees):
    left, right = trees
    (left / "f").write_bytes(bytes(100))
    with open(left / "f", "r+b") as a, open(right / "f", "r+b") as b:
        nb = fcntl.LOCK_NB
        fcntl.lockf(a, fcntl.LOCK_EX | nb, 50, 0)
        fails(errno.EAGAIN, fcntl.lockf, b, fcntl.LOCK_EX | nb, 1, 49)
        fcntl.lockf(b, fcntl.LOCK_EX | nb, 50, 50)
        fails(errno.EAGAIN, fcntl.lockf, a, fcntl.LOCK_EX | nb, 100, 0)
        # A part of it is free again.
        fcntl.lockf(a, fcntl.LOCK_UN, 10, 20)
        fcntl.lockf(b, fcntl.LOCK_SH | nb, 10, 20)
        fails(errno.EAGAIN, fcntl.lockf, b, fcntl.LOCK_SH | nb, 1, 19)
        fails(errno.EAGAIN, fcntl.lockf, b, fcntl.LOCK_SH | nb, 1, 30)
        fcntl.lockf(a, fcntl.LOCK_SH | nb, 10, 20)
        # A lock of the whole file is of another kind.
        fcntl.flock(a, fcntl.LOCK_EX | nb)
        fails(errno.EAGAIN, fcntl.flock, b, fcntl.LOCK_EX | nb)
    with open(right / "f", "r+b") as b:
        eventually(lambda: free(b), what="locks of files that were closed to go")


def free(f):
    try:
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


# --- virtual attributes ---


def test_layouts(cl, clients, here):
    one, two = clients
    layout = b"stripe_unit=65536 stripe_count=2 object_size=131072 pool=cephfs_more"
    one.mkdir(f"{here}/d", 0o755)
    one.setxattr(f"{here}/d", "ceph.dir.layout", layout, 0)
    assert two.getxattr(f"{here}/d", "ceph.dir.layout") == layout
    write(two, f"{here}/d/f", b"x" * 300_000)
    assert one.getxattr(f"{here}/d/f", "ceph.file.layout") == layout
    assert one.getxattr(f"{here}/d/f", "ceph.file.layout.pool") == b"cephfs_more"
    fails(errno.ENOTEMPTY, one.setxattr, f"{here}/d/f", "ceph.file.layout.stripe_count", b"1", 0)
    ino = one.stat(f"{here}/d/f").st_ino
    one.sync_fs()
    two.sync_fs()
    found = cl.rados("-p", "cephfs_more", "ls").stdout.decode().split()
    assert sorted(o for o in found if o.startswith(f"{ino:x}.")) == [f"{ino:x}.{n:08x}" for n in range(3)]
    # An empty file's can be changed, and a directory's be taken away.
    write(one, f"{here}/d/empty", b"")
    one.setxattr(f"{here}/d/empty", "ceph.file.layout.pool", b"cephfs_data", 0)
    # Stock shows it to others when it is in the journal.
    eventually(lambda: two.getxattr(f"{here}/d/empty", "ceph.file.layout.pool") == b"cephfs_data", what="the layout of an empty file")
    fails(errno.EINVAL, one.setxattr, f"{here}/d", "ceph.dir.layout.stripe_unit", b"1000", 0)
    fails(errno.EINVAL, one.setxattr, f"{here}/d", "ceph.dir.layout.pool", b"nope", 0)
    one.removexattr(f"{here}/d", "ceph.dir.layout")
    fails(errno.ENODATA, two.getxattr, f"{here}/d", "ceph.dir.layout")
    write(one, f"{here}/d/g", b"x")
    assert two.getxattr(f"{here}/d/g", "ceph.file.layout.pool") == b"cephfs_data"


def test_quotas(clients, here):
    one, two = clients
    one.mkdir(f"{here}/d", 0o755)
    fails(errno.ENODATA, one.getxattr, f"{here}/d", "ceph.quota.max_files")
    one.setxattr(f"{here}/d", "ceph.quota.max_files", b"3", 0)
    assert two.getxattr(f"{here}/d", "ceph.quota.max_files") == b"3"
    # The directory counts, too.
    for n in range(2):
        write(one, f"{here}/d/{n}", b"x")
    eventually(lambda: one.getxattr(f"{here}/d", "ceph.dir.rfiles") == b"2", what="the count of files")
    fails(errno.EDQUOT, one.open, f"{here}/d/more", os.O_WRONLY | os.O_CREAT, 0o644)
    fails(errno.EDQUOT, one.mkdir, f"{here}/d/more", 0o755)
    one.setxattr(f"{here}/d", "ceph.quota.max_files", b"0", 0)
    one.setxattr(f"{here}/d", "ceph.quota.max_bytes", b"4194304", 0)
    fd = one.open(f"{here}/d/0", os.O_WRONLY, 0)

    def refused():
        try:
            one.write(fd, b"y" * (1 << 20), one.fstat(fd).st_size)
            one.fsync(fd, 0)
        except cephfs.Error as e:
            assert e.args[0] == errno.EDQUOT, e
            return True

    eventually(refused, what="a write beyond the quota to be refused")
    assert one.fstat(fd).st_size <= 8 << 20
    one.close(fd)
    one.unlink(f"{here}/d/0")
    eventually(lambda: two.getxattr(f"{here}/d", "ceph.dir.rbytes") == b"1", what="the count of bytes")
    write(one, f"{here}/d/0", b"z")
    fails(errno.EINVAL, one.setxattr, f"{here}/d", "ceph.quota.max_bytes", b"nonsense", 0)


def test_counts_of_trees(clients, here):
    one, two = clients
    one.mkdirs(f"{here}/a/b/c", 0o755)
    for n, d in enumerate(("a", "a/b", "a/b/c")):
        write(one, f"{here}/{d}/f", b"x" * (1000 * (n + 1)))
    one.sync_fs()
    expected = {"rfiles": b"3", "rsubdirs": b"4", "rbytes": b"6000", "files": b"0", "subdirs": b"1", "entries": b"1"}
    found = lambda: {k: two.getxattr(here, f"ceph.dir.{k}") for k in expected}
    # Stock counts a directory itself among those below it.
    eventually(lambda: found() == expected, what=lambda: f"the counts of a tree: {found()}")
    one.unlink(f"{here}/a/b/c/f")
    one.rename(f"{here}/a/b", f"{here}/b")
    expected.update(rfiles=b"2", rbytes=b"3000", subdirs=b"2", entries=b"2")
    eventually(lambda: found() == expected, what=lambda: f"the counts of a changed tree: {found()}")


# --- over FUSE ---


def test_a_tree_from_an_archive(trees, tmp_path):
    left, right = trees
    archive = tmp_path / "tree.tar"
    source = Path(__file__).parent
    with tarfile.open(archive, "w") as t:
        t.add(source, "tree", filter=lambda i: None if "__pycache__" in i.name else i)
    run("tar", "-xf", archive, "-C", left)
    run("diff", "-r", "-x", "__pycache__", source, right / "tree")
    run("tar", "-df", archive, "-C", right)
    shutil.rmtree(right / "tree")
    assert list(left.iterdir()) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_repository(trees):
    left, right = trees
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "safe.directory=*"]
    run(*git, "init", "-q", left / "r")
    for n in range(12):
        (left / "r" / f"file.{n}").write_text(f"content {n}\n" * n)
    run(*git, "add", ".", cwd=left / "r")
    run(*git, "commit", "-q", "-m", "first", cwd=left / "r")
    assert run(*git, "status", "--porcelain", cwd=right / "r") == ""
    (right / "r" / "file.1").write_text("changed\n")
    run(*git, "commit", "-q", "-a", "-m", "second", cwd=right / "r")
    run(*git, "fsck", "--strict", cwd=left / "r")
    assert run(*git, "show", "HEAD:file.1", cwd=left / "r") == "changed\n"
    run(*git, "clone", "-q", left / "r", right / "clone")
    run(*git, "gc", "-q", cwd=left / "r")
    assert len(run(*git, "log", "--oneline", cwd=right / "clone").splitlines()) == 2


def test_caches_agree(trees):
    left, right = trees
    f = left / "f"
    assert not (right / "f").exists() and list(right.iterdir()) == []
    f.write_text("one")
    assert (right / "f").read_text() == "one" and [p.name for p in right.iterdir()] == ["f"]
    # What one has cached, the other changes.
    for n in range(6):
        writer, reader = (left, right) if n % 2 else (right, left)
        (writer / "f").write_text(f"round {n}")
        assert (reader / "f").read_text() == f"round {n}"
        assert (reader / "f").stat().st_size == len(f"round {n}")
    (right / "f").chmod(0o600)
    assert stat.S_IMODE(f.stat().st_mode) == 0o600
    os.setxattr(f, "user.a", b"1")
    assert os.getxattr(right / "f", "user.a") == b"1"
    (right / "f").rename(right / "g")
    assert not f.exists() and (left / "g").read_text() == "round 5"
    with open(left / "g", "a") as a, open(right / "g") as b:
        for n in range(5):
            a.write(f" {n}")
            a.flush()
            assert b.read() == ("round 5 0" if n == 0 else f" {n}")
    (left / "g").unlink()
    assert not (right / "g").exists()


# --- sessions and servers ---


class Syncer:
    """A client of its own process that appends to files and makes that durable."""

    def __init__(self, cl, script=SYNCER):
        argv = [sys.executable, "-c", script, str(cl.conf)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.id = int(self.answer(PATIENCE))

    def answer(self, timeout):
        assert select.select([self.process.stdout], [], [], timeout)[0], f"a client is silent for {timeout} seconds"
        return self.process.stdout.readline()

    def ask(self, name, text):
        self.process.stdin.write(json.dumps([name, text]) + "\n")
        self.process.stdin.flush()

    def append(self, name, text, timeout=120):
        self.ask(name, text)
        return int(self.answer(timeout) or -1)

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        return code


def test_sessions_come_and_go(cl, servers, clients):
    s = Syncer(cl)
    found = next(x for x in servers.sessions() if x["id"] == s.id)
    assert found["state"] == "open" and found["client_metadata"]["root"] == "/"
    assert s.append("/session", "x") == 0
    assert s.end() == 0
    eventually(lambda: s.id not in [x["id"] for x in servers.sessions()], what="a session to end")
    assert {fs.get_instance_id() for fs in clients} <= {x["id"] for x in servers.sessions()}


def test_eviction(cl, servers, clients, here):
    one, _ = clients
    name = f"{here}/f"
    s = Syncer(cl)
    assert s.append(name, "before") == 0
    cl.run("ceph", "tell", f"mds.{servers.active()}", "session", "evict", f"id={s.id}")
    assert s.id not in [x["id"] for x in servers.sessions()]
    blocked = cl.ceph_json("osd", "blocklist", "ls")
    assert blocked, "the cluster refuses the client"
    assert s.append(name, "after") != 0
    s.end()
    # Others go on with its file.
    write(one, name, b" and more", flags=os.O_WRONLY | os.O_APPEND, at=-1)
    assert read(one, name) == b"before and more"


def test_another_server_takes_over(cl, servers, clients, here):
    one, two = clients
    write(one, f"{here}/f", b"durable")
    fd = two.open(f"{here}/open", os.O_RDWR | os.O_CREAT, 0o644)
    two.write(fd, b"abc", 0)
    two.fsync(fd, 0)
    two.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 7)
    first = servers.active()
    servers.kill(first)
    cl.command(prefix="mds fail", role_or_gid="0")
    # Both go on without a new mount, with what they had open.
    two.write(fd, b"def", 3)
    two.fsync(fd, 0)
    one.mkdir(f"{here}/d", 0o755)
    assert servers.active() not in (None, first)
    assert read(one, f"{here}/f") == b"durable" and read(one, f"{here}/open") == b"abcdef"
    other = one.open(f"{here}/open", os.O_RDWR, 0)
    fails(errno.EAGAIN, one.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB, 8)
    two.close(fd)
    one.close(other)
    servers.start(first)
    eventually(lambda: servers.states().get(first) == (None, "up:standby"), what="the server that came back")


def test_one_rank(cl):
    """The servers that wait stay what they are here; test_fs_ranks.py has several ranks."""
    name = cl.ceph_json("fs", "ls")[0]["name"]
    told = lambda n: cl.run("ceph", "fs", "set", name, "max_mds", n, check=False)
    for n in "0", "many":
        assert told(n).returncode == errno.EINVAL, n
    assert told("1").returncode == 0
    assert cl.ceph_json("fs", "get", name)["mdsmap"]["max_mds"] == 1


def test_a_limit_of_a_subvolume_is_shared_by_clients(cl, servers, clients, here):
    if servers.stock:
        pytest.skip("a stock server has no limits")
    one, two = clients
    one.mkdir(f"{here}/s", 0o755)
    fails(errno.EINVAL, one.setxattr, f"{here}/s", "ceph.dmclock.mds_limit", b"100", 0)
    one.setxattr(f"{here}/s", "ceph.dir.subvolume", b"1", 0)
    fails(errno.EINVAL, one.setxattr, f"{here}/s", "ceph.dmclock.mds_limit", b"many", 0)
    one.setxattr(f"{here}/s", "ceph.dmclock.mds_limit", b"100", 0)
    one.mkdir(f"{here}/s/root", 0o755)

    def promised():
        tenants = cl.ceph_json("tell", f"mds.{servers.active()}", "dump_qos")["tenants"]
        return next(t for t in tenants if t["specified"])

    assert promised()["limit"] == 100
    # Any client reads it.
    shown = lambda fs: fs.getxattr(f"{here}/s", "ceph.dmclock.mds_limit")
    assert (shown(one), shown(two)) == (b"100", b"100")
    fails(errno.ENODATA, two.getxattr, f"{here}/s", "ceph.dmclock.mds_weight")
    assert json.loads(two.getxattr(f"{here}/s", "ceph.dir.layout.json"))["pool_name"] == "cephfs_data"
    argv = [sys.executable, "-c", MAKER, str(cl.conf)]
    makers = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(5)]

    def made(seconds):
        begun = time.monotonic()
        for m in makers:
            m.stdin.write(f"{here}/s/root {seconds}\n")
            m.stdin.flush()
        total = sum(int(m.stdout.readline()) for m in makers)
        return total / (time.monotonic() - begun)

    try:
        made(0.1)
        # What a scheduler that begins owes of the past is a tenth of a second at most.
        assert made(4) <= 110
        first = servers.active()
        servers.kill(first)
        cl.command(prefix="mds fail", role_or_gid="0")
        made(0.1)
        assert servers.active() not in (None, first)
        assert made(4) <= 110
        mine = promised()
        assert mine["limit"] == 100 and mine["served"] > 0 and mine["waited_ns"] > 0
        assert (shown(one), shown(two)) == (b"100", b"100")
        servers.start(first)
        eventually(lambda: servers.states().get(first) == (None, "up:standby"), what="the server that came back")
    finally:
        for m in makers:
            m.stdin.close()
            m.wait(PATIENCE)
            m.stdout.close()
    two.setxattr(f"{here}/s", "ceph.dmclock.mds_limit", b"0", 0)
    assert promised()["limit"] is None
    fails(errno.ENODATA, one.getxattr, f"{here}/s", "ceph.dmclock.mds_limit")


def test_a_server_that_follows_takes_over(cl, servers, clients, here):
    one, two = clients
    cl.run("ceph", "fs", "set", "cephfs", "allow_standby_replay", "true")
    first = servers.active()
    second = eventually(lambda: next((n for n, (rank, state) in servers.states().items() if state == "up:standby-replay"), None), what="a follower")
    assert second != first
    try:
        for n in range(300):
            one.mkdir(f"{here}/{n}", 0o755)
        servers.kill(first)
        cl.command(prefix="mds fail", role_or_gid="0")
        two.mkdir(f"{here}/more", 0o755)
        assert servers.active() == second
        assert set(listed(two, here)) == {*map(str, range(300)), "more"}
        one.rmdir(f"{here}/0")
    finally:
        cl.run("ceph", "fs", "set", "cephfs", "allow_standby_replay", "false")
        servers.start(first)
        eventually(lambda: servers.states().get(first) == (None, "up:standby"), what="the server that came back")
    if not servers.stock:
        said = (servers.directory / f"mds.{second}/output").read_text().splitlines()
        line = next(s for s in reversed(said) if "batches of the log" in s)
        count, ahead = map(int, re.search(r"(\d+) batches of the log, (\d+) were read ahead", line).groups())
        # The log may have been trimmed since it was read ahead.
        assert count and ahead, line


@pytest.mark.skipif(not LONG, reason="takes minutes; SIPHON_TEST_LONG=1 runs it")
@pytest.mark.parametrize("follows", [False, True], ids=["waits", "follows"])
def test_servers_are_killed_under_load(cl, servers, clients, mounts, follows):
    here = f"/killed.{follows}"
    clients[0].mkdir(here, 0o755)
    cl.run("ceph", "fs", "set", "cephfs", "allow_standby_replay", str(follows).lower())
    waits = "up:standby-replay" if follows else "up:standby"
    eventually(lambda: waits in [state for _, state in servers.states().values()], timeout=120, what="a server that waits")
    # Some by libcephfs, some through FUSE.
    writers = [Syncer(cl) for _ in range(2)] + [Syncer(cl, FILER) for _ in range(2)]
    tops = [here, here] + [str(place) + here for place in mounts]
    stop = threading.Event()
    kept, slowest = [[] for _ in writers], [0.0] * len(writers)
    failed = []

    def work(n):
        step = 0
        while not stop.is_set():
            begun = time.monotonic()
            code = writers[n].append(f"{tops[n]}/log.{n}", f"{step}\n", timeout=300)
            slowest[n] = max(slowest[n], time.monotonic() - begun)
            if code != 0:
                failed.append((n, step, code))
                return
            kept[n].append(step)
            step += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(writers))]
    for t in threads:
        t.start()
    rng = random.Random(1)
    servers_paused, clients_paused = [], []
    try:
        for _ in range(20):
            marks = [len(k) for k in kept]
            eventually(lambda: all(len(k) > m for k, m in zip(kept, marks)) or failed, timeout=300, what="every writer to go on")
            assert not failed, failed
            slowest[:] = [0.0] * len(writers)
            first = servers.active()
            killed = time.monotonic()
            servers.kill(first)
            eventually(lambda: servers.active() not in (None, first), timeout=120, what="another server")
            servers_paused.append(time.monotonic() - killed)
            marks = [len(k) for k in kept]
            eventually(lambda: all(len(k) > m + 1 for k, m in zip(kept, marks)) or failed, timeout=300, what="every writer to go on")
            clients_paused.append(max(slowest))
            servers.start(first)
            eventually(lambda: waits in [state for _, state in servers.states().values()], timeout=120, what="the server that came back")
            # Not always at the same point of the load.
            stop.wait(rng.random())
    finally:
        stop.set()
        for t in threads:
            t.join(300)
        cl.run("ceph", "fs", "set", "cephfs", "allow_standby_replay", "false")
    assert not failed, failed
    assert [w.end() for w in writers] == [0] * len(writers)
    for n, steps in enumerate(kept):
        assert read(clients[0], f"{here}/log.{n}", 1 << 24).decode().split() == [str(s) for s in steps]
    eventually(lambda: sorted(s for _, s in servers.states().values()) == ["up:active", "up:standby"], what="a server that waits")
    for what, pauses in ("server", servers_paused), ("clients", clients_paused):
        print(f"pauses of the {what}: median {sorted(pauses)[len(pauses) // 2]:.1f} s, longest {max(pauses):.1f} s")


def test_operators_see_what_is_in_memory(cl, servers, clients, here):
    one, _ = clients
    tell = lambda *args: cl.ceph_json("tell", f"mds.{servers.active()}", *args)
    one.mkdir(f"{here}/d", 0o750)
    for n in range(3):
        write(one, f"{here}/d/{n}", b"data")
    fd = one.open(f"{here}/d/1", os.O_RDONLY)
    ino = one.stat(f"{here}/d/1").st_ino
    try:
        found = tell("dump", "inode", str(ino))
        assert (found["path"], found["ino"], found["nlink"], found["is_auth"]) == (f"{here}/d/1", ino, 1, True)
        caps = {c["client_id"]: c for c in found["client_caps"]}
        assert "Fs" in caps[one.get_instance_id()]["issued"] or "r" in caps[one.get_instance_id()]["issued"], caps
        # What is below comes first.
        paths = [i["path"] for i in tell("dump", "tree", f"{here}/d")]
        assert sorted(paths[:-1]) == [f"{here}/d/{n}" for n in range(3)] and paths[-1] == f"{here}/d"
        assert [i["path"] for i in tell("dump", "tree", f"{here}/d", "0")] == [f"{here}/d"]
        roots = [s for s in tell("get", "subtrees") if s["dir"]["path"] == ""]
        assert [(s["is_auth"], s["auth_first"]) for s in roots] == [(True, 0)]
        if not servers.stock:
            for what in (("dump", "inode", "12345"), ("dump", "tree", f"{here}/none")):
                refused = cl.run("ceph", "tell", f"mds.{servers.active()}", *what, check=False)
                assert refused.returncode == errno.ENOENT and b"not in the cache" in refused.stderr, refused.stderr
    finally:
        one.close(fd)


def test_the_cache_is_dropped(cl, servers, clients, here):
    one, two = clients
    tell = lambda *args: cl.ceph_json("tell", f"mds.{servers.active()}", *args)
    for n in range(400):
        one.close(one.open(f"{here}/{n}", os.O_WRONLY | os.O_CREAT, 0o644))
    before = tell("cache", "status")["pool"]["items"]
    said = tell("cache", "drop", "60")
    assert said["client_recall"]["return_code"] == 0 and said["client_recall"]["recalled"] > 0, said
    assert said["flush_journal"]["return_code"] == 0 and said["trim_cache"]["trimmed"] > 0, said
    if not servers.stock:
        assert said["pool"]["items"] < before
        # Each client keeps as many as it may in any case.
        assert tell("cache", "status")["pool"]["items"] <= before - 200
    assert len(listed(two, here)) == 400


@pytest.mark.skipif(not LONG, reason="takes minutes; SIPHON_TEST_LONG=1 runs it")
def test_the_cache_takes_the_memory_that_it_may(cl, servers, clients, here):
    if servers.stock:
        pytest.skip("what a stock server takes is its own affair")
    limit = 64 << 20
    name = servers.active()
    cl.run("ceph", "config", "set", "mds", "mds_cache_memory_limit", str(limit))

    def resident():
        text = Path(f"/proc/{servers.daemons[name].pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", text).group(1)) << 10

    used = lambda: cl.ceph_json("tell", f"mds.{name}", "cache", "status")["pool"]
    empty, most, said = resident(), 0, 0
    try:
        # More than twice as many as it may hold.
        for d in range(80):
            clients[0].mkdir(f"{here}/{d}", 0o755)
            for n in range(1_000):
                clients[0].close(clients[0].open(f"{here}/{d}/{n}", os.O_WRONLY | os.O_CREAT, 0o644))
            most, said = max(most, resident()), max(said, used()["bytes"])
        print(f"limit {limit >> 20} MiB: cache status says {said >> 20} MiB at most, resident {most - empty >> 20} MiB more than empty, {used()['items']} items")
        assert said <= 1.1 * limit and most - empty <= 1.5 * limit
    finally:
        cl.run("ceph", "config", "rm", "mds", "mds_cache_memory_limit")


def test_a_quota_is_passed_by_one_object_at_most(clients, here):
    """Each of two clients writes as fast as it can, and is stopped at most one object beyond the limit."""
    one, _ = clients
    limit, piece = 16 << 20, 1 << 20
    one.mkdir(f"{here}/d", 0o755)
    one.setxattr(f"{here}/d", "ceph.quota.max_bytes", str(limit).encode(), 0)

    def work(n):
        fs = clients[n]
        fd = fs.open(f"{here}/d/{n}", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            # Of a server that never stops it, this is the end.
            for at in range(0, 8 * limit, piece):
                fs.write(fd, b"x" * piece, at)
        except cephfs.Error as e:
            assert e.args[0] == errno.EDQUOT, e
            refused.append(n)
        finally:
            fs.close(fd)

    refused = []
    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE)
    written = sum(one.stat(f"{here}/d/{n}").st_size for n in range(2))
    print(f"{written / limit:.2f} of the limit written")
    assert sorted(refused) == [0, 1], "both were refused"
    assert limit <= written <= limit + 2 * (4 << 20)


def test_a_subvolume_through_a_mounted_tree(clients, mounts, here):
    """`ceph-fuse` loses what an inode number has above 48 bits: what is below a directory must still be reached."""
    clients[0].setxattr(here, "ceph.dir.subvolume", b"1", 0)
    top = mounts[0] / here[1:]
    (top / "d/e").mkdir(parents=True)
    (top / "d/e/f").write_text("text")
    assert (top / "d/e/f").stat().st_ino < 1 << 48
    assert (mounts[1] / here[1:] / "d/e/f").read_text() == "text"
