#!/usr/bin/env python3
"""S3 as a square: Ceph's gateway and ours, in front of a stock Ceph and of Siphon.

Starts the clusters, a `radosgw` and a `siphon s3` in front of each, and drives all four with `s3-load` (crate `loads`),
which compares every answer with what was acknowledged before. Cells are operations of one kind; they take turns, A B C D
A B C D. With --mix published mixes instead: fill, a fresh period, ageing, an aged period, each phase on all four in turn;
--report writes their page. --study 1 is the published study: both mixes, with hours of an hour; 0.003 is some minutes of it.
With --endpoint any endpoint is driven, beside those or (--clusters "") alone: its keys are those of AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY.
Prints requests a second, latencies, processor time of the gateway and of the cluster behind it per request, and ratios.

The clusters' time is that of all their processes: monitor, manager and OSDs.
"""
import argparse
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import s3_report
from clusters import BINARY, TCMALLOC, Daemon, Siphon, Stock, free_port, need_space, rss, sh, wait
from loaders import PROGRAMS, Loader, command_of, markdown, measured, record, row
from loads import medians

ACCESS, SECRET = "access-key-of-bench", "secret-key-of-bench"
# Pools of RGW's default zone, with their placement groups.
POOLS = {".rgw.root": 8, "default.rgw.log": 8, "default.rgw.control": 8, "default.rgw.meta": 8, "default.rgw.buckets.index": 16,
         "default.rgw.buckets.data": 32, "default.rgw.buckets.non-ec": 8}
# Objects of a request that deletes many.
BATCH = 100
# The generic mix has so many times fewer objects than the small one.
GENERIC_LESS = 4
MIXES = ("small", "generic")
# Of the published study: seconds of the fresh and of the aged hour, and objects of each bucket for the same part of the time.
HOUR, HOUR_OBJECTS = 3600, 120_000

# Name, sizes, objects, operations.
OBJECTS = [("4 KiB", "4K", 2000), ("64 KiB", "64K", 1000), ("4 MiB", "4M", 48)]


def driven(url, access, secret, connections):
    return Loader([PROGRAMS / "s3-load", "--endpoint", url, "--access", access, "--secret", secret, "--connections", connections])


class Endpoint:
    """A gateway that runs already, of which only answers are known."""

    servers = {}

    def __init__(self, name, url, connections):
        missing = [v for v in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if not os.environ.get(v)]
        if missing:
            raise SystemExit(f"--endpoint {name}={url}: {' and '.join(missing)} must have the keys of a user there")
        self.kind = self.name = name
        self.cluster = self
        self.load = driven(url, os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], connections)

    def measured(self, *words):
        return measured(self.load, self.servers, *words)

    def stop(self):
        self.load.close()


class Gateway:
    """A gateway in front of a cluster, and the load generator that drives it."""

    def __init__(self, kind, cluster, directory, connections):
        self.kind, self.cluster, self.port = kind, cluster, free_port()
        self.name = f"{kind} on {cluster.name}"
        directory.mkdir(parents=True, exist_ok=True)
        if kind == "rgw":
            # Without `tcp_nodelay`, the kernel keeps the end of an answer back until the client has acknowledged its beginning.
            argv = ["radosgw", "-c", cluster.conf, "-n", "client.admin", "-f",
                    f"--rgw_frontends=beast endpoint=127.0.0.1:{self.port} tcp_nodelay=1",
                    f"--rgw_data={directory}", f"--log_file={directory}/radosgw.log", f"--admin_socket={directory}/asok", "--debug_rgw=0", "--debug_ms=0",
                    f"--run_dir={directory}"]
        else:
            argv = [BINARY, "s3", "--conf", cluster.conf, "--bind", f"127.0.0.1:{self.port}"]
        self.daemon = Daemon(kind, argv, directory / "output", TCMALLOC if kind == "rgw" else None).spawn()
        wait(f"the gateway {self.name}", self.answers)
        self.load = driven(self.url, ACCESS, SECRET, connections)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def servers(self):
        return {"gateway": [self.daemon.process.pid], "cluster": self.cluster.pids()}

    def answers(self):
        if not self.daemon.running:
            raise SystemExit(f"{self.name} ended: {self.daemon.log.read_text()[-2000:]}")
        try:
            urllib.request.urlopen(self.url, timeout=5).read()
        except urllib.error.HTTPError:
            return True
        except (urllib.error.URLError, OSError):
            return False
        return True

    def measured(self, *words):
        return measured(self.load, self.servers, *words)

    def stop(self):
        self.load.close()
        if self.daemon.running:
            self.daemon.stop()


