"""Which clients may have the monitors number self-managed snapshots, and what a client of one namespace may do.

CSI drivers and Proxmox give their clients caps for a pool, or for a namespace of it, and `mon allow r` at most.
"""
import errno
import uuid

import pytest

from conftest import Cluster

rados = pytest.importorskip("rados")
rbd = pytest.importorskip("rbd")

NAMESPACE = "tenant"


@pytest.fixture(scope="module")
def plain(base_conf):
    c = Cluster(base_conf, "crc")
    c.command(prefix="config set", who="mon", name="mon_allow_pool_delete", value="true")
    return c


@pytest.fixture(scope="module")
def pools(plain):
    """Two pools for block devices; the first one has a namespace."""
    names = ["caps-" + uuid.uuid4().hex[:8] for _ in range(2)]
    for name in names:
        plain.make_pool(name, pg_num=4, application="rbd")
    with plain.admin.open_ioctx(names[0]) as io:
        rbd.RBD().pool_init(io, True)
        rbd.RBD().namespace_create(io, NAMESPACE)
    yield names
    for name in names:
        plain.delete_pool(name)


@pytest.fixture
def client(plain, tmp_path):
    """Makes clients of given caps."""
    made = []

    def make(**caps):
        name = "client." + uuid.uuid4().hex[:8]
        pairs = [word for pair in caps.items() for word in pair]
        ring = plain.command(prefix="auth get-or-create", entity=name, caps=pairs, format="plain")
        keyring = tmp_path / name
        keyring.write_bytes(ring)
        c = rados.Rados(name=name, conffile=str(plain.conf), conf={
            "keyring": str(keyring), "rados_mon_op_timeout": "60", "rados_osd_op_timeout": "60"})
        c.connect(timeout=60)
        made.append((name, c))
        return c

    yield make
    for name, c in made:
        c.shutdown()
        plain.command(prefix="auth rm", entity=name)


def numbers_snapshots(client, pool, namespace=""):
    """Whether the client may take a snapshot in a pool, and remove it again."""
    with client.open_ioctx(pool) as io:
        io.set_namespace(namespace)
        try:
            io.remove_self_managed_snap(io.create_self_managed_snap())
        except rados.PermissionError:
            return False
    return True


@pytest.mark.parametrize("mon, osd, here, elsewhere", [
    ("allow r", "allow rwx pool={0}", True, False),
    ("allow r", "allow * pool={0}", True, False),
    ("allow r", "profile rbd pool={0}", True, False),
    ("allow r", "allow rwx", True, True),
    # Writes are what counts, and to the whole pool by its name: a tag says nothing of this one.
    ("allow r", "allow r pool={0}", False, False),
    ("allow r", "profile rbd-read-only pool={0}", False, False),
    ("allow r", "allow rwx tag rbd *=*", False, False),
    # The monitors' own caps suffice.
    ("allow rw", "allow r pool={0}", True, True),
])
def test_snapshots_are_numbered_for_clients_that_write(client, pools, mon, osd, here, elsewhere):
    c = client(mon=mon, osd=osd.format(pools[0]))
    assert [numbers_snapshots(c, pool) for pool in pools] == [here, elsewhere]


def test_a_client_of_a_namespace_works_there_and_only_there(client, pools):
    profile = f"profile rbd pool={pools[0]} namespace={NAMESPACE}"
    c = client(mon="profile rbd", mgr=profile, osd=profile)
    assert numbers_snapshots(c, pools[0], NAMESPACE) and not numbers_snapshots(c, pools[1], NAMESPACE)
    with c.open_ioctx(pools[0]) as io:
        io.set_namespace(NAMESPACE)
        rbd.RBD().create(io, "image", 8 << 20)
        with rbd.Image(io, "image") as image:
            image.write(b"before", 0)
            image.create_snap("snapshot")
            image.write(b"behind", 0)
        with rbd.Image(io, "image", snapshot="snapshot", read_only=True) as image:
            assert image.read(0, 6) == b"before"
        with rbd.Image(io, "image") as image:
            image.remove_snap("snapshot")
        assert rbd.RBD().list(io) == ["image"]
        rbd.RBD().remove(io, "image")

        io.set_namespace("")
        with pytest.raises(rbd.PermissionError):
            rbd.RBD().create(io, "image", 8 << 20)
        with pytest.raises(rbd.PermissionError):
            rbd.RBD().list(io)
        with pytest.raises(rados.Error) as refused:
            io.write_full("object", b"x")
        assert refused.value.errno == errno.EPERM
