"""librbd's Python binding: reading, writing, copying, differences, encryption, journals, and the calls that only
the C interface has."""
import ctypes
import json
import random
import subprocess
import sys
import threading
from ctypes import byref, c_size_t, c_uint64, c_void_p

from rbd_binding import (DEEP, DEFAULT, FAST, JOURNAL, KIB, LAYERING, LOCK, MAP, MIB, eventually, isolated, raises, rbd,
                         worker)  # noqa: F401

BOTH = ("crc", "secure")
# RADOS hints that librbd hands down with a request.
RANDOM, SEQUENTIAL, WILLNEED, DONTNEED, NOCACHE, FUA = 0x4, 0x8, 0x10, 0x20, 0x40, 0x80


@isolated(modes=BOTH)
def test_requests(t):
    size = 4 * MIB
    with t.new(size, order=18) as i:
        data = bytearray(size)

        def write(at, what, *flags):
            assert i.write(what, at, *flags) == len(what)
            data[at:at + len(what)] = what

        write(0, b"at the start")
        write(256 * KIB - 3, b"over the edge")
        write(MIB, bytes(range(256)) * 8 * KIB)
        for flags in (RANDOM, SEQUENTIAL, WILLNEED, DONTNEED, NOCACHE, FUA, RANDOM | DONTNEED):
            write(3 * MIB + flags * 1000, b"hinted", flags)
        assert i.read(0, size) == data
        assert i.read(MIB, 1000, SEQUENTIAL | DONTNEED) == data[MIB:MIB + 1000]
        # A request beyond the end is cut.
        raises(rbd.IncompleteWriteError, None, i.write, b"0123456789", size - 4)
        data[-4:] = b"0123"
        assert i.read(size - 10, 100) == data[-10:]
        raises(rbd.InvalidArgument, 22, i.read, size + 1, 1)
        raises(rbd.InvalidArgument, 22, i.write, b"x", size + 1)
        assert i.write(b"", 10) == 0
        i.discard(MIB, 256 * KIB)
        data[MIB:MIB + 256 * KIB] = bytes(256 * KIB)
        i.write_zeroes(MIB + 300 * KIB, 500 * KIB + 3)
        i.write_zeroes(MIB + 900 * KIB, 10, rbd.RBD_WRITE_ZEROES_FLAG_THICK_PROVISION)
        data[MIB + 300 * KIB:MIB + 800 * KIB + 3] = bytes(500 * KIB + 3)
        data[MIB + 900 * KIB:MIB + 900 * KIB + 10] = bytes(10)
        raises(rbd.InvalidArgument, 22, i.write_zeroes, 0, 10, 1 << 20)
        i.flush()
        i.invalidate_cache()
        assert i.read(0, size) == data
        with t.open(i.get_name(), t.elsewhere()) as other:
            assert other.read(0, size) == data


@isolated(modes=BOTH)
def test_requests_in_flight(t):
    size, rng = 4 * MIB, random.Random(1)
    with t.new(size, order=18) as i:
        data, said, waiting = bytearray(size), [], []
        for n in range(64):
            at, length, what = n * 64 * KIB + rng.randrange(1000), rng.randrange(1, 60 * KIB), rng.randbytes(60 * KIB)
            note = lambda c, n=n: said.append(n)
            waiting.append(i.aio_write(what[:length], at, note, rng.choice([0, FUA, DONTNEED])))
            data[at:at + length] = what[:length]
        assert [t.wait(c) for c in waiting] == [0] * 64 and sorted(said) == list(range(64))
        assert t.wait(i.aio_flush(lambda c: None)) == 0
        got = {}
        waiting = [i.aio_read(n * 64 * KIB, 64 * KIB, lambda c, data, n=n: got.update({n: data})) for n in range(64)]
        assert [t.wait(c) for c in waiting] == [64 * KIB] * 64
        assert b"".join(got[n] for n in range(64)) == data
        waiting = [i.aio_discard(0, 256 * KIB, lambda c: None), i.aio_write_zeroes(256 * KIB, 1000, lambda c: None),
                   i.aio_write_zeroes(MIB, MIB, lambda c: None, rbd.RBD_WRITE_ZEROES_FLAG_THICK_PROVISION)]
        assert [t.wait(c) for c in waiting] == [0] * 3
        data[:256 * KIB + 1000], data[MIB:2 * MIB] = bytes(256 * KIB + 1000), bytes(MIB)
        assert i.read(0, size) == data
        assert t.wait(i.aio_read(size + 1, 10, lambda c, data: got.update(beyond=data))) == -22 and got["beyond"] is None
        assert t.wait(i.aio_write(b"x", size + 1, lambda c: None)) == -22
        # What the object store was told to fill is there, though it is zero.
        found = []
        i.diff_iterate(0, size, None, lambda *a: found.append(a))
        assert (MIB, 256 * KIB, True) in found and not [f for f in found if f[0] < 256 * KIB]
    with t.new(size, order=18, stripe_unit=4 * KIB, stripe_count=5) as i:
        for c in [i.aio_write(bytes(data[at:at + 100_000]), at, lambda c: None) for at in range(0, size, 100_000)]:
            assert t.wait(c) == 0
        assert i.read(0, size) == data


