"""The clusters of a study: ones that somebody runs and names by their ceph.conf, and ones that it starts itself."""
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from clusters import BINARY, ENV, FLASH, Siphon, Stock, cpu_seconds, wait

from .ceph import Ceph, CommandFailed
from .plan import is_of_profiles, only_siphon, settings


class Skip(Exception):
    """A cell that has no meaning on this cluster, for a reason that stays."""


class Target:
    """A cluster under study. All that it changes, it first writes down to be put back."""

    poll = 0.25            # seconds between two looks

    def __init__(self, name, undo, prefix, log=print):
        self.name, self.undo, self.prefix, self.log = name, undo, prefix, log
        self.ceph = None
        self.stage = {}        # what has been prepared for all cells: pools, images
        self.own = False       # it was started here, and goes away

    # -- life

    def start(self):
        self.settle_settings()

    def stop(self):
        if self.ceph is not None:
            self.ceph.close()

    def pids(self):
        return []

    def cpu(self):
        """Processor time of all its server processes here, or None if they are elsewhere."""
        pids = self.pids()
        try:
            return sum(cpu_seconds(p) for p in pids) if pids else None
        except OSError:
            return None

    @property
    def conf(self):
        return self.ceph.conf

    def is_siphon(self):
        return self.ceph.is_siphon()

    def settle_settings(self):
        """Statistics each second, no scrubs by the way; deleting pools is allowed, or nothing could be cleaned up."""
        self.set_option("mon", "mon_allow_pool_delete", "true")
        for who in ("mgr", "osd"):
            self.set_option(who, "mgr_stats_period", "1")
        for flag in ("noscrub", "nodeep-scrub"):
            self.set_flag(flag)

    # -- changes, each with its way back

    def set_option(self, who, option, value, temporary=False):
        """`temporary` gives what puts it back; else that is done in the end."""
        old = self.ceph.setting(who, option)
        if old == value:
            return None
        # An option that this run set before goes back to what it was before the run.
        known = next((e for e in self.undo.outstanding(self.name) if e["kind"] == "option" and e["what"]["who"] == who and e["what"]["option"] == option), None)
        entry = known["id"] if known else self.undo.push(self.name, "option", who=who, option=option, value=old)
        self.ceph.mon("config set", who=who, name=option, value=value)
        return entry if temporary and not known else None

    def set_flag(self, flag):
        if flag not in self.ceph.flags():
            entry = self.undo.push(self.name, "flag", flag=flag)
            self.ceph.mon("osd set", key=flag)
            return entry
        return None

    def unset_flag(self, flag):
        self.ceph.mon("osd unset", key=flag)
        for e in self.undo.outstanding(self.name):
            if e["kind"] == "flag" and e["what"]["flag"] == flag:
                self.undo.done(e["id"])

    def make_pool(self, what, pgs, application="rados", size=None):
        name = f"{self.prefix}-{what}"
        self.undo.push(self.name, "pool", pool=name)
        if name not in self.ceph.pools():
            self.ceph.mon("osd pool create", pool=name, pg_num=pgs, pgp_num=pgs)
            if size:
                self.ceph.mon("osd pool set", pool=name, var="size", val=str(size))
            try:
                self.ceph.mon("osd pool set", pool=name, var="pg_autoscale_mode", val="off")
            except CommandFailed:
                pass    # There is no autoscaler then.
            self.ceph.mon("osd pool application enable", pool=name, app=application)
        return name

    def drop_pool(self, name):
        if name in self.ceph.pools():
            self.ceph.mon("osd pool delete", pool=name, pool2=name, yes_i_really_really_mean_it=True)
        for e in self.undo.outstanding(self.name):
            if e["kind"] == "pool" and e["what"]["pool"] == name:
                self.undo.done(e["id"])

    def osd_out(self, osd):
        entry = self.undo.push(self.name, "out", osd=osd)
        self.ceph.mon("osd out", ids=[str(osd)])
        return entry

    def promise(self, pool, floor):
        """A floor of operations a second for a pool; Siphon only."""
        self.undo.push(self.name, "promise", selector=pool)
        self.qos("set", pool, "--floor-iops", str(int(floor)))

    def qos(self, *args):
        r = subprocess.run([str(BINARY), "qos", "-c", str(self.conf), *args], capture_output=True, text=True, env=ENV, timeout=120)
        if r.returncode:
            raise CommandFailed(f"siphon qos {' '.join(args)}", r.returncode, r.stdout + r.stderr)
        return r.stdout

    def put_back(self, entry):
        kind, what = entry["kind"], entry["what"]
        if kind == "option":
            if what["value"] is None:
                self.ceph.mon("config rm", who=what["who"], name=what["option"])
            else:
                self.ceph.mon("config set", who=what["who"], name=what["option"], value=what["value"])
        elif kind == "flag":
            self.ceph.mon("osd unset", key=what["flag"])
        elif kind == "pool":
            if what["pool"] in self.ceph.pools():
                self.ceph.mon("osd pool delete", pool=what["pool"], pool2=what["pool"], yes_i_really_really_mean_it=True)
        elif kind == "out":
            self.ceph.mon("osd in", ids=[str(what["osd"])])
        elif kind == "promise":
            self.qos("rm", what["selector"])
        elif kind == "queue":
            # Written down before the option was set, so the option has been put back by now.
            if any(self.ceph.running(osd, "osd_op_queue") != what["value"] for osd, (up, _) in self.ceph.osds().items() if up):
                self.restart_osds()
        else:
            raise ValueError(f"unknown change {kind}")
        self.undo.done(entry["id"])

    def clean_up(self, keep=0):
        """Puts back all that was changed since entry `keep`, the newest first. What cannot be put back stays written
        down, and is said."""
        if self.own and keep == 0:
            self.undo.forget(self.name)
            return []
        failed = []
        for entry in self.undo.outstanding(self.name):
            if entry["id"] >= keep:
                try:
                    self.put_back(entry)
                except (CommandFailed, Skip, TimeoutError, SystemExit, OSError, subprocess.SubprocessError) as e:
                    failed.append(f"{self.name}: {entry['kind']} {entry['what']}: {e}")
        return failed

    # -- schedulers

    def restart_osds(self):
        raise Skip("osd_op_queue is read when an OSD starts, and nothing was said that restarts them (--restart-osds)")

    def set_profile(self, profile, custom=None):
        """Makes the OSDs use it, and gives the settings that then hold in one of them. `custom` are the options of that profile."""
        siphon = self.is_siphon()
        if only_siphon(profile) and not siphon:
            raise Skip(f"a stock cluster has no {profile}")
        wanted = settings(profile, siphon, custom)
        up = [osd for osd, (is_up, _) in self.ceph.osds().items() if is_up]
        if not any(e["kind"] == "queue" for e in self.undo.outstanding(self.name)):
            self.undo.push(self.name, "queue", value=self.ceph.running(up[0], "osd_op_queue"))
        # What another profile needed, and this one does not say.
        for e in self.undo.outstanding(self.name):
            if e["kind"] == "option" and is_of_profiles(e["what"]["option"]) and e["what"]["option"] not in wanted:
                self.put_back(e)
        # What becomes less goes first: reservations must fit together at any time.
        def rises(option):
            try:
                return float(wanted[option]) - float(self.ceph.setting("osd", option) or 0)
            except ValueError:
                return 0.0
        for option in sorted(wanted, key=rises):
            self.set_option("osd", option, wanted[option])
        if any(self.ceph.running(osd, "osd_op_queue") != wanted["osd_op_queue"] for osd in up):
            self.restart_osds()
            self.ceph.close()
        self.until(f"{profile} in all OSDs", lambda: all(self.ceph.running(osd, option) == value for osd in up for option, value in wanted.items()), 60)
        names = ("mclock", "osd_op_queue", "osd_recovery", "osd_max_backfills", "snap_trim", "osd_max_trimming")
        shown = self.ceph.osd(up[0], "config show")
        return {k: v for k, v in shown.items() if any(n in k for n in names)} if isinstance(shown, dict) else {}

    # -- waiting

    def until(self, what, check, limit):
        end = time.monotonic() + limit
        while True:
            try:
                if check():
                    return
            except CommandFailed:
                pass    # Daemons that start refuse some.
            if time.monotonic() > end:
                raise TimeoutError(f"{self.name}: gave up waiting for {what} after {limit:.0f} s; groups: {self.ceph.states()}")
            time.sleep(self.poll)

    def clean(self):
        status = self.ceph.status()
        states = {s["state_name"]: s["count"] for s in status["pgmap"].get("pgs_by_state", [])}
        wanted = sum(1 for _, (_, is_in) in self.ceph.osds().items() if is_in)
        return set(states) <= {"active+clean"} and status["osdmap"]["num_up_osds"] >= wanted

    def settle(self, limit):
        """Groups are clean, also after the servers had time to say otherwise."""
        time.sleep(1.5)
        self.until("active+clean", self.clean, limit)


