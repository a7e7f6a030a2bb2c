"""The space that erasure-coded pools take, in relation to (k+m)/k.

    cargo xtask bench space [--objects 1000000] [--image-mb 4096] [--shapes 2+1,4+2] [--only siphon]

For each shape a cluster of Siphon, and a stock one beside it, each with an OSD for each shard. First so many objects of 1 KiB are
written, then an image is filled and overwritten at random in blocks of 4 KiB, as often as its size three times. After each step, when
the figures rest, the table has:

* stored: bytes that clients wrote, as counted here.
* df: `bytes_used` of the pool in `ceph df detail`.
* used: what all OSDs have used more than when they were empty, data and metadata (`ceph osd df`).
* times (k+m)/k: both in relation to what the code alone makes of the bytes that were written.
* times blocks: what is used in relation to what shards take in whole blocks of 4 KiB. An object of 1 KiB takes a block on the first
  shard and on each one of parity: 1 KiB cannot take less than (1+m) blocks in a store of blocks.
"""
import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from clusters import Siphon, Stock, need_space, sh
from erasure import POOL, make_coded, osds_of, shape

OBJECT_BYTES = 1024
BLOCK = 4096
OVERWRITES = 3
# Figures rest when they have been the same for so many reports.
SAME = 5


def of_pool(df, name):
    """Bytes stored and used of a pool, of `ceph df detail -f json`."""
    stats = next(p["stats"] for p in df["pools"] if p["name"] == name)
    return stats["stored"], stats["bytes_used"]


def of_osds(df):
    """Bytes that OSDs have used, of `ceph osd df -f json`."""
    return sum(n["kb_used"] for n in df["nodes"]) << 10


def in_blocks(k, m, size, unit=BLOCK):
    """What the shards of an object of so many bytes take in whole blocks. Parity is as long as the first shard."""
    blocks = lambda n: -(-n // BLOCK) * BLOCK
    data = [size // (k * unit) * unit + min(unit, max(0, size % (k * unit) - s * unit)) for s in range(k)]
    return sum(map(blocks, data)) + m * blocks(data[0])


def row(k, m, stored, used, df, blocks):
    """A step in relation to what k+m makes of it, and to the blocks of that."""
    ideal = stored * (k + m) / k
    return {"stored": stored, "df": df, "used": used, "blocks": blocks, "df_times": df / ideal, "used_times": used / ideal,
            "blocks_times": used / blocks}


def lines(results):
    """The table."""
    yield "| shape | system | step | stored MiB | df MiB | used MiB | df, times (k+m)/k | used, times (k+m)/k | used, times blocks |"
    yield "|---" * 9 + "|"
    for text, systems in results.items():
        for system, steps in systems.items():
            for step, r in steps.items():
                mib = " | ".join(f"{r[c] / 2**20:.1f}" for c in ("stored", "df", "used"))
                yield f"| {text} | {system} | {step} | {mib} | {r['df_times']:.2f} | {r['used_times']:.2f} | {r['blocks_times']:.2f} |"


class Measured:
    """A cluster with a coded pool, and what it had used when that was empty."""

    def __init__(self, cluster, k, m):
        self.cluster, self.k, self.m, self.stored, self.blocks = cluster, k, m, 0, 0
        make_coded(cluster, k, m)
        self.empty = self.rest()[1]

    def figures(self):
        read = lambda *words: json.loads(self.cluster.ceph(*words, "-f", "json"))
        return of_pool(read("df", "detail"), POOL)[1], of_osds(read("osd", "df"))

    def rest(self):
        """The figures once they change no more."""
        seen, since = None, 0
        while since < SAME:
            time.sleep(2)
            now = self.figures()
            since, seen = (since + 1, now) if now == seen else (0, now)
        return seen

    def step(self, objects, size):
        """So many objects of a size were added."""
        self.stored += objects * size
        self.blocks += objects * in_blocks(self.k, self.m, size)
        df, used = self.rest()
        return row(self.k, self.m, self.stored, used - self.empty, df, self.blocks)


def write_objects(cluster, count):
    """So many objects of 1 KiB."""
    argv = ["rados", "-c", cluster.conf, "-p", POOL, "bench", "1000000", "write", "-b", OBJECT_BYTES, "-O", OBJECT_BYTES,
            "--max-objects", count, "-t", "64", "--no-cleanup"]
    sh(*argv)


def rbd(cluster, *words):
    sh("rbd", "-c", cluster.conf, *words)


def write_image(cluster, pattern, size, total):
    rbd(cluster, "bench", "bench/space", "--io-type", "write", "--io-pattern", pattern, "--io-size", size, "--io-threads", "16", "--io-total", total)


def steps(cluster, k, m, o):
    """The rows of a cluster."""
    measured, found = Measured(cluster, k, m), {}
    note = lambda name, *added: found.update({name: measured.step(*added)})
    write_objects(cluster, o.objects)
    note(f"{o.objects} objects of 1 KiB", o.objects, OBJECT_BYTES)
    rbd(cluster, "create", "bench/space", "--size", f"{o.image_mb}M", "--data-pool", POOL)
    write_image(cluster, "seq", "4M", f"{o.image_mb}M")
    # Of objects of 4 MiB.
    note("and an image, filled", o.image_mb // 4, 4 << 20)
    write_image(cluster, "rand", "4K", f"{OVERWRITES * o.image_mb}M")
    note("and overwritten at random", 0, 0)
    return found


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--objects", type=int, default=1_000_000)
    a.add_argument("--image-mb", type=int, default=4096, help="a multiple of 4")
    a.add_argument("--shapes", default="2+1,4+2")
    a.add_argument("--osd-size", type=int, default=20, help="GiB")
    a.add_argument("--only", choices=["ceph", "siphon"])
    a.add_argument("--dir", default="/var/tmp")
    a.add_argument("--json")
    o = a.parse_args()
    results = {}
    for text in o.shapes.split(","):
        k, m = shape(text)
        for kind in (Stock, Siphon):
            if o.only not in (None, kind.name):
                continue
            with tempfile.TemporaryDirectory(prefix="space.", dir=o.dir) as d:
                cluster = kind(Path(d) / kind.name, osd_gb=o.osd_size, osds=osds_of(k, m))
                need_space(o.dir, [cluster])
                try:
                    cluster.start()
                    results.setdefault(text, {})[kind.name] = steps(cluster, k, m, o)
                finally:
                    cluster.stop()
            print(f"{text}, {kind.name}: done", file=sys.stderr, flush=True)
    print("\n".join(lines(results)))
    if o.json:
        Path(o.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
