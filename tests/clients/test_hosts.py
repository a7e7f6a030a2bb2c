"""Three hosts with a network between them: any one may be lost, and two may not. SIPHON_TEST_LONG does each again and again."""
import json
import os
import random
import signal
import subprocess
import time
import uuid

import pytest

import hosts
from conftest import eventually
from load import Commander, History, Image, Load, Objects, Reader, make_image
from test_thrash import PATIENCE, SETTINGS, Admin

rados = pytest.importorskip("rados")
pytest.importorskip("rbd")

ROUNDS = 10 if os.environ.get("SIPHON_TEST_LONG") else 1


@pytest.fixture(scope="module")
def three():
    with hosts.cluster("siphon-hosts.", SETTINGS) as h:
        c = Admin(h.conf, {"ms_client_mode": "crc"})
        for pool, app in (("d", "rados"), ("r", "rbd")):
            c("osd pool create", pool=pool, pg_num=16)
            c("osd pool application enable", pool=pool, app=app)
        # A shard on each host.
        c("osd erasure-code-profile set", name="hosts", profile=["k=2", "m=1", "crush-failure-domain=host"])
        c("osd pool create", pool="coded", pg_num=16, pool_type="erasure", erasure_code_profile="hosts")
        c("osd pool set", pool="coded", var="allow_ec_overwrites", val="true")
        c("osd pool application enable", pool="coded", app="rbd")
        # Without leases, an OSD that does not know yet that it was replaced answers reads.
        History.stale_allowed = c.run(prefix="config help", key="osd_pool_default_read_lease_ratio")[0] != 0
        c.close()
        yield h


def whole(h, c):
    """Everybody takes part, and everything is clean."""
    def check():
        s = c.json("status")
        return (len(s["quorum_names"]) == 3 and s["osdmap"]["num_up_osds"] == 6
                and all(x["state_name"] == "active+clean" for x in s["pgmap"].get("pgs_by_state", [{"state_name": "none"}])))
    eventually(check, timeout=PATIENCE, what="active+clean, with three monitors")


def down(c, ids):
    return all(o["up"] == 0 for o in c.json("osd dump")["osds"] if o["osd"] in ids)


def numbers(h, host):
    return {int(d.name[4:]) for d in h.on(host, "osd.")}


class Fio:
    """Writes an image at random, and checks what it wrote, for as long as it is let."""

    def __init__(self, h, seed, directory, data_pool=None):
        self.name = f"fio-{uuid.uuid4().hex[:6]}"
        self.conf = directory / "fio.conf"
        self.conf.write_text(h.conf.read_text() + "\n[client]\nrbd_cache=false\nmon_client_ping_timeout=6\nmon_client_ping_interval=2\n")
        subprocess.run(["rbd", "-c", str(h.conf), "create", f"r/{self.name}", "--size", "64M", "--object-size", "1M",
                        *(["--data-pool", data_pool] if data_pool else [])], check=True, timeout=PATIENCE)
        self.job = directory / f"{self.name}.fio"
        # As much as it takes: it is told to end after that many loops, and each checks all that the one before wrote.
        self.job.write_text(f"""[work]
ioengine=rbd
clientname=admin
pool=r
rbdname={self.name}
rw=randwrite
bs=16k
size=32m
io_size=16m
iodepth=8
rate_iops=150
randseed={seed}
norandommap=1
serialize_overlap=1
verify=crc32c
verify_backlog=64
verify_fatal=1
do_verify=1
""")
        self.log = open(directory / f"{self.name}.log", "wb")
        self.process = subprocess.Popen(["fio", "--output-format=json", str(self.job)], env={**os.environ, "CEPH_CONF": str(self.conf)},
                                        stdout=self.log, stderr=subprocess.STDOUT, cwd=directory)

    def check(self):
        code = self.process.wait(timeout=PATIENCE)
        text = open(self.log.name).read()
        assert code == 0, f"fio: {code}\n{text[-3000:]}"
        result = json.loads(text[text.index("{"):])["jobs"][0]
        assert result["error"] == 0 and result["write"]["total_ios"] >= 1000 and result["read"]["total_ios"] >= 900, result
        return result


def work(h, c, seed):
    load = Load(seed)
    load.end = lambda c: (load.stop(), image.close(), c.close())
    writers = [Objects(f"w{seed}.{i}", seed, c.connect, "d", most=15) for i in range(4)]
    image = make_image(c.connect(rbd_cache="false", rbd_skip_partial_discard="false", rbd_discard_granularity_bytes=4096).open_ioctx("r"), f"image{seed}")
    for w in [*writers, Image(f"i{seed}", seed, image, 0, 1), Reader(f"r{seed}", seed, c.connect, "d", writers)]:
        load.add(w)
    load.start()
    return load


def verified(load):
    """Everything is as it must be."""
    load.pause()
    before, History.stale_allowed = History.stale_allowed, False
    for w in load.workers:
        w.verify()
    History.stale_allowed = before


def goes_on(load, what, n=30):
    """Every client gets on."""
    before, began = load.done(), time.monotonic()

    def check():
        load.check()
        return all(d - before[w] >= n for w, d in load.done().items())
    eventually(check, timeout=PATIENCE, what=f"clients to go on {what}")
    print(f"{what}: all clients got on after {time.monotonic() - began:.1f} s", flush=True)


LOSSES = {
    "killed": (lambda h, v: [d.kill() for d in h.on(v)], lambda h, v: h.heal()),
    "cut off": (lambda h, v: h.net.isolate(v), lambda h, v: h.heal()),
    "hanging": (lambda h, v: [d.signal(signal.SIGSTOP) for d in h.on(v)], lambda h, v: h.heal()),
}


