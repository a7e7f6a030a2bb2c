"""One cell: a scenario on one cluster under one profile, once. Records everything, and knows when background work ended."""
import os
import threading
import time

from .runlog import Lines, write_json

# Servers report once a second; what they had left before a change is not taken for what they have left after it.
STALE = 1.5

TICKS = os.sysconf("SC_CLK_TCK")


def machine_busy():
    """Processor time of all that runs here, in seconds."""
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, softirq, *_ = (int(x) for x in f.readline().split()[1:])
    return (user + nice + system + irq + softirq) / TICKS


class Cell:
    def __init__(self, spec, target, drivers, sizes, directory, log):
        self.spec, self.target, self.drivers, self.sizes, self.dir, self.log = spec, target, drivers, sizes, directory, log
        self.ceph = target.ceph
        self.marks, self.work, self.extra = {}, {}, {}
        self.events, self.loads = Lines(directory / "events.jsonl"), []
        self.samples, self.sampler, self.stopping = [], None, threading.Event()
        self.background = Lines(directory / "background.jsonl")

    # -- recording

    def event(self, what, **more):
        self.events.write({"t": time.time(), "event": what, **more})

    def mark(self, name, at=None):
        self.marks[name] = time.time() if at is None else at
        self.event(name)

    def note(self, **facts):
        """For the result."""
        self.extra.update(facts)

    def save(self, name, value):
        write_json(self.dir / name, value)

    # -- samples

    def sample(self, left):
        row = {"t": time.time(), "cpu": self.target.cpu(), "left": {}}
        if row["cpu"] is not None:
            # What neither servers nor clients nor this process used, others did: they disturb what is measured.
            row["other"] = machine_busy() - row["cpu"] - time.process_time() - sum(load.cpu() for load in list(self.loads))
        try:
            pools = self.ceph.pool_stats()
            row["left"] = {job: f(pools) for job, f in left.items()}
            row["states"] = self.ceph.states()
            row["recovered"] = sum(p.get("num_objects_recovered", 0) for p in pools.values())
        except Exception as e:  # noqa: BLE001 - a command that fails once is data as well
            row["error"] = f"{type(e).__name__}: {e}"
        row["took"] = time.time() - row["t"]
        self.samples.append(row)
        self.background.write(row)

    def begin_sampling(self, left):
        def watch():
            while not self.stopping.is_set():
                self.sample(left)
                self.stopping.wait(max(0.05, self.sizes["sample_period"] - self.samples[-1]["took"]))

        self.sampler = threading.Thread(target=watch, daemon=True)
        self.sampler.start()

    def end_sampling(self):
        self.stopping.set()
        if self.sampler is not None:
            self.sampler.join(180)
            self.sampler = None

    def amount(self, job):
        """What a job has left, as last seen."""
        return next((s["left"][job] for s in reversed(self.samples) if s["left"].get(job) is not None), None)

    def ended(self, job):
        """When a job was first seen to have nothing left, or None."""
        released = self.marks["released"]
        for s in self.samples:
            if s["t"] > released + min(STALE, 1.5 * self.sizes["sample_period"]) and s["left"].get(job) == 0:
                return s["t"]
        return None

    # -- loads

    def start_load(self, load, pool):
        """Starts it, and waits until the pool's statistics show that it is at work: on a busy machine that takes time."""
        number = self.ceph.pools()[pool]

        def done():
            stats = self.ceph.pool_stats()[number]
            return stats.get("num_write", 0) + stats.get("num_read", 0)

        before = done()
        self.loads.append(load)
        load.start()
        self.event(f"{load.name} started")
        self.target.until(f"{load.name} to be at work", lambda: self.wait(0) or done() > before, 120)

    def stop_loads(self):
        """Ends all, the client first, and writes down what they did."""
        rows = Lines(self.dir / "loads.jsonl")
        try:
            while self.loads:
                load = self.loads.pop(0)
                for row in load.stop():
                    rows.write(row)
                self.event(f"{load.name} ended")
        finally:
            rows.close()

    def wait(self, seconds):
        """Sleeps, and looks after the loads."""
        end = time.monotonic() + seconds
        while True:
            for load in self.loads:
                load.check()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(0.2, left))

    # -- the course of most scenarios

    def measure(self, loads, left, release, until=None):
        """The client alone, then with background work until that has ended (`until` seconds at most), then alone again
        for a moment. `left` is what each job has left, of the pools' statistics; `release` lets the work begin."""
        s = self.sizes
        self.begin_sampling(left)
        self.target.until("the amount of background work", lambda: all(self.amount(job) for job in left), 60)
        for load, pool in loads:
            self.start_load(load, pool)
        self.wait(s["warm_up"])
        self.mark("base")
        self.wait(s["lead"])
        self.work = {job: self.amount(job) for job in left}
        if self.work:
            self.log(f"    {', '.join(f'{n:.0f} {job}' for job, n in self.work.items())} to do")
        self.mark("released")
        release()
        end = time.monotonic() + (until or s["limit"])
        open_jobs = set(left)
        while time.monotonic() < end and (open_jobs or not left):
            self.wait(min(0.2, s["sample_period"] / 2))
            for job in list(open_jobs):
                at = self.ended(job)
                if at is not None:
                    self.mark(f"{job} ended", at)
                    open_jobs.discard(job)
        self.mark("background ended", max((self.marks[f"{j} ended"] for j in left), default=None) if not open_jobs and left else None)
        self.wait(s["tail"])
        self.stop_loads()
        # What the client's end left undone ends now, so that the next cell begins as this one did.
        for job in open_jobs:
            self.log(f"    {job}: {self.amount(job)} left when the client ended")
            self.target.until(f"the end of {job}", lambda job=job: self.amount(job) == 0, s["settle_limit"])
        self.end_sampling()

    def result(self):
        return {**self.spec, "status": "done", "marks": self.marks, "work": self.work, "client": "client", **self.extra}

    def close(self):
        self.end_sampling()
        for load in self.loads:
            load.kill()
        self.loads = []
        self.events.close()
        self.background.close()
