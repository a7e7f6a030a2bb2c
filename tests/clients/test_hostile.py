"""Peers that are broken, slow or hostile get an error and disturb nobody."""
import os
import random
import socket
import struct
import time

import pytest


def mon_address(conf):
    for line in conf.read_text().splitlines():
        if line.strip().startswith("mon_host"):
            hostport = line.split("v2:")[1].split("/")[0]
            host, port = hostport.rsplit(":", 1)
            return host, int(port)
    raise AssertionError("no mon_host")


def osd_address(cluster):
    a = cluster.ceph_json("osd", "dump")["osds"][0]["public_addrs"]["addrvec"][0]["addr"]
    host, port = a.rsplit(":", 1)
    return host, int(port)


BANNER = b"ceph v2\n" + struct.pack("<H", 16) + struct.pack("<QQ", 1, 0)


def alive(cluster, pool):
    t = time.monotonic()
    cluster.rados("-p", pool, "put", "alive", "-", data=b"yes")
    assert cluster.rados("-p", pool, "get", "alive", "-").stdout == b"yes"
    return time.monotonic() - t


def closed(s, patience=30):
    """Reads until the peer closes."""
    s.settimeout(patience)
    try:
        while s.recv(65536):
            pass
        return True
    except ConnectionError:
        return True
    except socket.timeout:
        return False


def targets(cluster):
    return [mon_address(cluster.conf), osd_address(cluster)]


def test_garbage(cluster, pool):
    rng = random.Random(7)
    for target in targets(cluster):
        for i in range(50):
            with socket.create_connection(target) as s:
                try:
                    if i % 2:
                        s.sendall(BANNER)
                    s.sendall(rng.randbytes(rng.randrange(1, 5000)))
                    if i % 3 == 0:
                        s.shutdown(socket.SHUT_WR)
                        assert closed(s)
                except OSError:
                    pass  # closed before we were done
    alive(cluster, pool)


def test_oversized_frame(cluster, pool):
    """A frame that announces 4 GiB before the peer proved who it is: refused, not allocated."""
    for target in targets(cluster):
        with socket.create_connection(target) as s:
            s.sendall(BANNER)
            preamble = struct.pack("<BB", 1, 1) + struct.pack("<IH", 0xFFFFFF00, 8) + b"\0" * 18 + struct.pack("<BB", 0, 0)
            s.sendall(preamble + struct.pack("<I", 0) + os.urandom(4096))
            assert closed(s)
    alive(cluster, pool)


def test_half_open_connections(cluster, pool):
    """Thousands of connections that say nothing, or half of something."""
    held = []
    before = alive(cluster, pool)
    try:
        for target in targets(cluster):
            for i in range(1500):
                s = socket.socket()
                s.settimeout(10)
                try:
                    s.connect(target)
                    if i % 3 == 1:
                        s.sendall(BANNER[:5])
                    elif i % 3 == 2:
                        s.sendall(BANNER)
                except OSError:
                    pass
                held.append(s)
        during = alive(cluster, pool)
        assert during < before + 20
    finally:
        for s in held:
            s.close()
    alive(cluster, pool)


def test_wrong_fsid(cluster, tmp_path):
    text = cluster.conf.read_text()
    lines = ["fsid = 00000000-1111-2222-3333-444444444444" if l.strip().startswith("fsid") else l for l in text.splitlines()]
    bad = tmp_path / "ceph.conf"
    bad.write_text("\n".join(lines) + "\n")
    # Stock clients take the fsid from the monitors; a cluster must not be harmed by one that does not.
    import subprocess
    subprocess.run(["ceph", "-c", str(bad), "--connect-timeout", "10", "-s"], capture_output=True, timeout=60)
    cluster.ceph("-s")


def test_slow_reader(cluster, pool):
    """A client that asks for much and reads nothing must not hold up the others."""
    rados = pytest.importorskip("rados")
    cluster.rados("-p", pool, "put", "big", "-", data=b"x" * 4_000_000)
    c = rados.Rados(conffile=str(cluster.conf))
    c.connect()
    io = c.open_ioctx(pool)
    reads = [io.aio_read("big", 4_000_000, 0, lambda *a: None) for _ in range(64)]
    assert alive(cluster, pool) < 20
    for r in reads:
        r.wait_for_complete()
    c.shutdown()
