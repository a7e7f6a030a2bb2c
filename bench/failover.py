#!/usr/bin/env python3
"""How long clients wait when a daemon goes, and how soon an OSD that was away is whole again.

A cluster of three monitors, a manager and three OSDs on three hosts, each daemon a process on this machine; one stock client
with its usual settings writes 4 KiB objects to every one of 16 placement groups, one after the other in each. With --ceph a
stock Ceph beside Siphon: both run all the time, and each thing is done to one and then to the other, while no client asks
anything of the one that waits. Of all rounds the median is printed, and the worst.

Measured are, from the signal: until a write to a group that the killed OSD led is acknowledged (of its groups the first, the
median and the last); the longest time between two acknowledged writes of a group around an orderly stop; until a write that
began after the leading monitor was killed is acknowledged, and until a command is answered. And from the start of an OSD that
missed many writes until all groups are active and clean, as their primaries say, with the processor time of all servers in that time. The
first line is what the same client sees while nothing happens to anybody.
"""
import argparse
import contextlib
import functools
import json
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import rados  # noqa: E402
from clusters import FLASH, Stock, cpu_seconds, need_space, wait  # noqa: E402
from separate import Separate  # noqa: E402
from study.ceph import Ceph, CommandFailed  # noqa: E402

DATA = b"x" * 4096
POOL, PGS, OSDS, MONS = "bench", 16, 3, 3
OSD_GB = 5


class Client:
    """Writes to all groups at the same time, and knows when each write was acknowledged."""

    def __init__(self, cluster):
        self.cluster, self.admin = cluster, Ceph(cluster.conf)
        self.rados = rados.Rados(conffile=str(cluster.conf))
        self.rados.connect()
        self.io = self.rados.open_ioctx(POOL)
        self.objects = {}      # group -> an object in it
        i = 0
        while len(self.objects) < PGS:
            self.objects.setdefault(self.where(f"o{i}")["pgid"], f"o{i}")
            i += 1
        self.acks, self.failed = {}, None
        self.layout()

    def layout(self):
        """Ends the benchmark unless the cluster is what is to be measured."""
        tree = self.admin.mon("osd tree")["nodes"]
        hosts = [n["name"] for n in tree if n["type"] == "host" and n["children"]]
        pool = next(p for p in self.admin.mon("osd dump")["pools"] if p["pool_name"] == POOL)
        found = len(self.quorum()), len(hosts), pool["size"], pool["pg_num"]
        if found != (MONS, OSDS, 3, PGS):
            raise SystemExit(f"{self.cluster.name}: not {MONS} monitors in quorum, {OSDS} hosts, size 3 and {PGS} groups, but {found}")

    def quorum(self):
        return self.admin.mon("quorum_status")["quorum_names"]

    def where(self, name):
        return self.admin.mon("osd map", pool=POOL, object=name)

    def led_by(self, osd):
        pgs = [pg for pg, name in self.objects.items() if self.where(name)["acting_primary"] == osd]
        if not pgs:
            raise SystemExit(f"{self.cluster.name}: osd.{osd} leads no group")
        return pgs

    def option(self, name):
        """What the OSDs have, if they know it."""
        try:
            return self.admin.osd(0, "config get", var=name)[name]
        except CommandFailed:
            return "unknown"

    def clean(self):
        """As the monitors say, who know it from statistics that may be seconds old."""
        status = self.admin.status()
        states = status["pgmap"].get("pgs_by_state", [])
        return status["osdmap"]["num_up_osds"] == OSDS and states and all(s["state_name"] == "active+clean" for s in states)

    def until_clean(self):
        """Returns when all groups are clean on all OSDs, as their primaries say: not later, as with statistics. A group that is
        clean remains so, and only one is asked at a time: this costs the servers little."""
        for pg in self.objects:
            self.until(lambda: self.whole(pg), f"{pg} active+clean", 600)

    def whole(self, pg):
        # With an older map the question would go to an OSD that led the group before, and wait if that is gone.
        self.admin.rados.wait_for_latest_osdmap()
        code, out, _ = self.admin.rados.pg_command(pg, json.dumps({"prefix": "query", "pgid": pg, "format": "json"}), b"")
        if code:
            # An OSD that does not lead the group any more, or not yet.
            return False
        got = json.loads(out)
        return got["state"].startswith("active+clean") and len(got["acting"]) == OSDS

    def until(self, check, what, timeout=300):
        deadline = time.monotonic() + timeout
        while not check():
            if self.failed:
                raise SystemExit(f"{self.cluster.name}: a write failed: {self.failed}")
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.cluster.name}: gave up waiting for {what}")
            time.sleep(0.01)

    def written(self, completion):
        completion.wait_for_complete()
        if completion.get_return_value() != 0:
            raise SystemExit(f"{self.cluster.name}: a write failed: {completion.get_return_value()}")

    def close(self):
        self.io.close()
        self.rados.shutdown()
        self.admin.close()

    def run(self, pg, stop):
        acks, name = self.acks[pg], self.objects[pg]
        while not stop.wait(0.002):
            began = time.monotonic()
            try:
                self.io.write_full(name, DATA)
            except rados.Error as e:
                self.failed = e
                return
            acks.append((began, time.monotonic()))

    @contextlib.contextmanager
    def writing(self):
        """Writes go on in all groups, and have for a while."""
        stop = threading.Event()
        self.acks = {pg: [] for pg in self.objects}
        threads = [threading.Thread(target=self.run, args=(pg, stop), daemon=True) for pg in self.objects]
        for t in threads:
            t.start()
        try:
            self.written_since(time.monotonic() + 1)
            yield
        finally:
            stop.set()
        for t in threads:
            t.join(300)
            if t.is_alive():
                raise SystemExit(f"{self.cluster.name}: a write is not acknowledged")

    def written_since(self, moment, pgs=None):
        """Waits until a write that began after that moment is acknowledged in each group."""
        self.until(lambda: all(self.acks[pg] and self.acks[pg][-1][0] > moment for pg in pgs or self.acks), "writes")


