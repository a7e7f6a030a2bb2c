"""Tenants of pools, namespaces, images and clients: shares, floors and ceilings that the server holds.

The OSDs are told that they can do few operations: any machine can do more, so what they do is divided in the same way
everywhere, and tests compare parts of it. A slow machine cannot make them fail by being slow.
"""
import json
import os
import pty
import select
import subprocess
import termios
import threading
import time
import uuid

import pytest
from conftest import BINARY, Cluster, eventually

rados = pytest.importorskip("rados")

if os.environ.get("SIPHON_TEST_CHROOT") or os.environ.get("SIPHON_TEST_CONF"):
    pytest.skip("the system's librados is needed, and a cluster that knows tenants", allow_module_level=True)

# What an OSD does for clients each second.
IOPS = 200
SLOW = {"osd_mclock_profile": "custom", "osd_mclock_max_capacity_iops_ssd": IOPS, "osd_mclock_scheduler_client_lim": 1}


def qos(cluster, *args, check=True):
    r = subprocess.run([str(BINARY), "qos", "-c", str(cluster.conf), *map(str, args)], capture_output=True, text=True, timeout=60)
    assert not check or r.returncode == 0, f"{args}: {r.stdout}{r.stderr}"
    return r


def slow(cluster):
    for option, value in SLOW.items():
        cluster.ceph("config", "set", "osd", option, str(value))


@pytest.fixture(scope="module")
def cluster(base_conf):
    """One mode of connections: tenants have nothing to do with it."""
    c = Cluster(base_conf, "crc")
    c.ceph("config", "set", "mon", "mon_allow_pool_delete", "true")
    yield c
    for option in SLOW:
        c.ceph("config", "rm", "osd", option)


@pytest.fixture
def pools(cluster):
    """Two pools, and OSDs that do little."""
    names = [f"{name}-{uuid.uuid4().hex[:6]}" for name in ("victim", "aggressor")]
    for name in names:
        cluster.ceph("osd", "pool", "create", name, "16")
        cluster.ceph("osd", "pool", "application", "enable", name, "rados")
    slow(cluster)
    yield names
    for option in SLOW:
        cluster.ceph("config", "rm", "osd", option)
    for line in qos(cluster, "ls").stdout.splitlines()[1:]:
        if not line.startswith("@"):
            qos(cluster, "rm", line.split()[0])
    for line in qos(cluster, "ls").stdout.splitlines()[1:]:
        qos(cluster, "rm", line.split()[0])
    for name in names:
        cluster.ceph("osd", "pool", "delete", name, name, "--yes-i-really-really-mean-it")


class Load:
    """Sessions that keep small reads under way, each of an object of its own: all OSDs always have some of them. Writes
    would take as long as the machine's disk takes, and who has few under way would wait for that."""

    def __init__(self, ceph_conf, pool, sessions=1, depth=24, namespace="", objects=None, key=None, writes=False, **who):
        self.writes, self.turn = writes, 0
        self.clients, self.lock, self.done, self.under_way, self.stopping = [], threading.Lock(), 0, 0, False
        self.objects = objects or [f"o{n}" for n in range(64)]
        for _ in range(sessions):
            mode = {"ms_client_mode": "crc", "ms_mon_client_mode": "crc"}
            c = rados.Rados(conffile=str(ceph_conf), conf={**mode, "key": key} if key else mode, **who)
            c.connect()
            io = c.open_ioctx(pool)
            io.set_namespace(namespace)
            self.clients.append((c, io))
        for name in self.objects[:depth]:
            self.clients[0][1].write_full(name, b"x" * 512)
        for _, io in self.clients:
            for n in range(depth):
                with self.lock:
                    self.under_way += 1
                self.send(io, self.objects[n % len(self.objects)])

    def send(self, io, name):
        def done(*_):
            with self.lock:
                self.done += 1
                if self.stopping:
                    self.under_way -= 1
                    return
            self.send(io, name)

        if self.writes:
            # Few under way would stay with few groups otherwise.
            self.turn += 1
            io.aio_write_full(self.objects[self.turn % len(self.objects)], b"y" * 512, oncomplete=done)
        else:
            io.aio_read(name, 512, 0, done)

    def stop(self):
        with self.lock:
            self.stopping = True
        eventually(lambda: self.under_way == 0, what="the last operations")
        for c, io in self.clients:
            io.close()
            c.shutdown()


