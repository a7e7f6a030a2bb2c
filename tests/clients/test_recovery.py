"""What operators see of recovery, and what they can do about it."""
import errno
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from conftest import eventually
from processes import Processes

rados = pytest.importorskip("rados")

POOL = "r"


@pytest.fixture(scope="module")
def procs():
    base = Path(tempfile.mkdtemp(prefix="siphon-recovery."))
    p = Processes(base)
    try:
        p.start()
        yield p
    finally:
        p.stop()
        if not os.environ.get("SIPHON_TEST_KEEP"):
            shutil.rmtree(base, ignore_errors=True)


class Pg:
    """A pool of one group on two of three OSDs, either of which may serve alone."""

    def __init__(self, procs, pool=POOL):
        self.procs, self.c = procs, procs.client("crc")
        c = self.c
        c.command(prefix="osd pool create", pool=pool, pg_num=1, size=2)
        c.command(prefix="osd pool set", pool=pool, var="min_size", val="1")
        c.command(prefix="osd pool application enable", pool=pool, app="rados")
        self.cluster = rados.Rados(conffile=str(procs.conf), conf={"rados_mon_op_timeout": "60"})
        self.cluster.connect(timeout=60)
        self.io = self.cluster.open_ioctx(pool)
        self.pgid = f"{self.cluster.pool_lookup(pool)}.0"
        self.until(lambda s: s["state"] == "active+clean", "active+clean")
        self.first, self.second = self.stat()["acting"]

    def command(self, **command):
        return json.loads(self.c.command(format="json", **command))

    def stat(self):
        stats = json.loads(self.mgr(prefix="pg dump", dumpcontents=["pgs"]))
        stats = stats["pg_stats"] if isinstance(stats, dict) else stats
        return next(s for s in stats if s["pgid"] == self.pgid)

    def mgr(self, **command):
        code, out, text = self.c.admin.mgr_command(json.dumps({"format": "json", **command}), b"")
        assert code == 0, (command, code, text)
        return out

    def asks(self, cmd, **more):
        """A command to the group: return code, answer, status."""
        code, out, text = self.cluster.pg_command(self.pgid, json.dumps({"prefix": "pg", "pgid": self.pgid, "cmd": cmd, "format": "json", **more}), b"")
        return code, out, text

    def until(self, check, what):
        def look():
            s = self.stat()
            self.seen = s
            return check(s)
        try:
            eventually(look, what=what)
        except AssertionError as e:
            raise AssertionError(f"{what}: {self.seen}") from e

    def is_up(self, osd):
        return next(o["up"] for o in self.command(prefix="osd dump")["osds"] if o["osd"] == osd) == 1

    def stop(self, osd):
        self.procs[f"osd.{osd}"].stop()
        eventually(lambda: not self.is_up(osd), what=f"osd.{osd} is down")

    def start(self, osd):
        self.procs[f"osd.{osd}"].start()
        eventually(lambda: self.is_up(osd), what=f"osd.{osd} is up")

    def checks(self):
        return self.command(prefix="health", detail="detail")["checks"]


