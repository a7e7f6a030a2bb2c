"""Five monitors: any two may be lost. What is left of them without three others accepts nothing, and is right when they come back."""
import concurrent.futures
import json
import threading

import pytest

from conftest import Cluster, eventually
from processes import running
from test_durability import Writer
from test_mons import Commander, connect, mon_status, quorum, whole

rados = pytest.importorskip("rados")

ALL = "abcde"
# Elections take what the machine gives.
PATIENCE = 90


@pytest.fixture(scope="module")
def procs():
    with running("siphon-five.", mons=5, hosts=5) as p:
        yield p


def at(procs, name):
    """A client of one monitor alone."""
    c = Cluster(procs.conf, "crc")
    c.args = [*c.args, "-m", f"127.0.0.1:{procs.ports[name]}"]
    return c


def refuse(procs, names):
    """Nothing is changed and nothing shown by monitors without a majority."""
    def ask(name, command):
        r = at(procs, name).run("ceph", "--connect-timeout", "5", *command, check=False, timeout=PATIENCE)
        assert r.returncode != 0, (name, command, r)

    some = [(n, command) for n in names for command in (["config-key", "set", "minority", n], ["osd", "pool", "create", f"minority-{n}", "1"], ["-s"])]
    with concurrent.futures.ThreadPoolExecutor(len(some)) as threads:
        list(threads.map(lambda one: ask(*one), some))


def goes_on(commander, w, what):
    """Commands and writes are acknowledged."""
    number = lambda: max(map(int, commander.acked.values()), default=-1)
    commands, writes = number(), len(w.acked)
    eventually(lambda: number() > commands + 5, timeout=PATIENCE, what=f"commands to go on {what}")
    eventually(lambda: len(w.acked) > writes + 20, timeout=PATIENCE, what=f"writes to go on {what}")


def test_two_of_five_may_be_lost_and_three_may_not(procs):
    c = procs.client()
    whole(c, ALL)
    assert len(c.ceph_json("mon", "dump")["mons"]) == 5
    client = connect(procs.conf)
    io = client.open_ioctx("d")
    io.write_full("before", b"b" * 1000)
    c.ceph("config-key", "set", "kept", "before")
    w = Writer(io, seed=5)
    t = threading.Thread(target=w.run, args=("five",))
    t.start()
    commander = Commander(procs.conf, "five")
    try:
        goes_on(commander, w, "at first")
        # The leader and one that follows.
        leader, names = quorum(c)
        lost = [leader, next(n for n in names if n != leader)]
        for n in lost:
            procs[f"mon.{n}"].kill()
        left = sorted(set(ALL) - set(lost))
        goes_on(commander, w, f"without {lost}")
        eventually(lambda: quorum(c)[1] == left, timeout=PATIENCE, what="a quorum of three")
        eventually(lambda: "MON_DOWN" in c.ceph("health", "detail"), timeout=PATIENCE, what="the health check")
        assert all(f"mon.{n} " in c.ceph("health", "detail") for n in lost)
        c.ceph("config-key", "set", "kept", "by three")
    finally:
        commander.end()
    # The next leader, too: two that hear each other are not enough.
    leader, _ = quorum(c)
    procs[f"mon.{leader}"].kill()
    lost.append(leader)
    left.remove(leader)
    for n in left:
        eventually(lambda: mon_status(procs, n)["quorum"] == [], timeout=PATIENCE, what=f"mon.{n} to see that there is no majority")
    refuse(procs, left)
    assert all(mon_status(procs, n)["state"] == "electing" for n in left)
    # Data does not need monitors.
    writes = len(w.acked)
    eventually(lambda: len(w.acked) > writes + 20, timeout=PATIENCE, what="writes without monitors")
    w.stop = True
    for _ in range(64):
        w.slots.release()
    t.join()
    eventually(w.answered, timeout=PATIENCE, what="the last answers")
    # One of the first two comes back: it has missed what the three decided, and with it they are three.
    procs[f"mon.{lost[0]}"].start()
    eventually(lambda: quorum(c)[1] == sorted([*left, lost[0]]), timeout=PATIENCE, what="a quorum of three again")
    assert c.ceph("config-key", "get", "kept").strip() == "by three"
    c.ceph("config-key", "set", "kept", "by others")
    for n in lost[1:]:
        procs[f"mon.{n}"].start()
    whole(c, ALL)
    assert "HEALTH_OK" in eventually(lambda: "HEALTH_OK" in (h := c.ceph("health")) and h, what="health")

    def verify(name):
        """A monitor alone shows what all acknowledged, and nothing that the minority was told."""
        one = rados.Rados(conffile=str(procs.conf), conf={"mon_host": f"127.0.0.1:{procs.ports[name]}", "rados_mon_op_timeout": "60"})
        one.connect()
        get = lambda key: one.mon_command(json.dumps({"prefix": "config-key get", "key": key}), b"")
        assert get("kept")[1] == b"by others", name
        assert get("minority")[0] == -2, name
        for key, value in commander.acked.items():
            assert get(key)[1].decode() in (value, commander.tried[key]), (name, key)
        pools = json.loads(one.mon_command(json.dumps({"prefix": "osd pool ls", "format": "json"}), b"")[1])
        assert not [p for p in pools if p.startswith("minority")], name
        one.shutdown()

    for n in ALL:
        verify(n)
    for name, data in w.acked.items():
        assert io.read(name, length=len(data) + 1_000_000) == data, name
    assert io.read("before") == b"b" * 1000
    client.shutdown()
