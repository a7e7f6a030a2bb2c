"""Erasure-coded pools: Siphon's beside a stock Ceph's of the same shape, and beside Siphon's own three replicas.

For each shape (k+m) a stock cluster and a Siphon cluster with an OSD for each shard (three at least) take turns, with the same
profile (jerasure, reed_sol_van, stripe units of 4 KiB, overwrites allowed). Beside the usual figures the table has what an operation
costs inside the cluster, from counters of the servers that are read before and after each run:

* shard reads and writes: of Siphon, `ec_shard_read` and `ec_shard_write` of its OSDs. Ceph does not count them.
* messages: requests and answers between OSDs. Of Siphon, twice the reads of other OSDs' shards and the writes for other primaries. Of
  Ceph, the messages that OSDs have sent, less the answers to clients; pings and reports are among them.
* bytes between OSDs: data of shards that were read and written for other OSDs. Of Ceph, the bytes that OSDs have sent, less what clients
  read; headers, pings and reports are among them.
* bytes from and to the device: what the kernel has read and written for the server processes (`/proc/PID/io`).
"""
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

import images
from clusters import Siphon, Stock, need_space, rss, wait
from loaders import command_of, record
from loads import fio, medians, rados_bench

POOL = "coded"
SHAPES = ("2+1", "2+2", "4+2")
# What the table shows of each run beside the usual figures, by operation.
PER_OP = ("shard_reads", "shard_writes", "messages", "osd_bytes", "device_read", "device_written")
COLUMNS = ("iops", "mean", "p50", "p99", "p999", "cpu", "client")
# What a record shows of each run, with the heads of its columns, and the two that a coded pool is compared with.
RECORDED = {"iops": "operations/s", "mean": "mean", "p99": "p99", "cpu": "server CPU an operation", "osd_bytes": "bytes between OSDs",
            "device_written": "written to the device"}
OTHERS = {"ceph coded": "Ceph's", "siphon 3 copies": "three replicas'"}


def shape(text):
    """`4+2` as (4, 2)."""
    found = re.fullmatch(r"([1-9][0-9]?)\+([1-9])", text)
    if not found:
        raise ValueError(f"{text}: expected k+m, as 4+2")
    return int(found[1]), int(found[2])


def osds_of(k, m):
    """One for each shard, and three for the replicas."""
    return max(3, k + m)


def from_siphon(dumps):
    """What OSDs have counted, of their `perf dump`s."""
    total = lambda name: sum(d["osd"].get(name, 0) for d in dumps)
    remote = total("ec_shard_read_remote")
    return {"shard_reads": total("ec_shard_read"), "shard_writes": total("ec_shard_write"), "messages": 2 * (remote + total("subop_w")),
            "osd_bytes": total("ec_shard_read_remote_bytes") + total("subop_w_in_bytes")}


def from_stock(dumps):
    """The same of a stock cluster's. What it does not count is not there."""
    workers = [section for d in dumps for name, section in d.items() if name.startswith("AsyncMessenger::Worker")]
    total = lambda name: sum(d["osd"].get(name, 0) for d in dumps)
    return {"messages": sum(w["msgr_send_messages"] for w in workers) - total("op"),
            "osd_bytes": sum(w["msgr_send_bytes"] for w in workers) - total("op_out_bytes")}


def device(texts):
    """Bytes that the kernel has read and written for processes, of their `/proc/PID/io`."""
    total = lambda name: sum(int(re.search(rf"^{name}: (\d+)$", t, re.M)[1]) for t in texts)
    return {"device_read": total("read_bytes"), "device_written": total("write_bytes")}


def per_op(before, after, ops):
    """What an operation has cost; None for what was not counted."""
    return {k: (after[k] - before[k]) / max(ops, 1) if k in before and k in after else None for k in PER_OP}


class Contender:
    """A pool of a cluster, as loads take it: `name`, `conf`, `pids` and `pool`."""

    def __init__(self, name, cluster, pool):
        self.name, self.cluster, self.pool = name, cluster, pool
        # Of an image, where its data is; its header is in a pool of replicas.
        self.data_pool = pool if pool != "bench" else None

    @property
    def conf(self):
        return self.cluster.conf

    def pids(self):
        return self.cluster.pids()

    def client_conf(self, **options):
        return self.cluster.client_conf(**options)

    def counted(self):
        dumps = [json.loads(self.cluster.ceph("tell", f"osd.{i}", "perf", "dump")) for i in range(self.cluster.osds)]
        found = from_stock(dumps) if self.cluster.name == "ceph" else from_siphon(dumps)
        return {**found, **device([Path(f"/proc/{p}/io").read_text() for p in self.pids()])}


