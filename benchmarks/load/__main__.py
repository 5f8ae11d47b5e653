"""``python -m benchmarks.load``: a service under several limits, and without one, in simulated time.

It prints a table. ``--json`` prints each second, and ``--svg FILE`` draws the last limit beside no limit. Describe your
own service and limit with the options: ``--servers 8 --service 0.2 --limits "adaptive 2..50 concurrent" --target 1s``.
``--servers-too`` also sends such a load to real servers, for two minutes each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.load.plant import Plant, Second, simulate

CAPACITY: Final = ((0.0, 1.0), (60.0, 0.5), (120.0, 1.0))
DEMAND: Final = {"critical": 0.5, "normal": 1.25, "background": 1.25}
"""The requests of each class, as a multiple of the capacity of the service."""
PARTS: Final = {"all servers": (30, 60), "half of them": (90, 120), "all again": (150, 180)}
LIMITS: Final[Sequence[dict[str, Any]]] = (
    {"limits": "400/second", "algorithm": "token-bucket"},
    {"limits": "70 concurrent"},
    {"limits": "adaptive 50..800/second", "tune": "health", "target": "250ms", "algorithm": "token-bucket"},
    {"limits": "adaptive 5..200 concurrent", "target": "250ms"},
)
_LINES: Final = {"critical": "#0072B2", "normal": "#009E73", "background": "#E69F00"}
_INK, _PAPER = "#1f2328", "#fefefe"
_STYLE: Final = (
    "<style>:root { --ink: #1f2328; --paper: #ffffff } "
    "@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #131416 } }</style>"
)
Runs = dict[str, list[Second]]


def table(plant: Plant, found: Runs) -> str:
    """Return the goodput and the times of each part of the runs."""
    classes = list(plant.arrivals)
    titles = [
        "limit",
        "part",
        "capacity per second",
        "served in time",
        "95% within",
        *(f"{each} served" for each in classes),
    ]
    lines = [f"| {' | '.join(titles)} |", f"|---|---|{'---:|' * (len(titles) - 2)}"]
    for title, run in found.items():
        for part, (begin, end) in PARTS.items():
            seconds = run[begin:end]
            goodput, within = sum(each.goodput for each in seconds) / len(seconds), _within(seconds) * 1000
            cells = [title, part, f"{plant.working(begin) / plant.service:.0f}", f"{goodput:.0f}", f"{within:.0f} ms"]
            lines.append(f"| {' | '.join([*cells, *(f'{_served(seconds, each):.1%}' for each in classes)])} |")
    return "\n".join(lines)


def _within(seconds: Sequence[Second]) -> float:
    took = sorted(time for each in seconds for time in each.times)
    return took[len(took) * 95 // 100] if took else 0.0


def _served(seconds: Sequence[Second], name: str) -> float:
    return sum(each.served.get(name, 0) for each in seconds) / sum(each.arrived.get(name, 0) for each in seconds)


def draw(plant: Plant, found: Runs, file: Path) -> None:
    """Draw the goodput of the first and the last run by class, and the times and the limit of the last one."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    mpl.rcParams.update(dict.fromkeys(inked, _INK) | dict.fromkeys(("figure.facecolor", "axes.facecolor"), _PAPER))
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "load", "path.simplify_threshold": 0.5})
    figure, axes = plt.subplots(4, 1, figsize=(8, 8), sharex=True, layout="constrained")
    times = range(0, plant.seconds, 2)
    pairs = list(found.items())
    for at, (title, run) in zip(axes, (pairs[0], pairs[-1]), strict=False):
        below = [0.0] * len(times)
        for name, color in zip(plant.arrivals, _LINES.values(), strict=False):
            top = [
                low + (run[i].served.get(name, 0) + run[i + 1].served.get(name, 0)) / 2
                for i, low in zip(times, below, strict=True)
            ]
            at.fill_between(times, below, top, color=color, label=name, linewidth=0)
            below = top
        at.step(
            range(plant.seconds),
            [plant.working(i) / plant.service for i in range(plant.seconds)],
            color=_INK,
            linestyle="--",
            label="capacity",
        )
        at.set(title=title, ylabel="served in time, 1/s", ylim=(0, plant.servers / plant.service * 1.15))
    axes[0].legend(frameon=False, ncols=4, loc="lower left")
    title, run = pairs[-1]
    axes[2].plot(times, [_within(run[i : i + 2]) * 1000 for i in times], color=_INK)
    axes[2].set(title="95% of the admitted requests end within", ylabel="ms", ylim=(0, None))
    axes[3].plot(times, [run[i].limit for i in times], color=_LINES["critical"], label="limit")
    axes[3].plot(times, [run[i].in_flight for i in times], color=_LINES["background"], linewidth=0.8, label="in flight")
    axes[3].set(title="the limit, and the requests in flight", xlabel="seconds", ylim=(0, None))
    axes[3].legend(frameon=False, ncols=2, loc="upper right")
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    start, svg, rest = file.read_text().partition("<svg ")
    head, end, body = rest.partition(">")
    body = body.replace(_INK, "var(--ink)").replace(_PAPER, "var(--paper)")
    file.write_text("".join((start, svg, head, end, _STYLE, body)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=20, help="how many requests are served at a time (20)")
    parser.add_argument("--service", type=float, default=0.05, help="mean seconds of a request (0.05)")
    parser.add_argument("--patience", type=float, default=1.0, help="seconds after which a client gives up (1)")
    parser.add_argument("--limits", help="your limits instead of the four that are compared")
    parser.add_argument("--target", help="the target of your limits, such as 250ms")
    parser.add_argument("--tune", help="demand or health, for an adaptive rate")
    parser.add_argument("--json", action="store_true", help="print each second of the runs")
    parser.add_argument("--svg", type=Path, help="draw the runs to this file")
    parser.add_argument("--servers-too", action="store_true", help="also measure real servers")
    given = parser.parse_args()
    arrivals = {name: share * given.servers / given.service for name, share in DEMAND.items()}
    plant = Plant(arrivals, given.servers, given.service, given.patience, capacity=CAPACITY)
    own = {name: value for name in ("limits", "target", "tune") if (value := getattr(given, name))}
    found = {"no limit": simulate(plant)}
    found |= {each["limits"]: simulate(plant, **each) for each in ([own] if own else LIMITS)}
    if given.json:
        shown: Any = {title: [asdict(each) for each in run] for title, run in found.items()}
        print(json.dumps(shown))
    else:
        print(table(plant, found))
    if given.svg:
        draw(plant, found, given.svg)
    if given.servers_too:
        from benchmarks.load.served import table as served_table

        print(f"\n{served_table()}")


if __name__ == "__main__":
    main()
