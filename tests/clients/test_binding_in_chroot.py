"""The tests that load librados into their own process, run with that of SIPHON_TEST_CHROOT."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import CHROOT

if not CHROOT:
    pytest.skip("SIPHON_TEST_CHROOT is not set; their own run tests the system's", allow_module_level=True)


@pytest.mark.parametrize("module", ["test_python_rados.py", "test_watch.py"])
def test_binding(base_conf, module):
    here = Path(__file__).parent
    inside = Path(CHROOT) / "tmp" / "clients" / "tests"
    inside.mkdir(parents=True, exist_ok=True)
    for name in ("conftest.py", "native.py", "warm_ceph.py", module):
        shutil.copy(here / name, inside / name)
    env = {k: v for k, v in os.environ.items() if k != "SIPHON_TEST_CHROOT"}
    env |= {"SIPHON_TEST_CONF": str(base_conf), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = ["chroot", CHROOT, "/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"/tmp/clients/tests/{module}"]
    r = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stdout + r.stderr
    assert " passed" in r.stdout