def differences(i, *args, **kw):
    found = []
    i.diff_iterate(*args, lambda *a: found.append(a), **kw)
    return found


@isolated(modes=BOTH)
def test_differences(t):
    size = 4 * MIB
    for features in (LAYERING, DEFAULT):
        with t.new(size, order=20, features=features) as i:
            i.write(b"a" * 4096, 0)
            i.write(b"a" * 4096, 2 * MIB + 8192)
            i.create_snap("one")
            i.write(b"b" * 4096, MIB)
            i.discard(2 * MIB, MIB)
            i.create_snap("two")
            i.write(b"c" * 4096, 3 * MIB)
            i.flush()
            assert differences(i, 0, size, None) == [(0, 4096, True), (MIB, 4096, True), (3 * MIB, 4096, True)]
            assert differences(i, 0, size, "one") == [(MIB, 4096, True), (2 * MIB, 12288, False), (3 * MIB, 4096, True)]
            assert differences(i, 0, size, "two", whole_object=True) == [(3 * MIB, MIB, True)]
            assert differences(i, MIB + 100, MIB - 100, "one") == [(MIB + 100, 3996, True)]
            i.set_snap("two")
            assert differences(i, 0, size, "one", whole_object=True) == [(MIB, MIB, True), (2 * MIB, MIB, False)]
            assert differences(i, 0, size, "two") == []
            i.set_snap("one")
            raises(rbd.InvalidArgument, 22, i.diff_iterate, 0, size, "two", print)
            i.set_snap(None)
            raises(rbd.ImageNotFound, 2, i.diff_iterate, 0, size, "none", print)
            seen = []
            raises(rbd.OSError, 7, i.diff_iterate, 0, size, None, lambda *a: seen.append(a) or -7)
            assert seen
            raises(KeyError, None, i.diff_iterate, 0, size, None, lambda *a: {}[a])


@isolated
def test_differences_of_clones(t):
    with t.new(4 * MIB, order=20) as parent:
        parent.write(b"p" * 4096, MIB)
        parent.create_snap("s")
        parent.protect_snap("s")
        t.rbd.clone(t.io, parent.get_name(), "s", t.io, "child", order=20, stripe_unit=MIB, stripe_count=1)
    with t.open("child") as i:
        i.write(b"c" * 4096, 2 * MIB)
        i.flush()
        assert differences(i, 0, 4 * MIB, None) == [(MIB, 4096, True), (2 * MIB, 4096, True)]
        assert differences(i, 0, 4 * MIB, None, include_parent=False) == [(2 * MIB, 4096, True)]


@isolated(modes=BOTH)
def test_copies(t):
    data = random.Random(2).randbytes(300 * KIB)
    target = t.pool()
    with t.new(4 * MIB, order=20) as i:
        i.write(data, MIB - 1000)
        i.create_snap("s")
        i.metadata_set("key", "value")
        i.write(b"later", 0)
        i.copy(target, "copy", features=LAYERING, order=18, stripe_unit=64 * KIB, stripe_count=2)
        i.deep_copy(target, "deep", features=DEFAULT, order=19, stripe_unit=1 << 19, stripe_count=1, data_pool=t.io.get_pool_name())
        raises(rbd.ImageExists, 17, i.copy, target, "copy")
        raises(rbd.ImageExists, 17, i.deep_copy, target, "deep")
        raises(rbd.ArgumentOutOfRange, 33, i.copy, target, "other", order=5)
        expected = i.read(0, 4 * MIB)
        i.set_snap("s")
        i.copy(target, "older")
        old = i.read(0, 4 * MIB)
    for name, features, order, content, snaps in [("copy", LAYERING | rbd.RBD_FEATURE_STRIPINGV2, 18, expected, []), ("older", DEFAULT, 20, old, []),
                                                  ("deep", DEFAULT | rbd.RBD_FEATURE_DATA_POOL, 19, expected, ["s"])]:
        with t.open(name, target) as i:
            assert (i.features(), i.stat()["order"]) == (features, order)
            assert i.read(0, 4 * MIB) == content
            assert i.metadata_get("key") == "value"
            assert [s["name"] for s in i.list_snaps()] == snaps
            for s in snaps:
                i.set_snap(s)
                assert i.read(0, 4 * MIB) == old
    # A deep copy of a clone is a clone.
    with t.open("deep", target) as i:
        i.protect_snap("s")
    t.rbd.clone(target, "deep", "s", t.io, "cloned", data_pool=target.get_pool_name())
    with t.open("cloned") as i:
        i.deep_copy(t.io, "cloned-too")
        with t.open("cloned-too") as j:
            assert j.parent_info() == i.parent_info()
            assert j.read(0, 4 * MIB) == old
            j.flatten()
            assert j.read(0, 4 * MIB) == old


