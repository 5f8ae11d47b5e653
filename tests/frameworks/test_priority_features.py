"""The class of a request comes from your function, or from the header of a trusted proxy."""

from __future__ import annotations

from typing import Any

from sites import Build
from tables import expect_error

from ratelimit_mw import Rule

RULE = {"name": "api", "limits": "10/minute", "key": [], "reserve": {"critical": "50%"}}
HEADER: dict[str, Any] = {"rules": [RULE], "priorities": {"header": "x-priority"}}


def allowed(served: Any, times: int, **request: Any) -> int:
    return int(served.statuses(times, **request).count(200))


def test_the_header_of_a_trusted_proxy_names_the_class(site: Build) -> None:
    """That of a client is ignored, and of two lines one may be the client's."""
    served = site(HEADER, trusted_proxies=["10.0.0.0/8"])
    assert allowed(served, 9, headers={"X-Priority": "critical"}) == 5
    assert allowed(served, 1, client="10.0.0.1", headers=[("X-Priority", "critical"), ("X-Priority", "critical")]) == 0
    assert allowed(served, 9, client="10.0.0.1", headers={"X-Priority": "critical"}) == 5


def test_your_function_names_the_class(site: Build) -> None:
    """It takes precedence over the header."""
    served = site(HEADER, trusted_proxies=["127.0.0.0/8"], features={"priority": lambda request: "critical"})
    assert allowed(served, 12) == 10


def test_a_reserve_without_a_source_of_classes_is_an_error(site: Build) -> None:
    """So is a header without a proxy that is trusted to write it."""
    expect_error(
        "uses the feature 'priority', but nothing provides it. Set priorities.header",
        lambda: site(Rule(**RULE)).start(),
    )
    expect_error(r"priorities\.header: the header is read from trusted proxies only", lambda: site(HEADER).start())
