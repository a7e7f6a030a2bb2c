"""What makes load: fio on an image or on objects, `rados bench`, and what fills pools."""
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

from clusters import ENV, cpu_seconds

from .figures import bin_of


class LoadFailed(Exception):
    pass


class Process:
    """A client that runs until it is told to stop. In a session of its own: Ctrl-C at the terminal is for the study,
    which ends it and keeps what it measured."""

    wanted = (0, 128)

    def __init__(self, name, directory, conf):
        self.name, self.dir, self.conf = name, Path(directory), conf
        self.process = None

    def begin(self, argv):
        self.output = open(self.dir / f"{self.name}.out", "w+")
        self.process = subprocess.Popen([str(a) for a in argv], stdout=self.output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                        env={**ENV, "CEPH_CONF": str(self.conf)}, cwd=self.dir, start_new_session=True)
        self.started = time.time()

    def cpu(self):
        """Processor time so far."""
        try:
            return cpu_seconds(self.process.pid)
        except OSError:
            return 0.0

    def check(self):
        """It is still at work."""
        if self.process.poll() is not None:
            self.fail()

    def text(self):
        self.output.seek(0)
        return self.output.read()

    def fail(self):
        raise LoadFailed(f"{self.name}: exit {self.process.returncode}: {self.text()[-1500:]}")

    def end(self):
        """Asks it to finish and report."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.kill()
        if self.process.returncode not in self.wanted:
            self.fail()

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Fio(Process):
    """fio's rbd engine on an image, or its rados engine on objects of a pool. `rate` bounds operations a second."""

    def __init__(self, name, directory, conf, pool, image=None, mode="randwrite", depth=64, size_mb=256, block="4k", sessions=1, rate=0, nice=0, fill=False, extra=()):
        super().__init__(name, directory, conf)
        self.sessions = sessions
        # The engine first: others of its options are known only then.
        argv = ["nice", "-n", nice, "fio", f"--name={name}", f"--ioengine={'rbd' if image else 'rados'}", "--clientname=admin", f"--pool={pool}", "--busy_poll=0", f"--bs={block}", f"--iodepth={depth}",
                f"--size={size_mb}M", "--thread", "--randrepeat=0", "--output-format=json",
                "--percentile_list=50:95:99:99.5"]
        if image:
            argv += [f"--rbdname={image}"]
        else:
            # Reads need objects that are there. Writes make them, and then the pool's statistics count nothing before.
            argv += [f"--conf={conf}", f"--nrfiles={max(1, size_mb // 4) if size_mb > 4 else 16}", "--file_service_type=random", f"--touch_objects={int('write' not in mode)}",
                     f"--numjobs={sessions}", "--group_reporting"]
        if fill:
            argv += ["--rw=write"]
        else:
            # After as many bytes as there are, fio would wait for all that is under way and begin anew.
            argv += [f"--rw={mode}", "--io_size=1t", "--time_based", "--runtime=86400", f"--write_hist_log={name}", "--log_hist_msec=1000", "--log_unix_epoch=1"]
        argv += [f"--rate_iops={rate}"] if rate else []
        self.argv = [*argv, *extra]

    def start(self):
        self.begin(self.argv)

    def run(self):
        """To its end, for filling."""
        self.begin(self.argv)
        try:
            self.process.wait()
        finally:
            self.kill()
        if self.process.returncode != 0:
            self.fail()

    def stop(self):
        """Ends it, and gives its histograms. They take the place of fio's files."""
        self.end()
        text = self.text()
        if "{" in text:
            (self.dir / f"{self.name}.json").write_text(text[text.index("{"):])
        os.unlink(self.dir / f"{self.name}.out")
        rows = []
        for path in sorted(self.dir.glob(f"{self.name}_clat_hist.*.log")):
            rows += histograms(path.read_text().splitlines(), self.name, int(path.name.split(".")[-2]))
            path.unlink()
        return rows


def histograms(lines, load, job):
    """fio's lines `milliseconds, direction, block size, count of bin 0, ...`. Reads and writes of a second become one
    row; after a second without any operation, a row is as long as that took."""
    by = {}
    for line in lines:
        at, _, _, *counts = (int(x) for x in line.split(","))
        # Jobs with two directions write two lines, some milliseconds apart at most.
        key = next((k for k in (at, *range(at - 20, at)) if k in by), at)
        by.setdefault(key, Counter()).update({i: n for i, n in enumerate(counts) if n})
    rows, before = [], None
    for at in sorted(by):
        start = before if before is not None else at - 1000
        if at > start:
            rows.append({"load": load, "job": job, "from": start / 1000, "t": at / 1000, "n": sum(by[at].values()), "bins": {str(i): n for i, n in sorted(by[at].items())}})
        before = at
    return rows


