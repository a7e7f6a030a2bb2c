"""What tenants are promised, and what they get in each second: floors, ceilings and weights, beside each other.

    cargo xtask bench promises [--seconds 30] [--disturb]

Ten tenants, each an image: three with ceilings, three with floors, of which one has all its objects on one OSD, and four who
divide the rest by weight, of which one works through a hundred sessions. Each OSD leads as many objects of each image of many objects. All of them always have something to ask
for (fio's rbd engine, random writes of 4 KiB). Then bursts: a tenant with a floor asks for nothing for a second, and then for all
it can get, and windows of 100 ms tell when it has its floor. With `--disturb` daemons are processes of their own, and the first part is measured four
times more: while the manager fails and another takes its place, while an OSD is marked down and comes back, while one is stopped in order and
started again, and while one is killed and started again.

A share is a part of what OSDs did for those who have no other promise: also for requests that clients count for nothing, those to the header of an image. When an
OSD goes or comes, each of a hundred sessions watches the header of its image anew.

For each second in which a promise was not kept it says what all had together, and for how long nothing of anybody ended: the machine itself stands still now and then.

Clients are on the same processors as servers. So that it is the OSDs that run out, and no client waits for a
processor, OSDs are told what they can do (`--capacity`, writes of 4 KiB a second for each): less than the machine could.
"""
import argparse
import json
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import placement
from clusters import BINARY, ENV, Siphon, bounded, sh, wait
from separate import Separate

# Name, what it is promised, its pool, sessions, requests under way in each.
TENANTS = [
    ("ceiling-100", {"ceiling-iops": 100, "weight": 1000}, "many", 1, 16),
    ("ceiling-300", {"ceiling-iops": 300, "weight": 1000}, "many", 1, 16),
    ("ceiling-600", {"ceiling-iops": 600, "weight": 1000}, "many", 1, 16),
    ("floor-200", {"floor-iops": 200, "weight": 1}, "many", 1, 48),
    ("floor-400", {"floor-iops": 400, "weight": 1}, "many", 1, 64),
    ("floor-200-on-one-osd", {"floor-iops": 200, "weight": 1}, "one", 1, 48),
    ("weight-100", {"weight": 100}, "many", 1, 48),
    ("weight-200", {"weight": 200}, "many", 1, 48),
    ("weight-300", {"weight": 300}, "many", 1, 48),
    ("weight-400-of-100-sessions", {"weight": 400}, "many", 100, 1),
]
BURSTS = TENANTS[4]
# Of an image, and of each of its objects, in bytes.
IMAGE = 64 << 20
OBJECT = 64 << 10
# Operations of a tenant in a second, at most.
LOGGED = 1000


class Load:
    """fio on a tenant's pool."""

    def __init__(self, cluster, tenant, seconds, sessions=None, depth=None, fill=False, extra=()):
        name, _, pool, its_sessions, its_depth = tenant
        self.cluster, self.tenant = cluster, tenant
        self.dir = tempfile.TemporaryDirectory(prefix="promises.")
        self.seconds = seconds
        argv = ["fio", f"--name={name}", "--ioengine=rbd", "--clientname=admin", f"--pool={pool}", f"--rbdname={name}", "--busy_poll=0", "--thread",
                f"--iodepth={depth or its_depth}"]
        # Demand is to be steady. fio waits for all that is under way after as many bytes as the image has, and when it makes room for
        # more entries of its log: there is room for all of them.
        argv += ["--rw=write", "--bs=64k"] if fill else \
            ["--rw=randwrite", "--io_size=1t", "--bs=4k", "--norandommap", "--randrepeat=0", f"--numjobs={sessions or its_sessions}", "--time_based", f"--runtime={seconds}", f"--write_lat_log={self.dir.name}/log",
             f"--log_entries={max(1024, LOGGED * seconds // (sessions or its_sessions))}", "--log_unix_epoch=1", *extra]
        # Nor do sessions write to the image's header that it was changed, which is once a minute: a hundred did it at the same moment.
        options = {"rbd_cache": "false", "rbd_mtime_update_interval": 0}
        self.process = subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**ENV, "CEPH_CONF": str(cluster.client_conf(**options))})

    def begun(self, operations):
        """Waits until it has done so many."""
        before = served(self.cluster, self.tenant)

        def done():
            if self.process.poll() is not None:
                self.operations()
                raise SystemExit(f"fio of {self.tenant[0]} ended before it had done {operations} operations")
            return served(self.cluster, self.tenant) - before > operations
        wait(f"{operations} operations of {self.tenant[0]}", done)

    def ended(self):
        """When each operation ended, in milliseconds of the wall clock."""
        return [at for at, _ in self.operations()]

    def operations(self):
        """When each operation ended, in milliseconds of the wall clock, and how many nanoseconds it had taken."""
        out, _ = self.process.communicate(timeout=self.seconds + 300)
        if self.process.returncode != 0:
            why = [line for line in out.splitlines() if "err=" in line and "err= 0" not in line or line.startswith("fio:")] or out.splitlines()
            raise SystemExit(f"fio: exit {self.process.returncode}\n" + "\n".join(why[:20]))
        lines = (line.split(",") for path in Path(self.dir.name).glob("log_lat.*.log") for line in path.read_text().splitlines())
        all = sorted((int(at), int(took)) for at, took, *_ in lines)
        self.dir.cleanup()
        return all


