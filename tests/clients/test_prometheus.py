"""Metrics of the manager: what Prometheus would read, and that it moves."""
import gzip
import os
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request

import pytest
from conftest import Cluster, eventually, free_port

if os.environ.get("SIPHON_TEST_CHROOT") or os.environ.get("SIPHON_TEST_CONF"):
    pytest.skip("a manager of ours is needed, on this host", allow_module_level=True)

LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (NaN|[+-]Inf|[-+0-9.e]+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def parse(text):
    """Values by name and labels; every line must be of the format, below the heading of its metric."""
    values, kinds = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in kinds, f"{name} twice"
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            m = LINE.fullmatch(line)
            assert m, line
            name = m[1] if m[1] in kinds else re.sub("_(sum|count)$", "", m[1])
            assert name in kinds, line
            values[m[1], frozenset(LABEL.findall(m[2] or ""))] = float(m[3])
    return values, kinds


def value(values, name, **labels):
    """The sum of all that have these labels."""
    found = [v for (n, have), v in values.items() if n == name and set(labels.items()) <= have]
    return sum(found) if found else None


@pytest.fixture(scope="module")
def cluster(base_conf):
    """One mode of connections: metrics have none."""
    c = Cluster(base_conf, "crc")
    c.ceph("config", "set", "mon", "mon_allow_pool_delete", "true")
    return c


@pytest.fixture(scope="module")
def url(cluster):
    port = free_port()
    for name, setting in ("server_addr", "127.0.0.1"), ("server_port", str(port)):
        cluster.ceph("config", "set", "mgr", f"mgr/prometheus/{name}", setting)
    cluster.ceph("mgr", "module", "enable", "prometheus")
    where = f"http://127.0.0.1:{port}/"
    eventually(lambda: cluster.ceph_json("mgr", "services").get("prometheus") == where, what="the manager's service where it is wanted")
    yield where
    cluster.ceph("mgr", "module", "disable", "prometheus")
    for name in "server_addr", "server_port":
        cluster.ceph("config", "rm", "mgr", f"mgr/prometheus/{name}")
    eventually(lambda: "prometheus" not in cluster.ceph_json("mgr", "services"), what="no service any more")


# What the queries of Ceph's boards and alerts (16.2 and those since) ask for, of RADOS: metrics, and the labels by which
# they select, sum and join them. Left out is what stock's own manager does not say either.
PG_STATES = """active backfill_toofull clean creating deep degraded down forced_backfill forced_recovery incomplete inconsistent peered
    peering recovering remapped repair scrubbing stale total undersized"""
BOARDS = {
    (): "cluster_total_bytes cluster_total_used_bytes health_status",
    ("device_class",): "cluster_by_class_total_used_bytes",
    ("ceph_daemon", "hostname"): "mgr_metadata mon_metadata osd_metadata",
    ("ceph_daemon",): """mgr_status mon_quorum_status osd_apply_latency_ms osd_commit_latency_ms osd_in osd_numpg osd_op_r
        osd_op_r_latency_count osd_op_r_latency_sum osd_op_r_out_bytes osd_op_w osd_op_w_in_bytes osd_op_w_latency_count
        osd_op_w_latency_sum osd_recovery_ops osd_stat_bytes osd_stat_bytes_used osd_up""",
    ("ceph_daemon", "type"): "daemon_health_metrics",
    ("pool_id",): """pool_bytes_used pool_compress_bytes_used pool_compress_under_bytes pool_dirty pool_max_avail pool_objects
        pool_percent_used pool_quota_bytes pool_quota_objects pool_rd pool_rd_bytes pool_stored pool_stored_raw pool_wr
        pool_wr_bytes """ + " ".join(f"pg_{s}" for s in PG_STATES.split()),
    ("pool_id", "name", "type", "compression_mode"): "pool_metadata",
}


def scrape(url):
    with urllib.request.urlopen(url + "metrics", timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return parse(answer.read().decode())


def test_a_scrape_shows_the_cluster_and_moves_under_load(cluster, pool, url):
    assert "prometheus" in cluster.ceph_json("mgr", "module", "ls")["enabled_modules"]
    known = eventually(lambda: (v := scrape(url)) and value(v[0], "ceph_osd_up") == 3 and v, what="three OSDs")
    values, kinds = known
    assert value(values, "ceph_health_status") in (0, 1, 2) and value(values, "ceph_osd_in") == 3
    assert value(values, "ceph_mon_quorum_status") == 1 and value(values, "ceph_mgr_status") == 1
    assert kinds["ceph_osd_op_w"] == "counter" and kinds["siphon_qos_tenant_wait_seconds"] == "summary"
    pool_id = next(str(p["poolnum"]) for p in cluster.ceph_json("osd", "lspools") if p["poolname"] == pool)
    served = value(values, "siphon_qos_tenant_served_total", tenant=pool) or 0
    cluster.rados("-p", pool, "bench", "1", "write", "-b", "4096", "-t", "4", "--no-cleanup")

    def moved():
        v, _ = scrape(url)
        counted = (value(v, "siphon_qos_tenant_served_total", tenant=pool) or 0) > served
        return counted and value(v, "ceph_pool_objects", pool_id=pool_id) and value(v, "ceph_pool_wr", pool_id=pool_id) and v

    v = eventually(moved, 120, "operations to be counted")
    assert value(v, "siphon_qos_tenant_offered_bytes_total", tenant=pool) > 0
    assert value(v, "siphon_qos_tenant_wait_seconds", tenant=pool, quantile="0.99") >= 0
    assert value(v, "siphon_qos_class_served_total", **{"class": "client"}) > 0
    offered, served = (value(v, f"siphon_qos_class_{name}_total", **{"class": "client"}) for name in ("offered", "served"))
    assert offered >= served, (offered, served)
    assert kinds["siphon_qos_class_wait_seconds"] == "summary" and value(v, "siphon_qos_class_wait_seconds", **{"class": "client", "quantile": "0.99"}) >= 0
    # Each OSD promises clients half of what it can do.
    for n in range(3):
        osd = {"ceph_daemon": f"osd.{n}"}
        promised = value(v, "siphon_qos_class_reservation_iops", **osd, **{"class": "client"})
        assert abs(promised / value(v, "siphon_osd_capacity_iops", **osd) - 0.5) < 0.06 and value(v, "siphon_osd_floors_scaled", **osd) == 1
    assert value(v, "siphon_qos_class_limit_iops", **{"class": "client"}) is None and value(v, "siphon_qos_class_throttled_seconds_total", **{"class": "client"}) >= 0
    assert value(v, "ceph_pg_total", pool_id=pool_id) == 8 and value(v, "ceph_cluster_total_bytes") > 0
    assert value(v, "ceph_pg_active", pool_id=pool_id) is not None and value(v, "siphon_job_objects_left", job="recovery") is not None


def test_trimming_is_a_job_in_clones(cluster, url):
    """What is left is known while trimming is forbidden, and what was left is what was done."""
    def job():
        return cluster.ceph_json("progress", "json")["jobs"]["trim"]

    cluster.ceph("osd", "pool", "create", "snaps", "4")
    cluster.ceph("osd", "set", "nosnaptrim")
    try:
        for snap in ("first", "second"):
            cluster.rados("-p", "snaps", "bench", "1", "write", "-b", "4096", "-t", "1", "--max-objects", "40", "--no-cleanup", "--run-name", "clones")
            cluster.rados("-p", "snaps", "mksnap", snap)
        # Only what is written anew becomes a clone, of both snapshots.
        before = job()["objects_done"]
        names = [o for o in cluster.rados("-p", "snaps", "ls").stdout.decode().split() if o.startswith("benchmark_data")][:30]
        assert len(names) == 30, names
        for name in names:
            cluster.rados("-p", "snaps", "put", name, "/etc/hostname")
        for snap in ("first", "second"):
            cluster.rados("-p", "snaps", "rmsnap", snap)
        left = eventually(lambda: (j := job())["groups_uncounted"] == 0 and j["objects_left"] >= 30 and j, what="the clones to be counted")
        assert left["paused"] == ["nosnaptrim"] and left["bytes_left"] > 0 and left["snapshots_left"] > 0, left
        assert value(scrape(url)[0], "siphon_job_objects_left", job="trim") == left["objects_left"]
    finally:
        cluster.ceph("osd", "unset", "nosnaptrim")
    over = eventually(lambda: not (j := job())["active"] and j, what="the clones to be gone")
    assert over["objects_left"] == 0 and over["objects_done"] - before == left["objects_left"], (left, over)


def test_removals_are_a_job_that_pauses(cluster, url):
    def job():
        return cluster.ceph_json("progress", "json")["jobs"]["delete"]

    done = eventually(lambda: (v := value(scrape(url)[0], "siphon_job_objects_done_total", job="delete")) is not None and [v], what="the job")[0]
    cluster.ceph("config", "set", "osd", "osd_pause_pg_deletion", "true")
    try:
        cluster.ceph("osd", "pool", "create", "leaves", "4")
        cluster.rados("-p", "leaves", "bench", "1", "write", "-b", "4096", "-t", "4", "--no-cleanup")
        cluster.ceph("osd", "pool", "delete", "leaves", "leaves", "--yes-i-really-really-mean-it")
        left = eventually(lambda: (j := job())["objects_left"] > 0 and j["paused"] and j, what="objects to be left")
        assert left["paused"] == ["osd_pause_pg_deletion"] and left["active"] and left["groups"] > 0 and left["bytes_left"] > 0
        events = eventually(lambda: cluster.ceph_json("status")["progress_events"], what="the monitors to know").values()
        assert any(e["message"].startswith("PG deletion") and "paused" in e["message"] for e in events), events
        assert "PG deletion" in cluster.ceph("-s") and "PG deletion" in cluster.ceph("progress")
        assert value(scrape(url)[0], "siphon_job_paused", job="delete") == 1
    finally:
        cluster.ceph("config", "rm", "osd", "osd_pause_pg_deletion")
    over = eventually(lambda: not (j := job())["active"] and j, what="the objects to be gone")
    assert over["objects_left"] == 0 and not over["paused"]
    assert any(e["message"] == "PG deletion" for e in cluster.ceph_json("progress", "json")["completed"])
    assert value(scrape(url)[0], "siphon_job_objects_done_total", job="delete") > done


def test_peers_that_are_silent_or_hostile_keep_nobody_waiting(url):
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(8)]
    with socket.create_connection((host, int(port))) as s:
        s.sendall(os.urandom(64) + b"\n\n")
        assert b" 400 " in s.recv(4096)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url + "etc/passwd", timeout=60)
    assert refused.value.code == 404
    assert scrape(url)[0]
    for s in silent:
        s.close()


