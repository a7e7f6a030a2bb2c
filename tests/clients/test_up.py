"""`siphon up` as a user meets it: the first start, and the mistakes people make."""
import json
import os
import socket
import subprocess

import pytest
import rados

from conftest import BINARY, Siphon, free_port


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


def test_file_system_full(tmp_path):
    """The OSDs' files are sparse: the file system below can be full long before they are. What was
    acknowledged is there when there is room again."""
    room = tmp_path / "data"
    room.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(room)], capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs privileges")
    c = Siphon(room, osds=3)
    try:
        c.start()
        ceph = lambda *a: subprocess.run(["ceph", "-c", str(c.conf), *a], check=True, capture_output=True)
        ceph("osd", "pool", "create", "p", "8")
        client = rados.Rados(conffile=str(c.conf), conf={"rados_osd_op_timeout": "15"})
        client.connect()
        ioctx = client.open_ioctx("p")
        written = []
        with pytest.raises(rados.Error):
            for n in range(200):
                ioctx.write_full(f"o{n}", bytes([n]) * (1 << 20))
                written.append(n)
        assert written
        assert c.process.wait(timeout=30) not in (0, 101)
        c.process.stdout.close()
        said = (tmp_path / "data.log").read_text().strip().splitlines()[-1]
        assert "osd." in said and "has stopped" in said and "No space left" in said and "free" in said, said
        ioctx.close()
        client.shutdown()
        subprocess.run(["mount", "-o", "remount,size=4g", str(room)], check=True)
        c.start()
        client = rados.Rados(conffile=str(c.conf), conf={"rados_osd_op_timeout": "15"})
        client.connect()
        ioctx = client.open_ioctx("p")
        for n in written:
            assert ioctx.read(f"o{n}", 1 << 20) == bytes([n]) * (1 << 20)
        ioctx.close()
        client.shutdown()
        assert c.stop() == 0
    finally:
        if c.process and c.process.poll() is None:
            c.kill()
        subprocess.run(["umount", "--lazy", str(room)], check=True)


def test_a_file_system(siphon_factory):
    """`--fs`: what it prints is enough to mount the file system, which outlives the process."""
    cephfs = pytest.importorskip("cephfs")
    c = siphon_factory(extra=["--fs"])

    def mounted():
        line = next(l for l in c.start() if l.strip().startswith("ceph-fuse"))
        words = line.split()
        user, key = words[words.index("-n") + 1], words[words.index("-k") + 1]
        fs = cephfs.LibCephFS(conffile=str(c.conf), auth_id=user.removeprefix("client."), conf={"keyring": key})
        fs.mount()
        return fs

    fs = mounted()
    fs.mkdir("/dir", 0o755)
    fd = fs.open("/dir/file", os.O_WRONLY | os.O_CREAT, 0o644)
    fs.write(fd, b"bytes", 0)
    fs.close(fd)
    status = json.loads(subprocess.run(["ceph", "-c", str(c.conf), "fs", "status", "cephfs", "--format", "json"], capture_output=True,
                                       text=True, check=True).stdout)
    assert sorted(m["state"] for m in status["mdsmap"]) == ["active", "standby"]
    fs.shutdown()
    assert c.stop() == 0
    fs = mounted()
    fd = fs.open("/dir/file", os.O_RDONLY, 0)
    assert fs.read(fd, 0, 100) == b"bytes"
    fs.close(fd)
    fs.shutdown()
    assert c.stop() == 0
