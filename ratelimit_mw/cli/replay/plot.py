"""Draws a replay: requests and rejections over time, and the clients with most rejections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..output import count_text
from ..plot import ALLOWED, INK, REJECTED, ascii_text, edges_of, picture, style_counts, style_times
from .report import STEPS, ClientRow, ReplayReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MIN_STEPS: Final = 20
_COLUMNS: Final = ("times", "requests", "rejected")


def draw(report: ReplayReport, path: Path, limit: int) -> None:
    """Write a PNG or an SVG, by the name of the file."""
    top = report.top(limit)
    clients = [row for row in top if row.rejected] or top
    bottom = 0.9 + 0.33 * len(clients)
    with picture(path, 4.6 + bottom) as figure:
        upper, lower = figure.subplots(2, 1, height_ratios=[3.9, bottom])
        figure.get_layout_engine().set(hspace=0.06, h_pad=0.12, w_pad=0.12)  # type: ignore[union-attr, call-arg]
        _draw_curves(upper, report)
        _draw_clients(lower, clients)


def _draw_curves(axes: Axes, report: ReplayReport) -> None:
    """Draw demand as a line, above the areas of allowed and rejected requests."""
    curve = report.curve()
    step, first, last = curve["step"], curve["times"][0], curve["times"][-1]
    counts = {time: of_step for time, *of_step in zip(*(curve[name] for name in _COLUMNS), strict=True)}
    times = range(first, last + step, step)
    demand, rejected = zip(*(counts.get(time, (0, 0)) for time in times), strict=True)
    edges = edges_of(first, step, len(times))
    allowed = [requests - lost for requests, lost in zip(demand, rejected, strict=True)]
    axes.stairs(allowed, edges, fill=True, color=ALLOWED, label="allowed")
    axes.stairs(demand, edges, baseline=allowed, fill=True, color=REJECTED, label="rejected")
    axes.stairs(demand, edges, color=INK, linewidth=1.1, label="demand")
    axes.set_xlim(edges[0], max(edges[-1], edges[0] + _MIN_STEPS * (edges[1] - edges[0])))
    axes.set_ylim(0, max(demand) * 1.06)
    total, lost = report.log.count, report.rejected
    title = f"{count_text(total, 'request')}, {lost:,} rejected ({lost / total:.1%})"
    style_times(axes, f"requests per {STEPS[step]}", report.period, title)


def _draw_clients(axes: Axes, clients: Sequence[ClientRow]) -> None:
    rows, rejected = range(len(clients)), [row.rejected for row in clients]
    axes.barh(rows, rejected, 0.7, color=REJECTED)
    bars = axes.barh(rows, [row.requests - row.rejected for row in clients], 0.7, rejected, color=ALLOWED)
    axes.bar_label(bars, [f"{row.rejected:,} of {row.requests:,}" for row in clients], padding=7, fontsize=9)
    axes.set_yticks(rows, [ascii_text(row.client, 40) for row in clients], parse_math=False)
    axes.set_ylim(len(clients) - 0.4, -0.6)
    axes.set_xlim(0, max(row.requests for row in clients) * 1.12)
    style_counts(axes.xaxis)
    title = "Clients with most rejections" if any(rejected) else "No client was rejected: clients with most requests"
    axes.set(title=title, xlabel="requests: rejected, then allowed")
