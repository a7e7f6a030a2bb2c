"""A movement job goes on when the leader of the monitors, the manager or an OSD is lost at any step.

SIPHON_TEST_LONG=1 loses each of them at each kind of step of each kind of job, a replacement among them, and while it is
undone."""
import os
import random

import pytest
from conftest import eventually
from processes import running, siphon
from test_move import Moving

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
LOST = "leader", "mgr", "osd"

pytestmark = pytest.mark.skipif("SIPHON_TEST_CONF" in os.environ, reason="processes of its own are killed")


@pytest.fixture(scope="module")
def procs():
    with running("siphon-move.", mons=3, hosts=3) as p:
        number = siphon("add", "osd", "--data-dir", p.dirs[0], "--size", "10G").strip()
        p.daemon(p.dirs[0], f"osd.{number}").spawn().wait_serving()
        yield p


def test_whatever_is_lost(procs):
    cl = Moving(procs.conf, "crc")
    cl.ceph("osd", "set-require-min-compat-client", "luminous")
    cl.objects("d")
    cl.clean()
    before, moves = cl.placed(), cl.on(3)
    assert moves > 4
    job = cl.move("start", "drain", "osd.3", "--pgs", "1", "--rate", "250K")["id"]
    lost = [lambda: f"mon.{cl.ceph_json('quorum_status')['quorum_leader_name']}", lambda: "mgr.x", lambda: "osd.1"]
    for name in lost:
        steps = cl.job(job)["maps"]
        eventually(lambda: cl.job(job)["maps"] > steps, timeout=120, what="a step")
        name = name()
        procs[name].kill()
        assert cl.job(job)["state"] == "running", name
        procs[name].spawn().wait_serving()
        cl.clean()
    cl.ends(job)
    assert cl.on(3) == 0
    cl.clean()
    cl.whole("d")
    cl.move("undo", str(job))
    procs[f"mon.{cl.ceph_json('quorum_status')['quorum_leader_name']}"].kill()
    cl.ends(job, "undone")
    cl.clean()
    assert cl.placed() == before
    cl.whole("d")


def lose(procs, cl, what):
    """A daemon dies by SIGKILL and comes back; the cluster is whole again."""
    name = {"leader": f"mon.{cl.ceph_json('quorum_status')['quorum_leader_name']}", "mgr": "mgr.x", "osd": "osd.1"}[what]
    procs[name].kill()
    procs[name].spawn().wait_serving()
    cl.clean()


def steps(cl, job, rng):
    """The kinds of steps of a job: its first map, a random one in its midst, the last PGs on their way."""
    yield lambda: cl.job(job)["maps"] >= 1
    at = rng.randrange(2, 6)
    yield lambda: (lambda j: j["maps"] >= at or not j["pgs_left"])(cl.job(job))
    yield lambda: (lambda j: not j["pgs_left"] or j["state"] != "running")(cl.job(job))


@pytest.mark.skipif(not LONG, reason="a long one")
@pytest.mark.parametrize("what", LOST)
def test_every_kind_of_step(procs, what):
    rng = random.Random(what)
    cl = Moving(procs.conf, "crc")
    cl.ceph("osd", "set-require-min-compat-client", "luminous")
    cl.objects("d")
    # Each OSD is a host, so that a rule by hosts can be kept.
    for n in range(4):
        cl.ceph("osd", "crush", "move", f"osd.{n}", "root=default", f"host=h{n}")
    cl.ceph("osd", "crush", "rule", "create-replicated", "hosts", "default", "host")
    weight = str(next(n for n in cl.ceph_json("osd", "tree")["nodes"] if n["id"] == 0)["crush_weight"])
    rule = cl.ceph_json("osd", "pool", "get", "d", "crush_rule")["crush_rule"]
    jobs = [("drain", "osd.3"), ("grow", "osd.3", "--weight", weight), ("rule", "d", "hosts"), ("balance",)]
    for args in jobs:
        cl.clean()
        before = cl.placed()
        if args[0] == "balance":
            # The other rule's upmaps are there to be taken back.
            cl.move("undo", str(cl.move("ls")[-1]["id"]))
            eventually(lambda: all(j["state"] in ("done", "undone") for j in cl.move("ls")), timeout=180, what="the end of the undo")
            assert cl.ceph_json("osd", "pool", "get", "d", "crush_rule")["crush_rule"] == rule
            cl.clean()
            before = cl.placed()
        started = cl.move("start", *args, "--pgs", "1", check=False)
        if args[0] == "balance" and started.returncode:
            assert "balanced" in started.stderr or "nothing" in started.stderr, started.stderr
            continue
        job = cl.move("ls")[-1]["id"]
        for reached in steps(cl, job, rng):
            eventually(reached, timeout=180, what=f"a step of {args}")
            lose(procs, cl, what)
        cl.ends(job)
        cl.clean()
        cl.whole("d")
        if args[0] == "drain":
            assert cl.on(3) == 0
            # The same daemon is lost while the job is undone; then it is done again, for the job that follows.
            cl.move("undo", str(job))
            eventually(lambda: cl.job(job)["state"] in ("undoing", "undone"), what="the undo to begin")
            lose(procs, cl, what)
            cl.ends(job, "undone")
            cl.clean()
            assert cl.placed() == before
            cl.ends(cl.move("start", *args)["id"])
    cl.whole("d")


@pytest.mark.skipif(not LONG, reason="a long one")
@pytest.mark.parametrize("what", LOST)
def test_every_kind_of_step_of_a_replacement(procs, what):
    """The OSD's number gets a new store; a daemon is lost on the way out, while the job waits, and on the way back."""
    rng = random.Random(f"replace {what}")
    cl = Moving(procs.conf, "crc")
    cl.ceph("osd", "set-require-min-compat-client", "luminous")
    cl.objects("d")
    # A host of another name in CRUSH than this machine's.
    cl.ceph("osd", "crush", "move", "osd.2", "root=default", "host=h2")
    cl.clean()
    before, moves = cl.placed(), cl.on(2)
    assert moves > 4
    job = cl.move("start", "replace", "osd.2", "--pgs", "1", "--rate", "250K")["id"]
    for reached in steps(cl, job, rng):
        eventually(reached, timeout=180, what="a step on the way out")
        lose(procs, cl, what)
    cl.ends(job, "waits for the new device")
    assert cl.on(2) == 0
    lose(procs, cl, what)
    assert cl.job(job)["state"] == "waits for the new device"
    cl.ceph("osd", "set-group", "noout", "osd.2")
    eventually(lambda: cl.run("ceph", "osd", "safe-to-destroy", "2", check=False).returncode == 0, timeout=60, what="an empty OSD")
    procs["osd.2"].kill()
    cl.ceph("osd", "down", "2")
    cl.ceph("osd", "destroy", "2", "--force", "--yes-i-really-mean-it")
    assert siphon("add", "osd", "--data-dir", procs["osd.2"].directory, "--id", "2", "--host", "h2", "--size", "10G").strip() == "2"
    procs["osd.2"].start()
    cl.ceph("osd", "unset-group", "noout", "osd.2")
    eventually(lambda: 0 < cl.on(2) < moves, timeout=180, what="the first groups to come back")
    lose(procs, cl, what)
    cl.ends(job)
    cl.clean()
    assert cl.placed() == before and cl.on(2) == moves
    cl.whole("d")