def test_unfound_objects(procs):
    pg = Pg(procs)
    c, io, pgid = pg.c, pg.io, pg.pgid
    for name in ("old", "wanted"):
        io.write_full(name, b"first " + name.encode())
    c.command(prefix="osd set", key="norecover")
    assert "norecover" in pg.checks()["OSDMAP_FLAGS"]["summary"]["message"]
    pg.stop(pg.second)
    for name in ("old", "wanted", "new"):
        io.write_full(name, b"second " + name.encode())
    pg.start(pg.second)
    pg.until(lambda s: s["acting"] == [pg.first, pg.second] and "degraded" in s["state"], "degraded")
    # A client's write is recovered for, although recovery is forbidden; nothing else is.
    io.write_full("wanted", b"third wanted")
    code, out, _ = pg.asks("list_missing")
    missing = json.loads(out)
    assert code == 0 and missing["num_missing"] == 2 and missing["num_unfound"] == 0, missing
    assert {o["oid"]["oid"] for o in missing["objects"]} == {"old", "new"}
    assert all(o["locations"] == [str(pg.first)] for o in missing["objects"]), missing
    assert pg.asks("mark_unfound_lost", mulcmd="revert")[::2] == (0, "pg has no unfound objects")

    # The OSD that alone has the newest content goes.
    pg.stop(pg.first)
    pg.until(lambda s: s["acting"] == [pg.second] and s["stat_sum"]["num_objects_unfound"] == 2, "two unfound objects")
    eventually(lambda: "OBJECT_UNFOUND" in pg.checks(), what="OBJECT_UNFOUND")
    unfound = pg.checks()["OBJECT_UNFOUND"]
    assert "objects unfound" in unfound["summary"]["message"]
    assert unfound["detail"][0]["message"] == f"pg {pgid} has 2 unfound objects"
    shown = json.loads(c.ceph("pg", pgid, "list_unfound"))
    assert shown["num_unfound"] == 2 and not shown["more"] and shown["state"] == "Active", shown
    assert {o["oid"]["oid"] for o in shown["objects"]} == {"old", "new"}
    assert {"osd": str(pg.first), "status": "osd is down"} in shown["might_have_unfound"], shown
    query = json.loads(pg.asks("query")[1])
    assert {"osd": str(pg.first), "status": "osd is down"} in query["recovery_state"][0]["might_have_unfound"], query
    c.fails("ceph", "pg", pgid, "mark_unfound_lost", "revert", errno=22,
            text="pg has 2 unfound objects but we haven't probed all sources, not marking lost")
    assert io.read("wanted") == b"third wanted"

    # It comes back: who waits goes on.
    got = []
    found = io.aio_read("old", 100, 0, lambda _, data: got.append(data))
    time.sleep(0.2)
    assert not found.is_complete() and not got
    pg.start(pg.first)
    found.wait_for_complete_and_cb()
    assert got == [b"second old"]

    # It goes for good, so operators are told: what there was before counts again, what was not there goes.
    pg.until(lambda s: s["acting"] == [pg.first, pg.second] and "active" in s["state"], "both act")
    pg.stop(pg.first)
    pg.until(lambda s: s["acting"] == [pg.second] and s["stat_sum"]["num_objects_unfound"] == 2, "two unfound objects again")
    results = {}
    reads = [io.aio_read(n, 100, 0, lambda done, data, n=n: results.__setitem__(n, (done.get_return_value(), data))) for n in ("old", "new")]
    c.command(prefix="osd lost", id=pg.first, yes_i_really_mean_it=True)
    def give_up():
        code, _, text = pg.asks("mark_unfound_lost", mulcmd="revert")
        assert code in (0, -22), (code, text)
        return code == 0 and text
    assert eventually(give_up, what="the loss is known") == "pg has 2 objects unfound and apparently lost marking"
    for r in reads:
        r.wait_for_complete_and_cb()
    assert results["old"] == (9, b"first old") and results["new"][0] == -2, results
    io.write_full("new", b"another new")

    # What was lost does not come back with the OSD that had it.
    pg.start(pg.first)
    c.command(prefix="osd unset", key="norecover")
    pg.until(lambda s: s["state"] == "active+clean" and s["acting"] == [pg.first, pg.second], "active+clean")
    contents = {n: io.read(n) for n in ("old", "wanted", "new")}
    assert contents == {"old": b"first old", "wanted": b"third wanted", "new": b"another new"}
    eventually(lambda: "OBJECT_UNFOUND" not in pg.checks(), what="nothing is unfound")


