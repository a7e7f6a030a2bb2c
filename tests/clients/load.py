"""Clients that know what they must read: each object has one writer, which does one change after the other, so its
states have an order. A read that began after a change was acknowledged, or after another read had seen it, must see
it, too. A change whose outcome is unknown may have happened or not; its object is left alone from then on.
"""
import hashlib
import json
import random
import struct
import threading
import time
import traceback
import zlib

import rados
import rbd

KIB = 1 << 10


class Violation(AssertionError):
    """A client read what it must not read."""


class History:
    """The states of one thing; the last may not have come about yet."""
    # Whether a read may see less than was settled when it began, while something is broken; and how many did.
    stale_allowed = False
    stale = 0

    def __init__(self, name, first=None):
        self.name = name
        self.lock = threading.Lock()
        self.states = {0: first}      # number -> state; those that nobody may see any more are forgotten
        self.old = {}                 # of what was forgotten: fingerprint -> number
        self.last, self.settled = 0, 0
        self.reading = []             # what was settled when each read under way began
        self.changes = []             # how each state came about, for the report

    @property
    def now(self):
        """The last state; only its writer knows that it asks for."""
        return self.states[self.last]

    def begin(self, state, how=None):
        with self.lock:
            self.changes.append((round(time.monotonic() % 10000, 2), how))
            self.last += 1
            self.states[self.last] = state

    def acked(self):
        with self.lock:
            self.settle(self.last)

    def settle(self, number):
        self.settled = max(self.settled, number)
        for n in [n for n in self.states if n < min(self.reading, default=self.settled)]:
            gone = self.states.pop(n)
            for p in gone if isinstance(gone, tuple) else (gone,):
                self.old[fingerprint(p)] = n

    def read(self):
        """A read begins; `seen` must follow."""
        with self.lock:
            self.reading.append(self.settled)
            return self.settled

    def seen(self, floor, value, view=lambda state: state, how=""):
        """The read that began when `floor` was settled gave this view of a state."""
        with self.lock:
            self.reading.remove(floor)
            match = next((n for n, state in sorted(self.states.items()) if n >= floor and view(state) == value), None)
            if match is not None:
                # The earliest that it can be is settled: who reads from now on must not see less.
                self.settle(match)
                return
            stale = self.old.get(fingerprint(value))
            if stale is None:
                stale = next((n for n, state in self.states.items() if n < floor and view(state) == value), None)
            if stale is not None and History.stale_allowed:
                History.stale += 1
                return
            expected = [describe(view(s)) + differences(value, view(s)) for n, s in sorted(self.states.items()) if n >= floor]
            last = self.last
        age = f", its state number {stale}" if stale is not None else ""
        raise Violation(f"{self.name}{how}: read {describe(value)}{age}; number {floor} was settled, {last} the last: {expected}; "
                        f"changed by {self.changes[-12:]}; {time.monotonic() % 10000:.2f} now")


def fingerprint(value):
    return hashlib.sha256(value if isinstance(value, bytes) else repr(value).encode()).digest()


def describe(value):
    if isinstance(value, bytes):
        return f"{len(value)} bytes, crc {zlib.crc32(value):08x}, {value[:8].hex()}"
    if isinstance(value, tuple):
        return "(" + ", ".join(describe(v) for v in value) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {describe(v)}" for k, v in sorted(value.items())) + "}"
    return repr(value)


def differences(value, other):
    """Where they differ."""
    if not isinstance(value, bytes) or not isinstance(other, bytes):
        return ""
    ranges = []
    for i in (i for i in range(max(len(value), len(other))) if value[i:i + 1] != other[i:i + 1]):
        if ranges and i <= ranges[-1][1] + 8:
            ranges[-1][1] = i + 1
        else:
            ranges.append([i, i + 1])
    zero = [not any(value[a:b]) for a, b in ranges]
    return f", differs in {ranges[:10]}, zero there: {zero[:10]}"


