"""``${NAME}`` in settings: the value of an environment variable, in every form of settings and every text."""

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


def test_a_file_of_per_key_has_variables_too(tmp_path: Path) -> None:
    """As every other text."""
    (tmp_path / "clients.toml").write_text('ann = "${AMOUNT}/minute"')
    (tmp_path / "r.toml").write_text('[[rules]]\nlimits = "5/minute"\nper_key = "clients.toml"')
    rule = load_settings(tmp_path / "r.toml").rules[0]
    assert str(rule.tables[0][1]["ann"][0]) == "7/minute"


def test_the_value_of_a_variable_is_taken_as_it_is() -> None:
    """A reference in the value of a variable is text, so a password may have any character."""
    settings: Any = {"lists": {"deny": {"user": ["$${AMOUNT}", "${NESTED}"]}}}
    assert load_settings(settings).lists.allows({"user": "${AMOUNT}"}) is False
    assert load_settings(settings).lists.allows({"user": "7"}) is None


def test_names_of_tables_stay_as_they_are() -> None:
    """Clients in ``per_key`` are names. Their limits are texts."""
    limiter = Limiter.from_settings({"rules": [{"limits": "5/minute", "per_key": {"${AMOUNT}.a": "${AMOUNT}/minute"}}]})
    assert limiter.peek({"ip": "${AMOUNT}.a"}, cost=0).decisions[0].limit == 7


def test_a_variable_that_is_not_set_is_an_error() -> None:
    """The error names the place and the variable, and shows no text around it."""
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


def test_the_error_names_file_and_line(tmp_path: Path) -> None:
    """As any other error of a file."""
    file = tmp_path / "ratelimit.toml"
    file.write_text('headers = ["ratelimit"]\n\nstore = "${MISSING}"\n')
    expect_error(f"^{file}:3: store: the environment variable 'MISSING'", load_settings, file)


def test_settings_that_contain_themselves_are_an_error() -> None:
    """Variables are looked for in every table, even in one without an end."""
    table: dict[str, Any] = {}
    table["lists"] = table
    expect_error("nested too deeply", load_settings, table)
