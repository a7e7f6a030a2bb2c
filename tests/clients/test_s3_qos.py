"""Buckets and users of gateways for S3 as tenants: floors, ceilings and weights that hold over two gateways.

The OSDs are told that they can do few operations, as in test_qos_tenants.py: parts of what is done are compared, and a
slow machine cannot make a test fail by being slow.
"""
import http.client
import json
import os
import shutil
import subprocess
import threading
import time

import pytest

from conftest import BINARY, CHROOT, Cluster, eventually, free_port
from test_qos_tenants import explain, known, part, qos
from s3_cluster import read_env
from test_s3 import Endpoint

pytest.importorskip("boto3")

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="runs the installed S3 clients")

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
# What an OSD does for clients each second.
IOPS = 50
SLOW = {"osd_mclock_profile": "custom", "osd_mclock_max_capacity_iops_ssd": IOPS, "osd_mclock_scheduler_client_lim": 1}
OSDS = 3
# Objects of a bucket that each OSD serves.
EACH = 16
NAMES = {}


class Load:
    """Connections that get small objects, dealt out over the gateways; each waits for its answer."""

    def __init__(self, gateways, bucket, connections, s3=None, what="get"):
        self.done, self.stopping, self.wrong, self.took = 0, False, [], []
        self.lock = threading.Lock()
        if what == "get":
            asked = [("get_object", {"Bucket": bucket, "Key": name}) for name in NAMES[bucket]]
        else:
            asked = [("list_objects_v2", {"Bucket": bucket})]
        self.threads = []
        for n in range(connections):
            to = gateways[n % len(gateways)]
            client = s3 or to.client()
            base = f"{client.meta.endpoint_url}"
            urls = [client.generate_presigned_url(call, Params=kw, ExpiresIn=3600).removeprefix(base) for call, kw in asked]
            self.threads.append(threading.Thread(target=self.run, args=(to.url, urls, n)))
        for t in self.threads:
            t.start()

    def run(self, url, urls, at):
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
        while not self.stopping:
            begun = time.monotonic()
            connection.request("GET", urls[at % len(urls)])
            answer = connection.getresponse()
            text = answer.read()
            with self.lock:
                if answer.status != 200:
                    self.wrong.append((answer.status, text))
                    return
                self.done += 1
                self.took.append(time.monotonic() - begun)
            at += 7
        connection.close()

    def stop(self):
        self.stopping = True
        for t in self.threads:
            t.join(120)
        assert not self.wrong, self.wrong[0]


def spread(cluster, marker):
    """Names of objects of which each OSD serves as many, one OSD after the other. A share is one of each OSD: a tenant
    that has most of its objects on one of them waits there, and others take the rest of what the others can do."""
    of = {osd: [] for osd in range(OSDS)}
    for n in range(1000):
        where = {"pool": "default.rgw.buckets.data", "object": f"{marker}_k{n}", "format": "json"}
        of[json.loads(cluster.command(prefix="osd map", **where))["acting_primary"]].append(f"k{n}")
        if all(len(names) >= EACH for names in of.values()):
            return [name for names in zip(*of.values()) for name in names][:OSDS * EACH]
    pytest.fail(f"an OSD serves too few objects: { {osd: len(names) for osd, names in of.items()} }")


@pytest.fixture(scope="module")
def setup(siphon_factory):
    """A cluster with two gateways, and buckets with objects of two users."""
    c = siphon_factory(extra=["--s3", str(free_port())])
    c.start(timeout=120)
    env = read_env(c.directory / "s3.env")
    keys = env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]
    port = free_port()
    argv = [str(BINARY), "s3", "--data-dir", str(c.directory), "--bind", f"127.0.0.1:{port}", "--threads", "1"]
    second = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert "S3 is served" in second.stdout.readline()
    gateways = [Endpoint(env["AWS_ENDPOINT_URL"], *keys), Endpoint(f"http://127.0.0.1:{port}", *keys)]
    assert shutil.which("radosgw-admin")
    subprocess.run(["radosgw-admin", "-c", str(c.conf), "-n", "client.admin", "user", "create", "--uid=ann", "--display-name=Ann",
                    "--access-key=ANN", "--secret-key=SECRET"], check=True, capture_output=True, timeout=120)
    ann = [Endpoint(g.url, "ANN", "SECRET") for g in gateways]
    cluster, owned = Cluster(c.conf, "crc"), {"victim": gateways[0], "aggressor": gateways[0], "ann-1": ann[0], "ann-2": ann[0]}
    for bucket, endpoint in owned.items():
        s3 = endpoint.client()
        s3.create_bucket(Bucket=bucket)
        # The pool of data is made with the first object.
        s3.put_object(Bucket=bucket, Key="first", Body=b"")
    argv = ["radosgw-admin", "-c", str(c.conf), "-n", "client.admin", "bucket", "stats"]
    stats = json.loads(subprocess.run(argv, check=True, capture_output=True, timeout=120).stdout)
    for bucket in (b for b in stats if b["bucket"] in owned):
        name, s3 = bucket["bucket"], owned[bucket["bucket"]].client()
        NAMES[name] = spread(cluster, bucket["marker"])
        for key in NAMES[name]:
            s3.put_object(Bucket=name, Key=key, Body=b"x" * 512)
    yield cluster, gateways, ann
    second.terminate()
    assert second.wait(60) == 0