def prepare(cluster):
    for pool, pgs in POOLS.items():
        cluster.ceph("osd", "pool", "create", pool, str(pgs), str(pgs))
        cluster.ceph("osd", "pool", "application", "enable", pool, "rgw")
    wait("active+clean", cluster.clean)
    sh("radosgw-admin", "-c", cluster.conf, "-n", "client.admin", "user", "create", "--uid=bench", "--display-name=Bench",
       f"--access-key={ACCESS}", f"--secret-key={SECRET}")


def cells(o):
    """The cells: name, a function that makes a gateway ready, and one that measures it."""
    made = set()

    def once(g, name, *plan):
        """Plans and fills, the first time."""
        if (g.name, name) not in made:
            made.add((g.name, name))
            g.load("plan", name, *plan)
            g.load("fill", name)

    for label, size, count in OBJECTS:
        count = max(o.connections, int(count * o.objects_scale))
        for op in ("put", "get"):
            def ready(g, size=size, count=count):
                once(g, f"{size.lower()}-{g.kind}", "--objects", count, "--sizes", size)

            def run(g, op=op, size=size):
                return row(g.measured("load", f"{size.lower()}-{g.kind}", "--ops", op, "--seconds", o.seconds, *rate(o)), op)
            yield f"{label} {op.upper()}", ready, run
    for count in o.lists:
        name = f"list-{count}"

        def ready(g, count=count, name=name):
            # One gateway fills the bucket of both: they serve the same ones.
            key = (g.cluster.name, name)
            filled = ["--filled"] if key in made else []
            if (g.name, name) not in made:
                made.update([key, (g.name, name)])
                g.load("plan", name, "--objects", count, "--sizes", 16, *filled)
                if not filled:
                    g.load("fill", name)

        def run(g, name=name):
            return row(g.measured("load", name, "--ops", "list", "--seconds", o.seconds, *rate(o)), "list")
        yield f"list in {count:,}", ready, run
    deletes = max(o.connections, o.deletes)

    def ready(g):
        name = f"delete-{g.kind}"
        if (g.name, name) not in made:
            made.add((g.name, name))
            g.load("plan", name, "--objects", BATCH * deletes, "--sizes", "4K")
        g.load("fill", name)

    def run(g):
        return row(g.measured("delete-many", f"delete-{g.kind}", "--batch", BATCH), "delete-many")
    yield f"delete of {BATCH} at once", ready, run


def rate(o):
    return ("--rate", o.rate) if o.rate else ()


FIGURES = ("per_second", "mean", "p50", "p99", "p999", "gateway us", "cluster us", "gateway MiB")
HEADS = ("requests/s", "mean us", "p50 us", "p99 us", "p99.9 us", "gateway CPU us/request", "cluster CPU us/request", "gateway MiB")


def table(results):
    """Rows of all gateways, and under them the ratios of ours to Ceph's in front of the same cluster, and of the whole paths."""
    rows = []
    for test, by in results.items():
        rows += [[test, name, *(r.get(f) for f in FIGURES)] for name, r in by.items()]
        for what, ours, theirs in (("on ceph", "siphon on ceph", "rgw on ceph"), ("on siphon", "siphon on siphon", "rgw on siphon"),
                                   ("the whole path", "siphon on siphon", "rgw on ceph")):
            if ours in by and theirs in by:
                rows.append(["", f"**ratio**, {what}", *(by[ours][f] / by[theirs][f] if by[theirs][f] else None for f in FIGURES)])
    return markdown(["test", "gateway", *HEADS], rows)


def path_cpu(r):
    return r["gateway us"] + r["cluster us"]


