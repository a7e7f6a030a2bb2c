"""Stock Ceph clients against a live cluster.

By default a Siphon cluster of three OSDs is started for the session. With SIPHON_TEST_CONF the tests
run against the cluster of that ceph.conf instead (a stock one, say): what they expect is Ceph's
behaviour, not ours. SIPHON_TEST_CHROOT names a root directory with other client versions in it, made
by debian13.sh: what the tests write is then below it, under names that are the same inside.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import pytest
import rados

from warm_ceph import WarmCeph

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("SIPHON_BIN", ROOT / "target/clients/siphon"))
CHROOT = os.path.realpath(os.environ["SIPHON_TEST_CHROOT"]) if os.environ.get("SIPHON_TEST_CHROOT") else None

if CHROOT:
    # What tests keep for themselves is below the root directory, too: clients read their clusters' configurations there.
    tempfile.tempdir = os.environ["TMPDIR"] = f"{CHROOT}/tmp"


def pytest_configure(config):
    if CHROOT and not config.option.basetemp:
        config.option.basetemp = f"{CHROOT}/tmp/pytest"


WARM_CEPH = WarmCeph()


def pytest_unconfigure(config):
    WARM_CEPH.stop()


def live_program(package):
    """The program of a package's tests/live.rs: the one that SIPHON_LIVE_<PACKAGE> names, else built here."""
    given = os.environ.get(f"SIPHON_LIVE_{package.replace('-', '_').upper()}")
    if given:
        return given
    cargo = os.environ.get("CARGO") or shutil.which("cargo") or str(Path.home() / ".cargo/bin/cargo")
    argv = [cargo, "test", "--no-run", "-p", package, "--test", "live", "--message-format", "json"]
    env = {**os.environ, "PATH": f"{Path(cargo).parent}:{os.environ['PATH']}"}
    out = subprocess.run(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    built = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return next(m["executable"] for m in built if m.get("executable") and m["target"]["name"] == "live")


def run_live(package, *args, **environment):
    """Runs the tests in a package's tests/live.rs, which need a cluster: one after the other."""
    argv = [live_program(package), *args, "--ignored", "--test-threads=1"]
    r = subprocess.run(argv, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=1800)
    assert r.returncode == 0, r.stdout + r.stderr
    assert "0 ignored" in r.stdout


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def quiet(conf):
    """Lets a cluster say nothing of the room on this machine's disk: what tests ask about its health is something else.
    From this process: `ceph` takes half a second to start."""
    admin = rados.Rados(conffile=str(conf), conf={"rados_mon_op_timeout": "60"})
    admin.connect(timeout=60)
    try:
        for name in ("mon_data_avail_warn", "mon_data_avail_crit"):
            command = {"prefix": "config set", "who": "mon", "name": name, "value": "0"}
            code, _, text = admin.mon_command(json.dumps(command), b"")
            assert code == 0, f"{command}: {code} {text}"
    finally:
        admin.shutdown()


def make_coded_pool(command, name, pg_num=8):
    """Makes an erasure-coded pool of 2+1 on OSDs of any hosts. `command` runs a command of the monitors."""
    command(prefix="osd erasure-code-profile set", name="two-and-one", profile=["k=2", "m=1", "crush-failure-domain=osd"])
    command(prefix="osd pool create", pool=name, pg_num=pg_num, pool_type="erasure", erasure_code_profile="two-and-one")
    command(prefix="osd pool set", pool=name, var="allow_ec_overwrites", val="true")


class Siphon:
    """A cluster process that the tests own."""

    def __init__(self, directory, osds=3, extra=(), umask=-1, env=None):
        self.directory = Path(directory)
        self.osds = osds
        self.extra = list(extra)
        self.umask = umask
        self.env = {**os.environ, **(env or {})}
        self.port = free_port()
        self.process = None
        self.quieted = False

    @property
    def conf(self):
        return self.directory / "ceph.conf"

    def start(self, timeout=60):
        log = open(self.directory.parent / (self.directory.name + ".log"), "ab")
        argv = [str(BINARY), "up", "--data-dir", str(self.directory), "--osds", str(self.osds),
                "--bind", f"127.0.0.1:{self.port}", *self.extra]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True,
                                        env=self.env, umask=self.umask)
        deadline = time.monotonic() + timeout
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if "healthy" in line.lower():
                if not self.quieted:
                    self.quieted = True
                    quiet(self.conf)
                return lines
            if time.monotonic() > deadline:
                break
        raise RuntimeError(f"the cluster did not become healthy; it printed: {''.join(lines)}; log: {log.name}")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=30)
        self.process.stdout.close()
        return code


@pytest.fixture(scope="session")
def siphon_factory():
    """Makes further clusters; all are stopped at the end."""
    base = Path(tempfile.mkdtemp(prefix="siphon-clients.", dir=f"{CHROOT}/tmp" if CHROOT else None))
    made = []

    def make(**kw):
        c = Siphon(base / f"data{len(made)}", **kw)
        made.append(c)
        return c

    yield make
    for c in made:
        if c.process and c.process.poll() is None:
            c.stop()
    if not os.environ.get("SIPHON_TEST_KEEP"):
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session")
def base_conf(siphon_factory):
    given = os.environ.get("SIPHON_TEST_CONF")
    if given:
        return Path(given)
    c = siphon_factory()
    c.start()
    return c.conf