@pytest.fixture
def slow(setup):
    cluster, gateways, ann = setup
    for option, value in SLOW.items():
        cluster.ceph("config", "set", "osd", option, str(value))
    yield cluster, gateways, ann
    for option in SLOW:
        cluster.ceph("config", "rm", "osd", option)
    for line in qos(cluster, "ls").stdout.splitlines()[1:]:
        qos(cluster, "rm", line.split()[0])


def run(*loads, enough=600):
    try:
        return part(loads, enough)
    finally:
        for load in loads:
            load.stop()


@pytest.mark.parametrize("what", ["get", "list"])
def test_a_ceiling_holds_over_two_gateways(setup, what):
    cluster, gateways, _ = setup
    # A list reads eleven shards of the index.
    ceiling, each = (40, 1) if what == "get" else (110, 11)
    qos(cluster, "set", "bucket.victim", "--ceiling-iops", ceiling)
    known(cluster, "bucket.victim")
    load = Load(gateways, "victim", 12, what=what)
    try:
        eventually(lambda: load.done * each > ceiling, what="a second's worth")
        before, begun = load.done, time.monotonic()
        eventually(lambda: (load.done - before) * each >= 4 * ceiling, what="four seconds' worth")
        done, took = (load.done - before) * each, time.monotonic() - begun
        said = explain(cluster, "bucket.victim")["tenants"][0]
        top = json.loads(qos(cluster, "top", "--once", "--period", "1", "--json").stdout)
    finally:
        qos(cluster, "rm", "bucket.victim")
        load.stop()
    assert done / took <= 1.25 * ceiling, (done, took)
    assert said["specified"] and "is held by its own ceiling" in said["verdict"], said
    assert "bucket.victim" in [t["tenant"] for t in top["tenants"]], top


def test_a_floor_is_kept_over_two_gateways(slow):
    cluster, gateways, _ = slow
    qos(cluster, "set", "bucket.aggressor", "--weight", 900)
    qos(cluster, "set", "bucket.victim", "--floor-iops", IOPS * 3 // 2)
    known(cluster, "bucket.aggressor", "bucket.victim")
    parts = run(Load(gateways, "victim", 24), Load(gateways, "aggressor", 48))
    # By weight it would be a tenth.
    assert parts[0] >= 0.38, parts


@pytest.mark.skipif(not LONG, reason="two measurements of ten seconds and more; SIPHON_TEST_LONG=1 runs it")
def test_a_user_is_a_tenant_with_all_its_buckets(slow):
    cluster, gateways, ann = slow
    qos(cluster, "set", "user.ann", "--weight", 100)
    qos(cluster, "set", "bucket.victim", "--weight", 200)
    known(cluster, "user.ann", "bucket.victim")
    loads = Load(gateways, "victim", 24), Load(ann, "ann-1", 20), Load(ann, "ann-2", 20)
    parts = run(*loads)
    # Three tenants would give the victim a half.
    assert parts[0] >= 0.57, parts
    # A bucket with a specification of its own is not in its user's.
    qos(cluster, "set", "bucket.ann-1", "--weight", 200)
    known(cluster, "bucket.ann-1")
    parts = run(Load(gateways, "victim", 20), Load(ann, "ann-1", 20), Load(ann, "ann-2", 20))
    assert parts[1] >= 0.30 and parts[2] <= 0.28, parts


def test_a_victim_beside_64_connections(slow):
    cluster, gateways, _ = slow
    for bucket in ("victim", "aggressor"):
        qos(cluster, "set", f"bucket.{bucket}", "--weight", 100)
    known(cluster, "bucket.victim", "bucket.aggressor")
    enough = 4000 if LONG else 600
    victim = Load(gateways, "victim", 24)
    parts = run(victim, Load(gateways, "aggressor", 64), enough=enough)
    assert parts[0] >= (0.48 if LONG else 0.42), parts
    if LONG:
        # With fewer connections than its share keeps busy, it waits twice as long as alone at most.
        p99 = lambda load: sorted(load.took)[len(load.took) * 99 // 100]
        alone = Load(gateways, "victim", 4)
        run(alone, enough=enough)
        beside = Load(gateways, "victim", 4)
        run(beside, Load(gateways, "aggressor", 64), enough=enough)
        print(f"part {parts[0]:.3f}; p99 alone {1000 * p99(alone):.0f} ms, beside {1000 * p99(beside):.0f} ms")
        assert p99(beside) <= 2 * p99(alone) + 2 / IOPS, (p99(beside), p99(alone))
