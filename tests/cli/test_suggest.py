"""``replay --suggest`` finds limits that reject the wanted share at most, and ``replay --plot`` draws any log."""

from __future__ import annotations

import json
import logging
import random
import re
import struct
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from command_line import SITE, Files, Write, answer_of, line, lines_of, replayed, run
from tables import each

from ratelimit_mw import load_settings


def suggested(settings: Path, access_log: Path, share: str) -> dict[str, Any]:
    found: dict[str, Any] = replayed(settings, access_log, "--suggest", share)["suggested"]
    return found


# 100 requests in one minute: clients with 1, 2, 3, ... 13 requests, and one with 9 more.
LOG = [line(f"192.0.2.{n}", at=i) for n in range(1, 14) for i in range(n)] + [
    line("192.0.2.99", at=i) for i in range(9)
]


@each(("share", "limit"), [("0%", "13/minute"), ("1%", "12/minute"), ("3%", "11/minute")])
def test_lowest_limit_for_a_share(rules: Write, log: Write, share: str, limit: str) -> None:
    """One less would reject more than the share."""
    found = suggested(rules({**SITE, "algorithm": "fixed-window"}), log(LOG), share)
    assert found["rules"][0]["suggested"] == [limit]
    assert found["rules"][0]["rejected"] <= float(share[:-1])


