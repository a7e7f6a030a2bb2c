"""`python3 bench/study` and `python3 -m study` in bench/ are the same."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from study.cli import main  # noqa: E402

sys.exit(main())
