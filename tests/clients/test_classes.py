"""Object classes as librados' clients call them, `rados lock`, and what capabilities allow of it.

The bytes of inputs and outputs are put together and taken apart here, not by code of ours.
"""
import contextlib
import errno
import json
import os
import struct
import uuid
from ctypes import Structure, byref, c_char_p, c_int, c_size_t, c_void_p, create_string_buffer, string_at

import native
import pytest
from conftest import CHROOT, Cluster, eventually

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="loads librados into the tests' own process")

RETURNVEC = 1024


# --- encoding ---

def num(form, *values):
    return struct.pack("<" + form, *values)


def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return num("I", len(s)) + s


def listed(items):
    return num("I", len(items)) + b"".join(items)


def env(body, version=1, compat=1):
    return num("BBI", version, compat, len(body)) + body


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def num(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def text(self):
        n = self.num("I")
        self.at += n
        return self.data[self.at - n:self.at]

    def env(self):
        """Goes into an envelope; its version."""
        return self.num("BBI")[0]


# --- calling ---

class Caller:
    """Calls methods through a handle of a pool."""

    def __init__(self, io):
        self.io, lib = io, io.lib
        self.lib = lib
        lib.rados_exec.argtypes = [c_void_p, c_char_p, c_char_p, c_char_p, c_char_p, c_size_t, c_void_p, c_size_t]
        lib.rados_create_write_op.restype = c_void_p
        lib.rados_write_op_exec.argtypes = [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t, c_void_p]
        lib.rados_write_op_operate2.argtypes = [c_void_p, c_void_p, c_char_p, c_void_p, c_int]
        lib.rados_release_write_op.argtypes = [c_void_p]

    def __call__(self, obj, cls, method, data=b""):
        out = create_string_buffer(1 << 20)
        n = native.ok(self.lib.rados_exec(self.io.io, obj.encode(), cls.encode(), method.encode(),
                                          data, len(data), out, len(out)))
        return out.raw[:n]

    def fails(self, expected, obj, cls, method, data=b""):
        with pytest.raises(native.Failed) as e:
            self(obj, cls, method, data)
        assert e.value.errno == expected, (e.value.errno, cls, method)

    def write_op(self, obj, cls, method, data=b"", flags=0):
        """One call in a compound write: the request's result, and the call's."""
        op, rval = self.lib.rados_create_write_op(), c_int(-1)
        try:
            self.lib.rados_write_op_exec(op, cls.encode(), method.encode(), data, len(data), byref(rval))
            return self.lib.rados_write_op_operate2(op, self.io.io, obj.encode(), None, flags), rval.value
        finally:
            self.lib.rados_release_write_op(op)


@pytest.fixture
def io(cluster, pool):
    c = native.Client(cluster.conf, cluster.mode)
    io = c.io(pool)
    yield io
    io.close()
    c.close()


@pytest.fixture
def call(io):
    return Caller(io)


# --- the rules for methods ---

def test_hello(cluster, pool, io, call):
    call.fails(errno.ENOENT, "o", "hello", "say_hello")
    io.put("o", b"")
    assert call("o", "hello", "say_hello") == b"Hello, world!"
    assert call("o", "hello", "say_hello", b"Tester") == b"Hello, Tester!"
    call.fails(errno.EINVAL, "o", "hello", "say_hello", b"x" * 4096)
    call("new", "hello", "record_hello", b"Tester")
    call.fails(errno.EEXIST, "new", "hello", "record_hello")
    assert call("new", "hello", "replay") == b"Hello, Tester!"
    call("new", "hello", "turn_it_to_11")
    assert call("new", "hello", "replay") == b"HELLO, TESTER!"
    said = cluster.rados("-p", pool, "getxattr", "new", "said_by").stdout.decode()
    assert said.startswith("client.") and "127.0.0.1:0/" in said


def test_methods_do_only_what_they_declare(io, call):
    io.put("o", b"abc")
    call.fails(errno.EIO, "o", "hello", "bad_reader")
    call.fails(errno.EIO, "o", "hello", "bad_writer", b"x")
    assert call("o", "hello", "replay") == b"abc"


def test_unknown_classes_and_methods(io, call):
    io.put("o")
    call.fails(errno.EOPNOTSUPP, "o", "hello", "no_such_method")
    call.fails(errno.EPERM, "o", "no_such_class", "method")


def test_what_writes_return(cluster, pool, io, call):
    assert call("o", "hello", "write_return_data") == b"", "only with the flag"
    assert call.write_op("o", "hello", "write_return_data") == (0, 42), "the request has no result, its operation has"
    assert call.write_op("o", "hello", "write_return_data", flags=RETURNVEC) == (42, 42)
    assert call.write_op("p", "hello", "write_return_data", b"x", RETURNVEC) == (-errno.EINVAL, -errno.EINVAL)
    assert call.write_op("p", "hello", "write_too_much_return_data", flags=RETURNVEC) == (-errno.EOVERFLOW,) * 2
    assert call.write_op("q", "hello", "write_too_much_return_data")[0] == 0
    assert cluster.rados("-p", pool, "ls").stdout.split() == [b"o", b"q"]


class Item(Structure):
    """`rados_object_list_item`."""
    _fields_ = [(f, t) for n in ("oid", "nspace", "locator") for f, t in ((n + "_length", c_size_t), (n, c_void_p))]


def listing(io, kind, attr, value):
    """The objects that a filter passes."""
    lib, items = io.lib, (Item * 10)()
    lib.rados_object_list_begin.restype = lib.rados_object_list_end.restype = c_void_p
    lib.rados_object_list_begin.argtypes = lib.rados_object_list_end.argtypes = [c_void_p]
    lib.rados_object_list.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t, c_char_p, c_size_t, c_void_p, c_void_p]
    lib.rados_object_list_free.argtypes = [c_size_t, c_void_p]
    lib.rados_object_list_is_end.argtypes = lib.rados_object_list_cursor_free.argtypes = [c_void_p, c_void_p]
    filter, names = text(kind) + text(attr) + text(value), []
    # The library moves the cursor itself.
    at, end = c_void_p(lib.rados_object_list_begin(io.io)), lib.rados_object_list_end(io.io)
    try:
        while not lib.rados_object_list_is_end(io.io, at):
            n = native.ok(lib.rados_object_list(io.io, at, end, 10, filter, len(filter), items, byref(at)))
            names += [string_at(i.oid, i.oid_length).decode() for i in items[:n]]
            lib.rados_object_list_free(n, items)
    finally:
        for cursor in (at, end):
            lib.rados_object_list_cursor_free(io.io, cursor)
    return sorted(names)


