"""Old maps: which are kept, and an OSD that comes back after some are gone."""
import json
import os

from conftest import eventually
from processes import running
from test_processes import clean


def epoch(c):
    return json.loads(c.command(prefix="osd dump", format="json"))["epoch"]


def churn(c, n):
    for i in range(n):
        c.command(prefix="osd set" if i % 2 == 0 else "osd unset", key="noscrub")


def has_map(c, e):
    return c.run("ceph", "osd", "getmap", str(e), "-o", os.devnull, check=False).returncode == 0


def test_maps_are_kept_since_groups_were_clean():
    with running("siphon-maps.") as p:
        c = p.client()
        for who, name, value in [("mon", "mon_min_osdmap_epochs", "10"), ("mon", "mon_tick_interval", "1"),
                                 ("osd", "osd_beacon_report_interval", "1")]:
            c.ceph("config", "set", who, name, value)
        c.command(prefix="osd pool set", pool="d", var="min_size", val="1")
        eventually(lambda: clean(c), what="active+clean")
        c.rados("-p", "d", "put", "old", "-", data=b"before")
        churn(c, 60)
        eventually(lambda: not has_map(c, 5), what="old maps to be dropped while all is clean")

        # One is gone for good, as it seems; the others lack a copy.
        p["osd.2"].kill()
        c.command(prefix="osd down", ids=["2"])
        c.command(prefix="osd out", ids=["2"])
        degraded = epoch(c)
        eventually(lambda: c.ceph_json("status")["pgmap"].get("degraded_objects"), what="objects with two copies")
        for name in ("old", "new"):
            c.rados("-p", "d", "put", name, "-", data=b"after")
        churn(c, 60)
        # What a new leader knows is what it is told.
        p["mon.a"].kill()
        p["mon.a"].start()
        churn(c, 60)
        # The round that forgets this is one that would drop maps, after both OSDs have told what they need.
        c.command(prefix="osd blocklist", blocklistop="add", addr="192.0.2.1:0/1", expire=6.0)
        eventually(lambda: "192.0.2.1" not in c.ceph("osd", "blocklist", "ls"), what="a round of the leader")
        assert has_map(c, degraded), "who is down could not know who wrote"

        # With two copies all is well, and nobody needs to know any more.
        c.command(prefix="osd pool set", pool="d", var="size", val="2")
        eventually(lambda: clean(c, osds=2), what="active+clean with two copies")
        churn(c, 60)
        eventually(lambda: not has_map(c, degraded), what="old maps to be dropped when two copies are enough")

        # It comes back: what it has counts for nothing, whoever is asked.
        p["osd.2"].start()
        assert "are gone, going on with" in p["osd.2"].printed()
        c.command(prefix="osd in", ids=["2"])
        c.command(prefix="osd pool set", pool="d", var="size", val="3")
        eventually(lambda: clean(c), what="active+clean with three copies")
        for osd in ("0", "1"):
            c.command(prefix="osd primary-affinity", id=int(osd), weight=0.0)
        eventually(lambda: clean(c), what="active+clean, led by the one that came back")
        acting = c.ceph_json("osd", "map", "d", "old")
        assert acting["acting_primary"] == 2, acting
        for name in ("old", "new"):
            assert c.rados("-p", "d", "get", name, "-").stdout == b"after"
