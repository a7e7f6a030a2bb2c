"""The report of mixes of S3, for the study of loads: tables, and plots of the fill, the fresh hour, the ageing and the
aged hour, as one page that needs nothing but itself, and as Markdown."""
import html
import json
from pathlib import Path

from loaders import markdown, short

STYLE = Path(__file__).parent / "study/page.css"
PHASES = ("fill", "fresh", "age", "aged")
COLORS = ("#c0392b", "#e59866", "#2471a3", "#17a589", "#7d3c98", "#616a6b")
# A key of what a load generator says, what it is, and by what it is divided.
CURVES = (("ended_each_second", "requests/s", 1), ("mean_us_each_second", "mean latency, ms", 1000),
          ("max_us_each_second", "longest latency, ms", 1000))
WIDTH, HEIGHT, GAP, TOP = 260, 180, 50, 30


def steadiness(ended):
    """The slowest tenth of the seconds of a phase, of its mean: a gateway that wanes or stops has little of it."""
    if len(ended) < 2:
        return None
    slow = sorted(ended)[:max(1, len(ended) // 10)]
    return (sum(slow) / len(slow)) / (sum(ended) / len(ended)) if sum(ended) else 0.0


def waning(ended):
    """The last quarter of the seconds of a phase, of the first one."""
    quarter = len(ended) // 4
    if not quarter or not sum(ended[:quarter]):
        return None
    return sum(ended[-quarter:]) / sum(ended[:quarter])


def pieces(points):
    """Runs of points without a gap."""
    runs, last = [], None
    for point in points:
        if point[1] is None:
            last = None
        elif last is None:
            runs.append([point])
            last = point
        else:
            runs[-1].append(point)
    return runs


def panel(of_phase, names, key, divisor, most, x0):
    longest = max((len(said.get(key, ())) for said in of_phase.values()), default=0) or 1
    parts = [f'<rect x="{x0}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
             f'<text x="{x0 + WIDTH}" y="{HEIGHT + 46}" text-anchor="end">{longest} s</text>']
    x, y = (lambda n: x0 + WIDTH * (n + 0.5) / longest), (lambda v: TOP + HEIGHT - HEIGHT * v / most)
    for name, color in zip(names, COLORS):
        values = [None if v is None else v / divisor for v in of_phase.get(name, {}).get(key, ())]
        for run in pieces(list(enumerate(values))):
            points = " ".join(f"{x(n):.1f},{y(v):.1f}" for n, v in run)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
    return parts


def plot(said, key="ended_each_second", what="requests/s", divisor=1):
    """What was seen in each second of each phase, of all gateways, as SVG."""
    phases = [p for p in PHASES if any(k[0] == p for k in said)]
    names = list(dict.fromkeys(name for _, name in said))
    seen = [v for (phase, _), s in said.items() if phase in phases for v in s.get(key, ()) if v is not None]
    most = (max(seen, default=0) or 1) / divisor
    parts = []
    for i, phase in enumerate(phases):
        x0 = GAP + i * (WIDTH + GAP)
        parts.append(f'<text x="{x0}" y="20">{phase}</text>')
        parts += panel({name: s for (p, name), s in said.items() if p == phase}, names, key, divisor, most, x0)
    text = html.escape(what)
    parts.append(f'<text x="{GAP}" y="{HEIGHT + 46}">at the top: {short(most)} {text}</text>')
    for i, (name, color) in enumerate(zip(names, COLORS)):
        text = html.escape(name)
        parts.append(f'<text x="{GAP + i * 200}" y="{HEIGHT + 70}" fill="{color}">{text}</text>')
    whole = GAP + max(len(phases) * (WIDTH + GAP), len(names) * 200)
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{HEIGHT + 90}" '
            'font-family="sans-serif" font-size="13">')
    return head + "".join(parts) + "</svg>\n"


HEADS = ("gateway", "fill/s", "fresh/s", "aged/s", "aged of fresh", "slowest tenth of the aged seconds, of their mean",
         "last quarter of the aged seconds, of the first", "failed")


def summary(said):
    """A row for each gateway."""
    rate = lambda phase, name: said[(phase, name)]["count"] / said[(phase, name)]["seconds"]
    rows = []
    for name in dict.fromkeys(name for _, name in said):
        ended = said[("aged", name)]["ended_each_second"]
        failed = sum(s.get("failed", 0) for (_, n), s in said.items() if n == name)
        fill, fresh, aged = (rate(phase, name) for phase in ("fill", "fresh", "aged"))
        rows.append([name, fill, fresh, aged, aged / fresh, steadiness(ended), waning(ended), failed])
    return rows


KINDS = ("per_second", "mean_us", "p50_us", "p95_us", "p99_us", "p999_us", "max_us")
KIND_HEADS = ("phase", "operation", "gateway", "requests/s", "mean us", "p50 us", "p95 us", "p99 us", "p99.9 us",
              "longest us", "gateway CPU us/request", "cluster CPU us/request")
SERVERS = ("gateway", "cluster")


def details(said):
    """A row for each operation of each phase. Processor time is that of all operations of the phase."""
    rows = []
    for phase in (*PHASES, "check"):
        of_phase = {name: s for (p, name), s in said.items() if p == phase}
        for kind in dict.fromkeys(kind for s in of_phase.values() for kind in s["kinds"]):
            for name, s in of_phase.items():
                if (k := s["kinds"].get(kind)):
                    cpu = [s.get("cpu", {}).get(server) for server in SERVERS]
                    spent = [None if c is None else c / max(s["count"], 1) * 1e6 for c in cpu]
                    rows.append([phase, kind, name, *(k.get(f) for f in KINDS), *spent])
    return rows


def cells(row):
    return [c if isinstance(c, str) else short(c) for c in row]


def tables(said):
    """Heads and rows of text."""
    for heads, rows in ((HEADS, summary(said)), (KIND_HEADS, details(said))):
        yield heads, [cells(r) for r in rows]


def as_page(heads, rows):
    row = lambda tag, texts: "<tr>" + "".join(f"<{tag}>{html.escape(t)}</{tag}>" for t in texts) + "</tr>"
    return "\n".join(["<table>", row("th", heads), *[row("td", r) for r in rows], "</table>"])


def write(directory, described, mixes):
    """report.md, report.html and the plots. `mixes` is by name what was said of (phase, gateway)."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    text = ["# Load study of S3", "", *[f"* {line}" for line in described], ""]
    items = [f"<li>{html.escape(line)}</li>" for line in described]
    body = ["<h1>Load study of S3</h1>", "<ul>", *items, "</ul>"]
    for mix, said in mixes.items():
        text += [f"## {mix}", ""]
        body.append(f"<h2>{html.escape(mix)}</h2>")
        for heads, rows in tables(said):
            text += [markdown(heads, rows), ""]
            body.append(as_page(heads, rows))
        for key, what, divisor in CURVES:
            picture, name = plot(said, key, what, divisor), f"{mix}-{key}.svg"
            (directory / name).write_text(picture)
            text += [f"![{what} of {mix}]({name})", ""]
            body += [f"<h3>{html.escape(what)}</h3>", picture]
    (directory / "report.md").write_text("\n".join(text))
    head = ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Load study of S3</title>\n'
            f"<style>\n{STYLE.read_text()}</style></head>\n<body>\n")
    (directory / "report.html").write_text(head + "\n".join(body) + "\n</body></html>\n")
    plain = lambda said: {f"{phase}: {name}": s for (phase, name), s in said.items()}
    kept = {mix: plain(said) for mix, said in mixes.items()}
    (directory / "said.json").write_text(json.dumps(kept, indent=1))
    return directory / "report.html"
