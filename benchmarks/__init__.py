"""Comparisons with other packages, side by side. Their servers are those of the tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
