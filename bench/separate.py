"""Siphon with daemons that are processes of their own, each of which can be killed, stopped and started again by its name (`osd.0`)."""
import os
import sys
from pathlib import Path

from clusters import BINARY, Siphon

os.environ.setdefault("SIPHON_BIN", str(BINARY))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/clients"))
from processes import Processes, siphon  # noqa: E402


class Separate(Siphon):
    """On one host, or on as many as one says; with more `managers` than one, the others take the first one's place."""

    daemons = None

    def __init__(self, directory, options=(), osd_gb=20, osds=3, mons=1, hosts=1, managers="x", pgs=64):
        super().__init__(directory, options, osd_gb, osds)
        self.mons, self.hosts, self.managers, self.pgs = mons, hosts, managers, pgs

    def __getitem__(self, name):
        return self.daemons[name]

    @property
    def processes(self):
        return [d.process for d in self.daemons.daemons.values() if d.running] if self.daemons else []

    def up(self):
        first = self.daemons is None
        if first:
            self.daemons = Processes(self.dir, self.mons, self.hosts)
            self.conf = self.daemons.conf
        self.daemons.start_mons()
        if first:
            self.make_daemons()
        rest = [d for name, d in self.daemons.daemons.items() if not name.startswith("mon.")]
        for d in rest:
            d.spawn()
        for d in rest:
            d.wait_serving()

    def make_daemons(self):
        homes = self.daemons.dirs
        for name in self.managers[1:]:
            siphon("add", "mgr", "--data-dir", homes[0], "--name", name)
            self.daemons.daemon(homes[0], f"mgr.{name}")
        for i in range(self.osds):
            where = ("--host", f"peer{i % self.hosts}") if self.hosts > 1 else ()
            n = siphon("add", "osd", "--data-dir", homes[i % len(homes)], "--size", f"{self.osd_gb}G", *where).strip()
            self.daemons.daemon(homes[i % len(homes)], f"osd.{n}")

    def stop(self):
        if self.daemons:
            self.daemons.stop()
