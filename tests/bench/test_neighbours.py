"""How the benchmark of neighbours deals out placement groups."""
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from neighbours import dealt  # noqa: E402


def led(sizes, leader, osds):
    return [sum(n for g, n in sizes.items() if leader[g] == osd) for osd in range(osds)]


def test_each_osd_leads_as_many_objects():
    for seed in range(20):
        # 8192 objects in 64 groups: 22 groups for one OSD and 21 for two others.
        sizes, r = {f"1.{g:x}": 0 for g in range(64)}, random.Random(seed)
        for _ in range(8192):
            sizes[f"1.{r.randrange(64):x}"] += 1
        leader = dealt(sizes, 3)
        assert leader.keys() == sizes.keys()
        counts = led(sizes, leader, 3)
        assert sum(counts) == 8192 and max(counts) - min(counts) <= 4, (seed, counts)


def test_what_cannot_be_even_is_as_even_as_groups_are():
    assert sorted(led(sizes := {"a": 5, "b": 1, "c": 1}, dealt(sizes, 2), 2)) == [2, 5]
    assert sorted(led(sizes := {"a": 7}, dealt(sizes, 3), 3)) == [0, 0, 7]
    assert dealt({}, 3) == {}
