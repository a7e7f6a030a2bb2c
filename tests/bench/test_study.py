"""The load study (bench/study) without any cluster: its arithmetic, its run directory, and what it leaves behind."""
import copy
import json
import os
import random
import shutil
import signal
import statistics
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from study import cli, drivers, figures, plan, report, run, runlog, scenarios, targets  # noqa: E402
from study.ceph import Ceph, CommandFailed  # noqa: E402

RECORDED = Path(__file__).parent / "recorded-run"


# -- arithmetic


def test_bins_are_as_fine_as_they_say():
    for n in [0, 1, 127, 128, 129, 1000, 4095, 4096, 999_999, 123_456_789, 5_000_000_000]:
        assert abs(figures.bin_value(figures.bin_of(n)) - n) <= n / 64, n
    # Bins follow one another without holes.
    values = [figures.bin_value(i) for i in range(1856)]
    assert values == sorted(set(values))
    assert [figures.bin_of(figures.bin_value(i)) for i in range(1856)] == list(range(1856))


def histogram(latencies):
    bins = {}
    for n in latencies:
        bins[figures.bin_of(n)] = bins.get(figures.bin_of(n), 0) + 1
    return bins


def test_percentiles_and_means_are_those_of_the_operations():
    rng = random.Random(1)
    latencies = sorted(int(rng.lognormvariate(14, 1)) for _ in range(20000))
    bins = histogram(latencies)
    assert figures.mean(bins) == pytest.approx(statistics.fmean(latencies) / 1e6, rel=0.01)
    for p in (50, 95, 99, 99.5):
        assert figures.percentile(bins, p) == pytest.approx(latencies[int(len(latencies) * p / 100)] / 1e6, rel=0.03)
    assert figures.mean({}) is None and figures.percentile({}, 99) is None


def row(start, end, latency_ms, n, load="client", job=1):
    return {"load": load, "job": job, "from": start, "t": end, "n": n, "bins": {str(figures.bin_of(latency_ms * 1e6)): n}}


def test_a_window_takes_parts_of_rows_and_adds_jobs_up():
    rows = [row(0, 1, 2, 100), row(1, 2, 2, 100), row(0.5, 1.5, 2, 50, job=2), row(2, 6, 8, 8)]
    w = figures.window(rows, 0, 1.5)
    assert w["n"] == pytest.approx(100 + 50 + 50) and w["iops"] == pytest.approx(200 / 1.5)
    assert figures.window(rows, 2, 4)["iops"] == pytest.approx(2), "an operation that took four seconds is in each of them in part"
    assert figures.window(rows, 10, 12)["iops"] == 0 and figures.window(rows, 10, 12)["mean"] is None
    assert [(k, n) for k, n, _, _ in figures.seconds(rows, 0)] == [(0, pytest.approx(125)), (1, pytest.approx(125)), (2, 2), (3, 2), (4, 2), (5, 2)]


def recorded(during=50, latency=4.0, end="trimming ended"):
    """A client of 100 IOPS at 2 ms for ten seconds, then less beside a job of 80 that takes eight."""
    loads = [row(k, k + 1, 2, 100) for k in range(10)] + [row(k, k + 1, latency, during) for k in range(10, 18)] + [row(18, 19, 2, 100)]
    samples = [{"t": float(t), "cpu": t * 1.5, "other": t * 0.25, "left": {"trimming": max(0, 80 - max(0, t - 10) * 10)}} for t in range(20)]
    marks = {"base": 2.0, "released": 10.0, "background ended": 18.0}
    result = {"status": "done", "client": "client", "marks": marks | ({end: 18.0} if end else {}), "work": {"trimming": 80}}
    return result, loads, samples


def test_the_figures_of_a_cell():
    f = figures.cell_figures(*recorded())
    assert f["base"]["iops"] == 100 and f["during"]["iops"] == 50 and f["kept"] == 50
    assert f["mean change"] == pytest.approx(100, rel=0.04) and f["p99 change"] == pytest.approx(100, rel=0.04)
    assert f["jobs"]["trimming"] == {"work": 80, "seconds": 8.0, "left": 0, "rate": 10.0}
    assert f["cores"] == pytest.approx(1.5) and f["disturbed"] == pytest.approx(0.25)
    assert f["overall"]["iops"] == pytest.approx((10 * 100 + 8 * 50 + 100) / 19)


