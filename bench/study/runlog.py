"""A run's directory: the manifest, and for each cell its raw data and, once it is finished, its result.

    manifest.json           what the run is: clusters, profiles, scenarios, sizes, the machine
    cells/ID/loads.jsonl    latency histograms of each load, second by second
    cells/ID/background.jsonl   what background jobs had left, states of groups, processor time, once a second
    cells/ID/events.jsonl   what was done when
    cells/ID/*.json         what drivers reported in the end, and the settings that held
    cells/ID/result.json    written last, in one step: a cell that has none, or failed, is run again
    undo.jsonl              what the run changed in clusters and has to put back

Everything in it is plain, and the report is made from it alone.
"""
import json
import shutil
import threading
from pathlib import Path


def write_json(path, value):
    """In one step: readers and later runs see all of it or nothing."""
    path = Path(path)
    temporary = path.with_suffix(path.suffix + ".new")
    with open(temporary, "w") as f:
        json.dump(value, f, indent=1)
        f.write("\n")
    temporary.replace(path)


def read_lines(path):
    """The rows of a JSON lines file. The last may be cut off if the run was interrupted."""
    if not Path(path).exists():
        return []
    rows = []
    for line in Path(path).read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


class Lines:
    """A JSON lines file that is written row by row, from several threads."""

    def __init__(self, path):
        self.file, self.lock = open(path, "a"), threading.Lock()

    def write(self, row):
        with self.lock:
            self.file.write(json.dumps(row, separators=(",", ":")) + "\n")
            self.file.flush()

    def close(self):
        self.file.close()


class RunDir:
    def __init__(self, path):
        self.path = Path(path)
        self.manifest_path = self.path / "manifest.json"

    def exists(self):
        return self.manifest_path.exists()

    def manifest(self):
        return json.loads(self.manifest_path.read_text())

    def begin(self, manifest):
        """A new run, or one that goes on: then it has to be the same."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.exists():
            old = self.manifest()
            different = [k for k in ("plan", "sizes", "client") if old.get(k) != manifest.get(k)]
            if different:
                raise SystemExit(f"{self.path} holds another run (its {' and '.join(different)} differ); name another directory, or `resume` that one")
            return old
        if any(self.path.iterdir()):
            raise SystemExit(f"{self.path} is not empty, and no recorded run")
        (self.path / "cells").mkdir()
        write_json(self.manifest_path, manifest)
        return manifest

    def cell(self, cell_id):
        return self.path / "cells" / cell_id

    def result(self, cell_id):
        path = self.cell(cell_id) / "result.json"
        return json.loads(path.read_text()) if path.exists() else None

    def finished(self, cell_id):
        """Done, or skipped for a reason that will be the same; what failed is tried again."""
        result = self.result(cell_id)
        return result is not None and result["status"] in ("done", "skipped")

    def fresh(self, cell_id):
        """The empty directory of a cell. What a run that was interrupted left there is of no use."""
        path = self.cell(cell_id)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def finish(self, cell_id, result):
        write_json(self.cell(cell_id) / "result.json", result)

    def recorded(self, cell_id):
        """(result, rows of loads, samples) of a cell, or None."""
        result = self.result(cell_id)
        if result is None:
            return None
        d = self.cell(cell_id)
        return result, read_lines(d / "loads.jsonl"), read_lines(d / "background.jsonl")


class Undo:
    """What has to be put back, written down before it is changed. Survives the run: if it was killed, the next one
    (or `clean-up`) reads here what it left behind."""

    def __init__(self, path):
        self.entries, self.next, self.lock = {}, 0, threading.RLock()
        for row in read_lines(path):
            if "done" in row:
                self.entries.pop(row["done"], None)
            else:
                self.entries[row["id"]] = row
                self.next = max(self.next, row["id"] + 1)
        # Anew, as the last line may be cut off, and whatever followed it would not be read.
        kept = Path(path).with_suffix(".new")
        kept.write_text("".join(json.dumps(row) + "\n" for row in self.entries.values()))
        kept.replace(path)
        self.log = Lines(path)

    def push(self, target, kind, **what):
        with self.lock:
            for known in self.entries.values():
                if (known["target"], known["kind"], known["what"]) == (target, kind, what):
                    return known["id"]
            entry = {"id": self.next, "target": target, "kind": kind, "what": what}
            self.next += 1
            self.log.write(entry)
            self.entries[entry["id"]] = entry
            return entry["id"]

    def done(self, entry_id):
        with self.lock:
            if self.entries.pop(entry_id, None):
                self.log.write({"done": entry_id})

    def outstanding(self, target=None):
        """The newest first."""
        with self.lock:
            return [e for e in sorted(self.entries.values(), key=lambda e: -e["id"]) if target in (None, e["target"])]

    def forget(self, target):
        """The cluster is gone."""
        for e in self.outstanding(target):
            self.done(e["id"])
