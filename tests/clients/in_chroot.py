"""Runs a file of tests inside SIPHON_TEST_CHROOT, with the Python, the bindings and the programs that are there."""
import os
import re
import shutil
import subprocess
from pathlib import Path

from conftest import BINARY, CHROOT

# Where the tests are inside, and what they need.
HOME = "/tmp/clients"
# The C library is that of the root directory: it is newer.
C_LIBRARY = re.compile(r"(ld-linux-x86-64|libc|libdl|libm|libpthread|libresolv|librt)\.so")


def run_inside(module, timeout=600, **environment):
    here, inside = Path(__file__).parent, Path(f"{CHROOT}{HOME}/tests")
    inside.mkdir(parents=True, exist_ok=True)
    for path in here.glob("*.py"):
        shutil.copy(path, inside)
    env = {k: v for k, v in os.environ.items() if k != "SIPHON_TEST_CHROOT"}
    env |= {"PATH": "/usr/local/bin:/usr/bin:/usr/sbin", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    # Programs that mount something read /proc; these mounts end with the tests.
    line = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    argv = ["unshare", "--mount", "sh", "-c", line, CHROOT, "/usr/bin/python3", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider",
            f"{HOME}/tests/{module}"]
    r = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout)
    assert r.returncode == 0, r.stdout + r.stderr
    assert " passed" in r.stdout
    print(r.stdout.splitlines()[-1])


def put_servers_inside():
    """Puts Siphon and the stock metadata server of this machine into the root directory, and what FUSE needs.

    Variables for `run_inside` are returned.
    """
    program = Path(f"{CHROOT}{HOME}/siphon")
    program.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(BINARY, program)
    fuse = Path(f"{CHROOT}/dev/fuse")
    if os.path.exists("/dev/fuse") and not fuse.exists():
        os.mknod(fuse, 0o20666, os.stat("/dev/fuse").st_rdev)
    if stock := shutil.which("ceph-mds"):
        place = Path(f"{CHROOT}/opt/ceph-mds")
        place.mkdir(parents=True, exist_ok=True)
        needed = subprocess.run(["ldd", stock], capture_output=True, text=True, check=True).stdout
        for file in [stock, *re.findall(r"=> (/\S+)", needed)]:
            if not C_LIBRARY.match(Path(file).name):
                shutil.copy(file, place)
        start = Path(f"{CHROOT}/usr/local/bin/ceph-mds")
        start.parent.mkdir(parents=True, exist_ok=True)
        start.write_text('#!/bin/sh\nLD_LIBRARY_PATH=/opt/ceph-mds exec /opt/ceph-mds/ceph-mds "$@"\n')
        start.chmod(0o755)
    return {"SIPHON_BIN": f"{HOME}/siphon"}
