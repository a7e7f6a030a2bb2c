"""Many requests of one client under way on the same few objects, compared with a model. Run by test_aio_model.py.

What is checked: results, data, attributes and omap rows against a model that executes the requests in the order in
which they were sent; versions; the order of answers. The model knows what an answer may show:

* Writes, ordered reads (`LIBRADOS_OPERATION_ORDER_READS_WRITES`) and plain reads of an object execute in the order in
  which they were sent; writes and ordered reads are answered in that order.
* A balanced read, also one that is ordered, shows a state of the object between the last write that was answered when it was sent, and the last
  write that was sent when it was answered; never an older one than a read that had its answer before.
* With `--stock`, writes that change nothing and reads of snapshots are answered in any order, and such reads overtake
  writes that were sent before the snapshot was taken.
* With `--down`, OSDs are marked down meanwhile; with `--away`, something else takes them away. A read that is sent
  again may show later states, and one that is not ordered overtakes writes that wait for recovery.

It uses the C interface, and two methods of the C++ interface that C lacks. A failing run prints its seed.
"""
import argparse
import ctypes
import json
import os
import random
import sys
import tempfile
import threading
import time
import uuid
from collections import namedtuple
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint32, c_uint64, c_void_p

import rados

from conftest import requests_of

ENOENT, EEXIST, ECANCELED, NOT_EQUAL = -2, -17, -125, -4095
BALANCE, ORDERED = 1, 4
EQUAL = 1
HEAD = 2 ** 64 - 2
LARGEST = 2 << 20
# What a method of the class `hello` reads, and the attribute that it leaves.
GREETING, AMPLIFIED = 1100, b"amplified_by"

State = namedtuple("State", "data xattrs omap")
DONE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)


class CppString(ctypes.Structure):
    """A `std::string` of libstdc++ that is only read."""
    _fields_ = [("data", c_char_p), ("length", c_size_t), ("local", ctypes.c_char * 16)]


class CppOperation(ctypes.Structure):
    """A `librados::ObjectWriteOperation`; what it points to begins as C's `rados_write_op_t`."""
    _fields_ = [("table", c_void_p), ("operation", c_void_p)]


def library():
    lib = ctypes.CDLL("librados.so.2")
    methods = "_ZN8librados7v14_2_020ObjectWriteOperation"
    lib.rollback = getattr(lib, methods + "25selfmanaged_snap_rollbackEm")
    lib.rollback.argtypes = [POINTER(CppOperation), c_uint64]
    lib.copy_from = getattr(
        lib, methods + "9copy_fromERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKNS0_5IoCtxEmj")
    lib.copy_from.argtypes = [POINTER(CppOperation), POINTER(CppString), POINTER(c_void_p), c_uint64, c_uint32]
    p, s, n, o = c_void_p, c_char_p, c_size_t, c_uint64
    arguments = {
        "rados_conf_read_file": [p, s], "rados_conf_set": [p, s, s], "rados_connect": [p], "rados_shutdown": [p],
        "rados_ioctx_create": [p, s, POINTER(p)], "rados_ioctx_set_namespace": [p, s], "rados_ioctx_destroy": [p],
        "rados_ioctx_snap_set_read": [p, o], "rados_ioctx_selfmanaged_snap_create": [p, POINTER(o)],
        "rados_ioctx_selfmanaged_snap_remove": [p, o],
        "rados_ioctx_selfmanaged_snap_set_write_ctx": [p, o, POINTER(o), c_int],
        "rados_aio_create_completion2": [p, DONE, POINTER(p)], "rados_aio_release": [p],
        "rados_aio_get_return_value": [p], "rados_aio_get_version": [p],
        "rados_aio_write_op_operate": [p, p, p, s, p, c_int], "rados_aio_read_op_operate": [p, p, p, s, c_int],
        "rados_release_write_op": [p], "rados_release_read_op": [p],
        "rados_write_op_create": [p, c_int, s], "rados_write_op_write": [p, s, n, o],
        "rados_write_op_write_full": [p, s, n], "rados_write_op_append": [p, s, n],
        "rados_write_op_writesame": [p, s, n, n, o], "rados_write_op_truncate": [p, o],
        "rados_write_op_zero": [p, o, o], "rados_write_op_remove": [p], "rados_write_op_assert_exists": [p],
        "rados_write_op_setxattr": [p, s, s, n], "rados_write_op_rmxattr": [p, s],
        "rados_write_op_cmpxattr": [p, s, c_ubyte, s, n], "rados_write_op_cmpext": [p, s, n, o, p],
        "rados_write_op_omap_cmp": [p, s, c_ubyte, s, n, p], "rados_write_op_exec": [p, s, s, s, n, p],
        "rados_write_op_omap_set": [p, POINTER(s), POINTER(s), POINTER(n), n],
        "rados_write_op_omap_rm_keys": [p, POINTER(s), n], "rados_write_op_omap_clear": [p],
        "rados_read_op_read": [p, o, n, p, POINTER(n), POINTER(c_int)],
        "rados_read_op_stat": [p, POINTER(o), p, POINTER(c_int)],
        "rados_read_op_getxattrs": [p, POINTER(p), POINTER(c_int)],
        "rados_read_op_omap_get_vals2": [p, s, s, o, POINTER(p), POINTER(c_ubyte), POINTER(c_int)],
        "rados_read_op_exec_user_buf": [p, s, s, s, n, p, n, POINTER(n), POINTER(c_int)],
        "rados_getxattrs_next": [p, POINTER(p), POINTER(p), POINTER(n)], "rados_getxattrs_end": [p],
        "rados_omap_get_next": [p, POINTER(p), POINTER(p), POINTER(n)], "rados_omap_get_end": [p],
    }
    for name, types in arguments.items():
        getattr(lib, name).argtypes = types
    for name in ("rados_create_write_op", "rados_create_read_op"):
        getattr(lib, name).restype = p
    lib.rados_aio_get_version.restype = o
    return lib


