"""Limits of images that the server holds.

librbd throttles itself by the same settings. What writes here are therefore programs on librados that send to the
objects of an image what librbd would send: only the server is left to limit them. A limit that is not held shows as
too many operations; limits are so low that any machine is faster without them, and that one is used is asked only
where the same programs were many times faster.
"""
import json
import os
import threading
import time
import uuid

import pytest
from conftest import Cluster, eventually

rados = pytest.importorskip("rados")

if os.environ.get("SIPHON_TEST_CHROOT") or os.environ.get("SIPHON_TEST_CONF"):
    pytest.skip("the system's librados is needed, and a cluster that holds limits", allow_module_level=True)


@pytest.fixture(scope="module")
def cluster(base_conf):
    """One mode of connections: limits have nothing to do with it."""
    c = Cluster(base_conf, "crc")
    c.ceph("config", "set", "mon", "mon_allow_pool_delete", "true")
    return c


class Pool:
    def __init__(self, cluster):
        self.cluster, self.name = cluster, "qos-" + uuid.uuid4().hex[:8]
        cluster.make_pool(self.name, 16, application=None)
        cluster.run("rbd", "pool", "init", self.name)

    def rbd(self, *args):
        return self.cluster.run("rbd", *args).stdout.decode()

    def image(self, name, *args):
        """A new image: its spec, and the names of some of its data objects, which are on several OSDs."""
        spec = f"{self.name}/{name}"
        self.rbd("create", spec, "--size", "64M", *args)
        prefix = json.loads(self.rbd("info", "--format", "json", spec))["block_name_prefix"]
        return spec, [f"{prefix}.{n:016x}" for n in range(12)]


@pytest.fixture
def pool(cluster):
    p = Pool(cluster)
    yield p
    cluster.delete_pool(p.name)


class Load:
    """A client of its own that keeps operations on some objects under way."""

    def __init__(self, conf, pool, objects, depth=12, size=4096, read=False):
        self.client = rados.Rados(conffile=str(conf), conf={"ms_client_mode": "crc", "ms_mon_client_mode": "crc"})
        self.client.connect()
        self.io = self.client.open_ioctx(pool)
        self.objects, self.size, self.read = objects, size, read
        self.data = b"x" * size
        self.lock = threading.Lock()
        self.done, self.sent, self.under_way, self.failed = 0, 0, 0, None
        self.stopping = False
        self.idle = threading.Condition(self.lock)
        self.thread = threading.Thread(target=self.work, args=(depth,), daemon=True)

    def work(self, depth):
        while not self.stopping:
            with self.lock:
                while self.under_way >= depth and not self.stopping:
                    self.idle.wait(0.1)
                self.under_way += 1
                name = self.objects[self.sent % len(self.objects)]
                offset = self.sent // len(self.objects) % 16 * self.size
                self.sent += 1
            if self.read:
                self.io.aio_read(name, self.size, offset, lambda c, _: self.finished(c))
            else:
                self.io.aio_write(name, self.data, offset, oncomplete=self.finished)

    def finished(self, completion):
        with self.lock:
            if completion.get_return_value() < 0:
                self.failed = completion.get_return_value()
            self.done += 1
            self.under_way -= 1
            self.idle.notify()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        with self.lock:
            self.stopping = True
            self.idle.notify()
        self.thread.join()
        assert self.failed is None, f"an operation failed: {self.failed}"
        # What waits because of a limit is not waited for.
        threading.Thread(target=self.client.shutdown, daemon=True).start()


def rate(loads, seconds=0.8):
    """Operations each second that were done together in a while."""
    before, start = sum(l.done for l in loads), time.monotonic()
    time.sleep(seconds)
    return (sum(l.done for l in loads) - before) / (time.monotonic() - start)


def most(limit, seconds):
    """The highest rate that is seen of a limit in so many seconds: an OSD may save up a fifth of a second of its part (two operations at most),
    and one operation at either end of the time is counted as a whole."""
    return limit * 1.05 + (limit * 0.2 + 4) / seconds


