"""Three monitors as processes: they are killed, stopped, cut off, wiped, added and removed under load."""
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import BINARY, Cluster, eventually, free_port
from processes import running, siphon
from test_durability import Writer

rados = pytest.importorskip("rados")

# Elections among other tests on two cores take longer than these allow for, and a leader that hangs is a known gap
# (docs/decisions/0007): they run with the long tests.
faults = pytest.mark.skipif(not os.environ.get("SIPHON_TEST_LONG"), reason="takes a machine of its own; SIPHON_TEST_LONG=1 runs it")


@pytest.fixture(scope="module")
def procs():
    with running("siphon-mons.", mons=3, hosts=3) as p:
        p.client().ceph("config", "set", "mon", "mon_allow_pool_delete", "true")
        yield p


def quorum(c):
    s = c.ceph_json("quorum_status", timeout=60)
    return s["quorum_leader_name"], sorted(s["quorum_names"])


def connect(conf):
    """A client that waits longer than anybody needs to see that a monitor hangs (`mon_client_ping_timeout`)."""
    r = rados.Rados(conffile=str(conf), conf={"rados_osd_op_timeout": "90", "rados_mon_op_timeout": "90", "client_mount_timeout": "90"})
    r.connect()
    return r


def whole(c, names="abc"):
    """All monitors take part, and all groups are clean."""
    def check():
        if quorum(c)[1] != sorted(names):
            return False
        s = c.ceph_json("status")
        states = s["pgmap"].get("pgs_by_state", [])
        return states and all(x["state_name"] == "active+clean" for x in states)
    eventually(check, timeout=90, what=f"a quorum of {names}")


def mon_status(procs, name):
    """What a monitor says of itself on its admin socket; it needs no quorum for that."""
    home = procs[f"mon.{name}"].directory
    sock = home / "run" / f"ceph-mon.{name}.asok"
    r = subprocess.run(["ceph", "--admin-daemon", str(sock), "mon_status"], capture_output=True, timeout=30)
    return json.loads(r.stdout)


class Commander:
    """Changes things by commands all the while, and remembers what was acknowledged."""

    def __init__(self, conf, prefix):
        self.client = rados.Rados(conffile=str(conf), conf={"rados_mon_op_timeout": "60", "client_mount_timeout": "60"})
        self.client.connect()
        self.prefix = prefix
        self.acked = {}
        self.tried = {}
        self.slowest = 0.0
        self.stop = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        i = 0
        while not self.stop:
            key, value = f"{self.prefix}/{i % 50}", str(i)
            self.tried[key] = value
            command = json.dumps({"prefix": "config-key set", "key": key, "val": value})
            began = time.monotonic()
            code, _, status = self.client.mon_command(command, b"")
            self.slowest = max(self.slowest, time.monotonic() - began)
            if code == 0:
                self.acked[key] = value
            i += 1

    def end(self):
        self.stop = True
        self.thread.join(timeout=90)
        assert not self.thread.is_alive()
        self.client.shutdown()

    def check(self, c):
        for key, value in self.acked.items():
            got = c.ceph("config-key", "get", key).strip()
            assert got in (value, self.tried[key]), f"{key}: {got}, acknowledged {value}"


