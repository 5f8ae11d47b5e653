"""Draws a replay with matplotlib: requests and rejections over time, and the clients with most rejections."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Final

from ..errors import MissingExtraError
from .output import count_text, printable
from .simulation import Simulation

try:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter
except ImportError:
    raise MissingExtraError("--plot", "plot") from None

_ALLOWED: Final = "#8fb3d9"
_REJECTED: Final = "#c8342f"
_INK: Final = "#333333"
_DAY: Final = 86_400
_MAX_BARS: Final = 120
_MIN_BARS: Final = 20
_DATES: Final = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"]
_DATES_AT_ZERO: Final = ["", "%Y", "%b", "%d %b", "%H:%M", "%H:%M"]
_STEPS: Final = {
    1: "second", 5: "5 seconds", 15: "15 seconds", 60: "minute", 300: "5 minutes", 900: "15 minutes",
    3600: "hour", 3 * 3600: "3 hours", 6 * 3600: "6 hours",
    _DAY: "day", 7 * _DAY: "week", 28 * _DAY: "4 weeks", 364 * _DAY: "52 weeks",
}  # fmt: skip


def draw(report: Simulation, path: Path, top: int) -> None:
    """Write a PNG. The drawing needs no window and no display."""
    clients = report.most_rejected(top) or [client for client, _ in report.requests.most_common(top)]
    bottom = 0.9 + 0.33 * len(clients)
    figure = Figure(figsize=(11, 4.6 + bottom), dpi=150, layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[3.9, bottom])
    figure.get_layout_engine().set(hspace=0.06, h_pad=0.12, w_pad=0.12)  # type: ignore[union-attr, call-arg]
    _draw_times(upper, report)
    _draw_clients(lower, report, clients)
    figure.savefig(path, format="png")


def _draw_times(axes: Axes, report: Simulation) -> None:
    first, last = report.span
    step = next((step for step in _STEPS if (last - first).total_seconds() <= step * _MAX_BARS), max(_STEPS))
    every = Counter(time // step for time in report.times)
    rejected = Counter(time // step for time in report.rejected_times)
    bins = sorted(every)
    starts = [b * step / _DAY for b in bins]  # days since 1970, as matplotlib counts
    allowed = [every[b] - rejected[b] for b in bins]
    width = step / _DAY * 0.92
    axes.bar(starts, allowed, width, align="edge", color=_ALLOWED, label="allowed")
    axes.bar(starts, [rejected[b] for b in bins], width, allowed, align="edge", color=_REJECTED, label="rejected")
    axes.set_xlim(starts[0], max(starts[-1] + step / _DAY, starts[0] + _MIN_BARS * step / _DAY))
    axes.xaxis_date(UTC)
    locator = AutoDateLocator(tz=UTC, minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    # The label of the axis contains the year.
    dates = ConciseDateFormatter(locator, UTC, _DATES, zero_formats=_DATES_AT_ZERO, show_offset=False)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(dates)
    axes.set_ylabel(f"requests per {_STEPS[step]}", color=_INK)
    axes.set_xlabel(report.period, color=_INK)
    total, lost = len(report.times), len(report.rejected_times)
    _style(axes, axes.yaxis, f"{count_text(total, 'request')}, {lost:,} rejected ({lost / total:.1%})")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, borderaxespad=0.2)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)


def _draw_clients(axes: Axes, report: Simulation, clients: Sequence[str]) -> None:
    rows = range(len(clients))
    rejected = [report.rejected[client] for client in clients]
    allowed = [report.requests[client] - report.rejected[client] for client in clients]
    axes.barh(rows, rejected, 0.7, color=_REJECTED)
    bars = axes.barh(rows, allowed, 0.7, rejected, color=_ALLOWED)
    notes = [f"{report.rejected[client]:,} of {report.requests[client]:,}" for client in clients]
    axes.bar_label(bars, notes, padding=7, color=_INK, fontsize=9)
    names = [printable(client, 40).encode("ascii", "backslashreplace").decode() for client in clients]
    axes.set_yticks(rows, names, parse_math=False)
    axes.set_ylim(len(clients) - 0.4, -0.6)
    axes.set_xlim(0, max(report.requests[client] for client in clients) * 1.12)
    axes.set_xlabel("requests: rejected, then allowed", color=_INK)
    title = "Clients with most rejections" if any(rejected) else "No client was rejected: clients with most requests"
    _style(axes, axes.xaxis, title)


def _style(axes: Axes, counts: Axis, title: str) -> None:
    counts.set_major_locator(MaxNLocator(integer=True, nbins=7))
    counts.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=_INK, pad=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=10)
    axes.set_axisbelow(True)
