"""A noisy neighbour: one session of a victim against many of an aggressor, each with its own pool.

    cargo xtask bench neighbours [--peer] [--sessions 1,4,16,64] [--seconds 5]

All sessions keep the same number of operations under way. Equal tenants should get equal parts, however many
sessions each has. Every point is measured with the victim alone first: its part is what it gets beside the
aggressor of what the cluster does then, and its waiting is told against that alone at full speed.

Clients and servers share a machine, and the operating system gives each thread its part of the processor: many
sessions would then take it from the servers and from the victim's client. So the aggressor's clients run at a low
priority, beside either system.
"""
import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

from clusters import Siphon, Stock

DEPTH = 16
SIZE = 4096
OBJECTS = 64


class Sessions:
    """A process with some clients of their own sessions, in a pool."""

    def __init__(self, conf, pool, sessions, mode, depth=DEPTH, size=SIZE, name="admin", nice=0):
        self.counts = multiprocessing.Array("Q", sessions)
        self.waits = multiprocessing.Array("d", 4096)
        self.running = multiprocessing.Event()
        self.ending = multiprocessing.Event()
        self.process = multiprocessing.Process(target=self.work, args=(str(conf), pool, sessions, mode, depth, size, name, nice), daemon=True)
        self.process.start()

    def work(self, conf, pool, sessions, mode, depth, size, name, nice):
        import os
        import threading

        import rados

        os.nice(nice)
        data = b"x" * size
        clients = []
        for n in range(sessions):
            c = rados.Rados(conffile=conf, rados_id=name, conf={"ms_async_op_threads": "1", "objecter_inflight_ops": "4096"})
            c.connect()
            clients.append((c, c.open_ioctx(pool)))
        if mode == "read":
            for o in range(OBJECTS):
                clients[0][1].write_full(f"o{o}", data)
        lock = threading.Lock()
        under_way, sent, latencies = [0], [0], [0]

        def send(n):
            io = clients[n][1]
            begun = time.monotonic()
            sent[0] += 1
            oid = f"o{sent[0] % OBJECTS}" if mode == "read" else f"s{n}-{sent[0] % OBJECTS}"

            def done(*_):
                if self.running.is_set():
                    self.counts[n] += 1
                    if n == 0:
                        self.waits[latencies[0] % len(self.waits)] = time.monotonic() - begun
                        latencies[0] += 1
                if self.ending.is_set():
                    with lock:
                        under_way[0] -= 1
                else:
                    send(n)

            if mode == "read":
                io.aio_read(oid, size, 0, done)
            else:
                io.aio_write_full(oid, data, done)

        for n in range(sessions):
            for _ in range(depth):
                under_way[0] += 1
                send(n)
        self.ending.wait()
        while under_way[0]:
            time.sleep(0.01)
        for c, io in clients:
            io.close()
            c.shutdown()

    def total(self):
        return sum(self.counts)

    def end(self):
        self.ending.set()
        self.process.join(60)
        if self.process.is_alive():
            self.process.kill()


def together(groups, seconds):
    """Operations of each group while all of them run, and the first one's latencies in microseconds."""
    # Until everybody has sent something.
    for g in groups:
        g.running.set()
    end = time.monotonic() + 60
    while not all(g.total() > 0 for g in groups):
        if time.monotonic() > end:
            raise SystemExit("no session got anything in a minute")
        time.sleep(0.05)
    time.sleep(1)
    before, begun = [g.total() for g in groups], time.monotonic()
    time.sleep(seconds)
    rates = [(g.total() - b) / (time.monotonic() - begun) for g, b in zip(groups, before)]
    waits = sorted(w * 1e6 for w in groups[0].waits if w > 0)
    p = lambda part: waits[min(len(waits) - 1, int(len(waits) * part))] if waits else 0
    return rates, p(0.5), p(0.99)


def spread(total, most=4):
    """Sessions by process: python clients of one process share a processor."""
    processes = min(most, total)
    return [total // processes + (1 if i < total % processes else 0) for i in range(processes)]


def point(cluster, sessions, mode, seconds, depth):
    victim = Sessions(cluster.conf, "victim", 1, mode, depth)
    (alone,), alone50, alone99 = together([victim], seconds)
    aggressors = [Sessions(cluster.conf, "aggressor", n, mode, depth, nice=19) for n in spread(sessions)]
    rates, p50, p99 = together([victim, *aggressors], seconds)
    for s in [victim, *aggressors]:
        s.end()
    return dict(sessions=sessions, mode=mode, alone=alone, victim=rates[0], aggressor=sum(rates[1:]), share=rates[0] / max(sum(rates), 1e-9),
                alone_p50=alone50, alone_p99=alone99, p50=p50, p99=p99)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--peer", action="store_true", help="a stock cluster, too")
    a.add_argument("--sessions", default="1,4,16,64")
    a.add_argument("--modes", default="write,read")
    a.add_argument("--seconds", type=float, default=5)
    a.add_argument("--depth", type=int, default=DEPTH)
    a.add_argument("--rounds", type=int, default=1)
    a.add_argument("--dir", default=None)
    a.add_argument("--osd-size", type=int, default=10, help="GiB")
    a.add_argument("-o", "--option", action="append", default=[], help="NAME=VALUE for the OSDs")
    a.add_argument("--json")
    args = a.parse_args()
    with tempfile.TemporaryDirectory(prefix="neighbours.", dir=args.dir or "/var/tmp") as d:
        options = dict(o.split("=", 1) for o in args.option)
        rows = []
        for kind in [Siphon, Stock] if args.peer else [Siphon]:
            cluster = kind(Path(d) / kind.name, options if kind is Siphon else {"osd_op_queue": "mclock_scheduler"}, args.osd_size)
            try:
                cluster.start()
                for pool in ("victim", "aggressor"):
                    cluster.make_pool(pool, 32)
                for mode in args.modes.split(","):
                    for sessions in map(int, args.sessions.split(",")):
                        found = [point(cluster, sessions, mode, args.seconds, args.depth) for _ in range(args.rounds)]
                        rows.append({"system": cluster.name, **{k: v if isinstance(v, str) else statistics.median(f[k] for f in found) for k, v in found[0].items()}})
                        print(json.dumps(rows[-1]), flush=True)
            finally:
                cluster.stop()
        print("\n| | system | aggressor sessions | victim alone | beside | aggressor | victim's part | p50 alone, beside (us) | p99 |")
        print("|---|---|---|---|---|---|---|---|---|")
        for r in rows:
            print(f"| {r['mode']} | {r['system']} | {r['sessions']:.0f} | {r['alone']:.0f} | {r['victim']:.0f} | {r['aggressor']:.0f} | **{100 * r['share']:.1f} %** "
                  f"| {r['alone_p50']:.0f}, {r['p50']:.0f} | {r['alone_p99']:.0f}, {r['p99']:.0f} |")
        if args.json:
            Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
