"""Handlers of rejections in each framework, with all their types, that mypy --strict accepts."""

from django.http import HttpRequest, HttpResponse
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ratelimit_mw import Rejection, Verdict
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.starlette import RateLimitExceeded, RateLimitMiddleware
from ratelimit_mw.wsgi import RateLimitMiddleware as WSGIMiddleware
from ratelimit_mw.wsgi.exchange import WSGIRequest

fastapi = FastAPI()


@fastapi.exception_handler(RateLimitExceeded)
async def of_fastapi(request: Request, error: RateLimitExceeded) -> Response:
    return PlainTextResponse(f"{error.verdict.rejected_by[0].rule}\n", error.verdict.status)


@fastapi.exception_handler(429)
async def of_status(request: Request, error: RateLimitExceeded) -> Response:
    return PlainTextResponse("slow down\n", error.verdict.status)


def of_starlette(request: Request, error: Exception) -> Response:
    """Starlette's own type of a handler takes any exception."""
    assert isinstance(error, RateLimitExceeded)
    return PlainTextResponse(f"{error.verdict.retry_after}\n", error.verdict.status)


starlette = Starlette(exception_handlers={RateLimitExceeded: of_starlette})


async def of_middleware(request: Request, verdict: Verdict) -> Response:
    return PlainTextResponse(f"{request.url}\n", verdict.status)


starlette.add_middleware(RateLimitMiddleware, settings="ratelimit.toml", rejection=of_middleware)

flask = Flask(__name__)


@flask.errorhandler(429)
def of_flask(error: RateLimitExceeded) -> tuple[str, int]:
    return "slow down\n", error.verdict.status


def rejection(request: object, verdict: Verdict) -> Rejection:
    return Rejection(verdict.status, [("Content-Type", "text/plain")], b"slow down\n")


def of_django(request: HttpRequest, verdict: Verdict) -> HttpResponse:
    return HttpResponse("slow down\n", status=verdict.status)


def of_wsgi(request: WSGIRequest, verdict: Verdict) -> Rejection:
    return rejection(request, verdict)


RateLimiter(flask, rejection=rejection)
WSGIMiddleware(lambda environ, start_response: [b""], settings={}, rejection=of_wsgi)
