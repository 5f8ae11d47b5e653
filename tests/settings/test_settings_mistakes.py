"""Every mistake in a settings file is an error that names its place and its line."""

from __future__ import annotations

import json
import re
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from libraries import load_without
from tables import expect_error

from ratelimit_mw import Limiter, Settings, load_settings
from ratelimit_mw.rules.places import places_in


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


RULE = {"limits": "5/minute"}


def test_settings_of_another_kind_are_an_error() -> None:
    """None could be a variable that is not set: it does not mean that there are no limits."""
    for load in (Limiter.from_settings, load_settings):
        for source in (None, 5):
            expect_error(f"^settings: expected the path of a file or a dictionary; got {source}$", load, source)


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    """Editors on Windows write it. The first line keeps its number."""
    for name, text in (
        ("r.toml", 'store = "nothing://"\n'),
        ("r.json", '{"store": "nothing://"}'),
        ("r.yaml", "store: nothing://\n"),
    ):
        file = written(tmp_path, name, f"\ufeff{text}")
        expect_error(rf"^{re.escape(str(file))}:1: store: unknown scheme 'nothing'", load_settings, file)


def test_every_mistake_in_a_rule_names_its_place(tmp_path: Path) -> None:
    """The error starts with the file and the path in it. ``tests/rules`` has the mistakes of each option."""
    for wrong, message in (
        ({"limits": ["5/minute", "x"]}, ": limits[1]: cannot parse quota 'x'"),
        ({"limits": 5}, ': limits: expected AMOUNT/PERIOD, for example "5/minute", or a list of them; got 5'),
        ({"limit": "5/minute"}, ": limit: unknown field. Did you mean 'limits' or 'limits_ttl'?"),
        ({"path": "/login"}, ": path: a field of match. Write it there, as in match = "),
        ({"store": "memory://"}, ": store: a setting of the whole file. Write it above the first [[rules]]"),
        ({"name": "a b"}, ' "a b": name: expected 1 to 200 printable'),
        ({"match": {"path": ["/a", "b"]}}, ": match.path: expected a path pattern"),
        ({"match": {5: "x"}}, ": match: expected a feature"),
        ({"per_key": {"a": 5}}, ": per_key['a']: expected AMOUNT/PERIOD"),
        ({"per": {"plan": {"free": "x"}}}, ": per.plan['free']: cannot parse quota"),
    ):
        data = {"rules": [RULE, {**RULE, **wrong}]}
        error = expect_error(rf"^rules\[1\]{re.escape(message)}", load_settings, data)
        if all(isinstance(name, str) for name in wrong.get("match", {})):
            path = written(tmp_path, "r.json", json.dumps(data))
            expect_error(rf"^{path}(:\d+)?: {re.escape(error)}$", load_settings, path)