def make_coded(cluster, k, m):
    cluster.ceph("osd", "erasure-code-profile", "set", "bench", f"k={k}", f"m={m}", "plugin=jerasure", "technique=reed_sol_van",
                 "stripe_unit=4096", "crush-failure-domain=osd")
    pgs = str(cluster.pgs)
    cluster.ceph("osd", "pool", "create", POOL, pgs, pgs, "erasure", "bench")
    cluster.ceph("osd", "pool", "set", POOL, "allow_ec_overwrites", "true")
    cluster.ceph("osd", "pool", "application", "enable", POOL, "rados")
    wait("active+clean", cluster.clean)


def objects(seconds, size_mb):
    """Workloads on objects: a name, and a function from a contender to a row."""
    for name, rw, bs in [
        ("4 KiB random write, QD 32", "randwrite", "4k"), ("4 KiB random read, QD 32", "randread", "4k"),
        ("16 KiB random write, QD 32", "randwrite", "16k"), ("16 KiB random read, QD 32", "randread", "16k"),
        ("16 KiB random 70/30, QD 32", "randrw", "16k"),
        ("4 KiB random write, QD 1", "randwrite", "4k"), ("4 KiB random read, QD 1", "randread", "4k"),
    ]:
        depth, extra = int(name.rsplit(" ", 1)[1]), ["--rwmixread=70"] if rw == "randrw" else ()
        yield name, lambda c, rw=rw, bs=bs, depth=depth, extra=extra: fio(c, rw, bs, depth, seconds, size_mb, pool=c.pool, extra=extra)
    yield "rados bench 4 MiB write, t 16", lambda c: rados_bench(c, "write", 4 << 20, 16, seconds, pool=c.pool)
    yield "rados bench 4 MiB read, t 16", lambda c: rados_bench(c, "rand", 4 << 20, 16, seconds, pool=c.pool)


def blocks(seconds, size_mb):
    """Workloads on images."""
    made = {}

    def of(c):
        if c.name not in made:
            made[c.name] = images.Plain(c, size_mb, c.name.replace(" ", "-"), c.data_pool)
        return made[c.name]

    for name, rw, bs, depth, extra in [
        ("4 KiB random write, QD 32", "randwrite", "4k", 32, ()), ("4 KiB random read, QD 32", "randread", "4k", 32, ()),
        ("16 KiB random write, QD 32", "randwrite", "16k", 32, ()), ("16 KiB random read, QD 32", "randread", "16k", 32, ()),
        ("16 KiB random 70/30, QD 32", "randrw", "16k", 32, ["--rwmixread=70"]),
        ("4 MiB sequential write, QD 16", "write", "4m", 16, ()), ("4 MiB sequential read, QD 16", "read", "4m", 16, ()),
    ]:
        def test(c, rw=rw, bs=bs, depth=depth, extra=extra):
            rows = of(c).run(rw, bs, depth, seconds=seconds, extra=extra)
            return rows["read"] if len(rows) > 1 or "read" in rows else rows["write"]
        yield name, test


class Table:
    """Rows by test and contender."""

    def __init__(self):
        self.rows = {}

    def add(self, test, contender, row):
        self.rows.setdefault(test, {}).setdefault(contender, []).append(row)
        print(f"  {test}: {contender} {row['iops']:.0f} IOPS, {row['cpu']:.0f} us CPU/op", file=sys.stderr, flush=True)

    def lines(self):
        cell = lambda v: "-" if v is None else f"{v:.0f}" if abs(v) >= 100 else f"{v:.2f}"
        yield ("| test | system | IOPS | mean us | p50 us | p99 us | p99.9 us | server CPU us/op | client CPU us/op | shard reads/op | shard writes/op "
               "| messages/op | bytes between OSDs/op | device bytes read/op | device bytes written/op |")
        yield "|---" * 15 + "|"
        for test, by in self.rows.items():
            m = {contender: medians(rows) for contender, rows in by.items()}
            for contender, r in m.items():
                yield f"| {test} | {contender} | " + " | ".join(cell(r[k]) for k in (*COLUMNS, *PER_OP)) + " |"
            ours = m.get("siphon coded")
            for other in ("ceph coded", "siphon 3 copies"):
                if ours and other in m:
                    part = lambda k: f"{ours[k] / m[other][k]:.2f} x" if m[other][k] and ours[k] is not None else ""
                    yield f"| | **siphon coded / {other}** | " + " | ".join(part(k) for k in (*COLUMNS, *PER_OP)) + " |"

    def dump(self):
        return self.rows


