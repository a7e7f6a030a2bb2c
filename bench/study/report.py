"""The report of a recorded run: a page that needs nothing but itself, and a summary in Markdown. No cluster is needed."""
import html
import json
from pathlib import Path

from . import figures, plan, scenarios
from .run import versions

# What Siphon aims at under high_client_ops: part of the base's operations, and change of the mean latency, in percent.
AIMS = {"test-a": (90, 25), "test-b": (80, 50)}

# Figures of one short run differ by so much for no reason, in percent: nothing is concluded from less.
NOISE = 5

UNITS = {"trimming": "clones", "recovery": "objects", "backfill": "objects", "scrub": "objects", "deletion": "copies of groups"}


def number(value, digits=0):
    return "-" if value is None else f"{value:.{digits}f}"


def latency(value):
    return "-" if value is None else f"{value:.{2 if value < 10 else 1}f}"


def percent(value):
    return "-" if value is None else f"{value:+.0f} %"


class Recorded:
    """All cells of a run with their figures."""

    def __init__(self, rundir):
        self.manifest = rundir.manifest()
        p = self.manifest["plan"]
        self.targets = [c["name"] for c in p["clusters"]]
        self.profiles, self.scenarios = p["profiles"], p["scenarios"]
        self.versions = versions(rundir)
        self.cells, self.figures, self.problems, self.series, self.missing = [], {}, [], [], 0
        for spec in plan.order(self.targets, self.profiles, self.scenarios, p["repeats"]):
            found = rundir.recorded(spec["id"])
            if found is None:
                self.missing += 1
                continue
            result, loads, samples = found
            if result["status"] != "done":
                self.problems.append(result)
                continue
            f = figures.cell_figures(result, loads, samples)
            if f is None:
                self.problems.append({**result, "status": "failed", "reason": "no load was recorded"})
                continue
            self.figures.setdefault((spec["scenario"], spec["target"], spec["profile"]), []).append(f)
            self.series.append(series(result, loads, samples, f))

    def of(self, scenario, target, profile):
        """Medians over rounds, or None."""
        found = self.figures.get((scenario, target, profile))
        return figures.merge(found) if found else None


def series(result, loads, samples, f):
    """What the page draws of a cell: times are seconds after the background work's beginning."""
    marks, name = result["marks"], result.get("client", "client")
    rows = [r for r in loads if r["load"] == name]
    origin = marks.get("released", marks.get("base", min(r["from"] for r in rows)))
    rounded = lambda points: [[None if v is None else round(v, 3) for v in p] for p in points]
    # Of the first and last second only a part was seen.
    whole = figures.seconds(rows, origin)[1:-1]
    out = {k: result[k] for k in ("id", "target", "profile", "scenario", "repeat")}
    out["client"] = rounded((k + 0.5, n, mean, p99) for k, n, mean, p99 in whole)
    out["jobs"] = {job: rounded(figures.rates(samples, job, origin)) for job in result.get("work", {})}
    for other in f["others"]:
        out["jobs"][other] = rounded((k + 0.5, n) for k, n, _, _ in figures.seconds([r for r in loads if r["load"] == other], origin)[1:-1])
    cpu = [(s["t"] - origin, s["cpu"]) for s in samples if s.get("cpu") is not None]
    out["cores"] = rounded(((a[0] + b[0]) / 2, (b[1] - a[1]) / (b[0] - a[0])) for a, b in zip(cpu, cpu[1:]) if b[0] > a[0])
    out["ended"] = round(marks.get("background ended", origin) - origin, 2)
    return out


# -- tables: a header and rows of text


