"""The manager: what it tells those who report to it, and who takes its place."""
import json
import subprocess
import threading

import pytest

from conftest import BINARY, eventually
from processes import running, siphon

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


def test_another_takes_its_place(procs, cl):
    def mon(prefix, **kw):
        return json.loads(cl.command(prefix=prefix, format="json", **kw))

    def becomes(active, standbys):
        def there():
            m = mon("mgr dump")
            if m["active_name"] == active and m["available"] and [s["name"] for s in m["standbys"]] == standbys:
                return m
        return eventually(there, what=f"{active} and {standbys}")

    def ceiling(iops):
        """A promise that the active manager divides over OSDs."""
        r = subprocess.run([str(BINARY), "qos", "-c", str(cl.conf), "set", "d", "--ceiling-iops", str(iops)], capture_output=True, text=True)
        assert r.returncode == 0, r.stderr

        def holds():
            with cl.admin.open_ioctx("d") as io:
                for n in range(8):
                    io.write_full(f"o{n}", b"x")
            tenants = [t for n in range(3) for t in cl.ceph_json("tell", f"osd.{n}", "dump_qos")["tenants"]]
            found = [t["ceiling"]["iops"]["cluster"] for t in tenants if t["tenant"] == "d" and t["specified"]]
            return found and all(c == iops for c in found)
        eventually(holds, what="the ceiling")

    def specified():
        """Tenants that osd.0 knows promises of."""
        code, out, text = cl.admin.osd_command(0, json.dumps({"prefix": "dump_qos"}), b"")
        assert code == 0, text
        return {t["tenant"] for t in json.loads(out)["tenants"] if t["specified"]}

    for name, value in [("mon_tick_interval", "1"), ("mon_mgr_mkfs_grace", "0")]:
        cl.command(prefix="config set", who="mon", name=name, value=value)
    siphon("add", "mgr", "--data-dir", procs.dirs[0], "--name", "y")
    procs.daemon(procs.dirs[0], "mgr.y").start()
    first = becomes("x", ["y"])
    assert {m["name"] for m in mon("mgr metadata")} == {"x", "y"} and sum(mon("mgr versions").values()) == 2
    status = cl.command(prefix="status").decode()
    assert "mgr: x(active, since " in status and "), standbys: y\n" in status, status

    # An image's promise takes a new manager longest to find again.
    for argv in (["rbd", "-c", cl.conf, "pool", "init", "d"], ["rbd", "-c", cl.conf, "create", "d/vm", "--size", "16M"]):
        subprocess.run([str(a) for a in argv], check=True)
    subprocess.run([str(BINARY), "qos", "-c", str(cl.conf), "set", "d//vm", "--ceiling-iops", "700"], check=True)
    eventually(lambda: "d//vm" in specified(), what="the promise to an image")

    # One that is told to go: another is there at once, and it waits itself. It takes nothing away meanwhile.
    looks, over = [], threading.Event()

    def look():
        while not over.is_set():
            looks.append("d//vm" in specified())

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    cl.command(prefix="mgr fail")
    second = becomes("y", ["x"])
    assert second["active_gid"] == first["standbys"][0]["gid"] and second["standbys"][0]["gid"] != first["active_gid"]
    assert second["last_failure_osd_epoch"] > first["last_failure_osd_epoch"]
    blocked = [b["addr"] for b in mon("osd blocklist ls")]
    assert any(a["addrvec"][0]["addr"] + "/" + str(a["addrvec"][0]["nonce"]) in blocked for a in [first["active_addrs"]]), (blocked, first)
    eventually(lambda: len(mgr(cl, prefix="pg dump", dumpcontents=["pgs"])["pg_stats"]) >= 16, what="statistics")
    ceiling(500)
    over.set()
    looking.join()
    assert len(looks) > 20 and all(looks), f"the image had no promise in {looks.count(False)} of {len(looks)} looks"

    # One that dies.
    cl.command(prefix="config set", who="mon", name="mon_mgr_beacon_grace", value="4")
    procs["mgr.y"].kill()
    becomes("x", [])
    assert [m["name"] for m in mon("mgr metadata")] == ["x"]
    log = cl.command(prefix="log last", num=50).decode()
    assert "Manager daemon y is unresponsive" in log and "Manager daemon x is now available" in log
    ceiling(400)

    # None, and one again.
    procs["mgr.x"].stop()
    check = eventually(lambda: mon("health")["checks"].get("MGR_DOWN"), what="the health check")
    assert check["summary"]["message"] == "no active mgr"
    assert "mgr: no daemons active (since " in cl.command(prefix="status").decode()
    procs["mgr.x"].start()
    becomes("x", [])
    eventually(lambda: "MGR_DOWN" not in mon("health")["checks"], what="health")