@each("algorithm", ["fixed-window", "sliding-window", "sliding-window-log", "gcra", "token-bucket"])
@each("share", ["0%", "10%"])
def test_suggestions_are_verified(rules: Write, log: Write, tmp_path: Path, algorithm: str, share: str) -> None:
    """A replay with the suggested limits rejects as many requests as promised, at most the share."""
    rng = random.Random(algorithm)
    access_log = log(line(f"192.0.2.{int(rng.paretovariate(0.7)) % 50}", at=i // 3) for i in range(300))
    rule = {"name": "site", "algorithm": algorithm}
    found = suggested(rules({**rule, "limits": ["15/minute", "100/hour"]}), access_log, share)
    (site,) = found["rules"]
    again = replayed(rules({**rule, "limits": site["suggested"]}), access_log)
    assert again["rejected"] == site["rejected"] == found["rejected"]
    assert site["rejected"] <= float(share[:-1]) / 100 * 300


def test_a_ban_counts_for_the_share(rules: Write, log: Write) -> None:
    """One rejection starts a ban, which rejects many more requests than the limit does, so none is rejected."""
    quiet = [line(f"192.0.2.{n % 90}", at=n * 40) for n in range(90)]
    steady = [line("192.0.2.99", at=n) for n in range(5)] + [line("192.0.2.99", at=60 * n) for n in range(1, 60)]
    ban = {"ban": {"after": 1, "within": "1m", "for": "1d"}}
    found = suggested(rules({**SITE, "algorithm": "fixed-window", **ban}), log([*quiet, *steady]), "1%")["rules"][0]
    assert (found["suggested"], found["rejected"]) == (["5/minute"], 0)


def test_burst_in_proportion(rules: Write, log: Write) -> None:
    """The burst of a bucket changes with its amount."""
    rule = {"name": "bucket", "limits": "10/minute burst 5", "algorithm": "token-bucket"}
    (quota,) = suggested(rules(rule), log([line()] * 40), "0%")["rules"][0]["suggested"]
    amount, burst = map(int, re.fullmatch(r"(\d+)/minute burst (\d+)", quota).groups())  # type: ignore[union-attr]
    assert burst == round(amount / 2) == 40


def test_rules_without_a_suggestion(rules: Write, log: Write) -> None:
    """Concurrency limits stay, and a rule without a request has no suggestion. There may be no rule at all."""
    assert suggested(rules(), log([line()]), "1%")["rules"] == []
    slots = {"name": "slots", "limits": "2 concurrent"}
    both = {"name": "both", "limits": ["2 concurrent", "5/minute"]}
    nowhere = {"name": "nowhere", "limits": "5/minute", "match": {"path": "/nowhere"}}
    settings, access_log = rules(slots, both, nowhere), log([line()] * 9)
    found = suggested(settings, access_log, "0%")
    assert [rule["suggested"] for rule in found["rules"]] == [None, ["2 concurrent", "9/minute"], None]
    answer = answer_of("replay", settings, access_log, "--suggest", "0%")
    assert "# nowhere: no suggestion, because no limit of this rule decides a request of the log" in lines_of(answer)
    assert "concurrency limits reject none for slots, both" in answer.notes[0]


def test_any_rule_has_a_suggestion(rules: Write, log: Write, caplog: pytest.LogCaptureFixture) -> None:
    """Modes, outcomes, tables and costs do not matter."""
    every = [
        {"name": "shadow", "limits": "1/minute", "mode": "shadow"},
        {"name": "leased", "limits": "1/minute", "consistency": "leased"},
        {"name": "reject", "limits": "1/minute", "key": "user", "when_missing": "reject"},
        {"name": "failures", "limits": "1/minute", "count_when": {"status": 401}},
        {"name": "tables", "limits": "1/minute", "key": "user", "per_key": {"alice": "2/minute"}},
        {"name": "cost", "limits": "7/minute", "cost": 7},
    ]
    lines = [line(user=user, status=status) for user in ("alice", "bob") for status in (200, 401) for _ in range(150)]
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        found = suggested(rules(*every, defaults={"consistency": "leased"}), log(lines), "0%")
    limits = {rule["name"]: rule["suggested"] for rule in found["rules"]}
    assert limits == {
        "shadow": ["600/minute"],
        "leased": ["600/minute"],
        "reject": ["300/minute"],
        "failures": ["300/minute"],
        "tables": ["300/minute"],  # alice has her own limit
        "cost": ["4200/minute"],
    }
    assert not [record for record in caplog.records if not any(f"rule {name}" in record.message for name in limits)]


def test_the_lines_can_be_copied(rules: Write, log: Write, tmp_path: Path) -> None:
    """The lines below the title are TOML that a rule takes."""
    lines = lines_of(answer_of("replay", rules(SITE), log(LOG), "--suggest", "1%"))
    start = lines.index("Suggested limits, which reject about 1% of the requests of a rule at most")
    comment, limits, *rest = lines[start + 1 :]
    text = f'[[rules]]\nname = "site"\n{comment}\n{limits}\n'
    settings = load_settings(Files(tmp_path).settings(text, "copied.toml"))
    assert str(settings.rules[0].quotas[0]) == "12/minute"
    assert comment == "# site: rejects 1 of 100 requests (1.0%) instead of 61 of 100 requests (61.0%)"
    assert rest == ["", "With all of them: 1 rejected (1.0%) from 1 client"]


def test_invalid_share(rules: Write, log: Write) -> None:
    """A share is a percentage below 100%."""
    for share in ("", "1", "100%", "-1%", "1.234%", "one%", "1 %"):
        result = run("replay", rules(SITE), log([line()]), "--suggest", share)
        assert (result.exit_code, result.stdout, "expected a share" in result.stderr) == (2, "", True), share


def test_a_pipe_is_read_once(rules: Write, log: Write) -> None:
    """The passes read the requests from the database."""
    found = replayed(rules(SITE), log(LOG), "--suggest", "1%")
    result = run("replay", rules(SITE), "-", "--suggest", "1%", "--json", input="".join(LOG))
    assert json.loads(result.stdout) == found


PNG = b"\x89PNG\r\n\x1a\n"


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == PNG
    width, height = struct.unpack(">LL", head[16:24])
    return width, height


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@each("span", [0, 1, 90, 3_000, 86_400, 40 * 86_400, 300 * 86_400, 20 * 365 * 86_400, 7 * 10**9])
def test_plot_of_any_span(rules: Write, log: Write, tmp_path: Path, span: int) -> None:
    """The log may cover a second, a year, or centuries because of a wrong date."""
    picture = tmp_path / "a.png"
    result = run("replay", rules(SITE), log([line(at=0), line(at=span)]), "--plot", picture)
    assert result.exit_code == 0
    assert png_size(picture)[0] > 1000


@pytest.mark.slow
@each("name", ["a.pdf", "a", "nowhere/a.png"])
def test_plot_to_an_invalid_path(rules: Write, log: Write, tmp_path: Path, name: str) -> None:
    """The exit code is 2, before the work."""
    result = run("replay", rules(SITE), log([line()]), "--plot", tmp_path / name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Invalid value for '--plot'" in result.stderr


@pytest.mark.slow
def test_plot_without_its_extra(rules: Write, log: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without matplotlib ``--plot`` gives exit code 2, and replay works without ``--plot``."""
    for name in {"matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))}:
        monkeypatch.setitem(sys.modules, name, None)
    result = run("replay", rules(SITE), log([line()]), "--plot", tmp_path / "a.png")
    assert (result.exit_code, result.stdout) == (2, "")
    assert 'pip install "ratelimit-mw[plot]"' in result.stderr
    assert run("replay", rules(SITE), log([line()])).exit_code == 0
