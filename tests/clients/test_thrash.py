"""Everything that can go wrong with hosts and their network, at random, under clients that know what they must read.

Three hosts, each with a monitor and two OSDs. A round is a few disturbances of one host (and of placement, anywhere);
then everything is whole again, all groups must become clean, and every change that was acknowledged must be there.
SIPHON_THRASH_SECONDS says how long to go on, SIPHON_THRASH_SEED with which seed, SIPHON_THRASH_ACTIONS with
which actions only (`pg_num,partition`), SIPHON_THRASH_CODED that an erasure-coded pool takes part; SIPHON_TEST_KEEP keeps the cluster's files.
"""
import concurrent.futures
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

import hosts
from conftest import BINARY, eventually
from processes import siphon
from load import Commander, History, Image, Load, Objects, Reader, Violation, make_image

rados = pytest.importorskip("rados")
pytest.importorskip("rbd")

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
SECONDS = float(os.environ.get("SIPHON_THRASH_SECONDS", 3600 if LONG else 150))
# Whether an erasure-coded pool takes part.
CODED = LONG or bool(os.environ.get("SIPHON_THRASH_CODED"))
ONLY = [a for a in os.environ.get("SIPHON_THRASH_ACTIONS", "").split(",") if a]
# Minutes for what takes seconds: slowness is no failure.
PATIENCE = 300
# Seconds for which clients go on beside the repair of what has gone bad.
MENDS_UNDER_LOAD = 120
SETTINGS = [("mon", "mon_allow_pool_delete", "true"), ("global", "osd_heartbeat_interval", 1), ("global", "osd_heartbeat_grace", 5),
            ("mon", "mon_mgr_beacon_grace", 5), ("mgr", "mgr_stats_period", 1)]
# Clients notice soon that their monitor or an OSD does not answer any more.
CLIENT = {"objecter_tick_interval": "1", "objecter_timeout": "2", "mon_client_ping_interval": "2", "mon_client_ping_timeout": "6", "client_mount_timeout": "300"}


class Admin:
    """Commands that get through sooner or later."""

    def __init__(self, conf, options):
        self.conf, self.options, self.client, self.clients = conf, options, None, []

    def close(self):
        """Librados may crash when Python ends and its clients are still there."""
        for r in self.clients:
            r.shutdown()

    def connect(self, **more):
        r = rados.Rados(conffile=str(self.conf), conf={**CLIENT, **self.options, **{k: str(v) for k, v in more.items()}})
        r.connect()
        self.clients.append(r)
        return r

    def run(self, **command):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if self.client is None:
                    self.client = self.connect(rados_mon_op_timeout=30, client_mount_timeout=30)
                code, out, text = self.client.mon_command(json.dumps(command), b"")
            except rados.Error as e:
                code, out, text = -(e.errno or 110), b"", str(e)
            if code not in (-110, -4, -11):
                return code, out, text
            self.client = None
            assert time.monotonic() < deadline, f"no answer to {command} for {PATIENCE} s"

    def __call__(self, prefix, **command):
        code, out, text = self.run(prefix=prefix, **command)
        assert code == 0, f"{prefix} {command}: {code} {text}"
        return out

    def json(self, prefix, **command):
        return json.loads(self(prefix, format="json", **command))

    def mgr(self, *command, absent=False):
        """What the manager answers; a process of its own asks, because librados waits for a lost manager for ever. Nothing
        if what it is about may be `absent`, and is."""
        argv = ["ceph", "-c", str(self.conf), "--connect-timeout", "10", *(f"--{k}={v}" for k, v in self.options.items()), *command]
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                r = subprocess.run(argv, capture_output=True, timeout=30)
                if r.returncode == 0:
                    return r.stdout
                if absent and r.returncode == errno.ENOENT:
                    return None
                why = r.stderr
            except subprocess.TimeoutExpired as e:
                why = e
            assert time.monotonic() < deadline, f"no answer to `{' '.join(command)}` for {PATIENCE} s: {why}"

    def pgs(self, what="pgs_brief"):
        return json.loads(self.mgr("pg", "dump", what, "-f", "json"))["pg_stats"]


