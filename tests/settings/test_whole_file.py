"""A settings file with most of the settings, as the public names promise it."""

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratelimit_mw import ConfigError, Limiter, Rule, algorithms, load_settings
from ratelimit_mw.rules.declaration import type_text
from ratelimit_mw.rules.options import BanOption
from ratelimit_mw.settings import schema
from ratelimit_mw.testing import ManualClock

TOML = """
enabled = true
store = "${REDIS_URL}"                       # default "memory://"; ${NAME} is read from the environment in any text, and an unset one is an error
trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
headers = ["x-ratelimit", "ratelimit"]       # which families to send; "ratelimit" = the IETF draft's fields
on_store_error = "local"                     # "allow" | "deny" | "local" (the default)
store_timeout = "50ms"
rejection_cache = "1s"
reload_interval = "2s"                       # 0 = never look again
exempt = ["/health", "/static/**"]
traffic_log = "sqlite:///traffic.db"         # default: none

[defaults]                                   # for rules and decorators that do not say otherwise
key = ["user|ip"]

[[rules]]
name = "login"
match = { path = "/login", methods = ["POST"] }   # or view = "auth.login"
key = ["email", "ip"]                        # both together; ["email|ip"] is one or the other
limits = ["5/minute", "20/hour"]
count_when = { status = [401, "403"] }       # only failures count; count_unless = { status = [302] }; "4xx"; marked = true

[[rules]]
name = "api"
match = { path = "/api/**" }                 # * within a segment, ** across; {name} as in route templates
key = ["user|ip"]
limits = ["100/minute"]
unit = "requests"
mode = "enforce"                             # or "shadow"
per_key = { "client-42" = ["1000/minute"] }  # one-part keys; or a file: per_key = "clients.json"  {client: limit}
per = { plan = { free = ["100/minute"], pro = ["1000/minute"] } }   # by any feature: plan, group, region
schedule = { "mon-fri 08:00-18:00" = ["50/minute"] }
ban = { after = 10, within = "10m", for = "1h", growth = 2, max = "7d" }
consistency = "exact"                        # or "leased"
lease = "2%"

[lists]
allow = { ip = ["10.0.0.0/8"], user = ["monitoring"] }
deny = { ip = ["203.0.113.0/24"] }
"""  # noqa: E501 - as long as in the document that it is from


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REDIS_URL", "memory://")
    path = tmp_path / "ratelimit.toml"
    path.write_text(TOML, encoding="utf-8")
    return path


def test_the_whole_file_loads(file: Path) -> None:
    """Every field arrives, durations in whole microseconds. The lease beside "exact" has no effect yet."""
    settings = load_settings(file)
    login, api = settings.rules
    assert (settings.store, settings.exempt, login.name) == ("memory://", ("/health", "/static/**"), "login")
    assert (settings.trusted_proxies, settings.headers) == (("127.0.0.1", "10.0.0.0/8"), ("x-ratelimit", "ratelimit"))
    assert (settings.on_store_error, settings.store_timeout, settings.rejection_cache) == ("local", 50_000, 1_000_000)
    assert login == Rule(
        name="login",
        match={"path": "/login", "methods": ["POST"]},
        key=["email", "ip"],
        limits=["5/minute", "20/hour"],
        count_when={"status": [401, "403"]},
    )
    assert (api.consistency, api.lease_percent, api.mode, api.unit) == ("exact", 0, "enforce", "requests")
    assert [name for name, _ in api.tables] == ["", "plan"]
    assert settings.defaults == {"key": ["user|ip"]}


def test_every_form_says_the_same(file: Path) -> None:
    """TOML, JSON, YAML, pyproject.toml and a dictionary are one and the same settings."""
    data, folder = tomllib.loads(TOML), file.parent
    tables = re.sub(r"^\[+", lambda head: f"{head[0]}tool.ratelimit_mw.", TOML, flags=re.MULTILINE)
    texts = {
        "b.TOML": TOML,
        "c.json": json.dumps(data),
        "d.yaml": yaml.safe_dump(data),
        "e.yml": yaml.safe_dump(data),
        "pyproject.toml": f"[project]\nname = 'x'\n[tool.ratelimit_mw]{tables}",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    forms: list[Any] = [file, *(str(folder / name) for name in texts), data]
    loaded = [load_settings(form) for form in forms]
    assert [settings == loaded[0] for settings in loaded] == [True] * len(forms)
    assert [settings.source for settings in loaded] == [*map(str, forms[:-1]), ""]


def test_its_rules_decide(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the client raises the limit, and the deny list rejects."""
    monkeypatch.chdir(file.parent)  # it has the traffic log
    limiter = Limiter.from_settings(file, ManualClock(1_000_000.0))
    try:
        client = {"path": "/api/items", "method": "GET", "user": "ann", "ip": "192.0.2.7", "plan": "pro"}
        assert [d.limit for d in limiter.hit(client).decisions] == [1000]
        assert limiter.hit({**client, "ip": "203.0.113.9"}).denied
    finally:
        limiter.close()


def test_the_schema_knows_every_field() -> None:
    """Editors are offered every field of the file and of a rule, and nothing else."""
    data, found = tomllib.loads(TOML), schema()
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


OTHERS: dict[str, Any] = {
    "limits": "900/minute",
    "observers": ["app:count"],
    "event_features": ["user"],
    "secret": "0123456789abcdef",
    "keyed": ["email"],
    "region_database": "",
    "defaults": {"algorithm": {"name": "gcra"}, "count_when": {"status": [401]}, "timezone": "UTC"},
}
RULES: list[dict[str, Any]] = [
    {"limits": "2 concurrent", "hold_at_most": "1h", "wait": "5s", "max_waiting": 5, "key": []},
    {"limits": "5/minute", "algorithm": {"name": "tiered-window", "precision": "1s"}, "cost_from": {"header": "x"}},
    {
        "overrides": "shop.view",
        "match": {"user": "ann", "ip": ["10.0.0.1"]},
        "cost": "json:n|5",
        "count_unless": {"status": 402},
    },
]


def places(table: Any, *steps: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the steps to every value in nested tables and lists."""
    items = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    for step, value in items:
        yield (*steps, step)
        yield from places(value, *steps, step)


@pytest.mark.slow
@pytest.mark.usefixtures("file")
def test_a_value_of_a_wrong_type_is_an_error_with_its_place() -> None:
    """Wherever it is in the settings, the value is taken, or the error names the setting."""
    for wrong in (None, True, "\0", {"x": None}):
        whole = {**tomllib.loads(TOML), **OTHERS}
        whole["rules"] = [*whole["rules"], *RULES]
        load_settings(whole)  # type: ignore[arg-type]
        for *steps, last in places(whole):
            data = table = copy.deepcopy(whole)
            for step in steps:
                table = table[step]
            table[last] = wrong
            try:
                load_settings(data)  # type: ignore[arg-type]
            except ConfigError as error:
                setting = re.split(r"[.:\[]", str(error))[0]
                assert setting == [*steps, last][0] or (setting, last) == ("keyed", "secret"), wrong
