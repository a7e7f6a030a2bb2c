"""go-ceph's own test suites (github.com/ceph/go-ceph: the binding that ceph-csi uses), unmodified.

They are not part of this tree. `SIPHON_GO_CEPH` names a directory with go-ceph's source, which can be written to;
`go`, librados-dev, librbd-dev and go-ceph's own modules must be there. With `SIPHON_TEST_CONF` they run on the cluster
of that ceph.conf (a stock one, say), whose keyring lies beside it.
"""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = os.environ.get("SIPHON_GO_CEPH")
# Packages, and how long one may take: they wait a lot.
SUITES = {"rados": 1800, "rbd": 3600, "rbd/admin": 1800}

pytestmark = pytest.mark.skipif(not SOURCE or not shutil.which("go"), reason="SIPHON_GO_CEPH names a directory with go-ceph's source")


@pytest.fixture(scope="module")
def etc(base_conf, tmp_path_factory):
    """What the suites find as /etc/ceph."""
    place = tmp_path_factory.mktemp("etc")
    text = Path(base_conf).read_text()
    (place / "ceph.conf").write_text(text)
    keyring = Path(base_conf).parent / "keyring"
    if keyring.exists():
        shutil.copy(keyring, place / "ceph.client.admin.keyring")
    ceph = lambda *args: subprocess.run(["ceph", "-c", str(base_conf), *args], check=True, capture_output=True)
    # Ten pools of 32 groups are made at once.
    for name, value in ("mon_max_pg_per_osd", "2000"), ("mon_allow_pool_delete", "true"):
        ceph("config", "set", "global" if "max" in name else "mon", name, value)
    return place


@pytest.mark.parametrize("suite", SUITES)
def test_suite(etc, tmp_path, suite):
    package = Path(SOURCE) / suite
    program = tmp_path / "suite.test"
    subprocess.run(["go", "test", "-mod=mod", "-tags", "pacific", "-c", "-o", str(program), f"./{suite}"], cwd=SOURCE, check=True, timeout=1800)
    limit = SUITES[suite]
    line = f"mkdir -p /etc/ceph && mount --bind {etc} /etc/ceph && exec {program} -test.v -test.timeout {limit}s"
    r = subprocess.run(["unshare", "-m", "sh", "-c", line], cwd=package, capture_output=True, text=True, timeout=limit + 60)
    passed, failed = (re.findall(rf"^ *--- {word}: (\S+)", r.stdout, re.M) for word in ("PASS", "FAIL"))
    assert r.returncode == 0 and not failed, (failed, r.stdout[-4000:], r.stderr[-1000:])
    assert len(passed) > 10