def test_a_class_filters_listings(cluster, pool, io):
    for name, value in (("a", "x"), ("b", "y"), ("c", "x"), ("d", None)):
        io.put(name)
        if value:
            cluster.rados("-p", pool, "setxattr", name, "theattr", value)
    assert listing(io, "hello.hello", "_theattr", "x") == ["a", "c"]
    assert listing(io, "plain", "_theattr", "y") == ["b"]
    for kind, expected in (("hello.other", errno.EINVAL), ("no_such_class.hello", errno.EPERM)):
        with pytest.raises(native.Failed) as e:
            listing(io, kind, "_theattr", "x")
        assert e.value.errno == expected


# --- locks ---

def lock_info(cluster, pool, obj, name):
    return json.loads(cluster.rados("-p", pool, "lock", "info", obj, name, "--format", "json").stdout)


def lock_op(name, kind, cookie="c", tag="", duration=0, flags=0):
    return env(text(name) + num("B", kind) + text(cookie) + text(tag) + text("about") + num("II", duration, 0) + num("B", flags))


def test_rados_lock(cluster, pool):
    lock = lambda *a: ("-p", pool, "lock", *a)
    cluster.rados("-p", pool, "put", "o", "-", data=b"x")
    get = lambda *a: lock("get", "o", "l", "--lock-cookie", "c1", "--lock-type", *a)
    cluster.rados(*get("exclusive"), "--lock-description", "mine")
    cluster.fails("rados", *get("exclusive"), errno=1, text="(16)")
    assert json.loads(cluster.rados(*lock("list", "o", "--format", "json")).stdout) == {"objname": "o", "locks": [{"name": "l"}]}
    info = lock_info(cluster, pool, "o", "l")
    assert (info["name"], info["type"], info["tag"]) == ("l", "exclusive", "")
    (locker,) = info["lockers"]
    assert locker["cookie"] == "c1" and locker["description"] == "mine"
    assert locker["name"].startswith("client.") and locker["addr"].startswith("127.0.0.1:0/")
    cluster.fails("rados", *lock("break", "o", "l", "client.1", "--lock-cookie", "c1"), errno=1, text="(2)")
    cluster.rados(*lock("break", "o", "l", locker["name"], "--lock-cookie", "c1"))
    assert lock_info(cluster, pool, "o", "l")["lockers"] == []
    for _ in range(2):
        # Each command is a client of its own.
        cluster.rados(*get("shared"), "--lock-tag", "t")
    cluster.fails("rados", *get("shared"), "--lock-tag", "u", errno=1, text="(16)")
    info = lock_info(cluster, pool, "o", "l")
    assert (info["type"], info["tag"], len(info["lockers"])) == ("shared", "t", 2)


