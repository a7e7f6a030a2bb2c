"""A movement job goes on when the leader of the monitors, the manager or an OSD is lost at any step."""
import os

import pytest
from conftest import eventually
from processes import running, siphon
from test_move import Moving

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
