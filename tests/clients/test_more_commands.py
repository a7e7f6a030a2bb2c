"""Commands beside the common ones: settings of pools, snapshots, locks, CRUSH edits, admin sockets, watching."""
import json
import os
import re
import subprocess
import time

import pytest
from conftest import eventually

OWN = "SIPHON_TEST_CONF" not in os.environ

# Pool settings with a value that a replicated pool takes.
SETTINGS = {
    "min_size": "1", "pgp_num": "4", "nopgchange": "true", "nosizechange": "true", "write_fadvise_dontneed": "true",
    "noscrub": "true", "nodeep-scrub": "true", "bulk": "true", "scrub_min_interval": "100", "scrub_max_interval": "200",
    "deep_scrub_interval": "300", "recovery_priority": "5", "recovery_op_priority": "5", "scrub_priority": "5",
    "compression_mode": "aggressive", "compression_algorithm": "snappy", "compression_required_ratio": "0.5",
    "compression_max_blob_size": "65536", "compression_min_blob_size": "4096", "csum_type": "crc32c",
    "csum_max_block": "8192", "csum_min_block": "4096", "pg_autoscale_mode": "warn", "pg_autoscale_bias": "2",
    "pg_num_min": "4", "pg_num_max": "64", "target_size_bytes": "1073741824", "target_size_ratio": "0.3",
    "crush_rule": "replicated_rule",
}
REFUSED = {
    "size": ("abc", 22), "min_size": ("4", 22), "pgp_num": ("99", 22), "pg_num": ("0", 34), "hashpspool": ("false", 1),
    "crush_rule": ("no-such-rule", 2), "nodelete": ("maybe", 22), "recovery_priority": ("50", 22),
    "compression_mode": ("foo", 22), "compression_algorithm": ("foo", 22), "compression_required_ratio": ("5", 22),
    "csum_type": ("foo", 22), "pg_autoscale_mode": ("foo", 22), "pg_num_min": ("400", 22),
    "target_size_ratio": ("-1", 22), "fast_read": ("1", 22), "hit_set_type": ("bloom", 13),
    "target_max_bytes": ("1000", 13), "allow_ec_overwrites": ("true", 22),
}


class Api:
    """One connection for many commands: much quicker than the tool, with the same answers."""

    def __init__(self, conf):
        import rados
        self.rados = rados.Rados(conffile=str(conf), conf={"rados_mon_op_timeout": "30", "client_mount_timeout": "30"})
        self.rados.connect()

    def __call__(self, prefix, errno=0, mgr=False, data=b"", **args):
        send = self.rados.mgr_command if mgr else self.rados.mon_command
        ret, out, status = send(json.dumps({"prefix": prefix, **args}), data)
        assert ret == -errno, f"{prefix} {args}: {ret} {status}"
        return status if errno else out.decode(errors="replace")


@pytest.fixture(scope="module")
def api(base_conf):
    pytest.importorskip("rados")
    a = Api(base_conf)
    a("config set", who="mon", name="mon_allow_pool_delete", value="true")
    yield a
    a.rados.shutdown()


@pytest.fixture(scope="module")
def p(api):
    api("osd pool create", pool="settings", pg_num=8)
    yield "settings"
    for flag in ("nopgchange", "nosizechange"):
        api("osd pool set", pool="settings", var=flag, val="false")
    api("osd pool rm", pool="settings", pool2="settings", yes_i_really_really_mean_it=True)


def test_every_pool_setting(api, p):
    for var, val in SETTINGS.items():
        api("osd pool set", pool=p, var=var, val=val)
        got = lambda: json.loads(api("osd pool get", pool=p, var=var, format="json"))[var]
        if var in ("pg_num", "pgp_num"):
            # What is set is where the number goes.
            eventually(lambda: got() == int(val), what=f"{var} to be {val}")
        got = got()
        assert str(got).lower() == val or float(got) == float(val), (var, got)
    shown = json.loads(api("osd pool get", pool=p, var="all", format="json"))
    assert set(SETTINGS) - {"bulk", "crush_rule"} <= set(shown)
    for flag in ("nopgchange", "nosizechange"):
        api("osd pool set", pool=p, var=flag, val="false")
    api("osd pool set", pool=p, var="scrub_priority", val="unset")
    api("osd pool get", errno=2, pool=p, var="scrub_priority")