@isolated(modes=BOTH)
def test_sparsify(t):
    with t.new(4 * MIB, order=20) as i:
        i.write(bytes(4 * MIB), 0)
        i.write(b"data", 2 * MIB)
        i.flush()
        prefix = i.block_name_prefix()
        objects = lambda: sorted(o.key for o in t.io.list_objects() if o.key.startswith(prefix))
        assert len(objects()) == 4
        i.sparsify(64 * KIB)
        assert objects() == [prefix + ".0000000000000002"]
        assert i.read(2 * MIB, 5) == b"data\0"
        raises(rbd.InvalidArgument, 22, i.sparsify, 10)
        raises(rbd.InvalidArgument, 22, i.sparsify, 5000)
        raises(rbd.InvalidArgument, 22, i.sparsify, 64 * MIB)


def encrypted(t, form, algorithm):
    """Written through one handle, read through another, and unreadable without the passphrase."""
    data, header = random.Random(3).randbytes(64 * KIB), {rbd.RBD_ENCRYPTION_FORMAT_LUKS1: 4 * MIB, rbd.RBD_ENCRYPTION_FORMAT_LUKS2: 16 * MIB}[form]
    size = header + 4 * MIB
    with t.new(size) as i:
        name = i.get_name()
        i.encryption_format(form, "the passphrase", algorithm)
        assert i.size() <= size  # What the headers take is not the owner's.
        inner = i.size()
        i.write(data, 0)
        i.write(data, MIB + 100)
        i.write(b"tail", inner - 4)
        assert i.read(0, len(data)) == data
        raises(rbd.ImageExists, 17, i.encryption_load, form, "the passphrase")
    with t.open(name, t.elsewhere()) as i:
        assert i.size() == size
        i.encryption_load(form, "the passphrase")
        assert i.size() == inner
        assert i.read(0, len(data)) == data and i.read(MIB + 100, len(data)) == data
        assert i.read(inner - 4, 4) == b"tail"
        i.create_snap("s")
        i.write(b"changed", 5)
        i.discard(MIB, 64 * KIB)
        assert i.read(0, 13) == data[:5] + b"changed" + data[12:13]
    with t.open(name) as i:
        raw = i.read(0, size)
        version = {rbd.RBD_ENCRYPTION_FORMAT_LUKS1: 1, rbd.RBD_ENCRYPTION_FORMAT_LUKS2: 2}[form]
        assert raw[:8] == b"LUKS\xba\xbe" + version.to_bytes(2, "big")
        assert data[:64] not in raw and b"changed" not in raw and b"tail" not in raw
        # To load is to work for seconds, so each form has a part of the checks.
        if version == 1:
            raises(rbd.PermissionError, 1, i.encryption_load, form, "another passphrase")
        else:
            i.set_snap("s")
            i.encryption_load(form, "the passphrase")
            assert i.read(0, len(data)) == data


@isolated
def test_encryption(t):
    encrypted(t, rbd.RBD_ENCRYPTION_FORMAT_LUKS1, rbd.RBD_ENCRYPTION_ALGORITHM_AES256)


@isolated
def test_second_encryption(t):
    encrypted(t, rbd.RBD_ENCRYPTION_FORMAT_LUKS2, rbd.RBD_ENCRYPTION_ALGORITHM_AES128)


@isolated
def test_encryption_that_fails(t):
    one, two = rbd.RBD_ENCRYPTION_FORMAT_LUKS1, rbd.RBD_ENCRYPTION_FORMAT_LUKS2
    with t.new(MIB) as i:
        raises(rbd.NoSpace, 28, i.encryption_format, one, "passphrase")
        raises(rbd.InvalidArgument, 22, i.encryption_load, one, "passphrase")
        raises(rbd.OperationNotSupported, 95, i.encryption_format, 77, "passphrase")
        raises(rbd.OperationNotSupported, 95, i.encryption_load, 77, "passphrase")
        raises(rbd.InvalidArgument, 22, i.encryption_format, one, "passphrase", 77)
    with t.new(32 * MIB, features=DEFAULT | JOURNAL) as i:
        raises(rbd.OperationNotSupported, 95, i.encryption_format, one, "passphrase")


