"""go-ceph's own test suites (github.com/ceph/go-ceph: the binding that ceph-csi uses), unmodified.

They are not part of this tree. `SIPHON_GO_CEPH` names a directory with go-ceph's source, which can be written to;
`go`, librados-dev, librbd-dev, libcephfs-dev and go-ceph's own modules must be there. With `SIPHON_TEST_CONF` they run
on the cluster of that ceph.conf (a stock one, say, and then with SIPHON_TEST_MDS=stock), whose keyring lies beside it.
"""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import Cluster, eventually

pytest.importorskip("cephfs")
from file_systems import new_servers

SOURCE = os.environ.get("SIPHON_GO_CEPH")
GIVEN = os.environ.get("SIPHON_TEST_CONF")
# Packages, and how long one may take: they wait a lot.
SUITES = {"rados": 1800, "rbd": 3600, "rbd/admin": 1800, "cephfs": 900, "cephfs/admin": 900}
SNAPSHOTS = "snapshots of subvolumes are not there yet"
# Tests of snapshots and clones of subvolumes, which are not there yet, with what they say then. Some of them end their
# whole program.
KNOWN = {
    "cephfs/admin": {
        "TestCancelClone": SNAPSHOTS,
        "TestCloneProgress": SNAPSHOTS,
        "TestCloneSubVolumeSnapshot": SNAPSHOTS,
        # It goes on without its snapshot, so that the subvolume does not stay.
        "TestRemoveSubVolume/retainedSnapshotsTest": "subvolume 'retsnap1' does not exist",
        "TestSubVolumeSnapshotInfo": SNAPSHOTS,
        "TestSubVolumeSnapshots": SNAPSHOTS,
        "TestWorkflow": SNAPSHOTS,
    },
}
# Names of metadata servers, and of the file systems that they serve.
MDS = {"Z": "cephfs", "Y": "altfs"}

pytestmark = pytest.mark.skipif(not SOURCE or not shutil.which("go"), reason="SIPHON_GO_CEPH names a directory with go-ceph's source")


@pytest.fixture(scope="module")
def cl(siphon_factory):
    if GIVEN:
        return Cluster(Path(GIVEN), "default")
    c = siphon_factory()
    # A test looks for the port that monitors had in older versions.
    c.port = 6789
    c.start()
    return Cluster(c.conf, "default")


@pytest.fixture(scope="module")
def etc(cl, tmp_path_factory):
    """What the suites find as /etc/ceph."""
    place = tmp_path_factory.mktemp("etc")
    # A user that a test mounts with.
    bobolink = "ceph.client.bobolink.keyring"
    cl.ceph("auth", "get-or-create", "client.bobolink", "mon", "allow r", "mgr", "allow r", "mds", "allow *", "osd", "allow rw",
            "-o", place / bobolink)
    (place / "ceph.conf").write_text(f"{cl.conf.read_text()}\n[client.bobolink]\nkeyring = /etc/ceph/{bobolink}\n")
    keyring = cl.conf.parent / "keyring"
    if keyring.exists():
        shutil.copy(keyring, place / "ceph.client.admin.keyring")
    # Ten pools of 32 groups are made at once.
    for name, value in ("mon_max_pg_per_osd", "2000"), ("mon_allow_pool_delete", "true"):
        cl.ceph("config", "set", "global" if "max" in name else "mon", name, value)
    return place


@pytest.fixture(scope="module")
def file_systems(cl, etc, tmp_path_factory):
    """Two file systems, each with a server."""
    s = new_servers(cl, tmp_path_factory.mktemp("mds"))
    served = lambda name: s.states().get(name) == (0, "up:active")
    s.start("Z")
    eventually(lambda: served("Z"), what="a server of the first file system")
    for pool in ("altfs_metadata", "altfs_data"):
        cl.command(prefix="osd pool create", pool=pool, pg_num=8)
    cl.ceph("fs", "flag", "set", "enable_multiple", "true")
    cl.command(prefix="fs new", fs_name="altfs", metadata="altfs_metadata", data="altfs_data")
    s.start("Y")
    eventually(lambda: served("Y"), what="a server of the second file system")
    yield
    for name in list(s.daemons):
        s.kill(name)


def pattern(name):
    """What go's own runner takes as the name of a test, or of a part of one."""
    return "/".join(f"^{part}$" for part in name.split("/"))


@pytest.mark.parametrize("suite", SUITES)
def test_suite(request, etc, tmp_path, suite):
    tags, limit, known = "pacific", SUITES[suite], KNOWN.get(suite, {})
    environment = dict(os.environ)
    if suite.startswith("cephfs"):
        request.getfixturevalue("file_systems")
        # Without this tag some tests cannot be built.
        tags += ",ceph_preview"
        environment.update(CEPH_VERSION="pacific", GO_CEPH_TEST_MDS_NAME="Z", GO_CEPH_TEST_ALT_FS_NAME="altfs")
    package = Path(SOURCE) / suite
    program = tmp_path / "suite.test"
    subprocess.run(["go", "test", "-mod=mod", "-tags", tags, "-c", "-o", str(program), f"./{suite}"], cwd=SOURCE, check=True, timeout=1800)

    def run(which):
        line = f"mkdir -p /etc/ceph && mount --bind {etc} /etc/ceph && exec {program} -test.v -test.timeout {limit}s {which}"
        return subprocess.run(["unshare", "-m", "sh", "-c", line], cwd=package, env=environment, capture_output=True, text=True, timeout=limit + 60)

    r = run(f"-test.skip '{'|'.join(map(pattern, known))}'" if known else "")
    passed, failed = (re.findall(rf"^ *--- {word}: (\S+)", r.stdout, re.M) for word in ("PASS", "FAIL"))
    print(f"{suite}: {len(passed)} passed, {len(failed)} failed")
    assert r.returncode == 0 and not failed, (failed, r.stdout[-4000:], r.stderr[:4000])
    assert len(passed) > 10
    for name, reason in known.items():
        r = run(f"-test.run '{pattern(name)}'")
        print(f"{suite}: {name} {'failed' if r.returncode else 'passed'}")
        if not GIVEN or r.returncode != 0:
            assert r.returncode != 0 and reason in r.stdout, f"{name} is not known any longer: {r.stdout[-4000:]}"