def gaps(acks, began):
    """(length, end) of the times between acknowledged writes of a group that ended after that moment."""
    ends = [end for _, end in acks]
    return [(b - a, b) for a, b in zip(ends, ends[1:]) if b > began]


def resumed(acks, began, dead):
    """When a write of a group was acknowledged again, of which the primary was killed. What it had acknowledged itself may arrive
    after the signal: it is the longest of the times between acknowledgements, up to the first write that began when it was gone."""
    last = next(end for begin, end in acks if begin > dead)
    return max(gap for gap in gaps(acks, began) if gap[1] <= last)[1]


def undisturbed(cluster, c, _):
    with c.writing():
        began = time.monotonic()
        c.written_since(began + 3)
        return {"nothing happens, for three seconds: longest gap in a group": max(max(gaps(c.acks[pg], began))[0] for pg in c.objects)}


def killed(cluster, c, round_):
    osd = round_ % OSDS
    with c.writing():
        pgs = c.led_by(osd)
        began = time.monotonic()
        cluster[f"osd.{osd}"].kill()
        dead = time.monotonic()
        c.written_since(dead, pgs)
        took = sorted(resumed(c.acks[pg], began, dead) - began for pg in pgs)
    cluster[f"osd.{osd}"].spawn()
    what = "SIGKILL of an OSD: a write to a group that it led,"
    return {f"{what} first": took[0], f"{what} median": statistics.median(took), f"{what} last": took[-1]}


def stopped(cluster, c, round_):
    osd = round_ % OSDS
    with c.writing():
        pgs = c.led_by(osd)
        began = time.monotonic()
        code = cluster[f"osd.{osd}"].stop()
        gone = time.monotonic()
        if code != 0:
            raise SystemExit(f"{cluster.name}: the OSD did not stop in order: {code}")
        c.written_since(gone + 0.5, pgs)
        longest = sorted(max(gaps(c.acks[pg], began))[0] for pg in pgs)
    cluster[f"osd.{osd}"].spawn()
    what = "orderly stop of an OSD: longest gap in a group that it led,"
    return {f"{what} median": statistics.median(longest), f"{what} most": longest[-1], "orderly stop of an OSD: until its process has ended": gone - began}