def test_a_job_that_outlives_the_client_is_told_by_what_it_had_left():
    result, loads, samples = recorded(end=None)
    result["marks"]["background ended"] = 14.0
    assert figures.cell_figures(result, loads, samples)["jobs"]["trimming"] == {"work": 80, "seconds": 4.0, "left": 40, "rate": 10.0}


def test_rates_follow_what_is_left():
    _, _, samples = recorded()
    r = dict(figures.rates(samples, "trimming", 10))
    assert r[-1.0] == 0 and r[1.0] == 10 and r[7.0] == 10
    assert sum(v * 2 for v in r.values()) == 80


def test_rounds_are_merged_to_medians_number_by_number():
    one, two, three = ({"base": {"iops": i}, "jobs": {"trimming": {"rate": r}}, "kept": None} for i, r in ((1, 30), (5, 10), (2, None)))
    assert figures.merge([one, two, three]) == {"base": {"iops": 2}, "jobs": {"trimming": {"rate": 20}}, "kept": None}


def test_a_tenants_floor_is_held_second_by_second():
    rows = [row(k, k + 1, 1, n, load="gold") for k, n in enumerate([200, 200, 97, 99, 200])]
    t = figures.tenant(rows, "gold", 100, 0, 5)
    assert t["least second"] == 97 and t["seconds below 98 %"] == 1 and t["seconds seen"] == 5 and t["attained"] == pytest.approx(159.2)


def test_orders_know_what_is_within_the_noise():
    assert report.ordered([300, 200, 100]).startswith("yes (")
    assert report.ordered([300, 290, 100]).startswith("yes, in part")
    assert report.ordered([300, 295, 303]).startswith("no difference")
    assert report.ordered([300, 330, 100]).startswith("no (")
    assert report.compared(100, 90, True).startswith("not worse") and report.compared(97, 100, True).startswith("within noise")
    assert report.compared(120, 100, False).startswith("worse")
    assert report.judged(90, 90, True).endswith("met") and report.judged(26, 25, False).endswith("missed")


def test_clusters_take_turns_and_profiles_go_there_and_back():
    cells = plan.order(["a", "b"], ["wpq", "balanced"], ["test-a", "test-b"], 2)
    assert [c["target"] for c in cells] == ["a", "b"] * 8
    assert [c["profile"] for c in cells[::2]] == ["wpq", "balanced", "balanced", "wpq"] * 2
    assert len({c["id"] for c in cells}) == 16


def test_sizes_are_the_published_ones_at_scale_one_and_fit_small_machines():
    one = plan.sizes(1)
    assert (one["objects"], one["object_size"], one["recovery_objects"], one["lead"]) == (100000, 4 << 20, 30000, 30)
    small = plan.sizes(plan.automatic_scale(20 << 30, cores=2))
    assert small["objects"] * small["object_size"] * 6 < 20 << 30
    for bad in (0, -1, 11):
        with pytest.raises(SystemExit):
            plan.sizes(bad)


def test_what_is_left_goes_by_what_was_measured():
    eta = plan.Eta(plan.sizes(0.1))
    cells = plan.order(["a", "b"], ["wpq", "balanced"], ["test-a"], 1)
    guess = eta.left(cells)
    eta.add(cells[0], guess)
    assert eta.left(cells[1:]) == pytest.approx(3 * guess), "another cluster is taken to be as slow until it was measured"
    eta.add(cells[1], 1)
    assert eta.left(cells[2:]) == pytest.approx(guess + 1)


