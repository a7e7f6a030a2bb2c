"""What the benchmark of erasure-coded pools makes of counters and runs."""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import erasure  # noqa: E402


def test_shapes():
    assert erasure.shape("2+1") == (2, 1) and erasure.shape("10+4") == (10, 4)
    for text in ("", "2", "2+", "0+1", "2+1+1", "a+b", "2 + 1"):
        with pytest.raises(ValueError, match="k\\+m"):
            erasure.shape(text)
    assert [erasure.osds_of(*erasure.shape(s)) for s in erasure.SHAPES] == [3, 4, 6]


def test_counters_of_both_systems():
    siphon = [{"osd": {"ec_shard_read": 10, "ec_shard_read_remote": 4, "ec_shard_read_remote_bytes": 100, "ec_shard_write": 6, "subop_w": 3, "subop_w_in_bytes": 50}},
              {"osd": {"ec_shard_read": 1, "subop_w": 2}}]
    assert erasure.from_siphon(siphon) == {"shard_reads": 11, "shard_writes": 6, "messages": 2 * (4 + 5), "osd_bytes": 150}
    worker = lambda messages, size: {"msgr_send_messages": messages, "msgr_send_bytes": size, "msgr_recv_messages": 9}
    stock = [{"osd": {"op": 5, "op_out_bytes": 1000}, "AsyncMessenger::Worker-0": worker(20, 5000), "AsyncMessenger::Worker-1": worker(1, 10)},
             {"osd": {"op": 1, "op_out_bytes": 0}, "AsyncMessenger::Worker-0": worker(4, 40)}]
    assert erasure.from_stock(stock) == {"messages": 25 - 6, "osd_bytes": 5050 - 1000}
    io = "rchar: 9\nread_bytes: {}\nwrite_bytes: {}\ncancelled_write_bytes: 7\n"
    assert erasure.device([io.format(1, 2), io.format(10, 20)]) == {"device_read": 11, "device_written": 22}


def test_costs_of_an_operation():
    before = {"messages": 10, "osd_bytes": 100, "device_read": 0, "device_written": 50}
    after = {"messages": 30, "osd_bytes": 100, "device_read": 40, "device_written": 90}
    costs = erasure.per_op(before, after, 10)
    assert costs == {"shard_reads": None, "shard_writes": None, "messages": 2, "osd_bytes": 0, "device_read": 4, "device_written": 4}
    assert erasure.per_op(before, after, 0)["messages"] == 20


class Fake:
    def __init__(self, name, iops, messages):
        self.name, self.iops, self.messages, self.total, self.order = name, iops, messages, 0, None

    def counted(self):
        return {"messages": self.total, "device_read": 0, "device_written": 0}

    def run(self, order):
        order.append(self.name)
        self.total += 100 * self.messages
        return dict(iops=self.iops, mean=1.0, p50=None, p99=2.0, p999=3.0, cpu=10.0, client=1.0, rss=1.0, ops=100)


def test_contenders_take_turns_and_are_compared():
    order = []
    fakes = [Fake("ceph coded", 100, 12), Fake("siphon coded", 400, 4), Fake("siphon 3 copies", 800, 4)]
    tests = [("wanted", lambda c: c.run(order)), ("other", lambda c: c.run(order))]
    table = erasure.in_turn(fakes, tests, 2, "want")
    assert order == [f.name for f in fakes] * 2
    lines = list(table.lines())
    assert all(line.count("|") == lines[0].count("|") for line in lines)
    assert any("wanted | ceph coded" in line and "| 12.00 |" in line for line in lines)
    beside = [line for line in lines if "siphon coded /" in line]
    assert len(beside) == 2 and "4.00 x" in beside[0] and "0.50 x" in beside[1]
    assert set(table.dump()) == {"wanted"} and len(table.dump()["wanted"]["ceph coded"]) == 2


def test_an_image_may_have_its_data_elsewhere():
    cluster = type("Cluster", (), {"conf": "conf"})()
    assert erasure.Contender("siphon coded", cluster, erasure.POOL).data_pool == erasure.POOL
    assert erasure.Contender("siphon 3 copies", cluster, "bench").data_pool is None


def test_a_record_has_pairs_and_goals():
    run = dict(iops=10.0, mean=1.0, p50=1.0, p99=2.0, p999=3.0, cpu=30.0, client=1.0, rss=1.0, ops=100, messages=4, shard_reads=1.0, shard_writes=None,
               osd_bytes=200.0, device_read=0.0, device_written=0.0)
    by = {"siphon coded": [run], "ceph coded": [{**run, "cpu": 300.0, "shard_reads": None}], "siphon 3 copies": [{**run, "cpu": 20.0}]}
    results = {"2+1": {"4 KiB random read, QD 32": by, "4 KiB random write, QD 32": by, "rados bench 4 MiB write, t 16": by}}
    rows = list(erasure.record_rows(results))
    assert len(rows) == 6 and rows[0][0] == "2+1, of Ceph's: 4 KiB random read, QD 32" and rows[0][4] == [30.0, 300.0] and rows[0][6] == ""
    assert rows[1][0].startswith("2+1, of three replicas'") and rows[1][4] == [30.0, 20.0]
    measured = {g["goal"]: g["measured"] for g in erasure.goals(results)}
    assert measured["shard reads of a 4 KiB read"] == {"2+1, QD 32": 1.0}
    assert measured["server CPU of a 4 KiB write, of Ceph's"] == {"2+1, QD 32": [30.0, 300.0]}
    assert measured["bytes between OSDs of a 4 MiB write, of (k+m)/k of its own"] == {"2+1": [200.0, (4 << 20) * 1.5]}
    # Without a stock cluster in the run, less is claimed.
    alone = {"2+1": {"4 KiB random write, QD 32": {"siphon coded": [run]}}}
    assert list(erasure.record_rows(alone)) == [] and erasure.goals(alone) == []