@pytest.mark.parametrize("host, how", [("h0", "killed"), ("h1", "cut off"), ("h2", "hanging"), *([] if ROUNDS == 1 else [
    (host, how) for host in ("h0", "h1", "h2") for how in LOSSES])])
def test_one_host_is_lost(three, host, how, tmp_path):
    h = three
    c = Admin(h.conf, {"ms_client_mode": "crc"})
    whole(h, c)
    seed = random.SystemRandom().randrange(1_000_000)
    load = work(h, c, seed)
    try:
        fios = [Fio(h, seed, tmp_path), Fio(h, seed, tmp_path, "coded")]
        goes_on(load, "before")
        lose, heal = LOSSES[how]
        lose(h, host)
        goes_on(load, f"{host} is {how}")
        eventually(lambda: down(c, numbers(h, host)), timeout=PATIENCE, what=f"the OSDs of {host} to be called down")
        eventually(lambda: h.names[host] not in c.json("quorum_status")["quorum_names"], timeout=PATIENCE, what="a quorum of two")
        goes_on(load, f"{host} is known to be {how}")
        heal(h, host)
        whole(h, c)
        goes_on(load, f"{host} is back")
        for fio in fios:
            fio.check()
        verified(load)
        load.end(c)
    finally:
        h.heal()
        load.stop()


def mon_status(h, name):
    sock = next(d.directory for n, d in h.daemons.items() if n == f"mon.{name}") / "run" / f"ceph-mon.{name}.asok"
    return json.loads(subprocess.run(["ceph", "--admin-daemon", str(sock), "mon_status"], capture_output=True, timeout=60).stdout)


def alone(h, name):
    """A monitor without a majority sees that it is, and then accepts nothing and shows nothing."""
    eventually(lambda: mon_status(h, name)["quorum"] == [], timeout=PATIENCE, what=f"mon.{name} to see that it is alone")
    for command in (["config-key", "set", "minority", "yes"], ["-s"]):
        r = h.at(name).run("ceph", "--connect-timeout", "6", *command, check=False, timeout=60)
        assert r.returncode != 0, r


def test_two_hosts_are_lost(three):
    """What is left of a group may not go on alone, and does not; nothing is wrong when the others are back."""
    h = three
    for _ in range(ROUNDS):
        c = Admin(h.conf, {"ms_client_mode": "crc"})
        whole(h, c)
        seed = random.SystemRandom().randrange(1_000_000)
        load = work(h, c, seed)
        try:
            goes_on(load, "before")
            left = random.Random(seed).choice(list(h.names))
            lost = [x for x in h.names if x != left]
            # One monitor is left with them, so that somebody can say what the rest is.
            for x in lost:
                for d in h.on(x, "osd."):
                    d.kill()
            eventually(lambda: down(c, numbers(h, lost[0]) | numbers(h, lost[1])), timeout=PATIENCE, what="four OSDs to be called down")
            inactive = lambda: all("active" not in p["state"].split("+") for p in c.pgs())
            eventually(inactive, timeout=PATIENCE, what="all groups to be inactive")
            # Let go of what was on its way, then see that nothing more is answered, not even reads.
            settled = load.done()
            time.sleep(3)
            assert sum(load.done().values()) - sum(settled.values()) <= len(load.workers), "one copy alone answers"
            load.check()
            # And now without monitors, too: whoever is left accepts nothing.
            for x in lost:
                for d in h.on(x):
                    if d.running:
                        d.kill()
            alone(h, h.names[left])
            h.heal()
            whole(h, c)
            goes_on(load, "both are back")
            verified(load)
            load.end(c)
        finally:
            h.heal()
            load.stop()


@pytest.mark.parametrize("who", ["the leader", "a follower"])
@pytest.mark.parametrize("clients", ["clients are with the others", "clients still reach it"])
def test_a_monitor_is_cut_off(three, who, clients):
    """Its host's OSDs are not: only what it says to the other monitors and hears of them is lost, or all of its host."""
    h = three
    c = Admin(h.conf, {"ms_client_mode": "crc"})
    whole(h, c)
    leader = c.json("quorum_status")["quorum_leader_name"]
    victim = leader if who == "the leader" else next(n for n in "abc" if n != leader)
    host = next(x for x, n in h.names.items() if n == victim)
    commander = Commander(f"cut.{uuid.uuid4().hex[:4]}", 1, c.connect)
    load = Load(1)
    load.add(commander)
    load.start()
    try:
        goes_on(load, "before", 10)
        h.net.isolate(host, spare=["client"] if clients == "clients still reach it" else [])
        goes_on(load, f"mon.{victim}, {who}, is cut off", 10)
        c("osd pool create", pool=f"while-{victim}", pg_num=1)
        if clients == "clients still reach it":
            alone(h, victim)
        else:
            eventually(lambda: mon_status(h, victim)["quorum"] == [], timeout=PATIENCE, what="it to see that it is alone")
        h.net.heal()
        whole(h, c)
        load.pause()
        # It has what was decided without it.
        host_ip = h.net[host].ip
        one = Admin(h.conf, {"ms_client_mode": "crc", "mon_host": f"[v2:{host_ip}:3300]"})
        assert one.run(prefix="config-key get", key="minority")[0] == -2
        commander.verify(f" by mon.{victim}", one.run)
        c("osd pool delete", pool=f"while-{victim}", pool2=f"while-{victim}", yes_i_really_really_mean_it=True)
        load.stop()
        one.close()
        c.close()
    finally:
        h.net.heal()
        load.stop()
