"""Programs that others wrote to find out whether a file system is one, over `ceph-fuse`: the crates `pjdfstest` and
`fsx`, make, git. They take minutes, and are run with SIPHON_TEST_LONG; SIPHON_TEST_MDS=stock runs them on `ceph-mds`.

The crates are installed into a directory of the test, unless SIPHON_TEST_CRATES names one that has them.
"""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from test_mds import FUSE, cl, mounts, run, servers  # noqa: F401 (fixtures)

pytestmark = [
    pytest.mark.skipif(not os.environ.get("SIPHON_TEST_LONG"), reason="takes minutes; SIPHON_TEST_LONG=1 runs it"),
    pytest.mark.skipif(not FUSE, reason="no FUSE here"),
]
PJDFSTEST, FSX = "0.2.2", "0.3.2"
CONFIGURATION = """
[features]

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]

[settings]
naptime = 1.1
allow_remount = false
"""
# They fail on a stock `ceph-mds`, too.
KNOWN = {
    "chmod::clear_isgid_bit",
    "ftruncate::affected_create_flags_only",
    "mkdir::uid_gid_eq_euid_egid",
    "mkfifo::uid_gid_eq_euid_egid",
    "mknod::uid_gid_eq_euid_egid",
    "open::uid_gid_eq_euid_egid",
    "rename::updates_link_parent",
    "rename::write_access_required_subdir",
    *(f"rename::unchanged_ctime_failed::{kind}" for kind in ("block", "char", "dir", "fifo", "regular", "socket", "symlink")),
    *(f"unlink::unchanged_ctime_failed::{kind}" for kind in ("block", "char", "fifo", "regular", "socket")),
}


@pytest.fixture(scope="module")
def crates(tmp_path_factory):
    """Where programs of crates are."""
    if there := os.environ.get("SIPHON_TEST_CRATES"):
        return Path(there) / "bin"
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed")
    root = tmp_path_factory.mktemp("crates")
    environment = {**os.environ, "CARGO_TARGET_DIR": str(root / "target")}
    for name, version in ("pjdfstest", PJDFSTEST), ("fsx", FSX):
        argv = ["cargo", "install", "--quiet", "--root", str(root), "--version", version, name]
        r = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=3600)
        assert r.returncode == 0, r.stderr
    shutil.rmtree(root / "target", ignore_errors=True)
    return root / "bin"


def test_pjdfstest(crates, mounts, tmp_path):
    where = mounts[0] / "pjdfstest"
    where.mkdir()
    where.chmod(0o777)
    configuration = tmp_path / "pjdfstest.toml"
    configuration.write_text(CONFIGURATION)
    argv = [crates / "pjdfstest", "-c", configuration, "-p", where]
    r = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=3600)
    print(r.stdout[-4000:], r.stderr[-2000:])
    failed = set(re.findall(r"^(\w+::\S+)\s.*(?:failed|FAILED)", r.stdout, re.M))
    print(*sorted(failed), sep="\n")
    counted = re.search(r"(\d+) failed.*?(\d+) passed|(\d+) passed", r.stdout)
    assert counted, "the suite has said how many tests there were"
    assert failed <= KNOWN, sorted(failed - KNOWN)


def test_fsx(crates, mounts):
    for seed in (1, 2, 3):
        run(crates / "fsx", "-N", 5_000, "-S", seed, mounts[0] / f"fsx.{seed}", timeout=1800)


def test_a_tree_is_built(mounts):
    if not (shutil.which("make") and shutil.which("cc")):
        pytest.skip("no compiler here")
    left, right = (place / "built" for place in mounts)
    left.mkdir()
    units = range(60)
    for n in units:
        (left / f"u{n}.c").write_text(f'#include "all.h"\nint u{n}(int a) {{ return a + {n}; }}\n')
    (left / "all.h").write_text("".join(f"int u{n}(int);\n" for n in units))
    (left / "main.c").write_text('#include <stdio.h>\n#include "all.h"\nint main(void) { int a = 0;\n'
                                 + "".join(f"a = u{n}(a);\n" for n in units) + 'printf("%d\\n", a); return 0; }\n')
    (left / "Makefile").write_text("all: main\nobjects = $(patsubst %.c,%.o,$(wildcard *.c))\nmain: $(objects)\n\tcc -o $@ $^\n"
                                   "%.o: %.c all.h\n\tcc -c -o $@ $<\n")
    run("make", "-j2", cwd=left, timeout=600)
    assert run(right / "main").strip() == str(sum(units))
    assert "up to date" in run("make", cwd=right, timeout=600) or "Nothing to be done" in run("make", cwd=right, timeout=600)
    (right / "u7.c").write_text('#include "all.h"\nint u7(int a) { return a; }\n')
    run("make", cwd=left, timeout=600)
    assert run(right / "main").strip() == str(sum(units) - 7)
    run("make", "-B", "-j2", cwd=right, timeout=600)


def test_a_repository_is_cloned(mounts, tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    left, right = mounts
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "safe.directory=*"]
    source = tmp_path / "source"
    run(*git, "init", "-q", source)
    for n in range(30):
        for m in range(20):
            (source / f"d{m}").mkdir(exist_ok=True)
            (source / f"d{m}" / f"f{n}").write_text(f"{n} {m}\n" * 50)
        run(*git, "add", ".", cwd=source)
        run(*git, "commit", "-q", "-m", str(n), cwd=source)
    run(*git, "clone", "-q", "--no-hardlinks", source, left / "clone", timeout=600)
    run(*git, "fsck", "--strict", cwd=right / "clone", timeout=600)
    run(*git, "clone", "-q", "--no-hardlinks", left / "clone", right / "again", timeout=600)
    run(*git, "gc", "-q", "--prune=now", cwd=left / "again", timeout=600)
    run(*git, "fsck", "--strict", cwd=right / "again", timeout=600)
    assert run(*git, "status", "--porcelain", cwd=left / "again") == ""
