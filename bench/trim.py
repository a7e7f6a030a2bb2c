#!/usr/bin/env python3
"""What trimming a snapshot costs the clients who work meanwhile.

A pool holds objects that were all overwritten after a snapshot, so each has one clone. While fio's rados
engine writes 4 KiB at random to another pool, the snapshot is removed, and the cluster trims the clones.
Prints the client's latency before and while the clones go, and how fast they go; for each scheduler
(osd_op_queue), with a client of a fixed moderate rate and one without a limit; for Siphon, and with --ceph
for a stock cluster as well.
"""
import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import rados

from clusters import ENV, Siphon, Stock, cpu_seconds, need_space, wait
from loads import fio

# Name, and options of the OSDs.
SCHEDULERS = {
    "wpq": {"osd_op_queue": "wpq"},
    "mclock, balanced": {"osd_op_queue": "mclock_scheduler", "osd_mclock_profile": "balanced"},
    "mclock, high_client_ops": {"osd_op_queue": "mclock_scheduler", "osd_mclock_profile": "high_client_ops"},
}


class Clones:
    """A pool whose objects all have a clone."""

    def __init__(self, cluster, objects, size):
        self.cluster, self.objects, self.size, self.snaps = cluster, objects, size, 0
        cluster.make_pool("trim")
        self.rados = rados.Rados(conffile=str(cluster.conf))
        self.rados.connect(30)
        self.io = self.rados.open_ioctx("trim")
        self.each(lambda name, done: self.io.aio_write_full(name, bytes(size), oncomplete=done))

    def each(self, write):
        room = threading.BoundedSemaphore(64)
        failed = []

        def done(completion):
            if completion.get_return_value() < 0:
                failed.append(completion.get_return_value())
            room.release()

        for i in range(self.objects):
            room.acquire()
            write(f"object{i}", done)
        for _ in range(64):
            room.acquire()
        for _ in range(64):
            room.release()
        if failed:
            raise SystemExit(f"{self.cluster.name}: a write failed: {failed[0]}")

    def snapshot(self):
        self.snaps += 1
        self.io.create_snap(f"snap{self.snaps}")
        patch = b"x" * min(4096, self.size)
        self.each(lambda name, done: self.io.aio_write(name, patch, 0, oncomplete=done))
        wait("all clones to be counted", lambda: self.left() == self.objects)

    def remove(self):
        self.io.remove_snap(f"snap{self.snaps}")

    def left(self):
        """Clones as the manager counts them, which is a report behind."""
        _, out, _ = self.rados.mgr_command(json.dumps({"prefix": "pg dump", "dumpcontents": ["pools"], "format": "json"}), b"", 30)
        pools = json.loads(out)["pool_stats"]
        return next((p["stat_sum"]["num_object_clones"] for p in pools if p["poolid"] == self.io.get_pool_id()), 0)

    def states(self):
        """Groups that trim, and that wait for their turn, as `ceph -s` shows them."""
        _, out, _ = self.rados.mon_command(json.dumps({"prefix": "status", "format": "json"}), b"", 30)
        states = json.loads(out)["pgmap"].get("pgs_by_state", [])
        count = lambda state: sum(s["count"] for s in states if state in s["state_name"].split("+"))
        return count("snaptrim"), count("snaptrim_wait")

    def close(self):
        self.io.close()
        self.rados.shutdown()


def windows(log, marks):
    """Mean, 99th percentile and rate of the operations that ended in each window of seconds."""
    samples = [[] for _ in marks]
    for line in open(log):
        at, nanoseconds, *_ = line.split(",")
        second = int(at) / 1000
        for (start, end), s in zip(marks, samples):
            if start <= second < end:
                s.append(int(nanoseconds) / 1000)
    out = []
    for (start, end), s in zip(marks, samples):
        s.sort()
        out.append(dict(iops=len(s) / (end - start), mean=statistics.fmean(s), p99=s[int(len(s) * 0.99)]) if s else None)
    return out


def client(cluster, directory, seconds, rate, size_mb, extra=()):
    """fio in the background. Returns the process and the file with the latency of each operation."""
    prefix = directory / "lat"
    for old in directory.glob("lat*"):
        old.unlink()
    argv = ["fio", "--name=client", "--ioengine=rados", "--clientname=admin", f"--conf={cluster.conf}", "--pool=bench", "--busy_poll=0", "--touch_objects=0",
            "--rw=randwrite", "--bs=4k", "--iodepth=32", f"--size={size_mb}M", f"--nrfiles={max(1, size_mb // 4)}", "--file_service_type=random", "--randrepeat=0",
            "--time_based", f"--runtime={seconds}", f"--write_lat_log={prefix}", "--output-format=json", *extra]
    if rate:
        argv.append(f"--rate_iops={rate}")
    p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENV)
    return p, directory / "lat_clat.1.log"


