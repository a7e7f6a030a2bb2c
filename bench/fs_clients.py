#!/usr/bin/env python3
"""Clients of a file system through libcephfs, several in one process, which take commands as lines as `fs-load` does.

    dirs DIR --clients N [--shared]
    create|stat|unlink DIR --clients N --files M [--shared] [--shift K] [--of K]
                                                     each client does it to files of the client K further on, or of client K
    read DIR --clients N --files M [--shared]        reads directories, and compares them with the files that were made
    alone DIR --seconds S                            one client creates
    beside DIR --clients N --files M --shared --seconds S    the same while another reads DIR with stat of each entry
    begin DIR --clients N                            each client makes and removes a file in its directory, again and again
    answered --after T [--end]                       when each was first answered after that moment of the monotonic clock
    drop                                             all clients mount anew, with nothing in their caches

Each is answered with a line of JSON; latencies are microseconds.
"""
import argparse
import json
import os
import stat
import sys
import threading
import time

MODE = 0o644
SAMPLES_MAX = 10
PATIENCE_S = 300


class Measure:
    """What one client, or all of them, measured."""

    def __init__(self):
        self.took, self.failed, self.wrong, self.samples, self.ended = {}, {}, 0, [], []

    def done(self, kind, at, took):
        """`at` is when it ended since the beginning of the work, `took` its latency; both in seconds."""
        self.took.setdefault(kind, []).append(took * 1e6)
        self.ended.append(at)

    def fail(self, kind, why, wrong=False):
        self.failed[kind] = self.failed.get(kind, 0) + 1
        self.wrong += wrong
        if len(self.samples) < SAMPLES_MAX:
            self.samples.append(f"{'WRONG: ' if wrong else ''}{kind}: {why}")

    def merge(self, other):
        for kind, took in other.took.items():
            self.took.setdefault(kind, []).extend(took)
        for kind, n in other.failed.items():
            self.failed[kind] = self.failed.get(kind, 0) + n
        self.wrong += other.wrong
        self.ended += other.ended
        self.samples = (self.samples + other.samples)[:SAMPLES_MAX]

    def json(self, seconds):
        kinds = {}
        for kind in sorted({*self.took, *self.failed}):
            took = sorted(self.took.get(kind, []))
            at = lambda part: took[min(len(took) - 1, int(len(took) * part))] if took else 0
            kinds[kind] = {"count": len(took), "per_second": len(took) / seconds, "failed": self.failed.get(kind, 0),
                           "mean_us": sum(took) / len(took) if took else 0, "p50_us": at(0.5), "p95_us": at(0.95), "p99_us": at(0.99),
                           "p999_us": at(0.999), "max_us": took[-1] if took else 0}
        each = [0] * int(seconds)
        for at in self.ended:
            if int(at) < len(each):
                each[int(at)] += 1
        return {"seconds": seconds, "count": sum(map(len, self.took.values())), "failed": sum(self.failed.values()), "wrong": self.wrong,
                "kinds": kinds, "ended_each_second": each, "samples": self.samples}


def compare(found, expected, whole):
    """What is wrong with the names of a directory; nothing if all is right."""
    names = set(found)
    if len(names) != len(found):
        return f"{len(found) - len(names)} names came twice"
    missing, more = expected - names, names - expected
    if missing:
        return f"{min(missing)} was made, and is not in the directory of {len(found)}"
    if whole and more:
        return f"{min(more)} is in the directory, and should not be there"
    return None


def name_of(client, n):
    return f"c{client:03}.{n:07}"


class Clients:
    def __init__(self, conf, fs, options):
        self.conf, self.fs, self.options, self.mounts, self.background = conf, fs, options, [], None

    def connect(self, count):
        import cephfs
        while len(self.mounts) < count:
            mount = cephfs.LibCephFS(conffile=self.conf)
            for k, v in self.options.items():
                mount.conf_set(k, v)
            mount.mount(b"/", self.fs.encode())
            self.mounts.append(mount)

    def close(self):
        for mount in self.mounts:
            mount.shutdown()
        self.mounts = []

    def all(self, count, work):
        """Runs work(mount, number, start, measure) for each client on a thread of its own."""
        self.connect(count)
        measures, barrier, times = [Measure() for _ in range(count)], threading.Barrier(count + 1), [0.0]

        def one(number):
            barrier.wait()
            try:
                work(self.mounts[number], number, times[0], measures[number])
            except Exception as e:
                measures[number].fail("client", f"{type(e).__name__}: {e}", wrong=True)

        threads = [threading.Thread(target=one, args=(n,)) for n in range(count)]
        for t in threads:
            t.start()
        times[0] = time.monotonic()
        barrier.wait()
        for t in threads:
            t.join()
        seconds = time.monotonic() - times[0]
        whole = Measure()
        for m in measures:
            whole.merge(m)
        return whole.json(seconds)


def timed(measure, kind, start, call):
    """Runs a call; its result, or none if it failed."""
    began = time.monotonic()
    try:
        result = call()
    except Exception as e:
        measure.fail(kind, f"{type(e).__name__}: {e}")
        return None
    now = time.monotonic()
    measure.done(kind, now - start, now - began)
    return result


def create(mount, path):
    mount.close(mount.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE))
    return True


def names(mount, path, with_stat=False):
    found, d = [], mount.opendir(path)
    try:
        while entry := mount.readdir(d):
            name = entry.d_name.decode()
            if name not in (".", ".."):
                found.append(name)
                if with_stat:
                    mount.lstat(f"{path}/{name}")
    finally:
        mount.closedir(d)
    return found


def make_all(mount, path):
    at = ""
    for part in path.strip("/").split("/"):
        at += f"/{part}"
        try:
            mount.mkdir(at, 0o755)
        except Exception as e:
            if getattr(e, "args", [0])[0] != 17:
                raise