def windows(times, begin, ms, count):
    """Operations that ended in each of so many windows."""
    counts = [0] * count
    for t in times:
        at = (t - begin) // ms
        if 0 <= at < count:
            counts[at] += 1
    return counts


def kept(promise, counts):
    """What was promised, and in how many of the seconds at least 98 % of a floor, or at most 102 % of a ceiling, was had."""
    floor, ceiling = promise.get("floor-iops"), promise.get("ceiling-iops")
    if floor:
        return floor, sum(c >= 0.98 * floor for c in counts)
    if ceiling:
        return ceiling, sum(c <= 1.02 * ceiling for c in counts)
    return None, None


def dump_qos(cluster, osd):
    """What an OSD says by its socket. A `ceph` process takes as much of the processors as hundreds of requests."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(next(cluster.dir.glob(f"**/ceph-osd.{osd}.asok"))))
        s.sendall(b'{"prefix": "dump_qos"}\0')
        with s.makefile("rb") as f:
            return json.loads(f.read(int.from_bytes(f.read(4), "big")))


def counted(cluster, what):
    """A counter of each tenant of each OSD, as they have it since they started: {(OSD, name): count}."""
    dumps = [dump_qos(cluster, i) for i in range(cluster.osds)]
    return {(i, t["tenant"].rsplit("//", 1)[-1]): t[what] for i, d in enumerate(dumps) for t in d["tenants"]}


def served(cluster, tenant):
    """Operations of a tenant that the OSDs have begun."""
    return sum(n for (_, name), n in counted(cluster, "served").items() if name == tenant[0])


def gained(counters, name):
    """By how much a tenant's counters have grown, from one look to the next. An OSD that was started meanwhile counts from nothing."""
    pairs = [(before.get(at, 0), now) for before, after in zip(counters, counters[1:]) for at, now in after.items() if at[1] == name]
    return sum(now - before if now >= before else now for before, now in pairs)


