"""A limiter whose settings file changes: what takes effect, what stays, and what an operator reads in the log."""

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from idle_workers import Later, load_instead
from servers import wait_for
from tables import each, expect_error

from ratelimit_mw import ConfigError, Limiter, Rule, load_settings
from ratelimit_mw.limiter.followers import files
from ratelimit_mw.rules.decorators import limit
from ratelimit_mw.rules.marks import marks_of
from ratelimit_mw.rules.places import place_of
from ratelimit_mw.settings import with_options
from ratelimit_mw.testing import ManualClock

CLIENT = {"ip": "192.0.2.7"}


def toml(limits: str = "3/minute", more: str = "", name: str = "api") -> str:
    return f'reload_interval = "10s"\n{more}\n[[rules]]\nname = "{name}"\nlimits = "{limits}"\n'


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


def rest_later(limiter: Limiter, later: Later) -> tuple[int, int]:
    """Return what a request finds after the interval of the file."""
    later.passed += 11
    return rest(limiter)


def test_a_changed_amount_applies_and_keeps_what_was_consumed(file: Path, way: Any) -> None:
    limiter = limiter_of(file)
    limiter.hit(CLIENT)
    assert rest(limiter) == (3, 2)
    file.write_text(toml("5/minute"))
    way(limiter).reload()
    assert rest(limiter) == (5, 4)