def test_every_other_mistake_names_its_place() -> None:
    """What stands outside the rules is checked as strictly."""
    for wrong, message in (
        ({"rulez": []}, "rulez: unknown setting. Did you mean 'rules'?"),
        ({"lists": {"alow": {}}}, "lists.alow: unknown list. Did you mean 'allow'?"),
        ({5: 5}, "5: unknown setting. Expected one of enabled, "),
        ({"RULES": [RULE]}, "RULES: unknown setting. Did you mean 'rules'?"),
        ({"key": ["user"], **RULE}, "key: a field of a rule. Write it in a table of rules, [[rules]] in TOML"),
        ({"rules[1].x": 5, "rules": [RULE]}, "['rules[1].x']: unknown setting. Did you mean 'rules'?"),
        ({"rules.0": RULE}, "['rules.0']: unknown setting. Did you mean 'rules'?"),
        ({"rules": [{**RULE, "reserve": {5: "9%"}}]}, "rules[0]: reserve: unknown class 5. Expected one of critical"),
        ({"rules": {}}, "rules: expected a list of tables, [[rules]] in TOML; got {}"),
        ({"rules": [5]}, 'rules[0]: expected a table such as {limits = "5/minute"}; got 5'),
        ({"rules": [{}]}, "rules[0]: limits: a rule needs limits"),
        ({"rules": [{**RULE, "name": "rule-2"}, RULE]}, "rules[1]: name: the name 'rule-2' is already used"),
        (
            {"rules": [{**RULE, "overrides": "v"}, {**RULE, "name": "a"}, {**RULE, "name": "a"}]},
            "rules[2] \"a\": name: the name 'a' is already used by rules[1]. Give each rule a name of its own",
        ),
        (
            {"rules": [{**RULE, "limits": "1/s; 5/m", "name": "a"}, RULE, {**RULE, "name": "a-2"}]},
            "rules[2] \"a-2\": name: the name 'a-2' is already used by rules[0]. Give each rule a name of its own",
        ),
        ({"store": 5}, "store: expected text"),
        ({"store": ""}, "store: a store URL starts with a scheme and ://"),
        ({"store": "redis://ann:secret@[::1"}, 'store.host: expected servers such as "10.0.0.1:6379,10.0.0.2"'),
        ({"trusted_proxies": "10.0.0.0/8"}, "trusted_proxies: expected a list of text; got '10.0.0.0/8'"),
        ({"trusted_proxies": ["10.0.0.0/8", "x"]}, "trusted_proxies[1]: expected an IP address, a network such as"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, "trusted_proxies[0]: expected an IP address"),
        ({"trusted_proxies": ["*"]}, "trusted_proxies[0]: expected an IP address"),
        ({"lists": {"deny": {"ip": [5]}}}, "lists.deny.ip: expected an IP address or a network such as"),
        ({"region_database": "x"}, "region_database: file not found: 'x"),
        (
            {"forwarded_header": "X-Forwarded-Four"},
            "forwarded_header: expected the name of a header, such as 'x-forwarded-for'; got 'X-Forwarded-Four'. Did",
        ),
        ({"forwarded_header": "cf_connecting_ip"}, "forwarded_header: expected the name of a header, such as 'x-f"),
        ({"forwarded_header": ""}, "forwarded_header: expected the name of a header, such as 'x-f"),
        ({"defaults": {"key": [], "ban": {"after": 1, "within": 1, "for": 1}}}, "defaults.ban: key = [] is the same"),
        ({"ipv6_prefix": 0}, "ipv6_prefix: expected a whole number from 1 to 128; got 0"),
        ({"ipv6_prefix": 129}, "ipv6_prefix: expected a whole number from 1 to 128; got 129"),
        ({"ipv6_prefix": "64"}, "ipv6_prefix: expected a whole number from 1 to 128; got '64'"),
        ({"headers": "ratelimit"}, "headers: expected a list of 'x-ratelimit' or 'ratelimit'; got 'ratelimit'"),
        ({"headers": ["x"]}, "headers[0]: expected 'x-ratelimit' or 'ratelimit'; got 'x'"),
        ({"reset": "date"}, "reset: expected 'delta' or 'epoch'; got 'date'"),
        ({"store_timeout": "0s"}, "store_timeout: expected a duration above 0"),
        ({"store_timeout": 1e-9}, "store_timeout: expected a duration above 0"),
        ({"retry_jitter": -1}, "retry_jitter: expected a duration"),
        ({"retry_jitter": float("nan")}, "retry_jitter: expected a duration"),
        ({"retry_jitter": True}, 'retry_jitter: expected a duration such as "250ms", "2s" or "15 minutes"; got True'),
        ({"retry_jitter": "900ms"}, "retry_jitter: expected whole seconds such as \"2s\"; got '900ms'"),
        ({"retry_jitter": 1.5}, 'retry_jitter: expected whole seconds such as "2s"; got 1.5'),
        ({"store_timeout": "soon"}, "store_timeout: expected a duration"),
        ({"on_store_error": "retry"}, "on_store_error: expected 'allow' or 'deny' or 'local'; got 'retry'"),
        ({"lists": 3}, "lists: expected a table; got 3"),
        ({"lists": {"deny": ["10.0.0.1"]}}, "lists.deny: expected a table; got ['10.0.0.1']"),
        ({"lists": {"deny": {"user": [None]}}}, "lists.deny.user: expected text or a whole number; got None"),
        ({"event_features": ["no-feature!"]}, "event_features[0]: expected a feature"),
        ({"fleet_size": 0}, "fleet_size: expected a whole number of at least 1; got 0"),
        ({"rules": [{**RULE, "overrides": "v"}] * 2}, "rules[1] \"v\": overrides: 'v' is already overridden above"),
        (
            {"rules": [{**RULE, "overrides": "v", "name": "x"}]},
            'rules[0] "x": name: a rule with overrides keeps the name',
        ),
    ):
        expect_error(f"^{re.escape(message)}", load_settings, wrong)


