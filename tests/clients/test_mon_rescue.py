"""A majority of the monitors is lost for good, and the one that is left goes on alone."""
import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import BINARY, Cluster, eventually
from processes import Processes, siphon

rados = pytest.importorskip("rados")

YES = "--yes-i-really-mean-it"


@contextlib.contextmanager
def three():
    """Three monitors on three hosts, each with an OSD, and a pool `d`."""
    base = Path(tempfile.mkdtemp(prefix="siphon-rescue."))
    p = Processes(base, mons=3, hosts=3)
    try:
        p.start()
        c = p.client()
        c.ceph("osd", "pool", "create", "d", "16")
        c.ceph("osd", "pool", "application", "enable", "d", "rados")
        clean(c)
        yield p
    finally:
        p.stop()
        if not os.environ.get("SIPHON_TEST_KEEP"):
            shutil.rmtree(base, ignore_errors=True)


def rescue(p, name, *args):
    """Runs `siphon rescue` for a monitor."""
    home = p[f"mon.{name}"].directory
    argv = [str(BINARY), "rescue", "--data-dir", str(home), "--name", name, *args]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def last_entry(text):
    m = re.search(r"Last log entry: term (\d+) index (\d+)", text)
    return int(m[1]), int(m[2])


def clean(c):
    def check():
        s = c.ceph_json("status", timeout=60)
        states = s["pgmap"].get("pgs_by_state", [])
        return states and all(x["state_name"] == "active+clean" for x in states)
    eventually(check, timeout=120, what="clean groups")


def quorum(c):
    return sorted(c.ceph_json("quorum_status", timeout=60)["quorum_names"])


def osds_up(c):
    return sum(o["up"] for o in c.ceph_json("osd", "dump", timeout=60)["osds"])


def write(conf, name, data, pool="d"):
    """One object through a client of its own."""
    with rados.Rados(conffile=str(conf), conf={"rados_osd_op_timeout": "90", "client_mount_timeout": "90"}) as r:
        with r.open_ioctx(pool) as io:
            io.write_full(name, data)


def read(conf, name, pool="d"):
    with rados.Rados(conffile=str(conf), conf={"rados_osd_op_timeout": "90", "client_mount_timeout": "90"}) as r:
        with r.open_ioctx(pool) as io:
            return io.read(name, 1 << 20)


def lose(p, *names):
    for n in names:
        p[f"mon.{n}"].kill()
        home = p[f"mon.{n}"].directory / f"mon.{n}"
        home.rename(home.with_name(f"lost.{n}"))


def at(p, name):
    """A client that knows only that monitor."""
    one = Cluster(p.conf, "crc")
    one.args = [*one.args, "-m", f"127.0.0.1:{p.ports[name]}"]
    return one


