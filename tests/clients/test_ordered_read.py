"""Reads that a C program orders behind its own writes: see ordered-read.c."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Cluster

SOURCE = Path(__file__).with_name("ordered-read.c")

pytestmark = [
    pytest.mark.skipif(bool(os.environ.get("SIPHON_TEST_CHROOT")), reason="the program is built and run on this host"),
    pytest.mark.skipif(not shutil.which("cc"), reason="a C compiler builds the program"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    at = tmp_path_factory.mktemp("ordered") / "ordered-read"
    # The library's own name, as its development package is not needed.
    subprocess.run(["cc", "-Wall", "-O1", "-o", str(at), str(SOURCE), "-l:librados.so.2", "-lpthread"], check=True, timeout=120)
    return at


@pytest.fixture(scope="module")
def pool(base_conf):
    cl = Cluster(base_conf, "crc")
    cl.make_pool("ordered")
    yield "ordered"
    cl.command(prefix="config set", who="mon", name="mon_allow_pool_delete", value="true")
    cl.delete_pool("ordered")


@pytest.mark.parametrize("flags", [4, 0], ids=["ordered", "plain"])
def test_a_read_behind_writes_sees_them(program, base_conf, pool, flags):
    out = subprocess.run([str(program), str(base_conf), pool, str(flags)], capture_output=True, text=True, timeout=300)
    assert (out.returncode, out.stdout) == (0, "0 out of order, 0 stale, 0 failed, of 400\n"), out.stdout + out.stderr
