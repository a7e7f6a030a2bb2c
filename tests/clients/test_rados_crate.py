"""A client that shares no code with Ceph's or ours: the crate `rados`, in the program tests/rados-crate.

The crate asks for secure mode first and cannot be told otherwise, so the mode is what the cluster offers.
In crc mode it speaks with the monitors only: release 0.1.4 takes the last message of an OSD's
authentication for a challenge if that has 36 bytes, and without the secret of a secure connection it always
has (`ServiceAuthProvider::handle_auth_response`). It then verifies the OSD's signature without a key, and
fails. The length follows from Ceph's encoding of that message, so the OSDs offer secure mode in both runs.

The crate is for clusters of 17.2 and later: with a stock 16.2, its listing times out.
"""
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import CHROOT, ROOT, Cluster, eventually

pytestmark = [
    pytest.mark.skipif(os.environ.get("SIPHON_TEST_RADOS_CRATE") != "1", reason="fetches and builds a crate; SIPHON_TEST_RADOS_CRATE=1 runs it"),
    pytest.mark.skipif(CHROOT is not None, reason="has nothing to do with the stock clients of a chroot"),
]

@pytest.fixture(scope="module")
def program():
    cargo = os.environ.get("CARGO") or shutil.which("cargo") or str(Path.home() / ".cargo/bin/cargo")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "rados-crate"
    env = {**os.environ, "PATH": f"{Path(cargo).parent}:{os.environ['PATH']}"}
    argv = [cargo, "build", "--locked", "--target-dir", str(target)]
    subprocess.run(argv, cwd=ROOT / "tests/rados-crate", env=env, check=True, timeout=1800)
    return target / "debug/rados-crate-test"


def run(*argv):
    return subprocess.run(argv, env={**os.environ, "RUST_BACKTRACE": "0"}, capture_output=True, text=True, timeout=300)


@pytest.fixture
def only_this_mode(cluster):
    """The monitors offer clients the mode of `cluster` and no other; the OSDs offer secure mode."""
    cluster.ceph("config", "set", "mon", "ms_mon_service_mode", cluster.mode)
    cluster.ceph("config", "set", "osd", "ms_service_mode", "secure")

    def everywhere():
        osds = [f"osd.{n}" for n in cluster.ceph_json("osd", "ls")]
        return all(cluster.ceph_json("tell", o, "config", "get", "ms_service_mode")["ms_service_mode"] == "secure" for o in osds)

    # These commands speak with OSDs: in the other mode they would wait for ever.
    cluster = Cluster(cluster.conf, "secure" if cluster.mode == "secure" else "mixed")
    if cluster.mode == "mixed":
        cluster.args = ["--ms_mon_client_mode=crc", "--ms_client_mode=secure"]
    eventually(everywhere, what="the mode to reach all OSDs")
    yield
    cluster.ceph("config", "rm", "mon", "ms_mon_service_mode")
    cluster.ceph("config", "rm", "osd", "ms_service_mode")


def test_put_get_stat_list_remove(cluster, pool, program, only_this_mode, tmp_path):
    entity = "client.rados-crate"
    cluster.ceph("auth", "rm", entity)
    keyring = tmp_path / "keyring"
    keyring.write_text(cluster.ceph("auth", "get-or-create", entity, "mon", "allow r", "osd", f"allow rw pool={pool}"))
    r = run(program, cluster.conf, keyring, entity, pool)
    assert r.returncode == 0, r.stdout + r.stderr
    assert r.stdout == "all is well\n"
    cluster.ceph("auth", "rm", entity)


def test_a_pool_that_it_may_not_touch(cluster, pool, program, tmp_path):
    """The program fails if something is wrong: here, it may not write."""
    entity = "client.rados-crate-reader"
    cluster.ceph("auth", "rm", entity)
    keyring = tmp_path / "keyring"
    keyring.write_text(cluster.ceph("auth", "get-or-create", entity, "mon", "allow r", "osd", f"allow r pool={pool}"))
    r = run(program, cluster.conf, keyring, entity, pool)
    assert r.returncode != 0 and "cannot write" in r.stderr, r.stdout + r.stderr
    cluster.ceph("auth", "rm", entity)
