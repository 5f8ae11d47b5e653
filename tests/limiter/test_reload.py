"""A limiter whose settings file changes: what takes effect, what stays, and what an operator reads in the log."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from idle_workers import Later
from redis_handles import address
from servers import Server, wait_for

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.limiter import file_follower
from ratelimit_mw.rules.decorators import limit
from ratelimit_mw.rules.marks import marks_of
from ratelimit_mw.rules.places import place_of
from ratelimit_mw.testing import ManualClock

CLIENT = {"ip": "192.0.2.7"}


def toml(limits: str = "3/minute", more: str = "", name: str = "api") -> str:
    return f'reload_interval = "1ms"\n{more}\n[[rules]]\nname = "{name}"\nlimits = "{limits}"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ratelimit.toml"
    path.write_text(toml())
    return path


def limiter_of(file: Path) -> Limiter:
    return Limiter.from_settings(str(file), clock=ManualClock(1_000_000.0))


def rest(limiter: Limiter) -> tuple[int, int]:
    """Return the limit and the remaining requests of the client."""
    (decision,) = limiter.peek(CLIENT, cost=0).decisions
    return decision.limit, decision.remaining


def wait_until(limiter: Limiter, is_true: Callable[[], bool]) -> None:
    """Wait for a reload that requests start."""

    def looked() -> bool:
        limiter.match(CLIENT)
        return is_true()

    wait_for(looked, "a reload")


def test_a_changed_amount_applies_and_keeps_what_was_consumed(file: Path) -> None:
    limiter = limiter_of(file)
    limiter.hit(CLIENT)
    assert rest(limiter) == (3, 2)
    file.write_text(toml("5/minute"))
    limiter.reload()
    assert rest(limiter) == (5, 4)
    file.write_text(toml("6/minute"))
    asyncio.run(limiter.areload())
    assert rest(limiter) == (6, 5)


def test_a_request_starts_the_reload_of_a_changed_file(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    limiter = limiter_of(file)
    limiter.hit(CLIENT)
    file.write_text(toml("5/minute"))
    with caplog.at_level(logging.INFO):
        wait_until(limiter, lambda: rest(limiter) == (5, 4))
        wait_until(limiter, lambda: "read again" in caplog.text)
    assert limiter.hit(CLIENT).decisions[0].remaining == 3


def test_a_symbolic_link_that_leads_to_another_file_is_a_change(tmp_path: Path) -> None:
    """As Kubernetes updates a ConfigMap: the link to the folder of all files is replaced."""
    for version, limits in (("1", "3/minute"), ("2", "5/minute")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ratelimit.toml").write_text(toml(limits))
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "ratelimit.toml").symlink_to("..data/ratelimit.toml")
    limiter = limiter_of(tmp_path / "ratelimit.toml")
    (tmp_path / "..next").symlink_to("2")
    (tmp_path / "..next").replace(tmp_path / "..data")
    wait_until(limiter, lambda: rest(limiter) == (5, 5))


BAD = {
    "a mistake": toml("3/minut"),
    "cut off": toml()[:-5],
    "empty": "",
    "no settings": "# nothing\n",
    "unknown field": toml(more="speed = 3"),
    "a cost above the limit": toml(more="cost = 9"),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_a_bad_file_keeps_the_earlier_rules_and_is_logged_once(
    file: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    """The log has the message of a start with the same file. A touched file is not reported again."""
    limiter = limiter_of(file)
    file.write_text(content)
    with pytest.raises(ConfigError) as raised:
        limiter.reload()
    assert rest(limiter) == (3, 3)
    file.write_text(content + " ")
    wait_until(limiter, lambda: str(raised.value) in caplog.text)
    for _ in range(3):
        os.utime(file)
        limiter.reloads.files and limiter.reloads.files._follow()
    assert caplog.text.count(f"{raised.value} (the earlier settings stay in effect)") == 1
    assert rest(limiter) == (3, 3)
    file.write_text(toml("5/minute"))
    wait_until(limiter, lambda: rest(limiter) == (5, 5))


def test_a_removed_file_keeps_the_earlier_rules_and_is_logged(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    limiter = limiter_of(file)
    file.unlink()
    wait_until(limiter, lambda: "not found" in caplog.text)
    assert rest(limiter) == (3, 3)
    file.write_text(toml("5/minute"))
    wait_until(limiter, lambda: rest(limiter) == (5, 5))


def test_a_file_that_changes_while_it_is_read_is_read_again(file: Path) -> None:
    """The first reading meets the first half of the file, which is valid and has no limit."""
    limiter = limiter_of(file)
    load, halves = limiter.settings.origin, iter([toml("9/minute"), toml("5/minute")])
    assert load is not None
    file.write_text("enabled = false\n")

    def load_and_write() -> Any:
        loaded = load.load()
        if content := next(halves, ""):
            file.write_text(content)
        return loaded

    limiter.settings.__dict__["origin"] = load._replace(load=load_and_write)
    limiter.reload()
    assert limiter.rules.enabled
    assert rest(limiter)[0] == 5


def test_a_file_that_never_rests_is_an_error(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_follower, "_MAX_TRIES", 2)
    limiter = limiter_of(file)
    origin = limiter.settings.origin
    assert origin is not None

    def load_and_touch() -> Any:
        loaded = origin.load()
        file.write_text(toml("5/minute"))
        return loaded

    limiter.settings.__dict__["origin"] = origin._replace(load=load_and_touch)
    with pytest.raises(ConfigError, match="keeps changing"):
        limiter.reload()
    for _ in range(2):
        assert limiter.reloads.files is not None
        assert "keeps changing" not in caplog.text
        limiter.reloads.files._follow()
    assert "keeps changing" in caplog.text
    assert rest(limiter) == (3, 3)


def test_a_file_that_cannot_be_read_keeps_the_earlier_rules(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    limiter = limiter_of(file)
    file.unlink()
    file.mkdir()
    wait_until(limiter, lambda: "cannot be read: Is a directory" in caplog.text)
    assert rest(limiter) == (3, 3)


def test_a_pipe_is_no_settings_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A read of it has no end. Nothing waits for a writer: not the start, not a reload, and not the error's line."""
    pipe, clients, file = tmp_path / "pipe.toml", tmp_path / "clients.json", tmp_path / "ratelimit.toml"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match=r"pipe\.toml' cannot be read: not a regular file"):
        load_settings(pipe)
    assert place_of(str(pipe), "rules[0]") == str(pipe)
    os.mkfifo(clients)
    file.write_text(f'{toml()}per_key = "clients.json"\n')
    with pytest.raises(ConfigError, match=r"per_key: .*clients\.json' cannot be read: not a regular file"):
        load_settings(file)
    file.write_text(toml())
    limiter = limiter_of(file)
    pipe.replace(file)
    wait_until(limiter, lambda: "cannot be read: not a regular file (the earlier settings stay" in caplog.text)
    with pytest.raises(ConfigError, match="not a regular file"):
        limiter.reload()
    assert rest(limiter) == (3, 3)
    file.unlink()
    file.write_text(toml("5/minute"))
    wait_until(limiter, lambda: rest(limiter) == (5, 5))


