"""A noisy neighbour: one session of a victim against many of an aggressor, each with its own pool.

    cargo xtask bench neighbours [--peer] [--sessions 1,4,16,64] [--seconds 5] [--capacity 2000] [--even]

All sessions keep the same number of operations under way (fio's rados engine), each on 256 objects of its own: with few,
most of them may lie on one OSD, which would then decide. Equal tenants should get equal parts, however many sessions
each has. In each round the victim is measured alone, at full speed and at a fixed rate, a quarter of that, then beside each
number of sessions, and at the end alone at the fixed rate once more. Its part is what it gets beside the aggressor of what
the cluster does then, and `kept` what that is of what it has alone. How many of its requests one of Siphon's OSDs
serves at most is counted, too: shares are those of each OSD. Its waiting is told at the fixed rate: p99 beside as a multiple of the mean of the two p99 alone of
the same round. The two against each other (`alone again`) say what such a multiple is worth on this machine, and the
processors that the servers used, alone and beside, whether it is those that p99 is about.

Clients and servers share a machine, and the operating system gives each thread its part of the processor: many
sessions would then take it from the servers and from the victim's client. So the aggressor's clients have
what nobody else wants of the processors (SCHED_IDLE), beside either system, as if they were on machines of their own. With `--capacity` Siphon's OSDs are told what they can do (writes of 4 KiB a second for
each), less than the machine could: then it is the OSDs that run out, and no client waits for a processor.
"""
import argparse
import json
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import placement
from clusters import ENV, Siphon, Stock, bounded, cpu_seconds, wait

POOLS = ("victim", "aggressor")
GROUPS = 64


class Load:
    """Sessions of fio on a pool, one group."""

    def __init__(self, cluster, pool, sessions, mode, depth, idle=False, seconds=3600, rate=0, ramp=0, fill=False, block="4k", objects=256):
        argv = [*(("chrt", "--idle", "0") if idle else ()), "fio", f"--name={pool}", "--ioengine=rados", "--clientname=admin", f"--conf={cluster.conf}", f"--pool={pool}",
                "--busy_poll=0", f"--touch_objects={int(fill)}", "--thread", f"--bs={block}", f"--iodepth={depth}", f"--size={objects * 64}k", f"--nrfiles={objects}",
                "--file_service_type=random", "--randrepeat=0", f"--numjobs={sessions}", "--group_reporting", "--output-format=json",
                "--percentile_list=50:99"]
        # Reads find what was written before. After as many bytes as there are, fio would wait for all that is under way and begin anew.
        argv += ["--rw=write", "--bs=64k"] if fill else [f"--rw=rand{mode}", "--io_size=1t", "--time_based", f"--runtime={seconds}", "--status-interval=1"]
        argv += [f"--rate_iops={rate}"] if rate else []
        argv += [f"--ramp_time={ramp}"] if ramp else []
        self.mode = "write" if fill else mode
        # Read through a file of our own: with fio's, a look at the beginning would move where fio writes.
        self.out = tempfile.NamedTemporaryFile("w")
        self.process = subprocess.Popen([str(a) for a in argv], stdout=self.out, stderr=subprocess.STDOUT, env=ENV)

    def text(self):
        return Path(self.out.name).read_text()

    def reports(self):
        """What fio has said so far, once a second: (milliseconds, figures of the direction)."""
        text, found, at = self.text(), [], 0
        decoder = json.JSONDecoder()
        while (at := text.find("{\n", at)) >= 0:
            try:
                doc, at = decoder.raw_decode(text, at)
            except json.JSONDecodeError:
                break
            found.append((doc["timestamp_ms"], doc["jobs"][0][self.mode]))
        return found

    def finish(self, wanted=0):
        status = self.process.wait(300)
        found = self.reports()
        if status != wanted or not found:
            raise SystemExit(f"fio: exit {status}\n{self.text()[-2000:]}")
        return found

    def stop(self):
        """Ends a load that would go on; fio then reports and says by 128 that it was told to end."""
        self.process.send_signal(signal.SIGINT)
        return self.finish(128)