def test_three_take_part(procs, tmp_path):
    c = procs.client()
    whole(c)
    leader, names = quorum(c)
    assert names == ["a", "b", "c"] and leader in names
    stat = c.ceph("mon", "stat")
    assert "3 mons at" in stat and "quorum 0,1,2 a,b,c" in stat
    dump = c.ceph_json("mon", "dump")
    assert [m["name"] for m in dump["mons"]] == ["a", "b", "c"] and dump["quorum"] == [0, 1, 2]
    for name in "abc":
        s = json.loads(c.ceph("tell", f"mon.{name}", "mon_status"))
        assert s["name"] == name and s["state"] == ("leader" if name == leader else "peon")
        assert s["quorum"] == [0, 1, 2] and s["outside_quorum"] == []
    assert len(c.ceph_json("mon", "metadata")) == 3
    # The monitors' own key is a name like others for a tool.
    own = procs["mon.a"].directory / "mon.a" / "keyring"
    assert len(c.ceph_json("mon", "dump", name="mon.", keyring=own)["mons"]) == 3
    assert "HEALTH_OK" in c.ceph("health")
    # Authentication, maps and commands at each of them alone.
    for mode in ("crc", "secure"):
        for name in "abc":
            one = Cluster(procs.conf, mode)
            one.args = [*one.args, "-m", f"127.0.0.1:{procs.ports[name]}"]
            one.ceph("config-key", "set", f"via/{name}", mode)
            # Input and output travel beside the command.
            data = os.urandom(60_000)
            (tmp_path / "in").write_bytes(data)
            one.ceph("config-key", "set", f"data/{name}", "-i", tmp_path / "in")
            assert one.run("ceph", "config-key", "get", f"data/{name}").stdout[:60_000] == data
            for other in "abc":
                at = Cluster(procs.conf, mode)
                at.args = [*at.args, "-m", f"127.0.0.1:{procs.ports[other]}"]
                # Whoever saw the answer sees its effect, whomever he asks.
                assert at.ceph("config-key", "get", f"via/{name}").strip() == mode
            one.ceph("osd", "pool", "create", f"p-{name}-{mode}", "1")
            assert f"p-{name}-{mode}" in one.rados("lspools").stdout.decode()
            one.ceph("osd", "pool", "delete", f"p-{name}-{mode}", f"p-{name}-{mode}", "--yes-i-really-really-mean-it")


def one_lost(procs, victim, disturb, seed):
    c = procs.client()
    commander = Commander(procs.conf, f"load-{seed}")
    client = connect(procs.conf)
    w = Writer(client.open_ioctx("d"), seed=seed)
    t = threading.Thread(target=w.run, args=(f"m{seed}",))
    t.start()
    try:
        eventually(lambda: len(commander.acked) > 5 and len(w.acked) > 20, what="load")
        disturb()
        began, commands, writes = time.monotonic(), len(commander.tried), len(w.acked)
        before = int(max(commander.acked.values(), key=int))
        eventually(lambda: int(max(commander.acked.values(), key=int)) > before + 5, timeout=30, what="commands to go on")
        took = time.monotonic() - began
        eventually(lambda: len(w.acked) > writes + 20, timeout=30, what="writes to go on")
        eventually(lambda: quorum(c)[1] == sorted(set("abc") - {victim}), timeout=30, what="a quorum of two")
        eventually(lambda: "MON_DOWN" in c.ceph("health", "detail"), timeout=10, what="the health check")
        assert f"mon.{victim}" in c.ceph("health", "detail")
        c.ceph("osd", "pool", "create", f"while-{seed}", "4")
    finally:
        w.stop = True
        for _ in range(64):
            w.slots.release()
        t.join()
        commander.end()
    eventually(w.answered, timeout=80, what="the last answers")
    client.shutdown()
    return commander, took


def back(procs, victim, commander, seed):
    c = procs.client()
    whole(c)
    assert "HEALTH_OK" in eventually(lambda: "HEALTH_OK" in (h := c.ceph("health")) and h, what="health")
    commander.check(c)
    # The one that was away has it all: it is asked alone.
    own = Cluster(procs.conf, "crc")
    own.args = [*own.args, "-m", f"127.0.0.1:{procs.ports[victim]}"]
    commander.check(own)
    assert f"while-{seed}" in own.ceph("osd", "pool", "ls")
    c.ceph("osd", "pool", "delete", f"while-{seed}", f"while-{seed}", "--yes-i-really-really-mean-it")