class Cluster:
    """How the tests talk to the cluster: the stock command line tools with one configuration."""

    def __init__(self, conf, mode):
        self.conf = conf
        self.mode = mode
        self.args = []
        self.admin = None
        if mode == "secure":
            self.args = ["--ms_client_mode=secure", "--ms_mon_client_mode=secure"]
        elif mode == "crc":
            self.args = ["--ms_client_mode=crc", "--ms_mon_client_mode=crc"]

    def argv(self, tool, *args):
        """The command line of a client tool, for tests that need more than `run`."""
        argv = [tool, "-c", str(self.conf), *self.args, *(str(a) for a in args)]
        return ["chroot", CHROOT, *argv] if CHROOT else argv

    def run(self, tool, *args, check=True, data=None, timeout=120, keyring=None, name=None):
        argv = [tool, "-c", str(self.conf), *self.args]
        if name:
            argv += ["-n", name]
        if keyring:
            argv += ["-k", str(keyring)]
        argv += [str(a) for a in args]
        if CHROOT:
            argv = ["chroot", CHROOT, *argv]
        if tool == "ceph" and not CHROOT:
            r = WARM_CEPH.run(argv, data=data, timeout=timeout)
        else:
            r = subprocess.run(argv, input=data, capture_output=True, timeout=timeout)
        if check and r.returncode != 0:
            raise AssertionError(f"{' '.join(argv)}: exit {r.returncode}\n{r.stdout.decode(errors='replace')}\n{r.stderr.decode(errors='replace')}")
        return r

    def ceph(self, *args, **kw):
        return self.run("ceph", *args, **kw).stdout.decode()

    def ceph_json(self, *args, **kw):
        return json.loads(self.run("ceph", *args, "--format", "json", **kw).stdout)

    def rados(self, *args, **kw):
        return self.run("rados", *args, **kw)

    def command(self, **command):
        """A command for the monitors from this process, for what a test needs and does not test: `ceph` takes half
        a second to start."""
        if not self.admin:
            self.admin = rados.Rados(conffile=str(self.conf), conf={"rados_mon_op_timeout": "60"})
            self.admin.connect(timeout=60)
        code, out, text = self.admin.mon_command(json.dumps(command), b"")
        if code != 0:
            raise AssertionError(f"{command}: {code} {text}")
        return out

    def make_pool(self, name, pg_num=8, application="rados"):
        self.command(prefix="osd pool create", pool=name, pg_num=pg_num)
        if application:
            self.command(prefix="osd pool application enable", pool=name, app=application)

    def delete_pool(self, name):
        self.command(prefix="osd pool delete", pool=name, pool2=name, yes_i_really_really_mean_it=True)

    def fails(self, tool, *args, errno, text=None, **kw):
        """The command must fail with that errno as its exit code, and say `text`."""
        r = self.run(tool, *args, check=False, **kw)
        both = (r.stdout + r.stderr).decode(errors="replace")
        assert r.returncode == errno, f"{tool} {args}: exit {r.returncode}, expected {errno}: {both}"
        if text:
            assert text in both, both
        return both


@pytest.fixture(scope="session", params=["crc", "secure"])
def cluster(request, base_conf):
    c = Cluster(base_conf, request.param)
    c.ceph("config", "set", "mon", "mon_allow_pool_delete", "true")
    return c


@pytest.fixture
def pool(cluster):
    """A fresh pool, deleted afterwards."""
    name = "t-" + uuid.uuid4().hex[:8]
    cluster.make_pool(name)
    yield name
    cluster.delete_pool(name)


def tells_soon(cluster):
    """Lets daemons report statistics each second, not each five: for tests that wait for reports again and again."""
    cluster.command(prefix="config set", who="mgr", name="mgr_stats_period", value="1")


def admin_socket(path, prefix):
    """What a daemon or a client of this machine answers at its admin socket."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10)
        s.connect(str(path))
        s.sendall(json.dumps({"prefix": prefix}).encode() + b"\0")
        answer = b""
        while piece := s.recv(1 << 16):
            answer += piece
    return json.loads(answer[4:4 + int.from_bytes(answer[:4], "big")])


def requests_of(directory):
    """What the clients with admin sockets in a directory have asked the cluster for, and what they watch."""
    found = {}
    for path in Path(directory).glob("*.asok"):
        try:
            found[path.name] = admin_socket(path, "objecter_requests")
        except OSError as e:
            found[path.name] = {"ops": [{"tid": str(e)}]}
    return found


def waits_for(directory, looks=3):
    """What a process that hangs waits for: requests of its clients that the cluster has not answered for a few seconds.
    Empty if there are none, so whatever it waits for is in itself."""
    seen = []
    for look in range(looks):
        time.sleep(1 if look else 0)
        requests = requests_of(directory)
        seen.append({(name, kind, r["tid"]): r for name, all in requests.items() for kind, list in all.items()
                     if kind != "linger_ops" for r in list})
    return [seen[-1][k] for k in set.intersection(*(set(s) for s in seen))]


def eventually(check, timeout=60, what="condition"):
    """Polls `check` until it is true: for what the cluster promises to reach, not when. A command in it that has no
    answer in its own time is asked again.

    `what` is a text, or a function that tells what was found instead.
    """
    deadline = time.monotonic() + timeout
    pause = 0.02
    while True:
        try:
            value = check()
        except subprocess.TimeoutExpired:
            value = None
        if value:
            return value
        assert time.monotonic() < deadline, f"gave up waiting for {what() if callable(what) else what}"
        time.sleep(pause)
        pause = min(2 * pause, 0.2)
