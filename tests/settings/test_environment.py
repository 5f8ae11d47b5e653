"""``${NAME}`` in settings: the value of an environment variable, in every form of settings and every text."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tables import expect_error

from ratelimit_mw import Limiter, load_settings

URL = "redis://app:hunter2@cache:6379/0"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has these variables, and no other one that it names."""
    for name, value in {"REDIS_URL": URL, "AMOUNT": "7", "EMPTY": "", "NESTED": "${AMOUNT}"}.items():
        monkeypatch.setenv(name, value)
    for name in ("MISSING", "_9"):
        monkeypatch.delenv(name, raising=False)


def test_a_text_has_the_value_of_the_variable(tmp_path: Path) -> None:
    """Texts at any depth are replaced, in each kind of file."""
    for name, text in (
        ("r.toml", 'store = "${REDIS_URL}"\n[[rules]]\nlimits = ["${AMOUNT}/minute"]\nmatch = {path = "/${AMOUNT}"}'),
        (
            "r.json",
            '{"store": "${REDIS_URL}", "rules": [{"limits": ["${AMOUNT}/minute"], "match": {"path": "/${AMOUNT}"}}]}',
        ),
        ("r.yaml", 'store: ${REDIS_URL}\nrules: [{limits: ["${AMOUNT}/minute"], match: {path: "/${AMOUNT}"}}]'),
    ):
        (tmp_path / name).write_text(text)
        settings = load_settings(tmp_path / name)
        assert settings.store == URL, name
        assert [str(quota) for quota in settings.rules[0].quotas] == ["7/minute"], name
        assert settings.rules[0].matches.paths == ("/7",), name


def test_only_braces_make_a_reference() -> None:
    """A dollar sign alone is text, and an empty variable is empty. ``$${`` is a brace, which no pattern may have."""
    for text, path in (
        ("/a-${AMOUNT}-${AMOUNT}", "/a-7-7"),
        ("/$AMOUNT", "/$AMOUNT"),
        ("/$${AMOUNT", None),
        ("/x$", "/x$"),
        ("/a${EMPTY}b", "/ab"),
    ):
        settings: Any = {"exempt": (text,)}
        if path is None:
            expect_error(r"unbalanced braces in '/\${AMOUNT'", load_settings, settings)
        else:
            assert load_settings(settings).exempt == (path,), text


def test_a_default_is_for_a_variable_that_is_not_set_or_empty() -> None:
    """As in a shell. The default is text up to the brace, even an empty one."""
    for text, path in (
        ("/${MISSING:-a}", "/a"),
        ("/${EMPTY:-a b}-${AMOUNT:-a}", "/a b-7"),
        ("/a${MISSING:-}", "/a"),
        ("/${MISSING:-a:-b}", "/a:-b"),
    ):
        assert load_settings({"exempt": [text]}).exempt == (path,), text


def test_a_variable_becomes_what_the_option_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Numbers, durations, truth values and lists, at any depth, and in a file as in a dictionary."""
    for name, value in {
        "BITS": "56",
        "PROXIES": "127.0.0.1, 10.0.0.0/8",
        "SECONDS": "1.5",
        "OFF": "False",
        "STATUS": "403",
        "REGIONS": "DE,AT",
        "LIMITS": "5/minute, 9/hour",
        "CODE": "007",
    }.items():
        monkeypatch.setenv(name, value)
    text = """
