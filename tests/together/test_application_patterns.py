"""``deduct_when`` of other packages: code of the application outside the view decides whether a request counts."""

from typing import Any

import flask
from django_calls import MIDDLEWARE
from sites import Call, DjangoSite, FlaskSite, Site

from ratelimit_mw import Rule

EMPTY = Rule(name="empty", limits="2/minute", count_when={"marked": True})


async def search(call: Call) -> str:
    return "found" if call.query["word"] == "tea" else "nothing"


def deducts(get_response: Any) -> Any:
    """A middleware of Django inside the limits."""

    def respond(request: Any) -> Any:
        response = get_response(request)
        if response.content == b"nothing":
            request.ratelimit["empty"].count()
        return response

    return respond


def check_searches(site: Site) -> None:
    """Two searches without a result are allowed. The headers show what is left."""
    sent = [site.call(path=f"/?word={word}") for word in ("tea", "x", "tea", "y", "tea")]
    assert [response.status_code for response in sent] == [200, 200, 200, 200, 429]
    assert [response.headers["X-RateLimit-Remaining"] for response in sent] == ["2", "1", "1", "0", "0"]


def test_an_after_request_function_of_flask_deducts() -> None:
    def deduct(response: Any) -> Any:
        if response.get_data() == b"nothing":
            flask.g.ratelimit["empty"].count()
        return response

    with FlaskSite(EMPTY, search) as site:
        site.flask.after_request(deduct)
        check_searches(site)


def test_a_middleware_of_django_deducts() -> None:
    with DjangoSite(EMPTY, search, middleware=[*MIDDLEWARE, f"{__name__}.deducts"]) as site:
        check_searches(site)
