"""What tools around a cluster issue, and what they read of the answers: collectors of diagnostics, Rook's script for
external clusters, ceph-csi, Cinder, Proxmox; and Siphon's own tools for an operator (`doctor`, `report`)."""
import json
import os
import re
import subprocess
import tarfile
import uuid
import xml.dom.minidom

import pytest
import rados
import rbd
from conftest import BINARY, eventually

OWN = "SIPHON_TEST_CONF" not in os.environ


class Doors:
    """Commands as libraries send them."""

    def __init__(self, conf):
        self.conf = str(conf)
        self.rados = rados.Rados(conffile=self.conf, conf={"rados_mon_op_timeout": "60", "client_mount_timeout": "30"})
        self.rados.connect()

    def mon(self, prefix, data=b"", **args):
        code, out, status = self.rados.mon_command(json.dumps({"prefix": prefix, **args}), data)
        return -code, out, status

    def mgr(self, prefix, data=b"", **args):
        code, out, status = self.rados.mgr_command(json.dumps({"prefix": prefix, **args}), data)
        return -code, out, status

    def json(self, prefix, door=None, **args):
        code, out, status = (door or self.mon)(prefix, format="json", **args)
        assert code == 0, f"{prefix}: {code} {status}"
        return json.loads(out)

    def text(self, prefix, door=None, **args):
        code, out, status = (door or self.mon)(prefix, **args)
        assert code == 0, f"{prefix}: {code} {status}"
        return out.decode()

    def osd(self, osd, prefix, **args):
        code, out, status = self.rados.osd_command(osd, json.dumps({"prefix": prefix, "format": "json", **args}), b"")
        assert code == 0, f"{prefix}: {code} {status}"
        return json.loads(out) if out.strip() else None


@pytest.fixture(scope="module")
def doors(base_conf):
    d = Doors(base_conf)
    d.mon("config set", who="mon", name="mon_allow_pool_delete", value="true")
    yield d
    d.rados.shutdown()


@pytest.fixture(scope="module")
def pool(doors):
    name = "tools-" + uuid.uuid4().hex[:8]
    assert doors.mon("osd pool create", pool=name, pg_num=8)[0] == 0
    assert doors.mon("osd pool application enable", pool=name, app="rbd")[0] == 0
    clean = lambda: all(p["state"] == "active+clean" for p in doors.json("pg ls-by-pool", doors.mgr, poolstr=name)["pg_stats"])
    eventually(clean, what="a clean pool")
    yield name
    doors.mon("osd pool delete", pool=name, pool2=name, yes_i_really_really_mean_it=True)


@pytest.fixture
def user(doors, tmp_path):
    made = []

    def make(*caps, name=None):
        name = name or "client.t-" + uuid.uuid4().hex[:8]
        ring = doors.text("auth get-or-create", entity=name, caps=list(caps))
        made.append(name)
        path = tmp_path / name
        path.write_text(ring)
        return name, path

    yield make
    for name in made:
        doors.mon("auth rm", entity=name)


def connect(doors, name, key, **conf):
    c = rados.Rados(name=name, conffile=doors.conf, conf={"key": key, "keyring": "", "client_mount_timeout": "10", "rados_osd_op_timeout": "30", **conf})
    c.connect(timeout=10)
    return c


# --- collectors ---

COLLECTED = ["bluestore allocator dump block", "dump_objectstore_kv_stats", "dump_pgstate_history", "dump_recovery_reservations", "list_devices",
             "perf histogram dump", "perf histogram schema", "get_latest_osdmap", "cache drop", "dump_pg_recovery_stats", "scrub_purged_snaps"]


@pytest.mark.parametrize("command", COLLECTED)
def test_an_osd_answers_collectors(doors, pool, command):
    doors.osd(0, command)


def test_free_space_is_listed_as_ranges(doors, pool):
    dump = doors.osd(0, "bluestore allocator dump block")
    ranges = [(int(e["offset"], 16), int(e["length"], 16)) for e in dump["extents"]]
    assert dump["alloc_unit"] == 4096 and dump["alloc_name"] == "block" and ranges
    assert all(a + n < b for (a, n), (b, _) in zip(ranges, ranges[1:])), "in order, not adjacent"
    assert 0 < sum(n for _, n in ranges) <= dump["capacity"]


