"""Scripts that steer data by upmaps, unmodified: what they do on a stock cluster, they do here.

They are other people's programs and not part of this tree. `SIPHON_UPMAP_TOOLS` names a directory with
`upmap-remapped.py` (github.com/cernceph/ceph-scripts, tools/upmap), `placementoptimizer.py`
(github.com/TheJJ/ceph-balancer) and `pgremapper` (github.com/digitalocean/pgremapper, `go build`). With
`SIPHON_TEST_DIFFERENTIAL=1` the same runs on a stock cluster beside ours.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import ROOT, Cluster, eventually

TOOLS = os.environ.get("SIPHON_UPMAP_TOOLS")
BOTH = ["siphon", "stock"] if os.environ.get("SIPHON_TEST_DIFFERENTIAL") == "1" else ["siphon"]
OSDS = 6
MAP_CHANGED = "epoch changed during information gathering"

pytestmark = [
    pytest.mark.skipif(not TOOLS, reason="SIPHON_UPMAP_TOOLS names a directory with the scripts"),
    pytest.mark.skipif("SIPHON_TEST_CONF" in os.environ, reason="a cluster of its own is moved about"),
]


class Steered(Cluster):
    """A cluster that scripts steer, which look for it in /etc/ceph."""

    def tool(self, name, *args, pipe=""):
        """Runs a script with /etc/ceph/ceph.conf being this cluster's, in a mount namespace of its own."""
        with tempfile.TemporaryDirectory() as etc:
            text = Path(self.conf).read_text()
            (Path(etc) / "ceph.conf").write_text(text)
            keyring = Path(self.conf).parent / "keyring"
            if keyring.exists():
                shutil.copy(keyring, Path(etc) / "ceph.client.admin.keyring")
            program = f"{sys.executable} {TOOLS}/{name}" if name.endswith(".py") else f"{TOOLS}/{name}"
            line = f"mkdir -p /etc/ceph && mount --bind {etc} /etc/ceph && {program} {' '.join(args)} {pipe}"
            run = lambda: subprocess.run(["unshare", "-m", "sh", "-c", line], capture_output=True, text=True, timeout=300)
            out = run()
            tries = 5
            # placementoptimizer gives up if the map changes while it reads, and says that it may be tried again. A stock
            # cluster changes its map for some time after its groups are clean.
            while MAP_CHANGED in out.stderr and tries:
                self.settled()
                out, tries = run(), tries - 1
        assert "Traceback" not in out.stderr and out.returncode == 0, out.stdout + out.stderr
        return out.stdout

    def groups(self):
        return {p["pgid"]: p for p in self.ceph_json("pg", "dump", "pgs_brief")["pg_stats"]}

    def upmaps(self):
        return {u["pgid"]: [(m["from"], m["to"]) for m in u["mappings"]] for u in self.ceph_json("osd", "dump")["pg_upmap_items"]}

    def states(self):
        return {s["name"] for s in self.ceph_json("pg", "stat")["pg_summary"]["num_pg_by_state"]}

    def settled(self):
        """Waits until the map stays the same for some time."""
        seen = []

        def same():
            seen.append(self.ceph_json("osd", "dump")["epoch"])
            return len(seen) > 15 and len(set(seen[-15:])) == 1

        eventually(same, timeout=120, what="a map that stays")

    def clean(self):
        eventually(lambda: self.states() == {"active+clean"}, timeout=180, what="all groups to be clean")


@pytest.fixture(scope="module", params=BOTH)
def cl(request, siphon_factory):
    if request.param == "siphon":
        c = siphon_factory(osds=OSDS)
        c.start()
        base, conf = None, c.conf
    else:
        sys.path.insert(0, str(ROOT / "bench"))
        from peer import Stock
        base = Path(tempfile.mkdtemp(prefix="siphon-tools.", dir="/var/tmp"))
        c = Stock(base, osd_gb=2, osds=OSDS, pgs=8)
        c.start()
        conf = c.conf
    cl = Steered(conf, "crc")
    cl.ceph("osd", "set-require-min-compat-client", "luminous")
    cl.ceph("balancer", "off")
    # Logs that are shorter than a group's history: what moves is filled, not recovered.
    for name, value in ("osd_min_pg_log_entries", "10"), ("osd_max_pg_log_entries", "20"), ("osd_pg_log_trim_min", "5"):
        cl.ceph("config", "set", "osd", name, value)
    # pgremapper looks for parents of an OSD and of a host.
    for n in range(OSDS):
        cl.ceph("osd", "crush", "move", f"osd.{n}", "root=default", f"host=h{n}")
    cl.make_pool("data", pg_num=16)
    cl.run("rados", "-p", "data", "bench", "600", "write", "-b", "4096", "-t", "8", "--max-objects", "1200", "--no-cleanup")
    for n in range(32):
        cl.rados("-p", "data", "put", f"o{n}", "-", data=bytes([n]) * 200_000)
    cl.clean()
    yield cl
    if base:
        c.stop()
        shutil.rmtree(base, ignore_errors=True)