@faults
@pytest.mark.parametrize("who", ["leader", "follower", "leader again"])
def test_one_is_killed_under_load(procs, who):
    c = procs.client()
    whole(c)
    leader, names = quorum(c)
    victim = leader if who.startswith("leader") else random.Random(1).choice([n for n in names if n != leader])
    seed = {"leader": 1, "follower": 2, "leader again": 3}[who]
    commander, took = one_lost(procs, victim, procs[f"mon.{victim}"].kill, seed)
    assert took < 15 and commander.slowest < 20
    procs[f"mon.{victim}"].start()
    back(procs, victim, commander, seed)


def test_one_leaves_the_quorum_and_comes_back(procs):
    """An operator says so; nobody is stopped."""
    c = procs.client()
    whole(c)
    leader = quorum(c)[0]
    rest = sorted(set("abc") - {leader})

    def asok(*command):
        sock = procs[f"mon.{leader}"].directory / "run" / f"ceph-mon.{leader}.asok"
        return subprocess.run(["ceph", "--admin-daemon", str(sock), *command], capture_output=True, timeout=60, check=True).stdout

    def elections(name):
        sock = procs[f"mon.{name}"].directory / "run" / f"ceph-mon.{name}.asok"
        out = subprocess.run(["ceph", "--admin-daemon", str(sock), "perf", "dump"], capture_output=True, timeout=60, check=True).stdout
        return {k: v for k, v in json.loads(out)["mon"].items() if "election" in k}

    before = {name: elections(name) for name in "abc"}
    assert before[leader]["election_win"] >= 1, before
    assert b"stopped responding to quorum" in asok("quorum", "exit")
    try:
        status = eventually(lambda: (s := mon_status(procs, leader))["state"] == "electing" and s, what="it to be out")
        assert status["quorum"] == [], status
        other = lambda: next((s["name"] for s in (mon_status(procs, n) for n in rest) if s["state"] == "leader"), None)
        successor = eventually(other, timeout=60, what="another leader")
        eventually(lambda: quorum(c) == (successor, rest), timeout=60, what="a quorum of two")
        c.ceph("config-key", "set", "without/it", "yes")
        # It does not disturb those that are left: as many elections as there were.
        status = mon_status(procs, leader)
        assert status["state"] == "electing" and status["election_epoch"] <= mon_status(procs, successor)["election_epoch"], status
        after = elections(successor)
        assert after["election_win"] > before[successor]["election_win"], (before, after)
    finally:
        assert b"started responding to quorum" in asok("quorum", "enter")
    whole(c)
    assert c.ceph("config-key", "get", "without/it").strip() == "yes"
    eventually(lambda: mon_status(procs, leader)["state"] in ("peon", "leader"), what="it to take part")


@faults
def test_a_leader_that_hangs(procs):
    c = procs.client()
    whole(c)
    leader, _ = quorum(c)
    commander, took = one_lost(procs, leader, lambda: procs[f"mon.{leader}"].signal(signal.SIGSTOP), 4)
    # Clients of the one that hangs notice by their own timeouts; everybody else at once.
    procs[f"mon.{leader}"].signal(signal.SIGCONT)
    back(procs, leader, commander, 4)