def test_pool_settings_are_checked(api, p):
    for var, (val, errno) in REFUSED.items():
        api("osd pool set", errno=errno, pool=p, var=var, val=val)
    api("osd pool get", errno=13, pool=p, var="hit_set_type")
    api("osd pool set-quota", errno=22, pool=p, field="max_bytes", val="abc")
    api("osd pool create", errno=34, pool="too-big", pg_num=1 << 20)
    api("osd pool create", errno=2, pool="no-rule", pg_num=8, rule="no-such-rule")
    api("osd pool mksnap", errno=2, pool="no-such-pool", snap="s")


def test_create_with_options(api):
    api("osd pool create", pool="opts", pg_num=8, size=2, bulk=True, pg_num_min=4, pg_num_max=16, autoscale_mode="off")
    d = next(x for x in json.loads(api("osd pool ls", detail="detail", format="json")) if x["pool_name"] == "opts")
    assert d["size"] == 2 and "bulk" in d["flags_names"] and d["pg_autoscale_mode"] == "off"
    assert d["options"] == {"pg_num_min": 4, "pg_num_max": 16}
    api("osd pool rm", pool="opts", pool2="opts", yes_i_really_really_mean_it=True)
    # The default profile is k=2 m=2 over hosts, and there is one host.
    api("osd pool create", errno=22, pool="ec", pg_num=8, pool_type="erasure") if OWN else None


def test_osd_states(api):
    api("osd out", ids=["2"])
    assert next(o for o in json.loads(api("osd dump", format="json"))["osds"] if o["osd"] == 2)["in"] == 0
    api("osd in", ids=["2"])
    api("osd down", ids=["1"])
    # A daemon that lives comes back by itself.
    eventually(lambda: json.loads(api("osd stat", format="json"))["num_up_osds"] == 3, what="osd.1 to boot again")
    for group in ("noup", "nodown", "noin", "noout"):
        api("osd set-group", flags=group, who=["osd.1"])
        assert group in next(o for o in json.loads(api("osd dump", format="json"))["osds"] if o["osd"] == 1)["state"]
        try:
            eventually(lambda: "OSD_FLAGS" in json.loads(api("health", format="json"))["checks"], timeout=20, what="OSD_FLAGS")
        finally:
            api("osd unset-group", flags=group, who=["osd.1"])
    api("osd set", errno=22, key="full")
    api("osd setmaxosd", errno=16, newmax=1)
    for command, low, high in (("osd set-full-ratio", 0.96, 0.95), ("osd set-nearfull-ratio", 0.86, 0.85), ("osd set-backfillfull-ratio", 0.91, 0.9)):
        api(command, ratio=low)
        api(command, ratio=high)
    assert len(json.loads(api("osd tree", states=["up"], format="json"))["nodes"]) >= 4
    assert not [n for n in json.loads(api("osd tree", states=["down"], format="json"))["nodes"] if n["type"] == "osd"]
    api("osd pool create", pool="osd-states", pg_num=8)
    known = lambda: any(True for _ in json.loads(api("status", format="json"))["pgmap"]["pgs_by_state"]) and all(x["state_name"].startswith("active") for x in json.loads(api("status", format="json"))["pgmap"]["pgs_by_state"])
    eventually(known, what="the groups' states to be known")
    # The manager may know of the pool before it hears of its groups; then it answers EAGAIN.
    ask = json.dumps({"prefix": "osd safe-to-destroy", "ids": ["0"], "format": "json"})
    ret, out, status = eventually(lambda: (lambda a: a[0] != -11 and a)(api.rados.mgr_command(ask, b"")), what="an answer about osd.0")
    assert ret == 0 and json.loads(out)["safe_to_destroy"] == [], status
    # PGs of the pool that the manager does not know as active yet count as those that would stop.
    stop = json.dumps({"prefix": "osd ok-to-stop", "ids": ["0"], "format": "json"})
    ret, out, status = eventually(lambda: (lambda a: a[0] != -16 and a)(api.rados.mgr_command(stop, b"")), what="osd.0 to be one that may stop")
    assert ret == 0 and json.loads(out)["osds"] == [0], status
    api("config set", who="mon", name="mon_allow_pool_delete", value="true")
    api("osd pool delete", pool="osd-states", pool2="osd-states", yes_i_really_really_mean_it=True)