def test_profiles_are_named_alone_and_in_groups():
    assert plan.expand(["quincy", "wpq", "quincy-balanced"]) == ["quincy-high_client_ops", "quincy-balanced", "quincy-high_recovery_ops", "wpq"]
    with pytest.raises(SystemExit, match="there is no profile lottery"):
        plan.expand(["lottery"])
    old = [f"{of}-{name}" for of in ("quincy", "quincy-study") for name in plan.BUILT_IN]
    assert [p for p in plan.PROFILES if plan.only_siphon(p)] == ["fifo", "auto", *old]
    assert plan.settings("quincy-study-balanced", True)["osd_mclock_allocations"] == "quincy_study"
    assert plan.settings("fifo", True) == {"osd_op_queue": "fifo"}
    assert plan.settings("auto", True) == {"osd_op_queue": "mclock_scheduler", "osd_mclock_profile": "auto"}
    quincy, reef, stock = plan.settings("quincy-balanced", True), plan.settings("balanced", True), plan.settings("balanced", False)
    assert (quincy["osd_mclock_allocations"], reef["osd_mclock_allocations"]) == ("quincy", "reef") and "osd_mclock_allocations" not in stock
    assert quincy["osd_mclock_profile"] == reef["osd_mclock_profile"] == stock["osd_mclock_profile"] == "balanced"


def test_what_custom_gives_classes():
    options = plan.custom(["client=0.6/2/0", "recovery=0.4/1/0.5"])
    assert options["osd_mclock_scheduler_client_res"] == "0.6" and options["osd_mclock_scheduler_client_wgt"] == "2"
    assert options["osd_mclock_scheduler_background_recovery_lim"] == "0.5" and len(options) == 6
    assert plan.settings("custom", True, options).items() >= options.items() and plan.settings("balanced", True, options).keys().isdisjoint(options)
    for bad, why in (["client=1"], "form"), (["client=0.1/x/0"], "form"), (["scrub=0.1/1/0"], "no such class"), (["client=0.1/0/0"], "at least 1"), (["client=0.8/1/0", "recovery=0.3/1/0"], "110 %"):
        with pytest.raises(SystemExit, match=why):
            plan.custom(bad)


# -- drivers' output


def test_fios_histograms_become_rows():
    line = lambda at, direction, counts: f"{at}, {direction}, 4096, " + ", ".join(str(counts.get(i, 0)) for i in range(1856))
    rows = drivers.histograms([line(5000, 0, {700: 3}), line(5004, 1, {700: 1, 800: 2}), line(6001, 1, {700: 4}), line(9000, 1, {900: 1})], "client", 7)
    assert [(r["from"], r["t"], r["n"]) for r in rows] == [(4.0, 5.0, 6), (5.0, 6.001, 4), (6.001, 9.0, 1)]
    assert rows[0]["bins"] == {"700": 4, "800": 2} and rows[0]["job"] == 7


def test_rados_benchs_lines_become_rows():
    text = """  sec Cur ops   started  finished  avg MB/s  cur MB/s last lat(s)  avg lat(s)
    0       0         0         0         0         0           -           0
    1      16      1016      1000   3.90600   3.90625   0.0158   0.0100
    2      16      3016      3000   5.85900   7.81250   0.0158   0.0200
    3      16      3016      3000   3.90600         0           -   0.0200
"""
    rows = drivers.bench_rows(text.splitlines(), "client", 100.0)
    assert [(r["from"], r["t"], r["n"]) for r in rows] == [(100, 101, 1000), (101, 102, 2000)] + ([(102, 103, 0)] if len(rows) == 3 else [])
    assert figures.window(rows, 101, 102)["mean"] == pytest.approx(25, rel=0.02), "the mean of the second, not that of all so far"


# -- a cluster that is not there


