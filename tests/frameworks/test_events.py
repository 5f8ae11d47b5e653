"""Each concluded request has one event, whatever its end."""

import time
from typing import Any

from shared_store import SharedStore
from sites import CLIENT, NOW, Build, Call, act
from tables import each

from ratelimit_mw import Event, Limiter, RateLimitExceeded, Rule
from ratelimit_mw.limiter.observers.readers import OutcomeReader
from ratelimit_mw.stores import MemoryStore

SITE, POST = Rule(name="site", limits="9/minute"), Rule(name="post", limits="2/minute", match={"view": ""})


def outcomes(events: list[Event]) -> list[str]:
    return [event.outcome for event in events]


@each("store", [MemoryStore, SharedStore])
def test_a_request_has_one_event(site: Build, store: Any) -> None:
    """An allowed request, a rejected one, and a stream."""
    events: list[Event] = []
    served = site(Rule(name="login", limits="3/minute"), act, store=store(), observers=[events.append])
    for query in ("", "stream", "late", ""):
        served.call(path=f"/?{query}")
    assert outcomes(events) == ["allowed", "allowed", "allowed", "rejected"]
    assert {(event.rules, event.method) for event in events} == {(("login",), "GET")}


def test_an_event_says_where(site: Build) -> None:
    """The template of the route where routes are known, and the method."""
    events: list[Event] = []
    served = site(Rule(name="login", limits="3/minute"), {"/{where}": 200}, observers=[events.append])
    for method in ("GET", "HEAD"):
        served.call(method, "/here")
    endpoint = None if served.of.__name__.endswith(("asgi", "wsgi")) else "/{where}"
    found = [(event.endpoint and event.endpoint.translate({60: "{", 62: "}"}), event.method) for event in events]
    assert found == [(endpoint, "GET"), (endpoint, "HEAD")]


def test_an_observer_that_counts_needs_no_event(site: Build) -> None:
    """Each request counts once, whatever its end."""
    counts = OutcomeReader()
    served = site(Rule(name="login", limits="3/minute"), act, observers=[counts])
    for query in ("", "stream", "late", "", "stream"):
        served.call(path=f"/?{query}")
    assert counts.totals() == {("login", "allowed", "memory"): 3, ("login", "rejected", "memory"): 2}


def test_an_event_has_the_settled_cost(site: Build) -> None:
    """The cost of a status that does not count is refunded before the event. An error of the view counts here."""
    events: list[Event] = []
    rule = Rule(name="login", limits="9/minute", cost=2, count_when={"status": [401, 500]})
    served = site(rule, act, observers=[events.append])
    for query in ("", "status=401", "fail", "stream"):
        served.call(path=f"/?{query}")
    assert [event.cost for event in events] == [0, 2, 2, 0]


def test_slots_are_returned_before_the_event(site: Build) -> None:
    left: list[int] = []
    served = site(Rule(name="login", limits="2 concurrent"), act, observers=[lambda _: left.append(served.left()[0])])
    for query in ("", "stream"):
        served.call(path=f"/?{query}")
    assert left == [2, 2]


@each("delay", [0.0, 0.01])
def test_an_observer_that_raises_or_blocks_fails_no_request(site: Build, delay: float) -> None:
    def broken(event: Event) -> None:
        time.sleep(delay)
        raise ValueError

    assert site(Rule(name="login", limits="1/minute"), observers=[broken]).statuses(2) == [200, 429]


def test_a_check_is_part_of_the_event_of_its_request(site: Build) -> None:
    """Its decisions come after those of the request, even where it rejects and the view handles the rejection."""
    events: list[Event] = []

    async def view(call: Call) -> int:
        try:
            await call.check("post")
        except RateLimitExceeded:
            if "catch" not in call.query:
                raise
        return 200

    served = site([SITE, POST], view, observers=[events.append])
    assert [served.call(path=path).status_code for path in ("/", "/", "/", "/?catch")] == [200, 200, 429, 200]
    assert [dict(event.outcomes) for event in events] == [
        *[{"site": "allowed", "post": "allowed"}] * 2,
        *[{"site": "allowed", "post": "rejected"}] * 2,
    ]
    assert outcomes(events) == ["allowed", "allowed", "rejected", "rejected"]


def test_a_rejection_of_another_limiter_is_the_outcome_of_the_request(site: Build) -> None:
    """Its decisions are in an event of that limiter."""
    events: list[Event] = []
    own = Limiter([Rule(limits="1/hour")])
    own.hit({"ip": CLIENT})

    async def view(call: Call) -> int:
        own.hit({"ip": CLIENT}).raise_for_limit()
        return 200

    assert site(SITE, view, observers=[events.append]).statuses(1) == [429]
    assert [(event.outcome, dict(event.outcomes)) for event in events] == [("rejected", {"site": "allowed"})]


def test_two_limiters_have_events_of_their_own(site: Build) -> None:
    outer: list[Event] = []
    inner: list[Event] = []
    around = Limiter([Rule(name="outer", limits="9/minute")], observers=[outer.append])
    served = site(Rule(name="inner", limits="1/minute"), observers=[inner.append], outer=around)
    assert served.statuses(2) == [200, 429]
    assert [(event.outcome, event.rules) for event in outer] == [("allowed", ("outer",))] * 2
    assert [(event.outcome, event.rules) for event in inner] == [("allowed", ("inner",)), ("rejected", ("inner",))]


def test_the_traffic_log_counts_a_request_for_its_rules_and_its_endpoint(site: Build) -> None:
    """Rules in shadow mode count separately. An endpoint is the template of its route, where routes are known."""
    rules = [
        {"name": "api", "limits": "2/minute"},
        {"name": "next", "limits": "1/minute", "mode": "shadow"},
    ]
    served = site({"rules": rules, "traffic_log": "memory://"}, {"/{where}": 200})
    assert served.statuses(3, path="/here") == [200, 200, 429]
    events = served.limiter.traffic_log.events(NOW, NOW)
    of_rules = {name: number for name, number in events.items() if not name.startswith("endpoint:")}
    assert of_rules == {"rule:api:allowed": 2, "rule:api:rejected": 1, "rule:next:allowed": 1, "rule:next:shadow": 2}
    of_endpoints = {name: number for name, number in events.items() if name.startswith("endpoint:")}
    outcomes_of = {f"endpoint:/{{where}}:{outcome}": 1 for outcome in ("allowed", "rejected", "shadow")}
    assert {name.replace("<", "{").replace(">", "}"): number for name, number in of_endpoints.items()} == (
        {} if served.of.__name__.endswith(("asgi", "wsgi")) else outcomes_of
    )
