#!/usr/bin/env python3
"""Panels of Ceph's boards, drawn from a cluster's own metrics, as one SVG.

    bench/boards.py http://127.0.0.1:9283/ docs/images/boards.svg --seconds 60
    bench/boards.py http://127.0.0.1:9283/ docs/images/boards-rbd.svg --board rbd --seconds 60

Scrapes every second, and evaluates what the boards' queries ask for (`rate(x[10s])`, sums by a label,
quotients of rates). A panel without a series is an error."""
import argparse
import re
import time
import urllib.request
from collections import defaultdict
from html import escape

LINE = re.compile(r"(ceph_\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
RATE_SECONDS = 10
COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f"]
WIDTH, HEIGHT, MARGIN = 460, 210, 46


def scrape(url):
    values = defaultdict(dict)
    with urllib.request.urlopen(url + "metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if m := LINE.match(line):
                values[m[1]][tuple(sorted(LABEL.findall(m[2] or "")))] = float(m[3])
    return values


class Run:
    """Scrapes with their times, and queries over them."""

    def __init__(self):
        self.scrapes = []

    def take(self, url):
        self.scrapes.append((time.monotonic(), scrape(url)))

    def plain(self, name, by=None):
        return self._series(lambda at: self._sum(self.scrapes[at][1][name], by))

    def rate(self, name, by=None):
        def at(i):
            now, values = self.scrapes[i]
            j = next(j for j, (t, _) in enumerate(self.scrapes) if now - t <= RATE_SECONDS)
            if i == j:
                return {}
            (then, before), new = self.scrapes[j], self._sum(values[name], by)
            old = self._sum(before[name], by)
            return {k: max(v - old.get(k, 0), 0) / (now - then) for k, v in new.items()}
        return self._series(at)

    def _sum(self, values, by):
        out = defaultdict(float)
        for labels, v in values.items():
            out[dict(labels).get(by, "") if by else "all"] += v
        return out

    def _series(self, at):
        start, out = self.scrapes[0][0], defaultdict(list)
        for i, (t, _) in enumerate(self.scrapes):
            for k, v in at(i).items():
                out[k].append((t - start, v))
        return dict(out)


def quotient(a, b, factor):
    out = {}
    for k in a:
        below = dict(b.get(k, []))
        out[k] = [(t, v / below[t] * factor) for t, v in a[k] if below.get(t)]
    return {k: v for k, v in out.items() if v}


def named(series, prefix):
    return {f"{prefix}{'' if k == 'all' else ' ' + k}": v for k, v in series.items()}


def panels(run):
    of = lambda name, kind="rate", by=None: getattr(run, kind)(f"ceph_{name}", by)
    latency = lambda way: quotient(of(f"osd_op_{way}_latency_sum", by="ceph_daemon"), of(f"osd_op_{way}_latency_count", by="ceph_daemon"), 1000)
    states = {}
    for state in ("active", "clean", "degraded", "remapped", "peering"):
        states.update(named(of(f"pg_{state}", "plain"), state))
    return [
        ("Operations of clients", "1/s", {**named(of("osd_op_r"), "reads"), **named(of("osd_op_w"), "writes")}),
        ("Throughput of clients", "MiB/s", {k: [(t, v / 2**20) for t, v in s] for k, s in
                                            {**named(of("osd_op_r_out_bytes"), "read"), **named(of("osd_op_w_in_bytes"), "written")}.items()}),
        ("Latency of writes by OSD", "ms", latency("w")),
        ("Latency of reads by OSD", "ms", latency("r")),
        ("Placement groups", "", states),
        ("Used by OSD", "MiB", {k: [(t, v / 2**20) for t, v in s] for k, s in of("osd_stat_bytes_used", "plain", "ceph_daemon").items()}),
        ("Writes by pool", "1/s", of("pool_wr", by="pool_id")),
        ("Recovered objects", "1/s", named(of("osd_recovery_ops"), "objects")),
    ]


def rbd_panels(run):
    """Of the boards of block devices and of a pool."""
    of = lambda name, by=None: run.rate(f"ceph_rbd_{name}", by)
    mib = lambda series: {k: [(t, v / 2**20) for t, v in s] for k, s in series.items()}
    # The boards divide nanoseconds by operations.
    latency = lambda way, by=None: quotient(of(f"{way}_latency_sum", by), of(f"{way}_latency_count", by), 1e-6)
    pool = lambda name, kind="plain": getattr(run, kind)(f"ceph_pool_{name}", "pool_id")
    return [
        ("Operations on images", "1/s", {**named(of("read_ops"), "reads"), **named(of("write_ops"), "writes")}),
        ("Throughput of images", "MiB/s", mib({**named(of("read_bytes"), "read"), **named(of("write_bytes"), "written")})),
        ("Mean latency", "ms", {**named(latency("read"), "reads"), **named(latency("write"), "writes")}),
        ("Mean latency of writes by image", "ms", latency("write", "image")),
        ("Writes by image", "1/s", of("write_ops", "image")),
        ("Reads by image", "1/s", of("read_ops", "image")),
        ("Stored in a pool", "MiB", mib(named(pool("stored"), "pool"))),
        ("Operations on a pool", "1/s", {**named(pool("rd", "rate"), "reads of pool"), **named(pool("wr", "rate"), "writes of pool")}),
    ]


BOARDS = {"osds": panels, "rbd": rbd_panels}


def draw(x, y, title, unit, series):
    if not any(series.values()):
        raise SystemExit(f"no series for the panel '{title}'")
    points = [p for s in series.values() for p in s]
    last, top = max(t for t, _ in points) or 1, max(v for _, v in points) or 1
    px = lambda t: x + MARGIN + t / last * (WIDTH - MARGIN - 12)
    py = lambda v: y + HEIGHT - 44 - v / top * (HEIGHT - 80)
    out = [f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="#fff" stroke="#ccc"/>',
           f'<text x="{x + 10}" y="{y + 19}" font-weight="bold">{escape(title)}{f" ({unit})" if unit else ""}</text>']
    for part in (0, 0.5, 1):
        at = py(part * top)
        out.append(f'<line x1="{x + MARGIN}" x2="{x + WIDTH - 12}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>'
                   f'<text x="{x + MARGIN - 5}" y="{at + 4:.1f}" text-anchor="end">{part * top:.3g}</text>')
    right = x + MARGIN
    for n, (name, s) in enumerate(list(sorted(series.items()))[:len(COLOURS)]):
        line = " ".join(f"{px(t):.1f},{py(v):.1f}" for t, v in s)
        out.append(f'<polyline fill="none" stroke="{COLOURS[n]}" stroke-width="1.5" points="{line}"/>'
                   f'<text x="{right}" y="{y + HEIGHT - 10}" fill="{COLOURS[n]}">{escape(name)}</text>')
        right += 16 + 6 * len(name)
    out.append(f'<text x="{x + WIDTH - 12}" y="{y + HEIGHT - 27}" text-anchor="end">{last:.0f} s</text>')
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("svg")
    parser.add_argument("--board", choices=BOARDS, default="osds")
    parser.add_argument("--seconds", type=int, default=60)
    args = parser.parse_args()
    run = Run()
    end = time.monotonic() + args.seconds
    while time.monotonic() < end:
        run.take(args.url)
        time.sleep(1)
    shown = BOARDS[args.board](run)
    rows = (len(shown) + 1) // 2
    body = "\n".join(draw(8 + n % 2 * (WIDTH + 8), 8 + n // 2 * (HEIGHT + 8), *p) for n, p in enumerate(shown))
    with open(args.svg, "w") as out:
        out.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH + 24}" height="{rows * (HEIGHT + 8) + 8}" '
                  f'font-family="sans-serif" font-size="11">\n{body}\n</svg>\n')


if __name__ == "__main__":
    main()