def test_a_lock_expires(cluster, pool):
    get = ("-p", pool, "lock", "get", "o", "l", "--lock-type", "exclusive", "--lock-duration", "2")
    cluster.rados(*get)
    assert lock_info(cluster, pool, "o", "l")["lockers"][0]["expiration"]
    cluster.fails("rados", *get, errno=1, text="(16)")
    eventually(lambda: cluster.run("rados", *get, check=False).returncode == 0, 20, "the lock to expire")


def test_locks_of_the_binding(cluster, pool):
    rados = pytest.importorskip("rados")
    modes = {"ms_client_mode": cluster.mode, "ms_mon_client_mode": cluster.mode}
    with rados.Rados(conffile=str(cluster.conf), conf=modes) as a, rados.Rados(conffile=str(cluster.conf), conf=modes) as b:
        with a.open_ioctx(pool) as one, b.open_ioctx(pool) as two:
            one.lock_exclusive("o", "l", "c", "about", 300)
            with pytest.raises(rados.ObjectExists):
                one.lock_exclusive("o", "l", "c")
            with pytest.raises(rados.ObjectBusy):
                two.lock_exclusive("o", "l", "c")
            with pytest.raises(rados.ObjectNotFound):
                two.unlock("o", "l", "c")
            one.unlock("o", "l", "c")
            one.lock_shared("o", "l", "c", "tag")
            two.lock_shared("o", "l", "c", "tag")
            one.lock_shared("o", "l", "c2", "tag")
            with pytest.raises(rados.ObjectBusy):
                two.lock_shared("o", "l", "c3", "other tag")
            assert len(lock_info(cluster, pool, "o", "l")["lockers"]) == 3
            assert two.execute("o", "lock", "list_locks", b"")[1] == env(listed([text("l")]))


def test_locks_renew_and_rename(io, call):
    may, must = 1, 2
    lock = lambda **kw: call("o", "lock", "lock", lock_op("l", 1, **kw))
    call.fails(errno.ENOENT, "o", "lock", "lock", lock_op("l", 1, flags=must))
    call.fails(errno.EINVAL, "o", "lock", "lock", lock_op("l", 1, flags=may | must))
    call.fails(errno.EINVAL, "o", "lock", "lock", lock_op("", 1))
    call.fails(errno.EINVAL, "o", "lock", "lock", b"\x01\x01\x01")
    lock(flags=may, tag="t")
    lock(flags=may, tag="t")
    lock(flags=must, tag="t")
    call.fails(errno.EEXIST, "o", "lock", "lock", lock_op("l", 1, tag="t"))
    held = lambda kind=1, cookie="c", tag="t": env(text("l") + num("B", kind) + text(cookie) + text(tag))
    call("o", "lock", "assert_locked", held())
    for wrong in (held(kind=2), held(cookie="d"), held(tag="u")):
        call.fails(errno.EBUSY, "o", "lock", "assert_locked", wrong)
    rename = env(text("l") + num("B", 1) + text("c") + text("t") + text("d"))
    call("o", "lock", "set_cookie", rename)
    call("o", "lock", "assert_locked", held(cookie="d"))
    call("o", "lock", "unlock", env(text("l") + text("d")))
    call.fails(errno.EBUSY, "o", "lock", "assert_locked", held(cookie="d"))