def page(url):
    with urllib.request.urlopen(url + "metrics", timeout=30) as r:
        return r.read().decode()


def test_a_page_is_compressed_for_those_that_take_it(url):
    ask = urllib.request.Request(url + "metrics", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(ask, timeout=30) as r:
        assert r.headers["Content-Encoding"] == "gzip"
        body = r.read()
    assert int(r.headers["Content-Length"]) == len(body)
    values, _ = parse(gzip.decompress(body).decode())
    assert value(values, "ceph_osd_up") == 3 and len(body) < len(page(url)) / 4
    with urllib.request.urlopen(url + "metrics", timeout=30) as r:
        assert r.headers["Content-Encoding"] is None


def test_what_boards_and_alerts_read_of_osds(cluster, pool, url):
    """Names and labels that the dashboards and alerts written for Ceph use."""
    cluster.run("rados", "-p", pool, "bench", "2", "write", "-b", "4096", "--no-cleanup")
    cluster.run("rados", "-p", pool, "bench", "2", "rand")

    def moved():
        values, _ = parse(page(url))
        return all((value(values, f"ceph_osd_op_{way}_latency_{part}") or 0) > 0 for way in "rw" for part in ("sum", "count")) and values
    values = eventually(moved, what="latencies of operations")
    for osd in range(3):
        daemon = f"osd.{osd}"
        for name in ("op_r_out_bytes", "op_w_in_bytes", "recovery_ops", "apply_latency_ms", "commit_latency_ms"):
            assert value(values, f"ceph_osd_{name}", ceph_daemon=daemon) is not None, name
        assert value(values, "ceph_daemon_health_metrics", ceph_daemon=daemon, type="SLOW_OPS") == 0
    assert value(values, "ceph_osd_op_w_in_bytes") >= 4096
    for name in ("total_bytes", "total_used_bytes", "total_used_raw_bytes"):
        assert value(values, f"ceph_cluster_by_class_{name}") > 0
    host = socket.gethostname()
    for name in ("ceph_mon_metadata", "ceph_mgr_metadata", "ceph_osd_metadata"):
        assert value(values, name, hostname=host) >= 1, name
    # A disk is known by its name where the system has one below the store.
    told = [m["devices"] for m in cluster.ceph_json("osd", "metadata")]
    for name in ("ceph_disk_occupation", "ceph_disk_occupation_human"):
        assert (value(values, name) or 0) == sum(map(bool, told)), name


def test_every_query_of_the_boards_finds_a_series(cluster, pool, url):
    values = scrape(url)[0]
    have = {}
    for name, labels in values:
        have.setdefault(name, []).append({k for k, _ in labels})
    missing = {}
    for labels, names in BOARDS.items():
        for name in names.split():
            if not any(set(labels) <= of for of in have.get(f"ceph_{name}", [])):
                missing[name] = (labels, have.get(f"ceph_{name}"))
    assert not missing

    # Joins find a partner: what is known of a daemon or a pool stands beside its numbers. Those of a
    # new pool come with the first reports of its PGs.
    def of(names, label):
        found = scrape(url)[0]
        return [{v for n, labels in found for k, v in labels if n == name and k == label} for name in names]

    def alike(names, label):
        eventually(lambda: (a := of(names, label))[0] and all(x == a[0] for x in a), what=lambda: f"the same {label}: {of(names, label)}")

    alike(["ceph_osd_metadata", "ceph_osd_up", "ceph_osd_op_r"], "ceph_daemon")
    alike(["ceph_pool_metadata", "ceph_pool_stored", "ceph_pg_total"], "pool_id")


def test_images_have_metrics_where_they_are_wanted(cluster, pool, url):
    assert "ceph_rbd_" not in page(url)
    cluster.ceph("osd", "pool", "application", "enable", pool, "rbd", "--yes-i-really-mean-it")
    cluster.run("rbd", "create", f"{pool}/busy", "--size", "16M")
    cluster.ceph("config", "set", "mgr", "mgr/prometheus/rbd_stats_pools", pool)
    try:
        def seen():
            cluster.run("rbd", "bench", "--io-type", "write", "--io-size", "4096", "--io-total", "64K", "--rbd-cache=false", f"{pool}/busy")
            values, kinds = parse(page(url))
            return value(values, "ceph_rbd_write_ops", pool=pool, namespace="", image="busy") and (values, kinds)
        values, kinds = eventually(seen, timeout=90, what="the image")
        of = lambda name: value(values, f"ceph_rbd_{name}", pool=pool, image="busy")
        assert of("write_bytes") == 4096 * of("write_ops") and of("write_latency_count") == of("write_ops")
        assert of("write_latency_sum") > 0 and {of(f"read_{n}") for n in ("ops", "bytes", "latency_sum", "latency_count")} == {0}
        assert kinds["ceph_rbd_write_ops"] == "counter"
    finally:
        cluster.ceph("config", "rm", "mgr", "mgr/prometheus/rbd_stats_pools")


@pytest.mark.skipif(not shutil.which("promtool"), reason="Prometheus' own checker is not installed")
def test_the_checker_of_prometheus_finds_no_errors(url):
    r = subprocess.run(["promtool", "check", "metrics"], input=page(url).encode(), capture_output=True)
    # Its other complaints are about names, which are Ceph's.
    wrong = [l for l in r.stderr.decode().splitlines() if "error while linting" in l or "no help text" in l or "use base unit" in l and "siphon_" in l]
    assert r.returncode in (0, 3) and not wrong, r.stderr.decode()


def test_other_modules_say_that_they_are_not_there(cluster):
    cluster.fails("ceph", "mgr", "module", "enable", "dashboard", errno=2, text="do not support module")


def test_daemons_serve_their_own_counters_where_they_are_told_to(cluster):
    """Under the names of Ceph's exporter; nothing is served unless an address is given."""
    def page(port):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as r:
                return r.read().decode()
        except (urllib.error.URLError, ConnectionError):
            return None

    pool = cluster.make_pool("counted", 4)
    cluster.rados("-p", "counted", "put", "o", "-", data=b"x" * 5000)
    wanted = {"osd.0": "ceph_osd_op_w", "mon.a": "ceph_mon_num_sessions"}
    ports = {daemon: free_port() for daemon in wanted}
    assert not any(page(p) for p in ports.values()), pool
    for daemon, port in ports.items():
        cluster.ceph("config", "set", daemon, "metrics_addr", f"127.0.0.1:{port}")
    for daemon, name in wanted.items():
        eventually(lambda: page(ports[daemon]), what=f"metrics of {daemon}")
        text = page(ports[daemon])
        values, kinds = parse(text)
        assert value(values, name, ceph_daemon=daemon) is not None, text
        assert {dict(labels)["ceph_daemon"] for _, labels in values} == {daemon}
        if shutil.which("promtool"):
            r = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
            # Its other complaints are about names, which are Ceph's.
            assert r.returncode in (0, 3) and "error while linting" not in r.stderr, r.stderr
    values, kinds = parse(page(ports["osd.0"]))
    assert kinds["ceph_osd_op_w"] == "counter" and ("ceph_osd_op_latency_count", frozenset({("ceph_daemon", "osd.0")})) in values
    for daemon in ports:
        cluster.ceph("config", "rm", daemon, "metrics_addr")
    eventually(lambda: not any(page(p) for p in ports.values()), what="nothing to be served any more")
    cluster.delete_pool("counted")
