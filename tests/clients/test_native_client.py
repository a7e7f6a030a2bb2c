"""The native client (crates/daemons/client), whose tests against a cluster are in its tests/live.rs."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import CHROOT, ROOT

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="has nothing to do with the stock clients of a chroot")


def test_live(cluster, pool):
    cargo = os.environ.get("CARGO") or shutil.which("cargo") or str(Path.home() / ".cargo/bin/cargo")
    env = {
        **os.environ,
        "PATH": f"{Path(cargo).parent}:{os.environ['PATH']}",
        "SIPHON_TEST_CEPH_CONF": str(cluster.conf),
        "SIPHON_TEST_POOL": pool,
    }
    cluster.ceph("config", "set", "mon", "mon_allow_pool_delete", "true")
    # Some tests mark OSDs down or pause the cluster: one after the other.
    argv = [cargo, "test", "-p", "client", "--test", "live", "--", "--ignored", "--test-threads=1"]
    r = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1800)
    assert r.returncode == 0, r.stdout + r.stderr
    assert "0 ignored" in r.stdout
