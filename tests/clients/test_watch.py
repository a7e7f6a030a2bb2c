"""Watches and notifications: the command line, the Python binding, and librados' C interface."""
import contextlib
import errno
import functools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import native
import pytest
from conftest import CHROOT, Cluster, eventually

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="test_binding_in_chroot.py runs these tests inside")

WATCHER = Path(__file__).with_name("native.py")


@pytest.fixture
def client(cluster):
    c = native.Client(cluster.conf, cluster.mode)
    yield c
    c.close()


@pytest.fixture
def io(client, pool):
    io = client.io(pool)
    io.put("o")
    yield io
    io.close()


class Watcher:
    """A watcher in a process of its own."""

    def __init__(self, cluster, pool, name, timeout=0, reply="heard"):
        # A process of its own can be stopped and killed.
        argv = [sys.executable, str(WATCHER), str(cluster.conf), cluster.mode, pool, name, str(timeout), reply or ""]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        ready = self.hears("ready")
        self.id, self.cookie = ready["client"], ready["cookie"]

    def read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def hears(self, event, timeout=60):
        """The next such event; others before it are dropped."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            if found["event"] == event:
                return found

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.hears(what)

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()


@pytest.fixture
def watcher(cluster, pool, io):
    made = []

    def make(name="o", **kw):
        made.append(Watcher(cluster, pool, name, **kw))
        return made[-1]

    yield make
    for w in made:
        w.end()


def listed(cluster, pool, name="o", *more):
    """Who watches: (client, cookie) and the address."""
    out = cluster.rados("-p", pool, *more, "listwatchers", name).stdout.decode()
    rows = [re.fullmatch(r"watcher=(\S+) client\.(\d+) cookie=(\d+)", line)
            for line in out.splitlines() if not line.startswith("selected snap")]
    assert all(rows), out
    return {(int(r[2]), int(r[3])): r[1] for r in rows}


def primary(cluster, pool, name="o"):
    return cluster.ceph_json("osd", "map", pool, name)["acting_primary"]


def dumped(cluster, pool, name="o"):
    rows = cluster.ceph_json("tell", f"osd.{primary(cluster, pool, name)}", "dump_watchers")
    return [r for r in rows if r["object"] == name]


def gone(cluster, pool, timeout=60):
    start = time.monotonic()
    eventually(lambda: not listed(cluster, pool), timeout, "the watch to end")
    return time.monotonic() - start


# --- the command line ---

def test_rados_watch_and_notify(cluster, pool, io):
    assert listed(cluster, pool) == {}
    argv = cluster.argv("rados", "-p", pool, "watch", "o")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline() == "press enter to exit...\n"
        [((client, cookie), addr)] = listed(cluster, pool).items()
        assert re.fullmatch(r"127\.0\.0\.1:0/\d+", addr)
        out = cluster.rados("-p", pool, "notify", "o", "hello").stdout.decode()
        assert f"reply client.{client} cookie {cookie} : 9 bytes" in out, out
        heard = p.stdout.readline()
        assert re.match(rf"NOTIFY cookie {cookie} notify_id \d+ from \d+$", heard), heard
        p.communicate("\n", timeout=30)
        assert p.returncode == 0
    assert listed(cluster, pool) == {}
    assert cluster.rados("-p", pool, "notify", "o", "anybody?").stdout == b""


def test_what_does_not_exist(cluster, pool):
    cluster.fails("rados", "-p", pool, "listwatchers", "none", errno=1, text="(2) No such file")
    out = cluster.run("rados", "-p", pool, "notify", "none", "x", check=False)
    assert b"No such file" in out.stderr, out
    out = cluster.run("rados", "-p", pool, "watch", "none", check=False)
    assert b"No such file" in out.stderr, out


def test_dump_watchers(cluster, pool, client, io):
    named = client.io(pool, "space")
    named.put("o")
    a, b = io.watch("o", timeout=77), named.watch("o")
    rows = {r["namespace"]: r for r in dumped(cluster, pool)}
    assert rows[""]["entity_name"] == {"type": "client", "num": client.id}
    assert (rows[""]["cookie"], rows[""]["timeout"]) == (a.cookie, 77)
    assert set(rows[""]["entity_addr_t"]) == {"type", "addr", "nonce"}
    if primary(cluster, pool) == cluster.ceph_json("osd", "map", pool, "o", "space")["acting_primary"]:
        assert (rows["space"]["cookie"], rows["space"]["timeout"]) == (b.cookie, 30)
    a.unwatch()
    b.unwatch()
    assert dumped(cluster, pool) == []
    named.close()


# --- the binding ---

def test_python_binding(cluster, pool):
    rados = pytest.importorskip("rados")
    r = rados.Rados(conffile=str(cluster.conf), conf={
        "ms_client_mode": cluster.mode, "ms_mon_client_mode": cluster.mode, "client_mount_timeout": "30"})
    r.connect()
    try:
        io = r.open_ioctx(pool)
        io.write_full("b", b"x")
        heard, finished, acked = [], threading.Event(), []

        def on_notify(notify_id, notifier, watch, data):
            heard.append((notifier, watch, data))
            return "fine"

        def on_complete(completion, result, acks, timeouts):
            acked.append((result, acks, timeouts))
            finished.set()

        with io.watch("b", on_notify) as watch:
            assert 0 <= watch.check().total_seconds() < 30
            assert io.notify("b", "one") is True
            assert heard == [(r.get_instance_id(), watch.get_id(), b"one")]
            io.aio_notify("b", on_complete, "two", 5000)
            assert finished.wait(30)
            [(result, acks, timeouts)] = acked
            assert result == 0 and timeouts == []
            assert [(a[0], a[1]) for a in acks] == [(r.get_instance_id(), watch.get_id())]
        assert io.notify("b", "three") is True
        assert len(heard) == 2
        with pytest.raises(rados.ObjectNotFound):
            io.watch("missing", on_notify)
        with pytest.raises(rados.ObjectNotFound):
            io.notify("missing", "x")
        io.close()
    finally:
        r.shutdown()


# --- notifications ---

def test_answers_are_gathered(cluster, pool, client, io, watcher):
    mine = [io.watch("o", answer=lambda d: b"a:" + d), io.watch("o", answer=lambda d: b"")]
    other = watcher(reply="from afar")
    replies, missed = io.notify("o", b"question", timeout=30)
    assert replies == {(client.id, mine[0].cookie): b"a:question", (client.id, mine[1].cookie): b"",
                       (other.id, other.cookie): b"from afar"}
    assert missed == []
    assert other.hears("notify")["data"] == "question"
    ids = [w.notified[0][0] for w in mine]
    assert ids[0] == ids[1]
    mine[1].unwatch()
    replies, _ = io.notify("o", b"again", timeout=30)
    assert set(replies) == {(client.id, mine[0].cookie), (other.id, other.cookie)}
    assert mine[0].notified[1][0] != ids[0]
    mine[0].unwatch()
def test_large_payloads(client, io):
    w = io.watch("o", answer=lambda d: d[::-1])
    big = os.urandom(1 << 20)
    assert io.notify("o", big, timeout=30) == ({(client.id, w.cookie): big[::-1]}, [])
    w.unwatch()


def test_a_watcher_that_does_not_answer(client, io):
    mute, good = io.watch("o", answer=lambda d: None), io.watch("o", answer=lambda d: b"y")
    start = time.monotonic()
    with pytest.raises(native.Failed) as e:
        io.notify("o", b"x", timeout=2)
    assert 1.9 < time.monotonic() - start < 10
    assert e.value.errno == errno.ETIMEDOUT
    assert e.value.replies == {(client.id, good.cookie): b"y"}
    assert e.value.missed == [(client.id, mute.cookie)]
    # The watch itself is as it was.
    assert mute.check() >= 0 and mute.errors == []
    mute.unwatch()
    assert io.notify("o", b"x")[0] == {(client.id, good.cookie): b"y"}
    good.unwatch()


def test_a_watch_that_ends_is_not_waited_for(client, io):
    mute = io.watch("o", answer=lambda d: None)
    result = []
    t = threading.Thread(target=lambda: result.append(io.notify("o", b"x", timeout=60)))
    t.start()
    mute.wait(lambda w: w.notified)
    mute.unwatch()
    t.join(timeout=30)
    assert result == [({}, [])]


def test_a_killed_watcher_holds_a_notification_until_its_watch_ends(cluster, pool, io, watcher):
    w = watcher(timeout=5)
    w.signal(signal.SIGKILL)
    start = time.monotonic()
    assert io.notify("o", b"x", timeout=60) == ({}, [])
    assert time.monotonic() - start < 20
    assert listed(cluster, pool) == {}


# --- watches ---

def test_a_deleted_object_disconnects_its_watchers(cluster, pool, client, io, watcher):
    mine, other = io.watch("o"), watcher()
    io.remove("o")
    assert other.hears("error")["errno"] == errno.ENOTCONN
    assert other.ask("check")["errno"] == errno.ENOTCONN
    mine.wait(lambda w: w.errors == [errno.ENOTCONN])
    with pytest.raises(native.Failed) as e:
        mine.check()
    assert e.value.errno == errno.ENOTCONN
    with pytest.raises(native.Failed) as e:
        io.notify("o")
    assert e.value.errno == errno.ENOENT
    # The next object of that name has no watchers.
    io.put("o")
    assert listed(cluster, pool) == {}
    assert io.notify("o") == ({}, [])


def test_pings_keep_a_watch(cluster, pool, io, watcher):
    w = watcher(timeout=4)
    until = time.monotonic() + 9
    while time.monotonic() < until:
        assert (w.id, w.cookie) in listed(cluster, pool)
        assert w.ask("check")["result"] < 4000
        time.sleep(0.5)


def test_a_stopped_watcher_loses_its_watch(cluster, pool, io, watcher):
    w = watcher(timeout=5)
    w.signal(signal.SIGSTOP)
    took = gone(cluster, pool, 30)
    assert 2 < took < 15, took
    assert dumped(cluster, pool) == []
    w.signal(signal.SIGCONT)
    assert w.hears("error")["errno"] == errno.ENOTCONN
    assert w.ask("check")["errno"] == errno.ENOTCONN
    assert io.notify("o") == ({}, [])


def test_a_killed_watcher_keeps_its_watch_until_it_times_out(cluster, pool, io, watcher):
    w = watcher(timeout=5)
    w.signal(signal.SIGKILL)
    w.process.wait()
    assert (w.id, w.cookie) in listed(cluster, pool)
    took = gone(cluster, pool, 30)
    assert 2 < took < 15, took


def test_a_blocked_watcher_is_dropped(cluster, pool, io, watcher):
    w, other = watcher(), watcher()
    addr = listed(cluster, pool)[w.id, w.cookie]
    cluster.ceph("osd", "blocklist", "add", addr)
    try:
        eventually(lambda: set(listed(cluster, pool)) == {(other.id, other.cookie)}, 20, "the blocked watch to end")
        assert w.hears("error")["errno"] in (errno.ENOTCONN, errno.ESHUTDOWN)
        replies, _ = io.notify("o", b"x", timeout=30)
        assert set(replies) == {(other.id, other.cookie)}
    finally:
        cluster.ceph("osd", "blocklist", "rm", addr)


def test_watchers_are_of_the_head(cluster, pool, io):
    w = io.watch("o")
    cluster.rados("-p", pool, "mksnap", "s")
    # By a client that knows of the snapshot.
    cluster.rados("-p", pool, "put", "o", "-", data=b"newer")
    assert len(listed(cluster, pool)) == 1
    assert cluster.rados("-p", pool, "-s", "s", "get", "o", "-").stdout.endswith(b"\nx")
    assert listed(cluster, pool, "o", "-s", "s") == {}
    cluster.rados("-p", pool, "rollback", "o", "s")
    assert len(listed(cluster, pool)) == 1
    w.unwatch()
    cluster.rados("-p", pool, "rmsnap", "s")


@contextlib.contextmanager
def as_user(cluster, tmp_path, osd_caps):
    name = "client.w" + uuid.uuid4().hex[:6]
    keyring = tmp_path / f"{name}.keyring"
    keyring.write_text(cluster.ceph("auth", "get-or-create", name, "mon", "allow r", "osd", osd_caps))
    c = native.Client(cluster.conf, cluster.mode, name, keyring)
    try:
        yield c
    finally:
        c.close()
        cluster.ceph("auth", "rm", name)


@pytest.mark.parametrize("caps, watches, notifies", [("r", False, True), ("w", False, False), ("rw", True, True)])
def test_capabilities(cluster, pool, io, tmp_path, caps, watches, notifies):
    def tried(act):
        try:
            return act()
        except native.Failed as e:
            assert e.errno == errno.EPERM
            return None
    with as_user(cluster, tmp_path, f"allow {caps} pool={pool}") as c:
        theirs = c.io(pool)
        w = tried(lambda: theirs.watch("o"))
        assert (w is not None) == watches
        if w:
            w.unwatch()
        assert (tried(lambda: theirs.notify("o")) is not None) == notifies
        theirs.close()


@pytest.mark.skipif(shutil.which("rbd") is None, reason="there is no rbd here")
def test_the_owner_of_an_image_is_asked_by_notification(cluster, pool):
    rbd = functools.partial(cluster.run, "rbd", "-p", pool)
    rbd("create", "img", "--size", "64M")
    argv = cluster.argv("rbd", "-p", pool, "bench", "--io-type", "write", "--io-threads", "1", "--io-total", "64G", "img")
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as writer:
        try:
            lock = eventually(lambda: rbd("lock", "ls", "img").stdout.decode(), 30, "the writer's lock")
            owner = re.search(r"(client\.\d+)\s+auto (\d+)", lock)
            assert f"{owner[1]} cookie={owner[2]}" in rbd("status", "img").stdout.decode()
            # The writer keeps its lock, and does these itself.
            rbd("snap", "create", "img@s", timeout=60)
            rbd("resize", "img", "--size", "80M", timeout=60)
            assert rbd("lock", "ls", "img").stdout.decode() == lock
            assert writer.poll() is None
        finally:
            writer.kill()
    assert b" s " in rbd("snap", "ls", "img").stdout


# --- the cluster changes ---

@pytest.fixture(params=["crc", "secure"])
def own(request, siphon_factory):
    """A cluster that a test may break."""
    if os.environ.get("SIPHON_TEST_CONF"):
        pytest.skip("restarts its cluster")
    s = siphon_factory()
    s.start()
    c = Cluster(s.conf, request.param)
    c.ceph("osd", "pool", "create", "p", "8")
    c.ceph("osd", "pool", "application", "enable", "p", "rados")
    yield s, c
    s.stop()


def test_watchers_come_back_after_a_restart(own):
    siphon, cluster = own
    cluster.rados("-p", "p", "put", "o", "/etc/hostname")
    w, dead = Watcher(cluster, "p", "o", timeout=60), Watcher(cluster, "p", "o", timeout=8)
    try:
        assert len(listed(cluster, "p")) == 2
        siphon.kill()
        dead.end()
        siphon.start()
        # Both are remembered; who does not come back goes in its time.
        assert set(listed(cluster, "p")) == {(w.id, w.cookie), (dead.id, dead.cookie)}
        eventually(lambda: set(listed(cluster, "p")) == {(w.id, w.cookie)}, 60, "the dead watcher to go")
        out = cluster.rados("-p", "p", "notify", "o", "back?").stdout.decode()
        assert f"reply client.{w.id} cookie {w.cookie}" in out, out
        w.hears("notify")
        assert "result" in w.ask("check")
        assert w.ask("unwatch")["result"] is None
        assert listed(cluster, "p") == {}
    finally:
        w.end()
        dead.end()


def test_watchers_follow_the_primary(own):
    _, cluster = own
    cluster.rados("-p", "p", "put", "o", "/etc/hostname")
    w = Watcher(cluster, "p", "o", timeout=60)
    try:
        for _ in range(2):
            before = primary(cluster, "p")
            cluster.ceph("osd", "out", str(before))
            eventually(lambda: primary(cluster, "p") != before, 60, "another primary")
            assert set(listed(cluster, "p")) == {(w.id, w.cookie)}
            out = cluster.rados("-p", "p", "notify", "o", "who?", timeout=60).stdout.decode()
            assert f"reply client.{w.id} cookie {w.cookie}" in out, out
            assert dumped(cluster, "p")[0]["cookie"] == w.cookie
            cluster.ceph("osd", "in", str(before))
        assert "result" in w.ask("check")
        assert w.lines.empty() or all(e["event"] != "error" for e in list(w.lines.queue))
    finally:
        w.end()