# A client that dies with events in the journal that nobody has marked as done.
DYING = r"""
import json, os, rados, rbd, signal, sys
conf, settings, pool, name = sys.argv[1:]
client = rados.Rados(conffile=conf, conf={"rbd_journal_commit_age": "600", **json.loads(settings)})
client.connect()
i = rbd.Image(client.open_ioctx(pool), name)
i.write(b"first" * 1000, 0)
i.create_snap("s")
i.resize(8 << 20)  # What was begun before this is marked as done.
i.write(b"second" * 1000, 1 << 20)
i.write_zeroes(0, 100)
i.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@isolated
def test_journal(t):
    """What a client has in the journal, and perhaps not in the image, is done again by the next one."""
    name, other = (t.create(4 * MIB, order=20, features=DEFAULT | JOURNAL) for _ in range(2))
    with t.open(name) as i:
        image_id, prefix = i.id(), i.block_name_prefix()
    died = subprocess.run([sys.executable, "-c", DYING, t.conf, json.dumps(t.settings), t.io.get_pool_name(), name], timeout=50)
    assert died.returncode == -9
    info = json.loads(t.tool("journal", "info", "--format", "json", "--journal", image_id))
    assert (info["order"], info["splay_width"]) == (24, 4)
    status = json.loads(t.tool("journal", "status", "--format", "json", "--image", name))
    assert [c["id"] for c in status["registered_clients"]] == [""] and status["minimum_set"] == 0
    events = t.tool("journal", "export", "--image", name, "--path", "-")
    assert events.count(b'"tag_id"') >= 2
    # The image loses what the journal has.
    t.io.remove_object(prefix + ".0000000000000001")
    with t.open(name, t.elsewhere()) as i:
        (owner,) = i.lock_get_owners()
        i.lock_break(rbd.RBD_LOCK_MODE_EXCLUSIVE, owner["owner"])
        i.write(b"x", 4 * MIB - 1)
        assert i.size() == 8 * MIB
        assert i.read(0, 200) == bytes(100) + (b"first" * 1000)[100:200]
        assert i.read(MIB, 6000) == b"second" * 1000
        i.set_snap("s")
        assert i.read(0, 5000) == b"first" * 1000
    # The events, given to another image.
    t.tool("journal", "import", "--path", "-", "--dest", other, data=events)
    with t.open(other) as i:
        i.write(b"x", 4 * MIB - 1)
        assert i.read(MIB, 6000) == b"second" * 1000
        assert i.read(0, 200) == bytes(200)
    t.tool("journal", "reset", "--image", name)
    with t.open(name) as i:
        i.write(b"third", 0)
        i.update_features(JOURNAL, False)
        assert i.read(0, 5) == b"third"
    assert not [o.key for o in t.io.list_objects() if o.key.startswith("journal") and image_id in o.key]


class Native:
    """What only the C interface has."""

    NOTIFIED = ctypes.CFUNCTYPE(None, c_void_p)

    def __init__(self, t, name):
        self.rados, self.rbd = ctypes.CDLL("librados.so.2"), ctypes.CDLL("librbd.so.1")
        self.cluster, self.io, self.image = c_void_p(), c_void_p(), c_void_p()
        self.ok(self.rados.rados_create(byref(self.cluster), None))
        self.ok(self.rados.rados_conf_read_file(self.cluster, t.conf.encode()))
        for key, value in t.settings.items():
            self.ok(self.rados.rados_conf_set(self.cluster, key.encode(), value.encode()))
        self.ok(self.rados.rados_connect(self.cluster))
        self.ok(self.rados.rados_ioctx_create(self.cluster, t.io.get_pool_name().encode(), byref(self.io)))
        self.ok(self.rbd.rbd_open(self.io, name.encode(), byref(self.image), None))
        for call in ("rbd_writesame", "rbd_compare_and_write", "rbd_aio_get_return_value", "rbd_read_iterate2"):
            getattr(self.rbd, call).restype = ctypes.c_ssize_t

    @staticmethod
    def ok(result):
        assert result >= 0, f"the C interface returned {result}"
        return result

    def later(self, call, *args):
        """An asynchronous request: waits for its result."""
        c = c_void_p()
        self.ok(self.rbd.rbd_aio_create_completion(None, None, byref(c)))
        self.ok(getattr(self.rbd, call)(self.image, *args, c))
        self.ok(self.rbd.rbd_aio_wait_for_complete(c))
        result = self.rbd.rbd_aio_get_return_value(c)
        self.rbd.rbd_aio_release(c)
        return result

    def close(self):
        self.ok(self.rbd.rbd_close(self.image))
        self.rados.rados_ioctx_destroy(self.io)
        self.rados.rados_shutdown(self.cluster)


@isolated(modes=BOTH)
def test_native_requests(t):
    name = t.create(4 * MIB, order=20)
    n = Native(t, name)
    same, size = n.rbd.rbd_writesame, c_size_t
    assert same(n.image, c_uint64(MIB - 512), size(4096), b"pattern!" * 64, size(512), 0) == 4096
    assert same(n.image, c_uint64(0), size(1000), b"x" * 512, size(512), 0) == -22
    wrong = c_uint64(0)
    swap = lambda at, old, new: n.rbd.rbd_compare_and_write(n.image, c_uint64(at), size(len(old)), old, new, byref(wrong), 0)
    assert swap(512, bytes(512), b"new" * 170 + b"..") == 512
    assert swap(512, b"new" * 170 + b".!", b"other".ljust(512)) == -84
    assert swap(MIB - 100, b"p" * 200, b"q" * 200) == -22  # Over the edge of an object.
    c = c_void_p()
    n.ok(n.rbd.rbd_aio_create_completion(None, None, byref(c)))
    n.ok(n.rbd.rbd_aio_writesame(n.image, c_uint64(2 * MIB), size(MIB), b"abcd" * 128, size(512), c, 0))
    n.ok(n.rbd.rbd_aio_wait_for_complete(c))
    assert n.rbd.rbd_aio_get_return_value(c) == 0
    n.rbd.rbd_aio_release(c)
    n.ok(n.rbd.rbd_aio_create_completion(None, None, byref(c)))
    n.ok(n.rbd.rbd_aio_compare_and_write(n.image, c_uint64(2 * MIB), size(512), b"abcd" * 128, b"efgh" * 128, c, byref(wrong), 0))
    n.ok(n.rbd.rbd_aio_wait_for_complete(c))
    assert n.rbd.rbd_aio_get_return_value(c) == 0
    n.rbd.rbd_aio_release(c)
    n.ok(n.rbd.rbd_flush(n.image))
    n.close()
    with t.open(name) as i:
        assert i.read(MIB - 512, 4096) == b"pattern!" * 512
        assert i.read(512, 512) == b"new" * 170 + b".."
        assert i.read(2 * MIB, MIB) == b"efgh" * 128 + b"abcd" * (MIB // 4 - 128)


@isolated
def test_changes_are_announced(t):
    name = t.create()
    n = Native(t, name)
    told, handle = threading.Event(), c_uint64()
    update = Native.NOTIFIED(lambda _: told.set())
    n.ok(n.rbd.rbd_update_watch(n.image, byref(handle), update, None))
    with t.open(name) as i:
        for change in (lambda: i.resize(8 * MIB), lambda: i.create_snap("s"), lambda: i.remove_snap("s"),
                       lambda: i.metadata_set("conf_rbd_cache", "false")):
            told.clear()
            change()
            assert told.wait(10)
    n.ok(n.rbd.rbd_update_unwatch(n.image, handle))
    n.close()


@isolated
def test_writers_are_asked_to_pause(t):
    """A watcher that can make its file system quiet is asked to before a snapshot, and told after it."""
    name = t.create()
    n = Native(t, name)
    said, handle, answer = [], c_uint64(), [0]

    def quiesce(_):
        said.append("quiesce")
        n.rbd.rbd_quiesce_complete(n.image, handle, answer[0])

    calls = Native.NOTIFIED(quiesce), Native.NOTIFIED(lambda _: said.append("unquiesce"))
    n.ok(n.rbd.rbd_quiesce_watch(n.image, *calls, None, byref(handle)))
    with t.open(name) as i:
        i.create_snap("s")
        assert eventually(lambda: said == ["quiesce", "unquiesce"])
        i.create_snap("t", rbd.RBD_SNAP_CREATE_SKIP_QUIESCE)
        assert said == ["quiesce", "unquiesce"]
        answer[0] = -5
        raises(rbd.IOError, 5, i.create_snap, "u")
        assert not i.snap_exists("u")
        i.create_snap("u", rbd.RBD_SNAP_CREATE_IGNORE_QUIESCE_ERROR)
        assert i.snap_exists("u")
    n.ok(n.rbd.rbd_quiesce_unwatch(n.image, handle))
    n.close()
