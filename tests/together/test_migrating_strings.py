"""Limits, keys and stores of other packages have the same meaning here, or an error names the form to write.

The tests compare with the parsers of these packages.
"""

from typing import Any
from urllib.parse import urlsplit

import limits
import pytest
from django_ratelimit.core import _split_rate
from hypothesis import example, given
from hypothesis import strategies as st
from tables import each, expect_error

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.clock import SECOND
from ratelimit_mw.keys.features import checked_name
from ratelimit_mw.keys.key import parse_key
from ratelimit_mw.quota import parse_quotas
from ratelimit_mw.stores import check_store_url, open_store
from ratelimit_mw.stores.redis.store import RedisStore


def numbers_of(text: Any) -> list[tuple[int, int]]:
    """Return amounts and periods in seconds, as this package reads them."""
    return [(quota.amount, quota.period_us // SECOND) for quota in parse_quotas(text)]


# -- Flask-Limiter, slowapi: strings of `limits` ---------------------------------------------------------------------


def numbers_of_limits(text: str) -> list[tuple[int, int]]:
    return [(item.amount, item.get_expiry()) for item in limits.parse_many(text)]


UNITS = [*limits.limits.GRANULARITIES, *(f"{name}s" for name in limits.limits.GRANULARITIES)]
SPACE = st.sampled_from(["", " ", "  ", "\t", "\n"])
ONE = st.builds(
    "".join,
    st.tuples(
        SPACE,
        st.integers(1, 10**12).map(str),
        st.sampled_from(["/", " / ", " per ", "per ", "PER ", " Per "]),
        st.one_of(st.just(""), st.integers(1, 12).map(str)),
        SPACE,
        st.sampled_from([*UNITS, *map(str.upper, UNITS)]),
        SPACE,
    ),
)


@example(["10 per hour", "100/day", "500/7 days", "3 PER Minute"], [",", ";", "|", ";"])
@example(["  10/hour ", " 20/day  ", "1 per 2 minutes", "5/12 months"], [";", ",", ";", ","])
@example(["10perhour", "5 per 1 year\n", "10  /  2  days", "007/minute"], [";", "|", ";", ","])
@given(parts=st.lists(ONE, min_size=1, max_size=4), separators=st.lists(st.sampled_from(",;|"), min_size=4, max_size=4))
def test_no_limits_string_changes_its_meaning(parts: list[str], separators: list[str]) -> None:
    """Each form of `limits` has the same amount and period here or raises an error."""
    text = "".join(part + separator for part, separator in zip(parts, separators, strict=False))[:-1]
    expected = numbers_of_limits(text)
    try:
        numbers = numbers_of(text)
    except ConfigError:
        periods = [seconds for _, seconds in expected]
        assert len(set(periods)) < len(periods) or max(periods) > 366 * 86_400
    else:
        assert numbers == expected


@each("text", ["", "10/hour;", "10", "10/fortnight", "ten/hour", "10/hour 20/day", "1.5/hour"])
def test_an_invalid_limits_string_is_an_error(text: str) -> None:
    """Flask-Limiter and slowapi log such strings and limit nothing. Here they stop the application."""
    with pytest.raises(ValueError, match=r"couldn't parse|no granularity"):
        limits.parse_many(text)
    with pytest.raises(ConfigError):
        parse_quotas(text)


# -- django-ratelimit: rates -------------------------------------------------------------------------------------


UNIT = st.sampled_from(["s", "m", "h", "d", ""])


@example("5/s")
@example("5/minute")  # django-ratelimit checks only the first letter
@example((100, 300))
@given(rate=st.builds("{}/{}{}".format, st.integers(1, 10**12), st.integers(1, 366), UNIT))
def test_no_django_ratelimit_rate_changes_its_meaning(rate: Any) -> None:
    """This covers every count, number and unit of the documented form, rates without a unit (seconds), and pairs."""
    assert numbers_of(rate) == [_split_rate(rate)]


@each(
    ("rate", "theirs", "ours"),
    [("5/M", 1, 60), ("5/w", 1, 7 * 86_400), ("5/month", 60, 30 * 86_400), ("10/500ms", 500 * 60, 0)],
)
def test_rates_that_django_ratelimit_misreads_are_read_as_written(rate: str, theirs: int, ours: int) -> None:
    """django-ratelimit looks only for a lower-case s, m, h or d after the number and reads others as seconds."""
    assert _split_rate(rate)[1] == theirs
    assert numbers_of(rate)[0][1] == ours


# -- django-ratelimit: keys --------------------------------------------------------------------------------------


@each(
    ("key", "entries"),
    [
        ("ip", (("ip",),)),
        ("user", (("user",),)),
        ("user_or_ip", (("user", "ip"),)),
        ("get:q", (("query:q",),)),
        ("post:username", (("form:username",),)),
        ("header:x-cluster-client-ip", (("header:x-cluster-client-ip",),)),
        ("header:X-Real-IP", (("header:x-real-ip",),)),
        (["user_or_ip", "get:page"], (("user", "ip"), ("query:page",))),
        ("header:x-api-key|user_or_ip", (("header:x-api-key", "user", "ip"),)),
    ],
)
def test_a_django_ratelimit_key_is_valid_here(key: Any, entries: Any) -> None:
    """The key works alone and as a part of longer keys."""
    assert parse_key(key) == entries


def test_key_aliases_are_not_features() -> None:
    """An alias of two features cannot be matched, listed or passed. An alias of one feature can."""
    with pytest.raises(ConfigError, match="'user_or_ip' is not a feature"):
        Rule(limits="5/m", match={"user_or_ip": "ann"})
    assert Rule(limits="5/m", match={"get:q": "a"}).matches.needs == ("query:q",)
    assert checked_name("post:username") == "form:username"


# -- store URLs --------------------------------------------------------------------------------------------------


@each(
    ("address", "ours"),
    [
        ("redis://localhost:6379", "redis://localhost:6379"),
        ("redis://:secret@localhost:6379/3", "redis://:secret@localhost:6379/3"),
        ("rediss://localhost:6380/0", "rediss://localhost:6380/0"),
        ("valkey://localhost:6379", "redis://localhost:6379"),
        ("valkeys://localhost:6379/1", "rediss://localhost:6379/1"),
        ("redis+unix:///run/redis.sock?db=2", "unix:///run/redis.sock?db=2"),
        ("valkey+unix:///run/valkey.sock", "unix:///run/valkey.sock"),
        ("redis+sentinel://a:26379,b:26379/mymaster", "redis+sentinel://a:26379,b:26379/mymaster"),
        ("valkey+sentinel://a:26379/mymaster", "redis+sentinel://a:26379/mymaster"),
        ("redis+cluster://a:7000,b:7001", "redis+cluster://a:7000,b:7001"),
        ("valkey+cluster://:secret@a:7000", "redis+cluster://:secret@a:7000"),
    ],
)
def test_a_limits_store_url_leads_to_the_same_server(address: str, ours: str) -> None:
    """This includes aliases of schemes and options."""
    assert urlsplit(address).scheme in limits.storage.SCHEMES
    assert isinstance(open_store(address), RedisStore)
    assert check_store_url(address)[1] == check_store_url(ours)[1]


@each("address", ["memory://", "memcached://a:11211,b:11211"])
def test_store_urls_that_stay_the_same(address: str) -> None:
    """These URLs work unchanged."""
    assert urlsplit(address).scheme in limits.storage.SCHEMES
    Limiter(store=address).close()


# -- what has no form here -----------------------------------------------------------------------------------------


def rule_of(limits: Any) -> Rule:
    return Rule(limits=limits)


def of_package(group: str, request: Any) -> str:
    """A function as django-ratelimit calls it."""
    return "5/m"


ZERO = "To reject all requests of a client, use lists.deny"
MISTAKES: dict[Any, list[tuple[Any, str]]] = {
    parse_quotas: [
        ("2 per 2 years", "'2 per 2 years'.*366 days"),
        ("1 per 13 months", "'1 per 13 months'.*366 days"),
        ("5/minute; 10 per 60 seconds", "two limits have the period of .*write two rules"),
        ("0/hour", f"'0/hour'.*{ZERO}"),
        ("10/0 hours", "'10/0 hours'.*from 1 to"),
        ("1000000000001/day", "from 1 to 1,000,000,000,000"),
        ((0, 60), ZERO),
        ((5, 0), "the period"),
        (None, "xpected AMOUNT/PERIOD, .* got None"),
        ("project.rates.rate_of", "cannot parse quota 'project.rates.rate_of'"),
        ([100, 300], r"\[0\]: expected AMOUNT/PERIOD"),
        ("5/", "cannot parse quota '5/'"),
    ],
    rule_of: [(of_package, "expected a function of the value of .ip.")],
    parse_key: [
        (of_package, "features={NAME: function}"),
        ([of_package], r"\[0\].*features={NAME: function}"),
        ("project.keys.key_of", "got 'project.keys.key_of'.*features={NAME: function}"),
        ("fields:q", "query:NAME.*form:NAME.*got 'fields:q'"),
        ("gets:q", "query:NAME.*got 'gets:q'"),
    ],
    open_store: [
        ("mongodb://localhost:27017", "unknown scheme 'mongodb' of a store URL. Expected one of memory, lmdb, redis"),
        ("memcached:///run/memcached.sock", "memcached:// has no path"),
    ],
}


@each(("read", "value", "message"), [(read, *row) for read, rows in MISTAKES.items() for row in rows])
def test_what_has_no_form_here_is_an_error_with_the_alternative(read: Any, value: Any, message: str) -> None:
    """Other packages accept these limits, keys and URLs. The error shows what was given, and what to write."""
    expect_error(message, read, value)