def test_metadata(api):
    osds = json.loads(api("osd metadata", format="json"))
    for d in osds:
        for key in ("hostname", "arch", "cpu", "distro", "kernel_version", "mem_total_kb", "os", "osd_data", "osd_objectstore", "ceph_version"):
            assert d[key], key
    host = osds[0]["hostname"]
    assert json.loads(api("node ls", format="json"))["osd"][host] == [d["id"] for d in osds]
    assert json.loads(api("osd count-metadata", property="hostname", format="json")) == {host: len(osds)}
    for who in ("mon", "mgr"):
        assert json.loads(api(f"{who} metadata", format="json"))[0]["hostname"] == host
    assert json.loads(api("time-sync-status", format="json"))["timechecks"] is not None
    assert json.loads(api("report", format="json"))["osdmap"]
    assert json.loads(api("mds stat", format="json"))["fsmap"] is not None
    assert json.loads(api("fs ls", format="json")) == []


def test_configuration(api):
    api("config set", who="osd/class:hdd", name="osd_max_object_size", value="64M")
    rows = [r for r in json.loads(api("config dump", format="json")) if r["name"] == "osd_max_object_size"]
    assert "class:hdd" in [r["mask"] for r in rows]
    api("config rm", who="osd/class:hdd", name="osd_max_object_size")
    api("config show", errno=2, who="osd.99")
    history = json.loads(api("config log", format="json"))
    api("config set", who="osd", name="osd_max_object_size", value="32M")
    api("config reset", num=history[0]["version"])
    assert "osd_max_object_size" not in api("config dump")
    text = api("config generate-minimal-conf")
    assert "[global]" in text and "fsid = " in text and "mon_host = " in text
    left = api("config assimilate-conf", data=b"[global]\nno_such_option_at_all = 1\n[osd]\nosd_max_object_size = 67108864\n")
    assert "no_such_option_at_all" in left and "osd_max_object_size" not in left
    assert api("config get", who="osd.0", key="osd_max_object_size").strip() == "67108864"
    api("config rm", who="osd", name="osd_max_object_size")


def test_audit(api):
    api("config-key set", key="audit/secret", val="do not tell")
    api("config-key rm", key="audit/secret")
    api("osd set", key="noout")
    api("osd unset", key="noout")
    lines = eventually(lambda: api("log last", num=20, level="info", channel="audit"), what="the audit log")
    if OWN:
        assert "osd unset" in lines and "client.admin" in lines and "do not tell" not in lines
        assert '"config-key set","key":"audit/secret"' in lines.replace(": ", ":").replace(", ", ",")


def test_promises_to_tenants_are_audited(api):
    if not OWN:
        pytest.skip("stock clusters have no such promises")
    api("config-key set", key="qos/spec/audited", val='{"weight":7}')
    lines = eventually(lambda: (t := api("log last", num=20, level="info", channel="audit")) and "qos/spec/audited" in t and t, what="the audit log")
    assert "client.admin" in lines and "weight" in lines
    api("config-key rm", key="qos/spec/audited")