ipv6_prefix = "${BITS}"
trusted_proxies = "${PROXIES}"
body_timeout = "${SECONDS}"
store_timeout = "${MISSING:-20ms}"
traffic_clients = "${OFF}"
headers = "${MISSING:-ratelimit}"
fleet_size = "${AMOUNT}"
body_limit = "${MISSING:-1000}"
defaults.key = "${MISSING:-user,ip}"
lists.deny = {ip = "${PROXIES}", user = "${CODE}"}
[[rules]]
limits = "${LIMITS}"
cost = "${AMOUNT}"
match = {region = "${REGIONS}", methods = "${MISSING:-GET,POST}", code = "${CODE}", beta = "${MISSING:-true}"}
[[rules]]
limits = "9/day"
algorithm = {name = "sliding-window-log", count_rejected = "${MISSING:-true}"}
count_when = {status = ["4xx", "${STATUS}"]}
ban = {after = "${AMOUNT}", within = "${SECONDS}", for = "1h"}
[[rules]]
limits = "9/week"
ban = "${OFF}"
per = {plan = {free = "${LIMITS}"}}
"""
    (tmp_path / "r.toml").write_text(text)
    settings = load_settings(tmp_path / "r.toml")
    assert (settings.ipv6_prefix, settings.fleet_size, settings.body_limit) == (56, 7, 1000)
    assert (settings.body_timeout, settings.store_timeout) == (1_500_000, 20_000)
    assert (settings.trusted_proxies, settings.headers) == (("127.0.0.1", "10.0.0.0/8"), ("ratelimit",))
    assert settings.traffic_clients is False
    assert settings.lists.allows({"ip": "10.1.2.3"}) is settings.lists.allows({"user": "007"}) is False
    assert settings.lists.allows({"user": "7"}) is None
    first, second, third = settings.rules
    assert ([str(quota) for quota in first.quotas], first.cost) == (["5/minute", "9/hour"], 7)
    assert first.entries == (("user",), ("ip",))
    assert first.matches.methods == {"GET", "HEAD", "POST"}
    assert first.matches.takes_features({"region": "at", "code": "007", "beta": "true"})
    assert not first.matches.takes_features({"region": "at", "code": "7", "beta": "true"})
    assert second.algorithm == {"name": "sliding-window-log", "count_rejected": True}
    assert second.ban is not None
    assert (second.ban.after, second.ban.within) == (7, 1_500_000)
    assert third.ban is None
    assert [str(quota) for quota in third.tables[0][1]["free"]] == ["5/minute", "9/hour"]


def test_a_wrong_value_of_a_variable_is_an_error_like_a_literal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the place and the variable. It never shows a secret."""
    for name, value in {"WORD": "hunter2", "WORDS": "unix,hunter2", "LONG": "correct-hunter2"}.items():
        monkeypatch.setenv(name, value)
    for settings, message in (
        (
            {"ipv6_prefix": "${MISSING:-999}"},
            "ipv6_prefix: expected a whole number from 1 to 128; got 999 (from ${MISSING})",
        ),
        ({"fleet_size": "${EMPTY}"}, "fleet_size: expected a whole number of at least 1; got '' (from ${EMPTY})"),
        ({"trusted_proxies": "unix,${MISSING:-x}"}, "trusted_proxies[1]: expected an IP address"),
        ({"rules": [{"limits": "${MISSING:-5/minut}"}]}, "rules[0]: limits: cannot parse quota '5/minut'"),
        ({"enabled": "${MISSING:-no}"}, "enabled: expected true or false; got 'no' (from ${MISSING})"),
        ({"secret": "${WORD}"}, "secret: expected a secret of at least 16 characters; got 7 (from ${WORD})"),
        ({"store": "redis:/${WORD}"}, "store: a store URL starts with a scheme and ://"),
        ({"traffic_log": "${WORD}"}, "traffic_log: "),
        ({"ipv6_prefix": "${WORD}"}, "ipv6_prefix: expected a whole number from 1 to 128; got '***' (from ${WORD})"),
        ({"trusted_proxies": "unix, ${WORD}"}, "trusted_proxies[1]: expected an IP address"),
        ({"trusted_proxies": "${WORDS}"}, "trusted_proxies[1]: expected an IP address"),
        ({"limits": "${LONG}/minute"}, "limits: cannot parse quota '***/minute'. Expected AMOUNT/PERIOD, for example"),
        ({"limits": "9/day;${LONG}"}, "limits: cannot parse quota '***'."),
        ({"headers": ["${WORD}"]}, "headers[0]: expected 'x-ratelimit' or 'ratelimit'; got '***' (from ${WORD})"),
        (
            {"rules": [{"limits": "9/s", "match": {"path": "/{${LONG}"}}]},
            "rules[0]: match.path: unbalanced braces in '/{***'",
        ),
    ):
        error = expect_error(f"^{re.escape(message)}", load_settings, settings)
        assert "hunter2" not in error, settings
        assert re.search(r" \(from \$\{\w+\}\)$", error), error


