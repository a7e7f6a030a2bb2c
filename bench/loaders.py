"""Load generators that take commands as lines (crate `loads`), what servers spent meanwhile, and records of it."""
import datetime
import json
import subprocess
from pathlib import Path

from clusters import BINARY, ENV, ROOT, cpu_seconds, rss, sh

# Built with the same profile as the server.
PROGRAMS = BINARY.parent


class Loader:
    """A process that answers each command with a line of JSON. A wrong answer of a server ends the benchmark."""

    def __init__(self, argv, env=None):
        self.process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**ENV, **(env or {})})

    def __call__(self, *words):
        command = " ".join(str(w) for w in words)
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SystemExit(f"the load generator ended at `{command}` with {self.process.wait()}")
        said = json.loads(line)
        problem = said.get("error") or (said.get("wrong") and said["samples"])
        if problem:
            raise SystemExit(f"`{command}`: {problem}")
        return said

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def measured(loader, servers, *words):
    """Runs a command; its answer, with the processor seconds of each kind of server as `cpu`, and their MiB as `mib`."""
    spent = lambda: {kind: sum(cpu_seconds(p) for p in pids) for kind, pids in servers.items()}
    before = spent()
    said = loader(*words)
    said["cpu"] = {kind: after - before[kind] for kind, after in spent().items()}
    said["mib"] = {kind: sum(rss(p) for p in pids) / 2**20 for kind, pids in servers.items()}
    return said


def row(said, kind):
    """The figures of one kind of operation of an answer. Processor time is divided by all operations of the answer."""
    k, all_ops = said["kinds"].get(kind), max(said["count"], 1)
    if not k or not k["count"]:
        raise SystemExit(f"`{said['command']}`: no {kind} succeeded: {said['samples']}")
    figures = {"per_second": k["per_second"], "mean": k["mean_us"], "p50": k["p50_us"], "p99": k["p99_us"], "p999": k["p999_us"],
               "failed": said["failed"], "left_out": said.get("left_out", 0)}
    for server, seconds in said.get("cpu", {}).items():
        figures[f"{server} us"] = seconds / all_ops * 1e6
    for server, mib in said.get("mib", {}).items():
        figures[f"{server} MiB"] = mib
    return figures


def short(value):
    """A figure for a table: three digits."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(r if isinstance(r, str) else short(r) for r in cells) + " |" for cells in rows])


def record(path, section, command, machine, columns, rows, goals=()):
    """Writes a file for bench/records, of which docs/benchmarks.md is made. Of a cell [ours, theirs] the page shows the ratio."""
    rounded = lambda v: round(v, 4) if isinstance(v, float) else v
    cells = lambda cell: [rounded(v) for v in cell] if isinstance(cell, (list, tuple)) else rounded(cell)
    commit = sh("git", "-C", ROOT, "rev-parse", "--short=8", "HEAD").strip()
    text = {"section": section, "commit": commit, "date": datetime.date.today().isoformat(), "machine": machine, "command": command}
    if goals:
        text["goals"] = [{**g, "measured": {k: cells(v) for k, v in g["measured"].items()}} for g in goals]
    text |= {"columns": list(columns), "rows": [[cells(c) for c in r] for r in rows]}
    Path(path).write_text(json.dumps(text, indent=2, ensure_ascii=False) + "\n")


def command_of(name, argv, without=("--record", "--json", "--dir", "--report", "--machine")):
    """The command line for a record: without the options that say where files go."""
    words, skip = [], False
    for word in argv:
        if skip:
            skip = False
        elif word in without:
            skip = True
        elif not word.startswith(tuple(f"{w}=" for w in without)):
            words.append(word)
    return " ".join(["cargo xtask bench", name, *words])