def test_the_states_of_a_group_are_remembered(doors, pool):
    groups = {p["pg"].split("s")[0]: p for o in range(3) for p in doors.osd(o, "dump_pgstate_history")["pgs"] if "Primary" in p["currently"]}
    mine = [p["pgid"] for p in doors.json("pg ls-by-pool", doors.mgr, poolstr=pool)["pg_stats"]]
    states = [s["state"] for e in groups[mine[0]]["history"] for s in e["states"]]
    assert "Started/Primary/Peering/GetInfo" in states, groups[mine[0]]
    assert all(s["enter"] <= s["exit"] for e in groups[mine[0]]["history"] for s in e["states"])
    stats = {s["recovery_state"]: s for s in doors.osd(0, "dump_pg_recovery_stats")}
    assert stats["Started/Primary/Peering/GetInfo"]["exits"] > 0
    if OWN:
        assert stats["Started/Primary/Active/Clean"]["enters"] > 0


def test_reservations_have_a_side_each(doors):
    turns = doors.osd(0, "dump_recovery_reservations")
    for side in "local_reservations", "remote_reservations":
        assert turns[side]["max_allowed"] >= 1 and turns[side]["in_progress"] == [] and turns[side]["queues"] == []


def test_monitors_and_managers_answer_collectors(cluster, doors):
    mon = doors.json("mon dump")["mons"][0]["name"]
    scores = json.loads(cluster.ceph("tell", f"mon.{mon}", "connection", "scores", "dump"))
    assert {"rank", "epoch", "reports"} <= set(scores)
    mgr = doors.json("mgr dump")["active_name"]
    assert json.loads(cluster.ceph("tell", f"mgr.{mgr}", "objecter_requests"))["ops"] == []


def test_formats_have_the_same_content(doors, pool):
    doors.mon("config set", who="osd", name="osd_max_backfills", value="1")
    for prefix, args in (("config dump", {}), ("osd dump", {}), ("health", {}), ("osd pool get", {"pool": pool, "var": "size"})):
        short, long = doors.mon(prefix, format="json", **args), doors.mon(prefix, format="json-pretty", **args)
        assert json.loads(short[1]).__class__ is json.loads(long[1]).__class__
        assert b"\n" in long[1].strip(), prefix
        code, out, _ = doors.mon(prefix, format="xml", **args)
        assert code == 0 and xml.dom.minidom.parseString(b"<all>" + out + b"</all>").documentElement.childNodes, prefix
    doors.mon("config rm", who="osd", name="osd_max_backfills")


# --- commands that tools miss ---

def test_a_key_is_rotated_while_clients_run(doors, pool, user):
    name, ring = user("mon", "allow r", "osd", "allow rw")
    old = doors.json("auth get", entity=name)[0]
    running = connect(doors, name, old["key"])
    io = running.open_ioctx(pool)
    io.write_full("rotate", b"before")
    rotated = doors.json("auth rotate", entity=name)
    assert [e["entity"] for e in rotated] == [name] and rotated[0]["caps"] == old["caps"] and rotated[0]["key"] != old["key"]
    assert doors.json("auth get", entity=name) == rotated
    io.write_full("rotate", b"after")
    assert io.read("rotate") == b"after", "a session goes on"
    io.close()
    running.shutdown()
    with pytest.raises(rados.Error):
        connect(doors, name, old["key"])
    again = connect(doors, name, rotated[0]["key"])
    again.shutdown()
    assert doors.mon("auth rotate", entity="client.nobody-there")[0] == 2
    assert doors.mon("auth rotate", entity="nonsense")[0] == 22
    plain = doors.text("auth rotate", entity=name)
    assert plain.startswith(f"[{name}]\n\tkey = ") and 'caps osd = "allow rw"' in plain
    keys = {f"{s['entity']['type_str']}.{s['entity']['id']}": s for s in doors.json("auth dump-keys")["data"]["secrets"]}
    assert keys[name]["auth"]["key"]["type_str"] == "aes" and keys[name]["auth"]["caps"]["osd"] == "allow rw"
    weak, weak_ring = user("mon", "allow r")
    weak_client = connect(doors, weak, doors.json("auth get", entity=weak)[0]["key"])
    for command in {"prefix": "auth dump-keys"}, {"prefix": "auth rotate", "entity": name}:
        assert weak_client.mon_command(json.dumps(command), b"")[0] == -13, command
    weak_client.shutdown()


