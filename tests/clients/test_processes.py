"""Daemons as processes of their own: an OSD that dies, hangs or is wrongly called dead."""
import json
import os
import re
import signal
import subprocess
import threading
import time

import pytest

from conftest import BINARY, eventually
from processes import running, siphon
from test_durability import Writer, connect

rados = pytest.importorskip("rados")


@pytest.fixture(scope="module")
def procs():
    with running("siphon-processes.") as p:
        yield p


def clean(c, osds=3):
    s = c.ceph_json("status")
    states = s["pgmap"].get("pgs_by_state", [])
    return (s["osdmap"]["num_up_osds"] == osds and states and
            all(x["state_name"] == "active+clean" for x in states))


def up(c, osd):
    return {o["osd"]: o["up"] for o in c.ceph_json("osd", "dump")["osds"]}[osd] == 1


@pytest.mark.parametrize("mode", ["crc", "secure"])
def test_stock_clients(procs, mode, tmp_path):
    c = procs.client(mode)
    eventually(lambda: clean(c), what="active+clean")
    assert "HEALTH_OK" in c.ceph("-s")
    data = os.urandom(5_000_000)
    (tmp_path / "in").write_bytes(data)
    c.rados("-p", "d", "put", f"big-{mode}", tmp_path / "in")
    c.rados("-p", "d", "get", f"big-{mode}", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data
    assert f"big-{mode}" in c.rados("-p", "d", "ls").stdout.decode()
    c.rados("-p", "d", "bench", "2", "write", "-b", "65536", "--no-cleanup")
    for osd in range(3):
        assert c.ceph_json("tell", f"osd.{osd}", "status")["state"] == "active"
    # Pings have an address of their own.
    dump = c.ceph_json("osd", "dump")["osds"]
    assert all(o["heartbeat_back_addrs"] != o["public_addrs"] for o in dump)
    with open(f"/proc/{procs['osd.0'].process.pid}/cmdline") as f:
        assert "--id\x000" in f.read()


def write_during(procs, disturb, seed):
    """Writes all the while; gives what was acknowledged, and how much after the disturbance."""
    client = connect(procs.conf)
    io = client.open_ioctx("d")
    w = Writer(io, seed=seed)
    t = threading.Thread(target=w.run, args=(f"s{seed}",))
    t.start()
    try:
        eventually(lambda: len(w.acked) > 20, what="writes")
        disturb()
        with w.lock:
            before = len(w.acked)
        began = time.monotonic()
        eventually(lambda: len(w.acked) > before + 20, timeout=30, what="writes after the disturbance")
        took = time.monotonic() - began
    finally:
        w.stop = True
        for _ in range(64):
            w.slots.release()
        t.join()
    eventually(w.answered, timeout=60, what="the last answers")
    return client, io, w, took


def check_all(io, w):
    for name, data in w.acked.items():
        assert io.read(name, length=len(data) + 1_000_000) == data, name


class Bench:
    """`rados bench`, and how many of its writes were answered so far."""

    def __init__(self, c, seconds):
        self.process = subprocess.Popen(c.argv("rados", "-p", "d", "bench", seconds, "write", "-b", "4096", "-t", "16", "--run-name", "ride", "--no-cleanup"),
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines, self.finished = [], 0
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            fields = line.split()
            # Of each second: which, operations under way, begun, finished.
            if len(fields) > 7 and all(f.isdigit() for f in fields[:4]):
                self.finished = int(fields[3])

    def goes_on(self, what):
        before = self.finished
        eventually(lambda: self.finished > before, timeout=60, what=f"`rados bench` to go on {what}")
        assert self.process.poll() is None, f"it ended {what}: the restart took longer than it\n{''.join(self.lines)}"


def test_bench_and_bindings_ride_through_restarts(procs):
    """One OSD after the other is stopped or killed, and comes back. No client sees an error."""
    c = procs.client()
    eventually(lambda: clean(c), what="active+clean")
    client = connect(procs.conf)
    io = client.open_ioctx("d")
    w = Writer(io, seed=99)
    t = threading.Thread(target=w.run, args=("ride",))
    t.start()
    bench = Bench(c, 30)
    try:
        bench.goes_on("at first")
        for osd, end in ((0, "stop"), (1, "kill")):
            getattr(procs[f"osd.{osd}"], end)()
            eventually(lambda: not up(c, osd), timeout=20, what="the map to call it down")
            bench.goes_on(f"without osd.{osd}")
            procs[f"osd.{osd}"].start()
            eventually(lambda: up(c, osd), timeout=20, what="the map to call it up")
            bench.goes_on(f"with osd.{osd}")
    finally:
        w.stop = True
        for _ in range(64):
            w.slots.release()
        t.join()
        code = bench.process.wait(timeout=120)
        bench.thread.join(timeout=30)
    text = "".join(bench.lines)
    assert code == 0 and "error" not in text.lower(), f"rados bench: exit {code}\n{text}"
    total = int(re.search(r"Total writes made:\s+(\d+)", text)[1])
    assert total >= bench.finished > 0, text
    eventually(w.answered, timeout=60, what="the last answers")
    check_all(io, w)
    client.shutdown()
    eventually(lambda: clean(c), timeout=90, what="active+clean after the restarts")
    # It compares what it reads with what it wrote, and all that it wrote is there.
    c.rados("-p", "d", "bench", "2", "seq", "-t", "16", "--run-name", "ride")
    listed = sum(f"_{bench.process.pid}_object" in name for name in c.rados("-p", "d", "ls").stdout.decode().split())
    assert listed == total, (listed, total)
    c.rados("-p", "d", "cleanup", "--run-name", "ride")


@pytest.mark.parametrize("osd", [0, 1, 2])
def test_sigkill_under_a_writer(procs, osd):
    c = procs.client()
    eventually(lambda: clean(c), what="active+clean")
    died = []

    def kill():
        procs[f"osd.{osd}"].kill()
        died.append(time.monotonic())
        eventually(lambda: not up(c, osd), timeout=20, what="the map to call it down")

    client, io, w, took = write_during(procs, kill, seed=osd)
    # Its address refuses connections: no grace is waited for.
    assert took < 15
    check_all(io, w)
    procs[f"osd.{osd}"].start()
    eventually(lambda: clean(c), timeout=90, what="active+clean after the restart")
    check_all(io, w)
    # What it holds now is what the others have: it alone answers.
    for other in {0, 1, 2} - {osd}:
        c.ceph("osd", "primary-affinity", f"osd.{other}", "0")
    eventually(lambda: clean(c), what="active+clean with other primaries")
    check_all(io, w)
    for other in {0, 1, 2} - {osd}:
        c.ceph("osd", "primary-affinity", f"osd.{other}", "1")
    client.shutdown()


def test_one_that_hangs_is_found_by_its_silence(procs):
    c = procs.client()
    eventually(lambda: clean(c), what="active+clean")
    c.ceph("config", "set", "global", "osd_heartbeat_interval", "1")
    c.ceph("config", "set", "global", "osd_heartbeat_grace", "5")
    # An OSD that is not heard of for too long must not count as a reporter that is missing.
    try:
        began = []

        def hang():
            procs["osd.2"].signal(signal.SIGSTOP)
            began.append(time.monotonic())
            eventually(lambda: not up(c, 2), timeout=40, what="the map to call it down")

        client, io, w, _ = write_during(procs, hang, seed=10)
        assert time.monotonic() - began[0] < 60
        check_all(io, w)
        # It lives after all: it says so, blames nobody for the time it missed, and comes back by itself.
        procs["osd.2"].signal(signal.SIGCONT)
        eventually(lambda: clean(c), timeout=60, what="active+clean after it went on")
        assert up(c, 0) and up(c, 1)
        eventually(lambda: "marked osd.2 down, but its process still runs" in c.ceph("log", "last", "100"), what="its complaint")
        check_all(io, w)
        client.shutdown()
    finally:
        procs["osd.2"].signal(signal.SIGCONT)
        c.ceph("config", "rm", "global", "osd_heartbeat_interval")
        c.ceph("config", "rm", "global", "osd_heartbeat_grace")


def test_slow_pings_are_told(procs):
    c = procs.client()
    eventually(lambda: clean(c), what="active+clean")
    checks = lambda: c.ceph_json("health", "detail")["checks"]
    # Pings of more than a hundred nanoseconds, on average over a "minute" of a second.
    options = [("global", "osd_heartbeat_interval", "1"), ("osd", "debug_heartbeat_testing_span", "1"), ("global", "mon_warn_on_slow_ping_time", "0.0001"),
               ("mgr", "mgr_stats_period", "1")]
    for option in options:
        c.ceph("config", "set", *option)
    try:
        eventually(lambda: checks().get("OSD_SLOW_PING_TIME_BACK", {"summary": {"count": 0}})["summary"]["count"] == 6, what="the warning about all six pairs")
        check = checks()["OSD_SLOW_PING_TIME_BACK"]
        assert check["severity"] == "HEALTH_WARN" and check["summary"]["message"].startswith("Slow OSD heartbeats on back (longest ")
        lines = [d["message"] for d in check["detail"]]
        assert len(lines) == 6 and all(line.startswith("Slow OSD heartbeats on back from osd.") and line.endswith((" msec", " improving")) for line in lines), lines
        seen = c.ceph_json("tell", "osd.0", "dump_osd_network")
        assert seen["threshold"] == 0 and {e["to osd"] for e in seen["entries"]} == {1, 2}, seen
        assert all(e["from osd"] == 0 and not e["stale"] and 0 < e["min"]["1min"] <= e["average"]["1min"] <= e["max"]["15min"] for e in seen["entries"]), seen
        assert c.ceph_json("tell", "osd.0", "dump_osd_network", "60000")["entries"] == []
    finally:
        for who, option, _ in options:
            c.ceph("config", "rm", who, option)
    eventually(lambda: "OSD_SLOW_PING_TIME_BACK" not in checks(), what="the warning to go")


def test_wrongly_marked_down(procs):
    c = procs.client()
    eventually(lambda: clean(c), what="active+clean")
    before = c.ceph_json("osd", "dump")["osds"][1]
    c.ceph("osd", "down", "1")
    eventually(lambda: up(c, 1) and c.ceph_json("osd", "dump")["osds"][1]["up_from"] > before["up_from"], what="osd.1 to boot again")
    eventually(lambda: clean(c), what="active+clean")
    after = c.ceph_json("osd", "dump")["osds"][1]
    assert after["public_addrs"] == before["public_addrs"], "it is the same process"


def test_nodown_and_noup(procs):
    c = procs.client()
    eventually(lambda: clean(c), what="active+clean")
    c.ceph("osd", "set", "nodown")
    try:
        procs["osd.1"].kill()
        # As long as refused connections would need to be believed, several times over.
        time.sleep(4)
        assert up(c, 1)
    finally:
        c.ceph("osd", "unset", "nodown")
    eventually(lambda: not up(c, 1), timeout=30, what="the map to call it down")
    c.ceph("osd", "set", "noup")
    try:
        procs["osd.1"].spawn()
        procs["osd.1"].wait_serving()
        time.sleep(4)
        assert not up(c, 1)
    finally:
        c.ceph("osd", "unset", "noup")
    eventually(lambda: clean(c), what="active+clean")


def test_the_only_monitor_restarts(procs):
    c = procs.client()
    eventually(lambda: clean(c), what="active+clean")
    client = connect(procs.conf)
    io = client.open_ioctx("d")
    procs["mon.a"].kill()
    # Whoever has maps needs no monitor.
    io.write_full("without-a-monitor", b"x" * 1000)
    procs["mon.a"].start()
    assert io.read("without-a-monitor") == b"x" * 1000
    c.ceph("osd", "pool", "create", "after", "8")
    eventually(lambda: clean(c), what="active+clean")
    client.shutdown()


def test_manager_restarts(procs):
    c = procs.client()
    before = c.ceph_json("mgr", "dump")["active_gid"]
    # The new process takes the place of the old one at once, not after its grace.
    c.ceph("config", "set", "mon", "mon_mgr_beacon_grace", "3600")
    try:
        procs["mgr.x"].kill()
        procs["mgr.x"].start()
        eventually(lambda: c.ceph_json("mgr", "dump")["active_gid"] not in (0, before), what="the new process to be the active one")
    finally:
        c.ceph("config", "rm", "mon", "mon_mgr_beacon_grace")
    eventually(lambda: clean(c), what="statistics from the new process")
    eventually(lambda: c.ceph_json("osd", "df")["nodes"][0]["kb"] > 0, what="osd df")


def test_mistakes(procs, tmp_path):
    def fails(*args):
        r = subprocess.run([str(BINARY), *map(str, args)], capture_output=True, text=True, timeout=30)
        assert r.returncode not in (0, 101), r
        return r.stderr

    d = procs.dirs[0]
    assert "runs already" in fails("osd", "--data-dir", d, "--id", "0")
    assert "in use" in fails("up", "--data-dir", d)
    assert "has no osd.77" in fails("osd", "--data-dir", d, "--id", "77")
    assert "in use" in fails("join", "--data-dir", d, "--ip", "127.0.0.1", d / "join")
    assert "no cluster's data directory" in fails("osd", "--data-dir", tmp_path, "--id", "0")
    assert "no join file" in fails("join", "--data-dir", tmp_path / "x", "--ip", "127.0.0.1", d / "ceph.conf")


def test_clean_stop_and_start(procs):
    c = procs.client()
    eventually(lambda: clean(c), what="active+clean")
    for n in ("osd.0", "osd.1", "osd.2", "mgr.x", "mon.a"):
        assert procs[n].stop() == 0, n
    procs["mon.a"].start()
    for n in ("mgr.x", "osd.0", "osd.1", "osd.2"):
        procs[n].start()
    eventually(lambda: clean(c), timeout=90, what="active+clean")
    assert "big-crc" in c.rados("-p", "d", "ls").stdout.decode()


@pytest.mark.parametrize("scheduler", ["wpq", "fifo"])
def test_the_monitors_say_which_scheduler_an_osd_starts_with(procs, scheduler):
    c = procs.client()
    get = lambda option: c.ceph_json("tell", "osd.1", "config", "get", option)[option]

    def running():
        ran = c.ceph_json("tell", "osd.1", "dump_qos")["scheduler"]
        assert get("osd_op_queue") == ran, "what is shown is what runs"
        return ran

    assert running() == "mclock_scheduler"
    c.ceph("config", "set", "osd", "osd_op_queue", scheduler)
    # What was set later is there: so the OSD has heard of the scheduler, too.
    c.ceph("config", "set", "osd", "osd_op_history_size", "21")
    eventually(lambda: float(get("osd_op_history_size")) == 21, what="the settings")
    assert running() == "mclock_scheduler", "that is decided at the start"
    c.ceph("config", "rm", "osd", "osd_op_history_size")
    for expected in (scheduler, "mclock_scheduler"):
        procs["osd.1"].stop()
        procs["osd.1"].start()
        eventually(lambda: clean(c), what="active+clean")
        assert running() == expected
        c.ceph("config", "rm", "osd", "osd_op_queue")


def test_a_purged_osd_gives_its_number_back(procs):
    c = procs.client()
    eventually(lambda: clean(c), what="active+clean")
    home = procs.dirs[0]
    add = ["add", "osd", "--data-dir", home, "--size", "10G"]
    assert siphon(*add).strip() == "3"
    procs.daemon(home, "osd.3").start()
    eventually(lambda: clean(c, 4), timeout=90, what="active+clean with a fourth")
    before = {o["osd"]: o["uuid"] for o in c.ceph_json("osd", "dump")["osds"]}
    try:
        # Purged while it runs: it must be stopped before the number is used again.
        c.ceph("osd", "set", "noup")
        c.ceph("osd", "down", "3")
        c.ceph("osd", "purge", "3", "--yes-i-really-mean-it")
        r = subprocess.run([str(BINARY), *map(str, add)], capture_output=True, text=True, timeout=60)
        assert r.returncode != 0 and "osd.3 was purged or destroyed; stop it first" in r.stderr, r
    finally:
        c.ceph("osd", "unset", "noup")
    procs["osd.3"].kill()
    # Its directory is still there, with the old store: the new OSD begins with nothing.
    assert siphon(*add).strip() == "3"
    procs["osd.3"].start()
    eventually(lambda: clean(c, 4), timeout=90, what="active+clean with a new fourth")
    after = {o["osd"]: o["uuid"] for o in c.ceph_json("osd", "dump")["osds"]}
    assert after[3] != before[3] and {o: after[o] for o in range(3)} == {o: before[o] for o in range(3)}
    # One that is destroyed keeps its number, and a new store can have it. The number of one that is there is refused.
    again = [*add, "--id", "3"]
    refused = subprocess.run([str(BINARY), *map(str, again)], capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0 and "osd.3 already exists with another uuid" in refused.stderr, refused
    procs["osd.3"].kill()
    c.ceph("osd", "down", "3")
    c.ceph("osd", "destroy", "3", "--force")
    assert siphon(*again).strip() == "3"
    procs["osd.3"].start()
    eventually(lambda: clean(c, 4), timeout=90, what="active+clean with the number on a new store")
    osd = next(o for o in c.ceph_json("osd", "dump")["osds"] if o["osd"] == 3)
    assert osd["uuid"] not in (before[3], after[3]) and "destroyed" not in osd["state"]
    # And it goes for good.
    c.ceph("osd", "out", "3")
    eventually(lambda: all(3 not in p["acting"] + p["up"] and p["state"] == "active+clean"
                           for p in c.ceph_json("pg", "dump", "pgs_brief")["pg_stats"]), timeout=90, what="osd.3 to have nothing")
    procs["osd.3"].kill()
    c.ceph("osd", "down", "3")
    c.ceph("osd", "purge", "3", "--yes-i-really-mean-it")
    del procs.daemons["osd.3"]
    eventually(lambda: clean(c), what="active+clean")


def test_other_osds_tell_a_client_where_to_go(procs):
    """A client that never asks for maps by itself learns from those it still talks to that an OSD is gone."""
    c = procs.client()
    eventually(lambda: clean(c), what="active+clean")
    client = rados.Rados(conffile=str(procs.conf), conf={"objecter_timeout": "3600"})
    client.connect()
    io = client.open_ioctx("d")
    written, stop = [0] * 32, threading.Event()

    def write(i):
        while not stop.wait(0.01):
            io.write_full(f"told-{i}", b"x" * 100)
            written[i] += 1

    threads = [threading.Thread(target=write, args=(i,), daemon=True) for i in range(len(written))]
    for t in threads:
        t.start()
    eventually(lambda: min(written) > 5, what="writes to all groups")
    # Maps that it has no reason to ask for: it is behind when it asks for the next one, and gets one that says nothing.
    c.ceph("osd", "set", "noout")
    c.ceph("osd", "unset", "noout")
    procs["osd.1"].kill()
    before = list(written)
    eventually(lambda: min(w - b for w, b in zip(written, before)) > 5, what="writes to the groups that osd.1 led")
    stop.set()
    for t in threads:
        t.join()
    client.shutdown()
    procs["osd.1"].start()
    eventually(lambda: clean(c), timeout=90, what="active+clean")


def test_who_waits_for_a_living_osd_hears_that_another_leads(procs):
    """A request waits on an OSD that lives and loses the lead; its client has no other, and never asks for maps by itself."""
    c = procs.client()
    eventually(lambda: clean(c), what="active+clean")
    client = rados.Rados(conffile=str(procs.conf), conf={"objecter_timeout": "3600"})
    client.connect()
    io = client.open_ioctx("d")
    def where(n):
        m = c.ceph_json("osd", "map", "d", n)
        return m["acting_primary"] == 0 and 2 in m["acting"]
    name = next(n for n in (f"waits-{i}" for i in range(100)) if where(n))
    io.write_full(name, b"before")

    def waits():
        return any(name in op["description"] for op in c.ceph_json("tell", "osd.0", "dump_ops_in_flight")["ops"])

    # Nothing can be acknowledged without this one.
    procs["osd.2"].signal(signal.SIGSTOP)
    try:
        written = io.aio_write_full(name, b"after")
        eventually(waits, what="the write to wait on osd.0")
        c.command(prefix="osd primary-affinity", id=0, weight=0.0)
        eventually(lambda: not waits(), what="osd.0 to lose the lead")
    finally:
        procs["osd.2"].signal(signal.SIGCONT)
    try:
        eventually(written.is_complete, what="the write on another OSD")
        assert written.get_return_value() == 0 and io.read(name) == b"after"
    finally:
        c.command(prefix="osd primary-affinity", id=0, weight=1.0)
    client.shutdown()
    eventually(lambda: clean(c), what="active+clean")
