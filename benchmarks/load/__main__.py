"""``python -m benchmarks.load``: a service with an adaptive limit and without one, in simulated time.

It prints a table. ``--json`` prints each second, and ``--svg FILE`` draws the run. ``--servers-too`` also sends such a
load to real servers, for two minutes each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.load.plant import Plant, Second, simulate

LIMITS: Final = "adaptive 5..200 concurrent"
TARGET: Final = "250ms"
CAPACITY: Final = ((0.0, 1.0), (60.0, 0.5), (120.0, 1.0))
DEMAND: Final = {"critical": 200.0, "normal": 500.0, "background": 500.0}
PLANT: Final = Plant(DEMAND, capacity=CAPACITY)
PARTS: Final = (("all servers", 30, 60), ("half of the servers", 90, 120), ("all servers again", 150, 180))
_LINES: Final = {"critical": "#0072B2", "normal": "#009E73", "background": "#E69F00"}
_INK, _PAPER = "#1f2328", "#fefefe"
_STYLE: Final = (
    "<style>:root { --ink: #1f2328; --paper: #ffffff } "
    "@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #131416 } }</style>"
)


def runs() -> dict[str, list[Second]]:
    """Return the seconds of a run without a limit, and of one with an adaptive limit."""
    return {"no limit": simulate(PLANT), "adaptive limit": simulate(PLANT, LIMITS, target=TARGET)}


def table(found: dict[str, list[Second]]) -> str:
    """Return the goodput and the times of each part of the runs."""
    classes = list(DEMAND)
    titles = [
        "",
        "capacity per second",
        "served in time per second",
        "95% within",
        *(f"{name} served" for name in classes),
    ]
    lines = [f"| {' | '.join(titles)} |", f"|---|{'---:|' * (len(titles) - 1)}"]
    for title, run in found.items():
        for part, begin, end in PARTS:
            seconds = run[begin:end]
            capacity = PLANT.working(begin) / PLANT.service
            goodput = sum(each.goodput for each in seconds) / len(seconds)
            took = sorted(time for each in seconds for time in each.times)
            cells = [
                f"{title}, {part}",
                f"{capacity:.0f}",
                f"{goodput:.0f}",
                f"{took[len(took) * 95 // 100] * 1000:.0f} ms",
            ]
            cells += [f"{_served(seconds, name):.1%}" for name in classes]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _served(seconds: Sequence[Second], name: str) -> float:
    return sum(each.served.get(name, 0) for each in seconds) / sum(each.arrived.get(name, 0) for each in seconds)


def draw(found: dict[str, list[Second]], file: Path) -> None:
    """Draw the goodput of both runs, and the limit, with one line for each class."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    mpl.rcParams.update(dict.fromkeys(inked, _INK) | dict.fromkeys(("figure.facecolor", "axes.facecolor"), _PAPER))
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "load"})
    figure, axes = plt.subplots(3, 1, figsize=(8, 7), sharex=True, layout="constrained")
    for at, (title, run) in zip(axes, found.items(), strict=False):
        below: list[float] = [0.0] * (len(run) // 2)
        for name, color in _LINES.items():
            top = [low + value for low, value in zip(below, _by_two(run, name), strict=True)]
            at.fill_between(range(0, len(run), 2), below, top, color=color, label=name, linewidth=0)
            below = top
        steps = [PLANT.working(second) / PLANT.service for second in range(len(run))]
        at.plot(steps, color=_INK, linestyle="--", label="capacity")
        at.set(title=title, ylabel="served in time, per second", ylim=(0, 450))
    axes[0].legend(frameon=False, ncols=4, loc="lower left")
    axes[2].plot([each.limit for each in found["adaptive limit"]], color=_LINES["critical"])
    axes[2].set(title="the limit", ylabel="requests in flight", xlabel="seconds", ylim=(0, None))
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    start, svg, rest = file.read_text().partition("<svg ")
    head, end, body = rest.partition(">")
    body = body.replace(_INK, "var(--ink)").replace(_PAPER, "var(--paper)")
    file.write_text("".join((start, svg, head, end, _STYLE, body)))


def _by_two(run: Sequence[Second], name: str) -> list[float]:
    served = [each.served.get(name, 0) for each in run]
    return [(first + second) / 2 for first, second in zip(served[::2], served[1::2], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print each second of the runs")
    parser.add_argument("--svg", type=Path, help="draw the runs to this file")
    parser.add_argument("--servers-too", action="store_true", help="also measure real servers")
    arguments = parser.parse_args()
    found = runs()
    if arguments.json:
        shown: Any = {title: [asdict(each) for each in run] for title, run in found.items()}
        print(json.dumps(shown))
    else:
        print(table(found))
    if arguments.svg:
        draw(found, arguments.svg)
    if arguments.servers_too:
        from benchmarks.load.served import table as served_table

        print(f"\n{served_table()}")


if __name__ == "__main__":
    main()
