"""Random operations on a stock cluster and on this one must give equal answers.

Heavy: it starts a stock Ceph of three OSDs. Runs only with SIPHON_TEST_DIFFERENTIAL=1
(`cargo xtask test --differential`), and then fails if it cannot run.
"""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from conftest import BINARY, ROOT

DRIVER = Path(os.environ.get("SIPHON_DIFFERENTIAL_BIN", BINARY.parent / "differential"))
OPERATIONS = os.environ.get("SIPHON_DIFFERENTIAL_OPS", "20000")
SEEDS = os.environ.get("SIPHON_DIFFERENTIAL_SEEDS", "1,2,3").split(",")
SERVERS = ("ceph-mon", "ceph-osd", "ceph-mgr")
SERVER_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

pytestmark = pytest.mark.skipif(os.environ.get("SIPHON_TEST_DIFFERENTIAL") != "1", reason="heavy; SIPHON_TEST_DIFFERENTIAL=1 runs it")


@pytest.fixture(scope="module")
def stock():
    """The ceph.conf of a stock cluster that runs for these tests."""
    missing = [s for s in SERVERS if not shutil.which(s, path=SERVER_PATH)]
    assert not missing, f"no stock cluster without {missing}"
    sys.path.insert(0, str(ROOT / "bench"))
    from peer import Stock

    # Not in /tmp, which may be in memory: three OSDs keep their files there.
    base = Path(tempfile.mkdtemp(prefix="siphon-differential.", dir="/var/tmp"))
    cluster = Stock(base)
    try:
        cluster.start()
        # 16.2 forgets to drop an object's checksum when a numbered truncation makes it longer, and then
        # takes the object for damaged and repairs it without end.
        cluster.ceph("config", "set", "osd", "osd_skip_data_digest", "true")
        yield cluster.conf
    finally:
        cluster.stop()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module")
def subject(siphon_factory):
    """The ceph.conf of a Siphon cluster whose pools can be deleted, and that refuses what Ceph refuses."""
    cluster = siphon_factory(extra=["--osd-size", "8G"])
    cluster.start()
    for option in (("mon", "mon_allow_pool_delete"), ("osd", "osd_ec_stock_refusals")):
        subprocess.run(["ceph", "-c", str(cluster.conf), "config", "set", *option, "true"], check=True, timeout=60)
    return cluster.conf


# The pools: of three replicas; of 2+1, to which objects are appended; the same with allow_ec_overwrites.
@pytest.mark.parametrize("pools", ["replicated", "appends", "overwrites"])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_operations_give_equal_answers(stock, subject, seed, pools):
    argv = [str(DRIVER), "--reference", str(stock), "--subject", str(subject), "--ops", OPERATIONS, "--seeds", seed, "--pools", pools]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=3600, env={**os.environ, "RUST_BACKTRACE": "0"})
    assert ran.returncode == 0, f"{ran.stdout[-20000:]}\n{ran.stderr[-5000:]}"
    assert f"seed {seed}: {OPERATIONS} operations, equal" in ran.stdout