def test_the_first_mistake_is_the_one_that_is_named() -> None:
    """The order is that of the file."""
    mistakes: dict[str, Any] = {"reset": 7, "store": 5, "headers": 3, "enabled": "no", "secret": 1}
    for names in permutations(mistakes, 2):
        expect_error(f"^{names[0]}: expected", load_settings, {name: mistakes[name] for name in names})


def test_settings_of_your_own_are_checked_like_a_file() -> None:
    """Arguments have the forms and the messages of a settings file."""
    settings = Settings(rejection_cache="1s", headers={"ratelimit"}, rules=[{"name": "api", "limits": "5/minute"}])
    assert (settings.rejection_cache, settings.headers, settings.rules[0].name) == (1_000_000, ("ratelimit",), "api")
    assert Settings() == load_settings({}) == load_settings({"$schema": "https://example.com/schema.json"})
    for values, message in (
        ({"store_timeout": None}, "store_timeout: expected a duration"),
        ({"fleet_size": "2"}, "fleet_size: expected a whole number of at least 1; got '2'"),
        ({"secret": "h1dden"}, "secret: expected a secret of at least 16 characters; got 6"),
    ):
        expect_error(f"^{re.escape(message)}", lambda given=values: Settings(**given))


def test_an_address_that_cannot_be_shows_no_secret() -> None:
    """A part of a store URL that may be a password is in no message."""
    for store in ("redis://:h1dden@a:port", "foo://:h1dden@a", "redis://h1dden@[a"):
        error = expect_error(r"^store", load_settings, {"store": store})
        assert "h1dden" not in error, store
    expect_error("^traffic_log: expected text$", load_settings, {"traffic_log": ["redis://:h1dden@a"]})


def test_a_secret_in_the_wrong_place_is_in_no_message(tmp_path: Path) -> None:
    """In TOML, a setting below a table is of that table. A file in another language is no table at all."""
    store, secret = 'store = "redis://ann:h1dden@cache"\n', 'secret = "h1dden h1dden h1dden"\n'
    rule = '[[rules]]\nname = "a"\nlimits = "5/minute"\n'
    for name, text, message in (
        ("r.toml", f'[rules]\nname = "a"\n{store}{secret}', r"rules: expected a list .* 'store': '\*\*\*'"),
        ("r.toml", "[rules]\nsecret = 12345678901234567890\n", r"rules: expected a list .*\*\*\*"),
        ("r.toml", f"{rule}[rules.per_key]\n{store}", r"per_key\['store'\]: cannot parse quota '\*\*\*'"),
        ("r.toml", f"{rule}[rules.schedule]\n{secret}", r"schedule\['secret'\]: cannot parse quota '\*\*\*'"),
        ("r.toml", f"{rule}[rules.per]\n{secret}", r"per.secret: expected a table; got '\*\*\*'"),
        ("r.json", '[{"store": "redis://ann:h1dden@cache"}]', r"expected a table; got \[{'store': '\*\*\*'}\]"),
        ("r.yaml", secret, r"expected a table; got '\*\*\*'"),
    ):
        (tmp_path / name).write_text(text)
        assert not re.search("h1dden|1234", expect_error(message, load_settings, tmp_path / name))