def test_devices_of_daemons(cluster, doors):
    devices = doors.json("device ls", doors.mgr)
    of_osds = {}
    for m in doors.json("osd metadata"):
        for pair in filter(None, m["device_ids"].split(",")):
            dev, id = pair.split("=", 1)
            if id:
                of_osds.setdefault(id, set()).add((m["hostname"], dev, f"osd.{m['id']}"))
    for id, places in of_osds.items():
        found = next(d for d in devices if d["devid"] == id)
        assert {(l["host"], l["dev"]) for l in found["location"]} >= {(h, d) for h, d, _ in places}
        assert set(found["daemons"]) >= {o for _, _, o in places}
        assert doors.json("device info", doors.mgr, devid=id) == found
    assert doors.text("device ls", doors.mgr).split("\n")[0].split()[:3] == ["DEVICE", "HOST:DEV", "DAEMONS"]
    assert {d["devid"] for d in doors.json("device ls-by-daemon", doors.mgr, who="osd.0")} == {i for i, p in of_osds.items() if any(o == "osd.0" for _, _, o in p)}
    host = doors.json("osd metadata", id=0)["hostname"]
    assert {d["devid"] for d in doors.json("device ls-by-host", doors.mgr, host=host)} >= {i for i, p in of_osds.items() if any(h == host for h, _, _ in p)}
    for command, code, text in (({"prefix": "device info", "devid": "none"}, 2, "device none not found"), ({"prefix": "device ls-by-daemon", "who": "osd.99"}, 2, "daemon osd.99 not found"),
                                ({"prefix": "device ls-by-daemon", "who": "osd"}, 22, "is not a valid daemon name")):
        got, _, status = doors.mgr(command.pop("prefix"), **command)
        assert got == code and text in status, status
    assert doors.json("device ls-by-host", doors.mgr, host="no-such-host") == []


@pytest.mark.skipif(not OWN, reason="16.2 has no such command")
def test_health_checks_are_remembered(doors):
    doors.text("healthcheck history clear", doors.mgr)
    doors.mon("osd set", key="noout")
    try:
        seen = eventually(lambda: doors.json("healthcheck history ls", doors.mgr).get("OSDMAP_FLAGS"), what="the check in the history")
        assert seen["active"] and seen["severity"] == "HEALTH_WARN" and seen["count"] == 1 and seen["first_seen"] <= seen["last_seen"]
    finally:
        doors.mon("osd unset", key="noout")
    eventually(lambda: not doors.json("healthcheck history ls", doors.mgr)["OSDMAP_FLAGS"]["active"], what="the check gone")
    table = doors.text("healthcheck history ls", doors.mgr)
    assert re.search(r"^OSDMAP_FLAGS +\d{4}/\d\d/\d\d \d\d:\d\d:\d\d +\d{4}/\d\d/\d\d \d\d:\d\d:\d\d +1 +No$", table, re.M), table
    assert doors.text("healthcheck history clear", doors.mgr) == "healthcheck history cleared"
    assert "OSDMAP_FLAGS" not in doors.json("healthcheck history ls", doors.mgr)


def test_progress_is_switched_off_and_on(doors):
    status = lambda prefix: doors.mgr(prefix)[2].strip()
    assert doors.mgr("progress clear")[0] == 0
    assert status("progress off") == "progress disabled"
    eventually(lambda: status("progress off") == "progress already disabled!", what="the manager to know")
    if OWN:
        assert doors.json("progress json", doors.mgr)["events"] == []
    assert status("progress on") == "progress enabled"
    eventually(lambda: status("progress on") == "progress already enabled!", what="the manager to know again")
    assert {"events", "completed"} <= set(doors.json("progress json", doors.mgr))


