"""Settings: every form says the same, and every mistake is an error that names its place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tables import expect_error

from ratelimit_mw import Limiter, Rule, algorithms, load_settings
from ratelimit_mw.errors import MissingExtraError
from ratelimit_mw.rules.declaration import type_text
from ratelimit_mw.rules.options import BanOption
from ratelimit_mw.settings import schema

TOML = """
store = "memory://?max_keys=1000"
trusted_proxies = ["127.0.0.1", "10.0.0.0/8", "unix"]
forwarded_header = "forwarded"
ipv6_prefix = 56
headers = ["ratelimit"]
reset = "epoch"
retry_jitter = "2s"
on_store_error = "deny"
store_timeout = "20ms"

[[rules]]
name = "login"
match = { path = "/login", methods = ["POST"], region = ["DE", "AT"] }
key = ["user", "ip"]
limits = ["5/minute", "20/hour"]
algorithm = "fixed-window"
count_when = { status = [401, 403] }

[[rules]]
name = "api"
match = { path = "/api/**" }
key = ["user|ip"]
limits = "100/minute"
algorithm = { name = "token-bucket", refill = "interval" }
cost = 2
mode = "shadow"
when_missing = "reject"
per_key = { client-42 = ["1000/minute"] }
per = { plan = { free = ["100/minute"], pro = "1000/minute" } }
on_store_error = "allow"
"""


@pytest.fixture
def data() -> dict[str, Any]:
    found: dict[str, Any] = msgspec.toml.decode(TOML)
    return found


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_every_form_says_the_same(tmp_path: Path, data: dict[str, Any]) -> None:
    """TOML, JSON, YAML, pyproject.toml and a dictionary are one and the same settings."""
    pyproject = TOML.replace("[[rules]]", "[[tool.ratelimit_mw.rules]]")
    forms: list[Any] = [
        written(tmp_path, "a.toml", TOML),
        str(written(tmp_path, "b.TOML", TOML)),
        written(tmp_path, "c.json", json.dumps(data)),
        written(tmp_path, "d.yaml", yaml.safe_dump(data)),
        written(tmp_path, "e.yml", yaml.safe_dump(data)),
        written(tmp_path, "pyproject.toml", "[project]\nname = 'x'\n[tool.ratelimit_mw]" + pyproject),
        data,
    ]
    loaded = [load_settings(form) for form in forms]
    assert [settings == loaded[0] for settings in loaded] == [True] * len(forms)
    assert [settings.source for settings in loaded] == [*map(str, forms[:-1]), ""]


def test_what_a_file_says(data: dict[str, Any]) -> None:
    """Every field arrives, durations in whole microseconds."""
    settings = load_settings(data)
    login, api = settings.rules
    assert settings.trusted_proxies == ("127.0.0.1", "10.0.0.0/8", "unix")
    assert (settings.store, settings.forwarded_header, settings.ipv6_prefix) == (data["store"], "forwarded", 56)
    assert (settings.headers, settings.reset, settings.retry_jitter) == (("ratelimit",), "epoch", 2_000_000)
    assert (settings.on_store_error, settings.store_timeout) == ("deny", 20_000)
    assert login == Rule(
        name="login",
        match={"path": "/login", "methods": ["POST"], "region": ["DE", "AT"]},
        key=["user", "ip"],
        limits=["5/minute", "20/hour"],
        algorithm="fixed-window",
        count_when={"status": [401, 403]},
    )
    assert (api.cost, api.mode, api.when_missing, api.on_store_error) == (2, "shadow", "reject", "allow")
    assert [name for name, _ in api.tables] == ["", "plan"]


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


def test_the_schema_knows_every_field(data: dict[str, Any]) -> None:
    """Editors are offered every field of the file and of a rule, and nothing else."""
    found = schema()
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    tables = found["$defs"]
    assert set(data) < set(tables["SettingsDict"]["properties"])
    assert set(data["rules"][0]) | set(data["rules"][1]) < set(tables["RuleSettings"]["properties"])
    assert not tables["RuleSettings"]["additionalProperties"]
    match = tables["MatchOptions"]
    assert match["properties"].keys() == {"path", "methods", "method", "view", "host"}
    one = [{"type": "string"}, {"type": "integer"}]
    assert match["additionalProperties"] == {"anyOf": [*one, {"type": "array", "items": {"anyOf": one}}]}
    names, table, _variable = tables["RuleSettings"]["properties"]["algorithm"]["anyOf"]
    built_in = [name for name, kind in algorithms._BUILDERS.items() if kind.__module__.startswith("ratelimit_mw.")]
    assert names["enum"] == sorted(built_in)
    assert table == {"$ref": "#/$defs/AlgorithmTable"}
    fields = [(name, each, field) for name, one in tables.items() for each, field in one["properties"].items()]
    assert [(name, each) for name, each, field in fields if "description" not in field] == []
    assert (type_text(BanOption), type_text(float | str)) == ("table or false", "duration")


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
