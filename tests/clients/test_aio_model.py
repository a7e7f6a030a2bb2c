"""Many requests of one client under way on the same objects give what a model says: see aio_model.py."""
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from conftest import Cluster

pytest.importorskip("rados")

MODEL = Path(__file__).with_name("aio_model.py")
# What 20 seeds need is a few tens of seconds; a hang shows itself by the model's own patience.
LIMIT_SECONDS = 900


def model(conf, pool, seed, seeds, *more):
    stock = ["--stock"] if os.environ.get("SIPHON_TEST_CONF") and "--down" not in more else []
    argv = [sys.executable, str(MODEL), "--conf", str(conf), "--pool", pool, "--seed", str(seed), "--seeds", str(seeds),
            *stock, *more]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def passes(process, seeds):
    out, _ = process.communicate(timeout=LIMIT_SECONDS)
    lines = out.splitlines()
    assert process.returncode == 0 and len(lines) == seeds, out


@pytest.fixture(scope="module")
def plain(base_conf):
    return Cluster(base_conf, "crc")


@pytest.fixture
def few_groups(plain):
    """A pool in which objects share placement groups."""
    name = "aio-" + uuid.uuid4().hex[:8]
    plain.make_pool(name, pg_num=2)
    yield name
    plain.command(prefix="config set", who="mon", name="mon_allow_pool_delete", value="true")
    plain.delete_pool(name)


@pytest.mark.parametrize("first", [1, 11])
def test_many_requests_under_way(plain, few_groups, first):
    passes(model(plain.conf, few_groups, first, 10), 10)