class External(Target):
    """A cluster that somebody runs."""

    def __init__(self, name, undo, prefix, conf, pids=(), restart=None, log=print):
        super().__init__(name, undo, prefix, log)
        self.ceph, self.given, self.restart = Ceph(Path(conf).resolve()), list(pids), restart

    def pids(self):
        return self.given

    def restart_osds(self):
        if not self.restart:
            super().restart_osds()
        for osd in sorted(self.ceph.osds()):
            argv = [a.replace("{id}", str(osd)) for a in shlex.split(self.restart)]
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
            self.until("active+clean after a restart", self.clean, 900)


class Started(Target):
    """A cluster of this machine's that lives as long as the study."""

    def __init__(self, name, undo, prefix, cluster, log):
        super().__init__(name, undo, prefix, log)
        self.own, self.cluster = True, cluster

    def start(self):
        self.cluster.start()
        self.ceph = Ceph(self.cluster.conf)
        super().start()

    def stop(self):
        super().stop()
        self.cluster.stop()

    def pids(self):
        return self.cluster.pids()


class StartedStock(Started):
    """A stock cluster with as many OSDs, on files, all on this machine. Rotating or not is what the kernel says of the
    disk; where it is wrong (virtual ones), a stock cluster would only sleep: it gets its own values for flash."""

    OPTIONS = {**FLASH, "osd_max_markdown_count": 1000}
    # Seconds that restarted OSDs have until they serve, the first time and the second. One of 16.2 may stand still for ever after it
    # has measured what its device can do and told the monitors; the second time it knows that.
    PATIENCE = (90, 180)

    def __init__(self, name, undo, prefix, directory, osds, osd_gb, options=(), log=print):
        super().__init__(name, undo, prefix, Stock(directory, {**self.OPTIONS, **dict(options)}, osd_gb, osds), log)

    def restart_osds(self):
        osds = [self.cluster[f"osd.{i}"] for i in range(self.cluster.osds)]
        for patience in self.PATIENCE:
            for d in osds:
                d.process.terminate()
            for d in osds:
                try:
                    d.process.wait(30)
                except subprocess.TimeoutExpired:
                    d.kill()
            for d in osds:
                d.spawn()
            try:
                return self.until("all OSDs after a restart", self.cluster.clean, patience)
            except TimeoutError as e:
                failed = e
                self.log(f"    {e}")
        raise failed