class Load:
    """Threads that work until they are stopped. The first that goes wrong is remembered."""

    def __init__(self, seed):
        self.seed = seed
        self.stopped = threading.Event()
        self.paused = threading.Event()
        self.failure = None
        self.workers = []

    def add(self, worker):
        worker.load = self
        self.workers.append(worker)

    def start(self):
        for w in self.workers:
            w.thread = threading.Thread(target=self.run, args=(w,), daemon=True)
            w.thread.start()

    def run(self, worker):
        try:
            while not self.stopped.is_set():
                if self.paused.is_set():
                    worker.idle.set()
                    self.stopped.wait(0.05)
                    continue
                worker.idle.clear()
                worker.step()
                worker.steps += 1
                worker.doing = None
                # Daemons need the processors, too.
                self.stopped.wait(worker.rng.expovariate(1 / worker.pause))
        except BaseException as e:
            if self.failure is None and not self.stopped.is_set():
                self.failure = f"{worker.name}, doing {worker.doing}: {traceback.format_exc()}"
            if not isinstance(e, Exception):
                raise
        finally:
            worker.idle.set()

    def check(self):
        if self.failure:
            raise Violation(self.failure)

    def done(self):
        """How much each has done."""
        return {w.name: w.steps for w in self.workers}

    def pause(self, timeout=300):
        """Everything under way is answered, and nothing new begins."""
        self.paused.set()
        deadline = time.monotonic() + timeout
        while busy := [f"{w.name}: {w.doing}" for w in self.workers if not w.idle.wait(0.1)]:
            self.check()
            if time.monotonic() > deadline:
                raise Violation(f"for {timeout} s nobody answers {busy}")
        self.check()

    def resume(self):
        for w in self.workers:
            w.idle.clear()
        self.paused.clear()

    def stop(self):
        self.stopped.set()
        for w in self.workers:
            w.thread.join(timeout=30)


class Worker:
    pause = 0.01

    def __init__(self, name, seed):
        self.name = name
        self.rng = random.Random(f"{seed}/{name}")
        self.idle = threading.Event()
        self.steps = 0
        self.doing = None


def read_all(io, name):
    """Data, attributes and omap rows, each with a read of its own; what is asked of each is given by the caller."""
    yield "data", lambda: io.read(name, 1 << 21)
    yield "attributes", lambda: dict(io.get_xattrs(name))
    yield "omap", lambda: omap(io, name)


def omap(io, name):
    with rados.ReadOpCtx() as op:
        rows, _ = io.get_omap_vals(op, "", "", 10000)
        io.operate_read_op(op, name)
        return dict(rows)


def part(index):
    return lambda state: None if state is None else state[index]


def check_object(io, history, parts=(0, 1, 2), how=""):
    for index, (what, read) in enumerate(read_all(io, history.name)):
        if index not in parts:
            continue
        floor = history.read()
        try:
            value = read()
        except rados.ObjectNotFound:
            value = None
        history.seen(floor, value, part(index), f", its {what}{how}")


