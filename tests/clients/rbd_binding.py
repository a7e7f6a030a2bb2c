"""What the tests of librbd's Python binding share.

The body of such a test runs in a process of its own, which several tests use one after the other. If the
library hangs or crashes there, that is a failure of one test, and the next one gets a new process. What the
tests expect is the behaviour of a stock cluster with the same client; SIPHON_TEST_CONF runs them against one.

The process notes which methods of the binding are called; test_rbd_binding_surface.py looks at the result.
"""
import faulthandler
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
import warnings
from pathlib import Path

import pytest
from conftest import CHROOT, requests_of, waits_for

rados = pytest.importorskip("rados")
rbd = pytest.importorskip("rbd")

KIB, MIB = 1 << 10, 1 << 20
LAYERING, STRIPING, LOCK, MAP, FAST, DEEP, JOURNAL, DATA_POOL, OPERATIONS = (
    rbd.RBD_FEATURE_LAYERING, rbd.RBD_FEATURE_STRIPINGV2, rbd.RBD_FEATURE_EXCLUSIVE_LOCK, rbd.RBD_FEATURE_OBJECT_MAP,
    rbd.RBD_FEATURE_FAST_DIFF, rbd.RBD_FEATURE_DEEP_FLATTEN, rbd.RBD_FEATURE_JOURNALING, rbd.RBD_FEATURE_DATA_POOL,
    rbd.RBD_FEATURE_OPERATIONS)
DEFAULT = LAYERING | LOCK | MAP | FAST | DEEP

# (class, method) of what was called in any of the processes, by mode of the protocol.
CALLED = {}


def isolated(body=None, *, modes=("crc",), timeout=60):
    """A test whose body runs in the other process. It gets a `Session`."""
    if body is None:
        return lambda body: isolated(body, modes=modes, timeout=timeout)

    @pytest.mark.skipif(CHROOT is not None, reason="the other process is one of this Python")
    @pytest.mark.parametrize("cluster", modes, indirect=True)
    def test(cluster, worker):
        worker.run(body.__module__, body.__name__, timeout)

    test.__name__, test.__doc__, test.body = body.__name__, body.__doc__, body
    return test


class Worker:
    """The other process, as the tests see it. It is started when it is needed."""

    def __init__(self, cluster):
        self.cluster, self.process = cluster, None
        self.settings = dict(a.removeprefix("--").split("=") for a in cluster.args)

    def start(self):
        here = str(Path(__file__).parent)
        self.stderr = tempfile.TemporaryFile()
        self.sockets = tempfile.TemporaryDirectory(prefix="siphon-binding.")
        settings = {**self.settings, "admin_socket": f"{self.sockets.name}/$pid.$cctid.asok"}
        argv = [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import rbd_binding; rbd_binding.serve(*sys.argv[2:])",
                here, str(self.cluster.conf), json.dumps(settings)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr)

    def answer(self, timeout):
        """The next line, or None if there is none in that time."""
        line, end = b"", time.monotonic() + timeout
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))
            piece = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not piece:
                return None
            line += piece
        return json.loads(line)

    def said(self):
        self.stderr.seek(0)
        return self.stderr.read().decode(errors="replace")[-6000:]

    def run(self, module, name, timeout, again=True):
        if self.process is None:
            self.start()
        self.process.stdin.write(json.dumps([module, name]).encode() + b"\n")
        self.process.stdin.flush()
        answer = self.answer(timeout)
        if answer is None:
            try:
                # If its output has ended, it is about to end too.
                how = self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                how = None
            waits = []
            if how is None:
                waits = waits_for(self.sockets.name)
                requests = requests_of(self.sockets.name)
                self.process.send_signal(signal.SIGUSR1)
                time.sleep(0.5)  # For the stacks to be written.
            said = self.said()
            self.end()
            # librbd has a race when it closes, beside a stock cluster, too: it uses a lock that is gone already.
            aborted = how == -signal.SIGABRT and "std::system_error" in said
            # Nor has it to do with the cluster if it hangs and has no request under way.
            if again and (aborted or (how is None and not waits)):
                warnings.warn(f"{name}: librbd {'aborts' if aborted else f'hangs by itself, {requests}'}, once more\n{said}")
                return self.run(module, name, timeout, again=False)
            pytest.fail(f"{name}: the process {f'hangs and waits for {waits}' if how is None else f'ended with {how}'}\n{said}", pytrace=False)
        CALLED.setdefault(self.cluster.mode, set()).update(map(tuple, answer["called"]))
        if answer["failure"]:
            pytest.fail(f"{name}:\n{answer['failure']}\n{self.said()}", pytrace=False)

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.stderr.close()
            self.sockets.cleanup()
            self.process = None

    def close(self):
        """Lets it remove its pools, if it can."""
        if self.process is not None:
            self.process.stdin.write(b"null\n")
            self.process.stdin.flush()
            self.answer(60)
            self.end()


@pytest.fixture(scope="module")
def worker(cluster):
    w = Worker(cluster)
    yield w
    w.close()


# What follows is used in the other process only.

def noting(base, called):
    """A class of the binding that notes which of its methods are used."""
    def __getattribute__(self, name):
        if not name.startswith("_"):
            called.add((base.__name__, name))
        return base.__getattribute__(self, name)

    return type(base.__name__, (base,), {"__getattribute__": __getattribute__})