def record_of(results):
    """Columns, rows and goals of a record: ours in front of Siphon beside `radosgw` there, and beside the stock path."""
    ours, rgw, stock = "siphon on siphon", "rgw on siphon", "rgw on ceph"
    columns = ["our gateway of radosgw, both on Siphon", "requests/s", "p50", "p99", "gateway CPU a request", "whole path's CPU, of stock's"]
    rows, gateway, whole = [], {}, {}
    for test, by in results.items():
        if ours not in by or rgw not in by:
            continue
        pair = lambda figure: [by[ours][figure], by[rgw][figure]]
        path = [path_cpu(by[ours]), path_cpu(by[stock])] if stock in by else "-"
        rows.append([test, pair("per_second"), pair("p50"), pair("p99"), pair("gateway us"), path])
        if test.endswith((" GET", " PUT")):
            gateway[test] = pair("gateway us")
            if stock in by:
                whole[test] = path
    goals = []
    if gateway:
        goals.append({"goal": "S3: CPU of our gateway a request, of radosgw's", "at_most": 0.2, "measured": gateway})
    if whole:
        goals.append({"goal": "S3: CPU of gateway and cluster a request, of stock's", "at_most": 0.1667, "measured": whole})
    return columns, rows, goals


def mix(name, gateways, o):
    """Phases of a mix, each on all gateways in turn: rows by phase and gateway, and what was said by both."""
    results, said = {}, {}
    # An object of the generic mix is some ten times as large.
    objects = max(o.connections, o.objects // GENERIC_LESS if name == "generic" else o.objects)
    plan = lambda g: f"{name}-{g.kind}"
    for g in gateways:
        g.load("plan", plan(g), "--buckets", 3, "--objects", objects, "--sizes", name, "--scale", o.scale)
    phases = [("fill", lambda g: ("fill", plan(g))),
              ("fresh", lambda g: ("load", plan(g), "--ops", "mixed", "--seconds", o.seconds, *rate(o))),
              # As long as each written object has been replaced so often.
              ("age", lambda g: ("load", plan(g), "--ops", "0/88/0/12", "--count", int(3 * objects * o.turnover))),
              ("aged", lambda g: ("load", plan(g), "--ops", "mixed", "--seconds", o.seconds, *rate(o))),
              ("check", lambda g: ("check", plan(g)))]
    for phase, words in phases:
        for g in gateways:
            answer = said[(phase, g.name)] = g.measured(*words(g))
            for kind in answer["kinds"]:
                r = row(answer, kind)
                results.setdefault(f"{name}: {phase}, {kind}", {})[g.name] = r
            total = answer["count"] / answer["seconds"]
            print(f"  {name}, {phase}: {g.name} {total:.0f} requests/s in {answer['seconds']:.0f} s, {answer['failed']} failed", file=sys.stderr, flush=True)
    return results, said


def mix_record(mixes):
    """Columns, rows and goals of mixes: requests a second in the phases, of Ceph's gateway on a stock cluster if it is there; aged over
    fresh; and the slowest seconds."""
    stock = "rgw on ceph"
    of_stock = f", of {stock}" if all((phase, stock) in said for said in mixes.values() for phase in ("fill", "fresh", "aged")) else "/s"
    phases = ("fill", "fresh", "aged")
    columns = ["mix", "gateway", *(phase + of_stock for phase in phases), "aged of fresh", "slowest tenth of the aged seconds, of their mean"]
    rows, of_mix = [], {}
    for name, said in mixes.items():
        rate_of = lambda phase, gateway: said[(phase, gateway)]["count"] / said[(phase, gateway)]["seconds"]
        for gateway in dict.fromkeys(gateway for _, gateway in said):
            pair = [rate_of("aged", gateway), rate_of("fresh", gateway)]
            steady = s3_report.steadiness(said[("aged", gateway)]["ended_each_second"])
            rates = [rate_of(phase, gateway) for phase in phases]
            if of_stock != "/s":
                rates = [[rate, rate_of(phase, stock)] for rate, phase in zip(rates, phases)]
            rows.append([name, gateway, *rates, pair, steady if steady is not None else "-"])
            if gateway == "siphon on siphon":
                of_mix[name] = pair
    goals = [{"goal": "S3: requests/s of the aged mix, of the fresh one", "at_least": 0.9, "measured": of_mix}] if of_mix else []
    return columns, rows, goals


def described(o, gateways, machine):
    """What a report says of its run."""
    lines = [f"{machine}; {o.connections} connections, {f'{o.rate:g} requests/s' if o.rate else 'each waits for its answer'}. Gateways take turns, phase by phase.",
             f"Three buckets of {o.objects} objects are read, three are written; the generic mix has 1/{GENERIC_LESS} of them. Sizes of 1 MiB and more are "
             f"multiplied by {o.scale:.4g}, and at least 64 KiB.",
             f"Fresh and aged hour: {o.seconds:g} s of 44 % reads, 36 % writes, 15 % lists and 5 % deletions. Between them, each written object is replaced "
             f"{o.turnover:g} times on average.",
             "Every body and list was compared with what was acknowledged before."]
    for c in dict.fromkeys(g.cluster for g in gateways if isinstance(g, Gateway)):
        lines.append(f"{c.name}: {sh(BINARY, '--version').strip() if c.name == 'siphon' else sh('ceph', '--version').strip()}, {c.osds} OSDs")
    return lines


def idle(gateways, count):
    """MiB of each gateway with so many connections that have made one request."""
    rows = []
    for g in gateways:
        before, sockets = rss(g.daemon.process.pid) / 2**20, []
        try:
            for _ in range(count):
                s = socket.create_connection(("127.0.0.1", g.port), timeout=30)
                sockets.append(s)
                s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                if not s.recv(65536).startswith(b"HTTP/1.1 "):
                    raise SystemExit(f"{g.name}: no answer on connection {len(sockets)}")
            rows.append([g.name, before, rss(g.daemon.process.pid) / 2**20])
        finally:
            for s in sockets:
                s.close()
    return rows


def options(argv):
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--dir", default=None, help="where the clusters live (default: a new directory in /var/tmp); must be a disk, not tmpfs")
    a.add_argument("--seconds", type=float, default=None, help="length of each run (default: 5)")
    a.add_argument("--rounds", type=int, default=2, help="how often the gateways take turns")
    a.add_argument("--connections", type=int, default=8, help="workers of the load generator, each with a connection")
    a.add_argument("--rate", type=float, default=0, help="requests a second of an open loop, measured from their intended beginnings (default: a closed loop)")
    a.add_argument("--osd-size", type=int, default=5, help="GiB of each OSD")
    a.add_argument("--clusters", default="ceph,siphon", help="which clusters")
    a.add_argument("--gateways", default="siphon,rgw", help="which gateways; the first one fills what both list")
    a.add_argument("--tests", default="", help="only cells whose name begins with one of these, separated by commas")
    a.add_argument("--lists", default="10000", help="objects of the buckets that are listed, separated by commas (1000000 takes long to fill)")
    a.add_argument("--deletes", type=int, default=24, help=f"requests that delete {BATCH} objects, in each round")
    a.add_argument("--objects-scale", type=float, default=1, help="objects of the other cells: 2,000 of 4 KiB, 1,000 of 64 KiB, 48 of 4 MiB, times this")
    a.add_argument("--mix", default="", help="published mixes instead of cells: small, generic, or both, separated by commas")
    a.add_argument("--study", type=float, default=0, help="the published study times this: both mixes, seconds, objects and sizes; what is given beside it holds")
    a.add_argument("--objects", type=int, default=None,
                   help=f"--mix: objects of each of the three buckets that are read and three that are written, for the generic mix 1/{GENERIC_LESS} of it (default: 1000)")
    a.add_argument("--scale", type=float, default=None, help="--mix generic: sizes from 1 MiB on are multiplied by this (default: 1/64)")
    a.add_argument("--turnover", type=float, default=3, help="--mix: how often ageing replaces each written object")
    a.add_argument("--report", metavar="DIR", help="--mix: write report.html, report.md and the plots of the phases to this directory")
    a.add_argument("--endpoint", action="append", default=[], metavar="NAME=URL", help="also drive this endpoint; may be given several times")
    a.add_argument("--idle", type=int, default=0, help="also measure the gateways' memory with so many idle connections")
    a.add_argument("--json", help="also write all figures to this file")
    a.add_argument("--record", help="also write a file for bench/records")
    a.add_argument("--machine", default="two shared cores of a virtual machine", help="--record: what it ran on")
    o = a.parse_args(argv)
    o.lists = [int(n) for n in o.lists.split(",") if n]
    o.mix = [m for m in o.mix.split(",") if m] or (list(MIXES) if o.study else [])
    if wrong := [m for m in o.mix if m not in MIXES]:
        a.error(f"--mix {wrong[0]}: {' or '.join(MIXES)} was expected")
    if o.study:
        published = {"seconds": HOUR * o.study, "objects": int(HOUR_OBJECTS * o.study), "scale": o.study}
    else:
        published = {"seconds": 5.0, "objects": 1000, "scale": 1 / 64}
    for name, value in published.items():
        if getattr(o, name) is None:
            setattr(o, name, value)
    o.endpoint = [e.split("=", 1) for e in o.endpoint]
    if any(len(e) != 2 for e in o.endpoint):
        a.error("--endpoint: NAME=URL was expected")
    return o


def main(argv):
    o = options(argv)
    base = Path(o.dir or tempfile.mkdtemp(prefix="siphon-s3.", dir="/var/tmp"))
    base.mkdir(parents=True, exist_ok=True)
    # For idle connections, here and in the gateways.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    clusters = [k(base / k.name, osd_gb=o.osd_size) for k in (Stock, Siphon) if k.name in o.clusters.split(",")]
    if clusters:
        need_space(base, clusters)
    gateways = []
    try:
        for c in clusters:
            c.start()
            prepare(c)
            gateways += [Gateway(kind, c, base / f"{kind}-{c.name}", o.connections) for kind in o.gateways.split(",")]
        gateways += [Endpoint(name, url, o.connections) for name, url in o.endpoint]
        if o.mix:
            results, mixes = {}, {}
            for name in o.mix:
                of_mix, mixes[name] = mix(name, gateways, o)
                results |= of_mix
                # What was measured so far stays if the next mix fails.
                if o.report:
                    page = s3_report.write(o.report, described(o, gateways, o.machine), mixes)
                    print(f"  {page}", file=sys.stderr, flush=True)
            columns, rows, goals = mix_record(mixes)
            dump = {f"{name}: {phase}: {g}": s for name, said in mixes.items() for (phase, g), s in said.items()}
        else:
            runs = {}
            for test, ready, run in cells(o):
                if o.tests and not test.startswith(tuple(o.tests.split(","))):
                    continue
                for _ in range(o.rounds):
                    for g in gateways:
                        ready(g)
                        r = run(g)
                        runs.setdefault(test, {}).setdefault(g.name, []).append(r)
                        print(f"  {test}: {g.name} {r['per_second']:.0f}/s, p99 {r['p99']:.0f} us, gateway {r['gateway us']:.0f} us, "
                              f"cluster {r['cluster us']:.0f} us, {r['failed']} failed", file=sys.stderr, flush=True)
            results = {test: {name: medians(rs) for name, rs in by.items()} for test, by in runs.items()}
            columns, rows, goals = record_of(results)
            dump = runs
        print("\n" + table(results))
        if o.mix:
            print("\n" + markdown(columns, [[c if not isinstance(c, list) else c[0] / c[1] for c in r] for r in rows]))
        if o.idle:
            print("\n" + markdown(["gateway", "MiB", f"MiB with {o.idle} idle connections"], idle([g for g in gateways if isinstance(g, Gateway)], o.idle)))
        if o.json:
            Path(o.json).write_text(json.dumps(dump, indent=1))
        if o.record:
            record(o.record, "s3", command_of("s3", argv), o.machine, columns, rows, goals)
    finally:
        for g in gateways:
            g.stop()
        for c in clusters:
            c.stop()
        if not o.dir:
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    # What was started ends with the benchmark.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    main(sys.argv[1:])