MORE = '[[rules]]\nname = "login"\nlimits = "1/minute"\n'
LISTS = "lists = {{ deny = {{ user = {} }} }}"
FEWER = {
    "a rule": ((toml() + MORE, toml("5/minute")), "rules.login"),
    "an option of a rule": ((toml() + 'mode = "shadow"\n', toml("5/minute")), "rules.api.mode"),
    "an option of a rule that has no name": (
        (toml() + '[[rules]]\nlimits = "2/s"\nmatch.path = "/a"\n', toml("5/minute") + '[[rules]]\nlimits = "2/s"\n'),
        "rules.rule-2.match",
    ),
    "a limit": (
        (toml().replace('"3/minute"', '["3/minute", "9/h"]'), toml("5/minute").replace('"5/minute"', '["5/minute"]')),
        "rules.api.limits",
    ),
    "a client of a table": (
        (
            toml() + "key = 'user'\nper_key = { x = '1/s', z = '3/minute' }",
            toml("5/minute") + "key = 'user'\nper_key = { z = '5/minute' }",
        ),
        "rules.api.per_key",
    ),
    "a value of a list": (
        (toml(more=LISTS.format('["x", "y"]')), toml("5/minute", LISTS.format('["y"]'))),
        "lists.deny.user",
    ),
    "exempt paths": ((toml(more='exempt = ["/a"]'), toml("5/minute")), "exempt"),
    "proxies": (
        (toml(more="trusted_proxies = ['::1', '::2']"), toml("5/minute", "trusted_proxies = ['::1']")),
        "trusted_proxies",
    ),
}


