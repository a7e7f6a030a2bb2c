"""`ceph fs perf stats`: what stock clients count, as two ranks of a metadata server tell it (see file_systems.py)."""
import errno
import os
import socket

import pytest

from conftest import CHROOT, eventually

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="the metadata server runs outside of the chroot")
cephfs = pytest.importorskip("cephfs")
from file_systems import is_stock, mounted, new_cluster, new_servers, read, write

COUNTERS = ["cap_hit", "read_latency", "write_latency", "metadata_latency", "dentry_lease", "opened_files", "pinned_icaps",
            "opened_inodes", "read_io_sizes", "write_io_sizes", "avg_read_latency", "stdev_read_latency", "avg_write_latency",
            "stdev_write_latency", "avg_metadata_latency", "stdev_metadata_latency"]
FILES, BYTES = 20, 8192
ENABLE = "use `ceph mgr module enable stats` to enable it"


@pytest.fixture(scope="module")
def cl(siphon_factory):
    return new_cluster(siphon_factory)


@pytest.fixture(scope="module")
def servers(cl, tmp_path_factory):
    """Two ranks and a server that waits."""
    s = new_servers(cl, tmp_path_factory.mktemp("mds"))
    cl.command(prefix="config set", who="mon", name="mds_beacon_grace", value="5")
    cl.command(prefix="fs set", fs_name="cephfs", var="max_mds", val="2")
    for name in ("a", "b", "c"):
        s.start(name)
    eventually(lambda: sorted(str(rank) for rank, _ in s.states().values()) == ["0", "1", "None"], what="two ranks and one that waits")
    eventually(lambda: [state for _, state in s.states().values()].count("up:active") == 2, what="two active ranks")
    yield s
    for name in list(s.daemons):
        s.kill(name)


@pytest.fixture(scope="module")
def enabled(cl, servers):
    cl.fails("ceph", "fs", "perf", "stats", errno=errno.ENOTSUP, text=ENABLE)
    cl.command(prefix="mgr module enable", module="stats")
    assert "stats" in cl.ceph_json("mgr", "module", "ls")["enabled_modules"]
    eventually(lambda: cl.run("ceph", "fs", "perf", "stats", check=False).returncode == 0, what="an answer")


def work(fs):
    """Makes files at both ranks, writes and reads them; bytes of each."""
    for at, rank in (("/zero", b"0"), ("/one", b"1")):
        fs.mkdir(at, 0o755)
        fs.setxattr(at, "ceph.dir.pin", rank, 0)
        fs.mkdir(f"{at}/of", 0o755)
        for i in range(FILES):
            name = f"{at}/of/file{i}"
            write(fs, name, b"x" * BYTES)
            assert len(read(fs, name, BYTES)) == BYTES
            for _ in range(5):
                fs.stat(name)
    return 2 * FILES * BYTES


def clear(fs):
    for at in ("/zero", "/one"):
        for i in range(FILES):
            fs.unlink(f"{at}/of/file{i}")
        fs.rmdir(f"{at}/of")
        fs.rmdir(at)


@pytest.fixture
def worker(cl, servers, enabled):
    """A client that has done something: its name, and how many bytes it wrote."""
    fs = mounted(cl)
    yield f"client.{fs.get_instance_id()}", work(fs)
    clear(fs)
    fs.unmount()
    fs.shutdown()


@pytest.fixture
def stats(cl):
    return lambda *filters: cl.ceph_json("fs", "perf", "stats", *filters)


def counted(shown, client):
    """The counters of a client by name, and nothing for one that is not shown."""
    values = shown["global_metrics"].get("cephfs", {}).get(client)
    return values and dict(zip(shown["global_counters"], map(tuple, values)))


def has_counted(stats, client, written):
    """What is shown, when it shows all that the client has done."""
    shown = stats()
    c = counted(shown, client)
    times = ("read_latency", "write_latency", "metadata_latency", "avg_write_latency")
    # Ranks of 16.2 that hear of no hits put zeros in the place of those that rank 0 knows.
    hits = c and (c["cap_hit"][0] > 0 or is_stock("siphon"))
    done = hits and c["write_io_sizes"][1] == written and all(c[t] > (0, 0) for t in times)
    return done and shown


