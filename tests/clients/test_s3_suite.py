"""Ceph's public suite of tests of S3 against `siphon s3`, and against stock `radosgw` on the same cluster; and its list of names.

SIPHON_S3_TESTS=/path/to/s3-tests runs it: a checkout of github.com/ceph/s3-tests, whose requirements this Python or that of
SIPHON_S3_TESTS_PYTHON has. SIPHON_S3_TESTS_ONLY=siphon (or radosgw-16.2, radosgw-18.2) runs it against one; SIPHON_TEST_D13 names a
directory that `debian13.sh DIR` made, without which there is no 18.2. SIPHON_S3_TESTS_WRITE=1 writes what was seen into the
list, for a person to look at what became other. SIPHON_TEST_CONF names the cluster, a stock one for example; else it is one of ours.
"""
import os
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import s3_suite
from conftest import BINARY, CHROOT, ROOT, eventually, free_port

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="has nothing to do with the stock clients of a chroot")

SUITE = os.environ.get("SIPHON_S3_TESTS")
DEBIAN_13 = os.environ.get("SIPHON_TEST_D13")
JOBS = int(os.environ.get("SIPHON_S3_TESTS_JOBS", 4))


def answers(port):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=5).read()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError:
        return False
    return True


class Served:
    """A gateway. Ceph's is started `again` when it ends: a test of the suite ends 18.2.7."""

    def __init__(self, argv, log, again):
        self.argv, self.log, self.again, self.ended, self.stopping = argv, log, again, 0, False
        self.lock = threading.Lock()
        self.spawn()
        self.watch = threading.Thread(target=self.keep)
        self.watch.start()

    def spawn(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log)

    def keep(self):
        while True:
            self.process.wait()
            with self.lock:
                if self.stopping:
                    return
                self.ended += 1
                if not self.again:
                    return
                self.spawn()

    def stop(self):
        """How often it has ended by itself."""
        with self.lock:
            self.stopping = True
            self.process.terminate()
        self.watch.join(60)
        return self.ended


@pytest.fixture(scope="module")
def conf(siphon_factory):
    """The cluster's ceph.conf."""
    given = os.environ.get("SIPHON_TEST_CONF")
    if given:
        conf = Path(given)
    else:
        cluster = siphon_factory()
        cluster.start(timeout=120)
        conf = cluster.conf
    s3_suite.make_users(conf, JOBS)
    return conf


def ours(conf, port):
    return [str(BINARY), "s3", "--conf", str(conf), "--bind", f"127.0.0.1:{port}", "--threads", "2",
            "--allow-v2", "--lc-debug-interval", str(s3_suite.DAY)]


def stock(conf, port, directory, chroot=()):
    return [*chroot, "radosgw", "-c", str(conf), "-n", "client.admin", "-f", f"--rgw_frontends=beast endpoint=127.0.0.1:{port}",
            f"--rgw_data={directory}", f"--rgw_lc_debug_interval={s3_suite.DAY}"]


@pytest.mark.skipif(not SUITE, reason="SIPHON_S3_TESTS=/path/to/s3-tests runs it; takes half an hour")
@pytest.mark.parametrize("gateway", s3_suite.GATEWAYS)
def test_suite(conf, gateway, tmp_path):
    if os.environ.get("SIPHON_S3_TESTS_ONLY", gateway) != gateway:
        pytest.skip("another one was asked for")
    port = free_port()
    if gateway == "siphon":
        argv = ours(conf, port)
    elif gateway == "radosgw-16.2":
        assert shutil.which("radosgw")
        argv = stock(conf, port, tmp_path)
    else:
        if not DEBIAN_13:
            pytest.skip("SIPHON_TEST_D13 names no Debian 13")
        # A file of the chroot has the same name inside and outside.
        inside = Path(DEBIAN_13).resolve() / "tmp" / "s3-suite"
        inside.mkdir(exist_ok=True)
        shutil.copy(conf.parent / "keyring", inside)
        (inside / "ceph.conf").write_text(conf.read_text().replace(str(conf.parent), str(inside)))
        argv = stock(inside / "ceph.conf", port, "/tmp", chroot=("chroot", DEBIAN_13))
    served = Served(argv, tmp_path / "gateway.log", again=gateway != "siphon")
    try:
        eventually(lambda: served.process.poll() is not None or answers(port), timeout=120)
        waits = gateway != "siphon"
        found = s3_suite.run(SUITE, port, tmp_path, jobs=JOBS, waits=waits)
        # Those whose gateway another test has ended, alone.
        lost = [name for name, outcome in found.items() if outcome == s3_suite.LOST]
        if lost:
            (tmp_path / "again").mkdir()
            found |= s3_suite.run(SUITE, port, tmp_path / "again", names=lost, waits=waits)
        found = {name: "fail" if outcome == s3_suite.LOST else outcome for name, outcome in found.items()}
    finally:
        ended = served.stop()
    print(f"{gateway} ended {ended} times")
    assert not ended or gateway != "siphon", "the gateway ended"
    if os.environ.get("SIPHON_S3_TESTS_WRITE"):
        return s3_suite.write(gateway, found, s3_suite.names(tmp_path))
    told = {t.name: t.outcomes[gateway] for t in s3_suite.read()}
    unknown = [name for name in found if name not in told]
    assert not unknown, f"not in the list: {unknown}"
    other = {name: outcome for name, outcome in found.items() if told[name] != outcome}
    assert not other, f"not as the list says: {other}"


def test_the_list_says_why_a_test_does_not_pass():
    listed = s3_suite.read()
    assert len({t.name for t in listed}) == len(listed) > 800
    for t in listed:
        assert set(t.outcomes) == set(s3_suite.GATEWAYS) and set(t.outcomes.values()) <= set(s3_suite.OUTCOMES), t
        assert bool(t.reason) == (t.outcomes["siphon"] != "pass"), f"{t.name} passes and has a reason, or does not and has none"
        if t.outcomes["siphon"] == "none":
            assert t.reason in s3_suite.OUT_OF_SCOPE, t


def test_the_page_has_the_figures_of_the_list():
    page = (ROOT / "docs/s3.md").read_text()
    for row in s3_suite.table():
        assert row in page, f"docs/s3.md lacks {row}"
