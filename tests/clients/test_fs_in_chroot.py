"""Tests of file systems with the libcephfs and the `ceph-fuse` of SIPHON_TEST_CHROOT.

Clusters and metadata servers run inside, too. With SIPHON_TEST_MDS the server is the one that this names: `stock` for the
`ceph-mds` of this machine, with clients of the other version.
"""
import pytest
from conftest import CHROOT
from in_chroot import put_servers_inside, run_inside

if not CHROOT:
    pytest.skip("SIPHON_TEST_CHROOT is not set; their own run tests the system's", allow_module_level=True)


@pytest.fixture(scope="module")
def servers():
    return put_servers_inside()


@pytest.mark.parametrize("module", ["test_mds.py", "test_cephfs.py", "test_subvolumes.py", "test_fs_ranks.py"])
def test_file_system(servers, module):
    run_inside(module, timeout=900, **servers)
