"""A tree of sources through `ceph-fuse`: tar extracts it, compares it, and rm removes it.

The tree is made up, the same one each time: directories, names and sizes spread as those of a large program in C, a few links.
"""
import io
import random
import subprocess
import tarfile
import time
from pathlib import Path

from clusters import ENV, wait
from loaders import measured

# Half of the files of such a tree have less than 4 KiB, a hundredth has more than 100 KiB.
SIZE_MEDIAN, SIZE_SPREAD, SIZE_MAX = 4000, 1.4, 400_000
FILES_OF_A_DIRECTORY = 18
LINKS_OF_A_THOUSAND = 5


def archive(path, files):
    """Writes an archive with so many files; how many entries it has."""
    chance = random.Random(f"a tree of {files} files")
    directories, entries = ["tree"], 0
    with tarfile.open(path, "w") as tar:
        def add(name, kind, content=b"", target=""):
            nonlocal entries
            entries += 1
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(content), target
            info.mode, info.mtime = 0o755 if kind == tarfile.DIRTYPE else 0o644, 1_600_000_000 + entries
            tar.addfile(info, io.BytesIO(content))

        add("tree", tarfile.DIRTYPE)
        made = 0
        while made < files:
            # Below any that is there, so that some are deep and most are not.
            above = chance.choice(directories)
            if above.count("/") > 7:
                continue
            here = f"{above}/{chance.choice(('drivers', 'arch', 'net', 'include', 'lib', 'tools'))}-{len(directories)}"
            directories.append(here)
            add(here, tarfile.DIRTYPE)
            for _ in range(min(files - made, 1 + int(chance.expovariate(1 / FILES_OF_A_DIRECTORY)))):
                size = min(SIZE_MAX, int(chance.lognormvariate(0, SIZE_SPREAD) * SIZE_MEDIAN))
                name = f"{here}/file-{made}.{chance.choice('cch')}"
                if chance.randrange(1000) < LINKS_OF_A_THOUSAND:
                    add(name, tarfile.SYMTYPE, target="../Makefile")
                else:
                    add(name, tarfile.REGTYPE, chance.randbytes(size))
                made += 1
    return entries


class Mount:
    """A file system, mounted by `ceph-fuse` at a directory of its own."""

    def __init__(self, server):
        self.at = server.dir / f"mount-{server.fs}"
        self.at.mkdir(exist_ok=True)
        log = open(server.dir / "ceph-fuse.log", "ab")
        argv = ["ceph-fuse", "-f", "-c", server.cluster.conf, "--client_fs", server.fs, "--log-file", server.dir / "ceph-fuse.out", self.at]
        self.process = subprocess.Popen([str(a) for a in argv], env=ENV, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self):
        wait(f"the mount of {self.at}", lambda: self.process.poll() is not None or self.at.is_mount())
        if self.process.poll() is not None:
            raise SystemExit(f"ceph-fuse ended with {self.process.returncode}: {(self.at.parent / 'ceph-fuse.log').read_text()[-2000:]}")
        return self.at

    def __exit__(self, *_):
        subprocess.run(["fusermount", "-u", "-z", str(self.at)], env=ENV, check=False)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def timed(server, entries, argv, at):
    """Runs a program in the mount, and has all that it did written: figures of an entry."""
    def work():
        began = time.monotonic()
        done = subprocess.run(argv, cwd=at, env=ENV, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{server.name}: {' '.join(argv)}: exit {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
        subprocess.run(["sync", "-f", str(at)], check=True)
        return {"seconds": time.monotonic() - began}
    said = measured(work, server.servers)
    figures = {"per_second": entries / said["seconds"], "mean": said["seconds"] / entries * 1e6, "failed": 0}
    figures |= {f"{kind} us": seconds / entries * 1e6 for kind, seconds in said["cpu"].items()}
    return figures | {f"{kind} MiB": mib for kind, mib in said["mib"].items()}


def tree(server, files, number):
    """Rows: tar extracts the tree, compares it by a client with nothing in its cache, and rm removes it."""
    source = server.dir.parent / f"tree-{files}.tar"
    if not source.exists():
        archive(source, files)
    with tarfile.open(source) as tar:
        entries = len(tar.getmembers())
    rows, place = {}, f"sources-{number}"
    with Mount(server) as at:
        (at / place).mkdir()
        rows["tar x"] = timed(server, entries, ["tar", "-x", "-f", str(source), "-C", place], at)
    with Mount(server) as at:
        rows["tar d"] = timed(server, entries, ["tar", "-d", "-f", str(source), "-C", place], at)
        rows["rm -r"] = timed(server, entries, ["rm", "-r", place], at)
        if left := [p.name for p in Path(at).iterdir() if p.name == place]:
            raise SystemExit(f"{server.name}: {left} is there after rm -r")
    return {f"{op} of a tree of {entries:,} entries, ceph-fuse": r for op, r in rows.items()}
