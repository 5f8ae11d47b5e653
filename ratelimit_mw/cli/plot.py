"""Draws pictures of requests over time with matplotlib, which is an extra, and takes long to import."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import MissingExtraError
from .output import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


INK: Final = "#333333"
ALLOWED: Final = "#8fb3d9"
REJECTED: Final = "#c8342f"
_DAY: Final = 86_400  # matplotlib counts in days since 1970
_STYLE: Final[dict[Any, Any]] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "grid.color": "#dddddd",
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlepad": 9,
    "legend.frameon": False,
    "savefig.dpi": "figure",
    "svg.hashsalt": "ratelimit-mw",  # the same input gives the same file
}
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


@contextmanager
def picture(path: Path, height: float) -> Iterator[Figure]:
    """Yield an empty figure, whose height is in inches, and write it as PNG or SVG. It needs no display."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(11, height))
        yield figure
        kind = path.suffix[1:].lower()
        figure.savefig(path, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})


def edges_of(start: float, step: float, number: int) -> list[float]:
    """Return the edges of steps that follow each other. Times are in seconds since 1970."""
    return [(start + i * step) / _DAY for i in range(number + 1)]


def ascii_text(text: str, longest: int) -> str:
    """Return a text that clients may have chosen: the font has no other characters."""
    return printable(text, longest).encode("ascii", "backslashreplace").decode()


def style_times(axes: Axes, counts: str, times: str, title: str) -> None:
    """Add dates, titles, a grid and a legend to curves over time. The days since 1970 are those of UTC."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    axes.xaxis_date(UTC)
    locator = AutoDateLocator(tz=UTC, minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    # The label of the axis contains the year.
    dates = ConciseDateFormatter(locator, UTC, _DATES, zero_formats=_DATES_AT_ZERO, show_offset=False)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(dates)
    style_counts(axes.yaxis)
    axes.set(title=title, xlabel=times, ylabel=counts)
    axes.legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    axes.grid(axis="y")


def style_counts(axis: Axis) -> None:
    """Make the ticks of an axis whole numbers."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