class FakeCeph(Ceph):
    """Answers as a cluster of four OSDs would. Background work makes progress each time that somebody looks."""

    def __init__(self):
        super().__init__("/nonexistent/ceph.conf")
        self.options = {("osd", "osd_max_backfills"): "3"}
        self.queue = "mclock_scheduler"
        self.set_flags, self.pool_ids, self.up, self.inside = {"sortbitwise"}, {"rbd": 1}, {0, 1, 2, 3}, {0, 1, 2, 3}
        self.looks = self.groups = 0
        self.clones, self.trimming, self.degraded, self.refused, self.lock = {}, set(), 0, set(), threading.RLock()
        self.before = self.state()

    def state(self):
        return copy.deepcopy((self.options, self.queue, self.set_flags, self.pool_ids, self.up, self.inside))

    def mon(self, prefix, **a):
        with self.lock:
            if prefix in self.refused:
                raise CommandFailed(prefix, -95, "not supported")
            return self.command(prefix, **a)

    def command(self, prefix, **a):
        match prefix:
            case "status":
                return {"pgmap": {"pgs_by_state": [{"state_name": "active+clean", "count": 64}]}, "osdmap": {"num_up_osds": len(self.up)}}
            case "versions":
                return {"overall": {"ceph version 16.2.15 pacific": 6}}
            case "osd dump":
                return {"osds": [{"osd": i, "up": int(i in self.up), "in": int(i in self.inside)} for i in range(4)], "flags": ",".join(sorted(self.set_flags)),
                        "pools": [{"pool_name": n, "pool": i} for n, i in self.pool_ids.items()]}
            case "config dump":
                return [{"section": who, "name": name, "value": value, "mask": ""} for (who, name), value in self.options.items()]
            case "config set":
                self.options[a["who"], a["name"]] = a["value"]
            case "config rm":
                self.options.pop((a["who"], a["name"]), None)
            case "osd set":
                self.set_flags.add(a["key"])
            case "osd unset":
                self.set_flags.discard(a["key"])
                if a["key"] == "noup":
                    self.up = {0, 1, 2, 3}
            case "osd down":
                self.up -= {int(i) for i in a["ids"]}
            case "osd out":
                self.inside -= {int(i) for i in a["ids"]}
                self.degraded = 30
            case "osd in":
                self.inside |= {int(i) for i in a["ids"]}
            case "osd pool create":
                self.pool_ids[a["pool"]] = max(self.pool_ids.values()) + 1
            case "osd pool delete":
                del self.pool_ids[a["pool"]]
            case "osd pool set" | "osd pool application enable":
                pass
            case _:
                raise CommandFailed(prefix, -22, "what is that?")
        return None

    def mgr(self, prefix, **a):
        if prefix != "pg dump":
            raise CommandFailed(prefix, -22, "what is that?")
        with self.lock:
            for pool in self.trimming:
                self.clones[pool] = max(0, self.clones[pool] - 40)
            if "nobackfill" not in self.set_flags:
                self.degraded = max(0, self.degraded - 10)
            return {"pool_stats": [{"poolid": i, "stat_sum": {"num_object_clones": self.clones.get(n, 0), "num_objects_degraded": self.degraded if n == "rbd" else 0,
                                                              "num_objects_misplaced": 0, "num_objects_recovered": 0,
                                                              "num_write": self.look()}} for n, i in self.pool_ids.items()]}

    def look(self):
        """Counts up, as if there always were writes."""
        self.looks += 1
        return self.looks

    def osd(self, osd, prefix, **a):
        if prefix == "config get":
            option = a["var"]
            return {option: self.queue if option == "osd_op_queue" else self.options.get(("osd", option), "default")}
        if prefix == "status":
            with self.lock:
                self.groups = max(4 * len(self.pool_ids), self.groups - 3)
                return {"num_pgs": self.groups}
        return dict(osd_op_queue=self.queue, unrelated="1")


class FakeObjects:
    def __init__(self, ceph, pool, count):
        self.ceph, self.pool, self.count, self.snaps = ceph, pool, count, False

    def write(self, first=0, count=None, salt=0):
        with self.ceph.lock:
            if self.snaps:
                self.ceph.clones[self.pool] = self.count if count is None else count
            if len(self.ceph.up) < 4:
                self.ceph.degraded = 30

    def snapshot(self, name):
        self.snaps = True
        self.ceph.trimming.discard(self.pool)

    def remove_snapshot(self, name):
        self.ceph.trimming.add(self.pool)


class FakeLoad:
    def __init__(self, name, during):
        self.name, self.during, self.killed = name, during, False

    def start(self):
        self.started = time.time()

    def check(self):
        self.during()

    def cpu(self):
        return 0.0

    def stop(self):
        now = time.time()
        return [row(self.started, now, 2, 1000, load=self.name)]

    def kill(self):
        self.killed = True