def test_crush_edits(api):
    api("osd crush add-bucket", name="r1", type="rack")
    api("osd crush move", name="r1", args=["root=default"])
    assert "r1" in json.loads(api("osd crush ls", node="default", format="json"))
    api("osd crush rename-bucket", srcname="r1", dstname="r2")
    api("osd crush rm", errno=39, name="default")
    api("osd crush rm", name="r2")
    before = json.loads(api("osd crush tree", format="json"))["nodes"]
    weight = next(n for n in before if n.get("id") == 1)["crush_weight"]
    api("osd crush reweight", name="osd.1", weight=0.5)
    api("osd crush reweight", name="osd.1", weight=weight)
    api("osd crush weight-set create-compat")
    assert "(compat)" in api("osd crush weight-set ls")
    api("osd crush weight-set rm-compat")
    api("osd crush rule create-simple", name="simple", root="default", type="osd")
    api("osd crush rule rename", srcname="simple", dstname="simple2")
    api("osd crush rule rm", name="simple2")
    api("osd crush class create", **{"class": "fancy"})
    api("osd crush class rm", **{"class": "fancy"})
    assert json.loads(api("osd crush get-device-class", ids=["0"], format="json")) is not None
    api("osd crush rule create-replicated", errno=22, name="x", root="default", type="osd", **{"class": "no-such-class"})


def test_what_is_not_there_says_so(api):
    if not OWN:
        return
    for prefix, mgr, args in (("telemetry on", True, {"license": "sharing-1-0"}), ("osd tier add", False, {"pool": "a", "tierpool": "b"}),
                              ("mon set-addrs", False, {"name": "b", "addrs": "127.0.0.1:1"})):
        assert api(prefix, errno=95, mgr=mgr, **args)


def test_health_detail_and_mute(cluster):
    cluster.ceph("osd", "set", "noin")
    eventually(lambda: "OSDMAP_FLAGS" in cluster.ceph("health", "detail"), what="OSDMAP_FLAGS")
    cluster.ceph("health", "mute", "OSDMAP_FLAGS", "5m", "--sticky")
    assert "(muted: OSDMAP_FLAGS" in cluster.ceph("health")
    cluster.ceph("osd", "unset", "noin")
    cluster.ceph("health", "unmute")


def test_help_and_version(cluster):
    assert "osd pool create" in cluster.ceph("-h")
    assert cluster.ceph("--version").startswith("ceph version 1")
    assert cluster.ceph("version").startswith("ceph version ")


@pytest.mark.skipif(not OWN, reason="the admin sockets of a foreign cluster are elsewhere")
def test_admin_sockets(cluster):
    run = cluster.conf.parent / "run"
    # The system's own tool: the daemons are outside of a chroot.
    ask = lambda name, *a: json.loads(subprocess.run(["ceph", "--admin-daemon", str(run / f"ceph-{name}.asok"), *a, "--format", "json"], capture_output=True, check=True).stdout)
    assert ask("osd.0", "perf", "dump")["osd"]
    assert ask("osd.0", "config", "show")["osd_max_object_size"]
    ask("osd.0", "config", "set", "osd_max_object_size", "1234567")
    assert ask("osd.0", "config", "get", "osd_max_object_size") == {"osd_max_object_size": "1234567"}
    assert "osd_max_object_size" in json.dumps(ask("osd.0", "config", "diff"))
    ask("osd.0", "config", "unset", "osd_max_object_size")
    for command in ("dump_ops_in_flight", "dump_historic_ops", "status", "version", "help"):
        assert ask("osd.0", command)
    assert ask("mon.a", "mon_status")["name"] == "a"
    assert ask("mon.a", "config", "get", "mon_allow_pool_delete")
    assert "version" in ask("mon.a", "version")
    assert "version" in ask("mgr.x", "version")