@pytest.mark.skipif(not OWN, reason="stock would send reports to Ceph")
def test_telemetry_shows_and_never_sends(doors, pool):
    code, _, text = doors.mgr("telemetry on")
    assert code == 1 and "--license sharing-1-0" in text
    assert doors.mgr("telemetry on", license="sharing-1-0")[0] == 95
    assert doors.mgr("telemetry send", license="sharing-1-0")[0] == 95
    assert doors.mgr("telemetry off")[0] == 0
    status = doors.json("telemetry status", doors.mgr)
    assert status["enabled"] is False and status["url"] == "" and status["channel_basic"] is True and status["channel_ident"] is False
    report = doors.json("telemetry preview", doors.mgr)
    assert report["channels"] == ["basic", "crash", "device"] and report["license"] == "sharing-1-0"
    assert report["mon"]["count"] >= 1 and report["osd"]["count"] >= 3 and report["crashes"] == []
    hosts = {m["hostname"] for m in doors.json("osd metadata")}
    names = {p["pool_name"] for p in doors.json("osd dump")["pools"] if p["pool_name"].startswith("tools-")}
    assert not any(n in json.dumps(report) for n in hosts | names)
    assert doors.json("telemetry show", doors.mgr)["report_id"] == report["report_id"]
    assert doors.json("telemetry show", doors.mgr, channels=["crash"]).keys() == {"channels", "channels_available", "crashes", "leaderboard", "license", "report_id", "report_timestamp", "report_version"}
    assert doors.mgr("telemetry show", channels=["nonsense"])[0] == 22
    assert [c["name"] for c in doors.json("telemetry channel ls", doors.mgr)] == ["basic", "crash", "device", "ident", "perf"]


def test_a_monitor_without_space_is_named(doors):
    name = doors.json("mon dump")["mons"][0]["name"]
    check = lambda: doors.json("health", detail="detail")["checks"]
    doors.mon("config set", who="mon", name="mon_data_avail_warn", value="100")
    try:
        low = eventually(lambda: check().get("MON_DISK_LOW"), what="MON_DISK_LOW")
        assert low["severity"] == "HEALTH_WARN" and re.search(rf"mon\.{name} has \d+% avail", low["detail"][0]["message"])
        doors.mon("config set", who="mon", name="mon_data_avail_crit", value="100")
        critical = eventually(lambda: check().get("MON_DISK_CRIT"), what="MON_DISK_CRIT")
        assert critical["severity"] == "HEALTH_ERR" and "MON_DISK_LOW" not in check()
    finally:
        for option in "mon_data_avail_warn", "mon_data_avail_crit":
            doors.mon("config set", who="mon", name=option, value="0")
    eventually(lambda: not {"MON_DISK_LOW", "MON_DISK_CRIT"} & set(check()), what="the checks gone")


# --- promises hold when the command returns ---

@pytest.mark.skipif(not OWN, reason="stock has no tenants")
def test_a_specification_holds_when_the_command_returns(doors, pool):
    def qos(*args):
        return subprocess.run([str(BINARY), "qos", "-c", doors.conf, *map(str, args)], capture_output=True, text=True, timeout=60)

    def ceilings():
        rows = [t for o in range(3) for t in doors.osd(o, "dump_qos")["tenants"] if t["tenant"] == pool and t["specified"]]
        return [t["ceiling"]["iops"] and t["ceiling"]["iops"]["cluster"] for t in rows]

    for iops in 300, 200:
        r = qos("set", pool, "--ceiling-iops", iops)
        assert r.returncode == 0, r.stderr
        assert ceilings() == [iops] * 3
    r = qos("rm", pool)
    assert r.returncode == 0 and ceilings() == [], r.stderr


# --- tools for an operator of Siphon ---

