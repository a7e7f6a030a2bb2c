"""Clusters to compare: a stock Ceph from Debian's packages and Siphon, each with three OSDs (or as many as one
says) in processes of this machine. The stock one is configured as well as it can be: tcmalloc preloaded (Debian builds Ceph
without it), no debug output, no insecure fallbacks, and Ceph's own SSD values for its background sleeps.

SIPHON_BIN names another binary than the release build of this checkout.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BINARY = Path(os.environ.get("SIPHON_BIN", ROOT / "target/dist/siphon"))
PAGE = os.sysconf("SC_PAGE_SIZE")
TCMALLOC = "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4"
ENV = {**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
# The kernel says of many virtual disks that they rotate, and a stock OSD believes it. These are Ceph's values for flash where recovery and
# deletion would only wait.
FLASH = {"osd_recovery_sleep_hybrid": 0, "osd_delete_sleep_hdd": 1, "osd_recovery_max_active_hdd": 10, "osd_mclock_cost_per_io_usec_hdd": 50,
         "osd_mclock_cost_per_byte_usec_hdd": 0.011}
for unwanted in ("CEPH_ARGS", "CEPH_CONF", "PYTHONPATH"):
    ENV.pop(unwanted, None)


def bounded(iops):
    """Options for Siphon's OSDs that are to do so many writes of 4 KiB each second, less than the machine could."""
    return {"osd_mclock_profile": "custom", "osd_mclock_max_capacity_iops_ssd": iops, "osd_mclock_scheduler_client_lim": 1}


def sh(*argv, **kw):
    r = subprocess.run([str(a) for a in argv], capture_output=True, text=True, env=ENV, **kw)
    if r.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, argv))}: exit {r.returncode}\n{r.stdout}{r.stderr}")
    return r.stdout


def wait(what, check, seconds=120):
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise SystemExit(f"gave up waiting for {what}")
        time.sleep(0.1)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def cpu_seconds(pid):
    """User and system time of all threads of a process, ended ones too. The clock of another process has
    nanoseconds where /proc/PID/stat has ticks of 10 ms: short runs need them."""
    return time.clock_gettime((~pid << 3) | 2)


