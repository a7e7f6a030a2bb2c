"""What a scheduler takes from background work when nobody else is there.

    cargo xtask bench idle [--rounds 3] [--objects 30000]

A cluster of Siphon for each scheduler and profile; they take turns, so that the machine is about the same for all. Each trims
a snapshot of which every object has a clone, while nothing else goes on. Measured is the time until the OSDs have begun the last
one, and the rate beside that under fifo, which schedules nothing.
"""
import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from clusters import Siphon, need_space, wait
from trim import Clones

SCHEDULERS = {
    "fifo": {"osd_op_queue": "fifo"},
    "wpq": {"osd_op_queue": "wpq"},
    "high_client_ops": {"osd_mclock_profile": "high_client_ops"},
    "balanced": {"osd_mclock_profile": "balanced"},
    "high_recovery_ops": {"osd_mclock_profile": "high_recovery_ops"},
}


def begun(cluster):
    """Background operations that OSDs have begun."""
    dumps = [json.loads(cluster.ceph("tell", f"osd.{i}", "dump_qos")) for i in range(cluster.osds)]
    return sum(d["classes"]["background_best_effort"]["served"] for d in dumps)


def trim(cluster, clones):
    """Clones a second."""
    clones.snapshot()
    before = begun(cluster)
    clones.remove()
    wait("trimming to begin", lambda: begun(cluster) > before)
    first, since = begun(cluster), time.monotonic()
    wait("trimming to end", lambda: begun(cluster) >= before + clones.objects, seconds=600)
    return (before + clones.objects - first) / (time.monotonic() - since)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--objects", type=int, default=30000)
    a.add_argument("--object-size", type=int, default=4096)
    a.add_argument("--schedulers", default=",".join(SCHEDULERS))
    a.add_argument("--dir", default="/var/tmp")
    o = a.parse_args()
    names = o.schedulers.split(",")
    with tempfile.TemporaryDirectory(prefix="idle.", dir=o.dir) as d:
        clusters, clones, rates = {}, {}, {name: [] for name in names}
        try:
            for name in names:
                clusters[name] = Siphon(Path(d) / name, SCHEDULERS[name], 4)
            need_space(o.dir, clusters.values())
            for name, cluster in clusters.items():
                cluster.start()
                for who in ("mgr", "osd"):
                    cluster.ceph("config", "set", who, "mgr_stats_period", "1")
                clones[name] = Clones(cluster, o.objects, o.object_size)
            for n in range(o.rounds):
                for name in names[::-1] if n % 2 else names:
                    rates[name].append(trim(clusters[name], clones[name]))
        finally:
            for c in clones.values():
                c.close()
            for cluster in clusters.values():
                cluster.stop()
    print("| scheduler | clones a second | of fifo's, round by round | median |\n| --- | --- | --- | --- |")
    for name in names:
        parts = [100 * r / f for r, f in zip(rates[name], rates[names[0]])]
        print(f"| {name} | {', '.join(f'{r:.0f}' for r in rates[name])} | {', '.join(f'{p:.0f} %' for p in parts)} | {statistics.median(parts):.0f} % |")


if __name__ == "__main__":
    main()
