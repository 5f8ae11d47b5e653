"""``make bench``: every comparison, as Markdown tables on stdout. Reports; proves nothing."""

from __future__ import annotations

import platform

from benchmarks import decisions, middleware

print(f"Python {platform.python_version()}, {platform.machine()}.")
print("Medians of interleaved rounds; compare ratios, not times.\n")
for part in (decisions, middleware):
    print(part.report())
