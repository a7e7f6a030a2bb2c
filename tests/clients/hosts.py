"""Clusters on hosts of their own: network namespaces, with a network between them that a test can cut.

Every namespace lives as long as a process that holds it, and that process ends with the test, however it ends:
nothing is left behind. A router joins the hosts; what it is told not to forward it drops in silence, as a broken
network does. Only iproute2 is needed, and to be root.
"""
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import BINARY, Cluster
from processes import Daemon, Processes

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000


class Namespace:
    """A network namespace and the process that holds it."""

    def __init__(self, name):
        self.name = name
        self.holder = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "echo && exec sleep infinity"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if not self.holder.stdout.readline():
            raise OSError(self.holder.communicate()[1].strip() or "no reason was given")

    @property
    def prefix(self):
        """Of a command that is to run inside. The process ends with the thread that starts it."""
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", "--net", "--target", str(self.holder.pid), "--"]

    def run(self, *argv):
        r = subprocess.run([*self.prefix, *map(str, argv)], capture_output=True, text=True, timeout=60)
        if r.returncode:
            raise OSError(f"{' '.join(map(str, argv))}: {r.stderr.strip()}")
        return r.stdout

    @contextlib.contextmanager
    def inside(self):
        """This thread, and all that it starts meanwhile, is inside."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/proc/{self.holder.pid}/ns/net", os.O_RDONLY)
        try:
            enter(there)
            yield
        finally:
            enter(before)
            os.close(before)
            os.close(there)

    def end(self):
        self.holder.kill()
        self.holder.wait()


def enter(fd):
    if LIBC.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Network:
    """Hosts h0, h1, ... and the client, each in a network of its own behind one router."""

    def __init__(self, hosts):
        self.spaces, self.cuts = {}, []
        try:
            self.router = Namespace("router")
            self.router.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
            for i, name in enumerate([*(f"h{i}" for i in range(hosts)), "client"]):
                space = self.spaces[name] = Namespace(name)
                space.ip, space.net, space.link = f"10.93.{i}.2", f"10.93.{i}.0/24", f"to-{name}"
                space.run("ip", "link", "set", "lo", "up")
                space.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", space.link, "netns", self.router.holder.pid)
                self.router.run("ip", "addr", "add", f"10.93.{i}.1/24", "dev", space.link)
                self.router.run("ip", "link", "set", space.link, "up")
                space.run("ip", "addr", "add", f"{space.ip}/24", "dev", "eth0")
                space.run("ip", "link", "set", "eth0", "up")
                space.run("ip", "route", "add", "default", "via", f"10.93.{i}.1")
        except BaseException:
            self.end()
            raise

    def add_back(self):
        """A second network, of the hosts alone: one switch."""
        self.router.run("ip", "link", "add", "back", "type", "bridge")
        self.router.run("ip", "link", "set", "back", "up")
        for i, (name, space) in enumerate(self.spaces.items()):
            if name != "client":
                space.back_ip = f"10.94.0.{i + 1}"
                space.run("ip", "link", "add", "eth1", "type", "veth", "peer", "name", f"back-{name}", "netns", self.router.holder.pid)
                self.router.run("ip", "link", "set", f"back-{name}", "master", "back", "up")
                space.run("ip", "addr", "add", f"{space.back_ip}/24", "dev", "eth1")
                space.run("ip", "link", "set", "eth1", "up")

    def back(self, name, state):
        """Plugs a host into the second network, or out of it: "up" or "down"."""
        self.router.run("ip", "link", "set", f"back-{name}", state)

    def link(self, name, state):
        """Plugs a host into the network, or out of it: "up" or "down"."""
        self.router.run("ip", "link", "set", self[name].link, state)

    def __getitem__(self, name):
        return self.spaces[name]

    def drop(self, source, to):
        """Nothing that one sends reaches the other any more."""
        rule = ["iif", self[source].link, "to", self[to].net, "blackhole"]
        self.router.run("ip", "rule", "add", "pref", "100", *rule)
        self.cuts.append(rule)

    def cut(self, one, other):
        self.drop(one, other)
        self.drop(other, one)

    def isolate(self, name, spare=()):
        """Cuts it from everybody, but for those to be spared."""
        for other in self.spaces:
            if other != name and other not in spare:
                self.cut(name, other)

    def mute(self, name):
        """It hears everybody, and nobody hears it."""
        for other in self.spaces:
            if other != name:
                self.drop(name, other)

    def deafen(self, name):
        """Everybody hears it, and it hears nobody."""
        for other in self.spaces:
            if other != name:
                self.drop(other, name)

    def heal(self):
        while self.cuts:
            self.router.run("ip", "rule", "del", "pref", "100", *self.cuts[-1])
            self.cuts.pop()

    def end(self):
        for space in [*self.spaces.values(), *([self.router] if hasattr(self, "router") else [])]:
            space.end()


def network(hosts=3):
    """A network, or a reason to leave the test out. SIPHON_REQUIRE_NAMESPACES makes that a failure."""
    try:
        for tool in ("ip", "setpriv", "unshare", "nsenter"):
            if not shutil.which(tool):
                raise OSError(f"{tool} is not installed")
        return Network(hosts)
    except OSError as e:
        if os.environ.get("SIPHON_REQUIRE_NAMESPACES"):
            raise
        pytest.skip(f"network namespaces cannot be made here (that needs root and iproute2): {e}")


class Hosts(Processes):
    """A cluster of three monitors, two managers and two OSDs for each of three hosts; copies go to different hosts."""

    def __init__(self, base, net):
        self.net, self.base = net, Path(base)
        self.daemons, self.homes = {}, {}
        self.names = {f"h{i}": n for i, n in enumerate("abc")}
        self.ports = {n: 3300 for n in "abc"}
        for h in self.names:
            self.homes[h] = self.base / h
        self.dirs = list(self.homes.values())
        mons = [x for h, n in self.names.items() for x in ("--mon", f"{n}={net[h].ip}")]
        back = {h: ("--cluster-ip", ip) if (ip := getattr(net[h], "back_ip", None)) else () for h in self.names}
        self.siphon("h0", "init", "--data-dir", self.homes["h0"], *mons, *back["h0"])
        for h in ("h1", "h2"):
            self.siphon(h, "join", "--data-dir", self.homes[h], "--ip", net[h].ip, *back[h], self.homes["h0"] / "join")
            self.siphon(h, "add", "mon", "--data-dir", self.homes[h], "--name", self.names[h])
        for h, n in self.names.items():
            self.place(h, f"mon.{n}")
        self.place("h0", "mgr.x")

    def siphon(self, host, *args):
        argv = [str(BINARY), *map(str, args)]
        r = subprocess.run([*self.net[host].prefix, *argv], capture_output=True, text=True, timeout=180)
        assert r.returncode == 0, f"{host}: {argv}: {r.stderr}"
        return r.stdout

    def place(self, host, name):
        d = self.daemons[name] = Daemon(self.homes[host], name, prefix=self.net[host].prefix)
        d.host = host
        return d

    def add_osd(self, host):
        ident = self.siphon(host, "add", "osd", "--data-dir", self.homes[host], "--size", "10G", "--host", host).strip()
        return self.place(host, f"osd.{ident}")

    def start(self, osds=2):
        self.start_mons()
        self["mgr.x"].start()
        self.siphon("h1", "add", "mgr", "--data-dir", self.homes["h1"], "--name", "y")
        self.place("h1", "mgr.y").start()
        new = [self.add_osd(h).spawn() for h in self.names for _ in range(osds)]
        for d in new:
            d.wait_serving()
        return self

    def on(self, host, kind=""):
        """The daemons of a host."""
        return [d for n, d in self.daemons.items() if d.host == host and n.startswith(kind)]

    def osds(self):
        return {int(n[4:]): d for n, d in self.daemons.items() if n.startswith("osd.")}

    def at(self, name, mode="crc"):
        """A client of one monitor alone."""
        c = Cluster(self.conf, mode)
        host = next(h for h, n in self.names.items() if n == name)
        c.args = [*c.args, "-m", f"{self.net[host].ip}:3300"]
        return c

    def heal(self):
        """The network is whole, and everybody runs."""
        self.net.heal()
        stopped = [d for d in self.daemons.values() if not d.running]
        for d in self.daemons.values():
            if d.running:
                d.signal(signal.SIGCONT)
        for d in stopped:
            d.spawn()
        for d in stopped:
            d.wait_serving(timeout=180)


@contextlib.contextmanager
def cluster(prefix, settings=(), start=True, osds=2, back=False):
    """A running cluster, with a second network for OSDs on demand; this thread is the client's host meanwhile."""
    net = network()
    base = Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get("SIPHON_TEST_DIR")))
    hosts = None
    try:
        if back:
            net.add_back()
        with net["client"].inside():
            hosts = Hosts(base, net)
            if start:
                hosts.start(osds)
                c = hosts.client()
                for option in "mon_data_avail_warn", "mon_data_avail_crit":
                    c.ceph("config", "set", "mon", option, "0")
                for who, option, value in settings:
                    c.ceph("config", "set", who, option, str(value))
            yield hosts
    finally:
        if hosts:
            net.heal()
            hosts.stop()
        net.end()
        if not os.environ.get("SIPHON_TEST_KEEP"):
            shutil.rmtree(base, ignore_errors=True)
