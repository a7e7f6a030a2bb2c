"""The command line."""
import argparse
import shutil
import sys
import time
import uuid
from pathlib import Path

from . import plan, report, run, scenarios, targets
from .runlog import RunDir


def parser():
    p = argparse.ArgumentParser(prog="study", description="What clients keep beside background work, under each scheduler and profile. docs/load-study.md says more.")
    sub = p.add_subparsers(dest="command", required=True)

    a = sub.add_parser("run", help="run a study, or go on with one of the same plan", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    a.add_argument("dir", help="where everything is recorded; a new directory, or one of an interrupted run")
    a.add_argument("--cluster", action="append", default=[], metavar="WHICH", help="`siphon` and `ceph` are started on this machine; NAME=CEPH.CONF is a running one (several)")
    a.add_argument("--profiles", default=",".join(plan.DEFAULT), help="schedulers and profiles, see `list`")
    a.add_argument("--custom", action="append", default=[], metavar="CLASS=RES/WGT/LIM", help="what the profile `custom` gives a class (several); else what is set in the cluster")
    a.add_argument("--scenarios", default="baseline,test-a,test-b", help="see `list`")
    a.add_argument("--sessions", default="1,4,16,64", help="sessions of the noisy neighbour")
    a.add_argument("--repeats", type=int, default=1, help="rounds; figures are then medians")
    a.add_argument("--scale", default="auto", help="1 is the published study (2.4 TB of data); `auto` goes by this machine's cores and free disk")
    a.add_argument("--size", action="append", default=[], metavar="NAME=VALUE", help="one of the sizes that the scale gives (`list` shows them)")
    a.add_argument("--driver", choices=["fio-rbd", "fio-rados", "rados-bench"], default="fio-rbd", help="the client under study")
    a.add_argument("--mode", default="randwrite", choices=["randwrite", "randread", "randrw"])
    a.add_argument("--block", default="4k", help="bytes of an operation")
    a.add_argument("--osd", type=int, default=None, help="the OSD that goes down or out (default: the last)")
    a.add_argument("--restart-osds", metavar="COMMAND", help="restarts OSD {id} of a running cluster, where osd_op_queue has to change")
    a.add_argument("--pids", default="", help="server processes of a running cluster, if they are on this machine, for processor time")
    a.add_argument("--disturb", action="store_true", help=f"allow {' and '.join(scenarios.DISTURBING)} on running clusters: an OSD goes down or out")
    a.add_argument("--osds", type=int, default=4, help="OSDs of started clusters")
    a.add_argument("--osd-size", type=int, default=8, help="GiB of each")
    a.add_argument("--option", action="append", default=[], metavar="CLUSTER:NAME=VALUE", help="an option of the OSDs of a started cluster (several)")
    a.add_argument("--work", default=None, help="where started clusters keep their data (default: a new directory in /var/tmp)")

    for name, text in (("resume", "go on with an interrupted run"), ("report", "make the report again from what was recorded"), ("clean-up", "put back what a killed run left in running clusters")):
        a = sub.add_parser(name, help=text)
        a.add_argument("dir")
        if name == "resume":
            a.add_argument("--work", default=None)
    a = sub.add_parser("list", help="scenarios, profiles, and the sizes of a scale")
    a.add_argument("--scale", default="auto")
    return p


def scale_of(text, work):
    if text != "auto":
        return float(text)
    return plan.automatic_scale(shutil.disk_usage(work or "/var/tmp").free)


def sizes_of(o):
    s = plan.sizes(scale_of(o.scale, o.work))
    for x in o.size:
        name, _, value = x.partition("=")
        if name not in s:
            raise SystemExit(f"--size {x}: there is no such size; `list` shows them")
        s[name] = type(s[name])(float(value))
    return s


def manifest_of(o):
    clusters = [targets.parse(c) for c in o.cluster or ["siphon"]]
    if len({c["name"] for c in clusters}) < len(clusters):
        raise SystemExit("each --cluster needs a name of its own")
    profiles, custom = plan.expand(o.profiles.split(",")), plan.custom(o.custom)
    wanted = scenarios.expand(o.scenarios.split(","), [int(n) for n in o.sessions.split(",")])
    given = [c["name"] for c in clusters if c["conf"]]
    if given and not o.disturb and any(s in scenarios.DISTURBING for s in wanted):
        raise SystemExit(f"{', '.join(given)}: {' and '.join(scenarios.DISTURBING)} take an OSD down or out; if that may be, say --disturb")
    return {
        "format": 1, "prefix": f"study-{uuid.uuid4().hex[:6]}", "began": time.strftime("%Y-%m-%d %H:%M:%S %z"), "machine": run.machine(),
        "plan": {"clusters": clusters, "profiles": profiles, "scenarios": wanted, "repeats": o.repeats}, "sizes": sizes_of(o),
        "client": {"driver": o.driver, "mode": o.mode, "block": o.block, "osd": o.osd},
        "options": {"osds": o.osds, "osd_size": o.osd_size, "option": o.option, "restart_osds": o.restart_osds, "custom": custom, "pids": [int(p) for p in o.pids.split(",") if p]},
    }


def go(rundir, manifest, work):
    try:
        ok = run.Run(rundir, manifest, work).all()
    except KeyboardInterrupt as e:
        print(f"interrupted{f' ({e})' if str(e) else ''}; `resume {rundir.path}` goes on", file=sys.stderr)
        return 130
    for path in report.write(rundir):
        print(path)
    return 0 if ok else 1


def main(argv=None):
    o = parser().parse_args(argv)
    if o.command == "list":
        print("Scenarios:")
        for name, f in scenarios.SCENARIOS.items():
            print(f"  {name:12} {' '.join(f.__doc__.split())}")
        print(f"Profiles: {', '.join(plan.PROFILES)}; Siphon only: {', '.join(filter(plan.only_siphon, plan.PROFILES))}")
        for name, members in plan.GROUPS.items():
            print(f"  {name} = {','.join(members)}")
        print("Sizes:")
        for name, value in plan.sizes(scale_of(o.scale, None)).items():
            print(f"  {name} = {value}")
        return 0
    rundir = RunDir(Path(o.dir).resolve())
    if o.command == "run":
        return go(rundir, rundir.begin(manifest_of(o)), o.work)
    if not rundir.exists():
        raise SystemExit(f"{o.dir} holds no recorded run")
    if o.command == "resume":
        return go(rundir, rundir.manifest(), o.work)
    if o.command == "clean-up":
        return 0 if run.clean_up(rundir, rundir.manifest()) else 1
    for path in report.write(rundir):
        print(path)
    return 0
