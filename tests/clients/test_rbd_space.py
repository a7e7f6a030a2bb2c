"""Space of block devices: what is discarded or written with zeroes comes back to the cluster."""
import json

import pytest
from conftest import CHROOT, eventually

rados = pytest.importorskip("rados")
rbd = pytest.importorskip("rbd")

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="the bindings are not below the other root directory")

MIB = 1 << 20


@pytest.fixture
def own(siphon_factory):
    """A cluster of its own: what its OSDs use is what the test wrote."""
    from conftest import Cluster
    c = siphon_factory(extra=["--osd-size", "4G"])
    c.start()
    cluster = Cluster(c.conf, "crc")
    cluster.ceph("config", "set", "mgr", "mgr_stats_period", "1")
    cluster.ceph("config", "set", "osd", "mgr_stats_period", "1")
    cluster.ceph("osd", "pool", "create", "space", "8")
    cluster.run("rbd", "pool", "init", "space")
    return cluster


def used(cluster):
    """Bytes that the OSDs use for data."""
    return cluster.ceph_json("df")["stats"]["total_used_bytes"]


def settles(cluster, low, high, what):
    """The used bytes reach a range, in MiB."""
    eventually(lambda: low * MIB <= used(cluster) <= high * MIB, what=f"{what}: {low} to {high} MiB used, not {used(cluster) / MIB:.1f}")


def test_discarded_space_comes_back(own):
    base = used(own) / MIB
    cluster = rados.Rados(conffile=str(own.conf), conf={"rbd_cache": "false", "rbd_skip_partial_discard": "false"})
    cluster.connect(30)
    io = cluster.open_ioctx("space")
    try:
        rbd.RBD().create(io, "img", 64 * MIB, features=rbd.RBD_FEATURE_LAYERING)
        with rbd.Image(io, "img") as image:
            for at in range(0, 64, 4):
                image.write(bytes([at + 1]) * (4 * MIB), at * MIB)
            # Three copies, and some for the log and metadata.
            settles(own, base + 192, base + 260, "written")
            # Whole objects go, the end of one is cut off, and holes stay in the middle of others.
            image.discard(0, 16 * MIB)
            image.discard(18 * MIB, 2 * MIB)
            for at in range(20, 36, 4):
                image.discard(at * MIB + MIB, 2 * MIB)
            # 16 + 2 + 8 of 64 MiB are gone.
            settles(own, base + 114, base + 114 + 60, "discarded")
            # Zeroes over everything that is left of the first half but 64 KiB at the end.
            image.write_zeroes(16 * MIB, 16 * MIB - 65536)
            image.write_zeroes(32 * MIB, 32 * MIB)
            settles(own, base, base + 40, "zeroed")
            assert image.read(0, 32 * MIB - 65536) == bytes(32 * MIB - 65536)
            assert image.read(32 * MIB - 65536, 65536) == bytes([29]) * 65536
            image.create_snap("s")
            # A snapshot holds what is discarded after it.
            image.write(b"x" * (8 * MIB), 0)
            image.create_snap("t")
            image.discard(0, 8 * MIB)
            settles(own, base + 24, base + 24 + 40, "kept by a snapshot")
            image.remove_snap("t")
            settles(own, base, base + 40, "the snapshot removed")
            image.remove_snap("s")
        # `rbd du` without a fast map counts what each object has.
        du = json.loads(own.run("rbd", "du", "--format", "json", "space/img").stdout)["images"][0]
        assert du["used_size"] <= 4 * MIB, du
        assert du["provisioned_size"] == 64 * MIB, du
    finally:
        io.close()
        cluster.shutdown()
