"""A settings file with most of the settings, as the public names promise it, and the forms of settings."""

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tables import expect_error

from ratelimit_mw import ConfigError, Limiter, Rule, algorithms, load_settings
from ratelimit_mw.rules.declaration import options_of, type_text
from ratelimit_mw.rules.options import RuleDefaults
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
    assert [part for part, _ in api.tables] == [None, "plan"]
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


def test_plans_and_lists_of_the_file_decide(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (type_text(options_of(RuleDefaults)["ban"].hint), type_text(float | str)) == ("table or false", "duration")


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
    {"limits": "5/minute", "algorithm": {"name": "tiered-window", "precision": "1s"}},
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
        ("c", "", "rules\\[0\\]: per_key: .*c: unknown file type ''. Expected .toml, .json, .yaml, .yml$"),
    ):
        if text is not None:
            written(tmp_path, name, text)
        path = written(tmp_path, "r.toml", f'[[rules]]\nlimits = "1/minute"\nper_key = "{name}"')
        expect_error(f"r.toml:3: {message}", load_settings, path)


def test_the_schema_takes_variables_of_the_environment() -> None:
    """Where text is not valid anyway, and in tables, too. Text without a variable stays wrong."""
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
