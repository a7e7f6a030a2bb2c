"""SIGKILL of OSDs, each a process of its own, under gateways for S3, ours and Ceph's, while clients write: what was
answered is there, what was not is there as a whole or not at all, `radosgw-admin bucket check` is clean and no raw object
is without an entry.

Our gateway is killed as well, together with the OSDs or when they are back; Ceph's lives, as it leaves data behind when it
ends. Workers and checks are those of test_s3_crash.py. SIPHON_TEST_LONG=1 runs many rounds.
"""
import os
import random
import shutil
import time

import pytest

from conftest import CHROOT, eventually
from processes import Processes
from test_radosgw import Gateway as Stock

pytest.importorskip("boto3")
from test_s3_crash import PLAIN, SEED, VERSIONED, Admin, Gateway, Load, Versioned, check, client, settle

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="runs the installed S3 clients")

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
ROUNDS = int(os.environ.get("SIPHON_TEST_ROUNDS", 100 if LONG else 2))
OSDS = 3
ENV = {"AWS_ACCESS_KEY_ID": "access-key-of-test", "AWS_SECRET_ACCESS_KEY": "secret-key-of-test"}


def without_expect(params, **_):
    params["headers"].pop("Expect", None)


def patient(s3):
    """A "100 Continue" that comes after more than a second, as it may without OSDs, is taken for the answer by the installed
    botocore."""
    s3.meta.events.register_last("before-call.s3", without_expect)
    return s3


class Ours(Gateway):
    """Our gateway, which ends with each round."""
    versioned = Versioned

    def client(self):
        return patient(super().client())


class TheirVersioned(Versioned):
    def mark(self):
        """Ceph's gateway makes no marker over a marker, and tells no version."""
        newest = list(self.versions.values())[-1:]
        return self.put() if newest == [None] else super().mark()


class Theirs:
    """Ceph's gateway, which goes on."""
    versioned = TheirVersioned

    def __init__(self, stock):
        self.stock = stock

    def start(self):
        assert self.stock.answers()

    def client(self):
        return patient(client(self.stock.port, ENV))


@pytest.fixture
def cluster(tmp_path):
    missing = [p for p in ("radosgw", "radosgw-admin", "rados") if not shutil.which(p)]
    assert not missing, f"not installed: {missing}"
    p = Processes(tmp_path)
    try:
        p.start(osds=OSDS)
        # Clients go on soon without an OSD that is gone.
        for name, value in (("osd_heartbeat_interval", "1"), ("osd_heartbeat_grace", "4")):
            p.client().command(prefix="config set", who="global", name=name, value=value)
        made = ["--uid=first", "--display-name=First", *(f"--{k}={ENV[v]}" for k, v in (("access-key", "AWS_ACCESS_KEY_ID"), ("secret-key", "AWS_SECRET_ACCESS_KEY")))]
        Admin(p.conf).rgw("user", "create", *made)
        yield p
    finally:
        p.stop()


def disturb(cluster, gateway, load, moments):
    """Some OSDs die and come back, and so does our gateway."""
    victims = [cluster[f"osd.{n}"] for n in moments.sample(range(OSDS), moments.choice([1, 1, 2, 3]))]
    # Both at the same moment, or the gateway when the OSDs are back; Ceph's never.
    ours = isinstance(gateway, Ours)
    together = ours and moments.random() < 0.5
    for daemon in victims:
        daemon.process.kill()
    if together:
        gateway.kill()
    for daemon in victims:
        daemon.process.wait()
    time.sleep(moments.uniform(0, 3))
    for daemon in victims:
        daemon.spawn()
    for daemon in victims:
        daemon.wait_serving()
    if not together:
        answered = load.answered
        eventually(lambda: load.answered >= answered + 3 or load.wrong, 120, "answers of OSDs that are back")
        time.sleep(moments.uniform(0, 1))
        if ours:
            gateway.kill()
    return f"{' '.join(d.name for d in victims)}{' and the gateway' if together else ''}"


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_osds_that_are_killed(cluster, tmp_path, whose):
    admin, keys, moments = Admin(cluster.conf), [], random.Random(SEED)
    print(f"SIPHON_TEST_SEED={SEED}")
    stock, beside = None, Ours(cluster.conf, ENV)
    try:
        if whose == "ours":
            beside.start()
            gateway, s3 = Ours(cluster.conf, ENV), beside.client()
            finish = lambda: settle(cluster.conf)
        else:
            stock = Stock(cluster.conf, tmp_path)
            stock.start()
            gateway, s3 = Theirs(stock), Theirs(stock).client()
            finish = lambda: admin.rgw("gc", "process", "--include-all")
        for bucket in (PLAIN, VERSIONED):
            s3.create_bucket(Bucket=bucket)
        s3.put_bucket_versioning(Bucket=VERSIONED, VersioningConfiguration={"Status": "Enabled"})
        for turn in range(ROUNDS):
            gateway.start()
            load = Load(gateway, turn, gateway.versioned)
            try:
                eventually(lambda: load.answered >= 3 or load.wrong, 60, "answers")
                time.sleep(moments.uniform(0, 1))
                print(turn, disturb(cluster, gateway, load, moments), f"{load.answered} answers", flush=True)
            finally:
                load.stopping = True
                if whose == "ours" and gateway.process.poll() is None:
                    gateway.kill()
            load.ended()
            keys += load.keys
            if turn % 10 == 9 or turn == ROUNDS - 1:
                check(s3, admin, keys, turn, finish)
    finally:
        if stock:
            stock.stop()
        if beside.process:
            beside.kill()
