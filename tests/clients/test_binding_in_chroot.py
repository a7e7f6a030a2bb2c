"""The tests of the Python binding, run with the binding of SIPHON_TEST_CHROOT."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import CHROOT

if not CHROOT:
    pytest.skip("SIPHON_TEST_CHROOT is not set; test_python_rados.py tests the system's binding", allow_module_level=True)


def test_binding(base_conf):
    here = Path(__file__).parent
    inside = Path(CHROOT) / "tmp" / "clients" / "tests"
    inside.mkdir(parents=True, exist_ok=True)
    for name in ("conftest.py", "test_python_rados.py"):
        shutil.copy(here / name, inside / name)
    env = {k: v for k, v in os.environ.items() if k != "SIPHON_TEST_CHROOT"}
    env |= {"SIPHON_TEST_CONF": str(base_conf), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = ["chroot", CHROOT, "/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "/tmp/clients/tests/test_python_rados.py"]
    r = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stdout + r.stderr
    assert " passed" in r.stdout
