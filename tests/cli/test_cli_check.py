"""``ratelimit-mw check`` shows every rule and the place of every mistake, and no password."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command_line import RULES, Files, run

from ratelimit_mw import stores

BANNING = '[[rules]]\nname = "a"\nlimits = "5/s"\nban = {after = 9, within = "1m", for = "1h"}'


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    """Writes a settings file and returns its path."""
    return Files(tmp_path).settings


def test_check_shows_every_rule(settings: Any) -> None:
    """The table shows the match, key, limits, algorithm, mode and cost of each rule."""
    result = run("check", settings(RULES))
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "login POST /login email + ip 5/minute sliding-window enforce 1 if 401 or 403" in lines
    assert "rule-3 GET/HEAD one for all clients 1000/second sliding-window enforce 1" in lines
    assert "api /api/** or /v2/** user|ip 100/minute burst 20 token-bucket (interval) shadow 1" in lines


def test_check_shows_limits_of_some_clients(settings: Any) -> None:
    """Limits by key and by feature are listed below the limits of the rule, at most three per table."""
    tables = "per_key = { alice = '9/s' }\nper = { plan = { free = '1/s', pro = '5/s; 9/m', a = '1/s', b = '1/s' } }"
    lines = run("check", settings(f"[[rules]]\nlimits = '2/s'\n{tables}")).stdout.splitlines()
    shown = [" ".join(line.split()) for line in lines[4:9]]
    assert shown == [
        "key alice: 9/second",
        "plan free: 1/second",
        "plan pro: 5/second; 9/minute",
        "plan a: 1/second",
        "and 1 more",
    ]


def test_check_shows_costs_and_units(settings: Any) -> None:
    """A feature that has the cost is listed as those of keys are."""
    cost = 'cost = "json:n|pages|5"\ncost_from = { header = "X-Used", remove = true }\nunit = "tokens"'
    path = settings(f"[[rules]]\nname = 'r'\nlimits = '9/minute; 2 concurrent'\n{cost}")
    lines = [" ".join(line.split()) for line in run("check", path).stdout.splitlines()]
    assert "r all ip 9 tokens/minute sliding-window enforce json:n|pages|5" in lines
    found = json.loads(run("check", path, "--json").stdout)
    assert found["required_features"] == {"pages": ["r"]}
    (rule,) = found["rules"]
    assert [rule[name] for name in ("limits", "cost", "cost_from", "unit")] == [
        ["9/minute", "2 concurrent"],
        "json:n|pages|5",
        {"header": "X-Used", "remove": True},
        "tokens",
    ]


def test_check_lists_features_that_the_application_provides(settings: Any) -> None:
    """Each feature is listed with its rules."""
    notes = json.loads(run("check", settings(RULES), "--json").stdout)["required_features"]
    assert notes == {"user": ["api"], "region": ["api"], "plan": ["api"]}


def test_check_does_not_list_features_of_the_request(settings: Any) -> None:
    """Headers, cookies, query and body fields come from the request."""
    path = settings(
        '[[rules]]\nname = "a"\nlimits = "5/s"\n'
        'key = ["ip", "method", "path", "host", "endpoint", "header:x-a", "cookie:a", "query:a", "json:a", "form:a",'
        ' "email"]'
    )
    assert json.loads(run("check", path, "--json").stdout)["required_features"] == {}


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("", "there are no rules, so no request is limited"),
        (
            '[[rules]]\noverrides = "login"\nlimits = "1/s"',
            "rules[0] is not shown: it changes the rule 'login' of a decorator. Use check --app",
        ),
        ('[[rules]]\nlimits = "5/minute"', "named by its position"),
        ('[[rules]]\nname = "a"\nlimits = "5/minute"', "counts in each process separately"),
        (
            '[[rules]]\nname = "a"\nlimits = ["100/minute", "50/hour"]',
            "a: 100/minute hardly ever rejects, because 50/hour rejects first",
        ),
        ('[[rules]]\nname = "a"\nkey = "region"\nlimits = "5/s"', "must provide the feature region, for a"),
        ('[[rules]]\nname = "a"\nkey = "region"\nlimits = "5/s"', "Set region_database or region_header"),
        ('[[rules]]\nname = "a"\nkey = "usr"\nlimits = "5/s"', "must provide the feature usr, for a"),
        (
            f'secret = "{"s" * 32}"\nkeyed = ["emial", "ip", "tel"]\n[[rules]]\nkey = "tel"\nlimits = "5/s"',
            "keyed lists emial, but no key of these rules uses it",
        ),
        (
            f"{BANNING}\nkey = 'user|ip'",
            "a: the ban is by ip, and trusted_proxies is empty. Behind a proxy, one client bans",
        ),
        ('email_field = ""\n[[rules]]\nname = "a"\nkey = "email"\nlimits = "5/s"', "the feature email, for a"),
    ],
)
def test_check_notes(settings: Any, text: str, note: str) -> None:
    """Notes about a valid file follow the table. They are an error for ``--strict`` alone."""
    result = run("check", settings(text))
    assert result.exit_code == 0
    assert note in result.stdout
    assert run("check", settings(text), "--strict").exit_code == 1


def test_strict_accepts_a_file_without_notes(settings: Any) -> None:
    text = 'store = "redis://cache"\ntrusted_proxies = ["10.0.0.1"]\n[[rules]]\nname = "a"\nlimits = "5/s"'
    result = run("check", settings(text), "--strict", "--json")
    assert (result.exit_code, json.loads(result.stdout)["notes"]) == (0, [])


@pytest.mark.parametrize(
    ("option", "key"), [('region_header = "cf-ipcountry"', "region"), ('forwarded_header = "cf-connecting-ip"', "ip")]
)
def test_check_fails_for_an_application_that_does_not_start(settings: Any, option: str, key: str) -> None:
    """A file that its application cannot use is a problem, and no note."""
    result = run("check", settings(f'{option}\n[[rules]]\nname = "a"\nkey = "{key}"\nlimits = "5/s"'), "--json")
    report = json.loads(result.stdout)
    problem = f"{option.split()[0]} needs trusted_proxies. Without them, your application does not start"
    assert (result.exit_code, report["problems"]) == (1, [problem])
    assert problem not in report["notes"]


@pytest.mark.parametrize(("proxy", "is_problem"), [("0.0.0.0/0", True), ("::/0", True), ("10.0.0.0/8", False)])
def test_a_proxy_that_is_every_client_is_a_problem(settings: Any, proxy: str, is_problem: bool) -> None:
    """Each client could choose its own IP address. A private network and a Unix socket are fine."""
    path = settings(f'trusted_proxies = ["unix", "{proxy}"]\n[[rules]]\nname = "a"\nlimits = "5/s"')
    result = run("check", path, "--json")
    assert result.exit_code == is_problem
    assert [proxy in problem for problem in json.loads(result.stdout)["problems"]] == [True] * is_problem


@pytest.mark.parametrize(
    "text", [f'trusted_proxies = ["unix"]\n{BANNING}', f'{BANNING}\nkey = ["email", "ip"]', f'{BANNING}\nkey = "user"']
)
def test_check_has_no_note_about_a_ban_of_a_client(settings: Any, text: str) -> None:
    assert "the ban is by ip" not in run("check", settings(text)).stdout


@pytest.mark.parametrize("part", ["tel", "tel.number", "tel as raw"])
def test_check_has_no_note_about_a_keyed_feature_in_use(settings: Any, part: str) -> None:
    """Each part of a key that is read from the feature is digested."""
    text = f'secret = "{"s" * 32}"\nkeyed = ["tel"]\n[[rules]]\nkey = "{part}"\nlimits = "5/s"'
    assert "keyed has" not in run("check", settings(text)).stdout


def test_check_counts_overrides_as_rules(settings: Any) -> None:
    """A file that only changes rules of decorators limits requests."""
    result = run("check", settings('[[rules]]\noverrides = "login"\nlimits = "1/s"'), "--json")
    assert "no request is limited" not in result.stdout
    assert len(json.loads(result.stdout)["notes"]) == 2


def test_check_has_no_note_about_two_effective_limits(settings: Any) -> None:
    """Each of the two limits can reject first."""
    assert "hardly ever" not in run("check", settings(RULES)).stdout


def test_check_finds_a_cost_that_never_fits(settings: Any) -> None:
    """A rule that rejects every request is a problem, with exit code 1."""
    path = settings('[[rules]]\nname = "big"\nlimits = "5/minute"\ncost = 6')
    result = run("check", path)
    assert result.exit_code == 1
    assert "problem: big rejects every request: its cost 6 is greater than the limit 5/minute" in result.stdout
    result = run("check", path, "--json")
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)["problems"]) == 1


def test_check_as_json(settings: Any) -> None:
    """The JSON contains all fields of each rule."""
    rules = json.loads(run("check", settings(RULES), "--json").stdout)["rules"]
    assert [rule["name"] for rule in rules] == ["login", "api", "rule-3"]
    assert rules[0]["count_when"] == {"status": [401, 403]}
    assert rules[1] == {
        "name": "api",
        "match": {
            "path": ["/api/**", "/v2/**"],
            "methods": [],
            "host": ["*.example.com"],
            "region": ["AT", "DE"],
        },
        "key": ["user|ip"],
        "limits": ["100/minute burst 20"],
        "per_key": {"alice": ["1000/minute"]},
        "per": {"plan": {"free": ["10/minute"], "pro": ["500/minute"], "a": ["1/minute"], "b": ["2/minute"]}},
        "algorithm": "token-bucket (interval)",
        "mode": "shadow",
        "cost": 1,
        "when_missing": "skip",
        "count_when": None,
    }
    assert "per" not in rules[0]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[[rules]]\nlimits = '5/minute'\n[[rules]]\nlimits = ['5/minit']", ":4: rules[1]: limits[0]: "),
        ("[[rules]]\nlimits = '5/minute'\nkay = 'ip'", ":3: rules[0]: kay: unknown field. Did you mean 'key'?"),
        ("store = 'redish://localhost'", ":1: store: unknown scheme 'redish' of a store URL"),
        ("store = 'memory://?max_keis=5'", ":1: store: "),
        ("trusted_proxies = ['10.0.0.0/99']", ":1: trusted_proxies"),
        ("ipv6_prefix = 999", ":1: ipv6_prefix"),
        ("rules = 5", ":1: rules: "),
        ("not toml", ":1: cannot parse the file: "),
    ],
)
def test_check_names_the_place_of_a_mistake(settings: Any, text: str, place: str) -> None:
    """The message on stderr contains the file and the place, with exit code 1."""
    path = settings(text)
    result = run("check", path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {path}{place}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.toml", b"\xff\xfe\x00\x01"),
        ("a.json", b"\x00" * 100),
        ("a.yaml", b"a: [\n- }"),
        ("a.json", b"[" * 100_000),
        ("a.toml", b"a = " + b"[" * 5_000),
        ("pyproject.toml", b"tool = 1"),
        ("pyproject.toml", b"[project]"),
        ("a.txt", b"hello"),
    ],
)
def test_no_traceback_for_any_file(tmp_path: Path, name: str, content: bytes) -> None:
    """A binary, broken, deeply nested or foreign file is an invalid file."""
    path = tmp_path / name
    path.write_bytes(content)
    result = run("check", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert str(path) in result.stderr


def test_check_never_shows_passwords(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store URL is shown without password and options."""
    store = ModuleType("ratelimit_mw.stores.vault")
    store.OPTIONS = ("password",)  # type: ignore[attr-defined]
    store.parse_address = lambda *_: None  # type: ignore[attr-defined]
    store.open_address = lambda *_: stores.MemoryStore()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, store.__name__, store)
    monkeypatch.setitem(stores._FAMILIES, "vault", ("vault", "vault", ""))
    monkeypatch.setitem(stores._SCHEMES, "vault", "vault")
    path = settings("store = 'vault://bob:s3cret@db.example.com:6379/0?password=s3cret'\n" + RULES)
    for result in (run("check", path, "--json"), run("check", path)):
        assert "vault://db.example.com:6379/0" in result.stdout
        assert "s3cret" not in result.output


@pytest.mark.parametrize(
    ("option", "shown", "fields"),
    [
        ('consistency = "exact"', "enforce 1", {}),
        ('consistency = "leased"', "enforce 1 leased", {"consistency": "leased", "lease": "2%"}),
        ('lease = "5%"', "enforce 1 leased 5%", {"consistency": "leased", "lease": "5%"}),
    ],
)
def test_check_and_explain_show_how_a_rule_counts(settings: Any, option: str, shown: str, fields: Any) -> None:
    """Below the mode, and in the JSON, unless the rule asks the store each time."""
    path = settings(f'[[rules]]\nname = "a"\nlimits = "100/minute"\n{option}')
    commands = (("check", path), ("explain", path, "GET", "/", "--feature", "ip=192.0.2.7"))
    for arguments in commands:
        assert shown in " ".join(run(*arguments).stdout.split())
        (rule,) = json.loads(run(*arguments, "--json").stdout)["rules"]
        assert {name: rule[name] for name in ("consistency", "lease") if name in rule} == fields
