#!/usr/bin/env python3
"""What a movement job costs the clients that work meanwhile, without and with a ceiling on their p99.

A pool of a cluster of five OSDs holds data. While fio's rados engine writes 4 KiB at random, `siphon move` drains an
OSD: first without a ceiling, then with one that is a multiple of the p99 of the client alone, measured just before.
After each run the job is undone. Prints for each run the client's p99 before and meanwhile, how many of the stretches
of five seconds were above the ceiling, the bytes moved of those that must move, and the time that it took.
"""
import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clusters import BINARY, ENV, Siphon, need_space, wait
from loads import fio
from trim import client, windows

OSDS = 5
# The manager measures clients' latency over stretches of as many seconds.
STRETCH = 5


def move(cluster, *args):
    out = subprocess.run([str(BINARY), "move", "-c", str(cluster.conf), "--json", *args], env=ENV, capture_output=True, text=True)
    if out.returncode:
        raise SystemExit(f"siphon move {' '.join(args)}: {out.stderr}")
    return json.loads(out.stdout) if out.stdout.strip() else None


def job(cluster, number):
    return move(cluster, "status", str(number))


def alone(cluster, directory, o):
    """The client's p99 without any movement, in microseconds. fio writes its log when it ends."""
    p, log = client(cluster, directory, o.before, o.rate, o.client_size)
    p.communicate()
    if p.returncode:
        raise SystemExit(f"fio: exit {p.returncode}")
    return windows(log, [(1, o.before)])[0]["p99"]


def run(cluster, directory, o, ceiling):
    """A drain beside a client. `ceiling` is a multiple of the client's p99 alone, or None."""
    limit = ("--p99", f"{max(1, round(alone(cluster, directory, o) * ceiling))}us") if ceiling else ()
    p, log = client(cluster, directory, o.seconds, o.rate, o.client_size)
    started = time.monotonic()
    time.sleep(o.before)
    begin = time.monotonic() - started
    number = move(cluster, "start", "drain", f"osd.{OSDS - 1}", *limit)["id"]
    paces = []
    while True:
        j = job(cluster, number)
        paces.append(j["pace"])
        now = time.monotonic() - started
        if j["state"] == "done" or now > o.seconds - 1:
            break
        time.sleep(0.25)
    p.communicate()
    if p.returncode:
        raise SystemExit(f"fio: exit {p.returncode}")
    stretches = [(at, at + STRETCH) for at in range(int(begin), int(now), STRETCH)]
    before, during, *parts = windows(log, [(1, begin), (begin, now), *stretches])
    top = j["limits"]["p99_us"]
    above = sum(bool(w and top and w["p99"] > top) for w in parts)
    move(cluster, "undo", str(number))
    wait("the job to be undone", lambda: job(cluster, number)["state"] == "undone", 600)
    wait("active+clean", cluster.clean, 300)
    return dict(before=before, during=during, ceiling=top, above=above, stretches=len(parts), moved=j["bytes_moved"], bytes=j["bytes"], done=j["state"] == "done",
                seconds=now - begin, pace=statistics.fmean(paces))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--dir", default=None, help="where the cluster lives (default: a new directory in /var/tmp); must be a disk, not tmpfs")
    a.add_argument("--rate", type=int, default=500, help="IOPS of the client; 0 is no limit")
    a.add_argument("--client-size", type=int, default=1024, help="MiB of the pool, which the client overwrites")
    a.add_argument("--ceilings", default="3,1.5", help="multiples of the client's p99 alone")
    a.add_argument("--before", type=int, default=15, help="seconds of the client alone")
    a.add_argument("--seconds", type=int, default=120, help="length of each run; a drain that has not ended by then is counted as it is")
    a.add_argument("--json", help="also write all figures to this file")
    o = a.parse_args()
    base = Path(o.dir or tempfile.mkdtemp(prefix="siphon-move.", dir="/var/tmp"))
    base.mkdir(parents=True, exist_ok=True)
    rows = []
    try:
        cluster = Siphon(base / "siphon", {}, osd_gb=4, osds=OSDS)
        need_space(base, [cluster])
        try:
            cluster.start()
            for kind in "mgr", "osd":
                cluster.ceph("config", "set", kind, "mgr_stats_period", "1")
            cluster.ceph("osd", "set-require-min-compat-client", "luminous")
            fio(cluster, "write", "4m", 8, 0, o.client_size)
            wait("active+clean", cluster.clean)
            for ceiling in (None, *map(float, o.ceilings.split(","))):
                r = run(cluster, base, o, ceiling)
                rows.append((ceiling, r))
                print(f"  ceiling {ceiling}: {r}", file=sys.stderr, flush=True)
        finally:
            cluster.stop()
        print("\n| ceiling, of p99 alone | p99 us alone | ceiling us | p99 us meanwhile | ratio | stretches above | moved, of what must | seconds | mean pace |\n" + "|---" * 9 + "|")
        for ceiling, r in rows:
            b, d = r["before"], r["during"]
            unfinished = "" if r["done"] else " (not ended)"
            print(f"| {ceiling or 'none'} | {b['p99']:.0f} | {r['ceiling'] or '-'} | {d['p99']:.0f} | {d['p99'] / b['p99']:.2f} | {r['above']} of {r['stretches']} | "
                  f"{r['moved'] / r['bytes']:.3f}{unfinished} | {r['seconds']:.1f} | {r['pace']:.2f} |")
        if o.json:
            Path(o.json).write_text(json.dumps(rows, indent=1))
    finally:
        if not o.dir:
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
