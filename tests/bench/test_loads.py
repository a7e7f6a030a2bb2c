"""What the benchmarks of S3 and of file systems make of what load generators and clients measured."""
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import fs  # noqa: E402
import fs_clients  # noqa: E402
import loaders  # noqa: E402
import s3  # noqa: E402
import s3_report  # noqa: E402

ECHO = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"wrong": int("wrong" in line), "samples": ["a byte differs"], "count": 4, "seconds": 2,
                      **({"error": "no"} if "bad" in line else {})}), flush=True)
    if "last" in line:
        break
"""


def answer(kind="get", count=4, **more):
    k = {"count": count, "per_second": 2.0, "mean_us": 10, "p50_us": 9, "p99_us": 20, "p999_us": 21}
    return {"command": "load", "count": count, "failed": 0, "samples": [], "kinds": {kind: k}, **more}


def test_a_wrong_answer_ends_the_benchmark():
    load = loaders.Loader([sys.executable, "-c", ECHO])
    assert load("load", 1)["count"] == 4
    with pytest.raises(SystemExit, match="a byte differs"):
        load("wrong")
    with pytest.raises(SystemExit, match="bad.*no"):
        load("bad")
    load("last")
    with pytest.raises(SystemExit, match="ended at `more`"):
        load("more")
        load("more")
    load.close()


def test_processor_time_is_divided_by_operations():
    r = loaders.row(answer(cpu={"gateway": 0.002, "cluster": 0.008}, mib={"gateway": 50.0}), "get")
    assert (r["gateway us"], r["cluster us"], r["gateway MiB"], r["p99"]) == (500, 2000, 50, 20)
    with pytest.raises(SystemExit, match="no put succeeded"):
        loaders.row(answer(), "put")


def test_options_of_files_are_not_part_of_a_recorded_command():
    argv = ["--record", "x.json", "--seconds", "5", "--json=y", "--mix", "small"]
    assert loaders.command_of("s3", argv) == "cargo xtask bench s3 --seconds 5 --mix small"


def cell(per_second, gateway, cluster):
    return {"per_second": per_second, "mean": 1, "p50": 1, "p99": 2, "p999": 3, "gateway us": gateway, "cluster us": cluster, "gateway MiB": 10}


SQUARE = {"4 KiB PUT": {"siphon on siphon": cell(100, 100, 200), "rgw on siphon": cell(50, 1000, 210), "rgw on ceph": cell(20, 1100, 1900)}}


def test_a_square_becomes_ratios_and_goals(tmp_path):
    columns, rows, goals = s3.record_of(SQUARE)
    assert rows == [["4 KiB PUT", [100, 50], [1, 1], [2, 2], [100, 1000], [300, 3000]]]
    assert [g["measured"] for g in goals] == [{"4 KiB PUT": [100, 1000]}, {"4 KiB PUT": [300, 3000]}]
    text = s3.table(SQUARE)
    assert "| **ratio**, on siphon | 2 |" in text and "| **ratio**, the whole path | 5 |" in text and "on ceph | 5" not in text
    loaders.record(tmp_path / "s3.json", "s3", "c", "m", columns, rows, goals)
    written = json.loads((tmp_path / "s3.json").read_text())
    assert set(written) == {"section", "commit", "date", "machine", "command", "goals", "columns", "rows"}
    assert all(len(r) == len(written["columns"]) for r in written["rows"])


def test_a_gateway_that_stops_is_not_steady():
    assert s3_report.steadiness([100] * 20) == 1
    assert s3_report.steadiness([100] * 18 + [0, 0]) == 0
    assert s3_report.steadiness([5]) is None
    assert s3_report.waning([100] * 5 + [50] * 5) == 0.5
    assert s3_report.waning([1, 2, 3]) is None and s3_report.waning([0] * 8) is None


def said_of_a_mix():
    """What load generators said: nothing ended in the second second of each phase."""
    kinds = answer()["kinds"]
    each = lambda n: {"ended_each_second": [n // 2, 0, n // 2], "mean_us_each_second": [1000, None, 3000], "max_us_each_second": [2000, None, 9000]}
    return {(phase, name): {"count": n, "seconds": 2, "failed": 1, "kinds": kinds, "cpu": {"gateway": 0.002}, **each(n)}
            for phase, n in (("fill", 10), ("fresh", 20), ("age", 8), ("aged", 18)) for name in ("siphon on siphon", "a<b")}


def test_a_mix_compares_aged_with_fresh():
    columns, rows, goals = s3.mix_record({"small": said_of_a_mix()})
    assert rows[0] == ["small", "siphon on siphon", 5, 10, 9, [9, 10], 0] and len(columns) == len(rows[0])
    assert goals[0]["measured"] == {"small": [9, 10]}


def test_a_report_has_tables_and_plots_of_each_mix(tmp_path):
    page = s3_report.write(tmp_path / "r", ["a machine"], {"small": said_of_a_mix(), "generic": said_of_a_mix()})
    text, markdown = page.read_text(), (tmp_path / "r/report.md").read_text()
    # Two gateways in four phases; a second without an end parts lines of latencies, and is a zero among rates.
    assert (tmp_path / "r/small-ended_each_second.svg").read_text().count("<polyline") == 8
    assert (tmp_path / "r/generic-max_us_each_second.svg").read_text().count("<polyline") == 16
    assert text.count("<svg") == 6 and markdown.count("![") == 6
    assert "a<b" not in text and "a&lt;b" in text
    assert "| siphon on siphon | 5 | 10 | 9 | 0.9 | 0 |" in markdown and "| fresh | get | siphon on siphon | 2 |" in markdown
    assert set(json.loads((tmp_path / "r/said.json").read_text())) == {"small", "generic"}


def test_a_study_scales_all_that_is_not_given():
    o = s3.options(["--study", "0.01"])
    assert (o.mix, o.seconds, o.objects, o.scale) == (["small", "generic"], 36, 1200, 0.01)
    o = s3.options(["--study", "0.01", "--mix", "small", "--seconds", "3"])
    assert (o.mix, o.seconds, o.objects) == (["small"], 3, 1200)
    o = s3.options([])
    assert (o.mix, o.seconds, o.objects, o.scale) == ([], 5, 1000, 1 / 64)
    with pytest.raises(SystemExit):
        s3.options(["--mix", "large"])


def test_file_systems_become_ratios_and_goals():
    server = lambda n, mds: {"per_second": n, "mean": 1, "p50": 1, "p99": 2, "p999": 3, "mds us": mds, "cluster us": 50, "mds MiB": 1}
    by = {"siphon on siphon": server(10, 100), "ceph on siphon": server(5, 600)}
    walked = {**by, "siphon on siphon": {**server(5, 1), "p99": 3}}
    results = {"create, 1 clients": by, "stat, 1 clients": by, "create alone": by, "create beside readdir": walked}
    columns, rows, goals = fs.record_of(results, {n: {"capability, bytes": b} for n, b in (("siphon on siphon", 100), ("ceph on siphon", 900))}, "stock")
    assert rows[0] == ["create, 1 clients", [10, 5], [1, 1], [2, 2], [100, 600], [50, 50]] and len(columns) == len(rows[0])
    assert [g["measured"] for g in goals] == [{"create, 1 clients": [600, 100]}, {"capability, bytes": [100, 900]}, {"": [3, 2]}]
    assert "| **ratio**, the same OSDs | 2 |" in fs.table(results)


def test_directories_are_compared_name_by_name():
    expected = {fs_clients.name_of(0, n) for n in range(2)}
    assert fs_clients.compare(sorted(expected), expected, True) is None
    assert "c000.0000001 was made" in fs_clients.compare(["c000.0000000"], expected, True)
    assert "x is in the directory" in fs_clients.compare([*expected, "x"], expected, True)
    assert fs_clients.compare([*expected, "x"], expected, False) is None
    assert "1 names came twice" in fs_clients.compare([*expected, "c000.0000000"], expected, True)


def test_clients_together_have_the_percentiles_of_all():
    a, b = fs_clients.Measure(), fs_clients.Measure()
    for n in range(1000):
        (a if n % 2 else b).done("create", n / 500, (n + 1) / 1000)
    b.fail("create", "no", wrong=True)
    a.merge(b)
    said = a.json(2.0)
    k = said["kinds"]["create"]
    assert (k["count"], k["per_second"], k["failed"], said["wrong"]) == (1000, 500, 1, 1)
    assert 989_000 <= k["p99_us"] <= 992_000 and said["ended_each_second"] == [500, 500]
