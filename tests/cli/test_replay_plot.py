"""``replay --plot`` draws a picture of any log, or fails before the work."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_line import SITE, Write, line, run
from tables import each

pytestmark = pytest.mark.slow

PNG = b"\x89PNG\r\n\x1a\n"


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == PNG
    width, height = struct.unpack(">LL", head[16:24])
    return width, height


def test_plot(rules: Write, log: Write, tmp_path: Path) -> None:
    """The picture is a PNG, and its height grows with the number of clients. Long host names are no warning."""
    names = ["a" * 63 + ".example", "a_b." * 50 + "example", *(f"192.0.2.{i}" for i in range(1, 38))]
    access_log = log(line(name, at=i * 60) for i, name in enumerate(names) for _ in range(5))
    small, large = tmp_path / "small.png", tmp_path / "large.PNG"
    result = run("replay", rules(SITE), access_log, "--plot", small, "--limit", 3)
    assert (result.exit_code, result.stderr) == (0, f"picture written to {small}\n")
    assert run("replay", rules(SITE), access_log, "--plot", large, "--limit", 30).exit_code == 0
    assert png_size(small)[0] == png_size(large)[0]
    assert png_size(small)[1] < png_size(large)[1]


def test_svg(rules: Write, log: Write, tmp_path: Path) -> None:
    """An SVG contains no date, is the same each time, and follows the colour scheme of its reader."""
    access_log = log(line(f"192.0.2.{i}", at=i * 7) for i in range(1, 9) for _ in range(5))
    one, two = tmp_path / "one.svg", tmp_path / "two.SVG"
    for picture in (one, two):
        assert run("replay", rules(SITE), access_log, "--plot", picture).exit_code == 0
    assert one.read_bytes() == two.read_bytes()
    root = ElementTree.fromstring(one.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "dc:date" not in one.read_text()
    assert "prefers-color-scheme: dark" in one.read_text()
    assert not re.findall(r"(?<!, )#(?:333333|ffffff)", one.read_text())


@each("span", [0, 1, 90, 3_000, 86_400, 40 * 86_400, 300 * 86_400, 20 * 365 * 86_400, 7 * 10**9])
def test_plot_of_any_span(rules: Write, log: Write, tmp_path: Path, span: int) -> None:
    """The log may cover a second, a year, or centuries because of a wrong date."""
    picture = tmp_path / "a.png"
    result = run("replay", rules(SITE), log([line(at=0), line(at=span)]), "--plot", picture)
    assert result.exit_code == 0
    assert png_size(picture)[0] > 1000


@each("name", ["a.pdf", "a", "nowhere/a.png"])
def test_plot_to_an_invalid_path(rules: Write, log: Write, tmp_path: Path, name: str) -> None:
    """The exit code is 2, before the work."""
    result = run("replay", rules(SITE), log([line()]), "--plot", tmp_path / name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Invalid value for '--plot'" in result.stderr


def test_plot_without_its_extra(rules: Write, log: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without matplotlib ``--plot`` gives exit code 2, and replay works without ``--plot``."""
    for name in {"matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))}:
        monkeypatch.setitem(sys.modules, name, None)
    result = run("replay", rules(SITE), log([line()]), "--plot", tmp_path / "a.png")
    assert (result.exit_code, result.stdout) == (2, "")
    assert 'pip install "ratelimit-mw[plot]"' in result.stderr
    assert run("replay", rules(SITE), log([line()])).exit_code == 0
