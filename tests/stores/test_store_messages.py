"""The whole messages of stores. Other tests match the place and a key word of each."""

from collections.abc import Callable

import pytest

from ratelimit_mw import ConfigError
from ratelimit_mw.stores import MemoryStore, RedisStore, open_store
from ratelimit_mw.stores.postgres.store import PostgresStore
from ratelimit_mw.testing.store_suite import limit_of

ADVICE = 'Use algorithm = "tiered-window"'
MESSAGES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: PostgresStore("redis://cache"),
        "expected a URL such as postgresql://host/database; got redis://. Use open_store(url)",
    ),
    (
        lambda: RedisStore("memory://"),
        "expected a URL such as redis://localhost:6379/0; got memory://. Use open_store(url)",
    ),
    (
        lambda: RedisStore("redis://a", remap=lambda announced: announced),
        "remap: needs a URL that starts with redis+cluster:// or redis+sentinel://",
    ),
    (
        lambda: open_store("redis://:pass?word@h"),
        (
            "a redis:// URL has # ? ; = or @ within its login, its path or an option. Write them as %23, %3F, %3B, %3D"
            " and %40, and / as %2F. Write & between options"
        ),
    ),
    (
        lambda: open_store("memcached://cache:11211").list_keys("1|"),
        "the store memcached://cache:11211 cannot list its keys. Inspect the key of one client instead",
    ),
    (
        lambda: MemoryStore().list_keys("1|", "x"),
        "cursor: expected the cursor of an earlier page; got 'x'",
    ),
    (
        lambda: MemoryStore().save(),
        "no snapshot path. Call save(path) or use memory://?snapshot=/path",
    ),
]
MESSAGES += [
    (
        lambda url=url: open_store(url).check(limit_of("6000/hour", "sliding-window-log")),  # type: ignore[misc]
        f"sliding-window-log keeps at most {most} entries per key on {title}; got '6000/hour'. {ADVICE}",
    )
    for url, most, title in (("postgresql://db/shop", "5,000", "PostgreSQL"), ("memcached://c", "1,000", "Memcached"))
]


@pytest.mark.parametrize(("call", "message"), MESSAGES, ids=[message[:40] for _, message in MESSAGES])
def test_an_error_names_place_problem_and_remedy(call: Callable[[], object], message: str) -> None:
    """It names the place, the problem, what was given, and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value) == message
