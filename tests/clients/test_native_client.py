"""The native client (crates/daemons/client), whose tests against a cluster are in its tests/live.rs."""
import pytest
from conftest import CHROOT, run_live

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="has nothing to do with the stock clients of a chroot")


def test_live(cluster, pool):
    cluster.ceph("config", "set", "mon", "mon_allow_pool_delete", "true")
    # Some tests mark OSDs down or pause the cluster.
    run_live("client", SIPHON_TEST_CEPH_CONF=str(cluster.conf), SIPHON_TEST_POOL=pool)
