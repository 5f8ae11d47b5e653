"""A cost from a feature of the request, where no estimate is needed or known."""

from __future__ import annotations

import calls
import pytest
from shared_store import SharedStore
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.starlette import RateLimitMiddleware, check, usage
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7"}
TOKENS = Rule(name="tokens", limits="1000/minute", cost="json:max_tokens|10", unit="tokens")


def limiter(*rules: Rule) -> Limiter:
    return Limiter(rules or [TOKENS], clock=ManualClock(1_000_000.0))


def site(rate: Limiter) -> Starlette:
    async def look(request: Request) -> JSONResponse:
        return JSONResponse({rule: each["remaining"] for rule, each in (await usage(request)).items()})

    async def reset(request: Request) -> JSONResponse:
        await check.reset(request, "tokens")
        return JSONResponse("done")

    async def pages(request: Request) -> JSONResponse:
        verdict = await check(request, "pages", pages=int(request.query_params["pages"]))
        return JSONResponse(verdict.decisions[0].remaining)

    async def forgotten(request: Request) -> JSONResponse:
        with pytest.raises(ConfigError, match=r"check\('pages'\): the rule uses .* Pass pages=VALUE"):
            await check(request, "pages")
        return JSONResponse("done")

    async def write(request: Request) -> JSONResponse:
        return JSONResponse("done")

    views = {"/look": look, "/reset": reset, "/pages": pages, "/forgotten": forgotten}
    routes = [*(Route(where, view) for where, view in views.items()), Route("/write", write, methods=["POST"])]
    app = Starlette(routes=routes)
    app.add_middleware(RateLimitMiddleware, limiter=rate)
    return app


def test_a_look_and_a_reset_need_no_estimate() -> None:
    """They consume nothing, so the body of their own request is not read."""
    rule = Rule(name="tokens", limits="1000/minute", cost="json:max_tokens", match={"path": "/write"})
    app = site(limiter(rule))
    calls.ask(app, "/write", "POST", json={"max_tokens": 300})
    assert calls.ask(app, "/look").json() == {"tokens": 700}
    assert calls.ask(app, "/reset").json() == "done"
    assert calls.ask(app, "/look").json() == {"tokens": 1000}


def test_a_view_passes_the_estimate_to_check() -> None:
    """The cost is a feature that only the view knows."""
    app = site(limiter(Rule(name="pages", limits="100/hour", cost="pages", match={"view": ""})))
    assert calls.ask(app, "/pages?pages=30").json() == 70
    assert calls.ask(app, "/pages?pages=30").json() == 40
    assert calls.ask(app, "/pages?pages=41").status_code == 429
    assert calls.ask(app, "/forgotten").json() == "done"


def test_a_feature_that_nothing_provides_stops_the_start() -> None:
    """A misspelt feature would give each request the default cost."""
    with pytest.raises(ConfigError, match="rule 'tokens': cost: uses the feature 'tokns', but nothing provides it"):
        calls.limited(calls.OK, limiter(Rule(name="tokens", limits="9/minute", cost="tokns")))


def test_without_the_store_an_estimate_is_held_at_the_part_of_a_process() -> None:
    """A cost that fits the limit is not rejected forever, a fixed one neither. Slots are counted as they are."""
    store = SharedStore()
    rules = [
        Rule(name="tokens", limits="1000/minute", cost="tokens"),
        Rule(name="fixed", limits="100/minute; 4 concurrent", cost=3),
    ]
    rate = Limiter(rules, store, ManualClock(1_000_000.0), Settings(fleet_size=4))
    store.down = True
    verdict = rate.hit({**WHO, "tokens": 900})
    assert [(d.allowed, d.limit, d.remaining) for d in verdict.decisions] == [
        (True, 250, 250),
        (True, 25, 25),
        (False, 1, 1),
    ]
    assert rate.hit({**WHO, "tokens": 900}, cost=30).decisions[0].local