def part(loads, enough=900, timeout=120):
    """The part of each load of all that is done, from when all of them run until enough was done."""
    eventually(lambda: all(x.done >= 20 for x in loads), timeout, "all loads")
    before = [x.done for x in loads]
    eventually(lambda: sum(x.done for x in loads) - sum(before) >= enough, timeout, "enough operations")
    done = [x.done - b for x, b in zip(loads, before)]
    return [d / sum(done) for d in done]


def known(cluster, *tenants):
    """Waits until OSDs know of these specifications."""
    has = lambda t: [found for found in explain(cluster, t, 0.1)["tenants"] if found["specified"]]
    return eventually(lambda: all(has(t) for t in tenants), what=f"{tenants} on OSDs")


def explain(cluster, tenant, period=2):
    return json.loads(qos(cluster, "explain", tenant, "--period", period, "--json").stdout)


def why(cluster, loads, tenant):
    """What is said of a tenant while these loads run, once what was told before they began is over."""
    running = []
    try:
        for pool, options in loads:
            running.append(Load(cluster.conf, pool, **options))
        eventually(lambda: all(x.done >= 30 for x in running), 120, "all loads")
        text = qos(cluster, "explain", tenant).stdout
        return explain(cluster, tenant, 3)["tenants"][0], text
    finally:
        for x in running:
            x.stop()


def run(cluster, *loads):
    """The parts of loads, each (pool, options)."""
    running = []
    try:
        for pool, options in loads:
            running.append(Load(cluster.conf, pool, **options))
        return part(running)
    finally:
        for x in running:
            x.stop()


def test_one_session_against_sixteen(cluster, pools):
    victim, aggressor = pools
    parts = run(cluster, (victim, {}), (aggressor, {"sessions": 16, "depth": 8}))
    assert parts[0] >= 0.40, parts
    # Which is seen.
    dump = json.loads(cluster.ceph("tell", "osd.0", "dump_qos"))
    tenants = {t["tenant"]: t for t in dump["tenants"]}
    assert dump["scheduler"] == "mclock_scheduler" and dump["tenant_by"] == "pool"
    v = tenants[victim]
    assert v["served"] > 50 and v["offered"] >= v["served"] and sum(v["waits_log2_us"]) == v["served"] and not v["specified"]
    assert dump["classes"]["client"]["served"] >= v["served"] + tenants[aggressor]["served"]


def test_namespaces_are_tenants_and_top_shows_them(cluster, pools):
    pool, _ = pools
    loads = [Load(cluster.conf, pool, namespace="one"), Load(cluster.conf, pool, sessions=6, namespace="two")]
    try:
        parts = part(loads)
        top = json.loads(qos(cluster, "top", "--once", "--period", "2", "--json").stdout)
        text = qos(cluster, "top", "--once", "--period", "1").stdout
    finally:
        for x in loads:
            x.stop()
    assert parts[0] >= 0.40, parts
    seen = {t["tenant"]: t for t in top["tenants"]}
    assert {f"{pool}/one", f"{pool}/two"} <= set(seen) and seen[f"{pool}/one"]["share"] > 0.35, top
    assert seen[f"{pool}/two"]["waiting"] > 0 and seen[f"{pool}/two"]["wait_us"]["p99"] > 0
    assert f"{pool}/one" in text and "SERVED/s" in text
    classes = {c["class"]: c for c in top["classes"]}
    assert classes["client"]["served_iops"] >= seen[f"{pool}/one"]["served_iops"] > 0 and "background_recovery" in text