def held(loads, limit, above=0.0):
    """Waits until a limit holds, while the rate is above another, and goes on to hold. A store that stands still for a
    moment looks like a limit: only the second time in a row that the rate is right tells."""

    def twice():
        return above <= rate(loads) <= most(limit, 0.8) and rate(loads, 2) <= most(limit, 2)

    eventually(twice, what=f"the limit {limit} to hold")


def faster(loads, than):
    return eventually(lambda: rate(loads) > than, what=f"more than {than} operations each second")


def test_clients_share_the_limit_of_an_image(cluster, pool):
    spec, objects = pool.image("one")
    _, others = pool.image("two")
    limit = 30
    with Load(cluster.conf, pool.name, objects) as a, Load(cluster.conf, pool.name, objects) as b:
        faster([a, b], 3 * limit)
        used = 0.7 if rate([a, b]) > 10 * limit else 0.0
        pool.rbd("config", "image", "set", spec, "rbd_qos_iops_limit", limit)
        held([a, b], limit, used * limit)
        # Another image of the pool has no limit.
        with Load(cluster.conf, pool.name, others) as other:
            faster([other], 2.5 * limit)
            assert rate([a, b], 1) <= most(limit, 1)
        # It is changed with whatever changes metadata.
        pool.rbd("image-meta", "set", spec, "conf_rbd_qos_iops_limit", 2 * limit)
        held([a, b], 2 * limit, 1.3 * limit)
        pool.rbd("config", "image", "rm", spec, "rbd_qos_iops_limit")
        faster([a, b], 3 * limit)
    # Everything in one place, which is on one OSD: it gets the whole limit, not its share of the OSDs.
    pool.rbd("config", "image", "set", spec, "rbd_qos_iops_limit", limit)
    with Load(cluster.conf, pool.name, objects[:1]) as one:
        held([one], limit, used * limit)


def test_levels_of_the_configuration(cluster, pool):
    spec, objects = pool.image("one")
    # What is set for everybody must not stay behind.
    try:
        with Load(cluster.conf, pool.name, objects) as load:
            pool.rbd("config", "global", "set", "client", "rbd_qos_iops_limit", 10)
            held([load], 10)
            pool.rbd("config", "pool", "set", pool.name, "rbd_qos_iops_limit", 25)
            held([load], 25, 17)
            pool.rbd("config", "image", "set", spec, "rbd_qos_iops_limit", 60)
            held([load], 60, 40)
            # That of an image may be that there is none.
            pool.rbd("config", "image", "set", spec, "rbd_qos_iops_limit", 0)
            faster([load], 85)
    finally:
        pool.rbd("config", "global", "rm", "client", "rbd_qos_iops_limit")


def test_bytes_and_kinds_of_access(cluster, pool):
    data_pool = Pool(cluster)
    # The header is in one pool, the data in another.
    spec, objects = pool.image("one", "--data-pool", data_pool.name)
    assert objects[0].count(".") == 3
    size = 16384
    with Load(cluster.conf, data_pool.name, objects, size=size) as writes:
        faster([writes], 60)
        with Load(cluster.conf, data_pool.name, objects, size=size, read=True) as reads:
            faster([reads], 60)
            pool.rbd("config", "image", "set", spec, "rbd_qos_read_bps_limit", 30 * size)
            held([reads], 30)
            faster([writes], 50)
            pool.rbd("config", "image", "set", spec, "rbd_qos_write_bps_limit", 15 * size)
            held([writes], 15)
    cluster.delete_pool(data_pool.name)


def test_limits_outlive_a_kill(siphon_factory):
    process = siphon_factory()
    process.start()
    cluster = Cluster(process.conf, "crc")
    pool = Pool(cluster)
    spec, objects = pool.image("one")
    pool.rbd("config", "image", "set", spec, "rbd_qos_write_iops_limit", 25)
    process.kill()
    process.start()
    with Load(process.conf, pool.name, objects) as load:
        held([load], 25)
    process.stop()
