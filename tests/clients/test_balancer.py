"""The balancer, and weights by use: the commands of stock's module, and what they do to the map."""
import os
import re

import pytest
from conftest import Cluster, eventually

pytestmark = pytest.mark.skipif("SIPHON_TEST_CONF" in os.environ, reason="a cluster of its own is evened out")


@pytest.fixture(scope="module")
def cl(siphon_factory):
    c = siphon_factory(osds=6)
    c.start()
    cl = Cluster(c.conf, "crc")
    cl.ceph("osd", "set-require-min-compat-client", "luminous")
    cl.ceph("config", "set", "mgr", "mgr/balancer/upmap_max_deviation", "1")
    cl.make_pool("even", pg_num=32)
    cl.make_pool("other", pg_num=16)
    clean(cl)
    return cl


def clean(cl):
    def whole():
        states = cl.ceph_json("pg", "stat")["pg_summary"]["num_pg_by_state"]
        return states and all(s["name"] == "active+clean" for s in states)
    eventually(whole, what="all groups to be clean")


def status(cl):
    return cl.ceph_json("balancer", "status")


def counts(cl, pool):
    number = cl.ceph_json("osd", "pool", "get", pool, "pg_num")["pool_id"]
    out = dict.fromkeys(range(6), 0)
    for pg in cl.ceph_json("pg", "dump", "pgs_brief")["pg_stats"]:
        if pg["pgid"].startswith(f"{number}."):
            for osd in pg["up"]:
                out[osd] += 1
    return out


def upmaps(cl):
    return {u["pgid"]: u["mappings"] for u in cl.ceph_json("osd", "dump")["pg_upmap_items"]}


def optimized(cl, plan, *pools):
    """A plan, once the statistics allow one; whether there was something to do."""
    def tried():
        out = cl.run("ceph", "balancer", "optimize", plan, *pools, check=False)
        if out.returncode == 11:
            return None
        return out
    out = eventually(tried, what="statistics")
    assert out.returncode in (0, 114), out
    return out.returncode == 0


def test_settings(cl):
    assert set(status(cl)) == {"active", "last_optimize_duration", "last_optimize_started", "mode", "optimize_result", "plans"}
    assert status(cl)["active"] is False and status(cl)["mode"] == "upmap" and status(cl)["plans"] == []
    cl.ceph("balancer", "mode", "none")
    assert status(cl)["mode"] == "none"
    cl.fails("ceph", "balancer", "optimize", "p", errno=8, text="choose a valid mode")
    cl.fails("ceph", "balancer", "mode", "crush-compat", errno=95, text="crush-compat")
    cl.fails("ceph", "balancer", "mode", "sideways", errno=22)
    cl.fails("ceph", "balancer", "mode", "read", errno=1, text="required for pg-upmap-primary")
    cl.ceph("balancer", "mode", "upmap")
    assert cl.ceph("config", "get", "mgr", "mgr/balancer/mode").strip() == "upmap"


def test_pools(cl):
    assert cl.ceph("balancer", "pool", "ls").strip() == ""
    cl.ceph("balancer", "pool", "add", "even")
    cl.ceph("balancer", "pool", "add", "other")
    assert cl.ceph_json("balancer", "pool", "ls") == ["even", "other"]
    cl.fails("ceph", "balancer", "pool", "add", "nowhere", errno=22, text="['nowhere'] not found")
    cl.ceph("balancer", "pool", "rm", "other")
    assert cl.ceph_json("balancer", "pool", "ls") == ["even"]
    cl.ceph("balancer", "pool", "rm", "even")
    assert cl.ceph("balancer", "pool", "ls").strip() == ""


