"""The parts that commands on the store of a running application share: features as words, and the limiter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import Files
from redis_handles import address
from servers import HOST, Server, redis_running

from ratelimit_mw import ConfigError
from ratelimit_mw.cli.clients import as_counted, open_limiter
from ratelimit_mw.cli.output import Failure
from ratelimit_mw.cli.source import Source

LOGIN = {"name": "login", "key": ["email", "ip"], "limits": "2/minute"}


@pytest.fixture
def source(tmp_path: Path) -> Any:
    """Returns the source of a settings file with these rules."""
    return lambda *rules, **settings: Source.from_file(Files(tmp_path).rules(*rules, **settings))


@pytest.mark.parametrize(
    ("ip", "counted"),
    [
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::/64", "2001:db8:1:2::/64"),
        ("unknown", "unknown"),
    ],
)
def test_an_ip_address_is_that_of_the_key(source: Any, ip: str, counted: str) -> None:
    """You write the address of the client, or the network that a table shows."""
    assert as_counted(source(LOGIN), {"ip": ip, "user": "ann"}) == {"ip": counted, "user": "ann"}


def test_another_text_is_no_ip_address(source: Any) -> None:
    with pytest.raises(ConfigError, match=r"ip: expected an IP address or a network .*192.0.2"):
        as_counted(source(LOGIN), {"ip": "192.0.2"})


@pytest.mark.parametrize("network", ["192.0.2.0/24", "2001:db8::/32", "2001:db8::/96"])
def test_a_network_of_many_clients_is_no_client(source: Any, network: str) -> None:
    """A ban or an override of it would have no effect."""
    with pytest.raises(ConfigError, match=rf"ip: expected an IP address, because {network} has many clients"):
        as_counted(source(LOGIN), {"ip": network})


@pytest.mark.parametrize(
    ("store", "problem"),
    [
        ("memory://", "the store memory:// is in each process"),
        ("lmdb:///nowhere/limits", "lmdb:///nowhere/limits does not exist. Check the path"),
    ],
)
def test_a_store_that_is_out_of_reach_is_named(source: Any, store: str, problem: str) -> None:
    """The command creates no files that the application then cannot open."""
    with pytest.raises(Failure, match=problem), open_limiter(source(LOGIN, store=store)):
        pass
    assert not Path("/nowhere").exists()


def test_a_store_that_fails_while_a_command_works_is_named(source: Any, tmp_path: Path) -> None:
    """The message has the URL of the store."""
    with redis_running(tmp_path) as server:
        url = f"redis://{HOST}:{server.port}/0"
        limits = source(LOGIN, store=url)

        def work() -> None:
            with open_limiter(limits) as limiter:
                server.kill()
                limiter.inspect()

        with pytest.raises(Failure, match=rf"^{url} failed: .*`check --connect` examines its servers"):
            work()


def test_the_files_of_another_user_are_not_opened(source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that root creates after a crash would lock the application out."""
    limits = source(LOGIN, store=f"lmdb://{tmp_path}/db")
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "data.mdb").touch()
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    owner = tmp_path.stat().st_uid
    with pytest.raises(Failure, match=rf"belongs to the user {owner}.*sudo -u '#{owner}'"), open_limiter(limits):
        pass
    assert [path.name for path in (tmp_path / "db").iterdir()] == ["data.mdb"]


def test_the_limiter_has_rules_secret_and_store(source: Any, redis_server: Server) -> None:
    """With the secret of the settings, a command finds the key that the application counts under."""
    secret = {"secret": "correct horse battery staple", "keyed": ["ip"]}
    limits = source({**LOGIN, "key": ["ip"]}, store=address(redis_server, "?prefix=live:"), **secret)
    with open_limiter(limits) as first, open_limiter(limits) as second:
        first.hit({"ip": "192.0.2.7"})
        [decision] = second.inspect("login", as_counted(limits, {"ip": "192.0.2.7"})).decisions
        assert (decision.remaining, "192.0.2.7" in decision.key) == (1, False)
        with pytest.raises(ConfigError, match="unknown rule"):
            second.reset("other", {"ip": "192.0.2.7"})
        second.reset("login", {"ip": "192.0.2.7"})