def deal_out(cluster, pool):
    """Groups of a pool to OSDs, so that each leads as many objects of each image: shares are those of each OSD, and here of all together."""
    info = lambda name: json.loads(sh("rbd", "-c", cluster.conf, "info", f"{pool}/{name}", "--format", "json"))
    prefixes = [info(t[0])["block_name_prefix"] + "." for t in TENANTS if t[2] == pool]
    sizes = {}
    for g in placement.groups(cluster, pool):
        objects = sh("rados", "-c", cluster.conf, "-p", pool, "--pgid", g["pgid"], "ls").split()
        sizes[g["pgid"]] = [sum(name.startswith(prefix) for name in objects) for prefix in prefixes]
    found = [sum(of) for of in zip(*sizes.values())]
    if set(found) != {IMAGE // OBJECT}:
        raise SystemExit(f"images have {found} objects in the groups of {pool}, not {IMAGE // OBJECT} each")
    placement.deal_out(cluster, pool, sizes)


def steady(cluster, o, what, disturb=None):
    """All of them at once, while something is done after a third of the time. A table of what each got."""
    # Who has many sessions needs a while to open them, and longer beside others.
    many, *others = sorted(TENANTS, key=lambda t: -t[3])
    loads = [(many, Load(cluster, many, 3 * o.warm_up + o.seconds))]
    loads[0][1].begun(100 * many[3])
    loads += [(t, Load(cluster, t, o.warm_up + o.seconds)) for t in others]
    time.sleep(o.warm_up)
    begin, disturbed = int(time.time() * 1000), None
    cost = lambda: counted(cluster, "served_cost")
    did = [cost()]
    if disturb:
        time.sleep(o.seconds / 3)
        did.append(cost())
        disturbed = int(time.time() * 1000)
        disturb()
    time.sleep(max(begin / 1000 + o.seconds - 2 - time.time(), 0))
    did.append(cost())
    ended = {t[0]: load.ended() for t, load in loads}
    if ended[many[0]][-1] < begin + o.seconds * 1000:
        raise SystemExit("the many sessions ended before the others: a longer --warm-up is needed")
    counts = [(t, windows(ended[t[0]], begin, 1000, o.seconds - 2)) for t in TENANTS]
    weighted = {t[0]: gained(did, t[0]) for t, _ in counts if set(t[1]) == {"weight"}}
    weights = sum(t[1]["weight"] for t in TENANTS if t[0] in weighted)
    print(f"{what}:\n\n| tenant | promised | mean | least second | most | seconds within 98 and 102 % | share, of what weights divide | by weight |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for t, c in counts:
        promised, within = kept(t[1], c)
        of = (lambda n: f"{n} ({100 * n / promised:.0f} %)") if promised else str
        share = f"{100 * weighted[t[0]] / sum(weighted.values()):.1f} % | {100 * t[1]['weight'] / weights:.1f} %" if t[0] in weighted else "| "
        print(f"| {t[0]} | {promised or ''} | {statistics.mean(c):.0f} | {of(min(c))} | {of(max(c))} | {f'{within} of {len(c)}' if promised else ''} | {share} |", flush=True)
    explain(counts, begin, sorted(t for times in ended.values() for t in times), disturbed)
    print()


def explain(counts, begin, ended, disturbed):
    """Seconds in which a promise was not kept: what all tenants together had then, and for how long nothing of anybody ended."""
    together = [sum(column) for column in zip(*(c for _, c in counts))]
    for second, all_of_them in enumerate(together):
        missed = [f"{t[0]} {c[second]}" for t, c in counts if kept(t[1], c[second:second + 1])[1] == 0]
        if missed:
            since = begin + second * 1000
            moments = [since, *(t for t in ended if since <= t < since + 1000), since + 1000]
            quiet = max(b - a for a, b in zip(moments, moments[1:]))
            when = f", {(since - disturbed) / 1000:.1f} s from what was done" if disturbed else ""
            print(f"\nmissed in second {second}{when}: {', '.join(missed)}; all together {all_of_them} of {statistics.mean(together):.0f} in the mean, nothing of anybody ended for {quiet} ms", flush=True)


def bursts(cluster, o):
    """A tenant that asked for nothing begins to again, beside one who takes all: when it has its floor."""
    floor, ms, pause = BURSTS[1]["floor-iops"], 100, 1000
    other = Load(cluster, TENANTS[-1], 3600, 16, 16)
    other.begun(3000)
    # Two seconds of what the floor allows, then a pause of a second, in one session.
    blocks = 2 * floor
    seconds = o.bursts * (blocks // floor + 1) + 1
    load = Load(cluster, BURSTS, seconds, extra=[f"--thinktime={pause * 1000}", f"--thinktime_blocks={blocks}", "--thinktime_blocks_type=issue"])
    rows, last = [], None
    for end, took in load.operations():
        begin = end - took // 1_000_000
        if last is None or begin - last > pause // 2:
            rows.append((begin, []))
        last = end
        rows[-1][1].append(end)
    other.process.terminate()
    other.process.communicate()
    # The first is that of a new client, who has to find its OSDs; the last may have been cut off.
    counts = [windows(ended, begin, ms, 10) for begin, ended in rows[1:-1]]
    print(f"bursts of a tenant with a floor of {floor}: operations in each {ms} ms from its first request on, where its floor is {floor * ms // 1000}")
    for c in counts:
        print("  ", c)
    had = [sum(c) for c in zip(*counts)]
    print(f"mean: {[round(n / len(counts)) for n in had]}; {sum(c[0] >= 0.98 * floor * ms / 1000 for c in counts)} of {len(counts)} bursts had it in the first, "
          f"{sum(sum(c[:2]) >= 2 * 0.98 * floor * ms / 1000 for c in counts)} in the first two together\n", flush=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--seconds", type=int, default=30)
    a.add_argument("--warm-up", type=int, default=10)
    a.add_argument("--bursts", type=int, default=12)
    a.add_argument("--disturb", action="store_true", help="once more each, with a manager that fails, an OSD that is marked down, one that is stopped in order, and one that is killed")
    a.add_argument("--capacity", type=int, default=1000)
    a.add_argument("--osd-size", type=int, default=10, help="GiB")
    a.add_argument("--dir", default="/var/tmp")
    o = a.parse_args()
    with tempfile.TemporaryDirectory(prefix="promises.", dir=o.dir) as d:
        kind, more = (Separate, {"managers": "xy"}) if o.disturb else (Siphon, {})
        cluster = kind(Path(d) / "siphon", bounded(o.capacity), o.osd_size, **more)
        try:
            cluster.start()
            for pool, groups in (("many", 128), ("one", 1)):
                cluster.make_pool(pool, groups)
                sh("rbd", "-c", cluster.conf, "pool", "init", pool)
            for name, promise, pool, *_ in TENANTS:
                sh("rbd", "-c", cluster.conf, "create", f"{pool}/{name}", "--size", f"{IMAGE >> 20}M", "--object-size", OBJECT, "--image-feature", "layering")
                sh(BINARY, "qos", "-c", cluster.conf, "set", f"{pool}//{name}", *(x for k, v in promise.items() for x in (f"--{k}", str(v))))
            for fill in [Load(cluster, t, 60, fill=True) for t in TENANTS]:
                fill.process.communicate()
            deal_out(cluster, "many")
            steady(cluster, o, "undisturbed")
            bursts(cluster, o)
            if o.disturb:
                steady(cluster, o, "the manager fails", lambda: cluster.ceph("mgr", "fail"))
                steady(cluster, o, "an OSD is marked down, and comes back", lambda: cluster.ceph("osd", "down", "1"))
                steady(cluster, o, "an OSD is stopped in order, and started again", lambda: (cluster["osd.1"].stop(), cluster["osd.1"].start()))
                steady(cluster, o, "an OSD is killed, and started again", lambda: (cluster["osd.1"].kill(), cluster["osd.1"].start()))
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