def test_plans(cl):
    before = counts(cl, "even")
    assert sum(before.values()) == 96 and max(before.values()) > 17, "a cluster that is uneven by chance"
    score = float(re.fullmatch(r'pool "even" score (\S+) \(lower is better\)\n', cl.ceph("balancer", "eval", "even"))[1])
    assert 0 < score < 1
    assert optimized(cl, "first", "even")
    assert cl.ceph_json("balancer", "ls") == ["first"] and status(cl)["plans"] == ["first"]
    assert status(cl)["optimize_result"] == "Optimization plan created successfully"
    assert re.fullmatch(r"0:00:\d\d(\.\d{6})?", status(cl)["last_optimize_duration"])
    shown = cl.ceph("balancer", "show", "first")
    assert shown.startswith("# starting osdmap epoch ") and "# mode upmap" in shown
    orders = re.findall(r"ceph osd pg-upmap-items (\S+)((?: \d+ \d+)+)", shown)
    assert 0 < len(orders) <= 10
    assert len(cl.ceph_json("balancer", "dump", "first")["new_pg_upmap_items"]) == len(orders)
    assert float(cl.ceph("balancer", "eval", "first").split("score ")[1].split()[0]) < score
    verbose = cl.ceph("balancer", "eval-verbose", "even")
    assert "target_by_root {'default': {0: 0.16666" in verbose and "total_by_pool {'even': {'pgs': 96" in verbose
    cl.fails("ceph", "balancer", "eval", "nowhere", errno=22, text="not a plan or a pool")
    cl.fails("ceph", "balancer", "show", "second", errno=2, text="plan second not found")
    cl.fails("ceph", "balancer", "execute", "second", errno=2, text="plan second not found")
    assert not upmaps(cl)
    cl.ceph("balancer", "execute", "first")
    assert sorted(upmaps(cl)) == sorted(pg for pg, _ in orders)
    assert cl.ceph_json("balancer", "ls") == []
    clean(cl)
    # The plan did what it said; what is left to do gets less, and ends.
    for n in range(20):
        if not optimized(cl, f"plan{n}", "even"):
            break
        cl.ceph("balancer", "execute", f"plan{n}")
        clean(cl)
    assert max(counts(cl, "even").values()) <= 17
    assert min(counts(cl, "even").values()) >= 15
    assert "already perfect" in status(cl)["optimize_result"]
    cl.ceph("balancer", "rm", "never-was")
    cl.ceph("balancer", "reset")


def test_it_acts_by_itself_within_its_bounds(cl):
    cl.ceph("config", "set", "mgr", "mgr/balancer/sleep_interval", "1")
    cl.ceph("config", "set", "mgr", "mgr/balancer/upmap_max_optimizations", "1")
    cl.ceph("balancer", "on")
    assert status(cl)["active"] is True
    cl.fails("ceph", "balancer", "optimize", "p", errno=22, text="Balancer enabled, disable to optimize manually")
    cl.fails("ceph", "balancer", "execute", "p", errno=22, text="Balancer enabled, disable to execute a plan")
    eventually(lambda: "already perfect" in status(cl)["optimize_result"], timeout=120, what="an even cluster")
    assert max(counts(cl, "other").values()) <= 9
    cl.ceph("balancer", "off")
    assert status(cl)["active"] is False
    assert cl.ceph("config", "get", "mgr", "mgr/balancer/active").strip() == "false"


def test_what_is_not_clean_is_left_alone(cl):
    stop = ("norebalance", "nobackfill", "norecover")
    for flag in stop:
        cl.ceph("osd", "set", flag)
    cl.rados("-p", "other", "put", "object", "-", data=b"x" * 100_000)
    pg = cl.ceph_json("osd", "map", "other", "object")["pgid"]
    cl.ceph("osd", "rm-pg-upmap-items", pg)
    here = cl.ceph_json("osd", "map", "other", "object")["up"]
    spare = next(o for o in range(6) if o not in here)
    cl.ceph("osd", "pg-upmap-items", pg, str(here[0]), str(spare))

    def refused():
        out = cl.run("ceph", "balancer", "optimize", "later", check=False)
        return out.returncode == 11 and b"try again later" in out.stderr
    eventually(refused, what="objects that are not where they should be")
    for flag in stop:
        cl.ceph("osd", "unset", flag)
    clean(cl)


def test_a_pool_comes_near_its_quota(cl):
    for n in range(8):
        cl.rados("-p", "other", "put", f"quota{n}", "/etc/hostname")
    cl.ceph("osd", "pool", "set-quota", "other", "max_objects", "10")
    told = lambda: cl.ceph_json("health", "detail")["checks"].get("POOL_NEAR_FULL")
    assert told() is None, "no threshold is set"
    cl.ceph("config", "set", "mon", "mon_pool_quota_warn_threshold", "75")
    check = eventually(told, what="the warning")
    assert check["summary"]["message"] == "1 pools nearfull", check
    assert re.fullmatch(r"pool 'other' has \d objects \(max 10\)", check["detail"][0]["message"]), check
    cl.ceph("osd", "pool", "set-quota", "other", "max_objects", "1000")
    eventually(lambda: told() is None, what="that to end")
    cl.ceph("config", "rm", "mon", "mon_pool_quota_warn_threshold")