def test_a_request_starts_the_reload_of_a_changed_file(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text(toml().replace('"10s"', '"1ms"'))
    limiter = limiter_of(file)
    limiter.hit(CLIENT)
    file.write_text(toml("5/minute"))
    with caplog.at_level(logging.INFO):
        wait_for(lambda: rest(limiter) == (5, 4) and "read again" in caplog.text, "a reload")
    assert limiter.hit(CLIENT).decisions[0].remaining == 3


def test_a_symbolic_link_that_leads_to_another_file_is_a_change(tmp_path: Path, later: Later) -> None:
    """As Kubernetes updates a ConfigMap: the link to the folder of all files is replaced."""
    for version, limits in (("1", "3/minute"), ("2", "5/minute")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ratelimit.toml").write_text(toml(limits))
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "ratelimit.toml").symlink_to("..data/ratelimit.toml")
    limiter = limiter_of(tmp_path / "ratelimit.toml")
    (tmp_path / "..next").symlink_to("2")
    (tmp_path / "..next").replace(tmp_path / "..data")
    assert rest_later(limiter, later) == (5, 5)


BAD = {
    "a mistake": toml("3/minut"),
    "cut off": toml()[:-5],
    "empty": "",
    "no settings": "# nothing\n",
    "unknown field": toml(more="speed = 3"),
    "a cost above the limit": toml() + "cost = 9\n",
}


@each("name", BAD)
def test_a_bad_file_keeps_the_earlier_rules_and_is_logged_once(
    file: Path, later: Later, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """The log has the message of a start with the same file. A touched file is not reported again."""
    caplog.clear()
    file.write_text(toml())
    limiter = limiter_of(file)
    file.write_text(BAD[name])
    with pytest.raises(ConfigError) as raised:
        limiter.reload()
    assert rest(limiter) == (3, 3)
    for _ in range(3):
        later.write(file, BAD[name] + " ")
        assert rest_later(limiter, later) == (3, 3)
    assert caplog.text.count(f"{raised.value} (the earlier settings stay in effect)") == 1
    later.write(file, toml("5/minute"))
    assert rest_later(limiter, later) == (5, 5)


@each(
    ("spoil", "message"),
    [
        (lambda file: None, "not found"),
        (lambda file: file.mkdir(), "cannot be read: Is a directory"),
        (os.mkfifo, "cannot be read: not a regular file"),
    ],
)
def test_a_file_that_is_gone_keeps_the_earlier_rules(
    file: Path, later: Later, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None], message: str
) -> None:
    """A read of a pipe would have no end, so a pipe is not opened: not by a reload, and not by a request."""
    limiter = limiter_of(file)
    file.unlink()
    spoil(file)
    for _ in range(2):  # a writer may be about to write it
        assert rest_later(limiter, later) == (3, 3)
    assert f"{message} (the earlier settings stay" in caplog.text
    expect_error(message, limiter.reload)
    file.rmdir() if file.is_dir() else file.unlink(missing_ok=True)
    later.write(file, toml("5/minute"))
    assert rest_later(limiter, later) == (5, 5)
    file.write_text(toml())


def test_a_pipe_is_no_settings_file(tmp_path: Path, file: Path) -> None:
    """Nothing waits for a writer: not the start, and not the line of an error."""
    pipe, clients = tmp_path / "pipe.toml", tmp_path / "clients.json"
    for each_file in pipe, clients:
        os.mkfifo(each_file)
    expect_error(r"pipe\.toml' cannot be read: not a regular file", load_settings, pipe)
    assert place_of(str(pipe), "rules[0]") == str(pipe)
    file.write_text(f'{toml()}per_key = "clients.json"\n')
    expect_error(r"per_key: .*clients\.json' cannot be read: not a regular file", load_settings, file)


@each("half", ["enabled = false\n", "enabled = "])
def test_a_file_that_changes_while_it_is_read_is_read_again(half: str, file: Path, later: Later) -> None:
    """The first reading meets the first half of the file, which may be valid and has no limit."""
    file.write_text(toml())
    limiter, halves = limiter_of(file), iter([toml("9/minute"), toml("5/minute")])
    later.write(file, half)

    def load_and_write(load: Any) -> Any:
        try:
            return load()
        finally:
            if content := next(halves, ""):
                later.write(file, content)

    load_instead(limiter, load_and_write)
    limiter.reload()
    assert limiter.rules.enabled
    assert rest(limiter)[0] == 5


def test_a_file_that_never_rests_is_an_error(
    file: Path, later: Later, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests keep the earlier rules, and the log says so."""
    monkeypatch.setattr(files, "_MAX_TRIES", 2)
    limiter = limiter_of(file)
    assert [rest_later(limiter, later) for _ in range(3)] == [(3, 3)] * 3
    load_instead(limiter, lambda load: (load(), later.write(file, toml("5/minute")))[0])
    file.write_text(toml("4/minute"))
    expect_error("keeps changing", limiter.reload)
    assert later.passed == 33 + 2.0
    for count in (0, 0, 1):
        assert caplog.text.count("keeps changing, so it cannot be read (the earlier settings stay in effect)") == count
        assert rest_later(limiter, later) == (3, 3)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file rests after 9 s without a change, so that a slow machine does not end the wait."""
    monkeypatch.setattr(files, "_UNCHANGED_FOR", 9.0)


def test_a_file_waits_for_its_writer(file: Path, later: Later, patient: None) -> None:
    """Its first half, which may be valid, takes effect only if it stays the same for a while, whatever the interval."""
    file.write_text(toml().replace('"10s"', '"1h"'))
    limiter = limiter_of(file)
    later.passed += 3600
    for content in ("enabled = false\n", toml("5/minute")):
        later.write(file, content)
        assert rest(limiter) == (3, 3)
        later.passed += 5
        assert rest(limiter) == (3, 3)
    later.passed += 5
    wait_for(lambda: rest(limiter) == (5, 5), "a reload")


def test_a_changed_file_of_clients_is_followed(tmp_path: Path, file: Path, later: Later) -> None:
    clients = tmp_path / "clients.json"
    clients.write_text('{"192.0.2.7": "5/minute"}')
    by_user = '[[rules]]\nname = "user"\nkey = "user"\nlimits = "1/s"\n'
    file.write_text(f'{toml()}per_key = "clients.json"\n{by_user}per_key = "clients.json"\n')
    limiter = limiter_of(file)
    assert rest(limiter) == (5, 5)
    clients.write_text('{"192.0.2.7": "7/minute"}')
    assert rest_later(limiter, later) == (7, 7)
    clients.unlink()
    expect_error(r"clients\.json' not found", limiter.reload)
    clients.write_text('{"192.0.2.7": "8/minute"}')
    assert rest_later(limiter, later) == (8, 8)


@pytest.mark.parametrize("half", ["{", '{"192.0.2.7": "6/minute"}'])
def test_a_new_file_of_clients_waits_for_its_writer(
    half: str, tmp_path: Path, file: Path, later: Later, patient: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The settings that name it may have rested before. What it has until then is no mistake."""
    limiter, clients = limiter_of(file), tmp_path / "clients.json"
    later.write(file, f'{toml()}per_key = "clients.json"\n')
    later.passed += 11
    for content in (half, '{"192.0.2.7": "7/minute"}'):
        later.write(clients, content)
        later.passed += 5
        assert rest(limiter) == (3, 3)
    assert rest_later(limiter, later) == (7, 7)
    assert "stay in effect" not in caplog.text


def test_an_interval_of_zero_looks_never(file: Path, later: Later) -> None:
    file.write_text(toml().replace('"10s"', "0"))
    limiter = limiter_of(file)
    file.write_text(toml("5/minute"))
    assert rest_later(limiter, later) == (3, 3)
    limiter.reload()
    assert rest(limiter) == (5, 5)
    file.write_text(toml("6/minute").replace('"10s"', "0"))
    assert rest_later(limiter, later) == (6, 6)
    file.write_text(toml("7/minute"))
    assert rest_later(limiter, later) == (6, 6)


def test_the_arguments_of_a_middleware_stay(file: Path) -> None:
    """They replace the settings that the file has later, too."""
    limiter = Limiter.from_settings(with_options(str(file), {"limits": "9/hour", "enabled": False}))
    file.write_text(toml("5/minute", more='limits = "7/day"'))
    limiter.reload()
    assert [str(rule.quotas[0]) for rule in limiter.settings.rules] == ["5/minute", "9/hour"]
    assert not limiter.settings.enabled


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


def test_a_reload_that_decorators_contradict_changes_nothing(file: Path) -> None:
    limiter = limiter_of(file)
    limiter.reloads.adopt(marks_of(limit("1/minute", name="other")(lambda: None)).marks)
    file.write_text(toml("7/minute", name="other"))
    expect_error("the name 'other' is already used", limiter.reload)
    assert rest(limiter)[0] == 3


def test_rules_of_your_code_stay(file: Path) -> None:
    limiter = Limiter([Rule(name="own", limits="1/minute")], settings=load_settings(file))
    file.write_text(toml("9/minute", name="own"))
    limiter.reload()
    assert rest(limiter) == (1, 1)


def test_rules_of_decorators_stay_and_overrides_apply_anew(file: Path) -> None:
    limiter = limiter_of(file)
    limiter.reloads.adopt(marks_of(limit("1/minute", name="login")(lambda: None)).marks)
    assert [str(limit.quota) for limit in limiter.rules.by_name["login"].limits] == ["1/minute"]
    file.write_text(f'{toml()}[[rules]]\noverrides = "login"\nlimits = "2/minute"\n')
    limiter.reload()
    assert [str(limit.quota) for limit in limiter.rules.by_name["login"].limits] == ["2/minute"]
    file.write_text(f'{toml()}[[rules]]\noverrides = "logins"\nlimits = "2/minute"\n')
    expect_error(r"no decorator has a rule named 'logins'\. Did you mean 'login'", limiter.reload)
    file.write_text(toml())
    limiter.reload()
    assert [str(limit.quota) for limit in limiter.rules.by_name["login"].limits] == ["1/minute"]


def test_a_limiter_without_a_source_says_how_to_give_one() -> None:
    expect_error("from_settings", Limiter([Rule(limits="1/minute")]).reload)


def test_a_store_given_in_python_stays(file: Path) -> None:
    limiter = Limiter.from_settings(str(file), store="memory://?max_keys=7")
    file.write_text(toml("5/minute"))
    limiter.reload()
    assert limiter.settings.store == "memory://?max_keys=7"
    assert rest(limiter) == (5, 5)


def test_an_error_that_is_no_mistake_in_the_file_is_logged(
    file: Path, later: Later, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect in a thread that nothing waits for is never silent."""
    limiter = limiter_of(file)
    load_instead(limiter, lambda load: (load(), 1 // 0))
    file.write_text(toml("5/minute"))
    assert rest_later(limiter, later) == (3, 3)
    assert "ZeroDivisionError" in caplog.text


def test_a_change_counts_as_known_once_it_is_in_effect(
    file: Path, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that arrives while a thread replaces the rules waits for that thread."""
    limiter = limiter_of(file)
    replace, meanwhile = limiter.reloads.replace, []

    def replace_slowly(*arguments: Any) -> None:
        meanwhile.append(pool.submit(rest, limiter))
        assert wait(meanwhile, 0.05).not_done
        replace(*arguments)

    monkeypatch.setattr(limiter.reloads, "replace", replace_slowly)
    file.write_text(toml("5/minute"))
    later.passed += 11
    with ThreadPoolExecutor(1) as pool:
        assert rest(limiter) == (5, 5)
    assert [request.result() for request in meanwhile] == [(5, 5)]


@each(
    ("limits", "remaining"),
    [("50/minute", 48), ("200/minute", 198), ("100/hour", 100), ("100/minute; 500/hour", 98)],
)
@each("algorithm", ["sliding-window", "token-bucket", "fixed-window"])
def test_counts_survive_a_changed_amount_and_not_a_changed_period(
    file: Path, any_url: str, limits: str, remaining: int, algorithm: str
) -> None:
    """A key has the rule, the algorithm and the period, and not the amount."""
    more = f'store_timeout = "9s"\nstore = "{any_url}"\n[defaults]\nalgorithm = "{algorithm}"'
    name = uuid4().hex  # its own counts
    file.write_text(toml("100/minute", more, name))
    limiter = Limiter.from_settings(str(file), clock=ManualClock(1_000_000.0))
    for _ in range(2):
        assert limiter.hit(CLIENT)
    file.write_text(toml(limits, more, name))
    limiter.reload()
    assert limiter.peek(CLIENT, cost=0).decisions[0].remaining == remaining
    limiter.close()
