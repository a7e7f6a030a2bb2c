"""Watches and notifications through librados' C interface, whose answers the Python binding hides.

As a program it is a watcher that a test can stop and kill: it prints what it hears, a JSON object a line, and
does what its input says (`check`, `unwatch`); it ends with its input.
"""
import ctypes
import json
import os
import struct
import sys
import threading
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

OPTIONS = {"rados_osd_op_timeout": "60", "rados_mon_op_timeout": "60", "client_mount_timeout": "60",
           # How often watchers ping.
           "objecter_tick_interval": "1"}

NOTIFIED = ctypes.CFUNCTYPE(None, c_void_p, c_uint64, c_uint64, c_uint64, c_void_p, c_size_t)
FAILED = ctypes.CFUNCTYPE(None, c_void_p, c_uint64, c_int)


def library():
    lib = ctypes.CDLL("librados.so.2")
    lib.rados_get_instance_id.restype = c_uint64
    lib.rados_notify2.argtypes = [c_void_p, c_char_p, c_char_p, c_int, c_uint64, POINTER(c_void_p), POINTER(c_size_t)]
    lib.rados_notify_ack.argtypes = [c_void_p, c_char_p, c_uint64, c_uint64, c_char_p, c_int]
    lib.rados_watch3.argtypes = [c_void_p, c_char_p, POINTER(c_uint64), NOTIFIED, FAILED, c_uint32, c_void_p]
    for one in ("unwatch2", "watch_check"):
        getattr(lib, "rados_" + one).argtypes = [c_void_p, c_uint64]
    for one in ("buffer_free", "ioctx_destroy", "shutdown", "watch_flush", "get_instance_id"):
        getattr(lib, "rados_" + one).argtypes = [c_void_p]
    lib.rados_write_full.argtypes = [c_void_p, c_char_p, c_char_p, c_size_t]
    lib.rados_remove.argtypes = [c_void_p, c_char_p]
    lib.rados_ioctx_set_namespace.argtypes = [c_void_p, c_char_p]
    return lib


class Failed(Exception):
    """What the library returned, and what a notification gathered all the same."""

    def __init__(self, errno, replies=(), missed=()):
        super().__init__(os.strerror(errno))
        self.errno, self.replies, self.missed = errno, replies, missed


def ok(result):
    if result < 0:
        raise Failed(-result)
    return result


def parse(raw):
    """The answers to a notification: {(client, cookie): reply}, and the watches that did not answer."""
    at = 0

    def take(form):
        nonlocal at
        values = struct.unpack_from(form, raw, at)
        at += struct.calcsize(form)
        return values
    replies, missed = {}, []
    for _ in range(take("<I")[0]):
        gid, cookie, length = take("<QQI")
        replies[gid, cookie] = raw[at:at + length]
        at += length
    for _ in range(take("<I")[0]):
        missed.append(take("<QQ"))
    assert at == len(raw)
    return replies, missed


class Watch:
    """A watch. `answer` gives the reply to a notification, or None to leave it without one."""

    def __init__(self, io, name, answer=lambda data: b"", timeout=0, heard=lambda **_: None):
        self.io, self.lib, self.name, self.answer = io, io.lib, name.encode(), answer
        self.notified, self.errors, self.changed = [], [], threading.Condition()
        self.heard = heard
        # Kept as long as the library may call them.
        self.calls = NOTIFIED(self.on_notify), FAILED(self.on_error)
        cookie = c_uint64()
        ok(self.lib.rados_watch3(io.io, self.name, byref(cookie), *self.calls, timeout, None))
        self.cookie = cookie.value

    def on_notify(self, _, notify_id, cookie, notifier, data, length):
        data = ctypes.string_at(data, length)
        with self.changed:
            self.notified.append((notify_id, notifier, data))
            self.changed.notify_all()
        self.heard(event="notify", cookie=cookie, notifier=notifier, data=data.decode(errors="replace"))
        reply = self.answer(data)
        if reply is not None:
            self.lib.rados_notify_ack(self.io.io, self.name, notify_id, cookie, reply, len(reply))

    def on_error(self, _, cookie, err):
        with self.changed:
            self.errors.append(-err)
            self.changed.notify_all()
        self.heard(event="error", cookie=cookie, errno=-err)

    def wait(self, condition, timeout=30):
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self), timeout), (self.notified, self.errors)

    def check(self):
        """Milliseconds since the watch was known to be good."""
        return ok(self.lib.rados_watch_check(self.io.io, self.cookie))

    def unwatch(self):
        ok(self.lib.rados_unwatch2(self.io.io, self.cookie))


class Io:
    """A handle of a pool."""

    def __init__(self, client, pool, namespace=""):
        self.lib, self.io = client.lib, c_void_p()
        ok(self.lib.rados_ioctx_create(client.cluster, pool.encode(), byref(self.io)))
        if namespace:
            self.lib.rados_ioctx_set_namespace(self.io, namespace.encode())

    def close(self):
        self.lib.rados_ioctx_destroy(self.io)

    def put(self, name, data=b"x"):
        ok(self.lib.rados_write_full(self.io, name.encode(), data, len(data)))

    def remove(self, name):
        ok(self.lib.rados_remove(self.io, name.encode()))

    def watch(self, name, **kw):
        return Watch(self, name, **kw)

    def notify(self, name, data=b"", timeout=10):
        reply, length = c_void_p(), c_size_t()
        result = self.lib.rados_notify2(self.io, name.encode(), data, len(data), timeout * 1000,
                                        byref(reply), byref(length))
        raw = ctypes.string_at(reply, length.value) if reply.value else b""
        if reply.value:
            self.lib.rados_buffer_free(reply)
        answers = parse(raw) if raw else ({}, [])
        if result < 0:
            raise Failed(-result, *answers)
        return answers


class Client:
    """A connection to the cluster."""

    def __init__(self, conf, mode="crc", name="client.admin", keyring=None):
        self.lib, self.cluster = library(), c_void_p()
        ok(self.lib.rados_create2(byref(self.cluster), b"ceph", name.encode(), c_uint64(0)))
        ok(self.lib.rados_conf_read_file(self.cluster, str(conf).encode()))
        options = {**OPTIONS, "ms_client_mode": mode, "ms_mon_client_mode": mode}
        if keyring:
            options["keyring"] = str(keyring)
        for option, value in options.items():
            ok(self.lib.rados_conf_set(self.cluster, option.encode(), value.encode()))
        ok(self.lib.rados_connect(self.cluster))
        self.id = self.lib.rados_get_instance_id(self.cluster)

    def io(self, pool, namespace=""):
        return Io(self, pool, namespace)

    def close(self):
        self.lib.rados_watch_flush(self.cluster)
        self.lib.rados_shutdown(self.cluster)


def main(conf, mode, pool, name, timeout, reply):
    def say(**what):
        print(json.dumps(what), flush=True)
    client = Client(conf, mode)
    io = client.io(pool)
    answer = (lambda data: reply.encode()) if reply else (lambda data: None)
    watch = io.watch(name, answer=answer, timeout=int(timeout), heard=say)
    say(event="ready", client=client.id, cookie=watch.cookie)
    for line in sys.stdin:
        try:
            say(event=line.strip(), result=getattr(watch, line.strip())())
        except Failed as e:
            say(event=line.strip(), errno=e.errno)
    io.close()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
