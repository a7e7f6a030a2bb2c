"""What scheduling costs a server: processor time of an operation with mClock and its tenants, and with WPQ, which has neither
tenants nor learned costs.

    cargo xtask bench scheduling [--rounds 5] [--seconds 6]

Two clusters of Siphon, one with each scheduler, take turns: the machine is then about the same for both. The client is fio on
objects, 4 KiB, at the given depth; the median of the rounds' ratios is what counts.
"""
import argparse
import statistics
import tempfile
from pathlib import Path

from clusters import Siphon, cpu_seconds
from neighbours import Load

POOL = "victim"


def cost(cluster, mode, o):
    """Microseconds of the server's processor time for each operation, and operations each second."""
    before = sum(cpu_seconds(p.pid) for p in cluster.processes)
    figures = Load(cluster, POOL, 1, mode, o.depth, seconds=o.seconds).finish()[-1][1]
    after = sum(cpu_seconds(p.pid) for p in cluster.processes)
    return (after - before) / figures["total_ios"] * 1e6, figures["iops"]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--seconds", type=int, default=6)
    a.add_argument("--depth", type=int, default=32)
    a.add_argument("--modes", default="write,read")
    a.add_argument("--osd-size", type=int, default=10, help="GiB")
    a.add_argument("--dir", default="/var/tmp")
    o = a.parse_args()
    with tempfile.TemporaryDirectory(prefix="scheduling.", dir=o.dir) as d:
        clusters = {}
        try:
            for name in ("wpq", "mclock_scheduler"):
                clusters[name] = Siphon(Path(d) / name, {"osd_op_queue": name}, o.osd_size)
                clusters[name].start()
                clusters[name].make_pool(POOL, 32)
                Load(clusters[name], POOL, 1, "write", o.depth, fill=True).finish()
            print("| | CPU us/op with WPQ | with mClock | ratios | median | IOPS |\n|---|---|---|---|---|---|")
            for mode in o.modes.split(","):
                found = []
                for n in range(o.rounds):
                    order = list(clusters) if n % 2 else list(clusters)[::-1]
                    found.append({name: cost(clusters[name], mode, o) for name in order})
                us = {name: statistics.median(f[name][0] for f in found) for name in clusters}
                ratios = [f["mclock_scheduler"][0] / f["wpq"][0] for f in found]
                iops = ", ".join(f"{statistics.median(f[name][1] for f in found):.0f}" for name in clusters)
                print(f"| {mode} | {us['wpq']:.1f} | {us['mclock_scheduler']:.1f} | {', '.join(f'{r:.3f}' for r in ratios)} | **{statistics.median(ratios):.3f}** | {iops} |", flush=True)
        finally:
            for cluster in clusters.values():
                cluster.stop()


if __name__ == "__main__":
    main()
