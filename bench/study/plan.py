"""Which cells a run has, in what order, of what size, and how long they will take."""
import math
import os
import statistics

PROFILES = {
    "wpq": {"osd_op_queue": "wpq"},
    "high_client_ops": {"osd_op_queue": "mclock_scheduler", "osd_mclock_profile": "high_client_ops"},
    "balanced": {"osd_op_queue": "mclock_scheduler", "osd_mclock_profile": "balanced"},
    "high_recovery_ops": {"osd_op_queue": "mclock_scheduler", "osd_mclock_profile": "high_recovery_ops"},
}

# About how long a cell takes on a stock cluster beside the seconds of its load, until one was measured.
GUESS = {"baseline": 5, "test-a": 45, "test-b": 90, "backfill": 90, "deep-scrub": 45, "pool-delete": 45, "neighbour": 20, "tenants": 20}


def order(targets, profiles, scenarios, repeats):
    """All cells. Clusters take turns within a profile, so that a change of the machine meets them alike; profiles go
    there and back, so that a stock cluster has to be restarted seldom, and none is always the first."""
    cells, forwards = [], True
    for repeat in range(1, repeats + 1):
        for scenario in scenarios:
            for profile in profiles if forwards else profiles[::-1]:
                for target in targets:
                    cells.append({"id": f"{repeat}-{scenario.replace(':', '-')}-{profile}-{target}", "target": target, "profile": profile, "scenario": scenario, "repeat": repeat})
            forwards = not forwards
    return cells


def sizes(scale):
    """At 1 those of the published study: 100000 objects of 4 MiB of which 80 % get clones, 30000 to recover, 30 s of
    the client alone. Below, both the number of objects and their size shrink."""
    if not 0 < scale <= 10:
        raise SystemExit("--scale is between 0 and 10")
    root = math.sqrt(scale)
    size = max(16384, min(4 << 20, 1 << int(math.log2((4 << 20) * min(scale, 1)))))
    return {
        "objects": max(200, round(100000 * scale)), "overwritten": 0.8, "overwritten_b": 0.7, "object_size": size,
        "recovery_objects": max(200, round(30000 * scale)), "recovery_size": size,
        "image_mb": max(256, min(65536, round(10240 * scale))), "client_depth": 64,
        "lead": max(8.0, round(30 * root, 1)) if scale < 1 else 30.0, "warm_up": 2.0, "tail": max(2.0, round(10 * root, 1)),
        "limit": max(60.0, round(600 * root, 1)), "baseline": max(10.0, round(120 * root, 1)), "beside": max(8.0, round(60 * root, 1)),
        "settle_limit": 900.0, "pgs": 64, "backfills": 8, "sample_period": 1.0,
    }


def automatic_scale(free_bytes, cores=None):
    """What this machine can do, clusters of its own and clients together. Two copies of three replicas of everything
    may take half of what is free."""
    cores = cores or os.cpu_count() or 1
    full = 100000 * (4 << 20) * 3 * 2
    return round(max(0.01, min(1.0, cores / 32, math.sqrt(free_bytes / 2 / full))), 3)


def load_seconds(scenario, s):
    """How long the load of a cell lasts, at a guess."""
    if scenario == "baseline":
        return s["warm_up"] + s["baseline"]
    if scenario.startswith("neighbour") or scenario == "tenants":
        return s["warm_up"] + s["lead"] + s["beside"]
    return s["warm_up"] + s["lead"] + s["tail"] + min(s["limit"], s["objects"] / 400)


class Eta:
    """How long is left: cells take what the same scenario took on the same cluster, once that is known."""

    def __init__(self, s):
        self.sizes, self.took = s, {}

    def add(self, cell, seconds):
        self.took.setdefault((cell["target"], cell["scenario"]), []).append(seconds)

    def of(self, cell):
        for known in (self.took.get((cell["target"], cell["scenario"])), [t for (_, s), ts in self.took.items() if s == cell["scenario"] for t in ts]):
            if known:
                return statistics.mean(known)
        guess = GUESS.get(cell["scenario"].split(":")[0], 60)
        return guess + load_seconds(cell["scenario"], self.sizes)

    def left(self, cells):
        return sum(self.of(c) for c in cells)