def rss(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * PAGE


def need_space(directory, clusters):
    """The OSDs' files are sparse, but both systems go on over the device before they use freed places again:
    a long benchmark fills the files."""
    need = sum(c.osds * c.osd_gb for c in clusters) + 2
    free = shutil.disk_usage(directory).free >> 30
    if free < need:
        raise SystemExit(f"{directory} has {free} GiB free, and the clusters may take {need} GiB; --osd-size makes them smaller")


class Cluster:
    """What the two have in common: a ceph.conf and server processes. `options` are for the OSDs."""

    processes = ()
    pgs = 64

    def __init__(self, directory, options=(), osd_gb=20, osds=3):
        self.dir = Path(directory)
        self.osd_gb, self.osds = osd_gb, osds
        self.conf = self.dir / "ceph.conf"
        self.options = dict(options)

    def pids(self):
        return [p.pid for p in self.processes]

    def ceph(self, *args):
        return sh("ceph", "-c", self.conf, *args)

    def clean(self):
        try:
            s = json.loads(self.ceph("--connect-timeout", "10", "status", "-f", "json"))
        except SystemExit:
            return False
        states = {x["state_name"]: x["count"] for x in s["pgmap"].get("pgs_by_state", [])}
        return set(states) == {"active+clean"} and s["osdmap"]["num_up_osds"] == self.osds

    def make_pool(self, name="bench", pgs=None):
        pgs = str(pgs or self.pgs)
        self.ceph("osd", "pool", "create", name, pgs, pgs)
        self.ceph("osd", "pool", "application", "enable", name, "rados")
        wait("active+clean", self.clean)

    def client_conf(self, **options):
        """A ceph.conf for clients with these options."""
        path = self.dir / "client.conf"
        lines = "".join(f"{k} = {v}\n" for k, v in options.items())
        # Clients that start may be reading it.
        new = self.dir / "client.conf.new"
        new.write_text(f"{self.conf.read_text().rstrip()}\n\n[client]\n{lines}")
        new.rename(path)
        return path

    def stop(self):
        processes = list(self.processes)
        for p in reversed(processes):
            p.send_signal(signal.SIGTERM if self.name == "ceph" else signal.SIGINT)
        for p in processes:
            try:
                p.wait(60)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()


class Daemon:
    """One server process, which can be killed, stopped and started again. What it prints goes to a file."""

    def __init__(self, name, argv, log, preload=None):
        self.name, self.argv, self.log = name, [str(a) for a in argv], Path(log)
        self.env = {**ENV, "LD_PRELOAD": preload} if preload and os.path.exists(preload) else ENV
        self.process = None

    def spawn(self):
        """Starts it, and does not wait until it serves."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.argv, env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        return self

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """SIGKILL; returns when the process is gone."""
        self.process.kill()
        self.process.wait()

    def stop(self, timeout=60):
        """SIGTERM, and SIGKILL if that does not end it; its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode


class Stock(Cluster):
    """With one monitor and one host, or with as many as one says. Each daemon has a name, `mon.a`, `mgr.x` or `osd.0`."""

    name = "ceph"

    def __init__(self, directory, options=(), osd_gb=20, osds=3, mons=1, hosts=1, pgs=64):
        super().__init__(directory, options, osd_gb, osds)
        self.mons, self.hosts, self.pgs = "abcdefg"[:mons], hosts, pgs
        self.daemons = {}

    def __getitem__(self, name):
        return self.daemons[name]

    @property
    def processes(self):
        """Those that run, in the order in which they were started first."""
        return [d.process for d in self.daemons.values() if d.running]

    def spawn(self, name, preload=None):
        kind, _, ident = name.partition(".")
        argv = [f"ceph-{kind}", "-i", ident, "-c", self.conf, "-f"]
        self.daemons[name] = Daemon(name, argv, self.dir / "log" / f"{name}.out", preload).spawn()

    def quorum(self):
        """Whether all monitors are in it."""
        argv = ["ceph", "-c", str(self.conf), "--connect-timeout", "5", "quorum_status", "-f", "json"]
        r = subprocess.run(argv, env=ENV, capture_output=True, text=True)
        return r.returncode == 0 and sorted(json.loads(r.stdout)["quorum_names"]) == list(self.mons)

    def start(self):
        ports = {m: free_port() for m in self.mons}
        port = ports["a"]
        d = self.dir
        for sub in ("run", "log", "crash", "mgr", *(f"mon.{m}" for m in self.mons)):
            (d / sub).mkdir(parents=True, exist_ok=True)
        fsid = str(uuid.uuid4())
        addresses = {m: f"[v2:127.0.0.1:{p}]" for m, p in ports.items()}
        self.conf.write_text(f"""
[global]
fsid = {fsid}
mon_host = {",".join(addresses.values())}
mon_initial_members = {", ".join(self.mons)}
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
ms_bind_msgr1 = false
ms_bind_port_min = {port + 11}
ms_bind_port_max = {port + 500}
ms_cluster_mode = crc
ms_service_mode = crc secure
ms_client_mode = crc
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
run_dir = {d}/run
admin_socket = {d}/run/$name.asok
log_file = {d}/log/$name.log
mon_cluster_log_file = {d}/log/cluster.$id.log
crash_dir = {d}/crash
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_max_pg_per_osd = 2000
mon_allow_pool_delete = true
mon_data_avail_warn = 5
mon_data_avail_crit = 2
keyring = {d}/keyring
[client]
admin_socket =
[mon]
mon_data = {d}/mon.$id
[mgr]
mgr_data = {d}/mgr
keyring = {d}/mgr/keyring
[osd]
osd_data = {d}/osd.$id
keyring = {d}/osd.$id/keyring
osd_objectstore = bluestore
bluestore_block_size = {self.osd_gb << 30}
bluestore_block_create = true
osd_memory_target = 1610612736
osd_recovery_sleep_hdd = 0
osd_snap_trim_sleep_hdd = 0
""" + "".join(f"{k} = {v}\n" for k, v in self.options.items())
            + "".join(f"[osd.{i}]\ncrush_location = root=default host=peer{i % self.hosts if self.hosts > 1 else ''}\n" for i in range(self.osds)))
        sh("ceph-authtool", "--create-keyring", d / "keyring", "--gen-key", "-n", "client.admin", "--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mds", "allow *", "--cap", "mgr", "allow *")
        sh("ceph-authtool", "--create-keyring", d / "mon.keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        sh("ceph-authtool", d / "mon.keyring", "--import-keyring", d / "keyring")
        sh("ceph-authtool", "--create-keyring", d / "mgr/keyring", "--gen-key", "-n", "mgr.x", "--cap", "mon", "allow profile mgr", "--cap", "osd", "allow *", "--cap", "mds", "allow *")
        sh("ceph-authtool", d / "mon.keyring", "--import-keyring", d / "mgr/keyring")
        sh("monmaptool", "--create", "--fsid", fsid, *(x for m, at in addresses.items() for x in ("--addv", m, at)),
           "--set-min-mon-release", "pacific", "--enable-all-features", d / "monmap")
        for m in self.mons:
            sh("ceph-mon", "-c", self.conf, "-i", m, "--mkfs", "--monmap", d / "monmap", "--keyring", d / "mon.keyring")
        t0 = time.monotonic()
        for m in self.mons:
            self.spawn(f"mon.{m}")
        wait("the stock monitors", self.quorum)
        self.spawn("mgr.x")
        for i in range(self.osds):
            o = d / f"osd.{i}"
            o.mkdir(exist_ok=True)
            u, key = str(uuid.uuid4()), sh("ceph-authtool", "--gen-print-key").strip()
            (d / "secret").write_text(json.dumps({"cephx_secret": key}))
            self.ceph("osd", "new", u, str(i), "-i", d / "secret")
            (o / "keyring").write_text(f"[osd.{i}]\n\tkey = {key}\n")
            sh("ceph-osd", "-c", self.conf, "-i", str(i), "--mkfs", "--osd-uuid", u)
            self.spawn(f"osd.{i}", preload=TCMALLOC)
        self.make_pool()
        self.healthy_s = time.monotonic() - t0


class Siphon(Cluster):
    name = "siphon"
    binary = BINARY

    def start(self):
        self.port = free_port()
        self.dir.mkdir(parents=True, exist_ok=True)
        t0 = time.monotonic()
        self.up()
        if self.options:
            for k, v in self.options.items():
                self.ceph("config", "set", "osd", k, str(v))
            # Some are read only when an OSD starts.
            self.stop()
            self.up()
        self.healthy_s = time.monotonic() - t0
        self.make_pool()

    def up(self):
        log = open(self.dir.parent / f"{self.dir.name}.log", "ab")
        p = subprocess.Popen([str(self.binary), "up", "--data-dir", str(self.dir), "--osds", str(self.osds), "--bind", f"127.0.0.1:{self.port}", "--osd-size", f"{self.osd_gb}G"],
                             stdout=subprocess.PIPE, stderr=log, text=True, env=ENV)
        self.processes = [p]
        for line in p.stdout:
            if "healthy" in line.lower():
                # As the process says itself: "..., after 0.31 s."
                self.took = float(line.rsplit("after", 1)[1].split()[0])
                break
        else:
            raise SystemExit(f"siphon did not become healthy: {Path(log.name).read_text()}")
        threading.Thread(target=lambda: p.stdout.read(), daemon=True).start()

    def stop(self):
        super().stop()
        self.processes = ()