def test_top_is_sorted_and_keys_change_the_order(cluster, pools):
    """Two pools, of which the one that comes first by name is served less."""
    least, most = sorted(pools)
    load = Load(cluster.conf, most), Load(cluster.conf, least, depth=1)
    terminal, other = pty.openpty()
    before = termios.tcgetattr(other)
    top = None
    try:
        order = lambda by: [t["tenant"] for t in json.loads(qos(cluster, "top", "--once", "--sort", by, "--json").stdout)["tenants"] if t["tenant"] in pools]
        assert order("name") == [least, most] and order("served") == [most, least]
        top = subprocess.Popen([str(BINARY), "qos", "-c", str(cluster.conf), "top", "--period", "0.5"], stdin=other, stdout=other, stderr=subprocess.PIPE)
        said = ""

        def screen(what):
            nonlocal said
            while select.select([terminal], [], [], 0)[0]:
                said += os.read(terminal, 65536).decode()
            last = said.rpartition("\x1b[H\x1b[2J")[2]
            return what in last and [line.split()[0] for line in last.splitlines() if line.startswith(tuple(pools))]

        assert eventually(lambda: screen("sorted by served"), what="a table") == [most, least]
        assert not termios.tcgetattr(other)[3] & termios.ICANON
        os.write(terminal, b"n")
        assert eventually(lambda: screen("sorted by name"), what="another order") == [least, most]
        os.write(terminal, b"q")
        assert top.wait(30) == 0 and termios.tcgetattr(other) == before
        # The same if it is interrupted.
        top = subprocess.Popen([str(BINARY), "qos", "-c", str(cluster.conf), "top", "--period", "0.5"], stdin=other, stdout=other, stderr=subprocess.PIPE)
        said = ""
        eventually(lambda: screen("sorted by served"), what="a table")
        top.terminate()
        assert top.wait(30) == 0 and termios.tcgetattr(other) == before
    finally:
        if top and top.poll() is None:
            top.kill()
        for x in load:
            x.stop()
        os.close(terminal)
        os.close(other)


def test_why_a_tenant_is_slow(cluster, pools):
    victim, aggressor = pools
    # It waits for others, and nothing is promised to it.
    qos(cluster, "set", aggressor, "--weight", 900)
    known(cluster, aggressor)
    said, text = why(cluster, [(victim, {"depth": 12}), (aggressor, {"sessions": 4})], victim)
    assert f"behind pool {aggressor}, which got " in said["verdict"] and said["meanwhile"][0]["name"] == aggressor, said
    assert not said["specified"] and said["meanwhile"][0]["part"] > 0.5 and said["legs"]["queue"]["part"] > 0.5, said
    assert abs(sum(leg["part"] for leg in said["legs"].values()) - 1) < 0.01 and said["osds"], said
    assert "WHERE TIME GOES" in text and f"behind pool {aggressor}" in text and "not seen" in text
    # Its own ceiling is nearer.
    qos(cluster, "set", victim, "--ceiling-iops", 30)
    known(cluster, victim)
    said, text = why(cluster, [(victim, {"depth": 24})], victim)
    assert "is held by its own ceiling of 30 IOPS on " in said["verdict"] and "is held by its own ceiling of 30 IOPS on " in text, said
    assert said["legs"]["ceiling"]["part"] > 0.5 and said["legs"]["ceiling"]["mean_us"] <= said["legs"]["ceiling"]["p99_us"], said
    assert said["specified"] and said["ceiling"]["iops"] == 30 and said["answered_iops"] < 45, said
    # Nobody asks for anything.
    assert "Nothing of" in explain(cluster, victim)["tenants"][0]["verdict"]
    r = qos(cluster, "explain", "nobody", check=False)
    assert r.returncode != 0 and "no OSD has seen nobody" in r.stderr, r.stderr


def test_a_slow_replica_is_named(cluster):
    pool = f"writes-{uuid.uuid4().hex[:6]}"
    cluster.ceph("osd", "pool", "create", pool, "16")
    cluster.ceph("config", "set", "osd.1", "osd_debug_device_delay", "0.15")
    try:
        # Few at a time: they wait for the device, not for their turn.
        said, _ = why(cluster, [(pool, {"depth": 3, "writes": True})], pool)
    finally:
        cluster.ceph("config", "rm", "osd.1", "osd_debug_device_delay")
        cluster.ceph("osd", "pool", "delete", pool, pool, "--yes-i-really-really-mean-it")
    replicas = {r["osd"]: r for r in said["replicas"]}
    assert set(replicas) == {0, 1, 2} and replicas[1]["mean_us"] > 3 * max(replicas[0]["mean_us"], replicas[2]["mean_us"]), said
    # The device is the reason in any case: for a third of the writes it is that of the primary.
    assert "osd.1 answers after " in said["verdict"] and said["legs"]["replicas"]["part"] + said["legs"]["store"]["part"] > 0.8, said
    slow = max(said["osds"], key=lambda o: o["device_us"])
    assert slow["osd"] == 1 and slow["device_us"] > 100_000, said


