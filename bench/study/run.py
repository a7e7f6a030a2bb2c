"""Runs the cells of a plan, and cleans up behind itself whatever happens."""
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
import traceback

from . import scenarios
from .cell import Cell
from .drivers import Drivers
from .figures import cell_figures
from .plan import Eta, is_of_profiles, order
from .runlog import Undo, read_lines
from .targets import Skip, make, say


def machine():
    """In general terms: enough to judge numbers by."""
    memory = next((int(line.split()[1]) >> 20 for line in open("/proc/meminfo") if line.startswith("MemTotal")), None)

    def version(*argv):
        try:
            return subprocess.run(argv, capture_output=True, text=True).stdout.strip().splitlines()[0]
        except (OSError, IndexError):
            return None

    return {"cores": os.cpu_count(), "memory_gib": memory, "kernel": platform.release().split("-")[0], "architecture": platform.machine(),
            "fio": version("fio", "--version"), "ceph client": version("ceph", "--version")}


def of_profile(entry):
    """A setting that the next cell needs as well."""
    return entry["kind"] == "option" and is_of_profiles(entry["what"]["option"])


class Interrupted(KeyboardInterrupt):
    pass


def on_signal(number, _):
    raise Interrupted(signal.Signals(number).name)


class Run:
    def __init__(self, rundir, manifest, work=None, drivers=None, make_target=make, log=say):
        self.dir, self.manifest, self.log, self.make_target = rundir, manifest, log, make_target
        self.cells = order([c["name"] for c in manifest["plan"]["clusters"]], manifest["plan"]["profiles"], manifest["plan"]["scenarios"], manifest["plan"]["repeats"])
        self.drivers = drivers or Drivers(manifest["client"])
        self.undo = Undo(rundir.path / "undo.jsonl")
        self.given_work, self.work = work, None
        self.targets, self.profiles, self.broken = {}, {}, {}

    def target(self, name):
        """Started when it is first needed."""
        if name in self.broken:
            raise self.broken[name]
        if name not in self.targets:
            spec = next(c for c in self.manifest["plan"]["clusters"] if c["name"] == name)
            t = self.targets[name] = self.make_target(spec, self.undo, self.manifest, self.work, self.log)
            if t.own:
                self.undo.forget(name)
            else:
                self.report_left(t.clean_up())
            self.log(f"  {name}: {'starting a cluster' if t.own else t.conf}")
            t.start()
            with open(self.dir.path / "clusters.jsonl", "a") as f:
                f.write(f'{{"cluster": "{name}", "version": "{t.ceph.version()}"}}\n')
        return self.targets[name]

    def report_left(self, failed):
        for line in failed:
            self.log(f"  NOT put back: {line}")
        if failed:
            self.log(f"  `clean-up {self.dir.path}` tries again")

    def cell(self, spec):
        directory = self.dir.fresh(spec["id"])
        target = self.target(spec["target"])
        cell = Cell(spec, target, self.drivers, self.manifest["sizes"], directory, self.log)
        mark = self.undo.next
        try:
            if self.profiles.get(spec["target"]) != spec["profile"]:
                self.profiles.pop(spec["target"], None)
                cell.save("settings.json", target.set_profile(spec["profile"], self.manifest["options"].get("custom")))
                self.profiles[spec["target"]] = spec["profile"]
            scenarios.run(cell)
            result = cell.result()
        except Skip as e:
            result = {**spec, "status": "skipped", "reason": str(e)}
        except (Exception, SystemExit) as e:  # noqa: BLE001 - one cell that fails must not end a night's run
            cell.event("failed", error=str(e))
            (directory / "error.txt").write_text(traceback.format_exc())
            result = {**spec, "status": "failed", "reason": f"{type(e).__name__}: {e}"[:500]}
        finally:
            cell.close()
        if result["status"] != "done":
            # Nothing of it is left to the next cell: flags, options, OSDs that are out, pools with half of a snapshot.
            self.drivers.kill_all()
            kept = ("queue",) if result["status"] == "failed" else ("queue", "pool")
            changed = [e for e in self.undo.outstanding(target.name) if (e["id"] >= mark or e["kind"] == "pool") and e["kind"] not in kept and not of_profile(e)]
            self.report_left([f"{target.name}: {e['kind']} {e['what']}" for e in changed if not self.put_back(target, e)])
            if "pool" not in kept:
                target.stage.clear()
        return result

    def put_back(self, target, entry):
        try:
            target.put_back(entry)
            return True
        except Exception:  # noqa: BLE001 - it is reported, and stays written down
            return False

    def all(self):
        """Every cell that is not finished. True if none failed."""
        todo = [c for c in self.cells if not self.dir.finished(c["id"])]
        done = len(self.cells) - len(todo)
        eta, failed = Eta(self.manifest["sizes"]), 0
        for spec in self.cells:
            if self.dir.finished(spec["id"]) and "took" in (r := self.dir.result(spec["id"])) and r["status"] == "done":
                eta.add(spec, r["took"])
        self.work = self.given_work or tempfile.mkdtemp(prefix="siphon-study.", dir="/var/tmp")
        handlers = {n: signal.signal(n, on_signal) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            if done:
                self.log(f"{done} of {len(self.cells)} cells were finished before")
            for i, spec in enumerate(todo):
                left = eta.left(todo[i:])
                self.log(f"[{done + i + 1}/{len(self.cells)}] {scenarios.title(spec['scenario'])}, {spec['target']}, {spec['profile']}, round {spec['repeat']}; "
                         f"about {left / 60:.0f} min left, until {time.strftime('%H:%M', time.localtime(time.time() + left))}")
                began = time.monotonic()
                result = self.cell(spec)
                result["took"] = time.monotonic() - began
                self.dir.finish(spec["id"], result)
                if result["status"] == "done":
                    eta.add(spec, result["took"])
                    self.log(f"    {summary(result, *self.dir.recorded(spec['id'])[1:])} ({result['took']:.0f} s)")
                else:
                    failed += result["status"] == "failed"
                    self.log(f"    {result['status']}: {result['reason']}")
        finally:
            # Nothing may stop this but SIGKILL, and then `resume` or `clean-up` does it.
            for n in handlers:
                signal.signal(n, signal.SIG_IGN)
            try:
                self.end()
            finally:
                for n, handler in handlers.items():
                    signal.signal(n, handler)
        return failed == 0

    def end(self):
        self.drivers.kill_all()
        for name, t in self.targets.items():
            self.log(f"  {name}: {'stopping it' if t.own else 'putting back what was changed'}")
            try:
                self.report_left(t.clean_up())
            finally:
                try:
                    t.stop()
                except Exception as e:  # noqa: BLE001 - the others have to end as well
                    self.log(f"  {name}: {e}")
        if self.given_work is None:
            shutil.rmtree(self.work, ignore_errors=True)


def summary(result, loads, samples):
    f = cell_figures(result, loads, samples)
    if f is None:
        return "nothing was measured"
    if "during" not in f:
        return f"{f['base']['iops']:.0f} IOPS, mean {f['base']['mean']:.2f} ms"
    jobs = "".join(f", {job} {j['rate']:.0f}/s for {j['seconds']:.0f} s" + (f" ({j['left']:.0f} left)" if j["left"] else "") for job, j in f["jobs"].items() if j["rate"] is not None)
    if f["during"]["mean"] is None:
        return f"{f['base']['iops']:.0f} IOPS, none beside background work{jobs}"
    return f"{f['base']['iops']:.0f} -> {f['during']['iops']:.0f} IOPS ({f['kept']:.0f} %), mean {f['base']['mean']:.2f} -> {f['during']['mean']:.2f} ms{jobs}"


def clean_up(rundir, manifest, log=say):
    """Puts back what a run that was killed left in clusters that it did not start."""
    undo, ok = Undo(rundir.path / "undo.jsonl"), True
    for spec in manifest["plan"]["clusters"]:
        if spec["conf"] is None:
            undo.forget(spec["name"])
            continue
        t = make(spec, undo, manifest, None, log)
        failed = t.clean_up()
        t.stop()
        for line in failed:
            log(f"NOT put back: {line}")
        ok = ok and not failed
    return ok


def versions(rundir):
    return {row["cluster"]: row["version"] for row in read_lines(rundir.path / "clusters.jsonl")}
