"""The file and line of each rule."""

from pathlib import Path

from ratelimit_mw import load_settings


def test_each_rule_has_its_place(tmp_path: Path) -> None:
    for head in ("", 'limits = "9/day"\n'):
        file = tmp_path / "ratelimit.toml"
        file.write_text(f'{head}[[rules]]\nname = "api"\nlimits = "5/minute"\n', encoding="utf-8")
        places = load_settings(file).rule_places
        line = 2 if head else 1
        assert places["api"] == f"{file}:{line}", head
        assert len(places) == line, head
