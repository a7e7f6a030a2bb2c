#!/usr/bin/env python3
"""File systems: our metadata server beside a stock `ceph-mds`, on the OSDs of one Siphon cluster, and a whole stock Ceph.

Starts a Siphon cluster with two file systems, one served by `siphon mds` and one by Ceph's server, and with --ceph a stock
cluster with a third one. Drives them in turn with smallfile's operations on empty files: create, stat after the clients'
caches were dropped, stat, unlink, by several clients in directories of their own or in one for all; then reads a large
directory with the attributes of its entries beside a client that creates; and measures the servers' memory.

Clients are stock ones (python3-cephfs, several in one process, with their caches), or with --native our own (`fs-load` of the
crate `loads`). That one caches nothing, and waits until a change is durable: a stock server answers a stock client earlier.
Both compare every answer with what was done. Prints operations a second, latencies,
processor time of the metadata server and of the cluster below it per operation, and ratios.
"""
import argparse
import contextlib
import json
import shutil
import signal
import statistics
import sys
import tempfile
from pathlib import Path

import fs_profile
from clusters import BINARY, ROOT, TCMALLOC, Daemon, Siphon, Stock, need_space, rss, sh, wait
from fs_failover import failover
from fs_tree import tree
from loaders import PROGRAMS, Loader, command_of, markdown, measured, record, row
from loads import medians

PYTHON = "/usr/bin/python3"


class Server:
    """A file system with one metadata server, and its clients. `kind` is `siphon` or `ceph`."""

    def __init__(self, kind, cluster, directory, native):
        self.kind, self.cluster, self.dir = kind, cluster, directory
        self.name = f"{kind} on {cluster.name}"
        self.fs = f"fs-{kind}"
        directory.mkdir(parents=True, exist_ok=True)
        for pool, pgs in ((f"{self.fs}-meta", 16), (f"{self.fs}-data", 32)):
            cluster.ceph("osd", "pool", "create", pool, str(pgs), str(pgs))
        cluster.ceph("fs", "flag", "set", "enable_multiple", "true", "--yes-i-really-mean-it")
        cluster.ceph("fs", "new", self.fs, f"{self.fs}-meta", f"{self.fs}-data")
        wait("active+clean", cluster.clean)
        # A server that was killed and the one that took over have one name each.
        self.active_name, self.standby_name = f"{kind}-a", f"{kind}-b"
        self.waits = None
        self.daemon = self.spawn(self.active_name)
        wait(f"the server {self.name}", self.active)
        clients = [PYTHON, ROOT / "bench/fs_clients.py"] if not native else [PROGRAMS / "fs-load"]
        self.load = Loader([*clients, "--conf", cluster.conf, "--fs", self.fs])

    def spawn(self, name):
        data = self.dir / f"mds.{name}"
        data.mkdir(exist_ok=True)
        sh("ceph", "-c", self.cluster.conf, "auth", "get-or-create", f"mds.{name}", "mon", "allow profile mds", "mgr", "allow profile mds",
           "mds", "allow *", "osd", "allow rwx", "-o", data / "keyring")
        return Daemon(self.name, self.argv(name, data), data / "output", TCMALLOC if self.kind == "ceph" else None).spawn()

    def argv(self, name, data):
        if self.kind == "ceph":
            return ["ceph-mds", "-f", "-i", name, "-c", self.cluster.conf, "--keyring", data / "keyring", "--mds-data", data, "--log-file", data / "log",
                    "--admin-socket", data / "asok", "--run-dir", data, "--debug_mds=0", "--debug_ms=0"]
        # A node of the cluster with a metadata server alone.
        (self.dir / "run").mkdir(exist_ok=True)
        for file in ("cluster.json", "ceph.conf"):
            text = (self.cluster.dir / file).read_text()
            (self.dir / file).write_text(text.replace(str(self.cluster.dir), str(self.dir)))
        for keyring in self.cluster.dir.glob("*keyring"):
            shutil.copy(keyring, self.dir)
        return [BINARY, "mds", "--data-dir", self.dir, "--name", name]

    def dump(self):
        return json.loads(self.cluster.ceph("fs", "dump", "-f", "json"))

    def holder(self, dump):
        """What a map says of the server that has the rank."""
        for fs in dump["filesystems"]:
            if fs["mdsmap"]["fs_name"] == self.fs:
                return next((i for i in fs["mdsmap"]["info"].values() if i["rank"] == 0), None)
        return None

    def gid(self):
        return self.holder(self.dump())["gid"]

    def active(self):
        if not self.daemon.running:
            raise SystemExit(f"{self.name} ended: {self.daemon.log.read_text()[-2000:]}")
        holder = self.holder(self.dump())
        return holder is not None and holder["state"] == "up:active"

    @contextlib.contextmanager
    def standby(self):
        """There is a standby while the block runs. At other times there is none: it might take another file system's rank."""
        self.waits = self.spawn(self.standby_name)
        try:
            wait("a standby", lambda: any(s["name"] == self.standby_name for s in self.dump()["standbys"]))
            yield
        finally:
            if self.waits:
                self.waits.stop()
                self.waits = None

    def takes_over(self):
        """The standby has the rank."""
        self.daemon, self.waits = self.waits, None
        self.active_name, self.standby_name = self.standby_name, self.active_name

    @property
    def servers(self):
        return {"mds": [self.daemon.process.pid], "cluster": self.cluster.pids()}

    def measured(self, *words):
        return measured(self.load, self.servers, *words)

    def mib(self):
        return rss(self.daemon.process.pid) / 2**20

    def stop(self):
        self.load.close()
        for daemon in filter(None, (self.waits, self.daemon)):
            if daemon.running:
                daemon.stop()