class FakeDrivers(drivers.Drivers):
    def __init__(self, during=lambda: None):
        super().__init__({"driver": "fio-rbd", "mode": "randwrite", "block": "4k", "osd": None})
        self.during, self.started = during, 0

    def make_image(self, target, directory, pool, size_mb):
        pass

    def client(self, name, target, directory, pool, image=None, **how):
        self.started += 1
        return self.track(FakeLoad(name, self.during))

    def objects(self, target, pool, count, size):
        return FakeObjects(target.ceph, pool, count)


class FakeTarget(targets.Target):
    poll = 0.01

    def __init__(self, name, undo, ceph, log):
        super().__init__(name, undo, "study-test", log)
        self.ceph, self.restarts = ceph, 0

    def restart_osds(self):
        self.restarts += 1
        self.ceph.queue = self.ceph.options.get(("osd", "osd_op_queue"), "mclock_scheduler")

    def settle(self, limit):
        self.until("active+clean", self.clean, 5)


SIZES = plan.sizes(0.01) | {"objects": 200, "lead": 0.04, "warm_up": 0.02, "tail": 0.02, "baseline": 0.05, "beside": 0.05, "limit": 30.0, "sample_period": 0.02, "settle_limit": 5.0}


def manifest(scenario_names=("baseline", "test-a"), profiles=("wpq", "balanced")):
    return {"format": 1, "prefix": "study-test", "began": "then", "machine": {"cores": 2, "memory_gib": 4, "kernel": "6.1", "fio": "fio-3.33", "ceph client": "16.2"},
            "plan": {"clusters": [{"name": "prod", "conf": "/nonexistent/ceph.conf", "kind": "given"}], "profiles": list(profiles), "scenarios": list(scenario_names), "repeats": 1},
            "sizes": SIZES, "client": {"driver": "fio-rbd", "mode": "randwrite", "block": "4k", "osd": None}, "options": {"option": []}}


def study(directory, ceph, m, during=lambda: None):
    rundir = runlog.RunDir(directory)
    log = []
    r = run.Run(rundir, rundir.begin(m), work=str(directory), drivers=FakeDrivers(during), make_target=lambda spec, undo, *_: FakeTarget(spec["name"], undo, ceph, log.append), log=log.append)
    r.lines = log
    return r


def test_a_run_records_everything_and_leaves_the_cluster_as_it_was(tmp_path):
    ceph, m = FakeCeph(), manifest(("baseline", "test-a", "test-b", "backfill", "pool-delete", "neighbour:4", "tenants"), ("wpq", "high_client_ops"))
    r = study(tmp_path / "run", ceph, m)
    assert r.all(), r.lines
    for spec in r.cells:
        result, loads, samples = r.dir.recorded(spec["id"])
        if spec["scenario"] == "tenants":
            assert result["status"] == "skipped" and "no floors" in result["reason"]
            continue
        assert result["status"] == "done" and loads and samples, result
        assert json.loads((r.dir.cell(spec["id"]) / "events.jsonl").read_text().splitlines()[0])["event"]
    result = r.dir.result("1-test-b-wpq-prod")
    assert result["work"] == {"trimming": 140, "recovery": 30} and {"trimming ended", "recovery ended"} <= set(result["marks"])
    assert ceph.state() == ceph.before
    assert r.undo.outstanding() == []
    assert r.targets["prod"].restarts >= 2, "to WPQ, and back in the end"
    assert any("min left" in line for line in r.lines)


