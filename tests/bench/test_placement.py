"""How benchmarks deal out placement groups."""
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from placement import dealt, orders  # noqa: E402


def led(sizes, leader, osds, kind=0):
    return [sum(n[kind] for g, n in sizes.items() if leader[g] == osd) for osd in range(osds)]


def scattered(seed, groups, objects):
    """So many objects of each kind, anyhow."""
    sizes, r = {f"1.{g:x}": [0] * len(objects) for g in range(groups)}, random.Random(seed)
    for kind, n in enumerate(objects):
        for _ in range(n):
            sizes[f"1.{r.randrange(groups):x}"][kind] += 1
    return sizes


def test_each_osd_leads_as_many_objects():
    for seed in range(20):
        # 22 groups for one OSD and 21 for two others.
        sizes = scattered(seed, 64, [8192])
        leader = dealt(sizes, range(3))
        assert leader.keys() == sizes.keys()
        counts = led(sizes, leader, 3)
        assert sum(counts) == 8192 and max(counts) - min(counts) <= 4, (seed, counts)


def test_of_each_kind():
    for seed in range(3):
        sizes = scattered(seed, 128, [1024] * 9)
        leader = dealt(sizes, range(3))
        for kind in range(9):
            counts = led(sizes, leader, 3, kind)
            assert sum(counts) == 1024 and max(counts) - min(counts) <= 16, (seed, kind, counts)


def test_what_cannot_be_even_is_as_even_as_groups_are():
    assert sorted(led(sizes := {"a": [5], "b": [1], "c": [1]}, dealt(sizes, range(2)), 2)) == [2, 5]
    assert sorted(led(sizes := {"a": [7]}, dealt(sizes, range(3)), 3)) == [0, 0, 7]
    assert dealt({}, range(3)) == {}
    assert set(dealt({"a": [0], "b": [0]}, range(2))) == {"a", "b"}


def test_without_any_one_osd_the_others_lead_as_much():
    sizes = scattered(1, 64, [8192])
    found = orders(sizes, [0, 1, 2], 3)
    assert found.keys() == sizes.keys() and all(sorted(osds) == [0, 1, 2] for osds in found.values())
    for gone in range(3):
        counts = [sum(n[0] for g, n in sizes.items() if next(osd for osd in found[g] if osd != gone) == left) for left in range(3) if left != gone]
        assert sum(counts) == 8192 and max(counts) - min(counts) <= 64, (gone, counts)
    assert all(len(osds) == 2 for osds in orders(sizes, [4, 5, 6], 2).values())