@pytest.mark.skipif(not OWN, reason="a tool of ours")
def test_doctor_looks_at_the_host(tmp_path):
    r = subprocess.run([str(BINARY), "doctor", str(tmp_path), "--format", "json"], capture_output=True, text=True, timeout=60)
    told = json.loads(r.stdout)
    assert r.returncode == (1 if told["verdict"] == "danger" else 0), r.stderr
    checks = {f["check"]: f for f in told["findings"]}
    assert {"cpu governor", "idle states", "iommu", "transparent huge pages", "open files", "clock source", "clock", "file system", "write cache", "flush time"} <= set(checks)
    assert all(f["verdict"] in ("good", "unknown", "slow", "danger") and bool(f["advice"]) == (f["verdict"] in ("slow", "danger")) for f in told["findings"])
    assert 0 < told["flush_seconds"]["median"] <= told["flush_seconds"]["p99"] and not list(tmp_path.iterdir())
    plain = subprocess.run([str(BINARY), "doctor", str(tmp_path), "--no-write"], capture_output=True, text=True, timeout=60)
    assert "flush time" not in plain.stdout and "endanger data" in plain.stdout
    if os.path.isdir("/dev/shm"):
        assert subprocess.run([str(BINARY), "doctor", "/dev/shm"], capture_output=True, timeout=60).returncode == 1, "memory keeps nothing"


@pytest.mark.skipif(not OWN, reason="a tool of ours")
def test_a_report_tells_neither_names_nor_keys(doors, pool, user, tmp_path):
    name, _ = user("mon", "allow r", name="client.very-secret-customer")
    with doors.rados.open_ioctx(pool) as io:
        rbd.RBD().create(io, "disk-of-customer", 4 << 20)
        try:
            host = doors.json("osd metadata", id=0)["hostname"]
            log = tmp_path / "osd.0.log"
            log.write_text(f"{host} client.very-secret-customer wrote {pool}/disk-of-customer from 10.77.66.55:1234\n")
            doors.mon("config set", who="mgr", name="mgr/x/password", value="hunter2", force=True)
            files = {}
            for redact in [], ["--redact"]:
                out = tmp_path / f"report{len(redact)}.tar"
                r = subprocess.run([str(BINARY), "report", str(out), "-c", doors.conf, "--log", str(log), *redact], capture_output=True, text=True, timeout=120)
                assert r.returncode == 0, r.stderr
                with tarfile.open(out) as t:
                    files = {m.name: t.extractfile(m).read().decode() for m in t.getmembers()}
                assert out.stat().st_mode & 0o777 == 0o600
                everything = "\n".join([*files, *files.values()])
                for secret in doors.json("auth dump-keys")["data"]["secrets"]:
                    assert secret["auth"]["key"]["key"] not in everything, secret["entity"]
                assert "hunter2" not in everything
                for secret in "very-secret-customer", pool, "disk-of-customer", "10.77.66.55", host, doors.rados.get_fsid():
                    told = re.search(rf"(?<![\w-]){re.escape(secret)}(?![\w-])", everything) is not None
                    assert told == (not redact) or secret in ("localhost", "default"), secret
            assert {f"siphon-report/{n}" for n in ("versions.json", "status.json", "health-detail.json", "osd-tree.json", "osd-df.json", "osd-dump.json", "pg-stat.json",
                                                   "pg-dump-pgs-brief.json", "config-dump.json", "crash-ls.json", "logs/osd.0.log")} <= set(files)
            assert re.fullmatch(r"\S+ client\.user-\d+ wrote pool-\d+/image-\d+ from address-\d+:1234\n", files["siphon-report/logs/osd.0.log"]), files["siphon-report/logs/osd.0.log"]
            assert json.loads(files["siphon-report/osd-df.json"])["nodes"] and json.loads(files["siphon-report/pg-dump-pgs-brief.json"])
        finally:
            doors.mon("config rm", who="mgr", name="mgr/x/password")
            rbd.RBD().remove(io, "disk-of-customer")


# --- Rook's create-external-cluster-resources.py ---