def leaderless(cluster, c, round_):
    with c.writing():
        leader = c.admin.mon("quorum_status")["quorum_leader_name"]
        began = time.monotonic()
        cluster[f"mon.{leader}"].kill()
        dead = time.monotonic()
        c.admin.mon("config-key set", key="failover", val=str(round_))
        answered = time.monotonic()
        c.written_since(answered)
        first = [next(end for begin, end in c.acks[pg] if begin > dead) - began for pg in c.objects]
        longest = max(max(gaps(c.acks[pg], began))[0] for pg in c.objects)
    cluster[f"mon.{leader}"].spawn()
    c.until(lambda: len(c.quorum()) == MONS, "all monitors in quorum")
    what = "SIGKILL of the leading monitor:"
    return {f"{what} a write that began afterwards, last of the groups": max(first), f"{what} longest gap in a group until the command is answered": longest,
            f"{what} a command": answered - began}


def missed(writes, cluster, c, round_):
    osd = round_ % OSDS
    cluster[f"osd.{osd}"].kill()
    c.until(lambda: c.admin.status()["osdmap"]["num_up_osds"] == OSDS - 1, "the map to call it down")
    waiting = []
    for i in range(writes):
        waiting.append(c.io.aio_write_full(f"missed{round_}.{i}", DATA))
        if len(waiting) > 64:
            c.written(waiting.pop(0))
    for w in waiting:
        c.written(w)
    before = {pid: cpu_seconds(pid) for pid in cluster.pids()}
    began = time.monotonic()
    cluster[f"osd.{osd}"].spawn()
    c.until_clean()
    took = time.monotonic() - began
    cpu = sum(cpu_seconds(pid) - before.get(pid, 0) for pid in cluster.pids())
    what = f"start of an OSD that missed {writes} writes of 4 KiB:"
    return {f"{what} active+clean": took, f"{what} CPU of all servers": cpu}


def table(results, names):
    print("| what | " + " | ".join(f"{n}: median, worst" for n in names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for what, of in results.items():
        print(f"| {what} | " + " | ".join(f"{statistics.median(of[n]):.2f} s, {max(of[n]):.2f} s" for n in names) + " |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3, help="how often each is done (default 3)")
    p.add_argument("--missed", type=int, default=10_000, help="writes that the absent OSD misses (default 10000)")
    p.add_argument("--ceph", action="store_true", help="a stock cluster as well")
    p.add_argument("--no-siphon", action="store_true")
    p.add_argument("--dir", default="/var/tmp", help="where the clusters' files go")
    p.add_argument("--json", help="a file for the figures of each round")
    o = p.parse_args()
    if o.no_siphon and not o.ceph:
        p.error("--no-siphon leaves nothing without --ceph")
    # The clusters are stopped then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("SIGTERM"))
    base = Path(tempfile.mkdtemp(prefix="siphon-failover.", dir=o.dir))
    clusters = []
    if o.ceph:
        clusters.append(Stock(base / "ceph", FLASH, OSD_GB, OSDS, mons=MONS, hosts=OSDS, pgs=PGS))
    if not o.no_siphon:
        clusters.append(Separate(base / "siphon", (), OSD_GB, OSDS, mons=MONS, hosts=OSDS, pgs=PGS))
    results = {}
    try:
        need_space(o.dir, clusters)
        clients = []
        for cluster in clusters:
            cluster.dir.mkdir()
            cluster.start()
            clients.append(Client(cluster))
            print(f"{cluster.name}: {', '.join(f'{k} {clients[-1].option(k)}' for k in ('osd_heartbeat_grace', 'osd_fast_fail_on_connection_refused'))}",
                  file=sys.stderr, flush=True)
        for phase in (undisturbed, killed, stopped, leaderless, functools.partial(missed, o.missed)):
            for round_ in range(o.rounds):
                for cluster, c in zip(clusters, clients):
                    # The statistics may be those from before the last OSD went.
                    c.until_clean()
                    wait("active+clean", c.clean, 600)
                    got = phase(cluster, c, round_)
                    print(f"{cluster.name}: {json.dumps(got)}", file=sys.stderr, flush=True)
                    for what, value in got.items():
                        results.setdefault(what, {}).setdefault(cluster.name, []).append(value)
        for c in clients:
            c.close()
    finally:
        for cluster in clusters:
            cluster.stop()
        shutil.rmtree(base, ignore_errors=True)
    table(results, [cluster.name for cluster in clusters])
    if o.json:
        Path(o.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
