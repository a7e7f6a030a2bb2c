"""The exclusive lock of a block device: two clients that want it get it in turn, and an owner that no longer
answers loses it together with the right to write."""
import json
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
from conftest import CHROOT, Cluster, eventually

rados = pytest.importorskip("rados")
rbd = pytest.importorskip("rbd")
pytestmark = pytest.mark.skipif(CHROOT is not None, reason="the clients are processes of this Python")

SIZE = 4 << 20
BLOCK = 4096

# A client in a process of its own, so that it can be frozen. A line in is a command, a line out its result.
CLIENT = r"""
import json, rados, rbd, sys, threading
conf, pool, name, settings = sys.argv[1:5]
cluster = rados.Rados(conffile=conf, conf=json.loads(settings))
cluster.connect()
image = rbd.Image(cluster.open_ioctx(pool), name)

def answer(**what):
    print(json.dumps(what), flush=True)

def stream(byte, count, depth):
    # Goes on until a write fails: says how it ended.
    slots, results, lock = threading.Semaphore(depth), [], threading.Lock()
    def done(c):
        with lock:
            results.append(c.get_return_value())
        slots.release()
    n = 0
    while (not results or min(results) >= 0) and (count is None or n < count):
        slots.acquire()
        image.aio_write(bytes([byte]) * 4096, n % 1024 * 4096, done)
        n += 1
        if n == 2000:
            answer(running=True)
    for _ in range(depth):
        slots.acquire()
    answer(writes=n, good=sum(r >= 0 for r in results), errors=sorted({r for r in results if r < 0}))

answer(open=True, addrs=cluster.get_addrs())
for line in sys.stdin:
    command = json.loads(line)
    what = command.pop("do")
    try:
        if what == "write":
            image.write(bytes([command["byte"]]) * command["length"], command["at"])
            answer(owner=image.is_exclusive_lock_owner())
        elif what == "add":
            # Only the lock makes this safe: a counter is read and written again.
            for _ in range(command["times"]):
                while True:
                    try:
                        image.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)
                        break
                    except rbd.ReadOnlyImage:
                        pass  # The other has taken it by hand, and says so.
                counter = int.from_bytes(image.read(0, 8), "little") + 1
                image.write(counter.to_bytes(8, "little"), 0)
                image.lock_release()
            answer(counter=counter)
        elif what == "stream":
            stream(command["byte"], command.get("count"), command["depth"])
        elif what == "owner":
            answer(owner=image.is_exclusive_lock_owner())
        elif what == "break":
            owners = list(image.lock_get_owners())
            image.lock_break(rbd.RBD_LOCK_MODE_EXCLUSIVE, owners[0]["owner"])
            answer(owners=len(owners))
        elif what == "read":
            data = image.read(0, image.size())
            answer(bytes=sorted(set(data)))
    except Exception as e:
        answer(error=type(e).__name__, errno=getattr(e, "errno", None))
"""


