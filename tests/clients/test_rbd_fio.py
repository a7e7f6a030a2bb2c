"""Other programs on top of librbd: fio that checks what it wrote, and QEMU's tools.

SIPHON_TEST_LONG makes fio work for half an hour."""
import hashlib
import json
import os
import random
import shutil
import subprocess
import threading
import time
import uuid

import pytest
from conftest import CHROOT

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="fio and QEMU are not below the other root directory")

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
MIB = 1 << 20


class Rbd:
    """The rbd command in one pool, and a configuration for programs that know no other way to be told of the mode."""

    def __init__(self, cluster, pool, conf):
        self.cluster, self.pool, self.conf = cluster, pool, conf

    def __call__(self, *args, **kw):
        return self.cluster.run("rbd", f"--rbd_default_pool={self.pool}", *args, **kw).stdout

    def digest(self, spec):
        return hashlib.sha256(self("export", "--no-progress", spec, "-")).hexdigest()


@pytest.fixture
def rbd(cluster, tmp_path):
    pool = "rbd-" + uuid.uuid4().hex[:8]
    cluster.make_pool(pool, 8, application=None)
    cluster.run("rbd", "pool", "init", pool)
    # What is read comes from the cluster, and every discard is done as it was asked for, whatever its size.
    settings = ["rbd_cache=false", "rbd_skip_partial_discard=false", *(a.removeprefix("--") for a in cluster.args)]
    conf = tmp_path / "ceph.conf"
    conf.write_text(cluster.conf.read_text() + "\n[client]\n" + "\n".join(settings) + "\n")
    yield Rbd(cluster, pool, conf)
    cluster.delete_pool(pool)


@pytest.fixture(scope="session")
def fio():
    if not shutil.which("fio") or " rbd" not in subprocess.run(["fio", "--enghelp"], capture_output=True, text=True).stdout.replace("\t", " "):
        pytest.skip("fio with the engine rbd is not installed (package fio)")