class RadosBench(Process):
    """`rados bench`, which says operations and their mean latency each second, no more: percentiles of it are those of
    seconds, not of operations."""

    wanted = (0, -2, 130)

    def __init__(self, name, directory, conf, pool, mode="write", depth=16, block=4096, **_):
        super().__init__(name, directory, conf)
        self.argv = ["rados", "-c", conf, "-p", pool, "bench", "86400", mode, "-t", depth, "--run-name", name]
        self.argv += ["-b", block, "--no-cleanup"] if mode == "write" else []

    def start(self):
        self.begin(self.argv)

    def stop(self):
        self.end()
        return bench_rows(self.text().splitlines(), self.name, self.started)


def bench_rows(lines, load, started):
    """From lines `sec  cur-ops  started  finished  avg MB/s  cur MB/s  last lat(s)  avg lat(s)`."""
    rows, before = [], (0, 0, 0.0)
    for line in lines:
        found = re.match(r"\s*(\d+)\s+\d+\s+\d+\s+(\d+)\s+\S+\s+\S+\s+\S+\s+([0-9.]+)\s*$", line)
        if not found:
            continue
        second, finished, average = int(found[1]), int(found[2]), float(found[3])
        n = finished - before[1]
        if second > before[0]:
            # The mean is over all; that of this second follows from it.
            latency = max(0.0, (average * finished - before[2] * before[1]) / n) if n else 0
            bins = {str(bin_of(latency * 1e9)): n} if n else {}
            rows.append({"load": load, "job": 1, "from": started + before[0], "t": started + second, "n": n, "bins": bins})
            before = (second, finished, average)
    return rows


class Objects:
    """Objects with names of their own in a pool, written by librados."""

    def __init__(self, ceph, pool, count, size, under_way=32):
        self.ceph, self.pool, self.count, self.size, self.under_way = ceph, pool, count, size, under_way
        self.data = os.urandom(size + 65536)

    def write(self, first=0, count=None, salt=0):
        """Writes objects whole, anew if they are there."""
        io = self.ceph.rados.open_ioctx(self.pool)
        room, failed = threading.BoundedSemaphore(self.under_way), []

        def done(completion):
            if completion.get_return_value() < 0:
                failed.append(completion.get_return_value())
            room.release()

        try:
            for i in range(first, first + (self.count if count is None else count)):
                room.acquire()
                if failed:
                    break
                at = (i * 4099 + salt * 131) % 65536
                io.aio_write_full(f"object{i:07d}", self.data[at:at + self.size], oncomplete=done)
            for _ in range(self.under_way):
                room.acquire()
        finally:
            io.close()
        if failed:
            raise LoadFailed(f"a write to {self.pool} failed: error {failed[0]}")

    def snapshot(self, name):
        io = self.ceph.rados.open_ioctx(self.pool)
        try:
            io.create_snap(name)
        finally:
            io.close()
        self.ceph.rados.wait_for_latest_osdmap()

    def remove_snapshot(self, name):
        io = self.ceph.rados.open_ioctx(self.pool)
        try:
            io.remove_snap(name)
        finally:
            io.close()


class Drivers:
    """The drivers that a study uses; tests have others."""

    def __init__(self, client):
        self.options = client

    def client_conf(self, target, directory):
        """The cluster's ceph.conf for clients that keep nothing in a cache."""
        path = Path(directory) / "client.conf"
        path.write_text(f"{Path(target.conf).read_text().rstrip()}\n\n[client]\nrbd_cache = false\n")
        return path

    def make_image(self, target, directory, pool, size_mb):
        """An image, written over once: what is measured later is overwriting."""
        conf = self.client_conf(target, directory)
        rbd = lambda *args: subprocess.run(["rbd", "-c", str(conf), *args], env=ENV, capture_output=True, text=True)
        # A cell that failed may have made it before.
        rbd("rm", "--no-progress", f"{pool}/client")
        for args in (["pool", "init", pool], ["create", "--size", f"{size_mb}M", "--image-feature", "layering", f"{pool}/client"]):
            r = rbd(*args)
            if r.returncode:
                raise LoadFailed(f"rbd {' '.join(args)}: exit {r.returncode}: {r.stderr[-1000:]}")
        self.track(Fio("prefill", directory, conf, pool, image="client", depth=16, size_mb=size_mb, block="4M", fill=True)).run()

    def client(self, name, target, directory, pool, image=None, **how):
        """The client under study: what the command line says, on an image or on objects."""
        conf = self.client_conf(target, directory)
        o = self.options
        how = {"mode": o["mode"], "block": o["block"], **how}
        if o["driver"] == "rados-bench" and name == "client":
            return self.track(RadosBench(name, directory, conf, pool, depth=how.get("depth", 16)))
        return self.track(Fio(name, directory, conf, pool, image=image if o["driver"] == "fio-rbd" else None, **how))

    def objects(self, target, pool, count, size):
        return Objects(target.ceph, pool, count, size)

    # Whatever was started, for an orderly end.
    running = ()

    def track(self, load):
        self.running = [*self.running, load]
        return load

    def kill_all(self):
        for load in self.running:
            load.kill()
        self.running = ()
