"""Arithmetic on what was recorded: latencies in a window of time, rates of background work, and the rows of tables.

Latencies are histograms with fio's bins, one for each second of each job: exact to 1.6 %, and any windows can be
added up later. A row of loads.jsonl is {"load", "job", "from", "t", "n", "bins": {bin: count}}, times in seconds of
Unix time; a row of background.jsonl is {"t", "left": {job: amount}, "cpu", "states", ...}.
"""
import statistics
from collections import Counter, defaultdict

GROUP_BITS = 6
PERCENTILES = {"p50": 50, "p95": 95, "p99": 99, "p995": 99.5}


def bin_value(i):
    """The latency in nanoseconds in the middle of a bin of fio's (stat.c: groups of 64 bins, each group of twice the
    width of the one before)."""
    if i < 2 << GROUP_BITS:
        return float(i)
    width = 1 << ((i >> GROUP_BITS) - 1)
    return (width << GROUP_BITS) + ((i % (1 << GROUP_BITS)) + 0.5) * width


def bin_of(nanoseconds):
    """The bin of a latency; of loads whose driver knows single latencies."""
    n = int(nanoseconds)
    if n < 2 << GROUP_BITS:
        return max(n, 0)
    shift = n.bit_length() - 1 - GROUP_BITS
    return ((shift + 1) << GROUP_BITS) + ((n >> shift) & ((1 << GROUP_BITS) - 1))


def percentile(bins, percent):
    """Of a histogram, in milliseconds. None if it is empty."""
    wanted, seen = percent / 100 * sum(bins.values()), 0
    for i in sorted(bins):
        seen += bins[i]
        if seen >= wanted:
            return bin_value(i) / 1e6
    return None


def mean(bins):
    total = sum(bins.values())
    return sum(bin_value(i) * n for i, n in bins.items()) / total / 1e6 if total else None


def parts(rows, start, end):
    """The histogram of the operations that ended in a window. A row that reaches over its border counts in part."""
    bins = Counter()
    for r in rows:
        length = max(r["t"] - r["from"], 1e-6)
        part = (min(r["t"], end) - max(r["from"], start)) / length
        if part > 0:
            for i, n in r["bins"].items():
                bins[int(i)] += n * part
    return bins


def window(rows, start, end):
    """What a load did between two moments: operations a second and latencies in milliseconds."""
    bins = parts(rows, start, end)
    out = {"seconds": end - start, "n": sum(bins.values()), "iops": sum(bins.values()) / (end - start) if end > start else None, "mean": mean(bins)}
    return out | {name: percentile(bins, p) for name, p in PERCENTILES.items()}


def seconds(rows, origin):
    """Second by second from the origin: [(second, operations, mean, p99)]."""
    by = defaultdict(Counter)
    for r in rows:
        length = max(r["t"] - r["from"], 1e-6)
        for k in range(int((r["from"] - origin) // 1), int((r["t"] - origin) // 1) + 1):
            part = (min(r["t"], origin + k + 1) - max(r["from"], origin + k)) / length
            if part > 0:
                for i, n in r["bins"].items():
                    by[k][int(i)] += n * part
    return [(k, sum(b.values()), mean(b), percentile(b, 99)) for k, b in sorted(by.items())]


def rates(samples, job, origin, over=2.0):
    """What a background job did each second, from what it had left: [(second, rate)]. Servers report once a second or
    less often, so that a rate is one over two seconds."""
    seen = [(s["t"] - origin, s["left"][job]) for s in samples if s.get("left", {}).get(job) is not None]
    out, at = [], 0
    for i in range(1, len(seen)):
        if seen[i][0] - seen[at][0] >= over:
            out.append(((seen[i][0] + seen[at][0]) / 2, (seen[at][1] - seen[i][1]) / (seen[i][0] - seen[at][0])))
            at = i
    return out


def cores(samples, start, end, of="cpu"):
    """How many cores were used between two moments, by the servers or by `other` processes of the machine."""
    seen = [s for s in samples if start <= s["t"] <= end and s.get(of) is not None]
    if len(seen) < 2 or seen[-1]["t"] == seen[0]["t"]:
        return None
    return (seen[-1][of] - seen[0][of]) / (seen[-1]["t"] - seen[0]["t"])


def change(before, after):
    """In percent: +25 is a quarter more."""
    return None if not before or after is None else 100 * (after - before) / before


def part_of(whole, part):
    return None if not whole or part is None else 100 * part / whole


def jobs_of(result, samples):
    """Each background job of a cell: how much it had to do, how long it took, at what rate, and what was left."""
    marks, out = result["marks"], {}
    for job, work in result.get("work", {}).items():
        end = marks.get(f"{job} ended")
        until = end or marks["background ended"]
        left = 0 if end else next((s["left"][job] for s in reversed(samples) if s["t"] <= until and s["left"].get(job) is not None), work)
        took = until - marks["released"]
        out[job] = {"work": work, "seconds": took, "left": left, "rate": (work - left) / took if took > 0 else None}
    return out


def cell_figures(result, loads, samples):
    """The figures of one finished cell."""
    marks = result["marks"]
    rows = [r for r in loads if r["load"] == result.get("client", "client")]
    if not rows:
        return None
    first, last = min(r["from"] for r in rows), max(r["t"] for r in rows)
    released, ended = marks.get("released", last), marks.get("background ended", last)
    out = {"overall": window(rows, first, last), "base": window(rows, marks.get("base", first), result.get("base_ended", released)), "jobs": jobs_of(result, samples)}
    if "released" in marks:
        during = out["during"] = window(rows, min(released, last), min(ended, last))
        out |= {"kept": part_of(out["base"]["iops"], during["iops"]), "mean change": change(out["base"]["mean"], during["mean"]),
                "p99 change": change(out["base"]["p99"], during["p99"]), "cores": cores(samples, released, ended)}
    else:
        out["cores"] = cores(samples, first, last)
    out["disturbed"] = cores(samples, marks.get("base", first), min(ended, last - 1), "other")
    out["others"] = {name: window([r for r in loads if r["load"] == name], min(released, last), min(ended, last))
                     for name in sorted({r["load"] for r in loads} - {result.get("client", "client")})}
    if result.get("floors"):
        out["tenants"] = {name: tenant(loads, name, floor, released, min(ended, last)) for name, floor in result["floors"].items()}
    return out


def tenant(loads, name, floor, start, end):
    """What a tenant got of its floor, overall and in each whole second."""
    rows = [r for r in loads if r["load"] == name]
    each = [n for k, n, _, _ in seconds(rows, start) if 0 <= k < int(end - start)]
    got = window(rows, start, end)
    return got | {"floor": floor, "attained": part_of(floor, got["iops"]), "least second": part_of(floor, min(each)) if each else None,
                  "seconds below 98 %": sum(n < 0.98 * floor for n in each), "seconds seen": len(each)}


def median(values):
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def merge(cells):
    """The medians of the figures of repeated cells, number by number."""
    if all(isinstance(c, dict) for c in cells):
        keys = dict.fromkeys(k for c in cells for k in c)
        return {k: merge([c[k] for c in cells if k in c]) for k in keys}
    return median(cells)