def test_floors_are_checked_against_what_osds_have_learned(siphon_factory):
    c = siphon_factory(osds=1)
    c.start()
    cluster = Cluster(c.conf, "crc")
    cluster.ceph("config", "set", "global", "mon_allow_pool_size_one", "true")
    cluster.ceph("osd", "pool", "create", "gold", "8")
    cluster.ceph("osd", "pool", "set", "gold", "size", "1", "--yes-i-really-mean-it")
    # Less than the default, and more than it will have learned.
    floor = 8000
    assert qos(cluster, "set", "gold", "--floor-iops", floor).stderr == ""
    r = qos(cluster, "set", "gold", "--floor-iops", 3 * floor, check=False)
    assert r.returncode != 0 and "nothing learned yet" in r.stderr and "osd.0 21500" in r.stderr and "gold 24000" in r.stderr, r.stderr
    cluster.ceph("config", "set", "osd", "osd_qos_max_in_flight", "8")
    cluster.ceph("config", "set", "osd", "osd_debug_device_delay", "0.01")
    load = Load(cluster.conf, "gold", depth=64, writes=True)
    try:
        capacity = lambda: json.loads(cluster.ceph("tell", "osd.0", "dump_qos"))["capacity"]
        eventually(lambda: capacity()["trusted"] and capacity()["learned_iops"] < floor / 2, 120, "what the device can do")
        r = qos(cluster, "set", "gold", "--floor-iops", floor, check=False)
        assert r.returncode != 0 and "learned: osd.0 " in r.stderr and "gold 8000" in r.stderr, r.stderr
        assert "learned: osd.0 " in qos(cluster, "set", "gold", "--floor-iops", floor, "--force").stderr
    finally:
        load.stop()


def test_weights(cluster, pools):
    victim, aggressor = pools
    qos(cluster, "set", victim, "--weight", 300)
    known(cluster, victim)
    parts = run(cluster, (victim, {}), (aggressor, {"sessions": 4}))
    assert parts[0] >= 0.65, parts


