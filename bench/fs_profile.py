"""Where a metadata server's processor time goes, by groups of functions, as `perf` samples it while clients work.

A sample counts for the function that ran, not for those that called it: copies of memory are a group of their own.
"""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from clusters import cpu_seconds
from loaders import markdown

HERTZ = 997
# An operation is done to all files again until the server has had so much time, and so many times at most.
ENOUGH_S, TIMES_MAX = 3, 12
# The first that fits a symbol has it. Those of the kernel are told by their module.
KERNEL = (
    ("kernel: wake-ups, waiting", r"sched|wake|futex|epoll|ep_|select|switch|enqueue|dequeue|update_|pick_next|try_to|ttwu|hrtimer|nohz|tick|idle|eventfd|poll|rcu|mwait|pv_|load_avg|reweight|cpu_"),
    ("kernel: network", r"tcp|sock|skb|ip_|ip6|inet|net|dev_|loopback|nf_|__dev|sk_|iov|copy_user|copyin|copyout|rep_movs|copy_from|copy_to|csum|msg|recv|send"),
    ("kernel: memory", r"page|fault|mm|vma|alloc|free|slab|clear_|zap|lru|kmem|kmalloc|memcg|charge"),
    ("kernel: other", r""),
)
PROGRAM = (
    ("allocator", r"^(_?rjem_|je_|mi_|_mi_)|malloc|calloc|realloc|free$|alloc::(alloc|raw_vec)|arena|tcache|sdallocx|mallocx|rawvec|extent_"),
    ("copies, comparisons", r"memcpy|memmove|memset|memcmp|bcmp|_mem|strlen"),
    ("messenger, crypto", r"msgr|aes|gcm|ghash|crc32|crc|auth::|cephx|hmac|sha2|frame_sender|ring::|polyval"),
    ("encode, decode", r"denc|messages::|Encode|Decode|convert|at_rest|cephfs::|bytes::|BytesMut|encode|decode"),
    ("log, objecter", r"mdsd::log|mdsd::store|client::|objecter|crush|placement|types::osdmap|mdsd::rank::work"),
    ("scheduler of requests", r"qos::"),
    ("core state", r"mds::|btree|BTree|hashbrown|hash_map|rustc_hash|drop_in_place|VecDeque|core::slice|core::ptr|alloc::"),
    ("runtime, wake-ups", r"tokio|mio|park|epoll|syscall|pthread|vdso|clock_gettime|Instant|time::|std::|core::|futex|_start|clone"),
    ("other", r""),
)


def group(symbol, module):
    for name, pattern in KERNEL if "kernel" in module or module.startswith("[k") else PROGRAM:
        if re.search(pattern, symbol):
            return name
    raise AssertionError("the last pattern fits all")


def shares(data):
    """Parts of the time of a file that `perf` recorded: by group, and the most of symbols."""
    argv = ["perf", "report", "-i", str(data), "--stdio", "--no-children", "-g", "none", "--percent-limit", "0", "-F", "overhead,dso,sym", "-t", "\t"]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    groups, symbols = {}, []
    for line in lines:
        cells = [c.strip() for c in line.split("\t")]
        if line.startswith("#") or len(cells) != 3:
            continue
        part, module = float(cells[0].rstrip("%")), cells[1]
        level, _, symbol = cells[2].partition(" ")
        module = "[kernel]" if level == "[k]" else module
        name = group(symbol, module)
        groups[name] = groups.get(name, 0) + part
        symbols.append((part, name, symbol))
    if not groups:
        raise SystemExit(f"perf has no samples in {data}")
    return groups, sorted(symbols, reverse=True)


class Recording:
    """perf of a process. It takes samples while a block within it runs, `with recording.on()`."""

    def __init__(self, pid):
        if not shutil.which("perf"):
            raise SystemExit("perf is not there: install Debian's linux-perf, or leave `profile` out of --tests")
        self.dir = Path(tempfile.mkdtemp(prefix="siphon-perf.", dir="/var/tmp"))
        self.data = self.dir / "data"
        to_perf, self.commands = os.pipe()
        self.answers, from_perf = os.pipe()
        argv = ["perf", "record", "-q", "-F", str(HERTZ), "-p", str(pid), "-o", str(self.data), "-D", "-1", f"--control=fd:{to_perf},{from_perf}"]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pass_fds=(to_perf, from_perf))
        os.close(to_perf)
        os.close(from_perf)

    def tell(self, command):
        os.write(self.commands, f"{command}\n".encode())
        if not os.read(self.answers, 16).startswith(b"ack"):
            raise SystemExit(f"perf ended: {self.process.communicate()[1]}")

    @contextlib.contextmanager
    def on(self):
        self.tell("enable")
        yield
        self.tell("disable")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.communicate()
        os.close(self.commands)
        os.close(self.answers)
        try:
            if kind is None:
                self.groups, self.symbols = shares(self.data)
        finally:
            shutil.rmtree(self.dir, ignore_errors=True)


def profile(server, clients, files, number):
    """Groups and symbols under creates, and under stats of clients with nothing in their caches; by operation."""
    which, found, pid = (f"/profile-{number}", "--clients", clients, "--files", files), {}, server.daemon.process.pid
    server.load("dirs", *which)
    for op, before, after in (("create", None, "unlink"), ("stat", "drop", None)):
        begin = cpu_seconds(pid)
        with Recording(pid) as seen:
            for _ in range(TIMES_MAX):
                if before:
                    server.load(before)
                with seen.on():
                    server.load(op, *which)
                if cpu_seconds(pid) - begin > ENOUGH_S:
                    break
                if after:
                    server.load(after, *which)
            else:
                if after:
                    server.load(op, *which)
        found[f"{op}, {clients} clients"] = (seen.groups, seen.symbols)
    server.load("unlink", *which)
    return found


def rows(found):
    """Of each group its part of all operations."""
    names = [name for name, _ in (*PROGRAM, *KERNEL)]
    all_rows = [[name, *(groups.get(name, 0.0) for groups, _ in found.values())] for name in names]
    return [r for r in all_rows if any(r[1:])]


def tables(found, most=12):
    """Of the groups of all operations, and of the symbols of each."""
    text = markdown(["part of the server's time, %", *found], rows(found))
    for op, (_, symbols) in found.items():
        text += f"\n\n{op}:\n" + markdown(["%", "group", "symbol"], [[part, name, symbol[:100]] for part, name, symbol in symbols[:most]])
    return text