def test_an_address_is_read_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings can be checked where a store's library is missing, its server is away and its folder is not there."""
    load_without(monkeypatch, "ratelimit_mw.stores.redis", "hiredis")
    load_without(monkeypatch, "ratelimit_mw.stores.lmdb", "lmdb")
    for store in ("redis://192.0.2.1:1/5", "lmdb:///no/such/folder?size=1GiB", "rediss://a?ssl_ca_certs=/no/such.pem"):
        assert load_settings({"store": store}).store == store
    expect_error(r"store: redis:// has no option 'colour'", load_settings, {"store": "redis://a?colour=red"})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Broken syntax, the wrong shape and an unknown ending are errors of the file, with the line of a syntax error.

    No value replaces another one silently, and a file that is not UTF-8 is an error in every form.
    """
    for name, text, message in (
        ("r.toml", "a = ", "(:1)?: cannot parse the file: "),
        ("r.toml", '[[rules]]\nname = "a\nlimits = "5/m"\n', ":2: cannot parse the file: "),
        ("r.toml", "a = 1\na = 2\n", ":2: cannot parse the file: .*overwrite"),
        ("r.toml", 'a = "\udcff"', "(:1)?: cannot parse the file: "),
        ("r.json", "{]", ":1: cannot parse the file: "),
        ("r.json", "[]", ": expected a table; got \\[\\]"),
        ("r.json", '{"rules":\n[{"name": a"}]}', ":2: cannot parse the file: "),
        ("r.json", '{"store": "memory://",\n "store": "memory://"}', ": cannot parse the file: .*twice"),
        ("r.json", '{"rules": [{"name": "a",\n "name": "b", "limits": "5/m"}]}', ": cannot parse the file: .*twice"),
        ("r.json", 'a = "\udcff"', "(:1)?: cannot parse the file: "),
        ("r.yaml", "a: [", "(:2)?: cannot parse the file: "),
        ("r.yaml", "", ": expected a table; got None"),
        ("r.yaml", "rules:\n  - name: 'a\n    limits: 5/m\n", ":2: cannot parse the file: "),
        ("r.yaml", "rules:\n  - name: a\n    limits: 5/m\n    name: b\n", ":4: cannot parse the file: .*twice"),
        ("r.yaml", 'a = "\udcff"', "(:1)?: cannot parse the file: "),
        ("r.ini", "", ": unknown file type '.ini'. Expected .toml, .json, .yaml, .yml"),
        ("pyproject.toml", "[tool.ruff]\nline-length = 120", ": the file has no \\[tool.ratelimit_mw\\] table"),
        ("pyproject.toml", "tool = 1", ": the file has no \\[tool.ratelimit_mw\\] table"),
        ("pyproject.toml", "[tool]\nratelimit_mw = 1", ":2: expected a table; got 1"),
        ("date.toml", "[lists.deny]\nuser = [2026-01-01]", r":2: lists\.deny\.user: expected text or a whole"),
    ):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        expect_error(f"^{path}{message}", load_settings, path)
    expect_error(f"^settings file '{tmp_path}/none.toml' not found$", load_settings, tmp_path / "none.toml")
    expect_error(f"^settings file 'none.toml' not found in {Path.cwd()}$", load_settings, "none.toml")
    tmp_path.joinpath("folder.toml").mkdir()
    expect_error(r"^settings file '.*\.toml' cannot be read: Is a directory", load_settings, tmp_path / "folder.toml")


def test_half_a_character_is_shown() -> None:
    """Text that no file can hold, from a dictionary."""
    expect_error(r"'\\ud800': unknown setting", load_settings, {"\ud800": 1})


TOML = '''# [lists] in a comment
store = """
headers = 5
"""
[[rules]]
name = "a"  # [[rules]]
limits = [
  ["5/minute"],
]
match.path = "/a"

[[rules]]
[rules.per_key]
"client.42" = "5/minute"

[lists.deny]
ip = ["192.0.2.7"]
'''
YAML = """rules:
  - name: a
    limits:
      - 5/minute
      - x