class Thrasher:
    def __init__(self, h, seed):
        self.hosts, self.rng, self.seed = h, random.Random(seed), seed
        self.began = time.monotonic()
        options = {"ms_client_mode": self.rng.choice(["crc", "secure"]), "ms_mon_client_mode": self.rng.choice(["crc", "secure"])}
        self.c = Admin(h.conf, options)
        self.counts = {}
        self.wiped = self.rotten = False
        self.say(f"seed {seed}, {options}, files in {h.base}")

    def say(self, text):
        print(f"{time.monotonic() - self.began:8.2f} {text}", flush=True)

    def prepare(self):
        c, rng = self.c, self.rng
        # Without them, an OSD that does not know yet that it was replaced answers reads.
        self.leases = c.run(prefix="config help", key="osd_pool_default_read_lease_ratio")[0] == 0
        History.stale, History.stale_allowed = 0, not self.leases
        # Short logs make copies that no log can fill.
        if rng.random() < 0.5:
            for option, value in (("osd_min_pg_log_entries", 20), ("osd_max_pg_log_entries", 60), ("osd_pg_log_trim_min", 10)):
                c("config set", who="osd", name=option, value=str(value))
            self.say("short logs")
        for pool, pgs, app in (("d", rng.choice([8, 16, 32]), "rados"), ("r", 8, "rbd")):
            c("osd pool create", pool=pool, pg_num=pgs)
            c("osd pool application enable", pool=pool, app=app)
        if CODED:
            # A shard on each host: any one host may go.
            c("osd erasure-code-profile set", name="two", profile=["k=2", "m=1", "crush-failure-domain=host"])
            c("osd pool create", pool="e", pg_num=8, pool_type="erasure", erasure_code_profile="two")
            c("osd pool set", pool="e", var="allow_ec_overwrites", val="true")
            c("osd pool application enable", pool="e", app="rados")
        load = self.load = Load(self.seed)
        writers = [Objects(f"w{i}", self.seed, c.connect, "d") for i in range(8)]
        writers += [Objects(f"u{i}", self.seed, c.connect, "d", most=20, snapshots=False, rados_osd_op_timeout=4) for i in range(2)]
        coded = [Objects(f"we{i}", self.seed, c.connect, "e") for i in range(3 if CODED else 0)]
        coded += [Objects("ue0", self.seed, c.connect, "e", most=20, snapshots=False, rados_osd_op_timeout=4)] if CODED else []
        client = c.connect(rbd_cache="false", rbd_skip_partial_discard="false", rbd_discard_granularity_bytes=4096)
        # An image lives wholly in its pool: header, object map and data.
        pools = {"r": 3, **({"e": 2} if CODED else {})}
        self.images = {pool: make_image(client.open_ioctx(pool), "image") for pool in pools}
        images = [Image("i" + (pool if pool != "r" else "") + str(i), self.seed, self.images[pool], i, of)
                  for pool, of in pools.items() for i in range(of)]
        self.commander = Commander("k", self.seed, c.connect)
        readers = [Reader(f"r{i}", self.seed, c.connect, "d", writers) for i in range(3)]
        readers += [Reader(f"re{i}", self.seed, c.connect, "e", coded) for i in range(2 if CODED else 0)]
        for w in [*writers, *coded, *images, self.commander, *readers]:
            load.add(w)
        load.start()

    # What can be seen.

    def wait(self, seconds):
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.load.check()
            self.load.stopped.wait(min(left, 0.2))

    def eventually(self, check, what, timeout=PATIENCE, left=None):
        """Waits for so long, or since what is `left` has changed last."""
        deadline, last = time.monotonic() + timeout, None
        while not (value := check()):
            self.load.check()
            if left and (now := left()) != last:
                deadline, last = time.monotonic() + timeout, now
            if time.monotonic() > deadline:
                raise AssertionError(f"gave up waiting for {what}: {self.picture()}")
            self.load.stopped.wait(0.3)
        return value

    def picture(self):
        out = ""
        for prefix in ("status", "health", "osd tree"):
            out += self.c(prefix, **({"detail": "detail"} if prefix == "health" else {})).decode() + "\n"
        pgs = self.c.pgs()
        return out + "\n".join(str(p) for p in pgs if p["state"] != "active+clean")

    def coded_pools(self):
        return {str(p["pool"]) for p in self.c.json("osd dump")["pools"] if p["type"] == 3} if CODED else set()

    def copies_left(self):
        pgmap = self.c.json("status")["pgmap"]
        return [pgmap.get(f"{what}_objects", 0) for what in ("degraded", "misplaced")]

    def clean(self, scrubs=False):
        s = self.c.json("status")
        states = s["pgmap"].get("pgs_by_state", [])
        o = s["osdmap"]
        # What scrubs have found is put right after that.
        allowed = {"active", "clean", "snaptrim", "snaptrim_wait", *(["inconsistent"] if self.rotten else []),
                   *(["scrubbing", "deep", "repair"] if scrubs else [])}
        return (len(s["quorum_names"]) == 3 and o["num_up_osds"] == o["num_in_osds"] == o["num_osds"] == len(self.hosts.osds())
                and sum(x["count"] for x in states) == s["pgmap"]["num_pgs"]
                and all({"active", "clean"} <= set(x["state_name"].split("+")) <= allowed for x in states))

    def progress(self, n=20):
        """Clients go on, all of them."""
        before = self.load.done()
        began = time.monotonic()
        slow = lambda: {w: d - before[w] for w, d in self.load.done().items() if w[0] in "wi" and d - before[w] < n}
        self.eventually(lambda: not slow(), f"clients to go on, {slow}")
        self.say(f"       all clients go on after {time.monotonic() - began:.1f} s")

    def survivors(self):
        """Nobody ends by himself."""
        for n, d in self.hosts.daemons.items():
            code = d.process.poll() if d.process else None
            assert code in (None, 0, -signal.SIGKILL, -signal.SIGTERM), f"{n} ended with {code}: {d.printed()[-3000:]}"
            assert "panicked at" not in d.printed(), f"{n}: {d.printed()[-3000:]}"

    # A round.

    def round(self):
        self.victim = self.rng.choice(list(self.hosts.names))
        self.say(f"round of {self.victim} (mon.{self.hosts.names[self.victim]}, {', '.join(d.name for d in self.hosts.on(self.victim, 'osd.'))})")
        for _ in range(self.rng.randrange(1, 5)):
            action = self.rng.choices(list(ACTIONS), [w if not ONLY or name in ONLY else 0 for name, (w, _) in ACTIONS.items()])[0]
            _, run = ACTIONS[action]
            told = run(self)
            self.counts[action] = self.counts.get(action, 0) + (told is not False)
            self.load.check()
        self.heal()
        self.verify()

    def heal(self):
        began = time.monotonic()
        self.survivors()
        self.hosts.heal()
        c = self.c
        for flag in ("nobackfill", "norebalance", "norecover", "noout", "nodown", "noup"):
            c("osd unset", key=flag)
        for i in self.hosts.osds():
            c("osd in", ids=[str(i)])
            c("osd reweight", id=i, weight=1.0)
            c("osd crush reweight", name=f"osd.{i}", weight=0.01)
            c("osd primary-affinity", id=str(i), weight=1.0)
        c("osd set-full-ratio", ratio=0.95)
        # A scrub of a whole OSD takes its time beside clients that use all there is; it ends when these rest.
        # So does what is copied to another OSD: it is given up when nothing is copied any more.
        self.eventually(lambda: self.clean(scrubs=self.rotten), "active+clean", left=self.copies_left)
        if self.rotten:
            self.mend()
        self.survivors()
        self.say(f"       healed after {time.monotonic() - began:.1f} s: {self.load.done()}")

    def mend(self):
        """Every group is read as a whole, and what is bad is made anew, so that the next loss finds all copies sound. Scrubs hold
        back for clients that use all there is, so after some time these rest."""
        began, rests = time.monotonic(), False
        stamps = lambda: {p["pgid"]: (p["last_deep_scrub_stamp"], p["state"]) for p in self.c.pgs("pgs")}
        before, asked, late = stamps(), {}, []

        def repaired():
            nonlocal rests
            now = stamps()
            late[:] = [p for p, (stamp, state) in now.items() if stamp <= before.get(p, ("",))[0] or "inconsistent" in state]
            for pgid in late:
                # A group that is divided, or led by another one meanwhile, forgets what it was asked for.
                if time.monotonic() - asked.get(pgid, 0) > 90:
                    asked[pgid] = time.monotonic()
                    # Groups merge meanwhile.
                    self.c.mgr("pg", "repair", pgid, absent=True)
            if late and not rests and time.monotonic() - began > MENDS_UNDER_LOAD:
                rests = True
                self.say(f"       clients rest, {len(late)} groups are yet to be repaired")
                self.load.pause(PATIENCE)
            return not late and self.clean()
        self.eventually(repaired, "every group to be repaired", left=lambda: len(late))
        self.rotten = False
        if rests:
            self.load.resume()

    def verify(self, all_hosts=False):
        began = time.monotonic()
        self.load.pause(PATIENCE)
        History.stale_allowed = False
        self.say(f"       quiet after {time.monotonic() - began:.1f} s")
        count = self.read_all("", self.load.workers)
        self.say(f"       read after {time.monotonic() - began:.1f} s")
        # What one host has is what all have: each in turn answers for all groups.
        for host in list(self.hosts.names) if all_hosts else [self.rng.choice(list(self.hosts.names))]:
            mine = {int(d.name[4:]) for d in self.hosts.on(host, "osd.")}
            for i in self.hosts.osds():
                self.c("osd primary-affinity", id=str(i), weight=1.0 if i in mine else 0.0)
            # Of shards, not all may lead: which of them does says nothing of the others.
            coded = self.coded_pools()
            self.eventually(lambda: self.clean() and all(
                p["acting_primary"] in mine for p in self.c.pgs() if p["pgid"].split(".")[0] not in coded), f"primaries on {host}")
            self.say(f"       {host} leads after {time.monotonic() - began:.1f} s")
            self.read_all(f" of {host}", [w for w in self.load.workers if w is not self.commander])
            self.say(f"       read after {time.monotonic() - began:.1f} s")
        for i in self.hosts.osds():
            self.c("osd primary-affinity", id=str(i), weight=1.0)
        for name in self.hosts.names.values() if all_hosts else [self.rng.choice("abc")]:
            host = next(h for h, n in self.hosts.names.items() if n == name)
            one = Admin(self.hosts.conf, {**self.c.options, "mon_host": f"[v2:{self.hosts.net[host].ip}:3300]"})
            self.commander.verify(f" by mon.{name}", one.run)
            one.close()
        self.load.check()
        History.stale_allowed = not self.leases
        self.load.resume()
        self.say(f"       {count} things verified, in {time.monotonic() - began:.1f} s")

    def read_all(self, how, workers):
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            return sum(threads.map(lambda w: w.verify(how), workers))

    def finish(self):
        self.load.pause(PATIENCE)
        self.load.stop()
        for image in self.images.values():
            image.close()
        self.c.close()
        self.hosts.stop()
        for name, d in self.hosts.daemons.items():
            assert d.process.poll() == 0, f"{name} did not end in order: {d.process.poll()}, {d.printed()[-2000:]}"
        for i, d in self.hosts.osds().items():
            r = subprocess.run([str(BINARY), "store", "fsck", "--deep", str(d.directory / f"osd.{i}" / "block")], capture_output=True, text=True)
            assert r.returncode == 0, f"osd.{i}: {r.stdout}{r.stderr}"

    # Actions. Each takes some seconds, and says False if there was nothing to do.

    def some_osds(self, most=2):
        running = [d for d in self.hosts.on(self.victim, "osd.") if d.running]
        return self.rng.sample(running, min(len(running), self.rng.randrange(1, most + 1)))

    def any_osd(self):
        return self.rng.choice(list(self.hosts.osds()))

    def kill_osd(self):
        some = self.some_osds()
        self.say(f"kill -9 {[d.name for d in some]}")
        for d in some:
            d.kill()
        self.after(some)
        return bool(some)

    def after(self, stopped):
        """Those are down for a while, or until the round's end."""
        if self.rng.random() < 0.3:
            self.progress()
        else:
            self.wait(self.rng.uniform(0, 8))
        if self.rng.random() < 0.7:
            self.say(f"start {[d.name for d in stopped]}")
            for d in stopped:
                d.spawn()
            if self.rng.random() < 0.5:
                for d in stopped:
                    d.wait_serving(timeout=PATIENCE)

    def stop_osd(self):
        some = self.some_osds()
        self.say(f"stop {[d.name for d in some]}")
        for d in some:
            # One that was started just now and does not serve yet simply ends.
            began = f"{d.name} serves." in d.printed()
            code = d.stop(timeout=PATIENCE)
            assert code == 0 or code == -signal.SIGTERM and not began, f"{d.name} did not stop in order, but with {code}: {d.printed()[-2000:]}"
        self.after(some)
        return bool(some)

    def flap_osd(self):
        some = self.some_osds(1)
        for d in some:
            for _ in range(self.rng.randrange(2, 6)):
                self.say(f"kill -9 {d.name} and start it")
                d.kill()
                d.spawn()
                self.wait(self.rng.uniform(0, 1.5))
        return bool(some)

    def hang_osd(self):
        return self.hang(self.some_osds())

    def hang(self, some):
        self.say(f"SIGSTOP {[d.name for d in some]}")
        for d in some:
            d.signal(signal.SIGSTOP)
        if self.rng.random() < 0.3:
            self.progress()
        else:
            self.wait(self.rng.uniform(0.2, 12))
        self.say(f"SIGCONT {[d.name for d in some]}")
        for d in some:
            d.signal(signal.SIGCONT)
        return bool(some)

    def kill_host(self):
        some = [d for d in self.hosts.on(self.victim) if d.running]
        self.say(f"kill -9 {[d.name for d in some]}")
        for d in some:
            d.kill()
        self.after(some)

    def hang_host(self):
        return self.hang([d for d in self.hosts.on(self.victim) if d.running])

    def leader(self):
        name = self.c.json("quorum_status")["quorum_leader_name"]
        return self.hosts[f"mon.{name}"]

    def kill_mon(self):
        """The victim's, or the leader, as that loses no data."""
        others = [d for h in self.hosts.names if h != self.victim for d in self.hosts.on(h, "mon.")]
        here = self.hosts.on(self.victim, "mon.")
        if not all(d.running for d in [*others, *here]):
            return False
        d = self.rng.choice([here[0], self.leader()])
        self.say(f"kill -9 {d.name}")
        d.kill()
        # Two of three are needed for everything that may come behind.
        self.wait(self.rng.uniform(0, 8))
        d.spawn()

    def hang_mon(self):
        if not all(d.running for n, d in self.hosts.daemons.items() if n.startswith("mon.")):
            return False
        return self.hang([self.rng.choice([self.hosts.on(self.victim, "mon.")[0], self.leader()])])

    def kill_mgr(self):
        d = self.rng.choice([self.hosts["mgr.x"], self.hosts["mgr.y"]])
        if not d.running:
            return False
        self.say(f"kill -9 {d.name}")
        d.kill()
        d.spawn()

    def partition(self):
        net, v, rng = self.hosts.net, self.victim, self.rng
        others = [h for h in self.hosts.names if h != v]
        other = rng.choice(others)
        kinds = {
            "from everybody": lambda: net.isolate(v),
            "from the other hosts, not from clients": lambda: net.isolate(v, spare=["client"]),
            "from clients": lambda: net.cut(v, "client"),
            f"from {other}": lambda: net.cut(v, other),
            "so that nobody hears it": lambda: net.mute(v),
            "so that it hears nobody": lambda: net.deafen(v),
            f"so that {other} does not hear it": lambda: net.drop(v, other),
            f"so that it does not hear {other}": lambda: net.drop(other, v),
        }
        kind = rng.choice(list(kinds))
        self.say(f"{v} is cut off {kind}")
        kinds[kind]()
        # Clients that cannot reach a host that the others reach must wait, as must those of OSDs that are cut off only from some.
        if kind == "from everybody" and rng.random() < 0.4:
            self.progress()
        else:
            self.wait(rng.uniform(0.5, 20))
        net.heal()
        self.say(f"{v} is reached again")

    def out(self):
        osds = [o["osd"] for o in self.c.json("osd dump")["osds"] if o["in"]]
        i = self.rng.choice(osds)
        if len(osds) < 5:
            return False
        self.say(f"osd out {i}")
        self.c("osd out", ids=[str(i)])
        self.wait(self.rng.uniform(0, 6))
        if self.rng.random() < 0.6:
            self.say(f"osd in {i}")
            self.c("osd in", ids=[str(i)])

    def reweight(self):
        i, weight = self.any_osd(), self.rng.choice([0.2, 0.5, 0.8, 1.0])
        self.say(f"osd reweight {i} {weight}")
        self.c("osd reweight", id=i, weight=weight)

    def crush_reweight(self):
        i, weight = self.any_osd(), self.rng.choice([0.002, 0.005, 0.02])
        self.say(f"osd crush reweight osd.{i} {weight}")
        self.c("osd crush reweight", name=f"osd.{i}", weight=weight)

    def affinity(self):
        i, weight = self.any_osd(), self.rng.choice([0.0, 0.3, 1.0])
        self.say(f"osd primary-affinity {i} {weight}")
        self.c("osd primary-affinity", id=str(i), weight=weight)

    def upmap(self):
        pgs = self.c.pgs()
        for pg in self.rng.sample(pgs, 3):
            if self.rng.random() < 0.3:
                self.say(f"osd rm-pg-upmap-items {pg['pgid']}")
                self.c("osd rm-pg-upmap-items", pgid=pg["pgid"])
                continue
            source = self.rng.choice(pg["up"])
            if source not in self.hosts.osds():
                continue
            there = [int(d.name[4:]) for d in self.hosts.on(self.hosts[f"osd.{source}"].host, "osd.")]
            to = [i for i in there if i not in pg["up"]]
            if to:
                self.say(f"osd pg-upmap-items {pg['pgid']} {source} {to[0]}")
                self.c.run(prefix="osd pg-upmap-items", pgid=pg["pgid"], id=[source, to[0]])

    def wrongly_down(self):
        i = int(self.rng.choice(self.hosts.on(self.victim, "osd.")).name[4:])
        self.say(f"osd down {i}")
        self.c("osd down", ids=[str(i)])
        self.wait(self.rng.uniform(0, 2))

    def flags(self):
        flag = self.rng.choice(["nobackfill", "norebalance", "norecover", "noout"])
        self.say(f"osd set {flag}")
        self.c("osd set", key=flag)
        self.wait(self.rng.uniform(0, 5))

    def full(self):
        """No room anywhere, as the map says: whoever writes waits."""
        self.say("osd set-full-ratio 0.0001")
        self.c("osd set-full-ratio", ratio=0.0001)
        self.wait(self.rng.uniform(0, 6))
        if self.rng.random() < 0.8:
            self.c("osd set-full-ratio", ratio=0.95)
            self.progress()

    def rot(self):
        """Blocks of an OSD's device change behind its back. The other copies must be sound, so nothing else is bad or lost."""
        if self.wiped or self.rotten or not self.load_is_clean():
            return False
        self.wiped = self.rotten = True
        d = self.rng.choice(self.hosts.on(self.victim, "osd."))
        assert d.stop(timeout=PATIENCE) == 0, f"{d.name} did not stop in order: {d.printed()[-2000:]}"
        device = d.directory / d.name / "block"
        dump = json.loads(siphon("store", "dump", device))
        # What the OSD keeps of maps has no other copy here.
        extents = [e for o in dump["objects"] if o["collection"] != "coll.0" for e in o["extents"]]
        bad = self.rng.sample(extents, min(len(extents), self.rng.randrange(1, 20)))
        with open(device, "r+b") as f:
            for e in bad:
                at = (e["physical_block"] + self.rng.randrange(e["blocks"])) * 4096 + self.rng.randrange(4096)
                f.seek(at)
                old = f.read(1)
                f.seek(at)
                f.write(bytes([old[0] ^ 1 << self.rng.randrange(8)]))
        self.say(f"{len(bad)} blocks of {d.name} go bad")
        d.spawn()
        self.wait(self.rng.uniform(0, 5))

    def bad_reads(self):
        """An OSD's device cannot read some of what clients and scrubs want. Other copies answer; it is mended in passing, or by `mend`."""
        if self.wiped or self.rotten or not self.load_is_clean():
            return False
        self.wiped = self.rotten = True
        d = self.rng.choice(self.hosts.on(self.victim, "osd."))
        one_in = self.rng.choice([3, 10, 50])
        self.say(f"one in {one_in} reads of {d.name}'s device fails")
        self.c("config set", who=d.name, name="osd_debug_device_read_errors", value=str(one_in))
        # What it has in memory it does not read.
        d.kill()
        d.spawn().wait_serving(timeout=PATIENCE)
        if self.rng.random() < 0.5:
            self.c.mgr("osd", "deep-scrub", d.name[4:])
        if self.rng.random() < 0.5:
            self.progress()
        else:
            self.wait(self.rng.uniform(1, 8))
        self.c("config rm", who=d.name, name="osd_debug_device_read_errors")
        self.say(f"all reads of {d.name} work again")

    def bad_writes(self):
        """A write of an OSD's device fails. The OSD says so and ends; what it has acknowledged is there when it is back."""
        some = self.some_osds(1)
        if not some or not self.load_is_clean():
            return False
        d = some[0]
        self.say(f"one in 50 writes of {d.name}'s device fails")
        self.c("config set", who=d.name, name="osd_debug_device_write_errors", value="50")
        self.eventually(lambda: not d.running, f"{d.name} to end")
        assert d.process.poll() not in (0, 101) and "device error: a write that fails for a test" in d.printed(), d.printed()[-2000:]
        assert "panicked at" not in d.printed(), d.printed()[-3000:]
        self.say(f"{d.name} has ended")
        self.c("config rm", who=d.name, name="osd_debug_device_write_errors")
        self.wait(self.rng.uniform(0, 8))
        d.spawn()

    def replace_osd(self):
        """Its disk is lost; a new one comes. Only when the others have everything."""
        if self.wiped or not self.load_is_clean():
            return False
        self.wiped = True
        d = self.rng.choice(self.hosts.on(self.victim, "osd."))
        self.say(f"{d.name} is lost, and purged")
        self.remove(d)
        if self.rng.random() < 0.5:
            self.wait(self.rng.uniform(0, 5))
        new = self.hosts.add_osd(self.victim).spawn()
        self.say(f"{new.name} is new")

    def load_is_clean(self):
        return self.clean() and all(d.running for d in self.hosts.daemons.values())

    def remove(self, d):
        if d.running:
            d.kill()
        i = int(d.name[4:])
        self.c("osd down", ids=[str(i)])
        self.c("osd purge-actual", id=i, yes_i_really_mean_it=True)
        del self.hosts.daemons[d.name]
        shutil.rmtree(d.directory / d.name, ignore_errors=True)

    def grow(self):
        if len(self.hosts.on(self.victim, "osd.")) > 2 or not self.hosts.on(self.victim, "mon.")[0].running:
            return False
        new = self.hosts.add_osd(self.victim).spawn()
        self.say(f"{new.name} is new on {self.victim}")

    def shrink(self):
        there = self.hosts.on(self.victim, "osd.")
        if len(there) < 3 or not self.load_is_clean():
            return False
        d = self.rng.choice(there)
        i = d.name[4:]
        self.say(f"osd out {i}, to be removed")
        self.c("osd out", ids=[i])
        self.eventually(lambda: all(p["state"].startswith("active+clean") and int(i) not in [*p["up"], *p["acting"]]
                                    for p in self.c.pgs()), f"osd.{i} to have nothing")
        self.remove(d)
        self.say(f"{d.name} is removed")

    def all_at_once(self):
        self.say("kill -9 everybody")
        for d in self.hosts.daemons.values():
            if d.running:
                d.kill()
        self.wait(self.rng.uniform(0, 2))
        for d in self.rng.sample(list(self.hosts.daemons.values()), len(self.hosts.daemons)):
            d.spawn()
        for d in self.hosts.daemons.values():
            d.wait_serving(timeout=PATIENCE)

    def pg_num(self):
        now = next(p["pg_num_target"] for p in self.c.json("osd dump")["pools"] if p["pool_name"] == "d")
        to = self.rng.choice([n for n in (8, 12, 16, 24, 32) if n != now])
        code, _, text = self.c.run(prefix="osd pool set", pool="d", var="pg_num", val=str(to))
        self.say(f"osd pool set d pg_num {to}, {now} now: {code} {text}")
        assert code in (0, -95), text
        return code == 0


