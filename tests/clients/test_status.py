"""Commands that show the cluster's state."""
import re

from conftest import eventually


def test_status(cluster):
    s = cluster.ceph_json("status")
    for key in ("fsid", "health", "election_epoch", "quorum", "quorum_names", "monmap", "osdmap", "pgmap", "fsmap", "mgrmap", "servicemap", "progress_events"):
        assert key in s, key
    assert s["osdmap"]["num_osds"] == s["osdmap"]["num_up_osds"] == s["osdmap"]["num_in_osds"]
    assert s["pgmap"]["bytes_total"] > 0
    assert s["fsid"] == cluster.ceph("fsid").strip()
    text = cluster.ceph("-s")
    for part in ("cluster:", "id:", "health:", "services:", "mon:", "mgr:", "osd:", "data:", "pools:", "objects:", "usage:", "pgs:"):
        assert part in text, text


def test_health(cluster):
    h = cluster.ceph_json("health")
    assert h["status"] in ("HEALTH_OK", "HEALTH_WARN")
    assert set(h) == {"status", "checks", "mutes"}
    assert cluster.ceph("health").startswith("HEALTH_")
    assert cluster.ceph("health", "detail").startswith("HEALTH_")
    cluster.fails("ceph", "health", "mute", "NO_SUCH_ALERT", "1h", errno=2, text="not currently raised")


def test_health_mute(cluster):
    cluster.ceph("osd", "set", "noout")
    eventually(lambda: "OSDMAP_FLAGS" in cluster.ceph_json("health")["checks"], what="OSDMAP_FLAGS")
    cluster.ceph("health", "mute", "OSDMAP_FLAGS", "1h")
    assert any(m["code"] == "OSDMAP_FLAGS" for m in cluster.ceph_json("health")["mutes"])
    cluster.ceph("health", "unmute", "OSDMAP_FLAGS")
    assert not any(m["code"] == "OSDMAP_FLAGS" for m in cluster.ceph_json("health")["mutes"])
    cluster.ceph("osd", "unset", "noout")


def test_flags_are_warned_about(cluster):
    for flag in ("noout", "nodown", "noin", "noup", "nobackfill", "norebalance", "norecover", "noscrub", "nodeep-scrub", "notieragent", "nosnaptrim"):
        cluster.ceph("osd", "set", flag)
        assert flag in cluster.ceph_json("osd", "dump")["flags_set"]
        eventually(lambda: "OSDMAP_FLAGS" in cluster.ceph_json("health")["checks"], what="OSDMAP_FLAGS")
        assert flag in cluster.ceph("health", "detail")
        cluster.ceph("osd", "unset", flag)
        assert flag not in cluster.ceph_json("osd", "dump")["flags_set"]


def test_versions(cluster):
    v = cluster.ceph_json("versions")
    assert v["overall"] and v["mon"] and v["osd"]
    assert sum(v["osd"].values()) == cluster.ceph_json("osd", "stat")["num_osds"]
    assert cluster.ceph_json("features")["client"]


def test_mon(cluster):
    assert re.match(r"e\d+: \d+ mons at ", cluster.ceph("mon", "stat"))
    d = cluster.ceph_json("mon", "dump")
    assert d["mons"] and d["fsid"] == cluster.ceph("fsid").strip()
    q = cluster.ceph_json("quorum_status")
    assert q["quorum_names"] == [m["name"] for m in d["mons"]]
    assert cluster.ceph_json("mon", "metadata")
    name = d["mons"][0]["name"]
    assert cluster.ceph_json("tell", f"mon.{name}", "mon_status")["name"] == name


def test_mgr(cluster):
    m = cluster.ceph_json("mgr", "dump")
    assert m["available"] is True
    assert m["active_addrs"]["addrvec"]
    assert isinstance(cluster.ceph_json("mgr", "services"), dict)
    assert cluster.ceph_json("mgr", "stat")["available"] is True