def objects_of(o, pool):
    """How many each session has."""
    return 8192 if o.even and pool == "victim" else 256


def deal_out(cluster, pool, objects):
    """Groups of a pool to OSDs, so that each leads as many of its objects."""
    of = lambda g: g["stat_sum"]["num_objects"]
    wait("the objects of each group", lambda: sum(map(of, placement.groups(cluster, pool))) >= objects)
    placement.deal_out(cluster, pool, {g["pgid"]: [of(g)] for g in placement.groups(cluster, pool)})


def bound(cluster, iops):
    """From now on OSDs do so much. Before, objects were written as fast as they could."""
    for name, value in bounded(iops).items():
        cluster.ceph("config", "set", "osd", name, str(value))
    get = lambda i, name: json.loads(cluster.ceph("tell", f"osd.{i}", "config", "get", name))[name]
    same = lambda found, wanted: found == wanted if isinstance(wanted, str) else float(found) == wanted
    wait("OSDs that are bounded", lambda: all(same(get(i, name), value) for i in range(cluster.osds) for name, value in bounded(iops).items()))


def served(cluster):
    """What each of Siphon's OSDs has begun for the victim."""
    if not isinstance(cluster, Siphon):
        return []
    dumps = [json.loads(cluster.ceph("tell", f"osd.{i}", "dump_qos")) for i in range(cluster.osds)]
    return [sum(t["served"] for t in d["tenants"] if t["tenant"] == "victim") for d in dumps]


def victim_of(cluster, o, mode, rate):
    """What fio says of the victim in the end, when it said so, how many processors the servers used meanwhile, and where it was served."""
    before = served(cluster)
    used, since = sum(map(cpu_seconds, cluster.pids())), time.monotonic()
    at, figures = Load(cluster, "victim", 1, mode, o.depth, seconds=o.seconds, rate=rate, ramp=1, block=o.block, objects=objects_of(o, "victim")).finish()[-1]
    cores = (sum(map(cpu_seconds, cluster.pids())) - used) / (time.monotonic() - since)
    counts = [b - a for a, b in zip(before, served(cluster))]
    return at, dict(iops=figures["iops"], p99=figures["clat_ns"]["percentile"]["99.000000"] / 1e3, cores=cores, most=max(counts, default=0) / (sum(counts) or 1))


def alone(cluster, o, mode, rate=0):
    return victim_of(cluster, o, mode, rate)[1]


def beside(cluster, o, mode, sessions, rate=0):
    """The victim's figures, and the aggressor's rate."""
    aggressor = Load(cluster, "aggressor", sessions, mode, o.depth, idle=True, block=o.block)
    try:
        wait("the aggressor", lambda: any(f["total_ios"] > 0 for _, f in aggressor.reports()))
        end, victim = victim_of(cluster, o, mode, rate)
    finally:
        others = aggressor.stop()
    within = [(t, f["total_ios"]) for t, f in others if end - o.seconds * 1000 - 1500 <= t <= end + 1500]
    return victim, (within[-1][1] - within[0][1]) / (within[-1][0] - within[0][0]) * 1000


def one_round(cluster, o, mode, sessions):
    """A row for each number of sessions."""
    iops = alone(cluster, o, mode)["iops"]
    rate = int(iops / 4)
    first = alone(cluster, o, mode, rate)
    found = [(n, beside(cluster, o, mode, n), beside(cluster, o, mode, n, rate)[0]) for n in sessions]
    again = alone(cluster, o, mode, rate)
    p99, cores = ((first[k] + again[k]) / 2 for k in ("p99", "cores"))
    return [dict(sessions=n, mode=mode, alone=iops, victim=kept["iops"], aggressor=others, share=kept["iops"] / (kept["iops"] + others), kept=kept["iops"] / iops,
                 most=kept["most"], rate=rate, p99=p99,
                 p99_beside=waits["p99"], ratio=waits["p99"] / p99, again=again["p99"] / first["p99"], cores=cores, cores_beside=waits["cores"])
            for n, (kept, others), waits in found]


