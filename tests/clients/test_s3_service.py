"""Gateways for S3 are daemons of the service `rgw`, as `radosgw` is: in `ceph -s`, `service dump` and `service status`,
with how far lifecycle is behind."""
import json
import subprocess
import threading

import pytest

from conftest import BINARY, CHROOT, eventually, free_port

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="starts processes of this host")


class Gateway:
    def __init__(self, cluster):
        self.port = free_port()
        argv = [str(BINARY), "s3", "--data-dir", str(cluster.directory), "--bind", f"127.0.0.1:{self.port}", "--threads", "2"]
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