def test_one_of_three_is_left():
    with three() as p:
        c = p.client()
        write(p.conf, "before", b"before" * 1000)
        c.ceph("config-key", "set", "before", "yes")
        # This client stays, whoever is lost.
        stays = rados.Rados(conffile=str(p.conf), conf={"rados_osd_op_timeout": "120", "rados_mon_op_timeout": "120"})
        stays.connect()
        io = stays.open_ioctx("d")
        io.write_full("stays", b"1")
        ids = {stays.get_instance_id()}
        victim = rescue(p, "a")
        assert victim.returncode != 0 and "runs already" in victim.stderr, victim
        lose(p, "b", "c")
        p["mon.a"].kill()

        # Without the flag it is said what would be done, and nothing is done.
        home = p["mon.a"].directory / "mon.a"
        said = rescue(p, "a")
        assert said.returncode != 0 and YES in said.stderr, said
        assert "votes of mon." in said.stdout and "Given up as lost: mon.b, mon.c." in said.stdout, said.stdout
        assert last_entry(said.stdout) == last_entry(rescue(p, "a").stdout)
        assert not list(home.glob("store.db.before-*"))
        other = rescue(p, "b")
        assert other.returncode != 0 and "has no mon.b" in other.stderr, other

        done = rescue(p, "a", YES)
        assert done.returncode == 0 and "mon.a is the only monitor now" in done.stdout, done
        assert len(list(home.glob("store.db.before-*"))) == 1
        again = rescue(p, "a", YES)
        assert again.returncode != 0 and "only member" in again.stderr, again
        p["mon.a"].start()

        assert quorum(c) == ["a"]
        stat = c.ceph("mon", "stat")
        assert "1 mons at" in stat and "quorum 0 a" in stat, stat
        eventually(lambda: osds_up(c) == 3, timeout=120, what="the OSDs")
        clean(c)
        assert c.ceph("config-key", "get", "before").strip() == "yes"
        assert read(p.conf, "before") == b"before" * 1000
        write(p.conf, "after", b"after")
        assert read(p.conf, "after") == b"after"
        assert io.read("stays") == b"1"
        io.write_full("stays", b"2")
        assert io.read("stays") == b"2"
        c.ceph("config-key", "set", "after", "yes")
        c.ceph("osd", "pool", "create", "new", "4")
        # Global ids are not given out twice.
        with rados.Rados(conffile=str(p.conf)) as r:
            ids.add(r.get_instance_id())
            assert r.get_instance_id() > stays.get_instance_id() + 1_000_000
        assert len(ids) == 2
        code, out, status = stays.mon_command(json.dumps({"prefix": "config-key get", "key": "after"}), b"")
        assert (code, out) == (0, b"yes"), status
        assert "goes on alone" in c.ceph("log", "last", "1000", "warn", "cluster")

        # Two new ones under the old names, and then even the rescued one is not needed.
        for n in "bc":
            home = p[f"mon.{n}"].directory
            siphon("add", "mon", "--data-dir", home, "--name", n)
            p[f"mon.{n}"].start()
        eventually(lambda: quorum(c) == ["a", "b", "c"], timeout=90, what="three monitors")
        clean(c)
        p["mon.a"].kill()
        eventually(lambda: quorum(c) == ["b", "c"], timeout=90, what="two monitors")
        assert c.ceph("config-key", "get", "after").strip() == "yes"
        write(p.conf, "later", b"later")
        assert read(p.conf, "later") == b"later" and read(p.conf, "before") == b"before" * 1000
        io.write_full("stays", b"3")
        assert io.read("stays") == b"3"
        stays.shutdown()


def test_lost_ones_come_back():
    """First one, then both: together they are a majority of the group that was given up."""
    with three() as p:
        c = p.client()
        write(p.conf, "x", b"x")
        for n in "bc":
            p[f"mon.{n}"].kill()
        p["mon.a"].kill()
        assert rescue(p, "a", YES).returncode == 0
        # It does not know of the others any more, so that they have to ask.
        path = p["mon.a"].directory / "cluster.json"
        cluster = json.loads(path.read_text())
        cluster["mons"] = {"a": cluster["mons"]["a"]}
        path.write_text(json.dumps(cluster))
        p["mon.a"].start()
        assert quorum(c) == ["a"]
        c.ceph("config-key", "set", "new", "yes")
        epoch = c.ceph_json("quorum_status")["election_epoch"]

        def ends(*names):
            for n in names:
                p[f"mon.{n}"].spawn()
            for n in names:
                d = p[f"mon.{n}"]
                assert d.process.wait(timeout=90) != 0
                assert "was given up as lost" in d.printed(), d.printed()
                assert "Leader" not in d.printed(), d.printed()
        ends("b")
        ends("b", "c")
        assert quorum(c) == ["a"] and c.ceph_json("quorum_status")["election_epoch"] == epoch
        assert c.ceph("config-key", "get", "new").strip() == "yes"
        assert read(p.conf, "x") == b"x"

        # A monitor that began before another one answered asks again.
        p["mon.a"].stop()
        p["mon.b"].spawn()
        sock = p["mon.b"].directory / "run" / "ceph-mon.b.asok"
        asked = lambda: subprocess.run(["ceph", "--admin-daemon", str(sock), "mon_status"], capture_output=True, timeout=60)
        eventually(lambda: asked().returncode == 0, timeout=60, what="mon.b to run")
        p["mon.a"].start()
        assert p["mon.b"].process.wait(timeout=90) != 0
        assert "was given up as lost" in p["mon.b"].printed()

        # Where they cannot know of it, they go on; as soon as they can, they end.
        p["mon.a"].stop()
        for n in "bc":
            p[f"mon.{n}"].spawn()
        eventually(lambda: quorum(at(p, "b")) == ["b", "c"], timeout=90, what="the two old ones")
        p["mon.a"].start()
        for n in "bc":
            assert p[f"mon.{n}"].process.wait(timeout=90) != 0
            assert "is of no use any more" in p[f"mon.{n}"].printed()
        assert quorum(c) == ["a"] and c.ceph("config-key", "get", "new").strip() == "yes"

        # Of two that were rescued, one is left when they meet.
        assert rescue(p, "b", YES).returncode == 0
        p["mon.b"].start()
        assert p["mon.a"].process.wait(timeout=90) != 0
        assert "was given up as lost" in p["mon.a"].printed()
        assert quorum(at(p, "b")) == ["b"]


