"""What the benchmark of failover makes of the times at which writes began and were acknowledged."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from failover import gaps, resumed  # noqa: E402

KILLED, GONE = 10.0, 10.02


def test_a_write_that_waited_ends_the_outage():
    acks = [(9.90, 9.93), (9.94, 9.96), (9.98, 12.40), (12.41, 12.45)]
    assert resumed(acks, KILLED, GONE) == 12.40


def test_what_the_dead_primary_acknowledged_does_not_end_it():
    # In its socket when it died, and read when it was gone.
    acks = [(9.90, 9.93), (9.98, 10.03), (10.04, 12.40), (12.41, 12.45)]
    assert resumed(acks, KILLED, GONE) == 12.40
    # Between the signal and the end of the process.
    acks = [(9.90, 9.93), (9.98, 10.01), (10.015, 12.40), (12.41, 12.45)]
    assert resumed(acks, KILLED, GONE) == 12.40


def test_a_longer_time_later_is_another_outage():
    acks = [(9.90, 9.93), (9.98, 10.60), (10.61, 10.63), (10.64, 15.0), (15.01, 15.02)]
    assert resumed(acks, KILLED, GONE) == 10.60


def test_gaps_reach_from_the_last_acknowledgement_before():
    acks = [(1.0, 5.0), (9.90, 9.93), (9.98, 10.60), (10.61, 10.63)]
    assert [round(length, 2) for length, _ in gaps(acks, KILLED)] == [0.67, 0.03]
