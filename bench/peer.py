#!/usr/bin/env python3
"""Siphon beside a stock Ceph: same machine, same file system, same clients, in turn.

Starts a stock cluster from Debian's packages (one monitor, one mgr, three OSDs) and a Siphon cluster of
three OSDs, makes a pool of size 3 on each, and drives both with fio's rados engine and `rados bench`,
A B A B, so that a machine that gets slower hurts both. Prints IOPS, latency, server CPU per operation
(user + system time of all server processes), peak memory, the ratios, and what the bare work costs.

The peer is configured as well as it can be: tcmalloc preloaded (Debian builds Ceph without it), no debug
output, no insecure fallbacks, and Ceph's own SSD values for its background sleeps.
"""
import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HZ = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
TCMALLOC = "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4"
ENV = {**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
for unwanted in ("CEPH_ARGS", "CEPH_CONF", "PYTHONPATH"):
    ENV.pop(unwanted, None)


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
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HZ


def rss(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * PAGE


class Cluster:
    """What the two have in common: a ceph.conf and server processes."""

    def __init__(self, directory):
        self.dir = Path(directory)
        self.conf = self.dir / "ceph.conf"
        self.processes = []

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
        return set(states) == {"active+clean"} and s["osdmap"]["num_up_osds"] == 3

    def make_pool(self, pgs=64):
        self.ceph("osd", "pool", "create", "bench", str(pgs), str(pgs))
        self.ceph("osd", "pool", "application", "enable", "bench", "rados")
        wait("active+clean", self.clean)

    def stop(self):
        for p in reversed(self.processes):
            p.send_signal(signal.SIGTERM if self.name == "ceph" else signal.SIGINT)
        for p in self.processes:
            try:
                p.wait(60)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        self.processes = []


class Stock(Cluster):
    name = "ceph"

    def spawn(self, *argv, preload=None):
        env = dict(ENV)
        if preload and os.path.exists(preload):
            env["LD_PRELOAD"] = preload
        log = open(self.dir / "log" / f"{Path(argv[0]).name}-{argv[2]}.out", "wb")
        self.processes.append(subprocess.Popen([str(a) for a in argv], env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    def start(self):
        port = free_port()
        d = self.dir
        for sub in ("run", "log", "crash", "mon", "mgr"):
            (d / sub).mkdir(parents=True, exist_ok=True)
        fsid = str(uuid.uuid4())
        self.conf.write_text(f"""
[global]
fsid = {fsid}
mon_host = [v2:127.0.0.1:{port}]
mon_initial_members = a
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
mon_cluster_log_file = {d}/log/cluster.log
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
mon_data = {d}/mon
[mgr]
mgr_data = {d}/mgr
keyring = {d}/mgr/keyring
[osd]
osd_data = {d}/osd.$id
keyring = {d}/osd.$id/keyring
osd_objectstore = bluestore
bluestore_block_size = {20 << 30}
bluestore_block_create = true
osd_memory_target = 1610612736
crush_location = root=default host=peer
osd_recovery_sleep_hdd = 0
osd_snap_trim_sleep_hdd = 0
""")
        sh("ceph-authtool", "--create-keyring", d / "keyring", "--gen-key", "-n", "client.admin", "--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mds", "allow *", "--cap", "mgr", "allow *")
        sh("ceph-authtool", "--create-keyring", d / "mon.keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        sh("ceph-authtool", d / "mon.keyring", "--import-keyring", d / "keyring")
        sh("ceph-authtool", "--create-keyring", d / "mgr/keyring", "--gen-key", "-n", "mgr.x", "--cap", "mon", "allow profile mgr", "--cap", "osd", "allow *", "--cap", "mds", "allow *")
        sh("ceph-authtool", d / "mon.keyring", "--import-keyring", d / "mgr/keyring")
        sh("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{port}]", "--set-min-mon-release", "pacific", "--enable-all-features", d / "monmap")
        sh("ceph-mon", "-c", self.conf, "-i", "a", "--mkfs", "--monmap", d / "monmap", "--keyring", d / "mon.keyring")
        t0 = time.monotonic()
        self.spawn("ceph-mon", "-i", "a", "-c", self.conf, "-f")
        wait("the stock monitor", lambda: subprocess.run(["ceph", "-c", str(self.conf), "--connect-timeout", "5", "mon", "stat"], env=ENV, capture_output=True).returncode == 0)
        self.spawn("ceph-mgr", "-i", "x", "-c", self.conf, "-f")
        for i in range(3):
            o = d / f"osd.{i}"
            o.mkdir(exist_ok=True)
            u, key = str(uuid.uuid4()), sh("ceph-authtool", "--gen-print-key").strip()
            (d / "secret").write_text(json.dumps({"cephx_secret": key}))
            self.ceph("osd", "new", u, str(i), "-i", d / "secret")
            (o / "keyring").write_text(f"[osd.{i}]\n\tkey = {key}\n")
            sh("ceph-osd", "-c", self.conf, "-i", str(i), "--mkfs", "--osd-uuid", u)
            self.spawn("ceph-osd", "-i", str(i), "-c", self.conf, "-f", preload=TCMALLOC)
        self.make_pool()
        self.healthy_s = time.monotonic() - t0


class Siphon(Cluster):
    name = "siphon"

    def start(self):
        port = free_port()
        binary = ROOT / "target/release/siphon"
        self.dir.mkdir(parents=True, exist_ok=True)
        log = open(self.dir.parent / "siphon.log", "wb")
        t0 = time.monotonic()
        p = subprocess.Popen([str(binary), "up", "--data-dir", str(self.dir), "--osds", "3", "--bind", f"127.0.0.1:{port}", "--osd-size", "20G"], stdout=subprocess.PIPE, stderr=log, text=True, env=ENV)
        self.processes = [p]
        for line in p.stdout:
            if "healthy" in line.lower():
                break
        else:
            raise SystemExit(f"siphon did not become healthy: {Path(log.name).read_text()}")
        self.healthy_s = time.monotonic() - t0
        threading.Thread(target=lambda: p.stdout.read(), daemon=True).start()
        self.make_pool()


def measured(cluster, argv, seconds):
    """Runs a client and returns (stdout, server CPU seconds, client CPU seconds, peak RSS bytes)."""
    peak, done = [0], threading.Event()

    def watch():
        while not done.is_set():
            try:
                peak[0] = max(peak[0], sum(rss(p) for p in cluster.pids()))
            except FileNotFoundError:
                pass
            done.wait(0.2)

    before = sum(cpu_seconds(p) for p in cluster.pids())
    t = threading.Thread(target=watch)
    t.start()
    out = tempfile.TemporaryFile()
    proc = subprocess.Popen([str(a) for a in argv], stdout=out, stderr=subprocess.STDOUT, env={**ENV, "CEPH_CONF": str(cluster.conf)})
    killer = threading.Timer(seconds + 120, proc.kill)
    killer.start()
    _, status, usage = os.wait4(proc.pid, 0)
    proc.returncode = os.waitstatus_to_exitcode(status)
    killer.cancel()
    after = sum(cpu_seconds(p) for p in cluster.pids())
    done.set()
    t.join()
    out.seek(0)
    text = out.read().decode(errors="replace")
    if proc.returncode != 0:
        raise SystemExit(f"{cluster.name}: {' '.join(map(str, argv))}: exit {proc.returncode}\n{text[-3000:]}")
    return text, after - before, usage.ru_utime + usage.ru_stime, peak[0]


def fio(cluster, rw, bs, depth, seconds, size_mb):
    argv = ["fio", "--name=peer", "--ioengine=rados", "--clientname=admin", f"--conf={cluster.conf}", "--pool=bench", "--busy_poll=0", "--touch_objects=1",
            f"--rw={rw}", f"--bs={bs}", f"--iodepth={depth}", f"--size={size_mb}M", f"--nrfiles={max(1, size_mb // 4)}",
            "--file_service_type=random", "--randrepeat=0", "--output-format=json", "--percentile_list=50:95:99:99.9"]
    if seconds:
        argv += ["--time_based", f"--runtime={seconds}"]
    text, server, client, peak = measured(cluster, argv, seconds)
    job = json.loads(text[text.index("{"):])["jobs"][0]
    d = job["read" if "read" in rw else "write"]
    lat, pct = d["lat_ns"], d["clat_ns"].get("percentile", {})
    return dict(iops=d["iops"], mean=lat["mean"] / 1e3, p50=pct.get("50.000000", 0) / 1e3, p99=pct.get("99.000000", 0) / 1e3,
                p999=pct.get("99.900000", 0) / 1e3, cpu=server / d["total_ios"] * 1e6, client=client / d["total_ios"] * 1e6, rss=peak / 2**20)


def rados_bench(cluster, mode, size, threads, seconds):
    if mode == "write":
        # What the round before wrote would fill the disk after a few rounds.
        sh("rados", "-c", cluster.conf, "-p", "bench", "cleanup", "--run-name", f"b{size}")
    argv = ["rados", "-c", cluster.conf, "-p", "bench", "bench", str(seconds), mode, "-t", str(threads), "--run-name", f"b{size}"]
    if mode == "write":
        argv += ["-b", str(size), "--no-cleanup"]
    text, server, client, peak = measured(cluster, argv, seconds)
    get = lambda key: float(re.search(key + r"[^:\n]*:\s+([0-9.e+-]+)", text).group(1))
    ops = int(get(r"Total (?:writes|reads) made"))
    return dict(iops=ops / get("Total time run"), mean=get(r"Average Latency") * 1e6, p50=None, p99=None, p999=get(r"Max latency") * 1e6,
                cpu=server / max(ops, 1) * 1e6, client=client / max(ops, 1) * 1e6, rss=peak / 2**20)


def workloads(seconds, size_mb):
    yield "4 KiB random write, QD 1", lambda c: fio(c, "randwrite", "4k", 1, seconds, size_mb)
    yield "4 KiB random write, QD 32", lambda c: fio(c, "randwrite", "4k", 32, seconds, size_mb)
    yield "4 KiB random read, QD 1", lambda c: fio(c, "randread", "4k", 1, seconds, size_mb)
    yield "4 KiB random read, QD 32", lambda c: fio(c, "randread", "4k", 32, seconds, size_mb)
    yield "rados bench 4 KiB write, t 16", lambda c: rados_bench(c, "write", 4096, 16, seconds)
    yield "rados bench 4 KiB read, t 16", lambda c: rados_bench(c, "rand", 4096, 16, seconds)
    yield "rados bench 4 MiB write, t 16", lambda c: rados_bench(c, "write", 4 << 20, 16, seconds)
    yield "rados bench 4 MiB read, t 16", lambda c: rados_bench(c, "rand", 4 << 20, 16, seconds)


def floor(directory, seconds):
    """The same work without a storage system: echo over loopback TCP, and append + fdatasync."""
    source, binary = ROOT / "bench/floor.c", Path(directory) / "floor"
    sh("cc", "-O2", "-o", binary, source)
    print("\n| the floor | result |\n|---|---|")
    for name, args in [
        ("echo, 4 KiB request, 200 B reply, QD 32 (a write's bytes)", ["echo", "4400", "200", "32"]),
        ("echo, 300 B request, 4 KiB reply, QD 32 (a read's bytes)", ["echo", "300", "4300", "32"]),
        ("echo, 4 KiB request, QD 1", ["echo", "4400", "200", "1"]),
        ("append 4 KiB + fdatasync", ["log", Path(directory) / "floor.log", "4096"]),
        ("append 128 KiB + fdatasync (a batch of 32 writes)", ["log", Path(directory) / "floor.log", str(128 << 10)]),
    ]:
        r = subprocess.run([str(binary), *map(str, args), str(seconds)], capture_output=True, text=True)
        print(f"| {name} | {' / '.join((r.stdout + r.stderr).split(chr(10))).strip(' /')} |", flush=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--dir", default=None, help="where the clusters live (default: a new directory in /var/tmp); must be a disk, not tmpfs")
    a.add_argument("--seconds", type=int, default=10, help="length of each run")
    a.add_argument("--rounds", type=int, default=3, help="how often A and B take turns")
    a.add_argument("--size", type=int, default=1024, help="MiB of objects for fio")
    a.add_argument("--only", choices=["ceph", "siphon"], help="run one side alone")
    a.add_argument("--tests", default="", help="only tests whose name contains this")
    a.add_argument("--json", help="also write all figures to this file")
    a.add_argument("--no-floor", action="store_true")
    o = a.parse_args()
    base = Path(o.dir or tempfile.mkdtemp(prefix="siphon-peer.", dir="/var/tmp"))
    base.mkdir(parents=True, exist_ok=True)
    clusters = [k(base / k.name) for k in (Stock, Siphon) if o.only in (None, k.name)]
    try:
        for c in clusters:
            c.start()
            print(f"{c.name}: healthy and pool ready after {c.healthy_s:.1f} s, {sum(rss(p) for p in c.pids()) / 2**20:.0f} MiB resident at rest", flush=True)
        for c in clusters:
            fio(c, "write", "4m", 8, 0, o.size)
        results = {}
        for name, test in workloads(o.seconds, o.size):
            if o.tests not in name:
                continue
            for _ in range(o.rounds):
                for c in clusters:
                    r = test(c)
                    results.setdefault(name, {}).setdefault(c.name, []).append(r)
                    print(f"  {name}: {c.name} {r['iops']:.0f} IOPS, {r['cpu']:.0f} us CPU/op, mean {r['mean']:.0f} us", file=sys.stderr, flush=True)
        print("\n| test | system | IOPS | mean us | p50 us | p99 us | p99.9 us | server CPU us/op | client CPU us/op | peak RSS MiB |\n|---|---|---|---|---|---|---|---|---|---|")
        cell = lambda v: "-" if v is None else f"{v:.0f}"
        for name, by in results.items():
            m = {n: {k: (statistics.median(x[k] for x in rs) if rs[0][k] is not None else None) for k in rs[0]} for n, rs in by.items()}
            for n, r in m.items():
                print(f"| {name} | {n} | " + " | ".join(cell(r[k]) for k in ("iops", "mean", "p50", "p99", "p999", "cpu", "client", "rss")) + " |")
            if len(m) == 2:
                c, s = m["ceph"], m["siphon"]
                print(f"| {name} | **ratio** | {s['iops'] / c['iops']:.2f} x | {s['mean'] / c['mean']:.2f} x | | {s['p99'] / c['p99']:.2f} x | | 1 / {c['cpu'] / max(s['cpu'], 1e-9):.1f} | | |" if c["p99"] else
                      f"| {name} | **ratio** | {s['iops'] / c['iops']:.2f} x | {s['mean'] / c['mean']:.2f} x | | | | 1 / {c['cpu'] / max(s['cpu'], 1e-9):.1f} | | |")
        if not o.no_floor:
            floor(base, min(o.seconds, 5))
        if o.json:
            Path(o.json).write_text(json.dumps(results, indent=1))
    finally:
        for c in clusters:
            c.stop()
        if not o.dir:
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
