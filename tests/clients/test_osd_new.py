"""`osd new`, `osd destroy` and `osd purge` as ceph-volume and Rook use them: numbers, keys, lockboxes, keys of disks."""
import base64
import errno
import json
import os
import struct
import uuid

import pytest

from conftest import Cluster

rados = pytest.importorskip("rados")


def key():
    """A cephx key: AES, made now, 16 bytes."""
    return base64.b64encode(struct.pack("<HIIH", 1, 0, 0, 16) + os.urandom(16)).decode()


def disk_key():
    return base64.b64encode(os.urandom(24)).decode()


class Commands:
    """What one client is answered: errno, output, text."""

    def __init__(self, rados):
        self.rados = rados

    def mon(self, prefix, given=None, **args):
        given = b"" if given is None else json.dumps(given).encode()
        code, out, text = self.rados.mon_command(json.dumps({"prefix": prefix, "format": "json", **args}), given)
        return -code, out, text

    def new(self, osd_uuid, secrets=None, **args):
        """The number that an OSD gets, or why it gets none."""
        code, out, text = self.mon("osd new", secrets, uuid=osd_uuid, **args)
        return json.loads(out)["osdid"] if code == 0 else -code

    def mgr(self, prefix, **args):
        code, out, text = self.rados.mgr_command(json.dumps({"prefix": prefix, "format": "json", **args}), b"")
        assert code == 0, (prefix, args, code, text)

    def json(self, prefix, **args):
        code, out, text = self.mon(prefix, **args)
        assert code == 0, (prefix, args, code, text)
        return json.loads(out)

    def user(self, name):
        """Key and caps of a user; nothing if there is none."""
        code, out, _ = self.mon("auth get", entity=name)
        assert code in (0, errno.ENOENT)
        return None if code else (json.loads(out)[0]["key"], json.loads(out)[0]["caps"])

    def stray(self, osd):
        """The status of an OSD that has no place in the tree."""
        return {n["id"]: n["status"] for n in self.json("osd tree")["stray"]}.get(osd)


@pytest.fixture(scope="module")
def admin(base_conf):
    c = Cluster(base_conf, "crc")
    c.command(prefix="osd dump")
    return Commands(c.admin)


@pytest.fixture
def made(admin):
    """Numbers that a test got; they go behind it."""
    numbers = []
    yield numbers
    left = set(admin.json("osd ls"))
    for n in set(numbers) & left:
        admin.mgr("osd purge", id=n, yes_i_really_mean_it=True, force=True)


@pytest.fixture
def encrypted(admin, made):
    """An OSD on an encrypted disk: its uuid, secrets and number."""
    osd, secrets = str(uuid.uuid4()), {"cephx_secret": key(), "cephx_lockbox_secret": key(), "dmcrypt_key": disk_key()}
    number = admin.new(osd, secrets)
    assert number >= 0
    made.append(number)
    return osd, secrets, number


def luks(osd):
    return f"dm-crypt/osd/{osd}/luks"


def secrets_of(admin, osd, number):
    """What the monitors have of an OSD: its key, that of its lockbox and that of its disk."""
    code, disk, _ = admin.mon("config-key get", key=luks(osd))
    assert code in (0, errno.ENOENT)
    users = admin.user(f"osd.{number}"), admin.user(f"client.osd-lockbox.{osd}")
    return *(u and u[0] for u in users), None if code else disk.decode()


def test_all_secrets_are_kept(admin, encrypted):
    osd, secrets, number = encrypted
    assert secrets_of(admin, osd, number) == (secrets["cephx_secret"], secrets["cephx_lockbox_secret"], secrets["dmcrypt_key"])
    assert admin.user(f"osd.{number}")[1] == {"mon": "allow profile osd", "mgr": "allow profile osd", "osd": "allow *"}
    caps = admin.user(f"client.osd-lockbox.{osd}")[1]
    assert caps == {"mon": f'allow command "config-key get" with key="{luks(osd)}"'}
    shown = next(o for o in admin.json("osd dump")["osds"] if o["osd"] == number)
    assert (shown["uuid"], shown["up"]) == (osd, 0)
    assert admin.stray(number) == "down"


