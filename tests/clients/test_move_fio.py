"""Movement jobs under fio, which verifies what it reads: bytes moved against the least that must move, and undo.

Eight OSDs on four hosts in three racks. SIPHON_TEST_LONG runs every kind of job, and several undos at random steps."""
import json
import os
import random
import shutil
import subprocess

import pytest
from conftest import eventually
from test_move import Moving

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
OSDS = 8
# Of what must move; the rest is what fio's writes add to groups on their way.
MOST = 1.05

pytestmark = [
    pytest.mark.skipif("SIPHON_TEST_CONF" in os.environ, reason="a cluster of its own is moved about"),
    pytest.mark.skipif(bool(os.environ.get("SIPHON_TEST_CHROOT")) or not shutil.which("fio"), reason="fio is not installed"),
]


class Load:
    """fio on an image: random writes, each read again and compared."""

    def __init__(self, cl, tmp_path):
        self.cl, self.job = cl, tmp_path / "move.fio"
        self.conf = tmp_path / "ceph.conf"
        self.conf.write_text(cl.conf.read_text() + "\n[client]\nrbd_cache = false\n")
        cl.run("rbd", "create", "data/image", "--size", "64M", "--object-size", "1M")
        # Every block is there at the beginning: what moves stays as large as it is.
        cl.run("rbd", "bench", "--io-type", "write", "--io-size", "1M", "--io-total", "64M", "data/image", timeout=300)
        self.process = None

    def start(self):
        self.job.write_text("""[work]
ioengine=rbd
clientname=admin
pool=data
rbdname=image
rw=randwrite
bs=16k
size=64m
iodepth=4
rate_iops=40
norandommap=1
serialize_overlap=1
verify=crc32c
verify_backlog=128
verify_fatal=1
time_based=1
runtime=36000
""")
        self.process = subprocess.Popen(["fio", "--output-format=json", str(self.job)], env={**os.environ, "CEPH_CONF": str(self.conf)},
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.job.parent)

    def runs(self):
        assert self.process.poll() is None, self.process.communicate()

    def stop(self):
        """Ends it: nothing that it read was wrong, and it did read."""
        self.runs()
        self.process.send_signal(2)
        out, err = self.process.communicate(timeout=180)
        job = json.loads(out[out.index("{"):])["jobs"][0]
        assert "verify:" not in err and job["error"] in (0, 4, 128), (job["error"], err)
        assert job["write"]["total_ios"] > 50 and job["read"]["total_ios"] > 0, job
        p99 = job["write"]["clat_ns"]["percentile"]["99.000000"] / 1e6
        print(f"fio: {job['write']['total_ios']} writes, {job['read']['total_ios']} reads compared, p99 of writes {p99:.1f} ms")


class Racked(Moving):
    """Hosts in racks, and what must move between two placements."""

    def arrange(self):
        for n in range(OSDS):
            self.ceph("osd", "crush", "move", f"osd.{n}", "root=default", f"rack=r{n // 2 % 3}", f"host=h{n // 2}")
        for kind in "host", "rack":
            self.ceph("osd", "crush", "rule", "create-replicated", f"{kind}s", "default", kind)

    def bytes_of(self):
        return {p["pgid"]: p["stat_sum"]["num_bytes"] for p in self.ceph_json("pg", "dump", "pgs")["pg_stats"]}

    def least(self, before, after):
        """Bytes of copies that are somewhere else afterwards."""
        size = self.bytes_of()
        return sum(size[pg] * len(set(after[pg]) - set(before[pg])) for pg in before)


@pytest.fixture(scope="module")
def cl(siphon_factory, tmp_path_factory):
    c = siphon_factory(osds=OSDS)
    c.start()
    cl = Racked(c.conf, "crc")
    cl.ceph("osd", "set-require-min-compat-client", "luminous")
    cl.arrange()
    cl.make_pool("data", pg_num=16, application="rbd")
    cl.ceph("osd", "pool", "set", "data", "crush_rule", "hosts")
    cl.clean()
    return cl


@pytest.fixture(scope="module")
def load(cl, tmp_path_factory):
    load = Load(cl, tmp_path_factory.mktemp("fio"))
    load.start()
    yield load
    load.stop()


def goes(cl, load, *args):
    """Runs a job to its end; it moves no more than it must."""
    cl.clean()
    before = cl.placed()
    job = cl.move("start", *args, "--p99", "30s")["id"]
    done = cl.ends(job)
    cl.clean()
    load.runs()
    least = cl.least(before, cl.placed())
    moved = done["bytes_moved"]
    assert 0 < least and moved <= MOST * least, (args, moved, least)
    print(f"{' '.join(args)}: {moved} bytes moved, {moved / least:.3f} of the least, in {done['maps']} maps")
    return job


def undoes(cl, load, rng, *args):
    """Begins a job, and takes it back at a random step."""
    cl.clean()
    before, dump = cl.placed(), cl.ceph_json("osd", "dump")
    job = cl.move("start", *args, "--pgs", "1")["id"]
    maps = rng.randrange(1, 5)
    eventually(lambda: (lambda j: j["maps"] >= maps or j["state"] == "done")(cl.job(job)), timeout=180, what=f"{maps} maps")
    if rng.random() < 0.5:
        cl.move("pause", str(job), check=False)
    cl.move("undo", str(job))
    cl.ends(job, "undone")
    cl.clean()
    load.runs()
    assert cl.placed() == before
    after = cl.ceph_json("osd", "dump")
    assert (after["pg_upmap_items"], after["pg_upmap"]) == (dump["pg_upmap_items"], dump["pg_upmap"])
    print(f"{' '.join(args)}: undone after {maps} maps")


def test_drain_and_grow_a_host(cl, load):
    rng = random.Random(34)
    undoes(cl, load, rng, "drain", "h3")
    goes(cl, load, "drain", "h3")
    weight = str(next(n for n in cl.ceph_json("osd", "tree")["nodes"] if n["id"] == 0)["crush_weight"])
    goes(cl, load, "grow", "osd.6", "osd.7", "--weight", weight)


@pytest.mark.skipif(not LONG, reason="a long one")
@pytest.mark.parametrize("seed", range(5))
def test_all_jobs_and_their_undo(cl, load, seed):
    rng = random.Random(seed)
    weight = str(next(n for n in cl.ceph_json("osd", "tree")["nodes"] if n["id"] == 0)["crush_weight"])
    undoes(cl, load, rng, "rule", "data", "racks")
    job = goes(cl, load, "rule", "data", "racks")
    undoes(cl, load, rng, "balance")
    cl.move("rm", str(job), check=False)
    goes(cl, load, "rule", "data", "hosts")
    host = f"h{rng.randrange(4)}"
    undoes(cl, load, rng, "drain", host)
    goes(cl, load, "drain", host)
    number = int(host[1])
    goes(cl, load, "grow", f"osd.{2 * number}", f"osd.{2 * number + 1}", "--weight", weight)
    # A device's data goes elsewhere, and comes back if the device is not replaced after all.
    osd = f"osd.{rng.randrange(OSDS)}"
    before = cl.placed()
    job = cl.move("start", "replace", osd)["id"]
    cl.ends(job, "waits for the new device")
    assert cl.on(int(osd[4:])) == 0
    cl.move("undo", str(job))
    cl.ends(job, "undone")
    cl.clean()
    assert cl.placed() == before
