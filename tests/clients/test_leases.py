"""Nobody serves a read that later writes have made old, and nobody waits for leases without need."""
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

from conftest import eventually
from processes import Processes
from test_processes import clean, up

rados = pytest.importorskip("rados")

GRACE = 5


@pytest.fixture(scope="module")
def procs():
    base = Path(tempfile.mkdtemp(prefix="siphon-leases."))
    p = Processes(base)
    try:
        p.start()
        c = p.client()
        # Before there are groups: a promise that was given for longer is kept.
        c.ceph("config", "set", "global", "osd_heartbeat_interval", "1")
        c.ceph("config", "set", "global", "osd_heartbeat_grace", str(GRACE))
        c.ceph("osd", "pool", "create", "d", "1")
        c.ceph("osd", "pool", "application", "enable", "d", "rados")
        eventually(lambda: clean(c), what="active+clean")
        yield p
    finally:
        for n in ("osd.0", "osd.1", "osd.2"):
            if n in p.daemons and p[n].running:
                p[n].signal(signal.SIGCONT)
        p.stop()
        if not os.environ.get("SIPHON_TEST_KEEP"):
            shutil.rmtree(base, ignore_errors=True)


def connect(procs):
    c = rados.Rados(conffile=str(procs.conf), conf={"rados_osd_op_timeout": "60", "rados_mon_op_timeout": "60"})
    c.connect(timeout=30)
    return c


def primary(c):
    return c.ceph_json("osd", "map", "d", "x")["acting_primary"]


def test_a_primary_that_stood_still_serves_no_old_reads(procs):
    """Reads that are in its sockets when it goes on are as late as it is."""
    c = procs.client()
    old, new = connect(procs), connect(procs)
    reader, writer = old.open_ioctx("d"), new.open_ioctx("d")
    names = [f"o{i}" for i in range(32)]
    for n in names:
        writer.write_full(n, b"old")
        assert reader.read(n) == b"old"
    first = primary(c)
    osd = procs[f"osd.{first}"]
    osd.signal(signal.SIGSTOP)
    try:
        # Before the first client can know of another primary: these requests wait in the sockets of the one that stands still.
        done = []
        pending = []
        for n in names:
            pending.append(reader.aio_read(n, 10, 0, lambda comp, data: done.append(data)))
        eventually(lambda: not up(c, first), timeout=60, what="the map to call it down")
        # A client that has the newest map: others ask for it when they have waited for ten seconds.
        fresh = connect(procs)
        down = time.monotonic()
        writer = fresh.open_ioctx("d")
        for n in names:
            writer.write_full(n, b"new")
        served = time.monotonic() - down
    finally:
        osd.signal(signal.SIGCONT)
    # Reads that begin now, on the same session, must see the writes.
    for _ in range(20):
        for n in names:
            assert reader.read(n) == b"new"
    eventually(lambda: len(done) == len(names), timeout=60, what="answers to the reads that waited")
    # Those that began before the writes may have seen either, but never nothing.
    assert set(done) <= {b"old", b"new"}
    # Its lease ended before it was called down: nobody waits.
    print(f"all was written within {served:.1f} s")
    assert served < 6
    eventually(lambda: clean(c), timeout=90, what="active+clean")
    for client in (old, new, fresh):
        client.shutdown()


def test_a_primary_whose_replica_stands_still_is_laggy(procs):
    c = procs.client()
    eventually(lambda: clean(c), timeout=60, what="active+clean")
    c.ceph("osd", "set", "nodown")
    client = connect(procs)
    io = client.open_ioctx("d")
    io.write_full("x", b"1")
    first = primary(c)
    replica = next(o for o in range(3) if o != first)
    procs[f"osd.{replica}"].signal(signal.SIGSTOP)
    try:
        states = lambda: c.ceph_json("status")["pgmap"]["pgs_by_state"]
        eventually(lambda: any("laggy" in s["state_name"] for s in states()), timeout=30, what="a group that is laggy")
        answers = []
        comp = io.aio_read("x", 10, 0, lambda comp, data: answers.append(data))
        time.sleep(2)
        assert not answers, "nobody lets it read"
    finally:
        procs[f"osd.{replica}"].signal(signal.SIGCONT)
        c.ceph("osd", "unset", "nodown")
    eventually(lambda: answers == [b"1"], timeout=60, what="the answer")
    del comp
    eventually(lambda: clean(c), timeout=60, what="active+clean")
    client.shutdown()


