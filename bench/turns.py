"""Profiles of mClock in turns, beside the same clients and the same background work.

    cargo xtask bench turns [--work trim|backfill] [--rounds 150] [--seconds 1]

The load study gives each profile a cluster's life of its own; what clients keep then differs less between profiles than a shared
machine does from minute to minute. Here one client (fio, writes of 4 KiB) goes on all the time, one long piece of background work
waits for it, and what changes every second or so is the profile alone: each round has a turn of each profile, and one in which the
work is held back by a flag, in an order that is turned around from round to round. Differences are taken within rounds and
told with their standard errors, so that a slow drift of the machine is in none of them. Turns are short for that: processors that
others share may change their speed by half from one second to the next, and stay so for some. A request is answered within tens of
milliseconds, so those of the turn before are gone after `--settle`.
"""
import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path

import rados

from clusters import Siphon, need_space, wait
from loads import fio
from trim import Clones, client

ALONE = "work held back"
PROFILES = ("high_client_ops", "balanced", "high_recovery_ops")


class Trim:
    """A snapshot is trimmed, of which every object has a clone."""

    unit, counted, flags = "clones", "background_best_effort", ("nosnaptrim",)

    def __init__(self, cluster, o):
        self.cluster, self.clones = cluster, Clones(cluster, o.objects, o.object_size)
        self.clones.snapshot()

    def begin(self):
        self.clones.remove()

    def left(self):
        return self.clones.left()

    def close(self):
        self.clones.close()


class Backfill:
    """An OSD is taken out, and its objects are copied to the others."""

    unit, counted, flags = "objects", "background_recovery", ("nobackfill", "norecover")

    def __init__(self, cluster, o):
        self.cluster, self.objects = cluster, Clones(cluster, o.objects, o.object_size)

    def begin(self):
        self.cluster.ceph("osd", "out", str(self.cluster.osds - 1))

    def left(self):
        pgmap = json.loads(self.cluster.ceph("status", "-f", "json"))["pgmap"]
        return pgmap.get("misplaced_objects", 0)

    def close(self):
        self.objects.close()


WORKS = {"trim": Trim, "backfill": Backfill}


class Control:
    """Commands without a process for each: they are given while it is measured."""

    def __init__(self, cluster):
        self.osds = range(cluster.osds)
        self.rados = rados.Rados(conffile=str(cluster.conf))
        self.rados.connect(30)

    def mon(self, **command):
        status, _, why = self.rados.mon_command(json.dumps(command), b"", 30)
        if status:
            raise SystemExit(f"{command}: {why}")

    def begun(self, name):
        """Operations of a class that the OSDs have begun."""
        dumps = []
        for osd in self.osds:
            status, out, why = self.rados.osd_command(osd, json.dumps({"prefix": "dump_qos"}), b"", 30)
            if status:
                raise SystemExit(f"osd.{osd}: {why}")
            dumps.append(json.loads(out))
        return sum(d["classes"][name]["served"] for d in dumps)

    def turn(self, name, work):
        for flag in work.flags:
            self.mon(prefix="osd set" if name == ALONE else "osd unset", key=flag)
        if name != ALONE:
            self.mon(prefix="config set", who="osd", name="osd_mclock_profile", value=name)

    def close(self):
        self.rados.shutdown()


def take_turns(control, work, o):
    """(name, round, begin, end, background operations each second) of each turn; times of the wall clock."""
    turns = []
    for n in range(o.rounds):
        names = (ALONE, *PROFILES)
        for name in names[::-1] if n % 2 else names:
            control.turn(name, work)
            time.sleep(o.settle)
            begin, before = time.time(), control.begun(work.counted)
            time.sleep(o.seconds)
            end, after = time.time(), control.begun(work.counted)
            turns.append((name, n, begin, end, (after - before) / (end - begin)))
        if work.left() < o.objects // 20:
            # What is left is less than a round's: the last one may have run out of work.
            return [t for t in turns if t[1] < n]
    return turns


def figures(log, turns):
    """For each turn the client's operations each second, their mean latency and 99th percentile in milliseconds; in one in which none ended
    (a device that stands still) there are no latencies."""
    samples = [[] for _ in turns]
    at = 0
    for line in open(log):
        ms, nanoseconds, *_ = line.split(",")
        second = int(ms) / 1000
        while at < len(turns) and turns[at][3] <= second:
            at += 1
        if at == len(turns):
            break
        if turns[at][2] <= second:
            samples[at].append(int(nanoseconds) / 1e6)
    found = []
    for (_, _, begin, end, _), s in zip(turns, samples):
        s.sort()
        latency = dict(mean=statistics.fmean(s), p99=s[int(len(s) * 0.99)]) if s else dict(mean=math.nan, p99=math.nan)
        found.append(dict(iops=len(s) / (end - begin), **latency))
    return found