def table_of(r, scenario):
    kind = scenario.split(":")[0]
    found = [(t, p, f) for t in r.targets for p in r.profiles if (f := r.of(scenario, t, p))]
    if not found:
        return None
    if kind == "baseline":
        head = ["cluster", "scheduler", "IOPS", "mean ms", "p95", "p99", "p99.5", "server cores", "other cores"]
        return head, [[t, p, number(f["base"]["iops"]), *(latency(f["base"][k]) for k in ("mean", "p95", "p99", "p995")), number(f["cores"], 2), number(f["disturbed"], 2)] for t, p, f in found]
    if kind == "tenants":
        head = ["cluster", "scheduler", "tenant", "floor", "IOPS", "attained", "least second", "seconds below 98 %", "p99 ms"]
        return head, [[t, p, "skewed" if n == "client" else n, number(x["floor"]), number(x["iops"]), f"{number(x['attained'])} %", f"{number(x['least second'])} %",
                       f"{number(x['seconds below 98 %'])} of {number(x['seconds seen'])}", latency(x["p99"])] for t, p, f in found for n, x in f.get("tenants", {}).items()]
    head = ["cluster", "scheduler", "base IOPS", "during", "kept", "base mean ms", "during", "change", "base p99 ms", "during", "change"]
    jobs = list(dict.fromkeys(job for _, _, f in found for job in f["jobs"]))
    for job in jobs:
        head += [f"{job}, {UNITS.get(job, 'objects')}/s", "seconds"]
    head += ["neighbour IOPS", "client's part"] if kind == "neighbour" else ["overall IOPS", "mean ms", "p99.5 ms"]
    head += ["server cores", "other cores"]
    rows = []
    for t, p, f in found:
        b, d = f["base"], f["during"]
        row = [t, p, number(b["iops"]), number(d["iops"]), f"{number(f['kept'])} %", latency(b["mean"]), latency(d["mean"]), percent(f["mean change"]),
               latency(b["p99"]), latency(d["p99"]), percent(f["p99 change"])]
        for job in jobs:
            j = f["jobs"].get(job, {})
            row += [number(j.get("rate")), number(j.get("seconds"), 1) + (f" ({j['left']:.0f} left)" if j.get("left") else "")]
        if kind == "neighbour":
            other = f["others"].get("neighbour", {}).get("iops")
            row += [number(other), "-" if other is None else f"{number(figures.part_of(other + d['iops'], d['iops']), 1)} %"]
        else:
            row += [number(f["overall"]["iops"]), latency(f["overall"]["mean"]), latency(f["overall"]["p995"])]
        rows.append([*row, number(f["cores"], 2), number(f["disturbed"], 2)])
    return head, rows


def judged(value, limit, at_least):
    """Against an aim."""
    if value is None:
        return "-"
    met = value >= limit if at_least else value <= limit
    return f"{value:+.0f} %: {'met' if met else 'missed'}" if not at_least else f"{value:.0f} %: {'met' if met else 'missed'}"


def compared(better, than, higher_is_better):
    """Whether the first is not worse than the second, in words, with what is within the noise told apart."""
    c = figures.change(than, better)
    if c is None:
        return "-"
    gain = c if higher_is_better else -c
    return f"{'not worse' if gain >= 0 else 'within noise' if gain >= -NOISE else 'worse'} ({c:+.0f} %)"


def ordered(values):
    """Whether what is given falls, from one to the next."""
    if any(v is None for v in values):
        return "-"
    steps = [figures.change(a, b) for a, b in zip(values, values[1:])]
    if all(s is not None and s < -NOISE for s in steps):
        word = "yes"
    elif all(s is not None and s <= NOISE for s in steps):
        word = "no difference" if all(abs(s) <= NOISE for s in steps) else "yes, in part within noise"
    else:
        word = "no"
    return f"{word} ({' : '.join(number(v) for v in values)})"


def verdicts(r):
    """What the aims say of each cluster."""
    rows = []
    for scenario in r.scenarios:
        for t in r.targets:
            first, wpq = r.of(scenario, t, "high_client_ops"), r.of(scenario, t, "wpq")
            where = [scenarios.title(scenario), t]
            if first and scenario in AIMS:
                least, most = AIMS[scenario]
                rows.append([*where, f"high_client_ops keeps at least {least} % of the base's IOPS", judged(first["kept"], least, True)])
                rows.append([*where, f"its mean latency rises by {most} % at most", judged(first["mean change"], most, False)])
            if first and wpq and "during" in first and scenario.split(":")[0] != "tenants":
                for phase in ("base", "during"):
                    said = "the client alone" if phase == "base" else "during background work"
                    rows.append([*where, f"not worse than WPQ, {said}", f"IOPS {compared(first[phase]['iops'], wpq[phase]['iops'], True)}, mean {compared(first[phase]['mean'], wpq[phase]['mean'], False)}"])
            three = [r.of(scenario, t, p) for p in ("high_client_ops", "balanced", "high_recovery_ops")]
            if all(three) and first["jobs"]:
                rows.append([*where, "profiles in order for clients (IOPS, falling)", ordered([f["during"]["iops"] for f in three])])
                for job in first["jobs"]:
                    rows.append([*where, f"profiles in order for {job} ({UNITS.get(job, 'objects')}/s, rising)", ordered([f["jobs"].get(job, {}).get("rate") for f in three[::-1]])])
    return (["scenario", "cluster", "aim", "measured"], rows) if rows else None