def test_a_floor_is_kept(cluster, pools):
    victim, aggressor = pools
    qos(cluster, "set", aggressor, "--weight", 900)
    qos(cluster, "set", victim, "--floor-iops", IOPS * 3 // 2)
    known(cluster, aggressor, victim)
    parts = run(cluster, (victim, {}), (aggressor, {"sessions": 8, "depth": 8}))
    # By weight it would be a tenth.
    assert parts[0] >= 0.40, parts
    dumps = [json.loads(cluster.ceph("tell", f"osd.{n}", "dump_qos")) for n in range(3)]
    rows = [t for d in dumps for t in d["tenants"] if t["tenant"] == victim]
    assert sum(t["served_by_floor"] for t in rows) > sum(t["served"] for t in rows) / 2
    # Parts of the floor are no more than the whole of it, and each OSD has one. Answers of three OSDs may be of two
    # divisions, one after the other.
    def divided():
        here = [t["floor"]["iops"]["here"] for t in rows]
        if sum(here) < IOPS * 3 // 2 + 1 and len(here) == 3 and all(here):
            return True
        dumps = [json.loads(cluster.ceph("tell", f"osd.{n}", "dump_qos")) for n in range(3)]
        rows[:] = [t for d in dumps for t in d["tenants"] if t["tenant"] == victim]
        return False
    eventually(divided, what=lambda: f"parts of the floor: {rows}")


def test_a_ceiling_holds_over_several_clients(cluster, pools):
    pool, _ = pools
    ceiling = 60
    qos(cluster, "set", pool, "--ceiling-iops", ceiling)
    known(cluster, pool)
    loads = [Load(cluster.conf, pool, depth=8) for _ in range(3)]
    try:
        eventually(lambda: sum(x.done for x in loads) > ceiling, what="a second's worth")
        before, begun = sum(x.done for x in loads), time.monotonic()
        eventually(lambda: sum(x.done for x in loads) - before >= 3 * ceiling, what="three seconds' worth")
        done, took = sum(x.done for x in loads) - before, time.monotonic() - begun
    finally:
        qos(cluster, "rm", pool)
        for x in loads:
            x.stop()
    assert done / took <= 1.25 * ceiling, (done, took)


def test_clients_and_images(cluster, pools):
    victim, pool = pools
    key = cluster.ceph_json("auth", "get-or-create", "client.noisy", "mon", "allow r", "osd", "allow *")[0]["key"]
    qos(cluster, "set", "client.noisy", "--weight", 50)
    cluster.run("rbd", "pool", "init", pool)
    cluster.run("rbd", "create", f"{pool}/vm-1", "--size", "1G")
    prefix = json.loads(cluster.run("rbd", "info", "--format", "json", f"{pool}/vm-1").stdout)["block_name_prefix"]
    qos(cluster, "set", "@gold", "--weight", 400, "--ceiling-iops-per-gib", 100_000)
    # Images that a pattern fits count with the size that they have now.
    r = qos(cluster, "set", f"{pool}//vm-*", "--floor-iops-per-gib", 4 * IOPS, check=False)
    assert r.returncode != 0 and f"{pool}//vm-1 {4 * IOPS}" in r.stderr, r.stderr
    qos(cluster, "set", f"{pool}//vm-*", "--like", "gold")
    known(cluster, "client.noisy", f"{pool}//vm-*")
    assert f"{pool}//vm-1" in qos(cluster, "explain", f"{pool}//vm-*").stdout
    image = [f"{prefix}.{n:016x}" for n in range(64)]
    # The image has four parts; the noisy client, in the same pool, a half; the other pool one.
    parts = run(cluster, (pool, {"objects": image, "depth": 48}), (pool, {"rados_id": "noisy", "key": key, "sessions": 4}), (victim, {}))
    assert parts[0] > 0.55 and parts[2] > 0.14 and parts[1] < 0.15, parts
    cluster.ceph("auth", "del", "client.noisy")


def test_two_clients_are_two_tenants_if_that_is_wanted(cluster, pools):
    pool, _ = pools
    keys = {name: cluster.ceph_json("auth", "get-or-create", f"client.{name}", "mon", "allow r", "osd", "allow *")[0]["key"] for name in ("quiet", "loud")}

    def tenants():
        dumps = [json.loads(cluster.ceph("tell", f"osd.{n}", "dump_qos")) for n in range(3)]
        assert len({d["tenant_by"] for d in dumps}) == 1
        return dumps[0]["tenant_by"], {t["tenant"]: t["served"] for d in dumps for t in d["tenants"] if t["served"]}

    try:
        cluster.ceph("config", "set", "osd", "osd_qos_tenant", "client")
        eventually(lambda: {json.loads(cluster.ceph("tell", f"osd.{n}", "dump_qos"))["tenant_by"] for n in range(3)} == {"client"}, what="all OSDs")
        who = {name: {"rados_id": name, "key": key} for name, key in keys.items()}
        parts = run(cluster, (pool, who["quiet"]), (pool, {"sessions": 6, **who["loud"]}))
        by, served = tenants()
        assert by == "client" and {"client.quiet", "client.loud"} <= set(served), served
        # By pool it would be a seventh.
        assert parts[0] >= 0.40 and served["client.quiet"] > 50, (parts, served)
    finally:
        cluster.ceph("config", "rm", "osd", "osd_qos_tenant")
        for name in keys:
            cluster.ceph("auth", "del", f"client.{name}")
    eventually(lambda: tenants()[0] == "pool", what="the default again")


def test_who_waits_at_a_ceiling_is_not_slow_and_the_history_says_so(cluster, pools):
    pool, _ = pools
    settings = {"osd_op_complaint_time": "1", "osd_op_history_slow_op_threshold": "1"}
    for option, value in settings.items():
        cluster.ceph("config", "set", "osd", option, value)
    qos(cluster, "set", pool, "--ceiling-iops", 6)
    known(cluster, pool)
    client = rados.Rados(conffile=str(cluster.conf))
    client.connect()
    io = client.open_ioctx(pool)

    def slow():
        dumps = [json.loads(cluster.ceph("tell", f"osd.{n}", "dump_historic_slow_ops")) for n in range(3)]
        ops = [op["type_data"] for d in dumps for op in d["slow_ops"] if f"osd_op(client.{client.get_instance_id()}." in op["description"]]
        return [op for op in ops if any("ceiling" in e["event"] for e in op["events"])]

    try:
        under_way = [io.aio_write_full(f"w{n}", b"x" * 512) for n in range(120)]
        # The report of an OSD is at most some seconds old: it has seen operations that wait for longer than the complaint time.
        ops = eventually(slow, 120, "an operation that waited for a second")
        assert "SLOW_OPS" not in cluster.ceph_json("health", "detail")["checks"]
        blocked = [json.loads(cluster.ceph("tell", f"osd.{n}", "dump_blocked_ops")) for n in range(3)]
        points = {op["type_data"]["flag_point"] for d in blocked for op in d["ops"]}
        assert any("waiting for the ceiling of its tenant" in p for p in points), points
        events = [e["event"] for e in ops[0]["events"]]
        at = events.index("waiting for the ceiling of its tenant")
        assert events[at + 1] == "allowed by the ceiling of its tenant" and events.index("reached_pg") > at, events
        times = [e["time"] for e in ops[0]["events"]]
        assert times == sorted(times)
        # Its replicas are the other two.
        replicas = next(e for e in events if e.startswith("waiting for subops from ")).rsplit(" ", 1)[1].split(",")
        assert len(replicas) == 2, events
        # Who has committed it is told, and all have before it is answered.
        answered = events[:events.index("commit_sent")]
        assert "op_commit" in answered and all(f"sub_op_commit_rec from {osd}" in answered for osd in replicas), events
    finally:
        qos(cluster, "rm", pool)
        for completion in under_way:
            completion.wait_for_complete()
        for option in settings:
            cluster.ceph("config", "rm", "osd", option)
        io.close()
        client.shutdown()


def test_what_is_not_valid_is_refused(cluster, pools):
    pool, other = pools
    for args in [("a/b/c/d", "--weight", "1"), (pool,), (pool, "--weight", "0"), (pool, "--floor-iops", 5, "--ceiling-iops", 4), (pool, "--like", "nothing"),
                 (pool, "--ceiling-iops-per-gib", 4)]:
        r = qos(cluster, "set", *args, check=False)
        assert r.returncode != 0 and r.stderr.startswith("siphon: "), (args, r.stderr)
    # More than three OSDs can do.
    r = qos(cluster, "set", pool, "--floor-iops", 4 * IOPS, check=False)
    assert r.returncode != 0 and "capacity" in r.stderr, r.stderr
    assert "capacity" in qos(cluster, "set", pool, "--floor-iops", 2 * IOPS).stderr, "a warning"
    assert json.loads(qos(cluster, "get", pool).stdout) == {"floor_iops": 2 * IOPS}
    qos(cluster, "set", "@t", "--weight", 5)
    qos(cluster, "set", other, "--like", "@t")
    assert qos(cluster, "rm", "@t", check=False).returncode != 0, "it is used"
    # What somebody writes past the tool does not hold, and stops nothing else.
    cluster.ceph("config-key", "set", "qos/spec/broken", "{")
    assert "broken" in qos(cluster, "ls").stderr
    cluster.ceph("config-key", "rm", "qos/spec/broken")
    assert other in qos(cluster, "ls").stdout


def test_specifications_survive_a_restart(siphon_factory):
    c = siphon_factory()
    c.start()
    cluster = Cluster(c.conf, "crc")
    for name in ("a", "b"):
        cluster.ceph("osd", "pool", "create", name, "16")
    qos(cluster, "set", "a", "--weight", 400)
    slow(cluster)
    assert c.stop() == 0
    c.start()
    assert qos(cluster, "ls").stdout.splitlines()[1].split()[:2] == ["a", "400"]
    known(cluster, "a")
    parts = run(cluster, ("a", {}), ("b", {"sessions": 4}))
    assert parts[0] >= 0.65, parts
