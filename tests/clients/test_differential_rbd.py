"""Random calls of methods of the class rbd on a stock cluster and on this one must give equal answers,
and leave equal objects behind. Heavy, like test_differential.py, and run by the same flag."""
import random
import struct

import pytest

from test_differential import SEEDS, pytestmark, stock, subject  # noqa: F401 (fixtures)

rados = pytest.importorskip("rados")

NOSNAP = 2**64 - 2
# Values that hold a time or an address: only their lengths are compared.
TIMED_ROWS = ("snapshot_", "status_global_", "remote_status_global_")
TIMED_KEYS = ("create_timestamp", "access_timestamp", "modify_timestamp")
TIMED_ANSWERS = ("snapshot_get", "mirror_image_status_get", "mirror_image_status_list",
                 "mirror_image_instance_get", "mirror_image_instance_list")


def u8(n):
    return struct.pack("<B", n & 0xff)


def u32(n):
    return struct.pack("<I", n & 0xffffffff)


def u64(n):
    return struct.pack("<Q", n & (2**64 - 1))


def string(s):
    return u32(len(s)) + s.encode()


def envelope(version, compat, *body):
    body = b"".join(body)
    return u8(version) + u8(compat) + u32(len(body)) + body


class Inputs:
    """Random inputs, from sets so small that calls meet each other's objects."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.methods = {"header": self.header(), "directory": self.directory(), "trash": self.trash(), "group": self.group(),
                        "object_map": self.object_map(), "mirror": self.mirror(), "data": self.data(), "v1": self.v1()}

    def one(self, *values):
        return self.r.choice(values)

    def below(self, n):
        return self.r.randrange(n)

    def name(self):
        return string(self.one("a", "b", "c", ""))

    def id(self):
        return string(self.one("1", "2", "abc", "not valid"))

    def snap(self):
        return u64(self.one(*[1, 2, 3, 4, 5, 6] * 6, NOSNAP, 9))

    def size(self):
        return u64(self.one(1, 100, 4096, 1 << 20, 40 << 20))

    def most(self):
        return u64(self.one(0, 1, 2, 64, 1000))

    def namespace(self):
        kinds = (u32(0), u32(1) + u64(self.one(1, 2)) + self.name() + self.name(), u32(2) + self.name() + u32(0),
                 u32(3) + u8(self.below(4)) + u8(0) + u32(2) + string("p1") + string("p2") + self.name() + self.snap()
                 + u64(5) + u32(0), u32(77))
        return self.one(b"", b"", b"", *(envelope(1, 1, kind) for kind in kinds))

    def parent(self):
        return envelope(1, 1, u64(self.one(1, 1, -1)), string(self.one("", "", "ns")), string("parent"), self.snap())

    def child(self):
        return envelope(2, 1, u64(1), string(self.one("x", "y")), string("ns"))

    def migration(self):
        return envelope(3, 1, u8(self.one(1, 2)), u64(3), self.name(), self.name(), self.name(), u32(1), u64(1), u64(2),
                        u64(5), u8(1), u8(0), u8(1), self.name(), u8(1), string(self.one("", "{}")))

    def group_spec(self):
        return envelope(1, 1, u64(1), string(self.one("g", "h")))

    def header(self):
        none, snap = (lambda: b""), self.snap
        return {
            "get_features": lambda: snap() + self.one(b"", u8(0), u8(1)), "get_size": snap, "set_size": self.size,
            "set_features": lambda: u64(self.below(4096)) + u64(self.one(4, 12, 64, 0xf00)), "get_snapcontext": none,
            "get_object_prefix": none, "get_snapshot_name": snap, "snapshot_get": snap, "snapshot_remove": snap,
            "snapshot_add": lambda: self.name() + snap() + self.namespace(), "snapshot_rename": lambda: snap() + self.name(),
            "get_parent": snap, "set_parent": lambda: u64(1) + string("parent") + snap() + self.size(), "remove_parent": none,
            "parent_get": none, "parent_overlap_get": snap, "parent_detach": none,
            "parent_attach": lambda: self.parent() + self.size() + self.one(b"", u8(0), u8(1)),
            "set_protection_status": lambda: snap() + u8(self.one(0, 0, 1, 2, 3)), "get_protection_status": snap,
            "get_flags": snap, "set_flags": lambda: u64(self.below(4)) + u64(self.below(4)) + self.one(b"", snap()),
            "op_features_get": none, "op_features_set": lambda: u64(self.below(16)) + u64(self.below(18)),
            "snapshot_get_limit": none, "snapshot_set_limit": lambda: u64(self.one(5, 6, 2**64 - 1)),
            "child_attach": lambda: snap() + self.child(), "child_detach": lambda: snap() + self.child(), "children_list": snap,
            "metadata_list": lambda: self.name() + self.most(), "metadata_set": lambda: u32(1) + self.name() + self.name(),
            "metadata_remove": self.name, "metadata_get": self.name, "migration_set": self.migration,
            "migration_set_state": lambda: u8(self.below(6)) + self.name(), "migration_get": none, "migration_remove": none,
            "image_group_add": self.group_spec, "image_group_remove": self.group_spec, "image_group_get": none,
            "mirror_image_snapshot_unlink_peer": lambda: snap() + string(self.one("p1", "p2", "p3")),
            "mirror_image_snapshot_set_copy_progress": lambda: snap() + u8(1) + u64(self.below(99)),
        }

    def directory(self):
        entry, page = (lambda: self.name() + self.id()), (lambda: self.name() + self.most())
        return {
            "dir_get_id": self.name, "dir_get_name": self.id, "dir_list": page, "dir_add_image": entry, "dir_remove_image": entry,
            "dir_rename_image": lambda: self.name() + entry(), "dir_state_assert": lambda: u8(self.below(3)),
            "dir_state_set": lambda: u8(self.below(3)), "get_id": lambda: b"", "set_id": self.id, "group_dir_add": entry,
            "group_dir_rename": lambda: self.name() + entry(), "group_dir_remove": entry, "group_dir_list": page,
        }

    def trash(self):
        """In objects of their own: a stock OSD aborts if the trash has rows of a directory."""
        spec = lambda: envelope(2, 1, u8(self.below(5)), self.name(), u64(1), u64(2), u8(self.below(4)))
        return {
            "trash_add": lambda: self.id() + spec(), "trash_remove": self.id, "trash_list": lambda: self.id() + self.most(),
            "trash_state_set": lambda: self.id() + u8(self.below(4)) + u8(self.below(4)),
        }

    def group(self):
        image = lambda: envelope(1, 1, string(self.one("i", "j")), u64(self.one(1, 2, -1)))
        snap = lambda: envelope(1, 1, self.name(), self.name(), u8(self.one(0, 0, 1)), u32(1),
                                envelope(1, 1, u64(1), string("i"), u64(3)))
        return {
            "group_image_set": lambda: envelope(1, 1, image(), u8(self.below(2))), "group_image_remove": image,
            "group_image_list": lambda: image() + self.most(), "group_snap_set": snap, "group_snap_remove": self.name,
            "group_snap_get_by_id": self.name, "group_snap_list": lambda: snap() + u64(1000),
            "namespace_add": self.name, "namespace_remove": self.name, "namespace_list": lambda: self.name() + self.most(),
        }

    def bits(self):
        n = self.one(0, 1, 4, 7, 100, 16384, 16385, 33000)
        data = bytearray(self.r.randbytes(-(-n // 4)))
        if n % 4:
            data[-1] &= 0xff << 2 * (4 - n % 4)
        header = envelope(1, 1, u64(n))
        return u32(len(header)) + header + bytes(data) + u32(0)

    def object_map(self):
        count = lambda: u64(self.one(0, 1, 3, 5, 99, 100, 16383, 16384, 16385, 32768, 33000))
        return {
            "object_map_load": lambda: b"", "object_map_save": self.bits, "object_map_resize": lambda: count() + u8(self.below(4)),
            "object_map_update": lambda: count() + count() + u8(self.below(4)) + self.one(u8(0), u8(1) + u8(self.below(4))),
            "object_map_snap_add": lambda: b"", "object_map_snap_remove": self.bits,
        }

    def mirror(self):
        none, uuid, everywhere = (lambda: b""), (lambda: string(self.one("u1", "u2"))), (lambda: string(self.one("g1", "g2")))
        page = lambda: self.id() + self.most()
        image = lambda: envelope(2, 1, everywhere(), u8(self.one(0, 1, 1, 2)), u8(0))
        peer = lambda: envelope(2, 1, string(self.one("u1", "u2", "ours")), string(self.one("s1", "s2", "")), string("client"),
                                u64(-1), u8(self.below(3)), string(self.one("m1", "m2", "")), u64(0))
        said = lambda: u8(self.below(7)) + self.name() + u64(0) + u8(0)
        status = lambda: self.one(envelope(1, 1, said()), envelope(2, 2, string("there"), said()))
        instance = envelope(1, 1, string("instance"), u64(5), string("data"))
        return {
            "mirror_uuid_get": none, "mirror_uuid_set": lambda: string(self.one("ours", "")), "mirror_mode_get": none,
            "mirror_mode_set": lambda: u32(self.one(0, 1, 2, 3)), "mirror_peer_list": none, "mirror_peer_add": peer,
            "mirror_peer_remove": uuid, "mirror_peer_set_client": lambda: uuid() + self.name(),
            "mirror_peer_set_cluster": lambda: uuid() + string(self.one("s1", "s3")),
            "mirror_peer_set_direction": lambda: uuid() + u8(self.below(3)), "mirror_image_list": page,
            "mirror_image_get_image_id": everywhere, "mirror_image_get": self.id, "mirror_image_set": lambda: self.id() + image(),
            "mirror_image_remove": self.id, "mirror_image_status_set": lambda: everywhere() + status(),
            "mirror_image_status_remove": everywhere, "mirror_image_status_get": everywhere, "mirror_image_status_list": page,
            "mirror_image_status_get_summary": lambda: self.one(b"", u32(1) + peer(), u32(2) + peer() + peer()),
            "mirror_image_status_remove_down": none, "mirror_image_instance_get": everywhere, "mirror_image_instance_list": page,
            "mirror_instances_list": none, "mirror_instances_add": self.id, "mirror_instances_remove": self.id,
            "mirror_image_map_list": page, "mirror_image_map_update": lambda: self.id() + instance, "mirror_image_map_remove": self.id,
        }

    def data(self):
        return {
            "copyup": lambda: bytes(self.below(50)), "assert_snapc_seq": lambda: u64(self.below(3)) + u8(self.below(3)),
            "sparse_copyup": lambda: u32(2) + u64(3) + u64(4) + u64(20) + u64(5) + string("abcdefghi"[:self.one(9, 8)]),
            "sparsify": lambda: u64(self.one(1, 4, 16, 4096)) + u8(self.below(2)),
        }

    def v1(self):
        return {
            "snap_list": lambda: b"", "snap_add": lambda: self.name() + self.snap(), "snap_remove": self.name,
            "snap_rename": lambda: self.snap() + self.name(), "snapshot_set_limit": lambda: u64(self.one(1, 3, 2**64 - 1)),
            "migration_set": self.migration, "migration_get": lambda: b"", "migration_remove": lambda: b"",
        }


V1_HEADER = (b"<<< Rados Block Device Image >>>\n".ljust(40, b"\0") + b"rb.0.1.2".ljust(24, b"\0") + b"RBD\0" b"001.005\0"
             + bytes([22, 0, 0, 0]) + u64(8 << 20) + u64(0) + bytes(8) + u64(0))


def call(io, name, method, data):
    try:
        return io.execute(name, "rbd", method, data, 300_000)
    except rados.Error as e:
        return type(e).__name__, e.errno


def left_behind(io, name):
    try:
        size, _ = io.stat(name)
    except rados.ObjectNotFound:
        return None
    with rados.ReadOpCtx() as op:
        rows, _ = io.get_omap_vals(op, "", "", 5000)
        io.operate_read_op(op, name)
        # Places in the order of making are kept since Squid only.
        omap = {key: value for key, value in rows if not key.startswith("snap_order_")}
    for key in omap:
        if key in TIMED_KEYS or key.startswith(TIMED_ROWS):
            omap[key] = len(omap[key])
    return size, io.read(name, 300_000), omap


@pytest.fixture
def clusters(stock, subject):  # noqa: F811 (fixtures)
    handles = []
    for conf in (stock, subject):
        handle = rados.Rados(conffile=str(conf))
        handle.connect()
        handles.append(handle)
        if not handle.pool_exists("rbd-calls"):
            handle.create_pool("rbd-calls")
    yield [handle.open_ioctx("rbd-calls") for handle in handles]
    for handle in handles:
        handle.shutdown()


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_give_equal_answers(clusters, seed):
    inputs = Inputs(int(seed))
    for number in range(60):
        kind = inputs.one("header", "header", "header", *inputs.methods)
        name = f"{kind}-{seed}-{number}"
        if inputs.below(10):
            for io in clusters:
                io.write_full(name, V1_HEADER if kind == "v1" else b"ab" + bytes(30) + b"c" if kind == "data" else b"")
        if kind == "header":
            create = u64(40 << 20) + u8(22) + u64(inputs.one(1, 1 | 32)) + string("prefix")
            assert [call(io, name, "create", create) for io in clusters] == [(0, b"")] * 2
        for _ in range(80):
            method = inputs.one(*inputs.methods[kind])
            data = inputs.methods[kind][method]()
            if not inputs.below(30):
                data = data[:inputs.below(len(data) + 1)]
            expected, answer = (call(io, name, method, data) for io in clusters)
            if method in TIMED_ANSWERS and isinstance(expected[1], bytes) and isinstance(answer[1], bytes):
                expected, answer = (expected[0], len(expected[1])), (answer[0], len(answer[1]))
            assert answer == expected, f"{name}: {method} {data.hex()}"
        expected, found = (left_behind(io, name) for io in clusters)
        assert found == expected, name
