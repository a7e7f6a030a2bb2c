"""Ceph's public suite of tests of S3 (github.com/ceph/s3-tests) against a gateway: its users, its configuration, one run of it, and the
list of what is expected.

The suite itself is not in this repository: SIPHON_S3_TESTS names a checkout. This file is also the plugin of the pytest that runs the
suite: `-p s3_suite` bounds each test's time, and leaves an outcome of each in the file that SIPHON_S3_TESTS_OUTCOMES names.

The list, s3_tests.txt, has one line for each test of the suite: its name; `pass`, `fail` or `none` (not run) for ours and for each stock
gateway; and, where ours does not pass, the reason: a word of REASONS, and details if there are any.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIST = HERE / "s3_tests.txt"
FILES = ("test_s3.py", "test_headers.py")
GATEWAYS = ("siphon", "radosgw-16.2", "radosgw-18.2")
OUTCOMES = ("pass", "fail", "none")
# Of a run alone, never in the list: the gateway went away.
LOST = "lost"
SIGNS_OF_LOSS = ("Could not connect to the endpoint", "Connection was closed before", "Connection aborted", "Connection refused")
# A test that waits for lifecycle needs several days of the suite, which are this many seconds each.
DAY = 10
ONE_TEST_SECONDS = 400

# Parts that the gateway does not have, by the suite's marks and by the beginnings of names.
OUT_OF_SCOPE = {
    "encryption": ("encryption", "sse_s3", "bucket_encryption", "test_put_obj_enc_", "test_bucket_policy_put_obj_"),
    "bucket logging": ("bucket_logging", "bucket_logging_cleanup"),
    "object lock": ("test_object_lock_",),
    "storage classes": ("lifecycle_transition", "cloud_transition", "cloud_restore", "target_by_bucket"),
    "accounts": ("iam_account", "iam_user", "iam_cross_account"),
    "torrents": ("test_get_object_torrent",),
}

# Users as the suite's sample configuration has them: section, id, name, address, access key, secret.
USERS = (
    ("s3 main", "testid", "M. Tester", "tester@ceph.com", "0555b35654ad1656d804", "h7GhxuBLTrlhVUyxSPUKUV8r/2EI4ngqJxD7iBdBYLhwluN30JaT3Q=="),
    ("s3 alt", "56789abcdef0123456789abcdef0123456789abcdef0123456789abcdef01234", "john.doe", "john.doe@example.com",
     "NOPQRSTUVWXYZABCDEFG", "nopqrstuvwxyzabcdefghijklmnabcdefghijklm"),
    ("s3 tenant", "testx$9876543210abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "testx$tenanteduser", "tenanteduser@example.com",
     "HIJKLMNOPQRSTUVWXYZA", "opqrstuvwxyzabcdefghijklmnopqrstuvwxyzab"),
    ("iam", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "youruseridhere", "s3@example.com",
     "ABCDEFGHIJKLMNOPQRST", "abcdefghijklmnopqrstuvwxyzabcdefghijklmn"),
    ("iam root", "RGW11111111111111111", "Account 1", "account1@ceph.com", "AAAAAAAAAAAAAAAAAAaa", "a" * 40),
    ("iam alt root", "RGW22222222222222222", "Account 2", "account2@ceph.com", "BBBBBBBBBBBBBBBBBBbb", "b" * 40),
)


def users(job):
    """Jobs have users of their own: some tests count all buckets of a user."""
    return [(section, f"{ident}{job}", name, f"{job}.{address}", f"{access}{job}", secret) for section, ident, name, address, access, secret in USERS]


def make_users(conf, jobs, admin=("radosgw-admin",)):
    """The suite's users, by Ceph's tool. Those that are there stay."""
    for _, ident, name, address, access, secret in [user for job in range(jobs) for user in users(job)]:
        argv = [*admin, "-c", str(conf), "-n", "client.admin"]
        if subprocess.run([*argv, "user", "info", f"--uid={ident}"], capture_output=True, timeout=120).returncode == 0:
            continue
        made = [f"--uid={ident}", f"--display-name={name}", f"--email={address}", f"--access-key={access}", f"--secret-key={secret}"]
        subprocess.run([*argv, "user", "create", *made], check=True, capture_output=True, timeout=120)


def configuration(port, job):
    """The suite's configuration for a gateway on this machine."""
    lines = ["[DEFAULT]", "host = 127.0.0.1", f"port = {port}", "is_secure = False", "ssl_verify = False",
             "[fixtures]", "bucket prefix = s3t-{random}-", "iam name prefix = s3-tests-", "iam path prefix = /s3-tests/"]
    for section, ident, name, address, access, secret in users(job):
        lines += [f"[{section}]", f"display_name = {name}", f"user_id = {ident}", f"email = {address}", f"access_key = {access}",
                  f"secret_key = {secret}"]
        if section == "s3 main":
            lines += ["api_name = default", f"lc_debug_interval = {DAY}"]
        if section == "s3 tenant":
            lines += ["tenant = testx"]
    return "\n".join(lines) + "\n"