ACTIONS = {
    "kill an OSD": (6, Thrasher.kill_osd),
    "stop an OSD": (3, Thrasher.stop_osd),
    "kill an OSD again and again": (2, Thrasher.flap_osd),
    "SIGSTOP of an OSD": (4, Thrasher.hang_osd),
    "kill a host": (3, Thrasher.kill_host),
    "SIGSTOP of a host": (2, Thrasher.hang_host),
    "kill a monitor": (3, Thrasher.kill_mon),
    "SIGSTOP of a monitor": (2, Thrasher.hang_mon),
    "kill a manager": (1, Thrasher.kill_mgr),
    "partition": (10, Thrasher.partition),
    "out and in": (4, Thrasher.out),
    "reweight": (3, Thrasher.reweight),
    "crush reweight": (3, Thrasher.crush_reweight),
    "primary affinity": (2, Thrasher.affinity),
    "upmap": (4, Thrasher.upmap),
    "down": (2, Thrasher.wrongly_down),
    "flags": (2, Thrasher.flags),
    "replace an OSD": (2, Thrasher.replace_osd),
    "blocks go bad": (3, Thrasher.rot),
    "bad reads": (2, Thrasher.bad_reads),
    "bad writes": (2, Thrasher.bad_writes),
    "full": (2, Thrasher.full),
    "add an OSD": (2, Thrasher.grow),
    "remove an OSD": (2, Thrasher.shrink),
    "everybody at once": (2, Thrasher.all_at_once),
    "pg_num": (4, Thrasher.pg_num),
}


def test_thrash():
    given = os.environ.get("SIPHON_THRASH_SEED")
    deadline = time.monotonic() + SECONDS
    # The short run takes the same way each time, so that it tells what a change has changed.
    first = int(given) if given else random.SystemRandom().randrange(1_000_000) if LONG else 51
    with hosts.cluster("siphon-thrash.", SETTINGS) as h:
        t = Thrasher(h, first)
        t.prepare()
        try:
            rounds = 0
            while time.monotonic() < deadline or rounds == 0:
                t.wiped = False
                t.round()
                rounds += 1
            t.verify(all_hosts=True)
            t.finish()
        except BaseException:
            t.load.stopped.set()
            t.say(f"seed {first} failed in round {rounds + 1}; SIPHON_THRASH_SEED={first} runs it again")
            for n, d in h.daemons.items():
                lines = [line for line in d.printed().splitlines() if "client.admin" not in line]
                print(f"--- {n}:\n" + "\n".join(lines[-15:]), file=sys.stderr)
            raise
        t.say(f"{rounds} rounds: {t.counts}; {History.stale} stale reads")