class Objects(Worker):
    """Writes objects of its own in every way there is, and takes snapshots of them."""

    def __init__(self, name, seed, connect, pool, most=40, snapshots=True, **options):
        super().__init__(name, seed)
        self.io, self.reader = connect(**options).open_ioctx(pool), connect().open_ioctx(pool)
        self.most, self.snapshots = most, snapshots
        self.objects = {}      # name -> History
        self.retired = []      # histories whose last change is unknown
        self.snaps = {}        # snapshot -> {name: state then}

    def step(self):
        r = self.rng.random()
        if self.snapshots and r < 0.004:
            return self.snap()
        if self.snaps and r < 0.007:
            return self.unsnap()
        if len(self.objects) < self.most and (r < 0.1 or not self.objects):
            name = f"{self.name}-{self.steps}"
            h = self.objects[name] = History(name)
        else:
            h = self.objects[self.rng.choice(list(self.objects))]
        self.change(h)

    def change(self, h):
        rng, was = self.rng, h.now
        data, attrs, rows = was or (b"", {}, {})
        attrs, rows = dict(attrs), dict(rows)
        with rados.WriteOpCtx() as op:
            kind = rng.choice(["full", "full", "write", "write", "append", "append", "truncate", "zero", "rows", "rows", "attr", "remove", "back"])
            self.doing = (kind, h.name)
            if was is None and kind in ("truncate", "zero", "remove", "back") or kind == "zero" and len(data) < 2:
                kind = "full"
            if kind == "remove":
                op.remove()
                return self.perform(h, None, kind, lambda: self.io.operate_write_op(op, h.name))
            if kind == "back":
                known = [(s, then) for s, then in self.snaps.items() if then.get(h.name)]
                if known:
                    snap, then = rng.choice(known)
                    return self.perform(h, then[h.name], (kind, snap), lambda: self.io.rollback_self_managed_snap(h.name, snap))
                kind = "full"
            how = [kind]
            if kind == "full":
                data = rng.randbytes(rng.choice([1, 100, 4096, 4096, 8000, 40000, 200000]))
                op.write_full(data)
                how.append(len(data))
            elif kind == "write":
                at, new = rng.randrange(len(data) + 5000), rng.randbytes(rng.choice([1, 512, 4096, 20000]))
                op.write(new, at)
                data = data.ljust(at, b"\0")[:at] + new + data[at + len(new):]
                how += [at, len(new)]
            elif kind == "append":
                new = rng.randbytes(rng.choice([1, 512, 4096]))
                op.append(new)
                data += new
                how.append(len(new))
            elif kind == "truncate":
                to = rng.randrange(len(data) + 1000)
                op.truncate(to)
                data = data[:to].ljust(to, b"\0")
                how.append(to)
            elif kind == "zero":
                # Some versions of the binding confuse the place and the length.
                at = rng.randrange(1, len(data) // 2 + 1)
                op.zero(at, at)
                # Up to the end it is a truncation.
                data = data[:at] + (bytes(at) + data[at + at:] if at + at < len(data) else b"")
                how.append(at)
            if kind in ("attr", "full") or rng.random() < 0.2:
                name, attrs_new = rng.choice("abc"), rng.randbytes(rng.choice([8, 300]))
                op.set_xattr(name, attrs_new)
                attrs[name] = attrs_new
            if kind == "rows" or rng.random() < 0.2:
                if rows and rng.random() < 0.3:
                    gone = rng.sample(sorted(rows), rng.randrange(1, len(rows) + 1))
                    self.io.remove_omap_keys(op, tuple(gone))
                    for key in gone:
                        del rows[key]
                else:
                    new = {f"k{rng.randrange(60)}": rng.randbytes(rng.choice([1, 10, 500])) for _ in range(rng.choice([1, 5, 20]))}
                    self.io.set_omap(op, tuple(new), tuple(new.values()))
                    rows.update(new)
            if len(data) > 1 << 20:
                data = data[:1 << 19]
                op.truncate(1 << 19)
            self.perform(h, (data, attrs, rows), how, lambda: self.io.operate_write_op(op, h.name))

    def perform(self, h, state, how, change):
        h.begin(state, how)
        try:
            change()
        except rados.TimedOut:
            self.retired.append(self.objects.pop(h.name))
            return
        h.acked()

    def snap(self):
        self.doing = "a snapshot"
        snap = self.io.create_self_managed_snap()
        self.io.set_self_managed_snap_write([snap, *self.snaps])
        self.snaps[snap] = {name: h.now for name, h in self.objects.items()}

    def unsnap(self):
        snap = self.rng.choice(list(self.snaps))
        self.doing = ("the end of snapshot", snap)
        del self.snaps[snap]
        self.io.set_self_managed_snap_write(list(self.snaps))
        self.io.remove_self_managed_snap(snap)

    def check_snap(self, snap, name, state):
        self.reader.set_read(snap)
        try:
            for index, (what, read) in enumerate(read_all(self.reader, name)):
                try:
                    value = read()
                except rados.ObjectNotFound:
                    value = None
                if value != part(index)(state):
                    raise Violation(f"{name} at snapshot {snap}, its {what}: read {describe(value)}, not {describe(part(index)(state))}")
        finally:
            self.reader.set_read(rados.LIBRADOS_SNAP_HEAD)

    def verify(self, how=""):
        """All of it; the worker must be paused."""
        for h in [*self.objects.values(), *self.retired]:
            check_object(self.reader, h, how=how)
        for snap, then in self.snaps.items():
            for name, state in then.items():
                self.check_snap(snap, name, state)
        checked = len(self.objects) + len(self.retired) + sum(len(then) for then in self.snaps.values())
        del self.retired[:-60]
        return checked


class Reader(Worker):
    """Reads what others write, meanwhile."""
    pause = 0.005

    def __init__(self, name, seed, connect, pool, writers):
        super().__init__(name, seed)
        self.io = connect().open_ioctx(pool)
        self.writers = writers

    def step(self):
        w = self.rng.choice(self.writers)
        objects = list(w.objects.values())
        if objects:
            h = self.rng.choice(objects)
            self.doing = ("reading", h.name)
            check_object(self.io, h, parts=[self.rng.randrange(3)])

    def verify(self, how=""):
        return 0


def block(image, index, version, size):
    """What stands in a block: each 512 bytes say which and when. Never written is zeroes."""
    if version == 0:
        return bytes(size)
    head = struct.pack("<QQ", index, version) + hashlib.sha256(f"{image}/{index}/{version}".encode()).digest()
    return (head + bytes(512 - len(head))) * (size // 512)


class Image(Worker):
    """Writes and reads its share of an image's blocks."""
    SIZE = 64 << 20

    def __init__(self, name, seed, image, share, of, block_size=8192):
        super().__init__(name, seed)
        self.image, self.size = image, block_size
        chosen = random.Random(seed).sample(range(self.SIZE // block_size), 64 * of)
        self.blocks = {i: History(f"block {i} of {name}", 0) for i in chosen[share::of]}

    def step(self):
        i = self.rng.choice(list(self.blocks))
        if self.rng.random() < 0.4:
            return self.look(i)
        h = self.blocks[i]
        version = 0 if self.rng.random() < 0.1 else h.last + 1
        self.doing = ("block", i)
        h.begin(version)
        if version == 0:
            self.image.discard(i * self.size, self.size)
        else:
            self.image.write(block("image", i, version, self.size), i * self.size)
        h.acked()

    def look(self, i, how=""):
        self.doing = ("reading block", i)
        h = self.blocks[i]
        floor = h.read()
        data = self.image.read(i * self.size, self.size)
        h.seen(floor, data, lambda version: block("image", i, version, self.size), how)

    def verify(self, how=""):
        for i in self.blocks:
            self.look(i, how)
        return len(self.blocks)


class Commander(Worker):
    """Changes something in the monitors by commands."""
    pause = 0.1

    def __init__(self, name, seed, connect):
        super().__init__(name, seed)
        # Fresh clients when one does not get through: commands do not wait for ever.
        self.connect, self.client = connect, None
        self.keys, self.retired = {}, []
        self.slowest = 0.0

    def run(self, **command):
        if self.client is None:
            self.client = self.connect(rados_mon_op_timeout="30", client_mount_timeout="30")
        return self.client.mon_command(json.dumps(command), b"")

    def step(self):
        if len(self.keys) < 20:
            self.keys[f"{self.name}/{self.steps}"] = History(f"{self.name}/{self.steps}")
        name = self.rng.choice(list(self.keys))
        h = self.keys[name]
        self.doing = ("config-key set", name)
        h.begin(b"%d" % (h.last + 1))
        began = time.monotonic()
        try:
            code, _, text = self.run(prefix="config-key set", key=name, val=str(h.last))
        except rados.Error as e:
            code, text = -(e.errno or 110), str(e)
        self.slowest = max(self.slowest, time.monotonic() - began)
        if code == 0:
            h.acked()
        elif code in (-110, -4):
            # It may still be carried out, also behind later ones.
            self.retired.append(self.keys.pop(name))
        else:
            raise Violation(f"config-key set: {code} {text}")

    def verify(self, how="", ask=None):
        ask = ask or self.run
        for name, h in [*self.keys.items(), *((h.name, h) for h in self.retired)]:
            floor = h.read()
            code, out, text = ask(prefix="config-key get", key=name)
            if code not in (0, -2):
                raise Violation(f"config-key get: {code} {text}")
            h.seen(floor, out if code == 0 else None, how=how)
        return len(self.keys) + len(self.retired)


def make_image(io, name):
    rbd.RBD().create(io, name, Image.SIZE, order=20)
    return rbd.Image(io, name)