def run(cluster, clones, directory, rate, o):
    """One trim beside one client."""
    clones.snapshot()
    p, log = client(cluster, directory, o.seconds, rate, o.client_size)
    started = time.monotonic()
    time.sleep(o.before)
    cpu = sum(cpu_seconds(x) for x in cluster.pids())
    clones.remove()
    begin = time.monotonic() - started
    seen = waiting = 0
    while True:
        left = clones.left()
        trimming, queued = clones.states()
        seen, waiting = max(seen, trimming), max(waiting, queued)
        now = time.monotonic() - started
        if left == 0 or now > o.seconds - 1:
            break
        time.sleep(0.25)
    cpu = sum(cpu_seconds(x) for x in cluster.pids()) - cpu
    p.communicate()
    if p.returncode:
        raise SystemExit(f"fio: exit {p.returncode}")
    before, during = windows(log, [(1, begin), (begin, now)])
    return dict(before=before, during=during, trimmed=clones.objects - left, seconds=now - begin, left=left, cores=cpu / (now - begin), seen=seen, waiting=waiting)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--dir", default=None, help="where the clusters live (default: a new directory in /var/tmp); must be a disk, not tmpfs")
    a.add_argument("--objects", type=int, default=20000, help="objects with a clone each")
    a.add_argument("--object-size", type=int, default=16384, help="bytes of each")
    a.add_argument("--rate", type=int, default=1000, help="IOPS of the moderate client")
    a.add_argument("--client-size", type=int, default=256, help="MiB of objects of the client")
    a.add_argument("--before", type=int, default=8, help="seconds of the client alone")
    a.add_argument("--seconds", type=int, default=45, help="length of each run; the trim must end in it")
    a.add_argument("--only", default="", help="only schedulers whose name contains this")
    a.add_argument("--ceph", action="store_true", help="a stock cluster as well")
    a.add_argument("--no-siphon", action="store_true")
    a.add_argument("--json", help="also write all figures to this file")
    o = a.parse_args()
    base = Path(o.dir or tempfile.mkdtemp(prefix="siphon-trim.", dir="/var/tmp"))
    base.mkdir(parents=True, exist_ok=True)
    rows = []
    try:
        for name, options in SCHEDULERS.items():
            if o.only not in name:
                continue
            for kind in [Stock] * o.ceph + [Siphon] * (not o.no_siphon):
                directory = base / kind.name
                cluster = kind(directory, options, osd_gb=4)
                need_space(base, [cluster])
                try:
                    cluster.start()
                    cluster.ceph("config", "set", "mgr", "mgr_stats_period", "1")
                    cluster.ceph("config", "set", "osd", "mgr_stats_period", "1")
                    fio(cluster, "write", "4m", 8, 0, o.client_size)
                    clones = Clones(cluster, o.objects, o.object_size)
                    for label, rate in ((f"{o.rate} IOPS", o.rate), ("no limit", 0)):
                        r = run(cluster, clones, base, rate, o)
                        rows.append((name, label, cluster.name, r))
                        print(f"  {name}, {label}: {cluster.name} {r}", file=sys.stderr, flush=True)
                    clones.close()
                finally:
                    cluster.stop()
                    shutil.rmtree(directory, ignore_errors=True)
        print("\n| scheduler | client | system | IOPS before | while trimming | mean us before | while trimming | p99 us before | while trimming | clones/s | seconds | server cores | groups seen trimming, waiting |\n" + "|---" * 13 + "|")
        for name, label, system, r in rows:
            b, d = r["before"], r["during"] or dict(iops=0, mean=0, p99=0)
            unfinished = f" ({r['left']} left)" if r["left"] else ""
            print(f"| {name} | {label} | {system} | {b['iops']:.0f} | {d['iops']:.0f} ({d['iops'] / b['iops']:.2f} x) | {b['mean']:.0f} | {d['mean']:.0f} ({d['mean'] / b['mean']:.2f} x) | "
                  f"{b['p99']:.0f} | {d['p99']:.0f} ({d['p99'] / b['p99']:.2f} x) | {r['trimmed'] / r['seconds']:.0f} | {r['seconds']:.1f}{unfinished} | {r['cores']:.2f} | {r['seen']}, {r['waiting']} |")
        if o.json:
            Path(o.json).write_text(json.dumps([(n, l, s, r) for n, l, s, r in rows], indent=1))
    finally:
        if not o.dir:
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