def smallfile(s, o, clients, shared, number):
    """Create, stat, unlink by so many clients: rows by operation. The directories are compared with what was done."""
    which = (f"/small-{number}", "--clients", clients, *(["--shared"] if shared else []))
    files = ("--files", max(1, o.files // (clients if shared else 1)))
    rows = {}
    s.load("dirs", *which)
    rows["create"] = row(s.measured("create", *which, *files), "create")
    if not o.native:
        s.load("drop")
    rows["stat after drop"] = row(s.measured("stat", *which, *files), "stat")
    s.load("read", *which, *files)
    if not o.native:
        # The attributes are in the clients' caches.
        rows["stat"] = row(s.measured("stat", *which, *files), "stat")
        if clients > 1:
            rows["stat of another's"] = row(s.measured("stat", *which, *files, "--shift", 1), "stat")
    rows["unlink"] = row(s.measured("unlink", *which, *files), "unlink")
    s.load("read", *which, "--files", 0)
    return rows


def walk(s, o, number):
    """A client that creates, alone and beside one that reads a large directory: rows, and what its p99 becomes."""
    name = f"/large-{number}"
    which = (name, "--clients", 2, "--shared", "--files", o.entries // 2)
    s.load("dirs", name, "--clients", 2, "--shared")
    s.load("create", *which)
    if not o.native:
        s.load("drop")
    alone = s.measured("alone", name, "--seconds", o.seconds)
    beside = s.measured("beside", *which, "--seconds", o.seconds)
    rows = {"create alone": row(alone, "create"), "create beside readdir": row(beside, "create"), f"readdir of {o.entries:,}": row(beside, "readdir")}
    s.load("unlink", *which)
    return rows


def memory(s, o, number):
    """Bytes of the server's memory for an inode with one capability, and for each further capability."""
    name, more = f"/memory-{number}", 3
    which = (name, "--clients", 1 + more, "--files", o.cached)
    s.load("dirs", *which)
    begin = s.mib()
    s.load("create", name, "--clients", 1, "--files", o.cached)
    inodes = s.mib()
    # Each further client has the files of the first one in its cache, too.
    s.load("stat", *which, "--of", 0)
    caps = s.mib()
    s.load("unlink", name, "--clients", 1, "--files", o.cached)
    bytes_each = lambda mib, count: mib * 2**20 / count
    return {"inode and capability, bytes": bytes_each(inodes - begin, o.cached), "capability, bytes": bytes_each(caps - inodes, more * o.cached)}


FIGURES = ("per_second", "mean", "p50", "p99", "p999", "mds us", "cluster us", "mds MiB")
HEADS = ("operations/s", "mean us", "p50 us", "p99 us", "p99.9 us", "MDS CPU us/operation", "cluster CPU us/operation", "MDS MiB")


def table(results):
    """Rows of all servers, and under them the ratios of ours to Ceph's on the same OSDs, and to the whole stock cluster."""
    rows = []
    for test, by in results.items():
        rows += [[test, name, *(r.get(f) for f in FIGURES)] for name, r in by.items()]
        for what, theirs in (("the same OSDs", "ceph on siphon"), ("whole clusters", "ceph on ceph")):
            if "siphon on siphon" in by and theirs in by:
                ours, other = by["siphon on siphon"], by[theirs]
                rows.append(["", f"**ratio**, {what}", *(ours[f] / other[f] if other.get(f) else None for f in FIGURES)])
    return markdown(["test", "server", *HEADS], rows)


def takeovers(taken):
    """A table of takeovers: of all rounds the median, and of what clients wait also the worst."""
    heads = list(next(iter(taken.values()))[0])
    row = lambda name, rounds: [name, *(statistics.median(r[h] for r in rounds) for h in heads), max(r["last client s"] for r in rounds)]
    return markdown(["SIGKILL of the server", *heads, "worst of rounds s"], [row(name, rounds) for name, rounds in taken.items()])


def takeovers_record(taken):
    """Columns, rows and goals of a record: each server's medians."""
    figures = {"map to active, s": "map to active s", "first client, s": "first client s", "median client, s": "median client s", "last client, s": "last client s"}
    held = min(r["capabilities"] for rounds in taken.values() for r in rounds)
    rows = [[name, *(statistics.median(r[f] for r in rounds) for f in figures.values())] for name, rounds in taken.items()]
    worst = {f"{held:,} capabilities": max(r["last client s"] for r in taken["siphon on siphon"])} if "siphon on siphon" in taken else {}
    goals = [{"goal": "File systems: SIGKILL of the server, from the map with another one to an answer for each client", "unit": " s", "at_most": 1,
              "measured": worst}] if worst else []
    return [f"SIGKILL of the server while clients have {held:,} capabilities", *figures], rows, goals


def record_of(results, bytes_of, clients):
    """Columns, rows and goals of a record: our server beside Ceph's on the same OSDs."""
    ours, theirs = "siphon on siphon", "ceph on siphon"
    columns = [f"siphon mds of ceph-mds, {clients} clients", "operations/s", "p50", "p99", "MDS CPU an operation", "CPU of the OSDs"]
    rows, goal = [], {}
    for test, by in results.items():
        if ours in by and theirs in by:
            # Programs in a mount have no latencies, and what clients have in their caches costs servers nothing.
            pair = lambda f: [by[ours][f], by[theirs][f]] if by[theirs].get(f) else ""
            rows.append([test, pair("per_second"), pair("p50"), pair("p99"), pair("mds us"), pair("cluster us")])
            if test.startswith(("create,", "stat after drop,")):
                # Operations of a second of the server's time.
                goal[test] = [by[theirs]["mds us"], by[ours]["mds us"]]
    goals = [{"goal": f"File systems, {clients} clients: creates and stats per MDS core-second, of ceph-mds", "at_least": 5, "measured": goal}] if goal else []
    if ours in bytes_of and theirs in bytes_of:
        # What a server had free before may be enough: no inode and no capability takes as few bytes as that.
        pairs = {k: [bytes_of[ours][k], bytes_of[theirs][k]] for k in bytes_of[ours] if min(bytes_of[ours][k], bytes_of[theirs][k]) > 16}
        if pairs:
            goals.append({"goal": "File systems: memory of the MDS, of ceph-mds", "at_most": 0.2, "measured": pairs})
    walked = {name: [results["create beside readdir"][name]["p99"], results["create alone"][name]["p99"]]
              for name in results.get("create beside readdir", {}) if name == ours}
    if walked:
        goals.append({"goal": f"File systems, {clients} clients: p99 of a create beside a reader of a large directory, of that alone", "at_most": 2, "measured": {"": walked[ours]}})
    return columns, rows, goals


def options(argv):
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--dir", default=None, help="where the clusters live (default: a new directory in /var/tmp); must be a disk, not tmpfs")
    a.add_argument("--native", action="store_true", help="our own clients instead of stock ones")
    a.add_argument("--clients", default="1,10,20", help="how many clients work at a time")
    a.add_argument("--files", type=int, default=1000, help="files of each client")
    a.add_argument("--rounds", type=int, default=2, help="how often the servers take turns")
    a.add_argument("--seconds", type=float, default=5, help="length of a run of the client that creates")
    a.add_argument("--entries", type=int, default=40000, help="entries of the large directory")
    a.add_argument("--cached", type=int, default=20000, help="files for the measurement of memory")
    a.add_argument("--tests", default="own,shared,walk,memory,tree,failover,profile",
                   help="which parts: directories of their own, a shared one, the large one, memory, a tree of sources, SIGKILL, perf of ours")
    a.add_argument("--sources", type=int, default=6000, help="files of the tree of sources")
    a.add_argument("--capabilities", type=int, default=100_000, help="capabilities that clients have when the server is killed")
    a.add_argument("--holders", type=int, default=10, help="clients that have them")
    a.add_argument("--durable", action="store_true", help="our server answers changes when they are durable (mds_early_reply false)")
    a.add_argument("--servers", default="siphon,ceph", help="which servers on Siphon's OSDs")
    a.add_argument("--ceph", action="store_true", help="a whole stock cluster, too")
    a.add_argument("--osd-size", type=int, default=6, help="GiB of each OSD")
    a.add_argument("--json", help="also write all figures to this file")
    a.add_argument("--record", help="also write a file for bench/records")
    a.add_argument("--machine", default="two shared cores of a virtual machine", help="--record: what it ran on")
    o = a.parse_args(argv)
    o.clients = [int(n) for n in o.clients.split(",")]
    o.tests = o.tests.split(",")
    return o


def main(argv):
    o = options(argv)
    base = Path(o.dir or tempfile.mkdtemp(prefix="siphon-fs.", dir="/var/tmp"))
    base.mkdir(parents=True, exist_ok=True)
    clusters = [k(base / k.name, osd_gb=o.osd_size) for k in (Siphon, *([Stock] if o.ceph else []))]
    need_space(base, clusters)
    servers, runs, bytes_of, taken, profiles = [], {}, {}, {}, {}
    try:
        for c in clusters:
            c.start()
        for c in clusters:
            for kind in o.servers.split(",") if c.name == "siphon" else ["ceph"]:
                if o.durable and kind == "siphon":
                    for name in ("siphon-a", "siphon-b"):
                        c.ceph("config", "set", f"mds.{name}", "mds_early_reply", "false")
                servers.append(Server(kind, c, base / f"mds-{kind}-{c.name}", o.native))

        def add(s, suffix, rows):
            for op, r in rows.items():
                runs.setdefault(f"{op}{suffix}", {}).setdefault(s.name, []).append(r)
                p99 = f"p99 {r['p99']:.0f} us, " if "p99" in r else ""
                print(f"  {op}{suffix}: {s.name} {r['per_second']:.0f}/s, {p99}MDS {r['mds us']:.0f} us, "
                      f"cluster {r['cluster us']:.0f} us, {r['failed']} failed", file=sys.stderr, flush=True)
        number = 0
        for round_ in range(o.rounds):
            for s in servers:
                # First: memory that was freed would be used again, and not be seen.
                if "memory" in o.tests and not o.native and round_ == 0:
                    number += 1
                    bytes_of[s.name] = memory(s, o, number)
                for clients in o.clients:
                    for part, shared in (("own", False), ("shared", True)):
                        if part in o.tests and (clients > 1 or not shared):
                            number += 1
                            add(s, f", {clients} clients{', one directory' if shared else ''}", smallfile(s, o, clients, shared, number))
                if "walk" in o.tests:
                    number += 1
                    add(s, "", walk(s, o, number))
                if "tree" in o.tests:
                    number += 1
                    add(s, "", tree(s, o.sources, number))
                if "profile" in o.tests and round_ == 0 and s.kind == "siphon":
                    for clients in o.clients:
                        number += 1
                        profiles |= fs_profile.profile(s, clients, o.files, number)
                if "failover" in o.tests and not o.native:
                    number += 1
                    taken.setdefault(s.name, []).append(failover(s, o, number))
                    print(f"  failover: {s.name} {json.dumps(taken[s.name][-1])}", file=sys.stderr, flush=True)
        results = {test: {name: medians(rs) for name, rs in by.items()} for test, by in runs.items()}
        if results:
            print("\n" + table(results))
        if taken:
            print("\n" + takeovers(taken))
        if profiles:
            print("\n" + fs_profile.tables(profiles))
        if bytes_of:
            heads = list(next(iter(bytes_of.values())))
            print("\n" + markdown(["server", *heads], [[name, *(b[h] for h in heads)] for name, b in bytes_of.items()]))
        if o.json:
            Path(o.json).write_text(json.dumps({"runs": runs, "bytes": bytes_of, "takeovers": taken, "profiles": profiles}, indent=1))
        if o.record:
            write = lambda end, *what: record(o.record.removesuffix(".json") + f"{end}.json", "file-systems", command_of("fs", argv), o.machine, *what)
            if results or bytes_of:
                write("", *record_of(results, bytes_of, "native" if o.native else "stock"))
            if taken:
                write("-takeover", *takeovers_record(taken))
            if profiles:
                write("-profile", ["samples of siphon mds, %", *profiles], fs_profile.rows(profiles))
    finally:
        for s in servers:
            s.stop()
        for c in clusters:
            c.stop()
        if not o.dir:
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    # What was started ends with the benchmark.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    main(sys.argv[1:])
