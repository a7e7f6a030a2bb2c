"""Clusters whose daemons are processes of their own, each of which a test can kill, stop and start."""
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from conftest import BINARY, Cluster, free_port, quiet


def siphon(*args, timeout=120):
    r = subprocess.run([str(BINARY), *map(str, args)], capture_output=True, text=True, timeout=timeout)
    assert r.returncode == 0, f"siphon {args}: {r.stderr}"
    return r.stdout


class Daemon:
    """One process. What it prints goes to a file beside the data directory."""

    def __init__(self, directory, name, prefix=()):
        self.directory, self.name, self.prefix = Path(directory), name, list(prefix)
        self.process = None
        self.log = self.directory.parent / f"{self.directory.name}.{name}.log"

    def spawn(self):
        kind, _, ident = self.name.partition(".")
        argv = [*self.prefix, str(BINARY), kind, "--data-dir", str(self.directory)]
        argv += ["--id", ident] if kind == "osd" else ["--name", ident]
        env = dict(os.environ)
        env.setdefault("SIPHON_LOG", "info,openraft=off")
        self.at = self.log.stat().st_size if self.log.exists() else 0
        self.process = subprocess.Popen(argv, stdout=open(self.log, "ab"), stderr=subprocess.STDOUT, env=env)
        return self

    def printed(self):
        """What it printed since it was started last."""
        with open(self.log, "rb") as f:
            f.seek(self.at)
            return f.read().decode(errors="replace")

    def wait_serving(self, timeout=60):
        deadline = time.monotonic() + timeout
        while f"{self.name} serves." not in self.printed():
            assert self.process.poll() is None, f"{self.name} ended: {self.printed()[-2000:]}"
            assert time.monotonic() < deadline, f"{self.name} does not serve: {self.printed()[-2000:]}"
            time.sleep(0.05)
        return self

    def start(self):
        return self.spawn().wait_serving()

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, timeout=30):
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        return self.process.wait(timeout=timeout)


class Processes:
    """A cluster in one or several data directories on this machine, as on so many hosts."""
    # Whether the first start has set the options of tests. Here, as not every kind of cluster runs `__init__`.
    quieted = False

    def __init__(self, base, mons=1, hosts=1):
        base = Path(base)
        names = "abcdefg"[:mons]
        self.ports = {n: free_port() for n in names}
        self.dirs = [base / f"host{i}" for i in range(max(mons if hosts > 1 else 1, hosts))]
        self.daemons = {}
        wanted = [x for n in names for x in ("--mon", f"{n}=127.0.0.1:{self.ports[n]}")]
        siphon("init", "--data-dir", self.dirs[0], "--failure-domain", "osd", *wanted)
        for d in self.dirs[1:]:
            siphon("join", "--data-dir", d, "--ip", "127.0.0.1", self.dirs[0] / "join")
        for i, n in enumerate(names):
            home = self.dirs[i % len(self.dirs)]
            if i > 0:
                siphon("add", "mon", "--data-dir", home, "--name", n)
            self.daemon(home, f"mon.{n}")
        self.daemon(self.dirs[0], "mgr.x")

    def daemon(self, directory, name):
        self.daemons[name] = Daemon(directory, name)
        return self.daemons[name]

    def __getitem__(self, name):
        return self.daemons[name]

    @property
    def conf(self):
        return self.dirs[0] / "ceph.conf"

    def start_mons(self):
        mons = [d for n, d in self.daemons.items() if n.startswith("mon.")]
        for d in mons:
            d.spawn()
        for d in mons:
            d.wait_serving()
        if not self.quieted:
            self.quieted = True
            quiet(self.conf)

    def start(self, osds=3):
        self.start_mons()
        self["mgr.x"].start()
        for i in range(osds):
            home = self.dirs[i % len(self.dirs)]
            n = siphon("add", "osd", "--data-dir", home, "--size", "10G").strip()
            self.daemon(home, f"osd.{n}").spawn()
        for n, d in self.daemons.items():
            if n.startswith("osd."):
                d.wait_serving()
        return self

    def client(self, mode="crc"):
        return Cluster(self.conf, mode)

    def stop(self):
        for order in ("mds.", "osd.", "mgr.", "mon."):
            some = [d for n, d in self.daemons.items() if n.startswith(order) and d.running]
            for d in some:
                d.signal(signal.SIGCONT)
                d.signal(signal.SIGTERM)
            for d in some:
                try:
                    d.process.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    d.kill()


@contextlib.contextmanager
def running(prefix, **kw):
    """Processes that are started, with a pool `d`; they and their files are gone afterwards."""
    base = Path(tempfile.mkdtemp(prefix=prefix))
    p = Processes(base, **kw)
    try:
        p.start()
        c = p.client()
        c.ceph("osd", "pool", "create", "d", "16")
        c.ceph("osd", "pool", "application", "enable", "d", "rados")
        yield p
    finally:
        p.stop()
        if not os.environ.get("SIPHON_TEST_KEEP"):
            shutil.rmtree(base, ignore_errors=True)
