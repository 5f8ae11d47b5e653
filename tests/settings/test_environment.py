"""``${NAME}`` in settings: the value of an environment variable, in every form of settings and every text."""

from pathlib import Path
from typing import Any

import pytest

from ratelimit_mw import ConfigError, Limiter, load_settings

URL = "redis://app:hunter2@cache:6379/0"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has these variables, and no other one that it names."""
    for name, value in {"REDIS_URL": URL, "AMOUNT": "7", "EMPTY": "", "NESTED": "${AMOUNT}"}.items():
        monkeypatch.setenv(name, value)
    for name in ("MISSING", "_9"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.toml", 'store = "${REDIS_URL}"\n[[rules]]\nlimits = ["${AMOUNT}/minute"]\nmatch = {path = "/${AMOUNT}"}'),
        (
            "r.json",
            '{"store": "${REDIS_URL}", "rules": [{"limits": ["${AMOUNT}/minute"], "match": {"path": "/${AMOUNT}"}}]}',
        ),
        ("r.yaml", 'store: ${REDIS_URL}\nrules: [{limits: ["${AMOUNT}/minute"], match: {path: "/${AMOUNT}"}}]'),
    ],
)
def test_a_text_has_the_value_of_the_variable(tmp_path: Path, name: str, text: str) -> None:
    """Texts at any depth are replaced, in each kind of file."""
    (tmp_path / name).write_text(text)
    settings = load_settings(tmp_path / name)
    assert settings.store == URL
    assert [str(quota) for quota in settings.rules[0].quotas] == ["7/minute"]
    assert settings.rules[0].matches.paths == ("/7",)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/a-${AMOUNT}-${AMOUNT}", "/a-7-7"),
        ("/$AMOUNT", "/$AMOUNT"),
        ("/$${AMOUNT", None),
        ("/x$", "/x$"),
        ("/a${EMPTY}b", "/ab"),
    ],
)
def test_only_braces_make_a_reference(text: str, path: str | None) -> None:
    """A dollar sign alone is text, and an empty variable is empty. ``$${`` is a brace, which no pattern may have."""
    settings: Any = {"exempt": (text,)}
    if path is None:
        with pytest.raises(ConfigError, match=r"unbalanced braces in '/\${AMOUNT'"):
            load_settings(settings)
    else:
        assert load_settings(settings).exempt == (path,)


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
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
    ],
)
def test_a_variable_that_is_not_set_is_an_error(settings: Any, message: str) -> None:
    """The error names the place and the variable, and shows no text around it."""
    with pytest.raises(ConfigError) as caught:
        load_settings(settings)
    assert str(caught.value).startswith(message)
    assert "hunter2" not in str(caught.value)


def test_the_error_names_file_and_line(tmp_path: Path) -> None:
    """As any other error of a file."""
    file = tmp_path / "ratelimit.toml"
    file.write_text('headers = ["ratelimit"]\n\nstore = "${MISSING}"\n')
    with pytest.raises(ConfigError, match=f"^{file}:3: store: the environment variable 'MISSING'"):
        load_settings(file)


def test_settings_that_contain_themselves_are_an_error() -> None:
    """Variables are looked for in every table, even in one without an end."""
    table: dict[str, Any] = {}
    table["lists"] = table
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_settings(table)  # type: ignore[arg-type]