def fio_run(rbd, image, tmp_path, seed, rw):
    """Overwrites at random, and checks what it wrote meanwhile and at the end.

    Not meanwhile if it trims each block before it writes it: fio may then check what was in a block before, between
    its trim and its write, and find zeros."""
    meanwhile = "" if "trim" in rw else "verify_backlog=256\n"
    block = (4 << random.Random(seed).randrange(5)) * 1024
    job = tmp_path / "job.fio"
    job.write_text(f"""[work]
ioengine=rbd
clientname=admin
pool={rbd.pool}
rbdname={image}
rw={rw}
bs={block}
size=24m
io_size={min(24 * MIB, 1500 * block)}
iodepth=16
norandommap=1
serialize_overlap=1
randseed={seed}
verify=crc32c
{meanwhile}verify_fatal=1
do_verify=1
""")
    r = subprocess.run(["fio", "--output-format=json", str(job)], env={**os.environ, "CEPH_CONF": str(rbd.conf)},
                       capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert r.returncode == 0, f"fio, seed {seed}: {r.returncode}\n{r.stdout[-3000:]}\n{r.stderr[-3000:]}"
    result = json.loads(r.stdout[r.stdout.index("{"):])["jobs"][0]
    assert result["error"] == 0 and result["write"]["total_ios"] and result["read"]["total_ios"], result
    return result


class Snapshots(threading.Thread):
    """Takes snapshots and makes clones while others write. A snapshot never changes, and a clone begins as it."""

    def __init__(self, rbd, image, seed):
        super().__init__()
        self.rbd, self.image, self.rng = rbd, image, random.Random(seed)
        self.over = threading.Event()
        self.digests = {}
        self.clones = {}
        self.error = None

    def run(self):
        try:
            while not self.over.is_set():
                self.step()
        except BaseException as e:
            self.error = e

    def step(self):
        if len(self.digests) >= 4:
            fits = [s for s in self.digests if s not in self.clones.values()]
            victim = self.rng.choice(fits or list(self.digests))
            self.check(victim)
            for clone in [c for c, s in self.clones.items() if s == victim]:
                self.rbd("rm", "--no-progress", clone)
                del self.clones[clone]
            self.rbd("snap", "rm", "--no-progress", f"{self.image}@{victim}")
            del self.digests[victim]
        snap = "s" + uuid.uuid4().hex[:6]
        self.rbd("snap", "create", "--no-progress", f"{self.image}@{snap}")
        self.digests[snap] = self.rbd.digest(f"{self.image}@{snap}")
        if self.rng.random() < 0.5:
            clone = "c" + uuid.uuid4().hex[:6]
            self.rbd("clone", "--rbd_default_clone_format=2", f"{self.image}@{snap}", clone)
            self.clones[clone] = snap
            if self.rng.random() < 0.5:
                self.rbd("flatten", "--no-progress", clone)

    def check(self, snap):
        assert self.rbd.digest(f"{self.image}@{snap}") == self.digests[snap], f"{self.image}@{snap} has changed"
        for clone in [c for c, s in self.clones.items() if s == snap]:
            assert self.rbd.digest(clone) == self.digests[snap], f"{clone} differs from {self.image}@{snap}"

    def finish(self):
        self.over.set()
        self.join()
        if self.error:
            raise self.error
        for snap in self.digests:
            self.check(snap)
        return len(self.digests)


@pytest.mark.parametrize("kind", ["plain", "mapped", "clone", "striped"])
def test_fio(rbd, fio, tmp_path, kind):
    if not LONG and "SIPHON_FIO_SEED" not in os.environ and (rbd.cluster.mode == "secure") != (kind in ("plain", "striped")):
        pytest.skip("the other mode of the protocol has this kind in the short run")
    features = {"plain": "layering", "striped": "layering,exclusive-lock,object-map,fast-diff"}.get(
        kind, "layering,exclusive-lock,object-map,fast-diff,deep-flatten")
    options = ["--image-feature", features, "--size", "24M", "--object-size", "256K"]
    if kind == "striped":
        options += ["--stripe-unit", "16K", "--stripe-count", "4"]
    name = "img"
    rbd("create", name, *options)
    if kind == "clone":
        base = random.Random(1).randbytes(24 * MIB)
        rbd("import-diff", "--no-progress", "-", name, data=b"rbd diff v1\nw" + bytes(8) + len(base).to_bytes(8, "little") + base + b"e")
        rbd("snap", "create", "--no-progress", f"{name}@base")
        rbd("clone", "--rbd_default_clone_format=2", f"{name}@base", "child", "--image-feature", features, "--object-size", "256K")
        name = "child"
    deadline = time.monotonic() + (1800 / 8 if LONG else 0)
    seed = int(os.environ.get("SIPHON_FIO_SEED", 1))
    while True:
        snapshots = Snapshots(rbd, name, seed)
        snapshots.start()
        try:
            trims = fio_run(rbd, name, tmp_path, seed, "randtrimwrite")["trim"]["total_ios"]
            fio_run(rbd, name, tmp_path, seed, "randwrite")
        finally:
            taken = snapshots.finish()
        assert taken and trims
        if time.monotonic() >= deadline:
            break
        for clone in snapshots.clones:
            rbd("rm", "--no-progress", clone)
        rbd("snap", "purge", "--no-progress", name)
        seed += 1
    if "object-map" in features:
        rbd("object-map", "check", "--no-progress", name)
        assert not json.loads(rbd("info", name, "--format", "json"))["flags"]
    if kind == "clone":
        assert rbd("export", "--no-progress", "img", "-") == base, "the parent has changed"


@pytest.fixture(scope="session")
def qemu():
    for tool in ("qemu-img", "qemu-io"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed (package qemu-utils)")
    if " rbd" not in subprocess.run(["qemu-img", "--help"], capture_output=True, text=True).stdout.partition("Supported formats:")[2]:
        pytest.skip("QEMU's tools have no rbd (package qemu-block-extra)")


def tool(*argv, check=True, **kw):
    r = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=300, **kw)
    assert r.returncode == 0 or not check, f"{argv}: exit {r.returncode}\n{r.stdout}\n{r.stderr}"
    return r


def io(target, *commands, form="raw"):
    """Runs commands of qemu-io; a pattern that is not there, or an error, is said on the output only."""
    r = tool("qemu-io", "-f", form, *(a for c in commands for a in ("-c", c)), target)
    assert "fail" not in r.stdout.lower() and "error" not in r.stdout.lower(), r.stdout
    return r.stdout


def test_qemu(rbd, qemu, tmp_path):
    at = lambda name: f"rbd:{rbd.pool}/{name}:conf={rbd.conf}"
    rng = random.Random(5)
    data = bytearray(32 * MIB)
    for _ in range(40):
        where = rng.randrange(0, len(data) - 400_000)
        data[where:where + 300_000] = rng.randbytes(300_000)
    f, g = tmp_path / "f", tmp_path / "g"
    f.write_bytes(data)
    tool("qemu-img", "convert", "-f", "raw", "-O", "raw", f, at("img"))
    tool("qemu-img", "compare", "-f", "raw", "-F", "raw", f, at("img"))
    info = json.loads(tool("qemu-img", "info", "--output", "json", at("img")).stdout)
    assert info["virtual-size"] == len(data)
    tool("qemu-img", "convert", "-f", "raw", "-O", "qcow2", at("img"), g)
    tool("qemu-img", "compare", "-f", "raw", "-F", "qcow2", at("img"), g)

    tool("qemu-img", "snapshot", "-c", "one", at("img"))
    assert "one" in tool("qemu-img", "snapshot", "-l", at("img")).stdout
    io(at("img"), "write -P 0xa5 1M 3M", "write -z 5M 1M", "discard 7M 2M", "flush",
       "read -P 0xa5 1M 3M", "read -P 0 5M 1M", "read -P 0 7M 2M", "aio_write -P 7 10M 64k", "aio_write -P 8 11M 64k", "aio_flush",
       "read -P 7 10M 64k", "read -P 8 11M 64k")
    changed = bytearray(data)
    for where, length, byte in [(1, 3 * MIB, 0xa5), (5, MIB, 0), (7, 2 * MIB, 0), (10, 65536, 7), (11, 65536, 8)]:
        changed[where * MIB:where * MIB + length] = bytes([byte]) * length
    assert rbd("export", "--no-progress", "img", "-") == changed
    r = tool("qemu-img", "compare", "-f", "raw", "-F", "raw", f, at("img"), check=False)
    assert r.returncode == 1 and "Content mismatch" in r.stdout
    tool("qemu-img", "compare", "-f", "raw", "-F", "raw", f, at("img@one"))
    tool("qemu-img", "snapshot", "-a", "one", at("img"))
    tool("qemu-img", "compare", "-f", "raw", "-F", "raw", f, at("img"))
    tool("qemu-img", "snapshot", "-d", "one", at("img"))
    assert "one" not in tool("qemu-img", "snapshot", "-l", at("img")).stdout

    tool("qemu-img", "resize", "-f", "raw", at("img"), "40M")
    io(at("img"), "read -P 0 32M 8M", "write -P 3 39M 1M", "read -P 3 39M 1M")
    tool("qemu-img", "resize", "--shrink", "-f", "raw", at("img"), "32M")
    tool("qemu-img", "compare", "-f", "raw", "-F", "raw", f, at("img"))
    r = tool("qemu-io", "-f", "raw", "-c", "read -P 0x77 0 4k", at("img"), check=False)
    assert "Pattern verification failed" in r.stdout + r.stderr, "the check of patterns checks nothing"


def test_qemu_formats(rbd, qemu, tmp_path):
    """An image of QEMU's own format inside a block device, which grows as it needs to."""
    at = lambda name: f"rbd:{rbd.pool}/{name}:conf={rbd.conf}"
    tool("qemu-img", "create", "-f", "qcow2", "-o", "cluster_size=64k", at("q"), "64M")
    io(at("q"), "write -P 1 0 4M", "write -P 2 40M 1M", "discard 1M 1M", form="qcow2")
    tool("qemu-img", "snapshot", "-c", "inner", at("q"))
    io(at("q"), "write -P 9 0 1M", "read -P 9 0 1M", "read -P 0 1M 1M", "read -P 1 2M 2M", "read -P 2 40M 1M", "read -P 0 50M 1M", form="qcow2")
    tool("qemu-img", "check", "-f", "qcow2", at("q"))
    tool("qemu-img", "snapshot", "-a", "inner", at("q"))
    io(at("q"), "read -P 1 0 1M", form="qcow2")
    tool("qemu-img", "convert", "-f", "qcow2", "-O", "raw", at("q"), at("r"))
    tool("qemu-img", "compare", "-f", "qcow2", "-F", "raw", at("q"), at("r"))
    tool("qemu-img", "bench", "-w", "-c", "500", "-d", "16", "-s", "4096", "-f", "raw", at("r"))
