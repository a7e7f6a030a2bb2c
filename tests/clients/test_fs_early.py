"""Changes that a client hears of before they are durable: none is lost with a server that is killed, as long as the client lives, and no
other client sees one that may be.
"""
import json
import os
import subprocess
import sys
import threading

import pytest

from conftest import CHROOT, eventually

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="the metadata server runs outside of the chroot")
cephfs = pytest.importorskip("cephfs")
from file_systems import PATIENCE, active_and_waiting, mounted, new_cluster, read, write

# A client of its own process that changes names until it is told to end, and then says what there is to be.
WORKER = """
import cephfs, json, os, sys, threading
fs = cephfs.LibCephFS(conffile=sys.argv[1])
fs.mount()
where, synced = sys.argv[2], sys.argv[3] == "synced"
fs.mkdir(where, 0o755)
ends = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), ends.set()), daemon=True).start()
there, n = {}, 0
while not ends.is_set():
    name = f"{where}/{n}"
    data = name.encode()
    fd = fs.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 + n % 64)
    fs.write(fd, data, 0)
    if synced:
        fs.fsync(fd, 0)
    ino = fs.fstat(fd).st_ino
    fs.close(fd)
    there[name] = [ino, n % 64, len(data)]
    if n % 3 == 0:
        fs.rename(name, name + ".moved")
        there[name + ".moved"] = there.pop(name)
    elif n % 3 == 1 and n > 20:
        gone = next(iter(there))
        fs.unlink(gone)
        del there[gone]
    if n % 10 == 0:
        fs.mkdir(f"{where}/d{n}", 0o755)
        fs.symlink(name, f"{where}/d{n}/link")
        there[f"{where}/d{n}/link"] = [fs.lstat(f"{where}/d{n}/link").st_ino, None, None]
    n += 1
    if n % 100 == 0:
        print(n, flush=True)
fs.sync_fs()
print(json.dumps(there), flush=True)
sys.stdin.readline()
fs.unmount()
"""


@pytest.fixture(scope="module")
def cl(siphon_factory):
    return new_cluster(siphon_factory)


@pytest.fixture(scope="module")
def servers(cl, tmp_path_factory):
    yield from active_and_waiting(cl, tmp_path_factory.mktemp("mds"), 3)


def files(fs, where):
    """What is below a directory, with numbers."""
    found = {}
    d = fs.opendir(where)
    names = []
    while entry := fs.readdir(d):
        names.append((entry.d_name.decode(), entry.is_dir()))
    fs.closedir(d)
    for name, is_dir in names:
        if name in (".", ".."):
            continue
        path = f"{where}/{name}"
        if is_dir:
            found.update(files(fs, path))
        else:
            found[path] = fs.lstat(path).st_ino
    return found


def kill_active(servers):
    first = servers.active()
    servers.kill(first)
    other = "b" if first == "a" else "a"
    eventually(lambda: servers.active() == other, what=f"{other} in place of {first}")
    servers.start(first)
    eventually(lambda: servers.states().get(first) == (None, "up:standby"), what=f"{first} that waits")


@pytest.mark.parametrize("how", ["synced", "early"])
def test_nothing_is_lost_with_a_server(cl, servers, how):
    where = f"/{how}"
    output = servers.directory / f"{how}.output"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(cl.conf), where, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=open(output, "wb"), text=True)
    try:
        for _ in range(5):
            # It works before each of them.
            line = worker.stdout.readline()
            assert line, output.read_text(errors="replace")[-2000:]
            kill_active(servers)
        worker.stdin.write("\n")
        worker.stdin.flush()
        there = next((json.loads(line) for line in worker.stdout if line.startswith("{")), None)
        assert there, output.read_text(errors="replace")[-2000:]
        # A failover after it takes nothing away either: all is durable.
        kill_active(servers)
        fs = mounted(cl)
        try:
            found = files(fs, where)
            assert found == {name: ino for name, (ino, _, _) in there.items()}
            for name, (_, mode, size) in there.items():
                if mode is not None:
                    st = fs.stat(name)
                    assert (st.st_mode & 0o777, st.st_size) == (0o600 + mode, size), name
                    # It was moved since it was written, perhaps.
                    assert read(fs, name) == name.removesuffix(".moved").encode()
        finally:
            fs.unmount()
            fs.shutdown()
        worker.stdin.write("\n")
        worker.stdin.flush()
        assert worker.wait(PATIENCE) == 0, output.read_text(errors="replace")[-2000:]
    finally:
        worker.kill()
        worker.wait()


def test_another_client_sees_what_is_durable(cl, servers):
    """What a client that dies with the server has made, another one sees as long as it was there once."""
    fs = mounted(cl)
    try:
        fs.mkdir("/seen", 0o755)
        output = servers.directory / "seen.output"
        worker = subprocess.Popen([sys.executable, "-c", WORKER, str(cl.conf), "/seen/below", "early"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=open(output, "wb"), text=True)
        seen = set()
        ends = threading.Event()

        def look():
            other = mounted(cl)
            n = 0
            while not ends.is_set():
                try:
                    other.stat(f"/seen/below/d{n}")
                    seen.add(f"/seen/below/d{n}")
                    n += 10
                except cephfs.ObjectNotFound:
                    pass
            other.unmount()
            other.shutdown()

        assert worker.stdout.readline(), output.read_text(errors="replace")[-2000:]
        looker = threading.Thread(target=look)
        looker.start()
        eventually(lambda: len(seen) > 20, what="directories that the other client sees")
        first = servers.active()
        # Both at once.
        servers.daemons[first].kill()
        worker.kill()
        worker.wait()
        ends.set()
        kill_active_after(servers, first)
        looker.join(PATIENCE)
        assert not looker.is_alive()
        for name in seen:
            fs.stat(name)
    finally:
        fs.unmount()
        fs.shutdown()


def kill_active_after(servers, first):
    servers.daemons.pop(first).wait()
    other = "b" if first == "a" else "a"
    eventually(lambda: servers.active() == other, timeout=120, what=f"{other} in place of {first}")
    servers.start(first)
    eventually(lambda: servers.states().get(first) == (None, "up:standby"), what=f"{first} that waits")


def test_the_option_is_taken_at_once(cl, servers):
    """Without the option a client hears of its changes when they are durable."""
    fs = mounted(cl)
    try:
        fs.mkdir("/option", 0o755)
        for value in ("false", "true"):
            cl.command(prefix="config set", who="mds", name="mds_early_reply", value=value)
            for n in range(20):
                write(fs, f"/option/{value}.{n}", b"x")
            assert len(files(fs, "/option")) == (20 if value == "false" else 40)
    finally:
        cl.command(prefix="config rm", who="mds", name="mds_early_reply")
        fs.unmount()
        fs.shutdown()
