"""`siphon up` as a user meets it: the first start, and the mistakes people make."""
import os
import socket
import subprocess

from conftest import BINARY, free_port


def up(*args, timeout=30, **kw):
    return subprocess.run([str(BINARY), "up", *map(str, args)], capture_output=True, text=True, timeout=timeout, **kw)


def fails_with(r, *words):
    assert r.returncode not in (0, 101), r
    lines = [l for l in r.stderr.strip().splitlines() if l]
    assert len(lines) == 1, r.stderr
    for w in words:
        assert w in lines[0], r.stderr


def test_first_start(siphon_factory):
    c = siphon_factory()
    lines = "".join(c.start())
    assert (c.directory / "ceph.conf").exists() and (c.directory / "keyring").exists()
    rest = [c.process.stdout.readline() for _ in range(3)]
    assert any("ceph -c" in l for l in rest), (lines, rest)
    out = subprocess.run(["ceph", "-c", str(c.conf), "-s"], capture_output=True, text=True, check=True).stdout
    assert "HEALTH_OK" in out
    assert c.stop() == 0


def test_port_taken(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        fails_with(up("--data-dir", tmp_path / "d", "--bind", f"127.0.0.1:{port}"), str(port), "in use")


def test_directory_of_something_else(tmp_path):
    (tmp_path / "file").write_text("precious")
    fails_with(up("--data-dir", tmp_path, "--bind", f"127.0.0.1:{free_port()}"), "not empty")
    assert (tmp_path / "file").read_text() == "precious"


def test_directory_not_writable(tmp_path):
    # root writes anywhere but to what is not a directory
    f = tmp_path / "file"
    f.write_text("")
    fails_with(up("--data-dir", f / "sub", "--bind", f"127.0.0.1:{free_port()}"), str(f))


def test_directory_in_use(siphon_factory):
    c = siphon_factory()
    c.start()
    fails_with(up("--data-dir", c.directory, "--bind", f"127.0.0.1:{free_port()}"), "in use")
    assert c.stop() == 0


def test_newer_format(tmp_path):
    d = tmp_path / "d"
    d.mkdir()
    (d / "cluster.json").write_text('{"format": 999}')
    fails_with(up("--data-dir", d, "--bind", f"127.0.0.1:{free_port()}"), "newer version")


def test_store_of_another_cluster(siphon_factory):
    a, b = siphon_factory(osds=1), siphon_factory(osds=1)
    for c in (a, b):
        c.start()
        assert c.stop() == 0
    block = a.directory / "osd.0/block"
    os.replace(b.directory / "osd.0/block", block)
    fails_with(up("--data-dir", a.directory, "--osds", "1", "--bind", f"127.0.0.1:{a.port}"), "osd.0")


def test_status_and_admin_socket(siphon_factory):
    c = siphon_factory()
    c.start()
    out = subprocess.run([str(BINARY), "status", "--data-dir", str(c.directory)], capture_output=True, text=True, check=True).stdout
    assert "health" in out
    for daemon in ("osd.0", "mon.a"):
        r = subprocess.run(["ceph", "-c", str(c.conf), "daemon", daemon, "version"], capture_output=True, text=True)
        assert r.returncode == 0 and "version" in r.stdout, r
    perf = subprocess.run(["ceph", "-c", str(c.conf), "daemon", "osd.0", "perf", "dump"], capture_output=True, text=True, check=True).stdout
    assert "op_w" in perf
    for command in (["config", "show"], ["dump_ops_in_flight"], ["dump_historic_ops"], ["status"]):
        subprocess.run(["ceph", "-c", str(c.conf), "daemon", "osd.0", *command], capture_output=True, text=True, check=True)
    assert c.stop() == 0


def test_store_tools(siphon_factory):
    c = siphon_factory()
    c.start()
    subprocess.run(["ceph", "-c", str(c.conf), "osd", "pool", "create", "p", "4"], check=True, capture_output=True)
    subprocess.run(["rados", "-c", str(c.conf), "-p", "p", "put", "o", "/etc/hostname"], check=True)
    assert c.stop() == 0
    r = subprocess.run([str(BINARY), "store", "fsck", "--deep", str(c.directory / "osd.0/block")], capture_output=True, text=True)
    assert r.returncode == 0, r
    r = subprocess.run([str(BINARY), "store", "dump", str(c.directory / "osd.0/block")], capture_output=True, text=True)
    assert r.returncode == 0 and r.stdout