def weights(cl):
    return {n["id"]: n["crush_weight"] for n in cl.ceph_json("osd", "tree")["nodes"] if n["id"] >= 0}


@pytest.fixture
def remapped(cl):
    """Groups that are to move, and do not: a weight changed under `norebalance`."""
    cl.clean()
    weight = weights(cl)[0]
    cl.ceph("osd", "set", "norebalance")
    cl.ceph("osd", "set", "nobackfill")
    cl.ceph("osd", "crush", "reweight", "osd.0", str(weight / 4))
    eventually(lambda: [p for p in cl.groups().values() if p["up"] != p["acting"]] and not any("peering" in s or "activating" in s for s in cl.states()),
               what="groups that are remapped")
    # What a log can bring is recovered all the same: only what is remapped is to stay.
    yield {pg: sorted(p["acting"]) for pg, p in cl.groups().items()}
    cl.ceph("osd", "unset", "norebalance")
    cl.ceph("osd", "unset", "nobackfill")
    for pg in cl.upmaps():
        cl.ceph("osd", "rm-pg-upmap-items", pg)
    cl.ceph("osd", "crush", "reweight", "osd.0", str(weight))
    cl.clean()


def stays(cl, where):
    """Nothing is remapped any more, and everything is where it was."""
    eventually(lambda: all(sorted(p["up"]) == sorted(p["acting"]) for p in cl.groups().values()) and not any("remapped" in s for s in cl.states()),
               timeout=60, what="nothing to be remapped")
    assert {pg: sorted(p["up"]) for pg, p in cl.groups().items()} == where
    assert cl.upmaps()


def test_upmap_remapped(cl, remapped):
    cl.tool("upmap-remapped.py", pipe="| sh")
    stays(cl, remapped)
    # Again: there is nothing to do, and what is there is not taken away.
    before = cl.upmaps()
    said = cl.tool("upmap-remapped.py")
    assert "pg-upmap-items" not in said and cl.upmaps() == before


def test_pgremapper_cancels_backfill_and_gives_it_back(cl, remapped):
    said = cl.tool("pgremapper", "cancel-backfill")
    assert "->" in said and not cl.upmaps(), "without --yes it only says what it would do"
    cl.tool("pgremapper", "cancel-backfill", "--yes")
    stays(cl, remapped)
    exported = json.loads(cl.tool("pgremapper", "export-mappings", "0"))
    assert exported and all(m["mapping"]["from"] == 0 or m["mapping"]["to"] == 0 for m in exported)
    held = sum(len(m) for m in cl.upmaps().values())
    cl.tool("pgremapper", "undo-upmaps", "0", "--max-source-backfills", "9", "--max-backfill-reservations", "9", "--yes")
    assert sum(len(m) for m in cl.upmaps().values()) < held


def test_pgremapper_drains_one_osd_onto_others(cl):
    on = lambda osd: sum(osd in p["up"] for p in cl.groups().values())
    before = on(5)
    cl.tool("pgremapper", "drain", "5", "--target-osds", "1,2,3", "--allow-movement-across", "host", "--max-backfill-reservations", "2", "--max-source-backfills", "2", "--yes")
    eventually(lambda: on(5) < before, what="groups to leave")
    cl.clean()
    for pg in cl.upmaps():
        cl.ceph("osd", "rm-pg-upmap-items", pg)
    cl.clean()


def test_placementoptimizer(cl):
    on = lambda osd: sum(osd in p["up"] for p in cl.groups().values())
    assert "osdid" in cl.tool("placementoptimizer.py", "show", "--osds").lower()
    spread = lambda: max(map(on, range(OSDS))) - min(map(on, range(OSDS)))
    before = spread()
    said = cl.tool("placementoptimizer.py", "balance", "--max-pg-moves", "8", "--ensure-variance-decrease")
    moves = [line for line in said.splitlines() if "pg-upmap-items" in line]
    for line in moves:
        cl.ceph(*line.split()[1:])
    cl.clean()
    assert len(cl.upmaps()) >= len({m.split()[3] for m in moves}) and spread() <= max(before, 2)
    for n in range(32):
        assert cl.run("rados", "-p", "data", "get", f"o{n}", "-").stdout == bytes([n]) * 200_000