@pytest.mark.parametrize("scenario, number", [("test-a", signal.SIGINT), ("test-b", signal.SIGTERM), ("backfill", signal.SIGINT)])
def test_an_interrupted_run_cleans_up_and_goes_on_where_it_was(tmp_path, scenario, number):
    ceph, m, seen = FakeCeph(), manifest(("baseline", scenario), ("balanced", "high_client_ops")), []

    def interrupt():
        if r.drivers.started == 3:
            seen.append(ceph.state())
            os.kill(os.getpid(), number)

    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    r = study(tmp_path / "run", ceph, m, interrupt)
    with pytest.raises(KeyboardInterrupt):
        r.all()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert seen[0] != ceph.before, "there was something to put back"
    assert ceph.state() == ceph.before and r.undo.outstanding() == [] and all(load.killed for load in r.drivers.running)
    finished = [r.dir.finished(c["id"]) for c in r.cells]
    assert finished == [True, True, False, False]
    stamps = [(r.dir.cell(c["id"]) / "result.json").stat().st_mtime_ns for c in r.cells[:2]]

    again = study(tmp_path / "run", ceph, m)
    assert again.all(), again.lines
    assert again.drivers.started == 2, "finished cells are not repeated"
    assert stamps == [(again.dir.cell(c["id"]) / "result.json").stat().st_mtime_ns for c in again.cells[:2]]
    assert all(again.dir.finished(c["id"]) for c in again.cells) and ceph.state() == ceph.before
    assert "2 of 4 cells were finished before" in again.lines


def test_what_a_killed_run_left_is_put_back_by_the_next(tmp_path):
    ceph, undo_path = FakeCeph(), tmp_path / "run" / "undo.jsonl"
    rundir = runlog.RunDir(tmp_path / "run")
    rundir.begin(manifest())
    t = FakeTarget("prod", runlog.Undo(undo_path), ceph, print)
    t.set_option("osd", "osd_max_backfills", "8")
    t.set_flag("nobackfill")
    t.make_pool("snaps", 8)
    t.osd_out(3)
    # The last line was being written when the process was killed.
    with open(undo_path, "a") as f:
        f.write('{"id": 99, "tar')
    assert ceph.state() != ceph.before
    again = FakeTarget("prod", runlog.Undo(undo_path), ceph, print)
    assert again.clean_up() == [] and ceph.state() == ceph.before
    assert runlog.Undo(undo_path).outstanding() == []


def test_what_cannot_be_put_back_is_said_and_stays_written_down(tmp_path):
    ceph = FakeCeph()
    t = FakeTarget("prod", runlog.Undo(tmp_path / "undo.jsonl"), ceph, print)
    t.set_flag("nobackfill")
    t.make_pool("snaps", 8)
    ceph.refused = {"osd unset"}
    failed = t.clean_up()
    assert len(failed) == 1 and "nobackfill" in failed[0] and "rbd" in ceph.pool_ids and len(ceph.pool_ids) == 1
    ceph.refused = set()
    assert FakeTarget("prod", runlog.Undo(tmp_path / "undo.jsonl"), ceph, print).clean_up() == []
    assert ceph.state() == ceph.before


def test_a_cell_that_fails_leaves_nothing_to_the_next_and_is_tried_again(tmp_path):
    ceph, m = FakeCeph(), manifest(("test-b",), ("balanced", "high_client_ops"))

    def fail_once():
        if r.drivers.started == 1:
            raise drivers.LoadFailed("client: exit 1")

    r = study(tmp_path / "run", ceph, m, fail_once)
    assert not r.all()
    assert [r.dir.result(c["id"])["status"] for c in r.cells] == ["failed", "done"], r.lines
    assert ceph.state() == ceph.before
    again = study(tmp_path / "run", ceph, m)
    assert again.all() and again.drivers.started == 1


def test_a_scheduler_that_nobody_can_switch_to_is_a_reason_to_skip(tmp_path):
    ceph, m = FakeCeph(), manifest(("baseline",), ("wpq", "balanced"))
    r = study(tmp_path / "run", ceph, m)
    r.make_target = lambda spec, undo, *_: type("Given", (FakeTarget,), {"restart_osds": targets.Target.restart_osds})(spec["name"], undo, ceph, print)
    assert r.all()
    assert [r.dir.result(c["id"])["status"] for c in r.cells] == ["skipped", "done"]
    assert "--restart-osds" in r.dir.result(r.cells[0]["id"])["reason"] and ceph.state() == ceph.before


class HangingOsd:
    """A process that does not serve after it was started the first time."""

    def __init__(self):
        self.process, self.started = self, 0

    def terminate(self):
        pass

    def wait(self, _):
        pass

    def spawn(self):
        self.started += 1