def test_a_group_that_is_down_says_what_would_help(procs):
    """The OSD that took writes alone is gone when the other comes back."""
    pg = Pg(procs, "down")
    c, io = pg.c, pg.io
    io.write_full("a", b"both")

    def peering():
        states = json.loads(pg.asks("query")[1])["recovery_state"]
        return {s["name"]: s for s in states}

    def down(content):
        pg.stop(pg.second)
        pg.until(lambda s: s["acting"] == [pg.first] and "active" in s["state"], "one acts alone")
        io.write_full("a", content)
        pg.stop(pg.first)
        pg.start(pg.second)
        pg.until(lambda s: s["state"] == "down" and s["blocked_by"] == [pg.first], "down")
        states = peering()
        assert list(states) == ["Started/Primary/Peering/Down", "Started/Primary/Peering", "Started"], states
        assert states["Started/Primary/Peering/Down"]["comment"] == "not enough up instances of this PG to go active"
        state = states["Started/Primary/Peering"]
        assert state["blocked"] == "peering is blocked due to down osds", state
        assert state["probing_osds"] == [str(pg.second)] and state["down_osds_we_would_probe"] == [pg.first], state
        past = state["past_intervals"][0]
        assert past["intervals"][-1]["acting"] == str(pg.first) and {"osd": pg.first} in past["all_participants"], past
        return state["peering_blocked_by"]

    comment = "starting or marking this osd lost may let us proceed"
    assert down(b"alone") == [{"osd": pg.first, "current_lost_at": 0, "comment": comment}]
    info = json.loads(pg.asks("query")[1])["info"]
    assert info["pgid"] == pg.pgid and info["history"]["last_epoch_started"] > 0 and info["incomplete"] == 0, info
    # The first half of the advice: what was written alone is there.
    pg.start(pg.first)
    pg.until(lambda s: s["state"] == "active+clean", "active+clean")
    assert io.read("a") == b"alone"
    query = json.loads(pg.asks("query")[1])
    assert [s["name"] for s in query["recovery_state"]] == ["Started/Primary/Active", "Started"], query["recovery_state"]
    peers = {p["peer"]: p for p in query["peer_info"]}
    assert peers[str(pg.second)]["history"]["last_epoch_started"] > 0 and peers[str(pg.second)]["pgid"] == pg.pgid, peers

    # The second half: the other serves what it has.
    blocked = down(b"lost")
    assert [b["osd"] for b in blocked] == [pg.first], blocked
    c.command(prefix="osd lost", id=blocked[0]["osd"], yes_i_really_mean_it=True)
    pg.until(lambda s: s["acting"] == [pg.second] and "active" in s["state"], "it serves")
    assert io.read("a") == b"alone"
    pg.start(pg.first)
    pg.until(lambda s: s["state"] == "active+clean", "active+clean again")
    assert io.read("a") == b"alone"


def test_forced_recovery_goes_first(procs):
    """Few groups of an OSD recover at a time. Without recovery they keep their turns, so that who has one can be seen."""
    c = procs.client("crc")
    c.command(prefix="osd pool create", pool="turns", pg_num=8, size=3)
    c.command(prefix="osd pool application enable", pool="turns", app="rados")
    mgr = rados.Rados(conffile=str(procs.conf), conf={"rados_mon_op_timeout": "60"})
    mgr.connect(timeout=60)
    pool = mgr.pool_lookup("turns")
    seen = {}

    def states():
        code, out, text = mgr.mgr_command(json.dumps({"prefix": "pg dump", "dumpcontents": ["pgs"], "format": "json"}), b"")
        assert code == 0, text
        stats = json.loads(out)
        stats = stats["pg_stats"] if isinstance(stats, dict) else stats
        seen.clear()
        seen.update({s["pgid"]: s["state"].split("+") for s in stats if s["pgid"].startswith(f"{pool}.")})
        return seen

    def until(check, what):
        try:
            eventually(lambda: check(states()), what=what)
        except AssertionError as e:
            raise AssertionError(f"{what}: {seen}") from e

    def force(what, pgid):
        code, _, text = mgr.mgr_command(json.dumps({"prefix": f"pg {what}", "pgid": [pgid]}), b"")
        return code, text.strip()

    until(lambda s: len(s) == 8 and all(x == ["active", "clean"] for x in s.values()), "all are clean")
    c.command(prefix="osd set", key="norecover")
    procs["osd.2"].stop()
    until(lambda s: all("undersized" in x for x in s.values()), "one is away")
    io = mgr.open_ioctx("turns")
    for i in range(64):
        io.write_full(f"o{i}", b"x")
    procs["osd.2"].start()
    until(lambda s: all("degraded" in x and "undersized" not in x for x in s.values()), "all must be recovered")
    until(lambda s: any("recovering" in x for x in s.values()) and any("recovery_wait" in x for x in s.values()), "some have turns")
    waits = next(pgid for pgid, x in sorted(seen.items()) if "recovery_wait" in x)
    code, text = force("force-recovery", waits)
    assert code == 0 and text.startswith(f"instructing pg(s) [{waits}] on osd.") and "to force-recovery" in text, text
    until(lambda s: {"recovering", "forced_recovery"} <= set(s[waits]), "it has taken a turn")
    assert force("force-recovery", waits) == (-22, f"pg {waits} recovery already forced;")
    assert force("cancel-force-recovery", waits)[0] == 0
    until(lambda s: "forced_recovery" not in s[waits], "it is like others")
    assert force("cancel-force-recovery", waits) == (0, f"pg {waits} recovery not forced;")
    c.command(prefix="osd unset", key="norecover")
    until(lambda s: all(x == ["active", "clean"] for x in s.values()), "all are clean again")
    assert force("force-recovery", waits) == (0, f"pg {waits} doesn't require recovery;")
    assert mgr.mgr_command(json.dumps({"prefix": "osd pool force-backfill", "who": ["nothing"]}), b"")[0] == -2