def test_clients_tell_what_they_count(stats, worker):
    client, written = worker
    eventually(lambda: has_counted(stats, client, written), timeout=25, what=lambda: f"the counters of {client}: {stats()}")
    shown = stats()
    assert list(shown) == ["version", "global_counters", "counters", "client_metadata", "global_metrics", "metrics"]
    assert (shown["version"], shown["global_counters"], shown["counters"]) == (2, COUNTERS, [])
    c = counted(shown, client)
    assert (c["write_io_sizes"], c["read_io_sizes"]) == ((2 * FILES, written), (2 * FILES, written))
    assert c["stdev_read_latency"][1] == c["stdev_write_latency"][1] == 2 * FILES
    assert 0 < c["read_latency"][1] < 10**9 and c["pinned_icaps"][0] > 2 * FILES
    described = shown["client_metadata"]["cephfs"][client]
    assert list(described) == ["hostname", "root", "mount_point", "valid_metrics", "IP"]
    assert described["hostname"] == socket.gethostname()
    assert (described["root"], described["mount_point"], described["IP"]) == ("/", "N/A", "127.0.0.1")
    assert described["valid_metrics"] == COUNTERS
    # Each rank has a session with it; none counts for itself.
    eventually(lambda: stats()["metrics"].get("mds.1", {}).get(client) == [], what="the client at rank 1")
    metrics = stats()["metrics"]
    assert metrics["delayed_ranks"] == [] and metrics["mds.0"][client] == []


def test_filters_choose(cl, stats, worker):
    client, written = worker
    other = mounted(cl)
    try:
        name = f"client.{other.get_instance_id()}"
        other.stat("/zero")
        eventually(lambda: counted(stats(), name) and has_counted(stats, client, written), what="both clients")
        found = lambda *filters: set(stats(*filters)["global_metrics"].get("cephfs", {}))
        ident = client.removeprefix("client.")
        assert {client, name} <= found()
        eventually(lambda: found("--client_id", ident) == {client}, what="one client")
        assert set(stats("--client_id", ident)["client_metadata"]["cephfs"]) == {client}
        assert found("--client_id", "99999999") == set()
        assert {client, name} <= found("--client_ip", "127.0.0.1")
        assert found("--client_ip", "10.1.2.3") == set()
        assert {client, name} <= found("--mds_rank", "0") and "mds.1" not in stats("--mds_rank", "0")["metrics"]
        # A session with rank 1 begins with the first use of it.
        assert client in found("--mds_rank", "1") and "mds.0" not in stats("--mds_rank", "1")["metrics"]
        assert {client, name} <= found("--mds_rank", "0,1")
        assert stats("--mds_rank", "7")["metrics"] == {"delayed_ranks": []}
    finally:
        other.unmount()
        other.shutdown()
    eventually(lambda: name not in found(), what="the end of a client's entry")
    shown = stats()
    assert name not in shown["client_metadata"]["cephfs"] and name not in shown["metrics"]["mds.0"]
    assert client in shown["metrics"]["mds.0"]


@pytest.mark.parametrize("option, value, text", [
    ("--mds_rank", "0,", "invalid mds filter spec: 0,"),
    ("--client_id", "x", "invalid client_id filter spec: x"),
    ("--client_ip", "nowhere", "invalid client_ip filter spec: nowhere"),
])
def test_filters_that_make_no_sense_are_refused(cl, enabled, option, value, text):
    cl.fails("ceph", "fs", "perf", "stats", option, value, errno=errno.EINVAL, text=text)


def test_a_successor_tells_of_the_same_clients(servers, stats, worker):
    client, written = worker
    eventually(lambda: has_counted(stats, client, written), timeout=25, what=lambda: f"the counters of {client}: {stats()}")
    before = servers.active()
    servers.kill(before)
    eventually(lambda: servers.active() not in (None, before), timeout=120, what="another server of rank 0")
    # Clients tell what they have counted since they began.
    eventually(lambda: has_counted(stats, client, written), timeout=25, what=lambda: f"the counters of {client} at the successor: {stats()}")
    servers.start(before)
    eventually(lambda: servers.states().get(before) == (None, "up:standby"), what="a server that waits")


def test_without_the_module_nothing_is_shown(cl, servers, enabled):
    cl.command(prefix="mgr module disable", module="stats")
    eventually(lambda: ENABLE.encode() in cl.run("ceph", "fs", "perf", "stats", check=False).stderr, what="a refusal")
    cl.command(prefix="mgr module enable", module="stats")
    eventually(lambda: cl.run("ceph", "fs", "perf", "stats", check=False).returncode == 0, what="an answer")