def test_an_ephemeral_lock_takes_its_object_along(cluster, pool, call):
    call("o", "lock", "lock", lock_op("l", 3))
    assert cluster.rados("-p", pool, "ls").stdout == b"o\n"
    call("o", "lock", "unlock", env(text("l") + text("c")))
    assert cluster.rados("-p", pool, "ls").stdout == b""


def call_errno(call, *args):
    try:
        call(*args)
    except native.Failed as e:
        return e.errno
    return 0


def test_locks_and_settings_survive_a_restart(siphon_factory):
    if os.environ.get("SIPHON_TEST_CONF"):
        pytest.skip("restarts its cluster")
    s = siphon_factory()
    s.start()
    c = Cluster(s.conf, "crc")
    c.ceph("osd", "pool", "create", "p", "4")
    c.rados("-p", "p", "lock", "get", "o", "l", "--lock-type", "exclusive", "--lock-cookie", "x")
    before = lock_info(c, "p", "o", "l")
    c.ceph("config", "set", "osd", "osd_class_load_list", "lock")
    s.kill()
    s.start()
    assert lock_info(c, "p", "o", "l") == before
    client = native.Client(c.conf)
    io = client.io("p")
    greeting = lambda: call_errno(Caller(io), "o", "hello", "say_hello")
    eventually(lambda: greeting() == errno.EPERM, what="the list of classes that can be loaded")
    c.ceph("config", "rm", "osd", "osd_class_load_list")
    eventually(lambda: greeting() == 0, what="the list to be the default again")
    io.close()
    client.close()
    s.stop()


# --- the other classes ---

def test_refcount(cluster, pool, io, call):
    ref = lambda tag, implicit=False: env(text(tag) + num("?", implicit))
    call.fails(errno.ENOENT, "o", "refcount", "get", ref("a"))
    io.put("o")
    call.fails(errno.EINVAL, "o", "refcount", "put", ref("a"))
    call("o", "refcount", "get", ref("a", True))
    assert call("o", "refcount", "read", env(num("?", True))) == env(listed([text(""), text("a")]))
    assert cluster.rados("-p", pool, "getxattr", "o", "refcount").stdout == env(
        listed([text("") + b"\1", text("a") + b"\1"]) + listed([]), version=2)
    call("o", "refcount", "put", ref("x", True))
    call("o", "refcount", "put", ref("x", True))
    call("o", "refcount", "put", ref("a", True))
    call.fails(errno.ENOENT, "o", "refcount", "read", env(num("?", True)))
    io.put("o")
    call("o", "refcount", "set", env(listed([text("b"), text("a")])))
    assert call("o", "refcount", "read", env(num("?", True))) == env(listed([text("a"), text("b")]))
    call("o", "refcount", "set", env(listed([])))
    call.fails(errno.ENOENT, "o", "refcount", "read", env(num("?", True)))


def test_version(io, call):
    def read():
        r = Reader(call("o", "version", "read"))
        assert (r.env(), r.env()) == (1, 1)
        return r.num("Q"), r.text()
    version = lambda ver, tag: env(num("Q", ver) + text(tag))
    conds = lambda *cs: env(version(0, "") + listed([env(version(v, t) + num("I", c)) for c, v, t in cs]))
    call.fails(errno.ENOENT, "o", "version", "read")
    call("o", "version", "inc", conds())
    ver, tag = read()
    assert ver == 2 and len(tag) == 24
    call("o", "version", "set", env(version(5, "t")))
    eq, gt, tag_ne = 1, 2, 7
    call("o", "version", "check_conds", conds((eq, 5, "t"), (gt, 4, "")))
    call.fails(errno.ECANCELED, "o", "version", "check_conds", conds((eq, 5, "t"), (tag_ne, 0, "t")))
    call.fails(errno.ECANCELED, "o", "version", "inc_conds", conds((gt, 5, "")))
    call("o", "version", "inc_conds", conds((gt, 4, "")))
    assert read() == (6, b"t")


