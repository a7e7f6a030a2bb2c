#!/usr/bin/env python3
"""How fast an emptied OSD is filled again, at what CPU, and what a client notices: a stock Ceph and Siphon beside each other.

Each cluster has four OSDs and pools of three copies. A pool is filled with objects, one OSD is taken out until the
others have everything and its own copies are removed, and is put in again; measured is the time from then until all
groups are active and clean (as the statistics of each second say). The same is done while a client writes 4 KiB objects to
another pool at half of the rate that it reached alone, or at `--client-rate`. Last, a pool of many groups is made, and one of
its OSDs is called down by mistake: the time until writes of objects in all groups are acknowledged again. Options of
recovery are each system's defaults, stock Ceph's those for flash.

With --ec 2+1 the pools that are filled are erasure-coded ones of this shape, and what is counted are shards.
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

sys.path.insert(0, str(Path(__file__).resolve().parent))
from clusters import FLASH, Siphon, Stock, cpu_seconds, need_space, wait  # noqa: E402
from erasure import osds_of, shape  # noqa: E402
from study.ceph import Ceph  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
VICTIM = 3
DEPTH = 16


class Admin(Ceph):
    """Commands that fail end the benchmark."""

    def make_pool(self, name, pgs, coded=None):
        kind = {}
        if coded:
            k, m = coded
            profile = [f"k={k}", f"m={m}", "plugin=jerasure", "technique=reed_sol_van", "crush-failure-domain=osd"]
            self.mon("osd erasure-code-profile set", name="filled", profile=profile)
            kind = {"pool_type": "erasure", "erasure_code_profile": "filled"}
        self.mon("osd pool create", pool=name, pg_num=pgs, pgp_num=pgs, **kind)
        self.mon("osd pool application enable", pool=name, app="rados")

    def drop_pool(self, name):
        self.mon("osd pool delete", pool=name, pool2=name, yes_i_really_really_mean_it=True)

    def groups(self):
        """The groups of the pools that there are, as the manager knows them."""
        pools = set(self.pools().values())
        return [g for g in self.mgr("pg dump", dumpcontents=["pgs"])["pg_stats"] if int(g["pgid"].split(".")[0]) in pools]

    def settled(self, what):
        """Waits until all groups are clean in this map or a newer one."""
        epoch = self.mon("osd dump")["epoch"]

        def clean():
            return all(up for up, _ in self.osds().values()) \
                and all(g["state"] == "active+clean" and int(g["reported_epoch"]) >= epoch for g in self.groups())

        wait(what, clean, 1800)


class Writer:
    """Writes 4 KiB objects, `rate` a second, or as many as it can."""

    def __init__(self, admin, pool, rate=None):
        self.io = admin.rados.open_ioctx(pool)
        self.rate, self.took, self.stopping = rate, [], False
        self.room = threading.Semaphore(DEPTH)
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        began, sent = time.monotonic(), 0
        while not self.stopping:
            if self.rate:
                time.sleep(max(0.0, began + sent / self.rate - time.monotonic()))
            self.room.acquire()
            at = time.monotonic()
            self.io.aio_write_full(f"c{sent % 1000}", b"x" * 4 * KIB, oncomplete=lambda _, at=at: self.done(at))
            sent += 1

    def done(self, at):
        self.took.append(time.monotonic() - at)
        self.room.release()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping = True
        self.thread.join()
        for _ in range(DEPTH):
            self.room.acquire()
        self.io.close()


def written(completion):
    completion.wait_for_complete()
    if completion.get_return_value() != 0:
        raise SystemExit(f"a write failed: {completion.get_return_value()}")


def fill(admin, pool, count, size):
    with admin.rados.open_ioctx(pool) as io:
        data, waiting = b"d" * size, []
        for i in range(count):
            waiting.append(io.aio_write_full(f"o{i}", data))
            if len(waiting) > (64 if size < MIB else 8):
                written(waiting.pop(0))
        for w in waiting:
            written(w)


def refill(cluster, admin, pool, size, rate):
    """Empties the OSD and fills it again, beside a client with this rate if one is given; what that took."""
    admin.mon("osd out", ids=[str(VICTIM)])
    admin.settled("an empty OSD")
    before = sum(map(cpu_seconds, cluster.pids()))
    writer = Writer(admin, "client", rate) if rate else None
    if writer:
        writer.__enter__()
    began = time.monotonic()
    admin.mon("osd in", ids=[str(VICTIM)])
    admin.settled("the OSD to be filled")
    took, cpu = time.monotonic() - began, sum(map(cpu_seconds, cluster.pids())) - before
    if writer:
        writer.__exit__()
    id = admin.pools()[pool]
    moved = sum(g["stat_sum"]["num_objects"] for g in admin.groups() if g["pgid"].startswith(f"{id}.") and VICTIM in g["acting"])
    mean = statistics.mean(writer.took) * 1e3 if writer and writer.took else None
    return {"objects": moved, "seconds": took, "rate": moved / took, "mib_s": moved * size / took / MIB, "cpu": cpu,
            "cpu_us": cpu / max(moved, 1) * 1e6, "client_ms": mean, "client_rate": len(writer.took) / took if writer else None}


def peering(admin, pgs):
    """Until objects in all groups are written: of new groups, and when one OSD is called down by mistake."""
    def written_all():
        began = time.monotonic()
        with admin.rados.open_ioctx("many") as io:
            for w in [io.aio_write_full(f"o{i}", b"x") for i in range(4 * pgs)]:
                written(w)
        return time.monotonic() - began

    admin.make_pool("many", pgs)
    made = written_all()
    admin.settled("new groups")
    usual = written_all()
    admin.mon("osd down", ids=[str(VICTIM)])
    down = written_all()
    admin.drop_pool("many")
    return {"made": made, "down": down, "usual": usual}


def run(cluster, options):
    admin = Admin(cluster.conf)
    rows = {}
    for who, name, value in (("global", "mon_max_pg_per_osd", "3000"), ("mon", "mon_allow_pool_delete", "true"),
                             # The end is seen in statistics, a second late at most.
                             ("mgr", "mgr_stats_period", "1"), ("osd", "mgr_stats_period", "1")):
        admin.mon("config set", who=who, name=name, value=value)
    admin.make_pool("client", 32)
    with Writer(admin, "client") as alone:
        time.sleep(options.seconds)
    rate = options.client_rate or len(alone.took) / options.seconds / 2
    rows["client"] = {"rate": len(alone.took) / options.seconds, "alone_ms": statistics.mean(alone.took) * 1e3}
    for label, count, size in (("4 KiB", options.small, 4 * KIB), ("4 MiB", options.large, 4 * MIB)):
        # A client may take the name of a pool that is gone for that pool.
        pool = f"fill-{count}x{size}"
        admin.make_pool(pool, 64, options.ec)
        fill(admin, pool, count, size)
        beside = f"a client's {rate} writes/s" if options.client_rate else "a client at half load"
        for load, paced in (("no client", None), (beside, rate)):
            rows[f"{label}, {load}"] = refill(cluster, admin, pool, size, paced)
            print(f"{cluster.name}: {label}, {load}: {json.dumps(rows[f'{label}, {load}'])}", file=sys.stderr, flush=True)
        admin.drop_pool(pool)
    rows["peering"] = peering(admin, options.pgs)
    print(f"{cluster.name}: peering: {json.dumps(rows['peering'])}", file=sys.stderr, flush=True)
    admin.close()
    return rows


def table(results, pgs):
    names = list(results)
    print("| filling an emptied OSD | " + " | ".join(f"{n}: objects/s, MiB/s, CPU per object, client mean" for n in names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for line in [k for k in next(iter(results.values())) if "," in k]:
        cells = []
        for n in names:
            r = results[n][line]
            # Beside a client the processors work for both.
            more = f"-, {r['client_ms']:.1f} ms at {r['client_rate']:.0f}/s" if r["client_ms"] else f"{r['cpu_us']:.0f} us, -"
            cells.append(f"{r['rate']:.0f}, {r['mib_s']:.1f}, {more}")
        print(f"| {line} | " + " | ".join(cells) + " |")
    print("| the client alone: mean | " + " | ".join(f"{results[n]['client']['alone_ms']:.1f} ms at {results[n]['client']['rate']:.0f}/s" for n in names) + " |")
    for key, what in (("made", f"{pgs} groups just made"), ("usual", "the same groups, once they serve"), ("down", "the same, when an OSD of theirs was just called down")):
        print(f"| {4 * pgs} writes, {what} | " + " | ".join(f"{results[n]['peering'][key]:.1f} s" for n in names) + " |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--small", type=int, default=40_000, help="objects of 4 KiB (default 40000)")
    p.add_argument("--large", type=int, default=400, help="objects of 4 MiB (default 400)")
    p.add_argument("--pgs", type=int, default=1000, help="groups that peer (default 1000)")
    p.add_argument("--seconds", type=float, default=5, help="how long the client's rate is measured")
    p.add_argument("--ec", type=shape, metavar="K+M", help="erasure-coded pools of this shape are filled")
    p.add_argument("--client-rate", type=int, default=0, help="writes of the client in a second, the same beside both; 0 for half of what it reaches alone")
    p.add_argument("--profile", help="of Siphon's mClock; its default is balanced, stock Ceph's scheduler is WPQ")
    p.add_argument("--osd-size", type=int, default=6, help="GiB of each OSD")
    p.add_argument("--only", choices=["ceph", "siphon"], help="one of the two")
    p.add_argument("--dir", default="/var/tmp", help="where the clusters' files go")
    p.add_argument("--json", help="a file for the figures")
    o = p.parse_args()
    base = Path(tempfile.mkdtemp(prefix="siphon-recovery.", dir=o.dir))
    results = {}
    try:
        for kind in (Stock, Siphon):
            if o.only and o.only != kind.name:
                continue
            options = FLASH if kind is Stock else {"osd_mclock_profile": o.profile} if o.profile else {}
            # One more than each object has copies or shards.
            cluster = kind(base / kind.name, options, o.osd_size, 1 + (osds_of(*o.ec) if o.ec else 3))
            need_space(o.dir, [cluster])
            cluster.dir.mkdir(parents=True, exist_ok=True)
            try:
                cluster.start()
                results[kind.name] = run(cluster, o)
            finally:
                cluster.stop()
                shutil.rmtree(cluster.dir, ignore_errors=True)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    table(results, o.pgs)
    if o.json:
        Path(o.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
