"""``make bench``: every comparison, as Markdown tables on stdout. Reports; proves nothing.

``python -m benchmarks redis leases`` runs those that are named; flood.py, which takes minutes, is run separately.
``python -m benchmarks fleet --help`` shows the options of one run of many processes.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import timing
from benchmarks.timing import progress

PARTS = {
    "decisions": "decisions",
    "middleware": "middleware",
    "frameworks": "frameworks",
    "gateway": "gateway",
    "routes": "routes",
    "django-routes": "django_routes",
    "networks": "networks",
    "redis": "redis_store",
    "arrivals": "fleet",
    "cluster": "cluster",
    "leases": "leases",
    "lmdb": "lmdb_store",
    "stores": "servers_compared",
    "traffic": "traffic",
    "capacity": "capacity",
    "capacity-check": "capacity.check",
}


DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / "explanation/benchmarks.md", DOCS / "how-to/operate/capacity.md"]
TABLE = re.compile(r"^(\*\*.+\*\*)\n\n(?:\|.*\n)+", re.MULTILINE)


def report(part: str) -> str:
    """Return the tables of one part, or a line that names a missing package."""
    try:
        return str(import_module(f"benchmarks.{PARTS[part]}").report())
    except ImportError as error:
        return f"Not run: {part}: {error}. To install it: pip install --group bench -e '.[all]'\n"
    except (pytest.exit.Exception, SystemExit) as error:
        return f"Not run: {part}: {error}\n"


def write(tables: str) -> None:
    """Replace the tables of the pages that have the same titles. Most tables are on no page."""
    found = {table[1]: table[0] for table in TABLE.finditer(tables)}
    for page in PAGES:
        page.write_text(TABLE.sub(lambda table: found.pop(table[1], table[0]), page.read_text()))


def main() -> None:
    if sys.argv[1:2] == ["fleet"]:
        import_module("benchmarks.fleet").main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them when none is named")
    parser.add_argument("--rounds", type=int, default=timing.most_rounds, help="the maximum rounds of a comparison")
    parser.add_argument("--write", action="store_true", help="replace the tables in docs/, too")
    asked = parser.parse_args()
    timing.most_rounds = asked.rounds
    if unknown := set(asked.parts).difference(PARTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores.")
    print("Medians of interleaved rounds; compare ratios, not times. Times are processor time.\n", flush=True)
    for part in asked.parts or PARTS:
        began = time.monotonic()
        progress(part)
        tables = report(part)
        print(tables, flush=True)
        if asked.write:
            write(tables)
        progress(f"{part}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