def test_tell_mon_about_itself(cluster):
    tell = lambda *command: cluster.ceph_json("tell", "mon.a", *command)
    # As long as it runs, and all or nothing.
    before = tell("config", "get", "mon_op_history_size")
    said = cluster.run("ceph", "tell", "mon.*", "injectargs", "--mon-op-history-size 5000 --mon_op_history_duration=3600")
    assert b"mon_op_history_size = '5000'" in said.stdout + said.stderr, said
    assert tell("config", "get", "mon_op_history_size") == {"mon_op_history_size": "5000"} != before
    assert cluster.run("ceph", "tell", "mon.a", "injectargs", "--mon_op_history_size 7 --mon_max_osd many", check=False).returncode != 0
    assert tell("config", "get", "mon_op_history_size") == {"mon_op_history_size": "5000"}
    try:
        cluster.ceph("config-key", "set", "seen/secret", "hidden value")
        cluster.ceph("osd", "pool", "ls")
        past = tell("dump_historic_ops")
        assert past["size"] == 5000 and past["duration"] == 3600
        op = [o for o in past["ops"] if "seen/secret" in o["description"]][-1]
        assert '"config-key set"' in op["description"] and "hidden" not in json.dumps(past), op
        events = [e["event"] for e in op["type_data"]["events"]]
        assert events == ["initiated", "waits for the commit", "done"] and op["duration"] > 0, op
        assert op["type_data"]["info"]["source"] == "client.admin"
        assert any("osd pool ls" in o["description"] for o in past["ops"])
        flying = tell("ops")
        assert flying["num_ops"] == len(flying["ops"])
        assert "compacted the log in" in cluster.ceph("tell", "mon.a", "compact")
        cluster.ceph("config-key", "set", "seen/secret", "after it")
        counters = tell("perf", "dump")["mon"]
        assert counters["election_win"] == 1 == counters["num_elections"] and counters["election_lose"] == 0, counters
    finally:
        cluster.ceph("config-key", "rm", "seen/secret")
        for name in ("mon_op_history_size", "mon_op_history_duration"):
            cluster.ceph("tell", "mon.a", "config", "unset", name)


def test_tell_mon(cluster):
    assert cluster.ceph_json("tell", "mon.a", "config", "get", "mon_allow_pool_delete") == {"mon_allow_pool_delete": "true"}
    assert "version" in cluster.ceph_json("tell", "mon.a", "version")
    assert len(cluster.ceph("tell", "osd.*", "version").splitlines()) >= 3
    assert "version" in cluster.ceph("tell", "mon.*", "version")


def test_client_io_in_status(cluster, pool):
    bench = subprocess.Popen(cluster.argv("rados", "bench", "30", "write", "-p", pool, "-b", "4096", "-t", "8"), stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: "client:" in cluster.ceph("-s") and "op/s wr" in cluster.ceph("-s"), what="client io in ceph -s")
        assert any(s["client_io_rate"].get("write_op_per_sec", 0) > 0 for s in cluster.ceph_json("osd", "pool", "stats"))
    finally:
        bench.terminate()
        bench.wait()