def sections(r):
    """(title, text, table) in order."""
    out = []
    if (v := verdicts(r)):
        out.append(("The aims", f"They are Siphon's; a stock cluster is measured with the same rod. Less than {NOISE} % is taken for noise. Orders are written as they are to fall: "
                                "for clients high_client_ops : balanced : high_recovery_ops, for background work the other way round.", v))
    for s in r.scenarios:
        if (t := table_of(r, s)):
            out.append((scenarios.title(s), " ".join(scenarios.SCENARIOS[s.split(":")[0]].__doc__.split()), t))
    return out


def described(r):
    m, s, c = r.manifest["machine"], r.manifest["sizes"], r.manifest["client"]
    lines = [
        f"{m['cores']} cores, {m['memory_gib']} GiB of memory, Linux {m['kernel']}; clients: {m['fio']}, {m['ceph client']}.",
        f"Client: {c['driver']}, {c['mode']} of {c['block']}, {s['client_depth']} under way, {s['image_mb']} MiB. Objects with clones: {s['objects']} of {s['object_size'] >> 10} KiB "
        f"({100 * s['overwritten']:.0f} % overwritten in Test A, {100 * s['overwritten_b']:.0f} % in Test B); written while an OSD was down: {s['recovery_objects']} of {s['recovery_size'] >> 10} KiB.",
        f"{r.manifest['plan']['repeats']} round(s); figures are medians over rounds. Began {r.manifest['began']}.",
    ]
    lines += [f"{name}: {version}" for name, version in r.versions.items()]
    if r.missing:
        lines.append(f"The run is not complete: {r.missing} cells are missing.")
    return lines


def markdown(r):
    out = ["# Load study", "", *[f"* {line}" for line in described(r)], ""]
    for title, text, (head, rows) in sections(r):
        out += [f"## {title}", "", text, "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        out += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    if r.problems:
        out += ["## Not measured", "", "| scenario | cluster | scheduler | round | | reason |", "| --- | --- | --- | --- | --- | --- |"]
        out += [f"| {scenarios.title(p['scenario'])} | {p['target']} | {p['profile']} | {p['repeat']} | {p['status']} | {p['reason'].replace('|', '/')} |" for p in r.problems] + [""]
    return "\n".join(out)


def page(r):
    here = Path(__file__).parent
    e = html.escape
    body = ["<h1>Load study</h1>", "<ul>", *[f"<li>{e(line)}</li>" for line in described(r)], "</ul>", '<div id="charts"></div>']
    for title, text, (head, rows) in sections(r):
        body += [f"<h2>{e(title)}</h2>", f"<p>{e(text)}</p>", "<table><tr>", *[f"<th>{e(h)}</th>" for h in head], "</tr>"]
        body += ["<tr>" + "".join(f"<td>{e(c)}</td>" for c in row) + "</tr>" for row in rows] + ["</table>"]
    if r.problems:
        body += ["<h2>Not measured</h2><ul>", *[f"<li>{e(scenarios.title(p['scenario']))}, {e(p['target'])}, {e(p['profile'])}, round {p['repeat']}: {e(p['status'])}: {e(p['reason'])}</li>" for p in r.problems], "</ul>"]
    data = {"cells": r.series, "titles": {s: scenarios.title(s) for s in r.scenarios}, "units": UNITS}
    # "</script>" in a reason or name must not end the script.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (f"<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Load study</title>\n<style>\n{(here / 'page.css').read_text()}</style></head>\n<body>\n"
            + "\n".join(body) + f"\n<script>\nconst DATA = {text};\n{(here / 'page.js').read_text()}</script>\n</body></html>\n")


def write(rundir):
    r = Recorded(rundir)
    out = [(rundir.path / "report.html", page(r)), (rundir.path / "report.md", markdown(r))]
    for path, text in out:
        path.write_text(text)
    return [path for path, _ in out]