def test_weights_by_use(cl):
    cl.fails("ceph", "osd", "reweight-by-utilization", "100", errno=22, text="higher than 100")
    cl.fails("ceph", "osd", "reweight-by-utilization", "120", "0", errno=22, text="must be positive")
    cl.ceph("config", "set", "mgr", "mon_reweight_min_bytes_per_osd", "1000000000000")
    cl.fails("ceph", "osd", "test-reweight-by-utilization", errno=33, text="Refusing to reweight: we only have ")
    cl.ceph("config", "set", "mgr", "mon_reweight_min_bytes_per_osd", "0")
    shown = eventually(lambda: cl.run("ceph", "osd", "test-reweight-by-utilization", check=False).stdout.decode(), what="statistics")
    for line in (r"moved \d+ / 144 \(\S+%\)", r"avg 24", r"stddev \S+ -> \S+ \(expected baseline \S+\)",
                 r"min osd\.\d with \d+ -> \d+ pgs \(\S+ -> \S+ \* mean\)", "oload 120", r"max_change 0\.05",
                 "max_change_osds 4", r"average_utilization \d\.\d{4}", r"overload_utilization \d\.\d{4}"):
        assert re.search(f"^{line}$", shown, re.M), (line, shown)
    # By PGs: a weight of a half makes the others too full.
    cl.ceph("osd", "reweight", "0", "0.5")
    clean(cl)
    tested = cl.ceph_json("osd", "test-reweight-by-pg", "101", "0.1", "2", "even", "other")
    assert tested["overload_min"] == 101 and tested["max_change_osds"] == 2 and tested["utilization"]["total_pgs"] == 144
    assert cl.ceph_json("osd", "dump")["osds"][0]["weight"] == 0.5, "a test changes nothing"
    cl.ceph("osd", "reweight-by-pg", "101", "0.1", "2", "even", "other")
    weights = [o["weight"] for o in cl.ceph_json("osd", "dump")["osds"]]
    assert 0 < len([w for w in weights if w not in (0.5, 1)]) <= 2, weights
    assert weights[0] == pytest.approx(0.6, abs=0.001), "it has least by far, and gets the most that one step may give"
    cl.fails("ceph", "osd", "reweight-by-pg", "101", "0.1", "2", "nowhere", errno=2, text="pool 'nowhere' does not exist")


def test_reads_are_evened_out_by_primaries(cl):
    def primaries():
        number = cl.ceph_json("osd", "pool", "get", "even", "pg_num")["pool_id"]
        groups = cl.ceph_json("pg", "dump", "pgs_brief")["pg_stats"]
        return {p["pgid"]: (p["up_primary"], sorted(p["up"])) for p in groups if p["pgid"].startswith(f"{number}.")}

    def uneven():
        """By how many groups an OSD leads more or less than a third of those that it has."""
        led = [p for p, _ in primaries().values()]
        return max(abs(led.count(osd) - has / 3) for osd, has in counts(cl, "even").items())

    for osd in range(6):
        cl.ceph("osd", "reweight", str(osd), "1")
    clean(cl)
    cl.ceph("osd", "set-require-min-compat-client", "reef", "--yes-i-really-mean-it")
    cl.ceph("config", "set", "mgr", "mgr/balancer/upmap_max_optimizations", "3")
    cl.ceph("balancer", "mode", "read")
    before, worst, plans = primaries(), uneven(), 0
    while optimized(cl, f"lead{plans}", "even"):
        orders = re.findall(r"ceph osd (?:rm-)?pg-upmap-primary (\S+)", cl.ceph("balancer", "show", f"lead{plans}"))
        assert 0 < len(orders) <= 3 and plans < 20
        cl.ceph("balancer", "execute", f"lead{plans}")
        clean(cl)
        changed = {p["pgid"] for p in cl.ceph_json("osd", "dump")["pg_upmap_primaries"]}
        assert set(orders) & changed
        plans += 1
    after = primaries()
    assert plans > 0 and uneven() < worst and uneven() <= 2, (worst, uneven())
    assert {pg: up for pg, (_, up) in after.items()} == {pg: up for pg, (_, up) in before.items()}, "no data moves"
    cl.ceph("osd", "rm-pg-upmap-primary-all")
    eventually(lambda: primaries() == before, what="the primaries that CRUSH chooses")
