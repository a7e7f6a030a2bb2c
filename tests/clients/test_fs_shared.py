"""A directory in which one client changes names and others list it and look names up: each sees the names as they are, none aborts, also
when the server is killed.
"""
import json
import subprocess
import sys

import pytest

from conftest import CHROOT, eventually

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="the metadata server runs outside of the chroot")
cephfs = pytest.importorskip("cephfs")
from file_systems import PATIENCE, active_and_waiting, new_cluster

# A client that changes names, one that lists them twice at the same time, and one that looks them up, in a process of their own until it
# is told to end. It says what each saw that no order of the changes explains.
WORKER = """
import cephfs, json, os, random, sys, threading, time
conf, seed = sys.argv[1], int(sys.argv[2])
def mount():
    fs = cephfs.LibCephFS(conffile=conf)
    fs.mount()
    return fs
writer, lister, looker = mount(), mount(), mount()
writer.mkdir("/shared", 0o755)
ends = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), ends.set()), daemon=True).start()
now = time.monotonic
# Of each name the changes: when it began and ended, and what the name stands for from then on.
changes, counts, failed = {}, {"changes": 0, "lists": 0, "looks": 0}, []
looks, lists = [], []

def change(rng):
    there, made = {}, 0
    while not ends.is_set():
        kind = rng.random()
        begin = now()
        if kind < 0.6 or len(there) < 300:
            name = f"{rng.randrange(100000):05}-{made}"
            made += 1
            fd = writer.open(f"/shared/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            ino = writer.fstat(fd).st_ino
            writer.close(fd)
            of = [(name, ino)]
        elif kind < 0.8:
            name = rng.choice(list(there))
            writer.unlink(f"/shared/{name}")
            of = [(name, None)]
        else:
            old, new = rng.choice(list(there)), rng.choice(list(there))
            if old == new:
                continue
            writer.rename(f"/shared/{old}", f"/shared/{new}")
            of = [(new, there[old]), (old, None)]
        end = now()
        for name, ino in of:
            changes.setdefault(name, []).append((begin, end, ino))
            there.pop(name, None)
            if ino is not None:
                there[name] = ino
        counts["changes"] += 1

def ino_of(fs, name):
    try:
        return fs.lstat(f"/shared/{name}").st_ino
    except cephfs.ObjectNotFound:
        return None

def look(fs, name):
    begin = now()
    ino = ino_of(fs, name)
    looks.append((name, begin, now(), ino))

def listing(rng):
    while not ends.is_set():
        begin, names = now(), {}
        d = lister.opendir("/shared")
        while entry := lister.readdir(d):
            name = entry.d_name.decode()
            if name not in (".", ".."):
                names[name] = entry.d_ino
                look(lister, name)
        lister.closedir(d)
        lists.append((begin, now(), names))
        counts["lists"] += 1

def looking(rng):
    while not ends.is_set():
        names = list(changes)
        if names:
            # Some are looked up again and again.
            look(looker, rng.choice(names[-50:] if rng.random() < 0.7 else names[:50]))
            counts["looks"] += 1

def guarded(work, n):
    try:
        work(random.Random(seed * 10 + n))
    except Exception as e:
        failed.append(f"{work.__name__}: {type(e).__name__}: {e}")
        ends.set()

threads = [threading.Thread(target=guarded, args=(work, n)) for n, work in enumerate((change, listing, listing, looking))]
for t in threads:
    t.start()
while not ends.wait(1):
    print(counts["changes"], flush=True)
for t in threads:
    t.join()

def could_be(name, begin, end):
    "What a name may have stood for at some moment between these."
    since, value, found = float("-inf"), None, set()
    for start, done, ino in changes.get(name, ()):
        if since <= end and done >= begin:
            found.add(value)
        since, value = start, ino
    if since <= end:
        found.add(value)
    return found

wrong = list(failed)
for name, begin, end, ino in looks:
    if ino not in could_be(name, begin, end):
        wrong.append(f"{name} was {ino} from {begin} to {end}: {changes.get(name)}")
for begin, end, names in lists:
    for name in set(names) | set(changes):
        if names.get(name) not in could_be(name, begin, end):
            wrong.append(f"{name} was listed as {names.get(name)} from {begin} to {end}: {changes.get(name)}")
print(json.dumps({"wrong": wrong[:20], **counts}), flush=True)
"""


@pytest.fixture(scope="module")
def cl(siphon_factory):
    return new_cluster(siphon_factory)


@pytest.fixture(scope="module")
def servers(cl, tmp_path_factory):
    yield from active_and_waiting(cl, tmp_path_factory.mktemp("mds"), 3)


def progress(worker, more):
    """Waits until so many more changes are done."""
    first = None
    while line := worker.stdout.readline():
        assert line[0] != "{", line
        first = int(line) if first is None else first
        if int(line) >= first + more:
            return
    raise AssertionError(f"the clients ended with {worker.wait()}")


def test_clients_see_the_names_of_a_directory_that_another_one_changes(cl, servers):
    output = servers.directory / "worker.output"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(cl.conf), "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=open(output, "wb"), text=True)
    try:
        progress(worker, 500)
        eventually(lambda: sum(s["num_leases"] for s in servers.sessions()) > 0, what="leases of names")
        progress(worker, 500)
        servers.kill("a")
        eventually(lambda: servers.active() == "b", what="b in place of a")
        progress(worker, 500)
        worker.stdin.write("end\n")
        worker.stdin.flush()
        said = worker.stdout.read().splitlines()
        assert worker.wait(PATIENCE) == 0, output.read_bytes()[-2000:]
    finally:
        worker.kill()
    said = json.loads(said[-1])
    assert not said["wrong"], said
    assert said["lists"] >= 4 and said["looks"] >= 100, said