def run(clients, a):
    dir_of = lambda client: a.dir if a.shared else f"{a.dir}/{client:03}"
    if a.command == "drop":
        count = len(clients.mounts)
        clients.close()
        clients.connect(count)
        return {}
    if a.command == "dirs":
        clients.connect(a.clients)
        for n in range(a.clients):
            make_all(clients.mounts[0], dir_of(n))
        return {}
    if a.command == "begin":
        clients.background = Background(clients, a.clients, dir_of)
        return {}
    if a.command == "answered":
        first = clients.background.first(a.after, PATIENCE_S)
        if a.end:
            clients.background.end()
        return {"first": first}
    if a.command in ("create", "stat", "unlink"):
        def work(mount, number, start, measure):
            whose = (number + a.shift) % a.clients if a.of is None else a.of
            for n in range(a.files):
                path = f"{dir_of(whose)}/{name_of(whose, n)}"
                if a.command == "create":
                    timed(measure, "create", start, lambda: create(mount, path))
                elif a.command == "unlink":
                    timed(measure, "unlink", start, lambda: mount.unlink(path))
                else:
                    s = timed(measure, "stat", start, lambda: mount.lstat(path))
                    if s and (not stat.S_ISREG(s.st_mode) or s.st_size or stat.S_IMODE(s.st_mode) != MODE):
                        measure.fail("stat", f"{path}: an empty file was made, found {s}", wrong=True)
        return clients.all(a.clients, work)
    if a.command == "read":
        def work(mount, _, start, measure):
            dirs = [a.dir] if a.shared else [dir_of(n) for n in range(a.clients)]
            for i, path in enumerate(dirs):
                whose = range(a.clients) if a.shared else [i]
                found = timed(measure, "readdir", start, lambda: names(mount, path))
                problem = found is not None and compare(found, {name_of(c, n) for c in whose for n in range(a.files)}, True)
                if problem:
                    measure.fail("readdir", f"{path}: {problem}", wrong=True)
        clients.connect(a.clients)
        return clients.all(1, work)
    made, done = [0], threading.Event()

    def creating(mount, number, start, measure):
        if number == 0:
            while time.monotonic() - start < a.seconds:
                path = f"{a.dir}/{name_of(999, made[0])}"
                made[0] += 1
                timed(measure, "create", start, lambda: create(mount, path))
            done.set()
            return
        expected = {name_of(c, n) for c in range(a.clients) for n in range(a.files)}
        while not done.is_set():
            found = timed(measure, "readdir", start, lambda: names(mount, a.dir, with_stat=True))
            problem = found is not None and compare(found, expected, False)
            if problem:
                measure.fail("readdir", f"{a.dir}: {problem}", wrong=True)
    # The first client creates, the second one reads.
    said = clients.all(2 if a.command == "beside" else 1, creating)
    for n in range(made[0]):
        clients.mounts[0].unlink(f"{a.dir}/{name_of(999, n)}")
    return said


class Background:
    """Clients that go on while other commands are run. What the server has to do for each operation cannot be kept back."""

    def __init__(self, clients, count, dir_of):
        clients.connect(count)
        self.stop, self.changed, self.failed = False, threading.Condition(), []
        self.ends = [[] for _ in range(count)]
        self.threads = [threading.Thread(target=self.run, args=(clients.mounts[n], n, f"{dir_of(n)}/again")) for n in range(count)]
        for t in self.threads:
            t.start()

    def run(self, mount, number, path):
        try:
            while not self.stop:
                for call in (lambda: create(mount, path), lambda: mount.unlink(path)):
                    call()
                    with self.changed:
                        self.ends[number].append(time.monotonic())
                        self.changed.notify_all()
        except Exception as e:
            with self.changed:
                self.failed.append(f"client {number}: {type(e).__name__}: {e}")
                self.changed.notify_all()

    def first(self, after, timeout):
        """When each was first answered after a moment."""
        with self.changed:
            done = self.changed.wait_for(lambda: self.failed or all(ends and ends[-1] > after for ends in self.ends), timeout)
            if self.failed or not done:
                raise RuntimeError(self.failed[0] if self.failed else f"not all clients were answered within {timeout} s")
            return [next(at for at in ends if at > after) for ends in self.ends]

    def end(self):
        self.stop = True
        for t in self.threads:
            t.join()
        if self.failed:
            raise RuntimeError(self.failed[0])


def parser():
    p = argparse.ArgumentParser(add_help=False)
    p.add_argument("command", choices=["dirs", "create", "stat", "unlink", "read", "alone", "beside", "begin", "answered", "drop"])
    p.add_argument("dir", nargs="?")
    p.add_argument("--clients", type=int, default=1)
    p.add_argument("--files", type=int, default=0)
    p.add_argument("--shared", action="store_true")
    p.add_argument("--shift", type=int, default=0)
    p.add_argument("--of", type=int)
    p.add_argument("--after", type=float, default=0)
    p.add_argument("--end", action="store_true")
    p.add_argument("--seconds", type=float, default=1)
    return p


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--conf", required=True, help="the configuration file of the cluster")
    a.add_argument("--fs", default="cephfs", help="the file system")
    a.add_argument("--cache", type=int, default=1_000_000, help="inodes that a client may cache")
    o = a.parse_args()
    clients = Clients(o.conf, o.fs, {"client_cache_size": str(o.cache)})
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            said = run(clients, parser().parse_args(line.split()))
        except Exception as e:
            said = {"error": f"{type(e).__name__}: {e}"}
        said["command"] = line.strip()
        print(json.dumps(said), flush=True)
    clients.close()


if __name__ == "__main__":
    main()