"""


def line_of(file: Path, text: str, path: str) -> int | None:
    """Return the line of a setting in a file with this text."""
    file.write_text(text)
    line = places_in(str(file))(path).removeprefix(str(file)).removeprefix(":")
    return int(line) if line else None


def test_the_line_is_that_of_the_nearest_key(tmp_path: Path) -> None:
    """In TOML, strings, comments and lines inside brackets are no keys. JSON is YAML. Broken text has no lines."""
    for name, text, path, line in (
        ("r.toml", TOML, "store", 2),
        ("r.toml", TOML, "headers", None),
        ("r.toml", f"# {'long ' * 20_000}\nstore = 5", "store", 2),  # in linear time
        ("r.toml", TOML, "rules[0]", 5),
        ("r.toml", TOML, "rules[0].limits[0]", 7),
        ("r.toml", TOML, "rules[0].match.path", 10),
        ("r.toml", TOML, "rules[1].cost", 12),
        ("r.toml", TOML, "rules[1].per_key['client.42']", 13),
        ("r.toml", TOML, "lists.deny.ip[0]", 17),
        ("r.toml", TOML, "rules", 5),
        ("r.yaml", YAML, "rules[0].limits[1]", 5),
        ("r.yaml", YAML, "rules[0].cost", 2),
        ("r.yaml", '{\n"a.b":\n5}', "['a.b']", 2),
        ("r.yaml", "", "store", None),
        ("r.yaml", "a: [", "a", None),
    ):
        assert line_of(tmp_path / name, text, path) == line, path


def test_a_line_that_cannot_be_found_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of JSON need the YAML library; the message has the file and the path without it."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "r.json"
    path.write_text('{"rules": [{"limits": "1/s", "overrides": 5}]}')
    error = expect_error("", load_settings, path)
    assert error == f"{path}: rules[0]: overrides: expected the name of a rule; got 5"


def test_the_message_has_file_line_rule_and_path(tmp_path: Path) -> None:
    """As an editor's link, and with a suggestion."""
    path = tmp_path / "ratelimit.toml"
    path.write_text('\n[[rules]]\nname = "login"\n\nlimits = ["5/minut"]\n')
    error = expect_error("", load_settings, path)
    assert error == (
        f"{path}:5: rules[0] \"login\": limits[0]: cannot parse quota '5/minut'."
        " Expected AMOUNT/PERIOD, for example \"5/minute\". Did you mean '5/minute'?"
    )


def test_an_unknown_name_has_its_own_line(tmp_path: Path) -> None:
    """Not the line of the table around it."""
    for name, text, line in (
        ("r.toml", '[lists]\nalow = {}\n[[rules]]\nlimits = "1/s"', 2),
        ("r.toml", 'headers = []\n[[rule]]\nlimits = "1/s"', 2),
        ("r.yaml", "rules:\n  - limits: 1/s\n    match:\n      path: /a\n      user-agent: x", 5),
    ):
        path = tmp_path / name
        path.write_text(text)
        expect_error(f"^{path}:{line}: ", load_settings, path)


def test_each_rule_has_its_place(tmp_path: Path) -> None:
    for head in ("", 'limits = "9/day"\n'):
        file = tmp_path / "ratelimit.toml"
        file.write_text(f'{head}[[rules]]\nname = "api"\nlimits = "5/minute"\n', encoding="utf-8")
        limiter = Limiter.from_settings(file)
        lines = {rule.name: rule.lines for rule in limiter.rules.rules}
        line = 2 if head else 1
        assert lines["api"] == [f"{file}:{line}"], head
        assert len(lines) == line, head