def error(values):
    """The standard error of their mean."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else float("nan")


def table(work, turns, found):
    names = (ALONE, *PROFILES)
    still = sum(f["iops"] == 0 for f in found)
    # A round in which nothing was done in some turn says nothing of profiles.
    lost = {t[1] for t, f in zip(turns, found) if f["iops"] == 0}
    if len(lost) == len({t[1] for t in turns}):
        raise SystemExit(f"no round is left of {len(lost)}: in each nothing of the client ended in some turn; try a longer --seconds")
    turns, found = zip(*((t, f) for t, f in zip(turns, found) if t[1] not in lost))
    by = {name: {} for name in names}
    for (name, n, _, _, rate), f in zip(turns, found):
        by[name][n] = {**f, "background": rate}
    of = lambda name, what: [by[name][n][what] for n in sorted(by[name])]
    print(f"| profile | client IOPS | of the round's alone | mean ms | p99 ms | {work.unit}/s |\n| --- | --- | --- | --- | --- | --- |")
    for name in names:
        kept = [100 * a / b for a, b in zip(of(name, "iops"), of(ALONE, "iops"))]
        cells = [f"{statistics.mean(of(name, 'iops')):.0f} ± {error(of(name, 'iops')):.0f}", f"{statistics.mean(kept):.1f} ± {error(kept):.1f} %"]
        cells += [f"{statistics.mean(of(name, what)):.{digits}f}" for what, digits in (("mean", 2), ("p99", 1), ("background", 0))]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\n| within rounds | client IOPS | background |\n| --- | --- | --- |")
    for a, b in zip(PROFILES, PROFILES[1:]):
        more = [100 * (x / y - 1) for x, y in zip(of(a, "iops"), of(b, "iops"))]
        less = [100 * (x / y - 1) for x, y in zip(of(a, "background"), of(b, "background")) if y]
        print(f"| {a} against {b} | {statistics.mean(more):+.1f} ± {error(more):.1f} % | {statistics.mean(less):+.1f} ± {error(less):.1f} % |")
    print(f"\n{len(of(ALONE, 'iops'))} rounds" + (f", and {len(lost)} left out for {still} turns in which nothing of the client ended" if lost else ""), flush=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--work", choices=WORKS, default="trim")
    a.add_argument("--rounds", type=int, default=150, help="at most; the work may end before")
    a.add_argument("--seconds", type=float, default=1, help="of a turn that are measured")
    a.add_argument("--settle", type=float, default=0.3, help="seconds of a turn before that")
    a.add_argument("--objects", type=int, default=240000, help="that the background work is about")
    a.add_argument("--object-size", type=int, default=4096, help="bytes of each")
    a.add_argument("--client-size", type=int, default=256, help="MiB of objects of the client")
    a.add_argument("--osds", type=int, default=4)
    a.add_argument("--osd-size", type=int, default=5, help="GiB")
    a.add_argument("--dir", default="/var/tmp")
    o = a.parse_args()
    with tempfile.TemporaryDirectory(prefix="turns.", dir=o.dir) as d:
        cluster = Siphon(Path(d) / "siphon", {"osd_mclock_profile": PROFILES[0]}, o.osd_size, o.osds)
        need_space(o.dir, [cluster])
        try:
            cluster.start()
            for who in ("mgr", "osd"):
                cluster.ceph("config", "set", who, "mgr_stats_period", "1")
            fio(cluster, "write", "4m", 8, 0, o.client_size)
            work, control = WORKS[o.work](cluster, o), Control(cluster)
            control.turn(ALONE, work)
            work.begin()
            wait("the work to be there", lambda: work.left() >= o.objects // 2)
            before = control.begun("client")
            load, log = client(cluster, Path(d), 86400, 0, o.client_size, ("--log_unix_epoch=1",))
            try:
                wait("the client", lambda: control.begun("client") > before + 10000)
                turns = take_turns(control, work, o)
            finally:
                load.terminate()
                load.communicate()
            table(work, turns, figures(log, turns))
            control.close()
            work.close()
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