def test_rados_the_rest(cluster, pool, tmp_path):
    r = lambda *a, **k: cluster.rados("-p", pool, *a, **k).stdout.decode()
    r("put", "o", "-", data=b"abcdefgh")
    r("put", "-N", "ns", "o2", "-", data=b"x")
    assert re.search(r"o mtime .*, size 8", r("stat2", "o"))
    assert r("mapext", "o").split() == ["0", "8"]
    assert sorted(line.split() for line in r("ls", "--all").splitlines()) == [["ns", "o2"], ["o"]]
    r("setxattr", "o", "k", "v")
    r("setomapheader", "o", "header")
    assert "header" in r("getomapheader", "o")
    r("setomapval", "o", "key", "value")
    assert "key" in r("listomapvals", "o")
    assert "No watchers" in r("listwatchers", "o") or r("listwatchers", "o") == ""
    r("lock", "get", "o", "name")
    assert "name" in r("lock", "list", "o")
    other = pool + "-cp"
    cluster.make_pool(other, 4, application=None)
    try:
        cluster.rados("cppool", pool, other, "--yes-i-really-mean-it")
        assert cluster.rados("-p", other, "get", "o", "-").stdout == b"abcdefgh"
        cluster.rados("purge", other, "--yes-i-really-really-mean-it")
        assert cluster.rados("-p", other, "ls", "--all").stdout == b""
        cluster.rados("-p", pool, "export", "--workers", "4", tmp_path / "dump")
        cluster.rados("-p", other, "import", "--workers", "4", tmp_path / "dump")
        assert cluster.rados("-p", other, "listomapkeys", "o").stdout == b"key\n"
    finally:
        cluster.delete_pool(other)
    for option in ("--write-object", "--write-omap", "--write-xattr"):
        assert "Total writes made" in r("bench", "1", "write", "-t", "4", "-b", "4096", option)
    cluster.rados("-p", pool, "load-gen", "--num-objects", "10", "--max-object-size", "65536", "--run-length", "1", "--max-ops", "8", "--min-op-len", "512", "--max-op-len", "4096")
    assert pool in r("df") and pool in cluster.ceph("df", "detail")


@pytest.mark.skipif(not OWN, reason="takes an OSD of its own cluster away")
def test_destroy_and_purge_ask_whether_it_is_safe(siphon_factory):
    from conftest import Cluster

    siphon = siphon_factory(osds=4)
    siphon.start()
    c = Cluster(siphon.conf, "crc")
    c.ceph("osd", "pool", "create", "safe", "8")
    clean = lambda: [s["state_name"] for s in c.ceph_json("status")["pgmap"]["pgs_by_state"]] == ["active+clean"]
    eventually(clean, what="clean groups")
    used = next(o["id"] for o in c.ceph_json("osd", "df")["nodes"] if o["pgs"])
    warning = "You can proceed by passing --force, but be warned that this will likely mean real, permanent data loss."
    for verb in ("destroy", "purge"):
        said = c.fails("ceph", "osd", verb, str(used), errno=16, text=f"OSD(s) {used} have ")
        assert "pgs currently mapped to them. " in said and warning in said, said
        # It may be unsafe; but it is up, and that is no matter of opinion.
        for sure in ("--force", "--yes-i-really-mean-it"):
            c.fails("ceph", "osd", verb, f"osd.{used}", sure, errno=16, text=f"osd.{used} is not `down`.")
    c.fails("ceph", "osd", "purge-new", str(used), "--yes-i-really-mean-it", errno=16)
    # A number that was never started holds nothing.
    new = c.ceph_json("osd", "new", "6a5a1b1e-1f6c-4a51-9d0b-2f5f0f1d3c11")["osdid"]
    c.fails("ceph", "osd", "purge-new", str(new), errno=1, text="Are you SURE?")
    r = c.run("ceph", "osd", "destroy", str(new))
    assert f"destroyed osd.{new}" in r.stderr.decode()
    assert "destroyed" in next(o for o in c.ceph_json("osd", "dump")["osds"] if o["osd"] == new)["state"]
    r = c.run("ceph", "osd", "purge", str(new))
    assert f"purged osd.{new}" in r.stderr.decode()
    assert new not in [o["osd"] for o in c.ceph_json("osd", "dump")["osds"]]
    assert "does not exist" in c.run("ceph", "osd", "purge", str(new)).stderr.decode()
    # Without groups an OSD may go as soon as all groups are clean.
    c.ceph("osd", "out", str(used))
    eventually(lambda: clean() and c.run("ceph", "osd", "safe-to-destroy", str(used), check=False).returncode == 0, timeout=60, what="an empty OSD")
    c.fails("ceph", "osd", "purge", str(used), errno=16, text=f"osd.{used} is not `down`.")
