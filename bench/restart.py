#!/usr/bin/env python3
"""How soon a Siphon cluster with many objects is healthy again, and how much memory it takes.

Fills a pool with small objects, then starts the cluster again: after an orderly stop, with what the operating
system has cached and without, and after SIGKILL while clients write. Times are those that `siphon up` prints,
from the start of the process until all placement groups are active and clean.
"""
import argparse
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from clusters import BINARY, ENV, Siphon, rss


def peak(pid):
    """The most memory that the process had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) << 10


def writers(cluster, objects, size, run, seconds=None):
    """`rados bench`, four at a time."""
    argv = ["rados", "-c", str(cluster.conf), "-p", "bench", "bench", str(seconds or 100_000), "write",
            "-b", str(size), "-t", "64", "--no-cleanup"]
    if objects:
        argv += ["--max-objects", str(objects // 4)]
    return [subprocess.Popen([*argv, "--run-name", f"{run}.{i}"], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for i in range(4)]


def start(cluster, what):
    """Starts the cluster and prints how long it took."""
    cluster.up()
    pid = cluster.processes[0].pid
    print(f"| {what} | {cluster.took:.2f} s | {rss(pid) >> 20} MiB |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--objects", type=int, default=1_000_000, help="objects in the pool (default 1000000)")
    p.add_argument("--size", type=int, default=512, help="bytes of each (default 512)")
    p.add_argument("--dir", default="/var/tmp", help="where the cluster's files go (about 30 GB for a million objects)")
    o = p.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="siphon-restart.", dir=o.dir))
    cluster = Siphon(directory / "siphon")
    try:
        cluster.start()
        for w in writers(cluster, o.objects, o.size, "fill"):
            w.wait()
        pid = cluster.processes[0].pid
        print(f"{o.objects} objects of {o.size} bytes, three OSDs; {peak(pid) >> 20} MiB at most while they were written.\n")
        print("| start | healthy after | resident then |\n|---|---|---|")
        cluster.stop()
        start(cluster, "after an orderly stop")
        cluster.stop()
        start(cluster, "once more")
        cluster.stop()
        subprocess.run(["sync"], check=True)
        Path("/proc/sys/vm/drop_caches").write_text("3")
        start(cluster, "the operating system has nothing cached")
        for round_ in range(3):
            clients = writers(cluster, None, o.size, f"kill{round_}", seconds=30)
            threading.Event().wait(10)
            cluster.processes[0].kill()
            cluster.processes[0].wait()
            for c in clients:
                c.kill()
                c.wait()
            start(cluster, "after SIGKILL, ten seconds into writing")
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