def test_a_lost_pg_is_made_anew(procs):
    """All copies of a group are gone; an operator gives its data up. What is found of it later does not come back."""
    pg = Pg(procs, "given-up")
    io, pgid = pg.io, pg.pgid
    third = next(o for o in range(3) if o not in (pg.first, pg.second))
    for i in range(20):
        io.write_full(f"old-{i}", b"gone")

    def force(pgid=pgid, **more):
        code, _, text = pg.c.admin.mon_command(json.dumps({"prefix": "osd force-create-pg", "pgid": pgid, **more}), b"")
        return code, text

    sure = {"yes_i_really_mean_it": True}
    pool = pgid.split(".")[0]
    assert force()[0] == -errno.EPERM
    assert force("nonsense", **sure)[0] == -errno.EINVAL
    assert force(f"{pool}.7", **sure) == (-errno.ENOENT, f"pg {pool}.7 should not exist")
    assert force("999.0")[0] == -errno.ENOENT

    for osd in (third, pg.first, pg.second):
        pg.stop(osd)
    for osd in (pg.first, pg.second):
        pg.c.command(prefix="osd out", ids=[str(osd)])
        pg.c.command(prefix="osd lost", id=osd, yes_i_really_mean_it=True)
    waiting = io.aio_write_full("waited", b"there")

    def is_creating():
        pools = pg.command(prefix="osd dump")["pools"]
        return "creating" in next(p["flags_names"] for p in pools if p["pool_name"] == "given-up")

    assert force(**sure) == (0, f"pg {pgid} now creating, ok")
    assert force(**sure) == (0, f"pg {pgid} already creating")
    assert is_creating(), "no OSD is there to make it"
    pg.start(third)
    waiting.wait_for_complete_and_cb()
    assert waiting.get_return_value() == 0
    pg.until(lambda s: s["acting"] == [third] and "active" in s["state"], "active on the third")
    eventually(lambda: not is_creating(), what="the group made")
    with pytest.raises(rados.ObjectNotFound):
        io.read("old-1")

    for osd in (pg.first, pg.second):
        pg.start(osd)
        pg.c.command(prefix="osd in", ids=[str(osd)])
    pg.until(lambda s: s["state"] == "active+clean" and len(s["acting"]) == 2, "active+clean")
    assert {o.key for o in io.list_objects()} == {"waited"}
    assert io.read("waited") == b"there"
    for i in range(20):
        with pytest.raises(rados.ObjectNotFound):
            io.read(f"old-{i}")