def test_osds_know_more_than_the_survivor():
    """The survivor lacks maps that the others published. OSDs that have them serve nobody, unless it learns these maps first."""
    with three() as p:
        c = p.client()
        p["mon.a"].stop()
        b = at(p, "b")
        eventually(lambda: quorum(b) == ["b", "c"], timeout=90, what="two monitors")
        b.ceph("osd", "pool", "create", "unknown", "8")
        b.ceph("osd", "pool", "application", "enable", "unknown", "rados")
        b.ceph("osd", "set", "noout")
        clean(b)
        write(p.conf, "x", b"x", pool="unknown")
        epoch = b.ceph_json("osd", "dump")["epoch"]

        def newest(i):
            sock = p[f"osd.{i}"].directory / "run" / f"ceph-osd.{i}.asok"
            return json.loads(subprocess.run(["ceph", "--admin-daemon", str(sock), "status"], capture_output=True, timeout=60).stdout)["newest_map"]
        eventually(lambda: all(newest(i) >= epoch for i in range(3)), timeout=60, what="the newest map everywhere")
        lose(p, "b", "c")
        done = rescue(p, "a", YES)
        assert done.returncode == 0 and "they are learned" not in done.stdout, done
        p["mon.a"].start()
        for i in range(3):
            d = p[f"osd.{i}"]
            assert d.process.wait(timeout=120) != 0
            assert "the monitors were rescued without maps" in d.printed(), d.printed()[-2000:]

        # Once more from where it began, with what one of them knows.
        p["mon.a"].stop()
        home = p["mon.a"].directory / "mon.a"
        [backup] = home.glob("store.db.before-*")
        backup.rename(home / "store.db")
        wrong = rescue(p, "a", "--osd-maps", home / "store.db")
        assert wrong.returncode != 0, wrong
        done = rescue(p, "a", "--osd-maps", p["osd.1"].directory / "osd.1" / "block", YES)
        assert done.returncode == 0 and "they are learned" in done.stdout, done
        p["mon.a"].start()
        for i in range(3):
            p[f"osd.{i}"].start()
        eventually(lambda: osds_up(c) == 3, timeout=120, what="the OSDs")
        clean(c)
        assert "noout" in c.ceph_json("osd", "dump")["flags"] and "unknown" in c.ceph("osd", "pool", "ls")
        assert read(p.conf, "x", pool="unknown") == b"x"
        write(p.conf, "y", b"y", pool="unknown")
        assert read(p.conf, "y", pool="unknown") == b"y"

        # What is older than all that OSDs have, by more than is skipped, is noticed as well.
        p["mon.a"].stop()
        [backup] = [b for b in home.glob("store.db.before-*")]
        backup.rename(home / "store.db")
        assert rescue(p, "a", YES).returncode == 0
        p["mon.a"].start()
        p["osd.0"].kill()
        p["osd.0"].spawn()
        ahead = "osd.0 has OSD map"
        eventually(lambda: ahead in c.ceph("log", "last", "1000", "error", "cluster"), timeout=60, what="a word about it")
        assert osds_up(c) == 0