def test_rook_prepares_an_external_cluster(doors, pool, user):
    quorum = doors.json("quorum_status")
    leader = next(m for m in quorum["monmap"]["mons"] if m["name"] == quorum["quorum_leader_name"])
    v2 = [a["addr"] for a in leader["public_addrs"]["addrvec"] if a["type"] == "v2"]
    assert v2 and re.fullmatch(r"(.+):\d+", v2[0])
    status = doors.json("status")
    assert isinstance(status["mgrmap"]["services"], dict) and isinstance(status["mgrmap"]["num_standbys"], int)
    assert isinstance(doors.json("mgr services"), dict)
    mine = next(p for p in doors.json("osd dump")["pools"] if p["pool_name"] == pool)
    assert mine["erasure_code_profile"] == "", "else it is taken for an erasure-coded pool"
    assert isinstance(doors.json("fs ls"), list)
    assert doors.rados.pool_exists(pool) and re.fullmatch(r"[0-9a-f-]{36}", doors.rados.get_fsid())
    version = doors.json("version")["version"]
    assert re.search(r"ceph version (\d+)\.(\d+)\.(\d+)", version)
    users = {
        "client.healthchecker": ["mon", "allow r, allow command quorum_status, allow command version", "mgr", "allow command config",
                                 "osd", "profile rbd-read-only, allow rwx pool=default.rgw.meta, allow r pool=.rgw.root, allow rw pool=default.rgw.control, allow rx pool=default.rgw.log, allow x pool=default.rgw.buckets.index"],
        "client.csi-rbd-node": ["mon", "profile rbd, allow command 'osd blocklist'", "osd", "profile rbd"],
        "client.csi-rbd-provisioner": ["mon", "profile rbd, allow command 'osd blocklist'", "mgr", "allow rw", "osd", "profile rbd"],
        "client.csi-cephfs-node": ["mon", "allow r, allow command 'osd blocklist'", "mgr", "allow rw", "osd", "allow rw tag cephfs *=*", "mds", "allow rw"],
        "client.csi-cephfs-provisioner": ["mon", "allow r, allow command 'osd blocklist'", "mgr", "allow rw", "osd", "allow rw tag cephfs metadata=*", "mds", "allow *"],
    }
    for name, caps in users.items():
        user(*caps, name=name)
        entry = doors.json("auth get", entity=name)[0]
        assert entry["key"] and entry["caps"] == dict(zip(caps[::2], caps[1::2])), name
        # It runs again with the same caps, and with others.
        assert doors.json("auth get-or-create", entity=name, caps=caps)[0]["key"] == entry["key"]
        assert doors.mon("auth caps", entity=name, caps=caps)[0] == 0
    assert {u["entity"] for u in doors.json("auth ls")["auth_dump"]} >= set(users)
    # The operator looks at the cluster as this user.
    key = doors.json("auth get", entity="client.healthchecker")[0]["key"]
    checker = connect(doors, "client.healthchecker", key)
    for command in "status", "versions", "mon dump", "quorum_status", "version":
        assert checker.mon_command(json.dumps({"prefix": command, "format": "json"}), b"")[0] == 0, command
    assert checker.mon_command(json.dumps({"prefix": "osd pool create", "pool": "x", "pg_num": 8}), b"")[0] == -13
    checker.shutdown()
    with doors.rados.open_ioctx(pool) as io:
        rbd.RBD().pool_init(io, True)
        rbd.RBD().namespace_create(io, "rook")
        assert rbd.RBD().namespace_exists(io, "rook")
        rbd.RBD().namespace_remove(io, "rook")


# --- ceph-csi ---