class Client:
    def __init__(self, cluster, pool, image, **settings):
        settings = {"rbd_cache": "false", **dict(a.removeprefix("--").split("=") for a in cluster.args), **settings}
        self.process = subprocess.Popen([sys.executable, "-c", CLIENT, str(cluster.conf), pool, image, json.dumps(settings)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addrs = self.answer()["addrs"]

    def answer(self):
        line = self.process.stdout.readline()
        assert line, f"the client ended: {self.process.wait()}"
        return json.loads(line)

    def send(self, what, **arguments):
        self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self.process.stdin.flush()

    def __call__(self, what, **arguments):
        self.send(what, **arguments)
        return self.answer()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def clients():
    made = []

    def make(*args, **kw):
        made.append(Client(*args, **kw))
        return made[-1]

    yield make
    for c in made:
        c.end()


@pytest.fixture
def image(cluster):
    yield from make_image(cluster)


def make_image(cluster):
    pool = "rbd-" + uuid.uuid4().hex[:8]
    cluster.make_pool(pool, 8, application=None)
    cluster.run("rbd", "pool", "init", pool)
    cluster.run("rbd", "create", f"{pool}/img", "--size", "4M", "--object-size", "64K")
    yield pool, "img"
    cluster.delete_pool(pool)


def content(cluster, image):
    return cluster.run("rbd", "export", "--no-progress", "/".join(image), "-").stdout


def test_hand_over(cluster, image, clients):
    """Two clients that write in turn: the one that has the lock gives it away when it is asked to."""
    pair = [clients(cluster, *image), clients(cluster, *image)]
    expected = bytearray(SIZE)
    for turn in range(30):
        mine, other = pair[turn % 2], pair[1 - turn % 2]
        at, length = turn * 5000, 70000
        assert mine("write", byte=turn + 1, at=at, length=length) == {"owner": True}
        assert other("owner") == {"owner": False}
        expected[at:at + length] = bytes([turn + 1]) * length
    assert content(cluster, image) == expected
    entries = blocklist(cluster)
    assert all(nonce not in entries for nonce in nonces(pair[0]) + nonces(pair[1])), entries


def test_both_at_once(cluster, image, clients):
    """Two clients that write all the time: the lock goes to and fro, and no request is lost."""
    pair = [clients(cluster, *image), clients(cluster, *image)]
    for byte, c in enumerate(pair, 1):
        c.send("stream", byte=byte, count=1024, depth=8)
    for c in pair:
        assert c.answer() == {"writes": 1024, "good": 1024, "errors": []}
    data = content(cluster, image)
    blocks = {data[at:at + BLOCK] for at in range(0, SIZE, BLOCK)}
    assert blocks <= {bytes([1]) * BLOCK, bytes([2]) * BLOCK}


def test_counter(cluster, image, clients):
    """The lock held by hand: what is done under it is done by one at a time."""
    pair = [clients(cluster, *image), clients(cluster, *image)]
    for c in pair:
        c.send("add", times=10)
    last = [c.answer() for c in pair]
    assert max(a.get("counter", 0) for a in last) == 20, last
    assert int.from_bytes(content(cluster, image)[:8], "little") == 20


def nonces(client):
    """How a client's addresses end: they are unique to it."""
    return [part.split("]")[0] for part in client.addrs.split("/")[1:]]


def blocklist(cluster):
    """The entries, as text: 16.2 prints a second list behind the first, which makes it no JSON."""
    return cluster.ceph("osd", "blocklist", "ls", "--format", "json")


def blocklisted(cluster, client):
    entries = blocklist(cluster)
    return any("/" + nonce in entries for nonce in nonces(client))


def freeze(client):
    client.send("stream", byte=0xaa, depth=32)
    assert client.answer() == {"running": True}
    client.signal(signal.SIGSTOP)


def thaw_and_check(cluster, image, frozen, byte):
    """Nothing of what the frozen client had in its hands lands, and it is told so."""
    assert content(cluster, image) == bytes([byte]) * SIZE
    frozen.signal(signal.SIGCONT)
    end = frozen.answer()
    assert end["errors"] == [-108] and end["good"] < end["writes"], end
    assert frozen("write", byte=0xbb, at=0, length=BLOCK).get("errno") == 108
    assert content(cluster, image) == bytes([byte]) * SIZE


def test_frozen_owner(cluster, image, clients):
    """The owner stops to answer. When its watch has gone the next client that writes takes the lock, and
    has the owner blocklisted first."""
    if "SIPHON_TEST_CONF" not in os.environ:
        cluster.ceph("config", "set", "osd", "osd_client_watch_timeout", "8")
    try:
        frozen, other = clients(cluster, *image), clients(cluster, *image)
        freeze(frozen)
        started = time.monotonic()
        assert other("write", byte=7, at=0, length=SIZE) == {"owner": True}
        print(f"taken after {time.monotonic() - started:.1f} s")
        assert blocklisted(cluster, frozen)
        thaw_and_check(cluster, image, frozen, 7)
        assert other("write", byte=8, at=0, length=SIZE) == {"owner": True}
        assert content(cluster, image) == bytes([8]) * SIZE
    finally:
        if "SIPHON_TEST_CONF" not in os.environ:
            cluster.ceph("config", "rm", "osd", "osd_client_watch_timeout")


def test_broken_by_hand(cluster, image, clients):
    """The lock is broken while the owner's watch is still there."""
    frozen, other = clients(cluster, *image), clients(cluster, *image)
    freeze(frozen)
    assert other("break") == {"owners": 1}
    assert blocklisted(cluster, frozen)
    assert other("write", byte=7, at=0, length=SIZE) == {"owner": True}
    thaw_and_check(cluster, image, frozen, 7)


@pytest.mark.skipif("SIPHON_TEST_CONF" in os.environ, reason="kills the cluster")
def test_blocklist_survives(siphon_factory, clients):
    """A client stays shut out when the cluster's process is killed and started again."""
    owned = siphon_factory()
    owned.start()
    cluster = Cluster(owned.conf, "default")
    cluster.ceph("config", "set", "mon", "mon_allow_pool_delete", "true")
    for image in make_image(cluster):
        frozen, other = clients(cluster, *image), clients(cluster, *image)
        freeze(frozen)
        assert other("break") == {"owners": 1}
        assert other("write", byte=7, at=0, length=SIZE) == {"owner": True}
        owned.kill()
        owned.start()
        assert blocklisted(cluster, frozen)
        thaw_and_check(cluster, image, frozen, 7)
        assert other("write", byte=8, at=0, length=SIZE) == {"owner": True}
        assert content(cluster, image) == bytes([8]) * SIZE
        other.end()
    owned.stop()
