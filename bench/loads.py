"""Clients as load generators: what they measured, and what they cost the servers meanwhile."""
import json
import os
import re
import statistics
import subprocess
import tempfile
import threading

from clusters import ENV, cpu_seconds, rss, sh


def measured(cluster, argv, seconds, conf=None):
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
    proc = subprocess.Popen([str(a) for a in argv], stdout=out, stderr=subprocess.STDOUT, env={**ENV, "CEPH_CONF": str(conf or cluster.conf)})
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


def fio(cluster, rw, bs, depth, seconds, size_mb, pool="bench", extra=()):
    """fio's rados engine on objects. Of two directions the latencies are those of reads, and the CPU is that of both."""
    argv = ["fio", "--name=peer", "--ioengine=rados", "--clientname=admin", f"--conf={cluster.conf}", f"--pool={pool}", "--busy_poll=0", "--touch_objects=1",
            f"--rw={rw}", f"--bs={bs}", f"--iodepth={depth}", f"--size={size_mb}M", f"--nrfiles={max(1, size_mb // 4)}",
            "--file_service_type=random", "--randrepeat=0", "--output-format=json", "--percentile_list=50:95:99:99.9", *extra]
    if seconds:
        argv += ["--time_based", f"--runtime={seconds}"]
    text, server, client, peak = measured(cluster, argv, seconds)
    job = json.loads(text[text.index("{"):])["jobs"][0]
    ops = sum(job[d]["total_ios"] for d in ("read", "write"))
    return row(job["write" if "write" in rw else "read"], server, client, peak, ops)


def row(d, server, client, peak, ops=None):
    """One direction of a fio job. `ops` is what the CPU is divided by, if not the operations of this direction."""
    lat, pct = d["lat_ns"], d["clat_ns"].get("percentile", {})
    ops = max(ops or d["total_ios"], 1)
    return dict(iops=d["iops"], mean=lat["mean"] / 1e3, p50=pct.get("50.000000", 0) / 1e3, p99=pct.get("99.000000", 0) / 1e3,
                p999=pct.get("99.900000", 0) / 1e3, cpu=server / ops * 1e6, client=client / ops * 1e6, rss=peak / 2**20, ops=ops)


def fio_rbd(cluster, image, rw, bs, depth, size_mb, seconds=0, count=0, extra=()):
    """fio's rbd engine on one image: for `seconds`, or `count` operations, or the whole image once. The client
    caches nothing. Returns rows by direction, `read` and `write`; of two directions the CPU is that of both."""
    argv = ["fio", "--name=rbd", "--ioengine=rbd", "--clientname=admin", "--pool=bench", f"--rbdname={image}", "--busy_poll=0", f"--rw={rw}", f"--bs={bs}",
            f"--iodepth={depth}", f"--size={size_mb}M", "--randrepeat=0", "--output-format=json", "--percentile_list=50:95:99:99.9", *extra]
    if seconds:
        argv += ["--time_based", f"--runtime={seconds}"]
    if count:
        argv += [f"--number_ios={count}"]
    text, server, client, peak = measured(cluster, argv, seconds, cluster.client_conf(rbd_cache="false"))
    job = json.loads(text[text.index("{"):])["jobs"][0]
    if job["error"]:
        raise SystemExit(f"{cluster.name}: {' '.join(argv)}: error {job['error']}")
    ops = sum(job[d]["total_ios"] for d in ("read", "write"))
    return {d: row(job[d], server, client, peak, ops) for d in ("read", "write") if job[d]["total_ios"]}


def rados_bench(cluster, mode, size, threads, seconds, pool="bench"):
    if mode == "write":
        # What the round before wrote would fill the disk after a few rounds.
        sh("rados", "-c", cluster.conf, "-p", pool, "cleanup", "--run-name", f"b{size}")
    argv = ["rados", "-c", cluster.conf, "-p", pool, "bench", str(seconds), mode, "-t", str(threads), "--run-name", f"b{size}"]
    if mode == "write":
        argv += ["-b", str(size), "--no-cleanup"]
    text, server, client, peak = measured(cluster, argv, seconds)
    get = lambda key: float(re.search(key + r"[^:\n]*:\s+([0-9.e+-]+)", text).group(1))
    ops = int(get(r"Total (?:writes|reads) made"))
    return dict(iops=ops / get("Total time run"), mean=get(r"Average Latency") * 1e6, p50=None, p99=None, p999=get(r"Max latency") * 1e6,
                cpu=server / max(ops, 1) * 1e6, client=client / max(ops, 1) * 1e6, rss=peak / 2**20, ops=ops)


def medians(rows):
    """The median of each figure over several runs."""
    return {k: None if rows[0][k] is None else statistics.median(r[k] for r in rows) for k in rows[0]}
