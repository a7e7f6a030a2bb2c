#!/usr/bin/env python3
"""How long clients wait when a daemon goes, and how soon an OSD that was away is whole again.

A cluster of three monitors, a manager and three OSDs, each a process on this machine; one stock client with its
usual settings writes 4 KiB objects to every placement group, one after the other in each. Printed is the time
from the signal until a write to a group that the lost OSD led is acknowledged (of the groups: first, median, last),
the same for writes to all groups, which need no monitor, and for commands when the leading monitor is lost, the longest
gap between two acknowledged writes of one group around an orderly stop, and the time from the start of an OSD that
missed many writes until all groups are active and clean.
"""
import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/clients"))
import rados  # noqa: E402
from processes import Processes  # noqa: E402

DATA = b"x" * 4096


class Client:
    """Writes to all groups at the same time, and knows when each write was acknowledged."""

    def __init__(self, conf, pool, pgs):
        self.rados = rados.Rados(conffile=str(conf))
        self.rados.connect()
        self.io = self.rados.open_ioctx(pool)
        self.objects = {}      # group -> an object in it
        i = 0
        while len(self.objects) < pgs:
            self.objects.setdefault(self.where(pool, f"o{i}")["pgid"], f"o{i}")
            i += 1
        self.pool, self.acks, self.stop = pool, {pg: [] for pg in self.objects}, threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(pg,), daemon=True) for pg in self.objects]

    def command(self, **command):
        code, out, text = self.rados.mon_command(json.dumps({**command, "format": "json"}), b"")
        if code:
            raise SystemExit(f"{command}: {code} {text}")
        return json.loads(out) if out else None

    def where(self, pool, name):
        return self.command(prefix="osd map", pool=pool, object=name)

    def led_by(self, osd):
        return [pg for pg, name in self.objects.items() if self.where(self.pool, name)["acting_primary"] == osd]

    def run(self, pg):
        while not self.stop.wait(0.002):
            began = time.monotonic()
            self.io.write_full(self.objects[pg], DATA)
            self.acks[pg].append((began, time.monotonic()))

    def first_after(self, pg, moment, timeout=120):
        """When a write that was asked for after that moment was acknowledged; or was asked for before and is the first one."""
        deadline = time.monotonic() + timeout
        while not (later := [end for begin, end in self.acks[pg][-2000:] if end > moment + 0.005]):
            if time.monotonic() > deadline:
                raise SystemExit(f"no write to {pg} for {timeout} s")
            time.sleep(0.001)
        return later[0]


def clean(c):
    s = c.command(prefix="status")
    states = s["pgmap"].get("pgs_by_state", [])
    return s["osdmap"]["num_up_osds"] == 3 and states and all(x["state_name"] == "active+clean" for x in states)


def until(check, what, timeout=300):
    deadline = time.monotonic() + timeout
    while not check():
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up waiting for {what}")
        time.sleep(0.02)


def row(what, values):
    values = sorted(values)
    print(f"| {what} | {values[0]:.2f} s | {statistics.median(values):.2f} s | {values[-1]:.2f} s |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3, help="how often each is done (default 3)")
    p.add_argument("--missed", type=int, default=10_000, help="writes that the absent OSD misses (default 10000)")
    p.add_argument("--dir", default="/var/tmp", help="where the cluster's files go")
    o = p.parse_args()
    base = Path(tempfile.mkdtemp(prefix="siphon-failover.", dir=o.dir))
    cluster = Processes(base, mons=3, hosts=3)
    try:
        cluster.start()
        admin = rados.Rados(conffile=str(cluster.conf))
        admin.connect()
        for command in ({"prefix": "osd pool create", "pool": "d", "pg_num": 16},
                        {"prefix": "osd pool application enable", "pool": "d", "app": "rados"}):
            admin.mon_command(json.dumps(command), b"")
        c = Client(cluster.conf, "d", 16)
        until(lambda: clean(c), "active+clean")
        for t in c.threads:
            t.start()
        print("| what | first | median | last |\n|---|---|---|---|")
        for round_ in range(o.rounds):
            osd = round_ % 3
            pgs = c.led_by(osd)
            cluster[f"osd.{osd}"].kill()
            began = time.monotonic()
            row(f"SIGKILL of osd.{osd}: a write to each of the {len(pgs)} groups it led", [c.first_after(pg, began) - began for pg in pgs])
            cluster[f"osd.{osd}"].start()
            until(lambda: clean(c), "active+clean")
        for round_ in range(o.rounds):
            osd = round_ % 3
            pgs = c.led_by(osd)
            began = time.monotonic()
            if cluster[f"osd.{osd}"].stop() != 0:
                raise SystemExit("the OSD did not stop in order")
            until(lambda: all(c.acks[pg][-1][0] > began + 0.5 for pg in pgs), "writes")
            gaps = []
            for pg in pgs:
                ends = [end for _, end in c.acks[pg] if end > began - 1]
                gaps.append(max(b - a for a, b in zip(ends, ends[1:])))
            row(f"orderly stop of osd.{osd}: longest gap in each of the {len(pgs)} groups it led", gaps)
            cluster[f"osd.{osd}"].start()
            until(lambda: clean(c), "active+clean")
        for round_ in range(o.rounds):
            leader = c.command(prefix="quorum_status")["quorum_leader_name"]
            cluster[f"mon.{leader}"].kill()
            began = time.monotonic()
            code, _, text = admin.mon_command(json.dumps({"prefix": "config-key set", "key": "failover", "val": str(round_)}), b"")
            if code:
                raise SystemExit(f"config-key set: {code} {text}")
            took = time.monotonic() - began
            row(f"SIGKILL of mon.{leader}, which leads: a write to each of the {len(c.objects)} groups", [c.first_after(pg, began) - began for pg in c.objects])
            row(f"SIGKILL of mon.{leader}, which leads: a command", [took])
            cluster[f"mon.{leader}"].start()
            until(lambda: len(c.command(prefix="quorum_status")["quorum_names"]) == 3, "three monitors")
        c.stop.set()
        for t in c.threads:
            t.join()
        for round_ in range(o.rounds):
            osd = round_ % 3
            cluster[f"osd.{osd}"].kill()
            until(lambda: c.command(prefix="status")["osdmap"]["num_up_osds"] == 2, "the map to call it down")
            waiting = []
            for i in range(o.missed):
                waiting.append(c.io.aio_write_full(f"missed{round_}.{i}", DATA))
                if len(waiting) > 64:
                    waiting.pop(0).wait_for_complete()
            for w in waiting:
                w.wait_for_complete()
            began = time.monotonic()
            cluster[f"osd.{osd}"].start()
            until(lambda: clean(c), "active+clean")
            row(f"start of osd.{osd} after {o.missed} missed writes of 4 KiB: active+clean", [time.monotonic() - began])
        c.rados.shutdown()
        admin.shutdown()
    finally:
        cluster.stop()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
