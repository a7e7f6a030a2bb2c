"""What docs/security.md promises, line by line: who may read, reach, exhaust or crash what."""
import base64
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Cluster
from processes import Processes, siphon

UMASKS = pytest.mark.parametrize("umask", [0o000, 0o022])


def open_to_others(directory, group_reads=("ceph.conf", "cluster.json")):
    """All below a data directory that users outside of its owner and group could open or enter. The group may look
    into directories, and at these files."""
    found = []
    for path in [directory, *Path(directory).rglob("*")]:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            continue
        too_wide = mode & 0o007 or mode & 0o020
        if not stat.S_ISDIR(mode) and path.name not in group_reads:
            too_wide = mode & 0o077
        if too_wide:
            found.append(f"{path}: {stat.filemode(mode)}")
    return found


def secrets_of(client):
    """The keys of all entities, as they are written and as they are."""
    texts = {e["key"] for e in client.ceph_json("auth", "ls")["auth_dump"]}
    assert len(texts) >= 5, texts
    return {form for t in texts for form in (t.encode(), base64.b64decode(t)[12:], base64.b64decode(t)[12:].hex().encode())}


def command_lines():
    """The command lines of all processes."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            pass
    return b"\n".join(lines)


def read_as_nobody(path):
    """Whether another user of this machine gets at a file or socket."""
    code = ("import socket, stat, sys\np = sys.argv[1]\nimport os\ntry:\n"
            "  socket.socket(socket.AF_UNIX).connect(p) if stat.S_ISSOCK(os.stat(p).st_mode) else open(p).read(1)\n"
            "except PermissionError: sys.exit(13)\n")
    r = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", code, str(path)],
                       capture_output=True, text=True)
    assert r.returncode in (0, 13), r.stderr
    return r.returncode == 0


@UMASKS
def test_files_of_up_are_closed(siphon_factory, umask):
    c = siphon_factory(umask=umask)
    c.start()
    made = {p.name for p in c.directory.rglob("*")}
    assert {"store.db", "block", "keyring", "ceph-mon.a.asok", "ceph-osd.0.asok", "lock", "ready"} <= made, made
    assert open_to_others(c.directory) == []
    # Reached by nobody even if the directory above were open.
    c.directory.chmod(0o755)
    (c.directory / "run").chmod(0o755)
    parents = [p for p in c.directory.parents if p.stat().st_mode & 0o005 != 0o005]
    for p in parents:
        p.chmod(p.stat().st_mode | 0o005)
    for path in ("keyring", "mon.a/store.db", "osd.0/block", "run/ceph-osd.0.asok"):
        assert not read_as_nobody(c.directory / path), path
    assert c.stop() == 0


def test_open_modes_are_mended_at_start(siphon_factory):
    c = siphon_factory()
    c.start()
    assert c.stop() == 0
    for path in [c.directory, *c.directory.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    c.start()
    # Directly in the directory an operator may let a group read a keyring.
    assert open_to_others(c.directory, [p.name for p in c.directory.iterdir()]) == []
    log = (c.directory.parent / f"{c.directory.name}.log").read_text()
    for part in ("mon.a/store.db", "osd.0/block", "osd.2"):
        assert any(f"{c.directory / part}: mode 0" in line for line in log.splitlines()), (part, log[-3000:])
    assert c.stop() == 0


@UMASKS
def test_files_of_single_daemons_are_closed(tmp_path, umask):
    before = os.umask(umask)
    try:
        p = Processes(tmp_path, mons=3, hosts=3)
        p.start(osds=2)
        siphon("add", "mgr", "--data-dir", p.dirs[1], "--name", "y")
        try:
            assert (p.dirs[1] / "join").exists()
            for d in p.dirs:
                assert open_to_others(d) == []
        finally:
            p.stop()
        for d in p.dirs:
            assert open_to_others(d) == []
        r = siphon("store", "fsck", p.dirs[0] / "osd.0" / "block")
        assert "no problems" in r
        siphon("rescue", "--data-dir", p.dirs[0], "--name", "a", "--yes-i-really-mean-it")
        assert list((p.dirs[0] / "mon.a").glob("store.db.before-*"))
        assert open_to_others(p.dirs[0]) == []
    finally:
        os.umask(before)


def test_secrets_are_in_no_log_and_no_command_line(siphon_factory, tmp_path):
    c = siphon_factory(env={"SIPHON_LOG": "trace,openraft=off"}, osds=2)
    c.start()
    client = Cluster(c.conf, "crc")
    marks = [f"mark-{i}-{os.urandom(8).hex()}" for i in range(3)]
    client.ceph("config-key", "set", "test/secret", marks[0])
    client.ceph("auth", "get-or-create", "client.reader", "mon", "allow r")
    key = client.ceph("auth", "get-key", "client.reader").strip()
    keyring = tmp_path / "k"
    keyring.write_text(f"[client.reader]\n\tkey = {key}\n")
    client.fails("ceph", "config-key", "get", "test/secret", name="client.reader", keyring=keyring, errno=13)
    client.fails("ceph", "auth", "ls", name="client.reader", keyring=keyring, errno=13)
    client.fails("ceph", "config-key", "set", "test/secret", marks[1], name="client.reader", keyring=keyring, errno=13)
    answer = client.run("ceph", "auth", "import", data=f"[client.x]\n\tkey = {marks[2]}\n".encode(), check=False)
    assert answer.returncode and marks[2].encode() not in answer.stderr + answer.stdout
    secrets = secrets_of(client) | {m.encode() for m in marks}
    said = client.ceph("log", "last", "1000", "debug", "*").encode()
    assert b"config-key set" in said
    lines = command_lines()
    assert str(c.directory).encode() in lines
    assert c.stop() == 0
    log = (c.directory.parent / f"{c.directory.name}.log").read_bytes()
    assert len(log) > 10_000
    for secret in secrets:
        assert secret not in log, secret
        assert secret not in lines, secret
        assert secret not in said, secret


def listening(pid):
    """Addresses and ports on which a process takes connections, as the kernel says."""
    sockets = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(fd)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            sockets.add(target[len("socket:["):-1])
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] != "0A" or fields[9] not in sockets:
                continue
            host, port = fields[1].split(":")
            # Words of four bytes in the machine's order.
            words = [int(host[i:i + 8], 16) for i in range(0, len(host), 8)]
            raw = b"".join(w.to_bytes(4, sys.byteorder) for w in words)
            found.add((socket.inet_ntop(family, raw), int(port, 16)))
    return found


def test_a_cluster_listens_on_its_address_and_on_no_other(siphon_factory):
    c = siphon_factory(osds=2)
    c.start()
    try:
        ends = listening(c.process.pid)
        assert ("127.0.0.1", c.port) in ends
        assert {host for host, _ in ends} == {"127.0.0.1"}, ends
        # What clients are told of is there, and all the rest belongs to OSDs and the manager.
        client = Cluster(c.conf, "crc")
        told = {c.port}
        for osd in client.ceph_json("osd", "dump")["osds"]:
            for kind in ("public_addrs", "cluster_addrs", "heartbeat_back_addrs", "heartbeat_front_addrs"):
                told |= {int(a["addr"].rpartition(":")[2]) for a in osd[kind]["addrvec"]}
        mgr = client.ceph_json("mgr", "dump")
        told |= {int(a["addr"].rpartition(":")[2]) for a in mgr["active_addrs"]["addrvec"]}
        told |= {int(url.rstrip("/").rpartition(":")[2]) for url in mgr["services"].values()}
        assert {port for _, port in ends} == told, (ends, told)
    finally:
        assert c.stop() == 0