def run(suite, port, directory, names=(), jobs=1, waits=False):
    """Runs tests of the suite, all that are in scope if none are named; the outcome of each by its name. Each test `waits`
    for a gateway that is not there; one that lost it on the way has the outcome LOST."""
    directory = Path(directory)
    python = os.environ.get("SIPHON_S3_TESTS_PYTHON", sys.executable)
    argv = [python, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "s3_suite",
            *(f"s3tests/functional/{n}" for n in names or FILES)]
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    running = []
    for job in range(jobs):
        outcomes = directory / f"outcomes.{job}"
        outcomes.write_text("")
        log = open(directory / f"suite.{job}.log", "ab")
        conf = directory / f"s3tests.{job}.conf"
        conf.write_text(configuration(port, job))
        job_env = {"S3TEST_CONF": str(conf), "SIPHON_S3_TESTS_OUTCOMES": str(outcomes), "SIPHON_S3_TESTS_SHARD": f"{job}/{jobs}",
                   "SIPHON_S3_TESTS_WAIT": str(port if waits else "")}
        running.append((subprocess.Popen(argv, cwd=suite, env={**env, **job_env}, stdout=log, stderr=log), outcomes))
    found = {}
    for process, outcomes in running:
        process.wait()
        for line in outcomes.read_text().splitlines():
            one = json.loads(line)
            found[one["name"]] = one["outcome"]
    return found


def names(directory):
    """All tests of the suite, and why those that are out of scope are."""
    lines = (Path(directory) / "outcomes.0.names").read_text().splitlines()
    return {one["name"]: one["out_of_scope"] for one in map(json.loads, lines)}


@dataclass
class Listed:
    """A line of the list."""
    name: str
    outcomes: dict
    reason: str = ""


def read():
    listed = []
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            name, *outcomes = line.split(maxsplit=len(GATEWAYS) + 1)
            reason = outcomes.pop() if len(outcomes) > len(GATEWAYS) else ""
            listed.append(Listed(name, dict(zip(GATEWAYS, outcomes)), reason))
    return listed


def write(gateway, found, known):
    """Puts outcomes of one gateway into the list. Reasons stay, and those that are out of scope have theirs."""
    old = {t.name: t for t in read()} if LIST.exists() else {}
    head = [line for line in LIST.read_text().splitlines() if line.startswith("#")] if LIST.exists() else []
    lines = []
    for name, out_of_scope in known.items():
        was = old.get(name) or Listed(name, dict.fromkeys(GATEWAYS, "none"))
        outcomes = {**was.outcomes, gateway: "none" if out_of_scope else found.get(name, "none")}
        reason = out_of_scope or ("" if outcomes["siphon"] == "pass" else was.reason or "?")
        lines.append(" ".join([name, *(outcomes[g] for g in GATEWAYS), *filter(None, [reason])]))
    LIST.write_text("\n".join([*head, *lines]) + "\n")


def table(listed=None):
    """Rows for docs/s3.md: how ours compares with each stock gateway on the tests that are in scope."""
    listed = [t for t in (listed or read()) if t.reason not in OUT_OF_SCOPE]
    rows = []
    run = [g for g in GATEWAYS[1:] if any(t.outcomes[g] != "none" for t in listed)]
    for stock in run:
        counts = Counter((t.outcomes["siphon"] == "pass", t.outcomes[stock] == "pass") for t in listed)
        cells = [counts[True, True], counts[True, False], counts[False, True], counts[False, False]]
        rows.append(f"| `{stock}` | {' | '.join(map(str, cells))} |")
    return rows


# What follows runs inside of the suite's pytest.

def out_of_time(*_):
    raise TimeoutError(f"a test took more than {ONE_TEST_SECONDS} s")


def name_of(nodeid):
    return nodeid.split("s3tests/functional/")[-1]


def out_of_scope(name, marks):
    """Why a test is not run, if it is not."""
    for reason, signs in OUT_OF_SCOPE.items():
        if any(sign in marks or name.split("::")[-1].startswith(sign) for sign in signs):
            return reason
    return None


def pytest_collection_modifyitems(config, items):
    """Leaves what is in scope, and this process's part of it."""
    shard = os.environ.get("SIPHON_S3_TESTS_SHARD")
    if not shard:
        return
    part, parts = map(int, shard.split("/"))
    kept = [i for i in items if not out_of_scope(name_of(i.nodeid), {m.name for m in i.iter_markers()})]
    if part == 0:
        with open(f"{os.environ['SIPHON_S3_TESTS_OUTCOMES']}.names", "w") as f:
            for i in items:
                reason = out_of_scope(name_of(i.nodeid), {m.name for m in i.iter_markers()})
                f.write(json.dumps({"name": name_of(i.nodeid), "out_of_scope": reason}) + "\n")
    items[:] = kept[part::parts]


def wait_for_gateway(port):
    deadline = time.monotonic() + 120
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10).close()
        except OSError:
            assert time.monotonic() < deadline, "the gateway does not come back"
            time.sleep(0.2)


def pytest_runtest_setup(item):
    if port := os.environ.get("SIPHON_S3_TESTS_WAIT"):
        wait_for_gateway(int(port))
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(ONE_TEST_SECONDS)


def pytest_runtest_teardown(item):
    signal.alarm(ONE_TEST_SECONDS)


def pytest_runtest_logreport(report):
    """A test passes if it could be prepared, its body passes, and its buckets can be deleted."""
    path = os.environ.get("SIPHON_S3_TESTS_OUTCOMES")
    if not path or (report.when != "call" and report.outcome == "passed"):
        return
    if report.when != "call" and report.outcome == "failed":
        # Each test lists and deletes the buckets of its prefix: what one leaves must not fail the next.
        import s3tests.functional as functional
        functional.prefix = functional.choose_bucket_prefix("s3t-{random}-")
    outcome = {"passed": "pass", "failed": "fail", "skipped": "none"}[report.outcome]
    if outcome == "fail" and any(sign in report.longreprtext for sign in SIGNS_OF_LOSS):
        outcome = LOST
    with open(path, "a") as f:
        f.write(json.dumps({"name": name_of(report.nodeid), "outcome": outcome, "when": report.when, "took": round(report.duration, 2)}) + "\n")
