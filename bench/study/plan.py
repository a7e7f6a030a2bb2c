"""Which cells a run has, in what order, of what size, and how long they will take."""
import math
import os
import statistics

BUILT_IN = ("high_client_ops", "balanced", "high_recovery_ops")
CLASSES = ("client", "background_recovery", "background_best_effort")


def mclock(profile, **more):
    return {"osd_op_queue": "mclock_scheduler", "osd_mclock_profile": profile, **more}


PROFILES = {
    "wpq": {"osd_op_queue": "wpq"},
    **{name: mclock(name) for name in BUILT_IN},
    "fifo": {"osd_op_queue": "fifo"},
    "auto": mclock("auto"),
    "custom": mclock("custom"),
    # With the allocations of Ceph 16.2 and the first versions of 17.2.
    **{f"quincy-{name}": mclock(name, osd_mclock_allocations="quincy") for name in BUILT_IN},
    # With those of the study that was published of Quincy.
    **{f"quincy-study-{name}": mclock(name, osd_mclock_allocations="quincy_study") for name in BUILT_IN},
}
# What a run has unless it is told otherwise: those that stock clusters have as well.
DEFAULT = ("wpq", *BUILT_IN)
# Several by one name.
GROUPS = {of: tuple(f"{of}-{name}" for name in BUILT_IN) for of in ("quincy", "quincy-study")}


def only_siphon(profile):
    """Whether a stock cluster has no such scheduler, profile or allocations."""
    return profile not in DEFAULT and profile != "custom"


def expand(names):
    """Profiles from names of them and of groups, each once."""
    wanted = list(dict.fromkeys(p for name in names for p in GROUPS.get(name, (name,))))
    for name in wanted:
        if name not in PROFILES:
            raise SystemExit(f"there is no profile {name}; there are {', '.join([*PROFILES, *GROUPS])}")
    return wanted


def custom(texts):
    """Options of the profile `custom` from CLASS=RESERVATION/WEIGHT/LIMIT; reservation and limit are parts of what an OSD can
    do, and a limit of 0 is none."""
    options, reserved = {}, 0.0
    for text in texts:
        name, _, values = text.partition("=")
        name = name if name in CLASSES else f"background_{name}"
        try:
            reservation, weight, limit = (kind(v) for kind, v in zip((float, int, float), values.split("/"), strict=True))
        except ValueError:
            raise SystemExit(f"--custom {text} is not of the form CLASS=RESERVATION/WEIGHT/LIMIT") from None
        if name not in CLASSES:
            raise SystemExit(f"--custom {text}: there is no such class; there are {', '.join(CLASSES)}")
        if not (0 <= reservation <= 1 and 0 <= limit <= 1 and weight >= 1):
            raise SystemExit(f"--custom {text}: reservation and limit are from 0 to 1, a weight is at least 1")
        reserved += reservation
        options |= {f"osd_mclock_scheduler_{name}_{what}": f"{value:g}" for what, value in (("res", reservation), ("wgt", weight), ("lim", limit))}
    if reserved > 1:
        raise SystemExit(f"--custom: reservations add up to {100 * reserved:g} %")
    return options


def settings(profile, siphon, custom=None):
    """The options of OSDs that make a profile. What built-in profiles allocate is said on Siphon, where it is a choice."""
    wanted = dict(PROFILES[profile])
    if siphon and profile in BUILT_IN:
        wanted["osd_mclock_allocations"] = "reef"
    return wanted | (custom or {} if profile == "custom" else {})


def is_of_profiles(option):
    """Whether some profile needs it."""
    return option == "osd_mclock_allocations" or option.startswith("osd_mclock_scheduler_") or any(option in p for p in PROFILES.values())


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
