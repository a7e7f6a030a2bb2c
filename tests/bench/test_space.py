"""What the benchmark of space makes of a cluster's figures."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import space  # noqa: E402


def test_figures_of_pools_and_osds():
    df = {"pools": [{"name": "bench", "stats": {"stored": 1, "bytes_used": 2}}, {"name": "coded", "stats": {"stored": 30, "bytes_used": 45}}]}
    assert space.of_pool(df, "coded") == (30, 45)
    assert space.of_osds({"nodes": [{"kb_used": 3}, {"kb_used": 4}]}) == 7 << 10


def test_rows_are_in_relation_to_the_code():
    r = space.row(4, 2, 100 << 20, 300 << 20, 150 << 20, 200 << 20)
    assert (r["df_times"], r["used_times"], r["blocks_times"]) == (1.0, 2.0, 1.5)
    table = list(space.lines({"4+2": {"siphon": {"objects": r}}}))
    assert table[2] == "| 4+2 | siphon | objects | 100.0 | 150.0 | 300.0 | 1.00 | 2.00 | 1.50 |"


def test_shards_in_blocks():
    # One block with data, and as much parity as that.
    assert space.in_blocks(2, 1, 1024) == 2 * 4096 and space.in_blocks(4, 2, 1024) == 3 * 4096
    assert space.in_blocks(2, 1, 4 << 20) == 6 << 20 and space.in_blocks(4, 2, 4 << 20) == 6 << 20
    # Two full units, and a byte more.
    assert space.in_blocks(2, 1, 8193) == (2 + 1 + 2) * 4096