@pytest.mark.parametrize(("contents", "lost"), FEWER.values(), ids=FEWER.keys())
def test_lost_parts_wait_for_a_writer_that_pauses(
    contents: tuple[str, str], lost: str, file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take effect once the file has not changed for twice the interval. A complete file takes effect before."""
    before, after = (content.replace('"1ms"', '"10s"') for content in contents)
    later = Later(monkeypatch)
    later.write(file, before)
    limiter = limiter_of(file)
    for _ in range(2):  # a writer that pauses
        later.write(file, after)
        for passed in (8, 10.5):  # in the background, and before the decision
            later.passed += passed
            assert amount(limiter) == 3
            wait_for(lambda: lost in caplog.text, "a look")
        (message,) = caplog.messages
        assert message == (
            f"the settings no longer have all of {lost}. They take effect once their files have stayed the same for"
            " 20 s. To apply them at once, call limiter.reload()"
        )
        caplog.clear()
        later.write(file, before.replace("3/minute", "4/minute"))
        later.passed += 11
        assert amount(limiter) == 4
        later.write(file, before)
        later.passed += 11
        assert amount(limiter) == 3
    later.write(file, after)
    later.passed += 21
    assert amount(limiter) == 5
    later.write(file, before)
    limiter.reload()
    later.write(file, after)
    limiter.reload()
    assert amount(limiter) == 5


def amount(limiter: Limiter) -> int:
    return limiter.peek({**CLIENT, "user": "z"}, cost=0).decisions[0].limit


def test_a_changed_file_of_clients_is_followed(tmp_path: Path, file: Path) -> None:
    clients = tmp_path / "clients.json"
    clients.write_text('{"192.0.2.7": "5/minute"}')
    by_user = '[[rules]]\nname = "user"\nkey = "user"\nlimits = "1/s"\n'
    file.write_text(f'{toml()}per_key = "clients.json"\n{by_user}per_key = "clients.json"\n')
    limiter = limiter_of(file)
    assert rest(limiter) == (5, 5)
    clients.write_text('{"192.0.2.7": "7/minute"}')
    wait_until(limiter, lambda: rest(limiter) == (7, 7))
    clients.unlink()
    with pytest.raises(ConfigError, match=r"clients\.json' not found"):
        limiter.reload()
    clients.write_text('{"192.0.2.7": "8/minute"}')
    wait_until(limiter, lambda: rest(limiter) == (8, 8))


def test_an_interval_of_zero_looks_never(file: Path) -> None:
    file.write_text(toml().replace('"1ms"', "0"))
    limiter = limiter_of(file)
    assert limiter.reloads.watch is None
    file.write_text(toml("5/minute"))
    limiter.reload()
    assert rest(limiter) == (5, 5)
    assert limiter.reloads.watch is not None
    file.write_text(toml("6/minute").replace('"1ms"', "0"))
    wait_until(limiter, lambda: rest(limiter) == (6, 6))
    assert limiter.reloads.watch is None


def test_what_needs_a_restart_is_named_and_the_rest_applies(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    limiter = limiter_of(file)
    file.write_text(toml("5/minute", more='store = "memory://?max_keys=5"\nsecret = "correct horse battery"'))
    limiter.reload()
    assert rest(limiter) == (5, 5)
    assert "store, secret changed: restart to apply them. All other changes are in effect" in caplog.text
    assert limiter.settings.store == "memory://"
    caplog.clear()
    file.write_text(toml("6/minute"))
    limiter.reload()
    assert "restart" not in caplog.text


def test_all_limiters_of_a_file_are_reloaded_together_or_not_at_all(file: Path) -> None:
    """Two middlewares with the same settings decide each request once, so their rules must be equal."""
    first, second = limiter_of(file), limiter_of(file)
    file.write_text(toml("5/minute"))
    first.reload()
    assert (rest(first), rest(second)) == ((5, 5), (5, 5))
    with_own = Limiter([Rule(name="own", limits="1/minute")], settings=load_settings(file))
    file.write_text(toml("9/minute", name="own"))
    first.reload()
    assert (rest(first)[0], rest(second)[0], rest(with_own)[0]) == (9, 9, 1)
    second.reloads.adopt(marks_of(limit("1/minute", name="other")(lambda: None)).marks)
    file.write_text(toml("7/minute", name="other"))
    with pytest.raises(ConfigError, match="the name 'other' is already used"):
        first.reload()
    assert (rest(first)[0], rest(second)[0]) == (9, 9)


def test_rules_of_decorators_stay_and_overrides_apply_anew(file: Path) -> None:
    limiter = limiter_of(file)
    limiter.reloads.adopt(marks_of(limit("1/minute", name="login")(lambda: None)).marks)
    assert [str(limit.quota) for limit in limiter.rules.by_name["login"].limits] == ["1/minute"]
    file.write_text(f'{toml()}[[rules]]\noverrides = "login"\nlimits = "2/minute"\n')
    limiter.reload()
    assert [str(limit.quota) for limit in limiter.rules.by_name["login"].limits] == ["2/minute"]
    file.write_text(f'{toml()}[[rules]]\noverrides = "logins"\nlimits = "2/minute"\n')
    with pytest.raises(ConfigError, match=r"no decorator has a rule named 'logins'\. Did you mean 'login'"):
        limiter.reload()
    file.write_text(toml())
    limiter.reload()
    assert [str(limit.quota) for limit in limiter.rules.by_name["login"].limits] == ["1/minute"]


def test_a_dictionary_is_read_again() -> None:
    settings: dict[str, Any] = {"limits": "3/minute"}
    limiter = Limiter.from_settings(settings, clock=ManualClock(1_000_000.0))  # type: ignore[arg-type]
    assert limiter.reloads.watch is None
    limiter.hit(CLIENT)
    settings["limits"] = "5/minute"
    limiter.reload()
    assert rest(limiter) == (5, 4)


def test_a_limiter_without_a_source_says_how_to_give_one() -> None:
    with pytest.raises(ConfigError, match="from_settings"):
        Limiter([Rule(limits="1/minute")]).reload()


def test_a_store_given_in_python_stays(file: Path) -> None:
    limiter = Limiter.from_settings(str(file), store="memory://?max_keys=7")
    file.write_text(toml("5/minute"))
    limiter.reload()
    assert limiter.settings.store == "memory://?max_keys=7"
    assert rest(limiter) == (5, 5)


def test_an_error_that_is_no_mistake_in_the_file_is_logged(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A defect in a thread that nothing waits for is never silent."""
    limiter = limiter_of(file)
    origin = limiter.settings.origin
    assert origin is not None

    def fail() -> Any:
        origin.load()
        raise ZeroDivisionError("a defect")

    limiter.settings.__dict__["origin"] = origin._replace(load=fail)
    file.write_text(toml("5/minute"))
    wait_until(limiter, lambda: "ZeroDivisionError: a defect" in caplog.text)
    assert rest(limiter) == (3, 3)


def test_a_change_counts_as_known_once_it_is_in_effect(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that arrives while a thread replaces the rules waits for that thread."""
    limiter = limiter_of(file)
    reloader, renew = limiter.reloads.files, limiter.reloads.renew
    assert reloader is not None
    changes = []

    def renew_slowly(*arguments: Any) -> Callable[[], None]:
        use = renew(*arguments)
        return lambda: (changes.append(reloader._must_read()), use())[1]

    monkeypatch.setattr(limiter.reloads, "renew", renew_slowly)
    file.write_text(toml("5/minute"))
    limiter.reload()
    assert (changes, rest(limiter)) == ([True], (5, 5))


@pytest.fixture(params=["memory", "lmdb", "redis", "memcached"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "lmdb":
        return f"lmdb://{tmp_path}/state"
    if request.param == "memory":
        return "memory://"
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return address(server) if request.param == "redis" else f"memcached://127.0.0.1:{server.port}"


@pytest.mark.parametrize(
    ("limits", "remaining"),
    [("50/minute", 48), ("200/minute", 198), ("100/hour", 100), ("100/minute; 500/hour", 98)],
)
@pytest.mark.parametrize("algorithm", ["sliding-window", "token-bucket", "fixed-window"])
def test_counts_survive_a_changed_amount_and_not_a_changed_period(
    file: Path, store: str, limits: str, remaining: int, algorithm: str
) -> None:
    """A key has the rule, the algorithm and the period, and not the amount."""
    more = f'store_timeout = "9s"\nstore = "{store}"\n[defaults]\nalgorithm = "{algorithm}"'
    name = file.parent.name  # its own counts on a shared server
    file.write_text(toml("100/minute", more, name))
    limiter = Limiter.from_settings(str(file), clock=ManualClock(1_000_000.0))
    for _ in range(2):
        assert limiter.hit(CLIENT)
    file.write_text(toml(limits, more, name))
    limiter.reload()
    assert limiter.peek(CLIENT, cost=0).decisions[0].remaining == remaining
    limiter.close()
