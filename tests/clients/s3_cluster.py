"""A cluster with a gateway of ours in front of it: `siphon up --s3`, or, with SIPHON_TEST_CONF, `siphon s3` on the cluster of that
ceph.conf, which may be a stock one."""
import os
import subprocess
from pathlib import Path

from conftest import BINARY, free_port

GIVEN = os.environ.get("SIPHON_TEST_CONF")
USER, ACCESS, SECRET = "first", "access-key-of-first", "secret-key-of-first"


def read_env(path):
    lines = path.read_text().splitlines()
    return dict(line.removeprefix("export ").split("=", 1) for line in lines if "=" in line)


def make_user(conf):
    """The user of the gateway, by Ceph's tool. One that is there stays."""
    admin = ["radosgw-admin", "-c", str(conf), "-n", "client.admin", "user"]
    if subprocess.run([*admin, "info", f"--uid={USER}"], capture_output=True, timeout=120).returncode:
        made = [f"--uid={USER}", "--display-name=First", f"--access-key={ACCESS}", f"--secret-key={SECRET}"]
        subprocess.run([*admin, "create", *made], check=True, capture_output=True, timeout=120)


class OwnGateway:
    """`siphon s3` on the cluster of a ceph.conf."""

    def __init__(self, conf, threads=None):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        argv = [str(BINARY), "s3", "--conf", str(conf), "--bind", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(argv + (["--threads", str(threads)] if threads else []), stdout=subprocess.PIPE, text=True)
        assert "S3 is served" in self.process.stdout.readline()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0


class Served:
    """The cluster's ceph.conf, and how its first gateway is reached."""

    def __init__(self, siphon_factory):
        self.gateway = self.cluster = None
        if GIVEN:
            self.conf = Path(GIVEN)
            make_user(self.conf)
            self.gateway = OwnGateway(self.conf)
            self.url, self.access, self.secret = self.gateway.url, ACCESS, SECRET
            return
        self.cluster = siphon_factory(extra=["--s3", str(free_port())])
        printed = "".join(self.cluster.start(timeout=120))
        path = self.cluster.directory / "s3.env"
        assert path.stat().st_mode & 0o777 == 0o600
        assert str(path) in printed
        self.conf, env = self.cluster.conf, read_env(path)
        self.url, self.access, self.secret = (env[f"AWS_{name}"] for name in ("ENDPOINT_URL", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))

    def stop(self):
        if self.gateway:
            self.gateway.stop()