def test_a_lockbox_opens_one_disk(base_conf, admin, encrypted, tmp_path):
    osd, secrets, _ = encrypted
    name = f"client.osd-lockbox.{osd}"
    (tmp_path / "keyring").write_text(f"[{name}]\n\tkey = {secrets['cephx_lockbox_secret']}\n")
    c = rados.Rados(name=name, conffile=str(base_conf), conf={"keyring": str(tmp_path / "keyring"), "rados_mon_op_timeout": "60"})
    c.connect(timeout=60)
    try:
        lockbox = Commands(c)
        assert lockbox.mon("config-key get", key=luks(osd))[:2] == (0, secrets["dmcrypt_key"].encode())
        assert lockbox.mon("config-key get", key=luks(uuid.uuid4()))[0] == errno.EACCES
        assert lockbox.mon("config-key rm", key=luks(osd))[0] == errno.EACCES
    finally:
        c.shutdown()


def test_the_same_again_is_the_same_osd(admin, encrypted):
    osd, secrets, number = encrypted
    assert admin.new(osd, secrets) == number
    for name, other in [("cephx_secret", key()), ("cephx_lockbox_secret", key()), ("dmcrypt_key", disk_key())]:
        assert admin.new(osd, {**secrets, name: other}) == -errno.EEXIST, name
    assert admin.new(str(uuid.uuid4()), secrets, id=number) in (-errno.EEXIST, -errno.EINVAL)
    assert secrets_of(admin, osd, number) == (secrets["cephx_secret"], secrets["cephx_lockbox_secret"], secrets["dmcrypt_key"])


@pytest.mark.parametrize("secrets", [
    {"cephx_secret": key(), "dmcrypt_key": disk_key()},
    {"cephx_secret": key(), "cephx_lockbox_secret": key()},
    {"cephx_secret": "not a key"},
])
def test_half_of_the_secrets_is_refused(admin, made, secrets):
    before = admin.json("osd ls")
    assert admin.new(str(uuid.uuid4()), secrets) == -errno.EINVAL
    assert admin.new("not-a-uuid", {"cephx_secret": key()}) == -errno.EINVAL
    assert admin.json("osd ls") == before


def test_secrets_go_with_the_osd(admin, encrypted, made):
    osd, secrets, number = encrypted
    admin.mgr("osd destroy", id=number, yes_i_really_mean_it=True, force=True)
    assert secrets_of(admin, osd, number) == (None, None, None)
    assert admin.stray(number) == "destroyed"
    # The number is there for the disk that takes the place of this one.
    successor, its = str(uuid.uuid4()), {**secrets, "cephx_secret": key()}
    assert admin.new(successor, its, id=number) == number
    assert secrets_of(admin, successor, number)[0] == its["cephx_secret"]
    admin.mgr("osd purge", id=number, yes_i_really_mean_it=True, force=True)
    assert secrets_of(admin, successor, number) == (None, None, None)
    assert number not in admin.json("osd ls")
    # What was never up can be taken back by the client that made it.
    again = admin.new(osd, secrets)
    made.append(again)
    assert admin.mon("osd purge-new", id=again, yes_i_really_mean_it=True)[0] == 0
    assert secrets_of(admin, osd, again) == (None, None, None)
    up = next(o["osd"] for o in admin.json("osd dump")["osds"] if o["up"])
    assert admin.mon("osd purge-new", id=up, yes_i_really_mean_it=True)[0] == errno.EBUSY


def test_bootstrap_users_make_osds_and_nothing_else(base_conf, admin, made, tmp_path):
    users = {u["entity"] for u in admin.json("auth ls")["auth_dump"]}
    assert {f"client.bootstrap-{kind}" for kind in ("mds", "mgr", "osd", "rbd", "rbd-mirror", "rgw")} <= users
    name = "client.bootstrap-osd"
    # As Rook asks for it, whether it is there or not.
    got = admin.json("auth get-or-create-key", entity=name, caps=["mon", "allow profile bootstrap-osd"])["key"]
    (tmp_path / "keyring").write_text(f"[{name}]\n\tkey = {got}\n")
    c = rados.Rados(name=name, conffile=str(base_conf), conf={"keyring": str(tmp_path / "keyring"), "rados_mon_op_timeout": "60"})
    c.connect(timeout=60)
    try:
        bootstrap = Commands(c)
        number = bootstrap.new(str(uuid.uuid4()), {"cephx_secret": key()})
        assert number >= 0
        made.append(number)
        assert bootstrap.mon("osd pool create", pool="never", pg_num=8)[0] == errno.EACCES
        assert bootstrap.mon("auth get-key", entity="client.admin")[0] == errno.EACCES
        assert bootstrap.mon("config-key get", key=luks(uuid.uuid4()))[0] == errno.EACCES
    finally:
        c.shutdown()