class Session:
    """Connections, and pools to work in, for the tests of one process."""

    def __init__(self, conf, settings):
        self.conf, self.settings = conf, settings
        self.called, self.pools, self.clients, self.made = set(), [], [], 0
        self.Image, self.Group = noting(rbd.Image, self.called), noting(rbd.Group, self.called)
        self.rbd = noting(rbd.RBD, self.called)()
        self.cluster = self.client()
        self.io = self.pool()
        self.second = None

    def client(self, **settings):
        """A connection of its own."""
        c = rados.Rados(conffile=self.conf, conf={"rados_osd_op_timeout": "45", **self.settings, **settings})
        c.connect()
        self.clients.append(c)
        return c

    def pool(self, application="rbd"):
        """A new pool, for this test."""
        name = "rbd-" + uuid.uuid4().hex[:8]
        self.command(prefix="osd pool create", pool=name, pg_num=8)
        self.pools.append(name)
        io = self.cluster.open_ioctx(name)
        if application:
            io.application_enable(application)
        return io

    def tidy(self, keep=1):
        """Removes pools, but for the one of all tests."""
        while len(self.pools) > keep:
            self.cluster.delete_pool(self.pools.pop())

    def namespace(self, io=None):
        """A new namespace, in the pool of all tests."""
        io, name = self.cluster.open_ioctx((io or self.io).get_pool_name()), self.name("ns")
        self.rbd.namespace_create(io, name)
        io.set_namespace(name)
        return io

    def elsewhere(self, io=None, **settings):
        """The same pool through a second connection."""
        if settings:
            client = self.client(**settings)
        else:
            client = self.second = self.second or self.client()
        other = client.open_ioctx((io or self.io).get_pool_name())
        other.set_namespace((io or self.io).get_namespace())
        return other

    def name(self, kind="img"):
        self.made += 1
        return f"{kind}{self.made}"

    def create(self, size=4 * MIB, io=None, **options):
        """A new image; returns its name."""
        name = self.name()
        self.rbd.create(io or self.io, name, size, **{"old_format": False, **options})
        return name

    def new(self, size=4 * MIB, io=None, **options):
        """The same, opened."""
        return self.Image(io or self.io, self.create(size, io, **options))

    def open(self, name, io=None, **options):
        return self.Image(io or self.io, name, **options)

    def call(self, thing, method, *args):
        """A method of a class whose instances only the library makes."""
        self.called.add((type(thing).__name__, method))
        return getattr(thing, method)(*args)

    def wait(self, completion):
        """Waits for it, and returns its result."""
        self.call(completion, "wait_for_complete_and_cb")
        assert self.call(completion, "is_complete")
        return self.call(completion, "get_return_value")

    def command(self, **what):
        code, out, err = self.cluster.mon_command(json.dumps({"format": "json", **what}), b"")
        assert code == 0, (what, code, err)
        return json.loads(out) if out.strip() else None

    def tool(self, *args, data=None, io=None):
        """The rbd command."""
        argv = ["rbd", "-c", self.conf, *(f"--{k}={v}" for k, v in self.settings.items()),
                f"--rbd_default_pool={(io or self.io).get_pool_name()}", *args]
        r = subprocess.run(argv, input=data, capture_output=True, timeout=50)
        assert r.returncode == 0, (argv, r.returncode, r.stderr)
        return r.stdout

    def close(self):
        self.tidy(keep=0)
        for c in self.clients:
            c.shutdown()


def raises(exception, errno, call, *args, **kw):
    """The call must raise that exception with that errno."""
    try:
        got = call(*args, **kw)
    except (rbd.Error, KeyError) as e:
        assert type(e) is exception and getattr(e, "errno", None) == errno, f"{type(e).__name__} ({e}), expected {exception.__name__}"
    else:
        raise AssertionError(f"returned {got!r}, expected {exception.__name__}")


def eventually(check, timeout=30, what="condition"):
    """Polls for what may take a moment."""
    end = time.monotonic() + timeout
    while not (value := check()):
        assert time.monotonic() < end, f"gave up waiting for {what}"
        time.sleep(0.05)
    return value


def explain(error):
    """The stack, and the variables of the frame that failed."""
    frames = [f for f, _ in traceback.walk_tb(error.__traceback__) if not f.f_code.co_filename.endswith("rbd_binding.py")]
    names = frames[-1].f_locals if frames else {}
    return "".join(traceback.format_exception(error)) + "".join(f"  {k} = {repr(v)[:400]}\n" for k, v in names.items())


def serve(conf, settings):
    """The other process: a line in names a test, a line out says how it ended."""
    faulthandler.register(signal.SIGUSR1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session = None
    for line in sys.stdin:
        what, failure = json.loads(line), None
        try:
            session = session or Session(conf, json.loads(settings))
            if what is None:
                session.close()
            else:
                module, name = what
                try:
                    getattr(importlib.import_module(module), name).body(session)
                finally:
                    session.tidy()
        except BaseException as e:
            failure = explain(e)
        print(json.dumps({"failure": failure, "called": sorted(session.called) if session else []}), file=out, flush=True)
        if what is None:
            return
