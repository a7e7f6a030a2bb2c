"""Block devices: fio's rbd engine on images, with the client's cache off.

The image is filled before anything is measured, has the stock features (so an exclusive lock and an object
map), and 4 MiB objects. What costs more than a plain write is measured with a number of operations instead
of a time, so that both systems do the same work:

* a clone whose parent is not flattened: the first write to an object copies it from the parent;
* a snapshot just taken: the first write to an object makes the cluster keep the old one;
* a fresh image: the first write to an object updates the object map before it.

The first writes alone are one 4 KiB write to each object in turn.
"""
from clusters import sh
from loads import fio_rbd

OBJECT_MB = 4


class Images:
    """The images of one cluster."""

    def __init__(self, cluster, size_mb):
        self.cluster, self.size_mb, self.made = cluster, size_mb, 0
        self.rbd("pool", "init", "bench")
        for image in ("image", "parent"):
            self.create(image, size_mb)
            fio_rbd(cluster, image, "write", "4m", 8, size_mb)
        self.rbd("snap", "create", "--no-progress", "bench/parent@base")

    def rbd(self, *args):
        return sh("rbd", "-c", self.cluster.conf, *args)

    def name(self):
        self.made += 1
        return f"made{self.made}"

    def create(self, image, size_mb):
        self.rbd("create", f"bench/{image}", "--size", f"{size_mb}M", "--object-size", f"{OBJECT_MB}M")

    def fresh(self, size_mb):
        image = self.name()
        self.create(image, size_mb)
        return image

    def clone(self):
        image = self.name()
        self.rbd("clone", "--rbd_default_clone_format=2", "bench/parent@base", f"bench/{image}")
        return image

    def snapshot(self):
        self.rbd("snap", "create", "--no-progress", f"bench/image@{self.name()}")

    def remove(self, image):
        self.rbd("rm", "--no-progress", f"bench/{image}")

    def run(self, image, rw, bs, depth, size_mb=None, **kw):
        return fio_rbd(self.cluster, image, rw, bs, depth, size_mb or self.size_mb, **kw)

    def first_writes(self, image, depth, size_mb=None):
        """One write of 4 KiB to each object."""
        size_mb = size_mb or self.size_mb
        return self.run(image, f"write:{OBJECT_MB * 1024 - 4}k", "4k", depth, size_mb, count=size_mb // OBJECT_MB)


class Plain:
    """One image of a cluster that is filled, with its data in a pool of its own or not."""

    def __init__(self, cluster, size_mb, name, data_pool=None):
        self.cluster, self.size_mb, self.name = cluster, size_mb, name
        more = ["--data-pool", data_pool] if data_pool else []
        sh("rbd", "-c", cluster.conf, "pool", "init", "bench")
        sh("rbd", "-c", cluster.conf, "create", f"bench/{name}", "--size", f"{size_mb}M", "--object-size", f"{OBJECT_MB}M", *more)
        fio_rbd(cluster, name, "write", "4m", 8, size_mb)

    def run(self, rw, bs, depth, **kw):
        return fio_rbd(self.cluster, self.name, rw, bs, depth, self.size_mb, **kw)


def named(name, rows):
    """Rows of one direction have the test's name; of two, each has its own."""
    return [(name if len(rows) == 1 else f"{name}: {direction}s", direction, row) for direction, row in rows.items()]


def workloads(seconds, size_mb, count, objects):
    made = {}

    def of(cluster):
        if cluster.name not in made:
            made[cluster.name] = Images(cluster, size_mb)
        return made[cluster.name]

    def plain(name, rw, bs, depth, extra=()):
        return name, lambda c: named(name, of(c).run("image", rw, bs, depth, seconds=seconds, extra=extra))

    for depth in (1, 32, 128):
        yield plain(f"4 KiB random write, QD {depth}", "randwrite", "4k", depth)
    for depth in (1, 32, 128):
        yield plain(f"4 KiB random read, QD {depth}", "randread", "4k", depth)
    yield plain("4 MiB sequential write, QD 16", "write", "4m", 16)
    yield plain("4 MiB sequential read, QD 16", "read", "4m", 16)
    yield plain("16 KiB random 70/30, QD 32", "randrw", "16k", 32, ["--rwmixread=70"])

    def clone_reads(c):
        i = of(c)
        image = i.clone()
        rows = named("4 KiB random read of a clone, QD 32", i.run(image, "randread", "4k", 32, seconds=seconds))
        i.remove(image)
        return rows

    def clone_writes(c):
        i = of(c)
        image = i.clone()
        rows = named(f"4 KiB random write to a clone, QD 32, first {count}", i.run(image, "randwrite", "4k", 32, count=count))
        i.remove(image)
        return rows

    def clone_first(c):
        i = of(c)
        image = i.clone()
        rows = named("first write to each object of a clone, QD 8", i.first_writes(image, 8))
        i.remove(image)
        return rows

    def snapshot(c):
        i = of(c)
        rows = named(SNAP_BEFORE.format(count), i.run("image", "randwrite", "4k", 32, count=count))
        i.snapshot()
        rows += named(SNAP_AFTER.format(count), i.run("image", "randwrite", "4k", 32, count=count))
        return rows

    def snapshot_first(c):
        i = of(c)
        rows = named(FIRST_BEFORE, i.first_writes("image", 1))
        i.snapshot()
        rows += named(FIRST_AFTER, i.first_writes("image", 1))
        return rows

    def fresh_first(depth):
        def test(c):
            i = of(c)
            image = i.fresh(objects * OBJECT_MB)
            rows = named(f"first write to each object of a fresh image, QD {depth}", i.first_writes(image, depth, objects * OBJECT_MB))
            rows += named(f"second write to each object, QD {depth}", i.first_writes(image, depth, objects * OBJECT_MB))
            i.remove(image)
            return rows

        return test

    yield "clone: reads", clone_reads
    yield "clone: writes", clone_writes
    yield "clone: first writes", clone_first
    yield "snapshot: writes", snapshot
    yield "snapshot: first writes", snapshot_first
    yield "fresh: first writes, QD 1", fresh_first(1)
    yield "fresh: first writes, QD 32", fresh_first(32)


SNAP_BEFORE = "4 KiB random write, QD 32, {} before a snapshot"
SNAP_AFTER = "4 KiB random write, QD 32, {} after a snapshot"
FIRST_BEFORE = "write to each object before a snapshot, QD 1"
FIRST_AFTER = "first write to each object after a snapshot, QD 1"


def pairs(count):
    """What a first write costs: (what, the plain test, the one with the extra work, the aim)."""
    yield "random writes just after a snapshot", SNAP_BEFORE.format(count), SNAP_AFTER.format(count), 1.5
    yield "first write to each object after a snapshot, QD 1", FIRST_BEFORE, FIRST_AFTER, 1.5
    for depth in (1, 32):
        yield (f"first write to each object of a fresh image, QD {depth}", f"second write to each object, QD {depth}",
               f"first write to each object of a fresh image, QD {depth}", None)


def first_costs(results, clusters, count):
    print("\n| against the same writes without | system | mean | p99 | server CPU |\n|---|---|---|---|---|")
    for what, plain, extra, aim in pairs(count):
        for c in clusters:
            p, e = results.median(plain, c.name), results.median(extra, c.name)
            if p and e:
                mean = e["mean"] / p["mean"]
                met = "" if not aim else f" (aim < {aim}{'' if mean < aim else ', missed'})"
                print(f"| {what} | {c.name} | {mean:.2f} x{met} | {e['p99'] / p['p99']:.2f} x | {e['cpu'] / p['cpu']:.2f} x |")
