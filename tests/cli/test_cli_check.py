"""``ratelimit-mw check`` shows every rule, every mistake and no password. What ``init`` writes is valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import RULES, Write, answer_of, lines_of, rows_of, run
from tables import each

from ratelimit_mw import Settings, SettingsDict, load_settings
from ratelimit_mw.cli.init import starter
from ratelimit_mw.rules.declaration import defaults_of

BANNING = '[[rules]]\nname = "a"\nlimits = "5/s"\nban = {after = 9, within = "1m", for = "1h"}'


def test_check_shows_every_rule(settings: Write) -> None:
    """The table shows the match, key, limits, algorithm, mode and cost of each rule."""
    login, api, third = rows_of(answer_of("check", settings(RULES)))
    assert login == {
        "rule": ["login"],
        "applies to": ["POST /login"],
        "key": ["email + ip"],
        "limits": ["5/minute", "20/hour"],
        "algorithm": ["sliding-window"],
        "mode": ["enforce", 'count_when = {"status": [401, 403]}'],
        "cost": ["1"],
    }
    assert (api["applies to"][0], api["limits"][0]) == ("/api/** or /v2/**", "100/minute burst 20")
    assert (api["algorithm"], api["mode"]) == (["token-bucket (interval)"], ["shadow"])
    assert (third["rule"], third["key"]) == (["rule-3"], ["one for all clients"])


def test_check_shows_limits_of_some_clients(settings: Write) -> None:
    """Limits by key and by feature are listed below the limits of the rule, at most three per table."""
    tables = "per_key = { alice = '9/s' }\nper = { plan = { free = '1/s', pro = '5/s; 9/m', a = '1/s', b = '1/s' } }"
    (row,) = rows_of(answer_of("check", settings(f"[[rules]]\nlimits = '2/s'\n{tables}")))
    assert row["limits"] == [
        "2/second",
        "key alice: 9/second",
        "plan free: 1/second",
        "plan pro: 5/second; 9/minute",
        "plan a: 1/second",
        "and 1 more",
    ]


def test_check_shows_costs_and_units(settings: Write) -> None:
    """A feature that has the cost is listed as those of keys are."""
    cost = 'cost = "json:n|pages|5"\nunit = "tokens"'
    answer = answer_of("check", settings(f"[[rules]]\nname = 'r'\nlimits = '9/minute; 2 concurrent'\n{cost}"))
    (row,) = rows_of(answer)
    assert (row["limits"][0], row["cost"]) == ("9/minute", ["json:n|pages|5"])
    assert row["mode"] == ["enforce", 'unit = "tokens"']
    assert answer.json["required_features"] == {"pages": ["r"]}
    (rule,) = answer.json["rules"]
    assert [rule[name] for name in ("limits", "cost", "unit")] == [
        ["9/minute", "2 concurrent"],
        "json:n|pages|5",
        "tokens",
    ]


def test_check_lists_features_that_the_application_provides(settings: Write) -> None:
    """Each feature is listed with its rules. Headers, cookies, query and body fields come from the request."""
    required = answer_of("check", settings(RULES)).json["required_features"]
    assert required == {"user": ["api"], "region": ["api"], "plan": ["api"]}
    key = '"ip", "method", "path", "host", "endpoint", "header:x-a", "cookie:a", "query:a", "json:a", "form:a", "email"'
    path = settings(f'[[rules]]\nname = "a"\nlimits = "5/s"\nkey = [{key}]')
    assert answer_of("check", path).json["required_features"] == {}


NOTES = [
    ("", "there are no rules, so no request is limited"),
    ("enabled = false", "the settings have enabled = false, so no request is limited"),
    (
        '[[rules]]\noverrides = "login"\nlimits = "1/s"',
        "rules[0] is not shown: it changes the rule 'login' of a decorator. Use check --app",
    ),
    ('[[rules]]\nlimits = "5/minute"', "named by its position"),
    ('[[rules]]\nname = "a"\nlimits = "5/minute"', "counts in each process separately"),
    ('[[rules]]\nname = "a"\nkey = "region"\nlimits = "5/s"', "must provide the feature region, for a"),
    ('[[rules]]\nname = "a"\nkey = "region"\nlimits = "5/s"', "Set region_database or region_header"),
    ('[[rules]]\nname = "a"\nkey = "usr"\nlimits = "5/s"', "must provide the feature usr, for a"),
    (
        f'secret = "{"s" * 32}"\nkeyed = ["emial", "ip", "tel"]\n[[rules]]\nkey = "tel"\nlimits = "5/s"',
        "keyed lists emial, but no key of these rules uses it",
    ),
    (
        f"{BANNING}\nkey = 'user|ip'",
        "trusted_proxies is empty: behind a proxy, all clients share the count of its IP address, and a ban",
    ),
]


def test_notes_are_errors_with_strict(settings: Write) -> None:
    """Notes about a valid file are an error for ``--strict`` alone."""
    for text, note in NOTES:
        answer = answer_of("check", settings(text))
        assert not answer.found_wrong, text
        assert any(note in each for each in answer.json["notes"]), text
        assert any(f"note: {note}" in line or note in line for line in lines_of(answer)), text
        assert answer_of("check", settings(text), "--strict").found_wrong, text


WITHOUT_NOTES = {
    "trusted_proxies is empty": [
        f'trusted_proxies = ["unix"]\n{BANNING}',
        f'{BANNING}\nkey = "user"',
    ],
    "keyed lists": [
        f'secret = "{"s" * 32}"\nkeyed = ["tel"]\n[[rules]]\nkey = "{part}"\nlimits = "5/s"'
        for part in ("tel", "tel.number", "tel as raw")
    ],
}


def test_check_has_no_note_without_a_reason(settings: Write) -> None:
    """A proxy that is named, a ban by a user, and each part of a digested feature."""
    for note, texts in WITHOUT_NOTES.items():
        for text in texts:
            assert note not in str(answer_of("check", settings(text)).json["notes"]), text
    text = 'store = "redis://cache"\ntrusted_proxies = ["10.0.0.1"]\n[[rules]]\nname = "a"\nlimits = "5/s"'
    answer = answer_of("check", settings(text), "--strict")
    assert (answer.found_wrong, answer.json["notes"]) == (False, [])


def test_proxies_and_costs_that_cannot_work_are_problems(settings: Write) -> None:
    """A proxy that is every client, and a cost that never fits."""
    rule = '[[rules]]\nname = "a"\nlimits = "5/minute"\n'
    every = "so each client can choose its own IP address. Name your proxies only"
    for text, problem in (
        (f'trusted_proxies = ["unix", "0.0.0.0/0"]\n{rule}', f"trusted_proxies has 0.0.0.0/0, {every}"),
        (f'trusted_proxies = ["unix", "::/0"]\n{rule}', f"trusted_proxies has ::/0, {every}"),
        (f'trusted_proxies = ["unix", "10.0.0.0/8"]\n{rule}', None),
        (f"{rule}cost = 6", "a: the cost 6 is above the limit 5/minute, so every request is rejected"),
    ):
        answer = answer_of("check", settings(text))
        assert answer.json["problems"] == [problem] * (problem is not None), text
        assert answer.found_wrong == (problem is not None), text
        assert problem not in answer.json["notes"]
        assert problem is None or f"problem: {problem}" in lines_of(answer)


def test_check_finds_settings_with_which_no_application_starts(settings: Write) -> None:
    """A header that only proxies write, and no proxy."""
    for name, text in {
        "region_header": 'region_header = "cf-ipcountry"',
        "forwarded_header": 'forwarded_header = "cf-connecting-ip"',
        "priorities.header": 'priorities = { order = ["a", "b"], header = "x-priority" }',
    }.items():
        result = run("check", settings(f'{text}\nlimits = "5/minute"'))
        assert result.exit_code == 1
        assert f"{name}: the header is read from trusted proxies only. Set trusted_proxies" in result.stderr


def test_the_json_has_all_fields_of_each_rule(settings: Write) -> None:
    """The JSON contains all fields of each rule."""
    path = settings(RULES)
    rules = answer_of("check", path).json["rules"]
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
        "place": f"{path}:9",
    }
    assert "per" not in rules[0]


def test_check_names_the_place_of_a_mistake(settings: Write) -> None:
    """The message on stderr contains the file and the place, with exit code 1. So does that of a broken file."""
    for text, place in (
        ("[[rules]]\nlimits = '5/minute'\nkay = 'ip'", ":3: rules[0]: kay: unknown field. Did you mean 'key'?"),
        ("store = 'redish://localhost'", ":1: store: unknown scheme 'redish' of a store URL"),
        ("trusted_proxies = ['10.0.0.0/99']", ":1: trusted_proxies"),
        ("not toml", ":1: cannot parse the file: "),
    ):
        path = settings(text)
        result = run("check", path)
        message, *see = result.stderr.splitlines()
        assert (result.exit_code, result.stdout) == (1, ""), text
        assert message.startswith(f"Error: {path}{place}"), message
        assert all(line.startswith("See https://") for line in see), text


def test_check_never_shows_passwords(settings: Write) -> None:
    """A store URL is shown without password and options."""
    path = settings("store = 'redis://bob:s3cret@db.example.com:6379/0?prefix=s3cret'\n" + RULES)
    for result in (run("check", path, "--json"), run("check", path)):
        assert "redis://db.example.com:6379/0" in result.stdout
        assert "s3cret" not in result.output


def test_check_and_explain_show_how_a_rule_counts(settings: Write) -> None:
    """Below the mode, and in the JSON, unless the rule asks the store each time."""
    for option, fields in (
        ('consistency = "exact"', {}),
        ('consistency = "exact"\nlease = "5%"', {}),
        ('consistency = "leased"', {"consistency": "leased", "lease": "2%"}),
        ('lease = "5%"', {"consistency": "leased", "lease": "5%"}),
    ):
        path = settings(f'[[rules]]\nname = "a"\nlimits = "100/minute"\n{option}')
        for answer in (answer_of("check", path), answer_of("explain", path, "GET", "/", "--feature", "ip=192.0.2.7")):
            assert rows_of(answer)[0]["mode"] == ["enforce", *(f'{name} = "{value}"' for name, value in fields.items())]
            (rule,) = answer.json["rules"]
            assert {name: rule[name] for name in ("consistency", "lease") if name in rule} == fields


TEXT = starter()
SETTINGS = re.findall(r"^# (\w+ .*)  # .*$", TEXT.partition("[[rules]]")[0], re.MULTILINE)
BLOCKS = [block for block in TEXT.split("\n\n") if "# [[rules]]" in block]


@pytest.fixture(autouse=True)
def secret(folder: Path) -> None:
    (folder / "secret.txt").write_text("a secret of 16 characters")


def loaded(text: str) -> Settings:
    Path("changed.toml").write_text(text)
    return load_settings("changed.toml")


def test_the_file_is_valid_and_never_replaced() -> None:
    """The command writes a file that `check` accepts. A second run exits with 2 and changes nothing."""
    first = run("init")
    assert first.stdout == "Wrote ratelimit.toml. Next: ratelimit-mw check ratelimit.toml\n"
    assert run("check", "ratelimit.toml").exit_code == 0
    assert Path("ratelimit.toml").read_text() == TEXT
    Path("ratelimit.toml").write_text("changed")
    again = run("init")
    assert (again.exit_code, Path("ratelimit.toml").read_text()) == (2, "changed")
    assert "Error: ratelimit.toml exists. Remove it, or run the command in another folder" in again.stderr


@each("line", SETTINGS)
def test_each_setting_may_be_turned_on(line: str) -> None:
    """Each setting in a comment is valid as it is written."""
    if line.startswith("region_database"):  # the test has no such file
        return
    secret = "secret = " if line.startswith("keyed") else ""  # which it needs, as its comment says
    loaded(re.sub(rf"^# (?={re.escape(line)}|{secret or 'none'})", "", TEXT, flags=re.MULTILINE))


def test_each_rule_may_be_turned_on() -> None:
    """Each rule in a comment is valid without the comment signs, alone and with all others."""
    assert len(BLOCKS) == 4
    for block in BLOCKS:
        comment, *lines = block.splitlines()
        text = TEXT.replace(block, "\n".join([comment, *(line.removeprefix("# ") for line in lines)]))
        assert len(loaded(text).rules) == 2, block
    head, mark, rules = TEXT.partition("[[rules]]")
    on = re.sub(r"^# (?=\[\[|\w+ = )", "", rules, flags=re.MULTILINE)
    assert len(loaded(head + mark + on).rules) == 5


def test_the_file_has_every_setting() -> None:
    """A new setting is in the file without a change of the command."""
    names = [line.split(" = ")[0] for line in SETTINGS]
    assert names == [name for name in defaults_of(SettingsDict) if name != "rules"]
    assert max(map(len, TEXT.splitlines())) <= 130