def test_csi_provisions_clones_and_fences(doors, pool, user):
    user("mon", "profile rbd, allow command 'osd blocklist'", "mgr", "allow rw", "osd", "profile rbd", name="client.csi-rbd-provisioner")
    key = doors.json("auth get", entity="client.csi-rbd-provisioner")[0]["key"]
    csi = connect(doors, "client.csi-rbd-provisioner", key, rbd_default_clone_format="2")
    io = csi.open_ioctx(pool)
    try:
        # The journal of volumes: names to numbers, in omaps.
        with rados.WriteOpCtx() as op:
            io.set_omap(op, ("csi.volume.pvc-1",), (b"0001",))
            io.operate_write_op(op, "csi.volumes.default")
        with rados.WriteOpCtx() as op:
            io.set_omap(op, ("csi.imagename", "csi.volname"), (b"csi-vol-0001", b"pvc-1"))
            io.operate_write_op(op, "csi.volume.0001")
        with rados.ReadOpCtx() as op:
            values, _ = io.get_omap_vals_by_keys(op, ("csi.imagename",))
            io.operate_read_op(op, "csi.volume.0001")
            assert dict(values) == {"csi.imagename": b"csi-vol-0001"}
        layers = rbd.RBD_FEATURE_LAYERING | rbd.RBD_FEATURE_EXCLUSIVE_LOCK | rbd.RBD_FEATURE_OBJECT_MAP | rbd.RBD_FEATURE_FAST_DIFF | rbd.RBD_FEATURE_DEEP_FLATTEN
        rbd.RBD().create(io, "csi-vol-0001", 16 << 20, old_format=False, features=layers)
        with rbd.Image(io, "csi-vol-0001") as image:
            image.metadata_set("csi.storage.k8s.io/pv/name", "pvc-1")
            image.create_snap("csi-snap-1")
            parent = image.id()
        rbd.RBD().clone(io, "csi-vol-0001", "csi-snap-1", io, "csi-vol-0002", features=layers)
        with rbd.Image(io, "csi-vol-0001") as image:
            image.remove_snap("csi-snap-1")

        def task(prefix, **args):
            code, out, status = csi.mgr_command(json.dumps({"prefix": prefix, "format": "json", **args}), b"")
            assert code == 0, status
            return json.loads(out)

        assert task("rbd task add flatten", image_spec=f"{pool}/csi-vol-0002")["refs"]["action"] == "flatten"

        def parentless():
            with rbd.Image(io, "csi-vol-0002") as image, pytest.raises(rbd.ImageNotFound):
                image.parent_info()
            return True

        def flat():
            with rbd.Image(io, "csi-vol-0002", read_only=True) as image:
                return image.overlap() == 0

        eventually(flat, what="the clone flat")
        assert parentless()
        rbd.RBD().trash_move(io, "csi-vol-0001", 0)
        assert task("rbd task add trash remove", image_id_spec=f"{pool}/{parent}")["refs"]["action"] == "trash remove"
        eventually(lambda: parent not in [t["id"] for t in rbd.RBD().trash_list(io)], what="the volume gone")
        for form in {"blocklistop": "add", "addr": "10.9.8.7:0/1"}, {"blocklistop": "rm", "addr": "10.9.8.7:0/1"}:
            assert csi.mon_command(json.dumps({"prefix": "osd blocklist", **form}), b"")[0] == 0, form
        assert csi.mon_command(json.dumps({"prefix": "osd blocklist ls", "format": "json"}), b"")[0] == 0
    finally:
        for name in rbd.RBD().list(io):
            rbd.RBD().remove(io, name)
        for name in "csi.volumes.default", "csi.volume.0001":
            io.remove_object(name)
        io.close()
        csi.shutdown()


# --- Cinder ---