def test_numops(cluster, pool, call):
    do = lambda method, key, n: call("o", "numops", method, text(key) + text(n))
    value = lambda key: cluster.rados("-p", pool, "getomapval", "o", key, "/dev/stdout").stdout
    do("add", "k", "10")
    do("add", "k", "-2.5")
    do("mul", "k", "4")
    assert b"30" in value("k")
    do("mul", "k", "1e12")
    assert b"3e+13" in value("k")
    call.fails(errno.EINVAL, "o", "numops", "add", text("k") + text("ten"))
    cluster.rados("-p", pool, "setomapval", "o", "bad", "no number")
    call.fails(errno.EBADMSG, "o", "numops", "add", text("bad") + text("1"))


def log_entry(sec, name, id=""):
    return env(text("s") + text(name) + num("II", sec, 0) + text("data") + text(id), version=2)


def test_log(io, call):
    def names(marker="", most=0, start=0, end=0):
        r = Reader(call("o", "log", "list", env(num("II", start, 0) + text(marker) + num("II", end, 0) + num("i", most))))
        r.env()
        found = []
        for _ in range(r.num("I")):
            r.env(), r.text()
            found.append(r.text())
            r.num("II"), r.text(), r.text()
        return found, r.text(), bool(r.num("B"))
    add = lambda *entries, monotonic=False: call("o", "log", "add", env(listed(entries) + num("?", monotonic), version=2))
    trim = env(num("II", 0, 0) + num("II", 20, 0) + text("") + text(""), version=2)
    add(log_entry(30, "c"), log_entry(10, "a"))
    add(log_entry(20, "b"), log_entry(20, "b2"))
    assert names()[0] == [b"a", b"b", b"b2", b"c"]
    found, marker, more = names(most=2)
    assert (found, more) == ([b"a", b"b"], True)
    assert names(marker=marker.decode())[0] == [b"b2", b"c"]
    assert names(start=15, end=30)[0] == [b"b", b"b2"]
    add(log_entry(1, "late"), monotonic=True)
    assert names()[0][-1] == b"late"
    call("o", "log", "trim", trim)
    assert names()[0] == [b"c", b"late"]
    call.fails(errno.ENODATA, "o", "log", "trim", trim)
    r = Reader(call("o", "log", "info", env(b"")))
    r.env(), r.env()
    assert r.text().startswith(b"1_0000000030.000000_") and r.num("II") == (30, 0)


def test_timeindex(io, call):
    entry = lambda sec, ext: env(num("II", sec, 0) + text(ext) + text(f"v{sec}{ext}"))
    listing = lambda end: env(num("II", 0, 0) + text("") + num("II", end, 0) + num("i", 10))
    call("o", "timeindex", "add", env(listed([entry(20, "b"), entry(10, "x"), entry(20, "a")])))
    assert call("o", "timeindex", "list", listing(20)) == env(
        listed([entry(10, "x")]) + text("1_0000000010.000000_x") + b"\0")
    assert b"v20a" in call("o", "timeindex", "list", listing(21))
    trim = env(num("II", 0, 0) + num("II", 20, 0) + text("") + text(""))
    call("o", "timeindex", "trim", trim)
    call.fails(errno.ENODATA, "o", "timeindex", "trim", trim)


