"""The tests that load librados into their own process, run with that of SIPHON_TEST_CHROOT."""
import pytest
from conftest import CHROOT
from in_chroot import run_inside

if not CHROOT:
    pytest.skip("SIPHON_TEST_CHROOT is not set; their own run tests the system's", allow_module_level=True)


@pytest.mark.parametrize("module", ["test_python_rados.py", "test_watch.py"])
def test_binding(base_conf, module):
    run_inside(module, SIPHON_TEST_CONF=str(base_conf))