@faults
def test_two_of_three_stopped(procs):
    c = procs.client()
    whole(c)
    leader, names = quorum(c)
    client = connect(procs.conf)
    io = client.open_ioctx("d")
    io.write_full("before", b"b" * 1000)
    c.ceph("config-key", "set", "minority", "before")
    hasty = rados.Rados(conffile=str(procs.conf), conf={"rados_mon_op_timeout": "8"})
    hasty.connect()
    followers = [n for n in names if n != leader]
    # The leader is left, so that it is one that thinks it may decide.
    for n in followers:
        procs[f"mon.{n}"].kill()
    # A command that meets it before it knows waits: what becomes of it is told when there is a majority again.
    early = subprocess.Popen(c.argv("ceph", "config-key", "set", "early", "yes"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: mon_status(procs, leader)["state"] == "electing", timeout=20, what="it to see that it is alone")
    assert mon_status(procs, leader)["quorum"] == []
    for command in (["config-key", "set", "minority", "after"], ["osd", "pool", "create", "minority", "1"], ["-s"]):
        r = c.run("ceph", "--connect-timeout", "8", *command, check=False, timeout=60)
        assert r.returncode != 0, (command, r)
    # A client that was there before is closed out, too, and gets nothing through.
    code, _, _ = hasty.mon_command(json.dumps({"prefix": "config-key set", "key": "minority", "val": "after"}), b"")
    assert code != 0
    hasty.shutdown()
    assert early.poll() is None, "nobody may answer it"
    # Data does not need monitors.
    io.write_full("meanwhile", b"m" * 1000)
    assert io.read("meanwhile") == b"m" * 1000
    procs[f"mon.{followers[0]}"].start()
    eventually(lambda: quorum(c)[1] == sorted([leader, followers[0]]), timeout=60, what="a quorum of two")
    assert early.wait(timeout=60) == 0
    assert c.ceph("config-key", "get", "early").strip() == "yes"
    assert c.ceph("config-key", "get", "minority").strip() == "before"
    c.ceph("config-key", "set", "minority", "again")
    procs[f"mon.{followers[1]}"].start()
    whole(c)
    assert c.ceph("config-key", "get", "minority").strip() == "again"
    assert "minority" not in c.ceph("osd", "pool", "ls").split()
    io.write_full("then", b"t")
    client.shutdown()
    eventually(lambda: "HEALTH_OK" in c.ceph("health"), what="health")


@faults
def test_all_restart_at_once(procs):
    c = procs.client()
    whole(c)
    commander = Commander(procs.conf, "restart")
    eventually(lambda: len(commander.acked) > 20, what="commands")
    for n in "abc":
        procs[f"mon.{n}"].kill()
    for n in "abc":
        procs[f"mon.{n}"].spawn()
    before = int(max(commander.acked.values(), key=int))
    eventually(lambda: int(max(commander.acked.values(), key=int)) > before + 5, timeout=60, what="commands to go on")
    commander.end()
    whole(c)
    commander.check(c)


def test_monitors_know_what_the_manager_serves(procs):
    c = procs.client()
    whole(c)
    c.ceph("pg", "stat")
    # The manager says nothing to the monitors that come back.
    procs["mgr.x"].signal(signal.SIGSTOP)
    try:
        for n in "abc":
            procs[f"mon.{n}"].kill()
        for n in "abc":
            procs[f"mon.{n}"].spawn()
        for n in "abc":
            procs[f"mon.{n}"].wait_serving()
        served = [d["sig"][:2] for d in json.loads(c.command(prefix="get_command_descriptions")).values()]
        assert ["pg", "stat"] in served and ["balancer", "status"] in served
    finally:
        procs["mgr.x"].signal(signal.SIGCONT)
    assert "pgs" in c.ceph("pg", "stat")
    whole(c)


@faults
def test_one_that_was_away_for_long(procs):
    c = procs.client()
    whole(c)
    leader, names = quorum(c)
    victim = next(n for n in names if n != leader)
    assert procs[f"mon.{victim}"].stop() == 0
    # More changes than the log keeps: it gets a snapshot.
    client = connect(procs.conf)
    for i in range(700):
        command = json.dumps({"prefix": "config-key set", "key": f"long/{i % 300}", "val": str(i)})
        assert client.mon_command(command, b"")[0] == 0
    client.shutdown()
    procs[f"mon.{victim}"].start()
    whole(c)
    own = Cluster(procs.conf, "crc")
    own.args = [*own.args, "-m", f"127.0.0.1:{procs.ports[victim]}"]
    for i in (0, 7, 299):
        assert own.ceph("config-key", "get", f"long/{i}").strip() == str(i + 300 * ((699 - i) // 300))
    # Its own copy, not the leader's: what it alone would show.
    s = mon_status(procs, victim)
    assert s["state"] == "peon" and s["monmap"]["epoch"] == c.ceph_json("mon", "dump")["epoch"]


@faults
def test_a_wiped_one_is_taken_in_again(procs):
    c = procs.client()
    whole(c)
    leader, names = quorum(c)
    victim = leader
    home = procs[f"mon.{victim}"].directory
    c.ceph("config-key", "set", "wiped", "kept")
    procs[f"mon.{victim}"].kill()
    shutil.rmtree(home / f"mon.{victim}")
    r = subprocess.run([str(BINARY), "mon", "--data-dir", str(home), "--name", victim], capture_output=True, text=True, timeout=30)
    assert r.returncode != 0 and "siphon add mon" in r.stderr
    siphon("add", "mon", "--data-dir", home, "--name", victim)
    procs[f"mon.{victim}"].start()
    whole(c)
    eventually(lambda: "HEALTH_OK" in c.ceph("health"), what="health")
    # It counts: one of the others may go.
    other = next(n for n in "abc" if n != victim)
    procs[f"mon.{other}"].kill()
    eventually(lambda: quorum(c)[1] == sorted(set("abc") - {other}), timeout=60, what="a quorum with the new one")
    own = Cluster(procs.conf, "crc")
    own.args = [*own.args, "-m", f"127.0.0.1:{procs.ports[victim]}"]
    assert own.ceph("config-key", "get", "wiped").strip() == "kept"
    procs[f"mon.{other}"].start()
    whole(c)


@faults
def test_removed_and_added(procs):
    c = procs.client()
    whole(c)
    leader, names = quorum(c)
    victim = next(n for n in names if n != leader)
    home = procs[f"mon.{victim}"].directory
    c.fails("ceph", "mon", "add", victim, "127.0.0.1:1", errno=17, text="already exists")
    c.fails("ceph", "mon", "add", "new", f"127.0.0.1:{procs.ports[leader]}", errno=17, text="already exists")
    c.fails("ceph", "mon", "add", "new", "nowhere", errno=22)
    assert "safe to remove" in c.ceph("mon", "ok-to-rm", victim) + c.run("ceph", "mon", "ok-to-rm", victim).stderr.decode()
    c.ceph("mon", "rm", victim)
    # It is told that it is not wanted any more.
    eventually(lambda: not procs[f"mon.{victim}"].running, timeout=60, what="the removed one to end")
    assert "was removed" in procs[f"mon.{victim}"].printed()
    left = sorted(set("abc") - {victim})
    eventually(lambda: quorum(c)[1] == left, what="a quorum of two")
    assert [m["name"] for m in c.ceph_json("mon", "dump")["mons"]] == left
    assert "HEALTH_OK" in c.ceph("health")
    # Its store belongs to nobody any more.
    procs[f"mon.{victim}"].spawn()
    eventually(lambda: not procs[f"mon.{victim}"].running, timeout=60, what="the removed one to end again")
    shutil.rmtree(home / f"mon.{victim}")
    # A fourth at a new place, announced first as with stock monitors; the quorum does not depend on it yet.
    port = free_port()
    c.ceph("mon", "add", "d", f"127.0.0.1:{port}")
    assert [m["name"] for m in c.ceph_json("mon", "dump")["mons"]] == [*left, "d"]
    c.ceph("config-key", "set", "announced", "yes")
    siphon("add", "mon", "--data-dir", home, "--name", "d", "--bind", f"127.0.0.1:{port}")
    procs.ports["d"] = port
    procs.daemon(home, "mon.d").start()
    whole(c, [*left, "d"])
    # The leader itself goes; then the old name comes back at its old place, without being announced.
    leader, _ = quorum(c)
    c.ceph("mon", "rm", leader)
    eventually(lambda: not procs[f"mon.{leader}"].running, timeout=60, what="the removed leader to end")
    eventually(lambda: len(quorum(c)[1]) == 2, timeout=30, what="a quorum of two")
    siphon("add", "mon", "--data-dir", home, "--name", victim)
    procs[f"mon.{victim}"].start()
    rest = sorted({*left, "d", victim} - {leader})
    whole(c, rest)
    if leader != "d":
        shutil.rmtree(procs[f"mon.{leader}"].directory / f"mon.{leader}")
        siphon("add", "mon", "--data-dir", procs[f"mon.{leader}"].directory, "--name", leader)
        procs[f"mon.{leader}"].start()
        whole(c, [*rest, leader])
        c.ceph("mon", "rm", "d")
        procs["mon.d"].process.wait(timeout=60)
        whole(c)
    eventually(lambda: "HEALTH_OK" in c.ceph("health"), what="health")


@faults
def test_osds_go_on_when_their_monitor_goes(procs):
    """An OSD dies while the leader is gone too: peering needs the monitors, and gets what it asks for."""
    c = procs.client()
    whole(c, sorted(n[4:] for n, d in procs.daemons.items() if n.startswith("mon.") and d.running))
    leader, names = quorum(c)
    client = connect(procs.conf)
    w = Writer(client.open_ioctx("d"), seed=77)
    t = threading.Thread(target=w.run, args=("both",))
    t.start()
    try:
        eventually(lambda: len(w.acked) > 20, what="writes")
        procs[f"mon.{leader}"].kill()
        procs["osd.1"].kill()
        before = len(w.acked)
        eventually(lambda: len(w.acked) > before + 50, timeout=60, what="writes to go on")
    finally:
        w.stop = True
        for _ in range(64):
            w.slots.release()
        t.join()
    procs[f"mon.{leader}"].start()
    procs["osd.1"].start()
    whole(c, names)
    eventually(w.answered, timeout=80, what="the last answers")
    io = client.open_ioctx("d")
    for name, data in w.acked.items():
        assert io.read(name, length=len(data) + 1_000_000) == data, name
    client.shutdown()


def test_up_with_three_monitors(siphon_factory):
    c = siphon_factory(extra=["--mons", "3"])
    # Three ports in a row.
    while True:
        base = free_port()
        try:
            for p in range(base, base + 3):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", p))
            break
        except OSError:
            continue
    c.port = base
    c.start()
    cl = Cluster(c.conf, "crc")
    eventually(lambda: quorum(cl)[1] == ["a", "b", "c"], what="a quorum of three")
    cl.ceph("osd", "pool", "create", "x", "4")

    # One whose clock is ahead. If it leads, the others are behind.
    def command(**kw):
        return json.loads(cl.command(format="json", **kw))

    def off():
        found = command(prefix="time-sync-status").get("time_skew_status", {})
        return {n: s for n, s in found.items() if s["health"] == "HEALTH_WARN"}

    cl.command(prefix="config set", who="mon.c", name="clock_offset", value="20")
    wrong = eventually(off, what="a skew")
    check = eventually(lambda: command(prefix="health", detail="detail")["checks"].get("MON_CLOCK_SKEW"), what="the health check")
    name, skew = next(iter(wrong.items()))
    assert abs(skew["skew"]) > 1 and skew["details"].endswith("s > max 0.05s"), wrong
    assert check["summary"]["message"].startswith("clock skew detected on mon."), check
    assert any(d["message"].startswith(f"mon.{name} clock skew ") and "(latency " in d["message"] for d in check["detail"]), check
    cl.command(prefix="config rm", who="mon.c", name="clock_offset")
    eventually(lambda: not off(), what="clocks that agree")
    cl.admin.shutdown()
    cl.admin = None
    assert c.stop() == 0
    c.start()
    assert "x" in cl.ceph("osd", "pool", "ls")
    eventually(lambda: quorum(cl)[1] == ["a", "b", "c"], what="a quorum of three")
    assert c.stop() == 0