def test_stock_osds_that_stand_still_after_a_restart_are_restarted_once_more(tmp_path):
    said, osd = [], HangingOsd()
    target = targets.StartedStock("ceph", None, "study", tmp_path, 1, 1, log=said.append)
    target.PATIENCE, target.poll, target.ceph = (0.05, 0.05), 0.01, FakeCeph()
    target.cluster = type("Given", (), {"osds": 1, "__getitem__": lambda _, name: osd, "clean": lambda _: osd.started >= 2})()
    target.restart_osds()
    assert osd.started == 2 and len(said) == 1
    osd.started = -10
    with pytest.raises(TimeoutError, match="all OSDs after a restart"):
        target.restart_osds()


def test_what_only_siphon_has_is_skipped_elsewhere_and_leaves_no_option_to_the_next(tmp_path):
    profiles = ("fifo", "auto", "quincy-balanced", "custom", "balanced")
    ceph, m = FakeCeph(), manifest(("baseline",), profiles)
    r = study(tmp_path / "stock", ceph, m)
    assert r.all(), r.lines
    assert [r.dir.result(c["id"])["status"] for c in r.cells] == ["skipped"] * 3 + ["done"] * 2
    assert "stock cluster has no quincy-balanced" in r.dir.result(r.cells[2]["id"])["reason"]
    ceph = FakeCeph()
    ceph.is_siphon = lambda: True
    m["options"]["custom"] = plan.custom(["client=0.7/1/0", "recovery=0.3/2/0"])
    r = study(tmp_path / "siphon", ceph, m)
    seen, before = [], ceph.command

    def command(prefix, **a):
        """What is set is looked at before it changes: reservations fit together all the time."""
        answer = before(prefix, **a)
        assert sum(float(v) for (_, name), v in ceph.options.items() if name.endswith("_res")) <= 1
        return answer

    ceph.command = command
    ceph.options["osd", "osd_mclock_scheduler_background_recovery_res"] = "0.9"
    ceph.before = ceph.state()
    keep = targets.Target.set_profile
    r.make_target = lambda spec, undo, *_: type("Watched", (FakeTarget,), {"set_profile": lambda self, *a: (keep(self, *a), seen.append((a[0], {n: v for (_, n), v in ceph.options.items() if "mclock" in n or "queue" in n})))[0]})(spec["name"], undo, ceph, print)
    assert r.all(), r.lines
    assert [p for p, _ in seen] == list(profiles) and {r.dir.result(c["id"])["status"] for c in r.cells} == {"done"}
    options = dict(seen)
    assert options["fifo"] == {"osd_op_queue": "fifo", "osd_mclock_scheduler_background_recovery_res": "0.9"}
    assert options["quincy-balanced"]["osd_mclock_allocations"] == "quincy" and options["balanced"]["osd_mclock_allocations"] == "reef"
    assert "osd_mclock_allocations" not in options["custom"] and options["custom"]["osd_mclock_scheduler_background_recovery_res"] == "0.3"
    assert options["balanced"]["osd_mclock_scheduler_background_recovery_res"] == "0.9" and ceph.state() == ceph.before


def test_a_directory_holds_one_run(tmp_path):
    rundir = runlog.RunDir(tmp_path / "run")
    rundir.begin(manifest())
    rundir.begin(manifest())
    with pytest.raises(SystemExit, match="holds another run"):
        rundir.begin(manifest(profiles=("wpq",)))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(SystemExit, match="not empty"):
        runlog.RunDir(tmp_path / "other").begin(manifest())


def test_the_command_line_refuses_what_it_cannot_do(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "machine", dict)
    conf = tmp_path / "ceph.conf"
    conf.write_text("[global]\n")
    parse = lambda *args: cli.manifest_of(cli.parser().parse_args(["run", str(tmp_path / "run"), *args]))
    for args, said in ((["--cluster", "nosuch"], "NAME="), (["--profiles", "fast"], "no profile"), (["--scenarios", "flood"], "no scenario"),
                       (["--cluster", f"prod={conf}", "--scenarios", "test-b"], "--disturb"), (["--size", "colour=3"], "no such size"), (["--cluster", "ceph", "--cluster", "ceph"], "name of its own")):
        with pytest.raises(SystemExit, match=said):
            parse(*args)
    m = parse("--cluster", f"prod={conf}", "--scenarios", "test-b,neighbour", "--sessions", "1,64", "--disturb", "--scale", "0.1", "--size", "lead=3")
    assert m["plan"]["scenarios"] == ["test-b", "neighbour:1", "neighbour:64"] and m["sizes"]["lead"] == 3.0 and m["sizes"]["objects"] == 10000


