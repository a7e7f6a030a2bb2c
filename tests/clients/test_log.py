"""The cluster log as it is watched: `ceph -w`, `ceph -W CHANNEL`, levels, and `ceph log last`."""
import json
import os
import queue
import subprocess
import threading
import time
import uuid

import pytest
from conftest import eventually

PATIENCE = 60


class Watcher:
    """A running `ceph -w`, and the lines that it prints."""

    def __init__(self, cluster, *args):
        self.process = subprocess.Popen(
            cluster.argv("ceph", *args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            # The status that comes first is printed without a flush.
            env={**os.environ, "PYTHONUNBUFFERED": "1"})
        self.lines = queue.Queue()
        threading.Thread(target=lambda: [self.lines.put(line) for line in self.process.stdout], daemon=True).start()

    def until(self, text, timeout=PATIENCE):
        """All lines up to the one with `text`."""
        seen = []
        deadline = time.monotonic() + timeout
        while not seen or text not in seen[-1]:
            try:
                seen.append(self.lines.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                raise AssertionError(f"no line with {text!r} came; there were: {''.join(seen)}") from None
        return seen

    def ready(self, say):
        """Says something again and again until a line comes: from then on the watch stands."""
        marks = []

        def heard():
            marks.append(f"is anybody there {uuid.uuid4().hex}")
            say(marks[-1])
            while not self.lines.empty():
                line = self.lines.get()
                if any(m in line for m in marks):
                    return True
            return False

        eventually(heard, timeout=PATIENCE, what="the first line of a watch")
        # Lines that were said later than the one heard must not be taken for what comes next.
        last = f"now we start {uuid.uuid4().hex}"
        say(last)
        self.until(last)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def watch(cluster):
    running = []

    def start(*args):
        running.append(Watcher(cluster, *args))
        return running[-1]

    yield start
    for w in running:
        w.stop()


@pytest.fixture(scope="module")
def say(base_conf):
    """Writes a line of a level; the command line only writes lines of level info."""
    rados = pytest.importorskip("rados")
    r = rados.Rados(conffile=str(base_conf))
    r.connect(timeout=30)

    def write(text, level="info"):
        ret, _, status = r.mon_command(json.dumps({"prefix": "log", "logtext": [text], "level": level}), b"")
        assert ret == 0, status

    yield write
    r.shutdown()


def test_watch(cluster, watch, say):
    w = watch("-w")
    assert any("health:" in line for line in w.until("health:")), "the status comes first"
    w.ready(say)
    mark = uuid.uuid4().hex
    cluster.ceph("log", "one", mark)
    cluster.ceph("log", "two", mark)
    seen = w.until(f"two {mark}")
    mine = [line.split("] ", 1)[-1] for line in seen if mark in line]
    assert mine == [f"one {mark}\n", f"two {mark}\n"], "each line once, in order"
    assert "client.admin [INF]" in next(line for line in seen if mark in line)


def test_watch_a_channel(cluster, watch, say):
    w = watch("-W", "*")
    w.ready(say)
    mark = uuid.uuid4().hex
    cluster.ceph("log", "a line beside the audit", mark)
    w.until(mark)
    cluster.ceph("osd", "set", "noin")
    cluster.ceph("osd", "unset", "noin")
    # A command that changes something stands in the audit log.
    assert "cmd=" in w.until('"osd unset"')[-1]

    # The audit channel alone has nothing of the line that is in another channel.
    w = watch("-W", "audit")
    # The text of this command is what `ready` waits for: it stands in the audit of the `log` command.
    w.ready(lambda text: cluster.ceph("log", text))
    mark = uuid.uuid4().hex
    cluster.ceph("log", mark)
    assert "cmd=" in w.until(mark)[-1]


def test_watch_levels(cluster, watch, say):
    w = watch("-w", "--watch-error")
    w.ready(lambda mark: say(mark, level="error"))
    mark = uuid.uuid4().hex
    for level in ("debug", "info", "sec", "warn", "error"):
        say(f"{level} {mark}", level=level)
    mine = [line for line in w.until(f"error {mark}") if mark in line]
    assert len(mine) == 1 and "[ERR]" in mine[0], mine

    w = watch("-w", "--watch-debug")
    w.ready(say)
    mark = uuid.uuid4().hex
    words = {"debug": "[DBG]", "info": "[INF]", "sec": "[SEC]", "warn": "[WRN]", "error": "[ERR]"}
    for level in words:
        say(f"{level} {mark}", level=level)
    mine = [line for line in w.until(f"error {mark}") if mark in line]
    assert [line.split()[2] for line in mine] == list(words.values())


def test_log_last(cluster, say):
    mark = uuid.uuid4().hex
    for level in ("debug", "info", "warn"):
        say(f"{level} {mark}", level=level)

    def last(*args):
        return [line.split("] ", 1)[1] for line in cluster.ceph("log", "last", *args).splitlines() if mark in line]

    assert last("50") == [f"info {mark}", f"warn {mark}"]
    assert last("50", "debug") == [f"debug {mark}", f"info {mark}", f"warn {mark}"]
    assert last("50", "warn", "cluster") == [f"warn {mark}"]
    assert last("50", "warn", "audit") == [], "the commands stand there, as information"
    assert len(cluster.ceph_json("log", "last", "2", "debug", "*")) == 2
