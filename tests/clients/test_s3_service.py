"""Gateways for S3 are daemons of the service `rgw`, as `radosgw` is: in `ceph -s`, `service dump` and `service status`,
with how far lifecycle is behind. The manager warns if that is far. And what idle connections cost."""
import json
import os
import resource
import socket
import subprocess
import threading
import time

import pytest
import rados

from conftest import BINARY, CHROOT, eventually, free_port
from s3_cluster import read_env
from test_s3 import Endpoint

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="starts processes of this host")

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))


class Gateway:
    def __init__(self, cluster, *options):
        self.port = free_port()
        argv = [str(BINARY), "s3", "--data-dir", str(cluster.directory), "--bind", f"127.0.0.1:{self.port}", "--threads", "2", *options]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = self.process.stdout.readline()
        while said and "S3 is served" not in said:
            said = self.process.stdout.readline()
        assert said, "the gateway ended"
        threading.Thread(target=self.process.stdout.read, daemon=True).start()


def test_gateways_register_with_the_manager(siphon_factory):
    beside = free_port()
    cluster = siphon_factory(extra=["--s3", str(beside)])
    cluster.start(timeout=120)

    def ceph(*args):
        argv = ["ceph", "-c", str(cluster.conf), *args, "--format", "json"]
        return json.loads(subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout)

    def daemons():
        found = ceph("service", "dump")["services"].get("rgw", {}).get("daemons", {})
        return {d["metadata"]["frontend_config#0"].rsplit(":", 1)[1]: (name, d) for name, d in found.items() if name != "summary"}

    eventually(lambda: set(daemons()) == {str(beside)}, 60, "the gateway of `up`")
    gateways = [Gateway(cluster), Gateway(cluster)]
    try:
        ports = {str(p) for p in (beside, *(g.port for g in gateways))}
        eventually(lambda: set(daemons()) == ports, 60, "all gateways")
        for _, (name, daemon) in daemons().items():
            assert name == str(daemon["gid"])
            wanted = {"zone_id", "zone_name", "zonegroup_id", "zonegroup_name", "id", "pid", "hostname", "ceph_version"}
            assert wanted <= set(daemon["metadata"]) and daemon["metadata"]["zone_name"] == "default"
        status = lambda: ceph("service", "status").get("rgw", {})
        behind = lambda: [d["status"].get("lifecycle_behind_seconds") for d in status().values()]
        eventually(lambda: behind() == ["0"] * 3, 60, "what lifecycle says")
        text = lambda: subprocess.run(["ceph", "-c", str(cluster.conf), "-s"], capture_output=True, text=True, timeout=120).stdout
        eventually(lambda: "rgw: 3 daemons active" in " ".join(text().split()), 60, "three gateways in `ceph -s`")
        # One that is stopped takes its leave: long before its silence would end the registration.
        gateways[0].process.terminate()
        gateways[0].process.wait(60)
        eventually(lambda: set(daemons()) == ports - {str(gateways[0].port)}, 30, "two gateways")
    finally:
        for gateway in gateways:
            gateway.process.kill()
            gateway.process.wait()


def envelope(version, body):
    """As Ceph encodes a struct with a version."""
    return bytes([version, version]) + len(body).to_bytes(4, "little") + body


class Marks:
    """The marks that gateways leave when they work on buckets with rules."""

    def __init__(self, conf):
        self.cluster = rados.Rados(conffile=str(conf))
        self.cluster.connect(timeout=60)
        self.io = self.cluster.open_ioctx("default.rgw.log")
        self.io.set_namespace("lc")
        self.rows = [(name, bucket) for name in (f"lc.{n}" for n in range(32)) for bucket in self.buckets(name)]

    def buckets(self, name):
        with rados.ReadOpCtx() as op:
            rows, _ = self.io.get_omap_vals(op, "", "", 100)
            try:
                self.io.operate_read_op(op, name)
            except rados.ObjectNotFound:
                return []
            return [key.encode() for key, _ in rows]

    def begun(self, days):
        """The work on each bucket began so many days ago."""
        text = lambda b: len(b).to_bytes(4, "little") + b
        for name, bucket in self.rows:
            started = int(time.time()) - days * 86_400
            entry = envelope(1, text(bucket) + started.to_bytes(8, "little") + (3).to_bytes(4, "little"))
            self.io.execute(name, "rgw", "lc_set_entry", envelope(2, entry))

    def held(self, hold):
        """Whether others cannot leave marks."""
        for name, _ in self.rows:
            if hold:
                self.io.lock_exclusive(name, "lc_process", "test", duration=600)
            else:
                self.io.unlock(name, "lc_process", "test")


def test_lifecycle_that_is_behind_is_a_warning(siphon_factory):
    cluster = siphon_factory(extra=["--s3", str(free_port())])
    cluster.start(timeout=120)
    env = read_env(cluster.directory / "s3.env")
    s3 = Endpoint(env["AWS_ENDPOINT_URL"], env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]).client()
    s3.create_bucket(Bucket="late")
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": "old/"}, "Expiration": {"Days": 1}}
    s3.put_bucket_lifecycle_configuration(Bucket="late", LifecycleConfiguration={"Rules": [rule]})
    marks = Marks(cluster.conf)
    assert len(marks.rows) == 1
    marks.begun(days=4)
    marks.held(True)

    def warned():
        argv = ["ceph", "-c", str(cluster.conf), "health", "detail", "--format", "json"]
        checks = json.loads(subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout)["checks"]
        return checks.get("S3_LIFECYCLE_BEHIND")

    gateway = Gateway(cluster, "--lc-debug-interval", "1")
    try:
        check = eventually(warned, 60, "a warning")
        assert check["severity"] == "HEALTH_WARN" and check["summary"]["message"] == "lifecycle of S3 is 72 hours behind", check
        assert len(check["detail"]) == 1 and "hours behind" in check["detail"][0]["message"], check
        marks.held(False)
        eventually(lambda: not warned(), 60, "the end of the warning when the work is done")
    finally:
        gateway.process.kill()
        gateway.process.wait()


def resident(pid):
    """MiB."""
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Idle:
    """A connection that has made a request."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.ask()

    def ask(self):
        self.socket.sendall(b"GET /none/none HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = self.socket.recv(65536)
        assert answer.startswith(b"HTTP/1.1 "), answer


def test_idle_connections_take_little_memory(siphon_factory):
    """A gateway stays below 200 MiB with 10,000 of them, and serves each. The short form has fewer and counts on."""
    count, whole = 10_000 if LONG else 2_000, 10_000
    cluster = siphon_factory()
    cluster.start(timeout=120)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = max(soft, count + 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (enough, max(hard, enough)))
    gateway, idle = None, []
    try:
        gateway = Gateway(cluster)
        idle += [Idle(gateway.port) for _ in range(100)]
        begun = resident(gateway.process.pid)
        idle += [Idle(gateway.port) for _ in range(count - len(idle))]
        full = resident(gateway.process.pid)
        expected = begun + (full - begun) * whole / count
        print(f"{begun:.0f} MiB with 100 connections, {full:.0f} MiB with {count}")
        assert expected < 200, (begun, full)
        for connection in idle:
            connection.ask()
        again = resident(gateway.process.pid)
        assert begun + (again - begun) * whole / count < 200, (begun, full, again)
    finally:
        for connection in idle:
            connection.socket.close()
        if gateway:
            gateway.process.kill()
            gateway.process.wait()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(hard, enough)))