def test_osd_views(cluster):
    osds = cluster.ceph_json("osd", "ls")
    tree = cluster.ceph_json("osd", "tree")
    assert sorted(n["id"] for n in tree["nodes"] if n["type"] == "osd") == osds
    assert "CLASS" in cluster.ceph("osd", "tree")
    st = cluster.ceph_json("osd", "stat")
    assert st["num_up_osds"] == len(osds)
    d = cluster.ceph_json("osd", "dump")
    assert [o["osd"] for o in d["osds"]] == osds
    assert all(o["up"] == 1 and o["in"] == 1 for o in d["osds"])
    f = cluster.ceph_json("osd", "find", osds[0])
    assert f["osd"] == osds[0] and f["crush_location"]["host"]
    md = cluster.ceph_json("osd", "metadata", osds[0])
    assert md["id"] == osds[0] and md["hostname"]
    assert cluster.ceph_json("osd", "metadata")
    assert "epoch" in cluster.ceph("osd", "dump")
    df = cluster.ceph_json("osd", "df")
    assert sorted(n["id"] for n in df["nodes"]) == osds
    assert df["summary"]["total_kb"] > 0
    assert "TOTAL" in cluster.ceph("osd", "df")
    assert cluster.ceph_json("osd", "perf")
    assert cluster.ceph_json("osd", "getmaxosd")["max_osd"] >= len(osds)


def test_df(cluster, pool):
    d = cluster.ceph_json("df")
    assert d["stats"]["total_bytes"] > 0
    eventually(lambda: pool in [p["name"] for p in cluster.ceph_json("df")["pools"]], what="the pool in df")
    p = next(p for p in cluster.ceph_json("df", "detail")["pools"] if p["name"] == pool)
    for key in ("stored", "objects", "kb_used", "bytes_used", "percent_used", "max_avail", "quota_objects", "quota_bytes", "dirty"):
        assert key in p["stats"], key
    text = cluster.ceph("df")
    assert "--- RAW STORAGE ---" in text and "--- POOLS ---" in text


def test_pg(cluster, pool):
    eventually(lambda: all(p["state"] == "active+clean" for p in cluster.ceph_json("pg", "dump", "pgs_brief")["pg_stats"]), what="active+clean")
    pid = cluster.ceph_json("osd", "pool", "ls", "detail")
    pid = next(p["pool_id"] for p in pid if p["pool_name"] == pool)
    mine = cluster.ceph_json("pg", "ls-by-pool", pool)["pg_stats"]
    assert len(mine) == 8 and all(p["pgid"].startswith(f"{pid}.") for p in mine)
    assert cluster.ceph("pg", "stat").split()[1] == "pgs:"
    m = cluster.ceph_json("pg", "map", f"{pid}.0")
    assert m["up"] == m["acting"] and len(m["up"]) == 3
    assert cluster.ceph_json("pg", "dump")["pg_map"]["osd_stats"]
    q = cluster.ceph_json("pg", f"{pid}.0", "query", timeout=60)
    assert q["state"] == "active+clean" and q["acting"] == m["acting"]
    by_osd = cluster.ceph_json("pg", "ls-by-osd", f"osd.{m['acting'][0]}")["pg_stats"]
    assert f"{pid}.0" in [p["pgid"] for p in by_osd]
    by_primary = cluster.ceph_json("pg", "ls-by-primary", f"osd.{m['acting'][0]}")["pg_stats"]
    assert f"{pid}.0" in [p["pgid"] for p in by_primary]
    assert not cluster.ceph_json("pg", "ls", "down").get("pg_stats")


def test_osd_map_command(cluster, pool):
    m = cluster.ceph_json("osd", "map", pool, "anything")
    assert m["pool"] == pool and m["objname"] == "anything" and len(m["acting"]) == 3
    assert re.search(rf"pool '{pool}'.*object 'anything' -> pg", cluster.ceph("osd", "map", pool, "anything"))


def test_tell_osd(cluster):
    assert "version" in cluster.ceph_json("tell", "osd.0", "version")
    assert "osd" in cluster.ceph_json("tell", "osd.0", "perf", "dump")
    assert cluster.ceph_json("tell", "osd.0", "status")["whoami"] == 0
    assert cluster.ceph_json("tell", "osd.0", "config", "get", "osd_max_object_size")["osd_max_object_size"] == "134217728"
    assert "ops" in cluster.ceph_json("tell", "osd.0", "dump_ops_in_flight")
    assert "ops" in cluster.ceph_json("tell", "osd.0", "dump_historic_ops")


def test_log(cluster):
    cluster.ceph("log", "a message from the tests")
    eventually(lambda: "a message from the tests" in cluster.ceph("log", "last", "50"), what="the log entry")


def test_unknown_commands(cluster):
    cluster.fails("ceph", "osd", "pool", "frobnicate", errno=22)
    cluster.fails("ceph", "pg", "map", "nonsense", errno=22)
    cluster.fails("ceph", "osd", "find", "999", errno=2)
