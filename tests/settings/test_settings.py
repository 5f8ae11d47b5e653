"""Settings: every form says the same, and every mistake is an error that names its place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tables import expect_error

from ratelimit_mw import Limiter, load_settings
from ratelimit_mw.errors import MissingExtraError
from ratelimit_mw.settings import schema


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_makes_a_limiter(tmp_path: Path) -> None:
    """``Limiter.from_settings`` takes a file, a dictionary or loaded settings."""
    path = written(tmp_path, "r.toml", '[[rules]]\nname = "api"\nlimits = "1/minute"')
    for source in (path, str(path), load_settings(path), {"rules": [{"name": "api", "limits": "1/minute"}]}):
        limiter = Limiter.from_settings(source)
        assert [bool(limiter.hit({"ip": "192.0.2.7"})) for _ in range(2)] == [True, False]


# -- limits by client in a file of their own ---------------------------------------------------------------


def test_limits_by_client_may_stand_in_a_file(tmp_path: Path) -> None:
    """``per_key`` names a file beside the settings file, wherever the process was started."""
    for name, text in (
        ("clients.json", '{"client-42": "1000/minute", "client-43": ["1/s", "10/hour"]}'),
        ("clients.toml", 'client-42 = "1000/minute"\nclient-43 = ["1/s", "10/hour"]'),
        ("clients.yaml", "client-42: 1000/minute\nclient-43: [1/s, 10/hour]"),
    ):
        written(tmp_path, name, text)
        path = written(
            tmp_path, "r.toml", f'[[rules]]\nname = "api"\nkey = "user"\nlimits = "1/minute"\nper_key = "{name}"'
        )
        limiter = Limiter.from_settings(path)
        shown = {user: limiter.peek({"user": user}).decisions for user in ("client-42", "client-43", "other")}
        assert {user: [str(d.quota) for d in found] for user, found in shown.items()} == {
            "client-42": ["1000/minute"],
            "client-43": ["1/second", "10/hour"],
            "other": ["1/minute"],
        }, name


def test_a_mistake_in_that_file_names_it(tmp_path: Path) -> None:
    """The settings file, the rule, the other file and what is wrong there are all in the error."""
    for name, text, message in (
        ("missing.json", None, "rules\\[0\\]: per_key: file '.*missing.json' not found"),
        ("c.json", "{", "rules\\[0\\]: per_key: .*c.json:1: cannot parse the file: "),
        ("c.json", "[]", "rules\\[0\\]: per_key: .*c.json: expected a table of limits by client; got \\[\\]"),
        ("c.json", "null", "rules\\[0\\]: per_key: .*c.json: expected a table of limits by client; got None"),
        ("c.json", '{"a": "x"}', "rules\\[0\\]: per_key\\['a'\\]: cannot parse quota 'x'"),
        ("c.json", '{"a": 5}', "rules\\[0\\]: per_key\\['a'\\]: expected AMOUNT/PERIOD"),
        ("c.txt", "", "rules\\[0\\]: per_key: .*c.txt: unknown file type '.txt'. Expected .toml, .json, .yaml, .yml"),
    ):
        if text is not None:
            written(tmp_path, name, text)
        path = written(tmp_path, "r.toml", f'[[rules]]\nlimits = "1/minute"\nper_key = "{name}"')
        expect_error(f"r.toml:3: {message}", load_settings, path)


def test_yaml_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyYAML the error is the line that installs it."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtraError, match='pip install "ratelimit-mw\\[yaml\\]"'):
        load_settings(written(tmp_path, "r.yaml", "rules: []"))


def test_the_schema_takes_variables_of_the_environment() -> None:
    """Where text is not valid anyway, and in lists and tables, too. Text without a variable stays wrong."""
    tables, variable = schema()["$defs"], {"type": "string", "pattern": r"\$\{[A-Za-z_]"}
    fields = tables["SettingsDict"]["properties"]
    for name in ("enabled", "ipv6_prefix", "fleet_size", "trusted_proxies", "headers", "reset"):
        assert fields[name]["anyOf"][-1] == variable, name
        assert "description" in fields[name], name
    assert fields["headers"]["anyOf"][0]["items"]["anyOf"][-1] == variable
    assert tables["BanOptions"]["properties"]["after"]["anyOf"][-1] == variable
    for name in ("store", "limits", "reload_interval", "lists"):
        assert variable not in fields[name].get("anyOf", []), name


def test_the_lists_stay_out_of_the_repr() -> None:
    """Settings that are logged show no client of an allow or deny list."""
    lists = {"deny": {"email": ["jane@example.com"]}, "allow": {"header:x-token": ["s3cr3t"]}}
    shown = repr(load_settings({"lists": lists}))
    assert "jane" not in shown
    assert "s3cr3t" not in shown