def test_cmpomap(cluster, pool, call):
    eq, gt, string, u64 = 1, 3, 1, 2
    op = lambda mode, cmp, values, default=None: env(
        num("BB", mode, cmp) + listed([text(k) + text(v) for k, v in sorted(values.items())])
        + (b"\0" if default is None else b"\1" + text(default)))
    rm = lambda mode, cmp, values: env(num("BB", mode, cmp) + listed([text(k) + text(v) for k, v in values.items()]))
    call("o", "cmpomap", "cmp_set_vals", op(u64, gt, {"k": num("Q", 5)}, b""))
    call("o", "cmpomap", "cmp_vals", op(u64, eq, {"k": num("Q", 5)}))
    call.fails(errno.ECANCELED, "o", "cmpomap", "cmp_vals", op(u64, gt, {"k": num("Q", 5)}))
    call.fails(errno.ECANCELED, "o", "cmpomap", "cmp_vals", op(string, eq, {"absent": b""}))
    call.fails(errno.EINVAL, "o", "cmpomap", "cmp_vals", op(u64, eq, {"k": b"x"}))
    cluster.rados("-p", pool, "setomapval", "o", "s", "abc")
    call("o", "cmpomap", "cmp_vals", op(string, eq, {"s": b"abc"}))
    call.fails(errno.EIO, "o", "cmpomap", "cmp_vals", op(u64, eq, {"s": num("Q", 1)}))
    call("o", "cmpomap", "cmp_rm_keys", rm(u64, gt, {"k": num("Q", 5)}))
    call("o", "cmpomap", "cmp_rm_keys", rm(u64, eq, {"k": num("Q", 5)}))
    assert cluster.rados("-p", pool, "listomapkeys", "o").stdout == b"s\n"


def hobject(name, pool=1):
    # key, name, snapshot (the head), hash, not the maximum, namespace, pool
    return env(text("") + text(name) + num("Q", 2**64 - 2) + num("I", 7) + b"\0" + text("") + num("q", pool), 4, 3)


def test_cas(cluster, pool, io, call):
    create = lambda name, data, verify=0: env(hobject(name) + num("Q", verify) + text(data))
    call.fails(errno.ENOENT, "o", "cas", "chunk_get_ref", env(hobject("a")))
    call("o", "cas", "chunk_create_or_get_ref", create("a", b"chunk"))
    call("o", "cas", "chunk_create_or_get_ref", create("b", b"chunk", 1))
    call.fails(errno.ENOMSG, "o", "cas", "chunk_create_or_get_ref", create("c", b"other", 1))
    assert cluster.rados("-p", pool, "getxattr", "o", "chunk_refs").stdout[6:7] == b"\1"
    call.fails(errno.ENOLINK, "o", "cas", "chunk_put_ref", env(hobject("c")))
    call("o", "cas", "chunk_put_ref", env(hobject("a")))
    call.fails(errno.ENOLINK, "o", "cas", "references_chunk", text("x"))
    call("o", "cas", "chunk_put_ref", env(hobject("b")))
    assert cluster.rados("-p", pool, "ls").stdout == b""


def test_user(io, call):
    bucket = lambda name: env(text(name) + text("") + text("") + text("id") + text("") + text(""), 7, 3)
    entry = lambda name, count: env(text("") + num("QIQ", count * 10, 1, count) + bucket(name)
                                    + num("Q?", count * 16, False) + num("II", 1, 0), 9, 5)
    total = lambda: struct.unpack_from("<QQQ", call("o", "user", "get_header", env(b"")), 18)
    call("o", "user", "set_buckets_info", env(listed([entry("a", 1), entry("b", 2)]) + b"\1" + num("II", 5, 0)))
    assert total() == (3, 30, 48)
    call("o", "user", "set_buckets_info", env(listed([entry("a", 5), entry("gone", 9)]) + b"\0" + num("II", 6, 0)))
    assert total() == (7, 70, 112)
    r = Reader(call("o", "user", "list_buckets", env(text("") + num("i", 1) + text(""), 2)))
    assert r.env() == 1 and r.num("I") == 1 and r.data.endswith(text("a") + b"\1")
    call("o", "user", "remove_bucket", env(bucket("a")))
    assert total() == (2, 20, 32)
    call("o", "user", "complete_stats_sync", env(num("II", 9, 0)))
    call("o", "user", "reset_user_stats", env(num("II", 10, 0)))
    assert total() == (2, 20, 32)
    call("o", "user", "reset_user_stats2", env(num("II", 10, 0) + text("") + env(num("QQQ", 0, 0, 0))))
    assert total() == (2, 20, 32)


