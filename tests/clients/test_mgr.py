"""The manager: what it tells those who report to it."""
import json

import pytest

from conftest import eventually
from processes import running

pytest.importorskip("rados")


@pytest.fixture(scope="module")
def procs():
    with running("siphon-mgr.") as p:
        yield p


@pytest.fixture(scope="module")
def cl(procs):
    c = procs.client()
    yield c
    if c.admin:
        c.admin.shutdown()


def mgr(cl, **command):
    """A command for the manager from this process."""
    cl.command(prefix="fsid")
    code, out, text = cl.admin.mgr_command(json.dumps({"format": "json", **command}), b"")
    assert code == 0, f"{command}: {code} {text}"
    return json.loads(out)


def test_how_often_groups_are_reported(procs, cl):
    def reported():
        """The numbers of the last reports of what osd.0 leads."""
        return [s["reported_seq"] for s in mgr(cl, prefix="pg dump", dumpcontents=["pgs"])["pg_stats"] if s["acting_primary"] == 0]

    # Nobody writes: without a period, nothing is reported.
    for who, name in [("osd", "osd_mon_report_interval"), ("mgr", "mgr_stats_period")]:
        cl.command(prefix="config set", who=who, name=name, value="36000")
    eventually(lambda: cl.ceph_json("tell", "mgr.x", "config", "get", "mgr_stats_period") == {"mgr_stats_period": "36000"}, what="the setting")
    procs["osd.0"].stop()
    procs["osd.0"].start()
    eventually(lambda: json.loads(cl.command(prefix="osd stat", format="json"))["num_up_osds"] == 3, what="osd.0")
    eventually(lambda: all(s["state"] == "active+clean" for s in mgr(cl, prefix="pg dump", dumpcontents=["pgs"])["pg_stats"]), what="clean groups")
    cl.command(prefix="config set", who="mgr", name="mgr_stats_period", value="1")
    before = min(reported())
    eventually(lambda: min(reported()) > before + 2, what="reports")
    for who, name in [("osd", "osd_mon_report_interval"), ("mgr", "mgr_stats_period")]:
        cl.command(prefix="config rm", who=who, name=name)
