"""Draws a replay with matplotlib: requests and rejections over time, and the clients with most rejections.

The functions import matplotlib, because it is an extra, and takes long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ...errors import MissingExtraError
from ..output import count_text, printable
from .report import STEPS, ClientRow, ReplayReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


class Theme(NamedTuple):
    """The colours of a picture. The background is that of GitHub's pages, so that a picture suits a README."""

    background: str
    ink: str
    grid: str
    allowed: str
    rejected: str


THEMES: Final = {
    "light": Theme("#ffffff", "#333333", "#dddddd", "#8fb3d9", "#c8342f"),
    "dark": Theme("#0d1117", "#d1d7e0", "#30363d", "#3d6c9e", "#ff6b61"),
}
_DAY: Final = 86_400  # matplotlib counts in days since 1970
_MIN_STEPS: Final = 20
_DATES: Final = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"]
_DATES_AT_ZERO: Final = ["", "%Y", "%b", "%d %b", "%H:%M", "%H:%M"]


def _check_picture(_ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Check the path of the picture, and the extra, before the work."""
    if path is None:
        return None
    if find_spec("matplotlib") is None:
        raise MissingExtraError(param.opts[0], "plot")
    if path.suffix.lower() not in (".png", ".svg") or not os.access(path.absolute().parent, os.W_OK):
        expected = "a file name that ends in .png or .svg, in a writable folder"
        raise click.BadParameter(f"expected {expected}; got {str(path)!r}")
    return path


def picture_option(name: str, text: str) -> Callable[[Any], Any]:
    """Return the option of a command that draws a picture, with its help."""
    kind = click.Path(dir_okay=False, writable=True, path_type=Path)
    return click.option(name, metavar="PICTURE", callback=_check_picture, type=kind, help=text)


theme_option = click.option("--theme", type=click.Choice([*THEMES]), default="light", show_default=True,
                            callback=lambda _ctx, _param, name: THEMES[name],
                            help="The colours of the picture.")  # fmt: skip


def draw(report: ReplayReport, path: Path, limit: int, theme: Theme) -> None:
    """Write a PNG or an SVG, by the name of the file."""
    top = report.top(limit)
    clients = [row for row in top if row.rejected] or top
    bottom = 0.9 + 0.33 * len(clients)
    figure = new_figure(4.6 + bottom, theme)
    upper, lower = figure.subplots(2, 1, height_ratios=[3.9, bottom])
    figure.get_layout_engine().set(hspace=0.06, h_pad=0.12, w_pad=0.12)  # type: ignore[union-attr, call-arg]
    _draw_curves(upper, report, theme)
    _draw_clients(lower, clients, theme)
    save(figure, path)


def new_figure(height: float, theme: Theme) -> Figure:
    """Return an empty figure, whose height is in inches. It needs no window and no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(11, height), dpi=150, layout="constrained", facecolor=theme.background)


def edges_of(start: float, step: float, counts: Sequence[float]) -> list[float]:
    """Return the edges of steps that follow each other. Times are in seconds since 1970."""
    return [(start + i * step) / _DAY for i in range(len(counts) + 1)]


def ascii_text(text: str, longest: int) -> str:
    """Return a text that clients may have chosen: the font has no other characters."""
    return printable(text, longest).encode("ascii", "backslashreplace").decode()


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG or SVG. The same input gives the same file."""
    from matplotlib import rc_context

    kind = path.suffix[1:].lower()
    with rc_context({"svg.hashsalt": "ratelimit-mw"}):
        figure.savefig(path, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})


def _draw_curves(axes: Axes, report: ReplayReport, theme: Theme) -> None:
    """Draw demand as a line, above the areas of allowed and rejected requests."""
    curve = report.curve()
    step = curve["step"]
    edges, demand, rejected = _with_gaps(curve)
    allowed = [requests - lost for requests, lost in zip(demand, rejected, strict=True)]
    axes.stairs(allowed, edges, fill=True, color=theme.allowed, label="allowed")
    axes.stairs(demand, edges, baseline=allowed, fill=True, color=theme.rejected, label="rejected")
    axes.stairs(demand, edges, color=theme.ink, linewidth=1.1, label="demand")
    axes.set_xlim(edges[0], max(edges[-1], edges[0] + _MIN_STEPS * step / _DAY))
    axes.set_ylim(0, max(demand) * 1.06)
    total, lost = report.log.count, report.rejected
    title = f"{count_text(total, 'request')}, {lost:,} rejected ({lost / total:.1%})"
    style_times(axes, f"requests per {STEPS[step]}", report.period, title, theme)


def style_times(axes: Axes, counts: str, times: str, title: str, theme: Theme) -> None:
    """Style a curve over time, and add its legend. The days since 1970 are those of UTC."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    axes.xaxis_date(UTC)
    locator = AutoDateLocator(tz=UTC, minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    # The label of the axis contains the year.
    dates = ConciseDateFormatter(locator, UTC, _DATES, zero_formats=_DATES_AT_ZERO, show_offset=False)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(dates)
    axes.set_ylabel(counts, color=theme.ink)
    axes.set_xlabel(times, color=theme.ink)
    _style(axes, axes.yaxis, title, theme)
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2}
    axes.legend(ncols=4, frameon=False, labelcolor=theme.ink, **place)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8)


def _with_gaps(curve: dict[str, Any]) -> tuple[list[float], list[int], list[int]]:
    """Return the edges of the steps, the requests and the rejections, with zeros where no request was."""
    step, times = curve["step"], curve["times"]
    edges, demand, rejected = [times[0]], list[int](), list[int]()
    for (time, following), *counts in zip(pairwise([*times, None]), curve["requests"], curve["rejected"], strict=True):
        edges.append(time + step)
        demand.append(counts[0])
        rejected.append(counts[1])
        if following is not None and following > time + step:
            edges.append(following)
            demand.append(0)
            rejected.append(0)
    return [edge / _DAY for edge in edges], demand, rejected


def _draw_clients(axes: Axes, clients: Sequence[ClientRow], theme: Theme) -> None:
    rows = range(len(clients))
    requests, rejected = [row.requests for row in clients], [row.rejected for row in clients]
    allowed = [every - lost for every, lost in zip(requests, rejected, strict=True)]
    axes.barh(rows, rejected, 0.7, color=theme.rejected)
    bars = axes.barh(rows, allowed, 0.7, rejected, color=theme.allowed)
    notes = [f"{lost:,} of {every:,}" for every, lost in zip(requests, rejected, strict=True)]
    axes.bar_label(bars, notes, padding=7, color=theme.ink, fontsize=9)
    axes.set_yticks(rows, [ascii_text(row.client, 40) for row in clients], parse_math=False)
    axes.set_ylim(len(clients) - 0.4, -0.6)
    axes.set_xlim(0, max(requests) * 1.12)
    axes.set_xlabel("requests: rejected, then allowed", color=theme.ink)
    title = "Clients with most rejections" if any(rejected) else "No client was rejected: clients with most requests"
    _style(axes, axes.xaxis, title, theme)


def _style(axes: Axes, counts: Axis, title: str, theme: Theme) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_facecolor(theme.background)
    counts.set_major_locator(MaxNLocator(integer=True, nbins=7))
    counts.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=theme.ink, pad=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(theme.ink)
    axes.tick_params(colors=theme.ink, labelsize=10)
    axes.set_axisbelow(True)
