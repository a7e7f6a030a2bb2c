"""Runs workloads on clusters in turn, and shows what they measured side by side."""
import sys

from loads import medians

# What Siphon aims at: this part of the stock cluster's CPU per operation.
AIMS = {"read": 4, "write": 8}


class Results:
    """Rows by test and cluster. A test is a name and a direction, `read`, `write` or none."""

    def __init__(self):
        self.rows = {}

    def add(self, name, direction, cluster, row):
        self.rows.setdefault((name, direction), {}).setdefault(cluster, []).append(row)
        print(f"  {name}: {cluster} {row['iops']:.0f} IOPS, {row['cpu']:.0f} us CPU/op, mean {row['mean']:.0f} us", file=sys.stderr, flush=True)

    def median(self, name, cluster):
        """The medians of the first test of this name."""
        for (n, _), by in self.rows.items():
            if n == name and cluster in by:
                return medians(by[cluster])
        return None

    def dump(self):
        return {f"{name} ({direction})" if direction else name: by for (name, direction), by in self.rows.items()}

    def table(self):
        columns = ("iops", "mean", "p50", "p99", "p999", "cpu", "client", "rss")
        cell = lambda v: "-" if v is None else f"{v:.0f}"
        print("\n| test | system | IOPS | mean us | p50 us | p99 us | p99.9 us | server CPU us/op | client CPU us/op | peak RSS MiB |\n" + "|---" * 10 + "|")
        for (name, direction), by in self.rows.items():
            m = {cluster: medians(rows) for cluster, rows in by.items()}
            for cluster, r in m.items():
                print(f"| {name} | {cluster} | " + " | ".join(cell(r[k]) for k in columns) + " |")
            if len(m) == 2:
                other = next(cluster for cluster in m if cluster != "siphon")
                print(ratios(name, direction if other == "ceph" else None, m[other], m["siphon"]))


def ratios(name, direction, c, s):
    def times(key):
        return f"{s[key] / c[key]:.2f} x" if c[key] and s[key] is not None else ""

    aim = AIMS.get(direction)
    cpu = c["cpu"] / max(s["cpu"], 1e-9)
    p99 = times("p99")
    if aim:
        cpu_met = f" (aim 1 / {aim}{'' if cpu >= aim else ', missed'})"
        p99 += "" if s["p99"] < c["p99"] else " (aim < 1, missed)"
    else:
        cpu_met = ""
    return f"| | **ratio** | {times('iops')} | {times('mean')} | {times('p50')} | {p99} | {times('p999')} | 1 / {cpu:.1f}{cpu_met} | {times('client')} | |"


def in_turn(clusters, workloads, rounds, wanted):
    """A B A B. A workload is its name and a function from a cluster to rows, each with a name and a direction.
    Only those whose name contains `wanted` run."""
    results = Results()
    for name, test in workloads:
        if wanted not in name:
            continue
        for _ in range(rounds):
            for c in clusters:
                for test_name, direction, row in test(c):
                    results.add(test_name, direction, c.name, row)
    return results
