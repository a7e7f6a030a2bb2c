"""SIGKILL of a metadata server with a standby, while clients have many capabilities.

Each client makes files, and keeps them in its cache. Then all go on with further ones, and the server is killed. The time
counts from the map of the monitors that gives the rank to the standby: how long they wait for beacons is a setting. It ends
for each client with its first answer after that.
"""
import json
import statistics
import threading
import time

from clusters import wait

POLL_S = 0.002
PATIENCE_S = 300


class Maps:
    """Looks at the monitors' maps again and again: when the rank went to another server, and when that was active."""

    def __init__(self, server, old):
        self.server, self.old = server, old
        self.seen, self.why = {}, None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        import rados
        try:
            with rados.Rados(conffile=str(self.server.cluster.conf)) as cluster:
                command, end = json.dumps({"prefix": "fs dump", "format": "json"}), time.monotonic() + PATIENCE_S
                while time.monotonic() < end:
                    code, out, said = cluster.mon_command(command, b"")
                    now = time.monotonic()
                    if code:
                        raise RuntimeError(said)
                    state = self.server.holder(json.loads(out))
                    if state and state["gid"] != self.old:
                        self.seen.setdefault(state["state"], now)
                        if state["state"] == "up:active":
                            return
                    time.sleep(POLL_S)
                raise RuntimeError(f"no standby was active within {PATIENCE_S} s; states were {list(self.seen)}")
        except Exception as e:
            self.why = e

    def wait(self):
        self.thread.join()
        if self.why:
            raise SystemExit(f"{self.server.name}: {self.why}")
        # The first state that was seen is that of the map that gave the rank away.
        return min(self.seen.values()), self.seen["up:active"]


def capabilities(server):
    sessions = json.loads(server.cluster.ceph("tell", f"mds.{server.active_name}", "session", "ls"))
    return sum(s["num_caps"] for s in sessions)


def failover(server, o, number):
    """Seconds from the map to answers, and what was there: by name."""
    name, clients = f"/failover-{number}", o.holders
    which = (name, "--clients", clients)
    files = ("--files", -(-o.capabilities // clients))
    server.load("dirs", *which)
    server.load("create", *which, *files)
    with server.standby():
        held = capabilities(server)
        if held < o.capabilities:
            raise SystemExit(f"{server.name}: the clients have {held} capabilities, {o.capabilities} were expected")
        server.load("begin", *which)
        # Each has made something.
        server.load("answered", "--after", time.monotonic())
        maps = Maps(server, server.gid())
        server.daemon.kill()
        killed = time.monotonic()
        given, active = maps.wait()
        server.takes_over()
        said = server.load("answered", "--after", given, "--end")
        first = sorted(at - given for at in said["first"])
        wait("the new server", server.active)
    # What was made before is there, and nothing else is.
    server.load("read", *which, *files)
    return {"capabilities": held, "kill to map s": given - killed, "map to active s": active - given, "first client s": first[0],
            "median client s": statistics.median(first), "last client s": first[-1]}
