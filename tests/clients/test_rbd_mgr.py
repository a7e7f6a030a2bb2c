"""What the manager does for block devices: statistics, background tasks, schedules."""
import contextlib
import json
import subprocess
import threading
import time

import pytest

from conftest import Cluster, tells_soon
from test_rbd import PLAIN, diff, pattern, rbd  # noqa: F401

# What the manager does is the same in both modes of the protocol, and schedules take a minute each time.
pytestmark = pytest.mark.parametrize("cluster", ["secure"], indirect=True)

COUNTERS = ["write_ops", "read_ops", "write_bytes", "read_bytes", "write_latency", "read_latency"]


def until(found, limit=300):
    """Asks until there is something. Minutes for what takes seconds: slowness is no failure."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.5)
    raise AssertionError("it did not come")


@pytest.fixture(autouse=True, scope="module")
def soon(base_conf):
    tells_soon(Cluster(base_conf, "secure"))


def bench(rbd, image):
    # Without the cache, which would put neighbouring writes together.
    rbd("bench", "--io-type", "write", "--io-size", "4096", "--io-total", "256K", "--io-threads", "1", "--rbd-cache=false", image)


def test_counters_of_images(rbd):
    rbd("create", "busy", "--size", "16M")
    rbd("create", "idle", "--size", "16M")
    rbd("namespace", "create", "--pool", rbd.pool, "--namespace", "ns")
    rbd("create", f"{rbd.pool}/ns/other", "--size", "16M")

    def ask(kind, spec=rbd.pool):
        return rbd.cluster.ceph_json("rbd", "perf", "image", kind, spec)

    first = ask("stats")
    assert set(first) == {"timestamp", "stat_descriptors", "pool_descriptors", "stats"}
    assert (first["stat_descriptors"], first["stats"]) == (COUNTERS, [])
    ask("counters", f"{rbd.pool}/ns")

    def counted():
        bench(rbd, "busy")
        counters = ask("counters")
        return counters["counters"] and counters

    counters = until(counted)
    assert counters["pool_descriptors"] == {"0": rbd.pool}
    assert counters["counter_descriptors"] == COUNTERS
    (entry,) = counters["counters"]
    values = dict(zip(COUNTERS, entry["0/busy"]))
    assert values["write_bytes"] == 4096 * values["write_ops"] > 0
    assert values["write_latency"] > values["write_ops"] * 1000

    def rates():
        bench(rbd, "busy")
        return ask("stats")["stats"]

    (entry,) = until(rates)
    assert entry["0/busy"][0] > 0 and entry["0/busy"][2] > 0

    bench(rbd, f"{rbd.pool}/ns/other")
    found = until(lambda: ask("counters", f"{rbd.pool}/ns")["counters"])
    assert list(found[0]) == ["0/other"]

    text = rbd.cluster.fails("ceph", "rbd", "perf", "image", "stats", "nosuchpool", errno=2)
    assert "nosuchpool" in text
    rbd.cluster.fails("ceph", "rbd", "perf", "image", "stats", "a/b/c", errno=22)
    rbd.cluster.fails("ceph", "rbd", "perf", "image", "stats", rbd.pool, "size", errno=22)


@contextlib.contextmanager
def writer(rbd, image):
    """Somebody writes to the image."""
    stop = threading.Event()

    def work():
        while not stop.is_set():
            bench(rbd, image)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_iostat(rbd):
    rbd("create", "busy", "--size", "16M")
    with writer(rbd, "busy"):
        images = rbd.json("perf", "image", "iostat", rbd.pool)
        assert [set(i) for i in images] == [{"pool", "pool_namespace", "image", *COUNTERS}]
        assert (images[0]["pool"], images[0]["image"]) == (rbd.pool, "busy")
        table = rbd("perf", "image", "iostat", rbd.pool, "--iterations", "1")
        assert table.split()[:5] == ["NAME", "WR", "RD", "WR_BYTES", "RD_BYTES"] and "busy" in table


def tasks(rbd):
    return [t for t in json.loads(rbd.cluster.ceph("rbd", "task", "list")) if t["refs"]["pool_name"] == rbd.pool]


def add(rbd, *args):
    return json.loads(rbd.cluster.ceph("rbd", "task", "add", *args))


def objects(rbd):
    return sorted(rbd.cluster.rados("-p", rbd.pool, "ls").stdout.decode().split())


def test_tasks_remove(rbd):
    rbd("create", "one", "--size", "20M")
    bench(rbd, "one")
    spec, image_id = f"{rbd.pool}/one", rbd.json("info", "one")["id"]
    task = add(rbd, "remove", spec)
    assert set(task) == {"sequence", "id", "message", "refs"}
    assert task["message"] == f"Removing image {spec}"
    assert task["refs"] == {"action": "remove", "pool_name": rbd.pool, "pool_namespace": "", "image_name": "one", "image_id": image_id}
    until(lambda: not tasks(rbd))
    assert rbd.json("ls") == []
    assert [o for o in objects(rbd) if image_id in o or o == "rbd_id.one"] == []
    # The command repeated finds what was done.
    assert add(rbd, "remove", spec)["id"] == task["id"]
    rbd.cluster.fails("ceph", "rbd", "task", "add", "remove", f"{rbd.pool}/none", errno=2, text="does not exist")
    rbd("create", "snapped", "--size", "1M")
    rbd("snap", "create", "--no-progress", "snapped@s")
    rbd.cluster.fails("ceph", "rbd", "task", "add", "remove", f"{rbd.pool}/snapped", errno=16, text="has snapshots")
    rbd.cluster.fails("ceph", "rbd", "task", "add", "remove", "a@b", errno=22)
    rbd.cluster.fails("ceph", "rbd", "task", "cancel", "nosuchtask", errno=2, text="No such task nosuchtask")
    rbd.cluster.fails("ceph", "rbd", "task", "list", "nosuchtask", errno=2, text="No such task nosuchtask")
    rbd.cluster.fails("ceph", "rbd", "task", "add", "migration", "execute", f"{rbd.pool}/snapped", errno=22, text="is not migrating")


def test_tasks_wait_for_an_image_in_use_and_are_cancelled(rbd):
    rbd("create", "used", "--size", "20M", *PLAIN)
    name = "rbd_header." + rbd.json("info", "used")["id"]
    watcher = subprocess.Popen(["rados", "-c", str(rbd.cluster.conf), *rbd.cluster.args, "-p", rbd.pool, "watch", name],
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: b"watcher" in rbd.cluster.rados("-p", rbd.pool, "listwatchers", name).stdout)
        task = add(rbd, "remove", f"{rbd.pool}/used")
        (shown,) = until(lambda: [t for t in tasks(rbd) if "retry_message" in t])
        assert "watchers" in shown["retry_message"] and shown["retry_attempts"] == 1
        assert json.loads(rbd.cluster.ceph("rbd", "task", "list", task["id"]))["id"] == task["id"]
        rbd.cluster.ceph("rbd", "task", "cancel", task["id"])
        assert tasks(rbd) == [] and rbd.json("ls") == ["used"]
    finally:
        watcher.kill()
        watcher.wait()


def test_tasks_trash(rbd):
    rbd("create", "one", "--size", "20M")
    bench(rbd, "one")
    image_id = rbd.json("info", "one")["id"]
    rbd("trash", "mv", "one")
    task = add(rbd, "trash", "remove", f"{rbd.pool}/{image_id}")
    assert task["message"] == f"Removing image {rbd.pool}/{image_id} from trash"
    until(lambda: not tasks(rbd))
    assert rbd.json("trash", "ls") == [] and [o for o in objects(rbd) if image_id in o] == []
    rbd.cluster.fails("ceph", "rbd", "task", "add", "trash", "remove", f"{rbd.pool}/none", errno=2)


@pytest.mark.parametrize("version", ["1", "2"])
def test_tasks_flatten(rbd, tmp_path, version):
    data = pattern(20 << 20)
    rbd("create", "parent", "--size", "20M")
    rbd("import-diff", "--no-progress", "-", "parent", data=diff((0, data)))
    rbd("snap", "create", "--no-progress", "parent@s")
    rbd("snap", "protect", "parent@s")
    clone = ("clone", "--rbd-default-clone-format", version)
    rbd(*clone, "parent@s", "child")
    rbd("import-diff", "--no-progress", "-", "child", data=diff((5 << 20, b"own")))
    rbd("snap", "create", "--no-progress", "child@s")
    rbd("snap", "protect", "child@s")
    rbd(*clone, "child@s", "grandchild")
    expected = data[:5 << 20] + b"own" + data[(5 << 20) + 3:]
    for name in ("grandchild", "child"):
        task = add(rbd, "flatten", f"{rbd.pool}/{name}")
        assert (task["message"], task["refs"]["action"]) == (f"Flattening image {rbd.pool}/{name}", "flatten")
        until(lambda: not tasks(rbd))
        assert "parent" not in rbd.json("info", name)
    assert rbd.json("children", "parent@s") == []
    rbd("snap", "unprotect", "child@s")
    rbd("snap", "unprotect", "parent@s")
    rbd("snap", "purge", "--no-progress", "parent")
    rbd("rm", "--no-progress", "parent")
    for name in ("grandchild", "child", "child@s"):
        out = tmp_path / name
        rbd("export", "--no-progress", name, out)
        assert out.read_bytes() == expected, name


def migrating(rbd, *options):
    """An image with a snapshot, a migration of it that is prepared, and what is to be read: by snapshot, and at last."""
    old, new = pattern(9 << 20), pattern(3 << 20)[::-1]
    rbd("create", "from", "--size", "20M", "--object-size", "4M")
    rbd("import-diff", "--no-progress", "-", "from", data=diff((1 << 20, old)))
    rbd("snap", "create", "--no-progress", "from@s")
    rbd("import-diff", "--no-progress", "-", "from", data=diff((5 << 20, new)))
    rbd("migration", "prepare", "from", "to", *options)
    # A client writes to the destination before anything is copied.
    rbd("import-diff", "--no-progress", "-", "to", data=diff((6 << 20, b"to"), (18 << 20, b"behind")))
    blank = bytearray(20 << 20)
    blank[1 << 20:10 << 20] = old
    snapshot = bytes(blank)
    blank[5 << 20:8 << 20] = new
    blank[6 << 20:(6 << 20) + 2], blank[18 << 20:(18 << 20) + 6] = b"to", b"behind"
    return {"@s": snapshot, "": bytes(blank)}


def reads(rbd, name, expected, tmp_path):
    for snap, data in expected.items():
        out = tmp_path / f"{name}{snap}"
        rbd("export", "--no-progress", name + snap, out)
        assert out.read_bytes() == data, name + snap
        out.unlink()


@pytest.mark.parametrize("options", [(), ("--object-size", "16M", "--stripe-unit", "16M", "--stripe-count", "1", "--image-feature", "layering")], ids=["same", "larger"])
def test_tasks_migrate(rbd, tmp_path, options):
    expected = migrating(rbd, *options)
    spec = f"{rbd.pool}/to"
    ask = lambda *args: rbd.cluster.fails("ceph", "rbd", "task", "add", "migration", *args, errno=22)
    rbd("create", "other", "--size", "4M")
    assert f"Image {rbd.pool}/other is not migrating" in ask("execute", f"{rbd.pool}/other")
    assert f"Image {rbd.pool}/none is not migrating" in ask("abort", f"{rbd.pool}/none")
    assert f"Image {spec} has not completed migration" in ask("commit", spec)
    image_id = rbd.json("info", "to")["id"]
    task = add(rbd, "migration", "execute", spec)
    assert task["message"] == f"Migrating image {rbd.pool}/from to {rbd.pool}/to"
    assert task["refs"] == {"action": "migrate execute", "pool_name": rbd.pool, "pool_namespace": "", "image_name": "to", "image_id": image_id}
    assert add(rbd, "migration", "execute", spec)["id"] == task["id"], "the same again is the same task"
    until(lambda: not tasks(rbd))
    assert rbd.json("status", "to")["migration"]["state"] == "executed"
    assert add(rbd, "migration", "execute", spec)["id"] == task["id"], "nor is it done again"
    reads(rbd, "to", expected, tmp_path)
    task = add(rbd, "migration", "commit", spec)
    assert (task["message"], task["refs"]["action"]) == (f"Committing image migration for {spec}", "migrate commit")
    until(lambda: not tasks(rbd))
    assert "migration" not in rbd.json("status", "to") and rbd.json("trash", "ls", "--all") == []
    assert sorted(rbd.json("ls")) == ["other", "to"]
    reads(rbd, "to", expected, tmp_path)
    # Nothing of the source is left.
    rbd("rm", "--no-progress", "other")
    rbd("snap", "purge", "--no-progress", "to")
    rbd("rm", "--no-progress", "to")
    assert [o for o in objects(rbd) if o.startswith(("rbd_data", "rbd_header", "rbd_id", "rbd_object_map"))] == []


@pytest.mark.parametrize("executed", [False, True], ids=["prepared", "executed"])
def test_tasks_take_a_migration_back(rbd, tmp_path, executed):
    expected = migrating(rbd, "--object-size", "1M", "--stripe-unit", "1M", "--stripe-count", "1")
    spec = f"{rbd.pool}/to"
    if executed:
        add(rbd, "migration", "execute", spec)
        until(lambda: not tasks(rbd))
    with library(rbd.cluster, rbd.pool) as (client, io):
        import rbd as librbd
        with librbd.Image(io, "to"):
            task = add(rbd, "migration", "abort", spec)
            assert (task["message"], task["refs"]["action"]) == (f"Aborting image migration for {spec}", "migrate abort")
            # As with stock, it waits for clients that have the image open.
            until(lambda: [t for t in tasks(rbd) if "retry_message" in t])
            rbd.cluster.ceph("rbd", "task", "cancel", task["id"])
            assert tasks(rbd) == []
    add(rbd, "migration", "abort", spec)
    until(lambda: not tasks(rbd))
    assert rbd.json("ls") == ["from"] and rbd.json("trash", "ls", "--all") == []
    assert "migration" not in rbd.json("status", "from")
    # What was written meanwhile is kept.
    reads(rbd, "from", expected, tmp_path)
    rbd("snap", "purge", "--no-progress", "from")
    rbd("rm", "--no-progress", "from")
    assert [o for o in objects(rbd) if o.startswith(("rbd_data", "rbd_header", "rbd_id", "rbd_object_map"))] == []


def test_trash_purge_schedules(rbd):
    schedule = ("trash", "purge", "schedule")
    rbd(*schedule, "add", "--pool", rbd.pool, "1d", "14:00")
    rbd(*schedule, "add", "--pool", rbd.pool, "90m")
    items = rbd.json(*schedule, "ls", "--pool", rbd.pool)
    assert sorted(items, key=lambda i: i["interval"]) == [
        {"interval": "1d", "start_time": "14:00:00"}, {"interval": "90m", "start_time": ""}]
    (planned,) = json.loads(rbd.cluster.ceph("rbd", "trash", "purge", "schedule", "status", rbd.pool + "/"))["scheduled"]
    assert set(planned) == {"schedule_time", "pool_id", "pool_name", "namespace"}
    assert (planned["namespace"], planned["pool_name"]) == ("", rbd.pool)
    assert rbd.pool in rbd(*schedule, "status", "--pool", rbd.pool)
    raw = json.loads(rbd.cluster.ceph("rbd", "trash", "purge", "schedule", "list", rbd.pool + "/"))
    ((key, value),) = raw.items()
    assert value["name"] == rbd.pool + "/" and key.isdigit()
    rbd(*schedule, "rm", "--pool", rbd.pool, "90m")
    rbd(*schedule, "remove", "--pool", rbd.pool)
    assert json.loads(rbd.cluster.ceph("rbd", "trash", "purge", "schedule", "list", rbd.pool + "/")) == {}
    rbd.cluster.fails("ceph", "rbd", "trash", "purge", "schedule", "add", rbd.pool + "/", "1w", errno=22, text="Invalid interval")
    rbd.cluster.fails("ceph", "rbd", "trash", "purge", "schedule", "list", "nosuchpool/", errno=22, text="Invalid level spec")


def test_mirror_snapshot_schedules(rbd):
    """Levels, names, errors and what is stored. That they act is tested with the trash, in the same minute."""
    schedule = ("mirror", "snapshot", "schedule")
    raw = lambda what, level="": json.loads(rbd.cluster.ceph("rbd", *schedule, what, level))
    fails = lambda level, text: rbd.cluster.fails("ceph", "rbd", *schedule, "add", level, "1d", errno=22, text=text)
    ours = lambda found: {k: v for k, v in found.items() if v["name"].startswith(rbd.pool)}
    rbd("mirror", "pool", "enable", rbd.pool, "image")
    rbd("namespace", "create", rbd.pool + "/ns")
    for image in ("img", "other"):
        rbd("create", image, "--size", "4M")
    fails(rbd.pool + "/ns/", "namespace ns is not in mirror image mode")
    fails(rbd.pool + "/nons/", "namespace nons does not exist")
    fails(rbd.pool + "/none", "image none does not exist")
    fails(rbd.pool + "/other", "image other does not exist")
    fails("nosuchpool/", "pool nosuchpool does not exist")
    fails(rbd.pool + "/a/b/c", "failed to parse")
    rbd("mirror", "image", "enable", "img", "snapshot")
    rbd(*schedule, "add", "--pool", rbd.pool, "1d", "14:00")
    rbd(*schedule, "add", "--pool", rbd.pool, "--image", "img", "3h")
    assert rbd.json(*schedule, "ls", "--pool", rbd.pool) == [{"interval": "1d", "start_time": "14:00:00"}]
    assert rbd.json(*schedule, "ls", "--pool", rbd.pool, "--image", "img") == [{"interval": "3h", "start_time": ""}]
    listed = ours(raw("list"))
    pool, image = sorted(listed)
    assert image == f"{pool}//" + rbd.json("info", "img")["id"]
    assert listed[image] == {"name": rbd.pool + "/img", "schedule": [{"interval": "3h", "start_time": None}]}
    assert sorted(rbd.cluster.run("rados", "-p", rbd.pool, "listomapkeys", "rbd_mirror_snapshot_schedule").stdout.decode().split()) == [pool, image]
    (planned,) = raw("status", rbd.pool + "/")["scheduled_images"]
    assert set(planned) == {"schedule_time", "image"} and planned["image"] == rbd.pool + "/img"
    assert "img" in rbd(*schedule, "status", "--pool", rbd.pool)
    rbd(*schedule, "rm", "--pool", rbd.pool, "--image", "img", "3h")
    assert list(ours(raw("list"))) == [pool]
    rbd(*schedule, "rm", "--pool", rbd.pool)
    assert ours(raw("list")) == {} and raw("status", rbd.pool + "/") == {"scheduled_images": []}


def test_schedules_act(rbd):
    """At the full minute the trash is emptied, and mirrored images get snapshots: by the client that has one open, or by
    the manager."""
    librbd = pytest.importorskip("rbd")
    rbd("create", "old", "--size", "1M")
    rbd("create", "kept", "--size", "1M")
    rbd("trash", "mv", "old")
    rbd("trash", "mv", "kept", "--expires-at", "2 days")
    rbd("mirror", "pool", "enable", rbd.pool, "image")
    rbd("mirror", "pool", "peer", "add", rbd.pool, "client.peer@there")
    images = ("closed", "open", "plain", "demoted")
    for image in images:
        rbd("create", image, "--size", "16M", *(PLAIN if image == "plain" else ()))
        rbd("mirror", "image", "enable", image, "snapshot")
    with library(rbd.cluster, rbd.pool) as (_, io):
        def mirrored(name):
            with librbd.Image(io, name, read_only=True) as image:
                snaps = [(s, image.snap_get_mirror_namespace(s["id"])) for s in image.list_snaps()
                         if s["namespace"] == librbd.RBD_SNAP_NAMESPACE_TYPE_MIRROR]
                return [(s["id"], s["name"], m) for s, m in snaps]

        for name in ("closed", "open"):
            with librbd.Image(io, name) as image:
                image.write(b"first" * 100, 0)
                image.metadata_set("key", "value")
                image.create_snap("users")
                image.write(b"second" * 100, 4 << 20)
        for _ in range(2):
            rbd("mirror", "image", "snapshot", "closed")
        rbd("mirror", "image", "demote", "demoted")
        before = {name: mirrored(name) for name in images}
        with librbd.Image(io, "open") as image:
            image.write(b"third" * 100, 8 << 20)
            assert image.is_exclusive_lock_owner()
            for what in (("trash", "purge"), ("mirror", "snapshot")):
                rbd.cluster.ceph("rbd", *what, "schedule", "add", rbd.pool + "/", "1m")
            until(lambda: [i["name"] for i in rbd.json("trash", "ls")] == ["kept"], 150)
            news = lambda name: [s for s in mirrored(name) if s not in before[name]]
            until(lambda: all(any(m["complete"] for *_, m in news(name)) for name in images if name != "demoted"), 150)
            for what in (("trash", "purge"), ("mirror", "snapshot")):
                rbd.cluster.ceph("rbd", *what, "schedule", "remove", rbd.pool + "/")
            assert image.is_exclusive_lock_owner(), "the client keeps the lock"
            image.write(b"fourth" * 100, 12 << 20)
        assert mirrored("demoted") == before["demoted"]
        (peer,) = librbd.RBD().mirror_peer_list(io)
        for name in ("closed", "open", "plain"):
            snap, label, mirror = news(name)[0]
            assert label.startswith(".mirror.primary.") and mirror["mirror_peer_uuids"] == [peer["uuid"]]
            assert mirror["state"] == librbd.RBD_SNAP_MIRROR_STATE_PRIMARY
            # What the peer's daemon reads of the image: byte for byte what librbd wrote, as nothing changed since.
            state = lambda s: io.read(f"rbd_mirror_snapshot.{rbd.json('info', name)['id']}.{s}.0", 1 << 20)
            assert state(snap) == state(before[name][{"closed": 1}.get(name, 0)][0]) or name == "open"
            assert name.encode() in state(snap)
        # Of more than three for a peer the third goes.
        assert [s for s, *_ in mirrored("closed")][:2] == [s for s, *_ in before["closed"]][:2]
        assert before["closed"][2] not in mirrored("closed") and len(mirrored("closed")) == 3
        for name in ("closed", "open"):
            rbd("object-map", "check", name, "--no-progress")
            assert "invalid" not in str(rbd.json("info", name)["flags"])
            first = before[name][0][1]
            changed = rbd.json("diff", "--whole-object", name)
            assert {e["offset"] for e in changed} >= {0, 4 << 20}, (first, changed)
        with librbd.Image(io, "closed") as image:
            image.write(b"fifth" * 100, 8 << 20)
            image.set_snap_by_id(news("closed")[0][0])
            assert image.read(8 << 20, 5) == bytes(5) and image.read(4 << 20, 6) == b"second"


@contextlib.contextmanager
def library(cluster, pool):
    """The pool through librbd, for images that are open while something happens to them."""
    import rados
    client = rados.Rados(conffile=str(cluster.conf), conf={"rados_osd_op_timeout": "60"})
    client.connect()
    io = client.open_ioctx(pool)
    try:
        yield client, io
    finally:
        io.close()
        client.shutdown()


def has_parent(image, librbd):
    try:
        image.parent_info()
        return True
    except librbd.ImageNotFound:
        return False


@pytest.mark.parametrize("features", [61, 5, 1], ids=["all", "lock", "plain"])
def test_tasks_flatten_an_image_in_use(rbd, features):
    """The client that holds the lock does it when it is asked to; without such a lock the manager does."""
    librbd = pytest.importorskip("rbd")
    with library(rbd.cluster, rbd.pool) as (_, io):
        librbd.RBD().create(io, "parent", 16 << 20, old_format=False, features=features)
        with librbd.Image(io, "parent") as image:
            image.write(b"p" * (9 << 20), 0)
            image.create_snap("s")
            image.protect_snap("s")
        librbd.RBD().clone(io, "parent", "s", io, "child", features=features)
        with librbd.Image(io, "child") as image:
            image.write(b"c" * 512, 1 << 20)
            rbd.cluster.ceph("rbd", "task", "add", "flatten", f"{rbd.pool}/child")
            until(lambda: not has_parent(image, librbd))
            image.write(b"d" * 512, 5 << 20)
            until(lambda: rbd.cluster.ceph_json("rbd", "task", "list") == [])
            expected = bytearray(b"p" * (9 << 20) + b"\0" * (7 << 20))
            expected[1 << 20:(1 << 20) + 512], expected[5 << 20:(5 << 20) + 512] = b"c" * 512, b"d" * 512
            assert image.read(0, 16 << 20) == bytes(expected)
        with librbd.Image(io, "child") as image:
            assert image.read(0, 16 << 20) == bytes(expected), "without what the client remembers"
        if features & 8:
            assert not rbd.json("info", "child").get("flags"), "the lock's owner kept the object map"


def test_tasks_flatten_an_image_that_is_only_read(rbd):
    """It is open, but nobody holds its lock: the object map is given up before the manager writes."""
    librbd = pytest.importorskip("rbd")
    with library(rbd.cluster, rbd.pool) as (_, io):
        librbd.RBD().create(io, "parent", 8 << 20, old_format=False, features=61)
        with librbd.Image(io, "parent") as image:
            image.write(b"p" * (6 << 20), 0)
            image.create_snap("s")
            image.protect_snap("s")
        librbd.RBD().clone(io, "parent", "s", io, "child", features=61)
        with librbd.Image(io, "child") as reader:
            assert reader.read(0, 4) == b"pppp"
            rbd.cluster.ceph("rbd", "task", "add", "flatten", f"{rbd.pool}/child")
            until(lambda: not has_parent(reader, librbd))
            assert reader.read(5 << 20, 4) == b"pppp"
            reader.write(b"later", 7 << 20)
            assert reader.read(7 << 20, 5) == b"later" and reader.read(0, 4) == b"pppp"


def test_tasks_clean_up_parents(rbd):
    """A snapshot that was removed while it had clones goes with the last of them, and lets its image go."""
    librbd = pytest.importorskip("rbd")
    cluster, pool = rbd.cluster, rbd.pool
    was = cluster.ceph_json("osd", "dump")["require_min_compat_client"]
    cluster.ceph("osd", "set-require-min-compat-client", "mimic")
    try:
        with library(cluster, pool) as (client, io):
            client.wait_for_latest_osdmap()
            librbd.RBD().create(io, "parent", 8 << 20)
            with librbd.Image(io, "parent") as image:
                image.write(b"p" * 8192, 0)
                for snap in ("one", "two"):
                    image.create_snap(snap)
            for snap in ("one", "two"):
                librbd.RBD().clone(io, "parent", snap, io, "of-" + snap)
            with librbd.Image(io, "parent") as image:
                for snap in ("one", "two"):
                    image.remove_snap(snap)
                assert len(list(image.list_snaps())) == 2, "they are in the trash"
                ident = image.id()
            cluster.ceph("rbd", "task", "add", "flatten", f"{pool}/of-one")
            cluster.ceph("rbd", "task", "add", "remove", f"{pool}/of-two")

            def snaps():
                with librbd.Image(io, "parent", read_only=True) as image:
                    return list(image.list_snaps())
            until(lambda: not snaps())
            librbd.RBD().trash_move(io, "parent", 0)
            cluster.ceph("rbd", "task", "add", "trash", "remove", f"{pool}/{ident}")
            until(lambda: not list(librbd.RBD().trash_list(io)))
            with librbd.Image(io, "of-one") as image:
                assert image.read(0, 8192) == b"p" * 8192
            left = {o.key for o in io.list_objects()}
            assert not [o for o in left if ident in o], left
    finally:
        cluster.ceph("osd", "set-require-min-compat-client", was, "--yes-i-really-mean-it")