# -- the report


def test_the_report_of_a_recorded_run_needs_no_cluster(tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(RECORDED, directory)
    assert cli.main(["report", str(directory)]) == 0
    text, page = (directory / "report.md").read_text(), (directory / "report.html").read_text()
    r = report.Recorded(runlog.RunDir(directory))
    assert r.figures and r.problems
    assert len(r.figures) == 6
    for scenario, target, profile in (k for k in r.figures if k[0] == "test-a"):
        f = r.of(scenario, target, profile)
        line = next(x for x in text.split(f"## {scenarios.title(scenario)}")[1].splitlines() if x.startswith(f"| {target} | {profile} "))
        assert f" {f['base']['iops']:.0f} | {f['during']['iops']:.0f} | {f['kept']:.0f} % " in line
        assert f"{f['jobs']['trimming']['rate']:.0f}" in line
    assert "## Not measured" in text and "stock Ceph has no floors" in text
    # It is one file: nothing is loaded from anywhere.
    for outside in ("http:", "https:", "src=", "href=", "@import", "url("):
        assert outside not in page
    data = json.loads(page.split("const DATA = ")[1].split(";\n")[0])
    assert len(data["cells"]) == len(r.series) and all(c["client"] and (c["jobs"].get("trimming") or c["jobs"].get("greedy")) for c in data["cells"])
    before = text, page
    cli.main(["report", str(directory)])
    assert before == ((directory / "report.md").read_text(), (directory / "report.html").read_text()), "the same data give the same report"


def test_the_aims_are_judged_for_each_cluster(tmp_path):
    """The client keeps 95 % of its base, its latency rises by half (49 % by the middles of bins); the work's rate is the same everywhere."""
    m = manifest(("test-a",), ("wpq", "high_client_ops", "balanced", "high_recovery_ops"))
    rundir = runlog.RunDir(tmp_path / "run")
    rundir.begin(m)
    for cell, during in zip(plan.order(["prod"], m["plan"]["profiles"], ["test-a"], 1), (96, 95, 85, 70)):
        result, loads, samples = recorded(during, latency=3.0)
        d = rundir.fresh(cell["id"])
        for name, rows in (("loads", loads), ("background", samples)):
            lines = runlog.Lines(d / f"{name}.jsonl")
            for r in rows:
                lines.write(r)
            lines.close()
        rundir.finish(cell["id"], result | cell)
    report.write(rundir)
    aims = (rundir.path / "report.md").read_text().split("## The aims")[1].split("## ")[0]
    for line in ("keeps at least 90 % of the base's IOPS | 95 %: met |", "rises by 25 % at most | +49 %: missed |", "for clients (IOPS, falling) | yes (95 : 85 : 70) |",
                 "for trimming (clones/s, rising) | no difference (10 : 10 : 10) |", "during background work | IOPS within noise (-1 %), mean not worse (+0 %) |"):
        assert line in aims, aims


def test_the_report_says_what_is_missing(tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(RECORDED, directory)
    for result in sorted(directory.glob("cells/*test-a*/result.json"))[1:]:
        result.unlink()
    cli.main(["report", str(directory)])
    assert "The run is not complete" in (directory / "report.md").read_text()


def test_names_in_a_report_cannot_become_code(tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(RECORDED, directory)
    skipped = next(p for p in directory.glob("cells/*/result.json") if json.loads(p.read_text())["status"] == "skipped")
    result = json.loads(skipped.read_text()) | {"reason": "</script><script>alert(1)</script>"}
    skipped.write_text(json.dumps(result))
    cli.main(["report", str(directory)])
    assert "<script>alert" not in (directory / "report.html").read_text()