def in_turn(contenders, tests, rounds, wanted):
    """A B C A B C."""
    table = Table()
    for name, test in tests:
        if wanted not in name:
            continue
        for _ in range(rounds):
            for c in contenders:
                before = c.counted()
                row = test(c)
                table.add(name, c.name, {**row, **per_op(before, c.counted(), row["ops"])})
    return table


def record_rows(results):
    """Rows of a record, of the medians: our coded pool [beside, another one], of each shape and test."""
    for text, tests in results.items():
        for test, by in tests.items():
            m = {contender: medians(rows) for contender, rows in by.items()}
            ours = m.get("siphon coded")
            for other, of in OTHERS.items():
                if ours and other in m:
                    pair = lambda k: [ours[k], m[other][k]] if ours[k] is not None and m[other][k] else ""
                    yield [f"{text}, of {of}: {test}", *map(pair, RECORDED)]


def goals(results):
    """What is aimed at, and what was measured of it."""
    found = {"shard reads of a 4 KiB read": (1.0, {}), "server CPU of a 4 KiB read, of that of three replicas": (1.3, {}),
             "server CPU of a 4 KiB write, of Ceph's": (1 / 6, {}), "server CPU of a 4 MiB write, of that of three replicas": (1.0, {}),
             "bytes between OSDs of a 4 MiB write, of (k+m)/k of its own": (1.0, {})}
    shard_reads, read_cpu, write_cpu, large_cpu, large_bytes = (measured for _, measured in found.values())
    for text, tests in results.items():
        k, m = shape(text)
        for test, by in tests.items():
            row = {contender: medians(rows) for contender, rows in by.items()}
            ours, ceph, copies = (row.get(c) for c in ("siphon coded", *OTHERS))
            label = f"{text}, {'QD 1' if test.endswith('QD 1') else 'QD 32'}"
            if not ours:
                continue
            if test.startswith("4 KiB random read"):
                shard_reads[label] = ours["shard_reads"]
                if copies:
                    read_cpu[label] = [ours["cpu"], copies["cpu"]]
            elif test.startswith("4 KiB random write") and ceph:
                write_cpu[label] = [ours["cpu"], ceph["cpu"]]
            elif "4 MiB" in test and "write" in test:
                large_bytes[text] = [ours["osd_bytes"], (4 << 20) * (k + m) / k]
                if copies:
                    large_cpu[text] = [ours["cpu"], copies["cpu"]]
    return [{"goal": goal, "at_most": round(at_most, 4), "measured": measured} for goal, (at_most, measured) in found.items() if measured]


def run(o):
    """The benchmark, with the options of peer.py."""
    results = {}
    for text in o.ec.split(","):
        k, m = shape(text)
        base = Path(o.dir or tempfile.mkdtemp(prefix="siphon-erasure.", dir="/var/tmp")) / text
        base.mkdir(parents=True, exist_ok=True)
        clusters = [kind(base / kind.name, osd_gb=o.osd_size or 5, osds=osds_of(k, m)) for kind in (Stock, Siphon) if o.only in (None, kind.name)]
        need_space(base, clusters)
        try:
            contenders = []
            for c in clusters:
                c.start()
                make_coded(c, k, m)
                contenders.append(Contender(f"{c.name} coded", c, POOL))
                print(f"{c.name}: {text}, {sum(rss(p) for p in c.pids()) / 2**20:.0f} MiB resident at rest", flush=True)
                if c.name == "siphon":
                    contenders.append(Contender("siphon 3 copies", c, "bench"))
            if not o.rbd:
                for c in contenders:
                    fio(c, "write", "4m", 8, 0, o.size, pool=c.pool)
            tests = (blocks if o.rbd else objects)(o.seconds, o.size)
            table = in_turn(contenders, tests, o.rounds, o.tests)
            print(f"\n## {text}{', block devices' if o.rbd else ''}\n")
            print("\n".join(table.lines()), flush=True)
            results[text] = table.dump()
            if o.json:
                Path(o.json).write_text(json.dumps(results, indent=1))
        finally:
            for c in clusters:
                c.stop()
            if not o.dir:
                shutil.rmtree(base.parent, ignore_errors=True)
    if o.record:
        command = command_of("rbd" if o.rbd else "peer", [a for a in sys.argv[1:] if a != "--rbd"])
        record(o.record, "erasure-coding", command, o.machine, ["Siphon's coded pool", *RECORDED.values()], list(record_rows(results)), goals(results))