def test_cinder_reads_space_and_makes_volumes(doors, pool, user):
    code, out, _ = doors.mon("df", format="json")
    df = json.loads(out)
    mine = next(p for p in df["pools"] if p["name"] == pool)
    assert mine["stats"]["max_avail"] > 0 and mine["stats"]["bytes_used"] >= 0 and df["stats"]["total_bytes"] > 0
    quota = doors.json("osd pool get-quota", pool=pool)
    assert (quota["quota_max_bytes"], quota["pool_name"]) == (0, pool)
    with doors.rados.open_ioctx(pool) as io:
        rbd.RBD().create(io, "volume-1", 8 << 20, old_format=False, features=rbd.RBD_FEATURE_LAYERING)
        with rbd.Image(io, "volume-1") as image:
            image.create_snap("volume-1.clone_snap")
            image.protect_snap("volume-1.clone_snap")
        rbd.RBD().clone(io, "volume-1", "volume-1.clone_snap", io, "volume-2", features=rbd.RBD_FEATURE_LAYERING)
        with rbd.Image(io, "volume-1", snapshot="volume-1.clone_snap") as image:
            assert list(image.list_children()) == [(pool, "volume-2")]
        with rbd.Image(io, "volume-1") as image, pytest.raises(rbd.ImageBusy):
            image.unprotect_snap("volume-1.clone_snap")
        with rbd.Image(io, "volume-2") as image:
            assert image.parent_info() == (pool, "volume-1", "volume-1.clone_snap")
            image.flatten()
            image.resize(16 << 20)
        with rbd.Image(io, "volume-1") as image:
            image.unprotect_snap("volume-1.clone_snap")
            image.remove_snap("volume-1.clone_snap")
        for name in "volume-1", "volume-2":
            rbd.RBD().remove(io, name)


# --- Proxmox ---

def test_proxmox_fills_its_panels(cluster, doors, pool):
    status = doors.json("status")
    assert {"health", "monmap", "osdmap", "pgmap", "mgrmap", "fsmap", "quorum_names"} <= set(status)
    assert {"bytes_total", "bytes_used", "bytes_avail", "pgs_by_state"} <= set(status["pgmap"])
    assert {"num_osds", "num_up_osds", "num_in_osds"} <= set(status["osdmap"])
    tree = doors.json("osd tree")
    root = next(n for n in tree["nodes"] if n["type"] == "root")
    assert root["children"] and all({"crush_weight", "status", "reweight"} <= set(n) for n in tree["nodes"] if n["type"] == "osd")
    rows = {n["id"]: n for n in doors.json("osd df", doors.mgr, output_method="tree")["nodes"] if n["type"] == "osd"}
    assert all({"kb", "kb_used", "utilization", "pgs"} <= set(n) for n in rows.values())
    for m in doors.json("osd metadata"):
        assert {"hostname", "osd_objectstore", "front_addr", "back_addr", "ceph_version_short", "bluestore_bdev_type"} <= set(m)
    assert {p["pool"] for p in doors.json("osd dump")["pools"]} == {p["poolnum"] for p in doors.json("osd lspools")}
    assert "replicated_rule" in doors.json("osd crush rule ls")
    rule = doors.json("osd crush rule dump", name="replicated_rule")
    assert rule["rule_name"] == "replicated_rule" and rule["steps"]
    settings = {}
    for var in "size", "min_size", "pg_num", "pg_autoscale_mode", "crush_rule":
        settings.update(doors.json("osd pool get", pool=pool, var=var))
    assert settings["pool"] == pool and settings["crush_rule"] == "replicated_rule" and settings["size"] >= settings["min_size"]
    assert "pg_num_target" in doors.json("osd pool autoscale-status", doors.mgr)[0]
    assert {"epoch", "fsid", "mons", "quorum"} <= set(doors.json("mon dump"))
    assert doors.json("mds stat")["fsmap"] is not None and isinstance(doors.json("config dump"), list)
    # Its storage plugin.
    cluster.run("rbd", "-p", pool, "create", "vm-100-disk-0", "--size", "8M")
    rows = json.loads(cluster.run("rbd", "-p", pool, "ls", "-l", "--format", "json").stdout)
    assert [(r["image"], r["size"]) for r in rows] == [("vm-100-disk-0", 8 << 20)]
    cluster.run("rbd", "-p", pool, "snap", "create", "vm-100-disk-0@before")
    assert [r.get("snapshot") for r in json.loads(cluster.run("rbd", "-p", pool, "ls", "-l", "--format", "json").stdout)] == [None, "before"]
    assert json.loads(cluster.run("rbd", "-p", pool, "info", "vm-100-disk-0", "--format", "json").stdout)["size"] == 8 << 20
    cluster.run("rbd", "-p", pool, "snap", "purge", "vm-100-disk-0", "--no-progress")
    cluster.run("rbd", "-p", pool, "rm", "vm-100-disk-0", "--no-progress")