def test_a_file_of_per_key_has_variables_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As every other text. An error shows no value either, whatever the name of the client is."""
    (tmp_path / "clients.toml").write_text('ann = "${AMOUNT}/minute"')
    (tmp_path / "r.toml").write_text('[[rules]]\nlimits = "5/minute"\nper_key = "clients.toml"')
    rule = load_settings(tmp_path / "r.toml").rules[0]
    assert str(rule.tables[0][1]["ann"][0]) == "7/minute"
    monkeypatch.setenv("WORD", "hunter2")
    for client in ("ann", "a'b", 'a"b.c', "[0]"):
        (tmp_path / "clients.json").write_text(json.dumps({client: ["1/day", "${WORD}"]}))
        settings = {"rules": [{"limits": "5/minute", "per_key": str(tmp_path / "clients.json")}]}
        error = expect_error(r"^rules\[0\]: per_key\[.*\(from \$\{WORD\}\)$", load_settings, settings)
        assert "hunter2" not in error, client


def test_the_value_of_a_variable_is_taken_as_it_is() -> None:
    """A reference in the value of a variable is text, so a password may have any character. So is one in a name."""
    settings: Any = {"lists": {"deny": {"user": ["$${AMOUNT}", "${NESTED}"]}}}
    assert load_settings(settings).lists.allows({"user": "${AMOUNT}"}) is False
    assert load_settings(settings).lists.allows({"user": "7"}) is None
    limiter = Limiter.from_settings({"rules": [{"limits": "5/minute", "per_key": {"${AMOUNT}.a": "${AMOUNT}/minute"}}]})
    assert limiter.peek({"ip": "${AMOUNT}.a"}, cost=0).decisions[0].limit == 7


def test_a_variable_that_is_not_set_is_an_error(tmp_path: Path) -> None:
    """The error names the place, in a file the line, and the variable. It shows no text around it."""
    file = tmp_path / "ratelimit.toml"
    file.write_text('headers = ["ratelimit"]\n\nstore = "${MISSING}"\n')
    expect_error(f"^{file}:3: store: the environment variable 'MISSING'", load_settings, file)
    for settings, message in (
        ({"store": "${MISSING}"}, "store: the environment variable 'MISSING' is not set. Set it, or write"),
        ({"secret": "hunter2-${_9}"}, "secret: the environment variable '_9' is not set. Set it, or write \"$${_9}\""),
        ({"secret": "hunter2-${9x}"}, 'secret: expected the name of an environment variable in "${NAME}". Write "$${"'),
        ({"store": "${REDIS_URL"}, 'store: expected the name of an environment variable in "${NAME}". Write "$${"'),
        (
            {"rules": [{"limits": ["5/minute", "${MISSING}"]}]},
            "rules[0]: limits[1]: the environment variable 'MISSING' is not set.",
        ),
        (
            {"lists": {"deny": {"user.id": "${MISSING}"}}},
            "lists.deny['user.id']: the environment variable 'MISSING' is not set.",
        ),
        ({"lists": {"deny": {"a\nb.c": "${MISSING}"}}}, "lists.deny: the environment variable"),
    ):
        error = expect_error(f"^{re.escape(message)}", load_settings, settings)
        assert "hunter2" not in error, settings
