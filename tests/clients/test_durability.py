"""Nothing acknowledged is lost when the cluster's process is killed at any moment."""
import os
import random
import threading

import pytest

from conftest import eventually

rados = pytest.importorskip("rados")

ROUNDS = 20 if os.environ.get("SIPHON_TEST_LONG") else 6


def connect(conf):
    r = rados.Rados(conffile=str(conf), conf={"rados_osd_op_timeout": "120", "rados_mon_op_timeout": "60", "client_mount_timeout": "60"})
    r.connect()
    return r


class Writer:
    """Writes objects of random sizes and overwrites, and remembers what was acknowledged, and what was refused."""

    def __init__(self, io, seed):
        self.io = io
        self.rng = random.Random(seed)
        self.acked = {}       # name -> content of the last acknowledged write
        self.pending = {}     # name -> contents that were sent after it
        self.errors = []      # (name, error) of writes that failed
        self.lock = threading.Lock()
        self.stop = False
        self.slots = threading.Semaphore(16)

    def run(self, prefix):
        i = 0
        while not self.stop:
            self.slots.acquire()
            if self.stop:
                break
            name = f"{prefix}-{i if self.rng.random() < 0.5 else self.rng.randrange(max(1, i))}"
            i += 1
            with self.lock:
                if self.pending.get(name):
                    self.slots.release()
                    continue
                data = self.rng.randbytes(self.rng.choice([1, 100, 4096, 4096, 5000, 65536, 300000]))
                self.pending[name] = data
            try:
                self.io.aio_write_full(name, data, oncomplete=lambda c, n=name, d=data: self.done(c, n, d))
            except rados.Error as e:
                with self.lock:
                    self.errors.append((name, e))
                break

    def done(self, completion, name, data):
        with self.lock:
            code = completion.get_return_value()
            if code == 0:
                self.acked[name] = data
                self.pending.pop(name, None)
            else:
                self.errors.append((name, code))
        self.slots.release()

    def answered(self):
        """Whether everything that was sent is answered. Whatever the cluster goes through: clients wait, and see no error."""
        with self.lock:
            assert not self.errors, self.errors[:10]
            return not self.pending


def test_sigkill(siphon_factory):
    cluster = siphon_factory()
    cluster.start()
    client = connect(cluster.conf)
    client.create_pool("d")
    client.shutdown()
    known = {}
    for round_ in range(ROUNDS):
        client = connect(cluster.conf)
        io = client.open_ioctx("d")
        w = Writer(io, seed=round_)
        t = threading.Thread(target=w.run, args=(f"r{round_}",))
        t.start()
        delay = random.Random(1000 + round_).uniform(0.3, 2.0)
        threading.Event().wait(delay)
        cluster.kill()
        w.stop = True
        for _ in range(64):
            w.slots.release()
        t.join()
        # What was sent by now and not answered may arrive after all: the client sends it again.
        with w.lock:
            acked, pending = dict(w.acked), dict(w.pending)
        assert acked, f"round {round_}: nothing was acknowledged in {delay:.1f} s"
        cluster.start()
        check = connect(cluster.conf)
        io2 = check.open_ioctx("d")
        for name, data in acked.items():
            got = io2.read(name, length=len(data) + 1_000_000)
            assert got == data or got == pending.get(name), f"round {round_}: {name} is not what was acknowledged"
        for name, digest in known.items():
            assert hash(io2.read(name, length=1_000_000)) == digest, f"round {round_}: {name} of an earlier round changed"
        for name, data in acked.items():
            if name not in pending:
                known[name] = hash(data)
        # Half of what is known stays under watch, so that rounds do not get longer and longer.
        known = dict(list(known.items())[-400:])
        check.shutdown()
        # The client of this round finds the new process, sends again what was not answered, and can go.
        eventually(w.answered, timeout=120, what="the last answers")
        client.shutdown()
    assert cluster.stop() == 0


def test_clean_stop_and_start(siphon_factory):
    cluster = siphon_factory()
    cluster.start()
    client = connect(cluster.conf)
    client.create_pool("d")
    io = client.open_ioctx("d")
    for i in range(100):
        io.write_full(f"o{i}", b"%d" % i * 1000)
    client.shutdown()
    assert cluster.stop() == 0
    cluster.start()
    client = connect(cluster.conf)
    io = client.open_ioctx("d")
    for i in range(100):
        assert io.read(f"o{i}", length=10000) == b"%d" % i * 1000
    client.shutdown()