def ok(result):
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def encoded(*strings):
    return b"".join(len(s).to_bytes(4, "little") + s for s in strings)


def shortened(argument):
    """An argument as a failing run shows it."""
    if isinstance(argument, dict):
        argument = sorted(argument)
    return f"{len(argument)} bytes" if isinstance(argument, bytes) and len(argument) > 24 else str(argument)


# --- what writes do ---

def size_of_write(rng):
    return rng.choice([1, 7, 100, 511, 512, 4095, 4096, 4097, 5000, 8192, 20_000, 65_536, 65_537, rng.randrange(1, 400_000)])


def some_bytes(rng, length):
    return (rng.randbytes(16) * (length // 16 + 1))[:length]


def place(rng, state):
    """Where a write begins: mostly within the object, sometimes behind its end."""
    size = len(state.data) if state else 0
    at = rng.choice([0, size, rng.randrange(size + 1), rng.randrange(size + 1) // 4096 * 4096, size + rng.randrange(10_000)])
    return min(at, LARGEST - 500_000)


def put(data, at, piece):
    data = data + bytes(max(0, at - len(data)))
    return data[:at] + piece + data[at + len(piece):]


def text_of(number):
    return str(number).encode()


class Write:
    """A request that writes, for an object in a state: what it consists of, its result, and the state after it."""

    def __init__(self, rng, state, model):
        self.steps, self.code = [], 0
        self.before, self.state = state, state
        kind = rng.choices(
            ["data", "attrs", "rows", "mixed", "guarded", "call", "rollback", "copy", "remove", "create", "fails"],
            [30, 8, 8, 12, 12, 10, 7, 5, 2, 2, 4])[0]
        self.kind = kind
        if kind in ("guarded", "fails") and state is None:
            kind = "create"
        if kind == "rollback" and not model.snaps:
            kind = "data"
        getattr(self, kind)(rng, model)
        if self.code < 0:
            self.state = state

    def step(self, name, *args):
        self.steps.append((name, *args))

    @property
    def changes(self):
        return self.state is not self.before

    def now(self):
        return self.state or State(b"", {}, {})

    def data(self, rng, model):
        state, how = self.now(), rng.choice(["write", "write", "append", "append", "full", "same", "truncate", "zero"])
        size = size_of_write(rng)
        if how in ("truncate", "zero") and not state.data or how == "append" and len(state.data) + size > LARGEST:
            how = "full"
        if how == "write":
            at, piece = place(rng, self.state), some_bytes(rng, size)
            self.step("write", piece, len(piece), at)
            data = put(state.data, at, piece)
        elif how == "append":
            piece = some_bytes(rng, size)
            self.step("append", piece, len(piece))
            data = state.data + piece
        elif how == "full":
            data = some_bytes(rng, size)
            self.step("write_full", data, len(data))
        elif how == "same":
            piece, times, at = some_bytes(rng, rng.choice([1, 5, 64, 512])), rng.randrange(1, 200), place(rng, self.state)
            self.step("writesame", piece, len(piece), len(piece) * times, at)
            data = put(state.data, at, piece * times)
        elif how == "truncate":
            at = rng.choice([0, rng.randrange(len(state.data) + 1), min(len(state.data) + rng.randrange(1, 9000), LARGEST)])
            self.step("truncate", at)
            data = (state.data + bytes(max(0, at - len(state.data))))[:at]
        else:
            at = rng.randrange(len(state.data))
            length = rng.randrange(1, len(state.data) - at + 1)
            self.step("zero", at, length)
            # Zeros up to the end cut it off.
            data = put(state.data, at, bytes(length)) if at + length < len(state.data) else state.data[:at]
        self.state = State(data, state.xattrs, state.omap)

    def attrs(self, rng, model):
        state = self.now()
        xattrs, ours = dict(state.xattrs), [n for n in state.xattrs if n != AMPLIFIED]
        if ours and rng.random() < 0.2:
            name = rng.choice(ours)
            self.step("rmxattr", name)
            del xattrs[name]
        else:
            name, value = b"x" + text_of(rng.randrange(4)), some_bytes(rng, rng.randrange(1, 60))
            self.step("setxattr", name, value, len(value))
            xattrs[name] = value
        self.state = State(state.data, xattrs, state.omap)

    def rows(self, rng, model):
        state = self.now()
        omap, how = dict(state.omap), rng.random()
        if self.state and how < 0.05:
            self.step("omap_clear")
            omap = {}
        elif state.omap and how < 0.25:
            name = rng.choice(sorted(state.omap))
            self.step("omap_rm_keys", [name])
            del omap[name]
        else:
            new = {b"k" + text_of(rng.randrange(6)): some_bytes(rng, rng.randrange(1, 200)) for _ in range(rng.randrange(1, 4))}
            self.step("omap_set", new)
            omap.update(new)
        # Clearing what is empty changes nothing.
        if omap != state.omap or not self.state:
            self.state = State(state.data, state.xattrs, omap)

    def mixed(self, rng, model):
        for part in rng.sample([self.data, self.attrs, self.rows], rng.randrange(2, 4)):
            part(rng, model)

    def guard(self, rng, holds):
        """A comparison with what is there, or with something else."""
        state, ways = self.before, []
        if state.data:
            ways.append("data")
        names = [n for n in state.xattrs if n != AMPLIFIED]
        ways += ["attr"] * bool(names) + ["row"] * bool(state.omap)
        if not ways:
            self.step("assert_exists")
            return True
        way = rng.choice(ways)
        if way == "data":
            at = rng.randrange(len(state.data))
            piece = state.data[at:at + rng.randrange(1, 6000)]
            if not holds:
                wrong = rng.randrange(len(piece))
                piece = piece[:wrong] + bytes([piece[wrong] ^ 1]) + piece[wrong + 1:]
                self.code = NOT_EQUAL - wrong
            self.step("cmpext", piece, len(piece), at, None)
        elif way == "attr":
            name = rng.choice(sorted(names))
            value = state.xattrs[name] + (b"" if holds else b"?")
            self.step("cmpxattr", name, EQUAL, value, len(value))
        else:
            name = rng.choice(sorted(state.omap))
            value = state.omap[name] + (b"" if holds else b"?")
            self.step("omap_cmp", name, EQUAL, value, len(value), None)
        if not holds and way != "data":
            self.code = ECANCELED
        return holds

    def guarded(self, rng, model):
        if self.guard(rng, rng.random() < 0.8):
            rng.choice([self.data, self.attrs, self.rows])(rng, model)
        else:
            self.step("setxattr", b"never", b"x", 1)

    def fails(self, rng, model):
        self.step("create", 1, None)
        self.code = EEXIST

    def create(self, rng, model):
        self.step("create", 0, None)
        self.state = self.state or State(b"", {}, {})

    def remove(self, rng, model):
        self.step("remove")
        self.code = 0 if self.state else ENOENT
        self.state = None

    def rollback(self, rng, model):
        snap = rng.choice(model.snaps)
        self.step("rollback", snap)
        self.state = model.at_snap[snap][model.object]
        if self.state is None and self.before is None:
            # Both answers can be found; the model leaves it out.
            self.steps, self.state = [], self.before
            self.data(rng, model)

    def copy(self, rng, model):
        source = rng.choice(sorted(model.sources))
        self.step("copy_from", source)
        self.state = model.sources[source]

    def call(self, rng, model):
        state = self.now()
        if self.state and rng.random() < 0.5:
            self.step("exec", b"hello", b"turn_it_to_11", b"", 0, None)
            self.state = State(state.data[:GREETING].upper(), {**state.xattrs, AMPLIFIED: None}, state.omap)
            return
        number = rng.randrange(1, 1000)
        given = encoded(b"sum", text_of(number))
        self.step("exec", b"numops", b"add", given, len(given), None)
        self.state = State(state.data, state.xattrs, {**state.omap, b"sum": text_of(int(state.omap.get(b"sum", b"0")) + number)})


class Request:
    """One that is under way or answered."""

    def __init__(self, model, name, text):
        self.name, self.text = name, text
        self.sent = model.tick()
        # The state of the object when it executes in order; how many writes are answered.
        self.position = len(model.states[name]) - 1
        self.answered_then = model.answered[name]
        self.done = self.code = self.version = self.sent_then = None
        self.write = self.read = None
        self.completion = c_void_p()
        self.keep = []

    def __repr__(self):
        return f"{self.text} (sent {self.sent}, answered {self.done}, result {self.code}, version {self.version})"


class Read:
    """What a read asks for, and its buffers."""

    def __init__(self, lib, rng, flags, snap, whole=False):
        self.lib, self.flags, self.snap = lib, flags, snap
        self.offset = 0 if whole or rng.random() < 0.5 else rng.randrange(100_000)
        self.length = LARGEST + 600_000 if whole else rng.choice([1, 100, 4096, 10_000, 700_000])
        self.buffer = ctypes.create_string_buffer(self.length)
        self.got, self.size, self.greeting_got = c_size_t(), c_uint64(), c_size_t()
        self.results = (c_int * 5)()
        self.xattrs = self.rows = self.greeting = None
        self.more = c_ubyte()
        self.wants_xattrs, self.wants_rows = whole or rng.random() < 0.4, whole or rng.random() < 0.4
        self.wants_class = not whole and rng.random() < 0.2

    def prepare(self, op):
        lib, result = self.lib, lambda n: ctypes.cast(byref(self.results, 4 * n), POINTER(c_int))
        lib.rados_read_op_stat(op, byref(self.size), None, result(0))
        lib.rados_read_op_read(op, self.offset, self.length, self.buffer, byref(self.got), result(1))
        if self.wants_xattrs:
            self.xattrs = c_void_p()
            lib.rados_read_op_getxattrs(op, byref(self.xattrs), result(2))
        if self.wants_rows:
            self.rows = c_void_p()
            lib.rados_read_op_omap_get_vals2(op, b"", b"", 1000, byref(self.rows), byref(self.more), result(3))
        if self.wants_class:
            self.greeting = ctypes.create_string_buffer(GREETING)
            lib.rados_read_op_exec_user_buf(op, b"hello", b"replay", b"", 0, self.greeting, GREETING,
                                            byref(self.greeting_got), result(4))

    def pairs(self, iterator, following, end, code):
        """The pairs of an iterator, which is given back."""
        found, name, value, length = {}, c_void_p(), c_void_p(), c_size_t()
        while code >= 0:
            ok(following(iterator, byref(name), byref(value), byref(length)))
            if not name.value:
                break
            found[ctypes.string_at(name)] = ctypes.string_at(value, length.value)
        end(iterator)
        return found

    def take(self, code):
        """Takes what was read out of the library."""
        lib = self.lib
        self.data = ctypes.string_at(self.buffer, self.got.value) if code >= 0 else None
        self.buffer = None
        if self.xattrs:
            self.xattrs = self.pairs(self.xattrs, lib.rados_getxattrs_next, lib.rados_getxattrs_end, code)
            if AMPLIFIED in self.xattrs:
                self.xattrs[AMPLIFIED] = None
        if self.rows:
            self.rows = self.pairs(self.rows, lib.rados_omap_get_next, lib.rados_omap_get_end, code)

    def differs(self, code, state):
        """How the answer differs from what a state would give; nothing if it does not."""
        if state is None:
            return None if code == ENOENT else f"result {code} of an object that does not exist"
        if code < 0:
            return f"result {code}"
        if self.size.value != len(state.data):
            return f"size {self.size.value}, not {len(state.data)}"
        wanted = state.data[self.offset:self.offset + self.length]
        if self.data != wanted:
            at = next((n for n, (a, b) in enumerate(zip(self.data, wanted)) if a != b), min(len(self.data), len(wanted)))
            return (f"{len(self.data)} bytes, not {len(wanted)}, that differ from byte {self.offset + at} on: "
                    f"{self.data[at:at + 16].hex()}, not {wanted[at:at + 16].hex()}")
        if self.wants_xattrs and self.xattrs != state.xattrs:
            return f"attributes {self.xattrs}, not {state.xattrs}"
        if self.wants_rows and self.rows != state.omap:
            return f"rows {self.rows}, not {state.omap}"
        if self.wants_class and self.greeting.raw[:self.greeting_got.value] != state.data[:GREETING]:
            return "the class reads something else"
        return None


class Wrong(Exception):
    """An answer that the model does not allow, or none."""


class Model:
    """One seed: its objects, their states, and the client."""

    OBJECTS = ("a", "b", "c", "d")

    def __init__(self, client, pool, seed, options):
        self.client, self.lib, self.options = client, client.lib, options
        self.rng = random.Random(seed)
        # Of its own: a run before this one may have left its objects there.
        namespace = f"seed-{seed}-{uuid.uuid4().hex[:8]}"
        self.io, self.snap_io = client.open(pool, namespace), client.open(pool, namespace)
        self.clock, self.lock = 0, threading.Lock()
        self.requests, self.left, self.idle = [], 0, threading.Condition()
        # Before any request: the states of each object, and the version of each that is known.
        self.states = {n: [None] for n in self.OBJECTS}
        self.versions = {n: [None] for n in self.OBJECTS}
        self.answered = dict.fromkeys(self.OBJECTS, 0)
        self.sources, self.snaps, self.at_snap, self.object = {}, [], {}, None
        # For each snapshot that was taken since all was answered: the number of each object's state.
        self.snap_position = {}
        # Kept as long as the library may call it.
        self.call = DONE(self.on_done)

    def tick(self):
        with self.lock:
            self.clock += 1
            return self.clock

    # --- sending ---

    def send(self, request, submit):
        number = len(self.requests)
        self.requests.append(request)
        with self.idle:
            self.left += 1
        ok(self.lib.rados_aio_create_completion2(number + 1, self.call, byref(request.completion)))
        ok(submit(request.completion))

    def on_done(self, completion, number):
        r = self.requests[number - 1]
        r.code = self.lib.rados_aio_get_return_value(completion)
        r.version = self.lib.rados_aio_get_version(completion)
        r.sent_then = len(self.states[r.name]) - 1
        r.done = self.tick()
        if r.write and r.write.changes:
            self.answered[r.name] = max(r.position + 1, self.answered[r.name])
        with self.idle:
            self.left -= 1
            self.idle.notify_all()

    def send_write(self, name, write):
        lib = self.lib
        op = lib.rados_create_write_op()
        shown = ", ".join(" ".join(shortened(a) for a in s) for s in write.steps)
        request = Request(self, name, f"{name}: {write.kind} [{shown}] snapshots {self.snaps}")
        for step, *args in write.steps:
            if step == "rollback":
                lib.rollback(byref(CppOperation(None, op)), args[0])
            elif step == "copy_from":
                source = args[0].encode()
                io = c_void_p(self.io.value)
                lib.copy_from(byref(CppOperation(None, op)), byref(CppString(source, len(source))), byref(io), 0, 0)
            elif step == "omap_set":
                keys, values = list(args[0]), list(args[0].values())
                n = len(keys)
                lib.rados_write_op_omap_set(op, (c_char_p * n)(*keys), (c_char_p * n)(*values), (c_size_t * n)(*map(len, values)), n)
            elif step == "omap_rm_keys":
                lib.rados_write_op_omap_rm_keys(op, (c_char_p * len(args[0]))(*args[0]), len(args[0]))
            else:
                getattr(lib, "rados_write_op_" + step)(op, *args)
        request.write = write
        self.states[name].append(write.state)
        self.versions[name].append(None)
        self.send(request, lambda c: lib.rados_aio_write_op_operate(op, self.io, c, name.encode(), None, 0))
        lib.rados_release_write_op(op)

    def send_read(self, name, flags, snap=HEAD, whole=False):
        lib = self.lib
        op = lib.rados_create_read_op()
        read = Read(lib, self.rng, flags, snap, whole)
        read.prepare(op)
        where = "head" if snap == HEAD else f"snapshot {snap}"
        request = Request(self, name, f"{name}: read {read.offset}~{read.length} of {where}, flags {flags}")
        request.read = read
        io = self.io if snap == HEAD else self.snap_io
        if snap != HEAD:
            lib.rados_ioctx_snap_set_read(io, snap)
        self.send(request, lambda c: lib.rados_aio_read_op_operate(op, io, c, name.encode(), flags))
        request.keep.append(op)

    def send_any(self):
        rng = self.rng
        name = rng.choice(self.OBJECTS[:rng.choice([1, 2, len(self.OBJECTS)])])
        if rng.random() < 0.6:
            self.object = name
            return self.send_write(name, Write(rng, self.states[name][-1], self))
        # A replica of a stock cluster (16.2.15) crashes of a balanced read that is ordered.
        both = BALANCE if self.options.stock else BALANCE | ORDERED
        flags = rng.choice([0, ORDERED, ORDERED, BALANCE, BALANCE, both])
        if self.snaps and rng.random() < 0.25:
            return self.send_read(name, flags, rng.choice(self.snaps))
        self.send_read(name, flags)

    # --- snapshots ---

    def use_snaps(self):
        newest_first = sorted(self.snaps, reverse=True)
        seq = max([*self.at_snap, 0])
        array = (c_uint64 * max(1, len(newest_first)))(*newest_first)
        ok(self.lib.rados_ioctx_selfmanaged_snap_set_write_ctx(self.io, seq, array, len(newest_first)))

    def take_snap(self):
        snap = c_uint64()
        ok(self.lib.rados_ioctx_selfmanaged_snap_create(self.io, byref(snap)))
        self.snaps.append(snap.value)
        self.at_snap[snap.value] = {n: states[-1] for n, states in self.states.items()}
        self.snap_position[snap.value] = {n: len(states) - 1 for n, states in self.states.items()}
        self.use_snaps()

    def remove_snap(self):
        snap = self.snaps.pop(self.rng.randrange(len(self.snaps)))
        self.use_snaps()
        ok(self.lib.rados_ioctx_selfmanaged_snap_remove(self.io, snap))

    # --- checking ---

    def settle(self):
        """Waits for all answers and checks them."""
        deadline = time.monotonic() + self.options.patience
        with self.idle:
            while self.left:
                if not self.idle.wait(max(0.0, deadline - time.monotonic())) and self.left:
                    waiting = [r for r in self.requests if r.done is None]
                    raise Wrong(f"no answer for {self.options.patience} s: {waiting}\n{self.client.waits()}")
        for r in self.requests:
            if r.read:
                r.read.take(r.code)
        self.check_writes()
        self.check_order()
        self.check_reads()
        for r in self.requests:
            self.lib.rados_aio_release(r.completion)
            for op in r.keep:
                self.lib.rados_release_read_op(op)
        self.requests.clear()
        self.snap_position.clear()
        for name in self.OBJECTS:
            del self.states[name][:-1], self.versions[name][:-1]
            self.answered[name] = 0

    def check_writes(self):
        last = {}
        for r in self.requests:
            if not r.write:
                continue
            if r.code != r.write.code:
                raise Wrong(f"{r}: the result is not {r.write.code}")
            versions = self.versions[r.name]
            if not r.write.changes:
                # One that succeeds may have written what was there.
                versions[r.position + 1] = versions[r.position] if r.code < 0 else None
                continue
            before = last.get(r.name, versions[0] or 0)
            if r.version <= before and "copy_from" not in (s[0] for s in r.write.steps):
                raise Wrong(f"{r}: an earlier write has version {before}")
            last[r.name] = versions[r.position + 1] = r.version

    def check_order(self):
        for name in self.OBJECTS:
            last = None
            for r in self.requests:
                if r.name != name or r.read and r.read.flags != ORDERED:
                    continue
                if self.options.stock and (r.read and r.read.snap != HEAD or r.write and not r.write.changes):
                    continue
                if last and r.done < last.done:
                    raise Wrong(f"{r}\n  was answered before\n{last}")
                last = r

    def candidates(self, r):
        """The states of the head that an answer may show, by their numbers."""
        away = self.options.down or self.options.away
        if r.read.flags & BALANCE or away and not r.read.flags & ORDERED:
            return range(r.answered_then, r.sent_then + 1)
        return range(r.position, r.sent_then + 1 if away else r.position + 1)

    def check_reads(self):
        # Reads of heads that had their answers: when, and the oldest state that it may have been.
        seen = []
        for r in sorted((r for r in self.requests if r.read), key=lambda r: r.done):
            read, states = r.read, self.states[r.name]
            if read.snap != HEAD:
                different = read.differs(r.code, self.at_snap[read.snap][r.name])
                last = self.snap_position.get(read.snap, {}).get(r.name, 0)
                # What was sent before the snapshot was taken need not be done yet for a read that is not ordered.
                away = self.options.down or self.options.away
                overtakes = read.flags & BALANCE or self.options.stock or away and not read.flags & ORDERED
                early = range(r.answered_then, last) if overtakes else ()
                if different and all(read.differs(r.code, states[n]) for n in early):
                    raise Wrong(f"{r}: {different}")
                continue
            shown = [n for n in self.candidates(r) if not read.differs(r.code, states[n])]
            if not shown:
                raise Wrong(f"{r}: none of the states that it may show: "
                            + "; ".join(f"{n}: {read.differs(r.code, states[n])}" for n in self.candidates(r)))
            oldest = max([n for name, done, n in seen if name == r.name and done < r.sent], default=0)
            if shown[-1] < oldest:
                raise Wrong(f"{r}: shows state {shown}, and a read before it showed {oldest}")
            versions = {self.versions[r.name][n] for n in shown if n >= oldest}
            if r.code >= 0 and None not in versions and r.version not in versions:
                raise Wrong(f"{r}: the version is not one of {versions}")
            seen.append((r.name, r.done, next(n for n in shown if n >= oldest)))

    # --- a run ---

    def run(self):
        rng = self.rng
        for n in range(2):
            name = f"source-{n}"
            self.states[name], self.versions[name], self.answered[name] = [None], [None], 0
            write = Write.__new__(Write)
            write.steps, write.code, write.before, write.state, write.kind = [], 0, None, None, "source"
            write.mixed(rng, self)
            self.send_write(name, write)
            self.sources[name] = write.state
        self.settle()
        for burst in range(self.options.bursts):
            count = rng.choice([5, 40, 120, 200])
            snap_at = rng.randrange(count) if rng.random() < 0.7 else None
            downs = {rng.randrange(count) for _ in range(2)} if self.options.down else ()
            for n in range(count):
                if n == snap_at:
                    self.take_snap()
                if n in downs:
                    self.client.down(rng)
                self.send_any()
            self.settle()
            if len(self.snaps) > 3:
                self.remove_snap()
        for name in self.OBJECTS:
            for snap in (HEAD, *self.snaps):
                self.send_read(name, ORDERED, snap, whole=True)
        self.settle()

    def close(self):
        self.lib.rados_ioctx_destroy(self.io)
        self.lib.rados_ioctx_destroy(self.snap_io)


class Client:
    def __init__(self, conf):
        self.lib, self.conf = library(), conf
        self.directory = tempfile.TemporaryDirectory(prefix="siphon-aio.")
        self.cluster = c_void_p()
        ok(self.lib.rados_create(byref(self.cluster), None))
        ok(self.lib.rados_conf_read_file(self.cluster, conf.encode()))
        settings = {"client_mount_timeout": "60", "admin_socket": f"{self.directory.name}/client.asok",
                    "rados_mon_op_timeout": "60"}
        for name, value in settings.items():
            ok(self.lib.rados_conf_set(self.cluster, name.encode(), value.encode()))
        ok(self.lib.rados_connect(self.cluster))
        self.admin = rados.Rados(conffile=conf, conf={"rados_mon_op_timeout": "60", "client_mount_timeout": "60"})
        self.admin.connect(timeout=60)

    def command(self, **command):
        code, out, text = self.admin.mon_command(json.dumps({"format": "json", **command}), b"")
        if code:
            raise Wrong(f"{command}: {code} {text}")
        return json.loads(out or b"{}")

    def open(self, pool, namespace):
        io = c_void_p()
        ok(self.lib.rados_ioctx_create(self.cluster, pool.encode(), byref(io)))
        self.lib.rados_ioctx_set_namespace(io, namespace.encode())
        return io

    def down(self, rng):
        """Marks an OSD down; it comes back by itself. Never so that a PG would wait for another one."""
        osds = self.command(prefix="osd dump")["osds"]
        if all(o["up"] for o in osds):
            self.command(prefix="osd down", ids=[str(rng.choice(osds)["osd"])])

    def waits(self):
        """What the client and the OSDs say of what is under way."""
        said = [f"client: {json.dumps(requests_of(self.directory.name))}"]
        for osd in self.command(prefix="osd dump")["osds"]:
            for prefix in ("dump_ops_in_flight", "objecter_requests", "list_pgs"):
                try:
                    code, out, text = self.admin.osd_command(osd["osd"], json.dumps({"prefix": prefix, "format": "json"}), b"", timeout=10)
                    said.append(f"osd.{osd['osd']} {prefix}: {code} {text} {out.decode(errors='replace')}")
                except Exception as e:
                    said.append(f"osd.{osd['osd']} {prefix}: {e}")
        return "\n".join(said)

    def close(self):
        self.lib.rados_shutdown(self.cluster)
        self.admin.shutdown()
        self.directory.cleanup()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conf", required=True)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--bursts", type=int, default=5)
    parser.add_argument("--stock", action="store_true", help="the cluster is a stock one")
    parser.add_argument("--down", action="store_true", help="mark OSDs down meanwhile")
    parser.add_argument("--away", action="store_true", help="something else takes OSDs away meanwhile")
    parser.add_argument("--patience", type=int, default=120, help="seconds after which an answer is missed")
    options = parser.parse_args()
    client = Client(options.conf)
    for seed in range(options.seed, options.seed + options.seeds):
        model = Model(client, options.pool, seed, options)
        try:
            model.run()
        except Wrong as e:
            print(f"seed {seed}: {e}\n\nThe requests of this burst, as they were sent:", flush=True)
            for r in model.requests:
                print(f"  {r}", flush=True)
            # Not through the library's end: it would wait for what has no answer.
            os._exit(1)
        print(f"seed {seed}: {model.clock // 2} requests", flush=True)
        model.close()
    client.close()


if __name__ == "__main__":
    sys.exit(main())