class StartedSiphon(Started):
    """A Siphon cluster in one process of this machine."""

    def __init__(self, name, undo, prefix, directory, osds, osd_gb, options=(), log=print):
        super().__init__(name, undo, prefix, Siphon(directory, options, osd_gb, osds), log)

    def restart_osds(self):
        self.ceph.close()
        self.cluster.stop()
        self.cluster.up()


def parse(spec):
    """`siphon` and `ceph` are started; `NAME=CONF` is there."""
    name, _, conf = spec.partition("=")
    if not conf and name not in ("siphon", "ceph"):
        raise SystemExit(f"--cluster {spec}: `siphon`, `ceph`, or NAME=/path/to/ceph.conf")
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise SystemExit(f"--cluster {spec}: names have letters, digits and -_.")
    if conf and not os.path.exists(conf):
        raise SystemExit(f"--cluster {spec}: there is no {conf}")
    return {"name": name, "conf": conf or None, "kind": "given" if conf else name}


def make(spec, undo, manifest, work, log):
    o = manifest["options"]
    options = [x.split(":", 1)[1].split("=", 1) for x in o["option"] if x.split(":", 1)[0] == spec["name"]]
    if spec["conf"]:
        return External(spec["name"], undo, manifest["prefix"], spec["conf"], o["pids"], o["restart_osds"], log)
    kind = StartedStock if spec["kind"] == "ceph" else StartedSiphon
    return kind(spec["name"], undo, manifest["prefix"], Path(work) / spec["name"], o["osds"], o["osd_size"], options, log)


def say(*what):
    print(*what, file=sys.stderr, flush=True)
