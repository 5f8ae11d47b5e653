"""A request that the service cannot bear gets a 503 in every framework, and its place ends with the response."""

import time
from collections.abc import AsyncIterator
from typing import Any

from sites import Build, Call, Reply, act

from ratelimit_mw import Rule
from ratelimit_mw.limiter.adaptive import Aimd
from ratelimit_mw.rules.plan import Plan

RULE = Rule(name="api", limits="adaptive 1..2 concurrent", target="250ms", key=[], match={"path": "/"})


def in_flight(served: Any) -> list[int]:
    return [len(state.requests) for state in served.limiter.adaptive.states().values()]


async def meeting(call: Call) -> int:
    await call.meet()
    return 200


def test_the_requests_in_flight_are_limited(site: Build) -> None:
    """The 503 has the problem type of the draft, a wait, and no limits of the client."""
    served = site(RULE, meeting)
    assert served.at_once(3) == [200, 503, 503]
    assert in_flight(served) == [0]
    held = [served.limiter.hit({}) for _ in range(2)]
    response = served.call(headers={"Accept": "application/json"})
    assert response.status_code == 503
    assert 1 <= int(response.headers["retry-after"]) <= 5
    assert [name for name in response.headers if "ratelimit" in name] == []
    problem = response.json()
    assert problem["type"] == "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    assert (problem["violated-policies"], problem["detail"][:20]) == (["api"], "The service is busy.")
    for verdict in held:
        served.limiter.conclude(verdict, 200)


def test_each_end_of_a_response_ends_the_place(site: Build) -> None:
    """So do errors, streams and statuses. The headers show the other limits only."""
    served = site([RULE, Rule(name="all", limits="100/minute")], act)
    for query in ("status=201", "fail", "stream", "status=503"):
        response = served.call(path=f"/?{query}")
        assert in_flight(served) == [0]
        if query != "fail":
            assert response.headers["x-ratelimit-limit"] == "100"


def test_a_timeout_is_a_dropped_request(site: Build, responses: list[tuple[int, int | None]]) -> None:
    """It is one where it becomes a response of status 500, too. Another error is as fast as it was."""

    async def view(call: Call) -> str:
        raise TimeoutError if "timeout" in call.query else ZeroDivisionError

    served = site(RULE, view)
    for query in ("other", "timeout"):
        assert served.call(path=f"/?{query}").status_code == 500
        assert in_flight(served) == [0]
    assert [status in Aimd.drops for _, status in responses] == [False, True]


def test_a_long_stream_is_not_slow(site: Build, responses: list[tuple[int, int | None]]) -> None:
    """The time until the start of the response counts, and the stream holds its place until its end."""

    async def streaming(call: Call) -> Reply:
        async def parts() -> AsyncIterator[bytes]:
            yield b"a"
            seen.append(in_flight(served)[0])
            served.clock.advance(10)
            yield b"b"

        return Reply(body=parts())

    seen: list[int] = []
    served = site(RULE, streaming)
    served.call()
    assert (seen, responses, in_flight(served)) == ([1], [(0, 200)], [0])


def test_the_queue_of_a_trusted_proxy_counts(site: Build, responses: list[tuple[int, int | None]]) -> None:
    """Its header has seconds, milliseconds or microseconds. That of a client is ignored."""
    served = site(RULE, 200, trusted_proxies=["10.0.0.0/8"])
    for client, header, slow in (
        ("10.0.0.1", "t={:.3f}", True),
        ("10.0.0.1", "{:.0f}000", True),
        ("10.0.0.1", "{:.0f}000000", True),
        ("10.0.0.1", "now", False),
        ("192.0.2.7", "t={:.3f}", False),
    ):
        seconds = time.time() - 5
        served.call(client=client, headers={"X-Request-Start": header.format(seconds)})
        assert [took > 4_000_000 for took, _ in responses] == [slow], (client, header)
        responses.clear()


def test_a_check_and_the_usage_need_no_class(site: Build) -> None:
    """A request without a class is of the middle one. The usage has the limits of the client only."""

    async def view(call: Call) -> str:
        await call.check("jobs")
        return "" if call.usage is None else ",".join([*await call.usage(), *await call.usage("jobs")])

    jobs = Rule(name="jobs", limits="adaptive 1..2 concurrent", target="250ms", key=[], match={"view": ""})
    served = site([jobs, RULE, Rule(name="all", limits="100/minute")], view)
    assert served.call().text in ("all", "")
    assert in_flight(served) == [0, 0]
    held = served.limiter.decide(Plan(served.limiter.rules.rules[:1]), {})
    assert served.call().status_code == 503
    served.limiter.conclude(held, 200)
    assert in_flight(served) == [0, 0]


def test_a_rejection_in_the_view_is_no_response_of_the_service(
    site: Build, responses: list[tuple[int, int | None]]
) -> None:
    """It takes no time, and its 503 is no request that the service has dropped."""

    async def view(call: Call) -> int:
        for rule in ("jobs", "few"):
            await call.check(rule)
        return 200

    jobs = Rule(name="jobs", limits="adaptive 1..2 concurrent", target="250ms", key=[], match={"view": ""})
    few = Rule(name="few", limits="1/minute", key=[], match={"view": ""})
    served = site([jobs, few, RULE], view)
    assert served.statuses(2) == [200, 429]
    held = served.limiter.decide(Plan(served.limiter.rules.rules[:1]), {})
    assert served.call().status_code == 503
    served.limiter.conclude(held, 200)
    assert responses == [(0, 200)] * 3
    assert in_flight(served) == [0, 0]


def test_an_adaptive_rate_follows_the_responses(site: Build, responses: list[tuple[int, int | None]]) -> None:
    """The headers have its amount of the moment. An error of the service is slow, and one of the client is not."""
    options: Any = {"limits": "adaptive 5..60/minute", "tune": "health", "target": "250ms"}
    served = site(Rule(name="api", key=[], match={"path": "/"}, **options), act)
    for status in (201, 404, 500):
        response = served.call(path=f"/?status={status}")
        assert (response.status_code, response.headers["x-ratelimit-limit"]) == (status, "20")
    assert responses == [(0, 201), (0, 404), (0, 500)]
    assert [status in Aimd.errors for _, status in responses] == [False, False, True]


# -- the class of a request ------------------------------------------------------------------------------------


RESERVING = {"name": "api", "limits": "10/minute", "key": [], "reserve": {"critical": "50%"}}
HEADER: dict[str, Any] = {"rules": [RESERVING], "priorities": {"header": "x-priority"}}


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
