#!/usr/bin/env python3
"""Siphon beside a stock Ceph: same machine, same file system, same clients, in turn.

Starts a stock cluster from Debian's packages (one monitor, one mgr, three OSDs) and a Siphon cluster of
three OSDs, makes a pool of size 3 on each, and drives both with fio's rados engine and `rados bench`,
A B A B, so that a machine that gets slower hurts both. Prints IOPS, latency, server CPU per operation
(user + system time of all server processes), peak memory, the ratios, and what the bare work costs.

With --rbd the same for block devices (see images.py): fio's rbd engine on images.

With --against BINARY another build of Siphon takes the place of the stock cluster: what a change costs.

With --ec 2+1,2+2,4+2 erasure-coded pools of these shapes beside a stock Ceph's and beside three replicas (see erasure.py).
"""
import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import erasure
import images
from clusters import ROOT, Siphon, Stock, need_space, rss, sh
from compare import in_turn
from loads import fio, rados_bench


def workloads(seconds, size_mb):
    for name, direction, test in [
        ("4 KiB random write, QD 1", "write", lambda c: fio(c, "randwrite", "4k", 1, seconds, size_mb)),
        ("4 KiB random write, QD 32", "write", lambda c: fio(c, "randwrite", "4k", 32, seconds, size_mb)),
        ("4 KiB random read, QD 1", "read", lambda c: fio(c, "randread", "4k", 1, seconds, size_mb)),
        ("4 KiB random read, QD 32", "read", lambda c: fio(c, "randread", "4k", 32, seconds, size_mb)),
        ("rados bench 4 KiB write, t 16", None, lambda c: rados_bench(c, "write", 4096, 16, seconds)),
        ("rados bench 4 KiB read, t 16", None, lambda c: rados_bench(c, "rand", 4096, 16, seconds)),
        ("rados bench 4 MiB write, t 16", None, lambda c: rados_bench(c, "write", 4 << 20, 16, seconds)),
        ("rados bench 4 MiB read, t 16", None, lambda c: rados_bench(c, "rand", 4 << 20, 16, seconds)),
    ]:
        yield name, lambda c, name=name, direction=direction, test=test: [(name, direction, test(c))]


def floor(directory, seconds):
    """The same work without a storage system: echo over loopback TCP, and append + fdatasync."""
    source, binary = ROOT / "bench/floor.c", Path(directory) / "floor"
    sh("cc", "-O2", "-o", binary, source)
    print("\n| the floor | result |\n|---|---|")
    for name, args in [
        ("echo, 4 KiB request, 200 B reply, QD 32 (a write's bytes)", ["echo", "4400", "200", "32"]),
        ("echo, 300 B request, 4 KiB reply, QD 32 (a read's bytes)", ["echo", "300", "4300", "32"]),
        ("echo, 4 KiB request, QD 1", ["echo", "4400", "200", "1"]),
        ("append 4 KiB + fdatasync", ["log", Path(directory) / "floor.log", "4096"]),
        ("append 128 KiB + fdatasync (a batch of 32 writes)", ["log", Path(directory) / "floor.log", str(128 << 10)]),
    ]:
        r = subprocess.run([str(binary), *map(str, args), str(seconds)], capture_output=True, text=True)
        print(f"| {name} | {' / '.join((r.stdout + r.stderr).split(chr(10))).strip(' /')} |", flush=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--dir", default=None, help="where the clusters live (default: a new directory in /var/tmp); must be a disk, not tmpfs")
    a.add_argument("--seconds", type=int, default=10, help="length of each run")
    a.add_argument("--rounds", type=int, default=3, help="how often A and B take turns")
    a.add_argument("--size", type=int, default=1024, help="MiB of objects for fio, or of the image")
    a.add_argument("--osd-size", type=int, default=0, help="GiB of each OSD (default: 20, of block devices 5)")
    a.add_argument("--rbd", action="store_true", help="block devices instead of objects")
    a.add_argument("--ec", default="", metavar="SHAPES", help="erasure-coded pools instead, of these shapes, as 2+1,4+2; with --rbd images in them")
    a.add_argument("--count", type=int, default=16384, help="--rbd: writes after a snapshot, and to a clone")
    a.add_argument("--objects", type=int, default=2048, help="--rbd: objects of a fresh image")
    a.add_argument("--against", metavar="BINARY", help="another build of Siphon in the place of the stock cluster")
    a.add_argument("--only", choices=["ceph", "siphon"], help="run one side alone")
    a.add_argument("--tests", default="", help="only tests whose name contains this")
    a.add_argument("--json", help="also write all figures to this file")
    a.add_argument("--record", help="--ec: also write a file for bench/records")
    a.add_argument("--machine", default="two shared cores of a virtual machine", help="--record: what it ran on")
    a.add_argument("--no-floor", action="store_true")
    o = a.parse_args()
    if o.ec:
        erasure.run(o)
        return
    base = Path(o.dir or tempfile.mkdtemp(prefix="siphon-peer.", dir="/var/tmp"))
    base.mkdir(parents=True, exist_ok=True)
    osd_gb = o.osd_size or (5 if o.rbd else 20)
    other = type("Other", (Siphon,), {"name": "other", "binary": Path(o.against)}) if o.against else Stock
    clusters = [k(base / k.name, osd_gb=osd_gb) for k in (other, Siphon) if o.only in (None, k.name)]
    need_space(base, clusters)
    try:
        for c in clusters:
            c.start()
            print(f"{c.name}: healthy and pool ready after {c.healthy_s:.1f} s, {sum(rss(p) for p in c.pids()) / 2**20:.0f} MiB resident at rest", flush=True)
        if o.rbd:
            tests = images.workloads(o.seconds, o.size, o.count, o.objects)
        else:
            for c in clusters:
                fio(c, "write", "4m", 8, 0, o.size)
            tests = workloads(o.seconds, o.size)
        results = in_turn(clusters, tests, o.rounds, o.tests)
        results.table()
        if o.rbd:
            images.first_costs(results, clusters, o.count)
        if not o.no_floor and not o.rbd:
            floor(base, min(o.seconds, 5))
        if o.json:
            Path(o.json).write_text(json.dumps(results.dump(), indent=1))
    finally:
        for c in clusters:
            c.stop()
        if not o.dir:
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