def test_journal(io, call):
    j = lambda method, data=b"": call("j", "journal", method, data)
    position = lambda tag: env(listed([env(num("QQQ", 1, tag, 7))]))
    j("create", num("BBq", 24, 4, -1))
    call.fails(errno.EEXIST, "j", "journal", "create", num("BBq", 24, 4, -1))
    assert (j("get_order"), j("get_splay_width"), j("get_pool_id")) == (b"\x18", b"\4", num("q", -1))
    call.fails(errno.EINVAL, "j", "journal", "set_minimum_set", num("Q", 1))
    j("set_active_set", num("Q", 3))
    j("set_minimum_set", num("Q", 2))
    call.fails(errno.ESTALE, "j", "journal", "set_active_set", num("Q", 2))
    assert (j("get_active_set"), j("get_minimum_set")) == (num("Q", 3), num("Q", 2))
    j("client_register", text("me") + text("data"))
    call.fails(errno.EEXIST, "j", "journal", "client_register", text("me") + text("data"))
    new = 2**64 - 1
    j("tag_create", num("QQ", 0, new) + text("t0"))
    j("tag_create", num("QQ", 1, 0) + text("t1"))
    call.fails(errno.ESTALE, "j", "journal", "tag_create", num("QQ", 5, 0) + text(""))
    tag = lambda tid, data: env(num("QQ", tid, 0) + text(data))
    assert j("tag_list", num("QQ", 0, 10) + text("me") + b"\0") == listed([tag(0, "t0"), tag(1, "t1")])
    j("client_commit", text("me") + position(1))
    me = env(text("me") + text("data") + position(1) + b"\0")
    assert j("get_client", text("me")) == me
    assert j("client_list", text("") + num("Q", 10)) == listed([me])
    j("tag_create", num("QQ", 2, 0) + text("t2"))
    call.fails(errno.ENOENT, "j", "journal", "get_tag", num("Q", 0))
    assert j("get_next_tag_tid") == num("Q", 3)
    j("client_unregister", text("me"))
    call.fails(errno.ENOENT, "j", "journal", "get_client", text("me"))
    call("d", "journal", "append", num("Q", 100) + text("x" * 99))
    call("d", "journal", "guard_append", num("Q", 2**20))
    call.fails(errno.EOVERFLOW, "d", "journal", "guard_append", num("Q", 99))
    call.fails(errno.EOVERFLOW, "d", "journal", "append", num("Q", 99) + text("y"))


# --- capabilities ---

@contextlib.contextmanager
def as_user(cluster, pool, tmp_path, osd_caps):
    name = "client.c" + uuid.uuid4().hex[:6]
    keyring = tmp_path / f"{name}.keyring"
    keyring.write_text(cluster.ceph("auth", "get-or-create", name, "mon", "allow r", "osd", osd_caps))
    c = native.Client(cluster.conf, cluster.mode, name, keyring)
    io = c.io(pool)
    try:
        yield Caller(io)
    finally:
        io.close()
        c.close()
        cluster.ceph("auth", "rm", name)


@pytest.mark.parametrize("caps, reads, writes", [
    ("allow r", False, False),
    ("allow rw", False, False),
    ("allow x", True, True),
    ("allow rwx", True, True),
    ("allow *", True, True),
    ("allow class-read", True, False),
    ("allow class-write", False, False),
    ("allow class-read class-write", True, True),
    ("allow class hello", True, True),
    ("allow class hello replay", True, False),
    ("allow class lock", False, False),
    ("allow class-read object_prefix o", True, False),
    ("allow x object_prefix other", False, False),
    ("allow r, allow x", True, True),
    ("profile rbd", True, True),
    ("profile rbd-read-only", True, False),
])
def test_capabilities(cluster, pool, io, call, tmp_path, caps, reads, writes):
    """`turn_it_to_11` needs what a writing method that also reads needs."""
    io.put("obj", b"x")
    with as_user(cluster, pool, tmp_path, caps) as theirs:
        for method, allowed in (("replay", reads), ("turn_it_to_11", writes)):
            if allowed:
                theirs("obj", "hello", method)
            else:
                theirs.fails(errno.EPERM, "obj", "hello", method)
    assert call("obj", "hello", "replay") == (b"X" if writes else b"x")
