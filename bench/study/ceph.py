"""Commands of a cluster, through the system's librados: a process of `ceph` for each sample would itself be load."""
import json


class CommandFailed(Exception):
    def __init__(self, prefix, code, text):
        super().__init__(f"{prefix}: error {code} {text}".strip())
        self.code = code


class Ceph:
    """A connection as client.admin, and the parts of the command interface that a study needs."""

    def __init__(self, conf):
        self.conf, self.handle = conf, None

    @property
    def rados(self):
        if self.handle is None:
            try:
                import rados
            except ImportError:
                raise SystemExit("the system's Python needs Ceph's binding: apt install python3-rados, and use /usr/bin/python3")
            handle = rados.Rados(conffile=str(self.conf), conf={"client_mount_timeout": "60", "rados_mon_op_timeout": "120", "rados_osd_op_timeout": "300"})
            handle.connect(60)
            self.handle = handle
        return self.handle

    def close(self):
        if self.handle is not None:
            self.handle.shutdown()
            self.handle = None

    @staticmethod
    def answer(prefix, reply):
        code, out, text = reply
        if code:
            raise CommandFailed(prefix, code, text)
        out = out.decode() if isinstance(out, bytes) else out
        try:
            return json.loads(out) if out.strip() else None
        except json.JSONDecodeError:
            return out

    def mon(self, prefix, **args):
        return self.answer(prefix, self.rados.mon_command(json.dumps({"prefix": prefix, "format": "json", **args}), b"", timeout=120))

    def mgr(self, prefix, **args):
        return self.answer(prefix, self.rados.mgr_command(json.dumps({"prefix": prefix, "format": "json", **args}), b"", timeout=120))

    def osd(self, osd, prefix, **args):
        return self.answer(prefix, self.rados.osd_command(osd, json.dumps({"prefix": prefix, "format": "json", **args}), b"", timeout=60))

    # -- what a study asks

    def status(self):
        return self.mon("status")

    def states(self):
        return {s["state_name"]: s["count"] for s in self.status()["pgmap"].get("pgs_by_state", [])}

    def is_siphon(self):
        return any("siphon" in v.lower() for v in self.mon("versions").get("overall", {}))

    def version(self):
        return " / ".join(sorted(self.mon("versions").get("overall", {})))

    def osds(self):
        """{id: (up, in)}"""
        return {o["osd"]: (bool(o["up"]), bool(o["in"])) for o in self.mon("osd dump")["osds"]}

    def flags(self):
        return set(self.mon("osd dump").get("flags", "").split(","))

    def pools(self):
        return {p["pool_name"]: p["pool"] for p in self.mon("osd dump")["pools"]}

    def pool_stats(self):
        """{pool id: sums of its groups}"""
        dump = self.mgr("pg dump", dumpcontents=["pools"])
        return {p["poolid"]: p["stat_sum"] for p in dump.get("pool_stats") or dump.get("pg_map", {}).get("pool_stats", [])}

    def pg_stats(self):
        dump = self.mgr("pg dump", dumpcontents=["pgs"])
        return dump.get("pg_stats") or dump.get("pg_map", {}).get("pg_stats", [])

    def setting(self, who, option):
        """The option as it is set for a section or daemon in the monitors' store, or None."""
        for row in self.mon("config dump"):
            if row["section"] == who and row["name"] == option and not row.get("mask"):
                return row["value"]
        return None

    def running(self, osd, option):
        """The value that holds in an OSD now."""
        return str(self.osd(osd, "config get", var=option)[option])