def quartiles(values):
    """The two quartiles of some values; of one or two, the least and the most."""
    return statistics.quantiles(values, n=4, method="inclusive")[::2] if len(values) > 2 else [min(values), max(values)]


def summary(system, rounds):
    """Medians of a point's rounds, and quartiles of what is compared."""
    row = {k: v if isinstance(v, str) else statistics.median(r[k] for r in rounds) for k, v in rounds[0].items()}
    return {"system": system, **row, **{f"{k}_quartiles": quartiles([r[k] for r in rounds]) for k in ("share", "kept", "ratio", "again")}, "rounds": rounds}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--peer", action="store_true", help="a stock cluster, too")
    a.add_argument("--sessions", default="1,4,16,64")
    a.add_argument("--modes", default="write,read")
    a.add_argument("--seconds", type=int, default=5)
    a.add_argument("--depth", type=int, default=16)
    a.add_argument("--block", default="4k", help="size of requests")
    a.add_argument("--rounds", type=int, default=1)
    a.add_argument("--capacity", type=int, default=0, help="what Siphon's OSDs are told that they can do; 0 for what they find")
    a.add_argument("--even", action="store_true", help="groups dealt out so that each OSD leads as many objects of a pool, and a victim with many objects")
    a.add_argument("--dir", default=None)
    a.add_argument("--osd-size", type=int, default=10, help="GiB")
    a.add_argument("-o", "--option", action="append", default=[], help="NAME=VALUE for Siphon's OSDs")
    a.add_argument("--json")
    o = a.parse_args()
    with tempfile.TemporaryDirectory(prefix="neighbours.", dir=o.dir or "/var/tmp") as d:
        options = dict(x.split("=", 1) for x in o.option)
        rows, most = [], max(map(int, o.sessions.split(",")))
        for kind in [Siphon, Stock] if o.peer else [Siphon]:
            cluster = kind(Path(d) / kind.name, options if kind is Siphon else {"osd_op_queue": "mclock_scheduler"}, o.osd_size)
            try:
                cluster.start()
                for pool, sessions in zip(POOLS, (1, most)):
                    cluster.make_pool(pool, GROUPS)
                    Load(cluster, pool, sessions, "write", o.depth, fill=True, objects=objects_of(o, pool)).finish()
                    if o.even:
                        deal_out(cluster, pool, sessions * objects_of(o, pool))
                if o.capacity and kind is Siphon:
                    bound(cluster, o.capacity)
                for mode in o.modes.split(","):
                    rounds = []
                    for _ in range(o.rounds):
                        rounds.append(one_round(cluster, o, mode, [int(n) for n in o.sessions.split(",")]))
                        print(json.dumps(rounds[-1]), flush=True)
                    rows += [summary(cluster.name, list(point)) for point in zip(*rounds)]
            finally:
                cluster.stop()
        print("\n| | system | aggressor sessions | victim alone | beside | aggressor | victim's part | kept | most on one OSD | at a rate of | p99 alone, beside (us) | beside, of alone | alone again | server cores alone, beside |")
        print("|---" * 14 + "|")
        for r in rows:
            of = lambda name: f"{r[name]:.2f} x ({' to '.join(f'{q:.2f}' for q in r[name + '_quartiles'])})"
            print(f"| {r['mode']} | {r['system']} | {r['sessions']:.0f} | {r['alone']:.0f} | {r['victim']:.0f} | {r['aggressor']:.0f} | **{100 * r['share']:.1f} %** "
                  f"| {100 * r['kept']:.0f} % | " + (f"{100 * r['most']:.0f} % " if r["most"] else "") +
                  f"| {r['rate']:.0f} | {r['p99']:.0f}, {r['p99_beside']:.0f} | {of('ratio')} | {of('again')} | {r['cores']:.2f}, {r['cores_beside']:.2f} |")
        if o.json:
            Path(o.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