def test_replicas_serve_reads_that_allow_it(procs):
    c = procs.client()
    eventually(lambda: clean(c), timeout=60, what="active+clean")
    client = connect(procs)
    io = client.open_ioctx("d")
    for i in range(50):
        io.write_full(f"r{i}", b"%d" % i)

    def served():
        return {o: c.ceph_json("tell", f"osd.{o}", "perf", "dump")["osd"]["op_r"] for o in range(3)}

    others = [o for o in range(3) if o != primary(c)]
    before = served()

    def some_served():
        for i in range(50):
            with rados.ReadOpCtx() as op:
                _rows = io.get_omap_vals(op, "", "", 1)
                # LIBRADOS_OPERATION_BALANCE_READS
                io.operate_read_op(op, f"r{i}", 1)
        after = served()
        return all(after[o] >= before[o] + 5 for o in others)

    # They may as soon as the primary has told them that the writes are everywhere.
    eventually(some_served, timeout=60, what="reads served by replicas")
    for i in range(50):
        assert io.read(f"r{i}") == b"%d" % i
    client.shutdown()


# From here on leases are long.


def pause_of_a_writer(procs, disturb):
    """The longest time between two answers while something happens."""
    client = connect(procs)
    io = client.open_ioctx("d")
    stop, worst = threading.Event(), [0.0]

    done = [0]

    def write():
        last = time.monotonic()
        i = 0
        while not stop.is_set():
            io.write_full(f"w{i % 8}", os.urandom(100))
            assert io.read(f"w{i % 8}", 200)
            now = time.monotonic()
            worst[0] = max(worst[0], now - last)
            last, i = now, i + 1
            done[0] = i

    t = threading.Thread(target=write)
    t.start()
    try:
        eventually(lambda: done[0] > 20, timeout=60, what="a writer that writes")
        disturb()
        # Each of its objects twice, wherever they are.
        before = done[0]
        eventually(lambda: done[0] > before + 16, timeout=120, what="the writer to go on")
    finally:
        stop.set()
        t.join()
    client.shutdown()
    return worst[0]


def test_a_killed_primary_is_not_waited_for(procs):
    c = procs.client()
    eventually(lambda: clean(c), timeout=60, what="active+clean")
    # A lease that would be noticed.
    c.ceph("config", "set", "osd", "osd_pool_default_read_lease_ratio", "6")
    # A round later it holds.
    time.sleep(3)
    first = primary(c)
    try:
        pause = pause_of_a_writer(procs, procs[f"osd.{first}"].kill)
        print(f"pause after SIGKILL: {pause:.2f} s")
        assert pause < 6, "its address refuses connections: it is known to be dead"
        dump = {o["osd"]: o for o in c.ceph_json("osd", "dump")["osd_xinfo"]}
        assert dump[first]["dead_epoch"] > 0
    finally:
        procs[f"osd.{first}"].start()
    eventually(lambda: clean(c), timeout=90, what="active+clean after the restart")


def test_an_orderly_stop_is_not_waited_for(procs):
    c = procs.client()
    eventually(lambda: clean(c), timeout=60, what="active+clean")
    c.ceph("config", "set", "osd", "osd_pool_default_read_lease_ratio", "6")
    # A round later it holds.
    time.sleep(3)
    first = primary(c)
    try:
        pause = pause_of_a_writer(procs, procs[f"osd.{first}"].stop)
        print(f"pause after SIGTERM: {pause:.2f} s")
        assert pause < 4
    finally:
        procs[f"osd.{first}"].start()
    eventually(lambda: clean(c), timeout=90, what="active+clean after the restart")
