"""The stock `ceph` command, forked from a process that has its modules loaded.

Most of the CPU time of a `ceph` command is Python that loads modules. `WarmCeph` starts one process
for a pytest run. That process loads the modules and compiles `/usr/bin/ceph`. Each command is then a
fork of it: the unchanged program in a process of its own, with the arguments, environment, directory
and files of the command.
"""
import array
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

PROGRAM = "/usr/bin/ceph"
REQUEST_BYTES_MAX = 1 << 20


class WarmCeph:
    """The side of the tests."""

    def __init__(self):
        self.process = None
        self.directory = None
        self.starting = threading.Lock()

    def start(self):
        self.directory = tempfile.TemporaryDirectory(prefix="warm-ceph.")
        path = f"{self.directory.name}/socket"
        self.process = subprocess.Popen(["/usr/bin/python3", str(Path(__file__).resolve()), path],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{PROGRAM} could not be loaded, exit {self.process.wait()}")

    def run(self, argv, data=None, timeout=None):
        """As `subprocess.run(argv, input=data, capture_output=True, timeout=timeout)`."""
        with self.starting:
            if not self.process:
                self.start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s, \
                tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            s.connect(f"{self.directory.name}/socket")
            if data:
                given.write(data)
                given.seek(0)
            request = {"argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}
            files = [given if data is not None else sys.__stdin__, out, err]
            fds = array.array("i", [f.fileno() for f in files])
            s.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            s.settimeout(timeout)
            pid = int(s.recv(64))
            try:
                status = s.recv(64)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                s.settimeout(None)
                s.recv(64)
                out.seek(0)
                err.seek(0)
                raise subprocess.TimeoutExpired(argv, timeout, out.read(), err.read()) from None
            if not status:
                raise RuntimeError(f"the process that waits for {argv} is gone")
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(argv, int(status), out.read(), err.read())

    def stop(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
            self.directory.cleanup()
            self.process = None


def serve(path):
    """The side of the process that has the modules: until its standard input ends."""
    import select

    # What the program imports, and what it imports once it runs.
    import argparse, errno, grp, platform, pwd, shlex, shutil, stat, string, threading, time, uuid  # noqa: F401,E401
    import ceph_argparse, ceph_daemon, rados, readline  # noqa: F401,E401

    with open(PROGRAM, "rb") as f:
        code = compile(f.read(), PROGRAM, "exec")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(64)
    # The kernel takes away the processes that wait for commands.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.write(1, b"ready\n")
    while True:
        ready, _, _ = select.select([listening, 0], [], [])
        if 0 in ready:
            return
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            os.close(0)
            wait_for(connection, code)
        connection.close()


def wait_for(connection, code):
    """Starts one command, tells its process number, and then how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, ancillary, _, _ = connection.recvmsg(REQUEST_BYTES_MAX, socket.CMSG_SPACE(3 * 4))
    fds = array.array("i")
    for _, _, given in ancillary:
        fds.frombytes(given[:len(given) - len(given) % fds.itemsize])
    pid = os.fork()
    if pid == 0:
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        os.closerange(3, 1024)
        command(json.loads(message), code)
    for fd in fds:
        os.close(fd)
    connection.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    try:
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        os._exit(0)


def command(request, code):
    """The program, in this process; does not return."""
    status = 1
    try:
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.stdin, sys.stdout, sys.stderr = (open(n, mode) for n, mode in ((0, "r"), (1, "w"), (2, "w")))
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
        sys.argv = [PROGRAM, *request["argv"][1:]]
        main = type(sys)("__main__")
        main.__file__ = PROGRAM
        sys.modules["__main__"] = main
        exec(code, main.__dict__)
        status = 0
    except SystemExit as e:
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
        status = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status & 0xff)


if __name__ == "__main__":
    serve(sys.argv[1])
